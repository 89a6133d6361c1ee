//! Push subscriptions of runs, and deliveries to them.

use wopr_core::{RunKey, Seq};
use wopr_store::{DeliveryCursor, DeliveryFilter, DeliveryRow, PushRow, Put};

use crate::{App, Caller, Error};

impl App {
    /// The subscriptions of a run, in the order of their creation.
    pub async fn subscriptions(&self, run: &RunKey) -> Result<Vec<PushRow>, Error> {
        Ok(self.engine.store().pushes(run).await?)
    }

    /// Adds a subscription, or replaces the one with the same id.
    pub async fn subscribe(&self, run: &RunKey, row: PushRow) -> Result<Put, Error> {
        let most = self.options.max_subscriptions;
        Ok(self.engine.put_push(run, row, most).await?)
    }

    /// Removes a subscription and its pending deliveries, if it exists.
    pub async fn unsubscribe(&self, run: &RunKey, id: &str) -> Result<(), Error> {
        self.engine.store().drop_push(run, id).await?;
        Ok(())
    }

    /// Lists deliveries that are pending or dead-lettered.
    pub async fn list_deliveries(
        &self,
        filter: &DeliveryFilter,
        after: Option<&DeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<DeliveryRow>, Error> {
        Ok(self.engine.store().deliveries(filter, after, limit).await?)
    }

    /// Retries dead-lettered deliveries of a run, of one subscription or of all. Returns how many. If the
    /// caller may not see the run, there are none.
    pub async fn retry_deliveries(
        &self,
        caller: &Caller,
        run: &RunKey,
        subscription: Option<String>,
        seq: Option<Seq>,
    ) -> Result<usize, Error> {
        if !self.sees(caller, run).await? {
            return Ok(0);
        }
        let subscriptions = match subscription {
            Some(id) => vec![id],
            None => self
                .subscriptions(run)
                .await?
                .into_iter()
                .map(|row| row.id)
                .collect(),
        };
        let mut n_retried = 0;
        for id in subscriptions {
            n_retried += self.engine.retry_push(run, &id, seq).await?;
        }
        Ok(n_retried)
    }
}
