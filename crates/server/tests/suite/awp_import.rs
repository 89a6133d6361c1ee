//! Histories that are imported over REST: executions that go on, or nothing at all.

use serde_json::{Value, json};

use wopr_server::auth::Scopes;

use crate::{
    client::Reply,
    server::{BOB, READER, Server, key},
};

fn document() -> Value {
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "moves", "version": "1.0.0" },
        "state_schema": { "type": "object" },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "work", "type": "tool_call", "config": { "server": "s", "tool": "t" } },
            { "id": "nap", "type": "wait", "config": { "kind": "duration", "duration_ms": 1 } },
            { "id": "review", "type": "interrupt", "config": { "prompt": "Sure?", "resume_schema": { "type": "object" } } },
            { "id": "end", "type": "end" },
        ],
        "edges": [
            { "source": "__start__", "target": "start" }, { "source": "start", "target": "work" },
            { "source": "work", "target": "nap" }, { "source": "nap", "target": "review" },
            { "source": "review", "target": "end" },
        ],
    })
}

async fn post(server: &Server, path: &str, body: Value) -> Reply {
    server.post(&format!("/awp/v1{path}"), &body).send().await
}

async fn status(server: &Server, id: &str) -> Value {
    let path = format!("/awp/v1/executions/{id}");
    server.get(&path).send().await.ok(200)
}

async fn rows(server: &Server, id: &str) -> Vec<Value> {
    let path = format!("/awp/v1/executions/{id}/events?limit=1000");
    let page = server.get(&path).send().await.ok(200);
    page["events"].as_array().unwrap().clone()
}

/// Rows without the name of their execution.
fn unnamed(rows: &[Value]) -> Vec<Value> {
    let mut rows = rows.to_vec();
    for row in &mut rows {
        row["payload"].as_object_mut().unwrap().remove("executionId");
    }
    rows
}

/// Starts an execution that waits for its activity.
async fn started(server: &Server, id: &str) {
    let registered = post(server, "/workflows", json!({ "definition": document() })).await;
    assert!([201, 409].contains(&registered.status), "{}", registered.json());
    let body = json!({ "execution_id": id, "input": { "a": 1 }, "activity_execution_mode": "host_mediated" });
    let started = post(server, "/workflows/moves/executions", body).await.ok(200);
    assert_eq!(started["status"], "awaiting_activity");
}

async fn submit(server: &Server, id: &str) -> Value {
    let body = json!({
        "definition": document(), "input": { "a": 1 }, "node_id": "work",
        "outcome": { "ok": true, "result": { "b": 2 } },
    });
    post(server, &format!("/executions/{id}:submit_activity"), body)
        .await
        .ok(200)
}

async fn resume(server: &Server, id: &str) -> Value {
    let body = json!({ "definition": document(), "resume_payload": { "ok": true } });
    post(server, &format!("/executions/{id}:resume"), body)
        .await
        .ok(200)
}

fn import(rows: &[Value], name: &str) -> Value {
    // An activity that waits for its first outcome says nothing of the mode.
    json!({
        "definition": document(), "rows": rows, "execution_id": name, "activity_execution_mode": "host_mediated",
    })
}

fn error(reply: &Reply, status: u16, code: &str) -> Value {
    let body = reply.ok(status);
    assert_eq!(body["error"]["code"], code, "{body}");
    body["error"].clone()
}

