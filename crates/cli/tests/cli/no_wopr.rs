//! Commands that talk to something that is no wopr, or to one that lies.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    thread,
};

use serde_json::{Value, json};

use crate::binary::Place;

/// A server that answers every request with this document. It ends with the test process.
fn always(status: &'static str, body: &Value) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let body = body.to_string();
    thread::spawn(move || {
        for mut socket in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(socket.try_clone().unwrap()).lines();
            let has_head = lines.any(|line| line.is_ok_and(|line| line.is_empty()));
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            // The command may have ended.
            if has_head {
                drop(socket.write_all(format!("{head}{body}").as_bytes()));
            }
        }
    });
    origin
}

/// Runs a command against a server, and returns what it says on standard error.
fn refused(origin: &str, args: &[&str]) -> String {
    let mut args = args.to_vec();
    args.extend(["--server", origin, "--key", "k"]);
    let said = Place::new().ends(1, &args);
    assert_eq!(said.out, "", "{args:?}");
    said.err
}

#[test]
fn answer_without_what_was_asked_for_is_not_that_of_a_wopr() {
    let origin = always("200 OK", &json!({}));
    for args in [
        &["runs", "list"][..],
        &["runs", "show", "run_1"],
        &["runs", "cancel", "run_1"],
        &["runs", "retry", "run_1"],
        &["runs", "fork", "run_1", "--from", "1"],
        &["runs", "diff", "run_1", "run_2"],
        &["interrupts", "list"],
        &["interrupts", "token", "run_1", "gate"],
        &["deliveries", "list"],
        &["deliveries", "retry", "run_1"],
        &["workflows", "list"],
        &["workflows", "remove", "hello"],
        &["keys", "list"],
        &["keys", "create", "n"],
        &["keys", "revoke", "n"],
        &["secrets", "list"],
        &["budgets"],
        &["run", "hello", "--detach"],
    ] {
        let said = refused(&origin, args);
        assert!(
            said.contains("does not answer as a wopr does"),
            "{args:?}: {said}"
        );
    }
}

#[test]
fn list_that_does_not_end_is_refused() {
    for items in [json!([]), json!([{ "runId": "run_1" }])] {
        let origin = always("200 OK", &json!({ "runs": items, "nextCursor": "same" }));
        let said = refused(&origin, &["runs", "list", "--limit", "1000"]);
        assert!(said.contains("its list does not end"), "{said}");
    }
}

#[test]
fn error_of_a_server_does_not_steer_the_terminal() {
    let text = "\u{1b}[31mred\u{1b}]0;title\u{7}\u{202e}";
    let origin = always(
        "500 Internal Server Error",
        &json!({ "error": text, "message": text }),
    );
    let said = refused(&origin, &["runs", "list"]);
    assert!(said.contains("red"), "{said}");
    assert!(!said.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{said:?}");
}
