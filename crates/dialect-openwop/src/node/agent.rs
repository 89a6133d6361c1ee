//! The nodes that call other agents: `core.a2a.invoke`, and those of the pack `core.openwop.a2a` that are calls.
//!
//! The pack names an agent by `baseUrl`, `core.a2a.invoke` by its name. Both stand for a peer that the operator has
//! configured: a workflow holds neither a credential nor an address that the operator does not know.

use serde_json::Value;

use super::{activity::MAX_ACTIVITY_MS, config::Config, http::Body};
use crate::{definition::Node, expression::Template, schema::Allowance};

/// Longest name of a peer or skill, in bytes.
const MAX_NAME: usize = 256;
/// Longest address of a peer, in bytes.
const MAX_ADDRESS: usize = 2_048;
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

/// The most questions of a conversation, each of which is a turn of it.
pub(crate) const MAX_TURNS: u64 = 16;

/// The node that asks an agent and waits for its answer.
const INVOKE: &str = "core.a2a.invoke";
/// What the types of the pack begin with.
const PACK: &str = "core.openwop.a2a.";
pub(crate) const DISCOVER: &str = "core.openwop.a2a.discover-agent";
pub(crate) const SEND: &str = "core.openwop.a2a.send-message";
pub(crate) const GET_TASK: &str = "core.openwop.a2a.get-task";
pub(crate) const CANCEL_TASK: &str = "core.openwop.a2a.cancel-task";
pub(crate) const CONVERSE: &str = "core.openwop.a2a.multi-turn-coordinator";
/// The types of the pack that this host offers.
const OFFERED: [&str; 5] = [DISCOVER, SEND, GET_TASK, CANCEL_TASK, CONVERSE];

/// Whether nodes of a type call an agent.
pub(crate) fn calls_agent(type_id: &str) -> bool {
    type_id == INVOKE || OFFERED.contains(&type_id)
}

/// Whether the outputs of a type contain what an agent made. A card is no such thing.
pub(crate) fn gives_artifacts(type_id: &str) -> bool {
    calls_agent(type_id) && type_id != DISCOVER
}

/// What to use in the place of a type of the pack that this host does not offer; `None` if the type is not the
/// pack's.
pub(crate) fn pack_hint(type_id: &str) -> Option<String> {
    type_id.strip_prefix(PACK)?;
    let offered = OFFERED.map(|offered| &offered[PACK.len()..]).join(", ");
    Some(format!("of the pack core.openwop.a2a this host offers {offered}"))
}

/// What an agent is asked for.
#[derive(Debug)]
pub(crate) enum AgentTask {
    /// An answer, however long it takes.
    Invoke,
    /// The same, with a bound on what the agent may ask.
    Converse { max_turns: u64 },
    /// To take a message.
    Send,
    /// How a task is. An input port `taskId` takes precedence.
    Get { id: Option<Template> },
    /// To stop a task.
    Cancel { id: Option<Template> },
    /// Its card.
    Discover,
}

#[derive(Debug)]
pub(crate) struct AgentNode {
    pub task: AgentTask,
    /// The name or the address of a peer.
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
    /// Parses the settings of a node whose type calls an agent.
    pub(super) fn read(node: &Node, allowance: &Allowance) -> Result<Self, String> {
        let config = Config(&node.config);
        let name = |field: &str| match config.text(field)? {
            Some(name) if name.is_empty() || name.len() > MAX_NAME => {
                Err(format!("config.{field} is not a text of 1 to {MAX_NAME} bytes"))
            }
            name => Ok(name.map(str::to_owned)),
        };
        let message = config
            .text("message")?
            .map(|source| Template::compile(source, allowance))
            .transpose();
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
        let peer = match (name("peer")?, config.text("baseUrl")?) {
            (Some(_), Some(_)) => return Err("config has both peer and baseUrl".to_owned()),
            (Some(peer), None) => peer,
            (None, Some(address)) => base_url(address)?,
            (None, None) => DEFAULT_PEER.to_owned(),
        };
        Ok(Self {
            task: AgentTask::read(node, config, allowance)?,
            peer,
            skill: name("skill")?,
            message: message.map_err(|e| format!("config.message: {e}"))?,
            data: match config.0.get("data") {
                None | Some(Value::Null) => None,
                Some(data) => Some(Body::read(data, allowance).map_err(|e| format!("config.data: {e}"))?),
            },
            timeout_ms,
            version,
            binding,
            output_modes,
        })
    }
}

impl AgentTask {
    fn read(node: &Node, config: Config<'_>, allowance: &Allowance) -> Result<Self, String> {
        let id = || match config.text("taskId")? {
            None if !node.inputs.contains_key("taskId") => {
                Err("config.taskId is missing, and so is an input taskId".to_owned())
            }
            None => Ok(None),
            Some(source) => {
                let id = Template::compile(source, allowance).map_err(|e| format!("config.taskId: {e}"))?;
                Ok(Some(id))
            }
        };
        Ok(match node.type_id.as_str() {
            DISCOVER => Self::Discover,
            SEND => Self::Send,
            GET_TASK => Self::Get { id: id()? },
            CANCEL_TASK => Self::Cancel { id: id()? },
            CONVERSE => Self::Converse {
                max_turns: match config.millis("maxTurns")? {
                    Some(n) if !(1..=MAX_TURNS).contains(&n) => {
                        return Err(format!("config.maxTurns is not within 1 to {MAX_TURNS}"));
                    }
                    n => n.unwrap_or(MAX_TURNS),
                },
            },
            _ => Self::Invoke,
        })
    }
}

/// Checks the address of a peer: it has no place for a credential.
fn base_url(address: &str) -> Result<String, String> {
    let rest = ["https://", "http://"]
        .iter()
        .find_map(|scheme| address.strip_prefix(scheme))
        .filter(|rest| !rest.is_empty() && address.len() <= MAX_ADDRESS);
    let rest = rest.ok_or_else(|| {
        format!("config.baseUrl is not an http or https address of at most {MAX_ADDRESS} bytes")
    })?;
    if rest.contains(['@', '?', '#']) {
        return Err(
            "config.baseUrl has a user, a query or a fragment: the operator configures how a peer is called"
                .to_owned(),
        );
    }
    Ok(address.to_owned())
}
