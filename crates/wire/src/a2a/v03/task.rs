//! Tasks, messages, parts, artifacts and events of 0.3, distinguished by `kind`. Decoding does not require
//! `kind` on parts, nor on a message where nothing else is possible.

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::super::model::{AnyTaskState, Metadata, decode_base64, encode_base64};
use crate::{
    json::{Decode, DecodeError, Fields, Object, deserialize_by_decode, named},
    time::Timestamp,
};

named! {
    pub enum TaskState: "a task state of A2A 0.3" {
        /// Accepted but not started.
        Submitted = "submitted",
        Working = "working",
        /// Waiting for a message from the client.
        InputRequired = "input-required",
        Completed = "completed",
        Canceled = "canceled",
        Failed = "failed",
        Rejected = "rejected",
        /// Waiting for credentials from the client.
        AuthRequired = "auth-required",
        /// The state is not known.
        Unknown = "unknown",
    }
}

named! {
    pub enum Role: "user or agent" {
        User = "user",
        Agent = "agent",
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename = "task", rename_all = "camelCase")]
pub struct Task {
    pub id: String,
    /// Groups related tasks and messages.
    pub context_id: String,
    pub status: TaskStatus,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// Oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Message>,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
}

impl Decode for Task {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        fields.literal("kind", "task")?;
        Ok(Self {
            id: fields.required_text("id")?,
            context_id: fields.required("contextId")?,
            status: fields.required("status")?,
            artifacts: fields.or_default("artifacts")?,
            history: fields.or_default("history")?,
            metadata: fields.or_default("metadata")?,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskStatus {
    /// A state that 0.3 does not define decodes as unknown, because it must not hide the rest of a task.
    pub state: TaskState,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Message>,
    /// The schema allows any text, so what is not a timestamp decodes as absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Timestamp>,
}

impl Decode for TaskStatus {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        if !fields.has("state") {
            return Err(DecodeError::missing().in_field("state"));
        }
        Ok(Self {
            state: (fields.if_valid("state")).map_or(TaskState::Unknown, |AnyTaskState(state)| state.into()),
            message: fields.optional("message")?,
            timestamp: fields.if_valid("timestamp"),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename = "message", rename_all = "camelCase")]
pub struct Message {
    pub message_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    pub role: Role,
    /// Requests must have at least one part.
    pub parts: Vec<Part>,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// URIs of the extensions that this message uses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reference_task_ids: Vec<String>,
}

impl Decode for Message {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        // No other kind is possible here, and the examples in the specification omit it.
        fields.literal_if_any("kind", "message")?;
        Ok(Self {
            message_id: fields.required_text("messageId")?,
            context_id: fields.optional_text("contextId")?,
            task_id: fields.optional_text("taskId")?,
            role: fields.required("role")?,
            parts: fields.required("parts")?,
            metadata: fields.or_default("metadata")?,
            extensions: fields.or_default("extensions")?,
            reference_task_ids: fields.or_default("referenceTaskIds")?,
        })
    }
}

/// The kinds of parts. Each is also the name of the member with the content.
const PART_KINDS: [&str; 3] = ["text", "file", "data"];

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Part {
    Text {
        text: String,
        #[serde(skip_serializing_if = "Metadata::is_empty")]
        metadata: Metadata,
    },
    File {
        file: FileContent,
        #[serde(skip_serializing_if = "Metadata::is_empty")]
        metadata: Metadata,
    },
    Data {
        /// Always an object.
        data: Object,
        #[serde(skip_serializing_if = "Metadata::is_empty")]
        metadata: Metadata,
    },
}

impl Decode for Part {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let kind: Option<String> = fields.optional("kind")?;
        let metadata = fields.or_default("metadata")?;
        // Without a kind, the only content member determines it.
        let (kind, content) = match kind {
            None => fields.exactly_one(&PART_KINDS)?,
            Some(kind) => {
                let known = PART_KINDS.into_iter().find(|known| *known == kind);
                let kind = known
                    .ok_or_else(|| DecodeError::invalid("must be text, file or data").in_field("kind"))?;
                (kind, fields.required(kind)?)
            }
        };
        let part = match kind {
            "text" => String::decode(content).map(|text| Self::Text { text, metadata }),
            "file" => FileContent::decode(content).map(|file| Self::File { file, metadata }),
            _ => Object::decode(content).map(|data| Self::Data { data, metadata }),
        };
        part.map_err(|error| error.in_field(kind))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileContent {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// The content, or its location.
    #[serde(flatten)]
    pub body: FileBody,
}

/// The bytes of a file, or their location; on the wire exactly one member.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileBody {
    /// Base64 on the wire.
    #[serde(serialize_with = "as_base64")]
    Bytes(Vec<u8>),
    Uri(String),
}

fn as_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&encode_base64(bytes))
}

impl Decode for FileContent {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let (name, value) = fields.exactly_one(&["bytes", "uri"])?;
        let body = String::decode(value)
            .and_then(|text| match name {
                "bytes" => decode_base64(&text).map(FileBody::Bytes),
                _ => Ok(FileBody::Uri(text)),
            })
            .map_err(|error| error.in_field(name))?;
        Ok(Self {
            name: fields.optional_text("name")?,
            mime_type: fields.optional_text("mimeType")?,
            body,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// Unique within the task.
    pub artifact_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    pub parts: Vec<Part>,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// URIs of the extensions that this artifact uses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<String>,
}

impl Decode for Artifact {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            artifact_id: fields.required_text("artifactId")?,
            name: fields.optional_text("name")?,
            description: fields.optional_text("description")?,
            parts: fields.required("parts")?,
            metadata: fields.or_default("metadata")?,
            extensions: fields.or_default("extensions")?,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename = "status-update", rename_all = "camelCase")]
pub struct TaskStatusUpdateEvent {
    pub task_id: String,
    pub context_id: String,
    pub status: TaskStatus,
    /// The stream ends with this event.
    #[serde(rename = "final")]
    pub is_final: bool,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
}

impl Decode for TaskStatusUpdateEvent {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        fields.literal("kind", "status-update")?;
        Ok(Self {
            task_id: fields.required_text("taskId")?,
            context_id: fields.required("contextId")?,
            status: fields.required("status")?,
            is_final: fields.required("final")?,
            metadata: fields.or_default("metadata")?,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename = "artifact-update", rename_all = "camelCase")]
pub struct TaskArtifactUpdateEvent {
    pub task_id: String,
    pub context_id: String,
    /// The whole artifact, or its next chunk.
    pub artifact: Artifact,
    /// The parts extend the artifact previously sent with this id.
    pub append: bool,
    pub last_chunk: bool,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
}

impl Decode for TaskArtifactUpdateEvent {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        fields.literal("kind", "artifact-update")?;
        Ok(Self {
            task_id: fields.required_text("taskId")?,
            context_id: fields.required("contextId")?,
            artifact: fields.required("artifact")?,
            append: fields.or_default("append")?,
            last_chunk: fields.or_default("lastChunk")?,
            metadata: fields.or_default("metadata")?,
        })
    }
}

/// The result of `message/send`: a bare task or message.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum SendResult {
    /// The task that the message created or continued.
    Task(Task),
    /// The agent replied without a task.
    Message(Message),
}

impl Decode for SendResult {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        match kind_of(&value)? {
            "task" => Task::decode(value).map(Self::Task),
            "message" => Message::decode(value).map(Self::Message),
            _ => Err(DecodeError::invalid("must be task or message").in_field("kind")),
        }
    }
}

