//! The scripted provider of conformance mode, inside the process.
//!
//! A test seam programs it for a node, and each call takes the next reply. It needs no network and no key. Users test
//! with `wopr mock-model`, which is a provider like any other.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use wopr_core::{AnswerEnd, ModelCall, ModelReply, ModelStop, ModelUsage, Produced, RunStarted, StepId};
use wopr_engine::{Outcome, Progress, Report, ScriptedModel};

use super::semantic_key::key_of;
use crate::http::failed;

/// The model of calls that name none.
const MODEL: &str = "mock-mini";
/// Most nodes that are programmed at a time.
const MAX_NODES: usize = 1_000;
/// Most replies of a program.
const MAX_REPLIES: usize = 100;
/// Most tokens of a streamed text.
const MAX_TOKENS: usize = 1_000;
/// Longest pause between two of them.
const MAX_DELAY_MS: u64 = 5_000;
/// What is streamed unless the run names something else, and the model that says it.
const TOKENS: [&str; 2] = ["mock", " response"];
const STREAM_MODEL: &str = "mock-stream-text-v1";

/// A reply that a test wants.
#[derive(Debug, Clone, PartialEq)]
pub struct MockReply {
    pub text: String,
    pub stop: ModelStop,
    pub refusal: Option<String>,
    pub input_tokens: u64,
    pub output_tokens: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Mock(Arc<Mutex<Programs>>);

#[derive(Debug, Default)]
struct Programs {
    replies: HashMap<String, VecDeque<MockReply>>,
    /// The limit of tokens of each node's last call.
    budgets: HashMap<String, u64>,
}

/// A program has too many parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("program a mock with more than {MAX_REPLIES} replies, or more than {MAX_NODES} nodes")]
pub struct TooLong;

impl Mock {
    /// The name by which workflows find it.
    pub const NAME: &'static str = "mock";
    /// The mock of runs that stream tokens.
    pub const STREAM_TEXT: &'static str = "stream-text";

    /// Replaces what a node's calls get.
    ///
    /// # Errors
    /// The program is too long, or too many nodes have one.
    pub fn program(&self, node: &str, replies: Vec<MockReply>) -> Result<(), TooLong> {
        let mut programs = self.0.lock();
        let is_full = programs.replies.len() >= MAX_NODES && !programs.replies.contains_key(node);
        if replies.len() > MAX_REPLIES || is_full {
            return Err(TooLong);
        }
        programs.replies.insert(node.to_owned(), replies.into());
        Ok(())
    }

    /// The limit of tokens of a node's last call.
    #[must_use]
    pub fn last_budget(&self, node: &str) -> Option<u64> {
        self.0.lock().budgets.get(node).copied()
    }

    /// Takes the next reply of a node's program.
    fn next_of(&self, node: &str) -> Option<MockReply> {
        self.0.lock().replies.get_mut(node).and_then(VecDeque::pop_front)
    }

    pub(crate) async fn answer(&self, call: &ModelCall, step: &StepId, progress: &Progress) -> Report {
        if let Some(script) = &call.script {
            return match StreamText::read(script.get("config")) {
                Ok(stream) => stream.say(call, progress).await,
                // A run that another face or an earlier host started.
                Err(bad) => failed("invalid_input", bad.to_string(), false).into(),
            };
        }
        let model = call.model.clone().unwrap_or_else(|| MODEL.to_owned());
        let node = step.node.as_str();
        if let Some(most) = call.max_tokens {
            let budgets = &mut self.0.lock().budgets;
            if budgets.len() < MAX_NODES || budgets.contains_key(node) {
                budgets.insert(node.to_owned(), most);
            }
        }
        // After the last reply the mock says nothing.
        let reply = self.next_of(node).unwrap_or(MockReply {
            text: String::new(),
            stop: ModelStop::End,
            refusal: None,
            input_tokens: 0,
            output_tokens: 0,
        });
        let key = key_of(call, &model);
        done(&reply.by(model, key))
    }
}

impl ScriptedModel for Mock {
    fn provider(&self) -> &str {
        Self::NAME
    }

    fn next_reply(&self, started: &RunStarted, step: &StepId) -> Option<ModelReply> {
        // The tokens that a run was started with come from no program, and refuse nothing.
        if started.configurable.contains_key("mockProvider") {
            return None;
        }
        let reply = self.next_of(step.node.as_str())?;
        Some(reply.by(MODEL.to_owned(), None))
    }
}

impl MockReply {
    fn by(self, model: String, cache_key: Option<String>) -> ModelReply {
        ModelReply {
            provider: Mock::NAME.to_owned(),
            model,
            text: self.text,
            tool_calls: Vec::new(),
            stop: self.stop,
            reasoning: None,
            refusal: self.refusal,
            cache_key,
            usage: ModelUsage {
                input_tokens: self.input_tokens,
                output_tokens: self.output_tokens,
                ..ModelUsage::default()
            },
        }
    }
}

/// What a run is told token by token, as it was started with: `configurable.mockProvider.config`.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamText {
    tokens: Vec<String>,
    delay: Duration,
    stop: ModelStop,
    input_tokens: u64,
    output_tokens: u64,
    model: String,
}

