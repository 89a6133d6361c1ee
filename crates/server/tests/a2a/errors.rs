//! Errors in both versions, and malicious bodies.

use serde_json::{Value, json};

use crate::{client::state_of, support::Server};

#[tokio::test]
async fn every_error_has_its_code() {
    let server = Server::start().await;
    let gone = "run_00000000000000000000000000000000";
    for version in ["1.0", ""] {
        let client = server.client(version);
        let is_new = version == "1.0";
        let m = |n: &str| format!("{n}-{version}");
        let (send, get, cancel, subscribe) = if is_new {
            ("SendMessage", "GetTask", "CancelTask", "SubscribeToTask")
        } else {
            ("message/send", "tasks/get", "tasks/cancel", "tasks/resubscribe")
        };
        let done = client.send(client.text(&m("done"), "x", json!({}))).await;
        let done = done["id"].as_str().unwrap();
        let noop = client.text(&m("new"), "x", json!({"metadata": {"skillId": "required"}}));
        for (method, params, code) in [
            (get, json!({"id": gone}), -32001),
            (get, json!({"id": "short"}), -32001),
            (get, json!({"id": "../../etc/passwd\u{0}"}), -32001),
            (get, json!({}), -32602),
            (get, json!({"id": 7}), -32602),
            (get, json!({"id": done, "historyLength": -1}), -32602),
            (get, json!([done]), -32602),
            (cancel, json!({"id": gone}), -32001),
            (cancel, json!({"id": done}), -32002),
            (subscribe, json!({"id": gone}), -32001),
            (subscribe, json!({"id": done}), -32004),
            (send, json!({}), -32602),
            (send, json!({"message": {}}), -32602),
            (send, client.message(&m("p"), json!([]), json!({})), -32602),
            (send, client.text("", "x", json!({})), -32602),
            (send, client.text("a\nb", "x", json!({})), -32602),
            (send, client.text(&"x".repeat(257), "x", json!({})), -32602),
            (
                send,
                client.text(&m("c"), "x", json!({"contextId": "a\u{7}"})),
                -32602,
            ),
            (send, client.text(&m("t"), "x", json!({"taskId": gone})), -32001),
            (send, client.text(&m("u"), "x", json!({"taskId": done})), -32004),
            (
                send,
                client.text(&m("v"), "x", json!({"taskId": done, "contextId": "another"})),
                -32602,
            ),
            (send, noop, -32602),
            (
                send,
                client.message(
                    &m("d"),
                    json!([{"text": "x"}]),
                    json!({
                        "configuration": {"acceptedOutputModes": ["image/png"]},
                    }),
                ),
                -32005,
            ),
            ("Nothing", json!({}), -32601),
            ("tasks/list", json!({}), -32601),
            ("", json!({}), -32601),
        ] {
            let (got, text) = client.err(method, params.clone()).await;
            assert_eq!(got, code, "{method} {params}: {text}");
        }
        let push = if is_new {
            [
                ("CreateTaskPushNotificationConfig", -32602),
                ("GetTaskPushNotificationConfig", -32602),
                ("ListTaskPushNotificationConfigs", -32602),
                ("DeleteTaskPushNotificationConfig", -32602),
            ]
        } else {
            [
                ("tasks/pushNotificationConfig/set", -32602),
                ("tasks/pushNotificationConfig/get", -32602),
                ("tasks/pushNotificationConfig/list", -32602),
                ("tasks/pushNotificationConfig/delete", -32602),
            ]
        };
        for (method, code) in push {
            assert_eq!(client.err(method, json!({})).await.0, code, "{method}");
        }
    }
}

#[tokio::test]
async fn error_includes_its_reason() {
    let server = Server::start().await;
    let envelope = server
        .v1()
        .call("GetTask", json!({"id": "run_0123456789abcdef"}))
        .await;
    assert_eq!(
        envelope["error"]["data"],
        json!([{
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "TASK_NOT_FOUND",
            "domain": "a2a-protocol.org",
            "metadata": {"taskId": "run_0123456789abcdef"},
        }])
    );
    let envelope = server.v1().call("GetTask", json!({})).await;
    assert_eq!(envelope["error"]["data"][0]["fieldViolations"][0]["field"], "id");
}

