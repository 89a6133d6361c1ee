//! Bounds the memory of large responses that clients have not read yet, for every face.
//!
//! A response stays in memory until its client has read it. The number of connections bounds small responses,
//! but large responses to thousands of clients that do not read would exhaust the memory of any machine. If the
//! budget is used up, the request is refused and the client has to retry. A single tenant gets only a share of
//! the budget, so unread responses of one tenant do not block the others. Streams only count their large items:
//! everything else is produced after the client has read what came before.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body::Body as _;
use http_body_util::{BodyExt as _, Collected};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    body::shared,
    credential_id::CredentialId,
    message::{Body, Response},
};

/// Responses up to this size do not count; the number of requests in flight bounds them.
const SMALL: usize = 4 << 10;
/// Bytes of large responses held by a host.
const MAX_HELD: usize = 128 << 20;
/// Bytes held per tenant. A larger response counts as this many.
const MAX_EACH: usize = MAX_HELD / 4;
/// Number of tenants tracked before idle ones are removed.
const MAX_IDLE: usize = 1_024;
/// Bytes of responses that wait for memory.
const MAX_WAITING: usize = MAX_HELD / 4;
/// How long a response waits for memory.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The budget of one host, in permits per byte: held in total, held per tenant, and waiting.
#[derive(Debug)]
pub(crate) struct Answers {
    all: Arc<Semaphore>,
    waiting: Semaphore,
    each: usize,
    credentials: Mutex<HashMap<CredentialId, Arc<Semaphore>>>,
}

impl Default for Answers {
    fn default() -> Self {
        Self::new(MAX_HELD, MAX_EACH, MAX_WAITING)
    }
}

impl Answers {
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
            // A tenant in use holds a clone of its semaphore.
            credentials.retain(|_, own| Arc::strong_count(own) > 1);
        }
        let own = credentials.entry(credential);
        Arc::clone(own.or_insert_with(|| Arc::new(Semaphore::new(self.each))))
    }

    /// Waits for memory, unless too many bytes are waiting already.
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
        // A waiting response is in memory in full, so its whole size counts.
        let waits = u32::try_from(n_bytes).ok()?;
        let _waiting = self.waiting.try_acquire_many(waits).ok()?;
        let own = Arc::clone(&own).acquire_many_owned(share).await.ok()?;
        Some([own, Arc::clone(all).acquire_many_owned(share).await.ok()?])
    }

    /// Charges the bytes to the budget until the last of them is written or the client is gone.
    ///
    /// # Errors
    /// If the budget stays used up.
    pub(crate) async fn held(&self, credential: CredentialId, bytes: Bytes) -> Result<Bytes, Crowded> {
        match bytes.len() > SMALL {
            true => Box::pin(self.count(credential, bytes)).await,
            false => Ok(bytes),
        }
    }

    /// Like [`Answers::held`], for an HTTP response. If the budget is used up, returns `refusal` instead, with
    /// the extensions of the original response.
    pub(crate) async fn held_response(
        &self,
        credential: CredentialId,
        response: Response,
        refusal: fn() -> Response,
    ) -> Response {
        let is_large = |size| usize::try_from(size).map_or(true, |size| size > SMALL);
        // A stream has no exact size and is not charged.
        if !response.body().size_hint().exact().is_some_and(is_large) {
            return response;
        }
        let (mut head, body) = response.into_parts();
        // The body is complete and in one piece.
        let bytes = body.collect().await.map(Collected::to_bytes);
        let held = match bytes {
            Ok(bytes) => self.held(credential, bytes).await,
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

    async fn count(&self, credential: CredentialId, bytes: Bytes) -> Result<Bytes, Crowded> {
        match tokio::time::timeout(TIMEOUT, self.take(credential, bytes.len())).await {
            Ok(Some(share)) => Ok(shared(bytes, share)),
            Ok(None) | Err(_) => Err(Crowded),
        }
    }
}

/// Other responses use up the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("hold an answer beside so many others")]
pub(crate) struct Crowded;

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: CredentialId = CredentialId::number(1);
    const OTHER: CredentialId = CredentialId::number(2);

    #[tokio::test(start_paused = true)]
    async fn large_responses_share_the_budget_until_read() {
        let budget = Arc::new(Answers::new(1_000, 1_000, 1_000));
        let answer = Bytes::from(vec![7; 600]);
        let first = budget.count(ONE, answer.clone()).await.unwrap();
        assert_eq!(budget.count(OTHER, answer.clone()).await, Err(Crowded));

        let body = Body::from(first);
        let bytes = body.collect().await.unwrap().to_bytes();
        assert_eq!(bytes, answer);
        // The bytes outlive the body and are still in memory.
        assert_eq!(budget.all.available_permits(), 400);
        let waits = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.count(OTHER, answer).await.is_ok() }
        });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(bytes);
        assert!(waits.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_gets_only_its_share() {
        let budget = Answers::new(1_000, 250, 1_000);
        let answer = || Bytes::from(vec![7; 200]);
        let _unread = budget.count(ONE, answer()).await.unwrap();
        assert_eq!(budget.count(ONE, answer()).await, Err(Crowded));
        let large = budget.count(OTHER, Bytes::from(vec![7; 5_000])).await.unwrap();
        assert_eq!(budget.all.available_permits(), 550);
        drop(large);
        for credential in 10..10 + 2 * MAX_IDLE as u64 {
            drop(
                budget
                    .count(CredentialId::number(credential), answer())
                    .await
                    .unwrap(),
            );
        }
        // Only idle tenants are removed.
        assert!(budget.credentials.lock().len() <= MAX_IDLE);
        assert_eq!(budget.count(ONE, answer()).await, Err(Crowded));
        assert_eq!(budget.all.available_permits(), 800);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_is_bounded_and_excess_is_refused_at_once() {
        let budget = Arc::new(Answers::new(1_000, 1_000, 300));
        let answer = || Bytes::from(vec![7; 200]);
        let all = budget.count(OTHER, Bytes::from(vec![7; 1_000])).await.unwrap();
        let waits = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.count(ONE, answer()).await.is_ok() }
        });
        tokio::task::yield_now().await;
        let begun = tokio::time::Instant::now();
        assert_eq!(budget.count(ONE, answer()).await, Err(Crowded));
        assert_eq!(begun.elapsed(), Duration::ZERO);
        drop(all);
        assert!(waits.await.unwrap());
        assert_eq!(budget.waiting.available_permits(), 300);
    }

    #[tokio::test]
    async fn a_refusal_keeps_the_extensions_of_the_response() {
        let mut response = Response::new(Body::from(vec![7; SMALL + 1]));
        response.extensions_mut().insert("known");
        let budget = Answers::default();
        let _all = budget.take(ONE, MAX_EACH).await.unwrap();
        tokio::time::pause();
        let refusal = budget
            .held_response(ONE, response, || Response::new(Body::from("come again")))
            .await;
        assert_eq!(refusal.extensions().get::<&str>(), Some(&"known"));
        assert_eq!(
            refusal.into_body().collect().await.unwrap().to_bytes(),
            "come again"
        );
        let small = Response::new(Body::from(vec![7; SMALL]));
        let small = budget
            .held_response(ONE, small, || Response::new(Body::empty()))
            .await;
        assert_eq!(small.into_body().collect().await.unwrap().to_bytes().len(), SMALL);
    }
}
