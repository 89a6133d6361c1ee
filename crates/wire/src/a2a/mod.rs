//! A2A: the 1.0 model everything else is expressed in, the 0.3 codec, and what both bindings share.
//!
//! [`model`] is the pivot; [`v03`] reads and writes the older JSON, in both its shapes, and converts both ways.
//! [`exchange`] puts operations, versions and shapes together. [`method`] is the table of operations and versions,
//! [`paths`] where HTTP+JSON has them, [`rpc`] the JSON-RPC envelope, [`plain`] a short cut for the
//! request that is sent most, [`protobuf`] the same documents in bytes,
//! [`error`] the table of errors, [`card_signature`] how cards are signed.

pub mod card_signature;
pub mod error;
pub mod exchange;
pub mod method;
pub mod model;
pub mod paths;
pub mod plain;
pub mod protobuf;
pub mod rpc;
pub mod v03;

#[cfg(test)]
mod arbitrary;
