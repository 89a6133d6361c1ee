//! Agents that answer with nonsense, with nothing, or without end, over every binding: raw sockets, called by a built
//! binary. Each call ends as `docs/agents.md` says, the host keeps its memory, and its other runs go on meanwhile.

use std::{
    collections::HashMap,
    fmt::Write as _,
    fs, io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time,
};

use crate::{
    calling::{register, snapshot, workflow},
    host::{Host, place, sqlite},
    hostile_grpc,
    quarantine::{create, reaches},
    siege::resident,
};

/// Calls of each agent at the same time.
const CALLS: usize = 3;
/// How long calls wait for agents that say nothing. Before each of three repeats, an agent without the task has 5 s to list it.
const PATIENCE_MS: u64 = 25_000;
/// The host's memory in MiB; a debug build needs more than others.
const MEMORY_MIB: u64 = 640;
/// The longest that an ordinary run may take beside them.
const ORDINARY: Duration = Duration::from_secs(10);
/// Longest time for a run to end.
const LIMIT: Duration = Duration::from_secs(120);
/// How much is sent at once without end.
pub(crate) const BLOCK: usize = 64 << 10;

/// An agent. Its name is the first segment of its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Agent {
    binding: Binding,
    does: Does,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binding {
    JsonRpc,
    /// JSON-RPC of version 0.3.
    JsonRpc03,
    Rest,
    /// Its card is here, and the rest on a port of its own.
    Grpc,
}

/// What an agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    /// Something else in place of a card.
    Card(Answer),
    /// To the first message, which is answered without a stream.
    Message(Answer),
    /// To the first message, which is answered by a stream.
    Stream(Answer),
    /// To a look at a task that it has accepted.
    Look(Answer),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Html,
    ErrorPage,
    BrokenJson,
    WrongType,
    WrongId,
    NotHttp,
    Nothing,
    Garbage,
    Silence,
    Comments,
    EndlessBody,
    EndlessHead,
    EndlessEvents,
    HugeArtifact,
    ManyArtifacts,
    /// Over gRPC: a whole message, without the status of the call.
    NoStatus,
}

/// The codes that a call fails with: which one may depend on what else the host holds in memory then.
pub(crate) type Codes = &'static [&'static str];
pub(crate) const BROKEN: Codes = &["external_call_failed"];
pub(crate) const NONSENSE: Codes = &["remote_failed"];
pub(crate) const TIMED_OUT: Codes = &["remote_timeout"];
const NO_CARD: Codes = &["card_invalid"];
/// Beside others, what is too large may find no room before it is too large, and be asked for again.
pub(crate) const HUGE: Codes = &["remote_failed", "external_call_failed", "remote_timeout"];
/// Whether what is too large is a card is for the client to say.
const HUGE_CARD: Codes = &["card_invalid", "remote_failed"];
pub(crate) const MANY: Codes = &["work_limit_exceeded", "remote_timeout"];

/// Over HTTP. What is no matter of JSON-RPC alone is done over HTTP+JSON as well.
const OVER_HTTP: [(Does, Codes); 34] = {
    use self::Answer::*;
    use self::Does::{Card, Look, Message, Stream};
    [
        (Card(Html), NO_CARD),
        (Card(ErrorPage), BROKEN),
        (Card(BrokenJson), NO_CARD),
        (Card(NotHttp), BROKEN),
        (Card(Nothing), BROKEN),
        (Card(Silence), TIMED_OUT),
        (Card(EndlessBody), HUGE_CARD),
        (Card(EndlessHead), BROKEN),
        (Message(Html), NONSENSE),
        (Message(ErrorPage), BROKEN),
        (Message(BrokenJson), NONSENSE),
        (Message(WrongType), NONSENSE),
        (Message(WrongId), NONSENSE),
        (Message(NotHttp), BROKEN),
        (Message(Nothing), BROKEN),
        (Message(Silence), TIMED_OUT),
        (Message(EndlessBody), HUGE),
        (Message(EndlessHead), BROKEN),
        (Stream(Html), NONSENSE),
        (Stream(Garbage), NONSENSE),
        (Stream(WrongId), NONSENSE),
        (Stream(Nothing), BROKEN),
        (Stream(Silence), TIMED_OUT),
        (Stream(Comments), TIMED_OUT),
        (Stream(EndlessBody), HUGE),
        (Stream(EndlessEvents), TIMED_OUT),
        // An agent that has a task may yet come to its senses.
        (Look(Html), TIMED_OUT),
        (Look(BrokenJson), TIMED_OUT),
        (Look(Nothing), TIMED_OUT),
        (Look(Silence), TIMED_OUT),
        (Look(EndlessHead), TIMED_OUT),
        (Look(EndlessBody), HUGE),
        (Look(HugeArtifact), HUGE),
        (Look(ManyArtifacts), MANY),
    ]
};

