//! `core.http.request`: one HTTP call of a workflow.
//!
//! Only a 2xx response is a success. Any other response fails as retryable or not, depending on whether
//! another attempt could succeed; the error contains nothing from the response body, which is untrusted and
//! may be long, secret or both. The body of a 2xx response is returned completely and marked untrusted, with
//! the few headers a workflow can use. Cookies and authentication challenges are dropped.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::{Map, Value, json};
use url::Url;
use wopr_core::{SecretHeader, TenantId, TraceContext};
use wopr_engine::{HttpCall, Keep, Outcome};

use crate::{
    egress::{EgressError, Gate, Refusal, Request, Response, Seam, read_url},
    redact::Secrets,
    secret_header,
    secrets::NamedSecrets,
};

/// Lets a peer recognize a repeated attempt.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The response headers that a workflow can see.
const SELECTED: [HeaderName; 8] = [
    header::CONTENT_LANGUAGE,
    header::CONTENT_TYPE,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LINK,
    header::LOCATION,
    header::RETRY_AFTER,
    HeaderName::from_static("x-request-id"),
];

#[derive(Debug, Clone)]
pub struct Http {
    gate: Gate,
    secrets: NamedSecrets,
}

impl Http {
    /// Sends calls through [`Seam::HttpNode`] of the gate.
    #[must_use]
    pub fn new(gate: Gate, secrets: NamedSecrets) -> Self {
        Self { gate, secrets }
    }

    /// Makes one attempt for a tenant. `keep` holds the memory share of the response until the outcome is
    /// recorded. `key` is sent as `Idempotency-Key`, unless the workflow set its own.
    pub async fn call(
        &self,
        tenant: &TenantId,
        key: &str,
        trace: Option<TraceContext>,
        mut call: HttpCall,
        keep: &Keep,
    ) -> Outcome {
        let secret_headers = std::mem::take(&mut call.secret_headers);
        let mut request = match request(key, trace, call) {
            Ok(request) => request,
            Err(rule) => return refused(rule),
        };
        request.tenant = Some(tenant.clone());
        let place = request.url.clone();
        let mut redacted = Secrets::default();
        for header in &secret_headers {
            if let Err(outcome) = self.carry(tenant, header, &mut request, &mut redacted).await {
                return outcome;
            }
        }
        match self.gate.request(Seam::HttpNode, request).await {
            Ok(response) => {
                // The outcome is built from the response and needs its memory until it is recorded.
                keep.until_recorded(response.share.clone());
                let mut outcome = outcome(&response);
                // A peer may send back what it was sent.
                if let (Outcome::Done(outputs), false) = (&mut outcome, secret_headers.is_empty()) {
                    redacted.redact(outputs);
                }
                outcome
            }
            Err(error) => failure(&error, &place),
        }
    }
}

impl Http {
    /// Adds a header with a secret, if the request may carry it.
    async fn carry(
        &self,
        tenant: &TenantId,
        header: &SecretHeader,
        request: &mut Request,
        redacted: &mut Secrets,
    ) -> Result<(), Outcome> {
        let secret = self
            .secrets
            .for_request(tenant, &header.secret, &request.url)
            .await;
        let secret = secret.map_err(|refusal| {
            let is_transient = refusal.is_transient();
            failed("credential_refused", refusal.to_string(), is_transient)
        })?;
        let name = HeaderName::from_bytes(header.name.as_bytes());
        let name = name.map_err(|_| refused("send a malformed header name"))?;
        let value = secret_header(&format!("{}{}", header.prefix, secret.expose()));
        let value = value.map_err(|_| refused("send a malformed header value"))?;
        redacted.add(secret.expose());
        request.headers.append(name, value);
        Ok(())
    }
}

