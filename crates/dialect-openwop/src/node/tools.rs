//! The tools that a node offers to its model.
//!
//! A tool is work of this host: a child run of a workflow, or of the workflow that asks another agent. A model can name
//! what it was offered and nothing else, and its arguments have to match the tool's schema before anything begins.

use serde_json::{Map, Value, json};
use wopr_kernel::ModelTool;

use super::{config::Config, remote::Remote};
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
const MAX_DESCRIPTION: usize = 4_096;
/// Longest name of an agent, with its skill, in bytes.
const MAX_AGENT: usize = 1_024;

#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) offered: Vec<Tool>,
    /// How often the model may ask for tools in one execution.
    pub(crate) max_rounds: u64,
}

#[derive(Debug)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) description: String,
    /// The schema of the arguments, as the model is shown it.
    pub(crate) document: Value,
    pub(crate) schema: Schema,
    pub(crate) target: Target,
}

/// What a tool does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Runs the workflow with the arguments as its inputs, and gives back its outputs.
    Workflow(WorkflowId),
    /// Sends the argument `message` to an agent that the operator has configured.
    Agent { peer: String, skill: Option<String> },
}

impl Target {
    pub(crate) const fn transport(&self) -> Transport {
        match self {
            Self::Workflow(_) => Transport::Native,
            Self::Agent { .. } => Transport::Http,
        }
    }
}

impl Tools {
    /// The tool of this name, if the node offers it.
    pub(crate) fn find(&self, name: &str) -> Option<&Tool> {
        self.offered.iter().find(|tool| tool.name == name)
    }

    /// What a model is told of them.
    pub(crate) fn shown(&self) -> Vec<ModelTool> {
        let shown = |tool: &Tool| ModelTool {
            name: tool.name.clone(),
            description: tool.description.clone(),
            schema: tool.document.clone(),
        };
        self.offered.iter().map(shown).collect()
    }

    pub(super) fn read(config: Config<'_>, allowance: &Allowance) -> Result<Self, String> {
        let list = match config.0.get("tools") {
            None | Some(Value::Null) => &[][..],
            Some(Value::Array(list)) if list.len() <= MAX_TOOLS => list,
            Some(Value::Array(_)) => return Err(format!("config.tools has more than {MAX_TOOLS} entries")),
            Some(_) => return Err("config.tools is not an array".to_owned()),
        };
        let mut offered: Vec<Tool> = Vec::with_capacity(list.len());
        for (n, tool) in list.iter().enumerate() {
            let tool = Tool::read(tool, allowance).map_err(|rule| format!("config.tools[{n}]{rule}"))?;
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
            Some(_) if offered.is_empty() => {
                return Err("config.maxToolRounds is for a node with config.tools".to_owned());
            }
            Some(n) if (1..=MAX_ROUNDS).contains(&n) => n,
            Some(_) => return Err(format!("config.maxToolRounds is not within 1 to {MAX_ROUNDS}")),
        };
        Ok(Self { offered, max_rounds })
    }
}

impl Tool {
    fn read(tool: &Value, allowance: &Allowance) -> Result<Self, String> {
        const KNOWN: [&str; 5] = ["workflow", "agent", "name", "description", "inputSchema"];
        let fields = tool.as_object().ok_or(" is not an object")?;
        if let Some(unknown) = fields.keys().find(|name| !KNOWN.contains(&name.as_str())) {
            return Err(format!(
                ".{unknown} is not known; a tool has {}",
                KNOWN.join(", ")
            ));
        }
        let (target, default_name, default_description) =
            match (text(fields, "workflow")?, text(fields, "agent")?) {
                (Some(id), None) => (
                    Target::Workflow(WorkflowId::parse(id).map_err(|e| format!(".workflow: {e}"))?),
                    id.to_owned(),
                    format!("Runs the workflow '{id}' and gives back its outputs."),
                ),
                (None, Some(agent)) => {
                    let worker = format!("agent:{agent}");
                    let remote = Remote::of(&worker).filter(|_| agent.len() <= MAX_AGENT);
                    let remote = remote.ok_or(".agent names no agent: write PEER or PEER/SKILL")?;
                    let target = Target::Agent {
                        peer: remote.peer.to_owned(),
                        skill: remote.skill.map(str::to_owned),
                    };
                    let about = format!("Sends a message to the agent '{agent}' and gives back its answer.");
                    (target, format!("ask_{agent}"), about)
                }
                (Some(_), Some(_)) => return Err(" has both workflow and agent".to_owned()),
                (None, None) => return Err(" has neither workflow nor agent".to_owned()),
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
            Some(description) if (1..=MAX_DESCRIPTION).contains(&description.len()) => description.to_owned(),
            Some(_) => {
                return Err(format!(
                    ".description is not a text of 1 to {MAX_DESCRIPTION} bytes"
                ));
            }
            None => default_description,
        };
        let document = match (fields.get("inputSchema"), &target) {
            (None | Some(Value::Null), Target::Workflow(_)) => json!({ "type": "object", "properties": {} }),
            (None | Some(Value::Null), Target::Agent { .. }) => json!({
                "type": "object",
                "required": ["message"],
                "properties": { "message": { "type": "string", "minLength": 1, "description": "What the agent is told." } },
                "additionalProperties": false,
            }),
            (Some(_), Target::Agent { .. }) => {
                return Err(".inputSchema: an agent takes a text, the argument 'message'".to_owned());
            }
            (Some(document), Target::Workflow(_)) => document.clone(),
        };
        if document.get("type").and_then(Value::as_str) != Some("object") {
            return Err(".inputSchema.type is not \"object\": arguments have names".to_owned());
        }
        Ok(Self {
            schema: Schema::compile(&document, allowance).map_err(|e| format!(".inputSchema: {e}"))?,
            name,
            description,
            document,
            target,
        })
    }
}

fn text<'f>(fields: &'f Map<String, Value>, name: &str) -> Result<Option<&'f str>, String> {
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
        let shown = tools.shown();
        assert_eq!(
            (shown[0].name.as_str(), shown[1].name.as_str()),
            ("rain-today", "ask_acme_review")
        );
        assert_eq!(shown[1].schema["required"], json!(["message"]));
        assert_eq!(tools.max_rounds, 8);
        let target = Target::Agent {
            peer: "acme".to_owned(),
            skill: Some("review".to_owned()),
        };
        assert_eq!(tools.find("ask_acme_review").unwrap().target, target);
        assert!(tools.find("ask_acme").is_none());
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
            (json!([{}]), "config.tools[0] has neither workflow nor agent"),
            (
                json!([{ "workflow": "w", "agent": "a" }]),
                "config.tools[0] has both workflow and agent",
            ),
            (
                json!([{ "workflow": "w", "url": "x" }]),
                "config.tools[0].url is not known; a tool has workflow, agent, name, description, inputSchema",
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
