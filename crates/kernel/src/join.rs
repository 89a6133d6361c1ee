//! When a step with several children may go on.

use serde::{Deserialize, Serialize};

use crate::OnFailure;

/// How many children a step waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Join {
    /// The only child. Its end is not recorded, because the step ends with it.
    Single,
    /// All complete.
    All,
    /// This many complete.
    Quorum(u32),
    /// One completes.
    First,
    /// One ends, whichever way.
    Race,
    /// The dialect judges whenever one ends, and may create more.
    Own,
}

/// How far the children of a step are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    pub(crate) created: usize,
    pub(crate) completed: usize,
    /// Failed or cancelled.
    pub(crate) failed: usize,
}

/// What a tally says about a join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Open,
    Holds,
    /// It no longer can.
    Fails,
}

impl Join {
    /// Returns `true` if this many children can satisfy the join.
    pub(crate) const fn is_possible(self, n_children: usize) -> bool {
        match self {
            Self::Single => n_children == 1,
            Self::All | Self::First | Self::Race | Self::Own => n_children > 0,
            Self::Quorum(n) => n > 0 && n as usize <= n_children,
        }
    }

    pub(crate) fn judge(self, tally: Tally, on_failure: OnFailure) -> Verdict {
        let Tally {
            created,
            completed,
            failed,
        } = tally;
        let required = match self {
            // Every child counts, so each is waited for unless its failure is the step's.
            Self::Single | Self::All => match on_failure {
                OnFailure::Absorb if completed + failed < created => return Verdict::Open,
                OnFailure::Absorb | OnFailure::Fail => created,
            },
            Self::Quorum(n) => n as usize,
            Self::First => 1,
            Self::Race => match (completed, failed) {
                (0, 0) => return Verdict::Open,
                (0, _) => return Verdict::Fails,
                (_, _) => return Verdict::Holds,
            },
            Self::Own => return Verdict::Open,
        };
        if completed >= required {
            Verdict::Holds
        } else if created - failed < required {
            Verdict::Fails
        } else {
            Verdict::Open
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(join: Join, on_failure: OnFailure, created: usize, ends: &str) -> Verdict {
        let count = |end| ends.chars().filter(|&other| other == end).count();
        let tally = Tally {
            created,
            completed: count('c'),
            failed: count('f'),
        };
        join.judge(tally, on_failure)
    }

    #[test]
    fn join_holds_when_enough_complete_and_fails_when_too_few_can() {
        use OnFailure::{Absorb, Fail};
        use Verdict::{Fails, Holds, Open};
        for (join, on_failure, ends, verdict) in [
            (Join::All, Fail, "cc", Open),
            (Join::All, Fail, "ccc", Holds),
            (Join::All, Fail, "f", Fails),
            (Join::All, Absorb, "cf", Open),
            (Join::All, Absorb, "cfc", Fails),
            (Join::All, Absorb, "ccc", Holds),
            (Join::Quorum(2), Fail, "c", Open),
            (Join::Quorum(2), Fail, "cf", Open),
            (Join::Quorum(2), Fail, "cfc", Holds),
            (Join::Quorum(2), Absorb, "ff", Fails),
            (Join::First, Fail, "ff", Open),
            (Join::First, Fail, "ffc", Holds),
            (Join::First, Absorb, "fff", Fails),
            (Join::Race, Fail, "", Open),
            (Join::Race, Fail, "f", Fails),
            (Join::Race, Absorb, "c", Holds),
        ] {
            assert_eq!(
                judged(join, on_failure, 3, ends),
                verdict,
                "{join:?} {on_failure:?} {ends}"
            );
        }
    }

    #[test]
    fn every_join_is_decided_when_all_children_have_ended() {
        for join in [
            Join::All,
            Join::Quorum(1),
            Join::Quorum(3),
            Join::First,
            Join::Race,
        ] {
            for on_failure in [OnFailure::Fail, OnFailure::Absorb] {
                for completed in 0..=3 {
                    let ends = "c".repeat(completed) + &"f".repeat(3 - completed);
                    assert!(join.is_possible(3));
                    assert_ne!(
                        judged(join, on_failure, 3, &ends),
                        Verdict::Open,
                        "{join:?} {ends}"
                    );
                }
            }
        }
        assert!(
            !Join::Quorum(4).is_possible(3) && !Join::Quorum(0).is_possible(3) && !Join::All.is_possible(0)
        );
    }
}
