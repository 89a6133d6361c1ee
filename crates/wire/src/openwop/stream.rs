//! Stream modes and which events each of them shows (OpenWOP v1 section 12).
//!
//! Pure functions over the names of event types. The projections themselves (snapshots in `values`,
//! chunks in `messages`) are made by the server.

use std::time::Duration;

use super::error::ErrorEnvelope;
use crate::json::named;

named! {
    /// A way to look at the events of a run.
    pub enum StreamMode: "a stream mode" {
        /// What moves a run on.
        Updates = "updates",
        /// A snapshot after each such event.
        Values = "values",
        /// Chunks of generated text.
        Messages = "messages",
        /// Every event.
        Debug = "debug",
    }
}

/// The longest time events may be held back for a batch.
pub const MAX_BUFFER: Duration = Duration::from_millis(5_000);

/// How long a poll waits when it does not say.
const DEFAULT_POLL: Duration = Duration::from_secs(30);

/// The tier of an event type: which modes show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tier {
    /// Moves a run on.
    Update,
    /// Shown as a snapshot, not as an update.
    Snapshot,
    /// Generated text.
    Chunk,
    /// Everything else, including types this build does not know.
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
        // The log holds `output.chunk`; streams show it as `ai.message.chunk`.
        "output.chunk" | "ai.message.chunk" => Tier::Chunk,
        _ if event_type.starts_with("eval.") || event_type.starts_with("deployment.") => Tier::Update,
        _ => Tier::Debug,
    }
}

impl StreamMode {
    /// Claims that this mode shows an event of a type, as itself or as a snapshot (section 12.2).
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

/// Claims that an event ends a batch at once (section 12.3).
#[must_use]
pub fn forces_flush(event_type: &str) -> bool {
    matches!(
        event_type,
        "run.completed" | "run.failed" | "run.cancelled" | "node.suspended"
    )
}

/// The modes of one stream: one, or a union without `values`.
///
/// Invariant: not empty, and `Values` only alone.
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

/// Why a parameter of a stream is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A mode is not known.
    #[error("unknown streamMode '{0}'")]
    UnknownMode(String),
    /// `values` was asked for together with another mode.
    #[error("streamMode 'values' cannot be combined")]
    ValuesCombined,
    /// The buffer time is no integer from 0 to 5000.
    #[error("bufferMs must be an integer from 0 to 5000")]
    Buffer,
    /// The cursor of a poll is no sequence.
    #[error("lastSequence must be a non-negative integer")]
    Cursor,
    /// The waiting time of a poll is no number of seconds.
    #[error("timeout must be an integer from 1 to 60")]
    Timeout,
}

impl StreamError {
    /// The query parameter at fault.
    #[must_use]
    pub const fn parameter(&self) -> &'static str {
        match self {
            Self::UnknownMode(_) | Self::ValuesCombined => "streamMode",
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
            StreamError::Buffer | StreamError::Cursor | StreamError::Timeout => {
                Self::new("validation_error", message).with("field", error.parameter())
            }
        }
    }
}

impl StreamModes {
    /// Reads `streamMode`: one mode, or several joined by commas. Absent means `updates`.
    ///
    /// # Errors
    /// When a mode is unknown, or `values` is not alone.
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

    /// Claims that snapshots are wanted instead of events.
    #[must_use]
    pub const fn is_values(self) -> bool {
        self.values
    }

    /// Claims that more than one mode is wanted, so that events are named after the mode.
    #[must_use]
    pub fn is_mixed(self) -> bool {
        [self.updates, self.messages, self.debug]
            .iter()
            .filter(|wanted| **wanted)
            .count()
            > 1
    }

    /// The first wanted mode that shows an event of a type; none if the stream skips it.
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

/// Reads `bufferMs`; absent means no buffering.
///
/// # Errors
/// When it is no integer from 0 to 5000.
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
    /// Only events after this sequence; none means from the start.
    pub after: Option<u64>,
    /// How long to wait for the first event.
    pub timeout: Duration,
}

impl PollQuery {
    /// Reads `lastSequence` (or its alias `since`) and `timeout`, which is 30 seconds when absent.
    ///
    /// # Errors
    /// When the cursor is no sequence, or the time lies outside 1 to 60 seconds.
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

/// Reads decimal digits and nothing else; `u64::from_str` would take a leading plus.
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
    fn each_mode_shows_its_tier() {
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
    fn an_unknown_mode_is_told_what_is_supported() {
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
    fn a_buffer_time_is_bounded() {
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
    fn a_poll_has_a_cursor_and_a_patience() {
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
