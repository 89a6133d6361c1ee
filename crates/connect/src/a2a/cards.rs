//! Finds the card of a peer, verifies it, and keeps it as long as its headers allow.
//!
//! A card is kept for as long as `Cache-Control` or `Expires` say, an hour at most, and then revalidated by its
//! `ETag`. A card that cannot be used is looked up again after a minute. A failure that may pass is remembered for a
//! second: many calls to a peer that is down then make few requests, and the retry of a call makes a new one. One
//! lookup per peer is under way at a time; the calls that wait for it share its outcome.
//!
//! A card is asked for with the version that the caller prefers, because an agent may have a card for each. An agent
//! that refuses the version is asked once more without it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{sync::Semaphore, time::Instant};
use tracing::warn;
use url::Url;
use wopr_wire::{
    a2a::{
        card_signature::{self, Reading},
        method::{VERSION_HEADER, Version},
        model::AgentCard,
    },
    jws::JwkSet,
};

use super::{
    card::{Found, is_same_place, read, usable},
    error::{Error, bounded},
    known::Known,
    peer::CardKeys,
};
use crate::egress::{Gate, Protocol, Request, Response, Seam, StreamLimits};
use crate::http::{allow_hint, retry_after};
use crate::redact::Secrets;

/// The places of a card below an address: of today, and of A2A 0.2.
pub(super) const CARD_PATHS: [&str; 2] = ["/.well-known/agent-card.json", "/.well-known/agent.json"];

const MAX_CARD: usize = 1 << 20;
const MAX_KEYS: usize = 256 << 10;
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long a card is used if its headers do not say.
const DEFAULT_AGE: Duration = Duration::from_secs(5 * 60);
/// How long a card is used at most.
const MAX_AGE: Duration = Duration::from_secs(60 * 60);
/// How long a card that cannot be used is remembered.
const BROKEN_AGE: Duration = Duration::from_secs(60);
/// How long a failure that may pass is remembered: no longer than until the first retry of a call.
const FAILED_AGE: Duration = Duration::from_secs(1);

/// A card that was read and, if required, verified.
#[derive(Debug, Clone)]
pub struct Card {
    pub model: AgentCard,
    /// The card as received, with the peer's credential replaced.
    pub document: Value,
    /// Where it was found.
    pub place: Url,
    /// The usable interfaces, in the order to try them.
    pub(super) interfaces: Vec<Arc<Found>>,
}

/// The card that one peer has for clients of one version.
#[derive(Debug)]
pub(super) struct Cards {
    kept: Mutex<Option<Kept>>,
    /// The turn to look the card up.
    turn: Semaphore,
}

impl Default for Cards {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            turn: Semaphore::new(1),
        }
    }
}

#[derive(Debug, Clone)]
struct Kept {
    outcome: Result<Arc<Card>, Broken>,
    etag: Option<HeaderValue>,
    until: Instant,
    /// When it was asked for.
    asked: Instant,
}

impl Kept {
    fn failed(broken: Broken, asked: Instant) -> Self {
        let age = match broken.is_transient() {
            true => FAILED_AGE,
            false => BROKEN_AGE,
        };
        Self {
            outcome: Err(broken),
            etag: None,
            until: Instant::now() + age,
            asked,
        }
    }
}

/// Why a card cannot be used.
#[derive(Debug, Clone)]
enum Broken {
    Invalid(String),
    Unsigned,
    Missing {
        place: String,
        status: StatusCode,
        retry_after: Option<Duration>,
    },
    NotFetched {
        why: String,
        code: &'static str,
        is_transient: bool,
    },
}

impl Broken {
    /// The failure of a lookup, if it is one to remember.
    fn of(error: &Error) -> Option<Self> {
        match error {
            Error::CardInvalid(why) => Some(Self::Invalid(why.clone())),
            Error::CardUnsigned => Some(Self::Unsigned),
            Error::TooLarge { limit } => Some(Self::Invalid(too_large(*limit))),
            Error::CardMissing {
                place,
                status,
                retry_after,
            } => Some(Self::Missing {
                place: place.clone(),
                status: *status,
                retry_after: *retry_after,
            }),
            Error::Policy(cause) => Some(Self::NotFetched {
                why: format!("{cause}{}", allow_hint(cause)),
                code: error.code(),
                is_transient: false,
            }),
            Error::Unreachable { .. } | Error::Interrupted(_) | Error::TimedOut(_) => {
                Some(Self::NotFetched {
                    why: error.to_string(),
                    code: error.code(),
                    is_transient: error.is_transient(),
                })
            }
            Error::UnknownPeer(_)
            | Error::CredentialMissing { .. }
            | Error::Token(..)
            | Error::Status(_)
            | Error::Remote(_)
            | Error::Undecodable(_)
            | Error::TooDeep
            | Error::NoStream
            | Error::OtherTask
            | Error::CardNotFetched { .. }
            | Error::NoInterface { .. }
            | Error::VersionNotSupported { .. }
            | Error::NotOffered { .. }
            | Error::Unwritable(_) => None,
        }
    }

