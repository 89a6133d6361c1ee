//! The outcomes in an imported history of activities that its host did in process.
//!
//! An import writes them to the metadata of its run, by node, visit and attempt. Decisions read them there, so the run decides
//! again what its rows say. They apply up to the time of the import: this host does all later activities, and a branch from
//! within the history does those again that come after its beginning.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use wopr_kernel::{Failure, IMPORTED, Object, StepId, Timestamp};

use crate::decide::Next;

/// The member of the metadata with the outcomes, beside the time of the import.
pub(crate) const ACTIVITIES: &str = "activities";
pub(crate) const AT: &str = "at";

/// The outcomes of all activities: those of a visit's attempts in their order, for each visit of a node.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Activities(pub(crate) BTreeMap<String, Vec<Vec<Recorded>>>);

/// The outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Recorded {
    Completed(Object),
    Failed(Failure),
    /// The run waited for it, so the import gives it to the run where the rows have it.
    Later,
}

/// Finds the outcome of an attempt in the history.
pub(crate) fn recorded(next: &Next<'_>, step: &StepId, attempt: u32) -> Option<Recorded> {
    let imported = next.run.started.as_ref()?.metadata.get(IMPORTED)?;
    let at = imported.get(AT).and_then(Value::as_str);
    let at = at.and_then(Timestamp::parse_text)?;
    let visits = imported.get(ACTIVITIES)?.get(step.node.as_str())?;
    let outcome = visits.get(index(step.ordinal))?.get(index(attempt))?;
    let outcome = Recorded::deserialize(outcome).ok()?;
    (next.input.now <= at).then_some(outcome)
}

fn index(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
