//! How many tasks match a filter, remembered until a task of the tenant changes.
//!
//! A page of tasks says how many there are in all, and counting them takes time in proportion to their number. Whoever
//! counts takes a [`Mark`] before the moment as of which it reads; a total is kept only if nothing changed since. A change
//! is noted after its commit and before its caller knows of it, so nobody is told a total from before a change they know.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use wopr_core::TenantId;

use crate::TaskFilter;

/// Tenants whose totals are remembered. When there are more, all are forgotten.
const MAX_TENANTS: usize = 1_024;
/// Totals of a tenant that are remembered. When there are more, all of its are forgotten.
const MAX_TOTALS: usize = 64;

#[derive(Debug, Clone, Default)]
pub(super) struct Totals(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    tenants: HashMap<TenantId, Tenant>,
    /// Grows whenever a tenant is looked at anew or changes: no two states of one have the same number.
    last: u64,
}

#[derive(Debug)]
struct Tenant {
    changed: u64,
    totals: HashMap<TaskFilter, u64>,
}

/// The state of a tenant's tasks at some moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark(u64);

/// Notes a change when dropped.
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
    /// The total, if it is known; what to count with, if not.
    pub(super) fn find(&self, tenant: &TenantId, filter: &TaskFilter) -> Result<u64, Mark> {
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

    /// Remembers a total that was counted.
    pub(super) fn keep(&self, tenant: &TenantId, filter: TaskFilter, mark: Mark, total: u64) {
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

    /// A task of a tenant changed, or may have.
    pub(super) fn changed(&self, tenant: &TenantId) {
        let mut state = self.0.lock();
        state.last += 1;
        let last = state.last;
        if let Some(known) = state.tenants.get_mut(tenant) {
            known.changed = last;
            known.totals.clear();
        }
    }

    /// Notes a change once it is over, whatever becomes of whoever asked for it.
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
    fn a_total_is_known_until_something_of_its_tenant_changes() {
        let [acme, other] = ["acme", "other"].map(|name| TenantId::parse(name).expect("valid"));
        let (totals, all) = (Totals::default(), TaskFilter::default());
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