/// The rule that a call breaks before it comes to the gate.
#[derive(Debug, thiserror::Error)]
enum Malformed {
    #[error("use a malformed method")]
    Method,
    #[error(transparent)]
    Url(#[from] Refusal),
    #[error("send a malformed header name")]
    HeaderName,
    #[error("send a malformed header value")]
    HeaderValue,
    #[error("send a malformed idempotency key")]
    Key,
}

/// Converts a call to a request, or returns the rule that it breaks.
fn request(key: &str, trace: Option<TraceContext>, call: HttpCall) -> Result<Request, Malformed> {
    let method = Method::from_bytes(call.method.as_bytes()).map_err(|_| Malformed::Method)?;
    let url = read_url(&spaces_escaped(call.url.trim()))?;
    let mut request = Request::new(method, url);
    for (name, value) in &call.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| Malformed::HeaderName)?;
        let mut value = HeaderValue::from_str(value).map_err(|_| Malformed::HeaderValue)?;
        value.set_sensitive(true);
        request.headers.append(name, value);
    }
    if !request.headers.contains_key(IDEMPOTENCY_KEY) {
        let key = HeaderValue::from_str(key).map_err(|_| Malformed::Key)?;
        request.headers.insert(IDEMPOTENCY_KEY, key);
    }
    if let Some(body) = call.body {
        request.body = Bytes::from(body);
        request
            .headers
            .entry(header::CONTENT_TYPE)
            .or_insert(HeaderValue::from_static("application/json"));
    }
    request.timeout = Some(Duration::from_millis(call.timeout_ms));
    request.trace = trace;
    Ok(request)
}

/// Escapes the spaces of a URL: a workflow makes it of texts that people write, as in `?city={{ inputs.city }}`.
fn spaces_escaped(text: &str) -> Cow<'_, str> {
    let is_space = |c: char| c.is_whitespace() && !c.is_control();
    if !text.contains(is_space) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_space(c) {
            let mut bytes = [0; 4];
            escaped.extend(
                c.encode_utf8(&mut bytes)
                    .bytes()
                    .map(|byte| format!("%{byte:02X}")),
            );
        } else {
            escaped.push(c);
        }
    }
    escaped.into()
}

fn outcome(response: &Response) -> Outcome {
    let status = response.status;
    if status.is_success() {
        return Outcome::Done(json!({
            "status": status.as_u16(),
            "headers": selected(&response.headers),
            "body": body(response),
            "contentTrust": "untrusted",
        }));
    }
    let code = status.as_u16();
    if status.is_redirection() {
        return failed(
            "redirect_refused",
            format!("the peer answered {code}, redirects are not followed"),
            false,
        );
    }
    if is_transient(status) {
        return Outcome::Failed {
            code: "external_call_failed".to_owned(),
            message: format!("the peer answered {code}"),
            retryable: true,
            retry_after: retry_after(&response.headers, SystemTime::now()),
            may_go_on: false,
            is_timeout: false,
        };
    }
    failed(
        "external_call_rejected",
        format!("the peer answered {code}"),
        false,
    )
}

pub(crate) fn is_transient(status: StatusCode) -> bool {
    status.is_server_error()
        || [
            StatusCode::REQUEST_TIMEOUT,
            StatusCode::TOO_EARLY,
            StatusCode::TOO_MANY_REQUESTS,
        ]
        .contains(&status)
}

/// The delay that the peer requests: seconds, or a date, which is compared with the peer's `Date` header if
/// there is one.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let date = |text| httpdate::parse_http_date(text).ok();
    let asked = text(header::RETRY_AFTER)?.trim();
    if let Some(seconds) = seconds(asked) {
        return Some(Duration::from_secs(seconds));
    }
    let now = text(header::DATE).and_then(date).unwrap_or(now);
    Some(date(asked)?.duration_since(now).unwrap_or_default())
}

/// A number of seconds, rounded up. What is more than a `u32` holds is longer than any host waits.
fn seconds(text: &str) -> Option<u64> {
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let more = u64::from(fraction.bytes().any(|digit| digit != b'0'));
    Some(
        whole
            .parse::<u32>()
            .map_or(u64::from(u32::MAX), |whole| u64::from(whole) + more),
    )
}

/// The failure of a request to a place.
pub(crate) fn failure(error: &EgressError, place: &Url) -> Outcome {
    match error {
        EgressError::Unresolved(_)
        | EgressError::Connect(_)
        | EgressError::Certificate { .. }
        | EgressError::ConnectTimeout => {
            // The origin has no credential and no query.
            let origin = place.origin().ascii_serialization();
            failed(
                "external_call_failed",
                format!("failed to {error} ({origin})"),
                true,
            )
        }
        EgressError::Exchange(_) | EgressError::Busy => {
            failed("external_call_failed", format!("failed to {error}"), true)
        }
        EgressError::Timeout | EgressError::Stalled => {
            failed("external_call_failed", format!("failed to {error}"), true).timed_out()
        }
        EgressError::HeadersTooLarge { .. }
        | EgressError::ResponseTooLarge { .. }
        | EgressError::TooManyValues(_) => failed("response_too_large", format!("refused to {error}"), false),
        EgressError::Refused(_)
        | EgressError::Closed(_)
        | EgressError::Method
        | EgressError::Header(_)
        | EgressError::RequestTooLarge { .. }
        | EgressError::Form(_)
        | EgressError::Tls(_) => failed("egress_refused", refused_by_gate(error), false),
    }
}

