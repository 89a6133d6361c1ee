//! Reads request bodies, with limits on size, time and total memory, for every face.
//!
//! The more memory is in use, the less a single tenant may take, so no tenant can exhaust it. Bodies of
//! unauthenticated clients come out of a separate budget.
//!
//! A document of many small values takes up to a hundred times its size once parsed. That size is estimated
//! before parsing, is limited too, and counts until the request is answered.
//!
//! A refused body is refused at once. The connection drains the rest of it, so that a client that is still
//! sending gets the response.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::stream::StreamExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use wopr_connect::{Share, Shares, TooManyValues};
use wopr_engine::TIMES_DECIDED;

use crate::{admission::Admission, auth, credential_id::CredentialId, message::Body};

/// Bytes of bodies held by a host, each until its request has been read. Ten thousand connections with
/// bodies of the maximum size would exhaust the memory of any machine.
const MAX_HELD: usize = 96 << 20;
/// Maximum bytes counted for one body, so that a host that allows huge bodies can still accept one.
const MAX_COUNTED: usize = MAX_HELD / 2;
/// A tenant's bodies may take at most this multiple of the free memory: a tenant alone gets three quarters of
/// it, and the next one still gets more than a tenth.
const TIMES_FREE: usize = 3;

/// A parsed body counts if its estimated size is at least this many bytes.
const COUNTED_FROM: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("read a body beyond the limit")]
    TooLarge,
    /// The parsed document would take more memory than allowed.
    #[error("parse a body of so many values")]
    TooManyValues,
    /// The client closed the connection.
    #[error("read a body that was cut off")]
    CutOff,
    #[error("read a body in time")]
    Slow,
    /// Other bodies use up the budget.
    #[error("read a body beside so many others")]
    Busy,
}

/// The header of a 415 for a compressed body: what a body may be encoded as (RFC 9110, section 15.5.16).
pub(crate) const ACCEPTED_CODINGS: (HeaderName, HeaderValue) =
    (header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));

/// Returns `true` if the body has a content coding, or a transfer coding besides `chunked`; we decode none. A proxy that does
/// would read another body than we.
pub(crate) fn is_encoded(headers: &HeaderMap) -> bool {
    let is_named = |name, known: &[u8]| {
        let values = headers.get_all(name).into_iter();
        let mut codings = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        codings.any(|coding| {
            let coding = coding.trim_ascii();
            !coding.is_empty() && !coding.eq_ignore_ascii_case(known)
        })
    };
    is_named(header::CONTENT_ENCODING, b"identity") || is_named(header::TRANSFER_ENCODING, b"chunked")
}

/// Bytes and their share of the budget, which is returned when the last clone is dropped.
struct Held<S> {
    bytes: Bytes,
    _share: S,
}

impl<S> AsRef<[u8]> for Held<S> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Attaches a share to bytes; it is returned when the last clone is dropped.
pub(crate) fn shared<S: Send + 'static>(bytes: Bytes, share: S) -> Bytes {
    Bytes::from_owner(Held { bytes, _share: share })
}

/// The budget of a host for the bodies of authenticated clients.
pub(crate) fn memory() -> Arc<Shares<CredentialId>> {
    Arc::new(Shares::new(MAX_HELD, TIMES_FREE))
}

/// The memory share of a parsed body, held until dropped.
#[must_use]
pub(crate) struct Weight {
    _share: Option<Share<CredentialId>>,
}

/// Estimates the parsed size of a JSON text and charges it before parsing. `limit` is the limit of the text.
pub(crate) fn weigh(
    admission: &Admission,
    text: &[u8],
    credential: CredentialId,
    limit: usize,
) -> Result<Weight, BodyError> {
    let n_parsed =
        wopr_connect::weigh(text, limit).map_err(|TooManyValues { .. }| BodyError::TooManyValues)?;
    weigh_parsed(admission, text.len(), n_parsed, credential)
}

/// Like [`weigh`], if the parsed size is already known.
pub(crate) fn weigh_parsed(
    admission: &Admission,
    n_text: usize,
    n_parsed: usize,
    credential: CredentialId,
) -> Result<Weight, BodyError> {
    let n_bytes = n_text.saturating_add(n_parsed.saturating_mul(TIMES_DECIDED));
    if n_bytes < COUNTED_FROM {
        return Ok(Weight { _share: None });
    }
    let mut share = admission.share_of_body(credential);
    if share.grow(n_bytes.min(MAX_COUNTED)) {
        Ok(Weight { _share: Some(share) })
    } else {
        Err(BodyError::Busy)
    }
}

pub(crate) async fn read(
    admission: &Admission,
    body: Body,
    credential: CredentialId,
    limit: usize,
    timeout: Duration,
) -> Result<Bytes, BodyError> {
    let declared = body.size_hint().lower();
    if declared > limit as u64 {
        return Err(BodyError::TooLarge);
    }
    let share = admission.share_of_body(credential);
    match auth::wait(tokio::time::timeout(timeout, collect(body, limit, share))).await {
        Ok(read) => read,
        Err(_) => Err(BodyError::Slow),
    }
}

