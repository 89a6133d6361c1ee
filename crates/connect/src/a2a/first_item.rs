//! The time that an agent has for the first item of the stream that answers a message.
//!
//! A stream is kept open by comments, so the limit between two bytes says nothing about items. Until the first item
//! the caller knows nothing of its task, and an executor that waits for it holds a slot.

use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};
use wopr_wire::a2a::method::Operation;

use super::{
    error::Error,
    line::{Call, Items},
};
use crate::egress::EgressError;

/// The end of the wait for the first item; `None` means no limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstItem(Option<Instant>);

impl FirstItem {
    /// Starts the wait. A subscription has none: an agent may send nothing until its task changes.
    pub(super) fn of(operation: Operation, call: &Call) -> Self {
        if operation == Operation::SendStreamingMessage {
            Self(Instant::now().checked_add(call.first_timeout))
        } else {
            Self(None)
        }
    }

    /// Waits for the stream to open.
    pub(super) async fn within(
        self,
        opening: impl Future<Output = Result<Items, Error>>,
    ) -> Result<Items, Error> {
        match self.0 {
            None => opening.await,
            Some(end) => match timeout_at(end, opening).await {
                Ok(opened) => opened,
                Err(_) => Err(Error::TimedOut(EgressError::Timeout)),
            },
        }
    }

    /// The items, of which the first one is an error if it comes too late.
    pub(super) fn of_stream(self, items: Items) -> Items {
        let Some(end) = self.0 else { return items };
        let first = stream::once(async move {
            let mut items = items;
            match timeout_at(end, items.next()).await {
                Ok(None) => stream::empty().boxed(),
                Ok(Some(first)) => stream::iter([first]).chain(items).boxed(),
                Err(_) => stream::iter([Err(Error::TimedOut(EgressError::Timeout))]).boxed(),
            }
        });
        first.flatten().boxed()
    }
}
