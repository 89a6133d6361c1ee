//! The tools of servers that a node offers to its model: one tool, or those of a whole server.
//!
//! What the definition does not say of a tool, its server says when the step begins, see [`crate::offers`].

use serde_json::{Map, Value};
use wopr_kernel::{ToolQuery, WantedTools};

use super::{
    tool_call::{DEFAULT_SERVER, MAX_NAME, TOOL_MAX_TIMEOUT_MS},
    tools::{Target, Tools, text},
};
use crate::whole;

/// The members of an entry that are about a server.
pub(super) const MEMBERS: [&str; 5] = ["server", "tool", "only", "retrySafe", "timeoutMs"];

/// A tool of a server that the operator has configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerTool {
    pub(crate) server: String,
    pub(crate) tool: String,
    /// Whether wopr may repeat a call whose outcome it does not know.
    pub(crate) retry_safe: Option<bool>,
    pub(crate) timeout_ms: Option<u64>,
}

/// A server whose tools are offered as the server lists them.
#[derive(Debug)]
pub(crate) struct WholeServer {
    pub(crate) server: String,
    /// All that may be called where empty.
    pub(crate) only: Vec<String>,
    retry_safe: Option<bool>,
    timeout_ms: Option<u64>,
}

impl WholeServer {
    pub(crate) fn tool(&self, tool: &str) -> ServerTool {
        ServerTool {
            server: self.server.clone(),
            tool: tool.to_owned(),
            retry_safe: self.retry_safe,
            timeout_ms: self.timeout_ms,
        }
    }
}

/// What an entry that names a server or a tool offers.
pub(super) enum Offered {
    One(ServerTool),
    Whole(WholeServer),
}

/// Reads an entry; `None` if it is about no server.
pub(super) fn read(fields: &Map<String, Value>) -> Result<Option<Offered>, String> {
    let name = |field: &str| match text(fields, field)? {
        Some(name) if (1..=MAX_NAME).contains(&name.len()) => Ok(Some(name.to_owned())),
        Some(_) => Err(format!(".{field} is not a text of 1 to {MAX_NAME} bytes")),
        None => Ok(None),
    };
    let (server, tool) = (name("server")?, name("tool")?);
    if server.is_none() && tool.is_none() {
        let stray = ["only", "retrySafe", "timeoutMs"].map(|field| fields.get(field).map(|_| field));
        return match stray.into_iter().flatten().next() {
            Some(stray) => Err(format!(".{stray} is for a tool of a server: name server or tool")),
            None => Ok(None),
        };
    }
    let retry_safe = match fields.get("retrySafe") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(safe)) => Some(*safe),
        Some(_) => return Err(".retrySafe is not a boolean".to_owned()),
    };
    let timeout_ms = match fields.get("timeoutMs") {
        None | Some(Value::Null) => None,
        Some(ms) => Some(
            whole(ms)
                .filter(|ms| (1..=TOOL_MAX_TIMEOUT_MS).contains(ms))
                .ok_or_else(|| format!(".timeoutMs is not within 1 to {TOOL_MAX_TIMEOUT_MS}"))?,
        ),
    };
    let server = server.unwrap_or_else(|| DEFAULT_SERVER.to_owned());
    let only = only(fields)?;
    Ok(Some(match (tool, only) {
        (Some(_), Some(_)) => return Err(" has both tool and only".to_owned()),
        (Some(tool), None) => Offered::One(ServerTool {
            server,
            tool,
            retry_safe,
            timeout_ms,
        }),
        (None, only) => {
            let of_one = ["name", "description", "inputSchema"];
            if let Some(field) = of_one
                .into_iter()
                .find(|field| !fields.get(*field).is_none_or(Value::is_null))
            {
                return Err(format!(".{field} is for one tool, and tool is missing"));
            }
            Offered::Whole(WholeServer {
                server,
                only: only.unwrap_or_default(),
                retry_safe,
                timeout_ms,
            })
        }
    }))
}

fn only(fields: &Map<String, Value>) -> Result<Option<Vec<String>>, String> {
    let list = match fields.get("only") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(list)) if (1..=super::MAX_TOOLS).contains(&list.len()) => list,
        Some(_) => return Err(format!(".only is not a list of 1 to {} names", super::MAX_TOOLS)),
    };
    let names = list.iter().map(|name| {
        let name = name.as_str().filter(|name| (1..=MAX_NAME).contains(&name.len()));
        name.map(str::to_owned)
    });
    let names: Option<Vec<_>> = names.collect();
    let names =
        names.ok_or_else(|| format!(".only has an entry that is not a text of 1 to {MAX_NAME} bytes"))?;
    match names
        .iter()
        .enumerate()
        .find(|(n, name)| names[..*n].contains(name))
    {
        Some((_, twice)) => Err(format!(".only names '{twice}' twice")),
        None => Ok(Some(names)),
    }
}

impl Tools {
    /// What servers have to be asked before the model is; `None` if the definition says all.
    pub(crate) fn query(&self) -> Option<ToolQuery> {
        let mut wanted: Vec<WantedTools> = Vec::new();
        // A server that is offered as a whole is asked for that, and describes the others by the way.
        for whole in &self.servers {
            wanted.push(WantedTools {
                server: whole.server.clone(),
                tools: whole.only.clone(),
            });
        }
        for tool in self.offered.iter().filter(|tool| tool.is_described_by_server()) {
            let Target::Server(tool) = &tool.target else {
                continue;
            };
            match wanted.iter_mut().find(|known| known.server == tool.server) {
                Some(known) => {
                    let is_whole = known.tools.is_empty();
                    if !is_whole && !known.tools.contains(&tool.tool) {
                        known.tools.push(tool.tool.clone());
                    }
                }
                None => wanted.push(WantedTools {
                    server: tool.server.clone(),
                    tools: vec![tool.tool.clone()],
                }),
            }
        }
        (!wanted.is_empty()).then_some(ToolQuery { wanted })
    }
}
