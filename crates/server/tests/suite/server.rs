//! A server for tests: its host, its address, and callers of two tenants.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle};
use wopr_core::{TenantId, Timestamp};
use wopr_engine::{Clock, SteadyClock, SystemClock};
use wopr_server::{
    Config, Host,
    auth::Scopes,
    bind,
    config::{Key, Secret, StoreUrl},
    serve,
};

use crate::{client::Call, workflows};

/// Every scope in tenant `acme`.
pub(crate) const ALICE: &str = "alice-secret-0123456789";
/// Another principal of `acme`.
pub(crate) const ADAM: &str = "adam-secret-0123456789";
/// Every scope in tenant `rival`.
pub(crate) const BOB: &str = "bob-secret-0123456789";
/// Only `runs:read` in `acme`.
pub(crate) const READER: &str = "reader-secret-0123456789";

/// A server that runs until it is stopped or dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) host: Arc<Host>,
    pub(crate) clock: Arc<ShiftedClock>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
    folder: TempDir,
}

/// The system clock with an offset.
#[derive(Debug, Default)]
pub(crate) struct ShiftedClock(AtomicI64);

impl ShiftedClock {
    pub(crate) fn advance(&self, millis: i64) {
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for ShiftedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(SystemClock.now().millis() + self.0.load(Ordering::SeqCst))
    }
}

pub(crate) fn key(id: &str, secret: &str, tenant: &str, scopes: Scopes) -> Key {
    Key {
        id: id.to_owned(),
        secret: Some(Secret::new(secret)),
        secret_sha256: None,
        tenant: TenantId::parse(tenant).unwrap(),
        principal: None,
        scopes,
        roles: Vec::new(),
        groups: Vec::new(),
    }
}

/// A configuration with the callers and a memory store.
pub(crate) fn config() -> Config {
    let mut config = Config {
        store: StoreUrl::Memory,
        conformance: true,
        ..Config::default()
    };
    config.server.listen = "127.0.0.1:0".parse().unwrap();
    config.auth.keys = vec![
        key("alice", ALICE, "acme", Scopes::ALL),
        key("adam", ADAM, "acme", Scopes::ALL),
        key("bob", BOB, "rival", Scopes::ALL),
        key("reader", READER, "acme", Scopes::parse(&["runs:read"]).unwrap()),
    ];
    config
}

impl Server {
    /// Starts in memory, with the test workflows.
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_on_sqlite() -> Self {
        Self::start_with(|config| config.store = StoreUrl::Sqlite("wopr.db".into())).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let (folder, clock) = (tempfile::tempdir().unwrap(), Arc::default());
        Self::start_in(folder, clock, change).await
    }

    /// Stops and starts again on the same SQLite database, with the same clock.
    pub(crate) async fn again_on_sqlite(self) -> Self {
        self.again_with(|_| {}).await
    }

    /// Like [`Self::again_on_sqlite`], with changes to the configuration.
    pub(crate) async fn again_with(self, change: impl FnOnce(&mut Config)) -> Self {
        let Self {
            stop,
            serving,
            folder,
            clock,
            ..
        } = self;
        let _ = stop.unwrap().send(());
        serving.await.unwrap();
        Self::start_in(folder, clock, |config| {
            config.store = StoreUrl::Sqlite("wopr.db".into());
            change(config);
        })
        .await
    }

    async fn start_in(folder: TempDir, clock: Arc<ShiftedClock>, change: impl FnOnce(&mut Config)) -> Self {
        let definitions = folder.path().join("workflows");
        if !definitions.exists() {
            workflows::write_all(&definitions);
        }
        let mut config = config();
        config.workflows = vec![definitions];
        change(&mut config);
        if let StoreUrl::Sqlite(path) = &mut config.store {
            *path = folder.path().join(&*path);
        }
        let listeners = bind(&mut config).unwrap().listen().unwrap();
        let address = config.server.listen.0;
        let steady = SteadyClock::over(Arc::clone(&clock) as Arc<dyn Clock>);
        let host = Host::open_with(config, Arc::new(steady)).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(serve(Arc::clone(&host), listeners, async {
            // Dropping the server stops it too.
            let _ = stopped.await;
        }));
        Self {
            address,
            host,
            clock,
            stop: Some(stop),
            serving,
            folder,
        }
    }

    /// Shuts down gracefully.
    pub(crate) async fn stop(mut self) {
        let _ = self.stop.take().unwrap().send(());
        self.serving.await.unwrap();
    }

    /// The database of [`Server::start_on_sqlite`].
    pub(crate) fn database(&self) -> PathBuf {
        self.folder.path().join("wopr.db")
    }

    pub(crate) fn call(&self, method: &str, path: &str) -> Call {
        Call::new(self.address, method, path)
    }

    pub(crate) fn get(&self, path: &str) -> Call {
        self.call("GET", path).key(ALICE)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Call {
        self.call("POST", path).key(ALICE).json(body)
    }

    /// Starts a run and returns its id.
    pub(crate) async fn run(&self, workflow: &str, inputs: Value) -> String {
        let body = json!({ "workflowId": workflow, "inputs": inputs });
        let created = self.post("/v1/runs", &body).send().await.ok(201);
        created["runId"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn snapshot(&self, run: &str) -> Value {
        self.get(&format!("/v1/runs/{run}")).send().await.ok(200)
    }

    /// Long-polls a run until it has a status; every change is an event, so each poll waits for one.
    pub(crate) async fn wait_for(&self, run: &str, status: &str) -> Value {
        self.wait_for_any(run, &[status]).await
    }

    /// Waits until a run has one of these statuses.
    pub(crate) async fn wait_for_any(&self, run: &str, wanted: &[&str]) -> Value {
        let is_wanted = |status: &Value| status.as_str().is_some_and(|status| wanted.contains(&status));
        let mut after = String::new();
        loop {
            let snapshot = self.snapshot(run).await;
            if is_wanted(&snapshot["status"]) {
                return snapshot;
            }
            let path = format!("/v1/runs/{run}/events/poll?timeout=10{after}");
            let poll = self.get(&path).send().await.ok(200);
            let ended = poll["isComplete"] == true && !is_wanted(&poll["runStatus"]);
            assert!(!ended, "the run is {wanted:?} at some time: {poll}");
            after = format!("&lastSequence={}", poll["lastEventSeq"]);
        }
    }

    pub(crate) async fn event_types(&self, run: &str) -> Vec<String> {
        let path = format!("/v1/runs/{run}/events/poll?timeout=1");
        let poll = self.get(&path).send().await.ok(200);
        let events = poll["events"].as_array().unwrap();
        events
            .iter()
            .map(|event| event["type"].as_str().unwrap().to_owned())
            .collect()
    }
}

impl Server {
    /// Sends raw bytes.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> crate::client::Reply {
        crate::client::raw(self.address, bytes).await
    }
}
