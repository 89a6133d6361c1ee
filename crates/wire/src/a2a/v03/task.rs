//! Tasks, messages, parts, artifacts and events as 0.3 writes them, told apart by `kind`. A message where nothing else
//! can be, and a part, are taken without it too.

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::super::model::{Metadata, decode_base64, encode_base64};
use crate::{
    json::{Decode, DecodeError, Fields, Object, deserialize_by_decode, named},
    time::Timestamp,
};

named! {
    /// Where a task stands.
    pub enum TaskState: "a task state of A2A 0.3" {
        /// Accepted, not begun.
        Submitted = "submitted",
        /// Being worked on.
        Working = "working",
        /// Waits for a message.
        InputRequired = "input-required",
        /// Ended well.
        Completed = "completed",
        /// Ended on request.
        Canceled = "canceled",
        /// Ended badly.
        Failed = "failed",
        /// Declined by the agent.
        Rejected = "rejected",
        /// Waits for credentials.
        AuthRequired = "auth-required",
        /// Not known.
        Unknown = "unknown",
    }
}

named! {
    /// Who sent a message.
    pub enum Role: "user or agent" {
        /// The client.
        User = "user",
        /// The agent.
        Agent = "agent",
    }
}

/// A unit of work of an agent.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename = "task", rename_all = "camelCase")]
pub struct Task {
    /// Names the task.
    pub id: String,
    /// Groups tasks and messages.
    pub context_id: String,
    /// Where the task stands.
    pub status: TaskStatus,
    /// What the task has produced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// The messages exchanged so far.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Message>,
    /// Free-form data.
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

/// The state of a task, since when, and what the agent says about it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskStatus {
    /// The state.
    pub state: TaskState,
    /// What the agent says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Message>,
    /// Since when. The schema asks for any text, so what is no instant is read as absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Timestamp>,
}

impl Decode for TaskStatus {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let timestamp: Option<String> = fields.optional("timestamp")?;
        Ok(Self {
            state: fields.required("state")?,
            message: fields.optional("message")?,
            timestamp: timestamp.and_then(|text| Timestamp::parse(&text).ok()),
        })
    }
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename = "message", rename_all = "camelCase")]
pub struct Message {
    /// Names the message.
    pub message_id: String,
    /// The context it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_id: Option<String>,
    /// The task it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// Who sent it.
    pub role: Role,
    /// Its content. At least one part in a request.
    pub parts: Vec<Part>,
    /// Free-form data.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// The URIs of the extensions it uses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<String>,
    /// Other tasks it refers to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reference_task_ids: Vec<String>,
}

impl Decode for Message {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        // Where a message is wanted nothing else can be meant, and the specification's own examples leave it out.
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

/// The kinds of parts, each named as the member that has its content.
const PART_KINDS: [&str; 3] = ["text", "file", "data"];

/// A piece of content.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Part {
    /// Text.
    Text {
        /// The text.
        text: String,
        /// Free-form data.
        #[serde(skip_serializing_if = "Metadata::is_empty")]
        metadata: Metadata,
    },
    /// A file.
    File {
        /// The file.
        file: FileContent,
        /// Free-form data.
        #[serde(skip_serializing_if = "Metadata::is_empty")]
        metadata: Metadata,
    },
    /// Structured data.
    Data {
        /// The data, always an object.
        data: Object,
        /// Free-form data.
        #[serde(skip_serializing_if = "Metadata::is_empty")]
        metadata: Metadata,
    },
}

impl Decode for Part {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let kind: Option<String> = fields.optional("kind")?;
        let metadata = fields.or_default("metadata")?;
        // A part that does not say what it is shows it, by the one member it has.
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

/// A file, inline or elsewhere.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileContent {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its media type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// Its bytes, or where they are.
    #[serde(flatten)]
    pub body: FileBody,
}

/// The bytes of a file, or where they are; on the wire exactly one member.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileBody {
    /// The bytes, on the wire in base64.
    #[serde(serialize_with = "as_base64")]
    Bytes(Vec<u8>),
    /// Where they are.
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

/// Something a task has produced.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// Names the artifact within its task.
    pub artifact_id: String,
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A description for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Its content.
    pub parts: Vec<Part>,
    /// Free-form data.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// The URIs of the extensions it uses.
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

/// Tells that the status of a task changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename = "status-update", rename_all = "camelCase")]
pub struct TaskStatusUpdateEvent {
    /// The task.
    pub task_id: String,
    /// Its context.
    pub context_id: String,
    /// The new status.
    pub status: TaskStatus,
    /// Claims that the stream ends here.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// Free-form data.
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

/// Tells that an artifact was made or grew.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename = "artifact-update", rename_all = "camelCase")]
pub struct TaskArtifactUpdateEvent {
    /// The task.
    pub task_id: String,
    /// Its context.
    pub context_id: String,
    /// The artifact, or the next piece of it.
    pub artifact: Artifact,
    /// Claims that the parts belong after those sent before.
    pub append: bool,
    /// Claims that the artifact is whole now.
    pub last_chunk: bool,
    /// Free-form data.
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

/// The answer to `message/send`: a bare task or message.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum SendResult {
    /// The message became, or continued, a task.
    Task(Task),
    /// The agent answered without a task.
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

/// One item of a stream, and the body of a push notification.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum StreamEvent {
    /// The whole task.
    Task(Task),
    /// A message that is not about a task.
    Message(Message),
    /// A change of status.
    StatusUpdate(TaskStatusUpdateEvent),
    /// A new or longer artifact.
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
