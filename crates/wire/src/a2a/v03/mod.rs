//! The A2A 0.3 codec: the JSON of its JSON-RPC binding, and total conversions to and from the model.
//!
//! Reading is strict where the 0.3 schema requires something (`messageId`, `role`, `parts`, ids, the `kind` of events)
//! and ignores what it does not know. Every value that was read converts to the model, and every value of
//! the model converts back. What does not survive the way:
//!
//! | 0.3 | 1.0 | note |
//! | --- | --- | --- |
//! | data part holds an object | any JSON value | others travel as `{"value": x}` and `metadata.data_part_compat` |
//! | no media type or file name on text and data | on every part | dropped on the way to 0.3 |
//! | `final` on status updates | none | made from what the caller knows about its stream |
//! | `blocking`, absent means blocking | `returnImmediately`, absent means blocking | inverted, always written |
//! | `unknown` | unspecified | |
//! | several `schemes` of a push receiver | one `scheme` | the first; none means no authentication |
//! | several OAuth flows in a scheme | one | the first in the order of the schema |
//! | no device code flow, no PKCE flag | both | dropped on the way to 0.3 |
//! | `stateTransitionHistory` | none | dropped on the way to 1.0 |
//! | no `tenant` | `tenant` | dropped on the way to 0.3 |
//!
//! The HTTP+JSON and gRPC bindings of 0.3 use another shape, that of its protocol buffers: see [`proto`].

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
