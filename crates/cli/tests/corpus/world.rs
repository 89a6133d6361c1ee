//! An in-process host with a frozen clock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinHandle};
use wopr_core::{RunKey, TenantId, Timestamp};
use wopr_engine::Clock;
use wopr_server::{
    Config, Host,
    auth::Scopes,
    bind,
    config::{Key, Period, Secret, StoreUrl},
    serve,
};

/// A secret with all scopes in tenant `acme`.
pub(crate) const ALICE: &str = "alice-secret-0123456789";
/// Another principal of that tenant.
pub(crate) const ADAM: &str = "adam-secret-0123456789";
/// The master key of the host that a corpus comes from.
const MASTER_KEY: &str = "Y29ycHVzIGNvcnB1cyBjb3JwdXMgY29ycHVzIGNvcnA=";
/// Longer than anything here takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A clock that shows the time it was set to.
#[derive(Debug)]
pub(crate) struct Still(AtomicI64);

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }
}

pub(crate) struct World {
    pub(crate) host: Arc<Host>,
    clock: Arc<Still>,
    origin: String,
    client: Client,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

pub(crate) fn tenant() -> TenantId {
    TenantId::parse("acme").unwrap()
}

fn config(store: StoreUrl) -> Config {
    let key = |id: &str, secret: &str| Key {
        id: id.to_owned(),
        secret: Some(Secret::new(secret)),
        secret_sha256: None,
        tenant: tenant(),
        principal: None,
        scopes: Scopes::ALL,
        roles: Vec::new(),
        groups: Vec::new(),
    };
    let mut config = Config {
        store,
        conformance: true,
        ..Config::default()
    };
    config.server.listen = "127.0.0.1:0".parse().unwrap();
    config.server.public_url = Some("https://corpus.example".parse().unwrap());
    config.auth.keys = vec![key("alice", ALICE), key("adam", ADAM)];
    config.secrets.master_key = Some(Secret::new(MASTER_KEY));
    let stored = json!({ "name": "crm", "stored": true });
    config.secrets.named = vec![serde_json::from_value(stored).unwrap()];
    let budget = json!({ "tenant": "acme", "per": "month", "max_tokens": 1_000_000 });
    config.budgets = vec![serde_json::from_value(budget).unwrap()];
    config.egress.allow = vec!["127.0.0.0/8".parse().unwrap()];
    config.limits.max_run_duration = Some("30d".parse::<Period>().unwrap());
    config
}

impl World {
    /// Opens a database. With `is_still`, stops the engine right after opening.
    pub(crate) async fn open(store: StoreUrl, now: i64, is_still: bool) -> Self {
        let mut config = config(store);
        let listeners = bind(&mut config).unwrap().listen().unwrap();
        let origin = config.server.origin();
        let clock = Arc::new(Still(AtomicI64::new(now)));
        let host = Host::open_with(config, Arc::clone(&clock) as Arc<dyn Clock>)
            .await
            .unwrap();
        if is_still {
            host.engine().stop().await;
        }
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(serve(Arc::clone(&host), listeners, async {
            // Dropping the world stops the host too.
            let _ = stopped.await;
        }));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        Self {
            host,
            clock,
            origin,
            client: Client::builder()
                .tls_backend_preconfigured(tls)
                .no_proxy()
                .build()
                .unwrap(),
            stop,
            serving,
        }
    }

    /// Shuts down gracefully, so that the database can be opened again.
    pub(crate) async fn close(self) {
        drop(self.client);
        let _ = self.stop.send(());
        self.serving.await.unwrap();
    }

    pub(crate) fn now(&self) -> i64 {
        self.clock.now().millis()
    }

    pub(crate) fn advance(&self, time: Duration) {
        let millis = i64::try_from(time.as_millis()).unwrap();
        self.clock.0.fetch_add(millis, Ordering::SeqCst);
    }

    pub(crate) fn key(&self, run: &str) -> RunKey {
        RunKey::new(tenant(), wopr_core::RunId::parse(run).unwrap())
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        by: &str,
        header: Option<(&str, &str)>,
        body: Option<&Value>,
    ) -> (u16, Value) {
        let url = format!("{}{path}", self.origin);
        let mut request = self.client.request(method, url).bearer_auth(by);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Returns the status code for a caller.
    pub(crate) async fn status(&self, path: &str, by: &str) -> u16 {
        self.ask(Method::GET, path, by, None, None).await.0
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask(Method::GET, path, ALICE, None, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        self.post_by(path, ALICE, body).await
    }

    pub(crate) async fn post_by(&self, path: &str, by: &str, body: &Value) -> Value {
        let (status, answer) = self.ask(Method::POST, path, by, None, Some(body)).await;
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
        answer
    }

    /// Starts a run and returns its id; idempotent if a key is given.
    pub(crate) async fn run(&self, workflow: &str, key: Option<&str>, more: Value) -> String {
        let mut body = json!({ "workflowId": workflow });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        let header = key.map(|key| ("idempotency-key", key));
        let (status, created) = self
            .ask(Method::POST, "/v1/runs", ALICE, header, Some(&body))
            .await;
        assert_eq!(status, 201, "{workflow}: {created}");
        created["runId"].as_str().unwrap().to_owned()
    }

    /// Answers a node's interrupt.
    pub(crate) async fn answer(&self, run: &str, node: &str, by: &str, value: Value) {
        let path = format!("/v1/runs/{run}/interrupts/{node}");
        self.post_by(&path, by, &json!({ "resumeValue": value })).await;
    }

    pub(crate) async fn a2a(&self, method: &str, params: Value) -> Value {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let version = Some(("a2a-version", "1.0"));
        let (_, answer) = self.ask(Method::POST, "/a2a", ALICE, version, Some(&body)).await;
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    pub(crate) async fn reaches(&self, run: &str, status: &str) {
        let key = self.key(run);
        let mut tail = self.host.engine().tail(&key);
        let waiting = async {
            loop {
                let (summary, _) = self
                    .host
                    .engine()
                    .store()
                    .summary(&key)
                    .await
                    .unwrap()
                    .unwrap_or_else(|| panic!("run {run} is not there"));
                if summary.status.as_str() == status {
                    return;
                }
                assert!(
                    !summary.status.is_terminal(),
                    "{run} ({}) ended as {}, not {status}",
                    summary.workflow,
                    summary.status.as_str()
                );
                tail.changed().await;
            }
        };
        if tokio::time::timeout(TIMEOUT, waiting).await.is_err() {
            panic!(
                "{run} never was {status}: {}",
                self.get(&format!("/v1/runs/{run}")).await
            );
        }
    }
}
