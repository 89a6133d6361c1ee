//! The registry in memory.

use std::collections::{BTreeMap, btree_map::Entry};

use async_trait::async_trait;
use wopr_core::{ContentHash, TenantId, Timestamp, WorkflowId};

use super::{MemoryStore, State, Workflow};
use crate::{KeyRow, ReadError, Registry, Revision, WorkflowChange, WorkflowRow, WriteError};

#[async_trait]
impl Registry for MemoryStore {
    async fn put_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        let revision = state.next_revision();
        let place = (row.tenant.clone(), row.id.clone());
        let workflow = state
            .workflows
            .entry(place)
            .or_insert_with(|| Workflow::new(revision));
        let was_removed = workflow.current.is_none();
        if workflow.current.as_ref() != Some(&row.version) {
            workflow.set(row.version.clone(), revision);
        }
        match workflow.versions.entry(row.version.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(row);
                Ok(true)
            }
            Entry::Occupied(_) => Ok(was_removed),
        }
    }

    async fn add_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        let revision = state.next_revision();
        let place = (row.tenant.clone(), row.id.clone());
        let workflow = state
            .workflows
            .entry(place)
            .or_insert_with(|| Workflow::new(revision));
        if workflow.current.is_some() {
            return Ok(false);
        }
        workflow.set(row.version.clone(), revision);
        workflow.versions.entry(row.version.clone()).or_insert(row);
        Ok(true)
    }

    async fn remove_workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        check_at: Timestamp,
    ) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        let revision = state.next_revision();
        match state.workflows.get_mut(&(Some(tenant.clone()), id.clone())) {
            Some(workflow) if workflow.current.is_some() => {
                workflow.current = None;
                workflow.since = revision;
                workflow.check_at = Some(check_at);
                workflow.is_unused = false;
                Ok(true)
            }
            Some(_) | None => Ok(false),
        }
    }

    async fn workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        version: &ContentHash,
    ) -> Result<Option<WorkflowRow>, ReadError> {
        let state = self.state.lock();
        let of = |owner: Option<TenantId>| state.workflows.get(&(owner, id.clone()))?.versions.get(version);
        Ok(of(Some(tenant.clone())).or_else(|| of(None)).cloned())
    }

    async fn workflows_since(
        &self,
        after: Revision,
        max_bytes: usize,
    ) -> Result<Vec<(Revision, WorkflowChange)>, ReadError> {
        let state = self.state.lock();
        let changed = state
            .workflows
            .iter()
            .filter(|(_, workflow)| workflow.since > after);
        let mut found: Vec<_> = changed
            .filter_map(|((owner, id), workflow)| {
                Some((workflow.since, workflow.change(owner.as_ref(), id)?))
            })
            .collect();
        found.sort_by_key(|(revision, _)| *revision);
        let (mut rows, mut left) = (Vec::new(), max_bytes);
        for (revision, change) in found {
            let n_bytes = match &change {
                WorkflowChange::Current(row) => row.body.len(),
                WorkflowChange::Removed { .. } => 0,
            };
            if n_bytes > left && !rows.is_empty() {
                break;
            }
            left = left.saturating_sub(n_bytes);
            rows.push((revision, change));
        }
        Ok(rows)
    }

    async fn add_key(&self, row: KeyRow, limit: usize) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        let own = state.keys.values().filter(|(_, key)| key.tenant == row.tenant);
        let (revoked, valid): (Vec<_>, Vec<_>) = own.partition(|(_, key)| key.revoked_at.is_some());
        if revoked.len().max(valid.len()) >= limit {
            return Ok(false);
        }
        let revision = state.next_revision();
        match state.keys.entry((row.id.clone(), row.tenant.clone())) {
            Entry::Vacant(entry) => {
                entry.insert((revision, row));
                Ok(true)
            }
            Entry::Occupied(_) => Ok(false),
        }
    }

    async fn revoke_key(&self, tenant: &TenantId, id: &str, at: Timestamp) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        let revision = state.next_revision();
        match state.keys.get_mut(&(id.to_owned(), tenant.clone())) {
            Some((changed, key)) if key.revoked_at.is_none() => {
                key.revoked_at = Some(at);
                *changed = revision;
                Ok(true)
            }
            Some(_) | None => Ok(false),
        }
    }

    async fn keys(&self) -> Result<Vec<KeyRow>, ReadError> {
        let state = self.state.lock();
        Ok(state.keys.values().map(|(_, key)| key.clone()).collect())
    }

    async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyRow>, ReadError> {
        let state = self.state.lock();
        let own = state.keys.values().filter(|(_, key)| key.tenant == *tenant);
        Ok(own.map(|(_, key)| key.clone()).collect())
    }

    async fn forget_keys(&self, tenant: &TenantId, revoked_before: Timestamp) -> Result<(), WriteError> {
        let is_gone =
            |key: &KeyRow| key.tenant == *tenant && key.revoked_at.is_some_and(|at| at < revoked_before);
        self.state.lock().keys.retain(|_, (_, key)| !is_gone(key));
        Ok(())
    }

    async fn keys_since(&self, after: Revision) -> Result<Vec<(Revision, KeyRow)>, ReadError> {
        let state = self.state.lock();
        let mut rows: Vec<_> = state
            .keys
            .values()
            .filter(|(changed, _)| *changed > after)
            .cloned()
            .collect();
        rows.sort_by_key(|(revision, _)| *revision);
        Ok(rows)
    }
}

impl Workflow {
    fn new(since: Revision) -> Self {
        Self {
            current: None,
            since,
            versions: BTreeMap::new(),
            check_at: None,
            is_unused: false,
        }
    }

    fn set(&mut self, version: ContentHash, since: Revision) {
        self.current = Some(version);
        self.since = since;
        self.check_at = None;
        self.is_unused = false;
    }

    fn change(&self, owner: Option<&TenantId>, id: &WorkflowId) -> Option<WorkflowChange> {
        match &self.current {
            Some(version) => self.versions.get(version).cloned().map(WorkflowChange::Current),
            // A shared workflow is never removed.
            None => owner.map(|tenant| WorkflowChange::Removed {
                tenant: tenant.clone(),
                id: id.clone(),
            }),
        }
    }
}

impl State {
    fn next_revision(&mut self) -> Revision {
        self.revision.0 += 1;
        self.revision
    }
}
