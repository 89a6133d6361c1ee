//! Parameters of the 0.3 methods, and push configurations.

use serde::Serialize;
use serde_json::Value;

use super::{
    super::model::{Metadata, Secret, check_scheme},
    Message,
};
use crate::json::{Decode, DecodeError, Fields, deserialize_by_decode};

/// Parameters of `message/send` and `message/stream`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageSendParams {
    /// Must have at least one part.
    pub message: Message,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<MessageSendConfiguration>,
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

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageSendConfiguration {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accepted_output_modes: Vec<String>,
    /// The number of most recent messages to include.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_length: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push_notification_config: Option<PushNotificationConfig>,
    /// The client waits for the result; absent means `true`.
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

/// Parameters of `tasks/get`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskQueryParams {
    pub id: String,
    /// The number of most recent messages to include.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_length: Option<u32>,
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

/// Parameters of `tasks/cancel` and `tasks/resubscribe`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskIdParams {
    pub id: String,
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PushNotificationConfig {
    /// The id within the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub url: String,
    /// The receiver uses it to recognize notifications.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
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

/// Sent to the receiver as `Authorization: {scheme} {credentials}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PushNotificationAuthenticationInfo {
    /// Schemes the receiver accepts; the first is used.
    pub schemes: Vec<String>,
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

/// A push configuration with its task: parameters and result of `set`, result of `get`, and element of the
/// result of `list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskPushNotificationConfig {
    pub task_id: String,
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GetPushNotificationConfigParams {
    pub id: String,
    /// Absent lets the server choose. Required in 1.0.
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListPushNotificationConfigParams {
    pub id: String,
}

impl Decode for ListPushNotificationConfigParams {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        Ok(Self {
            id: Fields::of(value)?.required_text("id")?,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletePushNotificationConfigParams {
    pub id: String,
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
