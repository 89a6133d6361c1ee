//! The durable record of an A2A task (OpenWOP v1 section 27.9, RFC 0100): a closed document without inputs,
//! outputs or credentials.

use serde::Serialize;
use serde_json::Value;

use super::run::RunStatus;
use crate::{
    json::{Decode, DecodeError, Fields, deserialize_by_decode, named},
    time::Timestamp,
};

named! {
    /// The stored task states, with the names of A2A 0.3.
    pub enum StoredTaskState: "a task state" {
        /// Accepted but not started.
        Submitted = "submitted",
        Working = "working",
        /// Waiting for a message from the client.
        InputRequired = "input-required",
        /// Waiting for credentials; no run status maps to it.
        AuthRequired = "auth-required",
        Completed = "completed",
        Failed = "failed",
        Canceled = "canceled",
        /// Only for a run that failed as rejected.
        Rejected = "rejected",
    }
}

impl From<RunStatus> for StoredTaskState {
    /// The forward projection (section 27.5).
    fn from(status: RunStatus) -> Self {
        match status {
            RunStatus::Pending => Self::Submitted,
            RunStatus::Running | RunStatus::Paused | RunStatus::Cancelling => Self::Working,
            RunStatus::WaitingApproval | RunStatus::WaitingInput | RunStatus::WaitingExternal => {
                Self::InputRequired
            }
            RunStatus::Completed => Self::Completed,
            RunStatus::Failed => Self::Failed,
            RunStatus::Cancelled => Self::Canceled,
        }
    }
}

named! {
    /// The input that a task in `input-required` waits for.
    pub enum StoredInterruptKind: "approval or clarification" {
        /// A decision.
        Approval = "approval",
        /// An answer or an external event.
        Clarification = "clarification",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct A2aTaskState {
    /// Equal to the run id.
    pub task_id: String,
    pub run_id: String,
    /// Chosen by the client, or generated for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_id: Option<String>,
    pub state: StoredTaskState,
    /// Set only in `input-required`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupt_kind: Option<StoredInterruptKind>,
    /// When the state last changed.
    pub updated_at: Timestamp,
    /// The most recent push configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push_config: Option<PushConfig>,
}

/// A push configuration without its secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PushConfig {
    pub url: String,
    /// A digest of the token, at most 32 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_fingerprint: Option<String>,
}

impl Decode for PushConfig {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let url = fields.required_text("url")?;
        let token_fingerprint: Option<String> = fields.optional("tokenFingerprint")?;
        fields.refuse_unknown()?;
        if token_fingerprint
            .as_ref()
            .is_some_and(|text| text.chars().count() > 32)
        {
            return Err(DecodeError::invalid("must have at most 32 characters").in_field("tokenFingerprint"));
        }
        Ok(Self {
            url,
            token_fingerprint,
        })
    }
}

impl Decode for A2aTaskState {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let state = Self {
            task_id: fields.required_text("taskId")?,
            run_id: fields.required_text("runId")?,
            context_id: fields.optional("contextId")?,
            state: fields.required("state")?,
            interrupt_kind: fields.optional("interruptKind")?,
            updated_at: fields.required("updatedAt")?,
            push_config: fields.optional("pushConfig")?,
        };
        fields.refuse_unknown()?;
        Ok(state)
    }
}

deserialize_by_decode!(A2aTaskState, PushConfig);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn record_matches_the_published_fields() {
        let record = json!({
            "taskId": "run_x", "runId": "run_x", "contextId": "ctx_42", "state": "input-required",
            "interruptKind": "approval", "updatedAt": "2026-06-13T19:00:00.000Z",
            "pushConfig": {"url": "https://caller.example.com/push", "tokenFingerprint": "a1b2"},
        });
        let state = A2aTaskState::decode(record.clone()).unwrap();
        assert_eq!(serde_json::to_value(&state).unwrap(), record);

        let bare = A2aTaskState {
            context_id: None,
            interrupt_kind: None,
            push_config: None,
            ..state
        };
        let members: Vec<_> = serde_json::to_value(bare)
            .unwrap()
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect();
        assert_eq!(members, ["runId", "state", "taskId", "updatedAt"]);
    }

    #[test]
    fn unknown_record_fields_are_rejected() {
        let record = json!({"taskId": "a", "runId": "a", "state": "working",
            "updatedAt": "2026-06-13T19:00:00Z"});
        assert!(A2aTaskState::decode(record.clone()).is_ok());
        for (name, value, wanted) in [
            ("token", json!("x"), "token is not a known field"),
            ("state", json!("unknown"), "state must be a task state"),
            (
                "pushConfig",
                json!({"url": "u", "token": "x"}),
                "pushConfig.token is not a known field",
            ),
            ("pushConfig", json!({}), "pushConfig.url is required"),
        ] {
            let mut record = record.clone();
            record[name] = value;
            assert_eq!(A2aTaskState::decode(record).unwrap_err().to_string(), wanted);
        }
    }

    #[test]
    fn every_run_status_maps_to_a_task_state() {
        let states: Vec<_> = RunStatus::ALL
            .iter()
            .map(|status| StoredTaskState::from(*status).as_str())
            .collect();
        assert_eq!(
            states,
            [
                "submitted",
                "working",
                "working",
                "input-required",
                "input-required",
                "input-required",
                "completed",
                "failed",
                "working",
                "canceled"
            ]
        );
    }
}
