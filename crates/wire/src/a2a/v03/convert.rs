//! Conversions of tasks, events, requests and push configurations. All of them are total; the parent module
//! lists what they lose.

use serde_json::Value;

use super::{
    super::model, Artifact, DeletePushNotificationConfigParams, FileBody, FileContent,
    GetPushNotificationConfigParams, ListPushNotificationConfigParams, Message, MessageSendConfiguration,
    MessageSendParams, Part, PushNotificationAuthenticationInfo, PushNotificationConfig, Role, SendResult,
    StreamEvent, Task, TaskArtifactUpdateEvent, TaskIdParams, TaskPushNotificationConfig, TaskQueryParams,
    TaskState, TaskStatus, TaskStatusUpdateEvent,
};
use crate::json::Object;

/// Marks a data part that wraps a value other than an object.
const COMPAT_FLAG: &str = "data_part_compat";
/// The member that holds the wrapped value.
const COMPAT_VALUE: &str = "value";

impl From<TaskState> for model::TaskState {
    fn from(state: TaskState) -> Self {
        match state {
            TaskState::Submitted => Self::Submitted,
            TaskState::Working => Self::Working,
            TaskState::InputRequired => Self::InputRequired,
            TaskState::Completed => Self::Completed,
            TaskState::Canceled => Self::Canceled,
            TaskState::Failed => Self::Failed,
            TaskState::Rejected => Self::Rejected,
            TaskState::AuthRequired => Self::AuthRequired,
            TaskState::Unknown => Self::Unspecified,
        }
    }
}

impl From<model::TaskState> for TaskState {
    fn from(state: model::TaskState) -> Self {
        match state {
            model::TaskState::Unspecified => Self::Unknown,
            model::TaskState::Submitted => Self::Submitted,
            model::TaskState::Working => Self::Working,
            model::TaskState::Completed => Self::Completed,
            model::TaskState::Failed => Self::Failed,
            model::TaskState::Canceled => Self::Canceled,
            model::TaskState::InputRequired => Self::InputRequired,
            model::TaskState::Rejected => Self::Rejected,
            model::TaskState::AuthRequired => Self::AuthRequired,
        }
    }
}

impl From<Role> for model::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::User => Self::User,
            Role::Agent => Self::Agent,
        }
    }
}

impl From<model::Role> for Role {
    fn from(role: model::Role) -> Self {
        match role {
            model::Role::User => Self::User,
            model::Role::Agent => Self::Agent,
        }
    }
}

fn each<A: Into<B>, B>(list: Vec<A>) -> Vec<B> {
    list.into_iter().map(Into::into).collect()
}

impl From<Part> for model::Part {
    fn from(part: Part) -> Self {
        match part {
            Part::Text { text, metadata } => Self {
                metadata,
                ..Self::text(text)
            },
            Part::File { file, metadata } => {
                let content = match file.body {
                    FileBody::Bytes(bytes) => model::PartContent::Raw(bytes),
                    FileBody::Uri(uri) => model::PartContent::Url(uri),
                };
                Self {
                    content,
                    media_type: file.mime_type,
                    filename: file.name,
                    metadata,
                }
            }
            Part::Data { data, metadata } => unbox_data(data, metadata),
        }
    }
}

/// Unwraps a value that [`boxed`] wrapped; other data is returned unchanged.
pub(super) fn unbox_data(mut data: Object, mut metadata: model::Metadata) -> model::Part {
    let is_box = metadata.get(COMPAT_FLAG) == Some(&Value::Bool(true)) && data.len() == 1;
    let boxed = if is_box { data.remove(COMPAT_VALUE) } else { None };
    let value = match boxed {
        Some(value) => {
            metadata.remove(COMPAT_FLAG);
            value
        }
        None => Value::Object(data),
    };
    model::Part {
        metadata,
        ..model::Part::data(value)
    }
}

/// Wraps a value other than an object, and marks it in the metadata.
pub(super) fn boxed(value: Value, mut metadata: model::Metadata) -> (Object, model::Metadata) {
    metadata.insert(COMPAT_FLAG.to_owned(), Value::Bool(true));
    (Object::from_iter([(COMPAT_VALUE.to_owned(), value)]), metadata)
}

