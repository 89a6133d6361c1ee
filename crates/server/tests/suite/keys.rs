//! API keys created and revoked while the host runs.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use wopr_core::{PrincipalId, TenantId, Timestamp};
use wopr_server::{
    auth::hash_hex,
    config::{PublicUrl, StoreUrl},
};
use wopr_store::{KeyRow, Registry as _, sqlite::Guest};

use crate::{
    client::{Call, Events},
    server::{ALICE, BOB, Server},
    workers,
};

#[tokio::test]
async fn key_works_from_creation_until_revocation() {
    let server = Server::start_on_sqlite().await;
    let body = json!({ "id": "ci", "principal": "robot", "scopes": ["runs:create", "runs:read"] });
    let made = server.post("/v1/host/wopr/keys", &body).send().await.ok(201);
    let secret = made["secret"].as_str().unwrap().to_owned();
    assert_eq!(
        (&made["tenant"], &made["principal"]),
        (&json!("acme"), &json!("robot"))
    );
    let run = json!({ "workflowId": "conformance-noop" });
    let create = || server.call("POST", "/v1/runs").key(&secret).json(&run);
    create().send().await.ok(201);
    let list = server.get("/v1/host/wopr/keys").send().await;
    let text = String::from_utf8(list.body.clone()).unwrap();
    assert!(!text.contains(&secret) && list.ok(200)["keys"][0]["id"] == "ci");
    server
        .post("/v1/host/wopr/keys", &body)
        .send()
        .await
        .error(409, "conflict");

    let foreign = server
        .call("DELETE", "/v1/host/wopr/keys/ci")
        .key(BOB)
        .send()
        .await;
    foreign.error(404, "not_found");
    let revoke = server.call("DELETE", "/v1/host/wopr/keys/ci").key(ALICE);
    assert_eq!(revoke.send().await.status, 204);
    assert_eq!(revoke.send().await.status, 204);
    create().send().await.error(401, "key_revoked");
    let unknown = server
        .call("DELETE", "/v1/host/wopr/keys/nope")
        .key(BOB)
        .send()
        .await;
    unknown.error(404, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn racing_creates_of_one_key_id_make_one_key() {
    let server = Server::start_on_sqlite().await;
    let make = |key: &str| {
        let body = json!({ "id": "shared", "scopes": ["runs:read"] });
        server.call("POST", "/v1/host/wopr/keys").key(key).json(&body)
    };
    let calls: Vec<_> = (0..60).map(|_| make(ALICE)).collect();
    let replies = futures_util::future::join_all(calls.iter().map(Call::send)).await;
    let (made, refused): (Vec<_>, Vec<_>) = replies.into_iter().partition(|reply| reply.status == 201);
    assert_eq!((made.len(), refused.len()), (1, 59));
    for reply in refused {
        reply.error(409, "conflict");
    }
    let secret = made[0].json()["secret"].as_str().unwrap().to_owned();
    let works = async |secret: &str| server.call("GET", "/v1/runs").key(secret).send().await.status;
    assert_eq!(works(&secret).await, 200);
    // Another tenant has its own ids, and revoking its key does not affect this one.
    make(BOB).send().await.ok(201);
    let revoked = server
        .call("DELETE", "/v1/host/wopr/keys/shared")
        .key(BOB)
        .send()
        .await;
    assert_eq!((revoked.status, works(&secret).await), (204, 200));
    server.stop().await;
}

#[tokio::test]
async fn a_tenant_has_a_bounded_number_of_keys() {
    let server = Server::start().await;
    let make = |key: &str, body: Value| server.call("POST", "/v1/host/wopr/keys").key(key).json(&body);
    let plain = json!({ "scopes": ["runs:read"] });
    for n in 0..1_000 {
        let body = json!({ "id": format!("k{n}"), "scopes": ["runs:read"] });
        make(ALICE, body).send().await.ok(201);
    }
    let refused = make(ALICE, plain.clone()).send().await;
    assert_eq!(refused.error(409, "conflict")["maxKeys"], 1_000);
    // Another tenant has its own, and one that is revoked makes room.
    make(BOB, plain.clone()).send().await.ok(201);
    let revoked = server.call("DELETE", "/v1/host/wopr/keys/k0").key(ALICE);
    assert_eq!(revoked.send().await.status, 204);
    make(ALICE, plain).send().await.ok(201);
    // All of them are listed, page by page.
    let (mut listed, mut path) = (BTreeSet::new(), "/v1/host/wopr/keys?limit=100".to_owned());
    loop {
        let page = server.get(&path).send().await.ok(200);
        let keys = page["keys"].as_array().unwrap();
        assert!((1..=100).contains(&keys.len()), "{}", keys.len());
        for key in keys {
            assert!(listed.insert(key["id"].to_string()), "{key} is listed twice");
        }
        match page["nextCursor"].as_str() {
            Some(cursor) => path = format!("/v1/host/wopr/keys?limit=100&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(listed.len(), 1_001, "with the revoked one");
    let first = server.get("/v1/host/wopr/keys").send().await.ok(200);
    assert_eq!(first["keys"].as_array().unwrap().len(), 50);
    for query in ["limit=0", "limit=101", "cursor=x", "cursor=YSBi"] {
        let refused = server.get(&format!("/v1/host/wopr/keys?{query}")).send().await;
        refused.error(400, "validation_error");
    }
    let large = json!({ "scopes": [], "roles": vec!["r".repeat(200); 50] });
    make(BOB, large).send().await.error(400, "validation_error");
    server.stop().await;
}

#[tokio::test]
async fn key_can_grant_only_scopes_its_creator_holds() {
    let server = Server::start().await;
    let body = json!({ "id": "limited", "scopes": ["keys:manage", "runs:read"] });
    let made = server.post("/v1/host/wopr/keys", &body).send().await.ok(201);
    let secret = made["secret"].as_str().unwrap();
    let make = |body| server.call("POST", "/v1/host/wopr/keys").key(secret).json(&body);
    make(json!({ "scopes": ["runs:cancel"] }))
        .send()
        .await
        .error(403, "forbidden");
    make(json!({ "scopes": ["*"] }))
        .send()
        .await
        .error(403, "forbidden");
    make(json!({ "scopes": ["runs:read"] })).send().await.ok(201);
    for bad in [
        json!({}),
        json!({ "scopes": ["runs:fly"] }),
        json!({ "scopes": [], "id": "two words" }),
        json!({ "scopes": [], "principal": "two words" }),
        json!({ "scopes": [], "tenant": "rival" }),
    ] {
        make(bad).send().await.error(400, "validation_error");
    }
    let once = make(json!({ "scopes": [] }))
        .header("idempotency-key", "k")
        .send()
        .await;
    once.error(400, "validation_error");
}

/// Creates and revokes keys in the database, as another process does.
struct Beside(Guest);

impl Beside {
    fn new(server: &Server) -> Self {
        Self(Guest::open(server.database()).unwrap())
    }

    async fn make(&self, id: &str) -> String {
        let secret = format!("wopr_{id}-secret-0123456789");
        let row = KeyRow {
            id: id.to_owned(),
            secret_sha256: hash_hex(&secret),
            tenant: TenantId::parse("acme").unwrap(),
            principal: PrincipalId::parse(id).unwrap(),
            scopes: vec!["*".to_owned()],
            membership: wopr_core::Membership::default(),
            created_at: Timestamp::from_millis(0),
            revoked_at: None,
        };
        assert!(self.0.add_key(row, usize::MAX).await.unwrap());
        secret
    }

    async fn revoke(&self, id: &str) {
        let tenant = TenantId::parse("acme").unwrap();
        let revoked = self.0.revoke_key(&tenant, id, Timestamp::from_millis(1));
        assert!(revoked.await.unwrap());
    }
}

/// Repeats a call until it is refused.
async fn until_refused(call: &Call) -> Value {
    loop {
        let reply = call.send().await;
        if reply.status == 401 {
            return reply.json();
        }
        assert_eq!(reply.status, 200);
    }
}

#[tokio::test]
async fn a_host_on_sqlite_follows_keys_that_another_process_changes() {
    let server = Server::start_on_sqlite().await;
    let beside = Beside::new(&server);
    for id in ["first", "second"] {
        // A new key works from its first use.
        let secret = beside.make(id).await;
        let list = server.call("GET", "/v1/runs").key(&secret);
        list.send().await.ok(200);
        beside.revoke(id).await;
        assert_eq!(until_refused(&list).await["error"], "key_revoked");
    }
    server.stop().await;
}

/// Opens streams of a run over every face, with one key.
async fn streams(server: &Server, run: &str, secret: &str) -> Vec<(&'static str, Events)> {
    let rpc = |method: &str| json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "id": run } });
    let at = |method: &str, path: String| server.call(method, &path).key(secret);
    let calls = [
        ("openwop", at("GET", format!("/v1/runs/{run}/events"))),
        (
            "a2a 0.3",
            at("POST", "/a2a".to_owned()).json(&rpc("tasks/resubscribe")),
        ),
        (
            "a2a 1.0",
            at("POST", "/a2a".to_owned())
                .header("a2a-version", "1.0")
                .json(&rpc("SubscribeToTask")),
        ),
        (
            "a2a 1.0 by path",
            at("POST", format!("/a2a/tasks/{run}:subscribe"))
                .header("a2a-version", "1.0")
                .json(&json!({})),
        ),
    ];
    let mut streams = Vec::new();
    for (name, call) in calls {
        let mut events = call.events().await;
        assert_eq!(events.head.as_ref().unwrap().status, 200, "{name}");
        assert!(events.next().await.is_some(), "{name} says something first");
        streams.push((name, events));
    }
    streams
}

#[tokio::test]
async fn streams_end_only_with_their_own_key() {
    let server = Server::start_on_sqlite().await;
    let run = server.run("approval", json!({})).await;
    let beside = Beside::new(&server);
    let revoked = streams(&server, &run, &beside.make("revoked").await).await;
    let kept = streams(&server, &run, &beside.make("kept").await).await;
    let configured = streams(&server, &run, ALICE).await;
    beside.revoke("revoked").await;
    for (name, events) in revoked {
        for event in events.all().await {
            assert!(!event.data.contains("\"final\":true"), "{name}: {event:?}");
        }
    }

    // The other streams see the end of the run.
    server
        .post(&format!("/v1/runs/{run}/cancel"), &json!({}))
        .send()
        .await
        .ok(200);
    for (name, events) in kept.into_iter().chain(configured) {
        let last = events.all().await.pop();
        let last = last.unwrap_or_else(|| panic!("{name} goes on"));
        assert!(last.data.to_lowercase().contains("cancel"), "{name}: {last:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_stream_ends_at_once_when_its_host_revokes_its_key() {
    let server = Server::start().await;
    let run = server.run("approval", json!({})).await;
    let body = json!({ "id": "watcher", "scopes": ["runs:read"] });
    let made = server.post("/v1/host/wopr/keys", &body).send().await.ok(201);
    let path = format!("/v1/runs/{run}/events");
    let stream = server.call("GET", &path).key(made["secret"].as_str().unwrap());
    let mut events = stream.clone().events().await;
    assert!(events.next().await.is_some());
    let revoke = server.call("DELETE", "/v1/host/wopr/keys/watcher").key(ALICE);
    assert_eq!(revoke.send().await.status, 204);
    events.all().await;
    // A client that reconnects learns the reason.
    stream.send().await.error(401, "key_revoked");
    server.stop().await;
}

/// A workflow whose step waits for a worker of the queue.
fn work_of(queue: &str) -> Value {
    json!({
        "id": format!("work-of-{queue}"), "name": "Work", "version": "1",
        "nodes": [{ "id": "work", "typeId": "core.activity", "name": "work", "position": { "x": 0, "y": 0 },
            "inputs": {}, "config": { "queue": queue } }],
        "edges": [], "triggers": [{ "id": "m", "type": "manual" }], "variables": [], "metadata": {}, "settings": {},
    })
}

/// A document of the Agent Workflow Protocol that waits for a minute.
fn minute() -> Value {
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "minute", "version": "1.0.0" },
        "state_schema": { "type": "object" },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "wait", "type": "wait", "config": { "kind": "duration", "duration_ms": 60_000 } },
            { "id": "end", "type": "end" },
        ],
        "edges": [
            { "source": "__start__", "target": "start" },
            { "source": "start", "target": "wait" },
            { "source": "wait", "target": "end" },
        ],
    })
}

