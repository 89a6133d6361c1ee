//! An agent by the official Rust server of A2A 1.0 over its three bindings, which does what `behaviours.json` says.

use std::{fs, sync::Arc, time::Duration};

use a2a::{
    A2AError, AgentCard, ListTasksRequest, Message, PartContent, Role, StreamResponse,
    TRANSPORT_PROTOCOL_GRPC, TRANSPORT_PROTOCOL_HTTP_JSON, TRANSPORT_PROTOCOL_JSONRPC,
};
use a2a_grpc::GrpcHandler;
use a2a_pb::proto::a2a_service_server::A2aServiceServer;
use a2a_server::{
    AgentExecutor, DefaultRequestHandler, ExecutorContext, InMemoryTaskStore, RequestHandler as _,
    StaticAgentCard, agent_card::agent_card_router, jsonrpc::jsonrpc_router, rest::rest_router,
};
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream, stream::BoxStream};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    runtime::{self, Runtime},
    time,
};
use tonic::{
    service::Routes,
    transport::{Server, server::TcpIncoming},
};

use crate::{interop::root, interop_agents::Callee};

/// A running agent. It ends with its handle.
pub(crate) struct RustAgent {
    address: String,
    handler: Arc<DefaultRequestHandler>,
    /// What it runs in; `None` while it is dead.
    runtime: Option<Runtime>,
}

impl RustAgent {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let mut agent = Self {
            address,
            handler: handler(),
            runtime: None,
        };
        agent.serve(listener);
        agent
    }

    fn serve(&mut self, listener: TcpListener) {
        let (address, handler) = (self.address.clone(), Arc::clone(&self.handler));
        let router = rest_router(Arc::clone(&handler))
            .nest("/rpc", jsonrpc_router(Arc::clone(&handler)))
            .merge(agent_card_router(Arc::new(StaticAgentCard::new(card(&address)))));
        let service = A2aServiceServer::new(GrpcHandler::new(handler));
        let routes = Routes::from(router).add_service(service);
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = listener.into_std().unwrap();
        runtime.spawn(async move {
            let server = Server::builder().accept_http1(true).add_routes(routes);
            let incoming = TcpIncoming::from(TcpListener::from_std(listener).unwrap());
            server.serve_with_incoming(incoming).await.unwrap();
        });
        self.runtime = Some(runtime);
    }

    /// Drops everything that it does and every connection, as a kill would. Its tasks are kept.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Starts a killed agent again, at the same address.
    pub(crate) async fn start_again(&mut self) {
        let address = self.address.strip_prefix("http://").unwrap();
        let listener = loop {
            // The socket of the killed one may take a moment to close.
            if let Ok(listener) = TcpListener::bind(address).await {
                break listener;
            }
            tokio::task::yield_now().await;
        };
        self.serve(listener);
    }

    /// Removes the tasks of a killed agent.
    pub(crate) fn forget(&mut self) {
        self.handler = handler();
    }
}

impl Drop for RustAgent {
    fn drop(&mut self) {
        self.kill();
    }
}

fn handler() -> Arc<DefaultRequestHandler> {
    Arc::new(DefaultRequestHandler::new(Actor, InMemoryTaskStore::new()))
}

impl Callee for RustAgent {
    fn address(&self) -> &str {
        &self.address
    }

    async fn tasks(&self) -> Vec<Value> {
        let all: ListTasksRequest =
            serde_json::from_value(json!({ "pageSize": 100, "historyLength": 100 })).unwrap();
        let page = self.handler.list_tasks(&Default::default(), all).await.unwrap();
        assert!(page.next_page_token.is_empty(), "one page has all");
        let tasks = page.tasks.iter();
        tasks.map(|task| serde_json::to_value(task).unwrap()).collect()
    }
}

fn card(address: &str) -> AgentCard {
    let interfaces = [
        (format!("{address}/rpc"), TRANSPORT_PROTOCOL_JSONRPC),
        (address.to_owned(), TRANSPORT_PROTOCOL_HTTP_JSON),
        (address.to_owned(), TRANSPORT_PROTOCOL_GRPC),
    ];
    let interfaces = interfaces
        .map(|(url, binding)| json!({ "url": url, "protocolBinding": binding, "protocolVersion": "1.0" }));
    let card = json!({
        "name": "actor", "description": "Does what it is told.", "version": "1", "supportedInterfaces": interfaces,
        "capabilities": { "streaming": true },
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        "skills": [{ "id": "act", "name": "Act", "description": "Does what it is told.", "tags": ["act"] }],
    });
    serde_json::from_value(card).unwrap()
}

struct Actor;

