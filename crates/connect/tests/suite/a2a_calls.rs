//! The A2A client over each binding and version, and what it sends.

use bytes::Bytes;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use wopr_connect::a2a::{Call, Client, Credential, Error, OAuth2, Peer, Wanted};
use wopr_core::TraceContext;
use wopr_wire::a2a::{
    error::Kind,
    method::{Operation, Version},
    model::{ListTasksRequest, Secret, SendMessageResponse, StreamResponse, TaskState},
};

use crate::{
    agent::{
        Agent, Reply, Seen, card, chunked, grpc_message, grpc_reply, json_reply, message, open_gate, reply,
        rpc_reply, task, with_header,
    },
    peer::{Peer as Scripted, Script, answer},
};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Answers each operation in the form of the binding and version that was called.
fn echo(seen: &Seen) -> Reply {
    let old_task = json!({"kind": "task", "id": "t", "contextId": "c", "status": {"state": "working"}});
    let page = json!({"tasks": [task()], "nextPageToken": "", "pageSize": 1, "totalSize": 1});
    match seen.path.as_str() {
        "/rpc" => {
            let request = seen.json();
            let item = json!({"statusUpdate": {"taskId": "t", "contextId": "c",
                "status": {"state": "TASK_STATE_COMPLETED"}}});
            let event = |result: &Value| {
                let response = json!({"jsonrpc": "2.0", "id": 1, "result": result});
                Bytes::from(format!("id: 7\ndata: {response}\n\n"))
            };
            match request["method"].as_str().unwrap() {
                "SendMessage" => rpc_reply(&json!({"task": task()})),
                "message/send" => rpc_reply(&old_task),
                "GetTask" | "CancelTask" => rpc_reply(&task()),
                "tasks/get" | "tasks/cancel" => rpc_reply(&old_task),
                "ListTasks" => rpc_reply(&page),
                "SendStreamingMessage" | "SubscribeToTask" => chunked(
                    "text/event-stream",
                    vec![event(&json!({"task": task()})), event(&item)],
                ),
                method => panic!("{method}"),
            }
        }
        "/rest/message:send" => json_reply(&json!({"task": task()})),
        "/rest/tasks/t" | "/rest/tasks/t:cancel" | "/rest/v1/tasks/t" => json_reply(&task()),
        "/rest/tasks" => json_reply(&page),
        "/rest/message:stream" => {
            let event = format!("data: {}\n\n", json!({"task": task()}));
            chunked("text/event-stream", vec![event.into()])
        }
        path => {
            let operation = match path.rsplit('/').next().unwrap() {
                "SendMessage" => Operation::SendMessage,
                "SendStreamingMessage" => Operation::SendStreamingMessage,
                "GetTask" => Operation::GetTask,
                "CancelTask" => Operation::CancelTask,
                "ListTasks" => {
                    return grpc_reply(&[grpc_message(Version::V1_0, Operation::ListTasks, &page)], "0");
                }
                other => panic!("{other}"),
            };
            let document = match operation {
                Operation::SendMessage | Operation::SendStreamingMessage => json!({"task": task()}),
                _ => task(),
            };
            grpc_reply(&[grpc_message(Version::V1_0, operation, &document)], "0")
        }
    }
}

#[tokio::test]
async fn every_binding_sends_reads_lists_cancels_and_streams() {
    for (path, binding) in [("/rpc", "JSONRPC"), ("/rest", "HTTP+JSON"), ("", "GRPC")] {
        let interfaces: &'static [_] = Vec::leak(vec![(path, binding, "1.0")]);
        let mut agent = Agent::with_card(interfaces, echo).await;
        let call = Call {
            trace: TraceContext::parse(TRACE.as_bytes(), [b"a=1".as_slice()]),
            extensions: vec!["https://e.test/x".to_owned()],
            ..Call::default()
        };
        let found = agent.call(call).await.unwrap();
        let sent = found.send_message(message()).await.unwrap();
        assert!(matches!(sent, SendMessageResponse::Task(task) if task.id == "t"));
        assert_eq!(
            found.get_task("t", Some(3)).await.unwrap().status.state,
            TaskState::Working
        );
        assert_eq!(found.cancel_task("t").await.unwrap().id, "t");
        let request = ListTasksRequest {
            context_id: Some("c".to_owned()),
            ..ListTasksRequest::default()
        };
        assert_eq!(found.list_tasks(request).await.unwrap().tasks.len(), 1);
        let mut items = found.send_streaming_message(message()).await.unwrap();
        let (_, first) = items.next().await.unwrap().unwrap();
        assert!(matches!(first, StreamResponse::Task(task) if task.id == "t"));
        for seen in agent.calls() {
            assert_eq!(seen.header("a2a-version"), "1.0", "{binding} {}", seen.path);
            assert_eq!(seen.header("traceparent"), TRACE);
            assert_eq!(seen.header("tracestate"), "a=1");
            assert_eq!(seen.header("a2a-extensions"), "https://e.test/x");
        }
    }
}

