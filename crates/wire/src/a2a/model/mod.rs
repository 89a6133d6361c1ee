//! The A2A 1.0 model: tasks, messages, parts, events, requests and agent cards, in JSON only.
//!
//! Decoding follows ProtoJSON: unknown fields are ignored, absent and `null` fields take their default, names
//! are camelCase, and enums are decoded by name. Encoding omits default values, except where the
//! specification requires a field. A union must have exactly one of its members.
//!
//! We do not use the official crate (`a2a-lf` 0.4.2). It accepts a part with several contents and drops
//! fields of the wrong type, where we owe the client a field violation. Its hash maps serialize in random
//! order, but we promise equal bytes for equal values. It writes timestamps with varying precision. It
//! decodes unions through cloned values, so errors name no field and large messages are copied several times.

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
pub(in crate::a2a) use task::AnyTaskState;
pub(crate) use task::{decode_base64, encode_base64};

/// Free-form data of a client or an agent; empty means absent.
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
