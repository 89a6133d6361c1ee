//! Runs from start to end: in the command's process, on a host, and across a crash of the host.

use serde_json::Value;

use crate::binary::{Place, examples, first_line, members};

#[test]
fn run_needs_no_server() {
    let place = Place::new();
    let said = place.ends(0, &["run", "hello", "--input", "name=Ada"]);
    assert_eq!(said.out, "Hello, Ada!\n");
    assert!(said.err.contains("run.completed"), "{said:#?}");

    let file = examples().join("hello.json");
    let said = place.ends(
        0,
        &[
            "run",
            file.to_str().unwrap(),
            "--inputs",
            r#"{"name":"Bob"}"#,
            "--json",
        ],
    );
    let document = said.json();
    assert_eq!(said.err, "");
    assert_eq!(
        members(&document),
        [
            "artifacts",
            "error",
            "interrupt",
            "outputs",
            "runId",
            "status",
            "workflowId"
        ]
    );
    assert_eq!(document["status"], "completed");
    assert_eq!(document["outputs"]["text"], "Hello, Bob!");
    assert_eq!(document["artifacts"][0]["artifactType"], "greeting");
    assert_eq!(place.path().read_dir().unwrap().count(), 0, "nothing is left");
}

#[test]
fn run_can_wait_for_time_and_for_a_child() {
    let place = Place::new();
    let said = place.ends(0, &["run", "nightly-report", "-i", "team=day shift"]);
    assert!(said.out.starts_with("Hello, day shift!\n"), "{said:#?}");
}

#[test]
fn invalid_runs_report_the_reason() {
    let place = Place::new();
    let said = place.ends(4, &["run", "no-such-workflow"]);
    assert!(said.err.contains("campaign-brief"), "{said:#?}");
    place.ends(4, &["run", "missing.json"]);
    place.write("bad.json", "{}");
    let said = place.ends(3, &["run", "bad.json"]);
    assert!(said.err.contains("'nodes' is missing"), "{said:#?}");
    let said = place.ends(1, &["run", "hello", "-i", "name:=7"]);
    assert!(said.err.contains("inputs.name"), "{said:#?}");
    let mut failing: Value =
        serde_json::from_str(&std::fs::read_to_string(examples().join("hello.json")).unwrap()).unwrap();
    failing["nodes"][0]["typeId"] = "core.fail".into();
    failing["nodes"][0]["config"] = serde_json::json!({"code": "out_of_cake", "message": "the cake is gone"});
    place.write("failing.json", &failing.to_string());
    let said = place.ends(1, &["run", "failing.json"]);
    assert!(
        said.err
            .contains("the run failed: the cake is gone (out_of_cake)"),
        "{said:#?}"
    );
}

