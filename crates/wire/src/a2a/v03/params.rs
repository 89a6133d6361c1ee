//! The parameters of the 0.3 methods, and its push configurations.

use serde::Serialize;
use serde_json::Value;

use super::{
    super::model::{Metadata, Secret, check_scheme},
    Message,
};
use crate::json::{Decode, DecodeError, Fields, deserialize_by_decode};

/// `message/send` and `message/stream`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageSendParams {
    /// The message, with at least one part.
    pub message: Message,
    /// How to answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<MessageSendConfiguration>,
    /// Free-form data.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
}

impl Decode for MessageSendParams {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let message: Message = fields.required("message")?;
        if message.parts.is_empty() {
            let error = DecodeError::invalid("must have at least one part");
            return Err(error.in_field("parts").in_field("message"));
        }
        Ok(Self {
            message,
            configuration: fields.optional("configuration")?,
            metadata: fields.or_default("metadata")?,
        })
    }
}

/// How the agent should answer a message.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageSendConfiguration {
    /// The media types the client understands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accepted_output_modes: Vec<String>,
    /// How many of the latest messages to include.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_length: Option<u32>,
    /// Where to push the updates of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push_notification_config: Option<PushNotificationConfig>,
    /// Claims that the client waits; absent means it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocking: Option<bool>,
}

impl Decode for MessageSendConfiguration {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            accepted_output_modes: fields.or_default("acceptedOutputModes")?,
            history_length: fields.optional("historyLength")?,
            push_notification_config: fields.optional("pushNotificationConfig")?,
            blocking: fields.optional("blocking")?,
        })
    }
}

/// `tasks/get`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskQueryParams {
    /// The task.
    pub id: String,
    /// How many of the latest messages to include.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_length: Option<u32>,
    /// Free-form data.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
}

impl Decode for TaskQueryParams {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            id: fields.required_text("id")?,
            history_length: fields.optional("historyLength")?,
            metadata: fields.or_default("metadata")?,
        })
    }
}

/// `tasks/cancel` and `tasks/resubscribe`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskIdParams {
    /// The task.
    pub id: String,
    /// Free-form data.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
}

impl Decode for TaskIdParams {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            id: fields.required_text("id")?,
            metadata: fields.or_default("metadata")?,
        })
    }
}

/// Where and how to push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PushNotificationConfig {
    /// Names the configuration within its task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Where to post.
    pub url: String,
    /// What the receiver recognises the notification by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// How to authenticate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication: Option<PushNotificationAuthenticationInfo>,
}

impl Decode for PushNotificationConfig {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            id: fields.optional_text("id")?,
            url: fields.required_text("url")?,
            token: fields
                .optional::<Secret>("token")?
                .filter(|token| !token.expose().is_empty()),
            authentication: fields.optional("authentication")?,
        })
    }
}

/// How to authenticate to the receiver of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PushNotificationAuthenticationInfo {
    /// The schemes the receiver takes; the first is used.
    pub schemes: Vec<String>,
    /// What goes after the scheme.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Secret>,
}

impl Decode for PushNotificationAuthenticationInfo {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let schemes: Vec<String> = fields.required("schemes")?;
        for (index, scheme) in schemes.iter().enumerate() {
            check_scheme(scheme).map_err(|error| error.in_element(index).in_field("schemes"))?;
        }
        Ok(Self {
            schemes,
            credentials: fields.optional("credentials")?,
        })
    }
}

/// A push configuration and its task: the parameters and the result of `set`, the result of `get`, and an
/// element of the result of `list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskPushNotificationConfig {
    /// The task.
    pub task_id: String,
    /// The configuration.
    pub push_notification_config: PushNotificationConfig,
}

impl Decode for TaskPushNotificationConfig {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            task_id: fields.required_text("taskId")?,
            push_notification_config: fields.required("pushNotificationConfig")?,
        })
    }
}

/// `tasks/pushNotificationConfig/get`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GetPushNotificationConfigParams {
    /// The task.
    pub id: String,
    /// The configuration; absent means the one the server chooses, which 1.0 does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push_notification_config_id: Option<String>,
}

impl Decode for GetPushNotificationConfigParams {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            id: fields.required_text("id")?,
            push_notification_config_id: fields.optional_text("pushNotificationConfigId")?,
        })
    }
}

/// `tasks/pushNotificationConfig/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListPushNotificationConfigParams {
    /// The task.
    pub id: String,
}

impl Decode for ListPushNotificationConfigParams {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        Ok(Self {
            id: Fields::of(value)?.required_text("id")?,
        })
    }
}

/// `tasks/pushNotificationConfig/delete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletePushNotificationConfigParams {
    /// The task.
    pub id: String,
    /// The configuration.
    pub push_notification_config_id: String,
}

impl Decode for DeletePushNotificationConfigParams {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            id: fields.required_text("id")?,
            push_notification_config_id: fields.required_text("pushNotificationConfigId")?,
        })
    }
}

deserialize_by_decode!(
    MessageSendParams,
    MessageSendConfiguration,
    TaskQueryParams,
    TaskIdParams,
    PushNotificationConfig,
    PushNotificationAuthenticationInfo,
    TaskPushNotificationConfig,
    GetPushNotificationConfigParams,
    ListPushNotificationConfigParams,
    DeletePushNotificationConfigParams,
);
