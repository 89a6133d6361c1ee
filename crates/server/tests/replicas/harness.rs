//! Replicas as separate processes would have them: a store and an engine each, on one schema.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_postgres::NoTls;
use wopr_core::{
    Command, NodeId, NodeTypes, Origin, PrincipalId, Resolve, RunKey, RunStatus, Seq, TenantId, WorkflowId,
};
use wopr_engine::{
    Attempt, Clock, Create, Done, Engine, Executor, Options, Outcome, Report, SideRows, Start, SystemClock,
    View,
};
use wopr_server::{
    Body, Config, Faces, Host,
    auth::Scopes,
    config::{Key, Secret, StoreUrl},
};
use wopr_store::{PostgresStore, postgres};

/// The variable that names the PostgreSQL server started for the tests.
pub(crate) const SERVER: &str = "WOPR_TEST_POSTGRES";

/// Creates a schema and returns its URL.
pub(crate) async fn schema() -> String {
    let server = std::env::var(SERVER).expect(
        "WOPR_TEST_POSTGRES is set: run `cargo xtask test`, or a few tests with `cargo xtask pg -- cargo nextest run …`",
    );
    let name = format!("wopr_test_{:016x}", rand::random::<u64>());
    let (client, connection) = tokio_postgres::connect(&server, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
        .batch_execute(&format!("CREATE SCHEMA {name}"))
        .await
        .unwrap();
    let mark = if server.contains('?') { '&' } else { '?' };
    format!("{server}{mark}options=-csearch_path%3D{name}")
}

/// Hands each attempt to the test, which may answer it or let it hang.
#[derive(Debug)]
pub(crate) struct Steered(mpsc::Sender<(Attempt, oneshot::Sender<Outcome>)>);

pub(crate) type Attempts = Mutex<mpsc::Receiver<(Attempt, oneshot::Sender<Outcome>)>>;

pub(crate) fn steered() -> (Arc<Steered>, Attempts) {
    let (sender, receiver) = mpsc::channel(8);
    (Arc::new(Steered(sender)), Mutex::new(receiver))
}

#[async_trait]
impl Executor for Steered {
    async fn run(&self, attempt: Attempt) -> Report {
        let (reply, outcome) = oneshot::channel();
        self.0.send((attempt, reply)).await.expect("the test listens");
        match outcome.await {
            Ok(outcome) => outcome.into(),
            Err(_) => std::future::pending().await,
        }
    }
}

/// How replicas learn of each other's changes: only by hints, only by polling, or not at all.
#[derive(Debug, Clone, Copy)]
pub(crate) enum News {
    Hints,
    Polling,
    /// Neither: the engine must look when asked.
    Looking,
}

impl News {
    pub(crate) fn url(self, url: &str) -> String {
        match self {
            Self::Hints => format!("{url}&hints=on"),
            Self::Polling | Self::Looking => format!("{url}&hints=off"),
        }
    }

    pub(crate) fn options(self) -> Options {
        let (poll, lease) = match self {
            Self::Hints | Self::Looking => (Duration::from_secs(3_600), Duration::from_secs(3_600)),
            Self::Polling => (Duration::from_millis(50), Duration::from_millis(500)),
        };
        Options {
            node_types: NodeTypes { conformance: true },
            poll,
            lease,
            ..Options::default()
        }
    }
}

/// Starts a replica with its own store and engine.
pub(crate) async fn replica(url: &str, news: News, executor: Arc<dyn Executor>) -> Engine {
    replica_by(url, news, executor, Arc::new(SystemClock)).await
}

pub(crate) async fn replica_by(
    url: &str,
    news: News,
    executor: Arc<dyn Executor>,
    clock: Arc<dyn Clock>,
) -> Engine {
    let store = PostgresStore::open(&news.url(url), postgres::Options::default())
        .await
        .unwrap();
    Engine::start(Arc::new(store), executor, clock, news.options())
        .await
        .unwrap()
}

pub(crate) fn node(id: &str, type_id: &str, config: impl Into<Value>) -> Value {
    let config = config.into();
    json!({
        "id": id, "typeId": type_id, "name": id, "position": { "x": 0, "y": 0 }, "config": config, "inputs": {},
    })
}

/// A workflow with the nodes in sequence.
pub(crate) fn workflow(id: &str, nodes: &[Value]) -> Value {
    let edges: Vec<_> = nodes
        .windows(2)
        .enumerate()
        .map(|(n, pair)| json!({ "id": format!("e{n}"), "sourceNodeId": pair[0]["id"], "targetNodeId": pair[1]["id"] }))
        .collect();
    json!({
        "id": id, "name": id, "version": "1", "nodes": nodes, "edges": edges,
        "triggers": [{ "id": "manual", "type": "manual" }], "variables": [], "metadata": {}, "settings": {},
    })
}

pub(crate) fn workflows() -> [Value; 4] {
    [
        workflow(
            "approve",
            &[
                node(
                    "gate",
                    "core.approvalGate",
                    json!({ "title": "Go on?", "actions": ["accept", "reject"] }),
                ),
                node("end", "core.noop", json!({})),
            ],
        ),
        workflow(
            "call",
            &[node(
                "call",
                "core.http.request",
                json!({ "method": "GET", "url": "https://example.com/" }),
            )],
        ),
        workflow(
            "wait",
            &[
                node("wait", "core.delay", json!({ "delayMs": 300 })),
                node("end", "core.noop", json!({})),
            ],
        ),
        workflow(
            "parent",
            &[
                node("child", "core.subWorkflow", json!({ "workflowId": "approve" })),
                node("end", "core.noop", json!({})),
            ],
        ),
    ]
}

pub(crate) async fn register(engines: &[&Engine]) {
    for engine in engines {
        for workflow in workflows() {
            engine.register(None, workflow).await.unwrap();
        }
    }
}

pub(crate) fn tenant() -> TenantId {
    TenantId::parse("acme").unwrap()
}

pub(crate) async fn create(engine: &Engine, workflow: &str) -> View {
    let start = Start {
        tenant: tenant(),
        principal: PrincipalId::parse("ada").unwrap(),
        origin: Origin::new("rest"),
        inputs: serde_json::Map::new(),
        configurable: serde_json::Map::new(),
        tags: Vec::new(),
        metadata: serde_json::Map::new(),
        context: None,
        trace: None,
    };
    let id = WorkflowId::parse(workflow).unwrap();
    let plan = engine.find_workflow(&start.tenant, &id).await;
    let created = engine
        .create(Create {
            run: engine.new_run_id(),
            workflow: plan.unwrap().unwrap(),
            start,
            side_rows: SideRows::default(),
        })
        .await;
    match created.unwrap() {
        Done::Fresh(view) => view,
        Done::Replayed(record) => panic!("replayed {record:?}"),
    }
}

pub(crate) fn accept() -> Command {
    Command::Resolve(Resolve {
        node: NodeId::parse("gate").unwrap(),
        ordinal: None,
        interrupt: None,
        value: json!({ "action": "accept" }),
        by: PrincipalId::parse("bob").unwrap(),
        voter: None,
        authority: wopr_core::Authority::default(),
        is_untrusted: false,
    })
}

/// Follows a run's log, as a stream does, until it has a status; returns the event types.
pub(crate) async fn follow(engine: &Engine, run: &RunKey, status: RunStatus) -> Vec<String> {
    let mut tail = engine.tail(run);
    let mut seen = Vec::new();
    loop {
        let page = engine
            .events(run, Seq(seen.len() as u64), 100)
            .await
            .unwrap()
            .unwrap();
        for recorded in &page.events {
            assert_eq!(recorded.seq.0, seen.len() as u64, "the log is dense");
            let text = format!("{:?}", recorded.event);
            seen.push(text.split([' ', '(']).next().unwrap_or_default().to_owned());
        }
        if page.status == status && page.head.0 == seen.len() as u64 {
            return seen;
        }
        assert!(
            !page.status.is_terminal(),
            "{status:?} comes before {:?}",
            page.status
        );
        tail.changed().await;
    }
}

/// Declares each test once with hints and once with polling.
macro_rules! by_hints_and_by_polling {
    ($($name:ident),+ $(,)?) => {
        mod by_hints {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name(super::News::Hints).await;
                }
            )+
        }
        mod by_polling {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name(super::News::Polling).await;
                }
            )+
        }
    };
}
pub(crate) use by_hints_and_by_polling;

