//! How and where a replay differs from its source. The source's log is changed, as if another version of the host had
//! written it.

use serde_json::json;
use wopr_core::{Divergence, Event, ForkMode, Given, KernelEvent, Recorded, Seq};
use wopr_testkit::{Script, Workflow};

use crate::check_replays;

/// Replays a run after a change to its log. Returns how, where and at which execution the replay differs, and how it ends.
fn difference(
    seq: usize,
    change: impl FnOnce(&mut Recorded),
) -> (Divergence, u64, Option<String>, &'static str) {
    let workflow = Workflow::new("parts")
        .noops("a b")
        .effect("call")
        .edges("a -> b, b -> call");
    let mut script = Script::started(&workflow);
    script.outcome("call", Ok(json!({ "x": 1 }))).unwrap();
    assert_eq!(script.status(), "completed");
    script.tamper(0, seq, change);
    let fork = script.fork(0, ForkMode::Replay, 0).unwrap();
    let log = script.log(fork);
    let events = script.events(fork).iter();
    let mut found = events.filter_map(|recorded| match &recorded.event {
        Event::Kernel(KernelEvent::ReplayDiverged { at, kind, point, .. }) => {
            Some((*kind, at.0, point.clone()))
        }
        Event::Kernel(_) | Event::Dialect(_) => None,
    });
    let first = found
        .next()
        .unwrap_or_else(|| panic!("it does not differ\n{log}"));
    assert_eq!(found.next(), None, "only the first difference is recorded\n{log}");
    assert_eq!(script.run(fork).forked.unwrap().diverged_at, Some(Seq(first.1)));
    let status = script.run(fork).status.as_str();
    check_replays(&mut script, fork);
    (first.0, first.1, first.2, status)
}

fn node(of: &str) -> Option<String> {
    Some(format!("{of}:0"))
}

#[test]
fn another_event_is_a_mismatch_of_types() {
    let skipped = |recorded: &mut Recorded| {
        let Event::Kernel(KernelEvent::NodeCompleted { step, .. }) = &recorded.event else {
            panic!("{recorded:?}");
        };
        let (node, reason) = (step.node.clone(), "another version".to_owned());
        recorded.event = Event::Kernel(KernelEvent::NodeSkipped { node, reason });
    };
    assert_eq!(
        difference(4, skipped),
        (Divergence::TypeMismatch, 4, node("b"), "completed")
    );
}

#[test]
fn the_same_event_of_another_node_is_a_mismatch_of_types() {
    let other = |recorded: &mut Recorded| {
        let Event::Kernel(KernelEvent::NodeStarted { step, .. }) = &mut recorded.event else {
            panic!("{recorded:?}");
        };
        step.ordinal = 7;
    };
    assert_eq!(
        difference(3, other),
        (Divergence::TypeMismatch, 3, node("b"), "completed")
    );
}

#[test]
fn an_event_that_the_replay_does_not_have_is_missing() {
    // The source went on where the replay waits for the call, and so has no record of its outcome.
    let went_on = |recorded: &mut Recorded| recorded.given = None;
    assert_eq!(difference(7, went_on), (Divergence::Missing, 7, None, "failed"));
}

#[test]
fn an_event_that_the_source_does_not_have_is_extra() {
    // The source waited where the replay goes on.
    let waited = |recorded: &mut Recorded| recorded.given = Some(Box::new(Given::News));
    assert_eq!(
        difference(4, waited),
        (Divergence::Extra, 4, node("b"), "completed")
    );
}