/// The name by which the client calls the host.
fn named() -> Option<PublicUrl> {
    Some("http://test".parse().unwrap())
}

/// One call of every kind that waits, with one key. The leases wait for the queue `later`.
fn waiting_calls(server: &Server, run: &str, secret: &str) -> Vec<(&'static str, Call)> {
    let post = |path: &str, body: Value| server.call("POST", path).key(secret).json(&body);
    let rpc = |method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let tool = |name: &str, arguments: Value| {
        let params = json!({ "name": name, "arguments": arguments });
        post("/mcp", rpc("tools/call", params)).header("accept", "application/json, text/event-stream")
    };
    let message = json!({ "message": { "messageId": "m", "role": "ROLE_USER", "parts": [{ "text": "x" }],
        "metadata": { "skillId": "work-of-letters" } } });
    let poll = format!("/v1/runs/{run}/events/poll?lastSequence=1000&timeout=30");
    let lease = |worker: &str| json!({ "queue": "later", "worker": worker, "waitMs": 30_000 });
    vec![
        ("events", server.call("GET", &poll).key(secret)),
        (
            "a2a",
            post("/a2a", rpc("SendMessage", message)).header("a2a-version", "1.0"),
        ),
        (
            "awp",
            post(
                "/awp/v1/workflows/minute/executions",
                json!({ "execution_id": "e" }),
            ),
        ),
        (
            "mcp run",
            tool("wopr_start_run", json!({ "workflowId": "work-of-letters" })),
        ),
        (
            "mcp execution",
            tool(
                "workflow_start",
                json!({ "definition": minute(), "input": {}, "execution_id": "f" }),
            ),
        ),
        ("lease", post("/v1/activities:lease", lease("over-rest"))),
        ("mcp lease", tool("wopr_lease_activities", lease("over-mcp"))),
    ]
}

