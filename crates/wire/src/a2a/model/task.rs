//! Tasks, messages, parts, artifacts and the events of a stream (A2A 1.0 section 4.1 and 4.2).

use base64::{
    Engine as _,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;

use super::{Metadata, is_false};
use crate::{
    json::{Decode, DecodeError, Fields, deserialize_by_decode, named},
    time::Timestamp,
};

named! {
    /// Where a task stands.
    pub enum TaskState: "a task state of A2A 1.0" {
        /// Not said, or not known.
        Unspecified = "TASK_STATE_UNSPECIFIED",
        /// Accepted, not begun.
        Submitted = "TASK_STATE_SUBMITTED",
        /// Being worked on.
        Working = "TASK_STATE_WORKING",
        /// Ended well.
        Completed = "TASK_STATE_COMPLETED",
        /// Ended badly.
        Failed = "TASK_STATE_FAILED",
        /// Ended on request.
        Canceled = "TASK_STATE_CANCELED",
        /// Waits for a message.
        InputRequired = "TASK_STATE_INPUT_REQUIRED",
        /// Declined by the agent.
        Rejected = "TASK_STATE_REJECTED",
        /// Waits for credentials.
        AuthRequired = "TASK_STATE_AUTH_REQUIRED",
    }
}

impl TaskState {
    /// Claims that the task never changes again.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Canceled | Self::Rejected => true,
            Self::Unspecified
            | Self::Submitted
            | Self::Working
            | Self::InputRequired
            | Self::AuthRequired => false,
        }
    }

    /// Claims that the task waits for its client.
    #[must_use]
    pub const fn is_interrupted(self) -> bool {
        match self {
            Self::InputRequired | Self::AuthRequired => true,
            Self::Unspecified
            | Self::Submitted
            | Self::Working
            | Self::Completed
            | Self::Failed
            | Self::Canceled
            | Self::Rejected => false,
        }
    }
}

named! {
    /// Who sent a message. The protocol's third value, unspecified, is refused when read.
    pub enum Role: "ROLE_USER or ROLE_AGENT" {
        /// The client.
        User = "ROLE_USER",
        /// The agent.
        Agent = "ROLE_AGENT",
    }
}

/// A unit of work of an agent.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// Names the task; made by the agent.
    pub id: String,
    /// Groups tasks and messages that belong together.
    pub context_id: String,
    /// Where the task stands.
    pub status: TaskStatus,
    /// What the task has produced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// The messages exchanged so far, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Message>,
    /// Free-form data.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
}

impl Decode for Task {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            id: fields.required_text("id")?,
            context_id: fields.or_default("contextId")?,
            status: fields.required("status")?,
            artifacts: fields.or_default("artifacts")?,
            history: fields.or_default("history")?,
            metadata: fields.or_default("metadata")?,
        })
    }
}

/// The state of a task, since when, and what the agent says about it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskStatus {
    /// The state.
    pub state: TaskState,
    /// What the agent says, for example the question it waits on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Message>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Timestamp>,
}

impl Decode for TaskStatus {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            state: fields.optional("state")?.unwrap_or(TaskState::Unspecified),
            message: fields.optional("message")?,
            timestamp: fields.optional("timestamp")?,
        })
    }
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// Names the message; made by its sender.
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
    /// Other tasks it refers to for context.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reference_task_ids: Vec<String>,
}

impl Message {
    /// Makes a message with nothing but its content.
    #[must_use]
    pub fn new(message_id: impl Into<String>, role: Role, parts: Vec<Part>) -> Self {
        Self {
            message_id: message_id.into(),
            context_id: None,
            task_id: None,
            role,
            parts,
            metadata: Metadata::new(),
            extensions: Vec::new(),
            reference_task_ids: Vec::new(),
        }
    }
}

impl Decode for Message {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            message_id: fields.required_text("messageId")?,
            context_id: fields.optional_text("contextId")?,
            task_id: fields.optional_text("taskId")?,
            role: fields.required("role")?,
            parts: fields.or_default("parts")?,
            metadata: fields.or_default("metadata")?,
            extensions: fields.or_default("extensions")?,
            reference_task_ids: fields.or_default("referenceTaskIds")?,
        })
    }
}

/// A piece of content.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The content itself.
    pub content: PartContent,
    /// Its media type.
    pub media_type: Option<String>,
    /// Its file name.
    pub filename: Option<String>,
    /// Free-form data.
    pub metadata: Metadata,
}

/// What a part holds; on the wire exactly one member.
#[derive(Debug, Clone, PartialEq)]
pub enum PartContent {
    /// Text.
    Text(String),
    /// Bytes, on the wire in base64.
    Raw(Vec<u8>),
    /// Where the bytes are.
    Url(String),
    /// Any JSON value.
    Data(Value),
}

impl From<PartContent> for Part {
    fn from(content: PartContent) -> Self {
        Self {
            content,
            media_type: None,
            filename: None,
            metadata: Metadata::new(),
        }
    }
}

impl Part {
    /// Makes a part of text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        PartContent::Text(text.into()).into()
    }

    /// Makes a part of structured data.
    #[must_use]
    pub fn data(value: Value) -> Self {
        PartContent::Data(value).into()
    }
}

