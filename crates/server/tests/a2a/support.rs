//! A host on a socket, with test workflows.

use std::{path::Path, sync::Arc};

use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinHandle};
use wopr_engine::{Clock, SystemClock};
use wopr_server::{
    Config, Host, Listeners, bind,
    config::{Key, Listen, Period, Secret, StoreUrl},
    serve,
};
use wopr_store::Store;

use crate::client::Client;

pub(crate) struct Server {
    pub(crate) host: Arc<Host>,
    pub(crate) address: String,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    /// Deleted with the server.
    folder: Option<tempfile::TempDir>,
}

pub(crate) fn key(id: &str, tenant: &str, scopes: &[&str]) -> Key {
    Key {
        id: id.to_owned(),
        secret: Some(Secret::new(format!("secret-of-{id}-0123456789"))),
        secret_sha256: None,
        tenant: serde_json::from_value(json!(tenant)).unwrap(),
        principal: None,
        scopes: serde_json::from_value(json!(scopes)).unwrap(),
        roles: Vec::new(),
        groups: Vec::new(),
    }
}

/// A configuration with a port chosen by the system and the keys of these tests.
pub(crate) fn config() -> Config {
    let mut config = Config {
        store: StoreUrl::Memory,
        ..Config::default()
    };
    config.server.listen = "127.0.0.1:0".parse::<Listen>().unwrap();
    config.default_workflow = Some(serde_json::from_value(json!("hello")).unwrap());
    config.a2a.blocking_timeout = Period::from_secs(15);
    config.server.shutdown_grace = Period::from_secs(1);
    config.auth.keys = vec![
        key("alice", "default", &["*"]),
        key("bob", "default", &["*"]),
        key("carol", "other", &["*"]),
        key("reader", "default", &["runs:read"]),
        key("starter", "default", &["runs:create"]),
        key("asker", "default", &["runs:create", "runs:read"]),
        key("canceller", "default", &["runs:cancel"]),
    ];
    config
}

impl Server {
    /// Starts in memory with the test workflows.
    pub(crate) async fn start() -> Self {
        Self::open(config()).await
    }

    /// Starts a host on each kind of store.
    pub(crate) async fn start_each() -> [Self; 2] {
        Self::open_each(config()).await
    }

    /// Starts a configured host on each kind of store.
    pub(crate) async fn open_each(config: Config) -> [Self; 2] {
        let folder = tempfile::tempdir().unwrap();
        let mut kept = Self::open(Config {
            store: StoreUrl::Sqlite(folder.path().join("wopr.db")),
            ..config.clone()
        })
        .await;
        kept.folder = Some(folder);
        [Self::open(config).await, kept]
    }

    pub(crate) async fn sqlite(path: &Path) -> Self {
        Self::open(Config {
            store: StoreUrl::Sqlite(path.to_owned()),
            ..config()
        })
        .await
    }

    pub(crate) async fn open(mut config: Config) -> Self {
        let listeners = bind(&mut config).unwrap().listen().unwrap();
        let host = Host::open(config).await.unwrap();
        Self::serve(host, listeners).await
    }

    /// Starts on a store that is already open.
    pub(crate) async fn over(config: Config, store: Arc<dyn Store>) -> Self {
        Self::over_by(config, store, Arc::new(SystemClock)).await
    }

    /// Like [`Server::over`], with a clock.
    pub(crate) async fn over_by(mut config: Config, store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let listeners = bind(&mut config).unwrap().listen().unwrap();
        let host = Host::open_over(config, store, clock).await.unwrap();
        Self::serve(host, listeners).await
    }

    async fn serve(host: Arc<Host>, listeners: Listeners) -> Self {
        Self::serving(host, listeners, workflows()).await
    }

    /// Starts a configured host in memory with other workflows.
    pub(crate) async fn with(mut config: Config, workflows: Vec<Value>) -> Self {
        let listeners = bind(&mut config).unwrap().listen().unwrap();
        let host = Host::open(config).await.unwrap();
        Self::serving(host, listeners, workflows).await
    }

    /// Deletes the folder with the server.
    pub(crate) fn keeping(mut self, folder: tempfile::TempDir) -> Self {
        self.folder = Some(folder);
        self
    }

    async fn serving(host: Arc<Host>, listeners: Listeners, workflows: Vec<Value>) -> Self {
        let address = host.config().server.listen.to_string();
        for workflow in workflows {
            host.engine().register(None, workflow).await.unwrap();
        }
        let (stop, stopped) = oneshot::channel();
        let served = serve(Arc::clone(&host), listeners, async {
            let _ = stopped.await;
        });
        let task = tokio::spawn(served);
        Self {
            host,
            address,
            stop,
            task,
            folder: None,
        }
    }

