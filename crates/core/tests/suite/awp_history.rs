//! Histories of Agent Workflow runs: rows that follow from the log, in the order of the protocol.

use std::sync::Arc;

use serde_json::{Value, json};
use wopr_core::{
    AwpHistory, Failure, NodeTypes, Plan,
    awp::{
        self, ExecutionPhase, HostOutcome, RowKind, Submission, SubmitRefusal, check_submission, phase,
        status,
    },
};
use wopr_testkit::Script;

use crate::awp::{document, set, tool};

fn plan(document: Value) -> Arc<Plan> {
    Arc::new(Plan::admit(document, NodeTypes::default()).unwrap_or_else(|problems| panic!("{problems}")))
}

fn history(script: &Script, run: usize, wanted: awp::Wanted) -> awp::History {
    let mut history = AwpHistory::new(script.plan(run), script.id(run), wanted).expect("of this language");
    for event in script.events(run) {
        history.record(event);
    }
    history.finish()
}

fn numbers(numbers: std::ops::Range<u64>, most_bytes: usize) -> awp::Wanted {
    awp::Wanted::Rows { numbers, most_bytes }
}

fn rows(script: &Script, run: usize) -> Vec<awp::Row> {
    let history = history(script, run, numbers(1..u64::MAX, usize::MAX));
    assert_eq!(history.n_rows, history.rows.len() as u64);
    for (n, row) in history.rows.iter().enumerate() {
        assert_eq!(row.seq, n as u64 + 1, "dense from 1");
        assert!(row.payload.contains_key("executionId"));
    }
    history.rows
}

/// The names of rows, commands with a `!`, each with its node.
fn names(script: &Script) -> Vec<String> {
    let name = |row: &awp::Row| {
        let mark = if row.kind == RowKind::Command { "!" } else { "" };
        let node = row
            .payload
            .get("nodeId")
            .and_then(Value::as_str)
            .unwrap_or_default();
        format!("{mark}{} {node}", row.name).trim_end().to_owned()
    };
    rows(script, 0).iter().map(name).collect()
}

fn in_process(document: Value, options: Value, inputs: Value) -> Script {
    let mut configurable = json!({ "activityExecutionMode": "in_process" });
    let more = options.as_object().expect("an object").clone();
    configurable.as_object_mut().expect("an object").extend(more);
    Script::of_plans([plan(document)]).start_configured(inputs, configurable)
}

/// Says that the host knows neither the agent nor a default one.
pub(crate) fn unknown(script: &mut Script, node: &str) {
    for _ in 0..2 {
        let unknown = Failure::new("peer_unknown", "there is no such agent");
        script.outcome(node, Err(unknown)).expect("asked");
    }
}

fn linear() -> Value {
    document(
        "linear",
        json!({ "out": {} }),
        &[tool("work")],
        &[("start", "work"), ("work", "end")],
    )
}

#[test]
fn linear_history_has_the_rows_of_the_protocol() {
    let options = json!({ "mockOutputs": { "work": { "out": "x" } } });
    let script = in_process(linear(), options, json!({ "a": 1 }));
    assert_eq!(
        names(&script),
        [
            "ExecutionStarted",
            "!ScheduleNode start",
            "NodeScheduled start",
            "!CompleteNode start",
            "StateUpdated start",
            "!ScheduleNode work",
            "NodeScheduled work",
            "ActivityRequested work",
            "ActivityCompleted work",
            "!CompleteNode work",
            "StateUpdated work",
            "!ScheduleNode end",
            "NodeScheduled end",
            "!CompleteNode end",
            "ExecutionCompleted",
        ]
    );
    let rows = rows(&script, 0);
    let payload = |n: usize| Value::Object(rows[n - 1].payload.clone());
    let id = script.id(0).to_string();
    assert_eq!(
        payload(1),
        json!({ "executionId": id, "workflowName": "linear", "workflowVersion": "1", "inputKeys": ["a"] })
    );
    assert_eq!(
        payload(8),
        json!({ "executionId": id, "nodeId": "work", "nodeType": "tool_call", "attempt": 1 })
    );
    assert_eq!(
        payload(11),
        json!({ "executionId": id, "nodeId": "work", "state": { "a": 1, "out": "x" } })
    );
    let page = history(&script, 0, numbers(5..7, usize::MAX));
    assert_eq!((page.rows.len(), page.n_rows), (2, 15));
    assert_eq!(page.rows[0], rows[4]);
    let small = history(&script, 0, numbers(5..16, 1));
    assert_eq!(small.rows, rows[4..5], "the first row is made in any case");
}

