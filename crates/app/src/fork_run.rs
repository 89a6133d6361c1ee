//! Forks and compares runs.
//!
//! A fork belongs to whoever its source belongs to. Whoever forks a run may see it and may start runs. A branch acts on
//! the answers that it takes over, also on approvals, so whoever makes one that takes over any may give answers.

use std::sync::Arc;

use wopr_core::{
    Event, ForkMode, KernelEvent, NodeId, Overlay, Plan, Recorded, Refusal, RunId, RunStatus, Seq, json_size,
};
use wopr_engine::{Done, ForkRun, SideRows, View};

use crate::{
    App, Caller, Error, Mask, Scope, VisibleRun,
    start_run::{check_metadata, check_tags},
};

/// Events of a log that are read at once.
const PAGE: usize = 512;

/// A fork to start, as read from a request.
#[derive(Debug)]
pub struct NewFork {
    /// From [`App::new_run_id`].
    pub run: RunId,
    pub mode: ForkMode,
    /// The first event that the fork does not take from its source.
    pub from: Seq,
    /// What a branch changes of the parameters of its source.
    pub overlay: Option<Overlay>,
    pub side_rows: SideRows,
}

/// The definition that a run is tried again with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryWith {
    /// The current version of the workflow.
    Current,
    /// The version that the run had.
    Recorded,
}

/// Two runs, and the events in which they differ.
#[derive(Debug)]
pub struct RunDiff {
    pub runs: [View; 2],
    /// In order; [`MAX_DIFFERENCES`] at most, and those after [`DIFFERENCE_BYTES`] are left out.
    pub events: Vec<EventDiff>,
    /// Whether there may be more.
    pub is_cut: bool,
}

/// The events of two logs at one position, which differ. One of them is absent if its log has ended before.
#[derive(Debug)]
pub struct EventDiff {
    pub at: Seq,
    pub events: [Option<Recorded>; 2],
}

/// Maximum number of differences that a comparison lists.
pub const MAX_DIFFERENCES: usize = 100;
/// Bytes of JSON after which a comparison lists no more: of events, and of the state.
pub const DIFFERENCE_BYTES: usize = 2 << 20;

impl App {
    /// Forks a run that the caller has found.
    pub async fn fork_run(&self, caller: &Caller, source: &VisibleRun, new: NewFork) -> Result<Done, Error> {
        caller.permit_start()?;
        caller.require(Scope::RunsRead)?;
        match new.mode {
            // It sends nothing.
            ForkMode::Replay => {}
            ForkMode::Branch => {
                self.permit_answers(caller, source, new.from).await?;
                let view = self.view(source).await?.ok_or(Error::NoRun)?;
                permit_children(caller, &view)?;
            }
        }
        if let Some(overlay) = &new.overlay {
            check_tags(overlay.tags.as_deref().unwrap_or_default())?;
            check_metadata(&overlay.metadata)?;
        }
        self.fork_with(source, None, new).await
    }

    /// Refuses a branch that takes over answers, unless the caller may give answers.
    async fn permit_answers(&self, caller: &Caller, source: &VisibleRun, from: Seq) -> Result<(), Error> {
        let Err(refusal) = caller.require(Scope::ApprovalsRespond) else {
            return Ok(());
        };
        let mut at = Seq(0);
        loop {
            let page = self.page(source, at, from).await?;
            if page.is_empty() {
                return Ok(());
            }
            if page.iter().any(is_answer) {
                return Err(refusal.into());
            }
            at = at.plus(page.len());
        }
    }

    /// Forks a failed run where the node began that failed it. Returns the event at which the fork begins.
    pub async fn retry_run(
        &self,
        caller: &Caller,
        source: &VisibleRun,
        with: RetryWith,
        run: RunId,
        side_rows: impl FnOnce(Seq) -> SideRows,
    ) -> Result<(Done, Seq), Error> {
        caller.permit_start()?;
        caller.require(Scope::RunsRead)?;
        let view = self.view(source).await?.ok_or(Error::NoRun)?;
        let failed = view.run.error.as_ref().and_then(|(_, node)| node.as_ref());
        let (RunStatus::Failed, Some(node)) = (view.run.status, failed) else {
            return Err(Refusal::NothingToRetry(view.run.status).into());
        };
        let from = self.start_of(source, &view, node).await?;
        let from = from.ok_or(Refusal::NothingToRetry(view.run.status))?;
        self.permit_answers(caller, source, from).await?;
        permit_children(caller, &view)?;
        let workflow = match with {
            RetryWith::Current => {
                let found = self.engine.find_workflow(&caller.tenant, view.plan.id()).await?;
                let current = found.filter(|plan| plan.is_active()).ok_or(Error::NoWorkflow)?;
                permit_definition(caller, &view, &current)?;
                Some(current)
            }
            RetryWith::Recorded => None,
        };
        let new = NewFork {
            run,
            mode: ForkMode::Branch,
            from,
            overlay: None,
            side_rows: side_rows(from),
        };
        Ok((self.fork_with(source, workflow, new).await?, from))
    }

    async fn fork_with(
        &self,
        source: &VisibleRun,
        workflow: Option<Arc<Plan>>,
        new: NewFork,
    ) -> Result<Done, Error> {
        let NewFork {
            run,
            mode,
            from,
            overlay,
            side_rows,
        } = new;
        // The append would find the record too, but only after the scripted model was asked again.
        if self.engine.asks_again(mode)
            && let Some(once) = &side_rows.idempotency
            && let Some(done) = self.replay(once).await?
        {
            return Ok(done);
        }
        let fork = ForkRun {
            run,
            source: (**source).clone(),
            mode,
            from,
            overlay,
            workflow,
            side_rows,
        };
        Ok(self.engine.fork(fork).await?)
    }