#[tokio::test]
async fn methods_belong_to_versions() {
    let server = Server::start().await;
    for (version, method, code) in [
        ("1.0", "message/send", -32601),
        ("1.0", "tasks/get", -32601),
        ("1.0.1", "tasks/get", -32601),
        ("", "SendMessage", -32009),
        ("0.3", "GetTask", -32009),
        ("2.0", "GetTask", -32009),
        ("2.0", "tasks/get", -32009),
        ("2.0", "Nothing", -32009),
        ("", "Nothing", -32601),
    ] {
        let (got, text) = server.client(version).err(method, json!({"id": "x"})).await;
        assert_eq!(got, code, "{version} {method}: {text}");
    }
    let envelope = server.client("2.0").call("GetTask", json!({})).await;
    assert_eq!(
        envelope["error"]["data"][0]["metadata"]["supportedVersions"],
        "0.3,1.0"
    );
    let envelope = server.client("0.3").call("GetTask", json!({})).await;
    assert_eq!(
        envelope["error"]["data"][0]["metadata"]["requestedVersion"],
        "0.3"
    );
    let asked = server.v03().at("/a2a?A2A-Version=1.0");
    assert_eq!(asked.err("GetTask", json!({"id": "x"})).await.0, -32001);
}

#[tokio::test]
async fn unauthenticated_calls_are_refused() {
    let server = Server::start().await;
    for key in [None, Some("nobody")] {
        let mut client = server.v1();
        client.key = key.map(str::to_owned);
        let answer = client.raw("POST", b"{}").await;
        assert_eq!(answer.status, 401);
        assert!(answer.header("www-authenticate").unwrap().starts_with("Bearer"));
        assert_eq!(answer.json()["error"]["status"], "UNAUTHENTICATED");
        assert!(answer.json().get("jsonrpc").is_none());
        assert_eq!(client.get("/.well-known/agent-card.json").await.status, 200);
    }
}

#[tokio::test]
async fn hostile_bodies_are_refused() {
    let server = Server::start().await;
    let client = server.v1();
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let deep_params = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{}}}"#,
        r#"{"a":"#.repeat(10_000) + "1" + &"}".repeat(10_000)
    );
    let cases: Vec<(Vec<u8>, i64)> = vec![
        (b"".to_vec(), -32700),
        (b"{".to_vec(), -32700),
        (b"\xff\xfe".to_vec(), -32700),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xc3\x28\"}".to_vec(),
            -32700,
        ),
        (deep.into_bytes(), -32700),
        (deep_params.into_bytes(), -32700),
        (b"[]".to_vec(), -32600),
        (
            b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"GetTask\"}]".to_vec(),
            -32600,
        ),
        (b"null".to_vec(), -32600),
        (
            b"{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"GetTask\"}".to_vec(),
            -32600,
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"GetTask\"}".to_vec(),
            -32600,
        ),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}".to_vec(), -32600),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"GetTask\",\"params\":3}".to_vec(),
            -32602,
        ),
    ];
    for (body, code) in cases {
        let answer = client.raw("POST", &body).await;
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.json()["error"]["code"],
            code,
            "{:?}",
            &body[..body.len().min(60)]
        );
    }
    let wrong = client.clone().with("content-type", "text/plain");
    let answer = wrong
        .raw("POST", br#"{"jsonrpc":"2.0","id":"a","method":"GetTask"}"#)
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["error"]["code"], -32005);
    assert_eq!(answer.json()["id"], "a");
    let typed = client
        .clone()
        .with("content-type", "application/json; charset=utf-8");
    assert_eq!(typed.err("GetTask", json!({"id": "x"})).await.0, -32001);

    for huge in [vec![b' '; (10 << 20) + 1], vec![b' '; 100 << 20]] {
        let answer = client.raw("POST", &huge).await;
        assert_eq!(answer.status, 413);
        assert_eq!(answer.json()["error"]["status"], "RESOURCE_EXHAUSTED");
    }
    let parts = json!([{ "data": vec![json!({ "": 0 }); 200_000] }]);
    let many = client.message("many", parts, json!({}));
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": many });
    for (path, body) in [("/a2a", call), ("/a2a/message:send", many)] {
        let answer = client
            .clone()
            .at(path)
            .raw("POST", body.to_string().as_bytes())
            .await;
        assert_eq!(answer.status, 413, "{path}");
        assert_eq!(
            answer.json()["error"]["message"],
            "the body holds too many values"
        );
    }
    // The host still works.
    let task = client.send(client.text("fine", "x", json!({}))).await;
    assert_eq!(state_of(&task), "completed");
}

