//! Finds executions by the ids that the protocol gives them.
//!
//! An execution has the id that its caller chose. A child has its parent's, `:sub:` and the name of the node; where
//! the caller chose none, the execution has the id of its run.

use futures_util::future::BoxFuture;
use wopr_app::{App, Error as AppError, Scope, View, VisibleRun};
use wopr_core::{StepId, awp};

use super::error::Error;
use crate::{Host, auth::Caller};

/// The most parents of an execution that is addressed by its name.
const MAX_DEPTH: usize = 40;

/// The execution with this id, if the caller may see it and it is in the protocol's language.
pub(super) async fn find(host: &Host, caller: &Caller, id: &str, scope: Scope) -> Result<View, Error> {
    let run = match named(host, caller, id, scope, MAX_DEPTH).await? {
        Some(run) => run,
        None => match host.app().find_run(caller, id, scope).await {
            Ok(run) => run,
            Err(AppError::NoRun) => return Err(Error::no_execution(id)),
            Err(error) => return Err(error.into()),
        },
    };
    let view = host.app().view(&run).await?;
    let view =
        view.filter(|view| view.plan.awp().is_some() && view.run.awp().is_some() && execution_id(view) == id);
    view.ok_or_else(|| Error::no_execution(id))
}

/// A listed run, if it is in the protocol's language and still there.
pub(super) async fn find_listed(app: &App, run: &VisibleRun) -> Result<Option<View>, Error> {
    let view = app.view(run).await?;
    Ok(view.filter(|view| view.plan.awp().is_some() && view.run.awp().is_some()))
}

/// The run with a name that its caller, or the parent's, chose.
fn named<'f>(
    host: &'f Host,
    caller: &'f Caller,
    id: &'f str,
    scope: Scope,
    depth: usize,
) -> BoxFuture<'f, Result<Option<VisibleRun>, Error>> {
    Box::pin(async move {
        let Some((parent, _)) = id.rsplit_once(awp::CHILD_MARK).filter(|_| depth > 0) else {
            return match host.app().find_alias(caller, id, scope).await {
                Ok(run) => Ok(Some(run)),
                Err(AppError::NoRun) => Ok(None),
                Err(error) => Err(error.into()),
            };
        };
        let Some(parent) = named(host, caller, parent, scope, depth - 1).await? else {
            return Ok(None);
        };
        let Some(view) = host.app().view(&parent).await? else {
            return Ok(None);
        };
        let Some(alias) = &view.summary.alias else {
            return Ok(None);
        };
        let mut children = view.run.own_children().rev();
        let child = children.find(|child| awp::child_execution_id(alias, &child.step) == id);
        match child {
            Some(child) => Ok(Some(
                host.app().find_run(caller, child.run.as_str(), scope).await?,
            )),
            None => Ok(None),
        }
    })
}

/// The id of an execution.
pub(super) fn execution_id(view: &View) -> String {
    match &view.summary.alias {
        Some(alias) => alias.clone(),
        None => view.key.run.to_string(),
    }
}

/// The id of the child that a step of an execution has started.
pub(super) fn child_id(view: &View, child: &wopr_core::RunId, step: &StepId) -> String {
    match &view.summary.alias {
        Some(alias) => awp::child_execution_id(alias, step),
        None => child.to_string(),
    }
}
