//! The work port in memory.

use std::collections::{BTreeSet, HashMap};

use async_trait::async_trait;
use wopr_core::{RunKey, TenantId, Timestamp};

use super::{Hand, MemoryStore};
use crate::{
    EffectKey, Epoch, Fence, LAST_CHANCE, LeasedEffect, LeasedTimer, Mailbox, PARKED, Quota, ReadError,
    TimerKey, Work, WriteError,
};

#[async_trait]
impl Work for MemoryStore {
    async fn high_water(&self) -> Result<Option<Timestamp>, ReadError> {
        Ok(self.state.lock().high_water)
    }

    async fn keep_time(&self, at: Timestamp) -> Result<(), WriteError> {
        let mut state = self.state.lock();
        state.high_water = state.high_water.max(Some(at));
        Ok(())
    }

    async fn begin_epoch(&self, now: Timestamp) -> Result<Epoch, WriteError> {
        let mut state = self.state.lock();
        let state = &mut *state;
        // One process owns this store, so the earlier epochs that held rows are gone.
        let ended = std::mem::take(&mut state.ended);
        let bury = |epoch: Epoch, deaths: &mut u32| *deaths += u32::from(!ended.contains(&epoch));
        for effect in state.effects.values_mut() {
            if let Some((epoch, _)) = effect.lease.take() {
                bury(epoch, &mut effect.deaths);
            }
        }
        for timer in state.timers.values_mut() {
            if let Some(epoch) = timer.epoch.take() {
                bury(epoch, &mut timer.deaths);
                timer.due = now;
            }
        }
        for push in state.pushes.values_mut() {
            if let Some(epoch) = push.epoch.take() {
                bury(epoch, &mut push.deaths);
                push.due = Some(now);
            }
        }
        let told = state.inboxes.values_mut().flatten().map(|told| &mut told.hand);
        for hand in told.chain(state.outbox.values_mut().map(|note| &mut note.hand)) {
            if let Some(epoch) = hand.epoch.take() {
                bury(epoch, &mut hand.deaths);
            }
        }
        state.has_died = state.epoch > 0 && !ended.contains(&Epoch(state.epoch));
        state.epoch += 1;
        Ok(Epoch(state.epoch))
    }

    async fn end_epoch(&self, epoch: Epoch) -> Result<(), WriteError> {
        self.state.lock().ended.insert(epoch);
        Ok(())
    }

