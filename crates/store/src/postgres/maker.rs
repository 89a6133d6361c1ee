//! How the pool creates connections.

use deadpool::managed::{self, Manager, Metrics, RecycleError};
use deadpool_postgres::ClientWrapper;

use super::connect::{Connector, Unreached};

/// The first statements of every pooled connection. Locks are held for one append, so a longer wait means
/// that their holder has stopped, and the server ends such a transaction before `lock_timeout`. Acknowledged
/// writes must be durable: `synchronous_commit` is turned on if the server's default is off, and left alone
/// if it is stricter.
const SESSION: &str = "SET statement_timeout = '30s';
    SET lock_timeout = '20s';
    SET idle_in_transaction_session_timeout = '10s';
    SELECT set_config('synchronous_commit', 'on', false)
        WHERE current_setting('synchronous_commit', true) = 'off'";

/// A connection of the pool, returned to it when dropped.
pub(super) type Object = managed::Object<Maker>;

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

    /// Checks only the state of the socket; asking the server would cost every call a round trip.
    async fn recycle(&self, client: &mut ClientWrapper, _: &Metrics) -> Result<(), RecycleError<Unreached>> {
        if client.is_closed() {
            return Err(RecycleError::message("the connection is closed"));
        }
        Ok(())
    }
}
