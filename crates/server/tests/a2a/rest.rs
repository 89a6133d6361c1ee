//! HTTP+JSON over real sockets: paths, media types, versions, errors and streams.

use serde_json::{Value, json};
use wopr_server::{Config, config::Period};

use crate::{
    client::{Answer, Client, shorts, state_of},
    push,
    support::{Server, config},
};

fn new_message(id: &str, skill: &str) -> Value {
    json!({"message": {"messageId": id, "role": "ROLE_USER", "parts": [{"text": "x"}],
        "metadata": {"skillId": skill}}})
}

/// A message of 0.3 from a blocking client.
fn old_message(id: &str, skill: &str) -> Value {
    json!({
        "message": {"messageId": id, "role": "ROLE_USER", "content": [{"text": "x"}], "metadata": {"skillId": skill}},
        "configuration": {"blocking": true},
    })
}

async fn post(client: &Client, path: &str, body: &Value) -> Answer {
    client
        .clone()
        .at(path)
        .raw("POST", body.to_string().as_bytes())
        .await
}

#[tokio::test]
async fn both_versions_have_their_paths() {
    let server = Server::start().await;
    let (new, old) = (server.v1(), server.v03());
    for (n, path) in [
        "/a2a/message:send",
        "/a2a/message%3Asend",
        "/a2a/acme/message:send",
    ]
    .iter()
    .enumerate()
    {
        let answer = post(&new, path, &new_message(&format!("n{n}"), "hello")).await;
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (200, Some("application/json")),
            "{path}"
        );
        assert_eq!(state_of(&answer.json()["task"]), "completed");
    }
    for (n, path) in ["/v1/message:send", "/v1/message%3Asend", "/a2a/v1/message:send"]
        .iter()
        .enumerate()
    {
        let answer = post(&old, path, &old_message(&format!("o{n}"), "hello")).await;
        assert_eq!(answer.status, 200, "{path}");
        let task = answer.json()["task"].clone();
        assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
        assert_eq!(task["history"][0]["content"], json!([{"text": "x"}]));
        let id = task["id"].as_str().unwrap();
        for path in [
            format!("/v1/tasks/{id}"),
            format!("/a2a/v1/tasks/{id}?historyLength=0"),
        ] {
            let read = old.get(&path).await.json();
            assert_eq!(read["id"], id);
            assert_eq!(read.get("history").is_none(), path.contains('?'));
        }
        // The run is also served by the other face.
        assert_eq!(old.get(&format!("/v1/runs/{id}")).await.status, 200);
    }
    // The workflow in the URL applies if the message names none.
    let bare = json!({"message": {"messageId": "w", "role": "ROLE_USER", "parts": [{"text": "x"}]}});
    let task = post(&new, "/a2a/w/approve/message:send", &bare).await.json()["task"].clone();
    assert_eq!(state_of(&task), "input-required");
    let card = new.get("/a2a/w/approve/extendedAgentCard").await.json();
    assert_eq!(card["skills"].as_array().unwrap().len(), 1);
    let card = old.get("/v1/card").await.json();
    assert_eq!(card["protocolVersion"], "0.3.0");
}

#[tokio::test]
async fn client_of_0_3_waits_only_on_request() {
    let server = Server::start().await;
    let mut body = old_message("m", "nap");
    for (id, configuration, state) in [
        ("a", json!(null), "TASK_STATE_WORKING"),
        ("b", json!({"blocking": false}), "TASK_STATE_WORKING"),
        ("c", json!({"blocking": true}), "TASK_STATE_COMPLETED"),
    ] {
        body["message"]["messageId"] = json!(id);
        body["configuration"] = configuration;
        let task = post(&server.v03(), "/v1/message:send", &body).await.json()["task"].clone();
        assert_eq!(task["status"]["state"], state, "{id}");
    }
}

#[tokio::test]
async fn protobuf_field_names_are_accepted() {
    let server = Server::start().await;
    let old = json!({
        "request": {"message_id": "m", "role": 1, "content": [{"text": "x"}], "metadata": {"skillId": "hello"}},
        "configuration": {"blocking": true, "history_length": 0},
    });
    let answer = post(&server.v03(), "/v1/message:send", &old).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
    let task = answer.json()["task"].clone();
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
    assert!(task.get("history").is_none());
    let new = json!({"message": {"message_id": "n", "role": "ROLE_USER", "parts": [{"text": "x", "media_type": "t"}],
        "metadata": {"skillId": "hello"}}});
    assert_eq!(post(&server.v1(), "/a2a/message:send", &new).await.status, 200);
}

