//! Chat completions, as OpenAI and many other servers speak them.

use http::{HeaderName, header};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use wopr_core::{ModelCall, ModelMessage, ModelStop};

use super::{
    Wire,
    answer::{Answer, AskedTool, Malformed, count, text},
    reason::Broken,
};

pub(super) struct OpenAi;

impl Wire for OpenAi {
    fn path(&self, _model: &str, _streams: bool) -> String {
        "chat/completions".to_owned()
    }

    fn credential(&self, key: &str) -> (HeaderName, String) {
        (header::AUTHORIZATION, format!("Bearer {key}"))
    }

    fn body(&self, model: &str, call: &ModelCall, streams: bool) -> Value {
        let messages: Vec<Value> = call.messages.iter().map(message).collect();
        let mut body = json!({ "model": model, "messages": messages });
        if let Some(temperature) = call.temperature {
            body["temperature"] = temperature.into();
        }
        if let Some(most) = call.max_tokens {
            // The models that reason know only the newer name, and most other servers only the older one.
            let is_newer = ["o1", "o3", "o4", "gpt-5"]
                .iter()
                .any(|newer| model.starts_with(newer));
            body[if is_newer {
                "max_completion_tokens"
            } else {
                "max_tokens"
            }] = most.into();
        }
        if !call.tools.is_empty() {
            let tool = |tool: &wopr_core::ModelTool| {
                json!({
                    "type": "function",
                    "function": { "name": tool.name, "description": tool.description, "parameters": tool.schema },
                })
            };
            body["tools"] = call.tools.iter().map(tool).collect();
        }
        if let Some(schema) = &call.schema {
            body["response_format"] = json!({
                "type": "json_schema",
                "json_schema": { "name": "answer", "schema": schema },
            });
        }
        if streams {
            body["stream"] = true.into();
            body["stream_options"] = json!({ "include_usage": true });
        }
        body
    }

    fn broken<'d>(&self, document: &'d Value) -> Option<Broken<'d>> {
        let choice = document.pointer("/choices/0")?;
        let reason = text(choice, "finish_reason")?;
        // As vLLM, DeepSeek, GLM and Gemini say it; most others say `error`.
        let is_broken = matches!(
            reason,
            "error" | "abort" | "insufficient_system_resource" | "network_error"
        ) || reason.ends_with("MALFORMED_FUNCTION_CALL");
        let words = choice.get("error").and_then(|error| text(error, "message"));
        is_broken.then_some(Broken { reason, words })
    }

    fn read(&self, document: Value, answer: &mut Answer) -> Result<(), Malformed> {
        named(&document, answer);
        let choice = document.pointer("/choices/0").ok_or(Malformed)?;
        whole(choice.get("message").ok_or(Malformed)?, answer)?;
        // Some servers leave it out.
        answer.stop = Some(stop(text(choice, "finish_reason").unwrap_or("stop")));
        Ok(())
    }

    fn read_event(&self, document: Value, answer: &mut Answer) -> Result<(), Malformed> {
        if document.get("error").is_some_and(|error| !error.is_null()) {
            return Err(Malformed);
        }
        named(&document, answer);
        // The event with the usage has no choice.
        let Some(choice) = document.pointer("/choices/0") else {
            return Ok(());
        };
        let is_empty = answer.text.is_empty() && answer.tools.is_empty();
        let part = |name: &str| choice.get(name).filter(|part| part.is_object());
        if let Some(delta) = part("delta") {
            said(delta, answer)?;
            let tools = delta.get("tool_calls").and_then(Value::as_array);
            for (place, call) in tools.into_iter().flatten().enumerate() {
                let at = continued(call, place, answer);
                let tool = match at.and_then(|at| answer.tools.get_mut(at)) {
                    Some(tool) => tool,
                    None => answer.open_tool(count(call, "index"))?,
                };
                asked(call, tool);
            }
        } else if let Some(message) = part("message").filter(|_| is_empty) {
            // The server frames a whole answer as a stream. After pieces, it would repeat them.
            whole(message, answer)?;
        }
        if let Some(reason) = text(choice, "finish_reason") {
            answer.stop = Some(stop(reason));
        }
        Ok(())
    }
}