    async fn claim(
        &self,
        mailbox: Mailbox,
        epoch: Epoch,
        runs: &[RunKey],
        suspects: usize,
    ) -> Result<Vec<RunKey>, WriteError> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let least = u32::from(state.has_died);
        let (mut claimed, mut left) = (Vec::new(), suspects);
        for run in runs {
            let mut hands: Vec<&mut Hand> = match mailbox {
                Mailbox::Inbox => {
                    let told = state.inboxes.get_mut(run).into_iter().flatten();
                    told.map(|told| &mut told.hand).collect()
                }
                Mailbox::Outbox => state
                    .outbox
                    .get_mut(run)
                    .map(|note| &mut note.hand)
                    .into_iter()
                    .collect(),
            };
            hands.retain(|hand| hand.deaths < PARKED);
            let is_free = |hand: &&mut Hand| hand.epoch.is_none_or(|holder| holder == epoch);
            if hands.is_empty() || !hands.iter().all(is_free) {
                continue;
            }
            if hands.iter().any(|hand| hand.deaths >= LAST_CHANCE) {
                if left == 0 {
                    continue;
                }
                left -= 1;
            }
            for hand in hands {
                hand.epoch = Some(epoch);
                hand.deaths = hand.deaths.max(least);
            }
            claimed.push(run.clone());
        }
        Ok(claimed)
    }

    async fn grant(&self, root: &RunKey, wanted: u64, most: u64) -> Result<u64, WriteError> {
        let mut state = self.state.lock();
        let Some(run) = state.runs.get_mut(root) else {
            return Ok(0);
        };
        let granted = wanted.min(most.saturating_sub(run.descendants));
        run.descendants += granted;
        Ok(granted)
    }

    async fn parked(&self, limit: usize) -> Result<Vec<RunKey>, ReadError> {
        let state = self.state.lock();
        let timers = state.timers.iter().map(|((run, _), timer)| (run, timer.deaths));
        let effects = state
            .effects
            .iter()
            .map(|((run, _), effect)| (run, effect.deaths));
        let outbox = state.outbox.iter().map(|(run, note)| (run, note.hand.deaths));
        let inboxes = state.inboxes.iter();
        let inboxes = inboxes.flat_map(|(run, rows)| rows.iter().map(move |told| (run, told.hand.deaths)));
        let all = timers.chain(effects).chain(outbox).chain(inboxes);
        let runs: BTreeSet<_> = all
            .filter(|(_, deaths)| *deaths == PARKED)
            .map(|(run, _)| run.clone())
            .collect();
        Ok(runs.into_iter().take(limit).collect())
    }

    async fn lease_timers(
        &self,
        epoch: Epoch,
        due: Timestamp,
        now: Timestamp,
        until: Timestamp,
        quota: &Quota,
    ) -> Result<Vec<LeasedTimer>, WriteError> {
        let mut state = self.state.lock();
        let mut free: Vec<_> = state
            .timers
            .iter()
            .filter(|(_, timer)| timer.due <= if timer.epoch.is_some() { now } else { due })
            .map(|(place, timer)| (timer.deaths, timer.due, place.clone()))
            .collect();
        free.sort_unstable_by(|one, other| (one.1, &one.2).cmp(&(other.1, &other.2)));
        let free = within(quota, free, |(deaths, _, (run, _))| {
            (*deaths, run.tenant.clone(), 0)
        });
        let mut leased = Vec::with_capacity(free.len());
        for (deaths, since, place) in free {
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
                    deaths,
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
        let state = self.state.lock();
        let timers = state.timers.values().filter(|timer| timer.deaths < PARKED);
        Ok(timers.map(|timer| timer.due).min())
    }

    async fn lease_effects(
        &self,
        epoch: Epoch,
        now: Timestamp,
        until: Timestamp,
        quota: &Quota,
    ) -> Result<Vec<LeasedEffect>, WriteError> {
        let mut state = self.state.lock();
        // Effects without a lease come first, the longest enqueued ahead; then those whose lease has expired.
        let mut free: Vec<_> = state
            .effects
            .iter()
            .filter_map(|(place, effect)| match effect.lease {
                None => Some((false, effect.enqueued_at, place.clone(), effect.deaths)),
                Some((_, ends)) if ends <= now => Some((true, ends, place.clone(), effect.deaths)),
                Some(_) => None,
            })
            .collect();
        free.sort();
        let ended = free.split_off(free.partition_point(|(is_ended, ..)| !is_ended));
        let n_bytes =
            |place: &(RunKey, EffectKey)| state.effects.get(place).map_or(0, |effect| effect.body.len());
        let read = |(_, _, place, deaths): &(bool, Timestamp, (RunKey, EffectKey), u32)| {
            (*deaths, place.0.tenant.clone(), n_bytes(place))
        };
        let mut free = within(quota, free, read);
        let n_suspects = free.iter().filter(|(.., deaths)| *deaths >= LAST_CHANCE).count();
        let rest = quota.rows - (free.len() - n_suspects);
        let others = free.iter().filter(|(.., deaths)| *deaths < LAST_CHANCE);
        let taken: usize = others.map(|(_, _, place, _)| n_bytes(place)).sum();
        let bytes = quota.bytes.saturating_sub(taken);
        let rest = Quota {
            rows: rest,
            per_tenant: rest,
            bytes,
            bytes_per_tenant: bytes,
            without: quota.without.clone(),
            suspects: quota.suspects - n_suspects,
        };
        free.extend(within(&rest, ended, read));
        free.sort_by_key(|(.., deaths)| *deaths >= LAST_CHANCE);
        let mut leased = Vec::with_capacity(free.len());
        for (_, _, place, deaths) in free {
            if let Some(effect) = state.effects.get_mut(&place) {
                effect.fence.0 += 1;
                effect.lease = Some((epoch, until));
                let (run, key) = place;
                leased.push(LeasedEffect {
                    run,
                    key,
                    body: effect.body.clone(),
                    fence: effect.fence,
                    deaths,
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

    async fn runs_with_inbox(
        &self,
        epoch: Epoch,
        after: Option<&RunKey>,
        limit: usize,
    ) -> Result<Vec<RunKey>, ReadError> {
        let state = self.state.lock();
        Ok(state
            .inboxes
            .iter()
            .filter(|(run, _)| after.is_none_or(|after| *run > after))
            .filter(|(_, rows)| rows.iter().any(|told| told.hand.is_for(epoch)))
            .take(limit)
            .map(|(run, _)| run.clone())
            .collect())
    }
}

impl Hand {
    /// Returns `true` if an epoch may claim the row.
    pub(super) fn is_for(&self, epoch: Epoch) -> bool {
        self.deaths < PARKED && self.epoch.is_none_or(|holder| holder == epoch)
    }
}

/// Selects the rows that a quota admits, in order, with the suspects last.
pub(super) fn within<T>(quota: &Quota, rows: Vec<T>, read: impl Fn(&T) -> (u32, TenantId, usize)) -> Vec<T> {
    let mut of_tenants: HashMap<TenantId, (usize, usize)> = HashMap::new();
    let (mut handed_out, mut suspects) = (Vec::new(), Vec::new());
    let (mut taken, mut of_suspects) = (0, 0);
    for row in rows {
        let (deaths, tenant, n_bytes) = read(&row);
        if deaths >= PARKED {
            continue;
        }
        if deaths >= LAST_CHANCE {
            if suspects.len() < quota.suspects && of_suspects < quota.bytes {
                of_suspects += n_bytes;
                suspects.push(row);
            }
            continue;
        }
        let is_without = quota.without.contains(&tenant);
        let (n_rows, of_tenant) = of_tenants.entry(tenant).or_default();
        let has_share = *n_rows < quota.per_tenant && *of_tenant < quota.bytes_per_tenant;
        if has_share && !is_without && handed_out.len() < quota.rows && taken < quota.bytes {
            *n_rows += 1;
            *of_tenant += n_bytes;
            taken += n_bytes;
            handed_out.push(row);
        }
    }
    handed_out.append(&mut suspects);
    handed_out
}
