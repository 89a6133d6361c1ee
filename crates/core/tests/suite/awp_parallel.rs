//! Runs whose branches are under way at once: what they wait for, how they join, and what becomes of the others.

use std::sync::Arc;

use expect_test::expect;
use serde_json::{Value, json};
use wopr_core::{
    AwpHistory, Call, Command, Failure, ForkMode, NodeTypes, Plan, Refusal, StepId,
    awp::{
        self, ExecutionPhase, ExecutionStatus, HostOutcome, ParallelSpan, Submission, SubmitRefusal,
        awaited_signals, check_submission, status,
    },
};
use wopr_testkit::{Script, Workflow};

use crate::awp::{document, set, tool};

fn plan(document: Value) -> Arc<Plan> {
    Arc::new(Plan::admit(document, NodeTypes::default()).unwrap_or_else(|problems| panic!("{problems}")))
}

fn start(documents: impl IntoIterator<Item = Arc<Plan>>, options: Value) -> Script {
    let mut configurable = json!({ "parallelActivities": true });
    let more = options.as_object().expect("an object").clone();
    configurable.as_object_mut().expect("an object").extend(more);
    Script::of_plans(documents).start_configured(json!({}), configurable)
}

/// A parallel node with a branch for each of these nodes, which is named as its first node.
fn fork(id: &str, join: Value, entries: &[&str]) -> Value {
    let branches: Vec<_> = entries
        .iter()
        .map(|entry| json!({ "name": entry, "entry": entry }))
        .collect();
    let mut config = json!({ "branches": branches });
    let join = join.as_object().expect("an object").clone();
    config.as_object_mut().expect("an object").extend(join);
    json!({ "id": id, "type": "parallel", "config": config })
}

fn all() -> Value {
    json!({ "join": "all" })
}

fn any() -> Value {
    json!({ "join": "any" })
}

/// A document whose branches are these nodes, all of which lead to `join`.
fn branched(join: Value, nodes: &[Value]) -> Value {
    let ids: Vec<_> = nodes
        .iter()
        .map(|node| node["id"].as_str().expect("an id"))
        .collect();
    let mut all = vec![
        fork("fork", join, &ids),
        set("join", json!({ "done": { "literal": true } })),
    ];
    all.extend_from_slice(nodes);
    let mut edges = vec![("start", "fork"), ("fork", "join"), ("join", "end")];
    edges.extend(ids.iter().map(|id| (*id, "join")));
    document(
        "branched",
        json!({ "log": { "reducer": "append" } }),
        &all,
        &edges,
    )
}

fn three(join: Value) -> Value {
    branched(join, &[tool("a"), tool("b"), tool("c")])
}

fn signal(id: &str, name: &str) -> Value {
    json!({ "id": id, "type": "wait", "config": { "kind": "signal", "signal": name } })
}

fn delegate(id: &str) -> Value {
    json!({ "id": id, "type": "agent_delegate", "config": {
        "agent_id": "coder", "protocol": "a2a", "input_mapping": {},
    } })
}

fn done(script: &mut Script, node: &str) {
    script
        .outcome(node, Ok(json!({ "log": node })))
        .expect("under way");
}

fn broken(script: &mut Script, node: &str) {
    script
        .outcome(node, Err(Failure::new("BROKEN", "it broke")))
        .expect("under way");
}

fn about(script: &Script) -> ExecutionStatus {
    let (run, state) = script.run(0).awp().expect("of this language");
    let plan = script.plan(0).awp().expect("of this language");
    status(plan, (script.id(0), run, state))
}

fn awaited(script: &Script) -> Vec<String> {
    about(script)
        .activities
        .into_iter()
        .map(|activity| activity.node)
        .collect()
}

