//! Push notifications: every update arrives in order and in the registered version, through failures of the
//! receiver, of other receivers and of the host; and no secret or task of another tenant leaks.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::Notify,
    task::{JoinHandle, JoinSet},
};
use wopr_server::{
    Config,
    config::{Period, StoreUrl},
};
use wopr_wire::a2a::method::{Operation, Version};

use crate::{
    client::{Client, state_of},
    schema,
    speaker::Speaker,
    support::{Server, config},
};

const TOKEN: &str = "token-5f1cbb7a09";
const CREDENTIALS: &str = "credentials-93be02d4";

/// A notification as received.
#[derive(Debug, Clone)]
pub(crate) struct Pushed {
    headers: HeaderMap,
    pub(crate) body: Value,
}

impl Pushed {
    /// Its position in the task's log.
    fn sequence(&self) -> u64 {
        let about = |item: &Value| item["metadata"]["openwop"]["sequence"].as_u64();
        let body = &self.body;
        [body, &body["statusUpdate"], &body["artifactUpdate"]]
            .into_iter()
            .find_map(about)
            .unwrap_or_else(|| panic!("{body}"))
    }

    /// The state it reports, in the spelling of 0.3; `None` for a 1.0 artifact update.
    pub(crate) fn state(&self) -> Option<String> {
        let state = match &self.body["kind"] {
            Value::Null => &self.body["statusUpdate"]["status"]["state"],
            _ => &self.body["status"]["state"],
        };
        let state = state.as_str()?.trim_start_matches("TASK_STATE_");
        Some(state.to_ascii_lowercase().replace('_', "-"))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// How a receiver responds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Takes,
    Answers(u16),
    Redirects,
    Hangs,
}

/// Receivers on one port, distinguished by path.
#[derive(Debug, Default)]
struct Inbox {
    moods: Mutex<BTreeMap<String, Mood>>,
    tried: Mutex<BTreeMap<String, usize>>,
    taken: Mutex<BTreeMap<String, Vec<Pushed>>>,
    news: Notify,
}

pub(crate) struct Receivers {
    address: String,
    inbox: Arc<Inbox>,
    task: JoinHandle<()>,
}

impl Drop for Receivers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receivers {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let inbox = Arc::new(Inbox::default());
        let task = tokio::spawn(receive(listener, Arc::clone(&inbox)));
        Self { address, inbox, task }
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    fn mood(&self, name: &str, mood: Mood) {
        self.inbox.moods.lock().insert(name.to_owned(), mood);
    }

    fn taken(&self, name: &str) -> Vec<Pushed> {
        self.inbox.taken.lock().get(name).cloned().unwrap_or_default()
    }