#[tokio::test]
async fn data_deeper_than_a_log_may_hold_is_refused() {
    let server = Server::start().await;
    let client = server.v1();
    let mut data = json!(1);
    for _ in 0..110 {
        data = json!({ "a": data });
    }
    let parts = json!([{ "data": data }]);
    let (code, text) = client.send_err(client.message("m", parts, json!({}))).await;
    assert_eq!(code, -32602, "{text}");
}

#[tokio::test]
async fn bindings_accept_only_post() {
    let server = Server::start().await;
    for method in ["GET", "PUT", "DELETE"] {
        for path in ["/a2a", "/a2a/", "/a2a/w/hello"] {
            let answer = server.v1().at(path).raw(method, b"").await;
            assert_eq!(answer.status, 405, "{method} {path}");
            assert_eq!(answer.header("allow"), Some("POST"));
            assert_eq!(answer.json()["error"]["code"], 405);
        }
    }
}

#[tokio::test]
async fn a_notification_is_refused_and_does_nothing() {
    let server = Server::start().await;
    let client = server.v1();
    let params = client.text("m", "x", json!({}));
    let body = json!({"jsonrpc": "2.0", "method": "SendMessage", "params": params});
    let answer = client.raw("POST", body.to_string().as_bytes()).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (200, &json!(-32600))
    );
    assert_eq!(client.ok("ListTasks", json!({})).await["totalSize"], 0);
}

#[tokio::test]
async fn request_without_an_id_is_validated_by_method_and_params_first() {
    let server = Server::start().await;
    for (version, method, params, code) in [
        ("1.0", "NoSuchMethod", json!({}), -32601),
        ("1.0", "GetTask", json!({}), -32602),
        ("1.0", "SendMessage", json!({"message": {}}), -32602),
        ("1.0", "GetTask", json!({"id": "x"}), -32600),
        ("", "no/such", json!({}), -32601),
        ("", "tasks/get", json!({}), -32602),
        ("", "tasks/get", json!({"id": "x"}), -32600),
    ] {
        let body = json!({"jsonrpc": "2.0", "method": method, "params": params});
        let answer = server
            .client(version)
            .raw("POST", body.to_string().as_bytes())
            .await;
        let answer = answer.json();
        assert_eq!(answer["error"]["code"], code, "{method} {params}");
        assert_eq!(answer["id"], Value::Null, "{method} {params}");
    }
}