async fn moves_at_every_wait(first: Server, other: Server) {
    started(&first, "m-1").await;
    let given = rows(&first, "m-1").await;
    // The other host does not know the definition yet.
    let mut unsaid = import(&given, "c-1");
    unsaid.as_object_mut().unwrap().remove("activity_execution_mode");
    let refused = post(&other, "/executions:import", unsaid).await;
    let reason = &error(&refused, 400, "VALIDATION_ERROR")["details"]["reason"];
    assert!(
        reason.as_str().unwrap().contains("in_process or host_mediated"),
        "{reason}"
    );
    let moved = post(&other, "/executions:import", import(&given, "c-1"))
        .await
        .ok(201);
    assert_eq!(
        (&moved["execution_id"], &moved["phase"], &moved["current_node_id"]),
        (&json!("c-1"), &json!("awaiting_activity"), &json!("work"))
    );
    assert_eq!(
        unnamed(&rows(&other, "c-1").await),
        unnamed(&given),
        "times and all"
    );
    assert_eq!(submit(&other, "c-1").await["status"], "interrupted");
    let done = resume(&other, "c-1").await;

    submit(&first, "m-1").await;
    let given = rows(&first, "m-1").await;
    let body = json!({ "definition": document(), "rows": given });
    let moved = post(&other, "/executions:import", body.clone()).await.ok(201);
    assert_eq!(
        (&moved["execution_id"], &moved["phase"]),
        (&json!("m-1"), &json!("interrupted"))
    );
    assert_eq!(unnamed(&rows(&other, "m-1").await), unnamed(&given));
    let again = post(&other, "/executions:import", body).await;
    assert_eq!(
        error(&again, 409, "DUPLICATE_EXECUTION_ID")["details"]["execution_id"],
        "m-1"
    );
    // It survives a restart like any other.
    let other = other.again_on_sqlite().await;
    let ended = resume(&other, "m-1").await;
    assert_eq!(ended["status"], "completed");
    assert_eq!(ended["final_state"], done["final_state"]);
    assert_eq!(resume(&first, "m-1").await["final_state"], done["final_state"]);

    let given = rows(&first, "m-1").await;
    let moved = post(&other, "/executions:import", import(&given, "c-2"))
        .await
        .ok(201);
    assert_eq!(moved["phase"], "completed");
    assert_eq!(unnamed(&rows(&other, "c-2").await), unnamed(&given));
    let runs = other.get("/v1/runs?workflowId=moves").send().await.ok(200);
    assert_eq!(runs["runs"].as_array().unwrap().len(), 3, "{runs}");
}

#[tokio::test]
async fn an_execution_moves_between_hosts_wherever_it_waits() {
    moves_at_every_wait(Server::start().await, Server::start_on_sqlite().await).await;
}

#[tokio::test]
async fn an_imported_run_says_where_it_comes_from_and_is_replayed_like_any_other() {
    let server = Server::start().await;
    started(&server, "r-1").await;
    submit(&server, "r-1").await;
    let given = rows(&server, "r-1").await;
    post(&server, "/executions:import", import(&given, "r-2"))
        .await
        .ok(201);
    let ended = resume(&server, "r-2").await;
    assert_eq!(ended["status"], "completed");
    let runs = server
        .get("/v1/runs?workflowId=moves&status=completed")
        .send()
        .await
        .ok(200);
    let run = runs["runs"][0]["runId"].as_str().unwrap().to_owned();
    let snapshot = server.snapshot(&run).await;
    let imported = &snapshot["metadata"]["imported"];
    assert_eq!(
        (&imported["executionId"], &imported["rows"]),
        (&json!("r-1"), &json!(given.len())),
        "{snapshot}"
    );
    assert_eq!(snapshot["metadata"]["contentTrust"], "untrusted", "{snapshot}");
    let fork = json!({ "mode": "replay" });
    let forked = server
        .post(&format!("/v1/runs/{run}:fork"), &fork)
        .send()
        .await
        .ok(201);
    let forked = forked["runId"].as_str().unwrap().to_owned();
    server.wait_for(&forked, "completed").await;
    let diff = server
        .get(&format!("/v1/runs/{run}:diff?against={forked}"))
        .send()
        .await
        .ok(200);
    assert!(diff.get("divergedAtSeq").is_none_or(Value::is_null), "{diff}");
}

