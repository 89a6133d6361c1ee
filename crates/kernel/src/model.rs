//! What a model is asked, and what it answers, in no provider's words.
//!
//! A request is complete: its executor adds an address, a credential and the provider's spelling. A reply holds
//! everything that a run may observe of the answer, so a run that is replayed needs no second one.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{BudgetKey, measure::size_of};

/// One request to a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelCall {
    /// The name of the provider in this host's configuration.
    pub provider: String,
    /// The model as its provider names it; the provider's configured one where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub messages: Vec<ModelMessage>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ModelTool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// The most tokens of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// The JSON Schema of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// Whether the text becomes part of the run while it is written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub streams: bool,
    /// What the run was started with for the scripted model of a conformance suite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Value>,
    /// Time limit of one attempt.
    pub timeout_ms: u64,
    /// The shared budgets that the call may go beyond, because somebody has granted the run more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub granted: Vec<BudgetKey>,
    /// Whether the host has to hold the call against what the run has left: of a budget of its own, or of a grant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_run_budget: bool,
}

impl ModelCall {
    /// The size of what is said, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let messages: usize = self.messages.iter().map(ModelMessage::size).sum();
        let tools = self.tools.iter();
        let tools = tools.map(|tool| tool.name.len() + tool.description.len() + size_of(&tool.schema));
        let more = [&self.schema, &self.script].into_iter().flatten();
        messages + tools.sum::<usize>() + more.map(size_of).sum::<usize>()
    }
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum ModelMessage {
    System {
        content: String,
    },
    User {
        content: String,
    },
    Assistant {
        content: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
    },
    /// What a tool gave back.
    Tool {
        call_id: String,
        name: String,
        content: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
}

impl ModelMessage {
    /// The approximate size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::System { content } | Self::User { content } => content.len(),
            Self::Assistant { content, tool_calls } => {
                content.len() + tool_calls.iter().map(ToolCall::size).sum::<usize>()
            }
            Self::Tool {
                call_id,
                name,
                content,
                is_error: _,
            } => call_id.len() + name.len() + content.len(),
        }
    }
}

/// A tool that a model may ask for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelTool {
    pub name: String,
    pub description: String,
    /// The JSON Schema of its arguments.
    pub schema: Value,
}

/// A tool that a model asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    pub arguments: Value,
    /// What its provider wants to see again with the call, in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

impl ToolCall {
    /// The approximate size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let signature = self.signature.as_ref().map_or(0, String::len);
        self.id.len() + self.name.len() + size_of(&self.arguments) + signature
    }
}

/// What a model answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelReply {
    /// The provider and the model that answered, as both name themselves.
    pub provider: String,
    pub model: String,
    pub text: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    pub stop: ModelStop,
    /// What the model thought, as far as its provider says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The words of a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// The key of the call: equal for calls that asked the same of the same model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_key: Option<String>,
    pub usage: ModelUsage,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelStop {
    /// The model had said everything.
    End,
    /// The answer reached its limit of tokens.
    Length,
    /// The model waits for the results of tools.
    Tools,
    /// The model, or its provider, refused.
    Refusal,
}

/// How a streamed answer ended, as its last chunk says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AnswerEnd {
    pub model: String,
    pub stop: ModelStop,
    pub usage: ModelUsage,
}

impl AnswerEnd {
    #[must_use]
    pub fn of(reply: &ModelReply) -> Self {
        Self {
            model: reply.model.clone(),
            stop: reply.stop,
            usage: reply.usage,
        }
    }
}

/// What an answer took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// The part of the input that the provider had in a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_read_tokens: Option<u64>,
    /// The part of the input that it put there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<u64>,
    /// In US dollars, by the prices that the operator configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// How long its host waited for the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

impl ModelUsage {
    #[must_use]
    pub const fn total_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Adds what another answer took.
    pub fn add(&mut self, other: &Self) {
        let sum = |ours: Option<u64>, theirs: Option<u64>| match (ours, theirs) {
            (None, None) => None,
            (ours, theirs) => Some(ours.unwrap_or(0).saturating_add(theirs.unwrap_or(0))),
        };
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cache_read_tokens = sum(self.cache_read_tokens, other.cache_read_tokens);
        self.cache_write_tokens = sum(self.cache_write_tokens, other.cache_write_tokens);
        self.duration_ms = sum(self.duration_ms, other.duration_ms);
        self.cost_usd = match (self.cost_usd, other.cost_usd) {
            (None, None) => None,
            (ours, theirs) => Some(ours.unwrap_or(0.0) + theirs.unwrap_or(0.0)),
        };
    }
}
