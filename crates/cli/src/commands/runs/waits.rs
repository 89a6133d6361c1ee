//! What a run that goes on waits for, from its events.
//!
//! Questions are left out: they are in the run's document, with the way to answer them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use wopr_wire::openwop::{event::RunEventDoc, run::RunSnapshot};

use crate::{client::Client, render};

/// The most waits that are shown.
const MAX_SHOWN: usize = 20;

/// The latest that a node waits for.
#[derive(Debug)]
enum Wait {
    /// Nothing outside of the run.
    Nothing,
    /// A time, and since when.
    Timer {
        since: String,
    },
    Activity {
        queue: String,
        since: String,
    },
    Call {
        provider: String,
        since: String,
    },
    /// A call that the peer has accepted.
    Accepted {
        by: String,
        since: String,
    },
    /// The time and the cause of the next attempt.
    Retry(String),
    /// Another attempt after the one that a pause cut.
    Resume,
    Child {
        run: String,
        workflow: String,
    },
}

/// Describes what a run waits for. What cannot be read is left out.
pub(super) async fn of(client: &Client, run: &str, snapshot: &RunSnapshot) -> Vec<String> {
    let Ok(log) = client.log(run).await else {
        return Vec::new();
    };
    let events = log.into_iter().map(serde_json::from_value::<RunEventDoc>);
    let mut waits = fold(events.filter_map(Result::ok));
    note_cut(&mut waits, &snapshot.node_states);
    let has_activity = waits.values().any(|wait| matches!(wait, Wait::Activity { .. }));
    let queues = match has_activity {
        true => client.get("/v1/host/wopr/workers").await.unwrap_or_default(),
        false => Value::Null,
    };
    let mut lines: Vec<_> = waits
        .iter()
        .filter_map(|(node, wait)| line(node, wait, &queues))
        .collect();
    if lines.len() > MAX_SHOWN {
        let more = lines.len() - MAX_SHOWN;
        lines.truncate(MAX_SHOWN);
        lines.push(format!("{more} more; see the events of the run"));
    }
    lines
}

/// Corrects the waits of nodes whose attempt a pause has cut, which the events of these nodes do not say.
fn note_cut(waits: &mut BTreeMap<String, Wait>, states: &Map<String, Value>) {
    for (node, wait) in waits {
        let state = states.get(node).map_or("", |state| render::text(state, "status"));
        if state == "retrying" && matches!(wait, Wait::Timer { .. } | Wait::Call { .. } | Wait::Nothing) {
            *wait = Wait::Resume;
        }
    }
}

/// Nodes and what they wait for.
fn fold(events: impl Iterator<Item = RunEventDoc>) -> BTreeMap<String, Wait> {
    let mut waits = BTreeMap::new();
    for event in events {
        let Some(node) = event.node_id.clone() else {
            continue;
        };
        let (payload, since) = (&event.payload, event.timestamp.to_string());
        let text = |name: &str| render::text(payload, name).to_owned();
        let wait = match event.event_type.as_str() {
            "node.started" if text("typeId") == "core.delay" => Wait::Timer { since },
            "vendor.wopr.effect.scheduled" => match text("queue") {
                queue if queue.is_empty() => Wait::Call {
                    provider: text("provider"),
                    since,
                },
                queue => Wait::Activity { queue, since },
            },
            "vendor.wopr.effect.accepted" => Wait::Accepted {
                by: match text("taskId") {
                    task if task.is_empty() => text("peer"),
                    task => format!("{}, task {task}", text("peer")),
                },
                since,
            },
            "node.retried" => Wait::Retry(render::retry(payload, event.timestamp)),
            "node.dispatched" => Wait::Child {
                run: text("childRunId"),
                workflow: text("childWorkflowId"),
            },
            "node.started" | "node.suspended" | "node.resumed" | "vendor.wopr.effect.ended" => Wait::Nothing,
            "node.completed" | "node.failed" | "node.skipped" | "node.cancelled" => {
                waits.remove(&node);
                continue;
            }
            // The others say nothing of a wait.
            _ => continue,
        };
        waits.insert(node, wait);
    }
    waits
}

fn line(node: &str, wait: &Wait, workers: &Value) -> Option<String> {
    let waits = match wait {
        Wait::Nothing => return None,
        Wait::Timer { since } => format!("a timer, since {since}"),
        Wait::Activity { queue, since } => {
            format!(
                "a worker of the queue '{queue}', since {since}{}",
                taken(queue, workers)
            )
        }
        Wait::Call { provider, since } => format!("the answer to a call ({provider}), since {since}"),
        Wait::Accepted { by, since } => format!("the answer of {by}, since {since}"),
        Wait::Retry(retry) => format!("a retry: {retry}"),
        Wait::Resume => "its next attempt, after a pause".to_owned(),
        Wait::Child { run, workflow } => format!("the run {run} of {workflow}"),
    };
    Some(format!("{waits} ({node})"))
}

