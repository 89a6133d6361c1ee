//! What clients were told, and which promises turned out broken.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use serde_json::{Value, json};

use super::{a2a::Version, caller::Request, observe::Sighting};

/// The most characters of a violation.
const MOST: usize = 600;
/// The most violations that are kept; what breaks once may break everywhere.
const MOST_VIOLATIONS: usize = 1_000;

/// What clients were told.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    told: Mutex<Told>,
    pub(super) exchanges: Exchanges,
}

/// How exchanges ended, to see that there was trouble.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    pub(super) answered: AtomicU64,
    /// By 503.
    pub(super) refused: AtomicU64,
    pub(super) lost: AtomicU64,
    /// The client lost its timeout.
    pub(super) abandoned: AtomicU64,
}

impl fmt::Display for Exchanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests answered, {} refused, {} lost, {} abandoned",
            self.answered.load(Relaxed),
            self.refused.load(Relaxed),
            self.lost.load(Relaxed),
            self.abandoned.load(Relaxed)
        )
    }
}

#[derive(Debug, Default)]
struct Told {
    runs: BTreeMap<String, Run>,
    sightings: Vec<Sighting>,
    subscriptions: Vec<Subscription>,
    violations: Vec<String>,
}

/// Somebody who was promised to be told of a run.
#[derive(Debug, Clone)]
pub(super) struct Subscription {
    pub(super) run: String,
    /// The name of the receiver.
    pub(super) name: String,
    /// In the words of this version.
    pub(super) version: Version,
    pub(super) since: Since,
}

/// What a receiver was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Since {
    /// Everything, for it came along with the message that made the run.
    Beginning,
    /// What comes after the question that was open.
    Question,
}

/// What is known of an acknowledged run.
#[derive(Debug, Clone, Default)]
pub(super) struct Run {
    /// The input that tells it from all others; a request with an idempotency key of this name made it.
    pub(super) marker: String,
    /// The decision that was acknowledged.
    pub(super) decision: Decision,
    /// A cancel was acknowledged.
    pub(super) is_cancelled: bool,
    /// The message that made it, if one did.
    pub(super) message: Option<Request>,
}

/// What clients know of the answer to a run's question.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Decision {
    /// Nobody here answered, or there is none. Whoever finishes the run accepts.
    #[default]
    None,
    Accepted,
    Rejected,
    /// Two clients answered, and which of them was first is not known.
    Either,
}

impl Ledger {
    /// A promise is broken.
    pub(super) fn violated(&self, what: impl Into<String>) {
        let mut what: String = what.into();
        // Whole documents would bury the rest.
        let end = what.char_indices().nth(MOST).map_or(what.len(), |(at, _)| at);
        what.truncate(end);
        let mut told = self.told.lock().unwrap();
        if told.violations.is_empty() {
            println!("first violation: {what}");
        }
        if told.violations.len() < MOST_VIOLATIONS {
            told.violations.push(what);
        }
    }

    /// Notes a violation unless it holds.
    pub(super) fn hold(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violated(what());
        }
    }

    /// A request was answered by a run. The same request must be answered by the same run for ever.
    pub(super) fn acknowledged(&self, marker: &str, run: &str) {
        let known = {
            let mut told = self.told.lock().unwrap();
            let known = told.runs.entry(run.to_owned()).or_insert_with(|| Run {
                marker: marker.to_owned(),
                ..Run::default()
            });
            known.marker.clone()
        };
        self.hold(known == marker, || {
            format!("run {run} answers both {known} and {marker}")
        });
    }

    /// Something about an acknowledged run was acknowledged.
    pub(super) fn learned(&self, run: &str, what: impl FnOnce(&mut Run)) {
        let mut told = self.told.lock().unwrap();
        what(told.runs.get_mut(run).expect("the run was acknowledged"));
    }

    /// An observer saw a part of a run.
    pub(super) fn saw(&self, sighting: Sighting) {
        self.told.lock().unwrap().sightings.push(sighting);
    }

    /// A receiver was acknowledged.
    pub(super) fn subscribed(&self, subscription: Subscription) {
        self.told.lock().unwrap().subscriptions.push(subscription);
    }

    /// Every acknowledged receiver.
    pub(super) fn subscriptions(&self) -> Vec<Subscription> {
        self.told.lock().unwrap().subscriptions.clone()
    }

    /// Every acknowledged run.
    pub(super) fn runs(&self) -> BTreeMap<String, Run> {
        self.told.lock().unwrap().runs.clone()
    }

    /// The markers of every acknowledged run.
    pub(super) fn markers(&self) -> BTreeSet<String> {
        let told = self.told.lock().unwrap();
        told.runs.values().map(|run| run.marker.clone()).collect()
    }

    /// Everything observers saw.
    pub(super) fn sightings(&self) -> Vec<Sighting> {
        self.told.lock().unwrap().sightings.clone()
    }

    /// Every broken promise.
    pub(super) fn violations(&self) -> Vec<String> {
        self.told.lock().unwrap().violations.clone()
    }

    /// All of it, for whoever looks into a failure.
    pub(super) fn document(&self) -> Value {
        let told = self.told.lock().unwrap();
        let runs = told.runs.iter().map(|(id, run)| {
            let Run {
                marker,
                decision,
                is_cancelled,
                message: _,
            } = run;
            let decision = format!("{decision:?}");
            (
                id.clone(),
                json!({"marker": marker, "decision": decision, "cancelled": is_cancelled}),
            )
        });
        let runs: serde_json::Map<String, Value> = runs.collect();
        let sightings: Vec<String> = told
            .sightings
            .iter()
            .map(|sighting| format!("{sighting:?}"))
            .collect();
        let subscriptions: Vec<String> = told
            .subscriptions
            .iter()
            .map(|subscription| format!("{subscription:?}"))
            .collect();
        json!({
            "violations": told.violations, "runs": runs, "sightings": sightings,
            "subscriptions": subscriptions,
        })
    }
}
