//! Random histories, applied to the in-memory store as a reference and to a database: all results and reads
//! must be equal.

use proptest::{collection::vec, prelude::*, sample::select};
use wopr_core::{InterruptKind, RunId, RunKey, RunStatus, Seq};
use wopr_store::{
    Attempted, Batch, BlobRow, ChildRow, DeliveryCursor, DeliveryFilter, Ended, Epoch, Fence, Guard,
    IdempotencyRecord, Leased, Match, MemoryStore, MessageRow, Moved, NewPush, Offer, OfferRequest,
    OfferThen, Outage, Parked, Parking, PhaseCursor, PhaseFilter, PushRow, Queue, Quota, Removal, RunFilter,
    Snapshot, SqliteStore, Store, Then, Times, Update, WorkKey, WorkRow, WorkState, sqlite::Options,
};

use crate::{make::*, schema::Schema};

/// Number of histories per test run; `PROPTEST_CASES` overrides it.
const CASES: u32 = 24;

const KEYS: [&str; 3] = ["a", "b", "c"];

/// One operation on a store.
#[derive(Debug, Clone)]
enum Step {
    Append(Box<Draft>),
    /// Leases rows of a queue and renews, releases or parks them, with the current fence or an older one. Parks
    /// them along with an append or alone.
    Lease {
        queue: Queue,
        epoch: u64,
        times: Times,
        quota: Quota,
        then: Option<Then>,
        stale: bool,
        along: bool,
    },
    SetLease {
        run: RunKey,
        key: WorkKey,
        fence: u64,
        then: Then,
    },
    /// Leases offers of a queue, and sets the ends of their leases, with the current fence or an older one.
    LeaseOffers {
        request: OfferRequest,
        then: Option<OfferThen>,
        stale: bool,
    },
    Wake {
        run: RunKey,
        key: WorkKey,
        now: i64,
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
        then: Then,
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

fn queues() -> impl Strategy<Value = Queue> {
    select(vec![Queue::Timers, Queue::Effects, Queue::Deliveries])
}

fn work_keys() -> impl Strategy<Value = WorkKey> {
    (queues(), keys()).prop_map(|(queue, key)| WorkKey {
        queue,
        name: key.to_owned(),
    })
}

fn thens() -> impl Strategy<Value = Then> {
    prop_oneof![
        (0..60_i64).prop_map(|until| Then::Renew(at(until))),
        (0..60_i64).prop_map(|due| Then::Release(at(due))),
        prop::option::of(0..60_i64).prop_map(|due| Then::Park(due.map(at))),
    ]
}

fn quotas() -> impl Strategy<Value = Quota> {
    let limits = (0..4_usize, select(vec![1, 2, usize::MAX]), 0..3_usize);
    let of_tenants = (1..4_usize, select(vec![1, 2, usize::MAX]));
    (limits, prop::option::of(of_tenants), prop::bool::weighted(0.2)).prop_map(
        |((rows, bytes, suspects), of_tenant, is_without)| {
            let (per_tenant, bytes_per_tenant) = of_tenant.unwrap_or((rows, bytes));
            Quota {
                rows,
                per_tenant,
                bytes,
                bytes_per_tenant,
                without: is_without.then(|| tenant("acme")).into_iter().collect(),
                suspects,
            }
        },
    )
}

prop_compose! {
    fn offer_requests()(
        (owner, queue) in (select(vec!["acme", "zeta"]), keys()),
        (now, until) in (0..60_i64, 0..60_i64),
        (rows, bytes) in (0..4_usize, select(vec![1, 2, usize::MAX])),
        most_of_queue in prop::option::weighted(0.3, 1..3_usize),
        most_of_tenant in prop::option::weighted(0.3, 1..4_usize),
        max_lost in 1..4_u32,
        outage in prop::option::weighted(0.3, (0..60_i64, 0..60_i64)),
    ) -> OfferRequest {
        OfferRequest {
            tenant: tenant(owner),
            queue: queue.to_owned(),
            now: at(now),
            until: at(until),
            rows,
            bytes,
            most_of_queue,
            most_of_tenant,
            max_lost,
            outage: outage.map(|(after, until)| Outage { after: at(after), until: at(until) }),
        }
    }
}

prop_compose! {
    /// The work items of a batch.
    fn work()(
        timers_set in vec((keys(), 0..40_i64), 0..3),
        effects_set in vec((keys(), prop_oneof![
            (0..60_i64).prop_map(|due| WorkState::Due(at(due))),
            (1..4_u64, 0..60_i64).prop_map(|(epoch, until)| WorkState::Leased(Epoch(epoch), at(until))),
            Just(WorkState::Parked),
            (keys(), 0..60_i64).prop_map(|(queue, since)| WorkState::Offered(Offer {
                queue: queue.to_owned(),
                since: at(since),
            })),
        ]), 0..3),
        timers_ended in vec(keys(), 0..2),
        effects_ended in vec((keys(), prop::option::of(0..4_u64)), 0..2),
        parked in prop::option::weighted(0.1, (work_keys(), 0..3_u64)),
        moved in prop::option::weighted(
            0.2,
            (keys(), keys(), prop::option::weighted(0.4, 0..3_u64), prop::option::of(0..60_i64)),
        ),
    ) -> Batch {
        let mut batch = create(&run(1), 0);
        batch.work_set = timers_set.into_iter().map(|(key, due)| timer(key, due)).collect();
        batch.work_set.extend(effects_set.into_iter().map(|(key, state)| WorkRow { state, ..effect(key) }));
        batch.work_ended = timers_ended.into_iter().map(cleared).collect();
        batch.work_ended.extend(
            effects_ended.into_iter().map(|(key, fence)| Ended { key: effect_key(key), fence: fence.map(Fence) }),
        );
        batch.work_parked = parked
            .map(|(key, fence)| Parked { key, fence: Fence(fence), due: None, body: None })
            .into_iter()
            .collect();
        batch.work_moved = moved
            .map(|(key, to, fence, due)| Moved {
                key: effect_key(key),
                to: effect_key(to),
                fence: fence.map(Fence),
                due: due.map(at),
            })
            .into_iter()
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
        (group, waiting_on, error_code) in (
            select(vec![None, Some("ctx-1"), Some("ctx-2")]),
            select(vec![None, Some(InterruptKind::Approval), Some(InterruptKind::Clarification)]),
            select(vec![None, Some("rejected"), Some("no_luck")]),
        ),
        phase_since in prop::option::of(0..20_i64),
        work in work(),
        sent in vec((1..5_u64, 0..4_u64), 0..3),
        consumed in vec((1..5_u64, 0..4_u64), 0..3),
        child_run in prop::option::weighted(0.2, (1..9_u64, 0..3_usize)),
        record in prop::option::weighted(0.3, records()),
        message in prop::option::of(keys()),
        blob in prop::option::of(keys()),
        receiver in prop::option::of((keys(), prop::option::weighted(0.2, 1..5_u64), 0..4_usize, 0..60_i64)),
    ) -> Draft {
        let mut batch = work;
        batch.run = run.clone();
        batch.summary = summary(status, time);
        batch.summary.workflow = workflow(flow);
        if let (Some(since), Place::Create) = (phase_since, &place) {
            batch.summary.phase_since = at(since);
        }
        batch.summary.group = group.map(str::to_owned);
        batch.summary.waiting_on = waiting_on;
        batch.summary.error_code = error_code.map(str::to_owned);
        batch.inbox_sent = sent.into_iter().map(|(n, seq)| run_message(&RunKey::new(run.tenant.clone(), run_id(n)), &run, seq)).collect();
        batch.inbox_consumed = consumed.into_iter().map(|(n, seq)| (run_id(n), Seq(seq))).collect();
        batch.children = child_run
            .filter(|(n, _)| run_id(*n) != run.run)
            .map(|(n, n_events)| ChildRow {
                snapshot: (n_events == 2).then(|| Snapshot { head: Seq(2), body: b"child".to_vec() }),
                work: if n_events == 0 { Vec::new() } else { vec![timer("child", time), effect_at("child", time)] },
                events: events(0, n_events),
                ..child(n, &run)
            })
            .into_iter()
            .collect();
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
        6 => (queues(), 1..4_u64, (0..60_i64, 0..60_i64, 0..60_i64), quotas(), prop::option::of(thens()), 0..8_u8)
            .prop_map(|(queue, epoch, (day, now, until), quota, then, luck)| Step::Lease {
                queue,
                epoch,
                times: clocks(day, now, until),
                quota,
                then,
                stale: luck == 0,
                along: luck > 4,
            }),
        1 => (runs(), work_keys(), 0..4_u64, thens())
            .prop_map(|(run, key, fence, then)| Step::SetLease { run, key, fence, then }),
        4 => (offer_requests(), prop::option::of((0..60_i64, any::<bool>())), 0..8_u8)
            .prop_map(|(request, then, luck)| Step::LeaseOffers {
                request,
                then: then.map(|(ready, is_renewed)| match is_renewed {
                    true => OfferThen::Renew(at(ready)),
                    false => OfferThen::GiveBack(at(ready)),
                }),
                stale: luck == 0,
            }),
        2 => (runs(), work_keys(), 0..60_i64).prop_map(|(run, key, now)| Step::Wake { run, key, now }),
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
        3 => (0..60_i64, 0..60_i64, 0..3_u8, thens(), prop::bool::weighted(0.2))
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
            queue,
            epoch,
            times,
            quota,
            then,
            stale,
            along,
        } => {
            let leased = store.lease(*queue, Epoch(*epoch), *times, quota).await;
            let mut answers = format!("{leased:?}");
            if let (Some(Then::Park(due)), false) = (*then, *along) {
                let rows: Vec<_> = leased
                    .expect("leased")
                    .into_iter()
                    .map(|Leased { run, key, fence, .. }| Parking {
                        run,
                        key,
                        fence: Fence(fence.0 - u64::from(*stale)),
                        due,
                    })
                    .collect();
                return answers + &format!("{:?}", store.park_all(&rows).await);
            }
            for Leased { run, key, fence, .. } in leased.expect("leased") {
                let fence = Fence(fence.0 - u64::from(*stale));
                let known = store.summary(&run).await.expect("summary");
                answers += &match (*then, known) {
                    (None, _) => String::new(),
                    (Some(Then::Park(due)), Some((summary, head))) if *along => {
                        let mut batch = Batch::new(run, Guard::At(head), events(head.0, 1), summary);
                        let body = due.map(|_| vec![7; 3]);
                        batch.work_parked = vec![Parked {
                            key,
                            fence,
                            due,
                            body,
                        }];
                        format!("{:?}", store.append(batch).await)
                    }
                    (Some(then), _) => format!("{:?}", store.set_lease(&run, &key, fence, then).await),
                };
            }
            answers
        }
        Step::SetLease {
            run,
            key,
            fence,
            then,
        } => format!("{:?}", store.set_lease(run, key, Fence(*fence), *then).await),
        Step::LeaseOffers { request, then, stale } => {
            let leased = store.lease_offers(request).await;
            let mut answers = format!("{leased:?}");
            for Leased { run, key, fence, .. } in leased.expect("leased").rows {
                if let Some(then) = then {
                    let fence = Fence(fence.0 - u64::from(*stale));
                    let set = store.set_offer(&run, &key, fence, *then).await;
                    answers += &format!("{set:?}");
                }
            }
            answers
        }
        Step::Wake { run, key, now } => format!("{:?}", store.wake(run, key, at(*now)).await),
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
                .lease(Queue::Deliveries, Epoch(1), times(*now, *until), &2.into())
                .await;
            let mut answers = format!("{leased:?}");
            for Leased { run, key, fence, .. } in leased.expect("leased") {
                let waiting = store.waiting(&run, &key.name, 2).await.expect("waiting");
                answers += &format!("{waiting:?}");
                let error = "why".to_owned();
                let attempted = match ended {
                    0 => Attempted::Delivered,
                    1 => Attempted::Failed { error },
                    _ => Attempted::GivenUp { error, at: at(*now) },
                };
                let fence = Fence(fence.0 - u64::from(*stale));
                let settled = match waiting.deliveries.first() {
                    Some(first) => {
                        store
                            .settle_push(&run, &key.name, fence, (first.seq, attempted), *then)
                            .await
                    }
                    None => store.set_lease(&run, &key, fence, *then).await,
                };
                answers += &format!("{settled:?}");
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
        let after = PhaseCursor {
            since: at(10),
            run: run_id(3),
        };
        for before in [0, 15, 99] {
            for after in [None, Some(&after)] {
                let roots = store.ended_roots(&tenant(owner), at(before), after, 3).await;
                read.push(format!("ended {before} {after:?}: {roots:?}"));
            }
        }
        for after in [None, Some("a")] {
            let queues = store.offered_queues(&tenant(owner), at(30), after, 2).await;
            read.push(format!("queues {after:?}: {queues:?}"));
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
        for group in [None, Some("ctx-1".to_owned())] {
            for error_code in [
                None,
                Some(Match::Is("rejected".to_owned())),
                Some(Match::IsNot("rejected".to_owned())),
            ] {
                for (since, statuses) in [
                    (None, vec![]),
                    (Some(at(9)), vec![RunStatus::Running, RunStatus::Failed]),
                ] {
                    let filter = PhaseFilter {
                        group: group.clone(),
                        statuses,
                        error_code: error_code.clone(),
                        since,
                        ..PhaseFilter::default()
                    };
                    for after in [None, Some(&after)] {
                        let page = store.list_by_phase(&tenant(owner), &filter, after, 2).await;
                        read.push(format!("phases {filter:?} {after:?}: {page:?}"));
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
    for queue in [Queue::Timers, Queue::Effects, Queue::Deliveries] {
        read.push(format!("next due: {:?}", store.next_due(queue).await));
    }
    read.push(format!("quarantined: {:?}", store.quarantined(9).await));
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

fn last_lease(queue: Queue) -> Step {
    Step::Lease {
        queue,
        epoch: 9,
        times: times(60, 99),
        quota: 100.into(),
        then: None,
        stale: false,
        along: false,
    }
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
            for queue in [Queue::Timers, Queue::Effects, Queue::Deliveries] {
                let lease = last_lease(queue);
                prop_assert_eq!(apply(&memory, &lease).await, apply(&sqlite, &lease).await);
            }
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
            for queue in [Queue::Timers, Queue::Effects, Queue::Deliveries] {
                let lease = last_lease(queue);
                prop_assert_eq!(apply(&memory, &lease).await, apply(&postgres, &lease).await);
            }
            Ok(())
        })?;
    }
}
