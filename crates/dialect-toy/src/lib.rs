//! A workflow language for tests: a list of templates, filled in one after another.
//!
//! It shows what a second language costs: this crate, and one file of `core`. No host that people run offers it.
//!
//! ```json
//! {"id": "greeting", "templates": ["Hello {name}.", {"ask": "Which colour, {name}?", "as": "colour"}, "{colour} it is."]}
//! ```
//!
//! A text step outputs its `text`, which later templates read as `{text}`. An `ask` step waits for a person. A `{"call": payload}` step makes
//! the countable side effect of conformance tests and outputs its outcome, and what its peer asks is asked in the run. A step
//! such as `{"of": ["one", "two", "three"], "quorum": 2}` runs other workflows as children, with the run's variables
//! as their inputs, and waits for `"join": "all"` (the default), `"first"`, `"race"` or a quorum of them. It outputs
//! `completed`, their number. `"absorb": true` goes on even if the join fails.

mod decide;
mod plan;

pub use decide::{NoEvent, State, Toy};
pub use plan::Plan;
