//! Maps a run's status, context and times to those of a task, and events to task updates.
//!
//! [`TaskProjection`] folds the part of the log that matters here: open interrupts, and whether the run is
//! paused, cancelling or over. It is small, so a stream keeps one instead of a run. Folding a log up to an
//! event gives the same projection as reading a run at that event, so a snapshot and the updates after it are
//! consistent.

use wopr_app::{
    OpenInterrupts, TaskState as StoredState, View, Waiting, asks_for_authentication, task_state,
};
use wopr_core::{Event, Failure, Plan, Run, RunStatus, StepId, Timestamp};
use wopr_wire::{a2a::model::TaskState, time};

/// The state of a task by its run's status and error.
pub(super) fn state_of(status: RunStatus, error: Option<&Failure>) -> TaskState {
    wire_state(task_state(status, error, None).0)
}

/// The 1.0 name of a stored state.
pub(super) const fn wire_state(state: StoredState) -> TaskState {
    match state {
        StoredState::Submitted => TaskState::Submitted,
        StoredState::Working => TaskState::Working,
        StoredState::InputRequired => TaskState::InputRequired,
        StoredState::AuthRequired => TaskState::AuthRequired,
        StoredState::Completed => TaskState::Completed,
        StoredState::Failed => TaskState::Failed,
        StoredState::Canceled => TaskState::Canceled,
        StoredState::Rejected => TaskState::Rejected,
    }
}

/// The stored form of a state, or `None` for a state that no task has.
pub(super) const fn stored_state(state: TaskState) -> Option<StoredState> {
    match state {
        TaskState::Unspecified => None,
        TaskState::Submitted => Some(StoredState::Submitted),
        TaskState::Working => Some(StoredState::Working),
        TaskState::InputRequired => Some(StoredState::InputRequired),
        TaskState::AuthRequired => Some(StoredState::AuthRequired),
        TaskState::Completed => Some(StoredState::Completed),
        TaskState::Failed => Some(StoredState::Failed),
        TaskState::Canceled => Some(StoredState::Canceled),
        TaskState::Rejected => Some(StoredState::Rejected),
    }
}

/// The A2A spelling of a status.
pub(super) const fn task_word(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Cancelled => "canceled",
        RunStatus::Cancelling => "being canceled",
        RunStatus::Pending
        | RunStatus::Running
        | RunStatus::Paused
        | RunStatus::WaitingApproval
        | RunStatus::WaitingInput
        | RunStatus::WaitingExternal
        | RunStatus::Completed
        | RunStatus::Failed => status.as_str(),
    }
}

/// Returns `true` if the run waits for its client or is over.
pub(super) const fn is_settled(status: RunStatus) -> bool {
    status.is_terminal() || status.is_waiting()
}

/// The run's context, or its id if no message started it.
pub(super) fn context_of(view: &View) -> String {
    let context = (view.run.started.as_ref()).and_then(|started| started.context.clone());
    context.unwrap_or_else(|| view.key.run.to_string())
}

pub(super) fn wire_time(time: Timestamp) -> time::Timestamp {
    time::Timestamp::from_millis(time.millis())
}

/// The state of a run as far as a task's clients can observe it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TaskProjection {
    waiting: OpenInterrupts,
    has_begun: bool,
    is_paused: bool,
    is_cancelling: bool,
    ended: Option<RunStatus>,
    error: Option<Failure>,
    cancel_reason: Option<String>,
    /// Steps that are streaming text.
    streaming: Vec<StepId>,
    /// The workflow asks for credentials, so the task requires authentication.
    asks_auth: bool,
}

/// The effect of an event on the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// The status changed, or the reason for it did.
    Status,
    /// An artifact was created.
    Artifact,
    /// An artifact that is being streamed grew.
    Piece,
}