fn message(message: &ModelMessage) -> Value {
    match message {
        ModelMessage::System { content } => json!({ "role": "system", "content": content }),
        ModelMessage::User { content } => json!({ "role": "user", "content": content }),
        ModelMessage::Assistant { content, tool_calls } => {
            let mut message = json!({ "role": "assistant", "content": content });
            if !tool_calls.is_empty() {
                let call = |call: &wopr_core::ToolCall| {
                    json!({
                        "id": call.id,
                        "type": "function",
                        "function": { "name": call.name, "arguments": call.arguments.to_string() },
                    })
                };
                message["tool_calls"] = tool_calls.iter().map(call).collect();
            }
            message
        }
        ModelMessage::Tool {
            call_id,
            name: _,
            content,
            is_error,
        } => {
            let content = match is_error {
                true => format!("error: {content}"),
                false => content.clone(),
            };
            json!({ "role": "tool", "tool_call_id": call_id, "content": content })
        }
    }
}

fn named(document: &Value, answer: &mut Answer) {
    if let Some(model) = text(document, "model") {
        answer.model = Some(model.to_owned());
    }
    if let Some(usage) = document.get("usage").filter(|usage| usage.is_object()) {
        answer.usage.input_tokens = count(usage, "prompt_tokens").unwrap_or(0);
        answer.usage.output_tokens = count(usage, "completion_tokens").unwrap_or(0);
        let details = usage.get("prompt_tokens_details");
        answer.usage.cache_read_tokens = details.and_then(|details| count(details, "cached_tokens"));
    }
}

/// Reads a message that came as a whole.
fn whole(message: &Value, answer: &mut Answer) -> Result<(), Malformed> {
    said(message, answer)?;
    let tools = message.get("tool_calls").and_then(Value::as_array);
    for call in tools.into_iter().flatten() {
        asked(call, answer.open_tool(None)?);
    }
    Ok(())
}

fn said(message: &Value, answer: &mut Answer) -> Result<(), Malformed> {
    match message.get("content") {
        None | Some(Value::Null) => {}
        Some(Value::String(words)) => answer.say(words)?,
        // Models that reason, and several gateways.
        Some(Value::Array(parts)) => {
            for part in parts {
                said_part(part, answer)?;
            }
        }
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => return Err(Malformed),
    }
    // Servers of open models spell it in two ways.
    if let Some(words) = text(message, "reasoning_content").or(text(message, "reasoning")) {
        answer.think(words);
    }
    if let Some(words) = text(message, "refusal").filter(|words| !words.is_empty()) {
        answer.refuse(words);
    }
    Ok(())
}

fn said_part(part: &Value, answer: &mut Answer) -> Result<(), Malformed> {
    if let Some(words) = part.as_str() {
        return answer.say(words);
    }
    match text(part, "type") {
        Some("thinking") => {
            let thought = part.get("thinking");
            let pieces = thought.and_then(Value::as_array).into_iter().flatten();
            let words = thought.and_then(Value::as_str).into_iter();
            for words in words.chain(pieces.filter_map(|piece| text(piece, "text"))) {
                answer.think(words);
            }
            Ok(())
        }
        Some("refusal") => {
            answer.refuse(text(part, "refusal").ok_or(Malformed)?);
            Ok(())
        }
        // Other parts, such as references, have no text.
        Some(_) | None => text(part, "text").map_or(Ok(()), |words| answer.say(words)),
    }
}

