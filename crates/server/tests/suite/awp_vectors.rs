//! The published vectors of the Agent Workflow Protocol over REST, if they are available. All answers are held against
//! the host's description.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use crate::{client::Reply, server::Server};

fn folder() -> Option<PathBuf> {
    let folder = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/fixtures/agent-workflow"
    ));
    if folder.is_dir() {
        return Some(folder);
    }
    println!("note: the vectors are not here; nothing was checked");
    None
}

fn read(path: PathBuf) -> Value {
    serde_json::from_slice(&fs::read(&path).expect("readable")).expect("JSON")
}

fn vectors(folder: &Path, kind: &str) -> Vec<Value> {
    let files = fs::read_dir(folder.join("vectors").join(kind)).expect("readable");
    let mut files: Vec<_> = files.map(|file| file.expect("readable").path()).collect();
    files.sort();
    files.into_iter().map(read).collect()
}

/// Descriptions of answers.
struct Described(Vec<Value>);

impl Described {
    async fn by(server: &Server) -> Self {
        Self(vec![server.get("/awp/v1/openapi.json").send().await.ok(200)])
    }

    /// Holds an answer against the schema of its status. Returns how many descriptions have one.
    fn check(&self, method: &str, path: &str, reply: &Reply) -> usize {
        let mut n_checked = 0;
        for document in &self.0 {
            let responses = &document["paths"][path][method]["responses"];
            let response = &responses[reply.status.to_string()];
            let schema = &response["content"]["application/json"]["schema"];
            if schema.is_null() {
                continue;
            }
            let mut root = schema.clone();
            root["components"] = document["components"].clone();
            let validator = jsonschema::options()
                .with_draft(jsonschema::Draft::Draft202012)
                .build(&root)
                .expect("a schema");
            let body = reply.json();
            let problems: Vec<_> = validator
                .iter_errors(&body)
                .map(|error| error.to_string())
                .collect();
            assert!(
                problems.is_empty(),
                "{method} {path} {}: {problems:?}\n{body}",
                reply.status
            );
            n_checked += 1;
        }
        n_checked
    }
}

struct Driver<'s> {
    server: &'s Server,
    described: Described,
    definition: Value,
}

impl Driver<'_> {
    async fn call(&self, method: &str, template: &str, path: &str, body: Option<Value>) -> Reply {
        let url = format!("/awp/v1{path}");
        let reply = match &body {
            Some(body) => self.server.post(&url, body).send().await,
            None => self.server.get(&url).send().await,
        };
        let n_checked = self.described.check(method, template, &reply);
        assert!(
            n_checked > 0,
            "{method} {template} {} is not described",
            reply.status
        );
        reply
    }

    async fn register(&self, definition: &Value) -> Reply {
        let body = json!({ "definition": definition });
        self.call("post", "/v1/workflows", "/workflows", Some(body)).await
    }

    /// Calls the operation of a step; what it does not say comes from the vector.
    async fn step(&self, vector: &Value, input: &Value, step: &Value) -> Reply {
        let id = step.get("executionId").unwrap_or(&vector["executionId"]);
        let id = id.as_str().expect("an id");
        let mut body = Map::new();
        let mut put = |name: &str, value: Option<&Value>| {
            if let Some(value) = value {
                body.insert(name.to_owned(), value.clone());
            }
        };
        put("activity_execution_mode", step.get("activityExecutionMode"));
        let op = step["op"].as_str().expect("a name");
        match op {
            "start" => {
                let registered = self.register(&self.definition).await;
                let workflow = match registered.status {
                    201 => registered.json()["wf_id"].clone(),
                    _ => registered.ok(409)["error"]["details"]["wf_id"].clone(),
                };
                put("execution_id", Some(&json!(id)));
                put("input", step.get("input"));
                if let Some(outputs) = vector.get("stubActivityOutputs") {
                    put("configurable", Some(&json!({ "mockOutputs": outputs })));
                }
                let path = format!("/workflows/{}/executions", workflow.as_str().expect("an id"));
                self.call(
                    "post",
                    "/v1/workflows/{wf_id}/executions",
                    &path,
                    Some(Value::Object(body)),
                )
                .await
            }
            "status" => {
                self.call(
                    "get",
                    "/v1/executions/{exec_id}",
                    &format!("/executions/{id}"),
                    None,
                )
                .await
            }
            "list" => {
                let phase = step["listPhase"].as_str().expect("a phase");
                self.call(
                    "get",
                    "/v1/executions",
                    &format!("/executions?phase={phase}"),
                    None,
                )
                .await
            }
            op => {
                if op != "cancel" {
                    put("definition", Some(&self.definition));
                }
                match op {
                    "resume" => put("resume_payload", step.get("resumePayload")),
                    "submit_activity" => {
                        put("input", Some(input));
                        put("node_id", step.get("nodeId"));
                        put("outcome", step.get("outcome"));
                        let span = step.get("expectedParallelSpan").map(snake);
                        put("parallel_span", span.as_ref());
                    }
                    "signal" => {
                        put("input", Some(input));
                        put("signal_name", step.get("signalName"));
                        put("payload", step.get("payload"));
                    }
                    "cancel" => put("reason", step.get("reason")),
                    other => panic!("unknown operation {other}"),
                }
                let template = format!("/v1/executions/{{exec_id}}:{op}");
                let path = format!("/executions/{id}:{op}");
                self.call("post", &template, &path, Some(Value::Object(body)))
                    .await
            }
        }
    }
}

