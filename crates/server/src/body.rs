//! Reading the bodies of requests: bounded in size, in time, and all of them together in memory, for every face alike.
//!
//! A body that is refused is refused at once. What is left of it is the connection's to see to, so that its client gets
//! the answer though it is still sending.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody as _};
use futures_util::stream::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of bodies that this process holds at once, each until its request has been read. Ten thousand connections with
/// bodies as large as allowed would take far more than any machine has.
const MAX_HELD: usize = 256 << 20;
/// What one body counts at most, so that a host which allows huge ones takes one now and then.
const MAX_COUNTED: usize = MAX_HELD / 2;

/// One permit for each byte that may be held.
static HELD: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(MAX_HELD)));

/// Why there is no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    /// It is larger than allowed.
    #[error("read a body beyond the limit")]
    TooLarge,
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

/// Reads a body.
pub(crate) async fn read(body: Body, limit: usize, patience: Duration) -> Result<Bytes, BodyError> {
    let declared = body.size_hint().lower();
    if declared > limit as u64 {
        return Err(BodyError::TooLarge);
    }
    match tokio::time::timeout(patience, collect(body, limit, &HELD)).await {
        Ok(read) => read,
        Err(_) => Err(BodyError::Slow),
    }
}

async fn collect(body: Body, limit: usize, held: &Arc<Semaphore>) -> Result<Bytes, BodyError> {
    let capacity = usize::try_from(body.size_hint().lower()).unwrap_or(0);
    let mut stream = body.into_data_stream();
    let mut first = None;
    let mut rest: Vec<u8> = Vec::new();
    let mut total = 0;
    let mut share = None;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| BodyError::CutOff)?;
        let counted = chunk.len().min(MAX_COUNTED.saturating_sub(total));
        total += chunk.len();
        if total > limit {
            return Err(BodyError::TooLarge);
        }
        if !take(held, counted, &mut share) {
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

/// Adds to a body's share of the memory; `false` if there is not as much.
fn take(held: &Arc<Semaphore>, n_bytes: usize, share: &mut Option<OwnedSemaphorePermit>) -> bool {
    let n_bytes = u32::try_from(n_bytes).unwrap_or(u32::MAX);
    let Ok(more) = Arc::clone(held).try_acquire_many_owned(n_bytes) else {
        return false;
    };
    match share {
        Some(share) => share.merge(more),
        None => *share = Some(more),
    }
    true
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn body(n_chunks: usize) -> Body {
        let chunks = (0..n_chunks).map(|_| Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; 1_000])));
        Body::from_stream(stream::iter(chunks.collect::<Vec<_>>()))
    }

    #[tokio::test]
    async fn bodies_share_the_memory_until_they_are_dropped() {
        let held = Arc::new(Semaphore::new(10_000));
        let first = collect(body(6), 1 << 20, &held).await.unwrap();
        assert_eq!((first.len(), held.available_permits()), (6_000, 4_000));
        let refused = collect(body(5), 1 << 20, &held).await;
        assert_eq!(refused, Err(BodyError::Busy));
        assert_eq!(held.available_permits(), 4_000, "what was refused holds nothing");
        let second = collect(body(4), 1 << 20, &held).await.unwrap();
        assert_eq!(collect(body(1), 1 << 20, &held).await, Err(BodyError::Busy));
        let part = first.slice(..10);
        drop(first);
        assert_eq!(held.available_permits(), 0, "a part keeps the whole");
        drop((part, second));
        assert_eq!(held.available_permits(), 10_000);
        assert_eq!(collect(body(11), 10_999, &held).await, Err(BodyError::TooLarge));
        assert_eq!(held.available_permits(), 10_000);
    }
}