/// The call that a piece of a stream continues, or none if it begins one. Servers count their calls, name them with
/// ids, or do neither and send each as a whole; some count each of them as the first.
fn continued(call: &Value, place: usize, answer: &Answer) -> Option<usize> {
    let index = count(call, "index");
    let id = text(call, "id").filter(|id| !id.is_empty());
    let is_same = |tool: &AskedTool| id == Some(&tool.id) && (index.is_none() || tool.index == index);
    if let Some(at) = answer.tools.iter().rposition(is_same) {
        return Some(at);
    }
    let at = match index {
        Some(_) => answer.newest_tool(index)?,
        None => answer.tools.len().checked_sub(1)?,
    };
    let open = answer.tools.get(at)?;
    let function = call.get("function");
    let member = |name: &str| function.and_then(|function| function.get(name));
    // Some servers make up an id for every piece, so one without a name begins no call.
    let has_name = member("name")
        .and_then(Value::as_str)
        .is_some_and(|name| !name.is_empty());
    let has_object = member("arguments").is_some_and(|arguments| match arguments {
        Value::String(text) => text.trim_ascii_start().starts_with('{'),
        arguments => arguments.is_object(),
    });
    let is_other = id.is_some() && !open.id.is_empty();
    let is_next = index.is_none() && place > 0;
    let begins = has_name && (is_other || is_next || has_object && is_object(&open.arguments));
    (!begins).then_some(at)
}

