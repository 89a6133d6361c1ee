//! The messages of Anthropic, from the server's side.

use serde_json::{Value, json};

use super::{
    Heard,
    script::{Entry, Stop, Usage},
    server::StreamFrame,
    text_of,
};

/// `None` if the request is none of this wire.
pub(super) fn hear(request: &Value) -> Option<Heard> {
    request.get("max_tokens")?.as_u64()?;
    let messages = request.get("messages")?.as_array()?;
    let mut heard = Heard {
        model: request.get("model")?.as_str()?.to_owned(),
        system: text_of(request.get("system")),
        streams: request.get("stream").and_then(Value::as_bool).unwrap_or(false),
        turn: 1,
        ..Heard::default()
    };
    let system = heard.system.clone();
    heard.says(&system);
    for message in messages {
        let content = message.get("content");
        let text = text_of(content);
        heard.says(&text);
        match message.get("role").and_then(Value::as_str)? {
            "assistant" => {
                heard.turn += 1;
                heard.tool.clear();
            }
            "user" => {
                let parts = content.and_then(Value::as_array).into_iter().flatten();
                let results = parts.filter(|part| part["type"] == "tool_result");
                let results: Vec<_> = results.map(|result| text_of(result.get("content"))).collect();
                for result in &results {
                    heard.says(result);
                    heard.tool.push_str(result);
                    heard.tool.push('\n');
                }
                if results.is_empty() || !text.is_empty() {
                    heard.user = text;
                }
            }
            _ => return None,
        }
    }
    let tools = request.get("tools").and_then(Value::as_array);
    let names = tools.into_iter().flatten().filter_map(|tool| tool.get("name"));
    heard.tools = names.filter_map(Value::as_str).map(str::to_owned).collect();
    Some(heard)
}

fn stop_reason(entry: &Entry) -> &'static str {
    match entry.stop {
        _ if entry.refusal.is_some() => "refusal",
        Stop::Length => "max_tokens",
        Stop::End if !entry.tool_calls.is_empty() => "tool_use",
        Stop::End => "end_turn",
    }
}

fn tool_use(entry: &Entry, index: usize) -> impl Iterator<Item = Value> {
    let calls = entry.tool_calls.iter().enumerate();
    calls.map(move |(n, call)| {
        let input = match &call.arguments {
            Value::Null => json!({}),
            other => other.clone(),
        };
        json!({ "type": "tool_use", "id": format!("toolu_{index}_{n}"), "name": call.name, "input": input })
    })
}

pub(super) fn answer(heard: &Heard, index: usize, entry: &Entry) -> Value {
    let Usage { input, output } = entry.usage(heard);
    let text = entry.refusal.clone().unwrap_or_else(|| entry.pieces().concat());
    let words = (!text.is_empty()).then(|| json!({ "type": "text", "text": text }));
    let content: Vec<_> = words.into_iter().chain(tool_use(entry, index)).collect();
    json!({
        "id": format!("msg_mock_{index}"),
        "type": "message",
        "role": "assistant",
        "model": heard.model,
        "content": content,
        "stop_reason": stop_reason(entry),
        "stop_sequence": null,
        "usage": { "input_tokens": input, "output_tokens": output },
    })
}

/// The events of a streamed answer.
pub(super) fn events(heard: &Heard, index: usize, entry: &Entry) -> Vec<StreamFrame> {
    let Usage { input, output } = entry.usage(heard);
    let mut begun = answer(heard, index, entry);
    begun["content"] = json!([]);
    begun["stop_reason"] = Value::Null;
    begun["usage"] = json!({ "input_tokens": input, "output_tokens": 0 });
    let mut events = vec![json!({ "type": "message_start", "message": begun })];
    let pieces = match &entry.refusal {
        Some(words) => vec![words.clone()],
        None => entry.pieces(),
    };
    let mut at = 0;
    if !pieces.is_empty() {
        let block = json!({ "type": "text", "text": "" });
        events.push(json!({ "type": "content_block_start", "index": at, "content_block": block }));
        for piece in pieces {
            let delta = json!({ "type": "text_delta", "text": piece });
            events.push(json!({ "type": "content_block_delta", "index": at, "delta": delta }));
        }
        events.push(json!({ "type": "content_block_stop", "index": at }));
        at += 1;
    }
    for mut block in tool_use(entry, index) {
        let input = std::mem::replace(&mut block["input"], json!({}));
        events.push(json!({ "type": "content_block_start", "index": at, "content_block": block }));
        let delta = json!({ "type": "input_json_delta", "partial_json": input.to_string() });
        events.push(json!({ "type": "content_block_delta", "index": at, "delta": delta }));
        events.push(json!({ "type": "content_block_stop", "index": at }));
        at += 1;
    }
    events.push(json!({
        "type": "message_delta",
        "delta": { "stop_reason": stop_reason(entry), "stop_sequence": null },
        "usage": { "output_tokens": output },
    }));
    events.push(json!({ "type": "message_stop" }));
    let frame = |event: &Value| {
        let name = event["type"].as_str().unwrap_or_default();
        StreamFrame {
            is_piece: name == "content_block_delta",
            text: format!("event: {name}\ndata: {event}\n\n"),
        }
    };
    events.iter().map(frame).collect()
}

pub(super) fn error(message: &str) -> Value {
    json!({ "type": "error", "error": { "type": "mock_error", "message": message } })
}
