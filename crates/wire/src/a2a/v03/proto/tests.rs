//! Golden documents, rejected documents and round trips of this shape.

use proptest::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};

use super::*;
use crate::{
    a2a::{
        arbitrary,
        model::{
            self, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetTaskRequest,
            ListTaskPushNotificationConfigsRequest, ListTasksRequest, Message, Part, PartContent,
            SendMessageRequest, StreamResponse, SubscribeToTaskRequest, Task, TaskPushNotificationConfig,
            TaskState,
        },
    },
    json::Decode,
};

fn read<T>(document: Value) -> T
where
    Proto<T>: Decode,
{
    let Proto(value) = Proto::decode(document).unwrap();
    value
}

fn refused<T: std::fmt::Debug>(document: Value) -> String
where
    Proto<T>: Decode,
{
    Proto::<T>::decode(document).unwrap_err().to_string()
}

fn written<T>(value: T) -> Value
where
    Proto<T>: Serialize,
{
    serde_json::to_value(Proto(value)).unwrap()
}

fn message_json() -> Value {
    json!({"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hi"}]})
}

#[test]
fn task_uses_the_names_of_the_protocol_buffers() {
    let document = json!({
        "id": "t", "contextId": "c",
        "status": {
            "state": "TASK_STATE_CANCELLED", "message": message_json(), "timestamp": "2026-01-02T03:04:05.006Z",
        },
        "artifacts": [{
            "artifactId": "a", "name": "n", "description": "d", "metadata": {"k": 1}, "extensions": ["urn:y"],
            "parts": [
                {"text": "x", "metadata": {"k": 1}},
                {"file": {"fileWithBytes": "dGNr", "mimeType": "text/plain", "name": "output.txt"}},
                {"file": {"fileWithUri": "https://example.com/x"}},
                {"data": {"data": {"key": "value"}}},
                {"data": {"data": {"value": [1]}}, "metadata": {"data_part_compat": true}},
            ],
        }],
        "history": [message_json()],
        "metadata": {"k": []},
    });
    let task: Task = read(document.clone());
    assert_eq!(task.status.state, TaskState::Canceled);
    assert_eq!(task.artifacts[0].parts[4].content, PartContent::Data(json!([1])));
    assert_eq!(written(&task), document);
}

#[test]
fn task_states_round_trip() {
    for state in TaskState::ALL {
        let name = write::state_name(*state);
        assert_eq!(read::<TaskState>(json!(name)), *state);
        assert_eq!(name == state.as_str(), *state != TaskState::Canceled, "{name}");
    }
    assert!(refused::<TaskState>(json!("TASK_STATE_CANCELED")).contains("must be a task state of A2A 0.3"));
}

#[test]
fn absent_blocking_means_non_blocking() {
    for (configuration, waits) in [
        (Value::Null, false),
        (json!({}), false),
        (json!({"blocking": false}), false),
        (json!({"blocking": true}), true),
    ] {
        let request: SendMessageRequest =
            read(json!({"message": message_json(), "configuration": configuration, "unknown": 1}));
        assert_eq!(
            request.configuration.return_immediately, !waits,
            "{configuration}"
        );
    }
}

#[test]
fn push_configuration_is_accepted_in_two_forms() {
    let config =
        json!({"url": "https://example.com/hook", "token": "t", "authentication": {"schemes": ["Bearer"]}});
    let whole = json!({
        "parent": "tasks/t", "configId": "c",
        "config": {"name": "tasks/t/pushNotificationConfigs/None", "pushNotificationConfig": config},
    });
    let mut inner = config.clone();
    inner["id"] = json!("c");
    let alone = json!({
        "parent": "tasks/t", "name": "tasks/t/pushNotificationConfigs/c", "pushNotificationConfig": inner,
    });
    let read_config: TaskPushNotificationConfig = read(whole);
    assert_eq!(read_config, read(alone));
    assert_eq!(
        (read_config.task_id.as_deref(), read_config.id.as_deref()),
        (Some("t"), Some("c"))
    );
    assert_eq!(
        written(&read_config),
        json!({"name": "tasks/t/pushNotificationConfigs/c", "pushNotificationConfig": inner})
    );
    let bare: TaskPushNotificationConfig = read(
        json!({"parent": "tasks/t", "pushNotificationConfig": {"url": "https://e.com", "authentication": {}}}),
    );
    assert_eq!((bare.id, bare.authentication), (None, None));
}

