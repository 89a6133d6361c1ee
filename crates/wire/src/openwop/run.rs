//! Creating and reading runs (OpenWOP v1 sections 7 and 8).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    json::{Decode, DecodeError, Fields, Object, deserialize_by_decode, named},
    time::Timestamp,
};

const MAX_TAGS: usize = 100;
const MAX_TAG_CHARS: usize = 256;
/// For ids in paths and bodies.
const MAX_ID_CHARS: usize = 128;

named! {
    /// OpenWOP v1 section 8.1.
    pub enum RunStatus: "a run status" {
        /// Accepted but not started.
        Pending = "pending",
        /// Nodes are running or ready to run.
        Running = "running",
        Paused = "paused",
        WaitingApproval = "waiting-approval",
        WaitingInput = "waiting-input",
        /// Waiting for an external event.
        WaitingExternal = "waiting-external",
        Completed = "completed",
        Failed = "failed",
        /// A cancel was accepted and has not reached all nodes yet.
        Cancelling = "cancelling",
        Cancelled = "cancelled",
    }
}

impl RunStatus {
    /// Returns `true` for statuses that never change again.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Cancelled => true,
            Self::Pending
            | Self::Running
            | Self::Paused
            | Self::WaitingApproval
            | Self::WaitingInput
            | Self::WaitingExternal
            | Self::Cancelling => false,
        }
    }
}

/// The body of `POST /v1/runs`. Unknown fields are rejected.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateRunRequest {
    /// 1 to 128 characters; absent only if `mode` is `eval`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<String>,
    /// Inputs by variable name.
    #[serde(skip_serializing_if = "Object::is_empty")]
    pub inputs: Object,
    /// The tenant the caller expects; the credential determines the actual one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// The scope for deduplication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope_id: Option<String>,
    /// The URL that receives the interrupt callback URLs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residency: Option<Residency>,
    /// Only `eval` is defined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_suite_ref: Option<String>,
    /// The agent under evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Overrides for this run (section 7.8).
    #[serde(skip_serializing_if = "Object::is_empty")]
    pub configurable: Object,
    /// At most 100 tags of 1 to 256 characters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Free-form data that never affects execution.
    #[serde(skip_serializing_if = "Object::is_empty")]
    pub metadata: Object,
}

impl Decode for CreateRunRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let request = Self {
            workflow_id: optional_id(&mut fields, "workflowId")?,
            inputs: fields.or_default("inputs")?,
            tenant_id: fields.optional("tenantId")?,
            scope_id: fields.optional("scopeId")?,
            callback_url: fields.optional("callbackUrl")?,
            residency: fields.optional("residency")?,
            mode: fields.optional("mode")?,
            eval_suite_ref: fields.optional("evalSuiteRef")?,
            agent_id: fields.optional("agentId")?,
            configurable: fields.or_default("configurable")?,
            tags: tags(&mut fields)?,
            metadata: fields.or_default("metadata")?,
        };
        fields.refuse_unknown()?;
        if request.workflow_id.is_none() && request.mode.as_deref() != Some("eval") {
            return Err(DecodeError::missing().in_field("workflowId"));
        }
        Ok(request)
    }
}

fn optional_id(fields: &mut Fields, name: &'static str) -> Result<Option<String>, DecodeError> {
    let id: Option<String> = fields.optional(name)?;
    if let Some(id) = &id {
        check_id(id).map_err(|error| error.in_field(name))?;
    }
    Ok(id)
}

/// Requires an id to have 1 to 128 characters.
pub(super) fn check_id(id: &str) -> Result<(), DecodeError> {
    if id.is_empty() || id.chars().count() > MAX_ID_CHARS {
        return Err(DecodeError::invalid("must have 1 to 128 characters"));
    }
    Ok(())
}

pub(super) fn tags(fields: &mut Fields) -> Result<Vec<String>, DecodeError> {
    let tags: Vec<String> = fields.or_default("tags")?;
    if tags.len() > MAX_TAGS {
        return Err(DecodeError::invalid("must have at most 100 elements").in_field("tags"));
    }
    for (index, tag) in tags.iter().enumerate() {
        if tag.is_empty() || tag.chars().count() > MAX_TAG_CHARS {
            let error = DecodeError::invalid("must have 1 to 256 characters");
            return Err(error.in_element(index).in_field("tags"));
        }
    }
    Ok(tags)
}

