//! Replays that end because a model, asked again, refuses where it answered, or answers where it refused.

use expect_test::expect;
use proptest::{collection::vec, prelude::*, test_runner::Config};
use serde_json::{Value, json};
use wopr_core::{
    Event, Given, KernelEvent, NodeId, REFUSAL_DIVERGED, Recorded, RefusalDivergence, ReplyKind, Seq, StepId,
    provider,
};
use wopr_testkit::{Script, Workflow};

use crate::{
    check_replays, deterministic,
    generated::{bring_to_an_end, tell, told, workflow},
};

fn reply(stop: &str) -> Value {
    json!({
        "provider": "mock", "model": "m", "text": "so", "stop": stop, "refusal": (stop == "refusal").then_some("no"),
        "usage": { "inputTokens": 1, "outputTokens": 1 },
    })
}

fn asking() -> Workflow {
    Workflow::new("asking")
        .node(
            "n",
            "core.ai.callPrompt",
            json!({ "prompt": "?", "stream": false }),
        )
        .noops("rescue")
        .gate("beside")
        .edges("n -> rescue any_failed")
}

fn divergence(at: u64, original: ReplyKind) -> RefusalDivergence {
    let step = StepId {
        node: NodeId::parse("n").unwrap(),
        ordinal: 0,
    };
    RefusalDivergence {
        at: Seq(at),
        step,
        original,
        reason: Some("no".to_owned()),
    }
}

/// The replies of models in a log: the event that brought each, its step and what it is.
fn replies(script: &Script, run: usize) -> Vec<RefusalDivergence> {
    let mut given_at = Seq(0);
    let mut found = Vec::new();
    for recorded in script.events(run) {
        if recorded.given.is_some() {
            given_at = recorded.seq;
        }
        if let Event::Kernel(KernelEvent::EffectEnded { step, provider, .. }) = &recorded.event
            && provider == provider::MODEL
        {
            found.push(RefusalDivergence {
                at: given_at,
                step: step.clone(),
                original: ReplyKind::Valid,
                reason: None,
            });
        }
    }
    found
}

/// Replays a run whose model gives another kind of reply there, and checks that nothing follows.
fn check_refusal(script: &mut Script, source: usize, refusal: RefusalDivergence) {
    let (at, step) = (refusal.at, refusal.step.clone());
    let fork = script.replay_refused(source, 0, refusal).unwrap();
    let log = script.log(fork);
    let n_kept = usize::try_from(at.0).unwrap() - 1;
    let kept: Vec<_> = deterministic(script, fork)
        .into_iter()
        .take(n_kept)
        .cloned()
        .collect();
    let original: Vec<_> = deterministic(script, source)
        .into_iter()
        .take(n_kept)
        .cloned()
        .collect();
    assert_eq!(kept, original, "{log}");
    let run = script.run(fork);
    let (error, node) = run.error.clone().unwrap();
    assert_eq!(
        (error.code.as_str(), node),
        (REFUSAL_DIVERGED, Some(step.node)),
        "{log}"
    );
    assert_eq!(run.forked.unwrap().diverged_at, Some(at));
    let later = &script.events(fork)[n_kept + 1..];
    for (n, recorded) in later.iter().enumerate() {
        let is_expected = match &recorded.event {
            Event::Kernel(KernelEvent::RefusalDiverged { .. }) => n == 0,
            Event::Kernel(KernelEvent::NodeFailed { .. }) => n == 1,
            Event::Kernel(KernelEvent::NodeCancelled { .. }) => n > 1,
            Event::Kernel(KernelEvent::RunFailed { .. }) => n + 1 == later.len(),
            Event::Kernel(_) | Event::Dialect(_) => false,
        };
        assert!(is_expected, "{log}");
    }
    assert!(script.effects_of(fork).is_empty(), "{log}");
    assert_eq!(script.timers(fork), "", "{log}");
    // A replay of that replay repeats the end.
    check_replays(script, fork);
}

#[test]
fn a_replay_ends_where_its_model_refuses_and_its_source_got_an_answer() {
    let mut script = Script::started(&asking());
    script.outcome("n", Ok(reply("end"))).unwrap();
    script.answer("beside", json!({ "approve": true })).unwrap();
    assert_eq!(script.status(), "completed");
    let at = replies(&script, 0)[0].at.0;
    check_refusal(&mut script, 0, divergence(at, ReplyKind::Valid));
    let refusal = divergence(at, ReplyKind::Valid);
    let fork = script.replay_refused(0, 0, refusal).unwrap();
    expect![[r#"
        0 run.started
        1 node.started n
        2 prompt.composed n:0 1 messages
        3 effect.scheduled n model
        4 node.started beside
        5 interrupt.requested beside approval
        6 approval.requested beside
        7 node.suspended beside approval beside:0
        8 replay.diverged.refusal n:0 refusal instead of valid at 8
        9 node.failed n replay_diverged_at_refusal: the model refused the replay, and had answered its source
        10 node.cancelled beside run-failed
        11 run.failed replay_diverged_at_refusal: the model refused the replay, and had answered its source in n"#]]
    .assert_eq(&script.log(fork));
}

#[test]
fn a_replay_ends_where_its_model_answers_and_its_source_got_a_refusal() {
    let mut script = Script::started(&asking());
    script.outcome("n", Ok(reply("refusal"))).unwrap();
    script.answer("beside", json!({ "approve": true })).unwrap();
    // Nothing of the path of failures follows in the replay.
    assert!(script.log(0).contains("node.started rescue"), "{}", script.log(0));
    let at = replies(&script, 0)[0].at.0;
    check_refusal(&mut script, 0, divergence(at, ReplyKind::Refusal));
}

#[test]
fn a_reply_before_the_replay_begins_is_history() {
    let mut script = Script::started(&asking());
    script.outcome("n", Ok(reply("end"))).unwrap();
    script.answer("beside", json!({ "approve": true })).unwrap();
    let at = replies(&script, 0)[0].at.0;
    let fork = script
        .replay_refused(0, at + 1, divergence(at, ReplyKind::Valid))
        .unwrap();
    assert_eq!(deterministic(&script, fork), deterministic(&script, 0));
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, cases: 64, ..Config::default() })]

    #[test]
    fn any_replay_ends_where_its_model_replies_otherwise(workflow in workflow(), told in vec(told(), 0..25), limit in 5..40_u32) {
        let gated = Workflow::new("gated").gate("gate");
        let mut script = Script::of(&[&workflow, &gated])
            .start_configured(json!({}), json!({ "recursionLimit": limit }));
        for told in &told {
            tell(&mut script, told);
        }
        bring_to_an_end(&mut script, 0);
        let is_cancel = |event: &Recorded| event.given.as_deref() == Some(&Given::Cancel);
        let cancelled_at = script.events(0).iter().position(is_cancel).map_or(u64::MAX, |at| at as u64);
        for refusal in replies(&script, 0) {
            if refusal.at.0 < cancelled_at {
                check_refusal(&mut script, 0, refusal);
            }
        }
    }
}
