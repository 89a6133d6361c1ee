//! What is fuzzed: everything of wopr that reads what others write, as functions over bytes.
//!
//! A function here takes any bytes and returns, or panics where a promise does not hold: that nothing panics, that what
//! was read is written and read again as the same, that work stays within its bounds, that a request is answered and
//! not answered with 500. It knows nothing of a fuzzer. `fuzz_targets/` hands these functions to libFuzzer, one binary
//! each, for `cargo xtask fuzz` and cargo-fuzz; `tests/corpus.rs` runs them over the kept inputs in the ordinary suite,
//! on any toolchain.
//!
//! `corpus/<target>` holds inputs that were written as a start, or found and minimised; one that broke a promise once is
//! called after what it broke and stays. `dictionaries/<target>.dict` names the words that a fuzzer would take long to
//! find.

#![expect(
    clippy::unwrap_used,
    reason = "a broken promise is shown by a panic, that is what a fuzzer looks for"
)]

mod a2a;
mod config;
mod definition;
mod egress;
mod expression;
mod host;
mod interpreter;
mod openwop;
mod peer;
mod protobuf;
mod requests;
mod schema;
mod signed;
mod sse;
mod stored;
mod token;

pub use a2a::{a2a_1, a2a_03};
pub use config::config;
pub use definition::definition;
pub use egress::egress;
pub use expression::expression;
pub use interpreter::interpreter;
pub use openwop::openwop;
pub use peer::peer;
pub use protobuf::protobuf;
pub use requests::{cursor, http};
pub use schema::schema;
pub use signed::{claims, signed};
pub use sse::sse;
pub use stored::stored;
pub use token::token;

/// Something that takes any bytes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, which is that of its binary, its corpus and its dictionary.
    pub name: &'static str,
    /// Panics if a promise does not hold.
    pub run: fn(&[u8]),
}

impl Target {
    const fn new(name: &'static str, run: fn(&[u8])) -> Self {
        Self { name, run }
    }
}

/// Every target, by name.
pub const TARGETS: [Target; 18] = [
    Target::new("a2a_03", a2a_03),
    Target::new("a2a_1", a2a_1),
    Target::new("claims", claims),
    Target::new("config", config),
    Target::new("cursor", cursor),
    Target::new("definition", definition),
    Target::new("egress", egress),
    Target::new("expression", expression),
    Target::new("http", http),
    Target::new("interpreter", interpreter),
    Target::new("openwop", openwop),
    Target::new("peer", peer),
    Target::new("protobuf", protobuf),
    Target::new("schema", schema),
    Target::new("signed", signed),
    Target::new("sse", sse),
    Target::new("stored", stored),
    Target::new("token", token),
];
