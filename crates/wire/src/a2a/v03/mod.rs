//! The A2A 0.3 codec: the JSON of its JSON-RPC binding, and total conversions to and from the model.
//!
//! Decoding requires what the 0.3 schema requires (`messageId`, `role`, `parts`, ids, the `kind` of events)
//! and ignores unknown fields. Every decoded value converts to the model, and every model value converts
//! back. Conversions change or lose the following:
//!
//! | 0.3 | 1.0 | note |
//! | --- | --- | --- |
//! | data part holds an object | any JSON value | other values become `{"value": x}`, marked by `metadata.data_part_compat` |
//! | no media type or file name on text and data | on every part | dropped in 0.3 |
//! | `final` on status updates | none | set by the caller, who knows its stream |
//! | `blocking`, default `true` | `returnImmediately`, default `false` | inverted, always written |
//! | `unknown` | unspecified | |
//! | several `schemes` of a push receiver | one `scheme` | the first is kept; none means no authentication |
//! | several OAuth flows in a scheme | one | the first in schema order is kept |
//! | no device code flow, no PKCE flag | both | dropped in 0.3 |
//! | `stateTransitionHistory` | none | dropped in 1.0 |
//! | no `tenant` | `tenant` | dropped in 0.3 |
//!
//! The HTTP+JSON and gRPC bindings of 0.3 use the shape of its protocol buffers instead: see [`proto`].

mod card;
mod convert;
mod convert_card;
mod params;
pub mod proto;
mod task;

pub use card::{
    AgentCapabilities, AgentCard, AgentInterface, AgentSkill, ApiKeyLocation, ApiKeySecurityScheme,
    AuthorizationCodeOAuthFlow, OAuth2SecurityScheme, OAuthFlows, SecurityRequirement, SecurityScheme,
};
pub use convert_card::{http_card, union_card};
pub use params::{
    DeletePushNotificationConfigParams, GetPushNotificationConfigParams, ListPushNotificationConfigParams,
    MessageSendConfiguration, MessageSendParams, PushNotificationAuthenticationInfo, PushNotificationConfig,
    TaskIdParams, TaskPushNotificationConfig, TaskQueryParams,
};
pub use task::{
    Artifact, FileBody, FileContent, Message, Part, Role, SendResult, StreamEvent, Task,
    TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent,
};

#[cfg(test)]
mod tests;
