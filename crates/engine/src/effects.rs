//! Performs effects: leases attempts, renews their leases while they run, and records their outcomes.
//!
//! An attempt begins only after the batch that requested it is durable. Its outcome is appended under its
//! lease; if the lease was lost or the execution is over, the outcome is dropped. If a process dies, its rows
//! remain, and another epoch attempts them again with the same idempotency key.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tracing::Instrument;
use wopr_core::{Command, Failure, Object, Refusal, RunKey, TenantId};
use wopr_store::{EffectKey, Fence, LeasedEffect, Quota};

use crate::{
    Attempt, CommandError, Engine, Keep, Outcome, SideRows,
    commit::StoredEffect,
    logs::of_run,
    panics::{Panicked, caught},
    quarantine::Suspects,
    slots::{Slot, Slots},
    stats::Counters,
};

/// Tries to append an outcome while the store is unavailable, before the attempt is left to the next lease.
const APPEND_TRIES: u32 = 8;
/// Maximum bytes of requests leased at once.
const LEASE_BYTES: usize = 16 << 20;
/// Maximum concurrent attempts of suspects, which have one chance left. Attempts may take long, so suspects
/// do not run one by one.
const SUSPECTS: usize = 8;
/// Minimum interval between lease checks of an attempt, however often its run changes.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Effects {
    slots: Slots,
    /// Bytes taken by the requests of running attempts, and by their outcomes until they are recorded.
    bytes: Slots,
    suspects: Suspects,
    /// Notified when a slot becomes free that rows may be waiting for.
    freed: Notify,
    /// Running attempts, to be notified when their effect may be settled.
    attempts: Mutex<HashMap<RunKey, Listeners>>,
}

/// The attempts of one run, each with its wake-up.
type Listeners = Vec<(EffectKey, Arc<Notify>)>;

/// The capacity that an attempt holds until it is over.
struct Begun {
    _slot: Slot,
    bytes: Slot,
}

/// Listens for changes of a run, until dropped.
struct News {
    engine: Engine,
    run: RunKey,
    heard: Arc<Notify>,
}

impl Drop for News {
    fn drop(&mut self) {
        let mut attempts = self.engine.shared.effects.attempts.lock();
        if let Some(of_run) = attempts.get_mut(&self.run) {
            of_run.retain(|(_, heard)| !Arc::ptr_eq(heard, &self.heard));
            if of_run.is_empty() {
                attempts.remove(&self.run);
            }
        }
    }
}

impl Effects {
    pub(crate) fn new(max: usize, max_bytes: usize) -> Self {
        Self {
            slots: Slots::new(max),
            bytes: Slots::new(max_bytes),
            suspects: Suspects::new(SUSPECTS),
            freed: Notify::new(),
            attempts: Mutex::default(),
        }
    }

    /// The quota for the next lease: what fits, and for each tenant at most its share.
    fn quota(&self) -> Quota {
        let mut without = self.slots.crowded();
        without.extend(self.bytes.crowded());
        without.sort_unstable();
        without.dedup();
        let bytes = self.bytes.free().min(LEASE_BYTES);
        Quota {
            rows: self.slots.free(),
            per_tenant: self.slots.share(),
            bytes,
            bytes_per_tenant: self.bytes.share().min(bytes),
            without,
            suspects: self.suspects.free(),
        }
    }

    /// Returns `true` if no attempt can begin.
    fn is_full(&self) -> bool {
        self.slots.free() == 0 || self.bytes.free() == 0
    }

    /// Takes a slot for a request of this size.
    fn take(&self, tenant: &TenantId, n_bytes: usize) -> Option<Begun> {
        let bytes = self.bytes.take_sized(tenant, n_bytes)?;
        let slot = self.slots.take(tenant)?;
        Some(Begun { _slot: slot, bytes })
    }

    /// Makes the attempts of a run check their leases.
    pub(crate) fn look(&self, run: &RunKey) {
        for (_, heard) in self.attempts.lock().get(run).into_iter().flatten() {
            heard.notify_one();
        }
    }

    /// Makes every attempt check its lease. Goes through the runs in key order, so that simulations are
    /// repeatable.
    pub(crate) fn look_all(&self) {
        let attempts = self.attempts.lock();
        let mut of_runs: Vec<_> = attempts.iter().collect();
        of_runs.sort_unstable_by_key(|(run, _)| *run);
        for (_, heard) in of_runs.into_iter().flat_map(|(_, of_run)| of_run) {
            heard.notify_one();
        }
    }

    /// Wakes the attempts at an effect that has been settled.
    pub(crate) fn settled(&self, run: &RunKey, key: &EffectKey) {
        let attempts = self.attempts.lock();
        for (_, heard) in attempts
            .get(run)
            .into_iter()
            .flatten()
            .filter(|(of, _)| of == key)
        {
            heard.notify_one();
        }
    }
}

