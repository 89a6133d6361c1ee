//! Finds in the rows of a history what a run was given next.
//!
//! A run waits after a command: for an outcome, an answer, a signal, a timer or the end of a child, and for several of them
//! where its branches are under way at once. What came first is among the rows up to the next command, or is that command.
//! Events that another engine has repeated are passed over.

use serde_json::{Value, json};
use wopr_kernel::{
    Active, Authority, CascadeReason, Command, Failure, InterruptKind, Member, NodeId, Object, Phase,
    Planned, PrincipalId, Resolve, Run, RunId, RunMessage, StepId, Timer, Wait, fields,
};

use super::{ImportError, comparison::Comparison, hidden, replay::Born};
use crate::{
    definition::{self, Kind},
    options::ActivityMode,
    plan::Plan,
    rows::{GivenRow, GivenRows, RowError, is_redacted},
    submit::{EXTERNAL_TASK_ID, output},
};

/// The recorded responder: rows do not name one.
const ANSWERED_BY: &str = "imported";
/// The longest name of an agent's task, in bytes.
const MAX_TASK: usize = 512;
/// The longest reason of a cancel, in bytes; the same as of a request.
const MAX_REASON: usize = 512;
/// The longest code and message of a failure, in bytes; the same as of an outcome that is submitted.
const MAX_CODE: usize = 128;
const MAX_ERROR: usize = 8 << 10;

/// What a run was given.
pub(super) struct Outcome {
    /// The row that says it.
    pub(super) row: usize,
    /// The first row that may say what was given next.
    pub(super) end: usize,
    pub(super) command: Command,
    /// Whether the row says that another attempt of this step follows.
    pub(super) will_retry: Option<(StepId, bool)>,
    /// The child whose end it is.
    pub(super) heard: Option<RunId>,
}

/// What an event says about the step that is at its node.
enum Said {
    Nothing,
    Given(Box<Outcome>),
    /// What it was given, unless the event only repeats an earlier one.
    Again,
}

impl Said {
    fn given(outcome: Outcome) -> Self {
        Self::Given(Box::new(outcome))
    }
}

/// Where a run is.
pub(super) struct Next<'a> {
    pub(super) plan: &'a Plan,
    pub(super) given: &'a GivenRows,
    pub(super) mode: ActivityMode,
    pub(super) run: &'a Run,
    pub(super) comparison: &'a Comparison<'a>,
    pub(super) cursor: usize,
    pub(super) born: &'a [Born],
}

/// A step that is under way.
struct Current<'r> {
    position: usize,
    step: StepId,
    active: &'r Active,
}

/// The execution of a node that is under way.
fn active(run: &Run, position: usize) -> Option<&Active> {
    match &run.nodes.get(position)?.phase {
        Phase::Active(active) => Some(active),
        Phase::Idle | Phase::Completed | Phase::Failed(_) | Phase::Skipped | Phase::Cancelled => None,
    }
}

pub(super) fn waits_for_retry(plan: &Plan, run: &Run, step: &StepId) -> bool {
    let position = plan.position(&step.node);
    let active = position.and_then(|position| active(run, position));
    active.is_some_and(|active| active.ordinal == step.ordinal && matches!(active.wait, Wait::Retry { .. }))
}

