//! The offers port in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;
use wopr_core::{RunKey, TenantId, Timestamp};

use super::{Item, MemoryStore, State};
use crate::{
    Fence, Leased, LeasedOffers, Offer, OfferRequest, OfferThen, OfferedQueue, Offers, QUARANTINED,
    ReadError, WorkKey, WriteError, offers::most_counted,
};

impl State {
    /// The rows of a tenant that are offered to workers.
    fn offers(&self, tenant: &TenantId) -> impl Iterator<Item = (&(RunKey, WorkKey), &Item, &Offer)> {
        self.work.iter().filter_map(|(place, item)| {
            let offer = item.offer.as_ref()?;
            let is_listed = place.0.tenant == *tenant && item.deaths < QUARANTINED && !self.is_gone(&place.0);
            is_listed.then_some((place, item, offer))
        })
    }
}

#[async_trait]
impl Offers for MemoryStore {
    async fn lease_offers(&self, request: &OfferRequest) -> Result<LeasedOffers, WriteError> {
        let mut state = self.state.lock();
        let (mut of_queue, mut of_tenant) = (0, 0);
        let mut found = Vec::new();
        for (place, item, offer) in state.offers(&request.tenant) {
            let is_leased = offer.since > request.now;
            let is_wanted = offer.queue == request.queue;
            of_tenant += usize::from(is_leased);
            of_queue += usize::from(is_leased && is_wanted);
            if is_wanted {
                found.push((offer.since, place.clone(), item.body.len()));
            }
        }
        found.sort_unstable();
        let room = request.room(of_queue, of_tenant);
        let mut n_bytes = 0;
        let n_taken = found
            .iter()
            .take(room)
            .take_while(|(since, _, n)| {
                let fits = *since <= request.now && n_bytes < request.bytes;
                n_bytes += n;
                fits
            })
            .count();
        let rest = found.split_off(n_taken);
        let leases_end = (!found.is_empty()).then_some(request.until);
        let next = rest.first().map(|(since, _, _)| *since);
        let mut leased = LeasedOffers {
            next: [next, leases_end].into_iter().flatten().min(),
            ..LeasedOffers::default()
        };
        for (since, place, _) in found {
            let Some(item) = state.work.get_mut(&place) else {
                continue;
            };
            if let Some(offer) = &mut item.offer {
                offer.since = request.until;
            }
            item.fence.0 += 1;
            let is_in_outage = request.outage.is_some_and(|outage| outage.contains(since));
            let is_excused = item.leases > 0 && is_in_outage;
            let n_lost = item.leases - u32::from(is_excused);
            item.leases = n_lost + u32::from(n_lost < request.max_lost);
            let (run, key) = place;
            let row = Leased {
                run,
                key,
                body: item.body.clone(),
                since,
                fence: item.fence,
                deaths: item.deaths,
            };
            leased.add(request, row, n_lost);
        }
        Ok(leased)
    }

    async fn set_offer(
        &self,
        run: &RunKey,
        key: &WorkKey,
        fence: Fence,
        then: OfferThen,
    ) -> Result<bool, WriteError> {
        let (ready, is_given_back) = then.columns();
        let mut state = self.state.lock();
        let item = state.work.get_mut(&(run.clone(), key.clone()));
        let Some(item) = item.filter(|item| item.fence == fence) else {
            return Ok(false);
        };
        let Some(offer) = &mut item.offer else {
            return Ok(false);
        };
        // The lease was given back before if the time is the same.
        if is_given_back && offer.since != ready {
            item.leases = item.leases.saturating_sub(1);
        }
        offer.since = ready;
        Ok(true)
    }

    async fn offered_queues(
        &self,
        tenant: &TenantId,
        now: Timestamp,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<OfferedQueue>, ReadError> {
        let state = self.state.lock();
        let mut queues = BTreeMap::new();
        for (_, _, offer) in state.offers(tenant) {
            let queue = queues.entry(&offer.queue).or_insert_with(|| OfferedQueue {
                queue: offer.queue.clone(),
                waiting: 0,
                leased: 0,
                oldest: None,
            });
            if offer.since > now {
                queue.leased += 1;
            } else {
                queue.waiting += 1;
                queue.oldest = Some(queue.oldest.map_or(offer.since, |oldest| oldest.min(offer.since)));
            }
        }
        let after = |queue: &OfferedQueue| after.is_none_or(|after| queue.queue.as_str() > after);
        let mut listed: Vec<_> = queues.into_values().filter(after).take(limit).collect();
        let most = most_counted(listed.len());
        for queue in &mut listed {
            queue.leased = queue.leased.min(most);
            queue.waiting = queue.waiting.min(most);
        }
        Ok(listed)
    }
}
