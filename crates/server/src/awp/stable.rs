//! Waits until an execution has ended or waits for its host, as long as the host allows.
//!
//! An execution whose child waits for the host waits as well: nothing happens until the child gets what it waits for.

use std::pin::pin;

use futures_util::future::{BoxFuture, FutureExt as _, select_all};
use serde_json::Value;
use wopr_app::{App, Caller, Question, View, VisibleRun};
use wopr_core::{
    Asked, InterruptKind, OpenInterrupt, Planned, PrincipalId, RunId, RunStatus, StepId,
    awp::{self, AwaitedActivity, AwaitedSignal, ExecutionPhase, ExecutionStatus},
};

use super::{error::Error, execution::execution_id};
use crate::{Host, auth};

/// The most children, below each other or in branches that are under way at once, that are looked at.
const MAX_CHILDREN: usize = 40;

/// An execution, and what it does.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) view: View,
    pub(super) status: ExecutionStatus,
    /// The question that an answer goes to if it names none.
    pub(super) question: Option<Question>,
    /// The first of its children, and theirs, that the execution waits for and that wait for the host.
    child: Option<Box<Standing>>,
    /// The others, which there are only if branches are under way at once.
    pub(super) others: Vec<Waiting>,
}

/// The activities that an execution waits for. It does not hold the loaded run, so that the next one has room in memory.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) execution: String,
    pub(super) principal: PrincipalId,
    pub(super) activities: Vec<AwaitedActivity>,
}

impl Waiting {
    pub(super) fn of(standing: &Standing) -> Self {
        Self {
            execution: execution_id(&standing.view),
            principal: standing.view.summary.principal.clone(),
            activities: standing.status.activities.clone(),
        }
    }
}

impl Standing {
    pub(super) fn of(view: View) -> Self {
        let status = status(&view);
        Self {
            view,
            status,
            question: None,
            child: None,
            others: Vec::new(),
        }
    }

    /// Notes that a caller is shown the execution as it is, with the question that it would answer.
    pub(super) fn note(&self, app: &App, caller: &Caller) {
        app.note_view(caller, &self.view);
        app.note_questions(caller, self.question.as_slice());
    }

    /// All that wait for the host: the execution, its children and theirs.
    pub(super) fn waiting(&self) -> impl Iterator<Item = Waiting> {
        let own = std::iter::once(self).chain(self.child.as_deref());
        own.map(Waiting::of).chain(self.others.iter().cloned())
    }

    /// The child that the execution waits for, if the execution itself waits for nothing else.
    pub(super) fn child(&self) -> Option<&Self> {
        let is_running = self.status.phase == ExecutionPhase::Running;
        self.child.as_deref().filter(|_| is_running)
    }

    /// Whether nothing happens until the host does something. What a child asks is asked by its parent, too, a moment later:
    /// only then can it be answered there, and a moment longer than the child asks it.
    fn is_stable(&self) -> bool {
        let waits_for_work = |child: &Self| child.status.phase == ExecutionPhase::AwaitingActivity;
        match self.status.phase {
            // A child of a cancelled execution has not heard of it yet.
            ExecutionPhase::Running if self.view.run.status == RunStatus::Cancelling => false,
            ExecutionPhase::Running => self.child.as_deref().is_some_and(waits_for_work),
            ExecutionPhase::Interrupted => self.question.is_some(),
            ExecutionPhase::AwaitingSignal => self.status.signal_name.is_some(),
            ExecutionPhase::AwaitingActivity
            | ExecutionPhase::Completed
            | ExecutionPhase::Failed
            | ExecutionPhase::Cancelled => true,
        }
    }
}

/// What an execution does. It is in the protocol's language.
pub(super) fn status(view: &View) -> ExecutionStatus {
    let plan = view
        .plan
        .awp()
        .expect("an execution is in the language of the protocol");
    let (run, state) = view.run.awp().expect("its run, too");
    awp::status(plan, (&view.key.run, run, state))
}

