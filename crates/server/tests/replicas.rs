//! Several processes over one PostgreSQL database: two engines, two hosts, and one that dies.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test that called them"
)]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_postgres::NoTls;
use wopr_core::{
    Command, NodeId, Offer, Origin, PrincipalId, Resolve, RunKey, RunStatus, Seq, TenantId, WorkflowId,
};
use wopr_engine::{
    Attempt, CommandError, Create, Done, Engine, Executor, Extras, Options, Outcome, Start, SystemClock, View,
};
use wopr_server::{
    Config, Host, SecretsError, StartError,
    auth::Scopes,
    config::{Key, Secret, StoreUrl},
};
use wopr_store::{PostgresStore, Registry as _, postgres};

/// Names the server that the set-up of the tests started.
const SERVER: &str = "WOPR_TEST_POSTGRES";

/// The URL of a schema of its own.
async fn schema() -> String {
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
struct Steered(mpsc::Sender<(Attempt, oneshot::Sender<Outcome>)>);

type Attempts = Mutex<mpsc::Receiver<(Attempt, oneshot::Sender<Outcome>)>>;

fn steered() -> (Arc<Steered>, Attempts) {
    let (sender, receiver) = mpsc::channel(8);
    (Arc::new(Steered(sender)), Mutex::new(receiver))
}

#[async_trait]
impl Executor for Steered {
    async fn run(&self, attempt: Attempt) -> Outcome {
        let (reply, outcome) = oneshot::channel();
        self.0.send((attempt, reply)).await.expect("the test listens");
        match outcome.await {
            Ok(outcome) => outcome,
            Err(_) => std::future::pending().await,
        }
    }
}

/// A replica: a store and an engine of its own, as a process has them.
async fn replica(url: &str, executor: Arc<dyn Executor>) -> Engine {
    let store = PostgresStore::open(url, postgres::Options::default())
        .await
        .unwrap();
    let options = Options {
        offer: Offer { conformance: true },
        poll: Duration::from_millis(50),
        lease: Duration::from_millis(500),
        ..Options::default()
    };
    Engine::start(Arc::new(store), executor, Arc::new(SystemClock), options)
        .await
        .unwrap()
}

fn node(id: &str, type_id: &str, config: impl Into<Value>) -> Value {
    let config = config.into();
    json!({
        "id": id, "typeId": type_id, "name": id, "position": { "x": 0, "y": 0 }, "config": config, "inputs": {},
    })
}

/// Nodes one after the other.
fn workflow(id: &str, nodes: &[Value]) -> Value {
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

fn workflows() -> [Value; 3] {
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
    ]
}

async fn register(engines: &[&Engine]) {
    for engine in engines {
        for workflow in workflows() {
            engine.register(None, workflow).await.unwrap();
        }
    }
}

fn tenant() -> TenantId {
    TenantId::parse("acme").unwrap()
}

async fn create(engine: &Engine, workflow: &str) -> View {
    let start = Start {
        tenant: tenant(),
        principal: PrincipalId::parse("ada").unwrap(),
        origin: Origin::Rest,
        inputs: serde_json::Map::new(),
        configurable: serde_json::Map::new(),
        tags: Vec::new(),
        metadata: serde_json::Map::new(),
        context: None,
        trace: None,
    };
    let created = engine
        .create(Create {
            run: engine.new_run_id(),
            workflow: WorkflowId::parse(workflow).unwrap(),
            start,
            extras: Extras::default(),
        })
        .await;
    match created.unwrap() {
        Done::Fresh(view) => view,
        Done::Replayed(record) => panic!("replayed {record:?}"),
    }
}

fn accept() -> Command {
    Command::Resolve(Resolve {
        node: NodeId::parse("gate").unwrap(),
        ordinal: None,
        value: json!({ "action": "accept" }),
        by: PrincipalId::parse("bob").unwrap(),
        voter: None,
        by_token: false,
    })
}

/// Follows a run through its log alone, as a stream does, until it has a status; the events it saw.
async fn follow(engine: &Engine, run: &RunKey, status: RunStatus) -> Vec<String> {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_one_replica_is_followed_and_answered_on_another() {
    let url = schema().await;
    let (executor, _attempts) = steered();
    let (a, b) = (
        replica(&url, executor.clone()).await,
        replica(&url, executor).await,
    );
    register(&[&a, &b]).await;

    let run = create(&a, "approve").await.key;
    // A stream opened on B before anything else happens sees it all, wherever it is appended.
    let stream = tokio::spawn({
        let (b, run) = (b.clone(), run.clone());
        async move { follow(&b, &run, RunStatus::Completed).await }
    });
    follow(&b, &run, RunStatus::WaitingApproval).await;
    let done = b.command(&run, accept(), Extras::default()).await.unwrap();
    assert!(matches!(done, Done::Fresh(view) if view.run.status == RunStatus::Completed));
    let seen = stream.await.unwrap();
    assert_eq!(follow(&a, &run, RunStatus::Completed).await, seen);
    assert_eq!(seen.last().map(String::as_str), Some("RunCompleted"), "{seen:?}");

    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_answers_on_two_replicas_takes_effect() {
    let url = schema().await;
    let (executor, _attempts) = steered();
    let (a, b) = (
        replica(&url, executor.clone()).await,
        replica(&url, executor).await,
    );
    register(&[&a, &b]).await;
    for _ in 0..10 {
        let run = create(&a, "approve").await.key;
        let answers = tokio::join!(
            a.command(&run, accept(), Extras::default()),
            b.command(&run, accept(), Extras::default())
        );
        let n_done = [&answers.0, &answers.1]
            .into_iter()
            .filter(|answer| matches!(answer, Ok(Done::Fresh(_))))
            .count();
        let n_refused = [&answers.0, &answers.1]
            .into_iter()
            .filter(|answer| matches!(answer, Err(CommandError::Refused(_))))
            .count();
        assert_eq!((n_done, n_refused), (1, 1), "{answers:?}");
        let log = follow(&b, &run, RunStatus::Completed).await;
        assert_eq!(
            log.iter().filter(|event| *event == "RunCompleted").count(),
            1,
            "{log:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_of_a_killed_replica_is_taken_over_and_its_timer_fires() {
    let url = schema().await;
    let (on_a, attempts_of_a) = steered();
    let (on_b, attempts_of_b) = steered();
    let b = replica(&url, on_b).await;
    register(&[&b]).await;

    // A lives on a runtime of its own, which is dropped as a killed process is: nothing is given back.
    let killed = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (calling, waiting) = killed
        .spawn({
            let url = url.clone();
            async move {
                let a = replica(&url, on_a).await;
                let calling = create(&a, "call").await.key;
                let waiting = create(&a, "wait").await.key;
                // Whoever drops the engine's handle does not stop it; only the runtime's end does.
                std::mem::forget(a);
                (calling, waiting)
            }
        })
        .await
        .unwrap();
    let (first, hanging) = attempts_of_a.lock().await.recv().await.unwrap();
    assert_eq!(first.run, calling);
    killed.shutdown_background();

    let (second, reply) = attempts_of_b.lock().await.recv().await.unwrap();
    assert_eq!(second.run, calling);
    assert_eq!(
        second.idempotency_key, first.idempotency_key,
        "one invocation, attempted again"
    );
    reply.send(Outcome::Done(json!({ "status": 200 }))).unwrap();
    follow(&b, &calling, RunStatus::Completed).await;
    follow(&b, &waiting, RunStatus::Completed).await;
    drop(hanging);
    b.stop().await;
}

fn config(url: &str) -> Config {
    let mut config = Config {
        store: StoreUrl::Postgres(Secret::new(url)),
        ..Config::default()
    };
    config.auth.keys = vec![Key {
        id: "alice".to_owned(),
        secret: Some(Secret::new("alice-secret-0123456789")),
        secret_sha256: None,
        tenant: tenant(),
        principal: None,
        scopes: Scopes::ALL,
    }];
    // Thirty-two bytes of base64, the same for every process.
    config.secrets.master_key = Some(Secret::new("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="));
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hosts_share_a_database_and_close_apart() {
    let url = schema().await;
    let (one, two) = tokio::join!(Host::open(config(&url)), Host::open(config(&url)));
    let (one, two) = (one.unwrap(), two.unwrap());
    register(&[one.engine(), two.engine()]).await;
    let run = create(one.engine(), "approve").await.key;
    one.close().await;

    follow(two.engine(), &run, RunStatus::WaitingApproval).await;
    two.engine()
        .command(&run, accept(), Extras::default())
        .await
        .unwrap();
    follow(two.engine(), &run, RunStatus::Completed).await;
    assert!(two.store_stats().is_some());
    two.close().await;
}

#[tokio::test]
async fn without_a_master_key_a_host_on_postgres_refuses_to_start() {
    let url = schema().await;
    let mut config = config(&url);
    config.secrets.master_key = None;
    let refused = Host::open(config).await.expect_err("no key");
    assert!(
        matches!(refused, StartError::Secrets(SecretsError::Required)),
        "{refused:?}"
    );
    // Nothing holds the database: others use it.
    let store = PostgresStore::open(&url, postgres::Options::default())
        .await
        .unwrap();
    assert_eq!(store.keys().await.unwrap(), []);
}
