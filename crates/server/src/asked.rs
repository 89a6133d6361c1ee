//! The questions that a run waits for, its own and those of its children, each where it is asked.
//!
//! A parent's log mirrors one question of a child at a time, and hears of it later. So what is open is read from the
//! children themselves. Both faces show, name and count questions by this list.

use serde_json::Value;
use wopr_core::{Asked, InterruptKind, OpenInterrupt, RunId, RunKey, Seq, StepId, Timestamp};
use wopr_engine::{Engine, View};
use wopr_store::ReadError;

/// Deepest chain of children that is followed; the kernel refuses deeper ones.
const MAX_DEPTH: usize = 40;

/// Most questions at one node of a run. Further ones appear when earlier ones are answered.
pub(crate) const MAX_SHOWN: usize = 100;

/// A question where it is asked.
#[derive(Debug, Clone)]
pub(crate) struct AskedAt {
    /// The run that asks.
    pub(crate) key: RunKey,
    /// The execution that asks.
    pub(crate) step: StepId,
    /// The question.
    pub(crate) data: Value,
    /// Since when.
    pub(crate) at: Timestamp,
    /// Until when, if it times out.
    pub(crate) deadline: Option<Timestamp>,
}

/// An open question of a run, at the node of that run where it shows.
#[derive(Debug, Clone)]
pub(crate) struct Open {
    /// Its id as the run shows it: that of a child's begins with the path to the child.
    pub(crate) id: String,
    /// What kind of answer it wants.
    pub(crate) kind: InterruptKind,
    /// The execution of the run where it shows.
    pub(crate) shown_at: StepId,
    /// The child of the run that leads to it; none if the run asks.
    pub(crate) child: Option<RunId>,
    /// Where it is asked.
    pub(crate) asked: AskedAt,
    /// The children on the way to it, each with the length of its log when it was read.
    pub(crate) way: Vec<(RunKey, Seq)>,
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
pub(crate) fn here(view: &View, open: &OpenInterrupt<'_>) -> Option<Open> {
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
