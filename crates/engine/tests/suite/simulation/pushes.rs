//! The faulty connection, for subscriptions and deliveries.

use async_trait::async_trait;
use wopr_core::{RunKey, Seq, Timestamp};
use wopr_store::{
    Attempted, DeliveryCursor, DeliveryFilter, DeliveryRow, Epoch, Fence, OutboxRow, Pending, PushRow,
    Pushes, Put, ReadError, Then, Update, WriteError,
};

use super::store::Connection;

#[async_trait]
impl Pushes for Connection {
    async fn put_push(
        &self,
        run: &RunKey,
        row: PushRow,
        most: usize,
        now: Timestamp,
    ) -> Result<Put, WriteError> {
        self.write("put push").await?;
        let put = self.memory().put_push(run, row, most, now).await?;
        self.written("push put", put).await
    }

    async fn pushes(&self, run: &RunKey) -> Result<Vec<PushRow>, ReadError> {
        self.read("pushes").await?;
        self.memory().pushes(run).await
    }

    async fn drop_push(&self, run: &RunKey, id: &str) -> Result<bool, WriteError> {
        self.write("drop push").await?;
        let was_there = self.memory().drop_push(run, id).await?;
        self.written("push dropped", was_there).await
    }

    async fn outbox(
        &self,
        epoch: Epoch,
        after: Option<&RunKey>,
        limit: usize,
    ) -> Result<Vec<OutboxRow>, ReadError> {
        self.read("outbox").await?;
        self.memory().outbox(epoch, after, limit).await
    }

    async fn expand(&self, row: &OutboxRow, updates: &[Update], now: Timestamp) -> Result<bool, WriteError> {
        self.write("expand").await?;
        let expanded = self.memory().expand(row, updates, now).await?;
        self.written("expanded", expanded).await
    }

    async fn waiting(&self, run: &RunKey, push: &str, limit: usize) -> Result<Pending, ReadError> {
        self.read("waiting").await?;
        self.memory().waiting(run, push, limit).await
    }

    async fn settle_push(
        &self,
        run: &RunKey,
        push: &str,
        fence: Fence,
        attempted: (Seq, Attempted),
        then: Then,
    ) -> Result<bool, WriteError> {
        self.write("settle push").await?;
        let settled = self
            .memory()
            .settle_push(run, push, fence, attempted, then)
            .await?;
        self.written("push settled", settled).await
    }

    async fn deliveries(
        &self,
        filter: &DeliveryFilter,
        after: Option<&DeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<DeliveryRow>, ReadError> {
        self.read("deliveries").await?;
        self.memory().deliveries(filter, after, limit).await
    }

    async fn retry_push(
        &self,
        run: &RunKey,
        push: &str,
        seq: Option<Seq>,
        now: Timestamp,
    ) -> Result<usize, WriteError> {
        self.write("retry push").await?;
        let n_retried = self.memory().retry_push(run, push, seq, now).await?;
        self.written("push retried", n_retried).await
    }
}
