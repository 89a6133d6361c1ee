//! Activities (specific to this host): a worker reports the outcome of a step, and that it is alive.

use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream};
use http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use wopr_app::{ActivityAttempt, Caller, Done, Error as AppError, View, VisibleRun};
use wopr_core::{Failure, Object, Refusal};
use wopr_wire::{
    json::{self, Decode, DecodeError, Fields},
    openwop::{
        error::ErrorEnvelope,
        run::{ActivityView, RunStatus},
    },
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
/// The most outcomes of one request, and how many of them are decided at once: few, because many workers share what a
/// tenant may have waiting.
const MAX_OUTCOMES: usize = 256;
const AT_ONCE: usize = 4;

/// Lists the activities of a run, for a caller who may work at them.
pub(super) fn of_run(host: &Host, caller: &Caller, view: &View) -> Vec<ActivityView> {
    if caller.require(wopr_app::Scope::ActivitiesWork).is_err() || view.run.status.is_terminal() {
        return Vec::new();
    }
    let tokens = host.activity_tokens();
    let activities = view.run.activities(&view.plan);
    activities
        .map(|(step, attempt, activity)| ActivityView {
            token: tokens.mint(&view.key, &step, attempt, None),
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
    status: RunStatus,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Alive {
    cancel_requested: bool,
}

/// `POST /v1/activities/{activityToken}`
pub(super) fn submit(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let document: Value = json::parse(&call.body).map_err(Problem::from)?;
        let done = end(&call.host, call.caller(), call.param(0), document).await?;
        idempotency::answer(&call, &done, submitted).await
    }
    .boxed()
}

/// Ends the activity that a token names with the outcome in `{"outcome": …}`.
pub(crate) async fn end(host: &Host, caller: &Caller, token: &str, document: Value) -> Result<Done, Problem> {
    let (run, at) = named(host, caller, token)?;
    // It is the same request over every face, alone or one of many.
    let side_rows = idempotency::rows_of_outcome(host, caller, token, &document, submitted);
    let Outcome(outcome) = Outcome::decode(document)?;
    let ended = host.app().submit_outcome(caller, &run, at, outcome, side_rows);
    ended.await.map_err(refused)
}

/// The answer to an outcome that took effect.
fn submitted(view: &View) -> (StatusCode, Vec<u8>) {
    let body = status_body(&Submitted {
        run_id: view.key.run.to_string(),
        status: render::status(view.run.status),
    });
    (StatusCode::OK, body)
}

#[derive(Debug, Serialize)]
struct SubmittedAll {
    results: Vec<SubmittedOne>,
}

/// The result of one outcome of a request with several.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum SubmittedOne {
    Ended {
        token: String,
        ok: bool,
        /// The answer to the outcome when it is submitted alone.
        #[serde(flatten)]
        answer: Object,
    },
    Refused {
        token: String,
        ok: bool,
        error: ErrorEnvelope,
    },
}

/// `POST /v1/activities:submit`
pub(super) fn submit_many(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let Outcomes(outcomes) = call.decode()?;
        // Several at once, so that they share commits. Each is decided by itself.
        let results = stream::iter(outcomes)
            .map(|(token, document)| one_of_many(&call, token, document))
            .buffered(AT_ONCE)
            .collect();
        json_response(
            StatusCode::OK,
            &SubmittedAll {
                results: results.await,
            },
        )
    }
    .boxed()
}

async fn one_of_many(call: &Call, token: String, document: Value) -> SubmittedOne {
    let ended = async {
        let done = end(&call.host, call.caller(), &token, document).await?;
        let (_, body) = idempotency::parts(call, &done, submitted).await?;
        json::parse(&body).map_err(|error| {
            tracing::error!(%error, "an answer cannot be read");
            Problem::internal()
        })
    };
    match ended.await {
        Ok(Value::Object(answer)) => SubmittedOne::Ended {
            token,
            ok: true,
            answer,
        },
        Ok(_) => SubmittedOne::Refused {
            token,
            ok: false,
            error: Problem::internal().envelope,
        },
        Err(problem) => SubmittedOne::Refused {
            token,
            ok: false,
            error: problem.envelope,
        },
    }
}

/// `POST /v1/activities/{activityToken}:heartbeat`
pub(super) fn heartbeat(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let (run, at) = named(&call.host, call.caller(), call.param(0))?;
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

/// The attempt that a token names.
pub(crate) fn named(
    host: &Host,
    caller: &Caller,
    token: &str,
) -> Result<(VisibleRun, ActivityAttempt), Problem> {
    let unknown = || Problem::not_found("no such activity");
    let (key, at) = host.activity_tokens().open(token).ok_or_else(unknown)?;
    let run = VisibleRun::of_activity(key, caller).map_err(|_| unknown())?;
    Ok((run, at))
}

pub(crate) fn refused(error: AppError) -> Problem {
    let stale = |what| Problem::new(StatusCode::CONFLICT, "activity_stale", what);
    match error {
        AppError::Refused(Refusal::Stale | Refusal::Terminal(_) | Refusal::WrongState) => {
            stale("nobody waits for this outcome any more, or another worker has leased the activity")
        }
        AppError::KeyReused => stale("another outcome was submitted with this token"),
        other => other.into(),
    }
}

/// `{"outcome": {"ok": true, "result": …}}` or `{"outcome": {"ok": false, "error": {…}}}`.
struct Outcome(Result<Value, Failure>);

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
        Ok(result.unwrap_or_default())
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

/// `{"outcomes": [{"token", "outcome"}]}`, as tokens and `{"outcome": …}`.
struct Outcomes(Vec<(String, Value)>);

impl Decode for Outcomes {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let list: Vec<Value> = fields.required("outcomes")?;
        fields.refuse_unknown()?;
        if list.is_empty() || list.len() > MAX_OUTCOMES {
            return Err(DecodeError::invalid("must have 1 to 256 outcomes").in_field("outcomes"));
        }
        let read = |item: Value| {
            let mut fields = Fields::of(item)?;
            let token = fields.required_text("token")?;
            let outcome: Value = fields.required("outcome")?;
            fields.refuse_unknown()?;
            let document = Object::from_iter([("outcome".to_owned(), outcome)]);
            Ok((token, Value::Object(document)))
        };
        let outcomes: Result<_, DecodeError> = list.into_iter().map(read).collect();
        Ok(Self(outcomes.map_err(|error| error.in_field("outcomes"))?))
    }
}

pub(crate) struct Details(pub(crate) Value);

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
