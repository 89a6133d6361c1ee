//! Turns a decision into the batch that commits it.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use wopr_core::{
    Call, ContentHash, Decision, Effect, Event, Failure, InterruptKind, NewChild, NodeId, Plan, REJECTED,
    Recorded, Run, RunId, RunKey, RunStatus, StepId, Timestamp, WorkflowId, format,
};
use wopr_store::{
    Batch, ChildRow, EffectKey, EffectRow, Epoch, Fence, Guard, Hold, InboxRow, Settled, Snapshot,
    StoredEvent, Summary, TaskInterrupt, TaskRow, TaskState, TimerKey, TimerRow,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::{HttpCall, Request, View};

/// A snapshot is stored each time the log passes a multiple of this length.
const SNAPSHOT_EVERY: u64 = 256;
/// A snapshot is also stored when the events after the last one exceed this size, because each load reads
/// them.
const SNAPSHOT_BYTES: usize = 4 << 20;

/// The stored body of an effect row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredEffect {
    pub(crate) step: StepId,
    pub(crate) attempt: u32,
    pub(crate) idempotency_key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) traceparent: Option<String>,
    pub(crate) request: Request,
}

/// The A2A task state of a run, and the kind of interrupt it waits for (seed 000, forward projection). A
/// failed run is `rejected` if it declined what it was asked.
#[must_use]
pub fn task_state(
    status: RunStatus,
    error: Option<&Failure>,
    kind: Option<InterruptKind>,
) -> (TaskState, Option<TaskInterrupt>) {
    let state = match status {
        RunStatus::Pending => TaskState::Submitted,
        RunStatus::Running | RunStatus::Paused | RunStatus::Cancelling => TaskState::Working,
        RunStatus::WaitingApproval | RunStatus::WaitingInput | RunStatus::WaitingExternal => {
            TaskState::InputRequired
        }
        RunStatus::Completed => TaskState::Completed,
        RunStatus::Failed if error.is_some_and(|error| error.code == REJECTED) => TaskState::Rejected,
        RunStatus::Failed => TaskState::Failed,
        RunStatus::Cancelled => TaskState::Canceled,
    };
    // The row knows two kinds: external events count as clarifications (contract.md).
    let interrupt = match (state, kind) {
        (TaskState::InputRequired, Some(InterruptKind::Approval)) => Some(TaskInterrupt::Approval),
        (
            TaskState::InputRequired,
            Some(InterruptKind::Clarification | InterruptKind::ExternalEvent | InterruptKind::Custom),
        ) => Some(TaskInterrupt::Clarification),
        _ => None,
    };
    (state, interrupt)
}

/// The conformance workflow that asks for a credential.
pub const AUTH_REQUIRED_WORKFLOW: &str = "a2a-conformance-auth";

/// Returns `true` if the interrupts of a workflow are shown as `auth-required`. RFC 0100 never projects runs
/// to that state, except for the workflow that conformance kits use; outside of conformance mode no workflow
/// has its node types.
#[must_use]
pub fn asks_for_authentication(plan: &Plan) -> bool {
    let mut nodes = plan.definition.nodes.iter();
    plan.id().as_str() == AUTH_REQUIRED_WORKFLOW && nodes.any(|node| node.type_id.starts_with("conformance."))
}

/// The input of [`prepare`] besides the decision.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) view: &'a View,
    pub(crate) guard: Guard,
    pub(crate) task_before: Option<&'a TaskRow>,
    /// Bytes of the events after the last snapshot.
    pub(crate) n_tail_bytes: usize,
    pub(crate) now: Timestamp,
    pub(crate) epoch: Epoch,
    pub(crate) lease_until: Timestamp,
    /// The effect that the command settles, with the lease of its attempt.
    pub(crate) fence: Option<(EffectKey, Fence)>,
    /// A random value, unique to this commit.
    pub(crate) mark: String,
}

