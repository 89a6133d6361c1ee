//! Limits the size of run trees.
//!
//! The count lives in the row of the root, where all processes see it, and counts reservations: a tree never exceeds its
//! limit, whoever crashes. The first decision of a root counts its children in the append that creates the row. Later
//! ones take from what their process has reserved. They take only what they need, and what a process reserves beyond
//! that is a block, so most children need no extra write. The blocks of a tree that goes on growing double, up to a share
//! of the limit. If a process dies, the unused rest of its block is lost to the tree.
//!
//! A decision that lacks descendants is repeated with those that it lacked. If the row has none left, it first waits for
//! the decisions of this process that hold some, because they may give them back. It is refused children only when
//! nobody here holds any. Those that wait form a queue, and only the first of them holds descendants, so no two wait for
//! each other.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use wopr_core::{RunId, RunKey, TenantId};

use crate::{CommandError, Engine, committing::Failed, slots::Held};

/// The first block of a tree.
const BLOCK: u64 = 32;
/// A block is at most this part of the limit, so that a process does not withhold the rest of a tree from others.
const PART: u64 = 64;
/// Maximum roots remembered. A tenant that exceeds its share loses the reservation of its oldest root that no decision
/// uses.
const MAX_ROOTS: usize = 4_096;

/// Descendants reserved by this process and not used yet.
#[derive(Debug, Default)]
pub(crate) struct Descendants(Mutex<Granted>);

#[derive(Debug, Default)]
struct Granted {
    held: Held,
    of: HashMap<TenantId, BTreeMap<RunId, Tree>>,
}

/// What is reserved for one tree.
#[derive(Debug, Default)]
struct Tree {
    /// Held by no decision.
    left: u64,
    /// Held by decisions under way.
    out: u64,
    /// The size of the last block, if there was one.
    block: u64,
    /// The row of the root counts as many as the limit allows.
    is_full: bool,
    /// Decisions under way that have asked for a child.
    n_decisions: usize,
    /// The first decision of the queue waits for others, and the next descendants that they give back are for it.
    is_awaited: bool,
    queue: Arc<tokio::sync::Mutex<()>>,
    /// Notified when a decision holds fewer than before.
    freed: Arc<Notify>,
}

impl Tree {
    /// The size of the next block.
    fn next_block(&self, most: u64) -> u64 {
        let most = (most / PART).max(1);
        match self.block {
            0 => BLOCK.min(most),
            block => block.saturating_mul(2).min(most),
        }
    }

    fn take(&mut self, n: u64) -> u64 {
        let n = n.min(self.left);
        self.left -= n;
        self.out += n;
        n
    }

    /// Takes descendants out of a decision's hands: `spent` of them are runs now.
    fn free(&mut self, spent: u64, unused: u64) {
        self.out = self.out.saturating_sub(spent + unused);
        self.left += unused;
        if spent + unused > 0 {
            self.freed.notify_waiters();
        }
    }
}

impl Granted {
    fn tree(&mut self, root: &RunKey) -> Option<&mut Tree> {
        self.of.get_mut(&root.tenant)?.get_mut(&root.run)
    }

    fn remove(&mut self, root: &RunKey) {
        let Some(roots) = self.of.get_mut(&root.tenant) else {
            return;
        };
        if roots.remove(&root.run).is_some() {
            if roots.is_empty() {
                self.of.remove(&root.tenant);
            }
            self.held.remove(&root.tenant, 1);
        }
    }

    fn tree_or_new(&mut self, root: &RunKey) -> &mut Tree {
        let is_known = self.tree(root).is_some();
        if !is_known {
            if !self.held.has_room(MAX_ROOTS, &root.tenant, 1) {
                let mut roots = self.of.get(&root.tenant).into_iter().flatten();
                let oldest = roots.find(|(_, tree)| tree.n_decisions == 0);
                // Without one, there are as many more as decisions under way, of which the host bounds the number.
                if let Some(oldest) = oldest.map(|(run, _)| root.sibling(run.clone())) {
                    self.remove(&oldest);
                }
            }
            self.held.add(&root.tenant, 1);
        }
        let roots = self.of.entry(root.tenant.clone()).or_default();
        roots.entry(root.run.clone()).or_default()
    }
}

impl Descendants {
    /// Registers a decision of the tree.
    fn join(&self, root: &RunKey) {
        self.0.lock().tree_or_new(root).n_decisions += 1;
    }