fn refused(rule: impl std::fmt::Display) -> Outcome {
    failed("egress_refused", format!("refused to {rule}"), false)
}

/// What the gate refused, with [`allow_hint`].
pub(crate) fn refused_by_gate(error: &EgressError) -> String {
    format!("refused to {error}{}", allow_hint(error))
}

/// Names the setting that can allow a target that the gate refused; empty if none can.
pub(crate) fn allow_hint(error: &EgressError) -> &'static str {
    if matches!(error, EgressError::Refused(refusal) if refusal.can_be_allowed()) {
        "; WOPR_EGRESS_ALLOW (egress.allow) can allow its address"
    } else {
        ""
    }
}

pub(crate) fn failed(code: &str, message: String, retryable: bool) -> Outcome {
    Outcome::Failed {
        code: code.to_owned(),
        message,
        retryable,
        retry_after: None,
        may_go_on: false,
        is_timeout: false,
    }
}

/// The selected headers, with repeated ones joined. Header names are already lowercase.
fn selected(headers: &HeaderMap) -> Value {
    let mut fields = Map::new();
    for name in SELECTED {
        let values: Vec<&str> = headers
            .get_all(&name)
            .iter()
            .filter_map(|v| v.to_str().ok())
            .collect();
        if !values.is_empty() {
            fields.insert(name.as_str().to_owned(), Value::String(values.join(", ")));
        }
    }
    Value::Object(fields)
}

