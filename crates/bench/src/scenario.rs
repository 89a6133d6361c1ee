//! The scenarios to measure.
//!
//! A scenario is either a journey, which many clients repeat and which is reported per run, or a study: a
//! setup of a given size, which is measured in several ways.

use clap::ValueEnum;
use serde::Serialize;

use super::workflow::{APPROVAL, CHAIN, DOCUMENT, FAN, LONG, ONE, TURN};

/// A scenario to measure.
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
    /// A supervisor that hands work to one child run and then ends, by REST
    Turn,
    /// A replay fork of a run of 1,000 events, by REST
    Fork,
    /// A document of the Agent Workflow Protocol with three nodes: `POST /awp/v1/workflows/{id}/executions`
    Document,
    /// From the start of a run until it waits for an approval, by REST
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
    /// Many open SSE streams, and readers that stop reading (5,000)
    Streams,
    /// The cost of a run with 1,000 runs stored, and with many (1,000,000)
    Flat,
    /// Runs that call an agent on a second host, and many that wait for one (10,000)
    Remote,
    /// 256 workers on one queue, with many activities in it (50,000)
    Workers,
    /// The same document by `workflow_start` of `wopr mcp`, one call and 32 at a time (20,000)
    Mcp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Journey {
    /// The workflow to run.
    pub(crate) workflow: &'static str,
    pub(crate) way: Way,
}

/// How a run is started and followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Create, then read the events to the end.
    Rest,
    /// Create, then poll until the run has completed.
    Poll,
    /// A blocking A2A 1.0 send.
    A2a1,
    /// A blocking A2A 0.3 send.
    A2a03,
    /// Create, then read until the run waits.
    Waiting,
    /// Answer a run that was parked beforehand.
    Resume,
    /// Replay a run that has ended, and poll until the replay has.
    Fork,
    /// Start an execution, which answers when it has ended.
    Document,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Study {
    Subscribers,
    Followers,
    Children,
    List,
    Parked,
    Streams,
    Flat,
    Remote,
    Workers,
    Mcp,
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
            Self::Turn => "turn",
            Self::Fork => "fork",
            Self::Document => "document",
            Self::Waiting => "waiting",
            Self::Resume => "resume",
            Self::Subscribers => "subscribers",
            Self::Followers => "followers",
            Self::Children => "children",
            Self::List => "list",
            Self::Parked => "parked",
            Self::Streams => "streams",
            Self::Flat => "flat",
            Self::Remote => "remote",
            Self::Workers => "workers",
            Self::Mcp => "mcp",
        }
    }

    /// Returns `true` for journeys of a one-node run from start to end.
    pub(crate) fn is_pure(self) -> bool {
        matches!(self, Self::Rest | Self::Poll | Self::A2a1 | Self::A2a03)
    }

    pub(crate) fn kind(self) -> Kind {
        let journey = |workflow, way| Kind::Journey(Journey { workflow, way });
        match self {
            Self::Rest => journey(ONE, Way::Rest),
            Self::Poll => journey(ONE, Way::Poll),
            Self::A2a1 => journey(ONE, Way::A2a1),
            Self::A2a03 => journey(ONE, Way::A2a03),
            Self::Chain => journey(CHAIN, Way::Rest),
            Self::Fan => journey(FAN, Way::Rest),
            Self::Turn => journey(TURN, Way::Rest),
            Self::Fork => journey(LONG, Way::Fork),
            Self::Document => journey(DOCUMENT, Way::Document),
            Self::Waiting => journey(APPROVAL, Way::Waiting),
            Self::Resume => journey(APPROVAL, Way::Resume),
            Self::Subscribers => Kind::Study(Study::Subscribers),
            Self::Followers => Kind::Study(Study::Followers),
            Self::Children => Kind::Study(Study::Children),
            Self::List => Kind::Study(Study::List),
            Self::Parked => Kind::Study(Study::Parked),
            Self::Streams => Kind::Study(Study::Streams),
            Self::Flat => Kind::Study(Study::Flat),
            Self::Remote => Kind::Study(Study::Remote),
            Self::Workers => Kind::Study(Study::Workers),
            Self::Mcp => Kind::Study(Study::Mcp),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reported per run, for each number of clients.
    Journey(Journey),
    /// Reported as named figures.
    Study(Study),
}

impl Study {
    /// The default size.
    pub(crate) fn usual_size(self) -> usize {
        match self {
            Self::Subscribers | Self::Followers => 1_000,
            Self::Children | Self::Remote => 10_000,
            Self::List | Self::Flat => 1_000_000,
            Self::Parked | Self::Mcp => 20_000,
            Self::Streams => 5_000,
            Self::Workers => 50_000,
        }
    }
}
