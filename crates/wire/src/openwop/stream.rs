//! Stream modes and the events that each mode includes (OpenWOP v1 section 12).
//!
//! This module has pure functions over event type names. The server creates the projections: snapshots in
//! `values` and chunks in `messages`.

use std::time::Duration;

use super::error::ErrorEnvelope;
use crate::json::named;

named! {
    pub enum StreamMode: "a stream mode" {
        /// Events that advance the run.
        Updates = "updates",
        /// A snapshot after each event that advances the run.
        Values = "values",
        /// Chunks of generated text.
        Messages = "messages",
        /// All events.
        Debug = "debug",
    }
}

/// The maximum time to buffer events for a batch.
pub const MAX_BUFFER: Duration = Duration::from_millis(5_000);

/// The timeout of a poll without a `timeout` parameter.
const DEFAULT_POLL: Duration = Duration::from_secs(30);

/// Determines which modes include an event type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tier {
    /// Advances the run.
    Update,
    /// Included as a snapshot, not as an update.
    Snapshot,
    /// Generated text.
    Chunk,
    /// Everything else, including event types unknown to this build.
    Debug,
}

fn tier(event_type: &str) -> Tier {
    match event_type {
        "run.started"
        | "run.completed"
        | "run.failed"
        | "run.cancelled"
        | "run.paused"
        | "run.resumed"
        | "run.annotated"
        | "workspace.updated"
        | "node.completed"
        | "node.failed"
        | "node.skipped"
        | "node.suspended"
        | "node.dispatched"
        | "approval.requested"
        | "approval.received"
        | "clarification.requested"
        | "clarification.resolved"
        | "interrupt.requested"
        | "interrupt.resolved"
        | "artifact.created" => Tier::Update,
        "node.started" => Tier::Snapshot,
        // The log stores `output.chunk`; streams call it `ai.message.chunk`.
        "output.chunk" | "ai.message.chunk" => Tier::Chunk,
        _ if event_type.starts_with("eval.") || event_type.starts_with("deployment.") => Tier::Update,
        _ => Tier::Debug,
    }
}

impl StreamMode {
    /// Returns `true` if this mode includes an event type, as an event or as a snapshot (section 12.2).
    #[must_use]
    pub fn admits(self, event_type: &str) -> bool {
        match (self, tier(event_type)) {
            (Self::Debug, _)
            | (Self::Updates | Self::Values, Tier::Update)
            | (Self::Values, Tier::Snapshot)
            | (Self::Messages, Tier::Chunk) => true,
            (Self::Updates, Tier::Snapshot | Tier::Chunk | Tier::Debug)
            | (Self::Values, Tier::Chunk | Tier::Debug)
            | (Self::Messages, Tier::Update | Tier::Snapshot | Tier::Debug) => false,
        }
    }
}

/// Returns `true` if an event ends its batch immediately (section 12.3).
#[must_use]
pub fn forces_flush(event_type: &str) -> bool {
    matches!(
        event_type,
        "run.completed" | "run.failed" | "run.cancelled" | "node.suspended"
    )
}

/// The modes of a stream: a single mode, or several without `values`.
///
/// Invariant: not empty, and `Values` never combines with other modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamModes {
    updates: bool,
    messages: bool,
    debug: bool,
    values: bool,
}

impl Default for StreamModes {
    fn default() -> Self {
        Self {
            updates: true,
            messages: false,
            debug: false,
            values: false,
        }
    }
}

/// An invalid parameter of a stream or poll.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    #[error("unknown streamMode '{0}'")]
    UnknownMode(String),
    #[error("streamMode 'values' cannot be combined")]
    ValuesCombined,
    #[error("streamMode 'values' is a stream of snapshots: ask for text/event-stream, or read the run")]
    ValuesWithoutStream,
    #[error("bufferMs must be an integer from 0 to 5000")]
    Buffer,
    #[error("lastSequence must be a non-negative integer")]
    Cursor,
    #[error("timeout must be an integer from 1 to 60")]
    Timeout,
}

impl StreamError {
    /// The invalid query parameter.
    #[must_use]
    pub const fn parameter(&self) -> &'static str {
        match self {
            Self::UnknownMode(_) | Self::ValuesCombined | Self::ValuesWithoutStream => "streamMode",
            Self::Buffer => "bufferMs",
            Self::Cursor => "lastSequence",
            Self::Timeout => "timeout",
        }
    }
}

