//! Two tenants on one host: resources of another tenant appear not to exist.

use serde_json::json;

use crate::server::{ALICE, BOB, Server};

#[tokio::test]
async fn a_foreign_run_is_an_unknown_run_on_every_route() {
    let server = Server::start_on_sqlite().await;
    let run = server.run("approval", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    let unknown = format!("run_{}", "0".repeat(32));
    let mut tried = 0;
    for (method, path, _) in wopr_server::openwop::routes() {
        if !path.contains("{runId}") && !path.contains("{taskId}") {
            continue;
        }
        tried += 1;
        let fill = |run: &str| {
            path.replace("{runId}", run)
                .replace("{taskId}", run)
                .replace("{nodeId}", "gate")
                .replace("{artifactId}", "gate-0")
        };
        let body = if path.contains("interrupts") {
            json!({ "resumeValue": { "action": "accept" } })
        } else if path.contains("approvals") {
            json!({ "action": "accept" })
        } else {
            json!({})
        };
        let ask = |run: &str| {
            let call = server.call(method.as_str(), &fill(run)).key(BOB);
            if method == "POST" { call.json(&body) } else { call }
        };
        let (foreign, missing) = (ask(&run).send().await, ask(&unknown).send().await);
        assert_eq!(foreign.status, 404, "{method} {path}");
        assert_eq!(
            (foreign.status, &foreign.body),
            (missing.status, &missing.body),
            "{path}"
        );
        let names = |reply: &crate::client::Reply| {
            let mut names: Vec<_> = reply.headers.iter().map(|(name, _)| name.clone()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&foreign), names(&missing), "{path}");
    }
    assert!(tried >= 13, "{tried}");
    assert_eq!(server.snapshot(&run).await["status"], "waiting-approval");
    for path in ["/v1/runs", "/v1/interrupts"] {
        let list = server.call("GET", path).key(BOB).send().await.ok(200);
        let items = list.as_object().unwrap().values().next().unwrap();
        assert_eq!(*items, json!([]), "{path}");
    }
    let bulk = json!({ "runIds": [run, unknown] });
    let bulk = server
        .call("POST", "/v1/runs:bulk-cancel")
        .key(BOB)
        .json(&bulk)
        .send()
        .await
        .ok(200);
    assert_eq!(bulk["results"][0]["error"], bulk["results"][1]["error"]);
    server.stop().await;
}

#[tokio::test]
async fn a_tenant_sees_its_own_workflows_and_the_shared_ones() {
    let server = Server::start().await;
    let own = crate::workflows::chain("own", &[crate::workflows::node("a", "core.noop", json!({}))]);
    let registered = server.post("/v1/workflows", &own).send().await;
    assert_eq!(registered.ok(201)["workflowId"], "own");
    assert_eq!(server.post("/v1/workflows", &own).send().await.status, 200);
    let ids = |list: serde_json::Value| {
        let items = list["workflows"].as_array().unwrap().clone();
        items
            .iter()
            .map(|item| item["workflowId"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let alice = ids(server.get("/v1/workflows").send().await.ok(200));
    let bob = ids(server.call("GET", "/v1/workflows").key(BOB).send().await.ok(200));
    assert!(alice.contains(&"own".to_owned()) && alice.contains(&"approval".to_owned()));
    assert!(!bob.contains(&"own".to_owned()) && bob.contains(&"approval".to_owned()));
    let foreign = server.call("GET", "/v1/workflows/own").key(BOB).send().await;
    let missing = server.call("GET", "/v1/workflows/none").key(BOB).send().await;
    assert_eq!(foreign.body, missing.body);
    let run = json!({ "workflowId": "own" });
    server
        .call("POST", "/v1/runs")
        .key(BOB)
        .json(&run)
        .send()
        .await
        .error(404, "not_found");
    server
        .call("POST", "/v1/runs")
        .key(ALICE)
        .json(&run)
        .send()
        .await
        .ok(201);

    let mut bound = own.clone();
    bound["tenantId"] = json!("rival");
    server
        .post("/v1/workflows", &bound)
        .send()
        .await
        .error(403, "forbidden");
}

#[tokio::test]
async fn a_definition_has_versions() {
    let server = Server::start().await;
    let reply = server.get("/v1/workflows/approval").send().await;
    let tag = reply.header("etag").unwrap().to_owned();
    let version = reply.header("openwop-workflow-version").unwrap();
    assert_eq!(tag, format!("\"{version}\""));
    assert_eq!(reply.ok(200)["id"], "approval");
    let known = server
        .get("/v1/workflows/approval")
        .header("if-none-match", &tag)
        .send()
        .await;
    assert_eq!(known.status, 304);
    let mut changed = reply.json();
    changed["description"] = json!("another");
    server.post("/v1/workflows", &changed).send().await.ok(201);
    let now = server.get("/v1/workflows/approval").send().await;
    assert_ne!(now.header("etag"), Some(tag.as_str()));
    // A broken definition changes nothing, and each problem has its position.
    let broken = crate::workflows::chain("own", &[crate::workflows::node("a", "core.nope", json!({}))]);
    let details = server.post("/v1/workflows", &broken).send().await;
    let details = details.error(400, "validation_error");
    assert_eq!(details["problems"][0]["place"], "node 'a'");
    let alone = crate::workflows::chain("own", &[crate::workflows::node("d", "core.dispatch", json!({}))]);
    let details = server.post("/v1/workflows", &alone).send().await;
    let details = details.error(400, "validation_error");
    assert_eq!(details["problems"][0]["place"], "node 'd'");
}

#[tokio::test]
async fn task_record_has_its_own_route() {
    let server = Server::start().await;
    let run = server.run("approval", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    for path in ["/v1/a2a/tasks", "/v1/host/sample/a2a/tasks"] {
        let record = server.get(&format!("{path}/{run}")).send().await.ok(200);
        assert_eq!(record["taskId"], run);
        assert_eq!(record["state"], "input-required");
        assert_eq!(record["interruptKind"], "approval");
    }
    let plain = Server::start_with(|config| {
        config.conformance = false;
        config.a2a.private_tasks = true;
    })
    .await;
    let run = plain.run("approval", json!({})).await;
    let seam = plain
        .get(&format!("/v1/host/sample/a2a/tasks/{run}"))
        .send()
        .await;
    seam.error(404, "not_found");
    let path = format!("/v1/a2a/tasks/{run}");
    plain.get(&path).send().await.ok(200);
    let adam = plain.call("GET", &path).key(crate::server::ADAM).send().await;
    adam.error(404, "not_found");
}
