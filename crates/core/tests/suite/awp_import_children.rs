//! Histories of Agent Workflow runs with sub-workflows: all of their runs become runs again, or none does.

use std::sync::Arc;

use serde_json::{Value, json};
use wopr_core::{
    Asked, Command, Event, Failure, ForkMode, Imported, KernelEvent, Object, Plan, RunMessage,
    awp::ImportError,
};
use wopr_testkit::Script;

use crate::{
    awp::{document, set, tool},
    awp_import::{export_run, id, import_all, numbered, object, plan, terms, unnamed},
};

/// A parent that asks a person between two sub-workflows, of which the first has one of its own.
pub(crate) fn family() -> [Arc<Plan>; 3] {
    let sub = |id: &str, of: &str| {
        json!({ "id": id, "type": "subworkflow", "config": {
            "workflow_ref": of, "input_mapping": { "task": "${ .task }", "n": "${ .n }" },
        } })
    };
    let nodes = [
        set("count", json!({ "n": { "jq": "(.n // 0) + 1" } })),
        sub("outer", "middle"),
        json!({ "id": "review", "type": "interrupt", "config": { "prompt": "?", "resume_schema": { "type": "object" } } }),
        json!({ "id": "again", "type": "switch", "config": {
            "cases": [{ "when": ".n < 2", "target": "count" }], "default": "last",
        } }),
        sub("last", "small"),
    ];
    let edges = [
        ("start", "count"),
        ("count", "outer"),
        ("outer", "review"),
        ("review", "again"),
        ("last", "end"),
    ];
    let log = json!({ "log": { "reducer": "append" }, "n": { "type": ["integer", "null"] } });
    let parent = document("parent", log.clone(), &nodes, &edges);
    let middle = document(
        "middle",
        log.clone(),
        &[
            tool("first"),
            sub("inner", "urn:awp:wf:small"),
            json!({ "id": "ask", "type": "interrupt", "config": { "prompt": "!", "resume_schema": { "type": "object" } } }),
        ],
        &[
            ("start", "first"),
            ("first", "inner"),
            ("inner", "ask"),
            ("ask", "end"),
        ],
    );
    let small = document(
        "small",
        log,
        &[tool("work")],
        &[("start", "work"), ("work", "end")],
    );
    [plan(parent), plan(middle), plan(small)]
}

pub(crate) fn started() -> Script {
    Script::of_plans(family())
        .start_configured(json!({ "task": "mend it" }), json!({ "executionId": "first" }))
}

/// Gives the runs the next thing that one of them waits for. Returns `false` if the root has ended.
pub(crate) fn step(script: &mut Script, n: usize) -> bool {
    if script.run(0).status.is_terminal() {
        return false;
    }
    for run in (0..script.n_runs()).rev() {
        let plan = script.plan(run).clone();
        let awaited = script.run(run).activities(&plan).next();
        if let Some((step, attempt)) = awaited.map(|(step, attempt, _)| (step, attempt)) {
            let outcome = Ok(object(json!({ "log": format!("{} {n}", step.node) })));
            let command = Command::Effect {
                step,
                attempt,
                outcome,
                retry_after_ms: None,
            };
            script.tell(run, command).expect("under way");
            return true;
        }
        let own = script.run(run).interrupts(&plan);
        let own = own.filter(|open| matches!(open.asked, Asked::Here(_)));
        let node = own.map(|open| open.node.clone()).next();
        if let Some(node) = node {
            script
                .answer_in(run, node.as_str(), json!({ "said": n }))
                .expect("open");
            return true;
        }
    }
    panic!("nothing is awaited\n{}", script.log(0))
}

/// The rows of all runs below the root, with their plans.
pub(crate) fn children(script: &Script) -> Vec<(Arc<Plan>, Vec<Value>)> {
    let runs = 1..script.n_runs();
    runs.map(|run| (script.plan(run).clone(), export_run(script, run)))
        .collect()
}

fn import(script: &Script) -> Result<Imported, ImportError> {
    import_all(script.plan(0), export_run(script, 0), children(script), &terms())
}

