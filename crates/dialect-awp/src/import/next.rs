//! Finds in the rows of a history what a run waits for.
//!
//! A run waits after a command: for an outcome, an answer, a signal or a timer. What came is among the rows up to the
//! next command, or is that command. Events that another engine has repeated are passed over.

use serde_json::{Value, json};
use wopr_kernel::{
    Active, Authority, Command, Failure, InterruptKind, Object, Phase, Planned, PrincipalId, Resolve, Run,
    StepId, Timer, Wait, fields,
};

use super::{ImportError, comparison::Comparison, hidden};
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
    pub(super) commands: Vec<Command>,
    /// Whether the row says that another attempt follows.
    pub(super) will_retry: Option<bool>,
}

/// Where a run is.
pub(super) struct Next<'a> {
    pub(super) plan: &'a Plan,
    pub(super) given: &'a GivenRows,
    pub(super) mode: ActivityMode,
    pub(super) run: &'a Run,
    pub(super) comparison: &'a Comparison<'a>,
    pub(super) cursor: usize,
}

/// The active execution of a run. Branches are walked one after another, so there is one.
fn active(run: &Run) -> Option<(usize, &Active)> {
    let mut nodes = run.nodes.iter().enumerate();
    nodes.find_map(|(position, node)| match &node.phase {
        Phase::Active(active) => Some((position, active)),
        Phase::Idle | Phase::Completed | Phase::Failed(_) | Phase::Skipped | Phase::Cancelled => None,
    })
}

pub(super) fn waits_for_retry(run: &Run) -> bool {
    active(run).is_some_and(|(_, active)| matches!(active.wait, Wait::Retry { .. }))
}

