//! Retention: deletes expired idempotency records, memories and counts of spending, the
//! versions of removed workflows that no run needs and, if a retention period is set, old run trees.
//!
//! A tree is a run without a parent and all its descendants. It is removed once all its runs have ended and
//! none was appended to for the period. Nothing can change such a tree, so it is safe to read it page by
//! page, and twice: once to check it and once to mark it. A tree disappears atomically, as
//! [`wopr_store::Retention`] promises, and is swept in steps. After each step the loop rests as long as the
//! step took, so removal uses at most half of the store's time. All processes that share a store may do this;
//! any of them finishes what another began, whatever its own settings.
//!
//! Each pass continues where the last one stopped. A tree before that position either had not ended, and
//! moves behind it when it ends, or had ended too recently, and is remembered.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    mem,
    time::Duration,
};

use tokio::time::Instant;
use wopr_core::{RunId, RunKey, TenantId, Timestamp};
use wopr_store::{Child, PhaseCursor, ReadError, Removal, Store, Swept, WriteError};

use crate::{Engine, logs::store_failed, remembering, stats::Counters};

/// Maximum interval between passes.
const EVERY: Duration = Duration::from_secs(60);
/// Passes per retention period. Runs are kept at most one interval too long.
const LOOKS_PER_PERIOD: u32 = 8;
/// How often a pass starts from the beginning, to find tasks written by a clock far behind this one.
const AFRESH_EVERY: Duration = Duration::from_secs(3_600);
/// How often what agents remember is tidied.
const MEMORY_EVERY: Duration = Duration::from_secs(3_600);
/// How long counts of what models took are kept after their window has ended.
const SPENT_KEPT: Duration = Duration::from_secs(24 * 3_600);
/// Tasks examined or children read by one call, and runs marked by one write.
const PAGE: usize = 256;
/// Maximum trees of a tenant remembered because they have not expired. Beyond it, the next pass starts at the
/// first one not remembered.
const MAX_WAITING: usize = 4_096;
/// Rows swept, or records deleted, by one write.
const ROWS: usize = 256;
/// Maximum rest after a write.
const LONGEST_REST: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// The progress of passes, per tenant.
#[derive(Debug, Default)]
struct Looks {
    tenants: HashMap<TenantId, Look>,
    /// When to start from the beginning again.
    afresh_at: Option<Instant>,
    /// When to look at what agents remember again.
    memory_at: Option<Instant>,
}

/// The progress of a pass through one tenant's tasks.
#[derive(Debug, Default)]
struct Look {
    /// The position after the last run that needs no further look.
    place: Option<PhaseCursor>,
    /// Roots before `place` that have ended, but whose tree has not expired.
    waiting: BTreeSet<RunId>,
}

impl Looks {
    /// Begins a pass. Returns the progress to continue from, by tenant.
    fn begin(&mut self, now: Instant) -> HashMap<TenantId, Look> {
        let last = mem::take(&mut self.tenants);
        if self.afresh_at.is_some_and(|at| now < at) {
            return last;
        }
        self.afresh_at = Some(now + AFRESH_EVERY);
        HashMap::new()
    }
}

/// Walks the descendants of some roots. Holds at most one page of each generation, however large the trees
/// are.
#[derive(Debug)]
struct Walk {
    /// The children of the last generation come next.
    generations: Vec<Generation>,
}

/// Runs of one generation whose children are being read.
#[derive(Debug)]
struct Generation {
    /// Each with its root.
    parents: HashMap<RunId, RunId>,
    /// The last child read.
    after: Option<Child>,
}

impl Walk {
    fn new(roots: &[RunId]) -> Self {
        let parents = roots.iter().map(|root| (root.clone(), root.clone())).collect();
        Self {
            generations: vec![Generation { parents, after: None }],
        }
    }

    /// Skips the rest of a tree.
    fn leave(&mut self, root: &RunId) {
        for generation in &mut self.generations {
            generation.parents.retain(|_, of| of != root);
        }
    }