#[test]
fn requests_identify_resources_by_name() {
    assert_eq!(
        read::<GetTaskRequest>(json!({"name": "tasks/t", "historyLength": 0})).history_length,
        Some(0)
    );
    assert_eq!(read::<CancelTaskRequest>(json!({"name": "tasks/t"})).id, "t");
    assert_eq!(read::<SubscribeToTaskRequest>(json!({"name": "tasks/t"})).id, "t");
    let list: ListTaskPushNotificationConfigsRequest = read(json!({"parent": "tasks/t", "pageSize": 7}));
    assert_eq!((list.task_id.as_str(), list.page_size), ("t", Some(7)));
    let name = json!({"name": "tasks/t/pushNotificationConfigs/c"});
    assert_eq!(config(name.clone()).unwrap(), ("t".to_owned(), "c".to_owned()));
    let delete: DeleteTaskPushNotificationConfigRequest = read(name);
    assert_eq!((delete.task_id.as_str(), delete.id.as_str()), ("t", "c"));
    for name in [
        "",
        "t",
        "tasks",
        "tasks/",
        "tasks/t/x",
        "/tasks/t",
        "tasks/t/pushNotificationConfigs/c",
    ] {
        let text = refused::<CancelTaskRequest>(json!({ "name": name }));
        assert_eq!(text, "name must be tasks/{id}", "{name}");
    }
    for name in [
        "tasks/t",
        "tasks//pushNotificationConfigs/c",
        "tasks/t/pushNotificationConfigs/",
        "a/b/c/d",
    ] {
        let text = config(json!({ "name": name })).unwrap_err().to_string();
        assert_eq!(
            text, "name must be tasks/{id}/pushNotificationConfigs/{id}",
            "{name}"
        );
    }
}

#[test]
fn list_request_uses_the_state_names_of_0_3() {
    let list: ListTasksRequest = read(json!({"status": "TASK_STATE_CANCELLED", "pageSize": 3}));
    assert_eq!(
        (list.status, list.page_size),
        (Some(TaskState::Canceled), Some(3))
    );
    assert_eq!(read::<ListTasksRequest>(json!({"status": ""})).status, None);
    assert_eq!(
        refused::<ListTasksRequest>(json!({"status": "TASK_STATE_CANCELED"})),
        "status must be a task state of A2A 0.3"
    );
}

