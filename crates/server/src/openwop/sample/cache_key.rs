//! The hook that tells by which key an answer of a model would be kept.
//!
//! The key is a hash of what a model is asked, in a form that every host computes alike (`openwop-semantic-request-v2`):
//! transport, identity and credentials are no part of it.

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use wopr_core::Object;
use wopr_wire::{
    jcs,
    json::{Decode, DecodeError},
};

use crate::{
    auth::Scope,
    hex::hex,
    openwop::{
        answer::{Answer, json_response},
        call::Call,
        problem::Problem,
    },
};

const RECIPE: &str = "openwop-semantic-request-v2";

/// What belongs to the question, besides its messages and tools.
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

/// A request in the form of the recipe, or with the members of `request` at its top.
#[derive(Debug)]
struct Asked(Object);

impl Decode for Asked {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        match value {
            Value::Object(members) => Ok(Self(members)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Err(DecodeError::wrong_type("an object"))
            }
        }
    }
}

/// `POST /v1/host/sample/test/llm-cache-key`
pub(in super::super) fn cache_key(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        call.caller().require(Scope::RunsRead)?;
        let Asked(asked) = call.decode()?;
        let Some(document) = document(&asked) else {
            let message = "provider, model and messages are needed";
            return Err(Problem::new(StatusCode::BAD_REQUEST, "invalid_argument", message));
        };
        let bytes = jcs::to_vec(&document).map_err(|_| {
            Problem::new(
                StatusCode::BAD_REQUEST,
                "invalid_argument",
                "the request has no canonical form",
            )
        })?;
        json_response(
            StatusCode::OK,
            &json!({ "cacheKey": hex(&Sha256::digest(bytes)) }),
        )
    }
    .boxed()
}

/// The document that is hashed; `None` if the request is incomplete.
fn document(asked: &Object) -> Option<Value> {
    let text = |name: &str| {
        asked
            .get(name)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
    };
    let (provider, model) = (text("provider")?, text("model")?);
    let nested = asked.get("request").and_then(Value::as_object);
    let member = |name: &str| {
        let found = nested
            .and_then(|nested| nested.get(name))
            .or_else(|| asked.get(name));
        found.filter(|value| !value.is_null())
    };
    let mut request = Object::new();
    request.insert(
        "messages".to_owned(),
        member("messages").filter(|list| list.is_array())?.clone(),
    );
    if let Some(Value::Array(tools)) = member("tools") {
        let mut tools = tools.clone();
        let name = |tool: &Value| -> Vec<u16> {
            let name = tool.get("name").and_then(Value::as_str).unwrap_or_default();
            name.encode_utf16().collect()
        };
        tools.sort_by_key(name);
        request.insert("tools".to_owned(), tools.into());
    }
    for name in SEMANTIC {
        if let Some(value) = member(name) {
            request.insert(name.to_owned(), value.clone());
        }
    }
    let mut document = json!({ "recipe": RECIPE, "provider": provider, "model": model, "request": request });
    if let Some(options) = asked.get("providerOptions").filter(|options| options.is_object()) {
        document["providerOptions"] = options.clone();
    }
    Some(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: Value) -> Option<Value> {
        let Value::Object(asked) = value else {
            panic!("an object");
        };
        document(&asked)
    }

    #[test]
    fn only_what_is_asked_is_part_of_the_key() {
        let plain = json!({
            "provider": "p", "model": "m", "messages": [{ "role": "user", "content": "?" }],
            "tools": [{ "name": "b" }, { "name": "a" }], "temperature": 0,
        });
        let mut noisy = plain.clone();
        for (name, value) in [
            ("stream", json!(true)),
            ("user", json!("u")),
            ("timeout", json!(1)),
            ("seed", json!(null)),
        ] {
            noisy[name] = value;
        }
        assert_eq!(of(plain.clone()), of(noisy));
        let document = of(plain).unwrap();
        assert_eq!(
            document["request"]["tools"],
            json!([{ "name": "a" }, { "name": "b" }])
        );
        assert_eq!(document["recipe"], RECIPE);
        for (missing, value) in [
            ("provider", json!("")),
            ("model", json!(1)),
            ("messages", json!("x")),
        ] {
            let mut asked = json!({ "provider": "p", "model": "m", "messages": [] });
            asked[missing] = value;
            assert_eq!(of(asked), None, "{missing}");
        }
    }
}
