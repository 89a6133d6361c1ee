//! The tools that a node offers to its model.
//!
//! A tool is work of this host: a child run of a workflow, of the workflow that asks another agent, or of the one that
//! calls a tool of a server. A model can name what it was offered and nothing else, and its arguments have to match the
//! tool's schema before anything begins.

use serde_json::{Map, Value, json};

use super::{
    config::Config,
    remote::Remote,
    server_tools::{self, Offered, ServerTool, WholeServer},
};
use crate::{
    Transport, WorkflowId,
    schema::{Allowance, Schema},
};

/// The most tools of a node.
pub(crate) const MAX_TOOLS: usize = 64;
/// How often a model may ask for tools, unless the node says otherwise.
const ROUNDS: u64 = 8;
/// The most that a node may say.
pub(crate) const MAX_ROUNDS: u64 = 64;
/// Longest name of a tool; no provider takes longer ones.
const MAX_NAME: usize = 64;
/// Longest description of a tool, in bytes.
pub(crate) const MAX_DESCRIPTION: usize = 4_096;
/// Longest name of an agent, with its skill, in bytes.
const MAX_AGENT: usize = 1_024;

#[derive(Debug)]
pub(crate) struct Tools {
    /// Those that the definition names.
    pub(crate) offered: Vec<Tool>,
    /// Servers whose tools are offered as they list them.
    pub(crate) servers: Vec<WholeServer>,
    /// How often the model may ask for tools in one execution.
    pub(crate) max_rounds: u64,
}

#[derive(Debug)]
pub(crate) struct Tool {
    pub(crate) name: String,
    /// What the model is told of it; what its server says where absent.
    pub(crate) description: Option<String>,
    /// The arguments that it takes; what its server says where absent.
    pub(crate) arguments: Option<Arguments>,
    pub(crate) target: Target,
}

/// The schema of a tool's arguments, as the model is shown it, and compiled.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) document: Value,
    pub(crate) schema: Schema,
}

/// What a tool does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Runs the workflow with the arguments as its inputs, and gives back its outputs.
    Workflow(WorkflowId),
    /// Sends the argument `message` to an agent that the operator has configured.
    Agent { peer: String, skill: Option<String> },
    /// Calls a tool of a server that the operator has configured.
    Server(ServerTool),
}

impl Target {
    pub(crate) const fn transport(&self) -> Transport {
        match self {
            Self::Workflow(_) => Transport::Native,
            Self::Agent { .. } => Transport::Http,
            Self::Server(_) => Transport::Mcp,
        }
    }
}

impl Tools {
    pub(crate) const fn is_empty(&self) -> bool {
        self.offered.is_empty() && self.servers.is_empty()
    }

    /// Whether any tool is a workflow of the tenant.
    pub(crate) fn runs_workflows(&self) -> bool {
        let is_workflow = |tool: &Tool| matches!(tool.target, Target::Workflow(_));
        self.offered.iter().any(is_workflow)
    }

    pub(super) fn read(config: Config<'_>, allowance: &Allowance) -> Result<Self, String> {
        let list = match config.0.get("tools") {
            None | Some(Value::Null) => &[][..],
            Some(Value::Array(list)) if list.len() <= MAX_TOOLS => list,
            Some(Value::Array(_)) => return Err(format!("config.tools has more than {MAX_TOOLS} entries")),
            Some(_) => return Err("config.tools is not an array".to_owned()),
        };
        let mut offered: Vec<Tool> = Vec::with_capacity(list.len());
        let mut servers: Vec<WholeServer> = Vec::new();
        for (n, tool) in list.iter().enumerate() {
            let at = |rule: String| format!("config.tools[{n}]{rule}");
            let tool = match Entry::read(tool, allowance).map_err(at)? {
                Entry::Tool(tool) => tool,
                Entry::Server(server) => {
                    if servers.iter().any(|known| known.server == server.server) {
                        return Err(at(format!(": the server '{}' is offered twice", server.server)));
                    }
                    servers.push(server);
                    continue;
                }
            };
            if offered.iter().any(|known| known.name == tool.name) {
                return Err(format!(
                    "config.tools[{n}]: another tool is named '{}' as well; give one of them a name",
                    tool.name
                ));
            }
            offered.push(tool);
        }
        let max_rounds = match config.millis("maxToolRounds")? {
            None => ROUNDS,
            Some(_) if list.is_empty() => {
                return Err("config.maxToolRounds is for a node with config.tools".to_owned());
            }
            Some(n) if (1..=MAX_ROUNDS).contains(&n) => n,
            Some(_) => return Err(format!("config.maxToolRounds is not within 1 to {MAX_ROUNDS}")),
        };
        Ok(Self {
            offered,
            servers,
            max_rounds,
        })
    }
}

