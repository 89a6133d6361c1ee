//! Retention in memory.

use async_trait::async_trait;
use wopr_core::{RunId, RunKey, TenantId, Timestamp};

use super::{MemoryStore, Run, State};
use crate::{Child, EndedRoots, PhaseCursor, ReadError, Removal, Retention, Swept, WriteError};

impl State {
    /// Returns `true` if both a run and the root it is removed with are marked.
    pub(super) fn is_gone(&self, run: &RunKey) -> bool {
        self.removals
            .get(run)
            .is_some_and(|root| self.removals.contains_key(&run.sibling(root.clone())))
    }

    /// Returns a run unless it is gone.
    pub(super) fn run(&self, run: &RunKey) -> Option<&Run> {
        self.runs.get(run).filter(|_| !self.is_gone(run))
    }

    fn forget(&mut self, run: &RunKey) {
        let alias = self.runs.remove(run).and_then(|removed| removed.summary.alias);
        if let (Some(alias), Some(aliases)) = (alias, self.aliases.get_mut(&run.tenant))
            && aliases.get(&alias) == Some(run)
        {
            aliases.remove(&alias);
        }
        self.inboxes.remove(run);
        let own = run.run.memory_scope();
        self.memory
            .retain(|(tenant, scope, _), _| *tenant != run.tenant || *scope != own);
        self.work.retain(|(owner, _), _| owner != run);
        self.outbox.remove(run);
        self.pushes.retain(|(owner, _), _| owner != run);
        self.deliveries.retain(|(owner, _, _), _| owner != run);
    }
}

fn ended(run: &Run) -> Option<Timestamp> {
    run.summary.status.is_terminal().then_some(run.summary.updated_at)
}

#[async_trait]
impl Retention for MemoryStore {
    async fn next_tenant(&self, after: Option<&TenantId>) -> Result<Option<TenantId>, ReadError> {
        let state = self.state.lock();
        let mut tenants = state.runs.keys().map(|key| &key.tenant);
        Ok(tenants
            .find(|tenant| after.is_none_or(|after| *tenant > after))
            .cloned())
    }

    async fn ended_roots(
        &self,
        tenant: &TenantId,
        before: Timestamp,
        after: Option<&PhaseCursor>,
        limit: usize,
    ) -> Result<EndedRoots, ReadError> {
        let state = self.state.lock();
        let mut seen: Vec<_> = state
            .runs
            .iter()
            .filter(|(key, _)| key.tenant == *tenant && !state.is_gone(key))
            .map(|(key, run)| (run.summary.phase_since, &key.run, run))
            .filter(|(at, _, _)| *at < before)
            .filter(|(at, run, _)| after.is_none_or(|after| (*at, *run) > (after.since, &after.run)))
            .collect();
        seen.sort_by_key(|(at, run, _)| (*at, *run));
        seen.truncate(limit);
        let next = seen
            .last()
            .filter(|_| seen.len() == limit)
            .map(|(since, run, _)| PhaseCursor {
                since: *since,
                run: (*run).clone(),
            });
        let is_ended_root = |run: &Run| run.summary.parent.is_none() && run.summary.status.is_terminal();
        Ok(EndedRoots {
            roots: seen
                .into_iter()
                .filter(|(_, _, run)| is_ended_root(run))
                .map(|(_, run, _)| run.clone())
                .collect(),
            next,
        })
    }

    async fn children(
        &self,
        tenant: &TenantId,
        parents: &[RunId],
        after: Option<&Child>,
        limit: usize,
    ) -> Result<Vec<Child>, ReadError> {
        let state = self.state.lock();
        let mut children: Vec<_> = state
            .runs
            .iter()
            .filter(|(key, _)| key.tenant == *tenant)
            .filter_map(|(key, run)| {
                let (parent, _) = run.summary.parent.as_ref()?;
                Some(Child {
                    parent: parent.clone(),
                    run: key.run.clone(),
                    ended: ended(run),
                })
            })
            .filter(|child| parents.contains(&child.parent))
            .filter(|child| {
                after.is_none_or(|after| (&child.parent, &child.run) > (&after.parent, &after.run))
            })
            .collect();
        children.sort_by(|a, b| (&a.parent, &a.run).cmp(&(&b.parent, &b.run)));
        children.truncate(limit);
        Ok(children)
    }

    async fn remove(&self, tenant: &TenantId, removals: &[Removal]) -> Result<(), WriteError> {
        let mut state = self.state.lock();
        for Removal { run, root } in removals {
            let key = RunKey::new(tenant.clone(), run.clone());
            if state.runs.get(&key).is_some_and(|run| ended(run).is_some()) {
                state.removals.entry(key).or_insert_with(|| root.clone());
            }
        }
        Ok(())
    }

    async fn begun_removals(&self, limit: usize) -> Result<Vec<RunKey>, ReadError> {
        let state = self.state.lock();
        let mut roots: Vec<_> = state
            .removals
            .iter()
            .map(|(run, root)| run.sibling(root.clone()))
            .filter(|root| !state.removals.contains_key(root))
            .collect();
        roots.sort();
        roots.dedup();
        roots.truncate(limit);
        Ok(roots)
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, WriteError> {
        let mut state = self.state.lock();
        let mut gone: Vec<_> = state
            .removals
            .iter()
            .filter(|(run, _)| state.is_gone(run))
            // A root is swept after its tree; without its mark the other runs would reappear.
            .map(|(run, root)| (run.run == *root, run.clone()))
            .collect();
        gone.sort();
        gone.truncate(limit);
        for (_, run) in &gone {
            state.forget(run);
            state.removals.remove(run);
        }
        Ok(Swept {
            runs: gone.len(),
            rows: gone.len(),
        })
    }

    async fn forget_workflows(
        &self,
        now: Timestamp,
        next_check: Timestamp,
        limit: usize,
    ) -> Result<usize, WriteError> {
        let mut state = self.state.lock();
        let State { workflows, runs, .. } = &mut *state;
        let mut due: Vec<_> = workflows
            .iter_mut()
            .filter(|(_, workflow)| workflow.check_at.is_some_and(|at| at <= now))
            .collect();
        due.sort_by_key(|(_, workflow)| workflow.check_at);
        due.truncate(limit);
        let mut n_changed = 0;
        for ((owner, id), workflow) in due {
            let has_runs = runs
                .iter()
                .any(|(key, run)| Some(&key.tenant) == owner.as_ref() && run.summary.workflow == *id);
            n_changed += 1;
            if workflow.is_unused && !has_runs {
                n_changed += workflow.versions.len();
                workflow.versions.clear();
                workflow.check_at = None;
            } else {
                workflow.is_unused = !has_runs;
                workflow.check_at = Some(next_check);
            }
        }
        Ok(n_changed)
    }
}