    /// Waits until a condition holds.
    async fn until(&self, what: &str, is_so: impl Fn(&Inbox) -> bool) {
        let waiting = async {
            loop {
                let news = self.inbox.news.notified();
                if is_so(&self.inbox) {
                    return;
                }
                news.await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(30), waiting).await;
        assert!(waited.is_ok(), "{what}: {:?}", self.inbox);
    }

    async fn has_tried(&self, name: &str, n: usize) {
        let tried = |inbox: &Inbox| inbox.tried.lock().get(name).copied().unwrap_or(0) >= n;
        self.until(&format!("{name} is tried {n} times"), tried).await;
    }

    /// Waits for a state; returns the notifications up to it.
    pub(crate) async fn told(&self, name: &str, state: &str) -> Vec<Pushed> {
        let is_told = |inbox: &Inbox| {
            let taken = inbox.taken.lock();
            let mut states = taken.get(name).into_iter().flatten();
            states.any(|pushed| pushed.state().as_deref() == Some(state))
        };
        self.until(&format!("{name} is told {state}"), is_told).await;
        self.taken(name)
    }
}

async fn receive(listener: TcpListener, inbox: Arc<Inbox>) {
    // Aborted with this task.
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let inbox = Arc::clone(&inbox);
        let service = service_fn(move |request| take(Arc::clone(&inbox), request));
        connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn take(inbox: Arc<Inbox>, request: Request<Incoming>) -> hyper::Result<Response<Empty<Bytes>>> {
    let (head, body) = request.into_parts();
    let name = head.uri.path().trim_start_matches('/').to_owned();
    let headers = head.headers;
    let body = body.collect().await?.to_bytes();
    *inbox.tried.lock().entry(name.clone()).or_default() += 1;
    inbox.news.notify_waiters();
    let mood = inbox.moods.lock().get(&name).copied().unwrap_or(Mood::Takes);
    let mut response = Response::new(Empty::new());
    *response.status_mut() = match mood {
        Mood::Takes => {
            let body = serde_json::from_slice(&body).unwrap();
            let pushed = Pushed { headers, body };
            inbox.taken.lock().entry(name).or_default().push(pushed);
            inbox.news.notify_waiters();
            StatusCode::NO_CONTENT
        }
        Mood::Answers(status) => StatusCode::from_u16(status).unwrap(),
        Mood::Redirects => {
            let elsewhere = HeaderValue::from_static("/elsewhere");
            response.headers_mut().insert(header::LOCATION, elsewhere);
            StatusCode::TEMPORARY_REDIRECT
        }
        Mood::Hangs => std::future::pending().await,
    };
    Ok(response)
}

/// A configuration that allows loopback receivers and short timeouts.
pub(crate) fn reaching() -> Config {
    let mut config = config();
    config.egress.allow = vec!["127.0.0.0/8".parse().unwrap()];
    config.a2a.push_timeout = "500ms".parse::<Period>().unwrap();
    config
}

fn on(path: &Path) -> Config {
    Config {
        store: StoreUrl::Sqlite(path.to_owned()),
        ..reaching()
    }
}

fn wanted(task: &Value, id: &str, url: &str) -> Value {
    json!({
        "taskId": task, "id": id, "url": url, "token": TOKEN,
        "authentication": {"scheme": "Bearer", "credentials": CREDENTIALS},
    })
}

/// Starts a task that waits for an approval; returns its id.
pub(crate) async fn asks(speaker: &Speaker) -> Value {
    let task = speaker.send(speaker.text("push", "it", "approve")).await.unwrap();
    task["id"].clone()
}

async fn approve(speaker: &Speaker, task: &Value) {
    let yes = speaker.answer("yes", "approve", task.as_str().unwrap());
    let task = speaker.send(yes).await.unwrap();
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
}

fn assert_in_order(pushes: &[Pushed]) {
    let places: Vec<_> = pushes.iter().map(Pushed::sequence).collect();
    assert!(places.is_sorted_by(|a, b| a < b), "{places:?}");
}

#[tokio::test]
async fn every_binding_and_version_sets_reads_lists_and_removes() {
    let receivers = Receivers::start().await;
    let server = Server::open(reaching()).await;
    for speaker in Speaker::all(&server) {
        let about = speaker.name();
        let task = asks(&speaker).await;
        let url = receivers.url(&format!("one-{about}"));
        let shown = json!({
            "taskId": task, "id": "one", "url": url, "authentication": {"scheme": "Bearer"},
        });
        let set = speaker
            .ask(Operation::CreatePushConfig, wanted(&task, "one", &url))
            .await;
        assert_eq!(set.unwrap(), shown, "{about}");
        let second = receivers.url("two");
        let two = json!({ "taskId": task, "id": "two", "url": second });
        let set = speaker.ask(Operation::CreatePushConfig, two.clone()).await;
        assert_eq!(set.unwrap(), two, "{about}");

        let one = json!({ "taskId": task, "id": "one" });
        let read = speaker.ask(Operation::GetPushConfig, one.clone()).await;
        assert_eq!(read.unwrap(), shown, "{about}");
        let list = json!({ "taskId": task });
        let all = speaker.ask(Operation::ListPushConfigs, list.clone()).await;
        assert_eq!(all.unwrap(), json!([shown, two]), "{about}");

        let other = json!({ "taskId": task, "id": "two" });
        for _ in 0..2 {
            let gone = speaker.ask(Operation::DeletePushConfig, other.clone()).await;
            assert_eq!(gone.unwrap(), Value::Null, "{about}");
        }
        let read = speaker.ask(Operation::GetPushConfig, other).await;
        assert_eq!(read.unwrap_err(), "TASK_NOT_FOUND", "{about}");
        let all = speaker.ask(Operation::ListPushConfigs, list).await;
        assert_eq!(all.unwrap(), json!([shown]), "{about}");

        approve(&speaker, &task).await;
        let told = receivers.told(&format!("one-{about}"), "completed").await;
        assert_in_order(&told);
        for pushed in &told {
            assert_eq!(pushed.header("x-a2a-notification-token"), Some(TOKEN));
            assert_eq!(pushed.header("a2a-notification-token"), Some(TOKEN));
            let authorization = format!("Bearer {CREDENTIALS}");
            assert_eq!(pushed.header("authorization"), Some(&*authorization));
            let text = pushed.body.to_string();
            assert!(
                !text.contains("brief") || text.contains("/artifacts/brief-"),
                "{text}"
            );
            assert!(!text.contains("approved"), "{text}");
            match speaker.version {
                Version::V0_3 => {
                    schema::check("Task", &pushed.body);
                    assert_eq!(pushed.header("content-type"), Some("application/json"));
                    assert_eq!(
                        (&pushed.body["kind"], &pushed.body["id"]),
                        (&json!("task"), &task)
                    );
                }
                Version::V1_0 => {
                    assert_eq!(pushed.header("content-type"), Some("application/a2a+json"));
                    let members: Vec<_> = pushed.body.as_object().unwrap().keys().collect();
                    assert!(members == ["statusUpdate"] || members == ["artifactUpdate"]);
                    assert_eq!(pushed.body[members[0]]["taskId"], task);
                }
            }
        }
        let states: Vec<_> = told.iter().filter_map(Pushed::state).collect();
        assert_eq!(states.first().map(String::as_str), Some("working"), "{about}");
        assert_eq!(states.last().map(String::as_str), Some("completed"), "{about}");
    }
    assert!(receivers.taken("two").is_empty());
}

#[tokio::test]
async fn artifacts_are_pushed_by_reference() {
    let receivers = Receivers::start().await;
    let server = Server::open(reaching()).await;
    for (version, client) in [(Version::V1_0, server.v1()), (Version::V0_3, server.v03())] {
        let name = format!("{version}");
        let mut request = client.text(&name, "SECRET WORDS", json!({}));
        let config = json!({ "url": receivers.url(&name) });
        request["configuration"] = match version {
            Version::V1_0 => json!({ "taskPushNotificationConfig": config }),
            Version::V0_3 => json!({ "pushNotificationConfig": config }),
        };
        let task = client.send(request).await;
        let told = receivers.told(&name, "completed").await;
        // The first event is included, because the configuration came with the message.
        assert_eq!(told[0].state().as_deref(), Some("working"));
        let artifacts: Vec<_> = match version {
            Version::V1_0 => told
                .iter()
                .filter_map(|pushed| pushed.body["artifactUpdate"].get("artifact").cloned())
                .collect(),
            // The task of the last push names all of them.
            Version::V0_3 => told[told.len() - 1].body["artifacts"].as_array().unwrap().clone(),
        };
        assert_eq!(artifacts.len(), 1, "{told:?}");
        let artifact = &artifacts[0];
        assert_eq!(artifact["artifactId"], "greet-0");
        let part = &artifact["parts"][0];
        let url = match version {
            Version::V1_0 => &part["url"],
            Version::V0_3 => &part["file"]["uri"],
        };
        let url = url.as_str().unwrap();
        let path = url.strip_prefix(server.host.public_url()).unwrap();
        let read = client.get(path).await.json();
        assert_eq!(read["content"], "hello SECRET WORDS");
        assert!(path.contains(task["id"].as_str().unwrap()));
        assert!(!format!("{told:?}").contains("SECRET WORDS"));
    }
}

#[tokio::test]
async fn task_pushed_to_a_receiver_of_0_3_names_the_artifacts_so_far() {
    let receivers = Receivers::start().await;
    let server = Server::open(reaching()).await;
    let client = server.v03();
    let mut request = client.text("nap", "words", json!({ "metadata": { "skillId": "nap" } }));
    let config = json!({ "url": receivers.url("nap") });
    request["configuration"] = json!({ "pushNotificationConfig": config, "blocking": false });
    client.send(request).await;
    let told = receivers.told("nap", "completed").await;
    let named = |pushed: &Pushed| -> Vec<String> {
        let artifacts = pushed.body["artifacts"].as_array().cloned().unwrap_or_default();
        let ids = artifacts.iter().map(|artifact| artifact["artifactId"].as_str());
        ids.map(|id| id.unwrap().to_owned()).collect()
    };
    let n: Vec<_> = told.iter().map(|pushed| named(pushed).len()).collect();
    assert!(n.is_sorted() && n[0] == 0, "{n:?}");
    assert_eq!(named(&told[told.len() - 1]), ["first-0", "end-0"], "{n:?}");
}

#[tokio::test]
async fn empty_credentials_are_none() {
    let receivers = Receivers::start().await;
    let server = Server::open(reaching()).await;
    let client = server.v1();
    for (name, authentication, header) in [
        ("empty", json!({ "scheme": "Bearer", "credentials": "" }), None),
        ("blank", json!({ "scheme": "Bearer", "credentials": " " }), None),
        ("absent", json!({ "scheme": "Bearer" }), None),
        (
            "some",
            json!({ "scheme": "Bearer", "credentials": "c" }),
            Some("Bearer c"),
        ),
    ] {
        let mut request = client.text(name, "words", json!({}));
        let config = json!({ "url": receivers.url(name), "authentication": authentication });
        request["configuration"] = json!({ "taskPushNotificationConfig": config });
        client.send(request).await;
        let told = receivers.told(name, "completed").await;
        assert_eq!(told[0].header("authorization"), header, "{name}");
    }
}

#[tokio::test]
async fn config_in_a_message_is_registered_once() {
    let receivers = Receivers::start().await;
    let server = Server::open(reaching()).await;
    for speaker in Speaker::all(&server) {
        let about = speaker.name();
        let with = |mut request: Value, name: &str| {
            request["configuration"] = json!({
                "taskPushNotificationConfig": { "url": receivers.url(&format!("{name}-{about}")) },
            });
            request
        };
        let begin = with(speaker.text("along", "it", "approve"), "begun");
        let task = speaker.send(begin.clone()).await.unwrap();
        let again = speaker.send(begin).await.unwrap();
        assert_eq!(task["id"], again["id"], "{about}");
        let list = json!({ "taskId": task["id"] });
        let all = speaker
            .ask(Operation::ListPushConfigs, list.clone())
            .await
            .unwrap();
        assert_eq!(all.as_array().unwrap().len(), 1, "{about}: {all}");
        // Protocol buffers cannot tell 0 from none, so it is the same in all bindings.
        let unset = json!({ "taskId": task["id"], "pageSize": 0 });
        assert_eq!(
            speaker.ask(Operation::ListPushConfigs, unset).await.unwrap(),
            all,
            "{about}"
        );

        // A refused message registers nothing.
        let mut refused = speaker.answer("no", "x", task["id"].as_str().unwrap());
        refused["message"]["parts"] = json!([{"data": {"openwop": {"action": "dance"}}}]);
        refused["message"]["metadata"] = json!({"openwop": {"action": "dance"}});
        speaker.send(with(refused, "refused")).await.unwrap_err();
        let all = speaker
            .ask(Operation::ListPushConfigs, list.clone())
            .await
            .unwrap();
        assert_eq!(all.as_array().unwrap().len(), 1, "{about}: {all}");

        let yes = speaker.answer("yes", "approve", task["id"].as_str().unwrap());
        speaker.send(with(yes, "answered")).await.unwrap();
        let answered = receivers.told(&format!("answered-{about}"), "completed").await;
        if speaker.version == Version::V0_3 {
            // A task has one configuration without an id of each caller, and the latest counts.
            let all = speaker.ask(Operation::ListPushConfigs, list).await.unwrap();
            assert_eq!(all.as_array().unwrap().len(), 1, "{about}: {all}");
            assert_eq!(all[0]["id"], task["id"], "{about}");
            continue;
        }
        let begun = receivers.told(&format!("begun-{about}"), "completed").await;
        let states = |pushes: &[Pushed]| pushes.iter().filter_map(Pushed::state).collect::<Vec<_>>();
        assert!(states(&begun).contains(&"input-required".to_owned()), "{about}");
        assert!(
            !states(&answered).contains(&"input-required".to_owned()),
            "{about}"
        );
        assert_in_order(&begun);
        assert_in_order(&answered);
        assert!(receivers.taken(&format!("refused-{about}")).is_empty());
    }
}

#[tokio::test]
async fn failing_receivers_delay_nobody_and_get_everything_eventually() {
    let receivers = Receivers::start().await;
    let server = Server::open(reaching()).await;
    let speaker = Speaker::all(&server).remove(0);
    let task = asks(&speaker).await;
    let moody = [
        ("fails", Mood::Answers(500)),
        ("refuses", Mood::Answers(404)),
        ("redirects", Mood::Redirects),
        ("hangs", Mood::Hangs),
    ];
    for (name, mood) in moody {
        receivers.mood(name, mood);
    }
    for name in ["fails", "refuses", "redirects", "hangs", "well"] {
        let config = json!({ "taskId": task, "id": name, "url": receivers.url(name) });
        speaker.ask(Operation::CreatePushConfig, config).await.unwrap();
    }
    approve(&speaker, &task).await;
    let well = receivers.told("well", "completed").await;
    for (name, _) in moody {
        receivers.has_tried(name, 2).await;
        assert!(receivers.taken(name).is_empty());
        receivers.mood(name, Mood::Takes);
    }
    for (name, _) in moody {
        let told = receivers.told(name, "completed").await;
        assert_in_order(&told);
        let places = |pushes: &[Pushed]| pushes.iter().map(Pushed::sequence).collect::<Vec<_>>();
        assert_eq!(places(&told), places(&well), "{name}");
    }
    assert!(receivers.taken("elsewhere").is_empty(), "no redirect is followed");
    let metrics = server.v1().get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(metrics.contains("\nwopr_push_given_up_total 0\n"), "{metrics}");
    assert!(!metrics.contains("\nwopr_push_failed_total 0\n"), "{metrics}");
}

#[tokio::test]
async fn pending_pushes_survive_a_restart_unless_their_config_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wopr.db");
    let receivers = Receivers::start().await;
    receivers.mood("late", Mood::Answers(503));
    receivers.mood("never", Mood::Answers(503));
    let server = Server::open(on(&path)).await;
    let speaker = Speaker::all(&server).remove(0);
    let task = asks(&speaker).await;
    for name in ["late", "never"] {
        speaker
            .ask(
                Operation::CreatePushConfig,
                wanted(&task, name, &receivers.url(name)),
            )
            .await
            .unwrap();
    }
    approve(&speaker, &task).await;
    receivers.has_tried("late", 1).await;
    receivers.has_tried("never", 1).await;
    drop(speaker);
    server.stop().await;

    let server = Server::open(on(&path)).await;
    let speaker = Speaker::all(&server).remove(0);
    let gone = json!({ "taskId": task, "id": "never" });
    speaker.ask(Operation::DeletePushConfig, gone).await.unwrap();
    for name in ["late", "never"] {
        receivers.mood(name, Mood::Takes);
    }
    assert_in_order(&receivers.told("late", "completed").await);
    assert!(receivers.taken("never").is_empty());
    drop(speaker);
    server.stop().await;
}

#[tokio::test]
async fn secrets_are_never_exposed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wopr.db");
    let receivers = Receivers::start().await;
    receivers.mood("fails-SECRETPATH", Mood::Answers(500));
    let server = Server::open(on(&path)).await;
    let client = server.v1();
    let speaker = Speaker::all(&server).remove(0);
    let task = asks(&speaker).await;
    let url = receivers.url("fails-SECRETPATH");
    let set = speaker
        .ask(Operation::CreatePushConfig, wanted(&task, "one", &url))
        .await;
    let mut shown = vec![set.unwrap().to_string()];
    approve(&speaker, &task).await;
    receivers.has_tried("fails-SECRETPATH", 1).await;
    let id = task.as_str().unwrap();
    let record = client.get(&format!("/v1/a2a/tasks/{id}")).await.json();
    let fingerprint = record["pushConfig"]["tokenFingerprint"].as_str().unwrap();
    assert_eq!(record["pushConfig"]["url"], url);
    assert_eq!(fingerprint.len(), 16);
    shown.push(record.to_string());
    for path in [
        format!("/v1/runs/{id}"),
        format!("/v1/runs/{id}/events/poll"),
        format!("/a2a/tasks/{id}"),
        format!("/a2a/tasks/{id}/pushNotificationConfigs"),
    ] {
        shown.push(client.get(&path).await.json().to_string());
    }
    for text in &shown {
        assert!(!text.contains(TOKEN) && !text.contains(CREDENTIALS), "{text}");
    }
    drop(speaker);
    server.stop().await;
    let mut n_files = 0;
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        n_files += 1;
        for secret in [TOKEN, CREDENTIALS, "SECRETPATH"] {
            let is_there = bytes
                .windows(secret.len())
                .any(|bytes| bytes == secret.as_bytes());
            assert!(!is_there, "{secret}");
        }
    }
    assert!(n_files >= 2, "a database and a key");
}

