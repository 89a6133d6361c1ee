//! The requests and responses of the task operations (A2A 1.0 section 3).
//!
//! Numbers are checked when read: a negative history length or a page size outside 1 to 100 is a field
//! violation. A `tenant` is a hint of the client and grants nothing.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use super::{Message, Metadata, Task, TaskPushNotificationConfig, TaskState, is_default, is_false};
use crate::{
    json::{Decode, DecodeError, Fields, Object, deserialize_by_decode},
    time::Timestamp,
};

/// The largest page a client may ask for.
const MAX_PAGE_SIZE: u32 = 100;

/// `SendMessage` and `SendStreamingMessage`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SendMessageRequest {
    /// The tenant the client addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The message, with at least one part.
    pub message: Message,
    /// How to answer.
    #[serde(skip_serializing_if = "is_default")]
    pub configuration: SendMessageConfiguration,
    /// Free-form data.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
}

impl Decode for SendMessageRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            tenant: fields.optional_text("tenant")?,
            message: with_parts(fields.required("message")?)?,
            configuration: fields.or_default("configuration")?,
            metadata: fields.or_default("metadata")?,
        })
    }
}

fn with_parts(message: Message) -> Result<Message, DecodeError> {
    if message.parts.is_empty() {
        return Err(DecodeError::invalid("must have at least one part")
            .in_field("parts")
            .in_field("message"));
    }
    Ok(message)
}

/// How the agent should answer a message.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SendMessageConfiguration {
    /// The media types the client understands; empty means any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accepted_output_modes: Vec<String>,
    /// Where to push the updates of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_push_notification_config: Option<TaskPushNotificationConfig>,
    /// How many of the latest messages to include: all the agent likes when absent, none for 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_length: Option<u32>,
    /// Claims that the client does not wait until the task ends or asks for something.
    #[serde(skip_serializing_if = "is_false")]
    pub return_immediately: bool,
}

impl Decode for SendMessageConfiguration {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let push = fields.optional("taskPushNotificationConfig")?;
        Ok(Self {
            accepted_output_modes: fields.or_default("acceptedOutputModes")?,
            // Early 1.0 clients still send the 0.3 name.
            task_push_notification_config: match push {
                Some(push) => Some(push),
                None => fields.optional("pushNotificationConfig")?,
            },
            history_length: fields.optional("historyLength")?,
            return_immediately: fields.or_default("returnImmediately")?,
        })
    }
}

/// The answer to a message; on the wire exactly one member.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SendMessageResponse {
    /// The message became, or continued, a task.
    Task(Task),
    /// The agent answered without a task.
    Message(Message),
}

impl Decode for SendMessageResponse {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let (name, value) = fields.exactly_one(&["task", "message"])?;
        match name {
            "task" => Task::decode(value).map(Self::Task),
            _ => Message::decode(value).map(Self::Message),
        }
        .map_err(|error| error.in_field(name))
    }
}

/// `GetTask`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GetTaskRequest {
    /// The tenant the client addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The task.
    pub id: String,
    /// How many of the latest messages to include.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_length: Option<u32>,
}

impl Decode for GetTaskRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            tenant: fields.optional_text("tenant")?,
            id: fields.required_text("id")?,
            history_length: fields.optional("historyLength")?,
        })
    }
}

/// `ListTasks`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListTasksRequest {
    /// The tenant the client addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Only tasks of this context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_id: Option<String>,
    /// Only tasks in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<TaskState>,
    /// At most so many tasks, 1 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<u32>,
    /// Where the page before this one ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_token: Option<String>,
    /// How many of the latest messages to include in each task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_length: Option<u32>,
    /// Only tasks whose status changed at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_timestamp_after: Option<Timestamp>,
    /// Claims that artifacts are wanted too.
    #[serde(skip_serializing_if = "is_false")]
    pub include_artifacts: bool,
}

impl Decode for ListTasksRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let status: Option<TaskState> = match fields.optional_text("status")? {
            None => None,
            Some(name) => {
                Some(TaskState::decode(Value::String(name)).map_err(|error| error.in_field("status"))?)
            }
        };
        Ok(Self {
            tenant: fields.optional_text("tenant")?,
            context_id: fields.optional_text("contextId")?,
            status: status.filter(|state| *state != TaskState::Unspecified),
            page_size: page_size(&mut fields)?,
            page_token: fields.optional_text("pageToken")?,
            history_length: fields.optional("historyLength")?,
            status_timestamp_after: fields.optional("statusTimestampAfter")?,
            include_artifacts: fields.or_default("includeArtifacts")?,
        })
    }
}

/// Reads `pageSize`, which must lie between 1 and 100.
pub(super) fn page_size(fields: &mut Fields) -> Result<Option<u32>, DecodeError> {
    let size: Option<u32> = fields.optional("pageSize")?;
    if size.is_some_and(|size| size == 0 || size > MAX_PAGE_SIZE) {
        return Err(DecodeError::invalid("must lie between 1 and 100").in_field("pageSize"));
    }
    Ok(size)
}

/// A page of tasks. All four fields are always written.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListTasksResponse {
    /// The tasks, latest change first.
    pub tasks: Vec<Task>,
    /// What to ask for next; empty on the last page.
    pub next_page_token: String,
    /// How many tasks a page holds at most.
    pub page_size: u32,
    /// How many tasks there are before paging.
    pub total_size: u64,
}

impl Decode for ListTasksResponse {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            tasks: fields.or_default("tasks")?,
            next_page_token: fields.or_default("nextPageToken")?,
            page_size: fields.or_default("pageSize")?,
            total_size: fields.or_default("totalSize")?,
        })
    }
}

/// `CancelTask`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CancelTaskRequest {
    /// The tenant the client addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The task.
    pub id: String,
    /// Free-form data.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
}

impl Decode for CancelTaskRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            tenant: fields.optional_text("tenant")?,
            id: fields.required_text("id")?,
            metadata: fields.or_default("metadata")?,
        })
    }
}

/// `SubscribeToTask`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscribeToTaskRequest {
    /// The tenant the client addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The task.
    pub id: String,
}

impl Decode for SubscribeToTaskRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            tenant: fields.optional_text("tenant")?,
            id: fields.required_text("id")?,
        })
    }
}

/// `GetExtendedAgentCard`; often sent without parameters.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GetExtendedAgentCardRequest {
    /// The tenant the client addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

impl Decode for GetExtendedAgentCardRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        Ok(Self {
            tenant: Fields::of(value)?.optional_text("tenant")?,
        })
    }
}

/// Turns decoded query parameters of the HTTP+JSON binding into the object the requests are read from.
///
/// Numbers and booleans are told by the names of their fields; what does not parse stays text, so
/// decoding reports it under its name. Of a repeated name the last one counts.
pub fn query_object<'a, K, V>(pairs: impl IntoIterator<Item = (K, V)>) -> Value
where
    K: Into<Cow<'a, str>>,
    V: Into<Cow<'a, str>>,
{
    let mut object = Object::new();
    for (name, text) in pairs {
        let (name, text) = (name.into().into_owned(), text.into().into_owned());
        let value = match name.as_str() {
            "historyLength" | "pageSize" => text.parse::<i64>().map_or(Value::String(text), Value::from),
            "includeArtifacts" => text.parse::<bool>().map_or(Value::String(text), Value::Bool),
            _ => Value::String(text),
        };
        object.insert(name, value);
    }
    Value::Object(object)
}

deserialize_by_decode!(
    SendMessageRequest,
    SendMessageConfiguration,
    SendMessageResponse,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    CancelTaskRequest,
    SubscribeToTaskRequest,
    GetExtendedAgentCardRequest,
);
