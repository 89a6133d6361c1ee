//! Requests over HTTP that their clients may cancel by a notification.
//!
//! A client gets a random session id when it opens. It only keeps apart the request ids of different clients: a session
//! without requests in flight takes no memory, expires never, and any replica serves it. A notification that reaches
//! another replica than its request finds nothing; the wait then ends with its time. Cancelling only ever ends a wait.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use wopr_core::{PrincipalId, TenantId};

use super::message::Id;
use crate::auth::Caller;

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    tenant: TenantId,
    principal: PrincipalId,
    session: String,
    id: Id,
}

impl Key {
    fn new(caller: &Caller, session: &str, id: Id) -> Self {
        Self {
            tenant: caller.tenant.clone(),
            principal: caller.principal.clone(),
            session: session.to_owned(),
            id,
        }
    }
}

/// The requests in flight. Each holds a permit of the host's admission, which bounds their number.
#[derive(Debug, Default)]
pub(super) struct InFlight(Mutex<HashMap<Key, Arc<Notify>>>);

/// A request in flight, until dropped.
#[derive(Debug)]
pub(super) struct Held {
    all: Arc<InFlight>,
    key: Key,
    cancelled: Arc<Notify>,
}

impl InFlight {
    /// Registers a request. `None` if the client already has one in flight with this id.
    pub(super) fn begin(self: &Arc<Self>, caller: &Caller, session: &str, id: Id) -> Option<Held> {
        let key = Key::new(caller, session, id);
        let cancelled = Arc::new(Notify::new());
        match self.0.lock().entry(key.clone()) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(free) => free.insert(Arc::clone(&cancelled)),
        };
        Some(Held {
            all: Arc::clone(self),
            key,
            cancelled,
        })
    }

    /// Cancels a request, if it is in flight.
    pub(super) fn cancel(&self, caller: &Caller, session: &str, id: Id) {
        if let Some(cancelled) = self.0.lock().get(&Key::new(caller, session, id)) {
            cancelled.notify_one();
        }
    }
}

impl Held {
    /// Completes when the request was cancelled.
    pub(super) async fn cancelled(&self) {
        self.cancelled.notified().await;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.key);
    }
}
