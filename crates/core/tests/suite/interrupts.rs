//! Opening and answering interrupts.

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use wopr_core::{Authority, Command, InterruptKind, Refusal, Resolve, StepId, Timer};
use wopr_testkit::{Script, Workflow};

const ALL: [&str; 5] = ["accept", "reject", "refine", "edit-accept", "ask"];

fn gate(config: Value) -> Script {
    Script::started(&Workflow::new("w").node("gate", "core.approvalGate", config))
}

/// Checks the log after the question.
fn after(mut script: Script, answer: Value, expected: &Expect) {
    script.news();
    script.answer("gate", answer).expect("open");
    expected.assert_eq(&format!("{}\n{}", script.news(), script.status()));
}

fn refused(script: &Script, answer: Value) -> String {
    let mut script = script.clone();
    let status = script.status();
    let refusal = script.answer("gate", answer).expect_err("wrong");
    assert_eq!(script.status(), status);
    refusal.to_string()
}

#[test]
fn gate_opens_with_all_fields_openwop_requires() {
    let script = gate(
        json!({ "title": "Publish?", "actions": ["approve", "edit", "edit-accept"], "description": "d" }),
    );
    let open = script.run(0).interrupt(script.plan(0)).expect("open");
    assert_eq!(
        (open.id().as_str(), open.kind()),
        ("gate:0", InterruptKind::Approval)
    );
    let wopr_core::Asked::Here(asked) = open.asked else {
        panic!("{open:?}")
    };
    assert_eq!(
        asked.data,
        json!({
            "artifactId": "gate", "artifactType": "approval", "title": "Publish?", "description": "d",
            "actions": ["accept", "edit-accept"],
        })
    );
    assert_eq!(
        script
            .run(0)
            .current_node(script.plan(0))
            .map(ToString::to_string)
            .as_deref(),
        Some("gate")
    );
}

