//! The open questions of a run: its own, and those of its children at the run that asks.
//!
//! A parent's log mirrors only one question of a child at a time, and with a delay. Open questions are
//! therefore read from the children themselves. All protocol faces show, name and count questions by this
//! list.

use serde_json::Value;
use wopr_core::{
    Asked, Event, InterruptKind, OpenInterrupt, Recorded, RunId, RunKey, Seq, StepId, Timestamp,
};
use wopr_engine::{Engine, View};
use wopr_store::ReadError;

/// Deepest chain of children that is followed; the kernel allows no deeper one.
const MAX_DEPTH: usize = 40;

/// Events read at once when looking up a question in a log.
const PAGE: usize = 256;
/// Maximum pages read when looking up a question. An older question is not open any more.
const MAX_PAGES: usize = 16;

/// Maximum questions shown at one node of a run. Others appear when these are answered.
pub const MAX_SHOWN: usize = 100;

/// A question, at the run that asks it.
#[derive(Debug, Clone)]
pub struct AskedAt {
    /// The run that asks.
    pub key: RunKey,
    /// The execution that asks.
    pub step: StepId,
    /// The content of the question.
    pub data: Value,
    /// When the question was asked.
    pub at: Timestamp,
    /// When the question times out.
    pub deadline: Option<Timestamp>,
}

impl AskedAt {
    pub fn requested(key: &RunKey, recorded: &Recorded) -> Option<Self> {
        let Event::InterruptRequested {
            step,
            data,
            timeout_ms,
            ..
        } = &recorded.event
        else {
            return None;
        };
        Some(Self {
            key: key.clone(),
            step: step.clone(),
            data: data.clone(),
            at: recorded.at,
            deadline: timeout_ms.map(|ms| recorded.at.plus_millis(ms)),
        })
    }
}

/// An open question, as shown at a node of a run.
#[derive(Debug, Clone)]
pub struct Open {
    /// Unique within the run. The id of a child's question begins with the path to the child.
    pub id: String,
    pub kind: InterruptKind,
    /// The execution that shows the question.
    pub shown_at: StepId,
    /// The child that leads to the question; `None` if the run itself asks.
    pub child: Option<RunId>,
    pub asked: AskedAt,
    /// The children on the way to the question, each with the length of its log when it was read.
    pub way: Vec<(RunKey, Seq)>,
}

/// The questions at an open interrupt: the run's own, or those of its child and further descendants.
pub(crate) async fn at(
    engine: &Engine,
    view: &View,
    open: &OpenInterrupt<'_>,
) -> Result<Vec<Open>, ReadError> {
    let child = match open.asked {
        Asked::Here(_) => return Ok(here(view, open).into_iter().collect()),
        Asked::Child(child, _, _) => child,
    };
    let shown_at = step(open);
    let mut found = Vec::new();
    let mut left = vec![(
        view.key.sibling(child.clone()),
        format!("{}/", shown_at.key()),
        Vec::new(),
    )];
    while let Some((key, path, mut way)) = left.pop() {
        if way.len() >= MAX_DEPTH || found.len() >= MAX_SHOWN {
            continue;
        }
        let Some(view) = engine.view(&key).await? else {
            continue;
        };
        way.push((key, view.run.head));
        let n_before = left.len();
        for inner in view.run.interrupts(&view.plan) {
            match inner.asked {
                Asked::Here(_) => found.extend(here(&view, &inner).map(|open| Open {
                    id: format!("{path}{}", open.id),
                    shown_at: shown_at.clone(),
                    child: Some(child.clone()),
                    way: way.clone(),
                    ..open
                })),
                Asked::Child(next, _, _) => {
                    let path = format!("{path}{}/", step(&inner).key());
                    left.push((view.key.sibling(next.clone()), path, way.clone()));
                }
            }
        }
        // Look at the first question asked first.
        left[n_before..].reverse();
    }
    Ok(found)
}

/// The run's own question at an open interrupt; `None` if a child asks.
pub fn here(view: &View, open: &OpenInterrupt<'_>) -> Option<Open> {
    let Asked::Here(asked) = open.asked else {
        return None;
    };
    Some(Open {
        id: open.id(),
        kind: asked.kind,
        shown_at: step(open),
        child: None,
        asked: AskedAt {
            key: view.key.clone(),
            step: step(open),
            data: asked.data.clone(),
            at: asked.requested_at,
            deadline: asked.deadline,
        },
        way: Vec::new(),
    })
}

fn step(open: &OpenInterrupt<'_>) -> StepId {
    StepId {
        node: open.node.clone(),
        ordinal: open.ordinal,
    }
}

/// Converts the interrupt id that a parent shows at an execution to the id in the child.
pub fn within<'i>(id: &'i str, step: &StepId) -> &'i str {
    let inner = id.strip_prefix(step.key().as_str());
    inner.and_then(|inner| inner.strip_prefix('/')).unwrap_or(id)
}

/// Finds an interrupt in a run's log, or in that of the child it mirrors. Also returns the runs that were
/// read on the way, each with the position after the event found.
pub(crate) async fn look_up(
    engine: &Engine,
    key: RunKey,
    id: &str,
) -> Result<(Option<AskedAt>, Vec<(RunKey, Seq)>), ReadError> {
    let (mut key, mut id, mut way) = (key, id, Vec::new());
    for _ in 0..MAX_DEPTH {
        match find(engine, &key, id).await? {
            Some((seq, Found::Here(asked))) => {
                way.push((key, seq.next()));
                return Ok((Some(asked), way));
            }
            Some((seq, Found::Child(child, step))) => {
                way.push((key, seq.next()));
                key = child;
                id = within(id, &step);
            }
            None => break,
        }
    }
    Ok((None, Vec::new()))
}

enum Found {
    Here(AskedAt),
    Child(RunKey, StepId),
}

async fn find(engine: &Engine, key: &RunKey, id: &str) -> Result<Option<(Seq, Found)>, ReadError> {
    let Some((_, head)) = engine.summary(key).await? else {
        return Ok(None);
    };
    let mut end = head;
    for _ in 0..MAX_PAGES {
        let Some(page) = engine.events_before(key, end, PAGE).await? else {
            return Ok(None);
        };
        for recorded in page.events.iter().rev() {
            match &recorded.event {
                Event::InterruptRequested { step, .. } if step.key() == id => {
                    let asked = AskedAt::requested(key, recorded);
                    return Ok(asked.map(|asked| (recorded.seq, Found::Here(asked))));
                }
                Event::NodeSuspended {
                    step,
                    interrupt,
                    child: Some(child),
                    ..
                } if interrupt == id => {
                    let found = Found::Child(key.sibling(child.clone()), step.clone());
                    return Ok(Some((recorded.seq, found)));
                }
                _ => {}
            }
        }
        match page.events.first() {
            Some(first) => end = first.seq,
            None => break,
        }
    }
    Ok(None)
}