impl From<model::Part> for Part {
    fn from(part: model::Part) -> Self {
        let model::Part {
            content,
            media_type,
            filename,
            metadata,
        } = part;
        let file = |body| FileContent {
            name: filename,
            mime_type: media_type,
            body,
        };
        match content {
            model::PartContent::Text(text) => Self::Text { text, metadata },
            model::PartContent::Raw(bytes) => Self::File {
                file: file(FileBody::Bytes(bytes)),
                metadata,
            },
            model::PartContent::Url(url) => Self::File {
                file: file(FileBody::Uri(url)),
                metadata,
            },
            model::PartContent::Data(Value::Object(data)) => Self::Data { data, metadata },
            model::PartContent::Data(value) => {
                let (data, metadata) = boxed(value, metadata);
                Self::Data { data, metadata }
            }
        }
    }
}

impl From<Message> for model::Message {
    fn from(message: Message) -> Self {
        Self {
            message_id: message.message_id,
            context_id: message.context_id,
            task_id: message.task_id,
            role: message.role.into(),
            parts: each(message.parts),
            metadata: message.metadata,
            extensions: message.extensions,
            reference_task_ids: message.reference_task_ids,
            unreadable: Vec::new(),
        }
    }
}

impl From<model::Message> for Message {
    fn from(message: model::Message) -> Self {
        Self {
            message_id: message.message_id,
            context_id: message.context_id,
            task_id: message.task_id,
            role: message.role.into(),
            parts: each(message.parts),
            metadata: message.metadata,
            extensions: message.extensions,
            reference_task_ids: message.reference_task_ids,
        }
    }
}

impl From<Artifact> for model::Artifact {
    fn from(artifact: Artifact) -> Self {
        Self {
            artifact_id: artifact.artifact_id,
            name: artifact.name,
            description: artifact.description,
            parts: each(artifact.parts),
            metadata: artifact.metadata,
            extensions: artifact.extensions,
        }
    }
}

impl From<model::Artifact> for Artifact {
    fn from(artifact: model::Artifact) -> Self {
        Self {
            artifact_id: artifact.artifact_id,
            name: artifact.name,
            description: artifact.description,
            parts: each(artifact.parts),
            metadata: artifact.metadata,
            extensions: artifact.extensions,
        }
    }
}

impl From<TaskStatus> for model::TaskStatus {
    fn from(status: TaskStatus) -> Self {
        Self {
            state: status.state.into(),
            message: status.message.map(Into::into),
            timestamp: status.timestamp,
        }
    }
}

impl From<model::TaskStatus> for TaskStatus {
    fn from(status: model::TaskStatus) -> Self {
        Self {
            state: status.state.into(),
            message: status.message.map(Into::into),
            timestamp: status.timestamp,
        }
    }
}

impl From<Task> for model::Task {
    fn from(task: Task) -> Self {
        Self {
            id: task.id,
            context_id: task.context_id,
            status: task.status.into(),
            artifacts: each(task.artifacts),
            history: each(task.history),
            metadata: task.metadata,
            unreadable: Vec::new(),
        }
    }
}

impl From<model::Task> for Task {
    fn from(task: model::Task) -> Self {
        Self {
            id: task.id,
            context_id: task.context_id,
            status: task.status.into(),
            artifacts: each(task.artifacts),
            history: each(task.history),
            metadata: task.metadata,
        }
    }
}

impl From<TaskStatusUpdateEvent> for model::TaskStatusUpdateEvent {
    fn from(event: TaskStatusUpdateEvent) -> Self {
        Self {
            task_id: event.task_id,
            context_id: event.context_id,
            status: event.status.into(),
            metadata: event.metadata,
            unreadable: Vec::new(),
        }
    }
}

impl TaskStatusUpdateEvent {
    /// Converts an event of the model. `is_final` marks the last event of a stream that closes before the
    /// task ends, such as at `input-required`; an event with a terminal state is always final.
    #[must_use]
    pub fn from_model(event: model::TaskStatusUpdateEvent, is_final: bool) -> Self {
        Self {
            task_id: event.task_id,
            context_id: event.context_id,
            is_final: is_final || event.status.state.is_terminal(),
            status: event.status.into(),
            metadata: event.metadata,
        }
    }
}

