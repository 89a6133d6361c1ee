//! Definitions: from bytes to a plan, and the first decisions of a run of it.

use serde_json::{Value, json};
use wopr_core::{Command, Definition, Failure, NodeTypes, Plan};
use wopr_testkit::Script;

/// Node executions of a run; a loop has turned by then.
const EXECUTIONS: u32 = 40;
/// How often the run is given what it waits for.
const ROUNDS: usize = 8;

/// A document is a definition or is refused with its problems. A valid one means the same after it was stored and read
/// again, plans, and its run keeps the kernel's invariants, which [`Script`] checks at each decision.
///
/// # Panics
/// If a promise does not hold.
pub fn definition(data: &[u8]) {
    let Ok(document) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    let read = |document| Plan::compile(Definition::parse(document)?, NodeTypes { conformance: true });
    let plan = match read(document) {
        Ok(plan) => plan,
        Err(problems) => {
            assert!(!problems.0.is_empty(), "refused, and nobody is told why");
            return;
        }
    };
    let stored = plan.definition.document.to_string();
    let again = read(serde_json::from_str(&stored).unwrap()).unwrap();
    assert_eq!(
        again.version(),
        plan.version(),
        "stored and read again it is another version"
    );
    assert_eq!(again.definition.document, plan.definition.document);
    live(plan);
}

fn live(plan: Plan) {
    let mut script = Script::of_plans([plan.into()]);
    // Children are not begun: a workflow may call itself.
    script.hold_mail();
    let mut start = Script::start_run(json!({}));
    start.bounds.node_executions = EXECUTIONS;
    if script.try_start(start).is_err() {
        return;
    }
    for round in 0..ROUNDS {
        if script.run(0).status.is_terminal() {
            return;
        }
        answer(&mut script, round);
        finish_effects(&mut script, round);
        if let Some((_, 0, timer)) = script.next_timer() {
            script.skip(1_000);
            // A timer of the root; that it is stale by now is an answer too.
            let _ = script.fire(timer);
        }
    }
    // Whatever it waits for, it can be ended.
    if !script.run(0).status.is_terminal() {
        let _ = script.cancel();
    }
}

fn answer(script: &mut Script, round: usize) {
    let open: Vec<_> = script
        .run(0)
        .interrupts(script.plan(0))
        .map(|open| open.node.clone())
        .collect();
    for node in open {
        let mut resolve = Script::resolve(
            node.as_str(),
            json!({ "approve": round.is_multiple_of(2), "answers": {} }),
        );
        resolve.voter = Some(format!("voter-{round}"));
        // It may not fit the question.
        let _ = script.tell(0, Command::Resolve(resolve));
    }
}

fn finish_effects(script: &mut Script, round: usize) {
    for effect in script.effects().to_vec() {
        let outcome = if round.is_multiple_of(2) {
            Err(Failure {
                retryable: true,
                ..Failure::new("busy", "later")
            })
        } else {
            Ok(wopr_core::Object::new())
        };
        // It may be over already.
        let _ = script.tell(
            0,
            Command::Effect {
                step: effect.step,
                attempt: effect.attempt,
                outcome,
                retry_after_ms: round.is_multiple_of(4).then_some(60_000),
            },
        );
    }
}
