//! Workflows of any shape, and anything that may happen to their runs.

use std::sync::Arc;

use proptest::{collection::vec, prelude::*};
use serde_json::json;
use wopr_core::{
    BudgetKey, BudgetPeriod, BudgetScope, BudgetUnit, Call, Command, Failure, MoreMoney, NodeId, NodeTypes,
    Object, OnOverBudget, OverBudget, OverRunBudget, Plan, StepId, Timer, openwop::tool_workflow,
};
use wopr_testkit::{Script, Workflow};

const KINDS: usize = 14;
const RULES: [&str; 5] = [
    "all_success",
    "any_success",
    "all_complete",
    "none_failed",
    "any_failed",
];
const CONDITIONS: [Option<&str>; 6] = [
    None,
    None,
    None,
    Some("false"),
    Some("status == 'completed'"),
    Some("n % 2 == 0"),
];

#[derive(Debug, Clone)]
pub(crate) enum Told {
    Answer(usize, bool),
    AnswerChild(usize, bool),
    Outcome(usize, u8),
    LostOutcome(usize, u8),
    Wait(u64),
    NextTimer,
    Stray(usize, u32, u8),
    Pause,
    Stop,
    Resume,
    Cancel,
    CancelChild(usize),
    HoldMail,
    Deliver,
}

pub(crate) fn told() -> impl Strategy<Value = Told> {
    let node = 0..7_usize;
    prop_oneof![
        6 => (node.clone(), any::<bool>()).prop_map(|(node, yes)| Told::Answer(node, yes)),
        3 => (node.clone(), any::<bool>()).prop_map(|(child, yes)| Told::AnswerChild(child, yes)),
        6 => (node.clone(), 0..6_u8).prop_map(|(node, how)| Told::Outcome(node, how)),
        2 => (node.clone(), 0..3_u8).prop_map(|(node, how)| Told::LostOutcome(node, how)),
        3 => (0..50_u64).prop_map(Told::Wait),
        6 => Just(Told::NextTimer),
        1 => (node.clone(), 0..3_u32, 0..5_u8).prop_map(|(node, ordinal, kind)| Told::Stray(node, ordinal, kind)),
        2 => Just(Told::Pause),
        2 => Just(Told::Stop),
        2 => Just(Told::Resume),
        1 => Just(Told::Cancel),
        1 => node.prop_map(Told::CancelChild),
        1 => Just(Told::HoldMail),
        2 => Just(Told::Deliver),
    ]
}

pub(crate) fn workflow() -> impl Strategy<Value = Workflow> {
    let edge = (0..7_usize, 0..7_usize, 0..RULES.len(), 0..CONDITIONS.len());
    (vec(0..KINDS, 1..7), vec(edge, 0..12)).prop_map(|(kinds, edges)| {
        let mut workflow = Workflow::new("parent")
            .variable("n", "number", json!({ "defaultValue": 0 }))
            .set("settings", json!({ "maxRetries": 1, "retryDelayMs": 7 }));
        for (at, kind) in kinds.iter().enumerate() {
            let id = format!("n{at}");
            workflow = match kind {
                0 => workflow.node(&id, "core.fail", json!({})),
                1 => workflow.node(&id, "core.fail", json!({ "retryable": true })),
                2 => workflow.delay(&id, 10),
                3 => workflow.effect(&id),
                4 => workflow.gate(&id),
                5 => workflow.node(&id, "core.approvalGate", json!({ "timeoutMs": 20, "requiredApprovals": 2 })),
                6 => workflow.node(&id, "core.setVariable", json!({ "name": "n", "expression": "n + 1" })),
                7 => workflow.node(&id, "core.subWorkflow", json!({ "workflowId": "gated" })),
                8 => workflow.node(
                    &id,
                    "core.subWorkflow",
                    json!({ "workflowId": "gated", "onChildFailure": "absorb", "propagateCancellation": false }),
                ),
                12 => workflow.node(
                    &id,
                    "core.ai.callPrompt",
                    json!({
                        "prompt": "?", "tools": [{ "workflow": "gated" }, { "server": "s", "tool": "look" }], "maxToolRounds": 2,
                    }),
                ),
                13 => workflow.node(&id, "core.conversationGate", json!({ "maxTurns": 3 })),
                9 => workflow.raw_node(json!({ "id": id, "typeId": "core.noop", "name": id, "disabled": true })),
                _ => workflow.noops(&id),
            };
        }
        for (source, target, rule, condition) in edges {
            let (source, target) = (source % kinds.len(), target % kinds.len());
            let mut edge = json!({
                "sourceNodeId": format!("n{source}"), "targetNodeId": format!("n{target}"), "triggerRule": RULES[rule],
            });
            if let Some(expression) = CONDITIONS[condition] {
                edge["condition"] = json!({ "expression": expression });
            }
            workflow = workflow.raw_edge(edge);
        }
        workflow
    })
}