#[test]
fn delegate_child_and_interrupt_have_their_rows_and_checkpoints() {
    let nodes = [
        json!({ "id": "implement", "type": "agent_delegate", "config": {
            "agent_id": "coder", "protocol": "a2a", "input_mapping": { "task": "${ .task }" },
        } }),
        json!({ "id": "verify", "type": "subworkflow", "config": { "workflow_ref": "child", "input_mapping": {} } }),
        json!({ "id": "review", "type": "interrupt", "config": { "prompt": "p".repeat(300), "resume_schema": { "type": "object" } } }),
    ];
    let edges = [
        ("start", "implement"),
        ("implement", "verify"),
        ("verify", "review"),
        ("review", "end"),
    ];
    let parent = document("parent", json!({ "x": {} }), &nodes, &edges);
    let child = document(
        "child",
        json!({ "x": {} }),
        &[tool("work")],
        &[("start", "work"), ("work", "end")],
    );
    let options = json!({ "activityExecutionMode": "in_process", "executionId": "mine" });
    let plans = [plan(parent), plan(child)];
    let mut script = Script::of_plans(plans).start_configured(json!({ "task": "t" }), options);
    unknown(&mut script, "implement");
    script.answer("review", json!({ "x": 1 })).expect("open");
    let rows = rows(&script, 0);
    assert_eq!(rows.len(), 35);
    let checkpoints = rows.iter().filter(|row| row.name == "CheckpointWritten");
    assert_eq!(
        checkpoints.map(|row| row.seq).collect::<Vec<_>>(),
        [12, 21, 26, 31]
    );
    let row = |name: &str| {
        rows.iter()
            .find(|row| row.name == name)
            .map(|row| row.payload.clone())
            .expect("a row")
    };
    let requested = row("ActivityRequested");
    assert_eq!(requested["delegateCorrelationId"], "mine:delegate:implement");
    assert_eq!(requested["delegateInput"], json!({ "task": "t" }));
    assert_eq!(
        row("ActivityCompleted")["externalTaskId"],
        "a2a-task-mine-delegate-implement"
    );
    assert_eq!(row("SubworkflowStarted")["childExecutionId"], "mine:sub:verify");
    let completed = row("SubworkflowCompleted");
    assert_eq!(completed["childResult"], completed["childFinalState"]);
    assert_eq!(
        row("RaiseInterrupt")["prompt"]
            .as_str()
            .map(|text| text.chars().count()),
        Some(201)
    );
    let of_child = self::rows(&script, 1);
    assert_eq!(of_child[0].payload["executionId"], "mine:sub:verify");
}

