//! Streams beyond the memory budget for unread responses: refused before they begin, and aborted in a way that
//! clients cannot mistake for the end.

use futures_util::future::join_all;
use h2::{Reason, RecvStream};
use http::{HeaderValue, Method, StatusCode};
use serde_json::{Value, json};
use wopr_wire::a2a::method::{Operation, Version};

use crate::{
    client::{Client, state_of},
    grpc,
    http2::{Connection, request, soon},
    support::Server,
};

/// Starts a task that waits; returns its id and the request.
async fn waiting(client: &Client, message: &str, n_bytes: usize) -> (String, Value) {
    let params = client.text(
        message,
        &"x".repeat(n_bytes),
        json!({"metadata": {"skillId": "approve"}}),
    );
    let task = client.send(params.clone()).await;
    assert_eq!(state_of(&task), "input-required");
    (task["id"].as_str().unwrap().to_owned(), params)
}

/// Opens streams of a task until the budget is used up. Nobody reads them until they are dropped.
async fn unread(server: &Server, task: &str) -> (Connection, Vec<RecvStream>) {
    let mut connection = Connection::open(server).await;
    let mut streams = Vec::new();
    while streams.len() < 200 {
        let subscribe = request(Method::GET, &format!("/a2a/tasks/{task}:subscribe"));
        let (status, stream) = connection.send(subscribe, b"").await;
        if status == StatusCode::SERVICE_UNAVAILABLE {
            return (connection, streams);
        }
        assert_eq!(status, StatusCode::OK);
        streams.push(stream);
    }
    panic!("there is always room");
}

#[tokio::test]
async fn stream_beyond_the_memory_budget_is_refused() {
    let server = Server::start().await;
    let (new, old) = (server.v1(), server.v03());
    let (task, message) = waiting(&new, "large", 2 << 20).await;
    let task = task.as_str();
    let unread = unread(&server, task).await;
    let call = |method: &str, params: Value| {
        json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }).to_string()
    };
    let id = json!({ "id": task });
    let asked = [
        (&new, "/a2a".to_owned(), call("SubscribeToTask", id.clone())),
        (&old, "/a2a".to_owned(), call("tasks/resubscribe", id.clone())),
        (&new, format!("/a2a/tasks/{task}:subscribe"), String::new()),
        (&old, format!("/v1/tasks/{task}:subscribe"), String::new()),
        (
            &new,
            "/a2a".to_owned(),
            call("SendStreamingMessage", message.clone()),
        ),
        (&new, "/a2a/message:stream".to_owned(), message.to_string()),
    ];
    let answers = asked.iter().map(|(client, path, body)| async move {
        let client = (*client).clone().at(path);
        (path, client.raw("POST", body.as_bytes()).await)
    });
    for (path, answer) in join_all(answers).await {
        assert_eq!(answer.status, 503, "{path}");
        assert_eq!(answer.header("retry-after"), Some("1"), "{path}");
        assert_eq!(answer.json()["error"]["status"], "UNAVAILABLE", "{path}");
    }
    let name = json!({ "name": format!("tasks/{task}") });
    for (client, version, request) in [(&new, Version::V1_0, &id), (&old, Version::V0_3, &name)] {
        let mut refused = grpc::ask(client, version, Operation::SubscribeToTask, request).await;
        assert_eq!(refused.next().await, None);
        assert_eq!(refused.ended().code, 14);
        // Everything is in the head, as for any call that may be retried.
        assert_eq!(refused.header("grpc-status"), Some("14"));
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    // Dropping them frees the budget.
    drop(unread);
    let mut stream = grpc::ask(&new, Version::V1_0, Operation::SubscribeToTask, &id).await;
    assert!(stream.next().await.unwrap().len() > 2 << 20);
}

/// Spellings of a credential, and whether the host accepts each.
fn spellings(secret: &str) -> [(String, bool); 12] {
    [
        (format!("Bearer {secret}"), true),
        (format!("bearer {secret}"), true),
        (format!("BEARER {secret}"), true),
        (format!("bEaReR   {secret}"), true),
        (format!("  Bearer {secret}  "), true),
        (format!("Bearer \t {secret}\t"), true),
        (format!("\tBearer {secret}"), true),
        (format!("Bearer\t{secret}"), false),
        (format!("Bearer,{secret}"), false),
        (format!("Bearer{secret}"), false),
        (format!("Bearer \"{secret}\""), false),
        (format!("Bearer {secret} {secret}"), false),
    ]
}

