//! Validation of definitions, and its error messages.

use std::{sync::Arc, time::Instant};

use expect_test::expect;
use serde_json::{Value, json};
use wopr_core::{ApplyError, Definition, Event, KernelEvent, NodeTypes, Problems, Run, openwop::Plan};
use wopr_testkit::{Script, Workflow};

/// Validates a new definition.
fn admit(document: Value) -> Result<Plan, Problems> {
    Plan::admit(document, NodeTypes { conformance: true })
}

/// Compiles a definition that was accepted before.
fn compile(document: Value) -> Result<Plan, Problems> {
    Plan::compile(Definition::parse(document)?, NodeTypes { conformance: true })
}

/// A valid document with one change.
fn changed(change: impl FnOnce(&mut Value)) -> Value {
    let mut document = Workflow::new("w")
        .noops("a b")
        .edges("a -> b")
        .variable("v", "string", json!({}))
        .document();
    change(&mut document);
    document
}

fn root(field: &str, value: Value) -> Value {
    changed(|document| document[field] = value)
}

fn without(field: &str) -> Value {
    changed(|document| {
        document
            .as_object_mut()
            .and_then(|fields| fields.remove(field))
            .expect("there");
    })
}

fn node(type_id: &str, config: Value) -> Value {
    Workflow::new("w").node("n", type_id, config).document()
}

fn node_field(field: &str, value: Value) -> Value {
    changed(|document| document["nodes"][0][field] = value)
}

fn edge_field(field: &str, value: Value) -> Value {
    changed(|document| document["edges"][0][field] = value)
}

fn port(port: Value) -> Value {
    Workflow::new("w")
        .wired("n", "core.noop", json!({}), json!({ "p": port }))
        .document()
}

fn channel(declaration: Value) -> Value {
    root("channels", json!({ "c": declaration }))
}

