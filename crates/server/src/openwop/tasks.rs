//! The read seam of stored A2A task states (RFC 0100): a closed record without inputs, outputs or secrets.

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use wopr_store::{TaskInterrupt, TaskRow, TaskState};
use wopr_wire::openwop::task_state::{A2aTaskState, StoredInterruptKind, StoredTaskState};

use super::{
    call::{Answer, Call, json_response},
    problem::Problem,
    render,
};

/// `GET /v1/a2a/tasks/{taskId}`
pub(super) fn show(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let missing = || Problem::not_found("no such task");
        let key = call.run().map_err(|_| missing())?;
        let store = call.host.engine().store();
        if call.host.config().a2a.private_tasks {
            let (summary, _) = store.summary(&key).await?.ok_or_else(missing)?;
            if summary.principal != call.caller().principal {
                return Err(missing());
            }
        }
        let (row, _) = store.task(&key).await?.ok_or_else(missing)?;
        let TaskRow {
            context,
            state,
            interrupt,
            updated_at,
        } = row;
        let record = A2aTaskState {
            task_id: key.run.to_string(),
            run_id: key.run.to_string(),
            context_id: context,
            state: stored_state(state),
            interrupt_kind: interrupt.map(|kind| match kind {
                TaskInterrupt::Approval => StoredInterruptKind::Approval,
                TaskInterrupt::Clarification => StoredInterruptKind::Clarification,
            }),
            updated_at: render::time(updated_at),
            push_config: None,
        };
        json_response(StatusCode::OK, &record)
    }
    .boxed()
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
