//! Contents of gates: texts rendered when they open, and the artifact they refer to.

use serde_json::{Value, json};
use wopr_core::Asked;
use wopr_testkit::{Script, Workflow};

/// Returns the data of the first open interrupt.
fn asked(script: &Script) -> Value {
    let open = script
        .run(0)
        .interrupt(script.plan(0))
        .expect("an interrupt is open");
    let Asked::Here(asked) = open.asked else {
        panic!("{open:?}")
    };
    asked.data.clone()
}

/// A run with a variable `who` that waits at a node of this type.
fn at(type_id: &str, config: &Value, who: &str) -> Script {
    let workflow =
        Workflow::new("w")
            .variable("who", "string", json!({}))
            .node("gate", type_id, config.clone());
    Script::of(&[&workflow]).start(json!({ "who": who }))
}

fn texts() -> Value {
    json!({
        "title": "Pay {{ who }}?",
        "description": "{% if who %}{{ who }} has waited.{% endif %}",
        "prompt": "Is {{ who }} known?",
        "artifactId": "{{ who }}-invoice",
    })
}

fn with(mut config: Value, texts: &Value) -> Value {
    for (name, text) in texts.as_object().expect("texts") {
        config[name] = text.clone();
    }
    config
}

#[test]
fn every_kind_of_gate_renders_its_texts_on_opening() {
    let questions = json!([{ "id": "sure", "question": "Sure about {{ who }}?" }]);
    let gates = [
        ("core.approvalGate", with(json!({}), &texts())),
        (
            "core.clarificationGate",
            with(json!({ "questions": questions }), &texts()),
        ),
        ("core.interrupt", json!({ "kind": "approval", "data": texts() })),
        ("core.interrupt", with(json!({ "kind": "approval" }), &texts())),
        (
            "core.interrupt",
            json!({ "kind": "clarification", "data": with(json!({ "questions": questions }), &texts()) }),
        ),
        (
            "core.interrupt",
            json!({
                "kind": "external-event",
                "data": with(json!({ "eventType": "paid", "correlation": {} }), &texts()),
            }),
        ),
        (
            "core.interrupt",
            with(
                json!({ "kind": "custom", "data": { "customKind": "scan" } }),
                &texts(),
            ),
        ),
    ];
    for (type_id, config) in gates {
        let data = asked(&at(type_id, &config, "Ada"));
        for (name, wanted) in [
            ("title", "Pay Ada?"),
            ("description", "Ada has waited."),
            ("prompt", "Is Ada known?"),
            ("artifactId", "Ada-invoice"),
        ] {
            assert_eq!(data[name], wanted, "{type_id} {config}");
        }
        // Questions are not templates, because their schemas and answers refer to the exact text.
        let question = data.pointer("/questions/0/question");
        assert!(question.is_none_or(|text| text == "Sure about {{ who }}?"));
    }
}

#[test]
fn texts_without_template_syntax_are_unchanged() {
    let long = "x".repeat(1_000);
    let data = asked(&at(
        "core.approvalGate",
        &json!({ "title": long, "description": " {a} ${b} " }),
        "Ada",
    ));
    assert_eq!(
        (&data["title"], &data["description"]),
        (&json!(long), &json!(" {a} ${b} "))
    );
}

#[test]
fn rendered_text_is_truncated_to_its_limit() {
    let data = asked(&at("core.approvalGate", &texts(), &"é".repeat(20_000)));
    for (name, most) in [
        ("title", 200),
        ("description", 8_000),
        ("prompt", 8_000),
        ("artifactId", 256),
    ] {
        let text = data[name].as_str().expect("a text");
        assert_eq!(text.chars().count(), most, "{name}");
        assert!(text.ends_with('…'), "{name}");
    }
}

#[test]
fn empty_rendered_text_keeps_the_fields_openwop_requires() {
    let config =
        json!({ "title": "{{ nothing }}", "description": "{{ nothing }}", "artifactId": " {{ nothing }} " });
    let data = asked(&at("core.approvalGate", &config, "Ada"));
    assert_eq!(
        (&data["title"], &data["artifactId"]),
        (&json!("gate"), &json!("gate"))
    );
    assert!(data.get("description").is_none(), "{data}");
}

#[test]
fn invalid_template_is_rejected_with_the_definition() {
    for type_id in ["core.approvalGate", "core.clarificationGate", "core.interrupt"] {
        for field in ["title", "description", "prompt", "artifactId"] {
            let mut config = json!({ field: "{{ who" });
            if type_id == "core.clarificationGate" {
                config["questions"] = json!([{ "id": "a", "question": "?" }]);
            }
            if type_id == "core.interrupt" {
                config["kind"] = "custom".into();
                config["data"] = json!({ "customKind": "scan" });
            }
            let problems = Workflow::new("w").node("gate", type_id, config).compile();
            let problems = problems.expect_err("not a template").to_string();
            assert!(problems.contains(&format!("config.{field}")), "{problems}");
        }
    }
}

#[test]
fn template_that_fails_to_render_fails_the_node() {
    let script = at("core.approvalGate", &json!({ "title": "{{ who * 2 }}" }), "Ada");
    assert_eq!(script.status(), "failed");
    assert!(
        script.log(0).contains("node.failed gate template_failed"),
        "{}",
        script.log(0)
    );
}

/// A draft, a gate that refers to it, and a loop through a revision.
fn drafted(artifact: &str) -> Script {
    let draft = |id: &str, template: &str| {
        json!({
            "id": id, "typeId": "core.template", "name": id, "position": { "x": 0, "y": 0 },
            "config": { "template": template }, "inputs": {}, "artifactType": "draft",
        })
    };
    let gate = json!({ "artifactId": artifact, "actions": ["accept", "refine"] });
    let workflow = Workflow::new("w")
        .raw_node(draft("draft", "first"))
        .node("gate", "core.approvalGate", gate)
        .raw_node(draft("revise", "{{ nodes.gate.refineFeedback.text }}"))
        .edges("draft -> gate")
        .edge_if(
            "gate",
            "revise",
            json!({ "type": "equals", "left": "output.action", "right": "refine" }),
        )
        .edges("revise -> gate");
    Script::started(&workflow)
}

#[test]
fn artifact_named_by_node_is_that_of_the_latest_visit() {
    let artifact = "{{ 'revise' if nodes.revise else 'draft' }}";
    for (named, first, later) in [
        (artifact, "draft-0", "revise-1"),
        ("draft", "draft-0", "draft-0"),
        ("draft-0", "draft-0", "draft-0"),
        ("revise", "revise", "revise-1"),
        ("invoice", "invoice", "invoice"),
    ] {
        let mut script = drafted(named);
        assert_eq!(asked(&script)["artifactId"], first, "{named}");
        for text in ["second", "third"] {
            let refine = json!({ "action": "refine", "refineFeedback": text });
            script.answer("gate", refine).expect("open");
        }
        assert_eq!(asked(&script)["artifactId"], later, "{named}");
    }
}

#[test]
fn artifact_is_found_by_id_and_by_node() {
    let mut script = drafted("draft");
    let refine = json!({ "action": "refine", "refineFeedback": "second" });
    script.answer("gate", refine).expect("open");
    let found = |id: &str| script.run(0).artifact(id).map(|artifact| artifact.id.clone());
    assert_eq!(found("draft").as_deref(), Some("draft-0"));
    assert_eq!(found("revise-0").as_deref(), Some("revise-0"));
    assert_eq!(found("gate"), None);
    assert_eq!(found(""), None);
}