/// Member names as in the protocol buffers are accepted at every level.
#[tokio::test]
async fn snake_case_is_read_over_json_rpc_and_in_queries() {
    let server = Server::start().await;
    let n = |task: &Value| task["history"].as_array().map_or(0, Vec::len);
    for (client, send, get) in [
        (server.v1(), "SendMessage", "GetTask"),
        (server.v03(), "message/send", "tasks/get"),
    ] {
        let mut params = client.text(send, "x", json!({"metadata": {"skillId": "clarify", "a_b": 1}}));
        let message = params["message"].as_object_mut().unwrap();
        let id = message.remove("messageId").unwrap();
        message.insert("message_id".to_owned(), id);
        params["configuration"] = json!({"history_length": 1});
        let sent = client.ok(send, params).await;
        let task = sent.get("task").unwrap_or(&sent).clone();
        // The agent's question is the status message, so the history has one message.
        assert_eq!(n(&task), 1, "{task}");
        assert_eq!(
            task["history"][0]["metadata"]["a_b"], 1,
            "free-form data stays as it is: {task}"
        );
        let id = task["id"].clone();
        let more = client.text(get, "red", json!({"taskId": id}));
        client.send(more).await;
        assert!(n(&client.ok(get, json!({"id": id})).await) > 1);
        for length in ["history_length", "historyLength"] {
            let read = client.ok(get, json!({"id": id, length: 1})).await;
            assert_eq!(n(&read), 1, "{length}");
        }
    }
    let client = server.v1();
    let listed = async |query: &str| {
        let answer = client.get(&format!("/a2a/tasks?{query}")).await;
        assert_eq!(answer.status, 200, "{query}");
        answer.json()
    };
    let page = listed("page_size=1&history_length=1").await;
    assert_eq!(
        (page["pageSize"].clone(), n(&page["tasks"][0])),
        (json!(1), 1),
        "{page}"
    );
    assert_eq!(listed("context_id=none").await["totalSize"], 0);
    let refused = client.get("/a2a/tasks?page_size=0").await;
    assert_eq!(refused.status, 400);
    let page = client
        .ok("ListTasks", json!({"page_size": 1, "history_length": 1}))
        .await;
    assert_eq!(
        (page["pageSize"].clone(), n(&page["tasks"][0])),
        (json!(1), 1),
        "{page}"
    );
}

#[tokio::test]
async fn ended_task_has_the_a2a_spelling() {
    let server = Server::start().await;
    let client = server.v1();
    let params = client.text("m", "x", json!({"metadata": {"skillId": "approve"}}));
    let task = client.send(params).await;
    let id = &task["id"];
    client.ok("CancelTask", json!({"id": id})).await;
    let (_, text) = client.err("SubscribeToTask", json!({"id": id})).await;
    assert!(text.contains("the task is canceled"), "{text}");
    let (_, text) = client
        .send_err(client.text("n", "yes", json!({"taskId": id})))
        .await;
    assert!(text.contains("the task is canceled"), "{text}");
}

#[tokio::test]
async fn client_of_0_3_that_asks_for_events_gets_the_error_of_a_stream_as_one() {
    let server = Server::start().await;
    let gone = "run_00000000000000000000000000000000";
    for (version, method, params, code) in [
        ("", "message/stream", json!({}), -32602),
        (
            "",
            "message/stream",
            server.v03().text("t", "x", json!({ "taskId": gone })),
            -32001,
        ),
        ("", "tasks/resubscribe", json!({ "id": gone }), -32001),
        ("", "tasks/get", json!({ "id": gone }), -32001),
        ("1.0", "SendStreamingMessage", json!({}), -32602),
        ("1.0", "SubscribeToTask", json!({ "id": gone }), -32001),
    ] {
        let request = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }).to_string();
        for accept in [
            "text/event-stream",
            "application/json, Text/Event-Stream;q=0.5",
            "application/json",
        ] {
            let client = server.client(version).with("accept", accept);
            let answer = client.raw("POST", request.as_bytes()).await;
            let is_stream = version.is_empty() && method != "tasks/get" && accept != "application/json";
            let body = String::from_utf8(answer.body.clone()).unwrap();
            let envelope: Value = match is_stream {
                true => {
                    assert!(
                        answer
                            .header("content-type")
                            .unwrap()
                            .starts_with("text/event-stream")
                    );
                    serde_json::from_str(body.strip_prefix("data: ").unwrap()).unwrap()
                }
                false => serde_json::from_str(&body).unwrap(),
            };
            assert_eq!(answer.status, 200);
            assert_eq!(
                (&envelope["id"], &envelope["error"]["code"]),
                (&json!(7), &json!(code)),
                "{envelope}"
            );
        }
    }
}
