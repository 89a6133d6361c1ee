//! Encoding requests, which identify resources by name.

use serde::{Serialize, Serializer};

use super::{
    super::{
        super::model::{
            CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetTaskPushNotificationConfigRequest,
            GetTaskRequest, ListTaskPushNotificationConfigsRequest, ListTasksRequest,
            SendMessageConfiguration, SendMessageRequest, SubscribeToTaskRequest, TaskPushNotificationConfig,
        },
        PushNotificationConfig,
    },
    Proto,
    write::{object, only, state_name},
};

fn task_name(task: &str) -> String {
    format!("tasks/{task}")
}

fn config_name(task: &str, config: &str) -> String {
    format!("tasks/{task}/pushNotificationConfigs/{config}")
}

impl Serialize for Proto<&SendMessageRequest> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let request = self.0;
        object(serializer, |members| {
            members.put("message", &Proto(&request.message))?;
            members.put("configuration", &Proto(&request.configuration))?;
            members.metadata(&request.metadata)
        })
    }
}

impl Serialize for Proto<&SendMessageConfiguration> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let configuration = self.0;
        let push = configuration.task_push_notification_config.clone();
        object(serializer, |members| {
            members.texts("acceptedOutputModes", &configuration.accepted_output_modes)?;
            members.some(
                "pushNotification",
                push.map(PushNotificationConfig::from).as_ref(),
            )?;
            members.some("historyLength", configuration.history_length.as_ref())?;
            members.put("blocking", &!configuration.return_immediately)
        })
    }
}

impl Serialize for Proto<&GetTaskRequest> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        object(serializer, |members| {
            members.put("name", &task_name(&self.0.id))?;
            members.some("historyLength", self.0.history_length.as_ref())
        })
    }
}

impl Serialize for Proto<&ListTasksRequest> {
    /// The protocol buffers define no such request. This is the request of 1.0 with the state names of 0.3.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let request = self.0;
        object(serializer, |members| {
            members.some("contextId", request.context_id.as_ref())?;
            members.some("status", request.status.map(state_name).as_ref())?;
            members.some("pageSize", request.page_size.as_ref())?;
            members.some("pageToken", request.page_token.as_ref())?;
            members.some("historyLength", request.history_length.as_ref())?;
            members.some("statusTimestampAfter", request.status_timestamp_after.as_ref())?;
            if request.include_artifacts {
                members.put("includeArtifacts", &true)?;
            }
            Ok(())
        })
    }
}

impl Serialize for Proto<&CancelTaskRequest> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        only(serializer, "name", &task_name(&self.0.id))
    }
}

impl Serialize for Proto<&SubscribeToTaskRequest> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        only(serializer, "name", &task_name(&self.0.id))
    }
}

/// A push configuration to be created. An existing one is written in a different shape.
#[derive(Debug)]
pub(in super::super::super) struct NewConfig<'a>(pub(in super::super::super) &'a TaskPushNotificationConfig);

/// The configuration within a create request. The server assigns its name, but some servers reject an empty one.
struct Inner<'a>(&'a TaskPushNotificationConfig);

impl Serialize for Inner<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let config = self.0;
        let task = config.task_id.as_deref().unwrap_or_default();
        object(serializer, |members| {
            if let Some(id) = &config.id {
                members.put("name", &config_name(task, id))?;
            }
            members.put(
                "pushNotificationConfig",
                &PushNotificationConfig::from(config.clone()),
            )
        })
    }
}

impl Serialize for NewConfig<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let config = self.0;
        object(serializer, |members| {
            members.put(
                "parent",
                &task_name(config.task_id.as_deref().unwrap_or_default()),
            )?;
            members.some("configId", config.id.as_ref())?;
            members.put("config", &Inner(config))
        })
    }
}

impl Serialize for Proto<&GetTaskPushNotificationConfigRequest> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        only(serializer, "name", &config_name(&self.0.task_id, &self.0.id))
    }
}

impl Serialize for Proto<&DeleteTaskPushNotificationConfigRequest> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        only(serializer, "name", &config_name(&self.0.task_id, &self.0.id))
    }
}

impl Serialize for Proto<&ListTaskPushNotificationConfigsRequest> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        object(serializer, |members| {
            members.put("parent", &task_name(&self.0.task_id))?;
            members.some("pageSize", self.0.page_size.as_ref())?;
            members.some("pageToken", self.0.page_token.as_ref())
        })
    }
}