#[tokio::test]
async fn a_refused_import_leaves_neither_execution_nor_definition() {
    let first = Server::start().await;
    started(&first, "h-1").await;
    submit(&first, "h-1").await;
    let given = rows(&first, "h-1").await;
    let other = Server::start().await;
    let at = |name: &str| given.iter().position(|row| row["name"] == name).unwrap();
    let refuse = |rows: Vec<Value>| {
        let other = &other;
        async move { post(other, "/executions:import", import(&rows, "h-2")).await }
    };

    let mut forged = given.clone();
    forged[at("ActivityCompleted")]["payload"]["result"] = json!({ "b": 3 });
    let refused = error(&refuse(forged).await, 400, "VALIDATION_ERROR");
    let row = at("ActivityCompleted") + 2;
    assert_eq!(
        (&refused["details"]["row"], &refused["details"]["seq"]),
        (&json!(row), &json!(row))
    );
    assert!(
        refused["details"]["reason"]
            .as_str()
            .unwrap()
            .starts_with("output is not"),
        "{refused}"
    );

    let mut forged = given.clone();
    forged[at("StartTimer")]["name"] = "StartSignalWait".into();
    let refused = error(&refuse(forged).await, 409, "NONDETERMINISM_DETECTED");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.starts_with("Deterministic replay mismatch at command index 6 (history seq "),
        "{message}"
    );
    let context = &refused["details"]["context"];
    assert_eq!(
        context["actual"],
        json!({ "name": "StartTimer", "nodeId": "nap" })
    );
    assert_eq!(context["expected"]["name"], "StartSignalWait");

    let mut forged = given.clone();
    forged.swap(3, 4);
    error(&refuse(forged).await, 400, "VALIDATION_ERROR");
    error(&refuse(Vec::new()).await, 400, "VALIDATION_ERROR");
    let mut body = import(&given, "h-2");
    body["definition"]["document"]["description"] = "another".into();
    let refused = error(
        &post(&other, "/executions:import", body).await,
        400,
        "VALIDATION_ERROR",
    );
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("another definition"),
        "{refused}"
    );
    let mut body = import(&given, "h-2");
    body["unknown"] = 1.into();
    error(
        &post(&other, "/executions:import", body).await,
        400,
        "VALIDATION_ERROR",
    );
    let body = json!({ "definition": document(), "rows": given, "execution_id": "a:sub:b" });
    error(
        &post(&other, "/executions:import", body).await,
        400,
        "VALIDATION_ERROR",
    );

    assert_eq!(other.get("/awp/v1/executions/h-2").send().await.status, 404);
    assert_eq!(other.get("/awp/v1/workflows/moves").send().await.status, 404);
    let runs = other.get("/v1/runs").send().await.ok(200);
    assert_eq!(runs["runs"], json!([]), "{runs}");
}

#[tokio::test]
async fn a_key_makes_an_import_take_effect_once_and_a_reader_may_not_import() {
    let server = Server::start().await;
    started(&server, "k-1").await;
    let body = import(&rows(&server, "k-1").await, "k-2");
    let once = server
        .post("/awp/v1/executions:import", &body)
        .header("idempotency-key", "one");
    let first = once.send().await.ok(201);
    assert_eq!(once.send().await.ok(201), first);
    let refused = server
        .call("POST", "/awp/v1/executions:import")
        .key(READER)
        .json(&body)
        .send()
        .await;
    error(&refused, 403, "AUTH_FORBIDDEN");
    // Names are those of a tenant.
    let theirs = server
        .call("POST", "/awp/v1/executions:import")
        .key(BOB)
        .json(&body)
        .send()
        .await;
    assert_eq!(theirs.ok(201)["execution_id"], "k-2");
    assert_eq!(status(&server, "k-2").await["phase"], "awaiting_activity");
}

#[tokio::test]
async fn who_imports_may_do_what_the_rows_say_was_done() {
    const STARTS: &str = "starts-secret-0123456789";
    let server = Server::start_with(|config| {
        let scopes = Scopes::parse(&["runs:create"]).unwrap();
        config.auth.keys.push(key("starts", STARTS, "acme", scopes));
    })
    .await;
    started(&server, "s-1").await;
    let waits = rows(&server, "s-1").await;
    submit(&server, "s-1").await;
    let worked = rows(&server, "s-1").await;
    resume(&server, "s-1").await;
    let mut answered = rows(&server, "s-1").await;
    answered.retain(|row| row["name"] != "ActivityCompleted");
    for (given, needed) in [(&worked, "submit_activity"), (&answered, "resume")] {
        let call = server.call("POST", "/awp/v1/executions:import");
        let refused = call.key(STARTS).json(&import(given, "s-2")).send().await;
        let refused = error(&refused, 403, "AUTH_FORBIDDEN");
        assert_eq!(refused["details"]["required_scope"], needed, "{refused}");
    }
    let call = server.call("POST", "/awp/v1/executions:import");
    call.key(STARTS).json(&import(&waits, "s-2")).send().await.ok(201);
}