fn refused(
    script: &Script,
    change: impl FnOnce(&mut Vec<Value>, &mut Vec<(Arc<Plan>, Vec<Value>)>),
) -> String {
    let (mut rows, mut children) = (export_run(script, 0), children(script));
    change(&mut rows, &mut children);
    let error = import_all(script.plan(0), rows, children, &terms()).expect_err("refused");
    error.to_string()
}

/// The rows of all runs, without what has another name in a copy.
fn all(script: &Script) -> Vec<Vec<Value>> {
    let runs = 0..script.n_runs();
    let mut all: Vec<_> = runs.map(|run| unnamed(&export_run(script, run))).collect();
    // The children of a copy are in another order.
    all[1..].sort_by_key(|rows| Value::Array(rows.clone()).to_string());
    all
}

/// Compares the rows of all runs one by one.
fn check_same(copy: &Script, script: &Script, what: &str) {
    let (copy, script) = (all(copy), all(script));
    assert_eq!(copy.len(), script.len(), "{what}");
    for (run, (copy, script)) in copy.iter().zip(&script).enumerate() {
        for (copy, script) in copy.iter().zip(script) {
            assert_eq!(copy, script, "{what}, run {run}");
        }
        assert_eq!(copy.len(), script.len(), "{what}, run {run}");
    }
}

fn copy_of(script: &Script, imported: &Imported) -> Script {
    let plans = (0..script.n_runs()).map(|run| script.plan(run).clone());
    // It may go on to workflows of which there is no run yet.
    let mut copy = Script::of_plans(plans.chain(family().into_iter().skip(1)));
    copy.skip(u64::try_from(script.now().millis() - copy.now().millis()).expect("later"));
    copy.adopt_all(id(), imported);
    copy
}

#[test]
fn runs_with_children_are_imported_wherever_they_wait_and_go_on_alike() {
    let mut whole = started();
    let mut n = 0;
    while step(&mut whole, n) {
        n += 1;
    }
    assert_eq!(whole.run(0).status.as_str(), "completed", "{}", whole.log(0));
    assert_eq!(whole.n_runs(), 6);
    let (mut script, mut n) = (started(), 0);
    loop {
        let imported = import(&script).unwrap_or_else(|error| panic!("{n}: {error}"));
        assert_eq!(imported.children.len() + 1, script.n_runs(), "step {n}");
        for child in &imported.children {
            let started = child.decision.run.started.as_ref().expect("it has started");
            let name = started.configurable["executionId"].as_str().expect("a name");
            assert!(name.starts_with("copy:sub:"), "{name}");
            let source = started.metadata["imported"]["executionId"].as_str();
            assert_eq!(source, Some(name.replacen("copy", "first", 1).as_str()));
            assert_eq!(started.metadata["contentTrust"], "untrusted");
        }
        let mut copy = copy_of(&script, &imported);
        check_same(&copy, &script, &format!("step {n}"));
        assert_eq!(copy.status(), script.status(), "step {n}");
        let mut at = n;
        while step(&mut copy, at) {
            at += 1;
        }
        check_same(&copy, &whole, &format!("from step {n} on"));
        if !step(&mut script, n) {
            break;
        }
        n += 1;
    }
    assert_eq!(n, 9);
}

#[test]
fn replays_of_imported_runs_with_children_equal_them() {
    let (mut script, mut n) = (started(), 0);
    loop {
        let mut copy = copy_of(&script, &import(&script).expect("imported"));
        let mut at = n;
        while step(&mut copy, at) {
            at += 1;
        }
        let (completed, state) = (copy.run(0).outputs.clone(), copy.run(0).variables().clone());
        for from in 0..copy.run(0).head.0 {
            let fork = copy.fork(0, ForkMode::Replay, from).expect("forked");
            let fork = copy.run(fork);
            assert_eq!(fork.status.as_str(), "completed", "step {n}, from {from}");
            assert_eq!(fork.outputs, completed, "step {n}, from {from}");
            assert_eq!(*fork.variables(), state, "step {n}, from {from}");
            let diverged = fork.forked.and_then(|forked| forked.diverged_at);
            assert_eq!(diverged, None, "step {n}, from {from}");
        }
        if !step(&mut script, n) {
            break;
        }
        n += 1;
    }
}

