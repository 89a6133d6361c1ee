//! The discovery document and operator endpoints, checked against the host's actual behavior.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use wopr_core::TenantId;
use wopr_server::config::ToolServer;

use crate::{
    server::{ALICE, Server},
    workflows::{chain, node},
};

#[tokio::test]
async fn discovery_is_public_and_cached() {
    let server = Server::start().await;
    let reply = server.call("GET", "/.well-known/openwop").send().await;
    let document = reply.ok(200);
    assert_eq!(reply.header("cache-control"), Some("public, max-age=300"));
    let tag = reply.header("etag").unwrap().to_owned();
    assert_eq!(reply.header("capabilities-etag"), Some(tag.as_str()));
    let known = server
        .call("GET", "/.well-known/openwop")
        .header("if-none-match", &tag);
    assert_eq!(known.send().await.status, 304);

    assert_eq!(document["protocolVersion"], "1.1");
    assert_eq!(document["supportedEnvelopes"], json!(["clarification.request"]));
    assert_eq!(document["limits"]["maxNodeExecutions"], 1000);
    assert_eq!(document["limits"]["clarificationRounds"], 1000);
    assert_eq!(document["limits"]["schemaRounds"], 10);
    assert_eq!(document["limits"]["envelopesPerTurn"], 1);
    assert!(!document.to_string().contains("\"edit\""));
    let a2a = &document["a2a"];
    assert_eq!(a2a["protocolVersions"], json!(["1.0", "0.3"]));
    assert_eq!(a2a["profiles"], json!(["a2a-1.0", "a2a-0.3-legacy"]));
    assert_eq!(document["capabilities"]["a2a"], *a2a);
    let card = format!("{}/.well-known/agent-card.json", server.host.public_url());
    assert_eq!(a2a["agentCardUrl"], card);
    assert_eq!(document["fixtures"], json!(["conformance-noop"]));

    assert_eq!(document["limits"]["maxRunDurationMs"], 86_400_000);

    let plain = Server::start_with(|config| config.conformance = false).await;
    let document = plain.call("GET", "/.well-known/openwop").send().await.ok(200);
    assert!(document.get("fixtures").is_none());
    assert!(document["limits"].get("maxRunDurationMs").is_none());
    let head = plain.call("HEAD", "/.well-known/openwop").send().await;
    assert_eq!((head.status, head.body.len()), (200, 0));
}

#[tokio::test]
async fn tools_are_advertised_if_everybody_may_call_some() {
    let with = async |tenants: &[&str]| {
        let tenants: Vec<_> = tenants
            .iter()
            .map(|tenant| TenantId::parse(tenant).unwrap())
            .collect();
        let server = Server::start_with(|config| {
            let url = "https://example.com/mcp".parse().unwrap();
            let server = ToolServer {
                tenants,
                ..ToolServer::at("default", url)
            };
            config.mcp.servers.push(server);
        });
        let server = server.await;
        let document = server.call("GET", "/.well-known/openwop").send().await.ok(200);
        document["mcp"]["supported"].clone()
    };
    assert_eq!(with(&[]).await, true);
    assert_eq!(with(&["acme"]).await, false);
    let plain = Server::start().await;
    let document = plain.call("GET", "/.well-known/openwop").send().await.ok(200);
    let mount = json!({ "supported": true, "transports": ["stdio", "streamable-http"] });
    assert_eq!(
        document["mcp"],
        json!({ "supported": false, "serverMount": mount })
    );
    assert_eq!(document["supportedTransports"], json!(["rest", "mcp", "a2a"]));
}

/// Nobody can start a run of the workflow by which a model calls a tool.
#[tokio::test]
async fn lists_have_only_workflows_that_callers_can_start() {
    let server = Server::start_with(|config| {
        let url = "https://example.com/mcp".parse().unwrap();
        config.mcp.servers.push(ToolServer::at("default", url));
    })
    .await;
    let listed = server.get("/v1/workflows").send().await.ok(200);
    let listed = listed["workflows"].as_array().unwrap();
    let is_listed = |id: &str| listed.iter().any(|workflow| workflow["workflowId"] == id);
    assert!(
        is_listed("conformance-noop") && !is_listed("host-mcp-tool"),
        "{listed:#?}"
    );
    server
        .post("/v1/runs", &json!({ "workflowId": "host-mcp-tool" }))
        .send()
        .await
        .error(400, "validation_error");
    // A tenant that had one could do the work that others give to an agent.
    for id in ["host-agent-acme", "host-mcp-tool", "host-x"] {
        let own = chain(id, &[node("only", "core.noop", json!({}))]);
        let refused = server.post("/v1/workflows", &own).send().await;
        refused.error(400, "validation_error");
    }
}

