//! What can be measured.
//!
//! A scenario is either a journey, which many clients make again and again and which is told per run, or a study: a
//! situation of a given size that is set up once and looked at from several sides.

use clap::ValueEnum;
use serde::Serialize;

use super::workflow::{APPROVAL, CHAIN, FAN, ONE};

/// A thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scenario {
    /// A one-node run: `POST /v1/runs`, then its events as SSE until `run.completed`
    Rest,
    /// A one-node run: `POST /v1/runs`, then `GET` of the run until it has completed
    Poll,
    /// A one-node run: a blocking `SendMessage` of A2A 1.0
    #[value(name = "a2a-1.0")]
    #[serde(rename = "a2a-1.0")]
    A2a1,
    /// A one-node run: a blocking `message/send` of A2A 0.3
    #[value(name = "a2a-0.3")]
    #[serde(rename = "a2a-0.3")]
    A2a03,
    /// A run of ten nodes in a row, by REST
    Chain,
    /// A run of ten child runs at once, by REST
    Fan,
    /// From the start of a run until it is seen to wait for an approval, by REST
    Waiting,
    /// From the answer to a waiting run until it has completed, by REST
    Resume,
    /// One run with many SSE subscribers (1,000)
    Subscribers,
    /// Many runs with one SSE subscriber each (1,000)
    Followers,
    /// One run with many child runs (10,000)
    Children,
    /// Lists of a store of many runs (1,000,000)
    List,
    /// Many runs that wait for an approval, a restart, and answers to some (20,000)
    Parked,
    /// Many open SSE streams, with readers that do not read beside them (5,000)
    Streams,
    /// What a run costs with 1,000 runs stored, and with many (1,000,000)
    Flat,
}

/// A journey of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Journey {
    /// What is run.
    pub(crate) workflow: &'static str,
    /// How.
    pub(crate) way: Way,
}

/// How a run is started and followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Created, then its events read to the end.
    Rest,
    /// Created, then read until it has completed.
    Poll,
    /// A blocking send of A2A 1.0.
    A2a1,
    /// A blocking send of A2A 0.3.
    A2a03,
    /// Created, then seen to wait.
    Waiting,
    /// Parked beforehand, then answered.
    Resume,
}

/// A situation of some size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Study {
    Subscribers,
    Followers,
    Children,
    List,
    Parked,
    Streams,
    Flat,
}

impl Scenario {
    /// The name on the command line and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::Poll => "poll",
            Self::A2a1 => "a2a-1.0",
            Self::A2a03 => "a2a-0.3",
            Self::Chain => "chain",
            Self::Fan => "fan",
            Self::Waiting => "waiting",
            Self::Resume => "resume",
            Self::Subscribers => "subscribers",
            Self::Followers => "followers",
            Self::Children => "children",
            Self::List => "list",
            Self::Parked => "parked",
            Self::Streams => "streams",
            Self::Flat => "flat",
        }
    }

    /// Whether it is a one-node run from its start to its end.
    pub(crate) fn is_pure(self) -> bool {
        matches!(self, Self::Rest | Self::Poll | Self::A2a1 | Self::A2a03)
    }

    /// What it is.
    pub(crate) fn kind(self) -> Kind {
        let journey = |workflow, way| Kind::Journey(Journey { workflow, way });
        match self {
            Self::Rest => journey(ONE, Way::Rest),
            Self::Poll => journey(ONE, Way::Poll),
            Self::A2a1 => journey(ONE, Way::A2a1),
            Self::A2a03 => journey(ONE, Way::A2a03),
            Self::Chain => journey(CHAIN, Way::Rest),
            Self::Fan => journey(FAN, Way::Rest),
            Self::Waiting => journey(APPROVAL, Way::Waiting),
            Self::Resume => journey(APPROVAL, Way::Resume),
            Self::Subscribers => Kind::Study(Study::Subscribers),
            Self::Followers => Kind::Study(Study::Followers),
            Self::Children => Kind::Study(Study::Children),
            Self::List => Kind::Study(Study::List),
            Self::Parked => Kind::Study(Study::Parked),
            Self::Streams => Kind::Study(Study::Streams),
            Self::Flat => Kind::Study(Study::Flat),
        }
    }
}

/// The two kinds of scenarios.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Told per run, for each number of clients.
    Journey(Journey),
    /// Told as named figures.
    Study(Study),
}

impl Study {
    /// How large it is unless told otherwise.
    pub(crate) fn usual_size(self) -> usize {
        match self {
            Self::Subscribers | Self::Followers => 1_000,
            Self::Children => 10_000,
            Self::List | Self::Flat => 1_000_000,
            Self::Parked => 20_000,
            Self::Streams => 5_000,
        }
    }
}
