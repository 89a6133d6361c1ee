//! Calls that are dropped before their acceptance: they are listed as recalls, and found once the agent can be asked.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use wopr_server::config::AgentPeer;

use crate::{
    server::Server,
    workflows::{chain, node},
};

/// An agent that takes messages and breaks the connection instead of answering, until it is mended.
struct Agent {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    is_mended: bool,
    /// The context of the message that it took.
    context: Option<String>,
    n_cancels: usize,
}

impl State {
    /// The answer to a request, or none.
    fn answer(&mut self, address: SocketAddr, path: &str, request: &Value) -> Option<Value> {
        if path == "/.well-known/agent-card.json" {
            return Some(json!({
                "name": "n", "description": "d", "version": "1", "capabilities": {}, "skills": [],
                "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
                "supportedInterfaces": [
                    { "url": format!("http://{address}/rpc"), "protocolBinding": "JSONRPC", "protocolVersion": "1.0" }
                ],
            }));
        }
        let task =
            |state: &str| json!({ "id": "t-1", "contextId": self.context, "status": { "state": state } });
        let result = match request["method"].as_str().unwrap() {
            "SendMessage" => {
                let context = &request["params"]["message"]["contextId"];
                self.context = Some(context.as_str().unwrap().to_owned());
                return None;
            }
            _ if !self.is_mended => return None,
            "ListTasks" => {
                let tasks = [task("TASK_STATE_WORKING")];
                json!({ "tasks": tasks, "nextPageToken": "", "pageSize": 20, "totalSize": 1 })
            }
            "GetTask" => task("TASK_STATE_WORKING"),
            "CancelTask" => {
                assert_eq!(request["params"]["id"], "t-1", "{request}");
                let canceled = task("TASK_STATE_CANCELED");
                self.n_cancels += 1;
                canceled
            }
            other => panic!("{other}"),
        };
        Some(json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }))
    }
}

impl Agent {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, address, Arc::clone(&shared)));
            }
        });
        Self {
            address,
            state,
            serving,
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Serves a connection until a request is not answered.
async fn serve(stream: TcpStream, address: SocketAddr, state: Arc<Mutex<State>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut path, mut n_bytes) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            if line == "\r\n" {
                break;
            }
            if path.is_empty() {
                line.split(' ').nth(1).unwrap().clone_into(&mut path);
            }
            if let Some(length) = line.strip_prefix("content-length: ") {
                n_bytes = length.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; n_bytes];
        stream.read_exact(&mut body).await.unwrap();
        let request = serde_json::from_slice(&body).unwrap_or_default();
        let answer = state.lock().unwrap().answer(address, &path, &request);
        let Some(document) = answer.map(|answer| answer.to_string()) else {
            return;
        };
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{document}",
            document.len()
        );
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn recall_is_listed_until_the_agent_says_what_it_has() {
    let agent = Agent::start().await;
    let url = format!("http://{}", agent.address);
    let server = Server::start_with(|config| {
        config.store = wopr_server::config::StoreUrl::Sqlite("wopr.db".into());
        config.egress.allow = vec!["127.0.0.0/8".parse().unwrap()];
        config.a2a.peers = vec![AgentPeer::new("default", url.parse().unwrap())];
    })
    .await;
    let mut document = chain(
        "ask",
        &[node("ask", "core.a2a.invoke", json!({ "message": "hello" }))],
    );
    // The message is not sent again while the test lasts.
    document["settings"] = json!({ "maxRetries": 1, "retryDelayMs": 3_600_000 });
    server.post("/v1/workflows", &document).send().await.ok(201);
    let run = server.run("ask", json!({})).await;
    // It may have the message, and the next attempt is planned.
    let is_planned = |kind: &String| kind == "node.retried";
    while !server.event_types(&run).await.iter().any(is_planned) {
        tokio::task::yield_now().await;
    }
    let cancel = format!("/v1/runs/{run}/cancel");
    server.post(&cancel, &json!({})).send().await.ok(200);
    server.wait_for(&run, "cancelled").await;

    let list = format!("/v1/host/wopr/deliveries?runId={run}");
    let delivery = loop {
        let listed = server.get(&list).send().await.ok(200);
        let delivery = listed["deliveries"][0].clone();
        if delivery["attempts"].as_u64() > Some(0) {
            break delivery;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(
        (&delivery["kind"], &delivery["peer"], &delivery["nodeId"]),
        (&json!("recall"), &json!("default"), &json!("ask")),
        "{delivery:#}"
    );
    assert_eq!(
        (&delivery["state"], delivery.get("taskId")),
        (&json!("waiting"), None)
    );
    assert!(delivery["error"].is_string(), "{delivery:#}");

    agent.state.lock().unwrap().is_mended = true;
    let retry = json!({ "runId": run });
    server
        .post("/v1/host/wopr/deliveries:retry", &retry)
        .send()
        .await
        .ok(200);
    while server.get(&list).send().await.ok(200)["deliveries"] != json!([]) {
        tokio::task::yield_now().await;
    }
    assert_eq!(agent.state.lock().unwrap().n_cancels, 1, "the task is cancelled");
}