/// The region where the data of a run must stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Residency {
    pub region: String,
}

impl Decode for Residency {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let region = fields.required_text("region")?;
        fields.refuse_unknown()?;
        Ok(Self { region })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateRunResponse {
    pub run_id: String,
    /// The status at acceptance; never terminal.
    pub status: RunStatus,
    /// An absolute URL.
    pub events_url: String,
    /// An absolute URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_url: Option<String>,
}

/// The owner of a run, as opaque ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    pub tenant: String,
    /// A part of the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// The user or service that acted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunError {
    /// A stable code.
    pub code: String,
    /// A human-readable message; never empty.
    pub message: String,
    /// Data specific to the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Object>,
}

/// A child run in the snapshot of its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChildRun {
    pub run_id: String,
    /// An extension of this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<String>,
    pub status: RunStatus,
}

/// The open interrupt of a suspended run (section 13.7); also the response to an inspection by token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InterruptView {
    pub interrupt_id: String,
    /// The node that raised the interrupt.
    pub node_id: String,
    /// Such as `approval`.
    pub kind: String,
    /// The deterministic key of the interrupt.
    pub key: String,
    /// The question; its shape depends on the kind.
    pub data: Value,
    /// What the kind does not say, such as `subkind: auth` for a request for credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// The JSON Schema of a valid answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_schema: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<Timestamp>,
    /// When the token expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// A token that resolves the interrupt, for callers with permission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt_token: Option<String>,
    /// The URL that contains the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback_url: Option<String>,
}

/// A run at one point in time (section 8.3). Clients ignore unknown fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSnapshot {
    pub run_id: String,
    pub workflow_id: String,
    pub status: RunStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<String>,
    /// The node of the parent run that started this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_node_id: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub child_runs: Vec<ChildRun>,
    /// Present in forks. An extension of this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkedFrom>,
    /// The waiting node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_node_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    /// The active agent, as an `AgentRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Object>,
    /// The supervising agent, as an `AgentRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_orchestrator: Option<Object>,
    #[serde(default)]
    pub inputs: Object,
    #[serde(default)]
    pub variables: Object,
    /// Node states in the format of this host.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub node_states: Object,
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub channels: Object,
    /// The names of variables, channels and nodes whose values contain external content. An extension of this host.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub untrusted: Object,
    /// The first of `interrupts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt: Option<InterruptView>,
    /// All open interrupts, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interrupts: Vec<InterruptView>,
    /// Work that waits for workers; only for callers who may do it. An extension of this host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub activities: Vec<ActivityView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RunError>,
    /// The engine that started the run. Usually omitted, because the published schemas disagree on its type
    /// (section 29, row 11).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_version: Option<String>,
    /// The contract version of the event log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_log_schema_version: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub metadata: Object,
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub configurable: Object,
    /// Cost and similar metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Object>,
    /// The sequence of the snapshot; only in `state.snapshot` stream events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_seq: Option<u64>,
}

/// Where a run was forked from. An extension of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForkedFrom {
    pub source_run_id: String,
    pub mode: super::control::ForkMode,
    /// Events before this one are the source's.
    pub from_seq: u64,
    /// The event of the source from which a replay differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverged_at_seq: Option<u64>,
}

/// A step that waits for a worker. An extension of this host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActivityView {
    /// Names this attempt of the step when its outcome is submitted. Treat it as opaque.
    pub token: String,
    pub node_id: String,
    /// Tells the executions of one node apart, such as the items of a fan-out.
    pub ordinal: u32,
    pub queue: String,
    pub input: Value,
}

