//! The history of a run in the rows of the protocol, as a projection of its log.
//!
//! The rows follow from the log and the plan alone, so they are the same whenever they are read; their numbers are dense
//! from 1. A row with the state holds a copy of it: only the rows of a page are made, the others are counted.
//!
//! The file is long because it is one match over what the kernel records, with all rows that follow from it.

mod position;

use std::{collections::HashMap, ops::Range};

use serde_json::{Value, json};
use wopr_kernel::{
    Activity, CutAttempt, EventRef, Failure, Given, GivenEnd, GivenOutcome, KernelEvent, Object, Planned,
    RecordedRef, RunId, RunStarted, Seq, StepId, Timestamp, cost::Budget, fields, measure::size_of_object,
};

use crate::{
    activity,
    decide::NoEvent,
    definition::{Checkpoints, Join, Kind, Node, Wait},
    delegate,
    options::{self, ActivityMode},
    plan::Plan,
    span::{self, ParallelSpan},
    state::State,
    submit::EXTERNAL_TASK_ID,
    walk::{Left, Place},
};

pub use position::HistoryPosition;

/// The version of the rows.
pub const RECORD_SCHEMA_VERSION: u32 = 1;
/// Longest prompt in a row, in characters.
const MAX_PROMPT: usize = 200;
/// Work for evaluating the input of a delegate again, in units.
const DELEGATE_WORK: u64 = wopr_kernel::cost::EVALUATION;

/// A row of a history.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// From 1 on.
    pub seq: u64,
    pub kind: RowKind,
    pub name: &'static str,
    /// Always with `executionId`.
    pub payload: Object,
    pub created_at: Timestamp,
}

/// Whether a row says what the engine decided or what happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKind {
    Command,
    Event,
}

impl RowKind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Event => "event",
        }
    }
}

/// A part of a history.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// The rows with the wanted numbers.
    pub rows: Vec<Row>,
    /// How many rows there are in all.
    pub n_rows: u64,
    /// The number of the last checkpoint.
    pub last_checkpoint: Option<u64>,
}

/// Which rows of a history are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// Those with these numbers, as many as have this size together; the first one in any case.
    Rows { numbers: Range<u64>, most_bytes: usize },
    /// None: only the number of the last checkpoint.
    Checkpoint,
}

/// What later rows say of a step.
#[derive(Debug, Clone, Default, PartialEq)]
struct Notes {
    attempt: u32,
    /// How many of its attempts a pause has cut. The protocol has no pauses, so its rows do not count them.
    n_cut: u32,
    /// Whether the next attempt goes on with one that was cut.
    is_cut: bool,
    /// The task of the agent that works at it.
    external_task: Option<Value>,
    child: Option<String>,
}

/// What a decision was given for a step, as far as the rows of its end say it.
#[derive(Debug, Clone, PartialEq)]
enum Came {
    /// The result of its child.
    Result(Option<Value>),
    /// The task of the agent that has answered.
    Task(Option<Value>),
    /// A failure, after which the mock has answered.
    Mocked,
}

impl Came {
    fn of(given: &Given) -> Option<(StepId, Self)> {
        match given {
            Given::ChildEnded(end) => Some((end.step.clone(), Self::Result(result_of(end)))),
            Given::Effect { step, outcome, .. } => {
                let came = match outcome.as_deref() {
                    None => Self::Task(None),
                    Some(GivenOutcome::Ok(answer)) => {
                        Self::Task(answer.get("taskId").filter(|task| task.is_string()).cloned())
                    }
                    Some(GivenOutcome::Failed(_)) => Self::Mocked,
                };
                Some((step.clone(), came))
            }
            Given::Cancel
            | Given::Pause
            | Given::Resume
            | Given::Answer(_)
            | Given::Set(_)
            | Given::Timer(_)
            | Given::EffectCancelled { .. }
            | Given::News
            | Given::Child(_)
            | Given::Live
            | Given::Abandoned(_) => None,
        }
    }
}