#[test]
fn accept() {
    after(
        gate(json!({})),
        json!({ "action": "accept", "feedback": "fine" }),
        &expect![[r#"
            5 interrupt.resolved gate accept by ada
            6 approval.received gate accept by ada fine
            7 node.resumed gate gate:0 {"action":"accept","feedback":"fine"}
            8 node.completed gate {"action":"accept","approved":true,"decidedBy":"ada","feedback":"fine"}
            9 run.completed {"action":"accept","approved":true,"decidedBy":"ada","feedback":"fine"}
            completed"#]],
    );
}

#[test]
fn reject() {
    after(
        gate(json!({})),
        json!({ "action": "reject", "comment": "no" }),
        &expect![[r#"
            5 interrupt.resolved gate reject by ada
            6 approval.received gate reject by ada no
            7 node.failed gate approval_rejected: the approval was rejected: no
            8 run.failed approval_rejected: the approval was rejected: no in gate
            failed"#]],
    );
}

#[test]
fn refine() {
    let script = gate(json!({ "actions": ALL }));
    after(
        script,
        json!({ "action": "refine", "refineFeedback": { "scope": "whole", "text": "shorter" } }),
        &expect![[r#"
            5 interrupt.resolved gate refine by ada
            6 approval.received gate refine by ada {"scope":"whole","text":"shorter"}
            7 node.resumed gate gate:0 {"action":"refine","refineFeedback":{"scope":"whole","text":"shorter"}}
            8 node.completed gate {"action":"refine","approved":false,"decidedBy":"ada","refineFeedback":{"scope":"whole","text":"shorter"}}
            9 run.completed {"action":"refine","approved":false,"decidedBy":"ada","refineFeedback":{"scope":"whole","text":"shorter"}}
            completed"#]],
    );
}

#[test]
fn edit_accept() {
    let script = gate(json!({ "actions": ALL }));
    after(
        script,
        json!({ "action": "edit-accept", "editedArtifactData": { "t": 1 } }),
        &expect![[r#"
            5 interrupt.resolved gate edit-accept by ada
            6 approval.received gate edit-accept by ada {"t":1}
            7 node.resumed gate gate:0 {"action":"edit-accept","editedArtifactData":{"t":1}}
            8 node.completed gate {"action":"edit-accept","approved":true,"decidedBy":"ada","editedArtifactData":{"t":1}}
            9 run.completed {"action":"edit-accept","approved":true,"decidedBy":"ada","editedArtifactData":{"t":1}}
            completed"#]],
    );
}

#[test]
fn ask_keeps_the_gate_open() {
    let mut script = gate(json!({ "actions": ALL }));
    script.news();
    script
        .answer("gate", json!({ "action": "ask", "question": "why?" }))
        .expect("open");
    script
        .answer("gate", json!({ "action": "ask", "feedback": "how?" }))
        .expect("open");
    expect![[r#"
        5 variable.changed _askExchanges:gate+={"askedBy":"ada","question":"why?"}
        6 variable.changed _askExchanges:gate+={"askedBy":"ada","question":"how?"}"#]]
    .assert_eq(&script.news());
    assert_eq!(
        script.variable("_askExchanges:gate"),
        json!([{ "askedBy": "ada", "question": "why?" }, { "askedBy": "ada", "question": "how?" }])
    );
    script
        .answer("gate", json!({ "action": "accept" }))
        .expect("still open");
    assert_eq!(script.status(), "completed");
}

#[test]
fn questions_and_comments_are_limited_in_size() {
    let mut script = gate(json!({ "actions": ALL }));
    let ask = |question: String| json!({ "action": "ask", "question": question });
    let long = "x".repeat(64 * 1024);
    for answer in [
        ask(format!("{long}x")),
        json!({ "action": "reject", "reason": format!("{long}x") }),
        json!({ "action": "refine", "refineFeedback": format!("{long}x") }),
    ] {
        let refusal = refused(&script, answer);
        assert!(
            refusal.contains("65537 bytes, and 65536 is the most"),
            "{refusal}"
        );
    }
    for n in 0..100 {
        script
            .answer("gate", ask(format!("{n}{}", "x".repeat(1_000))))
            .expect("open");
    }
    // Each event contains only one question: as it was given, and as it is shown.
    let n_bytes = script
        .events(0)
        .iter()
        .map(|event| wopr_core::format::encode_event(event).len());
    assert!(n_bytes.sum::<usize>() < 300_000);
    let refusal = refused(&script, ask("one more".to_owned()));
    assert!(refusal.contains("100 questions were asked"), "{refusal}");
    script
        .answer("gate", json!({ "action": "accept", "feedback": long }))
        .expect("still open");
    assert_eq!(script.status(), "completed");
}

#[test]
fn questions_count_toward_the_size_of_the_run() {
    let mut workflow = Workflow::new("w").node("gate", "core.approvalGate", json!({ "actions": ALL }));
    for n in 0..21 {
        let value = json!({ "value": { "type": "variable", "variableName": "x" } });
        workflow = workflow
            .wired(
                &format!("n{n}"),
                "core.setVariable",
                json!({ "name": format!("v{n}") }),
                value,
            )
            .edges(&format!("n{n} -> gate"));
    }
    let mut script = Script::of(&[&workflow]).start(json!({ "x": "x".repeat(1_035_000) }));
    while script.status() == "running" {
        script.wait(0);
    }
    let question = "x".repeat(64 * 1024);
    let refusal = (0..100).find_map(|_| {
        let answer = json!({ "action": "ask", "question": question });
        script.answer("gate", answer).err()
    });
    let refusal = refusal.expect("no room for a hundred").to_string();
    assert!(refusal.contains("the run would hold"), "{refusal}");
}

#[test]
fn repeated_vote_records_nothing_and_changed_votes_are_limited() {
    let mut script = gate(json!({ "requiredApprovals": 3, "rejectionPolicy": "majority" }));
    let said = |script: &mut Script, action: &str, words: &str| {
        let mut resolve = Script::resolve("gate", json!({ "action": action, "feedback": words }));
        resolve.voter = Some("ada".to_owned());
        script.tell(0, Command::Resolve(resolve))
    };
    said(&mut script, "accept", "yes").expect("open");
    let n = script.events(0).len();
    said(&mut script, "accept", "yes").expect("the same again");
    assert_eq!(script.events(0).len(), n);
    said(&mut script, "accept", "yes, really").expect("other words");
    assert_eq!(script.events(0).len(), n + 1);
    let refusal = (0..100).find_map(|n| said(&mut script, "accept", &n.to_string()).err());
    let refusal = refusal.expect("bounded").to_string();
    assert!(refusal.contains("changed 20 times"), "{refusal}");
    assert_eq!(script.events(0).len(), n + 19);
    // Other approvers can still vote.
    for voter in ["bob", "eve"] {
        vote(&mut script, "accept", voter).expect("open");
    }
    assert_eq!(script.status(), "completed");
}

#[test]
fn legacy_answers() {
    let word = |script: &Script, answer: Value| {
        let mut script = script.clone();
        script.answer("gate", answer).expect("open");
        let log = script.log(0);
        let received = log.lines().find(|line| line.contains("approval.received"));
        received.expect("decided").to_owned()
    };
    let five = gate(json!({ "actions": ALL }));
    let two = gate(json!({}));
    let mut table = String::new();
    for (script, answer) in [
        (&two, json!({ "decision": "approved" })),
        (&two, json!({ "decision": "rejected" })),
        (&two, json!({ "decision": "rejected", "feedback": "longer" })),
        (&five, json!({ "decision": "rejected", "feedback": "longer" })),
        (&two, json!({ "approve": true })),
        (&two, json!({ "approve": false, "feedback": "longer" })),
        (
            &two,
            json!({ "action": "accept", "decision": "approved", "approve": true }),
        ),
    ] {
        table += &format!("{answer} => {}\n", word(script, answer.clone()));
    }
    expect![[r#"
        {"decision":"approved"} => 6 approval.received gate accept by ada
        {"decision":"rejected"} => 6 approval.received gate reject by ada
        {"decision":"rejected","feedback":"longer"} => 6 approval.received gate reject by ada longer
        {"decision":"rejected","feedback":"longer"} => 6 approval.received gate refine by ada longer {"scope":"whole","text":"longer"}
        {"approve":true} => 6 approval.received gate accept by ada
        {"approve":false,"feedback":"longer"} => 6 approval.received gate reject by ada longer
        {"action":"accept","approve":true,"decision":"approved"} => 6 approval.received gate accept by ada
    "#]].assert_eq(&table);
}

#[test]
fn invalid_answers_change_nothing() {
    let five = gate(json!({ "actions": ALL }));
    let two = gate(json!({}));
    let deep = (0..70).fold(json!(1), |inner, _| json!([inner]));
    let mut table = String::new();
    for (script, answer) in [
        (&two, json!("accept")),
        (&two, json!({})),
        (&two, json!({ "action": "maybe" })),
        (&two, json!({ "action": "timeout" })),
        (&two, json!({ "action": 1 })),
        (&two, json!({ "decision": "perhaps" })),
        (&two, json!({ "approve": "yes" })),
        (&two, json!({ "approve": "no", "action": "accept" })),
        (&two, json!({ "approve": false, "action": "accept" })),
        (&two, json!({ "approve": true, "action": "reject" })),
        (&two, json!({ "approve": true, "decision": "rejected" })),
        (
            &five,
            json!({ "decision": "approved", "action": "refine", "refineFeedback": "longer" }),
        ),
        (&five, json!({ "approve": false, "action": "ask" })),
        (
            &two,
            json!({ "action": "refine", "refineFeedback": { "scope": "whole" } }),
        ),
        (&five, json!({ "action": "ask" })),
        (&five, json!({ "action": "ask", "question": " " })),
        (&five, json!({ "action": "refine" })),
        (&five, json!({ "action": "refine", "refineFeedback": null })),
        (
            &five,
            json!({ "action": "refine", "refineFeedback": { "scope": "items", "itemIds": "x" } }),
        ),
        (
            &five,
            json!({ "action": "refine", "refineFeedback": { "scope": "items", "tags": [1] } }),
        ),
        (
            &five,
            json!({ "action": "refine", "refineFeedback": { "scope": "section", "sectionPath": 3 } }),
        ),
        (
            &five,
            json!({ "action": "refine", "refineFeedback": { "text": "x" } }),
        ),
        (
            &five,
            json!({ "action": "refine", "refineFeedback": { "scope": "part" } }),
        ),
        (
            &five,
            json!({ "action": "refine", "refineFeedback": { "scope": "whole", "more": 1 } }),
        ),
        (&five, json!({ "action": "edit-accept" })),
        (
            &five,
            json!({ "action": "edit-accept", "editedArtifactData": null }),
        ),
        (&two, json!({ "action": "accept", "feedback": 1 })),
    ] {
        table += &format!("{answer} => {}\n", refused(script, answer.clone()));
    }
    table += &refused(&two, json!({ "action": "accept", "more": deep }));
    expect![[r#"
        "accept" => accept the answer: the answer is not an object
        {} => accept the answer: 'action' is missing
        {"action":"maybe"} => accept the answer: action 'maybe' is not offered here; offered are accept, reject
        {"action":"timeout"} => accept the answer: action 'timeout' is not offered here; offered are accept, reject
        {"action":1} => accept the answer: 'action' is not a string
        {"decision":"perhaps"} => accept the answer: 'decision' is neither approved nor rejected
        {"approve":"yes"} => accept the answer: 'action' is missing
        {"action":"accept","approve":"no"} => accept the answer: 'approve' is neither true nor false
        {"action":"accept","approve":false} => accept the answer: 'approve' contradicts the action 'accept'
        {"action":"reject","approve":true} => accept the answer: 'approve' contradicts the action 'reject'
        {"approve":true,"decision":"rejected"} => accept the answer: 'approve' contradicts the action 'reject'
        {"action":"refine","decision":"approved","refineFeedback":"longer"} => accept the answer: 'decision' contradicts the action 'refine'
        {"action":"ask","approve":false} => accept the answer: 'approve' contradicts the action 'ask'
        {"action":"refine","refineFeedback":{"scope":"whole"}} => accept the answer: action 'refine' is not offered here; offered are accept, reject
        {"action":"ask"} => accept the answer: 'question' is missing
        {"action":"ask","question":" "} => accept the answer: 'question' is missing
        {"action":"refine"} => accept the answer: 'refineFeedback' is missing
        {"action":"refine","refineFeedback":null} => accept the answer: 'refineFeedback' is missing
        {"action":"refine","refineFeedback":{"itemIds":"x","scope":"items"}} => accept the answer: 'refineFeedback.itemIds' is not a list of texts
        {"action":"refine","refineFeedback":{"scope":"items","tags":[1]}} => accept the answer: 'refineFeedback.tags' is not a list of texts
        {"action":"refine","refineFeedback":{"scope":"section","sectionPath":3}} => accept the answer: 'refineFeedback.sectionPath' is not a text
        {"action":"refine","refineFeedback":{"text":"x"}} => accept the answer: 'refineFeedback.scope' is none of whole, section, items
        {"action":"refine","refineFeedback":{"scope":"part"}} => accept the answer: 'refineFeedback.scope' is none of whole, section, items
        {"action":"refine","refineFeedback":{"more":1,"scope":"whole"}} => accept the answer: 'refineFeedback.more' is not known
        {"action":"edit-accept"} => accept the answer: 'editedArtifactData' is missing
        {"action":"edit-accept","editedArtifactData":null} => accept the answer: 'editedArtifactData' is missing
        {"action":"accept","feedback":1} => accept the answer: 'feedback' is not a string
        accept the answer: it nests more than 64 levels deep"#]].assert_eq(&table);
}

fn vote(script: &mut Script, action: &str, voter: &str) -> Result<(), Refusal> {
    let mut answer = json!({ "action": action });
    if action == "refine" {
        answer["refineFeedback"] = json!("shorter");
    }
    let mut resolve = Script::resolve("gate", answer);
    resolve.voter = Some(voter.to_owned());
    script.tell(0, Command::Resolve(resolve))
}

fn votes(config: Value, votes: &str) -> String {
    let mut script = gate(config);
    for vote_by in votes.split(' ') {
        let (action, voter) = vote_by.split_once(':').expect("action:voter");
        if let Err(refusal) = vote(&mut script, action, voter) {
            return refusal.to_string();
        }
    }
    let by = script
        .log(0)
        .lines()
        .find(|line| line.contains("approval.received"))
        .map(ToOwned::to_owned);
    format!("{} {}", script.status(), by.unwrap_or_default())
}

#[test]
fn quorums() {
    let majority = || json!({ "requiredApprovals": 3, "rejectionPolicy": "majority" });
    let veto = || json!({ "requiredApprovals": 2 });
    let refine = || json!({ "requiredApprovals": 3, "actions": ["accept", "reject", "refine"] });
    let listed = || json!({ "requiredApprovals": 2, "approversList": ["a", "b"] });
    let mut table = String::new();
    for (name, config, given) in [
        ("majority", majority(), "accept:a accept:b"),
        ("majority", majority(), "accept:a accept:b accept:c"),
        ("majority", majority(), "accept:a accept:a accept:b"),
        ("majority", majority(), "reject:a"),
        ("majority", majority(), "reject:a reject:a"),
        ("majority", majority(), "reject:a reject:b"),
        ("majority", majority(), "reject:a accept:a accept:b accept:c"),
        ("majority", majority(), "accept:a accept:b reject:a accept:c"),
        (
            "majority",
            majority(),
            "accept:a accept:b reject:a accept:c accept:a",
        ),
        ("refine", refine(), "refine:a"),
        ("refine", refine(), "refine:a refine:a refine:a"),
        ("refine", refine(), "refine:a accept:b accept:c"),
        ("refine", refine(), "refine:a accept:b accept:c accept:a"),
        ("refine", refine(), "refine:a refine:b refine:c"),
        ("veto", veto(), "accept:a reject:b"),
        ("veto", veto(), "accept:a accept:b"),
        ("listed", listed(), "accept:c"),
        ("listed", listed(), "accept:a accept:b"),
    ] {
        table += &format!("{name} {given} => {}\n", votes(config, given));
    }
    expect![[r#"
        majority accept:a accept:b => waiting-approval 
        majority accept:a accept:b accept:c => completed 9 approval.received gate accept by quorum:3-of-3
        majority accept:a accept:a accept:b => waiting-approval 
        majority reject:a => waiting-approval 
        majority reject:a reject:a => waiting-approval 
        majority reject:a reject:b => failed 8 approval.received gate reject by quorum:2-of-3
        majority reject:a accept:a accept:b accept:c => completed 10 approval.received gate accept by quorum:3-of-3
        majority accept:a accept:b reject:a accept:c => waiting-approval 
        majority accept:a accept:b reject:a accept:c accept:a => completed 11 approval.received gate accept by quorum:3-of-3
        refine refine:a => waiting-approval 
        refine refine:a refine:a refine:a => waiting-approval 
        refine refine:a accept:b accept:c => waiting-approval 
        refine refine:a accept:b accept:c accept:a => completed 10 approval.received gate accept by quorum:3-of-3
        refine refine:a refine:b refine:c => completed 9 approval.received gate refine by quorum:3-of-3 {"scope":"whole","text":"shorter"}
        veto accept:a reject:b => failed 7 approval.received gate reject by b
        veto accept:a accept:b => completed 8 approval.received gate accept by quorum:2-of-2
        listed accept:c => accept the answer: the approver is not on this gate's list
        listed accept:a accept:b => completed 8 approval.received gate accept by quorum:2-of-2
    "#]].assert_eq(&table);
}

#[test]
fn vote_is_recorded_without_resolving() {
    let mut script = gate(json!({ "requiredApprovals": 2 }));
    script.news();
    vote(&mut script, "accept", "a").expect("open");
    expect!["5 approval.voted gate accept by a"].assert_eq(&script.news());
    assert_eq!(script.status(), "waiting-approval");
}

#[test]
fn token_alone_does_not_answer_a_gate_that_requires_a_credential() {
    let mut script = gate(json!({ "profile": "openwop-interrupt-auth-required" }));
    let mut resolve = Script::resolve("gate", json!({ "action": "accept" }));
    resolve.authority = Authority::Token { is_member: true };
    let refusal = script
        .tell(0, Command::Resolve(resolve.clone()))
        .expect_err("by token");
    assert_eq!(refusal, Refusal::NeedsCredential);
    resolve.authority = Authority::default();
    script
        .tell(0, Command::Resolve(resolve))
        .expect("with a credential");
    assert_eq!(script.status(), "completed");
}

#[test]
fn gate_that_times_out_counts_as_rejected() {
    let mut script = gate(json!({ "timeoutMs": 100, "onTimeout": "approve" }));
    assert_eq!(script.timers(0), "interrupt:0:gate in 100");
    script.news();
    script.wait(100);
    expect![[r#"
        5 interrupt.resolved gate timeout
        6 approval.received gate timeout
        7 node.failed gate approval_rejected: the approval timed out
        8 run.failed approval_rejected: the approval timed out in gate"#]]
    .assert_eq(&script.news());
}

#[test]
fn timely_answer_clears_the_timer() {
    let mut script = gate(json!({ "timeoutMs": 100 }));
    script.wait(99);
    script
        .answer("gate", json!({ "action": "accept" }))
        .expect("open");
    assert_eq!((script.status(), script.next_timer()), ("completed", None));
}

#[test]
fn routed_rejection_completes_the_run() {
    let workflow = Workflow::new("w")
        .gate("gate")
        .noops("on-accept on-reject")
        .edges("gate -> on-accept, gate -> on-reject any_failed");
    let mut script = Script::started(&workflow);
    script.news();
    script
        .answer("gate", json!({ "action": "reject" }))
        .expect("open");
    expect![[r#"
        5 interrupt.resolved gate reject by ada
        6 approval.received gate reject by ada
        7 node.failed gate approval_rejected: the approval was rejected
        8 node.skipped on-accept trigger-not-met
        9 node.started on-reject
        10 node.completed on-reject
        11 run.completed"#]]
    .assert_eq(&script.news());
}

fn asking(config: Value) -> Script {
    Script::started(&Workflow::new("w").node("gate", "core.interrupt", config))
}

#[test]
fn each_kind_of_interrupt_waits_in_its_own_way() {
    for (config, status) in [
        (
            json!({ "kind": "approval", "data": { "title": "t" } }),
            "waiting-approval",
        ),
        (
            json!({ "kind": "clarification", "data": { "questions": [{ "id": "q", "question": "?" }] } }),
            "waiting-input",
        ),
        (
            json!({ "kind": "external-event", "data": { "eventType": "e", "correlation": {} } }),
            "waiting-external",
        ),
        (
            json!({ "kind": "custom", "data": { "customKind": "x" } }),
            "waiting-input",
        ),
    ] {
        assert_eq!(asking(config).status(), status);
    }
}

fn order() -> Value {
    json!({
        "kind": "external-event", "timeoutMs": 60_000,
        "data": { "eventType": "paid", "correlation": { "order": "1", "status": "done" } },
    })
}

#[test]
fn external_event_matches_by_every_correlation_key() {
    let mut script = asking(order());
    for event in [
        json!({ "order": "2", "status": "done" }),
        json!({ "order": "1" }),
        json!("order"),
        json!({ "eventPayload": { "order": "1" }, "order": "1", "status": "done" }),
    ] {
        let refusal = script.answer("gate", event).expect_err("mismatch");
        assert!(matches!(refusal, Refusal::NoMatch(_)), "{refusal}");
        assert_eq!(script.status(), "waiting-external");
    }
    script.news();
    script
        .answer("gate", json!({ "order": "1", "status": "done", "more": [1] }))
        .expect("match");
    expect![[r#"
        4 interrupt.resolved gate by ada
        5 node.resumed gate gate:0 {"more":[1],"order":"1","status":"done"}
        6 node.completed gate {"event":{"more":[1],"order":"1","status":"done"},"resumeValue":{"more":[1],"order":"1","status":"done"}}
        7 run.completed {"event":{"more":[1],"order":"1","status":"done"},"resumeValue":{"more":[1],"order":"1","status":"done"}}"#]].assert_eq(&script.news());

    let mut wrapped = asking(order());
    wrapped
        .answer(
            "gate",
            json!({ "eventPayload": { "order": "1", "status": "done" } }),
        )
        .expect("match");
    assert_eq!(wrapped.status(), "completed");
}

#[test]
fn event_is_compared_by_the_worth_of_its_numbers() {
    let config = json!({
        "kind": "external-event",
        "data": { "eventType": "paid", "correlation": { "n": 5, "lines": [{ "price": 1.5, "units": 1.0 }] } },
    });
    let event = |n: Value, units: Value| json!({ "n": n, "lines": [{ "price": 1.5, "units": units }] });
    for other in [
        event(json!(6), json!(1)),
        event(json!("5"), json!(1)),
        event(json!(5), json!(1.5)),
    ] {
        let refusal = asking(config.clone()).answer("gate", other).expect_err("another");
        assert!(matches!(refusal, Refusal::NoMatch(_)), "{refusal}");
    }
    for same in [event(json!(5.0), json!(1)), event(json!(5), json!(1.0))] {
        let mut script = asking(config.clone());
        script.answer("gate", same).expect("equal");
        assert_eq!(script.status(), "completed");
    }
}

#[test]
fn redelivered_event_changes_nothing_and_is_not_refused() {
    let event = |id: &str| json!({ "order": "1", "status": "done", "eventId": id });
    let within = |id: &str| json!({ "eventPayload": { "order": "1", "status": "done", "eventId": id } });
    for wrapped in [event("e-1"), within("e-1")] {
        let mut script = asking(order());
        script.answer("gate", wrapped.clone()).expect("match");
        script.news();
        script.answer("gate", wrapped.clone()).expect("redelivered");
        script.answer("gate", event("e-1")).expect("redelivered");
        assert_eq!(script.news(), "");
        // Another event comes too late.
        assert_eq!(script.answer("gate", event("e-2")), Err(Refusal::AlreadyResolved));
        let without = json!({ "order": "1", "status": "done" });
        assert_eq!(script.answer("gate", without), Err(Refusal::AlreadyResolved));
    }
    // Only events are redelivered.
    let mut script = gate(json!({}));
    let accept = json!({ "action": "accept", "eventId": "e-1" });
    script.answer("gate", accept.clone()).expect("open");
    assert_eq!(script.answer("gate", accept), Err(Refusal::AlreadyResolved));
}

#[test]
fn resume_schema_holds_for_what_answers() {
    let schema = json!({ "type": "object", "required": ["amount"] });
    let with = |kind: &str, data: Value| json!({ "kind": kind, "data": data, "resumeSchema": schema });
    for config in [
        with("custom", json!({ "customKind": "form" })),
        with(
            "external-event",
            json!({ "eventType": "paid", "correlation": {} }),
        ),
    ] {
        let mut script = asking(config);
        let refusal = script.answer("gate", json!({ "n": 1 })).expect_err("no amount");
        assert!(
            matches!(&refusal, Refusal::InvalidAnswer(rule) if rule.contains("amount")),
            "{refusal}"
        );
        script.answer("gate", json!({ "amount": 1 })).expect("valid");
        assert_eq!(script.status(), "completed");
    }
}

#[test]
fn other_interrupts_fail_on_timeout() {
    for config in [
        order(),
        json!({ "kind": "custom", "timeoutMs": 5, "data": { "customKind": "x" } }),
        json!({ "kind": "clarification", "timeoutMs": 5, "data": { "questions": [{ "id": "q", "question": "?" }] } }),
    ] {
        let mut script = asking(config);
        script.wait(60_000);
        assert!(
            script.log(0).contains("run.failed interrupt_timeout"),
            "{}",
            script.log(0)
        );
    }
}

fn questions() -> Script {
    Script::started(&Workflow::new("w").node(
        "gate",
        "core.clarificationGate",
        json!({ "questions": [
            { "id": "q1", "question": "Color?" },
            { "id": "q2", "question": "How many?", "schema": { "type": "integer", "minimum": 1 } },
        ]}),
    ))
}

#[test]
fn clarification_answers() {
    for answers in [
        json!({ "q1": "blue", "q2": 2 }),
        json!([{ "id": "q1", "answer": "blue" }, { "id": "q2", "answer": 2 }]),
    ] {
        let mut script = questions();
        script
            .answer("gate", json!({ "answers": answers }))
            .expect("open");
        assert_eq!(
            script.run(0).outputs,
            json!({ "answers": { "q1": "blue", "q2": 2 } })
                .as_object()
                .cloned()
        );
    }
    let mut script = questions();
    script
        .answer("gate", json!({ "answers": { "q1": "blue", "q2": 2 } }))
        .expect("open");
    expect![[r#"
        0 run.started
        1 node.started gate
        2 interrupt.requested gate clarification
        3 clarification.requested gate
        4 node.suspended gate clarification gate:0
        5 interrupt.resolved gate by ada
        6 clarification.resolved gate {"q1":"blue","q2":2} by ada
        7 node.resumed gate gate:0 {"answers":{"q1":"blue","q2":2}}
        8 node.completed gate {"answers":{"q1":"blue","q2":2}}
        9 run.completed {"answers":{"q1":"blue","q2":2}}"#]]
    .assert_eq(&script.news());
}

#[test]
fn invalid_clarification_answers_change_nothing() {
    let script = questions();
    let mut table = String::new();
    for answer in [
        json!({}),
        json!({ "answers": "blue" }),
        json!({ "answers": { "q1": "blue" } }),
        json!({ "answers": { "q1": "blue", "q2": 0 } }),
        json!({ "answers": { "q1": "blue", "q2": "two" } }),
        json!({ "answers": { "q1": "blue", "q2": 2, "q3": 1 } }),
        json!({ "answers": [{ "id": "q1" }] }),
        json!({ "answers": [{ "id": "q1", "answer": "blue" }, { "id": "q2", "answer": 2 }, { "id": "q1", "answer": "red" }] }),
    ] {
        table += &format!("{answer} => {}\n", refused(&script, answer.clone()));
    }
    expect![[r#"
        {} => accept the answer: 'answers' is missing
        {"answers":"blue"} => accept the answer: 'answers' is missing
        {"answers":{"q1":"blue"}} => accept the answer: question 'q2' has no answer
        {"answers":{"q1":"blue","q2":0}} => accept the answer: the answer to 'q2' does not match its schema: 0 is less than the minimum of 1
        {"answers":{"q1":"blue","q2":"two"}} => accept the answer: the answer to 'q2' does not match its schema: "two" is not of type "integer"
        {"answers":{"q1":"blue","q2":2,"q3":1}} => accept the answer: there is no question 'q3'
        {"answers":[{"id":"q1"}]} => accept the answer: 'answers' holds something other than {id, answer}
        {"answers":[{"answer":"blue","id":"q1"},{"answer":2,"id":"q2"},{"answer":"red","id":"q1"}]} => accept the answer: question 'q1' is answered twice
    "#]].assert_eq(&table);
}

#[test]
fn late_answers_are_refused() {
    let accept = || json!({ "action": "accept" });
    let mut script = gate(json!({}));
    assert_eq!(script.answer("nowhere", accept()), Err(Refusal::NoInterrupt));
    script.answer("gate", accept()).expect("open");
    assert_eq!(script.answer("gate", accept()), Err(Refusal::AlreadyResolved));
    assert_eq!(script.answer("nowhere", accept()), Err(Refusal::NoInterrupt));

    let mut timed_out = gate(json!({ "timeoutMs": 5 }));
    timed_out.wait(5);
    assert_eq!(timed_out.answer("gate", accept()), Err(Refusal::AlreadyResolved));

    // The deadline has passed, but its timer has not fired yet.
    let mut late = gate(json!({ "timeoutMs": 5 }));
    late.skip(4);
    let mut in_time = late.clone();
    late.skip(1);
    assert_eq!(late.answer("gate", accept()), Err(Refusal::AlreadyResolved));
    assert_eq!(late.status(), "waiting-approval");
    late.wait(0);
    assert_eq!(late.status(), "failed");
    in_time.answer("gate", accept()).expect("in time");

    let mut cancelled = gate(json!({}));
    cancelled.cancel().expect("waiting");
    assert_eq!(
        cancelled.answer("gate", accept()),
        Err(Refusal::InterruptCancelled)
    );

    // Another node failed the run, which is no cancel.
    let two = Workflow::new("w").noops("start").gate("gate").gate("other");
    let mut failed = Script::started(&two.edges("start -> gate, start -> other"));
    failed
        .answer("other", json!({ "action": "reject" }))
        .expect("open");
    assert_eq!(failed.status(), "failed");
    assert_eq!(failed.answer("gate", accept()), Err(Refusal::AlreadyResolved));

    let mut not_a_gate = Script::started(&Workflow::new("w").noops("gate"));
    assert_eq!(not_a_gate.answer("gate", accept()), Err(Refusal::NoInterrupt));

    let mut not_yet = Script::started(&Workflow::new("w").delay("d", 5).gate("gate").edges("d -> gate"));
    assert_eq!(not_yet.answer("gate", accept()), Err(Refusal::NoInterrupt));

    let mut pending = Script::of(&[&Workflow::new("w").gate("gate")]);
    pending.add_pending();
    assert_eq!(pending.answer("gate", accept()), Err(Refusal::WrongState));
}

#[test]
fn first_of_cancel_and_answer_wins() {
    let mut cancel_first = gate(json!({}));
    cancel_first.cancel().expect("waiting");
    assert_eq!(
        cancel_first.answer("gate", json!({ "approve": true })),
        Err(Refusal::InterruptCancelled)
    );
    assert_eq!(cancel_first.status(), "cancelled");

    let mut answer_first = gate(json!({}));
    answer_first
        .answer("gate", json!({ "approve": true }))
        .expect("open");
    assert!(matches!(answer_first.cancel(), Err(Refusal::Terminal(_))));
    assert_eq!(answer_first.status(), "completed");
}

#[test]
fn two_open_gates_are_answered_in_any_order() {
    let workflow = Workflow::new("w")
        .gate("a")
        .gate("b")
        .noops("end")
        .edges("a -> end, b -> end");
    let mut script = Script::started(&workflow);
    let open: Vec<_> = script
        .run(0)
        .interrupts(script.plan(0))
        .map(|open| open.id())
        .collect();
    assert_eq!(open, ["a:0", "b:0"]);
    script.answer("b", json!({ "approve": true })).expect("open");
    assert_eq!(script.status(), "waiting-approval");
    script.answer("a", json!({ "approve": true })).expect("open");
    assert_eq!(script.status(), "completed");
}

#[test]
fn status_is_that_of_the_gate_opened_first() {
    let workflow = Workflow::new("w")
        .node(
            "ask",
            "core.clarificationGate",
            json!({ "questions": [{ "id": "q", "question": "?" }] }),
        )
        .gate("gate");
    let mut script = Script::started(&workflow);
    assert_eq!(script.status(), "waiting-input");
    script
        .answer("ask", json!({ "answers": { "q": 1 } }))
        .expect("open");
    assert_eq!(script.status(), "waiting-approval");
}

#[test]
fn timer_of_an_earlier_visit_is_dropped() {
    let workflow = Workflow::new("w")
        .node("gate", "core.approvalGate", json!({ "timeoutMs": 100 }))
        .noops("again")
        .edges("gate -> again any_failed, again -> gate");
    let mut script = Script::started(&workflow);
    script.answer("gate", json!({ "approve": false })).expect("open");
    let n_events = script.events(0).len();
    let gone = StepId {
        node: wopr_core::NodeId::parse("gate").expect("id"),
        ordinal: 0,
    };
    script.fire(Timer::Interrupt(gone)).expect("dropped");
    assert_eq!(
        (script.events(0).len(), script.timers(0).as_str()),
        (n_events, "interrupt:1:gate in 100")
    );
}

#[test]
fn callers_cannot_set_who_decided() {
    let mut script = gate(json!({}));
    script.news();
    script
        .answer(
            "gate",
            json!({ "action": "accept", "decidedBy": "eve", "decidedAt": "1999", "voter": "ada" }),
        )
        .expect("open");
    let news = script.news();
    assert!(!news.contains("eve") && !news.contains("1999"), "{news}");
    assert!(!news.contains("\"voter\""), "{news}");
}

/// Only the command says for whom a vote counts. An answer that names somebody else is refused.
#[test]
fn an_approval_that_names_another_voter_is_refused() {
    let open = gate(json!({}));
    let named = |voter: Value| json!({ "action": "accept", "voter": voter });
    assert_eq!(
        refused(&open, named(json!("eve"))),
        "accept the answer: the answer names a voter for whom the caller may not vote"
    );
    assert_eq!(
        refused(&open, named(json!(5))),
        "accept the answer: 'voter' is not a string"
    );
    let mut by_token = Script::resolve("gate", named(json!("eve")));
    by_token.authority = Authority::Token { is_member: false };
    by_token.voter = Some("bob".to_owned());
    let told = |resolve: &Resolve| open.clone().tell(0, Command::Resolve(resolve.clone()));
    assert_eq!(
        told(&by_token).unwrap_err().to_string(),
        "accept the answer: a token votes as its holder, and the answer names another voter"
    );
    by_token.value = named(json!("bob"));
    told(&by_token).expect("the holder");
    let mut for_other = Script::resolve("gate", named(json!("eve")));
    for_other.voter = Some("eve".to_owned());
    told(&for_other).expect("the voter");
}

#[test]
fn refinement_may_be_plain_text() {
    let script = gate(json!({ "actions": ALL }));
    let mut plain = script.clone();
    plain
        .answer("gate", json!({ "action": "refine", "refineFeedback": "shorter" }))
        .expect("open");
    assert_eq!(
        plain.variable("gate")["refineFeedback"],
        json!({ "scope": "whole", "text": "shorter" })
    );
    assert!(
        refused(&script, json!({ "action": "refine", "refineFeedback": ["x"] }))
            .contains("refineFeedback must be an object {scope: whole|section|items, text…} or a text")
    );
}

#[test]
fn rejection_reason_is_passed_to_later_nodes() {
    let workflow = Workflow::new("w")
        .node("gate", "core.approvalGate", json!({}))
        .node(
            "tell",
            "core.template",
            json!({ "template": "{{ nodes.gate.error.code }}: {{ nodes.gate.error.feedback }}" }),
        )
        .edges("gate -> tell any_failed");
    let mut script = Script::started(&workflow);
    script
        .answer("gate", json!({ "action": "reject", "feedback": "too long" }))
        .expect("open");
    assert_eq!(
        script.variable("tell"),
        json!({ "text": "approval_rejected: too long" })
    );
}