impl AgentExecutor for Actor {
    fn execute(&self, context: ExecutorContext) -> BoxStream<'static, Result<StreamResponse, A2AError>> {
        let (task, context_id) = context.task_info();
        let message = context.message.unwrap();
        let history = context.stored_task.and_then(|task| task.history);
        let mut said: Vec<Message> = history.unwrap_or_default();
        said.retain(|one| one.role == Role::User && one.message_id != message.message_id);
        let begins = said.is_empty();
        said.push(message.clone());
        let said: Vec<String> = said.iter().map(text_of).collect();

        let of = json!({ "taskId": task, "contextId": context_id });
        let round = round(&said);
        let mut events = Vec::new();
        if round.iter().all(|step| step.get("message").is_none()) {
            if begins {
                let task = json!({
                    "id": task, "contextId": context_id, "status": { "state": "TASK_STATE_SUBMITTED" },
                    "history": [message],
                });
                events.push(now(json!({ "task": task })));
            }
            events.push(now(status(&of, "working", None)));
        }
        events.extend(round.into_iter().filter_map(|step| event(&of, &step)));
        stream::iter(events)
            .then(|event| event)
            .filter_map(async |event| event.map(|event| Ok(serde_json::from_value(event).unwrap())))
            .boxed()
    }

    fn cancel(&self, context: ExecutorContext) -> BoxStream<'static, Result<StreamResponse, A2AError>> {
        let (task, context_id) = context.task_info();
        let of = json!({ "taskId": task, "contextId": context_id });
        let event = serde_json::from_value(status(&of, "canceled", None)).unwrap();
        stream::iter([Ok(event)]).boxed()
    }
}

fn text_of(message: &Message) -> String {
    let texts = message.parts.iter().filter_map(|part| match &part.content {
        PartContent::Text(text) => Some(text.as_str()),
        PartContent::Raw(_) | PartContent::Url(_) | PartContent::Data(_) => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The steps of the round that the last message begins.
fn round(said: &[String]) -> Vec<Value> {
    let behaviours = fs::read(root().join("tests/interop/behaviours.json")).unwrap();
    let behaviours: Value = serde_json::from_slice(&behaviours).unwrap();
    let echo = json!([[{ "artifact": "echo", "name": "echo", "halves": true }, { "state": "completed" }]]);
    let name = said[0].split_whitespace().next().unwrap_or_default();
    let rounds = behaviours.get(name).unwrap_or(&echo).as_array().unwrap();
    let steps = rounds[said.len().min(rounds.len()) - 1].as_array().unwrap();
    let steps = steps.iter().flat_map(|step| {
        let with = |text: &str, append: bool| {
            let mut step = step.clone();
            step["text"] = text.into();
            step["append"] = append.into();
            step["last"] = append.into();
            step
        };
        if step.get("halves").is_some() {
            let text = &said[said.len() - 1];
            let (first, second) = text.split_at(text.floor_char_boundary(text.len() / 2));
            return vec![with(first, false), with(second, true)];
        }
        match step.get("answers") {
            Some(_) => vec![with(&said[1..].join(" "), false)],
            None => vec![step.clone()],
        }
    });
    steps.collect()
}

type Event = BoxFuture<'static, Option<Value>>;

fn now(event: Value) -> Event {
    std::future::ready(Some(event)).boxed()
}

/// What a step of a behaviour tells, and when.
fn event(of: &Value, step: &Value) -> Option<Event> {
    if let Some(pause) = step["pause"].as_u64() {
        return Some(
            async move {
                // sleep: how long the agent works
                time::sleep(Duration::from_millis(pause)).await;
                None
            }
            .boxed(),
        );
    }
    if step.get("wait").is_some() {
        return Some(std::future::pending().boxed());
    }
    if let Some(text) = step["message"].as_str() {
        let mut message = says(text);
        message["contextId"] = of["contextId"].clone();
        return Some(now(json!({ "message": message })));
    }
    if let Some(state) = step["state"].as_str() {
        return Some(now(status(of, state, step["says"].as_str())));
    }
    let part = match step.get("data") {
        Some(data) => json!({ "data": data }),
        None => json!({ "text": step["text"] }),
    };
    let update = json!({
        "taskId": of["taskId"], "contextId": of["contextId"],
        "artifact": { "artifactId": step["artifact"], "name": step["name"], "parts": [part] },
        "append": step.get("append").unwrap_or(&Value::Bool(false)),
        "lastChunk": step.get("last").unwrap_or(&Value::Bool(false)),
    });
    Some(now(json!({ "artifactUpdate": update })))
}

fn status(of: &Value, state: &str, text: Option<&str>) -> Value {
    let state = format!("TASK_STATE_{}", state.replace('-', "_").to_uppercase());
    let mut status = json!({ "state": state });
    if let Some(text) = text {
        status["message"] = says(text);
    }
    json!({ "statusUpdate": { "taskId": of["taskId"], "contextId": of["contextId"], "status": status } })
}

fn says(text: &str) -> Value {
    json!({ "messageId": format!("says-{text}"), "role": "ROLE_AGENT", "parts": [{ "text": text }] })
}