#[tokio::test]
async fn profile_of_a2a_0_3_requires_a_card_that_its_clients_can_read() {
    let server = Server::start_with(|config| config.a2a.card_version = "1.0".parse().unwrap()).await;
    let document = server.call("GET", "/.well-known/openwop").send().await.ok(200);
    assert_eq!(document["a2a"]["profiles"], json!(["a2a-1.0"]));
    // The version is served all the same.
    assert_eq!(document["a2a"]["protocolVersions"], json!(["1.0", "0.3"]));
}

#[tokio::test]
async fn a_fixture_of_a_tenant_is_not_advertised() {
    let server = Server::start().await;
    let before = server.call("GET", "/.well-known/openwop").send().await;
    let mut fixture = crate::workflows::all().remove(0);
    fixture["id"] = json!("conformance-more");
    let other = server
        .call("POST", "/v1/workflows")
        .key(crate::server::BOB)
        .json(&fixture);
    other.send().await.ok(201);
    // Fixtures of a tenant must not be visible to others.
    let after = server.call("GET", "/.well-known/openwop").send().await;
    assert_eq!(before.json()["fixtures"], after.json()["fixtures"]);
}

#[tokio::test]
async fn fixture_is_advertised_only_with_its_requirements() {
    let folder = tempfile::tempdir().unwrap();
    for (id, metadata) in [
        (
            "conformance-met",
            json!({ "requiresCapability": "capabilities.subWorkflow.inputMapping" }),
        ),
        (
            "conformance-unmet",
            json!({ "requiresCapability": "capabilities.agents.memory" }),
        ),
        (
            "conformance-level",
            json!({ "requiresCapability": "capabilities.multiAgent.executionModel.version-9" }),
        ),
        (
            "conformance-pack",
            json!({ "requiresInstalledPack": "core.pack" }),
        ),
        ("another", json!({})),
    ] {
        let mut definition = crate::workflows::all().remove(0);
        definition["id"] = json!(id);
        definition["metadata"] = metadata;
        std::fs::write(folder.path().join(format!("{id}.json")), definition.to_string()).unwrap();
    }
    let server = Server::start_with(|config| config.workflows = vec![folder.path().to_owned()]).await;
    let document = server.call("GET", "/.well-known/openwop").send().await.ok(200);
    assert_eq!(document["fixtures"], json!(["conformance-met"]));
}

#[tokio::test]
async fn fixture_with_ignored_fields_is_not_advertised() {
    let folder = tempfile::tempdir().unwrap();
    let whole = crate::workflows::all().remove(0);
    for (id, field, value) in [
        ("conformance-plain", "notes", json!("does what it says")),
        (
            "conformance-pinned",
            "agent",
            json!({ "agentId": "core.conformance.agent" }),
        ),
        (
            "conformance-remembers",
            "config",
            json!({ "memoryAction": "write-then-read" }),
        ),
        ("conformance-version-fold", "notes", json!("forces versions")),
    ] {
        let mut definition = whole.clone();
        definition["id"] = json!(id);
        definition["nodes"][0][field] = value;
        std::fs::write(folder.path().join(format!("{id}.json")), definition.to_string()).unwrap();
    }
    let server = Server::start_with(|config| config.workflows = vec![folder.path().to_owned()]).await;
    let document = server.call("GET", "/.well-known/openwop").send().await.ok(200);
    assert_eq!(
        document["fixtures"],
        json!(["conformance-pinned", "conformance-plain"])
    );
}