#[test]
fn a_parent_hears_after_the_import_what_its_rows_do_not_say_yet() {
    let mut script = started();
    step(&mut script, 0);
    script.hold_mail();
    step(&mut script, 1);
    // The grandchild has ended, and its parent does not know.
    assert_eq!(script.run(2).status.as_str(), "completed");
    let imported = import(&script).expect("imported");
    let last = imported.children.last().expect("a grandchild");
    let messages = &last.decision.work.messages;
    let (to, _, message) = &messages[0];
    assert_eq!((to, messages.len()), (&imported.children[0].child.run, 1));
    assert!(matches!(message, RunMessage::ChildEnded { .. }), "{message:?}");
    let copy = copy_of(&script, &imported);
    script.deliver();
    check_same(&copy, &script, "after the delivery");
    assert_eq!(copy.status(), "waiting-input");
}

#[test]
fn cancelled_and_failed_runs_are_imported_with_their_children() {
    for n in 0..4 {
        let mut script = started();
        (0..n).for_each(|n| {
            step(&mut script, n);
        });
        script.cancel().expect("it runs");
        let imported = import(&script).unwrap_or_else(|error| panic!("{n}: {error}"));
        assert_eq!(imported.decision.run.status.as_str(), "cancelled", "{n}");
        let copy = copy_of(&script, &imported);
        check_same(&copy, &script, &format!("cancelled after {n}"));
        // The parent of the last child has cancelled it, if it was not over.
        let last = copy.n_runs() - 1;
        let parent = copy.run(last).parent().expect("a parent").run.clone();
        let ended = copy.events(last).last().expect("an event");
        if let Event::Kernel(KernelEvent::RunCancelled { parent: by, .. }) = &ended.event {
            assert_eq!(by.as_ref(), Some(&parent), "{n}");
        }
    }
    let mut script = started();
    let plan = script.plan(1).clone();
    let (step, attempt, _) = script.run(1).activities(&plan).next().expect("awaited");
    let command = Command::Effect {
        step,
        attempt,
        outcome: Err(Failure::new("BROKEN", "it broke")),
        retry_after_ms: None,
    };
    script.tell(1, command).expect("under way");
    let imported = import(&script).expect("imported");
    assert_eq!(imported.decision.run.status.as_str(), "failed");
    check_same(&copy_of(&script, &imported), &script, "failed");
}

#[test]
fn a_child_that_could_not_start_is_no_run_here_either() {
    let node = json!({ "id": "sub", "type": "subworkflow", "config": { "workflow_ref": "nobody", "input_mapping": {} } });
    let parent = document("parent", json!({}), &[node], &[("start", "sub"), ("sub", "end")]);
    let script = Script::of_plans([plan(parent)]).start(json!({}));
    assert_eq!(script.run(0).status.as_str(), "failed");
    let imported = import(&script).expect("imported");
    assert_eq!(imported.children, []);
    check_same(&copy_of(&script, &imported), &script, "without a child");
}

