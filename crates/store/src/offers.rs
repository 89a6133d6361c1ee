//! The offers port: work that programs outside this host lease.
//!
//! An offer is a parked row of work with the name of a worker queue. The pools of this host never lease it. A worker
//! does, through a host, under rules of its own:
//!
//! - The lease belongs to no epoch. It survives the host that handed it out, and ends by its time or when it is
//!   given back.
//! - Each lease has a larger fence than those before, as with any row of work. An outcome with an older fence is
//!   refused, and one with the current fence counts although the lease has expired.
//! - No deaths are counted: it is not the host that dies of the work. Instead each row counts its leases that ended
//!   with no outcome. When there are as many as the caller allows, the row is leased to the host in place of a worker,
//!   so that it can end the attempt.
//!
//! The column `ready` says when the row can be leased: when it was offered, or when its lease ends. The column `leases`
//! counts the leases that workers got and did not give back. While the row can be leased, each of them has ended with no
//! outcome, because an outcome removes the row.

use async_trait::async_trait;
use wopr_core::{RunKey, TenantId, Timestamp};

use crate::{Fence, Leased, ReadError, WorkKey, WriteError};

/// The most rows of one state that [`Offers::offered_queues`] counts, of all queues that it lists.
pub const MOST_COUNTED: u64 = 10_000;

/// The most rows of one state that are counted in each of so many queues.
pub(crate) fn most_counted(n_queues: usize) -> u64 {
    let n_queues = u64::try_from(n_queues).unwrap_or(u64::MAX);
    (MOST_COUNTED / n_queues.max(1)).max(1)
}

/// What makes a parked row an offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The worker queue that it waits in.
    pub queue: String,
    /// By the clock of leases.
    pub since: Timestamp,
}

/// One call for the offers of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferRequest {
    pub tenant: TenantId,
    pub queue: String,
    pub now: Timestamp,
    /// The end of the new leases.
    pub until: Timestamp,
    /// Maximum rows.
    pub rows: usize,
    /// Maximum bytes of bodies. The last row may exceed the limit.
    pub bytes: usize,
    /// The most rows of the queue that may be leased at once; no limit where absent.
    pub most_of_queue: Option<usize>,
    /// The most rows of the tenant that may be leased at once; no limit where absent.
    pub most_of_tenant: Option<usize>,
    /// The number of leases with no outcome after which no worker gets a row again.
    pub max_lost: u32,
    /// A lease that ended in this time does not count as lost.
    pub outage: Option<Outage>,
}

/// A time in which no host was up, so that no worker could renew its lease or submit an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// When a host was last known to be up.
    pub after: Timestamp,
    /// When the next one was up.
    pub until: Timestamp,
}

/// What a call for offers found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeasedOffers {
    /// Those for workers, the ones that have waited longest first.
    pub rows: Vec<Leased>,
    /// Those that are leased to the host, in the same order.
    pub lost: Vec<LostOffer>,
    /// When the first of the queue's other rows can be leased. That may be in the past, if a limit held rows back.
    pub next: Option<Timestamp>,
}

/// A row that no worker gets again. It is leased to the host, which ends the attempt under that lease. If the host does
/// not, the row is found again when the lease ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostOffer {
    pub leased: Leased,
    /// How many leases of workers ended with no outcome.
    pub n_lost: u32,
}

/// What becomes of the lease of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferThen {
    /// It lasts until this time, even if it has expired.
    Renew(Timestamp),
    /// It ends as if no worker had got it: the row can be leased from this time on, and the lease does not count.
    /// Until the row is leased again, an outcome with its fence still counts.
    GiveBack(Timestamp),
}

/// A worker queue with rows in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedQueue {
    pub queue: String,
    /// Rows that can be leased, at most the queue's share of [`MOST_COUNTED`].
    pub waiting: u64,
    /// Rows that are leased, at most the queue's share of [`MOST_COUNTED`].
    pub leased: u64,
    /// Since when the first of the waiting rows can be leased.
    pub oldest: Option<Timestamp>,
}

/// Leases of work by programs outside this host.
#[async_trait]
pub trait Offers: Send + Sync + 'static {
    /// Leases rows of a worker queue that wait in it or whose lease has expired, the longest waiting first. All of
    /// them are leased in one write. Rows of a quarantined run are passed over. Rows that have lost
    /// [`OfferRequest::max_lost`] leases are leased to the host, and that lease is not counted.
    ///
    /// Where processes share the store, two calls at the same moment may together exceed the limits on rows that are
    /// leased at once, because neither sees what the other takes.
    async fn lease_offers(&self, request: &OfferRequest) -> Result<LeasedOffers, WriteError>;

    /// Renews a lease or gives it back. Returns `false` and changes nothing if the lease is lost: the row was leased
    /// again, set again or removed.
    async fn set_offer(
        &self,
        run: &RunKey,
        key: &WorkKey,
        fence: Fence,
        then: OfferThen,
    ) -> Result<bool, WriteError>;

    /// Lists at most `limit` worker queues of a tenant that have rows, after the given name, in the order of names.
    /// The counts of each stop at [`MOST_COUNTED`] divided by the number of queues listed, and at 1 at least.
    async fn offered_queues(
        &self,
        tenant: &TenantId,
        now: Timestamp,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<OfferedQueue>, ReadError>;
}

impl Outage {
    /// Whether a lease that ended at this time is none of the lost ones.
    #[must_use]
    pub fn contains(&self, at: Timestamp) -> bool {
        self.after < at && at <= self.until
    }
}

impl OfferThen {
    /// The column `ready`, and whether the lease does not count.
    pub(crate) const fn columns(self) -> (Timestamp, bool) {
        match self {
            Self::Renew(until) => (until, false),
            Self::GiveBack(ready) => (ready, true),
        }
    }
}

impl LeasedOffers {
    /// Adds a row that was leased after so many leases were lost.
    pub(crate) fn add(&mut self, request: &OfferRequest, leased: Leased, n_lost: u32) {
        if n_lost < request.max_lost {
            self.rows.push(leased);
        } else {
            self.lost.push(LostOffer { leased, n_lost });
        }
    }
}

impl OfferRequest {
    /// The rows to lease at most, where so many of the queue and of the tenant are leased.
    pub(crate) fn room(&self, of_queue: usize, of_tenant: usize) -> usize {
        let left =
            |most: Option<usize>, held: usize| most.map_or(usize::MAX, |most| most.saturating_sub(held));
        let queue = left(self.most_of_queue, of_queue);
        let tenant = left(self.most_of_tenant, of_tenant);
        self.rows.min(queue).min(tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_queues_share_the_rows_that_are_counted() {
        let most = [0, 1, 4, 1_000, 20_000].map(most_counted);
        assert_eq!(most, [10_000, 10_000, 2_500, 10, 1]);
    }
}