impl From<StreamError> for ErrorEnvelope {
    fn from(error: StreamError) -> Self {
        let message = error.to_string();
        match error {
            StreamError::UnknownMode(_) | StreamError::ValuesCombined => {
                let supported: Vec<&str> = StreamMode::ALL.iter().map(|mode| mode.as_str()).collect();
                Self::new("unsupported_stream_mode", message).with("supported", supported)
            }
            StreamError::ValuesWithoutStream => {
                let supported = StreamMode::ALL.iter().filter(|mode| **mode != StreamMode::Values);
                let supported: Vec<&str> = supported.map(|mode| mode.as_str()).collect();
                Self::new("unsupported_stream_mode", message).with("supported", supported)
            }
            StreamError::Buffer | StreamError::Cursor | StreamError::Timeout => {
                Self::new("validation_error", message).with("field", error.parameter())
            }
        }
    }
}

impl StreamModes {
    /// Parses `streamMode`: one mode, or several separated by commas. Absent means `updates`.
    ///
    /// # Errors
    /// Returns an error if a mode is unknown, or if `values` is combined with another mode.
    pub fn parse(parameter: Option<&str>) -> Result<Self, StreamError> {
        let Some(parameter) = parameter else {
            return Ok(Self::default());
        };
        let mut modes = Self {
            updates: false,
            messages: false,
            debug: false,
            values: false,
        };
        for name in parameter.split(',').map(str::trim) {
            match StreamMode::from_name(name) {
                Some(StreamMode::Updates) => modes.updates = true,
                Some(StreamMode::Messages) => modes.messages = true,
                Some(StreamMode::Debug) => modes.debug = true,
                Some(StreamMode::Values) => modes.values = true,
                None => return Err(StreamError::UnknownMode(name.chars().take(64).collect())),
            }
        }
        if modes.values && (modes.updates || modes.messages || modes.debug) {
            return Err(StreamError::ValuesCombined);
        }
        Ok(modes)
    }

    /// Parses `streamMode` of a request that is answered with a list of events, which holds no snapshots.
    ///
    /// # Errors
    /// Returns an error also if the mode is `values`.
    pub fn parse_for_list(parameter: Option<&str>) -> Result<Self, StreamError> {
        match Self::parse(parameter)? {
            modes if modes.values => Err(StreamError::ValuesWithoutStream),
            modes => Ok(modes),
        }
    }

    /// Returns `true` if the stream sends snapshots instead of events.
    #[must_use]
    pub const fn is_values(self) -> bool {
        self.values
    }

    /// Returns `true` if the stream has several modes, so that events are named after their mode.
    #[must_use]
    pub fn is_mixed(self) -> bool {
        [self.updates, self.messages, self.debug]
            .iter()
            .filter(|wanted| **wanted)
            .count()
            > 1
    }

    /// The first mode of the stream that includes an event type; `None` if the stream skips it.
    #[must_use]
    pub fn admitting(self, event_type: &str) -> Option<StreamMode> {
        [
            (self.values, StreamMode::Values),
            (self.updates, StreamMode::Updates),
            (self.messages, StreamMode::Messages),
            (self.debug, StreamMode::Debug),
        ]
        .into_iter()
        .find_map(|(wanted, mode)| (wanted && mode.admits(event_type)).then_some(mode))
    }
}

/// Parses `bufferMs`; absent means no buffering.
///
/// # Errors
/// Returns an error if the value is not an integer from 0 to 5000.
pub fn parse_buffer(parameter: Option<&str>) -> Result<Duration, StreamError> {
    let Some(parameter) = parameter else {
        return Ok(Duration::ZERO);
    };
    let buffer = whole_number(parameter)
        .map(Duration::from_millis)
        .ok_or(StreamError::Buffer)?;
    if buffer > MAX_BUFFER {
        return Err(StreamError::Buffer);
    }
    Ok(buffer)
}

/// The query of a poll (section 12.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollQuery {
    /// Only events after this sequence; `None` means from the start.
    pub after: Option<u64>,
    /// The maximum time to wait for the first event.
    pub timeout: Duration,
}

impl PollQuery {
    /// Parses `lastSequence` (or its alias `since`) and `timeout`, which defaults to 30 seconds.
    ///
    /// # Errors
    /// Returns an error if the cursor is not a sequence, or the timeout is not 1 to 60 seconds.
    pub fn parse(last_sequence: Option<&str>, timeout: Option<&str>) -> Result<Self, StreamError> {
        let after = match last_sequence {
            None => None,
            Some(text) => Some(whole_number(text).ok_or(StreamError::Cursor)?),
        };
        let timeout = match timeout {
            None => DEFAULT_POLL,
            Some(text) => {
                let seconds = whole_number(text).filter(|seconds| (1..=60).contains(seconds));
                Duration::from_secs(seconds.ok_or(StreamError::Timeout)?)
            }
        };
        Ok(Self { after, timeout })
    }
}

