//! Access tokens by OAuth 2.0 client credentials: kept while they last, renewed a little earlier.
//!
//! One request for a token is under way at a time per peer; other callers wait for its outcome. A failure is
//! remembered for a second. Neither tokens nor the client's secret occur in errors or logs.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderValue, Method, header};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::{sync::Semaphore, time::Instant};
use url::form_urlencoded::Serializer;
use wopr_wire::a2a::model::Secret;

use super::{
    error::{Error, bounded},
    peer::{OAuth2, form_encoded},
};
use crate::{
    egress::{EgressError, Gate, Request, Seam},
    http::allow_hint,
    secret_header,
};

/// Maximum size of a token response in bytes; tokens of megabytes would not fit a header.
const MAX_RESPONSE: usize = 64 << 10;
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a token lasts if the server does not say.
const DEFAULT_LIFE: Duration = Duration::from_secs(5 * 60);
/// A token is renewed this long before it expires, so that it is still valid when the peer checks it.
const MARGIN: Duration = Duration::from_secs(30);
/// How long a failure is remembered: no longer than until the first retry of a call.
const FAILED_AGE: Duration = Duration::from_secs(1);

/// The current token of a peer, or why there is none.
#[derive(Debug)]
pub(super) struct Tokens {
    current: Mutex<Option<Token>>,
    failed: Mutex<Option<Failed>>,
    /// The turn to ask for a token.
    turn: Semaphore,
}

#[derive(Debug, Clone)]
struct Token {
    text: Secret,
    until: Instant,
}

/// A request for a token that failed.
#[derive(Debug)]
struct Failed {
    why: String,
    cause: Option<Arc<EgressError>>,
    asked: Instant,
    until: Instant,
}

impl Default for Tokens {
    fn default() -> Self {
        Self {
            current: Mutex::default(),
            failed: Mutex::default(),
            turn: Semaphore::new(1),
        }
    }
}

impl Tokens {
    /// Returns a token that is still valid, and whether it was in use before.
    pub(super) async fn get(&self, gate: &Gate, oauth2: &OAuth2) -> Result<(Secret, bool), Error> {
        let arrived = Instant::now();
        if let Some(token) = self.valid() {
            return Ok((token, true));
        }
        let turn = self.turn.acquire().await;
        let _turn = turn.expect("the semaphore is never closed");
        if let Some(token) = self.valid() {
            return Ok((token, true));
        }
        if let Some(error) = self.failure(arrived) {
            return Err(error);
        }
        let asked = Instant::now();
        let requested = request(gate, oauth2).await;
        if let Err(Error::Token(why, cause)) = &requested {
            *self.failed.lock() = Some(Failed {
                why: why.clone(),
                cause: cause.clone(),
                asked,
                until: Instant::now() + FAILED_AGE,
            });
        }
        let token = requested?;
        let text = token.text.clone();
        *self.current.lock() = Some(token);
        Ok((text, false))
    }

    /// The failure that somebody who came at this time waited for, or that has just happened.
    fn failure(&self, arrived: Instant) -> Option<Error> {
        let failed = self.failed.lock();
        let counts = |failed: &&Failed| arrived <= failed.asked || Instant::now() < failed.until;
        let failed = failed.as_ref().filter(counts)?;
        Some(Error::Token(failed.why.clone(), failed.cause.clone()))
    }

    /// Drops a token that the peer no longer accepts.
    pub(super) fn forget(&self, refused: &Secret) {
        let mut current = self.current.lock();
        if current.as_ref().is_some_and(|token| token.text == *refused) {
            *current = None;
        }
    }

    fn valid(&self) -> Option<Secret> {
        let current = self.current.lock();
        let token = current.as_ref().filter(|token| Instant::now() < token.until)?;
        Some(token.text.clone())
    }
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    #[serde(default)]
    token_type: Option<String>,
    /// Seconds; some servers send a string.
    #[serde(default)]
    expires_in: Value,
}

async fn request(gate: &Gate, oauth2: &OAuth2) -> Result<Token, Error> {
    let failed = |why: String| Error::Token(why, None);
    let response = gate.request(Seam::A2a, form(oauth2)?).await;
    let response = response.map_err(|error| {
        let why = format!("{error}{}", allow_hint(&error));
        Error::Token(why, Some(Arc::new(error)))
    })?;
    if !response.status.is_success() {
        let document: Value = serde_json::from_slice(&response.body).unwrap_or_default();
        let code = document.get("error").and_then(Value::as_str).unwrap_or_default();
        let code = oauth2.secrets().text(code);
        let why = format!("the server answered {} {}", response.status, bounded(&code));
        let is_transient = response.status.is_server_error() || response.status.as_u16() == 429;
        // The status of a server that is only busy must not look final.
        let cause = is_transient.then(|| Arc::new(EgressError::Exchange(response.status.to_string().into())));
        return Err(Error::Token(why.trim_end().to_owned(), cause));
    }
    let granted: Granted = serde_json::from_slice(&response.body)
        .map_err(|_| failed("the server's answer is malformed".to_owned()))?;
    let is_bearer = granted
        .token_type
        .is_none_or(|kind| kind.eq_ignore_ascii_case("bearer"));
    if !is_bearer || granted.access_token.is_empty() {
        return Err(failed("the server granted no bearer token".to_owned()));
    }
    let text = Secret::new(granted.access_token)
        .map_err(|_| failed("the server's token does not fit a header".to_owned()))?;
    Ok(Token {
        text,
        until: Instant::now() + usable(&granted.expires_in),
    })
}

/// How long to use a token. A token that lasts for less than the margin is used once.
fn usable(expires_in: &Value) -> Duration {
    let seconds = match expires_in {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    // A day at most, because the sum with the clock must not overflow.
    let life = seconds.map_or(DEFAULT_LIFE, |seconds| Duration::from_secs(seconds.min(86_400)));
    life.saturating_sub(MARGIN)
}

fn form(oauth2: &OAuth2) -> Result<Request, Error> {
    let mut form = Serializer::new(String::new());
    form.append_pair("grant_type", "client_credentials");
    for (name, value) in [("scope", &oauth2.scope), ("audience", &oauth2.audience)] {
        if let Some(value) = value {
            form.append_pair(name, value);
        }
    }
    let pair = format!(
        "{}:{}",
        form_encoded(&oauth2.client_id),
        form_encoded(oauth2.client_secret.expose())
    );
    let authorization = secret_header(&format!("Basic {}", STANDARD.encode(pair)));
    let authorization = authorization
        .map_err(|_| Error::Token("the client's secret does not fit a header".to_owned(), None))?;
    let mut request = Request::new(Method::POST, oauth2.token_url.clone());
    request.headers.insert(header::AUTHORIZATION, authorization);
    request.headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-www-form-urlencoded"),
    );
    request
        .headers
        .insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    request.body = form.finish().into();
    request.timeout = Some(TIMEOUT);
    request.max_response = Some(MAX_RESPONSE);
    request.expects_json = true;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn token_is_used_until_shortly_before_it_expires() {
        for (expires_in, seconds) in [
            (json!(3600), 3570),
            (json!("3600"), 3570),
            (json!(null), 270),
            (json!(10), 0),
            (json!(-1), 270),
            (json!(u64::MAX), 86_370),
        ] {
            assert_eq!(usable(&expires_in).as_secs(), seconds, "{expires_in}");
        }
    }
}
