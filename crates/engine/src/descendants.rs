//! How far trees of runs may grow.
//!
//! The count is in the row of the root, where all processes see it. They take from it in blocks, so that most children
//! cost no write of their own: a tree never has more than was granted, and what a process took and did not use when it
//! died, less than a block, is lost to the tree. The children of a root's very first decision are not counted, as the
//! row is not there yet; a decision has few.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use wopr_core::{RunId, RunKey, TenantId};

use crate::{CommandError, Engine, committing::Failed, slots::Held};

/// Runs granted at once, unless more are wanted.
const BLOCK: u64 = 32;
/// Roots remembered. A tenant that has its share of them loses what was granted to its oldest.
const MAX_ROOTS: usize = 4_096;

/// What was granted to this process and not used yet.
#[derive(Debug, Default)]
pub(crate) struct Descendants(Mutex<Granted>);

#[derive(Debug, Default)]
struct Granted {
    held: Held,
    of: HashMap<TenantId, BTreeMap<RunId, u64>>,
}

impl Granted {
    fn remove(&mut self, root: &RunKey) -> Option<u64> {
        let roots = self.of.get_mut(&root.tenant)?;
        let n = roots.remove(&root.run)?;
        if roots.is_empty() {
            self.of.remove(&root.tenant);
        }
        self.held.remove(&root.tenant, 1);
        Some(n)
    }

    fn add(&mut self, root: RunKey, n: u64) {
        let roots = self.of.get_mut(&root.tenant);
        if let Some(left) = roots.and_then(|roots| roots.get_mut(&root.run)) {
            *left += n;
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
        self.of.entry(root.tenant).or_default().insert(root.run, n);
    }
}

impl Descendants {
    /// Takes all there is.
    fn take(&self, root: &RunKey) -> u64 {
        self.0.lock().remove(root).unwrap_or(0)
    }

    fn put(&self, root: RunKey, n: u64) {
        if n > 0 {
            self.0.lock().add(root, n);
        }
    }
}

/// What one decision may use. What it has not used when it is dropped goes back.
#[derive(Debug)]
pub(crate) struct Allowance {
    engine: Engine,
    run: RunKey,
    /// A run that is not created yet has no row to count in.
    is_first: bool,
    state: Mutex<State>,
    wanted: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    root: Option<RunKey>,
    left: u64,
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

    /// Takes one.
    pub(crate) fn admits(&self, root: &RunId) -> bool {
        if self.is_first && *root == self.run.run {
            return true;
        }
        let mut state = self.state.lock();
        if state.root.is_none() {
            let root = self.run.sibling(root.clone());
            state.left = self.engine.shared.descendants.take(&root);
            state.root = Some(root);
        }
        if state.left == 0 {
            self.wanted.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        state.left -= 1;
        state.used += 1;
        true
    }

    /// Claims that the decision lacked some.
    pub(crate) fn is_short(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// Asks for what a decision lacked; whether there is more now, so that it is to be made again.
    pub(crate) async fn grow(&self) -> Result<bool, CommandError> {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let root = self.state.lock().root.clone();
        let (Some(root), true) = (root, wanted > 0) else {
            return Ok(false);
        };
        let shared = &self.engine.shared;
        let most = shared.options.max_descendants;
        let granted = shared.store.grant(&root, wanted.max(BLOCK), most).await?;
        self.state.lock().left += granted;
        Ok(granted > 0)
    }

    /// Notes whether the decision was committed. One in doubt may have been.
    pub(crate) fn conclude<T>(&self, committed: &Result<T, Failed>) {
        match committed {
            Ok(_) | Err(Failed::InDoubt(_)) => self.state.lock().used = 0,
            Err(Failed::Conflict | Failed::Replayed(_) | Failed::Error(_)) => {}
        }
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        let State { root, left, used } = std::mem::take(self.state.get_mut());
        if let Some(root) = root {
            self.engine.shared.descendants.put(root, left + used);
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
    fn a_tenant_of_many_trees_loses_only_grants_of_its_own() {
        let granted = Descendants::default();
        granted.put(root("modest", 0), 31);
        for n in 0..2 * MAX_ROOTS {
            granted.put(root("greedy", n), 1);
        }
        granted.put(root("greedy", 2 * MAX_ROOTS - 1), 2);
        granted.put(root("later", 0), 5);
        assert_eq!(granted.take(&root("modest", 0)), 31);
        assert_eq!(granted.take(&root("later", 0)), 5);
        assert_eq!(granted.take(&root("greedy", 0)), 0);
        assert_eq!(granted.take(&root("greedy", 2 * MAX_ROOTS - 1)), 3);
        let n_left = granted.0.lock().of.values().map(BTreeMap::len).sum::<usize>();
        assert!((MAX_ROOTS / 2..MAX_ROOTS).contains(&n_left), "{n_left}");
    }
}
