//! A conversation between a step and a model, as the run's log has it.
//!
//! The log has what the step composed, every reply, and what the step made of each. The next request is a function of
//! these alone, so a step that was interrupted anywhere goes on with the same words.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use wopr_kernel::{
    AskedMore, BudgetKey, ListedTool, ModelCall, ModelMessage, ModelReply, ModelUsage, RunId, Seq, ToolCall,
    cost, fence,
};

use crate::{
    Act, Summarizing,
    node::{MOCK, ModelAnswer, ModelNode, name_of},
    overrides::Overrides,
    transcript::told_summary,
};

/// Longest id of a call that a provider is told again as it gave it.
const MAX_CALL_ID: usize = 256;
/// The most tokens of a summary.
const SUMMARY_TOKENS: u64 = 1_024;

/// The conversation of an active step.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Thinking {
    /// What the step composed.
    pub(crate) messages: Vec<ModelMessage>,
    /// What servers say of the tools that the definition does not describe; absent until they have said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) listed: Option<Vec<ListedTool>>,
    pub(crate) turns: Vec<Turn>,
    /// What is summed up first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) summarizing: Option<Box<Summarizing>>,
    /// The budget that the step's open approval asks to raise, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) asks_more: Option<Box<More>>,
}

/// What somebody is asked for when a budget is used up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum More {
    /// The budget of the run once more.
    OfRun,
    /// More than a budget has that the run shares.
    Shared(AskedMore),
}

/// The type of the artifact that an approval of more money is about.
pub(crate) const BUDGET: &str = "budget";

impl More {
    /// Reads it from the data of a question. `None` if that is about something else.
    pub(crate) fn read(question: &Value) -> Option<Self> {
        let is_money = question.get("artifactType").and_then(Value::as_str) == Some(BUDGET);
        let of_run = is_money.then_some(Self::OfRun);
        AskedMore::read(question).map(Self::Shared).or(of_run)
    }
}

/// A reply, and how the step goes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) reply: ModelReply,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) then: Option<Then>,
    /// The tools that it asks for, in its order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) uses: Vec<ToolUse>,
}

/// A tool that a reply asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ToolUse {
    /// The id by which the log knows the call.
    pub(crate) call: String,
    /// The event of the call.
    pub(crate) called: Seq,
    /// The child run that works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) child: Option<RunId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<ToolAnswer>,
}

/// The result of a tool, as the text that the model reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ToolAnswer {
    pub(crate) text: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_error: bool,
}

impl ToolUse {
    /// Whether a child run works on it, or it has been answered.
    pub(crate) const fn has_begun(&self) -> bool {
        self.child.is_some() || self.answer.is_some()
    }
}

impl Turn {
    pub(crate) const fn of(reply: ModelReply) -> Self {
        Self {
            reply,
            then: None,
            uses: Vec::new(),
        }
    }

    /// Whether all tools have returned that it asks for, if it asks for any.
    pub(crate) fn is_answered(&self) -> bool {
        let n_answered = self.uses.iter().filter(|known| known.answer.is_some()).count();
        n_answered > 0 && n_answered == self.reply.tool_calls.len()
    }

    /// What the model asked for and what it got, as both are said to it again.
    fn say_again(&self, number: usize, messages: &mut Vec<ModelMessage>) {
        let calls = &self.reply.tool_calls;
        let is_clear = |n: usize, call: &ToolCall| {
            (1..=MAX_CALL_ID).contains(&call.id.len()) && !calls[..n].iter().any(|other| other.id == call.id)
        };
        let are_clear = calls.iter().enumerate().all(|(n, call)| is_clear(n, call));
        let id = |n: usize, call: &ToolCall| match are_clear {
            true => call.id.clone(),
            // A provider that repeats an id could not tell the results apart.
            false => format!("call_{number}_{n}"),
        };
        let asked = calls.iter().enumerate().map(|(n, call)| ToolCall {
            id: id(n, call),
            // One that the model made up may be a name that its provider does not take back.
            name: name_of(&call.name),
            ..call.clone()
        });
        messages.push(ModelMessage::Assistant {
            content: self.reply.text.clone(),
            tool_calls: asked.collect(),
        });
        for (n, (call, known)) in calls.iter().zip(&self.uses).enumerate() {
            let Some(answer) = &known.answer else { continue };
            messages.push(ModelMessage::Tool {
                call_id: id(n, call),
                name: name_of(&call.name),
                content: fence(&format!("tool:{}", call.name), &answer.text),
                is_error: answer.is_error,
            });
        }
    }
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
    /// What servers say of the tools.
    pub(crate) fn listed(&self) -> &[ListedTool] {
        self.listed.as_deref().unwrap_or_default()
    }

