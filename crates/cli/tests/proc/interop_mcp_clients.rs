//! Clients of MCP that others wrote, against the built binary: the SDKs for Python and TypeScript over both transports, and
//! the MCP inspector.

use std::{path::Path, process::Stdio};

use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::{
    host::{Host, KEY, place, sqlite},
    interop::{JS_MCP, LIMIT, MCP, root},
};

/// Runs a client to its end and returns what it printed.
async fn printed(command: &mut Command) -> String {
    // SDKs pass few variables on to a server that they start.
    command
        .env("NO_PROXY", "*")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(LIMIT, command.output())
        .await
        .expect("it ends in time")
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{printed}{errors}", output.status);
    printed
}

fn python(arguments: &[&str]) -> Command {
    let mut command = Command::new(MCP.python());
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(root().join("tests/interop/mcp_client.py"))
        .args(arguments);
    command
}

const WOPR: &str = env!("CARGO_BIN_EXE_wopr");

#[tokio::test]
async fn the_python_sdk_works_over_http() {
    let mut host = Host::new();
    let address = host.start().await;
    let url = format!("http://{address}");
    for (mode, version) in [("legacy", "2025-11-25"), ("auto", "2026-07-28")] {
        let printed = printed(&mut python(&["http", &url, KEY, mode])).await;
        assert_eq!(printed.trim(), version, "{mode}");
    }
}

#[tokio::test]
async fn the_python_sdk_works_over_lines() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let store = sqlite(folder.path());
    for (mode, version) in [("legacy", "2025-11-25"), ("auto", "2026-07-28")] {
        let printed = printed(&mut python(&["stdio", WOPR, &store, mode])).await;
        assert_eq!(printed.trim(), version, "{mode}");
    }
}

#[tokio::test]
async fn the_typescript_sdk_works_over_http() {
    let mut host = Host::new();
    let address = host.start().await;
    let url = format!("http://{address}");
    let printed = printed(JS_MCP.command("client.mjs").args(["http", &url, KEY])).await;
    assert_eq!(printed.trim(), "done");
}

#[tokio::test]
async fn the_typescript_sdk_works_over_lines() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let store = sqlite(folder.path());
    let printed = printed(JS_MCP.command("client.mjs").args(["stdio", WOPR, &store])).await;
    assert_eq!(printed.trim(), "done");
}

/// The inspector in its mode without a browser.
async fn inspected(arguments: &[&str]) -> Value {
    let script = JS_MCP
        .packages()
        .join("node_modules/@modelcontextprotocol/inspector/cli/build/cli.js");
    assert!(Path::new(&script).exists());
    let printed = printed(Command::new("node").arg(script).arg("--cli").args(arguments)).await;
    serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{printed}"))
}

#[tokio::test]
async fn the_inspector_lists_and_calls_tools() {
    let listed = inspected(&[WOPR, "mcp", "--store", "memory", "--method", "tools/list"]).await;
    let tools = listed["tools"].as_array().unwrap();
    assert!(
        tools.iter().any(|tool| tool["name"] == "wopr_start_run"),
        "{listed}"
    );
    let mut host = Host::new();
    let address = host.start().await;
    let url = format!("http://{address}/mcp");
    let key = format!("Authorization: Bearer {KEY}");
    let at = [url.as_str(), "--transport", "http", "--header", key.as_str()];
    let mut call = at.to_vec();
    call.extend([
        "--method",
        "tools/call",
        "--tool-name",
        "wopr_start_run",
        "--tool-arg",
        "workflowId=hello",
    ]);
    let called = inspected(&call).await;
    assert!(called["structuredContent"]["runId"].is_string(), "{called}");
    let mut read = at.to_vec();
    read.extend(["--method", "resources/list"]);
    let listed = inspected(&read).await;
    assert!(listed["resources"].as_array().unwrap().len() > 1, "{listed}");
}
