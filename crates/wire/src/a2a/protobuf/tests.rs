//! The tables against the types of other implementations, and the reader against arbitrary bytes.

use std::collections::HashSet;

use a2a_pb::{proto, protojson};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use proptest::{collection::vec, prelude::*};
use prost::Message as _;
use serde_json::{Value, json};

use super::*;
use crate::{
    a2a::{
        arbitrary,
        exchange::{Document, Form, Reply},
        model::{StreamResponse, TaskState},
        v03::proto::Proto,
    },
    json::{Decode, Object},
    time::Timestamp,
};

fn object(value: &Value) -> &Object {
    value.as_object().unwrap()
}

fn find(version: Version, name: &str) -> &'static Message {
    let all = messages(version);
    all.into_iter().find(|message| message.name == name).unwrap()
}

/// Converts numbers in free-form data to doubles, as the binary encoding does.
fn doubled(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let double = number.as_f64().unwrap();
            #[expect(clippy::cast_possible_truncation, reason = "bounded just before")]
            if double.abs() < 9e15 {
                *value = (double as i64).into();
            } else {
                *value = double.into();
            }
        }
        Value::Array(list) => list.iter_mut().for_each(doubled),
        Value::Object(members) => members.values_mut().for_each(doubled),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn document(item: StreamResponse, form: Form) -> Value {
    serde_json::to_value(Document::item(item, false, form)).unwrap()
}

#[test]
fn field_numbers_and_names_are_unique() {
    for version in Version::ALL {
        let mut names = HashSet::new();
        for message in messages(*version) {
            assert!(names.insert(message.name), "{} twice", message.name);
            let mut numbers = HashSet::new();
            for field in message.fields {
                assert!(numbers.insert(field.number), "{}.{}", message.name, field.name);
                let mut camel = String::new();
                for word in field.name.split('_') {
                    let (first, rest) = word.split_at(1);
                    let first = if camel.is_empty() {
                        first.to_owned()
                    } else {
                        first.to_uppercase()
                    };
                    camel.push_str(&(first + rest));
                }
                // The three names that differ in 0.3.
                let is_renamed = ["update", "request", "msg"].contains(&field.name);
                assert_eq!(
                    field.json,
                    if is_renamed { "message" } else { &camel },
                    "{}",
                    message.name
                );
            }
        }
    }
}