/// What an entry of the list offers.
enum Entry {
    Tool(Tool),
    Server(WholeServer),
}

impl Entry {
    fn read(tool: &Value, allowance: &Allowance) -> Result<Self, String> {
        const KNOWN: [&str; 5] = ["workflow", "agent", "name", "description", "inputSchema"];
        let fields = tool.as_object().ok_or(" is not an object")?;
        let is_known = |name: &&str| KNOWN.contains(name) || server_tools::MEMBERS.contains(name);
        if let Some(unknown) = fields.keys().find(|name| !is_known(&name.as_str())) {
            let known: Vec<_> = KNOWN.into_iter().chain(server_tools::MEMBERS).collect();
            return Err(format!(
                ".{unknown} is not known; a tool has {}",
                known.join(", ")
            ));
        }
        let of_server = server_tools::read(fields)?;
        let (target, default_name, default_description) =
            match (text(fields, "workflow")?, text(fields, "agent")?, of_server) {
                (None, None, Some(Offered::Whole(server))) => return Ok(Self::Server(server)),
                (None, None, Some(Offered::One(tool))) => {
                    let name = tool.tool.clone();
                    (Target::Server(tool), name, None)
                }
                (Some(id), None, None) => {
                    let workflow = WorkflowId::parse(id).map_err(|e| format!(".workflow: {e}"))?;
                    if workflow.is_of_host() {
                        return Err(format!(
                            ".workflow '{id}' is the host's own: name server and tool, or an agent"
                        ));
                    }
                    let about = format!("Runs the workflow '{id}' and gives back its outputs.");
                    (Target::Workflow(workflow), id.to_owned(), Some(about))
                }
                (None, Some(agent), None) => {
                    let worker = format!("agent:{agent}");
                    let remote = Remote::of(&worker).filter(|_| agent.len() <= MAX_AGENT);
                    let remote = remote.ok_or(".agent names no agent: write PEER or PEER/SKILL")?;
                    let target = Target::Agent {
                        peer: remote.peer.to_owned(),
                        skill: remote.skill.map(str::to_owned),
                    };
                    let about = format!("Sends a message to the agent '{agent}' and gives back its answer.");
                    (target, format!("ask_{agent}"), Some(about))
                }
                (None, None, None) => {
                    return Err(" has neither workflow, nor agent, nor server or tool".to_owned());
                }
                (Some(_), Some(_), _) => return Err(" has both workflow and agent".to_owned()),
                (Some(_), _, Some(_)) => return Err(" has both workflow and server or tool".to_owned()),
                (_, Some(_), Some(_)) => return Err(" has both agent and server or tool".to_owned()),
            };
        let name = match text(fields, "name")? {
            Some(name) if is_name(name) => name.to_owned(),
            Some(_) => {
                return Err(format!(
                    ".name is not 1 to {MAX_NAME} letters, digits, underscores and hyphens"
                ));
            }
            None => name_of(&default_name),
        };
        let description = match text(fields, "description")? {
            Some(description) if (1..=MAX_DESCRIPTION).contains(&description.len()) => {
                Some(description.to_owned())
            }
            Some(_) => {
                return Err(format!(
                    ".description is not a text of 1 to {MAX_DESCRIPTION} bytes"
                ));
            }
            None => default_description,
        };
        let document = match (fields.get("inputSchema"), &target) {
            (None | Some(Value::Null), Target::Workflow(_)) => {
                Some(json!({ "type": "object", "properties": {} }))
            }
            (None | Some(Value::Null), Target::Server(_)) => None,
            (None | Some(Value::Null), Target::Agent { .. }) => Some(json!({
                "type": "object",
                "required": ["message"],
                "properties": { "message": { "type": "string", "minLength": 1, "description": "What the agent is told." } },
                "additionalProperties": false,
            })),
            (Some(_), Target::Agent { .. }) => {
                return Err(".inputSchema: an agent takes a text, the argument 'message'".to_owned());
            }
            (Some(document), Target::Workflow(_) | Target::Server(_)) => Some(document.clone()),
        };
        let arguments = match document {
            None => None,
            Some(document) if document.get("type").and_then(Value::as_str) == Some("object") => {
                Some(Arguments {
                    schema: Schema::compile(&document, allowance)
                        .map_err(|e| format!(".inputSchema: {e}"))?,
                    document,
                })
            }
            Some(_) => return Err(".inputSchema.type is not \"object\": arguments have names".to_owned()),
        };
        Ok(Self::Tool(Tool {
            name,
            description,
            arguments,
            target,
        }))
    }
}