impl Engine {
    /// Leases effects that no process works on: those of dead processes, and those that found no free slot.
    pub(crate) async fn run_effects(self) {
        let stop = self.shared.stop.clone();
        while !stop.is_cancelled() {
            let mut is_full = self.shared.effects.is_full();
            if !is_full {
                let shared = &self.shared;
                if let Err(error) = shared.lease_clock.set(&*shared.store, &*shared.clock).await {
                    tracing::warn!(%error, "cannot read the store's clock");
                }
                let (now, until) = shared.lease_clock.lease(shared.options.lease);
                let quota = shared.effects.quota();
                match shared.store.lease_effects(shared.epoch, now, until, &quota).await {
                    Ok(leased) => {
                        let n_bytes: usize = leased.iter().map(|effect| effect.body.len()).sum();
                        is_full = leased.len() >= quota.per_tenant
                            || n_bytes >= quota.bytes_per_tenant
                            || !quota.without.is_empty();
                        let mut all_begun = true;
                        for effect in leased {
                            if shared.run_backoff.is_left_alone(&effect.run) {
                                // The outcome could not be recorded. Keep the lease, so that nobody retries
                                // before it expires.
                                continue;
                            }
                            all_begun &= self.begin_leased(effect).await;
                        }
                        if n_bytes >= LEASE_BYTES && all_begun {
                            // There may be more effects, and capacity for them.
                            continue;
                        }
                    }
                    Err(error) => tracing::warn!(%error, "cannot lease effects"),
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = self.shared.effects.freed.notified(), if is_full => {}
                () = self.shared.wake_hints.effects.notified() => {}
                () = tokio::time::sleep(self.shared.options.poll) => {}
            }
        }
    }

    /// Begins an attempt whose lease this process holds. Without a free slot, or while the engine stops,
    /// releases the lease instead.
    pub(crate) fn begin_effect(&self, run: RunKey, key: EffectKey, effect: StoredEffect, fence: Fence) {
        let _is_begun = self.begin_suspect(run, key, effect, fence, None);
    }

    fn begin_suspect(
        &self,
        run: RunKey,
        key: EffectKey,
        effect: StoredEffect,
        fence: Fence,
        suspect: Option<OwnedSemaphorePermit>,
    ) -> bool {
        let engine = self.clone();
        let begun = self.shared.effects.take(&run.tenant, effect.request.n_bytes());
        let is_begun = begun.is_some();
        // Without a slot, drop the request before releasing the lease, to free its memory.
        let begun = begun.map(|begun| (begun, effect, self.news(&run, &key)));
        let span = of_run(&run);
        let work = async move {
            match begun {
                Some((begun, effect, news)) if !engine.shared.stop.is_cancelled() => {
                    engine.attempt(&run, &key, effect, fence, begun, news).await;
                }
                Some(_) | None => engine.give_back(&run, &key, fence).await,
            }
            drop(suspect);
        };
        self.shared.tasks.spawn(work.instrument(span));
        is_begun
    }

    /// Begins a leased attempt. Returns `false` if there was no capacity for it.
    async fn begin_leased(&self, effect: LeasedEffect) -> bool {
        let LeasedEffect {
            run,
            key,
            body,
            fence,
            deaths,
        } = effect;
        match serde_json::from_slice(&body) {
            Ok(stored) => {
                drop(body);
                let suspect = self.shared.effects.suspects.begin(deaths);
                self.begin_suspect(run, key, stored, fence, suspect)
            }
            Err(error) => {
                let why = CommandError::Internal(format!("effect {}: {error}", key.0));
                let is_unread = async { Err::<(), _>(why) };
                drop(self.attend(&run, Box::pin(is_unread)).await);
                // The effect can be leased again once its run's backoff is over.
                self.give_back(&run, &key, fence).await;
                false
            }
        }
    }

    fn news(&self, run: &RunKey, key: &EffectKey) -> News {
        let heard = Arc::new(Notify::new());
        let mut attempts = self.shared.effects.attempts.lock();
        let of_run = attempts.entry(run.clone()).or_default();
        of_run.push((key.clone(), Arc::clone(&heard)));
        News {
            engine: self.clone(),
            run: run.clone(),
            heard,
        }
    }

    async fn give_back(&self, run: &RunKey, key: &EffectKey, fence: Fence) {
        if let Err(error) = self.shared.store.release(run, key, fence).await {
            tracing::warn!(%run, %error, "lease not given back, it will run out");
        }
    }

    async fn attempt(
        &self,
        run: &RunKey,
        key: &EffectKey,
        effect: StoredEffect,
        fence: Fence,
        mut begun: Begun,
        news: News,
    ) {
        let counters = &self.shared.counters;
        Counters::add(&counters.effects_started, 1);
        Counters::add(&counters.effects_active, 1);
        let StoredEffect {
            step,
            attempt,
            idempotency_key,
            traceparent,
            request,
        } = effect;
        let keep = Keep::default();
        let performing = caught(self.shared.executor.run(Attempt {
            run: run.clone(),
            idempotency_key,
            traceparent,
            request,
            keep: keep.clone(),
        }));
        let outcome = tokio::select! {
            biased;
            outcome = performing => Some(outcome.unwrap_or_else(|panicked| self.broken_off(run, &panicked))),
            () = self.lease_lost(run, key, fence, &news) => None,
            () = self.shared.stop.cancelled() => None,
        };
        // Stop listening first: the attempt's own outcome must not wake it.
        drop(news);
        match outcome {
            Some(outcome) => {
                begun.bytes.grow(outcome.n_bytes());
                let command = Command::Effect {
                    step,
                    attempt,
                    retry_after_ms: retry_after_ms(&outcome),
                    outcome: read_outcome(outcome),
                };
                self.record(run, key, command, fence).await;
            }
            None => self.give_back(run, key, fence).await,
        }
        counters
            .effects_active
            .fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        keep.let_go();
        drop(begun);
        self.shared.effects.freed.notify_one();
    }

    /// The outcome of an attempt whose executor panicked: a failure, so that the node's retry policy limits
    /// further attempts.
    fn broken_off(&self, run: &RunKey, Panicked(text): &Panicked) -> Outcome {
        Counters::add(&self.shared.counters.panics, 1);
        tracing::error!(%run, panic = text, "attempt panicked");
        Outcome::Failed {
            code: "internal_error".to_owned(),
            message: "the attempt broke off by a fault of this host".to_owned(),
            retryable: true,
            retry_after: None,
        }
    }

    async fn record(&self, run: &RunKey, key: &EffectKey, command: Command, fence: Fence) {
        let mut pause = Duration::from_millis(50);
        for _ in 0..APPEND_TRIES {
            let fenced = Some((key.clone(), fence));
            let recording = Box::pin(self.command_fenced(run, None, &command, SideRows::default(), fenced));
            match self.attend(run, recording).await {
                Ok(_) => return,
                Err(CommandError::Refused(Refusal::Stale)) => {
                    Counters::add(&self.shared.counters.effects_dropped, 1);
                    return tracing::info!(%run, effect = key.0, "outcome of a lost attempt dropped");
                }
                Err(CommandError::Unavailable(_) | CommandError::Busy { .. }) => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(error) => return tracing::error!(%run, effect = key.0, %error, "outcome not recorded"),
            }
        }
        tracing::warn!(%run, effect = key.0, "outcome not recorded, the effect will be attempted again");
        self.give_back(run, key, fence).await;
    }

    /// Renews the lease, periodically and when the run changes, until it is lost.
    async fn lease_lost(&self, run: &RunKey, key: &EffectKey, fence: Fence, news: &News) {
        let renewing = self.shared.options.lease / 3;
        loop {
            let slept = tokio::time::timeout(renewing, news.heard.notified()).await;
            let (_, until) = self.shared.lease_clock.lease(self.shared.options.lease);
            match self.shared.store.renew(run, key, fence, until).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => tracing::warn!(%run, %error, "lease not renewed"),
            }
            if slept.is_ok() {
                tokio::time::sleep(LOOK_AGAIN.min(renewing)).await;
            }
        }
    }
}