#[tokio::test]
async fn an_import_leaves_the_current_version_of_a_workflow_as_it_is() {
    let server = Server::start().await;
    started(&server, "v-1").await;
    let given = rows(&server, "v-1").await;
    let version = |version: &str| {
        let mut document = document();
        document["document"]["version"] = version.into();
        document
    };
    server
        .post("/v1/workflows", &version("2.0.0"))
        .send()
        .await
        .ok(201);
    let moved = post(&server, "/executions:import", import(&given, "v-2")).await;
    assert_eq!(moved.ok(201)["phase"], "awaiting_activity");
    let current = server.get("/awp/v1/workflows/moves").send().await.ok(200);
    assert_eq!(current["definition"]["document"]["version"], "2.0.0");
    // A version that the host does not have would become current.
    let mut given = given;
    given[0]["payload"]["workflowVersion"] = "0.9.0".into();
    for row in &mut given {
        row["payload"].as_object_mut().unwrap().remove("definitionHash");
    }
    let mut body = import(&given, "v-3");
    body["definition"] = version("0.9.0");
    error(
        &post(&server, "/executions:import", body).await,
        409,
        "DUPLICATE_WORKFLOW_ID",
    );
}

#[tokio::test]
async fn a_history_that_does_not_say_who_works_needs_a_mode() {
    let server = Server::start().await;
    let mut document = document();
    document["document"]["name"] = "asks-first".into();
    document["edges"] = json!([
        { "source": "__start__", "target": "start" }, { "source": "start", "target": "review" },
        { "source": "review", "target": "work" }, { "source": "work", "target": "end" },
    ]);
    let nodes = document["nodes"].as_array_mut().unwrap();
    nodes.retain(|node| node["id"] != "nap");
    post(&server, "/workflows", json!({ "definition": document }))
        .await
        .ok(201);
    let body = json!({ "execution_id": "q-1", "input": {} });
    let asks = post(&server, "/workflows/asks-first/executions", body)
        .await
        .ok(200);
    assert_eq!(asks["status"], "interrupted", "{asks}");
    let mut body =
        json!({ "definition": document, "rows": rows(&server, "q-1").await, "execution_id": "q-2" });
    let refused = post(&server, "/executions:import", body.clone()).await;
    error(&refused, 400, "VALIDATION_ERROR");
    body["activity_execution_mode"] = "host_mediated".into();
    post(&server, "/executions:import", body).await.ok(201);
    let resume = json!({ "definition": document, "resume_payload": {} });
    let goes_on = post(&server, "/executions/q-2:resume", resume).await.ok(200);
    assert_eq!(goes_on["status"], "awaiting_activity", "{goes_on}");
}

/// A document that asks a worker in two branches, then starts a sub-workflow, and asks a person.
fn parent() -> Value {
    let tool = |id: &str| json!({ "id": id, "type": "tool_call", "config": { "server": "s", "tool": id } });
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "big-family", "version": "1.0.0" },
        "state_schema": { "type": "object", "properties": { "log": { "type": "array", "reducer": "append" } } },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "fork", "type": "parallel", "config": { "join": "all", "branches": [
                { "name": "left", "entry": "left" }, { "name": "right", "entry": "right" },
            ] } },
            tool("left"), tool("right"),
            { "id": "sub", "type": "subworkflow", "config": { "workflow_ref": "small-child", "input_mapping": { "a": "${ .a }" } } },
            { "id": "end", "type": "end" },
        ],
        "edges": [
            { "source": "__start__", "target": "start" }, { "source": "start", "target": "fork" },
            { "source": "fork", "target": "sub" }, { "source": "left", "target": "sub" },
            { "source": "right", "target": "sub" }, { "source": "sub", "target": "end" },
        ],
    })
}

fn child() -> Value {
    let mut child = document();
    child["document"]["name"] = "small-child".into();
    child
}

/// Starts an execution of the parent whose branches both wait.
async fn started_family(server: &Server, id: &str) {
    for document in [child(), parent()] {
        let registered = post(server, "/workflows", json!({ "definition": document })).await;
        assert!([201, 409].contains(&registered.status), "{}", registered.json());
    }
    let body = json!({
        "execution_id": id, "input": { "a": 1 }, "activity_execution_mode": "host_mediated", "parallel_activities": true,
    });
    let started = post(server, "/workflows/big-family/executions", body)
        .await
        .ok(200);
    assert_eq!(
        started["awaiting_activities"].as_array().unwrap().len(),
        2,
        "{started}"
    );
}

