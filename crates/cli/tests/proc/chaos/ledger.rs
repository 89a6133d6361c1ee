//! Records what clients were promised, and which promises were broken.

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

/// Maximum length of a violation in characters.
const MOST: usize = 600;
/// Maximum number of violations kept: a single bug may cause many.
const MOST_VIOLATIONS: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    told: Mutex<Told>,
    pub(super) exchanges: Exchanges,
}

/// Counts of how requests ended, to show that the faults had an effect.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    pub(super) answered: AtomicU64,
    /// With 503.
    pub(super) refused: AtomicU64,
    pub(super) lost: AtomicU64,
    /// The client timed out.
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

/// An acknowledged push subscription.
#[derive(Debug, Clone)]
pub(super) struct Subscription {
    pub(super) run: String,
    pub(super) name: String,
    /// The A2A version of the pushes.
    pub(super) version: Version,
    pub(super) since: Since,
}

/// The first event that a receiver must get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Since {
    /// All events: the subscription came with the message that started the run.
    Beginning,
    /// Events after the interrupt that was open.
    Question,
}

/// What is known about an acknowledged run.
#[derive(Debug, Clone, Default)]
pub(super) struct Run {
    /// A unique input, which is also the idempotency key of the run.
    pub(super) marker: String,
    /// The acknowledged decision.
    pub(super) decision: Decision,
    pub(super) is_cancelled: bool,
    /// The message that started the run, if any.
    pub(super) message: Option<Request>,
}

/// What clients know about the answer to a run's interrupt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Decision {
    /// No client answered, or there is no interrupt. The final checks accept it.
    #[default]
    None,
    Accepted,
    Rejected,
    /// Two clients answered, and it is not known who was first.
    Either,
}

impl Ledger {
    /// Records a violation.
    pub(super) fn violated(&self, what: impl Into<String>) {
        let mut what: String = what.into();
        // Longer documents would hide the rest.
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

    /// Records a violation unless the condition holds.
    pub(super) fn hold(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violated(what());
        }
    }

    /// Records that a request was answered with a run. Repeating the request must always return the same run.
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

    /// Records an acknowledged fact about a run.
    pub(super) fn learned(&self, run: &str, what: impl FnOnce(&mut Run)) {
        let mut told = self.told.lock().unwrap();
        what(told.runs.get_mut(run).expect("the run was acknowledged"));
    }

    /// Records what an observer saw of a run.
    pub(super) fn saw(&self, sighting: Sighting) {
        self.told.lock().unwrap().sightings.push(sighting);
    }

    /// Records an acknowledged subscription.
    pub(super) fn subscribed(&self, subscription: Subscription) {
        self.told.lock().unwrap().subscriptions.push(subscription);
    }

    pub(super) fn subscriptions(&self) -> Vec<Subscription> {
        self.told.lock().unwrap().subscriptions.clone()
    }

    pub(super) fn runs(&self) -> BTreeMap<String, Run> {
        self.told.lock().unwrap().runs.clone()
    }

    pub(super) fn markers(&self) -> BTreeSet<String> {
        let told = self.told.lock().unwrap();
        told.runs.values().map(|run| run.marker.clone()).collect()
    }

    pub(super) fn sightings(&self) -> Vec<Sighting> {
        self.told.lock().unwrap().sightings.clone()
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.told.lock().unwrap().violations.clone()
    }

    /// All records, for the analysis of a failure.
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
