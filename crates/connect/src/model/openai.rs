//! Chat completions, as OpenAI and many other servers speak them.

use http::{HeaderName, header};
use serde_json::{Value, json};
use wopr_core::{ModelCall, ModelMessage, ModelStop};

use super::{
    Wire,
    answer::{Answer, Malformed, count, text},
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

    fn read(&self, document: Value, answer: &mut Answer) -> Result<(), Malformed> {
        named(&document, answer);
        let choice = document.pointer("/choices/0").ok_or(Malformed)?;
        let message = choice.get("message").ok_or(Malformed)?;
        said(message, answer)?;
        let tools = message.get("tool_calls").and_then(Value::as_array);
        for (index, call) in tools.into_iter().flatten().enumerate() {
            asked(call, index, answer)?;
        }
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
        if let Some(delta) = choice.get("delta") {
            said(delta, answer)?;
            let tools = delta.get("tool_calls").and_then(Value::as_array);
            for (place, call) in tools.into_iter().flatten().enumerate() {
                let index = count(call, "index").and_then(|index| usize::try_from(index).ok());
                asked(call, index.unwrap_or(place), answer)?;
            }
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

fn said(message: &Value, answer: &mut Answer) -> Result<(), Malformed> {
    if let Some(words) = text(message, "content") {
        answer.say(words)?;
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

fn asked(call: &Value, index: usize, answer: &mut Answer) -> Result<(), Malformed> {
    let tool = answer.tool(index)?;
    if let Some(id) = text(call, "id") {
        id.clone_into(&mut tool.id);
    }
    let Some(function) = call.get("function") else {
        return Ok(());
    };
    if let Some(name) = text(function, "name") {
        tool.name.push_str(name);
    }
    match function.get("arguments") {
        Some(Value::String(arguments)) => tool.arguments.push_str(arguments),
        None | Some(Value::Null) => {}
        // Some servers send the object itself.
        Some(arguments) => tool.arguments = arguments.to_string(),
    }
    Ok(())
}

fn stop(reason: &str) -> ModelStop {
    match reason {
        "length" => ModelStop::Length,
        "tool_calls" | "function_call" => ModelStop::Tools,
        "content_filter" => ModelStop::Refusal,
        _ => ModelStop::End,
    }
}
