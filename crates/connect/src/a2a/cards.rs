//! Finds the card of a peer, verifies it, and keeps it as long as its headers allow.
//!
//! A card is kept for its `max-age`, an hour at most, and then revalidated by its `ETag`. A card that cannot be
//! used is looked up again after a minute at most. An unreachable peer is not remembered: the next call tries
//! again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;
use tracing::warn;
use url::Url;
use wopr_wire::{
    a2a::{
        card_signature::{self, Reading},
        model::AgentCard,
    },
    jws::JwkSet,
};

use super::{
    card::{is_same_place, read},
    error::{Error, bounded},
    peer::{CardKeys, Peer},
    redact::Secrets,
};
use crate::egress::{Gate, Protocol, Request, Response, Seam, StreamLimits};

/// The places of a card below an address: of today, and of A2A 0.2.
const CARD_PATHS: [&str; 2] = ["/.well-known/agent-card.json", "/.well-known/agent.json"];

const MAX_CARD: usize = 1 << 20;
const MAX_KEYS: usize = 256 << 10;
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long a card is used if its headers do not say.
const DEFAULT_AGE: Duration = Duration::from_secs(5 * 60);
/// How long a card is used at most.
const MAX_AGE: Duration = Duration::from_secs(60 * 60);
/// How long a card that cannot be used is remembered.
const BROKEN_AGE: Duration = Duration::from_secs(60);

/// A card that was read and, if required, verified.
#[derive(Debug, Clone)]
pub struct Card {
    pub model: AgentCard,
    /// The card as received, with the peer's credential replaced.
    pub document: Value,
    /// Where it was found.
    pub place: Url,
}

/// The card of one peer.
#[derive(Debug, Default)]
pub(super) struct Cards {
    kept: Mutex<Option<Kept>>,
    has_warned: AtomicBool,
}

#[derive(Debug, Clone)]
struct Kept {
    outcome: Result<Arc<Card>, Broken>,
    etag: Option<HeaderValue>,
    until: Instant,
}

/// Why a card cannot be used.
#[derive(Debug, Clone)]
enum Broken {
    Invalid(String),
    Unsigned,
}

impl From<Broken> for Error {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Invalid(why) => Self::CardInvalid(why),
            Broken::Unsigned => Self::CardUnsigned,
        }
    }
}

/// What a lookup needs to know of the peer.
pub(super) struct Lookup<'a> {
    pub(super) gate: &'a Gate,
    pub(super) peer: &'a Peer,
    pub(super) credential: Option<(HeaderName, HeaderValue)>,
    pub(super) secrets: Secrets,
}

impl Cards {
    /// Returns the kept card, or looks it up.
    pub(super) async fn get(&self, lookup: &Lookup<'_>) -> Result<Arc<Card>, Error> {
        let kept = self.kept.lock().clone();
        if let Some(kept) = &kept
            && Instant::now() < kept.until
        {
            return kept.outcome.clone().map_err(Error::from);
        }
        let known = kept.and_then(|kept| Some((kept.outcome.ok()?, kept.etag?)));
        let fresh = match known {
            Some((card, etag)) => match lookup.fetch(&card.place, Some(&etag)).await? {
                response if response.status == StatusCode::NOT_MODIFIED => Kept {
                    until: Instant::now() + age(&response.headers),
                    outcome: Ok(card),
                    etag: Some(etag),
                },
                response if response.status.is_success() => {
                    self.judged(lookup, &card.place.clone(), &response).await?
                }
                _ => self.found(lookup).await?,
            },
            None => self.found(lookup).await?,
        };
        let outcome = fresh.outcome.clone();
        *self.kept.lock() = Some(fresh);
        Ok(outcome?)
    }

    async fn found(&self, lookup: &Lookup<'_>) -> Result<Kept, Error> {
        let (place, response) = lookup.find().await?;
        self.judged(lookup, &place, &response).await
    }

    /// Reads and verifies a card. An error of the network, such as of fetching keys, is not kept.
    async fn judged(&self, lookup: &Lookup<'_>, place: &Url, response: &Response) -> Result<Kept, Error> {
        let outcome = match serde_json::from_slice::<Value>(&response.body) {
            Ok(document) => match self.check(lookup, &document).await? {
                Ok(()) => lookup.card(document, place),
                Err(broken) => Err(broken),
            },
            Err(error) => Err(Broken::Invalid(error.to_string())),
        };
        let age = match &outcome {
            Ok(_) => age(&response.headers),
            Err(_) => BROKEN_AGE,
        };
        Ok(Kept {
            outcome: outcome.map(Arc::new),
            etag: response.headers.get(header::ETAG).cloned(),
            until: Instant::now() + age,
        })
    }

