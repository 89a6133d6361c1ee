//! Starts, lists and reads runs.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use wopr_app::{Error as AppError, NewRun, RunFilter, Summary, View};
use wopr_connect::{BadScript, StreamText};
use wopr_core::{Object, Origin, RunId, RunStatus, WorkflowId};
use wopr_wire::{
    json,
    openwop::run::{ChildRun, CreateRunRequest, CreateRunResponse, RunSnapshot, RunStatus as WireStatus},
    time::Timestamp,
};

use super::{
    activities,
    answer::{Answer, etag, json_response, of_caller, tagged},
    call::Call,
    idempotency,
    problem::{Problem, no_run},
    render::{self, Mask},
    waiting::{self, InterruptTokens},
};
use crate::{
    Host,
    auth::{Caller, Scope},
    hex,
};

/// Maximum number of children in a snapshot. Clients list all children by `parentRunId`.
const MAX_CHILDREN: usize = 100;
const DEFAULT_PAGE: usize = 50;
const MAX_PAGE: usize = 100;

/// `POST /v1/runs`
pub(super) fn create(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        refuse_headers(&call)?;
        let once = idempotency::Request::of(&call)?;
        let request: CreateRunRequest = call.decode()?;
        let request = check(&call, request)?;
        let caller = call.caller();
        let run = call.host.app().new_run_id();
        let body = accepted(call.host.public_url(), &run);
        let side_rows = idempotency::Request::side_rows(once, &call, {
            let body = body.clone();
            move |_| (StatusCode::CREATED, body.clone())
        });
        let new = NewRun {
            run,
            origin: Origin::new("rest"),
            inputs: request.inputs,
            configurable: request.configurable,
            tags: request.tags,
            metadata: request.metadata,
            context: None,
            trace: call.trace(),
            side_rows,
        };
        let permit = caller.permit_start()?;
        let done = call.host.app().start_run(permit, &request.workflow, new).await?;
        idempotency::answer(&call, &done, |_| (StatusCode::CREATED, body)).await
    }
    .boxed()
}

/// The response to a new run. It always has the status pending; clients read the current status at its URL.
fn accepted(origin: &str, run: &RunId) -> Vec<u8> {
    let status_url = format!("{origin}/v1/runs/{run}");
    let response = CreateRunResponse {
        run_id: run.to_string(),
        status: WireStatus::Pending,
        events_url: format!("{status_url}/events"),
        status_url: Some(status_url),
    };
    serde_json::to_vec(&response).expect("a response of texts serialises")
}

/// Rejects headers that would change the meaning of the request but are not supported.
fn refuse_headers(call: &Call) -> Result<(), Problem> {
    if call.headers.contains_key("x-dedup") {
        return Err(Problem::not_provided("deduplication by X-Dedup is not provided"));
    }
    if call.headers.contains_key("x-force-engine-version") {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "force_engine_version_forbidden",
            "the engine version can only be forced with a test key, and this host has none",
        ));
    }
    Ok(())
}

/// A validated request; the host supports everything in it.
struct Checked {
    workflow: WorkflowId,
    inputs: Object,
    configurable: Object,
    tags: Vec<String>,
    metadata: Object,
}