/// Bytes from the Python SDK, with the JSON they encode.
#[test]
fn documents_of_the_0_3_sdk_are_decoded() {
    for (name, bytes, wanted) in [
        (
            "Task",
            "CgF0EgFjGhwIBRILCgFtIAIqBAoCaGkaCwil69zKBhCAm+4CIp4BCgFhGgFuIgFkKhoSGBIDdGNrGgp0ZXh0L3BsYWluIgVvLnR4dCoREg8KDWh0\
             dHBzOi8vZS5jb20qSxo3CjUKMwoBaxIuMiwKCREAAAAAAADwPwoJEQAAAAAAAATACgIIAAoCIAEKDCoKCggKAXgSAxoBeSIQCg4KAW0SCREAAAAA\
             AADwPzIQCg4KAWsSCREAAAAAAADwPzoFdXJuOngqFgoBbRIBYxoBdCABKgIKADoFdXJuOnkyEgoQCgNiaWcSCREAAAAAgBzIQA==",
            json!({
                "id": "t", "contextId": "c",
                "status": {
                    "state": "TASK_STATE_CANCELLED",
                    "message": {"messageId": "m", "role": "ROLE_AGENT", "content": [{"text": "hi"}]},
                    "timestamp": "2026-01-02T03:04:05.006Z",
                },
                "artifacts": [{
                    "artifactId": "a", "name": "n", "description": "d",
                    "parts": [
                        {"file": {"fileWithBytes": "dGNr", "mimeType": "text/plain", "name": "o.txt"}},
                        {"file": {"fileWithUri": "https://e.com"}},
                        {"data": {"data": {"k": [1, -2.5, null, true, {"x": "y"}]}}, "metadata": {"m": 1}},
                    ],
                    "metadata": {"k": 1}, "extensions": ["urn:x"],
                }],
                "history": [{
                    "messageId": "m", "contextId": "c", "taskId": "t", "role": "ROLE_USER", "content": [{"text": ""}],
                    "extensions": ["urn:y"],
                }],
                "metadata": {"big": 12345},
            }),
        ),
        (
            "StreamResponse",
            "GgwKAXQSAWMaAggCIAE=",
            json!({"statusUpdate": {
                "taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}, "final": true,
            }}),
        ),
        (
            "SendMessageRequest",
            "CgoKAW0gASoDCgF4EjQKCnRleHQvcGxhaW4SIgoBcBINaHR0cHM6Ly9lLmNvbRoBayILCgZCZWFyZXISAXoYAyABGhAKDgoHc2tpbGxJZBIDGgFz",
            json!({
                "message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "x"}]},
                "configuration": {
                    "acceptedOutputModes": ["text/plain"],
                    "pushNotification": {"id": "p", "url": "https://e.com", "token": "k",
                        "authentication": {"schemes": ["Bearer"], "credentials": "z"}},
                    "historyLength": 3, "blocking": true,
                },
                "metadata": {"skillId": "s"},
            }),
        ),
        (
            "CreateTaskPushNotificationConfigRequest",
            "Cgd0YXNrcy90EgFjGjQKIXRhc2tzL3QvcHVzaE5vdGlmaWNhdGlvbkNvbmZpZ3MvYxIPEg1odHRwczovL2UuY29t",
            json!({
                "parent": "tasks/t", "configId": "c",
                "config": {"name": "tasks/t/pushNotificationConfigs/c",
                    "pushNotificationConfig": {"url": "https://e.com"}},
            }),
        ),
        (
            "AgentCard",
            "CgFuGgF1OgIIAUIPCgFiEgoSCBIGQmVhcmVyQhkKAW8SFBoSEhAKDgoBYRIBdCIGCgFzEgFkSgoKCAoBYhIDCgF4Yg8KAXMiAXRCBwoFCgFiEgBo\
             AXIER1JQQ3oJCgF1EgRHUlBDggEFMC4zLjCSAQFp",
            json!({
                "name": "n", "url": "u", "capabilities": {"streaming": true},
                "securitySchemes": {
                    "b": {"httpAuthSecurityScheme": {"scheme": "Bearer"}},
                    "o": {"oauth2SecurityScheme": {"flows": {"authorizationCode": {
                        "authorizationUrl": "a", "tokenUrl": "t", "scopes": {"s": "d"},
                    }}}},
                },
                "security": [{"schemes": {"b": {"list": ["x"]}}}],
                "skills": [{"id": "s", "tags": ["t"], "security": [{"schemes": {"b": {}}}]}],
                "supportsAuthenticatedExtendedCard": true, "preferredTransport": "GRPC",
                "additionalInterfaces": [{"url": "u", "transport": "GRPC"}],
                "protocolVersion": "0.3.0", "iconUrl": "i",
            }),
        ),
    ] {
        let message = find(Version::V0_3, name);
        let bytes = STANDARD.decode(bytes).unwrap();
        assert_eq!(Value::Object(read(message, &bytes).unwrap()), wanted, "{name}");
        assert_eq!(write(message, object(&wanted)).unwrap(), bytes, "{name}");
    }
}

