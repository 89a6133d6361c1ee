//! Turns a decision into the batch that commits it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use wopr_core::{
    Call, Decision, Effect, Event, InterruptKind, KernelEvent, ModelUsage, NewChild, NodeId, Plan, Recorded,
    Run, RunId, RunKey, RunStatus, StepId, Timer, Timestamp, TraceContext, Work, format,
};
use wopr_store::{
    Batch, ChildRow, Ended, Epoch, Fence, Guard, Hold, InboxRow, Offer, Snapshot, StoredEvent, Summary,
    WorkKey, WorkRow, WorkState,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::{
    Executor, HttpCall, Request, View,
    adopted_children::{self, AdoptedRows},
    budgets::Budgets,
    call_deliveries::{answer_row, cancel_row},
    recalls, remembering,
    whole_children::{WholeChild, WholeChildren},
};

/// A snapshot is stored each time the log passes a multiple of this length.
pub(crate) const SNAPSHOT_EVERY: u64 = 256;
/// A snapshot is also stored when the events after the last one exceed this size, because each load reads
/// them.
pub(crate) const SNAPSHOT_BYTES: usize = 4 << 20;

/// When the timer of a decision that stopped at its limit is due if whoever continues it dies before.
const UNLESS_CONTINUED_MS: u64 = 5_000;

/// The stored body of an effect row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredEffect {
    pub(crate) step: StepId,
    pub(crate) attempt: u32,
    /// How many calls its execution has made before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) number: u32,
    pub(crate) idempotency_key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trace: Option<TraceContext>,
    pub(crate) request: Request,
    /// Present once the peer has accepted the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) handle: Option<Value>,
    /// How much of what the peer makes is in the run's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cursor: Option<Value>,
    /// The fence of the last lease, if under none of them the executor had room to begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) not_begun: Option<u64>,
}

impl StoredEffect {
    /// The fence under which the attempt begins. Under a later one, an earlier holder may have reached the peer. A row
    /// gets another fence when it is parked, and the next one when it is leased.
    pub(crate) fn first_lease(&self) -> Fence {
        Fence(self.not_begun.map_or(1, |fence| fence.saturating_add(2)))
    }

    /// Whether the holder of this lease can tell that nobody has sent the request. A second attempt repeats the request of
    /// the first, which was sent.
    pub(crate) fn is_unsent(&self, fence: Fence) -> bool {
        self.attempt == 0 && self.not_begun.is_some() && fence <= self.first_lease()
    }
}

/// The lease under which a command comes.
#[derive(Debug, Clone)]
pub(crate) struct Won {
    pub(crate) key: WorkKey,
    pub(crate) fence: Fence,
    /// The body of the row if the command parks it.
    pub(crate) parked: Option<Vec<u8>>,
    /// The attempt has failed, and its peer may have the call all the same.
    pub(crate) may_go_on: bool,
    /// The step, and how many calls it had made before this one.
    pub(crate) call: (StepId, u32),
    /// The attempt goes on under the lease.
    pub(crate) goes_on: bool,
    /// What a model took for the answer that the command reports.
    pub(crate) took: Option<ModelUsage>,
}

/// For serde.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// The input of [`prepare`] besides the decision.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) executor: &'a dyn Executor,
    pub(crate) view: &'a View,
    pub(crate) guard: Guard,
    /// Bytes of the events after the last snapshot.
    pub(crate) n_tail_bytes: usize,
    pub(crate) now: Timestamp,
    pub(crate) epoch: Epoch,
    /// By the clock of leases.
    pub(crate) lease_now: Timestamp,
    pub(crate) lease_until: Timestamp,
    /// How many attempts can begin at once. More are leased when their turn comes, by any process.
    pub(crate) room: usize,
    /// The lease of the attempt that the command reports.
    pub(crate) won: Option<&'a Won>,
    pub(crate) budgets: &'a Budgets,
    /// See [`SideRows::continues`](crate::SideRows::continues).
    pub(crate) continues: bool,
    /// A random value, unique to this commit.
    pub(crate) mark: String,
}

/// A prepared commit: the batch, and what to do once it is durable.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Boxed: it is large, and moves through the futures that commit it.
    pub(crate) batch: Box<Batch>,
    pub(crate) run: Run,
    pub(crate) summary: Summary,
    /// The events of the batch before encoding.
    pub(crate) events: Vec<Recorded>,
    pub(crate) effects: Vec<(WorkKey, StoredEffect)>,
    /// Runs that receive messages.
    pub(crate) told: Vec<RunId>,
    pub(crate) next_timer: Option<Timestamp>,
    /// The decision stopped at its limit, and whoever asked for it continues it.
    pub(crate) is_left_to_caller: bool,
    /// Peers are to be told of cancelled calls or answers, calls are to be recalled, or attempts are to be leased.
    pub(crate) has_told: bool,
    /// When a parked effect is due.
    pub(crate) next_check: Option<Timestamp>,
    pub(crate) children: usize,
    /// Children that ended in this batch, with the codes of their errors.
    pub(crate) ended_children: Vec<(RunId, RunStatus, Option<String>)>,
}