impl TaskProjection {
    /// The projection before the first event.
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            asks_auth: asks_for_authentication(plan),
            ..Self::default()
        }
    }

    /// The projection at the head of a run.
    pub(super) fn of(run: &Run, plan: &Plan) -> Self {
        Self {
            waiting: OpenInterrupts::of(run, plan),
            has_begun: run.started.is_some(),
            is_paused: run.status == RunStatus::Paused,
            is_cancelling: run.status == RunStatus::Cancelling,
            ended: Some(run.status).filter(|status| status.is_terminal()),
            error: run.error.as_ref().map(|(error, _)| error.clone()),
            cancel_reason: run.cancel_reason.clone(),
            streaming: run.streaming(plan).map(|streaming| streaming.step).collect(),
            asks_auth: asks_for_authentication(plan),
        }
    }

    pub(super) fn status(&self) -> RunStatus {
        match (self.ended, self.waiting.as_slice().first()) {
            (Some(status), _) => status,
            (None, _) if !self.has_begun => RunStatus::Pending,
            (None, _) if self.is_cancelling => RunStatus::Cancelling,
            (None, _) if self.is_paused => RunStatus::Paused,
            (None, Some(first)) => first.kind.waiting_status(),
            (None, None) => RunStatus::Running,
        }
    }

    pub(super) fn state(&self) -> TaskState {
        match state_of(self.status(), self.error.as_ref()) {
            TaskState::InputRequired if self.asks_auth => TaskState::AuthRequired,
            state => state,
        }
    }

    pub(super) fn error(&self) -> Option<&Failure> {
        self.error.as_ref()
    }

    /// The reason for the cancellation, if one was given.
    pub(super) fn cancel_reason(&self) -> Option<&str> {
        self.cancel_reason.as_deref()
    }

    /// Open interrupts, if the run waits.
    pub(super) fn asked(&self) -> &[Waiting] {
        if self.status().is_waiting() {
            self.waiting.as_slice()
        } else {
            &[]
        }
    }

    /// Folds an event and returns its effect: at most one update.
    pub(super) fn apply(&mut self, event: &Event) -> Change {
        let is_other_question = self.waiting.apply(event);
        match event {
            Event::RunStarted(_) => {
                self.has_begun = true;
                Change::Status
            }
            Event::RunCompleted { .. } | Event::RunFailed { .. } | Event::RunCancelled { .. } => {
                self.ended = event.terminal();
                if let Event::RunFailed { error, .. } = event {
                    self.error = Some(error.clone());
                }
                if let Event::RunCancelled { reason, .. } = event {
                    self.cancel_reason.clone_from(reason);
                }
                self.streaming.clear();
                Change::Status
            }
            Event::CancelRequested { .. } => {
                self.is_cancelling = true;
                Change::Status
            }
            Event::RunPaused { .. } => {
                self.is_paused = true;
                Change::Status
            }
            Event::RunResumed { .. } => {
                self.is_paused = false;
                Change::Status
            }
            Event::InterruptRequested { .. }
            | Event::InterruptResolved { .. }
            | Event::NodeSuspended { child: Some(_), .. } => Change::Status,
            // A node's own interrupt closed with its answer. One mirrored from a child closes here or when
            // its node ends.
            Event::NodeResumed { step, .. }
            | Event::NodeCompleted { step, .. }
            | Event::NodeFailed { step, .. } => {
                self.is_said(step);
                if is_other_question {
                    Change::Status
                } else {
                    Change::None
                }
            }
            // Only a cancellation does this, and it has an update of its own. The task does not return to
            // work in between.
            Event::NodeCancelled { step, .. } => {
                self.is_said(step);
                Change::None
            }
            // A streamed artifact has been sent already.
            Event::ArtifactCreated { step, .. } if self.is_said(step) => Change::None,
            Event::ArtifactCreated { .. } => Change::Artifact,
            Event::OutputChunk { step, .. } => {
                if !self.streaming.contains(step) {
                    self.streaming.push(step.clone());
                }
                Change::Piece
            }
            Event::NodeSuspended { child: None, .. }
            | Event::NodeStarted { .. }
            | Event::NodeRetried { .. }
            | Event::NodeSkipped { .. }
            | Event::NodeDispatched { .. }
            | Event::ApprovalRequested { .. }
            | Event::ApprovalVoted { .. }
            | Event::ApprovalReceived { .. }
            | Event::ClarificationRequested { .. }
            | Event::ClarificationResolved { .. }
            | Event::VariableChanged { .. }
            | Event::ChannelWritten { .. }
            | Event::CapBreached { .. } => Change::None,
        }
    }

    /// Ends a stream of text. Returns `true` if there was one.
    fn is_said(&mut self, step: &StepId) -> bool {
        let before = self.streaming.len();
        self.streaming.retain(|streaming| streaming != step);
        self.streaming.len() < before
    }
}

#[cfg(test)]
mod tests;