/// Revokes a key while calls of every kind wait with it. All are refused at once, and the work that comes later is that
/// of others.
async fn check_waiting_calls(server: &Server, secret: &str, revoke: impl AsyncFnOnce()) {
    for queue in ["letters", "later"] {
        let registered = server.post("/v1/workflows", &work_of(queue)).send().await;
        registered.ok(201);
    }
    let definition = json!({ "definition": minute() });
    server.post("/awp/v1/workflows", &definition).send().await.ok(201);
    let run = server.run("work-of-letters", json!({})).await;
    let calls = waiting_calls(server, &run, secret);
    let calls = calls.into_iter().map(|(name, call)| {
        let sending = tokio::spawn(async move { call.send().await });
        (name, sending)
    });
    let calls: Vec<_> = calls.collect();
    for worker in ["over-rest", "over-mcp"] {
        workers::are_waiting(server, worker, 1).await;
    }
    // Those of the message, of the tool and of the test, and the two executions.
    while server.get("/v1/runs").send().await.ok(200)["runs"]
        .as_array()
        .unwrap()
        .len()
        < 5
    {}
    revoke().await;
    for (name, call) in calls {
        assert_eq!(call.await.unwrap().status, 401, "{name}");
    }
    let later = server.run("work-of-later", json!({})).await;
    let lease = json!({ "queue": "later", "waitMs": 20_000 });
    let leased = server.post("/v1/activities:lease", &lease).send().await.ok(200);
    let activity = &leased["activities"][0];
    assert_eq!(
        (&activity["runId"], &activity["attempt"]),
        (&json!(later), &json!(0))
    );
}

