//! What `docs/tools.md` and `docs/models.md` say of tools for a model, verbatim: the server of the page is a script that
//! speaks as it does, and the model is `wopr mock-model`.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    binary::{Place, TOOL_SERVER},
    models::Model,
    snippets::{Snippet, snippets},
};

/// `mcp-server-filesystem` as far as the page needs it: one tool, which reads a file.
const SERVER: &str = r#"
hear
answer '{"tools":[{"name":"read_file","description":"Reads a file.","inputSchema":{"type":"object","required":["path"],"properties":{"path":{"type":"string"}}},"annotations":{"readOnlyHint":true}}]}'
while hear; do
    answer '{"content":[{"type":"text","text":"a spring sale"}]}'
done
"#;

fn of(found: Vec<Snippet>, language: &str) -> String {
    let mut found = found.into_iter().filter(|snippet| snippet.language == language);
    found.next().expect("the page has it").body
}

#[test]
fn a_model_reads_a_file_as_the_page_says() {
    let mut place = Place::new();
    place.write(
        "wopr.toml",
        &of(snippets("docs/tools.md", "## A first tool\n"), "toml"),
    );
    let part = || snippets("docs/tools.md", "## Tools for a model\n");
    place.write("ask-files.json", &of(part(), "json"));
    let server = place.write(
        "bin/mcp-server-filesystem",
        &format!("#!/bin/sh\n{TOOL_SERVER}{SERVER}"),
    );
    fs::set_permissions(&server, fs::Permissions::from_mode(0o755)).unwrap();
    let arguments = json!({ "path": "/srv/documents/a.txt" });
    let script = json!({ "replies": [
        { "when": { "user": "/srv/documents/a.txt", "turn": 1 }, "toolCalls": [{ "name": "read_file", "arguments": arguments }] },
        { "when": { "tool": "a spring sale" }, "text": "It is about a spring sale." },
    ] });
    let model = Model::start(&place, &script);
    place.set("WOPR_MODEL_URL", &format!("{}/v1", model.origin));
    place.set("WOPR_MODEL_NAME", "scripted");
    place.set("WOPR_EGRESS_ALLOW", "127.0.0.1/32");

    let wopr = place.command(&["run"]);
    let mut bash = Command::new("bash");
    bash.args([
        "-euo",
        "pipefail",
        "-c",
        &format!("{} --json", of(part(), "sh").trim_end()),
    ])
    .current_dir(place.path())
    .stdin(Stdio::null());
    for (name, value) in wopr.get_envs() {
        match value {
            Some(value) => bash.env(name, value),
            None => bash.env_remove(name),
        };
    }
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_wopr"))
        .parent()
        .unwrap()
        .to_owned();
    let own = [place.path().join("bin"), binary];
    let path = env::var_os("PATH").unwrap_or_default();
    bash.env(
        "PATH",
        env::join_paths(own.into_iter().chain(env::split_paths(&path))).unwrap(),
    );
    let output = bash.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let shown: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        shown["outputs"]["text"], "It is about a spring sale.",
        "{shown:#}"
    );
    let asked = fs::read_to_string(place.path().join("asked.ndjson")).unwrap();
    assert!(
        asked.contains("tools:default") && asked.contains("tool:read_file"),
        "{asked}"
    );
}

#[test]
fn tools_of_the_page_are_a_valid_definition() {
    let place = Place::new();
    let tools = of(snippets("docs/models.md", "## Tools\n"), "json");
    let definition = format!(
        "{{ \"id\": \"w\", \"name\": \"w\", \"version\": \"1\", \"nodes\": [{{ \"id\": \"ask\", \"typeId\": \"core.ai.callPrompt\", \
         \"name\": \"Ask\", \"config\": {{ \"prompt\": \"?\", {tools} }} }}], \"edges\": [], \"triggers\": [], \"variables\": [], \
         \"metadata\": {{}}, \"settings\": {{}} }}"
    );
    place.write("w.json", &definition);
    let said = place.ends(0, &["workflows", "validate", "w.json"]);
    assert!(!said.out.contains("warning"), "{said:#?}");
    // A misspelt member is found, with a hint.
    place.write("wrong.json", &definition.replace("\"only\"", "\"olny\""));
    let said = place.run(&["workflows", "validate", "wrong.json"]);
    assert!(
        said.code != 0 && format!("{}{}", said.out, said.err).contains("olny"),
        "{said:#?}"
    );
}
