//! Scheduling: starts every node whose edges allow it, until no node can start.

use std::collections::VecDeque;

use crate::{
    Cap, Event, Failure, NodeId, Object, Plan, Timer,
    cost::DECISION_PAUSE,
    run::{Phase, Readiness},
};

use super::DecisionBuilder;

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

impl DecisionBuilder<'_> {
    pub(super) fn mark_all(&mut self) {
        (0..self.plan.nodes.len()).for_each(|position| self.dirty.push(position));
    }

    /// Runs ready nodes until the run must wait, has ended, or the decision is full.
    pub(super) fn settle_run(&mut self) {
        loop {
            self.drain();
            if self.cut || !self.may_start() {
                return;
            }
            // An earlier decision may have stopped at its limit with nodes left to start, and any command may
            // arrive before the `continue` timer. Such nodes count as active.
            if self.plan.has_loop || !self.has_active() {
                self.mark_ready();
                if !self.dirty.is_empty() {
                    continue;
                }
            }
            if let Some(position) = self.released() {
                if self.must_pause() {
                    return self.pause();
                }
                if self.plan.nodes[position].disabled {
                    self.skip(position, "disabled");
                } else {
                    self.start_node(position);
                }
                continue;
            }
            if !self.has_active() {
                let outputs = self.final_outputs();
                self.record(self.last(), Event::RunCompleted { outputs });
            }
            return;
        }
    }

    /// Whether the decision is full. A decision that has recorded nothing never is, however much work the
    /// graph walk took: each decision must make progress.
    fn must_pause(&self) -> bool {
        !self.events.is_empty() && self.is_full()
    }

    /// Leaves the rest to the next decision.
    fn pause(&mut self) {
        self.cut = true;
        self.timers_set.push((Timer::Continue, self.input.now));
    }

    fn mark_ready(&mut self) {
        self.walked(self.plan.nodes.len() + self.plan.edges.len());
        for position in 0..self.plan.nodes.len() {
            match self.run.readiness(self.plan, position) {
                Readiness::Forward | Readiness::Back | Readiness::Skip => self.dirty.push(position),
                Readiness::NotYet | Readiness::Held => {}
            }
        }
    }

    fn drain(&mut self) {
        // A node that ran is queued behind the others, so a loop cannot starve other nodes.
        while let Some(position) = self.dirty.pop() {
            if self.cut || !self.may_start() {
                self.dirty.clear();
                return;
            }
            // Each edge is read when the node's readiness is evaluated, and again when the node starts.
            self.walked(1 + self.plan.nodes[position].forward.len());
            let ready = self.run.readiness(self.plan, position);
            if matches!(ready, Readiness::NotYet | Readiness::Held) {
                continue;
            }
            if self.must_pause() {
                self.pause();
            } else if ready == Readiness::Skip {
                self.skip(position, "trigger-not-met");
            } else if self.plan.nodes[position].disabled {
                self.skip(position, "disabled");
            } else {
                self.start_node(position);
            }
        }
    }

    /// A held node whose missing signals can no longer arrive.
    fn released(&self) -> Option<usize> {
        if !self.plan.has_loop {
            return None;
        }
        self.walked(3 * (self.plan.nodes.len() + self.plan.edges.len()));
        let held: Vec<_> = (0..self.plan.nodes.len())
            .filter(|&position| self.run.readiness(self.plan, position) == Readiness::Held)
            .collect();
        if held.is_empty() {
            return None;
        }
        let free = self.run.free(self.plan, &held);
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

    fn has_active(&self) -> bool {
        let mut states = self.run.nodes.iter();
        states.any(|state| matches!(state.phase, Phase::Active(_)))
    }

    fn may_start(&self) -> bool {
        !self.run.status.is_terminal()
            && !self.run.paused
            && self.run.cancelling.is_none()
            && self.run.started.is_some()
    }

    fn skip(&mut self, position: usize, reason: &str) {
        let node = self.plan.nodes[position].id.clone();
        self.record(
            None,
            Event::NodeSkipped {
                node,
                reason: reason.to_owned(),
            },
        );
        self.mark_targets(position);
    }

    pub(super) fn mark_targets(&mut self, position: usize) {
        let plan: &Plan = self.plan;
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
        let mut ends = self.ends();
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

    /// The completed terminal nodes, which no forward edge leaves, with their outputs.
    pub(super) fn ends(&self) -> impl Iterator<Item = (&NodeId, &Object)> {
        let nodes = self.plan.nodes.iter().zip(&self.run.nodes);
        nodes.filter_map(|(node, state)| {
            let is_end = node.out.iter().all(|&edge| self.plan.edges[edge].slot.is_none());
            let has_ended = is_end && matches!(state.phase, Phase::Completed);
            let outputs = state.outputs.as_ref().filter(|_| has_ended)?;
            Some((&node.id, outputs))
        })
    }

    /// Whether the limit allows one more node execution; if not, fails the run.
    pub(super) fn within_executions(&mut self, position: usize) -> bool {
        let limit = self
            .run
            .started
            .as_ref()
            .map_or(0, |started| started.limits.node_executions);
        if self.run.executions < limit {
            return true;
        }
        let node = self.plan.nodes[position].id.clone();
        self.breach(
            Cap::NodeExecutions,
            u64::from(limit),
            u64::from(self.run.executions) + 1,
            Some(node),
        );
        false
    }

    pub(super) fn breach(&mut self, kind: Cap, limit: u64, observed: u64, node: Option<NodeId>) {
        let cause = self.record(
            None,
            Event::CapBreached {
                kind,
                limit,
                observed,
                node: node.clone(),
            },
        );
        let message = match kind {
            Cap::NodeExecutions => format!("the run reached its limit of {limit} node executions"),
            Cap::RunDuration => format!("the run reached its limit of {limit} ms"),
        };
        self.fail_run(Some(cause), Failure::new(kind.error_code(), message), node);
    }

    pub(super) fn breach_duration(&mut self) {
        let limit = self
            .run
            .started
            .as_ref()
            .and_then(|started| started.limits.run_duration_ms)
            .unwrap_or(0);
        let since = self.run.running_since.unwrap_or(self.input.now);
        let observed = (self.run.active_ms + self.input.now.millis_since(since)).max(limit + 1);
        let node = self.run.current_node(self.plan).cloned();
        self.breach(Cap::RunDuration, limit, observed, node);
    }
}
