//! JSON Schemas of documents that clients write: compiled once, and never looked for elsewhere.

use jsonschema::Validator;
use serde_json::Value;

/// Compiles a JSON Schema; references outside the document are refused.
///
/// # Errors
/// What is wrong with the schema.
pub(crate) fn compile_schema(schema: &Value) -> Result<Validator, String> {
    jsonschema::draft202012::options()
        .build(schema)
        .map_err(|error| error.to_string())
}
