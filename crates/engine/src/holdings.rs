//! Memory taken by the current workflows of each tenant, and its limits.
//!
//! Current workflows stay compiled permanently. A registration therefore reserves memory before it writes: if
//! two concurrent registrations exceed a limit together, one is refused. Other processes write to the registry
//! too, so workflows read from it are checked against the same limits.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use wopr_core::{ContentHash, TenantId, WorkflowId};

/// The tenant of a workflow; `None` for shared workflows.
pub(crate) type Owner = Option<TenantId>;

/// A limit on the current workflows of one tenant that a registration would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WorkflowLimit {
    #[error("the tenant has {most} workflows, which limits.max_workflows allows; remove one to make room")]
    Workflows { most: usize },
    /// Total size of the parsed definitions and of what they are compiled to, in bytes.
    #[error(
        "the workflows of the tenant would take over {most} bytes of memory, which limits.max_workflow_bytes allows; {taken} are taken; remove a workflow to make room"
    )]
    Bytes {
        most: usize,
        /// Size of the other workflows.
        taken: usize,
    },
}

/// The memory that one version of a workflow takes while it is current.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) owner: Owner,
    pub(crate) id: WorkflowId,
    pub(crate) version: ContentHash,
    /// Size of the parsed definition and of what it is compiled to.
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Holdings {
    max_workflows: usize,
    max_bytes: usize,
    owners: Arc<Mutex<HashMap<Owner, Held>>>,
}

#[derive(Debug, Default)]
struct Held {
    current: HashMap<WorkflowId, (ContentHash, usize)>,
    /// The sum over all current workflows.
    total: usize,
    /// Registrations in progress, each under a unique number.
    reserved: Vec<(u64, Claim)>,
    last: u64,
}

impl Held {
    fn is_current(&self, claim: &Claim) -> bool {
        let current = self.current.get(&claim.id);
        current.is_some_and(|(version, _)| *version == claim.version)
    }
}

/// Memory reserved for a workflow that is being registered, until dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    owners: Arc<Mutex<HashMap<Owner, Held>>>,
    owner: Owner,
    number: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut owners = self.owners.lock();
        if let Some(held) = owners.get_mut(&self.owner) {
            held.reserved.retain(|(number, _)| *number != self.number);
            if held.reserved.is_empty() && held.current.is_empty() {
                owners.remove(&self.owner);
            }
        }
    }
}

impl Holdings {
    pub(crate) fn new(max_workflows: usize, max_bytes: usize) -> Self {
        Self {
            max_workflows,
            max_bytes,
            owners: Arc::default(),
        }
    }

    /// Reserves memory for a workflow, next to current workflows and other registrations in progress.
    pub(crate) fn reserve(&self, claim: Claim) -> Result<Reserved, WorkflowLimit> {
        let mut owners = self.owners.lock();
        let owner = claim.owner.clone();
        let held = owners.entry(owner.clone()).or_default();
        let checked = self.check_within(held, &claim, true);
        if let Err(limit) = checked {
            if held.reserved.is_empty() && held.current.is_empty() {
                owners.remove(&owner);
            }
            return Err(limit);
        }
        held.last += 1;
        let number = held.last;
        held.reserved.push((number, claim));
        Ok(Reserved {
            owners: Arc::clone(&self.owners),
            owner,
            number,
        })
    }

    /// Returns `true` if this version is its owner's current one.
    pub(crate) fn has(&self, claim: &Claim) -> bool {
        let owners = self.owners.lock();
        owners
            .get(&claim.owner)
            .is_some_and(|held| held.is_current(claim))
    }

    /// Checks that a workflow fits next to the current ones.
    pub(crate) fn check(&self, claim: &Claim) -> Result<(), WorkflowLimit> {
        match self.owners.lock().get(&claim.owner) {
            Some(held) => self.check_within(held, claim, false),
            None => self.check_within(&Held::default(), claim, false),
        }
    }

    /// Counts a version as current, replacing the previous version of the workflow.
    pub(crate) fn add(&self, claim: Claim) {
        let mut owners = self.owners.lock();
        let held = owners.entry(claim.owner).or_default();
        if let Some((_, before)) = held.current.insert(claim.id, (claim.version, claim.bytes)) {
            held.total -= before;
        }
        held.total += claim.bytes;
    }

    /// Stops counting a workflow. Returns whether it was counted.
    pub(crate) fn remove(&self, owner: &Owner, id: &WorkflowId) -> bool {
        let mut owners = self.owners.lock();
        let Some(held) = owners.get_mut(owner) else {
            return false;
        };
        let removed = held.current.remove(id);
        if let Some((_, bytes)) = removed {
            held.total -= bytes;
        }
        if held.reserved.is_empty() && held.current.is_empty() {
            owners.remove(owner);
        }
        removed.is_some()
    }