/// Whether workers have taken activities of a queue, as far as the server says.
fn taken(queue: &str, workers: &Value) -> String {
    let of = |list: &str| {
        let listed = workers.get(list).and_then(Value::as_array).into_iter().flatten();
        listed.filter(|item| render::text(item, "queue") == queue)
    };
    let Some(counts) = of("queues").next() else {
        return String::new();
    };
    let leased = counts.get("leased").and_then(Value::as_u64).unwrap_or_default();
    match (leased, of("workers").count()) {
        (0, 0) => "; no worker has called for it in the last ten minutes".to_owned(),
        (0, _) => "; no worker has taken it".to_owned(),
        (1, _) => "; workers have taken 1 activity of the queue".to_owned(),
        (n, _) => format!("; workers have taken {n} activities of the queue"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wopr_wire::time::Timestamp;

    use super::*;

    fn event(sequence: u64, kind: &str, node: &str, payload: Value) -> RunEventDoc {
        RunEventDoc {
            event_id: format!("run_1.{sequence}"),
            run_id: "run_1".to_owned(),
            node_id: Some(node.to_owned()),
            event_type: kind.to_owned(),
            sequence,
            timestamp: Timestamp::parse("2026-01-01T00:00:00.000Z").unwrap(),
            schema_version: 1,
            engine_version: None,
            causation_id: None,
            payload,
        }
    }

    fn lines(events: Vec<RunEventDoc>, workers: &Value) -> Vec<String> {
        let waits = fold(events.into_iter());
        let lines = waits.iter().filter_map(|(node, wait)| line(node, wait, workers));
        lines.collect()
    }

    #[test]
    fn the_latest_wait_of_each_node_is_shown() {
        let at = "since 2026-01-01T00:00:00.000Z";
        let error = json!({ "code": "boom", "message": "it broke" });
        let events = vec![
            event(0, "node.started", "a", json!({ "typeId": "core.a2a.invoke" })),
            event(
                1,
                "vendor.wopr.effect.scheduled",
                "a",
                json!({ "provider": "core.a2a.invoke" }),
            ),
            event(
                2,
                "node.retried",
                "a",
                json!({ "attempt": 1, "delayMs": 1000, "lastError": error }),
            ),
            event(3, "node.started", "b", json!({ "typeId": "core.delay" })),
            event(
                4,
                "vendor.wopr.effect.scheduled",
                "c",
                json!({ "provider": "core.activity", "queue": "q" }),
            ),
            event(
                5,
                "node.dispatched",
                "d",
                json!({ "childRunId": "run_2", "childWorkflowId": "w" }),
            ),
            event(
                6,
                "vendor.wopr.effect.accepted",
                "e",
                json!({ "peer": "planner", "taskId": "t" }),
            ),
            event(7, "node.started", "f", json!({ "typeId": "core.delay" })),
            event(8, "node.completed", "f", json!({})),
            event(9, "node.started", "g", json!({ "typeId": "core.approvalGate" })),
            event(10, "node.suspended", "g", json!({})),
        ];
        assert_eq!(
            lines(events, &Value::Null),
            [
                "a retry: attempt 1 at 2026-01-01T00:00:01.000Z, after boom: it broke (a)".to_owned(),
                format!("a timer, {at} (b)"),
                format!("a worker of the queue 'q', {at} (c)"),
                "the run run_2 of w (d)".to_owned(),
                format!("the answer of planner, task t, {at} (e)"),
            ]
        );
    }

    #[test]
    fn a_node_that_a_pause_cut_waits_for_its_next_attempt() {
        let events = [
            event(0, "node.started", "a", json!({ "typeId": "core.delay" })),
            event(
                1,
                "vendor.wopr.effect.scheduled",
                "b",
                json!({ "provider": "core.activity", "queue": "q" }),
            ),
        ];
        let mut waits = fold(events.into_iter());
        let states = json!({ "a": { "status": "retrying" }, "b": { "status": "running" } });
        note_cut(&mut waits, states.as_object().unwrap());
        let lines = waits
            .iter()
            .filter_map(|(node, wait)| line(node, wait, &Value::Null));
        assert_eq!(
            lines.collect::<Vec<_>>(),
            [
                "its next attempt, after a pause (a)",
                "a worker of the queue 'q', since 2026-01-01T00:00:00.000Z (b)"
            ]
        );
    }

    #[test]
    fn an_activity_says_whether_workers_are_there() {
        let queue = |leased: u64| json!([{ "queue": "q", "waiting": 1, "leased": leased }]);
        for (workers, said) in [
            (json!({ "queues": [], "workers": [] }), ""),
            (
                json!({ "queues": queue(0), "workers": [{ "queue": "other" }] }),
                "; no worker has called for it in the last ten minutes",
            ),
            (
                json!({ "queues": queue(0), "workers": [{ "queue": "q" }] }),
                "; no worker has taken it",
            ),
            (
                json!({ "queues": queue(2), "workers": [] }),
                "; workers have taken 2 activities of the queue",
            ),
        ] {
            assert_eq!(taken("q", &workers), said);
        }
    }
}
