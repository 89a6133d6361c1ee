//! Cancels, pauses and resumes runs.

use wopr_core::{Command, DrainPolicy, Event, RunKey, Timestamp};
use wopr_engine::{Done, Opened, SideRows};

use crate::{App, Caller, Error, Scope};

/// Events at the end of a log in which the pause of a paused run is looked for.
const PAUSE_WINDOW: usize = 256;

impl App {
    /// Cancels a run. Refused if the run has ended.
    pub async fn cancel_run(
        &self,
        caller: &Caller,
        key: &RunKey,
        reason: Option<String>,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        caller.require(Scope::RunsCancel)?;
        let command = Command::Cancel {
            reason,
            by: Some(caller.principal.clone()),
        };
        self.command(key, command, side_rows).await
    }

    pub async fn pause_run(
        &self,
        caller: &Caller,
        key: &RunKey,
        reason: Option<String>,
        drain: DrainPolicy,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        caller.require(Scope::RunsCancel)?;
        self.command(key, Command::Pause { reason, drain }, side_rows)
            .await
    }

    /// Resumes a paused or quarantined run.
    pub async fn resume_run(
        &self,
        caller: &Caller,
        key: &RunKey,
        reason: Option<String>,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        caller.require(Scope::RunsCancel)?;
        self.command(key, Command::Resume { reason }, side_rows).await
    }

    /// When a paused run was paused, if that is among the last events of its log.
    pub async fn paused_at(&self, key: &RunKey) -> Result<Option<Timestamp>, Error> {
        let Some((_, head)) = self.engine.summary(key).await? else {
            return Ok(None);
        };
        let page = self.engine.events_before(key, head, PAUSE_WINDOW).await?;
        let paused = page.and_then(|page| {
            let is_pause = |event: &Event| matches!(event, Event::RunPaused { .. });
            page.events
                .iter()
                .rev()
                .find(|recorded| is_pause(&recorded.event))
                .map(|recorded| recorded.at)
        });
        Ok(paused)
    }

    /// Sends a command to a run. The caller must have checked that it is allowed.
    pub async fn command(&self, key: &RunKey, command: Command, side_rows: SideRows) -> Result<Done, Error> {
        Ok(self.engine.command(key, command, side_rows).await?)
    }

    /// Sends a command to a run that is already loaded; it is loaded again only if another writer was first.
    pub async fn command_opened(
        &self,
        opened: Opened,
        command: Command,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        Ok(self.engine.command_opened(opened, command, side_rows).await?)
    }
}
