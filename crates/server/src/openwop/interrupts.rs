//! Answering interrupts: by run and node with a credential, or by a token that is one.

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use wopr_core::{Asked, Command, NodeId, PrincipalId, Refusal, Resolve, RunId, RunKey, RunStatus};
use wopr_engine::{CommandError, View};
use wopr_store::RunFilter;
use wopr_wire::openwop::{
    control::{ResolveInterruptRequest, ResolveInterruptResponse},
    run::InterruptView,
};

use super::{
    answer::{Answer, json_response},
    call::Call,
    once,
    problem::{Problem, no_interrupt},
    render,
    runs::{Page, any_object, cursor, status_body},
    waiting,
};
use crate::{
    Host,
    auth::{Caller, Scope},
    tokens::{Claims, Intent},
};

/// In whose name a token's holder answers: a token names nobody.
const TOKEN_HOLDER: &str = "interrupt-token";

/// In whose name an answer counts, if not its sender's. Voting for others takes a key that manages keys, or the
/// conformance mode, whose suite has a single credential.
///
/// # Errors
/// The sender may not vote for others.
pub fn voter(host: &Host, caller: &Caller, value: &Value) -> Result<Option<String>, Problem> {
    let voter = value.get("voter").and_then(Value::as_str);
    let Some(voter) = voter.filter(|voter| *voter != caller.principal.as_str()) else {
        return Ok(None);
    };
    if host.config().conformance || caller.may(Scope::KeysManage) {
        Ok(Some(voter.to_owned()))
    } else {
        Err(Problem::forbidden("the credential may not vote for others")
            .with("scopeRequired", Scope::KeysManage.as_str()))
    }
}

/// `POST /v1/runs/{runId}/interrupts/{nodeId}`
pub(super) fn resolve(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let request: ResolveInterruptRequest = call.decode()?;
        answer(&call, request.resume_value).await
    }
    .boxed()
}

/// `POST /v1/runs/{runId}/approvals/{nodeId}`
pub(super) fn approve(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let value = any_object(&call)?;
        answer(&call, value).await
    }
    .boxed()
}

async fn answer(call: &Call, value: Value) -> Answer {
    let key = call.run()?;
    let caller = call.caller();
    let once = once::Request::of(call)?;
    let voter = voter(&call.host, caller, &value)?;
    let node = call.param(1).to_owned();
    let resolve = Resolve {
        node: NodeId::parse(&node).map_err(|_| no_interrupt())?,
        ordinal: None,
        value,
        by: caller.principal.clone(),
        voter,
        by_token: false,
        is_untrusted: false,
    };
    let run = key.run.clone();
    let respond = move |view: &View| (StatusCode::OK, resolved(&run, &node, view));
    let extras = once::Request::extras(once, call, respond.clone());
    let done = call
        .host
        .engine()
        .command(&key, Command::Resolve(resolve), extras);
    match done.await {
        Ok(done) => once::answer(call, &done, respond).await,
        Err(error) => Err(late(error).into()),
    }
}

/// An interrupt of a run that has ended otherwise has its answer, as far as a latecomer is concerned.
fn late(error: CommandError) -> CommandError {
    match error {
        CommandError::Refused(Refusal::Terminal(_)) => Refusal::AlreadyResolved.into(),
        CommandError::Refused(Refusal::WrongState) => Refusal::NoInterrupt.into(),
        error => error,
    }
}

fn resolved(run: &RunId, node: &str, view: &View) -> Vec<u8> {
    // An answer that went to a child says how that child stands; the parent hears of it next.
    let status = if view.key.run != *run && view.run.status.is_terminal() {
        RunStatus::Running
    } else {
        view.run.status
    };
    status_body(&ResolveInterruptResponse {
        run_id: run.to_string(),
        node_id: node.to_owned(),
        status: render::status(status),
    })
}

/// `GET /v1/interrupts/{token}`
pub(super) fn inspect(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let engine = call.host.engine();
        let (claims, expires_at) = call.host.tokens().open_until(call.param(0), engine.now())?;
        let view = engine.view(&claims.key).await?.ok_or_else(no_interrupt)?;
        let open = view
            .run
            .interrupts(&view.plan)
            .find(|open| *open.node == claims.node && open.ordinal == claims.ordinal);
        let shown = match open.map(|open| open.asked) {
            Some(Asked::Here(_)) if view.run.status != RunStatus::Cancelling => {
                waiting::here(&call.host, &view, &claims.node, false)
            }
            Some(_) | None => None,
        };
        let mut shown = shown.ok_or_else(|| closed(&view))?;
        // As in the document the token came with: until when it answers.
        shown.expires_at = Some(render::time(expires_at));
        json_response(StatusCode::OK, &shown)
    }
    .boxed()
}

