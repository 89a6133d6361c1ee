//! Golden documents, rejected documents and round trips of the model.

use std::fmt::Debug;

use proptest::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};

use super::*;
use crate::{
    a2a::arbitrary,
    json::{Decode, from_slice},
    time::Timestamp,
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
    json!({"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]})
}

#[test]
fn full_task_round_trips() {
    let task: Task = golden(&json!({
        "id": "t", "contextId": "c",
        "status": {
            "state": "TASK_STATE_INPUT_REQUIRED",
            "message": {
                "messageId": "m2", "contextId": "c", "taskId": "t", "role": "ROLE_AGENT",
                "parts": [{"text": "which one?"}], "metadata": {"openwop": {"interrupt": {"kind": "approval"}}},
                "extensions": ["urn:x"], "referenceTaskIds": ["t0"],
            },
            "timestamp": "2026-01-02T03:04:05.006Z",
        },
        "artifacts": [{
            "artifactId": "a", "name": "n", "description": "d",
            "parts": [
                {"text": "", "mediaType": "text/plain"},
                {"raw": "dGNr", "mediaType": "text/plain", "filename": "output.txt"},
                {"url": "https://example.com/x", "metadata": {"k": 1}},
                {"data": {"key": "value"}}, {"data": [1]}, {"data": "s"}, {"data": 1}, {"data": false},
                {"data": null},
            ],
            "metadata": {"k": 1}, "extensions": ["urn:y"],
        }],
        "history": [message_json()],
        "metadata": {"k": []},
    }));
    assert_eq!(
        task.status.timestamp,
        Some(Timestamp::from_millis(1_767_323_045_006))
    );
    assert_eq!(
        task.artifacts[0].parts[1].content,
        PartContent::Raw(b"tck".to_vec())
    );
    assert_eq!(task.artifacts[0].parts[8].content, PartContent::Data(Value::Null));
}

#[test]
fn member_order_is_stable() {
    let task = Task {
        id: "t".into(),
        context_id: "c".into(),
        status: TaskStatus {
            state: TaskState::Working,
            message: None,
            timestamp: None,
        },
        artifacts: vec![],
        history: vec![],
        metadata: Metadata::from_iter([
            ("b".to_owned(), json!(1)),
            ("a".to_owned(), json!({"d": 1, "c": 2})),
        ]),
        unreadable: Vec::new(),
    };
    assert_eq!(
        serde_json::to_string(&task).unwrap(),
        r#"{"id":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"},"metadata":{"a":{"c":2,"d":1},"b":1}}"#
    );
}

#[test]
fn unknown_absent_and_null_fields_are_ignored() {
    let request = SendMessageRequest::decode(json!({
        "tenant": "", "configuration": null, "metadata": null, "new": {"x": 1},
        "message": {
            "messageId": "m", "contextId": "", "taskId": null, "role": "ROLE_USER", "new": 1,
            "parts": [{"text": "hi", "raw": null, "data": null, "mediaType": "", "new": 1}],
            "extensions": null,
        },
    }))
    .unwrap();
    let wanted = SendMessageRequest {
        tenant: None,
        message: Message::new("m", Role::User, vec![Part::text("hi")]),
        configuration: SendMessageConfiguration::default(),
        metadata: Metadata::new(),
    };
    assert_eq!(request, wanted);
    assert_eq!(
        serde_json::to_value(&request).unwrap(),
        json!({"message": message_json()})
    );
}

#[test]
fn send_configuration_accepts_the_0_3_push_field() {
    let request: SendMessageRequest = golden(&json!({
        "tenant": "acme", "message": message_json(), "metadata": {"k": 1},
        "configuration": {
            "acceptedOutputModes": ["text/plain"], "historyLength": 0, "returnImmediately": true,
            "taskPushNotificationConfig": {
                "id": "p", "url": "https://x.example", "token": "s3cret",
                "authentication": {"scheme": "Bearer", "credentials": "abc"},
            },
        },
    }));
    assert_eq!(request.configuration.history_length, Some(0));
    let shown = format!("{request:?}");
    assert!(!shown.contains("s3cret") && !shown.contains("abc"), "{shown}");

    let old = json!({"pushNotificationConfig": {"url": "u"}});
    let configuration = SendMessageConfiguration::decode(old).unwrap();
    assert_eq!(configuration.task_push_notification_config.unwrap().url, "u");
}

#[test]
fn invalid_message_fields_are_named() {
    for (name, value, wanted) in [
        ("messageId", json!(null), "message.messageId is required"),
        ("messageId", json!(""), "message.messageId must not be empty"),
        ("messageId", json!(7), "message.messageId must be a string"),
        ("role", json!(null), "message.role is required"),
        (
            "role",
            json!("user"),
            "message.role must be ROLE_USER or ROLE_AGENT",
        ),
        (
            "role",
            json!("ROLE_UNSPECIFIED"),
            "message.role must be ROLE_USER or ROLE_AGENT",
        ),
        ("role", json!(1), "message.role must be a string"),
        ("taskId", json!(5), "message.taskId must be a string"),
        ("parts", json!(null), "message.parts must have at least one part"),
        ("parts", json!([]), "message.parts must have at least one part"),
        ("parts", json!({}), "message.parts must be an array"),
        (
            "parts",
            json!([{"text": "a"}, "b"]),
            "message.parts[1] must be an object",
        ),
        (
            "parts",
            json!([{}]),
            "message.parts[0] must have one of text, raw, url, data",
        ),
        (
            "parts",
            json!([{"text": 5}]),
            "message.parts[0].text must be a string",
        ),
        (
            "parts",
            json!([{"raw": "%"}]),
            "message.parts[0].raw must be base64",
        ),
        (
            "parts",
            json!([{"text": "a", "url": "b"}]),
            "message.parts[0] must have only one of text, raw, url, data",
        ),
        (
            "parts",
            json!([{"text": "a", "data": 1}]),
            "message.parts[0] must have only one of text, raw, url, data",
        ),
        (
            "parts",
            json!([{"text": "a", "filename": 1}]),
            "message.parts[0].filename must be a string",
        ),
        ("metadata", json!([]), "message.metadata must be an object"),
        (
            "referenceTaskIds",
            json!(["a", 1]),
            "message.referenceTaskIds[1] must be a string",
        ),
    ] {
        let mut message = message_json();
        message[name] = value;
        assert_eq!(refused::<SendMessageRequest>(json!({"message": message})), wanted);
    }
    assert_eq!(refused::<SendMessageRequest>(json!({})), "message is required");
    assert_eq!(
        refused::<SendMessageRequest>(json!([])),
        "document must be an object"
    );
}

#[test]
fn decode_errors_become_field_violations() {
    let error = SendMessageRequest::decode(json!({"message": {}})).unwrap_err();
    let error = crate::a2a::error::A2aError::from(error);
    assert_eq!(error.code(), -32602);
    assert_eq!(
        error.data().unwrap()[0]["fieldViolations"],
        json!([{"field": "message.messageId", "description": "is required"}])
    );
}

#[test]
fn base64_is_decoded_in_all_variants() {
    for text in ["+/8=", "+/8", "-_8=", "-_8"] {
        let part = Part::decode(json!({"raw": text})).unwrap();
        assert_eq!(part.content, PartContent::Raw(vec![0xfb, 0xff]), "{text}");
        assert_eq!(serde_json::to_value(part).unwrap(), json!({"raw": "+/8="}));
    }
}

#[test]
fn stream_item_must_have_exactly_one_member() {
    let item: StreamResponse = golden(&json!({"statusUpdate": {
        "taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"},
    }}));
    assert!(matches!(item, StreamResponse::StatusUpdate(_)));
    golden::<StreamResponse>(&json!({"artifactUpdate": {
        "taskId": "t", "contextId": "c", "artifact": {"artifactId": "a", "parts": []},
        "append": true, "lastChunk": true,
    }}));
    golden::<StreamResponse>(&json!({"message": message_json()}));
    assert_eq!(
        refused::<StreamResponse>(json!({"task": {}, "message": {}})),
        "document must have only one of task, message, statusUpdate, artifactUpdate"
    );
    assert_eq!(
        refused::<SendMessageResponse>(json!({})),
        "document must have one of task, message"
    );
    assert_eq!(
        refused::<SendMessageResponse>(json!({"task": {}})),
        "task.id is required"
    );
}

#[test]
fn list_request_fields_are_validated() {
    let query = [
        ("contextId", "c"),
        ("status", "TASK_STATE_WORKING"),
        ("pageSize", "100"),
        ("pageToken", "p"),
    ];
    let more = [
        ("historyLength", "0"),
        ("statusTimestampAfter", "2026-01-01T00:00:00Z"),
        ("includeArtifacts", "true"),
        ("other", "x"),
    ];
    let request = ListTasksRequest::decode(query_object(query.into_iter().chain(more))).unwrap();
    assert_eq!(
        serde_json::to_value(&request).unwrap(),
        json!({"contextId": "c", "status": "TASK_STATE_WORKING", "pageSize": 100, "pageToken": "p",
            "historyLength": 0, "statusTimestampAfter": "2026-01-01T00:00:00.000Z", "includeArtifacts": true})
    );
    assert_eq!(
        ListTasksRequest::decode(json!({})).unwrap(),
        ListTasksRequest::default()
    );
    for ten in ["10", "10.0", "1e1"] {
        let value: Value = serde_json::from_str(ten).unwrap();
        let request = ListTasksRequest::decode(json!({ "pageSize": value, "historyLength": value })).unwrap();
        assert_eq!(
            (request.page_size, request.history_length),
            (Some(10), Some(10)),
            "{ten}"
        );
        let request = ListTasksRequest::decode(query_object([("pageSize", ten)])).unwrap();
        assert_eq!(request.page_size, Some(10), "{ten}");
    }
    for (value, wanted) in [
        (json!(1.5), "pageSize must be an integer"),
        (json!(-1.0), "pageSize must not be negative"),
        (json!(1e30), "pageSize is too large"),
    ] {
        assert_eq!(refused::<ListTasksRequest>(json!({ "pageSize": value })), wanted);
    }
    for (name, value, wanted) in [
        ("pageSize", "0", "pageSize must lie between 1 and 100"),
        ("pageSize", "101", "pageSize must lie between 1 and 100"),
        ("pageSize", "-1", "pageSize must not be negative"),
        ("pageSize", "many", "pageSize must be an integer"),
        ("pageSize", "5000000000", "pageSize is too large"),
        ("historyLength", "-1", "historyLength must not be negative"),
        ("historyLength", "1.5", "historyLength must be an integer"),
        ("status", "working", "status must be a task state of A2A 1.0"),
        (
            "statusTimestampAfter",
            "yesterday",
            "statusTimestampAfter must be an RFC 3339 timestamp",
        ),
        ("includeArtifacts", "yes", "includeArtifacts must be a boolean"),
    ] {
        assert_eq!(refused::<ListTasksRequest>(query_object([(name, value)])), wanted);
    }
}

#[test]
fn list_response_always_has_all_four_fields() {
    let empty = ListTasksResponse {
        tasks: vec![],
        next_page_token: String::new(),
        page_size: 50,
        total_size: 0,
    };
    assert_eq!(
        serde_json::to_string(&empty).unwrap(),
        r#"{"tasks":[],"nextPageToken":"","pageSize":50,"totalSize":0}"#
    );
}

#[test]
fn push_configuration_cannot_inject_headers() {
    golden::<TaskPushNotificationConfig>(&json!({"taskId": "t", "url": "https://x.example"}));
    for (document, wanted) in [
        (json!({}), "url is required"),
        (
            json!({"url": "u", "token": "a\r\nb"}),
            "token must not have control characters",
        ),
        (
            json!({"url": "u", "authentication": {"scheme": "Bearer", "credentials": "a\nb"}}),
            "authentication.credentials must not have control characters",
        ),
        (
            json!({"url": "u", "authentication": {"scheme": "a b"}}),
            "authentication.scheme must be one word",
        ),
        (
            json!({"url": "u", "authentication": {}}),
            "authentication.scheme is required",
        ),
    ] {
        assert_eq!(refused::<TaskPushNotificationConfig>(document), wanted);
    }
    let config = TaskPushNotificationConfig::decode(json!({"url": "u", "token": ""})).unwrap();
    assert_eq!(config.token, None);
    assert_eq!(
        config.require_task_id().unwrap_err().to_string(),
        "taskId is required"
    );
}

fn card_json() -> Value {
    json!({
        "name": "n", "description": "", "version": "0.1.0",
        "supportedInterfaces": [
            {"url": "https://x.example/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0", "tenant": "t"},
        ],
        "provider": {"organization": "o", "url": "https://o.example"},
        "documentationUrl": "https://x.example/docs", "iconUrl": "https://x.example/icon",
        "capabilities": {
            "streaming": true, "pushNotifications": false, "extendedAgentCard": true,
            "extensions": [{"uri": "urn:x", "description": "d", "required": true, "params": {"k": 1}}],
        },
        "securitySchemes": {
            "key": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
            "bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT", "description": "d"}},
            "oauth": {"oauth2SecurityScheme": {
                "flows": {"authorizationCode": {
                    "authorizationUrl": "a", "tokenUrl": "t", "refreshUrl": "r", "scopes": {"s": "d"},
                    "pkceRequired": true,
                }},
                "oauth2MetadataUrl": "m",
            }},
            "device": {"oauth2SecurityScheme": {"flows": {"deviceCode": {
                "deviceAuthorizationUrl": "d", "tokenUrl": "t", "scopes": {},
            }}}},
            "oidc": {"openIdConnectSecurityScheme": {"openIdConnectUrl": "u"}},
            "mtls": {"mtlsSecurityScheme": {}},
        },
        "securityRequirements": [{"schemes": {"bearer": {"list": []}, "oauth": {"list": ["s"]}}}],
        "defaultInputModes": ["text/plain"], "defaultOutputModes": [],
        "skills": [{
            "id": "w", "name": "W", "description": "", "tags": [], "examples": ["do it"],
            "inputModes": ["text/plain"], "outputModes": ["text/plain"],
            "securityRequirements": [{"schemes": {"key": {"list": []}}}],
        }],
        "signatures": [{"protected": "p", "signature": "s", "header": {"k": 1}}],
    })
}

