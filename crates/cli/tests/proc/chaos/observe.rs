//! Observers: watch a run across all kills, resuming after the last frame, and compare the frames with a
//! later replay: same frames, no gaps, no duplicates.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    a2a::{self, Pushed, Shown, Version},
    caller::{Caller, Followed, Request},
    ledger::Ledger,
};

/// Time limit of an observer, because a run may wait for a time that a wrong clock reaches late.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum View {
    /// Every event, over REST.
    Debug,
    /// The default event stream, over REST.
    Updates,
    /// The updates of a task, over A2A.
    Task(Version),
}

/// Where an observer starts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Begin<'a> {
    /// With all available frames.
    Now,
    /// After a known event.
    After(u64),
    /// By sending a message with this id, which starts a task of this workflow.
    Send(&'a str, &'a str),
}

#[derive(Debug, Clone)]
pub(super) struct Sighting {
    pub(super) run: String,
    pub(super) view: View,
    start: Start,
    frames: Vec<Frame>,
    /// When it saw the final frame.
    pub(super) ended_at: Option<Instant>,
}

impl Sighting {
    pub(super) fn n_frames(&self) -> usize {
        self.frames.len()
    }
}

/// Where the frames start in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Start {
    /// At the first frame.
    Beginning,
    /// At the first frame after an event.
    After(u64),
    /// At the first frame that is not included in a snapshot of the task with this state and these artifacts.
    Snapshot { state: String, artifacts: usize },
}

/// A stream frame with its own id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    id: u64,
    what: What,
}

impl Frame {
    /// The stream frame that corresponds to a push.
    pub(super) fn of(Pushed { sequence, shown, .. }: Pushed) -> Self {
        let what = match shown {
            Shown::Task { state, .. } | Shown::Status(state) => What::State(state),
            Shown::Artifact(id) => What::Artifact(id),
        };
        Self { id: sequence, what }
    }

    /// The sequence number of its event.
    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    /// Returns `true` if the frame reports this task state.
    pub(super) fn is_state(&self, wanted: &str) -> bool {
        matches!(&self.what, What::State(state) if state == wanted)
    }
}

/// The content of a frame that is the same for every reader at any time.
#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    /// Type and id of an event.
    Event(String, String),
    State(String),
    /// The id of a new artifact.
    Artifact(String),
    Unknown(String),
}

impl What {
    fn is_end(&self) -> bool {
        match self {
            Self::Event(kind, _) => matches!(kind.as_str(), "run.completed" | "run.failed" | "run.cancelled"),
            Self::State(state) => is_end(state),
            Self::Artifact(_) | Self::Unknown(_) => false,
        }
    }
}

/// Returns `true` for terminal task states.
fn is_end(state: &str) -> bool {
    matches!(state, "completed" | "failed" | "canceled" | "rejected")
}

/// Watches a run until it ends or the time limit is reached. If started by a message, first learns the run's
/// id.
pub(super) async fn observe(
    caller: &mut Caller,
    view: View,
    run: Option<&str>,
    begin: Begin<'_>,
) -> Option<Sighting> {
    let ledger = caller.ledger().clone();
    let mut observer = Observer {
        view,
        run: run.map(str::to_owned),
        start: match begin {
            Begin::Now | Begin::Send(..) => Start::Beginning,
            Begin::After(id) => Start::After(id),
        },
        frames: Vec::new(),
        state: String::new(),
        rests: matches!(begin, Begin::Send(..)),
        ended_at: None,
    };
    let leave_at = Instant::now() + TIMEOUT;
    while observer.ended_at.is_none() && !(observer.rests && observer.state == "input-required") {
        let left = leave_at.saturating_duration_since(Instant::now());
        // The message is resent until the run's id is known.
        if left.is_zero() && observer.run.is_some() {
            break;
        }
        let request = observer.request(begin);
        let followed = caller.follow(&request, left.max(Duration::from_secs(1)), |event| {
            observer.take(&ledger, &event.id, &event.data);
        });
        match followed.await {
            Followed::Lost | Followed::Left => {}
            Followed::Ended { status: 503, .. } => caller.pause().await,
            Followed::Ended {
                status: 200,
                is_excused,
            } => {
                let rests = observer.rests && observer.state == "input-required";
                if observer.is_over(caller).await {
                    break;
                }
                let Observer { run, state, .. } = &observer;
                ledger.hold(is_excused || rests || observer.ended_at.is_some(), || {
                    format!("a stream of run {run:?} ended before its time ({view:?}, {state})")
                });
            }
            Followed::Ended { status, .. } => {
                ledger.violated(format!("a stream of run {run:?} was answered by {status}"));
                break;
            }
        }
    }
    let Observer {
        run,
        start,
        frames,
        ended_at,
        ..
    } = observer;
    Some(Sighting {
        run: run?,
        view,
        start,
        frames,
        ended_at,
    })
}

