//! Random histories, applied to the in-memory store as a reference and to a database: all results and reads
//! must be equal.

use proptest::{collection::vec, prelude::*, sample::select};
use wopr_core::{RunId, RunKey, RunStatus, Seq};
use wopr_store::{
    Attempted, Batch, BlobRow, DeliveryCursor, DeliveryFilter, Epoch, Fence, Guard, IdempotencyRecord,
    LeasedTimer, MemoryStore, MessageRow, NewPush, PushRow, Removal, RunFilter, Settled, Snapshot,
    SqliteStore, Store, TaskCursor, TaskFilter, TaskInterrupt, TaskRow, TaskState, Then, Update,
    sqlite::Options,
};

use crate::{make::*, schema::Schema};

/// Number of histories per test run; `PROPTEST_CASES` overrides it.
const CASES: u32 = 24;

const KEYS: [&str; 3] = ["a", "b", "c"];

/// One operation on a store.
#[derive(Debug, Clone)]
enum Step {
    Append(Box<Draft>),
    Lease {
        epoch: u64,
        now: i64,
        until: i64,
        limit: usize,
    },
    Renew {
        run: RunKey,
        key: &'static str,
        fence: u64,
        until: i64,
    },
    Release {
        run: RunKey,
        key: &'static str,
        fence: u64,
    },
    /// Leases timers and gives them back, with the current fence or an older one.
    Turn {
        day: i64,
        now: i64,
        until: i64,
        limit: usize,
        back: Option<i64>,
        stale: bool,
    },
    BeginEpoch,
    Remember {
        record: IdempotencyRecord,
        now: i64,
    },
    Forget {
        now: i64,
    },
    Remove {
        owner: &'static str,
        removals: Vec<(u64, u64)>,
    },
    Sweep,
    Put {
        run: RunKey,
        id: &'static str,
        most: usize,
        now: i64,
    },
    Drop {
        run: RunKey,
        id: &'static str,
    },
    /// Expands each outbox note up to some events after its start.
    Expand {
        n_events: u64,
        n_updates: u64,
        now: i64,
    },
    /// Leases subscriptions and reports the result of an attempt at each one's first delivery.
    Tell {
        now: i64,
        until: i64,
        ended: u8,
        then: u8,
        stale: bool,
    },
    Retry {
        run: RunKey,
        id: &'static str,
        seq: Option<u64>,
        now: i64,
    },
}

/// A batch whose position in the log is determined when it is applied.
#[derive(Debug, Clone)]
struct Draft {
    run: RunKey,
    place: Place,
    n_events: usize,
    snapshot: bool,
    batch: Batch,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Create,
    Head,
    BehindHead(u64),
}

impl Draft {
    /// Returns the batch for a log with this head.
    fn batch(&self, head: Option<Seq>) -> Batch {
        let head = head.unwrap_or(Seq(0)).0;
        let mut batch = self.batch.clone();
        batch.guard = match self.place {
            Place::Create => Guard::Create,
            Place::Head => Guard::At(Seq(head)),
            Place::BehindHead(n) => Guard::At(Seq(head.saturating_sub(n))),
        };
        batch.events = events(batch.expected().0, self.n_events);
        batch.snapshot = self.snapshot.then(|| Snapshot {
            head: batch.head(),
            body: vec![1, 2, 3],
        });
        let head = batch.head();
        for message in &mut batch.messages {
            message.seq = head;
        }
        batch
    }
}

fn runs() -> impl Strategy<Value = RunKey> {
    (select(vec!["acme", "zeta"]), 1..5_u64).prop_map(|(owner, n)| RunKey::new(tenant(owner), run_id(n)))
}

fn keys() -> impl Strategy<Value = &'static str> {
    select(KEYS.to_vec())
}

fn records() -> impl Strategy<Value = IdempotencyRecord> {
    (keys(), 0..60_i64, 1..5_u64).prop_map(|(key, expires_at, n)| IdempotencyRecord {
        run: n.is_multiple_of(2).then(|| run_id(n)),
        digest: n.to_string(),
        ..record(key, expires_at)
    })
}

