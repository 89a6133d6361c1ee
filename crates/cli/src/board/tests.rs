use serde_json::json;

use super::*;
use crate::examples::second_opinion;

fn event(kind: &str, node: &str, payload: &Value) -> RunEventDoc {
    let event = json!({
        "eventId": "run_1.0", "runId": "run_1", "type": kind, "nodeId": node, "sequence": 0,
        "timestamp": "2026-01-01T00:00:00.000Z", "schemaVersion": 1, "payload": payload,
    });
    serde_json::from_value(event).unwrap()
}

/// The line of the step after each event, whether it is under way or over.
fn lines(events: &[(&str, Value)]) -> Vec<String> {
    let mut board = Board::new(&second_opinion::ASKS.document().unwrap());
    let line = |(kind, payload): &(&str, Value)| {
        let over = board.take(&event(kind, "sceptic", payload));
        let step = over.as_ref().or(board.steps().first()).unwrap();
        board.line(Paint::off(), step, 80)
    };
    events.iter().map(line).collect()
}

#[test]
fn a_call_is_shown_from_its_message_to_its_answer() {
    let asked = json!({
        "kind": "clarification", "key": "sceptic:0",
        "data": { "source": "remote", "peer": "sceptic", "message": "How is it\nundone?", "questions": [] },
    });
    let said = lines(&[
        ("node.started", json!({})),
        ("vendor.wopr.effect.scheduled", json!({ "provider": "agent" })),
        (
            "vendor.wopr.effect.accepted",
            json!({ "peer": "sceptic", "taskId": "task-7" }),
        ),
        ("interrupt.requested", asked),
        ("node.resumed", json!({})),
        ("output.chunk", json!({ "chunk": "First.\nSec" })),
        ("output.chunk", json!({ "chunk": "ond\u{1b}[2J." })),
        (
            "node.completed",
            json!({ "outputs": { "text": "First.\nSecond.", "state": "completed" } }),
        ),
    ]);
    let name = "Ask the sceptic       sceptic/doubt  ";
    let expected = [
        "working",
        "sending",
        "working  on task task-7",
        "asks  How is it undone?",
        "working",
        "streaming  Sec",
        "streaming  Second[2J.",
        "completed  First. Second.",
    ];
    assert_eq!(said, expected.map(|state| format!("{name}{state}")));
}

#[test]
fn workers_are_lines_below_the_dispatch_and_show_who_has_the_baton() {
    let mut board = Board::new(&Value::Null);
    let handed = |phase: &str, worker: &str| json!({ "phase": phase, "workerId": worker, "childRunId": format!("run_{worker}") });
    let decided = json!({ "decision": {
        "kind": "next-worker", "nextWorkerIds": ["ada", "bob"], "confidence": 0.9,
    } });
    board.take(&event("node.started", "plan", &json!({})));
    board.take(&event("runOrchestrator.decided", "plan", &decided));
    let shown = |board: &Board| -> Vec<_> {
        let steps = board.steps().iter();
        steps.map(|step| board.line(Paint::off(), step, 80)).collect()
    };
    assert_eq!(
        shown(&board),
        ["plan                  decides  hands over to ada, bob (confidence 0.9)"]
    );
    let outputs = json!({ "kind": "next-worker", "decision": decided["decision"], "iteration": 1 });
    let over = board.take(&event("node.completed", "plan", &json!({ "outputs": outputs })));
    assert_eq!(
        board.line(Paint::off(), &over.unwrap(), 80),
        "plan                  completed  hands over to ada, bob (confidence 0.9)"
    );
    board.take(&event("node.started", "dispatch", &json!({})));
    for worker in ["ada", "bob"] {
        board.take(&event(
            "core.workflowChain.event",
            "dispatch",
            &handed("dispatch.began", worker),
        ));
        board.take(&event(
            "core.workflowChain.event",
            "dispatch",
            &handed("dispatch.succeeded", worker),
        ));
    }
    let baton = [
        "dispatch              running",
        "└ ada                 running",
        "└ bob                 running",
    ];
    assert_eq!(shown(&board), baton);
    let over = board.take(&event(
        "core.workflowChain.event",
        "dispatch",
        &handed("child.completed", "ada"),
    ));
    assert_eq!(
        board.line(Paint::off(), &over.unwrap(), 80),
        "└ ada                 completed"
    );
    assert_eq!(shown(&board), [baton[0], baton[2]]);
}

