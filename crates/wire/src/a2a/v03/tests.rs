//! Golden documents, rejected documents, conversions, and conformance to the published 0.3 schema.

use std::{fmt::Debug, path::Path};

use proptest::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};

use super::*;
use crate::{
    a2a::{arbitrary, model},
    json::Decode,
};

fn golden<T: Decode + Serialize>(document: &Value) -> T {
    let read = T::decode(document.clone()).unwrap();
    assert_eq!(&serde_json::to_value(&read).unwrap(), document);
    read
}

fn refused<T: Decode + Debug>(document: Value) -> String {
    T::decode(document).unwrap_err().to_string()
}

fn message_json() -> Value {
    json!({"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}]})
}

fn task_json() -> Value {
    json!({
        "kind": "task", "id": "t", "contextId": "c",
        "status": {"state": "input-required", "message": message_json(), "timestamp": "2026-01-02T03:04:05.006Z"},
        "artifacts": [{
            "artifactId": "a", "name": "n", "description": "d", "metadata": {"k": 1}, "extensions": ["urn:y"],
            "parts": [
                {"kind": "text", "text": "x", "metadata": {"k": 1}},
                {"kind": "file", "file": {"bytes": "dGNr", "mimeType": "text/plain", "name": "output.txt"}},
                {"kind": "file", "file": {"uri": "https://example.com/x"}, "metadata": {"k": 1}},
                {"kind": "data", "data": {"key": "value"}},
            ],
        }],
        "history": [message_json()],
        "metadata": {"k": []},
    })
}

#[test]
fn task_round_trips_through_the_model() {
    let task: Task = golden(&task_json());
    let model = model::Task::from(task.clone());
    assert_eq!(
        serde_json::to_value(&model).unwrap(),
        json!({
            "id": "t", "contextId": "c",
            "status": {
                "state": "TASK_STATE_INPUT_REQUIRED",
                "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]},
                "timestamp": "2026-01-02T03:04:05.006Z",
            },
            "artifacts": [{
                "artifactId": "a", "name": "n", "description": "d", "metadata": {"k": 1}, "extensions": ["urn:y"],
                "parts": [
                    {"text": "x", "metadata": {"k": 1}},
                    {"raw": "dGNr", "mediaType": "text/plain", "filename": "output.txt"},
                    {"url": "https://example.com/x", "metadata": {"k": 1}},
                    {"data": {"key": "value"}},
                ],
            }],
            "history": [{"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}],
            "metadata": {"k": []},
        })
    );
    assert_eq!(Task::from(model), task);
}

#[test]
fn every_state_converts_to_the_model() {
    let pairs: Vec<_> = TaskState::ALL
        .iter()
        .map(|state| (state.as_str(), model::TaskState::from(*state).as_str()))
        .collect();
    assert_eq!(
        pairs,
        [
            ("submitted", "TASK_STATE_SUBMITTED"),
            ("working", "TASK_STATE_WORKING"),
            ("input-required", "TASK_STATE_INPUT_REQUIRED"),
            ("completed", "TASK_STATE_COMPLETED"),
            ("canceled", "TASK_STATE_CANCELED"),
            ("failed", "TASK_STATE_FAILED"),
            ("rejected", "TASK_STATE_REJECTED"),
            ("auth-required", "TASK_STATE_AUTH_REQUIRED"),
            ("unknown", "TASK_STATE_UNSPECIFIED"),
        ]
    );
    for state in TaskState::ALL {
        assert_eq!(TaskState::from(model::TaskState::from(*state)), *state);
    }
}

#[test]
fn invalid_message_fields_are_named() {
    for (name, value, wanted) in [
        ("kind", json!("task"), "message.kind must be \"message\""),
        ("messageId", json!(null), "message.messageId is required"),
        ("messageId", json!(1), "message.messageId must be a string"),
        ("role", json!(null), "message.role is required"),
        ("role", json!("ROLE_USER"), "message.role must be user or agent"),
        ("taskId", json!(1), "message.taskId must be a string"),
        ("contextId", json!([]), "message.contextId must be a string"),
        ("parts", json!(null), "message.parts is required"),
        ("parts", json!([]), "message.parts must have at least one part"),
        (
            "parts",
            json!([{"metadata": {}}]),
            "message.parts[0] must have one of text, file, data",
        ),
        (
            "parts",
            json!([{"text": "x", "data": {}}]),
            "message.parts[0] must have only one of text, file, data",
        ),
        (
            "parts",
            json!([{"data": 1}]),
            "message.parts[0].data must be an object",
        ),
        (
            "parts",
            json!([{"kind": "file", "text": "x"}]),
            "message.parts[0].file is required",
        ),
        (
            "parts",
            json!([{"kind": "video"}]),
            "message.parts[0].kind must be text, file or data",
        ),
        (
            "parts",
            json!([{"kind": "text"}]),
            "message.parts[0].text is required",
        ),
        (
            "parts",
            json!([{"kind": "text", "text": 1}]),
            "message.parts[0].text must be a string",
        ),
        (
            "parts",
            json!([{"kind": "data", "data": [1]}]),
            "message.parts[0].data must be an object",
        ),
        (
            "parts",
            json!([{"kind": "file", "file": {}}]),
            "message.parts[0].file must have one of bytes, uri",
        ),
        (
            "parts",
            json!([{"kind": "file", "file": {"bytes": "", "uri": "u"}}]),
            "message.parts[0].file must have only one of bytes, uri",
        ),
        (
            "parts",
            json!([{"kind": "file", "file": {"bytes": "%"}}]),
            "message.parts[0].file.bytes must be base64",
        ),
    ] {
        let mut message = message_json();
        message[name] = value;
        assert_eq!(refused::<MessageSendParams>(json!({"message": message})), wanted);
    }
    let with_extra = json!({"message": message_json(), "new": 1, "configuration": {"new": 1}});
    assert!(MessageSendParams::decode(with_extra).is_ok());
}

#[test]
fn kind_is_optional_for_messages_and_parts() {
    let message = json!({"messageId": "m", "role": "user", "parts": [
        {"text": "x", "metadata": {"k": 1}},
        {"kind": null, "file": {"uri": "https://example.com/x"}},
        {"data": {"text": "x"}},
    ]});
    let read = Message::decode(message).unwrap();
    let written = serde_json::to_value(&read).unwrap();
    assert_eq!(written["kind"], "message");
    let parts = written["parts"].as_array().unwrap();
    let kinds: Vec<_> = parts.iter().map(|part| part["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["text", "file", "data"]);
}

#[test]
fn absent_blocking_means_blocking() {
    for (blocking, return_immediately, written_back) in [
        (json!(null), false, true),
        (json!(true), false, true),
        (json!(false), true, false),
    ] {
        let params = json!({"message": message_json(), "configuration": {"blocking": blocking}});
        let request = model::SendMessageRequest::from(MessageSendParams::decode(params).unwrap());
        assert_eq!(request.configuration.return_immediately, return_immediately);
        let back = MessageSendParams::from(request);
        assert_eq!(back.configuration.unwrap().blocking, Some(written_back));
    }
    let params = MessageSendParams::decode(json!({"message": message_json()})).unwrap();
    assert!(
        !model::SendMessageRequest::from(params)
            .configuration
            .return_immediately
    );
}

#[test]
fn non_object_data_is_wrapped_in_an_object() {
    for value in [
        json!(null),
        json!(1),
        json!("x"),
        json!([1, {"a": 2}]),
        json!(false),
    ] {
        let metadata = model::Metadata::from_iter([("k".to_owned(), json!(1))]);
        let part = model::Part {
            metadata,
            ..model::Part::data(value.clone())
        };
        let boxed = Part::from(part.clone());
        assert_eq!(
            serde_json::to_value(&boxed).unwrap(),
            json!({"kind": "data", "data": {"value": value}, "metadata": {"k": 1, "data_part_compat": true}})
        );
        assert_eq!(model::Part::from(boxed), part);
    }
    for open in [
        json!({"kind": "data", "data": {"value": 1}}),
        json!({"kind": "data", "data": {"value": 1}, "metadata": {"data_part_compat": false}}),
        json!({"kind": "data", "data": {"value": 1, "more": 2}, "metadata": {"data_part_compat": true}}),
        json!({"kind": "data", "data": {"other": 1}, "metadata": {"data_part_compat": true}}),
    ] {
        let part = model::Part::from(Part::decode(open.clone()).unwrap());
        assert_eq!(
            part.content,
            model::PartContent::Data(open["data"].clone()),
            "{open}"
        );
        assert_eq!(serde_json::to_value(Part::from(part)).unwrap(), open);
    }
}

#[test]
fn status_update_is_final_when_the_task_ends_or_the_stream_closes() {
    for (state, closes, is_final) in [
        (model::TaskState::Working, false, false),
        (model::TaskState::InputRequired, false, false),
        (model::TaskState::InputRequired, true, true),
        (model::TaskState::Completed, false, true),
        (model::TaskState::Rejected, false, true),
    ] {
        let event = model::TaskStatusUpdateEvent {
            task_id: "t".into(),
            context_id: "c".into(),
            status: model::TaskStatus {
                state,
                message: None,
                timestamp: None,
            },
            metadata: model::Metadata::new(),
            unreadable: Vec::new(),
        };
        let event = StreamEvent::from_model(model::StreamResponse::StatusUpdate(event), closes);
        let old = TaskState::from(state);
        assert_eq!(
            serde_json::to_value(&event).unwrap(),
            json!({"kind": "status-update", "taskId": "t", "contextId": "c", "final": is_final,
                "status": {"state": old.as_str()}})
        );
    }
}

#[test]
fn kind_selects_the_stream_item_type() {
    golden::<StreamEvent>(&task_json());
    golden::<StreamEvent>(&message_json());
    golden::<StreamEvent>(
        &json!({"kind": "artifact-update", "taskId": "t", "contextId": "c",
        "artifact": {"artifactId": "a", "parts": []}, "append": true, "lastChunk": false}),
    );
    assert_eq!(refused::<StreamEvent>(json!({"taskId": "t"})), "kind is required");
    assert_eq!(
        refused::<StreamEvent>(json!({"kind": 1})),
        "kind must be a string"
    );
    assert_eq!(refused::<StreamEvent>(json!([])), "document must be an object");
    assert_eq!(
        refused::<SendResult>(json!({"kind": "status-update"})),
        "kind must be task or message"
    );
    assert_eq!(
        refused::<StreamEvent>(json!({"kind": "task", "id": "t"})),
        "contextId is required"
    );
    assert_eq!(
        refused::<StreamEvent>(json!({"kind": "status-update", "taskId": "t", "contextId": "c",
            "status": {"state": "working"}})),
        "final is required"
    );
}

#[test]
fn invalid_timestamp_decodes_as_absent() {
    for time in [
        json!("2026-01-02 at noon"),
        json!("2026-01-02T03:04:05.006"),
        json!(""),
        json!(1_767_323_045),
    ] {
        let status = TaskStatus::decode(json!({"state": "working", "timestamp": time})).unwrap();
        assert_eq!(status.timestamp, None, "{time}");
    }
}

#[test]
fn undefined_state_decodes_as_unknown() {
    for state in [json!("paused"), json!("TASK_STATE_LOST"), json!(9)] {
        let status = TaskStatus::decode(json!({"state": state})).unwrap();
        assert_eq!(status.state, TaskState::Unknown, "{state}");
    }
    // Some agents write the words of the other version, or numbers.
    for (state, expected) in [
        (json!("TASK_STATE_INPUT_REQUIRED"), TaskState::InputRequired),
        (json!("TASK_STATE_CANCELLED"), TaskState::Canceled),
        (json!(6), TaskState::InputRequired),
    ] {
        let status = TaskStatus::decode(json!({"state": state})).unwrap();
        assert_eq!(status.state, expected, "{state}");
    }
    assert!(TaskStatus::decode(json!({})).is_err());
}

#[test]
fn push_configuration_keeps_its_first_scheme() {
    let old = json!({"taskId": "t", "pushNotificationConfig": {
        "id": "p", "url": "u", "token": "k", "authentication": {"schemes": ["Bearer", "Basic"], "credentials": "x"},
    }});
    let config = model::TaskPushNotificationConfig::from(golden::<TaskPushNotificationConfig>(&old));
    let new = json!({"taskId": "t", "id": "p", "url": "u", "token": "k",
        "authentication": {"scheme": "Bearer", "credentials": "x"}});
    assert_eq!(serde_json::to_value(&config).unwrap(), new);
    let back = serde_json::to_value(TaskPushNotificationConfig::from(config)).unwrap();
    assert_eq!(
        back["pushNotificationConfig"]["authentication"]["schemes"],
        json!(["Bearer"])
    );

    let none =
        json!({"taskId": "t", "pushNotificationConfig": {"url": "u", "authentication": {"schemes": []}}});
    let config = model::TaskPushNotificationConfig::from(TaskPushNotificationConfig::decode(none).unwrap());
    assert_eq!(config.authentication, None);
    let smuggled = json!({"url": "u", "authentication": {"schemes": ["a", "b\r\nc"]}});
    assert_eq!(
        refused::<PushNotificationConfig>(smuggled),
        "authentication.schemes[1] must be one word"
    );
}

fn card_json() -> Value {
    json!({
        "protocolVersion": "0.3.0", "name": "n", "description": "d", "version": "0.1.0",
        "url": "https://x.example/a2a", "preferredTransport": "JSONRPC",
        "additionalInterfaces": [
            {"url": "https://x.example/a2a", "transport": "JSONRPC"},
            {"url": "https://x.example/v1", "transport": "HTTP+JSON"},
        ],
        "provider": {"organization": "o", "url": "https://o.example"},
        "documentationUrl": "https://x.example/docs", "iconUrl": "https://x.example/icon",
        "capabilities": {"streaming": true, "pushNotifications": true, "extensions": [{"uri": "urn:x"}]},
        "securitySchemes": {
            "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
            "bearer": {"type": "http", "scheme": "Bearer", "bearerFormat": "JWT", "description": "d"},
            "oauth": {"type": "oauth2", "oauth2MetadataUrl": "m", "flows": {
                "clientCredentials": {"tokenUrl": "t", "scopes": {"s": "d"}},
            }},
            "oidc": {"type": "openIdConnect", "openIdConnectUrl": "u"},
            "mtls": {"type": "mutualTLS"},
        },
        "security": [{"bearer": [], "oauth": ["s"]}],
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "w", "name": "W", "description": "d", "tags": ["workflow"], "examples": ["do it"],
            "security": [{"key": []}]}],
        "supportsAuthenticatedExtendedCard": true,
        "signatures": [{"protected": "p", "signature": "s"}],
    })
}

#[test]
fn card_round_trips_through_the_model() {
    let card: AgentCard = golden(&card_json());
    let model = model::AgentCard::from(card.clone());
    let interfaces: Vec<_> = model
        .supported_interfaces
        .iter()
        .map(|one| (one.protocol_binding.as_str(), one.protocol_version.as_str()))
        .collect();
    assert_eq!(interfaces, [("JSONRPC", "0.3"), ("HTTP+JSON", "0.3")]);
    assert_eq!(
        serde_json::to_value(&model.security_schemes).unwrap(),
        json!({
            "key": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
            "bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT", "description": "d"}},
            "oauth": {"oauth2SecurityScheme": {"oauth2MetadataUrl": "m", "flows": {
                "clientCredentials": {"tokenUrl": "t", "scopes": {"s": "d"}},
            }}},
            "oidc": {"openIdConnectSecurityScheme": {"openIdConnectUrl": "u"}},
            "mtls": {"mtlsSecurityScheme": {}},
        })
    );
    assert_eq!(AgentCard::from(model), card);
}

#[test]
fn card_for_0_3_lists_only_0_3_interfaces() {
    let interface = |url: &str, version: &str| model::AgentInterface {
        url: url.into(),
        protocol_binding: model::binding::JSONRPC.into(),
        protocol_version: version.into(),
        tenant: None,
    };
    let mut card = model::AgentCard::from(AgentCard::decode(card_json()).unwrap());
    card.supported_interfaces = vec![interface("new", "1.0"), interface("old", "0.3")];
    let old = AgentCard::from(card.clone());
    assert_eq!(old.url, "old");
    assert_eq!(old.additional_interfaces.len(), 1);
    card.supported_interfaces.pop();
    assert_eq!(AgentCard::from(card.clone()).url, "new");
    card.supported_interfaces.clear();
    assert_eq!(AgentCard::from(card).url, "");
}

#[test]
fn features_unknown_to_0_3_are_dropped() {
    let device = model::SecurityScheme::decode(json!({"oauth2SecurityScheme": {"flows": {"deviceCode": {
        "deviceAuthorizationUrl": "d", "tokenUrl": "t", "scopes": {}}}}}))
    .unwrap();
    let old = SecurityScheme::from(device);
    assert_eq!(
        serde_json::to_value(&old).unwrap(),
        json!({"type": "oauth2", "flows": {}})
    );
    let back = serde_json::to_value(model::SecurityScheme::from(old)).unwrap();
    assert_eq!(back, json!({"oauth2SecurityScheme": {}}));
}

#[test]
fn union_card_decodes_as_either_version() {
    let old = AgentCard::decode(card_json()).unwrap();
    let new = model::AgentCard::from(old.clone());
    let union = union_card(&new, &old).unwrap();
    let unsigned_new = model::AgentCard {
        signatures: vec![],
        ..new
    };
    let unsigned_old = AgentCard {
        signatures: vec![],
        ..old
    };
    assert_eq!(model::AgentCard::decode(union.clone()).unwrap(), unsigned_new);
    assert_eq!(AgentCard::decode(union).unwrap(), unsigned_old);
}

#[test]
fn http_card_has_security_schemes_in_both_shapes() {
    let old = AgentCard::decode(card_json()).unwrap();
    let new = model::AgentCard::from(old.clone());
    let mut card = http_card(&new).unwrap();
    assert_eq!(AgentCard::decode(card.clone()).unwrap(), old);
    let flows = json!({"clientCredentials": {"tokenUrl": "t", "scopes": {"s": "d"}}});
    assert_eq!(
        card["securitySchemes"],
        json!({
            "key": {"type": "apiKey", "in": "header", "name": "X-Key",
                "apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
            "bearer": {"type": "http", "scheme": "Bearer", "bearerFormat": "JWT", "description": "d",
                "httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT", "description": "d"}},
            "oauth": {"type": "oauth2", "oauth2MetadataUrl": "m", "flows": flows,
                "oauth2SecurityScheme": {"oauth2MetadataUrl": "m", "flows": flows}},
            "oidc": {"type": "openIdConnect", "openIdConnectUrl": "u",
                "openIdConnectSecurityScheme": {"openIdConnectUrl": "u"}},
            "mtls": {"type": "mutualTLS", "mtlsSecurityScheme": {}},
        })
    );
    card["securitySchemes"] = card_json()["securitySchemes"].clone();
    assert_eq!(card, card_json());
}

proptest! {
    #[test]
    fn stream_items_round_trip_through_0_3(item in arbitrary::stream_response(), closes in any::<bool>()) {
        let old = StreamEvent::from_model(item.clone(), closes);
        let bytes = serde_json::to_vec(&old).unwrap();
        prop_assert_eq!(&crate::json::from_slice::<StreamEvent>(&bytes).unwrap(), &old);

        let back = model::StreamResponse::from(old.clone());
        prop_assert_eq!(&back, &without_lost(item));
        prop_assert_eq!(StreamEvent::from_model(back, closes), old);
    }

    #[test]
    fn arbitrary_values_convert_stably(value in arbitrary::hostile_value()) {
        if let Ok(event) = StreamEvent::decode(value.clone()) {
            let back = StreamEvent::from_model(event.clone().into(), false);
            let again = StreamEvent::from_model(back.clone().into(), false);
            prop_assert_eq!(back, again);
        }
        if let Ok(params) = MessageSendParams::decode(value.clone()) {
            let request = model::SendMessageRequest::from(params);
            prop_assert_eq!(model::SendMessageRequest::from(MessageSendParams::from(request.clone())), request);
        }
        if let Ok(scheme) = SecurityScheme::decode(value) {
            let back = model::SecurityScheme::from(scheme);
            prop_assert_eq!(model::SecurityScheme::from(SecurityScheme::from(back.clone())), back);
        }
    }
}

/// Removes what a conversion to 0.3 loses.
fn without_lost(mut item: model::StreamResponse) -> model::StreamResponse {
    let strip = |parts: &mut Vec<model::Part>| {
        for part in parts {
            match part.content {
                model::PartContent::Text(_) | model::PartContent::Data(_) => {
                    part.media_type = None;
                    part.filename = None;
                }
                model::PartContent::Raw(_) | model::PartContent::Url(_) => {}
            }
        }
    };
    let status = |status: &mut model::TaskStatus| {
        if let Some(message) = &mut status.message {
            strip(&mut message.parts);
        }
    };
    match &mut item {
        model::StreamResponse::Task(task) => {
            status(&mut task.status);
            task.artifacts
                .iter_mut()
                .for_each(|artifact| strip(&mut artifact.parts));
            task.history
                .iter_mut()
                .for_each(|message| strip(&mut message.parts));
        }
        model::StreamResponse::Message(message) => strip(&mut message.parts),
        model::StreamResponse::StatusUpdate(event) => status(&mut event.status),
        model::StreamResponse::ArtifactUpdate(event) => strip(&mut event.artifact.parts),
    }
    item
}

/// The published 0.3 schema; `None` if the fixtures are not next to the project.
fn published_schema() -> Option<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read(root.join("../shared/fixtures/a2a/a2a-0.3.0.schema.json")).ok()?;
    serde_json::from_slice(&text).ok()
}

#[test]
fn our_documents_match_the_published_schema() {
    let Some(schema) = published_schema() else {
        println!("skipped: the published A2A 0.3 schema is not beside the project");
        return;
    };
    let check = |definition: &str, document: &Value| {
        let mut schema = schema.clone();
        schema["$ref"] = json!(format!("#/definitions/{definition}"));
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<_> = validator
            .iter_errors(document)
            .map(|error| error.to_string())
            .collect();
        assert!(errors.is_empty(), "{definition}: {errors:?}\n{document:#}");
    };
    assert!(
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(
            "Task",
            &json!({"kind": "task"})
        )))
        .is_err(),
        "the schema is really applied"
    );

    let written = |document: &Value| {
        let event = StreamEvent::decode(document.clone()).unwrap();
        serde_json::to_value(StreamEvent::from_model(event.into(), true)).unwrap()
    };
    check("Task", &written(&task_json()));
    check("Message", &written(&message_json()));
    for state in TaskState::ALL {
        let event = json!({"kind": "status-update", "taskId": "t", "contextId": "c", "final": false,
            "status": {"state": state.as_str(), "message": message_json()}});
        check("TaskStatusUpdateEvent", &written(&event));
    }
    let artifact = json!({"kind": "artifact-update", "taskId": "t", "contextId": "c",
        "artifact": task_json()["artifacts"][0]});
    check("TaskArtifactUpdateEvent", &written(&artifact));

    let card = model::AgentCard::from(AgentCard::decode(card_json()).unwrap());
    check(
        "AgentCard",
        &serde_json::to_value(AgentCard::from(card.clone())).unwrap(),
    );
    check("AgentCard", &union_card(&card, &card.clone().into()).unwrap());
    check("AgentCard", &http_card(&card).unwrap());

    let params = MessageSendParams::decode(json!({"message": message_json(), "configuration": {
        "acceptedOutputModes": ["text/plain"], "historyLength": 3, "blocking": false,
        "pushNotificationConfig": {"url": "https://x.example", "authentication": {"schemes": ["Bearer"]}},
    }}))
    .unwrap();
    let params = MessageSendParams::from(model::SendMessageRequest::from(params));
    check("MessageSendParams", &serde_json::to_value(params).unwrap());
    let push = json!({"taskId": "t", "pushNotificationConfig": {"id": "p", "url": "https://x.example", "token": "k"}});
    let push = model::TaskPushNotificationConfig::from(TaskPushNotificationConfig::decode(push).unwrap());
    check(
        "TaskPushNotificationConfig",
        &serde_json::to_value(TaskPushNotificationConfig::from(push)).unwrap(),
    );

    let id = crate::a2a::rpc::Id::Int(1);
    for error in [
        crate::a2a::error::A2aError::task_not_found("t"),
        crate::a2a::error::A2aError::version_not_supported("9"),
        crate::a2a::error::A2aError::invalid_param("message", "is required"),
        crate::a2a::error::A2aError::Parse,
    ] {
        let body = crate::a2a::rpc::encode_error(&id, &error, crate::a2a::method::Version::V0_3);
        check("JSONRPCErrorResponse", &serde_json::from_slice(&body).unwrap());
    }
    let result = SendResult::decode(task_json()).unwrap();
    let body = crate::a2a::rpc::encode_result(&id, &result);
    check(
        "SendMessageSuccessResponse",
        &serde_json::from_slice(&body).unwrap(),
    );
}
