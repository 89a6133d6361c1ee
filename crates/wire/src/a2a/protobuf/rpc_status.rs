//! The binary `google.rpc.Status` that carries error details in gRPC.

use serde_json::{Value, json};

use super::{
    read,
    schema::{Kind, Message, field, message, messages},
    write,
};
use crate::{
    a2a::model::{decode_base64, encode_base64},
    json::Object,
};

messages! {
    STATUS = "Status" {
        1 "code": Int32,
        2 "message": Text,
        3 "details": Message(ANY) many,
    }
    ANY = "Any" {
        1 "type_url" as "typeUrl": Text,
        2 "value": Bytes,
    }
    ERROR_INFO = "ErrorInfo" {
        1 "reason": Text,
        2 "domain": Text,
        3 "metadata": Text map,
    }
    BAD_REQUEST = "BadRequest" {
        1 "field_violations" as "fieldViolations": Message(FIELD_VIOLATION) many,
    }
    FIELD_VIOLATION = "FieldViolation" {
        1 "field": Text,
        2 "description": Text,
    }
}

/// Encodes a status. `details` are the objects of [`A2aError::data`](crate::a2a::error::A2aError::data), each
/// with its `@type`; objects of an unknown type are left out.
#[must_use]
pub fn rpc_status(code: i32, message: &str, details: &[Value]) -> Vec<u8> {
    let details: Vec<Value> = details.iter().filter_map(any).collect();
    let status = json!({ "code": code, "message": message, "details": details });
    let written = status.as_object().and_then(|status| write(&STATUS, status).ok());
    written.unwrap_or_default()
}

fn any(detail: &Value) -> Option<Value> {
    let mut members: Object = detail.as_object()?.clone();
    let Value::String(type_url) = members.remove("@type")? else {
        return None;
    };
    let message = match type_url.rsplit('.').next()? {
        "ErrorInfo" => &ERROR_INFO,
        "BadRequest" => &BAD_REQUEST,
        _ => return None,
    };
    let value = encode_base64(&write(message, &members).ok()?);
    Some(json!({ "typeUrl": type_url, "value": value }))
}

/// Extracts the reason from a status of any peer, if it has one.
#[must_use]
pub fn status_reason(bytes: &[u8]) -> Option<String> {
    let mut status = read(&STATUS, bytes).ok()?;
    let Value::Array(details) = status.remove("details")? else {
        return None;
    };
    details.iter().find_map(|detail| {
        let type_url = detail.get("typeUrl")?.as_str()?;
        if !type_url.ends_with("google.rpc.ErrorInfo") {
            return None;
        }
        let info = decode_base64(detail.get("value")?.as_str()?).ok()?;
        match read(&ERROR_INFO, &info).ok()?.remove("reason")? {
            Value::String(reason) => Some(reason),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::a2a::error::A2aError;

    #[test]
    fn reason_round_trips() {
        let data = A2aError::task_not_found("t").data().unwrap();
        let status = rpc_status(5, "no such task", data.as_array().unwrap());
        assert_eq!(status_reason(&status).as_deref(), Some("TASK_NOT_FOUND"));
        let data = A2aError::invalid_param("x", "is wrong").data().unwrap();
        assert_eq!(status_reason(&rpc_status(3, "", data.as_array().unwrap())), None);
        for bytes in [&b""[..], b"\x1a", b"\xff\xff", &[0x1a, 2, 0x12, 0]] {
            assert_eq!(status_reason(bytes), None);
        }
    }
}
