//! Retention: removes records of requests at their expiry and, if a period is set, trees of runs.
//!
//! A tree is a run without parent and everything that descends from it. Its time has come when every run of it has
//! ended and none was appended to for the period. Then nothing can change it any more, so reading it page by page
//! is as good as reading it at one moment, and reading it twice, once to judge and once to mark, as good as holding
//! it. It goes whole and at once, as [`wopr_store::Retention`] promises, and is swept in steps, each followed by a
//! rest as long as it took: removing never takes more than half of the store's time. Processes that share a store may
//! all do this; what one has begun any of them finishes, whatever their settings say by then.
//!
//! A look begins where the last one stopped. What lies before that had not ended, and comes behind it when it does;
//! or it had, and its tree was not yet over, which is remembered.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    mem,
    time::Duration,
};

use tokio::time::Instant;
use wopr_core::{RunId, RunKey, TenantId, Timestamp};
use wopr_store::{Child, ReadError, Removal, Store, Swept, TaskCursor, WriteError};

use crate::{Engine, stats::Counters};

/// How often to look at most.
const EVERY: Duration = Duration::from_secs(60);
/// How often to look within a period: so much longer than wanted things are kept at the worst.
const LOOKS_PER_PERIOD: u32 = 8;
/// How often to look from the beginning, at tasks too that were written by a clock far behind this one's.
const AFRESH_EVERY: Duration = Duration::from_secs(3_600);
/// Tasks looked at, and children read, by one call; and runs marked by one write.
const PAGE: usize = 256;
/// Roots of a tenant remembered whose trees are not over; a look begins at the first that has no room here.
const MAX_WAITING: usize = 4_096;
/// Rows swept, or records forgotten, by one write.
const ROWS: usize = 256;
/// The longest rest after a write.
const LONGEST_REST: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// How far tenants' tasks have been looked at.
#[derive(Debug, Default)]
struct Looks {
    tenants: HashMap<TenantId, Look>,
    /// When to look from the beginning again.
    afresh_at: Option<Instant>,
}

/// How far a tenant's tasks have been looked at.
#[derive(Debug, Default)]
struct Look {
    /// Behind the last that needs no further look.
    place: Option<TaskCursor>,
    /// Roots before it that have ended, while something that descends from them has not, or not long ago.
    waiting: BTreeSet<RunId>,
}

impl Looks {
    /// Begins a look: where the last one stopped, by tenant.
    fn begin(&mut self, now: Instant) -> HashMap<TenantId, Look> {
        let last = mem::take(&mut self.tenants);
        if self.afresh_at.is_some_and(|at| now < at) {
            return last;
        }
        self.afresh_at = Some(now + AFRESH_EVERY);
        HashMap::new()
    }
}

/// Goes through all that descends from some roots. However large their trees are, no more of them is held than a page of
/// each generation.
#[derive(Debug)]
struct Walk {
    /// The last one's children come next.
    generations: Vec<Generation>,
}

/// Runs of one generation whose children are gone through.
#[derive(Debug)]
struct Generation {
    /// Each with its root.
    parents: HashMap<RunId, RunId>,
    /// The last of their children that was gone to.
    after: Option<Child>,
}

impl Walk {
    fn new(roots: &[RunId]) -> Self {
        let parents = roots.iter().map(|root| (root.clone(), root.clone())).collect();
        Self {
            generations: vec![Generation { parents, after: None }],
        }
    }

    /// Leaves out what is to come of a tree.
    fn leave(&mut self, root: &RunId) {
        for generation in &mut self.generations {
            generation.parents.retain(|_, of| of != root);
        }
    }

    /// The next page, each run with its root; `None` at the end.
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
        // Cut off anywhere it goes on at the next look.
        stop.run_until_cancelled(async {
            loop {
                if let Err(error) = self.let_go(&mut looks).await {
                    tracing::warn!(%error, "cannot remove what has had its time");
                }
                tokio::time::sleep(every).await;
            }
        })
        .await;
    }

    async fn let_go(&self, looks: &mut Looks) -> Result<(), Trouble> {
        self.forget_expired().await?;
        self.finish_begun().await?;
        let mut runs = self.sweep_removed().await?;
        if let Some(period) = self.shared.options.retention {
            let before = earlier(self.now(), period);
            // What an error cuts off begins afresh.
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

    /// Marks what is missing of trees that somebody began to mark.
    async fn finish_begun(&self) -> Result<(), Trouble> {
        for RunKey { tenant, run } in self.shared.store.begun_removals(PAGE).await? {
            // That their time had come was found out by whoever began.
            self.mark_descendants(&tenant, vec![run.clone()]).await?;
            self.mark(&tenant, vec![root(run)]).await?;
        }
        Ok(())
    }

    /// Removes a tenant's trees whose time has come; how many runs went.
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

    /// Removes those of a page of trees whose time has come; the roots of the others.
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
            // Each behind all that descends from it, for with its root a tree is gone.
            self.mark(tenant, over.into_iter().map(root).collect()).await?;
            // Page by page, so that there are never many marks.
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

    /// Marks a page of runs.
    async fn mark(&self, tenant: &TenantId, removals: Vec<Removal>) -> Result<(), Trouble> {
        let since = Instant::now();
        self.shared.store.remove(tenant, &removals).await?;
        rest(since).await;
        Ok(())
    }

    /// Sweeps until nothing is left to; how many runs went.
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

/// Leaves the store to others for as long as the last write took.
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
            workflow: WorkflowId::parse("w").expect("valid"),
            version: ContentHash::of(b"w"),
            status: RunStatus::Completed,
            principal: PrincipalId::parse("ada").expect("valid"),
            parent: parent.map(|parent| (run_id(parent), NodeId::parse("n").expect("valid"))),
            created_at: now,
            updated_at: now,
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
    async fn a_walk_through_large_trees_holds_little_and_leaves_none_out() {
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

        // What is left is not gone through any further, and the other one whole.
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
