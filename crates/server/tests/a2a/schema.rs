//! The published 0.3 schema, against which every response in that version is checked.

use std::{collections::HashMap, path::Path, sync::OnceLock};

use jsonschema::Validator;
use serde_json::{Value, json};

const DEFINITIONS: [&str; 12] = [
    "AgentCard",
    "CancelTaskResponse",
    "DeleteTaskPushNotificationConfigResponse",
    "GetAuthenticatedExtendedCardResponse",
    "GetTaskPushNotificationConfigResponse",
    "GetTaskResponse",
    "JSONRPCErrorResponse",
    "ListTaskPushNotificationConfigResponse",
    "SendMessageResponse",
    "SendStreamingMessageResponse",
    "SetTaskPushNotificationConfigResponse",
    "Task",
];

/// Checks a document against a definition; does nothing if the schema is not checked out next to the project.
pub(crate) fn check(definition: &str, document: &Value) {
    static VALIDATORS: OnceLock<HashMap<&str, Validator>> = OnceLock::new();
    let validators = VALIDATORS.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let Ok(text) = std::fs::read(root.join("../shared/fixtures/a2a/a2a-0.3.0.schema.json")) else {
            return HashMap::new();
        };
        let schema: Value = serde_json::from_slice(&text).unwrap();
        let validator = |definition: &str| {
            let mut schema = schema.clone();
            schema["$ref"] = json!(format!("#/definitions/{definition}"));
            jsonschema::validator_for(&schema).unwrap()
        };
        DEFINITIONS.map(|name| (name, validator(name))).into()
    });
    if let Some(validator) = validators.get(definition) {
        let errors: Vec<_> = validator
            .iter_errors(document)
            .map(|error| error.to_string())
            .collect();
        assert!(errors.is_empty(), "{definition}: {errors:?}\n{document:#}");
    }
}

/// The definition of a 0.3 method's response.
pub(crate) fn answer_of(method: &str) -> &'static str {
    match method {
        "message/send" => "SendMessageResponse",
        "tasks/get" => "GetTaskResponse",
        "tasks/cancel" => "CancelTaskResponse",
        "tasks/pushNotificationConfig/set" => "SetTaskPushNotificationConfigResponse",
        "tasks/pushNotificationConfig/get" => "GetTaskPushNotificationConfigResponse",
        "tasks/pushNotificationConfig/list" => "ListTaskPushNotificationConfigResponse",
        "tasks/pushNotificationConfig/delete" => "DeleteTaskPushNotificationConfigResponse",
        "agent/getAuthenticatedExtendedCard" => "GetAuthenticatedExtendedCardResponse",
        _ => "JSONRPCErrorResponse",
    }
}
