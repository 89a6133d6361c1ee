//! What an answer to an interrupt must be.

use serde_json::Value;
use wopr_kernel::{AnswerSchema, cost::Meter};
use wopr_schema::Schema;

/// The schema of an answer, which has to be an object, because it is merged into the state.
#[derive(Debug)]
pub(crate) struct Payload(pub(crate) Schema);

impl AnswerSchema for Payload {
    fn check(&self, value: &Value, meter: &Meter<'_>) -> Result<(), String> {
        if !value.is_object() {
            return Err("the answer must be an object, whose members become part of the state".to_owned());
        }
        self.0
            .validate(value, meter)
            .map_err(|invalid| invalid.to_string())
    }
}

/// The payload of a signal: any object.
#[derive(Debug)]
pub(crate) struct AnyObject;

impl AnswerSchema for AnyObject {
    fn check(&self, value: &Value, _meter: &Meter<'_>) -> Result<(), String> {
        match value.is_object() {
            true => Ok(()),
            false => Err("the payload must be an object, whose members become part of the state".to_owned()),
        }
    }
}
