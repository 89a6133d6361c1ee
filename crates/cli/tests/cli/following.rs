//! Follows a run across streams that are interrupted, or end before the run does, and shows it.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    thread::{self, JoinHandle},
};

use serde_json::{Value, json};

use crate::binary::Place;

#[derive(Debug, Clone, Copy)]
enum End {
    /// Without its last chunk, as when the connection breaks.
    Cut,
    /// Regularly, as when the host shuts down.
    Clean,
}

/// A server that answers each request with the next of these streams. Returns the `Last-Event-ID` of each
/// request.
fn server(streams: Vec<(Vec<(u64, &'static str)>, End)>) -> (String, JoinHandle<Vec<Option<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let answering = thread::spawn(move || {
        let mut asked = Vec::new();
        for (events, end) in streams {
            let (mut socket, _) = listener.accept().unwrap();
            asked.push(last_event_id(&socket));
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            socket.write_all(head.as_bytes()).unwrap();
            for (sequence, name) in events {
                let event = json!({
                    "eventId": format!("run_1.{sequence}"), "runId": "run_1", "type": name, "sequence": sequence,
                    "timestamp": "2026-01-01T00:00:00.000Z", "schemaVersion": 1, "payload": {},
                });
                let frame = format!("id: {sequence}\nevent: {name}\ndata: {event}\n\n");
                let chunk = format!("{:x}\r\n{frame}\r\n", frame.len());
                socket.write_all(chunk.as_bytes()).unwrap();
            }
            match end {
                End::Cut => {}
                End::Clean => socket.write_all(b"0\r\n\r\n").unwrap(),
            }
        }
        asked
    });
    (origin, answering)
}

/// Reads the `Last-Event-ID` of a request.
fn last_event_id(socket: &TcpStream) -> Option<String> {
    let mut lines = BufReader::new(socket).lines();
    let mut found = None;
    loop {
        let line = lines.next().unwrap().unwrap();
        if line.is_empty() {
            return found;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("last-event-id")
        {
            found = Some(value.trim().to_owned());
        }
    }
}

#[test]
fn run_is_followed_across_interrupted_streams_to_its_terminal_event() {
    let (origin, answering) = server(vec![
        (vec![(0, "run.started"), (1, "node.started")], End::Cut),
        (vec![], End::Clean),
        (vec![(2, "node.completed")], End::Cut),
        (vec![(3, "run.completed")], End::Clean),
    ]);
    let said = Place::new().ends(
        0,
        &[
            "runs", "events", "run_1", "--follow", "--json", "--server", &origin, "--key", "k",
        ],
    );
    let seen: Vec<Value> = said
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let sequences: Vec<_> = seen
        .iter()
        .map(|event| event["sequence"].as_u64().unwrap())
        .collect();
    assert_eq!(sequences, [0, 1, 2, 3], "{said:#?}");
    let after = |id: &str| Some(id.to_owned());
    assert_eq!(
        answering.join().unwrap(),
        [None, after("1"), after("1"), after("2")]
    );
}

#[test]
fn a2a_stream_that_breaks_off_goes_on_by_a_subscription() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let card = json!({
        "name": "a", "description": "", "version": "1", "capabilities": {"streaming": true}, "skills": [],
        "defaultInputModes": [], "defaultOutputModes": [],
        "supportedInterfaces": [{"url": format!("{origin}/"), "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
    });
    let answering = thread::spawn(move || {
        let frame = |id: &str, state: &str| {
            let task = json!({"id": "t-1", "contextId": "c", "status": {"state": state}});
            let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {"task": task}});
            let frame = format!("id: {id}\ndata: {answer}\n\n");
            format!("{:x}\r\n{frame}\r\n", frame.len())
        };
        let head = |media: &str| format!("HTTP/1.1 200 OK\r\ncontent-type: {media}\r\nconnection: close\r\n");
        let stream = format!("{}transfer-encoding: chunked\r\n\r\n", head("text/event-stream"));
        let mut asked = Vec::new();
        for answer in [
            format!(
                "{}content-length: {}\r\n\r\n{card}",
                head("application/json"),
                card.to_string().len()
            ),
            // Cut: without the last chunk.
            format!("{stream}{}", frame("3", "TASK_STATE_WORKING")),
            format!("{stream}{}0\r\n\r\n", frame("4", "TASK_STATE_COMPLETED")),
        ] {
            let (mut socket, _) = listener.accept().unwrap();
            asked.push(last_event_id(&socket));
            socket.write_all(answer.as_bytes()).unwrap();
        }
        asked
    });
    let said = Place::new().ends(0, &["a2a", "stream", "hello", "--json", "--server", &origin]);
    assert!(said.err.contains("subscribing to the task again"), "{said:#?}");
    assert_eq!(said.out.lines().count(), 2, "{said:#?}");
    assert!(said.out.contains("TASK_STATE_COMPLETED"), "{said:#?}");
    assert_eq!(answering.join().unwrap(), [None, None, Some("3".to_owned())]);
}

/// Runs the binary with a terminal as its standard streams. Returns what it wrote there.
fn on_a_terminal(place: &Place, args: &[&str]) -> String {
    const SPAWN: &str = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
    let wopr = place.command(args);
    let mut python = Command::new("python3");
    python
        .args(["-c", SPAWN])
        .arg(wopr.get_program())
        .args(wopr.get_args())
        .current_dir(place.path())
        .env("TERM", "xterm-256color")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null());
    for (name, value) in wopr.get_envs() {
        match value {
            Some(value) => python.env(name, value),
            None => python.env_remove(name),
        };
    }
    let output = python.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {text}", output.status);
    text
}

#[test]
fn steps_are_drawn_on_a_terminal_and_listed_elsewhere() {
    let place = Place::new();
    let run = ["run", "hello", "--input", "name=Ada"];
    let drawn = on_a_terminal(&place, &run);
    assert!(drawn.contains('✓') && drawn.contains("Hello, Ada!"), "{drawn}");
    assert!(!drawn.contains("run.started"), "{drawn}");
    let listed = on_a_terminal(&place, &[&run[..], &["--events"]].concat());
    assert!(
        !listed.contains('✓') && listed.contains("run.started"),
        "{listed}"
    );
    let said = place.ends(0, &run);
    assert!(
        !said.err.contains('✓') && said.err.contains("run.started"),
        "{said:#?}"
    );
}
