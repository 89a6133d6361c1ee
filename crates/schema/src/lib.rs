//! JSON Schemas and regular expressions in documents that clients write, limited in size and in work.
//!
//! [`Schema`] compiles a schema (2020-12) and validates values against it, [`Pattern`] searches texts, and
//! [`equal`] and [`order`] compare values. Every step is charged to a [`Meter`](wopr_kernel::cost::Meter). Workflow
//! languages share this crate; it knows none of them.

mod pattern;
mod schema;
mod values;

pub use pattern::{Pattern, work as pattern_work};
pub use schema::{Allowance, Invalid, Schema, SchemaProblem, check_schema};
pub use values::{equal, order};
pub use wopr_kernel::measure::{compare_mixed, compare_numbers};

use wopr_kernel::{cost, whole};
