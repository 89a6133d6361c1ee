//! Forks: replays equal their source, and branches go their own way.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail the test that called them"
)]

#[path = "suite/awp_generated.rs"]
mod awp_generated;
#[path = "suite/fork_differences.rs"]
mod fork_differences;
#[path = "suite/fork_refusals.rs"]
mod fork_refusals;
#[path = "suite/generated.rs"]
mod generated;

use expect_test::expect;
use proptest::{collection::vec, prelude::*, test_runner::Config};
use serde_json::json;
use wopr_core::{
    Call, Command, Event, Failure, ForkMode, Given, KernelEvent, NodeTypes, Overlay, Plan, Recorded, Refusal,
    Seq, openwop::tool_workflow,
};
use wopr_testkit::{Script, Workflow};

use generated::{bring_to_an_end, over_budget, plans, tell, told, workflow};

/// What of a log is the same whenever a run is repeated. The first event says where a fork comes from.
fn deterministic(script: &Script, run: usize) -> Vec<&Event> {
    let events = script.events(run).iter().skip(1);
    events.map(|recorded| &recorded.event).collect()
}

fn resumed(script: &Script, run: usize) -> usize {
    let is_resumed =
        |event: &&Recorded| matches!(event.event, Event::Kernel(KernelEvent::ForkResumed { .. }));
    script.events(run).iter().filter(is_resumed).count()
}

/// Replays a run from each of its events, and compares.
fn check_replays(script: &mut Script, source: usize) {
    let n = script.events(source).len();
    for from in (0..n as u64).step_by(1 + n / 24) {
        let fork = script.fork(source, ForkMode::Replay, from).unwrap();
        if deterministic(script, fork) != deterministic(script, source) {
            let (a, b) = (script.log(source), script.log(fork));
            panic!("the replay from {from} differs\n{a}\n--\n{b}");
        }
        let (a, b) = (script.run(source), script.run(fork));
        assert_eq!(
            (a.status, a.variables(), a.channels()),
            (b.status, b.variables(), b.channels())
        );
        assert_eq!((&a.nodes, &a.outputs, &a.error), (&b.nodes, &b.outputs, &b.error));
        assert_eq!((a.active_ms, a.updated_at), (b.active_ms, b.updated_at));
        assert!(script.effects_of(fork).is_empty());
        assert_eq!(script.timers(fork), "");
    }
}

/// Branches a run off at each of its events, and lets each branch end.
fn check_branches(script: &mut Script, source: usize) {
    let n = script.events(source).len() as u64;
    for from in 0..n {
        let fork = script.fork(source, ForkMode::Branch, from).unwrap();
        bring_to_an_end(script, fork);
        let (kept, log) = (deterministic(script, source), deterministic(script, fork));
        let n_kept = usize::try_from(from).unwrap().saturating_sub(1);
        assert_eq!(kept[..n_kept], log[..n_kept], "from {from}");
        assert_eq!(
            resumed(script, fork),
            usize::from(from > 0),
            "from {from}\n{}",
            script.log(fork)
        );
    }
}

#[test]
fn a_replay_of_pure_nodes_equals_its_source() {
    let workflow = Workflow::new("pure")
        .variable("n", "number", json!({ "defaultValue": 0 }))
        .node(
            "a",
            "core.setVariable",
            json!({ "name": "n", "expression": "n + 1" }),
        )
        .noops("b c")
        .edges("a -> b, b -> c");
    let mut script = Script::started(&workflow);
    check_replays(&mut script, 0);
    check_branches(&mut script, 0);
}

#[test]
fn a_branch_within_a_stream_begins_the_stream_again() {
    let say = |n: usize| json!({ "chunks": vec!["x"; n] });
    let workflow = Workflow::new("said")
        .node("a", "core.stream", say(5))
        .node(
            "b",
            "core.stream",
            json!({ "chunks": ["y", "z", "!"], "intervalMs": 20 }),
        )
        .edges("a -> b");
    let mut script = Script::started(&workflow);
    bring_to_an_end(&mut script, 0);
    check_replays(&mut script, 0);
    check_branches(&mut script, 0);
    let n_runs = script.n_runs();
    for run in 0..n_runs {
        assert_eq!(script.status_of(run), "completed", "{}", script.log(run));
    }
    // One that takes several decisions to catch up.
    let long = Workflow::new("long")
        .node("a", "core.stream", say(900))
        .node("b", "core.stream", say(900));
    let mut script = Script::started(&long);
    bring_to_an_end(&mut script, 0);
    let fork = script.fork(0, ForkMode::Branch, 1_500).unwrap();
    bring_to_an_end(&mut script, fork);
    assert_eq!(script.status_of(fork), "completed", "{}", script.log(fork));
}