    fn is_transient(&self) -> bool {
        Error::from(self.clone()).is_transient()
    }
}

impl From<Broken> for Error {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Invalid(why) => Self::CardInvalid(why),
            Broken::Unsigned => Self::CardUnsigned,
            Broken::Missing {
                place,
                status,
                retry_after,
            } => Self::CardMissing {
                place,
                status,
                retry_after,
            },
            Broken::NotFetched {
                why,
                code,
                is_transient,
            } => Self::CardNotFetched {
                why,
                code,
                is_transient,
            },
        }
    }
}

/// The outcome of asking for a card.
pub(super) struct Looked {
    pub(super) outcome: Result<Arc<Card>, Error>,
    /// The peer was asked for it now.
    pub(super) is_fresh: bool,
}

impl Looked {
    pub(super) fn is_unauthorized(&self) -> bool {
        matches!(&self.outcome, Err(Error::CardMissing { status, .. }) if *status == StatusCode::UNAUTHORIZED)
    }
}

/// What a lookup needs to know of the peer.
pub(super) struct Lookup<'a> {
    pub(super) known: &'a Known,
    /// The version to ask for.
    pub(super) version: Version,
    pub(super) credential: Option<(HeaderName, HeaderValue)>,
    pub(super) secrets: Secrets,
}

impl Cards {
    /// Returns the kept card, if it is still fresh.
    pub(super) fn fresh(&self) -> Option<Result<Arc<Card>, Error>> {
        let now = Instant::now();
        self.kept(|kept| now < kept.until)
    }

    /// Returns the kept card, or looks it up.
    pub(super) async fn get(&self, lookup: &Lookup<'_>) -> Looked {
        let arrived = Instant::now();
        if let Some(outcome) = self.kept(|kept| arrived < kept.until) {
            return Looked {
                outcome,
                is_fresh: false,
            };
        }
        let turn = self.turn.acquire().await;
        let _turn = turn.expect("the semaphore is never closed");
        // A card that must not be kept serves those who asked before it was asked for.
        if let Some(outcome) = self.kept(|kept| arrived <= kept.asked || Instant::now() < kept.until) {
            return Looked {
                outcome,
                is_fresh: false,
            };
        }
        Box::pin(self.get_anew(lookup)).await
    }

    /// Looks the card up, whatever is known of it.
    pub(super) async fn get_anew(&self, lookup: &Lookup<'_>) -> Looked {
        let asked = Instant::now();
        let outcome = match self.look_up(lookup, asked).await {
            Ok(fresh) => {
                let outcome = fresh.outcome.clone();
                *self.kept.lock() = Some(fresh);
                outcome.map_err(Error::from)
            }
            Err(error) => match Broken::of(&error) {
                Some(broken) => {
                    *self.kept.lock() = Some(Kept::failed(broken.clone(), asked));
                    match error {
                        // Not the message was lost, but the card that was to say where it goes.
                        error if error.may_have_been_sent() => Err(broken.into()),
                        error => Err(error),
                    }
                }
                None => Err(error),
            },
        };
        Looked {
            outcome,
            is_fresh: true,
        }
    }

    fn kept(&self, is_usable: impl FnOnce(&Kept) -> bool) -> Option<Result<Arc<Card>, Error>> {
        let kept = self.kept.lock();
        let kept = kept.as_ref().filter(|kept| is_usable(kept))?;
        Some(kept.outcome.clone().map_err(Error::from))
    }

    async fn look_up(&self, lookup: &Lookup<'_>, asked: Instant) -> Result<Kept, Error> {
        let kept = self.kept.lock().clone();
        let known = kept.and_then(|kept| Some((kept.outcome.ok()?, kept.etag?)));
        let Some((card, etag)) = known else {
            return self.found(lookup, asked).await;
        };
        let response = lookup.fetch(&card.place, Some(&etag)).await?;
        if response.status == StatusCode::NOT_MODIFIED {
            return Ok(Kept {
                until: Instant::now() + age(&response.headers, SystemTime::now()),
                outcome: Ok(card),
                etag: Some(etag_of(&response.headers).unwrap_or(etag)),
                asked,
            });
        }
        if response.status.is_success() {
            return self.judged(lookup, &card.place, &response, asked).await;
        }
        self.found(lookup, asked).await
    }

