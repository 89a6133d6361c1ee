//! Requests and responses of the task operations (A2A 1.0 section 3).
//!
//! Decoding checks numbers: a negative history length or a page size outside 1 to 100 is a field violation.
//! The client chooses `tenant`, so it grants nothing.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use super::{Message, Metadata, Task, TaskPushNotificationConfig, TaskState, is_default, is_false};
use crate::{
    json::{self, Decode, DecodeError, Fields, Object, deserialize_by_decode},
    time::Timestamp,
};

const MAX_PAGE_SIZE: u32 = 100;

/// Parameters of `SendMessage` and `SendStreamingMessage`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SendMessageRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Must have at least one part.
    pub message: Message,
    #[serde(skip_serializing_if = "is_default")]
    pub configuration: SendMessageConfiguration,
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

/// Options for the reply to a message.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SendMessageConfiguration {
    /// Media types the client accepts; empty means any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accepted_output_modes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_push_notification_config: Option<TaskPushNotificationConfig>,
    /// The number of most recent messages to include; absent lets the agent choose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_length: Option<u32>,
    /// Return at once instead of waiting until the task ends or is interrupted.
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

/// On the wire, an object with exactly one member.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SendMessageResponse {
    /// The task that the message created or continued.
    Task(Task),
    /// The agent replied without a task.
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

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GetTaskRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    pub id: String,
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

/// A task must match all filters.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListTasksRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<TaskState>,
    /// 1 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<u32>,
    /// The `next_page_token` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_token: Option<String>,
    /// The number of most recent messages to include per task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_length: Option<u32>,
    /// Only tasks whose status changed at or after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_timestamp_after: Option<Timestamp>,
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

/// The size of a page where 0 means that none is set, since the field has no presence in Protobuf.
pub(super) fn page_size_or_unset(fields: &mut Fields) -> Result<Option<u32>, DecodeError> {
    let size: Option<u32> = fields.optional("pageSize")?;
    in_bounds(size.filter(|size| *size != 0))
}

fn page_size(fields: &mut Fields) -> Result<Option<u32>, DecodeError> {
    in_bounds(fields.optional("pageSize")?)
}

fn in_bounds(size: Option<u32>) -> Result<Option<u32>, DecodeError> {
    if size.is_some_and(|size| size == 0 || size > MAX_PAGE_SIZE) {
        return Err(DecodeError::invalid("must lie between 1 and 100").in_field("pageSize"));
    }
    Ok(size)
}

/// A page of tasks. All four fields are always written.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListTasksResponse {
    /// Most recently changed first.
    pub tasks: Vec<Task>,
    /// Empty on the last page.
    pub next_page_token: String,
    /// The maximum size of the page.
    pub page_size: u32,
    /// The number of matching tasks on all pages.
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

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CancelTaskRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    pub id: String,
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

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscribeToTaskRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
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

/// Clients often send no parameters.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GetExtendedAgentCardRequest {
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

/// Converts decoded query parameters of the HTTP+JSON binding to the object that requests are decoded from.
///
/// The field name determines which values are numbers or booleans. A value that does not parse stays a
/// string, so that decoding reports it under its name. If a name repeats, the last value wins.
pub fn query_object<'a, K, V>(pairs: impl IntoIterator<Item = (K, V)>) -> Value
where
    K: Into<Cow<'a, str>>,
    V: Into<Cow<'a, str>>,
{
    let mut object = Object::new();
    for (name, text) in pairs {
        let (name, text) = (name.into().into_owned(), text.into().into_owned());
        let value = match name.as_str() {
            "historyLength" | "pageSize" => {
                let number = json::integer_in(&text).and_then(|number| i64::try_from(number).ok());
                number.map_or(Value::String(text), Value::from)
            }
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
