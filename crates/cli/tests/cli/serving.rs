//! Startup and shutdown of `serve` and `dev`.

use std::{io::Write as _, net::TcpStream, process::Command};

use serde_json::{Value, json};

use crate::{
    backup::{ask, client},
    binary::{Host, KEY, Place, examples, members, signal},
};

#[test]
fn host_prints_its_address_and_shuts_down_gracefully() {
    let mut place = Place::new();
    let host = place.serve();
    assert_eq!(members(&host.line), ["listening", "pid"]);
    assert_eq!(host.line["pid"], host.pid());
    assert!(host.origin.starts_with("http://127.0.0.1:"));
    place.ends(0, &["doctor", "--server", &host.origin]);
    assert!(signal(host.pid(), "TERM"));
    let (status, log) = host.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("host closed"), "{log}");
    // The data is still there.
    drop(place.serve());
}

#[test]
fn clients_without_a_credential_do_not_hold_up_a_stop() {
    let mut place = Place::new();
    let host = place.serve();
    let address = host.origin.strip_prefix("http://").unwrap();
    let half_sent = [
        "GET /healthz HTTP/1.1\r\nhost:",
        "POST /v1/runs HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{",
    ];
    let open: Vec<_> = (half_sent.iter())
        .map(|text| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            stream
        })
        .collect();
    // A request on a later connection: the host has those before it.
    place.ends(0, &["doctor", "--server", &host.origin]);
    assert!(signal(host.pid(), "TERM"));
    let (status, log) = host.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("host closed") && !log.contains("cut off"), "{log}");
    drop(open);
}

/// The log is on a full disk, or goes into a pipe that nobody reads.
#[cfg(target_os = "linux")]
#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    for log in ["2>/dev/full", "2<>stuck"] {
        let mut place = Place::new();
        place.set("WOPR_LOG", "trace");
        let mut host = place.serve_limited(&format!("mkfifo stuck; exec {log}"));
        // More than a pipe takes.
        for _ in 0..40 {
            place.ends(0, &["workflows", "list"]);
            place.ends(0, &["run", "hello", "--detach"]);
        }
        host.close_stdin();
        assert!(signal(host.pid(), "TERM"));
        let (status, _) = host.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        drop(place.serve());
    }
}

#[test]
fn unknown_variables_and_new_databases_are_logged_at_start() {
    let mut place = Place::new();
    place.set("WOPR_LISTNE", "127.0.0.1:1");
    let log_of = |place: &mut Place| {
        let host = place.serve();
        assert!(signal(host.pid(), "TERM"));
        host.wait().1
    };
    let first = log_of(&mut place);
    assert!(
        first.contains("WOPR_LISTNE") && first.contains("created a master key"),
        "{first}"
    );
    let second = log_of(&mut place);
    assert!(
        !second.contains("created a master key") && !second.contains("a new database"),
        "{second}"
    );
    let key = place.path().join("wopr.db.key");
    std::fs::remove_file(&key).unwrap();
    for args in [["serve", "--listen"], ["doctor", "--listen"]] {
        let code = if args[0] == "serve" { 3 } else { 1 };
        let said = place.ends(
            code,
            &[args[0], args[1], "127.0.0.1:0", "--store", "sqlite:wopr.db"],
        );
        let text = format!("{}{}", said.out, said.err);
        assert!(
            text.contains("the master key of this database") && text.contains("WOPR_REPLACE_MASTER_KEY=1"),
            "{said:#?}"
        );
        assert!(!key.exists(), "a new key would hide that the old one is gone");
    }
    place.set("WOPR_REPLACE_MASTER_KEY", "1");
    let replaced = log_of(&mut place);
    assert!(
        replaced.contains("WARN") && replaced.contains("the master key is another one"),
        "{replaced}"
    );
    place.set("WOPR_REPLACE_MASTER_KEY", "0");
    let after = log_of(&mut place);
    assert!(!after.contains("the master key is another one"), "{after}");
    std::fs::remove_file(place.path().join("wopr.db")).unwrap();
    let anew = log_of(&mut place);
    assert!(
        anew.contains("a new database was made beside the master key"),
        "{anew}"
    );
}

#[test]
fn file_size_limit_acts_like_a_full_disk() {
    let mut place = Place::new();
    let limited = [
        "-c",
        "ulimit -f 6000; exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_wopr"),
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--store",
        "sqlite:wopr.db",
    ];
    let mut command = Command::new("sh");
    command.args(limited).arg("--workflows").arg(examples());
    command.current_dir(place.path()).env("WOPR_API_KEY", KEY);
    let host = Host::start(command);
    place.set("WOPR_SERVER", &host.origin);
    place.set("WOPR_API_KEY", KEY);
    place.write(
        "large.json",
        &format!("{{\"name\": \"{}\"}}", "x".repeat(300_000)),
    );
    let refused = (0..40)
        .map(|_| place.run(&["run", "hello", "--inputs", "@large.json"]))
        .find(|said| said.code != 0)
        .expect("no room for all of them");
    assert_eq!(refused.code, 8, "{refused:#?}");
    place.ends(0, &["runs", "list"]);
    assert!(signal(host.pid(), "TERM"));
    assert_eq!(host.wait().0.code(), Some(0));
}

