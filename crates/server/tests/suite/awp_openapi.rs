//! The protocol's own OpenAPI description, where it is there: what this host describes, and what it really answers, is held
//! against it.
//!
//! The description is older than its engine, and knows neither signals nor cancels (`CANCEL`, `GAPS`).

use std::{fs, path::Path};

use serde_json::{Map, Value, json};
use yaml_rust2::{Yaml, YamlLoader};

use crate::{client::Reply, server::Server};

/// An operation that the description says is not there yet.
const CANCEL: &str = "/v1/executions/{exec_id}:cancel";
/// Words that enumerations of the description lack, by where they are.
const GAPS: [(&str, &[&str]); 3] = [
    (
        "/components/schemas/WorkflowStartResult/properties/status/enum",
        &["awaiting_signal", "cancelled", "running"],
    ),
    (
        "/components/schemas/WorkflowStatusResult/properties/phase/enum",
        &["awaiting_signal", "cancelled"],
    ),
    (
        "/components/schemas/ErrorBody/properties/error/properties/code/enum",
        &["CANCEL_NOT_ALLOWED"],
    ),
];

/// The description, without its gaps; `None` if it is not there.
fn given() -> Option<Value> {
    let path = "../../../shared/fixtures/agent-workflow/openapi/openapi.yaml";
    let Ok(text) = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)) else {
        println!("note: the description of the Agent Workflow Protocol is not here; nothing was compared");
        return None;
    };
    let documents = YamlLoader::load_from_str(&text).expect("YAML");
    let mut given = json_of(&documents[0]);
    for (place, words) in GAPS {
        let known = given
            .pointer_mut(place)
            .and_then(Value::as_array_mut)
            .expect(place);
        known.extend(words.iter().map(|word| json!(word)));
    }
    Some(given)
}

fn json_of(yaml: &Yaml) -> Value {
    match yaml {
        Yaml::Boolean(value) => json!(value),
        Yaml::Integer(value) => json!(value),
        Yaml::String(text) => json!(text),
        Yaml::Array(items) => items.iter().map(json_of).collect(),
        Yaml::Hash(members) => {
            let members = members.iter().map(|(name, value)| {
                let name = name.as_str().expect("names are texts").to_owned();
                (name, json_of(value))
            });
            Value::Object(members.collect::<Map<_, _>>())
        }
        Yaml::Null => Value::Null,
        Yaml::Real(_) | Yaml::Alias(_) | Yaml::BadValue => panic!("the description has no {yaml:?}"),
    }
}

/// What a reference leads to, or the value itself.
fn resolved<'v>(document: &'v Value, value: &'v Value) -> &'v Value {
    match value["$ref"].as_str() {
        Some(reference) => document
            .pointer(reference.trim_start_matches('#'))
            .expect(reference),
        None => value,
    }
}

/// The operations of a description, by path and method.
fn operations(document: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    let paths = document["paths"].as_object().expect("paths");
    paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().expect("methods");
        methods
            .iter()
            .map(|(method, operation)| (path.as_str(), method.as_str(), operation))
    })
}