async fn submit_branch(server: &Server, id: &str, branch: &str) -> Value {
    let body = json!({
        "definition": parent(), "input": { "a": 1 }, "node_id": branch,
        "outcome": { "ok": true, "result": { "log": branch } },
        "parallel_span": { "parallel_node_id": "fork", "join_target_id": "sub", "branch_name": branch, "branch_entry_node_id": branch },
    });
    let path = format!("/executions/{id}:submit_activity");
    post(server, &path, body).await.ok(200)
}

async fn submit_child(server: &Server, id: &str) -> Reply {
    let body = json!({
        "definition": child(), "input": { "a": 1 }, "node_id": "work",
        "outcome": { "ok": true, "result": { "b": 2 } },
    });
    post(server, &format!("/executions/{id}:sub:sub:submit_activity"), body).await
}

async fn resume_child(server: &Server, id: &str) -> Value {
    let body = json!({ "definition": child(), "resume_payload": { "ok": true } });
    let path = format!("/executions/{id}:sub:sub:resume");
    post(server, &path, body).await.ok(200)
}

/// What is imported of an execution, and of its sub-workflow if it has one.
async fn import_of_family(server: &Server, id: &str) -> Value {
    let mut body = json!({
        "definition": parent(), "rows": rows(server, id).await, "activity_execution_mode": "host_mediated",
    });
    let child_path = format!("/awp/v1/executions/{id}:sub:sub/events?limit=1000");
    let page = server.get(&child_path).send().await;
    if page.status == 200 {
        body["child_rows"] = json!([page.json()["events"]]);
        body["child_definitions"] = json!([child()]);
    }
    body
}

async fn ended_family(server: &Server, id: &str) -> Value {
    let path = format!("/awp/v1/executions/{id}");
    for _ in 0..100 {
        let status = server.get(&path).send().await.ok(200);
        if status["phase"] == "completed" {
            return server
                .get(&format!("{path}/events?limit=1000"))
                .send()
                .await
                .ok(200);
        }
        // The parent hears of its child by a message.
        let runs = server.get("/v1/runs?workflowId=big-family").send().await.ok(200);
        let run = runs["runs"][0]["runId"].as_str().unwrap().to_owned();
        server.wait_for(&run, "completed").await;
    }
    panic!("{id} does not end")
}

async fn family_moves(first: Server, other: Server) {
    started_family(&first, "f").await;
    // Both branches wait here, and there.
    let body = import_of_family(&first, "f").await;
    let moved = post(&other, "/executions:import", body).await.ok(201);
    assert_eq!(
        moved["awaiting_activities"].as_array().unwrap().len(),
        2,
        "{moved}"
    );
    assert_eq!(rows(&other, "f").await, rows(&first, "f").await);

    submit_branch(&first, "f", "right").await;
    submit_branch(&first, "f", "left").await;
    let mut body = import_of_family(&first, "f").await;
    body["execution_id"] = "g".into();
    let moved = post(&other, "/executions:import", body).await.ok(201);
    assert_eq!(moved["child_execution_id"], "g:sub:sub", "{moved}");
    // Its child's work is in the queue of workers.
    let other = other.again_on_sqlite().await;
    let done = submit_child(&other, "g").await.ok(200);
    assert_eq!(done["status"], "interrupted", "{done}");
    let questions = other.get("/v1/interrupts").send().await;
    if questions.status == 200 {
        let questions = questions.json();
        assert!(questions.to_string().contains("review"), "{questions}");
    }
    resume_child(&other, "g").await;
    ended_family(&other, "g").await;

    // The child has come to its question by now, and the parent shows it.
    submit_child(&first, "f").await.ok(200);
    let mut body = import_of_family(&first, "f").await;
    body["execution_id"] = "h".into();
    let moved = post(&other, "/executions:import", body).await.ok(201);
    assert_eq!(moved["execution_id"], "h", "{moved}");
    resume_child(&other, "h").await;
    let ended = ended_family(&other, "h").await;

    resume_child(&first, "f").await;
    let genuine = ended_family(&first, "f").await;
    let last = |page: &Value| page["events"].as_array().unwrap().last().unwrap()["payload"]["result"].clone();
    assert_eq!(last(&ended), last(&genuine));
    let body = import_of_family(&first, "f").await;
    let empty = Server::start().await;
    let moved = post(&empty, "/executions:import", body).await.ok(201);
    assert_eq!(moved["phase"], "completed", "{moved}");
    for id in ["f", "f:sub:sub"] {
        assert_eq!(rows(&empty, id).await, rows(&first, id).await, "{id}");
    }
    let runs = empty.get("/v1/runs").send().await.ok(200);
    assert_eq!(runs["runs"].as_array().unwrap().len(), 2, "{runs}");
}

