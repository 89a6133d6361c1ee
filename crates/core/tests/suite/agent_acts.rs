//! What agents do, by a scripted agent.

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use wopr_core::{Event, RunStatus};
use wopr_testkit::{Script, Workflow};

const MOCK: &str = "core.conformance.mock-agent";

fn scripted(config: Value) -> Workflow {
    Workflow::new("w").raw_node(json!({
        "id": "think", "typeId": MOCK, "name": "think", "config": config,
        "agent": { "agentId": "acme.reader", "modelClass": "reasoning" },
    }))
}

fn refused(workflow: &Workflow) -> String {
    workflow.compile().expect_err("refused").to_string()
}

fn check(config: Value, configurable: Value, expected: &Expect) {
    let script = Script::of(&[&scripted(config)]).start_configured(json!({}), configurable);
    expected.assert_eq(&format!("{}\n{}", script.log(0), script.status()));
}

#[test]
fn acts_come_in_the_order_of_reasoning_calls_handoff_and_decision() {
    check(
        json!({
            "mockReasoning": { "summary": "Look, then write.", "trace": "All of it.", "tokenCount": 24 },
            "mockToolCalls": [
                { "toolId": "x:echo", "arguments": { "x": 1 }, "result": { "x": 1 }, "durationMs": 1 },
                { "toolId": "x:shut", "error": { "error": "forbidden", "message": "no" } },
            ],
            "mockHandoff": { "toAgentId": "acme.writer", "reason": "it writes" },
            "mockDecision": { "decision": { "next": "done" }, "confidence": 0.7 },
        }),
        json!({}),
        &expect![[r#"
            0 run.started
            1 node.started think
            2 agent.reasoned think:0 acme.reader "Look, then write."
            3 agent.tool.called think:0 acme.reader think:0:0 x:echo {"x":1}
            4 agent.tool.returned think:0 acme.reader think:0:0 ok {"x":1}
            5 agent.tool.called think:0 acme.reader think:0:1 x:shut
            6 agent.tool.returned think:0 acme.reader think:0:1 forbidden forbidden
            7 agent.handed.off think:0 acme.reader to acme.writer it writes
            8 agent.decided think:0 acme.reader {"next":"done"} confidence 0.7
            9 node.completed think
            10 run.completed
            completed"#]],
    );
}

#[test]
fn full_verbosity_records_the_trace_and_off_records_nothing() {
    let config = || json!({ "mockReasoning": { "summary": "short", "trace": "long" } });
    check(
        config(),
        json!({ "reasoningVerbosity": "full" }),
        &expect![[r#"
            0 run.started
            1 node.started think
            2 agent.reasoned think:0 acme.reader "long"
            3 node.completed think
            4 run.completed
            completed"#]],
    );
    check(
        config(),
        json!({ "reasoningVerbosity": "off" }),
        &expect![[r#"
            0 run.started
            1 node.started think
            2 node.completed think
            3 run.completed
            completed"#]],
    );
}

#[test]
fn pieces_count_from_zero_and_the_closing_event_has_all_of_them() {
    check(
        json!({ "mockReasoning": { "summary": "s", "streamChunks": ["One. ", "", "Two."] } }),
        json!({}),
        &expect![[r#"
            0 run.started
            1 node.started think
            2 agent.reasoning.delta think:0 acme.reader 0 "One. "
            3 agent.reasoning.delta think:0 acme.reader 1 "Two."
            4 agent.reasoned think:0 acme.reader "One. Two."
            5 node.completed think
            6 run.completed
            completed"#]],
    );
}

#[test]
fn many_pieces_are_joined_and_a_long_reasoning_is_cut() {
    let pieces: Vec<_> = (0..400).map(|n| format!("{n:04}{}", "é".repeat(100))).collect();
    let whole = pieces.concat();
    let config = json!({ "mockReasoning": { "summary": "s", "streamChunks": pieces } });
    let script = Script::started(&scripted(config));
    let log = script.log(0);
    assert_eq!(log.matches("agent.reasoning.delta").count(), 256);
    let closing = script
        .events(0)
        .iter()
        .find_map(|recorded| match &recorded.event {
            Event::Dialect(wopr_core::DialectEvent::Openwop(wopr_core::openwop::Event::Agent(event))) => {
                match &event.act {
                    wopr_core::openwop::Act::Reasoned { reasoning, .. } => Some(reasoning.clone()),
                    _ => None,
                }
            }
            _ => None,
        });
    let closing = closing.expect("a closing event");
    assert!(whole.starts_with(&closing));
    assert!((65_530..=65_536).contains(&closing.len()), "{}", closing.len());
    assert_eq!(script.status(), RunStatus::Completed.as_str());
}

#[test]
fn low_confidence_holds_the_decision_until_it_is_ratified() {
    let config = || json!({ "mockDecision": { "decision": { "kind": "stub" }, "confidence": 0.5 } });
    let mut script = Script::started(&scripted(config()));
    assert_eq!(script.status(), "waiting-approval");
    for bad in [
        json!({}),
        json!(true),
        json!({ "ratified": false }),
        json!({ "ratified": true, "rejected": true }),
        json!({ "decision": null }),
        json!({ "approve": true }),
    ] {
        script.answer("think", bad).expect_err("no verdict");
    }
    script.answer("think", json!({ "ratified": true })).expect("open");
    expect![[r#"
        0 run.started
        1 node.started think
        2 agent.decided think:0 acme.reader {"kind":"stub"} confidence 0.5
        3 interrupt.requested think low-confidence
        4 node.suspended think low-confidence think:0 {"agentId":"acme.reader","observed":0.5,"reason":"low-confidence","threshold":0.7}
        5 interrupt.resolved think by ada
        6 node.resumed think think:0 {"ratified":true}
        7 node.completed think {"decision":{"kind":"stub"}}
        8 run.completed {"decision":{"kind":"stub"}}"#]].assert_eq(&script.log(0));

    let mut script = Script::started(&scripted(config()));
    script.news();
    // Only approvals have voters: elsewhere the member is data, which is kept.
    script
        .answer("think", json!({ "ratified": true, "voter": "zed" }))
        .expect("open");
    let news = script.news();
    assert!(
        news.contains(r#"node.resumed think think:0 {"ratified":true,"voter":"zed"}"#),
        "{news}"
    );

    let mut script = Script::started(&scripted(config()));
    script.news();
    script
        .answer("think", json!({ "decision": { "kind": "another" } }))
        .expect("open");
    expect![[r#"
        5 interrupt.resolved think by ada
        6 node.resumed think think:0 {"decision":{"kind":"another"}}
        7 node.completed think {"decision":{"kind":"another"}}
        8 run.completed {"decision":{"kind":"another"}}"#]]
    .assert_eq(&script.news());

    let mut script = Script::started(&scripted(config()));
    script.news();
    script.answer("think", json!({ "rejected": true })).expect("open");
    expect![[r#"
        5 interrupt.resolved think by ada
        6 node.failed think decision_rejected: the held decision was rejected
        7 run.failed decision_rejected: the held decision was rejected in think"#]]
    .assert_eq(&script.news());
}

#[test]
fn threshold_is_the_runs_and_equal_confidence_goes_on() {
    for (confidence, threshold, status) in [
        (0.5, json!({ "escalationThreshold": 0.5 }), "completed"),
        (0.5, json!({ "escalationThreshold": 0.51 }), "waiting-approval"),
        (0.7, json!({}), "completed"),
        (0.699, json!({}), "waiting-approval"),
        (0.0, json!({ "escalationThreshold": 0 }), "completed"),
    ] {
        let workflow = scripted(json!({ "mockConfidence": confidence }));
        let script = Script::of(&[&workflow]).start_configured(json!({}), threshold.clone());
        assert_eq!(script.status(), status, "{confidence} {threshold}");
    }
    let decided = scripted(json!({ "mockDecision": { "decision": 1 } }));
    assert_eq!(Script::started(&decided).status(), "completed");
    for bad in [
        json!({ "escalationThreshold": 1.1 }),
        json!({ "reasoningVerbosity": "loud" }),
    ] {
        let mut start = Script::start_run(json!({}));
        start.configurable = bad.as_object().cloned().expect("an object");
        Script::of(&[&decided]).try_start(start).expect_err("refused");
    }
}

#[test]
fn settings_are_closed() {
    for (config, rule) in [
        (json!({ "mockConfidence": 1.5 }), "is not within 0 to 1"),
        (
            json!({ "mockDecision": { "decision": 1, "confidence": -0.1 } }),
            "is not within 0 to 1",
        ),
        (json!({ "mockDecision": {} }), "missing field `decision`"),
        (json!({ "stray": 1 }), "config.stray is not known"),
        (
            json!({ "mockReasoning": { "summary": "s", "stray": 1 } }),
            "mockReasoning",
        ),
        (
            json!({ "mockToolCalls": [{ "toolId": "x" }] }),
            "neither result nor error",
        ),
        (
            json!({ "mockToolCalls": [{ "toolId": "x", "result": null, "error": { "error": "e", "message": "m" } }] }),
            "both result and error",
        ),
        (
            json!({ "mockHandoff": { "toAgentId": "ab" } }),
            "3 to 256 characters",
        ),
        (json!({ "agentId": "ab" }), "3 to 256 characters"),
    ] {
        let found = refused(&scripted(config.clone()));
        assert!(found.contains(rule), "{config}: {found}");
    }
}

#[test]
fn an_act_that_is_too_large_fails_its_node() {
    let config = json!({ "mockToolCalls": [{ "toolId": "x:y", "result": "z".repeat(300 * 1024) }] });
    let script = Script::started(&scripted(config));
    assert_eq!(script.status(), "failed");
    assert!(
        script.log(0).contains("agent_event_too_large"),
        "{}",
        script.log(0)
    );
}

/// The id is the settings', else the node's, else one that is made of the node's.
#[test]
fn agent_id_is_resolved_in_order() {
    let own = Script::started(&scripted(json!({ "agentId": "acme.own", "mockReasoning": true })));
    assert!(
        own.log(0).contains("agent.reasoned think:0 acme.own"),
        "{}",
        own.log(0)
    );
    let bare = Workflow::new("w").node("think", MOCK, json!({ "mockReasoning": true }));
    let bare = Script::started(&bare);
    assert!(bare.log(0).contains("host:mock-agent:think"), "{}", bare.log(0));
}

#[test]
fn passing_nodes_emit_nothing_and_name_their_agent() {
    let workflow = Workflow::new("w").raw_node(json!({
        "id": "echo", "typeId": "core.identity", "name": "echo", "config": {},
        "agent": { "agentId": "acme.echo", "modelClass": "chat" },
    }));
    let script = Script::started(&workflow);
    assert!(!script.log(0).contains("agent."), "{}", script.log(0));
    let agent = script.run(0).agent(script.plan(0)).expect("an agent");
    assert_eq!(
        serde_json::to_value(agent).expect("JSON"),
        json!({ "agentId": "acme.echo", "modelClass": "chat" })
    );
}
