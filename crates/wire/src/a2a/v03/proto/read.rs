//! Decoding tasks, messages, events and the other responses of a server.

use serde_json::Value;

use super::{
    super::{
        super::model::{
            Artifact, ListTaskPushNotificationConfigsResponse, ListTasksResponse, Message, Metadata, Part,
            PartContent, SendMessageResponse, StreamResponse, Task, TaskArtifactUpdateEvent,
            TaskPushNotificationConfig, TaskState, TaskStatus, TaskStatusUpdateEvent, decode_base64,
        },
        PushNotificationConfig,
        convert::{unbox_data, with_task},
    },
    Proto, request,
};
use crate::json::{Decode, DecodeError, Fields, Object};

/// The only state whose name differs from 1.0.
pub(super) const CANCELLED: &str = "TASK_STATE_CANCELLED";

/// Unwraps the elements of a list.
fn each<T>(list: Vec<Proto<T>>) -> Vec<T> {
    list.into_iter().map(|Proto(value)| value).collect()
}

fn optional<T>(fields: &mut Fields, name: &str) -> Result<Option<T>, DecodeError>
where
    Proto<T>: Decode,
{
    Ok(fields.optional::<Proto<T>>(name)?.map(|Proto(value)| value))
}

pub(super) fn required<T>(fields: &mut Fields, name: &str) -> Result<T, DecodeError>
where
    Proto<T>: Decode,
{
    Ok(fields.required::<Proto<T>>(name)?.0)
}

impl Decode for Proto<TaskState> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let refused = || DecodeError::invalid("must be a task state of A2A 0.3");
        let name = String::decode(value)?;
        if name == CANCELLED {
            return Ok(Self(TaskState::Canceled));
        }
        match TaskState::from_name(&name) {
            Some(TaskState::Canceled) | None => Err(refused()),
            Some(state) => Ok(Self(state)),
        }
    }
}

impl Decode for Proto<Part> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let metadata: Metadata = fields.or_default("metadata")?;
        let (name, value) = fields.exactly_one(&["text", "file", "data"])?;
        let part = match name {
            "text" => String::decode(value).map(|text| Part {
                metadata,
                ..Part::text(text)
            }),
            "file" => file(value, metadata),
            _ => Fields::of(value)
                .and_then(|mut fields| fields.or_default::<Object>("data"))
                .map(|data| unbox_data(data, metadata)),
        };
        part.map(Self).map_err(|error| error.in_field(name))
    }
}

fn file(value: Value, metadata: Metadata) -> Result<Part, DecodeError> {
    let mut fields = Fields::of(value)?;
    let (name, value) = fields.exactly_one(&["fileWithUri", "fileWithBytes"])?;
    let content = String::decode(value)
        .and_then(|text| match name {
            "fileWithUri" => Ok(PartContent::Url(text)),
            _ => decode_base64(&text).map(PartContent::Raw),
        })
        .map_err(|error| error.in_field(name))?;
    Ok(Part {
        content,
        media_type: fields.optional_text("mimeType")?,
        filename: fields.optional_text("name")?,
        metadata,
    })
}

impl Decode for Proto<Message> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self(Message {
            message_id: fields.required_text("messageId")?,
            context_id: fields.optional_text("contextId")?,
            task_id: fields.optional_text("taskId")?,
            role: fields.required("role")?,
            parts: each(fields.or_default("content")?),
            metadata: fields.or_default("metadata")?,
            extensions: fields.or_default("extensions")?,
            reference_task_ids: Vec::new(),
            unreadable: Vec::new(),
        }))
    }
}

impl Decode for Proto<Artifact> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self(Artifact {
            artifact_id: fields.required_text("artifactId")?,
            name: fields.optional_text("name")?,
            description: fields.optional_text("description")?,
            parts: each(fields.or_default("parts")?),
            metadata: fields.or_default("metadata")?,
            extensions: fields.or_default("extensions")?,
        }))
    }
}

