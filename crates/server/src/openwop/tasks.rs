//! Reads stored A2A task states (RFC 0100): a fixed record without inputs, outputs or secrets.

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use wopr_app::{FoundSubscription, Summary, VisibleRun};
use wopr_core::{InterruptKind, REJECTED, RunStatus};
use wopr_wire::openwop::task_state::{A2aTaskState, PushConfig, StoredInterruptKind, StoredTaskState};

use super::{
    answer::{Answer, json_response},
    call::Call,
    problem::Problem,
    render,
};
use crate::{a2a::conformance, auth::Scope};

/// `GET /v1/a2a/tasks/{taskId}`
pub(super) fn show(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let key = call.visible_run(Scope::RunsRead).await.map_err(as_task)?;
        json_response(StatusCode::OK, &record(&call, &key).await?)
    }
    .boxed()
}

/// 404: the task does not exist, or the caller may not see it.
pub(super) fn no_task() -> Problem {
    Problem::not_found("no such task")
}

/// Turns the error for an unknown run into one for an unknown task.
pub(super) fn as_task(problem: Problem) -> Problem {
    if problem.status == StatusCode::NOT_FOUND {
        no_task()
    } else {
        problem
    }
}

/// The record of a task, with the push configuration set last among those that the caller manages.
pub(super) async fn record(call: &Call, key: &VisibleRun) -> Result<A2aTaskState, Problem> {
    let app = call.host.app();
    let (summary, _) = app.summary(key).await?.ok_or_else(no_task)?;
    let cipher = call.host.cipher();
    let push_config = match app.subscription(call.caller(), key, None, cipher).await? {
        FoundSubscription::Managed(_, subscription) => Some(PushConfig {
            url: subscription.shown_url(),
            token_fingerprint: cipher.fingerprint(&subscription),
        }),
        FoundSubscription::Hidden | FoundSubscription::None => None,
    };
    let state = state(call, &summary);
    let interrupt_kind = summary
        .waiting_on
        .filter(|_| state == StoredTaskState::InputRequired)
        .map(interrupt_kind);
    Ok(A2aTaskState {
        task_id: key.run.to_string(),
        run_id: key.run.to_string(),
        context_id: summary.group,
        state,
        interrupt_kind,
        updated_at: render::time(summary.phase_since),
        push_config,
    })
}

/// The forward projection (section 27.5), with the two states that the status alone does not tell.
fn state(call: &Call, summary: &Summary) -> StoredTaskState {
    let is_rejected = summary.error_code.as_deref() == Some(REJECTED);
    let asks_auth = call.host.config().conformance && summary.workflow == conformance::authentication();
    match summary.status {
        RunStatus::Failed if is_rejected => StoredTaskState::Rejected,
        status if status.is_waiting() && asks_auth => StoredTaskState::AuthRequired,
        status => render::status(status).into(),
    }
}

/// The record knows two kinds: external events count as clarifications.
const fn interrupt_kind(kind: InterruptKind) -> StoredInterruptKind {
    match kind {
        InterruptKind::Approval | InterruptKind::LowConfidence => StoredInterruptKind::Approval,
        InterruptKind::Clarification | InterruptKind::ExternalEvent | InterruptKind::Custom => {
            StoredInterruptKind::Clarification
        }
    }
}
