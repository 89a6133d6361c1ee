//! OpenWOP v1: the bodies of its REST surface, its event documents and its stream modes.
//!
//! Request bodies are read by [`Decode`](crate::json::Decode); the closed ones refuse unknown fields.
//! Responses and events are written by `serde`, and read back tolerantly by clients of ours. Routes,
//! statuses and the discovery document belong to the server; v2 is not here yet.

pub mod control;
pub mod error;
pub mod event;
pub mod run;
pub mod stream;
pub mod task_state;