fn check(call: &Call, request: CreateRunRequest) -> Result<Checked, Problem> {
    let CreateRunRequest {
        workflow_id,
        inputs,
        tenant_id,
        // `scopeId` is only used with X-Dedup, which is rejected above.
        scope_id: _,
        callback_url,
        residency,
        mode,
        eval_suite_ref,
        agent_id,
        mut configurable,
        tags,
        metadata,
    } = request;
    drop_nulls(&mut configurable);
    match mode.as_deref() {
        None => {}
        Some("eval") => return Err(Problem::not_provided("evaluation runs are not provided")),
        Some(_) => return Err(Problem::field("mode", "must be eval or absent")),
    }
    if eval_suite_ref.is_some() {
        return Err(Problem::field("evalSuiteRef", "is for evaluation runs"));
    }
    if agent_id.is_some() {
        return Err(Problem::field("agentId", "is for evaluation runs"));
    }
    if callback_url.is_some() {
        return Err(Problem::not_provided(
            "interrupt callbacks are not provided: read the interrupt from the run",
        ));
    }
    if let Some(residency) = residency {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "residency_unavailable",
            "this host offers no choice of region",
        )
        .with("region", residency.region));
    }
    if tenant_id.is_some_and(|tenant| tenant != call.caller().tenant.as_str()) {
        return Err(Problem::forbidden("the credential is not bound to this tenant"));
    }
    check_configurable(&configurable, &call.host, call.caller())?;
    let workflow = workflow_id.as_deref().map(WorkflowId::parse);
    let Some(Ok(workflow)) = workflow else {
        return Err(Problem::not_found("no such workflow"));
    };
    Ok(Checked {
        workflow,
        inputs,
        configurable,
        tags,
        metadata,
    })
}

/// Optional members of `RunConfigurable`. The official client sends unset ones as null.
const RESERVED: [&str; 13] = [
    "ai",
    "budget",
    "distillation",
    "escalationThreshold",
    "maxLoopIterations",
    "maxTokens",
    "mockProvider",
    "model",
    "promptOverrides",
    "reasoningVerbosity",
    "recursionLimit",
    "runTimeoutMs",
    "temperature",
];

/// Removes nulls from reserved members. A workflow's own members may give null a meaning.
fn drop_nulls(configurable: &mut Object) {
    let is_reserved = |name: &str| RESERVED.contains(&name) || name.starts_with("ai.");
    configurable.retain(|name, value| !(value.is_null() && is_reserved(name)));
    if let Some(Value::Object(ai)) = configurable.get_mut("ai") {
        ai.retain(|_, value| !value.is_null());
    }
}

/// Checks the overrides of a fork as those of a new run.
pub(super) fn check_overrides(configurable: &mut Object, call: &Call) -> Result<(), Problem> {
    check_overrides_of(configurable, &call.host, call.caller())
}

/// Like [`check_overrides`], for other faces.
pub(crate) fn check_overrides_of(
    configurable: &mut Object,
    host: &Host,
    caller: &Caller,
) -> Result<(), Problem> {
    drop_nulls(configurable);
    check_configurable(configurable, host, caller)
}

/// Rejects reserved overrides that need unsupported features.
fn check_configurable(configurable: &Object, host: &Host, caller: &Caller) -> Result<(), Problem> {
    let config = host.config();
    if let Some(mock) = configurable.get("mockProvider") {
        let id = mock.get("id").and_then(Value::as_str);
        let is_offered = id == Some(wopr_connect::Mock::STREAM_TEXT);
        if config.conformance && !is_offered {
            let message = "configurable.mockProvider.id is not that of a mock provider of this host";
            return Err(Problem::new(
                StatusCode::BAD_REQUEST,
                "unsupported_mock_provider",
                message,
            ));
        }
        if !config.conformance {
            return Err(Problem::new(
                StatusCode::FORBIDDEN,
                "mock_provider_forbidden",
                "mock providers are for test keys, and this host has none",
            ));
        }
        StreamText::read(mock.get("config")).map_err(|BadScript { field, rule }| {
            Problem::field(&format!("configurable.mockProvider.{field}"), &rule)
        })?;
    }
    let nested = |name: &str| configurable.get("ai").and_then(|ai| ai.get(name));
    if configurable.contains_key("ai.credentialRef") || nested("credentialRef").is_some() {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "credential_forbidden",
            "this host has no model provider that takes credentials",
        ));
    }
    let provider = configurable.get("ai.provider").or_else(|| nested("provider"));
    // A provider of other tenants looks like none.
    let is_offered = |name: &Value| {
        let mut models = config.models.iter();
        let model = models.find(|model| name.as_str() == Some(&model.name));
        model.is_some_and(|model| model.tenants.is_empty() || model.tenants.contains(&caller.tenant))
    };
    if provider.is_some_and(|name| !is_offered(name)) {
        return Err(Problem::field(
            "configurable.ai.provider",
            "must be a provider this host advertises",
        )
        .with("requiredCapability", "aiProviders"));
    }
    Ok(())
}

