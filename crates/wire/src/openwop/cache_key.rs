//! The key of a model call (RFC 0041, recipe `openwop-semantic-request-v2`): equal for calls that ask the same of the
//! same model, whoever makes them and however they are sent.
//!
//! What counts is put into one object, whose canonical form (RFC 8785) is hashed. Members that only concern the
//! transport do not count; members that the recipe does not know do, as options of the provider. Messages count as
//! they are, in their order; tools in the order of their names. The key protects nothing: whoever keeps answers by it
//! keeps those of each tenant apart.

use ring::digest::{SHA256, digest};
use serde_json::{Map, Value, json};

use crate::jcs;

const RECIPE: &str = "openwop-semantic-request-v2";
/// Members that count, besides messages and tools.
const SEMANTIC: [&str; 8] = [
    "temperature",
    "topP",
    "topK",
    "maxOutputTokens",
    "seed",
    "stop",
    "responseFormat",
    "safetySettings",
];
/// Members that say how a call is sent, by whom, or where it comes from.
const TRANSPORT: [&str; 20] = [
    "apiKey",
    "attempt",
    "callId",
    "endpoint",
    "headers",
    "idempotencyKey",
    "metadata",
    "nodeId",
    "requestId",
    "runId",
    "signal",
    "stream",
    "streamOptions",
    "tenantId",
    "timeout",
    "timeoutMs",
    "traceId",
    "traceparent",
    "tracestate",
    "user",
];

/// Why a call has no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheKeyError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} has the wrong type")]
    WrongType(&'static str),
    #[error("the call has no canonical form")]
    NotCanonical,
}

/// The key of a call, in lowercase hexadecimal digits: `{provider, model, messages, ...}`, where what is asked of the
/// model may also be within `request`.
///
/// # Errors
/// The provider, the model or the messages are missing, or a member has the wrong type.
pub fn cache_key(call: &Value) -> Result<String, CacheKeyError> {
    let bytes = jcs::to_vec(&canonical(call)?).map_err(|_| CacheKeyError::NotCanonical)?;
    Ok(hash(&bytes))
}

fn hash(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The object that is hashed.
fn canonical(call: &Value) -> Result<Value, CacheKeyError> {
    let call = call.as_object().ok_or(CacheKeyError::Missing("provider"))?;
    let provider = text(call, "provider")?;
    let model = text(call, "model")?;
    let nested = match call.get("request") {
        None | Some(Value::Null) => None,
        Some(Value::Object(request)) => Some(request),
        Some(_) => return Err(CacheKeyError::WrongType("request")),
    };
    let mut members: Map<String, Value> = call.clone();
    for taken in ["provider", "model", "request", "recipe"] {
        members.remove(taken);
    }
    members.extend(nested.cloned().unwrap_or_default());
    members.retain(|name, value| !value.is_null() && !TRANSPORT.contains(&name.as_str()));
    let mut request = Map::new();
    match members.remove("messages") {
        None => return Err(CacheKeyError::Missing("messages")),
        Some(messages @ Value::Array(_)) => drop(request.insert("messages".to_owned(), messages)),
        Some(_) => return Err(CacheKeyError::WrongType("messages")),
    }
    match members.remove("tools") {
        None => {}
        Some(Value::Array(tools)) => drop(request.insert("tools".to_owned(), sorted(tools).into())),
        Some(_) => return Err(CacheKeyError::WrongType("tools")),
    }
    for name in SEMANTIC {
        if let Some(value) = members.remove(name) {
            request.insert(name.to_owned(), value);
        }
    }
    let given = match members.remove("providerOptions") {
        None => Map::new(),
        Some(Value::Object(options)) => options,
        Some(_) => return Err(CacheKeyError::WrongType("providerOptions")),
    };
    let options: Map<_, _> = given
        .into_iter()
        .chain(members)
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| match name.starts_with("vendor.") {
            true => (name, value),
            false => (format!("vendor.{provider}.{name}"), value),
        })
        .collect();
    let mut object = json!({ "recipe": RECIPE, "provider": provider, "model": model, "request": request });
    if !options.is_empty() {
        object["providerOptions"] = options.into();
    }
    Ok(object)
}

fn text<'c>(call: &'c Map<String, Value>, name: &'static str) -> Result<&'c str, CacheKeyError> {
    match call.get(name) {
        None | Some(Value::Null) => Err(CacheKeyError::Missing(name)),
        Some(Value::String(text)) if text.is_empty() => Err(CacheKeyError::Missing(name)),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(CacheKeyError::WrongType(name)),
    }
}

