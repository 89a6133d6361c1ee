//! Request checks that every binding makes before it knows the operation: caller, version and body size.
//!
//! The bindings report rejections differently, so this module returns errors and leaves their form to the
//! binding. gRPC metadata are the same fields as HTTP headers.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use wopr_core::WorkflowId;
use wopr_wire::a2a::{
    error::A2aError,
    method::{EXTENSIONS_HEADERS, VERSION_HEADER, Version},
};

use super::{service::Call, supported::EXTENSIONS};
use crate::{
    Host,
    auth::Caller,
    body::{self, BodyError, Weight},
    credential_id::CredentialId,
    message::Body,
    telemetry,
};

/// The header that names the last event a client saw.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Reads the body, limited in size and time.
pub(super) async fn read_body(
    host: &Host,
    caller: &Caller,
    body: Body,
    overhead: usize,
) -> Result<Bytes, BodyError> {
    let config = &host.config().server;
    let timeout = config.request_timeout.as_duration();
    let limit = config.max_body_bytes.saturating_add(overhead);
    body::read(
        host.admission(),
        body,
        CredentialId::caller(caller),
        limit,
        timeout,
    )
    .await
}

/// Reserves the memory that a JSON body will need, before it is parsed.
pub(super) fn weigh(host: &Host, caller: &Caller, text: &[u8]) -> Result<Weight, BodyError> {
    body::weigh(
        host.admission(),
        text,
        CredentialId::caller(caller),
        host.config().server.max_body_bytes,
    )
}

/// Reads the version from the header or the query parameter.
pub(super) fn asked_version(uri: &Uri, headers: &HeaderMap) -> Result<Version, A2aError> {
    if let Some(value) = headers.get(VERSION_HEADER) {
        let text = value.to_str().map_err(|_| A2aError::version_not_supported("?"))?;
        return Version::from_header(Some(text));
    }
    Version::from_header(version_parameter(uri))
}

/// The version of a card that is asked for. One without a card of its own is not read.
pub(super) fn card_version(uri: &Uri, headers: &HeaderMap) -> Option<Version> {
    let named = match headers.get(VERSION_HEADER) {
        Some(value) => value.to_str().ok(),
        None => version_parameter(uri),
    };
    let named = named.filter(|text| !text.trim().is_empty())?;
    Version::from_header(Some(named)).ok()
}

fn version_parameter(uri: &Uri) -> Option<&str> {
    let pairs = uri.query().unwrap_or_default().split('&');
    let mut pairs = pairs.filter_map(|pair| pair.split_once('='));
    let named = pairs.find(|(name, _)| name.eq_ignore_ascii_case(VERSION_HEADER));
    named.map(|(_, value)| value)
}

/// Requires that the client asks for the version of the address it calls. A missing version means 0.3.
pub(super) fn demand_version(uri: &Uri, headers: &HeaderMap, spoken: Version) -> Result<(), A2aError> {
    let asked = asked_version(uri, headers)?;
    if asked == spoken {
        return Ok(());
    }
    Err(A2aError::VersionNotSupported {
        requested: asked.to_string(),
        supported: vec![spoken.to_string()],
    })
}

/// Collects the context of a call for its operation.
pub(super) fn call(
    caller: Arc<Caller>,
    interface: Option<WorkflowId>,
    version: Version,
    headers: &HeaderMap,
) -> Result<Call, A2aError> {
    Ok(Call {
        caller,
        interface,
        version,
        last_event_id: last_event_id(headers)?,
        trace: telemetry::trace_of(headers),
    })
}

/// Reads the last event that a client saw. Invalid text is an error, not a fresh start.
fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, A2aError> {
    let Some(value) = headers.get(LAST_EVENT_ID) else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or("?").trim();
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse() {
        Ok(id) => Ok(Some(id)),
        Err(_) => Err(A2aError::invalid_param(
            "Last-Event-ID",
            "must be the id of an event",
        )),
    }
}

/// Requires a JSON media type.
pub(super) fn demand_json(headers: &HeaderMap) -> Result<(), A2aError> {
    let value = headers.get(header::CONTENT_TYPE);
    let essence = value
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.split(';').next())
        .unwrap_or_default()
        .trim();
    let known = ["application/json", "application/a2a+json", "application/json-rpc"];
    if known.iter().any(|known| essence.eq_ignore_ascii_case(known)) {
        return Ok(());
    }
    Err(A2aError::ContentTypeNotSupported {
        detail: "requests are application/json".to_owned(),
    })
}

/// The response header that lists the activated extensions, under the name the client used.
pub(super) fn activated(headers: &HeaderMap) -> Option<(HeaderName, HeaderValue)> {
    for name in EXTENSIONS_HEADERS {
        let asked = headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(str::trim);
        let active: Vec<_> = asked
            .filter(|uri| EXTENSIONS.iter().any(|known| known.uri == *uri))
            .collect();
        if let (false, Ok(value)) = (active.is_empty(), HeaderValue::from_str(&active.join(", "))) {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            return Some((name, value));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            let name: HeaderName = name.parse().unwrap();
            (name, HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn header_version_precedes_query_version() {
        let version = |uri: &str, pairs: &[(&str, &str)]| {
            let uri: Uri = uri.parse().unwrap();
            asked_version(&uri, &headers(pairs)).map_err(|error| error.code())
        };
        assert_eq!(version("/a2a", &[]), Ok(Version::V0_3));
        assert_eq!(version("/a2a?A2A-Version=1.0", &[]), Ok(Version::V1_0));
        assert_eq!(version("/a2a?x=1&a2a-version=1.0.1", &[]), Ok(Version::V1_0));
        assert_eq!(
            version("/a2a?A2A-Version=1.0", &[("a2a-version", "0.3")]),
            Ok(Version::V0_3)
        );
        assert_eq!(version("/a2a?A2A-Version=2", &[]), Err(-32009));
        assert_eq!(version("/a2a", &[("a2a-version", "\u{e4}")]), Err(-32009));
    }

    #[test]
    fn activated_extensions_use_the_requested_header_name() {
        let known = EXTENSIONS[0].uri;
        for name in ["a2a-extensions", "x-a2a-extensions"] {
            let (told, value) = activated(&headers(&[(name, &format!("urn:other, {known}"))])).unwrap();
            assert_eq!((told.as_str(), value.to_str().unwrap()), (name, known));
        }
        assert_eq!(activated(&headers(&[("a2a-extensions", "urn:other")])), None);
        assert_eq!(activated(&headers(&[])), None);
    }
}