    /// How often the step went on in such a way.
    pub(crate) fn count(&self, is_such: impl Fn(&Then) -> bool) -> u64 {
        let such = self.turns.iter().filter_map(|turn| turn.then.as_ref());
        such.filter(|then| is_such(then)).count() as u64
    }

    /// How many answers there are that ask for no tools.
    pub(crate) fn n_answers(&self) -> u64 {
        self.turns.iter().filter(|turn| turn.uses.is_empty()).count() as u64
    }

    /// How often the model has been told what tools gave back.
    pub(crate) fn n_rounds(&self) -> u64 {
        self.turns.iter().filter(|turn| !turn.uses.is_empty()).count() as u64
    }

    /// How many tools it asked for.
    pub(crate) fn n_uses(&self) -> usize {
        self.turns.iter().map(|turn| turn.uses.len()).sum()
    }

    /// The call that a child run works on, and the name of its tool.
    pub(crate) fn use_of(&self, child: &RunId) -> Option<(&ToolUse, &str)> {
        let turn = self.turns.last()?;
        let mut uses = turn.uses.iter().zip(&turn.reply.tool_calls);
        let (known, call) = uses.find(|(known, _)| known.child.as_ref() == Some(child))?;
        Some((known, &call.name))
    }

    /// The size of what all tools have given back.
    pub(crate) fn size_of_results(&self) -> usize {
        let uses = self.turns.iter().flat_map(|turn| &turn.uses);
        uses.filter_map(|known| known.answer.as_ref())
            .map(|answer| answer.text.len())
            .sum()
    }

    /// Folds in what was done about a tool.
    pub(crate) fn follow(&mut self, seq: Seq, act: &Act) {
        let Some(turn) = self.turns.last_mut() else { return };
        match act {
            Act::ToolCalled { call, .. } => turn.uses.push(ToolUse {
                call: call.clone(),
                called: seq,
                child: None,
                answer: None,
            }),
            Act::ToolReturned {
                call, outcome, error, ..
            } => {
                let answer = match (error, outcome) {
                    (Some(error), _) => ToolAnswer {
                        text: format!("{}: {}", error.code, error.message),
                        is_error: true,
                    },
                    (None, outcome) => ToolAnswer {
                        text: outcome.as_ref().map_or_else(|| "{}".to_owned(), Value::to_string),
                        is_error: false,
                    },
                };
                if let Some(known) = turn.uses.iter_mut().find(|known| known.call == *call) {
                    known.answer = Some(answer);
                }
            }
            Act::Invoked(_)
            | Act::ReasoningDelta { .. }
            | Act::Reasoned { .. }
            | Act::HandedOff { .. }
            | Act::Decided { .. }
            | Act::Verified { .. }
            | Act::Finished { .. } => {}
        }
    }

    /// Folds in that a child run works on a call.
    pub(crate) fn begun(&mut self, child: &RunId, called: Seq) {
        let uses = self.turns.last_mut().map(|turn| turn.uses.iter_mut());
        if let Some(known) = uses.into_iter().flatten().find(|known| known.called == called) {
            known.child = Some(child.clone());
        }
    }

