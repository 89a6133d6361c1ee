//! Version 0.3 in the shape of its protocol buffers, read into the model and written from it directly.
//!
//! The HTTP+JSON binding of 0.3 is ProtoJSON of this shape, and gRPC is the same in bytes; neither is the JSON of
//! its JSON-RPC binding. A message has `content`, a state is `TASK_STATE_CANCELLED`, requests name resources
//! (`tasks/{id}`), and an absent `blocking` means that the client does not wait. [`Proto`] marks a value of the
//! model that is spelled so. What is lost is what the parent module lists, and two things more: a message has no
//! `referenceTaskIds`, and a request but to send has no `metadata`. In bytes a `historyLength` of 0 is none.

mod ask;
mod card;
mod read;
mod request;
mod write;

pub(in super::super) use ask::NewConfig;
pub(in super::super) use read::known_config;
pub(in super::super) use request::config;

/// A value of the model, spelled as the protocol buffers of 0.3 do.
#[derive(Debug, Clone, PartialEq)]
pub struct Proto<T>(pub T);

#[cfg(test)]
mod tests;
