//! A second process that changes the registry of a database while a host has it open.
//!
//! The lock file excludes a second host, because a start ends the leases of earlier epochs. A guest begins no
//! epoch and leases no work; the host finds its changes by polling the registry. SQLite's own locks isolate
//! the two, and each waits for the other's transactions.

use std::{fmt, path::Path};

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::{Connection, TransactionBehavior};
use wopr_core::{ContentHash, TenantId, Timestamp, WorkflowId};

use super::{
    fault::Fault,
    open::{self, At as _, OpenError},
    reader::as_of_one_moment,
    registry, schema,
};
use crate::{KeyRow, ReadError, Registry, Revision, WorkflowChange, WorkflowRow, WriteError};

/// The registry of a database that a host may have open. Calls block on file access.
pub struct Guest(Mutex<Connection>);

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").finish_non_exhaustive()
    }
}

impl Guest {
    /// Opens the registry of an existing database with the schema version of this binary.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref();
        schema::check(path, false)?;
        let conn = open::writing_again(path).at(path)?;
        open::prepare(&conn, None).at(path)?;
        Ok(Self(Mutex::new(conn)))
    }

    pub(super) fn read<T>(&self, read: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T, ReadError> {
        Ok(as_of_one_moment(&self.0.lock(), read)?)
    }

    pub(super) fn write<T>(
        &self,
        write: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<T, WriteError> {
        let written = || -> Result<T, Fault> {
            let mut conn = self.0.lock();
            // Rolled back if dropped before its commit.
            let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = write(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        written().map_err(|fault| fault.failure().into())
    }
}

#[async_trait]
impl Registry for Guest {
    async fn put_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError> {
        self.write(|conn| registry::put_workflow(conn, &row))
    }

    async fn add_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError> {
        self.write(|conn| registry::add_workflow(conn, &row))
    }

    async fn remove_workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        check_at: Timestamp,
    ) -> Result<bool, WriteError> {
        self.write(|conn| registry::remove_workflow(conn, tenant, id, check_at))
    }

    async fn workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        version: &ContentHash,
    ) -> Result<Option<WorkflowRow>, ReadError> {
        self.read(|conn| registry::workflow(conn, tenant, id, version))
    }

    async fn workflows_since(
        &self,
        after: Revision,
        max_bytes: usize,
    ) -> Result<Vec<(Revision, WorkflowChange)>, ReadError> {
        self.read(|conn| registry::workflows_since(conn, after, max_bytes))
    }

    async fn add_key(&self, row: KeyRow, limit: usize) -> Result<bool, WriteError> {
        self.write(|conn| registry::add_key(conn, &row, limit))
    }

    async fn revoke_key(&self, tenant: &TenantId, id: &str, at: Timestamp) -> Result<bool, WriteError> {
        self.write(|conn| registry::revoke_key(conn, tenant, id, at))
    }

    async fn keys(&self) -> Result<Vec<KeyRow>, ReadError> {
        self.read(registry::keys)
    }

    async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyRow>, ReadError> {
        self.read(|conn| registry::keys_of(conn, tenant))
    }

    async fn forget_keys(&self, tenant: &TenantId, revoked_before: Timestamp) -> Result<(), WriteError> {
        self.write(|conn| registry::forget_keys(conn, tenant, revoked_before))
    }

    async fn keys_since(&self, after: Revision) -> Result<Vec<(Revision, KeyRow)>, ReadError> {
        self.read(|conn| registry::keys_since(conn, after))
    }
}
