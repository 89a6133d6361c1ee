//! What waits to be read of large answers: bounded, all of them together, for every face alike.
//!
//! An answer is in memory until its client has taken it. Small ones are bounded by the number of connections; the large
//! ones of thousands of clients that ask and do not read would take far more than any machine has. A client that comes
//! when there is no room is told to come again. Streams do not count here: what they tell is made when there is room
//! for it.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody as _},
    response::Response,
};
use http_body_util::{BodyExt as _, Collected};
use tokio::sync::Semaphore;

use crate::body::shared;

/// The largest answer that does not count.
const SMALL: usize = 64 << 10;
/// Bytes of large answers that this process holds at once.
const MAX_HELD: usize = 256 << 20;
/// What one answer counts at most, so that one which is larger than all there is room for is given all the same.
const MAX_COUNTED: usize = MAX_HELD / 2;
/// How long an answer waits for others to be read.
const PATIENCE: Duration = Duration::from_secs(2);

/// One permit for each byte that may be held.
static HELD: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(MAX_HELD)));

/// The answers of others fill the memory there is for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("hold an answer beside so many others")]
pub(crate) struct Crowded;

/// The bytes of an answer with their share of the memory, until the last of them is written or their client is gone.
///
/// # Errors
/// There is none.
pub(crate) async fn held(bytes: Bytes) -> Result<Bytes, Crowded> {
    match bytes.len() > SMALL {
        true => Box::pin(count(bytes, &HELD)).await,
        false => Ok(bytes),
    }
}

/// The same for an answer of HTTP. For one that finds no room `refusal` is told in its place, to which what is known of
/// the request stays attached.
pub(crate) async fn held_response(response: Response, refusal: fn() -> Response) -> Response {
    let is_large = |size| usize::try_from(size).map_or(true, |size| size > SMALL);
    // A stream has no size, and is not counted.
    if !response.body().size_hint().exact().is_some_and(is_large) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    // All of it is there already, and in one piece.
    let bytes = body.collect().await.map(Collected::to_bytes);
    let held = match bytes {
        Ok(bytes) => held(bytes).await,
        Err(_) => Err(Crowded),
    };
    match held {
        Ok(bytes) => Response::from_parts(head, Body::from(bytes)),
        Err(Crowded) => {
            let mut refusal = refusal();
            std::mem::swap(refusal.extensions_mut(), &mut head.extensions);
            refusal
        }
    }
}

async fn count(bytes: Bytes, held: &Arc<Semaphore>) -> Result<Bytes, Crowded> {
    let n_bytes = u32::try_from(bytes.len().min(MAX_COUNTED)).unwrap_or(u32::MAX);
    let share = Arc::clone(held).acquire_many_owned(n_bytes);
    match tokio::time::timeout(PATIENCE, share).await {
        Ok(Ok(share)) => Ok(shared(bytes, Some(share))),
        // Nobody closes it.
        Ok(Err(_)) | Err(_) => Err(Crowded),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn large_answers_share_what_there_is_until_they_are_read() {
        let all = Arc::new(Semaphore::new(1_000));
        let answer = Bytes::from(vec![7; 600]);
        let first = count(answer.clone(), &all).await.unwrap();
        assert_eq!(count(answer.clone(), &all).await, Err(Crowded));

        let body = Body::from(first);
        let bytes = body.collect().await.unwrap().to_bytes();
        assert_eq!(bytes, answer);
        // The body is gone, and its bytes are not: they are what is in memory.
        assert_eq!(all.available_permits(), 400);
        let waits = tokio::spawn({
            let all = Arc::clone(&all);
            async move { count(answer, &all).await.is_ok() }
        });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(bytes);
        assert!(waits.await.unwrap());
    }

    #[tokio::test]
    async fn what_is_known_of_a_request_outlives_its_refusal() {
        let mut response = Response::new(Body::from(vec![7; SMALL + 1]));
        response.extensions_mut().insert("known");
        let _all = Arc::clone(&HELD)
            .acquire_many_owned(u32::try_from(MAX_HELD).unwrap())
            .await;
        tokio::time::pause();
        let refusal = held_response(response, || Response::new(Body::from("come again"))).await;
        assert_eq!(refusal.extensions().get::<&str>(), Some(&"known"));
        assert_eq!(
            refusal.into_body().collect().await.unwrap().to_bytes(),
            "come again"
        );
        let small = Response::new(Body::from(vec![7; SMALL]));
        let small = held_response(small, || Response::new(Body::empty())).await;
        assert_eq!(small.into_body().collect().await.unwrap().to_bytes().len(), SMALL);
    }
}
