//! Merges the work of several decisions into one.
//!
//! A run whose log begins with more than one decision is stored by one append: what a decision began and a later one
//! ended is never begun.

use crate::{Effect, Work};

impl Work {
    /// Adds the work of the next decision. What it ends of this work is removed, so the result ends only what was under
    /// way before either.
    pub fn then(&mut self, later: Self) {
        let Self {
            effects,
            settled,
            parked,
            cancelled,
            answered,
            timers_set,
            timers_cleared,
            children,
            messages,
        } = later;
        for (step, attempt) in settled {
            let is_of = |effect: &Effect| effect.step == step && effect.attempt == attempt;
            let n_before = self.effects.len();
            self.effects.retain(|effect| !is_of(effect));
            self.parked
                .retain(|call| call.step != step || call.attempt != attempt);
            if self.effects.len() == n_before {
                self.settled.push((step, attempt));
            }
        }
        for timer in timers_cleared {
            let n_before = self.timers_set.len();
            self.timers_set.retain(|(set, _)| *set != timer);
            if self.timers_set.len() == n_before && !self.timers_cleared.contains(&timer) {
                self.timers_cleared.push(timer);
            }
        }
        for (timer, due) in timers_set {
            self.timers_set.retain(|(set, _)| *set != timer);
            self.timers_cleared.retain(|cleared| *cleared != timer);
            self.timers_set.push((timer, due));
        }
        self.effects.extend(effects);
        self.parked.extend(parked);
        self.cancelled.extend(cancelled);
        self.answered.extend(answered);
        self.children.extend(children);
        self.messages.extend(messages);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{Call, NodeId, StepId, Timer, Timestamp};

    fn step(node: &str) -> StepId {
        StepId {
            node: NodeId::parse(node).expect("valid"),
            ordinal: 0,
        }
    }

    fn effect(node: &str, attempt: u32) -> Effect {
        Effect {
            step: step(node),
            attempt,
            number: 0,
            call: Call::SideEffect { payload: Value::Null },
        }
    }

    #[test]
    fn what_a_later_decision_ends_is_never_begun() {
        let at = Timestamp::from_millis;
        let mut work = Work {
            effects: vec![effect("a", 0), effect("b", 0)],
            timers_set: vec![(Timer::Overdue(step("a"), 0), at(5)), (Timer::RunDuration, at(9))],
            ..Work::default()
        };
        work.then(Work {
            effects: vec![effect("a", 1)],
            settled: vec![(step("a"), 0), (step("z"), 3)],
            timers_set: vec![(Timer::RunDuration, at(10))],
            timers_cleared: vec![Timer::Overdue(step("a"), 0), Timer::Continue],
            ..Work::default()
        });
        assert_eq!(work.effects, [effect("b", 0), effect("a", 1)]);
        assert_eq!(work.settled, [(step("z"), 3)], "it was under way before");
        assert_eq!(work.timers_set, [(Timer::RunDuration, at(10))]);
        assert_eq!(work.timers_cleared, [Timer::Continue]);
        work.then(Work {
            timers_set: vec![(Timer::Continue, at(11))],
            ..Work::default()
        });
        assert_eq!(
            work.timers_cleared,
            [],
            "a timer that is set again is not cleared"
        );
    }
}
