//! Push notifications: who is told of a task, and what.
//!
//! ```text
//!   service   create, get, list, delete; what comes along with a message
//!   receiver  a configuration as it is kept: sealed, with nothing of it in the open
//!   update    from events to what a receiver may know, and to a body of the version it registered with
//!   notifier   the engine's port: both of these, and the way out
//! ```
//!
//! When, in which order and how often is the engine's business. A body holds the state of the task and where artifacts
//! are, never what anybody said.

mod notifier;
mod service;
mod subscription;
mod update;

pub(crate) use notifier::Notifier;
pub(crate) use service::set;
pub(crate) use subscription::SubscriptionCipher;
