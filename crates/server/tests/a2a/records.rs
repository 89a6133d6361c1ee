//! The stored record of a task: closed, without any content of the run, and correct after restarts and removal.

use std::{path::Path, sync::OnceLock, time::Duration};

use jsonschema::Validator;
use serde_json::{Value, json};
use wopr_server::config::{Keep, Period};

use crate::{
    client::{Client, state_of},
    speaker::Speaker,
    support::{Server, config, node},
};

/// Marks everything that must not appear in a record.
const MARK: &str = "HOSTILE";

/// The allowed content of a record (RFC 0100). Of a push configuration, only the URL and a fingerprint are
/// allowed.
fn closed_record() -> Value {
    let id = json!({ "type": "string", "minLength": 1 });
    let states = [
        "submitted",
        "working",
        "input-required",
        "auth-required",
        "completed",
        "failed",
        "canceled",
        "rejected",
    ];
    json!({
        "type": "object",
        "required": ["taskId", "runId", "state", "updatedAt"],
        "additionalProperties": false,
        "properties": {
            "taskId": id,
            "runId": id,
            "contextId": id,
            "state": { "enum": states },
            "interruptKind": { "enum": ["approval", "clarification"] },
            "updatedAt": id,
            "pushConfig": {
                "type": "object",
                "required": ["url"],
                "additionalProperties": false,
                "properties": {
                    "url": id,
                    "tokenFingerprint": { "type": "string", "minLength": 1, "maxLength": 32 },
                },
            },
        },
    })
}

/// Checks a record against the schema above, against the published one if it is checked out next to the
/// project, and for consistency.
pub(crate) fn check(record: &Value) {
    static SCHEMAS: OnceLock<Vec<Validator>> = OnceLock::new();
    let schemas = SCHEMAS.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let path = "../shared/fixtures/openwop/schemas/v1/a2a-task-state.schema.json";
        let published = std::fs::read(root.join(path)).ok();
        let published = published.map(|text| serde_json::from_slice(&text).unwrap());
        let schemas = [closed_record()].into_iter().chain(published);
        schemas
            .map(|schema| jsonschema::validator_for(&schema).unwrap())
            .collect()
    });
    for schema in schemas {
        let errors: Vec<_> = schema
            .iter_errors(record)
            .map(|error| error.to_string())
            .collect();
        assert!(errors.is_empty(), "{errors:?}\n{record:#}");
    }
    let members = record.as_object().unwrap();
    assert_eq!(record["taskId"], record["runId"]);
    let asks = record["state"] == "input-required";
    assert_eq!(members.contains_key("interruptKind"), asks, "{record:#}");
    assert!(record["updatedAt"].as_str().unwrap().ends_with('Z'));
    let text = record.to_string();
    assert!(!text.to_ascii_uppercase().contains(MARK), "{text}");
}

async fn record(client: &Client, task: &str) -> Value {
    let answer = client.get(&format!("/v1/a2a/tasks/{task}")).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
    let record = answer.json();
    check(&record);
    record
}

/// A string that looks like a secret.
fn secret(kind: &str) -> String {
    match kind {
        "bearer" => format!("Bearer eyJhbGciOiJIUzI1NiJ9.{MARK}.c2ln"),
        "key" => format!("-----BEGIN PRIVATE KEY-----\n{MARK}\n-----END PRIVATE KEY-----"),
        other => {
            format!("sk-live-{MARK}-{other}\",\"pushConfig\":{{\"url\":\"https://evil.example/{MARK}\"}}")
        }
    }
}

fn workflow(id: &str, last: Value) -> Value {
    let mut said = node(
        "say",
        "core.template",
        json!({ "template": "{{ prompt }} {{ token }}" }),
    );
    said["artifactType"] = json!(format!("type-{MARK}"));
    said["name"] = json!(secret("artifact"));
    json!({
        "id": id, "name": secret("name"), "version": "1", "nodes": [said, last],
        "edges": [{ "id": "e", "sourceNodeId": "say", "targetNodeId": last["id"] }],
        "triggers": [], "variables": [], "metadata": {}, "settings": {},
    })
}

