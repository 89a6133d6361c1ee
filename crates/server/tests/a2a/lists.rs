//! Lists of tasks, contexts, and history length.

use serde_json::{Value, json};

use crate::{client::state_of, support::Server};

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
    let carol = client.by("carol");
    assert_eq!(
        carol.ok("ListTasks", json!({"contextId": id})).await["totalSize"],
        0
    );
}
