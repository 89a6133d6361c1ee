//! Workflows and keys registered on one replica are known to the other.

use std::sync::Arc;

use futures_util::{FutureExt as _, StreamExt as _};
use http::StatusCode;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use wopr_core::{RunKey, RunStatus, WorkflowId};
use wopr_engine::SideRows;
use wopr_server::{Body, Faces, Host};

use crate::harness::*;

by_hints_and_by_polling!(
    a_new_version_becomes_current_on_the_other_replica,
    a_revoked_key_opens_the_other_host_no_more,
    a_stream_ends_when_its_key_is_revoked_on_the_other_host,
    what_one_host_is_given_the_other_advertises,
    a_removed_workflow_is_not_started_on_the_other_host,
);

fn noop(id: &str, version: &str) -> Value {
    let mut workflow = workflow(id, &[node("only", "core.noop", json!({}))]);
    workflow["version"] = json!(version);
    workflow
}

async fn a_new_version_becomes_current_on_the_other_replica(news: News) {
    let url = schema().await;
    let (executor, _attempts) = steered();
    let a = replica(&url, news, executor.clone()).await;
    let b = replica(&url, news, executor).await;
    let mut wanted = a.register(None, noop("greet", "1")).await.unwrap().plan;
    // B knows it from its first run on.
    let created = create(&b, "greet").await;
    assert_eq!(created.plan.version(), wanted.version());
    for version in ["2", "3", "1"] {
        wanted = a.register(None, noop("greet", version)).await.unwrap().plan;
        while create(&b, "greet").await.plan.version() != wanted.version() {}
    }
    // A tenant's own workflow takes precedence over the shared one, on B too.
    let own = a
        .register(Some(&tenant()), noop("greet", "own"))
        .await
        .unwrap()
        .plan;
    while create(&b, "greet").await.plan.version() != own.version() {}
    assert_ne!(own.version(), wanted.version());
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_workflow_is_looked_up_in_the_store() {
    let url = schema().await;
    let (executor, _attempts) = steered();
    let a = replica(&url, News::Looking, executor.clone()).await;
    let b = replica(&url, News::Looking, executor).await;
    let id = WorkflowId::parse("greet").unwrap();
    assert!(b.find_workflow(&tenant(), &id).await.unwrap().is_none());
    a.register(None, noop("greet", "1")).await.unwrap();
    create(&b, "greet").await;
    // As a child too: B knows the parent but not the child yet.
    let [.., parent] = workflows();
    b.register(None, parent).await.unwrap();
    let [approve, ..] = workflows();
    a.register(None, approve).await.unwrap();
    assert!(
        b.workflow(&tenant(), &WorkflowId::parse("approve").unwrap())
            .is_none()
    );
    let parent = create(&b, "parent").await.key;
    assert_eq!(b.view(&parent).await.unwrap().unwrap().run.children.len(), 1);
    b.stop().await;
    a.stop().await;
}

async fn two_hosts(news: News) -> (Arc<Host>, Arc<Host>) {
    let url = news.url(&schema().await);
    let mut config = config(&url);
    config.conformance = true;
    let a = Host::open(config.clone()).await.unwrap();
    let b = Host::open(config).await.unwrap();
    (a, b)
}

async fn make_key(host: &Arc<Host>, id: &str) -> String {
    let body = json!({ "id": id, "scopes": ["runs:read"] });
    let (status, _, key) = ask(host, "POST", "/v1/host/wopr/keys", ALICE, Some(body)).await;
    assert_eq!(status, StatusCode::CREATED, "{key}");
    key["secret"].as_str().unwrap().to_owned()
}

async fn revoke_key(host: &Arc<Host>, id: &str) {
    let path = format!("/v1/host/wopr/keys/{id}");
    let (status, ..) = ask(host, "DELETE", &path, ALICE, None).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
}

async fn a_revoked_key_opens_the_other_host_no_more(news: News) {
    let (a, b) = two_hosts(news).await;
    for name in ["first", "second"] {
        let secret = make_key(&a, name).await;
        // Created on A and known on B from the first request, however many arrive concurrently.
        let many = (0..20).map(|_| ask(&b, "GET", "/v1/runs", &secret, None));
        for (status, ..) in futures_util::future::join_all(many).await {
            assert_eq!(status, StatusCode::OK);
        }
        revoke_key(&a, name).await;
        let (status, ..) = ask(&a, "GET", "/v1/runs", &secret, None).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        let refused = loop {
            let (status, _, answer) = ask(&b, "GET", "/v1/runs", &secret, None).await;
            if status == StatusCode::UNAUTHORIZED {
                break answer;
            }
        };
        assert_eq!(refused["error"], "key_revoked", "{refused}");
    }
    a.close().await;
    b.close().await;
}

async fn a_stream_ends_when_its_key_is_revoked_on_the_other_host(news: News) {
    let (a, b) = two_hosts(news).await;
    register(&[a.engine()]).await;
    let run = create(a.engine(), "approve").await.key.run;
    let open = async |secret: &str| {
        let request = http::Request::get(format!("/v1/runs/{run}/events"))
            .header("authorization", format!("Bearer {secret}"))
            .header("accept", "text/event-stream");
        let answer = Faces::new(&b).answer(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let mut body = answer.into_body().into_data_stream();
        body.next().await.unwrap().unwrap();
        body
    };
    let mut ends = open(&make_key(&a, "ends").await).await;
    let mut stays = open(&make_key(&a, "stays").await).await;
    revoke_key(&a, "ends").await;
    while ends.next().await.is_some() {}
    // The other stream continues to the end of its run; events of before may still arrive.
    while let Some(item) = stays.next().now_or_never() {
        assert!(item.is_some());
    }
    a.engine()
        .command(&RunKey::new(tenant(), run.clone()), accept(), SideRows::default())
        .await
        .unwrap();
    while stays.next().await.is_some() {}
    a.close().await;
    b.close().await;
}

async fn what_one_host_is_given_the_other_advertises(news: News) {
    let (a, b) = two_hosts(news).await;
    let document = noop("conformance-greet", "1");
    let (status, _, answer) = ask(&a, "POST", "/v1/workflows", ALICE, Some(document)).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let (status, ..) = ask(&b, "GET", "/v1/workflows/conformance-greet", ALICE, None).await;
    assert_eq!(status, StatusCode::OK, "looked for when it is asked for");
    let body = json!({ "workflowId": "conformance-greet" });
    let (status, _, run) = ask(&b, "POST", "/v1/runs", ALICE, Some(body)).await;
    assert_eq!(status, StatusCode::CREATED, "{run}");

    // The public discovery document lists shared workflows.
    let shared = a.engine().register(None, noop("conformance-shared", "1")).await;
    assert!(shared.unwrap().is_new);
    loop {
        let (_, _, discovery) = ask(&b, "GET", "/.well-known/openwop", ALICE, None).await;
        let (_, _, card) = ask(&b, "GET", "/.well-known/agent-card.json", ALICE, None).await;
        let is_listed = discovery["fixtures"]
            .as_array()
            .unwrap()
            .contains(&json!("conformance-shared"));
        let is_skill =
            (card["skills"].as_array().unwrap().iter()).any(|skill| skill["id"] == "conformance-shared");
        if is_listed && is_skill {
            break;
        }
    }
    let run = create(b.engine(), "conformance-shared").await;
    assert_eq!(run.run.status, RunStatus::Completed);
    a.close().await;
    b.close().await;
}

async fn a_removed_workflow_is_not_started_on_the_other_host(news: News) {
    let (a, b) = two_hosts(news).await;
    let body = json!({ "workflowId": "conformance-greet" });
    for _ in 0..2 {
        let document = noop("conformance-greet", "1");
        let (status, _, answer) = ask(&a, "POST", "/v1/workflows", ALICE, Some(document)).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
        let (status, _, run) = ask(&b, "POST", "/v1/runs", ALICE, Some(body.clone())).await;
        assert_eq!(status, StatusCode::CREATED, "{run}");
        let path = "/v1/host/wopr/workflows/conformance-greet";
        let (status, ..) = ask(&a, "DELETE", path, ALICE, None).await;
        assert_eq!(status, StatusCode::NO_CONTENT);
        loop {
            let (status, ..) = ask(&b, "POST", "/v1/runs", ALICE, Some(body.clone())).await;
            if status != StatusCode::CREATED {
                assert_eq!(status, StatusCode::NOT_FOUND);
                break;
            }
        }
        let (status, ..) = ask(&b, "GET", "/v1/workflows/conformance-greet", ALICE, None).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        let (status, ..) = ask(&b, "DELETE", path, ALICE, None).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        // Its run is read where nothing is left in memory of the workflow, too.
        let path = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
        let (status, _, answer) = ask(&a, "GET", &path, ALICE, None).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    a.close().await;
    b.close().await;
}
