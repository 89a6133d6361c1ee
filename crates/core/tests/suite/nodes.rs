//! Behavior of each node type.

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use wopr_core::{Call, Failure};
use wopr_testkit::{Script, Workflow};

fn check(type_id: &str, config: Value, inputs: Value, expected: &Expect) {
    let workflow = Workflow::new("w")
        .variable("given", "number", json!({ "defaultValue": 7 }))
        .wired("n", type_id, config, inputs);
    let mut script = Script::started(&workflow);
    if script.next_timer().is_some() {
        script.wait(1_000_000);
    }
    expected.assert_eq(&script.news());
}

fn value(value: Value) -> Value {
    json!({ "type": "static", "value": value })
}

#[test]
fn pass_nodes_forward_their_inputs() {
    for type_id in [
        "core.noop",
        "core.identity",
        "core.start",
        "core.end",
        "core.merge",
        "core.conditional",
    ] {
        check(
            type_id,
            json!({ "ignored": true }),
            json!({
                "a": value(json!([1])),
                "b": { "type": "variable", "variableName": "given" },
                "c": { "type": "expression", "expression": "given * 2" },
                "d": { "type": "variable", "variableName": "unset", "optional": true },
                "e": { "type": "connection", "nodeId": "n", "outputKey": "x", "optional": true },
                "f": { "type": "expression", "expression": "unset.deep" },
            }),
            &expect![[r#"
                0 run.started
                1 node.started n
                2 node.completed n {"a":[1],"b":7,"c":14}
                3 run.completed {"a":[1],"b":7,"c":14}"#]],
        );
    }
}

#[test]
fn unresolved_inputs_fail_the_node() {
    for (port, rule) in [
        (
            json!({ "type": "variable", "variableName": "unset" }),
            "variable 'unset' is not set",
        ),
        (
            json!({ "type": "connection", "nodeId": "n", "outputKey": "x" }),
            "node 'n' has no output 'x'",
        ),
        (
            json!({ "type": "expression", "expression": "1 + 'a'" }),
            "evaluate the expression: tried to use + operator on unsupported types number and string",
        ),
    ] {
        let workflow = Workflow::new("w").wired("n", "core.noop", json!({}), json!({ "p": port }));
        let script = Script::started(&workflow);
        let log = script.log(0);
        assert!(
            log.contains(&format!("input_unresolved: input 'p': {rule}")),
            "{log}"
        );
    }
}

#[test]
fn outputs_become_variables_by_port_or_by_node() {
    let workflow = Workflow::new("w")
        .variable("known", "number", json!({}))
        .wired(
            "n",
            "core.identity",
            json!({}),
            json!({ "known": value(json!(1)), "other": value(json!(2)) }),
        )
        .wired(
            "m",
            "core.identity",
            json!({}),
            json!({ "got": { "type": "connection", "nodeId": "n", "outputKey": "other" } }),
        )
        .edges("n -> m");
    let script = Script::started(&workflow);
    assert_eq!(script.variable("known"), json!(1));
    assert_eq!(script.variable("n"), json!({ "other": 2 }));
    assert_eq!(script.variable("m"), json!({ "got": 2 }));
}

#[test]
fn run_inputs_override_defaults() {
    let workflow = Workflow::new("w")
        .variable("payload", "object", json!({ "defaultValue": {} }))
        .wired(
            "echo",
            "core.identity",
            json!({}),
            json!({ "payload": { "type": "variable", "variableName": "payload" } }),
        );
    let script = Script::of(&[&workflow]).start(json!({ "payload": { "a": [1, null] }, "extra": 1 }));
    assert_eq!(script.variable("payload"), json!({ "a": [1, null] }));
    assert_eq!(script.variable("extra"), json!(1));
    assert_eq!(
        script.run(0).outputs,
        json!({ "payload": { "a": [1, null] } }).as_object().cloned()
    );
}

#[test]
fn run_inputs_are_validated() {
    let workflow = Workflow::new("w")
        .variable("need", "string", json!({ "required": true }))
        .variable("n", "number", json!({}))
        .noops("a");
    let deep = (0..70).fold(json!(1), |inner, _| json!([inner]));
    for (inputs, rule) in [
        (json!({}), "inputs.need: is required"),
        (json!({ "need": 1 }), "inputs.need: is not of type string"),
        (
            json!({ "need": "x", "n": "1" }),
            "inputs.n: is not of type number",
        ),
        (
            json!({ "need": "x", "any": deep }),
            "inputs: nests more than 64 levels deep",
        ),
    ] {
        let refused = Script::of(&[&workflow])
            .try_start(Script::start_run(inputs))
            .expect_err(rule);
        assert_eq!(refused.to_string(), format!("start the run: {rule}"));
    }
}

#[test]
fn run_overrides_are_validated() {
    let workflow = Workflow::new("w").noops("a").set(
        "configurableSchema",
        json!({ "type": "object", "additionalProperties": false, "properties": {
            "recursionLimit": { "type": "integer" }, "temperature": {}, "model": {}, "runTimeoutMs": {}, "ai": {},
            "ai.model": {}, "ai.provider": {}, "maxTokens": {}, "maxLoopIterations": {}, "promptOverrides": {},
        }}),
    );
    for (configurable, rule) in [
        (
            json!({ "recursionLimit": 0 }),
            "configurable.recursionLimit must be between 1 and 100000",
        ),
        (
            json!({ "recursionLimit": 2.5 }),
            "configurable.recursionLimit must be between 1 and 100000",
        ),
        (
            json!({ "recursionLimit": "5" }),
            "configurable.recursionLimit must be between 1 and 100000",
        ),
        (
            json!({ "runTimeoutMs": 0 }),
            "configurable.runTimeoutMs must be between 1 and 9223372036854775807",
        ),
        (
            json!({ "temperature": 3 }),
            "configurable.temperature: is not a number within 0 to 2",
        ),
        (
            json!({ "ai": { "model": "" } }),
            "configurable.ai.model: is not a text of 1 to 256 bytes",
        ),
        (json!({ "ai": "m" }), "configurable.ai: is not an object"),
        (
            json!({ "ai": { "provider": "one" }, "ai.provider": "other" }),
            "configurable.ai.provider: is given twice: also as a member of ai",
        ),
        (
            json!({ "ai.provider": 1 }),
            "configurable.ai.provider: is not a text of 1 to 256 bytes",
        ),
        (
            json!({ "ai.model": "one", "model": "other" }),
            "configurable.model: is another one than ai.model",
        ),
        (
            json!({ "maxTokens": 200_001 }),
            "configurable.maxTokens: is not a whole number within 1 to 200000",
        ),
        (
            json!({ "maxLoopIterations": 0 }),
            "configurable.maxLoopIterations: is not a whole number within 1 to 1000000",
        ),
        (
            json!({ "promptOverrides": { "greeting": "Hello." } }),
            "configurable.promptOverrides: names prompts of a library, and this host has none",
        ),
        (
            json!({ "model": 3 }),
            "configurable.model: is not a text of 1 to 256 bytes",
        ),
        (
            json!({ "other": 3 }),
            "configurable: configurable: Additional properties are not allowed ('other' was unexpected)",
        ),
    ] {
        let mut start = Script::start_run(json!({}));
        start.configurable = configurable.as_object().cloned().expect("object");
        let refused = Script::of(&[&workflow]).try_start(start).expect_err(rule);
        assert_eq!(refused.to_string(), format!("start the run: {rule}"));
    }
    let accepted = json!({
        "recursionLimit": 5.0, "temperature": 0, "model": "m", "ai": { "model": "m" }, "runTimeoutMs": 5,
        "maxTokens": 7, "maxLoopIterations": 3, "promptOverrides": {},
    });
    assert_eq!(
        Script::of(&[&workflow])
            .start_configured(json!({}), accepted)
            .status(),
        "completed"
    );
}

#[test]
fn delay_waits_for_its_timer() {
    let workflow = Workflow::new("w").delay("d", 50).noops("end").edges("d -> end");
    let mut script = Script::started(&workflow);
    assert_eq!(
        (script.status(), script.timers(0).as_str()),
        ("running", "delay:0:d in 50")
    );
    script.wait(49);
    assert_eq!(script.status(), "running");
    script.wait(1);
    assert_eq!((script.status(), script.timers(0).as_str()), ("completed", ""));
}

#[test]
fn delay_takes_its_duration_from_port_or_config() {
    for (config, inputs, waited) in [
        (json!({ "durationMs": 5, "ms": 6, "delayMs": 7 }), json!({}), 5),
        (json!({ "ms": 6 }), json!({}), 6),
        (json!({ "delaySeconds": 2 }), json!({}), 2_000),
        (json!({ "ms": 6 }), json!({ "delayMs": value(json!(9)) }), 9),
        (json!({ "ms": 6 }), json!({ "delayMs": value(json!(0)) }), 0),
        (json!({ "ms": 100_000 }), json!({}), 100_000),
        (json!({}), json!({}), 0),
    ] {
        let mut script = Script::started(&Workflow::new("w").wired("n", "core.delay", config, inputs));
        script.wait(200_000);
        let outputs = script.run(0).outputs.clone();
        assert_eq!(outputs, json!({ "waitedMs": waited }).as_object().cloned());
    }
    check(
        "core.delay",
        json!({}),
        json!({ "delayMs": value(json!("soon")) }),
        &expect![[r#"
            0 run.started
            1 node.started n
            2 node.failed n invalid_input: delayMs is not a whole number of at least 0
            3 run.failed invalid_input: delayMs is not a whole number of at least 0 in n"#]],
    );
}

#[test]
fn fail_node_fails_with_its_code() {
    check(
        "core.fail",
        json!({}),
        json!({}),
        &expect![[r#"
        0 run.started
        1 node.started n
        2 node.failed n conformance_test_failure: Intentional conformance failure
        3 run.failed conformance_test_failure: Intentional conformance failure in n"#]],
    );
    check(
        "core.fail",
        json!({ "code": "mine", "message": "because" }),
        json!({}),
        &expect![[r#"
            0 run.started
            1 node.started n
            2 node.failed n mine: because
            3 run.failed mine: because in n"#]],
    );
}

#[test]
fn set_variable_takes_a_value_an_expression_a_template_or_a_port() {
    for (config, inputs, expected) in [
        (json!({ "name": "v", "value": [1] }), json!({}), json!([1])),
        (
            json!({ "variableName": "v", "value": "{{ given }}!" }),
            json!({}),
            json!("7!"),
        ),
        (
            json!({ "variable": "v", "expression": "given + 1" }),
            json!({}),
            json!(8),
        ),
        (
            json!({ "name": "v", "expression": "unset" }),
            json!({}),
            json!(null),
        ),
        (
            json!({ "name": "v", "value": 1 }),
            json!({ "value": value(json!(2)) }),
            json!(2),
        ),
    ] {
        let workflow = Workflow::new("w")
            .variable("given", "number", json!({ "defaultValue": 7 }))
            .wired("n", "core.setVariable", config, inputs);
        let script = Script::started(&workflow);
        assert_eq!((script.status(), script.variable("v")), ("completed", expected));
    }
    check(
        "core.setVariable",
        json!({ "name": "v" }),
        json!({}),
        &expect![[r#"
        0 run.started
        1 node.started n
        2 node.failed n invalid_input: there is no value to set
        3 run.failed invalid_input: there is no value to set in n"#]],
    );
    check(
        "core.setVariable",
        json!({ "name": "given", "expression": "1 + ''" }),
        json!({}),
        &expect![[r#"
            0 run.started
            1 node.started n
            2 node.failed n expression_failed: evaluate the expression: tried to use + operator on unsupported types number and string
            3 run.failed expression_failed: evaluate the expression: tried to use + operator on unsupported types number and string in n"#]],
    );
}

#[test]
fn template_renders_text() {
    check(
        "core.template",
        json!({ "template": "{{ given }} is {{ nodes.x.y }}." }),
        json!({}),
        &expect![[r#"
            0 run.started
            1 node.started n
            2 node.completed n {"text":"7 is ."}
            3 run.completed {"text":"7 is ."}"#]],
    );
    check(
        "core.template",
        json!({ "template": "{{ given.upper() }}" }),
        json!({}),
        &expect![[r#"
            0 run.started
            1 node.started n
            2 node.failed n template_failed: evaluate the expression: number has no method named upper
            3 run.failed template_failed: evaluate the expression: number has no method named upper in n"#]],
    );
}

#[test]
fn side_effect_waits_for_its_outcome() {
    let workflow = Workflow::new("w").wired(
        "n",
        "core.conformance.side-effect",
        json!({}),
        json!({ "x": value(json!(1)) }),
    );
    let mut script = Script::started(&workflow);
    assert_eq!(
        script.effects()[0].call,
        Call::SideEffect {
            payload: json!({ "x": 1 })
        }
    );
    script
        .outcome("n", Ok(json!({ "done": true })))
        .expect("under way");
    expect![[r#"
        0 run.started
        1 node.started n
        2 effect.scheduled n core.conformance.side-effect
        3 node.completed n {"done":true}
        4 run.completed {"done":true}"#]]
    .assert_eq(&script.news());
}

#[test]
fn too_deeply_nested_outcome_fails_the_node() {
    let mut script = Script::started(&Workflow::new("w").effect("n"));
    let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
    script
        .outcome("n", Ok(json!({ "deep": deep })))
        .expect("under way");
    expect![[r#"
        0 run.started
        1 node.started n
        2 effect.scheduled n core.conformance.side-effect
        3 node.failed n output_too_deep: the output nests more than 64 levels deep
        4 run.failed output_too_deep: the output nests more than 64 levels deep in n"#]]
    .assert_eq(&script.news());
}

#[test]
fn http_builds_its_request() {
    let node = |config: Value, inputs: Value| {
        let workflow = Workflow::new("w")
            .variable("given", "number", json!({ "defaultValue": 7 }))
            .wired("n", "core.http.request", config, inputs);
        Script::started(&workflow)
    };
    let script = node(
        json!({
            "url": "https://example.com/{{ given }}", "method": "post", "timeoutMs": 5,
            "headers": { "x-given": "{{ given }}" }, "body": "n={{ given }}",
        }),
        json!({}),
    );
    assert_eq!(
        script.effects()[0].call,
        Call::Http {
            method: "POST".to_owned(),
            url: "https://example.com/7".to_owned(),
            headers: vec![("x-given".to_owned(), "7".to_owned())],
            secret_headers: Vec::new(),
            body: Some(r#""n=7""#.to_owned()),
            timeout_ms: 5,
        }
    );
    let by_ports = node(
        json!({}),
        json!({ "url": value(json!("http://x/")), "body": value(json!({ "a": 1 })) }),
    );
    assert_eq!(
        by_ports.effects()[0].call,
        Call::Http {
            method: "GET".to_owned(),
            url: "http://x/".to_owned(),
            headers: Vec::new(),
            secret_headers: Vec::new(),
            body: Some(r#"{"a":1}"#.to_owned()),
            timeout_ms: 30_000,
        }
    );
    for (config, inputs, message) in [
        (json!({}), json!({}), "invalid_input: there is no url"),
        (
            json!({}),
            json!({ "url": value(json!(1)) }),
            "invalid_input: url is not a string",
        ),
        (
            json!({ "url": "{{ given.upper() }}" }),
            json!({}),
            "template_failed: ",
        ),
    ] {
        let script = node(config, inputs);
        assert!(
            script.log(0).contains(message) && script.effects().is_empty(),
            "{}",
            script.log(0)
        );
    }
}

#[test]
fn artifacts_contain_the_text_or_all_outputs() {
    let emit = |ports: Value| {
        Workflow::new("w").raw_node(json!({
            "id": "n", "typeId": "core.identity", "name": "Brief", "artifactType": "doc",
            "config": {}, "inputs": ports,
        }))
    };
    let mut script = Script::started(&emit(
        json!({ "text": value(json!("hello")), "x": value(json!(1)) }),
    ));
    expect![[r#"
        0 run.started
        1 node.started n
        2 artifact.created n n-0 doc "hello"
        3 node.completed n {"text":"hello","x":1}
        4 run.completed {"text":"hello","x":1}"#]]
    .assert_eq(&script.news());
    let mut script = Script::started(&emit(json!({ "x": value(json!(1)) })));
    expect![[r#"
        0 run.started
        1 node.started n
        2 artifact.created n n-0 doc {"x":1}
        3 node.completed n {"x":1}
        4 run.completed {"x":1}"#]]
    .assert_eq(&script.news());
}

#[test]
fn artifact_node_makes_one_artifact() {
    let workflow = Workflow::new("w").raw_node(json!({
        "id": "n", "typeId": "conformance.artifact.emit", "name": "n", "artifactType": "outer",
        "config": { "artifactType": "inner", "content": { "a": 1 } }, "inputs": {},
    }));
    let mut script = Script::started(&workflow);
    expect![[r#"
        0 run.started
        1 node.started n
        2 artifact.created n n-0 inner {"a":1}
        3 node.completed n
        4 run.completed"#]]
    .assert_eq(&script.news());
    assert_eq!(script.run(0).artifacts.len(), 1);
}

#[test]
fn missing_capability_fails_the_node() {
    check(
        "conformance.requiresMissing",
        json!({}),
        json!({}),
        &expect![[r#"
        0 run.started
        1 node.started n
        2 node.failed n capability_not_provided: this host does not provide 'conformance.never-provided'
        3 run.failed capability_not_provided: this host does not provide 'conformance.never-provided' in n"#]],
    );
}

#[test]
fn retries_back_off_and_give_up() {
    let workflow = Workflow::new("w").raw_node(json!({
        "id": "n", "typeId": "core.fail", "name": "n", "config": { "retryable": true, "code": "busy", "message": "m" },
        "inputs": {}, "settings": { "maxRetries": 3, "retryDelayMs": 40_000 },
    }));
    let mut script = Script::started(&workflow);
    script.wait(1_000_000);
    expect![[r#"
        0 run.started
        1 node.started n
        2 node.retried n attempt 1 in 40000 busy: m
        3 node.started n attempt 1
        4 node.retried n attempt 2 in 60000 busy: m
        5 node.started n attempt 2
        6 node.retried n attempt 3 in 60000 busy: m
        7 node.started n attempt 3
        8 node.failed n busy: m after 4 attempts
        9 run.failed busy: m in n"#]]
    .assert_eq(&script.news());
}

#[test]
fn workflow_settings_apply_to_its_nodes() {
    let workflow = Workflow::new("w")
        .effect("n")
        .set("settings", json!({ "maxRetries": 1, "retryDelayMs": 10 }));
    let busy = || Failure {
        retryable: true,
        reason: None,
        ..Failure::new("busy", "later")
    };
    let mut script = Script::started(&workflow);
    script.outcome("n", Err(busy())).expect("under way");
    assert_eq!(script.timers(0), "retry:0:1:n in 10");
    script.wait(10);
    script.outcome("n", Ok(json!({}))).expect("under way again");
    expect![[r#"
        0 run.started
        1 node.started n
        2 effect.scheduled n core.conformance.side-effect
        3 node.retried n attempt 1 in 10 busy: later
        4 node.started n attempt 1
        5 effect.scheduled n core.conformance.side-effect
        6 node.completed n
        7 run.completed"#]]
    .assert_eq(&script.news());

    let mut script = Script::started(&workflow);
    script
        .outcome("n", Err(Failure::new("bad", "never")))
        .expect("under way");
    assert_eq!(script.status(), "failed", "what is not retryable is not retried");
}

#[test]
fn retries_count_as_executions() {
    let workflow = Workflow::new("w").raw_node(json!({
        "id": "n", "typeId": "core.fail", "name": "n", "config": { "retryable": true },
        "inputs": {}, "settings": { "maxRetries": 9, "retryDelayMs": 1 },
    }));
    let mut script = Script::of(&[&workflow]).start_configured(json!({}), json!({ "recursionLimit": 2 }));
    script.wait(1_000);
    let log = script.log(0);
    assert!(log.contains("cap.breached node-executions 3 > 2 at n"), "{log}");
    assert_eq!(log.matches("node.started").count(), 2);
}

#[test]
fn stale_outcomes_are_refused() {
    let workflow = Workflow::new("w")
        .effect("n")
        .set("settings", json!({ "maxRetries": 1 }));
    let mut script = Script::started(&workflow);
    let busy = Failure {
        retryable: true,
        reason: None,
        ..Failure::new("busy", "later")
    };
    script.outcome("n", Err(busy)).expect("under way");
    let waiting = script.outcome("n", Ok(json!({})));
    assert_eq!(waiting, Err(wopr_core::Refusal::Stale), "the attempt is over");
    script.wait(1_000);
    let first = script.effects()[0].clone();
    let command = |attempt| wopr_core::Command::Effect {
        step: first.step.clone(),
        attempt,
        outcome: Ok(wopr_core::Object::new()),
        retry_after_ms: None,
    };
    assert_eq!(script.tell(0, command(0)), Err(wopr_core::Refusal::Stale));
    assert_eq!(script.tell(0, command(2)), Err(wopr_core::Refusal::Stale));
    assert_eq!(script.tell(0, command(1)), Ok(()));
    assert_eq!(script.tell(0, command(1)), Err(wopr_core::Refusal::Stale));
    assert_eq!(script.status(), "completed");
}

#[test]
fn retry_after_is_honored_up_to_an_hour() {
    for (asked, delay) in [
        (None, 1_000),
        (Some(10), 1_000),
        (Some(90_000), 90_000),
        (Some(u64::MAX), 3_600_000),
    ] {
        let workflow = Workflow::new("w").effect("n");
        let workflow = workflow.set("settings", json!({ "maxRetries": 1, "retryDelayMs": 1_000 }));
        let mut script = Script::started(&workflow);
        let busy = Failure {
            retryable: true,
            reason: None,
            ..Failure::new("busy", "later")
        };
        script.outcome_after("n", Err(busy), asked).expect("under way");
        script.wait(delay - 1);
        assert_eq!(script.effects().len(), 1, "{asked:?}: not before its time");
        script.wait(1);
        assert_eq!(script.effects().len(), 2, "{asked:?}");
    }
}

#[test]
fn channel_writes_are_reduced() {
    let fold = |reducer: &str, declared: Value, values: Vec<Value>| {
        let ids: Vec<_> = (0..values.len()).map(|n| format!("n{n}")).collect();
        let mut workflow = Workflow::new("w").set("channels", declared);
        for (id, value) in ids.iter().zip(values) {
            let config = json!({ "channelName": "c", "reducer": reducer, "value": value });
            workflow = workflow.node(id, "core.channelWrite", config);
        }
        let edges: Vec<_> = ids
            .windows(2)
            .map(|pair| format!("{} -> {}", pair[0], pair[1]))
            .collect();
        let script = Script::started(&workflow.edges(&edges.join(",")));
        assert_eq!(
            script.run(0).channels().get("c"),
            script.run(0).variables().get("c")
        );
        script.variable("c")
    };
    let vote = |who: &str, n: u64| json!({ "userId": who, "n": n });
    let message = |id: &str| json!({ "messageId": id });
    let none = || json!({});
    let cases = [
        (fold("replace", none(), vec![json!(1), json!(2)]), json!(2)),
        (
            fold("append", none(), vec![json!(1), json!([2])]),
            json!([1, [2]]),
        ),
        (
            fold("feedback", none(), vec![json!("a"), json!("b")]),
            json!(["a", "b"]),
        ),
        (
            fold(
                "merge",
                none(),
                vec![json!({ "a": 1, "b": 1 }), json!({ "b": 2 })],
            ),
            json!({ "a": 1, "b": 2 }),
        ),
        (fold("counter", none(), vec![json!(1), json!(2)]), json!(3)),
        (fold("counter", none(), vec![json!(1), json!(0.5)]), json!(1.5)),
        (
            fold("votes", none(), vec![vote("a", 1), vote("b", 1), vote("a", 2)]),
            json!([vote("b", 1), vote("a", 2)]),
        ),
        (
            fold("message", none(), vec![message("1"), message("2"), message("1")]),
            json!([message("1"), message("2")]),
        ),
        (fold("vendor.acme.x", none(), vec![json!(1), json!(2)]), json!(2)),
        (
            fold(
                "append",
                json!({ "c": { "reducer": "counter", "default": 10 } }),
                vec![json!(1)],
            ),
            json!(11),
        ),
        (
            fold(
                "append",
                json!({ "c": { "reducer": "append", "maxSize": 2 } }),
                vec![json!(1), json!(2), json!(3)],
            ),
            json!([2, 3]),
        ),
    ];
    for (got, expected) in cases {
        assert_eq!(got, expected);
    }
}

#[test]
fn expired_channel_entries_are_removed_at_the_next_write() {
    let write = |value: &str| json!({ "channelName": "events", "ttlMs": 200, "value": value });
    let workflow = Workflow::new("w")
        .node("a", "core.channelWrite", write("a"))
        .delay("wait", 300)
        .node("b", "core.channelWrite", write("b"))
        .edges("a -> wait, wait -> b");
    let mut script = Script::started(&workflow);
    assert_eq!(
        script.variable("events"),
        json!([{ "value": "a", "_ts": 1_000_000 }])
    );
    script.wait(300);
    assert_eq!(
        script.variable("events"),
        json!([{ "value": "b", "_ts": 1_000_300 }])
    );
    expect![[r#"
        0 run.started
        1 node.started a
        2 channel.written events append "a"
        3 node.completed a
        4 node.started wait
        5 node.completed wait {"waitedMs":300}
        6 node.started b
        7 channel.written events append "b"
        8 node.completed b
        9 run.completed"#]]
    .assert_eq(&script.news());
}

#[test]
fn templates_anywhere_in_a_request_body_are_rendered() {
    let body = json!({ "who": "{{ given }}", "deep": [1, { "again": "<{{ given }}>" }], "plain": "x" });
    let workflow = Workflow::new("w")
        .variable("given", "number", json!({ "defaultValue": 7 }))
        .node(
            "n",
            "core.http.request",
            json!({ "url": "https://x", "method": "POST", "body": body }),
        );
    let script = Script::started(&workflow);
    let Call::Http { body, .. } = &script.effects()[0].call else {
        panic!("no call")
    };
    let body: Value = serde_json::from_str(body.as_ref().expect("a body")).expect("JSON");
    assert_eq!(
        body,
        json!({ "who": "7", "deep": [1, { "again": "<7>" }], "plain": "x" })
    );
}

#[test]
fn request_size_is_limited_across_all_its_parts() {
    let request = |inputs: Value| {
        let config = json!({ "url": "https://x", "method": "POST" });
        let workflow = Workflow::new("w").wired("n", "core.http.request", config, inputs);
        Script::started(&workflow)
    };
    let body = |n: usize| json!({ "body": value(json!("x".repeat(n))) });
    // The text is serialized with two quotes.
    let largest = request(body((4 << 20) - 2));
    assert_eq!(largest.effects().len(), 1, "{}", largest.log(0));
    let url = json!({ "url": value(json!("x".repeat((4 << 20) + 1))) });
    let controls = json!({ "body": value(json!("\u{1}".repeat(1 << 20))) });
    for inputs in [body((4 << 20) - 1), url, controls] {
        let script = request(inputs);
        let log = script.log(0);
        assert!(
            log.contains("template_failed: the ") && script.effects().is_empty(),
            "{}",
            &log[log.len().saturating_sub(500)..]
        );
    }
}

#[test]
fn failure_is_available_to_later_nodes() {
    let workflow = Workflow::new("w")
        .node(
            "n",
            "core.fail",
            json!({ "code": "no_cake", "message": "it is gone" }),
        )
        .node(
            "tell",
            "core.template",
            json!({ "template": "{{ nodes.n.error.code }}: {{ nodes.n.error.message }}" }),
        )
        .edges("n -> tell any_failed");
    assert_eq!(
        Script::started(&workflow).variable("tell"),
        json!({ "text": "no_cake: it is gone" })
    );
}

#[test]
fn unknown_or_invalid_configuration_is_named() {
    for (type_id, config, message) in [
        (
            "core.http.request",
            json!({ "url": "x", "body": [{ "a": "{{ oops" }] }),
            "config.body: ",
        ),
        (
            "core.http.request",
            json!({ "url": "x", "retries": 3 }),
            "node 'n': config.retries is not known; core.http.request has method, url",
        ),
        (
            "core.approvalGate",
            json!({ "timoutMs": 3 }),
            "node 'n': config.timoutMs is not known",
        ),
    ] {
        let problems = Workflow::new("w")
            .node("n", type_id, config)
            .compile()
            .expect_err("wrong");
        assert!(problems.to_string().contains(message), "{problems}");
    }
    let open = Workflow::new("w").node("n", "core.noop", json!({ "marker": 1 }));
    assert!(open.compile().is_ok());
}

/// Writes values to a declared channel one after another. Returns the channel's content, and how the run
/// ended.
fn written(declaration: Value, values: &[Value]) -> (Option<Value>, String) {
    let mut workflow = Workflow::new("w").set("channels", json!({ "c": declaration }));
    let ids: Vec<_> = (0..values.len()).map(|n| format!("n{n}")).collect();
    for (id, value) in ids.iter().zip(values) {
        workflow = workflow.node(
            id,
            "core.channelWrite",
            json!({ "channelName": "c", "value": value }),
        );
    }
    let edges: Vec<_> = ids
        .windows(2)
        .map(|pair| format!("{} -> {}", pair[0], pair[1]))
        .collect();
    let script = Script::started(&workflow.edges(&edges.join(",")));
    let log = script.log(0);
    let last = log.lines().last().unwrap_or_default();
    let end = last.trim_start().split_once(' ').map_or("", |(_, rest)| rest);
    (script.run(0).channels().get("c").cloned(), end.to_owned())
}

#[test]
fn only_named_writers_can_write_a_channel() {
    let by = |access: Value| {
        written(
            json!({ "reducer": "append", "access": access }),
            &[json!(1), json!(2)],
        )
    };
    let all = Some(json!([1, 2]));
    for open in [
        json!("public"),
        json!({ "readers": [] }),
        json!({ "writers": ["n1", "n0"] }),
        json!({ "writers": ["core.*"] }),
        json!({ "writers": ["*"] }),
    ] {
        let (value, end) = by(open.clone());
        assert_eq!(value, all, "{open}: {end}");
    }
    for closed in [
        json!("private"),
        json!({ "writers": [] }),
        // Here a type id without a star is a node id; a prefix ends with a period.
        json!({ "writers": ["core.channelWrite", "cor*", "N0"] }),
    ] {
        let (value, end) = by(closed.clone());
        assert_eq!(value, None, "{closed}");
        assert!(
            end.contains("channel_access_denied: node 'n0' of type 'core.channelWrite'"),
            "{closed}: {end}"
        );
    }
    let (value, end) = by(json!({ "writers": ["n0"] }));
    assert_eq!(value, Some(json!([1])));
    assert!(end.contains("channel_access_denied: node 'n1'"), "{end}");
}

#[test]
fn write_that_its_reducer_does_not_take_fails_the_node() {
    let vote = |who: &str, n: u64| json!({ "userId": who, "n": n });
    let cases = [
        (
            json!({ "reducer": "counter" }),
            vec![json!(3), json!("x")],
            json!(3),
            "is not a number, as 'counter' needs",
        ),
        (
            json!({ "reducer": "merge" }),
            vec![json!({ "a": 1 }), json!(5)],
            json!({ "a": 1 }),
            "is not an object, as 'merge' needs",
        ),
        (
            json!({ "reducer": "votes", "maxSize": 2 }),
            vec![vote("a", 1), vote("b", 1), vote("a", 2), vote("c", 1)],
            json!([vote("b", 1), vote("a", 2)]),
            "would make it 3 entries long, and maxSize is 2",
        ),
        (
            json!({ "reducer": "merge", "maxSize": 1 }),
            vec![json!({ "a": 1 }), json!({ "a": 2 }), json!({ "b": 1 })],
            json!({ "a": 2 }),
            "would make it 2 entries long, and maxSize is 1",
        ),
        (
            json!({ "reducer": "replace", "maxSize": 1 }),
            vec![json!([1]), json!("long"), json!([1, 2])],
            json!("long"),
            "would make it 2 entries long, and maxSize is 1",
        ),
    ];
    for (declaration, values, held, rule) in cases {
        let (value, end) = written(declaration, &values);
        assert_eq!(value, Some(held), "{end}");
        let wanted = format!("validation_error: the write to channel 'c' {rule}");
        assert!(end.contains(&wanted), "{end}");
    }
}

#[test]
fn write_that_violates_the_channel_schema_is_not_made() {
    let list = json!({ "type": "array", "items": { "type": "object", "required": ["role"] }, "maxItems": 2 });
    let good = json!({ "messageId": "a", "role": "user" });
    for (more, held) in [
        (json!({ "reducer": "message" }), json!([good])),
        // Entries are stored with timestamps, but validated without them.
        (
            json!({ "reducer": "append", "ttlMs": 1_000 }),
            json!([{ "value": good, "_ts": 0 }]),
        ),
    ] {
        let mut declaration = more;
        declaration["schema"] = list.clone();
        let (value, end) = written(
            declaration,
            &[good.clone(), json!({ "messageId": "b", "pin": "4711" })],
        );
        let mut value = value.expect("the first write");
        if let Some(ts) = value[0].get_mut("_ts") {
            *ts = json!(0);
        }
        assert_eq!(value, held, "{end}");
        assert!(
            end.contains("validation_error: the write would break the schema of channel 'c' at '/1'"),
            "{end}"
        );
        assert!(!end.contains("4711"), "{end}");
    }
    let (value, end) = written(
        json!({ "reducer": "counter", "schema": { "maximum": 3 } }),
        &[json!(2), json!(2)],
    );
    assert_eq!(value, Some(json!(2)));
    assert!(end.contains("validation_error: "), "{end}");
    // An invalid schema in a definition that was accepted before is ignored.
    let (value, end) = written(
        json!({ "reducer": "replace", "schema": { "type": "nonsense" } }),
        &[json!(1)],
    );
    assert_eq!(value, Some(json!(1)), "{end}");
}
