//! Answers interrupts: finds open questions, checks that the caller has seen them, and gives the answer.

use wopr_core::{Command, OpenInterrupt, Resolve, RunKey, Seq};
use wopr_engine::{Done, Opened, SideRows, View};

use crate::{App, AskedAt, Caller, Error, Looked, Open, Scope, questions, staleness};

impl App {
    /// The questions at an open interrupt of a run: its own, or the current ones of its child and further
    /// descendants.
    pub async fn questions_at(&self, view: &View, open: &OpenInterrupt<'_>) -> Result<Vec<Open>, Error> {
        Ok(questions::at(&self.engine, view, open).await?)
    }

    /// Finds a question of a run in its log, or in that of the child it mirrors. Also returns the runs that
    /// were read on the way, each with the position after the event that asks.
    pub async fn look_up_question(
        &self,
        key: RunKey,
        id: &str,
    ) -> Result<(Option<AskedAt>, Vec<(RunKey, Seq)>), Error> {
        Ok(questions::look_up(&self.engine, key, id).await?)
    }

    /// Returns `true` if somebody else has settled a question since the caller last looked or answered, in
    /// the run or in a child on the way to the open question. Reads that this process does not remember count
    /// as unseen.
    pub async fn is_stale(
        &self,
        view: &View,
        way: &[(RunKey, Seq)],
        looked: Looked<'_>,
    ) -> Result<bool, Error> {
        Ok(staleness::is_stale(&self.engine, &self.last_reads, view, way, looked).await?)
    }

    /// Answers in the name of the caller. The run is loaded again only if another writer was first.
    pub async fn answer_interrupt(
        &self,
        caller: &Caller,
        run: Opened,
        answer: Resolve,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        caller.require(Scope::ApprovalsRespond)?;
        self.command_opened(run, Command::Resolve(answer), side_rows)
            .await
    }

    /// Answers in the name of a token's holder. The protocol face has verified the token.
    pub async fn answer_by_token(
        &self,
        key: &RunKey,
        answer: Resolve,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        self.command(key, Command::Resolve(answer), side_rows).await
    }
}