impl RunSnapshot {
    /// A snapshot with the required fields only.
    #[must_use]
    pub fn new(run_id: impl Into<String>, workflow_id: impl Into<String>, status: RunStatus) -> Self {
        Self {
            run_id: run_id.into(),
            workflow_id: workflow_id.into(),
            status,
            owner: None,
            parent_run_id: None,
            parent_node_id: None,
            child_runs: Vec::new(),
            forked_from: None,
            current_node_id: None,
            started_at: None,
            completed_at: None,
            agent: None,
            run_orchestrator: None,
            inputs: Object::new(),
            variables: Object::new(),
            node_states: Object::new(),
            channels: Object::new(),
            untrusted: Object::new(),
            interrupt: None,
            interrupts: Vec::new(),
            activities: Vec::new(),
            error: None,
            engine_version: None,
            event_log_schema_version: None,
            tags: Vec::new(),
            metadata: Object::new(),
            configurable: Object::new(),
            metrics: None,
            at_seq: None,
        }
    }
}

deserialize_by_decode!(CreateRunRequest);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(value: Value) -> String {
        CreateRunRequest::decode(value).unwrap_err().to_string()
    }

    #[test]
    fn minimal_request_has_empty_defaults() {
        let request = CreateRunRequest::decode(json!({"workflowId": "w"})).unwrap();
        let wanted = CreateRunRequest {
            workflow_id: Some("w".into()),
            ..CreateRunRequest::default()
        };
        assert_eq!(request, wanted);
    }

    #[test]
    fn full_request_round_trips() {
        let body = json!({
            "workflowId": "w", "inputs": {"a": null}, "tenantId": "t", "scopeId": "s",
            "callbackUrl": "https://x.example", "residency": {"region": "eu"}, "mode": "eval",
            "evalSuiteRef": "e", "agentId": "a", "configurable": {"recursionLimit": 5},
            "tags": ["x", "é".repeat(256)], "metadata": {"k": [1]},
        });
        let request = CreateRunRequest::decode(body.clone()).unwrap();
        assert_eq!(serde_json::to_value(request).unwrap(), body);
    }

    #[test]
    fn invalid_request_fields_are_named() {
        for (body, wanted) in [
            (json!({}), "workflowId is required"),
            (
                json!({"workflowId": ""}),
                "workflowId must have 1 to 128 characters",
            ),
            (
                json!({"workflowId": "x".repeat(129)}),
                "workflowId must have 1 to 128 characters",
            ),
            (json!({"workflowId": 7}), "workflowId must be a string"),
            (
                json!({"workflowId": "w", "inputs": []}),
                "inputs must be an object",
            ),
            (
                json!({"workflowId": "w", "metadata": "x"}),
                "metadata must be an object",
            ),
            (
                json!({"workflowId": "w", "configurable": 1}),
                "configurable must be an object",
            ),
            (json!({"workflowId": "w", "tags": "x"}), "tags must be an array"),
            (
                json!({"workflowId": "w", "tags": [1]}),
                "tags[0] must be a string",
            ),
            (
                json!({"workflowId": "w", "tags": ["a", ""]}),
                "tags[1] must have 1 to 256 characters",
            ),
            (
                json!({"workflowId": "w", "tags": vec!["a"; 101]}),
                "tags must have at most 100 elements",
            ),
            (
                json!({"workflowId": "w", "residency": {}}),
                "residency.region is required",
            ),
            (
                json!({"workflowId": "w", "residency": {"region": "eu", "x": 1}}),
                "residency.x is not a known field",
            ),
            (
                json!({"workflowId": "w", "input": {}}),
                "input is not a known field",
            ),
            (json!([]), "document must be an object"),
        ] {
            assert_eq!(refused(body), wanted);
        }
        assert!(CreateRunRequest::decode(json!({"mode": "eval", "evalSuiteRef": "e"})).is_ok());
    }

    #[test]
    fn snapshot_always_has_inputs_and_variables() {
        let snapshot = RunSnapshot::new("r", "w", RunStatus::WaitingApproval);
        let value = serde_json::to_value(&snapshot).unwrap();
        assert_eq!(
            value,
            json!({"runId": "r", "workflowId": "w", "status": "waiting-approval", "inputs": {}, "variables": {}})
        );
        let tolerant: RunSnapshot = serde_json::from_value(
            json!({"runId": "r", "workflowId": "w", "status": "waiting-approval", "new": 1}),
        )
        .unwrap();
        assert_eq!(tolerant, snapshot);
    }
}