impl Next<'_> {
    /// What the run was given next. `None` if the rows end here.
    pub(super) fn find(&self) -> Result<Option<Outcome>, ImportError> {
        let Some((position, active)) = active(self.run) else {
            return Ok(None);
        };
        let step = StepId {
            node: self.plan.node(position).clone(),
            ordinal: active.ordinal,
        };
        match &active.wait {
            Wait::Effect(_) => self.activity(position, &step, active.attempt),
            Wait::Retry { .. } => self.retry(&step, active.attempt),
            Wait::Work => self.timer(step),
            Wait::Interrupt(open) if open.kind == InterruptKind::ExternalEvent => self.signal(position, step),
            Wait::Interrupt(_) => self.answer(position, step),
            // Histories with children are refused.
            Wait::Children(_) => Ok(None),
        }
    }

    fn row(&self, index: usize) -> &GivenRow {
        &self.given.rows[index]
    }

    /// The rows of a node between the last command and the next one that were not given yet.
    fn events<'r>(&'r self, step: &'r StepId) -> impl Iterator<Item = (usize, &'r GivenRow)> {
        let end = self.comparison.next().unwrap_or(self.given.rows.len());
        let begin = self.cursor.max(self.comparison.last() + 1);
        let rows = self.given.rows[..end].iter().enumerate().skip(begin);
        rows.filter(|(_, row)| row.node() == Some(step.node.as_str()))
    }

    /// Nothing says what the run was given: the rows end here, with a cancel, or go on with another command.
    fn nothing(&self, step: &StepId, command: &str, missing: &str) -> Result<Option<Outcome>, ImportError> {
        let Some(next) = self.comparison.next() else {
            return Ok(None);
        };
        let (row, node) = (self.row(next), step.node.as_str());
        if row.is_command("CancelExecution") {
            let reason = text(next, row, "reason", MAX_REASON)?.map(str::to_owned);
            return Ok(Some(one(next, next + 1, Command::Cancel { reason, by: None })));
        }
        let is_end = row.is_command("CompleteNode") || row.is_command("FailNode");
        match is_end && row.node() == Some(node) {
            true => {
                Err(RowError::new(next, format!("{missing} of node \"{node}\" is missing before it")).into())
            }
            false => Err(self.comparison.differs(next, Some((command, Some(node))))),
        }
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

    fn activity(&self, position: usize, step: &StepId, attempt: u32) -> Result<Option<Outcome>, ImportError> {
        let wanted = u64::from(attempt) + 1;
        let mut repeated = None;
        for (index, row) in self.events(step) {
            if row.is_event("ActivityCompleted") {
                // A repeated one may be of an earlier visit.
                match row.payload.get("replayed") == Some(&Value::Bool(true)) {
                    true => repeated = Some(index),
                    false => return self.completed(index, position, step, attempt).map(Some),
                }
            } else if row.is_event("ActivityRequested") {
                Self::attempt(index, row, wanted)?;
            } else if row.is_event("ActivityFailed") {
                let number = Self::attempt(index, row, wanted)?;
                // An engine that was stopped in between begins with the first attempt again.
                if number.is_none_or(|number| number == wanted) {
                    return self.failed(index, position, step, attempt).map(Some);
                }
            }
        }
        match repeated.filter(|_| self.comparison.next().is_some()) {
            Some(index) => self.completed(index, position, step, attempt).map(Some),
            None => self.nothing(step, "CompleteNode", "ActivityCompleted or ActivityFailed"),
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
        Ok(Outcome {
            row: index,
            end: index + 1,
            commands: vec![command],
            will_retry: None,
        })
    }

    fn failed(
        &self,
        index: usize,
        position: usize,
        step: &StepId,
        attempt: u32,
    ) -> Result<Outcome, ImportError> {
        let row = self.row(index);
        let will_retry = row.payload.get("willRetry") == Some(&Value::Bool(true));
        let is_delegate = matches!(self.plan.at(position).kind, Kind::Delegate { .. });
        let failure = Failure {
            // Only of a delegate's failure it matters.
            retryable: will_retry || !is_delegate,
            ..Failure::new(
                text(index, row, "code", MAX_CODE)?.unwrap_or_default(),
                text(index, row, "error", MAX_ERROR)?.unwrap_or_default(),
            )
        };
        Ok(Outcome {
            will_retry: Some(will_retry),
            ..one(index, index + 1, effect(step, attempt, Err(failure)))
        })
    }

    fn retry(&self, step: &StepId, attempt: u32) -> Result<Option<Outcome>, ImportError> {
        let next = u64::from(attempt) + 2;
        for (index, row) in self.events(step) {
            if row.is_event("ActivityRequested") {
                let number = Self::attempt(index, row, next)?;
                if number.is_none_or(|number| number == next) {
                    let timer = Timer::Retry(step.clone(), attempt + 1);
                    return Ok(Some(one(index, index + 1, Command::Timer(timer))));
                }
            } else if row.is_event("ActivityFailed") {
                Self::attempt(index, row, next - 1)?;
            }
        }
        self.nothing(step, "CompleteNode", "ActivityRequested for the next attempt")
    }

    fn timer(&self, step: StepId) -> Result<Option<Outcome>, ImportError> {
        let fired = self.events(&step).find(|(_, row)| row.is_event("TimerFired"));
        match fired.map(|(index, _)| index) {
            Some(index) => Ok(Some(one(index, index + 1, Command::Timer(Timer::Delay(step))))),
            None => self.nothing(&step, "CompleteNode", "TimerFired"),
        }
    }

    fn signal(&self, position: usize, step: StepId) -> Result<Option<Outcome>, ImportError> {
        let node = step.node.as_str();
        let next = self.comparison.next();
        let Some(next) = next.filter(|next| {
            let row = self.row(*next);
            row.is_command("DeliverSignal") && row.node() == Some(node)
        }) else {
            return self.nothing(&step, "DeliverSignal", "DeliverSignal");
        };
        let row = self.row(next);
        if let Kind::Wait(definition::Wait::Signal(name)) = &self.plan.at(position).kind
            && row.text("signalName") != Some(name)
        {
            let reason = format!("signalName must be \"{name}\", which node \"{node}\" waits for");
            return Err(RowError::new(next, reason).into());
        }
        let payload = row.payload.get("payload").cloned();
        let payload = payload.unwrap_or_else(|| Value::Object(Object::new()));
        self.resolve(next, next + 1, next, step, payload).map(Some)
    }

    fn answer(&self, position: usize, step: StepId) -> Result<Option<Outcome>, ImportError> {
        let node = step.node.as_str();
        let is = |index: Option<usize>, name: &str| {
            index.filter(|index| self.row(*index).is_command(name) && self.row(*index).node() == Some(node))
        };
        let next = self.comparison.next();
        if let Kind::Interrupt {
            timeout_ms: Some(_), ..
        } = self.plan.at(position).kind
            && let Some(failed) = is(next, "FailNode")
            && self.row(failed).text("reason") == Some("interrupt_timed_out")
        {
            let command = Command::Timer(Timer::Interrupt(step));
            return Ok(Some(one(failed, failed + 1, command)));
        }
        let Some(resumed) = is(next, "ResumeInterrupt") else {
            return self.nothing(&step, "ResumeInterrupt", "ResumeInterrupt");
        };
        // The answer is the output of the node.
        let completed = is(self.given.command_from(resumed + 1), "CompleteNode");
        let Some(completed) = completed else {
            let reason =
                format!("CompleteNode of node \"{node}\", which has the answer, is missing after it");
            return Err(RowError::new(resumed, reason).into());
        };
        let payload = self.row(completed).payload.get("output").cloned();
        self.resolve(resumed, resumed + 1, completed, step, payload.unwrap_or_default())
            .map(Some)
    }

    /// Answers with what the row `said` has.
    fn resolve(
        &self,
        row: usize,
        end: usize,
        said: usize,
        step: StepId,
        value: Value,
    ) -> Result<Outcome, ImportError> {
        if is_redacted(&value) {
            return Err(hidden(said).into());
        }
        let by = PrincipalId::parse(ANSWERED_BY).expect("a word is a name");
        let resolve = Resolve {
            node: step.node,
            ordinal: Some(step.ordinal),
            interrupt: None,
            value,
            by,
            voter: None,
            authority: Authority::default(),
            is_untrusted: false,
        };
        Ok(one(row, end, Command::Resolve(resolve)))
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

fn one(row: usize, end: usize, command: Command) -> Outcome {
    Outcome {
        row,
        end,
        commands: vec![command],
        will_retry: None,
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
