//! Where the log of a fork comes from, and which run recorded each of its events first.

use serde::{Deserialize, Serialize};

use crate::{RefusalDivergence, RunId, Seq};

/// Where a fork comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    pub source: RunId,
    pub mode: ForkMode,
    /// Events before this one are the source's.
    pub from: Seq,
    /// The first event of the decision that the source's event at `from` belongs to. From here on the fork decides
    /// again.
    pub since: Seq,
    /// The number of events that the source had.
    pub until: Seq,
    /// How many forks deep this run is: 1 if its source is not a fork.
    pub depth: u32,
    /// The runs that recorded the events which the source took from its own source, in order. Empty if the source is
    /// not a fork.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recorders: Vec<Recorder>,
    /// The first call whose model gave a replay another kind of reply than it gave the source, if it was asked again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Box<RefusalDivergence>>,
}

/// A run whose events a fork of a fork has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorder {
    pub run: RunId,
    /// The first event that is not this run's.
    pub until: Seq,
}

impl Fork {
    /// The first event that is not taken from the source.
    const fn until(&self) -> Seq {
        match self.mode {
            ForkMode::Replay => Seq(u64::MAX),
            ForkMode::Branch => self.from,
        }
    }

    /// The run that recorded an event first; `None` for those of the fork itself.
    #[must_use]
    pub fn recorder(&self, seq: Seq) -> Option<&RunId> {
        let origin = self.recorders.iter().find(|origin| seq < origin.until);
        let earlier = origin.map_or(&self.source, |origin| &origin.run);
        (seq < self.until()).then_some(earlier)
    }

    /// The [recorders](Self::recorders) of a fork of this fork.
    #[must_use]
    pub fn recorders_of_forks(&self) -> Vec<Recorder> {
        let own = Recorder {
            run: self.source.clone(),
            until: self.until(),
        };
        let mut recorders: Vec<Recorder> = Vec::new();
        for mut origin in self.recorders.iter().cloned().chain([own]) {
            origin.until = origin.until.min(self.until());
            if recorders.last().is_none_or(|last| last.until < origin.until) {
                recorders.push(origin);
            }
        }
        recorders
    }
}

/// How a fork goes on after the events that it takes from its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForkMode {
    /// It gets what the source got, and calls nobody.
    Replay,
    /// It goes its own way.
    Branch,
}

impl ForkMode {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Branch => "branch",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: u32) -> RunId {
        RunId::parse(&format!("run_{n:016}")).expect("valid")
    }

    fn fork(source: u32, mode: ForkMode, from: u64, of: Option<&Fork>) -> Fork {
        Fork {
            source: run(source),
            mode,
            from: Seq(from),
            since: Seq(from),
            until: Seq(100),
            depth: 1,
            recorders: of.map_or_else(Vec::new, Fork::recorders_of_forks),
            refusal: None,
        }
    }

    /// The number of the run that recorded each of these events first; 0 for the fork itself.
    fn recorders(fork: &Fork, events: &[u64]) -> Vec<u32> {
        let number = |seq: &u64| match fork.recorder(Seq(*seq)) {
            None => 0,
            Some(recorder) => (1..9).find(|n| run(*n) == *recorder).expect("known"),
        };
        events.iter().map(number).collect()
    }

    #[test]
    fn events_of_forks_of_forks_are_those_of_the_run_that_recorded_them() {
        // 2 leaves 1 at event 10; each of the others is a fork of the one before.
        let two = fork(1, ForkMode::Branch, 10, None);
        assert_eq!(recorders(&two, &[0, 9, 10]), [1, 1, 0]);
        let three = fork(2, ForkMode::Branch, 20, Some(&two));
        assert_eq!(recorders(&three, &[9, 10, 19, 20]), [1, 2, 2, 0]);
        let four = fork(3, ForkMode::Replay, 0, Some(&three));
        assert_eq!(recorders(&four, &[9, 10, 19, 20, 99]), [1, 2, 2, 3, 3]);
        let five = fork(4, ForkMode::Replay, 7, Some(&four));
        assert_eq!(recorders(&five, &[9, 10, 20, 99]), [1, 2, 3, 3]);
        // One that leaves before its source left its own.
        let early = fork(2, ForkMode::Branch, 5, Some(&two));
        assert_eq!(recorders(&early, &[4, 5]), [1, 0]);
        let of_early = fork(6, ForkMode::Branch, 20, Some(&early));
        assert_eq!(recorders(&of_early, &[4, 5, 9, 19, 20]), [1, 6, 6, 6, 0]);
    }
}
