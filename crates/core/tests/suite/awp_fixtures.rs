//! The example documents of the Agent Workflow Protocol, if they are available.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Value, json};
use wopr_core::{Command, NodeTypes, Plan, awp};
use wopr_testkit::Script;

fn folder() -> Option<PathBuf> {
    let folder = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/fixtures/agent-workflow"
    ));
    if folder.is_dir() {
        return Some(folder);
    }
    println!("note: the example documents are not here; nothing was checked");
    None
}

fn read(path: PathBuf) -> Value {
    serde_json::from_slice(&fs::read(&path).expect("readable")).expect("JSON")
}

fn hashes(folder: &Path) -> BTreeMap<String, String> {
    serde_json::from_value(read(folder.join("definition-hashes.json"))).expect("hashes by file")
}

#[test]
fn hashes_of_the_examples_are_the_published_ones() {
    let Some(folder) = folder() else { return };
    for (file, expected) in hashes(&folder) {
        let document = read(folder.join("examples").join(&file));
        assert_eq!(awp::definition_hash(&document).as_str(), expected, "{file}");
    }
}

#[test]
fn invalid_examples_have_the_expected_diagnostics() {
    let Some(folder) = folder() else { return };
    let mut n_vectors = 0;
    for kind in ["invalid", "valid"] {
        for entry in fs::read_dir(folder.join("vectors/schema").join(kind)).expect("readable") {
            let vector = read(entry.expect("readable").path());
            let id = &vector["id"];
            let document = read(folder.join(vector["definition"].as_str().expect("a path")));
            let found = awp::validate(&document);
            n_vectors += 1;
            if vector["expect"]["ok"] == true {
                assert_eq!(found, [], "{id}");
                continue;
            }
            let wanted = vector["expect"]["diagnostics"].as_array().expect("a list");
            let holds = |wanted: &Value, found: &awp::Diagnostic| {
                let is = |name: &str, found: &str| wanted.get(name).is_none_or(|wanted| wanted == found);
                let includes = wanted["messageIncludes"].as_str();
                is("instancePath", &found.instance_path)
                    && is("keyword", found.keyword)
                    && includes.is_none_or(|text| found.message.contains(text))
            };
            assert!(
                wanted
                    .iter()
                    .any(|wanted| found.iter().any(|found| holds(wanted, found))),
                "{id}: {found:?}"
            );
        }
    }
    assert_eq!(n_vectors, 16);
}

/// Outputs that let each example reach its end.
fn output(node: &str) -> Value {
    match node {
        "classify" => json!({ "intent": "unclear", "confidence": 0.2 }),
        "list_issues" => json!({ "text": "{\"items\":[{\"id\":\"i1\"},{\"issueId\":2},{\"x\":0}]}" }),
        "list_projects" | "list_goals" => json!({ "text": "[]" }),
        "collect_a" => json!({ "findings": ["a"] }),
        _ => json!({}),
    }
}

#[test]
fn every_example_runs_to_its_end() {
    let Some(folder) = folder() else { return };
    // The examples refer to it as urn:awp:wf:unit-tests.
    let child = read(folder.join("examples/r3-unit-tests-child.workflow.json"));
    let child = Arc::new(Plan::admit(child, NodeTypes::default()).expect("valid"));
    let mut n_documents = 0;
    for file in hashes(&folder)
        .keys()
        .filter(|file| !file.starts_with("fixtures.invalid"))
    {
        let document = read(folder.join("examples").join(file));
        let plan = Plan::admit(document, NodeTypes::default()).unwrap_or_else(|e| panic!("{file}: {e}"));
        let inputs = json!({ "user_request": "write it", "execution_mode": "workflow", "repo": "acme/widget", "task": "mend it" });
        let mut script = Script::of_plans([Arc::new(plan), child.clone()]).start(inputs);
        for _ in 0..50 {
            drive(&mut script);
        }
        assert_eq!(script.status(), "completed", "{file}:\n{}", script.log(0));
        n_documents += 1;
        let result = script
            .run(0)
            .outputs
            .as_ref()
            .map(|outputs| outputs["result"].clone());
        if file.starts_with("paperclip-read-compact") {
            assert_eq!(
                result.expect("a result")["parsed_issue_ids"],
                json!(["i1", 2]),
                "{file}"
            );
        } else if file.starts_with("paperclip-read-parallel") {
            assert_eq!(
                result.expect("a result")["issue_ids_preview"],
                json!(["i1", 2]),
                "{file}"
            );
        }
    }
    assert_eq!(n_documents, 18);
}

/// Gives every run what it waits for.
fn drive(script: &mut Script) {
    script.wait(0);
    for run in 0..script.n_runs() {
        let plan = script.plan(run).clone();
        let waiting: Vec<_> = script
            .run(run)
            .activities(&plan)
            .map(|(step, attempt, _)| (step, attempt))
            .collect();
        for (step, attempt) in waiting {
            let outcome = output(step.node.as_str());
            let command = Command::Effect {
                outcome: Ok(outcome.as_object().expect("an object").clone()),
                step,
                attempt,
                retry_after_ms: None,
            };
            script.tell(run, command).expect("under way");
        }
        let open = script
            .run(run)
            .interrupts(&plan)
            .next()
            .map(|open| open.node.clone());
        if let Some(node) = open {
            let answer = json!({ "approve": true, "intent": "billing", "approved_by": "ann" });
            script.answer_in(run, node.as_str(), answer).expect("open");
        }
    }
}