fn names(schema: &Value, member: &str) -> Vec<String> {
    match &schema[member] {
        Value::Object(properties) => properties.keys().cloned().collect(),
        Value::Array(required) => required
            .iter()
            .map(|name| name.as_str().unwrap().to_owned())
            .collect(),
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn the_host_describes_all_that_the_protocol_does() {
    let Some(given) = given() else { return };
    let server = Server::start().await;
    let ours = server.call("GET", "/awp/v1/openapi.json").send().await.ok(200);
    let body = |document: &Value, operation: &Value| {
        resolved(
            document,
            &operation["requestBody"]["content"]["application/json"]["schema"],
        )
        .clone()
    };
    for (path, method, wanted) in operations(&given) {
        let described = &ours["paths"][path][method];
        assert_eq!(described["operationId"], wanted["operationId"], "{method} {path}");
        for status in wanted["responses"].as_object().unwrap().keys() {
            let is_there = !described["responses"][status].is_null();
            assert!(is_there || path == CANCEL, "{method} {path}: {status}");
        }
        let parameter = |document: &Value, parameter: &Value| {
            let parameter = resolved(document, parameter);
            (parameter["in"].to_string(), parameter["name"].to_string())
        };
        let known: Vec<_> = described["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| parameter(&ours, one))
            .collect();
        for wanted in wanted["parameters"].as_array().into_iter().flatten() {
            let wanted = parameter(&given, wanted);
            assert!(known.contains(&wanted), "{method} {path}: {wanted:?}");
        }
        // Whatever the protocol lets a client send, the host takes.
        let (wanted, taken) = (body(&given, wanted), body(&ours, described));
        for name in names(&wanted, "properties") {
            assert!(
                names(&taken, "properties").contains(&name),
                "{method} {path}: {name}"
            );
        }
        for name in names(&taken, "required") {
            assert!(
                names(&wanted, "required").contains(&name),
                "{method} {path}: {name}"
            );
        }
    }
}

/// A host whose answers are held against the description.
struct Checked {
    server: Server,
    given: Value,
}

impl Checked {
    /// Sends a request; the path is that of the description with `id` in the place of its parameter.
    async fn call(&self, method: &str, template: &str, id: &str, body: Option<Value>) -> Reply {
        let path = template.replace("{wf_id}", id).replace("{exec_id}", id);
        let path = format!("/awp{path}");
        let reply = match &body {
            Some(body) => self.server.post(&path, body).send().await,
            None => self.server.get(&path).send().await,
        };
        let (status, answer) = (reply.status.to_string(), reply.json());
        let described = &self.given["paths"][template][method]["responses"][&status];
        let described = resolved(&self.given, described);
        let schema = match &described["content"]["application/json"]["schema"] {
            Value::Null => {
                let is_known = template == CANCEL || template.ends_with("/checkpoint");
                assert!(
                    is_known,
                    "{method} {path} is not described with {status}: {answer}"
                );
                json!({ "$ref": match reply.status {
                    200 => "#/components/schemas/WorkflowStartResult",
                    _ => "#/components/schemas/ErrorBody",
                } })
            }
            schema => schema.clone(),
        };
        let mut schema = schema;
        schema["components"] = self.given["components"].clone();
        let validator = jsonschema::options()
            .with_draft(jsonschema::Draft::Draft202012)
            .build(&schema)
            .unwrap();
        let errors: Vec<_> = validator
            .iter_errors(&answer)
            .map(|error| error.to_string())
            .collect();
        assert!(
            errors.is_empty(),
            "{method} {path} {status}: {errors:?}\n{answer:#}"
        );
        reply
    }

    async fn get(&self, template: &str, id: &str) -> Reply {
        self.call("get", template, id, None).await
    }

    async fn post(&self, template: &str, id: &str, body: Value) -> Reply {
        self.call("post", template, id, Some(body)).await
    }
}

/// A delegate, an activity in a branch, and a question.
fn document() -> Value {
    let edge = |source: &str, target: &str| json!({ "source": source, "target": target });
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "described", "version": "1" },
        "state_schema": { "type": "object" },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "ask", "type": "agent_delegate", "config": { "agent_id": "coder", "protocol": "a2a", "input_mapping": {} } },
            { "id": "fork", "type": "parallel", "config": { "join": "all", "branches": [{ "name": "a", "entry": "a" }] } },
            { "id": "a", "type": "tool_call", "config": { "server": "s", "tool": "t" } },
            { "id": "review", "type": "interrupt", "config": { "prompt": "?", "resume_schema": {
                "type": "object", "required": ["ok"],
            } } },
            { "id": "end", "type": "end" },
        ],
        "edges": [
            edge("__start__", "start"), edge("start", "ask"), edge("ask", "fork"), edge("fork", "review"), edge("a", "review"),
            edge("review", "end"),
        ],
    })
}

