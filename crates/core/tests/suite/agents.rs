//! Nodes that call other agents: what they ask for, and what is refused.

use std::sync::Arc;

use serde_json::{Value, json};
use wopr_core::{
    AgentCall, AgentVerb, Call, Command, Failure, InterruptKind, NodeId, NodeTypes, Plan, RemoteQuestion,
    StepId,
};
use wopr_testkit::{Script, Workflow};

const PACK: &str = "core.openwop.a2a";

fn workflow(type_id: &str, config: Value, inputs: Value) -> Workflow {
    Workflow::new("w")
        .variable("given", "number", json!({ "defaultValue": 7 }))
        .wired("n", type_id, config, inputs)
}

fn call(type_id: &str, config: Value, inputs: Value) -> AgentCall {
    let script = Script::started(&workflow(type_id, config, inputs));
    match script.effects().first().map(|effect| &effect.call) {
        Some(Call::Agent(call)) => (**call).clone(),
        other => panic!("{type_id}: {other:?}\n{}", script.log(0)),
    }
}

fn value(value: Value) -> Value {
    json!({ "type": "static", "value": value })
}

fn problems(type_id: &str, config: Value) -> String {
    let document = workflow(type_id, config, json!({})).document();
    let problems = Plan::admit(document, NodeTypes::default());
    problems.expect_err("refused").to_string()
}

#[test]
fn pack_nodes_ask_an_agent_for_what_their_type_says() {
    let at = json!({ "baseUrl": "https://planner.example.com" });
    let discover = call(&format!("{PACK}.discover-agent"), at, json!({}));
    assert_eq!(discover.verb, AgentVerb::Discover);
    assert_eq!(discover.peer, "https://planner.example.com");
    assert_eq!((discover.text, discover.data), (None, None));

    let get = call(
        &format!("{PACK}.get-task"),
        json!({ "taskId": "t-{{ given }}" }),
        json!({}),
    );
    let task = "t-7".to_owned();
    assert_eq!(get.verb, AgentVerb::GetTask { task });
    assert_eq!(get.peer, "default");

    let cancel = call(
        &format!("{PACK}.cancel-task"),
        json!({ "taskId": "t-{{ given }}", "peer": "p" }),
        json!({ "taskId": value(json!("{{ given }}")) }),
    );
    // A port may carry anybody's text, so it is no template.
    let task = "{{ given }}".to_owned();
    assert_eq!(cancel.verb, AgentVerb::CancelTask { task });
    assert_eq!(cancel.peer, "p");

    let send = call(
        &format!("{PACK}.send-message"),
        json!({ "message": "n={{ given }}", "skill": "s", "protocolVersion": "0.3", "binding": "rest" }),
        json!({ "taskId": value(json!("t")), "contextId": value(json!("c")) }),
    );
    let task = Some("t".to_owned());
    assert_eq!(send.verb, AgentVerb::Send { task });
    assert_eq!(send.text.as_deref(), Some("n=7"));
    assert_eq!(send.context.as_deref(), Some("c"));
    assert_eq!(
        (send.version.as_deref(), send.binding.as_deref()),
        (Some("0.3"), Some("rest"))
    );

    let converse = call(&format!("{PACK}.multi-turn-coordinator"), json!({}), json!({}));
    assert_eq!(
        converse.verb,
        AgentVerb::Invoke {
            task: None,
            max_questions: Some(16)
        }
    );
    let invoke = call("core.a2a.invoke", json!({}), json!({}));
    assert_eq!(invoke.verb, AgentVerb::INVOKE);
}

#[test]
fn task_is_named_or_the_node_fails() {
    let type_id = format!("{PACK}.get-task");
    for (inputs, failure) in [
        (
            json!({ "taskId": value(json!("")) }),
            "invalid_input: there is no taskId",
        ),
        (
            json!({ "taskId": value(json!(1)) }),
            "invalid_input: taskId is not a string",
        ),
        (
            json!({ "taskId": value(json!("t".repeat(3_000))) }),
            "invalid_input: taskId is too long",
        ),
    ] {
        let script = Script::started(&workflow(&type_id, json!({}), inputs));
        assert!(script.log(0).contains(failure), "{}", script.log(0));
        assert!(script.effects().is_empty());
    }
    let rule = "config.taskId is missing, and so is an input taskId";
    assert!(problems(&type_id, json!({})).contains(rule));
}