prop_compose! {
    fn tasks()(
        context in select(vec![None, Some("ctx-1"), Some("ctx-2")]),
        state in select(TaskState::ALL.to_vec()),
        interrupt in select(vec![None, Some(TaskInterrupt::Approval), Some(TaskInterrupt::Clarification)]),
        updated_at in 0..20_i64,
    ) -> TaskRow {
        TaskRow { context: context.map(str::to_owned), interrupt, ..task(state, updated_at) }
    }
}

prop_compose! {
    /// The work items of a batch.
    fn work()(
        timers_set in vec((keys(), 0..40_i64), 0..3),
        timers_cleared in vec(keys(), 0..2),
        enqueued in vec((keys(), prop::option::of((1..4_u64, 0..60_i64))), 0..3),
        settled in vec((keys(), prop::option::of(0..4_u64)), 0..2),
    ) -> Batch {
        let mut batch = create(&run(1), 0);
        batch.timers_set = timers_set.into_iter().map(|(key, due)| timer(key, due)).collect();
        batch.timers_cleared = timers_cleared.into_iter().map(timer_key).collect();
        batch.effects_enqueued = enqueued
            .into_iter()
            .map(|(key, lease)| match lease {
                Some((epoch, until)) => born_leased(key, Epoch(epoch), until),
                None => effect(key),
            })
            .collect();
        batch.effects_settled = settled
            .into_iter()
            .map(|(key, fence)| Settled { key: effect_key(key), fence: fence.map(Fence) })
            .collect();
        batch
    }
}

prop_compose! {
    fn drafts()(
        run in runs(),
        place in prop_oneof![
            3 => Just(Place::Create),
            6 => Just(Place::Head),
            1 => (1..3_u64).prop_map(Place::BehindHead),
        ],
        (n_events, snapshot) in (0..4_usize, any::<bool>()),
        (status, time, flow) in (select(RunStatus::ALL.to_vec()), 0..60_i64, select(vec!["greet", "other"])),
        task in prop::option::of(tasks()),
        work in work(),
        sent in vec((1..5_u64, 0..4_u64), 0..3),
        consumed in vec((1..5_u64, 0..4_u64), 0..3),
        child_run in prop::option::weighted(0.2, 1..9_u64),
        record in prop::option::weighted(0.3, records()),
        message in prop::option::of(keys()),
        blob in prop::option::of(keys()),
        receiver in prop::option::of((keys(), prop::option::weighted(0.2, 1..5_u64), 0..4_usize, 0..60_i64)),
    ) -> Draft {
        let mut batch = work;
        batch.run = run.clone();
        batch.summary = summary(status, time);
        batch.summary.workflow = workflow(flow);
        batch.task = task;
        batch.inbox_sent = sent.into_iter().map(|(n, seq)| run_message(&RunKey::new(run.tenant.clone(), run_id(n)), &run, seq)).collect();
        batch.inbox_consumed = consumed.into_iter().map(|(n, seq)| (run_id(n), Seq(seq))).collect();
        batch.children = child_run.filter(|n| run_id(*n) != run.run).map(|n| child(n, &run)).into_iter().collect();
        batch.idempotency = record;
        batch.messages =
            message.map(|id| MessageRow { id: id.to_owned(), seq: Seq(0), body: vec![] }).into_iter().collect();
        batch.blobs = blob
            .map(|id| BlobRow { id: id.to_owned(), media_type: flow.to_owned(), bytes: vec![9] })
            .into_iter()
            .collect();
        let of_child = |run: &RunId| batch.children.iter().any(|child| child.run == *run);
        batch.push = receiver
            .map(|(id, other, most, now)| NewPush {
                run: other.map_or_else(|| run.run.clone(), run_id),
                row: PushRow { created_at: at(now), body: vec![n_events as u8], ..push(id) },
                most,
                now: at(now),
            })
            .filter(|push| !of_child(&push.run))
            .map(Box::new);
        Draft { run, place, n_events, snapshot, batch }
    }
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => drafts().prop_map(|draft| Step::Append(Box::new(draft))),
        3 => (1..4_u64, 0..60_i64, 0..60_i64, 0..4_usize)
            .prop_map(|(epoch, now, until, limit)| Step::Lease { epoch, now, until, limit }),
        1 => (runs(), keys(), 0..4_u64, 0..60_i64)
            .prop_map(|(run, key, fence, until)| Step::Renew { run, key, fence, until }),
        1 => (runs(), keys(), 0..4_u64).prop_map(|(run, key, fence)| Step::Release { run, key, fence }),
        3 => (0..60_i64, 0..60_i64, 0..60_i64, 0..4_usize, prop::option::of(0..60_i64), prop::bool::weighted(0.2))
            .prop_map(|(day, now, until, limit, back, stale)| Step::Turn { day, now, until, limit, back, stale }),
        1 => Just(Step::BeginEpoch),
        1 => (records(), 0..60_i64).prop_map(|(record, now)| Step::Remember { record, now }),
        1 => (0..60_i64).prop_map(|now| Step::Forget { now }),
        2 => (select(vec!["acme", "zeta"]), vec((1..9_u64, 1..9_u64), 1..4))
            .prop_map(|(owner, removals)| Step::Remove { owner, removals }),
        1 => Just(Step::Sweep),
        2 => (runs(), keys(), 1..4_usize, 0..60_i64).prop_map(|(run, id, most, now)| Step::Put { run, id, most, now }),
        1 => (runs(), keys()).prop_map(|(run, id)| Step::Drop { run, id }),
        3 => (1..4_u64, 0..4_u64, 0..60_i64)
            .prop_map(|(n_events, n_updates, now)| Step::Expand { n_events, n_updates, now }),
        3 => (0..60_i64, 0..60_i64, 0..4_u8, 0..3_u8, prop::bool::weighted(0.2))
            .prop_map(|(now, until, ended, then, stale)| Step::Tell { now, until, ended, then, stale }),
        1 => (runs(), keys(), prop::option::of(0..4_u64), 0..60_i64)
            .prop_map(|(run, id, seq, now)| Step::Retry { run, id, seq, now }),
    ]
}