/// A span in the names of answers.
fn snake(span: &Value) -> Value {
    let names = [
        ("parallelNodeId", "parallel_node_id"),
        ("joinTargetId", "join_target_id"),
        ("branchName", "branch_name"),
        ("branchEntryNodeId", "branch_entry_node_id"),
    ];
    names
        .iter()
        .map(|(from, to)| ((*to).to_owned(), span[*from].clone()))
        .collect()
}

/// Whether an answer has the expected members.
fn holds(expected: &Value, answer: &Value) -> bool {
    let members = expected.as_object().expect("an object");
    members.iter().all(|(name, wanted)| match name.as_str() {
        "execution_count" => {
            answer["executions"]
                .as_array()
                .map(Vec::len)
                .map(|n| json!(n))
                .as_ref()
                == Some(wanted)
        }
        "execution_ids" => {
            let mut ids: Vec<_> = answer["executions"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|item| item["execution_id"].clone())
                .collect();
            ids.sort_by_key(ToString::to_string);
            *wanted == Value::Array(ids)
        }
        name => answer.get(name) == Some(wanted),
    })
}

#[tokio::test]
async fn parity_vectors_hold_over_rest() {
    let Some(folder) = folder() else { return };
    for vector in vectors(&folder, "parity") {
        let server = Server::start().await;
        let file = vector["definition"].as_str().expect("a path");
        let driver = Driver {
            server: &server,
            described: Described::by(&server).await,
            definition: read(folder.join(file)),
        };
        // The reference knows this child by itself, as urn:awp:wf:unit-tests.
        let child = read(folder.join("examples/r3-unit-tests-child.workflow.json"));
        driver.register(&child).await.ok(201);
        let mut input = json!({});
        for step in vector["steps"].as_array().expect("a list") {
            if step["op"] == "start" {
                input = step["input"].clone();
            }
            let reply = driver.step(&vector, &input, step).await;
            let context = format!("{}: {}: {}", vector["id"], step["op"], reply.json());
            match step.get("expectErrorCode") {
                Some(code) => assert_eq!(reply.json()["error"]["code"], *code, "{context}"),
                None => {
                    reply.ok(200);
                    assert!(holds(&step["expect"], &reply.json()), "{context}");
                }
            }
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn schema_vectors_hold_over_rest() {
    let Some(folder) = folder() else { return };
    let server = Server::start().await;
    let described = Described::by(&server).await;
    for kind in ["schema/invalid", "schema/valid"] {
        for vector in vectors(&folder, kind) {
            let definition = read(folder.join(vector["definition"].as_str().expect("a path")));
            let body = json!({ "definition": definition });
            let reply = server.post("/awp/v1/workflows", &body).send().await;
            described.check("post", "/v1/workflows", &reply);
            let wanted = if vector["expect"]["ok"] == true { 201 } else { 400 };
            assert_eq!(reply.status, wanted, "{}: {}", vector["id"], reply.json());
        }
    }
}

#[tokio::test]
async fn the_description_has_every_answer() {
    let server = Server::start().await;
    let described = Described::by(&server).await;
    let document = json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "described", "version": "1.0.0" },
        "state_schema": { "type": "object" },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "work", "type": "tool_call", "config": { "server": "s", "tool": "t" } },
            { "id": "end", "type": "end" },
        ],
        "edges": [
            { "source": "__start__", "target": "start" }, { "source": "start", "target": "work" },
            { "source": "work", "target": "end" },
        ],
    });
    let driver = Driver {
        server: &server,
        described,
        definition: document.clone(),
    };
    driver.register(&document).await.ok(201);
    driver.register(&document).await.ok(409);
    let get = async |template: &str, path: &str| driver.call("get", template, path, None).await;
    get("/v1/workflows/{wf_id}", "/workflows/described").await.ok(200);
    get("/v1/workflows/{wf_id}", "/workflows/none").await.ok(404);
    let begin = json!({ "execution_id": "d-1", "activity_execution_mode": "host_mediated" });
    let template = "/v1/workflows/{wf_id}/executions";
    let started = driver
        .call("post", template, "/workflows/described/executions", Some(begin))
        .await;
    assert_eq!(started.ok(200)["status"], "awaiting_activity");
    get(
        "/v1/executions/{exec_id}/checkpoint",
        "/executions/d-1/checkpoint",
    )
    .await
    .ok(404);
    let submit = json!({ "definition": document, "node_id": "work", "outcome": { "ok": true } });
    let template = "/v1/executions/{exec_id}:submit_activity";
    driver
        .call("post", template, "/executions/d-1:submit_activity", Some(submit))
        .await
        .ok(200);
    get("/v1/executions/{exec_id}", "/executions/d-1").await.ok(200);
    get("/v1/executions/{exec_id}/events", "/executions/d-1/events")
        .await
        .ok(200);
    get(
        "/v1/executions/{exec_id}/checkpoint",
        "/executions/d-1/checkpoint",
    )
    .await
    .ok(200);
    get("/v1/executions", "/executions").await.ok(200);
    get("/v1/executions", "/executions?limit=0").await.ok(400);
}