#[test]
fn full_card_round_trips() {
    golden::<AgentCard>(&card_json());
}

#[test]
fn required_fields_of_a_card_are_written_even_when_empty() {
    let card = AgentCard::decode(json!({"name": "n", "supportedInterfaces": []})).unwrap();
    assert_eq!(
        serde_json::to_value(card).unwrap(),
        json!({"name": "n", "description": "", "version": "", "supportedInterfaces": [], "capabilities": {},
            "defaultInputModes": [], "defaultOutputModes": [], "skills": []})
    );
    // ProtoJSON omits an empty list of scopes.
    let requirement = SecurityRequirement::decode(json!({"schemes": {"key": {}}})).unwrap();
    assert_eq!(
        serde_json::to_value(requirement).unwrap(),
        json!({"schemes": {"key": {"list": []}}})
    );
}

#[test]
fn invalid_card_fields_are_named() {
    for (pointer, value, wanted) in [
        (
            "/supportedInterfaces",
            json!(null),
            "supportedInterfaces is required",
        ),
        (
            "/supportedInterfaces/0/protocolVersion",
            json!(1),
            "supportedInterfaces[0].protocolVersion must be a string",
        ),
        ("/name", json!(7), "name must be a string"),
    ] {
        let mut card = card_json();
        if let Some(list) = card["supportedInterfaces"].as_array_mut() {
            list.truncate(1);
        }
        *card.pointer_mut(pointer).unwrap() = value;
        assert_eq!(refused::<AgentCard>(card), wanted);
    }
}

