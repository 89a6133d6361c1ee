//! `wopr awp export` and `wopr awp import`, between two hosts: JSON lines, and the table of the reference engine.

use std::fs;

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::binary::Place;

fn document() -> Value {
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "moves", "version": "1" },
        "state_schema": { "type": "object" },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "review", "type": "interrupt", "config": { "prompt": "Sure?", "resume_schema": { "type": "object" } } },
            { "id": "end", "type": "end" },
        ],
        "edges": [
            { "source": "__start__", "target": "start" }, { "source": "start", "target": "review" },
            { "source": "review", "target": "end" },
        ],
    })
}

/// Starts executions that wait for an answer.
fn start(place: &Place, name: &str) {
    place.write("moves.json", &document().to_string());
    let options = json!({ "executionId": name }).to_string();
    place.json(&[
        "run",
        "moves.json",
        "--inputs",
        r#"{"n":1}"#,
        "--configurable",
        &options,
        "--detach",
        "--json",
    ]);
}

#[test]
fn histories_move_between_hosts_as_lines_and_as_a_database() {
    let mut first = Place::new();
    let _host = first.serve();
    start(&first, "m-1");
    first.ends(
        0,
        &[
            "awp",
            "export",
            "m-1",
            "--out",
            "m-1.jsonl",
            "--definition",
            "definition.json",
        ],
    );
    let lines = fs::read_to_string(first.path().join("m-1.jsonl")).unwrap();
    assert_eq!(first.ends(0, &["awp", "export", "m-1"]).out, lines);
    let row: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&row["execution_id"], &row["seq"], &row["name"]),
        (&json!("m-1"), &json!(1), &json!("ExecutionStarted"))
    );
    first.ends(0, &["awp", "export", "m-1", "--sqlite", "histories.db"]);
    let said = first.ends(1, &["awp", "export", "m-1", "--sqlite", "histories.db"]);
    assert!(said.err.contains("already has the execution 'm-1'"), "{said:#?}");
    start(&first, "m-2");
    first.ends(0, &["awp", "export", "m-2", "--sqlite", "histories.db"]);

    let mut other = Place::new();
    let _other_host = other.serve();
    let from = |name: &str| first.path().join(name).to_str().unwrap().to_owned();
    let definition = from("definition.json");
    let import = |file: &str, more: &[&str]| {
        let file = from(file);
        let args = ["awp", "import", &file, "--definition", &definition].into_iter();
        args.chain(more.iter().copied())
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        other.ends(0, &import("m-1.jsonl", &[])).out,
        "m-1  interrupted at review\n"
    );
    let said = other.ends(1, &import("m-1.jsonl", &[]));
    assert!(
        said.err.contains("already exists. (DUPLICATE_EXECUTION_ID)"),
        "{said:#?}"
    );
    let said = other.ends(2, &import("histories.db", &[]));
    assert!(said.err.contains("has several executions: m-1, m-2"), "{said:#?}");
    let status = other.ends(
        0,
        &import("histories.db", &["--execution", "m-2", "--as", "c-2", "--json"]),
    );
    assert_eq!(status.json()["execution_id"], "c-2");
    // What it has is what came, and it goes on.
    let again = other.ends(0, &["awp", "export", "c-2"]).out;
    assert_eq!(again.replace("c-2", "m-1").lines().count(), lines.lines().count());
    let listed = other.json(&["interrupts", "list", "--json"]);
    assert!(listed.to_string().contains("review"), "{listed}");
    let said = other.ends(4, &import("histories.db", &["--execution", "m-3"]));
    assert!(said.err.contains("has no execution 'm-3'"), "{said:#?}");
}

#[test]
fn files_that_are_no_histories_are_refused_with_the_reason() {
    let mut place = Place::new();
    let _host = place.serve();
    start(&place, "m-1");
    place.ends(0, &["awp", "export", "m-1", "--out", "m-1.jsonl"]);
    let lines = fs::read_to_string(place.path().join("m-1.jsonl")).unwrap();
    let again = ["awp", "export", "m-1", "--out", "m-1.jsonl"];
    let said = place.ends(2, &again);
    assert!(
        said.err.contains("m-1.jsonl is there already") && said.err.contains("--force"),
        "{said:#?}"
    );
    let said = place.ends(0, &[&again[..], &["--force"]].concat());
    let rows = lines.lines().count();
    assert!(
        said.err
            .contains(&format!("wrote {rows} rows of 1 execution(s) to m-1.jsonl")),
        "{said:#?}"
    );
    let import =
        |file: &str| ["awp", "import", file, "--definition", "moves.json", "--as", "c"].map(str::to_owned);
    place.write("text.jsonl", "hello\n");
    let said = place.ends(3, &import("text.jsonl"));
    assert!(said.err.contains("line 1 is not a row of a history"), "{said:#?}");
    place.ends(4, &import("missing.jsonl"));
    place.write("broken.db", "SQLite format 3\0and nothing else");
    let said = place.ends(3, &import("broken.db"));
    assert!(said.err.contains("cannot read broken.db"), "{said:#?}");
    let empty = Connection::open(place.path().join("other.db")).unwrap();
    empty.execute_batch("CREATE TABLE other (n)").unwrap();
    drop(empty);
    let said = place.ends(3, &import("other.db"));
    assert!(said.err.contains("it has no table 'history'"), "{said:#?}");
    let forged = lines.replacen("\"review\"", "\"start\"", 1);
    place.write("forged.jsonl", &forged);
    let said = place.ends(1, &import("forged.jsonl"));
    assert!(said.err.contains("NONDETERMINISM_DETECTED"), "{said:#?}");
    assert!(
        said.err.contains("\"nodeId\":\"review\""),
        "it says what was decided: {said:#?}"
    );
    let cut: String = lines.lines().skip(1).map(|line| format!("{line}\n")).collect();
    place.write("cut.jsonl", &cut);
    let said = place.ends(1, &import("cut.jsonl"));
    assert!(said.err.contains("seq must be 1"), "{said:#?}");
}