/// All agents, with the codes that calls to them fail with.
fn agents() -> Vec<(Agent, Codes)> {
    let mut agents = Vec::new();
    for (does, codes) in OVER_HTTP {
        let is_card = matches!(does, Does::Card(_));
        // A card is asked for before its version is known.
        for binding in [Binding::JsonRpc, Binding::JsonRpc03] {
            if !(is_card && binding == Binding::JsonRpc03) {
                agents.push((Agent { binding, does }, codes));
            }
        }
        let is_of_json_rpc = match does {
            Does::Card(_) => true,
            Does::Message(answer) | Does::Stream(answer) | Does::Look(answer) => answer == Answer::WrongId,
        };
        if !is_of_json_rpc {
            let binding = Binding::Rest;
            agents.push((Agent { binding, does }, codes));
        }
    }
    for (does, codes) in hostile_grpc::AGENTS {
        let binding = Binding::Grpc;
        agents.push((Agent { binding, does }, codes));
    }
    agents
}

impl Agent {
    fn name(self) -> String {
        let Self { binding, does } = self;
        format!("{binding:?}-{does:?}")
            .to_lowercase()
            .replace('(', "-")
            .replace(')', "")
    }

    fn find(name: &str) -> Option<Self> {
        let mut agents = agents().into_iter().map(|(agent, _)| agent);
        agents.find(|agent| agent.name() == name)
    }

    /// Answers one request. `Err` closes the connection.
    async fn answer(self, stream: &mut TcpStream, seen: &Seen, place: &Place) -> io::Result<()> {
        if seen.path.ends_with("agent-card.json") {
            return match self.does {
                Does::Card(answer) => answer.send(stream, &Plain).await,
                Does::Message(_) | Does::Stream(_) | Does::Look(_) => {
                    respond(stream, &self.card(place)).await
                }
            };
        }
        match self.binding {
            Binding::Grpc => Err(io::ErrorKind::NotFound.into()),
            Binding::Rest => {
                let operation = seen.path.rsplit('/').next().unwrap_or_default();
                self.perform(stream, operation, &Plain).await
            }
            Binding::JsonRpc => {
                let request: Value = serde_json::from_slice(&seen.body)?;
                let id = request["id"].clone();
                let operation = request["method"].as_str().unwrap_or_default();
                self.perform(stream, operation, &Rpc(id)).await
            }
            Binding::JsonRpc03 => {
                let request: Value = serde_json::from_slice(&seen.body)?;
                let id = request["id"].clone();
                let operation = match request["method"].as_str().unwrap_or_default() {
                    "message/send" => "SendMessage",
                    "message/stream" => "SendStreamingMessage",
                    "tasks/get" => "GetTask",
                    "tasks/cancel" => "CancelTask",
                    other => other,
                };
                self.perform(stream, operation, &Rpc03(id)).await
            }
        }
    }

