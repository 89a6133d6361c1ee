//! An answer while it is read.

use serde_json::Value;
use wopr_core::{ModelReply, ModelStop, ModelUsage, ToolCall, too_deep};

use super::{MAX_TEXT, provider::Provider};
use crate::redact::Secrets;

/// Longest reasoning that is kept, in bytes.
const MAX_REASONING: usize = 64 * 1024;
/// Most tools that a model may ask for in one answer.
const MAX_TOOLS: usize = 64;
/// Longest arguments of a call that are parsed, in bytes. A decision refuses longer ones in any case, and so it does a text.
const MAX_ARGUMENTS: usize = 64 * 1024;
/// What a token is taken for where a provider does not count them.
pub(super) const BYTES_PER_TOKEN: usize = 4;

/// A provider sent something that is no answer.
#[derive(Debug)]
pub(super) struct Malformed;

#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) refusal: Option<String>,
    pub(super) reasoning: String,
    pub(super) tools: Vec<AskedTool>,
    pub(super) stop: Option<ModelStop>,
    pub(super) usage: ModelUsage,
    /// As the provider names it.
    pub(super) model: Option<String>,
}

/// A tool whose arguments may still be arriving.
#[derive(Debug, Default)]
pub(super) struct AskedTool {
    /// Where the provider counts it in its answer.
    pub(super) index: Option<u64>,
    pub(super) id: String,
    pub(super) name: String,
    /// JSON text.
    pub(super) arguments: String,
    /// The arguments came with the beginning of the call. Pieces that follow replace them.
    pub(super) is_preset: bool,
    /// What the provider wants to see again.
    pub(super) signature: Option<String>,
}

impl Answer {
    pub(super) fn say(&mut self, text: &str) -> Result<(), Malformed> {
        // One more byte than may be kept is enough to know that it is too much.
        if self.text.len() > MAX_TEXT {
            return Ok(());
        }
        self.text.push_str(text);
        Ok(())
    }

    pub(super) fn refuse(&mut self, words: &str) {
        let refusal = self.refusal.get_or_insert_default();
        if refusal.len() <= MAX_TEXT {
            refusal.push_str(words);
        }
    }

    /// Keeps what the model thinks, the beginning of it if it is long.
    pub(super) fn think(&mut self, words: &str) {
        let left = MAX_REASONING.saturating_sub(self.reasoning.len());
        let end = words.floor_char_boundary(left.min(words.len()));
        self.reasoning.push_str(&words[..end]);
    }

    /// Begins a call of a tool.
    pub(super) fn open_tool(&mut self, index: Option<u64>) -> Result<&mut AskedTool, Malformed> {
        if self.tools.len() >= MAX_TOOLS {
            return Err(Malformed);
        }
        self.tools.push(AskedTool {
            index,
            ..AskedTool::default()
        });
        self.tools.last_mut().ok_or(Malformed)
    }

    /// The newest call that the provider counts so.
    pub(super) fn newest_tool(&self, index: Option<u64>) -> Option<usize> {
        self.tools.iter().rposition(|tool| tool.index == index)
    }

    /// What it took. Where the provider does not say so, which no budget would notice, that is reckoned from the bytes.
    fn took(&self, n_asked: usize) -> ModelUsage {
        let reckoned = |n_bytes: usize| n_bytes.div_ceil(BYTES_PER_TOKEN) as u64;
        let tools = self
            .tools
            .iter()
            .map(|tool| tool.name.len() + tool.arguments.len());
        let refusal = self.refusal.as_ref().map_or(0, String::len);
        let n_said = self.text.len() + self.reasoning.len() + refusal + tools.sum::<usize>();
        let or_reckoned = |counted: u64, n_bytes| match counted {
            0 => reckoned(n_bytes),
            counted => counted,
        };
        ModelUsage {
            input_tokens: or_reckoned(self.usage.input_tokens, n_asked),
            output_tokens: or_reckoned(self.usage.output_tokens, n_said),
            ..self.usage
        }
    }

