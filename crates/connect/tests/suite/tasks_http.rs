//! Calls to peers with the task API of the Agent Workflow Protocol, through the engine's port.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use wopr_connect::{
    Executors, Options,
    a2a::{Client, Credential, Error, OnQuestion, Peer, Polling, Transport},
};
use wopr_core::{AgentCall, AgentReach, AgentVerb, NodeId, RunId, RunKey, StepId, TenantId, provider};
use wopr_engine::{
    Answered, Answering, Attempt, Blobs, Cancellation, Executor, Keep, Outcome, Progress, Report, Request,
    Wake,
};
use wopr_wire::a2a::model::Secret;

use crate::{
    agent::{Agent, Reply, json_reply, open_gate, reply, with_header},
    peer::{Peer as Scripted, Script},
};

const KEY: &str = "0123456789abcdef";
const POLLING: Polling = Polling {
    interval: Duration::from_millis(700),
    timeout: Duration::from_secs(60),
    on_question: OnQuestion::Fail,
};

fn run() -> RunKey {
    RunKey::new(
        TenantId::parse("t").unwrap(),
        RunId::parse("run_0123456789abcdef").unwrap(),
    )
}

fn call(peer: &str) -> AgentCall {
    AgentCall {
        verb: AgentVerb::INVOKE,
        peer: peer.to_owned(),
        reach: AgentReach::Peer,
        correlation: None,
        skill: Some("coder".to_owned()),
        text: None,
        data: None,
        files: Vec::new(),
        context: None,
        version: None,
        binding: None,
        output_modes: Vec::new(),
        caller: "w".to_owned(),
        timeout_ms: None,
    }
}

fn peer_at(url: &str, polling: Polling) -> Peer {
    let mut peer = Peer::new("planner", url.parse().unwrap());
    peer.transport = Transport::TasksHttp(polling);
    peer.credential = Credential::Bearer(Secret::new("hunter22-x").unwrap());
    peer
}

fn executors(peer: Peer) -> Executors {
    let options = Options {
        peers: vec![peer],
        ..Options::default()
    };
    Executors::new(open_gate(), options)
}

fn first_attempt(call: AgentCall, handle: Option<Value>) -> Attempt {
    Attempt {
        run: run(),
        step: StepId {
            node: NodeId::parse("n").unwrap(),
            ordinal: 0,
        },
        attempt: 0,
        number: 0,
        is_repeat: false,
        is_interrupted: false,
        idempotency_key: KEY.to_owned(),
        trace: None,
        request: Request::Agent(Box::new(call)),
        handle,
        cursor: None,
        wake: Wake::none(),
        progress: Progress::none(),
        blobs: Blobs::none(),
        keep: Keep::default(),
    }
}

async fn attempt(executors: &Executors, call: AgentCall, handle: Option<Value>) -> Report {
    executors.run(first_attempt(call, handle)).await
}

fn accepted(report: Report) -> (Value, Option<Duration>) {
    match report {
        Report::Accepted { handle, check_after } => (handle, check_after),
        other => panic!("{other:?}"),
    }
}

/// The code and the text of a failure, and whether the call is tried again.
fn failure(report: Report) -> (String, String, bool) {
    match report {
        Report::Ended(Outcome::Failed {
            code,
            message,
            retryable,
            ..
        }) => {
            assert!(!message.contains("hunter22"), "{message}");
            (code, message, retryable)
        }
        other => panic!("{other:?}"),
    }
}

/// An agent that accepts a task and then answers with these documents in turn, the last one again and again.
async fn agent(answers: Vec<Value>) -> Agent {
    let answers = Arc::new(Mutex::new(answers));
    Agent::start(move |seen| match seen.path.as_str() {
        "/api/tasks" => with_status(201, &json!({"id": "a/1", "status": "submitted"})),
        "/api/tasks/a%2F1" => {
            let mut answers = answers.lock().unwrap();
            let answer = if answers.len() > 1 {
                answers.remove(0)
            } else {
                answers[0].clone()
            };
            json_reply(&answer)
        }
        path => panic!("{path}"),
    })
    .await
}

fn with_status(status: u16, document: &Value) -> Reply {
    reply(status, "application/json", document.to_string())
}

fn executors_of(agent: &Agent) -> Executors {
    executors(peer_at(&format!("{}/api/", agent.origin()), POLLING))
}

fn task(status: &str) -> Value {
    json!({"id": "a/1", "status": status})
}

