//! Outbound executors behind a single egress gate.
//!
//! All outbound traffic of this host goes through [`egress::Gate`]; the source tree has no other HTTP client.
//! An executor makes one attempt of one effect and always completes. The engine is responsible for leases,
//! retries and recording.

pub mod a2a;
pub mod egress;

mod agent;
mod events;
mod executors;
mod http;
mod mcp;
mod model;
mod push;
mod redact;
mod secrets;
mod shares;
mod side_effect;
mod weight;

pub use agent::{
    AgentTransport, Callback, Callbacks, NewTask, TaskOf, ToolAgent, TransportError, Transports,
};
pub use events::events;
pub use executors::{CallingHost, Executors, Options};
pub use http::Http;
pub use mcp::{
    Command as ToolCommand, MAX_TOOL_SERVERS, Reached as ToolReached, Setting as ToolSetting, Tool,
    ToolServer, ToolServers,
};
pub use model::{
    BadScript, Kind as ModelKind, Mock, MockReply, Models, Price, Provider, ProviderKey, StreamText,
};
pub use push::{Push, push, secret_header};
pub use secrets::{NamedSecret, NamedSecrets, SecretSource, SecretValues, ValueError};
pub use shares::{Share, Shares};
pub use side_effect::SideEffect;
pub use weight::{TooManyValues, weigh};
pub use wopr_core::parsed_limit;