#[test]
fn a_replay_gets_what_its_source_got() {
    let workflow = Workflow::new("given")
        .effect("call")
        .gate("gate")
        .delay("wait", 86_400_000)
        .edges("call -> gate, gate -> wait");
    let mut script = Script::started(&workflow);
    script.outcome("call", Ok(json!({ "answer": 42 }))).unwrap();
    script
        .answer("gate", json!({ "action": "accept", "feedback": "fine" }))
        .unwrap();
    script.wait(90_000_000);
    assert_eq!(script.status(), "completed");
    check_replays(&mut script, 0);
}

/// The codes of the failures of a run's nodes.
fn failures(script: &Script, run: usize) -> Vec<String> {
    let events = script.events(run).iter();
    let failed = events.filter_map(|recorded| match &recorded.event {
        Event::Kernel(KernelEvent::NodeFailed { step, error, .. }) => {
            Some(format!("{} {}", step.node, error.code))
        }
        Event::Kernel(_) | Event::Dialect(_) => None,
    });
    failed.collect()
}

#[test]
fn a_replay_fails_what_its_source_has_no_record_of() {
    let workflow = Workflow::new("held")
        .delay("hold", 5_000)
        .effect("call")
        .edges("hold -> call");
    let mut script = Script::started(&workflow);
    script.wait(1_000);
    script.cancel().unwrap();
    let fork = script.fork(0, ForkMode::Replay, 0).unwrap();
    // The cancel of the source is none of its business. What was not recorded is waited for in full.
    assert_eq!(script.status_of(fork), "running");
    assert_eq!(script.timers(fork), "delay:0:hold in 5000");
    script.wait(5_000);
    assert_eq!(failures(&script, fork), ["call replay_source_missing"]);
    assert_eq!(script.status_of(fork), "failed");
    assert!(script.effects_of(fork).is_empty());
}

#[test]
fn a_replay_of_a_call_under_way_fails_and_takes_the_path_of_failures() {
    let workflow = Workflow::new("handled")
        .effect("call")
        .noops("rescue")
        .gate("gate")
        .edges("call -> rescue any_failed, rescue -> gate");
    let mut script = Script::started(&workflow);
    let fork = script.fork(0, ForkMode::Replay, 0).unwrap();
    assert_eq!(failures(&script, fork), ["call replay_source_missing"]);
    assert_eq!(script.status_of(fork), "waiting-approval");
    assert_eq!(script.status(), "running");
    // From here on it takes answers as any run does.
    script
        .answer_in(fork, "gate", json!({ "approve": true }))
        .unwrap();
    assert_eq!(script.status_of(fork), "completed");
    // A replay of that replay is its equal.
    check_replays(&mut script, fork);
}

