//! Waits until an execution has ended or waits for its host, as long as the host allows.
//!
//! An execution whose child waits for the host waits as well: nothing happens until the child gets what it waits for.

use std::pin::pin;

use futures_util::future::{BoxFuture, FutureExt as _, select_all};
use wopr_app::{App, View, VisibleRun};
use wopr_core::{
    Asked, InterruptKind, PrincipalId, RunId,
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
            child: None,
            others: Vec::new(),
        }
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
    /// only then can it be answered there.
    fn is_stable(&self) -> bool {
        let waits_for_work = |child: &Self| child.status.phase == ExecutionPhase::AwaitingActivity;
        self.status.phase != ExecutionPhase::Running || self.child.as_deref().is_some_and(waits_for_work)
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
        standing.status.signal_name = signals.into_iter().next().map(|signal| signal.name);
    }
    let mut found = Found::default();
    let next = waits_for(&standing);
    found.add(app, &standing.view, next).await?;
    let Found {
        waited_for,
        child,
        others,
    } = found;
    standing.child = child.map(Box::new);
    standing.others = others;
    Ok((standing, waited_for))
}

/// The signals that children of an execution wait for, and theirs. Each is answered at the execution itself, by the id of
/// the interrupt with which it asks what its child asks.
pub(super) async fn signals_of_children(app: &App, view: &View) -> Result<Vec<AwaitedSignal>, Error> {
    let mut signals = Vec::new();
    let Some((run, _)) = view.run.awp() else {
        return Ok(signals);
    };
    let open: Vec<_> = run
        .interrupts(&**view.plan)
        .filter(|open| open.kind() == InterruptKind::ExternalEvent)
        .filter_map(|open| match open.asked {
            Asked::Child(child, _, id) => Some((open.node.to_string(), child.clone(), id.to_owned())),
            Asked::Here(_) => None,
        })
        .take(MAX_CHILDREN)
        .collect();
    for (node, child, interrupt) in open {
        if let Some(name) = signal_of(app, view, child, &interrupt).await? {
            signals.push(AwaitedSignal {
                name,
                node,
                interrupt,
            });
        }
    }
    Ok(signals)
}

/// The signal for which the child waits, or one of its children, to which the interrupt leads.
fn signal_of<'a>(
    app: &'a App,
    parent: &'a View,
    child: RunId,
    interrupt: &'a str,
) -> BoxFuture<'a, Result<Option<String>, Error>> {
    Box::pin(async move {
        let Some((_, rest)) = interrupt.split_once('/') else {
            return Ok(None);
        };
        let Some(view) = app.child(parent, &child).await? else {
            return Ok(None);
        };
        let (Some(plan), Some((run, _))) = (view.plan.awp(), view.run.awp()) else {
            return Ok(None);
        };
        let own = awp::awaited_signals(plan, run);
        if let Some(own) = own.into_iter().find(|signal| signal.interrupt == rest) {
            return Ok(Some(own.name));
        }
        let next = run.interrupts(plan).find_map(|open| match open.asked {
            Asked::Child(child, _, id) if id == rest => Some(child.clone()),
            Asked::Child(..) | Asked::Here(_) => None,
        });
        match next {
            Some(next) => signal_of(app, &view, next, rest).await,
            None => Ok(None),
        }
    })
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