    /// Forgets the child runs of another run, whose calls begin again.
    pub(crate) fn begin_again(&mut self) {
        let uses = self.turns.last_mut().map(|turn| turn.uses.iter_mut());
        for known in uses.into_iter().flatten().filter(|known| known.answer.is_none()) {
            known.child = None;
        }
    }

    /// Puts a summary in the place of what was summed up. Returns how many turns it stands for.
    pub(crate) fn summarized(&mut self, text: &str) -> usize {
        let Some(summarizing) = self.summarizing.take() else {
            return 0;
        };
        let at = usize::try_from(summarizing.at).unwrap_or(usize::MAX);
        let summary = ModelMessage::User {
            content: told_summary(text),
        };
        self.messages.insert(at.min(self.messages.len()), summary);
        usize::try_from(summarizing.n_turns).unwrap_or(usize::MAX)
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
    pub(crate) fn max_tokens(&self, node: &ModelNode, overrides: Overrides<'_>) -> u64 {
        let doublings = self.count(|then| matches!(then, Then::MoreRoom));
        let most = overrides.max_tokens().unwrap_or(node.max_tokens);
        most.saturating_mul(1 << doublings.min(16))
    }

    /// The next request.
    pub(crate) fn request(
        &self,
        node: &ModelNode,
        overrides: Overrides<'_>,
        script: Option<Value>,
        granted: Vec<BudgetKey>,
    ) -> ModelCall {
        let provider = overrides.provider().unwrap_or(&node.provider);
        // The node's model belongs to the node's own provider.
        let own = node.model.as_deref().filter(|_| provider == node.provider);
        let request = ModelCall {
            provider: provider.to_owned(),
            model: overrides.model().or(own).map(str::to_owned),
            messages: Vec::new(),
            tools: Vec::new(),
            temperature: overrides.temperature().or(node.temperature),
            max_tokens: None,
            schema: None,
            streams: false,
            script: script.filter(|_| provider == MOCK),
            timeout_ms: node.timeout_ms,
            granted,
            has_run_budget: false,
        };
        if let Some(summarizing) = &self.summarizing {
            let most = overrides.max_tokens().unwrap_or(SUMMARY_TOKENS);
            return ModelCall {
                messages: summarizing.messages.clone(),
                max_tokens: Some(most.min(SUMMARY_TOKENS)),
                ..request
            };
        }
        let mut messages = self.messages.clone();
        for (number, turn) in self.turns.iter().enumerate() {
            if !turn.uses.is_empty() {
                turn.say_again(number, &mut messages);
                continue;
            }
            let words = match &turn.then {
                // With more room the same question is asked.
                None | Some(Then::MoreRoom) => continue,
                // The error repeats words of the answer.
                Some(Then::Repair(error)) => format!(
                    "That is not the document that was asked for. What is wrong with it:\n{}\nAnswer with the corrected \
                     JSON document and nothing else.",
                    fence("answer", error)
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
            messages,
            tools: node.tools.shown(self.listed()),
            max_tokens: Some(self.max_tokens(node, overrides)),
            schema,
            streams,
            ..request
        }
    }

    /// The units of state that it occupies.
    pub(crate) fn weight(&self) -> u64 {
        let said: usize = self.messages.iter().map(ModelMessage::size).sum();
        let replied: usize = self.turns.iter().map(|turn| size_of_reply(&turn.reply)).sum();
        let listed: usize = self.listed().iter().map(ListedTool::size).sum();
        let summarizing = self
            .summarizing
            .as_ref()
            .map_or(0, |summarizing| summarizing.size());
        cost::bytes(said + listed + replied + summarizing + self.size_of_results())
    }
}

pub(crate) fn size_of_reply(reply: &ModelReply) -> usize {
    let reasoning = reply.reasoning.as_ref().map_or(0, String::len);
    let key = reply.cache_key.as_ref().map_or(0, String::len);
    reply.text.len() + reasoning + key + reply.tool_calls.iter().map(ToolCall::size).sum::<usize>()
}
