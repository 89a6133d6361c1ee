//! Agents without a card and without a server of their own: those that are tools, and those that the program around the
//! host reaches by a transport. The transport here is the example to copy.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use serde_json::{Value, json};
use wopr_connect::{
    AgentTransport, Executors, NewTask, Options, TaskOf, ToolAgent, TransportError,
    a2a::{OnQuestion, Polling, RemoteTask, TaskStatus},
};
use wopr_core::{AgentCall, AgentReach, AgentVerb, provider};
use wopr_engine::{Answered, Answering, Attempt, Cancellation, Executor as _, Outcome, Report, Request};

use crate::{
    agent::open_gate,
    executors::attempt,
    peer::gate,
    tools::{GREETS, LISTS, LOOPBACK, shell},
};

fn call(peer: &str, reach: AgentReach, input: Value) -> AgentCall {
    AgentCall {
        verb: AgentVerb::INVOKE,
        peer: peer.to_owned(),
        reach,
        correlation: Some("nightly:delegate:review".to_owned()),
        skill: None,
        text: None,
        data: Some(input),
        files: Vec::new(),
        context: None,
        version: None,
        binding: None,
        output_modes: Vec::new(),
        caller: "w".to_owned(),
        timeout_ms: None,
    }
}

fn asking(call: AgentCall, handle: Option<Value>) -> Attempt {
    Attempt {
        handle,
        ..attempt(Request::Agent(Box::new(call)))
    }
}

