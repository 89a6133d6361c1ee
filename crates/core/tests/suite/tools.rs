//! Tools of a model: what begins when it asks for them, what it is told of each, and what is recorded.

use serde_json::{Value, json};
use wopr_core::{Call, ModelCall, ModelMessage, NodeTypes, Plan, openwop::agent_workflow};
use wopr_testkit::{Script, Workflow};

const PROMPT: &str = "core.ai.callPrompt";

fn asking(config: Value) -> Workflow {
    let mut all = json!({ "prompt": "Shall I take an umbrella?" });
    let members = all.as_object_mut().expect("an object");
    members.extend(config.as_object().expect("an object").clone());
    Workflow::new("w").node("n", PROMPT, all)
}

/// A tool that says what it was asked at once.
fn rain() -> Workflow {
    Workflow::new("rain").variable("city", "string", json!({})).node(
        "say",
        "core.template",
        json!({ "template": "rain in {{ city }}" }),
    )
}

fn rain_tool() -> Value {
    json!({
        "workflow": "rain", "description": "The weather of a city.",
        "inputSchema": {
            "type": "object", "required": ["city"], "properties": { "city": { "type": "string" } }, "additionalProperties": false,
        },
    })
}

fn asks(calls: Value) -> Value {
    json!({
        "provider": "default", "model": "m", "text": "", "stop": "tools", "toolCalls": calls,
        "usage": { "inputTokens": 3, "outputTokens": 2 },
    })
}

fn says(text: &str) -> Value {
    json!({
        "provider": "default", "model": "m", "text": text, "stop": "end", "usage": { "inputTokens": 5, "outputTokens": 1 },
    })
}

fn call(id: &str, name: &str, arguments: Value) -> Value {
    json!({ "id": id, "name": name, "arguments": arguments })
}

fn replies(script: &mut Script, reply: Value) {
    script
        .outcome("n", Ok(reply))
        .expect("the node waits for a reply");
}

/// The latest request.
fn asked(script: &Script) -> ModelCall {
    match script.effects().last().map(|effect| &effect.call) {
        Some(Call::Model(call)) => (**call).clone(),
        other => panic!("{other:?}\n{}", script.log(0)),
    }
}

/// What the model is told of its tools: the id of each call, what came of it, and whether that is an error.
fn told(script: &Script) -> Vec<(String, String, bool)> {
    let results = asked(script)
        .messages
        .into_iter()
        .filter_map(|message| match message {
            ModelMessage::Tool {
                call_id,
                content,
                is_error,
                ..
            } => Some((call_id, content, is_error)),
            ModelMessage::System { .. } | ModelMessage::User { .. } | ModelMessage::Assistant { .. } => None,
        });
    results.collect()
}

fn failure(script: &Script) -> String {
    let (failure, _) = script.run(0).error.clone().expect("the run has failed");
    format!("{}: {}", failure.code, failure.message)
}

fn error(script: &Script) -> String {
    let told = told(script);
    let [(_, text, true)] = told.as_slice() else {
        panic!("{told:?}");
    };
    let inside = text.split_once("\">\n").expect("a marker").1;
    inside.strip_suffix("\n</UNTRUSTED>").expect("its end").to_owned()
}