/// Makes the rows of a history from its log, event by event from the first one on.
#[derive(Debug)]
pub struct HistoryWriter<'p> {
    plan: &'p Plan,
    run: &'p RunId,
    /// The first event that was not recorded yet.
    next: Seq,
    execution: String,
    /// Whether the caller has named the run.
    is_named: bool,
    wanted: Wanted,
    n_bytes: usize,
    state: State,
    mode: ActivityMode,
    at: Timestamp,
    /// How often a checkpoint could have been written.
    n_checkpoints: u64,
    /// What later rows say of the steps that are under way, by the positions of their nodes.
    notes: HashMap<usize, Notes>,
    /// What the decision was given that recorded the last events. Only the first one of them says it, and that is not the end
    /// of the step if a question was open.
    came: Option<(StepId, Came)>,
    /// Whether the failure of the run was the failure of a node.
    failed: bool,
    rows: Vec<Row>,
    n_rows: u64,
    last_checkpoint: Option<u64>,
}

impl<'p> HistoryWriter<'p> {
    #[must_use]
    pub fn new(plan: &'p Plan, run: &'p RunId, wanted: Wanted) -> Self {
        Self {
            plan,
            run,
            next: Seq(0),
            execution: run.to_string(),
            is_named: false,
            wanted,
            n_bytes: 0,
            state: State::default(),
            mode: ActivityMode::HostMediated,
            at: Timestamp::default(),
            n_checkpoints: 0,
            notes: HashMap::new(),
            came: None,
            failed: false,
            rows: Vec::new(),
            n_rows: 0,
            last_checkpoint: None,
        }
    }

