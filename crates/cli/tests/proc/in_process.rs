//! A document whose steps, tools and models its host has, by the variables of the protocol's reference engine: `wopr mcp`
//! with `wopr mock-model` as the model, and another `wopr mcp` as the server of tools.

use std::{fs, path::Path, process::Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use crate::{
    host::place,
    mcp::{Talk, command, open},
};

/// `wopr mock-model`; killed on drop.
struct Model {
    _child: Child,
    /// It ends when nobody can read what it says.
    _said: Lines<BufReader<ChildStdout>>,
    origin: String,
}

async fn model(folder: &Path) -> Model {
    let script = json!({ "replies": [{ "text": "{\"verdict\": \"fine\"}" }, { "text": "no json" }] });
    fs::write(folder.join("script.json"), script.to_string()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_wopr"))
        .args(["mock-model", "script.json", "--listen", "127.0.0.1:0"])
        .current_dir(folder)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = said.next_line().await.unwrap().unwrap();
    Model {
        origin: line.strip_prefix("listening on ").unwrap().to_owned(),
        _child: child,
        _said: said,
    }
}

fn document(server: &str) -> Value {
    let verdict = json!({ "type": "object", "required": ["verdict"] });
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "own", "version": "1" },
        "state_schema": { "type": "object" },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "prepare", "type": "step", "config": { "handler": "urn:prepare" } },
            { "id": "runs", "type": "tool_call", "config": { "server": server, "tool": "wopr_list_runs", "arguments": {} } },
            { "id": "judge", "type": "llm_call", "config": { "model": "m", "prompt": "Well?", "output_schema": verdict } },
            { "id": "end", "type": "end" },
        ],
        "edges": [
            { "source": "__start__", "target": "start" }, { "source": "start", "target": "prepare" },
            { "source": "prepare", "target": "runs" }, { "source": "runs", "target": "judge" },
            { "source": "judge", "target": "end" },
        ],
    })
}

async fn host(folder: &TempDir, variables: &[(&str, String)]) -> Talk {
    let mut command = command(folder.path());
    command.args(["--store", "memory"]);
    command.envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
    let mut talk = Talk::start(command);
    open(&mut talk).await;
    talk
}

async fn start(talk: &mut Talk, server: &str) -> Value {
    let arguments = json!({ "definition": document(server), "input": { "x": 1 } });
    talk.call("workflow_start", arguments).await
}

#[tokio::test]
async fn a_host_does_activities_with_what_the_variables_of_the_reference_give_it() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let model = model(folder.path()).await;
    let wopr = env!("CARGO_BIN_EXE_wopr");
    let servers = json!({ "wopr": { "command": wopr, "args": ["mcp", "--store", "memory"] } });
    let all = [
        (
            "WORKFLOW_ENGINE_STEP_HANDLERS",
            json!({ "urn:prepare": { "ready": true } }).to_string(),
        ),
        (
            "WORKFLOW_ENGINE_MCP_CONFIG",
            json!({ "mcpServers": servers }).to_string(),
        ),
        (
            "WORKFLOW_ENGINE_LLM_CONFIG",
            json!({ "baseUrl": format!("{}/v1", model.origin) }).to_string(),
        ),
    ];
    let mut talk = host(&folder, &all).await;
    let done = start(&mut talk, "wopr").await;
    assert_eq!(done["status"], "completed", "{done}");
    let state = &done["final_state"];
    assert_eq!(
        (&state["x"], &state["ready"]),
        (&json!(1), &json!(true)),
        "{state}"
    );
    assert_eq!(state["verdict"], "fine", "{state}");
    assert!(state["runs"].is_array(), "{state}");

    let failed = start(&mut talk, "nowhere").await;
    let error = failed["error"].to_string();
    assert!(error.contains("no tool server is named 'nowhere'"), "{failed}");
    talk.end().await;

    // Without a model, the node that asks one fails; with the profile, a mock answers.
    let mut talk = host(&folder, &all[..2]).await;
    let failed = start(&mut talk, "wopr").await;
    assert!(failed["error"].to_string().contains("llm_call"), "{failed}");
    talk.end().await;
}

#[tokio::test]
async fn mocks_do_what_a_host_has_nothing_for_if_the_profile_says_so() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let variables = [
        (
            "WORKFLOW_ENGINE_STEP_HANDLERS",
            json!({ "urn:prepare": { "ready": true } }).to_string(),
        ),
        ("WORKFLOW_ENGINE_PROFILE", "demo".to_owned()),
    ];
    let mut talk = host(&folder, &variables).await;
    // The mock answers a model's question with an empty object, which its schema does not allow.
    let failed = start(&mut talk, "wopr").await;
    assert!(failed["error"].to_string().contains("output_schema"), "{failed}");
    talk.end().await;
}
