//! The HTTP server that receives effects. It records the idempotency keys of all calls, and is sometimes slow
//! or fails. It outlives all kills.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::time;

use crate::server::{Request, Response, Server, header, respond};

/// By path: the idempotency keys, and the number of successful responses.
pub(super) type Calls = BTreeMap<String, (BTreeSet<String>, u32)>;

#[derive(Debug)]
pub(super) struct Peer {
    server: Server,
    calls: Arc<Mutex<Calls>>,
}

impl Peer {
    pub(super) async fn start(seed: u64) -> Self {
        let calls: Arc<Mutex<Calls>> = Arc::default();
        let seen = Arc::clone(&calls);
        let random = Mutex::new(StdRng::seed_from_u64(seed));
        let server = Server::start(move |request| {
            let random = StdRng::seed_from_u64(random.lock().unwrap().random());
            answer(request, Arc::clone(&seen), random)
        });
        Self {
            server: server.await,
            calls,
        }
    }

    pub(super) fn url(&self) -> String {
        self.server.url()
    }

    pub(super) fn calls(&self) -> Calls {
        self.calls.lock().unwrap().clone()
    }
}

async fn answer(request: Request, calls: Arc<Mutex<Calls>>, mut random: StdRng) -> Option<Response> {
    let path = request.uri().path().to_owned();
    let key = header(&request, "idempotency-key").unwrap_or("none").to_owned();
    calls
        .lock()
        .unwrap()
        .entry(path.clone())
        .or_default()
        .0
        .insert(key);
    if random.random_bool(0.3) {
        // Sometimes longer than a lease, which then has to be renewed.
        let longest = if random.random_bool(0.1) { 2_500 } else { 150 };
        // sleep: fault schedule; the kill is to hit calls that are under way
        time::sleep(Duration::from_millis(random.random_range(0..longest))).await;
    }
    if random.random_bool(0.2) {
        return Some(respond(500, r#"{"ok":false}"#));
    }
    calls.lock().unwrap().entry(path).or_default().1 += 1;
    Some(respond(200, r#"{"ok":true}"#))
}