    /// The event with which the latest execution of a node began.
    async fn start_of(&self, run: &VisibleRun, view: &View, node: &NodeId) -> Result<Option<Seq>, Error> {
        let Some(latest) = view.run.latest_ordinal(&view.plan, node) else {
            return Ok(None);
        };
        let begins = |recorded: &Recorded| match &recorded.event {
            Event::Kernel(KernelEvent::NodeStarted { step, attempt: 0, .. }) => {
                step.node == *node && step.ordinal == latest
            }
            Event::Kernel(_) | Event::Dialect(_) => false,
        };
        let mut end = view.run.head;
        while end > Seq(0) {
            let Some(page) = self.engine.events_before(run, end, PAGE).await? else {
                return Ok(None);
            };
            if let Some(started) = page.events.iter().rev().find(|event| begins(event)) {
                return Ok(Some(started.seq));
            }
            match page.events.first() {
                Some(first) => end = first.seq,
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Compares two runs event by event. `is_same` gets the runs with an event of each, and compares what the caller may
    /// see: whether hidden values are equal would let a guess be checked.
    pub async fn diff_runs(
        &self,
        caller: &Caller,
        (a, b): (&str, &str),
        is_same: impl Fn(&[View; 2], [&Recorded; 2]) -> bool + Send + Sync,
    ) -> Result<RunDiff, Error> {
        let runs = [
            self.find_run(caller, a, Scope::RunsRead).await?,
            self.find_run(caller, b, Scope::RunsRead).await?,
        ];
        let [left, right] = &runs;
        let views = [
            self.view(left).await?.ok_or(Error::NoRun)?,
            self.view(right).await?.ok_or(Error::NoRun)?,
        ];
        let is_same = |events: [&Recorded; 2]| is_same(&views, events);
        let heads = [views[0].run.head, views[1].run.head];
        let (events, is_cut) = self.differences([left, right], heads, is_same).await?;
        Ok(RunDiff {
            runs: views,
            events,
            is_cut,
        })
    }

    async fn differences(
        &self,
        runs: [&VisibleRun; 2],
        heads: [Seq; 2],
        is_same: impl Fn([&Recorded; 2]) -> bool + Send + Sync,
    ) -> Result<(Vec<EventDiff>, bool), Error> {
        let end = heads[0].max(heads[1]);
        let (mut at, mut found) = (Seq(0), Vec::new());
        let mut n_bytes = 0;
        while at < end {
            let left = self.page(runs[0], at, heads[0]).await?;
            let right = self.page(runs[1], at, heads[1]).await?;
            // A page may have been cut short because its events are large.
            let n = match (left.len(), right.len()) {
                (0, n) | (n, 0) => n,
                (n, m) => n.min(m),
            };
            if n == 0 {
                // A log has become shorter, so the run is being removed.
                return Err(Error::NoRun);
            }
            for index in 0..n {
                let (a, b) = (left.get(index), right.get(index));
                if let (Some(a), Some(b)) = (a, b)
                    && is_same([a, b])
                {
                    continue;
                }
                if found.len() == MAX_DIFFERENCES || n_bytes > DIFFERENCE_BYTES {
                    return Ok((found, true));
                }
                n_bytes += [a, b]
                    .into_iter()
                    .flatten()
                    .map(|event| json_size(&event.event))
                    .sum::<usize>();
                found.push(EventDiff {
                    at: at.plus(index),
                    events: [a.cloned(), b.cloned()],
                });
            }
            at = at.plus(n);
        }
        Ok((found, false))
    }

    /// The next events of a log that had this length.
    async fn page(&self, run: &VisibleRun, from: Seq, head: Seq) -> Result<Vec<Recorded>, Error> {
        if from >= head {
            return Ok(Vec::new());
        }
        let page = self.events(run, from, PAGE).await?.ok_or(Error::NoRun)?;
        Ok(page
            .events
            .into_iter()
            .take_while(|event| event.seq < head)
            .collect())
    }
}

/// Refuses another definition for a run of somebody else that hides anything from the caller: its nodes could write what
/// is hidden where it is not.
fn permit_definition(caller: &Caller, view: &View, current: &Plan) -> Result<(), Refusal> {
    let is_own = view.summary.principal == caller.principal;
    if is_own || current.version() == view.plan.version() || Mask::for_caller(view, caller).hides_nothing() {
        return Ok(());
    }
    let why = "the run of another principal has values that are hidden from you, and its workflow has changed since; \
               try it again with the version that it had";
    Err(Refusal::OtherDefinition(why.to_owned()))
}

/// Refuses a branch that starts children of another principal's run with sensitive values: a child runs with the definition
/// that its workflow has by then. Contents of artifacts that a child gets are in its inputs, where they are shown anyway.
fn permit_children(caller: &Caller, view: &View) -> Result<(), Refusal> {
    let mut positions = 0..view.plan.n_nodes();
    let starts_children = positions.any(|position| view.plan.runs_workflows(position));
    let is_own = view.summary.principal == caller.principal;
    if is_own || !starts_children || Mask::of(&view.plan).hides_nothing() {
        return Ok(());
    }
    let why = "the run of another principal has values that are hidden, and its child runs would have the \
               definitions of now; replay it, or let that principal branch it or try it again";
    Err(Refusal::OtherDefinition(why.to_owned()))
}

/// Whether somebody has answered a question, or voted, with this event; or a child may have been answered since.
fn is_answer(recorded: &Recorded) -> bool {
    let Event::Kernel(event) = &recorded.event else {
        return false;
    };
    matches!(
        event,
        KernelEvent::InterruptResolved { by: Some(_), .. }
            | KernelEvent::ApprovalVoted { .. }
            | KernelEvent::NodeSuspended { child: Some(_), .. }
    )
}