#[test]
fn model_gets_what_its_tools_gave_back() {
    let workflow = asking(json!({ "tools": [rain_tool()] }));
    let mut script = Script::of(&[&workflow, &rain()]).start(json!({}));
    let tools = asked(&script).tools;
    assert_eq!(
        (tools[0].name.as_str(), tools[0].description.as_str()),
        ("rain", "The weather of a city.")
    );
    assert_eq!(tools[0].schema["required"], json!(["city"]));

    replies(
        &mut script,
        asks(json!([
            call("a", "rain", json!({ "city": "Rome" })),
            call("b", "rain", json!({ "city": "Oslo" }))
        ])),
    );
    let messages = asked(&script).messages;
    let ModelMessage::Assistant { tool_calls, .. } = &messages[1] else {
        panic!("{messages:?}");
    };
    assert_eq!((tool_calls[0].id.as_str(), tool_calls.len()), ("a", 2));
    let result = |city: &str| {
        format!("<UNTRUSTED source=\"tool:rain\">\n{{\"text\":\"rain in {city}\"}}\n</UNTRUSTED>")
    };
    assert_eq!(
        told(&script),
        [
            ("a".to_owned(), result("Rome"), false),
            ("b".to_owned(), result("Oslo"), false)
        ]
    );
    replies(&mut script, says("Yes."));
    assert_eq!(script.status(), "completed");
    let outputs = script.run(0).outputs.clone().expect("outputs");
    assert_eq!(outputs["text"], "Yes.");
    assert_eq!(outputs["usage"], json!({ "inputTokens": 8, "outputTokens": 3 }));
    expect_test::expect![[r#"
        0 run.started
        1 node.started n
        2 prompt.composed n:0 1 messages
        3 effect.scheduled n model
        4 effect.ended n call 0 model
        5 provider.usage n:0 default/m 3+2
        6 agent.tool.called n:0 host:model:n n:0:0 rain {"city":"Rome"}
        7 node.dispatched n run1 rain
        8 agent.tool.called n:0 host:model:n n:0:1 rain {"city":"Oslo"}
        9 node.dispatched n run2 rain
        10 child.ended n run1 completed {"text":"rain in Rome"}
        11 agent.tool.returned n:0 host:model:n n:0:0 ok {"text":"rain in Rome"}
        12 child.ended n run2 completed {"text":"rain in Oslo"}
        13 agent.tool.returned n:0 host:model:n n:0:1 ok {"text":"rain in Oslo"}
        14 effect.scheduled n model
        15 effect.ended n call 1 model
        16 provider.usage n:0 default/m 5+1
        17 node.completed n {"contentTrust":"untrusted","model":"m","provider":"default","stopReason":"end","text":"Yes.","usage":{"inputTokens":8,"outputTokens":3}}
        18 run.completed {"contentTrust":"untrusted","model":"m","provider":"default","stopReason":"end","text":"Yes.","usage":{"inputTokens":8,"outputTokens":3}}"#]].assert_eq(&script.log(0));
    // Nobody vouches for what a model gives a tool.
    assert!(
        script
            .run(1)
            .started
            .as_ref()
            .is_some_and(|started| started.is_untrusted())
    );
}

#[test]
fn call_that_may_not_begin_is_an_error_for_the_model() {
    let tools = json!([rain_tool(), { "workflow": "missing" }]);
    for (asked_for, told_of) in [
        (
            call("a", "core.http.request", json!({ "url": "https://evil.example" })),
            "tool_not_offered: no tool of this name was offered",
        ),
        (
            call("a", "rain", json!({ "city": 7 })),
            "invalid_arguments: 7 is not of type \"string\"",
        ),
        (
            call("a", "rain", json!({ "city": "Rome", "as": "root" })),
            "invalid_arguments: Additional properties are not allowed ('as' was unexpected)",
        ),
        (
            call("a", "rain", json!("Rome")),
            "invalid_arguments: the arguments are no JSON object",
        ),
        (
            call("a", "rain", json!({ "city": "x".repeat(70_000) })),
            "invalid_arguments: the arguments have 70012 bytes, and 65536 is the most",
        ),
        (
            call("a", "missing", json!({})),
            "unknown_child_workflow: workflow 'missing' does not exist",
        ),
    ] {
        let workflow = asking(json!({ "tools": tools }));
        let mut script = Script::of(&[&workflow, &rain()]).start(json!({}));
        replies(&mut script, asks(json!([asked_for])));
        assert_eq!(error(&script), told_of);
        assert_eq!(script.n_runs(), 1, "nothing began");
        let log = script.log(0);
        assert!(
            log.contains("agent.tool.called") && log.contains("agent.tool.returned"),
            "{log}"
        );
        replies(&mut script, says("Then not."));
        assert_eq!(script.status(), "completed");
    }
}

#[test]
fn tool_that_fails_is_an_error_for_the_model() {
    let broken = Workflow::new("rain").variable("city", "string", json!({})).node(
        "say",
        "core.fail",
        json!({ "code": "no_weather", "message": "the station is closed" }),
    );
    let workflow = asking(json!({ "tools": [rain_tool()] }));
    let mut script = Script::of(&[&workflow, &broken]).start(json!({}));
    replies(
        &mut script,
        asks(json!([call("a", "rain", json!({ "city": "Rome" }))])),
    );
    assert_eq!(error(&script), "no_weather: the station is closed");

    let twice = json!({ "template": "{{ city }}{{ city }}" });
    let large =
        Workflow::new("rain")
            .variable("city", "string", json!({}))
            .node("say", "core.template", twice);
    let mut script = Script::of(&[&workflow, &large]).start(json!({}));
    replies(
        &mut script,
        asks(json!([call("a", "rain", json!({ "city": "x".repeat(40_000) }))])),
    );
    assert_eq!(
        error(&script),
        "tool_result_too_large: the result has 80012 bytes, and 65536 is the most"
    );
}

#[test]
fn model_waits_for_all_tools_of_its_answer_and_people_answer_what_they_ask() {
    let workflow = asking(json!({ "tools": [{ "workflow": "gated" }, rain_tool()] }));
    let gated = Workflow::new("gated").gate("gate");
    let mut script = Script::of(&[&workflow, &gated, &rain()]).start(json!({}));
    replies(
        &mut script,
        asks(json!([
            call("a", "gated", json!({ "action": "accept", "approved": true })),
            call("b", "rain", json!({ "city": "Rome" }))
        ])),
    );
    assert_eq!(script.status(), "waiting-approval");
    assert_eq!(script.effects().len(), 1, "the model is not asked before");
    script
        .answer_in(1, "gate", json!({ "action": "accept" }))
        .expect("the gate is open");
    let told = told(&script);
    assert_eq!((told[0].0.as_str(), told[0].2, told[1].2), ("a", false, false));
    replies(&mut script, says("Done."));
    assert_eq!(script.status(), "completed");
}

#[test]
fn cancel_ends_the_tools_of_a_model() {
    let workflow = asking(json!({ "tools": [{ "workflow": "gated" }] }));
    let gated = Workflow::new("gated").gate("gate");
    let mut script = Script::of(&[&workflow, &gated]).start(json!({}));
    let two = json!([call("a", "gated", json!({})), call("b", "gated", json!({}))]);
    replies(&mut script, asks(two));
    script.cancel().expect("it runs");
    assert_eq!(
        (script.status(), script.status_of(1), script.status_of(2)),
        ("cancelled", "cancelled", "cancelled")
    );
}

#[test]
fn cancelled_tool_is_an_error_for_the_model() {
    let workflow = asking(json!({ "tools": [{ "workflow": "gated" }] }));
    let gated = Workflow::new("gated").gate("gate");
    let mut script = Script::of(&[&workflow, &gated]).start(json!({}));
    replies(&mut script, asks(json!([call("a", "gated", json!({}))])));
    script.cancel_run(1).expect("it runs");
    assert_eq!(error(&script), "tool_cancelled: the tool was cancelled");
}

#[test]
fn rounds_and_calls_are_bounded() {
    let workflow = asking(json!({ "tools": [rain_tool()], "maxToolRounds": 2 }));
    let mut script = Script::of(&[&workflow, &rain()]).start(json!({}));
    for _ in 0..3 {
        replies(
            &mut script,
            asks(json!([call("a", "rain", json!({ "city": "Rome" }))])),
        );
    }
    assert_eq!(
        failure(&script),
        "tool_rounds_exceeded: the model asked for tools more than 2 times"
    );
    assert!(
        script.log(0).contains("cap.breached loop-iterations 3 > 2"),
        "{}",
        script.log(0)
    );

    let mut script = Script::of(&[&workflow, &rain()]).start(json!({}));
    let many: Vec<_> = (0..17)
        .map(|n| call(&format!("c{n}"), "rain", json!({ "city": "Rome" })))
        .collect();
    replies(&mut script, asks(json!(many)));
    assert_eq!(
        failure(&script),
        "too_many_tool_calls: the model asked for 17 tools in one answer, and 16 is the most"
    );
    assert_eq!(script.n_runs(), 1);
}

#[test]
fn calls_that_share_an_id_are_told_apart() {
    let workflow = asking(json!({ "tools": [rain_tool()] }));
    let mut script = Script::of(&[&workflow, &rain()]).start(json!({}));
    replies(
        &mut script,
        asks(json!([
            call("x", "rain", json!({ "city": "Rome" })),
            call("x", "rain", json!({ "city": "Oslo" }))
        ])),
    );
    let told = told(&script);
    assert_eq!((told[0].0.as_str(), told[1].0.as_str()), ("call_0_0", "call_0_1"));
    assert!(told[1].1.contains("Oslo"), "{told:?}");
}

#[test]
fn budget_counts_all_rounds() {
    let workflow = asking(json!({ "tools": [rain_tool()] })).set(
        "settings",
        json!({ "budget": { "maxTokens": 5, "onBreach": "fail" } }),
    );
    let mut script = Script::of(&[&workflow, &rain()]).start(json!({}));
    replies(
        &mut script,
        asks(json!([call("a", "rain", json!({ "city": "Rome" }))])),
    );
    assert_eq!(
        failure(&script),
        "budget_exhausted: the run reached its budget of 5 tokens"
    );

    // Somebody who is asked for more meanwhile holds up nothing that has returned.
    let workflow =
        asking(json!({ "tools": [rain_tool()] })).set("settings", json!({ "budget": { "maxTokens": 5 } }));
    let mut script = Script::of(&[&workflow, &rain()]).start(json!({}));
    replies(
        &mut script,
        asks(json!([call("a", "rain", json!({ "city": "Rome" }))])),
    );
    assert_eq!(script.status(), "waiting-approval");
    script
        .answer("n", json!({ "action": "accept" }))
        .expect("it is asked");
    assert_eq!(told(&script).len(), 1);
}

#[test]
fn provider_that_fails_later_is_asked_again_with_the_results() {
    let workflow = asking(json!({ "tools": [rain_tool()] }));
    let mut script = Script::of(&[&workflow, &rain()]).start(json!({}));
    replies(
        &mut script,
        asks(json!([call("a", "rain", json!({ "city": "Rome" }))])),
    );
    let before = asked(&script).messages;
    let busy = wopr_core::Failure {
        retryable: true,
        ..wopr_core::Failure::new("model_call_failed", "busy")
    };
    script.outcome("n", Err(busy)).expect("it waits");
    script.wait(60_000);
    assert_eq!(asked(&script).messages, before);
    assert_eq!(script.n_runs(), 2, "no tool is called twice");
    replies(&mut script, says("Yes."));
    assert_eq!(script.status(), "completed");
}

#[test]
fn document_may_need_tools_first() {
    let schema =
        json!({ "type": "object", "required": ["ok"], "properties": { "ok": { "type": "boolean" } } });
    let config = json!({ "prompt": "?", "outputSchema": schema, "tools": [rain_tool()] });
    let workflow = Workflow::new("w").node("n", "core.ai.structuredOutput", config);
    let mut script = Script::of(&[&workflow, &rain()]).start(json!({}));
    replies(
        &mut script,
        asks(json!([call("a", "rain", json!({ "city": "Rome" }))])),
    );
    replies(&mut script, says("{\"ok\": 1}"));
    assert_eq!(
        told(&script).len(),
        1,
        "the results are said again with the repair"
    );
    replies(&mut script, says("{\"ok\": true}"));
    let outputs = script.run(0).outputs.clone().expect("outputs");
    assert_eq!(
        (&outputs["data"], &outputs["retries"]),
        (&json!({ "ok": true }), &json!(1))
    );
}

#[test]
fn agent_is_a_tool_that_takes_a_message() {
    let workflow = asking(json!({ "tools": [{ "agent": "acme/review", "name": "reviewer" }] }));
    let plans = [
        workflow.plan(),
        std::sync::Arc::new(Plan::admit(agent_workflow("acme"), NodeTypes::default()).expect("valid")),
    ];
    let mut script = Script::of_plans(plans).start(json!({}));
    replies(
        &mut script,
        asks(json!([call(
            "a",
            "reviewer",
            json!({ "message": "Look at it." })
        )])),
    );
    let Some(Call::Agent(call)) = script.effects_of(1).last().map(|effect| &effect.call) else {
        panic!("{}", script.log(1));
    };
    assert_eq!(
        (call.peer.as_str(), call.skill.as_deref(), call.text.as_deref()),
        ("acme", Some("review"), Some("Look at it."))
    );
    assert!(format!("{:?}", script.events(0)).contains("transport: Some(Http)"));
}

#[test]
fn model_without_tools_gets_none() {
    let mut script = Script::started(&asking(json!({})));
    replies(&mut script, asks(json!([call("a", "rain", json!({}))])));
    assert_eq!(script.status(), "completed");
    assert!(!script.log(0).contains("agent.tool.called"));
}