#[tokio::test]
async fn answers_have_the_form_that_the_protocol_describes() {
    const WORKFLOWS: &str = "/v1/workflows";
    const WORKFLOW: &str = "/v1/workflows/{wf_id}";
    const START: &str = "/v1/workflows/{wf_id}/executions";
    const STATUS: &str = "/v1/executions/{exec_id}";
    const EVENTS: &str = "/v1/executions/{exec_id}/events";
    const CHECKPOINT: &str = "/v1/executions/{exec_id}/checkpoint";
    const RESUME: &str = "/v1/executions/{exec_id}:resume";
    const SUBMIT: &str = "/v1/executions/{exec_id}:submit_activity";

    let Some(given) = given() else { return };
    let server = Server::start().await;
    let host = Checked { server, given };
    let definition = document();
    let named = || json!({ "definition": definition });
    host.post(WORKFLOWS, "", json!({ "definition": {} }))
        .await
        .ok(400);
    host.post(WORKFLOWS, "", named()).await.ok(201);
    host.post(WORKFLOWS, "", named()).await.ok(409);
    host.get(WORKFLOW, "described").await.ok(200);
    host.get(WORKFLOW, "unknown").await.ok(404);

    let begin = |id: &str| json!({ "execution_id": id, "activity_execution_mode": "host_mediated" });
    host.post(START, "unknown", begin("d-1")).await.ok(404);
    host.post(START, "described", json!({ "execution_id": 1 }))
        .await
        .ok(400);
    let asked = host.post(START, "described", begin("d-1")).await.ok(200);
    assert_eq!(asked["agent_id"], "coder", "{asked}");
    host.post(START, "described", begin("d-1")).await.ok(409);
    host.get(STATUS, "d-1").await.ok(200);
    host.get(STATUS, "d-0").await.ok(404);
    host.get(CHECKPOINT, "d-1").await.ok(404);

    let submit = |node: &str, more: Value| {
        let mut body = json!({ "definition": definition, "node_id": node });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let done =
        json!({ "ok": true, "result": { "patch": "p" }, "delegate_correlation_id": "d-1:delegate:ask" });
    host.post(SUBMIT, "d-1", submit("ask", json!({ "outcome": { "ok": true } })))
        .await
        .ok(400);
    host.post(SUBMIT, "d-1", submit("a", json!({ "outcome": done })))
        .await
        .ok(409);
    let next = host
        .post(SUBMIT, "d-1", submit("ask", json!({ "outcome": done })))
        .await
        .ok(200);
    let span = &next["parallel_span"];
    assert_eq!(span["branch_name"], "a", "{next}");
    let submitted = submit("a", json!({ "outcome": { "ok": true }, "parallel_span": span }));
    let paused = host.post(SUBMIT, "d-1", submitted).await.ok(200);
    assert_eq!(paused["status"], "interrupted", "{paused}");
    host.get(STATUS, "d-1").await.ok(200);
    let resume = |payload: Value| json!({ "definition": definition, "resume_payload": payload });
    host.post(RESUME, "d-1", resume(json!({}))).await.ok(400);
    let ended = host
        .post(RESUME, "d-1", resume(json!({ "ok": true })))
        .await
        .ok(200);
    assert_eq!(ended["status"], "completed", "{ended}");
    host.get(STATUS, "d-1").await.ok(200);
    host.get(EVENTS, "d-1").await.ok(200);
    host.get(EVENTS, "d-0").await.ok(404);
    host.get(CHECKPOINT, "d-1").await.ok(200);
    host.post(CANCEL, "d-1", json!({})).await.ok(409);

    host.post(START, "described", begin("d-2")).await.ok(200);
    let failed = json!({ "outcome": { "ok": false, "error": "no", "code": "NO" } });
    host.post(SUBMIT, "d-2", submit("ask", failed)).await.ok(500);
    host.get(STATUS, "d-2").await.ok(200);
    host.get(EVENTS, "d-2").await.ok(200);
    host.post(START, "described", begin("d-3")).await.ok(200);
    host.post(CANCEL, "d-3", json!({ "reason": "enough" }))
        .await
        .ok(200);
    host.get(STATUS, "d-3").await.ok(200);
    host.post(CANCEL, "d-0", json!({})).await.ok(404);
}
