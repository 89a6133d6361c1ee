//! A connection in use, and what becomes of it when its caller goes away.
//!
//! Who has its answer gives the connection back. A call that is dropped before that, because its client hung up, leaves
//! a statement behind that the server goes on with. Such a connection keeps its turn and goes to a task: what ends soon
//! is waited for, what does not is stopped at the server. So no call is ever behind a statement that nobody waits for,
//! and there are never more of these than there are turns.
//!
//! A request to stop a statement names the connection and not the statement, and may arrive late. A connection that one
//! was made for is closed and never used again.

use std::{ops::Deref, time::Duration};

use deadpool_postgres::ClientWrapper;
use tokio::{runtime::Handle, time::timeout};
use tokio_util::task::TaskTracker;

use super::{connect::Connector, maker::Object, turns::Turn};

/// How long an abandoned statement may go on. Most are done by then, and their connection is worth keeping.
const GRACE: Duration = Duration::from_millis(100);

/// How often the server is asked to stop what it does on a connection: between two statements it hears nothing.
const STOPS: u32 = 3;

/// How long it may take to stop each time.
const STOPPING: Duration = Duration::from_secs(1);

/// A connection in use, and its turn. Unless it is given back or closed, it may be in the middle of something.
pub(super) struct Connection {
    used: Option<Used>,
    keeper: Keeper,
}

struct Used {
    object: Object,
    _turn: Turn,
}

/// Looks after connections that were abandoned.
#[derive(Clone)]
pub(super) struct Keeper {
    connector: Connector,
    tasks: TaskTracker,
}

impl Keeper {
    /// Stops statements through a connector, on tasks that somebody else waits for.
    pub(super) fn new(connector: Connector, tasks: TaskTracker) -> Self {
        Self { connector, tasks }
    }

    /// Sees to it that the server is done with an abandoned connection.
    async fn settle(self, used: Used) {
        match timeout(GRACE, used.object.check_connection()).await {
            // Dropping gives it back.
            Ok(Ok(())) => return,
            Ok(Err(_)) => return used.close(),
            Err(_) => {}
        }
        for _ in 0..STOPS {
            let stopping = async {
                self.connector.stop(&used.object).await?;
                used.object.check_connection().await
            };
            // What cannot be asked, or is broken, is over with as well.
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

    /// Lets the next one have it. Everything that was sent over it has been answered, and no transaction is open.
    pub(super) fn give_back(mut self) {
        drop(self.used.take());
    }

    /// Closes it instead of giving it back.
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
        // Without a runtime there are no further calls either.
        match Handle::try_current() {
            Ok(runtime) => {
                let settling = self.keeper.clone().settle(used);
                drop(self.keeper.tasks.spawn_on(settling, &runtime));
            }
            Err(_) => used.close(),
        }
    }
}