    /// Whether no later event adds a row that is wanted.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match &self.wanted {
            Wanted::Rows { numbers, most_bytes } => {
                self.n_rows >= numbers.end || self.n_bytes >= *most_bytes && self.has_skipped()
            }
            Wanted::Checkpoint => false,
        }
    }

    /// Whether there is a row after the last one that was made.
    fn has_skipped(&self) -> bool {
        self.rows.last().is_some_and(|row| row.seq < self.n_rows)
    }

    /// Takes the rows that were made since the last call.
    pub(crate) fn take_rows(&mut self) -> Vec<Row> {
        std::mem::take(&mut self.rows)
    }

    /// The rows that were made, and how many there are so far.
    #[must_use]
    pub fn finish(self) -> History {
        History {
            rows: self.rows,
            n_rows: self.n_rows,
            last_checkpoint: self.last_checkpoint,
        }
    }

    fn row(&mut self, kind: RowKind, name: &'static str, payload: impl FnOnce(&Self) -> Value) {
        self.n_rows += 1;
        if name == "CheckpointWritten" {
            self.last_checkpoint = Some(self.n_rows);
        }
        match &self.wanted {
            Wanted::Rows { numbers, most_bytes } => {
                let is_full = self.n_bytes >= *most_bytes && !self.rows.is_empty();
                if !numbers.contains(&self.n_rows) || is_full {
                    return;
                }
            }
            Wanted::Checkpoint => return,
        }
        let mut payload = fields(payload(self));
        payload.retain(|_, value| !value.is_null() || name == "ExecutionCompleted");
        payload.insert("executionId".to_owned(), self.execution.clone().into());
        self.n_bytes += size_of_object(&payload);
        self.rows.push(Row {
            seq: self.n_rows,
            kind,
            name,
            payload,
            created_at: self.at,
        });
    }

    fn command(&mut self, name: &'static str, payload: impl FnOnce(&Self) -> Value) {
        self.row(RowKind::Command, name, payload);
    }

    fn event(&mut self, name: &'static str, payload: impl FnOnce(&Self) -> Value) {
        self.row(RowKind::Event, name, payload);
    }

    /// Adds the rows of an event.
    pub fn record(&mut self, recorded: RecordedRef<'_, NoEvent>) {
        self.at = recorded.at;
        self.next = recorded.seq.plus(1);
        let EventRef::Kernel(event) = recorded.event else {
            return;
        };
        if let Some(given) = recorded.given {
            self.came = Came::of(given);
        }
        // Where the step was: the end of a node moves its token on.
        let span = if let KernelEvent::NodeCompleted { step, .. } = event {
            self.span(step)
        } else {
            None
        };
        // A log that does not fold is refused before it is read.
        let left = self.state.apply(self.plan, recorded).unwrap_or_default();
        match event {
            KernelEvent::RunStarted(started) => self.started(started),
            KernelEvent::NodeStarted { step, attempt, .. } => self.node_started(step, *attempt),
            KernelEvent::NodeCompleted { step, outputs, .. } => {
                self.node_completed(step, outputs, span.as_ref());
                self.left(&left);
            }
            KernelEvent::NodeFailed {
                step,
                error,
                attempts,
                ..
            } => {
                self.node_failed(step, error, *attempts);
                self.left(&left);
            }
            KernelEvent::NodeRetried {
                step, attempt, error, ..
            } => {
                let n_cut = self.notes(step).map_or(0, |notes| notes.n_cut);
                self.attempt_failed(step, error, attempt.saturating_sub(n_cut), true);
            }
            KernelEvent::RunPaused { cut, .. } => {
                for CutAttempt { step, .. } in cut {
                    if let Some(notes) = self.notes(step) {
                        notes.n_cut += 1;
                        notes.is_cut = true;
                    }
                }
            }
            // A delegate may ask a second agent.
            KernelEvent::EffectScheduled {
                step,
                attempt,
                call: 0,
                activity,
                ..
            } if self.mode == ActivityMode::HostMediated => {
                self.requested(step, *attempt, activity.as_deref());
            }
            KernelEvent::EffectScheduled { .. } => {}
            KernelEvent::EffectProgressed { step, details, .. } => {
                if let (Some(task), Some(notes)) = (details.get(EXTERNAL_TASK_ID), self.notes(step)) {
                    notes.external_task = Some(task.clone());
                }
            }
            KernelEvent::InterruptRequested { step, .. } => self.asked(step),
            KernelEvent::InterruptResolved { step, value, .. } => self.answered(step, value.as_ref()),
            KernelEvent::NodeDispatched { step, child, .. } => self.dispatched(step, child),
            KernelEvent::RunCompleted { outputs } => {
                self.event(
                    "ExecutionCompleted",
                    |_| json!({ "result": outputs.get("result") }),
                );
            }
            KernelEvent::RunFailed { error, node } => {
                if !self.failed {
                    let reason = error.reason.as_deref().unwrap_or("orchestration_error");
                    self.command("FailNode", |_| {
                        json!({ "nodeId": node, "reason": reason, "message": error.message, "code": error.code })
                    });
                }
                self.event(
                    "ExecutionFailed",
                    |_| json!({ "error": error.message, "code": activity::code(error) }),
                );
            }
            KernelEvent::RunCancelled { reason, .. } => {
                self.command("CancelExecution", |_| json!({ "reason": reason }));
                self.event("ExecutionCancelled", |_| json!({ "reason": reason }));
            }
            // The protocol has no rows for these.
            KernelEvent::CancelRequested { .. }
            | KernelEvent::RunResumed { .. }
            | KernelEvent::NodeSkipped { .. }
            | KernelEvent::NodeCancelled { .. }
            | KernelEvent::NodeSuspended { .. }
            | KernelEvent::NodeResumed { .. }
            | KernelEvent::ChildEnded { .. }
            | KernelEvent::EffectAccepted { .. }
            | KernelEvent::EffectEnded { .. }
            | KernelEvent::ApprovalRequested { .. }
            | KernelEvent::ApprovalVoted { .. }
            | KernelEvent::ApprovalReceived { .. }
            | KernelEvent::ClarificationRequested { .. }
            | KernelEvent::ClarificationResolved { .. }
            | KernelEvent::ArtifactCreated { .. }
            | KernelEvent::MemoryWritten(_)
            | KernelEvent::MemoryCompacted { .. }
            | KernelEvent::OutputChunk { .. }
            | KernelEvent::CapBreached { .. }
            | KernelEvent::ReplayDiverged { .. }
            | KernelEvent::RefusalDiverged { .. }
            | KernelEvent::ForkResumed { .. } => {}
        }
    }

    fn notes(&mut self, step: &StepId) -> Option<&mut Notes> {
        let position = self.plan.position(&step.node)?;
        Some(self.notes.entry(position).or_default())
    }

    /// What the decision was given for a step.
    fn came_for(&self, step: &StepId) -> Option<&Came> {
        let (of, came) = self.came.as_ref()?;
        (of == step).then_some(came)
    }

    fn child(&self, step: &StepId) -> Option<&str> {
        let position = self.plan.position(&step.node)?;
        self.notes.get(&position)?.child.as_deref()
    }

    /// The branch that a step is in.
    fn span(&self, step: &StepId) -> Option<ParallelSpan> {
        span::of(self.plan, &self.state, self.plan.position(&step.node)?)
    }

    fn node(&self, step: &StepId) -> Option<&Node> {
        self.plan
            .position(&step.node)
            .map(|position| self.plan.at(position))
    }

    fn started(&mut self, started: &RunStarted) {
        self.mode = ActivityMode::of(&started.configurable);
        self.is_named = started.configurable.contains_key(options::EXECUTION_ID);
        self.execution = options::execution_id(&started.configurable, self.run);
        let names: Vec<_> = started.inputs.keys().cloned().collect();
        self.event("ExecutionStarted", |writer| {
            json!({
                "workflowName": writer.plan.definition.name,
                "workflowVersion": writer.plan.definition.version,
                "inputKeys": names,
            })
        });
    }

    fn node_started(&mut self, step: &StepId, attempt: u32) {
        let plan = self.plan;
        let Some(node) = plan.position(&step.node).map(|at| plan.at(at)) else {
            return;
        };
        let mut attempt = attempt;
        if let Some(notes) = self.notes(step) {
            let child = notes.child.take().filter(|_| attempt > 0);
            let n_cut = if attempt > 0 { notes.n_cut } else { 0 };
            if attempt > 0 && notes.is_cut {
                (notes.child, notes.is_cut) = (child, false);
                return;
            }
            attempt = attempt.saturating_sub(n_cut);
            *notes = Notes {
                attempt,
                n_cut,
                is_cut: false,
                external_task: None,
                child,
            };
        }
        if attempt == 0 {
            self.command("ScheduleNode", |_| json!({ "nodeId": step.node }));
            self.event("NodeScheduled", |_| json!({ "nodeId": step.node }));
        }
        match &node.kind {
            Kind::Parallel { join, branches } => {
                let names: Vec<_> = branches.iter().map(|branch| &branch.name).collect();
                let (word, n) = join_words(*join);
                self.command(
                    "StartParallel",
                    |_| json!({ "nodeId": step.node, "join": word, "branchNames": names, "n": n }),
                );
                self.event(
                    "ParallelForked",
                    |_| json!({ "nodeId": step.node, "join": word, "branchNames": names }),
                );
            }
            Kind::Wait(wait @ (Wait::Duration(_) | Wait::Until(_))) => {
                let (kind, until) = wait_words(wait, node);
                let ms = if let Wait::Duration(ms) = wait {
                    Some(*ms)
                } else {
                    None
                };
                self.command(
                    "StartTimer",
                    |_| json!({ "nodeId": step.node, "kind": kind, "wait_ms": ms, "until": until }),
                );
                self.event("TimerStarted", |_| json!({ "nodeId": step.node, "kind": kind }));
            }
            Kind::Step | Kind::Llm { .. } | Kind::Tool | Kind::Delegate { .. }
                if self.mode == ActivityMode::InProcess =>
            {
                self.requested(step, attempt, None);
            }
            _ => {}
        }
    }

    /// Writes that an activity was asked for.
    fn requested(&mut self, step: &StepId, attempt: u32, activity: Option<&Activity>) {
        let Some(node) = self.node(step) else { return };
        let (kind, timeout_ms) = (node.kind.name(), node.timeout_ms);
        let span = self.span(step);
        self.event("ActivityRequested", |writer| {
            let mut payload = json!({
                "nodeId": step.node, "nodeType": kind, "attempt": attempt + 1, "timeoutMs": timeout_ms, "parallelSpan": span,
            });
            if let Value::Object(payload) = &mut payload {
                payload.extend(writer.delegate((step, attempt), activity));
            }
            payload
        });
    }

    /// What the row of a request says of a delegate.
    fn delegate(&self, (step, attempt): (&StepId, u32), activity: Option<&Activity>) -> Object {
        let Some(Kind::Delegate {
            agent_id,
            protocol,
            mapping,
        }) = self.node(step).map(|node| &node.kind)
        else {
            return Object::new();
        };
        let recorded = activity.and_then(|activity| activity.input.get("delegateInput"));
        let input = match recorded.and_then(Value::as_object) {
            Some(input) => input.clone(),
            // A call to an agent does not record it. State and time are those of the first evaluation.
            None => mapping
                .evaluate(self.state.document(), self.at, &Budget::new(DELEGATE_WORK))
                .unwrap_or_default(),
        };
        fields(json!({
            "agentId": agent_id,
            "protocol": protocol.as_str(),
            "delegateCorrelationId": self.correlation(step, attempt),
            "delegateInput": input,
        }))
    }

    fn correlation(&self, step: &StepId, attempt: u32) -> String {
        options::correlation_id(&self.execution, step, delegate::counted(self.mode, attempt))
    }

    /// `span` is the branch that the step was in.
    fn node_completed(&mut self, step: &StepId, output: &Object, span: Option<&ParallelSpan>) {
        let plan = self.plan;
        let Some(position) = plan.position(&step.node) else {
            return;
        };
        let node = plan.at(position);
        let notes = self.notes.remove(&position).unwrap_or_default();
        let is_in_branch = span.is_some();
        let mut has_checkpoint = true;
        match &node.kind {
            Kind::Start { .. } => has_checkpoint = is_in_branch,
            // Its rows come when its branches have joined.
            Kind::Parallel { .. } => return,
            Kind::End { .. } => {
                self.command("CompleteNode", |_| json!({ "nodeId": step.node, "output": {} }));
                return;
            }
            Kind::Step | Kind::Llm { .. } | Kind::Tool | Kind::Delegate { .. } => {
                let is_delegate = matches!(node.kind, Kind::Delegate { .. });
                has_checkpoint = is_delegate || is_in_branch || self.mode == ActivityMode::HostMediated;
                let correlation = is_delegate.then(|| self.correlation(step, notes.attempt));
                let external_task = match (&correlation, self.mode) {
                    (Some(correlation), ActivityMode::InProcess) => match self.came_for(step) {
                        Some(Came::Task(task)) => task.clone(),
                        // The mock has a task for each call.
                        Some(Came::Mocked | Came::Result(_)) | None => {
                            Some(delegate::mock_task(correlation).into())
                        }
                    },
                    (Some(_), ActivityMode::HostMediated) | (None, _) => notes.external_task,
                };
                self.event("ActivityCompleted", |_| {
                    json!({
                        "nodeId": step.node, "nodeType": node.kind.name(), "result": output, "parallelSpan": span,
                        "delegateCorrelationId": correlation, "externalTaskId": external_task,
                    })
                });
            }
            Kind::Wait(wait @ (Wait::Duration(_) | Wait::Until(_))) => {
                let (kind, _) = wait_words(wait, node);
                self.event("TimerFired", |_| json!({ "nodeId": step.node, "kind": kind }));
            }
            Kind::Subworkflow { workflow_ref, .. } => {
                let result = match self.came_for(step) {
                    Some(Came::Result(result)) => result.clone(),
                    Some(Came::Task(_) | Came::Mocked) | None => None,
                };
                self.event("SubworkflowCompleted", |writer| {
                    json!({
                        "nodeId": step.node, "workflowRef": workflow_ref, "parentExecutionId": writer.execution,
                        "childExecutionId": notes.child, "childFinalState": output, "childResult": result,
                        "mergedOutput": output,
                    })
                });
                self.command("CompleteSubworkflow", |_| {
                    json!({ "nodeId": step.node, "workflowRef": workflow_ref, "childExecutionId": notes.child })
                });
            }
            Kind::Switch { .. }
            | Kind::SetState(_)
            | Kind::Interrupt { .. }
            | Kind::Wait(Wait::Signal(_)) => {}
        }
        self.command(
            "CompleteNode",
            |_| json!({ "nodeId": step.node, "output": output }),
        );
        self.state_updated(step.node.as_str());
        if has_checkpoint {
            self.checkpoint(step.node.as_str(), span);
        }
    }

    fn state_updated(&mut self, node: &str) {
        self.event(
            "StateUpdated",
            |writer| json!({ "nodeId": node, "state": writer.state.document() }),
        );
    }

    /// Says that a checkpoint was written, if one is due.
    fn checkpoint(&mut self, node: &str, span: Option<&ParallelSpan>) {
        self.n_checkpoints += 1;
        let (policy, interval) = match self.plan.definition.checkpoints {
            Checkpoints::AfterEachNode => ("after_each_node", None),
            Checkpoints::EveryNodes(n) if self.n_checkpoints.is_multiple_of(n) => ("every_n_nodes", Some(n)),
            Checkpoints::EveryNodes(_) => return,
        };
        let last = self.n_rows;
        self.event("CheckpointWritten", |writer| {
            json!({
                "policy": policy, "intervalNodes": interval, "workflowVersion": writer.plan.definition.version,
                "definitionHash": writer.plan.version(), "lastAppliedEventSeq": last, "nodeId": node,
                "stateRef": { "kind": "inline_state", "state": writer.state.document() }, "parallelSpan": span,
            })
        });
    }

    fn attempt_failed(&mut self, step: &StepId, error: &Failure, attempt: u32, will_retry: bool) {
        let (message, code) = self.words(step, error);
        self.event("ActivityFailed", |_| {
            json!({
                "nodeId": step.node, "error": message, "attempt": attempt, "code": code,
                "willRetry": will_retry.then_some(true),
            })
        });
    }

    fn node_failed(&mut self, step: &StepId, error: &Failure, attempts: u32) {
        let plan = self.plan;
        let kind = plan.position(&step.node).map(|at| &plan.at(at).kind);
        match kind {
            Some(Kind::Step | Kind::Llm { .. } | Kind::Tool | Kind::Delegate { .. }) => {
                self.attempt_failed(step, error, attempts, false);
            }
            Some(Kind::Subworkflow { workflow_ref, .. }) => {
                self.event("SubworkflowCompleted", |writer| {
                    json!({
                        "nodeId": step.node, "workflowRef": workflow_ref, "parentExecutionId": writer.execution,
                        "childExecutionId": writer.child(step), "failed": true, "error": error.message,
                    })
                });
            }
            Some(_) | None => {}
        }
        let (message, code) = self.words(step, error);
        let reason = error.reason.as_deref().unwrap_or("orchestration_error");
        self.command(
            "FailNode",
            |_| json!({ "nodeId": step.node, "reason": reason, "message": message, "code": code }),
        );
        // Another branch may go on, or the parallel node fails for a reason of its own.
        self.failed = self.state.walk.has_failed() && self.state.broken_join.is_none();
    }

    /// The message and the code of a node's failure.
    fn words<'f>(&self, step: &StepId, error: &'f Failure) -> (&'f str, Option<&'f str>) {
        let code = match self.node(step) {
            Some(node) => activity::code_of(node, self.mode, error),
            None => activity::code(error),
        };
        (
            activity::message(code, error),
            Some(code).filter(|code| !code.is_empty()),
        )
    }

    /// Writes that parallel nodes are left, and which of their branches are given up with that: at a join all that have not
    /// ended, after a failure those that were under way.
    fn left(&mut self, left: &[Left]) {
        let plan = self.plan;
        for Left { fork, has_joined } in left {
            let Kind::Parallel { join, branches } = &plan.at(fork.node).kind else {
                continue;
            };
            let node = plan.node(fork.node);
            for (branch, place) in branches.iter().zip(&fork.branches) {
                if place.has_ended() || (!has_joined && *place == Place::NotBegun) {
                    continue;
                }
                self.command(
                    "CancelParallelBranch",
                    |_| json!({ "nodeId": node, "branchName": branch.name }),
                );
                self.event(
                    "ParallelBranchCancelled",
                    |_| json!({ "nodeId": node, "branchName": branch.name }),
                );
            }
            if !has_joined {
                continue;
            }
            let (word, _) = join_words(*join);
            self.command("JoinParallel", |_| json!({ "nodeId": node, "join": word }));
            self.event("ParallelJoined", |_| json!({ "nodeId": node, "join": word }));
            self.command("CompleteNode", |_| json!({ "nodeId": node, "output": {} }));
            self.state_updated(node.as_str());
            let span = fork.outer.and_then(|outer| span::of_branch(plan, outer));
            self.checkpoint(node.as_str(), span.as_ref());
        }
    }

    fn asked(&mut self, step: &StepId) {
        let plan = self.plan;
        match plan.position(&step.node).map(|at| &plan.at(at).kind) {
            Some(Kind::Interrupt { prompt, .. }) => {
                let shown = if prompt.chars().count() > MAX_PROMPT {
                    let clipped: String = prompt.chars().take(MAX_PROMPT).collect();
                    format!("{clipped}…")
                } else {
                    prompt.clone()
                };
                self.command(
                    "RaiseInterrupt",
                    |_| json!({ "nodeId": step.node, "prompt": shown }),
                );
                self.event(
                    "InterruptRaised",
                    |_| json!({ "nodeId": step.node, "prompt": shown }),
                );
                self.checkpoint(step.node.as_str(), None);
            }
            Some(Kind::Wait(Wait::Signal(name))) => {
                self.command(
                    "StartSignalWait",
                    |_| json!({ "nodeId": step.node, "signalName": name }),
                );
                self.event(
                    "SignalWaitStarted",
                    |_| json!({ "nodeId": step.node, "signalName": name }),
                );
            }
            Some(_) | None => {}
        }
    }

    fn answered(&mut self, step: &StepId, value: Option<&Value>) {
        // Nobody answered in time: the failure of the node says so.
        let Some(value) = value else { return };
        let plan = self.plan;
        match plan.position(&step.node).map(|at| &plan.at(at).kind) {
            Some(Kind::Interrupt { .. }) => {
                self.command("ResumeInterrupt", |_| json!({ "nodeId": step.node }));
                self.event("InterruptResumed", |_| json!({ "nodeId": step.node }));
            }
            Some(Kind::Wait(Wait::Signal(name))) => {
                self.command(
                    "DeliverSignal",
                    |_| json!({ "nodeId": step.node, "signalName": name, "payload": value }),
                );
                self.event(
                    "SignalReceived",
                    |_| json!({ "nodeId": step.node, "signalName": name, "payload": value }),
                );
            }
            Some(_) | None => {}
        }
    }

    fn dispatched(&mut self, step: &StepId, child: &RunId) {
        let plan = self.plan;
        let Some(Kind::Subworkflow { workflow_ref, .. }) =
            plan.position(&step.node).map(|at| &plan.at(at).kind)
        else {
            return;
        };
        let child = match self.is_named {
            true => options::child_execution_id(&self.execution, step),
            false => child.to_string(),
        };
        if let Some(notes) = self.notes(step) {
            notes.child = Some(child.clone());
        }
        self.command(
            "StartSubworkflow",
            |_| json!({ "nodeId": step.node, "workflowRef": workflow_ref, "childExecutionId": child }),
        );
        self.event("SubworkflowStarted", |writer| {
            json!({
                "nodeId": step.node, "workflowRef": workflow_ref, "parentExecutionId": writer.execution,
                "childExecutionId": child,
            })
        });
    }
}

/// The result of a child that has ended.
fn result_of(end: &GivenEnd) -> Option<Value> {
    end.end
        .as_ref()
        .and_then(|end| end.outputs.get("result").cloned())
}

const fn join_words(join: Join) -> (&'static str, Option<usize>) {
    match join {
        Join::All => ("all", None),
        Join::Any => ("any", None),
        Join::Some(n) => ("n_of_m", Some(n)),
    }
}

/// The kind of a wait for a time, and the time as the document has it.
fn wait_words<'n>(wait: &Wait, node: &'n Node) -> (&'static str, Option<&'n Value>) {
    match wait {
        Wait::Until(_) => ("until", node.config.get("until")),
        Wait::Duration(_) | Wait::Signal(_) => ("duration", None),
    }
}
