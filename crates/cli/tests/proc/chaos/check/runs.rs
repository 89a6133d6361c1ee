//! Invariants of ended runs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::chaos::{
    ledger::{Decision, Ledger, Run},
    peer::Peer,
};

#[derive(Debug)]
pub(super) struct Ended {
    pub(super) id: String,
    pub(super) snapshot: Value,
    pub(super) events: Vec<Value>,
    /// Answered only in order to finish the run.
    pub(super) was_answered: bool,
}

impl Ended {
    pub(super) fn workflow(&self) -> &str {
        self.snapshot["workflowId"].as_str().unwrap_or("?")
    }

    pub(super) fn status(&self) -> &str {
        self.snapshot["status"].as_str().unwrap_or("?")
    }

    fn parent(&self) -> Option<&str> {
        self.snapshot["parentRunId"].as_str()
    }

    fn of_kind<'e>(&'e self, wanted: &'e str) -> impl Iterator<Item = &'e Value> {
        self.events.iter().filter(move |event| kind(event) == wanted)
    }
}

fn kind(event: &Value) -> &str {
    event["type"].as_str().unwrap_or_default()
}

fn is_terminal(kind: &str) -> bool {
    matches!(kind, "run.completed" | "run.failed" | "run.cancelled")
}

/// Invariants of every log.
pub(super) fn check_log(ledger: &Ledger, run: &Ended) {
    let Ended { id, events, .. } = run;
    for (sequence, event) in events.iter().enumerate() {
        ledger.hold(event["sequence"] == sequence, || {
            format!("run {id} has {event} where {sequence} belongs")
        });
        ledger.hold(event["runId"] == id.as_str(), || {
            format!("run {id} has the event {event}")
        });
    }
    for pair in events.windows(2) {
        let [before, after] = pair else { continue };
        let is_ordered = before["timestamp"].as_str() <= after["timestamp"].as_str();
        ledger.hold(is_ordered && before["timestamp"].is_string(), || {
            format!("run {id} has {after} after {before}")
        });
    }
    let ids: BTreeSet<&str> = events
        .iter()
        .filter_map(|event| event["eventId"].as_str())
        .collect();
    ledger.hold(ids.len() == events.len(), || {
        format!("run {id} has two events of one id")
    });
    let ends = events.iter().filter(|event| is_terminal(kind(event))).count();
    let last = events.last().map_or("", kind);
    ledger.hold(ends == 1 && is_terminal(last), || {
        format!("run {id} has {ends} terminal events and {last} last")
    });
    let status = run.status();
    ledger.hold(last.strip_prefix("run.") == Some(status), || {
        format!("run {id} is {status} after {last}")
    });
    // Each interrupt is resolved once, however many answers were sent.
    for (asked, answered) in [
        ("approval.requested", "approval.received"),
        ("clarification.requested", "clarification.resolved"),
    ] {
        let (n_asked, n_answered) = (run.of_kind(asked).count(), run.of_kind(answered).count());
        let is_even = n_asked == n_answered || status == "cancelled" && n_answered < n_asked;
        ledger.hold(is_even && n_asked <= 1, || {
            format!("run {id} is {status} with {n_asked} {asked} and {n_answered} {answered}")
        });
    }
}

/// Compares a run with what was acknowledged about it.
pub(super) fn check_told(ledger: &Ledger, run: &Ended, told: &Run) {
    let Run {
        marker,
        decision,
        is_cancelled,
        message: _,
    } = told;
    let id = &run.id;
    let recorded = run
        .of_kind("approval.received")
        .find_map(|event| event.pointer("/payload/action")?.as_str());
    let expected = match (is_cancelled, decision) {
        (true, _) => "cancelled",
        (false, Decision::None | Decision::Accepted) => "completed",
        (false, Decision::Rejected) => "failed",
        (false, Decision::Either) if recorded == Some("reject") => "failed",
        (false, Decision::Either) => "completed",
    };
    let status = run.status();
    ledger.hold(status == expected, || {
        format!(
            "run {id} ({marker}) is {status}, not {expected}: {}",
            run.snapshot["error"]
        )
    });
    let is_recorded = match decision {
        Decision::None | Decision::Either => true,
        Decision::Accepted | Decision::Rejected if run.workflow() != "approval" => true,
        Decision::Accepted => recorded == Some("accept"),
        Decision::Rejected => recorded == Some("reject"),
    };
    ledger.hold(is_recorded, || {
        format!("run {id} acknowledged {decision:?} and has {recorded:?}")
    });
}

