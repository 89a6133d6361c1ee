//! The JSON-RPC 2.0 envelope of A2A (A2A 1.0 section 9).
//!
//! A body that is not JSON is a parse error (-32700); JSON that is not a request is an invalid request
//! (-32600). Both errors carry the id to respond with. Batches are rejected. A2A has no notifications, so
//! every request gets a response, with a `null` id if the request has none. Parameters stay undecoded until
//! the method is known.

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;

use super::{error::A2aError, method::Version};
use crate::json::{self, Decode, DecodeError, Fields, Object};

/// The id of a request, as the client wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Id {
    Text(String),
    Int(i128),
    Null,
    /// No id was given, or it could not be read.
    Absent,
}

impl Id {
    fn read(value: Option<Value>) -> Option<Self> {
        match value {
            None => Some(Self::Absent),
            Some(Value::Null) => Some(Self::Null),
            Some(Value::String(text)) => Some(Self::Text(text)),
            Some(Value::Number(number)) => {
                let signed = number.as_i64().map(i128::from);
                signed.or_else(|| number.as_u64().map(i128::from)).map(Self::Int)
            }
            Some(Value::Bool(_) | Value::Array(_) | Value::Object(_)) => None,
        }
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Int(number) => match i64::try_from(*number) {
                Ok(number) => serializer.serialize_i64(number),
                Err(_) => serializer.serialize_i128(*number),
            },
            Self::Null | Self::Absent => serializer.serialize_unit(),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub id: Id,
    pub method: String,
    pub params: Option<Value>,
}

/// A body that is not a request, and the error to respond with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("read a request: {error}")]
pub struct Rejection {
    /// The id to respond with; [`Id::Absent`] if it could not be read.
    pub id: Id,
    #[source]
    pub error: A2aError,
}

impl Request {
    /// Parses a body.
    ///
    /// # Errors
    /// Returns a parse error or an invalid request, with the id to respond with.
    pub fn parse(body: &[u8]) -> Result<Self, Rejection> {
        let value = json::parse(body).map_err(|_| Rejection {
            id: Id::Absent,
            error: A2aError::Parse,
        })?;
        let invalid = |id, detail: &str| Rejection {
            id,
            error: A2aError::InvalidRequest {
                detail: detail.to_owned(),
            },
        };
        let mut members = match value {
            Value::Object(members) => members,
            Value::Array(_) => return Err(invalid(Id::Absent, "batches are not supported")),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                return Err(invalid(Id::Absent, "the body must be an object"));
            }
        };
        let Some(id) = Id::read(members.remove("id")) else {
            return Err(invalid(Id::Absent, "id must be a string, an integer or null"));
        };
        if members.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            return Err(invalid(id, "jsonrpc must be \"2.0\""));
        }
        let Some(Value::String(method)) = members.remove("method") else {
            return Err(invalid(id, "method must be a string"));
        };
        Ok(Self {
            id,
            method,
            params: members.remove("params"),
        })
    }
}

/// Decodes the parameters of a request; absent means an empty object.
///
/// # Errors
/// Returns invalid parameters, with the offending field.
pub fn decode_params<T: Decode>(params: Option<Value>) -> Result<T, A2aError> {
    let params = params.filter(|params| !params.is_null());
    Ok(T::decode(params.unwrap_or_else(|| Value::Object(Object::new())))?)
}

struct Success<'a, T> {
    id: &'a Id,
    result: &'a T,
}

impl<T: Serialize> Serialize for Success<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("jsonrpc", "2.0")?;
        map.serialize_entry("id", self.id)?;
        map.serialize_entry("result", self.result)?;
        map.end()
    }
}

struct Failure<'a> {
    id: &'a Id,
    error: &'a A2aError,
    version: Version,
}

#[derive(Serialize)]
struct ErrorObject {
    code: i64,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
}

impl Serialize for Failure<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let error = ErrorObject {
            code: self.error.code_in(self.version),
            message: self.error.to_string(),
            data: self.error.data(),
        };
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("jsonrpc", "2.0")?;
        map.serialize_entry("id", self.id)?;
        map.serialize_entry("error", &error)?;
        map.end()
    }
}

/// Appends a successful response. A result that fails to serialize becomes an internal error.
pub fn encode_result_into<T: Serialize>(out: &mut Vec<u8>, id: &Id, result: &T) {
    let start = out.len();
    if serde_json::to_writer(&mut *out, &Success { id, result }).is_err() {
        out.truncate(start);
        encode_error_into(out, id, &A2aError::Internal, Version::V1_0);
    }
}

