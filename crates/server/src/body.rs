//! Reading the bodies of requests: bounded in size and in time, for every face alike.
//!
//! A body that is refused is read on for a while and dropped, because closing the connection at once would reset
//! it under the answer.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use futures_util::stream::StreamExt as _;

/// How much of a refused body is read and dropped, so that a client that is still sending can read the answer.
const MAX_DRAINED: usize = 256 << 20;
/// And for how long.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// Why there is no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    /// It is larger than allowed; what could be read of it was dropped.
    #[error("read a body beyond the limit")]
    TooLarge,
    /// The client left.
    #[error("read a body that was cut off")]
    CutOff,
    /// It did not arrive in time.
    #[error("read a body in time")]
    Slow,
}

/// Reads a body.
pub(crate) async fn read(body: Body, limit: usize, patience: Duration) -> Result<Bytes, BodyError> {
    let declared = body.size_hint().lower();
    if declared > limit as u64 {
        drain(body).await;
        return Err(BodyError::TooLarge);
    }
    match tokio::time::timeout(patience, collect(body, limit)).await {
        Ok(read) => read,
        Err(_) => Err(BodyError::Slow),
    }
}

async fn collect(body: Body, limit: usize) -> Result<Bytes, BodyError> {
    let capacity = usize::try_from(body.size_hint().lower()).unwrap_or(0);
    let mut stream = body.into_data_stream();
    let mut first = None;
    let mut rest: Vec<u8> = Vec::new();
    let mut total = 0;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| BodyError::CutOff)?;
        total += chunk.len();
        if total > limit {
            drain(Body::from_stream(stream)).await;
            return Err(BodyError::TooLarge);
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
    Ok(first.unwrap_or_else(|| Bytes::from(rest)))
}

/// Drops what a client is still sending.
pub(crate) async fn drain(body: Body) {
    let mut stream = body.into_data_stream();
    let drained = async {
        let mut total = 0;
        while let Some(Ok(chunk)) = stream.next().await {
            total += chunk.len();
            if total > MAX_DRAINED {
                break;
            }
        }
    };
    // Whether it ended or ran out of time, the answer comes next.
    let _ = tokio::time::timeout(DRAIN_TIME, drained).await;
}
