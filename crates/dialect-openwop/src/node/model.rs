//! The nodes that ask a model: `core.ai.callPrompt` and `core.ai.structuredOutput`.
//!
//! A workflow names a provider of the host's configuration. It holds neither a credential nor an address.

use serde_json::{Map, Value};
use wopr_kernel::{ApprovalAction, ApprovalRules, NodeTypes, Rules};

use super::{config::Config, tools::Tools};
use crate::{
    definition::Node,
    expression::{Template, is_template},
    schema::{Allowance, Schema},
};

pub(crate) const CALL_PROMPT: &str = "core.ai.callPrompt";
pub(crate) const STRUCTURED_OUTPUT: &str = "core.ai.structuredOutput";

/// The provider that a node asks if it names none.
const DEFAULT_PROVIDER: &str = "default";
/// The scripted provider of conformance mode.
pub(crate) const MOCK: &str = "mock";
/// Longest name of a provider or a model, in bytes.
pub(crate) const MAX_NAME: usize = 256;
/// The most tokens of an answer, unless the node says otherwise.
const MAX_TOKENS: u64 = 4_096;
/// The most tokens that a node may ask for.
pub(crate) const MOST_TOKENS: u64 = 200_000;
/// Time limit of an attempt, unless the node says otherwise.
const TIMEOUT_MS: u64 = 120_000;
/// The longest time limit of an attempt.
pub(crate) const MODEL_MAX_TIMEOUT_MS: u64 = 600_000;
/// Attempts after the first that a provider failed, unless the node's settings say otherwise.
pub(crate) const MODEL_RETRIES: u32 = 3;
/// How often an answer may be asked for again that does not match its schema.
pub const MAX_REPAIRS: u64 = 10;
/// That number, unless the node says otherwise.
const REPAIRS: u64 = 2;
/// The most messages of a conversation.
pub(crate) const MAX_MESSAGES: usize = 1_000;

/// Whether nodes of a type ask a model.
pub(crate) fn asks_model(type_id: &str) -> bool {
    [CALL_PROMPT, STRUCTURED_OUTPUT].contains(&type_id)
}

#[derive(Debug)]
pub(crate) struct ModelNode {
    /// The name of the provider in the host's configuration.
    pub provider: String,
    /// The provider's configured model where absent.
    pub model: Option<String>,
    /// An input port `systemPrompt` takes precedence.
    pub system: Option<Template>,
    /// An input port `prompt` takes precedence.
    pub prompt: Option<Template>,
    /// An input port `messages` takes precedence.
    pub messages: Vec<(ModelRole, Template)>,
    pub temperature: Option<f64>,
    pub max_tokens: u64,
    pub timeout_ms: u64,
    pub answer: ModelAnswer,
    pub tools: Tools,
    /// Who may grant the run more when its budget is used up.
    pub more_money: Rules,
}

/// Who says something in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelRole {
    System,
    User,
    Assistant,
}

impl ModelRole {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "system" | "developer" => Some(Self::System),
            "user" => Some(Self::User),
            "assistant" => Some(Self::Assistant),
            _ => None,
        }
    }
}

/// What is wanted of a model.
#[derive(Debug)]
pub(crate) enum ModelAnswer {
    Text {
        /// Whether it becomes part of the run while it is written.
        streams: bool,
    },
    Document(Box<Wanted>),
}

/// A JSON document that is wanted of a model.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub document: Value,
    pub schema: Schema,
    /// How often it is asked for again.
    pub repairs: u64,
}

impl Wanted {
    /// What the schema calls its documents, if it names them.
    pub(crate) fn name(&self) -> Option<&str> {
        let named = |key| self.document.get(key).and_then(Value::as_str);
        named("title").or(named("$id"))
    }
}

