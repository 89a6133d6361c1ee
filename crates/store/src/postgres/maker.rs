//! How the pool has its connections made.

use deadpool::managed::{self, Manager, Metrics, RecycleError};
use deadpool_postgres::ClientWrapper;

use super::connect::{Connector, Unreached};

/// What every pooled connection is told first. Locks are held for one append, so whoever waits longer for one
/// waits for a process that is stopped; the server ends such a process's transaction before that. An acknowledged
/// write is durable: where the server's default says otherwise it is raised, and left alone where it says more.
const SESSION: &str = "SET statement_timeout = '30s';
    SET lock_timeout = '20s';
    SET idle_in_transaction_session_timeout = '10s';
    SELECT set_config('synchronous_commit', 'on', false)
        WHERE current_setting('synchronous_commit', true) = 'off'";

/// A connection of the pool, which has it back when this is dropped.
pub(super) type Object = managed::Object<Maker>;

/// Makes the pool's connections.
pub(super) struct Maker(Connector);

impl Maker {
    pub(super) fn new(connector: Connector) -> Self {
        Self(connector)
    }
}

impl Manager for Maker {
    type Type = ClientWrapper;
    type Error = Unreached;

    async fn create(&self) -> Result<ClientWrapper, Unreached> {
        Ok(self.0.connect(SESSION).await?.into_client())
    }

    /// Looks at the socket's state; asking the server would cost every call a round trip.
    async fn recycle(&self, client: &mut ClientWrapper, _: &Metrics) -> Result<(), RecycleError<Unreached>> {
        if client.is_closed() {
            return Err(RecycleError::message("the connection is closed"));
        }
        Ok(())
    }
}