    /// The reply of a model that was asked so many bytes.
    pub(super) fn finish(
        self,
        provider: &Provider,
        (model, n_asked): (&str, usize),
        secrets: &Secrets,
    ) -> Result<ModelReply, Malformed> {
        let mut usage = self.took(n_asked);
        usage.cost_usd = provider.price.map(|price| price.of(&usage));
        let mut tool_calls = Vec::with_capacity(self.tools.len());
        for (n, tool) in self.tools.into_iter().enumerate() {
            if tool.name.is_empty() {
                return Err(Malformed);
            }
            let mut arguments = match tool.arguments.trim() {
                "" => Value::Object(serde_json::Map::new()),
                // A model may write anything; its tool says what is wrong with it.
                text if text.len() > MAX_ARGUMENTS => Value::String(text.to_owned()),
                text => match serde_json::from_str(text) {
                    // Deeper ones could not be read back from the log.
                    Ok(arguments) if !too_deep(&arguments) => arguments,
                    Ok(_) | Err(_) => Value::String(text.to_owned()),
                },
            };
            secrets.redact(&mut arguments);
            let id = match tool.id.is_empty() {
                true => format!("call-{n}"),
                false => secrets.text(&tool.id),
            };
            tool_calls.push(ToolCall {
                id,
                name: secrets.text(&tool.name),
                arguments,
                signature: tool.signature.map(|signature| secrets.text(&signature)),
            });
        }
        let stop = match self.stop {
            _ if self.refusal.is_some() => ModelStop::Refusal,
            Some(stop) => stop,
            // The stream broke off.
            None => return Err(Malformed),
        };
        // The model asked for tools in a way that was not understood.
        if stop == ModelStop::Tools && tool_calls.is_empty() && self.text.is_empty() {
            return Err(Malformed);
        }
        let named = self.model.filter(|named| !named.is_empty() && named.len() <= 256);
        Ok(ModelReply {
            provider: provider.name.clone(),
            model: named.map_or_else(|| model.to_owned(), |named| secrets.text(&named)),
            text: secrets.text(&self.text),
            tool_calls,
            stop,
            reasoning: (!self.reasoning.is_empty()).then(|| secrets.text(&self.reasoning)),
            refusal: self.refusal.map(|words| secrets.text(&words)),
            cache_key: None,
            usage,
        })
    }
}

/// A member of an object that is a count. Some providers write it as `12.0`.
pub(super) fn count(document: &Value, name: &str) -> Option<u64> {
    let number = document.get(name)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is no negative number, and a larger one than any count stays one"
    )]
    let whole = |number: f64| (number >= 0.0).then(|| number.ceil() as u64);
    number.as_u64().or_else(|| whole(number.as_f64()?))
}

pub(super) fn text<'v>(document: &'v Value, name: &str) -> Option<&'v str> {
    document.get(name).and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Kind, ProviderKey};

    #[test]
    fn arguments_that_nest_too_deep_or_are_too_long_are_text() {
        let provider = Provider {
            name: "p".to_owned(),
            kind: Kind::OpenAi,
            base_url: "https://example.com".parse().unwrap(),
            key: ProviderKey::None,
            model: None,
            tenants: Vec::new(),
            price: None,
        };
        let read = |arguments: String| {
            let tool = AskedTool {
                name: "t".to_owned(),
                arguments,
                ..AskedTool::default()
            };
            let answer = Answer {
                tools: vec![tool],
                stop: Some(ModelStop::Tools),
                ..Answer::default()
            };
            let reply = answer.finish(&provider, ("m", 8), &Secrets::default()).unwrap();
            reply.tool_calls[0].arguments.clone()
        };
        let nested = |depth| format!("{{\"a\":{}1{}}}", "[".repeat(depth), "]".repeat(depth));
        let many = |n_bytes: usize| format!("{{\"a\":[{}0]}}", "0,".repeat(n_bytes / 2));
        assert!(read(nested(10)).is_object() && read(many(1_000)).is_object());
        assert!(read(nested(100)).is_string() && read(many(MAX_ARGUMENTS)).is_string());
    }

    #[test]
    fn tokens_that_no_provider_counts_are_reckoned() {
        let answer = Answer {
            text: "eight by".to_owned(),
            reasoning: "hm".to_owned(),
            ..Answer::default()
        };
        let of = |answer: &Answer| {
            let took = answer.took(13);
            (took.input_tokens, took.output_tokens)
        };
        assert_eq!(of(&answer), (4, 3));
        let counted = ModelUsage {
            input_tokens: 1,
            output_tokens: 2,
            ..ModelUsage::default()
        };
        let answer = Answer {
            usage: counted,
            ..answer
        };
        assert_eq!(of(&answer), (1, 2));
    }

    #[test]
    fn counts_may_be_written_as_fractions() {
        let counted = |number: Value| count(&serde_json::json!({ "n": number }), "n");
        for (number, n) in [
            (12.0, Some(12)),
            (0.5, Some(1)),
            (1e30, Some(u64::MAX)),
            (-1.0, None),
        ] {
            assert_eq!(counted(number.into()), n, "{number}");
        }
        assert_eq!(counted(u64::MAX.into()), Some(u64::MAX));
        assert_eq!(counted("12".into()), None);
    }
}
