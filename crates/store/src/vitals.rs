//! Health of the last append, as part of the readiness check.
//!
//! A probe writes only its own row: it may find space where an append finds none, and its page may be intact
//! where others are damaged. So readiness also depends on the last append, unless that append itself was at
//! fault. A rejected append has met a working store, and damage found when appending to an existing run may
//! be limited to that run.
//!
//! A failure expires: a host that gets no requests because it is not ready has no appends to recover by.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::{AppendError, Cause, Guard, WriteError};

/// How long a failed append makes the store unready, unless a later one succeeds.
const MEMORY: Duration = Duration::from_secs(30);

/// The result of the last append.
#[derive(Debug, Default)]
pub(crate) struct Vitals(Mutex<Option<Failed>>);

/// A failed append with no successful one after it.
#[derive(Debug)]
struct Failed {
    at: Instant,
    why: Cause,
}

impl Vitals {
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

    /// Notes a failed write.
    pub(crate) fn failed(&self, why: &Cause) {
        *self.0.lock() = Some(Failed {
            at: Instant::now(),
            why: why.clone(),
        });
    }

    /// Checks that the last append succeeded, or failed too long ago to count.
    ///
    /// # Errors
    /// `Unavailable` with the error of the last append.
    pub(crate) fn check(&self) -> Result<(), WriteError> {
        self.check_at(Instant::now())
    }

    fn check_at(&self, now: Instant) -> Result<(), WriteError> {
        match &*self.0.lock() {
            Some(Failed { at, why }) if now.saturating_duration_since(*at) < MEMORY => {
                let text = format!("the last append failed: {why}");
                Err(WriteError::Unavailable(Cause::about(text, why.clone())))
            }
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::Seq;

    use super::*;

    fn corrupt() -> Result<(), AppendError> {
        Err(AppendError::Corrupt("page 7".into()))
    }

    #[test]
    fn rejected_appends_do_not_change_the_verdict() {
        let vitals = Vitals::default();
        vitals.check().expect("nothing was appended yet");
        vitals.note(Guard::Create, &Err(AppendError::Unavailable("full".into())));
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
    fn damage_on_an_existing_run_does_not_fail_the_check() {
        let vitals = Vitals::default();
        vitals.note(Guard::At(Seq(3)), &corrupt());
        vitals.check().expect("it may be that run alone");
        vitals.note(Guard::Create, &corrupt());
        vitals.check().expect_err("no run can be made");
    }

    #[test]
    fn a_failure_expires_without_further_appends() {
        let vitals = Vitals::default();
        vitals.failed(&"full".into());
        let now = Instant::now();
        vitals.check_at(now).expect_err("it failed");
        vitals.check_at(now + MEMORY).expect("long ago");
    }
}