#[tokio::test]
async fn task_is_submitted_once_and_read_until_it_is_completed() {
    let mut done = task("completed");
    done["output"] = json!({"patch": "x", "text": "done", "key": "hunter22-x"});
    let mut agent = agent(vec![task("submitted"), task("working"), done]).await;
    let executors = executors_of(&agent);
    let asked = AgentCall {
        text: Some("implement feature X".to_owned()),
        ..call("planner")
    };
    let (handle, check_after) = accepted(attempt(&executors, asked.clone(), None).await);
    assert_eq!(check_after, Some(POLLING.interval));
    // A restarted host knows the handle only.
    let executors = executors_of(&agent);
    for _ in 0..2 {
        let report = attempt(&executors, asked.clone(), Some(handle.clone())).await;
        let check_after = Some(POLLING.interval);
        assert_eq!(report, Report::Unchanged { check_after });
    }
    let Report::Ended(Outcome::Done(outputs)) = attempt(&executors, asked, Some(handle)).await else {
        panic!("the task is completed")
    };
    let wanted = json!({
        "text": "done", "data": {"patch": "x", "text": "done", "key": "[redacted]"}, "artifacts": [],
        "state": "completed", "taskId": "a/1", "contextId": "", "peer": "planner", "contentTrust": "untrusted",
    });
    assert_eq!(outputs, wanted);
    let seen = agent.seen();
    let sent: Vec<_> = seen.iter().filter(|seen| seen.path == "/api/tasks").collect();
    let wanted = json!({
        "agent_id": "coder",
        "correlation_id": "run_0123456789abcdef:delegate:n",
        "input": {"task": "implement feature X"},
    });
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].json(), wanted);
    assert_eq!(sent[0].header("content-type"), "application/json");
    assert!(
        seen.iter()
            .all(|seen| seen.header("authorization") == "Bearer hunter22-x")
    );
}

#[tokio::test]
async fn data_is_the_input_and_the_peer_the_agent_if_no_skill_is_named() {
    let mut agent = agent(vec![task("working")]).await;
    let executors = executors_of(&agent);
    let asked = AgentCall {
        skill: None,
        text: Some("ignored beside data".to_owned()),
        data: Some(json!({"a": [1]})),
        ..call("planner")
    };
    // Each attempt sends the same correlation id.
    for _ in 0..2 {
        accepted(attempt(&executors, asked.clone(), None).await);
    }
    let [first, second] = &agent.seen()[..] else {
        panic!()
    };
    assert_eq!(first.json()["agent_id"], "planner");
    assert_eq!(first.json()["input"], json!({"a": [1]}));
    assert_eq!(first.body, second.body);
    assert_eq!(first.header("idempotency-key"), second.header("idempotency-key"));
    assert_ne!(first.header("idempotency-key"), "");
}

#[tokio::test]
async fn another_execution_of_a_node_has_another_correlation_id() {
    let mut agent = agent(vec![task("working")]).await;
    let executors = executors_of(&agent);
    for ordinal in 0..3 {
        let again = Attempt {
            step: StepId {
                node: NodeId::parse("n").unwrap(),
                ordinal,
            },
            idempotency_key: format!("key-{ordinal}"),
            ..first_attempt(call("planner"), None)
        };
        accepted(executors.run(again).await);
    }
    let ids: Vec<_> = agent
        .seen()
        .iter()
        .map(|seen| seen.json()["correlation_id"].clone())
        .collect();
    let first = "run_0123456789abcdef:delegate:n";
    assert_eq!(ids, [first, &format!("{first}:key-1"), &format!("{first}:key-2")]);
}

#[tokio::test]
async fn failures_have_the_documented_codes_and_texts() {
    let mut failed = task("failed");
    failed["error"] = "no tests".into();
    for (answer, code, text) in [
        (failed, "A2A_TASK_FAILED", "no tests"),
        (task("failed"), "A2A_TASK_FAILED", "A2A task \"a/1\" failed"),
        (
            task("rejected"),
            "A2A_TASK_FAILED",
            "A2A task \"a/1\" was rejected",
        ),
        (
            task("canceled"),
            "A2A_TASK_FAILED",
            "A2A task \"a/1\" was canceled",
        ),
        (
            task("input-required"),
            "A2A_PROVIDER_ERROR",
            "A2A task \"a/1\" requires host input (input-required); use host_mediated activity mode for interactive \
             delegates",
        ),
        (
            task("auth-required"),
            "A2A_PROVIDER_ERROR",
            "failed to read the answer: the task has the unsupported status 'auth-required'",
        ),
        (
            json!({"id": "b", "status": "completed"}),
            "A2A_PROVIDER_ERROR",
            "failed to read the answer: it is another task",
        ),
    ] {
        let agent = agent(vec![answer]).await;
        let executors = executors_of(&agent);
        let (handle, _) = accepted(attempt(&executors, call("planner"), None).await);
        let report = attempt(&executors, call("planner"), Some(handle)).await;
        assert_eq!(failure(report), (code.to_owned(), text.to_owned(), false));
    }
}