/// Applies a step and formats its result.
async fn apply(store: &dyn Store, step: &Step) -> String {
    match step {
        Step::Append(draft) => {
            let head = store
                .summary(&draft.run)
                .await
                .expect("summary")
                .map(|(_, head)| head);
            format!("{:?}", store.append(draft.batch(head)).await)
        }
        Step::Lease {
            epoch,
            now,
            until,
            limit,
        } => {
            format!(
                "{:?}",
                store
                    .lease_effects(Epoch(*epoch), at(*now), at(*until), &(*limit).into())
                    .await
            )
        }
        Step::Renew {
            run,
            key,
            fence,
            until,
        } => {
            format!(
                "{:?}",
                store
                    .renew(run, &effect_key(key), Fence(*fence), at(*until))
                    .await
            )
        }
        Step::Release { run, key, fence } => {
            format!("{:?}", store.release(run, &effect_key(key), Fence(*fence)).await)
        }
        Step::Turn {
            day,
            now,
            until,
            limit,
            back,
            stale,
        } => {
            let leased = store
                .lease_timers(Epoch(1), at(*day), at(*now), at(*until), &(*limit).into())
                .await;
            let mut answers = format!("{leased:?}");
            if let Some(due) = back {
                for LeasedTimer { run, key, fence, .. } in leased.expect("leased") {
                    let fence = Fence(fence.0 - u64::from(*stale));
                    answers += &format!("{:?}", store.release_timer(&run, &key, fence, at(*due)).await);
                }
            }
            answers
        }
        Step::BeginEpoch => format!("{:?}", store.begin_epoch(at(0)).await),
        Step::Remember { record, now } => format!("{:?}", store.remember(record.clone(), at(*now)).await),
        Step::Forget { now } => format!("{:?}", store.forget_expired(at(*now), usize::MAX).await),
        Step::Remove { owner, removals } => {
            let removals: Vec<_> = removals
                .iter()
                .map(|(run, root)| Removal {
                    run: run_id(*run),
                    root: run_id(*root),
                })
                .collect();
            format!("{:?}", store.remove(&tenant(owner), &removals).await)
        }
        Step::Put { run, id, most, now } => {
            let row = PushRow {
                created_at: at(*now),
                ..push(id)
            };
            format!("{:?}", store.put_push(run, row, *most, at(*now)).await)
        }
        Step::Drop { run, id } => format!("{:?}", store.drop_push(run, id).await),
        Step::Expand {
            n_events,
            n_updates,
            now,
        } => {
            let notes = store.outbox(Epoch(1), None, 2).await.expect("outbox");
            let mut answers = format!("{notes:?}");
            for mut note in notes {
                note.to = Seq(note.from.0 + n_events);
                let updates: Vec<_> = (note.from.0..note.from.0 + n_updates)
                    .map(|seq| Update {
                        seq: Seq(seq),
                        body: vec![1],
                    })
                    .collect();
                answers += &format!("{:?}", store.expand(&note, &updates, at(*now)).await);
            }
            answers
        }
        Step::Tell {
            now,
            until,
            ended,
            then,
            stale,
        } => {
            let leased = store
                .lease_pushes(Epoch(1), at(*now), at(*until), &2.into())
                .await;
            let mut answers = format!("{leased:?}");
            for mut lease in leased.expect("leased") {
                let waiting = store.waiting(&lease.run, &lease.id, 2).await.expect("waiting");
                answers += &format!("{waiting:?}");
                let error = "why".to_owned();
                let attempted = match ended {
                    0 => None,
                    1 => Some(Attempted::Delivered),
                    2 => Some(Attempted::Failed { error }),
                    _ => Some(Attempted::GivenUp { error, at: at(*now) }),
                };
                let attempted = waiting.first().map(|delivery| delivery.seq).zip(attempted);
                let then = match then {
                    0 => Then::GoOn(at(*until)),
                    1 => Then::Rest(at(*now)),
                    _ => Then::Due(at(*until)),
                };
                lease.fence.0 -= u64::from(*stale);
                answers += &format!("{:?}", store.settle_push(&lease, attempted, then).await);
            }
            answers
        }
        Step::Retry { run, id, seq, now } => {
            format!("{:?}", store.retry_push(run, id, seq.map(Seq), at(*now)).await)
        }
        // The number of steps is up to the store; the final result must be the same.
        Step::Sweep => {
            let mut runs = 0;
            loop {
                let swept = store.sweep(3).await.expect("sweep");
                runs += swept.runs;
                if swept.runs == 0 && swept.rows == 0 {
                    break format!("{runs} swept");
                }
            }
        }
    }
}