/// The host that imports cannot know what the other one could not start, and why.
#[test]
fn a_child_that_could_not_start_fails_with_the_words_of_its_rows() {
    let pin = "0".repeat(64);
    let node = json!({ "id": "sub", "type": "subworkflow", "config": {
        "workflow_ref": "child", "version_pin": pin, "input_mapping": {},
    } });
    let parent = document("parent", json!({}), &[node], &[("start", "sub"), ("sub", "end")]);
    let child = document(
        "child",
        json!({}),
        &[tool("work")],
        &[("start", "work"), ("work", "end")],
    );
    let script = Script::of_plans([plan(parent), plan(child)]).start(json!({}));
    let failed = script.run(0).error.clone().expect("failed");
    assert_eq!(failed.0.code, "child_version_mismatch");
    let imported = import(&script).expect("imported");
    assert_eq!(imported.children, []);
    check_same(&copy_of(&script, &imported), &script, "another version");

    // Another engine has words of its own.
    let mut rows = export_run(&script, 0);
    let fail = rows
        .iter()
        .position(|row| row["name"] == "FailNode")
        .expect("failed");
    let with = |rows: &mut [Value], code: Value, message: Value| {
        rows[fail]["payload"]["code"] = code;
        rows[fail]["payload"]["message"] = message;
    };
    let parent = script.plan(0).clone();
    with(
        &mut rows,
        json!("subworkflow_depth_exceeded"),
        json!("runs nest too deep"),
    );
    let imported = import_all(&parent, rows.clone(), Vec::new(), &terms()).expect("imported");
    let (error, _) = imported.decision.run.error.as_ref().expect("failed");
    assert_eq!(
        (&*error.code, &*error.message, error.reason.as_deref()),
        (
            "subworkflow_depth_exceeded",
            "runs nest too deep",
            Some("subworkflow_failed")
        )
    );
    with(&mut rows, Value::Null, json!("x".repeat((8 << 10) + 1)));
    let error = import_all(&parent, rows, Vec::new(), &terms()).expect_err("refused");
    let row = fail + 1;
    assert_eq!(
        error.to_string(),
        format!("row {row}: message must have at most 8192 bytes")
    );
}

#[test]
fn a_child_with_the_name_of_a_built_in_reference_is_imported() {
    let node = json!({ "id": "sub", "type": "subworkflow", "config": {
        "workflow_ref": "urn:awp:wf:unit-tests", "input_mapping": {},
    } });
    let parent = document("parent", json!({}), &[node], &[("start", "sub"), ("sub", "end")]);
    for name in ["unit-tests", "r3-unit-tests-child"] {
        let work = tool("work");
        let child = document(name, json!({}), &[work], &[("start", "work"), ("work", "end")]);
        let mut script = Script::of_plans([plan(parent.clone()), plan(child)]).start(json!({}));
        loop {
            let imported = import(&script).expect("imported");
            assert_eq!(imported.children.len(), 1, "{name}");
            check_same(&copy_of(&script, &imported), &script, name);
            if !step(&mut script, 0) {
                break;
            }
        }
    }
}

#[test]
fn histories_that_do_not_belong_together_are_refused_by_name() {
    let mut script = started();
    for n in 0..4 {
        step(&mut script, n);
    }
    import(&script).expect("they do belong together");
    let none = refused(&script, |_, children| drop(children.remove(0)));
    assert!(
        none.ends_with(
            "node \"outer\" has started the sub-workflow \"first:sub:outer\": send its history along, with its definition"
        ),
        "{none}"
    );
    let none = refused(&script, |_, children| drop(children.remove(1)));
    assert!(
        none.starts_with("sub-workflow \"first:sub:outer\": row ")
            && none.contains("first:sub:outer:sub:inner"),
        "{none}"
    );
    let twice = refused(&script, |_, children| children.push(children[0].clone()));
    assert_eq!(
        twice,
        "there are two histories of the execution \"first:sub:outer\""
    );
    let parent = script.plan(0).clone();
    let root = refused(&script, |rows, children| {
        children.push((parent.clone(), rows.clone()));
    });
    assert_eq!(root, "there are two histories of the execution \"first\"");
    let stranger = refused(&script, |_, children| {
        let text = Value::Array(children[1].1.clone())
            .to_string()
            .replace("first:", "other:");
        let rows = serde_json::from_str(&text).expect("JSON");
        children.push((children[1].0.clone(), rows));
    });
    assert_eq!(
        stranger,
        "there is a history of \"other:sub:outer:sub:inner\", and no row starts it as a sub-workflow"
    );
    let of_another = refused(&script, |_, children| {
        let small = children[1].0.clone();
        children[0].0 = small;
    });
    assert_eq!(
        of_another,
        "sub-workflow \"first:sub:outer\": row 1: workflowName is that of another definition"
    );
    let swapped = refused(&script, |rows, _| {
        let row = rows.iter_mut().find(|row| row["name"] == "StartSubworkflow");
        row.expect("a child")["payload"]["childExecutionId"] = "first:sub:outer:sub:inner".into();
    });
    assert_eq!(
        swapped,
        "there is a history of \"first:sub:outer\", and no row starts it as a sub-workflow"
    );
    let again = refused(&script, |rows, children| {
        let small = &children[1];
        rows.truncate(
            rows.iter()
                .position(|row| row["name"] == "SubworkflowCompleted")
                .unwrap_or(rows.len()),
        );
        children.push(small.clone());
    });
    assert!(again.starts_with("there are two histories"), "{again}");
}