/// An item of a stream, and the body of a push notification.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum StreamEvent {
    Task(Task),
    /// A reply without a task.
    Message(Message),
    StatusUpdate(TaskStatusUpdateEvent),
    ArtifactUpdate(TaskArtifactUpdateEvent),
}

impl Decode for StreamEvent {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        match kind_of(&value)? {
            "task" => Task::decode(value).map(Self::Task),
            "message" => Message::decode(value).map(Self::Message),
            "status-update" => TaskStatusUpdateEvent::decode(value).map(Self::StatusUpdate),
            "artifact-update" => TaskArtifactUpdateEvent::decode(value).map(Self::ArtifactUpdate),
            _ => {
                let rule = "must be task, message, status-update or artifact-update";
                Err(DecodeError::invalid(rule).in_field("kind"))
            }
        }
    }
}

fn kind_of(value: &Value) -> Result<&str, DecodeError> {
    let object = value
        .as_object()
        .ok_or_else(|| DecodeError::wrong_type("an object"))?;
    let kind = object
        .get("kind")
        .ok_or_else(|| DecodeError::missing().in_field("kind"))?;
    kind.as_str()
        .ok_or_else(|| DecodeError::wrong_type("a string").in_field("kind"))
}

deserialize_by_decode!(
    Task,
    TaskStatus,
    Message,
    Part,
    FileContent,
    Artifact,
    TaskStatusUpdateEvent,
    TaskArtifactUpdateEvent,
    SendResult,
    StreamEvent,
);
