//! Workflow definitions: good ones, bad ones, and those a host skips.

use serde_json::{Value, json};

use crate::binary::{Place, examples, members};

/// A definition with one node.
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
fn the_examples_hold() {
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
fn a_bad_file_is_named_with_place_and_rule() {
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
fn conformance_types_hold_only_where_they_are_allowed() {
    let place = Place::new();
    place.write(
        "w.json",
        &definition("w", "core.conformance.side-effect").to_string(),
    );
    place.ends(3, &["workflows", "validate", "w.json"]);
    place.ends(0, &["workflows", "validate", "--conformance", "w.json"]);
}

#[test]
fn what_a_host_skips_is_listed_without_asking_it() {
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
fn rejected_files_are_not_asked_of_a_server() {
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
    assert!(said.out.contains("bad.json: node 'only'"), "{said:#?}");
    assert!(
        !said.out.contains(":0\n") && !said.out.contains(":0 "),
        "{said:#?}"
    );
}