struct Observer {
    view: View,
    run: Option<String>,
    start: Start,
    frames: Vec<Frame>,
    /// The most recently reported task state.
    state: String,
    /// The streams end when the task waits for input.
    rests: bool,
    ended_at: Option<Instant>,
}

impl Observer {
    /// Requests the frames not seen yet.
    fn request(&self, begin: Begin<'_>) -> Request {
        let last = self.frames.last().map(|frame| frame.id).or(match begin {
            Begin::After(id) => Some(id),
            Begin::Now | Begin::Send(..) => None,
        });
        let run = self.run.as_deref().unwrap_or_default();
        let request = match (self.view, begin) {
            (View::Debug, _) => Request::events(format!("/v1/runs/{run}/events?streamMode=debug")),
            (View::Updates, _) => Request::events(format!("/v1/runs/{run}/events")),
            // Repeated until the stream returns something; still creates a single task.
            (View::Task(version), Begin::Send(id, workflow)) if last.is_none() => {
                version.stream(id, workflow)
            }
            (View::Task(version), _) => version.subscribe(run),
        };
        match last {
            Some(last) => request.with("last-event-id", last),
            None => request,
        }
    }

    fn take(&mut self, ledger: &Ledger, id: &str, data: &str) {
        let document: Value = serde_json::from_str(data).unwrap_or_default();
        let last = self.frames.last().map(|frame| frame.id);
        // An id applies to all following frames without their own id.
        let id = id.parse().ok().filter(|id| Some(*id) != last);
        let what = match self.view {
            View::Debug | View::Updates => event(&document),
            View::Task(_) => match a2a::shown(&document) {
                Some(Shown::Task { id, state, artifacts }) => {
                    self.snapshot(ledger, &id, state, artifacts);
                    return;
                }
                Some(Shown::Status(state)) => {
                    self.state.clone_from(&state);
                    What::State(state)
                }
                Some(Shown::Artifact(id)) => What::Artifact(id),
                None => What::Unknown(data.to_owned()),
            },
        };
        let run = &self.run;
        if let What::Unknown(data) = &what {
            ledger.violated(format!("a stream of run {run:?} showed {data}"));
        }
        if what.is_end() {
            self.ended_at = Some(Instant::now());
        }
        // Frames without a new id only repeat the state in which the task waits.
        let Some(id) = id else { return };
        let after = match &self.start {
            Start::After(after) => last.or(Some(*after)),
            Start::Beginning | Start::Snapshot { .. } => last,
        };
        let is_next = match self.view {
            View::Debug => id == after.map_or(0, |after| after + 1),
            View::Updates | View::Task(_) => after.is_none_or(|after| id > after),
        };
        ledger.hold(is_next, || {
            format!(
                "a stream of run {run:?} showed {id} after {after:?} ({:?})",
                self.view
            )
        });
        self.frames.push(Frame { id, what });
    }

