//! Registers the first version of a workflow, at most once per idempotency key.
//!
//! The registry decides between calls at once: one of them registers the workflow, for all others its id is taken. The
//! record of a key is written after the registration, so a host that dies in between answers the repeated request with
//! `DUPLICATE_WORKFLOW_ID`; `GET` then shows that it took effect.

use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use wopr_app::{Error as AppError, IdempotencyKey, IdempotencyRecord, NotRegistered, Scope, StartPermit};
use wopr_core::{Object, WorkflowId, awp};

use super::{
    super::{
        arguments::oversized,
        definition,
        error::{Code, Error},
    },
    idempotency_key, no_workflow,
};
use crate::{
    Host,
    auth::{Caller, hash_hex},
    hex,
};

/// The operation, in records of requests.
const SCOPE: &str = "awp register";

/// A registration with an idempotency key.
#[derive(Debug)]
struct Once {
    key: IdempotencyKey,
    digest: String,
}

impl Once {
    fn of(caller: &Caller, headers: &HeaderMap, body: &Object) -> Result<Option<Self>, Error> {
        let key = idempotency_key(headers)?;
        Ok(key.map(|key| {
            let body = Value::Object(body.clone()).to_string();
            Self {
                key: caller.idempotency_key(SCOPE.to_owned(), hash_hex(&key)),
                digest: hex(&Sha256::digest(body.as_bytes())),
            }
        }))
    }

    /// The workflow that the request has registered before.
    fn registered(&self, record: &IdempotencyRecord) -> Result<WorkflowId, Error> {
        if record.digest != self.digest {
            return Err(AppError::KeyReused.into());
        }
        let id = std::str::from_utf8(&record.response).ok();
        let id = id.and_then(|id| WorkflowId::parse(id).ok());
        id.ok_or_else(|| AppError::Internal("a record of a registration names no workflow".into()).into())
    }
}

/// `POST /v1/workflows`
pub(super) async fn register(
    host: &Host,
    caller: &Caller,
    headers: &HeaderMap,
    mut body: Object,
) -> Result<(StatusCode, Value), Error> {
    let permit = caller.permit_start()?;
    caller.require(Scope::WorkflowsWrite)?;
    let once = Once::of(caller, headers, &body)?;
    if let Some(answer) = repeated(host, permit, once.as_ref()).await? {
        return Ok(answer);
    }
    let definition = body.remove("definition");
    if let Some(name) = body.keys().next() {
        return Err(Error::new(
            Code::Validation,
            format!("{name} is not a known field"),
        ));
    }
    // No call of an execution could bring it along.
    if let Some((rule, details)) = definition
        .as_ref()
        .and_then(|definition| oversized("definition", definition))
    {
        return Err(Error::new(Code::Validation, format!("definition {rule}")).with(details));
    }
    let Some(Value::Object(definition)) = definition else {
        return Err(Error::new(Code::Validation, "definition must be an object"));
    };
    let document = definition::trusted(host, definition)?;
    definition::recognize(&document)?;
    let name = document.pointer("/document/name").and_then(Value::as_str);
    let id = name.and_then(awp::workflow_id);
    // It may be taken by a workflow of all tenants, too.
    if let Some(id) = &id
        && host.app().find_workflow(permit, id).await?.is_some()
    {
        return taken(host, permit, once.as_ref(), id).await;
    }
    let registered = host.app().register_new_workflow(caller, document).await;
    let registered = registered.map_err(|error: NotRegistered| Error::from(error))?;
    let plan = match (registered, id) {
        (Some(registered), _) => registered.plan,
        (None, Some(id)) => return taken(host, permit, once.as_ref(), &id).await,
        (None, None) => return Err(AppError::Internal("a workflow without an id is taken".into()).into()),
    };
    if let Some(once) = once {
        let record = IdempotencyRecord {
            key: once.key,
            digest: once.digest,
            run: None,
            response: plan.id().as_str().as_bytes().to_vec(),
            expires_at: host.app().idempotency_expiry(),
        };
        // One that another request with the key has recorded meanwhile stays, and counts for repeated requests.
        host.app().remember(record).await?;
    }
    Ok(created(&plan))
}

fn created(plan: &wopr_core::Plan) -> (StatusCode, Value) {
    let definition = wopr_app::definition(plan);
    let answer = json!({ "wf_id": plan.id().to_string(), "definition": definition });
    (StatusCode::CREATED, answer)
}

/// The answer to a request that has taken effect before.
async fn repeated(
    host: &Host,
    permit: StartPermit<'_>,
    once: Option<&Once>,
) -> Result<Option<(StatusCode, Value)>, Error> {
    let Some(once) = once else { return Ok(None) };
    let Some(record) = host.app().recorded(&once.key).await? else {
        return Ok(None);
    };
    // As it is by now: another version may have become current.
    let id = once.registered(&record)?;
    let found = host.app().find_workflow(permit, &id).await?;
    let plan = found.ok_or_else(|| no_workflow(id.as_str()))?;
    Ok(Some(created(&plan)))
}

/// The id is taken: by the same request, which has been answered meanwhile, or by another workflow.
async fn taken(
    host: &Host,
    permit: StartPermit<'_>,
    once: Option<&Once>,
    id: &WorkflowId,
) -> Result<(StatusCode, Value), Error> {
    if let Some(answer) = repeated(host, permit, once).await? {
        return Ok(answer);
    }
    let message = format!("Workflow \"{id}\" is already registered.");
    Err(Error::new(Code::DuplicateWorkflowId, message).with(json!({ "wf_id": id.to_string() })))
}