#[test]
fn histories_of_children_are_compared_like_those_of_their_parents() {
    let mut script = started();
    for n in 0..5 {
        step(&mut script, n);
    }
    import(&script).expect("genuine");
    let at = |rows: &[Value], name: &str| rows.iter().position(|row| row["name"] == name).expect("a row");
    // The parent has gone on, and the child did not end.
    let open = refused(&script, |_, children| {
        let end = at(&children[0].1, "ResumeInterrupt");
        children[0].1.truncate(end);
    });
    assert!(
        open.ends_with(
            "the sub-workflow \"first:sub:outer\" of node \"outer\" has ended, and by its own history it has not"
        ),
        "{open}"
    );
    let forged = refused(&script, |_, children| {
        let end = at(&children[1].1, "ActivityCompleted");
        children[1].1[end]["payload"]["result"]["log"] = "forged".into();
    });
    assert!(
        forged.starts_with("sub-workflow \"first:sub:outer:sub:inner\": row ")
            && forged.contains("output is not"),
        "{forged}"
    );
    // Consistent in itself, but not with the parent.
    let forged = refused(&script, |_, children| {
        let text = Value::Array(children[0].1.clone())
            .to_string()
            .replace("first 0", "forged");
        children[0].1 = serde_json::from_str(&text).expect("JSON");
    });
    assert!(
        forged.starts_with("row ")
            && forged.contains("output is not what the definition makes of node \"outer\""),
        "{forged}"
    );
    let inputs = refused(&script, |_, children| {
        children[0].1[0]["payload"]["inputKeys"] = json!(["task"]);
    });
    assert!(
        inputs.contains("sub-workflow \"first:sub:outer\": row 1: inputKeys"),
        "{inputs}"
    );
    let order = refused(&script, |_, children| {
        let end = at(&children[0].1, "ScheduleNode");
        children[0].1[end]["payload"]["nodeId"] = "ask".into();
    });
    assert!(
        order.contains("Deterministic replay mismatch at command index 1"),
        "{order}"
    );
    let missing = refused(&script, |rows, children| {
        let begin = at(rows, "StartSubworkflow");
        rows.truncate(begin);
        children.clear();
    });
    assert!(
        missing.contains("goes on with a sub-workflow, which an import cannot start"),
        "{missing}"
    );
}

