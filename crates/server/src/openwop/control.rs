//! Cancels, pauses and resumes runs.

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, join_all},
};
use http::StatusCode;
use wopr_app::{Done, Error as AppError, SideRows, View};
use wopr_core::{DrainPolicy, Refusal, RunId, RunStatus};
use wopr_wire::{
    json::{self, Decode as _},
    openwop::{
        control::{
            BulkCancelItem, BulkCancelRequest, BulkCancelResponse, CancelRequest, CancelResponse,
            DrainPolicy as WireDrain, MAX_BULK_RUNS, PauseRequest, PauseResponse, ResumeRequest,
            ResumeResponse,
        },
        run::RunStatus as WireStatus,
    },
};

use super::{
    answer::{Answer, bytes_response},
    call::Call,
    idempotency,
    problem::Problem,
    render,
    runs::status_body,
};
use crate::auth::Scope;

/// `POST /v1/runs/{runId}/cancel`, `POST /v1/runs/{runId}:cancel`
pub(super) fn one(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let key = call.visible_run(Scope::RunsCancel).await?;
        let once = idempotency::Request::of(&call)?;
        let request: CancelRequest = call.decode()?;
        let respond = |view: &View| (StatusCode::OK, cancelled(&view.key.run, view.run.status));
        let side_rows = idempotency::Request::side_rows(once.clone(), &call, respond);
        let cancelling = call
            .host
            .app()
            .cancel_run(call.caller(), &key, request.reason, side_rows);
        match cancelling.await {
            Ok(done) => idempotency::answer(&call, &done, respond).await,
            // Cancelling a run that has ended succeeds without effect, and without an append that could record the
            // request.
            Err(AppError::Refused(Refusal::Terminal(status))) => {
                let body = cancelled(&key.run, status);
                match once {
                    Some(once) => once.remember(&call, StatusCode::OK, body).await,
                    None => Ok(bytes_response(StatusCode::OK, body)),
                }
            }
            Err(error) => Err(error.into()),
        }
    }
    .boxed()
}

fn cancelled(run: &RunId, status: RunStatus) -> Vec<u8> {
    status_body(&CancelResponse {
        run_id: run.to_string(),
        status: render::status(status),
    })
}

/// `POST /v1/runs:bulk-cancel`
pub(super) fn bulk(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let once = idempotency::Request::of(&call)?;
        if let Some(once) = &once
            && let Some(response) = once.replay(&call).await?
        {
            return Ok(response);
        }
        let request = json::parse(&call.body).map_err(Problem::from)?;
        let request = BulkCancelRequest::decode(request).map_err(|error| {
            let names_runs = error.path() == "runIds";
            let problem = Problem::from(error);
            if names_runs {
                problem.with("maxRunIds", MAX_BULK_RUNS)
            } else {
                problem
            }
        })?;
        // Cancel all runs concurrently, so that they share commits. Each run is decided separately.
        let reason = &request.reason;
        let items = request
            .run_ids
            .into_iter()
            .map(|id| bulk_item(&call, id, reason.clone()));
        let items = join_all(items).await;
        let is_settled = items.iter().all(|(_, is_settled)| *is_settled);
        let results = items.into_iter().map(|(item, _)| item).collect();
        let body = status_body(&BulkCancelResponse { results });
        match once {
            // Results with server errors are not recorded, so that a repeated request retries them. It does not
            // affect runs that are already cancelled.
            Some(once) if is_settled => once.remember(&call, StatusCode::OK, body).await,
            Some(_) | None => Ok(bytes_response(StatusCode::OK, body)),
        }
    }
    .boxed()
}

/// Cancels one run. The flag is `false` for a server error, which a repeated request should retry.
async fn bulk_item(call: &Call, id: String, reason: Option<String>) -> (BulkCancelItem, bool) {
    let refused = |id: String, problem: Problem| {
        let is_settled = !problem.status.is_server_error();
        (BulkCancelItem::refused(id, problem.envelope), is_settled)
    };
    let (app, caller) = (call.host.app(), call.caller());
    let key = match app.find_run(caller, &id, Scope::RunsCancel).await {
        Ok(key) => key,
        Err(error) => return refused(id, error.into()),
    };
    let done = app.cancel_run(caller, &key, reason, SideRows::default()).await;
    match done {
        Ok(Done::Fresh(view)) => (BulkCancelItem::done(id, render::status(view.run.status)), true),
        Ok(Done::Replayed(_)) => refused(id, Problem::internal()),
        Err(AppError::Refused(Refusal::Terminal(RunStatus::Cancelled))) => {
            (BulkCancelItem::done(id, WireStatus::Cancelled), true)
        }
        Err(error) => refused(id, Problem::from(error)),
    }
}

/// `POST /v1/runs/{runId}:pause`
pub(super) fn pause(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let key = call.visible_run(Scope::RunsCancel).await?;
        let once = idempotency::Request::of(&call)?;
        let request: PauseRequest = call.decode()?;
        let drain = match request.drain_policy {
            WireDrain::Immediate => DrainPolicy::Immediate,
            WireDrain::DrainCurrentNode => DrainPolicy::DrainCurrentNode,
        };
        let respond = |view: &View| {
            let response = PauseResponse {
                run_id: view.key.run.to_string(),
                status: WireStatus::Paused,
                paused_at: Some(render::time(view.run.updated_at)),
            };
            (StatusCode::ACCEPTED, status_body(&response))
        };
        let side_rows = idempotency::Request::side_rows(once, &call, respond);
        let app = call.host.app();
        match app
            .pause_run(call.caller(), &key, request.reason, drain, side_rows)
            .await
        {
            Ok(done) => idempotency::answer(&call, &done, respond).await,
            Err(error) => {
                let is_paused = matches!(error, AppError::Refused(Refusal::NotPausable(RunStatus::Paused)));
                let mut problem = Problem::from(not_begun(error, RunStatus::Pending));
                if is_paused && let Ok(Some(since)) = app.paused_at(&key).await {
                    problem = problem.with("pausedAt", render::time(since).to_string());
                }
                Err(problem)
            }
        }
    }
    .boxed()
}

/// `POST /v1/runs/{runId}:resume`
pub(super) fn resume(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let key = call.visible_run(Scope::RunsCancel).await?;
        let once = idempotency::Request::of(&call)?;
        let request: ResumeRequest = call.decode()?;
        // The run may already have ended in the same append, but the response confirms that it was resumed.
        let respond = |view: &View| {
            let response = ResumeResponse {
                run_id: view.key.run.to_string(),
                status: WireStatus::Running,
                resumed_at: Some(render::time(view.run.updated_at)),
            };
            (StatusCode::ACCEPTED, status_body(&response))
        };
        let side_rows = idempotency::Request::side_rows(once, &call, respond);
        let resuming = call
            .host
            .app()
            .resume_run(call.caller(), &key, request.reason, side_rows);
        match resuming.await {
            Ok(done) => idempotency::answer(&call, &done, respond).await,
            Err(AppError::Refused(Refusal::WrongState)) => Err(Refusal::NotPaused(RunStatus::Pending).into()),
            Err(error) => Err(error.into()),
        }
    }
    .boxed()
}

/// A run without events can be neither paused nor resumed. The error carries its status.
fn not_begun(error: AppError, status: RunStatus) -> AppError {
    match error {
        AppError::Refused(Refusal::WrongState) => Refusal::NotPausable(status).into(),
        error => error,
    }
}