    /// Verifies the signatures if that is required.
    async fn check(&self, lookup: &Lookup<'_>, document: &Value) -> Result<Result<(), Broken>, Error> {
        let peer = lookup.peer;
        let signatures = document.get("signatures").and_then(Value::as_array);
        let is_signed = signatures.is_some_and(|signatures| !signatures.is_empty());
        if !is_signed {
            if peer.require_signed_card {
                return Ok(Err(Broken::Unsigned));
            }
            if !self.has_warned.swap(true, Ordering::Relaxed) {
                warn!(peer = peer.name, "agent card is not signed");
            }
        }
        if !is_signed || !peer.require_signed_card {
            return Ok(Ok(()));
        }
        for keys in lookup.keys(document).await? {
            let checked = match card_signature::verify(document, &keys) {
                Ok(checked) => checked,
                Err(error) => return Ok(Err(Broken::Invalid(error.to_string()))),
            };
            // A narrower reading covers what is read from a 1.0 card, and nothing of a 0.3 card.
            let is_model = document.get("supportedInterfaces").is_some();
            if checked.into_iter().any(|checked| match checked.outcome {
                Ok(Reading::Document) => true,
                Ok(Reading::Model | Reading::Sdk) => is_model,
                Err(_) => false,
            }) {
                return Ok(Ok(()));
            }
        }
        Ok(Err(Broken::Invalid("no signature is valid".to_owned())))
    }
}

impl Lookup<'_> {
    /// Finds the card at the peer's address itself, or else at the well-known places below it and below its
    /// origin.
    pub(super) async fn find(&self) -> Result<(Url, Response), Error> {
        let mut failure = None;
        for place in places(&self.peer.url) {
            let response = self.fetch(&place, None).await?;
            if response.status.is_success() {
                return Ok((place, response));
            }
            let missing = Error::CardMissing {
                place: place.into(),
                status: response.status,
            };
            if !response.status.is_client_error() || response.status == StatusCode::TOO_MANY_REQUESTS {
                return Err(missing);
            }
            // The first place that is more than missing explains most.
            failure = match failure {
                None => Some((response.status, missing)),
                Some((StatusCode::NOT_FOUND, _)) if response.status != StatusCode::NOT_FOUND => {
                    Some((response.status, missing))
                }
                earlier => earlier,
            };
        }
        match failure {
            Some((_, missing)) => Err(missing),
            None => Err(Error::CardInvalid("there is no place to look for it".to_owned())),
        }
    }

    async fn fetch(&self, place: &Url, etag: Option<&HeaderValue>) -> Result<Response, Error> {
        let mut request = Request::new(Method::GET, place.clone());
        let headers = &mut request.headers;
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(etag) = etag {
            headers.insert(header::IF_NONE_MATCH, etag.clone());
        }
        if let Some((name, value)) = &self.credential {
            headers.insert(name.clone(), value.clone());
        }
        self.whole(Seam::Card, request, MAX_CARD).await
    }

    /// Sends a request and reads the whole JSON answer.
    async fn whole(&self, seam: Seam, mut request: Request, max: usize) -> Result<Response, Error> {
        request.protocol = Protocol::Negotiated;
        let limits = StreamLimits {
            headers: TIMEOUT,
            idle: TIMEOUT,
            total: TIMEOUT,
            body: max,
        };
        let (head, body) = self.gate.stream(seam, request, limits).await?.into_parts();
        let (body, share) = body.collect(true).await?;
        Ok(Response {
            status: head.status,
            headers: head.headers,
            body,
            share: Some(share),
        })
    }

    /// Decodes a card after the peer's credential was replaced in it.
    fn card(&self, mut document: Value, place: &Url) -> Result<Card, Broken> {
        self.secrets.redact(&mut document);
        let model = read(document.clone()).map_err(|error| Broken::Invalid(bounded(&error.to_string())))?;
        Ok(Card {
            model,
            document,
            place: place.clone(),
        })
    }

    /// The key sets to verify signatures with.
    async fn keys(&self, document: &Value) -> Result<Vec<JwkSet>, Error> {
        let places = match &self.peer.card_keys {
            CardKeys::These(keys) => return Ok(vec![keys.clone()]),
            CardKeys::Url(url) => vec![url.clone()],
            CardKeys::FromCard => self.places_of_keys(document),
        };
        let mut sets = Vec::new();
        for place in places {
            let mut request = Request::new(Method::GET, place);
            request
                .headers
                .insert(header::ACCEPT, HeaderValue::from_static("application/json"));
            let response = self.whole(Seam::Jwks, request, MAX_KEYS).await?;
            if !response.status.is_success() {
                return Err(Error::CardInvalid(format!(
                    "its keys cannot be fetched: {}",
                    response.status
                )));
            }
            let keys = JwkSet::parse(&response.body);
            sets.push(keys.map_err(|error| Error::CardInvalid(format!("its keys cannot be read: {error}")))?);
        }
        Ok(sets)
    }

    /// The key sets that the signatures name, as far as they are at the peer itself: anyone can name their own.
    fn places_of_keys(&self, document: &Value) -> Vec<Url> {
        let Ok(checked) = card_signature::verify(document, &JwkSet::default()) else {
            return Vec::new();
        };
        let named = checked.into_iter().filter_map(|checked| checked.header?.jku);
        let mut places: Vec<Url> = Vec::new();
        for place in named.filter_map(|jku| Url::parse(&jku).ok()) {
            if is_same_place(&place, &self.peer.url) && !places.contains(&place) {
                places.push(place);
            }
        }
        // Signatures of more sets are no better than those of the first ones.
        places.truncate(MAX_SETS);
        places
    }
}

