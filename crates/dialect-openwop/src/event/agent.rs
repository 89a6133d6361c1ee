//! What agents do, as events of the nodes at which they do it.
//!
//! An act names its execution and its agent, and nothing that a repetition of the run could not reproduce: call
//! ids count the calls of an execution, and a duration is that between two recorded times.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use wopr_kernel::{Seq, StepId};

use crate::measure::size_of;

/// One act of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentEvent {
    pub step: StepId,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// The agent's id.
    pub agent: String,
    pub act: Act,
}

/// Variant names are stored and must never change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// The agent begins to work.
    Invoked(Invocation),
    /// A piece of its reasoning. The act that follows the last piece contains them all.
    ReasoningDelta {
        delta: String,
        /// Counts the pieces, from 0.
        sequence: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verbosity: Option<Verbosity>,
    },
    Reasoned {
        reasoning: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verbosity: Option<Verbosity>,
        /// How many tokens the reasoning took.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tokens: Option<u64>,
    },
    ToolCalled {
        call: String,
        tool: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        inputs: Option<Value>,
        /// The hash of the inputs, which also tells those apart that are too large to be kept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        args_hash: Option<String>,
        /// For whom the run calls it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        principal: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        transport: Option<Transport>,
    },
    ToolReturned {
        call: String,
        tool: String,
        status: CallStatus,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcome: Option<Value>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<CallError>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        duration_ms: Option<u64>,
    },
    HandedOff {
        /// The id of the agent that goes on.
        to: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// What the other agent is given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context: Option<Value>,
    },
    Decided {
        decision: Value,
        /// Within 0 to 1; absent if the agent has no opinion.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        confidence: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reasoning: Option<String>,
    },
    /// The agent judged what another one made, and says nothing of its content.
    Verified {
        target: Target,
        verdict: Verdict,
        /// The names of the criteria that it applied.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        criteria: Vec<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        confidence: Option<f64>,
    },
    /// The agent has done its work.
    Finished {
        outcome: Outcome,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        confidence: Option<f64>,
        /// Whether what it said follows the schema that it was given, if it was given one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        is_valid: Option<bool>,
    },
}

/// With what an agent begins.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Invocation {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// How many tools it may call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_tools: Option<u64>,
    /// Whether it has a memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_memory: Option<bool>,
}

/// How much of an agent's reasoning is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verbosity {
    Summary,
    Full,
    Off,
}

impl Verbosity {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Summary => "summary",
            Self::Full => "full",
            Self::Off => "off",
        }
    }

    /// Parses the spelling of [`Self::as_str`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Summary, Self::Full, Self::Off]
            .into_iter()
            .find(|verbosity| verbosity.as_str() == text)
    }
}

/// How a tool is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    Mcp,
    Http,
    Native,
}

impl Transport {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mcp => "mcp",
            Self::Http => "http",
            Self::Native => "native",
        }
    }
}

/// How a tool's call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    Ok,
    Error,
    Forbidden,
    RateLimited,
}

impl CallStatus {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Forbidden => "forbidden",
            Self::RateLimited => "rate_limited",
        }
    }
}

/// Why a tool's call failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallError {
    pub code: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

/// What a verifier has judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Target {
    /// An event of the run. A fork has the same one under its own id.
    Event(Seq),
    /// The id of a run or of a call.
    Id(String),
}

/// What a verifier says of another agent's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Pass,
    Fail,
    /// It has to be done again.
    Revise,
}

impl Verdict {
    pub(crate) const ALL: [Self; 3] = [Self::Pass, Self::Fail, Self::Revise];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Revise => "revise",
        }
    }
}

/// How an agent's work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Completed,
    HandedOff,
    Escalated,
    Refused,
    Failed,
}

impl Outcome {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::HandedOff => "handed-off",
            Self::Escalated => "escalated",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

impl AgentEvent {
    /// The approximate payload in bytes.
    pub(crate) fn size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let value = |value: &Option<Value>| value.as_ref().map_or(0, size_of);
        self.agent.len()
            + match &self.act {
                Act::Invoked(_) | Act::Finished { .. } => 0,
                Act::ReasoningDelta { delta, .. } => delta.len(),
                Act::Reasoned { reasoning, .. } => reasoning.len(),
                Act::ToolCalled {
                    tool,
                    inputs,
                    args_hash,
                    principal,
                    ..
                } => tool.len() + value(inputs) + text(args_hash) + text(principal),
                Act::ToolReturned {
                    tool, outcome, error, ..
                } => {
                    let error = error.as_ref();
                    let error = error.map_or(0, |error| error.message.len() + value(&error.details));
                    tool.len() + value(outcome) + error
                }
                Act::HandedOff { to, reason, context } => to.len() + text(reason) + value(context),
                Act::Decided {
                    decision, reasoning, ..
                } => size_of(decision) + text(reasoning),
                Act::Verified { target, criteria, .. } => {
                    let target = match target {
                        Target::Event(_) => 0,
                        Target::Id(id) => id.len(),
                    };
                    target + criteria.iter().map(String::len).sum::<usize>()
                }
            }
    }
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}
