//! `core.mcp.toolCall`: calls a tool of a server that the operator has configured.
//!
//! A workflow names a server and a tool. It holds neither a command, nor an address, nor a credential.

use serde_json::{Map, Value};

use super::{config::Config, http::Body};
use crate::{definition::Node, schema::Allowance};

pub(crate) const TYPE: &str = "core.mcp.toolCall";
/// The member of a node that asks a model by which it calls a tool instead.
const IN_PROMPT: &str = "mcp";
/// The server that a node calls if it names none.
pub(super) const DEFAULT_SERVER: &str = "default";
/// Longest name of a server or tool, in bytes.
pub(super) const MAX_NAME: usize = 256;
/// The longest time limit of an attempt.
pub(crate) const TOOL_MAX_TIMEOUT_MS: u64 = 600_000;
/// Attempts after the first, unless the node's settings say otherwise. A call that may have been made is not made again
/// unless it may be.
pub(crate) const TOOL_RETRIES: u32 = 3;

/// Whether a node with these settings calls a tool.
pub(crate) fn calls_tool(type_id: &str, config: &Map<String, Value>) -> bool {
    type_id == TYPE
        || type_id == super::given_tool::TYPE
        || (type_id == super::model::CALL_PROMPT && config.contains_key(IN_PROMPT))
}

#[derive(Debug)]
pub(crate) struct ToolNode {
    /// The name of the server in the host's configuration.
    pub server: String,
    pub tool: String,
    /// An object; an input port `arguments` takes precedence.
    pub arguments: Option<Body>,
    /// Whether wopr may repeat a call whose outcome it does not know.
    pub retry_safe: Option<bool>,
    pub timeout_ms: Option<u64>,
}

impl ToolNode {
    pub(super) fn read(node: &Node, allowance: &Allowance) -> Result<Self, String> {
        if node.type_id == TYPE {
            return Self::read_at(&node.config, "config", allowance);
        }
        let Some(Value::Object(tool)) = node.config.get(IN_PROMPT) else {
            return Err(format!("config.{IN_PROMPT} is not an object"));
        };
        let of_model = super::known_keys(&node.type_id).unwrap_or_default();
        let is_of_model = |key: &&String| *key != IN_PROMPT && of_model.contains(&key.as_str());
        // Others are unknown, which is said of them elsewhere.
        if let Some(other) = node.config.keys().find(is_of_model) {
            return Err(format!(
                "config has both {IN_PROMPT}, which calls a tool, and {other}, which is for a model"
            ));
        }
        let known = super::known_keys(TYPE).unwrap_or_default();
        if let Some(unknown) = tool.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(format!("config.{IN_PROMPT}.{unknown} is not known"));
        }
        Self::read_at(tool, &format!("config.{IN_PROMPT}"), allowance)
    }

    fn read_at(fields: &Map<String, Value>, place: &str, allowance: &Allowance) -> Result<Self, String> {
        let config = Config(fields);
        let at = |rule: String| match rule.strip_prefix("config.") {
            Some(rule) => format!("{place}.{rule}"),
            None => rule,
        };
        let name = |field: &str| match config.text(field).map_err(at)? {
            Some(name) if name.is_empty() || name.len() > MAX_NAME => {
                Err(format!("{place}.{field} is not a text of 1 to {MAX_NAME} bytes"))
            }
            name => Ok(name.map(str::to_owned)),
        };
        let arguments = match fields.get("arguments") {
            None => None,
            Some(arguments @ Value::Object(_)) => {
                Some(Body::read(arguments, allowance).map_err(|e| format!("{place}.arguments: {e}"))?)
            }
            Some(_) => return Err(format!("{place}.arguments is not an object")),
        };
        let timeout_ms = config.millis("timeoutMs").map_err(at)?;
        if timeout_ms.is_some_and(|ms| !(1..=TOOL_MAX_TIMEOUT_MS).contains(&ms)) {
            return Err(format!(
                "{place}.timeoutMs is not within 1 to {TOOL_MAX_TIMEOUT_MS}"
            ));
        }
        Ok(Self {
            server: name("server")?.unwrap_or_else(|| DEFAULT_SERVER.to_owned()),
            tool: name("tool")?.ok_or_else(|| format!("{place}.tool is missing"))?,
            arguments,
            retry_safe: config.flag("retrySafe").map_err(at)?,
            timeout_ms,
        })
    }
}