#[tokio::test]
async fn refused_submission_is_a_provider_error_and_a_busy_agent_is_tried_again() {
    for (status, is_retried) in [(400, false), (401, false), (404, false), (429, true), (503, true)] {
        let agent =
            Agent::start(move |_| with_status(status, &json!({"error": {"message": "not now, hunter22-x"}})))
                .await;
        let (code, text, retryable) = failure(attempt(&executors_of(&agent), call("planner"), None).await);
        assert_eq!(
            (code.as_str(), retryable),
            ("A2A_PROVIDER_ERROR", is_retried),
            "{status}"
        );
        assert!(text.contains("not now, [redacted]"), "{text}");
    }
}

#[tokio::test]
async fn call_goes_on_while_its_agent_cannot_be_asked_until_its_time_is_over() {
    let agent = agent(vec![task("working")]).await;
    let (handle, _) = accepted(attempt(&executors_of(&agent), call("planner"), None).await);
    let busy = Agent::start(|_| with_header(reply(503, "text/plain", ""), "retry-after", "7")).await;
    let there = executors(peer_at(&format!("{}/api", busy.origin()), POLLING));
    let report = attempt(&there, call("planner"), Some(handle.clone())).await;
    let check_after = Some(Duration::from_secs(7));
    assert_eq!(report, Report::Unchanged { check_after });
    let polling = Polling {
        timeout: Duration::ZERO,
        ..POLLING
    };
    for (agent, last) in [
        (&agent, "last status: working"),
        (
            &busy,
            "last failure: failed to get an answer: the peer answered 503 Service Unavailable",
        ),
    ] {
        let executors = executors(peer_at(&format!("{}/api", agent.origin()), polling));
        let report = attempt(&executors, call("planner"), Some(handle.clone())).await;
        let text = format!("A2A task \"a/1\" did not reach a terminal status within 0ms ({last})");
        assert_eq!(failure(report), ("A2A_PROVIDER_ERROR".to_owned(), text, false));
    }
}

#[tokio::test]
async fn nothing_is_sent_without_a_bearer_token_or_with_what_the_api_lacks() {
    let agent = Agent::start(|seen| panic!("{seen:?}")).await;
    let asked = |change: fn(&mut AgentCall)| {
        let mut call = call("planner");
        change(&mut call);
        call
    };
    let mut bare = peer_at(&agent.origin(), POLLING);
    bare.credential = Credential::None;
    let mut missing = peer_at(&agent.origin(), POLLING);
    missing.credential = Credential::Missing {
        source: "A2A_API_KEY".to_owned(),
    };
    let complete = || peer_at(&agent.origin(), POLLING);
    for (peer, call, code) in [
        (bare, call("planner"), "A2A_CREDENTIALS_MISSING"),
        (missing, call("planner"), "A2A_CREDENTIALS_MISSING"),
        (
            complete(),
            asked(|call| call.skill = Some(" ".to_owned())),
            "A2A_CONFIG_INVALID",
        ),
        (
            complete(),
            asked(|call| call.version = Some("1.0".to_owned())),
            "DELEGATE_PROTOCOL_UNSUPPORTED",
        ),
        (
            complete(),
            asked(|call| call.binding = Some("grpc".to_owned())),
            "DELEGATE_PROTOCOL_UNSUPPORTED",
        ),
        (
            complete(),
            asked(|call| call.files = vec![json!({"url": "https://a.test"})]),
            "invalid_input",
        ),
        (
            complete(),
            asked(|call| call.context = Some("c".to_owned())),
            "invalid_input",
        ),
        (
            complete(),
            asked(|call| call.output_modes = vec!["text/plain".to_owned()]),
            "invalid_input",
        ),
        (complete(), call("painter"), "peer_unknown"),
    ] {
        let (found, text, retryable) = failure(attempt(&executors(peer), call, None).await);
        assert_eq!((found.as_str(), retryable), (code, false), "{text}");
    }
}

#[tokio::test]
async fn hostile_answers_end_the_call_within_bounds() {
    let endless = Scripted::start(Script::Flood(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n".to_owned(),
    ))
    .await;
    let report = attempt(
        &executors(peer_at(&endless.url("/"), POLLING)),
        call("planner"),
        None,
    )
    .await;
    let (code, text, retryable) = failure(report);
    assert_eq!((code.as_str(), retryable), ("A2A_PROVIDER_ERROR", false));
    assert!(text.contains("16777216 bytes"), "{text}");
    for body in [
        "<html>",
        "",
        "[]",
        "{}",
        "{\"id\": \"..\", \"status\": \"working\"}",
    ] {
        let agent = Agent::start(move |_| reply(200, "application/json", body)).await;
        let (code, _, retryable) = failure(attempt(&executors_of(&agent), call("planner"), None).await);
        assert_eq!(
            (code.as_str(), retryable),
            ("A2A_PROVIDER_ERROR", false),
            "{body}"
        );
    }
}