#[test]
fn an_address_is_no_place_for_a_credential() {
    let type_id = format!("{PACK}.send-message");
    for address in [
        "https://user:secret@planner.example.com",
        "https://planner.example.com?token=secret",
        "https://planner.example.com#secret",
    ] {
        let told = problems(&type_id, json!({ "baseUrl": address }));
        assert!(
            told.contains("the operator configures how a peer is called"),
            "{told}"
        );
        assert!(!told.contains("secret"), "{told}");
    }
    for address in ["planner.example.com", "ftp://planner.example.com", "https://"] {
        let told = problems(&type_id, json!({ "baseUrl": address }));
        assert!(
            told.contains("config.baseUrl is not an http or https address"),
            "{told}"
        );
    }
    let both = json!({ "baseUrl": "https://a.example", "peer": "a" });
    assert!(problems(&type_id, both).contains("config has both peer and baseUrl"));
    let token = problems(&type_id, json!({ "token": "secret" }));
    assert!(token.contains("token"), "{token}");
}

#[test]
fn other_nodes_of_the_pack_are_refused_by_name() {
    for name in [
        "send-and-stream",
        "list-tasks",
        "resubscribe",
        "push-config-create",
        "push-config-get",
        "push-config-list",
        "push-config-delete",
        "server-trigger",
        "agent-card-publish",
        "emit-status",
        "emit-artifact",
        "push-send",
    ] {
        let told = problems(&format!("{PACK}.{name}"), json!({}));
        let rule = format!("typeId '{PACK}.{name}' is not offered by this host");
        assert!(told.contains(&rule), "{told}");
        assert!(
            told.contains("discover-agent, send-message, get-task, cancel-task, multi-turn-coordinator"),
            "{told}"
        );
    }
}

fn ask(script: &mut Script, node: &str, key: &str) {
    let command = Command::Interrupted {
        step: StepId {
            node: NodeId::parse(node).expect("valid"),
            ordinal: 0,
        },
        attempt: 0,
        handle: json!({ "task": "t", "asks": key }),
        question: RemoteQuestion {
            key: key.to_owned(),
            kind: InterruptKind::Clarification,
            data: json!({ "message": key, "contentTrust": "untrusted" }),
        },
        check_at: None,
    };
    script.tell(0, command).expect("waits");
}

#[test]
fn conversation_ends_when_the_agent_asks_too_much() {
    let type_id = format!("{PACK}.multi-turn-coordinator");
    let mut script = Script::started(&workflow(&type_id, json!({ "maxTurns": 2 }), json!({})));
    for key in ["first", "second"] {
        ask(&mut script, "n", key);
        // Looked at again, it is the same question.
        ask(&mut script, "n", key);
        assert_eq!(script.status(), "waiting-input", "{}", script.log(0));
        script.answer("n", json!({ "text": "so" })).expect("open");
    }
    ask(&mut script, "n", "third");
    assert_eq!(script.status(), "failed");
    let log = script.log(0);
    assert!(
        log.contains("too_many_questions: the agent asked more than 2 questions"),
        "{log}"
    );
    for n in [0, 17] {
        let told = problems(&type_id, json!({ "maxTurns": n }));
        assert!(told.contains("maxTurns"), "{told}");
    }
}

#[test]
fn calls_of_another_language_ask_and_are_marked() {
    let list = json!({ "id": "list", "templates": [{ "call": { "for": "the list" } }, "{call}"] });
    let list = Arc::new(Plan::admit(list, NodeTypes::default()).expect("valid"));
    let started = || Script::of_plans([Arc::clone(&list)]).start(json!({}));
    let mut script = started();
    assert!(matches!(script.effects()[0].call, Call::SideEffect { .. }));
    ask(&mut script, "step-0", "first");
    assert_eq!(script.status(), "waiting-input");
    assert!(
        script.events(0).iter().any(|recorded| recorded.is_untrusted),
        "{}",
        script.log(0)
    );
    script.answer("step-0", json!({ "text": "so" })).expect("open");
    script.outcome("step-0", Ok(json!({ "call": 7 }))).expect("waits");
    assert_eq!(script.status(), "completed", "{}", script.log(0));

    let mut script = started();
    let failure = Failure::new("external_call_failed", "nobody is there");
    script.outcome("step-0", Err(failure)).expect("waits");
    assert_eq!(script.status(), "failed");
}
