//! Types for the protocols wopr speaks, and how to read and write them.
//!
//! [`json::Decode`] reads: it takes a parsed document apart by value, and its errors name the offending
//! field. `serde` writes. Output is deterministic: equal values give equal bytes, maps are ordered, and
//! timestamps always have milliseconds.
//!
//! This crate does no I/O, has nothing asynchronous and knows no engine types. The protocol faces that use it
//! decide which run a task stands for, who may see it and what an operation does.

pub mod a2a;
pub mod jcs;
pub mod json;
pub mod jws;
pub mod openwop;
pub mod sse;
pub mod time;
