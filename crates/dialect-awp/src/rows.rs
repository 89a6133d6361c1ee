//! Reads the rows of a history that another engine has written.
//!
//! The rows are those of one execution, from the first one on and without gaps. What they say is checked against a
//! definition in [`crate::import`]; here they only have the form of rows.

use std::borrow::Cow;

use serde_json::Value;
use wopr_kernel::{Object, Timestamp, measure::object_too_deep};

use crate::history::{RECORD_SCHEMA_VERSION, RowKind};

/// The most rows of a history that is read.
pub const MAX_ROWS: usize = 10_000;
/// The longest id of an execution in a row, in bytes.
const MAX_ID: usize = 1_024;

/// The members whose values no view shows, in any case.
pub const SECRET_MEMBERS: [&str; 4] = ["apikey", "token", "password", "secret"];
/// The text that a history shows instead.
pub const REDACTED: &str = "[REDACTED]";

const COMMANDS: [&str; 14] = [
    "ScheduleNode",
    "CompleteNode",
    "FailNode",
    "RaiseInterrupt",
    "ResumeInterrupt",
    "StartParallel",
    "JoinParallel",
    "CancelParallelBranch",
    "StartTimer",
    "StartSignalWait",
    "DeliverSignal",
    "StartSubworkflow",
    "CompleteSubworkflow",
    "CancelExecution",
];
const EVENTS: [&str; 21] = [
    "ExecutionStarted",
    "NodeScheduled",
    "ActivityRequested",
    "ActivityCompleted",
    "ActivityFailed",
    "StateUpdated",
    "CheckpointWritten",
    "InterruptRaised",
    "InterruptResumed",
    "ParallelForked",
    "ParallelJoined",
    "ParallelBranchCancelled",
    "TimerStarted",
    "TimerFired",
    "SignalWaitStarted",
    "SignalReceived",
    "SubworkflowStarted",
    "SubworkflowCompleted",
    "ExecutionCompleted",
    "ExecutionFailed",
    "ExecutionCancelled",
];

/// A row of a history that was written elsewhere.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GivenRow {
    pub(crate) kind: RowKind,
    pub(crate) name: &'static str,
    pub(crate) payload: Object,
    pub(crate) at: Timestamp,
}

impl GivenRow {
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.payload.get(name).and_then(Value::as_str)
    }

    pub(crate) fn node(&self) -> Option<&str> {
        self.text("nodeId")
    }

    pub(crate) fn is_command(&self, name: &str) -> bool {
        self.kind == RowKind::Command && self.name == name
    }

    pub(crate) fn is_any_command(&self) -> bool {
        self.kind == RowKind::Command
    }

    pub(crate) fn is_event(&self, name: &str) -> bool {
        self.kind == RowKind::Event && self.name == name
    }
}

/// The rows of an execution.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenRows {
    /// The execution as the rows name it.
    pub(crate) execution: String,
    /// One at least, the first of which is the start.
    pub(crate) rows: Vec<GivenRow>,
}

/// A row that is not one, or does not follow from the rows before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("row {row}: {reason}")]
pub struct RowError {
    /// From 1 on.
    pub row: usize,
    pub reason: Cow<'static, str>,
}

impl RowError {
    pub(crate) fn new(index: usize, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            row: index + 1,
            reason: reason.into(),
        }
    }
}

impl GivenRows {
    /// Reads rows.
    ///
    /// # Errors
    /// The first row that is not one, or not the next one.
    pub fn read(rows: Vec<Value>) -> Result<Self, RowError> {
        if rows.is_empty() {
            return Err(RowError::new(0, "a history has at least one row"));
        }
        if rows.len() > MAX_ROWS {
            return Err(RowError::new(
                MAX_ROWS,
                format!("a history that is imported has at most {MAX_ROWS} rows"),
            ));
        }
        let mut execution = None;
        let mut read = Vec::with_capacity(rows.len());
        for (index, row) in rows.into_iter().enumerate() {
            let row = read_row(index, row, &mut execution).map_err(|reason| RowError::new(index, reason))?;
            let is_start = row.is_event("ExecutionStarted");
            if is_start != (index == 0) {
                let reason = "a history begins with ExecutionStarted, and has no other row of that name";
                return Err(RowError::new(index, reason));
            }
            read.push(row);
        }
        Ok(Self {
            execution: execution.unwrap_or_default(),
            rows: read,
        })
    }

