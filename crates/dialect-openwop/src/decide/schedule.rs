//! Scheduling: starts every node whose edges allow it, until no node can start.

use std::collections::VecDeque;

use wopr_kernel::{Phase, Run};

use crate::{NodeId, Object, Plan, State, cost::DECISION_PAUSE, trigger::Readiness};

use super::Walk;

/// A queue of nodes whose readiness may have changed, without duplicates.
#[derive(Debug)]
pub(super) struct Dirty {
    queue: VecDeque<usize>,
    is_queued: Vec<bool>,
}

impl Dirty {
    pub(super) fn new(n_nodes: usize) -> Self {
        Self {
            queue: VecDeque::new(),
            is_queued: vec![false; n_nodes],
        }
    }

    pub(super) fn push(&mut self, position: usize) {
        if !std::mem::replace(&mut self.is_queued[position], true) {
            self.queue.push_back(position);
        }
    }

    pub(super) fn clear(&mut self) {
        while self.pop().is_some() {}
    }

    fn pop(&mut self) -> Option<usize> {
        let position = self.queue.pop_front()?;
        self.is_queued[position] = false;
        Some(position)
    }

    fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl Walk<'_, '_> {
    pub(super) fn mark_all(&mut self) {
        (0..self.plan.nodes.len()).for_each(|position| self.dirty.push(position));
    }

    /// Runs ready nodes until the run must wait, has ended, or the decision is full.
    pub(super) fn settle(&mut self) {
        loop {
            self.drain();
            if self.is_paused() || !self.may_start() {
                return;
            }
            // An earlier decision may have stopped at its limit with nodes left to start, and any command may
            // arrive before the `continue` timer. Such nodes count as active.
            if !self.has_active() || self.may_release() {
                self.mark_ready();
                if !self.dirty.is_empty() {
                    continue;
                }
                if let Some(position) = self.released() {
                    if self.must_pause() {
                        return self.pause();
                    }
                    if self.plan.nodes[position].disabled {
                        self.skip_node(position, "disabled");
                    } else {
                        self.start_node(position);
                    }
                    continue;
                }
            }
            if !self.has_active() {
                match self.unverified() {
                    None => {
                        let outputs = self.final_outputs();
                        self.complete_run(outputs);
                    }
                    Some(failure) => {
                        let cause = self.last();
                        self.fail_run(cause, failure, None);
                    }
                }
            }
            return;
        }
    }

    fn readiness(&self, position: usize) -> Readiness {
        self.state.readiness(&self.run, self.plan, position)
    }

    fn mark_ready(&mut self) {
        self.walked(self.plan.nodes.len() + self.plan.edges.len());
        for position in 0..self.plan.nodes.len() {
            match self.readiness(position) {
                Readiness::Forward | Readiness::Back | Readiness::Skip => self.dirty.push(position),
                Readiness::NotYet | Readiness::Held => {}
            }
        }
    }

    fn drain(&mut self) {
        // A node that ran is queued behind the others, so a loop cannot starve other nodes.
        while let Some(position) = self.dirty.pop() {
            if self.is_paused() || !self.may_start() {
                self.dirty.clear();
                return;
            }
            if self.waits_for_source(position) {
                continue;
            }
            // Each edge is read when the node's readiness is evaluated, and again when the node starts.
            self.walked(1 + self.plan.nodes[position].forward.len());
            let ready = self.readiness(position);
            if matches!(ready, Readiness::NotYet | Readiness::Held) {
                continue;
            }
            if self.must_pause() {
                self.pause();
            } else if ready == Readiness::Skip {
                self.skip_node(position, "trigger-not-met");
            } else if self.plan.nodes[position].disabled {
                self.skip_node(position, "disabled");
            } else {
                self.start_node(position);
            }
        }
    }

    fn waits_for_source(&self, position: usize) -> bool {
        let (waits, n_read) = self.state.waits_for_source(&self.run, self.plan, position);
        self.walked(n_read);
        waits
    }

    /// Whether there is a held node that nothing active leads to at once, so that a walk of the graph has to show whether
    /// its missing signals can still arrive.
    fn may_release(&self) -> bool {
        self.plan.has_loop
            && self.plan.joins.iter().any(|&position| {
                if self.waits_for_source(position) {
                    return false;
                }
                self.walked(1 + self.plan.nodes[position].forward.len());
                self.readiness(position) == Readiness::Held
            })
    }

    /// A held node whose missing signals can no longer arrive.
    fn released(&self) -> Option<usize> {
        if !self.plan.has_loop {
            return None;
        }
        self.walked(3 * (self.plan.nodes.len() + self.plan.edges.len()));
        let joins = self.plan.joins.iter().copied();
        let held: Vec<_> = joins
            .filter(|&position| self.readiness(position) == Readiness::Held)
            .collect();
        if held.is_empty() {
            return None;
        }
        let free = self.state.free(&self.run, self.plan, &held);
        // Held nodes that wait for each other would wait forever.
        free.or_else(|| held.first().copied().filter(|_| !self.has_active()))
    }

    /// Charges for a walk over nodes and edges. It takes at most the first half of the budget; the second
    /// half is reserved for the node being run.
    fn walked(&self, n: usize) {
        let left = DECISION_PAUSE.saturating_sub(self.budget.spent());
        // Never more than what is left, so this cannot fail.
        let _ = self.budget.spend((n as u64).min(left));
    }

    fn skip_node(&mut self, position: usize, reason: &str) {
        self.skip(position, reason);
        self.mark_targets(position);
    }

    pub(super) fn mark_targets(&mut self, position: usize) {
        let plan = self.plan;
        let out = &plan.nodes[position].out;
        self.walked(out.len());
        for &edge in out {
            self.dirty.push(plan.edges[edge].target);
        }
        self.dirty.push(position);
    }

    /// The run's outputs: those of the terminal node that completed, or of several such nodes under their
    /// ids.
    fn final_outputs(&self) -> Object {
        let mut ends = ends(self.plan, &self.run, &self.state);
        match (ends.next(), ends.next()) {
            (None, _) => Object::new(),
            (Some((_, outputs)), None) => outputs.clone(),
            (Some(first), Some(second)) => [first, second]
                .into_iter()
                .chain(ends)
                .map(|(node, outputs)| (node.to_string(), serde_json::Value::Object(outputs.clone())))
                .collect(),
        }
    }
}

/// The completed terminal nodes, which no forward edge leaves, with their outputs.
pub(super) fn ends<'a>(
    plan: &'a Plan,
    run: &'a Run,
    state: &'a State,
) -> impl Iterator<Item = (&'a NodeId, &'a Object)> {
    let nodes = plan.nodes.iter().zip(&run.nodes).zip(&state.nodes);
    nodes.filter_map(|((node, known), state)| {
        let is_end = node.out.iter().all(|&edge| plan.edges[edge].slot.is_none());
        let has_ended = is_end && matches!(known.phase, Phase::Completed);
        let outputs = state.outputs.as_ref().filter(|_| has_ended)?;
        Some((&node.id, outputs))
    })
}
