//! Cache of compiled old versions of workflows, which runs are pinned to.
//!
//! An evicted version is compiled again when a run needs it. The memory is shared between tenants. One tenant
//! may take half of it; beyond that, its own least recently used versions are evicted. If the total is
//! exceeded, the tenant that takes the most is evicted from.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use wopr_core::{ContentHash, Plan, TenantId, WorkflowId};

/// Maximum bytes of all cached versions.
const MAX_BYTES: usize = 64 << 20;
/// Maximum bytes of one tenant's versions.
const MAX_TENANT_BYTES: usize = MAX_BYTES / 2;
/// Minimum size a version counts with, to limit the number of small ones.
const LEAST_BYTES: usize = 16 << 10;

pub(crate) type Version = (TenantId, WorkflowId, ContentHash);

#[derive(Debug, Default)]
pub(crate) struct Pinned(Mutex<Kept<Arc<Plan>>>);

impl Pinned {
    pub(crate) fn get(&self, version: &Version) -> Option<Arc<Plan>> {
        self.0.lock().get(version).map(Arc::clone)
    }

    /// Caches a version of this size, if it is not too large.
    pub(crate) fn keep(&self, version: Version, plan: Arc<Plan>, n_bytes: usize) {
        self.0.lock().keep(version, plan, n_bytes);
    }
}

#[derive(Debug)]
struct Kept<T> {
    entries: HashMap<Version, Entry<T>>,
    of_tenants: HashMap<TenantId, usize>,
    n_bytes: usize,
    /// Grows with each use.
    now: u64,
}

#[derive(Debug)]
struct Entry<T> {
    kept: T,
    n_bytes: usize,
    used: u64,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            of_tenants: HashMap::new(),
            n_bytes: 0,
            now: 0,
        }
    }
}

impl<T> Kept<T> {
    fn get(&mut self, version: &Version) -> Option<&T> {
        self.now += 1;
        let entry = self.entries.get_mut(version)?;
        entry.used = self.now;
        Some(&entry.kept)
    }

    fn keep(&mut self, version: Version, kept: T, n_bytes: usize) {
        let n_bytes = n_bytes.max(LEAST_BYTES);
        if n_bytes > MAX_TENANT_BYTES {
            return;
        }
        self.remove(&version);
        while self.of(&version.0) + n_bytes > MAX_TENANT_BYTES {
            self.drop_oldest(&version.0);
        }
        while self.n_bytes + n_bytes > MAX_BYTES {
            let tenants = self.of_tenants.iter();
            let most = tenants.max_by_key(|(tenant, n_bytes)| (**n_bytes, *tenant));
            let Some(tenant) = most.map(|(tenant, _)| tenant.clone()) else {
                break;
            };
            self.drop_oldest(&tenant);
        }
        self.now += 1;
        self.n_bytes += n_bytes;
        *self.of_tenants.entry(version.0.clone()).or_default() += n_bytes;
        let used = self.now;
        let entry = Entry { kept, n_bytes, used };
        self.entries.insert(version, entry);
    }

    fn of(&self, tenant: &TenantId) -> usize {
        self.of_tenants.get(tenant).copied().unwrap_or(0)
    }

    /// Evicts the tenant's least recently used version.
    fn drop_oldest(&mut self, tenant: &TenantId) {
        let own = self.entries.iter().filter(|((owner, ..), _)| owner == tenant);
        let oldest = own.min_by_key(|(_, entry)| entry.used);
        match oldest.map(|(version, _)| version.clone()) {
            Some(version) => self.remove(&version),
            None => drop(self.of_tenants.remove(tenant)),
        }
    }

    fn remove(&mut self, version: &Version) {
        let Some(entry) = self.entries.remove(version) else {
            return;
        };
        self.n_bytes -= entry.n_bytes;
        if let Some(n_bytes) = self.of_tenants.get_mut(&version.0) {
            *n_bytes -= entry.n_bytes;
            if *n_bytes == 0 {
                self.of_tenants.remove(&version.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(tenant: &str, n: usize) -> Version {
        (
            TenantId::parse(tenant).expect("valid"),
            WorkflowId::parse("w").expect("valid"),
            ContentHash::of(n.to_string().as_bytes()),
        )
    }

    #[test]
    fn a_tenant_over_its_share_evicts_its_own_versions() {
        let mut kept = Kept::default();
        kept.keep(version("b", 0), (), 10 << 20);
        for n in 0..100 {
            kept.keep(version("a", n), (), 10 << 20);
        }
        assert!(kept.get(&version("b", 0)).is_some());
        assert_eq!((kept.entries.len(), kept.n_bytes), (4, 40 << 20));
        // The most recently used version is kept.
        assert!(kept.get(&version("a", 97)).is_some());
        kept.keep(version("a", 100), (), 10 << 20);
        assert!(kept.get(&version("a", 97)).is_some() && kept.get(&version("a", 98)).is_none());
    }

    #[test]
    fn the_largest_tenant_is_evicted_from_first() {
        let mut kept = Kept::default();
        for n in 0..3 {
            kept.keep(version("a", n), (), 10 << 20);
        }
        for (tenant, n) in [("b", 0), ("c", 0), ("d", 0), ("e", 0)] {
            kept.keep(version(tenant, n), (), 10 << 20);
        }
        assert!(kept.get(&version("a", 0)).is_none() && kept.get(&version("b", 0)).is_some());
        assert!(kept.n_bytes <= MAX_BYTES);
        kept.keep(version("f", 0), (), MAX_TENANT_BYTES + 1);
        assert!(kept.get(&version("f", 0)).is_none());
        for n in 0..3_000 {
            kept.keep(version("g", n), (), 0);
        }
        assert!(kept.entries.len() < 2_100 && kept.n_bytes <= MAX_BYTES);
    }
}
