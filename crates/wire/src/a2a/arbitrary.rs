//! Model values for property tests, in the form in which they decode: no empty strings where absence means
//! the same.

use proptest::{collection::vec, option, prelude::*};
use serde_json::Value;

use super::model::{
    Artifact, Message, Metadata, Part, PartContent, Role, StreamResponse, Task, TaskArtifactUpdateEvent,
    TaskState, TaskStatus, TaskStatusUpdateEvent,
};
use crate::{json::Object, time::Timestamp};

/// The start of year 1, in milliseconds.
const YEAR_1: i64 = -62_135_596_800_000;

/// Any JSON value of moderate size, without fractions: number formatting is tested elsewhere.
pub(crate) fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((key(), inner), 0..4).prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Any JSON value whose member names occur in the protocol.
pub(crate) fn hostile_value() -> impl Strategy<Value = Value> {
    let texts = prop::sample::select(vec![
        "",
        "text",
        "file",
        "data",
        "task",
        "message",
        "status-update",
        "artifact-update",
        "user",
        "ROLE_USER",
        "working",
        "TASK_STATE_WORKING",
        "2026-01-01T00:00:00Z",
        "dGNr",
        "2.0",
        "http",
        "apiKey",
        "header",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2_i64..200).prop_map(Value::from),
        texts.prop_map(Value::from),
    ];
    let names = prop::sample::select(vec![
        "kind",
        "id",
        "messageId",
        "contextId",
        "taskId",
        "role",
        "parts",
        "text",
        "raw",
        "url",
        "data",
        "file",
        "bytes",
        "uri",
        "metadata",
        "status",
        "state",
        "message",
        "timestamp",
        "artifact",
        "artifactId",
        "final",
        "configuration",
        "historyLength",
        "task",
        "statusUpdate",
        "type",
        "name",
        "in",
        "scheme",
        "flows",
        "pageSize",
        "jsonrpc",
        "method",
        "params",
        "result",
        "error",
        "code",
    ]);
    leaf.prop_recursive(4, 48, 8, move |inner| {
        prop_oneof![
            1 => vec(inner.clone(), 0..3).prop_map(Value::from),
            4 => vec((names.clone().prop_map(str::to_owned), inner), 0..8)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn key() -> impl Strategy<Value = String> {
    "[a-z]{1,6}"
}

fn id() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9_-]{1,12}"
}

fn words() -> impl Strategy<Value = String> {
    "\\PC{1,12}"
}

fn metadata() -> impl Strategy<Value = Metadata> {
    vec((key(), json_value()), 0..3).prop_map(Object::from_iter)
}

pub(crate) fn part() -> impl Strategy<Value = Part> {
    let content = prop_oneof![
        "\\PC{0,20}".prop_map(PartContent::Text),
        vec(any::<u8>(), 0..20).prop_map(PartContent::Raw),
        words().prop_map(PartContent::Url),
        json_value().prop_map(PartContent::Data),
    ];
    (content, option::of(words()), option::of(words()), metadata()).prop_map(
        |(content, media_type, filename, metadata)| Part {
            content,
            media_type,
            filename,
            metadata,
        },
    )
}

pub(crate) fn message() -> impl Strategy<Value = Message> {
    (
        id(),
        option::of(id()),
        option::of(id()),
        prop::sample::select(Role::ALL),
        vec(part(), 0..3),
        metadata(),
        vec(words(), 0..2),
        vec(id(), 0..2),
    )
        .prop_map(
            |(message_id, context_id, task_id, role, parts, metadata, extensions, reference_task_ids)| {
                Message {
                    message_id,
                    context_id,
                    task_id,
                    role,
                    parts,
                    metadata,
                    extensions,
                    reference_task_ids,
                    unreadable: Vec::new(),
                }
            },
        )
}

fn status() -> impl Strategy<Value = TaskStatus> {
    // Protocol buffers timestamps start at year 1.
    let instant = (YEAR_1..=Timestamp::MAX.as_millis()).prop_map(Timestamp::from_millis);
    (
        prop::sample::select(TaskState::ALL),
        option::of(message()),
        option::of(instant),
    )
        .prop_map(|(state, message, timestamp)| TaskStatus {
            state,
            message,
            timestamp,
        })
}

fn artifact() -> impl Strategy<Value = Artifact> {
    (
        id(),
        option::of(words()),
        option::of(words()),
        vec(part(), 0..3),
        metadata(),
        vec(words(), 0..2),
    )
        .prop_map(
            |(artifact_id, name, description, parts, metadata, extensions)| Artifact {
                artifact_id,
                name,
                description,
                parts,
                metadata,
                extensions,
            },
        )
}

pub(crate) fn task() -> impl Strategy<Value = Task> {
    (
        id(),
        id(),
        status(),
        vec(artifact(), 0..2),
        vec(message(), 0..2),
        metadata(),
    )
        .prop_map(|(id, context_id, status, artifacts, history, metadata)| Task {
            id,
            context_id,
            status,
            artifacts,
            history,
            metadata,
            unreadable: Vec::new(),
        })
}

pub(crate) fn stream_response() -> impl Strategy<Value = StreamResponse> {
    let status_update =
        (id(), id(), status(), metadata()).prop_map(|(task_id, context_id, status, metadata)| {
            StreamResponse::StatusUpdate(TaskStatusUpdateEvent {
                task_id,
                context_id,
                status,
                metadata,
                unreadable: Vec::new(),
            })
        });
    let artifact_update = (id(), id(), artifact(), any::<bool>(), any::<bool>(), metadata()).prop_map(
        |(task_id, context_id, artifact, append, last_chunk, metadata)| {
            StreamResponse::ArtifactUpdate(TaskArtifactUpdateEvent {
                task_id,
                context_id,
                artifact,
                append,
                last_chunk,
                metadata,
                unreadable: Vec::new(),
            })
        },
    );
    prop_oneof![
        task().prop_map(StreamResponse::Task),
        message().prop_map(StreamResponse::Message),
        status_update,
        artifact_update,
    ]
}
