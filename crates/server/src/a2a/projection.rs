//! Maps a run's status, context and times to those of a task, and events to task updates.
//!
//! [`TaskProjection`] folds the part of the log that matters here: open interrupts, and whether the run is
//! paused, cancelling or over. It is small, so a stream keeps one instead of a run. Folding a log up to an
//! event gives the same projection as reading a run at that event, so a snapshot and the updates after it are
//! consistent.

use wopr_app::{Match, OpenInterrupts, PhaseFilter, View, Waiting};
use wopr_core::{Event, Failure, KernelEvent, Plan, REJECTED, Run, RunStatus, StepId, Timestamp, WorkflowId};
use wopr_wire::{a2a::model::TaskState, time};

use super::{conformance::asks_for_authentication, handoff};

/// The state of a task by its run's status and error code (OpenWOP v1 section 27.5). A failed run is `rejected`
/// if it declined what it was asked.
pub(crate) fn state_of(status: RunStatus, error_code: Option<&str>) -> TaskState {
    match status {
        RunStatus::Pending => TaskState::Submitted,
        RunStatus::Running | RunStatus::Paused | RunStatus::Cancelling => TaskState::Working,
        RunStatus::WaitingApproval | RunStatus::WaitingInput | RunStatus::WaitingExternal => {
            TaskState::InputRequired
        }
        RunStatus::Completed => TaskState::Completed,
        RunStatus::Failed if error_code == Some(REJECTED) => TaskState::Rejected,
        RunStatus::Failed => TaskState::Failed,
        RunStatus::Cancelled => TaskState::Canceled,
    }
}

/// Restricts a filter to the runs whose tasks are in a state. Returns `false` if no run is; `auth` is the
/// workflow whose interrupts ask for a credential, if the host has it.
pub(super) fn only(filter: &mut PhaseFilter, state: TaskState, auth: Option<WorkflowId>) -> bool {
    let statuses = RunStatus::ALL.into_iter();
    let of = match state {
        TaskState::AuthRequired => TaskState::InputRequired,
        TaskState::Rejected => TaskState::Failed,
        TaskState::Unspecified
        | TaskState::Submitted
        | TaskState::Working
        | TaskState::InputRequired
        | TaskState::Completed
        | TaskState::Failed
        | TaskState::Canceled => state,
    };
    filter.statuses = statuses.filter(|status| state_of(*status, None) == of).collect();
    let rejected = || REJECTED.to_owned();
    match (state, auth) {
        (TaskState::Failed, _) => filter.error_code = Some(Match::IsNot(rejected())),
        (TaskState::Rejected, _) => filter.error_code = Some(Match::Is(rejected())),
        (TaskState::AuthRequired, None) => return false,
        (TaskState::AuthRequired, Some(auth)) => filter.workflow = Some(Match::Is(auth)),
        (TaskState::InputRequired, Some(auth)) => filter.workflow = Some(Match::IsNot(auth)),
        (TaskState::InputRequired, None)
        | (
            TaskState::Unspecified
            | TaskState::Submitted
            | TaskState::Working
            | TaskState::Completed
            | TaskState::Canceled,
            _,
        ) => {}
    }
    true
}

