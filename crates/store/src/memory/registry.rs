//! The registry in memory.

use std::collections::{BTreeMap, btree_map::Entry};

use async_trait::async_trait;
use wopr_core::{ContentHash, TenantId, Timestamp, WorkflowId};

use super::{MemoryStore, State, Workflow};
use crate::{KeyRow, ReadError, Registry, Revision, WorkflowRow, WriteError};

#[async_trait]
impl Registry for MemoryStore {
    async fn put_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        let revision = state.next_revision();
        let workflow = state
            .workflows
            .entry((row.tenant.clone(), row.id.clone()))
            .or_insert_with(|| Workflow {
                current: row.version.clone(),
                since: revision,
                versions: BTreeMap::new(),
            });
        if workflow.current != row.version {
            workflow.current = row.version.clone();
            workflow.since = revision;
        }
        match workflow.versions.entry(row.version.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(row);
                Ok(true)
            }
            Entry::Occupied(_) => Ok(false),
        }
    }

    async fn add_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        let revision = state.next_revision();
        match state.workflows.entry((row.tenant.clone(), row.id.clone())) {
            Entry::Occupied(_) => Ok(false),
            Entry::Vacant(entry) => {
                entry.insert(Workflow {
                    current: row.version.clone(),
                    since: revision,
                    versions: BTreeMap::from([(row.version.clone(), row)]),
                });
                Ok(true)
            }
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
    ) -> Result<Vec<(Revision, WorkflowRow)>, ReadError> {
        let state = self.state.lock();
        let changed = state.workflows.values().filter(|workflow| workflow.since > after);
        let mut found: Vec<_> = changed
            .filter_map(|workflow| Some((workflow.since, workflow.versions.get(&workflow.current)?)))
            .collect();
        found.sort_by_key(|(revision, _)| *revision);
        let (mut rows, mut left) = (Vec::new(), max_bytes);
        for (revision, row) in found {
            if row.body.len() > left && !rows.is_empty() {
                break;
            }
            left = left.saturating_sub(row.body.len());
            rows.push((revision, row.clone()));
        }
        Ok(rows)
    }

    async fn add_key(&self, row: KeyRow) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
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

impl State {
    fn next_revision(&mut self) -> Revision {
        self.revision.0 += 1;
        self.revision
    }
}