/// Appends an error response, with the error code of the version.
pub fn encode_error_into(out: &mut Vec<u8>, id: &Id, error: &A2aError, version: Version) {
    serde_json::to_writer(out, &Failure { id, error, version })
        .expect("an error is text and numbers, and a vector takes every byte");
}

#[must_use]
pub fn encode_result<T: Serialize>(id: &Id, result: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    encode_result_into(&mut out, id, result);
    out
}

/// Encodes an error response, with the error code of the version.
#[must_use]
pub fn encode_error(id: &Id, error: &A2aError, version: Version) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    encode_error_into(&mut out, id, error, version);
    out
}

/// Encodes a request that we send.
///
/// # Errors
/// Returns an error if the parameters do not serialize.
pub fn encode_request<T: Serialize>(id: &Id, method: &str, params: &T) -> Result<Vec<u8>, serde_json::Error> {
    struct Call<'a, T> {
        id: &'a Id,
        method: &'a str,
        params: &'a T,
    }
    impl<T: Serialize> Serialize for Call<'_, T> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut map = serializer.serialize_map(Some(4))?;
            map.serialize_entry("jsonrpc", "2.0")?;
            map.serialize_entry("id", self.id)?;
            map.serialize_entry("method", self.method)?;
            map.serialize_entry("params", self.params)?;
            map.end()
        }
    }
    serde_json::to_vec(&Call { id, method, params })
}

/// The response to a request we sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    pub id: Id,
    pub outcome: Result<Value, RemoteError>,
}

/// An error that a remote agent responded with. Its text is untrusted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("remote error {code}")]
pub struct RemoteError {
    pub code: i64,
    pub message: String,
    /// The details, in any shape.
    pub data: Option<Value>,
}

impl Response {
    /// Parses a body.
    ///
    /// # Errors
    /// Returns an error if the body is not a JSON-RPC response.
    pub fn parse(body: &[u8]) -> Result<Self, json::BodyError> {
        json::from_slice(body)
    }
}

impl Decode for Response {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        fields.literal("jsonrpc", "2.0")?;
        let id = Id::read(fields.take("id"))
            .ok_or_else(|| DecodeError::invalid("must be a string, an integer or null").in_field("id"))?;
        let error = fields.optional("error")?;
        let outcome = match (error, fields.take("result")) {
            (Some(error), None | Some(Value::Null)) => Err(error),
            (None, Some(result)) => Ok(result),
            (Some(_), Some(_)) => return Err(DecodeError::invalid("must have only one of result, error")),
            // Some servers omit a `null` result, for example after a deletion.
            (None, None) => Ok(Value::Null),
        };
        Ok(Self { id, outcome })
    }
}