/// The state of an effect that waits for its worker; `None` for those that this host attempts.
pub(crate) fn offered(effect: &StoredEffect, since: Timestamp) -> Option<WorkState> {
    match &effect.request {
        Request::Activity(activity) => Some(WorkState::Offered(Offer {
            queue: activity.queue.clone(),
            since,
        })),
        Request::Http(_)
        | Request::Agent(_)
        | Request::Memory(_)
        | Request::Model(_)
        | Request::Tool(_)
        | Request::ToolList(_)
        | Request::SideEffect { .. } => None,
    }
}

pub(crate) fn prepare(context: &Context<'_>, decision: Decision, mut whole: WholeChildren) -> Prepared {
    let Decision {
        run,
        events,
        work,
        heard: _,
    } = decision;
    let Work {
        effects,
        settled,
        parked,
        cancelled,
        answered,
        timers_set,
        timers_cleared,
        children,
        messages,
    } = work;
    // The second line behind the kernel: nothing that a replay does may reach anybody.
    let is_mute = run.is_replay() || run.is_catching_up();
    let effects = unless(is_mute, effects);
    let (parked, cancelled, answered) = (
        unless(is_mute, parked),
        unless(is_mute, cancelled),
        unless(is_mute, answered),
    );
    let (children, messages) = (unless(is_mute, children), unless(is_mute, messages));
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
    let error_code = run.error.as_ref().map(|(error, _)| error.code.as_str());
    // Events of a fork, or after those of a process whose clock was ahead, are later than it is here. Who appends without
    // reading the run goes by this time.
    let at = (*now).max(run.updated_at);
    let mut summary = view
        .summary
        .after(run.status, waiting_on(&run, &view.plan), error_code, at);
    let is_turn = |step: &StepId| {
        run.status.is_waiting() && run.interrupts(&view.plan).any(|open| open.step() == *step)
    };
    let changes_questions = |recorded: &Recorded| match &recorded.event {
        Event::Kernel(event) => event.changes_questions(),
        Event::Dialect(event) => event.asks_anew().is_some_and(is_turn),
    };
    // Another question of the same kind is another phase, and so is the next turn of a conversation.
    if events.iter().any(changes_questions) {
        summary.phase_since = at;
    }
    let mut batch = Box::new(Batch::new(key.clone(), *guard, stored, summary.clone()));
    if !is_mute {
        batch.memory = match &run.started {
            Some(started) => remembering::written_by(&key.run, started, &events),
            None => Vec::new(),
        };
    }
    if let Some((took, started)) = (context.won.and_then(|won| won.took.as_ref())).zip(run.started.as_ref()) {
        batch.spent = (context.budgets).rows(&key.tenant, &started.workflow, took, *now);
    }
    if is_heavy || head_before / SNAPSHOT_EVERY < run.head.0 / SNAPSHOT_EVERY {
        batch.snapshot = Some(Snapshot {
            head: run.head,
            body: format::encode_run(view.plan.dialect(), &run),
        });
    }
    let cleared = timers_cleared.iter().map(|timer| Ended {
        key: WorkKey::timer(timer.key()),
        fence: None,
    });
    let accepted: Vec<_> = parked.iter().map(|call| (&call.step, call.attempt)).collect();
    let rows = recalls::settle(
        context,
        &recalls::Decided {
            run: &run,
            events: &events,
            settled: &settled,
            accepted: &accepted,
            timers_cleared: &timers_cleared,
        },
    );
    batch.work_ended = cleared.chain(rows.ended).collect();
    batch.work_moved = rows.moved;
    let is_resumed =
        |recorded: &Recorded| matches!(recorded.event, Event::Kernel(KernelEvent::RunResumed { .. }));
    // Releases the work rows of a run that may have been quarantined. A run that ended in quarantine has no
    // work left, but its inbox may hold its start, which has to be answered: only the start names the parent.
    let was_held = matches!(view.run.status, RunStatus::Paused | RunStatus::Cancelling);
    let ends_held = was_held && run.status.is_terminal();
    batch.hold = (ends_held || events.iter().any(is_resumed)).then_some(Hold::Release);
    let trace = run.started.as_ref().and_then(|started| started.trace.clone());
    let dialect = run.started.as_ref().map_or("", |started| &*started.dialect);
    let mut effects: Vec<_> = effects
        .into_iter()
        .map(|effect| {
            (
                effect_key(&effect.step, effect.attempt, effect.number),
                stored_effect((key, dialect), trace.as_ref(), effect),
            )
        })
        .collect();
    let mut timers_set = timers_set;
    let mut is_left_to_caller = false;
    for (_, due) in timers_set
        .iter_mut()
        .filter(|(timer, _)| *timer == Timer::Continue)
    {
        is_left_to_caller = context.continues;
        if context.continues {
            *due = due.plus_millis(UNLESS_CONTINUED_MS);
        }
    }
    let set = timers_set.iter();
    let set = set.map(|(timer, due)| WorkRow::timer(timer.key(), *due));
    let mut room = context.room;
    let enqueued: Vec<_> = effects
        .iter()
        .map(|(key, effect)| WorkRow {
            key: key.clone(),
            state: offered(effect, context.lease_now).unwrap_or_else(|| match room.checked_sub(1) {
                Some(rest) => {
                    room = rest;
                    WorkState::Leased(context.epoch, context.lease_until)
                }
                None => WorkState::Due(context.lease_now),
            }),
            body: serde_json::to_vec(effect).expect("a request has string keys"),
        })
        .collect();
    let mut states = enqueued
        .iter()
        .map(|row| matches!(row.state, WorkState::Leased(..)));
    effects.retain(|_| states.next() == Some(true));
    let is_crowded = enqueued.iter().any(|row| matches!(row.state, WorkState::Due(_)));
    let cancelled = cancelled
        .into_iter()
        .map(|call| cancel_row((key, dialect), trace.as_ref(), context.lease_now, call));
    let answered = answered.into_iter().map(|call| {
        let number = view.run.n_calls(&**view.plan, &call.step).unwrap_or(0);
        answer_row((key, dialect), trace.as_ref(), context.lease_now, call, number)
    });
    let told: Vec<_> = cancelled.chain(answered).collect();
    let has_told = !told.is_empty() || !batch.work_moved.is_empty() || is_crowded;
    batch.work_set = set.chain(enqueued).chain(told).collect();
    batch.work_parked = context
        .won
        .zip(parked.into_iter().next())
        .map(|(won, parked)| wopr_store::Parked {
            key: won.key.clone(),
            fence: won.fence,
            due: parked.check_at,
            body: won.parked.clone(),
        })
        .into_iter()
        .collect();
    // An attempt that was stopped by what it made has ended its row above.
    let is_over = |key: &WorkKey| {
        let ended = batch.work_ended.iter().map(|ended| &ended.key);
        let moved = batch.work_moved.iter().map(|moved| &moved.key);
        ended.chain(moved).any(|over| over == key)
    };
    batch.work_held = context
        .won
        .filter(|won| won.goes_on && !is_over(&won.key))
        .map(|won| (won.key.clone(), won.fence))
        .into_iter()
        .collect();
    let mut told = Vec::with_capacity(children.len() + messages.len());
    let n_children = children.len();
    let mut ended_children = Vec::new();
    for child in children {
        let (row, start) = child_rows(view, &child, whole.remove(&child.run), at);
        match start {
            Some(start) => {
                told.push(child.run);
                batch.inbox_sent.push(start);
            }
            None => ended_children.push((child.run, row.summary.status, row.summary.error_code.clone())),
        }
        batch.children.push(row);
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
    let mut next_timer = timers_set.iter().map(|(_, due)| *due).min();
    let (mut has_told, mut n_children) = (has_told, n_children);
    for adopted in whole.into_adopted() {
        let (status, code) = (adopted.decision.run.status, &adopted.decision.run.error);
        if status.is_terminal() {
            let code = code.as_ref().map(|(error, _)| error.code.clone());
            ended_children.push((adopted.child.run.clone(), status, code));
        }
        let AdoptedRows {
            row,
            sent,
            has_effects,
            next_timer: timer,
        } = adopted_children::rows(context, adopted);
        n_children += 1;
        has_told |= has_effects;
        next_timer = next_timer.into_iter().chain(timer).min();
        told.extend(sent.iter().map(|row| row.target.clone()));
        batch.inbox_sent.extend(sent);
        batch.children.push(row);
    }
    let next_check = batch.work_parked.iter().filter_map(|row| row.due).min();
    Prepared {
        batch,
        run,
        summary,
        events,
        effects,
        told,
        next_timer,
        is_left_to_caller,
        has_told,
        next_check,
        children: n_children,
        ended_children,
    }
}

fn unless<T>(is_mute: bool, work: Vec<T>) -> Vec<T> {
    match is_mute {
        true => Vec::new(),
        false => work,
    }
}

/// The row of a child, and the message that starts it unless it has ended.
fn child_rows(
    parent: &View,
    child: &NewChild,
    whole: Option<WholeChild>,
    now: Timestamp,
) -> (ChildRow, Option<InboxRow>) {
    let principal = child.start.principal.clone();
    let summary = Summary {
        parent: Some((parent.key.run.clone(), child.node.clone())),
        alias: match &parent.summary.alias {
            Some(_) => parent
                .plan
                .child_alias(&child.start.configurable)
                .map(str::to_owned),
            None => None,
        },
        ..Summary::new(child.workflow.clone(), child.version.clone(), principal, now)
    };
    if let Some(WholeChild {
        events,
        status,
        error_code,
    }) = whole
    {
        let row = ChildRow {
            run: child.run.clone(),
            summary: summary.after(status, None, error_code.as_deref(), now),
            events,
            snapshot: None,
            work: Vec::new(),
        };
        return (row, None);
    }
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
            events: Vec::new(),
            snapshot: None,
            work: Vec::new(),
        },
        Some(start),
    )
}

