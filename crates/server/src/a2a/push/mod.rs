//! Push notifications: task updates sent to subscribed URLs.
//!
//! ```text
//!   service        create, get, list, delete; configurations sent along with a message
//!   subscription   a configuration as it is stored, encrypted
//!   update         from events to what a subscriber may see, and to a body of its A2A version
//!   notifier       implements the engine's port with the modules above, and sends
//! ```
//!
//! The engine decides when, in which order and how often to send. A body holds the state of the task and the
//! URLs of artifacts, never the content of messages.

mod notifier;
mod service;
mod subscription;
mod update;

pub(crate) use notifier::Notifier;
pub(crate) use service::set;
pub(crate) use subscription::SubscriptionCipher;