#[test]
fn interrupt_and_parent_exit_stop_the_host() {
    let mut place = Place::new();
    let host = place.serve();
    assert!(signal(host.pid(), "INT"));
    assert_eq!(host.wait().0.code(), Some(0));
    let mut host = place.serve();
    host.close_stdin();
    assert_eq!(host.wait().0.code(), Some(0));
}

#[test]
fn without_a_key_the_host_does_not_start_and_says_why() {
    let place = Place::new();
    let said = place.ends(3, &["serve", "--listen", "127.0.0.1:0"]);
    assert!(
        said.err.contains("without any api key") && said.err.contains("hint: "),
        "{said:#?}"
    );
    assert_eq!(said.out, "");
}

#[test]
fn second_host_on_the_same_database_or_address_is_refused() {
    let mut place = Place::new();
    let host = place.serve();
    let args = ["serve", "--listen", "127.0.0.1:0", "--store", "sqlite:wopr.db"];
    let said = place.ends(8, &args);
    assert!(
        said.err
            .contains("wopr.db: another wopr process has this database open"),
        "{said:#?}"
    );
    let address = host.origin.trim_start_matches("http://");
    let said = place.ends(8, &["serve", "--store", "memory:", "--listen", address]);
    assert!(said.err.contains(&format!("listen on {address}")), "{said:#?}");
}

#[test]
fn invalid_workflow_file_is_skipped_and_logged() {
    let mut place = Place::new();
    place.write("flows/bad.json", "{}");
    let hello = std::fs::read_to_string(examples().join("hello.json")).unwrap();
    place.write("flows/hello.json", &hello);
    place.write("flows/hello-2.json", &hello.replace("\"1.0.0\"", "\"2.0.0\""));
    let args = [
        "serve",
        "--while-stdin",
        "--listen",
        "127.0.0.1:0",
        "--workflows",
        "flows",
    ];
    let mut command = place.command(&args);
    command.env("WOPR_API_KEY", KEY);
    let mut host = Host::start(command);
    let listed = place.json(&[
        "workflows",
        "list",
        "--json",
        "--server",
        &host.origin,
        "--key",
        KEY,
    ]);
    assert_eq!(listed["workflows"].as_array().unwrap().len(), 1);
    host.close_stdin();
    let (_, log) = host.wait();
    let line = log
        .lines()
        .find(|line| line.contains("workflow skipped"))
        .unwrap();
    assert!(
        line.contains("flows/bad.json") && line.contains("1:1: definition: 'id' is missing"),
        "{line}"
    );
    let line = log.lines().find(|line| line.contains("takes the place")).unwrap();
    assert!(
        line.contains("hello.json") && line.contains("hello-2.json"),
        "{line}"
    );
    place.set("WOPR_API_KEY", KEY);
    for asked in [["config", "check"].as_slice(), &["doctor", "--store", "memory:"]] {
        let said = place.ends(0, &[asked, &["--workflows", "flows"]].concat());
        for wanted in [
            "flows/bad.json:1:1: definition: 'id' is missing (and 8 more)",
            "flows/hello.json takes the place of flows/hello-2.json: both have the id 'hello'",
        ] {
            assert!(said.out.contains(wanted), "{said:#?}");
        }
    }
}

#[test]
fn dev_generates_a_key_and_serves_the_examples() {
    let mut place = Place::new();
    let host = Host::start(place.command(&["dev", "--listen", "127.0.0.1:0"]));
    assert_eq!(members(&host.line), ["key", "listening", "pid"]);
    place.set("WOPR_SERVER", &host.origin);
    place.set("WOPR_API_KEY", host.line["key"].as_str().unwrap());
    let out = place.ends(0, &["workflows", "list"]).out;
    for id in [
        "a2a-echo",
        "campaign-brief",
        "clarify-order",
        "hello",
        "nightly-report",
    ] {
        assert!(out.contains(id), "{out}");
    }
    let said = place.ends(6, &["a2a", "send", "a sale"]);
    assert!(said.out.contains("input-required"), "{said:#?}");
    assert!(place.path().join("wopr-dev.db").exists());
    assert!(signal(host.pid(), "TERM"));
    let (status, log) = host.wait();
    assert!(status.success());
    assert!(log.contains("curl -s http://127.0.0.1:"), "{log}");
    assert!(log.contains("new at every start"), "{log}");
}

