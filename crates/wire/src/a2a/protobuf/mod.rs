//! The protocol buffers of A2A as tables, and what follows from them.
//!
//! A table says what a `.proto` file says: numbers, names, kinds. From it documents are read from bytes ([`read`]) and
//! written to them ([`write()`]), JSON of clients who use other spellings is made canonical ([`canonical`]), and a server
//! can describe itself. The document between is the JSON of the version's [`Form`](super::exchange::Form), so a binding
//! in bytes has every check, error and conversion that the bindings in JSON have, and none of its own.
//!
//! Reading is safe against any bytes: nesting is bounded as in other implementations, and what a document costs in
//! memory is a small multiple of its size. What bytes say and JSON cannot (a number that is none, a time outside the
//! years 1 to 9999) is refused by its path. What JSON says and bytes cannot: integers in free-form data beyond 2^53,
//! which lose their last digits, because all numbers are doubles there.

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

/// A method of a version's gRPC service.
#[derive(Debug, Clone, Copy)]
pub struct Method {
    /// What it does.
    pub operation: Operation,
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub request: &'static Message,
    /// What it gives, once or, in a stream, over and over.
    pub response: &'static Message,
}

/// The name of the service in either package.
pub const SERVICE: &str = "A2AService";

/// The method of an operation; none if the version's service lacks it.
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

/// Every method of a version's service.
pub fn methods(version: Version) -> impl Iterator<Item = Method> {
    Operation::ALL
        .iter()
        .filter_map(move |operation| method(version, *operation))
}

/// Every message of a version's package, those used by others first.
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
