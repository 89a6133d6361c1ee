//! `examples/research-crew` as a task of A2A, followed by the official SDK: its stream tells of every decision and every
//! handoff.

use std::{fs, process::Stdio};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};

use crate::{
    calling::register,
    host::Host,
    interop::{A2A_1, root},
};

/// What a line says: who decided what, or which worker is where.
fn short(line: &Value) -> String {
    let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
    match line.get("decision") {
        Some(decision) => format!("{} decides {}", text("agentId"), decision.as_str().unwrap()),
        None => format!("{} {}", text("workerId"), text("phase")),
    }
}

#[tokio::test]
async fn a2a_sdk_sees_every_handoff_of_the_research_crew() {
    let folder = root().join("examples/research-crew");
    let mut model = Command::new(env!("CARGO_BIN_EXE_wopr"))
        .args(["mock-model", "script.json", "--listen", "127.0.0.1:0"])
        .current_dir(&folder)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    // The model ends when nobody can read what it says.
    let mut said = BufReader::new(model.stdout.take().unwrap()).lines();
    let line = said.next_line().await.unwrap().unwrap();
    let origin = line.strip_prefix("listening on ").unwrap();
    let mut host = Host::new()
        .variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8")
        .variable("WOPR_MODEL_URL", format!("{origin}/v1"))
        .variable("WOPR_MODEL_NAME", "mock");
    let address = host.start().await;
    for file in fs::read_dir(folder.join("crew")).unwrap() {
        let text = fs::read(file.unwrap().path()).unwrap();
        register(address, serde_json::from_slice(&text).unwrap()).await;
    }
    let printed = A2A_1.run("a2a_1_crew.py", address, &[]).await;
    let told: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut lines: Vec<_> = told.iter().map(short).collect();
    // Either researcher may be done first.
    lines[6..8].sort_unstable();
    let decides = |what: &str| format!("research-lead decides {what}");
    let at = |worker: &str, phase: &str| format!("{worker} {phase}");
    assert_eq!(
        lines,
        [
            decides("next-worker"),
            at("planner", "dispatch.succeeded"),
            at("planner", "child.completed"),
            decides("next-worker"),
            at("historian", "dispatch.succeeded"),
            at("engineer", "dispatch.succeeded"),
            at("engineer", "child.completed"),
            at("historian", "child.completed"),
            decides("next-worker"),
            at("verifier", "dispatch.succeeded"),
            at("verifier", "child.completed"),
            decides("ask-user"),
            decides("terminate"),
        ],
        "{printed}"
    );
    let decisions = told.iter().filter(|line| line.get("decision").is_some());
    // The numbers of protobuf are all floating.
    for (decision, n) in decisions.zip([1.0, 2.0, 3.0, 4.0, 5.0]) {
        assert_eq!(decision["iteration"], json!(n), "{decision}");
        // A question to a person has none.
        let is_sure = decision["confidence"]
            .as_f64()
            .is_some_and(|confidence| confidence >= 0.5);
        assert_eq!(is_sure, decision["decision"] != "ask-user", "{decision}");
    }
    let status = host.terminate().await;
    assert!(status.success(), "stopped in order: {status}\n{}", host.said());
}
