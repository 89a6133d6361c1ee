//! Requests that take effect once: their records, and what a repeat is answered with.

use wopr_core::Timestamp;
use wopr_engine::{Done, Idempotency};
use wopr_store::{IdempotencyKey, IdempotencyRecord};

use crate::{App, Error};

impl App {
    /// When the record of a request that is made now may be forgotten.
    #[must_use]
    pub fn idempotency_expiry(&self) -> Timestamp {
        let retention = self.options.idempotency_retention_ms;
        self.engine.now().plus_millis(retention)
    }

    /// The record of a request under a key, if it took effect before.
    pub async fn recorded(&self, key: &IdempotencyKey) -> Result<Option<IdempotencyRecord>, Error> {
        let now = self.engine.now();
        Ok(self.engine.store().idempotency(key, now).await?)
    }

    /// The outcome of a request, if it took effect before. The same key with another request is an error.
    pub async fn replay(&self, once: &Idempotency) -> Result<Option<Done>, Error> {
        match self.recorded(&once.key).await? {
            Some(record) if record.digest == once.digest => Ok(Some(Done::Replayed(record))),
            Some(_) => Err(Error::KeyReused),
            None => Ok(None),
        }
    }

    /// Records a request that needed no append of its own. Returns the record of an earlier one with the same key, which
    /// stays.
    pub async fn remember(&self, record: IdempotencyRecord) -> Result<Option<IdempotencyRecord>, Error> {
        let now = self.engine.now();
        Ok(self.engine.store().remember(record, now).await?)
    }
}
