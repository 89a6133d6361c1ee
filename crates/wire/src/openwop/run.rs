//! Creating a run and reading it (OpenWOP v1 sections 7 and 8).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    json::{Decode, DecodeError, Fields, Object, deserialize_by_decode, named},
    time::Timestamp,
};

/// The most tags a run may have.
const MAX_TAGS: usize = 100;
/// The most characters a tag may have.
const MAX_TAG_CHARS: usize = 256;
/// The most characters an id in a path or body may have.
const MAX_ID_CHARS: usize = 128;

named! {
    /// Where a run stands (section 8.1).
    pub enum RunStatus: "a run status" {
        /// Accepted, not begun.
        Pending = "pending",
        /// Nodes are running or may run.
        Running = "running",
        /// Paused on request.
        Paused = "paused",
        /// Waits for an approval.
        WaitingApproval = "waiting-approval",
        /// Waits for an answer.
        WaitingInput = "waiting-input",
        /// Waits for an external event.
        WaitingExternal = "waiting-external",
        /// Ended well.
        Completed = "completed",
        /// Ended badly.
        Failed = "failed",
        /// A cancel was accepted and is spreading.
        Cancelling = "cancelling",
        /// Ended on request.
        Cancelled = "cancelled",
    }
}

impl RunStatus {
    /// Claims that the run never changes again.
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

/// The body of `POST /v1/runs`. Closed: unknown fields are refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateRunRequest {
    /// The workflow, 1 to 128 characters; absent only when `mode` is `eval`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<String>,
    /// The inputs by variable.
    #[serde(skip_serializing_if = "Object::is_empty")]
    pub inputs: Object,
    /// The tenant the caller means; the credential decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// The scope of deduplication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope_id: Option<String>,
    /// Where to post interrupt addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback_url: Option<String>,
    /// Where the data must stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residency: Option<Residency>,
    /// How to run; only `eval` is defined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The suite of an evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_suite_ref: Option<String>,
    /// The agent under evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Overrides for this run (section 7.8).
    #[serde(skip_serializing_if = "Object::is_empty")]
    pub configurable: Object,
    /// At most 100 labels of 1 to 256 characters.
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

/// Reads and checks `tags`.
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

/// Where the data of a run must stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Residency {
    /// The region.
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

/// The answer to `POST /v1/runs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateRunResponse {
    /// The run.
    pub run_id: String,
    /// Where it stood when accepted; never a terminal status.
    pub status: RunStatus,
    /// Where its events are, absolute.
    pub events_url: String,
    /// Where its snapshot is, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_url: Option<String>,
}

/// Who owns a run; opaque ids only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The tenant.
    pub tenant: String,
    /// A part of the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Who acted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
}

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunError {
    /// A stable code.
    pub code: String,
    /// A text for people; never empty.
    pub message: String,
    /// Facts that depend on the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Object>,
}

/// A child as its parent shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChildRun {
    /// The child.
    pub run_id: String,
    /// Where it stands.
    pub status: RunStatus,
}

/// The open interrupt of a suspended run (section 13.7); also the answer to an inspection by token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InterruptView {
    /// The interrupt.
    pub interrupt_id: String,
    /// The node that raised it.
    pub node_id: String,
    /// Its kind, such as `approval`.
    pub kind: String,
    /// Its deterministic key.
    pub key: String,
    /// What is asked; its shape depends on the kind.
    pub data: Value,
    /// What an answer must look like, as a JSON Schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_schema: Option<Value>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<Timestamp>,
    /// When the token ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// A token that resolves it, for callers who may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt_token: Option<String>,
    /// The address with that token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback_url: Option<String>,
}

/// A run as of one moment (section 8.3). Readers ignore what they do not know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSnapshot {
    /// The run.
    pub run_id: String,
    /// Its workflow.
    pub workflow_id: String,
    /// Where it stands.
    pub status: RunStatus,
    /// Who owns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The run that made this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<String>,
    /// The node of that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_node_id: Option<String>,
    /// The runs this one made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub child_runs: Vec<ChildRun>,
    /// The node that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_node_id: Option<String>,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    /// The active agent, as an `AgentRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Object>,
    /// The supervising agent, as an `AgentRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_orchestrator: Option<Object>,
    /// What was passed in.
    #[serde(default)]
    pub inputs: Object,
    /// The variables as they are now.
    #[serde(default)]
    pub variables: Object,
    /// The state of each node, shaped by the host.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub node_states: Object,
    /// The channels, when the workflow has any.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub channels: Object,
    /// The names of variables, channels and nodes whose value has content from outside (a field of this host).
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub untrusted: Object,
    /// What the run waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt: Option<InterruptView>,
    /// Everything the run waits for, the first asked first; `interrupt` is the first of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interrupts: Vec<InterruptView>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RunError>,
    /// The engine it was started under; the published schemas disagree on its type, so it is usually
    /// left out (section 29, row 11).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_version: Option<String>,
    /// The version of the log's contract.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_log_schema_version: Option<u32>,
    /// Labels of the caller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Free-form data of the caller.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub metadata: Object,
    /// Overrides for this run.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub configurable: Object,
    /// Cost and the like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Object>,
    /// The sequence it was taken at; only in `state.snapshot` stream events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_seq: Option<u64>,
}

impl RunSnapshot {
    /// A snapshot with nothing but what is required.
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
    fn a_minimal_request_has_empty_overlays() {
        let request = CreateRunRequest::decode(json!({"workflowId": "w"})).unwrap();
        let wanted = CreateRunRequest {
            workflow_id: Some("w".into()),
            ..CreateRunRequest::default()
        };
        assert_eq!(request, wanted);
    }

    #[test]
    fn a_full_request_is_read_and_written_back() {
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
    fn a_request_that_breaks_a_rule_names_the_field() {
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
    fn a_snapshot_always_shows_inputs_and_variables() {
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