    /// Reads the next page of descendants, each with its root; `None` at the end.
    async fn next(
        &mut self,
        store: &dyn Store,
        tenant: &TenantId,
    ) -> Result<Option<Vec<(Child, RunId)>>, ReadError> {
        while let Some(generation) = self.generations.last_mut() {
            if generation.parents.is_empty() {
                self.generations.pop();
                continue;
            }
            let parents: Vec<_> = generation.parents.keys().cloned().collect();
            let page = store
                .children(tenant, &parents, generation.after.as_ref(), PAGE)
                .await?;
            let is_last = page.len() < PAGE;
            generation.after = page.last().cloned();
            let root_of = |child: Child| {
                let root = generation.parents.get(&child.parent)?.clone();
                Some((child, root))
            };
            let page: Vec<_> = page.into_iter().filter_map(root_of).collect();
            if is_last {
                self.generations.pop();
            }
            if !page.is_empty() {
                let parents = page.iter().map(|(child, root)| (child.run.clone(), root.clone()));
                self.generations.push(Generation {
                    parents: parents.collect(),
                    after: None,
                });
                return Ok(Some(page));
            }
        }
        Ok(None)
    }
}

fn root(run: RunId) -> Removal {
    Removal {
        root: run.clone(),
        run,
    }
}

impl Engine {
    pub(crate) async fn run_retention(self) {
        let every = match self.shared.options.retention {
            Some(period) => (period / LOOKS_PER_PERIOD).clamp(self.shared.options.poll.min(EVERY), EVERY),
            None => EVERY,
        };
        let stop = self.shared.stop.clone();
        let mut looks = Looks::default();
        // Safe to cancel at any point: the next pass continues.
        stop.run_until_cancelled(async {
            loop {
                if let Err(error) = self.let_go(&mut looks).await {
                    store_failed("cannot remove what has had its time", &error);
                }
                tokio::time::sleep(every).await;
            }
        })
        .await;
    }

    async fn let_go(&self, looks: &mut Looks) -> Result<(), Trouble> {
        self.forget_expired().await?;
        self.forget_memory(looks).await?;
        self.forget_workflows().await?;
        self.finish_begun().await?;
        let mut runs = self.sweep_removed().await?;
        if let Some(period) = self.shared.options.retention {
            let before = earlier(self.now(), period);
            // If an error interrupts the pass, the next one starts from the beginning.
            let mut last_looks = looks.begin(Instant::now());
            let mut tenant = None;
            while let Some(next) = self.shared.store.next_tenant(tenant.as_ref()).await? {
                let mut look = last_looks.remove(&next).unwrap_or_default();
                runs += self.remove_ended(&next, before, &mut look).await?;
                looks.tenants.insert(next.clone(), look);
                tenant = Some(next);
            }
        }
        if runs > 0 {
            tracing::info!(runs, "runs removed that had ended");
        }
        Ok(())
    }

    async fn forget_expired(&self) -> Result<(), Trouble> {
        loop {
            let since = Instant::now();
            if self.shared.store.forget_expired(self.now(), ROWS).await? < ROWS {
                return Ok(());
            }
            rest(since).await;
        }
    }

    /// Deletes counts of windows that ended long ago.
    async fn forget_spent(&self) -> Result<(), Trouble> {
        loop {
            let since = Instant::now();
            let before = earlier(self.now(), SPENT_KEPT);
            if self.shared.store.forget_spent(before, ROWS).await? < ROWS {
                return Ok(());
            }
            rest(since).await;
        }
    }

    /// Deletes what agents remembered and nobody can read any more, and old counts. It looks at all that is remembered,
    /// so it does not in every pass.
    async fn forget_memory(&self, looks: &mut Looks) -> Result<(), Trouble> {
        let begun = Instant::now();
        if looks.memory_at.is_some_and(|at| begun < at) {
            return Ok(());
        }
        self.forget_spent().await?;
        let mut tenant = None;
        while let Some(next) = self.shared.store.next_remembering(tenant.as_ref()).await? {
            // One that keeps its reads busy does not hold up the others.
            if let Err(error) = self.forget_memory_of(&next).await {
                store_failed("cannot tidy what a tenant remembers", &error);
            }
            tenant = Some(next);
        }
        looks.memory_at = Some(begun + MEMORY_EVERY);
        Ok(())
    }

