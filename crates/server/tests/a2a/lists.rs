//! Lists of tasks, contexts, and history length.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    client::state_of,
    support::{Server, chain, config, node},
};

fn ids(list: &Value) -> Vec<String> {
    let tasks = list["tasks"].as_array().unwrap();
    tasks
        .iter()
        .map(|task| task["id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn tasks_are_paginated_latest_first() {
    let server = Server::start().await;
    let client = server.v1();
    let mut sent = Vec::new();
    for n in 0..7 {
        let context = if n % 2 == 0 { "even" } else { "odd" };
        let skill = if n == 3 { "approve" } else { "hello" };
        let more = json!({"contextId": context, "metadata": {"skillId": skill}});
        let task = client.send(client.text(&format!("m{n}"), "x", more)).await;
        sent.push(task["id"].as_str().unwrap().to_owned());
        // Changes within one millisecond are sorted by id.
        let now = server.host.engine().now();
        while server.host.engine().now() == now {
            tokio::task::yield_now().await;
        }
    }
    let whole = client.ok("ListTasks", json!({})).await;
    assert_eq!(whole["totalSize"], 7);
    assert_eq!(whole["pageSize"], 50);
    assert_eq!(whole["nextPageToken"], "");
    let mut latest = sent.clone();
    latest.reverse();
    assert_eq!(ids(&whole), latest);
    for task in whole["tasks"].as_array().unwrap() {
        assert!(task.get("artifacts").is_none() && task.get("history").is_none());
    }

    let mut paged = Vec::new();
    let mut token = String::new();
    loop {
        let page = client
            .ok(
                "ListTasks",
                json!({"pageSize": 3, "pageToken": token, "includeArtifacts": true, "historyLength": 1}),
            )
            .await;
        assert_eq!(page["totalSize"], 7);
        assert_eq!(page["pageSize"], 3);
        for task in page["tasks"].as_array().unwrap() {
            let has_artifacts = state_of(task) == "completed";
            assert_eq!(task.get("artifacts").is_some(), has_artifacts);
            assert_eq!(task["history"].as_array().unwrap().len(), 1);
        }
        paged.extend(ids(&page));
        token = page["nextPageToken"].as_str().unwrap().to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(paged, latest);

    let odd = client.ok("ListTasks", json!({"contextId": "odd"})).await;
    assert_eq!(ids(&odd), [sent[5].clone(), sent[3].clone(), sent[1].clone()]);
    let waiting = client
        .ok("ListTasks", json!({"status": "TASK_STATE_INPUT_REQUIRED"}))
        .await;
    assert_eq!(ids(&waiting), [sent[3].clone()]);
    let none = client
        .ok("ListTasks", json!({"status": "TASK_STATE_REJECTED"}))
        .await;
    assert_eq!((none["totalSize"].clone(), ids(&none)), (json!(0), Vec::new()));
    let later = client
        .ok(
            "ListTasks",
            json!({"statusTimestampAfter": "2999-01-01T00:00:00Z"}),
        )
        .await;
    assert_eq!(later["totalSize"], 0);
    // An answer counts as a change.
    client
        .send(client.text("yes", "yes", json!({"taskId": sent[3]})))
        .await;
    let whole = client.ok("ListTasks", json!({"pageSize": 1})).await;
    let at = whole["tasks"][0]["status"]["timestamp"].clone();
    let since = client.ok("ListTasks", json!({"statusTimestampAfter": at})).await;
    assert!(ids(&since).contains(&sent[3]));
}

#[tokio::test]
async fn pages_of_large_tasks_are_shorter() {
    let server = Server::start().await;
    let client = server.v1();
    let words = "word ".repeat(200 << 10);
    let mut sent = Vec::new();
    for n in 0..6 {
        let task = client
            .send(client.text(&format!("m{n}"), &words, json!({})))
            .await;
        sent.push(task["id"].as_str().unwrap().to_owned());
    }
    sent.sort();
    let small = client.ok("ListTasks", json!({})).await;
    assert_eq!((ids(&small).len(), &small["nextPageToken"]), (6, &json!("")));

    let (mut listed, mut n_pages, mut token) = (Vec::new(), 0, String::new());
    loop {
        let page = client
            .ok("ListTasks", json!({"pageToken": token, "historyLength": 10}))
            .await;
        let size = page.to_string().len();
        assert!(size < 5 << 20, "{size}");
        assert_eq!((&page["pageSize"], &page["totalSize"]), (&json!(50), &json!(6)));
        listed.extend(ids(&page));
        n_pages += 1;
        token = page["nextPageToken"].as_str().unwrap().to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert!(n_pages > 1 && n_pages < 6, "{n_pages}");
    listed.sort();
    assert_eq!(listed, sent);
}

#[tokio::test]
async fn a_bad_list_request_is_refused() {
    let server = Server::start().await;
    let client = server.v1();
    for params in [
        json!({"pageSize": 0}),
        json!({"pageSize": 101}),
        json!({"pageSize": "many"}),
        json!({"pageToken": "made up"}),
        json!({"pageToken": "MTox"}),
        json!({"status": "working"}),
        json!({"historyLength": -1}),
        json!({"statusTimestampAfter": "yesterday"}),
    ] {
        assert_eq!(
            client.err("ListTasks", params.clone()).await.0,
            -32602,
            "{params}"
        );
    }
}

#[tokio::test]
async fn history_length_limits_the_messages_shown() {
    let server = Server::start().await;
    let client = server.v1();
    let task = client
        .send(client.text("m1", "x", json!({"metadata": {"skillId": "ask"}})))
        .await;
    let id = task["id"].as_str().unwrap();
    for n in 2..=4 {
        client
            .send(client.text(&format!("m{n}"), "why?", json!({"taskId": id})))
            .await;
    }
    client.send(client.text("m5", "yes", json!({"taskId": id}))).await;
    let said = format!("{id}.gate:0");
    let all = ["m1", &said, "m2", "m3", "m4", "m5"];
    for (length, wanted) in [
        (json!(null), &all[..]),
        (json!(100), &all[..]),
        (json!(6), &all[..]),
        (json!(5), &all[1..]),
        (json!(2), &all[4..]),
        (json!(1), &all[5..]),
    ] {
        let task = client
            .ok("GetTask", json!({"id": id, "historyLength": length}))
            .await;
        let shown: Vec<_> = task["history"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message["messageId"].as_str().unwrap())
            .collect();
        assert_eq!(shown, wanted, "{length}");
    }
    let task = client.ok("GetTask", json!({"id": id, "historyLength": 0})).await;
    assert!(task.get("history").is_none());
    let more = json!({"configuration": {"historyLength": 0}});
    let task = client.send(client.text("other", "x", more)).await;
    assert!(task.get("history").is_none());
}

#[tokio::test]
async fn runs_of_other_faces_are_tasks_too() {
    let server = Server::start().await;
    let client = server.v1();
    let rest = client.clone().at("/v1/runs");
    let answer = rest
        .raw("POST", br#"{"workflowId":"hello","inputs":{"prompt":"rest"}}"#)
        .await;
    assert_eq!(answer.status, 201, "{}", String::from_utf8_lossy(&answer.body));
    let id = answer.json()["runId"].as_str().unwrap().to_owned();
    let task = client.until(&id, "completed").await;
    assert_eq!(task["contextId"], id);
    assert!(task.get("history").is_none());
    assert_eq!(task["artifacts"][0]["parts"][0]["text"], "hello rest");
    for (params, wanted) in [
        (json!({"contextId": id}), 1),
        (json!({"contextId": id, "status": "TASK_STATE_COMPLETED"}), 1),
        (json!({"contextId": id, "status": "TASK_STATE_WORKING"}), 0),
    ] {
        let list = client.ok("ListTasks", params.clone()).await;
        assert_eq!(list["totalSize"], wanted, "{params}");
    }
    let carol = client.clone().by("carol");
    assert_eq!(
        carol.ok("ListTasks", json!({"contextId": id})).await["totalSize"],
        0
    );

    // Messages make further tasks in its context, and it stays among them.
    let mut all = vec![id.clone()];
    for n in 0..3 {
        let now = server.host.engine().now();
        while server.host.engine().now() == now {
            tokio::task::yield_now().await;
        }
        let next = client
            .send(client.text(&format!("next{n}"), "x", json!({"contextId": id})))
            .await;
        all.insert(0, next["id"].as_str().unwrap().to_owned());
    }
    let list = client.ok("ListTasks", json!({"contextId": id})).await;
    assert_eq!((ids(&list), list["totalSize"].clone()), (all.clone(), json!(4)));
    for page_size in 1..4 {
        let (mut paged, mut token) = (Vec::new(), String::new());
        loop {
            let params = json!({"contextId": id, "pageSize": page_size, "pageToken": token});
            let page = client.ok("ListTasks", params).await;
            assert_eq!(page["totalSize"], 4);
            assert!(ids(&page).len() <= page_size);
            paged.extend(ids(&page));
            token = page["nextPageToken"].as_str().unwrap().to_owned();
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(paged, all, "{page_size}");
    }
}

/// The name that the host gives the files of a message.
fn file_name(principal: &str, message: &str) -> String {
    let mut hasher = Sha256::new();
    hasher.update(principal.as_bytes());
    hasher.update(b"\0");
    hasher.update(message.as_bytes());
    let mut name = URL_SAFE_NO_PAD.encode(hasher.finalize());
    name.truncate(22);
    format!("{name}-0")
}

#[tokio::test]
async fn urls_that_look_like_stored_files_are_only_urls() {
    let server = Server::start().await;
    let client = server.v1();
    let url = format!("wopr-blob:{}", file_name("alice", "m1"));
    let mut parts = vec![json!({"raw": "aGk="})];
    parts.extend(vec![json!({ "url": url }); 20]);
    let task = client.send(client.message("m1", parts.into(), json!({}))).await;
    let task = client.task(task["id"].as_str().unwrap()).await;
    let parts = task["history"][0]["parts"].as_array().unwrap();
    assert_eq!(parts[0]["raw"], "aGk=");
    assert!(parts[1..].iter().all(|part| part["url"] == url), "{parts:?}");
}

/// A workflow that returns the first file of a message `n` times.
fn repeating(n: usize) -> Value {
    let list = vec!["files[0]"; n].join(",");
    let mut node = node("copy", "core.identity", json!({}));
    node["inputs"] = json!({ "files": { "type": "expression", "expression": format!("[{list}]") } });
    node["artifactType"] = json!("files");
    let mut workflow = chain("copies", vec![node]);
    workflow["variables"] = json!([{ "name": "files", "type": "array" }]);
    workflow
}

#[tokio::test]
async fn an_artifact_without_room_is_shown_by_its_address() {
    const FILE: usize = 3 << 20;
    for (n, has_room) in [(4, true), (12, false)] {
        let server = Server::with(config(), vec![repeating(n)]).await;
        let client = server.v1();
        let file = STANDARD.encode(vec![7; FILE]);
        let more = json!({ "metadata": { "skillId": "copies" } });
        let message = client.message("m1", json!([{ "raw": file }]), more);
        let sent = client.send(message).await;
        let task = client.task(sent["id"].as_str().unwrap()).await;
        for task in [sent, task] {
            let parts = task["artifacts"][0]["parts"].as_array().unwrap();
            let n_files = parts.iter().filter(|part| part["raw"] == file).count();
            assert_eq!(n_files, if has_room { n } else { 0 });
            assert_eq!(parts[0]["url"].is_string(), !has_room, "{}", parts[0]);
        }
        server.stop().await;
    }
}
