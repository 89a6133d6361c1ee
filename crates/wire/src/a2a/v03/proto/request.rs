//! Decoding requests, which identify resources by name: `tasks/{id}` and `tasks/{id}/pushNotificationConfigs/{id}`.

use serde_json::{Value, json};

use super::{
    super::{
        super::model::{
            CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetTaskRequest,
            ListTaskPushNotificationConfigsRequest, ListTasksRequest, Message, Metadata,
            SendMessageConfiguration, SendMessageRequest, SubscribeToTaskRequest, TaskPushNotificationConfig,
            TaskState,
        },
        PushNotificationConfig,
        convert::with_task,
    },
    Proto, read,
};
use crate::json::{Decode, DecodeError, Fields, Object};

impl Decode for Proto<SendMessageRequest> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let message: Message = read::required(&mut fields, "message")?;
        if message.parts.is_empty() {
            let error = DecodeError::invalid("must have at least one part");
            return Err(error.in_field("content").in_field("message"));
        }
        // An absent configuration means the same as an empty one: non-blocking.
        let configuration = fields.optional::<Proto<_>>("configuration")?;
        let Proto(configuration) = match configuration {
            Some(configuration) => configuration,
            None => Proto::decode(Value::Object(Object::new()))?,
        };
        Ok(Self(SendMessageRequest {
            tenant: None,
            message,
            configuration,
            metadata: fields.or_default("metadata")?,
        }))
    }
}

impl Decode for Proto<SendMessageConfiguration> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let push = fields.optional::<Proto<PushNotificationConfig>>("pushNotification")?;
        let is_blocking: bool = fields.or_default("blocking")?;
        Ok(Self(SendMessageConfiguration {
            accepted_output_modes: fields.or_default("acceptedOutputModes")?,
            task_push_notification_config: push.map(|Proto(config)| with_task(None, config)),
            history_length: fields.optional("historyLength")?,
            return_immediately: !is_blocking,
        }))
    }
}

impl Decode for Proto<PushNotificationConfig> {
    /// Like the JSON-RPC document, except that an empty list may be absent.
    fn decode(mut value: Value) -> Result<Self, DecodeError> {
        if let Some(authentication) = value.get_mut("authentication").and_then(Value::as_object_mut) {
            authentication.entry("schemes").or_insert_with(|| json!([]));
        }
        PushNotificationConfig::decode(value).map(Self)
    }
}

/// Parses the name of a task.
fn task_name(name: &str) -> Result<String, DecodeError> {
    match name.strip_prefix("tasks/") {
        Some(task) if !task.is_empty() && !task.contains('/') => Ok(task.to_owned()),
        Some(_) | None => Err(DecodeError::invalid("must be tasks/{id}")),
    }
}

/// Parses the name of a push configuration.
pub(super) fn config_name(name: &str) -> Result<(String, String), DecodeError> {
    let parts: Vec<_> = name.split('/').collect();
    match parts.as_slice() {
        ["tasks", task, "pushNotificationConfigs", config] if !task.is_empty() && !config.is_empty() => {
            Ok(((*task).to_owned(), (*config).to_owned()))
        }
        _ => Err(DecodeError::invalid(
            "must be tasks/{id}/pushNotificationConfigs/{id}",
        )),
    }
}

/// Takes a member that holds the name of a task.
fn task(fields: &mut Fields, field: &str) -> Result<String, DecodeError> {
    let name: String = fields.required(field)?;
    task_name(&name).map_err(|error| error.in_field(field))
}

/// Takes the name of a push configuration: its task and its own id.
pub(in super::super::super) fn config(value: Value) -> Result<(String, String), DecodeError> {
    let name: String = Fields::of(value)?.required("name")?;
    config_name(&name).map_err(|error| error.in_field("name"))
}

impl Decode for Proto<GetTaskRequest> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self(GetTaskRequest {
            tenant: None,
            id: task(&mut fields, "name")?,
            history_length: fields.optional("historyLength")?,
        }))
    }
}

impl Decode for Proto<ListTasksRequest> {
    /// The protocol buffers define no such request. This is the request of 1.0 with the state names of 0.3.
    fn decode(mut value: Value) -> Result<Self, DecodeError> {
        let named = value.get_mut("status").filter(|status| **status != "");
        if let Some(status) = named {
            let Proto(state) =
                Proto::<TaskState>::decode(status.take()).map_err(|error| error.in_field("status"))?;
            *status = state.as_str().into();
        }
        ListTasksRequest::decode(value).map(Self)
    }
}

impl Decode for Proto<CancelTaskRequest> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        Ok(Self(CancelTaskRequest {
            tenant: None,
            id: task(&mut Fields::of(value)?, "name")?,
            metadata: Metadata::new(),
        }))
    }
}

impl Decode for Proto<SubscribeToTaskRequest> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        Ok(Self(SubscribeToTaskRequest {
            tenant: None,
            id: task(&mut Fields::of(value)?, "name")?,
        }))
    }
}

impl Decode for Proto<TaskPushNotificationConfig> {
    /// Decodes both forms of a create request in use: the complete request (`parent`, `configId`, `config`),
    /// or the configuration alone with the task in `parent`.
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let task = task(&mut fields, "parent")?;
        let id = fields.optional_text("configId")?;
        let config = if fields.has("config") {
            let mut inner: Fields =
                Fields::of(fields.required("config")?).map_err(|error| error.in_field("config"))?;
            inner
                .required::<Proto<PushNotificationConfig>>("pushNotificationConfig")
                .map_err(|error| error.in_field("config"))?
        } else {
            fields.required("pushNotificationConfig")?
        };
        let Proto(mut config) = config;
        // Ignore the `name` a client sends: the id comes from `configId`, from the configuration, or from the server.
        config.id = id.or(config.id);
        Ok(Self(with_task(Some(task), config)))
    }
}

impl Decode for Proto<DeleteTaskPushNotificationConfigRequest> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let (task_id, id) = config(value)?;
        Ok(Self(DeleteTaskPushNotificationConfigRequest {
            tenant: None,
            task_id,
            id,
        }))
    }
}

impl Decode for Proto<ListTaskPushNotificationConfigsRequest> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let task_id = task(&mut fields, "parent")?;
        let rest = json!({
            "taskId": task_id,
            "pageSize": fields.take("pageSize"),
            "pageToken": fields.take("pageToken"),
        });
        ListTaskPushNotificationConfigsRequest::decode(rest).map(Self)
    }
}
