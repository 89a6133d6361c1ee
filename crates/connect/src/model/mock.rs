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
use serde_json::{Value, json};
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
const MAX_DELAY_MS: u64 = 1_000;

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
        let model = call.model.clone().unwrap_or_else(|| MODEL.to_owned());
        if let Some(script) = &call.script {
            return stream_text(script, key_of(call, &model), model, progress).await;
        }
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

/// Says the tokens that the run was started with, each as a piece of its own.
async fn stream_text(
    script: &Value,
    cache_key: Option<String>,
    model: String,
    progress: &Progress,
) -> Report {
    let config = script.get("config");
    let tokens = config
        .and_then(|config| config.get("tokens"))
        .and_then(Value::as_array);
    let tokens: Option<Vec<&str>> = tokens.into_iter().flatten().map(Value::as_str).collect();
    let Some(tokens) = tokens.filter(|tokens| tokens.len() <= MAX_TOKENS) else {
        let message = format!("mockProvider.config.tokens is not a list of at most {MAX_TOKENS} texts");
        return failed("invalid_input", message, false).into();
    };
    let count = |value: Option<&Value>| value.and_then(Value::as_u64);
    let pause = count(config.and_then(|config| config.get("delayMsPerToken"))).unwrap_or(0);
    let usage = config.and_then(|config| config.get("usage"));
    let used =
        |names: [&str; 2]| count(usage.and_then(|usage| names.iter().find_map(|name| usage.get(name))));
    let length = config
        .and_then(|config| config.get("finishReason"))
        .and_then(Value::as_str);
    for (n, token) in tokens.iter().enumerate() {
        let piece = Produced::Chunk {
            text: (*token).to_owned(),
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
        tokio::time::sleep(Duration::from_millis(pause.min(MAX_DELAY_MS))).await;
    }
    let n_tokens = tokens.len() as u64;
    let reply = ModelReply {
        provider: Mock::NAME.to_owned(),
        model,
        text: tokens.concat(),
        tool_calls: Vec::new(),
        stop: match length {
            Some("length" | "max_tokens") => ModelStop::Length,
            Some(_) | None => ModelStop::End,
        },
        reasoning: None,
        refusal: None,
        cache_key,
        usage: ModelUsage {
            input_tokens: used(["inputTokens", "promptTokens"]).unwrap_or(0),
            output_tokens: used(["outputTokens", "completionTokens"]).unwrap_or(n_tokens),
            ..ModelUsage::default()
        },
    };
    Report::Produced {
        produced: vec![Produced::Chunk {
            text: String::new(),
            starts: tokens.is_empty(),
            is_last: true,
            end: Some(Box::new(AnswerEnd::of(&reply))),
        }],
        cursor: Value::Null,
        then: Box::new(done(&reply)),
    }
}

fn done(reply: &ModelReply) -> Report {
    Outcome::Done(json!(reply)).into()
}