#[tokio::test]
async fn only_readers_of_a_task_can_subscribe_to_it() {
    let receivers = Receivers::start().await;
    let server = Server::open(reaching()).await;
    let client = server.v1();
    let task = client
        .send(client.text("mine", "it", json!({"metadata": {"skillId": "approve"}})))
        .await;
    let task = task["id"].clone();
    let config = wanted(&task, "one", &receivers.url("one"));
    client
        .ok("CreateTaskPushNotificationConfig", config.clone())
        .await;
    let calls = |task: &Value| {
        [
            (
                "CreateTaskPushNotificationConfig",
                wanted(task, "two", &receivers.url("two")),
            ),
            (
                "GetTaskPushNotificationConfig",
                json!({ "taskId": task, "id": "one" }),
            ),
            ("ListTaskPushNotificationConfigs", json!({ "taskId": task })),
            (
                "DeleteTaskPushNotificationConfig",
                json!({ "taskId": task, "id": "one" }),
            ),
        ]
    };
    let missing = json!("run_0123456789abcdef");
    let carol = client.clone().by("carol");
    for ((method, params), (_, nowhere)) in calls(&task).into_iter().zip(calls(&missing)) {
        let (code, text) = carol.err(method, params).await;
        assert_eq!(code, -32001, "{method}");
        // The same error as for a missing task.
        let (code, same) = carol.err(method, nowhere).await;
        let same = same.replace(missing.as_str().unwrap(), task.as_str().unwrap());
        assert_eq!((code, same), (-32001, text), "{method}");
    }
    for other in ["starter", "canceller"] {
        let other = client.clone().by(other);
        for (method, params) in calls(&task).into_iter().chain(calls(&missing)) {
            let envelope = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
            let answer = other.raw("POST", envelope.to_string().as_bytes()).await;
            let challenge = answer.header("www-authenticate").unwrap_or_default();
            assert!(
                answer.status == 403 && challenge.contains("runs:read"),
                "{method}: {challenge}"
            );
        }
    }
    // The attempts had no effect.
    let all = client
        .ok("ListTaskPushNotificationConfigs", json!({ "taskId": task }))
        .await;
    assert_eq!(all["configs"].as_array().unwrap().len(), 1);
    // A configuration in a message requires the same scope.
    let mut request = client.text("along", "it", json!({}));
    request["configuration"] = json!({ "taskPushNotificationConfig": { "url": receivers.url("x") } });
    let starter = client.clone().by("starter");
    let envelope = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": request });
    let answer = starter.raw("POST", envelope.to_string().as_bytes()).await;
    assert_eq!(answer.status, 403);
}

