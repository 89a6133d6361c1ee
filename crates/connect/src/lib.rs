//! Outbound executors behind one egress gate.
//!
//! Everything this host sends to the outside goes through [`egress::Gate`]: there is no second
//! HTTP client in the tree. Executors here perform one attempt of one effect and always come
//! back; leasing, retrying and recording are the engine's.

pub mod egress;

mod executors;
mod http;
mod push;
mod shares;
mod side_effect;
mod weight;

pub use executors::{Executors, Options};
pub use http::Http;
pub use push::{Push, push, secret_header};
pub use shares::{Share, Shares};
pub use side_effect::SideEffect;
pub use weight::{TooManyValues, weigh};
pub use wopr_core::parsed_limit;