    /// Ends what [`Self::join`] began.
    fn leave(&self, root: &RunKey) {
        let mut granted = self.0.lock();
        if let Some(tree) = granted.tree(root) {
            tree.n_decisions -= 1;
            if tree.n_decisions == 0 && tree.block == 0 && tree.left == 0 {
                granted.remove(root);
            }
        }
    }

    /// Takes one for a decision that joined, unless another one waits for them.
    fn take_one(&self, root: &RunKey) -> bool {
        let mut granted = self.0.lock();
        let tree = granted.tree(root).filter(|tree| !tree.is_awaited);
        tree.is_some_and(|tree| tree.take(1) == 1)
    }

    /// Does something with a tree that a decision joined.
    fn with<T>(&self, root: &RunKey, act: impl FnOnce(&mut Tree) -> T) -> T {
        act(self.0.lock().tree_or_new(root))
    }
}

/// While it exists, what decisions of the tree give back is for the one that waits.
struct Awaiting<'d>(&'d Descendants, RunKey);

impl<'d> Awaiting<'d> {
    fn new(descendants: &'d Descendants, root: &RunKey) -> Self {
        descendants.with(root, |tree| tree.is_awaited = true);
        Self(descendants, root.clone())
    }
}

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        self.0.with(&self.1, |tree| tree.is_awaited = false);
    }
}

/// The descendants that one decision may create, however often it is repeated. Dropping it returns the unused ones.
#[derive(Debug)]
pub(crate) struct Allowance {
    engine: Engine,
    run: RunKey,
    /// The run has no row yet that could count.
    is_first: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    root: Option<RunKey>,
    /// Taken, and not used by the decision.
    spare: u64,
    used: u64,
    /// The children of a root's first decision.
    first: u64,
    /// How many children the decision was refused that it may yet get.
    refused: u64,
    /// There are no more than it holds.
    is_final: bool,
}

impl Allowance {
    pub(crate) fn new(engine: &Engine, run: &RunKey, is_first: bool) -> Self {
        Self {
            engine: engine.clone(),
            run: run.clone(),
            is_first,
            state: Mutex::default(),
        }
    }

    /// The decision is made, perhaps not for the first time.
    pub(crate) fn begin(&self) {
        let mut state = self.state.lock();
        state.spare += std::mem::take(&mut state.used);
        (state.first, state.refused) = (0, 0);
    }

    pub(crate) fn admits(&self, root: &RunId) -> bool {
        let shared = &self.engine.shared;
        let mut state = self.state.lock();
        if self.is_first && *root == self.run.run {
            let is_admitted = state.first < shared.options.max_descendants;
            state.first += u64::from(is_admitted);
            return is_admitted;
        }
        let root = match &state.root {
            Some(root) => root.clone(),
            None => {
                let root = self.run.sibling(root.clone());
                shared.descendants.join(&root);
                state.root.insert(root).clone()
            }
        };
        if state.spare > 0 {
            state.spare -= 1;
        } else if !shared.descendants.take_one(&root) {
            state.refused += 1;
            return false;
        }
        state.used += 1;
        true
    }

    /// Returns `true` if a child was refused that may be admitted after [`Self::grow`].
    pub(crate) fn is_short(&self) -> bool {
        let state = self.state.lock();
        state.refused > 0 && !state.is_final
    }

