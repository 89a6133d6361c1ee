//! Support for authors of definitions: the JSON Schema for editors, and error reports that list all problems.

use std::{fs, path::PathBuf};

use expect_test::expect;
use serde_json::{Value, json};
use wopr_core::{NodeTypes, Problems, definition_schema, locate, openwop::Plan};

const OFFER: NodeTypes = NodeTypes { conformance: true };

/// A definition with every field that the decoder knows.
fn whole() -> Value {
    let node = |id: &str, type_id: &str, config: Value| json!({ "id": id, "typeId": type_id, "name": id, "config": config });
    let tools = json!([
        { "workflow": "child", "name": "n", "description": "d", "inputSchema": { "type": "object" } },
        { "agent": "p" },
    ]);
    let mut prompting = json!({
        "provider": "p", "model": "m", "systemPrompt": "{{ v }}", "prompt": "{{ v }}",
        "messages": [{ "role": "user", "content": "{{ v }}" }], "temperature": 0.5, "maxTokens": 1,
    });
    prompting["timeoutMs"] = 1.into();
    prompting["stream"] = true.into();
    prompting["expectsStreaming"] = false.into();
    prompting["tools"] = tools;
    prompting["maxToolRounds"] = 1.into();
    let mut writing = json!({
        "provider": "p", "model": "m", "systemPrompt": "{{ v }}", "prompt": "{{ v }}",
        "messages": [], "outputSchema": { "type": "object" }, "temperature": 0, "maxTokens": 1,
    });
    writing["timeoutMs"] = 1.into();
    writing["retryOnInvalidJson"] = 1.into();
    writing["tools"] = json!([{ "workflow": "child" }]);
    writing["maxToolRounds"] = 1.into();
    let mut noop = node("all", "core.noop", json!({ "free": 1 }));
    for (member, value) in [
        (
            "inputs",
            json!({
                "a": { "type": "static", "value": null },
                "b": { "type": "expression", "expression": "1 + 1" },
                "c": { "type": "connection", "nodeId": "wait", "outputKey": "waitedMs", "optional": true },
                "d": { "type": "variable", "variableName": "v", "optional": true },
            }),
        ),
        ("artifactType", json!("letter")),
        ("settings", json!({ "maxRetries": 1, "retryDelayMs": 2 })),
        ("disabled", json!(false)),
        (
            "agent",
            json!({ "agentId": "a.b", "name": "", "modelClass": "chat", "memoryRef": "m", "version": "1", "sourceManifestId": "m" }),
        ),
        ("position", json!({ "x": 0, "y": 1.5 })),
        ("notes", json!("n")),
        ("groupId", json!("g")),
        ("outputRole", json!("primary")),
        ("cardType", json!("c")),
        ("credentialsRef", json!("c")),
        ("envelopeContract", json!({})),
    ] {
        noop[member] = value;
    }
    let mut marked = node("marked", "core.identity", json!({}));
    marked["outputSensitivity"] = json!({ "key": true });
    let questions = json!([{ "id": "q", "question": "?", "schema": { "type": "string" } }]);
    let approval = json!({
        "title": "t", "description": "d", "prompt": "p", "actions": ["accept", "reject"], "requiredApprovals": 2,
        "rejectionPolicy": "majority", "approversList": ["a"], "timeoutMs": 1, "artifactId": "a", "artifactType": "t",
        "artifactData": {}, "profile": "openwop-interrupt-quorum", "approverRefs": ["a"], "approverRoleRefs": ["r"],
        "approverGroupRefs": ["g"], "onTimeout": "reject", "optionLabels": {}, "overrideScopes": [],
    });
    let edge = |id: &str, condition: Value| {
        json!({
            "id": id, "sourceNodeId": "all", "targetNodeId": "wait", "condition": condition, "triggerRule": "any_success",
            "label": "l", "sourceOutput": "output", "targetInput": "input",
        })
    };
    let attestation = json!({
        "checksum": true, "algorithm": "sha256", "requireApproval": true, "principalScope": ["ada"],
    });
    let mut whole = json!({
        "$schema": "https://example.com/schema.json", "id": "whole", "name": "Whole", "version": "1", "description": "d",
        "type": "t", "isActive": true, "status": "active", "scopeId": "s", "slug": "s", "groups": [], "defaults": {},
        "acceptsInheritedArtifacts": [], "createdAt": "c", "updatedAt": "u",
        "nodes": [
            noop,
            marked,
            node("wait", "core.delay", json!({ "delayMs": 1, "durationMs": 1, "ms": 1, "delaySeconds": 1 })),
            node("fail", "core.fail", json!({ "code": "c", "message": "m", "retryable": true })),
            node("decline", "core.a2a.reject", json!({ "message": "m" })),
            node("say", "core.stream", json!({ "chunks": ["a"], "intervalMs": 1 })),
            node("list", "core.stream", json!({ "expression": "[1]" })),
            node("text", "core.template", json!({ "template": "{{ v }}" })),
            node("set", "core.setVariable", json!({ "name": "v", "value": "{{ v }}" })),
            node("let", "core.setVariable", json!({ "variable": "v", "expression": "v" })),
            node("put", "core.setVariable", json!({ "variableName": "v", "value": 1 })),
            node("write", "core.channelWrite", json!({ "channelName": "c", "value": 1, "reducer": "append", "ttlMs": 1, "maxSize": 1 })),
            node("post", "core.channelWrite", json!({ "channel": "c", "value": 1 })),
            node("gate", "core.approvalGate", approval.clone()),
            node("ask", "core.clarificationGate", json!({ "questions": questions, "timeoutMs": 1, "title": "t", "description": "d", "prompt": "p" })),
            node("approve", "core.interrupt", json!({ "kind": "approval", "data": approval, "timeoutMs": 1, "title": "t", "description": "d", "prompt": "p" })),
            node("clarify", "core.interrupt", json!({ "kind": "clarification", "data": { "questions": questions } })),
            node("event", "core.interrupt", json!({ "kind": "external-event", "data": { "eventType": "e", "correlation": {} } })),
            node("other", "core.interrupt", json!({ "kind": "custom", "data": { "customKind": "k" } })),
            node("sub", "core.subWorkflow", json!({
                "workflowId": "child", "inputMapping": { "a": "v" }, "outputMapping": { "v": "a" }, "inputs": { "b": 1 },
                "onChildFailure": "absorb", "propagateCancellation": true, "waitForCompletion": true,
                "memoryScopeIsolation": "isolated",
                "outputAttestation": attestation,
            })),
            node("call", "core.http.request", json!({
                "method": "post", "url": "https://example.com/{{ v }}", "headers": { "a": "b", "c": { "secret": "s", "prefix": "x" } },
                "body": { "x": ["{{ v }}"] }, "timeoutMs": 1,
            })),
            node("prompt", "core.ai.callPrompt", prompting),
            node("document", "core.ai.structuredOutput", writing),
            node("tool", "core.mcp.toolCall", json!({
                "server": "s", "tool": "t", "arguments": { "x": ["{{ v }}"] }, "retrySafe": true, "timeoutMs": 1,
            })),
            node("toolPrompt", "core.ai.callPrompt", json!({ "mcp": { "tool": "t" } })),
            node("work", "core.activity", json!({
                "queue": "q", "input": { "x": ["{{ v }}"] }, "timeoutMs": 1, "heartbeatMs": 1,
            })),
            node("agent", "core.a2a.invoke", json!({
                "peer": "p", "skill": "s", "message": "{{ v }}", "data": { "x": ["{{ v }}"] }, "timeoutMs": 1,
                "protocolVersion": "1.0", "binding": "rest", "acceptedOutputModes": ["text/plain"],
            })),
            node("discover", "core.openwop.a2a.discover-agent", json!({ "baseUrl": "https://a.example", "timeoutMs": 1 })),
            node("send", "core.openwop.a2a.send-message", json!({
                "baseUrl": "https://a.example", "skill": "s", "message": "{{ v }}", "data": { "x": ["{{ v }}"] },
                "timeoutMs": 1, "protocolVersion": "1.0", "binding": "rest", "acceptedOutputModes": ["text/plain"],
            })),
            node("look", "core.openwop.a2a.get-task", json!({
                "peer": "p", "taskId": "{{ v }}", "timeoutMs": 1, "protocolVersion": "0.3", "binding": "grpc",
            })),
            node("stop", "core.openwop.a2a.cancel-task", json!({ "baseUrl": "https://a.example", "taskId": "t" })),
            node("talk", "core.openwop.a2a.multi-turn-coordinator", json!({
                "peer": "p", "skill": "s", "message": "{{ v }}", "data": 1, "maxTurns": 16, "timeoutMs": 1,
                "protocolVersion": "1.0", "binding": "jsonrpc", "acceptedOutputModes": [],
            })),
            node("effect", "core.conformance.side-effect", json!({})),
            node("chat", "core.conversationGate", json!({
                "title": "t", "prompt": "{{ v }}", "channel": "c", "outcomeSchema": { "type": "object" }, "maxTurns": 2,
                "timeoutMs": 1, "lifecycle": "open-exchange-close", "mockAutoResume": true, "turnCount": 1,
            })),
            node("note", "core.memory.write", json!({
                "memoryRef": "m", "content": "{{ v }}", "tags": ["{{ v }}"], "ttlMs": 1, "id": "{{ v }}",
            })),
            node("recall", "core.memory.read", json!({ "memoryRef": "m", "id": "i", "tag": "{{ v }}", "limit": 100 })),
            node("sum", "core.memory.compact", json!({ "memoryRef": "m", "content": "c", "tags": [], "ttlMs": 1, "id": "i" })),
            node("mock", "core.conformance.mock-agent", json!({
                "agentId": "a.b", "mockReasoning": { "summary": "s", "trace": "t", "tokenCount": 1, "streamChunks": ["c"] },
                "mockToolCalls": [{ "toolId": "a:b", "arguments": 1, "result": 1, "durationMs": 1 }],
                "mockHandoff": { "toAgentId": "b.c", "reason": "r", "context": 1 },
                "mockDecision": { "decision": 1, "confidence": 1, "reasoning": "r" }, "mockConfidence": 1,
            })),
        ],
        "edges": [
            edge("e1", json!({ "type": "equals", "left": "output.a", "right": 1 })),
            edge("e2", json!({ "expression": "v" })),
            edge("e3", json!({ "type": "regex", "left": "v", "right": "a" })),
            edge("e4", json!({ "type": "truthy", "left": "v" })),
            edge("e5", json!({ "type": "contains", "left": "v", "right": "a" })),
        ],
        "triggers": [{ "id": "t", "type": "manual", "name": "n", "description": "d", "config": {}, "enabled": true, "nodeId": "all", "eventType": "e" }],
        "variables": [{ "name": "v", "type": "string", "description": "d", "required": true, "defaultValue": "x", "sensitive": false, "format": "f" }],
        "channels": { "c": {
            "reducer": "append", "schema": { "type": "array" }, "default": [], "maxSize": 1, "ttlMs": 1, "options": {},
            "access": { "writers": ["all"], "readers": ["*"] }, "schemaVersion": 1, "compatibleWith": [], "sensitive": false,
        } },
        "configurableSchema": { "type": "object" },
        "metadata": { "public": true, "tags": ["t"], "examples": ["e"], "a2a": { "reply": "task" } },
        "settings": { "timeout": 1, "maxRetries": 1, "retryDelayMs": 1 },
    });
    let supervised = vec![
        node(
            "lead",
            "core.orchestrator.supervisor",
            json!({
                "agentId": "lead", "maxLoopIterations": 5, "iterationCap": 5,
                "rules": [{ "when": "v > 1", "decision": { "kind": "terminate", "reason": "{{ v }}" } }],
                "decision": { "kind": "next-worker", "nextWorkerIds": ["child"], "confidence": "{{ v }}" },
            }),
        ),
        node(
            "led",
            "core.orchestrator.supervisor",
            json!({
                "model": {
                    "provider": "p", "model": "m", "systemPrompt": "{{ v }}", "prompt": "{{ v }}", "temperature": 0,
                    "maxTokens": 1, "timeoutMs": 1, "retryOnInvalidJson": 1,
                },
                "workers": [{ "id": "child", "description": "d" }],
            }),
        ),
        node(
            "plan",
            "core.orchestrator.supervisor",
            json!({
                "mockDispatchPlan": [{ "kind": "terminate" }], "mockDecisions": [{ "kind": "terminate" }],
            }),
        ),
        node(
            "held",
            "core.orchestrator.supervisor",
            json!({
                "mockConfidence": 0.5, "mockPendingDecision": { "kind": "terminate" },
            }),
        ),
        node(
            "dispatch",
            "core.dispatch",
            json!({
                "askUserRouting": "auto", "workerDispatchModel": "child-run", "fanOutPolicy": "parallel",
                "iterationCap": 5, "inputMapping": { "a": "v" }, "outputMapping": { "v": "a" },
                "perWorkerInputMappings": { "child": { "a": "v" } },
                "perWorkerOutputMappings": { "child": { "v": "a" } }, "maxConcurrency": 2,
                "joinPolicy": { "mode": "quorum", "quorum": 1, "onChildFailure": "collect" },
            }),
        ),
    ];
    whole["nodes"].as_array_mut().expect("nodes").extend(supervised);
    whole
}

