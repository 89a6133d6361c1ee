//! Children that are decided together with their parent, and committed in its batch.
//!
//! A child whose workflow never waits needs no append, no message and no load of its own: the decision that creates it
//! takes it to its end. A child that turns out to wait, that needs much work or whose decision panics starts by a
//! message, like every other.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use wopr_core::{
    Command, Decision, EndedChild, Entropy, Input, NewChild, Plan, Run, RunId, RunMessage, RunStatus,
    Startable, UndecidedChild, Work, WorkflowId, decide_counted_within, format,
};
use wopr_store::StoredEvent;

use crate::AdoptedChild;

/// The log of a child that has ended, and what its row says of it.
#[derive(Debug)]
pub(crate) struct WholeChild {
    pub(crate) events: Vec<StoredEvent>,
    pub(crate) status: RunStatus,
    pub(crate) error_code: Option<Box<str>>,
}

/// The children that are created with their logs.
#[derive(Debug, Default)]
pub(crate) struct WholeChildren {
    /// Those that one decision took to their end.
    ended: HashMap<RunId, WholeChild>,
    /// Those of an adopted run, and theirs.
    adopted: Vec<AdoptedChild>,
}

impl WholeChildren {
    pub(crate) fn of_adopted(adopted: Vec<AdoptedChild>) -> Self {
        Self {
            adopted,
            ..Self::default()
        }
    }

    pub(crate) fn remove(&mut self, child: &RunId) -> Option<WholeChild> {
        self.ended.remove(child)
    }

    pub(crate) fn into_adopted(self) -> Vec<AdoptedChild> {
        self.adopted
    }
}

/// Collects the children while the decision is made.
#[derive(Debug, Default)]
pub(crate) struct Deciding(Mutex<WholeChildren>);

impl Deciding {
    pub(crate) fn into_children(self) -> WholeChildren {
        self.0.into_inner()
    }

    /// Takes a child to its end. `plan` is the version that it starts with.
    pub(crate) fn decide(
        &self,
        plan: &Plan,
        child: &NewChild,
        input: &Input<'_>,
        units: u64,
    ) -> Result<EndedChild, UndecidedChild> {
        let catalog = Closed::default();
        let mut entropy = [0; 16];
        entropy[..10].copy_from_slice(&input.entropy.derive(child.run.as_str(), 0));
        let own = Input {
            now: input.now,
            entropy: Entropy(entropy),
            run: &child.run,
            catalog: &catalog,
        };
        let start = Command::Start(Box::new(child.start.clone()));
        // Unwind safe: what the decision changes is dropped.
        let decided = catch_unwind(AssertUnwindSafe(|| {
            decide_counted_within(units, Run::default(), plan, start, &own)
        }));
        let (decision, units) = match decided {
            Ok(Ok(Ok(decided))) => decided,
            Ok(Err(_)) => return Err(UndecidedChild::TooMuchWork),
            // The child meets the same refusal or panic when it starts by its message, and then it is handled.
            Ok(Ok(Err(_))) | Err(_) => return Err(UndecidedChild::Waits(units)),
        };
        let (message, child) = match ended(decision, child) {
            Some(ended) if !catalog.was_asked() => ended,
            Some(_) | None => return Err(UndecidedChild::Waits(units)),
        };
        let n_events = child.1.events.len();
        let n_bytes = child.1.events.iter().map(|event| event.body.len()).sum();
        self.0.lock().ended.insert(child.0, child.1);
        Ok(EndedChild {
            message,
            n_events,
            n_bytes,
            units,
        })
    }
}

/// The message and the log of a child that has ended and leaves nothing else to do.
fn ended(decision: Decision, child: &NewChild) -> Option<(RunMessage, (RunId, WholeChild))> {
    let Decision {
        run,
        events,
        work,
        heard: _,
    } = decision;
    let Work {
        effects,
        settled: _,
        parked,
        cancelled,
        answered,
        timers_set,
        // It has no timers that could be cleared.
        timers_cleared: _,
        children,
        messages,
    } = work;
    let is_idle = effects.is_empty()
        && parked.is_empty()
        && cancelled.is_empty()
        && answered.is_empty()
        && timers_set.is_empty()
        && children.is_empty();
    let mut messages = messages.into_iter();
    let (Some((_, _, message @ RunMessage::ChildEnded { .. })), None) = (messages.next(), messages.next())
    else {
        return None;
    };
    if !is_idle || !run.status.is_terminal() {
        return None;
    }
    let events = events.iter().map(|recorded| StoredEvent {
        seq: recorded.seq,
        body: format::encode_event(recorded),
    });
    let error_code = run.error.as_ref().map(|(error, _)| error.code.as_str().into());
    let whole = WholeChild {
        events: events.collect(),
        status: run.status,
        error_code,
    };
    Some((message, (child.run.clone(), whole)))
}

/// The catalog of a child that is decided here: it has no children of its own.
#[derive(Debug, Default)]
struct Closed(AtomicBool);

impl Closed {
    fn was_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl wopr_core::Catalog for Closed {
    fn current(&self, _workflow: &WorkflowId) -> Option<Arc<dyn Startable>> {
        self.0.store(true, Ordering::Relaxed);
        None
    }
}