#[test]
fn failed_run_logs_one_line_with_node_code_and_id() {
    let mut place = Place::new();
    place.set("WOPR_LOG_FORMAT", "json");
    let mut host = place.serve();
    let hello = std::fs::read_to_string(examples().join("hello.json")).unwrap();
    let failing = |id: &str, kind: &str, config: Value| {
        let mut workflow: Value = serde_json::from_str(&hello).unwrap();
        workflow["id"] = id.into();
        workflow["nodes"][0]["typeId"] = kind.into();
        workflow["nodes"][0]["config"] = config;
        place.write(&format!("{id}.json"), &workflow.to_string());
        place.ends(0, &["workflows", "register", &format!("{id}.json")]);
        let said = place.ends(1, &["run", id, "--json"]);
        let run = said.json()["runId"].as_str().unwrap().to_owned();
        (run, workflow["nodes"][0]["id"].clone())
    };
    // One fails in the decision that starts it, the other after an attempt.
    let at_once = failing(
        "at-once",
        "core.fail",
        json!({ "code": "out_of_cake", "message": "the cake is gone" }),
    );
    let call = json!({ "method": "GET", "url": "http://127.0.0.1:1/" });
    let later = failing("later", "core.http.request", call);
    place.ends(0, &["run", "hello"]);
    host.close_stdin();
    let (_, log) = host.wait();
    let lines = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let failed: Vec<_> = lines
        .filter(|line| line["fields"]["message"] == "run failed")
        .map(|line| {
            let field = |name: &str| line["fields"][name].clone();
            (field("run"), field("node"), field("code"))
        })
        .collect();
    let line = |(run, node): (String, Value), code: &str| (json!(run), node, json!(code));
    assert_eq!(
        failed,
        [line(at_once, "out_of_cake"), line(later, "egress_refused")],
        "{log}"
    );
}

/// A document of the Agent Workflow Protocol whose executions fail.
fn fails() -> Value {
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "fails", "version": "1.0.0" },
        "state_schema": { "type": "object" },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "set", "type": "set_state", "config": { "assignments": { "x": { "jq": "error" } } } },
            { "id": "end", "type": "end" },
        ],
        "edges": [
            { "source": "__start__", "target": "start" },
            { "source": "start", "target": "set" },
            { "source": "set", "target": "end" },
        ],
    })
}

#[tokio::test]
async fn refusals_for_load_and_failed_executions_do_not_each_log_a_failed_request() {
    let mut place = Place::new();
    place.set("WOPR_LOG_FORMAT", "json");
    place.set("WOPR_WORKERS_MAX_WAITING", "1");
    let host = place.serve();
    let client = client();
    let post = |path: &str, body: Value| {
        let request = client
            .post(format!("{}{path}", host.origin))
            .body(body.to_string());
        ask(request.header("content-type", "application/json"))
    };
    let registered = post("/awp/v1/workflows", json!({ "definition": fails() })).await;
    assert_eq!(registered.0, 201, "{}", registered.1);
    for n in 0..5 {
        let failed = post(
            "/awp/v1/workflows/fails/executions",
            json!({ "execution_id": format!("e{n}") }),
        )
        .await;
        assert_eq!(
            (failed.0, &failed.1["error"]["code"]),
            (500, &json!("ENGINE_FAILURE"))
        );
    }
    let lease = || post("/v1/activities:lease", json!({ "queue": "q", "waitMs": 60_000 }));
    // Of two calls one waits and the other is refused, and so is every further one.
    let (one, other) = (tokio::spawn(lease()), tokio::spawn(lease()));
    let (refused, waiting) = match futures_util::future::select(one, other).await {
        futures_util::future::Either::Left((refused, waiting))
        | futures_util::future::Either::Right((refused, waiting)) => (refused, waiting),
    };
    assert_eq!(refused.unwrap().0, 503);
    for _ in 0..5 {
        assert_eq!(lease().await.0, 503);
    }
    assert!(signal(host.pid(), "TERM"));
    let (_, log) = host.wait();
    assert_eq!(waiting.await.unwrap().0, 200);
    let said = |message: &str| {
        let lines = log
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["fields"]["message"] == message).count()
    };
    assert_eq!(said("request failed"), 0, "{log}");
    assert_eq!(said("request refused"), 1, "{log}");
    assert_eq!(said("run failed"), 5, "{log}");
}

#[test]
fn an_address_of_the_agent_workflow_protocol_that_is_taken_ends_the_start() {
    let mut place = Place::new();
    place.set("WOPR_API_KEY", KEY);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("awp.listen={}", taken.local_addr().unwrap());
    let args = ["serve", "--listen", "127.0.0.1:0", "--set", &listen];
    let said = place.ends(8, &args);
    assert!(
        said.out.is_empty() && said.err.contains("in use"),
        "nothing was announced: {said:#?}"
    );
    assert!(!place.path().join("wopr.db").exists(), "nothing was opened");
}