impl Decode for Proto<TaskStatus> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self(TaskStatus {
            state: fields
                .if_valid("state")
                .map_or(TaskState::Unspecified, |Proto(state)| state),
            message: optional(&mut fields, "message")?,
            timestamp: fields.if_valid("timestamp"),
        }))
    }
}

impl Decode for Proto<Task> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self(Task {
            id: fields.required_text("id")?,
            context_id: fields.or_default("contextId")?,
            status: required(&mut fields, "status")?,
            artifacts: each(fields.or_default("artifacts")?),
            history: each(fields.or_default("history")?),
            metadata: fields.or_default("metadata")?,
            unreadable: Vec::new(),
        }))
    }
}

impl Decode for Proto<TaskStatusUpdateEvent> {
    /// Ignores `final`: the model derives the end of the stream from the task state.
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self(TaskStatusUpdateEvent {
            task_id: fields.required_text("taskId")?,
            context_id: fields.or_default("contextId")?,
            status: required(&mut fields, "status")?,
            metadata: fields.or_default("metadata")?,
            unreadable: Vec::new(),
        }))
    }
}

impl Decode for Proto<TaskArtifactUpdateEvent> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self(TaskArtifactUpdateEvent {
            task_id: fields.required_text("taskId")?,
            context_id: fields.or_default("contextId")?,
            artifact: required(&mut fields, "artifact")?,
            append: fields.or_default("append")?,
            last_chunk: fields.or_default("lastChunk")?,
            metadata: fields.or_default("metadata")?,
            unreadable: Vec::new(),
        }))
    }
}

impl Decode for Proto<SendMessageResponse> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let (name, value) = fields.exactly_one(&["task", "message"])?;
        let response = match name {
            "task" => Proto::decode(value).map(|Proto(task)| SendMessageResponse::Task(task)),
            _ => Proto::decode(value).map(|Proto(message)| SendMessageResponse::Message(message)),
        };
        response.map(Self).map_err(|error| error.in_field(name))
    }
}

impl Decode for Proto<StreamResponse> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let (name, value) = fields.exactly_one(&["task", "message", "statusUpdate", "artifactUpdate"])?;
        let response = match name {
            "task" => Proto::decode(value).map(|Proto(task)| StreamResponse::Task(task)),
            "message" => Proto::decode(value).map(|Proto(message)| StreamResponse::Message(message)),
            "statusUpdate" => Proto::decode(value).map(|Proto(event)| StreamResponse::StatusUpdate(event)),
            _ => Proto::decode(value).map(|Proto(event)| StreamResponse::ArtifactUpdate(event)),
        };
        response.map(Self).map_err(|error| error.in_field(name))
    }
}

impl Decode for Proto<ListTasksResponse> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self(ListTasksResponse {
            tasks: each(fields.or_default("tasks")?),
            next_page_token: fields.or_default("nextPageToken")?,
            page_size: fields.or_default("pageSize")?,
            total_size: fields.or_default("totalSize")?,
        }))
    }
}

/// Decodes an existing push configuration, whose `name` contains the task and the id.
pub(in super::super::super) fn known_config(value: Value) -> Result<TaskPushNotificationConfig, DecodeError> {
    let mut fields = Fields::of(value)?;
    let Proto(config) = fields.required::<Proto<PushNotificationConfig>>("pushNotificationConfig")?;
    let name: String = fields.required("name")?;
    let (task, id) = request::config_name(&name).map_err(|error| error.in_field("name"))?;
    Ok(TaskPushNotificationConfig {
        id: Some(id),
        ..with_task(Some(task), config)
    })
}

struct Known(TaskPushNotificationConfig);

impl Decode for Known {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        known_config(value).map(Self)
    }
}

impl Decode for Proto<ListTaskPushNotificationConfigsResponse> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let configs: Vec<Known> = fields.or_default("configs")?;
        Ok(Self(ListTaskPushNotificationConfigsResponse {
            configs: configs.into_iter().map(|Known(config)| config).collect(),
            next_page_token: fields.or_default("nextPageToken")?,
        }))
    }
}