fn documents() -> Vec<(String, Value)> {
    let mut documents = vec![("whole".to_owned(), whole())];
    for folder in ["/../../examples", "/../../../shared/fixtures/openwop/workflows"] {
        let folder = PathBuf::from(format!("{}{folder}", env!("CARGO_MANIFEST_DIR")));
        let Ok(files) = fs::read_dir(&folder) else {
            println!("note: {} is not here", folder.display());
            continue;
        };
        for file in files {
            let path = file.expect("readable folder").path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let text = fs::read(&path).expect("readable");
                let document = serde_json::from_slice(&text).expect("JSON");
                documents.push((path.display().to_string(), document));
            }
        }
    }
    documents
}

#[test]
fn schema_accepts_every_valid_definition() {
    let schema = definition_schema(OFFER);
    jsonschema::meta::validate(&schema).expect("a JSON Schema");
    let validator = jsonschema::draft202012::new(&schema).expect("compiles");
    let mut n_admitted = 0;
    for (name, document) in documents() {
        let admitted = Plan::admit(document.clone(), OFFER);
        if name == "whole" {
            admitted.as_ref().expect("admitted");
        }
        if let Ok(plan) = &admitted {
            n_admitted += 1;
            for warning in plan.warnings() {
                println!("{name}: {} {}", warning.lint.as_str(), warning.problem);
            }
            let errors: Vec<_> = validator
                .iter_errors(&document)
                .map(|error| error.to_string())
                .collect();
            assert_eq!(errors, Vec::<String>::new(), "{name}");
        }
    }
    assert!(n_admitted >= 6);
}

