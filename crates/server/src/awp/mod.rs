//! The control plane of the Agent Workflow Protocol.
//!
//! ```text
//!   REST, MCP -> call (arguments, checks) -> use cases of runs -> stable (waits) -> render
//! ```
//!
//! [`call`] is the one entry for all surfaces: seven operations on executions. An execution is a run in the protocol's
//! language, and its id is a name that the caller chose for it. Definitions come with every call: the first one
//! registers its definition, later ones are held against it.

mod arguments;
mod call;
mod definition;
mod error;
mod execution;
mod history;
mod list;
mod positions;
mod render;
mod rest;
mod stable;
mod tool;

pub use call::{Request, call};
pub use error::{Code, Error};
pub use tool::Tool;

pub(crate) use positions::Positions;
pub(crate) use rest::{Face, unauthenticated, unavailable};
