//! Answering interrupts: the questions that are open, whether the caller has seen them, and giving the answer.

use wopr_core::{Command, OpenInterrupt, Resolve, RunKey, Seq};
use wopr_engine::{Done, Opened, SideRows, View};

use crate::{App, AskedAt, Caller, Error, Looked, Open, Scope, questions, staleness};

impl App {
    /// The questions at an open interrupt of a run: its own, or those of its child and the children of that as they are
    /// now.
    pub async fn questions_at(&self, view: &View, open: &OpenInterrupt<'_>) -> Result<Vec<Open>, Error> {
        Ok(questions::at(&self.engine, view, open).await?)
    }

    /// A question that a run asked, from its log or from that of the child that it mirrors; and the runs that were read
    /// on the way, each up to the event that asks.
    pub async fn look_up_question(
        &self,
        key: RunKey,
        id: &str,
    ) -> Result<(Option<AskedAt>, Vec<(RunKey, Seq)>), Error> {
        Ok(questions::look_up(&self.engine, key, id).await?)
    }

    /// Whether somebody else has settled a question since the caller last looked or answered, in the run or in a child
    /// on the way to the open question. What this process does not remember counts as not seen.
    pub async fn is_stale(
        &self,
        view: &View,
        way: &[(RunKey, Seq)],
        looked: Looked<'_>,
    ) -> Result<bool, Error> {
        Ok(staleness::is_stale(&self.engine, &self.last_reads, view, way, looked).await?)
    }

    /// Gives an answer in the caller's name. The run is loaded no second time unless another writer was first.
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

    /// Gives an answer in the name of a token's holder; the face has verified the token.
    pub async fn answer_by_token(
        &self,
        key: &RunKey,
        answer: Resolve,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        self.command(key, Command::Resolve(answer), side_rows).await
    }
}
