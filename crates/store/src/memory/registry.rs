//! The registry in memory.

use std::collections::{BTreeMap, btree_map::Entry};

use async_trait::async_trait;
use wopr_core::{ContentHash, TenantId, Timestamp, WorkflowId};

use super::{MemoryStore, Workflow};
use crate::{KeyRow, ReadError, Registry, WorkflowRow, WriteError};

#[async_trait]
impl Registry for MemoryStore {
    async fn put_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        let workflow = state
            .workflows
            .entry((row.tenant.clone(), row.id.clone()))
            .or_insert_with(|| Workflow {
                current: row.version.clone(),
                versions: BTreeMap::new(),
            });
        workflow.current = row.version.clone();
        match workflow.versions.entry(row.version.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(row);
                Ok(true)
            }
            Entry::Occupied(_) => Ok(false),
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

    async fn current_workflows(&self) -> Result<Vec<WorkflowRow>, ReadError> {
        let state = self.state.lock();
        Ok(state
            .workflows
            .values()
            .filter_map(|workflow| workflow.versions.get(&workflow.current))
            .cloned()
            .collect())
    }

    async fn put_key(&self, row: KeyRow) -> Result<(), WriteError> {
        self.state.lock().keys.insert(row.id.clone(), row);
        Ok(())
    }

    async fn revoke_key(&self, id: &str, at: Timestamp) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        match state.keys.get_mut(id) {
            Some(key) if key.revoked_at.is_none() => {
                key.revoked_at = Some(at);
                Ok(true)
            }
            Some(_) | None => Ok(false),
        }
    }

    async fn keys(&self) -> Result<Vec<KeyRow>, ReadError> {
        Ok(self.state.lock().keys.values().cloned().collect())
    }
}
