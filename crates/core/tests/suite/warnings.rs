//! Lints: valid definitions that are most likely mistakes.

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use wopr_testkit::Workflow;

fn table(workflows: impl IntoIterator<Item = Workflow>, expected: &Expect) {
    let mut table = String::new();
    for workflow in workflows {
        let plan = workflow.plan();
        let warnings = plan.warnings();
        if warnings.is_empty() {
            table += "-\n";
        }
        for warning in warnings {
            let pointer = &warning.problem.pointer;
            assert!(plan.document().pointer(pointer).is_some(), "{pointer}");
            table += &format!("{}: {} [{pointer}]\n", warning.lint.as_str(), warning.problem);
        }
    }
    expected.assert_eq(&table);
}

fn edge(source: &str, target: &str, more: Value) -> Value {
    let mut edge = json!({ "sourceNodeId": source, "targetNodeId": target });
    for (member, value) in more.as_object().into_iter().flatten() {
        edge[member] = value.clone();
    }
    edge
}

fn gate(id: &str) -> Workflow {
    Workflow::new("w").node(
        id,
        "core.approvalGate",
        json!({ "actions": ["accept", "reject", "refine"] }),
    )
}

fn when(action: &str) -> Value {
    json!({ "condition": { "type": "equals", "left": "output.action", "right": action } })
}

/// A gate with two branches, joined by edges with a rule.
fn joined(left: Value, right: Value, rule: &str) -> Workflow {
    gate("gate")
        .variable("v", "string", json!({}))
        .variable("x", "string", json!({}))
        .node("use", "core.template", json!({ "template": "{{ v }}{{ x }}" }))
        .noops("left right far join")
        .edges("use -> gate")
        .raw_edge(edge("gate", "left", left))
        .raw_edge(edge("gate", "right", right))
        .raw_edge(edge("right", "far", json!({})))
        .raw_edge(edge("left", "join", json!({ "triggerRule": rule })))
        .raw_edge(edge("far", "join", json!({ "triggerRule": rule })))
}