#[test]
fn each_broken_rule_is_reported_with_its_place() {
    let gate = |config| node("core.approvalGate", config);
    let ask = |questions: Value| node("core.clarificationGate", json!({ "questions": questions }));
    let wait = |config| node("core.interrupt", config);
    let http = |config| node("core.http.request", config);
    let sub = |config| node("core.subWorkflow", config);
    let set = |config| node("core.setVariable", config);
    let documents = [
        // The document.
        json!([]),
        json!({}),
        without("id"),
        without("nodes"),
        without("edges"),
        without("triggers"),
        without("variables"),
        without("metadata"),
        without("settings"),
        root("id", json!("Upper")),
        root("id", json!(7)),
        root("name", json!("x".repeat(257))),
        root("version", json!("")),
        root("nodes", json!([])),
        root("nodes", json!({})),
        root("extra", json!(1)),
        root("status", json!("retired")),
        root("isActive", json!("yes")),
        root("description", json!(1)),
        root("settings", json!([])),
        root("settings", json!({ "timeout": -1 })),
        root("settings", json!({ "maxRetries": 101 })),
        root(
            "triggers",
            json!([{ "id": "t", "type": "telepathy" }, { "type": "manual" }]),
        ),
        root(
            "triggers",
            json!([
                { "id": "m", "type": "manual", "config": 1, "enabled": "no" },
                { "id": "m", "type": "manual", "zz": 1 },
            ]),
        ),
        // What the published schema refuses.
        root("slug", json!(5)),
        root("slug", json!("-x")),
        root("groups", json!([{ "id": "g" }])),
        root("defaults", json!({ "prompts": {} })),
        root("createdAt", json!(1)),
        root(
            "settings",
            json!({ "logLevel": "bogus", "maxLoopbackIterations": 0 }),
        ),
        root(
            "metadata",
            json!({ "complianceClass": "bogus", "tags": [""], "category": 1 }),
        ),
        root("metadata", json!({ "tags": vec!["a"; 101] })),
        root(
            "metadata",
            json!({ "complianceConfig": { "maskingMode": "bogus" } }),
        ),
        root("configurableSchema", json!({ "type": "nonsense" })),
        root(
            "configurableSchema",
            json!({ "$ref": "https://example.com/schema" }),
        ),
        // Variables and channels.
        root("variables", json!([{ "name": "v", "type": "date" }])),
        root(
            "variables",
            json!([{ "name": "v", "type": "string" }, { "name": "v", "type": "number" }]),
        ),
        root(
            "variables",
            json!([{ "name": "v", "type": "string", "secret": true }]),
        ),
        channel(json!([])),
        channel(json!({})),
        channel(json!({ "reducer": "sum" })),
        channel(json!({ "reducer": "append", "maxSize": 0, "ttlMs": 0 })),
        channel(json!({ "reducer": "append", "colour": "red" })),
        channel(json!({ "reducer": "append", "default": 5 })),
        channel(json!({ "reducer": "counter", "default": [] })),
        channel(json!({ "reducer": "merge", "default": 1 })),
        channel(json!({ "reducer": "append", "schemaVersion": 0, "compatibleWith": [0], "options": 1 })),
        // Nodes.
        root(
            "nodes",
            json!([{ "id": "a", "typeId": "core.noop", "name": "a" }, { "id": "a", "typeId": "core.noop", "name": "a" }]),
        ),
        node_field("id", json!("")),
        node_field("id", json!("a\nb")),
        node_field("typeId", json!("core.supervisor")),
        node_field("color", json!("red")),
        node_field("disabled", json!("no")),
        node_field("settings", json!({ "maxRetries": -1 })),
        node_field("settings", json!({ "retryDelayMs": "soon" })),
        node("core.delay", json!({ "ms": -5 })),
        node("core.delay", json!({ "ms": 1.5 })),
        node("core.fail", json!({ "retryable": "yes" })),
        set(json!({})),
        set(json!({ "name": "_private", "value": 1 })),
        set(json!({ "name": "x", "expression": "1 +" })),
        set(json!({ "name": "x", "value": "{{ oops" })),
        changed(|document| {
            document["channels"] = json!({ "c": { "reducer": "append" } });
            document["nodes"][0]["typeId"] = json!("core.setVariable");
            document["nodes"][0]["config"] = json!({ "name": "c", "value": 1 });
        }),
        node("core.template", json!({})),
        node("core.template", json!({ "template": "{% if %}" })),
        node("core.channelWrite", json!({ "value": 1 })),
        node(
            "core.channelWrite",
            json!({ "channelName": "c", "reducer": "sum" }),
        ),
        gate(json!({ "actions": [] })),
        gate(json!({ "actions": ["accept", "escalate"] })),
        gate(json!({ "actions": "accept" })),
        gate(json!({ "requiredApprovals": 0 })),
        gate(json!({ "requiredApprovals": 2, "actions": ["accept", "edit"] })),
        gate(json!({ "rejectionPolicy": "coin" })),
        gate(json!({ "approversList": [1] })),
        gate(json!({ "timeoutMs": "soon" })),
        ask(json!([])),
        ask(json!("q")),
        ask(json!([{ "question": "?" }])),
        ask(json!([{ "id": "q" }])),
        ask(json!([{ "id": "q", "question": "?" }, { "id": "q", "question": "?" }])),
        ask(json!([{ "id": "q", "question": "?", "schema": { "type": 7 } }])),
        ask(json!([{ "id": "q", "question": "?", "hint": "!" }])),
        wait(json!({})),
        wait(json!({ "kind": "psychic" })),
        wait(json!({ "kind": "external-event", "data": {} })),
        wait(json!({ "kind": "external-event", "data": { "eventType": "e" } })),
        wait(json!({ "kind": "custom", "data": {} })),
        wait(json!({ "kind": "custom", "data": 1 })),
        wait(json!({ "kind": "custom", "data": { "customKind": "k", "zz": 1 } })),
        wait(
            json!({ "kind": "external-event", "data": { "eventType": "e", "correlation": {}, "payload": 1 } }),
        ),
        wait(json!({ "kind": "custom", "data": { "customKind": "k", "profile": "x" } })),
        wait(json!({ "kind": "custom", "data": { "customKind": "k" }, "resumeSchema": { "type": 7 } })),
        wait(json!({ "kind": "approval", "data": {}, "resumeSchema": {} })),
        sub(json!({})),
        sub(json!({ "workflowId": "Upper" })),
        sub(json!({ "workflowId": "x", "waitForCompletion": false })),
        sub(json!({ "workflowId": "x", "onChildFailure": "shrug" })),
        sub(json!({ "workflowId": "x", "inputMapping": { "a": 1 } })),
        sub(json!({ "workflowId": "x", "outputMapping": { "_a": "b" } })),
        http(json!({ "method": "TRACE" })),
        http(json!({ "url": "{{ oops" })),
        http(json!({ "headers": { "a": 1 } })),
        http(json!({ "timeoutMs": 0 })),
        // Ports.
        port(json!(1)),
        port(json!({ "type": "magic" })),
        port(json!({ "type": "static" })),
        port(json!({ "type": "expression", "expression": "((" })),
        port(json!({ "type": "connection", "nodeId": "nowhere", "outputKey": "x" })),
        port(json!({ "type": "variable", "variableName": "" })),
        port(json!({ "type": "variable", "variableName": "v", "optional": 1 })),
        // Edges.
        edge_field("sourceNodeId", json!("nowhere")),
        edge_field("targetNodeId", json!("nowhere")),
        edge_field("triggerRule", json!("sometimes")),
        edge_field("weight", json!(1)),
        edge_field("condition", json!({ "type": "equals", "right": 1 })),
        edge_field("condition", json!({ "type": "equals", "left": "status" })),
        edge_field(
            "condition",
            json!({ "type": "like", "left": "status", "right": 1 }),
        ),
        edge_field("condition", json!({})),
        edge_field("condition", json!({ "expression": "a b" })),
        edge_field(
            "condition",
            json!({ "type": "regex", "left": "status", "right": "(" }),
        ),
        edge_field(
            "condition",
            json!({ "type": "regex", "left": "status", "right": 1 }),
        ),
        edge_field("condition", json!({ "type": "truthy", "left": "a b" })),
    ];
    let mut table = String::new();
    for document in documents {
        let text = document.to_string();
        let pointed = document.clone();
        match admit(document) {
            Ok(_) => panic!("accepted {text}"),
            Err(problems) => {
                assert!(!problems.0.is_empty());
                for problem in &problems.0 {
                    assert!(
                        pointed.pointer(&problem.pointer).is_some(),
                        "{problem} at {} of {text}",
                        problem.pointer
                    );
                    table += &format!("{problem} [{}]\n", problem.pointer);
                }
            }
        }
    }
    expect![[r#"
        definition: is not a JSON object []
        definition: 'id' is missing []
        definition: 'name' is missing []
        definition: 'version' is missing []
        definition: 'nodes' is missing []
        definition: 'edges' is missing []
        definition: 'triggers' is missing []
        definition: 'variables' is missing []
        definition: 'metadata' is missing []
        definition: 'settings' is missing []
        definition: 'id' is missing []
        definition: 'nodes' is missing []
        definition: 'edges' is missing []
        definition: 'triggers' is missing []
        definition: 'variables' is missing []
        definition: 'metadata' is missing []
        definition: 'settings' is missing []
        definition: 'id' is not valid: read a workflow id: use 1 to 128 of a-z, 0-9, _ and -, starting with a letter [/id]
        definition: 'id' is not a non-empty string [/id]
        definition: 'name' is longer than 256 characters [/name]
        definition: 'version' is not a non-empty string [/version]
        definition: 'nodes' is empty [/nodes]
        definition: 'nodes' is not an array [/nodes]
        definition: unknown field 'extra'; there are $schema, id, name, version, description, nodes, edges, triggers, variables, channels, metadata, settings, configurableSchema, isActive, status, type, tenantId, scopeId, slug, groups, defaults, acceptsInheritedArtifacts, createdAt, updatedAt [/extra]
        definition: 'status' is 'retired', which is none of active, inactive, draft, archived [/status]
        definition: 'isActive' is not a boolean [/isActive]
        definition: 'description' is not a string [/description]
        definition: 'settings' is not an object [/settings]
        definition: settings.timeout is not a whole number of at least 0 [/settings/timeout]
        definition: settings.maxRetries is over 100 [/settings/maxRetries]
        trigger 0: 'type' is 'telepathy', which is none of manual, schedule, webhook, event, artifact, canvas, envelope, command, chat-message, channel-write [/triggers/0/type]
        trigger 1: 'id' is missing [/triggers/1]
        trigger 0: 'config' is not an object [/triggers/0/config]
        trigger 0: 'enabled' is not a boolean [/triggers/0/enabled]
        trigger 1: unknown field 'zz'; there are id, type, name, description, config, enabled, nodeId, eventType [/triggers/1/zz]
        trigger 1: the id is used twice [/triggers/1/id]
        definition: 'slug' is not a string of a-z, 0-9, _ and - that begins with a letter or a digit [/slug]
        definition: 'slug' is not a string of a-z, 0-9, _ and - that begins with a letter or a digit [/slug]
        group 'g': 'name' is missing [/groups/0]
        group 'g': 'nodeIds' is missing [/groups/0]
        group 'g': 'position' is missing [/groups/0]
        group 'g': 'size' is missing [/groups/0]
        definition: defaults: unknown field 'prompts'; did you mean 'promptRefs'? [/defaults/prompts]
        definition: 'createdAt' is not a string [/createdAt]
        definition: settings.logLevel is 'bogus', which is none of debug, info, warn, error [/settings/logLevel]
        definition: settings.maxLoopbackIterations is not a whole number of at least 1 [/settings/maxLoopbackIterations]
        definition: metadata.tags[0] is not a non-empty string [/metadata/tags/0]
        definition: metadata.category is not a string [/metadata/category]
        definition: metadata.complianceClass is 'bogus', which is none of public, pii, phi, pci, regulated [/metadata/complianceClass]
        definition: metadata.tags has more than 100 entries [/metadata/tags]
        definition: metadata.complianceConfig.maskingMode is 'bogus', which is none of mask, omit, hash, passthrough [/metadata/complianceConfig/maskingMode]
        definition: configurableSchema: the schema: 'type' is not the name of a type [/configurableSchema]
        definition: configurableSchema: '$ref' is 'https://example.com/schema', which is not in this document [/configurableSchema]
        variable 'v': 'type' is 'date', which is none of string, number, boolean, object, array [/variables/0/type]
        variable 'v': the name is used twice [/variables/1/name]
        variable 'v': unknown field 'secret'; there are name, type, required, defaultValue, sensitive, description, format [/variables/0/secret]
        channel 'c': is not an object [/channels/c]
        channel 'c': 'reducer' is missing [/channels/c]
        channel 'c': 'reducer' is 'sum', which is not known [/channels/c/reducer]
        channel 'c': 'maxSize' is not within 1 to 4294967295 [/channels/c/maxSize]
        channel 'c': 'ttlMs' is not within 1 to 31536000000 [/channels/c/ttlMs]
        channel 'c': unknown field 'colour'; there are reducer, default, maxSize, ttlMs, sensitive, schema, access, options, schemaVersion, compatibleWith [/channels/c/colour]
        channel 'c': 'default' is not an array, which 'append' adds to [/channels/c]
        channel 'c': 'default' is not a number, which 'counter' adds to [/channels/c]
        channel 'c': 'default' is not an object, which 'merge' adds to [/channels/c]
        channel 'c': 'options' is not an object [/channels/c/options]
        channel 'c': 'schemaVersion' is not a whole number of at least 1 [/channels/c/schemaVersion]
        channel 'c': compatibleWith[0] is not a whole number of at least 1 [/channels/c/compatibleWith/0]
        node 'a': the id is used twice [/nodes/1/id]
        edge 'e0': target node 'b' does not exist [/edges/0/targetNodeId]
        node '': 'id' is not valid: read a node id: 1 to 512 bytes without control characters [/nodes/0/id]
        edge 'e0': source node 'a' does not exist [/edges/0/sourceNodeId]
        node 'a b': 'id' is not valid: read a node id: 1 to 512 bytes without control characters [/nodes/0/id]
        edge 'e0': source node 'a' does not exist [/edges/0/sourceNodeId]
        node 'a': typeId 'core.supervisor' is not offered by this host [/nodes/0/typeId]
        node 'a': unknown field 'color'; there are id, typeId, name, config, inputs, artifactType, settings, disabled, outputSensitivity, agent, position, notes, groupId, outputRole, cardType, credentialsRef, envelopeContract [/nodes/0/color]
        node 'a': 'disabled' is not a boolean [/nodes/0/disabled]
        node 'a': settings.maxRetries is not within 0 to 100 [/nodes/0/settings/maxRetries]
        node 'a': settings.retryDelayMs is not a whole number of at least 0 [/nodes/0/settings/retryDelayMs]
        node 'n': config.ms is not a whole number of at least 0 [/nodes/0/config/ms]
        node 'n': config.ms is not a whole number of at least 0 [/nodes/0/config/ms]
        node 'n': config.retryable is not a boolean [/nodes/0/config/retryable]
        node 'n': config.name is missing; variableName or variable would do as well [/nodes/0/config]
        node 'n': config.name is '_private': names with a leading underscore are the host's [/nodes/0/config/name]
        node 'n': config.expression: parse the expression: unexpected end of input, expected expression [/nodes/0/config/expression]
        node 'n': config.value: parse the expression: unexpected end of input, expected end of variable block [/nodes/0/config/value]
        node 'a': config.name sets 'c', which is a channel: only core.channelWrite writes to it [/nodes/0/config/name]
        node 'n': config.template is missing [/nodes/0/config]
        node 'n': config.template: parse the expression: unexpected end of input, expected expression [/nodes/0/config/template]
        node 'n': config.channelName is missing; channel would do as well [/nodes/0/config]
        node 'n': config.reducer is 'sum', which is not known [/nodes/0/config/reducer]
        node 'n': config.actions is empty [/nodes/0/config/actions]
        node 'n': config.actions[1] is 'escalate', which is none of accept, approve, reject, refine, edit-accept, edit, ask [/nodes/0/config/actions/1]
        node 'n': config.actions is not an array [/nodes/0/config/actions]
        node 'n': config.requiredApprovals is not within 1 to 1000 [/nodes/0/config/requiredApprovals]
        node 'n': config.actions offers edit-accept, with which one approver would decide for the quorum [/nodes/0]
        node 'n': config.rejectionPolicy is 'coin', which is none of single-veto, majority [/nodes/0/config/rejectionPolicy]
        node 'n': config.approversList[0] is not a string [/nodes/0/config/approversList/0]
        node 'n': config.timeoutMs is not a whole number of at least 0 [/nodes/0/config/timeoutMs]
        node 'n': config.questions is empty [/nodes/0/config/questions]
        node 'n': config.questions is not an array [/nodes/0/config/questions]
        node 'n': config.questions[0].id is missing [/nodes/0/config/questions/0]
        node 'n': config.questions[0].question is missing [/nodes/0/config/questions/0]
        node 'n': config.questions repeats an id [/nodes/0]
        node 'n': config.questions[0].schema: the schema: 'type' is not the name of a type [/nodes/0/config/questions/0/schema]
        node 'n': config.questions[0]: unknown field 'hint'; there are id, question, schema [/nodes/0/config/questions/0/hint]
        node 'n': config.kind is missing [/nodes/0/config]
        node 'n': config.kind is 'psychic', which is none of approval, clarification, external-event, custom [/nodes/0/config/kind]
        node 'n': config.data.eventType is missing [/nodes/0/config/data]
        node 'n': config.data.correlation is missing [/nodes/0/config/data]
        node 'n': config.data.correlation is missing [/nodes/0/config/data]
        node 'n': config.data.customKind is missing [/nodes/0/config/data]
        node 'n': config.data is not an object [/nodes/0/config/data]
        node 'n': config.data: unknown field 'zz'; there are customKind, payload, title, description, prompt, artifactId [/nodes/0/config/data/zz]
        node 'n': config.data: unknown field 'payload'; there are eventType, correlation, title, description, prompt, artifactId [/nodes/0/config/data/payload]
        node 'n': config.data.profile restricts approvals only; this kind of interrupt has no such rule [/nodes/0/config/data/profile]
        node 'n': config.resumeSchema: the schema: 'type' is not the name of a type [/nodes/0/config/resumeSchema]
        node 'n': config.resumeSchema is for the kinds external-event and custom; an approval has a form of its own [/nodes/0]
        node 'n': config.workflowId is missing [/nodes/0/config]
        node 'n': config.workflowId is not valid: read a workflow id: use 1 to 128 of a-z, 0-9, _ and -, starting with a letter [/nodes/0/config/workflowId]
        node 'n': config.waitForCompletion must be true: this host runs children synchronously [/nodes/0/config/waitForCompletion]
        node 'n': config.onChildFailure is 'shrug', which is none of fail-parent, absorb, continue [/nodes/0/config/onChildFailure]
        node 'n': config.inputMapping.a is not a string [/nodes/0/config/inputMapping/a]
        node 'n': config.outputMapping._a: names with a leading underscore are the host's [/nodes/0/config/outputMapping/_a]
        node 'n': config.method is 'TRACE', which is none of GET, HEAD, POST, PUT, PATCH, DELETE [/nodes/0/config/method]
        node 'n': config.url: parse the expression: unexpected end of input, expected end of variable block [/nodes/0/config/url]
        node 'n': config.headers.a is neither a string nor {secret, prefix?} [/nodes/0]
        node 'n': config.timeoutMs is not within 1 to 600000 [/nodes/0/config/timeoutMs]
        node 'n': inputs.p is not an object [/nodes/0/inputs/p]
        node 'n': inputs.p.type is 'magic', which is none of static, expression, connection, variable [/nodes/0/inputs/p/type]
        node 'n': inputs.p.value is missing [/nodes/0/inputs/p]
        node 'n': inputs.p.expression: parse the expression: unexpected end of input, expected expression [/nodes/0/inputs/p/expression]
        node 'n': inputs.p: node 'nowhere' does not exist [/nodes/0/inputs/p/nodeId]
        node 'n': inputs.p.variableName is not a non-empty string [/nodes/0/inputs/p/variableName]
        node 'n': inputs.p.optional is not a boolean [/nodes/0/inputs/p/optional]
        edge 'e0': source node 'nowhere' does not exist [/edges/0/sourceNodeId]
        edge 'e0': target node 'nowhere' does not exist [/edges/0/targetNodeId]
        edge 'e0': 'triggerRule' is 'sometimes', which is none of all_success, any_success, all_complete, none_failed, any_failed [/edges/0/triggerRule]
        edge 'e0': unknown field 'weight'; there are id, sourceNodeId, targetNodeId, condition, triggerRule, label, sourceOutput, targetInput [/edges/0/weight]
        edge 'e0': condition.left is missing [/edges/0/condition]
        edge 'e0': condition.right is missing [/edges/0/condition]
        edge 'e0': condition.type is 'like', which is none of expression, equals, notEquals, contains, regex, truthy, falsy [/edges/0/condition/type]
        edge 'e0': condition.expression is missing [/edges/0/condition]
        edge 'e0': condition.expression: parse the expression: unexpected input after expression [/edges/0/condition/expression]
        edge 'e0': condition.right: regex parse error: ( ^ error: unclosed group [/edges/0/condition/right]
        edge 'e0': condition.right is not a pattern [/edges/0/condition/right]
        edge 'e0': condition.left: parse the expression: unexpected input after expression [/edges/0/condition/left]
    "#]].assert_eq(&table);
}

#[test]
fn edges_with_the_same_id_are_rejected() {
    let twice = changed(|document| {
        let edge = document["edges"][0].clone();
        document["edges"].as_array_mut().expect("array").push(edge);
    });
    expect!["accept the workflow definition: edge 'e0': the id is used twice"]
        .assert_eq(&compile(twice).expect_err("twice").to_string());
}

#[test]
fn node_whose_interrupts_could_have_the_ids_of_another_is_rejected() {
    let workflow = |ids: &[&str]| {
        let nodes = ids.iter();
        nodes.fold(Workflow::new("w"), |workflow, id| {
            workflow.node(id, "core.approvalGate", json!({}))
        })
    };
    let rejected = compile(workflow(&["a", "a:2", "b:x", "b"]).document());
    expect!["accept the workflow definition: node 'a:2': the id is that of node 'a' and a number, so interrupts of both could have one id"]
        .assert_eq(&rejected.expect_err("ambiguous").to_string());
    for ids in [["a:2", "b"], ["a", "a:02"], ["a", "a:4294967296"], ["a", "a-2"]] {
        assert!(compile(workflow(&ids).document()).is_ok(), "{ids:?}");
    }
}

#[test]
fn conformance_types_exist_only_if_enabled() {
    for type_id in [
        "core.conformance.side-effect",
        "conformance.artifact.emit",
        "conformance.requiresMissing",
    ] {
        let definition = Definition::parse(node(type_id, json!({}))).expect("well formed");
        let problems = Plan::compile(definition, NodeTypes::default()).expect_err("not offered");
        assert_eq!(
            problems.to_string(),
            format!(
                "accept the workflow definition: node 'n': typeId '{type_id}' is not offered by this host"
            )
        );
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let document = Workflow::new("w")
        .node("a", "core.unknown", json!({}))
        .node("b", "core.delay", json!({ "ms": "x" }))
        .edges("a -> nowhere")
        .document();
    assert_eq!(compile(document).expect_err("three").0.len(), 3);
}

fn within_seconds<T>(work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    // Generous: only checks that no step is quadratic in the size of a hostile document.
    assert!(begun.elapsed().as_secs() < 10, "took {:?}", begun.elapsed());
    done
}

#[test]
fn huge_documents_are_refused_quickly_with_a_short_error() {
    let many = |n: usize| {
        (0..n)
            .map(|i| json!({ "id": format!("n{i}"), "typeId": "core.noop", "name": "n" }))
            .collect::<Vec<_>>()
    };
    let numbers = || json!((0..100_000).collect::<Vec<_>>());
    let long = "x".repeat(1_000_000);
    let questions: Vec<_> = (0..100_000)
        .map(|i| json!({ "id": format!("q{i}"), "question": "?" }))
        .collect();
    let unknown: serde_json::Map<_, _> = (0..100_000).map(|i| (format!("field{i}"), json!(1))).collect();
    for document in [
        root("nodes", json!(many(100_000))),
        root(
            "edges",
            json!(vec![
                json!({ "id": "e", "sourceNodeId": "a", "targetNodeId": "b" });
                100_000
            ]),
        ),
        root("nodes", numbers()),
        root("triggers", numbers()),
        root("variables", numbers()),
        root(&long, json!(1)),
        root("id", json!(long)),
        node_field("id", json!(long)),
        node_field("typeId", json!(long)),
        node("core.clarificationGate", json!({ "questions": questions })),
        node(
            "core.setVariable",
            json!({ "name": "x", "expression": "(".repeat(100_000) }),
        ),
        node(
            "core.setVariable",
            json!({ "name": "x", "expression": "not ".repeat(2_000) }),
        ),
        node("core.template", json!({ "template": "{{".repeat(30_000) })),
        node("core.template", json!({ "template": "{% if a %}".repeat(6_000) })),
        edge_field(
            "condition",
            json!({ "type": "regex", "left": "status", "right": "(a{1000}){1000}" }),
        ),
        changed(|document| document.as_object_mut().expect("object").extend(unknown)),
    ] {
        let problems = within_seconds(|| compile(document)).err();
        let text = problems.map(|problems| problems.to_string());
        assert!(
            text.as_ref().is_none_or(|text| text.len() < 100_000),
            "a short answer"
        );
        assert!(text.is_some());
    }
}

#[test]
fn deep_documents_are_refused() {
    let deep = (0..120).fold(json!(1), |inner, _| json!([inner]));
    let problems = compile(node("core.noop", json!({ "deep": deep }))).expect_err("deep");
    assert_eq!(
        problems.to_string(),
        "accept the workflow definition: definition: nests more than 64 levels deep"
    );
}

/// A schema may refer to itself; validation must terminate.
#[test]
fn self_referencing_schemas_terminate() {
    for schema in [
        json!({ "$ref": "#" }),
        json!({ "allOf": [{ "$ref": "#" }] }),
        json!({ "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" }),
        json!({ "properties": { "x": { "$ref": "#" } } }),
    ] {
        let document = root("configurableSchema", schema.clone());
        if let Ok(plan) = compile(document) {
            let mut script = Script::of_plans([Arc::new(wopr_core::Plan::Openwop(plan))]);
            let mut start = Script::start_run(json!({}));
            start.configurable = json!({ "x": { "x": {} } }).as_object().cloned().expect("object");
            let _ = script.try_start(start);
        }
    }
}

#[test]
fn largest_graph_compiles_and_runs_in_time() {
    let ids: Vec<_> = (0..2_000).map(|n| format!("n{n}")).collect();
    let mut workflow = Workflow::new("w").noops(&ids.join(" "));
    for n in 0..10_000_usize {
        let (source, target) = (n % 2_000, (n * 7 + n / 2_000 + 1) % 2_000);
        workflow = workflow.raw_edge(json!({
            "sourceNodeId": ids[source], "targetNodeId": ids[target], "triggerRule": "any_success",
        }));
    }
    let plan = within_seconds(|| workflow.plan());
    let script = within_seconds(|| {
        let limit = json!({ "recursionLimit": 3_000 });
        let mut script = Script::of_plans([plan]).start_configured(json!({}), limit);
        script.wait(0);
        script
    });
    assert_eq!(script.status(), "failed");
    assert!(script.log(0).contains("recursion_limit_exceeded"));
}

#[test]
fn equal_content_has_one_version_regardless_of_order() {
    let one: Value = serde_json::from_str(r#"{"b":1,"a":{"d":1,"c":2}}"#).expect("JSON");
    // The canonical text relies on sorted keys: a dependency that enables `preserve_order` would change every
    // version.
    assert_eq!(one.to_string(), r#"{"a":{"c":2,"d":1},"b":1}"#);
    let document = Workflow::new("w").noops("a").document();
    let text = serde_json::to_string_pretty(&document).expect("JSON");
    let again = Definition::parse(serde_json::from_str(&text).expect("JSON")).expect("valid");
    assert_eq!(again.hash, Definition::parse(document).expect("valid").hash);
}

#[test]
fn sensitive_ports_and_variables_can_be_queried() {
    let plan = Workflow::new("w")
        .variable("secret", "string", json!({ "sensitive": true }))
        .variable("open", "string", json!({}))
        .set(
            "channels",
            json!({ "notes": { "reducer": "append", "sensitive": true } }),
        )
        .raw_node(json!({
            "id": "n", "typeId": "core.noop", "name": "n", "outputSensitivity": { "key": true, "id": false },
        }))
        .plan();
    let node = wopr_core::NodeId::parse("n").expect("id");
    let names = ["secret", "open", "notes", "unknown"].map(|name| plan.is_sensitive(name));
    assert_eq!(names, [true, false, true, false]);
    let ports = ["key", "id", "secret", "open"].map(|port| plan.is_sensitive_output(&node, port));
    assert_eq!(ports, [true, false, true, false]);
    let ends = ["key", "id", "secret", "open"].map(|port| plan.is_sensitive_result(port));
    assert_eq!(ends, [true, false, true, false]);
    let outputs = json!({ "key": 1, "id": 2, "secret": 3, "n": { "key": 1, "id": 2 }, "m": { "key": 1 } });
    let shown = plan.shown_result(outputs.as_object().expect("object"));
    assert_eq!(
        Value::Object(shown),
        json!({ "id": 2, "n": { "id": 2 }, "m": { "key": 1 } })
    );
    assert!(plan.has_sensitive());
    assert!(!Workflow::new("w").noops("a").plan().has_sensitive());
}

#[test]
fn variable_set_by_a_sensitive_output_is_sensitive() {
    let plan = Workflow::new("w")
        .variable("key", "string", json!({}))
        .raw_node(json!({
            "id": "n", "typeId": "core.noop", "name": "n", "outputSensitivity": { "key": true, "more": true },
        }))
        .noops("end")
        .edges("n -> end")
        .plan();
    assert!(plan.is_sensitive("key"));
    let more = (plan.is_sensitive("more"), plan.is_sensitive_result("more"));
    assert_eq!(more, (false, false), "a node after it ends the run");
}

#[test]
fn artifacts_contain_no_sensitive_values() {
    let emits = |node: Value, variables: Value| {
        let mut whole =
            json!({ "id": "n", "typeId": "core.identity", "name": "n", "artifactType": "letter" });
        for (field, value) in node.as_object().into_iter().flatten() {
            whole[field] = value.clone();
        }
        let workflow = Workflow::new("w").set("variables", variables);
        workflow.raw_node(whole).document()
    };
    let secret = |name: &str| json!([{ "name": name, "type": "string", "sensitive": true }]);
    let input = json!({ "inputs": { "pin": { "type": "static", "value": 1 } } });
    admit(emits(
        json!({ "outputSensitivity": { "text": false } }),
        secret("pin"),
    ))
    .expect("nothing to hide");
    let table = refused_when_new([
        emits(json!({ "outputSensitivity": { "text": true } }), json!([])),
        emits(json!({}), secret("text")),
        emits(input, secret("pin")),
        node_field("outputSensitivity", json!({ "text": "yes" })),
    ]);
    expect![[r#"
        node 'n': 'artifactType' shows the outputs to everyone, and 'text' is sensitive
        node 'n': 'artifactType' shows the outputs to everyone, and 'text' is sensitive
        node 'n': 'artifactType' shows the outputs to everyone, and 'pin' is sensitive
        node 'a': outputSensitivity.text is not a boolean
    "#]]
    .assert_eq(&table);
}

/// Returns the problems of documents that are rejected as new definitions but still compile as accepted ones.
fn refused_when_new(documents: impl IntoIterator<Item = Value>) -> String {
    let mut table = String::new();
    for document in documents {
        compile(document.clone()).expect("taken before, so read");
        let text = document.to_string();
        let Err(Problems(problems)) = admit(document) else {
            panic!("admitted {text}");
        };
        for problem in problems {
            table += &format!("{problem}\n");
        }
    }
    table
}

#[test]
fn agents_have_the_fields_of_the_specification() {
    let agent = |agent: Value| node_field("agent", agent);
    let whole = json!({ "agentId": "core.chat", "name": "", "modelClass": "tool-using", "memoryRef": "m", "version": "1",
        "sourceManifestId": "core.chat" });
    for fine in [
        whole,
        json!({ "agentId": "a.b" }),
        json!({ "agentId": "ä".repeat(256) }),
    ] {
        admit(agent(fine)).expect("an AgentRef");
    }
    let table = refused_when_new([
        agent(json!("core.chat")),
        agent(json!({})),
        agent(json!({ "agentId": "x" })),
        agent(json!({ "agentId": "x".repeat(257) })),
        agent(json!({ "agentId": 7 })),
        agent(json!({ "agentId": "abc.def", "channel": "stable" })),
        agent(json!({ "agentId": "abc.def", "colour": "red" })),
        agent(json!({ "agentId": "abc.def", "modelClass": "small", "memoryRef": "" })),
    ]);
    expect![[r#"
        node 'a': 'agent' is not an object
        node 'a': agent.agentId is missing
        node 'a': agent.agentId is not a string of 3 to 256 characters
        node 'a': agent.agentId is not a string of 3 to 256 characters
        node 'a': agent.agentId is not a string
        node 'a': agent.channel needs the capability agents.deployment, which this host does not have
        node 'a': agent: unknown field 'colour'; there are agentId, name, modelClass, memoryRef, version, sourceManifestId
        node 'a': agent.modelClass is 'small', which is none of reasoning, tool-using, chat, code, vision, multimodal, embedding, classification, retrieval
        node 'a': agent.memoryRef is not a non-empty string
    "#]]
    .assert_eq(&table);
}

#[test]
fn decisions_are_checked_as_far_as_they_are_known() {
    let supervisor = |config: Value| {
        Workflow::new("w")
            .node("lead", "core.orchestrator.supervisor", config)
            .document()
    };
    let decides = |decision: Value| supervisor(json!({ "decision": decision }));
    for fine in [
        json!("{{ inputs.decision }}"),
        json!({ "kind": "{{ kind }}", "whatever": 1 }),
        json!({ "kind": "next-worker", "nextWorkerIds": "{{ next }}", "nextWorkerInputs": [{}] }),
        json!({ "kind": "next-worker", "nextWorkerIds": ["{{ a }}", "b"], "nextWorkerInputs": ["{{ c }}", {}],
            "confidence": "{{ sure }}" }),
        json!({ "kind": "escalate" }),
        json!({ "kind": "terminate", "successCriteria": ["{{ a }}", { "key": "k", "met": "{{ met }}" }] }),
    ] {
        admit(decides(fine)).expect("may become a decision");
    }
    let table = refused_when_new([
        decides(json!("terminate")),
        decides(json!({ "kind": "next-wroker" })),
        decides(json!({ "kind": "next-worker" })),
        decides(json!({ "kind": "next-worker", "nextWorkerIds": [] })),
        decides(json!({ "kind": "next-worker", "nextWorkerIds": ["{{ a }}"], "nextWorkerInputs": [{}, {}] })),
        decides(json!({ "kind": "ask-user" })),
        decides(json!({ "kind": "terminate", "confidence": 2 })),
        decides(json!({ "kind": "terminate", "prompt": "{{ a }}" })),
        supervisor(json!({ "rules": [
            { "when": "true", "decision": { "kind": "terminate" } },
            { "decision": { "kind": "clarify" } },
        ] })),
    ]);
    expect![[r#"
        node 'lead': config.decision: the decision is not an object
        node 'lead': config.decision: kind 'next-wroker' is none of next-worker, ask-user, terminate, clarify and escalate
        node 'lead': config.decision: nextWorkerIds is not an array
        node 'lead': config.decision: nextWorkerIds does not have 1 to 200 entries
        node 'lead': config.decision: nextWorkerInputs is not an array with an entry for each worker
        node 'lead': config.decision: prompt is missing
        node 'lead': config.decision: confidence is not a number from 0 to 1
        node 'lead': config.decision: prompt is not known
        node 'lead': config.rules[1].decision: prompt is missing
    "#]].assert_eq(&table);
}

#[test]
fn ports_have_only_the_fields_of_their_type() {
    let table = refused_when_new([
        port(json!({ "type": "static", "value": 1, "foo": 2 })),
        port(json!({ "type": "static", "value": 1, "optional": true })),
        port(json!({ "type": "expression", "expression": "1", "value": 1 })),
        port(json!({ "type": "variable", "variableName": "v", "nodeId": "n" })),
        port(json!({ "type": "connection", "nodeId": "n", "outputKey": "x", "key": "x" })),
    ]);
    expect![[r#"
        node 'n': inputs.p: unknown field 'foo'; there are type, value
        node 'n': inputs.p: unknown field 'optional'; there are type, value
        node 'n': inputs.p: unknown field 'value'; there are type, expression
        node 'n': inputs.p: unknown field 'nodeId'; there are type, variableName, optional
        node 'n': inputs.p: unknown field 'key'; there are type, nodeId, outputKey, optional
    "#]]
    .assert_eq(&table);
}

/// A workflow with a channel and a supervisor whose dispatch has this configuration.
fn handing_over(config: Value) -> Value {
    let decision = json!({ "agentId": "lead-agent", "decision": { "kind": "terminate" } });
    Workflow::new("w")
        .set("channels", json!({ "c": { "reducer": "append" } }))
        .node("s", "core.orchestrator.supervisor", decision)
        .node("n", "core.dispatch", config)
        .edges("s -> n")
        .document()
}

#[test]
fn channels_reject_unsupported_options() {
    let declared = |field: &str, value: Value| {
        let mut declaration = json!({ "reducer": "append" });
        declaration[field] = value;
        channel(declaration)
    };
    for fine in [
        declared("access", json!("public")),
        declared("access", json!({ "writers": ["a", "core.*"], "readers": ["*"] })),
        declared("schema", json!({ "type": "array" })),
    ] {
        admit(fine).expect("kept");
    }
    let table = refused_when_new([
        declared("access", json!("private")),
        declared("access", json!(7)),
        declared("access", json!({ "writers": "a" })),
        declared("access", json!({ "writers": [1], "owners": [] })),
        declared("access", json!({ "readers": ["a"] })),
        declared("schema", json!({ "type": "nonsense" })),
        declared("schema", json!({ "$ref": "https://example.com/schema" })),
        declared("sensitive", json!("yes")),
        channel(json!({ "reducer": "append", "schema": { "type": "array" }, "default": {} })),
        root("channels", json!({ "v": { "reducer": "append" } })),
        Workflow::new("w")
            .set("channels", json!({ "c": { "reducer": "append" } }))
            .node(
                "n",
                "core.subWorkflow",
                json!({ "workflowId": "x", "outputMapping": { "c": "v" } }),
            )
            .document(),
        handing_over(json!({ "outputMapping": { "c": "v" } })),
        handing_over(json!({ "perWorkerOutputMappings": { "x": { "d": "v" }, "y": { "c": "v" } } })),
    ]);
    expect![[r#"
        channel 'c': access 'private' lets no node read, which this host does not hold; name access.writers
        channel 'c': 'access' is none of public, private and an object
        channel 'c': access.writers is not an array of strings
        channel 'c': access: unknown field 'owners'
        channel 'c': access.writers is not an array of strings
        channel 'c': access.readers is not held by this host, except with '*' among them
        channel 'c': schema: the schema: 'type' is not the name of a type
        channel 'c': schema: '$ref' is 'https://example.com/schema', which is not in this document
        channel 'c': 'sensitive' is not a boolean
        channel 'c': 'default' is not valid by 'schema'
        channel 'v': a variable has the name, and whatever sets it would write here
        node 'n': config.outputMapping sets 'c', which is a channel: only core.channelWrite writes to it
        node 'n': config.outputMapping sets 'c', which is a channel: only core.channelWrite writes to it
        node 'n': config.perWorkerOutputMappings.y sets 'c', which is a channel: only core.channelWrite writes to it
    "#]]
    .assert_eq(&table);
}

#[test]
fn new_definition_rejects_slashes_in_node_ids() {
    let document = Workflow::new("w").noops("sub:0/gate").document();
    let Err(Problems(problems)) = admit(document.clone()) else {
        panic!("refused")
    };
    let [problem] = problems.as_slice() else {
        panic!("{problems:?}")
    };
    assert_eq!(
        (problem.place.as_str(), problem.pointer.as_str()),
        ("node 'sub:0/gate'", "/nodes/0/id")
    );
    assert!(problem.rule.contains("'/'"), "{}", problem.rule);
    // A definition that was accepted before still compiles.
    compile(document).expect("as before");
}

#[test]
fn run_of_another_dialect_is_refused() {
    let script = Script::started(&Workflow::new("w").noops("n"));
    let mut first = script.events(0)[0].clone();
    let Event::Kernel(KernelEvent::RunStarted(started)) = &mut first.event else {
        panic!("a run begins with its start")
    };
    Arc::make_mut(started).dialect = "other".into();
    let refused = Run::default().apply(script.plan(0), &first);
    assert!(matches!(refused, Err(ApplyError::Illegal(_))), "{refused:?}");
}
