//! A2A: the 1.0 model everything else is expressed in, the 0.3 codec, and what both bindings share.
//!
//! [`model`] is the pivot; [`v03`] reads and writes the older JSON and converts both ways. [`rpc`] is
//! the JSON-RPC envelope, [`method`] the table of operations and versions, [`error`] the table of
//! errors. Protocol buffers and gRPC are not here, nor is the 0.3 REST form (which is ProtoJSON of the
//! 0.3 protocol buffers, another shape than 0.3 JSON-RPC).

pub mod error;
pub mod method;
pub mod model;
pub mod rpc;
pub mod v03;

#[cfg(test)]
mod arbitrary;