impl Next<'_> {
    /// What the run was given next. `None` if the rows end here.
    pub(super) fn find(&self) -> Result<Option<Outcome>, ImportError> {
        if self.run.cancelling.is_some() {
            return self.cancelled_child();
        }
        let next = self.comparison.next();
        let begin = self.cursor.max(self.comparison.last() + 1);
        let mut repeated = None;
        for index in begin..next.unwrap_or(self.given.rows.len()) {
            let Some(current) = self.row(index).node().and_then(|node| self.at(node)) else {
                continue;
            };
            match self.event(index, &current)? {
                Said::Nothing => {}
                Said::Given(outcome) => return Ok(Some(*outcome)),
                Said::Again => repeated = repeated.or(Some((index, current))),
            }
        }
        match (next, repeated) {
            (None, _) => Ok(None),
            // Without another one, it is the one that counts.
            (Some(_), Some((index, current))) => self.ended(index, &current).map(Some),
            (Some(next), None) => self.command(next),
        }
    }

    fn row(&self, index: usize) -> &GivenRow {
        &self.given.rows[index]
    }

    /// The step that is under way at a node.
    fn at(&self, node: &str) -> Option<Current<'_>> {
        self.current(self.plan.position(&NodeId::parse(node).ok()?)?)
    }

    fn current(&self, position: usize) -> Option<Current<'_>> {
        let active = active(self.run, position)?;
        let step = StepId {
            node: self.plan.node(position).clone(),
            ordinal: active.ordinal,
        };
        Some(Current {
            position,
            step,
            active,
        })
    }

    fn all(&self) -> impl Iterator<Item = Current<'_>> {
        (0..self.run.nodes.len()).filter_map(|position| self.current(position))
    }

    /// The rows of a node between the last command and the next one that were not given yet.
    fn events<'r>(&'r self, step: &'r StepId) -> impl Iterator<Item = (usize, &'r GivenRow)> {
        let end = self.comparison.next().unwrap_or(self.given.rows.len());
        let begin = self.cursor.max(self.comparison.last() + 1);
        let rows = self.given.rows[..end].iter().enumerate().skip(begin);
        rows.filter(|(_, row)| row.node() == Some(step.node.as_str()))
    }

    /// What an event says about the step at its node.
    fn event(&self, index: usize, current: &Current<'_>) -> Result<Said, ImportError> {
        let row = self.row(index);
        // A repeated one may be of an earlier visit.
        let is_again = row.payload.get("replayed") == Some(&Value::Bool(true));
        let attempt = current.active.attempt;
        let said = match &current.active.wait {
            Wait::Effect(_) if row.is_event("ActivityCompleted") && is_again => Said::Again,
            Wait::Effect(_) if row.is_event("ActivityCompleted") => Said::given(self.ended(index, current)?),
            Wait::Effect(_) if row.is_event("ActivityRequested") => {
                Self::attempt(index, row, u64::from(attempt) + 1)?;
                Said::Nothing
            }
            Wait::Effect(_) if row.is_event("ActivityFailed") => {
                let wanted = u64::from(attempt) + 1;
                // An engine that was stopped in between begins with the first attempt again.
                match Self::attempt(index, row, wanted)?.is_none_or(|number| number == wanted) {
                    true => Said::given(self.failed(index, current)?),
                    false => Said::Nothing,
                }
            }
            Wait::Retry { .. } if row.is_event("ActivityRequested") => {
                let wanted = u64::from(attempt) + 2;
                match Self::attempt(index, row, wanted)?.is_none_or(|number| number == wanted) {
                    true => {
                        let timer = Timer::Retry(current.step.clone(), attempt + 1);
                        Said::given(one(index, index + 1, Command::Timer(timer)))
                    }
                    false => Said::Nothing,
                }
            }
            Wait::Retry { .. } if row.is_event("ActivityFailed") => {
                Self::attempt(index, row, u64::from(attempt) + 1)?;
                Said::Nothing
            }
            Wait::Work if row.is_event("TimerFired") => {
                let timer = Timer::Delay(current.step.clone());
                Said::given(one(index, index + 1, Command::Timer(timer)))
            }
            Wait::Children(_) if row.is_event("SubworkflowCompleted") && is_again => Said::Again,
            Wait::Children(_) if row.is_event("SubworkflowCompleted") => {
                Said::given(self.ended(index, current)?)
            }
            Wait::Effect(_) | Wait::Retry { .. } | Wait::Work | Wait::Children(_) | Wait::Interrupt(_) => {
                Said::Nothing
            }
        };
        Ok(said)
    }

    /// The end of an activity, or of a child, as an event says it.
    fn ended(&self, index: usize, current: &Current<'_>) -> Result<Outcome, ImportError> {
        match &current.active.wait {
            Wait::Children(members) => self.child_ended(index, current, members),
            Wait::Effect(_) | Wait::Retry { .. } | Wait::Work | Wait::Interrupt(_) => {
                self.completed(index, current.position, &current.step, current.active.attempt)
            }
        }
    }

    fn child_ended(
        &self,
        index: usize,
        current: &Current<'_>,
        members: &[Member],
    ) -> Result<Outcome, ImportError> {
        let born = |member: &Member| self.born.iter().find(|born| born.child.child.run == member.run);
        let born = members.iter().find_map(born);
        match born.and_then(|born| Some((born, born.end()?))) {
            Some((born, message)) => Ok(Outcome {
                heard: Some(born.child.child.run.clone()),
                ..one(index, index + 1, Command::RunMessages(vec![message.clone()]))
            }),
            None => {
                let name = born.map_or("", |born| born.name.as_str());
                let reason = format!(
                    "the sub-workflow \"{name}\" of node \"{}\" has ended, and by its own history it has not",
                    current.step.node
                );
                Err(RowError::new(index, reason).into())
            }
        }
    }

    /// A cancelled run waits for its children to end.
    fn cancelled_child(&self) -> Result<Option<Outcome>, ImportError> {
        let Some(next) = self.comparison.next() else {
            return Ok(None);
        };
        for current in self.all() {
            if let Wait::Children(members) = &current.active.wait {
                return self
                    .child_ended(next, &current, members)
                    .map(|ended| Some(Outcome { end: next, ..ended }));
            }
        }
        Ok(None)
    }

    /// What the next command says that the run was given, where no event before it does.
    fn command(&self, next: usize) -> Result<Option<Outcome>, ImportError> {
        let row = self.row(next);
        if row.is_command("CancelExecution") {
            return self.cancel(next).map(Some);
        }
        let at = row.node().and_then(|node| self.at(node));
        if let Some(Current {
            position,
            step,
            active,
        }) = &at
            && let Wait::Interrupt(open) = &active.wait
        {
            let said = match open.kind == InterruptKind::ExternalEvent {
                true => self.signal(next, *position, step)?,
                false => self.answer(next, *position, step)?,
            };
            if said.is_some() {
                return Ok(said);
            }
        }
        let is_own = at.is_some();
        let Some(Current { step, active, .. }) = at.or_else(|| self.all().next()) else {
            return Ok(None);
        };
        let (command, missing) = match &active.wait {
            Wait::Effect(_) => ("CompleteNode", "ActivityCompleted or ActivityFailed"),
            Wait::Retry { .. } => ("CompleteNode", "ActivityRequested for the next attempt"),
            Wait::Work => ("CompleteNode", "TimerFired"),
            Wait::Interrupt(open) if open.kind == InterruptKind::ExternalEvent => {
                ("DeliverSignal", "DeliverSignal")
            }
            Wait::Interrupt(_) => ("ResumeInterrupt", "ResumeInterrupt"),
            Wait::Children(_) => ("CompleteSubworkflow", "SubworkflowCompleted"),
        };
        let node = step.node.as_str();
        let ends = ["CompleteNode", "FailNode", "CompleteSubworkflow"];
        match is_own && ends.into_iter().any(|end| row.is_command(end)) {
            true => {
                Err(RowError::new(next, format!("{missing} of node \"{node}\" is missing before it")).into())
            }
            false => Err(self.comparison.differs(next, Some((command, Some(node))))),
        }
    }

    fn cancel(&self, next: usize) -> Result<Outcome, ImportError> {
        let reason = text(next, self.row(next), "reason", MAX_REASON)?;
        let why = reason.and_then(CascadeReason::parse);
        let command = match (why, self.run.parent()) {
            (Some(why), Some(parent)) => {
                let parent = parent.run.clone();
                Command::RunMessages(vec![RunMessage::ParentEnded { parent, why }])
            }
            (Some(_) | None, _) => Command::Cancel {
                reason: reason.map(str::to_owned),
                by: None,
            },
        };
        Ok(one(next, next + 1, command))
    }

    /// The number of the attempt that a row is about, if it says so. A later attempt than `wanted` cannot follow yet.
    fn attempt(index: usize, row: &GivenRow, wanted: u64) -> Result<Option<u64>, RowError> {
        let number = row.payload.get("attempt").and_then(Value::as_u64);
        match number.filter(|number| *number > wanted) {
            None => Ok(number),
            Some(number) => Err(RowError::new(
                index,
                format!("attempt {number} cannot follow yet: the rows before it lead to attempt {wanted}"),
            )),
        }
    }

    fn is_call(&self, position: usize) -> bool {
        let is_delegate = matches!(self.plan.at(position).kind, Kind::Delegate { .. });
        is_delegate && self.mode == ActivityMode::InProcess
    }

    fn completed(
        &self,
        index: usize,
        position: usize,
        step: &StepId,
        attempt: u32,
    ) -> Result<Outcome, ImportError> {
        let row = self.row(index);
        for (later, row) in self.events(step).filter(|(later, _)| *later > index) {
            if row.is_event("ActivityRequested") {
                Self::attempt(later, row, u64::from(attempt) + 1)?;
            } else if row.is_event("ActivityFailed") {
                let reason = format!("node \"{}\" has completed in row {}", step.node, index + 1);
                return Err(RowError::new(later, reason).into());
            }
        }
        let result = row.payload.get("result").cloned().unwrap_or_default();
        if is_redacted(&result) {
            return Err(hidden(index).into());
        }
        let task = match row.payload.get(EXTERNAL_TASK_ID) {
            None => None,
            Some(Value::String(task)) if task.len() <= MAX_TASK => Some(task.as_str()),
            Some(_) => {
                let reason = format!("{EXTERNAL_TASK_ID} must be a string of at most {MAX_TASK} bytes");
                return Err(RowError::new(index, reason).into());
            }
        };
        let is_call = self.is_call(position);
        let output = match is_call {
            // As an agent answers.
            true => fields(json!({ "data": output(result), "taskId": task })),
            false => output(result),
        };
        let end = effect(step, attempt, Ok(output));
        let command = match task.filter(|_| !is_call) {
            Some(task) => Command::Progressed {
                step: step.clone(),
                attempt,
                details: json!({ EXTERNAL_TASK_ID: task }),
                then: Some(Box::new(end)),
            },
            None => end,
        };
        Ok(one(index, index + 1, command))
    }

    fn failed(&self, index: usize, current: &Current<'_>) -> Result<Outcome, ImportError> {
        let Current {
            position,
            step,
            active,
        } = current;
        let row = self.row(index);
        let will_retry = row.payload.get("willRetry") == Some(&Value::Bool(true));
        let is_delegate = matches!(self.plan.at(*position).kind, Kind::Delegate { .. });
        let failure = Failure {
            // Only of a delegate's failure it matters.
            retryable: will_retry || !is_delegate,
            ..failure(index, row)?
        };
        Ok(Outcome {
            will_retry: Some((step.clone(), will_retry)),
            ..one(index, index + 1, effect(step, active.attempt, Err(failure)))
        })
    }

    /// The signal that a command delivers to the step that is at its node.
    fn signal(&self, next: usize, position: usize, step: &StepId) -> Result<Option<Outcome>, ImportError> {
        let row = self.row(next);
        if !row.is_command("DeliverSignal") {
            return Ok(None);
        }
        if let Kind::Wait(definition::Wait::Signal(name)) = &self.plan.at(position).kind
            && row.text("signalName") != Some(name)
        {
            let reason = format!(
                "signalName must be \"{name}\", which node \"{}\" waits for",
                step.node
            );
            return Err(RowError::new(next, reason).into());
        }
        let payload = row.payload.get("payload").cloned();
        let payload = payload.unwrap_or_else(|| Value::Object(Object::new()));
        Self::resolve(next, next, step, payload).map(Some)
    }

    /// The answer with which a command resumes the step that is at its node, or its time limit.
    fn answer(&self, next: usize, position: usize, step: &StepId) -> Result<Option<Outcome>, ImportError> {
        let row = self.row(next);
        if let Kind::Interrupt {
            timeout_ms: Some(_), ..
        } = self.plan.at(position).kind
            && row.is_command("FailNode")
            && row.text("reason") == Some("interrupt_timed_out")
        {
            let command = Command::Timer(Timer::Interrupt(step.clone()));
            return Ok(Some(one(next, next + 1, command)));
        }
        if !row.is_command("ResumeInterrupt") {
            return Ok(None);
        }
        // The answer is the output of the node.
        let node = step.node.as_str();
        let completed = self.given.command_from(next + 1);
        let completed = completed.filter(|index| {
            self.row(*index).is_command("CompleteNode") && self.row(*index).node() == Some(node)
        });
        let Some(completed) = completed else {
            let reason =
                format!("CompleteNode of node \"{node}\", which has the answer, is missing after it");
            return Err(RowError::new(next, reason).into());
        };
        let payload = self.row(completed).payload.get("output").cloned();
        Self::resolve(next, completed, step, payload.unwrap_or_default()).map(Some)
    }

    /// Answers with what the row `said` has.
    fn resolve(row: usize, said: usize, step: &StepId, value: Value) -> Result<Outcome, ImportError> {
        if is_redacted(&value) {
            return Err(hidden(said).into());
        }
        let by = PrincipalId::parse(ANSWERED_BY).expect("a word is a name");
        let resolve = Resolve {
            node: step.node.clone(),
            ordinal: Some(step.ordinal),
            interrupt: None,
            value,
            by,
            voter: None,
            authority: Authority::default(),
            is_untrusted: false,
        };
        Ok(one(row, row + 1, Command::Resolve(resolve)))
    }
}

