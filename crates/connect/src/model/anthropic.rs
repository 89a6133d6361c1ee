//! The messages of Anthropic.

use http::HeaderName;
use serde_json::{Value, json};
use wopr_core::{ModelCall, ModelMessage, ModelStop};

use super::{
    Wire,
    answer::{Answer, AskedTool, Malformed, count, text},
    reason::Broken,
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

    fn broken<'d>(&self, document: &'d Value) -> Option<Broken<'d>> {
        let ended = document.get("delta").unwrap_or(document);
        let reason = text(ended, "stop_reason")?;
        // A turn pauses for tools of the provider, which this host does not ask for.
        matches!(reason, "error" | "pause_turn").then_some(Broken { reason, words: None })
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
                Some("tool_use") => opened(block, None, answer)?,
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
                    Some("tool_use") => opened(block, count(&document, "index"), answer)?,
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
                        let tool = open_at(count(&document, "index"), answer).ok_or(Malformed)?;
                        if !more.is_empty() && std::mem::take(&mut tool.is_preset) {
                            tool.arguments.clear();
                        }
                        tool.arguments.push_str(more);
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

fn opened(block: &Value, index: Option<u64>, answer: &mut Answer) -> Result<(), Malformed> {
    let tool = answer.open_tool(index)?;
    text(block, "id").unwrap_or_default().clone_into(&mut tool.id);
    text(block, "name").ok_or(Malformed)?.clone_into(&mut tool.name);
    // Servers that do not stream arguments send them here; the others send an empty object or an empty text.
    let input = block.get("input").filter(|input| !input.is_null());
    if let Some(input) = input.filter(|input| input.as_str() != Some("")) {
        tool.arguments = input.to_string();
        tool.is_preset = true;
    }
    Ok(())
}

/// The call whose block has an index. Several blocks may be open at a time, and some servers do not count them.
fn open_at(index: Option<u64>, answer: &mut Answer) -> Option<&mut AskedTool> {
    let counted = index.and_then(|_| answer.newest_tool(index));
    let at = match index {
        Some(_) => counted.or_else(|| answer.newest_tool(None))?,
        None => answer.tools.len().checked_sub(1)?,
    };
    answer.tools.get_mut(at)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(events: &[Value]) -> Result<Vec<(String, String)>, Malformed> {
        let mut answer = Answer::default();
        for event in events {
            Anthropic.read_event(event.clone(), &mut answer)?;
        }
        let tools = answer.tools.into_iter();
        Ok(tools.map(|tool| (tool.id, tool.arguments)).collect())
    }

    fn block(index: u32, id: &str, input: &Value) -> Value {
        let block = json!({ "type": "tool_use", "id": id, "name": "echo", "input": input });
        json!({ "type": "content_block_start", "index": index, "content_block": block })
    }

    fn more(index: u32, json: &str) -> Value {
        let delta = json!({ "type": "input_json_delta", "partial_json": json });
        json!({ "type": "content_block_delta", "index": index, "delta": delta })
    }

    fn both(first: &str, second: &str) -> Vec<(String, String)> {
        [("a", first), ("b", second)]
            .map(|(id, arguments)| (id.to_owned(), arguments.to_owned()))
            .into()
    }

    #[test]
    fn pieces_of_blocks_that_are_open_together_go_to_their_own() {
        let none = json!({});
        let events = [
            block(1, "a", &none),
            block(2, "b", &none),
            more(1, "{\"x\":"),
            more(2, "{\"x\":2}"),
            more(1, "1}"),
        ];
        assert_eq!(
            tools(&events).expect("can be read"),
            both("{\"x\":1}", "{\"x\":2}")
        );
        // A piece of no call must not become a part of another one.
        assert!(tools(&[block(1, "a", &none), more(2, "{}")]).is_err());
    }

    #[test]
    fn arguments_may_come_with_the_beginning_of_a_block() {
        let given = json!({ "x": 1 });
        let events = [block(0, "a", &given), block(1, "b", &given), more(1, "{\"x\":2}")];
        assert_eq!(
            tools(&events).expect("can be read"),
            both("{\"x\":1}", "{\"x\":2}")
        );
        let events = [block(0, "a", &given), more(0, ""), block(1, "b", &json!(""))];
        assert_eq!(tools(&events).expect("can be read"), both("{\"x\":1}", ""));
    }

    #[test]
    fn a_turn_that_pauses_is_not_complete() {
        let ended = |reason: &str| json!({ "type": "message_delta", "delta": { "stop_reason": reason } });
        assert!(Anthropic.broken(&ended("pause_turn")).is_some());
        assert!(Anthropic.broken(&ended("end_turn")).is_none());
        let whole = json!({ "type": "message", "stop_reason": "error", "content": [] });
        assert!(Anthropic.broken(&whole).is_some());
    }
}