#[tokio::test]
async fn agent_of_0_3_is_told_so_and_read_into_the_1_0_model() {
    let mut agent = Agent::with_card(&[("/rpc", "JSONRPC", "0.3")], echo).await;
    let found = agent.call(Call::default()).await.unwrap();
    let sent = found.send_message(message()).await.unwrap();
    assert!(matches!(sent, SendMessageResponse::Task(task) if task.status.state == TaskState::Working));
    found.get_task("t", None).await.unwrap();
    let calls = agent.calls();
    assert_eq!(calls[0].json()["params"]["configuration"]["blocking"], false);
    assert!(calls.iter().all(|seen| seen.header("a2a-version") == "0.3"));
    // 0.3 lists tasks over HTTP+JSON only.
    let error = found.list_tasks(ListTasksRequest::default()).await.unwrap_err();
    assert!(matches!(error, Error::NotOffered { .. }) && !error.may_have_been_sent());
}

#[tokio::test]
async fn subscription_resumes_after_an_event() {
    let mut agent = Agent::with_card(&[("/rpc", "JSONRPC", "1.0")], echo).await;
    let found = agent.call(Call::default()).await.unwrap();
    let items: Vec<_> = found.subscribe("t", Some("6")).await.unwrap().collect().await;
    assert_eq!(items.len(), 2);
    assert_eq!(items[0].as_ref().unwrap().0.as_deref(), Some("7"));
    assert_eq!(agent.calls()[0].header("last-event-id"), "6");
}

#[tokio::test]
async fn events_are_read_whatever_bytes_they_are_split_at() {
    let document = json!({"jsonrpc": "2.0", "id": 1, "result": {"statusUpdate": {"taskId": "é", "contextId": "c",
        "status": {"state": "TASK_STATE_WORKING"}}}});
    let text = Bytes::from(format!(
        ": hi\r\n\r\nid: 1\r\ndata: {document}\r\n\r\nid: 2\ndata: {document}\n\n"
    ));
    for size in [1, 2, 3, 7, 64, 1000] {
        let chunks: Vec<Bytes> = text.chunks(size).map(Bytes::copy_from_slice).collect();
        let agent = Agent::with_card(&[("/rpc", "JSONRPC", "1.0")], move |_| {
            chunked("text/event-stream", chunks.clone())
        })
        .await;
        let found = agent.call(Call::default()).await.unwrap();
        let items: Vec<_> = found.subscribe("t", None).await.unwrap().collect().await;
        let ids: Vec<_> = items
            .iter()
            .map(|item| item.as_ref().unwrap().0.clone())
            .collect();
        assert_eq!(ids, [Some("1".to_owned()), Some("2".to_owned())], "{size}");
    }
}

