//! Builders for small, distinct rows.

use wopr_core::{
    ContentHash, NodeId, PrincipalId, RunId, RunKey, RunStatus, Seq, TenantId, Timestamp, WorkflowId,
};
use wopr_store::{
    Batch, ChildRow, Ended, Epoch, Fence, Guard, IdempotencyKey, IdempotencyRecord, InboxRow, NewPush,
    PushRow, Queue, Store, StoredEvent, Summary, Times, WorkKey, WorkRow, WorkState,
};

pub(crate) fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).expect("a tenant")
}

/// The id of the n-th run. Ids sort by `n`, as real ids sort by time.
pub(crate) fn run_id(n: u64) -> RunId {
    RunId::parse(&format!("run_{n:032}")).expect("a run id")
}

/// The n-th run of the default tenant.
pub(crate) fn run(n: u64) -> RunKey {
    RunKey::new(tenant("acme"), run_id(n))
}

pub(crate) fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(crate) fn workflow(name: &str) -> WorkflowId {
    WorkflowId::parse(name).expect("a workflow id")
}

pub(crate) fn principal(name: &str) -> PrincipalId {
    PrincipalId::parse(name).expect("a principal")
}

pub(crate) fn node(name: &str) -> NodeId {
    NodeId::parse(name).expect("a node id")
}

/// The summary after an append at `updated_at` that begins a phase.
pub(crate) fn summary(status: RunStatus, updated_at: i64) -> Summary {
    Summary {
        workflow: workflow("greet"),
        version: ContentHash::of(b"greet"),
        status,
        waiting_on: None,
        error_code: None,
        phase_since: at(updated_at),
        principal: principal("ada"),
        parent: None,
        group: None,
        alias: None,
        created_at: at(1),
        updated_at: at(updated_at),
    }
}

/// `n` events that continue a log of length `from`.
pub(crate) fn events(from: u64, n: usize) -> Vec<StoredEvent> {
    (0..n)
        .map(|i| {
            let seq = Seq(from).plus(i);
            StoredEvent {
                seq,
                body: format!("event {seq}").into_bytes(),
            }
        })
        .collect()
}

/// A batch that creates a run with `n` events.
pub(crate) fn create(run: &RunKey, n: usize) -> Batch {
    Batch::new(
        run.clone(),
        Guard::Create,
        events(0, n),
        summary(RunStatus::Running, 1),
    )
}

/// A batch that appends `n` events to a log of length `from`.
pub(crate) fn append(run: &RunKey, from: u64, n: usize) -> Batch {
    Batch::new(
        run.clone(),
        Guard::At(Seq(from)),
        events(from, n),
        summary(RunStatus::Running, 2),
    )
}

/// The times of a lease call whose clocks agree.
pub(crate) fn times(now: i64, until: i64) -> Times {
    clocks(now, now, until)
}

pub(crate) fn clocks(day: i64, now: i64, until: i64) -> Times {
    Times {
        due: at(day),
        now: at(now),
        until: at(until),
    }
}

pub(crate) fn timer(key: &str, due: i64) -> WorkRow {
    WorkRow::timer(key, at(due))
}

pub(crate) fn timer_key(key: &str) -> WorkKey {
    WorkKey::timer(key)
}

/// A timer to clear.
pub(crate) fn cleared(key: &str) -> Ended {
    Ended {
        key: timer_key(key),
        fence: None,
    }
}

/// Returns the due timers, longest overdue first. Leases each one and gives it back unchanged.
pub(crate) async fn due(store: &dyn Store, now: i64, limit: usize) -> Vec<(RunKey, WorkKey)> {
    let leased = store
        .lease(Queue::Timers, Epoch(1), times(now, i64::MAX), &limit.into())
        .await
        .expect("leases");
    for timer in &leased {
        let released = store.release(&timer.run, &timer.key, timer.fence, timer.since);
        assert!(released.await.expect("gives back"));
    }
    leased.into_iter().map(|timer| (timer.run, timer.key)).collect()
}

pub(crate) fn effect_key(key: &str) -> WorkKey {
    WorkKey::effect(key)
}

/// An effect that has been due for long.
pub(crate) fn effect(key: &str) -> WorkRow {
    effect_at(key, 0)
}

pub(crate) fn effect_at(key: &str, due: i64) -> WorkRow {
    WorkRow {
        key: effect_key(key),
        state: WorkState::Due(at(due)),
        body: key.as_bytes().to_vec(),
    }
}

pub(crate) fn born_leased(key: &str, epoch: Epoch, until: i64) -> WorkRow {
    WorkRow {
        state: WorkState::Leased(epoch, at(until)),
        ..effect(key)
    }
}

pub(crate) fn settled(key: &str, fence: u64) -> Ended {
    Ended {
        key: effect_key(key),
        fence: Some(Fence(fence)),
    }
}

pub(crate) fn child(n: u64, parent: &RunKey) -> ChildRow {
    let mut summary = summary(RunStatus::Pending, 1);
    summary.parent = Some((parent.run.clone(), node("spawn")));
    ChildRow {
        run: run_id(n),
        summary,
        events: Vec::new(),
        snapshot: None,
        work: Vec::new(),
    }
}

pub(crate) fn run_message(target: &RunKey, source: &RunKey, source_seq: u64) -> InboxRow {
    InboxRow {
        target: target.run.clone(),
        source: source.run.clone(),
        source_seq: Seq(source_seq),
        body: format!("{}:{source_seq}", source.run).into_bytes(),
    }
}

pub(crate) fn push(id: &str) -> PushRow {
    PushRow {
        id: id.to_owned(),
        body: format!("to {id}").into_bytes(),
        created_at: at(5),
    }
}

/// A subscription added by an append to a run with at most three.
pub(crate) fn along(run: &RunKey, id: &str) -> Option<Box<NewPush>> {
    Some(Box::new(NewPush {
        run: run.run.clone(),
        row: push(id),
        most: 3,
        now: at(5),
    }))
}

pub(crate) fn idempotency_key(key: &str) -> IdempotencyKey {
    IdempotencyKey {
        tenant: tenant("acme"),
        principal: principal("ada"),
        scope: "POST /v1/runs".to_owned(),
        key: key.to_owned(),
    }
}

pub(crate) fn record(key: &str, expires_at: i64) -> IdempotencyRecord {
    IdempotencyRecord {
        key: idempotency_key(key),
        digest: format!("digest of {key}"),
        run: Some(run_id(1)),
        response: b"201 Created".to_vec(),
        expires_at: at(expires_at),
    }
}