/// The names of rows, with what each is about.
fn rows(script: &Script) -> Vec<String> {
    let wanted = awp::Wanted::Rows {
        numbers: 1..u64::MAX,
        most_bytes: usize::MAX,
    };
    let mut history = AwpHistory::new(script.plan(0), script.id(0), wanted).expect("of this language");
    script.events(0).iter().for_each(|event| history.record(event));
    let rows = history.finish().rows;
    for (n, row) in rows.iter().enumerate() {
        assert_eq!(row.seq, n as u64 + 1, "dense from 1");
    }
    let text = |row: &awp::Row, member: &str| {
        row.payload
            .get(member)
            .and_then(Value::as_str)
            .map(|text| format!(" {text}"))
            .unwrap_or_default()
    };
    let branch = |row: &awp::Row| {
        row.payload
            .get("parallelSpan")
            .and_then(|span| span["branchName"].as_str())
            .map(|name| format!(" in {name}"))
            .unwrap_or_default()
    };
    rows.iter()
        .map(|row| {
            format!(
                "{}{}{}{}",
                row.name,
                text(row, "nodeId"),
                text(row, "branchName"),
                branch(row)
            )
        })
        .collect()
}

/// Forks of the run repeat it, from wherever they begin.
fn replays_equally(script: &mut Script) {
    for from in 0..script.events(0).len() as u64 {
        let fork = script.fork(0, ForkMode::Replay, from).expect("forked");
        assert_eq!(script.status_of(fork), script.status_of(0));
        assert_eq!(script.run(fork).outputs, script.run(0).outputs);
        assert_eq!(script.run(fork).variables(), script.run(0).variables());
        let forked = script.run(fork).forked.expect("a fork");
        assert_eq!(forked.diverged_at, None);
    }
}

#[test]
fn all_branches_are_awaited_at_once_and_write_in_the_order_in_which_they_end() {
    let mut script = start([plan(three(all()))], json!({}));
    assert_eq!(awaited(&script), ["a", "b", "c"]);
    done(&mut script, "c");
    assert_eq!(awaited(&script), ["a", "b"]);
    done(&mut script, "a");
    done(&mut script, "b");
    assert_eq!(script.status(), "completed");
    assert_eq!(script.variable("log"), json!(["c", "a", "b"]));
    replays_equally(&mut script);
}

#[test]
fn without_the_option_one_branch_follows_the_other() {
    let script = Script::of_plans([plan(three(all()))]).start(json!({}));
    assert_eq!(awaited(&script), ["a"]);
    assert!(!about(&script).is_parallel);
    let script = start([plan(three(all()))], json!({ "parallelActivities": false }));
    assert_eq!(awaited(&script), ["a"]);
    let mut refused = Script::of_plans([plan(three(all()))]);
    let mut wrong = Script::start_run(json!({}));
    wrong
        .configurable
        .insert("parallelActivities".to_owned(), json!("yes"));
    assert_eq!(
        refused.try_start(wrong),
        Err(Refusal::InvalidInput {
            field: "configurable.parallelActivities".to_owned(),
            rule: "must be true or false".to_owned(),
        })
    );
}