/// The kind of the interrupt that gives a waiting run its status.
pub(crate) fn waiting_on(run: &Run, plan: &Plan) -> Option<InterruptKind> {
    run.interrupt(plan)
        .map(|open| open.kind())
        .filter(|_| run.status.is_waiting())
}

pub(crate) fn encode_message(message: &wopr_core::RunMessage) -> Vec<u8> {
    serde_json::to_vec(message).expect("a notice has string keys")
}

/// The key of an attempt at a call, by how many calls its execution had made before.
pub(crate) fn effect_key(step: &StepId, attempt: u32, number: u32) -> WorkKey {
    match number {
        0 => WorkKey::effect(format!("{}:{attempt}:{}", step.ordinal, step.node)),
        _ => WorkKey::effect(format!("{}:{attempt}.{number}:{}", step.ordinal, step.node)),
    }
}

pub(crate) fn stored_effect(
    run: (&RunKey, &str),
    trace: Option<&TraceContext>,
    effect: Effect,
) -> StoredEffect {
    let Effect {
        step,
        attempt,
        number,
        call,
    } = effect;
    let provider = call.provider();
    let request = match call {
        Call::Http {
            method,
            url,
            headers,
            secret_headers,
            body,
            timeout_ms,
        } => Request::Http(HttpCall {
            method,
            url,
            headers,
            secret_headers,
            body,
            timeout_ms,
        }),
        Call::Activity(activity) => Request::Activity(*activity),
        Call::Agent(call) => Request::Agent(call),
        Call::Model(call) => Request::Model(call),
        Call::Tool(call) => Request::Tool(call),
        Call::ToolList(query) => Request::ToolList(query),
        Call::Memory(call) => Request::Memory(call),
        Call::SideEffect { payload } => Request::SideEffect { payload },
    };
    let idempotency_key = invocation_id(run, &step.node, (step.ordinal, number), provider);
    StoredEffect {
        step,
        attempt,
        number,
        idempotency_key,
        trace: trace.cloned(),
        request,
        handle: None,
        cursor: None,
        not_begun: None,
    }
}

