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

    /// The first of the held nodes whose silent sources nothing active and no other held node can make speak.
    ///
    /// What is active or held is heard as far as the next such node, so each node hears of few; that it hears of two is
    /// enough to know that one of them is not the node in question. All is found out in one walk.
    pub(crate) fn free(&self, plan: &Plan, held: &[usize]) -> Option<usize> {
        let mut speaks: Vec<_> = self.nodes.iter().map(is_active).collect();
        for &position in held {
            speaks[position] = true;
        }
        let mut heard: Vec<[Option<usize>; 2]> = vec![[None; 2]; plan.nodes.len()];
        let mut reach = Vec::new();
        let targets = |node: usize, speaker: usize| {
            let out = plan.nodes[node].out.iter();
            out.map(move |&edge| (plan.edges[edge].target, speaker))
        };
        for speaker in (0..speaks.len()).filter(|&position| speaks[position]) {
            heard[speaker] = [Some(speaker), None];
            reach.extend(targets(speaker, speaker));
            while let Some((node, speaker)) = reach.pop() {
                if speaks[node] || heard[node].contains(&Some(speaker)) {
                    continue;
                }
                let Some(room) = heard[node].iter_mut().find(|known| known.is_none()) else {
                    continue;
                };
                *room = Some(speaker);
                reach.extend(targets(node, speaker));
            }
        }
        let hears = |position: usize| {
            let slots = self.nodes[position].slots.iter();
            let mut silent = slots
                .zip(&plan.nodes[position].forward)
                .filter(|(slot, _)| slot.now.is_none());
            silent.any(|(_, &edge)| {
                let speakers = heard[plan.edges[edge].source].iter().flatten();
                speakers.copied().any(|speaker| speaker != position)
            })
        };
        held.iter().copied().find(|&position| !hears(position))
    }
}

fn is_active(state: &NodeState) -> bool {
    matches!(state.phase, Phase::Active(_))
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