    async fn forget_memory_of(&self, tenant: &TenantId) -> Result<(), WriteError> {
        loop {
            let since = Instant::now();
            let now = self.now();
            let before = earlier(now, remembering::KEPT);
            let forgotten = self.shared.store.forget_memory(tenant, now, before, ROWS).await;
            rest(since).await;
            if forgotten? == 0 {
                return Ok(());
            }
        }
    }

    /// Deletes the versions of removed workflows that no run has any more.
    async fn forget_workflows(&self) -> Result<(), Trouble> {
        loop {
            let since = Instant::now();
            if self.forget_removed().await? == 0 {
                return Ok(());
            }
            rest(since).await;
        }
    }

    /// Marks the rest of trees whose removal was interrupted.
    async fn finish_begun(&self) -> Result<(), Trouble> {
        for RunKey { tenant, run } in self.shared.store.begun_removals(PAGE).await? {
            // The process that began has already checked that the tree has expired.
            self.mark_descendants(&tenant, vec![run.clone()]).await?;
            self.mark(&tenant, vec![root(run)]).await?;
        }
        Ok(())
    }

    /// Removes a tenant's expired trees. Returns how many runs were removed.
    async fn remove_ended(
        &self,
        tenant: &TenantId,
        before: Timestamp,
        look: &mut Look,
    ) -> Result<usize, Trouble> {
        let mut runs = 0;
        let waiting: Vec<_> = mem::take(&mut look.waiting).into_iter().collect();
        for roots in waiting.chunks(PAGE) {
            let waiting = self
                .remove_trees(tenant, roots.to_vec(), before, &mut runs)
                .await?;
            look.waiting.extend(waiting);
        }
        let mut after = look.place.clone();
        let mut has_room = true;
        loop {
            let page = self
                .shared
                .store
                .ended_roots(tenant, before, after.as_ref(), PAGE)
                .await?;
            let waiting = self.remove_trees(tenant, page.roots, before, &mut runs).await?;
            has_room &= look.waiting.len() + waiting.len() <= MAX_WAITING;
            if has_room {
                look.waiting.extend(waiting);
            }
            let Some(next) = page.next else {
                return Ok(runs);
            };
            if has_room {
                look.place = Some(next.clone());
            }
            after = Some(next);
        }
    }

    /// Removes the expired trees among `roots`. Returns the other roots.
    async fn remove_trees(
        &self,
        tenant: &TenantId,
        roots: Vec<RunId>,
        before: Timestamp,
        runs: &mut usize,
    ) -> Result<Vec<RunId>, Trouble> {
        let (mut waiting, mut parents) = (HashSet::new(), HashSet::new());
        let mut walk = Walk::new(&roots);
        while let Some(page) = walk.next(&*self.shared.store, tenant).await? {
            for (child, root) in page {
                if child.ended.is_none_or(|ended| ended >= before) && !waiting.contains(&root) {
                    walk.leave(&root);
                    waiting.insert(root);
                } else {
                    parents.insert(root);
                }
            }
        }
        let (waiting, over): (Vec<_>, Vec<_>) = roots.into_iter().partition(|root| waiting.contains(root));
        if !over.is_empty() {
            let parents = over
                .iter()
                .filter(|root| parents.contains(*root))
                .cloned()
                .collect();
            self.mark_descendants(tenant, parents).await?;
            // A root is marked after its descendants, because marking it removes the tree.
            self.mark(tenant, over.into_iter().map(root).collect()).await?;
            // After each page, so that there are never many marked runs.
            *runs += self.sweep_removed().await?;
        }
        Ok(waiting)
    }

    async fn mark_descendants(&self, tenant: &TenantId, roots: Vec<RunId>) -> Result<(), Trouble> {
        let mut walk = Walk::new(&roots);
        while let Some(page) = walk.next(&*self.shared.store, tenant).await? {
            let removals = page
                .into_iter()
                .map(|(child, root)| Removal { run: child.run, root });
            self.mark(tenant, removals.collect()).await?;
        }
        Ok(())
    }