    fn check_within(&self, held: &Held, claim: &Claim, counts_reserved: bool) -> Result<(), WorkflowLimit> {
        let before = held.current.get(&claim.id).map(|(_, bytes)| *bytes);
        let (mut n_workflows, mut taken) = (held.current.len(), held.total);
        taken -= before.unwrap_or_default();
        let (mut is_new, mut own) = (before.is_none(), claim.bytes);
        if counts_reserved {
            for (_, other) in &held.reserved {
                if held.is_current(other) {
                    continue;
                }
                if other.id == claim.id {
                    // Only one of the two versions will be current.
                    own = own.max(other.bytes);
                    if is_new {
                        is_new = false;
                        n_workflows += 1;
                    }
                    continue;
                }
                match held.current.get(&other.id) {
                    Some((_, replaced)) => taken = taken.saturating_sub(*replaced),
                    None => n_workflows += 1,
                }
                taken += other.bytes;
            }
        }
        // A version that takes no more than its predecessor is always accepted.
        let before = before.unwrap_or_default();
        if is_new && n_workflows >= self.max_workflows {
            let most = self.max_workflows;
            return Err(WorkflowLimit::Workflows { most });
        }
        if claim.bytes > before && taken + own > self.max_bytes {
            return Err(WorkflowLimit::Bytes {
                most: self.max_bytes,
                taken,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(owner: &str, id: &str, bytes: usize) -> Claim {
        Claim {
            owner: Some(TenantId::parse(owner).expect("valid")),
            id: WorkflowId::parse(id).expect("valid"),
            version: ContentHash::of(format!("{id} {bytes}").as_bytes()),
            bytes,
        }
    }

    #[test]
    fn concurrent_registrations_share_the_remaining_limit() {
        let holdings = Holdings::new(3, 100);
        holdings.add(claim("a", "w1", 40));
        let first = holdings.reserve(claim("a", "w2", 40)).expect("room");
        assert_eq!(
            holdings.reserve(claim("a", "w3", 40)).err(),
            Some(WorkflowLimit::Bytes { most: 100, taken: 80 })
        );
        // Registering the same workflow twice needs its memory once; another tenant has its own limits.
        drop(holdings.reserve(claim("a", "w2", 40)).expect("room"));
        drop(holdings.reserve(claim("b", "w3", 100)).expect("room"));
        let third = holdings.reserve(claim("a", "w3", 1)).expect("room");
        let fourth = holdings.reserve(claim("a", "w4", 1));
        assert_eq!(fourth.err(), Some(WorkflowLimit::Workflows { most: 3 }));
        drop(third);
        // The workflow is current now, so its reservation no longer counts.
        holdings.add(claim("a", "w2", 40));
        drop(holdings.reserve(claim("a", "w4", 20)).expect("room"));
        drop(first);
        assert!(holdings.reserve(claim("a", "w4", 21)).is_err());
    }

    #[test]
    fn a_removed_workflow_makes_room() {
        let holdings = Holdings::new(1, 10);
        let owner = claim("a", "w1", 10).owner;
        holdings.add(claim("a", "w1", 10));
        assert!(holdings.check(&claim("a", "w2", 10)).is_err());
        let [w1, w2] = ["w1", "w2"].map(|id| WorkflowId::parse(id).expect("valid"));
        assert!(!holdings.remove(&owner, &w2));
        assert!(holdings.remove(&owner, &w1) && !holdings.remove(&owner, &w1));
        assert!(!holdings.has(&claim("a", "w1", 10)));
        drop(holdings.reserve(claim("a", "w2", 10)).expect("room"));
        assert!(holdings.owners.lock().is_empty(), "nothing of the tenant is left");
        // A removal does not release what another registration in progress has reserved.
        holdings.add(claim("a", "w1", 10));
        let again = holdings.reserve(claim("a", "w1", 10)).expect("the same workflow");
        assert!(holdings.remove(&owner, &w1));
        assert!(holdings.reserve(claim("a", "w2", 1)).is_err());
        drop(again);
        drop(holdings.reserve(claim("a", "w2", 1)).expect("room"));
    }

    #[test]
    fn a_smaller_version_is_accepted_beyond_the_limits() {
        let holdings = Holdings::new(1, 10);
        for id in ["w1", "w2"] {
            holdings.add(claim("a", id, 50));
        }
        assert!(holdings.check(&claim("a", "w1", 49)).is_ok());
        assert!(holdings.check(&claim("a", "w1", 51)).is_err());
        assert!(holdings.check(&claim("a", "w3", 1)).is_err());
        holdings.add(claim("a", "w1", 4));
        holdings.add(claim("a", "w2", 4));
        assert!(holdings.check(&claim("a", "w1", 6)).is_ok());
    }
}
