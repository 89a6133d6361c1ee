//! Cancel, pause, resume, resolve and fork (OpenWOP v1 sections 6.1, 13.6 and 16.1).
//!
//! The body of a single cancel accepts unknown fields; all other bodies reject them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    error::ErrorEnvelope,
    run::{RunStatus, check_id, tags},
};
use crate::{
    json::{Decode, DecodeError, Fields, Object, deserialize_by_decode, named},
    time::Timestamp,
};

/// The maximum number of runs in a bulk cancel.
pub const MAX_BULK_RUNS: usize = 100;
const MAX_REASON_CHARS: usize = 512;

/// The body of `POST /v1/runs/{runId}/cancel`. Unknown fields are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CancelRequest {
    /// For the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Decode for CancelRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        Ok(Self {
            reason: Fields::of(value)?.optional("reason")?,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CancelResponse {
    pub run_id: String,
    /// `cancelled`, `cancelling`, or the status of a run that had already ended.
    pub status: RunStatus,
}

/// The body of `POST /v1/runs:bulk-cancel`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BulkCancelRequest {
    /// 1 to 100 runs.
    pub run_ids: Vec<String>,
    /// At most 512 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Decode for BulkCancelRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let run_ids: Vec<String> = fields.required("runIds")?;
        let reason: Option<String> = fields.optional("reason")?;
        fields.refuse_unknown()?;
        if run_ids.is_empty() || run_ids.len() > MAX_BULK_RUNS {
            return Err(DecodeError::invalid("must have 1 to 100 elements").in_field("runIds"));
        }
        for (index, id) in run_ids.iter().enumerate() {
            check_id(id).map_err(|error| error.in_element(index).in_field("runIds"))?;
        }
        if reason
            .as_ref()
            .is_some_and(|reason| reason.chars().count() > MAX_REASON_CHARS)
        {
            return Err(DecodeError::invalid("must have at most 512 characters").in_field("reason"));
        }
        Ok(Self { run_ids, reason })
    }
}

/// The outcome for one run of a bulk cancel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BulkCancelItem {
    /// The id as the caller sent it.
    pub run_id: String,
    /// The run is cancelled or will be.
    pub ok: bool,
    /// Set if `ok`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RunStatus>,
    /// Set if not `ok`: `not_found`, `forbidden`, `run_terminal` or `validation_error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorEnvelope>,
}

impl BulkCancelItem {
    /// A run that is cancelled or will be.
    #[must_use]
    pub fn done(run_id: impl Into<String>, status: RunStatus) -> Self {
        Self {
            run_id: run_id.into(),
            ok: true,
            status: Some(status),
            error: None,
        }
    }

