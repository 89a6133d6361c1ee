//! `a2a` commands against our own host, in both versions over every binding.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Stdio,
    thread,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};

use crate::binary::{Host, KEY, Place, Said, examples, members};

const PAIRS: [[&str; 2]; 6] = [
    ["1.0", "jsonrpc"],
    ["1.0", "http-json"],
    ["1.0", "grpc"],
    ["0.3", "jsonrpc"],
    ["0.3", "http-json"],
    ["0.3", "grpc"],
];

/// Runs an `a2a` command in a version over a binding.
fn speak(place: &Place, [protocol, binding]: [&str; 2], args: &[&str]) -> Said {
    let mut all = vec!["a2a"];
    all.extend(args);
    all.extend(["--protocol", protocol, "--binding", binding]);
    place.run(&all)
}

/// Like [`speak`], but requires an exit code.
fn ends(place: &Place, pair: [&str; 2], code: i32, args: &[&str]) -> Said {
    let said = speak(place, pair, args);
    assert_eq!(said.code, code, "{pair:?}: {said:#?}");
    said
}

fn first_run(place: &Place, status: &str) -> String {
    let listed = place.json(&["runs", "list", "--json", "--status", status]);
    listed["runs"][0]["runId"].as_str().unwrap().to_owned()
}

#[test]
fn card_is_shown_and_every_version_and_binding_works() {
    let mut place = Place::new();
    let host = place.serve();
    let said = place.ends(0, &["a2a", "card"]);
    assert!(
        said.out.contains("campaign-brief") && said.out.contains("spoken here"),
        "{said:#?}"
    );
    let card = place.json(&["a2a", "card", "--json"]);
    assert!(card["supportedInterfaces"].is_array(), "{card:#}");
    let url = format!("{}/.well-known/agent-card.json", host.origin);
    place.ends(0, &["a2a", "card", "--server", &url]);
    place.ends(
        0,
        &["a2a", "card", &host.origin, "--server", "http://127.0.0.1:1"],
    );
    let said = place.ends(0, &["a2a", "send", &host.origin, "Ada", "--workflow", "hello"]);
    assert!(said.err.contains("sent as text"), "{said:#?}");

    for pair in PAIRS {
        let said = ends(&place, pair, 0, &["send", "Ada", "--workflow", "hello"]);
        assert!(
            said.out.contains("completed") && said.out.contains("Hello, Ada!"),
            "{pair:?}: {said:#?}"
        );
        let sent = ends(&place, pair, 0, &["send", "Ada", "--workflow", "hello", "--json"]).json();
        assert_eq!(members(&sent), ["task"]);
        let task = sent["task"]["id"].as_str().unwrap();
        let said = ends(&place, pair, 0, &["get", task, "--json"]).json();
        assert_eq!(said["status"]["state"], "TASK_STATE_COMPLETED");
        // The task id is the run id.
        assert_eq!(
            place.json(&["runs", "show", task, "--json"])["status"],
            "completed"
        );
    }
}

#[test]
fn task_is_streamed_answered_and_resubscribed() {
    let mut place = Place::new();
    let _host = place.serve();
    for pair in PAIRS {
        let speak = |args: &[&str]| speak(&place, pair, args);
        let said = speak(&["send", "a sale", "--workflow", "campaign-brief", "--json"]);
        assert_eq!(said.code, 6, "{said:#?}");
        let task = said.json()["task"]["id"].as_str().unwrap().to_owned();
        assert_eq!(first_run(&place, "waiting-approval"), task, "{pair:?}");
        let said = speak(&["get", &task]);
        assert_eq!(said.code, 6, "{said:#?}");
        assert!(
            said.out.contains("Approve the campaign brief for a sale?"),
            "{said:#?}"
        );
        let said = speak(&[
            "stream",
            "--task",
            &task,
            "--data",
            r#"{"approve":true}"#,
            "--json",
        ]);
        assert_eq!(said.code, 0, "{said:#?}");
        let items: Vec<Value> = said
            .out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert!(items.len() > 2, "{items:#?}");
        let last = &items.last().unwrap()["statusUpdate"]["status"]["state"];
        assert_eq!(last, "TASK_STATE_COMPLETED", "{items:#?}");
        assert!(
            items.iter().any(|item| item["artifactUpdate"].is_object()),
            "{items:#?}"
        );
        // The stream can be replayed from any event.
        let said = speak(&["subscribe", &task, "--last-event-id", "7"]);
        assert_eq!(said.code, 0, "{said:#?}");
        assert!(said.out.contains("completed"), "{said:#?}");
    }
}

