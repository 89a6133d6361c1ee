//! Property tests: for any graph and any commands, invariants hold and every run can end.
//!
//! `Script` checks the invariants at each decision (see its module documentation); `generated` makes workflows and
//! commands.

use proptest::{collection::vec, prelude::*, test_runner::Config};
use serde_json::json;
use wopr_core::{NodeId, StepId, Timer};
use wopr_testkit::Script;

use crate::generated::{bring_to_an_end, plans, tell, told, workflow};

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::default() })]

    #[test]
    fn promises_hold_and_every_run_can_end(workflow in workflow(), told in vec(told(), 0..25), limit in prop_oneof![40 => 5..60_u32, 1 => 300..700_u32]) {
        let mut script = Script::of_plans(plans(&workflow))
            .start_configured(json!({}), json!({ "recursionLimit": limit, "runTimeoutMs": 500 }));
        for told in &told {
            tell(&mut script, told);
        }
        bring_to_an_end(&mut script, 0);
    }

    #[test]
    fn a_cancel_leaves_one_terminal_event_and_no_living_child(workflow in workflow(), told in vec(told(), 0..25), limit in 5..60_u32) {
        let mut script = Script::of_plans(plans(&workflow)).start_configured(json!({}), json!({ "recursionLimit": limit }));
        for told in &told {
            tell(&mut script, told);
        }
        // Refused if the run has ended.
        let _ = script.cancel();
        script.deliver();
        prop_assert!(script.run(0).status.is_terminal(), "{}", script.log(0));
        let n_ends = script.events(0).iter().filter(|event| event.event.terminal().is_some()).count();
        prop_assert_eq!(n_ends, 1);
        for child in &script.run(0).children {
            let policy = script.plan(0).position(&child.step.node).and_then(|at| script.plan(0).children(at));
            if policy.is_some_and(|policy| policy.propagates_cancel) {
                let run = (0..script.n_runs()).find(|run| *script.id(*run) == child.run).expect("every child is a run");
                prop_assert!(script.run(run).status.is_terminal(), "{} lives\n{}", child.run, script.log(0));
            }
        }
    }

    #[test]
    fn timers_are_read_as_written(node in "\\PC{1,20}", ordinal in any::<u32>(), attempt in any::<u32>()) {
        let step = StepId { node: NodeId::parse(&node).expect("printable"), ordinal };
        for timer in [Timer::Delay(step.clone()), Timer::Interrupt(step.clone()), Timer::Retry(step.clone(), attempt)] {
            prop_assert_eq!(Timer::parse(&timer.key()), Some(timer));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        let _ = wopr_core::format::decode_event(wopr_core::Seq(0), &bytes);
        let _ = wopr_core::format::decode_run(wopr_core::DialectId::Openwop, &bytes);
    }

    #[test]
    fn any_expression_is_parsed_or_refused(source in "[a-z0-9 .+*~()\\[\\]{}'|%-]{0,40}") {
        if let Ok(expression) = wopr_core::Expression::parse(&source) {
            let _ = expression.evaluate(&json!({ "a": 1, "b": "x", "c": [1, 2], "d": { "e": null } }));
        }
        if let Ok(template) = wopr_core::Template::parse(&source) {
            let _ = template.render(&json!({ "a": 1, "b": "x", "c": [1, 2], "d": { "e": null } }));
        }
    }
}
