//! Calls of workflows to agents, attempt by attempt.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::task::JoinSet;
use wopr_connect::{Callback, Callbacks, Executors, Options};
use wopr_core::{AgentCall, AgentReach, AgentVerb, RemoteQuestion, RunKey, StepId};
use wopr_engine::{
    Answered, Answering, Attempt, Cancellation, Executor as _, Outcome, Recalled, Recalling, Report, Request,
};
use wopr_wire::a2a::model::Secret;

use crate::{
    agent::{Agent, Reply, Seen, json_reply, open_gate, reply, rpc_reply, stalled, with_header},
    executors::{STATE, TRACE, attempt},
};

const RPC: &str = "/rpc";

#[derive(Debug)]
struct Fixed;

impl Callbacks for Fixed {
    fn callback(&self, run: &RunKey, step: &StepId, (attempt, _): (u32, u32)) -> Callback {
        Callback {
            url: format!("https://wopr.example/{}/{}/{attempt}", run.run, step.key()),
            token: Secret::new("t0ken").unwrap(),
        }
    }
}

/// An agent that does not stream, but offers pushes.
pub(crate) async fn agent(
    version: &'static str,
    handle: impl Fn(&Seen, &str) -> Reply + Send + Sync + 'static,
) -> Agent {
    Agent::start(move |seen| match seen.path.as_str() {
        "/.well-known/agent-card.json" => json_reply(&json!({
            "name": "n", "description": "d", "version": "1", "skills": [],
            "capabilities": { "pushNotifications": true },
            "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
            "supportedInterfaces": [
                { "url": format!("{}{RPC}", seen.origin), "protocolBinding": "JSONRPC", "protocolVersion": version }
            ],
        })),
        _ => handle(seen, seen.json()["method"].as_str().unwrap()),
    })
    .await
}

pub(crate) fn executors(agent: &Agent, change: impl FnOnce(&mut Options)) -> Executors {
    let mut options = Options {
        peers: vec![agent.peer()],
        ..Options::default()
    };
    change(&mut options);
    Executors::new(open_gate(), options)
}

fn pushed(options: &mut Options) {
    options.callbacks = Some(Arc::new(Fixed));
}

pub(crate) fn call() -> Attempt {
    attempt(Request::Agent(Box::new(AgentCall {
        verb: AgentVerb::INVOKE,
        peer: "planner".to_owned(),
        reach: AgentReach::Peer,
        correlation: None,
        skill: None,
        text: Some("hi".to_owned()),
        data: None,
        files: Vec::new(),
        context: None,
        version: None,
        binding: None,
        output_modes: Vec::new(),
        caller: "w".to_owned(),
        timeout_ms: None,
    })))
}

/// The task in this state, as the version writes it.
pub(crate) fn task(version: &str, state: &str, context: &str) -> Value {
    match version {
        "1.0" => json!({ "id": "t", "contextId": context, "status": { "state": state } }),
        _ => {
            let state = state
                .strip_prefix("TASK_STATE_")
                .unwrap()
                .to_lowercase()
                .replace('_', "-");
            json!({ "kind": "task", "id": "t", "contextId": context, "status": { "state": state } })
        }
    }
}

/// The answer to a message that made a task.
pub(crate) fn sent(version: &str, task: &Value) -> Reply {
    match version {
        "1.0" => rpc_reply(&json!({ "task": task })),
        _ => rpc_reply(task),
    }
}

