//! A place in a history from which its rows can be made without the events before it.

use std::collections::HashMap;

use wopr_kernel::{RunId, Seq, StepId, Timestamp, cost};

use super::{Came, HistoryWriter, Notes, Wanted};
use crate::{options::ActivityMode, plan::Plan, state::State};

/// All that a [`HistoryWriter`] knows of the events it has read. It follows from them, so it is as good for any later
/// reader of the same run.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryPosition {
    next: Seq,
    execution: String,
    is_named: bool,
    state: State,
    mode: ActivityMode,
    at: Timestamp,
    n_checkpoints: u64,
    notes: HashMap<usize, Notes>,
    came: Option<(StepId, Came)>,
    failed: bool,
    n_rows: u64,
    last_checkpoint: Option<u64>,
}

impl HistoryPosition {
    /// The first event after it.
    #[must_use]
    pub const fn next_event(&self) -> Seq {
        self.next
    }

    /// The rows before it.
    #[must_use]
    pub const fn n_rows(&self) -> u64 {
        self.n_rows
    }

    /// The units of work that copying it takes, which say how large it is.
    #[must_use]
    pub fn weight(&self) -> u64 {
        let tasks = self
            .notes
            .values()
            .filter_map(|notes| notes.external_task.as_ref());
        let came = match &self.came {
            Some((_, Came::Result(Some(value)) | Came::Task(Some(value)))) => cost::of_value(value),
            Some((_, Came::Result(None) | Came::Task(None) | Came::Mocked)) | None => 0,
        };
        self.state.weight() + tasks.map(cost::of_value).sum::<u64>() + came
    }
}

impl<'p> HistoryWriter<'p> {
    /// A writer that goes on at a place of the same run's history.
    #[must_use]
    pub fn from_position(plan: &'p Plan, run: &'p RunId, wanted: Wanted, position: HistoryPosition) -> Self {
        let HistoryPosition {
            next,
            execution,
            is_named,
            state,
            mode,
            at,
            n_checkpoints,
            notes,
            came,
            failed,
            n_rows,
            last_checkpoint,
        } = position;
        Self {
            plan,
            run,
            next,
            execution,
            is_named,
            wanted,
            n_bytes: 0,
            state,
            mode,
            at,
            n_checkpoints,
            notes,
            came,
            failed,
            rows: Vec::new(),
            n_rows,
            last_checkpoint,
        }
    }

    /// The place after the events that were recorded.
    #[must_use]
    pub fn position(&self) -> HistoryPosition {
        HistoryPosition {
            next: self.next,
            execution: self.execution.clone(),
            is_named: self.is_named,
            state: self.state.clone(),
            mode: self.mode,
            at: self.at,
            n_checkpoints: self.n_checkpoints,
            notes: self.notes.clone(),
            came: self.came.clone(),
            failed: self.failed,
            n_rows: self.n_rows,
            last_checkpoint: self.last_checkpoint,
        }
    }

    /// How many rows there are so far.
    #[must_use]
    pub const fn n_rows(&self) -> u64 {
        self.n_rows
    }
}
