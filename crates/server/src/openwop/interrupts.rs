//! Resolves interrupts: by run and node with a credential, or by token.

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use wopr_app::{
    Error as AppError, Forbidden, MAX_SHOWN, NodeAnswer, NodeAnswerError, Principals, Question, Settled,
    TokenAnswer, View, VisibleRun, reads_artifacts,
};
use wopr_core::{Asked, Membership, PrincipalId, Refusal, RunId, RunStatus, json_size};
use wopr_wire::{
    json::{Decode, DecodeError, Fields},
    openwop::{
        control::{ResolveInterruptRequest, ResolveInterruptResponse},
        run::InterruptView,
    },
    time::Timestamp,
};

use super::{
    answer::{Answer, json_response},
    call::Call,
    idempotency, interrupt_page,
    problem::{Problem, no_interrupt},
    render,
    runs::{Page, any_object, cursor, read_cursor, status_body},
    waiting,
};
use crate::{
    Host,
    auth::Scope,
    page, telemetry,
    tokens::{Claims, Holder, Intent},
};

/// The principal recorded for an answer by a token without a name; whoever received the token may have passed
/// it on.
const TOKEN_HOLDER: &str = "interrupt-token";

/// A page of interrupts ends early beyond this size in bytes of JSON.
const PAGE_BYTES: usize = 2 << 20;

/// `POST /v1/runs/{runId}/interrupts/{nodeId}`
pub(super) fn resolve(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let ResolveInterruptRequest {
            resume_value,
            interrupt_id,
        } = call.decode()?;
        answer(&call, resume_value, interrupt_id, |error| error).await
    }
    .boxed()
}

/// `POST /v1/runs/{runId}/approvals/{nodeId}`
pub(super) fn approve(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let mut value = any_object(&call)?;
        let interrupt = match value
            .as_object_mut()
            .and_then(|fields| fields.remove("interruptId"))
        {
            None => None,
            Some(Value::String(id)) => Some(id),
            Some(_) => return Err(Problem::field("interruptId", "must be a string")),
        };
        answer(&call, value, interrupt, cancelled_first).await
    }
    .boxed()
}

/// An answer that loses to a cancel is one that came too late: clients that race the two expect 409 from this
/// route, and 422 only from the other one (section 13.6).
fn cancelled_first(error: NodeAnswerError) -> NodeAnswerError {
    match error {
        NodeAnswerError::Failed(AppError::Refused(Refusal::InterruptCancelled)) => {
            AppError::Settled(Settled::RunEnded(RunStatus::Cancelled)).into()
        }
        error => error,
    }
}

async fn answer(
    call: &Call,
    value: Value,
    interrupt: Option<String>,
    refused: fn(NodeAnswerError) -> NodeAnswerError,
) -> Answer {
    let run = call.visible_run(Scope::ApprovalsRespond).await?;
    let caller = call.caller();
    let once = idempotency::Request::of(call)?;
    let node = call.param(1).to_owned();
    let answer = NodeAnswer {
        node: node.clone(),
        interrupt,
        value,
    };
    let id = run.run.clone();
    let respond = move |view: &View| (StatusCode::OK, resolved(&id, &node, view));
    let side_rows = idempotency::Request::side_rows(once, call, respond.clone());
    let app = call.host.app();
    match app.answer_at_node(caller, &run, answer, side_rows).await {
        Ok(done) => idempotency::answer(call, &done, respond).await,
        Err(error) => Err(refused(error).into()),
    }
}

impl From<NodeAnswerError> for Problem {
    fn from(error: NodeAnswerError) -> Self {
        let conflict = |code, message: &'static str| Self::new(StatusCode::CONFLICT, code, message);
        match error {
            NodeAnswerError::NotTheVoter(Forbidden(scope)) => {
                Self::forbidden("the credential may not vote for others")
                    .with("scopeRequired", scope.as_str())
            }
            NodeAnswerError::Ambiguous(ids) => conflict(
                "interrupt_ambiguous",
                "the node asks several questions: name one by interruptId",
            )
            .with("interruptIds", ids),
            NodeAnswerError::Changed(id) => conflict(
                "interrupt_changed",
                "the host does not know that the caller saw what the node asks now: read the run, or name the question by \
                 interruptId",
            )
            .with("interruptId", id),
            NodeAnswerError::Failed(error) => late(error).into(),
        }
    }
}

/// Once a run has ended, its interrupts count as resolved.
pub(crate) fn late(error: AppError) -> AppError {
    match error {
        AppError::Refused(Refusal::Terminal(status)) => AppError::Settled(Settled::RunEnded(status)),
        AppError::Refused(Refusal::WrongState) => Refusal::NoInterrupt.into(),
        error => error,
    }
}