    /// The index of the first command from an index on.
    pub(crate) fn command_from(&self, index: usize) -> Option<usize> {
        let rows = self.rows.iter().enumerate().skip(index);
        let mut commands = rows.filter(|(_, row)| row.kind == RowKind::Command);
        commands.next().map(|(index, _)| index)
    }
}

fn read_row(index: usize, row: Value, execution: &mut Option<String>) -> Result<GivenRow, Cow<'static, str>> {
    let Value::Object(mut row) = row else {
        return Err("a row is an object".into());
    };
    let wanted = index as u64 + 1;
    if row.remove("seq").and_then(|seq| seq.as_u64()) != Some(wanted) {
        return Err(
            format!("seq must be {wanted}: rows are in the order of seq, from 1 without gaps").into(),
        );
    }
    match row.remove("record_schema_version") {
        None => {}
        Some(version) if version.as_u64() == Some(u64::from(RECORD_SCHEMA_VERSION)) => {}
        Some(_) => {
            return Err(format!(
                "record_schema_version must be {RECORD_SCHEMA_VERSION}, the only one there is"
            )
            .into());
        }
    }
    let kind = match row.remove("kind").as_ref().and_then(Value::as_str) {
        Some("command") => RowKind::Command,
        Some("event") => RowKind::Event,
        Some(_) | None => return Err("kind must be command or event".into()),
    };
    let name = row.remove("name");
    let name = name.as_ref().and_then(Value::as_str).unwrap_or_default();
    let names: &[&'static str] = match kind {
        RowKind::Command => &COMMANDS,
        RowKind::Event => &EVENTS,
    };
    let known = names.iter().copied().find(|known| *known == name);
    let name = known.ok_or_else(|| format!("name must be that of a known {}", kind.as_str()))?;
    let at = row.remove("created_at");
    let at = at.as_ref().and_then(Value::as_str);
    let at = at.and_then(Timestamp::parse_text);
    let at = at.ok_or("created_at must be a time such as 2026-01-31T12:00:00.000Z")?;
    let Some(Value::Object(payload)) = row.remove("payload") else {
        return Err("payload must be an object".into());
    };
    if object_too_deep(&payload) {
        return Err("payload nests too deep".into());
    }
    let column = row.remove("execution_id");
    if let Some(unknown) = row.keys().next() {
        let unknown = &unknown[..unknown.floor_char_boundary(100)];
        return Err(format!("{unknown} is not a member of a row").into());
    }
    let id = payload.get("executionId").and_then(Value::as_str);
    let id = id.filter(|id| (1..=MAX_ID).contains(&id.len()));
    let id = id.ok_or("payload.executionId must name the execution")?;
    if column.is_some_and(|column| column.as_str() != Some(id)) {
        return Err("execution_id must be that of the payload".into());
    }
    match execution {
        None => *execution = Some(id.to_owned()),
        Some(first) if first == id => {}
        Some(_) => return Err("payload.executionId must be that of the first row".into()),
    }
    Ok(GivenRow {
        kind,
        name,
        payload,
        at,
    })
}

/// Returns `true` if the history has hidden a part of the value.
pub(crate) fn is_redacted(value: &Value) -> bool {
    match value {
        Value::Object(members) => members
            .iter()
            .any(|(name, value)| hides(name, value) || is_redacted(value)),
        Value::Array(values) => values.iter().any(is_redacted),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Whether a member's value is not shown.
pub(crate) fn hides(name: &str, value: &Value) -> bool {
    value == REDACTED && is_secret(name)
}

/// Whether histories hide the value of a member with this name.
fn is_secret(name: &str) -> bool {
    SECRET_MEMBERS
        .iter()
        .any(|secret| name.eq_ignore_ascii_case(secret))
}

/// Whether a history can say `given` where `made` is the value: numbers are doubles, and what is redacted may be anything.
pub(crate) fn agrees(given: &Value, made: &Value) -> bool {
    match (given, made) {
        (Value::Object(given), Value::Object(made)) => {
            given.len() == made.len()
                && given.iter().all(|(name, given)| {
                    made.get(name)
                        .is_some_and(|made| hides(name, given) || agrees(given, made))
                })
        }
        (Value::Array(given), Value::Array(made)) => {
            given.len() == made.len() && given.iter().zip(made).all(|(given, made)| agrees(given, made))
        }
        (Value::Number(given), Value::Number(made)) => given == made || given.as_f64() == made.as_f64(),
        (given, made) => given == made,
    }
}
