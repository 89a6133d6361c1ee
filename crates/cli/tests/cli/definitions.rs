//! Workflow definitions: valid ones, invalid ones, and files that a host skips.

use serde_json::{Value, json};

use crate::binary::{Place, examples, members};

/// A definition with a single node.
fn definition(id: &str, type_id: &str) -> Value {
    json!({
        "id": id, "name": id, "version": "1", "edges": [], "triggers": [], "variables": [], "metadata": {},
        "settings": {},
        "nodes": [{
            "id": "only", "typeId": type_id, "name": "Only", "position": {"x": 0, "y": 0}, "config": {}, "inputs": {},
        }],
    })
}

#[test]
fn examples_are_valid() {
    let place = Place::new();
    let mut args = vec!["workflows".to_owned(), "validate".to_owned(), "--json".to_owned()];
    for entry in examples().read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            args.push(path.display().to_string());
        }
    }
    let said = place.ends(0, &args).json();
    assert_eq!(said["valid"], true);
    let mut ids: Vec<_> = said["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["workflowId"].as_str().unwrap())
        .collect();
    ids.sort_unstable();
    assert_eq!(
        ids,
        [
            "a2a-echo",
            "campaign-brief",
            "clarify-order",
            "hello",
            "nightly-report"
        ]
    );
}

#[test]
fn invalid_file_is_reported_with_place_and_rule() {
    let place = Place::new();
    place.write("good.json", &definition("good", "core.noop").to_string());
    place.write("type.json", &definition("type", "core.fly").to_string());
    place.write("empty.json", "{}");
    place.write("text.json", "not json");
    let args = [
        "workflows",
        "validate",
        "good.json",
        "type.json",
        "empty.json",
        "text.json",
        "none.json",
    ];
    let said = place.ends(3, &args);
    for wanted in [
        "ok   good.json",
        "bad  type.json",
        "node 'only': typeId 'core.fly' is not offered by this host",
        "definition: 'nodes' is missing",
        "text.json is not JSON",
        "cannot read none.json",
    ] {
        assert!(said.out.contains(wanted), "{wanted}: {said:#?}");
    }
    let said = place
        .ends(3, &["workflows", "validate", "--json", "good.json", "type.json"])
        .json();
    assert_eq!(said["valid"], false);
    assert_eq!(
        members(&said["files"][0]),
        ["contentVersion", "file", "problems", "valid", "workflowId"]
    );
    assert_eq!(said["files"][1]["valid"], false);
}

#[test]
fn conformance_types_are_valid_only_if_allowed() {
    let place = Place::new();
    place.write(
        "w.json",
        &definition("w", "core.conformance.side-effect").to_string(),
    );
    place.ends(3, &["workflows", "validate", "w.json"]);
    place.ends(0, &["workflows", "validate", "--conformance", "w.json"]);
}

#[test]
fn skipped_files_are_listed_without_a_server() {
    let place = Place::new();
    place.write("flows/good.json", &definition("good", "core.noop").to_string());
    place.write("flows/bad.json", &definition("bad", "core.fly").to_string());
    place.write("flows/notes.txt", "not a workflow");
    let args = [
        "workflows",
        "list",
        "--rejected",
        "--workflows",
        "flows",
        "--json",
    ];
    let rejected = place.json(&args);
    let rejected = rejected["rejected"].as_array().unwrap();
    assert_eq!(rejected.len(), 1);
    assert!(rejected[0]["file"].as_str().unwrap().ends_with("bad.json"));
    assert!(rejected[0]["problems"][0].as_str().unwrap().contains("core.fly"));
}

#[test]
fn listing_rejected_files_calls_no_server() {
    let mut place = Place::new();
    place.set("WOPR_SERVER", "http://127.0.0.1:1");
    for args in [
        ["workflows", "list", "--rejected"].as_slice(),
        &["workflows", "list", "--rejected", "--json"],
    ] {
        let said = place.ends(2, args);
        assert!(said.err.contains("none is configured here"), "{said:#?}");
        assert_eq!(said.out, "");
    }
    place.write("flows/bad.json", &definition("bad", "core.fly").to_string());
    let args = ["workflows", "list", "--rejected", "--workflows", "flows"];
    let said = place.ends(0, &args);
    assert!(said.err.contains("no server is asked"), "{said:#?}");
    let doctor = [
        "doctor",
        "--workflows",
        "flows",
        "--listen",
        "127.0.0.1:0",
        "--store",
        "memory:",
    ];
    let said = place.run(&doctor);
    assert!(said.out.contains("bad.json:1:145: node 'only'"), "{said:#?}");
    assert!(
        !said.out.contains(":0\n") && !said.out.contains(":0 "),
        "{said:#?}"
    );
}

const MISTAKES: &str = r#"{
  "id": "pay", "name": "Pay", "version": "1",
  "nodes": [
    { "id": "ask", "typeId": "core.aprovalGate", "name": "Ask", "config": { "title": "Pay?" } },
    { "id": "pay", "typeId": "core.delay", "name": "Pay", "config": { "delayMS": 5 } }
  ],
  "edges": [{ "id": "e", "sourceNodeId": "ask", "targetNodeId": "Pay" }],
  "triggers": [], "variables": [], "metadata": {}, "settings": {}
}
"#;