#[test]
fn a_host_that_is_told_to_stop_is_not_ready_before_it_refuses_connections() {
    let mut place = Place::new();
    place.set("WOPR_SHUTDOWN_DELAY", "20s");
    let host = place.serve();
    place.ends(0, &["doctor", "--server", &host.origin]);
    assert!(signal(host.pid(), "TERM"));
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while place.run(&["doctor", "--server", &host.origin]).code == 0 {
        assert!(std::time::Instant::now() < until, "it is ready still");
    }
    // It serves all the same.
    place.ends(0, &["run", "hello"]);
    // A second signal ends it at once.
    assert!(signal(host.pid(), "TERM"));
    host.wait();
}

#[test]
fn a_hang_up_stops_a_host_in_order_unless_it_was_started_to_ignore_it() {
    let mut place = Place::new();
    let host = place.serve_limited("trap '' HUP");
    assert!(signal(host.pid(), "HUP"));
    place.ends(0, &["run", "hello"]);
    assert!(signal(host.pid(), "TERM"));
    assert!(host.wait().0.success());
    // A test that is run by `nohup` hands that on.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .unwrap();
    if u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 0 {
        let host = place.serve();
        assert!(signal(host.pid(), "HUP"));
        let (status, log) = host.wait();
        assert!(status.success(), "{status}: {log}");
    }
}

#[tokio::test]
async fn a_host_that_is_told_to_stop_lets_calls_under_way_finish() {
    let mut place = Place::new();
    place.set("WOPR_EGRESS_ALLOW", "127.0.0.0/8");
    let peer = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hello = std::fs::read_to_string(examples().join("hello.json")).unwrap();
    let mut workflow: Value = serde_json::from_str(&hello).unwrap();
    workflow["id"] = "call".into();
    workflow["nodes"][0]["typeId"] = "core.http.request".into();
    let url = format!("http://{}/", peer.local_addr().unwrap());
    workflow["nodes"][0]["config"] = json!({ "method": "GET", "url": url });
    place.write("call.json", &workflow.to_string());
    let host = place.serve();
    place.ends(0, &["workflows", "register", "call.json"]);
    let start = client().post(format!("{}/v1/runs", host.origin));
    let start = start.header("content-type", "application/json");
    let (status, created) = ask(start.body(json!({ "workflowId": "call" }).to_string())).await;
    assert_eq!(status, 201, "{created}");
    let run = created["runId"].as_str().unwrap();
    let (mut call, _) = peer.accept().unwrap();
    assert!(signal(host.pid(), "TERM"));
    // From then on, the stop is under way.
    let address = host.origin.strip_prefix("http://").unwrap();
    while TcpStream::connect(address).is_ok() {}
    call.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        .unwrap();
    let (status, log) = host.wait();
    assert!(status.success() && !log.contains("cut off"), "{log}");
    let host = place.serve();
    let (_, run) = ask(client().get(format!("{}/v1/runs/{run}", host.origin))).await;
    assert_eq!(run["status"], "completed", "{run}");
    peer.set_nonblocking(true).unwrap();
    assert!(peer.accept().is_err(), "the call was made again");
}

#[tokio::test]
async fn a_limit_of_the_size_of_files_refuses_writes_as_a_full_disk_does() {
    let mut place = Place::new();
    // Some megabytes, in units of the shell.
    let host = place.serve_limited("ulimit -f 8192");
    let client = client();
    let body = json!({ "workflowId": "hello", "inputs": { "prompt": "x".repeat(50_000) } }).to_string();
    let start = |host: &Host| {
        let request = client.post(format!("{}/v1/runs", host.origin)).body(body.clone());
        ask(request.header("content-type", "application/json"))
    };
    // A checkpoint makes room once more, until the database itself is as large as it may be.
    let (mut n_asked, mut n_refused) = (0, 0);
    while n_refused < 5 {
        n_refused = match start(&host).await.0 {
            201 => 0,
            503 => n_refused + 1,
            other => panic!("{other}"),
        };
        n_asked += 1;
        assert!(n_asked < 1_000, "the limit has no effect");
    }
    let (status, runs) = ask(client.get(format!("{}/v1/runs", host.origin))).await;
    assert_eq!(status, 200, "{runs}");
    assert!(signal(host.pid(), "TERM"));
    let (_, log) = host.wait();
    assert!(!log.contains("in doubt") && !log.contains("given up"), "{log}");
    // With more room it goes on.
    let host = place.serve();
    assert_eq!(start(&host).await.0, 201);
}
