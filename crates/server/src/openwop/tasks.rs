//! Reads stored A2A task states (RFC 0100): a fixed record without inputs, outputs or secrets.

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use wopr_app::{PushRow, TaskInterrupt, TaskRow, TaskState};
use wopr_core::RunKey;
use wopr_wire::openwop::task_state::{A2aTaskState, PushConfig, StoredInterruptKind, StoredTaskState};

use super::{
    answer::{Answer, json_response},
    call::Call,
    problem::Problem,
    render,
};

/// `GET /v1/a2a/tasks/{taskId}`
pub(super) fn show(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let key = call.visible_run().await.map_err(as_task)?;
        json_response(StatusCode::OK, &record(&call, &key).await?)
    }
    .boxed()
}

/// 404: the task does not exist, or the caller may not see it.
pub(super) fn no_task() -> Problem {
    Problem::not_found("no such task")
}

/// Turns the error for an unknown run into one for an unknown task.
fn as_task(problem: Problem) -> Problem {
    if problem.status == StatusCode::NOT_FOUND {
        no_task()
    } else {
        problem
    }
}

/// The record of a task, with the push configuration set last among those that the caller manages.
pub(super) async fn record(call: &Call, key: &RunKey) -> Result<A2aTaskState, Problem> {
    let app = call.host.app();
    let (row, _) = app.task(key).await?.ok_or_else(no_task)?;
    let pushes = app.subscriptions(key).await?;
    let mut shown_push = None;
    for row in pushes.iter().rev() {
        shown_push = push_config(call, key, row)?;
        if shown_push.is_some() {
            break;
        }
    }
    let TaskRow {
        context,
        state,
        interrupt,
        updated_at,
    } = row;
    Ok(A2aTaskState {
        task_id: key.run.to_string(),
        run_id: key.run.to_string(),
        context_id: context,
        state: stored_state(state),
        interrupt_kind: interrupt.map(|kind| match kind {
            TaskInterrupt::Approval => StoredInterruptKind::Approval,
            TaskInterrupt::Clarification => StoredInterruptKind::Clarification,
        }),
        updated_at: render::time(updated_at),
        push_config: shown_push,
    })
}

/// The visible part of a push configuration. `None` if the caller does not manage it.
fn push_config(call: &Call, key: &RunKey, row: &PushRow) -> Result<Option<PushConfig>, Problem> {
    let cipher = call.host.cipher();
    let subscription = cipher.open(key, &row.id, &row.body).map_err(|error| {
        tracing::error!(run = %key, push = row.id, %error, "push configuration not readable");
        Problem::internal()
    })?;
    Ok(subscription.is_managed_by(call.caller()).then(|| PushConfig {
        url: subscription.shown_url(),
        token_fingerprint: cipher.fingerprint(&subscription),
    }))
}

const fn stored_state(state: TaskState) -> StoredTaskState {
    match state {
        TaskState::Submitted => StoredTaskState::Submitted,
        TaskState::Working => StoredTaskState::Working,
        TaskState::InputRequired => StoredTaskState::InputRequired,
        TaskState::AuthRequired => StoredTaskState::AuthRequired,
        TaskState::Completed => StoredTaskState::Completed,
        TaskState::Failed => StoredTaskState::Failed,
        TaskState::Canceled => StoredTaskState::Canceled,
        TaskState::Rejected => StoredTaskState::Rejected,
    }
}
