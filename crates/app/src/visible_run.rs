//! The proof that a run may be read.
//!
//! Reads take a [`VisibleRun`] instead of a key, so a protocol face cannot forget to check the scope, the
//! tenant or the owner. A stream keeps it, so the check is made once and not for each page.

use std::{fmt, ops::Deref};

use wopr_core::{RunId, RunKey};
use wopr_engine::View;
use wopr_store::IdempotencyRecord;

use crate::{App, Caller, Error, Scope};

/// The key of a run that the caller may see. The run itself may be gone, or may never have existed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisibleRun(RunKey);

impl VisibleRun {
    pub(crate) const fn new(key: RunKey) -> Self {
        Self(key)
    }

    /// The run of a verified interrupt token. A token is a permission of its own, without a caller.
    #[must_use]
    pub const fn by_token(key: RunKey) -> Self {
        Self(key)
    }

    /// The run of a verified activity token, for a worker of its tenant.
    ///
    /// # Errors
    /// [`Error::NoRun`] for a run of another tenant.
    pub fn of_activity(key: RunKey, caller: &Caller) -> Result<Self, Error> {
        match key.tenant == caller.tenant {
            true => Ok(Self(key)),
            false => Err(Error::NoRun),
        }
    }

    /// The run that a request took effect on. Only the principal of the request finds its record.
    #[must_use]
    pub fn of_record(record: &IdempotencyRecord) -> Option<Self> {
        let run = record.run.clone()?;
        Some(Self(RunKey::new(record.key.tenant.clone(), run)))
    }
}

impl From<&View> for VisibleRun {
    /// A face has views only of runs that its caller may see.
    fn from(view: &View) -> Self {
        Self(view.key.clone())
    }
}

impl Deref for VisibleRun {
    type Target = RunKey;

    fn deref(&self) -> &RunKey {
        &self.0
    }
}

impl fmt::Display for VisibleRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl App {
    /// Finds a run by its id. An invalid id is that of no run.
    ///
    /// The scope is checked before anything is looked up, so that a missing scope reveals nothing about the
    /// run. Without private runs nothing is read, so the run need not exist.
    ///
    /// # Errors
    /// [`Error::NoRun`] also for a run that the caller may not see.
    pub async fn find_run(&self, caller: &Caller, id: &str, scope: Scope) -> Result<VisibleRun, Error> {
        caller.require(scope)?;
        let run = RunId::parse(id).map_err(|_| Error::NoRun)?;
        let key = RunKey::new(caller.tenant.clone(), run);
        match self.sees(caller, &key).await? {
            true => Ok(VisibleRun(key)),
            false => Err(Error::NoRun),
        }
    }

    /// Finds a run by the name that its creator gave it.
    ///
    /// # Errors
    /// [`Error::NoRun`] also for a run that the caller may not see.
    pub async fn find_alias(&self, caller: &Caller, alias: &str, scope: Scope) -> Result<VisibleRun, Error> {
        caller.require(scope)?;
        let found = self.engine.run_of_alias(&caller.tenant, alias).await?;
        let key = RunKey::new(caller.tenant.clone(), found.ok_or(Error::NoRun)?);
        match self.sees(caller, &key).await? {
            true => Ok(VisibleRun(key)),
            false => Err(Error::NoRun),
        }
    }

    /// Returns `true` if the caller may see the run, which need not exist.
    async fn sees(&self, caller: &Caller, run: &RunKey) -> Result<bool, Error> {
        let Some(owner) = self.owner(caller) else {
            return Ok(true);
        };
        if self.engine.creator_at_hand(run).as_ref() == Some(&owner) {
            return Ok(true);
        }
        // The same row says if the run exists at all, so the response time does not reveal that another
        // principal has such a run.
        let summary = self.engine.summary(run).await?;
        Ok(summary.is_some_and(|(summary, _)| summary.principal == owner))
    }
}
