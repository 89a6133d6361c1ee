//! Deliveries to push subscriptions: pending ones, and dead-lettered ones that can be retried.

use wopr_core::{RunId, RunKey, Seq, Timestamp};
use wopr_store::{DeliveryCursor, DeliveryFilter, DeliveryRow};

use crate::{App, Caller, Error, Scope, VisibleRun};

/// A delivery that is pending or dead-lettered, without the body to deliver.
#[derive(Debug, Clone)]
pub struct ListedDelivery {
    pub run: RunId,
    /// The id of the subscription.
    pub subscription: String,
    /// The event to deliver.
    pub seq: Seq,
    pub enqueued_at: Timestamp,
    /// Number of failed attempts.
    pub attempts: u64,
    /// The error of the last attempt.
    pub error: Option<String>,
    pub given_up_at: Option<Timestamp>,
}

impl App {
    /// Lists deliveries for the runs that the caller may see, of one run or of all.
    pub async fn list_deliveries(
        &self,
        caller: &Caller,
        run: Option<RunId>,
        is_given_up: bool,
        after: Option<&DeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<ListedDelivery>, Error> {
        caller.require(Scope::WebhooksManage)?;
        if let Some(run) = &run {
            self.existing_run(caller, run).await?;
        }
        let filter = DeliveryFilter {
            tenant: caller.tenant.clone(),
            run,
            principal: self.owner(caller),
            given_up: is_given_up,
        };
        let store = self.engine.store();
        let rows = store.deliveries(&filter, after, limit).await?;
        Ok(rows.into_iter().map(ListedDelivery::from).collect())
    }

    /// Retries dead-lettered deliveries of a run, of one subscription or of all; and with all, what the agents of its
    /// calls have not been told yet. Returns how many; `None` if the run has no such subscription.
    pub async fn retry_deliveries(
        &self,
        caller: &Caller,
        run: &RunId,
        subscription: Option<String>,
        seq: Option<Seq>,
    ) -> Result<Option<usize>, Error> {
        let run = self.existing_run(caller, run).await?;
        let mut subscriptions = self.subscription_ids(&run).await?;
        let mut n_retried = 0;
        match subscription {
            Some(id) => {
                subscriptions.retain(|known| *known == id);
                if subscriptions.is_empty() {
                    return Ok(None);
                }
            }
            None => n_retried += self.engine.retry_call_deliveries(&run).await?,
        }
        for id in subscriptions {
            n_retried += self.engine.retry_push(&run, &id, seq).await?;
        }
        Ok(Some(n_retried))
    }

    async fn existing_run(&self, caller: &Caller, run: &RunId) -> Result<VisibleRun, Error> {
        let run = self.find_run(caller, run.as_str(), Scope::WebhooksManage).await?;
        self.head(&run).await?.ok_or(Error::NoRun)?;
        Ok(run)
    }

    async fn subscription_ids(&self, run: &RunKey) -> Result<Vec<String>, Error> {
        let rows = self.engine.store().pushes(run).await?;
        Ok(rows.into_iter().map(|row| row.id).collect())
    }
}

impl From<DeliveryRow> for ListedDelivery {
    fn from(row: DeliveryRow) -> Self {
        let DeliveryRow {
            run,
            push,
            seq,
            body: _,
            enqueued_at,
            attempts,
            error,
            dead_at,
        } = row;
        Self {
            run: run.run,
            subscription: push,
            seq,
            enqueued_at,
            attempts,
            error,
            given_up_at: dead_at,
        }
    }
}
