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

/// Calls every method of a server that the inspector offers.
async fn inspect(server: &[&str], run: impl AsyncFn(&[&str]) -> Value) {
    let ask = async |method: &str, more: &[&str]| {
        let mut arguments = server.to_vec();
        arguments.extend(["--method", method]);
        arguments.extend(more);
        run(&arguments).await
    };
    let names = |listed: &Value, kind: &str, member: &str| -> Vec<String> {
        let listed = listed[kind].as_array().unwrap_or_else(|| panic!("{listed}"));
        let names = listed.iter().map(|one| one[member].as_str().unwrap().to_owned());
        names.collect()
    };
    let tools = names(&ask("tools/list", &[]).await, "tools", "name");
    for tool in ["wopr_start_run", "workflow_start"] {
        assert!(tools.iter().any(|known| known == tool), "{tools:?}");
    }
    let called = ask("tools/call", &["--tool-name", "wopr_list_runs"]).await;
    assert!(called["structuredContent"]["runs"].is_array(), "{called}");
    let called = ask(
        "tools/call",
        &[
            "--tool-name",
            "workflow_status",
            "--tool-arg",
            "execution_id=none",
        ],
    )
    .await;
    assert_eq!(called["isError"], true, "{called}");
    assert_eq!(
        called["structuredContent"]["error"]["code"], "EXECUTION_NOT_FOUND",
        "{called}"
    );
    let templates = ask("resources/templates/list", &[]).await;
    assert!(!names(&templates, "resourceTemplates", "uriTemplate").is_empty());
    let resources = names(&ask("resources/list", &[]).await, "resources", "uri");
    for uri in resources.iter().take(2) {
        let read = ask("resources/read", &["--uri", uri]).await;
        assert_eq!(read["contents"][0]["uri"], *uri, "{read}");
    }
    let prompts = ask("prompts/list", &[]).await;
    for prompt in prompts["prompts"].as_array().unwrap() {
        let name = prompt["name"].as_str().unwrap();
        let arguments = prompt["arguments"].as_array().cloned().unwrap_or_default();
        let given = arguments
            .iter()
            .map(|argument| format!("{}=x", argument["name"].as_str().unwrap()));
        let given: Vec<_> = given.collect();
        let mut more = vec!["--prompt-name", name];
        if !given.is_empty() {
            more.push("--prompt-args");
            more.extend(given.iter().map(String::as_str));
        }
        let got = ask("prompts/get", &more).await;
        assert_eq!(got["messages"][0]["role"], "user", "{got}");
    }
}

#[tokio::test]
async fn the_inspector_lists_and_calls_tools() {
    inspect(&[WOPR, "mcp", "--store", "memory"], inspected).await;
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
    inspect(&at, inspected).await;
}
