//! `core.conversationGate`: its settings, which conversations of supervisors have as well.

use serde_json::Value;

use super::config::Config;
use crate::{
    definition::Node,
    expression::Template,
    schema::{Allowance, Schema},
};

pub(crate) const TYPE: &str = "core.conversationGate";

/// Most turns of one conversation, without the first and the last.
pub(crate) const MAX_TURNS: u64 = 200;
const DEFAULT_TURNS: u32 = 50;
/// Most pairs of turns of a scripted conversation.
pub(crate) const MAX_SCRIPTED: u64 = 20;
/// The channel that gets the turns, if the workflow declares it.
const CHANNEL: &str = "conversation";

#[derive(Debug)]
pub(crate) struct ConversationNode {
    pub title: Option<Template>,
    /// The gate's own turn.
    pub prompt: Option<Template>,
    /// Written to if the workflow declares it.
    pub channel: String,
    /// What the outcome must be, compiled and as written.
    pub outcome: Option<(Schema, Value)>,
    pub max_turns: u32,
    pub timeout_ms: Option<u64>,
    /// How many pairs of turns a conversation without people has.
    pub scripted: Option<u32>,
}

impl ConversationNode {
    /// The conversation in which a supervisor asks: it has no settings of its own.
    pub(super) fn of_supervisor() -> Self {
        Self {
            title: None,
            prompt: None,
            channel: CHANNEL.to_owned(),
            outcome: None,
            max_turns: DEFAULT_TURNS,
            timeout_ms: None,
            scripted: None,
        }
    }

    pub(super) fn read(node: &Node, is_conformance: bool, allowance: &Allowance) -> Result<Self, String> {
        let config = Config(&node.config);
        let template = |field: &str| {
            let source = config.text(field)?;
            let parsed = source.map(|source| Template::compile(source, allowance));
            parsed.transpose().map_err(|e| format!("config.{field}: {e}"))
        };
        let count = |field: &str, most: u64| match config.millis(field)? {
            Some(n) if !(1..=most).contains(&n) => Err(format!("config.{field} is not within 1 to {most}")),
            n => Ok(n.and_then(|n| u32::try_from(n).ok())),
        };
        match config.text("lifecycle")? {
            None | Some("open-exchange-close") => {}
            Some(other) => return Err(format!("config.lifecycle '{other}' is not open-exchange-close")),
        }
        let is_scripted = config.flag("mockAutoResume")?.unwrap_or(false);
        let n_pairs = count("turnCount", MAX_SCRIPTED)?;
        if is_scripted && !is_conformance {
            return Err("config.mockAutoResume is for hosts in conformance mode".to_owned());
        }
        if n_pairs.is_some() && !is_scripted {
            return Err("config.turnCount needs mockAutoResume".to_owned());
        }
        let outcome = match node.config.get("outcomeSchema") {
            None | Some(Value::Null) => None,
            Some(schema) => {
                let compiled = Schema::compile(schema, allowance);
                let compiled = compiled.map_err(|e| format!("config.outcomeSchema: {e}"))?;
                Some((compiled, schema.clone()))
            }
        };
        Ok(Self {
            title: template("title")?,
            prompt: template("prompt")?,
            channel: config.text("channel")?.unwrap_or(CHANNEL).to_owned(),
            outcome,
            max_turns: count("maxTurns", MAX_TURNS)?.unwrap_or(DEFAULT_TURNS),
            timeout_ms: config.millis("timeoutMs")?,
            scripted: is_scripted.then(|| n_pairs.unwrap_or(1)),
        })
    }
}