#[test]
fn task_is_cancelled_and_unknown_task_is_not_found() {
    let mut place = Place::new();
    let host = place.serve();
    for pair in PAIRS {
        let args = [
            "send",
            "a cake",
            "--workflow",
            "clarify-order",
            "--no-wait",
            "--json",
        ];
        let sent = speak(&place, pair, &args).json();
        let task = sent["task"]["id"].as_str().unwrap();
        let said = ends(&place, pair, 0, &["cancel", task]);
        assert!(said.out.contains("canceled"), "{said:#?}");
        ends(&place, pair, 1, &["get", task]);
        ends(
            &place,
            pair,
            1,
            &["get", task, &host.origin, "--server", "http://127.0.0.1:1"],
        );
        let said = ends(&place, pair, 1, &["cancel", task]);
        assert!(said.err.contains("the agent answered"), "{said:#?}");
        let said = ends(&place, pair, 4, &["get", "run_nope"]);
        assert!(said.err.contains("the agent answered"), "{said:#?}");
        let said = ends(&place, pair, 4, &["subscribe", "run_nope"]);
        assert!(said.err.contains("the agent answered"), "{said:#?}");
        let said = ends(&place, pair, 5, &["get", task, "--key", ""]);
        assert!(said.err.contains("--key"), "{said:#?}");
        let said = ends(
            &place,
            pair,
            5,
            &["get", task, "--key", "wopr_not_a_key_of_this_host"],
        );
        assert!(said.err.contains("does not know this key"), "{said:#?}");
    }
}

#[test]
fn tasks_are_listed_by_page() {
    let mut place = Place::new();
    let _host = place.serve();
    let mut tasks = Vec::new();
    for name in ["Ada", "Grace", "Edsger"] {
        let sent = place.json(&["a2a", "send", name, "--workflow", "hello", "--json"]);
        tasks.insert(0, sent["task"]["id"].as_str().unwrap().to_owned());
    }
    let ids = |page: &Value| -> Vec<String> {
        let tasks = page["tasks"].as_array().unwrap().iter();
        tasks
            .map(|task| task["id"].as_str().unwrap().to_owned())
            .collect()
    };
    for pair in PAIRS {
        if pair[0] == "0.3" && pair[1] != "http-json" {
            let said = ends(&place, pair, 1, &["list"]);
            assert!(said.err.contains("--binding http-json"), "{said:#?}");
            continue;
        }
        let listed = |args: &[&str]| {
            let mut all = vec!["list", "--json"];
            all.extend(args);
            ends(&place, pair, 0, &all).json()
        };
        assert_eq!(ids(&listed(&[])), tasks, "{pair:?}");
        let page = listed(&["--page-size", "2"]);
        assert_eq!(
            (ids(&page).as_slice(), &page["totalSize"]),
            (&tasks[..2], &json!(3))
        );
        let token = page["nextPageToken"].as_str().unwrap();
        let rest = listed(&["--page-size", "2", "--page-token", token]);
        assert_eq!(
            (ids(&rest).as_slice(), &rest["nextPageToken"]),
            (&tasks[2..], &json!(""))
        );
        assert_eq!(ids(&listed(&["--page-size", "1", "--all"])), tasks);
        assert_eq!(ids(&listed(&["--status", "failed"])), Vec::<String>::new());
        assert_eq!(ids(&listed(&["--status", "completed"])), tasks);
        let context = listed(&[])["tasks"][1]["contextId"].as_str().unwrap().to_owned();
        assert_eq!(ids(&listed(&["--context", &context])), tasks[1..2]);
        let said = ends(&place, pair, 0, &["list", "--page-size", "1"]);
        assert!(
            said.out.contains("STATE") && said.out.contains(&tasks[0]),
            "{said:#?}"
        );
        assert!(said.err.contains("--page-token"), "{said:#?}");
        let said = ends(&place, pair, 1, &["list", "--page-token", "nonsense"]);
        assert!(said.err.contains("the agent answered"), "{said:#?}");
    }
    place.ends(2, &["a2a", "list", "--page-size", "0"]);
}

