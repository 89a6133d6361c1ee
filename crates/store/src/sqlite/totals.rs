//! Cached counts of runs per filter, valid until a run of the tenant changes its phase.
//!
//! A page of runs by phase states the total number of matches, and counting takes time in proportion to it. A reader
//! takes a [`Mark`] before its transaction begins, and its count is cached only if nothing has changed since.
//! A change is recorded after its commit and before its caller learns of it, so no caller sees a total from
//! before a change it knows of.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use wopr_core::TenantId;

use crate::PhaseFilter;

/// Maximum number of tenants with cached totals. The whole cache is cleared beyond it.
const MAX_TENANTS: usize = 1_024;
/// Maximum number of cached totals of a tenant. All totals of the tenant are cleared beyond it.
const MAX_TOTALS: usize = 64;

#[derive(Debug, Clone, Default)]
pub(super) struct Totals(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    tenants: HashMap<TenantId, Tenant>,
    /// Increases whenever a tenant is added or changes, so that each state of a tenant has its own number.
    last: u64,
}

#[derive(Debug)]
struct Tenant {
    changed: u64,
    totals: HashMap<PhaseFilter, u64>,
}

/// The state of a tenant's runs at some moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark(u64);

/// Records a change when dropped.
#[derive(Debug)]
pub(super) struct Change {
    totals: Totals,
    tenant: TenantId,
}

impl Drop for Change {
    fn drop(&mut self) {
        self.totals.changed(&self.tenant);
    }
}

impl Totals {
    /// Returns the total if it is cached, or else the mark to count with.
    pub(super) fn find(&self, tenant: &TenantId, filter: &PhaseFilter) -> Result<u64, Mark> {
        let mut state = self.0.lock();
        if let Some(known) = state.tenants.get(tenant) {
            return known.totals.get(filter).copied().ok_or(Mark(known.changed));
        }
        if state.tenants.len() >= MAX_TENANTS {
            state.tenants.clear();
        }
        state.last += 1;
        let changed = state.last;
        let known = Tenant {
            changed,
            totals: HashMap::new(),
        };
        state.tenants.insert(tenant.clone(), known);
        Err(Mark(changed))
    }

    /// Caches a total.
    pub(super) fn keep(&self, tenant: &TenantId, filter: PhaseFilter, mark: Mark, total: u64) {
        let mut state = self.0.lock();
        let Some(known) = state.tenants.get_mut(tenant) else {
            return;
        };
        if known.changed == mark.0 {
            if known.totals.len() >= MAX_TOTALS {
                known.totals.clear();
            }
            known.totals.insert(filter, total);
        }
    }

    /// Records that a run of a tenant may have changed its phase.
    pub(super) fn changed(&self, tenant: &TenantId) {
        let mut state = self.0.lock();
        state.last += 1;
        let last = state.last;
        if let Some(known) = state.tenants.get_mut(tenant) {
            known.changed = last;
            known.totals.clear();
        }
    }

    /// Returns a guard that records a change when dropped, even if the caller was cancelled.
    pub(super) fn change(&self, tenant: &TenantId) -> Change {
        Change {
            totals: self.clone(),
            tenant: tenant.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_cached_until_a_run_of_the_tenant_changes() {
        let [acme, other] = ["acme", "other"].map(|name| TenantId::parse(name).expect("valid"));
        let (totals, all) = (Totals::default(), PhaseFilter::default());
        let mark = totals.find(&acme, &all).expect_err("not counted yet");
        totals.keep(&acme, all.clone(), mark, 7);
        assert_eq!(totals.find(&acme, &all).ok(), Some(7));
        drop(totals.change(&other));
        assert_eq!(totals.find(&acme, &all).ok(), Some(7));
        drop(totals.change(&acme));
        let late = totals.find(&acme, &all).expect_err("it changed");
        totals.keep(&acme, all.clone(), mark, 7);
        assert!(
            totals.find(&acme, &all).is_err(),
            "it was counted before the change"
        );
        totals.keep(&acme, all.clone(), late, 8);
        assert_eq!(totals.find(&acme, &all).ok(), Some(8));
    }
}
