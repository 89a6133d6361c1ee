//! The questions that a run waits for, its own and those of its children, each where it is asked.
//!
//! A parent's log mirrors one question of a child at a time, and hears of it later. So what is open is read from the
//! children themselves. Both faces show, name and count questions by this list.

use serde_json::Value;
use wopr_core::{
    Asked, Event, InterruptKind, OpenInterrupt, Recorded, RunId, RunKey, Seq, StepId, Timestamp,
};
use wopr_engine::{Engine, View};
use wopr_store::ReadError;

/// Deepest chain of children that is followed; the kernel refuses deeper ones.
const MAX_DEPTH: usize = 40;

/// Events read at once while a question is looked up in a log.
const PAGE: usize = 256;
/// Pages read before a question counts as lost: older ones are not open any more.
const MAX_PAGES: usize = 16;

/// Most questions at one node of a run. Further ones appear when earlier ones are answered.
pub const MAX_SHOWN: usize = 100;

/// A question where it is asked.
#[derive(Debug, Clone)]
pub struct AskedAt {
    /// The run that asks.
    pub key: RunKey,
    /// The execution that asks.
    pub step: StepId,
    /// The question.
    pub data: Value,
    /// Since when.
    pub at: Timestamp,
    /// Until when, if it times out.
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

/// An open question of a run, at the node of that run where it shows.
#[derive(Debug, Clone)]
pub struct Open {
    /// Its id as the run shows it: that of a child's begins with the path to the child.
    pub id: String,
    /// What kind of answer it wants.
    pub kind: InterruptKind,
    /// The execution of the run where it shows.
    pub shown_at: StepId,
    /// The child of the run that leads to it; none if the run asks.
    pub child: Option<RunId>,
    /// Where it is asked.
    pub asked: AskedAt,
    /// The children on the way to it, each with the length of its log when it was read.
    pub way: Vec<(RunKey, Seq)>,
}

/// What is asked where a run waits: by the run, or by its child and the children of that.
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
        // The first asked is looked at first.
        left[n_before..].reverse();
    }
    Ok(found)
}

/// What a run asks itself where it waits; none if a child does.
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

/// The id that a child's interrupt has there, of the id that its parent shows at an execution.
pub fn within<'i>(id: &'i str, step: &StepId) -> &'i str {
    let inner = id.strip_prefix(step.key().as_str());
    inner.and_then(|inner| inner.strip_prefix('/')).unwrap_or(id)
}

/// Finds an interrupt in a run's log, or in that of the child it mirrors; and the runs that were read on the way, each
/// up to the event that tells of it.
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