#[test]
fn extended_card_requires_a_key() {
    let mut place = Place::new();
    let _host = place.serve();
    for pair in PAIRS {
        let said = ends(&place, pair, 0, &["card", "--extended"]);
        assert!(
            said.out.contains("hello") && said.out.contains("spoken here"),
            "{pair:?}: {said:#?}"
        );
        let card = ends(&place, pair, 0, &["card", "--extended", "--json"]).json();
        assert!(card["supportedInterfaces"].is_array(), "{pair:?}: {card:#}");
        ends(&place, pair, 5, &["card", "--extended", "--key", ""]);
        let shown = ends(&place, pair, 0, &["card"]).out;
        let spoken: Vec<_> = shown
            .lines()
            .filter(|line| line.contains("spoken here"))
            .collect();
        let name = match pair[1] {
            "http-json" => "HTTP+JSON".to_owned(),
            name => name.to_uppercase(),
        };
        assert!(
            spoken.len() == 1 && spoken[0].contains(pair[0]) && spoken[0].contains(&name),
            "{pair:?}: {spoken:?}"
        );
    }
}

/// Answers every request with a document until the test ends. The receiver returns the requests.
fn hostile(document: &'static str) -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = vec![0; 4096];
            let n = stream.read(&mut head).unwrap_or(0);
            let _ = sender.send(String::from_utf8_lossy(&head[..n]).into_owned());
            let length = document.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
                 connection: close\r\n\r\n{document}"
            );
        }
    });
    (origin, receiver)
}

#[test]
fn key_is_sent_only_to_the_origin_of_the_card() {
    let place = Place::new();
    let (elsewhere, asked) = hostile("{}");
    let authority = elsewhere.strip_prefix("http://").unwrap();
    for (binding, url) in [
        ("JSONRPC", elsewhere.as_str()),
        ("HTTP+JSON", &elsewhere),
        ("GRPC", authority),
    ] {
        let card = json!({
            "name": "n\u{1b}[2J", "description": "d", "version": "1", "capabilities": {}, "skills": [],
            "defaultInputModes": [], "defaultOutputModes": [],
            "supportedInterfaces": [{"url": url, "protocolBinding": binding, "protocolVersion": "1.0"}],
        });
        let (origin, fetched) = hostile(card.to_string().leak());
        let said = place.run(&["a2a", "get", "t", &origin, "--key", "a-secret"]);
        // The response is not a valid A2A response.
        assert!(matches!(said.code, 1 | 7), "{said:#?}");
        assert!(fetched.recv().unwrap().contains("a-secret"));
        let request = asked.recv().unwrap();
        assert!(!request.contains("a-secret"), "{binding}: {request}");
        let shown = place.ends(0, &["a2a", "card", &origin]);
        assert!(
            !shown.out.contains('\u{1b}') && shown.out.contains("spoken here"),
            "{shown:#?}"
        );
    }
}