impl Decode for RemoteError {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let code: Value = fields.required("code")?;
        Ok(Self {
            code: json::integer(&code)
                .and_then(|code| i64::try_from(code).ok())
                .ok_or_else(|| DecodeError::wrong_type("an integer").in_field("code"))?,
            message: fields.or_default("message")?,
            data: fields.present("data"),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::a2a::model::{GetExtendedAgentCardRequest, GetTaskRequest};

    fn reject(body: &[u8]) -> (i64, Id) {
        let rejection = Request::parse(body).unwrap_err();
        (rejection.error.code(), rejection.id)
    }

    #[test]
    fn valid_requests_are_parsed() {
        for (id, wanted) in [
            ("\"a\"", Id::Text("a".into())),
            ("7", Id::Int(7)),
            ("-7", Id::Int(-7)),
            ("18446744073709551615", Id::Int(u64::MAX.into())),
            ("null", Id::Null),
        ] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"GetTask","params":{{"id":"t"}}}}"#);
            let request = Request::parse(body.as_bytes()).unwrap();
            assert_eq!(request.id, wanted);
            assert_eq!(request.method, "GetTask");
            assert_eq!(request.params, Some(json!({"id": "t"})));
            assert_eq!(
                encode_result(&request.id, &json!({})),
                format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#).into_bytes()
            );
        }
    }

    #[test]
    fn requests_without_an_id_are_answered_with_null() {
        let request = Request::parse(br#"{"jsonrpc":"2.0","method":"x","extra":1}"#).unwrap();
        assert_eq!(request.id, Id::Absent);
        assert_eq!(request.params, None);
        assert_eq!(
            encode_result(&request.id, &1),
            br#"{"jsonrpc":"2.0","id":null,"result":1}"#
        );
    }

    #[test]
    fn invalid_json_is_a_parse_error() {
        let bodies: &[&[u8]] = &[
            b"",
            b"{",
            b"{\"jsonrpc\":\"2.0\"",
            b"\xff\xfe",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}",
            b"{\"method\":\"\\ud800\"}",
            b"{} {}",
            b"nul",
        ];
        for body in bodies {
            assert_eq!(reject(body), (-32700, Id::Absent), "{body:?}");
        }
    }

    #[test]
    fn deep_nesting_is_a_parse_error() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let nested = format!("{}1{}", open.repeat(10_000), close.repeat(10_000));
            assert_eq!(reject(nested.as_bytes()), (-32700, Id::Absent));
            let inside = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{nested}}}"#);
            assert_eq!(reject(inside.as_bytes()), (-32700, Id::Absent));
        }
    }

    #[test]
    fn invalid_requests_are_rejected_with_their_id() {
        for (body, id) in [
            ("[]", Id::Absent),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"x"}]"#, Id::Absent),
            ("1", Id::Absent),
            ("null", Id::Absent),
            ("{}", Id::Absent),
            (r#"{"jsonrpc":"1.0","id":1,"method":"x"}"#, Id::Int(1)),
            (r#"{"jsonrpc":2.0,"id":1,"method":"x"}"#, Id::Int(1)),
            (r#"{"id":"a","method":"x"}"#, Id::Text("a".into())),
            (r#"{"jsonrpc":"2.0","id":1}"#, Id::Int(1)),
            (r#"{"jsonrpc":"2.0","id":1,"method":5}"#, Id::Int(1)),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"x"}"#, Id::Absent),
            (r#"{"jsonrpc":"2.0","id":1e99,"method":"x"}"#, Id::Absent),
            (r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#, Id::Absent),
            (r#"{"jsonrpc":"2.0","id":[1],"method":"x"}"#, Id::Absent),
            (r#"{"jsonrpc":"2.0","id":true,"method":"x"}"#, Id::Absent),
        ] {
            assert_eq!(reject(body.as_bytes()), (-32600, id), "{body}");
        }
    }

    #[test]
    fn absent_parameters_decode_as_an_empty_object() {
        for params in [None, Some(Value::Null), Some(json!({}))] {
            assert!(decode_params::<GetExtendedAgentCardRequest>(params.clone()).is_ok());
            let error = decode_params::<GetTaskRequest>(params).unwrap_err();
            assert_eq!(error, A2aError::invalid_param("id", "is required"));
        }
        let error = decode_params::<GetTaskRequest>(Some(json!(["t"]))).unwrap_err();
        assert_eq!(error.to_string(), "invalid parameters: params must be an object");
    }

    #[test]
    fn error_responses_echo_the_id() {
        let error = A2aError::task_not_found("t");
        let body: Value =
            serde_json::from_slice(&encode_error(&Id::Text("q".into()), &error, Version::V1_0)).unwrap();
        assert_eq!(
            body,
            json!({
                "jsonrpc": "2.0",
                "id": "q",
                "error": { "code": -32001, "message": "task not found", "data": error.data().unwrap() },
            })
        );
        let response = Response::parse(&serde_json::to_vec(&body).unwrap()).unwrap();
        assert_eq!(response.id, Id::Text("q".into()));
        assert_eq!(response.outcome.unwrap_err().code, -32001);
    }

    #[test]
    fn unserializable_result_is_an_internal_error() {
        let unprintable = std::collections::BTreeMap::from([((1, 2), 3)]);
        let body: Value = serde_json::from_slice(&encode_result(&Id::Int(1), &unprintable)).unwrap();
        assert_eq!(body["error"]["code"], -32603);
        assert_eq!(body["id"], 1);
    }

    #[test]
    fn responses_hold_a_result_or_an_error() {
        let bare = Response::parse(br#"{"jsonrpc":"2.0","id":3}"#).unwrap();
        assert_eq!(bare.outcome, Ok(Value::Null));
        let ok = Response::parse(br#"{"jsonrpc":"2.0","id":3,"result":null}"#).unwrap();
        assert_eq!(
            ok,
            Response {
                id: Id::Int(3),
                outcome: Ok(Value::Null)
            }
        );
        for body in [
            r#"{"jsonrpc":"2.0","id":3,"result":1,"error":{"code":1,"message":"x"}}"#,
            r#"{"id":3,"result":1}"#,
            r#"{"jsonrpc":"2.0","id":3,"error":{"message":"x"}}"#,
            "[]",
        ] {
            assert!(Response::parse(body.as_bytes()).is_err(), "{body}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Request::parse(&body);
            let _ = Response::parse(&body);
        }
    }
}