/// The plans of a generated workflow and of all whose runs its nodes start.
pub(crate) fn plans(workflow: &Workflow) -> [Arc<Plan>; 3] {
    let tools = Plan::admit(tool_workflow(), NodeTypes::default()).expect("valid");
    let gated = Workflow::new("gated").gate("gate");
    [workflow.plan(), gated.plan(), Arc::new(tools)]
}

fn busy() -> Failure {
    Failure {
        retryable: true,
        reason: None,
        ..Failure::new("busy", "later")
    }
}

fn outcome(how: u8) -> Result<Object, Failure> {
    match how {
        0 => Ok(Object::from_iter([("done".to_owned(), json!(true))])),
        1 => Err(busy()),
        _ => Err(Failure::new("bad", "worse")),
    }
}

/// What a model says: it asks for tools, some of which it may not have, or it has done.
fn reply(asks: bool) -> Object {
    let call = |id: &str, name: &str| json!({ "id": id, "name": name, "arguments": {} });
    let calls = match asks {
        true => json!([
            call("a", "gated"),
            call("b", "other"),
            call("c", "gated"),
            call("d", "look")
        ]),
        false => json!([]),
    };
    let reply = json!({
        "provider": "p", "model": "m", "text": "so", "stop": "end", "toolCalls": calls,
        "usage": { "inputTokens": 1, "outputTokens": 1 },
    });
    reply.as_object().cloned().unwrap_or_default()
}

/// What a server says of its tool.
fn list() -> Object {
    let tools = json!([{ "server": "s", "tool": "look", "description": "Looks.", "inputSchema": {} }]);
    Object::from_iter([("tools".to_owned(), tools)])
}

/// What a host says instead of asking a model, when a budget of the tenant is used up.
pub(crate) fn over_budget(script: &Script, asks: bool) -> Object {
    let over = OverBudget {
        key: BudgetKey {
            scope: BudgetScope::Tenant,
            per: BudgetPeriod::Hour,
            unit: BudgetUnit::Tokens,
            until: script.now().plus_millis(15),
        },
        spent: 20,
        limit: 10,
        on_breach: match asks {
            true => OnOverBudget::Ask(MoreMoney {
                grant: 3,
                approver_roles: Vec::new(),
                approver_groups: Vec::new(),
            }),
            false => OnOverBudget::Fail,
        },
    };
    over.outcome()
}

