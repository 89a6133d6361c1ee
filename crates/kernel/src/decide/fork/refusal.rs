//! Ends a replay at a call whose model, asked again, refuses where it answered the source, or answers where it refused.
//!
//! The host asks when the fork is asked for, and records what differs with the fork, so a decision depends on the log alone.

use crate::{Dialect, Failure, Given, KernelEvent, ReplyKind, Seq, Wait};

use super::DecisionBuilder;

/// The code of a replay that ends so.
pub const REFUSAL_DIVERGED: &str = "replay_diverged_at_refusal";

impl<D: Dialect> DecisionBuilder<'_, D> {
    /// Fails the replay if it gets another kind of reply than the source got with the event at `seq`. Otherwise, returns
    /// `false`, and the recorded reply counts.
    pub(super) fn ends_at_refusal(&mut self, seq: Seq) -> bool {
        let Some(following) = &self.following else {
            return false;
        };
        let fork = &following.fork;
        // What comes before the fork is history.
        let found = fork
            .refusal
            .as_deref()
            .filter(|found| found.at == seq && seq >= fork.from);
        let Some(divergence) = found.cloned() else {
            return false;
        };
        let source = fork.source.clone();
        // A replay that has differed before may be elsewhere.
        let attempts = match self.active(&divergence.step) {
            Some((_, active)) if matches!(active.wait, Wait::Effect(_)) => active.attempt + 1,
            Some(_) | None => return false,
        };
        let step = divergence.step.clone();
        let message = match divergence.original {
            ReplyKind::Valid => "the model refused the replay, and had answered its source",
            ReplyKind::Refusal => "the model answered the replay, and had refused its source",
        };
        let error = Failure::new(REFUSAL_DIVERGED, message);
        self.following = None;
        // A fork of this replay repeats these events as they are.
        self.given = Some(Box::new(Given::News));
        let diverged = KernelEvent::RefusalDiverged { source, divergence };
        let cause = self.record(self.last(), diverged);
        let failed = KernelEvent::NodeFailed {
            step: step.clone(),
            error: error.clone(),
            attempts,
            routing: Vec::new(),
        };
        let cause = self.record(Some(cause), failed);
        self.fail_run(Some(cause), error, Some(step.node));
        true
    }
}