#[test]
fn unreadable_detail_of_a_card_is_left_out_alone() {
    let whole = AgentCard::decode(card_json()).unwrap();
    let new_scheme = json!({"scheme": {"$case": "apiKeySecurityScheme", "value": {"name": "x"}}});
    for value in [json!(7), json!("x"), json!({}), new_scheme] {
        let mut card = card_json();
        card["securitySchemes"]["new"] = value.clone();
        assert_eq!(AgentCard::decode(card).unwrap(), whole, "{value}");
    }
    for name in ["supportedInterfaces", "skills", "signatures"] {
        let mut card = card_json();
        let list = card[name].as_array_mut().unwrap();
        list.insert(0, json!({"url": "https://a.test", "protocolBinding": "JSONRPC"}));
        list.push(json!(7));
        assert_eq!(AgentCard::decode(card).unwrap(), whole, "{name}");
    }
    let mut card = card_json();
    card["securitySchemes"]["oauth"]["oauth2SecurityScheme"]["flows"] = json!({"newFlow": {}});
    let card = AgentCard::decode(card).unwrap();
    assert!(
        matches!(&card.security_schemes["oauth"], SecurityScheme::OAuth2(scheme) if scheme.flows.is_none()),
        "{card:?}"
    );
    for name in [
        "provider",
        "capabilities",
        "securitySchemes",
        "securityRequirements",
        "defaultInputModes",
        "skills",
        "iconUrl",
    ] {
        let mut card = card_json();
        card[name] = json!(7);
        assert_eq!(
            AgentCard::decode(card).unwrap().supported_interfaces,
            whole.supported_interfaces,
            "{name}"
        );
    }
}

