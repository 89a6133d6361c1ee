//! Appends whose outcome is not known yet.
//!
//! A store that goes silent during a commit may have made it, may not, and may still make it a moment later. So one
//! look that finds nothing proves nothing: the command is decided again, and the append of that decision waits for
//! the one in doubt, or takes its place. Before anything is concluded, the log is asked whether the first event of an
//! append in doubt stands where it was put. It carries the mark of its commit, so that the very same decision of
//! another replica is not taken for ours. If it stands, the command took effect, once, and what follows is done.

use wopr_store::{ReadError, StoredEvent};

use crate::{Engine, View, follow_up::FollowUp};

/// An append in doubt.
pub(crate) struct UncertainCommit {
    pub(crate) first: StoredEvent,
    /// The run as it is if the append happened.
    pub(crate) after: View,
    /// What is to be done if it did.
    pub(crate) follow_up: FollowUp,
}

/// What one command has in doubt.
#[derive(Default)]
pub(crate) struct UncertainCommits(Vec<UncertainCommit>);

impl UncertainCommits {
    pub(crate) fn add(&mut self, commit: UncertainCommit) {
        self.0.push(commit);
    }
}

impl Engine {
    /// Asks the log whether an append in doubt has happened, and does what follows if so.
    pub(crate) async fn settle(&self, uncertain: &mut UncertainCommits) -> Result<Option<View>, ReadError> {
        for index in 0..uncertain.0.len() {
            let UncertainCommit { first, after, .. } = &uncertain.0[index];
            let page = self.shared.store.events(&after.key, first.seq, 1).await?;
            if page.is_some_and(|page| page.events.first() == Some(first)) {
                let UncertainCommit { after, follow_up, .. } = uncertain.0.swap_remove(index);
                // Each was decided at a log without the others, so at most one can have happened.
                uncertain.0.clear();
                tracing::info!(run = %after.key, "commit in doubt had happened");
                // A log that has ended cannot have grown since; any other may have.
                let is_terminal = after.run.status.is_terminal();
                let change = is_terminal.then(|| self.shared.recent_runs.change(&after.key));
                self.act(&after, follow_up, change);
                return Ok(Some(after));
            }
        }
        Ok(None)
    }
}
