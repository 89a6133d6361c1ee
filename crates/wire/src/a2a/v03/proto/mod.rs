//! Version 0.3 in the shape of its protocol buffers, decoded into the model and encoded from it directly.
//!
//! The HTTP+JSON binding of 0.3 uses the ProtoJSON form of this shape, and gRPC its binary form; both differ
//! from the JSON of the JSON-RPC binding. A message has `content`, a state is `TASK_STATE_CANCELLED`,
//! requests identify resources by name (`tasks/{id}`), and an absent `blocking` means non-blocking. [`Proto`]
//! marks a model value in this shape.
//!
//! Conversions lose what the parent module lists, and in addition `referenceTaskIds` of messages and
//! `metadata` of all requests except send. In the binary form a `historyLength` of 0 becomes absent.

mod ask;
mod card;
mod read;
mod request;
mod write;

pub(in super::super) use ask::NewConfig;
pub(in super::super) use read::known_config;
pub(in super::super) use request::config;

/// A model value in the shape of the 0.3 protocol buffers.
#[derive(Debug, Clone, PartialEq)]
pub struct Proto<T>(pub T);

#[cfg(test)]
mod tests;