/// Key sets to fetch for one card.
const MAX_SETS: usize = 4;

/// The places of a card, in the order to try them.
fn places(url: &Url) -> Vec<Url> {
    let mut places = Vec::new();
    let mut add = |place: Url| {
        if !places.contains(&place) {
            places.push(place);
        }
    };
    if url.path().ends_with(".json") {
        add(url.clone());
    }
    for path in CARD_PATHS {
        if !url.path().ends_with(".json") {
            let mut below = url.clone();
            below.set_path(&format!("{}{path}", url.path().trim_end_matches('/')));
            add(below);
        }
        if let Ok(origin) = url.join(path) {
            add(origin);
        }
    }
    places
}

/// How long a card may be used.
fn age(headers: &HeaderMap) -> Duration {
    let directives = headers.get_all(header::CACHE_CONTROL);
    let directives = directives.iter().filter_map(|value| value.to_str().ok());
    let mut age = None;
    for directive in directives.flat_map(|value| value.split(',')).map(str::trim) {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        match name.to_ascii_lowercase().as_str() {
            "no-store" | "no-cache" => return Duration::ZERO,
            "max-age" => age = value.trim_matches('"').parse().ok().map(Duration::from_secs),
            _ => {}
        }
    }
    age.unwrap_or(DEFAULT_AGE).min(MAX_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_control_sets_the_age_of_a_card() {
        for (values, seconds) in [
            (&[][..], 300),
            (&["max-age=60"], 60),
            (&["public, Max-Age=\"7\""], 7),
            (&["public", "max-age=9"], 9),
            (&["max-age=99999999999"], 3600),
            (&["max-age=60, no-cache"], 0),
            (&["no-store"], 0),
            (&["max-age=soon"], 300),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CACHE_CONTROL, HeaderValue::from_static(value));
            }
            assert_eq!(age(&headers).as_secs(), seconds, "{values:?}");
        }
    }

    #[test]
    fn card_is_looked_for_below_the_address_and_its_origin() {
        let list = |url: &str| -> Vec<String> {
            let found = places(&Url::parse(url).unwrap());
            found.into_iter().map(String::from).collect()
        };
        assert_eq!(
            list("https://a.test"),
            [
                "https://a.test/.well-known/agent-card.json",
                "https://a.test/.well-known/agent.json"
            ]
        );
        assert_eq!(
            list("https://a.test/x/"),
            [
                "https://a.test/x/.well-known/agent-card.json",
                "https://a.test/.well-known/agent-card.json",
                "https://a.test/x/.well-known/agent.json",
                "https://a.test/.well-known/agent.json"
            ]
        );
        assert_eq!(
            list("https://a.test/x/card.json")[0],
            "https://a.test/x/card.json"
        );
    }
}