/// JSON if the content type says so and the body parses, `null` if the body is empty, text otherwise.
fn body(response: &Response) -> Value {
    if response.body.is_empty() {
        return Value::Null;
    }
    // The gate has already checked the memory this takes.
    if response.is_json()
        && let Ok(value) = serde_json::from_slice(&response.body)
    {
        return value;
    }
    Value::String(String::from_utf8_lossy(&response.body).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&'static str, &'static str)], body: &'static str) -> Response {
        Response {
            status: StatusCode::from_u16(status).unwrap(),
            headers: headers
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect(),
            body: Bytes::from_static(body.as_bytes()),
            share: None,
        }
    }

    #[test]
    fn failure_says_whether_the_peer_took_too_long() {
        let place: Url = "https://peer.example/".parse().unwrap();
        for (error, is_late) in [
            (EgressError::Timeout, true),
            (EgressError::Stalled, true),
            (EgressError::ConnectTimeout, false),
            (EgressError::Busy, false),
        ] {
            let outcome = failure(&error, &place);
            assert!(
                matches!(outcome, Outcome::Failed { is_timeout, .. } if is_timeout == is_late),
                "{outcome:?}"
            );
        }
    }

    #[test]
    fn every_status_has_an_outcome() {
        for status in 200..300 {
            assert!(
                matches!(outcome(&answer(status, &[], "")), Outcome::Done(_)),
                "{status}"
            );
        }
        for status in (100..200).chain(300..1000) {
            let (expected, expected_retryable) = match status {
                300..=399 => ("redirect_refused", false),
                408 | 425 | 429 | 500..=599 => ("external_call_failed", true),
                _ => ("external_call_rejected", false),
            };
            let Outcome::Failed {
                code,
                message,
                retryable,
                retry_after: _,
                may_go_on: _,
                is_timeout: _,
            } = outcome(&answer(status, &[], "SECRET"))
            else {
                panic!("{status} is done");
            };
            assert_eq!(
                (code.as_str(), retryable),
                (expected, expected_retryable),
                "{status}"
            );
            assert!(
                !message.contains("SECRET") && message.contains(&status.to_string()),
                "{message}"
            );
        }
    }

    #[test]
    fn retry_after_is_parsed() {
        const NOON: &str = "Sun, 06 Nov 1994 12:00:00 GMT";
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 11:00:00 GMT").unwrap();
        let minutes = |minutes: u64| Some(Duration::from_secs(60 * minutes));
        for (headers, expected) in [
            (&[][..], None),
            (&[("retry-after", "120")], minutes(2)),
            (&[("retry-after", " 0 ")], minutes(0)),
            (&[("retry-after", NOON)], minutes(60)),
            (
                &[("retry-after", NOON), ("date", "Sun, 06 Nov 1994 11:59:00 GMT")],
                minutes(1),
            ),
            (
                &[("retry-after", NOON), ("date", "Sun, 06 Nov 1994 12:01:00 GMT")],
                minutes(0),
            ),
            (&[("retry-after", NOON), ("date", "noon")], minutes(60)),
            (&[("retry-after", "-1")], None),
            (&[("retry-after", "soon")], None),
            (&[("retry-after", "3.5")], Some(Duration::from_secs(4))),
            (&[("retry-after", "60.0")], minutes(1)),
            (&[("retry-after", ".5")], None),
            (&[("retry-after", "1.-5")], None),
            (
                &[("retry-after", "99999999999999999999999")],
                Some(Duration::from_secs(u64::from(u32::MAX))),
            ),
        ] {
            let headers = answer(503, headers, "").headers;
            assert_eq!(retry_after(&headers, now), expected, "{headers:?}");
        }
        let Outcome::Failed { retry_after, .. } = outcome(&answer(429, &[("retry-after", "7")], "")) else {
            panic!("429 is done");
        };
        assert_eq!(retry_after, Some(Duration::from_secs(7)));
    }

    #[test]
    fn response_body_is_decoded_by_content_type() {
        for (content_type, text, expected) in [
            ("application/json", r#"{"a":1}"#, json!({"a": 1})),
            ("application/json; charset=utf-8", "[1]", json!([1])),
            ("APPLICATION/problem+JSON", "null", json!(null)),
            ("application/json", "{", json!("{")),
            ("application/json", "", json!(null)),
            ("text/plain", "1", json!("1")),
            ("text/plain;application/json", "1", json!("1")),
        ] {
            let Outcome::Done(value) = outcome(&answer(200, &[("content-type", content_type)], text)) else {
                panic!("not done");
            };
            assert_eq!(value["body"], expected, "{content_type} {text}");
            assert_eq!(value["contentTrust"], "untrusted");
        }
    }

    #[test]
    fn cookies_and_challenges_are_dropped() {
        let headers = [
            ("etag", "\"1\""),
            ("link", "<a>"),
            ("link", "<b>"),
            ("set-cookie", "SECRET"),
            ("www-authenticate", "Basic"),
            ("x-internal", "10.0.0.1"),
        ];
        let Outcome::Done(value) = outcome(&answer(201, &headers, "")) else {
            panic!("not done")
        };
        assert_eq!(value["headers"], json!({"etag": "\"1\"", "link": "<a>, <b>"}));
        assert_eq!(value["status"], 201);
    }

    #[test]
    fn malformed_calls_are_rejected_before_the_gate() {
        let call = |method: &str, url: &str, headers: &[(&str, &str)]| HttpCall {
            method: method.to_owned(),
            url: url.to_owned(),
            headers: headers
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect(),
            secret_headers: Vec::new(),
            body: None,
            timeout_ms: 1000,
        };
        for (bad, rule) in [
            (call("GE T", "https://example.com", &[]), "use a malformed method"),
            (call("", "https://example.com", &[]), "use a malformed method"),
            (call("GET", "example.com", &[]), "use a malformed url"),
            (
                call("GET", "https://example.com", &[("a b", "x")]),
                "send a malformed header name",
            ),
            (
                call("GET", "https://example.com", &[("a", "x\r\nhost: y")]),
                "send a malformed header value",
            ),
        ] {
            assert_eq!(request("k", None, bad).unwrap_err().to_string(), rule);
        }
        // Other parsers could see another host in a text that this one repairs.
        for url in [
            "https:example.com",
            "https:\\\\example.com",
            "https://exa\tmple.com",
            "https:///example.com",
        ] {
            let refused = request("k", None, call("GET", url, &[])).unwrap_err();
            assert_eq!(refused.to_string(), "use a malformed url", "{url}");
        }
        let with_query = |query: &str| call("GET", &format!("https://example.com/?{query}"), &[]);
        let room = 2_048 - "https://example.com/?".len();
        assert!(request("k", None, with_query(&"a".repeat(room))).is_ok());
        // The second is longer once it is escaped.
        for query in ["a".repeat(room + 1), " ".repeat(room / 2) + "."] {
            let refused = request("k", None, with_query(&query)).unwrap_err();
            assert_eq!(refused.to_string(), "use a url over 2048 bytes");
        }
        let url = request("k", None, with_query(" city=New York\u{a0}\n"))
            .unwrap()
            .url;
        assert_eq!(url.as_str(), "https://example.com/?%20city=New%20York");
        assert!(request("k\n", None, call("GET", "https://example.com", &[])).is_err());
    }
}