#[tokio::test]
async fn spellings_of_a_credential_share_one_budget() {
    let server = Server::start().await;
    let alice = server.v1();
    let (large, _) = waiting(&alice, "large", 2 << 20).await;
    let run = alice.get("/v1/runs?limit=1").await.json();
    let principal = run["runs"][0]["principal"].clone();
    assert!(principal.is_string(), "{run}");
    let secret = "secret-of-alice-0123456789";
    let spelled = |spelling: &str| {
        Client {
            key: None,
            ..alice.clone()
        }
        .with("authorization", spelling)
    };

    for (n, (spelling, is_taken)) in spellings(secret).into_iter().enumerate() {
        let client = spelled(&spelling).at("/v1/runs");
        let body = json!({ "workflowId": "noop", "tags": [format!("t{n}")] }).to_string();
        let created = client.raw("POST", body.as_bytes()).await;
        if !is_taken {
            assert_eq!(created.status, 401, "{spelling:?}");
            continue;
        }
        assert_eq!(created.status, 201, "{spelling:?}");
        let listed = alice.get("/v1/runs?limit=1").await.json();
        assert_eq!(
            listed["runs"][0]["runId"],
            created.json()["runId"],
            "{spelling:?}"
        );
        assert_eq!(listed["runs"][0]["principal"], principal, "{spelling:?}");
    }

    // The tenant's share of the budget is used up, however its credential is spelled, but not another tenant's.
    let unread = unread(&server, &large).await;
    let path = format!("/a2a/tasks/{large}:subscribe");
    let asked = spellings(secret).map(|(spelling, is_taken)| {
        let client = spelled(&spelling).at(&path);
        async move { (spelling, is_taken, client.raw("GET", b"").await.status) }
    });
    for (spelling, is_taken, status) in join_all(asked).await {
        assert_eq!(status, if is_taken { 503 } else { 401 }, "{spelling:?}");
    }
    let (_, _) = waiting(&alice.clone().by("carol"), "foreign", 512 << 10).await;
    drop(unread);
}

#[tokio::test]
async fn stream_aborted_for_memory_does_not_end_cleanly() {
    let server = Server::start().await;
    let client = server.v1();
    let (task, _) = waiting(&client, "task", 512 << 10).await;
    let (large, _) = waiting(&client, "large", 2 << 20).await;
    let (small, _) = waiting(&client, "small", 100 << 10).await;
    let task = task.as_str();
    // A client that has seen everything starts with the next event.
    let mut plain = client.clone().with("last-event-id", "1000").subscribe(task).await;
    let mut multiplexed = Connection::open(&server).await;
    let subscribe = |last: u64| {
        let mut subscribe = request(Method::GET, &format!("/a2a/tasks/{task}:subscribe"));
        subscribe
            .headers_mut()
            .insert("last-event-id", HeaderValue::from(last));
        subscribe
    };
    let (status, mut reset) = multiplexed.send(subscribe(1_000), b"").await;
    assert_eq!(status, StatusCode::OK);
    let id = json!({ "id": task });
    let mut called = grpc::ask(&client, Version::V1_0, Operation::SubscribeToTask, &id).await;
    assert!(called.next().await.is_some());

    let unread = [unread(&server, &large).await, unread(&server, &small).await];
    // Other keys of the tenant share its budget: the request takes effect, but is answered without the task.
    let other = client.clone().by("bob");
    let approve = other.text("yes", "approve", json!({ "taskId": task }));
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": approve });
    assert_eq!(other.raw("POST", body.to_string().as_bytes()).await.status, 503);
    // Another tenant has its own share.
    let foreign = client.clone().by("carol");
    let (foreign, _) = waiting(&foreign, "foreign", 512 << 10).await;
    assert_ne!(foreign, task);

    let mut last = 0;
    while let Some(frame) = plain.next().await {
        assert_eq!(frame.short(), "status:working");
        last = frame.id.unwrap();
    }
    assert!(!plain.is_whole(), "it looks like an end");
    let reason = loop {
        match soon(reset.data()).await {
            Some(Ok(data)) => reset.flow_control().release_capacity(data.len()).unwrap(),
            Some(Err(error)) => break error.reason(),
            None => panic!("it looks like an end"),
        }
    };
    assert_eq!(reason, Some(Reason::INTERNAL_ERROR));
    while called.next().await.is_some() {}
    assert_eq!(called.ended().code, 14);

    drop(unread);
    let (status, mut rest) = multiplexed.send(subscribe(last), b"").await;
    assert_eq!(status, StatusCode::OK);
    let mut told = Vec::new();
    while let Some(data) = soon(rest.data()).await {
        let data = data.unwrap();
        rest.flow_control().release_capacity(data.len()).unwrap();
        told.extend_from_slice(&data);
    }
    let told = String::from_utf8(told).unwrap();
    assert!(told.len() > 512 << 10 && told.contains("artifactUpdate"));
    assert!(told.contains("TASK_STATE_COMPLETED"));

    let mut whole = client.with("last-event-id", "1000").subscribe(task).await;
    assert!(whole.next().await.is_none() && whole.is_whole());
}
