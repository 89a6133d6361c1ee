//! `a2a` against a host of ours, in both versions.

use serde_json::{Value, json};

use crate::binary::{Place, members};

fn first_run(place: &Place, status: &str) -> String {
    let listed = place.json(&["runs", "list", "--json", "--status", status]);
    listed["runs"][0]["runId"].as_str().unwrap().to_owned()
}

#[test]
fn a_card_is_shown_and_both_versions_are_spoken() {
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

    for protocol in ["1.0", "0.3"] {
        let said = place.ends(
            0,
            &[
                "a2a",
                "send",
                "Ada",
                "--workflow",
                "hello",
                "--protocol",
                protocol,
            ],
        );
        assert!(
            said.out.contains("completed") && said.out.contains("Hello, Ada!"),
            "{protocol}: {said:#?}"
        );
        let args = [
            "a2a",
            "send",
            "Ada",
            "--workflow",
            "hello",
            "--protocol",
            protocol,
            "--json",
        ];
        let sent = place.json(&args);
        assert_eq!(members(&sent), ["task"]);
        let task = sent["task"]["id"].as_str().unwrap();
        let said = place
            .ends(0, &["a2a", "get", task, "--protocol", protocol, "--json"])
            .json();
        assert_eq!(said["status"]["state"], "TASK_STATE_COMPLETED");
        // The task is the run.
        assert_eq!(
            place.json(&["runs", "show", task, "--json"])["status"],
            "completed"
        );
    }
}

#[test]
fn a_task_is_streamed_answered_and_followed_again() {
    let mut place = Place::new();
    let _host = place.serve();
    for protocol in ["1.0", "0.3"] {
        let speak = |args: &[&str]| {
            let mut all = vec!["a2a"];
            all.extend(args);
            all.extend(["--protocol", protocol]);
            place.run(&all)
        };
        let said = speak(&["send", "a sale", "--workflow", "campaign-brief", "--json"]);
        assert_eq!(said.code, 6, "{said:#?}");
        let task = said.json()["task"]["id"].as_str().unwrap().to_owned();
        assert_eq!(first_run(&place, "waiting-approval"), task);
        let said = speak(&["get", &task]);
        assert_eq!(said.code, 6, "{said:#?}");
        assert!(said.out.contains("Approve the campaign brief?"), "{said:#?}");
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
        // What happened can be read again, from any event on.
        let said = speak(&["subscribe", &task, "--last-event-id", "7"]);
        assert_eq!(said.code, 0, "{said:#?}");
        assert!(said.out.contains("completed"), "{said:#?}");
    }
}

#[test]
fn a_task_is_cancelled_and_an_unknown_one_is_not_found() {
    let mut place = Place::new();
    let host = place.serve();
    let args = [
        "a2a",
        "send",
        "a cake",
        "--workflow",
        "clarify-order",
        "--no-wait",
        "--json",
    ];
    let sent = place.run(&args).json();
    let task = sent["task"]["id"].as_str().unwrap();
    let said = place.ends(0, &["a2a", "cancel", task]);
    assert!(said.out.contains("canceled"), "{said:#?}");
    place.ends(1, &["a2a", "get", task]);
    place.ends(
        1,
        &["a2a", "get", task, &host.origin, "--server", "http://127.0.0.1:1"],
    );
    for protocol in ["1.0", "0.3"] {
        let said = place.ends(4, &["a2a", "get", "run_nope", "--protocol", protocol]);
        assert!(said.err.contains("the agent answered"), "{said:#?}");
    }
    let said = place.ends(5, &["a2a", "get", task, "--key", ""]);
    assert!(said.err.contains("--key"), "{said:#?}");
}

#[test]
fn a_message_id_counts_once() {
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
fn the_signatures_of_a_card_are_checked() {
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
    // Keys of somebody else under the same names do not help.
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
