//! Delivers updates to the subscriptions of runs: at least once, in order per subscription, for up to a day.
//!
//! ```text
//!   outbox --expand--> deliveries --(lease the subscription, one attempt at a time)--> delivered
//!                          ^                                                  '--> failed: backoff, retry
//!                          '------------------------------------------------------ dead letter after a day
//! ```
//!
//! A slow or unreachable subscription takes a slot during an attempt and then waits for its backoff, so it
//! delays neither other subscriptions nor runs. If a process dies, another takes over its leases and repeats
//! the attempts that were not settled. [`crate::outboxes`] makes the deliveries.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use wopr_core::{RunKey, Seq, Timestamp};
use wopr_store::{Attempted, DeliveryRow, HOPELESS, PushRow, Put, Then, WriteError};

use crate::{
    Delivery, Engine, Notifier, Throttles, Undelivered,
    logs::store_failed,
    panics::{Panicked, caught},
    pool::{End, Lease},
    stats::Counters,
};

/// Deliveries of one subscription made in a row before others get their turn.
const BURST: usize = 16;
/// Pause before a subscription is leased again whose deliveries could not be read.
const AFTER_TROUBLE: Duration = Duration::from_millis(500);
/// Tries to settle an attempt while the store is unavailable, before it is left to the next lease.
const SETTLE_TRIES: u32 = 8;

/// Lines a minute about pushes of a tenant that are given up: its receivers decide how many are.
static GIVEN_UP: Throttles = Throttles::new(30);

/// How to continue after an attempt.
enum Next {
    /// With the next delivery.
    GoOn,
    Stop(End),
}

impl Engine {
    /// Registers a subscription to a run, which may have at most `most`.
    pub async fn put_push(&self, run: &RunKey, row: PushRow, most: usize) -> Result<Put, WriteError> {
        self.shared.outboxes.is_used();
        let now = self.lease_time();
        let put = self.shared.store.put_push(run, row, most, now).await?;
        self.shared.deliveries.stir();
        Ok(put)
    }

    /// Retries dead-lettered deliveries: all of a subscription, or the one for event `seq`. Returns how many
    /// there were.
    pub async fn retry_push(&self, run: &RunKey, push: &str, seq: Option<Seq>) -> Result<usize, WriteError> {
        let now = self.lease_time();
        let n_retried = self.shared.store.retry_push(run, push, seq, now).await?;
        self.shared.outboxes.is_used();
        self.shared.outboxes.stir();
        self.shared.deliveries.stir();
        Ok(n_retried)
    }

    pub(crate) fn lease_time(&self) -> Timestamp {
        self.shared.lease_clock.lease(Duration::ZERO).0
    }

    /// Sends the pending deliveries of a subscription one after the other, until one attempt fails.
    pub(crate) async fn deliver(&self, lease: &mut Lease) -> End {
        let Some(notifier) = self.shared.options.notifier.clone() else {
            return lease.give_back();
        };
        self.shared.outboxes.is_used();
        let store = &self.shared.store;
        let pending = match store.waiting(&lease.run, &lease.key.name, BURST).await {
            Ok(pending) => pending,
            Err(error) => {
                store_failed("cannot read what waits for a receiver", &error);
                return End::Release(self.lease_time().plus_millis(millis(AFTER_TROUBLE)));
            }
        };
        let n_pending = pending.deliveries.len();
        let is_given_up = lease.deaths >= HOPELESS;
        for (n, delivery) in pending.deliveries.into_iter().enumerate() {
            let then = if n + 1 < n_pending {
                None
            } else if n_pending < BURST {
                Some(Then::Park(None))
            } else {
                Some(Then::Release(self.lease_time()))
            };
            let next = if is_given_up {
                self.give_push_up(lease, delivery.seq, then).await
            } else {
                self.attempt_push(&*notifier, lease, &pending.receiver, delivery, then)
                    .await
            };
            match next {
                Next::GoOn => {}
                Next::Stop(end) => return end,
            }
        }
        // Nothing was pending: otherwise the last attempt has ended the lease.
        End::Park(None)
    }

