//! Definitions: from bytes to a plan, and the first decisions of its run.

use serde_json::{Value, json};
use wopr_core::{Command, DialectId, Failure, NodeTypes, Plan};
use wopr_testkit::Script;

/// Maximum node executions of a run: enough for a loop to repeat.
const EXECUTIONS: u32 = 40;
/// Number of times that the run is given what it waits for.
const ROUNDS: usize = 8;

/// A document is a valid definition, or is rejected with its problems. A valid one compiles to the same plan
/// after it was stored and read again. Its run keeps the kernel's invariants, which [`Script`] checks at each
/// decision.
///
/// # Panics
/// If a property does not hold.
pub fn definition(data: &[u8]) {
    let Ok(document) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    let dialect = DialectId::of_definition(&document);
    let read = |document| Plan::compile(dialect, document, NodeTypes { conformance: true });
    let plan = match read(document) {
        Ok(plan) => plan,
        Err(problems) => {
            assert!(!problems.0.is_empty(), "refused, and nobody is told why");
            return;
        }
    };
    let stored = plan.document().to_string();
    let again = read(serde_json::from_str(&stored).unwrap()).unwrap();
    assert_eq!(
        again.version(),
        plan.version(),
        "stored and read again it is another version"
    );
    assert_eq!(again.document(), plan.document());
    live(plan);
}

fn live(plan: Plan) {
    let mut script = Script::of_plans([plan.into()]);
    // Children are not started, because a workflow may call itself.
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
            // A timer of the root run; it may be refused as stale.
            let _ = script.fire(timer);
        }
    }
    // A run can always be cancelled, whatever it waits for.
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
        // The answer may not fit the interrupt.
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
        // The effect may have ended already.
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