/// `GET /v1/runs/{runId}`
pub(super) fn show(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let key = call.visible_run(Scope::RunsRead).await?;
        let view = call.host.app().view(&key).await?.ok_or_else(no_run)?;
        let mask = Mask::for_caller(&view, call.caller());
        let snapshot = document(&call.host, call.caller(), &view, &mask, InterruptTokens::Minted).await?;
        let tag = version(&view, &snapshot, &mask)?;
        tagged(&call, &tag, of_caller(), || {
            json_response(StatusCode::OK, &snapshot)
        })
    }
    .boxed()
}

/// A run as a caller sees it, with its children and open questions. Notes that the caller saw it.
pub(crate) async fn document(
    host: &Host,
    caller: &Caller,
    view: &View,
    mask: &Mask,
    tokens: InterruptTokens,
) -> Result<RunSnapshot, AppError> {
    host.app().note_view(caller, view);
    let mut snapshot = render::snapshot(view, mask);
    snapshot.child_runs = children(host, view).await?;
    snapshot.interrupts = waiting::open_interrupts(host, view, caller, tokens).await?;
    snapshot.interrupt = snapshot.interrupts.first().cloned();
    snapshot.activities = activities::of_run(host, caller, view);
    Ok(snapshot)
}

/// The entity tag of a snapshot: the head of the log, and a hash of the parts that do not come from the log.
fn version(view: &View, snapshot: &RunSnapshot, mask: &Mask) -> Result<HeaderValue, Problem> {
    // Readers with and without access to contents see different documents.
    let head = match mask.keeps_contents() {
        false => format!("{:x}", view.run.head.0),
        true => format!("{:x}r", view.run.head.0),
    };
    // So do those who may work at activities and those who may not.
    let head = match snapshot.activities.is_empty() {
        true => head,
        false => format!("{head}w"),
    };
    if snapshot.child_runs.is_empty() && snapshot.interrupts.is_empty() {
        return Ok(etag(&head));
    }
    let mut hasher = Sha256::new();
    for child in &snapshot.child_runs {
        hasher.update(child.run_id.as_bytes());
        hasher.update(child.status.as_str().as_bytes());
    }
    // A child may open another interrupt before its parent knows, and tokens are replaced before they expire.
    let interrupt = serde_json::to_vec(&snapshot.interrupts).map_err(|error| {
        tracing::error!(%error, "interrupt does not serialise");
        Problem::internal()
    })?;
    hasher.update(interrupt);
    Ok(etag(&format!("{head}-{}", hex(&hasher.finalize()[..8]))))
}