/// A prepared commit: the batch, and what to do once it is durable.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) batch: Batch,
    pub(crate) run: Run,
    pub(crate) summary: Summary,
    /// The events of the batch before encoding.
    pub(crate) events: Vec<Recorded>,
    pub(crate) effects: Vec<(EffectKey, StoredEffect)>,
    /// Runs that receive messages.
    pub(crate) told: Vec<RunId>,
    pub(crate) next_timer: Option<Timestamp>,
    pub(crate) children: usize,
}

pub(crate) fn prepare(context: &Context<'_>, decision: Decision) -> Prepared {
    let Decision {
        run,
        events,
        effects,
        settled,
        timers_set,
        timers_cleared,
        children,
        messages,
        heard: _,
    } = decision;
    let Context { view, guard, now, .. } = context;
    let key = &view.key;
    let head_before = view.run.head.0;
    let stored: Vec<_> = events
        .iter()
        .enumerate()
        .map(|(index, recorded)| StoredEvent {
            seq: recorded.seq,
            body: match index {
                0 => format::encode_first_event(recorded, &context.mark),
                _ => format::encode_event(recorded),
            },
        })
        .collect();
    let n_bytes: usize = stored.iter().map(|event| event.body.len()).sum();
    let is_heavy = !stored.is_empty() && context.n_tail_bytes + n_bytes > SNAPSHOT_BYTES;
    let summary = Summary {
        status: run.status,
        updated_at: *now,
        ..view.summary.clone()
    };
    let mut batch = Batch::new(key.clone(), *guard, stored, summary.clone());

    let error = run.error.as_ref().map(|(error, _)| error);
    let asked = run.interrupt(&view.plan).map(|open| open.kind());
    let (state, interrupt) = match task_state(run.status, error, asked) {
        (TaskState::InputRequired, interrupt) if asks_for_authentication(&view.plan) => {
            (TaskState::AuthRequired, interrupt)
        }
        other => other,
    };
    let unchanged = context
        .task_before
        .is_some_and(|row| row.state == state && row.interrupt == interrupt);
    if !unchanged {
        let context = run.started.as_ref().and_then(|started| started.context.clone());
        batch.task = Some(TaskRow {
            context,
            state,
            interrupt,
            updated_at: *now,
        });
    }
    if is_heavy || head_before / SNAPSHOT_EVERY < run.head.0 / SNAPSHOT_EVERY {
        batch.snapshot = Some(Snapshot {
            head: run.head,
            body: format::encode_run(&run),
        });
    }
    batch.timers_cleared = timers_cleared.iter().map(|timer| TimerKey(timer.key())).collect();
    batch.timers_set = timers_set
        .iter()
        .map(|(timer, due)| TimerRow {
            key: TimerKey(timer.key()),
            due: *due,
        })
        .collect();
    batch.effects_settled = settled
        .iter()
        .map(|(step, attempt)| {
            let key = effect_key(step, *attempt);
            let fence = context
                .fence
                .as_ref()
                .filter(|(won, _)| *won == key)
                .map(|(_, fence)| *fence);
            Settled { key, fence }
        })
        .collect();
    let is_resumed = |recorded: &Recorded| matches!(recorded.event, Event::RunResumed { .. });
    // Releases the work rows of a run that may have been quarantined. A run that ended in quarantine has no
    // work left, but its inbox may hold its start, which has to be answered: only the start names the parent.
    let was_held = matches!(view.run.status, RunStatus::Paused | RunStatus::Cancelling);
    let ends_held = was_held && run.status.is_terminal();
    batch.hold = (ends_held || events.iter().any(is_resumed)).then_some(Hold::Release);
    let trace = run.started.as_ref().and_then(|started| started.trace.clone());
    let effects: Vec<_> = effects
        .into_iter()
        .map(|effect| {
            (
                effect_key(&effect.step, effect.attempt),
                stored_effect(key, trace.as_ref(), effect),
            )
        })
        .collect();
    batch.effects_enqueued = effects
        .iter()
        .map(|(key, effect)| EffectRow {
            key: key.clone(),
            body: serde_json::to_vec(effect).expect("a request has string keys"),
            leased: Some((context.epoch, context.lease_until)),
        })
        .collect();
    let mut told = Vec::with_capacity(children.len() + messages.len());
    let n_children = children.len();
    for child in children {
        let (row, start) = child_rows(view, &child, *now);
        told.push(child.run);
        batch.children.push(row);
        batch.inbox_sent.push(start);
    }
    for (target, source_seq, message) in messages {
        told.push(target.clone());
        let body = encode_message(&message);
        batch.inbox_sent.push(InboxRow {
            target,
            source: key.run.clone(),
            source_seq,
            body,
        });
    }
    let next_timer = timers_set.iter().map(|(_, due)| *due).min();
    Prepared {
        batch,
        run,
        summary,
        events,
        effects,
        told,
        next_timer,
        children: n_children,
    }
}

