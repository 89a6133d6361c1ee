//! Work of steps that workers do: its outcomes and heartbeats.

use serde_json::Value;
use wopr_core::{Command, Failure, Object, Refusal, RunStatus, StepId};
use wopr_engine::{Done, SideRows, View};

use crate::{App, Caller, Error, Scope, VisibleRun};

/// The attempt of a step that a worker works at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivityAttempt {
    pub step: StepId,
    pub attempt: u32,
}

/// What a worker learns from a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// The outcome is not wanted any more: the run has ended or is being cancelled, or the attempt is over.
    pub is_cancelled: bool,
}

impl App {
    /// Ends an activity with the outcome of its worker. The run goes on, or the attempt fails and may be
    /// repeated.
    ///
    /// # Errors
    /// [`Refusal::Stale`] or [`Refusal::Terminal`] if nobody waits for this attempt any more.
    pub async fn submit_activity(
        &self,
        caller: &Caller,
        run: &VisibleRun,
        at: ActivityAttempt,
        outcome: Result<Object, Failure>,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        caller.require(Scope::ActivitiesWork)?;
        let command = Command::Effect {
            step: at.step,
            attempt: at.attempt,
            outcome,
            retry_after_ms: None,
        };
        self.command(run, command, side_rows).await
    }

    /// Says that the worker of an activity is alive, and how far it is.
    pub async fn heartbeat_activity(
        &self,
        caller: &Caller,
        run: &VisibleRun,
        at: ActivityAttempt,
        details: Value,
    ) -> Result<Heartbeat, Error> {
        caller.require(Scope::ActivitiesWork)?;
        let command = Command::Progressed {
            step: at.step,
            attempt: at.attempt,
            details,
        };
        let is_over = |view: &View| view.run.status.is_terminal() || view.run.status == RunStatus::Cancelling;
        match self.command(run, command, SideRows::default()).await {
            Ok(Done::Fresh(view)) => Ok(Heartbeat {
                is_cancelled: is_over(&view),
            }),
            // A heartbeat has no idempotency key, so it is never replayed.
            Ok(Done::Replayed(_)) => Ok(Heartbeat { is_cancelled: false }),
            Err(Error::Refused(Refusal::Stale | Refusal::Terminal(_) | Refusal::WrongState)) => {
                Ok(Heartbeat { is_cancelled: true })
            }
            Err(error) => Err(error),
        }
    }
}
