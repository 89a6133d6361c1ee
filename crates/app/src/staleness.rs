//! Checks that an answer without a question id still means the open question.
//!
//! A caller that answers "yes" means the question it saw last. If somebody else has answered since, or the
//! question timed out, the open question may be another one, and the answer is refused. The logs show which
//! questions were asked and who settled them; a child's question is looked up in the child's log.

use wopr_core::{Event, InterruptKind, KernelEvent, NodeId, PrincipalId, RunKey, Seq, StepId};
use wopr_engine::{Engine, View};
use wopr_store::ReadError;

use crate::{
    Caller, OpenInterrupts, Waiting,
    last_reads::LastReads,
    questions::{mirrored, within},
};

/// Events read at once.
const PAGE: usize = 256;
/// Maximum pages read. If the log is longer, the answer has to name its question.
const MAX_PAGES: u64 = 64;
/// Deepest chain of children that is followed; the kernel allows no deeper one.
const MAX_DEPTH: usize = 40;

/// The caller's knowledge of a run that it answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Looked<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) among: Among<'a>,
    /// The end of the run's log when the caller's last message was accepted.
    pub(crate) said: Seq,
}

/// The questions that the caller may mean.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Among<'a> {
    All,
    /// Those at this node.
    At(&'a NodeId),
    /// Those that are no signals. The caller is shown one of them at a time, and the answer would go to the one with
    /// this id.
    Answered {
        id: &'a str,
    },
}

impl Among<'_> {
    fn has(&self, question: &Waiting) -> bool {
        match self {
            Self::All => true,
            Self::At(node) => question.step.node == **node,
            Self::Answered { .. } => question.kind != InterruptKind::ExternalEvent,
        }
    }

    /// Returns `true` if the caller was shown another question than the one that its answer would go to.
    fn is_other(&self, shown: &[Waiting]) -> bool {
        match self {
            Self::All | Self::At(_) => false,
            Self::Answered { id } => {
                let mut shown = shown.iter().filter(|question| self.has(question)).peekable();
                shown.peek().is_some() && shown.all(|question| question.id() != *id)
            }
        }
    }
}

/// Returns `true` if somebody else has settled a question since the caller last looked or answered, in the
/// run or in a child on the way to the open question. Reads that this process does not remember count as
/// unseen.
pub(crate) async fn is_stale(
    engine: &Engine,
    last_reads: &LastReads,
    view: &View,
    way: &[(RunKey, Seq)],
    looked: Looked<'_>,
) -> Result<bool, ReadError> {
    let Looked { caller, among, said } = looked;
    let principal = &caller.principal;
    let known = |run| last_reads.of(run, principal).unwrap_or_default();
    let own = Since {
        run: &view.key,
        seq: known(&view.key).seen.max(said),
        principal,
        among,
        answering: known(&view.key).answering,
    };
    // A parent learns of its child's answers later, and only of the question it mirrors.
    let children = way.iter().map(|(run, head)| {
        let since = Since {
            run,
            seq: known(run).seen,
            principal,
            among: Among::All,
            answering: None,
        };
        (since, *head)
    });
    for (since, head) in std::iter::once((own, view.run.head)).chain(children) {
        if since.seq < head && is_changed(engine, since).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A run to check, and the position to start from.
#[derive(Debug, Clone, Copy)]
struct Since<'a> {
    run: &'a RunKey,
    /// The principal has seen everything before this position.
    seq: Seq,
    /// The principal that answers.
    principal: &'a PrincipalId,
    among: Among<'a>,
    /// The principal was not shown what came of an answer that it sent when the log ended here.
    answering: Option<Seq>,
}

/// Returns `true` if a question was settled since then, by somebody else, by a timeout, or by an answer whose
/// outcome the principal was not shown, and the principal has not settled one after it. Also if it was shown
/// another question then.
async fn is_changed(engine: &Engine, since: Since<'_>) -> Result<bool, ReadError> {
    let mut open = OpenInterrupts::default();
    let mut from = Seq(0);
    let (mut is_since, mut is_changed) = (false, false);
    for _ in 0..MAX_PAGES {
        let Some(page) = engine.events(since.run, from, PAGE).await? else {
            return Ok(true);
        };
        let Some(last) = page.events.last() else {
            return Ok(is_changed);
        };
        from = last.seq.next();
        for recorded in &page.events {
            if recorded.seq < since.seq {
                open.apply(&recorded.event);
                continue;
            }
            if !is_since {
                is_since = true;
                is_changed = since.among.is_other(open.as_slice());
            }
            let before = open.as_slice().to_vec();
            open.apply(&recorded.event);
            for gone in before {
                if !since.among.has(&gone) || open.as_slice().contains(&gone) {
                    continue;
                }
                let is_unseen = since.answering.is_some_and(|answering| recorded.seq >= answering);
                is_changed = is_unseen || !is_by(engine, since, &gone, &recorded.event).await?;
            }
        }
    }
    Ok(true)
}

/// Returns `true` if the principal itself settled the question.
async fn is_by(engine: &Engine, since: Since<'_>, gone: &Waiting, event: &Event) -> Result<bool, ReadError> {
    let name = since.principal.as_str();
    let Some((child, id)) = &gone.child else {
        let Event::Kernel(KernelEvent::InterruptResolved { by, .. }) = event else {
            return Ok(false);
        };
        return Ok(by.as_deref() == Some(name));
    };
    let child = since.run.sibling(child.clone());
    let by = answerer(engine, child, within(id, &gone.step)).await?;
    Ok(by.as_deref() == Some(name))
}

/// Finds who answered a question of a run, or of the child that it mirrors.
async fn answerer(engine: &Engine, run: RunKey, id: &str) -> Result<Option<String>, ReadError> {
    let (mut run, mut id) = (run, id);
    for _ in 0..MAX_DEPTH {
        match find(engine, &run, id).await? {
            Some(Found::By(by)) => return Ok(by),
            Some(Found::Child(child, step)) => {
                run = child;
                id = within(id, &step);
            }
            None => return Ok(None),
        }
    }
    Ok(None)
}

enum Found {
    By(Option<String>),
    Child(RunKey, StepId),
}

async fn find(engine: &Engine, run: &RunKey, id: &str) -> Result<Option<Found>, ReadError> {
    let mut from = Seq(0);
    for _ in 0..MAX_PAGES {
        let Some(page) = engine.events(run, from, PAGE).await? else {
            return Ok(None);
        };
        let Some(last) = page.events.last() else {
            return Ok(None);
        };
        from = last.seq.next();
        for recorded in &page.events {
            let Event::Kernel(event) = &recorded.event else {
                continue;
            };
            if let KernelEvent::InterruptResolved { step, by, number, .. } = event
                && step.interrupt(*number) == id
            {
                return Ok(Some(Found::By(by.clone())));
            }
            if let Some((child, step)) = mirrored(event, id) {
                return Ok(Some(Found::Child(run.sibling(child.clone()), step.clone())));
            }
        }
    }
    Ok(None)
}
