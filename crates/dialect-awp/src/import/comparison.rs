//! Compares the rows that a run makes with those that were given.
//!
//! Commands are compared in order, by name and node. Engines repeat events when they go on with an execution, so an event
//! is looked for among the rows up to the next command.

use serde_json::{Value, json};
use wopr_kernel::{Object, RecordedRef, RunId};

use super::ImportError;
use crate::{
    decide::NoEvent,
    history::{HistoryWriter, Row, RowKind, Wanted},
    plan::Plan,
    rows::{GivenRow, GivenRows, RowError, agrees},
};

/// Members that name an execution, which may have another name here.
const NAMES: [&str; 5] = [
    "executionId",
    "delegateCorrelationId",
    "externalTaskId",
    "childExecutionId",
    "parentExecutionId",
];

#[derive(Debug)]
pub(super) struct Comparison<'a> {
    given: &'a GivenRows,
    writer: HistoryWriter<'a>,
    /// The row of the last command that both have.
    last: usize,
    /// The row of the next one.
    next: Option<usize>,
    n_commands: usize,
    n_rows: usize,
    /// The run has gone further than the rows.
    is_beyond: bool,
    /// Each row so far is the one that was given.
    is_same: bool,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(plan: &'a Plan, run: &'a RunId, given: &'a GivenRows) -> Self {
        let wanted = Wanted::Rows {
            numbers: 1..u64::MAX,
            most_bytes: usize::MAX,
        };
        Self {
            given,
            writer: HistoryWriter::new(plan, run, wanted),
            last: 0,
            next: given.command_from(0),
            n_commands: 0,
            n_rows: 0,
            is_beyond: false,
            is_same: true,
        }
    }

    pub(super) const fn is_beyond(&self) -> bool {
        self.is_beyond
    }

    /// Returns `true` if this host would write the same rows, as far as they go.
    pub(super) const fn is_same(&self) -> bool {
        self.is_same
    }

    /// How many commands both have.
    pub(super) const fn n_commands(&self) -> usize {
        self.n_commands
    }

    /// The row of the last command that both have.
    pub(super) const fn last(&self) -> usize {
        self.last
    }

    /// The row of the next command.
    pub(super) const fn next(&self) -> Option<usize> {
        self.next
    }

    /// Compares the rows of an event. They are made one event at a time, because each may have a copy of the state.
    pub(super) fn record(&mut self, recorded: RecordedRef<'_, NoEvent>) -> Result<(), ImportError> {
        if self.is_beyond && self.n_rows >= self.given.rows.len() {
            return Ok(());
        }
        self.writer.record(recorded);
        for row in self.writer.take_rows() {
            self.compare_all(&row);
            match row.kind {
                RowKind::Command => self.command(&row)?,
                RowKind::Event if row.name == "StateUpdated" => self.state(&row)?,
                RowKind::Event => {}
            }
        }
        Ok(())
    }

    fn compare_all(&mut self, made: &Row) {
        if let Some(given) = self.given.rows.get(self.n_rows) {
            self.is_same &= is_row(given, made);
        }
        self.n_rows += 1;
    }

    fn command(&mut self, made: &Row) -> Result<(), ImportError> {
        let Some(next) = self.next.filter(|_| !self.is_beyond) else {
            self.is_beyond = true;
            return Ok(());
        };
        let given = &self.given.rows[next];
        let node = made.payload.get("nodeId").and_then(Value::as_str);
        // Engines may name the node at which an execution was cancelled, and need not name the one that failed it.
        let is_node = match (made.name, given.node()) {
            ("CancelExecution", _) | ("FailNode", None) => true,
            (_, given) => given == node,
        };
        if given.name != made.name || !is_node {
            return Err(self.differs(next, Some((made.name, node))));
        }
        let compared = match made.name {
            "CompleteNode" => Some("output"),
            "FailNode" => Some("reason"),
            _ => None,
        };
        if let Some(member) = compared
            && !is_member(given, &made.payload, member)
        {
            let node = node.unwrap_or_default();
            let reason = format!("{member} is not what the definition makes of node \"{node}\"");
            return Err(RowError::new(next, reason).into());
        }
        self.n_commands += 1;
        self.last = next;
        self.next = self.given.command_from(next + 1);
        Ok(())
    }

    /// Looks for a state among the rows up to the next command.
    fn state(&self, made: &Row) -> Result<(), ImportError> {
        if self.is_beyond {
            return Ok(());
        }
        let node = made.payload.get("nodeId").and_then(Value::as_str);
        let end = self.next.unwrap_or(self.given.rows.len());
        let rows = self.given.rows[..end].iter().enumerate().skip(self.last + 1);
        let mut other = None;
        for (index, row) in rows.filter(|(_, row)| row.is_event("StateUpdated") && row.node() == node) {
            if is_member(row, &made.payload, "state") {
                return Ok(());
            }
            other = Some(index);
        }
        match (other, self.next) {
            (Some(index), _) => {
                let reason = "state is not what the definition makes of the rows before";
                Err(RowError::new(index, reason).into())
            }
            (None, Some(next)) => {
                let node = node.unwrap_or_default();
                Err(RowError::new(
                    next,
                    format!("StateUpdated of node \"{node}\" is missing before it"),
                )
                .into())
            }
            // The history ends here.
            (None, None) => Ok(()),
        }
    }

    /// The run decides something else than the command of a row: `actual`, or nothing more.
    pub(super) fn differs(&self, row: usize, actual: Option<(&str, Option<&str>)>) -> ImportError {
        let given = &self.given.rows[row];
        let mut expected = json!({ "name": given.name, "seq": row + 1 });
        if let Some(node) = given.node() {
            expected["nodeId"] = node.into();
        }
        let actual = match actual {
            None => Value::Null,
            Some((name, None)) => json!({ "name": name }),
            Some((name, Some(node))) => json!({ "name": name, "nodeId": node }),
        };
        ImportError::Differs {
            index: self.n_commands + 1,
            seq: row as u64 + 1,
            expected,
            actual,
        }
    }
}

fn is_member(given: &GivenRow, made: &Object, name: &str) -> bool {
    match (given.payload.get(name), made.get(name)) {
        (Some(given), Some(made)) => agrees(given, made),
        (None, None) => true,
        (Some(given), None) => given.is_null(),
        (None, Some(made)) => made.is_null(),
    }
}

fn is_row(given: &GivenRow, made: &Row) -> bool {
    let shown = |payload: &Object| payload.keys().filter(|name| !is_name(name)).count();
    given.kind == made.kind
        && given.name == made.name
        && shown(&given.payload) == shown(&made.payload)
        && made.payload.iter().all(|(name, made)| {
            is_name(name) || given.payload.get(name).is_some_and(|given| agrees(given, made))
        })
}

fn is_name(name: &str) -> bool {
    NAMES.contains(&name)
}