fn resolved(run: &RunId, node: &str, view: &View) -> Vec<u8> {
    // If a child was answered and has ended, its parent is still running: it has yet to process the child's
    // end.
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
        if page::prefers_html(&call.headers) {
            return interrupt_page::show(&call).await;
        }
        let app = call.host.app();
        let (claims, expires_at) = call.host.tokens().open_until(call.param(0), app.now())?;
        let interrupt = claims.interrupt();
        let run = VisibleRun::by_token(claims.key.clone());
        let view = app.view(&run).await?.ok_or_else(no_interrupt)?;
        let open = view
            .run
            .interrupts(&view.plan)
            .find(|open| open.id() == interrupt);
        let shown = match open.map(|open| open.asked) {
            Some(Asked::Here(_)) if view.run.status != RunStatus::Cancelling => {
                waiting::here(&view, &claims.node, claims.holder.reads_artifacts)
            }
            Some(_) | None => None,
        };
        let Some(mut shown) = shown else {
            return Err(closed(&call.host, &view, &interrupt).await);
        };
        // The expiry of the token, as in the document that contained it.
        shown.expires_at = Some(render::time(expires_at));
        json_response(StatusCode::OK, &shown)
    }
    .boxed()
}

/// The status for a valid token whose interrupt is no longer open: 410 if a parent cancelled the run (section 13.7).
pub(super) fn closed_status(view: &View) -> StatusCode {
    match view.run.cancelled_by_parent {
        Some(_) => StatusCode::GONE,
        None => StatusCode::CONFLICT,
    }
}

/// The error for a valid token whose interrupt is no longer open.
pub(super) async fn closed(host: &Host, view: &View, interrupt: &str) -> Problem {
    if view.run.cancelled_by_parent.is_some() {
        return Refusal::InterruptGone.into();
    }
    match host.app().settled(&view.into(), interrupt).await {
        Ok(settled) => settled.into(),
        Err(error) => error.into(),
    }
}

/// `POST /v1/interrupts/{token}`
pub(super) fn resolve_by_token(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        if page::is_form(&call.headers) {
            return interrupt_page::submit(&call).await;
        }
        // Check the token first: a client without one learns nothing about bodies.
        let app = call.host.app();
        let claims = call.host.tokens().open(call.param(0), app.now())?;
        if claims.intent == Intent::Inspect {
            return Err(Problem::forbidden("the token is for looking only"));
        }
        let request: ResolveInterruptRequest = call.decode()?;
        let asked = claims.interrupt();
        // A token shown with a parent's run comes with the id that the parent shows.
        let is_asked = |id: &String| *id == asked || id.ends_with(&format!("/{asked}"));
        if !request.interrupt_id.as_ref().is_none_or(is_asked) {
            return Err(no_interrupt());
        }
        answer_by_token(&call, claims, request.resume_value).await
    }
    .boxed()
}

/// Resolves the interrupt of a token in the name of its holder.
pub(super) async fn answer_by_token(call: &Call, claims: Claims, value: Value) -> Answer {
    let by = match claims.holder.is_named {
        true => claims.holder.principal.clone(),
        false => PrincipalId::parse(TOKEN_HOLDER).map_err(|_| Problem::internal())?,
    };
    let once = idempotency::Request::of_holder(call, &claims, &by)?;
    let interrupt = claims.interrupt();
    let Claims {
        key,
        node,
        ordinal: _,
        number: _,
        holder,
        intent: _,
    } = claims;
    let answer = TokenAnswer {
        node: node.clone(),
        interrupt: interrupt.clone(),
        value,
        by,
        holder: holder.principal,
        is_member: holder.is_member,
    };
    let id = key.run.clone();
    let respond = move |view: &View| (StatusCode::OK, resolved(&id, node.as_str(), view));
    let side_rows = idempotency::Request::side_rows(once, call, respond.clone());
    let run = VisibleRun::by_token(key);
    match call.host.app().answer_by_token(&run, answer, side_rows).await {
        Ok(done) => idempotency::answer(call, &done, respond).await,
        Err(error) => Err(invalidated(&call.host, &run, &interrupt, late(error)).await),
    }
}

/// Maps errors of a token answer. A cancelled run invalidates its tokens: 409, or 410 if a parent cancelled
/// it (section 13.7).
async fn invalidated(host: &Host, run: &VisibleRun, interrupt: &str, error: AppError) -> Problem {
    match error {
        AppError::NoRun => no_interrupt(),
        AppError::Settled(_) | AppError::Refused(Refusal::InterruptCancelled | Refusal::NoInterrupt) => {
            match host.app().view(run).await {
                Ok(Some(view)) => closed(host, &view, interrupt).await,
                Ok(None) => no_interrupt(),
                Err(error) => error.into(),
            }
        }
        error => error.into(),
    }
}

/// The body of `POST /v1/host/wopr/interrupt-tokens`. Unknown members are rejected.
#[derive(Debug)]
struct MintToken {
    run: String,
    node: String,
    interrupt: Option<String>,
    principal: Option<String>,
    /// Additional roles and groups of the principal, beyond those of its keys and certificates.
    membership: Membership,
    intent: Intent,
}

