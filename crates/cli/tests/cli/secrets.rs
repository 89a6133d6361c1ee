//! Secrets that a tenant keeps with a host: set directly in the database and through the host, used by a workflow.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    process::Stdio,
    sync::mpsc,
    thread,
};

use serde_json::json;

use crate::binary::{Host, Place};

/// Answers requests on loopback, and sends on what they authorize themselves with.
fn peer() -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let head: Vec<_> = lines
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .collect();
            let carried = head.iter().find_map(|line| line.strip_prefix("authorization: "));
            if send.send(carried.unwrap_or_default().to_owned()).is_err() {
                return;
            }
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n");
        }
    });
    (port, receive)
}

fn caller(port: u16) -> String {
    let config = json!({
        "method": "GET",
        "url": format!("http://127.0.0.1:{port}/"),
        "headers": { "authorization": { "secret": "crm", "prefix": "Bearer " } },
    });
    json!({
        "id": "caller", "name": "Caller", "version": "1",
        "nodes": [{ "id": "call", "typeId": "core.http.request", "name": "Call", "config": config }],
        "edges": [], "variables": [], "metadata": {}, "settings": {}, "triggers": [],
    })
    .to_string()
}

/// Runs a command with a text on its standard input.
fn with_input(place: &Place, args: &[&str], input: &str) -> (i32, String, String) {
    let mut command = place.command(args);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap_or(-1),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn stored_secret_is_set_used_replaced_and_removed() {
    let (port, carried) = peer();
    let mut place = Place::new();
    place.write(
        "wopr.toml",
        "store = \"sqlite:wopr.db\"\n[egress]\nallow = [\"127.0.0.1/32\"]\n[[secrets.named]]\nname = \"crm\"\n\
         stored = true\nhosts = [\"127.0.0.1\"]\n",
    );
    place.write("workflows/caller.json", &caller(port));
    place.set("WOPR_CONFIG", "wopr.toml");

    // Directly in a database that does not exist yet.
    let (code, out, err) = with_input(&place, &["secrets", "set", "crm"], "first-value\n");
    assert_eq!(code, 0, "{err}");
    assert!(
        out.starts_with("crm is set, fingerprint ") && !out.contains("first-value"),
        "{out}"
    );
    let (code, _, err) = with_input(&place, &["secrets", "set", "other"], "x");
    assert!(code == 3 && err.contains("stored = true"), "{code} {err}");
    // A database is not created for a secret that nobody declared.
    let elsewhere = ["secrets", "set", "other", "--store", "sqlite:none.db"];
    let (code, _, err) = with_input(&place, &elsewhere, "x");
    assert!(
        code == 3 && !place.path().join("none.db").exists(),
        "{code} {err}"
    );
    let (code, _, err) = with_input(&place, &["secrets", "set", "crm"], "two\nlines");
    assert_eq!(code, 2, "{err}");

    let serve = [
        "serve",
        "--while-stdin",
        "--listen",
        "127.0.0.1:0",
        "--workflows",
        "workflows",
    ];
    let mut command = place.command(&serve);
    command.env("WOPR_API_KEY", "a-key-of-this-test");
    let host = Host::start(command);
    let origin = host.origin.clone();
    let at = ["--server", origin.as_str(), "--key", "a-key-of-this-test"];
    let run = |code: i32| place.ends(code, &[&["run", "caller", "--json"][..], &at].concat());
    run(0);
    assert_eq!(carried.recv().unwrap(), "Bearer first-value");

    // Through the host, at once.
    let (code, _, err) = with_input(
        &place,
        &[&["secrets", "set", "crm"][..], &at].concat(),
        "second-value",
    );
    assert_eq!(code, 0, "{err}");
    run(0);
    assert_eq!(carried.recv().unwrap(), "Bearer second-value");

    // The tenant on a server is that of the key.
    let of_tenant = [&["secrets", "list", "--tenant", "acme"][..], &at].concat();
    assert!(place.ends(2, &of_tenant).err.contains("--tenant"));

    // Beside the host, which has the database open.
    place.write("value", "third-value\n");
    place.ends(0, &["secrets", "set", "crm", "--from-file", "value"]);
    run(0);
    assert_eq!(carried.recv().unwrap(), "Bearer third-value");

    for listed in [
        place.ends(0, &["secrets", "list", "--json"]),
        place.ends(0, &[&["secrets", "list", "--json"][..], &at].concat()),
    ] {
        let secrets = listed.json();
        assert_eq!(secrets["secrets"][0]["name"], "crm");
        assert_eq!(secrets["secrets"][0]["fingerprint"].as_str().unwrap().len(), 16);
        assert!(!listed.out.contains("value"), "{listed:?}");
    }
    // No file of the database contains the value.
    for file in fs::read_dir(place.path()).unwrap() {
        let path = file.unwrap().path();
        if path.is_file() && path.file_name().unwrap().to_str().unwrap().starts_with("wopr.db") {
            let bytes = fs::read(&path).unwrap();
            let is_there = bytes.windows(11).any(|bytes| bytes == b"third-value");
            assert!(!is_there, "{}", path.display());
        }
    }

    place.ends(0, &[&["secrets", "remove", "crm"][..], &at].concat());
    place.ends(4, &["secrets", "remove", "crm"]);
    let said = run(1);
    assert!(
        said.out.contains("credential_refused") && said.out.contains("is not set"),
        "{said:#?}"
    );
}