#[test]
fn large_text_part_is_decoded() {
    let text = "é\\n".repeat(1_000_000);
    let body =
        format!(r#"{{"message":{{"messageId":"m","role":"ROLE_USER","parts":[{{"text":"{text}"}}]}}}}"#);
    let request: SendMessageRequest = from_slice(body.as_bytes()).unwrap();
    let PartContent::Text(read) = &request.message.parts[0].content else {
        panic!("the part is text");
    };
    assert_eq!(read.len(), 3_000_000);
}

#[test]
fn model_types_implement_deserialize() {
    let task: Result<Task, _> = serde_json::from_str(r#"{"id":"t","status":{"message":7}}"#);
    assert_eq!(task.unwrap_err().to_string(), "status.message must be an object");
}

#[test]
fn unknown_state_and_invalid_time_do_not_hide_a_task() {
    for (state, timestamp) in [
        (json!("TASK_STATE_LOST"), json!("yesterday")),
        (json!("lost"), json!(1_767_323_045)),
        (json!(9), json!({})),
        (json!(-1), json!({})),
        (json!(null), json!(null)),
    ] {
        let status = json!({"state": state, "timestamp": timestamp});
        let task = Task::decode(json!({"id": "t", "status": status})).unwrap();
        assert_eq!(task.status.state, TaskState::Unspecified, "{status}");
        assert_eq!(task.status.timestamp, None, "{status}");
    }
    // Some agents write the words of the other version, or numbers.
    for (state, expected) in [
        (json!("input-required"), TaskState::InputRequired),
        (json!("TASK_STATE_CANCELLED"), TaskState::Canceled),
        (json!("cancelled"), TaskState::Canceled),
        (json!(0), TaskState::Unspecified),
        (json!(3), TaskState::Completed),
        (json!(8), TaskState::AuthRequired),
    ] {
        let status = TaskStatus::decode(json!({"state": state})).unwrap();
        assert_eq!(status.state, expected, "{state}");
    }
    // A client that filters by an unknown state is told so.
    assert!(ListTasksRequest::decode(json!({"status": "TASK_STATE_LOST"})).is_err());
}

proptest! {
    #[test]
    fn stream_items_round_trip(item in arbitrary::stream_response()) {
        let bytes = serde_json::to_vec(&item).unwrap();
        prop_assert_eq!(from_slice::<StreamResponse>(&bytes).unwrap(), item);
    }

    #[test]
    fn decoded_values_round_trip(value in arbitrary::hostile_value()) {
        stable::<SendMessageRequest>(&value);
        stable::<StreamResponse>(&value);
        stable::<Task>(&value);
        stable::<Message>(&value);
        stable::<Part>(&value);
        stable::<ListTasksRequest>(&value);
        stable::<TaskPushNotificationConfig>(&value);
        stable::<AgentCard>(&value);
        stable::<SecurityScheme>(&value);
    }
}

fn stable<T: Decode + Serialize + PartialEq + Debug>(value: &Value) {
    if let Ok(read) = T::decode(value.clone()) {
        let again = T::decode(serde_json::to_value(&read).unwrap()).unwrap();
        assert_eq!(again, read);
    }
}