#[tokio::test]
async fn an_execution_moves_with_its_branches_and_its_sub_workflow() {
    family_moves(Server::start().await, Server::start_on_sqlite().await).await;
}

#[tokio::test]
async fn a_family_that_is_refused_leaves_neither_runs_nor_definitions() {
    let first = Server::start().await;
    started_family(&first, "f").await;
    for branch in ["left", "right"] {
        submit_branch(&first, "f", branch).await;
    }
    submit_child(&first, "f").await.ok(200);
    let body = import_of_family(&first, "f").await;
    let other = Server::start().await;

    let mut alone = body.clone();
    alone.as_object_mut().unwrap().remove("child_rows");
    let refused = post(&other, "/executions:import", alone).await;
    let refused = error(&refused, 400, "VALIDATION_ERROR");
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("node \"sub\" has started the sub-workflow \"f:sub:sub\""),
        "{refused}"
    );
    let mut unknown = body.clone();
    unknown["child_definitions"] = json!([]);
    let refused = post(&other, "/executions:import", unknown).await;
    let refused = error(&refused, 400, "VALIDATION_ERROR");
    assert_eq!(refused["details"]["execution_id"], "f:sub:sub", "{refused}");
    let mut forged = body.clone();
    let rows = forged["child_rows"][0].as_array_mut().unwrap();
    let at = rows
        .iter()
        .position(|row| row["name"] == "ActivityCompleted")
        .unwrap();
    rows[at]["payload"]["result"] = json!({ "b": 3 });
    let refused = post(&other, "/executions:import", forged).await;
    let refused = error(&refused, 400, "VALIDATION_ERROR");
    assert_eq!(
        (&refused["details"]["execution_id"], &refused["details"]["row"]),
        (&json!("f:sub:sub"), &json!(at + 2)),
        "{refused}"
    );
    let mut forged = body.clone();
    let rows = forged["child_rows"][0].as_array_mut().unwrap();
    let at = rows.iter().position(|row| row["name"] == "StartTimer").unwrap();
    rows[at]["name"] = "StartSignalWait".into();
    let refused = post(&other, "/executions:import", forged).await;
    let refused = error(&refused, 409, "NONDETERMINISM_DETECTED");
    assert_eq!(refused["details"]["execution_id"], "f:sub:sub", "{refused}");
    assert_eq!(
        refused["details"]["context"]["actual"]["name"], "StartTimer",
        "{refused}"
    );
    let shapes = [
        ("child_rows", json!([1])),
        ("child_rows", json!({})),
        ("child_rows", json!([[]])),
        ("child_definitions", json!([1])),
        ("child_definitions", json!({})),
        ("child_definitions", json!([{}])),
        ("child_definitions", json!(vec![child(); 101])),
        ("parallel_activities", json!("yes")),
        ("configurable", json!({ "parallelActivities": true })),
    ];
    for (member, value) in shapes {
        let mut wrong = body.clone();
        wrong[member] = value;
        let refused = post(&other, "/executions:import", wrong).await;
        error(&refused, 400, "VALIDATION_ERROR");
    }
    // The other host has another version of the child: nothing of the parent is registered either.
    let mut newer = child();
    newer["document"]["version"] = "2.0.0".into();
    other.post("/v1/workflows", &newer).send().await.ok(201);
    let refused = post(&other, "/executions:import", body.clone()).await;
    error(&refused, 409, "DUPLICATE_WORKFLOW_ID");

    for id in ["f", "f:sub:sub"] {
        assert_eq!(
            other.get(&format!("/awp/v1/executions/{id}")).send().await.status,
            404
        );
    }
    assert_eq!(other.get("/awp/v1/workflows/big-family").send().await.status, 404);
    let runs = other.get("/v1/runs").send().await.ok(200);
    assert_eq!(runs["runs"], json!([]), "{runs}");
}