impl Decode for MintToken {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let intent: Option<String> = fields.optional("intent")?;
        let intent = match intent.as_deref() {
            None | Some("resolve") => Intent::Resolve,
            Some("inspect") => Intent::Inspect,
            Some(_) => return Err(DecodeError::invalid("must be resolve or inspect").in_field("intent")),
        };
        let request = Self {
            run: fields.required("runId")?,
            node: fields.required("nodeId")?,
            interrupt: fields.optional("interruptId")?,
            principal: fields.optional("principal")?,
            membership: Membership {
                roles: fields.or_default("roles")?,
                groups: fields.or_default("groups")?,
            },
            intent,
        };
        fields.refuse_unknown()?;
        Ok(request)
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Minted {
    run_id: String,
    node_id: String,
    interrupt_id: String,
    principal: String,
    intent: Intent,
    interrupt_token: String,
    callback_url: String,
    expires_at: Timestamp,
}

/// `POST /v1/host/wopr/interrupt-tokens`
pub(super) fn mint(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        if call.headers.contains_key("idempotency-key") {
            return Err(Problem::field(
                "Idempotency-Key",
                "is not taken here: a token is not kept, and minting one changes nothing",
            ));
        }
        let request: MintToken = call.decode()?;
        let caller = call.caller();
        let principal = match &request.principal {
            None => caller.principal.clone(),
            Some(name) => PrincipalId::parse(name)
                .map_err(|_| Problem::field("principal", "must be 1 to 256 characters without spaces"))?,
        };
        let mut membership = if principal == caller.principal {
            (*caller.membership).clone()
        } else {
            call.host.auth().membership(&caller.tenant, &principal)
        };
        if let Some(rule) = request.membership.problem() {
            return Err(Problem::invalid(rule));
        }
        let is_own = principal == caller.principal && membership.covers(&request.membership);
        membership.extend(&request.membership);
        // As with voting for others: a caller who manages keys could create a key for them anyway.
        if !is_own && !caller.may(Scope::KeysManage) {
            return Err(
                Problem::forbidden("the credential may not mint tokens for others")
                    .with("scopeRequired", Scope::KeysManage.as_str()),
            );
        }
        let app = call.host.app();
        let view = app
            .read_run(caller, &request.run, Scope::ApprovalsRespond)
            .await?;
        let interrupt = request.interrupt.as_deref();
        let question = app.question_at_node(&view, &request.node, interrupt).await?;
        let Question { waiting, asked, .. } = question.ok_or_else(no_interrupt)?;
        let asked = asked.ok_or_else(no_interrupt)?;
        let claims = Claims {
            key: asked.key,
            node: asked.step.node,
            ordinal: asked.step.ordinal,
            number: asked.number,
            intent: request.intent,
            holder: Holder {
                principal,
                is_named: true,
                is_member: membership.is_named_by(&asked.data),
                reads_artifacts: reads_artifacts(caller),
            },
        };
        let token = call.host.tokens().mint(&claims, asked.deadline, app.now());
        telemetry::token_minted(&claims, caller);
        let minted = Minted {
            run_id: request.run,
            node_id: request.node,
            interrupt_id: waiting.id(),
            principal: claims.holder.principal.to_string(),
            intent: claims.intent,
            callback_url: call.host.interrupt_url(&token),
            expires_at: render::time(token.expires_at),
            interrupt_token: token.text,
        };
        json_response(StatusCode::CREATED, &minted)
    }
    .boxed()
}

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

/// `GET /v1/interrupts`: `limit` counts runs, so a page may hold more or fewer interrupts. It ends early once it is
/// large, and shows as many interrupts of one run as the document of the run does.
pub(super) fn list(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let Page { limit, after } = Page::of(&call, read_cursor)?;
        let (app, caller) = (call.host.app(), call.caller());
        let page = app.list_waiting_runs(caller, after.as_ref(), limit).await?;
        let mut interrupts = Vec::new();
        let (mut n_bytes, mut last, mut has_more) = (0, None, page.has_more);
        for (run, summary, _) in page.runs {
            let Some(view) = app.view(&run).await? else {
                last = Some(run);
                continue;
            };
            app.note_view(caller, &view);
            let n_before = interrupts.len();
            // An interrupt of a child is listed once, at the child.
            let open = view.run.interrupts(&view.plan);
            let here = open.filter_map(|open| Question::here(&view, &open));
            for question in here.take(MAX_SHOWN) {
                if n_bytes > PAGE_BYTES {
                    break;
                }
                let item = Item {
                    run_id: run.run.to_string(),
                    workflow_id: summary.workflow.to_string(),
                    interrupt: waiting::shown(&question, reads_artifacts(caller)),
                };
                n_bytes += json_size(&item);
                interrupts.push(item);
            }
            // A run that does not fit begins the next page, and is cut only if it does not fit alone.
            if n_bytes > PAGE_BYTES && n_before > 0 {
                interrupts.truncate(n_before);
                has_more = true;
                break;
            }
            last = Some(run);
        }
        let next_cursor = last.filter(|_| has_more).map(|run| cursor(&run.run));
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
