//! The key of a call (RFC 0041): equal for calls that ask the same of the same model. It is recorded with the reply, so that
//! anyone can find out whether two runs asked the same.

use serde_json::{Value, json};
use wopr_core::ModelCall;
use wopr_wire::openwop::cache_key::cache_key;

/// The key of a call of this model. `None` only for a call that has no canonical JSON.
pub(super) fn key_of(call: &ModelCall, model: &str) -> Option<String> {
    cache_key(&document(call, model)).ok()
}

/// What the model is asked, as the recipe spells it. How the call is sent, and how long it may take, are no part of it.
fn document(call: &ModelCall, model: &str) -> Value {
    let ModelCall {
        provider,
        model: _,
        messages,
        tools,
        temperature,
        max_tokens,
        schema,
        streams: _,
        script,
        timeout_ms: _,
        granted: _,
        has_run_budget: _,
    } = call;
    let mut document = json!({ "provider": provider, "model": model, "messages": messages });
    if !tools.is_empty() {
        document["tools"] = json!(tools);
    }
    if let Some(temperature) = temperature {
        document["temperature"] = json!(temperature);
    }
    if let Some(most) = max_tokens {
        document["maxOutputTokens"] = json!(most);
    }
    if let Some(schema) = schema {
        document["responseFormat"] = json!({ "type": "json_schema", "schema": schema });
    }
    if let Some(script) = script {
        // An option of this provider alone.
        document["providerOptions"] = json!({ "script": script });
    }
    document
}

#[cfg(test)]
mod tests {
    use wopr_core::{ModelMessage, ModelTool, ToolCall};

    use super::*;

    fn plain() -> ModelCall {
        ModelCall {
            provider: "claude".to_owned(),
            model: None,
            messages: vec![ModelMessage::User {
                content: "Grüße".to_owned(),
            }],
            tools: Vec::new(),
            temperature: None,
            max_tokens: None,
            schema: None,
            streams: false,
            script: None,
            timeout_ms: 1_000,
            granted: Vec::new(),
            has_run_budget: false,
        }
    }

    fn full() -> ModelCall {
        let tool = |name: &str| ModelTool {
            name: name.to_owned(),
            description: "d".to_owned(),
            schema: json!({ "type": "object" }),
        };
        ModelCall {
            messages: vec![
                ModelMessage::System {
                    content: "Be brief.".to_owned(),
                },
                ModelMessage::Assistant {
                    content: String::new(),
                    tool_calls: vec![ToolCall {
                        id: "c1".to_owned(),
                        name: "a".to_owned(),
                        arguments: json!({ "n": 1 }),
                        signature: None,
                    }],
                },
                ModelMessage::Tool {
                    call_id: "c1".to_owned(),
                    name: "a".to_owned(),
                    content: "2".to_owned(),
                    is_error: false,
                },
            ],
            tools: vec![tool("b"), tool("a")],
            temperature: Some(0.5),
            max_tokens: Some(100),
            schema: Some(json!({ "type": "object" })),
            script: Some(json!({ "id": "stream-text" })),
            ..plain()
        }
    }

    // Computed by hand, with Python 3, whose sorted JSON without spaces is canonical for these texts and numbers:
    //
    //   import hashlib, json
    //   def key(provider, request, options=None):
    //       o = {"recipe": "openwop-semantic-request-v2", "provider": provider, "model": "m-1", "request": request}
    //       if options: o["providerOptions"] = options
    //       text = json.dumps(o, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    //       return hashlib.sha256(text.encode()).hexdigest()
    //   key("claude", {"messages": [{"role": "user", "content": "Grüße"}]})
    //   tool = lambda name: {"name": name, "description": "d", "schema": {"type": "object"}}
    //   key("claude", {"messages": [
    //       {"role": "system", "content": "Be brief."},
    //       {"role": "assistant", "content": "", "toolCalls": [{"id": "c1", "name": "a", "arguments": {"n": 1}}]},
    //       {"role": "tool", "callId": "c1", "name": "a", "content": "2"}],
    //     "tools": [tool("a"), tool("b")], "temperature": 0.5, "maxOutputTokens": 100,
    //     "responseFormat": {"type": "json_schema", "schema": {"type": "object"}}},
    //     {"vendor.claude.script": {"id": "stream-text"}})
    #[test]
    fn keys_are_those_of_the_recipe() {
        assert_eq!(
            key_of(&plain(), "m-1").unwrap(),
            "ce80364438b959c878a62aa5a33ff89251a64b0eb915ddb8acc7198ce2a73af0"
        );
        assert_eq!(
            key_of(&full(), "m-1").unwrap(),
            "d39802b45ba4a425af499203683cf3686b3115c4bf2edb781d4c42e1f9f016fd"
        );
    }

    #[test]
    fn only_what_is_asked_counts() {
        let key = key_of(&full(), "m-1");
        let sent_otherwise = ModelCall {
            streams: true,
            timeout_ms: 5,
            // The model that is asked is the one that was resolved.
            model: Some("m-2".to_owned()),
            ..full()
        };
        assert_eq!(key_of(&sent_otherwise, "m-1"), key);
        let asked_otherwise = [
            ModelCall {
                provider: "other".to_owned(),
                ..full()
            },
            ModelCall {
                messages: Vec::new(),
                ..full()
            },
            ModelCall {
                tools: Vec::new(),
                ..full()
            },
            ModelCall {
                temperature: None,
                ..full()
            },
            ModelCall {
                max_tokens: Some(101),
                ..full()
            },
            ModelCall {
                schema: None,
                ..full()
            },
            ModelCall {
                script: None,
                ..full()
            },
        ];
        for other in asked_otherwise {
            assert_ne!(key_of(&other, "m-1"), key, "{other:?}");
        }
        assert_ne!(key_of(&full(), "m-2"), key);
    }
}