impl Tool {
    /// Whether its server has to be asked what it is.
    pub(crate) const fn is_described_by_server(&self) -> bool {
        self.description.is_none() || self.arguments.is_none()
    }
}

pub(super) fn text<'f>(fields: &'f Map<String, Value>, name: &str) -> Result<Option<&'f str>, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!(".{name} is not a string")),
    }
}

const fn is_name_char(c: char) -> bool {
    matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-')
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_name_char)
}

/// A name that every provider takes.
pub(crate) fn name_of(text: &str) -> String {
    let shown = |c: char| if is_name_char(c) { c } else { '_' };
    text.chars().take(MAX_NAME).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tools: &Value) -> Result<Tools, String> {
        let config = json!({ "tools": tools });
        Tools::read(Config(config.as_object().unwrap()), &Allowance::default())
    }

    #[test]
    fn tools_have_names_and_schemas_where_the_node_gives_none() {
        let tools = read(&json!([{ "workflow": "rain-today" }, { "agent": "acme/review" }])).unwrap();
        let [rain, review] = tools.offered.as_slice() else {
            panic!("{tools:?}");
        };
        assert_eq!(
            (rain.name.as_str(), review.name.as_str()),
            ("rain-today", "ask_acme_review")
        );
        let arguments = review.arguments.as_ref().unwrap();
        assert_eq!(arguments.document["required"], json!(["message"]));
        assert_eq!(tools.max_rounds, 8);
        let target = Target::Agent {
            peer: "acme".to_owned(),
            skill: Some("review".to_owned()),
        };
        assert_eq!(review.target, target);
        assert_eq!(tools.query(), None, "the definition says all");
    }

    #[test]
    fn servers_are_asked_for_what_the_definition_does_not_say() {
        let wanted = |tools: Value| {
            let query = read(&tools).unwrap().query();
            let wanted = query.into_iter().flat_map(|query| query.wanted);
            wanted
                .map(|wanted| (wanted.server, wanted.tools.join(",")))
                .collect::<Vec<_>>()
        };
        let of = |server: &str, tools: &str| (server.to_owned(), tools.to_owned());
        let described = json!({ "tool": "a", "description": "A.", "inputSchema": { "type": "object" } });
        assert_eq!(wanted(json!([described])), []);
        assert_eq!(
            wanted(
                json!([{ "tool": "a" }, { "tool": "b", "description": "B." }, { "server": "s", "tool": "c" }])
            ),
            [of("default", "a,b"), of("s", "c")]
        );
        assert_eq!(
            wanted(
                json!([{ "tool": "a" }, { "server": "default", "only": ["b"] }, { "server": "s" }, { "server": "s", "tool": "c" }])
            ),
            [of("default", "b,a"), of("s", "")]
        );
        let tools =
            read(&json!([{ "server": "s", "tool": "files/read", "retrySafe": true, "timeoutMs": 5 }]))
                .unwrap();
        assert_eq!(tools.offered[0].name, "files_read");
        let Target::Server(tool) = &tools.offered[0].target else {
            panic!("{tools:?}");
        };
        assert_eq!(
            (tool.tool.as_str(), tool.retry_safe, tool.timeout_ms),
            ("files/read", Some(true), Some(5))
        );
    }

    #[test]
    fn wrong_tools_are_refused_with_their_place() {
        let many: Vec<_> = (0..=MAX_TOOLS)
            .map(|n| json!({ "workflow": format!("w{n}") }))
            .collect();
        for (tools, rule) in [
            (json!({}), "config.tools is not an array"),
            (json!(many), "config.tools has more than 64 entries"),
            (json!(["w"]), "config.tools[0] is not an object"),
            (
                json!([{}]),
                "config.tools[0] has neither workflow, nor agent, nor server or tool",
            ),
            (
                json!([{ "workflow": "w", "tool": "a" }]),
                "config.tools[0] has both workflow and server or tool",
            ),
            (
                json!([{ "agent": "w", "server": "a" }]),
                "config.tools[0] has both agent and server or tool",
            ),
            (
                json!([{ "workflow": "host-mcp-tool" }]),
                "config.tools[0].workflow 'host-mcp-tool' is the host's own: name server and tool, or an agent",
            ),
            (
                json!([{ "workflow": "w", "retrySafe": true }]),
                "config.tools[0].retrySafe is for a tool of a server: name server or tool",
            ),
            (
                json!([{ "tool": "a", "only": ["b"] }]),
                "config.tools[0] has both tool and only",
            ),
            (
                json!([{ "server": "s", "name": "a" }]),
                "config.tools[0].name is for one tool, and tool is missing",
            ),
            (
                json!([{ "server": "s" }, { "server": "s", "only": ["a"] }]),
                "config.tools[1]: the server 's' is offered twice",
            ),
            (
                json!([{ "server": "s", "only": [] }]),
                "config.tools[0].only is not a list of 1 to 64 names",
            ),
            (
                json!([{ "server": "s", "only": ["a", "a"] }]),
                "config.tools[0].only names 'a' twice",
            ),
            (
                json!([{ "tool": "" }]),
                "config.tools[0].tool is not a text of 1 to 256 bytes",
            ),
            (
                json!([{ "tool": "a", "timeoutMs": 0 }]),
                "config.tools[0].timeoutMs is not within 1 to 600000",
            ),
            (
                json!([{ "server": "s", "tool": "a" }, { "server": "t", "tool": "a" }]),
                "config.tools[1]: another tool is named 'a' as well; give one of them a name",
            ),
            (
                json!([{ "workflow": "w", "agent": "a" }]),
                "config.tools[0] has both workflow and agent",
            ),
            (
                json!([{ "workflow": "w", "url": "x" }]),
                "config.tools[0].url is not known; a tool has workflow, agent, name, description, inputSchema, server, tool, only, \
                 retrySafe, timeoutMs",
            ),
            (
                json!([{ "workflow": "w" }, { "workflow": "v", "name": "w" }]),
                "config.tools[1]: another tool is named 'w' as well; give one of them a name",
            ),
            (
                json!([{ "workflow": "w", "name": "a b" }]),
                "config.tools[0].name is not 1 to 64 letters, digits, underscores and hyphens",
            ),
            (
                json!([{ "workflow": "w", "inputSchema": { "type": "string" } }]),
                "config.tools[0].inputSchema.type is not \"object\": arguments have names",
            ),
            (
                json!([{ "agent": "a", "inputSchema": { "type": "object" } }]),
                "config.tools[0].inputSchema: an agent takes a text, the argument 'message'",
            ),
            (
                json!([{ "agent": "/x" }]),
                "config.tools[0].agent names no agent: write PEER or PEER/SKILL",
            ),
        ] {
            assert_eq!(read(&tools).map(drop), Err(rule.to_owned()));
        }
        let rounds = |config: Value| {
            Tools::read(Config(config.as_object().unwrap()), &Allowance::default())
                .map(|tools| tools.max_rounds)
        };
        assert_eq!(
            rounds(json!({ "maxToolRounds": 3 })),
            Err("config.maxToolRounds is for a node with config.tools".to_owned())
        );
        let tools = json!([{ "workflow": "w" }]);
        assert_eq!(
            rounds(json!({ "tools": tools, "maxToolRounds": 65 })),
            Err("config.maxToolRounds is not within 1 to 64".to_owned())
        );
        assert_eq!(rounds(json!({ "tools": tools, "maxToolRounds": 64 })), Ok(64));
    }
}