/// Looks at an execution and at the children it waits for. Returns it with those that are under way.
pub(super) async fn look(app: &App, view: View) -> Result<(Standing, Vec<VisibleRun>), Error> {
    let mut standing = Standing::of(view);
    if standing.status.phase == ExecutionPhase::AwaitingSignal && standing.status.signal_name.is_none() {
        let signals = signals_of_children(app, &standing.view).await?;
        if let Some((signal, child)) = signals.into_iter().next() {
            standing.status.signal_name = Some(signal.name);
            standing.status.current_node = Some(signal.node);
            standing.status.child = Some(child);
        }
    }
    standing.question = question(app, &standing.view).await?;
    let mut found = Found::default();
    let mut via = None;
    for next in waits_for(&standing) {
        found.add(app, &standing.view, vec![next.clone()]).await?;
        if found.child.is_some() {
            via.get_or_insert(next);
        }
    }
    let Found {
        waited_for,
        child,
        others,
    } = found;
    // The node is the one that waits for the child that is named, or for a parent of it.
    let mut children = standing.view.run.children.iter();
    if standing.status.phase == ExecutionPhase::Running
        && let Some(child) = children.find(|child| via.as_ref() == Some(&child.run))
    {
        standing.status.current_node = Some(child.step.node.to_string());
        standing.status.child = Some((child.run.clone(), child.step.clone()));
    }
    standing.child = child.map(Box::new);
    standing.others = others;
    Ok((standing, waited_for))
}

/// Whether a run takes answers as far as its status says it.
pub(super) const fn may_be_answered(status: RunStatus) -> bool {
    match status {
        RunStatus::WaitingApproval | RunStatus::WaitingInput | RunStatus::WaitingExternal => true,
        RunStatus::Pending
        | RunStatus::Running
        | RunStatus::Paused
        | RunStatus::Cancelling
        | RunStatus::Completed
        | RunStatus::Failed
        | RunStatus::Cancelled => false,
    }
}

/// The question of an execution that an answer goes to if it names none. `None` if the child that asked has its answer
/// already, and the execution has not heard of it yet.
pub(super) async fn question(app: &App, view: &View) -> Result<Option<Question>, Error> {
    let Some((plan, (run, _))) = view.plan.awp().zip(view.run.awp()) else {
        return Ok(None);
    };
    let asked = awp::question(plan, run).filter(|_| may_be_answered(view.run.status));
    match asked.map(|open| (open.node.to_string(), open.id())) {
        Some((node, id)) => Ok(app.question_at_node(view, &node, Some(&id)).await?),
        None => Ok(None),
    }
}

/// The signals that children of an execution wait for, and theirs, in the order of its document, each with its child. Each
/// is answered at the execution itself, by the id of the interrupt with which it asks what its child asks.
pub(super) async fn signals_of_children(
    app: &App,
    view: &View,
) -> Result<Vec<(AwaitedSignal, (RunId, StepId))>, Error> {
    let Some(plan) = view.plan.awp() else {
        return Ok(Vec::new());
    };
    // An interrupt that only mirrors what a child asks says nothing about it.
    let mirrors = |open: OpenInterrupt<'_>| matches!(open.asked, Asked::Child(..));
    if !view.run.interrupts(&view.plan).any(mirrors) {
        return Ok(Vec::new());
    }
    let questions = app.open_questions(view).await?.into_iter();
    let mut signals: Vec<_> = questions
        .filter(|question| question.waiting.kind == InterruptKind::ExternalEvent)
        .filter_map(|question| {
            let interrupt = question.waiting.id();
            let (child, _) = question.waiting.child?;
            let step = question.waiting.step;
            let signal = AwaitedSignal {
                name: signal_name(&question.asked?.data)?.to_owned(),
                node: step.node.to_string(),
                interrupt,
            };
            Some((signal, (child, step)))
        })
        .collect();
    signals.sort_by_key(|(_, (_, step))| plan.position(&step.node));
    Ok(signals)
}

