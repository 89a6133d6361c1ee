//! The fuzz targets: functions over bytes for everything in wopr that parses untrusted input.
//!
//! Each function accepts any bytes, and panics if a property does not hold: no panics, lossless round trips,
//! bounded work, no responses with status 500. The functions do not depend on a fuzzer. `fuzz_targets/target.rs`
//! wraps them in a libFuzzer binary, for `cargo xtask fuzz`; `tests/corpus.rs` runs them on the stored inputs in the
//! ordinary test suite, with any toolchain.
//!
//! `corpus/<target>` contains handwritten inputs, and inputs found by the fuzzer and minimized. An input that
//! once violated a property is named after the problem and kept. `dictionaries/<target>.dict` lists tokens
//! that a fuzzer would take long to find.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a broken promise is shown by a panic, that is what a fuzzer looks for"
)]

mod a2a;
mod config;
mod definition;
mod egress;
mod expression;
mod history;
mod host;
mod interpreter;
mod jq;
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
pub use history::history;
pub use interpreter::interpreter;
pub use jq::jq;
pub use openwop::openwop;
pub use peer::peer;
pub use protobuf::protobuf;
pub use requests::{cursor, http};
pub use schema::schema;
pub use signed::{claims, signed};
pub use sse::sse;
pub use stored::stored;
pub use token::token;

#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name, also of its corpus and dictionary.
    pub name: &'static str,
    /// Panics if a property does not hold.
    pub run: fn(&[u8]),
}

impl Target {
    const fn new(name: &'static str, run: fn(&[u8])) -> Self {
        Self { name, run }
    }
}

pub const TARGETS: [Target; 20] = [
    Target::new("a2a_03", a2a_03),
    Target::new("a2a_1", a2a_1),
    Target::new("claims", claims),
    Target::new("config", config),
    Target::new("cursor", cursor),
    Target::new("definition", definition),
    Target::new("egress", egress),
    Target::new("expression", expression),
    Target::new("history", history),
    Target::new("http", http),
    Target::new("interpreter", interpreter),
    Target::new("jq", jq),
    Target::new("openwop", openwop),
    Target::new("peer", peer),
    Target::new("protobuf", protobuf),
    Target::new("schema", schema),
    Target::new("signed", signed),
    Target::new("sse", sse),
    Target::new("stored", stored),
    Target::new("token", token),
];

/// The variable that names the target of the libFuzzer binary.
pub const VARIABLE: &str = "WOPR_FUZZ_TARGET";

/// The target that [`VARIABLE`] names.
///
/// # Panics
/// If it names none.
#[must_use]
pub fn chosen() -> Target {
    let name = std::env::var(VARIABLE).unwrap_or_default();
    let target = TARGETS.into_iter().find(|target| target.name == name);
    target.unwrap_or_else(|| panic!("{VARIABLE} names no target: {name:?}"))
}