#[tokio::test]
async fn path_and_request_must_agree() {
    let server = Server::start().await;
    let client = server.v1();
    let task = post(
        &client,
        "/a2a/message:send",
        &new_message("m", "slow").merge(json!({
            "configuration": {"returnImmediately": true}, "tenant": "acme",
        })),
    )
    .await
    .json()["task"]
        .clone();
    let id = task["id"].as_str().unwrap();
    for (path, body, status, field) in [
        (
            format!("/a2a/tasks/{id}:cancel"),
            json!({"id": "another"}),
            400,
            "id",
        ),
        (
            format!("/a2a/acme/tasks/{id}:cancel"),
            json!({"tenant": "other"}),
            400,
            "tenant",
        ),
        (
            format!("/a2a/acme/tasks/{id}:cancel"),
            json!({"id": id, "tenant": "acme"}),
            200,
            "",
        ),
    ] {
        let answer = post(&client, &path, &body).await;
        assert_eq!(answer.status, status, "{path} {body}");
        let details = answer.json()["error"]["details"].clone();
        assert_eq!(
            details[0]["reason"] == "INVALID_PARAMS",
            status == 400,
            "{details}"
        );
        let violation = details[1]["fieldViolations"][0].clone();
        assert_eq!(
            violation["field"].as_str().unwrap_or_default(),
            field,
            "{path} {body}"
        );
    }
    // A tenant in the path selects nothing: the caller's key does.
    let other = client.clone().by("carol");
    assert_eq!(other.get(&format!("/a2a/default/tasks/{id}")).await.status, 404);
    assert_eq!(client.get(&format!("/a2a/other/tasks/{id}")).await.status, 200);
    assert_eq!(
        client
            .get(&format!("/a2a/other/tasks/{id}?tenant=third"))
            .await
            .status,
        400
    );
}

/// Merges two objects.
trait Merge {
    fn merge(self, other: Value) -> Value;
}

impl Merge for Value {
    fn merge(mut self, other: Value) -> Value {
        self.as_object_mut()
            .unwrap()
            .extend(other.as_object().unwrap().clone());
        self
    }
}

#[tokio::test]
async fn paths_belong_to_one_version() {
    let server = Server::start().await;
    for (version, method, path, wanted) in [
        ("", "GET", "/a2a/tasks", 400),
        ("0.3", "GET", "/a2a/tasks", 400),
        ("1.0", "GET", "/a2a/tasks", 200),
        ("1.0.1", "GET", "/a2a/tasks", 200),
        ("", "GET", "/a2a/tasks?A2A-Version=1.0", 200),
        ("2.0", "GET", "/a2a/tasks", 400),
        ("", "GET", "/v1/tasks", 200),
        ("0.3", "GET", "/v1/tasks", 200),
        ("1.0", "GET", "/v1/tasks", 400),
        ("1.0", "POST", "/v1/message:send", 400),
    ] {
        let answer = server.client(version).at(path).raw(method, b"").await;
        assert_eq!(answer.status, wanted, "{version} {path}");
        if wanted == 400 {
            let error = answer.json()["error"].clone();
            assert_eq!(
                error["details"][0]["reason"], "VERSION_NOT_SUPPORTED",
                "{version} {path}"
            );
            assert_eq!(error["status"], "FAILED_PRECONDITION");
        }
    }
}