/// A text of a row, which must not be longer than a caller may send it.
fn text<'r>(index: usize, row: &'r GivenRow, name: &str, most: usize) -> Result<Option<&'r str>, RowError> {
    match row.text(name) {
        Some(text) if text.len() > most => Err(RowError::new(
            index,
            format!("{name} must have at most {most} bytes"),
        )),
        text => Ok(text),
    }
}

/// Reads the failure of an attempt from its row.
pub(super) fn failure(index: usize, row: &GivenRow) -> Result<Failure, RowError> {
    Ok(Failure::new(
        text(index, row, "code", MAX_CODE)?.unwrap_or_default(),
        text(index, row, "error", MAX_ERROR)?.unwrap_or_default(),
    ))
}

/// The failure of a node as its row words it.
pub(super) fn worded(index: usize, row: &GivenRow, failure: Failure) -> Result<Failure, RowError> {
    let code = text(index, row, "code", MAX_CODE)?;
    let message = text(index, row, "message", MAX_ERROR)?;
    Ok(Failure {
        code: code.map_or(failure.code, str::to_owned),
        message: message.map_or(failure.message, str::to_owned),
        ..failure
    })
}

fn one(row: usize, end: usize, command: Command) -> Outcome {
    Outcome {
        row,
        end,
        command,
        will_retry: None,
        heard: None,
    }
}

fn effect(step: &StepId, attempt: u32, outcome: Result<Object, Failure>) -> Command {
    Command::Effect {
        step: step.clone(),
        attempt,
        outcome,
        retry_after_ms: None,
    }
}
