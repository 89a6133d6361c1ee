//! The work port in memory.

use async_trait::async_trait;
use wopr_core::{RunKey, Timestamp};

use super::MemoryStore;
use crate::{EffectKey, Epoch, Fence, LeasedEffect, LeasedTimer, ReadError, TimerKey, Work, WriteError};

#[async_trait]
impl Work for MemoryStore {
    async fn begin_epoch(&self, now: Timestamp) -> Result<Epoch, WriteError> {
        let mut state = self.state.lock();
        // One process owns this store, so whoever held a lease is gone.
        for effect in state.effects.values_mut() {
            effect.lease = None;
        }
        for timer in state.timers.values_mut() {
            if timer.epoch.take().is_some() {
                timer.due = now;
            }
        }
        for push in state.pushes.values_mut() {
            if push.epoch.take().is_some() {
                push.due = Some(now);
            }
        }
        state.epoch += 1;
        Ok(Epoch(state.epoch))
    }

    async fn lease_timers(
        &self,
        epoch: Epoch,
        due: Timestamp,
        now: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<LeasedTimer>, WriteError> {
        let mut state = self.state.lock();
        let mut free: Vec<_> = state
            .timers
            .iter()
            .filter(|(_, timer)| timer.due <= if timer.epoch.is_some() { now } else { due })
            .map(|(place, timer)| (timer.due, place.clone()))
            .collect();
        free.sort_unstable();
        free.truncate(limit);
        let mut leased = Vec::with_capacity(free.len());
        for (since, place) in free {
            if let Some(timer) = state.timers.get_mut(&place) {
                timer.epoch = Some(epoch);
                timer.due = until;
                timer.fence.0 += 1;
                let (run, key) = place;
                leased.push(LeasedTimer {
                    run,
                    key,
                    since,
                    fence: timer.fence,
                });
            }
        }
        Ok(leased)
    }

    async fn release_timer(
        &self,
        run: &RunKey,
        key: &TimerKey,
        fence: Fence,
        due: Timestamp,
    ) -> Result<(), WriteError> {
        let mut state = self.state.lock();
        if let Some(timer) = state.timers.get_mut(&(run.clone(), key.clone()))
            && timer.fence == fence
            && timer.epoch.take().is_some()
        {
            timer.due = due;
        }
        Ok(())
    }

    async fn next_due(&self) -> Result<Option<Timestamp>, ReadError> {
        Ok(self.state.lock().timers.values().map(|timer| timer.due).min())
    }

    async fn lease_effects(
        &self,
        epoch: Epoch,
        now: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<LeasedEffect>, WriteError> {
        let mut state = self.state.lock();
        // Those nobody holds come first, the longest waiting ahead; then those whose lease has ended.
        let mut free: Vec<_> = state
            .effects
            .iter()
            .filter_map(|(place, effect)| match effect.lease {
                None => Some((false, effect.enqueued_at, place.clone())),
                Some((_, ends)) if ends <= now => Some((true, ends, place.clone())),
                Some(_) => None,
            })
            .collect();
        free.sort();
        free.truncate(limit);
        let mut leased = Vec::with_capacity(free.len());
        for (_, _, place) in free {
            if let Some(effect) = state.effects.get_mut(&place) {
                effect.fence.0 += 1;
                effect.lease = Some((epoch, until));
                let (run, key) = place;
                leased.push(LeasedEffect {
                    run,
                    key,
                    body: effect.body.clone(),
                    fence: effect.fence,
                });
            }
        }
        Ok(leased)
    }

    async fn renew(
        &self,
        run: &RunKey,
        key: &EffectKey,
        fence: Fence,
        until: Timestamp,
    ) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        match state.effects.get_mut(&(run.clone(), key.clone())) {
            Some(effect) if effect.fence == fence => {
                let Some((_, ends)) = &mut effect.lease else {
                    return Ok(false);
                };
                *ends = until;
                Ok(true)
            }
            Some(_) | None => Ok(false),
        }
    }

    async fn release(&self, run: &RunKey, key: &EffectKey, fence: Fence) -> Result<(), WriteError> {
        let mut state = self.state.lock();
        if let Some(effect) = state.effects.get_mut(&(run.clone(), key.clone()))
            && effect.fence == fence
        {
            effect.lease = None;
        }
        Ok(())
    }

    async fn runs_with_inbox(&self, after: Option<&RunKey>, limit: usize) -> Result<Vec<RunKey>, ReadError> {
        let state = self.state.lock();
        Ok(state
            .inboxes
            .keys()
            .filter(|run| after.is_none_or(|after| *run > after))
            .take(limit)
            .cloned()
            .collect())
    }
}
