//! The contents of Gemini.

use http::HeaderName;
use serde_json::{Value, json};
use wopr_core::{ModelCall, ModelMessage, ModelStop};

use super::{
    Wire,
    answer::{Answer, Malformed, count, text},
    reason::Broken,
};

pub(super) struct Gemini;

/// The reason of an answer that goes on.
const UNSPECIFIED: &str = "FINISH_REASON_UNSPECIFIED";

impl Wire for Gemini {
    fn path(&self, model: &str, streams: bool) -> String {
        // The name is one segment of the path, whatever it holds.
        let mut place = String::new();
        for byte in model.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => place.push(char::from(byte)),
                _ => place.push_str(&format!("%{byte:02X}")),
            }
        }
        match streams {
            true => format!("v1beta/models/{place}:streamGenerateContent?alt=sse"),
            false => format!("v1beta/models/{place}:generateContent"),
        }
    }

    fn credential(&self, key: &str) -> (HeaderName, String) {
        (HeaderName::from_static("x-goog-api-key"), key.to_owned())
    }

    fn body(&self, _model: &str, call: &ModelCall, _streams: bool) -> Value {
        let mut system = Vec::new();
        let mut contents: Vec<Value> = Vec::new();
        for message in &call.messages {
            let (role, parts) = match message {
                ModelMessage::System { content } => {
                    system.push(json!({ "text": content }));
                    continue;
                }
                ModelMessage::User { content } => ("user", vec![json!({ "text": content })]),
                ModelMessage::Assistant { content, tool_calls } => {
                    let words = (!content.is_empty()).then(|| json!({ "text": content }));
                    (
                        "model",
                        words.into_iter().chain(tool_calls.iter().map(called)).collect(),
                    )
                }
                ModelMessage::Tool {
                    call_id: _,
                    name,
                    content,
                    is_error,
                } => {
                    let key = if *is_error { "error" } else { "result" };
                    let response =
                        json!({ "functionResponse": { "name": name, "response": { key: content } } });
                    ("user", vec![response])
                }
            };
            let last = contents.last_mut().filter(|last| last["role"] == role);
            match last.and_then(|last| last["parts"].as_array_mut()) {
                Some(said) => said.extend(parts),
                None => contents.push(json!({ "role": role, "parts": parts })),
            }
        }
        let mut body = json!({ "contents": contents });
        if !system.is_empty() {
            body["systemInstruction"] = json!({ "parts": system });
        }
        let mut options = json!({});
        if let Some(temperature) = call.temperature {
            options["temperature"] = temperature.into();
        }
        if let Some(most) = call.max_tokens {
            options["maxOutputTokens"] = most.into();
        }
        // Its models take either a schema or functions. This host checks the answer in any case.
        if let Some(schema) = call.schema.as_ref().filter(|_| call.tools.is_empty()) {
            options["responseMimeType"] = "application/json".into();
            options["responseJsonSchema"] = schema.clone();
        }
        body["generationConfig"] = options;
        if !call.tools.is_empty() {
            let tool = |tool: &wopr_core::ModelTool| {
                json!({
                    "name": tool.name,
                    "description": tool.description,
                    "parametersJsonSchema": tool.schema,
                })
            };
            let tools: Vec<_> = call.tools.iter().map(tool).collect();
            body["tools"] = json!([{ "functionDeclarations": tools }]);
        }
        body
    }

    fn broken<'d>(&self, document: &'d Value) -> Option<Broken<'d>> {
        let candidate = document.pointer("/candidates/0")?;
        let reason = text(candidate, "finishReason")?;
        match stop(reason) {
            // It has names for what goes wrong, and adds to them, but only one for an answer that is complete.
            None if reason != UNSPECIFIED => Some(Broken {
                reason,
                words: text(candidate, "finishMessage"),
            }),
            None | Some(_) => None,
        }
    }

    fn read(&self, document: Value, answer: &mut Answer) -> Result<(), Malformed> {
        if document.get("candidates").is_none() && document.get("promptFeedback").is_none() {
            return Err(Malformed);
        }
        self.read_event(document, answer)
    }

    fn read_event(&self, document: Value, answer: &mut Answer) -> Result<(), Malformed> {
        if document.get("error").is_some() {
            return Err(Malformed);
        }
        if let Some(model) = text(&document, "modelVersion") {
            answer.model = Some(model.to_owned());
        }
        if let Some(usage) = document.get("usageMetadata") {
            let n = |name: &str| count(usage, name);
            answer.usage.input_tokens = n("promptTokenCount").unwrap_or(0);
            let thoughts = n("thoughtsTokenCount").unwrap_or(0);
            answer.usage.output_tokens = n("candidatesTokenCount").unwrap_or(0).saturating_add(thoughts);
            answer.usage.cache_read_tokens = n("cachedContentTokenCount");
        }
        // The question itself was refused.
        if document.pointer("/promptFeedback/blockReason").is_some() {
            answer.stop = Some(ModelStop::Refusal);
        }
        let Some(candidate) = document.pointer("/candidates/0") else {
            return Ok(());
        };
        let parts = candidate.pointer("/content/parts").and_then(Value::as_array);
        for part in parts.into_iter().flatten() {
            let is_thought = part.get("thought").and_then(Value::as_bool) == Some(true);
            match text(part, "text") {
                Some(words) if is_thought => answer.think(words),
                Some(words) => answer.say(words)?,
                None => {}
            }
            if let Some(call) = part.get("functionCall") {
                let tool = answer.open_tool(None)?;
                text(call, "name").ok_or(Malformed)?.clone_into(&mut tool.name);
                text(call, "id").unwrap_or_default().clone_into(&mut tool.id);
                tool.signature = text(part, "thoughtSignature").map(str::to_owned);
                if let Some(arguments) = call.get("args") {
                    tool.arguments = arguments.to_string();
                }
            }
        }
        if let Some(stop) = text(candidate, "finishReason").and_then(stop) {
            answer.stop = Some(match stop {
                ModelStop::End if !answer.tools.is_empty() => ModelStop::Tools,
                ModelStop::End | ModelStop::Length | ModelStop::Tools | ModelStop::Refusal => stop,
            });
        }
        Ok(())
    }
}

