//! Lines of the log: fields of runs, and failures of the store that every round of a loop meets again.

use std::{collections::BTreeMap, fmt::Display, time::Instant};

use parking_lot::Mutex;
use tracing::Span;
use wopr_core::RunKey;

use crate::{CommandError, Throttle, Throttles};

/// A throttle for each kind of failure. There are as many as this crate has texts for them.
static FAILURES: Mutex<BTreeMap<&'static str, Throttle>> = Mutex::new(BTreeMap::new());

/// Failures of work on runs that are not the store's, each minute: a tenant can have as many as it has runs.
static WORK_FAILURES: Throttles = Throttles::new(30);

/// A span that adds the run to every line logged while it is being worked on.
pub(crate) fn of_run(run: &RunKey) -> Span {
    tracing::info_span!("run", run = %run.run, tenant = %run.tenant)
}

/// Says that a loop or a lease could not read or write the store, once a minute for each text: while the store is away,
/// every round fails in the same way.
pub(crate) fn store_failed(what: &'static str, error: &dyn Display) {
    let admitted = {
        let mut failures = FAILURES.lock();
        let throttle = failures.entry(what).or_insert(const { Throttle::new(1) });
        throttle.admit(Instant::now())
    };
    if let Some(left_out) = admitted {
        tracing::warn!(%error, left_out, "{what}");
    }
}

/// Says that work on a run failed. While the store is away, that is once a minute for each text, and otherwise some lines
/// a minute for each tenant.
pub(crate) fn work_failed(what: &'static str, run: &RunKey, error: &CommandError) {
    match error {
        CommandError::Unavailable(_) => store_failed(what, error),
        CommandError::Busy { .. }
        | CommandError::NotFound
        | CommandError::Refused(_)
        | CommandError::KeyReused
        | CommandError::AliasTaken
        | CommandError::TooManyReceivers { .. }
        | CommandError::Internal(_) => {
            if let Some(left_out) = WORK_FAILURES.admit(&run.tenant, Instant::now()) {
                tracing::warn!(%run, %error, left_out, "{what}");
            }
        }
    }
}
