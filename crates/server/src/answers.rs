//! Bounds the memory of large answers that clients have not read yet, for every face.
//!
//! An answer is in memory until its client has taken it. Small ones are bounded by the number of connections; the large
//! ones of thousands of clients that ask and do not read would take far more than any machine has. A client that comes
//! when there is no room is told to come again. No tenant has more than a part of the room, so whoever leaves all
//! of that unread is in nobody's way. Of streams only what is large counts: the rest of what they tell is made when their
//! client has taken what was before.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody as _},
    response::Response,
};
use http_body_util::{BodyExt as _, Collected};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{body::shared, credential_id::CredentialId};

/// The largest answer that does not count: each is bounded by the requests in flight.
const SMALL: usize = 4 << 10;
/// Bytes of large answers that this process holds at once.
const MAX_HELD: usize = 128 << 20;
/// How many of them those to one tenant may have. An answer that is larger counts as much.
const MAX_EACH: usize = MAX_HELD / 4;
/// Tenants remembered before those that have nothing are forgotten.
const MAX_IDLE: usize = 1_024;
/// Bytes of answers that wait for room at once.
const MAX_WAITING: usize = MAX_HELD / 4;
/// How long an answer waits for others to be read.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What this process has.
static ROOM: LazyLock<Room> = LazyLock::new(|| Room::new(MAX_HELD, MAX_EACH, MAX_WAITING));

/// One permit for each byte that may be held, of all and of each, and that may wait to be.
#[derive(Debug)]
struct Room {
    all: Arc<Semaphore>,
    waiting: Semaphore,
    each: usize,
    credentials: Mutex<HashMap<CredentialId, Arc<Semaphore>>>,
}

impl Room {
    fn new(all: usize, each: usize, waiting: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            waiting: Semaphore::new(waiting),
            each,
            credentials: Mutex::default(),
        }
    }

    fn of(&self, credential: CredentialId) -> Arc<Semaphore> {
        let mut credentials = self.credentials.lock();
        if credentials.len() >= MAX_IDLE {
            // A share in use holds on to its semaphore.
            credentials.retain(|_, own| Arc::strong_count(own) > 1);
        }
        let own = credentials.entry(credential);
        Arc::clone(own.or_insert_with(|| Arc::new(Semaphore::new(self.each))))
    }

    /// Waits for room, if what waits already is not too much.
    async fn take(&self, credential: CredentialId, n_bytes: usize) -> Option<[OwnedSemaphorePermit; 2]> {
        let share = u32::try_from(n_bytes.min(self.each)).ok()?;
        let (own, all) = (self.of(credential), &self.all);
        let at_once = || {
            let own = Arc::clone(&own).try_acquire_many_owned(share).ok()?;
            Some([own, Arc::clone(all).try_acquire_many_owned(share).ok()?])
        };
        if let Some(taken) = at_once() {
            return Some(taken);
        }
        // What waits is there whole, however large it is.
        let waits = u32::try_from(n_bytes).ok()?;
        let _waiting = self.waiting.try_acquire_many(waits).ok()?;
        let own = Arc::clone(&own).acquire_many_owned(share).await.ok()?;
        Some([own, Arc::clone(all).acquire_many_owned(share).await.ok()?])
    }
}

/// The answers of others fill the memory there is for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("hold an answer beside so many others")]
pub(crate) struct Crowded;

/// The bytes of an answer with their share of the memory, until the last of them is written or their client is gone.
///
/// # Errors
/// There is none.
pub(crate) async fn held(credential: CredentialId, bytes: Bytes) -> Result<Bytes, Crowded> {
    match bytes.len() > SMALL {
        true => Box::pin(count(&ROOM, credential, bytes)).await,
        false => Ok(bytes),
    }
}