#[tokio::test]
async fn calls_that_wait_end_at_once_when_their_key_is_revoked() {
    // The MCP server answers only to its own name.
    let server = Server::start_with(|config| config.server.public_url = named()).await;
    let body = json!({ "id": "waiter", "scopes": ["*"] });
    let made = server.post("/v1/host/wopr/keys", &body).send().await.ok(201);
    let secret = made["secret"].as_str().unwrap().to_owned();
    check_waiting_calls(&server, &secret, async || {
        let revoke = server.call("DELETE", "/v1/host/wopr/keys/waiter").key(ALICE);
        assert_eq!(revoke.send().await.status, 204);
    })
    .await;
    // A key that revokes itself is answered.
    let body = json!({ "id": "own", "scopes": ["*"] });
    let made = server.post("/v1/host/wopr/keys", &body).send().await.ok(201);
    let own = server.call("DELETE", "/v1/host/wopr/keys/own");
    let revoked = own.key(made["secret"].as_str().unwrap()).send().await;
    assert_eq!(revoked.status, 204);
    server.stop().await;
}

#[tokio::test]
async fn calls_that_wait_end_when_another_process_revokes_their_key() {
    let server = Server::start_with(|config| {
        config.store = StoreUrl::Sqlite("wopr.db".into());
        config.server.public_url = named();
    })
    .await;
    let beside = Beside::new(&server);
    let secret = beside.make("waiter").await;
    check_waiting_calls(&server, &secret, async || beside.revoke("waiter").await).await;
    server.stop().await;
}