/// Sends a request to a host without a socket.
pub(crate) async fn ask(
    host: &Arc<Host>,
    method: &str,
    path: &str,
    secret: &str,
    body: Option<Value>,
) -> (StatusCode, HeaderMap, Value) {
    let request = http::Request::builder();
    answer(host, request, method, path, secret, body).await
}

/// Like [`ask`], with an idempotency key.
pub(crate) async fn ask_once(
    host: &Arc<Host>,
    key: &str,
    path: &str,
    body: Value,
) -> (StatusCode, HeaderMap, Value) {
    let request = http::Request::builder().header("idempotency-key", key);
    answer(host, request, "POST", path, ALICE, Some(body)).await
}

async fn answer(
    host: &Arc<Host>,
    request: http::request::Builder,
    method: &str,
    path: &str,
    secret: &str,
    body: Option<Value>,
) -> (StatusCode, HeaderMap, Value) {
    let request = request
        .method(method)
        .uri(path)
        .header("authorization", format!("Bearer {secret}"))
        .header("content-type", "application/json")
        .body(body.map_or_else(Body::empty, |body| Body::from(body.to_string())))
        .unwrap();
    let (parts, body) = Faces::new(host).answer(request).await.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    (parts.status, parts.headers, body)
}

/// The secret of [`config`]'s key.
pub(crate) const ALICE: &str = "alice-secret-0123456789";

pub(crate) fn config(url: &str) -> Config {
    let mut config = Config {
        store: StoreUrl::Postgres(Secret::new(url)),
        ..Config::default()
    };
    config.auth.keys = vec![Key {
        id: "alice".to_owned(),
        secret: Some(Secret::new(ALICE)),
        secret_sha256: None,
        tenant: tenant(),
        principal: None,
        scopes: Scopes::ALL,
        roles: Vec::new(),
        groups: Vec::new(),
    }];
    // Thirty-two bytes in base64, the same for every process.
    config.secrets.master_key = Some(Secret::new("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="));
    config
}