#[tokio::test]
async fn next_interface_is_tried_if_the_first_does_not_take_the_request() {
    for status in [404, 405, 501, 410, 415, 426, 301, 307, 308] {
        let mut agent = Agent::with_card(
            &[("/gone", "JSONRPC", "1.0"), ("/rest", "HTTP+JSON", "1.0")],
            move |seen| match seen.path.as_str() {
                "/gone" => reply(status, "text/html", "<html>"),
                _ => echo(seen),
            },
        )
        .await;
        let found = agent.call(Call::default()).await.unwrap();
        found.send_message(message()).await.unwrap();
        assert_eq!(found.interface(), 1);
        found.get_task("t", None).await.unwrap();
        let paths: Vec<_> = agent.calls().into_iter().map(|seen| seen.path).collect();
        assert_eq!(paths, ["/gone", "/rest/message:send", "/rest/tasks/t"]);
    }
    // The gate admits no such address.
    let interfaces = &[
        ("http://10.1.1.1/rpc", "JSONRPC", "1.0"),
        ("/rpc", "JSONRPC", "1.0"),
    ];
    let agent = Agent::with_card(interfaces, echo).await;
    let found = agent.call(Call::default()).await.unwrap();
    found.send_message(message()).await.unwrap();
    assert_eq!(found.interface(), 1);
    // Nothing listens on the port of a listener that was dropped.
    let unused = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dead = format!("http://{}", unused.local_addr().unwrap());
    drop(unused);
    let interfaces: &'static [_] =
        Vec::leak(vec![(&*dead.leak(), "GRPC", "1.0"), ("/rpc", "JSONRPC", "1.0")]);
    let agent = Agent::with_card(interfaces, echo).await;
    let found = agent.call(Call::default()).await.unwrap();
    found.send_message(message()).await.unwrap();
    assert_eq!(found.interface(), 1);
}

#[tokio::test]
async fn another_interface_takes_over_if_the_one_that_answered_is_gone() {
    let first = Agent::start(echo).await;
    let there: &'static str = first.origin().leak();
    let interfaces: &'static [_] = Vec::leak(vec![(there, "GRPC", "1.0"), ("/rpc", "JSONRPC", "1.0")]);
    let agent = Agent::with_card(interfaces, echo).await;
    let client = Client::new(open_gate(), [agent.peer()]);
    let find = || client.agent("planner", Wanted::default(), Call::default());
    let found = find().await.unwrap();
    found.get_task("t", None).await.unwrap();
    assert_eq!(found.interface(), 0);
    first.stop().await;
    // The first request may still find a connection that is just being closed.
    let _ = found.get_task("t", None).await;
    found.get_task("t", None).await.unwrap();
    assert_eq!(found.interface(), 1);
    assert_eq!(find().await.unwrap().interface(), 1);
}

#[tokio::test]
async fn refused_token_is_renewed_once_for_the_card() {
    let (grant, n_cards) = (grants(3600), std::sync::atomic::AtomicUsize::new(0));
    let mut agent = Agent::start(move |seen| {
        if let Some(reply) = grant(seen) {
            return reply;
        }
        let is_first = n_cards.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        match seen.header("authorization") {
            // As if it had been revoked after the first lookup.
            "Bearer a-token-1" if !is_first => reply(401, "text/plain", ""),
            _ => with_header(
                json_reply(&card(&seen.origin, &[("/rpc", "JSONRPC", "1.0")])),
                "cache-control",
                "no-cache",
            ),
        }
    })
    .await;
    let client = Client::new(open_gate(), [with_oauth2(&agent)]);
    client.card("planner").await.unwrap();
    client.card("planner").await.unwrap();
    let seen = agent.seen();
    let n_asked = seen.iter().filter(|seen| seen.path == "/token").count();
    assert_eq!(n_asked, 2);
}

#[tokio::test]
async fn credential_goes_to_further_origins_and_they_are_preferred() {
    let mut grpc = Agent::start(echo).await;
    let mut stranger = Agent::start(echo).await;
    let interfaces: &'static [_] = Vec::leak(vec![
        (&*stranger.origin().leak(), "GRPC", "1.0"),
        (&*grpc.origin().leak(), "GRPC", "1.0"),
        ("/rpc", "JSONRPC", "0.3"),
    ]);
    let mut agent = Agent::with_card(interfaces, echo).await;
    let with = |origins: Vec<String>, has_token: bool| {
        let mut peer = agent.peer();
        peer.origins = origins.iter().map(|origin| origin.parse().unwrap()).collect();
        if has_token {
            peer.credential = Credential::Bearer(Secret::new("hunter22-x").unwrap());
        }
        Client::new(open_gate(), [peer])
    };
    for (client, interface, is_given) in [
        (with(vec![], false), 0, false),
        (with(vec![], true), 2, true),
        (with(vec![grpc.origin()], true), 1, true),
    ] {
        let found = client
            .agent("planner", Wanted::default(), Call::default())
            .await
            .unwrap();
        found.get_task("t", None).await.unwrap();
        assert_eq!(found.interface(), interface);
        assert_eq!(found.receives_credential(), is_given);
    }
    let tokens = |agent: &mut Agent| -> Vec<String> {
        let calls = agent.calls().into_iter();
        calls
            .map(|seen| seen.header("authorization").to_owned())
            .collect()
    };
    assert_eq!(tokens(&mut stranger), [""]);
    assert_eq!(tokens(&mut grpc), ["Bearer hunter22-x"]);
    assert_eq!(tokens(&mut agent), ["Bearer hunter22-x"]);
}