#[test]
fn a_database_with_a_write_ahead_log_is_read() {
    let mut place = Place::new();
    let _host = place.serve();
    start(&place, "m-1");
    let lines = place.ends(0, &["awp", "export", "m-1"]).out;
    // As an engine leaves it that was killed: the rows are in the log beside the database.
    let database = Connection::open(place.path().join("live.db")).unwrap();
    database.pragma_update(None, "journal_mode", "WAL").unwrap();
    database
        .execute_batch(
            "CREATE TABLE history (execution_id TEXT, seq INTEGER, kind TEXT, name TEXT, payload_json TEXT, \
             created_at TEXT, record_schema_version INTEGER DEFAULT 1, PRIMARY KEY (execution_id, seq))",
        )
        .unwrap();
    for line in lines.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        let columns = (
            text("execution_id"),
            row["seq"].as_i64(),
            text("kind"),
            text("name"),
            row["payload"].to_string(),
            text("created_at"),
        );
        let insert = "INSERT INTO history (execution_id, seq, kind, name, payload_json, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        database.execute(insert, columns).unwrap();
    }
    for name in ["live.db", "live.db-wal"] {
        fs::copy(
            place.path().join(name),
            place.path().join(name.replace("live", "left")),
        )
        .unwrap();
    }
    assert!(fs::metadata(place.path().join("left.db-wal")).unwrap().len() > 0);
    let said = place.ends(
        0,
        &[
            "awp",
            "import",
            "left.db",
            "--definition",
            "moves.json",
            "--as",
            "c",
        ],
    );
    assert_eq!(said.out, "c  interrupted at review\n");
}

#[test]
fn an_execution_moves_with_its_sub_workflow() {
    let mut first = Place::new();
    let _host = first.serve();
    let mut child = document();
    child["document"]["name"] = "child".into();
    let mut parent = document();
    parent["document"]["name"] = "parent".into();
    parent["nodes"][1] = json!({ "id": "review", "type": "subworkflow", "config": {
        "workflow_ref": "child", "input_mapping": { "n": "${ .n }" },
    } });
    for (file, document) in [("child.json", &child), ("parent.json", &parent)] {
        first.write(file, &document.to_string());
        first.ends(0, &["workflows", "register", file]);
    }
    for options in [json!({ "executionId": "p-1" }), json!({})] {
        let options = options.to_string();
        let inputs = ["--inputs", r#"{"n":1}"#, "--configurable", &options];
        first.json(&[&["run", "parent.json"][..], &inputs, &["--detach", "--json"]].concat());
    }
    let export = [
        "awp",
        "export",
        "p-1",
        "--definition",
        "parent.out",
        "--child-definitions",
        "parts",
    ];
    first.ends(0, &[&export[..], &["--out", "p-1.jsonl"]].concat());
    // What is there already is replaced only on demand.
    first.ends(2, &[&export[..], &["--sqlite", "p-1.db"]].concat());
    first.ends(0, &[&export[..], &["--sqlite", "p-1.db", "--force"]].concat());
    let written = fs::read_to_string(first.path().join("parts/child.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), child);
    // Nobody has named the other one, nor its child.
    let runs = first.json(&["runs", "list", "--json"]);
    let unnamed = runs["runs"].as_array().unwrap().iter().find(|run| {
        let history = first.ends(0, &["awp", "export", run["runId"].as_str().unwrap()]);
        run["workflowId"] == "parent" && !history.out.contains("p-1")
    });
    let unnamed = unnamed.unwrap()["runId"].as_str().unwrap().to_owned();
    for (flag, file) in [("--out", "unnamed.jsonl"), ("--sqlite", "unnamed.db")] {
        first.ends(0, &["awp", "export", &unnamed, flag, file]);
    }

    let mut other = Place::new();
    let _other_host = other.serve();
    let from = |name: &str| first.path().join(name).to_str().unwrap().to_owned();
    let (definition, of_child) = (from("parent.out"), from("parts/child.json"));
    let import = |file: &str, more: &[&str]| {
        let file = from(file);
        let args = ["awp", "import", &file, "--definition", &definition].into_iter();
        args.chain(more.iter().copied())
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let said = other.ends(1, &import("p-1.jsonl", &[]));
    assert!(
        said.err.contains("the sub-workflow \"p-1:sub:review\""),
        "{said:#?}"
    );
    let with = ["--child-definition", &of_child];
    other.ends(0, &import("p-1.jsonl", &with));
    other.ends(
        0,
        &import(
            "p-1.db",
            &[&with[..], &["--as", "p-2", "--parallel-activities", "false"]].concat(),
        ),
    );
    for file in ["unnamed.jsonl", "unnamed.db"] {
        other.ends(0, &import(file, &with));
    }
    for name in ["p-1", "p-1:sub:review"] {
        let export = ["awp", "export", name];
        assert_eq!(other.ends(0, &export).out, first.ends(0, &export).out);
    }
    let runs = other.json(&["runs", "list", "--json"]);
    assert_eq!(runs["runs"].as_array().unwrap().len(), 8, "{runs}");
    let listed = other.json(&["interrupts", "list", "--json"]);
    assert!(listed.to_string().contains("review"), "{listed}");
}
