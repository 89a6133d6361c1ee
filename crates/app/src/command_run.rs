//! Cancels, pauses and resumes runs.

use wopr_core::{Command, DrainPolicy, Event, KernelEvent, Object, Refusal, RunKey, Timestamp};
use wopr_engine::{Done, SideRows};

use crate::{App, Caller, Error, Scope, VisibleRun, start_run::invalid};

/// Events at the end of a log in which the pause of a paused run is looked for.
const PAUSE_WINDOW: usize = 256;

/// Maximum length of the reason of a cancel, a pause or a resume, in characters.
const MAX_REASON: usize = 512;

impl App {
    /// Cancels a run. Refused if the run has ended.
    pub async fn cancel_run(
        &self,
        caller: &Caller,
        run: &VisibleRun,
        reason: Option<String>,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        caller.require(Scope::RunsCancel)?;
        check_reason(reason.as_deref())?;
        let command = Command::Cancel {
            reason,
            by: Some(caller.principal.clone()),
        };
        self.command(run, command, side_rows).await
    }

    /// Pauses a run, unless its log has reached its limit. Such a run can still be resumed and cancelled.
    pub async fn pause_run(
        &self,
        caller: &Caller,
        run: &VisibleRun,
        reason: Option<String>,
        drain: DrainPolicy,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        caller.require(Scope::RunsCancel)?;
        check_reason(reason.as_deref())?;
        self.command(run, Command::Pause { reason, drain }, side_rows)
            .await
    }

    /// Resumes a paused or quarantined run.
    pub async fn resume_run(
        &self,
        caller: &Caller,
        run: &VisibleRun,
        reason: Option<String>,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        caller.require(Scope::RunsCancel)?;
        check_reason(reason.as_deref())?;
        self.command(run, Command::Resume { reason }, side_rows).await
    }

    /// When a paused run was paused, if that is among the last events of its log.
    pub async fn paused_at(&self, run: &VisibleRun) -> Result<Option<Timestamp>, Error> {
        let Some((_, head)) = self.engine.summary(run).await? else {
            return Ok(None);
        };
        let page = self.engine.events_before(run, head, PAUSE_WINDOW).await?;
        let paused = page.and_then(|page| {
            let is_pause = |event: &Event| matches!(event, Event::Kernel(KernelEvent::RunPaused { .. }));
            page.events
                .iter()
                .rev()
                .find(|recorded| is_pause(&recorded.event))
                .map(|recorded| recorded.at)
        });
        Ok(paused)
    }

    /// Sets variables of a run, as a test hook of the conformance suite.
    pub async fn set_variables(
        &self,
        caller: &Caller,
        run: &VisibleRun,
        variables: Object,
    ) -> Result<Done, Error> {
        caller.require(Scope::RunsCancel)?;
        self.command(run, Command::SetVariables(variables), SideRows::default())
            .await
    }

    pub(crate) async fn command(
        &self,
        key: &RunKey,
        command: Command,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        Ok(self.engine.command(key, command, side_rows).await?)
    }
}

/// Refuses a reason that is too long: it becomes an event, and runs of any length may be paused again and again.
fn check_reason(reason: Option<&str>) -> Result<(), Refusal> {
    match reason {
        Some(reason) if reason.chars().nth(MAX_REASON).is_some() => Err(invalid(
            "reason",
            format!("must have at most {MAX_REASON} characters"),
        )),
        Some(_) | None => Ok(()),
    }
}