/// Parses decimal digits only; `u64::from_str` would accept a leading plus.
fn whole_number(text: &str) -> Option<u64> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_include_their_tiers() {
        for (event_type, updates, values, messages) in [
            ("run.started", true, true, false),
            ("run.completed", true, true, false),
            ("run.paused", true, true, false),
            ("workspace.updated", true, true, false),
            ("node.completed", true, true, false),
            ("node.suspended", true, true, false),
            ("node.dispatched", true, true, false),
            ("approval.received", true, true, false),
            ("interrupt.requested", true, true, false),
            ("artifact.created", true, true, false),
            ("eval.scored", true, true, false),
            ("deployment.rolled-back", true, true, false),
            ("node.started", false, true, false),
            ("output.chunk", false, false, true),
            ("ai.message.chunk", false, false, true),
            ("node.retried", false, false, false),
            ("node.cancelled", false, false, false),
            ("node.resumed", false, false, false),
            ("run.resuming", false, false, false),
            ("variable.changed", false, false, false),
            ("lease.lost", false, false, false),
            ("cap.breached", false, false, false),
            ("agent.reasoned", false, false, false),
            ("core.workflowChain.event", false, false, false),
            ("vendor.thing", false, false, false),
            ("evaluate", false, false, false),
            ("", false, false, false),
        ] {
            assert_eq!(StreamMode::Updates.admits(event_type), updates, "{event_type}");
            assert_eq!(StreamMode::Values.admits(event_type), values, "{event_type}");
            assert_eq!(StreamMode::Messages.admits(event_type), messages, "{event_type}");
            assert!(StreamMode::Debug.admits(event_type), "{event_type}");
        }
    }

    #[test]
    fn modes_combine_except_values() {
        let default = StreamModes::parse(None).unwrap();
        assert_eq!(default, StreamModes::parse(Some("updates")).unwrap());
        assert!(!default.is_mixed());

        let mixed = StreamModes::parse(Some("updates, messages")).unwrap();
        assert!(mixed.is_mixed() && !mixed.is_values());
        assert_eq!(mixed.admitting("run.started"), Some(StreamMode::Updates));
        assert_eq!(mixed.admitting("output.chunk"), Some(StreamMode::Messages));
        assert_eq!(mixed.admitting("node.started"), None);

        let all = StreamModes::parse(Some("debug,updates,updates")).unwrap();
        assert_eq!(all.admitting("run.started"), Some(StreamMode::Updates));
        assert_eq!(all.admitting("node.started"), Some(StreamMode::Debug));
        assert!(StreamModes::parse(Some("values,values")).unwrap().is_values());
    }

    #[test]
    fn unknown_mode_error_lists_supported_modes() {
        for (parameter, error) in [
            ("", StreamError::UnknownMode(String::new())),
            ("all", StreamError::UnknownMode("all".into())),
            ("Updates", StreamError::UnknownMode("Updates".into())),
            ("updates,", StreamError::UnknownMode(String::new())),
            ("values,updates", StreamError::ValuesCombined),
        ] {
            assert_eq!(
                StreamModes::parse(Some(parameter)),
                Err(error.clone()),
                "{parameter}"
            );
            let body = serde_json::to_value(ErrorEnvelope::from(error)).unwrap();
            assert_eq!(body["error"], "unsupported_stream_mode");
            assert_eq!(
                body["details"]["supported"],
                serde_json::json!(["updates", "values", "messages", "debug"])
            );
        }
    }

    #[test]
    fn buffer_time_is_limited() {
        assert_eq!(parse_buffer(None), Ok(Duration::ZERO));
        assert_eq!(parse_buffer(Some("0")), Ok(Duration::ZERO));
        assert_eq!(parse_buffer(Some("5000")), Ok(MAX_BUFFER));
        for parameter in ["", "5001", "-1", "+1", "1.5", "x", "99999999999999999999"] {
            assert_eq!(
                parse_buffer(Some(parameter)),
                Err(StreamError::Buffer),
                "{parameter}"
            );
        }
    }

    #[test]
    fn poll_parses_cursor_and_timeout() {
        let parsed = PollQuery::parse(None, None).unwrap();
        assert_eq!(
            parsed,
            PollQuery {
                after: None,
                timeout: Duration::from_secs(30)
            }
        );
        let parsed = PollQuery::parse(Some("0"), Some("60")).unwrap();
        assert_eq!(
            parsed,
            PollQuery {
                after: Some(0),
                timeout: Duration::from_secs(60)
            }
        );
        for cursor in ["", "-1", "x", "1.0"] {
            assert_eq!(
                PollQuery::parse(Some(cursor), None),
                Err(StreamError::Cursor),
                "{cursor}"
            );
        }
        for timeout in ["", "0", "61", "x"] {
            assert_eq!(
                PollQuery::parse(None, Some(timeout)),
                Err(StreamError::Timeout),
                "{timeout}"
            );
        }
        let body = ErrorEnvelope::from(StreamError::Cursor);
        assert_eq!(body.details.unwrap()["field"], "lastSequence");
    }
}