#[tokio::test]
async fn unauthenticated_requests_learn_nothing() {
    let server = Server::start().await;
    let mut stranger = server.v1();
    stranger.key = None;
    for (method, path) in [
        ("POST", "/a2a/message:send"),
        ("GET", "/a2a/tasks"),
        ("GET", "/a2a/nothing/of/the/kind"),
        ("DELETE", "/a2a/tasks"),
        ("POST", "/v1/message:send"),
        ("GET", "/v1/tasks/x"),
        ("GET", "/v1/card"),
    ] {
        let answer = stranger.clone().at(path).raw(method, b"{}").await;
        assert_eq!(answer.status, 401, "{method} {path}");
        assert_eq!(answer.json()["error"]["status"], "UNAUTHENTICATED");
        assert!(answer.header("www-authenticate").unwrap().starts_with("Bearer"));
    }
    let client = server.v1();
    for (method, path, status, allow) in [
        ("GET", "/a2a/message:send", 405, Some("POST")),
        ("PUT", "/a2a/tasks/x:subscribe", 405, Some("POST, GET")),
        ("DELETE", "/a2a/tasks", 405, Some("GET")),
        ("PATCH", "/v1/tasks/x", 405, Some("GET")),
        ("GET", "/a2a/nothing", 404, None),
        ("POST", "/a2a/tasks/x:fly", 404, None),
        ("POST", "/a2a/.well-known/agent-card.json", 405, Some("GET, HEAD")),
    ] {
        let answer = client.clone().at(path).raw(method, b"").await;
        assert_eq!(
            (answer.status, answer.header("allow")),
            (status, allow),
            "{method} {path}"
        );
        assert_eq!(answer.json()["error"]["code"], status);
    }
    // Scopes apply as in every binding.
    let reader = client.clone().by("reader");
    let answer = post(&reader, "/a2a/message:send", &new_message("m", "hello")).await;
    assert_eq!(answer.status, 403);
    assert_eq!(answer.json()["error"]["status"], "PERMISSION_DENIED");
    let starter = client.clone().by("starter");
    let task = post(&starter, "/a2a/message:send", &new_message("m", "hello"))
        .await
        .json()["task"]
        .clone();
    let path = format!("/a2a/tasks/{}", task["id"].as_str().unwrap());
    assert_eq!(client.get(&path).await.status, 200);
    let unread = starter.get(&path).await;
    assert_eq!(
        (unread.status, &unread.json()["error"]["status"]),
        (403, &json!("PERMISSION_DENIED"))
    );
}

#[tokio::test]
async fn an_id_with_colons_is_found_at_every_path() {
    const URL: &str = "http://127.0.0.1:9/pushed";
    let server = Server::open(push::reaching()).await;
    let client = server.v1();
    let task = client
        .send(client.text("m", "it", json!({"metadata": {"skillId": "approve"}})))
        .await;
    let id = task["id"].as_str().unwrap();
    for config in ["a.b:c", "urn:uuid:1", "x:cancel", ":"] {
        for (client, interface) in [
            (server.v1(), "/a2a"),
            (server.v1(), "/a2a/acme"),
            (server.v1(), "/a2a/w/approve"),
            (server.v03(), "/a2a/v1"),
            (server.v03(), "/a2a/w/approve/v1"),
            (server.v03(), "/v1"),
        ] {
            for written in [config.to_owned(), config.replace(':', "%3A")] {
                let wanted = json!({ "taskId": id, "id": config, "url": URL });
                server.v1().ok("CreateTaskPushNotificationConfig", wanted).await;
                let path = format!("{interface}/tasks/{id}/pushNotificationConfigs/{written}");
                let read = client.get(&path).await;
                assert_eq!(read.status, 200, "{path}");
                assert!(read.json().to_string().contains(URL), "{path}");
                let removed = client.clone().at(&path).raw("DELETE", b"").await;
                assert_eq!(removed.status, 200, "{path}");
                assert_eq!(client.get(&path).await.status, 404, "{path}");
            }
        }
    }
    // Nor is a task's name cut at its colons.
    for (method, path) in [
        ("GET", "/a2a/tasks/urn:a:b"),
        ("POST", "/a2a/tasks/urn:a:b:cancel"),
        ("GET", "/a2a/tasks/urn%3Aa%3Ab%3Asubscribe"),
        ("GET", "/a2a/tasks/t:fly"),
    ] {
        let missing = client.clone().at(path).raw(method, b"").await;
        assert_eq!(missing.status, 404, "{path}");
        let reason = &missing.json()["error"]["details"][0]["reason"];
        assert_eq!(reason, "TASK_NOT_FOUND", "{path}");
    }
}