    /// A run that could not be cancelled.
    #[must_use]
    pub fn refused(run_id: impl Into<String>, error: ErrorEnvelope) -> Self {
        Self {
            run_id: run_id.into(),
            ok: false,
            status: None,
            error: Some(error),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BulkCancelResponse {
    /// One item per run, in the order of the request.
    pub results: Vec<BulkCancelItem>,
}

named! {
    /// The treatment of the running node during a pause.
    pub enum DrainPolicy: "immediate or drain-current-node" {
        /// Stops without waiting for the node.
        Immediate = "immediate",
        /// Lets the node finish.
        DrainCurrentNode = "drain-current-node",
    }
}

/// The body of `POST /v1/runs/{runId}:pause`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PauseRequest {
    /// For the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Defaults to `drain-current-node`.
    pub drain_policy: DrainPolicy,
}

impl Decode for PauseRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let request = Self {
            reason: fields.optional("reason")?,
            // The schema allows an absent policy but not `null`. Guessing the meaning of `null` could stop a
            // running node.
            drain_policy: match fields.take("drainPolicy") {
                None => DrainPolicy::DrainCurrentNode,
                Some(policy) => DrainPolicy::decode(policy).map_err(|error| error.in_field("drainPolicy"))?,
            },
        };
        fields.refuse_unknown()?;
        Ok(request)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PauseResponse {
    pub run_id: String,
    /// Always `paused`.
    pub status: RunStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<Timestamp>,
}

/// The body of `POST /v1/runs/{runId}:resume`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ResumeRequest {
    /// For the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Decode for ResumeRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let reason = fields.optional("reason")?;
        fields.refuse_unknown()?;
        Ok(Self { reason })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResumeResponse {
    pub run_id: String,
    /// Always `running`.
    pub status: RunStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_at: Option<Timestamp>,
}

/// The body that resolves an interrupt, by node or by token.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolveInterruptRequest {
    /// Required, but may be `null`.
    pub resume_value: Value,
    /// Absent selects the interrupt that is open at the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupt_id: Option<String>,
}

impl Decode for ResolveInterruptRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let resume_value = fields
            .take("resumeValue")
            .ok_or_else(|| DecodeError::missing().in_field("resumeValue"))?;
        let interrupt_id = fields.optional("interruptId")?;
        fields.refuse_unknown()?;
        Ok(Self {
            resume_value,
            interrupt_id,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolveInterruptResponse {
    pub run_id: String,
    /// The node that raised the interrupt.
    pub node_id: String,
    /// The status of the run after the interrupt is resolved.
    pub status: RunStatus,
}

named! {
    pub enum ForkMode: "replay or branch" {
        /// Runs again with recorded outcomes.
        Replay = "replay",
        /// Continues from a point with different options.
        Branch = "branch",
    }
}

/// The body of `POST /v1/runs/{runId}:fork`. Decoding checks what the mode requires of the other fields.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ForkRequest {
    pub mode: ForkMode,
    /// The first sequence to execute again; defaults to 0 for a replay.
    pub from_seq: u64,
    /// Options that differ from the source run; only a branch may have any.
    #[serde(skip_serializing_if = "RunOptions::is_empty")]
    pub run_options_overlay: RunOptions,
}

impl Decode for ForkRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let mode: ForkMode = fields.required("mode")?;
        let from_seq: Option<u64> = fields.optional("fromSeq")?;
        let run_options_overlay: RunOptions = fields.or_default("runOptionsOverlay")?;
        fields.refuse_unknown()?;
        let from_seq = match (mode, from_seq) {
            (ForkMode::Replay, from) => from.unwrap_or(0),
            (ForkMode::Branch, Some(from)) => from,
            (ForkMode::Branch, None) => return Err(DecodeError::missing().in_field("fromSeq")),
        };
        if mode == ForkMode::Replay && !run_options_overlay.is_empty() {
            let error = DecodeError::invalid("must be empty for a replay");
            return Err(error.in_field("runOptionsOverlay"));
        }
        Ok(Self {
            mode,
            from_seq,
            run_options_overlay,
        })
    }
}

/// The fields of a create request that a branch may override.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunOptions {
    #[serde(skip_serializing_if = "Object::is_empty")]
    pub configurable: Object,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(skip_serializing_if = "Object::is_empty")]
    pub metadata: Object,
}

impl RunOptions {
    /// Returns `true` if nothing is overridden.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.configurable.is_empty() && self.tags.is_empty() && self.metadata.is_empty()
    }
}

impl Decode for RunOptions {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let options = Self {
            configurable: fields.or_default("configurable")?,
            tags: tags(&mut fields)?,
            metadata: fields.or_default("metadata")?,
        };
        fields.refuse_unknown()?;
        Ok(options)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForkResponse {
    /// The new run.
    pub run_id: String,
    pub source_run_id: String,
    /// The first sequence to execute again.
    pub from_seq: u64,
    pub mode: ForkMode,
    /// The status at acceptance.
    pub status: RunStatus,
    /// An absolute URL.
    pub events_url: String,
}

deserialize_by_decode!(
    CancelRequest,
    BulkCancelRequest,
    PauseRequest,
    ResumeRequest,
    ResolveInterruptRequest,
    ForkRequest,
);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::json::from_slice_or_empty;

    fn refused<T: Decode + std::fmt::Debug>(value: Value) -> String {
        T::decode(value).unwrap_err().to_string()
    }

