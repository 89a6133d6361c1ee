//! Push subscriptions of runs, and deliveries to them.

use wopr_core::{RunKey, Seq};
use wopr_store::{DeliveryCursor, DeliveryFilter, DeliveryRow, PushRow, Put};

use crate::{App, Caller, Error};

impl App {
    /// The subscriptions of a run, in the order in which they were set.
    pub async fn subscriptions(&self, run: &RunKey) -> Result<Vec<PushRow>, Error> {
        Ok(self.engine.store().pushes(run).await?)
    }

    /// Adds a subscription, or replaces the one of its id.
    pub async fn subscribe(&self, run: &RunKey, row: PushRow) -> Result<Put, Error> {
        let most = self.options.max_subscriptions;
        Ok(self.engine.put_push(run, row, most).await?)
    }

    /// Removes a subscription and its waiting deliveries, if it is there.
    pub async fn unsubscribe(&self, run: &RunKey, id: &str) -> Result<(), Error> {
        self.engine.store().drop_push(run, id).await?;
        Ok(())
    }

    /// Deliveries that wait, or that were given up.
    pub async fn list_deliveries(
        &self,
        filter: &DeliveryFilter,
        after: Option<&DeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<DeliveryRow>, Error> {
        Ok(self.engine.store().deliveries(filter, after, limit).await?)
    }

    /// Lets deliveries of a run that were given up be tried again: those of one subscription or of all. Returns how
    /// many. A run that the caller does not see has none.
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