impl From<TaskArtifactUpdateEvent> for model::TaskArtifactUpdateEvent {
    fn from(event: TaskArtifactUpdateEvent) -> Self {
        Self {
            task_id: event.task_id,
            context_id: event.context_id,
            artifact: event.artifact.into(),
            append: event.append,
            last_chunk: event.last_chunk,
            metadata: event.metadata,
            unreadable: Vec::new(),
        }
    }
}

impl From<model::TaskArtifactUpdateEvent> for TaskArtifactUpdateEvent {
    fn from(event: model::TaskArtifactUpdateEvent) -> Self {
        Self {
            task_id: event.task_id,
            context_id: event.context_id,
            artifact: event.artifact.into(),
            append: event.append,
            last_chunk: event.last_chunk,
            metadata: event.metadata,
        }
    }
}

impl From<SendResult> for model::SendMessageResponse {
    fn from(result: SendResult) -> Self {
        match result {
            SendResult::Task(task) => Self::Task(task.into()),
            SendResult::Message(message) => Self::Message(message.into()),
        }
    }
}

impl From<model::SendMessageResponse> for SendResult {
    fn from(response: model::SendMessageResponse) -> Self {
        match response {
            model::SendMessageResponse::Task(task) => Self::Task(task.into()),
            model::SendMessageResponse::Message(message) => Self::Message(message.into()),
        }
    }
}

impl From<StreamEvent> for model::StreamResponse {
    fn from(event: StreamEvent) -> Self {
        match event {
            StreamEvent::Task(task) => Self::Task(task.into()),
            StreamEvent::Message(message) => Self::Message(message.into()),
            StreamEvent::StatusUpdate(event) => Self::StatusUpdate(event.into()),
            StreamEvent::ArtifactUpdate(event) => Self::ArtifactUpdate(event.into()),
        }
    }
}

impl StreamEvent {
    /// Converts an item of a stream; `is_final` as in [`TaskStatusUpdateEvent::from_model`].
    #[must_use]
    pub fn from_model(item: model::StreamResponse, is_final: bool) -> Self {
        match item {
            model::StreamResponse::Task(task) => Self::Task(task.into()),
            model::StreamResponse::Message(message) => Self::Message(message.into()),
            model::StreamResponse::StatusUpdate(event) => {
                Self::StatusUpdate(TaskStatusUpdateEvent::from_model(event, is_final))
            }
            model::StreamResponse::ArtifactUpdate(event) => Self::ArtifactUpdate(event.into()),
        }
    }
}

impl From<MessageSendParams> for model::SendMessageRequest {
    fn from(params: MessageSendParams) -> Self {
        Self {
            tenant: None,
            message: params.message.into(),
            configuration: params.configuration.unwrap_or_default().into(),
            metadata: params.metadata,
        }
    }
}

impl From<model::SendMessageRequest> for MessageSendParams {
    fn from(request: model::SendMessageRequest) -> Self {
        Self {
            message: request.message.into(),
            configuration: Some(request.configuration.into()),
            metadata: request.metadata,
        }
    }
}

impl From<MessageSendConfiguration> for model::SendMessageConfiguration {
    fn from(configuration: MessageSendConfiguration) -> Self {
        Self {
            accepted_output_modes: configuration.accepted_output_modes,
            task_push_notification_config: configuration
                .push_notification_config
                .map(|config| with_task(None, config)),
            history_length: configuration.history_length,
            return_immediately: configuration.blocking == Some(false),
        }
    }
}

impl From<model::SendMessageConfiguration> for MessageSendConfiguration {
    fn from(configuration: model::SendMessageConfiguration) -> Self {
        Self {
            accepted_output_modes: configuration.accepted_output_modes,
            push_notification_config: configuration.task_push_notification_config.map(Into::into),
            history_length: configuration.history_length,
            blocking: Some(!configuration.return_immediately),
        }
    }
}

impl From<TaskQueryParams> for model::GetTaskRequest {
    fn from(params: TaskQueryParams) -> Self {
        Self {
            tenant: None,
            id: params.id,
            history_length: params.history_length,
        }
    }
}

