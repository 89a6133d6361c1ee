//! A connection in use, and its cleanup when the caller is cancelled.
//!
//! A caller that has its response gives the connection back. A call that is cancelled earlier, because its
//! client hung up, leaves a statement running at the server. Its connection keeps its turn and passes to a
//! task, which waits briefly for the statement and then cancels it at the server. So no call queues behind an
//! abandoned statement, and there are never more abandoned statements than turns.
//!
//! A cancel request names the connection rather than the statement and may arrive late. A connection that was
//! the target of one is closed and never reused.

use std::{ops::Deref, time::Duration};

use deadpool_postgres::ClientWrapper;
use tokio::{runtime::Handle, time::timeout};
use tokio_util::task::TaskTracker;

use super::{connect::Connector, maker::Object, turns::Turn};

/// How long an abandoned statement may run before it is cancelled. Most end sooner, and their connection is
/// kept.
const GRACE: Duration = Duration::from_millis(100);

/// Cancel requests per connection: one that arrives between two statements has no effect.
const STOPS: u32 = 3;

/// Time limit of each cancel request.
const STOPPING: Duration = Duration::from_secs(1);

/// A connection in use, and its turn. When dropped without being given back or closed, a statement may still
/// be running.
pub(super) struct Connection {
    used: Option<Used>,
    keeper: Keeper,
}

struct Used {
    object: Object,
    _turn: Turn,
}

/// Cleans up abandoned connections.
#[derive(Clone)]
pub(super) struct Keeper {
    connector: Connector,
    tasks: TaskTracker,
}

impl Keeper {
    /// Cancels statements through a connector, on tasks of a tracker that the owner waits for.
    pub(super) fn new(connector: Connector, tasks: TaskTracker) -> Self {
        Self { connector, tasks }
    }

    /// Waits until the server is done with an abandoned connection.
    async fn settle(self, used: Used) {
        match timeout(GRACE, used.object.check_connection()).await {
            // Dropping it returns it to the pool.
            Ok(Ok(())) => return,
            Ok(Err(_)) => return used.close(),
            Err(_) => {}
        }
        for _ in 0..STOPS {
            let stopping = async {
                self.connector.stop(&used.object).await?;
                used.object.check_connection().await
            };
            // If the request cannot be sent or the connection is broken, the statement is over as well.
            if timeout(STOPPING, stopping).await.is_ok() {
                break;
            }
        }
        used.close();
    }
}

impl Used {
    fn close(self) {
        drop(Object::take(self.object));
    }
}

impl Connection {
    pub(super) fn new(object: Object, turn: Turn, keeper: Keeper) -> Self {
        Self {
            used: Some(Used { object, _turn: turn }),
            keeper,
        }
    }

    /// Returns the connection to the pool. All its statements must have been answered, and no transaction may
    /// be open.
    pub(super) fn give_back(mut self) {
        drop(self.used.take());
    }

    /// Closes the connection instead of returning it.
    pub(super) fn close(mut self) {
        if let Some(used) = self.used.take() {
            used.close();
        }
    }
}

impl Deref for Connection {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        &self.used.as_ref().expect("only consuming takes it").object
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some(used) = self.used.take() else { return };
        // Without a runtime no further calls are made.
        match Handle::try_current() {
            Ok(runtime) => {
                let settling = self.keeper.clone().settle(used);
                drop(self.keeper.tasks.spawn_on(settling, &runtime));
            }
            Err(_) => used.close(),
        }
    }
}
