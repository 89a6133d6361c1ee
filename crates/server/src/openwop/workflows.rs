//! Registers and reads workflow definitions.

use std::{borrow::Cow, fmt::Display, sync::LazyLock};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderName, HeaderValue, StatusCode, header};
use http_body_util::BodyExt as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wopr_app::WorkflowRemoval;
use wopr_core::{ContentHash, NodeTypes, Plan, TenantId, WorkflowId, definition_schema};
use wopr_wire::json;

use super::{
    answer::{Answer, bytes_response, etag, json_response, of_caller, of_everybody, tagged},
    call::Call,
    idempotency,
    problem::{Problem, listed_problem},
};

use crate::{
    Host,
    auth::Caller,
    brief::{Brief, label},
    message::{Body, Response},
    telemetry,
};

static VERSION: HeaderName = HeaderName::from_static("openwop-workflow-version");

pub(super) const SCHEMA_TYPE: &str = "application/schema+json";

/// The encoded JSON Schema of definitions.
struct Schema {
    bytes: Bytes,
    tag: HeaderValue,
}

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| Schema::of(NodeTypes::default()));
static CONFORMANCE_SCHEMA: LazyLock<Schema> = LazyLock::new(|| Schema::of(NodeTypes { conformance: true }));

impl Schema {
    fn of(node_types: NodeTypes) -> Self {
        let text = definition_schema(node_types).to_string();
        Self {
            tag: etag(ContentHash::of(text.as_bytes()).as_str()),
            bytes: Bytes::from(text),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Item<'a> {
    workflow_id: &'a str,
    name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<Cow<'a, str>>,
    /// The author's version label.
    version: Cow<'a, str>,
    /// The content hash that runs are pinned to.
    content_version: &'a str,
    is_active: bool,
    /// Likely mistakes in the definition; only in the response to a registration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<Value>,
}

impl<'a> Item<'a> {
    fn of(plan: &'a Plan) -> Self {
        Self {
            workflow_id: plan.id().as_str(),
            name: plan.name().into(),
            description: plan.description().map(Into::into),
            version: plan.version_label().into(),
            content_version: plan.version().as_str(),
            is_active: plan.is_active(),
            warnings: Vec::new(),
        }
    }

    /// As a list has it.
    pub(crate) fn listed(plan: &'a Plan, brief: Brief) -> Self {
        Self {
            name: label(plan.name()),
            description: plan.description().map(|text| brief.description(text)),
            version: label(plan.version_label()),
            ..Self::of(plan)
        }
    }

    /// `has_price`: whether the cost of any model that the tenant may ask is known.
    fn with_warnings(plan: &'a Plan, has_price: bool) -> Self {
        let warnings = plan.warnings().into_iter().map(|warning| {
            let mut listed = listed_problem(&warning.problem);
            listed["code"] = warning.lint.as_str().into();
            listed
        });
        let warnings = warnings.chain(unpriced(plan, has_price));
        Self {
            warnings: warnings.collect(),
            ..Self::of(plan)
        }
    }
}

/// Where a model's cost is unknown, a bound on it bounds nothing. That depends on the host.
fn unpriced(plan: &Plan, has_price: bool) -> Option<Value> {
    const BOUND: &str = "/settings/budget/maxCostUsd";
    let is_bounded = plan.document().pointer(BOUND).is_some_and(Value::is_number);
    (is_bounded && !has_price).then(|| {
        serde_json::json!({
            "place": "settings",
            "rule": "budget.maxCostUsd bounds nothing here: no model provider has a price",
            "pointer": BOUND,
            "hint": "the operator gives prices in [[models]]; maxTokens needs none",
            "code": "unpriced-budget",
        })
    })
}

#[derive(Debug, Serialize)]
struct List<'a> {
    workflows: Vec<Item<'a>>,
}

/// `POST /v1/workflows`
pub(super) fn register(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let once = idempotency::Request::of(&call)?;
        if let Some(once) = &once
            && let Some(response) = once.replay(&call).await?
        {
            return located(&call, response).await;
        }
        let (app, caller) = (call.host.app(), call.caller());
        // The cost of parsing, compiling and checking depends on the definition, so each step takes its turn
        // among the tenant's other work.
        let reading = {
            let (body, tenant) = (call.body.clone(), caller.tenant.clone());
            move || read(&body, &tenant)
        };
        let document = app.compute(caller, call.body.len(), reading).await??;
        let (is_new, body) = register_read(&call.host, caller, document, call.body.len()).await?;
        let status = if is_new {
            StatusCode::CREATED
        } else {
            StatusCode::OK
        };
        let response = match once {
            Some(once) => once.remember(&call, status, body).await?,
            None => bytes_response(status, body),
        };
        located(&call, response).await
    }
    .boxed()
}

/// Registers a definition that [`check_document`] accepted. Returns `true` if the version is new, and the item of the
/// workflow with its warnings. `n_bytes` is the size of the definition.
pub(crate) async fn register_read(
    host: &Host,
    caller: &Caller,
    document: Value,
    n_bytes: usize,
) -> Result<(bool, Vec<u8>), Problem> {
    offered(host, &document)?;
    let registered = host.app().register_workflow(caller, document).await?;
    let mut models = host.config().models.iter();
    let has_price = models.any(|model| {
        let is_offered = model.tenants.is_empty() || model.tenants.contains(&caller.tenant);
        model.price.is_some() && is_offered
    });
    let is_new = registered.is_new;
    let judging = move || serde_json::to_vec(&Item::with_warnings(&registered.plan, has_price));
    let body = host.app().compute(caller, n_bytes, judging).await?;
    Ok((is_new, body.expect("an item of texts serialises")))
}