/// The name of the signal that answers a question: what a `wait` waits for or, in an OpenWOP workflow, the type of the
/// event.
fn signal_name(data: &Value) -> Option<&str> {
    let name = data.get("signal").or_else(|| data.get("eventType"));
    name.and_then(Value::as_str)
}

/// The children that an execution waits for.
#[derive(Debug, Default)]
struct Found {
    waited_for: Vec<VisibleRun>,
    child: Option<Standing>,
    others: Vec<Waiting>,
}

impl Found {
    /// Adds children of an execution, and theirs, in the order of their starts.
    fn add<'f>(
        &'f mut self,
        app: &'f App,
        parent: &'f View,
        children: Vec<RunId>,
    ) -> BoxFuture<'f, Result<(), Error>> {
        Box::pin(async move {
            for child in children {
                if self.waited_for.len() == MAX_CHILDREN {
                    break;
                }
                let Some(found) = app.child(parent, &child).await? else {
                    continue;
                };
                self.waited_for.push(VisibleRun::from(&found));
                // A child in another language shows its questions through its parent.
                if found.plan.awp().is_none() || found.run.awp().is_none() {
                    continue;
                }
                let child = Standing::of(found);
                self.add(app, &child.view, waits_for(&child)).await?;
                let waits = child.status.phase != ExecutionPhase::Running;
                if !waits || child.view.run.status.is_terminal() {
                    continue;
                }
                match self.child {
                    None => self.child = Some(child),
                    Some(_) => self.others.push(Waiting::of(&child)),
                }
            }
            Ok(())
        })
    }
}

/// The children that an execution waits for, in the order of their starts. Of one that waits for something else as well, only
/// an execution whose branches are under way at once has any.
fn waits_for(standing: &Standing) -> Vec<RunId> {
    let status = &standing.status;
    if standing.view.run.status.is_terminal()
        || (status.phase != ExecutionPhase::Running && !status.is_parallel)
    {
        return Vec::new();
    }
    let children = standing.view.run.children.iter();
    let open = children.filter(|child| !child.ended);
    open.map(|child| child.run.clone()).collect()
}

/// Waits until an execution is stable, the host closes, or its budget for waits is used up; returns the execution as it
/// is then.
///
/// Nothing of it is held in between: the memory of a loaded run is needed for its next decision.
pub(super) async fn wait(host: &Host, view: View) -> Result<Standing, Error> {
    let app = host.app();
    let run = VisibleRun::from(&view);
    let mut closing = host.closing();
    let mut given_up = pin!(async {
        let budget = tokio::time::sleep(host.config().awp.wait_budget.as_duration());
        tokio::select! {
            () = budget => {}
            _ = closing.wait_for(|is_closing| *is_closing) => {}
        }
    });
    let (mut standing, mut children) = look(app, view).await?;
    let mut tails: Vec<(VisibleRun, _)> = Vec::new();
    loop {
        if standing.is_stable() {
            return Ok(standing);
        }
        drop(standing);
        let mut wanted = std::iter::once(&run).chain(&children);
        let mut is_over = false;
        if tails.is_empty() || wanted.any(|run| tails.iter().all(|(of, _)| of != run)) {
            // A tail says nothing of what happened before it, so the execution is looked at again.
            let followed = std::iter::once(&run).chain(&children);
            tails = followed.map(|run| (run.clone(), app.tail(run))).collect();
        } else {
            let changes = tails.iter_mut().map(|(_, tail)| tail.changed().boxed());
            auth::wait(async {
                tokio::select! {
                    _ = select_all(changes) => {}
                    () = &mut given_up => is_over = true,
                }
            })
            .await;
        }
        let view = app.view(&run).await?;
        let view = view.ok_or_else(|| Error::no_execution(run.run.as_str()))?;
        (standing, children) = look(app, view).await?;
        if is_over {
            return Ok(standing);
        }
    }
}
