//! The binary `google.rpc.Status` that carries error details in gRPC.

use serde_json::{Value, json};

use super::{
    read,
    schema::{Kind, Message, field, message, named},
    write,
};
use crate::{
    a2a::model::{decode_base64, encode_base64},
    json::Object,
};

static STATUS: Message = message(
    "Status",
    &[
        field(1, "code", Kind::Int32),
        field(2, "message", Kind::Text),
        field(3, "details", Kind::Message(&ANY)).many(),
    ],
);
static ANY: Message = message(
    "Any",
    &[
        named(1, "type_url", "typeUrl", Kind::Text),
        field(2, "value", Kind::Bytes),
    ],
);
static ERROR_INFO: Message = message(
    "ErrorInfo",
    &[
        field(1, "reason", Kind::Text),
        field(2, "domain", Kind::Text),
        field(3, "metadata", Kind::Text).map(),
    ],
);
static BAD_REQUEST: Message = message(
    "BadRequest",
    &[named(
        1,
        "field_violations",
        "fieldViolations",
        Kind::Message(&FIELD_VIOLATION),
    )
    .many()],
);
static FIELD_VIOLATION: Message = message(
    "FieldViolation",
    &[field(1, "field", Kind::Text), field(2, "description", Kind::Text)],
);

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