    async fn perform(self, stream: &mut TcpStream, operation: &str, form: &impl Form) -> io::Result<()> {
        let working = json!({ "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_WORKING" } });
        let result = match (operation, self.does) {
            ("SendMessage" | "message:send", Does::Message(answer))
            | ("SendStreamingMessage" | "message:stream", Does::Stream(answer))
            | ("GetTask" | "t", Does::Look(answer)) => return answer.send(stream, form).await,
            ("SendMessage" | "message:send", _) => json!({ "task": working }),
            ("CancelTask" | "t:cancel", _) => {
                json!({ "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_CANCELED" } })
            }
            _ => working,
        };
        respond(stream, &form.of(result)).await
    }

    fn card(self, place: &Place) -> Value {
        let name = self.name();
        let own = format!("{}/{name}", place.origin);
        let (url, binding) = match self.binding {
            Binding::JsonRpc | Binding::JsonRpc03 => (format!("{own}/rpc"), "JSONRPC"),
            Binding::Rest => (own, "HTTP+JSON"),
            Binding::Grpc => (place.grpc[&name].clone(), "GRPC"),
        };
        let is_streaming = matches!(self.does, Does::Stream(_));
        let mut card = json!({
            "name": name, "description": "Means no good.", "version": "1",
            "capabilities": { "streaming": is_streaming },
            "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"], "skills": [],
        });
        if self.binding == Binding::JsonRpc03 {
            card["protocolVersion"] = "0.3.0".into();
            card["url"] = url.into();
            card["preferredTransport"] = binding.into();
        } else {
            card["supportedInterfaces"] =
                json!([{ "url": url, "protocolBinding": binding, "protocolVersion": "1.0" }]);
        }
        card
    }
}

/// The form of an answer.
trait Form {
    fn of(&self, result: Value) -> Value;
}

/// Over JSON-RPC, to the request with this id.
struct Rpc(Value);

impl Form for Rpc {
    fn of(&self, result: Value) -> Value {
        json!({ "jsonrpc": "2.0", "id": self.0, "result": result })
    }
}

/// The same in version 0.3.
struct Rpc03(Value);

impl Form for Rpc03 {
    fn of(&self, result: Value) -> Value {
        json!({ "jsonrpc": "2.0", "id": self.0, "result": as_03(result) })
    }
}

/// A task or an update of version 1.0 as version 0.3 has it: marked by its kind, which names it in 1.0.
fn as_03(result: Value) -> Value {
    let (kind, mut result) = match result {
        Value::Object(mut members) if members.len() == 1 && members.contains_key("task") => {
            ("task", members["task"].take())
        }
        Value::Object(mut members) if members.contains_key("artifactUpdate") => {
            ("artifact-update", members["artifactUpdate"].take())
        }
        task => ("task", task),
    };
    result["kind"] = kind.into();
    if let Some(state) = result.pointer_mut("/status/state") {
        let name = state
            .as_str()
            .unwrap_or_default()
            .trim_start_matches("TASK_STATE_");
        *state = name.to_lowercase().into();
    }
    let is_update = kind == "artifact-update";
    let artifacts = match is_update {
        true => result.get_mut("artifact").map(std::slice::from_mut),
        false => (result.get_mut("artifacts").and_then(Value::as_array_mut)).map(Vec::as_mut_slice),
    };
    for artifact in artifacts.into_iter().flatten() {
        for part in artifact["parts"].as_array_mut().into_iter().flatten() {
            part["kind"] = "text".into();
        }
    }
    result
}

struct Plain;

impl Form for Plain {
    fn of(&self, result: Value) -> Value {
        result
    }
}

pub(crate) const HTML: &str = "<!doctype html><title>Sign in</title><form action=/login></form>";
const JSON: &str = "application/json";
const SSE: &str = "text/event-stream";

async fn respond(stream: &mut TcpStream, document: &Value) -> io::Result<()> {
    whole(stream, "200 OK", JSON, &document.to_string()).await
}

async fn whole(stream: &mut TcpStream, status: &str, media: &str, body: &str) -> io::Result<()> {
    let n = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: {media}\r\ncontent-length: {n}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await
}

/// Begins an answer whose length is not said.
async fn begin(stream: &mut TcpStream, media: &str) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {media}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await
}

/// Sends the same bytes until the caller has enough.
async fn endless(stream: &mut TcpStream, block: &[u8]) -> io::Result<()> {
    loop {
        stream.write_all(block).await?;
    }
}

/// Waits until the caller closes the connection.
async fn silence(stream: &mut TcpStream) -> io::Result<()> {
    while stream.read(&mut [0; 64]).await? > 0 {}
    Err(io::ErrorKind::ConnectionAborted.into())
}