#[test]
fn visits_and_attempts_of_a_delegate_have_requests_and_tasks_of_their_own() {
    let nodes = [
        json!({ "id": "ask", "type": "agent_delegate", "retry": { "max_attempts": 2 }, "config": {
            "agent_id": "coder", "protocol": "a2a", "input_mapping": { "task": "${ .task }" },
        } }),
        json!({ "id": "again", "type": "switch", "config": {
            "cases": [{ "when": ".n == 1", "target": "ask" }], "default": "end",
        } }),
    ];
    let looped = document(
        "looped",
        json!({ "n": {} }),
        &nodes,
        &[("start", "ask"), ("ask", "again")],
    );
    let about = |script: &Script| {
        let (run, state) = script.run(0).awp().expect("of this language");
        status(
            script.plan(0).awp().expect("of this language"),
            (script.id(0), run, state),
        )
    };
    let ids = |script: &Script, name: &str, member: &str| {
        let rows = rows(script, 0).into_iter().filter(|row| row.name == name);
        rows.map(|row| row.payload[member].as_str().expect("a text").to_owned())
            .collect::<Vec<_>>()
    };
    let options = json!({ "executionId": "x" });
    let start = |document: &Value, options: Value| {
        Script::of_plans([plan(document.clone())]).start_configured(json!({ "task": "t" }), options)
    };
    // A host does the work again, so an agent that knows the first id must not answer with what failed.
    let mut script = start(&looped, options.clone());
    let failed = Failure {
        retryable: true,
        ..Failure::new("BUSY", "later")
    };
    script.outcome("ask", Err(failed.clone())).expect("under way");
    script.wait(0);
    assert_eq!(
        about(&script).delegate_correlation_id.as_deref(),
        Some("x:delegate:ask#1.2")
    );
    script.outcome("ask", Ok(json!({ "n": 1 }))).expect("under way");
    script.outcome("ask", Ok(json!({ "n": 2 }))).expect("under way");
    let wanted = ["x:delegate:ask", "x:delegate:ask#1.2", "x:delegate:ask#2"];
    assert_eq!(ids(&script, "ActivityRequested", "delegateCorrelationId"), wanted);
    assert_eq!(
        ids(&script, "ActivityCompleted", "delegateCorrelationId"),
        wanted[1..]
    );
    let inputs = rows(&script, 0)
        .into_iter()
        .filter(|row| row.name == "ActivityRequested");
    for row in inputs {
        // Each repeats the whole request.
        assert_eq!(
            (
                &row.payload["agentId"],
                &row.payload["protocol"],
                &row.payload["delegateInput"]
            ),
            (&json!("coder"), &json!("a2a"), &json!({ "task": "t" }))
        );
    }

    // In process, a repeated attempt is the same request, whose answer was lost.
    let options = json!({ "executionId": "x", "activityExecutionMode": "in_process" });
    let mut script = start(&looped, options);
    script.outcome("ask", Err(failed)).expect("asked");
    script.wait(0);
    let told = |n: u32, task: &str| json!({ "data": { "n": n }, "taskId": task });
    script.outcome("ask", Ok(told(1, "t1"))).expect("asked");
    assert_eq!(
        about(&script).delegate_correlation_id.as_deref(),
        Some("x:delegate:ask#2")
    );
    script.outcome("ask", Ok(told(2, "t2"))).expect("asked");
    let wanted = ["x:delegate:ask", "x:delegate:ask", "x:delegate:ask#2"];
    assert_eq!(ids(&script, "ActivityRequested", "delegateCorrelationId"), wanted);
    assert_eq!(ids(&script, "ActivityCompleted", "externalTaskId"), ["t1", "t2"]);
}

fn forked(join: &str) -> Value {
    let nodes = [
        json!({ "id": "fork", "type": "parallel", "config": { "join": join, "branches": [
            { "name": "a", "entry": "a" }, { "name": "b", "entry": "b" }, { "name": "c", "entry": "c" },
        ] } }),
        tool("a"),
        tool("b"),
        tool("c"),
        set("join", json!({ "done": { "literal": true } })),
    ];
    let edges = [
        ("start", "fork"),
        ("fork", "join"),
        ("a", "join"),
        ("b", "join"),
        ("c", "join"),
        ("join", "end"),
    ];
    document("forked", json!({ "x": {} }), &nodes, &edges)
}