#[tokio::test]
async fn message_that_may_have_been_accepted_is_not_sent_elsewhere() {
    let mut deaf = Scripted::start(Script::AnswerAndClose(String::new())).await;
    let interfaces: &'static [_] = Vec::leak(vec![
        (&*deaf.url("/").leak(), "JSONRPC", "1.0"),
        ("/rpc", "JSONRPC", "1.0"),
    ]);
    let mut agent = Agent::with_card(interfaces, echo).await;
    let found = agent.call(Call::default()).await.unwrap();
    let error = found.send_message(message()).await.unwrap_err();
    assert!(matches!(error, Error::Interrupted(_)), "{error:?}");
    assert!(error.may_have_been_sent() && error.is_transient());
    deaf.next_request().await;
    assert!(agent.calls().is_empty());
    // The agent's own error is an answer.
    let interfaces = &[("/no", "JSONRPC", "1.0"), ("/rpc", "JSONRPC", "1.0")];
    let mut agent = Agent::with_card(interfaces, |_| {
        let error = json!({"code": -32001, "message": "no such task"});
        json_reply(&json!({"jsonrpc": "2.0", "id": 1, "error": error}))
    })
    .await;
    let found = agent.call(Call::default()).await.unwrap();
    let error = found.get_task("t", None).await.unwrap_err();
    let Error::Remote(error) = error else {
        panic!("{error:?}")
    };
    assert_eq!(
        (error.kind, error.reason),
        (Some(Kind::TaskNotFound), "TASK_NOT_FOUND")
    );
    assert_eq!(agent.calls().len(), 1);
}

#[tokio::test]
async fn credential_is_sent_to_the_place_of_the_card_only_and_replaced_in_answers() {
    let elsewhere = Scripted::start(Script::Answer(answer(200, &[], "{}"))).await;
    let mut elsewhere = elsewhere;
    let there: &'static str = elsewhere.url("/").leak();
    for (name, credential) in [
        (
            "authorization",
            Credential::Bearer(Secret::new("hunter22-x").unwrap()),
        ),
        (
            "x-api-key",
            Credential::Header {
                name: "x-api-key".parse().unwrap(),
                value: Secret::new("hunter22-x").unwrap(),
            },
        ),
    ] {
        let mut agent = Agent::with_card(&[("/rpc", "JSONRPC", "1.0")], |_| {
            let mut task = task();
            task["metadata"] = json!({"hunter22-x": "the key is hunter22-x"});
            rpc_reply(&task)
        })
        .await;
        let mut peer = agent.peer();
        peer.credential = credential.clone();
        assert!(!format!("{peer:?}").contains("hunter22"));
        let client = Client::new(open_gate(), [peer]);
        let found = client
            .agent("planner", Wanted::default(), Call::default())
            .await
            .unwrap();
        let task = found.get_task("t", None).await.unwrap();
        assert_eq!(
            Value::Object(task.metadata.clone()),
            json!({"[redacted]": "the key is [redacted]"})
        );
        assert!(
            agent
                .seen()
                .iter()
                .all(|seen| seen.header(name).contains("hunter22-x"))
        );
        assert!(!format!("{found:?}").contains("hunter22"));

        let interfaces: &'static [_] = Vec::leak(vec![(there, "JSONRPC", "1.0")]);
        let agent = Agent::with_card(interfaces, echo).await;
        let mut peer = agent.peer();
        peer.credential = credential;
        let client = Client::new(open_gate(), [peer]);
        let found = client
            .agent("planner", Wanted::default(), Call::default())
            .await
            .unwrap();
        assert!(!found.receives_credential());
        let error = found.get_task("t", None).await.unwrap_err();
        assert!(matches!(error, Error::Undecodable(_)), "{error:?}");
        assert!(!elsewhere.next_request().await.contains("hunter22"));
    }
}

