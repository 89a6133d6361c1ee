//! What clients were told, and which promises turned out broken.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

/// The most characters of a violation.
const MOST: usize = 600;

/// What clients were told.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    runs: BTreeMap<String, Run>,
    violations: Vec<String>,
}

/// What is known of an acknowledged run.
#[derive(Debug, Clone, Default)]
pub(super) struct Run {
    /// The input that tells it from all others; a request with an idempotency key of this name made it.
    pub(super) marker: String,
    /// A decision was acknowledged: it was accepted, or not.
    pub(super) is_accepted: Option<bool>,
    /// A cancel was acknowledged.
    pub(super) is_cancelled: bool,
    /// Events a stream showed, by sequence: the id and type.
    pub(super) seen: BTreeMap<u64, (String, String)>,
}

impl Ledger {
    /// A promise is broken.
    pub(super) fn violated(&self, what: impl Into<String>) {
        let mut what: String = what.into();
        // Whole documents would bury the rest.
        let end = what.char_indices().nth(MOST).map_or(what.len(), |(at, _)| at);
        what.truncate(end);
        self.0.lock().unwrap().violations.push(what);
    }

    /// Notes a violation unless it holds.
    pub(super) fn hold(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violated(what());
        }
    }

    /// A request was answered by a run. The same request must be answered by the same run for ever.
    pub(super) fn acknowledged(&self, marker: &str, run: &str) {
        let mut told = self.0.lock().unwrap();
        let known = told.runs.entry(run.to_owned()).or_insert_with(|| Run {
            marker: marker.to_owned(),
            ..Run::default()
        });
        if known.marker != marker {
            let what = format!("run {run} answers both {} and {marker}", known.marker);
            told.violations.push(what);
        }
    }

    /// Something about an acknowledged run was acknowledged.
    pub(super) fn learned(&self, run: &str, what: impl FnOnce(&mut Run)) {
        what(
            self.0
                .lock()
                .unwrap()
                .runs
                .get_mut(run)
                .expect("the run was acknowledged"),
        );
    }

    /// A stream showed an event. The same place must show the same event for ever.
    pub(super) fn saw(&self, run: &str, sequence: u64, id: &str, event: &str) {
        let shown = (id.to_owned(), event.to_owned());
        let mut told = self.0.lock().unwrap();
        let Some(known) = told.runs.get_mut(run) else {
            return;
        };
        let before = known.seen.insert(sequence, shown.clone());
        if before.as_ref().is_some_and(|before| *before != shown) {
            let what = format!("run {run} showed {before:?} and {shown:?} at {sequence}");
            told.violations.push(what);
        }
    }

    /// Every acknowledged run.
    pub(super) fn runs(&self) -> BTreeMap<String, Run> {
        self.0.lock().unwrap().runs.clone()
    }

    /// The markers of every acknowledged run.
    pub(super) fn markers(&self) -> BTreeSet<String> {
        self.0
            .lock()
            .unwrap()
            .runs
            .values()
            .map(|run| run.marker.clone())
            .collect()
    }

    /// Every broken promise.
    pub(super) fn violations(&self) -> Vec<String> {
        self.0.lock().unwrap().violations.clone()
    }
}
