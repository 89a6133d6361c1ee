//! The A2A 1.0 model: tasks, messages, parts, events, requests and agent cards.
//!
//! Reading follows ProtoJSON: unknown fields are ignored, absent and `null` fields take their default,
//! names are camelCase, enums are read by name. Writing omits default values, except where the
//! specification requires a field. Every union is read as exactly one of its members.
//!
//! These are our own structs. The official crate (`a2a-lf` 0.4.2) was read and set aside, because:
//! - its part takes the first of several contents, and drops a `filename`, `mediaType` or `metadata` of
//!   the wrong type, where the protocol allows exactly one and we owe the client a field violation;
//! - its maps are hash maps, so the same card or task serialises differently from one process to the
//!   next, and a promise here is equal bytes;
//! - its times are written with as many digits as they have, not with milliseconds;
//! - its unions are read through cloned values, so an error inside names no field, and a large message
//!   is copied several times.
//!
//! Only JSON is read and written here: no protocol buffers, no snake_case names, no numeric enums.

mod card;
mod push;
mod request;
mod security;
mod task;

pub use card::{
    AgentCapabilities, AgentCard, AgentCardSignature, AgentExtension, AgentInterface, AgentProvider,
    AgentSkill, binding,
};
pub use push::{
    AuthenticationInfo, DeleteTaskPushNotificationConfigRequest, GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest, ListTaskPushNotificationConfigsResponse, Secret,
    TaskPushNotificationConfig,
};
pub use request::{
    CancelTaskRequest, GetExtendedAgentCardRequest, GetTaskRequest, ListTasksRequest, ListTasksResponse,
    SendMessageConfiguration, SendMessageRequest, SendMessageResponse, SubscribeToTaskRequest, query_object,
};
pub use security::{
    ApiKeySecurityScheme, AuthorizationCodeOAuthFlow, ClientCredentialsOAuthFlow, DeviceCodeOAuthFlow,
    HttpAuthSecurityScheme, ImplicitOAuthFlow, MutualTlsSecurityScheme, OAuth2SecurityScheme, OAuthFlow,
    OpenIdConnectSecurityScheme, PasswordOAuthFlow, SecurityRequirement, SecurityScheme,
};
pub use task::{
    Artifact, Message, Part, PartContent, Role, StreamResponse, Task, TaskArtifactUpdateEvent, TaskState,
    TaskStatus, TaskStatusUpdateEvent,
};

pub(crate) use push::check_scheme;
pub(crate) use task::{decode_base64, encode_base64};

/// Free-form data of a client or agent; empty means absent.
pub type Metadata = crate::json::Object;

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes the field by reference"
)]
pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests;