async fn ended(executors: &Executors, call: AgentCall) -> Outcome {
    match executors.run(asking(call, None)).await {
        Report::Ended(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

/// The code and the text of a failure.
fn failure(outcome: Outcome) -> (String, String) {
    match outcome {
        Outcome::Failed { code, message, .. } => (code, message),
        other => panic!("{other:?}"),
    }
}

/// A host with a tool server that greets, lists its tools, and goes on so; two of its tools are agents.
fn with_tools(script: &str) -> Executors {
    let agent = |name: &str, server: &str, tool: &str| ToolAgent {
        name: name.to_owned(),
        server: server.to_owned(),
        tool: tool.to_owned(),
    };
    let options = Options {
        tool_servers: vec![shell(&format!("{GREETS}{LISTS}{script}"))],
        tool_agents: vec![agent("reviewer", "default", "t"), agent("lost", "elsewhere", "t")],
        ..Options::default()
    };
    Executors::new(gate(LOOPBACK), options)
}

#[tokio::test]
async fn agent_that_is_a_tool_is_called_once_with_the_input_as_arguments() {
    let executors = with_tools(
        r#"answer '{"content":[{"type":"text","text":"fine"}],"structuredContent":{"patch":"p"}}'
        says plain
        answer '{"content":[{"type":"image","data":"AA==","mimeType":"image/png"}]}'"#,
    );
    let input = || json!({ "n": 1 });
    let ask = || ended(&executors, call("reviewer", AgentReach::Tool, input()));
    let Outcome::Done(answer) = ask().await else {
        panic!("the tool answers");
    };
    let wanted = json!({
        "text": "fine", "data": { "patch": "p" }, "artifacts": [], "state": "completed",
        "taskId": "mcp-task-nightly-delegate-review", "contextId": "", "peer": "reviewer",
        "contentTrust": "untrusted",
    });
    assert_eq!(answer, wanted);
    let Outcome::Done(answer) = ask().await else {
        panic!("the tool answers");
    };
    assert_eq!(
        (&answer["text"], &answer["data"]),
        (&json!("plain"), &Value::Null)
    );
    let Outcome::Done(answer) = ask().await else {
        panic!("the tool answers");
    };
    assert_eq!(answer["data"]["content"][0]["type"], "image");
}

#[tokio::test]
async fn failures_of_agents_that_are_tools_have_the_codes_of_delegates() {
    let executors =
        with_tools(r#"answer '{"content":[{"type":"text","text":"no disk"}],"isError":true}'; says never"#);
    let of = |peer: &str, input| ended(&executors, call(peer, AgentReach::Tool, input));
    let (code, text) = failure(of("reviewer", json!({})).await);
    assert_eq!(code, "DELEGATE_PROTOCOL_ERROR");
    assert!(
        text.contains("no disk") && text.ends_with("(tool_failed)"),
        "{text}"
    );
    let (code, text) = failure(of("reviewer", json!({ "n": "one" })).await);
    assert_eq!(code, "DELEGATE_PROTOCOL_ERROR");
    assert!(text.ends_with("(tool_arguments_invalid)"), "{text}");
    for peer in ["lost", "nobody"] {
        let (code, text) = failure(of(peer, json!({})).await);
        assert_eq!(code, "DELEGATE_AGENT_NOT_FOUND", "{text}");
    }
    // A host without such agents says so, and the workflow decides what that means.
    let bare = Executors::new(open_gate(), Options::default());
    let (code, _) = failure(ended(&bare, call("reviewer", AgentReach::Tool, json!({}))).await);
    assert_eq!(code, "peer_unknown");
}

/// An agent in this process: it asks once, and then it is done.
#[derive(Debug, Default)]
struct Embedded {
    /// What was asked of it.
    seen: Mutex<Vec<Value>>,
    /// What it was answered.
    answered: Mutex<Option<Value>>,
    is_down: Mutex<bool>,
}

#[async_trait]
impl AgentTransport for Embedded {
    fn polling(&self) -> Polling {
        Polling {
            interval: Duration::from_millis(20),
            on_question: OnQuestion::Park,
            ..Polling::default()
        }
    }

    async fn submit(&self, task: NewTask<'_>) -> Result<RemoteTask, TransportError> {
        if *self.is_down.lock().unwrap() {
            return Err(TransportError::transient("it is down"));
        }
        self.seen.lock().unwrap().push(json!({
            "submit": task.correlation_id, "agent": task.agent_id, "input": task.input,
        }));
        Ok(of(TaskStatus::Working, None))
    }

    async fn get(&self, task: TaskOf<'_>) -> Result<RemoteTask, TransportError> {
        assert_eq!(task.id, "t-1");
        let answered = self.answered.lock().unwrap().clone();
        Ok(match answered {
            None => of(
                TaskStatus::InputRequired,
                Some(json!({ "prompt": "Which style?" })),
            ),
            Some(answer) => of(TaskStatus::Completed, Some(json!({ "style": answer }))),
        })
    }

    async fn cancel(&self, task: TaskOf<'_>) -> Result<(), TransportError> {
        if *self.is_down.lock().unwrap() {
            return Err(TransportError::transient("it is down"));
        }
        self.seen.lock().unwrap().push(json!({ "cancel": task.id }));
        Ok(())
    }

    fn takes_answers(&self) -> bool {
        true
    }

    async fn answer(&self, _task: TaskOf<'_>, answer: &Value, _key: &str) -> Result<(), TransportError> {
        *self.answered.lock().unwrap() = Some(answer.clone());
        Ok(())
    }
}

fn of(status: TaskStatus, output: Option<Value>) -> RemoteTask {
    RemoteTask {
        id: "t-1".to_owned(),
        status,
        output,
        error: None,
    }
}

fn embedding(agent: &Arc<Embedded>) -> Executors {
    let agent: Arc<dyn AgentTransport> = Arc::<Embedded>::clone(agent);
    let options = Options {
        transports: HashMap::from([("coder".to_owned(), agent)]),
        ..Options::default()
    };
    Executors::new(open_gate(), options)
}

#[tokio::test]
async fn embedded_agent_is_asked_answered_and_read_through_its_transport() {
    let agent = Arc::new(Embedded::default());
    let executors = embedding(&agent);
    let asked = || call("coder", AgentReach::Embedded, json!({ "task": "mend" }));
    let Report::Accepted { handle, check_after } = executors.run(asking(asked(), None)).await else {
        panic!("it works");
    };
    assert_eq!(check_after, Some(Duration::from_millis(20)));
    let Report::Interrupted { question, handle, .. } = executors.run(asking(asked(), Some(handle))).await
    else {
        panic!("it asks");
    };
    assert_eq!(
        (
            &question.data["message"],
            &question.data["taskId"],
            &question.data["peer"]
        ),
        (&json!("Which style?"), &json!("t-1"), &json!("coder"))
    );
    let answering = Answering {
        run: asking(asked(), None).run,
        provider: provider::AGENT.to_owned(),
        idempotency_key: "k".to_owned(),
        trace: None,
        handle: handle.clone(),
        interrupt: "review:0:0".to_owned(),
        value: json!({ "answers": { "answer": "plain" } }),
    };
    assert_eq!(executors.answer(answering).await.unwrap(), Answered::Taken);
    let Report::Ended(Outcome::Done(answer)) = executors.run(asking(asked(), Some(handle))).await else {
        panic!("it is done");
    };
    assert_eq!(
        (&answer["data"], &answer["taskId"]),
        (&json!({ "style": "plain" }), &json!("t-1"))
    );
    assert_eq!(
        *agent.seen.lock().unwrap(),
        [json!({ "submit": "nightly:delegate:review", "agent": "coder", "input": { "task": "mend" } })]
    );
}

#[tokio::test]
async fn cancel_reaches_an_embedded_agent_and_a_failure_that_may_pass_is_tried_again() {
    let agent = Arc::new(Embedded::default());
    let executors = embedding(&agent);
    let asked = || call("coder", AgentReach::Embedded, json!({}));
    *agent.is_down.lock().unwrap() = true;
    let Outcome::Failed {
        code,
        message,
        retryable,
        ..
    } = ended(&executors, asked()).await
    else {
        panic!("it is down");
    };
    assert_eq!(
        (code.as_str(), message.as_str(), retryable),
        ("A2A_PROVIDER_ERROR", "it is down", true)
    );
    *agent.is_down.lock().unwrap() = false;
    let Report::Accepted { handle, .. } = executors.run(asking(asked(), None)).await else {
        panic!("it works");
    };
    let cancellation = || Cancellation {
        run: asking(asked(), None).run,
        provider: provider::AGENT.to_owned(),
        idempotency_key: "k".to_owned(),
        trace: None,
        handle: handle.clone(),
    };
    *agent.is_down.lock().unwrap() = true;
    assert!(executors.cancel(cancellation()).await.is_err());
    *agent.is_down.lock().unwrap() = false;
    executors.cancel(cancellation()).await.unwrap();
    assert_eq!(
        agent.seen.lock().unwrap().last(),
        Some(&json!({ "cancel": "t-1" }))
    );
    // Peers of the network are no code of the program.
    let (code, _) = failure(ended(&executors, call("painter", AgentReach::Embedded, json!({}))).await);
    assert_eq!(code, "DELEGATE_AGENT_NOT_FOUND");
    // One that workflows call by any other protocol is found, too.
    let report = executors
        .run(asking(call("coder", AgentReach::Peer, json!({})), None))
        .await;
    assert!(matches!(report, Report::Accepted { .. }), "{report:?}");
}
