//! Runs that are gone because they ended longer ago than runs are kept.
//!
//! Nothing is left of a removed run. Its id says when it was created, though, and so whether it can have been
//! removed. That holds for every id that was made up as well, so the answer tells nobody which runs there are.

use crate::App;

/// What the ids of runs begin with.
const PREFIX: &str = "run_";
/// Hexadecimal digits of an id's time.
const DIGITS: usize = 12;

impl App {
    /// Whether a run with this id that does not exist may have been removed.
    #[must_use]
    pub fn may_have_expired(&self, run: &str) -> bool {
        let (Some(kept), Some(created)) = (self.engine.retention(), created_at(run)) else {
            return false;
        };
        let age = self.engine.now().millis().saturating_sub(created);
        u128::try_from(age).is_ok_and(|age| age >= kept.as_millis())
    }
}

/// When a run was created, in milliseconds, as its id has it. `None` for an id that this host would not give.
fn created_at(run: &str) -> Option<i64> {
    let digits = run.strip_prefix(PREFIX)?;
    let is_id = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let time = digits.get(..DIGITS).filter(|_| is_id)?;
    i64::from_str_radix(time, 16).ok()
}

#[cfg(test)]
mod tests {
    use wopr_core::{RunId, Timestamp};

    use super::*;

    #[test]
    fn the_time_of_a_run_is_in_its_id() {
        let at = Timestamp::from_millis(1_700_000_000_123);
        let id = RunId::from_parts(at, [255; 10]);
        assert_eq!(created_at(id.as_str()), Some(at.millis()));
        for other in ["run_unknown", "run_", "task-1", "018bcfe56800"] {
            assert_eq!(created_at(other), None, "{other}");
        }
    }
}