/// Why the interrupt of a true token is open no more.
fn closed(view: &View) -> Problem {
    if view.run.cancelled_by_parent.is_some() {
        Refusal::InterruptGone.into()
    } else {
        Refusal::AlreadyResolved.into()
    }
}

/// `POST /v1/interrupts/{token}`
pub(super) fn resolve_by_token(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        // The token comes first: who has none learns nothing about bodies.
        let engine = call.host.engine();
        let claims = call.host.tokens().open(call.param(0), engine.now())?;
        if claims.intent == Intent::Inspect {
            return Err(Problem::forbidden("the token is for looking only"));
        }
        let request: ResolveInterruptRequest = call.decode()?;
        let by = PrincipalId::parse(TOKEN_HOLDER).map_err(|_| Problem::internal())?;
        let once = once::Request::of_holder(&call, &claims, &by)?;
        let Claims {
            key, node, ordinal, ..
        } = claims;
        let voter = request.resume_value.get("voter").and_then(Value::as_str);
        let resolve = Resolve {
            node: node.clone(),
            ordinal: Some(ordinal),
            voter: voter
                .filter(|_| call.host.config().conformance)
                .map(str::to_owned),
            value: request.resume_value,
            by,
            by_token: true,
            is_untrusted: false,
        };
        let run = key.run.clone();
        let respond = move |view: &View| (StatusCode::OK, resolved(&run, node.as_str(), view));
        let extras = once::Request::extras(once, &call, respond.clone());
        match engine.command(&key, Command::Resolve(resolve), extras).await {
            Ok(done) => once::answer(&call, &done, respond).await,
            Err(error) => Err(invalidated(&call.host, &key, late(error)).await),
        }
    }
    .boxed()
}

/// A cancelled run has invalidated its tokens: 409, or 410 if a parent's cancel did (section 13.7).
async fn invalidated(host: &Host, key: &RunKey, error: CommandError) -> Problem {
    match error {
        CommandError::NotFound => no_interrupt(),
        CommandError::Refused(
            Refusal::InterruptCancelled | Refusal::AlreadyResolved | Refusal::NoInterrupt,
        ) => match host.engine().view(key).await {
            Ok(Some(view)) => closed(&view),
            Ok(None) => no_interrupt(),
            Err(error) => error.into(),
        },
        error => error.into(),
    }
}

/// An open interrupt in a list.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    run_id: String,
    workflow_id: String,
    #[serde(flatten)]
    interrupt: InterruptView,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct List {
    interrupts: Vec<Item>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// `GET /v1/interrupts`: pages are of runs, so one may hold more or fewer interrupts than its limit.
pub(super) fn list(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let Page { limit, after } = Page::of(&call)?;
        let filter = RunFilter {
            statuses: vec![
                RunStatus::WaitingApproval,
                RunStatus::WaitingInput,
                RunStatus::WaitingExternal,
            ],
            ..RunFilter::default()
        };
        let engine = call.host.engine();
        let tenant = &call.caller().tenant;
        let page = engine
            .store()
            .list_runs(tenant, &filter, after.as_ref(), limit)
            .await?;
        let next_cursor = page
            .has_more
            .then(|| page.runs.last().map(|(run, _, _)| cursor(run)))
            .flatten();
        let mut interrupts = Vec::new();
        for (run, summary, _) in page.runs {
            let key = RunKey::new(tenant.clone(), run);
            let Some(view) = engine.view(&key).await? else {
                continue;
            };
            // What a child asks is listed once, at the child.
            for open in view.run.interrupts(&view.plan) {
                let Some(interrupt) = waiting::here(&call.host, &view, open.node, false) else {
                    continue;
                };
                interrupts.push(Item {
                    run_id: key.run.to_string(),
                    workflow_id: summary.workflow.to_string(),
                    interrupt,
                });
            }
        }
        json_response(
            StatusCode::OK,
            &List {
                interrupts,
                next_cursor,
            },
        )
    }
    .boxed()
}