#[test]
fn every_binding_works_over_tls() {
    let mut place = Place::new();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    place.write("cert.pem", &certificate.pem());
    place.write("key.pem", &key.serialize_pem());
    let roots = place.write("roots.pem", &authority.pem());
    place.write(
        "wopr.toml",
        "[server.tls]\ncert = \"cert.pem\"\nkey = \"key.pem\"\n",
    );
    let args = [
        "serve",
        "--while-stdin",
        "--listen",
        "127.0.0.1:0",
        "--store",
        "memory:",
        "--config",
        "wopr.toml",
    ];
    let mut command = place.command(&args);
    command
        .arg("--workflows")
        .arg(examples())
        .env("WOPR_API_KEY", KEY);
    let host = Host::start(command);
    assert!(host.origin.starts_with("https://"), "{}", host.origin);
    place.set("WOPR_SERVER", &host.origin);
    place.set("WOPR_API_KEY", KEY);
    for pair in PAIRS {
        // The host's certificate authority is not trusted here.
        ends(&place, pair, 7, &["card"]);
    }
    let roots = roots.to_str().unwrap();
    for pair in PAIRS {
        let said = ends(
            &place,
            pair,
            0,
            &["send", "Ada", "--workflow", "hello", "--cacert", roots],
        );
        assert!(said.out.contains("Hello, Ada!"), "{pair:?}: {said:#?}");
    }
    for args in [
        ["runs", "list"].as_slice(),
        &["interrupts", "list"],
        &["workflows", "list"],
        &["keys", "list"],
        &["run", "hello"],
        &["a2a", "list"],
    ] {
        place.ends(7, args);
        place.ends(0, &[args, &["--cacert", roots]].concat());
    }
    place.write("empty.pem", "no certificate");
    let said = place.ends(3, &["a2a", "card", "--cacert", "empty.pem"]);
    assert!(said.err.contains("empty.pem"), "{said:#?}");
    place.ends(4, &["a2a", "card", "--cacert", "missing.pem"]);
    place.set("SSL_CERT_FILE", roots);
    for pair in PAIRS {
        let said = ends(&place, pair, 0, &["send", "Ada", "--workflow", "hello"]);
        assert!(said.out.contains("Hello, Ada!"), "{pair:?}: {said:#?}");
        let said = ends(&place, pair, 0, &["stream", "Ada", "--workflow", "hello"]);
        assert!(said.out.contains("completed"), "{pair:?}: {said:#?}");
    }
}

#[test]
fn client_certificate_is_as_good_as_a_key() {
    let mut place = Place::new();
    let authority = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (servers, clients) = (authority("servers"), authority("clients"));
    let identity = |of: &CertifiedIssuer<'static, KeyPair>, name: &str| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, of).unwrap().pem(), key.serialize_pem())
    };
    let (cert, key) = identity(&servers, "127.0.0.1");
    place.write("cert.pem", &cert);
    place.write("key.pem", &key);
    place.write("clients.pem", &clients.pem());
    place.write(
        "wopr.toml",
        "[server.tls]\ncert = \"cert.pem\"\nkey = \"key.pem\"\nclient_ca = \"clients.pem\"\n\
         [[auth.certificates]]\nid = \"ann\"\nsan = \"ann.example.com\"\ntenant = \"default\"\nscopes = [\"*\"]\n",
    );
    let args = [
        "serve",
        "--while-stdin",
        "--listen",
        "127.0.0.1:0",
        "--store",
        "memory:",
    ];
    let mut command = place.command(&args);
    command
        .args(["--config", "wopr.toml", "--workflows"])
        .arg(examples());
    let host = Host::start(command);
    place.set("WOPR_SERVER", &host.origin);
    let roots = place.write("roots.pem", &servers.pem());
    place.set("WOPR_CACERT", roots.to_str().unwrap());
    let (cert, key) = identity(&clients, "ann.example.com");
    place.write("ann.pem", &cert);
    place.write("ann.key", &key);
    let shown = ["--client-cert", "ann.pem", "--client-key", "ann.key"];
    for pair in PAIRS {
        let send = ["send", "Ada", "--workflow", "hello"];
        ends(&place, pair, 5, &send);
        let said = ends(&place, pair, 0, &[&send[..], &shown].concat());
        assert!(said.out.contains("Hello, Ada!"), "{pair:?}: {said:#?}");
    }
    place.ends(5, &["runs", "list"]);
    place.ends(0, &[&["runs", "list"][..], &shown].concat());

    // One without the other, a key that does not belong to it, and a file that is not there.
    place.ends(2, &["a2a", "list", "--client-cert", "ann.pem"]);
    let said = place.ends(
        3,
        &[
            "a2a",
            "list",
            "--client-cert",
            "ann.pem",
            "--client-key",
            "key.pem",
        ],
    );
    assert!(said.err.contains("the certificate with its key"), "{said:#?}");
    let said = place.ends(
        4,
        &[
            "a2a",
            "list",
            "--client-cert",
            "ann.pem",
            "--client-key",
            "missing.key",
        ],
    );
    assert!(said.err.contains("missing.key"), "{said:#?}");
    place.set("WOPR_CLIENT_CERT", "ann.pem");
    place.set("WOPR_CLIENT_KEY", "ann.key");
    place.ends(0, &["a2a", "list"]);
}

