//! `core.activity`: its settings.

use super::{config::Config, http::Body};
use crate::schema::Allowance;

/// Longest name of a queue, in bytes.
const MAX_QUEUE: usize = 128;
/// Longest time that an attempt may take, and that a worker may be silent, in milliseconds: a year.
pub(crate) const MAX_ACTIVITY_MS: u64 = 365 * 24 * 3_600 * 1_000;

#[derive(Debug)]
pub(crate) struct ActivityNode {
    pub queue: String,
    /// JSON; an input port `input` takes precedence.
    pub input: Option<Body>,
    pub timeout_ms: Option<u64>,
    pub heartbeat_ms: Option<u64>,
}

impl ActivityNode {
    pub(super) fn read(config: Config<'_>, allowance: &Allowance) -> Result<Self, String> {
        let queue = config.text("queue")?.ok_or("config.queue is missing")?;
        let is_name = !queue.is_empty() && queue.len() <= MAX_QUEUE && !queue.chars().any(char::is_control);
        if !is_name {
            return Err(format!("config.queue is not a text of 1 to {MAX_QUEUE} bytes"));
        }
        let time = |name: &str| match config.millis(name)? {
            Some(ms) if !(1..=MAX_ACTIVITY_MS).contains(&ms) => {
                Err(format!("config.{name} is not within 1 to {MAX_ACTIVITY_MS}"))
            }
            ms => Ok(ms),
        };
        Ok(Self {
            queue: queue.to_owned(),
            input: match config.0.get("input") {
                None => None,
                Some(input) => Some(Body::read(input, allowance).map_err(|e| format!("config.input: {e}"))?),
            },
            timeout_ms: time("timeoutMs")?,
            heartbeat_ms: time("heartbeatMs")?,
        })
    }
}
