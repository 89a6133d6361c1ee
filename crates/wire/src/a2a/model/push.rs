//! Push notification configurations (A2A 1.0 section 4.3).
//!
//! Tokens and credentials end up in HTTP headers, so control characters in them are refused here. They
//! are [`Secret`]: written on the wire, never shown by `Debug`. Whether a URL may be called is the
//! egress gate's question.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::request::page_size;
use crate::json::{Decode, DecodeError, Fields, deserialize_by_decode};

/// A text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text; it must fit an HTTP header.
    ///
    /// # Errors
    /// When it has control characters, which could smuggle a header.
    pub fn new(text: impl Into<String>) -> Result<Self, DecodeError> {
        let text = text.into();
        if text.chars().any(char::is_control) {
            return Err(DecodeError::invalid("must not have control characters"));
        }
        Ok(Self(text))
    }

    /// The text itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Decode for Secret {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        Self::new(String::decode(value)?)
    }
}

/// How to authenticate to the receiver: `Authorization: {scheme} {credentials}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthenticationInfo {
    /// The HTTP scheme, such as `Bearer`.
    pub scheme: String,
    /// What goes after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Secret>,
}

impl Decode for AuthenticationInfo {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let scheme = fields.required_text("scheme")?;
        check_scheme(&scheme).map_err(|error| error.in_field("scheme"))?;
        Ok(Self {
            scheme,
            credentials: fields.optional("credentials")?,
        })
    }
}

/// Requires a scheme to be one word without control characters.
pub(crate) fn check_scheme(scheme: &str) -> Result<(), DecodeError> {
    if scheme.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(DecodeError::invalid("must be one word"));
    }
    Ok(())
}

/// Where and how to push the updates of a task. Also the request and the response that create one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskPushNotificationConfig {
    /// The tenant the client addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Names the configuration within its task; the server makes one when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The task; absent only when sent along with the message that makes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// Where to post.
    pub url: String,
    /// What the receiver recognises the notification by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// How to authenticate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication: Option<AuthenticationInfo>,
}

impl TaskPushNotificationConfig {
    /// The task, which `CreateTaskPushNotificationConfig` requires.
    ///
    /// # Errors
    /// A field violation of `taskId` when it is absent.
    pub fn require_task_id(&self) -> Result<&str, DecodeError> {
        self.task_id
            .as_deref()
            .ok_or_else(|| DecodeError::missing().in_field("taskId"))
    }
}

impl Decode for TaskPushNotificationConfig {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            tenant: fields.optional_text("tenant")?,
            id: fields.optional_text("id")?,
            task_id: fields.optional_text("taskId")?,
            url: fields.required_text("url")?,
            token: fields
                .optional::<Secret>("token")?
                .filter(|token| !token.0.is_empty()),
            authentication: fields.optional("authentication")?,
        })
    }
}

/// `GetTaskPushNotificationConfig`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GetTaskPushNotificationConfigRequest {
    /// The tenant the client addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The task.
    pub task_id: String,
    /// The configuration.
    pub id: String,
}

impl Decode for GetTaskPushNotificationConfigRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            tenant: fields.optional_text("tenant")?,
            task_id: fields.required_text("taskId")?,
            id: fields.required_text("id")?,
        })
    }
}

/// `DeleteTaskPushNotificationConfig`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteTaskPushNotificationConfigRequest {
    /// The tenant the client addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The task.
    pub task_id: String,
    /// The configuration.
    pub id: String,
}

impl Decode for DeleteTaskPushNotificationConfigRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            tenant: fields.optional_text("tenant")?,
            task_id: fields.required_text("taskId")?,
            id: fields.required_text("id")?,
        })
    }
}

/// `ListTaskPushNotificationConfigs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListTaskPushNotificationConfigsRequest {
    /// The tenant the client addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The task.
    pub task_id: String,
    /// At most so many, 1 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<u32>,
    /// Where the page before this one ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_token: Option<String>,
}

impl Decode for ListTaskPushNotificationConfigsRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            tenant: fields.optional_text("tenant")?,
            task_id: fields.required_text("taskId")?,
            page_size: page_size(&mut fields)?,
            page_token: fields.optional_text("pageToken")?,
        })
    }
}

/// A page of configurations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListTaskPushNotificationConfigsResponse {
    /// The configurations.
    pub configs: Vec<TaskPushNotificationConfig>,
    /// What to ask for next; empty on the last page.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next_page_token: String,
}

impl Decode for ListTaskPushNotificationConfigsResponse {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            configs: fields.or_default("configs")?,
            next_page_token: fields.or_default("nextPageToken")?,
        })
    }
}

deserialize_by_decode!(
    Secret,
    AuthenticationInfo,
    TaskPushNotificationConfig,
    GetTaskPushNotificationConfigRequest,
    DeleteTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
);