/// Tools by name, in the order of UTF-16 code units, which is not that of UTF-8 beyond the basic plane.
fn sorted(mut tools: Vec<Value>) -> Vec<Value> {
    let name = |tool: &Value| -> Vec<u16> {
        let name = tool.get("name").or_else(|| tool.pointer("/function/name"));
        name.and_then(Value::as_str)
            .unwrap_or_default()
            .encode_utf16()
            .collect()
    };
    tools.sort_by_cached_key(name);
    tools
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Value {
        json!({
            "provider": "anthropic", "model": "m-1", "temperature": 0.5, "maxOutputTokens": 100,
            "messages": [{ "role": "user", "content": "Grüße" }],
            "tools": [{ "name": "b" }, { "name": "a" }],
        })
    }

    fn with(name: &str, value: Value) -> Value {
        let mut call = call();
        call[name] = value;
        call
    }

    #[test]
    fn key_is_the_hash_of_the_canonical_object() {
        let text = concat!(
            r#"{"model":"m-1","provider":"anthropic","recipe":"openwop-semantic-request-v2","request":"#,
            r#"{"maxOutputTokens":100,"messages":[{"content":"Grüße","role":"user"}],"temperature":0.5,"#,
            r#""tools":[{"name":"a"},{"name":"b"}]}}"#,
        );
        assert_eq!(cache_key(&call()).unwrap(), hash(text.as_bytes()));
        // Computed once with sha256sum.
        assert_eq!(
            cache_key(&json!({ "provider": "p", "model": "m", "messages": [] })).unwrap(),
            "b9b85e4030b2e0518ae8f7e1b0c403f2ce032a07b2e5ba0a1f860200aa0e7efc",
        );
    }

    #[test]
    fn only_what_is_asked_of_the_model_counts() {
        let key = cache_key(&call()).unwrap();
        for (name, value) in [
            ("stream", json!(true)),
            ("timeoutMs", json!(5)),
            ("requestId", json!("r-1")),
            ("apiKey", json!("secret")),
            ("metadata", json!({ "a": 1 })),
            ("user", json!("u")),
            ("traceparent", json!("00-1")),
            ("temperature", json!(5e-1)),
            ("seed", Value::Null),
            ("tools", json!([{ "name": "a" }, { "name": "b" }])),
            ("providerOptions", json!({})),
        ] {
            assert_eq!(cache_key(&with(name, value)).unwrap(), key, "{name}");
        }
        for (name, value) in [
            ("model", json!("m-2")),
            ("provider", json!("openai")),
            ("messages", json!([])),
            ("messages", json!([{ "role": "user", "content": "Gru\u{308}ße" }])),
            ("temperature", json!(0.6)),
            ("maxOutputTokens", json!(101)),
            ("stop", json!(["x"])),
            ("seed", json!(1)),
            ("reasoningEffort", json!("high")),
            ("providerOptions", json!({ "vendor.anthropic.x": 1 })),
        ] {
            assert_ne!(cache_key(&with(name, value)).unwrap(), key, "{name}");
        }
    }

    #[test]
    fn a_request_may_be_nested_and_options_are_named_after_their_provider() {
        let nested =
            json!({ "provider": "p", "model": "m", "request": { "messages": [], "topK": 3 }, "effort": 1 });
        let flat = json!({ "provider": "p", "model": "m", "messages": [], "topK": 3,
            "providerOptions": { "vendor.p.effort": 1 } });
        assert_eq!(cache_key(&nested), cache_key(&flat));
    }

    #[test]
    fn tools_are_sorted_by_utf16_code_units() {
        // U+FF61 sorts before U+10000 in UTF-8, and after it in UTF-16.
        let tools = vec![json!({ "name": "\u{ff61}" }), json!({ "name": "\u{10000}" })];
        assert_eq!(sorted(tools)[0]["name"], "\u{10000}");
    }

    #[test]
    fn incomplete_calls_have_no_key() {
        for name in ["provider", "model", "messages"] {
            let mut call = call();
            call.as_object_mut().unwrap().remove(name);
            assert_eq!(cache_key(&call), Err(CacheKeyError::Missing(name)));
        }
        assert_eq!(
            cache_key(&with("tools", json!(1))),
            Err(CacheKeyError::WrongType("tools"))
        );
        assert_eq!(cache_key(&json!(1)), Err(CacheKeyError::Missing("provider")));
    }
}
