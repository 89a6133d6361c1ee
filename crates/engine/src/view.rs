//! Read models: a folded run with its plan, and pages of its log.

use std::{error::Error, sync::Arc};

use wopr_core::{Plan, Recorded, Run, RunKey, RunStatus, Seq, format};
use wopr_store::{Cause, InboxRow, Loaded, ReadError, Snapshot, StoredEvent, Summary};

use crate::load_budget::LoadPermit;

/// A run as of one moment.
#[derive(Debug, Clone)]
pub struct View {
    pub key: RunKey,
    /// The version that the run is pinned to.
    pub plan: Arc<Plan>,
    /// The fold of the run's log.
    pub run: Run,
    pub summary: Summary,
    /// The events of the command that returned the view, if it ended the run with
    /// [`is_log_unread`](crate::SideRows::is_log_unread). No cache has them then.
    pub(crate) last_events: Vec<Recorded>,
    /// Set if the command that returned the view stopped at its limit, and its caller goes on
    /// ([`continues`](crate::SideRows::continues)).
    pub(crate) continues: Option<Sizes>,
    /// Permit for the memory of the run.
    pub(crate) held: LoadPermit,
}

impl View {
    /// Returns the run as it was before its first event. It needs no load permit.
    #[must_use]
    pub fn unstarted(self) -> Self {
        Self {
            run: Run::default(),
            last_events: Vec::new(),
            continues: None,
            held: LoadPermit::default(),
            ..self
        }
    }

    /// At most `limit` events starting at `from`, if the view has them all. `None` says nothing about the log.
    #[must_use]
    pub fn last_events(&self, from: Seq, limit: usize) -> Option<&[Recorded]> {
        let first = self.last_events.first()?.seq;
        let skipped = usize::try_from(from.0.checked_sub(first.0)?).ok()?;
        let events = self.last_events.get(skipped..)?;
        Some(&events[..limit.min(events.len())])
    }
}

/// The sizes of a run that the next decision takes over without loading it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Bytes of the events after the snapshot.
    pub(crate) n_tail_bytes: usize,
    /// Bytes of the run, reckoned from what it was loaded with and what was appended since.
    pub(crate) n_run_bytes: usize,
}

/// A page of a log.
#[derive(Debug, Clone)]
pub struct Events {
    pub events: Vec<Recorded>,
    /// Number of events in the log.
    pub head: Seq,
    /// The run's status as of `head`.
    pub status: RunStatus,
}

/// A run loaded to be inspected and then commanded with [`crate::Engine::command_opened`].
#[derive(Debug)]
pub struct Opened(pub(crate) Open);

impl Opened {
    #[must_use]
    pub fn view(&self) -> &View {
        &self.0.view
    }
}

/// A run as loaded for a decision.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) view: View,
    pub(crate) inbox: Vec<InboxRow>,
    /// The inbox may hold more rows than were read.
    pub(crate) is_inbox_cut: bool,
    /// Bytes of the events after the snapshot.
    pub(crate) n_tail_bytes: usize,
    /// Bytes of the stored run, if it comes from memory: it has no permit that says so then.
    pub(crate) n_run_bytes: usize,
}

pub(crate) fn decode_events(stored: &[StoredEvent]) -> Result<Vec<Recorded>, ReadError> {
    stored
        .iter()
        .map(|event| {
            format::decode_event(event.seq, &event.body).map_err(|error| ReadError::Corrupt(Cause::of(error)))
        })
        .collect()
}

/// The stored form of a run cannot be decoded.
pub(crate) fn corrupt(key: &RunKey, error: impl Error + Send + Sync + 'static) -> ReadError {
    ReadError::Corrupt(Cause::about(format!("run {key}: {error}"), error))
}

/// Whether the log has to be folded from its start, because its snapshot is of another fold.
pub(crate) fn is_of_other_fold(plan: &Plan, loaded: &Loaded) -> bool {
    let snapshot = loaded.snapshot.as_ref();
    snapshot.is_some_and(|snapshot| !format::is_of_this_fold(plan.dialect(), &snapshot.body))
}

/// Decodes a snapshot.
pub(crate) fn decode_base(key: &RunKey, plan: &Plan, snapshot: &Snapshot) -> Result<Run, ReadError> {
    format::decode_run(plan.dialect(), &snapshot.body).map_err(|error| corrupt(key, error))
}

/// Folds a loaded run.
pub(crate) fn open(
    key: &RunKey,
    plan: Arc<Plan>,
    loaded: Loaded,
    held: LoadPermit,
) -> Result<Open, ReadError> {
    let base = match &loaded.snapshot {
        None => Run::default(),
        Some(snapshot) => decode_base(key, &plan, snapshot)?,
    };
    let n_tail_bytes = loaded.tail.iter().map(|event| event.body.len()).sum();
    let is_inbox_cut = loaded.is_inbox_cut();
    let tail = decode_events(&loaded.tail)?;
    let run = base.fold(&plan, &tail).map_err(|error| corrupt(key, error))?;
    if run.head != loaded.head {
        let why = format!(
            "run {key}: the log folds to {}, its row says {}",
            run.head, loaded.head
        );
        return Err(ReadError::Corrupt(why.into()));
    }
    let view = View {
        key: key.clone(),
        plan,
        run,
        summary: loaded.summary,
        last_events: Vec::new(),
        continues: None,
        held,
    };
    Ok(Open {
        view,
        inbox: loaded.inbox,
        is_inbox_cut,
        n_tail_bytes,
        n_run_bytes: 0,
    })
}