#[test]
fn the_reference_engine_s_children_are_runs_of_their_own() {
    let at = "2026-06-24T12:00:00.000Z";
    let rows = |execution: &str, rows: &[(&str, &str, Value)]| {
        let row = |(kind, name, payload): &(&str, &str, Value)| {
            let mut payload = object(payload.clone());
            payload.insert("executionId".to_owned(), execution.into());
            json!({ "execution_id": execution, "kind": kind, "name": name, "payload": payload, "created_at": at,
                "record_schema_version": 1 })
        };
        numbered(rows.iter().map(row))
    };
    let (c, e) = ("command", "event");
    let node = |node: &str| json!({ "nodeId": node });
    let out = |node: &str, output: Value| json!({ "nodeId": node, "output": output });
    let state = |node: &str, state: Value| json!({ "nodeId": node, "state": state });
    let child =
        json!({ "nodeId": "sub", "workflowRef": "urn:awp:wf:small", "childExecutionId": "p:sub:sub" });
    let ended = json!({
        "nodeId": "sub", "workflowRef": "urn:awp:wf:small", "parentExecutionId": "p", "childExecutionId": "p:sub:sub",
        "childFinalState": { "k": 1, "ok": true }, "childResult": { "ok": true }, "mergedOutput": { "k": 1, "ok": true },
    });
    let mut repeated = ended.clone();
    repeated["replayed"] = true.into();
    let parent_rows = rows(
        "p",
        &[
            (
                e,
                "ExecutionStarted",
                json!({ "workflowName": "parent", "workflowVersion": "1", "inputKeys": ["k"] }),
            ),
            (c, "ScheduleNode", node("start")),
            (e, "NodeScheduled", node("start")),
            (c, "CompleteNode", out("start", json!({}))),
            (e, "StateUpdated", state("start", json!({ "k": 1 }))),
            (c, "ScheduleNode", node("sub")),
            (e, "NodeScheduled", node("sub")),
            (c, "StartSubworkflow", child.clone()),
            (e, "SubworkflowStarted", child.clone()),
            (e, "SubworkflowCompleted", ended),
            (c, "CompleteSubworkflow", child),
            (c, "CompleteNode", out("sub", json!({ "k": 1, "ok": true }))),
            (e, "StateUpdated", state("sub", json!({ "k": 1, "ok": true }))),
            (c, "ScheduleNode", node("review")),
            (e, "NodeScheduled", node("review")),
            (c, "RaiseInterrupt", json!({ "nodeId": "review", "prompt": "?" })),
            (e, "InterruptRaised", json!({ "nodeId": "review", "prompt": "?" })),
            // Gone through again.
            (e, "NodeScheduled", node("sub")),
            (e, "SubworkflowCompleted", repeated),
            (e, "StateUpdated", state("sub", json!({ "k": 1, "ok": true }))),
        ],
    );
    let child_rows = rows(
        "p:sub:sub",
        &[
            (
                e,
                "ExecutionStarted",
                json!({ "workflowName": "small", "workflowVersion": "1", "inputKeys": ["k"] }),
            ),
            (c, "ScheduleNode", node("start")),
            (e, "NodeScheduled", node("start")),
            (c, "CompleteNode", out("start", json!({}))),
            (e, "StateUpdated", state("start", json!({ "k": 1.0 }))),
            (c, "ScheduleNode", node("work")),
            (e, "NodeScheduled", node("work")),
            (
                e,
                "ActivityRequested",
                json!({ "nodeId": "work", "nodeType": "tool_call", "attempt": 1 }),
            ),
            (
                e,
                "ActivityCompleted",
                json!({ "nodeId": "work", "result": { "ok": true } }),
            ),
            (c, "CompleteNode", out("work", json!({ "ok": true }))),
            (e, "StateUpdated", state("work", json!({ "k": 1, "ok": true }))),
            (c, "ScheduleNode", node("end")),
            (e, "NodeScheduled", node("end")),
            (c, "CompleteNode", out("end", json!({}))),
            (e, "ExecutionCompleted", json!({ "result": { "ok": true } })),
        ],
    );
    let nodes = [
        json!({ "id": "sub", "type": "subworkflow", "config": {
            "workflow_ref": "urn:awp:wf:small", "input_mapping": { "k": "${ .k }" },
        } }),
        json!({ "id": "review", "type": "interrupt", "config": { "prompt": "?", "resume_schema": { "type": "object" } } }),
    ];
    let parent = document(
        "parent",
        json!({}),
        &nodes,
        &[("start", "sub"), ("sub", "review"), ("review", "end")],
    );
    let mut small = document(
        "small",
        json!({}),
        &[tool("work")],
        &[("start", "work"), ("work", "end")],
    );
    let end = small["nodes"]
        .as_array_mut()
        .expect("nodes")
        .last_mut()
        .expect("an end");
    end["config"] = json!({ "output_mapping": "{ok}" });
    let mut terms = terms();
    terms.configurable = Object::new();
    let imported = import_all(
        &plan(parent),
        parent_rows,
        vec![(plan(small), child_rows)],
        &terms,
    );
    let imported = imported.expect("imported");
    assert_eq!(imported.decision.run.status.as_str(), "waiting-input");
    let child = &imported.children[0].decision.run;
    assert_eq!(child.status.as_str(), "completed");
    assert_eq!(
        child.outputs.as_ref().expect("outputs")["result"],
        json!({ "ok": true })
    );
}