#[test]
fn examples_have_no_warnings() {
    let examples = documents()
        .into_iter()
        .filter(|(name, _)| name.contains("/examples/"));
    for (name, document) in examples {
        let plan = Plan::admit(document, NodeTypes::default()).expect("valid");
        assert_eq!(plan.warnings(), [], "{name}");
    }
}

/// Lists every place in a document as a JSON pointer.
fn places(value: &Value, pointer: &str, found: &mut Vec<String>) {
    found.push(pointer.to_owned());
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                places(value, &format!("{pointer}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                places(item, &format!("{pointer}/{index}"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns copies of a document, each with one change, for every place.
fn mutations(document: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    places(document, "", &mut found);
    let mut mutations = Vec::new();
    for pointer in found {
        let mut change = |change: &dyn Fn(&mut Value)| {
            let mut changed = document.clone();
            change(changed.pointer_mut(&pointer).expect("there"));
            if changed != *document {
                mutations.push(changed);
            }
        };
        for value in [
            json!(null),
            json!(false),
            json!(-1),
            json!(1.5),
            json!(4_294_967_296_u64),
            json!(""),
            json!("_zz"),
            json!("x".repeat(300)),
            json!([]),
            json!([1]),
            json!({}),
        ] {
            change(&|place| *place = value.clone());
        }
        change(&|place| {
            if let Value::Object(fields) = place {
                fields.insert("unheardOf".to_owned(), json!(1));
            }
        });
        let names: Vec<_> = document
            .pointer(&pointer)
            .and_then(Value::as_object)
            .map_or_else(Vec::new, |fields| fields.keys().cloned().collect());
        for name in names {
            change(&|place| {
                if let Value::Object(fields) = place {
                    fields.remove(&name);
                }
            });
        }
    }
    mutations
}

#[test]
fn host_rejects_what_the_schema_rejects() {
    let validator = jsonschema::draft202012::new(&definition_schema(OFFER)).expect("compiles");
    let (mut n_both, mut n_host) = (0, 0);
    for document in mutations(&whole()) {
        let admitted = Plan::admit(document.clone(), OFFER);
        match (validator.is_valid(&document), &admitted) {
            (false, Ok(_)) => {
                let errors: Vec<_> = validator
                    .iter_errors(&document)
                    .map(|error| error.to_string())
                    .collect();
                panic!("the schema refuses what the host takes: {errors:?}");
            }
            (false, Err(_)) => n_both += 1,
            (true, Err(_)) => n_host += 1,
            (true, Ok(_)) => {}
        }
        if let Err(Problems(problems)) = admitted {
            for problem in &problems {
                assert!(
                    document.pointer(&problem.pointer).is_some(),
                    "{problem} at {}",
                    problem.pointer
                );
            }
        }
    }
    assert!(n_both > 1_000, "{n_both}");
    // The remaining rules: names that must exist or be unique, and expression syntax.
    assert!(n_host < n_both / 4, "{n_host} of {n_both}");
}

/// Extracts the field or variant names that serde lists in its error.
fn listed(problems: &Problems) -> Vec<String> {
    let rule = &problems.0[0].rule;
    let list = rule.rsplit_once("expected ").expect("a list").1;
    let mut names: Vec<_> = list
        .split('`')
        .skip(1)
        .step_by(2)
        .map(ToOwned::to_owned)
        .collect();
    names.sort();
    names
}

fn keys(schema: &Value) -> Vec<String> {
    schema.as_object().expect("properties").keys().cloned().collect()
}

#[test]
fn schema_contains_every_field_of_the_decoder() {
    let schema = definition_schema(OFFER);
    let properties = &schema["properties"];
    let decoder = |pointer: &str| {
        let mut document = whole();
        let place = document.pointer_mut(pointer).expect("there");
        match place {
            Value::Object(fields) => drop(fields.insert("unheardOf".to_owned(), json!(1))),
            other => *other = json!("unheardOf"),
        }
        listed(&wopr_core::Definition::parse(document).expect_err("an unknown name"))
    };
    let sorted = |choices: &Value| {
        let mut names: Vec<String> = serde_json::from_value(choices.clone()).expect("texts");
        names.sort();
        names
    };
    let [node, edge, variable] =
        ["nodes", "edges", "variables"].map(|list| &properties[list]["items"]["properties"]);
    assert_eq!(decoder("/nodes/0"), keys(node));
    assert_eq!(
        decoder("/nodes/0/outputRole"),
        sorted(&node["outputRole"]["anyOf"][0]["enum"])
    );
    assert_eq!(decoder("/edges/0"), keys(edge));
    assert_eq!(
        decoder("/edges/0/triggerRule"),
        sorted(&edge["triggerRule"]["enum"])
    );
    let condition = &edge["condition"]["anyOf"][0];
    assert_eq!(
        decoder("/edges/0/condition/type"),
        sorted(&condition["properties"]["type"]["enum"])
    );
    for variant in condition["allOf"].as_array().expect("variants") {
        assert_eq!(
            decoder("/edges/0/condition"),
            keys(&variant["then"]["properties"])
        );
    }
    assert_eq!(decoder("/variables/0"), keys(variable));
    assert_eq!(decoder("/variables/0/type"), sorted(&variable["type"]["enum"]));
    let mut root = keys(properties);
    root.retain(|name| name != "tenantId");
    assert_eq!(root, keys(&whole()));
    // The decoder checks `config` against the same tables: each key in a type's list is in its schema.
    for node in whole()["nodes"].as_array().expect("nodes") {
        let type_id = node["typeId"].as_str().expect("text");
        let mut document = whole();
        document["nodes"] = json!([node]);
        document["nodes"][0]["config"]["unheardOf"] = json!(1);
        document["nodes"][0]["inputs"] = json!({});
        document["edges"] = json!([]);
        let definition = wopr_core::Definition::parse(document).expect("a shape");
        let Err(Problems(problems)) = Plan::compile(definition, OFFER) else {
            continue;
        };
        let list = problems[0].rule.split_once(" has ").expect("a list").1;
        let schema = schema["properties"]["nodes"]["items"]["allOf"]
            .as_array()
            .expect("types");
        let schema = schema
            .iter()
            .find(|kind| kind["if"]["properties"]["typeId"]["const"] == type_id);
        let config = &schema.expect("described")["then"]["properties"]["config"];
        let variants = config["allOf"].as_array().map_or_else(
            || vec![&config["properties"]],
            |variants| {
                variants
                    .iter()
                    .map(|variant| &variant["then"]["properties"])
                    .collect()
            },
        );
        for properties in variants {
            let mut known: Vec<_> = list.split(", ").map(ToOwned::to_owned).collect();
            known.sort();
            assert_eq!(known, keys(properties), "{type_id}");
        }
    }
}

const BROKEN: &str = r#"{
  "$schema": "workflow-definition.schema.json",
  "id": "pay",
  "name": "Pay",
  "versoin": "1",
  "nodes": [
    { "id": "note", "typeId": "core.tempalte", "name": "Note" },
    { "id": "gate", "typeId": "core.approvalGate", "name": "Gate", "config": { "titel": "Pay?", "actions": ["accept", "rejet"] } },
    { "id": "wait", "typeId": "core.delay", "name": "Wait", "config": { "delayMs": "5", "ms": -1 }, "dissabled": true },
    { "id": "set", "typeId": "core.setVariable", "name": "Set", "config": { "name": "a", "expression": "a | uper" },
      "inputs": { "x": { "type": "conection", "nodeId": "gate", "outputKey": "action" },
                  "y": { "type": "connection", "nodeId": "gat", "outputKey": "action" } } }
  ],
  "edges": [
    { "id": "a", "sourceNodeId": "note", "targetNodeId": "Gate", "triggerRule": "any-success" },
    { "id": "a", "sourceNodeId": "gate", "targetNodeId": "wait", "condition": { "type": "equal", "left": "status", "right": 1 } }
  ],
  "triggers": [{ "id": "t", "type": "manul" }],
  "variables": [{ "name": "a", "type": "text" }],
  "channels": { "log": { "reducer": "apend", "access": "private" } },
  "metadata": {},
  "settings": { "maxRetries": 1000 }
}"#;

#[test]
fn all_mistakes_are_reported_with_line_and_suggestion() {
    let document = serde_json::from_str(BROKEN).expect("JSON");
    let Problems(problems) = Plan::admit(document, NodeTypes::default()).expect_err("broken");
    let places = locate(BROKEN, &problems);
    let mut table = String::new();
    for (problem, place) in problems.iter().zip(places) {
        let place = place.expect("it has a place");
        let text = &BROKEN[place.start..place.end.min(place.start + 20)];
        table += &format!(
            "{}:{} {:?} {problem} [{}]\n",
            place.line, place.column, text, problem.pointer
        );
    }
    expect![[r#"
        5:3 "\"versoin\"" definition: unknown field 'versoin'; did you mean 'version'? [/versoin]
        1:1 "{\n  \"$schema\": \"work" definition: 'version' is missing []
        7:31 "\"core.tempalte\"" node 'note': typeId 'core.tempalte' is not offered by this host; did you mean 'core.template'? [/nodes/0/typeId]
        8:80 "\"titel\"" node 'gate': config.titel is not known; core.approvalGate has title, description, prompt, actions, requiredApprovals, rejectionPolicy, approversList, approverRefs, approverRoleRefs, approverGroupRefs, onTimeout, optionLabels, overrideScopes, timeoutMs, artifactId, artifactType, artifactData, profile; did you mean 'title'? [/nodes/1/config/titel]
        8:119 "\"rejet\"" node 'gate': config.actions[1] is 'rejet', which is none of accept, approve, reject, refine, edit-accept, edit, ask; did you mean 'reject'? [/nodes/1/config/actions/1]
        9:101 "\"dissabled\"" node 'wait': unknown field 'dissabled'; did you mean 'disabled'? [/nodes/2/dissabled]
        9:84 "\"5\"" node 'wait': config.delayMs is not a whole number of at least 0 [/nodes/2/config/delayMs]
        9:95 "-1" node 'wait': config.ms is not a whole number of at least 0 [/nodes/2/config/ms]
        11:34 "\"conection\"" node 'set': inputs.x.type is 'conection', which is none of static, expression, connection, variable; did you mean 'connection'? [/nodes/3/inputs/x/type]
        12:58 "\"gat\"" node 'set': inputs.y: node 'gat' does not exist; did you mean 'gate'? [/nodes/3/inputs/y/nodeId]
        10:104 "\"a | uper\"" node 'set': config.expression: parse the expression: there is no filter 'uper' [/nodes/3/config/expression]
        15:81 "\"any-success\"" edge 'a': 'triggerRule' is 'any-success', which is none of all_success, any_success, all_complete, none_failed, any_failed; did you mean 'any_success'? [/edges/0/triggerRule]
        15:58 "\"Gate\"" edge 'a': target node 'Gate' does not exist; did you mean 'gate'? [/edges/0/targetNodeId]
        16:89 "\"equal\"" edge 'a': condition.type is 'equal', which is none of expression, equals, notEquals, contains, regex, truthy, falsy; did you mean 'equals'? [/edges/1/condition/type]
        16:13 "\"a\"" edge 'a': the id is used twice [/edges/1/id]
        18:37 "\"manul\"" trigger 0: 'type' is 'manul', which is none of manual, schedule, webhook, event, artifact, canvas, envelope, command, chat-message, channel-write; did you mean 'manual'? [/triggers/0/type]
        19:40 "\"text\"" variable 'a': 'type' is 'text', which is none of string, number, boolean, object, array [/variables/0/type]
        20:37 "\"apend\"" channel 'log': 'reducer' is 'apend', which is not known; did you mean 'append'? [/channels/log/reducer]
        20:56 "\"private\"" channel 'log': access 'private' lets no node read, which this host does not hold; name access.writers [/channels/log/access]
        22:31 "1000" definition: settings.maxRetries is over 100 [/settings/maxRetries]
    "#]].assert_eq(&table);
}

#[test]
fn published_schema_is_current() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/workflow-definition.schema.json"
    );
    let mut text = serde_json::to_string_pretty(&definition_schema(NodeTypes::default())).expect("JSON");
    text.push('\n');
    expect_test::expect_file![path].assert_eq(&text);
}