pub(crate) fn artifact(id: &str, text: &str) -> Value {
    json!({ "artifactId": id, "name": id, "parts": [{ "text": text }] })
}

impl Answer {
    async fn send(self, stream: &mut TcpStream, form: &impl Form) -> io::Result<()> {
        let done = |artifacts: Value| {
            let status = json!({ "state": "TASK_STATE_COMPLETED" });
            form.of(json!({ "id": "t", "contextId": "c", "status": status, "artifacts": artifacts }))
        };
        match self {
            Self::Html => whole(stream, "200 OK", "text/html", HTML).await,
            Self::ErrorPage => whole(stream, "502 Bad Gateway", "text/html", HTML).await,
            Self::BrokenJson => whole(stream, "200 OK", JSON, r#"{"jsonrpc": "2.0", "result": {"#).await,
            Self::WrongType => whole(stream, "200 OK", "image/png", "\u{0}PNG").await,
            Self::WrongId => {
                let task =
                    json!({ "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_COMPLETED" } });
                let other = json!({ "jsonrpc": "2.0", "id": "somebody-else", "result": { "task": task } });
                respond(stream, &other).await
            }
            Self::NotHttp => {
                stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n").await?;
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            Self::Nothing | Self::NoStatus => Err(io::ErrorKind::ConnectionAborted.into()),
            Self::Garbage => {
                begin(stream, SSE).await?;
                let garbage = "data: {\"jsonrpc\"\n\nretry: never\ndata: [[[\n\n\u{fffd}\u{0}\n\n";
                stream.write_all(garbage.as_bytes()).await?;
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            Self::Silence => silence(stream).await,
            Self::Comments => {
                begin(stream, SSE).await?;
                loop {
                    stream.write_all(b": still here\n\n").await?;
                    // sleep: the pace of the agent
                    time::sleep(Duration::from_millis(100)).await;
                }
            }
            Self::EndlessBody => {
                begin(stream, JSON).await?;
                endless(stream, &[b' '; BLOCK]).await
            }
            Self::EndlessHead => {
                stream.write_all(b"HTTP/1.1 200 OK\r\n").await?;
                endless(
                    stream,
                    b"x-more: of the same, and more of it, without end or purpose\r\n",
                )
                .await
            }
            Self::EndlessEvents => {
                begin(stream, SSE).await?;
                let working =
                    json!({ "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_WORKING" } });
                let first = form.of(json!({ "task": working }));
                stream.write_all(format!("data: {first}\n\n").as_bytes()).await?;
                let update = json!({
                    "taskId": "t", "contextId": "c", "append": true, "artifact": artifact("a", &"x".repeat(BLOCK)),
                });
                let more = form.of(json!({ "artifactUpdate": update }));
                endless(stream, format!("data: {more}\n\n").as_bytes()).await
            }
            Self::HugeArtifact => {
                let huge = artifact("huge", &"x".repeat(50 << 20));
                respond(stream, &done(json!([huge]))).await
            }
            Self::ManyArtifacts => {
                let many = (0..10_000).map(|n| artifact(&n.to_string(), "small"));
                respond(stream, &done(many.collect())).await
            }
        }
    }
}

/// A request.
struct Seen {
    path: String,
    body: Vec<u8>,
}

/// Reads a request whose body has a length, or nothing at the end of the connection.
async fn read(stream: &mut TcpStream) -> io::Result<Option<Seen>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > BLOCK {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    let path = head.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some(Seen { path, body }))
}

/// Where the agents are.
struct Place {
    origin: String,
    /// The addresses of those that speak gRPC, by their names.
    grpc: HashMap<String, String>,
}

async fn serve(mut stream: TcpStream, place: Arc<Place>) -> io::Result<()> {
    while let Some(seen) = read(&mut stream).await? {
        let name = seen.path.split('/').nth(1).unwrap_or_default();
        let agent = Agent::find(name).ok_or(io::ErrorKind::NotFound)?;
        agent.answer(&mut stream, &seen, &place).await?;
    }
    Ok(())
}

