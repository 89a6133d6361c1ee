//! Test hooks of conformance mode, which the suite uses in addition to the API (RFC 0100).
//!
//! They start the workflows that the suite inspects, and validate URLs like regular registrations. None of
//! them exists outside conformance mode, and each requires the same scopes as the API.

mod invoke;
mod loops;
mod mock;
mod toggle;
mod workflows;

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde_json::json;
use wopr_app::{Mask, NewRun, Put};
use wopr_core::{Object, Origin};
use wopr_wire::{
    json::{Decode, DecodeError, Fields},
    openwop::cache_key::cache_key,
};

use super::{
    answer::{Answer, json_response},
    call::Call,
    problem::{Problem, no_run},
    runs::any_object,
    tasks,
};
use crate::{
    a2a::{conformance, push},
    auth::Scope,
};

pub(super) use invoke::invoke;
pub(super) use loops::{agent_loop, attest, fan_out};
pub(super) use mock::{last_budget, program_mock};
pub(super) use toggle::toggle_capability;
pub(super) use workflows::register_short;

/// The body of `POST /v1/host/sample/a2a/tasks/start`.
#[derive(Debug)]
struct StartTask {
    scenario: String,
}

impl Decode for StartTask {
    fn decode(value: serde_json::Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            scenario: fields.required_text("scenario")?,
        })
    }
}

/// `POST /v1/host/sample/a2a/tasks/start`
pub(super) fn start_task(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let request: StartTask = call.decode()?;
        let workflow = conformance::scenario(&request.scenario).ok_or_else(|| {
            let known = conformance::SCENARIOS.map(|(name, _)| name).join(", ");
            Problem::field("scenario", &format!("must be one of {known}"))
        })?;
        let caller = call.caller();
        let run = call.host.app().new_run_id();
        let new = NewRun {
            trace: call.trace(),
            ..NewRun::new(run.clone(), Origin::new("a2a"))
        };
        call.host
            .app()
            .start_run(caller.permit_start()?, &workflow, new)
            .await?;
        json_response(StatusCode::CREATED, &json!({ "taskId": run.as_str() }))
    }
    .boxed()
}

/// The body of `POST /v1/host/sample/test/runs/{runId}/variables`.
#[derive(Debug)]
struct SetVariables {
    variables: Object,
}

impl Decode for SetVariables {
    fn decode(value: serde_json::Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            variables: fields.required("variables")?,
        })
    }
}

/// `POST /v1/host/sample/test/runs/{runId}/variables`
pub(super) fn set_variables(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let key = call.visible_run(Scope::RunsCancel).await?;
        let app = call.host.app();
        // Report an unknown run before an invalid body.
        app.view(&key).await?.ok_or_else(no_run)?;
        let request: SetVariables = call.decode()?;
        let names: Vec<_> = request.variables.keys().cloned().collect();
        app.set_variables(call.caller(), &key, request.variables).await?;
        let view = app.view(&key).await?.ok_or_else(no_run)?;
        let mut shown = Mask::for_caller(&view, call.caller()).object(view.run.variables());
        shown.retain(|name, _| names.contains(name));
        json_response(StatusCode::OK, &json!({ "variables": shown }))
    }
    .boxed()
}

/// `POST /v1/host/sample/test/llm-cache-key`
pub(super) fn llm_cache_key(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let key = cache_key(&any_object(&call)?)
            .map_err(|error| Problem::new(StatusCode::BAD_REQUEST, "invalid_argument", error.to_string()))?;
        json_response(StatusCode::OK, &json!({ "cacheKey": key }))
    }
    .boxed()
}

/// The body of `POST /v1/host/sample/a2a/tasks/push-config`. Other members of a configuration are ignored.
#[derive(Debug)]
struct Register {
    task_id: String,
    url: String,
}

impl Decode for Register {
    fn decode(value: serde_json::Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            task_id: fields.required_text("taskId")?,
            url: fields.required_text("url")?,
        })
    }
}

/// `POST /v1/host/sample/a2a/tasks/push-config`
///
/// Checks the URL before the task: the suite takes 404 to mean that the hook does not exist.
pub(super) fn register_push(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let request: Register = call.decode()?;
        let url = call.host.gate().register(&request.url).await.map_err(|refusal| {
            let message = format!("url is refused: no notification may {refusal}");
            Problem::new(StatusCode::BAD_REQUEST, "webhook_url_rejected", message).with("field", "url")
        })?;
        let (app, caller) = (call.host.app(), call.caller());
        let found = app.find_run(caller, &request.task_id, Scope::RunsRead).await;
        let key = found.map_err(|error| tasks::as_task(error.into()))?;
        tasks::record(&call, &key).await?;
        match push::set(&call.host, caller, &key, url).await? {
            Put::Added | Put::Replaced => {}
            Put::Full => {
                let message = "the task has as many push configurations as it may have";
                return Err(Problem::new(StatusCode::CONFLICT, "conflict", message));
            }
            Put::Missing => return Err(tasks::no_task()),
        }
        json_response(StatusCode::CREATED, &tasks::record(&call, &key).await?)
    }
    .boxed()
}
