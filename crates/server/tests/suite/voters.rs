//! Votes in the name of another principal: `voter` beside `action`, in answers to approvals and nowhere else.
//!
//! All bindings of A2A are tested with those of A2A.

use serde_json::{Value, json};
use wopr_server::auth::Scopes;

use crate::{
    awp_control::{document, start},
    client::Reply,
    server::{ALICE, Server, key},
    workflows::{chain, node},
};

/// May answer, but not in the name of others.
const VOTER: &str = "voter-secret-0123456789";

/// A host of which Alice manages the keys, with an approval that asks the role `legal`, which only Lea has.
async fn host() -> Server {
    let server = Server::start_with(|config| {
        config.conformance = false;
        // The name by which the client of these tests calls the host, which MCP asks for.
        config.server.public_url = Some("http://test".parse().unwrap());
        let scopes = Scopes::parse(&["runs:read", "approvals:respond"]).unwrap();
        let mut lea = key("lea", "lea-secret-0123456789", "acme", scopes);
        lea.roles = vec!["legal".to_owned()];
        config.auth.keys.extend([key("vera", VOTER, "acme", scopes), lea]);
    })
    .await;
    let gate =
        json!({ "approverRoleRefs": ["legal"], "requiredApprovals": 2, "actions": ["accept", "reject"] });
    let gate = chain("by-legal", &[node("gate", "core.approvalGate", gate)]);
    server.post("/v1/workflows", &gate).send().await.ok(201);
    server
}

fn for_lea() -> Value {
    json!({ "action": "accept", "voter": "lea" })
}

async fn rest(server: &Server, key: &str, path: &str, body: &Value) -> Reply {
    server.call("POST", path).key(key).json(body).send().await
}

/// The result of a tool call over MCP, or its error.
async fn tool(server: &Server, key: &str, name: &str, arguments: Value) -> Result<Value, Value> {
    let params = json!({ "name": name, "arguments": arguments });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let sent = server.call("POST", "/mcp").key(key).json(&body);
    let sent = sent.header("accept", "application/json, text/event-stream");
    let result = sent.send().await.ok(200)["result"].clone();
    match result["isError"] == true {
        true => Err(result),
        false => Ok(result),
    }
}

/// The votes in a log: each with the voter, and the caller who voted for them.
async fn votes(server: &Server, run: &str) -> Vec<(Value, Value)> {
    let path = format!("/v1/runs/{run}/events");
    let log = server
        .get(&path)
        .header("accept", "application/json")
        .send()
        .await;
    let log = log.ok(200);
    let events = log["events"].as_array().unwrap().iter();
    events
        .filter(|event| event["type"] == "vendor.wopr.approval.voted")
        .map(|event| {
            let payload = &event["payload"];
            (payload["voter"].clone(), payload["actingPrincipal"].clone())
        })
        .collect()
}

async fn check_votes(server: &Server, run: &str, face: &str) {
    let wanted = [(json!("lea"), json!("alice"))];
    assert_eq!(votes(server, run).await, wanted, "{face}");
}

#[tokio::test]
async fn a_vote_for_another_principal_needs_the_scope_to_manage_keys() {
    let server = host().await;
    for face in ["interrupts", "approvals", "wopr_answer"] {
        let run = server.run("by-legal", json!({})).await;
        server.wait_for(&run, "waiting-approval").await;
        let path = format!("/v1/runs/{run}/{face}/gate");
        let body = match face {
            "interrupts" => json!({ "resumeValue": for_lea() }),
            _ => for_lea(),
        };
        let arguments = json!({ "runId": run, "nodeId": "gate", "value": for_lea() });
        if face == "wopr_answer" {
            let refused = tool(&server, VOTER, face, arguments.clone()).await.unwrap_err();
            assert!(refused.to_string().contains("keys:manage"), "{refused}");
        } else {
            let refused = rest(&server, VOTER, &path, &body).await;
            assert_eq!(refused.error(403, "forbidden")["scopeRequired"], "keys:manage");
        }
        assert_eq!(votes(&server, &run).await, [], "{face}");
        if face == "wopr_answer" {
            tool(&server, ALICE, face, arguments).await.unwrap();
        } else {
            rest(&server, ALICE, &path, &body).await.ok(200);
        }
        check_votes(&server, &run, face).await;
        // Alice herself has not got the role that Lea has.
        let own = json!({ "resumeValue": { "action": "accept", "voter": "alice" } });
        let path = format!("/v1/runs/{run}/interrupts/gate");
        rest(&server, ALICE, &path, &own).await.error(403, "forbidden");
        let wrong = json!({ "resumeValue": { "action": "accept", "voter": 5 } });
        rest(&server, ALICE, &path, &wrong)
            .await
            .error(400, "validation_error");
    }
}

