//! Chat completions, from the server's side.

use serde_json::{Value, json};

use super::{
    Heard,
    script::{Entry, Stop, Usage},
    server::StreamFrame,
    text_of,
};

/// `None` if the request is none of this wire.
pub(super) fn hear(request: &Value) -> Option<Heard> {
    let messages = request.get("messages")?.as_array()?;
    let mut heard = Heard {
        model: request.get("model")?.as_str()?.to_owned(),
        streams: request.get("stream").and_then(Value::as_bool).unwrap_or(false),
        turn: 1,
        ..Heard::default()
    };
    for message in messages {
        let text = text_of(message.get("content"));
        heard.says(&text);
        match message.get("role").and_then(Value::as_str)? {
            "system" | "developer" => {
                heard.system.push_str(&text);
                heard.system.push('\n');
            }
            "user" => heard.user = text,
            "assistant" => {
                heard.turn += 1;
                heard.tool.clear();
            }
            "tool" => {
                heard.tool.push_str(&text);
                heard.tool.push('\n');
            }
            _ => return None,
        }
    }
    let tools = request.get("tools").and_then(Value::as_array);
    let names = tools
        .into_iter()
        .flatten()
        .filter_map(|tool| tool.pointer("/function/name"));
    heard.tools = names.filter_map(Value::as_str).map(str::to_owned).collect();
    Some(heard)
}

fn finish_reason(entry: &Entry) -> &'static str {
    match entry.stop {
        Stop::Length => "length",
        Stop::End if !entry.tool_calls.is_empty() => "tool_calls",
        Stop::End => "stop",
    }
}

fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
    })
}

fn tool_calls(entry: &Entry, index: usize, is_delta: bool) -> Vec<Value> {
    let calls = entry.tool_calls.iter().enumerate();
    calls
        .map(|(n, call)| {
            let mut shown = json!({
                "id": format!("call_{index}_{n}"),
                "type": "function",
                "function": { "name": call.name, "arguments": arguments(&call.arguments) },
            });
            if is_delta {
                shown["index"] = n.into();
            }
            shown
        })
        .collect()
}

fn arguments(arguments: &Value) -> String {
    match arguments {
        Value::Null => "{}".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

pub(super) fn answer(heard: &Heard, index: usize, entry: &Entry) -> Value {
    let text = entry.pieces().concat();
    let mut message = json!({ "role": "assistant", "content": text });
    if let Some(refusal) = &entry.refusal {
        message["refusal"] = refusal.as_str().into();
    }
    if !entry.tool_calls.is_empty() {
        message["tool_calls"] = tool_calls(entry, index, false).into();
    }
    json!({
        "id": format!("chatcmpl-mock-{index}"),
        "object": "chat.completion",
        "created": 0,
        "model": heard.model,
        "choices": [{ "index": 0, "message": message, "finish_reason": finish_reason(entry) }],
        "usage": usage(entry.usage(heard)),
    })
}

/// The events of a streamed answer.
pub(super) fn events(heard: &Heard, index: usize, entry: &Entry) -> Vec<StreamFrame> {
    let chunk = |delta: Value, reason: Option<&str>| {
        json!({
            "id": format!("chatcmpl-mock-{index}"),
            "object": "chat.completion.chunk",
            "created": 0,
            "model": heard.model,
            "choices": [{ "index": 0, "delta": delta, "finish_reason": reason }],
        })
    };
    let mut events = vec![chunk(json!({ "role": "assistant", "content": "" }), None)];
    events.extend(
        entry
            .pieces()
            .into_iter()
            .map(|piece| chunk(json!({ "content": piece }), None)),
    );
    if let Some(refusal) = &entry.refusal {
        events.push(chunk(json!({ "refusal": refusal }), None));
    }
    if !entry.tool_calls.is_empty() {
        events.push(chunk(
            json!({ "tool_calls": tool_calls(entry, index, true) }),
            None,
        ));
    }
    events.push(chunk(json!({}), Some(finish_reason(entry))));
    let mut last = chunk(json!({}), None);
    last["choices"] = json!([]);
    last["usage"] = usage(entry.usage(heard));
    events.push(last);
    let is_piece = |event: &Value| {
        let delta = event.pointer("/choices/0/delta").and_then(Value::as_object);
        let is_filled = |value: &Value| !matches!(value, Value::String(text) if text.is_empty());
        delta.is_some_and(|delta| {
            let mut parts = delta.iter().filter(|(name, _)| *name != "role");
            parts.any(|(_, value)| is_filled(value))
        })
    };
    let frames = events.iter().map(|event| StreamFrame {
        is_piece: is_piece(event),
        text: format!("data: {event}\n\n"),
    });
    let done = StreamFrame {
        is_piece: false,
        text: "data: [DONE]\n\n".to_owned(),
    };
    frames.chain([done]).collect()
}

pub(super) fn error(message: &str) -> Value {
    json!({ "error": { "message": message, "type": "mock_error", "code": null, "param": null } })
}
