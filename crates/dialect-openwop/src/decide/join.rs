//! When workers that work at the same time are done.
//!
//! The ends are judged in the order in which the run learned them, so the verdict does not change when children end
//! that no longer count.

use wopr_kernel::RunStatus;

use crate::{
    Decision, JoinMode, JoinOutcome,
    node::{Fan, OnChildFailure},
    state::Dispatching,
};

/// How the workers of an execution have ended, the first to end first.
#[derive(Debug, Clone)]
pub(super) struct Ends {
    n_workers: usize,
    pub(super) running: usize,
    ended: Vec<RunStatus>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Open,
    Joined {
        outcome: JoinOutcome,
        /// How many of the ends count.
        counting: usize,
    },
}

impl Ends {
    pub(super) fn of(dispatching: &Dispatching) -> Self {
        let n_workers = match &dispatching.decision {
            Some(Decision::NextWorker { workers, .. }) => workers.len(),
            Some(Decision::AskUser { .. } | Decision::Terminate { .. }) | None => 0,
        };
        let ended = dispatching.in_order_of_ends();
        Self {
            n_workers,
            running: dispatching
                .handoffs
                .iter()
                .filter(|handoff| handoff.is_running())
                .count(),
            ended: ended.iter().map(|(_, end)| end.status).collect(),
        }
    }

    /// Whether every worker has ended.
    pub(super) fn is_complete(&self) -> bool {
        self.ended.len() >= self.n_workers
    }

    pub(super) fn count(&self, status: RunStatus) -> u32 {
        let n = self.ended.iter().filter(|ended| **ended == status).count();
        u32::try_from(n).unwrap_or(u32::MAX)
    }
}

/// Judges the ends of all workers.
pub(super) fn judge(fan: Fan, ends: &Ends) -> Verdict {
    let counts = 0..=ends.ended.len();
    for counting in counts {
        if let Some(outcome) = after(fan, ends.n_workers, &ends.ended[..counting]) {
            return Verdict::Joined { outcome, counting };
        }
    }
    Verdict::Open
}

/// The outcome after these ends, if it is certain.
fn after(fan: Fan, n_workers: usize, ended: &[RunStatus]) -> Option<JoinOutcome> {
    let completed = ended.iter().filter(|end| **end == RunStatus::Completed).count();
    let failed = ended.len() - completed;
    if fan.on_failure == OnChildFailure::FailFast && failed > 0 {
        return Some(JoinOutcome::Failed);
    }
    let lost = if fan.on_failure == OnChildFailure::Absorb {
        JoinOutcome::Partial
    } else {
        JoinOutcome::Failed
    };
    let required = match fan.mode {
        JoinMode::WaitAll => {
            let all = ended.len() == n_workers;
            let outcome = match (fan.on_failure, completed, failed) {
                (_, _, 0) | (OnChildFailure::Absorb, _, _) => JoinOutcome::Satisfied,
                (OnChildFailure::Collect | OnChildFailure::FailFast, 0, _) => JoinOutcome::Failed,
                (OnChildFailure::Collect | OnChildFailure::FailFast, _, _) => JoinOutcome::Partial,
            };
            return all.then_some(outcome);
        }
        JoinMode::Race => {
            return match ended.first()? {
                RunStatus::Completed => Some(JoinOutcome::Satisfied),
                _ => Some(lost),
            };
        }
        JoinMode::Quorum(n) => n as usize,
        JoinMode::First => 1,
    };
    if completed >= required {
        Some(JoinOutcome::Satisfied)
    } else if n_workers - failed < required {
        Some(lost)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(mode: JoinMode, on_failure: OnChildFailure, n_workers: usize, ends: &str) -> Verdict {
        let fan = Fan {
            max_concurrency: 10,
            mode,
            on_failure,
        };
        let status = |end| match end {
            'c' => RunStatus::Completed,
            'x' => RunStatus::Cancelled,
            _ => RunStatus::Failed,
        };
        let ended: Vec<_> = ends.chars().map(status).collect();
        let ends = Ends {
            n_workers,
            running: n_workers - ended.len(),
            ended,
        };
        judge(fan, &ends)
    }

    #[test]
    fn join_is_decided_by_the_first_ends_that_settle_it() {
        use JoinMode::{First, Quorum, Race, WaitAll};
        use JoinOutcome::{Failed, Partial, Satisfied};
        use OnChildFailure::{Absorb, Collect, FailFast};
        for (mode, on_failure, ends, expected) in [
            (WaitAll, Collect, "cc", None),
            (WaitAll, Collect, "ccc", Some((Satisfied, 3))),
            (WaitAll, Collect, "cfc", Some((Partial, 3))),
            (WaitAll, Collect, "fxf", Some((Failed, 3))),
            (WaitAll, Absorb, "cf", None),
            (WaitAll, Absorb, "fff", Some((Satisfied, 3))),
            (WaitAll, FailFast, "cf", Some((Failed, 2))),
            (WaitAll, FailFast, "cfxx", Some((Failed, 2))),
            (Quorum(2), Collect, "cf", None),
            (Quorum(2), Collect, "cfc", Some((Satisfied, 3))),
            (Quorum(2), Collect, "ccx", Some((Satisfied, 2))),
            (Quorum(2), Collect, "ff", Some((Failed, 2))),
            (Quorum(2), Absorb, "ff", Some((Partial, 2))),
            (Quorum(2), FailFast, "f", Some((Failed, 1))),
            (First, Collect, "ff", None),
            (First, Collect, "ffc", Some((Satisfied, 3))),
            (First, Collect, "cxx", Some((Satisfied, 1))),
            // A loser that completes after the winner does not count.
            (First, Collect, "ccx", Some((Satisfied, 1))),
            (Race, Collect, "", None),
            (Race, Collect, "fxx", Some((Failed, 1))),
            (Race, Absorb, "fxx", Some((Partial, 1))),
            (Race, Collect, "cxx", Some((Satisfied, 1))),
        ] {
            let n_workers = ends.len().max(3);
            let expected = expected.map_or(Verdict::Open, |(outcome, counting)| Verdict::Joined {
                outcome,
                counting,
            });
            let found = judged(mode, on_failure, n_workers, ends);
            assert_eq!(found, expected, "{mode:?} {on_failure:?} {ends}");
        }
    }

    #[test]
    fn every_join_is_decided_when_all_workers_have_ended() {
        let modes = [
            JoinMode::WaitAll,
            JoinMode::Quorum(1),
            JoinMode::Quorum(3),
            JoinMode::First,
            JoinMode::Race,
        ];
        let all = [
            OnChildFailure::Collect,
            OnChildFailure::FailFast,
            OnChildFailure::Absorb,
        ];
        for mode in modes {
            for on_failure in all {
                for ends in ["ccc", "ccf", "cff", "fff", "fcc", "xcf"] {
                    assert_ne!(
                        judged(mode, on_failure, 3, ends),
                        Verdict::Open,
                        "{mode:?} {ends}"
                    );
                }
            }
        }
    }
}