#[test]
fn only_interfaces_in_the_card_are_used() {
    let place = Place::new();
    let (origin, _) = hostile(
        r#"{"name": "n", "description": "d", "version": "1", "capabilities": {}, "skills": [],
            "defaultInputModes": [], "defaultOutputModes": [], "supportedInterfaces": [
                {"url": "/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
                {"url": "file:///etc/passwd", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
                {"url": "x", "protocolBinding": "CARRIER-PIGEON", "protocolVersion": "1.0"}]}"#,
    );
    for args in [
        ["--binding", "grpc"],
        ["--binding", "http-json"],
        ["--protocol", "0.3"],
    ] {
        let said = place.ends(1, &["a2a", "get", "t", &origin, args[0], args[1]]);
        assert!(said.err.contains("CARRIER-PIGEON 1.0"), "{said:#?}");
        // The card is shown anyway.
        let said = place.ends(1, &["a2a", "card", &origin, args[0], args[1]]);
        assert!(
            said.out.contains("CARRIER-PIGEON") && !said.out.contains("spoken here"),
            "{said:#?}"
        );
        assert!(said.err.contains("offers no interface"), "{said:#?}");
        let said = place.ends(1, &["a2a", "card", &origin, "--json", args[0], args[1]]);
        assert_eq!(
            said.json()["supportedInterfaces"][2]["protocolBinding"],
            "CARRIER-PIGEON"
        );
    }
    for document in [
        "",
        "[]",
        "7",
        "{\"supportedInterfaces\": {}}",
        "{\"supportedInterfaces\": [7]}",
    ] {
        let (origin, _) = hostile(document);
        let said = place.ends(1, &["a2a", "card", &origin]);
        assert!(said.err.contains("cannot read the card"), "{document}: {said:#?}");
        // JSON is shown as received.
        assert_eq!(said.out.is_empty(), document.is_empty(), "{document}: {said:#?}");
    }
}

#[test]
fn push_configuration_is_set_read_listed_and_removed() {
    let mut place = Place::new();
    let _host = place.serve();
    let sent = place.run(&["a2a", "send", "a sale", "--workflow", "campaign-brief", "--json"]);
    let task = sent.json()["task"]["id"].as_str().unwrap().to_owned();
    for pair in PAIRS {
        let push = |code: i32, args: &[&str]| {
            let mut all = vec!["push-config"];
            all.extend(args);
            ends(&place, pair, code, &all)
        };
        let url = "https://example.com/hook";
        let secrets = [
            "--token",
            "a-token",
            "--auth-scheme",
            "Bearer",
            "--auth-credentials",
            "a-secret",
        ];
        let said = push(
            0,
            &[&["set", &task, "--url", url, "--id", "c"], &secrets[..]].concat(),
        );
        assert!(
            said.out.contains(url) && !said.out.contains("a-token"),
            "{pair:?}: {said:#?}"
        );
        let told = push(0, &["get", &task, "c", "--json"]).json();
        assert_eq!(
            (&told["id"], &told["taskId"], &told["url"]),
            (&json!("c"), &json!(task), &json!(url))
        );
        let made = push(0, &["set", &task, "--url", url, "--json"]).json();
        let listed = push(0, &["list", &task, "--json"]).json();
        assert_eq!(
            listed["configs"].as_array().map(Vec::len),
            Some(2),
            "{pair:?}: {listed:#}"
        );
        let said = push(0, &["list", &task]);
        assert!(
            said.out.contains("CONFIG") && !said.out.contains("a-secret"),
            "{pair:?}: {said:#?}"
        );
        for id in ["c", made["id"].as_str().unwrap()] {
            push(0, &["delete", &task, id]);
        }
        assert_eq!(push(0, &["list", &task, "--json"]).json()["configs"], json!([]));
        let said = push(4, &["list", "run_nope"]);
        assert!(said.err.contains("the agent answered"), "{pair:?}: {said:#?}");
        let said = push(1, &["set", &task, "--url", "http://127.0.0.1:1/"]);
        assert!(said.err.contains("the agent answered"), "{pair:?}: {said:#?}");
    }
    let set = ["a2a", "push-config", "set", &task, "--url", "https://e.com"];
    for flags in [["--auth-credentials", "x"], ["--token", "a\nb"]] {
        place.ends(2, &[&set[..], &flags].concat());
    }
}

/// The stored fingerprint of the most recent token; equal tokens have equal fingerprints.
fn fingerprint(host: &Host, task: &str) -> Option<String> {
    let authority = host.origin.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(authority).unwrap();
    write!(
        stream,
        "GET /v1/a2a/tasks/{task} HTTP/1.1\r\nhost: {authority}\r\nauthorization: Bearer {KEY}\r\n\
         connection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let record: Value = serde_json::from_str(body).unwrap();
    let print = record["pushConfig"]["tokenFingerprint"].as_str();
    print.map(str::to_owned)
}

#[test]
fn push_secrets_can_be_read_from_files_and_environment() {
    let mut place = Place::new();
    let host = place.serve();
    let sent = place.run(&["a2a", "send", "a sale", "--workflow", "campaign-brief", "--json"]);
    let task = sent.json()["task"]["id"].as_str().unwrap().to_owned();
    let set = |more: &[&str], env: &[(&str, &str)], input: &str, code: i32| {
        let args = [
            &[
                "a2a",
                "push-config",
                "set",
                &task,
                "--id",
                "c",
                "--url",
                "https://example.com/",
            ][..],
            more,
        ]
        .concat();
        let mut command = place.command(&args);
        command.envs(env.iter().copied()).stdin(Stdio::piped());
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The process may exit without reading its input.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{more:?} {said}");
        (said, fingerprint(&host, &task))
    };
    let token = place.write("token", "a-token\n");
    let other = place.write("other", "another\r\n");
    let (token, other) = (token.to_str().unwrap(), other.to_str().unwrap());
    let env = [("WOPR_PUSH_TOKEN", "a-token")];
    let (_, wanted) = set(&["--token", "a-token"], &[], "", 0);
    assert!(wanted.is_some());
    let (_, another) = set(&["--token", "another"], &[], "", 0);
    assert_ne!(another, wanted);
    for (more, env, input, print) in [
        (&[][..], &env[..], "", &wanted),
        (&["--token-file", token], &[], "", &wanted),
        (&["--token-file", "-"], &[], "a-token\n", &wanted),
        // Flags take precedence over the environment.
        (&["--token", "another"], &env, "", &another),
        (&["--token-file", other], &env, "", &another),
        (
            &["--auth-scheme", "Bearer", "--auth-credentials-file", other],
            &env,
            "",
            &wanted,
        ),
        (
            &["--auth-scheme", "Bearer"],
            &[("WOPR_PUSH_CREDENTIALS", "x")],
            "",
            &None,
        ),
        // Credentials in the environment are ignored without a scheme.
        (
            &["--token", "another"],
            &[("WOPR_PUSH_CREDENTIALS", "x")],
            "",
            &another,
        ),
    ] {
        let (_, found) = set(more, env, input, 0);
        assert_eq!(found, *print, "{more:?} {env:?}");
    }
    let (said, _) = set(&["--token-file", "nowhere"], &[], "", 4);
    assert!(said.contains("--token-file: cannot read nowhere"), "{said}");
    let long = place.write("long", &"x".repeat((64 << 10) + 1));
    let (said, _) = set(&["--token-file", long.to_str().unwrap()], &[], "", 1);
    assert!(said.contains("more than 65536 bytes"), "{said}");
    let bearer = ["--auth-scheme", "Bearer"];
    for (more, env, input) in [
        (&["--auth-credentials-file", other][..], &[][..], ""),
        (&["--auth-credentials", "x"], &[], ""),
        (&["--token", "a-token", "--token-file", token], &[], ""),
        (
            &[
                &bearer[..],
                &["--auth-credentials", "x", "--auth-credentials-file", other],
            ]
            .concat(),
            &[],
            "",
        ),
        (
            &[
                &bearer[..],
                &["--auth-credentials-file", "-", "--token-file", "-"],
            ]
            .concat(),
            &[],
            "a-token\n",
        ),
        (&["--token", ""], &[], ""),
        (&["--token-file", "-"], &env, "\n"),
        (&[], &[("WOPR_PUSH_TOKEN", "")], ""),
        (&bearer, &[("WOPR_PUSH_CREDENTIALS", "")], ""),
    ] {
        set(more, env, input, 2);
    }
    place.set("WOPR_PUSH_TOKEN", "a-token");
    let help = place.ends(0, &["a2a", "push-config", "set", "--help"]).out;
    assert!(
        help.contains("WOPR_PUSH_TOKEN") && !help.contains("a-token"),
        "{help}"
    );
}

#[test]
fn agent_without_push_support_suggests_following() {
    let place = Place::new();
    // The same document for every request: a card that is also a JSON-RPC error.
    let (origin, _) = hostile(
        r#"{"name": "n", "description": "d", "version": "1", "capabilities": {}, "skills": [],
            "defaultInputModes": [], "defaultOutputModes": [],
            "supportedInterfaces": [{"url": "/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
            "jsonrpc": "2.0", "id": 1, "error": {"code": -32003, "message": "no \u001b[2Jpush"}}"#,
    );
    for args in [
        &["set", "t", "--url", "https://e.com"][..],
        &["get", "t", "c"],
        &["list", "t"],
        &["delete", "t", "c"],
    ] {
        let all = [&["a2a", "push-config"], args, &["--server", &origin]].concat();
        let said = place.ends(1, &all);
        assert!(said.err.contains("wopr a2a subscribe"), "{said:#?}");
        assert!(said.err.contains("no [2Jpush"), "{said:#?}");
    }
}

#[test]
fn message_id_counts_once() {
    let mut place = Place::new();
    let _host = place.serve();
    let args = [
        "a2a",
        "send",
        "Ada",
        "--workflow",
        "hello",
        "--message-id",
        "m-1",
        "--json",
    ];
    let first = place.json(&args);
    assert_eq!(place.json(&args)["task"]["id"], first["task"]["id"]);
    let listed = place.json(&["runs", "list", "--json"]);
    assert_eq!(listed["runs"].as_array().map(Vec::len), Some(1));
    assert_ne!(first["task"], json!(null));
}

#[test]
fn card_signatures_are_verified() {
    let mut place = Place::new();
    {
        let _host = place.serve();
        let said = place.ends(1, &["a2a", "verify-card"]);
        assert!(said.err.contains("is not signed"), "{said:#?}");
    }
    let mut place = Place::new();
    place.set("WOPR_A2A_CARD_SIGNING", "EdDSA,ES256");
    let host = place.serve();
    let said = place.ends(0, &["a2a", "verify-card"]);
    assert!(said.out.contains("holds EdDSA by the key"), "{said:#?}");
    assert!(said.out.contains("covers the whole card"), "{said:#?}");
    let told = place.json(&["a2a", "verify-card", "--json"]);
    assert_eq!(told["verified"], true);
    assert_eq!(told["signatures"][1]["algorithm"], "ES256");
    assert_eq!(told["signatures"][1]["covers"], "document");
    let keys = format!("{}/.well-known/jwks.json", host.origin);
    place.ends(0, &["a2a", "verify-card", &host.origin, "--keys", &keys]);
    // Keys of another host with the same ids do not verify.
    let other = Place::new();
    let stranger =
        r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    let file = other.write("keys.json", stranger);
    let said = place.ends(1, &["a2a", "verify-card", "--keys", file.to_str().unwrap()]);
    assert!(
        said.err.contains("no signature") && said.out.contains("fails"),
        "{said:#?}"
    );
    place.ends(4, &["a2a", "verify-card", "--keys", "nowhere.json"]);
}
