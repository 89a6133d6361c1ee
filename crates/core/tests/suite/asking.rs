//! Supervisors that ask a person in turns (`askUserRouting: conversation`).

use expect_test::expect;
use serde_json::{Value, json};
use wopr_core::ForkMode;
use wopr_testkit::{Script, Workflow};

fn ask(prompt: &str) -> Value {
    json!({ "kind": "ask-user", "prompt": prompt })
}

/// A supervisor that decides so, one decision after the other, and asks in turns.
fn asking(plan: Value) -> Workflow {
    Workflow::new("w")
        .node(
            "lead",
            "core.orchestrator.supervisor",
            json!({ "mockDispatchPlan": plan, "agentId": "acme.lead" }),
        )
        .node(
            "dispatch",
            "core.dispatch",
            json!({ "askUserRouting": "conversation" }),
        )
        .edges("lead -> dispatch, dispatch -> lead")
        .set("channels", json!({ "conversation": { "reducer": "message" } }))
}

fn close(content: Value) -> Value {
    json!({ "operation": "close", "content": content })
}

/// The answers that the supervisor got, in their order.
fn answers(script: &Script, run: usize) -> Vec<Value> {
    let log = script.log(run);
    let completed = log
        .lines()
        .filter(|line| line.contains("node.completed dispatch"))
        .filter_map(|line| line.get(line.find('{')?..));
    let outputs = completed.filter_map(|outputs| serde_json::from_str::<Value>(outputs).ok());
    outputs
        .filter_map(|outputs| outputs.get("answer").cloned())
        .collect()
}