    /// Makes one attempt and settles it. `then` applies unless the attempt is to be retried; `None` means
    /// that another delivery is pending.
    async fn attempt_push(
        &self,
        notifier: &dyn Notifier,
        lease: &mut Lease,
        receiver: &[u8],
        delivery: DeliveryRow,
        then: Option<Then>,
    ) -> Next {
        let DeliveryRow {
            run,
            push,
            seq,
            body,
            attempts,
            enqueued_at,
            ..
        } = delivery;
        let delivery = Delivery {
            run,
            push,
            receiver: receiver.to_vec(),
            seq,
            body,
        };
        let counters = &self.shared.counters;
        Counters::add(&counters.pushes_active, 1);
        let delivering = caught(notifier.deliver(&delivery));
        let timeout = self.shared.options.push.timeout;
        let outcome = lease.hold(tokio::time::timeout(timeout, delivering)).await;
        counters.pushes_active.fetch_sub(1, Ordering::Relaxed);
        let failure = match outcome {
            None => return Next::Stop(lease.give_back()),
            Some(Ok(Ok(Ok(())))) => None,
            Some(Ok(Ok(Err(failure)))) => Some(failure),
            Some(Ok(Err(Panicked(text)))) => {
                Counters::add(&counters.panics, 1);
                tracing::error!(run = %lease.run, panic = text, "push panicked");
                Some(undelivered("the attempt broke off by a fault of this host"))
            }
            Some(Err(_)) => Some(undelivered("no answer in time")),
        };
        let (run, push, now) = (&lease.run, &lease.key.name, self.lease_time());
        let (attempted, then) = match failure {
            None => {
                Counters::add(&counters.pushes_delivered, 1);
                (Attempted::Delivered, then)
            }
            Some(Undelivered { reason, .. }) if self.is_too_old(enqueued_at, now) => {
                Counters::add(&counters.pushes_given_up, 1);
                if let Some(left_out) = GIVEN_UP.admit(&run.tenant, Instant::now()) {
                    tracing::warn!(%run, push, seq = seq.0, reason, left_out, "push given up");
                }
                let given_up = Attempted::GivenUp {
                    error: reason,
                    at: now,
                };
                (given_up, then)
            }
            Some(Undelivered { reason, retry_after }) => {
                Counters::add(&counters.pushes_failed, 1);
                tracing::debug!(%run, push, seq = seq.0, attempts, reason, "push failed");
                let due = now.plus_millis(millis(self.push_pause(attempts, retry_after)));
                (Attempted::Failed { error: reason }, Some(Then::Release(due)))
            }
        };
        self.settle_attempt(lease, seq, attempted, then).await
    }

    /// Dead-letters a delivery that processes kept dying at. It can be retried by request.
    async fn give_push_up(&self, lease: &Lease, seq: Seq, then: Option<Then>) -> Next {
        Counters::add(&self.shared.counters.pushes_given_up, 1);
        let error = "processes died while it was told";
        tracing::error!(
            push = lease.key.name,
            seq = seq.0,
            reason = error,
            "push given up"
        );
        let given_up = Attempted::GivenUp {
            error: error.to_owned(),
            at: self.lease_time(),
        };
        self.settle_attempt(lease, seq, given_up, then).await
    }

    fn is_too_old(&self, enqueued_at: Timestamp, now: Timestamp) -> bool {
        let age = now.millis().saturating_sub(enqueued_at.millis());
        u64::try_from(age).is_ok_and(|age| age >= millis(self.shared.options.push.give_up_after))
    }

    /// The backoff before the next attempt: doubles with each attempt, up to a limit, with random jitter.
    fn push_pause(&self, attempts: u64, retry_after: Option<Duration>) -> Duration {
        let Options {
            first_pause,
            longest_pause,
            ..
        } = self.shared.options.push;
        let doublings = u32::try_from(attempts).unwrap_or(u32::MAX).min(30);
        let longest = first_pause.saturating_mul(1 << doublings).min(longest_pause);
        let [byte] = self.shared.entropy_source.roll::<1>();
        let pause = longest / 2 + longest.mul_f64(f64::from(byte) / 510.0);
        pause.max(retry_after.unwrap_or_default().min(longest_pause))
    }

    /// Settles an attempt, and says how to continue. If the store stays unavailable, the holder of the next
    /// lease repeats the attempt. Without `then` the lease is extended for the next delivery.
    async fn settle_attempt(
        &self,
        lease: &Lease,
        seq: Seq,
        attempted: Attempted,
        then: Option<Then>,
    ) -> Next {
        let Lease { run, key, fence, .. } = lease;
        let store = &self.shared.store;
        let mut pause = Duration::from_millis(50);
        for _ in 0..SETTLE_TRIES {
            let attempt = (seq, attempted.clone());
            let then_now = then.unwrap_or_else(|| Then::Renew(lease.extended()));
            match store.settle_push(run, &key.name, *fence, attempt, then_now).await {
                Ok(true) => {
                    return match then_now {
                        Then::Renew(_) => Next::GoOn,
                        Then::Park(_) => Next::Stop(End::Over),
                        Then::Release(due) => {
                            self.shared.deliveries.hint(due);
                            Next::Stop(End::Over)
                        }
                    };
                }
                Ok(false) => return Next::Stop(End::Over),
                Err(error) => store_failed("push not settled", &error),
            }
            if self.paused_for(pause).await {
                break;
            }
            pause *= 2;
        }
        Next::Stop(lease.give_back())
    }
}

fn undelivered(reason: &str) -> Undelivered {
    Undelivered {
        reason: reason.to_owned(),
        retry_after: None,
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Timing and limits of push notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Maximum concurrent delivery attempts.
    pub max_active: usize,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// The backoff after the first failed attempt; jitter shortens it to half at most.
    pub first_pause: Duration,
    /// The maximum backoff.
    pub longest_pause: Duration,
    /// Age at which a failing delivery is dead-lettered.
    pub give_up_after: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_active: 256,
            timeout: Duration::from_secs(15),
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(3_600),
            give_up_after: Duration::from_secs(24 * 3_600),
        }
    }
}
