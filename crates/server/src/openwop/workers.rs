//! Worker queues (specific to this host): workers lease activities by long poll, and people see who waits and works.

use std::time::Duration;

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use wopr_app::{Caller, Error as AppError, LeasedActivity, OfferedQueue, Scope, SeenWorker, WorkerLease};
use wopr_wire::{
    json::{Decode, DecodeError, Fields},
    time::Timestamp,
};

use super::{
    answer::{Answer, json_response},
    call::Call,
    problem::Problem,
    render,
};
use crate::{Host, auth};

/// Maximum size in bytes of the names of queues and workers.
const MAX_NAME: usize = 128;
/// The most activities of one lease.
const MAX_LEASED: u64 = 256;
/// The longest that a call waits, in milliseconds.
const MAX_WAIT_MS: u64 = 60_000;

#[derive(Debug, Serialize)]
pub(crate) struct Leased {
    activities: Vec<Activity>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Activity {
    token: String,
    run_id: String,
    node_id: String,
    ordinal: u32,
    attempt: u32,
    queue: String,
    input: Value,
    idempotency_key: String,
    lease_ms: u64,
    available_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heartbeat_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tracestate: Option<String>,
}

/// `POST /v1/activities:lease`
pub(super) fn lease(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let leased = leased(&call.host, call.caller(), call.decode()?).await?;
        json_response(StatusCode::OK, &leased)
    }
    .boxed()
}

/// Leases activities, and waits for the first one as long as the request says.
pub(crate) async fn leased(host: &Host, caller: &Caller, request: Request) -> Result<Leased, Problem> {
    let Request {
        queue,
        worker,
        max,
        wait,
    } = request;
    caller.require(Scope::ActivitiesWork)?;
    let worker = worker.unwrap_or_else(|| caller.principal.to_string());
    let mut closing = host.closing();
    // A host that closes does not hand out work whose outcome it could not take.
    if *closing.borrow_and_update() {
        return Ok(Leased {
            activities: Vec::new(),
        });
    }
    let leasing = host
        .app()
        .lease_activities(caller, queue, worker.clone(), max, wait);
    let leased = auth::wait(async {
        tokio::select! {
            biased;
            _ = closing.changed() => Ok(Vec::new()),
            leased = leasing => leased.map_err(at_limit),
        }
    });
    let leased = leased.await?;
    let activities = leased.into_iter().map(|leased| shown(host, &worker, leased));
    Ok(Leased {
        activities: activities.collect(),
    })
}

/// A call that is refused as busy meets the limit of calls that wait.
fn at_limit(error: AppError) -> Problem {
    let is_full = matches!(error, AppError::Busy { .. });
    let mut problem = Problem::from(error);
    if is_full {
        problem.envelope.message =
            "as many calls of the tenant wait for activities as workers.max_waiting allows".to_owned();
        problem = problem.with("limit", "workers.max_waiting");
    }
    problem
}

fn shown(host: &Host, worker: &str, leased: LeasedActivity) -> Activity {
    let LeasedActivity {
        run,
        step,
        attempt,
        fence,
        activity,
        idempotency_key,
        trace,
        since,
        lease,
    } = leased;
    let claim = WorkerLease {
        fence,
        queue: activity.queue.clone(),
        worker: worker.to_owned(),
    };
    Activity {
        token: host.activity_tokens().mint(&run, &step, attempt, Some(&claim)),
        run_id: run.run.to_string(),
        node_id: step.node.to_string(),
        ordinal: step.ordinal,
        attempt,
        queue: activity.queue,
        input: activity.input,
        idempotency_key,
        lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
        available_at: render::time(since),
        timeout_ms: activity.timeout_ms,
        heartbeat_ms: activity.heartbeat_ms,
        traceparent: trace.as_ref().map(|trace| trace.parent().to_owned()),
        tracestate: trace.and_then(|trace| trace.state().map(ToOwned::to_owned)),
    }
}

pub(crate) struct Request {
    queue: String,
    /// The caller's principal where absent.
    worker: Option<String>,
    max: usize,
    pub(crate) wait: Duration,
}

impl Decode for Request {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let queue = fields.required_text("queue")?;
        check_name(&queue).map_err(|error| error.in_field("queue"))?;
        let worker: Option<String> = fields.optional("worker")?;
        if let Some(worker) = &worker {
            check_name(worker).map_err(|error| error.in_field("worker"))?;
        }
        let max: u64 = fields.optional("max")?.unwrap_or(1);
        let max = usize::try_from(max)
            .ok()
            .filter(|_| (1..=MAX_LEASED).contains(&max));
        let max = max.ok_or_else(|| DecodeError::invalid("must be 1 to 256").in_field("max"))?;
        let wait: u64 = fields.optional("waitMs")?.unwrap_or(0);
        if wait > MAX_WAIT_MS {
            return Err(DecodeError::invalid("must be at most 60000").in_field("waitMs"));
        }
        fields.refuse_unknown()?;
        Ok(Self {
            queue,
            worker,
            max,
            wait: Duration::from_millis(wait),
        })
    }
}

fn check_name(name: &str) -> Result<(), DecodeError> {
    match name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        true => Err(DecodeError::invalid(
            "must have 1 to 128 bytes without control characters",
        )),
        false => Ok(()),
    }
}

#[derive(Debug, Serialize)]
struct Queues {
    queues: Vec<Queue>,
    workers: Vec<Worker>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Queue {
    queue: String,
    waiting: u64,
    leased: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_at: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Worker {
    queue: String,
    worker: String,
    waiting: usize,
    working: usize,
    seen_at: Timestamp,
}

/// `GET /v1/host/wopr/workers`
pub(super) fn list(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let found = call.host.app().worker_queues(call.caller()).await?;
        let queue = |found: OfferedQueue| Queue {
            queue: found.queue,
            waiting: found.waiting,
            leased: found.leased,
            oldest_at: found.oldest.map(render::time),
        };
        let worker = |seen: SeenWorker| Worker {
            queue: seen.queue,
            worker: seen.worker,
            waiting: seen.waiting,
            working: seen.working,
            seen_at: render::time(seen.seen_at),
        };
        json_response(
            StatusCode::OK,
            &Queues {
                queues: found.queues.into_iter().map(queue).collect(),
                workers: found.workers.into_iter().map(worker).collect(),
            },
        )
    }
    .boxed()
}