#[test]
fn every_mistake_has_a_line_a_caret_and_a_suggestion() {
    let place = Place::new();
    place.write("pay.json", MISTAKES);
    let said = place.ends(3, &["workflows", "validate", "pay.json"]);
    assert_eq!(
        said.out,
        r#"bad  pay.json
  error: node 'ask': typeId 'core.aprovalGate' is not offered by this host
    --> pay.json:4:30 (/nodes/0/typeId)
    4 |     { "id": "ask", "typeId": "core.aprovalGate", "name": "Ask", "config": { "title": "Pay?" } },
      |                              ^^^^^^^^^^^^^^^^^^
    help: did you mean 'core.approvalGate'?
  error: node 'pay': config.delayMS is not known; core.delay has delayMs, durationMs, ms, delaySeconds
    --> pay.json:5:71 (/nodes/1/config/delayMS)
    5 |     { "id": "pay", "typeId": "core.delay", "name": "Pay", "config": { "delayMS": 5 } }
      |                                                                       ^^^^^^^^^
    help: did you mean 'delayMs'?
  error: edge 'e': target node 'Pay' does not exist
    --> pay.json:7:65 (/edges/0/targetNodeId)
    7 |   "edges": [{ "id": "e", "sourceNodeId": "ask", "targetNodeId": "Pay" }],
      |                                                                 ^^^^^
    help: did you mean 'pay'?
"#
    );
    let said = place
        .ends(3, &["workflows", "validate", "--json", "pay.json"])
        .json();
    let file = &said["files"][0];
    assert_eq!(file["problems"].as_array().unwrap().len(), 3);
    let found: Vec<_> = file["diagnostics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| {
            json!([
                found["severity"],
                found["line"],
                found["column"],
                found["pointer"],
                found["hint"]
            ])
        })
        .collect();
    assert_eq!(
        json!(found),
        json!([
            [
                "error",
                4,
                30,
                "/nodes/0/typeId",
                "did you mean 'core.approvalGate'?"
            ],
            [
                "error",
                5,
                71,
                "/nodes/1/config/delayMS",
                "did you mean 'delayMs'?"
            ],
            ["error", 7, 65, "/edges/0/targetNodeId", "did you mean 'pay'?"],
        ])
    );
}

#[test]
fn syntax_error_has_a_line_and_a_caret() {
    let place = Place::new();
    place.write("cut.json", "{\n  \"id\": \"x\",\n  \"name\" \"X\"\n}");
    let said = place.ends(3, &["workflows", "validate", "cut.json"]);
    assert_eq!(
        said.out,
        r#"bad  cut.json
  error: cut.json is not JSON: expected `:`
    --> cut.json:3:10
    3 |   "name" "X"
      |          ^
"#
    );
    place.write("end.json", "{\n  \"id\": ");
    let said = place.ends(3, &["workflows", "validate", "end.json"]);
    assert!(said.out.contains("end.json:2:"), "{said:#?}");
    // Deep JSON is JSON.
    place.write("deep.json", &format!("{}{}", "[".repeat(200), "]".repeat(200)));
    let said = place.ends(3, &["workflows", "validate", "deep.json"]);
    let rule = "deep.json is nested too deeply: 127 levels are the most";
    assert!(said.out.contains(rule), "{said:#?}");
    std::fs::write(place.path().join("latin.json"), b"{\"id\": \"\xe4\"}").unwrap();
    let said = place.ends(3, &["workflows", "validate", "latin.json"]);
    assert!(said.out.contains("no part of a UTF-8 text"), "{said:#?}");
}

#[test]
fn warnings_fail_only_with_strict() {
    let mut document = definition("pay", "core.http.request");
    document["nodes"][0]["config"] = json!({ "url": "/pay" });
    let place = Place::new();
    place.write("pay.json", &document.to_string());
    let said = place.ends(0, &["workflows", "validate", "pay.json"]);
    assert!(
        said.out.contains("ok   pay.json") && said.out.contains("[relative-url]"),
        "{said:#?}"
    );
    let said = place.ends(3, &["workflows", "validate", "--strict", "pay.json"]);
    assert!(said.out.contains("bad  pay.json"), "{said:#?}");
    let said = place
        .ends(0, &["workflows", "validate", "--json", "pay.json"])
        .json();
    assert_eq!(said["valid"], true);
    assert_eq!(said["files"][0]["diagnostics"][0]["code"], "relative-url");
    let said = place
        .ends(3, &["workflows", "validate", "--json", "--strict", "pay.json"])
        .json();
    assert_eq!(said["valid"], false);
}

#[test]
fn examples_have_no_warnings() {
    let place = Place::new();
    let mut args = vec![
        "workflows".to_owned(),
        "validate".to_owned(),
        "--strict".to_owned(),
    ];
    for entry in examples().read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            args.push(path.display().to_string());
        }
    }
    place.ends(0, &args);
}

#[test]
fn editor_schema_is_printed() {
    let place = Place::new();
    let schema = place.ends(0, &["workflows", "schema"]).json();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let published = examples().join("../docs/workflow-definition.schema.json");
    let published: Value = serde_json::from_slice(&std::fs::read(published).unwrap()).unwrap();
    assert_eq!(schema, published);
}