#[test]
fn branches_that_are_not_needed_are_cancelled_and_a_failed_one_is_no_end() {
    let mut script = Script::of_plans([plan(forked("any"))]).start(json!({}));
    let broken = Failure::new("BROKEN", "it broke");
    script.outcome("a", Err(broken)).expect("under way");
    script.outcome("b", Ok(json!({ "x": 1 }))).expect("under way");
    let names = names(&script);
    let from = names
        .iter()
        .position(|name| name == "!StartParallel fork")
        .expect("a fork");
    let to = names
        .iter()
        .position(|name| name == "!ScheduleNode join")
        .expect("a join");
    assert_eq!(
        names[from..to],
        [
            "!StartParallel fork",
            "ParallelForked fork",
            "!ScheduleNode a",
            "NodeScheduled a",
            "ActivityRequested a",
            "ActivityFailed a",
            "!FailNode a",
            "!ScheduleNode b",
            "NodeScheduled b",
            "ActivityRequested b",
            "ActivityCompleted b",
            "!CompleteNode b",
            "StateUpdated b",
            "CheckpointWritten b",
            "!CancelParallelBranch fork",
            "ParallelBranchCancelled fork",
            "!JoinParallel fork",
            "ParallelJoined fork",
            "!CompleteNode fork",
            "StateUpdated fork",
            "CheckpointWritten fork",
        ]
    );
    assert_eq!(names.last().map(String::as_str), Some("ExecutionCompleted"));
    let requested = rows(&script, 0)
        .into_iter()
        .find(|row| row.name == "ActivityRequested")
        .expect("a row");
    assert_eq!(
        requested.payload["parallelSpan"],
        json!({ "parallelNodeId": "fork", "joinTargetId": "join", "branchName": "a", "branchEntryNodeId": "a" })
    );
}

#[test]
fn failures_signals_and_cancels_end_a_history() {
    let mut script = Script::of_plans([plan(linear())]).start(json!({}));
    script
        .outcome("work", Err(Failure::new("BROKEN", "it broke")))
        .expect("under way");
    let ended: Vec<_> = names(&script).split_off(8);
    assert_eq!(
        ended,
        ["ActivityFailed work", "!FailNode work", "ExecutionFailed"]
    );

    let wait = json!({ "id": "go", "type": "wait", "config": { "kind": "signal", "signal": "now" } });
    let waits = document(
        "waits",
        json!({ "x": {} }),
        &[wait],
        &[("start", "go"), ("go", "end")],
    );
    let mut script = Script::of_plans([plan(waits.clone())]).start(json!({}));
    script.answer("go", json!({ "x": 1 })).expect("open");
    let ended: Vec<_> = names(&script).split_off(7);
    assert_eq!(
        ended[..7],
        [
            "!StartSignalWait go",
            "SignalWaitStarted go",
            "!DeliverSignal go",
            "SignalReceived go",
            "!CompleteNode go",
            "StateUpdated go",
            "CheckpointWritten go",
        ]
    );
    let mut script = Script::of_plans([plan(waits)]).start(json!({}));
    script.cancel().expect("waiting");
    let ended: Vec<_> = names(&script).split_off(9);
    assert_eq!(ended, ["!CancelExecution", "ExecutionCancelled"]);
}

#[test]
fn phases_follow_from_the_state_of_a_run() {
    let about = |script: &Script| {
        let (run, state) = script.run(0).awp().expect("of this language");
        status(
            script.plan(0).awp().expect("of this language"),
            (script.id(0), run, state),
        )
    };
    let ask = json!({ "id": "ask", "type": "interrupt", "config": { "prompt": "?", "resume_schema": { "type": "object" } } });
    let wait = json!({ "id": "go", "type": "wait", "config": { "kind": "signal", "signal": "now" } });
    let edges = [("start", "ask"), ("ask", "work"), ("work", "go"), ("go", "end")];
    let all = document("all", json!({ "x": {} }), &[ask, tool("work"), wait], &edges);
    let mut script = Script::of_plans([plan(all)]).start(json!({}));
    let is = |script: &Script, expected, node: Option<&str>| {
        let about = about(script);
        assert_eq!((about.phase, about.current_node.as_deref()), (expected, node));
    };
    is(&script, ExecutionPhase::Interrupted, Some("ask"));
    script.answer("ask", json!({})).expect("open");
    // After an answer, the phase is no longer that of the question.
    is(&script, ExecutionPhase::AwaitingActivity, Some("work"));
    script.outcome("work", Ok(json!({}))).expect("under way");
    is(&script, ExecutionPhase::AwaitingSignal, Some("go"));
    assert_eq!(about(&script).signal_name.as_deref(), Some("now"));
    let mut cancelled = script.clone();
    cancelled.cancel().expect("waiting");
    is(&cancelled, ExecutionPhase::Cancelled, Some("go"));
    script.answer("go", json!({})).expect("open");
    is(&script, ExecutionPhase::Completed, None);
    let (run, _) = script.run(0).awp().expect("of this language");
    assert_eq!(
        phase(script.plan(0).awp().expect("of this language"), run).as_str(),
        "completed"
    );
}