    async fn found(&self, lookup: &Lookup<'_>, asked: Instant) -> Result<Kept, Error> {
        let (place, response) = lookup.find().await?;
        self.judged(lookup, &place, &response, asked).await
    }

    /// Reads and verifies a card.
    async fn judged(
        &self,
        lookup: &Lookup<'_>,
        place: &Url,
        response: &Response,
        asked: Instant,
    ) -> Result<Kept, Error> {
        let outcome = match serde_json::from_slice::<Value>(&response.body) {
            Ok(document) => match self.check(lookup, &document).await? {
                Ok(()) => lookup.card(document, place),
                Err(broken) => Err(broken),
            },
            Err(error) => Err(Broken::Invalid(error.to_string())),
        };
        Ok(match outcome {
            Ok(card) => Kept {
                outcome: Ok(Arc::new(card)),
                etag: etag_of(&response.headers),
                until: Instant::now() + age(&response.headers, SystemTime::now()),
                asked,
            },
            Err(broken) => Kept::failed(broken, asked),
        })
    }

    /// Verifies the signatures if that is required, or if the operator named the keys.
    async fn check(&self, lookup: &Lookup<'_>, document: &Value) -> Result<Result<(), Broken>, Error> {
        let peer = &lookup.known.peer;
        let signatures = document.get("signatures").and_then(Value::as_array);
        let is_signed = signatures.is_some_and(|signatures| !signatures.is_empty());
        if !is_signed {
            if peer.require_signed_card {
                return Ok(Err(Broken::Unsigned));
            }
            if lookup.known.is_first_warning() {
                warn!(peer = peer.name, "agent card is not signed");
            }
        }
        let is_verified = match peer.card_keys {
            CardKeys::FromCard => peer.require_signed_card,
            CardKeys::Url(_) | CardKeys::These(_) => true,
        };
        if is_signed && !is_verified && lookup.known.is_first_warning() {
            warn!(
                peer = peer.name,
                "agent card is signed, but the signature is not verified: set card_keys or require_signed_card"
            );
        }
        if !is_signed || !is_verified {
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
        for place in places(&self.known.peer.url) {
            let response = self.fetch(&place, None).await?;
            if response.status.is_success() {
                return Ok((place, response));
            }
            let missing = Error::CardMissing {
                place: place.into(),
                status: response.status,
                retry_after: retry_after(&response.headers, SystemTime::now()),
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
        let response = self.fetch_as(Some(self.version), place, etag).await?;
        match response.status {
            // The agent may refuse the version, or the header. The card that it has for everybody may do.
            StatusCode::BAD_REQUEST | StatusCode::NOT_ACCEPTABLE => self.fetch_as(None, place, etag).await,
            _ => Ok(response),
        }
    }

    async fn fetch_as(
        &self,
        version: Option<Version>,
        place: &Url,
        etag: Option<&HeaderValue>,
    ) -> Result<Response, Error> {
        let mut request = Request::new(Method::GET, place.clone());
        let headers = &mut request.headers;
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(version) = version {
            let name = HeaderName::from_bytes(VERSION_HEADER.as_bytes());
            let name = name.expect("a constant of valid characters");
            headers.insert(name, HeaderValue::from_static(version.as_str()));
        }
        if let Some(etag) = etag {
            headers.insert(header::IF_NONE_MATCH, etag.clone());
        }
        if let Some((name, value)) = &self.credential {
            headers.insert(name.clone(), value.clone());
        }
        let gate = self.known.gate_to_named(place);
        self.whole(gate, Seam::Card, request, MAX_CARD).await
    }

    /// Sends a request and reads the whole JSON answer.
    async fn whole(
        &self,
        gate: &Gate,
        seam: Seam,
        mut request: Request,
        max: usize,
    ) -> Result<Response, Error> {
        request.protocol = Protocol::Negotiated;
        let limits = StreamLimits {
            headers: TIMEOUT,
            idle: TIMEOUT,
            total: TIMEOUT,
            body: max,
        };
        let place = request.url.clone();
        let response = gate.stream(seam, request, limits).await;
        let response = response.map_err(|error| Error::of_request(error, &place))?;
        let (head, body) = response.into_parts();
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
        let peer = &self.known.peer;
        let is_preferred = |address: &Url| !peer.has_credential() || peer.is_own_place(address);
        Ok(Card {
            interfaces: usable(&model, &peer.url, is_preferred),
            model,
            document,
            place: place.clone(),
        })
    }

    /// The key sets to verify signatures with.
    async fn keys(&self, document: &Value) -> Result<Vec<JwkSet>, Error> {
        let places = match &self.known.peer.card_keys {
            CardKeys::These(keys) => return Ok(vec![keys.clone()]),
            CardKeys::Url(url) => vec![url.clone()],
            CardKeys::FromCard => self.places_of_keys(document),
        };
        let mut sets = Vec::new();
        for place in places {
            let gate = self.known.gate_to_named(&place);
            let mut request = Request::new(Method::GET, place);
            request
                .headers
                .insert(header::ACCEPT, HeaderValue::from_static("application/json"));
            let response = self.whole(gate, Seam::Jwks, request, MAX_KEYS).await?;
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
            if is_same_place(&place, &self.known.peer.url) && !places.contains(&place) {
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

fn too_large(limit: usize) -> String {
    format!("it is over {limit} bytes, or of too many values")
}

/// The tag by which a card is revalidated, if the card may be stored.
fn etag_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let may_store = !directives(headers).any(|(name, _)| name == "no-store");
    headers.get(header::ETAG).filter(|_| may_store).cloned()
}

/// The directives of `Cache-Control`, with lowercase names.
fn directives(headers: &HeaderMap) -> impl Iterator<Item = (String, &str)> {
    let lines = headers.get_all(header::CACHE_CONTROL).into_iter();
    let directives = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','));
    directives.map(|directive| {
        let (name, value) = directive.trim().split_once('=').unwrap_or((directive.trim(), ""));
        (name.to_ascii_lowercase(), value.trim_matches('"'))
    })
}

/// How long a card may be used (RFC 9111 section 4.2.1). What a cache before us has used up of it does not count.
fn age(headers: &HeaderMap, now: SystemTime) -> Duration {
    let mut age = None;
    for (name, value) in directives(headers) {
        match name.as_str() {
            "no-store" | "no-cache" => return Duration::ZERO,
            "max-age" => age = value.parse().ok().map(Duration::from_secs),
            _ => {}
        }
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let age = age.or_else(|| {
        let date = |text| httpdate::parse_http_date(text).ok();
        // A date that cannot be read has passed.
        let expires = date(text(header::EXPIRES)?).unwrap_or(SystemTime::UNIX_EPOCH);
        let sent = text(header::DATE).and_then(date).unwrap_or(now);
        Some(expires.duration_since(sent).unwrap_or_default())
    });
    let used = text(header::AGE).and_then(|text| text.parse().ok());
    let used = used.map_or(Duration::ZERO, Duration::from_secs);
    age.map_or(DEFAULT_AGE, |age| age.saturating_sub(used))
        .min(MAX_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_set_the_age_of_a_card() {
        let date = "Thu, 01 Jan 2026 00:00:00 GMT";
        let later = "Thu, 01 Jan 2026 00:02:00 GMT";
        for (lines, seconds) in [
            (&[][..], 300),
            (&[("cache-control", "max-age=60")], 60),
            (&[("cache-control", "public, Max-Age=\"7\"")], 7),
            (&[("cache-control", "public"), ("cache-control", "max-age=9")], 9),
            (&[("cache-control", "max-age=99999999999")], 3600),
            (&[("cache-control", "max-age=60, no-cache")], 0),
            (&[("cache-control", "no-store")], 0),
            (&[("cache-control", "max-age=soon")], 300),
            (&[("cache-control", "max-age=60"), ("age", "20")], 40),
            (&[("cache-control", "max-age=60"), ("age", "90")], 0),
            (&[("cache-control", "max-age=60"), ("expires", "0")], 60),
            (&[("expires", later), ("date", date)], 120),
            (&[("expires", date), ("date", later)], 0),
            (&[("expires", "0")], 0),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, HeaderValue::from_static(value));
            }
            assert_eq!(age(&headers, SystemTime::now()).as_secs(), seconds, "{lines:?}");
        }
    }

    #[test]
    fn card_that_must_not_be_stored_is_not_revalidated() {
        let mut headers = HeaderMap::new();
        headers.insert(header::ETAG, HeaderValue::from_static("\"v1\""));
        assert!(etag_of(&headers).is_some());
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("No-Store"));
        assert!(etag_of(&headers).is_none());
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