/// A member of the configuration breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("read mockProvider: {field} {rule}")]
pub struct BadScript {
    /// The path within `mockProvider`.
    pub field: &'static str,
    pub rule: String,
}

impl StreamText {
    /// Reads the configuration. What is absent has the default of the specification (section 7.9).
    ///
    /// # Errors
    /// A member is out of its range.
    pub fn read(config: Option<&Value>) -> Result<Self, BadScript> {
        let bad = |field, rule: String| BadScript { field, rule };
        let empty = Map::new();
        let config = match config {
            None | Some(Value::Null) => &empty,
            Some(Value::Object(config)) => config,
            Some(_) => return Err(bad("config", "must be an object".to_owned())),
        };
        let given = |name: &str| config.get(name).filter(|value| !value.is_null());
        let tokens: Option<Vec<String>> = match given("tokens") {
            None => Some(TOKENS.map(str::to_owned).to_vec()),
            Some(tokens) => tokens.as_array().and_then(|tokens| {
                let texts = tokens.iter().map(|token| token.as_str().map(str::to_owned));
                texts.collect()
            }),
        };
        let Some(tokens) = tokens.filter(|tokens| tokens.len() <= MAX_TOKENS) else {
            return Err(bad(
                "config.tokens",
                format!("must be a list of at most {MAX_TOKENS} texts"),
            ));
        };
        let delay = match given("delayMsPerToken") {
            None => Some(0),
            Some(delay) => delay.as_u64().filter(|ms| *ms <= MAX_DELAY_MS),
        };
        let Some(delay) = delay else {
            return Err(bad(
                "config.delayMsPerToken",
                format!("must be a whole number from 0 to {MAX_DELAY_MS}"),
            ));
        };
        let stop = match given("finishReason").map(Value::as_str) {
            None | Some(Some("stop")) => ModelStop::End,
            Some(Some("length" | "max_tokens")) => ModelStop::Length,
            Some(Some("content_filter")) => ModelStop::Refusal,
            Some(_) => {
                return Err(bad(
                    "config.finishReason",
                    "must be stop, length or content_filter".to_owned(),
                ));
            }
        };
        let usage = match given("usage") {
            None => &empty,
            Some(Value::Object(usage)) => usage,
            Some(_) => return Err(bad("config.usage", "must be an object".to_owned())),
        };
        let used = |names: [&str; 2], default: u64| {
            let count = names.iter().find_map(|name| usage.get(*name));
            match count.map(Value::as_u64) {
                None => Ok(default),
                Some(Some(count)) => Ok(count),
                Some(None) => Err(bad(
                    "config.usage",
                    format!("must have a whole number as {}", names[0]),
                )),
            }
        };
        let model = match given("model") {
            None => STREAM_MODEL.to_owned(),
            Some(Value::String(model)) if !model.is_empty() => model.clone(),
            Some(_) => return Err(bad("config.model", "must be a text".to_owned())),
        };
        Ok(Self {
            delay: Duration::from_millis(delay),
            stop,
            input_tokens: used(["promptTokens", "inputTokens"], 1)?,
            output_tokens: used(["completionTokens", "outputTokens"], tokens.len() as u64)?,
            model,
            tokens,
        })
    }

    /// Says the tokens, each as a piece of its own.
    async fn say(self, call: &ModelCall, progress: &Progress) -> Report {
        let text = self.tokens.concat();
        let mut tokens = self.tokens.into_iter();
        let last = tokens.next_back();
        let starts = tokens.len() == 0;
        for (n, token) in tokens.enumerate() {
            let piece = Produced::Chunk {
                text: token,
                starts: n == 0,
                is_last: false,
                end: None,
            };
            if progress.made(vec![piece]).await.is_err() {
                return failed(
                    "model_call_failed",
                    "nobody waits for the answer".to_owned(),
                    true,
                )
                .into();
            }
            tokio::time::sleep(self.delay).await;
        }
        let reply = ModelReply {
            provider: Mock::NAME.to_owned(),
            cache_key: key_of(call, &self.model),
            model: self.model,
            text,
            tool_calls: Vec::new(),
            stop: self.stop,
            reasoning: None,
            refusal: None,
            usage: ModelUsage {
                input_tokens: self.input_tokens,
                output_tokens: self.output_tokens,
                ..ModelUsage::default()
            },
        };
        Report::Produced {
            produced: vec![Produced::Chunk {
                text: last.unwrap_or_default(),
                starts,
                is_last: true,
                end: Some(Box::new(AnswerEnd::of(&reply))),
            }],
            cursor: Value::Null,
            then: Box::new(done(&reply)),
        }
    }
}

fn done(reply: &ModelReply) -> Report {
    Outcome::Done(json!(reply)).into()
}