#[test]
fn joins_of_exclusive_branches_are_reported() {
    let failed = json!({ "triggerRule": "any_failed" });
    let expression = |source: &str| json!({ "condition": { "expression": source } });
    table(
        [
            joined(when("accept"), when("refine"), "all_success"),
            joined(when("accept"), failed.clone(), "all_success"),
            joined(
                expression("output.approved"),
                expression("not output.approved"),
                "all_success",
            ),
            joined(expression("v == 'a'"), expression("v != 'a'"), "all_success"),
        ],
        &expect![[r#"
            exclusive-join: node 'join': waits for all of its branches, but 'e1' and 'e2' exclude each other (node 'gate' takes one of them): it never starts, and what follows it is skipped; give the edges into it "triggerRule": "any_success", or "none_failed" to wait for what was not skipped [/nodes/5/id]
            exclusive-join: node 'join': waits for all of its branches, but 'e1' and 'e2' exclude each other (node 'gate' takes one of them): it never starts, and what follows it is skipped; give the edges into it "triggerRule": "any_success", or "none_failed" to wait for what was not skipped [/nodes/5/id]
            exclusive-join: node 'join': waits for all of its branches, but 'e1' and 'e2' exclude each other (node 'gate' takes one of them): it never starts, and what follows it is skipped; give the edges into it "triggerRule": "any_success", or "none_failed" to wait for what was not skipped [/nodes/5/id]
            exclusive-join: node 'join': waits for all of its branches, but 'e1' and 'e2' exclude each other (node 'gate' takes one of them): it never starts, and what follows it is skipped; give the edges into it "triggerRule": "any_success", or "none_failed" to wait for what was not skipped [/nodes/5/id]
        "#]],
    );
    // Both branches can be taken, or the join accepts either.
    for workflow in [
        joined(when("accept"), when("refine"), "any_success"),
        joined(when("accept"), when("refine"), "none_failed"),
        joined(when("accept"), when("refine"), "all_complete"),
        joined(when("accept"), json!({}), "all_success"),
        joined(expression("v > 1"), expression("v > 2"), "all_success"),
        joined(expression("v == 'a'"), expression("x == 'b'"), "all_success"),
    ] {
        assert_eq!(workflow.plan().warnings(), []);
    }
}

/// The reported join behaves as the warning says.
#[test]
fn reported_join_never_starts() {
    let plan = joined(when("accept"), when("refine"), "all_success").plan();
    assert_eq!(plan.warnings().len(), 1);
    let mut script = wopr_testkit::Script::of_plans([plan]).start(json!({}));
    script
        .answer("gate", json!({ "action": "accept" }))
        .expect("taken");
    assert_eq!(script.status(), "completed");
    assert!(
        script.log(0).contains("join skipped") || script.log(0).contains("trigger-not-met"),
        "{}",
        script.log(0)
    );
}

#[test]
fn nodes_that_never_start_or_start_by_themselves_are_reported() {
    let constant = |source: &str| json!({ "condition": { "expression": source } });
    let disabled = json!({ "id": "off", "typeId": "core.noop", "name": "off", "disabled": true });
    table(
        [
            Workflow::new("w")
                .noops("a b c")
                .edges("a -> b")
                .raw_edge(edge("b", "c", constant("1 > 2"))),
            Workflow::new("w")
                .node("boom", "core.fail", json!({}))
                .noops("b c")
                .edges("boom -> b, b -> c"),
            Workflow::new("w")
                .noops("a b")
                .raw_edge(edge("a", "b", json!({ "triggerRule": "any_failed" }))),
            Workflow::new("w").raw_node(disabled).noops("b").edges("off -> b"),
            Workflow::new("w").noops("a b lost").edges("a -> b"),
            Workflow::new("w")
                .noops("a b x y")
                .edges("a -> b, x -> y, y -> x"),
            Workflow::new("w").noops("a b"),
        ],
        &expect![[r#"
            never-starts: node 'c': never starts: it needs the edge 'e1', and its condition never holds; change the edge's triggerRule or condition, or remove the edge [/nodes/2/id]
            constant-condition: edge 'e1': the condition never holds; name an output, a variable or an input in it; texts that are literals are in quotes [/edges/1/condition]
            never-starts: node 'b': never starts: it needs the edge 'e0', and node 'boom' always fails; change the edge's triggerRule or condition, or remove the edge [/nodes/1/id]
            never-starts: node 'b': never starts: it needs the edge 'e0', and node 'a' never fails; change the edge's triggerRule or condition, or remove the edge [/nodes/1/id]
            never-starts: node 'b': never starts: it needs the edge 'e0', and node 'off' is disabled; change the edge's triggerRule or condition, or remove the edge [/nodes/1/id]
            nothing-leads-here: node 'lost': has no edges, so it starts with the run; add an edge to it, or remove the node [/nodes/2/id]
            nothing-leads-here: node 'x': only edges of its own cycle lead to it, so it starts with the run; add an edge that leads into the cycle [/nodes/2/id]
            -
        "#]],
    );
}

#[test]
fn edges_without_effect_are_reported() {
    let condition = |condition: Value| json!({ "condition": condition });
    let two = || {
        Workflow::new("w")
            .noops("a b")
            .node("set", "core.setVariable", json!({ "name": "v" }))
            .edges("set -> a")
    };
    table(
        [
            two().edges("a -> b").edges("a -> b"),
            two().raw_edge(edge(
                "a",
                "b",
                json!({ "sourceOutput": "text", "targetInput": "input" }),
            )),
            two().raw_edge(edge("a", "b", condition(json!({ "expression": "true" })))),
            two().raw_edge(edge(
                "a",
                "b",
                condition(json!({ "type": "equals", "left": "'v'", "right": "v" })),
            )),
            two().raw_edge(edge(
                "a",
                "b",
                condition(json!({ "left": "v", "right": 1, "expression": "v" })),
            )),
            two().raw_edge(edge(
                "a",
                "b",
                condition(json!({ "type": "truthy", "left": "v", "right": true })),
            )),
            two().raw_edge(edge(
                "a",
                "b",
                condition(json!({ "type": "equals", "left": "status", "right": "success" })),
            )),
            gate("gate")
                .noops("b")
                .raw_edge(edge("gate", "b", when("approve"))),
            gate("gate")
                .noops("b")
                .raw_edge(edge("gate", "b", when("reject"))),
            gate("gate")
                .noops("b")
                .raw_edge(edge("gate", "b", when("accept"))),
            Workflow::new("w")
                .node("boom", "core.fail", json!({}))
                .noops("a b")
                .raw_edge(edge("boom", "b", json!({ "triggerRule": "any_success" })))
                .raw_edge(edge("a", "b", json!({ "triggerRule": "any_success" }))),
        ],
        &expect![[r#"
            duplicate-edge: edge 'e2': says the same as the edge 'e1'; remove one of them [/edges/2]
            no-effect: edge 'e1': 'sourceOutput' is 'text', which has no effect: edges carry no data; give the target an input of type connection [/edges/1/sourceOutput]
            constant-condition: edge 'e1': the condition always holds; name an output, a variable or an input in it; texts that are literals are in quotes [/edges/1/condition]
            constant-condition: edge 'e1': the condition always holds; name an output, a variable or an input in it; texts that are literals are in quotes [/edges/1/condition]
            no-effect: edge 'e1': condition.left has no effect in a condition of this type; remove it, or give the condition another type [/edges/1/condition/left]
            no-effect: edge 'e1': condition.right has no effect in a condition of this type; remove it, or give the condition another type [/edges/1/condition/right]
            no-effect: edge 'e1': condition.right has no effect in a condition of this type; remove it, or give the condition another type [/edges/1/condition/right]
            never-holds: edge 'e1': the condition never holds: status is never "success"; with this triggerRule it is completed [/edges/1/condition/right]
            never-holds: edge 'e0': the condition never holds: the gate 'gate' never answers "approve"; its actions are accept, refine [/edges/0/condition/right]
            never-holds: edge 'e0': the condition never holds: a rejected gate fails, and 'gate' has no action then; drop the condition and give the edge "triggerRule": "any_failed" [/edges/0/condition/right]
            -
            no-effect: edge 'e0': is never taken: node 'boom' always fails; "triggerRule": "any_failed" follows a failure [/edges/0]
        "#]],
    );
}

#[test]
fn literal_template_braces_in_texts_are_reported() {
    let one = |type_id: &str, config: Value| {
        Workflow::new("w")
            .variable("amount", "number", json!({}))
            .node("n", type_id, config)
            .node("use", "core.template", json!({ "template": "{{ amount }}" }))
            .edges("n -> use")
    };
    table(
        [
            one(
                "core.approvalGate",
                json!({ "title": "Pay ${amount}?", "description": "To {payee}" }),
            ),
            one("core.approvalGate", json!({ "title": "Pay {{ amount }}?" })),
            one(
                "core.clarificationGate",
                json!({ "questions": [{ "id": "q", "question": "Why {{ amount }}?" }] }),
            ),
            one(
                "core.template",
                json!({ "template": "Pay {amount}, {\"json\": true}, {other}" }),
            ),
            one(
                "core.template",
                json!({ "template": "{% if amount %}{{ {'a': amount} }}{% endif %}" }),
            ),
            one("core.setVariable", json!({ "name": "x", "value": "${amount}" })),
        ],
        &expect![[r#"
            literal-braces: node 'n': "${amount}" is no template of wopr, so it is text; write {{ amount }} [/nodes/0/config/title]
            literal-braces: node 'n': "{payee}" is no template of wopr, so it is text; write {{ payee }} [/nodes/0/config/description]
            -
            literal-braces: node 'n': the braces are shown as they stand: this text is no template; say what depends on the run in the gate's title or description [/nodes/0/config/questions/0/question]
            literal-braces: node 'n': "{amount}" is no template of wopr, so it is text; write {{ amount }} [/nodes/0/config/template]
            -
            literal-braces: node 'n': "${amount}" is no template of wopr, so it is text; write {{ amount }} [/nodes/0/config/value]
        "#]],
    );
}

#[test]
fn relative_urls_and_unknown_settings_are_reported() {
    let call = |config: Value| Workflow::new("w").node("n", "core.http.request", config);
    let settings = json!({ "maxRetrys": 3, "logLevel": "debug" });
    table(
        [
            call(json!({ "url": "/pay" })),
            call(json!({ "url": "example.com/pay" })),
            call(json!({})),
            call(json!({ "url": "{{ base }}/pay" })).variable("base", "string", json!({})),
            call(json!({ "url": "HTTPS://example.com" })),
            Workflow::new("w").noops("a").set("settings", settings.clone()),
            Workflow::new("w").raw_node(
                json!({ "id": "a", "typeId": "core.noop", "name": "a", "settings": { "max_retries": 1 } }),
            ),
            Workflow::new("w").raw_node(
                json!({ "id": "a", "typeId": "core.noop", "name": "a", "settings": { "timeout": 300 } }),
            ),
        ],
        &expect![[r#"
            relative-url: node 'n': config.url is "/pay", which is not absolute; begin it with https://, or with a variable that holds the origin [/nodes/0/config/url]
            relative-url: node 'n': config.url is "example.com/pay", which is not absolute; begin it with https://, or with a variable that holds the origin [/nodes/0/config/url]
            relative-url: node 'n': has no URL: neither config.url nor an input url; give it a config.url such as https://example.com/ [/nodes/0]
            -
            -
            unknown-setting: definition: settings.maxRetrys is not known, and ignored; did you mean 'maxRetries'? [/settings/maxRetrys]
            unknown-setting: node 'a': settings.max_retries is not known, and ignored; did you mean 'maxRetries'? [/nodes/0/settings/max_retries]
            unknown-setting: node 'a': settings.timeout is not known, and ignored; it bounds a whole run, in settings of the definition [/nodes/0/settings/timeout]
        "#]],
    );
}

#[test]
fn masking_modes_without_effect_are_reported() {
    let masked = |mode: &str| {
        let compliance = json!({ "complianceConfig": { "maskingMode": mode } });
        Workflow::new("w").noops("a").set("metadata", compliance)
    };
    table(
        ["mask", "omit", "passthrough"].map(masked),
        &expect![[r#"
        -
        no-effect: definition: metadata.complianceConfig.maskingMode 'omit' has no effect; sensitive values are always shown as [REDACTED], which is the mode 'mask' [/metadata/complianceConfig/maskingMode]
        no-effect: definition: metadata.complianceConfig.maskingMode 'passthrough' has no effect; sensitive values are always shown as [REDACTED], which is the mode 'mask' [/metadata/complianceConfig/maskingMode]
    "#]],
    );
}

#[test]
fn undeclared_names_are_reported_with_the_closest_match() {
    let base = || {
        Workflow::new("w")
            .variable("amount", "number", json!({}))
            .set("channels", json!({ "log": { "reducer": "append" } }))
            .node(
                "pay-now",
                "core.approvalGate",
                json!({ "title": "Pay {{ amount }}?" }),
            )
            .node(
                "write",
                "core.channelWrite",
                json!({ "channelName": "log", "value": 1 }),
            )
            .edges("pay-now -> write")
    };
    let says = |template: &str| {
        base()
            .node("t", "core.template", json!({ "template": template }))
            .edges("write -> t")
    };
    let wired = |port: Value| {
        base()
            .wired("t", "core.noop", json!({}), json!({ "p": port }))
            .edges("write -> t")
    };
    let leads = |condition: Value| {
        base()
            .noops("t")
            .raw_edge(edge("pay-now", "t", json!({ "condition": condition })))
    };
    table(
        [
            says("{{ nodes.pay-now.action }}"),
            says("To: {{ amuont }}, {{ somebody }}"),
            says("{{ nodes.write_.x }} {{ variables.amout }} {{ channels.lgo }} {{ inputs.prompt }}"),
            says("{{ nodes['pay-now'].decision }} {{ nodes['pay-now'].error.feedback }}"),
            says("{{ output.action }}"),
            says("{% for a in amount %}{{ a }}{{ loop.index }}{% endfor %}{{ prompt | default('amuont') }}"),
            wired(json!({ "type": "variable", "variableName": "amont" })),
            wired(json!({ "type": "connection", "nodeId": "pay-now", "outputKey": "acton" })),
            wired(json!({ "type": "expression", "expression": "nodes.pay_now.action" })),
            leads(json!({ "type": "equals", "left": "output.acton", "right": "accept" })),
            leads(json!({ "expression": "statsu == 'completed'" })),
            base()
                .node("sub", "core.subWorkflow", json!({ "workflowId": "x", "inputMapping": { "a": "amonut" }, "outputMapping": { "got": "b" } }))
                .node("t", "core.template", json!({ "template": "{{ got }} {{ result }}" }))
                .edges("write -> sub, sub -> t"),
            base().variable("unused", "string", json!({})).variable("asked", "string", json!({ "required": true })),
            base()
                .raw_node(json!({ "id": "t", "typeId": "core.template", "name": "t", "config": { "template": "x" }, "outputSensitivity": { "txt": true } }))
                .edges("write -> t"),
        ],
        &expect![[r#"
            unknown-node: node 't': nodes.pay-now is a subtraction: there is no node 'pay'; write nodes['pay-now'] [/nodes/2/config/template]
            unknown-variable: node 't': nothing declares or sets 'amuont', so it is undefined unless a run's inputs contain it; did you mean 'amount'? [/nodes/2/config/template]
            unknown-variable: node 't': nothing declares or sets 'somebody', so it is undefined unless a run's inputs contain it; declare it in variables [/nodes/2/config/template]
            unknown-node: node 't': there is no node 'write_'; did you mean 'write'? [/nodes/2/config/template]
            unknown-variable: node 't': nothing declares or sets 'amout', so it is undefined unless a run's inputs contain it; did you mean 'amount'? [/nodes/2/config/template]
            unknown-variable: node 't': nothing declares or writes the channel 'lgo'; did you mean 'log'? [/nodes/2/config/template]
            unknown-output: node 't': node 'pay-now' has no output 'decision'; core.approvalGate has action, approved, decidedBy, feedback, refineFeedback, editedArtifactData, contentTrust, error [/nodes/2/config/template]
            unknown-variable: node 't': nothing declares or sets 'output', so it is undefined unless a run's inputs contain it; conditions of edges alone see it; elsewhere name the node: nodes.ID.OUTPUT [/nodes/2/config/template]
            -
            unknown-variable: node 't': inputs.p: nothing declares or sets 'amont', so it is undefined unless a run's inputs contain it; did you mean 'amount'? [/nodes/2/inputs/p/variableName]
            unknown-output: node 't': inputs.p: node 'pay-now' has no output 'acton'; did you mean 'action'? [/nodes/2/inputs/p/outputKey]
            unknown-node: node 't': there is no node 'pay_now'; did you mean 'pay-now'? [/nodes/2/inputs/p/expression]
            unknown-output: edge 'e1': node 'pay-now' has no output 'acton'; did you mean 'action'? [/edges/1/condition/left]
            unknown-variable: edge 'e1': nothing declares or sets 'statsu', so it is undefined unless a run's inputs contain it; did you mean 'status'? [/edges/1/condition/expression]
            unknown-variable: node 't': nothing declares or sets 'result', so it is undefined unless a run's inputs contain it; declare it in variables [/nodes/3/config/template]
            unknown-variable: node 'sub': config.inputMapping.a: nothing declares or sets 'amonut', so it is undefined unless a run's inputs contain it; did you mean 'amount'? [/nodes/2/config/inputMapping/a]
            unused-variable: variable 'unused': nothing reads or sets it; remove it, or use it [/variables/1/name]
            unused-variable: variable 'asked': every run must be started with it, and nothing reads it; remove it, or use it [/variables/2/name]
            unknown-output: node 't': outputSensitivity: node 't' has no output 'txt'; did you mean 'text'? [/nodes/2/outputSensitivity/txt]
        "#]],
    );
}

#[test]
fn reported_place_of_a_name_is_where_it_is_written() {
    let text = r#"{ "id": "w", "name": "w", "version": "1", "edges": [], "triggers": [], "metadata": {}, "settings": {},
      "variables": [], "nodes": [{ "id": "n", "typeId": "core.template", "name": "n",
        "config": { "template": "To \u00e4 {{ payee }}" } }] }"#;
    let plan = wopr_core::Plan::admit(
        serde_json::from_str(text).expect("JSON"),
        wopr_core::NodeTypes::default(),
    )
    .expect("valid");
    let warnings: Vec<_> = plan
        .warnings()
        .into_iter()
        .map(|warning| warning.problem)
        .collect();
    let [Some(place)] = wopr_core::locate(text, &warnings)[..] else {
        panic!("{warnings:?}");
    };
    assert!(
        text[place.start..].starts_with("payee"),
        "{}",
        &text[place.start..]
    );
    assert_eq!(place.line, 3);
}

#[test]
fn large_graphs_are_checked_in_time() {
    let ids: Vec<_> = (0..2_000).map(|n| format!("n{n}")).collect();
    let mut workflow = Workflow::new("w").noops(&ids.join(" "));
    for n in 0..10_000_usize {
        let (source, target) = (
            n % 1_999,
            n % 1_999 + 1 + n / 1_999 * 7 % (1_999 - n % 1_999).max(1),
        );
        workflow = workflow.raw_edge(json!({
            "sourceNodeId": ids[source], "targetNodeId": ids[target.min(1_999)],
            "condition": { "type": "equals", "left": "v", "right": n },
        }));
    }
    let plan = workflow.plan();
    let begun = std::time::Instant::now();
    let warnings = plan.warnings();
    // Generous: only checks that no step is quadratic in the number of edges.
    assert!(begun.elapsed().as_secs() < 10, "took {:?}", begun.elapsed());
    assert!((1..=100).contains(&warnings.len()), "{}", warnings.len());
}

#[test]
fn all_constant_conditions_share_one_work_budget() {
    let heavy = ["range(1000)|map('string')|join|length"; 6].join(" + ");
    let mut workflow = Workflow::new("w").noops("a b");
    for n in 0..90 {
        workflow = workflow.raw_edge(json!({
            "sourceNodeId": "a", "targetNodeId": "b",
            "condition": { "type": "expression", "expression": format!("{heavy} > {n}") },
        }));
    }
    let warnings = workflow.plan().warnings();
    let constant = warnings
        .iter()
        .filter(|warning| warning.lint.as_str() == "constant-condition")
        .count();
    assert!(
        (1..80).contains(&constant),
        "{constant} conditions were evaluated"
    );
}

#[test]
fn part_of_a_name_is_recognized_by_the_preceding_text() {
    let template = "{{ nodes.pay-now.action }} {{ nodes.pay-x.action - later }} {{ other-now }}";
    let workflow = Workflow::new("w")
        .gate("pay-now")
        .node("t", "core.template", json!({ "template": template }))
        .edges("pay-now -> t");
    let warnings = workflow.plan().warnings();
    let rules: Vec<_> = warnings
        .iter()
        .map(|warning| warning.problem.to_string())
        .collect();
    // `now` and `x` are parts of reported names; `later` and both occurrences of the last one are names of
    // their own.
    let undeclared: Vec<_> = ["now", "x", "later", "other"]
        .into_iter()
        .filter(|name| rules.iter().any(|rule| rule.contains(&format!("sets '{name}'"))))
        .collect();
    assert_eq!(undeclared, ["now", "later", "other"], "{rules:#?}");
}

/// A supervisor and a dispatch. `edges` lead between the two.
fn supervised(decision: Value, dispatch: Value, edges: &str) -> Workflow {
    Workflow::new("w")
        .variable("topic", "string", json!({ "defaultValue": "bees" }))
        .variable("findings", "array", json!({ "defaultValue": [] }))
        .node(
            "lead",
            "core.orchestrator.supervisor",
            json!({ "decision": decision }),
        )
        .node("hand", "core.dispatch", dispatch)
        .edges(edges)
}

#[test]
fn loops_that_cannot_do_what_they_say_are_reported() {
    const LOOP: &str = "lead -> hand, hand -> lead";
    let next = |worker: &str| json!({ "kind": "next-worker", "nextWorkerIds": [worker] });
    let mapped = |field: &str| json!({ field: { "b": { "topic": "topic" } } });
    let agents = |one: Value, other: Value| {
        let mut document = supervised(next("a"), json!({}), LOOP);
        for (id, agent) in [("x", one), ("y", other)] {
            document = document.raw_node(json!({
                "id": id, "typeId": "core.noop", "name": id, "position": { "x": 0, "y": 0 }, "config": {},
                "inputs": {}, "agent": agent,
            }));
        }
        document.edges("hand -> x, x -> y")
    };
    let known = json!({ "agentId": "acme.lead" });
    table(
        [
            supervised(next("a"), json!({}), "lead -> hand"),
            supervised(next("a"), mapped("perWorkerInputMappings"), LOOP),
            supervised(next("b"), mapped("perWorkerInputMappings"), LOOP),
            supervised(next("{{ topic }}"), mapped("perWorkerInputMappings"), LOOP),
            supervised(next("a"), json!({ "inputMapping": { "x": "topik" } }), LOOP),
            supervised(next("a"), json!({ "outputMapping": { "finding": "x" } }), LOOP),
            supervised(
                next("b"),
                json!({ "perWorkerOutputMappings": { "b": { "findigs": "x" } } }),
                LOOP,
            ),
            supervised(next("a"), json!({ "outputMapping": { "quite_new": "x" } }), LOOP),
            supervised(
                next("a"),
                json!({ "fanOutPolicy": "parallel", "maxConcurrency": 65 }),
                LOOP,
            ),
            agents(
                known.clone(),
                json!({ "agentId": "acme.lead", "modelClass": "chat" }),
            ),
            agents(known.clone(), known),
        ],
        &expect![[r#"
            no-way-back: node 'hand': no edge leads from here back to a supervisor: whatever the workers give back, nobody decides again; add an edge to the supervisor [/nodes/1/id]
            unknown-worker: node 'hand': config.perWorkerInputMappings: no decision names a worker 'b'; the supervisor names a [/nodes/1/config/perWorkerInputMappings/b]
            -
            -
            unknown-variable: node 'hand': config.inputMapping.x: nothing declares or sets 'topik', so it is undefined unless a run's inputs contain it; did you mean 'topic'? [/nodes/1/config/inputMapping/x]
            unknown-variable: node 'hand': config.outputMapping.finding: nothing declares 'finding'; did you mean 'findings'? [/nodes/1/config/outputMapping/finding]
            unknown-variable: node 'hand': config.perWorkerOutputMappings.b.findigs: nothing declares 'findigs'; did you mean 'findings'? [/nodes/1/config/perWorkerOutputMappings/b/findigs]
            -
            no-effect: node 'hand': config.maxConcurrency is 65, and at most 64 workers work at the same time [/nodes/1/config/maxConcurrency]
            different-agents: node 'y': agent 'acme.lead' is another one than at node 'x'; give both the same members, or another agentId [/nodes/3/agent]
            -
        "#]],
    );
}
