//! Text that is streamed in pieces.

use expect_test::expect;
use serde_json::{Value, json};
use wopr_testkit::{Script, Workflow};

fn stream(config: Value) -> Workflow {
    Workflow::new("w").raw_node(json!({
        "id": "say", "typeId": "core.stream", "name": "Say", "position": { "x": 0, "y": 0 },
        "config": config, "inputs": {}, "artifactType": "text",
    }))
}

#[test]
fn pieces_without_an_interval_are_emitted_at_once() {
    let workflow = stream(json!({ "chunks": ["one ", "{{ inputs.n }} ", "three"] }));
    let mut script = Script::of(&[&workflow]).start(json!({ "n": "two" }));
    expect![[r#"
        0 run.started {"n":"two"}
        1 node.started say
        2 output.chunk say 0 "one "
        3 output.chunk say 1 "two "
        4 output.chunk say 2 "three" last
        5 artifact.created say say-0 text "one two three"
        6 node.completed say {"text":"one two three"}
        7 run.completed {"text":"one two three"}"#]]
    .assert_eq(&script.news());
}

#[test]
fn interval_delays_pieces_and_partial_text_is_visible() {
    let workflow = stream(json!({ "expression": "inputs.words", "intervalMs": 50 }));
    let mut script = Script::of(&[&workflow]).start(json!({ "words": ["a", 2] }));
    assert!(
        script.log(0).ends_with("2 output.chunk say 0 \"a\""),
        "{}",
        script.log(0)
    );
    let plan = script.plan(0).clone();
    let saying: Vec<_> = script.run(0).streaming(&plan).collect();
    assert_eq!((saying.len(), saying[0].text), (1, "a"));
    assert_eq!(saying[0].artifact, Some(("text", "Say")));
    let _ = script.news();
    script.wait(50);
    expect![[r#"
        3 output.chunk say 1 "2" last
        4 artifact.created say say-0 text "a2"
        5 node.completed say {"text":"a2"}
        6 run.completed {"text":"a2"}"#]]
    .assert_eq(&script.news());
    assert_eq!(script.run(0).streaming(&plan).count(), 0);
}

#[test]
fn cancel_ends_streaming_between_two_pieces() {
    let workflow = stream(json!({ "chunks": ["a", "b"], "intervalMs": 50 }));
    let mut script = Script::started(&workflow);
    script.cancel().unwrap();
    assert_eq!(script.status(), "cancelled");
    assert_eq!(script.timers(0), "");
    let plan = script.plan(0).clone();
    assert_eq!(script.run(0).streaming(&plan).count(), 0);
}

#[test]
fn long_stream_yields_and_empty_stream_completes() {
    let words: Vec<_> = (0..200).map(|n| format!("{n} ")).collect();
    let workflow = stream(json!({ "expression": "inputs.words" }));
    let mut script = Script::of(&[&workflow]).start(json!({ "words": words }));
    assert_eq!(script.status(), "running");
    assert!(script.next_timer().is_some());
    while script.next_timer().is_some() {
        script.wait(1);
    }
    let outputs = script.run(0).outputs.clone().unwrap();
    assert_eq!(outputs["text"], words.concat());
    let none = Script::of(&[&workflow]).start(json!({ "words": [] }));
    assert_eq!(none.run(0).outputs.clone().unwrap()["text"], "");
}

#[test]
fn invalid_or_oversized_text_fails_the_node() {
    let list = || json!({ "expression": "inputs.words" });
    let long = json!({ "words": "x".repeat(600_000) });
    for (config, inputs, code) in [
        (list(), json!({ "words": "a b" }), "invalid_input"),
        (list(), json!({}), "invalid_input"),
        (list(), json!({ "words": vec![1; 1_001] }), "output_too_large"),
        (
            json!({ "chunks": ["{{ inputs.words }}", "{{ inputs.words }}"] }),
            long,
            "output_too_large",
        ),
        (
            json!({ "chunks": ["{{ inputs.words + 1 }}"] }),
            json!({ "words": "a" }),
            "template_failed",
        ),
    ] {
        let mut script = Script::of(&[&stream(config)]).start(inputs);
        while script.next_timer().is_some() {
            script.wait(1);
        }
        let (error, _) = script.run(0).error.clone().unwrap();
        assert_eq!(error.code, code);
    }
    for (config, rule) in [
        (json!({}), "config has neither chunks nor expression"),
        (
            json!({ "chunks": [], }),
            "config.chunks is not an array of 1 to 1000 texts",
        ),
        (
            json!({ "chunks": "a" }),
            "config.chunks is not an array of 1 to 1000 texts",
        ),
        (json!({ "chunks": [1] }), "config.chunks[0] is not a string"),
        (json!({ "chunks": ["{{"] }), "config.chunks[0]: "),
        (
            json!({ "chunks": ["a"], "expression": "b" }),
            "config has both chunks and expression",
        ),
        (json!({ "expression": "(" }), "config.expression: "),
        (
            json!({ "chunks": ["a"], "intervalMs": 3_600_001 }),
            "config.intervalMs is more than 3600000",
        ),
        (
            json!({ "chunks": ["a"], "pause": 1 }),
            "config.pause is not known",
        ),
    ] {
        let problems = stream(config).compile().unwrap_err().to_string();
        assert!(problems.contains(rule), "{problems}");
    }
}

#[test]
fn declining_has_its_own_code() {
    let workflow = Workflow::new("w").node(
        "no",
        "core.a2a.reject",
        json!({ "message": "not {{ inputs.what }}" }),
    );
    let mut script = Script::of(&[&workflow]).start(json!({ "what": "this" }));
    expect![[r#"
        0 run.started {"what":"this"}
        1 node.started no
        2 node.failed no rejected: not this
        3 run.failed rejected: not this in no"#]]
    .assert_eq(&script.news());
    let fail = Workflow::new("w").node("no", "core.fail", json!({ "code": "rejected" }));
    let problems = fail.compile().unwrap_err().to_string();
    assert!(problems.contains("is that of core.a2a.reject"), "{problems}");
}

#[test]
fn answer_of_another_agent_is_marked() {
    let question = json!({ "questions": [{ "id": "q", "question": "?" }] });
    let custom = json!({ "kind": "custom", "data": { "customKind": "k" } });
    for (type_id, config, answer) in [
        (
            "core.clarificationGate",
            question,
            json!({ "answers": { "q": "a" } }),
        ),
        ("core.approvalGate", json!({}), json!({ "action": "accept" })),
        ("core.interrupt", custom, json!({ "x": 1 })),
    ] {
        for is_untrusted in [true, false] {
            let mut script = Script::started(&Workflow::new("w").node("ask", type_id, config.clone()));
            let mut resolve = Script::resolve("ask", answer.clone());
            resolve.is_untrusted = is_untrusted;
            script.tell(0, wopr_core::Command::Resolve(resolve)).unwrap();
            let outputs = script.run(0).outputs.clone().unwrap();
            let wanted = is_untrusted.then(|| json!("untrusted"));
            assert_eq!(outputs.get("contentTrust").cloned(), wanted, "{type_id}");
        }
    }
}