#[tokio::test]
async fn readers_manage_their_own_push_configurations_and_no_others() {
    let receivers = Receivers::start().await;
    let server = Server::open(reaching()).await;
    for speaker in Speaker::all(&server) {
        let about = speaker.name();
        let task = asks(&speaker).await;
        let url = format!("{}?key=QUERYSECRET", receivers.url("one"));
        let set = speaker
            .ask(Operation::CreatePushConfig, wanted(&task, "one", &url))
            .await;
        let shown = set.unwrap();
        let query = shown["url"].as_str().unwrap().split_once('?').unwrap().1;
        assert_eq!(query, "REDACTED", "{about}");
        let one = json!({ "taskId": task, "id": "one" });
        let reader = Speaker::all(&server)
            .into_iter()
            .find(|other| other.name() == about)
            .unwrap()
            .by("reader");
        // The reader cannot read, replace or remove it, and its list does not include it.
        for (operation, request) in [
            (Operation::GetPushConfig, one.clone()),
            (
                Operation::CreatePushConfig,
                wanted(&task, "one", &receivers.url("theirs")),
            ),
            (Operation::DeletePushConfig, one.clone()),
        ] {
            let refused = reader.refused(operation, request).await;
            assert!(
                refused.contains("webhooks:manage"),
                "{about} {operation:?}: {refused}"
            );
        }
        let list = json!({ "taskId": task });
        let listed = async |speaker: &Speaker| {
            let listed = speaker
                .ask(Operation::ListPushConfigs, list.clone())
                .await
                .unwrap();
            listed.as_array().unwrap().len()
        };
        assert_eq!((listed(&reader).await, listed(&speaker).await), (0, 1), "{about}");
        // The reader manages its own.
        let two = json!({ "taskId": task, "id": "two" });
        let mut mine = two.clone();
        mine["url"] = json!(receivers.url("two"));
        reader.ask(Operation::CreatePushConfig, mine).await.unwrap();
        assert_eq!((listed(&reader).await, listed(&speaker).await), (1, 2), "{about}");
        let read = reader.ask(Operation::GetPushConfig, two.clone()).await.unwrap();
        assert_eq!(read["id"], "two", "{about}");
        reader.ask(Operation::DeletePushConfig, two).await.unwrap();
        assert_eq!((listed(&reader).await, listed(&speaker).await), (0, 1), "{about}");
        // The record hides other principals' configurations from the reader, and the query of the URL from
        // everybody.
        let path = format!("/v1/a2a/tasks/{}", task.as_str().unwrap());
        let client = server.v1();
        assert!(
            client
                .clone()
                .by("reader")
                .get(&path)
                .await
                .json()
                .get("pushConfig")
                .is_none()
        );
        let record = client.get(&path).await.json().to_string();
        assert!(
            !record.contains("QUERYSECRET") && record.contains("REDACTED"),
            "{record}"
        );
    }
}