#[test]
fn answers_are_taken_from_the_command_line() {
    let place = Place::new();
    let refine = r#"{"action":"refine","refineFeedback":{"scope":"whole","text":"shorter, please"}}"#;
    let accept = r#"{"action":"accept"}"#;
    let said = place.ends(
        0,
        &["run", "campaign-brief", "--answer", refine, "--answer", accept],
    );
    assert!(said.out.contains("Revision: shorter, please"), "{said:#?}");
    assert!(said.out.contains("Approved by"), "{said:#?}");

    let said = place.ends(
        0,
        &["run", "campaign-brief", "--answer", r#"{"action":"reject"}"#],
    );
    assert_eq!(said.out, "The campaign brief was declined.\n");

    let answers = r#"{"answers":{"size":"small","address":"10 Main Street"}}"#;
    let said = place.ends(
        0,
        &["run", "clarify-order", "-i", "prompt=a cake", "--answer", answers],
    );
    assert_eq!(said.out, "Order: a cake\nSize: small\nTo: 10 Main Street\n");

    let said = place.ends(
        1,
        &[
            "run",
            "clarify-order",
            "--answer",
            r#"{"answers":{"size":"huge"}}"#,
        ],
    );
    assert!(said.err.contains("size"), "{said:#?}");
}

#[test]
fn without_an_answer_a_run_ends_as_waiting_with_instructions() {
    let place = Place::new();
    let said = place.ends(6, &["run", "campaign-brief"]);
    assert!(said.err.contains("--answer"), "{said:#?}");
    let said = place.ends(6, &["run", "campaign-brief", "--json"]).json();
    assert_eq!(said["status"], "waiting-approval");
    assert_eq!(said["interrupt"]["kind"], "approval");
}

/// A list that ends early says so, to people and to programs.
#[test]
fn a_list_says_that_it_goes_on() {
    let mut place = Place::new();
    let _host = place.serve();
    for _ in 0..3 {
        place.ends(6, &["run", "campaign-brief"]);
    }
    for list in ["interrupts", "runs"] {
        for (limit, has_more) in [("2", true), ("3", false)] {
            let args = [list, "list", "--limit", limit];
            let said = place.ends(0, &args);
            assert_eq!(
                said.err.contains("more than these 2: --limit"),
                has_more,
                "{said:#?}"
            );
            let document = place.json(&[&args[..], &["--json"]].concat());
            assert_eq!(document["hasMore"], has_more, "{document}");
            assert_eq!(document[list].as_array().unwrap().len().to_string(), limit);
        }
    }
}

/// Who takes the next turn sees those before it, and how to end the conversation.
#[test]
fn a_conversation_shows_what_was_said() {
    let mut place = Place::new();
    let file = place.write(
        "talk.json",
        r#"{
            "id": "talk", "name": "talk", "version": "1", "edges": [], "triggers": [], "variables": [],
            "metadata": {}, "settings": {},
            "nodes": [{
                "id": "gate", "typeId": "core.conversationGate", "name": "gate",
                "config": { "prompt": "Tea?", "outcomeSchema": { "type": "object", "required": ["tea"] } }
            }]
        }"#,
    );
    let _host = place.serve();
    let said = place.ends(6, &["run", file.to_str().unwrap()]).err;
    let run = said.split_whitespace().find(|word| word.starts_with("run_"));
    let run = run.unwrap();
    for turn in [
        r#""Which do you have?""#,
        r#"{"content":"Green\u001b[2J, or black.","role":"agent"}"#,
    ] {
        place.ends(0, &["interrupts", "resolve", run, "--value", turn]);
    }
    let shown = place.ends(0, &["interrupts", "show", run]);
    for wanted in [
        "Tea?",
        ": Which do you have?",
        "host:conversation:gate: Green[2J, or black.",
    ] {
        assert!(shown.out.contains(wanted), "{wanted}: {shown:#?}");
    }
    let end = r#"{"operation":"close","outcome":"#;
    assert!(shown.err.contains(end), "{shown:#?}");
    let shown = place.ends(0, &["runs", "show", run]).out;
    assert!(shown.contains(": Which do you have?"), "{shown}");
    let refused = place.ends(
        1,
        &[
            "interrupts",
            "resolve",
            run,
            "--value",
            r#"{"operation":"close"}"#,
        ],
    );
    assert!(refused.err.contains("'outcome'"), "{refused:#?}");
    let end = format!(r#"{end}{{"tea":"green"}}}}"#);
    place.ends(0, &["interrupts", "resolve", run, "--value", &end]);
}

#[test]
fn run_on_a_host_survives_it_and_is_answered_later() {
    let mut place = Place::new();
    let host = place.serve();
    let said = place.ends(6, &["run", "campaign-brief", "-i", "prompt=a spring sale"]);
    let run = said
        .err
        .split_whitespace()
        .find(|word| word.starts_with("run_"))
        .unwrap()
        .to_owned();
    assert!(
        said.err
            .contains(&format!("wopr interrupts resolve {run} approval")),
        "{said:#?}"
    );
    host.kill();
    place.ends(7, &["runs", "show", &run]);

    let _host = place.serve();
    let listed = place.json(&["interrupts", "list", "--json"]);
    assert_eq!(listed["interrupts"][0]["runId"], run.as_str());
    assert_eq!(listed["interrupts"][0]["nodeId"], "approval");
    let table = place.ends(0, &["interrupts", "list"]).out;
    for wanted in [run.as_str(), "approval", "draft-0", "Approve the campaign"] {
        assert!(table.contains(wanted), "{table}");
    }
    assert_eq!(
        table.lines().count(),
        2,
        "a header, and a line for the row: {table}"
    );

    let shown = place.ends(0, &["interrupts", "show", &run]).out;
    for wanted in [
        "Approve the campaign brief for a spring sale?",
        "Accept hands the brief over",
        "accept, reject, refine",
        "draft-0",
        "Request: a spring sale",
        "/v1/interrupts/",
    ] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    // The gate has no deadline; only the link has.
    assert!(
        shown.contains("this link works until 20") && !shown.contains("answer by"),
        "{shown}"
    );
    let shown = place.json(&["interrupts", "show", &run, "approval", "--json"]);
    assert_eq!(shown["interrupt"]["data"]["artifactId"], "draft-0");
    assert_eq!(shown["artifact"]["artifactType"], "campaign.draft");
    place.ends(4, &["interrupts", "show", &run, "nowhere"]);

    let said = place.ends(0, &["runs", "show", &run]);
    assert!(
        said.out.contains("waiting-approval") && said.out.contains("a spring sale"),
        "{said:#?}"
    );
    let said = place.ends(6, &["interrupts", "resolve", &run]);
    assert!(said.err.contains(r#"--value '{"action":"accept"}'"#), "{said:#?}");
    place.ends(4, &["interrupts", "resolve", &run, "nowhere", "--accept"]);
    let said = place.ends(
        1,
        &["interrupts", "resolve", &run, "--value", r#"{"action":"ask"}"#],
    );
    assert!(said.err.contains("not offered"), "{said:#?}");

    place.ends(0, &["interrupts", "resolve", &run, "--refine", "bolder"]);
    let shown = place.ends(0, &["interrupts", "show", &run]).out;
    assert!(
        shown.contains("revise-0") && shown.contains("Revision: bolder"),
        "{shown}"
    );
    let said = place.ends(0, &["interrupts", "resolve", &run, "--accept"]);
    assert!(said.out.contains("completed"), "{said:#?}");
    place.ends(4, &["interrupts", "resolve", &run, "--accept"]);
    assert_eq!(
        place.json(&["interrupts", "list", "--json"])["interrupts"],
        serde_json::json!([])
    );

    let shown = place.json(&["runs", "show", &run, "--json"]);
    assert_eq!(shown["status"], "completed");
    let log = place.json(&["runs", "events", &run, "--json"]);
    let events = log["events"].as_array().unwrap();
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event["sequence"], index);
    }
    assert_eq!(events.last().unwrap()["type"], "run.completed");
    let followed = place.ends(0, &["runs", "events", &run, "--follow", "--json"]).out;
    assert_eq!(followed.lines().count(), events.len());
    let table = place.ends(0, &["runs", "events", &run]).out;
    assert_eq!(table.lines().count(), events.len());
    assert!(
        table.contains("approval.received") && table.contains("refine"),
        "{table}"
    );
}

#[test]
fn runs_are_listed_filtered_and_cancelled() {
    let mut place = Place::new();
    let _host = place.serve();
    for _ in 0..3 {
        place.ends(0, &["run", "hello"]);
    }
    let waiting = place.ends(0, &["run", "clarify-order", "--detach"]).out;
    let waiting = waiting.trim();
    let listed = |args: &[&str]| {
        let mut all = vec!["runs", "list", "--json"];
        all.extend(args);
        place.json(&all)["runs"].as_array().unwrap().len()
    };
    assert_eq!(listed(&[]), 4);
    assert_eq!(listed(&["--limit", "2"]), 2);
    assert_eq!(listed(&["--workflow", "hello"]), 3);
    assert_eq!(listed(&["--status", "waiting-input"]), 1);
    let table = place.ends(0, &["runs", "list"]).out;
    assert!(table.starts_with("RUN") && table.lines().count() == 5, "{table}");

    let said = place.ends(0, &["runs", "cancel", waiting, "--reason", "a test"]);
    assert!(said.out.contains("cancelled"), "{said:#?}");
    let done = place.json(&["runs", "list", "--json", "--status", "completed", "--limit", "1"]);
    let done = done["runs"][0]["runId"].as_str().unwrap();
    let said = place.ends(1, &["runs", "cancel", done]);
    assert!(said.err.contains("had ended as completed"), "{said:#?}");

    for verb in ["show", "events", "cancel"] {
        let said = place.ends(4, &["runs", verb, "run_nope"]);
        assert!(
            said.err.contains("no such run 'run_nope'") && said.err.contains("wopr runs list"),
            "{said:#?}"
        );
    }
    let said = place.ends(4, &["run", "nope", "--detach"]);
    assert!(
        said.err.contains("no such workflow 'nope'") && said.err.contains("wopr workflows list"),
        "{said:#?}"
    );
    let said = place.ends(2, &["runs", "list", "--limit", "0"]);
    assert!(said.err.contains("must be at least 1"), "{said:#?}");
    let said = place.ends(5, &["runs", "list", "--key", "wrong"]);
    assert!(said.err.contains("hint: "), "{said:#?}");
}

#[test]
fn piped_lists_have_a_line_for_each_row_and_keep_ids_whole() {
    let mut place = Place::new();
    let _host = place.serve();
    place.ends(0, &["run", "hello"]);
    place.ends(
        6,
        &[
            "run",
            "campaign-brief",
            "--input",
            "prompt=a very long question about a spring sale",
        ],
    );
    place.ends(
        0,
        &[
            "keys",
            "create",
            "a-key-with-a-long-name-indeed",
            "--principal",
            "somebody-with-a-name",
        ],
    );
    let withdrawn = r#"{"id": "gone", "name": "Gone", "version": "1.0", "nodes": [], "edges": [], "triggers": [],
        "variables": [], "isActive": false, "metadata": {}, "settings": {"timeout": 0}}"#;
    let mut definition: Value =
        serde_json::from_slice(&std::fs::read(examples().join("hello.json")).unwrap()).unwrap();
    let like: Value = serde_json::from_str(withdrawn).unwrap();
    for name in ["id", "name", "isActive"] {
        definition[name] = like[name].clone();
    }
    let file = place.write("gone.json", &definition.to_string());
    place.ends(0, &["workflows", "register", file.to_str().unwrap()]);
    for (args, last_heading) in [
        (["runs", "list"], "STARTED"),
        (["interrupts", "list"], "QUESTION"),
        (["workflows", "list"], "DESCRIPTION"),
        (["keys", "list"], "SCOPES"),
        (["a2a", "list"], "CONTEXT"),
    ] {
        let said = place.ends(0, &args);
        let header = said.out.lines().next().unwrap();
        assert!(header.trim_end().ends_with(last_heading), "{args:?}: {header}");
        assert!(
            said.out.lines().all(|line| !line.starts_with(' ')),
            "{args:?}: no row goes on in another line: {said:#?}"
        );
        assert!(
            !said.out.contains('\u{1b}'),
            "{args:?}: no colour without a terminal: {said:#?}"
        );
    }
    let run = place.json(&["runs", "list", "--json"])["runs"][0]["runId"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(place.ends(0, &["runs", "list"]).out.contains(&run));
    let listed = place.ends(0, &["workflows", "list"]).out;
    let line = |id: &str| {
        listed
            .lines()
            .find(|line| line.starts_with(id))
            .unwrap()
            .to_owned()
    };
    assert!(
        line("gone").contains("withdrawn") && line("hello").contains("active"),
        "{listed}"
    );
}

#[test]
fn failed_run_is_shown_with_node_attempts_and_reason() {
    let mut place = Place::new();
    place.set("WOPR_A2A_PEER", "http://127.0.0.1:1");
    let _host = place.serve();
    let get = serde_json::json!({"method": "GET", "url": "https://127.0.0.1:1/"});
    for (id, kind, config) in [
        ("calls", "core.http.request", get),
        ("asks", "core.a2a.invoke", serde_json::json!({"message": "hello"})),
        // The failure to fetch the card is still known.
        (
            "asks-again",
            "core.a2a.invoke",
            serde_json::json!({"message": "hello"}),
        ),
    ] {
        let node = serde_json::json!({
            "id": "call", "typeId": kind, "name": "call", "position": {"x": 0, "y": 0}, "config": config, "inputs": {},
        });
        let definition = serde_json::json!({
            "id": id, "name": "Calls", "version": "1.0", "nodes": [node], "edges": [], "triggers": [],
            "variables": [], "metadata": {}, "settings": {"timeout": 0},
        });
        let file = place.write("calls.json", &definition.to_string());
        let said = place.run(&["run", file.to_str().unwrap(), "--json"]);
        assert_eq!(said.code, 1, "{said:#?}");
        let run = place.json(&["runs", "list", "--json", "--workflow", id])["runs"][0]["runId"]
            .as_str()
            .unwrap()
            .to_owned();
        let shown = place.ends(0, &["runs", "show", &run]).out;
        assert!(shown.contains("call (1 attempt)"), "{shown}");
        assert!(
            shown.contains("egress_refused: ") && shown.contains("WOPR_EGRESS_ALLOW"),
            "{shown}"
        );
    }
}

#[test]
fn definition_is_registered_and_run_by_its_id() {
    let mut place = Place::new();
    let _host = place.serve();
    let mut hello: Value =
        serde_json::from_str(&std::fs::read_to_string(examples().join("hello.json")).unwrap()).unwrap();
    hello["id"] = "hallo".into();
    hello["nodes"][0]["config"]["value"] = "Hallo, {{ name }}!".into();
    place.write("hallo.json", &hello.to_string());
    let registered = place.json(&["workflows", "register", "hallo.json", "--json"]);
    assert_eq!(registered["workflowId"], "hallo");
    let said = place.ends(0, &["run", "hallo", "-i", "name=Ada"]);
    assert_eq!(said.out, "Hallo, Ada!\n");
    hello["nodes"][0]["config"]["value"] = "Moin, {{ name }}!".into();
    place.write("hallo.json", &hello.to_string());
    let said = place.ends(0, &["run", "hallo.json", "-i", "name=Ada"]);
    assert_eq!(said.out, "Moin, Ada!\n");
    place.write("bad.json", "{}");
    let said = place.ends(3, &["workflows", "register", "bad.json"]);
    for missing in ["'id' is missing", "'nodes' is missing"] {
        assert!(said.err.contains(missing), "{said:#?}");
    }
    place.ends(4, &["run", "nothing"]);

    let said = place.ends(0, &["workflows", "remove", "hallo"]);
    assert_eq!(said.out, "hallo is removed\n");
    place.ends(4, &["run", "hallo", "-i", "name=Ada"]);
    place.ends(4, &["workflows", "remove", "hallo"]);
    place.json(&["workflows", "register", "hallo.json", "--json"]);
    let removed = place.json(&["workflows", "remove", "hallo", "--json"]);
    assert_eq!(
        removed,
        serde_json::json!({ "workflowId": "hallo", "removed": true })
    );
}

#[test]
fn unreachable_server_ends_with_7_and_a_hint() {
    let place = Place::new();
    // A port that was free a moment ago. Most likely nothing else listens on it during this test.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let server = format!("http://127.0.0.1:{port}");
    for args in [
        ["runs", "list"].as_slice(),
        &["a2a", "card"],
        &["interrupts", "list"],
        &["run", "hello"],
    ] {
        let mut args = args.to_vec();
        args.extend(["--server", &server]);
        let said = place.ends(7, &args);
        assert!(
            said.err.contains("cannot reach") && said.err.contains("hint: "),
            "{said:#?}"
        );
    }
    place.ends(7, &["doctor", "--server", &server]);
}

#[test]
fn server_without_tls_is_not_taken_for_none() {
    let mut place = Place::new();
    let host = place.serve();
    let server = host.origin.replace("http://", "https://");
    let said = place.ends(7, &["runs", "list", "--server", &server]);
    assert!(said.err.contains("its address begins with http://"), "{said:#?}");
}

#[test]
fn errors_have_helpful_hints() {
    let mut place = Place::new();
    let _host = place.serve();
    let wrong = ["--key", "wopr_wrong"];
    for args in [["runs", "list"].as_slice(), &["a2a", "send", "x"]] {
        let said = place.ends(5, &[args, &wrong].concat());
        assert!(said.err.contains("new one at every start"), "{said:#?}");
    }

    let said = place.ends(6, &["run", "campaign-brief", "--json"]).json();
    let run = said["runId"].as_str().unwrap();
    let node = said["interrupt"]["nodeId"].as_str().unwrap();
    for place_of in [[run].as_slice(), &[run, node]] {
        let args = [&["interrupts", "resolve"], place_of, &["--reply", "ok=yes"]].concat();
        let said = place.ends(1, &args);
        assert!(said.err.contains("--accept"), "{said:#?}");
    }

    let said = place.ends(0, &["run", "hello", "--input", "nmae=Ada", "--input", "prompt=x"]);
    assert!(said.err.contains("declares no input 'nmae'"), "{said:#?}");
    assert!(!said.err.contains("'prompt'"), "{said:#?}");
    place.write("name.json", "\"Ada\"");
    let said = place.ends(0, &["run", "hello", "--input", "name=@name.json"]);
    assert!(
        said.err.contains("--input name:=@name.json reads JSON") && said.out.contains("@name.json"),
        "{said:#?}"
    );
    let said = place.ends(0, &["run", "hello", "--input", "name:=@name.json"]);
    assert!(
        !said.err.contains("warning") && said.out.contains("Ada"),
        "{said:#?}"
    );
    place.ends(4, &["run", "hello", "--input", "name:=@missing.json"]);
    let example = examples().join("hello.json").display().to_string();
    let mut alone = place.command(&["run", &example, "--input", "nmae=Ada"]);
    alone.env_remove("WOPR_SERVER").env_remove("WOPR_API_KEY");
    let said = alone.output().unwrap();
    let err = String::from_utf8(said.stderr).unwrap();
    assert!(
        said.status.success() && err.contains("declares no input 'nmae'"),
        "{err}"
    );
}

#[test]
fn a_run_that_goes_on_says_what_it_waits_for() {
    let mut place = Place::new();
    let host = place.serve();
    let node = |id: &str, kind: &str, config: Value| {
        serde_json::json!({
            "id": id, "typeId": kind, "name": id, "position": {"x": 0, "y": 0}, "config": config, "inputs": {},
        })
    };
    let started = |id: &str, node: Value| {
        let definition = serde_json::json!({
            "id": id, "name": id, "version": "1.0", "nodes": [node], "edges": [], "triggers": [],
            "variables": [], "metadata": {}, "settings": {"maxRetries": 3, "retryDelayMs": 60_000},
        });
        let file = place.write(&format!("{id}.json"), &definition.to_string());
        place.ends(0, &["workflows", "register", file.to_str().unwrap()]);
        place.ends(0, &["run", id, "--detach"]).out.trim().to_owned()
    };
    let shown = |run: &str| place.ends(0, &["runs", "show", run]).out;

    let letter = started(
        "letter",
        node("print", "core.activity", serde_json::json!({"queue": "printers"})),
    );
    let text = shown(&letter);
    assert!(
        text.contains("pending    a worker of the queue 'printers', since 20")
            && text.contains("no worker has called for it in the last ten minutes (print)"),
        "{text}"
    );
    let nap = started(
        "nap",
        node("sleep", "core.delay", serde_json::json!({"delayMs": 600_000})),
    );
    assert!(
        shown(&nap).contains("pending    a timer, since 20"),
        "{}",
        shown(&nap)
    );
    let parent = serde_json::json!({"workflowId": "letter", "waitForCompletion": true});
    let parent = started("parent", node("sub", "core.subWorkflow", parent));
    assert!(shown(&parent).contains("of letter (sub)"), "{}", shown(&parent));
    drop(host);
}

#[test]
fn a_run_in_this_process_says_that_no_worker_can_reach_it() {
    let place = Place::new().without_server();
    let definition = serde_json::json!({
        "id": "letter", "name": "letter", "version": "1.0", "edges": [], "triggers": [],
        "variables": [], "metadata": {}, "settings": {},
        "nodes": [{
            "id": "print", "typeId": "core.activity", "name": "print", "position": {"x": 0, "y": 0}, "inputs": {},
            "config": {"queue": "printers", "timeoutMs": 100},
        }],
    });
    let file = place.write("letter.json", &definition.to_string());
    let said = place.ends(1, &["run", file.to_str().unwrap()]);
    let needed =
        "print waits for a worker of the queue 'printers'; no worker can reach a run in this process";
    assert!(said.err.contains(needed), "{said:#?}");
}

#[test]
fn a_call_that_is_retried_says_where_and_when() {
    let mut place = Place::new();
    place.set("WOPR_EGRESS_ALLOW", "127.0.0.0/8");
    let _host = place.serve();
    let definition = serde_json::json!({
        "id": "calls", "name": "Calls", "version": "1.0", "edges": [], "triggers": [], "variables": [], "metadata": {},
        "nodes": [{
            "id": "call", "typeId": "core.http.request", "name": "call", "position": {"x": 0, "y": 0}, "inputs": {},
            "config": {"method": "GET", "url": "http://127.0.0.1:1/path?key=secret"},
        }],
        "settings": {"maxRetries": 3, "retryDelayMs": 60_000},
    });
    let file = place.write("calls.json", &definition.to_string());
    place.ends(0, &["workflows", "register", file.to_str().unwrap()]);
    let run = place.ends(0, &["run", "calls", "--detach"]).out.trim().to_owned();
    let error = "external_call_failed: failed to connect to the peer (http://127.0.0.1:1)";
    let mut follow = place
        .command(&["runs", "events", &run, "--follow", "--after", "1"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let retried = first_line(&mut follow, |line| line.contains("node.retried")).unwrap();
    follow.kill().unwrap();
    follow.wait().unwrap();
    assert!(
        retried.contains("attempt 1 at 20") && retried.contains(error) && !retried.contains("secret"),
        "{retried}"
    );
    let text = place.ends(0, &["runs", "show", &run]).out;
    assert!(
        text.contains("pending    a retry: attempt 1 at 20") && text.contains(error),
        "{text}"
    );
    let all = place.json(&["runs", "events", &run, "--json"])["events"]
        .as_array()
        .unwrap()
        .len();
    let after = place.json(&["runs", "events", &run, "--json", "--after", "1"]);
    let after = after["events"].as_array().unwrap();
    assert_eq!((after.len(), after[0]["sequence"].as_u64()), (all - 2, Some(2)));
}