#[test]
fn submissions_are_checked_in_order_and_change_nothing() {
    let script = Script::of_plans([plan(forked("all"))]).start(json!({ "x": 1 }));
    let plan = script.plan(0).clone();
    let (run, state) = script.run(0).awp().expect("of this language");
    let own = plan.awp().expect("of this language");
    let id = script.id(0);
    let about = status(own, (id, run, state));
    let good = Submission {
        definition: (**plan).version().clone(),
        input: json!({ "x": 1 }).as_object().expect("an object").clone(),
        node: "a".to_owned(),
        span: about.activities[0].span.clone(),
        outcome: HostOutcome::Completed {
            result: json!(5),
            delegate_correlation_id: None,
            external_task_id: Some("t".to_owned()),
        },
    };
    let submitted = check_submission(own, (id, run, state), good.clone()).expect("good");
    assert_eq!(submitted.outcome.map(Value::Object), Ok(json!({ "value": 5 })));
    assert_eq!(submitted.details, Some(json!({ "externalTaskId": "t" })));
    let code = |change: fn(&mut Submission)| {
        let mut submission = good.clone();
        change(&mut submission);
        check_submission(own, (id, run, state), submission)
            .expect_err("refused")
            .code()
    };
    assert_eq!(code(|s| s.node = "b".to_owned()), "ACTIVITY_SUBMIT_NODE_MISMATCH");
    assert_eq!(code(|s| s.span = None), "ACTIVITY_SUBMIT_PARALLEL_MISMATCH");
    assert_eq!(
        code(|s| s.input = json!({ "x": 2 }).as_object().expect("an object").clone()),
        "SUBMIT_VALIDATION_ERROR"
    );
    assert_eq!(code(|s| s.input.clear()), "SUBMIT_VALIDATION_ERROR");
    let other = wopr_core::ContentHash::of(b"other");
    let mut tampered = good.clone();
    tampered.definition = other;
    tampered.node = "b".to_owned();
    // The definition is checked before the node.
    let refused = check_submission(own, (id, run, state), tampered).expect_err("refused");
    assert!(matches!(refused, SubmitRefusal::Invalid(_)));
    let mut cancelled = script.clone();
    cancelled.cancel().expect("running");
    let (run, state) = cancelled.run(0).awp().expect("of this language");
    let refused = check_submission(own, (id, run, state), good).expect_err("refused");
    assert_eq!(refused.code(), "ACTIVITY_SUBMIT_NOT_AWAITING");
}

#[test]
fn attempts_that_a_pause_cut_have_no_rows() {
    let nodes = [
        json!({ "id": "night", "type": "wait", "config": { "kind": "duration", "duration": "1s" } }),
        json!({ "id": "work", "type": "llm_call", "config": {}, "retry": { "max_attempts": 2, "initial_interval": "1s" } }),
    ];
    let edges = [("start", "night"), ("night", "work"), ("work", "end")];
    let history = |is_cut: bool| {
        let document = document("cut", json!({}), &nodes, &edges);
        let mut script = in_process(document, json!({ "inProcess": { "model": "p" } }), json!({}));
        let cut = |script: &mut Script| {
            if is_cut {
                script.stop().expect("running");
                script.resume().expect("paused");
                script.wait(0);
            }
        };
        cut(&mut script);
        script.wait(1_000);
        let busy = || Failure {
            retryable: true,
            ..Failure::new("model_call_failed", "later")
        };
        cut(&mut script);
        cut(&mut script);
        script.outcome("work", Err(busy())).expect("under way");
        script.wait(1_000);
        cut(&mut script);
        script.outcome("work", Err(busy())).expect("under way");
        assert_eq!(script.status(), "failed");
        let rows = rows(&script, 0).into_iter();
        rows.map(|row| (row.name, row.payload)).collect::<Vec<_>>()
    };
    assert_eq!(history(true), history(false));
}
