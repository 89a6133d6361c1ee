//! Limits the size of run trees.
//!
//! The count lives in the row of the root, where all processes see it. Processes reserve descendants in
//! blocks, so most children need no extra write. The blocks of a tree that goes on growing double, up to a share of the
//! limit. A tree never exceeds its limit; if a process dies, the unused rest of its block, less than one block, is lost
//! to the tree. The children of a root's very first
//! decision are not counted, because the row does not exist yet; one decision creates few.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use wopr_core::{RunId, RunKey, TenantId};

use crate::{CommandError, Engine, committing::Failed, slots::Held};

/// Descendants reserved at once at first, unless the decision needs more.
const BLOCK: u64 = 32;
/// A block is at most this part of the limit, but never less than [`BLOCK`], so that a process does not withhold the rest
/// of a tree from others.
const PART: u64 = 16;
/// Maximum roots remembered. A tenant that exceeds its share loses the reservation of its oldest root.
const MAX_ROOTS: usize = 4_096;

/// Descendants reserved by this process and not used yet.
#[derive(Debug, Default)]
pub(crate) struct Descendants(Mutex<Granted>);

#[derive(Debug, Default)]
struct Granted {
    held: Held,
    of: HashMap<TenantId, BTreeMap<RunId, Reserved>>,
}

/// What is reserved for one tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Reserved {
    left: u64,
    /// The size of the last block, if there was one.
    block: u64,
}

impl Reserved {
    /// The size of the next block.
    const fn next_block(self, most: u64) -> u64 {
        let most = if most / PART > BLOCK { most / PART } else { BLOCK };
        match self.block {
            0 => BLOCK,
            block if block > most / 2 => most,
            block => 2 * block,
        }
    }
}

impl Granted {
    fn remove(&mut self, root: &RunKey) -> Option<Reserved> {
        let roots = self.of.get_mut(&root.tenant)?;
        let reserved = roots.remove(&root.run)?;
        if roots.is_empty() {
            self.of.remove(&root.tenant);
        }
        self.held.remove(&root.tenant, 1);
        Some(reserved)
    }

    fn add(&mut self, root: RunKey, reserved: Reserved) {
        let roots = self.of.get_mut(&root.tenant);
        if let Some(known) = roots.and_then(|roots| roots.get_mut(&root.run)) {
            known.left += reserved.left;
            known.block = known.block.max(reserved.block);
            return;
        }
        if !self.held.has_room(MAX_ROOTS, &root.tenant, 1) {
            let roots = self.of.get(&root.tenant);
            let Some(oldest) = roots.and_then(|roots| roots.keys().next()).cloned() else {
                return;
            };
            self.remove(&root.sibling(oldest));
        }
        self.held.add(&root.tenant, 1);
        self.of.entry(root.tenant).or_default().insert(root.run, reserved);
    }
}

impl Descendants {
    /// Takes everything that is reserved for the root.
    fn take(&self, root: &RunKey) -> Reserved {
        self.0.lock().remove(root).unwrap_or_default()
    }

    fn put(&self, root: RunKey, reserved: Reserved) {
        if reserved != Reserved::default() {
            self.0.lock().add(root, reserved);
        }
    }
}

/// The descendants one decision may create. Dropping it returns the unused ones.
#[derive(Debug)]
pub(crate) struct Allowance {
    engine: Engine,
    run: RunKey,
    /// The run has no row yet that could count.
    is_first: bool,
    state: Mutex<State>,
    wanted: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    root: Option<RunKey>,
    reserved: Reserved,
    used: u64,
}

impl Allowance {
    pub(crate) fn new(engine: &Engine, run: &RunKey, is_first: bool) -> Self {
        Self {
            engine: engine.clone(),
            run: run.clone(),
            is_first,
            state: Mutex::default(),
            wanted: AtomicU64::new(0),
        }
    }

    pub(crate) fn admits(&self, root: &RunId) -> bool {
        if self.is_first && *root == self.run.run {
            return true;
        }
        let mut state = self.state.lock();
        if state.root.is_none() {
            let root = self.run.sibling(root.clone());
            state.reserved = self.engine.shared.descendants.take(&root);
            state.root = Some(root);
        }
        if state.reserved.left == 0 {
            self.wanted.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        state.reserved.left -= 1;
        state.used += 1;
        true
    }

    /// Returns `true` if a child was refused.
    pub(crate) fn is_short(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// Reserves what the decision lacked. Returns `true` if there is more now and the decision is to be
    /// repeated.
    pub(crate) async fn grow(&self) -> Result<bool, CommandError> {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let (root, reserved) = {
            let state = self.state.lock();
            (state.root.clone(), state.reserved)
        };
        let (Some(root), true) = (root, wanted > 0) else {
            return Ok(false);
        };
        let shared = &self.engine.shared;
        let most = shared.options.max_descendants;
        let block = reserved.next_block(most);
        let granted = shared.store.grant(&root, wanted.max(block), most).await?;
        let mut state = self.state.lock();
        state.reserved.left += granted;
        state.reserved.block = block;
        Ok(granted > 0)
    }

    /// Marks the used descendants as spent if the decision committed, or may have.
    pub(crate) fn conclude<T>(&self, committed: &Result<T, Failed>) {
        match committed {
            Ok(_) | Err(Failed::InDoubt(_)) => self.state.lock().used = 0,
            Err(Failed::Conflict | Failed::Replayed(_) | Failed::Error(_)) => {}
        }
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        let State { root, reserved, used } = std::mem::take(self.state.get_mut());
        if let Some(root) = root {
            let left = reserved.left + used;
            self.engine
                .shared
                .descendants
                .put(root, Reserved { left, ..reserved });
        }
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::Timestamp;

    use super::*;

    fn root(tenant: &str, n: usize) -> RunKey {
        let tenant = TenantId::parse(tenant).expect("valid");
        let at = Timestamp::from_millis(i64::try_from(n).expect("small"));
        RunKey::new(tenant, RunId::from_parts(at, [0; 10]))
    }

    #[test]
    fn blocks_double_up_to_a_part_of_the_limit() {
        for (most, sizes) in [
            (20_000, [32, 64, 128, 256]),
            (1_600, [32, 64, 100, 100]),
            (10, [32; 4]),
        ] {
            let mut reserved = Reserved::default();
            let blocks = [(); 4].map(|()| {
                reserved.block = reserved.next_block(most);
                reserved.block
            });
            assert_eq!(blocks, sizes, "{most}");
        }
    }

    #[test]
    fn a_tenant_with_many_trees_loses_only_its_own_grants() {
        let granted = Descendants::default();
        let of = |left| Reserved { left, block: BLOCK };
        granted.put(root("modest", 0), of(31));
        for n in 0..2 * MAX_ROOTS {
            granted.put(root("greedy", n), of(1));
        }
        granted.put(root("greedy", 2 * MAX_ROOTS - 1), of(2));
        granted.put(root("later", 0), of(5));
        assert_eq!(granted.take(&root("modest", 0)).left, 31);
        assert_eq!(granted.take(&root("later", 0)).left, 5);
        assert_eq!(granted.take(&root("greedy", 0)).left, 0);
        assert_eq!(granted.take(&root("greedy", 2 * MAX_ROOTS - 1)).left, 3);
        let n_left = granted.0.lock().of.values().map(BTreeMap::len).sum::<usize>();
        assert!((MAX_ROOTS / 2..MAX_ROOTS).contains(&n_left), "{n_left}");
    }
}