fn child_rows(parent: &View, child: &NewChild, now: Timestamp) -> (ChildRow, InboxRow) {
    let summary = Summary {
        workflow: child.workflow.clone(),
        version: child.version.clone(),
        status: RunStatus::Pending,
        principal: child.start.principal.clone(),
        parent: Some((parent.key.run.clone(), child.node.clone())),
        created_at: now,
        updated_at: now,
    };
    let (state, interrupt) = task_state(RunStatus::Pending, None, None);
    let task = TaskRow {
        context: None,
        state,
        interrupt,
        updated_at: now,
    };
    let start = InboxRow {
        target: child.run.clone(),
        source: parent.key.run.clone(),
        source_seq: child.dispatched,
        body: encode_message(&wopr_core::RunMessage::Start(Box::new(child.start.clone()))),
    };
    (
        ChildRow {
            run: child.run.clone(),
            summary,
            task,
        },
        start,
    )
}

/// The summary of a run that does not exist yet.
pub(crate) fn new_summary(
    workflow: WorkflowId,
    version: ContentHash,
    principal: wopr_core::PrincipalId,
    now: Timestamp,
) -> Summary {
    Summary {
        workflow,
        version,
        status: RunStatus::Pending,
        principal,
        parent: None,
        created_at: now,
        updated_at: now,
    }
}

fn encode_message(message: &wopr_core::RunMessage) -> Vec<u8> {
    serde_json::to_vec(message).expect("a notice has string keys")
}

fn effect_key(step: &StepId, attempt: u32) -> EffectKey {
    EffectKey(format!("{}:{attempt}:{}", step.ordinal, step.node))
}

fn stored_effect(run: &RunKey, trace: Option<&String>, effect: Effect) -> StoredEffect {
    let Effect { step, attempt, call } = effect;
    let (provider, request) = match call {
        Call::Http {
            method,
            url,
            headers,
            body,
            timeout_ms,
        } => (
            "core.http.request",
            Request::Http(HttpCall {
                method,
                url,
                headers,
                body,
                timeout_ms,
            }),
        ),
        Call::SideEffect { payload } => ("core.conformance.side-effect", Request::SideEffect { payload }),
    };
    let idempotency_key = invocation_id(run, &step.node, step.ordinal, provider);
    StoredEffect {
        step,
        attempt,
        idempotency_key,
        traceparent: trace.cloned(),
        request,
    }
}

/// The logical invocation id of OpenWOP v1 §17.2: the same for all attempts, retries and restarts.
fn invocation_id(run: &RunKey, node: &NodeId, ordinal: u32, provider: &str) -> String {
    let mut hasher = Sha256::new();
    let ordinal = ordinal.to_string();
    let parts = [
        "openwop:activity:v2",
        run.tenant.as_str(),
        run.run.as_str(),
        node.as_str(),
        &ordinal,
    ];
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    hasher.update(provider.as_bytes());
    URL_SAFE_NO_PAD.encode(hasher.finalize())
}
