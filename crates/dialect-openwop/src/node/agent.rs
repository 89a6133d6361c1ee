//! `core.a2a.invoke`: its settings.

use serde_json::Value;

use super::{activity::MAX_ACTIVITY_MS, config::Config, http::Body};
use crate::expression::Template;

/// Longest name of a peer or skill, in bytes.
const MAX_NAME: usize = 256;
/// The peer that a node calls if it names none.
const DEFAULT_PEER: &str = "default";
/// The bindings, and what agent cards call them.
pub(crate) const BINDINGS: [&str; 6] = ["jsonrpc", "rest", "grpc", "JSONRPC", "HTTP+JSON", "GRPC"];
/// The protocol versions.
pub(crate) const VERSIONS: [&str; 2] = ["1.0", "0.3"];
/// The most media types that a node may accept.
pub(crate) const MAX_MODES: usize = 100;
/// Attempts after the first, unless the node's settings say otherwise.
pub(crate) const AGENT_RETRIES: u32 = 3;

#[derive(Debug)]
pub(crate) struct AgentNode {
    pub peer: String,
    pub skill: Option<String>,
    /// An input port `message` takes precedence.
    pub message: Option<Template>,
    /// JSON; an input port `data` takes precedence.
    pub data: Option<Body>,
    pub timeout_ms: Option<u64>,
    pub version: Option<String>,
    /// `jsonrpc`, `rest` or `grpc`.
    pub binding: Option<&'static str>,
    pub output_modes: Vec<String>,
}

impl AgentNode {
    pub(super) fn read(config: Config<'_>) -> Result<Self, String> {
        let name = |field: &str| match config.text(field)? {
            Some(name) if name.is_empty() || name.len() > MAX_NAME => {
                Err(format!("config.{field} is not a text of 1 to {MAX_NAME} bytes"))
            }
            name => Ok(name.map(str::to_owned)),
        };
        let message = config.text("message")?.map(Template::parse).transpose();
        let timeout_ms = match config.millis("timeoutMs")? {
            Some(ms) if !(1..=MAX_ACTIVITY_MS).contains(&ms) => {
                return Err(format!("config.timeoutMs is not within 1 to {MAX_ACTIVITY_MS}"));
            }
            ms => ms,
        };
        let version = match config.text("protocolVersion")? {
            Some(version) if !VERSIONS.contains(&version) => {
                return Err(format!("config.protocolVersion '{version}' is not 1.0 or 0.3"));
            }
            version => version.map(str::to_owned),
        };
        let binding = match config.text("binding")? {
            None => None,
            Some("jsonrpc" | "JSONRPC") => Some("jsonrpc"),
            Some("rest" | "HTTP+JSON") => Some("rest"),
            Some("grpc" | "GRPC") => Some("grpc"),
            Some(other) => return Err(format!("config.binding '{other}' is not jsonrpc, rest or grpc")),
        };
        let output_modes = config.names("acceptedOutputModes")?;
        if output_modes.len() > MAX_MODES {
            return Err(format!(
                "config.acceptedOutputModes has more than {MAX_MODES} entries"
            ));
        }
        Ok(Self {
            peer: name("peer")?.unwrap_or_else(|| DEFAULT_PEER.to_owned()),
            skill: name("skill")?,
            message: message.map_err(|e| format!("config.message: {e}"))?,
            data: match config.0.get("data") {
                None | Some(Value::Null) => None,
                Some(data) => Some(Body::read(data).map_err(|e| format!("config.data: {e}"))?),
            },
            timeout_ms,
            version,
            binding,
            output_modes,
        })
    }
}