#[tokio::test]
async fn compressed_bodies_are_refused() {
    let server = Server::start().await;
    let packed = server.v1().with("content-encoding", "gzip");
    for path in ["/a2a", "/a2a/message:send"] {
        let refused = packed.clone().at(path).raw("POST", b"\x1f\x8b\x08").await;
        assert_eq!(refused.status, 415, "{path}");
        assert_eq!(refused.header("accept-encoding"), Some("identity"));
        assert_eq!(refused.json()["error"]["status"], "INVALID_ARGUMENT");
    }
    let plain = server.v1().with("content-encoding", "identity");
    assert_eq!(
        post(&plain, "/a2a/message:send", &new_message("m", "hello"))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn old_client_gets_the_error_name() {
    let server = Server::start().await;
    let refused = server
        .v03()
        .get("/v1/tasks/run_00000000000000000000000000000000")
        .await;
    assert_eq!(refused.status, 404);
    let body = refused.json();
    assert_eq!(
        (&body["type"], &body["code"]),
        (&json!("TaskNotFoundError"), &json!(-32001))
    );
}

#[tokio::test]
async fn error_profile_decides_the_status() {
    for (profile, wanted) in [
        ("1.0.1", [404, 400, 400, 400, 400]),
        ("1.0.0", [404, 409, 400, 415, 415]),
    ] {
        let mut config = config();
        config.a2a.error_profile = profile.parse().unwrap();
        let server = Server::open(config).await;
        let client = server.v1();
        let done = post(&client, "/a2a/message:send", &new_message("m", "hello"))
            .await
            .json();
        let done = done["task"]["id"].as_str().unwrap();
        let mut modes = new_message("n", "hello");
        modes["configuration"] = json!({"acceptedOutputModes": ["image/png"]});
        let plain = client.clone().with("content-type", "text/plain");
        let got = [
            client
                .get("/a2a/tasks/run_00000000000000000000000000000000")
                .await,
            post(&client, &format!("/a2a/tasks/{done}:cancel"), &json!({})).await,
            post(&client, &format!("/a2a/tasks/{done}:subscribe"), &json!({})).await,
            post(&client, "/a2a/message:send", &modes).await,
            post(&plain, "/a2a/message:send", &new_message("o", "hello")).await,
        ];
        assert_eq!(got.each_ref().map(|answer| answer.status), wanted, "{profile}");
        assert_eq!(
            got[4].json()["error"]["details"][0]["reason"],
            "CONTENT_TYPE_NOT_SUPPORTED"
        );
        assert_eq!(
            got[0].json()["error"]["details"],
            json!([{
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "TASK_NOT_FOUND",
                "domain": "a2a-protocol.org",
                "metadata": {"taskId": "run_00000000000000000000000000000000"},
            }])
        );
    }
}

#[tokio::test]
async fn media_types_and_extensions_are_negotiated() {
    let server = Server::start().await;
    let client = server.v1();
    let typed = client.clone().with("accept", "application/a2a+json, */*;q=0.1");
    assert_eq!(
        typed.get("/a2a/tasks").await.header("content-type"),
        Some("application/a2a+json")
    );
    assert_eq!(
        client.get("/a2a/tasks").await.header("content-type"),
        Some("application/json")
    );
    let sent = client
        .clone()
        .with("content-type", "application/a2a+json; charset=utf-8");
    assert_eq!(
        post(&sent, "/a2a/message:send", &new_message("m", "hello"))
            .await
            .status,
        200
    );

    // Errors use the same media type, even before the request is validated.
    for (client, path, status) in [
        (
            typed.clone(),
            "/a2a/tasks/run_00000000000000000000000000000000",
            404,
        ),
        (typed.clone().by("nobody"), "/a2a/tasks", 401),
    ] {
        let refused = client.get(path).await;
        assert_eq!(refused.status, status);
        assert_eq!(refused.header("content-type"), Some("application/a2a+json"));
        assert!(refused.json()["error"]["message"].is_string());
    }

    let known = "urn:wopr:a2a:resume:1";
    for (name, asked, told) in [
        ("A2A-Extensions", "urn:x, urn:wopr:a2a:resume:1", Some(known)),
        ("X-A2A-Extensions", known, Some(known)),
        ("A2A-Extensions", "urn:x", None),
    ] {
        let client = client.clone().with(name, asked);
        assert_eq!(
            client.get("/a2a/tasks").await.header(name),
            told,
            "{name}: {asked}"
        );
    }
    let asking = client.clone().with("A2A-Extensions", known);
    let rpc = asking
        .raw("POST", br#"{"jsonrpc":"2.0","id":1,"method":"ListTasks"}"#)
        .await;
    assert_eq!(rpc.header("a2a-extensions"), Some(known));
}

#[tokio::test]
async fn hostile_requests_are_refused() {
    let server = Server::start().await;
    let (new, old) = (server.v1(), server.v03());
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    let deep_message = format!(
        r#"{{"message":{}1{}}}"#,
        r#"{"a":"#.repeat(10_000),
        "}".repeat(10_000)
    );
    for (client, path) in [
        (&new, "/a2a/message:send"),
        (&old, "/v1/message:send"),
        (&new, "/a2a/message:stream"),
    ] {
        for body in [
            "",
            "{",
            "\u{0}",
            "null",
            "7",
            "[]",
            "{}",
            &deep,
            &deep_message,
            r#"{"message": 7}"#,
            r#"{"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{}], "content": [{}]}}"#,
            r#"{"message": {"messageId": "m", "role": "ROLE_UNSPECIFIED", "parts": [], "content": []}}"#,
        ] {
            let answer = client.clone().at(path).raw("POST", body.as_bytes()).await;
            assert_eq!(answer.status, 400, "{path} {:?}", &body[..body.len().min(40)]);
            assert_eq!(answer.json()["error"]["status"], "INVALID_ARGUMENT");
        }
        let huge = vec![b' '; (10 << 20) + 1];
        let answer = client.clone().at(path).raw("POST", &huge).await;
        assert_eq!(
            (answer.status, answer.json()["error"]["status"].clone()),
            (413, json!("RESOURCE_EXHAUSTED"))
        );
    }
    for (path, status) in [
        ("/a2a/tasks/%00", 404),
        ("/a2a/tasks/..%2f..%2fetc%2fpasswd", 404),
        ("/a2a/tasks?pageSize=0", 400),
        ("/a2a/tasks?pageSize=101", 400),
        ("/a2a/tasks?pageSize=x", 400),
        ("/a2a/tasks?pageSize=9999999999999999999999", 400),
        ("/a2a/tasks?historyLength=-1", 400),
        ("/a2a/tasks?status=canceled", 400),
        ("/a2a/tasks?pageToken=%ff", 400),
        ("/a2a/tasks?includeArtifacts=maybe", 400),
        ("/a2a/tasks?statusTimestampAfter=yesterday", 400),
        ("/a2a/tasks?unknown=1&&&=&%", 200),
    ] {
        assert_eq!(new.get(path).await.status, status, "{path}");
    }
    // The host still works.
    let task = post(&new, "/a2a/message:send", &new_message("fine", "hello"))
        .await
        .json();
    assert_eq!(state_of(&task["task"]), "completed");
}

#[tokio::test]
async fn stream_resumes_after_any_event() {
    let server = Server::start().await;
    let (new, old) = (server.v1(), server.v03());
    let stream = new
        .clone()
        .at("/a2a/message:stream")
        .bare_stream("POST", &new_message("m", "nap"))
        .await;
    let frames = stream.all().await;
    let short = shorts(&frames);
    assert_eq!(short.first().map(String::as_str), Some("task:submitted"));
    assert_eq!(short.last().map(String::as_str), Some("status:completed"));
    assert_eq!(frames[0].id, None);
    let id = frames[0].value["id"].as_str().unwrap();
    for (n, frame) in frames.iter().enumerate().skip(1) {
        let seen = frame.id.unwrap().to_string();
        for (client, method, path) in [
            (&new, "POST", format!("/a2a/tasks/{id}:subscribe")),
            (&new, "GET", format!("/a2a/tasks/{id}:subscribe")),
            (&old, "GET", format!("/v1/tasks/{id}:subscribe")),
            (&old, "POST", format!("/a2a/v1/tasks/{id}%3Asubscribe")),
        ] {
            let client = client.clone().at(&path).with("last-event-id", &seen);
            let rest = client.bare_stream(method, &Value::Null).await.all().await;
            assert_eq!(shorts(&rest), short[n + 1..], "{method} {path} after {seen}");
            let ids =
                |frames: &[crate::client::Frame]| frames.iter().map(|frame| frame.id).collect::<Vec<_>>();
            assert_eq!(ids(&rest), ids(&frames[n + 1..]));
        }
    }
    let odd = new
        .clone()
        .at(&format!("/a2a/tasks/{id}:subscribe"))
        .with("last-event-id", "x");
    assert_eq!(odd.raw("GET", b"").await.status, 400);
}

#[tokio::test]
async fn idle_stream_is_kept_alive_without_empty_events() {
    let mut config = Config { ..config() };
    config.server.sse_keepalive = "50ms".parse::<Period>().unwrap();
    let server = Server::open(config).await;
    let client = server.v1();
    let mut stream = client
        .clone()
        .at("/a2a/message:stream")
        .bare_stream("POST", &new_message("m", "slow"))
        .await;
    let frames = stream.until("status:working").await;
    let id = frames[0].value["id"].as_str().unwrap().to_owned();
    let raw = stream.comment().await;
    assert!(!raw.contains(":keepalive\n\n"), "{raw:?}");
    let path = format!("/a2a/tasks/{id}:cancel");
    assert_eq!(client.clone().at(&path).raw("POST", b"").await.status, 200);
    assert_eq!(stream.until("status:canceled").await.len(), 1);
}
