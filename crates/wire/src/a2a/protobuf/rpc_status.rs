//! `google.rpc.Status` in bytes, as gRPC carries the details of an error.

use serde_json::{Value, json};

use super::{
    schema::{Kind, Message, field, message, named},
    write,
};
use crate::{a2a::model::encode_base64, json::Object};

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

/// Writes a status. `details` are the objects of [`A2aError::data`](crate::a2a::error::A2aError::data), each with its
/// `@type`; one of a type that is not here is left out.
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
