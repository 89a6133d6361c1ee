//! Letting go of what has had its time: records of requests at their expiry and, if a period is set, trees of runs.
//!
//! A tree is a run without parent and everything that descends from it. Its time has come when every run of it has
//! ended and none was appended to for the period. Then nothing can change it any more, so reading it page by page
//! is as good as reading it at one moment. It goes whole and at once, as [`wopr_store::Retention`] promises, and
//! is swept in steps, each followed by a rest as long as it took: removing never takes more than half of the
//! store's time. Processes that share a store may all do this; what one has begun any of them finishes, whatever
//! their settings say by then.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tokio::time::Instant;
use wopr_core::{RunId, RunKey, TenantId, Timestamp};
use wopr_store::{Child, ReadError, Removal, Swept, WriteError};

use crate::{Engine, stats::Counters};

/// How often to look at most.
const EVERY: Duration = Duration::from_secs(60);
/// How often to look within a period: so much longer than wanted things are kept at the worst.
const LOOKS_PER_PERIOD: u32 = 8;
/// Tasks looked at, and children read, by one call.
const PAGE: usize = 256;
/// Runs marked by one write.
const MARKS: usize = 256;
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

impl Engine {
    pub(crate) async fn run_retention(self) {
        let every = match self.shared.options.retention {
            Some(period) => (period / LOOKS_PER_PERIOD).clamp(self.shared.options.poll.min(EVERY), EVERY),
            None => EVERY,
        };
        let stop = self.shared.stop.clone();
        // Cut off anywhere it goes on at the next look.
        stop.run_until_cancelled(async {
            loop {
                if let Err(error) = self.let_go().await {
                    tracing::warn!(%error, "cannot remove what has had its time");
                }
                tokio::time::sleep(every).await;
            }
        })
        .await;
    }

    async fn let_go(&self) -> Result<(), Trouble> {
        self.forget_expired().await?;
        self.finish_begun().await?;
        let mut runs = self.sweep_removed().await?;
        if let Some(period) = self.shared.options.retention {
            let before = earlier(self.now(), period);
            let mut tenant = None;
            while let Some(next) = self.shared.store.next_tenant(tenant.as_ref()).await? {
                runs += self.remove_ended(&next, before).await?;
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
            let removals = self
                .trees(&tenant, vec![run], Timestamp::from_millis(i64::MAX))
                .await?;
            self.mark(&tenant, &removals).await?;
        }
        Ok(())
    }

    /// Removes a tenant's trees whose time has come; how many runs went.
    async fn remove_ended(&self, tenant: &TenantId, before: Timestamp) -> Result<usize, Trouble> {
        let (mut runs, mut after) = (0, None);
        loop {
            let page = self
                .shared
                .store
                .ended_roots(tenant, before, after.as_ref(), PAGE)
                .await?;
            let removals = self.trees(tenant, page.roots, before).await?;
            self.mark(tenant, &removals).await?;
            // Page by page, so that there are never many marks.
            runs += self.sweep_removed().await?;
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(runs),
            }
        }
    }

    /// The trees of these roots whose time has come, each root behind all that descends from it.
    async fn trees(
        &self,
        tenant: &TenantId,
        roots: Vec<RunId>,
        before: Timestamp,
    ) -> Result<Vec<Removal>, ReadError> {
        let mut removals = Vec::new();
        let mut kept: HashSet<RunId> = HashSet::new();
        // Runs of one generation, each with its root.
        let mut generation: HashMap<RunId, RunId> =
            roots.iter().map(|root| (root.clone(), root.clone())).collect();
        while !generation.is_empty() {
            let mut next = HashMap::new();
            let parents: Vec<_> = generation.keys().cloned().collect();
            for parents in parents.chunks(PAGE) {
                for Child { parent, run, ended } in self.children_of(tenant, parents).await? {
                    let Some(root) = generation.get(&parent) else {
                        continue;
                    };
                    if ended.is_none_or(|ended| ended >= before) {
                        kept.insert(root.clone());
                    }
                    removals.push(Removal {
                        run: run.clone(),
                        root: root.clone(),
                    });
                    next.insert(run, root.clone());
                }
            }
            next.retain(|_, root| !kept.contains(root));
            generation = next;
        }
        removals.extend(roots.into_iter().map(|root| Removal {
            run: root.clone(),
            root,
        }));
        removals.retain(|removal| !kept.contains(&removal.root));
        Ok(removals)
    }

    async fn children_of(&self, tenant: &TenantId, parents: &[RunId]) -> Result<Vec<Child>, ReadError> {
        let mut children: Vec<Child> = Vec::new();
        loop {
            let page = self
                .shared
                .store
                .children(tenant, parents, children.last(), PAGE)
                .await?;
            let is_last = page.len() < PAGE;
            children.extend(page);
            if is_last {
                return Ok(children);
            }
        }
    }

    async fn mark(&self, tenant: &TenantId, removals: &[Removal]) -> Result<(), Trouble> {
        for removals in removals.chunks(MARKS) {
            let since = Instant::now();
            self.shared.store.remove(tenant, removals).await?;
            rest(since).await;
        }
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