impl ModelNode {
    pub(super) fn read(node: &Node, node_types: NodeTypes, allowance: &Allowance) -> Result<Self, String> {
        let config = Config(&node.config);
        let name = |field: &str| match config.text(field)? {
            Some(name) if name.is_empty() || name.len() > MAX_NAME => {
                Err(format!("config.{field} is not a text of 1 to {MAX_NAME} bytes"))
            }
            name => Ok(name.map(str::to_owned)),
        };
        let template = |field: &str| {
            let source = config.text(field)?;
            source
                .map(|source| Template::compile(source, allowance))
                .transpose()
                .map_err(|e| format!("config.{field}: {e}"))
        };
        let within = |field: &str, most: u64, default: u64| match config.millis(field)? {
            None => Ok(default),
            Some(n) if (1..=most).contains(&n) => Ok(n),
            Some(_) => Err(format!("config.{field} is not within 1 to {most}")),
        };
        let temperature = match config.0.get("temperature") {
            None | Some(Value::Null) => None,
            Some(value) => Some(
                value
                    .as_f64()
                    .filter(|t| (0.0..=2.0).contains(t))
                    .ok_or("config.temperature is not a number of 0 to 2")?,
            ),
        };
        let prompt = match (config.text("promptId")?, template("prompt")?) {
            (None, prompt) => prompt,
            (Some(_), Some(_)) => return Err("config has both prompt and promptId".to_owned()),
            // The conformance suite names prompts that every host is to make up.
            (Some(id), None) if node_types.conformance && !is_template(id) => {
                Some(Template::compile(id, allowance).map_err(|e| format!("config.promptId: {e}"))?)
            }
            (Some(_), None) => {
                return Err(
                    "config.promptId: this host has no library of prompts; use config.prompt".to_owned(),
                );
            }
        };
        let is_named = config.0.get("promptId").is_some();
        let answer = if node.type_id == STRUCTURED_OUTPUT {
            let document = config
                .0
                .get("outputSchema")
                .ok_or("config.outputSchema is missing")?;
            ModelAnswer::Document(Box::new(Wanted {
                schema: Schema::compile(document, allowance)
                    .map_err(|e| format!("config.outputSchema: {e}"))?,
                document: document.clone(),
                repairs: match config.millis("retryOnInvalidJson")?.unwrap_or(0) {
                    n if n > MAX_REPAIRS => {
                        return Err(format!("config.retryOnInvalidJson is more than {MAX_REPAIRS}"));
                    }
                    // The host repairs in any case.
                    n => n.max(REPAIRS),
                },
            }))
        } else {
            let streams = config.flag("expectsStreaming")?.or(config.flag("stream")?);
            ModelAnswer::Text {
                streams: streams.unwrap_or(true),
            }
        };
        Ok(Self {
            provider: match name("provider")? {
                Some(provider) => provider,
                None if is_named => MOCK.to_owned(),
                None => DEFAULT_PROVIDER.to_owned(),
            },
            model: name("model")?,
            system: template("systemPrompt")?,
            prompt,
            messages: messages(config.0, allowance)?,
            temperature,
            max_tokens: within("maxTokens", MOST_TOKENS, MAX_TOKENS)?,
            timeout_ms: within("timeoutMs", MODEL_MAX_TIMEOUT_MS, TIMEOUT_MS)?,
            answer,
            tools: Tools::read(config, allowance)?,
            more_money: Rules::Approval(ApprovalRules {
                actions: vec![ApprovalAction::Accept, ApprovalAction::Reject],
                required: 1,
                majority: false,
                approvers: Vec::new(),
                refs: Vec::new(),
                has_refs: false,
                // Money is spent by somebody who is known.
                auth_required: true,
                edited: None,
            }),
        })
    }
}

fn messages(
    config: &Map<String, Value>,
    allowance: &Allowance,
) -> Result<Vec<(ModelRole, Template)>, String> {
    let messages = match config.get("messages") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(messages)) if messages.len() <= MAX_MESSAGES => messages,
        Some(Value::Array(_)) => return Err(format!("config.messages has more than {MAX_MESSAGES} entries")),
        Some(_) => return Err("config.messages is not an array".to_owned()),
    };
    let read = |(n, message): (usize, &Value)| {
        let text = |field: &str| message.get(field).and_then(Value::as_str);
        let role = text("role").and_then(ModelRole::parse);
        let role =
            role.ok_or_else(|| format!("config.messages[{n}].role is not system, user or assistant"))?;
        let content =
            text("content").ok_or_else(|| format!("config.messages[{n}].content is not a string"))?;
        let content = Template::compile(content, allowance)
            .map_err(|e| format!("config.messages[{n}].content: {e}"))?;
        Ok((role, content))
    };
    messages.iter().enumerate().map(read).collect()
}
