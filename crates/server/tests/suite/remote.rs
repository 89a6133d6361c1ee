//! An agent of another kind than this host, in plain HTTP: it does what a test says, and its tasks never change by
//! themselves. It speaks JSON-RPC in A2A 0.3, 1.0 or both.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    task::{JoinHandle, JoinSet},
};

/// A request other than that of the card.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    /// The header `A2A-Version`.
    pub(crate) version: Option<String>,
    pub(crate) authorization: Option<String>,
    pub(crate) params: Value,
}

#[derive(Debug)]
struct Says {
    versions: Vec<&'static str>,
    /// The state of the next task, in the words of 0.3.
    next: String,
    /// What is added to every task and message.
    claims: Value,
    /// The text of statuses and messages.
    text: String,
    /// Answers with a message instead of a task.
    is_brief: bool,
    tasks: Vec<(String, String)>,
    seen: Vec<Seen>,
    origin: String,
}

/// It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) address: SocketAddr,
    says: Arc<Mutex<Says>>,
    serving: JoinHandle<()>,
}

impl Remote {
    pub(crate) async fn start(versions: &[&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let says = Arc::new(Mutex::new(Says {
            versions: versions.to_vec(),
            next: "completed".to_owned(),
            claims: json!({}),
            text: "So it is.".to_owned(),
            is_brief: false,
            tasks: Vec::new(),
            seen: Vec::new(),
            origin: format!("http://{address}"),
        }));
        let known = Arc::clone(&says);
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let says = Arc::clone(&known);
                connections.spawn(async move {
                    let service = service_fn(move |request| answer(Arc::clone(&says), request));
                    // The caller may leave at any time.
                    let _ = http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self {
            address,
            says,
            serving,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Puts the next task into a state.
    pub(crate) fn next(&self, state: &str) {
        state.clone_into(&mut self.says.lock().next);
    }

    /// Moves the newest task on.
    pub(crate) fn moves_on(&self, state: &str) {
        let mut says = self.says.lock();
        let (_, known) = says.tasks.last_mut().unwrap();
        state.clone_into(known);
    }

    pub(crate) fn says(&self, text: &str) {
        text.clone_into(&mut self.says.lock().text);
    }

    pub(crate) fn is_brief(&self) {
        self.says.lock().is_brief = true;
    }

    /// Adds members to every message that it sends.
    pub(crate) fn claims(&self, members: Value) {
        self.says.lock().claims = members;
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.says.lock().seen.clone()
    }

    /// The ids of its tasks.
    pub(crate) fn tasks(&self) -> Vec<String> {
        self.says.lock().tasks.iter().map(|(id, _)| id.clone()).collect()
    }

    pub(crate) fn state(&self, task: &str) -> String {
        let says = self.says.lock();
        let known = says.tasks.iter().find(|(id, _)| id == task);
        known.unwrap().1.clone()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(says: Arc<Mutex<Says>>, request: Request<Incoming>) -> hyper::Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let named = |name: &str| Some(head.headers.get(name)?.to_str().unwrap().to_owned());
    let mut says = says.lock();
    let reply = |status: StatusCode, body: Value| {
        let mut reply = Response::new(Full::from(body.to_string()));
        *reply.status_mut() = status;
        let media = HeaderValue::from_static("application/json");
        reply.headers_mut().insert(header::CONTENT_TYPE, media);
        Ok(reply)
    };
    match (head.method.as_str(), head.uri.path()) {
        ("GET", "/.well-known/agent-card.json") => reply(StatusCode::OK, says.card()),
        ("POST", "/a2a") => {
            let request: Value = serde_json::from_slice(&body).unwrap();
            let version = named("a2a-version");
            let spoken = version.clone().unwrap_or_else(|| "0.3".to_owned());
            says.seen.push(Seen {
                method: request["method"].as_str().unwrap().to_owned(),
                version,
                authorization: named("authorization"),
                params: request["params"].clone(),
            });
            let (status, outcome) = match says.versions.iter().any(|known| *known == spoken) {
                true => says.call(&spoken, &request),
                false => (
                    StatusCode::BAD_REQUEST,
                    Err((-32_009, "this version is not spoken here")),
                ),
            };
            let id = &request["id"];
            let body = match outcome {
                Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
                Err((code, message)) => {
                    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
                }
            };
            reply(status, body)
        }
        _ => reply(StatusCode::NOT_FOUND, json!({})),
    }
}

type Outcome = Result<Value, (i64, &'static str)>;

impl Says {
    /// A card of each version that is spoken, in one document.
    fn card(&self) -> Value {
        let url = format!("{}/a2a", self.origin);
        let skill =
            json!({ "id": "echo", "name": "Echo", "description": "Says it again.", "tags": ["test"] });
        let mut card = json!({
            "name": "Remote", "description": self.text, "version": "1", "capabilities": {}, "skills": [skill],
            "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        });
        if self.versions.contains(&"1.0") {
            let interface = |version: &&str| json!({ "url": url, "protocolBinding": "JSONRPC", "protocolVersion": version });
            card["supportedInterfaces"] = self.versions.iter().map(interface).collect();
        }
        if self.versions.contains(&"0.3") {
            card["url"] = json!(url);
            card["protocolVersion"] = json!("0.3.0");
            card["preferredTransport"] = json!("JSONRPC");
        }
        card
    }

    fn call(&mut self, version: &str, request: &Value) -> (StatusCode, Outcome) {
        let params = &request["params"];
        let outcome = match (version, request["method"].as_str().unwrap()) {
            ("1.0", "SendMessage") => Ok(match self.send(params) {
                Some(task) => json!({ "task": self.task(version, &task) }),
                None => json!({ "message": self.message(version, None) }),
            }),
            ("0.3", "message/send") => Ok(match self.send(params) {
                Some(task) => self.task(version, &task),
                None => self.message(version, None),
            }),
            ("1.0", "GetTask") | ("0.3", "tasks/get") => {
                self.find(params).map(|task| self.task(version, &task))
            }
            ("1.0", "CancelTask") | ("0.3", "tasks/cancel") => self.find(params).and_then(|task| {
                let (_, state) = self.tasks.iter_mut().find(|(id, _)| *id == task).unwrap();
                if ["completed", "failed", "canceled", "rejected"].contains(&state.as_str()) {
                    return Err((-32_002, "the task has ended"));
                }
                "canceled".clone_into(state);
                Ok(self.task(version, &task))
            }),
            _ => Err((-32_601, "there is no such method")),
        };
        (StatusCode::OK, outcome)
    }

    /// Takes a message, and returns its task.
    fn send(&mut self, params: &Value) -> Option<String> {
        if self.is_brief {
            return None;
        }
        let next = self.next.clone();
        if let Some(task) = params["message"]["taskId"].as_str() {
            let (_, state) = self.tasks.iter_mut().find(|(id, _)| id == task).unwrap();
            *state = next;
            return Some(task.to_owned());
        }
        let task = format!("task-{}", self.tasks.len() + 1);
        self.tasks.push((task.clone(), next));
        Some(task)
    }

    fn find(&self, params: &Value) -> Result<String, (i64, &'static str)> {
        let known = self.tasks.iter().find(|(id, _)| params["id"] == id.as_str());
        known
            .map(|(id, _)| id.clone())
            .ok_or((-32_001, "there is no such task"))
    }

    fn task(&self, version: &str, id: &str) -> Value {
        let (_, state) = self.tasks.iter().find(|(known, _)| known == id).unwrap();
        let word = match version {
            "1.0" => format!("TASK_STATE_{}", state.to_uppercase().replace('-', "_")),
            _ => state.clone(),
        };
        let artifact = json!({
            "artifactId": "a", "parts": [part(version, &self.text)], "metadata": self.claims["metadata"].clone(),
        });
        let mut task = json!({
            "id": id, "contextId": format!("ctx-{id}"),
            "status": { "state": word, "message": self.message(version, Some(id)) },
            "history": [self.message(version, Some(id))],
            "artifacts": [],
            "metadata": self.claims["metadata"].clone(),
        });
        if state == "completed" {
            task["artifacts"] = json!([artifact]);
        }
        if version == "0.3" {
            task["kind"] = json!("task");
        }
        without_null(task)
    }

    fn message(&self, version: &str, task: Option<&str>) -> Value {
        let mut message = json!({
            "messageId": "m", "parts": [part(version, &self.text)],
            "role": if version == "1.0" { "ROLE_AGENT" } else { "agent" },
        });
        if version == "0.3" {
            message["kind"] = json!("message");
        }
        if let Some(task) = task {
            message["taskId"] = json!(task);
        }
        let claims = self.claims.as_object().cloned().unwrap_or_default();
        message.as_object_mut().unwrap().extend(claims);
        message
    }
}

fn part(version: &str, text: &str) -> Value {
    match version {
        "1.0" => json!({ "text": text }),
        _ => json!({ "kind": "text", "text": text }),
    }
}

fn without_null(mut task: Value) -> Value {
    let object = |value: &mut Value| value.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    object(&mut task);
    task["artifacts"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .for_each(object);
    task
}
