//! Event documents and the poll response (OpenWOP v1 sections 10.1 and 12.4).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::run::RunStatus;
use crate::time::Timestamp;

/// The contract version of all event types.
pub const SCHEMA_VERSION: u32 = 1;

/// An event as clients see it. No other fields are allowed. Whoever writes one out need not own its texts and its payload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunEventDoc<T = String, P = Value> {
    /// Opaque and globally unique.
    pub event_id: T,
    pub run_id: T,
    /// Set for events about a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<T>,
    /// Such as `run.started`.
    #[serde(rename = "type")]
    pub event_type: T,
    /// The position in the log, from 0 without gaps.
    pub sequence: u64,
    pub timestamp: Timestamp,
    /// The contract version of the event type; [`SCHEMA_VERSION`] in the events we write.
    #[serde(default = "schema_version")]
    pub schema_version: u32,
    /// The engine that recorded the event. A string, unlike in discovery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_version: Option<T>,
    /// The earlier event that caused this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causation_id: Option<T>,
    pub payload: P,
}

const fn schema_version() -> u32 {
    SCHEMA_VERSION
}

/// The poll response, which combines the two bodies that the specification documents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PollResponse<E = RunEventDoc> {
    pub run_id: String,
    /// The events after the cursor, in order.
    pub events: Vec<E>,
    /// No further events will follow.
    pub is_complete: bool,
    /// The cursor for the next poll; absent while both the log and the cursor are empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_event_seq: Option<u64>,
    pub run_status: RunStatus,
    pub is_terminal: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn event_matches_the_published_fields() {
        let event = RunEventDoc {
            event_id: "evt_1".into(),
            run_id: "run_1".into(),
            node_id: Some("n".into()),
            event_type: "node.completed".into(),
            sequence: 2,
            timestamp: Timestamp::from_millis(0),
            schema_version: SCHEMA_VERSION,
            engine_version: Some("1".into()),
            causation_id: None,
            payload: json!({"nodeId": "n"}),
        };
        let value = json!({
            "eventId": "evt_1", "runId": "run_1", "nodeId": "n", "type": "node.completed", "sequence": 2,
            "timestamp": "1970-01-01T00:00:00.000Z", "schemaVersion": 1, "engineVersion": "1",
            "payload": {"nodeId": "n"},
        });
        assert_eq!(serde_json::to_value(&event).unwrap(), value);
        assert_eq!(serde_json::from_value::<RunEventDoc>(value).unwrap(), event);
    }

    #[test]
    fn poll_response_combines_both_documented_bodies() {
        let poll: PollResponse = PollResponse {
            run_id: "r".into(),
            events: vec![],
            is_complete: true,
            last_event_seq: Some(3),
            run_status: RunStatus::Completed,
            is_terminal: true,
        };
        assert_eq!(
            serde_json::to_value(poll).unwrap(),
            json!({"runId": "r", "events": [], "isComplete": true, "lastEventSeq": 3,
                "runStatus": "completed", "isTerminal": true})
        );
    }
}