    /// Obtains what the decision lacked, as far as there is any. Returns `true` if the decision is to be repeated.
    ///
    /// # Errors
    /// The root's row cannot be written.
    ///
    /// # Cancel safety
    /// Whatever was reserved is remembered.
    pub(crate) async fn grow(&self) -> Result<bool, CommandError> {
        let shared = &self.engine.shared;
        let (root, used, needed) = {
            let state = self.state.lock();
            match &state.root {
                Some(root) if state.refused > 0 => (root.clone(), state.used, state.used + state.refused),
                Some(_) | None => return Ok(false),
            }
        };
        let descendants = &shared.descendants;
        let (queue, freed) =
            descendants.with(&root, |tree| (Arc::clone(&tree.queue), Arc::clone(&tree.freed)));
        let _turn = match queue.try_lock() {
            Ok(turn) => turn,
            Err(_) => {
                // Whoever is before it may wait for them.
                self.release(0);
                queue.lock().await
            }
        };
        let most = shared.options.max_descendants;
        let mut awaiting = None;
        loop {
            let mut changed = std::pin::pin!(freed.notified());
            changed.as_mut().enable();
            let (has, n_others) = self.take_up_to(&root, needed);
            let (is_full, block) = descendants.with(&root, |tree| (tree.is_full, tree.next_block(most)));
            if has >= needed {
                if !is_full {
                    // It may want more now that it goes on. With as many again, it is not repeated often.
                    self.take_up_to(&root, needed + used);
                }
                return Ok(true);
            }
            if !is_full {
                let asked = needed - has + block;
                let granted = shared.store.grant(&root, asked, most).await?;
                descendants.with(&root, |tree| {
                    tree.left += granted;
                    tree.block = block;
                    tree.is_full = granted < asked;
                });
            } else if n_others == 0 {
                // Nobody has any to give back, so the next decision is the last. With fewer than this one has used, it
                // cannot stay as it is either.
                let mut state = self.state.lock();
                state.is_final = true;
                if has == used {
                    (state.spare, state.used) = (0, used);
                }
                return Ok(has != used);
            } else {
                awaiting.get_or_insert_with(|| Awaiting::new(descendants, &root));
                changed.await;
            }
        }
    }

    /// Takes until the decision holds `n`. Returns how many it holds, and how many other decisions hold.
    fn take_up_to(&self, root: &RunKey, n: u64) -> (u64, u64) {
        let mut state = self.state.lock();
        let has = state.spare + state.used;
        self.engine.shared.descendants.with(root, |tree| {
            let more = tree.take(n.saturating_sub(has));
            state.spare += more;
            (has + more, tree.out.saturating_sub(has + more))
        })
    }

    /// Gives back what the decision holds, except those that have become runs.
    fn release(&self, spent: u64) {
        let mut state = self.state.lock();
        let held = std::mem::take(&mut state.spare) + std::mem::take(&mut state.used);
        if let Some(root) = &state.root {
            let unused = held.saturating_sub(spent);
            self.engine
                .shared
                .descendants
                .with(root, |tree| tree.free(spent, unused));
        }
    }

