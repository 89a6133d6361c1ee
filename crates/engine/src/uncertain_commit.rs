//! Appends with an unknown outcome.
//!
//! If a store goes silent during a commit, it may have committed, may not have, or may still do so a moment
//! later. So finding nothing in the log once proves nothing. Instead, the command is decided again; the
//! append of that decision waits for the uncertain one or takes its place. Before anything is concluded, the
//! engine checks whether the first event of the uncertain append is in the log. That event carries a mark
//! unique to its commit, so an identical decision of another replica is not mistaken for this one. If the
//! event is there, the command took effect, once, and its follow-up is done.

use wopr_store::{ReadError, StoredEvent};

use crate::{Engine, View, follow_up::FollowUp};

/// An append with an unknown outcome.
pub(crate) struct UncertainCommit {
    pub(crate) first: StoredEvent,
    /// The run as it is if the append committed.
    pub(crate) after: View,
    /// The work that follows if the append committed.
    pub(crate) follow_up: FollowUp,
}

/// The uncertain appends of one command.
#[derive(Default)]
pub(crate) struct UncertainCommits(Vec<UncertainCommit>);

impl UncertainCommits {
    pub(crate) fn add(&mut self, commit: UncertainCommit) {
        self.0.push(commit);
    }
}

impl Engine {
    /// Checks in the log whether an uncertain append has committed and, if so, does its follow-up.
    pub(crate) async fn settle(&self, uncertain: &mut UncertainCommits) -> Result<Option<View>, ReadError> {
        for index in 0..uncertain.0.len() {
            let UncertainCommit { first, after, .. } = &uncertain.0[index];
            let page = self.shared.store.events(&after.key, first.seq, 1).await?;
            if page.is_some_and(|page| page.events.first() == Some(first)) {
                let UncertainCommit {
                    mut after, follow_up, ..
                } = uncertain.0.swap_remove(index);
                // Each was decided without the others in the log, so at most one can have committed.
                uncertain.0.clear();
                tracing::debug!(run = %after.key, "commit in doubt had happened");
                // The log of an ended run cannot have grown since; any other may have.
                let is_terminal = after.run.status.is_terminal();
                let change = is_terminal.then(|| self.shared.recent_runs.change(&after.key));
                after.last_events = self.act(&after, follow_up, change);
                return Ok(Some(after));
            }
        }
        Ok(None)
    }
}
