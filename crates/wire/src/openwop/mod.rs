//! OpenWOP v1: the bodies of its REST API, its event documents and its stream modes.
//!
//! [`Decode`](crate::json::Decode) reads request bodies; closed bodies reject unknown fields. `serde` writes
//! responses and events, and our own clients read them back tolerantly. Routes, statuses and the discovery
//! document belong to the server. v2 is not implemented.

pub mod cache_key;
pub mod control;
pub mod error;
pub mod event;
pub mod run;
pub mod stream;
pub mod task_state;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::{
        error::ErrorEnvelope,
        event::{RunEventDoc, SCHEMA_VERSION},
        run::{RunError, RunSnapshot, RunStatus},
        task_state::{A2aTaskState, PushConfig, StoredInterruptKind, StoredTaskState},
    };
    use crate::time::Timestamp;

    /// A published schema with references to agents removed; `None` if the fixtures are not next to the project.
    fn published(name: &str) -> Option<Value> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let file = format!("../shared/fixtures/openwop/schemas/v1/{name}.schema.json");
        let mut schema: Value = serde_json::from_slice(&std::fs::read(root.join(file)).ok()?).ok()?;
        for member in ["agent", "runOrchestrator"] {
            if let Some(property) = schema.pointer_mut(&format!("/properties/{member}")) {
                *property = json!({"type": "object"});
            }
        }
        Some(schema)
    }

    fn check(name: &str, document: &Value) {
        let Some(schema) = published(name) else {
            println!("skipped: the published schema {name} is not beside the project");
            return;
        };
        let validator = jsonschema::options()
            .should_validate_formats(true)
            .build(&schema)
            .unwrap();
        let errors: Vec<_> = validator
            .iter_errors(document)
            .map(|error| error.to_string())
            .collect();
        assert!(errors.is_empty(), "{name}: {errors:?}\n{document:#}");
    }

    #[test]
    fn our_documents_match_the_published_schemas() {
        let now = Timestamp::from_millis(1_767_323_045_006);
        for status in RunStatus::ALL {
            let snapshot = RunSnapshot {
                started_at: Some(now),
                completed_at: status.is_terminal().then_some(now),
                error: (*status == RunStatus::Failed).then(|| RunError {
                    code: "run_timeout".into(),
                    message: "the run took too long".into(),
                    details: None,
                }),
                tags: vec!["x".into()],
                event_log_schema_version: Some(2),
                ..RunSnapshot::new("run_1", "w", *status)
            };
            check("run-snapshot", &serde_json::to_value(snapshot).unwrap());
        }

        let event: RunEventDoc = RunEventDoc {
            event_id: "evt_1".into(),
            run_id: "run_1".into(),
            node_id: Some("n".into()),
            event_type: "node.completed".into(),
            sequence: 0,
            timestamp: now,
            schema_version: SCHEMA_VERSION,
            engine_version: Some("1".into()),
            causation_id: Some("evt_0".into()),
            payload: Value::Null,
        };
        check("run-event", &serde_json::to_value(event).unwrap());

        for state in StoredTaskState::ALL {
            let record = A2aTaskState {
                task_id: "run_1".into(),
                run_id: "run_1".into(),
                context_id: Some("c".into()),
                state: *state,
                interrupt_kind: Some(StoredInterruptKind::Clarification),
                updated_at: now,
                push_config: Some(PushConfig {
                    url: "https://x.example".into(),
                    token_fingerprint: Some("a1b2".into()),
                }),
            };
            check("a2a-task-state", &serde_json::to_value(record).unwrap());
        }

        let envelope = ErrorEnvelope::new("rate_limited", "too many requests").with("retryAfterMs", 5);
        check("error-envelope", &serde_json::to_value(envelope).unwrap());
    }
}