impl From<model::GetTaskRequest> for TaskQueryParams {
    fn from(request: model::GetTaskRequest) -> Self {
        Self {
            id: request.id,
            history_length: request.history_length,
            metadata: model::Metadata::new(),
        }
    }
}

impl From<TaskIdParams> for model::CancelTaskRequest {
    fn from(params: TaskIdParams) -> Self {
        Self {
            tenant: None,
            id: params.id,
            metadata: params.metadata,
        }
    }
}

impl From<model::CancelTaskRequest> for TaskIdParams {
    fn from(request: model::CancelTaskRequest) -> Self {
        Self {
            id: request.id,
            metadata: request.metadata,
        }
    }
}

impl From<TaskIdParams> for model::SubscribeToTaskRequest {
    fn from(params: TaskIdParams) -> Self {
        Self {
            tenant: None,
            id: params.id,
        }
    }
}

impl From<model::SubscribeToTaskRequest> for TaskIdParams {
    fn from(request: model::SubscribeToTaskRequest) -> Self {
        Self {
            id: request.id,
            metadata: model::Metadata::new(),
        }
    }
}

/// Converts a configuration to the model, with its task if known.
pub(super) fn with_task(
    task_id: Option<String>,
    config: PushNotificationConfig,
) -> model::TaskPushNotificationConfig {
    model::TaskPushNotificationConfig {
        tenant: None,
        id: config.id,
        task_id,
        url: config.url,
        token: config.token,
        authentication: config.authentication.and_then(first_scheme),
    }
}

fn first_scheme(info: PushNotificationAuthenticationInfo) -> Option<model::AuthenticationInfo> {
    let scheme = info.schemes.into_iter().find(|scheme| !scheme.is_empty())?;
    Some(model::AuthenticationInfo {
        scheme,
        credentials: info.credentials,
    })
}

impl From<model::TaskPushNotificationConfig> for PushNotificationConfig {
    fn from(config: model::TaskPushNotificationConfig) -> Self {
        Self {
            id: config.id,
            url: config.url,
            token: config.token,
            authentication: config
                .authentication
                .map(|info| PushNotificationAuthenticationInfo {
                    schemes: vec![info.scheme],
                    credentials: info.credentials,
                }),
        }
    }
}

impl From<TaskPushNotificationConfig> for model::TaskPushNotificationConfig {
    fn from(config: TaskPushNotificationConfig) -> Self {
        with_task(Some(config.task_id), config.push_notification_config)
    }
}

impl From<model::TaskPushNotificationConfig> for TaskPushNotificationConfig {
    /// A configuration without a task, which only send requests have, gets an empty task id.
    fn from(mut config: model::TaskPushNotificationConfig) -> Self {
        Self {
            task_id: config.task_id.take().unwrap_or_default(),
            push_notification_config: config.into(),
        }
    }
}

impl From<model::GetTaskPushNotificationConfigRequest> for GetPushNotificationConfigParams {
    fn from(request: model::GetTaskPushNotificationConfigRequest) -> Self {
        Self {
            id: request.task_id,
            push_notification_config_id: Some(request.id),
        }
    }
}

impl From<ListPushNotificationConfigParams> for model::ListTaskPushNotificationConfigsRequest {
    fn from(params: ListPushNotificationConfigParams) -> Self {
        Self {
            tenant: None,
            task_id: params.id,
            page_size: None,
            page_token: None,
        }
    }
}

impl From<model::ListTaskPushNotificationConfigsRequest> for ListPushNotificationConfigParams {
    fn from(request: model::ListTaskPushNotificationConfigsRequest) -> Self {
        Self { id: request.task_id }
    }
}

impl From<DeletePushNotificationConfigParams> for model::DeleteTaskPushNotificationConfigRequest {
    fn from(params: DeletePushNotificationConfigParams) -> Self {
        Self {
            tenant: None,
            task_id: params.id,
            id: params.push_notification_config_id,
        }
    }
}

impl From<model::DeleteTaskPushNotificationConfigRequest> for DeletePushNotificationConfigParams {
    fn from(request: model::DeleteTaskPushNotificationConfigRequest) -> Self {
        Self {
            id: request.task_id,
            push_notification_config_id: request.id,
        }
    }
}