    #[test]
    fn only_single_cancel_accepts_unknown_fields() {
        assert_eq!(
            CancelRequest::decode(json!({"reason": "x", "y": 1}))
                .unwrap()
                .reason,
            Some("x".into())
        );
        assert_eq!(refused::<PauseRequest>(json!({"y": 1})), "y is not a known field");
        assert_eq!(
            refused::<ResumeRequest>(json!({"y": 1})),
            "y is not a known field"
        );
        assert_eq!(
            refused::<ResolveInterruptRequest>(json!({"resumeValue": 1, "action": "accept"})),
            "action is not a known field"
        );
        assert_eq!(
            refused::<BulkCancelRequest>(json!({"runIds": ["a"], "y": 1})),
            "y is not a known field"
        );
        assert_eq!(
            refused::<ForkRequest>(json!({"mode": "replay", "y": 1})),
            "y is not a known field"
        );
    }

    #[test]
    fn resume_value_may_be_null_but_not_absent() {
        let request = ResolveInterruptRequest::decode(json!({"resumeValue": null})).unwrap();
        assert_eq!(request.resume_value, Value::Null);
        assert_eq!(
            refused::<ResolveInterruptRequest>(json!({})),
            "resumeValue is required"
        );
    }

    #[test]
    fn blank_body_is_an_empty_request() {
        for body in [&b""[..], b" \r\n", b"{}"] {
            let pause: PauseRequest = from_slice_or_empty(body).unwrap();
            assert_eq!(
                pause,
                PauseRequest {
                    reason: None,
                    drain_policy: DrainPolicy::DrainCurrentNode
                }
            );
        }
        assert_eq!(
            refused::<PauseRequest>(json!({"drainPolicy": "later"})),
            "drainPolicy must be immediate or drain-current-node"
        );
    }

    #[test]
    fn bulk_cancel_limits_are_enforced() {
        let ids = |n: usize| json!({"runIds": vec!["r"; n]});
        assert!(BulkCancelRequest::decode(ids(100)).is_ok());
        for (body, wanted) in [
            (ids(0), "runIds must have 1 to 100 elements"),
            (ids(101), "runIds must have 1 to 100 elements"),
            (json!({}), "runIds is required"),
            (json!({"runIds": [1]}), "runIds[0] must be a string"),
            (
                json!({"runIds": ["a", "x".repeat(129)]}),
                "runIds[1] must have 1 to 128 characters",
            ),
            (
                json!({"runIds": ["a"], "reason": "x".repeat(513)}),
                "reason must have at most 512 characters",
            ),
        ] {
            assert_eq!(refused::<BulkCancelRequest>(body), wanted);
        }
    }

    #[test]
    fn fork_fields_are_validated_against_the_mode() {
        let replay = ForkRequest::decode(json!({"mode": "replay"})).unwrap();
        assert_eq!(replay.from_seq, 0);
        let overlay = json!({"mode": "branch", "fromSeq": 3, "runOptionsOverlay": {"tags": ["x"]}});
        assert_eq!(
            ForkRequest::decode(overlay).unwrap().run_options_overlay.tags,
            ["x"]
        );
        for (body, wanted) in [
            (json!({}), "mode is required"),
            (json!({"mode": "again"}), "mode must be replay or branch"),
            (json!({"mode": "branch"}), "fromSeq is required"),
            (
                json!({"mode": "branch", "fromSeq": -1}),
                "fromSeq must not be negative",
            ),
            (
                json!({"mode": "branch", "fromSeq": 1.5}),
                "fromSeq must be an integer",
            ),
            (
                json!({"mode": "replay", "runOptionsOverlay": {"tags": ["x"]}}),
                "runOptionsOverlay must be empty for a replay",
            ),
            (
                json!({"mode": "branch", "fromSeq": 0, "runOptionsOverlay": {"inputs": {}}}),
                "runOptionsOverlay.inputs is not a known field",
            ),
        ] {
            assert_eq!(refused::<ForkRequest>(body), wanted);
        }
    }
}