#[test]
fn values_json_cannot_represent_are_rejected_with_their_path() {
    let message = find(Version::V1_0, "Message");
    let number = |number: f64| proto::Message {
        metadata: Some(prost_struct("n", prost_number(number))),
        ..proto::Message::default()
    };
    for (given, wanted) in [
        (42.0, json!(42)),
        (-0.5, json!(-0.5)),
        (1e300, json!(1e300)),
        (-7.0, json!(-7)),
    ] {
        let read = read(message, &number(given).encode_to_vec()).unwrap();
        assert_eq!(read["metadata"]["n"], wanted);
    }
    for given in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let refused = read(message, &number(given).encode_to_vec()).unwrap_err();
        assert_eq!(refused.to_string(), "metadata.n must be a finite number");
    }
    let status = find(Version::V1_0, "TaskStatus");
    for (seconds, nanos, wanted) in [
        (1_767_323_045, 6_000_000, Some("2026-01-02T03:04:05.006Z")),
        (0, 1, Some("1970-01-01T00:00:00.000000001Z")),
        (-62_135_596_801, 0, None),
        (i64::MAX, 0, None),
        (0, -1, None),
        (0, 1_000_000_000, None),
    ] {
        let bytes = proto::TaskStatus {
            timestamp: Some(prost_timestamp(seconds, nanos)),
            ..proto::TaskStatus::default()
        };
        let read = read(status, &bytes.encode_to_vec()).unwrap();
        match wanted {
            Some(wanted) => assert_eq!(read["timestamp"], wanted),
            None => assert!(Timestamp::decode(read["timestamp"].clone()).is_err(), "{read:?}"),
        }
    }
}

#[test]
fn unknown_state_and_impossible_time_do_not_hide_a_task() {
    for version in [Version::V1_0, Version::V0_3] {
        let task = proto::Task {
            id: "t".to_owned(),
            context_id: "c".to_owned(),
            status: Some(proto::TaskStatus {
                state: 77,
                timestamp: Some(prost_timestamp(i64::MAX, -1)),
                ..proto::TaskStatus::default()
            }),
            ..proto::Task::default()
        };
        // Both versions number these fields alike.
        let document = read(find(version, "Task"), &task.encode_to_vec()).unwrap();
        let form = Form::proto(version);
        let reply = Reply::decode(Operation::GetTask, form, Value::Object(document)).unwrap();
        let Reply::Task(task) = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(
            (task.id.as_str(), task.status.state),
            ("t", TaskState::Unspecified)
        );
        assert_eq!(task.status.timestamp, None);
    }
}

fn prost_struct(name: &str, value: prost_types::Value) -> prost_types::Struct {
    prost_types::Struct {
        fields: [(name.to_owned(), value)].into(),
    }
}

fn prost_number(number: f64) -> prost_types::Value {
    prost_types::Value {
        kind: Some(prost_types::value::Kind::NumberValue(number)),
    }
}

fn prost_timestamp(seconds: i64, nanos: i32) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds, nanos }
}

#[test]
fn nesting_depth_is_limited() {
    // Nested lists, with two messages per level. Encoded by hand to reach depths that no client would encode.
    let wrap = |number: u8, inner: &[u8]| {
        let mut out = vec![number << 3 | 2];
        let mut length = inner.len();
        while length >= 0x80 {
            out.push(0x80 | u8::try_from(length & 0x7f).unwrap());
            length >>= 7;
        }
        out.push(u8::try_from(length).unwrap());
        out.extend_from_slice(inner);
        out
    };
    let deep = |n: usize| {
        let mut value = vec![0x20, 1];
        for _ in 0..n {
            value = wrap(6, &wrap(1, &value));
        }
        wrap(4, &value)
    };
    let part = find(Version::V1_0, "Part");
    assert!(read(part, &deep(40)).is_ok());
    for n in [60, 1_000, 5_000] {
        let refused = read(part, &deep(n)).unwrap_err();
        assert!(refused.to_string().ends_with("is nested too deeply"), "{n}");
    }
    // Unknown groups nest as well.
    let groups = [[0x7b; 10_000], [0x7c; 10_000]].concat();
    assert!(
        read(part, &groups)
            .unwrap_err()
            .to_string()
            .ends_with("is nested too deeply")
    );
    assert!(read(part, &[0x7b, 0x7b, 0x7c, 0x7c]).is_ok());
}

