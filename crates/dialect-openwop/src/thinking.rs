//! A conversation between a step and a model, as the run's log has it.
//!
//! The log has what the step composed, every reply, and what the step made of each. The next request is a function of
//! these alone, so a step that was interrupted anywhere goes on with the same words.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use wopr_kernel::{ModelCall, ModelMessage, ModelReply, ModelUsage, cost, measure::size_of};

use crate::node::{ModelAnswer, ModelNode};

/// The conversation of an active step.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Thinking {
    /// What the step composed.
    pub(crate) messages: Vec<ModelMessage>,
    pub(crate) turns: Vec<Turn>,
}

/// A reply, and how the step goes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) reply: ModelReply,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) then: Option<Then>,
}

/// Why a model is asked again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Then {
    /// Its document is wrong.
    Repair(String),
    /// It wrote prose.
    Reformat,
    /// It had no room for the rest.
    MoreRoom,
}

impl Thinking {
    /// How often the step went on in such a way.
    pub(crate) fn count(&self, is_such: impl Fn(&Then) -> bool) -> u64 {
        let such = self.turns.iter().filter_map(|turn| turn.then.as_ref());
        such.filter(|then| is_such(then)).count() as u64
    }

    /// What all replies took.
    pub(crate) fn usage(&self) -> ModelUsage {
        let mut sum = ModelUsage::default();
        for turn in &self.turns {
            sum.add(&turn.reply.usage);
        }
        sum
    }

    /// The most tokens of the next answer.
    pub(crate) fn max_tokens(&self, node: &ModelNode) -> u64 {
        let doublings = self.count(|then| matches!(then, Then::MoreRoom));
        node.max_tokens.saturating_mul(1 << doublings.min(16))
    }

    /// The next request.
    pub(crate) fn request(&self, node: &ModelNode, script: Option<Value>) -> ModelCall {
        let mut messages = self.messages.clone();
        for turn in &self.turns {
            let words = match &turn.then {
                // With more room the same question is asked.
                None | Some(Then::MoreRoom) => continue,
                Some(Then::Repair(error)) => format!(
                    "That is not the document that was asked for: {error}. Answer with the corrected JSON document and \
                     nothing else."
                ),
                Some(Then::Reformat) => {
                    "Write the same as one JSON document that matches the schema, and nothing else."
                        .to_owned()
                }
            };
            if !turn.reply.text.is_empty() {
                messages.push(ModelMessage::Assistant {
                    content: turn.reply.text.clone(),
                    tool_calls: Vec::new(),
                });
            }
            messages.push(ModelMessage::User { content: words });
        }
        let (schema, streams) = match &node.answer {
            ModelAnswer::Text { streams } => (None, *streams),
            ModelAnswer::Document(wanted) => (Some(wanted.document.clone()), false),
        };
        ModelCall {
            provider: node.provider.clone(),
            model: node.model.clone(),
            messages,
            tools: Vec::new(),
            temperature: node.temperature,
            max_tokens: Some(self.max_tokens(node)),
            schema,
            streams,
            script,
            timeout_ms: node.timeout_ms,
        }
    }

    /// The units of state that it occupies.
    pub(crate) fn weight(&self) -> u64 {
        let said: usize = self.messages.iter().map(ModelMessage::size).sum();
        let replied: usize = self.turns.iter().map(|turn| size_of_reply(&turn.reply)).sum();
        cost::bytes(said + replied)
    }
}

pub(crate) fn size_of_reply(reply: &ModelReply) -> usize {
    let calls = reply.tool_calls.iter().map(|call| size_of(&call.arguments));
    reply.text.len() + calls.sum::<usize>()
}