async fn collect(body: Body, limit: usize, mut share: Share<CredentialId>) -> Result<Bytes, BodyError> {
    let capacity = usize::try_from(body.size_hint().lower()).unwrap_or(0);
    let mut stream = body.into_data_stream();
    let mut first = None;
    let mut rest: Vec<u8> = Vec::new();
    let mut total = 0;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| BodyError::CutOff)?;
        let counted = chunk.len().min(MAX_COUNTED.saturating_sub(total));
        total += chunk.len();
        if total > limit {
            return Err(BodyError::TooLarge);
        }
        if !share.grow(counted) {
            return Err(BodyError::Busy);
        }
        // Most bodies arrive in one piece and need no copy.
        match (&first, rest.is_empty()) {
            (None, true) => first = Some(chunk),
            _ => {
                if let Some(first) = first.take() {
                    rest.reserve(capacity.max(total));
                    rest.extend_from_slice(&first);
                }
                rest.extend_from_slice(&chunk);
            }
        }
    }
    let bytes = first.unwrap_or_else(|| Bytes::from(rest));
    Ok(shared(bytes, share))
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    const ONE: CredentialId = CredentialId::number(1);

    fn body(n_chunks: usize) -> Body {
        let chunks = (0..n_chunks).map(|_| Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; 1_000])));
        Body::from_stream(stream::iter(chunks.collect::<Vec<_>>()))
    }

    async fn of(memory: &Arc<Shares<CredentialId>>, credential: u64, body: Body) -> Result<Bytes, BodyError> {
        collect(body, 10_999, memory.share(CredentialId::number(credential))).await
    }

    #[test]
    fn detects_content_codings() {
        for (name, value, wanted) in [
            (header::CONTENT_ENCODING, "identity", false),
            (header::CONTENT_ENCODING, "", false),
            (header::CONTENT_ENCODING, "Identity, identity", false),
            (header::CONTENT_ENCODING, "gzip", true),
            (header::CONTENT_ENCODING, "identity, br", true),
            (header::TRANSFER_ENCODING, "Chunked", false),
            (header::TRANSFER_ENCODING, "gzip, chunked", true),
        ] {
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
            assert_eq!(is_encoded(&headers), wanted, "{value}");
        }
        assert!(!is_encoded(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn bodies_share_the_memory_until_they_are_dropped() {
        let memory = Arc::new(Shares::new(10_000, TIMES_FREE));
        let first = of(&memory, 1, body(6)).await.unwrap();
        assert_eq!((first.len(), memory.taken()), (6_000, 6_000));
        let refused = of(&memory, 2, body(5)).await;
        assert_eq!(refused, Err(BodyError::Busy));
        assert_eq!(memory.taken(), 6_000, "what was refused holds nothing");
        let second = of(&memory, 2, body(3)).await.unwrap();
        let part = first.slice(..10);
        drop(first);
        assert_eq!(memory.taken(), 9_000, "a part keeps the whole");
        drop((part, second));
        assert_eq!(memory.taken(), 0);
    }

    #[test]
    fn parsed_size_is_limited_before_parsing() {
        let admission = Admission::new(0);
        let weigh = |text: &[u8], limit| weigh(&admission, text, ONE, limit);
        let limit = 1 << 20;
        let text = format!("[{}0]", "{\"\":0},".repeat(limit / 8));
        assert!(text.len() < limit);
        assert!(matches!(
            weigh(text.as_bytes(), limit),
            Err(BodyError::TooManyValues)
        ));
        let numbers = format!("[{}0]", "1,".repeat(limit / 4));
        assert!(weigh(numbers.as_bytes(), limit).is_ok());
        let words = format!("\"{}\"", "x".repeat(limit - 2));
        assert!(weigh(words.as_bytes(), limit).is_ok_and(|weight| weight._share.is_some()));
        assert!(weigh(b"[1]", limit).is_ok_and(|weight| weight._share.is_none()));
        let held: Vec<_> = std::iter::from_fn(|| weigh_parsed(&admission, 0, 16 << 20, ONE).ok()).collect();
        assert_eq!(
            held.len(),
            MAX_HELD * TIMES_FREE / (TIMES_FREE + 1) / (16 << 20) / TIMES_DECIDED
        );
    }

    #[tokio::test]
    async fn a_body_beyond_the_limit_holds_no_memory() {
        let memory = Arc::new(Shares::new(100_000, TIMES_FREE));
        assert_eq!(
            of(&memory, 1, body(10)).await.map(|bytes| bytes.len()),
            Ok(10_000)
        );
        assert_eq!(of(&memory, 1, body(11)).await, Err(BodyError::TooLarge));
        assert_eq!(memory.taken(), 0);
    }

    #[tokio::test]
    async fn no_tenant_can_exhaust_the_memory() {
        let memory = Arc::new(Shares::new(10_000, TIMES_FREE));
        let mut of_one = Vec::new();
        while let Ok(bytes) = of(&memory, 1, body(1)).await {
            of_one.push(bytes);
        }
        assert_eq!(of_one.len(), 7);
        let mut of_other = Vec::new();
        while let Ok(bytes) = of(&memory, 2, body(1)).await {
            of_other.push(bytes);
        }
        assert_eq!(of_other.len(), 2);
        // A tenant that holds much is refused before the others are.
        of_one.truncate(5);
        assert_eq!(of(&memory, 1, body(3)).await, Err(BodyError::Busy));
        assert!(of(&memory, 3, body(1)).await.is_ok());
    }
}
