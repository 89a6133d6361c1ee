//! Workflows that call an agent with the task API of the Agent Workflow Protocol.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};
use wopr_server::{
    Config,
    config::{AgentPeer, StoreUrl, Transport},
};

use crate::{
    server::{ALICE, Server},
    workflows::{chain, node},
};

/// An agent that answers every look at its task with the same document, until it is given another one.
pub(crate) struct Agent {
    address: SocketAddr,
    pub(crate) task: Arc<Mutex<Value>>,
    /// The bodies of submitted tasks.
    pub(crate) submitted: Arc<Mutex<Vec<Value>>>,
    n_looks: watch::Receiver<usize>,
    serving: JoinHandle<()>,
}

impl Agent {
    pub(crate) async fn start(task: Value) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (task, submitted) = (Arc::new(Mutex::new(task)), Arc::<Mutex<Vec<_>>>::default());
        let (tell, n_looks) = watch::channel(0);
        let (answer, seen) = (Arc::clone(&task), Arc::clone(&submitted));
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, seen, tell) = (Arc::clone(&answer), Arc::clone(&seen), tell.clone());
                tokio::spawn(serve(stream, move |head, body| {
                    assert!(head.contains("authorization: Bearer alice-secret"), "{head}");
                    if head.starts_with("POST /api/tasks HTTP/1.1") {
                        seen.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
                        return json!({ "id": "t-1", "status": "submitted" });
                    }
                    assert!(head.starts_with("GET /api/tasks/t-1 HTTP/1.1"), "{head}");
                    tell.send_modify(|n_looks| *n_looks += 1);
                    answer.lock().unwrap().clone()
                }));
            }
        });
        Self {
            address,
            task,
            submitted,
            n_looks,
            serving,
        }
    }

    /// Waits for the next look at the task.
    pub(crate) async fn looked_at(&self) {
        let mut n_looks = self.n_looks.clone();
        n_looks.mark_unchanged();
        n_looks.changed().await.unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(stream: TcpStream, answer: impl Fn(&str, Vec<u8>) -> Value) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut head, mut n_bytes) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            if line == "\r\n" {
                break;
            }
            if let Some(length) = line.strip_prefix("content-length: ") {
                n_bytes = length.trim().parse().unwrap();
            }
            head += &line;
        }
        let mut body = vec![0; n_bytes];
        stream.read_exact(&mut body).await.unwrap();
        let document = answer(&head, body).to_string();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{document}",
            document.len()
        );
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Lets workflows of a host call the agent as its default peer.
pub(crate) fn know(config: &mut Config, agent: &Agent, folder: &Path, poll_timeout_ms: u64) {
    let token = folder.join("token");
    fs::write(&token, ALICE).unwrap();
    config.egress.allow = vec!["127.0.0.0/8".parse().unwrap()];
    config.store = StoreUrl::Sqlite("wopr.db".into());
    let url = format!("http://{}/api", agent.address).parse().unwrap();
    config.a2a.peers.push(AgentPeer {
        token_file: Some(token),
        transport: Transport::TasksHttp,
        poll_interval_ms: Some(20),
        poll_timeout_ms: Some(poll_timeout_ms),
        ..AgentPeer::new("default", url)
    });
}

/// Starts a host and a run that calls the agent.
async fn ask(agent: &Agent, folder: &TempDir, poll_timeout_ms: u64) -> (Server, String) {
    let server = Server::start_with(|config| know(config, agent, folder.path(), poll_timeout_ms)).await;
    let config = json!({ "skill": "coder", "message": "implement feature X" });
    let document = chain("ask", &[node("ask", "core.a2a.invoke", config)]);
    server.post("/v1/workflows", &document).send().await.ok(201);
    let run = server.run("ask", json!({})).await;
    (server, run)
}

#[tokio::test]
async fn task_is_made_once_and_found_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(json!({ "id": "t-1", "status": "working" })).await;
    let (server, run) = ask(&agent, &folder, 600_000).await;
    agent.looked_at().await;
    let server = server
        .again_with(|config| know(config, &agent, folder.path(), 600_000))
        .await;
    agent.looked_at().await;
    server.wait_for(&run, "running").await;
    *agent.task.lock().unwrap() =
        json!({ "id": "t-1", "status": "completed", "output": { "patch": "x", "text": "done" } });
    server.wait_for(&run, "completed").await;
    let poll = server.get(&format!("/v1/runs/{run}/events/poll?timeout=1"));
    let poll = poll.send().await.ok(200);
    let events = poll["events"].as_array().unwrap();
    let completed = events.iter().find(|event| event["type"] == "node.completed");
    let outputs = &completed.unwrap()["payload"]["outputs"];
    assert_eq!(outputs["data"], json!({ "patch": "x", "text": "done" }));
    assert_eq!(
        (&outputs["text"], &outputs["taskId"]),
        (&json!("done"), &json!("t-1"))
    );
    assert_eq!(outputs["contentTrust"], "untrusted");
    let submitted = agent.submitted.lock().unwrap().clone();
    assert_eq!(submitted.len(), 1, "{submitted:?}");
    assert_eq!(submitted[0]["agent_id"], "coder");
    assert_eq!(submitted[0]["input"], json!({ "task": "implement feature X" }));
    assert_eq!(submitted[0]["correlation_id"], format!("{run}:delegate:ask"));
}

#[tokio::test]
async fn question_and_lack_of_time_fail_the_run_with_the_documented_texts() {
    for (status, poll_timeout_ms, text) in [
        (
            "input-required",
            600_000,
            "A2A task \"t-1\" requires host input (input-required); use host_mediated activity mode for interactive \
             delegates",
        ),
        (
            "working",
            100,
            "A2A task \"t-1\" did not reach a terminal status within 100ms (last status: working)",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let agent = Agent::start(json!({ "id": "t-1", "status": status })).await;
        let (server, run) = ask(&agent, &folder, poll_timeout_ms).await;
        let failed = server.wait_for(&run, "failed").await;
        assert_eq!(failed["error"]["code"], "A2A_PROVIDER_ERROR", "{failed:#}");
        assert_eq!(failed["error"]["message"], text);
        assert_eq!(agent.submitted.lock().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn cancelled_run_stops_looking_at_its_task() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(json!({ "id": "t-1", "status": "working" })).await;
    let (server, run) = ask(&agent, &folder, 600_000).await;
    agent.looked_at().await;
    let path = format!("/v1/runs/{run}/cancel");
    server.post(&path, &json!({})).send().await;
    server.wait_for(&run, "cancelled").await;
    server.stop().await;
    assert_eq!(agent.submitted.lock().unwrap().len(), 1);
}