#[tokio::test]
async fn agent_that_does_not_answer_takes_no_longer_than_a_task_may() {
    let silent = Scripted::start(Script::Silence).await;
    let polling = Polling {
        interval: Duration::from_millis(100),
        timeout: Duration::from_secs(1),
        ..POLLING
    };
    let executors = executors(peer_at(&silent.url("/"), polling));
    let (code, text, retryable) = failure(attempt(&executors, call("planner"), None).await);
    assert_eq!((code.as_str(), retryable), ("A2A_PROVIDER_ERROR", true));
    assert!(text.contains("did not answer in time"), "{text}");
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let handle =
        json!({ "tasksHttp": { "taskId": "t", "peer": "planner", "since": since.as_millis() as u64 } });
    let (code, text, retryable) = failure(attempt(&executors, call("planner"), Some(handle)).await);
    assert_eq!((code.as_str(), retryable), ("A2A_PROVIDER_ERROR", false));
    assert!(text.contains("within 1000ms"), "{text}");
}

#[tokio::test]
async fn parked_question_goes_on_with_the_agent_or_ends_with_an_answer() {
    let mut asks = task("input-required");
    asks["output"] = json!({ "prompt": "Which style?" });
    let mut done = task("completed");
    done["output"] = json!({ "patch": "x" });
    let agent = agent(vec![asks.clone(), asks, task("working"), done]).await;
    let polling = Polling {
        // A question takes its time.
        timeout: Duration::from_secs(60),
        on_question: OnQuestion::Park,
        ..POLLING
    };
    let executors = executors(peer_at(&format!("{}/api", agent.origin()), polling));
    let asked = || AgentCall {
        correlation: Some("nightly:delegate:n#2".to_owned()),
        ..call("planner")
    };
    let (mut handle, _) = accepted(attempt(&executors, asked(), None).await);
    // It was accepted long ago.
    handle["tasksHttp"]["since"] = 0.into();
    let mut keys = Vec::new();
    for _ in 0..2 {
        let Report::Interrupted {
            question,
            handle: asking,
            check_after,
        } = attempt(&executors, asked(), Some(handle)).await
        else {
            panic!("the agent asks");
        };
        let said = question.data["message"].as_str().unwrap();
        assert!(
            said.starts_with("Which style?") && said.contains("is the result of the step"),
            "{said}"
        );
        assert_eq!(question.data["taskId"], "a/1");
        assert_eq!(check_after, Some(polling.interval));
        keys.push(question.key);
        handle = asking;
    }
    assert_eq!(keys[0], keys[1]);
    let answering = Answering {
        run: run(),
        provider: provider::AGENT.to_owned(),
        idempotency_key: "k".to_owned(),
        trace: None,
        handle: handle.clone(),
        interrupt: "n:0:0".to_owned(),
        value: json!("REST"),
    };
    let Answered::Ended(Outcome::Done(outputs)) = executors.answer(answering).await.unwrap() else {
        panic!("the answer is the result");
    };
    assert_eq!(
        (&outputs["data"], &outputs["taskId"]),
        (&json!({ "text": "REST" }), &json!("a/1"))
    );
    // Without an answer here, the agent goes on by itself, and has its whole time again.
    let (handle, _) = accepted(attempt(&executors, asked(), Some(handle)).await);
    assert_ne!(handle["tasksHttp"]["since"], 0);
    let report = attempt(&executors, asked(), Some(handle)).await;
    let Report::Ended(Outcome::Done(outputs)) = report else {
        panic!("{report:?}");
    };
    assert_eq!(outputs["data"], json!({ "patch": "x" }));
    let mut agent = agent;
    assert_eq!(agent.seen()[0].json()["correlation_id"], "nightly:delegate:n#2");
}

#[tokio::test]
async fn there_is_no_card_and_a_cancel_has_nothing_to_tell() {
    let agent = agent(vec![task("working")]).await;
    let executors = executors_of(&agent);
    let (handle, _) = accepted(attempt(&executors, call("planner"), None).await);
    let cancellation = Cancellation {
        run: run(),
        provider: provider::AGENT.to_owned(),
        idempotency_key: KEY.to_owned(),
        trace: None,
        handle,
    };
    executors.cancel(cancellation).await.unwrap();
    let client = Client::new(open_gate(), [peer_at(&agent.origin(), POLLING)]);
    let error = client.card("planner").await.unwrap_err();
    assert!(matches!(error, Error::NoInterface { offered } if offered == ["tasks-http"]));
}