fn event_of(run: &str, kind: &str, node: &str, payload: &Value) -> RunEventDoc {
    RunEventDoc {
        run_id: run.to_owned(),
        ..event(kind, node, payload)
    }
}

fn shown(board: &Board) -> Vec<String> {
    let steps = board.steps().iter();
    steps
        .map(|step| board.line(Paint::off(), step, 80).trim_end().to_owned())
        .collect()
}

/// A supervisor hands over to a run that has a supervisor itself.
#[test]
fn steps_of_child_runs_are_a_tree_that_goes_with_its_top() {
    let mut board = Board::new(&Value::Null);
    let next = json!({ "decision": { "kind": "next-worker", "nextWorkerIds": ["w"] } });
    let dispatched = |child: &str| json!({ "childRunId": child, "childWorkflowId": "w" });
    let phase = |phase: &str, child: &str| json!({ "phase": phase, "workerId": child, "childRunId": child });
    for (run, child) in [("run_1", "ada"), ("ada", "bob")] {
        board.take(&event_of(run, "runOrchestrator.decided", "plan", &next));
        board.take(&event_of(run, "node.completed", "plan", &json!({})));
        board.take(&event_of(run, "node.started", "dispatch", &json!({})));
        board.take(&event_of(
            run,
            "core.workflowChain.event",
            "dispatch",
            &phase("dispatch.began", child),
        ));
        board.take(&event_of(run, "node.dispatched", "dispatch", &dispatched(child)));
        board.take(&event_of(
            run,
            "core.workflowChain.event",
            "dispatch",
            &phase("dispatch.succeeded", child),
        ));
    }
    let definition = json!({ "nodes": [{ "id": "think", "name": "Think hard" }] });
    board.describe("bob", &definition);
    board.take(&event_of("bob", "node.started", "think", &json!({})));
    // It is beside the steps below the first worker, and after them.
    board.take(&event_of("run_1", "node.started", "beside", &json!({})));
    let tree = [
        "dispatch              running",
        "└ ada                 running",
        "  dispatch            running",
        "  └ bob               running",
        "    Think hard        running",
        "beside                running",
    ];
    assert_eq!(shown(&board), tree);
    board.take(&event_of("ada", "node.started", "other", &json!({})));
    assert_eq!(shown(&board)[5], "  other               running");
    let over = board.take(&event_of(
        "run_1",
        "core.workflowChain.event",
        "dispatch",
        &phase("child.completed", "ada"),
    ));
    assert!(over.is_some_and(|step| step.is_over()));
    assert_eq!(shown(&board), [tree[0], tree[5]]);
    // What comes late has no place.
    assert_eq!(
        board.take(&event_of("bob", "node.started", "think", &json!({}))),
        None
    );
    assert_eq!(
        board.take(&event_of("bob", "node.failed", "think", &json!({}))),
        None
    );
    assert_eq!(shown(&board).len(), 2);
}

#[test]
fn joins_and_decisions_that_a_person_judges_are_shown() {
    let said = lines(&[
        (
            "core.dispatch.fanOut",
            json!({ "childCount": 3, "joinMode": "quorum" }),
        ),
        (
            "core.dispatch.join",
            json!({ "joinOutcome": "satisfied", "completedCount": 2, "failedCount": 0, "cancelledCount": 1 }),
        ),
        (
            "node.completed",
            json!({ "outputs": { "joinOutcome": "satisfied" } }),
        ),
        (
            "core.workflowChain.confidence-escalated",
            json!({ "confidence": 0.3, "floor": 0.5 }),
        ),
        (
            "interrupt.requested",
            json!({ "data": {
                "agentId": "lead", "observed": 0.6, "threshold": 0.7,
                "decision": { "kind": "next-worker", "nextWorkerIds": ["ada"] },
            } }),
        ),
        (
            "interrupt.requested",
            json!({ "data": { "eventType": "paid", "correlation": {} } }),
        ),
    ]);
    let ends = [
        "waits for  3 workers at the same time",
        "joins  satisfied: 2 completed, 0 failed, 1 cancelled",
        "completed  satisfied: 2 completed, 0 failed, 1 cancelled",
        "escalates  the confidence 0.3 is below 0.5",
        "asks  lead is unsure (0.6, below 0.7): hands over to ada",
        "asks  paid",
    ];
    for (line, end) in said.iter().zip(ends) {
        // Narrow lines end earlier.
        let told = line.trim_end_matches('…');
        assert!(told.contains(&end[..end.len().min(40)]), "{line}");
    }
}