#[test]
fn a_replay_of_calls_of_tools_equals_its_source() {
    let tool = |name: &str| json!({ "tool": name, "arguments": { "n": 1 } });
    let workflow = Workflow::new("tools")
        .node("first", "core.mcp.toolCall", tool("read"))
        .node("second", "core.mcp.toolCall", tool("write"))
        .noops("rescue")
        .edges("first -> second, second -> rescue any_failed");
    let mut script = Script::started(&workflow);
    let away = Failure {
        retryable: true,
        ..Failure::new("tool_server_unavailable", "it is away")
    };
    script.outcome("first", Err(away)).unwrap();
    script.wait(60_000);
    let given = json!({ "text": "1", "contentTrust": "untrusted" });
    script.outcome("first", Ok(given)).unwrap();
    let unknown = Failure::new("outcome_unknown", "nobody knows");
    script.outcome("second", Err(unknown)).unwrap();
    assert_eq!(script.status(), "completed");
    expect![[r#"
        0 run.started
        1 node.started first
        2 agent.tool.called first:0 host:tool:first first:0:0 read {"n":1}
        3 effect.scheduled first tool
        4 node.retried first attempt 1 in 1000 tool_server_unavailable: it is away
        5 node.started first attempt 1
        6 effect.scheduled first tool
        7 agent.tool.returned first:0 host:tool:first first:0:0 ok {"contentTrust":"untrusted","text":"1"}
        8 node.completed first {"contentTrust":"untrusted","text":"1"}
        9 node.started second
        10 agent.tool.called second:0 host:tool:second second:0:0 write {"n":1}
        11 effect.scheduled second tool
        12 agent.tool.returned second:0 host:tool:second second:0:0 error outcome_unknown
        13 node.failed second outcome_unknown: nobody knows
        14 node.started rescue
        15 node.completed rescue
        16 run.completed"#]]
    .assert_eq(&script.log(0));
    check_replays(&mut script, 0);
}

#[test]
fn children_of_a_replay_are_those_of_its_source() {
    let child = Workflow::new("child")
        .variable("out", "string", json!({}))
        .gate("gate")
        .node(
            "set",
            "core.setVariable",
            json!({ "name": "out", "value": "said" }),
        )
        .edges("gate -> set");
    let parent = Workflow::new("parent").variable("got", "string", json!({})).node(
        "sub",
        "core.subWorkflow",
        json!({ "workflowId": "child", "outputMapping": { "got": "out" } }),
    );
    let mut script = Script::of(&[&parent, &child]).start(json!({}));
    script.answer_in(1, "gate", json!({ "approve": true })).unwrap();
    assert_eq!(script.variable("got"), "said");
    check_replays(&mut script, 0);
    check_replays(&mut script, 1);
    let n_runs = script.n_runs();
    let fork = script.fork(0, ForkMode::Replay, 0).unwrap();
    assert_eq!(script.n_runs(), n_runs + 1, "no child is created");
    assert_eq!(script.run(fork).children[0].run, *script.id(1));
    // The fork of a child has no parent to report to.
    let fork = script.fork(1, ForkMode::Replay, 0).unwrap();
    assert_eq!(script.run(fork).parent(), None);
    // A branch creates a child of its own.
    let branch = script.fork(0, ForkMode::Branch, 1).unwrap();
    assert_ne!(script.run(branch).children[0].run, *script.id(1));
}

#[test]
fn forks_go_on_with_the_tools_of_a_model() {
    let tools = json!([{ "workflow": "gated" }, { "workflow": "none" }, { "workflow": "said" }]);
    let workflow = Workflow::new("asking").node(
        "n",
        "core.ai.callPrompt",
        json!({ "prompt": "?", "tools": tools, "stream": false }),
    );
    let gated = Workflow::new("gated").gate("gate");
    let said = Workflow::new("said").node("say", "core.template", json!({ "template": "so" }));
    let mut script = Script::of(&[&workflow, &gated, &said]).start(json!({}));
    let call = |name: &str| json!({ "id": name, "name": name, "arguments": {} });
    let reply = |calls: serde_json::Value| {
        json!({
            "provider": "p", "model": "m", "text": "t", "stop": "end", "toolCalls": calls,
            "usage": { "inputTokens": 1, "outputTokens": 1 },
        })
    };
    for _ in 0..2 {
        let calls = ["said", "none", "gated", "unknown"].map(call);
        script.outcome("n", Ok(reply(json!(calls)))).unwrap();
        let asking = script.n_runs() - 1;
        script
            .answer_in(asking, "gate", json!({ "approve": true }))
            .unwrap();
    }
    script.outcome("n", Ok(reply(json!([])))).unwrap();
    assert_eq!(script.status(), "completed");
    check_replays(&mut script, 0);
    check_branches(&mut script, 0);
    // A branch within the calls begins those again that had not returned, and asks no model before they have.
    let n_dispatched = |script: &Script, run: usize| {
        let is_child =
            |event: &&Recorded| matches!(event.event, Event::Kernel(KernelEvent::NodeDispatched { .. }));
        script.events(run).iter().filter(is_child).count()
    };
    let ended = |event: &Recorded| matches!(event.event, Event::Kernel(KernelEvent::ChildEnded { .. }));
    let last = script.events(0).iter().rposition(ended).unwrap();
    let branch = script.fork(0, ForkMode::Branch, last as u64).unwrap();
    assert_eq!(script.status_of(branch), "waiting-approval");
    assert!(script.effects_of(branch).is_empty());
    assert_eq!(n_dispatched(&script, branch), 5);
}

#[test]
fn forks_go_on_with_the_tools_of_servers() {
    let workflow = Workflow::new("asking").node(
        "n",
        "core.ai.callPrompt",
        json!({ "prompt": "?", "tools": [{ "server": "s" }], "stream": false }),
    );
    let tools = Plan::admit(tool_workflow(), NodeTypes::default()).expect("valid");
    let mut script = Script::of_plans([workflow.plan(), std::sync::Arc::new(tools)]).start(json!({}));
    let listed = |tool: &str| json!({ "server": "s", "tool": tool, "inputSchema": { "type": "object" } });
    let list = json!({ "tools": [listed("look"), listed("look_again")] });
    script.outcome("n", Ok(list)).unwrap();
    let reply = |calls: serde_json::Value| {
        json!({
            "provider": "p", "model": "m", "text": "t", "stop": "end", "toolCalls": calls,
            "usage": { "inputTokens": 1, "outputTokens": 1 },
        })
    };
    let call = |name: &str| json!({ "id": name, "name": name, "arguments": {} });
    script
        .outcome("n", Ok(reply(json!(["look", "look_again", "unknown"].map(call)))))
        .unwrap();
    for run in 1..3 {
        let effect = script.effects_of(run)[0].clone();
        let said = json!({ "text": format!("result {run}"), "content": [] });
        let outcome = match run {
            1 => Ok(said.as_object().unwrap().clone()),
            _ => Err(Failure::new("outcome_unknown", "nobody knows")),
        };
        let (step, attempt) = (effect.step, effect.attempt);
        let command = Command::Effect {
            step,
            attempt,
            outcome,
            retry_after_ms: None,
        };
        script.tell(run, command).unwrap();
    }
    script.outcome("n", Ok(reply(json!([])))).unwrap();
    assert_eq!(script.status(), "completed");
    for run in 0..3 {
        check_replays(&mut script, run);
    }
    check_branches(&mut script, 0);
    // A branch within the calls makes both of them again, with the list that its source got.
    let is_child =
        |event: &Recorded| matches!(event.event, Event::Kernel(KernelEvent::NodeDispatched { .. }));
    let first = script.events(0).iter().position(is_child).unwrap();
    let branch = script.fork(0, ForkMode::Branch, first as u64).unwrap();
    assert!(script.effects_of(branch).is_empty(), "no list is read again");
    let asked: Vec<_> = (branch + 1..script.n_runs())
        .flat_map(|run| script.effects_of(run).iter())
        .map(|effect| match &effect.call {
            Call::Tool(request) => request.tool.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(asked, ["look", "look_again"]);
}

#[test]
fn forks_go_on_when_a_shared_budget_is_used_up() {
    let node = |script: Workflow, id: &str| {
        script.node(
            id,
            "core.ai.callPrompt",
            json!({ "prompt": "?", "stream": false }),
        )
    };
    let workflow = node(node(Workflow::new("asking"), "a"), "b").edges("a -> b");
    let mut script = Script::started(&workflow);
    let reply = json!({
        "provider": "p", "model": "m", "text": "t", "stop": "end",
        "usage": { "inputTokens": 1, "outputTokens": 1 },
    });
    // Somebody grants more, then the window turns, and then a run may fail.
    for (node, is_granted) in [("a", true), ("b", false)] {
        let over = over_budget(&script, true);
        script.outcome(node, Ok(json!(over))).unwrap();
        match is_granted {
            true => script.answer(node, json!({ "action": "accept" })).unwrap(),
            false => script.wait(15),
        }
        let again = script.clone();
        script.outcome(node, Ok(reply.clone())).unwrap();
        let mut failing = again;
        let over = over_budget(&failing, false);
        failing.outcome(node, Ok(json!(over))).unwrap();
        assert_eq!(failing.status(), "failed");
        check_replays(&mut failing, 0);
        check_branches(&mut failing, 0);
    }
    assert_eq!(script.status(), "completed");
    check_replays(&mut script, 0);
    check_branches(&mut script, 0);
}

#[test]
fn a_replay_of_a_dispatch_that_could_not_begin_equals_its_source() {
    let decision = |kind: &str| json!({ "kind": kind, "nextWorkerIds": ["nobody"] });
    let workflow = Workflow::new("led")
        .node(
            "lead",
            "core.orchestrator.supervisor",
            json!({ "decision": decision("next-worker"), "maxLoopIterations": 2 }),
        )
        .node("dispatch", "core.dispatch", json!({}))
        .edges("lead -> dispatch, dispatch -> lead");
    let mut script = Script::started(&workflow);
    assert!(
        script.log(0).contains("unknown_child_workflow"),
        "{}",
        script.log(0)
    );
    check_replays(&mut script, 0);
}

/// The children that a run shows, by their numbers, with whether each has ended in its log.
fn own_children(script: &Script, run: usize) -> Vec<(String, bool)> {
    let children = script.run(run).own_children();
    children
        .map(|child| (child.run.to_string(), child.ended))
        .collect()
}

#[test]
fn a_branch_has_none_of_the_children_that_its_source_waits_for() {
    let decision = json!({ "kind": "next-worker", "nextWorkerIds": ["quick", "gated"] });
    let lead = json!({ "decision": decision, "maxLoopIterations": 2 });
    let led = Workflow::new("led")
        .node("lead", "core.orchestrator.supervisor", lead)
        .node("dispatch", "core.dispatch", json!({ "fanOutPolicy": "parallel" }))
        .edges("lead -> dispatch");
    let sub = json!({ "workflowId": "gated" });
    let called = Workflow::new("called").node("dispatch", "core.subWorkflow", sub);
    let gated = Workflow::new("gated").gate("gate");
    let quick = Workflow::new("quick").noops("n");
    for (workflow, n_kept) in [(&led, 1), (&called, 0)] {
        let mut script = Script::of(&[workflow, &gated, &quick]).start(json!({}));
        let source = own_children(&script, 0);
        assert_eq!(source.len(), n_kept + 1, "{}", script.log(0));
        let from = script.events(0).len() as u64;
        let branch = script.fork(0, ForkMode::Branch, from).unwrap();
        let own = own_children(&script, branch);
        assert_eq!(own.len(), n_kept + 1, "{}", script.log(branch));
        let shared: Vec<_> = own.iter().filter(|child| source.contains(child)).collect();
        assert_eq!(shared.len(), n_kept, "{}", script.log(branch));
        assert!(shared.iter().all(|(_, ended)| *ended), "{}", script.log(branch));
        // A branch of the branch, and a replay of it.
        let from = script.events(branch).len() as u64;
        let second = script.fork(branch, ForkMode::Branch, from).unwrap();
        let theirs = own_children(&script, second);
        let shared = theirs.iter().filter(|child| own.contains(child)).count();
        assert_eq!(
            (theirs.len(), shared),
            (n_kept + 1, n_kept),
            "{}",
            script.log(second)
        );
        let replay = script.fork(branch, ForkMode::Replay, 0).unwrap();
        let of_replay = own_children(&script, replay);
        let runs =
            |children: &[(String, bool)]| -> Vec<_> { children.iter().map(|(run, _)| run.clone()).collect() };
        assert_eq!(runs(&of_replay), runs(&own), "{}", script.log(replay));
    }
}

/// A branch may begin between the handoffs of a dispatch, and between the ends of its workers.
#[test]
fn a_branch_from_any_event_of_a_fan_out_has_all_its_workers() {
    let decision = json!({
        "kind": "next-worker",
        "nextWorkerIds": ["gated", "nobody", "said", "said"],
        "nextWorkerInputs": [{}, {}, { "n": 1 }, { "n": 2 }],
    });
    for fan_out in ["parallel", "sequential"] {
        let lead = json!({ "decision": decision, "maxLoopIterations": 2 });
        let workflow = Workflow::new("led")
            .node("lead", "core.orchestrator.supervisor", lead)
            .node("dispatch", "core.dispatch", json!({ "fanOutPolicy": fan_out }))
            .edges("lead -> dispatch");
        let gated = Workflow::new("gated").gate("gate");
        let said = Workflow::new("said").variable("n", "number", json!({})).node(
            "say",
            "core.template",
            json!({ "template": "{{ n }}" }),
        );
        let mut script = Script::of(&[&workflow, &gated, &said]).start(json!({}));
        bring_to_an_end(&mut script, 0);
        check_replays(&mut script, 0);
        // What each worker came to, in the order of the decision.
        let ends = |script: &Script, run: usize| -> Vec<_> {
            let outputs = script.run(run).outputs.clone().unwrap_or_default();
            let children = outputs["children"].as_array().cloned().unwrap_or_default();
            children
                .iter()
                .map(|child| (child["childStatus"].clone(), child["result"].clone()))
                .collect()
        };
        assert_eq!(ends(&script, 0).len(), 4, "{}", script.log(0));
        for from in 0..=script.events(0).len() as u64 {
            let fork = script.fork(0, ForkMode::Branch, from).unwrap();
            bring_to_an_end(&mut script, fork);
            let log = script.log(fork);
            assert_eq!(
                script.status_of(fork),
                "completed",
                "{fan_out} from {from}: {log}"
            );
            assert_eq!(
                ends(&script, fork),
                ends(&script, 0),
                "{fan_out} from {from}: {log}"
            );
        }
    }
}

#[test]
fn the_first_difference_is_recorded_and_the_replay_goes_on() {
    let workflow = Workflow::new("parts")
        .variable("n", "number", json!({ "defaultValue": 0 }))
        .node(
            "a",
            "core.setVariable",
            json!({ "name": "n", "expression": "n + 1" }),
        )
        .effect("call")
        .gate("gate")
        .edges("a -> call, call -> gate");
    let mut script = Script::started(&workflow);
    script.outcome("call", Ok(json!({ "x": 1 }))).unwrap();
    script.answer("gate", json!({ "approve": true })).unwrap();
    // As if another version of this host had computed something else.
    script.tamper(0, 3, |recorded| {
        let Event::Kernel(KernelEvent::NodeCompleted { outputs, .. }) = &mut recorded.event else {
            panic!("{recorded:?}");
        };
        outputs.insert("more".to_owned(), json!(true));
    });
    let fork = script.fork(0, ForkMode::Replay, 0).unwrap();
    expect![[r#"
        0 run.started
        1 node.started a
        2 variable.changed n=1 was 0
        3 replay.diverged output at 3 of a:0
        4 node.completed a
        5 node.started call
        6 effect.scheduled call core.conformance.side-effect
        7 node.completed call {"x":1}
        8 node.started gate
        9 interrupt.requested gate approval
        10 approval.requested gate
        11 node.suspended gate approval gate:0
        12 interrupt.resolved gate accept by ada
        13 approval.received gate accept by ada
        14 node.resumed gate gate:0 {"approve":true}
        15 node.completed gate {"action":"accept","approved":true,"decidedBy":"ada"}
        16 run.completed {"action":"accept","approved":true,"decidedBy":"ada"}"#]]
    .assert_eq(&script.log(fork));
    assert_eq!(script.run(fork).forked.unwrap().diverged_at, Some(Seq(3)));
    // What comes before the fork is history: there, nothing is compared.
    let late = script.fork(0, ForkMode::Replay, 5).unwrap();
    assert_eq!(deterministic(&script, late), deterministic(&script, 0));
    // A replay of the replay that differs repeats the difference.
    check_replays(&mut script, fork);
}

#[test]
fn a_long_log_is_taken_in_parts() {
    let workflow = Workflow::new("loop")
        .variable("n", "number", json!({ "defaultValue": 0 }))
        .node(
            "count",
            "core.setVariable",
            json!({ "name": "n", "expression": "n + 1" }),
        )
        .effect("call")
        .edge_if("count", "count", json!({ "expression": "n < 1500" }))
        .edge_if("count", "call", json!({ "expression": "n >= 1500" }));
    let mut script = Script::started(&workflow);
    script.wait(0);
    script.outcome("call", Ok(json!({}))).unwrap();
    assert_eq!(script.status(), "completed");
    let n = script.events(0).len() as u64;
    for from in [0, 1, 2_000, n - 1] {
        let fork = script.fork(0, ForkMode::Replay, from).unwrap();
        assert_eq!(
            deterministic(&script, fork),
            deterministic(&script, 0),
            "from {from}"
        );
    }
    let fork = script.fork(0, ForkMode::Branch, 2_000).unwrap();
    script.wait(0);
    assert_eq!(script.status_of(fork), "running");
    assert_eq!(script.run(fork).variables()["n"], json!(1500));
    assert_eq!(script.effects_of(fork).len(), 1);
}

/// A supervisor whose verifier sends the work back once, and asks a person each time.
#[test]
fn a_branch_from_any_event_of_a_verification_ends_as_its_source() {
    let lead = json!({
        "rules": [{
            "when": "dispatch.verdict is defined and dispatch.verdict == 'revise'",
            "decision": { "kind": "next-worker", "nextWorkerIds": ["said"] },
        }],
        "decision": { "kind": "terminate" },
        "verifier": { "worker": "judge", "inputs": { "n": "{{ lead.iteration }}" } },
        "maxLoopIterations": 5,
    });
    let workflow = Workflow::new("led")
        .node("lead", "core.orchestrator.supervisor", lead)
        .node("dispatch", "core.dispatch", json!({}))
        .edges("lead -> dispatch, dispatch -> lead");
    let said = Workflow::new("said").noops("say");
    let judge = Workflow::new("judge")
        .gate("gate")
        .raw_node(json!({
            "id": "judge", "typeId": "core.identity", "name": "judge",
            "inputs": { "verdict": { "type": "expression", "expression": "'revise' if n == 1 else 'pass'" } },
        }))
        .edges("gate -> judge");
    let mut script = Script::of(&[&workflow, &said, &judge]).start(json!({}));
    bring_to_an_end(&mut script, 0);
    let iterations = |script: &Script, run: usize| script.run(run).supervision().unwrap().n_decisions;
    assert_eq!(
        (script.status(), iterations(&script, 0)),
        ("completed", 3),
        "{}",
        script.log(0)
    );
    check_replays(&mut script, 0);
    for from in 0..=script.events(0).len() as u64 {
        let fork = script.fork(0, ForkMode::Branch, from).unwrap();
        bring_to_an_end(&mut script, fork);
        let log = script.log(fork);
        let ended = (script.status_of(fork), iterations(&script, fork));
        assert_eq!(ended, ("completed", 3), "from {from}: {log}");
        assert_eq!(
            script.run(fork).outputs,
            script.run(0).outputs,
            "from {from}: {log}"
        );
        assert_eq!(log.matches("agent.verified").count(), 2, "from {from}: {log}");
    }
}

#[test]
fn a_deadline_is_as_far_away_in_a_branch_as_it_was() {
    let workflow = Workflow::new("timed").node("gate", "core.approvalGate", json!({ "timeoutMs": 5_000 }));
    let mut script = Script::started(&workflow);
    script.wait(5_000);
    assert_eq!(script.status(), "failed");
    script.skip(1_000_000);
    let asked = script
        .events(0)
        .iter()
        .position(|event| event.given.is_some())
        .unwrap() as u64;
    let fork = script.fork(0, ForkMode::Branch, asked).unwrap();
    assert_eq!(script.timers(fork), "interrupt:0:gate in 5000");
    script
        .answer_in(fork, "gate", json!({ "approve": true }))
        .unwrap();
    assert_eq!(script.status_of(fork), "completed");
}

/// A fork goes on by itself, and a paused run with it, even if no step is under way.
#[test]
fn a_replay_of_a_fork_of_a_paused_run_goes_on_as_that_fork_did() {
    let workflow = Workflow::new("paused")
        .delay("wait", 10)
        .noops("after")
        .edges("wait -> after");
    for mode in [ForkMode::Branch, ForkMode::Replay] {
        let mut script = Script::started(&workflow);
        script.pause().unwrap();
        script.wait(10);
        assert_eq!(script.status(), "paused");
        let n = script.events(0).len() as u64;
        for from in [0, n - 1, n] {
            let fork = script.fork(0, mode, from).unwrap();
            bring_to_an_end(&mut script, fork);
            assert_eq!(script.status_of(fork), "completed", "{mode:?} from {from}");
            check_replays(&mut script, fork);
        }
    }
}

#[test]
fn a_branch_has_its_own_options() {
    let workflow = Workflow::new("options").noops("a b").edges("a -> b");
    let mut script = Script::started(&workflow);
    let overlay = |configurable| Overlay {
        configurable,
        tags: Some(vec!["mine".to_owned()]),
        ..Overlay::default()
    };
    let limit = |most: u32| json!({ "recursionLimit": most }).as_object().unwrap().clone();
    for from in [0, 2] {
        let fork = script
            .fork_with(0, ForkMode::Branch, from, Some(overlay(limit(7))))
            .unwrap();
        let started = script.run(fork).started.clone().unwrap();
        assert_eq!(started.tags, ["mine"]);
        assert_eq!(started.limits.node_executions, 7);
        assert_eq!(script.status_of(fork), "completed");
    }
    let refused = script.fork_with(0, ForkMode::Branch, 2, Some(overlay(limit(0))));
    assert!(matches!(refused, Err(Refusal::OutOfBounds { .. })), "{refused:?}");
}

#[test]
fn retries_of_the_source_are_not_waited_for() {
    let workflow = Workflow::new("again")
        .effect("call")
        .set("settings", json!({ "maxRetries": 2, "retryDelayMs": 60_000 }));
    let mut script = Script::started(&workflow);
    for _ in 0..2 {
        let busy = Failure {
            retryable: true,
            ..Failure::new("busy", "later")
        };
        script.outcome_after("call", Err(busy), Some(100_000)).unwrap();
        script.wait(200_000);
    }
    script.outcome("call", Ok(json!({ "at": "last" }))).unwrap();
    assert_eq!(script.status(), "completed");
    check_replays(&mut script, 0);
}

/// A loop whose supervisor has a verifier, and everything that either may decide.
fn verified() -> impl Strategy<Value = Workflow> {
    let decision = (0..9_usize).prop_map(|kind| match kind {
        0 => json!({ "kind": "next-worker", "nextWorkerIds": ["gated"] }),
        1 => json!({ "kind": "next-worker", "nextWorkerIds": ["pass", "nobody", "gated"] }),
        2 => json!({ "kind": "escalate" }),
        3 => json!({ "kind": "terminate", "confidence": 0.3 }),
        4 => json!({ "kind": "terminate", "successCriteria": [{ "key": "done", "met": false }] }),
        5 => json!({ "kind": "ask-user", "prompt": "Which?" }),
        _ => json!({ "kind": "terminate" }),
    });
    let worker = prop_oneof![
        3 => Just("revise"), 2 => Just("gated"), 1 => Just("pass"), 1 => Just("fail"), 1 => Just("nobody"),
    ];
    let edges = prop_oneof![
        4 => Just("lead -> dispatch, dispatch -> lead"),
        1 => Just("lead -> dispatch"),
        1 => Just("lead -> dispatch, dispatch -> lead, dispatch -> end any_failed"),
    ];
    let routing = prop_oneof![Just("auto"), Just("conversation")];
    (
        vec(decision, 1..6),
        worker,
        any::<bool>(),
        0..3_u32,
        edges,
        routing,
    )
        .prop_map(|(plan, worker, gating, max_revisions, edges, routing)| {
            let mut verifier = json!({ "worker": worker, "agentId": "critic", "gating": gating });
            if gating {
                verifier["maxRevisions"] = json!(max_revisions);
            }
            let lead = json!({ "mockDispatchPlan": plan, "verifier": verifier, "maxLoopIterations": 7 });
            Workflow::new("parent")
                .node("lead", "core.orchestrator.supervisor", lead)
                .node("dispatch", "core.dispatch", json!({ "askUserRouting": routing }))
                .noops("end")
                .edges(edges)
                .set("channels", json!({ "conversation": { "reducer": "message" } }))
        })
}

/// Workers of [`verified`] that say what they are called, and one that asks first.
fn judges() -> Vec<Workflow> {
    let judge = |id: &str, verdict: &str| {
        Workflow::new(id).raw_node(json!({
            "id": "judge", "typeId": "core.identity", "name": "judge",
            "inputs": { "verdict": { "type": "static", "value": verdict } },
        }))
    };
    let gated = judge("gated", "pass").gate("gate").edges("gate -> judge");
    vec![
        judge("pass", "pass"),
        judge("fail", "fail"),
        judge("revise", "revise"),
        gated,
    ]
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, cases: 64, ..Config::default() })]

    #[test]
    fn a_replay_of_anything_equals_its_source(workflow in workflow(), told in vec(told(), 0..25), limit in 5..40_u32, log_bytes in 2_000..20_000_u64) {
        let mut start = Script::start_run(json!({}));
        start.configurable.extend([("recursionLimit".to_owned(), json!(limit)), ("runTimeoutMs".to_owned(), json!(500))]);
        start.bounds.log_bytes = log_bytes;
        let mut script = Script::of_plans(plans(&workflow));
        script.try_start(start).unwrap();
        for told in &told {
            tell(&mut script, told);
        }
        bring_to_an_end(&mut script, 0);
        let is_cancel = |event: &Recorded| event.given.as_deref() == Some(&Given::Cancel);
        for run in 0..script.n_runs() {
            if !script.events(run).iter().any(is_cancel) && script.run(run).status.is_terminal() {
                check_replays(&mut script, run);
            }
        }
    }

    #[test]
    fn a_replay_of_a_fork_equals_the_fork(
        workflow in workflow(), told in vec(told(), 0..12), later in vec(told(), 0..6), limit in 5..30_u32, at in any::<u64>(), is_branch in any::<bool>(),
    ) {
        let mut script = Script::of_plans(plans(&workflow))
            .start_configured(json!({}), json!({ "recursionLimit": limit }));
        for told in &told {
            tell(&mut script, told);
        }
        let is_over = script.run(0).status.is_terminal();
        let n = script.events(0).len() as u64 + u64::from(!is_over);
        let mode = if is_branch { ForkMode::Branch } else { ForkMode::Replay };
        let fork = script.fork(0, mode, at % n).unwrap();
        for told in &later {
            tell(&mut script, told);
        }
        bring_to_an_end(&mut script, fork);
        let is_cancel = |event: &Recorded| event.given.as_deref() == Some(&Given::Cancel);
        if !script.events(fork).iter().any(is_cancel) {
            check_replays(&mut script, fork);
        }
    }

    #[test]
    fn forks_of_verified_runs_follow_their_source(workflow in verified(), told in vec(told(), 0..15)) {
        let judges = judges();
        let all: Vec<_> = std::iter::once(&workflow).chain(&judges).collect();
        let mut script = Script::of(&all).start(json!({}));
        for told in &told {
            tell(&mut script, told);
        }
        bring_to_an_end(&mut script, 0);
        let is_cancel = |event: &Recorded| event.given.as_deref() == Some(&Given::Cancel);
        if !script.events(0).iter().any(is_cancel) {
            check_replays(&mut script, 0);
        }
        check_branches(&mut script, 0);
        let log = script.log(0);
        // Nothing completes that claims success, unless its verifier has passed it or the graph says what else to do.
        let last = |what: &str| log.lines().rfind(|line| line.contains(what)).unwrap_or_default();
        let claims_success = last(" decided ").contains("terminate") && !last(" decided ").contains("\"met\":false");
        let is_handled = log.contains("node.started end");
        let gates = workflow.document()["nodes"][0]["config"]["verifier"]["gating"] == true;
        if script.status() == "completed" && claims_success && gates && !is_handled {
            prop_assert!(last("agent.verified").ends_with(" pass"), "{}", log);
        }
    }

    #[test]
    fn a_branch_of_anything_can_end(workflow in workflow(), told in vec(told(), 0..15), limit in 5..25_u32) {
        let mut script = Script::of_plans(plans(&workflow))
            .start_configured(json!({}), json!({ "recursionLimit": limit }));
        for told in &told {
            tell(&mut script, told);
        }
        check_branches(&mut script, 0);
    }
}
