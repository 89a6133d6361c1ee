//! Calls that a peer has accepted: given up by this host, asked about again, and never repeated by a fold.

use expect_test::expect;
use serde_json::{Value, json};
use wopr_core::{
    Command, Failure, InterruptKind, NodeId, Produced, Refusal, RemoteQuestion, Run, StepId, format,
};
use wopr_testkit::{Script, Workflow};

fn calling() -> Script {
    let workflow = Workflow::new("w")
        .wired("n", "core.a2a.invoke", json!({ "message": "hi" }), json!({}))
        .set("settings", json!({ "maxRetries": 3, "retryDelayMs": 10 }));
    Script::started(&workflow)
}

fn step() -> StepId {
    StepId {
        node: NodeId::parse("n").expect("valid"),
        ordinal: 0,
    }
}

fn accept(script: &mut Script, handle: Value) -> Result<(), Refusal> {
    let command = Command::Accepted {
        step: step(),
        attempt: 0,
        handle,
        check_at: None,
    };
    script.tell(0, command)
}

fn ask(script: &mut Script, key: &str) -> Result<(), Refusal> {
    let command = Command::Interrupted {
        step: step(),
        attempt: 0,
        handle: json!({ "task": "t", "asks": key }),
        question: RemoteQuestion {
            key: key.to_owned(),
            kind: InterruptKind::Clarification,
            data: json!({ "message": "Which colour?" }),
        },
        check_at: None,
    };
    script.tell(0, command)
}

fn give_up(script: &mut Script, handle: Option<Value>) -> Result<(), Refusal> {
    let command = Command::EffectGivenUp {
        step: step(),
        attempt: 0,
        handle,
        failure: Failure {
            retryable: true,
            ..Failure::new("internal_error", "broke off")
        },
    };
    script.tell(0, command)
}

fn handles(script: &Script) -> Vec<Value> {
    script
        .cancelled()
        .iter()
        .map(|call| call.handle.clone())
        .collect()
}

#[test]
fn call_that_this_host_gives_up_is_cancelled_at_its_peer_and_not_repeated() {
    let mut script = calling();
    accept(&mut script, json!("task")).expect("waits");
    give_up(&mut script, None).expect("waits");
    expect![[r#"
        0 run.started
        1 node.started n
        2 effect.scheduled n agent
        3 effect.accepted n "task"
        4 node.failed n internal_error: broke off
        5 run.failed internal_error: broke off in n"#]]
    .assert_eq(&script.news());
    assert_eq!(handles(&script), [json!("task")]);
    assert_eq!(give_up(&mut script, None), Err(Refusal::Stale));

    // Given up with the first answer of the peer, which is not in the log.
    let mut script = calling();
    give_up(&mut script, Some(json!("first"))).expect("waits");
    assert_eq!(handles(&script), [json!("first")]);

    // Nobody has accepted it.
    let mut script = calling();
    give_up(&mut script, None).expect("waits");
    assert_eq!(handles(&script), [Value::Null; 0]);
}

#[test]
fn peer_whose_first_answer_is_not_taken_is_told_to_stop() {
    let mut deep = json!(1);
    for _ in 0..100 {
        deep = json!([deep]);
    }
    let mut script = calling();
    let accepted = Command::Accepted {
        step: step(),
        attempt: 0,
        handle: json!("task"),
        check_at: None,
    };
    let produced = Command::Produced {
        step: step(),
        attempt: 0,
        produced: vec![Produced::Artifact {
            name: None,
            content: deep.clone(),
        }],
        then: Box::new(accepted),
    };
    script.tell(0, produced).expect("waits");
    assert_eq!(
        (script.status(), handles(&script)),
        ("failed", vec![json!("task")])
    );

    let mut script = calling();
    let asked = Command::Interrupted {
        step: step(),
        attempt: 0,
        handle: json!("task"),
        question: RemoteQuestion {
            key: "q".to_owned(),
            kind: InterruptKind::Clarification,
            data: deep,
        },
        check_at: None,
    };
    script.tell(0, asked).expect("waits");
    assert_eq!(
        (script.status(), handles(&script)),
        ("failed", vec![json!("task")])
    );
}

#[test]
fn outcome_that_the_peer_reports_cancels_nothing() {
    let mut script = calling();
    accept(&mut script, json!("task")).expect("waits");
    let failed = Failure::new("remote_failed", "the agent failed");
    script.outcome("n", Err(failed)).expect("waits");
    assert_eq!((script.status(), handles(&script).len()), ("failed", 0));
}

#[test]
fn question_that_is_asked_on_after_its_answer_is_asked_again_later() {
    let mut script = calling();
    ask(&mut script, "q").expect("waits");
    script.answer("n", json!({ "text": "green" })).expect("open");
    let answered = script.news();
    assert!(answered.contains("interrupt.resolved n"), "{answered}");
    // The peer has the answer, and has not gone on yet.
    script.skip(59_000);
    ask(&mut script, "q").expect("waits");
    assert_eq!((script.news().as_str(), script.status()), ("", "running"));
    script.skip(1_000);
    ask(&mut script, "q").expect("waits");
    let again = script.news();
    assert!(
        again.contains("interrupt.requested n") && !again.contains("effect.accepted"),
        "{again}"
    );
    assert_eq!(script.status(), "waiting-input");
    // While it is open, it is one question.
    script.skip(120_000);
    ask(&mut script, "q").expect("waits");
    assert_eq!(script.news(), "");
}

#[test]
fn fold_of_a_call_asks_no_peer_again() {
    let mut script = calling();
    ask(&mut script, "q").expect("waits");
    script.answer("n", json!({ "text": "green" })).expect("open");
    let outputs = json!({ "text": "done", "contentTrust": "untrusted" });
    script.outcome("n", Ok(outputs.clone())).expect("waits");
    assert_eq!(script.status(), "completed");
    assert_eq!(script.effects().len(), 1, "the peer was called once");

    let plan = script.plan(0);
    let stored = script.events(0).iter();
    let stored = stored.map(|recorded| (recorded.seq, format::encode_event(recorded)));
    let read: Vec<_> = stored
        .map(|(seq, body)| format::decode_event(seq, &body).expect("decodes"))
        .collect();
    let run = Run::default().fold(plan, &read).expect("folds");
    // The answer of the peer comes from the log, and nothing is left to do.
    assert_eq!(run, *script.run(0));
    assert_eq!(run.outputs.clone().map(Value::Object), Some(outputs));
}
