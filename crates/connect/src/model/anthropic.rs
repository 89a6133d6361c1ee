//! The messages of Anthropic.

use http::HeaderName;
use serde_json::{Value, json};
use wopr_core::{ModelCall, ModelMessage, ModelStop};

use super::{
    Wire,
    answer::{Answer, Malformed, count, text},
};

pub(super) struct Anthropic;

/// The provider wants a limit in any case.
const MAX_TOKENS: u64 = 4_096;

impl Wire for Anthropic {
    fn path(&self, _model: &str, _streams: bool) -> String {
        "v1/messages".to_owned()
    }

    fn credential(&self, key: &str) -> (HeaderName, String) {
        (HeaderName::from_static("x-api-key"), key.to_owned())
    }

    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[("anthropic-version", "2023-06-01")]
    }

    fn body(&self, model: &str, call: &ModelCall, streams: bool) -> Value {
        let mut system = Vec::new();
        let mut messages: Vec<Value> = Vec::new();
        for message in &call.messages {
            let (role, blocks) = match message {
                ModelMessage::System { content } => {
                    system.push(content.as_str());
                    continue;
                }
                ModelMessage::User { content } => ("user", vec![json!({ "type": "text", "text": content })]),
                ModelMessage::Assistant { content, tool_calls } => ("assistant", said(content, tool_calls)),
                ModelMessage::Tool {
                    call_id,
                    name: _,
                    content,
                    is_error,
                } => {
                    let result = json!({
                        "type": "tool_result",
                        "tool_use_id": call_id,
                        "content": content,
                        "is_error": is_error,
                    });
                    ("user", vec![result])
                }
            };
            // Turns have to alternate.
            let last = messages.last_mut().filter(|last| last["role"] == role);
            match last.and_then(|last| last["content"].as_array_mut()) {
                Some(content) => content.extend(blocks),
                None => messages.push(json!({ "role": role, "content": blocks })),
            }
        }
        let mut body = json!({
            "model": model,
            "max_tokens": call.max_tokens.unwrap_or(MAX_TOKENS),
            "messages": messages,
        });
        if !system.is_empty() {
            body["system"] = system.join("\n\n").into();
        }
        if let Some(temperature) = call.temperature {
            body["temperature"] = temperature.min(1.0).into();
        }
        if !call.tools.is_empty() {
            let tool = |tool: &wopr_core::ModelTool| json!({ "name": tool.name, "description": tool.description, "input_schema": tool.schema });
            body["tools"] = call.tools.iter().map(tool).collect();
        }
        if streams {
            body["stream"] = true.into();
        }
        body
    }

    fn read(&self, document: Value, answer: &mut Answer) -> Result<(), Malformed> {
        begun(&document, answer);
        let blocks = document
            .get("content")
            .and_then(Value::as_array)
            .ok_or(Malformed)?;
        for block in blocks {
            match text(block, "type") {
                Some("text") => answer.say(text(block, "text").ok_or(Malformed)?)?,
                Some("tool_use") => {
                    let index = answer.tools.len();
                    opened(block, index, answer)?;
                    if let Some(input) = block.get("input") {
                        answer.tool(index)?.arguments = input.to_string();
                    }
                }
                Some("thinking") => answer.think(text(block, "thinking").unwrap_or_default()),
                Some(_) | None => {}
            }
        }
        ended(&document, answer);
        Ok(())
    }

    fn read_event(&self, document: Value, answer: &mut Answer) -> Result<(), Malformed> {
        match text(&document, "type").ok_or(Malformed)? {
            "message_start" => begun(document.get("message").ok_or(Malformed)?, answer),
            "content_block_start" => {
                let block = document.get("content_block").ok_or(Malformed)?;
                match text(block, "type") {
                    Some("tool_use") => opened(block, answer.tools.len(), answer)?,
                    Some("text") => answer.say(text(block, "text").unwrap_or_default())?,
                    Some(_) | None => {}
                }
            }
            "content_block_delta" => {
                let delta = document.get("delta").ok_or(Malformed)?;
                match text(delta, "type") {
                    Some("text_delta") => answer.say(text(delta, "text").ok_or(Malformed)?)?,
                    Some("thinking_delta") => answer.think(text(delta, "thinking").unwrap_or_default()),
                    Some("input_json_delta") => {
                        let more = text(delta, "partial_json").ok_or(Malformed)?;
                        let last = answer.tools.last_mut().ok_or(Malformed)?;
                        last.arguments.push_str(more);
                    }
                    Some(_) | None => {}
                }
            }
            "message_delta" => {
                ended(document.get("delta").ok_or(Malformed)?, answer);
                if let Some(n) = document
                    .get("usage")
                    .and_then(|usage| count(usage, "output_tokens"))
                {
                    answer.usage.output_tokens = n;
                }
            }
            "error" => return Err(Malformed),
            // Pings, and what is new.
            _ => {}
        }
        Ok(())
    }
}

fn said(content: &str, tool_calls: &[wopr_core::ToolCall]) -> Vec<Value> {
    let words = (!content.is_empty()).then(|| json!({ "type": "text", "text": content }));
    let nothing = json!({});
    let calls = tool_calls.iter().map(|call| {
        // What the model wrote may be no object, which the provider would refuse.
        let input = Some(&call.arguments).filter(|arguments| arguments.is_object());
        let input = input.unwrap_or(&nothing);
        json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input })
    });
    words.into_iter().chain(calls).collect()
}

fn opened(block: &Value, index: usize, answer: &mut Answer) -> Result<(), Malformed> {
    let tool = answer.tool(index)?;
    text(block, "id").unwrap_or_default().clone_into(&mut tool.id);
    text(block, "name").ok_or(Malformed)?.clone_into(&mut tool.name);
    Ok(())
}

fn begun(message: &Value, answer: &mut Answer) {
    answer.model = text(message, "model").map(str::to_owned);
    let Some(usage) = message.get("usage") else { return };
    let n = |name: &str| count(usage, name);
    let (read, written) = (n("cache_read_input_tokens"), n("cache_creation_input_tokens"));
    let parts = [n("input_tokens"), read, written];
    // What was in the cache is no part of the provider's count.
    answer.usage.input_tokens = parts.into_iter().flatten().fold(0, u64::saturating_add);
    answer.usage.output_tokens = n("output_tokens").unwrap_or(0);
    answer.usage.cache_read_tokens = read;
    answer.usage.cache_write_tokens = written;
}

fn ended(message: &Value, answer: &mut Answer) {
    if let Some(reason) = text(message, "stop_reason") {
        answer.stop = Some(match reason {
            "max_tokens" | "model_context_window_exceeded" => ModelStop::Length,
            "tool_use" => ModelStop::Tools,
            "refusal" => ModelStop::Refusal,
            _ => ModelStop::End,
        });
    }
}