const PADDING: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const BASE64: GeneralPurpose = GeneralPurpose::new(&STANDARD, PADDING);
const BASE64_URL: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, PADDING);

/// Writes bytes as ProtoJSON does: the standard alphabet with padding.
pub(crate) fn encode_base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Reads bytes as ProtoJSON does: either alphabet, with or without padding.
pub(crate) fn decode_base64(text: &str) -> Result<Vec<u8>, DecodeError> {
    let engine = if text.contains(['-', '_']) {
        BASE64_URL
    } else {
        BASE64
    };
    engine
        .decode(text)
        .map_err(|_| DecodeError::invalid("must be base64"))
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match &self.content {
            PartContent::Text(text) => map.serialize_entry("text", text)?,
            PartContent::Raw(bytes) => map.serialize_entry("raw", &encode_base64(bytes))?,
            PartContent::Url(url) => map.serialize_entry("url", url)?,
            PartContent::Data(value) => map.serialize_entry("data", value)?,
        }
        if let Some(media_type) = &self.media_type {
            map.serialize_entry("mediaType", media_type)?;
        }
        if let Some(filename) = &self.filename {
            map.serialize_entry("filename", filename)?;
        }
        if !self.metadata.is_empty() {
            map.serialize_entry("metadata", &self.metadata)?;
        }
        map.end()
    }
}

impl Decode for Part {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let media_type = fields.optional_text("mediaType")?;
        let filename = fields.optional_text("filename")?;
        let metadata = fields.or_default("metadata")?;
        let data = fields.take("data");
        let has_other = ["text", "raw", "url"].iter().any(|name| fields.has(name));
        let content = match data {
            // `null` is a value of `data`, but absence beside another member.
            Some(data) if !has_other => PartContent::Data(data),
            None | Some(Value::Null) => text_content(&mut fields)?,
            Some(_) => return Err(DecodeError::invalid("must have only one of text, raw, url, data")),
        };
        Ok(Self {
            content,
            media_type,
            filename,
            metadata,
        })
    }
}

/// Reads the content of a part whose `data` was found absent.
fn text_content(fields: &mut Fields) -> Result<PartContent, DecodeError> {
    let (name, value) = fields.exactly_one(&["text", "raw", "url", "data"])?;
    let text = String::decode(value).map_err(|error| error.in_field(name))?;
    match name {
        "text" => Ok(PartContent::Text(text)),
        "raw" => decode_base64(&text)
            .map(PartContent::Raw)
            .map_err(|error| error.in_field(name)),
        _ => Ok(PartContent::Url(text)),
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
            parts: fields.or_default("parts")?,
            metadata: fields.or_default("metadata")?,
            extensions: fields.or_default("extensions")?,
        })
    }
}

/// Tells that the status of a task changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskStatusUpdateEvent {
    /// The task.
    pub task_id: String,
    /// Its context.
    pub context_id: String,
    /// The new status.
    pub status: TaskStatus,
    /// Free-form data.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
}

impl Decode for TaskStatusUpdateEvent {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            task_id: fields.required_text("taskId")?,
            context_id: fields.or_default("contextId")?,
            status: fields.required("status")?,
            metadata: fields.or_default("metadata")?,
        })
    }
}

/// Tells that an artifact was made or grew.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskArtifactUpdateEvent {
    /// The task.
    pub task_id: String,
    /// Its context.
    pub context_id: String,
    /// The artifact, or the next piece of it.
    pub artifact: Artifact,
    /// Claims that the parts belong after those sent before under the same artifact id.
    #[serde(skip_serializing_if = "is_false")]
    pub append: bool,
    /// Claims that the artifact is whole now.
    #[serde(skip_serializing_if = "is_false")]
    pub last_chunk: bool,
    /// Free-form data.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
}

impl Decode for TaskArtifactUpdateEvent {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            task_id: fields.required_text("taskId")?,
            context_id: fields.or_default("contextId")?,
            artifact: fields.required("artifact")?,
            append: fields.or_default("append")?,
            last_chunk: fields.or_default("lastChunk")?,
            metadata: fields.or_default("metadata")?,
        })
    }
}

/// One item of a stream, and the body of a push notification; on the wire exactly one member.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum StreamResponse {
    /// The whole task.
    Task(Task),
    /// A message that is not about a task.
    Message(Message),
    /// A change of status.
    StatusUpdate(TaskStatusUpdateEvent),
    /// A new or longer artifact.
    ArtifactUpdate(TaskArtifactUpdateEvent),
}

impl Decode for StreamResponse {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let (name, value) = fields.exactly_one(&["task", "message", "statusUpdate", "artifactUpdate"])?;
        match name {
            "task" => Task::decode(value).map(Self::Task),
            "message" => Message::decode(value).map(Self::Message),
            "statusUpdate" => TaskStatusUpdateEvent::decode(value).map(Self::StatusUpdate),
            _ => TaskArtifactUpdateEvent::decode(value).map(Self::ArtifactUpdate),
        }
        .map_err(|error| error.in_field(name))
    }
}

deserialize_by_decode!(
    Task,
    TaskStatus,
    Message,
    Part,
    Artifact,
    TaskStatusUpdateEvent,
    TaskArtifactUpdateEvent,
    StreamResponse,
);