#[tokio::test]
async fn a_vote_for_another_principal_counts_for_a_child_of_an_execution() {
    let server = host().await;
    let sub = json!({ "id": "sub", "type": "subworkflow",
        "config": { "workflow_ref": "by-legal", "input_mapping": {} } });
    let parent = document("asks-legal", &[sub]);
    for (id, is_named) in [("plain", false), ("named", true)] {
        for is_rest in [true, false] {
            let id = format!("{id}-{is_rest}");
            let started = start(&server, &parent, json!({ "execution_id": id }))
                .await
                .ok(200);
            assert_eq!(started["status"], "interrupted", "{started}");
            let path = format!("/awp/v1/executions/{id}");
            let mut body = json!({ "definition": parent, "resume_payload": for_lea() });
            if is_named {
                body["interrupt_id"] = started["interrupt_id"].clone();
            }
            let by = async |key: &'static str| {
                // An answer is for a question that its sender has seen.
                server.call("GET", &path).key(key).send().await.ok(200);
                if is_rest {
                    let reply = rest(&server, key, &format!("{path}:resume"), &body).await;
                    return (reply.status == 200, reply.json());
                }
                let mut arguments = body.clone();
                arguments["execution_id"] = json!(id);
                match tool(&server, key, "workflow_resume", arguments).await {
                    Ok(result) => (true, result),
                    Err(error) => (false, error["structuredContent"].clone()),
                }
            };
            let (is_taken, refused) = by(VOTER).await;
            assert!(!is_taken, "{refused}");
            assert_eq!(refused["error"]["code"], "AUTH_FORBIDDEN", "{refused}");
            assert!(refused.to_string().contains("keys:manage"), "{refused}");
            let (is_taken, answer) = by(ALICE).await;
            assert!(is_taken, "{answer}");
            let runs = server.get("/v1/runs?limit=10").send().await.ok(200);
            let child = runs["runs"].as_array().unwrap().iter();
            let mut child = child.filter(|run| run["workflowId"] == "by-legal");
            let child = child.next().unwrap()["runId"].as_str().unwrap();
            check_votes(&server, child, &id).await;
        }
    }
}

