//! Workflows that ask a scripted model: `wopr mock-model` and a host, as two processes.

use std::{
    fs,
    process::{Child, Stdio},
};

use serde_json::{Value, json};

use crate::{
    binary::{Place, first_line},
    snippets::snippets,
};

/// A scripted model; killed on drop.
pub(crate) struct Model {
    child: Child,
    pub(crate) origin: String,
}

impl Model {
    pub(crate) fn start(place: &Place, script: &Value) -> Self {
        place.write("script.json", &script.to_string());
        let args = [
            "mock-model",
            "script.json",
            "--listen",
            "127.0.0.1:0",
            "--record",
            "asked.ndjson",
        ];
        let mut command = place.command(&args);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let line = first_line(&mut child, |line| line.starts_with("listening on ")).unwrap();
        let origin = line.trim_start_matches("listening on ").to_owned();
        Self { child, origin }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The requests that the model got.
fn asked(place: &Place) -> Vec<Value> {
    let text = fs::read_to_string(place.path().join("asked.ndjson")).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn workflow(id: &str, nodes: &[(&str, &str, Value)]) -> String {
    let shown: Vec<_> = nodes
        .iter()
        .map(|(id, type_id, config)| {
            json!({ "id": id, "typeId": type_id, "name": id, "position": { "x": 0, "y": 0 }, "config": config,
                "inputs": {} })
        })
        .collect();
    let edges: Vec<_> = nodes
        .windows(2)
        .map(|pair| json!({ "id": pair[0].0, "sourceNodeId": pair[0].0, "targetNodeId": pair[1].0 }))
        .collect();
    json!({
        "id": id, "name": id, "version": "1", "nodes": shown, "edges": edges, "variables": [], "metadata": {},
        "settings": { "retryDelayMs": 1 }, "triggers": [{ "id": "manual", "type": "manual" }],
    })
    .to_string()
}

fn events(place: &Place, run: &str) -> Vec<Value> {
    let shown = place.json(&["runs", "events", run, "--json"]);
    shown["events"].as_array().unwrap().clone()
}

fn types(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect()
}

#[test]
fn a_model_on_a_used_port_ends_with_the_code_for_it() {
    let place = Place::new();
    let model = Model::start(&place, &json!({ "replies": [] }));
    let address = model.origin.trim_start_matches("http://");
    let said = place.ends(8, &["mock-model", "script.json", "--listen", address]);
    assert!(
        said.err.contains(address) && said.err.contains("--listen"),
        "{said:#?}"
    );
}

#[test]
fn model_writes_text_and_documents_over_both_wires() {
    let mut place = Place::new();
    let model = Model::start(
        &place,
        &json!({ "replies": [
            { "when": { "user": "Haiku" }, "status": 503, "times": 1 },
            { "when": { "user": "Haiku" }, "chunks": ["Old ", "silent ", "pond"], "delayMs": 200,
                "usage": { "input": 11, "output": 3 } },
            { "when": { "user": "Rate", "turn": 1 }, "text": "{\"stars\": \"many\"}" },
            { "when": { "turn": 2 }, "text": "```json\n{\"stars\": 5}\n```" },
        ] }),
    );
    place.write(
        "wopr.toml",
        &format!(
            "[[models]]\nname = \"default\"\nbase_url = \"{0}/v1\"\nmodel = \"small\"\nsecret = \"key\"\n\
             price = {{ input = 1.0, output = 1.0 }}\n\
             [[models]]\nname = \"other\"\nkind = \"anthropic\"\nbase_url = \"{0}\"\nmodel = \"large\"\n\
             [[secrets.named]]\nname = \"key\"\nenv = \"MY_MODEL_KEY\"\n\
             [egress]\nallow = [\"127.0.0.1/32\"]\n",
            model.origin
        ),
    );
    place.set("WOPR_CONFIG", "wopr.toml");
    place.set("MY_MODEL_KEY", "sk-of-the-tests-0123456789");
    let host = place.serve();
    let schema =
        json!({ "type": "object", "required": ["stars"], "properties": { "stars": { "type": "number" } } });
    place.write(
        "poem.json",
        &workflow(
            "poem",
            &[
                ("write", "core.ai.callPrompt", json!({ "prompt": "Haiku about {{ inputs.topic }}" })),
                (
                    "rate",
                    "core.ai.structuredOutput",
                    json!({ "provider": "other", "prompt": "Rate: {{ nodes.write.text }}", "outputSchema": schema }),
                ),
            ],
        ),
    );
    let shown = place.json(&["run", "poem.json", "--input", "topic=frogs", "--json"]);
    assert_eq!(shown["status"], "completed", "{shown:#}");
    assert_eq!(shown["outputs"]["data"], json!({ "stars": 5 }));
    assert_eq!(shown["outputs"]["retries"], 1);

    let run = shown["runId"].as_str().unwrap();
    let events = events(&place, run);
    let types = types(&events);
    let count = |kind: &str| types.iter().filter(|known| **known == kind).count();
    assert_eq!(count("node.retried"), 1, "{types:?}");
    assert!(count("output.chunk") >= 2, "{types:?}");
    assert_eq!(count("provider.usage"), 3, "{types:?}");
    assert_eq!(count("envelope.retry.attempted"), 1, "{types:?}");
    assert_eq!(count("envelope.recovery.applied"), 1, "{types:?}");
    let chunks = events.iter().filter(|event| event["type"] == "output.chunk");
    let text: String = chunks
        .map(|event| event["payload"]["chunk"].as_str().unwrap())
        .collect();
    assert_eq!(text, "Old silent pond");

    let snapshot = place.json(&["runs", "show", run, "--json"]);
    let cost = &snapshot["metrics"]["openwopCost"];
    assert_eq!(
        (cost["provider"].as_str(), cost["model"].as_str()),
        (Some("other"), Some("large"))
    );
    assert!(cost["usd"].as_f64().unwrap() > 0.0, "{cost}");

    // What one model wrote is data for the next.
    let requests = asked(&place);
    let rate = requests
        .iter()
        .find(|asked| asked["wire"] == "anthropic")
        .unwrap()
        .to_string();
    assert!(rate.contains("<UNTRUSTED source="), "{rate}");

    let (_, log) = {
        let mut host = host;
        host.close_stdin();
        host.wait()
    };
    let everything = format!(
        "{snapshot}{events:?}{log}{}",
        fs::read_to_string(place.path().join("asked.ndjson")).unwrap()
    );
    assert!(!everything.contains("sk-of-the-tests"), "the key is nowhere");
}

#[test]
fn first_model_needs_only_variables() {
    let mut place = Place::new();
    let model = Model::start(&place, &json!({ "replies": [{ "text": "Hello from a model." }] }));
    place.set("WOPR_MODEL_URL", &format!("{}/v1", model.origin));
    place.set("WOPR_MODEL_NAME", "small");
    place.set("WOPR_MODEL_KEY", "sk-of-the-tests-0123456789");
    place.set("WOPR_EGRESS_ALLOW", "127.0.0.1/32");
    let page = snippets("docs/models.md", "\n## A first model\n");
    let document = page.iter().find(|snippet| snippet.language == "json").unwrap();
    place.write("ask.json", &document.body);
    let said = place.ends(0, &["run", "ask.json", "--input", "prompt=Hi"]);
    assert_eq!(said.out, "Hello from a model.\n");
    assert_eq!(asked(&place)[0]["request"]["messages"][0]["content"], "Hi");
    // A run may be asked of another model; and --store wins over a server that the environment names.
    place.set("WOPR_SERVER", "http://127.0.0.1:9");
    let larger = r#"{"model": "large", "maxTokens": 5}"#;
    let args = [
        "run",
        "ask.json",
        "--input",
        "prompt=Hi",
        "--configurable",
        larger,
        "--store",
        "memory:",
    ];
    place.ends(0, &args);
    let request = &asked(&place)[1]["request"];
    assert_eq!(
        (&request["model"], &request["max_tokens"]),
        (&json!("large"), &json!(5))
    );
    let refused = place.ends(
        2,
        &["run", "ask.json", "--store", "memory:", "--configurable", "[]"],
    );
    assert!(
        refused.err.contains("--configurable is not a JSON object"),
        "{}",
        refused.err
    );
    let refused = place.ends(2, &["run", "ask.json", "--store", "memory:", "--detach"]);
    assert!(
        refused.err.contains("--detach leaves a run to a server"),
        "{}",
        refused.err
    );
}

#[test]
fn wrong_scripts_are_refused() {
    let place = Place::new();
    place.ends(4, &["mock-model", "missing.json"]);
    place.write("script.json", r#"{"replies": [{"texts": "x"}]}"#);
    let said = place.ends(3, &["mock-model", "script.json"]);
    assert!(said.err.contains("unknown field `texts`"), "{said:#?}");
}

/// The configuration of a host whose default provider is the scripted model.
fn configured(place: &mut Place, model: &Model, kind: &str) {
    let base = match kind {
        "anthropic" => model.origin.clone(),
        _ => format!("{}/v1", model.origin),
    };
    place.write(
        "wopr.toml",
        &format!(
            "[[models]]\nname = \"default\"\nkind = \"{kind}\"\nbase_url = \"{base}\"\nmodel = \"small\"\n\
             [egress]\nallow = [\"127.0.0.1/32\"]\n"
        ),
    );
    place.set("WOPR_CONFIG", "wopr.toml");
}

#[test]
fn model_uses_workflows_as_tools_over_both_wires() {
    for kind in ["openai", "anthropic"] {
        let mut place = Place::new();
        let model = Model::start(
            &place,
            &json!({ "replies": [
                { "when": { "user": "umbrella", "turn": 1 }, "toolCalls": [
                    { "name": "forecast", "arguments": { "city": "Rome" } },
                    { "name": "forecast", "arguments": { "city": "Oslo" } },
                    { "name": "shell", "arguments": { "run": "id" } },
                ] },
                { "when": { "tool": "rain in Oslo", "turn": 2 }, "text": "Take it to both." },
            ] }),
        );
        configured(&mut place, &model, kind);
        let host = place.serve();
        let city = json!([{ "name": "city", "type": "string" }]);
        let mut rain: Value = serde_json::from_str(&workflow(
            "rain",
            &[(
                "say",
                "core.template",
                json!({ "template": "rain in {{ city }}" }),
            )],
        ))
        .unwrap();
        rain["variables"] = city;
        place.write("rain.json", &rain.to_string());
        place.json(&["workflows", "register", "rain.json", "--json"]);
        let schema =
            json!({ "type": "object", "required": ["city"], "properties": { "city": { "type": "string" } } });
        place.write(
            "ask.json",
            &workflow(
                "ask",
                &[(
                    "n",
                    "core.ai.callPrompt",
                    json!({ "prompt": "An umbrella?", "tools": [{ "workflow": "rain", "name": "forecast", "inputSchema": schema }] }),
                )],
            ),
        );
        let shown = place.json(&["run", "ask.json", "--json"]);
        assert_eq!(shown["status"], "completed", "{kind}: {shown:#}");
        assert_eq!(shown["outputs"]["text"], "Take it to both.");
        let events = events(&place, shown["runId"].as_str().unwrap());
        let of = |kind: &str| {
            events
                .iter()
                .filter(|event| event["type"] == kind)
                .collect::<Vec<_>>()
        };
        let (called, returned) = (of("agent.toolCalled"), of("agent.toolReturned"));
        assert_eq!((called.len(), returned.len()), (3, 3), "{kind}");
        assert_eq!(called[0]["payload"]["transport"], "native");
        let shell = returned
            .iter()
            .find(|event| event["payload"]["toolName"] == "shell")
            .unwrap();
        assert_eq!(shell["payload"]["status"], "forbidden");
        let requests = asked(&place);
        assert_eq!(requests.len(), 2, "{kind}");
        let again = requests[1].to_string();
        assert!(
            again.contains("<UNTRUSTED source=\\\"tool:forecast\\\">"),
            "{kind}: {again}"
        );
        drop(host);
    }
}

/// Over the wires of both kinds, a model sums up what it would otherwise have to read in every turn.
#[test]
fn model_sums_up_a_long_loop_over_each_wire() {
    for kind in ["openai", "anthropic"] {
        let mut place = Place::new();
        let decision = |value: Value| json!({ "when": { "system": "You lead" }, "json": value });
        let mut next = decision(json!({
            "kind": "next-worker", "nextWorkerIds": ["talker"], "confidence": 0.9, "reasoning": "",
        }));
        next["times"] = json!(4);
        let last = decision(json!({
            "kind": "terminate", "reason": "goal-reached", "confidence": 0.95, "reasoning": "",
        }));
        let summary =
            json!({ "when": { "system": "Sum it up for yourself" }, "text": "Four facts are known." });
        let model = Model::start(&place, &json!({ "replies": [summary, next, last] }));
        configured(&mut place, &model, kind);
        let host = place.serve();
        let words = format!("bees hum {}", "x".repeat(5_000));
        place.write(
            "talker.json",
            &workflow(
                "talker",
                &[("say", "core.template", json!({ "template": words }))],
            ),
        );
        place.json(&["workflows", "register", "talker.json", "--json"]);
        let lead = json!({
            "model": { "prompt": "Find facts about bees." },
            "workers": [{ "id": "talker" }],
            "contextBudget": { "transcriptTokenBudget": 16_500, "summarization": { "keepLastTurns": 1 } },
        });
        let mut led: Value = serde_json::from_str(&workflow(
            "led",
            &[
                ("lead", "core.orchestrator.supervisor", lead),
                ("dispatch", "core.dispatch", json!({})),
            ],
        ))
        .unwrap();
        let back = json!({ "id": "back", "sourceNodeId": "dispatch", "targetNodeId": "lead" });
        led["edges"].as_array_mut().unwrap().push(back);
        place.write("led.json", &led.to_string());
        let shown = place.json(&["run", "led.json", "--json"]);
        assert_eq!(shown["status"], "completed", "{shown:#}");
        let log = events(&place, shown["runId"].as_str().unwrap());
        assert_eq!(
            types(&log)
                .iter()
                .filter(|kind| **kind == "context.summarized")
                .count(),
            1
        );
        let asked = asked(&place);
        assert_eq!(asked.len(), 6, "{kind}");
        let (summed_up, after) = (asked[4].to_string(), asked[5].to_string());
        assert_eq!(summed_up.matches("bees hum").count(), 3, "{summed_up}");
        assert!(after.contains("Four facts are known."), "{after}");
        assert_eq!(after.matches("bees hum").count(), 1, "{after}");
        drop(host);
    }
}

#[test]
fn model_leads_workers_until_they_are_done() {
    let mut place = Place::new();
    let decision = |value: Value| json!({ "when": { "system": "You lead" }, "json": value });
    let mut first = decision(json!({
        "kind": "next-worker", "nextWorkerIds": ["researcher"], "nextWorkerInputs": [{ "topic": "bees" }],
        "confidence": 0.9, "reasoning": "nothing is known yet",
    }));
    first["times"] = json!(1);
    let last = decision(json!({
        "kind": "terminate", "reason": "goal-reached", "confidence": 0.95, "reasoning": "one fact is enough",
    }));
    let model = Model::start(&place, &json!({ "replies": [first, last] }));
    configured(&mut place, &model, "openai");
    let host = place.serve();
    let mut researcher: Value = serde_json::from_str(&workflow(
        "researcher",
        &[("find", "core.template", json!({ "template": "{{ topic }} hum" }))],
    ))
    .unwrap();
    researcher["variables"] = json!([{ "name": "topic", "type": "string" }]);
    place.write("researcher.json", &researcher.to_string());
    place.json(&["workflows", "register", "researcher.json", "--json"]);
    let mut led: Value = serde_json::from_str(&workflow(
        "led",
        &[
            (
                "lead",
                "core.orchestrator.supervisor",
                json!({
                    "model": { "prompt": "Find a fact about bees." },
                    "workers": [{ "id": "researcher", "description": "finds one fact" }],
                }),
            ),
            ("dispatch", "core.dispatch", json!({})),
        ],
    ))
    .unwrap();
    let back = json!({ "id": "back", "sourceNodeId": "dispatch", "targetNodeId": "lead" });
    led["edges"].as_array_mut().unwrap().push(back);
    place.write("led.json", &led.to_string());
    let shown = place.json(&["run", "led.json", "--json"]);
    assert_eq!(shown["status"], "completed", "{shown:#}");
    assert_eq!(shown["outputs"]["reason"], "goal-reached");
    let events = events(&place, shown["runId"].as_str().unwrap());
    let decided = events
        .iter()
        .filter(|event| event["type"] == "runOrchestrator.decided");
    assert_eq!(decided.count(), 2);
    let reasoned = events
        .iter()
        .find(|event| event["type"] == "agent.reasoned")
        .unwrap();
    assert_eq!(reasoned["payload"]["reasoning"], "nothing is known yet");
    let again = asked(&place)[1].to_string();
    assert!(
        again.contains("bees hum") && again.contains("source=\\\"workers\\\""),
        "{again}"
    );
    drop(host);
}