#[tokio::test]
async fn readers_cannot_use_up_the_push_configurations_of_a_task() {
    let receivers = Receivers::start().await;
    let mut config = reaching();
    config.a2a.push_configs = 4;
    let server = Server::open(config).await;
    for (speaker, reader) in Speaker::all(&server).into_iter().zip(Speaker::all(&server)) {
        let (about, reader) = (speaker.name(), reader.by("reader"));
        let task = asks(&speaker).await;
        let set = async |speaker: &Speaker, id: &str| {
            let wanted = wanted(&task, id, &receivers.url("many"));
            speaker.ask(Operation::CreatePushConfig, wanted).await.map(drop)
        };
        for id in ["r1", "r2"] {
            set(&reader, id).await.unwrap();
        }
        let refused = set(&reader, "r3").await.unwrap_err();
        assert_eq!(refused, "UNSUPPORTED_OPERATION", "{about}");
        set(&reader, "r1").await.expect("it replaces its own");
        for id in ["s1", "s2"] {
            set(&speaker, id).await.unwrap();
        }
        let refused = set(&speaker, "s3").await.unwrap_err();
        assert_eq!(refused, "UNSUPPORTED_OPERATION", "{about}");
        let refused = set(&reader, "r3").await.unwrap_err();
        assert_eq!(refused, "UNSUPPORTED_OPERATION", "{about}");
    }
}

