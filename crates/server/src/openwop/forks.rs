//! Forks runs, tries failed ones again, and compares two.

use std::{borrow::Cow, collections::BTreeSet};

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use wopr_app::{
    DIFFERENCE_BYTES, Error as AppError, EventDiff, Mask, NewFork, RetryWith, RunDiff, View, VisibleRun,
};
use wopr_core::{ForkMode, Object, Overlay, Recorded, RunId, Seq, json_size};
use wopr_wire::{
    json::{Decode, DecodeError, Fields},
    openwop::{
        control::{ForkMode as WireMode, ForkRequest, ForkResponse, RunOptions},
        event::RunEventDoc,
        run::RunStatus as WireStatus,
    },
};

use super::{
    answer::{Answer, json_response},
    call::Call,
    idempotency,
    problem::{Problem, no_run},
    render,
    runs::{check_overrides, status_body},
};
use crate::auth::Scope;

/// The run of the path. An unknown run is reported before an invalid request.
async fn known_run(call: &Call) -> Result<VisibleRun, Problem> {
    let run = call.visible_run(Scope::RunsRead).await?;
    call.host.app().summary(&run).await?.ok_or_else(no_run)?;
    Ok(run)
}

/// Why a run that is not found cannot be forked: its log may have been removed, with all that its agents read.
fn or_expired(call: &Call, missing: Problem) -> Problem {
    match call.decode::<ForkRequest>() {
        Ok(ForkRequest { from_seq, .. }) => expired(call, missing, |gone| gone.with("fromSeq", from_seq)),
        Err(_) => missing,
    }
}

/// Why a run that is not found cannot be tried again, for the same reason. Where it failed is no longer known.
fn or_retry_expired(call: &Call, missing: Problem) -> Problem {
    match call.decode::<RetryRequest>() {
        Ok(RetryRequest { .. }) => expired(call, missing, |gone| gone),
        Err(_) => missing,
    }
}

fn expired(call: &Call, missing: Problem, details: impl FnOnce(Problem) -> Problem) -> Problem {
    let source = call.param(0);
    if missing.status != StatusCode::NOT_FOUND || !call.host.app().may_have_expired(source) {
        return missing;
    }
    let gone = Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "replay_memory_snapshot_unavailable",
        "the run is older than this host keeps the logs of ended runs, and there is no log of it",
    );
    details(gone.with("sourceRunId", source)).with("reason", "retention_expired")
}

/// `POST /v1/runs/{runId}:fork`
pub(super) fn fork(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let source = known_run(&call).await;
        let source = source.map_err(|problem| or_expired(&call, problem))?;
        let once = idempotency::Request::of(&call)?;
        let request: ForkRequest = call.decode()?;
        let ForkRequest {
            mode,
            from_seq,
            run_options_overlay,
        } = request;
        let overlay = overlay(run_options_overlay, &call)?;
        let (mode, from) = (of_wire(mode), Seq(from_seq));
        let run = call.host.app().new_run_id();
        let body = accepted(&call, &run, &source.run, (mode, from));
        let side_rows = idempotency::Request::side_rows(once, &call, {
            let body = body.clone();
            move |_| (StatusCode::CREATED, body.clone())
        });
        let new = NewFork {
            run,
            mode,
            from,
            overlay,
            side_rows,
        };
        let done = call.host.app().fork_run(call.caller(), &source, new).await;
        // The run may have been removed in between.
        let done = done.map_err(|error| or_expired(&call, error.into()))?;
        idempotency::answer(&call, &done, |_| (StatusCode::CREATED, body)).await
    }
    .boxed()
}

/// The body of `POST /v1/host/wopr/runs/{runId}:retry`.
struct RetryRequest {
    as_it_was: bool,
}

impl Decode for RetryRequest {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let as_it_was = fields.or_default("asItWas")?;
        fields.refuse_unknown()?;
        Ok(Self { as_it_was })
    }
}

/// `POST /v1/host/wopr/runs/{runId}:retry`
pub(super) fn retry(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let source = known_run(&call).await;
        let source = source.map_err(|problem| or_retry_expired(&call, problem))?;
        let once = idempotency::Request::of(&call)?;
        let RetryRequest { as_it_was } = call.decode()?;
        let with = match as_it_was {
            true => RetryWith::Recorded,
            false => RetryWith::Current,
        };
        let run = call.host.app().new_run_id();
        let body = |from: Seq| accepted(&call, &run, &source.run, (ForkMode::Branch, from));
        let side_rows = |from: Seq| {
            let body = body(from);
            idempotency::Request::side_rows(once, &call, move |_| (StatusCode::CREATED, body.clone()))
        };
        let app = call.host.app();
        let retrying = app.retry_run(call.caller(), &source, with, run.clone(), side_rows);
        // The run may have been removed in between.
        let (done, from) = retrying.await.map_err(|error| match error {
            AppError::NoRun => or_retry_expired(&call, error.into()),
            other => other.into(),
        })?;
        let body = body(from);
        idempotency::answer(&call, &done, |_| (StatusCode::CREATED, body)).await
    }
    .boxed()
}

fn of_wire(mode: WireMode) -> ForkMode {
    match mode {
        WireMode::Replay => ForkMode::Replay,
        WireMode::Branch => ForkMode::Branch,
    }
}

/// What a branch changes, checked as the options of a new run are.
fn overlay(options: RunOptions, call: &Call) -> Result<Option<Overlay>, Problem> {
    if options.is_empty() {
        return Ok(None);
    }
    let RunOptions {
        mut configurable,
        tags,
        metadata,
    } = options;
    check_overrides(&mut configurable, call)?;
    Ok(Some(Overlay {
        configurable,
        tags: (!tags.is_empty()).then_some(tags),
        metadata,
    }))
}