#[test]
fn a_question_is_a_conversation_of_several_turns() {
    let mut script = Script::started(&asking(json!([ask("Which color?")])));
    assert_eq!(script.status(), "waiting-approval");
    script
        .answer("dispatch", json!("What is there?"))
        .expect("a turn");
    script
        .answer(
            "dispatch",
            json!({ "content": "Red and blue.", "role": "agent", "messageId": "m-1" }),
        )
        .expect("a turn");
    assert_eq!(script.status(), "waiting-approval");
    script.answer("dispatch", close(json!("Blue."))).expect("the end");
    expect![[r#"
        0 run.started
        1 node.started lead
        2 agent.decided lead:0 acme.lead {"kind":"ask-user","prompt":"Which color?"}
        3 decided lead 1 by acme.lead {"kind":"ask-user","prompt":"Which color?"}
        4 node.completed lead {"decision":{"kind":"ask-user","prompt":"Which color?"},"iteration":1,"kind":"ask-user"}
        5 node.started dispatch
        6 conversation.opened dispatch:0 0 agent acme.lead "Which color?"
        7 channel.written conversation message {"content":"Which color?","from":"acme.lead","messageId":"dispatch:0:agent","role":"agent","ts":1000000,"turnIndex":0}
        8 interrupt.requested dispatch conversation.exchange
        9 node.suspended dispatch conversation.exchange dispatch:0 {"conversationId":"dispatch:0","reason":"conversation-input"}
        10 conversation.exchanged dispatch:0 1 user ada "What is there?"
        11 channel.written conversation message {"content":"What is there?","from":"ada","messageId":"dispatch:0:1","role":"user","ts":1000000,"turnIndex":1}
        12 conversation.exchanged dispatch:0 2 agent acme.lead "Red and blue."
        13 channel.written conversation message {"content":"Red and blue.","from":"acme.lead","messageId":"m-1","role":"agent","ts":1000000,"turnIndex":2}
        14 interrupt.resolved dispatch by ada
        15 node.resumed dispatch dispatch:0 {"content":"Blue.","operation":"close"}
        16 conversation.closed dispatch:0 3 user ada "Blue."
        17 channel.written conversation message {"content":"Blue.","from":"ada","messageId":"dispatch:0:3","role":"user","ts":1000000,"turnIndex":3}
        18 node.completed dispatch {"answer":"Blue.","conversationId":"dispatch:0","turnCount":4,"turns":[{"content":"Which color?","from":"acme.lead","messageId":"dispatch:0:agent","role":"agent","ts":1000000,"turnIndex":0},{"content":"What is there?","from":"ada","messageId":"dispatch:0:1","role":"user","ts":1000000,"turnIndex":1},{"content":"Red and blue.","from":"acme.lead","messageId":"m-1","role":"agent","ts":1000000,"turnIndex":2},{"content":"Blue.","from":"ada","messageId":"dispatch:0:3","role":"user","ts":1000000,"turnIndex":3}]}
        19 node.started lead#1
        20 agent.decided lead:1 acme.lead {"kind":"terminate","reason":"mockPlan-exhausted"}
        21 decided lead#1 2 by acme.lead {"kind":"terminate","reason":"mockPlan-exhausted"}
        22 node.completed lead#1 {"decision":{"kind":"terminate","reason":"mockPlan-exhausted"},"iteration":2,"kind":"terminate"}
        23 node.started dispatch#1
        24 node.completed dispatch#1 {"reason":"mockPlan-exhausted"}
        25 run.completed {"reason":"mockPlan-exhausted"}
        completed"#]].assert_eq(&format!("{}\n{}", script.log(0), script.status()));
}

#[test]
fn the_last_thing_that_a_person_said_is_the_answer() {
    for (turns, end, answer) in [
        (
            vec![json!("red"), json!({ "n": 1 })],
            close(Value::Null),
            json!({ "n": 1 }),
        ),
        (vec![json!("red")], close(json!("blue")), json!("blue")),
        (
            vec![json!("red"), json!({ "content": "Sure?", "role": "agent" })],
            json!({ "operation": "close", "reason": "enough" }),
            json!("red"),
        ),
        (Vec::new(), json!({ "operation": "close" }), Value::Null),
    ] {
        let mut script = Script::started(&asking(json!([ask("Which?")])));
        for turn in turns {
            script.answer("dispatch", turn).expect("a turn");
        }
        script.answer("dispatch", end).expect("the end");
        assert_eq!(answers(&script, 0), [answer]);
        assert_eq!(script.status(), "completed");
    }
}

#[test]
fn each_question_of_a_loop_is_a_conversation_of_its_own() {
    let mut script = Script::started(&asking(json!([ask("Which?"), ask("How many?")])));
    script.answer("dispatch", close(json!("blue"))).expect("the end");
    assert_eq!(script.status(), "waiting-approval");
    script.answer("dispatch", json!("Two.")).expect("a turn");
    script
        .answer("dispatch", close(json!("No, three.")))
        .expect("the end");
    assert_eq!(script.status(), "completed");
    assert_eq!(answers(&script, 0), [json!("blue"), json!("No, three.")]);
    // No two turns have the same id, so none is taken for a repetition.
    let said = script.variable("conversation");
    let contents: Vec<_> = said
        .as_array()
        .expect("a list")
        .iter()
        .map(|turn| turn["content"].as_str().expect("a text"))
        .collect();
    assert_eq!(contents, ["Which?", "blue", "How many?", "Two.", "No, three."]);
}

#[test]
fn an_approval_is_asked_for_as_ever() {
    let escalate = json!({ "kind": "escalate", "prompt": "Go on?" });
    let mut script = Script::started(&asking(json!([escalate])));
    script
        .answer("dispatch", json!({ "action": "accept" }))
        .expect("an approval");
    assert_eq!(script.status(), "completed");
    assert!(!script.log(0).contains("conversation."), "{}", script.log(0));
}

#[test]
fn turns_are_bounded_and_closing_is_possible_after_the_last() {
    let mut script = Script::started(&asking(json!([ask("Which?")])));
    for n in 0..50 {
        script.answer("dispatch", json!(n)).expect("a turn");
    }
    let refused = script.answer("dispatch", json!("more")).expect_err("too many");
    let rule = "the conversation has 50 turns, which is the most; it can be closed";
    assert!(refused.to_string().ends_with(rule), "{refused}");
    script
        .answer("dispatch", json!({ "operation": "close" }))
        .expect("the end");
    assert_eq!(answers(&script, 0), [json!(49)]);
}

/// A supervisor that keeps asking stops at `maxLoopIterations`, or at the limit of the run if there is none.
#[test]
fn questions_without_end_stop_at_a_cap() {
    for (cap, configurable, code) in [
        (json!(2), json!({}), "loop_limit_exceeded"),
        (
            Value::Null,
            json!({ "recursionLimit": 6 }),
            "recursion_limit_exceeded",
        ),
    ] {
        let lead = json!({ "decision": ask("Which?"), "maxLoopIterations": cap });
        let workflow = Workflow::new("w")
            .node("lead", "core.orchestrator.supervisor", lead)
            .node(
                "dispatch",
                "core.dispatch",
                json!({ "askUserRouting": "conversation" }),
            )
            .edges("lead -> dispatch, dispatch -> lead");
        let mut script = Script::of(&[&workflow]).start_configured(json!({}), configurable);
        for _ in 0..10 {
            if script.run(0).status.is_terminal() {
                break;
            }
            script.answer("dispatch", close(json!("so"))).expect("open");
        }
        let (failure, _) = script.run(0).error.clone().expect("failed");
        assert_eq!(failure.code, code, "{}", script.log(0));
        assert!(script.log(0).contains("cap.breached"), "{}", script.log(0));
    }
}

#[test]
fn a_replay_has_the_same_turns_and_a_branch_goes_on_asking() {
    let mut script = Script::started(&asking(json!([ask("Which?")])));
    script.answer("dispatch", json!("red")).expect("a turn");
    script.answer("dispatch", close(json!("blue"))).expect("the end");
    let replay = script.fork(0, ForkMode::Replay, 0).expect("a fork");
    assert_eq!(script.status_of(replay), "completed");
    assert_eq!(answers(&script, replay), [json!("blue")]);
    let first = script.log(0);
    let at = first
        .lines()
        .position(|line| line.contains("conversation.exchanged"));
    let branch = script
        .fork(0, ForkMode::Branch, at.expect("a turn") as u64 + 1)
        .expect("a fork");
    assert_eq!(script.status_of(branch), "waiting-approval");
    script
        .answer_in(branch, "dispatch", json!({ "operation": "close" }))
        .expect("the end");
    assert_eq!(answers(&script, branch), [json!("red")]);
}
