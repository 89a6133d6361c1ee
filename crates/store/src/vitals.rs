//! Health of the last append, which no probe can show.
//!
//! A probe writes a row of its own. It may find room where an append finds none, and its page may be sound where others are
//! damaged. So the result of the last append counts as well, unless the trouble was its own: one that is refused has met a
//! store that works, and damage that an append to a run meets may be that run's alone.
//!
//! It is forgotten after a while. A host that is asked for nothing because it is not ready has no appends to prove itself by.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::{AppendError, Guard, WriteError};

/// For how long an append that failed says that writes do, unless a later one is written.
const MEMORY: Duration = Duration::from_secs(30);

/// What became of the last append.
#[derive(Debug, Default)]
pub(crate) struct Vitals(Mutex<Option<Failed>>);

/// An append that nobody wrote after.
#[derive(Debug)]
struct Failed {
    at: Instant,
    why: String,
}

impl Vitals {
    /// Notes what became of an append.
    pub(crate) fn note(&self, guard: Guard, outcome: &Result<(), AppendError>) {
        match outcome {
            Ok(()) => *self.0.lock() = None,
            Err(AppendError::Unavailable(why) | AppendError::Unknown(why)) => self.failed(why),
            Err(AppendError::Corrupt(why)) => match guard {
                Guard::Create => self.failed(why),
                Guard::At(_) => {}
            },
            Err(
                AppendError::Conflict { .. }
                | AppendError::Fenced(_)
                | AppendError::Duplicate(_)
                | AppendError::Full(_)
                | AppendError::Missing,
            ) => {}
        }
    }

    /// Notes that something could not be written.
    pub(crate) fn failed(&self, why: &str) {
        *self.0.lock() = Some(Failed {
            at: Instant::now(),
            why: why.to_owned(),
        });
    }

    /// Says whether the last append was written, as far as it is remembered.
    ///
    /// # Errors
    /// `Unavailable` with what the last one failed for.
    pub(crate) fn check(&self) -> Result<(), WriteError> {
        self.check_at(Instant::now())
    }

    fn check_at(&self, now: Instant) -> Result<(), WriteError> {
        match &*self.0.lock() {
            Some(failed) if now.saturating_duration_since(failed.at) < MEMORY => Err(
                WriteError::Unavailable(format!("the last append failed: {}", failed.why)),
            ),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::Seq;

    use super::*;

    fn corrupt() -> Result<(), AppendError> {
        Err(AppendError::Corrupt("page 7".to_owned()))
    }

    #[test]
    fn the_last_append_decides_and_a_refused_one_says_nothing() {
        let vitals = Vitals::default();
        vitals.check().expect("nothing was appended yet");
        vitals.note(Guard::Create, &Err(AppendError::Unavailable("full".to_owned())));
        let refused = vitals.check().expect_err("it failed");
        assert!(
            refused.to_string().ends_with("the last append failed: full"),
            "{refused}"
        );
        let conflict = AppendError::Conflict {
            expected: Seq(1),
            actual: None,
        };
        vitals.note(Guard::At(Seq(1)), &Err(conflict));
        vitals.check().expect_err("nothing was written since");
        vitals.note(Guard::At(Seq(1)), &Ok(()));
        vitals.check().expect("that was written");
    }

    #[test]
    fn damage_of_one_run_says_nothing_of_others() {
        let vitals = Vitals::default();
        vitals.note(Guard::At(Seq(3)), &corrupt());
        vitals.check().expect("it may be that run alone");
        vitals.note(Guard::Create, &corrupt());
        vitals.check().expect_err("no run can be made");
    }

    #[test]
    fn a_failure_is_forgotten_where_nothing_is_appended_any_more() {
        let vitals = Vitals::default();
        vitals.failed("full");
        let now = Instant::now();
        vitals.check_at(now).expect_err("it failed");
        vitals.check_at(now + MEMORY).expect("long ago");
    }
}
