//! Triggers: what edges have told a node, and whether it may start.
//!
//! An edge tells its target how its source ended. A back edge starts its target on its own. The forward edges
//! of a node are judged together: what they say is used up by a start or a skip, and remembered. In a
//! loop some sources speak again and others do not; a join that hears from some of them is *held* until
//! nothing under way can reach the silent ones, and then counts what those said last. Without loops a
//! source speaks once, and nothing is ever held.

use serde::{Deserialize, Serialize};

use crate::{Plan, definition::TriggerRule};

use super::{NodeState, Phase, Run};

/// What an edge tells its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Signal {
    Success,
    Failure,
    /// The source was skipped.
    Skipped,
    /// The edge's condition did not hold; counts as skipped, but cannot trigger on its own.
    Untaken,
}

/// What one forward edge has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Slot {
    /// Since the node last started or was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    now: Option<Signal>,
    /// Before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<Signal>,
    /// The node started without waiting for this edge; its next signal belongs to that start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    owed: bool,
}

/// What a node's edges allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// The forward edges start it.
    Forward,
    /// A back edge starts it.
    Back,
    /// The forward edges have spoken and cannot start it.
    Skip,
    /// It may start with what some edges said earlier, once nothing can change that.
    Held,
    NotYet,
}

impl Run {
    pub(super) fn signal(&mut self, plan: &Plan, position: usize, signal: Signal, untaken: &[u32]) {
        for &edge in &plan.nodes[position].out {
            // Recorded in the order of the edges.
            let untaken = u32::try_from(edge).is_ok_and(|edge| untaken.binary_search(&edge).is_ok());
            let signal = if untaken { Signal::Untaken } else { signal };
            let edge = &plan.edges[edge];
            let state = &mut self.nodes[edge.target];
            match edge.slot {
                Some(slot) => state.slots[slot].hear(signal),
                None if acceptable(edge.rule, signal) && signal.is_outcome() => state.back += 1,
                None => {}
            }
        }
    }

    /// Whether a node may start now, can no longer start in this round, or must wait.
    pub(crate) fn readiness(&self, plan: &Plan, position: usize) -> Readiness {
        let Some(state) = self.nodes.get(position) else {
            return Readiness::NotYet;
        };
        if matches!(state.phase, Phase::Active(_)) {
            return Readiness::NotYet;
        }
        let forward = &plan.nodes[position].forward;
        let heard = if forward.is_empty() {
            if state.fired {
                Readiness::NotYet
            } else {
                Readiness::Forward
            }
        } else {
            let rules = forward.iter().map(|&edge| plan.edges[edge].rule);
            judge(&state.slots, rules)
        };
        match heard {
            Readiness::Skip | Readiness::Held | Readiness::NotYet if state.back > 0 => Readiness::Back,
            heard => heard,
        }
    }

    /// Whether anything active, or another held node, could still make a silent source of a held node speak.
    pub(crate) fn may_still_hear(&self, plan: &Plan, position: usize, is_held: &[bool]) -> bool {
        let mut seen = vec![false; plan.nodes.len()];
        seen[position] = true;
        let slots = self.nodes[position].slots.iter();
        let mut reach: Vec<_> = slots
            .zip(&plan.nodes[position].forward)
            .filter(|(slot, _)| slot.now.is_none())
            .map(|(_, &edge)| plan.edges[edge].source)
            .collect();
        while let Some(node) = reach.pop() {
            if std::mem::replace(&mut seen[node], true) {
                continue;
            }
            if matches!(self.nodes[node].phase, Phase::Active(_)) || is_held[node] {
                return true;
            }
            let incoming = plan.nodes[node].forward.iter().chain(&plan.nodes[node].back);
            reach.extend(incoming.map(|&edge| plan.edges[edge].source));
        }
        false
    }
}

impl NodeState {
    /// Takes the trigger that made the node ready; `false` if there is none.
    pub(super) fn consume(&mut self, ready: Readiness) -> bool {
        match ready {
            Readiness::Forward => {
                self.fired = true;
                for slot in &mut self.slots {
                    slot.owed |= slot.now.is_none();
                    slot.remember();
                }
            }
            Readiness::Skip | Readiness::Held => self.slots.iter_mut().for_each(Slot::remember),
            Readiness::Back => self.back -= 1,
            Readiness::NotYet => return false,
        }
        true
    }
}

impl Slot {
    fn hear(&mut self, signal: Signal) {
        if self.owed {
            self.owed = false;
            self.last = Some(signal);
        } else {
            self.now = Some(signal);
        }
    }

    fn remember(&mut self) {
        if let Some(now) = self.now.take() {
            self.last = Some(now);
            self.owed = false;
        }
    }
}

impl Signal {
    /// Whether the source ran.
    fn is_outcome(self) -> bool {
        matches!(self, Self::Success | Self::Failure)
    }
}

/// Judges a node's forward edges by what they said.
fn judge(slots: &[Slot], rules: impl Iterator<Item = TriggerRule> + Clone) -> Readiness {
    let told = || slots.iter().map(|slot| slot.now);
    let taken = slots
        .iter()
        .any(|slot| slot.now.is_some_and(|now| now != Signal::Untaken));
    if taken && satisfied(told().zip(rules.clone()), told().zip(rules.clone())) {
        return Readiness::Forward;
    }
    if told().all(|now| now.is_some()) {
        return Readiness::Skip;
    }
    let latest = || slots.iter().map(|slot| slot.now.or(slot.last));
    let ran = told().flatten().any(Signal::is_outcome);
    if ran
        && latest().all(|signal| signal.is_some())
        && satisfied(latest().zip(rules.clone()), told().zip(rules))
    {
        return Readiness::Held;
    }
    Readiness::NotYet
}

/// Whether every edge whose rule asks for all accepts, and one of those whose rule asks for any.
fn satisfied(
    mut all: impl Iterator<Item = (Option<Signal>, TriggerRule)>,
    any: impl Iterator<Item = (Option<Signal>, TriggerRule)>,
) -> bool {
    let accepted =
        |(signal, rule): (Option<Signal>, TriggerRule)| signal.is_some_and(|signal| acceptable(rule, signal));
    let mut any = any.filter(|(_, rule)| asks_for_any(*rule)).peekable();
    all.all(|edge| asks_for_any(edge.1) || accepted(edge)) && (any.peek().is_none() || any.any(accepted))
}

const fn asks_for_any(rule: TriggerRule) -> bool {
    match rule {
        TriggerRule::AnySuccess | TriggerRule::AnyFailed => true,
        TriggerRule::AllSuccess | TriggerRule::AllComplete | TriggerRule::NoneFailed => false,
    }
}

fn acceptable(rule: TriggerRule, signal: Signal) -> bool {
    match rule {
        TriggerRule::AllSuccess | TriggerRule::AnySuccess => signal == Signal::Success,
        TriggerRule::AllComplete => true,
        TriggerRule::NoneFailed => signal != Signal::Failure,
        TriggerRule::AnyFailed => signal == Signal::Failure,
    }
}
