//! The error envelope (OpenWOP v1 section 5). It is closed, so all additional data goes into `details`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json::{BodyError, DecodeError, MAX_DEPTH, Object};

/// The body of every unsuccessful response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorEnvelope {
    /// A stable code such as `validation_error`.
    pub error: String,
    /// A human-readable message without internal information.
    pub message: String,
    /// Data specific to the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Object>,
}

impl ErrorEnvelope {
    #[must_use]
    pub fn new(error: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            message: message.into(),
            details: None,
        }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details
            .get_or_insert_with(Object::new)
            .insert(name.to_owned(), value.into());
        self
    }
}

impl From<DecodeError> for ErrorEnvelope {
    /// A `validation_error` whose details name the field.
    fn from(error: DecodeError) -> Self {
        let envelope = Self::new("validation_error", error.to_string());
        if error.path().is_empty() {
            envelope
        } else {
            envelope.with("field", error.path())
        }
    }
}

impl From<BodyError> for ErrorEnvelope {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Syntax => Self::new("validation_error", "the body is not valid JSON"),
            BodyError::TooDeep => Self::new(
                "validation_error",
                format!("the body is nested too deeply: {MAX_DEPTH} levels are the most"),
            ),
            BodyError::Shape(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelope_has_only_error_message_and_details() {
        let envelope = ErrorEnvelope::new("not_found", "no such run");
        assert_eq!(
            serde_json::to_string(&envelope).unwrap(),
            r#"{"error":"not_found","message":"no such run"}"#
        );
        let envelope = ErrorEnvelope::from(DecodeError::missing().in_field("workflowId"));
        assert_eq!(
            serde_json::to_string(&envelope).unwrap(),
            r#"{"error":"validation_error","message":"workflowId is required","details":{"field":"workflowId"}}"#
        );
    }
}