/// The logical invocation id of a call by a run of this dialect: the same for all attempts, retries and
/// restarts. A dialect may specify it, so it never changes.
pub(crate) fn invocation_id(
    (run, dialect): (&RunKey, &str),
    node: &NodeId,
    (ordinal, number): (u32, u32),
    provider: &str,
) -> String {
    let mut hasher = Sha256::new();
    let ordinal = match number {
        0 => ordinal.to_string(),
        _ => format!("{ordinal}.{number}"),
    };
    let kind = format!("{dialect}:activity:v2");
    let parts = [
        kind.as_str(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_of_an_earlier_attempt_may_have_been_sent() {
        let effect = |attempt: u32, not_begun: Option<u64>| StoredEffect {
            step: StepId {
                node: NodeId::parse("ask").expect("valid"),
                ordinal: 0,
            },
            attempt,
            number: 0,
            idempotency_key: "key".to_owned(),
            trace: None,
            request: Request::SideEffect { payload: Value::Null },
            handle: None,
            cursor: None,
            not_begun,
        };
        assert!(effect(0, Some(3)).is_unsent(Fence(5)));
        assert!(!effect(0, Some(3)).is_unsent(Fence(7)), "leased once more");
        assert!(!effect(0, None).is_unsent(Fence(1)));
        assert!(!effect(1, Some(3)).is_unsent(Fence(5)));
    }
}