#[test]
fn last_oneof_member_wins_and_messages_merge() {
    let part = find(Version::V1_0, "Part");
    let bytes = [
        write(part, object(&json!({"text": "x", "filename": "a"}))).unwrap(),
        write(part, object(&json!({"url": "https://e.com"}))).unwrap(),
    ]
    .concat();
    assert_eq!(
        Value::Object(read(part, &bytes).unwrap()),
        json!({"url": "https://e.com", "filename": "a"})
    );
    let request = find(Version::V1_0, "SendMessageRequest");
    let bytes = [
        write(
            request,
            object(&json!({"message": {"messageId": "m"}, "metadata": {"a": 1}})),
        )
        .unwrap(),
        write(
            request,
            object(&json!({"message": {"taskId": "t"}, "metadata": {"b": 2}})),
        )
        .unwrap(),
    ]
    .concat();
    assert_eq!(
        Value::Object(read(request, &bytes).unwrap()),
        json!({"message": {"messageId": "m", "taskId": "t"}, "metadata": {"a": 1, "b": 2}})
    );
}

#[test]
fn members_outside_the_table_are_rejected() {
    let task = find(Version::V1_0, "Task");
    for (document, wanted) in [
        (json!({"id": "t", "more": 1}), "more is not in the table"),
        (json!({"id": 7}), "id must be a string"),
        (
            json!({"artifacts": [{"parts": 1}]}),
            "artifacts[0].parts must be an array",
        ),
        (
            json!({"status": {"state": "NEW"}}),
            "status.state is not in the table",
        ),
    ] {
        assert_eq!(write(task, object(&document)).unwrap_err().to_string(), wanted);
    }
    assert_eq!(
        write(task, object(&json!({"id": null, "metadata": null}))).unwrap(),
        b""
    );
}

#[test]
fn alternative_spellings_become_canonical() {
    for (version, name, given, wanted) in [
        (
            Version::V0_3,
            "SendMessageRequest",
            json!({
                "request": {"message_id": "m", "role": 1, "content": [
                    {"file": {"file_with_uri": "u", "mime_type": "t"}},
                    {"data": {"data": {"message_id": 1}}, "metadata": {"context_id": 2}},
                ]},
                "configuration": {"accepted_output_modes": [], "history_length": "3"},
            }),
            json!({
                "message": {"messageId": "m", "role": "ROLE_USER", "content": [
                    {"file": {"fileWithUri": "u", "mimeType": "t"}},
                    {"data": {"data": {"message_id": 1}}, "metadata": {"context_id": 2}},
                ]},
                "configuration": {"acceptedOutputModes": [], "historyLength": 3},
            }),
        ),
        (
            Version::V1_0,
            "TaskStatus",
            json!({"state": 3, "unknown": 1, "message": "odd"}),
            json!({"state": "TASK_STATE_COMPLETED", "unknown": 1, "message": "odd"}),
        ),
        (
            Version::V1_0,
            "TaskStatus",
            json!({"state": 3.0}),
            json!({"state": "TASK_STATE_COMPLETED"}),
        ),
        (
            Version::V1_0,
            "GetTaskRequest",
            json!({"historyLength": "1e1"}),
            json!({"historyLength": 10}),
        ),
        // A canonical name is kept and wins over another spelling.
        (
            Version::V1_0,
            "GetTaskRequest",
            json!({"historyLength": 1, "history_length": 2}),
            json!({"historyLength": 1, "history_length": 2}),
        ),
    ] {
        let mut document = object(&given).clone();
        canonical(find(version, name), &mut document);
        assert_eq!(Value::Object(document), wanted);
    }
}