/// The same for an answer of HTTP. For one that finds no room `refusal` is told in its place, to which what is known of
/// the request stays attached.
pub(crate) async fn held_response(
    credential: CredentialId,
    response: Response,
    refusal: fn() -> Response,
) -> Response {
    let is_large = |size| usize::try_from(size).map_or(true, |size| size > SMALL);
    // A stream has no size, and is not counted.
    if !response.body().size_hint().exact().is_some_and(is_large) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    // All of it is there already, and in one piece.
    let bytes = body.collect().await.map(Collected::to_bytes);
    let held = match bytes {
        Ok(bytes) => held(credential, bytes).await,
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

async fn count(room: &Room, credential: CredentialId, bytes: Bytes) -> Result<Bytes, Crowded> {
    match tokio::time::timeout(TIMEOUT, room.take(credential, bytes.len())).await {
        Ok(Some(share)) => Ok(shared(bytes, share)),
        Ok(None) | Err(_) => Err(Crowded),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: CredentialId = CredentialId::number(1);
    const OTHER: CredentialId = CredentialId::number(2);

    #[tokio::test(start_paused = true)]
    async fn large_answers_share_what_there_is_until_they_are_read() {
        let room = Arc::new(Room::new(1_000, 1_000, 1_000));
        let answer = Bytes::from(vec![7; 600]);
        let first = count(&room, ONE, answer.clone()).await.unwrap();
        assert_eq!(count(&room, OTHER, answer.clone()).await, Err(Crowded));

        let body = Body::from(first);
        let bytes = body.collect().await.unwrap().to_bytes();
        assert_eq!(bytes, answer);
        // The body is gone, and its bytes are not: they are what is in memory.
        assert_eq!(room.all.available_permits(), 400);
        let waits = tokio::spawn({
            let room = Arc::clone(&room);
            async move { count(&room, OTHER, answer).await.is_ok() }
        });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(bytes);
        assert!(waits.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_has_more_than_a_part_of_it() {
        let room = Room::new(1_000, 250, 1_000);
        let answer = || Bytes::from(vec![7; 200]);
        let _unread = count(&room, ONE, answer()).await.unwrap();
        assert_eq!(count(&room, ONE, answer()).await, Err(Crowded));
        let large = count(&room, OTHER, Bytes::from(vec![7; 5_000])).await.unwrap();
        assert_eq!(room.all.available_permits(), 550);
        drop(large);
        for credential in 10..10 + 2 * MAX_IDLE as u64 {
            drop(
                count(&room, CredentialId::number(credential), answer())
                    .await
                    .unwrap(),
            );
        }
        // Those that have nothing are forgotten, and nobody else.
        assert!(room.credentials.lock().len() <= MAX_IDLE);
        assert_eq!(count(&room, ONE, answer()).await, Err(Crowded));
        assert_eq!(room.all.available_permits(), 800);
    }

    #[tokio::test(start_paused = true)]
    async fn few_wait_and_others_are_told_at_once() {
        let room = Arc::new(Room::new(1_000, 1_000, 300));
        let answer = || Bytes::from(vec![7; 200]);
        let all = count(&room, OTHER, Bytes::from(vec![7; 1_000])).await.unwrap();
        let waits = tokio::spawn({
            let room = Arc::clone(&room);
            async move { count(&room, ONE, answer()).await.is_ok() }
        });
        tokio::task::yield_now().await;
        let begun = tokio::time::Instant::now();
        assert_eq!(count(&room, ONE, answer()).await, Err(Crowded));
        assert_eq!(begun.elapsed(), Duration::ZERO);
        drop(all);
        assert!(waits.await.unwrap());
        assert_eq!(room.waiting.available_permits(), 300);
    }

    #[tokio::test]
    async fn what_is_known_of_a_request_outlives_its_refusal() {
        let mut response = Response::new(Body::from(vec![7; SMALL + 1]));
        response.extensions_mut().insert("known");
        let _all = ROOM.take(ONE, MAX_EACH).await.unwrap();
        tokio::time::pause();
        let refusal = held_response(ONE, response, || Response::new(Body::from("come again"))).await;
        assert_eq!(refusal.extensions().get::<&str>(), Some(&"known"));
        assert_eq!(
            refusal.into_body().collect().await.unwrap().to_bytes(),
            "come again"
        );
        let small = Response::new(Body::from(vec![7; SMALL]));
        let small = held_response(ONE, small, || Response::new(Body::empty())).await;
        assert_eq!(small.into_body().collect().await.unwrap().to_bytes().len(), SMALL);
    }
}