    async fn mark(&self, tenant: &TenantId, removals: Vec<Removal>) -> Result<(), Trouble> {
        let since = Instant::now();
        self.shared.store.remove(tenant, &removals).await?;
        rest(since).await;
        Ok(())
    }

    /// Sweeps until nothing is left. Returns how many runs were removed.
    async fn sweep_removed(&self) -> Result<usize, Trouble> {
        let mut n_runs = 0;
        loop {
            let since = Instant::now();
            let Swept { runs, rows } = self.shared.store.sweep(ROWS).await?;
            Counters::add(&self.shared.counters.runs_removed, runs);
            n_runs += runs;
            if runs == 0 && rows == 0 {
                return Ok(n_runs);
            }
            rest(since).await;
        }
    }
}

/// Rests for as long as the last write took.
async fn rest(since: Instant) {
    tokio::time::sleep(since.elapsed().min(LONGEST_REST)).await;
}

fn earlier(now: Timestamp, period: Duration) -> Timestamp {
    let millis = i64::try_from(period.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(now.millis().saturating_sub(millis))
}

#[cfg(test)]
mod tests {
    use wopr_core::{ContentHash, NodeId, PrincipalId, RunStatus, Seq, WorkflowId};
    use wopr_store::{Batch, Guard, Log as _, MemoryStore, StoredEvent, Summary};

    use super::*;

    fn run_id(n: usize) -> RunId {
        RunId::parse(&format!("run_{n:020}")).expect("a run id")
    }

    async fn put(store: &MemoryStore, n: usize, parent: Option<usize>) {
        let now = Timestamp::from_millis(0);
        let summary = Summary {
            status: RunStatus::Completed,
            parent: parent.map(|parent| (run_id(parent), NodeId::parse("n").expect("valid"))),
            ..Summary::new(
                WorkflowId::parse("w").expect("valid"),
                ContentHash::of(b"w"),
                PrincipalId::parse("ada").expect("valid"),
                now,
            )
        };
        let event = StoredEvent {
            seq: Seq(0),
            body: vec![1],
        };
        let key = RunKey::new(TenantId::parse("acme").expect("valid"), run_id(n));
        let batch = Batch::new(key, Guard::Create, vec![event], summary);
        store.append(batch).await.expect("appends");
    }

    #[tokio::test]
    async fn a_walk_visits_all_descendants_in_bounded_memory() {
        const WIDE: usize = 1_000;
        let store = MemoryStore::new();
        let tenant = TenantId::parse("acme").expect("valid");
        for root in [1, 2] {
            put(&store, root, None).await;
            for child in 0..WIDE {
                let child = root * 10_000 + child * 3;
                put(&store, child, Some(root)).await;
                put(&store, child + 1, Some(child)).await;
                put(&store, child + 2, Some(child + 1)).await;
            }
        }
        let mut walk = Walk::new(&[run_id(1), run_id(2), run_id(3)]);
        let mut found = [(); 2].map(|()| BTreeSet::new());
        while let Some(page) = walk.next(&store, &tenant).await.expect("reads") {
            let held: usize = walk.generations.iter().map(|held| held.parents.len()).sum();
            assert!(page.len() <= PAGE && held <= 4 * PAGE, "{held}");
            for (child, root) in page {
                let of = usize::from(root == run_id(2));
                assert!(found[of].insert(child.run.clone()), "{child:?} twice");
                assert!(of == 1 || root == run_id(1));
            }
        }
        for (of, found) in found.iter().enumerate() {
            let first = (of + 1) * 10_000;
            assert!(
                found
                    .iter()
                    .eq((first..first + 3 * WIDE).map(run_id).collect::<Vec<_>>().iter())
            );
        }

        // A tree that is left is not read any further, and the other one is read completely.
        let mut walk = Walk::new(&[run_id(1), run_id(2)]);
        let mut n_found = [0; 2];
        while let Some(page) = walk.next(&store, &tenant).await.expect("reads") {
            walk.leave(&run_id(1));
            for (_, root) in page {
                n_found[usize::from(root == run_id(2))] += 1;
            }
        }
        assert_eq!(n_found, [PAGE, 3 * WIDE]);
    }
}