pub(crate) fn error(code: i64) -> Reply {
    json_reply(&json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": code, "message": "no" } }))
}

pub(crate) fn methods(agent: &mut Agent) -> Vec<String> {
    let calls = agent.calls().into_iter();
    calls
        .map(|seen| seen.json()["method"].as_str().unwrap().to_owned())
        .collect()
}

/// The handle and the time until the next look of a call that goes on.
fn accepted(report: Report) -> (Value, Duration) {
    match report {
        Report::Accepted { handle, check_after } => (handle, check_after.unwrap()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn agent_that_offers_pushes_is_asked_for_them_once_and_then_looked_at_rarely() {
    for version in ["1.0", "0.3"] {
        let mut agent = agent(version, move |seen, method| {
            let working = task(version, "TASK_STATE_WORKING", "c");
            match method {
                "SendMessage" | "message/send" => sent(version, &working),
                "GetTask" | "tasks/get" => rpc_reply(&working),
                "CreateTaskPushNotificationConfig" | "tasks/pushNotificationConfig/set" => {
                    rpc_reply(&seen.json()["params"])
                }
                method => panic!("{method}"),
            }
        })
        .await;
        let executors = executors(&agent, pushed);
        let (handle, check_after) = accepted(executors.run(call()).await);
        // It may have changed before the agent pushes.
        assert!(check_after < Duration::from_secs(1), "{check_after:?}");
        let calls = agent.calls();
        let params = &calls[1].json()["params"];
        let config = match version {
            "1.0" => params,
            _ => &params["pushNotificationConfig"],
        };
        assert_eq!(params["taskId"], "t", "{params:#}");
        assert_eq!(config["token"], "t0ken");
        let url = "https://wopr.example/run_0123456789abcdef/call:0/0";
        assert_eq!(config["url"], url);
        assert!(
            !handle.to_string().contains("t0ken"),
            "the token is not stored: {handle}"
        );

        for _ in 0..2 {
            let mut look = call();
            look.handle = Some(handle.clone());
            let Report::Unchanged { check_after } = executors.run(look).await else {
                panic!("a look at a task that works says nothing new")
            };
            assert_eq!(check_after, Some(Duration::from_secs(30)));
            assert_eq!(methods(&mut agent).len(), 1, "only the task is looked at");
        }
    }
}

#[tokio::test]
async fn agent_that_refuses_to_push_is_not_asked_again() {
    let mut agent = agent("1.0", |_, method| {
        let working = task("1.0", "TASK_STATE_WORKING", "c");
        match method {
            "SendMessage" => sent("1.0", &working),
            "GetTask" => rpc_reply(&working),
            _ => error(-32003),
        }
    })
    .await;
    let executors = executors(&agent, pushed);
    let (handle, check_after) = accepted(executors.run(call()).await);
    assert!(check_after < Duration::from_secs(1), "{check_after:?}");
    let mut look = call();
    look.handle = Some(handle);
    assert!(matches!(executors.run(look).await, Report::Unchanged { .. }));
    let registered = |method: &&String| method.starts_with("Create");
    assert_eq!(methods(&mut agent).iter().filter(registered).count(), 1);
}

#[tokio::test]
async fn host_without_a_public_address_registers_nowhere() {
    let mut agent = agent("1.0", |_, method| match method {
        "SendMessage" => sent("1.0", &task("1.0", "TASK_STATE_WORKING", "c")),
        method => panic!("{method}"),
    })
    .await;
    accepted(executors(&agent, |_| {}).run(call()).await);
    assert_eq!(methods(&mut agent), ["SendMessage"]);
}

#[tokio::test]
async fn message_is_sent_again_only_if_the_agent_lists_no_task_of_its_context() {
    let mut agent = agent("1.0", |seen, method| {
        let params = seen.json()["params"].clone();
        match method {
            "SendMessage" => {
                let context = params["message"]["contextId"].as_str().unwrap();
                sent("1.0", &task("1.0", "TASK_STATE_WORKING", context))
            }
            // It lists tasks of others, too.
            "ListTasks" => rpc_reply(&json!({ "tasks": [
                task("1.0", "TASK_STATE_WORKING", "another"),
                task("1.0", "TASK_STATE_WORKING", params["contextId"].as_str().unwrap()),
            ], "nextPageToken": "", "pageSize": 2, "totalSize": 2 })),
            "GetTask" => rpc_reply(&task("1.0", "TASK_STATE_WORKING", "c")),
            method => panic!("{method}"),
        }
    })
    .await;
    let executors = executors(&agent, |_| {});
    accepted(executors.run(call()).await);
    let calls = agent.calls();
    let first = calls[0].json()["params"]["message"].clone();
    assert_eq!(calls.len(), 1, "the first message asks for nothing");
    let traced = &first["metadata"]["openwop"];
    assert_eq!(
        (&traced["traceparent"], &traced["tracestate"]),
        (&json!(TRACE), &json!(STATE))
    );
    let mut again = call();
    again.is_repeat = true;
    let (handle, _) = accepted(executors.run(again).await);
    assert_eq!(handle["taskId"], "t");
    let calls = agent.calls();
    assert_eq!(calls[0].json()["params"]["contextId"], first["contextId"]);
    let methods: Vec<_> = calls.iter().map(|seen| seen.json()["method"].clone()).collect();
    assert_eq!(methods, ["ListTasks", "GetTask"], "no second task");

    // A context that the workflow names holds other tasks, too.
    let mut named = call();
    let Request::Agent(sending) = &mut named.request else {
        panic!("a call")
    };
    sending.context = Some("mine".to_owned());
    named.is_repeat = true;
    accepted(executors.run(named).await);
    let calls = agent.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].json()["params"]["message"]["contextId"], "mine");
}

/// Lets the time pass that a call waits, without waiting for it.
async fn wait(report: Report) {
    let Report::Unchanged {
        check_after: Some(after),
    } = report
    else {
        panic!("{report:?}")
    };
    tokio::time::pause();
    tokio::time::advance(after).await;
    tokio::time::resume();
}

fn sending() -> Attempt {
    let mut sending = call();
    if let Request::Agent(call) = &mut sending.request {
        call.verb = AgentVerb::Send { task: None };
    }
    sending
}

fn listed(tasks: &[Value]) -> Reply {
    let n = tasks.len();
    rpc_reply(&json!({ "tasks": tasks, "nextPageToken": "", "pageSize": 20, "totalSize": n }))
}

fn named(id: &str, state: &str, context: &Value) -> Value {
    json!({ "id": id, "contextId": context, "status": { "state": state } })
}

#[tokio::test]
async fn task_that_an_agent_stores_late_is_found_before_the_message_is_sent_again() {
    for attempt in [call(), sending()] {
        let n_lists = AtomicUsize::new(0);
        let mut agent = agent("1.0", move |seen, method| {
            let context = &seen.json()["params"]["contextId"];
            match method {
                "ListTasks" if n_lists.fetch_add(1, Ordering::Relaxed) == 0 => listed(&[]),
                "ListTasks" => listed(&[named("t", "TASK_STATE_WORKING", context)]),
                "GetTask" => rpc_reply(&task("1.0", "TASK_STATE_WORKING", "c")),
                method => panic!("{method}"),
            }
        })
        .await;
        let executors = executors(&agent, |_| {});
        let mut again = attempt.clone();
        again.is_repeat = true;
        wait(executors.run(again.clone()).await).await;
        match executors.run(again).await {
            Report::Ended(Outcome::Done(outputs)) => assert_eq!(outputs["taskId"], "t"),
            report => assert_eq!(accepted(report).0["taskId"], "t"),
        }
        assert_eq!(methods(&mut agent), ["ListTasks", "ListTasks", "GetTask"]);
    }
}

#[tokio::test]
async fn message_that_is_not_followed_opens_a_context_too_and_is_sent_once() {
    let context = Arc::<std::sync::Mutex<Value>>::default();
    let opened = Arc::clone(&context);
    let mut agent = agent("1.0", move |seen, method| match method {
        "SendMessage" => {
            let context = seen.json()["params"]["message"]["contextId"].clone();
            *opened.lock().unwrap() = context.clone();
            sent("1.0", &named("t", "TASK_STATE_WORKING", &context))
        }
        "ListTasks" => {
            let context = &seen.json()["params"]["contextId"];
            assert_eq!(*context, *opened.lock().unwrap());
            listed(&[named("t", "TASK_STATE_WORKING", context)])
        }
        "GetTask" => rpc_reply(&task("1.0", "TASK_STATE_WORKING", "c")),
        method => panic!("{method}"),
    })
    .await;
    let executors = executors(&agent, |_| {});
    for is_repeat in [false, true] {
        let mut sending = sending();
        sending.is_repeat = is_repeat;
        let Report::Ended(Outcome::Done(outputs)) = executors.run(sending).await else {
            panic!("it ends with the first answer")
        };
        assert_eq!(outputs["taskId"], "t");
    }
    assert!(context.lock().unwrap().is_string());
    assert_eq!(methods(&mut agent), ["SendMessage", "ListTasks", "GetTask"]);
}

#[tokio::test]
async fn tasks_of_one_message_are_cancelled_but_for_one() {
    for (is_recall, is_cancelled) in [(false, true), (false, false), (true, true)] {
        let mut agent = agent("1.0", move |seen, method| {
            let params = seen.json()["params"].clone();
            let context = &params["contextId"];
            match method {
                "ListTasks" => listed(&[
                    named("dropped", "TASK_STATE_CANCELED", context),
                    named("one", "TASK_STATE_WORKING", context),
                    named("two", "TASK_STATE_WORKING", context),
                    named("other", "TASK_STATE_WORKING", &json!("another context")),
                ]),
                "GetTask" => rpc_reply(&named(
                    params["id"].as_str().unwrap(),
                    "TASK_STATE_WORKING",
                    &json!("c"),
                )),
                "CancelTask" if is_cancelled => rpc_reply(&named(
                    params["id"].as_str().unwrap(),
                    "TASK_STATE_CANCELED",
                    &json!("c"),
                )),
                "CancelTask" => reply(503, "text/plain", "no"),
                method => panic!("{method}"),
            }
        })
        .await;
        let executors = executors(&agent, |_| {});
        let mut again = call();
        again.is_repeat = true;
        match (is_recall, is_cancelled) {
            (true, _) => assert_eq!(found(&executors.recall(recalling()).await.unwrap()), "one"),
            (false, true) => assert_eq!(accepted(executors.run(again).await).0["taskId"], "one"),
            // The call does not go on before the other task is cancelled.
            (false, false) => assert!(matches!(
                executors.run(again).await,
                Report::Ended(Outcome::Failed { retryable: true, .. })
            )),
        }
        let calls = agent.calls();
        let cancels = calls
            .iter()
            .map(Seen::json)
            .filter(|call| call["method"] == "CancelTask");
        let cancelled: Vec<_> = cancels.map(|call| call["params"]["id"].clone()).collect();
        assert_eq!(cancelled, ["two"]);
    }
}

#[tokio::test]
async fn second_task_of_a_repeated_message_is_cancelled() {
    let n_lists = AtomicUsize::new(0);
    let mut agent = agent("1.0", move |seen, method| {
        let params = seen.json()["params"].clone();
        let context = &params["contextId"];
        match method {
            // It lists the task of the first message very late.
            "ListTasks" if n_lists.fetch_add(1, Ordering::Relaxed) < 2 => listed(&[]),
            "ListTasks" => listed(&[
                named("one", "TASK_STATE_WORKING", context),
                named("two", "TASK_STATE_WORKING", context),
            ]),
            "SendMessage" => {
                let context = &params["message"]["contextId"];
                sent("1.0", &named("two", "TASK_STATE_WORKING", context))
            }
            "CancelTask" => rpc_reply(&named(
                params["id"].as_str().unwrap(),
                "TASK_STATE_CANCELED",
                &json!("c"),
            )),
            method => panic!("{method}"),
        }
    })
    .await;
    let executors = executors(&agent, |_| {});
    let mut again = call();
    again.is_repeat = true;
    wait(executors.run(again.clone()).await).await;
    assert_eq!(accepted(executors.run(again).await).0["taskId"], "two");
    let cancel = agent.calls().last().unwrap().json();
    assert_eq!(
        (&cancel["method"], &cancel["params"]["id"]),
        (&json!("CancelTask"), &json!("one"))
    );
}

#[tokio::test]
async fn task_whose_name_cannot_be_stored_is_cancelled_at_once() {
    for is_cancelled in [true, false] {
        let id = "t".repeat(3_000);
        let mut agent = agent("1.0", move |_, method| match method {
            "SendMessage" => sent("1.0", &named(&id, "TASK_STATE_WORKING", &json!("c"))),
            "CancelTask" if is_cancelled => rpc_reply(&named(&id, "TASK_STATE_CANCELED", &json!("c"))),
            "ListTasks" => listed(&[]),
            _ => reply(503, "text/plain", "no"),
        })
        .await;
        let report = executors(&agent, |_| {}).run(call()).await;
        let Report::Ended(Outcome::Failed { code, may_go_on, .. }) = report else {
            panic!("{report:?}")
        };
        // A recall finds one that goes on.
        assert_eq!((code.as_str(), may_go_on), ("remote_failed", !is_cancelled));
        assert_eq!(methods(&mut agent), ["SendMessage", "CancelTask"]);
    }
}

#[tokio::test]
async fn recalled_task_whose_name_cannot_be_stored_is_cancelled_at_once() {
    let id = "t".repeat(3_000);
    let mut agent = agent("1.0", move |seen, method| {
        let context = &seen.json()["params"]["contextId"];
        match method {
            "ListTasks" => listed(&[named(&id, "TASK_STATE_WORKING", context)]),
            "GetTask" => rpc_reply(&named(&id, "TASK_STATE_WORKING", &json!("c"))),
            "CancelTask" => rpc_reply(&named(&id, "TASK_STATE_CANCELED", &json!("c"))),
            method => panic!("{method}"),
        }
    })
    .await;
    let recalled = executors(&agent, |_| {}).recall(recalling()).await;
    assert_eq!(recalled, Ok(Recalled::Over));
    assert_eq!(methods(&mut agent), ["ListTasks", "GetTask", "CancelTask"]);
}

#[tokio::test]
async fn agent_that_lists_nothing_gets_the_same_message_again() {
    for (version, lists, expected) in [
        // It may store its task late, so it is asked twice, and after the message for another task.
        (
            "1.0",
            true,
            vec!["ListTasks", "ListTasks", "SendMessage", "ListTasks"],
        ),
        ("1.0", false, vec!["ListTasks", "SendMessage"]),
        // No tasks are listed by context in 0.3.
        ("0.3", false, vec!["message/send"]),
    ] {
        let mut agent = agent(version, move |_, method| match method {
            "SendMessage" | "message/send" => sent(version, &task(version, "TASK_STATE_WORKING", "c")),
            "ListTasks" if lists => {
                rpc_reply(&json!({ "tasks": [], "nextPageToken": "", "pageSize": 0, "totalSize": 0 }))
            }
            _ => error(-32601),
        })
        .await;
        let mut again = call();
        again.is_repeat = true;
        let executors = executors(&agent, |_| {});
        if lists {
            wait(executors.run(again.clone()).await).await;
        }
        accepted(executors.run(again).await);
        let calls = agent.calls();
        let methods: Vec<_> = calls.iter().map(|seen| seen.json()["method"].clone()).collect();
        assert_eq!(methods, expected, "{version}");
        let requests = calls.iter().map(Seen::json);
        let mut messages = requests.filter_map(|request| request["params"].get("message").cloned());
        let message = messages.next().unwrap();
        assert_eq!(message["messageId"], "wopr-key-1");
        assert_eq!(message.get("contextId").is_some(), version == "1.0");
    }
}

#[tokio::test]
async fn agent_that_takes_only_its_own_contexts_gets_the_message_without_one() {
    let mut agent = agent("1.0", |seen, _| {
        match seen.json()["params"]["message"].get("contextId") {
            Some(_) => error(-32602),
            None => sent("1.0", &task("1.0", "TASK_STATE_WORKING", "its own")),
        }
    })
    .await;
    let (handle, _) = accepted(executors(&agent, |_| {}).run(call()).await);
    assert_eq!(handle["contextId"], "its own");
    assert_eq!(agent.calls().len(), 2);
}

#[tokio::test]
async fn question_is_the_same_at_whatever_time_it_is_asked() {
    let agent = agent("1.0", |seen, _| {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let at = format!("2026-01-01T00:00:00.{:09}Z", now.subsec_nanos());
        let mut asking = task("1.0", "TASK_STATE_AUTH_REQUIRED", "c");
        asking["status"]["timestamp"] = at.into();
        asking["status"]["message"] =
            json!({ "messageId": "m", "role": "ROLE_AGENT", "parts": [{ "text": "Sign in" }] });
        match seen.json()["method"].as_str().unwrap() {
            "SendMessage" => sent("1.0", &asking),
            _ => rpc_reply(&asking),
        }
    })
    .await;
    let executors = executors(&agent, pushed);
    let mut stored = None;
    for _ in 0..3 {
        let mut look = call();
        look.handle.clone_from(&stored);
        let Report::Interrupted { handle, question, .. } = executors.run(look).await else {
            panic!("it asks")
        };
        assert_eq!(question.data["metadata"]["subkind"], "auth");
        assert!(
            stored.is_none() || stored.as_ref() == Some(&handle),
            "{stored:?} {handle}"
        );
        stored = Some(handle);
    }
}

pub(crate) fn answering(handle: &Value) -> Answering {
    let call = call();
    Answering {
        run: call.run,
        provider: "agent".to_owned(),
        idempotency_key: format!("{}.0", call.idempotency_key),
        trace: call.trace,
        handle: handle.clone(),
        interrupt: "ask:0".to_owned(),
        value: json!("yes"),
    }
}

/// A task that asks in a message with this id.
pub(crate) fn asking(id: &str, text: &str) -> Value {
    let mut asking = task("1.0", "TASK_STATE_INPUT_REQUIRED", "c");
    asking["status"]["message"] =
        json!({ "messageId": id, "role": "ROLE_AGENT", "parts": [{ "text": text }] });
    asking
}

/// The handle and the question of a call whose agent asks.
pub(crate) async fn asked(executors: &Executors, handle: Option<&Value>) -> (Value, RemoteQuestion) {
    let mut look = call();
    look.handle = handle.cloned();
    match executors.run(look).await {
        Report::Interrupted { handle, question, .. } => (handle, question),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn question_whose_message_has_a_new_id_every_time_can_be_answered() {
    let n = AtomicUsize::new(0);
    let mut agent = agent("1.0", move |seen, method| {
        let id = n.fetch_add(1, Ordering::Relaxed).to_string();
        match method {
            "SendMessage" if seen.json()["params"]["message"]["taskId"] == "t" => {
                sent("1.0", &task("1.0", "TASK_STATE_WORKING", "c"))
            }
            "SendMessage" => sent("1.0", &asking(&id, "Sure?")),
            "GetTask" => rpc_reply(&asking(&id, "Sure?")),
            method => panic!("{method}"),
        }
    })
    .await;
    let executors = executors(&agent, |_| {});
    let (handle, first) = asked(&executors, None).await;
    let (again, second) = asked(&executors, Some(&handle)).await;
    assert_eq!((&again, &second), (&handle, &first), "it is the same question");
    agent.calls();
    let answered = executors.answer(answering(&handle)).await;
    assert_eq!(answered, Ok(Answered::Taken));
    assert_eq!(methods(&mut agent), ["GetTask", "GetTask", "SendMessage"]);
}

#[tokio::test]
async fn question_that_is_repeated_under_a_new_id_is_another_one() {
    let id = Arc::new(AtomicUsize::new(0));
    let current = Arc::clone(&id);
    let agent = agent("1.0", move |_, method| {
        let task = asking(&current.load(Ordering::Relaxed).to_string(), "Anything else?");
        match method {
            "SendMessage" => sent("1.0", &task),
            _ => rpc_reply(&task),
        }
    })
    .await;
    let executors = executors(&agent, |_| {});
    let (handle, first) = asked(&executors, None).await;
    id.store(1, Ordering::Relaxed);
    assert_eq!(executors.answer(answering(&handle)).await, Ok(Answered::Taken));
    let (_, second) = asked(&executors, Some(&handle)).await;
    assert_ne!(first.key, second.key);
}

#[tokio::test]
async fn answer_that_the_agent_refuses_has_its_question_asked_anew() {
    let agent = agent("1.0", |seen, method| match method {
        "SendMessage" if seen.json()["params"]["message"]["taskId"] == "t" => error(-32602),
        "SendMessage" => sent("1.0", &asking("m", "Sure?")),
        _ => rpc_reply(&asking("m", "Sure?")),
    })
    .await;
    let executors = executors(&agent, |_| {});
    let (handle, first) = asked(&executors, None).await;
    assert_eq!(executors.answer(answering(&handle)).await, Ok(Answered::Taken));
    let (handle, second) = asked(&executors, Some(&handle)).await;
    assert_ne!(first.key, second.key);
    let message = second.data["message"].as_str().unwrap();
    assert!(message.contains("no") && message.ends_with("Sure?"), "{message}");
    assert_eq!(second.data["contentTrust"], "untrusted");
    assert!(second.data["refusal"].is_string(), "{}", second.data);
    let (same, third) = asked(&executors, Some(&handle)).await;
    assert_eq!((same, third.key), (handle, second.key), "it stays the same");
}

#[tokio::test]
async fn answer_goes_to_the_context_that_the_task_has_now() {
    let mut agent = agent("1.0", |seen, method| {
        let mut asking = asking("m", "Sure?");
        match method {
            "SendMessage" if seen.json()["params"]["message"]["taskId"] == "t" => {
                sent("1.0", &task("1.0", "TASK_STATE_WORKING", "new"))
            }
            "SendMessage" => sent("1.0", &asking),
            "GetTask" => {
                asking["contextId"] = "new".into();
                rpc_reply(&asking)
            }
            method => panic!("{method}"),
        }
    })
    .await;
    let executors = executors(&agent, |_| {});
    let (handle, _) = asked(&executors, None).await;
    assert_eq!(handle["contextId"], "c");
    assert_eq!(executors.answer(answering(&handle)).await, Ok(Answered::Taken));
    let message = agent.calls().last().unwrap().json()["params"]["message"].clone();
    assert_eq!(message["contextId"], "new");
}

#[tokio::test]
async fn answer_that_was_taken_counts_though_the_response_cannot_be_read() {
    let is_answered = AtomicBool::new(false);
    let agent = agent("1.0", move |seen, method| match method {
        "SendMessage" if seen.json()["params"]["message"]["taskId"] == "t" => {
            is_answered.store(true, Ordering::Relaxed);
            reply(200, "text/html", "<html>")
        }
        "SendMessage" => sent("1.0", &asking("m", "Sure?")),
        _ => match is_answered.load(Ordering::Relaxed) {
            true => rpc_reply(&asking("n", "And then?")),
            false => rpc_reply(&asking("m", "Sure?")),
        },
    })
    .await;
    let executors = executors(&agent, |_| {});
    let (handle, _) = asked(&executors, None).await;
    assert_eq!(executors.answer(answering(&handle)).await, Ok(Answered::Taken));
    let (_, next) = asked(&executors, Some(&handle)).await;
    assert_eq!(next.data["message"], "And then?");
}

#[tokio::test]
async fn task_in_no_state_is_noted_once_and_looked_at_on() {
    let agent = agent("1.0", |seen, _| {
        let task = task("1.0", "TASK_STATE_UNSPECIFIED", "c");
        match seen.json()["method"].as_str().unwrap() {
            "SendMessage" => sent("1.0", &task),
            _ => rpc_reply(&task),
        }
    })
    .await;
    let executors = executors(&agent, |_| {});
    let (handle, _) = accepted(executors.run(call()).await);
    assert_eq!(handle["isUnspecified"], true, "the warning is remembered");
    let mut look = call();
    look.handle = Some(handle);
    assert!(matches!(executors.run(look).await, Report::Unchanged { .. }));
}

#[tokio::test]
async fn call_whose_question_nobody_answers_is_given_up_with_its_task() {
    let agent = agent("1.0", |_, _| {
        sent("1.0", &task("1.0", "TASK_STATE_INPUT_REQUIRED", "c"))
    })
    .await;
    let executors = executors(&agent, |options| {
        options.silent_peers = HashSet::from(["planner".to_owned()]);
    });
    let report = executors.run(call()).await;
    let Report::Ended(Outcome::GivenUp { handle, code, .. }) = report else {
        panic!("{report:?}")
    };
    assert_eq!(
        (code.as_str(), &handle.unwrap()["taskId"]),
        ("input_required_by_remote", &json!("t"))
    );
}

#[tokio::test]
async fn messages_to_a_silent_agent_are_bounded_and_leave_room_for_looks_and_cancels() {
    let agent = agent("1.0", |_, method| match method {
        "SendMessage" => stalled("application/json", Vec::new()),
        "GetTask" => rpc_reply(&task("1.0", "TASK_STATE_WORKING", "c")),
        "CancelTask" => rpc_reply(&task("1.0", "TASK_STATE_CANCELED", "c")),
        method => panic!("{method}"),
    })
    .await;
    let executors = executors(&agent, |_| {});
    let mut sending = JoinSet::new();
    for _ in 0..64 {
        let executors = executors.clone();
        sending.spawn(async move { executors.run(call()).await });
    }
    // The others hang.
    for _ in 0..16 {
        let report = sending.join_next().await.unwrap().unwrap();
        let Report::Unchanged { check_after } = report else {
            panic!("{report:?}")
        };
        assert!(check_after.is_some());
    }
    assert!(
        executors.recall(recalling()).await.is_err(),
        "it may have to send the message"
    );
    let handle = json!({ "peer": "planner", "taskId": "t", "since": 0 });
    let mut look = call();
    look.handle = Some(handle.clone());
    assert!(matches!(
        executors.run(look).await,
        Report::Accepted { .. } | Report::Unchanged { .. }
    ));
    let call = call();
    let cancel = Cancellation {
        run: call.run,
        provider: "agent".to_owned(),
        idempotency_key: call.idempotency_key,
        trace: None,
        handle,
    };
    executors.cancel(cancel).await.expect("there is room");
}

#[tokio::test]
async fn task_of_a_peer_that_is_gone_is_given_up_and_cancelled_when_the_peer_is_back() {
    let mut agent = agent("1.0", |_, method| match method {
        "SendMessage" => sent("1.0", &task("1.0", "TASK_STATE_WORKING", "c")),
        "CancelTask" => rpc_reply(&task("1.0", "TASK_STATE_CANCELED", "c")),
        method => panic!("{method}"),
    })
    .await;
    let here = executors(&agent, |_| {});
    let (accepted, _) = accepted(here.run(call()).await);
    let gone = executors(&agent, |options| options.peers.clear());
    for peer in ["planner", "http://planner.example"] {
        let mut look = call();
        look.handle = Some(accepted.clone());
        if let Request::Agent(call) = &mut look.request {
            call.peer = peer.to_owned();
        }
        let cancel = Cancellation {
            run: look.run.clone(),
            provider: "agent".to_owned(),
            idempotency_key: "key-1".to_owned(),
            trace: None,
            handle: accepted.clone(),
        };
        let report = gone.run(look).await;
        let Report::Ended(Outcome::GivenUp { handle, code, .. }) = report else {
            panic!("{report:?}")
        };
        assert_eq!((code.as_str(), handle), ("peer_unknown", Some(accepted.clone())));
        assert!(gone.cancel(cancel.clone()).await.is_err(), "it is tried again");
        here.cancel(cancel).await.expect("the peer is back");
    }
    assert_eq!(methods(&mut agent), ["SendMessage", "CancelTask", "CancelTask"]);
}

#[tokio::test]
async fn cancel_counts_once_the_task_itself_has_ended() {
    for (id, code, state, is_done) in [
        ("t", None, "TASK_STATE_CANCELED", true),
        ("other", None, "TASK_STATE_CANCELED", false),
        ("t", Some(-32001), "TASK_STATE_WORKING", true),
        ("t", Some(-32002), "TASK_STATE_WORKING", false),
        ("t", Some(-32002), "TASK_STATE_COMPLETED", true),
    ] {
        let agent = agent("1.0", move |_, method| {
            let mut task = task("1.0", state, "c");
            match (method, code) {
                ("GetTask", _) => rpc_reply(&task),
                ("CancelTask", Some(code)) => error(code),
                ("CancelTask", None) => {
                    task["id"] = id.into();
                    rpc_reply(&task)
                }
                (method, _) => panic!("{method}"),
            }
        })
        .await;
        let call = call();
        let cancel = Cancellation {
            run: call.run,
            provider: "agent".to_owned(),
            idempotency_key: call.idempotency_key,
            trace: None,
            handle: json!({ "peer": "planner", "taskId": "t", "since": 0 }),
        };
        let cancelled = executors(&agent, |_| {}).cancel(cancel).await;
        assert_eq!(cancelled.is_ok(), is_done, "{id} {code:?} {state}: {cancelled:?}");
    }
}

#[tokio::test]
async fn task_that_nests_too_deep_is_given_up() {
    for depth in [50, 1_000] {
        let agent = agent("1.0", move |_, method| {
            assert_eq!(method, "GetTask");
            let data = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            let task = format!(
                r#"{{"id":"t","contextId":"c","status":{{"state":"TASK_STATE_COMPLETED"}},
                    "artifacts":[{{"artifactId":"a","parts":[{{"data":{data}}}]}}]}}"#
            );
            reply(
                200,
                "application/json",
                format!(r#"{{"jsonrpc":"2.0","id":1,"result":{task}}}"#),
            )
        })
        .await;
        let mut look = call();
        look.handle = Some(json!({ "peer": "planner", "taskId": "t", "since": 0 }));
        match (depth, executors(&agent, |_| {}).run(look).await) {
            (50, Report::Produced { .. }) => {}
            (1_000, Report::Ended(Outcome::GivenUp { code, message, .. })) => {
                assert_eq!(code, "remote_failed");
                assert!(message.contains("too deep"), "{message}");
            }
            (depth, other) => panic!("{depth}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn state_in_the_words_of_the_other_version_counts() {
    for (version, state) in [
        ("1.0", json!("completed")),
        ("1.0", json!(3)),
        ("0.3", json!("TASK_STATE_COMPLETED")),
        ("0.3", json!(3)),
    ] {
        let agent = agent(version, move |_, _| {
            let mut task = task(version, "TASK_STATE_WORKING", "c");
            task["status"]["state"] = state.clone();
            rpc_reply(&task)
        })
        .await;
        let mut look = call();
        look.handle = Some(json!({ "peer": "planner", "taskId": "t", "since": 0 }));
        let report = executors(&agent, |_| {}).run(look).await;
        assert!(
            matches!(report, Report::Ended(Outcome::Done(_))),
            "{version}: {report:?}"
        );
    }
}

#[tokio::test]
async fn backpressure_is_a_failure_to_retry_when_the_agent_says() {
    for (status, body) in [
        (
            503,
            json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -32603, "message": "busy" } }),
        ),
        (429, json!({ "error": "too many" })),
    ] {
        let agent = agent("1.0", move |_, _| {
            with_header(
                reply(status, "application/json", body.to_string()),
                "retry-after",
                "7",
            )
        })
        .await;
        let report = executors(&agent, |_| {}).run(call()).await;
        let Report::Ended(Outcome::Failed {
            code,
            retryable,
            retry_after,
            ..
        }) = report
        else {
            panic!("{report:?}")
        };
        assert_eq!(
            (code.as_str(), retryable),
            ("external_call_failed", true),
            "{status}"
        );
        assert_eq!(retry_after, Some(Duration::from_secs(7)));
    }
}

#[tokio::test]
async fn failure_of_the_agents_server_is_tried_again_whatever_its_body_says() {
    for (status, code, is_tried_again) in [
        (500, -32603, true),
        (502, -32000, true),
        (500, -32602, false),
        (200, -32603, false),
    ] {
        let agent = agent("1.0", move |_, _| {
            let body = json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": code, "message": "oops" } });
            reply(status, "application/json", body.to_string())
        })
        .await;
        let report = executors(&agent, |_| {}).run(call()).await;
        let Report::Ended(Outcome::Failed {
            retryable, may_go_on, ..
        }) = report
        else {
            panic!("{report:?}")
        };
        assert_eq!(
            (retryable, may_go_on),
            (is_tried_again, is_tried_again),
            "{status} {code}"
        );
    }
}

fn recalling() -> Recalling {
    let call = call();
    Recalling {
        run: call.run,
        step: call.step,
        attempt: 0,
        number: 0,
        idempotency_key: call.idempotency_key,
        trace: None,
        request: call.request,
        blobs: call.blobs,
    }
}

fn found(recalled: &Recalled) -> &Value {
    match recalled {
        Recalled::Found(handle) => &handle["taskId"],
        other @ (Recalled::Nothing | Recalled::Over | Recalled::Unanswered(_) | Recalled::Unusable(_)) => {
            panic!("{other:?}")
        }
    }
}

#[tokio::test]
async fn recalled_task_is_looked_for_in_the_context_of_the_call_and_no_message_is_sent() {
    for has_task in [true, false] {
        let mut agent = agent("1.0", move |seen, method| {
            let context = &seen.json()["params"]["contextId"];
            match method {
                "ListTasks" => {
                    let task = task("1.0", "TASK_STATE_WORKING", context.as_str().unwrap());
                    let tasks = if has_task { vec![task] } else { Vec::new() };
                    let n = tasks.len();
                    rpc_reply(&json!({ "tasks": tasks, "nextPageToken": "", "pageSize": 20, "totalSize": n }))
                }
                "GetTask" => rpc_reply(&task("1.0", "TASK_STATE_WORKING", "c")),
                method => panic!("{method}"),
            }
        })
        .await;
        let recalled = executors(&agent, |_| {}).recall(recalling()).await.unwrap();
        match has_task {
            true => assert_eq!(found(&recalled), "t"),
            false => assert_eq!(recalled, Recalled::Nothing),
        }
        let wanted: &[&str] = if has_task {
            &["ListTasks", "GetTask"]
        } else {
            &["ListTasks"]
        };
        assert_eq!(methods(&mut agent), wanted);
    }
}

#[tokio::test]
async fn agent_that_lists_no_tasks_gets_the_message_of_a_recalled_call_again() {
    for version in ["1.0", "0.3"] {
        let mut agent = agent(version, move |_, method| match method {
            "ListTasks" => error(-32601),
            "SendMessage" | "message/send" => sent(version, &task(version, "TASK_STATE_WORKING", "c")),
            method => panic!("{method}"),
        })
        .await;
        let executors = executors(&agent, |_| {});
        let recalled = executors.recall(recalling()).await.unwrap();
        assert_eq!(found(&recalled), "t");
        let calls = agent.calls();
        let sent = calls.last().unwrap().json();
        assert_eq!(sent["params"]["message"]["messageId"], "wopr-key-1", "{sent:#}");
    }
}

#[tokio::test]
async fn task_that_has_ended_and_message_that_is_refused_leave_nothing_to_cancel() {
    for is_refused in [true, false] {
        let agent = agent("0.3", move |_, _| match is_refused {
            true => error(-32602),
            false => sent("0.3", &task("0.3", "TASK_STATE_COMPLETED", "c")),
        })
        .await;
        let recalled = executors(&agent, |_| {}).recall(recalling()).await;
        assert_eq!(recalled, Ok(Recalled::Over));
    }
}

#[tokio::test]
async fn message_alone_leaves_nothing_to_cancel() {
    let said = json!({
        "kind": "message", "messageId": "m", "role": "agent", "parts": [{ "kind": "text", "text": "done" }],
    });
    let agent = agent("0.3", move |_, _| rpc_reply(&said)).await;
    let recalled = executors(&agent, |_| {}).recall(recalling()).await;
    assert_eq!(recalled, Ok(Recalled::Over));
}

#[tokio::test]
async fn message_of_a_recall_is_repeated_only_if_no_answer_came() {
    let recalled_of = async |answer: fn() -> Reply| {
        let mut agent = agent("0.3", move |_, _| answer()).await;
        let recalled = executors(&agent, |_| {}).recall(recalling()).await;
        assert_eq!(agent.calls().len(), 1);
        recalled
    };
    for unusable in [
        || rpc_reply(&json!({})),
        || reply(200, "application/json", "nonsense"),
        || reply(418, "text/plain", "no"),
    ] {
        let recalled = recalled_of(unusable).await;
        assert!(matches!(recalled, Ok(Recalled::Unusable(_))), "{recalled:?}");
    }
    let recalled = recalled_of(|| reply(500, "text/plain", "no")).await;
    assert!(matches!(recalled, Ok(Recalled::Unanswered(_))), "{recalled:?}");
    for busy in [
        || reply(429, "text/plain", "no"),
        || reply(503, "text/plain", "no"),
    ] {
        let recalled = recalled_of(busy).await;
        assert!(recalled.is_err(), "{recalled:?}");
    }
}

#[tokio::test]
async fn agent_that_breaks_the_connection_or_fails_may_have_the_message() {
    for (status, may_have) in [(500, true), (502, true), (503, false), (403, false)] {
        let agent = agent("1.0", move |_, _| reply(status, "text/plain", "no".to_owned())).await;
        let report = executors(&agent, |_| {}).run(call()).await;
        let Report::Ended(Outcome::Failed { may_go_on, .. }) = report else {
            panic!("{report:?}")
        };
        assert_eq!(may_go_on, may_have, "{status}");
    }
}