#[tokio::test]
async fn openapi_document_describes_the_responses() {
    let server = Server::start().await;
    let document = server.call("GET", "/v1/openapi.json").send().await.ok(200);
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["servers"][0]["url"], server.host.public_url());
    let run = server.run("approval", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    let letter = server.run("letter", json!({ "name": "Ada" })).await;
    server.wait_for(&letter, "completed").await;
    let failed = server.run("fails", json!({})).await;
    server.wait_for(&failed, "failed").await;
    let delayed = server.run("delay", json!({})).await;
    let parent = server.run("parent", json!({})).await;
    server.wait_for(&parent, "waiting-approval").await;
    let token = server.snapshot(&parent).await["interrupt"]["interruptToken"].clone();
    let token = token.as_str().unwrap();
    let known = server.get("/v1/workflows/approval").send().await.ok(200);
    let answered = json!({ "resumeValue": { "action": "accept" } });
    let create = json!({ "workflowId": "conformance-noop" });
    let key = json!({ "scopes": [], "id": "k", "roles": ["editor"], "groups": ["press"] });
    let rows: [(&str, &str, String, Option<&Value>); 25] = [
        ("get", "/.well-known/openwop", "/.well-known/openwop".into(), None),
        ("get", "/healthz", "/healthz".into(), None),
        ("get", "/readyz", "/readyz".into(), None),
        ("get", "/v1/workflows", "/v1/workflows".into(), None),
        (
            "get",
            "/v1/workflows/{workflowId}",
            "/v1/workflows/approval".into(),
            None,
        ),
        ("post", "/v1/workflows", "/v1/workflows".into(), Some(&known)),
        ("post", "/v1/workflows", "/v1/workflows".into(), Some(&known)),
        ("post", "/v1/runs", "/v1/runs".into(), Some(&create)),
        ("get", "/v1/runs", "/v1/runs?limit=2".into(), None),
        ("get", "/v1/runs/{runId}", format!("/v1/runs/{run}"), None),
        ("get", "/v1/runs/{runId}", format!("/v1/runs/{failed}"), None),
        ("get", "/v1/runs/{runId}", format!("/v1/runs/{parent}"), None),
        ("get", "/v1/runs/{runId}", format!("/v1/runs/{letter}"), None),
        (
            "get",
            "/v1/runs/{runId}/events/poll",
            format!("/v1/runs/{run}/events/poll"),
            None,
        ),
        ("get", "/v1/interrupts", "/v1/interrupts".into(), None),
        (
            "get",
            "/v1/runs/{runId}/artifacts",
            format!("/v1/runs/{letter}/artifacts"),
            None,
        ),
        (
            "get",
            "/v1/runs/{runId}/artifacts/{artifactId}",
            format!("/v1/runs/{letter}/artifacts/write-0"),
            None,
        ),
        (
            "post",
            "/v1/host/wopr/keys",
            "/v1/host/wopr/keys".into(),
            Some(&key),
        ),
        ("get", "/v1/host/wopr/keys", "/v1/host/wopr/keys".into(), None),
        (
            "get",
            "/v1/a2a/tasks/{taskId}",
            format!("/v1/a2a/tasks/{run}"),
            None,
        ),
        (
            "post",
            "/v1/runs/{runId}:pause",
            format!("/v1/runs/{delayed}:pause"),
            None,
        ),
        (
            "post",
            "/v1/runs/{runId}:resume",
            format!("/v1/runs/{delayed}:resume"),
            None,
        ),
        (
            "post",
            "/v1/runs/{runId}/cancel",
            format!("/v1/runs/{run}/cancel"),
            None,
        ),
        (
            "get",
            "/v1/interrupts/{token}",
            format!("/v1/interrupts/{token}"),
            None,
        ),
        (
            "post",
            "/v1/interrupts/{token}",
            format!("/v1/interrupts/{token}"),
            Some(&answered),
        ),
    ];
    for (method, template, path, body) in rows {
        let mut call = server.call(&method.to_uppercase(), &path).key(ALICE);
        if let Some(body) = body {
            call = call.json(body);
        }
        let reply = call.send().await;
        let answers = &document["paths"][template][method]["responses"];
        let answer = &answers[reply.status.to_string()];
        assert!(
            answer.is_object(),
            "{method} {path}: {} is described",
            reply.status
        );
        let mut schema = answer["content"]["application/json"]["schema"].clone();
        schema["components"] = document["components"].clone();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<_> = validator
            .iter_errors(&reply.json())
            .map(|e| e.to_string())
            .collect();
        assert!(errors.is_empty(), "{method} {path}: {errors:?}\n{}", reply.json());
    }
    for (method, template, name, is_not_modified) in [
        ("post", "/v1/workflows", "Idempotency-Key", false),
        ("post", "/v1/interrupts/{token}", "Idempotency-Key", false),
        ("get", "/v1/workflows/{workflowId}", "If-None-Match", true),
    ] {
        let operation = &document["paths"][template][method];
        let names: Vec<_> = operation["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| &one["name"])
            .collect();
        assert!(names.contains(&&json!(name)), "{method} {template}: {names:?}");
        assert_eq!(operation["responses"]["304"].is_object(), is_not_modified);
    }
    let envelope = server.get("/v1/runs/x").send().await;
    let mut schema = json!({ "$ref": "#/components/schemas/ErrorEnvelope" });
    schema["components"] = document["components"].clone();
    assert!(
        jsonschema::validator_for(&schema)
            .unwrap()
            .is_valid(&envelope.json())
    );
}

/// The published schemas, if they are checked out next to the project.
fn published(name: &str) -> Option<Value> {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/fixtures/openwop/schemas/v1"
    );
    let text = std::fs::read(format!("{folder}/{name}.schema.json")).ok()?;
    serde_json::from_slice(&text).ok()
}