/// Serves all agents, and returns their origin.
async fn start(serving: &mut JoinSet<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let mut grpc = HashMap::new();
    for (agent, _) in agents() {
        if agent.binding == Binding::Grpc {
            grpc.insert(agent.name(), hostile_grpc::start(serving, agent.does).await);
        }
    }
    let place = Arc::new(Place {
        origin: origin.clone(),
        grpc,
    });
    serving.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(serve(stream, Arc::clone(&place)));
            while connections.try_join_next().is_some() {}
        }
    });
    origin
}

/// A host that knows all agents as peers.
fn host(folder: &std::path::Path, origin: &str) -> Host {
    let mut config = String::new();
    for (agent, _) in agents() {
        let name = agent.name();
        writeln!(
            config,
            "[[a2a.peers]]\nname = \"{name}\"\nurl = \"{origin}/{name}\""
        )
        .unwrap();
    }
    let path = folder.join("peers.toml");
    fs::write(&path, config).unwrap();
    Host::over(folder, "host", sqlite(folder))
        .variable("WOPR_CONFIG", path.display().to_string())
        .variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8")
}

/// The longest time that an ordinary run takes, until all others have ended.
async fn ordinary(address: SocketAddr, longest: Arc<AtomicU64>) {
    loop {
        let since = Instant::now();
        let run = create(address, "pure", json!({ "prompt": "ordinary" })).await;
        reaches(address, &run, "completed").await;
        let took = u64::try_from(since.elapsed().as_millis()).unwrap();
        longest.fetch_max(took, Relaxed);
    }
}

/// Samples the memory of a process.
async fn weigh(pid: u32, peak_kib: Arc<AtomicU64>) {
    loop {
        peak_kib.fetch_max(resident(pid).unwrap_or_default(), Relaxed);
        // sleep: a sample
        time::sleep(Duration::from_millis(20)).await;
    }
}

async fn ended(address: SocketAddr, run: &str) -> Value {
    let since = Instant::now();
    loop {
        let found = snapshot(address, run).await;
        if ["completed", "failed", "cancelled"].contains(&found["status"].as_str().unwrap()) {
            return found;
        }
        assert!(since.elapsed() < LIMIT, "{run} does not end: {found:#}");
        // sleep: the pace of asking
        time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_agents_fail_their_calls_and_nothing_else() {
    let mut serving = JoinSet::new();
    let origin = start(&mut serving).await;
    let folder = tempfile::tempdir_in(place()).unwrap();
    let mut host = host(folder.path(), &origin);
    let address = host.start().await;
    let (longest, peak_kib) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    serving.spawn(ordinary(address, Arc::clone(&longest)));
    serving.spawn(weigh(host.pid().unwrap(), Arc::clone(&peak_kib)));

    let mut runs = Vec::new();
    for (agent, codes) in agents() {
        let name = agent.name();
        let config = json!({ "peer": name, "message": "hello", "timeoutMs": PATIENCE_MS });
        let mut definition = workflow(&name, &config);
        definition["settings"] = json!({ "retryDelayMs": 50 });
        register(address, definition).await;
        for _ in 0..CALLS {
            runs.push((agent, codes, create(address, &name, json!({})).await));
        }
    }
    let mut wrong = Vec::new();
    for (agent, codes, run) in &runs {
        let found = ended(address, run).await;
        let (status, error) = (&found["status"], &found["error"]);
        println!("{agent:?}: {status} {error}");
        let code = error["code"].as_str().unwrap_or_default();
        if status != "failed" || !codes.contains(&code) {
            wrong.push(format!("{agent:?}: not {codes:?}: {found:#}"));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), host.said());
    let (longest, peak) = (longest.load(Relaxed), peak_kib.load(Relaxed) >> 10);
    println!("longest ordinary run: {longest} ms; most memory: {peak} MiB");
    assert!(
        longest < u64::try_from(ORDINARY.as_millis()).unwrap(),
        "{longest} ms"
    );
    assert!(longest > 0, "ordinary runs went on");
    assert!(peak < MEMORY_MIB, "{peak} MiB");
    serving.shutdown().await;
    let status = host.terminate().await;
    assert!(status.success(), "stopped in order: {status}\n{}", host.said());
}