fn retry_after_ms(outcome: &Outcome) -> Option<u64> {
    match outcome {
        Outcome::Done(_) => None,
        Outcome::Failed { retry_after, .. } => {
            retry_after.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
        }
    }
}

fn read_outcome(outcome: Outcome) -> Result<Object, Failure> {
    match outcome {
        Outcome::Done(Value::Object(outputs)) => Ok(outputs),
        Outcome::Done(other) => {
            let mut outputs = Object::new();
            outputs.insert("result".to_owned(), json!(other));
            Ok(outputs)
        }
        Outcome::Failed {
            code,
            message,
            retryable,
            retry_after: _,
        } => Err(Failure {
            code,
            message,
            retryable,
            reason: None,
        }),
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::{RunId, Timestamp};

    use super::*;

    #[tokio::test]
    async fn attempts_are_woken_in_the_order_of_their_runs() {
        let effects = Effects::new(1, 1 << 20);
        let (saw, mut looks) = tokio::sync::mpsc::unbounded_channel();
        for n in (0_u8..32).rev() {
            let run = RunId::from_parts(Timestamp::from_millis(n.into()), [0; 10]);
            let run = RunKey::new(TenantId::parse("acme").expect("valid"), run);
            let heard = Arc::new(Notify::new());
            let listener = (EffectKey("call".to_owned()), Arc::clone(&heard));
            effects.attempts.lock().insert(run, vec![listener]);
            let saw = saw.clone();
            tokio::spawn(async move {
                heard.notified().await;
                saw.send(n).expect("the test listens");
            });
        }
        drop(saw);
        tokio::task::yield_now().await;
        effects.look_all();
        for n in 0..32 {
            assert_eq!(looks.recv().await, Some(n));
        }
    }
}
