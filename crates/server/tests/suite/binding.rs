//! An answer over REST is for the question its caller saw.

use serde_json::{Value, json};

use crate::{
    client::Reply,
    server::{ADAM, ALICE, Server},
};

async fn begin(server: &Server) -> String {
    let run = server.run("asks-again", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    run
}

async fn answer(server: &Server, key: &str, run: &str, action: &str, interrupt: Option<&str>) -> Reply {
    let mut body = json!({ "resumeValue": { "action": action } });
    if let Some(interrupt) = interrupt {
        body["interruptId"] = json!(interrupt);
    }
    let path = format!("/v1/runs/{run}/interrupts/gate");
    server.call("POST", &path).key(key).json(&body).send().await
}

#[tokio::test]
async fn an_answer_by_node_is_for_the_question_it_names() {
    let server = Server::start().await;
    let run = begin(&server).await;
    let other = answer(&server, ALICE, &run, "accept", Some("gate:1")).await;
    other.error(404, "interrupt_not_found");
    let other = answer(&server, ALICE, &run, "accept", Some("other:0")).await;
    other.error(404, "interrupt_not_found");
    answer(&server, ADAM, &run, "reject", Some("gate:0"))
        .await
        .ok(200);
    let late = answer(&server, ALICE, &run, "accept", Some("gate:0")).await;
    late.error(409, "interrupt_already_resolved");
    assert_eq!(server.snapshot(&run).await["interrupt"]["interruptId"], "gate:1");
    let path = format!("/v1/runs/{run}/approvals/gate");
    let plain = |id: Value| json!({ "action": "accept", "interruptId": id });
    server
        .post(&path, &plain(json!("gate:0")))
        .send()
        .await
        .error(409, "interrupt_already_resolved");
    server
        .post(&path, &plain(json!(1)))
        .send()
        .await
        .error(400, "validation_error");
    let done = server.post(&path, &plain(json!("gate:1"))).send().await.ok(200);
    assert_eq!(done["status"], "completed");
}

#[tokio::test]
async fn an_answer_to_a_question_that_somebody_else_settled_is_refused() {
    let server = Server::start().await;
    let run = begin(&server).await;
    // Alice has seen gate:0; Adam rejects it, and the gate asks again.
    answer(&server, ADAM, &run, "reject", None).await.ok(200);
    let refused = answer(&server, ALICE, &run, "accept", None).await;
    assert_eq!(refused.error(409, "interrupt_changed")["interruptId"], "gate:1");
    assert_eq!(server.snapshot(&run).await["status"], "waiting-approval");
    // Now she has seen gate:1. Her own answers do not count as somebody else's.
    answer(&server, ALICE, &run, "reject", None).await.ok(200);
    let done = answer(&server, ALICE, &run, "accept", None).await.ok(200);
    assert_eq!(done["status"], "completed");
    answer(&server, ADAM, &run, "accept", None)
        .await
        .error(409, "interrupt_already_resolved");
}

#[tokio::test]
async fn a_child_is_answered_through_its_parent_by_the_id_the_parent_shows() {
    let server = Server::start().await;
    let run = server.run("two-children", json!({})).await;
    let mut snapshot = server.wait_for(&run, "waiting-approval").await;
    while snapshot["interrupts"].as_array().unwrap().len() < 3 {
        tokio::task::yield_now().await;
        snapshot = server.snapshot(&run).await;
    }
    let call = |node: &str, interrupt: &str| {
        let body = json!({ "resumeValue": { "action": "accept" }, "interruptId": interrupt });
        server.post(&format!("/v1/runs/{run}/interrupts/{node}"), &body)
    };
    for interrupt in [
        "right:0/gate:0",
        "gate:0",
        "left:1/gate:0",
        "left:0/gate:1",
        "left:0/",
    ] {
        let refused = call("left", interrupt).send().await;
        refused.error(404, "interrupt_not_found");
    }
    call("left", "left:0/gate:0").send().await.ok(200);
    let late = call("left", "left:0/gate:0").send().await;
    late.error(409, "interrupt_already_resolved");
    let token = |node: &str| {
        let open = snapshot["interrupts"].as_array().unwrap().iter();
        let mut open = open.filter(|open| open["nodeId"] == node);
        open.next().unwrap()["interruptToken"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let path = format!("/v1/interrupts/{}", token("right"));
    let by_token = |interrupt: &str| {
        let body = json!({ "resumeValue": { "action": "accept" }, "interruptId": interrupt });
        server.call("POST", &path).json(&body)
    };
    by_token("left:0/other:0")
        .send()
        .await
        .error(404, "interrupt_not_found");
    by_token("right:0/gate:0").send().await.ok(200);
}