#[test]
fn decode_errors_name_the_field() {
    for (document, wanted) in [
        (json!({}), "message is required"),
        (json!([]), "document must be an object"),
        (
            json!({"message": {"messageId": "m", "role": "user", "content": []}}),
            "message.role must be ROLE_USER or ROLE_AGENT",
        ),
        (
            json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}}),
            "message.content must have at least one part",
        ),
        (
            json!({"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "x", "data": {}}]}}),
            "message.content[0] must have only one of text, file, data",
        ),
        (
            json!({"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"file": {"fileWithBytes": "%"}}]}}),
            "message.content[0].file.fileWithBytes must be base64",
        ),
        (
            json!({"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"data": {"data": 7}}]}}),
            "message.content[0].data.data must be an object",
        ),
        (
            json!({"message": message_json(), "configuration": {"pushNotification": {"token": "x"}}}),
            "configuration.pushNotification.url is required",
        ),
    ] {
        assert_eq!(refused::<SendMessageRequest>(document), wanted);
    }
    assert_eq!(
        refused::<TaskPushNotificationConfig>(
            json!({"parent": "tasks/t", "config": {"pushNotificationConfig": {}}})
        ),
        "config.pushNotificationConfig.url is required"
    );
}

#[test]
fn card_wraps_its_security_schemes() {
    let card = json!({
        "name": "n", "description": "d", "version": "1",
        "supportedInterfaces": [
            {"url": "https://e.com", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
            {"url": "e.com:443", "protocolBinding": "GRPC", "protocolVersion": "0.3"},
        ],
        "capabilities": {"streaming": true, "extendedAgentCard": true},
        "securitySchemes": {
            "key": {"httpAuthSecurityScheme": {"scheme": "Bearer"}},
            "login": {"oauth2SecurityScheme": {"flows": {
                "authorizationCode": {"authorizationUrl": "https://a", "tokenUrl": "https://t", "scopes": {"s": "d"},
                    "pkceRequired": true},
            }}},
        },
        "securityRequirements": [{"schemes": {"key": {"list": []}}}],
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "s", "name": "s", "description": "s", "tags": ["t"],
            "securityRequirements": [{"schemes": {"login": {"list": ["s"]}}}]}],
    });
    let card = model::AgentCard::decode(card).unwrap();
    assert_eq!(
        written(&card),
        json!({
            "protocolVersion": "0.3.0", "name": "n", "description": "d", "version": "1",
            "url": "e.com:443", "preferredTransport": "GRPC",
            "additionalInterfaces": [{"url": "e.com:443", "transport": "GRPC"}],
            "capabilities": {"streaming": true},
            "securitySchemes": {
                "key": {"httpAuthSecurityScheme": {"scheme": "Bearer"}},
                "login": {"oauth2SecurityScheme": {"flows": {
                    "authorizationCode": {"authorizationUrl": "https://a", "tokenUrl": "https://t",
                        "scopes": {"s": "d"}},
                }}},
            },
            "security": [{"schemes": {"key": {"list": []}}}],
            "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
            "skills": [{"id": "s", "name": "s", "description": "s", "tags": ["t"],
                "security": [{"schemes": {"login": {"list": ["s"]}}}]}],
            "supportsAuthenticatedExtendedCard": true,
        })
    );
}

#[test]
fn card_round_trips_without_security_of_skills() {
    let card = json!({
        "name": "n", "description": "d", "version": "1",
        "supportedInterfaces": [{"url": "e.com:443", "protocolBinding": "GRPC", "protocolVersion": "0.3"}],
        "capabilities": {"streaming": true},
        "securitySchemes": {"key": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
        "securityRequirements": [{"schemes": {"key": {"list": ["s"]}}}],
        "defaultInputModes": ["text/plain"], "defaultOutputModes": [],
        "skills": [{"id": "s", "name": "s", "description": "s", "tags": ["t"]}],
    });
    let card = model::AgentCard::decode(card).unwrap();
    assert_eq!(read::<model::AgentCard>(written(&card)), card);
    // The binary encoding omits empty fields.
    let bare: model::AgentCard = read(json!({"url": "u", "skills": [{"id": "s", "security": [7]}]}));
    assert_eq!((bare.name.as_str(), bare.skills.len()), ("", 1));
    let odd = json!({"url": "u", "securitySchemes": {"new": {}}, "security": 7});
    assert!(read::<model::AgentCard>(odd).security_schemes.is_empty());
}

/// Removes the fields this shape cannot express.
fn plain_part(mut part: Part) -> Part {
    if let PartContent::Text(_) | PartContent::Data(_) = part.content {
        part.media_type = None;
        part.filename = None;
    }
    part
}

fn plain_message(mut message: Message) -> Message {
    message.reference_task_ids.clear();
    message.parts = message.parts.into_iter().map(plain_part).collect();
    message
}

fn plain_task(mut task: Task) -> Task {
    task.status.message = task.status.message.map(plain_message);
    task.history = task.history.into_iter().map(plain_message).collect();
    for artifact in &mut task.artifacts {
        artifact.parts = std::mem::take(&mut artifact.parts)
            .into_iter()
            .map(plain_part)
            .collect();
    }
    task
}

fn plain_item(item: StreamResponse) -> StreamResponse {
    match item {
        StreamResponse::Task(task) => StreamResponse::Task(plain_task(task)),
        StreamResponse::Message(message) => StreamResponse::Message(plain_message(message)),
        StreamResponse::StatusUpdate(mut event) => {
            event.status.message = event.status.message.map(plain_message);
            StreamResponse::StatusUpdate(event)
        }
        StreamResponse::ArtifactUpdate(mut event) => {
            event.artifact.parts = event.artifact.parts.into_iter().map(plain_part).collect();
            StreamResponse::ArtifactUpdate(event)
        }
    }
}

proptest! {
    #[test]
    fn stream_items_round_trip(item in arbitrary::stream_response(), is_final: bool) {
        let item = plain_item(item);
        let document = serde_json::to_value(Proto((&item, is_final))).unwrap();
        prop_assert_eq!(read::<StreamResponse>(document), item);
    }

    #[test]
    fn messages_round_trip(message in arbitrary::message()) {
        let message = plain_message(message);
        prop_assert_eq!(read::<Message>(written(&message)), message);
    }
}