#[test]
fn the_first_branch_that_completes_cancels_the_others() {
    let mut script = start([plan(three(any()))], json!({}));
    broken(&mut script, "a");
    assert_eq!(awaited(&script), ["b", "c"]);
    script.news();
    done(&mut script, "c");
    expect![[r#"
        12 node.completed c {"log":"c"}
        13 node.cancelled b branch-cancelled
        14 node.started join
        15 node.completed join {"done":true}
        16 node.started end
        17 artifact.created end end-0 result {"done":true,"log":["c"]}
        18 node.completed end
        19 run.completed {"result":{"done":true,"log":["c"]}}"#]]
    .assert_eq(&script.news());
    assert_eq!(script.status(), "completed");
    assert_eq!(script.variable("log"), json!(["c"]));
    let rows = rows(&script);
    let from = rows
        .iter()
        .position(|row| row == "StartParallel fork")
        .expect("a fork");
    let to = rows
        .iter()
        .position(|row| row == "ScheduleNode join")
        .expect("a join");
    expect![[r#"
        StartParallel fork
        ParallelForked fork
        ScheduleNode a
        NodeScheduled a
        ActivityRequested a in a
        ScheduleNode b
        NodeScheduled b
        ActivityRequested b in b
        ScheduleNode c
        NodeScheduled c
        ActivityRequested c in c
        ActivityFailed a
        FailNode a
        ActivityCompleted c in c
        CompleteNode c
        StateUpdated c
        CheckpointWritten c in c
        CancelParallelBranch fork b
        ParallelBranchCancelled fork b
        JoinParallel fork
        ParallelJoined fork
        CompleteNode fork
        StateUpdated fork
        CheckpointWritten fork
    "#]]
    .assert_eq(&(rows[from..to].join("\n") + "\n"));
    replays_equally(&mut script);
}

#[test]
fn a_branch_that_fails_cancels_the_others_if_all_are_wanted() {
    let mut script = start([plan(three(all()))], json!({}));
    done(&mut script, "a");
    script.news();
    broken(&mut script, "b");
    expect![[r#"
        12 node.failed b BROKEN: it broke
        13 node.cancelled c run-failed
        14 run.failed BROKEN: it broke in b"#]]
    .assert_eq(&script.news());
    let rows = rows(&script);
    let from = rows
        .iter()
        .position(|row| row == "ActivityFailed b")
        .expect("a failure");
    expect![[r#"
        ActivityFailed b
        FailNode b
        CancelParallelBranch fork c
        ParallelBranchCancelled fork c
        ExecutionFailed
    "#]]
    .assert_eq(&(rows[from..].join("\n") + "\n"));
    replays_equally(&mut script);
}

#[test]
fn a_join_of_several_counts_what_completes_and_gives_up_when_too_few_are_left() {
    let mut script = start([plan(three(json!({ "join": "n_of_m", "n": 2 })))], json!({}));
    done(&mut script, "c");
    broken(&mut script, "a");
    assert_eq!(awaited(&script), ["b"]);
    done(&mut script, "b");
    assert_eq!(script.variable("log"), json!(["c", "b"]));
    replays_equally(&mut script);

    let mut script = start([plan(three(json!({ "join": "n_of_m", "n": 2 })))], json!({}));
    broken(&mut script, "c");
    broken(&mut script, "b");
    let failed = script.run(0).error.clone().expect("failed").0;
    assert_eq!(failed.code, "parallel_join_failed");
    assert!(rows(&script).contains(&"CancelParallelBranch fork a".to_owned()));
    replays_equally(&mut script);
}

#[test]
fn everything_that_a_cancelled_branch_waits_for_ends() {
    let nodes = [
        json!({ "id": "timer", "type": "wait", "config": { "kind": "duration", "duration_ms": 60_000 } }),
        signal("signal", "go"),
        json!({ "id": "child", "type": "subworkflow", "config": { "workflow_ref": "gated", "input_mapping": {} } }),
        delegate("agent"),
        delegate("winner"),
    ];
    let gated = Workflow::new("gated").gate("gate").plan();
    let plans = [plan(branched(any(), &nodes)), gated];
    let mut script = start(plans, json!({ "activityExecutionMode": "in_process" }));
    let calls = script
        .effects()
        .iter()
        .filter(|effect| matches!(effect.call, Call::Agent(_)));
    assert_eq!(calls.count(), 2, "calls of branches overlap");
    assert_eq!(script.timers(0), "delay:0:timer in 60000");
    let step = StepId {
        node: wopr_core::NodeId::parse("agent").expect("an id"),
        ordinal: 0,
    };
    let accepted = Command::Accepted {
        step,
        attempt: 0,
        handle: json!({ "taskId": "t1" }),
        check_at: None,
    };
    script.tell(0, accepted).expect("under way");
    script
        .outcome("winner", Ok(json!({ "data": { "log": "won" } })))
        .expect("asked");
    script.deliver();
    assert_eq!(script.status(), "completed");
    assert_eq!(script.timers(0), "");
    assert!(script.run(0).waiting.is_empty());
    assert_eq!(script.status_of(1), "cancelled");
    let told: Vec<_> = script.cancelled().iter().map(|call| call.step.key()).collect();
    assert_eq!(told, ["agent:0"]);
    replays_equally(&mut script);
}

#[test]
fn signals_are_awaited_next_to_activities_and_one_name_goes_to_the_first_branch() {
    let nodes = [
        tool("work"),
        signal("later", "go"),
        signal("sooner", "go"),
        signal("other", "stop"),
    ];
    let mut script = start([plan(branched(all(), &nodes))], json!({}));
    let status = about(&script);
    assert_eq!(status.phase, ExecutionPhase::AwaitingActivity);
    assert_eq!(status.signal_name.as_deref(), Some("go"));
    let signals = |script: &Script| {
        let (run, _) = script.run(0).awp().expect("of this language");
        let signals = awaited_signals(script.plan(0).awp().expect("of this language"), run);
        signals.into_iter().map(|signal| signal.node).collect::<Vec<_>>()
    };
    assert_eq!(signals(&script), ["later", "sooner", "other"]);
    script.answer("later", json!({ "log": 1 })).expect("asked");
    assert_eq!(signals(&script), ["sooner", "other"]);
    done(&mut script, "work");
    assert_eq!(about(&script).phase, ExecutionPhase::AwaitingSignal);
    script.answer("other", json!({})).expect("asked");
    script.answer("sooner", json!({ "log": 2 })).expect("asked");
    assert_eq!(script.variable("log"), json!([1, "work", 2]));
    replays_equally(&mut script);
}

#[test]
fn inner_branches_join_and_fail_by_themselves() {
    // outer (all): [inner (any): x | y] -> after, z
    let nodes = [
        fork("outer", all(), &["inner", "z"]),
        fork("inner", any(), &["x", "y"]),
        tool("x"),
        tool("y"),
        tool("z"),
        set("after", json!({ "log": { "literal": "after" } })),
        set("join", json!({ "done": { "literal": true } })),
    ];
    let edges = [
        ("start", "outer"),
        ("outer", "join"),
        ("inner", "after"),
        ("after", "join"),
        ("x", "after"),
        ("y", "after"),
        ("z", "join"),
        ("join", "end"),
    ];
    let nested = document(
        "nested",
        json!({ "log": { "reducer": "append" } }),
        &nodes,
        &edges,
    );
    let mut script = start([plan(nested.clone())], json!({}));
    assert_eq!(awaited(&script), ["x", "y", "z"]);
    done(&mut script, "y");
    assert_eq!(awaited(&script), ["z"]);
    done(&mut script, "z");
    assert_eq!(script.variable("log"), json!(["y", "after", "z"]));
    replays_equally(&mut script);

    let mut script = start([plan(nested)], json!({}));
    broken(&mut script, "x");
    assert_eq!(awaited(&script), ["y", "z"]);
    broken(&mut script, "y");
    assert_eq!(script.status(), "failed");
    replays_equally(&mut script);
}

/// Two branches that go through the same node.
fn shared() -> Value {
    let nodes = [
        fork("fork", all(), &["a", "b"]),
        set("a", json!({ "log": { "literal": "a" } })),
        set("b", json!({ "log": { "literal": "b" } })),
        tool("work"),
        set("join", json!({ "done": { "literal": true } })),
    ];
    let edges = [
        ("start", "fork"),
        ("fork", "join"),
        ("a", "work"),
        ("b", "work"),
        ("work", "join"),
        ("join", "end"),
    ];
    document(
        "shared",
        json!({ "log": { "reducer": "append" } }),
        &nodes,
        &edges,
    )
}

#[test]
fn a_node_of_two_branches_is_at_one_of_them_at_a_time() {
    let mut script = start([plan(shared())], json!({}));
    let branch = |script: &Script| {
        let activities = about(script).activities;
        assert_eq!(activities.len(), 1);
        activities[0].span.clone().expect("in a branch").branch_name
    };
    assert_eq!(branch(&script), "a");
    done(&mut script, "work");
    assert_eq!(branch(&script), "b");
    done(&mut script, "work");
    assert_eq!(script.status(), "completed");
    assert_eq!(script.variable("log"), json!(["a", "b", "work", "work"]));
    replays_equally(&mut script);
}

fn submit(script: &Script, node: &str, span: Option<ParallelSpan>) -> Result<String, SubmitRefusal> {
    let (run, state) = script.run(0).awp().expect("of this language");
    let plan = script.plan(0).awp().expect("of this language");
    let submission = Submission {
        definition: script.plan(0).version().clone(),
        input: wopr_core::Object::new(),
        node: node.to_owned(),
        span,
        outcome: HostOutcome::Failed {
            error: "x".to_owned(),
            code: None,
        },
    };
    let submitted = check_submission(plan, (script.id(0), run, state), submission);
    submitted.map(|submitted| submitted.step.key())
}

#[test]
fn a_submission_names_the_activity_by_its_node_and_its_branch() {
    let script = start([plan(three(all()))], json!({}));
    let spans: Vec<_> = about(&script)
        .activities
        .into_iter()
        .map(|activity| activity.span)
        .collect();
    assert_eq!(submit(&script, "b", spans[1].clone()), Ok("b:0".to_owned()));
    assert_eq!(submit(&script, "c", spans[2].clone()), Ok("c:0".to_owned()));
    assert_eq!(
        submit(&script, "c", spans[1].clone()),
        Err(SubmitRefusal::OtherSpan)
    );
    assert_eq!(submit(&script, "c", None), Err(SubmitRefusal::OtherSpan));
    let other = submit(&script, "d", spans[0].clone()).expect_err("no such activity");
    assert_eq!(other.code(), "ACTIVITY_SUBMIT_NODE_MISMATCH");
    assert_eq!(
        other.to_string(),
        "the execution waits for activities \"a\", \"b\", \"c\""
    );

    let mut script = start([plan(shared())], json!({}));
    let first = about(&script).activities[0].span.clone();
    let second = first.clone().map(|span| ParallelSpan {
        branch_name: "b".to_owned(),
        branch_entry_node_id: "b".to_owned(),
        ..span
    });
    assert_eq!(
        submit(&script, "work", second.clone()),
        Err(SubmitRefusal::OtherSpan)
    );
    done(&mut script, "work");
    assert_eq!(submit(&script, "work", first), Err(SubmitRefusal::OtherSpan));
    assert_eq!(submit(&script, "work", second), Ok("work:1".to_owned()));
}

#[test]
fn children_get_the_option() {
    let parent = document(
        "parent",
        json!({ "log": {} }),
        &[
            json!({ "id": "child", "type": "subworkflow", "config": { "workflow_ref": "branched", "input_mapping": {} } }),
        ],
        &[("start", "child"), ("child", "end")],
    );
    let script = start([plan(parent), plan(three(all()))], json!({}));
    let started = script.run(1).started.clone().expect("started");
    assert_eq!(started.configurable["parallelActivities"], true);
    assert_eq!(script.effects_of(1).len(), 3);
}

#[test]
fn a_pause_a_cancel_and_branches_of_the_run_find_all_activities() {
    let mut script = start([plan(three(all()))], json!({}));
    script.pause().expect("running");
    done(&mut script, "b");
    script.resume().expect("paused");
    assert_eq!(awaited(&script), ["a", "c"]);
    for from in 1..script.events(0).len() as u64 {
        let branch = script.fork(0, ForkMode::Branch, from).expect("forked");
        for node in ["a", "b", "c"] {
            let effect = script
                .effects_of(branch)
                .iter()
                .find(|effect| effect.step.node.as_str() == node);
            let Some(effect) = effect.cloned() else { continue };
            let ended = Command::Effect {
                step: effect.step,
                attempt: effect.attempt,
                outcome: Ok(wopr_core::Object::new()),
                retry_after_ms: None,
            };
            script.tell(branch, ended).expect("under way");
        }
        assert_eq!(
            script.status_of(branch),
            "completed",
            "from {from}\n{}",
            script.log(branch)
        );
    }
    script.cancel().expect("running");
    assert_eq!(script.status(), "cancelled");
    assert_eq!(awaited(&script), Vec::<String>::new());
}