    /// Shuts down gracefully, so that the store can be opened again.
    pub(crate) async fn stop(self) {
        let Self {
            host,
            stop,
            task,
            folder,
            ..
        } = self;
        drop(host);
        stop.send(()).unwrap();
        task.await.unwrap();
        drop(folder);
    }

    pub(crate) fn client(&self, version: &'static str) -> Client {
        Client {
            address: self.address.clone(),
            path: "/a2a".to_owned(),
            key: Some("alice".to_owned()),
            version,
            headers: Vec::new(),
        }
    }

    /// A client of 1.0.
    pub(crate) fn v1(&self) -> Client {
        self.client("1.0")
    }

    /// A client of 0.3.
    pub(crate) fn v03(&self) -> Client {
        self.client("")
    }
}

pub(crate) fn node(id: &str, type_id: &str, config: Value) -> Value {
    json!({"id": id, "typeId": type_id, "name": id, "position": {"x": 0, "y": 0}, "config": config, "inputs": {}})
}

pub(crate) fn chain(id: &str, nodes: Vec<Value>) -> Value {
    let ids: Vec<_> = nodes
        .iter()
        .map(|node| node["id"].as_str().unwrap().to_owned())
        .collect();
    let edges: Vec<_> = ids
        .windows(2)
        .enumerate()
        .map(|(n, pair)| json!({"id": format!("e{n}"), "sourceNodeId": pair[0], "targetNodeId": pair[1]}))
        .collect();
    json!({
        "id": id, "name": format!("The {id}"), "version": "1.0.0",
        "nodes": nodes, "edges": edges, "triggers": [], "variables": [], "metadata": {}, "settings": {},
    })
}

fn artifact(id: &str, template: &str) -> Value {
    let mut node = node(id, "core.template", json!({ "template": template }));
    node["artifactType"] = json!("text");
    node
}

pub(crate) fn workflows() -> Vec<Value> {
    let gate = |actions: Value| {
        node(
            "gate",
            "core.approvalGate",
            json!({"title": "Ship it?", "description": "The brief is ready.", "actions": actions}),
        )
    };
    let question = |id: &str| json!({"id": id, "question": format!("Which {id}?")});
    let mut required = chain("required", vec![node("noop", "core.noop", json!({}))]);
    required["variables"] = json!([{"name": "topic", "type": "string", "required": true}]);
    let mut hidden = chain("hidden", vec![node("noop", "core.noop", json!({}))]);
    hidden["metadata"] = json!({"public": false});
    let mut hello = chain("hello", vec![artifact("greet", "hello {{ prompt }}")]);
    hello["description"] = json!("Greets.");
    hello["metadata"] = json!({"tags": ["greeting"], "examples": ["world"]});
    let mut parallel = chain("parallel", vec![node("start", "core.noop", json!({}))]);
    parallel["nodes"].as_array_mut().unwrap().extend([
        node("left", "core.approvalGate", json!({"title": "Left?"})),
        node(
            "right",
            "core.clarificationGate",
            json!({"questions": [question("way")]}),
        ),
    ]);
    parallel["edges"] = json!([
        {"id": "l", "sourceNodeId": "start", "targetNodeId": "left"},
        {"id": "r", "sourceNodeId": "start", "targetNodeId": "right"},
    ]);
    vec![
        hello,
        required,
        hidden,
        parallel,
        chain("noop", vec![node("noop", "core.noop", json!({}))]),
        chain(
            "approve",
            vec![
                gate(json!(["accept", "reject", "refine"])),
                artifact("brief", "approved {{ prompt }}"),
            ],
        ),
        chain(
            "ask",
            vec![gate(json!(["accept", "ask"])), artifact("brief", "done")],
        ),
        chain(
            "clarify",
            vec![
                node(
                    "one",
                    "core.clarificationGate",
                    json!({"questions": [question("color")]}),
                ),
                node(
                    "two",
                    "core.clarificationGate",
                    json!({"questions": [question("size"), question("shape")]}),
                ),
            ],
        ),
        chain(
            "event",
            vec![node(
                "wait",
                "core.interrupt",
                json!({"kind": "external-event", "data": {"eventType": "paid", "correlation": {"order": 7}}}),
            )],
        ),
        chain(
            "slow",
            vec![
                node("wait", "core.delay", json!({"delayMs": 600_000})),
                artifact("end", "late"),
            ],
        ),
        chain(
            "nap",
            vec![
                artifact("first", "one"),
                node("wait", "core.delay", json!({"delayMs": 150})),
                artifact("end", "two"),
            ],
        ),
        chain(
            "fail",
            vec![node(
                "fail",
                "core.fail",
                json!({"code": "no_luck", "message": "it did not work"}),
            )],
        ),
        chain(
            "child-asks",
            vec![
                node("sub", "core.subWorkflow", json!({"workflowId": "approve"})),
                node("end", "core.noop", json!({})),
            ],
        ),
    ]
}