/// The oldest children of a run, with their current statuses.
async fn children(host: &Host, view: &View) -> Result<Vec<ChildRun>, AppError> {
    let children = host.app().children(view, MAX_CHILDREN).await?;
    let shown = children.into_iter().map(|(run, summary)| ChildRun {
        run_id: run.to_string(),
        workflow_id: Some(summary.workflow.to_string()),
        status: render::status(summary.status),
    });
    Ok(shown.collect())
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Item {
    run_id: String,
    workflow_id: String,
    workflow_version: String,
    status: WireStatus,
    principal: String,
    created_at: Timestamp,
    updated_at: Timestamp,
    event_count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_node_id: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct List {
    runs: Vec<Item>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Item {
    pub(crate) fn new(run: &RunId, summary: Summary, events: u64) -> Self {
        let (parent_run_id, parent_node_id) = match summary.parent {
            Some((run, node)) => (Some(run.to_string()), Some(node.to_string())),
            None => (None, None),
        };
        Self {
            run_id: run.to_string(),
            workflow_id: summary.workflow.to_string(),
            workflow_version: summary.version.to_string(),
            status: render::status(summary.status),
            principal: summary.principal.to_string(),
            created_at: render::time(summary.created_at),
            updated_at: render::time(summary.updated_at),
            event_count: events,
            parent_run_id,
            parent_node_id,
        }
    }
}

pub(crate) fn unknown_status() -> Problem {
    let known: Vec<_> = RunStatus::ALL.map(RunStatus::as_str).to_vec();
    Problem::field("status", &format!("must be one of {}", known.join(", ")))
}

/// `GET /v1/runs`
pub(super) fn list(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let mut filter = RunFilter::default();
        for (name, value) in call.queries() {
            match &*name {
                "status" => {
                    for status in value.split(',') {
                        let status = RunStatus::parse(status.trim()).ok_or_else(unknown_status)?;
                        filter.statuses.push(status);
                    }
                }
                "workflowId" => {
                    let workflow = WorkflowId::parse(&value)
                        .map_err(|_| Problem::field("workflowId", "must be a workflow's id"))?;
                    filter.workflow = Some(workflow);
                }
                "parentRunId" => {
                    let parent = RunId::parse(&value)
                        .map_err(|_| Problem::field("parentRunId", "must be a run's id"))?;
                    filter.parent = Some(parent);
                }
                _ => {}
            }
        }
        let Page { limit, after } = Page::of(&call, read_cursor)?;
        let app = call.host.app();
        let page = app
            .list_runs(call.caller(), filter, after.as_ref(), limit)
            .await?;
        let next_cursor = page
            .has_more
            .then(|| page.runs.last().map(|(run, _, _)| cursor(&run.run)))
            .flatten();
        let runs = page
            .runs
            .into_iter()
            .map(|(run, summary, head)| Item::new(&run.run, summary, head.0))
            .collect();
        json_response(StatusCode::OK, &List { runs, next_cursor })
    }
    .boxed()
}

/// The page that a request asks for: its size, and the item after which it begins, which the cursor names.
pub(super) struct Page<C> {
    pub(super) limit: usize,
    pub(super) after: Option<C>,
}

impl<C> Page<C> {
    pub(super) fn of(call: &Call, read_cursor: fn(&str) -> Option<C>) -> Result<Self, Problem> {
        let limit = match call.query("limit") {
            None => DEFAULT_PAGE,
            Some(text) => text
                .parse()
                .ok()
                .filter(|limit| (1..=MAX_PAGE).contains(limit))
                .ok_or_else(|| Problem::field("limit", "must be a whole number from 1 to 100"))?,
        };
        let after = match call.query("cursor") {
            None => None,
            Some(text) => Some(
                read_cursor(&text)
                    .ok_or_else(|| Problem::field("cursor", "must be a nextCursor of this list"))?,
            ),
        };
        Ok(Self { limit, after })
    }
}

/// An opaque cursor for a list of runs.
pub(crate) fn cursor(run: &RunId) -> String {
    opaque(run.as_str())
}

pub(crate) fn read_cursor(text: &str) -> Option<RunId> {
    RunId::parse(&of_opaque(text)?).ok()
}

/// Hides the name of an item in a cursor, so that clients do not make cursors.
pub(super) fn opaque(name: &str) -> String {
    URL_SAFE_NO_PAD.encode(name)
}

pub(super) fn of_opaque(cursor: &str) -> Option<String> {
    String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()
}

/// Encodes the response to a command.
pub(crate) fn status_body(response: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(response).expect("a response of texts serialises")
}

/// Parses the body as an object, for endpoints whose body is the answer itself.
pub(super) fn any_object(call: &Call) -> Result<Value, Problem> {
    let value = json::parse(&call.body)?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(Problem::invalid("document must be an object"))
    }
}
