//! Push notification configurations (A2A 1.0 section 4.3).
//!
//! Tokens and credentials become HTTP headers, so control characters in them are rejected. They are
//! [`Secret`]: serialized, but hidden by `Debug`. This module does not check URLs; the egress gate decides
//! which may be called.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::request::page_size_or_unset;
use crate::json::{Decode, DecodeError, Fields, deserialize_by_decode};

/// A string that `Debug` hides.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a string that must be valid in an HTTP header.
    ///
    /// # Errors
    /// Returns an error if the string contains control characters, which could inject a header.
    pub fn new(text: impl Into<String>) -> Result<Self, DecodeError> {
        let text = text.into();
        if text.chars().any(char::is_control) {
            return Err(DecodeError::invalid("must not have control characters"));
        }
        Ok(Self(text))
    }

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

/// Sent to the receiver as `Authorization: {scheme} {credentials}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthenticationInfo {
    /// The HTTP authentication scheme, such as `Bearer`.
    pub scheme: String,
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

/// Where and how to push the updates of a task; also the request that creates the configuration, and its response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskPushNotificationConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The id within the task; the server generates one if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Absent only in the configuration of a `SendMessage` request, which creates the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    pub url: String,
    /// The receiver uses it to recognize notifications.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication: Option<AuthenticationInfo>,
}

impl TaskPushNotificationConfig {
    /// The task id, which `CreateTaskPushNotificationConfig` requires.
    ///
    /// # Errors
    /// Returns a field violation of `taskId` if it is absent.
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GetTaskPushNotificationConfigRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    pub task_id: String,
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteTaskPushNotificationConfigRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    pub task_id: String,
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListTaskPushNotificationConfigsRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    pub task_id: String,
    /// 1 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<u32>,
    /// The `next_page_token` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_token: Option<String>,
}

impl Decode for ListTaskPushNotificationConfigsRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            tenant: fields.optional_text("tenant")?,
            task_id: fields.required_text("taskId")?,
            page_size: page_size_or_unset(&mut fields)?,
            page_token: fields.optional_text("pageToken")?,
        })
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListTaskPushNotificationConfigsResponse {
    pub configs: Vec<TaskPushNotificationConfig>,
    /// Empty on the last page.
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