/// Workflows that end in every state, full of content that must stay hidden.
fn workflows() -> Vec<(Value, &'static str)> {
    let question = json!({ "id": format!("q-{MARK}"), "question": secret("question") });
    vec![
        (
            workflow("leak-done", node("end", "core.noop", json!({}))),
            "completed",
        ),
        (
            workflow(
                "leak-approval",
                node(
                    "gate",
                    "core.approvalGate",
                    json!({
                        "title": secret("bearer"), "description": secret("key"),
                        "artifactData": { "secret": secret("data") }, "timeoutMs": 600_000,
                    }),
                ),
            ),
            "input-required",
        ),
        (
            workflow(
                "leak-question",
                node(
                    "ask",
                    "core.clarificationGate",
                    json!({ "questions": [question] }),
                ),
            ),
            "input-required",
        ),
        (
            workflow(
                "leak-event",
                node(
                    "wait",
                    "core.interrupt",
                    json!({
                        "kind": "external-event",
                        "data": { "eventType": secret("event"), "correlation": { "token": secret("bearer") } },
                    }),
                ),
            ),
            "input-required",
        ),
        (
            workflow(
                "leak-failed",
                node(
                    "fail",
                    "core.fail",
                    json!({ "code": format!("code_{MARK}"), "message": secret("key") }),
                ),
            ),
            "failed",
        ),
        (
            workflow(
                "leak-rejected",
                node("no", "core.a2a.reject", json!({ "message": secret("bearer") })),
            ),
            "rejected",
        ),
        (
            workflow(
                "leak-working",
                node("wait", "core.delay", json!({ "delayMs": 600_000 })),
            ),
            "working",
        ),
    ]
}