#[tokio::test]
async fn missing_credential_unknown_peer_and_unspoken_version_are_named() {
    let agent = Agent::with_card(&[("/rpc", "JSONRPC", "2.0")], echo).await;
    let error = agent.call(Call::default()).await.unwrap_err();
    assert!(matches!(error, Error::VersionNotSupported { offered } if offered == ["JSONRPC 2.0"]));
    let mut peer = agent.peer();
    peer.credential = Credential::Missing {
        source: "PLANNER_TOKEN".to_owned(),
    };
    let client = Client::new(open_gate(), [peer]);
    let error = client.card("planner").await.unwrap_err();
    assert!(matches!(&error, Error::CredentialMissing { source_name } if source_name == "PLANNER_TOKEN"));
    assert!(
        matches!(client.card("painter").await.unwrap_err(), Error::UnknownPeer(name) if name == "painter")
    );
}

/// Grants `a-token-1`, `a-token-2` and so on.
fn grants(expires_in: u64) -> impl Fn(&Seen) -> Option<Reply> + Send + Sync {
    let n_granted = std::sync::atomic::AtomicUsize::new(0);
    move |seen| {
        if seen.path != "/token" {
            return None;
        }
        let n = n_granted.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        let granted =
            json!({"access_token": format!("a-token-{n}"), "token_type": "Bearer", "expires_in": expires_in});
        Some(json_reply(&granted))
    }
}

fn with_oauth2(agent: &Agent) -> Peer {
    let mut peer = agent.peer();
    peer.credential = Credential::OAuth2(OAuth2 {
        token_url: format!("{}/token", agent.origin()).parse().unwrap(),
        client_id: "wopr".to_owned(),
        client_secret: Secret::new("a client:secret").unwrap(),
        scope: Some("tasks".to_owned()),
        audience: None,
    });
    peer
}

#[tokio::test]
async fn access_token_is_kept_and_renewed_when_it_expires_or_is_refused() {
    for (expires_in, refused, tokens) in [
        (3600, "", vec!["a-token-1", "a-token-1", "a-token-1"]),
        // Too short-lived to be used twice.
        (5, "", vec!["a-token-2", "a-token-3", "a-token-4"]),
        (
            3600,
            "a-token-1",
            vec!["a-token-1", "a-token-2", "a-token-2", "a-token-2"],
        ),
    ] {
        let grant = grants(expires_in);
        let mut agent = Agent::with_card(&[("/rpc", "JSONRPC", "1.0")], move |seen| {
            if let Some(reply) = grant(seen) {
                return reply;
            }
            match !refused.is_empty() && seen.header("authorization").contains(refused) {
                true => reply(401, "text/plain", ""),
                false => echo(seen),
            }
        })
        .await;
        let client = Client::new(open_gate(), [with_oauth2(&agent)]);
        let found = client
            .agent("planner", Wanted::default(), Call::default())
            .await
            .unwrap();
        for _ in 0..3 {
            found.get_task("t", None).await.unwrap();
        }
        let calls = agent.calls();
        let asked = calls.iter().find(|seen| seen.path == "/token").unwrap();
        assert_eq!(asked.body, "grant_type=client_credentials&scope=tasks");
        // The id and the form-encoded secret: wopr:a+client%3Asecret
        assert_eq!(
            asked.header("authorization"),
            "Basic d29wcjphK2NsaWVudCUzQXNlY3JldA=="
        );
        let sent: Vec<_> = calls.iter().filter(|seen| seen.path == "/rpc").collect();
        let sent: Vec<_> = sent
            .iter()
            .map(|seen| &seen.header("authorization")[7..])
            .collect();
        assert_eq!(sent, tokens);
    }
}