fn stop(reason: &str) -> Option<ModelStop> {
    match reason {
        "STOP" => Some(ModelStop::End),
        "MAX_TOKENS" => Some(ModelStop::Length),
        "SAFETY"
        | "RECITATION"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "MODEL_ARMOR"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "IMAGE_RECITATION" => Some(ModelStop::Refusal),
        _ => None,
    }
}

/// A call as a part of what the model said. Its newer models refuse a call without its signature.
fn called(call: &wopr_core::ToolCall) -> Value {
    let nothing = json!({});
    let arguments = Some(&call.arguments).filter(|arguments| arguments.is_object());
    let mut part = json!({ "functionCall": { "name": call.name, "args": arguments.unwrap_or(&nothing) } });
    if let Some(signature) = &call.signature {
        part["thoughtSignature"] = signature.as_str().into();
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_known_end_makes_an_answer_complete() {
        for (reason, is_broken, stop) in [
            ("STOP", false, Some(ModelStop::End)),
            ("MAX_TOKENS", false, Some(ModelStop::Length)),
            ("SAFETY", false, Some(ModelStop::Refusal)),
            ("FINISH_REASON_UNSPECIFIED", false, None),
            ("MALFORMED_FUNCTION_CALL", true, None),
            ("UNEXPECTED_TOOL_CALL", true, None),
            ("LANGUAGE", true, None),
            ("OTHER", true, None),
            ("SOMETHING_NEW", true, None),
        ] {
            let document = json!({ "candidates": [{ "content": {}, "finishReason": reason }] });
            assert_eq!(Gemini.broken(&document).is_some(), is_broken, "{reason}");
            let mut answer = Answer::default();
            Gemini.read_event(document, &mut answer).expect("can be read");
            assert_eq!(answer.stop, stop, "{reason}");
        }
    }
}
