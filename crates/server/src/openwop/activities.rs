//! Activities (specific to this host): a worker reports the outcome of a step, and that it is alive.

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use wopr_app::{ActivityAttempt, Caller, Error as AppError, View, VisibleRun};
use wopr_core::{Failure, Object, Refusal};
use wopr_wire::{
    json::{Decode, DecodeError, Fields},
    openwop::run::ActivityView,
};

use super::{
    answer::{Answer, json_response},
    call::Call,
    idempotency,
    problem::Problem,
    render,
    runs::status_body,
};
use crate::Host;

/// Maximum size in bytes of a failure's code and of its message.
const MAX_CODE: usize = 128;
const MAX_MESSAGE: usize = 8 * 1024;
/// Maximum size in bytes of the details of a heartbeat, which is an event of the run's log.
const MAX_DETAILS: usize = 64 * 1024;

/// Lists the activities of a run, for a caller who may work at them.
pub(super) fn of_run(host: &Host, caller: &Caller, view: &View) -> Vec<ActivityView> {
    if caller.require(wopr_app::Scope::ActivitiesWork).is_err() || view.run.status.is_terminal() {
        return Vec::new();
    }
    let tokens = host.activity_tokens();
    let activities = view.run.activities(&view.plan);
    activities
        .map(|(step, attempt, activity)| ActivityView {
            token: tokens.mint(&view.key, &step, attempt),
            node_id: step.node.to_string(),
            ordinal: step.ordinal,
            queue: activity.queue.clone(),
            input: activity.input.clone(),
        })
        .collect()
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Submitted {
    run_id: String,
    status: wopr_wire::openwop::run::RunStatus,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Alive {
    cancel_requested: bool,
}

/// `POST /v1/activities/{activityToken}`
pub(super) fn submit(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let (run, at) = named(&call)?;
        let Outcome(outcome) = call.decode()?;
        let once = idempotency::Request::of_outcome(&call)?;
        let respond = |view: &View| {
            let body = status_body(&Submitted {
                run_id: view.key.run.to_string(),
                status: render::status(view.run.status),
            });
            (StatusCode::OK, body)
        };
        let side_rows = idempotency::Request::side_rows(Some(once), &call, respond);
        let app = call.host.app();
        let submitted = app.submit_activity(call.caller(), &run, at, outcome, side_rows);
        match submitted.await {
            Ok(done) => idempotency::answer(&call, &done, respond).await,
            Err(error) => Err(refused(error)),
        }
    }
    .boxed()
}

/// `POST /v1/activities/{activityToken}:heartbeat`
pub(super) fn heartbeat(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let (run, at) = named(&call)?;
        let Details(details) = call.decode()?;
        let app = call.host.app();
        let alive = app.heartbeat_activity(call.caller(), &run, at, details).await;
        let alive = alive.map_err(refused)?;
        json_response(
            StatusCode::OK,
            &Alive {
                cancel_requested: alive.is_cancelled,
            },
        )
    }
    .boxed()
}

/// The attempt that the token in the path names.
fn named(call: &Call) -> Result<(VisibleRun, ActivityAttempt), Problem> {
    let unknown = || Problem::not_found("no such activity");
    let token = call.param(0);
    let (key, at) = call.host.activity_tokens().open(token).ok_or_else(unknown)?;
    let run = VisibleRun::of_activity(key, call.caller()).map_err(|_| unknown())?;
    Ok((run, at))
}

fn refused(error: AppError) -> Problem {
    let stale = |what| Problem::new(StatusCode::CONFLICT, "activity_stale", what);
    match error {
        AppError::Refused(Refusal::Stale | Refusal::Terminal(_) | Refusal::WrongState) => {
            stale("nobody waits for this outcome any more")
        }
        AppError::KeyReused => stale("another outcome was submitted with this token"),
        other => other.into(),
    }
}

/// `{"outcome": {"ok": true, "result": …}}` or `{"outcome": {"ok": false, "error": {…}}}`.
struct Outcome(Result<Object, Failure>);

impl Decode for Outcome {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let outcome: Value = fields.required("outcome")?;
        fields.refuse_unknown()?;
        read_outcome(outcome).map_err(|error| error.in_field("outcome"))
    }
}

fn read_outcome(value: Value) -> Result<Outcome, DecodeError> {
    let mut fields = Fields::of(value)?;
    let outcome = if fields.required("ok")? {
        let result: Option<Value> = fields.optional("result")?;
        Ok(match result.unwrap_or_default() {
            Value::Object(outputs) => outputs,
            Value::Null => Object::new(),
            other => Object::from_iter([("result".to_owned(), other)]),
        })
    } else {
        let error: Value = fields.required("error")?;
        Err(read_failure(error).map_err(|error| error.in_field("error"))?)
    };
    fields.refuse_unknown()?;
    Ok(Outcome(outcome))
}

fn read_failure(value: Value) -> Result<Failure, DecodeError> {
    let mut fields = Fields::of(value)?;
    let code = fields.required_text("code")?;
    if code.is_empty() || code.len() > MAX_CODE {
        return Err(DecodeError::invalid("must have 1 to 128 bytes").in_field("code"));
    }
    let message: Option<String> = fields.optional("message")?;
    let message = message.unwrap_or_default();
    if message.len() > MAX_MESSAGE {
        return Err(DecodeError::invalid("must have at most 8192 bytes").in_field("message"));
    }
    let retryable: Option<bool> = fields.optional("retryable")?;
    fields.refuse_unknown()?;
    Ok(Failure {
        retryable: retryable.unwrap_or(false),
        ..Failure::new(code, message)
    })
}

struct Details(Value);

impl Decode for Details {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let details: Option<Value> = fields.optional("details")?;
        fields.refuse_unknown()?;
        let details = details.unwrap_or_default();
        if wopr_core::value_size(&details) > MAX_DETAILS {
            return Err(DecodeError::invalid("must have at most 65536 bytes").in_field("details"));
        }
        Ok(Self(details))
    }
}