/// Each idempotency key has created one run, whether or not it was acknowledged.
pub(super) fn check_keys(ledger: &Ledger, ended: &[Ended]) {
    let mut by_marker: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for run in ended.iter().filter(|run| run.parent().is_none()) {
        let input = |name: &str| run.snapshot["inputs"][name].as_str();
        match input("marker").or_else(|| input("prompt")) {
            Some(marker) => by_marker.entry(marker).or_default().push(&run.id),
            None => ledger.violated(format!(
                "run {} has no marker: {}",
                run.id, run.snapshot["inputs"]
            )),
        }
    }
    for (marker, runs) in &by_marker {
        ledger.hold(runs.len() == 1, || {
            format!("the key {marker} made the runs {runs:?}")
        });
    }
    for marker in ledger.markers() {
        ledger.hold(by_marker.contains_key(marker.as_str()), || {
            format!("no run has the marker {marker}")
        });
    }
}

/// Parents and children refer to each other, each node has one child, and both have the same final status.
pub(super) fn check_trees(ledger: &Ledger, ended: &[Ended]) {
    let by_id: BTreeMap<&str, &Ended> = ended.iter().map(|run| (run.id.as_str(), run)).collect();
    let mut parents: BTreeMap<&str, &str> = BTreeMap::new();
    for parent in ended {
        let mut nodes = BTreeSet::new();
        for event in parent.of_kind("node.dispatched") {
            let child = event.pointer("/payload/childRunId").and_then(Value::as_str);
            let Some(child) = child.and_then(|child| by_id.get(child)) else {
                ledger.violated(format!("run {} has no child for {event}", parent.id));
                continue;
            };
            ledger.hold(parents.insert(&child.id, &parent.id).is_none(), || {
                format!("run {} was dispatched twice", child.id)
            });
            ledger.hold(nodes.insert(event["nodeId"].as_str()), || {
                format!("run {} dispatched twice from one node: {event}", parent.id)
            });
            ledger.hold(child.parent() == Some(&parent.id), || {
                format!(
                    "run {} is a child of {} and says {:?}",
                    child.id,
                    parent.id,
                    child.parent()
                )
            });
            // A cancel may reach a child that has already completed.
            let is_alike = parent.status() == child.status()
                || parent.status() == "cancelled" && child.status() == "completed";
            ledger.hold(is_alike, || {
                format!(
                    "run {} is {} and its child {} is {}",
                    parent.id,
                    parent.status(),
                    child.id,
                    child.status()
                )
            });
        }
    }
    for run in ended {
        ledger.hold(run.parent() == parents.get(run.id.as_str()).copied(), || {
            format!(
                "run {} names a parent that does not know it: {:?}",
                run.id,
                run.parent()
            )
        });
    }
}

/// Each effect was attempted with a single key, despite all crashes; and a completed run performed each of
/// its effects at least once.
pub(super) fn check_calls(ledger: &Ledger, peer: &Peer, ended: &[Ended]) -> usize {
    let calls = peer.calls();
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for (path, (keys, _)) in &calls {
        ledger.hold(keys.len() == 1, || {
            format!("the effect {path} was called with the keys {keys:?}")
        });
        for key in keys {
            if let Some(other) = owners.insert(key, path) {
                ledger.violated(format!("the effects {other} and {path} share the key {key}"));
            }
        }
    }
    for run in ended.iter().filter(|run| run.workflow() == "effects") {
        let marker = run.snapshot["inputs"]["marker"].as_str().unwrap_or_default();
        for effect in ["one", "two"] {
            let performed = calls
                .get(&format!("/{marker}/{effect}"))
                .map_or(0, |(_, performed)| *performed);
            ledger.hold(performed > 0, || {
                format!(
                    "run {} completed and the effect {effect} was not performed",
                    run.id
                )
            });
        }
    }
    calls
        .values()
        .map(|(_, performed)| usize::try_from(*performed).expect("a count"))
        .sum()
}