/// The words of A2A for the status of a task.
pub(super) const fn task_word(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Pending => "submitted",
        RunStatus::Running => "working",
        RunStatus::Paused => "paused",
        RunStatus::WaitingApproval | RunStatus::WaitingInput | RunStatus::WaitingExternal => "input-required",
        RunStatus::Cancelling => "being canceled",
        RunStatus::Completed => "completed",
        RunStatus::Failed => "failed",
        RunStatus::Cancelled => "canceled",
    }
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
    /// Steps that are streaming text, and whether the last chunk has come.
    streaming: Vec<(StepId, bool)>,
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
    /// Work changed hands while the task is at work.
    Handoff,
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
            streaming: run
                .streaming(plan)
                .map(|streaming| (streaming.step, streaming.is_whole))
                .collect(),
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
        let code = self.error.as_ref().map(|error| error.code.as_str());
        match state_of(self.status(), code) {
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

    /// The question of an execution of this run itself, if the run waits for its answer.
    pub(super) fn asked_at(&self, step: &StepId) -> Option<&Waiting> {
        let mut asked = self.asked().iter();
        asked.find(|waiting| waiting.step == *step && waiting.child.is_none())
    }

    /// Folds an event and returns its effect: at most one update.
    pub(super) fn apply(&mut self, event: &Event) -> Change {
        let is_other_question = self.waiting.apply(event);
        if handoff::is_told(event) {
            return match self.state() {
                TaskState::Working => Change::Handoff,
                TaskState::Unspecified
                | TaskState::Submitted
                | TaskState::InputRequired
                | TaskState::AuthRequired
                | TaskState::Completed
                | TaskState::Failed
                | TaskState::Canceled
                | TaskState::Rejected => Change::None,
            };
        }
        let event = match event {
            Event::Kernel(event) => event,
            Event::Dialect(event) => {
                return match event.asks_anew().and_then(|step| self.asked_at(step)) {
                    Some(_) => Change::Status,
                    None => Change::None,
                };
            }
        };
        match event {
            KernelEvent::RunStarted(_) => {
                self.has_begun = true;
                Change::Status
            }
            KernelEvent::RunCompleted { .. }
            | KernelEvent::RunFailed { .. }
            | KernelEvent::RunCancelled { .. } => {
                self.ended = event.terminal();
                if let KernelEvent::RunFailed { error, .. } = event {
                    self.error = Some(error.clone());
                }
                if let KernelEvent::RunCancelled { reason, .. } = event {
                    self.cancel_reason.clone_from(reason);
                }
                self.streaming.clear();
                Change::Status
            }
            KernelEvent::CancelRequested { .. } => {
                self.is_cancelling = true;
                Change::Status
            }
            KernelEvent::RunPaused { .. } => {
                self.is_paused = true;
                Change::Status
            }
            KernelEvent::RunResumed { .. } => {
                self.is_paused = false;
                Change::Status
            }
            KernelEvent::InterruptRequested { .. }
            | KernelEvent::InterruptResolved { .. }
            | KernelEvent::NodeSuspended { child: Some(_), .. } => Change::Status,
            // A node's own interrupt closed with its answer. One mirrored from a child closes here or when
            // its node ends.
            KernelEvent::NodeResumed { step, .. }
            | KernelEvent::NodeCompleted { step, .. }
            | KernelEvent::NodeFailed { step, .. } => {
                self.is_said(step);
                if is_other_question {
                    Change::Status
                } else {
                    Change::None
                }
            }
            // Only a cancellation does this, and it has an update of its own. The task does not return to
            // work in between.
            KernelEvent::NodeCancelled { step, .. } => {
                self.is_said(step);
                Change::None
            }
            // An artifact that was streamed to its end has been sent already.
            KernelEvent::ArtifactCreated { step, .. } if self.is_said(step) => Change::None,
            KernelEvent::ArtifactCreated { .. } => Change::Artifact,
            KernelEvent::OutputChunk { step, is_last, .. } => {
                self.is_said(step);
                self.streaming.push((step.clone(), *is_last));
                Change::Piece
            }
            KernelEvent::NodeSuspended { child: None, .. }
            | KernelEvent::NodeStarted { .. }
            | KernelEvent::NodeRetried { .. }
            | KernelEvent::NodeSkipped { .. }
            | KernelEvent::NodeDispatched { .. }
            | KernelEvent::MemoryWritten(_)
            | KernelEvent::MemoryCompacted { .. }
            | KernelEvent::ChildEnded { .. }
            | KernelEvent::EffectScheduled { .. }
            | KernelEvent::EffectAccepted { .. }
            | KernelEvent::EffectProgressed { .. }
            | KernelEvent::EffectEnded { .. }
            | KernelEvent::ApprovalRequested { .. }
            | KernelEvent::ApprovalVoted { .. }
            | KernelEvent::ApprovalReceived { .. }
            | KernelEvent::ClarificationRequested { .. }
            | KernelEvent::ClarificationResolved { .. }
            | KernelEvent::CapBreached { .. }
            | KernelEvent::ReplayDiverged { .. }
            | KernelEvent::RefusalDiverged { .. }
            | KernelEvent::ForkResumed { .. } => Change::None,
        }
    }

    /// Forgets a stream of text. Returns `true` if there was one and its last chunk has come.
    fn is_said(&mut self, step: &StepId) -> bool {
        let place = self.streaming.iter().position(|(streaming, _)| streaming == step);
        place.is_some_and(|place| self.streaming.swap_remove(place).1)
    }
}

#[cfg(test)]
mod tests;