#[tokio::test]
async fn a_token_votes_for_its_holder_only() {
    let server = host().await;
    let run = server.run("by-legal", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    let mint = json!({ "runId": run, "nodeId": "gate", "principal": "lea" });
    let minted = server.post("/v1/host/wopr/interrupt-tokens", &mint).send().await;
    let minted = minted.ok(201);
    let path = format!("/v1/interrupts/{}", minted["interruptToken"].as_str().unwrap());
    let vote = |voter: &str| json!({ "resumeValue": { "action": "accept", "voter": voter } });
    // A key beside the token changes nothing.
    for call in [server.call("POST", &path), server.call("POST", &path).key(ALICE)] {
        let refused = call.json(&vote("bob")).send().await;
        refused.error(403, "forbidden");
    }
    assert_eq!(votes(&server, &run).await, []);
    let holder = server.call("POST", &path).json(&vote("lea")).send().await;
    holder.ok(200);
    assert_eq!(votes(&server, &run).await, [(json!("lea"), Value::Null)]);
}

/// Everybody may answer these with a member `voter`, which is kept.
#[tokio::test]
async fn a_member_voter_is_data_to_every_other_question() {
    let server = host().await;
    let custom = json!({
        "kind": "custom", "data": { "customKind": "ballot" },
        "resumeSchema": { "type": "object", "required": ["voter"], "properties": { "voter": { "type": "string" } } },
    });
    let event = json!({
        "kind": "external-event", "data": { "eventType": "cast", "correlation": { "poll": "p" } },
    });
    let ask = json!({ "questions": [{ "id": "q", "question": "Which?" }] });
    let talk = json!({ "prompt": "Well?" });
    for (id, node, value) in [
        (
            "event-question",
            node("gate", "core.interrupt", event),
            json!({ "poll": "p", "voter": "zed" }),
        ),
        (
            "custom-question",
            node("gate", "core.interrupt", custom),
            json!({ "voter": "zed" }),
        ),
        (
            "clarification",
            node("gate", "core.clarificationGate", ask),
            json!({ "answers": { "q": "blue" }, "voter": "zed" }),
        ),
        (
            "turn",
            node("gate", "core.conversationGate", talk),
            json!({ "voter": "zed" }),
        ),
    ] {
        let workflow = chain(id, &[node]);
        server.post("/v1/workflows", &workflow).send().await.ok(201);
        for face in ["interrupts", "named", "approvals", "token", "wopr_answer"] {
            let run = server.run(id, json!({})).await;
            let shown = server
                .wait_for_any(&run, &["waiting-approval", "waiting-input", "waiting-external"])
                .await;
            let (name, token) = (
                &shown["interrupt"]["interruptId"],
                &shown["interrupt"]["interruptToken"],
            );
            let body = json!({ "resumeValue": value });
            let path = format!("/v1/runs/{run}/interrupts/gate");
            match face {
                "interrupts" => rest(&server, VOTER, &path, &body).await.ok(200),
                "named" => {
                    let named = json!({ "resumeValue": value, "interruptId": name });
                    rest(&server, VOTER, &path, &named).await.ok(200)
                }
                "approvals" => {
                    let path = format!("/v1/runs/{run}/approvals/gate");
                    rest(&server, VOTER, &path, &value).await.ok(200)
                }
                "token" => {
                    let path = format!("/v1/interrupts/{}", token.as_str().unwrap());
                    server.call("POST", &path).json(&body).send().await.ok(200)
                }
                _ => {
                    let arguments = json!({ "runId": run, "nodeId": "gate", "value": value, "waitMs": 0 });
                    tool(&server, VOTER, face, arguments).await.unwrap()
                }
            };
            let log = server
                .get(&format!("/v1/runs/{run}/events"))
                .header("accept", "application/json");
            let log = log.send().await.ok(200).to_string();
            assert!(log.contains(r#""voter":"zed""#), "{id} {face}: {log}");
            assert!(!log.contains("actingPrincipal"), "{id} {face}: {log}");
        }
    }
}

/// The conformance suite has a single credential for all of its voters.
#[tokio::test]
async fn every_caller_votes_for_others_in_conformance_mode() {
    let scopes = Scopes::parse(&["runs:read", "approvals:respond"]).unwrap();
    let server = Server::start_with(|config| {
        config.auth.keys.push(key("vera", VOTER, "acme", scopes));
    })
    .await;
    let run = server.run("quorum", json!({})).await;
    let shown = server.wait_for(&run, "waiting-approval").await;
    let vote = |voter: &str| json!({ "resumeValue": { "action": "accept", "voter": voter } });
    let path = format!("/v1/runs/{run}/interrupts/gate");
    rest(&server, VOTER, &path, &vote("one")).await.ok(200);
    let token = shown["interrupt"]["interruptToken"].as_str().unwrap();
    let path = format!("/v1/interrupts/{token}");
    let done = server.call("POST", &path).json(&vote("two")).send().await;
    assert_eq!(done.ok(200)["status"], "completed");
    let voters: Vec<_> = votes(&server, &run)
        .await
        .into_iter()
        .map(|vote| vote.0)
        .collect();
    assert_eq!(voters, ["one", "two"]);

    // Only approvals have voters.
    let run = server.run("order", json!({})).await;
    let shown = server.wait_for(&run, "waiting-external").await;
    let token = shown["interrupt"]["interruptToken"].as_str().unwrap();
    let event = json!({ "resumeValue": { "orderId": "o-1", "voter": "no name" } });
    let path = format!("/v1/interrupts/{token}");
    server.call("POST", &path).json(&event).send().await.ok(200);
}