#[tokio::test]
async fn a_record_holds_nothing_of_what_the_run_holds() {
    for server in Server::start_each().await {
        for (document, _) in workflows() {
            server.host.engine().register(None, document).await.unwrap();
        }
        for speaker in Speaker::all(&server) {
            for (document, state) in workflows() {
                let id = document["id"].as_str().unwrap();
                let mut request = speaker.text(id, &secret("bearer"), id);
                request["message"]["messageId"] = json!(format!("{MARK}-{id}-{}", speaker.name()));
                request["message"]["metadata"]["note"] = json!(secret("metadata"));
                request["message"]["parts"] = json!([
                    { "text": secret("bearer") },
                    { "data": { "token": secret("key"), "pushConfig": { "url": secret("url") } } },
                    { "raw": "SE9TVElMRQ==", "filename": secret("file"), "mediaType": "text/plain" },
                    { "url": format!("https://user:{MARK}@files.example/x"), "filename": MARK },
                ]);
                request["configuration"] = json!({ "returnImmediately": true });
                let task = speaker.send(request).await.unwrap();
                let task = task["id"].as_str().unwrap();
                let record = record(&server.v1(), task).await;
                assert_eq!(
                    (record["taskId"].as_str(), record["state"].as_str()),
                    (Some(task), Some(state))
                );
                let read = speaker.get(json!({ "id": task })).await.unwrap();
                // The test proves nothing unless the task contains the mark.
                assert!(read.to_string().contains(MARK), "{read}");
                assert_eq!(read["contextId"], record["contextId"]);
                if state == "input-required" || state == "working" {
                    speaker.cancel(task).await.unwrap();
                    let record = self::record(&server.v1(), task).await;
                    assert_eq!(record["state"], "canceled");
                }
            }
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn a_task_is_live_after_its_caller_left_and_the_host_was_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wopr.db");
    let server = Server::sqlite(&path).await;
    let mut tasks = Vec::new();
    for speaker in Speaker::all(&server) {
        for (skill, state) in [
            ("approve", "input-required"),
            ("slow", "working"),
            ("hello", "completed"),
        ] {
            let request = speaker.text(&format!("{skill}-left"), "launch", skill);
            let mut updates = speaker
                .stream(wopr_wire::a2a::method::Operation::SendStreamingMessage, request)
                .await;
            // The caller leaves after the first update.
            let first = updates.next().await.unwrap();
            let task = first.value["id"].as_str().unwrap().to_owned();
            drop(updates);
            server.v1().until(&task, state).await;
            tasks.push((task, skill, state));
        }
    }
    let mut before = Vec::new();
    for (task, ..) in &tasks {
        before.push((
            record(&server.v1(), task).await,
            lasting(server.v1().task(task).await),
        ));
    }
    server.stop().await;

    let server = Server::sqlite(&path).await;
    for ((task, skill, state), before) in tasks.iter().zip(before) {
        let client = server.v1();
        let after = (record(&client, task).await, lasting(client.task(task).await));
        assert_eq!(after, before, "{skill}");
        for speaker in Speaker::all(&server) {
            let read = speaker.get(json!({ "id": task })).await.unwrap();
            assert_eq!(state_of(&read), *state, "{skill} {}", speaker.name());
        }
        let stream = ["approve", "slow"].contains(skill);
        if stream {
            // Subscribing starts nothing: the log keeps its length.
            let head = events(&server, task).await;
            let mut seen = client.subscribe(task).await;
            assert_eq!(seen.next().await.unwrap().short(), format!("task:{state}"));
            assert_eq!(events(&server, task).await, head, "{skill}");
            if *skill == "approve" {
                let yes = client.text(&format!("yes-{task}"), "approve", json!({ "taskId": task }));
                assert_eq!(state_of(&client.send(yes).await), "completed");
                seen.until("status:completed").await;
                assert_eq!(record(&client, task).await["state"], "completed");
            }
        }
    }
    server.stop().await;
}

fn lasting(mut task: Value) -> Value {
    if let Some(about) = task["metadata"]["openwop"].as_object_mut() {
        about.remove("interruptToken");
    }
    task
}

async fn events(server: &Server, task: &str) -> u64 {
    let tenant = serde_json::from_value(json!("default")).unwrap();
    let key = wopr_core::RunKey::new(tenant, wopr_core::RunId::parse(task).unwrap());
    server.host.engine().view(&key).await.unwrap().unwrap().run.head.0
}

#[tokio::test]
async fn record_is_removed_with_its_task() {
    let mut config = config();
    config.retention.terminal_runs = Keep::For(Period::from_secs(1));
    let server = Server::open(config).await;
    let client = server.v1();
    let done = client.send(client.text("m", "x", json!({}))).await;
    let waits = client
        .send(client.text("w", "x", json!({"metadata": {"skillId": "approve"}})))
        .await;
    let (done, waits) = (done["id"].as_str().unwrap(), waits["id"].as_str().unwrap());
    let path = format!("/v1/a2a/tasks/{done}");
    let give_up = tokio::time::Instant::now() + Duration::from_secs(60);
    while client.get(&path).await.status != 404 {
        assert!(tokio::time::Instant::now() < give_up, "{done} stays");
        tokio::time::sleep(Duration::from_millis(50)).await; // sleep: poll interval
    }
    let envelope = client.get(&path).await.json();
    let unknown = client
        .get("/v1/a2a/tasks/run_00000000000000000000000000000000")
        .await
        .json();
    assert_eq!(envelope, unknown);
    for speaker in Speaker::all(&server) {
        assert_eq!(
            speaker.get(json!({ "id": done })).await,
            Err("TASK_NOT_FOUND"),
            "{}",
            speaker.name()
        );
        assert_eq!(speaker.cancel(done).await, Err("TASK_NOT_FOUND"));
    }
    // A run that has not ended is kept, however long it waits.
    assert_eq!(record(&client, waits).await["state"], "input-required");
}

#[tokio::test]
async fn record_requires_read_access_to_the_task() {
    let server = Server::start().await;
    let client = server.v1();
    let task = client.send(client.text("m", "x", json!({}))).await;
    let path = format!("/v1/a2a/tasks/{}", task["id"].as_str().unwrap());
    let missing = client
        .get("/v1/a2a/tasks/run_00000000000000000000000000000000")
        .await
        .json();
    let mut nobody = client.clone();
    nobody.key = None;
    assert_eq!(nobody.get(&path).await.status, 401);
    assert_eq!(client.clone().by("starter").get(&path).await.status, 403);
    let foreign = client.clone().by("carol").get(&path).await;
    assert_eq!((foreign.status, foreign.json()), (404, missing));
    assert_eq!(client.clone().by("reader").get(&path).await.status, 200);
}
