//! Work of steps that workers do: leases of it, its outcomes and heartbeats.

use std::time::Duration;

use serde_json::Value;
use wopr_core::{Command, Failure, Object, Refusal, RunKey, RunStatus, StepId};
use wopr_engine::{
    ActivityCall, Done, EndedActivity, LeasedActivity, SeenWorker, SideRows, View, WorkerLease,
};
use wopr_store::OfferedQueue;

use crate::{App, Caller, Error, Scope, VisibleRun};

/// The attempt of a step that a worker works at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivityAttempt {
    pub step: StepId,
    pub attempt: u32,
    /// The lease that the worker has; `None` if it found the step in its run.
    pub lease: Option<WorkerLease>,
}

/// The worker queues of a tenant, and the workers that this process knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerQueues {
    pub queues: Vec<OfferedQueue>,
    pub workers: Vec<SeenWorker>,
}

/// What a worker learns from a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// The outcome is not wanted any more: the run has ended or is being cancelled, or the attempt is over.
    pub is_cancelled: bool,
}

impl App {
    /// Leases activities of a queue of the caller's tenant. Waits for the first one, at most as long as given.
    ///
    /// # Cancel safety
    /// Activities that a dropped call was about to get are given back.
    pub async fn lease_activities(
        &self,
        caller: &Caller,
        queue: String,
        worker: String,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<LeasedActivity>, Error> {
        caller.require(Scope::ActivitiesWork)?;
        let call = ActivityCall {
            tenant: caller.tenant.clone(),
            queue,
            worker,
            max,
            wait,
        };
        Ok(self.engine.lease_activities(call).await?)
    }

    /// The worker queues of the caller's tenant that hold activities, and the workers that called here lately.
    pub async fn worker_queues(&self, caller: &Caller) -> Result<WorkerQueues, Error> {
        caller.require(Scope::ActivitiesWork)?;
        Ok(WorkerQueues {
            queues: self.engine.worker_queues(&caller.tenant).await?,
            workers: self.engine.seen_workers(&caller.tenant),
        })
    }

    /// Ends an activity with the outcome of its worker. The run goes on, or the attempt fails and may be
    /// repeated.
    ///
    /// # Errors
    /// [`Refusal::Stale`] or [`Refusal::Terminal`] if nobody waits for this attempt any more, or the worker has lost
    /// its lease.
    pub async fn submit_activity(
        &self,
        caller: &Caller,
        run: &VisibleRun,
        at: ActivityAttempt,
        ending: impl Into<EndedActivity>,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        caller.require(Scope::ActivitiesWork)?;
        let ActivityAttempt { step, attempt, lease } = at;
        let ended = self
            .engine
            .end_activity(run, (step, attempt), lease.as_ref(), ending, side_rows);
        Ok(ended.await?)
    }

    /// Like [`App::submit_activity`], with the outcome as the worker has written it: what is no object becomes one output,
    /// which the language of the run names, and `null` becomes none.
    pub async fn submit_outcome(
        &self,
        caller: &Caller,
        run: &VisibleRun,
        at: ActivityAttempt,
        outcome: Result<Value, Failure>,
        side_rows: SideRows,
    ) -> Result<Done, Error> {
        caller.require(Scope::ActivitiesWork)?;
        let outcome = match outcome {
            Ok(Value::Object(outputs)) => Ok(outputs),
            Ok(Value::Null) => Ok(Object::new()),
            Ok(value) => {
                let view = self.engine.view(run).await?;
                let name = view.ok_or(Refusal::Stale)?.plan.lone_output();
                Ok(Object::from_iter([(name.to_owned(), value)]))
            }
            Err(failure) => Err(failure),
        };
        self.submit_activity(caller, run, at, outcome, side_rows).await
    }

    /// Says that the worker of an activity is alive, and how far it is. Renews its lease.
    ///
    /// # Errors
    /// [`Refusal::Stale`] if another worker has leased the activity.
    pub async fn heartbeat_activity(
        &self,
        caller: &Caller,
        run: &VisibleRun,
        at: ActivityAttempt,
        details: Value,
    ) -> Result<Heartbeat, Error> {
        caller.require(Scope::ActivitiesWork)?;
        if let Some(lease) = &at.lease
            && !self
                .engine
                .renew_activity(run, &at.step, at.attempt, lease)
                .await?
        {
            return match self.is_waited_for(run, &at).await? {
                true => Err(Refusal::Stale.into()),
                false => Ok(Heartbeat { is_cancelled: true }),
            };
        }
        let command = Command::Progressed {
            step: at.step,
            attempt: at.attempt,
            details,
            then: None,
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

    /// Whether a run waits for the outcome of an attempt.
    async fn is_waited_for(&self, run: &RunKey, at: &ActivityAttempt) -> Result<bool, Error> {
        let Some(view) = self.engine.view(run).await? else {
            return Ok(false);
        };
        let is_over = view.run.status.is_terminal() || view.run.status == RunStatus::Cancelling;
        Ok(!is_over && view.run.awaits_call(&view.plan, &at.step, at.attempt))
    }
}