/// `DELETE /v1/host/wopr/workflows/{workflowId}`
pub(super) fn remove(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        remove_named(&call.host, call.caller(), call.param(0)).await?;
        Ok(bytes_response(StatusCode::NO_CONTENT, Body::empty()))
    }
    .boxed()
}

/// Removes a workflow of the caller's tenant.
pub(crate) async fn remove_named(host: &Host, caller: &Caller, id: &str) -> Result<(), Problem> {
    let missing = || Problem::not_found("no such workflow");
    let id = WorkflowId::parse(id).map_err(|_| missing())?;
    match host.app().remove_workflow(caller, &id).await? {
        WorkflowRemoval::Removed => {
            telemetry::workflow_removed(&id, caller);
            Ok(())
        }
        WorkflowRemoval::Shared => Err(Problem::forbidden(
            "the workflow is the operator's, for all tenants, and no tenant can remove it",
        )),
        WorkflowRemoval::Missing => Err(missing()),
    }
}

/// Refuses a definition that needs a capability which the conformance suite has switched off.
pub(super) fn offers(call: &Call, document: &Value) -> Result<(), Problem> {
    offered(&call.host, document)
}

/// Like [`offers`], for other faces.
pub(crate) fn offered(host: &Host, document: &Value) -> Result<(), Problem> {
    let Some(missing) = host.discovery().missing(document) else {
        return Ok(());
    };
    let message = format!("the workflow needs {missing}, which this host does not offer");
    Err(Problem::invalid(message).with("requiredCapability", missing))
}

/// Parses a definition and checks the rules that apply to every API.
fn read(body: &[u8], tenant: &TenantId) -> Result<Value, Problem> {
    let document = json::parse(body)?;
    check_document(&document, tenant)?;
    Ok(document)
}

/// Checks the rules for definitions that do not depend on their language.
pub(crate) fn check_document(document: &Value, tenant: &TenantId) -> Result<(), Problem> {
    if wopr_app::is_redacted_definition(document) {
        let message = format!(
            "the definition holds {}, which stands for a value that is not shown",
            wopr_app::REDACTED
        );
        return Err(Problem::invalid(message));
    }
    let named = document.get("tenantId").and_then(Value::as_str);
    if named.is_some_and(|named| named != tenant.as_str()) {
        return Err(Problem::forbidden("the credential is not bound to this tenant"));
    }
    Ok(())
}

/// The part of a registration's response that is repeated in headers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Registered {
    workflow_id: String,
    content_version: String,
}

/// Adds location and version headers to the response of a registration, whether new or replayed.
async fn located(call: &Call, response: Response) -> Answer {
    let (mut head, body) = response.into_parts();
    let unreadable = |error: &dyn Display| {
        tracing::error!(%error, "answer to a registration cannot be read");
        Problem::internal()
    };
    let body = body
        .collect()
        .await
        .map_err(|error| unreadable(&error))?
        .to_bytes();
    let registered = serde_json::from_slice(&body).map_err(|error| unreadable(&error))?;
    let Registered {
        workflow_id,
        content_version,
    } = registered;
    head.headers.insert(header::ETAG, etag(&content_version));
    let path = format!("{}/v1/workflows/{workflow_id}", call.host.public_url());
    if let Ok(location) = HeaderValue::from_str(&path) {
        head.headers.insert(header::LOCATION, location);
    }
    Ok(Response::from_parts(head, Body::from(body)))
}

/// `GET /v1/schemas/workflow-definition.json`
pub(super) fn schema(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let Schema { bytes, tag } = if call.host.config().conformance {
            &*CONFORMANCE_SCHEMA
        } else {
            &*SCHEMA
        };
        tagged(&call, tag, of_everybody(), || {
            let mut response = bytes_response(StatusCode::OK, bytes.clone());
            let schema = HeaderValue::from_static(SCHEMA_TYPE);
            response.headers_mut().insert(header::CONTENT_TYPE, schema);
            Ok(response)
        })
    }
    .boxed()
}

/// `GET /v1/workflows`
pub(super) fn list(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let plans = call.host.app().list_workflows(call.caller())?;
        let brief = Brief::among(plans.len());
        let workflows = plans.iter().map(|plan| Item::listed(plan, brief)).collect();
        json_response(StatusCode::OK, &List { workflows })
    }
    .boxed()
}

/// `GET /v1/workflows/{workflowId}`
pub(super) fn show(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let missing = || Problem::not_found("no such workflow");
        let id = WorkflowId::parse(call.param(0)).map_err(|_| missing())?;
        let plan = call.host.app().read_workflow(call.caller(), &id).await?;
        let plan = plan.ok_or_else(missing)?;
        let tag = etag(plan.version().as_str());
        let document = || json_response(StatusCode::OK, &wopr_app::definition(&plan));
        let mut response = tagged(&call, &tag, of_caller(), document)?;
        if let Ok(version) = HeaderValue::from_str(plan.version().as_str()) {
            response.headers_mut().insert(VERSION.clone(), version);
        }
        Ok(response)
    }
    .boxed()
}