/// The interrupt in a push equals the one in the task.
#[tokio::test]
async fn the_kind_in_a_push_is_the_kind_in_the_task() {
    let receivers = Receivers::start().await;
    let server = Server::open(reaching()).await;
    for speaker in Speaker::all(&server).into_iter().take(2) {
        for (skill, kind) in [
            ("approve", "approval"),
            ("clarify", "clarification"),
            ("event", "external-event"),
            ("child-asks", "approval"),
        ] {
            let name = format!("{skill}-{}", speaker.name());
            let mut request = speaker.text(&name, "x", skill);
            request["configuration"] =
                json!({ "taskPushNotificationConfig": { "url": receivers.url(&name) } });
            let task = speaker.send(request).await.unwrap();
            assert_eq!(task["metadata"]["openwop"]["interrupt"]["kind"], kind, "{name}");
            receivers
                .until("told of the question", |inbox| {
                    let taken = inbox.taken.lock();
                    let pushes = taken.get(&name).into_iter().flatten();
                    let mut states = pushes.filter_map(Pushed::state);
                    states.any(|state| state == "input-required")
                })
                .await;
            let asked = receivers.taken(&name);
            let asked = asked
                .iter()
                .find(|pushed| pushed.state().as_deref() == Some("input-required"))
                .unwrap();
            assert!(
                asked
                    .body
                    .to_string()
                    .contains(&json!({ "kind": kind }).to_string()),
                "{name}: {}",
                asked.body
            );
        }
    }
}

