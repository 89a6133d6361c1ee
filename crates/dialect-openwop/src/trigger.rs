//! Triggers: the signals a node has received from its edges, and whether it may start.
//!
//! An edge signals its target how its source ended. A back edge starts its target on its own. The forward
//! edges of a node are evaluated together: a start or a skip consumes their signals and remembers them. In a
//! loop, some sources signal again and others do not. A join that has new signals from only some of its
//! sources is *held* until nothing active can reach the silent ones; then their last signals count. Without
//! loops each source signals once, and no node is ever held.

use serde::{Deserialize, Serialize};

use wopr_kernel::{Phase, Run};

use crate::{Plan, State, definition::TriggerRule, state::NodeState};

/// The signal of an edge to its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Signal {
    Success,
    Failure,
    /// The source was skipped.
    Skipped,
    /// The edge's condition did not hold. Counts as skipped, but cannot trigger the target on its own.
    Untaken,
}

/// The signals received over one forward edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Slot {
    /// The signal since the node last started or was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    now: Option<Signal>,
    /// The signal before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<Signal>,
    /// The node started without waiting for this edge; the edge's next signal belongs to that start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    owed: bool,
}

/// The next step that the edges of a node allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// The forward edges start it.
    Forward,
    /// A back edge starts it.
    Back,
    /// All forward edges have signalled and cannot start it.
    Skip,
    /// It may start on earlier signals of some edges once nothing can change those.
    Held,
    NotYet,
}

impl State {
    pub(crate) fn signal(&mut self, plan: &Plan, position: usize, signal: Signal, untaken: &[u32]) {
        for &edge in &plan.nodes[position].out {
            // `untaken` is sorted, because it is recorded in edge order.
            let untaken = u32::try_from(edge).is_ok_and(|edge| untaken.binary_search(&edge).is_ok());
            let signal = if untaken { Signal::Untaken } else { signal };
            let edge = &plan.edges[edge];
            let state = &mut self.nodes[edge.target];
            match edge.slot {
                Some(slot) => state.slots[slot].receive(signal),
                None if acceptable(edge.rule, signal) && signal.is_outcome() => state.back += 1,
                None => {}
            }
        }
    }

    /// Whether a node may start now, can no longer start in this round, or must wait.
    pub(crate) fn readiness(&self, run: &Run, plan: &Plan, position: usize) -> Readiness {
        let Some(state) = self.nodes.get(position) else {
            return Readiness::NotYet;
        };
        if is_active(run, position) {
            return Readiness::NotYet;
        }
        let forward = &plan.nodes[position].forward;
        let by_forward = if forward.is_empty() {
            if state.fired {
                Readiness::NotYet
            } else {
                Readiness::Forward
            }
        } else {
            let rules = forward.iter().map(|&edge| plan.edges[edge].rule);
            evaluate(&state.slots, rules)
        };
        match by_forward {
            Readiness::Skip | Readiness::Held | Readiness::NotYet if state.back > 0 => Readiness::Back,
            by_forward => by_forward,
        }
    }

    /// Whether a node certainly waits for one of its sources, which is active: then it can neither start nor be skipped,
    /// nor be freed if it is held. Returns the number of edges read as well. Cheaper than [`Self::readiness`], because it
    /// stops at the first such source; `false` says nothing.
    pub(crate) fn waits_for_source(&self, run: &Run, plan: &Plan, position: usize) -> (bool, usize) {
        let node = &plan.nodes[position];
        let Some(state) = self.nodes.get(position).filter(|state| state.back == 0) else {
            return (false, 0);
        };
        let mut n_read = 0;
        // From the last on: sources mostly end in the order in which they started.
        for (slot, &edge) in state.slots.iter().zip(&node.forward).rev() {
            n_read += 1;
            let edge = &plan.edges[edge];
            // An edge that asks for any signal can be outdone by others.
            let is_awaited = slot.now.is_none() && !asks_for_any(edge.rule);
            if is_awaited && edge.source != position && is_active(run, edge.source) {
                return (true, n_read);
            }
        }
        (false, n_read)
    }

    /// The first held node whose silent sources cannot be reached by any active node or by any other held
    /// node.
    ///
    /// One walk computes this for all nodes. The walk from an active or held node stops at the next such
    /// node. Each node records at most two of the nodes that reach it: of two different ones, at least one is
    /// not the held node being tested.
    pub(crate) fn free(&self, run: &Run, plan: &Plan, held: &[usize]) -> Option<usize> {
        let mut is_origin: Vec<_> = (0..self.nodes.len())
            .map(|position| is_active(run, position))
            .collect();
        for &position in held {
            is_origin[position] = true;
        }
        let mut reached_from: Vec<[Option<usize>; 2]> = vec![[None; 2]; plan.nodes.len()];
        let mut reach = Vec::new();
        let targets = |node: usize, origin: usize| {
            let out = plan.nodes[node].out.iter();
            out.map(move |&edge| (plan.edges[edge].target, origin))
        };
        for origin in (0..is_origin.len()).filter(|&position| is_origin[position]) {
            reached_from[origin] = [Some(origin), None];
            reach.extend(targets(origin, origin));
            while let Some((node, origin)) = reach.pop() {
                if is_origin[node] || reached_from[node].contains(&Some(origin)) {
                    continue;
                }
                let Some(vacant) = reached_from[node].iter_mut().find(|known| known.is_none()) else {
                    continue;
                };
                *vacant = Some(origin);
                reach.extend(targets(node, origin));
            }
        }
        let is_reachable = |position: usize| {
            let slots = self.nodes[position].slots.iter();
            let mut silent = slots
                .zip(&plan.nodes[position].forward)
                .filter(|(slot, _)| slot.now.is_none());
            silent.any(|(_, &edge)| {
                let origins = reached_from[plan.edges[edge].source].iter().flatten();
                origins.copied().any(|origin| origin != position)
            })
        };
        held.iter().copied().find(|&position| !is_reachable(position))
    }
}

fn is_active(run: &Run, position: usize) -> bool {
    let state = run.nodes.get(position);
    state.is_some_and(|state| matches!(state.phase, Phase::Active(_)))
}

impl NodeState {
    /// Consumes the trigger that made the node ready; `false` if there is none.
    pub(crate) fn consume(&mut self, ready: Readiness) -> bool {
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
    fn receive(&mut self, signal: Signal) {
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

/// Evaluates a node's forward edges by their signals.
fn evaluate(slots: &[Slot], rules: impl Iterator<Item = TriggerRule> + Clone) -> Readiness {
    let current = || slots.iter().map(|slot| slot.now);
    let taken = slots
        .iter()
        .any(|slot| slot.now.is_some_and(|now| now != Signal::Untaken));
    if taken && satisfied(current().zip(rules.clone()), current().zip(rules.clone())) {
        return Readiness::Forward;
    }
    if current().all(|now| now.is_some()) {
        return Readiness::Skip;
    }
    let latest = || slots.iter().map(|slot| slot.now.or(slot.last));
    let ran = current().flatten().any(Signal::is_outcome);
    if ran
        && latest().all(|signal| signal.is_some())
        && satisfied(latest().zip(rules.clone()), current().zip(rules))
    {
        return Readiness::Held;
    }
    Readiness::NotYet
}

/// Whether every edge with an `All*` or `NoneFailed` rule accepts, and at least one edge with an `Any*` rule,
/// if there are any.
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
