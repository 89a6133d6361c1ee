//! The protocol buffers of A2A as tables, and a codec driven by them.
//!
//! A table holds what a `.proto` file holds: numbers, names and types. The tables drive decoding ([`read`]),
//! encoding ([`write()`]), normalization of alternative JSON spellings ([`canonical`]), and server
//! reflection. The codec converts between bytes and the JSON of the version's
//! [`Form`](super::exchange::Form), so a binary binding gets all checks, errors and conversions of the JSON
//! bindings and needs none of its own.
//!
//! Decoding is safe on arbitrary bytes: nesting depth is limited, and a document takes a small multiple of
//! its size in memory. Values that JSON cannot represent (non-finite numbers, timestamps outside the years 1
//! to 9999) are rejected with their path. Integers beyond 2^53 in free-form data lose precision, because
//! protocol buffers store them as doubles.

mod canonical;
mod read;
mod rpc_status;
mod schema;
mod v03;
mod v1;
mod write;

pub use canonical::canonical;
pub use read::{read, read_within};
pub use rpc_status::{rpc_status, status_reason};
pub use schema::{Enum, Field, Kind, Message, Shape};
pub use write::write;

use super::method::{Operation, Version};

#[derive(Debug, Clone, Copy)]
pub struct Method {
    pub operation: Operation,
    pub name: &'static str,
    pub request: &'static Message,
    /// The response, or the type of each item if the method streams.
    pub response: &'static Message,
}

/// The name of the service in both packages.
pub const SERVICE: &str = "A2AService";

/// The method of an operation; `None` if the version's service lacks it.
#[must_use]
pub fn method(version: Version, operation: Operation) -> Option<Method> {
    let name = operation.grpc_method(version)?;
    let (request, response) = match version {
        Version::V1_0 => v1::method(operation),
        Version::V0_3 => v03::method(operation)?,
    };
    Some(Method {
        operation,
        name,
        request,
        response,
    })
}

pub fn methods(version: Version) -> impl Iterator<Item = Method> {
    Operation::ALL
        .iter()
        .filter_map(move |operation| method(version, *operation))
}

/// All messages of a version's package, dependencies first.
#[must_use]
pub fn messages(version: Version) -> Vec<&'static Message> {
    let mut all = Vec::new();
    for Method {
        request, response, ..
    } in methods(version)
    {
        request.collect(&mut all);
        response.collect(&mut all);
    }
    all.retain(|message| !message.name.contains('.'));
    all
}

#[cfg(test)]
mod tests;