    /// Marks the used descendants as spent if the decision committed, or may have, and gives back the others.
    pub(crate) fn conclude<T>(&self, committed: &Result<T, Failed>) {
        let spent = match committed {
            Ok(_) | Err(Failed::InDoubt(_)) => self.state.lock().used,
            Err(Failed::Conflict | Failed::Replayed(_) | Failed::Error(_)) => 0,
        };
        self.release(spent);
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.release(0);
        if let Some(root) = &self.state.get_mut().root {
            self.engine.shared.descendants.leave(root);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, task::Poll};

    use wopr_core::{ContentHash, PrincipalId, Timestamp, WorkflowId};
    use wopr_store::{Batch, Guard, Log as _, MemoryStore, Summary};

    use super::*;
    use crate::{Options, SystemClock, decision_pool::tests::Nobody};

    fn root_of(tenant: &str, n: usize) -> RunKey {
        let tenant = TenantId::parse(tenant).expect("valid");
        let at = Timestamp::from_millis(i64::try_from(n).expect("small"));
        RunKey::new(tenant, RunId::from_parts(at, [0; 10]))
    }

    fn reserve(descendants: &Descendants, root: &RunKey, left: u64) {
        descendants.with(root, |tree| {
            tree.left += left;
            tree.block = BLOCK;
        });
    }

    fn left(descendants: &Descendants, root: &RunKey) -> Option<u64> {
        descendants.0.lock().tree(root).map(|tree| tree.left)
    }

    #[test]
    fn blocks_double_up_to_a_part_of_the_limit() {
        for (most, sizes) in [
            (20_000, [32, 64, 128, 256, 312, 312]),
            (6_400, [32, 64, 100, 100, 100, 100]),
            (500, [7; 6]),
            (10, [1; 6]),
        ] {
            let mut tree = Tree::default();
            let blocks = [(); 6].map(|()| {
                tree.block = tree.next_block(most);
                tree.block
            });
            assert_eq!(blocks, sizes, "{most}");
        }
    }

    #[test]
    fn a_tenant_with_many_trees_loses_only_its_own_grants() {
        let granted = Descendants::default();
        reserve(&granted, &root_of("modest", 0), 31);
        // A tree that a decision uses is kept.
        granted.join(&root_of("greedy", 0));
        for n in 0..2 * MAX_ROOTS {
            reserve(&granted, &root_of("greedy", n), 1);
        }
        reserve(&granted, &root_of("greedy", 2 * MAX_ROOTS - 1), 2);
        reserve(&granted, &root_of("later", 0), 5);
        assert_eq!(left(&granted, &root_of("modest", 0)), Some(31));
        assert_eq!(left(&granted, &root_of("later", 0)), Some(5));
        assert_eq!(left(&granted, &root_of("greedy", 0)), Some(1));
        assert_eq!(left(&granted, &root_of("greedy", 1)), None);
        assert_eq!(left(&granted, &root_of("greedy", 2 * MAX_ROOTS - 1)), Some(3));
        let n_left = granted.0.lock().of.values().map(BTreeMap::len).sum::<usize>();
        assert!((MAX_ROOTS / 2..MAX_ROOTS).contains(&n_left), "{n_left}");
    }

    /// An engine with the row of a tree that may have ten descendants, and the key of its root.
    async fn tree_of_ten() -> (Engine, RunKey) {
        let store = Arc::new(MemoryStore::new());
        let options = Options {
            max_descendants: 10,
            ..Options::default()
        };
        let root = root_of("acme", 1);
        let principal = PrincipalId::parse("p").expect("valid");
        let workflow = WorkflowId::parse("w").expect("valid");
        let at = Timestamp::from_millis(1);
        let summary = Summary::new(workflow, ContentHash::of(b"w"), principal, at);
        let batch = Batch::new(root.clone(), Guard::Create, Vec::new(), summary);
        store.append(batch).await.expect("appends");
        let engine = Engine::start(store, Arc::new(Nobody), Arc::new(SystemClock), options).await;
        (engine.expect("starts"), root)
    }

    /// A decision of the tree that wants `n` children, repeated until it has them or is refused some.
    async fn decide(engine: &Engine, root: &RunKey, of: usize, n: u64) -> (Allowance, u64) {
        let allowance = Allowance::new(engine, &root_of("acme", of), false);
        loop {
            allowance.begin();
            let n_admitted = (0..n).filter(|_| allowance.admits(&root.run)).count() as u64;
            if !allowance.is_short() || !allowance.grow().await.expect("grows") {
                return (allowance, n_admitted);
            }
        }
    }

    const COMMITTED: Result<(), Failed> = Ok(());
    const LOST: Result<(), Failed> = Err(Failed::Conflict);

    #[tokio::test]
    async fn a_decision_takes_only_what_it_needs() {
        let (engine, root) = tree_of_ten().await;
        let (first, n) = decide(&engine, &root, 2, 4).await;
        assert_eq!(n, 4);
        // Made while the first is under way.
        let (second, n) = decide(&engine, &root, 3, 6).await;
        assert_eq!(n, 6);
        first.conclude(&COMMITTED);
        second.conclude(&COMMITTED);
        assert_eq!(decide(&engine, &root, 4, 1).await.1, 0);
        engine.stop().await;
    }

    #[tokio::test]
    async fn a_decision_waits_for_those_that_others_may_give_back() {
        for (committed, rest) in [(&LOST, 5), (&COMMITTED, 4)] {
            let (engine, root) = tree_of_ten().await;
            let (first, n) = decide(&engine, &root, 2, 6).await;
            assert_eq!(n, 6);
            let mut second = pin!(decide(&engine, &root, 3, 5));
            let mut third = pin!(decide(&engine, &root, 4, 5));
            poll_fn(|cx| {
                assert!(second.as_mut().poll(cx).is_pending());
                assert!(third.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            first.conclude(committed);
            let (second, n) = second.await;
            assert_eq!(n, rest);
            second.conclude(&COMMITTED);
            let (third, n) = third.await;
            assert_eq!(n, if rest == 5 { 5 } else { 0 });
            third.conclude(&COMMITTED);
            // All of them are runs now, whatever the decisions wanted.
            assert_eq!(engine.shared.store.grant(&root, 1, 10).await.expect("grants"), 0);
            engine.stop().await;
        }
    }

    #[tokio::test]
    async fn the_first_decision_of_a_root_stops_at_the_limit() {
        let (engine, _) = tree_of_ten().await;
        let key = root_of("acme", 9);
        let allowance = Allowance::new(&engine, &key, true);
        for _ in 0..2 {
            allowance.begin();
            assert_eq!((0..12).filter(|_| allowance.admits(&key.run)).count(), 10);
        }
        assert!(!allowance.is_short());
        engine.stop().await;
    }
}