#[tokio::test]
async fn our_documents_follow_the_published_schemas() {
    let server = Server::start_with(|config| {
        let url = "https://example.com/mcp".parse().unwrap();
        config.mcp.servers.push(ToolServer::at("default", url));
    })
    .await;
    let mut discovery = server.call("GET", "/.well-known/openwop").send().await.ok(200);
    // The stored schema is closed and older than RFC 0152.
    for a2a in ["/a2a", "/capabilities/a2a"] {
        let a2a = discovery.pointer_mut(a2a).unwrap().as_object_mut().unwrap();
        a2a.remove("protocolVersions");
        a2a.remove("preferredVersion");
        a2a.remove("profiles");
    }
    check("capabilities", &discovery);
    for workflow in ["approval", "letter", "fails", "ask", "order", "secret", "parent"] {
        let run = server.run(workflow, json!({ "name": "Ada" })).await;
        let snapshot = server.snapshot(&run).await;
        check("run-snapshot", &snapshot);
        let poll = server
            .get(&format!("/v1/runs/{run}/events/poll"))
            .send()
            .await
            .ok(200);
        for event in poll["events"].as_array().unwrap() {
            if !event["type"].as_str().unwrap().starts_with("vendor.") {
                check("run-event", event);
            }
        }
        check(
            "a2a-task-state",
            &server.get(&format!("/v1/a2a/tasks/{run}")).send().await.ok(200),
        );
    }
    check("error-envelope", &server.get("/v1/runs/x").send().await.json());
}

/// Removes references to other documents: agents, prompts and packs are not ours.
fn cut_off_references(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            let leads_out = |target: &Value| target.as_str().is_some_and(|target| !target.starts_with('#'));
            if members.get("$ref").is_some_and(leads_out) {
                members.remove("$ref");
            }
            members.values_mut().for_each(cut_off_references);
        }
        Value::Array(items) => items.iter_mut().for_each(cut_off_references),
        _ => {}
    }
}

