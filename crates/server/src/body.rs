//! Reading the bodies of requests: bounded in size, in time, and all of them together in memory, for every face alike.
//!
//! No tenant has so much of the memory that nothing is left for others: the less is free, the less one may have. What
//! strangers send comes out of their own memory.
//!
//! A text of many small values takes up to a hundred times its size once it is parsed. What it will take is known before,
//! bounded as well, and counts until the request is answered.
//!
//! A body that is refused is refused at once. What is left of it is the connection's to see to, so that its client gets
//! the answer though it is still sending.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody as _};
use futures_util::stream::StreamExt as _;
use wopr_connect::{Share, Shares, TooManyValues};
use wopr_engine::TIMES_DECIDED;

use crate::{admission, credential_id::CredentialId};

/// Bytes of bodies that this process holds at once, each until its request has been read. Ten thousand connections with
/// bodies as large as allowed would take far more than any machine has.
const MAX_HELD: usize = 96 << 20;
/// What one body counts at most, so that a host which allows huge ones takes one now and then.
const MAX_COUNTED: usize = MAX_HELD / 2;
/// How many times what is left free the bodies of one tenant may take: alone it has three quarters of the memory, and
/// whoever comes then has more than a tenth.
const TIMES_FREE: usize = 3;

/// What a parsed body takes beside its text counts from here on.
const COUNTED_FROM: usize = 64 << 10;
/// What this process has.
static MEMORY: LazyLock<Arc<Shares<CredentialId>>> =
    LazyLock::new(|| Arc::new(Shares::new(MAX_HELD, TIMES_FREE)));

/// Why there is no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    /// It is larger than allowed.
    #[error("read a body beyond the limit")]
    TooLarge,
    /// It holds so many values that it would take more memory than allowed.
    #[error("parse a body of so many values")]
    TooManyValues,
    /// The client left.
    #[error("read a body that was cut off")]
    CutOff,
    /// It did not arrive in time.
    #[error("read a body in time")]
    Slow,
    /// Those of other requests fill the memory there is for bodies.
    #[error("read a body beside so many others")]
    Busy,
}

/// Bytes with their share of the memory, which is given back with the last of them.
struct Held<S> {
    bytes: Bytes,
    _share: S,
}

impl<S> AsRef<[u8]> for Held<S> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes that give back their share of the memory with the last clone of them.
pub(crate) fn shared<S: Send + 'static>(bytes: Bytes, share: S) -> Bytes {
    Bytes::from_owner(Held { bytes, _share: share })
}

/// The share of whoever asks: strangers have a memory of their own.
fn share_of(credential: CredentialId) -> Share<CredentialId> {
    match credential {
        CredentialId::Tenant(_) => MEMORY.share(credential),
        CredentialId::Stranger(_) | CredentialId::Neighbor(_) => admission::share_of_stranger(credential),
    }
}

/// What a body takes of the memory once it is parsed, until this is dropped.
#[must_use]
pub(crate) struct Weight {
    _share: Option<Share<CredentialId>>,
}

/// Looks how much a JSON text will take, and takes that of the memory, before it is parsed. `limit` is that of the text.
pub(crate) fn weigh(text: &[u8], credential: CredentialId, limit: usize) -> Result<Weight, BodyError> {
    let n_parsed =
        wopr_connect::weigh(text, limit).map_err(|TooManyValues { .. }| BodyError::TooManyValues)?;
    weigh_parsed(text.len(), n_parsed, credential)
}

/// Takes what a text takes beside itself until its request is answered, where that is known by other means.
pub(crate) fn weigh_parsed(
    n_text: usize,
    n_parsed: usize,
    credential: CredentialId,
) -> Result<Weight, BodyError> {
    let n_bytes = n_text.saturating_add(n_parsed.saturating_mul(TIMES_DECIDED));
    if n_bytes < COUNTED_FROM {
        return Ok(Weight { _share: None });
    }
    let mut share = share_of(credential);
    if share.grow(n_bytes.min(MAX_COUNTED)) {
        Ok(Weight { _share: Some(share) })
    } else {
        Err(BodyError::Busy)
    }
}

/// Reads a body.
pub(crate) async fn read(
    body: Body,
    credential: CredentialId,
    limit: usize,
    timeout: Duration,
) -> Result<Bytes, BodyError> {
    let declared = body.size_hint().lower();
    if declared > limit as u64 {
        return Err(BodyError::TooLarge);
    }
    match tokio::time::timeout(timeout, collect(body, limit, share_of(credential))).await {
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
        // Most bodies arrive in one piece, which is then not copied.
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
    fn what_a_body_becomes_is_bounded_before_it_does() {
        let limit = 1 << 20;
        let text = format!("[{}0]", "{\"\":0},".repeat(limit / 8));
        assert!(text.len() < limit);
        assert!(matches!(
            weigh(text.as_bytes(), ONE, limit),
            Err(BodyError::TooManyValues)
        ));
        let numbers = format!("[{}0]", "1,".repeat(limit / 4));
        assert!(weigh(numbers.as_bytes(), ONE, limit).is_ok());
        let words = format!("\"{}\"", "x".repeat(limit - 2));
        assert!(weigh(words.as_bytes(), ONE, limit).is_ok_and(|weight| weight._share.is_some()));
        assert!(weigh(b"[1]", ONE, limit).is_ok_and(|weight| weight._share.is_none()));
        let held: Vec<_> = std::iter::from_fn(|| weigh_parsed(0, 16 << 20, ONE).ok()).collect();
        assert_eq!(
            held.len(),
            MAX_HELD * TIMES_FREE / (TIMES_FREE + 1) / (16 << 20) / TIMES_DECIDED
        );
    }

    #[tokio::test]
    async fn a_body_beyond_the_limit_holds_nothing() {
        let memory = Arc::new(Shares::new(100_000, TIMES_FREE));
        assert_eq!(
            of(&memory, 1, body(10)).await.map(|bytes| bytes.len()),
            Ok(10_000)
        );
        assert_eq!(of(&memory, 1, body(11)).await, Err(BodyError::TooLarge));
        assert_eq!(memory.taken(), 0);
    }

    #[tokio::test]
    async fn nobody_takes_so_much_that_nothing_is_left_for_others() {
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
        // Who has much gives way before he takes more.
        of_one.truncate(5);
        assert_eq!(of(&memory, 1, body(3)).await, Err(BodyError::Busy));
        assert!(of(&memory, 3, body(1)).await.is_ok());
    }
}