#[test]
fn rpc_status_contains_its_details() {
    let details = crate::a2a::error::A2aError::task_not_found("t").data().unwrap();
    let bytes = rpc_status(5, "task not found", details.as_array().unwrap());
    let text = String::from_utf8_lossy(&bytes);
    for part in [
        "task not found",
        "type.googleapis.com/google.rpc.ErrorInfo",
        "TASK_NOT_FOUND",
        "a2a-protocol.org",
        "taskId",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let details = crate::a2a::error::A2aError::invalid_param("message.role", "is required")
        .data()
        .unwrap();
    let text = rpc_status(3, "no", details.as_array().unwrap());
    assert!(String::from_utf8_lossy(&text).contains("message.role"));
}

proptest! {
    #[test]
    fn encoding_is_compatible_with_the_official_types(item in arbitrary::stream_response()) {
        let mut document = document(item, Form::V1_0);
        let message = find(Version::V1_0, "StreamResponse");
        let ours = write(message, object(&document)).unwrap();

        let theirs = proto::StreamResponse::decode(ours.as_slice()).unwrap();
        let back = read(message, &theirs.encode_to_vec()).unwrap();
        prop_assert_eq!(&back, &read(message, &ours).unwrap());

        // The JSON of the official types means the same as our document.
        let json: protojson::StreamResponse = prost::Message::decode(ours.as_slice()).unwrap();
        let mut json = serde_json::to_value(json).unwrap();
        doubled(&mut json);
        doubled(&mut document);
        let meant = StreamResponse::decode(document).unwrap();
        prop_assert_eq!(StreamResponse::decode(Value::Object(back)).unwrap(), meant.clone());
        prop_assert_eq!(StreamResponse::decode(json).unwrap(), meant);
    }

    #[test]
    fn stream_items_of_0_3_round_trip(item in arbitrary::stream_response()) {
        let mut document = document(item, Form::V0_3Proto);
        let message = find(Version::V0_3, "StreamResponse");
        let bytes = write(message, object(&document)).unwrap();
        let back = Value::Object(read(message, &bytes).unwrap());
        doubled(&mut document);
        let meant = |document| Proto::<StreamResponse>::decode(document).unwrap();
        prop_assert_eq!(meant(back), meant(document));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        for version in Version::ALL {
            for message in messages(*version) {
                if let Ok(object) = read(message, &bytes) {
                    // Decoded documents can be written again, except for unknown enum numbers.
                    let _ = write(message, &object);
                }
            }
        }
    }

    #[test]
    fn truncated_messages_never_panic(item in arbitrary::stream_response(), at in 0.0..1.0_f64) {
        let document = document(item, Form::V1_0);
        let message = find(Version::V1_0, "StreamResponse");
        let mut bytes = write(message, object(&document)).unwrap();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss,
            reason = "a place within the bytes")]
        bytes.truncate((bytes.len() as f64 * at) as usize);
        let _ = read(message, &bytes);
    }
}

#[test]
fn decoded_size_is_limited() {
    let message = find(Version::V1_0, "SendMessageRequest");
    let data = vec![json!({ "": 0 }); 1_000];
    let many = json!({ "message": { "messageId": "m", "parts": [{ "data": data }] } });
    let bytes = write(message, object(&many)).unwrap();
    let (decoded, n_bytes) = read_within(message, &bytes, usize::MAX).unwrap();
    assert_eq!(decoded["message"]["messageId"], "m");
    assert!((640_000..1_000_000).contains(&n_bytes), "{n_bytes}");
    assert_eq!(read_within(message, &bytes, n_bytes).unwrap().1, n_bytes);
    let refused = read_within(message, &bytes, n_bytes - 1).unwrap_err();
    assert!(
        refused.to_string().ends_with("holds too many values"),
        "{refused}"
    );
    let modes = json!({ "configuration": { "acceptedOutputModes": vec![""; 1_000] } });
    let bytes = write(message, object(&modes)).unwrap();
    assert!(read_within(message, &bytes, 40_000).is_err());
}