fn check(name: &str, document: &Value) {
    let Some(mut schema) = published(name) else {
        // Not next to the project: nothing to compare with.
        return;
    };
    cut_off_references(&mut schema);
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<_> = validator.iter_errors(document).map(|e| e.to_string()).collect();
    assert!(errors.is_empty(), "{name}: {errors:?}\n{document:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_whose_store_takes_no_writes_is_not_ready() {
    let server = Server::start_on_sqlite().await;
    // Another connection locks out the writer; reads still work.
    let holder = rusqlite::Connection::open(server.database()).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = server.call("GET", "/readyz").send().await;
    refused.error(503, "service_unavailable");
    server.get("/v1/runs").send().await.ok(200);
    holder.execute_batch("ROLLBACK").unwrap();
    server.call("GET", "/readyz").send().await.ok(200);
    server.stop().await;
}

#[tokio::test]
async fn a_host_whose_database_is_damaged_is_not_ready() {
    let server = Server::start_on_sqlite().await;
    server.call("GET", "/readyz").send().await.ok(200);
    let raw = rusqlite::Connection::open(server.database()).unwrap();
    raw.execute_batch("DROP TABLE events").unwrap();
    // A readiness result is cached for a second.
    let asked = Instant::now();
    while server.call("GET", "/readyz").send().await.status != 503 {
        assert!(asked.elapsed() < Duration::from_secs(20), "it is never said");
        tokio::task::yield_now().await;
    }
    let refused = server.call("GET", "/readyz").send().await;
    refused.error(503, "service_unavailable");
    server.stop().await;
}

#[tokio::test]
async fn operators_see_health_and_counters() {
    let server = Server::start_on_sqlite().await;
    let run = server.run("conformance-noop", json!({})).await;
    server.wait_for(&run, "completed").await;
    server.call("GET", "/healthz").send().await.ok(200);
    server.call("GET", "/readyz").send().await.ok(200);
    let metrics = server.call("GET", "/metrics").send().await;
    assert!(
        metrics
            .header("content-type")
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    let text = String::from_utf8(metrics.body).unwrap();
    for line in [
        "wopr_http_requests_total{method=\"POST\",route=\"/v1/runs\",status=\"201\"} 1",
        "openwop_run_created_total 1",
        "openwop_run_completed_total{openwop_run_status=\"completed\"} 1",
        "wopr_appends_total 1",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}\n{text}");
    }
    assert!(text.contains("wopr_store_groups_total"));
    assert!(!text.contains(&run), "ids are never labels");
    server.stop().await;
}

#[tokio::test]
async fn invalid_workflow_file_is_skipped_and_listed() {
    let server = Server::start().await;
    let [rejected] = server.host.rejected() else {
        panic!("one file is broken");
    };
    assert!(rejected.file.ends_with("broken.json"));
    assert!(
        rejected.problems[0].contains("node 'x'"),
        "{:?}",
        rejected.problems
    );
}

#[tokio::test]
async fn files_beyond_the_workflow_limit_are_skipped() {
    let server = Server::start_with(|config| config.limits.max_workflows = 3).await;
    let rejected = server.host.rejected();
    assert!(rejected.len() > 2, "{rejected:?}");
    let n_beyond = rejected
        .iter()
        .filter(|file| file.problems[0].contains("limits.max_workflows"))
        .count();
    // The other file is broken.
    assert_eq!(n_beyond, rejected.len() - 1);
    let list = server.get("/v1/workflows").send().await.ok(200);
    assert_eq!(list["workflows"].as_array().unwrap().len(), 3);
    server.stop().await;
}

#[tokio::test]
async fn registration_beyond_the_tenant_limits_is_a_conflict() {
    let server = Server::start_with(|config| config.limits.max_workflow_bytes = 1 << 20).await;
    let large = |id: &str| {
        let mut document = chain(id, &[node("n", "core.noop", json!({}))]);
        document["description"] = "x".repeat(300 << 10).into();
        document
    };
    server
        .post("/v1/workflows", &large("large-1"))
        .send()
        .await
        .ok(201);
    let reply = server.post("/v1/workflows", &large("large-2")).send().await;
    let refused = reply.error(409, "conflict");
    assert_eq!(refused["maxWorkflowBytes"], 1 << 20);
    server
        .get("/v1/workflows/large-2")
        .send()
        .await
        .error(404, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn a_host_without_keys_does_not_start() {
    let mut config = crate::server::config();
    config.auth.keys.clear();
    let error = wopr_server::Host::open(config).await.unwrap_err();
    assert!(error.to_string().contains("WOPR_API_KEY"), "{error}");
    let mut config = crate::server::config();
    // Nothing listens on the reserved port 1.
    config.store = "postgres://ada:hunter2@127.0.0.1:1/x".parse().unwrap();
    let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    config.secrets.master_key = Some(wopr_server::config::Secret::new(key));
    let error = wopr_server::Host::open(config).await.unwrap_err();
    assert!(matches!(error, wopr_server::StartError::Postgres(_)), "{error:?}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
}