#[test]
fn lines_tell_what_models_took_and_what_a_verifier_says() {
    let usage = json!({ "inputTokens": 30, "outputTokens": 4, "costEstimateUsd": 0.5 });
    let said = lines(&[
        ("node.started", json!({})),
        ("provider.usage", usage.clone()),
        ("provider.usage", usage),
        (
            "agent.verified",
            json!({ "agentId": "critic", "verdict": "revise" }),
        ),
        ("node.completed", json!({ "outputs": { "text": "Done." } })),
    ]);
    let last = said.last().expect("a line");
    assert!(last.ends_with("completed  Done.  68 tokens, 1 USD"), "{last}");
    assert!(
        said.iter()
            .any(|line| line.ends_with("judged  critic asks for a revision")),
        "{said:?}"
    );
    let mut board = Board::new(&Value::Null);
    board.spend("run_ada", Spending::of_usage(&json!({ "totalTokens": 7 })));
    let done = json!({ "phase": "child.completed", "workerId": "ada", "childRunId": "run_ada" });
    let step = board
        .take(&event("core.workflowChain.event", "plan", &done))
        .expect("it is over");
    assert!(
        board
            .line(Paint::off(), &step, 80)
            .ends_with("completed  7 tokens")
    );
}

#[test]
fn lines_fit_their_width() {
    let mut board = Board::new(&second_opinion::ASKS.document().unwrap());
    let text = "two words ".repeat(100);
    let over = board.take(&event(
        "node.completed",
        "sceptic",
        &json!({ "outputs": { "text": text } }),
    ));
    let over = over.unwrap();
    for width in [0, 1, 10, 30, 40, 80, 120] {
        let line = board.line(Paint::off(), &over, width);
        assert!(line.chars().count() <= width, "{width}: {line}");
    }
    assert!(board.line(Paint::off(), &over, 80).ends_with('…'));
}

#[test]
fn steps_that_are_over_leave_the_board() {
    let mut board = Board::new(&Value::Null);
    for node in ["a", "b"] {
        assert_eq!(board.take(&event("node.started", node, &json!({}))), None);
    }
    let failed = json!({ "error": { "code": "boom", "message": "it broke" } });
    let over = board.take(&event("node.failed", "a", &failed)).unwrap();
    assert_eq!(
        board.line(Paint::off(), &over, 80),
        "a                     failed  boom: it broke"
    );
    let left: Vec<_> = board.steps().iter().map(|step| step.node.as_str()).collect();
    assert_eq!(left, ["b"]);
    // A step that never was under way.
    let over = board.take(&event("node.skipped", "c", &json!({ "reason": "condition" })));
    assert!(over.is_some_and(|step| step.is_over()));
}

#[test]
fn a_stream_that_begins_anew_forgets_what_was_said() {
    let said = lines(&[
        ("output.chunk", json!({ "chunk": "half a ", "index": 0 })),
        ("output.chunk", json!({ "chunk": "sent", "index": 1 })),
        ("output.chunk", json!({ "chunk": "a whole ", "index": 0 })),
        ("output.chunk", json!({ "chunk": "one", "index": 1 })),
    ]);
    let said = said
        .iter()
        .map(|line| line.split_once("streaming").unwrap().1.trim());
    assert_eq!(
        said.collect::<Vec<_>>(),
        ["half a", "half a sent", "a whole", "a whole one"]
    );
}

#[test]
fn a_long_stream_keeps_its_end_only() {
    let mut board = Board::new(&Value::Null);
    for n in 0..1_000 {
        board.take(&event("output.chunk", "a", &json!({ "chunk": format!("é{n} ") })));
    }
    let [step] = board.steps() else {
        panic!("one step");
    };
    let State::Streaming(said) = &step.state else {
        panic!("{step:?}");
    };
    assert!(said.len() <= TAIL && said.ends_with("é999 "), "{said}");
}