#[tokio::test]
async fn invalid_receivers_are_refused_before_anything_is_stored() {
    let server = Server::start().await;
    let client = server.v1();
    let task = client
        .send(client.text("hostile", "it", json!({"metadata": {"skillId": "approve"}})))
        .await;
    let task = task["id"].clone();
    let create = "CreateTaskPushNotificationConfig";
    for url in [
        "https://10.0.0.5/push",
        "http://push.example.com/push",
        "https://[::ffff:127.0.0.1]/",
        "https://2130706433/",
        "https://user:pass@push.example.com/",
        "https://localhost/",
        "gopher://push.example.com",
        "nothing",
    ] {
        let params = json!({ "taskId": task, "url": url });
        let envelope = client.call(create, params).await;
        assert_eq!(envelope["error"]["code"], -32602, "{url}");
        let field = &envelope["error"]["data"][0]["fieldViolations"][0]["field"];
        assert_eq!(field, "url", "{url}");
        let mut along = client.text(&format!("along {url}"), "it", json!({}));
        along["configuration"] = json!({ "taskPushNotificationConfig": { "url": url } });
        let envelope = client.call("SendMessage", along).await;
        let field = &envelope["error"]["data"][0]["fieldViolations"][0]["field"];
        assert_eq!(field, "configuration.taskPushNotificationConfig.url", "{url}");
    }
    let good = "https://push.example.com/";
    for (member, value) in [
        ("id", json!("a/b")),
        ("id", json!("x".repeat(129))),
        ("token", json!("x".repeat(5_000))),
        ("token", json!("a\r\nb")),
        (
            "authentication",
            json!({"scheme": "Bearer", "credentials": "x".repeat(5_000)}),
        ),
        ("authentication", json!({"scheme": "Bea rer"})),
    ] {
        let mut params = json!({ "taskId": task, "url": good });
        params[member] = value.clone();
        assert_eq!(client.err(create, params).await.0, -32602, "{member} {value}");
    }
    assert_eq!(client.err(create, json!({ "url": good })).await.0, -32602);
    let list = json!({ "taskId": task });
    let none = client.ok("ListTaskPushNotificationConfigs", list.clone()).await;
    assert_eq!(none["configs"], json!([]));

    // Up to the maximum per task; an existing one may be replaced.
    for n in 0..10 {
        let params = json!({ "taskId": task, "id": format!("c{n}"), "url": good });
        client.ok(create, params).await;
    }
    let params = json!({ "taskId": task, "url": good });
    assert_eq!(client.err(create, params).await.0, -32004);
    let params = json!({ "taskId": task, "id": "c3", "url": "https://other.example.com/" });
    client.ok(create, params).await;
    let page = |token: &str| json!({ "taskId": task, "pageSize": 4, "pageToken": token });
    let mut names = Vec::new();
    let mut token = String::new();
    loop {
        let found = client.ok("ListTaskPushNotificationConfigs", page(&token)).await;
        let configs = found["configs"].as_array().unwrap().clone();
        names.extend(
            configs
                .iter()
                .map(|config| config["id"].as_str().unwrap().to_owned()),
        );
        match found["nextPageToken"].as_str() {
            Some(next) if !next.is_empty() => token = next.to_owned(),
            Some(_) | None => break,
        }
    }
    names.sort();
    let expected: Vec<_> = (0..10).map(|n| format!("c{n}")).collect();
    assert_eq!(names, expected);
    let bad = client
        .err("ListTaskPushNotificationConfigs", page("nowhere"))
        .await;
    assert_eq!(bad.0, -32602);

    // A page goes on after the last one, also if all that was on it is gone.
    let mut n_removed = 0;
    let mut token = String::new();
    loop {
        let found = client.ok("ListTaskPushNotificationConfigs", page(&token)).await;
        for config in found["configs"].as_array().unwrap() {
            let named = json!({ "taskId": task, "id": config["id"] });
            client.ok("DeleteTaskPushNotificationConfig", named).await;
            n_removed += 1;
        }
        match found["nextPageToken"].as_str() {
            Some(next) if !next.is_empty() => token = next.to_owned(),
            Some(_) | None => break,
        }
    }
    assert_eq!(n_removed, 10);
}

