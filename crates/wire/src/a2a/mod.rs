//! A2A: the 1.0 model that everything else is expressed in, the 0.3 codec, and the parts the bindings share.
//!
//! [`model`] is the pivot. [`v03`] reads and writes the 0.3 JSON in both its shapes and converts it to and
//! from the model. [`exchange`] combines operations, versions and shapes. [`method`] is the table of
//! operations and versions, [`paths`] the table of HTTP+JSON paths, [`rpc`] the JSON-RPC envelope, [`plain`]
//! a fast path for the most frequent request, [`protobuf`] the binary encoding of the same documents,
//! [`error`] the table of errors, and [`card_signature`] signs and verifies agent cards.

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