#[tokio::test]
async fn concurrent_calls_share_one_token_request() {
    let grant = grants(3600);
    let mut agent = Agent::with_card(&[("/rpc", "JSONRPC", "1.0")], move |seen| {
        grant(seen).unwrap_or_else(|| echo(seen))
    })
    .await;
    let client = Client::new(open_gate(), [with_oauth2(&agent)]);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let client = client.clone();
        calls.spawn(async move {
            let found = client
                .agent("planner", Wanted::default(), Call::default())
                .await?;
            found.send_message(message()).await
        });
    }
    for sent in calls.join_all().await {
        sent.unwrap();
    }
    let n_asked = agent.calls().iter().filter(|seen| seen.path == "/token").count();
    assert_eq!(n_asked, 1);
}

#[tokio::test]
async fn credentials_of_earlier_requests_do_not_come_back() {
    // What it was called with until now, in what it sends.
    let known = std::sync::Mutex::new(Vec::new());
    let grant = grants(5);
    let agent = Agent::with_card(&[("/rpc", "JSONRPC", "1.0")], move |seen| {
        if let Some(reply) = grant(seen) {
            return reply;
        }
        let mut known = known.lock().unwrap();
        known.push(seen.header("authorization").to_owned());
        let mut task = task();
        task["artifacts"] = json!([{"artifactId": "a", "parts": [{"text": known.join(" ")}]}]);
        rpc_reply(&task)
    })
    .await;
    let client = Client::new(open_gate(), [with_oauth2(&agent)]);
    let mut peer = agent.peer();
    for n in 1..5 {
        if n > 2 {
            peer.credential = Credential::Bearer(Secret::new(format!("of-the-file-{n}")).unwrap());
            client.replace(peer.clone());
        }
        let found = client
            .agent("planner", Wanted::default(), Call::default())
            .await
            .unwrap();
        let shown = found.get_task("t", None).await.unwrap();
        let text = serde_json::to_string(&shown.artifacts[0].parts).unwrap();
        assert_eq!(text.matches("Bearer [redacted]").count(), n, "{text}");
    }
}

#[tokio::test]
async fn calls_that_wait_for_a_token_share_its_refusal() {
    let mut agent = Agent::with_card(&[("/rpc", "JSONRPC", "1.0")], |seen| {
        match seen.path == "/token" {
            true => reply(503, "text/plain", ""),
            false => echo(seen),
        }
    })
    .await;
    let client = Client::new(open_gate(), [with_oauth2(&agent)]);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let client = client.clone();
        calls.spawn(async move { client.card("planner").await.unwrap_err() });
    }
    for error in calls.join_all().await {
        assert!(
            error.is_transient() && error.to_string().contains("503"),
            "{error}"
        );
    }
    let n_asked = agent.calls().iter().filter(|seen| seen.path == "/token").count();
    assert_eq!(n_asked, 1);
}

#[tokio::test]
async fn refused_token_request_says_why_without_the_secret() {
    let agent = Agent::start(|seen| {
        let error = format!("invalid_client {} a client:secret", seen.header("authorization"));
        reply(401, "application/json", json!({"error": error}).to_string())
    })
    .await;
    let client = Client::new(open_gate(), [with_oauth2(&agent)]);
    let error = client.card("planner").await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Token(..)) && !error.is_transient() && !error.may_have_been_sent());
    assert!(
        text.contains("invalid_client") && !text.contains("secret") && !text.contains("dlY3Jld"),
        "{text}"
    );
}

#[tokio::test]
async fn busy_agent_says_when_to_come_back() {
    for (path, binding) in [("/rpc", "JSONRPC"), ("/rest", "HTTP+JSON"), ("", "GRPC")] {
        let interfaces: &'static [_] = Vec::leak(vec![(path, binding, "1.0")]);
        let agent = Agent::with_card(interfaces, |_| {
            with_header(reply(429, "text/plain", "later"), "retry-after", "7")
        })
        .await;
        let found = agent.call(Call::default()).await.unwrap();
        let error = found.send_message(message()).await.unwrap_err();
        assert!(
            matches!(&error, Error::Status(status) if status.status.as_u16() == 429),
            "{error:?}"
        );
        assert_eq!(error.retry_after().map(|delay| delay.as_secs()), Some(7));
        assert!(error.is_transient());
    }
}
