//! Why a question takes no answer any more, as the log of the run that asked it says.

use std::fmt;

use wopr_core::{ApprovalAction, Event, KernelEvent, Recorded, RunKey, RunStatus, Timestamp};

use crate::{
    App, Error, VisibleRun,
    questions::{mirrored, within},
};

/// Events read at once, and maximum number of pages. An answer further back is not looked for.
const PAGE: usize = 256;
const MAX_PAGES: u64 = 8;
/// Deepest chain of children that is followed; the kernel allows no deeper one.
const MAX_DEPTH: usize = 40;

/// How a question was closed. The text of each variant completes a sentence that begins with "the question".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    Answered {
        /// The action of an approval.
        action: Option<ApprovalAction>,
        at: Timestamp,
    },
    TimedOut,
    /// The agent that asked no longer wants an answer.
    Withdrawn,
    /// The run that asked ended, or is being cancelled, and nobody had answered.
    RunEnded(RunStatus),
    /// The question is closed; the log says nothing more, or says it too far back.
    Closed,
}

impl Settled {
    /// A word that clients may compare.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Answered { .. } => "answered",
            Self::TimedOut => "timed-out",
            Self::Withdrawn => "withdrawn",
            Self::RunEnded(_) => "run-ended",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered { .. } => f.write_str("has been answered already"),
            Self::TimedOut => f.write_str("was not answered in time"),
            Self::Withdrawn => f.write_str("was withdrawn by the agent that asked it"),
            Self::RunEnded(status) => write!(
                f,
                "needs no answer any more: the run that asked it is {}",
                status.as_str()
            ),
            Self::Closed => f.write_str("is no longer open"),
        }
    }
}

impl App {
    /// What happened to a question of a run that takes no answer any more.
    pub async fn settled(&self, run: &VisibleRun, interrupt: &str) -> Result<Settled, Error> {
        self.settled_in(run, interrupt).await
    }

    pub(crate) async fn settled_in(&self, run: &RunKey, interrupt: &str) -> Result<Settled, Error> {
        let (mut run, mut id) = (run.clone(), interrupt);
        for _ in 0..MAX_DEPTH {
            match self.end_of(&run, id).await? {
                Some(Found::Here(settled)) => return Ok(settled),
                Some(Found::Child(child, rest)) => (run, id) = (child, rest),
                None => break,
            }
        }
        let Some(view) = self.engine.view(&run).await? else {
            return Ok(Settled::Closed);
        };
        let status = view.run.status;
        if status.is_terminal() || status == RunStatus::Cancelling {
            return Ok(Settled::RunEnded(status));
        }
        // Its timer may fire late, and takes no answer from the deadline on.
        let is_open = view.run.interrupts(&view.plan).any(|open| open.id() == id);
        Ok(if is_open {
            Settled::TimedOut
        } else {
            Settled::Closed
        })
    }

    /// Looks for the end of a question in a log, or for the child that asked it.
    async fn end_of<'i>(&self, run: &RunKey, id: &'i str) -> Result<Option<Found<'i>>, Error> {
        let Some(mut end) = self.engine.head(run).await? else {
            return Ok(None);
        };
        // Closed without an answer; the request says whose question it was.
        let mut is_unanswered = false;
        for _ in 0..MAX_PAGES {
            let Some(page) = self.engine.events_before(run, end, PAGE).await? else {
                break;
            };
            let Some(first) = page.events.first() else { break };
            for Recorded { event, at, .. } in page.events.iter().rev() {
                let Event::Kernel(event) = event else { continue };
                if let KernelEvent::InterruptResolved {
                    step,
                    by,
                    action,
                    number,
                    ..
                } = event
                    && step.interrupt(*number) == id
                {
                    if by.is_some() {
                        let (action, at) = (*action, *at);
                        return Ok(Some(Found::Here(Settled::Answered { action, at })));
                    }
                    is_unanswered = true;
                } else if let KernelEvent::InterruptRequested {
                    step, number, remote, ..
                } = event
                    && step.interrupt(*number) == id
                {
                    let settled = match remote {
                        Some(_) => Settled::Withdrawn,
                        None => Settled::TimedOut,
                    };
                    return Ok(is_unanswered.then_some(Found::Here(settled)));
                } else if let Some((child, step)) = mirrored(event, id) {
                    return Ok(Some(Found::Child(run.sibling(child.clone()), within(id, step))));
                }
            }
            end = first.seq;
        }
        Ok(is_unanswered.then_some(Found::Here(Settled::TimedOut)))
    }
}

enum Found<'i> {
    Here(Settled),
    Child(RunKey, &'i str),
}