    /// Processes the first frame of a task stream that does not resume.
    fn snapshot(&mut self, ledger: &Ledger, id: &str, state: String, artifacts: usize) {
        let run = self.run.get_or_insert_with(|| id.to_owned());
        ledger.hold(run == id && self.frames.is_empty(), || {
            format!(
                "a stream of run {run} showed the task {id}, {state}, after {:?}",
                self.frames.last()
            )
        });
        if is_end(&state) {
            self.ended_at = Some(Instant::now());
        }
        self.state.clone_from(&state);
        self.start = Start::Snapshot { state, artifacts };
    }

    /// Returns `true` if the task had already ended, in which case subscribing is refused.
    async fn is_over(&mut self, caller: &mut Caller) -> bool {
        let (View::Task(version), Some(run), true) = (self.view, &self.run, self.frames.is_empty()) else {
            return false;
        };
        let task = caller.ask(&version.get(run)).await;
        a2a::task(&task.body).is_some_and(|(_, state)| is_end(&state))
    }
}

fn event(document: &Value) -> What {
    match (document["type"].as_str(), document["eventId"].as_str()) {
        (Some(kind), Some(id)) => What::Event(kind.to_owned(), id.to_owned()),
        _ => What::Unknown(document.to_string()),
    }
}

/// Reads the complete stream of an ended run.
pub(super) async fn replay(caller: &mut Caller, run: &str, view: View) -> Option<Vec<Frame>> {
    let begin = match view {
        View::Debug | View::Updates => Begin::Now,
        // An ended task is only streamed with a last event id; its first event is therefore missing.
        View::Task(_) => Begin::After(0),
    };
    let sighting = observe(caller, view, Some(run), begin).await?;
    let Sighting { frames, ended_at, .. } = sighting;
    caller.ledger().hold(ended_at.is_some(), || {
        format!("run {run} has ended and its stream does not ({view:?}): {frames:?}")
    });
    Some(frames)
}

/// Compares the observed frames with a replay.
pub(super) fn compare(ledger: &Ledger, sighting: &Sighting, replay: &[Frame]) {
    let Sighting {
        run,
        view,
        start,
        frames,
        ended_at,
    } = sighting;
    // A task's replay starts after its first event.
    let is_known = |frame: &&Frame| frame.id > 0 || !matches!(view, View::Task(_));
    let seen: Vec<&Frame> = frames.iter().filter(is_known).collect();
    let Some(first) = seen.first() else { return };
    let from = match start {
        Start::Beginning => Some(0),
        Start::After(id) => replay.iter().position(|frame| frame.id > *id),
        Start::Snapshot { .. } => replay.iter().position(|frame| frame == *first),
    };
    let from = from.unwrap_or(replay.len());
    let there: Vec<&Frame> = replay[from..].iter().take(seen.len()).collect();
    let reaches_end = from + seen.len() == replay.len();
    ledger.hold(there == seen && (reaches_end || ended_at.is_none()), || {
        format!("{view:?} of run {run} from {start:?} on was {seen:?}, and is {replay:?}")
    });
    if let Start::Snapshot { state, artifacts } = start {
        let before = &replay[..from];
        let is_artifact = |frame: &&Frame| matches!(frame.what, What::Artifact(_));
        let last = before.iter().rev().find_map(|frame| match &frame.what {
            What::State(state) => Some(state.as_str()),
            What::Event(..) | What::Artifact(_) | What::Unknown(_) => None,
        });
        // Before the first update a task is submitted, or working from its first event on.
        let is_same = last.map_or(matches!(state.as_str(), "submitted" | "working"), |last| {
            last == state
        });
        ledger.hold(
            is_same && before.iter().filter(is_artifact).count() == *artifacts,
            || {
                format!(
                    "the snapshot of run {run} was {start:?} before {first:?}, and the log says {replay:?}"
                )
            },
        );
    }
}

/// The distinct views to compare.
pub(super) fn views(sightings: &[Sighting]) -> BTreeSet<(String, View)> {
    let view = |sighting: &Sighting| (sighting.run.clone(), sighting.view);
    sightings.iter().map(view).collect()
}