/// The response to a new fork. It always has the status pending.
fn accepted(call: &Call, run: &RunId, source: &RunId, (mode, from): (ForkMode, Seq)) -> Vec<u8> {
    let origin = call.host.public_url();
    status_body(&ForkResponse {
        run_id: run.to_string(),
        source_run_id: source.to_string(),
        from_seq: from.0,
        mode: match mode {
            ForkMode::Replay => WireMode::Replay,
            ForkMode::Branch => WireMode::Branch,
        },
        status: WireStatus::Pending,
        events_url: format!("{origin}/v1/runs/{run}/events"),
    })
}

/// The answer to `GET /v1/runs/{runId}:diff`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Diff {
    a: String,
    b: String,
    /// `null` if the logs are the same.
    diverged_at_seq: Option<u64>,
    event_diffs: Vec<EventDiffDoc>,
    state_diff: Value,
    /// A run is under way, or there are more differences than are shown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EventDiffDoc {
    seq: u64,
    op: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    a_event: Option<RunEventDoc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    b_event: Option<RunEventDoc>,
}

/// `GET /v1/runs/{runId}:diff`
pub(super) fn diff(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        known_run(&call).await?;
        let Some(against) = call.query("against") else {
            return Err(Problem::field(
                "against",
                "must be the id of the run to compare with",
            ));
        };
        let app = call.host.app();
        // Held until both logs are compared and rendered.
        let _turn = call.host.paging().turn_to_read(&call.caller().tenant).await?;
        let reader = call.caller();
        let is_same = |[a, b]: &[View; 2], [left, right]: [&Recorded; 2]| {
            let masks = [a, b].map(|view| Mask::for_caller(view, reader));
            render::is_same_shown([&left.event, &right.event], [&masks[0], &masks[1]], &a.key.run)
        };
        let diff = app.diff_runs(reader, (call.param(0), &against), is_same).await?;
        let RunDiff {
            runs: [a, b],
            events,
            is_cut,
        } = diff;
        let masks = [&a, &b].map(|view| Mask::for_caller(view, call.caller()));
        let document = |EventDiff {
                            at,
                            events: [left, right],
                        }: EventDiff| EventDiffDoc {
            seq: at.0,
            op: match (&left, &right) {
                (None, _) => "added",
                (_, None) => "removed",
                (Some(_), Some(_)) => "changed",
            },
            a_event: left.map(|event| render::owned(render::Log::of(&a, &masks[0]).event(&event))),
            b_event: right.map(|event| render::owned(render::Log::of(&b, &masks[1]).event(&event))),
        };
        let diverged_at_seq = events.first().map(|event| event.at.0);
        let is_open = |view: &View| !view.run.status.is_terminal();
        let (state_diff, is_state_cut) = state_diff([&a, &b], &masks);
        let body = Diff {
            a: a.key.run.to_string(),
            b: b.key.run.to_string(),
            diverged_at_seq,
            event_diffs: events.into_iter().map(document).collect(),
            state_diff,
            truncated: is_cut || is_state_cut || is_open(&a) || is_open(&b),
        };
        json_response(StatusCode::OK, &body)
    }
    .boxed()
}

/// Status, variables and channels that differ for a reader with these masks, as `{a, b}`, and whether some had no room.
fn state_diff([a, b]: [&View; 2], masks: &[Mask; 2]) -> (Value, bool) {
    let mut diff = Object::new();
    let (mut left_bytes, mut is_cut) = (DIFFERENCE_BYTES, false);
    if a.run.status != b.run.status {
        let pair = json!({ "a": a.run.status.as_str(), "b": b.run.status.as_str() });
        diff.insert("status".to_owned(), pair);
    }
    let mut of = |name: &str, left: &Object, right: &Object| {
        let names: BTreeSet<_> = left.keys().chain(right.keys()).collect();
        let mut changed = Object::new();
        for name in names {
            let shown = |values: &Object, mask: &Mask| Some(mask.value(name, values.get(name)?));
            let sides = [shown(left, &masks[0]), shown(right, &masks[1])];
            if sides[0].as_ref().map(without_times) == sides[1].as_ref().map(without_times) {
                continue;
            }
            let size: usize = sides.iter().flatten().map(json_size).sum();
            let Some(rest) = left_bytes.checked_sub(size) else {
                is_cut = true;
                continue;
            };
            left_bytes = rest;
            let pair = ["a", "b"].into_iter().zip(sides);
            let pair = pair.filter_map(|(side, value)| Some((side.to_owned(), value?)));
            changed.insert(name.clone(), Value::Object(pair.collect()));
        }
        (!changed.is_empty()).then(|| (name.to_owned(), Value::Object(changed)))
    };
    diff.extend(of("variables", a.run.variables(), b.run.variables()));
    diff.extend(of("channels", a.run.channels(), b.run.channels()));
    (Value::Object(diff), is_cut)
}

/// A value without the times at which the entries of a channel were written.
fn without_times(value: &Value) -> Cow<'_, Value> {
    let is_timed = |entry: &Value| entry.get("_ts").is_some() && entry.get("value").is_some();
    let Some(entries) = value.as_array().filter(|entries| entries.iter().any(is_timed)) else {
        return Cow::Borrowed(value);
    };
    let entry = |entry: &Value| match entry.get("value").filter(|_| is_timed(entry)) {
        Some(value) => value.clone(),
        None => entry.clone(),
    };
    Cow::Owned(entries.iter().map(entry).collect())
}
