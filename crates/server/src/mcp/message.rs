//! JSON-RPC messages of MCP, as a server reads and writes them.
//!
//! A server of this kind sends no requests, so it ignores responses. Batches existed in one version of MCP only
//! (2025-03-26) and are refused.

use serde_json::{Value, json};
use wopr_wire::json::{self, BodyError, MAX_DEPTH, Object};

/// Maximum size of a request's id in bytes: it is kept and repeated.
const MAX_ID: usize = 1_024;
/// Maximum size in bytes of what an error repeats of a request.
const MAX_REPEATED: usize = 128;

#[derive(Debug)]
pub(super) enum Message {
    Request(Request),
    Notification(Notification),
    /// An answer, though nothing was asked.
    Response,
}

/// A request of a client.
#[derive(Debug)]
pub struct Request {
    pub id: Id,
    pub method: String,
    pub params: Object,
}

/// A notification of a client.
#[derive(Debug)]
pub struct Notification {
    pub method: String,
    pub params: Object,
}

/// The id of a request: a string or a whole number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Id(Value);

impl Id {
    /// The id as the client sent it.
    #[must_use]
    pub const fn value(&self) -> &Value {
        &self.0
    }

    pub(super) fn read(value: Value) -> Option<Self> {
        match &value {
            Value::String(text) if text.len() <= MAX_ID => Some(Self(value)),
            Value::Number(number) if number.is_i64() || number.is_u64() => Some(Self(value)),
            Value::String(_)
            | Value::Number(_)
            | Value::Null
            | Value::Bool(_)
            | Value::Array(_)
            | Value::Object(_) => None,
        }
    }
}

/// The error of a request, in the terms of JSON-RPC. Failures of tools are results instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Error {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Option<Value>,
}

impl Error {
    pub(super) const PARSE: i64 = -32_700;
    pub(super) const INVALID_REQUEST: i64 = -32_600;
    pub(super) const METHOD_NOT_FOUND: i64 = -32_601;
    pub(super) const INVALID_PARAMS: i64 = -32_602;
    pub(super) const INTERNAL: i64 = -32_603;
    /// The server cannot take the request now, or not from this caller.
    pub(super) const SERVER: i64 = -32_000;
    pub(super) const RESOURCE_NOT_FOUND: i64 = -32_002;
    /// A header says something else than the body.
    pub(super) const HEADER_MISMATCH: i64 = -32_020;
    pub(super) const UNSUPPORTED_VERSION: i64 = -32_022;

    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Self::INVALID_PARAMS, message)
    }

    pub(super) fn no_method(method: &str) -> Self {
        Self::new(
            Self::METHOD_NOT_FOUND,
            format!("there is no method {}", repeated(method)),
        )
    }

    fn document(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        error
    }
}

/// A text of the client, cut to what an error may repeat.
pub(super) fn repeated(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_REPEATED);
    let shown: String = text[..end].chars().filter(|c| !c.is_control()).collect();
    match end < text.len() {
        true => format!("{shown}…"),
        false => shown,
    }
}

/// Reads one message. The error carries the id of the request, if it has a usable one.
pub(super) fn read(bytes: &[u8]) -> Result<Message, (Option<Id>, Error)> {
    let value = json::parse(bytes).map_err(|error| {
        let why = match error {
            BodyError::TooDeep => format!("the message nests more than {MAX_DEPTH} levels deep"),
            BodyError::Syntax | BodyError::Shape(_) => "the message is not JSON".to_owned(),
        };
        (None, Error::new(Error::PARSE, why))
    })?;
    let invalid = |id, why: &str| Err((id, Error::new(Error::INVALID_REQUEST, why)));
    let Value::Object(mut members) = value else {
        let why = match value.is_array() {
            true => "batches are not taken: send the messages one by one",
            false => "a message is an object",
        };
        return invalid(None, why);
    };
    let has_id = members.contains_key("id");
    let id = members.remove("id").and_then(Id::read);
    if members.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return invalid(id, "jsonrpc must be \"2.0\"");
    }
    let method = match members.remove("method") {
        Some(Value::String(method)) => method,
        None if members.contains_key("result") || members.contains_key("error") => {
            return Ok(Message::Response);
        }
        Some(_) | None => return invalid(id, "method must be a string"),
    };
    let params = match members.remove("params") {
        None => Object::new(),
        Some(Value::Object(params)) => params,
        Some(_) => return invalid(id, "params must be an object"),
    };
    match (has_id, id) {
        (true, Some(id)) => Ok(Message::Request(Request { id, method, params })),
        (true, None) => invalid(
            None,
            &format!("id must be a whole number, or a string of at most {MAX_ID} bytes"),
        ),
        (false, _) => Ok(Message::Notification(Notification { method, params })),
    }
}

/// The answer to a request.
pub(super) fn response(id: &Id, result: Result<Value, Error>) -> Value {
    match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id.0, "result": result }),
        Err(error) => json!({ "jsonrpc": "2.0", "id": id.0, "error": error.document() }),
    }
}

/// The answer to a message whose id cannot be read.
pub(super) fn refusal(id: Option<&Id>, error: &Error) -> Value {
    let id = id.map_or(Value::Null, |id| id.0.clone());
    json!({ "jsonrpc": "2.0", "id": id, "error": error.document() })
}

pub(super) fn notification(method: &str, params: Value) -> Value {
    let mut notification = json!({ "jsonrpc": "2.0", "method": method });
    if !params.is_null() {
        notification["params"] = params;
    }
    notification
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> (Option<Id>, i64) {
        let (id, error) = read(text.as_bytes()).unwrap_err();
        (id, error.code)
    }

    #[test]
    fn messages_are_told_apart_by_id_and_method() {
        let read = |text: &str| read(text.as_bytes()).unwrap();
        let request = read(r#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#);
        assert!(matches!(request, Message::Request(Request { id, .. }) if id == Id("a".into())));
        let notification = read(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        assert!(matches!(notification, Message::Notification(_)));
        assert!(matches!(
            read(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#),
            Message::Response
        ));
    }

    #[test]
    fn refusals_name_the_request_if_its_id_can_be_used() {
        let seven = Id::read(7.into());
        assert_eq!(code("{"), (None, Error::PARSE));
        assert_eq!(code(&"[".repeat(200)), (None, Error::PARSE));
        assert_eq!(code("[]"), (None, Error::INVALID_REQUEST));
        assert_eq!(code("1"), (None, Error::INVALID_REQUEST));
        for (text, id) in [
            (r#"{"id":7,"method":"ping"}"#, seven.clone()),
            (r#"{"jsonrpc":"2.0","id":7}"#, seven.clone()),
            (r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":[]}"#, seven),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, None),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, None),
        ] {
            assert_eq!(code(text), (id, Error::INVALID_REQUEST), "{text}");
        }
        let long = format!(
            r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#,
            "x".repeat(MAX_ID + 1)
        );
        assert_eq!(code(&long), (None, Error::INVALID_REQUEST));
    }

    #[test]
    fn errors_repeat_little_of_what_the_client_sent() {
        let said = Error::no_method(&"\u{1b}é".repeat(10_000)).message;
        assert!(said.len() < 200 && !said.contains('\u{1b}'), "{said}");
    }
}
