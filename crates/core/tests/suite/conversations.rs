//! Conversations at gates: turns, the end of them, and what they leave behind.

use expect_test::expect;
use serde_json::{Value, json};
use wopr_core::NodeTypes;
use wopr_testkit::{Script, Workflow};

fn talk(config: Value) -> Workflow {
    Workflow::new("w")
        .raw_node(json!({
            "id": "talk", "typeId": "core.conversationGate", "name": "talk", "config": config,
            "agent": { "agentId": "acme.host" },
        }))
        .set("channels", json!({ "conversation": { "reducer": "message" } }))
}

#[test]
fn a_turn_leaves_the_gate_open_and_closing_completes_it() {
    let mut script = Script::started(&talk(json!({ "title": "Plan", "prompt": "What shall we do?" })));
    assert_eq!(script.status(), "waiting-approval");
    script.answer("talk", json!("Tea.")).expect("a turn");
    script
        .answer(
            "talk",
            json!({ "operation": "exchange", "content": { "n": 1 }, "messageId": "m-1", "role": "agent" }),
        )
        .expect("a turn");
    assert_eq!(script.status(), "waiting-approval");
    script
        .answer(
            "talk",
            json!({ "operation": "close", "content": "Bye.", "outcome": { "drink": "tea" } }),
        )
        .expect("the end");
    expect![[r#"
        0 run.started
        1 node.started talk
        2 conversation.opened talk:0 0 system acme.host "What shall we do?"
        3 channel.written conversation message {"content":"What shall we do?","from":"acme.host","messageId":"talk:0:system","role":"system","ts":1000000,"turnIndex":0}
        4 interrupt.requested talk conversation.exchange
        5 node.suspended talk conversation.exchange talk:0 {"conversationId":"talk:0","reason":"conversation-input"}
        6 conversation.exchanged talk:0 1 user ada "Tea."
        7 channel.written conversation message {"content":"Tea.","from":"ada","messageId":"talk:0:1","role":"user","ts":1000000,"turnIndex":1}
        8 conversation.exchanged talk:0 2 agent acme.host {"n":1}
        9 channel.written conversation message {"content":{"n":1},"from":"acme.host","messageId":"m-1","role":"agent","ts":1000000,"turnIndex":2}
        10 interrupt.resolved talk by ada
        11 node.resumed talk talk:0 {"content":"Bye.","operation":"close","outcome":{"drink":"tea"}}
        12 conversation.closed talk:0 3 user ada "Bye." {"drink":"tea"}
        13 channel.written conversation message {"content":"Bye.","from":"ada","messageId":"talk:0:3","role":"user","ts":1000000,"turnIndex":3}
        14 node.completed talk {"conversationId":"talk:0","outcome":{"drink":"tea"},"turnCount":4,"turns":[{"content":"What shall we do?","from":"acme.host","messageId":"talk:0:system","role":"system","ts":1000000,"turnIndex":0},{"content":"Tea.","from":"ada","messageId":"talk:0:1","role":"user","ts":1000000,"turnIndex":1},{"content":{"n":1},"from":"acme.host","messageId":"m-1","role":"agent","ts":1000000,"turnIndex":2},{"content":"Bye.","from":"ada","messageId":"talk:0:3","role":"user","ts":1000000,"turnIndex":3}]}
        15 run.completed {"conversationId":"talk:0","outcome":{"drink":"tea"},"turnCount":4,"turns":[{"content":"What shall we do?","from":"acme.host","messageId":"talk:0:system","role":"system","ts":1000000,"turnIndex":0},{"content":"Tea.","from":"ada","messageId":"talk:0:1","role":"user","ts":1000000,"turnIndex":1},{"content":{"n":1},"from":"acme.host","messageId":"m-1","role":"agent","ts":1000000,"turnIndex":2},{"content":"Bye.","from":"ada","messageId":"talk:0:3","role":"user","ts":1000000,"turnIndex":3}]}
        completed"#]].assert_eq(&format!("{}\n{}", script.log(0), script.status()));
}

#[test]
fn a_repeated_message_is_one_turn() {
    let mut script = Script::started(&talk(json!({})));
    let turn = || json!({ "content": "Tea.", "messageId": "m-1" });
    script.answer("talk", turn()).expect("a turn");
    script.news();
    script.answer("talk", turn()).expect("the same turn");
    assert_eq!(script.news(), "");
    let channel = script.variable("conversation");
    assert_eq!(channel.as_array().expect("a list").len(), 2);
}

#[test]
fn a_message_cannot_take_the_id_of_a_later_turn() {
    let mut script = Script::started(&talk(json!({})));
    let turn = |id: &str| json!({ "content": "Tea.", "messageId": id });
    let refused = script
        .answer("talk", turn("talk:0:2"))
        .expect_err("an id of the host");
    assert!(refused.to_string().contains("'messageId'"), "{refused}");
    for id in ["other:0:2", "talk:x:2", "talk:0"] {
        script.answer("talk", turn(id)).expect("a turn");
    }
    script.answer("talk", json!("Milk.")).expect("a turn");
    // One that the conversation has is the same turn, also if the host named it.
    script.answer("talk", turn("talk:0:4")).expect("the same turn");
    let channel = script.variable("conversation");
    assert_eq!(channel.as_array().expect("a list").len(), 5);
}

#[test]
fn what_is_no_turn_is_refused_and_changes_nothing() {
    let schema = json!({ "type": "object", "required": ["drink"] });
    let mut script = Script::started(&talk(json!({ "maxTurns": 1, "outcomeSchema": schema })));
    for bad in [
        Value::Null,
        json!({ "operation": "maybe" }),
        json!({ "operation": "exchange" }),
        json!({ "content": "x", "role": "system" }),
        json!({ "content": "x", "messageId": "" }),
        json!({ "content": "x", "stray": 1 }),
        json!({ "content": "x", "outcome": {} }),
        json!({ "content": "z".repeat(65 * 1024) }),
        json!({ "operation": "close" }),
        json!({ "operation": "close", "outcome": { "food": "cake" } }),
    ] {
        let before = script.log(0);
        script.answer("talk", bad.clone()).expect_err("no turn");
        assert_eq!(script.log(0), before, "{bad}");
    }
    script.answer("talk", json!("one")).expect("a turn");
    script.answer("talk", json!("two")).expect_err("too many");
    script
        .answer(
            "talk",
            json!({ "operation": "close", "outcome": { "drink": "tea" } }),
        )
        .expect("the end");
    assert_eq!(script.status(), "completed");
    script.answer("talk", json!("three")).expect_err("over");
}

#[test]
fn a_conversation_ends_when_its_time_is_up() {
    let mut script = Script::started(&talk(json!({ "timeoutMs": 1_000 })));
    script.answer("talk", json!("Tea.")).expect("a turn");
    script.news();
    script.wait(1_000);
    expect![[r#"
        8 interrupt.resolved talk
        9 conversation.closed talk:0 2 system acme.host "Nobody answered in time." timeout
        10 channel.written conversation message {"content":"Nobody answered in time.","from":"acme.host","messageId":"talk:0:2","role":"system","ts":1001000,"turnIndex":2}
        11 node.failed talk interrupt_timeout: nobody answered in time
        12 run.failed interrupt_timeout: nobody answered in time in talk
        failed"#]].assert_eq(&format!("{}\n{}", script.news(), script.status()));
}

#[test]
fn a_scripted_conversation_is_the_same_each_time() {
    let config = || json!({ "lifecycle": "open-exchange-close", "mockAutoResume": true, "turnCount": 2 });
    let (mut one, mut other) = (Script::started(&talk(config())), Script::started(&talk(config())));
    assert_eq!(one.status(), "completed");
    assert_eq!(one.variable("conversation"), other.variable("conversation"));
    assert_eq!(one.news(), other.news());
    let turns = one.variable("conversation");
    let indexes: Vec<_> = turns
        .as_array()
        .expect("a list")
        .iter()
        .map(|turn| turn["turnIndex"].clone())
        .collect();
    assert_eq!(indexes, [0, 1, 2, 3, 4, 5]);
}

/// Only the suite plays both sides.
#[test]
fn a_script_needs_conformance_mode() {
    let document = talk(json!({ "mockAutoResume": true })).document();
    let admitted = wopr_core::Plan::admit(document, NodeTypes { conformance: false });
    assert!(
        admitted
            .expect_err("refused")
            .to_string()
            .contains("conformance mode")
    );
}

#[test]
fn a_message_that_is_written_twice_is_in_its_channel_once() {
    let workflow = Workflow::new("w")
        .node("emit", "core.identity", json!({ "emitDuplicateMessageId": true }))
        .set("channels", json!({ "messages": { "reducer": "message" } }));
    let script = Script::started(&workflow);
    let messages = script.variable("messages");
    let ids: Vec<_> = messages
        .as_array()
        .expect("a list")
        .iter()
        .map(|message| message["messageId"].clone())
        .collect();
    assert_eq!(ids, ["emit:msg-1", "emit:msg-2"]);
    assert_eq!(script.log(0).matches("channel.written").count(), 3);
}
