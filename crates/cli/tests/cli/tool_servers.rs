//! Processes of tool servers end with the command that started them, whatever they do at that moment.

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::binary::{Place, TOOL_SERVER, signal, wait};

/// A server whose tool does not look at its input. All its processes hold the pipe `held` open.
const SERVER: &str = r#"
hear
answer '{"tools":[{"name":"slow","inputSchema":{"type":"object"}}]}'
hear
echo called >&3
sleep 120
"#;

/// Sends the first line of a pipe, and then `None` once the last process that holds the pipe open has ended.
fn watched(pipe: &Path) -> mpsc::Receiver<Option<String>> {
    let made = Command::new("mkfifo").arg(pipe).status().unwrap();
    assert!(made.success());
    let (sender, receiver) = mpsc::channel();
    let pipe = pipe.to_owned();
    thread::spawn(move || {
        let lines = BufReader::new(File::open(pipe).unwrap()).lines();
        for line in lines.map_while(Result::ok) {
            let _ = sender.send(Some(line));
        }
        let _ = sender.send(None);
    });
    receiver
}

#[test]
fn an_interrupted_command_leaves_no_tool_server_behind() {
    let run = ["run", "slow.json", "--config", "tools.toml"];
    let call = ["tools", "call", "--config", "tools.toml", "default", "slow"];
    for args in [&run[..], &call[..]] {
        let place = Place::new();
        let held = watched(&place.path().join("held"));
        place.write("server.sh", &format!("exec 3> held\n{TOOL_SERVER}{SERVER}"));
        place.write(
            "tools.toml",
            "[[mcp.servers]]\nname = \"default\"\ncommand = \"sh\"\nargs = [\"server.sh\"]\n",
        );
        place.write(
            "slow.json",
            r#"{
                "id": "slow", "name": "slow", "version": "1", "edges": [], "triggers": [], "variables": [],
                "metadata": {}, "settings": {},
                "nodes": [{ "id": "n", "typeId": "core.mcp.toolCall", "name": "n", "config": { "tool": "slow" } }]
            }"#,
        );
        let mut command = place.command(args);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let limit = Duration::from_secs(60);
        let called = held.recv_timeout(limit).unwrap();
        assert_eq!(called.as_deref(), Some("called"), "{args:?}");
        assert!(signal(child.id(), "INT"));
        assert_eq!(wait(&mut child).code(), Some(130), "{args:?}");
        let ended = held.recv_timeout(limit);
        assert_eq!(ended, Ok(None), "{args:?}: its process goes on");
    }
}
