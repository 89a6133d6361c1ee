//! The outcomes that a history has of activities in process, for the [decisions](crate::recorded) of the import.

use std::collections::{BTreeMap, HashMap};

use wopr_kernel::{NodeId, Planned, Timestamp};

use super::{hidden, next};
use crate::{
    definition::Kind,
    plan::Plan,
    recorded::{Activities, Recorded},
    rows::{GivenRow, GivenRows, RowError, is_redacted},
    submit::output,
};

/// A visit of a node, as far as its rows were read.
#[derive(Debug, Default)]
struct Visit {
    outcomes: Vec<Recorded>,
    /// The outcome in a row that repeats an earlier row. It counts if no other row of the visit has an outcome.
    repeated: Option<Recorded>,
    /// When the last attempt was asked for: the number of commands so far, and the time.
    requested: (usize, Timestamp),
    has_ended: bool,
}

/// The outcomes of activities in the rows. Those of agents are not among them: an agent is always called.
///
/// # Errors
/// The history hides one.
pub(super) fn activities(plan: &Plan, given: &GivenRows) -> Result<Activities, RowError> {
    let mut visits: HashMap<NodeId, Vec<Visit>> = HashMap::new();
    let mut n_commands = 0;
    for (index, row) in given.rows.iter().enumerate() {
        n_commands += usize::from(row.is_any_command());
        let Some(node) = row.node().and_then(|node| activity(plan, node)) else {
            continue;
        };
        let visits = visits.entry(node).or_default();
        if row.is_command("ScheduleNode") {
            visits.push(Visit {
                requested: (n_commands, row.at),
                ..Visit::default()
            });
        }
        if let Some(visit) = visits.last_mut() {
            visit.read(index, row, n_commands)?;
        }
    }
    let nodes = visits.into_iter().map(|(node, visits)| {
        let visits = visits.into_iter().map(Visit::end).collect::<Result<_, _>>()?;
        Ok((node.to_string(), visits))
    });
    nodes.collect::<Result<BTreeMap<_, _>, _>>().map(Activities)
}

/// The node of this name, if it is an activity that a host does itself.
fn activity(plan: &Plan, node: &str) -> Option<NodeId> {
    let node = NodeId::parse(node).ok()?;
    let kind = &plan.at(plan.position(&node)?).kind;
    (kind.is_activity() && !matches!(kind, Kind::Delegate { .. })).then_some(node)
}

impl Visit {
    fn read(&mut self, index: usize, row: &GivenRow, n_commands: usize) -> Result<(), RowError> {
        let wanted = self.outcomes.len() as u64 + 1;
        let number = row.payload.get("attempt").and_then(serde_json::Value::as_u64);
        // Commands in between are those of other branches, which went on meanwhile.
        let is_at_once = self.requested == (n_commands, row.at);
        if self.has_ended {
            return Ok(());
        }
        if row.is_event("ActivityRequested") && number.is_none_or(|number| number == wanted) {
            self.requested = (n_commands, row.at);
        } else if row.is_event("ActivityFailed") && number.is_none_or(|number| number == wanted) {
            self.outcomes.push(match is_at_once {
                true => Recorded::Failed(next::failure(index, row)?),
                false => Recorded::Later,
            });
            self.has_ended = row.payload.get("willRetry") != Some(&true.into());
        } else if row.is_event("ActivityCompleted") {
            let result = row.payload.get("result").cloned().unwrap_or_default();
            let outcome = match is_at_once {
                true if is_redacted(&result) => return Err(hidden(index)),
                true => Recorded::Completed(output(result)),
                false => Recorded::Later,
            };
            match row.payload.get("replayed") == Some(&true.into()) {
                true => self.repeated = Some(outcome),
                false => {
                    self.outcomes.push(outcome);
                    self.has_ended = true;
                }
            }
        }
        Ok(())
    }

    fn end(mut self) -> Result<Vec<Recorded>, RowError> {
        if let Some(repeated) = self.repeated.filter(|_| !self.has_ended) {
            self.outcomes.push(repeated);
        }
        Ok(self.outcomes)
    }
}
