//! Idempotent requests: their records and replays.

use wopr_core::Timestamp;
use wopr_engine::{Done, Idempotency};
use wopr_store::{IdempotencyKey, IdempotencyRecord};

use crate::{App, Caller, Error};

impl Caller {
    /// Identifies a request of this caller. `scope` separates the operations, `key` the requests.
    #[must_use]
    pub fn idempotency_key(&self, scope: String, key: String) -> IdempotencyKey {
        IdempotencyKey {
            tenant: self.tenant.clone(),
            principal: self.principal.clone(),
            scope,
            key,
        }
    }
}

impl App {
    /// When the idempotency record of a request made now expires.
    #[must_use]
    pub fn idempotency_expiry(&self) -> Timestamp {
        let retention = self.options.idempotency_retention_ms;
        self.engine.now().plus_millis(retention)
    }

    /// The record of a request that took effect before.
    pub async fn recorded(&self, key: &IdempotencyKey) -> Result<Option<IdempotencyRecord>, Error> {
        let now = self.engine.now();
        Ok(self.engine.store().idempotency(key, now).await?)
    }

    /// Replays a request if it took effect before.
    ///
    /// # Errors
    /// [`Error::KeyReused`] if the key was used for another request.
    pub async fn replay(&self, once: &Idempotency) -> Result<Option<Done>, Error> {
        match self.recorded(&once.key).await? {
            Some(record) if record.digest == once.digest => Ok(Some(Done::Replayed(record))),
            Some(_) => Err(Error::KeyReused),
            None => Ok(None),
        }
    }

    /// Records a request that needed no append. If a record with the same key exists, keeps and returns it.
    pub async fn remember(&self, record: IdempotencyRecord) -> Result<Option<IdempotencyRecord>, Error> {
        let now = self.engine.now();
        Ok(self.engine.store().remember(record, now).await?)
    }
}
