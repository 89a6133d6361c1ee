//! The protocols wopr speaks, as types: what goes over a wire and how it is read and written.
//!
//! Reading is by [`json::Decode`]: it takes a parsed document apart by value and, when something does
//! not fit, names the field. Writing is plain `serde`. Output is deterministic: the same value gives
//! the same bytes, maps are ordered, times have exactly milliseconds.
//!
//! There is no I/O here, nothing asynchronous, and no type of the engine. Which run a task shows, who
//! may see it and what an operation does is decided by the faces that use this crate.

pub mod a2a;
pub mod jcs;
pub mod json;
pub mod jws;
pub mod openwop;
pub mod sse;
pub mod time;