fn is_object(text: &str) -> bool {
    let text = text.trim_ascii();
    text.starts_with('{') && text.ends_with('}') && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

fn asked(call: &Value, tool: &mut AskedTool) {
    if let Some(id) = text(call, "id").filter(|id| !id.is_empty() && tool.id.is_empty()) {
        id.clone_into(&mut tool.id);
    }
    let Some(function) = call.get("function") else {
        return;
    };
    // Some servers repeat it with each piece.
    if let Some(name) = text(function, "name").filter(|name| *name != tool.name) {
        tool.name.push_str(name);
    }
    match function.get("arguments") {
        Some(Value::String(arguments)) => tool.arguments.push_str(arguments),
        None | Some(Value::Null) => {}
        // Some servers send the object itself.
        Some(arguments) => tool.arguments = arguments.to_string(),
    }
}

fn stop(reason: &str) -> ModelStop {
    match reason {
        "length" | "model_length" | "max_tokens" => ModelStop::Length,
        "tool_calls" | "function_call" => ModelStop::Tools,
        "content_filter" | "sensitive" => ModelStop::Refusal,
        _ => ModelStop::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(events: &[Value]) -> Result<Answer, Malformed> {
        let mut answer = Answer::default();
        for event in events {
            OpenAi.read_event(event.clone(), &mut answer)?;
        }
        Ok(answer)
    }

    fn delta(calls: &Value) -> Value {
        json!({ "choices": [{ "delta": { "tool_calls": calls } }] })
    }

    fn tools(pieces: &[Value]) -> Vec<(String, String, String)> {
        let answer = read(&pieces.iter().map(delta).collect::<Vec<_>>()).expect("can be read");
        let tools = answer.tools.into_iter();
        tools.map(|tool| (tool.id, tool.name, tool.arguments)).collect()
    }

    fn call(id: &str, name: &str, arguments: &str) -> (String, String, String) {
        (id.to_owned(), name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn streamed_calls_are_told_apart_by_index_id_or_completeness() {
        let one = |id: &str, arguments: &str| json!({ "id": id, "function": { "name": "echo", "arguments": arguments } });
        let at = |index: u32, mut call: Value| {
            call["index"] = index.into();
            call
        };
        let (a, b) = (one("a", r#"{"x":1}"#), one("b", r#"{"x":2}"#));
        let unnamed = |arguments: &str| one("", arguments);
        let both = [call("a", "echo", r#"{"x":1}"#), call("b", "echo", r#"{"x":2}"#)];
        let no_ids = both
            .clone()
            .map(|(_, name, arguments)| (String::new(), name, arguments));

        assert_eq!(tools(&[json!([a]), json!([b])]), both, "no index");
        assert_eq!(tools(&[json!([a, b])]), both, "no index, one event");
        assert_eq!(
            tools(&[json!([at(0, a.clone())]), json!([at(0, b.clone())])]),
            both,
            "each counted as the first"
        );
        assert_eq!(
            tools(&[json!([at(1, a.clone())]), json!([at(3, b.clone())])]),
            both,
            "gaps"
        );
        assert_eq!(
            tools(&[json!([unnamed(r#"{"x":1}"#)]), json!([unnamed(r#"{"x":2}"#)])]),
            no_ids,
            "neither index nor id"
        );
        assert_eq!(
            tools(&[json!([unnamed(r#"{"x":1}"#), unnamed(r#"{"x":2}"#)])]),
            no_ids,
            "neither index nor id, one event"
        );
        let more = |id: Value, index: Value, arguments: &str| json!({ "id": id, "index": index, "function": { "arguments": arguments } });
        let begun = [at(0, one("a", "")), at(1, one("b", ""))];
        assert_eq!(
            tools(&[
                json!(begun),
                json!([more(Value::Null, 0.into(), r#"{"x""#)]),
                json!([more(Value::Null, 1.into(), r#"{"x":2}"#)]),
                json!([more(Value::Null, 0.into(), ":1}")]),
            ]),
            both,
            "interleaved"
        );
    }

    #[test]
    fn pieces_of_one_call_stay_together() {
        let whole = [call("a", "echo", r#"{"x":1}"#)];
        let piece = |id: &str, index: Value, name: Value, arguments: &str| json!([{ "id": id, "index": index, "function": { "name": name, "arguments": arguments } }]);
        let begin = |index: Value| piece("a", index, "echo".into(), "");
        for (rest, what) in [
            (piece("", 0.into(), Value::Null, r#"{"x":1}"#), "no id"),
            (
                piece("a", 0.into(), "echo".into(), r#"{"x":1}"#),
                "the name again",
            ),
            (
                piece("z", 0.into(), Value::Null, r#"{"x":1}"#),
                "an id for each piece",
            ),
        ] {
            assert_eq!(tools(&[begin(0.into()), rest]), whole, "{what}");
        }
        let no_index = [
            begin(Value::Null),
            piece("", Value::Null, Value::Null, r#"{"x""#),
            piece("a", Value::Null, Value::Null, ":1}"),
        ];
        assert_eq!(tools(&no_index), whole);
    }

    #[test]
    fn content_may_be_parts_or_a_whole_message() {
        let parts = json!([
            { "type": "thinking", "thinking": [{ "type": "text", "text": "hm" }] },
            { "type": "text", "text": "it is " },
            { "type": "reference", "reference_ids": [1] },
            "here",
        ]);
        let message = json!({ "content": parts });
        let mut answer = Answer::default();
        let document = json!({ "choices": [{ "message": message, "finish_reason": "stop" }] });
        OpenAi.read(document, &mut answer).expect("can be read");
        assert_eq!(
            (answer.text.as_str(), answer.reasoning.as_str()),
            ("it is here", "hm")
        );

        let framed =
            json!({ "choices": [{ "message": { "content": "it is here" }, "finish_reason": "stop" }] });
        assert_eq!(
            read(std::slice::from_ref(&framed)).expect("can be read").text,
            "it is here"
        );
        let piece = json!({ "choices": [{ "delta": { "content": "it is here" } }] });
        assert_eq!(read(&[piece, framed]).expect("can be read").text, "it is here");
        for odd in [json!(1), json!(true), json!({ "text": "it" })] {
            assert!(
                read(&[json!({ "choices": [{ "delta": { "content": odd } }] })]).is_err(),
                "{odd}"
            );
        }
    }

    #[test]
    fn an_answer_that_broke_off_is_told_from_a_complete_one() {
        let ended = |reason: &str| json!({ "choices": [{ "delta": {}, "finish_reason": reason }] });
        for (reason, is_broken) in [
            ("error", true),
            ("function_call_filter: MALFORMED_FUNCTION_CALL", true),
            ("stop", false),
            ("eos", false),
            ("length", false),
        ] {
            let document = ended(reason);
            assert_eq!(OpenAi.broken(&document).is_some(), is_broken, "{reason}");
        }
    }
}