/// Refusals are allowed here; violated invariants fail inside `Script`.
pub(crate) fn tell(script: &mut Script, told: &Told) {
    match told {
        Told::Answer(node, yes) => {
            let mut resolve = Script::resolve(&format!("n{node}"), json!({ "approve": yes }));
            resolve.voter = Some(format!("voter{}", script.events(0).len()));
            let _ = script.tell(0, Command::Resolve(resolve));
        }
        Told::AnswerChild(child, yes) if script.n_runs() > 1 => {
            let child = 1 + child % (script.n_runs() - 1);
            let _ = script.answer_in(child, "gate", json!({ "approve": yes }));
            if let Some(effect) = script.effects_of(child).last().cloned() {
                let _ = script.tell(
                    child,
                    Command::Effect {
                        step: effect.step,
                        attempt: effect.attempt,
                        outcome: outcome(if *yes { 0 } else { 2 }),
                        retry_after_ms: None,
                    },
                );
            }
        }
        Told::Outcome(node, how) => {
            let id = format!("n{node}");
            let effects = script.effects().iter().rev();
            let latest = effects.clone().find(|effect| effect.step.node.as_str() == id);
            if let Some(latest) = latest {
                let outcome = match (&latest.call, how) {
                    (Call::Model(call), 0) => Ok(reply(call.messages.len() < 6)),
                    (Call::Model(_), 2) => Ok(reply(false)),
                    (Call::ToolList(_), 0 | 2) => Ok(list()),
                    (Call::Model(_), 3 | 4) => Ok(over_budget(script, *how == 3)),
                    (Call::Model(_), 5) => Ok(OverRunBudget.outcome()),
                    _ => outcome(*how),
                };
                let _ = script.outcome(&id, outcome.map(|done| json!(done)));
            }
        }
        Told::LostOutcome(nth, how) => {
            // Any attempt, whether it has ended or not.
            let effects = script.effects();
            if let Some(effect) = effects.get(nth % effects.len().max(1)).cloned() {
                let _ = script.tell(
                    0,
                    Command::Effect {
                        step: effect.step,
                        attempt: effect.attempt,
                        outcome: outcome(*how),
                        retry_after_ms: None,
                    },
                );
            }
        }
        Told::Wait(ms) => script.wait(*ms),
        Told::NextTimer => {
            if let Some((due, ..)) = script.next_timer() {
                let ms = u64::try_from(due.millis() - script.now().millis()).unwrap_or(0);
                script.wait(ms);
            }
        }
        Told::Stray(node, ordinal, kind) => {
            let step = StepId {
                node: NodeId::parse(&format!("n{node}")).expect("id"),
                ordinal: ordinal + 50,
            };
            let timer = match kind {
                0 => Timer::Delay(step),
                1 => Timer::Retry(step, 1),
                2 => Timer::Interrupt(step),
                3 => Timer::Continue,
                _ => Timer::RunDuration,
            };
            let _ = script.fire(timer);
        }
        Told::Pause => drop(script.pause()),
        Told::Stop => drop(script.stop()),
        Told::Resume => drop(script.resume()),
        Told::Cancel => drop(script.cancel()),
        Told::CancelChild(child) if script.n_runs() > 1 => {
            let child = 1 + child % (script.n_runs() - 1);
            drop(script.cancel_run(child));
        }
        Told::HoldMail => script.hold_mail(),
        Told::Deliver => script.deliver(),
        Told::AnswerChild(..) | Told::CancelChild(_) => {}
    }
}

/// Supplies everything that a run waits for until it has ended.
pub(crate) fn bring_to_an_end(script: &mut Script, main: usize) {
    script.deliver();
    for _ in 0..800 {
        if script.run(main).status.is_terminal() {
            return;
        }
        let _ = script.tell(main, Command::Resume { reason: None });
        for run in 0..script.n_runs() {
            let open: Vec<_> = script
                .run(run)
                .interrupts(script.plan(run))
                .map(|open| open.node.clone())
                .collect();
            for node in open {
                for voter in ["a", "b"] {
                    let mut resolve = Script::resolve(node.as_str(), json!({ "approve": true }));
                    resolve.voter = Some(voter.to_owned());
                    let _ = script.tell(run, Command::Resolve(resolve));
                }
                // The answers to questions, and the end of conversations, in which the above was a turn.
                for answer in [
                    json!({ "answers": { "answer": "so" } }),
                    json!({ "operation": "close" }),
                ] {
                    let resolve = Script::resolve(node.as_str(), answer);
                    let _ = script.tell(run, Command::Resolve(resolve));
                }
            }
        }
        let runs = 0..script.n_runs();
        let effects = runs.flat_map(|run| {
            script
                .effects_of(run)
                .iter()
                .map(move |effect| (run, effect.clone()))
        });
        for (run, effect) in effects.collect::<Vec<_>>() {
            let outcome = match &effect.call {
                Call::Model(_) => Ok(reply(false)),
                Call::ToolList(_) => Ok(list()),
                _ => Ok(Object::new()),
            };
            let _ = script.tell(
                run,
                Command::Effect {
                    step: effect.step,
                    attempt: effect.attempt,
                    outcome,
                    retry_after_ms: None,
                },
            );
        }
        script.deliver();
        script.wait(20);
    }
    panic!(
        "the run is stuck in {}\n{}",
        script.status_of(main),
        script.log(main)
    );
}