/// Formats everything that can be read.
async fn read_everything(store: &dyn Store) -> Vec<String> {
    let mut read = Vec::new();
    for owner in ["acme", "zeta"] {
        for n in 1..9 {
            let run = RunKey::new(tenant(owner), run_id(n));
            read.push(format!("load {run}: {:?}", store.load(&run).await));
            read.push(format!("summary {run}: {:?}", store.summary(&run).await));
            read.push(format!("events {run}: {:?}", store.events(&run, Seq(1), 3).await));
            read.push(format!("task {run}: {:?}", store.task(&run).await));
            read.push(format!("messages {run}: {:?}", store.messages(&run, 2).await));
            read.push(format!("pushes {run}: {:?}", store.pushes(&run).await));
            for key in KEYS {
                read.push(format!("blob {run} {key}: {:?}", store.blob(&run, key).await));
            }
        }
        let after = run_id(3);
        for statuses in [
            vec![],
            vec![RunStatus::Completed, RunStatus::Failed],
            vec![RunStatus::Running],
        ] {
            for workflow in [None, Some(workflow("other"))] {
                for parent in [None, Some(run_id(1))] {
                    let filter = RunFilter {
                        statuses: statuses.clone(),
                        workflow: workflow.clone(),
                        parent,
                        principal: None,
                    };
                    for after in [None, Some(&after)] {
                        let page = store.list_runs(&tenant(owner), &filter, after, 2).await;
                        read.push(format!("runs {filter:?} {after:?}: {page:?}"));
                    }
                }
            }
        }
        let after = TaskCursor {
            updated_at: at(10),
            run: run_id(3),
        };
        for before in [0, 15, 99] {
            for after in [None, Some(&after)] {
                let roots = store.ended_roots(&tenant(owner), at(before), after, 3).await;
                read.push(format!("ended {before} {after:?}: {roots:?}"));
            }
        }
        let parents = [run_id(2), run_id(1)];
        let children = store.children(&tenant(owner), &parents, None, 2).await;
        read.push(format!("children: {children:?}"));
        if let Ok(Some(last)) = children.as_ref().map(|children| children.last()) {
            let further = store.children(&tenant(owner), &parents, Some(last), 2).await;
            read.push(format!("further children: {further:?}"));
        }
        for given_up in [false, true] {
            for only in [None, Some(run_id(2))] {
                let filter = DeliveryFilter {
                    tenant: tenant(owner),
                    run: only,
                    principal: None,
                    given_up,
                };
                for after in [1, 2, 3] {
                    let after = DeliveryCursor {
                        run: run_id(after),
                        push: "b".to_owned(),
                        seq: Seq(1),
                    };
                    let page = store.deliveries(&filter, Some(&after), 3).await;
                    read.push(format!("deliveries {filter:?} {after:?}: {page:?}"));
                }
                let page = store.deliveries(&filter, None, 9).await;
                read.push(format!("deliveries {filter:?}: {page:?}"));
            }
        }
        for context in [None, Some("ctx-1".to_owned())] {
            for state in [None, Some(TaskState::Working)] {
                for changed_since in [None, Some(at(9))] {
                    let filter = TaskFilter {
                        context: context.clone(),
                        state,
                        changed_since,
                        principal: None,
                    };
                    for after in [None, Some(&after)] {
                        let page = store.list_tasks(&tenant(owner), &filter, after, 2).await;
                        read.push(format!("tasks {filter:?} {after:?}: {page:?}"));
                    }
                }
            }
        }
    }
    for now in [0, 20, 99] {
        for key in KEYS {
            read.push(format!(
                "record {key} {now}: {:?}",
                store.idempotency(&idempotency_key(key), at(now)).await
            ));
        }
    }
    read.push(format!("tenants: {:?}", store.next_tenant(None).await));
    read.push(format!(
        "tenants: {:?}",
        store.next_tenant(Some(&tenant("acme"))).await
    ));
    read.push(format!("outbox: {:?}", store.outbox(Epoch(1), None, 9).await));
    read.push(format!("begun: {:?}", store.begun_removals(9).await));
    read.push(format!("next due: {:?}", store.next_due().await));
    read.push(format!(
        "inboxes: {:?}",
        store.runs_with_inbox(Epoch(1), None, 3).await
    ));
    read.push(format!(
        "inboxes: {:?}",
        store.runs_with_inbox(Epoch(1), Some(&run(2)), 9).await
    ));
    read
}

fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(CASES);
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn sqlite_matches_the_memory_store(history in vec(steps(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let files = tempfile::tempdir().expect("a directory");
            let path = files.path().join("wopr.db");
            let options = Options { readers: 1, ..Options::default() };
            let (memory, sqlite) = (MemoryStore::new(), SqliteStore::open(&path, options).expect("open"));
            for step in &history {
                prop_assert_eq!(apply(&memory, step).await, apply(&sqlite, step).await, "{:?}", step);
            }
            let expected = read_everything(&memory).await;
            prop_assert_eq!(&expected, &read_everything(&sqlite).await);
            drop(sqlite);
            let sqlite = SqliteStore::open(&path, options).expect("open again");
            prop_assert_eq!(&expected, &read_everything(&sqlite).await);
            // All leases until 60 have expired by then, so fences and bodies are compared too.
            let lease = Step::Lease { epoch: 9, now: 60, until: 99, limit: 100 };
            prop_assert_eq!(apply(&memory, &lease).await, apply(&sqlite, &lease).await);
            Ok(())
        })?;
    }

    #[test]
    fn postgres_matches_the_memory_store(history in vec(steps(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let schema = Schema::new().await;
            let (memory, postgres) = (MemoryStore::new(), schema.open().await);
            // A new epoch ends leases only if a single process owns the store.
            for step in history.iter().filter(|step| !matches!(step, Step::BeginEpoch)) {
                prop_assert_eq!(apply(&memory, step).await, apply(&postgres, step).await, "{:?}", step);
            }
            let expected = read_everything(&memory).await;
            prop_assert_eq!(&expected, &read_everything(&postgres).await);
            postgres.close().await;
            let postgres = schema.open().await;
            prop_assert_eq!(&expected, &read_everything(&postgres).await);
            let lease = Step::Lease { epoch: 9, now: 60, until: 99, limit: 100 };
            prop_assert_eq!(apply(&memory, &lease).await, apply(&postgres, &lease).await);
            Ok(())
        })?;
    }
}