#[tokio::test]
async fn address_that_became_private_gets_nothing() {
    // Registered while the address is allowed, and delivered when it no longer is.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wopr.db");
    let receivers = Receivers::start().await;
    let server = Server::open(on(&path)).await;
    let client = server.v1();
    let task = client
        .send(client.text("moved", "it", json!({"metadata": {"skillId": "approve"}})))
        .await;
    let config = json!({ "taskId": task["id"], "id": "one", "url": receivers.url("one") });
    client.ok("CreateTaskPushNotificationConfig", config).await;
    server.stop().await;

    let mut strict = on(&path);
    strict.egress.allow = Vec::new();
    strict.a2a.push_give_up = "1ms".parse().unwrap();
    let server = Server::open(strict).await;
    let client = server.v1();
    let yes = client.text("yes", "approve", json!({ "taskId": task["id"] }));
    assert_eq!(state_of(&client.send(yes).await), "completed");
    given_up(&client, 2).await;
    assert!(receivers.taken("one").is_empty());
    assert_eq!(receivers.inbox.tried.lock().get("one"), None);
    server.stop().await;

    // Dead letters are listed, and retried once the address is allowed again.
    let server = Server::open(on(&path)).await;
    let client = server.v1();
    let all = client.get("/v1/host/wopr/deliveries?givenUp=true").await.json();
    let all = all["deliveries"].as_array().unwrap().clone();
    assert!(all.len() >= 2, "{all:?}");
    for delivery in &all {
        assert_eq!(delivery["state"], "given-up");
        assert_eq!(
            (&delivery["runId"], &delivery["configId"]),
            (&task["id"], &json!("one"))
        );
        assert_eq!(delivery["error"], "could not reach a loopback address");
        assert_eq!(delivery["attempts"], 1);
    }
    let mut paged = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = format!("/v1/host/wopr/deliveries?limit=1{cursor}");
        let page = client.get(&page).await.json();
        paged.extend(page["deliveries"].as_array().unwrap().clone());
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(paged, all);
    let retry = |body: Value| {
        let client = client.clone().at("/v1/host/wopr/deliveries:retry");
        async move { client.raw("POST", body.to_string().as_bytes()).await }
    };
    let run = &task["id"];
    for (body, status) in [
        (json!({}), 400),
        (json!({ "runId": "x y" }), 400),
        (json!({ "runId": run, "sequence": 1 }), 400),
        (json!({ "runId": run, "other": 1 }), 400),
    ] {
        assert_eq!(retry(body.clone()).await.status, status, "{body}");
    }
    for path in [
        "?limit=0",
        "?limit=x",
        "?cursor=x",
        "?givenUp=maybe",
        "?runId=x%20y",
    ] {
        let path = format!("/v1/host/wopr/deliveries{path}");
        assert_eq!(client.get(&path).await.status, 400, "{path}");
    }
    let reader = client.clone().by("reader");
    assert_eq!(reader.get("/v1/host/wopr/deliveries").await.status, 403);
    let other = client.clone().by("carol");
    let theirs = other.get("/v1/host/wopr/deliveries").await.json();
    assert_eq!(theirs, json!({ "deliveries": [] }));
    let theirs = other.at("/v1/host/wopr/deliveries:retry");
    let body = json!({ "runId": run, "configId": "one" }).to_string();
    assert_eq!(
        theirs.raw("POST", body.as_bytes()).await.json()["error"],
        "not_found"
    );

    let first = json!({ "runId": run, "configId": "one", "sequence": all[0]["sequence"] });
    assert_eq!(retry(first).await.json(), json!({ "retried": 1 }));
    assert_eq!(
        retry(json!({ "runId": run })).await.json(),
        json!({ "retried": all.len() - 1 })
    );
    assert_eq!(receivers.told("one", "completed").await.len(), all.len());
    server.stop().await;
}

/// Waits until `n` pushes were given up.
async fn given_up(client: &Client, n: u64) {
    let waiting = async {
        loop {
            let metrics = client.get("/metrics").await;
            let text = String::from_utf8_lossy(&metrics.body).into_owned();
            let count = text
                .lines()
                .find_map(|line| line.strip_prefix("wopr_push_given_up_total "))
                .and_then(|count| count.parse::<u64>().ok());
            if count.is_some_and(|count| count >= n) {
                return;
            }
            // sleep: the counter notifies nobody
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    assert!(waited.is_ok(), "{n} are given up");
}

#[tokio::test]
async fn only_creators_see_deliveries_and_configs_of_private_tasks() {
    let receivers = Receivers::start().await;
    receivers.mood("one", Mood::Answers(500));
    let mut config = reaching();
    config.a2a.private_tasks = true;
    let server = Server::open(config).await;
    let (alice, bob) = (server.v1(), server.v1().by("bob"));
    let asks = json!({"metadata": {"skillId": "approve"}});
    let task = alice.send(alice.text("private", "it", asks)).await["id"].clone();
    let config = wanted(&task, "one", &receivers.url("one"));
    alice.ok("CreateTaskPushNotificationConfig", config.clone()).await;
    for (method, params) in [
        ("CreateTaskPushNotificationConfig", config),
        (
            "GetTaskPushNotificationConfig",
            json!({ "taskId": task, "id": "one" }),
        ),
        ("ListTaskPushNotificationConfigs", json!({ "taskId": task })),
        (
            "DeleteTaskPushNotificationConfig",
            json!({ "taskId": task, "id": "one" }),
        ),
    ] {
        assert_eq!(bob.err(method, params).await.0, -32001, "{method}");
    }
    let yes = alice.text("yes", "approve", json!({ "taskId": task }));
    assert_eq!(state_of(&alice.send(yes).await), "completed");
    receivers.has_tried("one", 1).await;

    let listed = async |client: &Client, query: &str| {
        let path = format!("/v1/host/wopr/deliveries{query}");
        let list = client.get(&path).await.json();
        list["deliveries"].as_array().unwrap().len()
    };
    let of_run = format!("?runId={}", task.as_str().unwrap());
    assert!(listed(&alice, "").await > 0);
    assert!(listed(&alice, &of_run).await > 0);
    assert_eq!(listed(&bob, "").await, 0);
    let path = format!("/v1/host/wopr/deliveries{of_run}");
    assert_eq!(bob.get(&path).await.json()["error"], "not_found");
    let retry = json!({ "runId": task, "configId": "one" }).to_string();
    let retry = bob
        .at("/v1/host/wopr/deliveries:retry")
        .raw("POST", retry.as_bytes())
        .await;
    assert_eq!(retry.json()["error"], "not_found");
}
