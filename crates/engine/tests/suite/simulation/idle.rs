//! What an idle engine asks of the store: its reads do not grow with the parked runs, and calls that are looked at
//! share their writes. Also outcomes that come soon, which read nothing.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use serde_json::json;
use tokio::task::JoinSet;
use wopr_core::{
    BudgetKey, BudgetPeriod, BudgetScope, BudgetUnit, MoreMoney, OnOverBudget, OverBudget, RunStatus, Seq,
    Timestamp,
};
use wopr_engine::{Attempt, Executor, Options, Outcome, Report};
use wopr_store::{Batch, Guard, Log as _, StoredEvent};
use wopr_testkit::Workflow;

use super::mines::Calm;
use crate::harness::reaches;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

impl Calm {
    /// Lets time pass and counts the reads of each kind meanwhile.
    async fn reads_in(&self, time: Duration) -> BTreeMap<&'static str, u64> {
        let before = self.server.n_reads();
        tokio::time::sleep(time).await; // sleep: virtual time
        let mut reads = self.server.n_reads();
        for (what, n) in before {
            *reads.entry(what).or_default() -= n;
        }
        reads
    }
}

#[tokio::test(start_paused = true)]
async fn parked_runs_are_not_looked_through_for_what_has_had_its_time() {
    const PARKED: usize = 2_000;
    let calm = Calm::with(
        None,
        true,
        Options {
            retention: Some(HOUR / 2),
            ..Options::default()
        },
    )
    .await;
    calm.register(Workflow::new("gate").gate("gate")).await;
    for _ in 0..PARKED {
        calm.create("gate").await;
    }
    // The first pass through all tasks, and one from the beginning each hour.
    tokio::time::sleep(HOUR).await; // sleep: virtual time
    let reads = calm.reads_in(24 * HOUR).await["roots"];
    let (looks, pages) = (24 * 60, PARKED as u64 / 256);
    assert!(
        (looks..=looks + 25 * (pages + 1)).contains(&reads),
        "{reads} pages in {looks} looks"
    );
    calm.end().await;
}

/// Follows many waiting runs for an hour. Then another process appends to one of them without a hint.
async fn many_follow(is_embedded: bool, poll: Duration) {
    const READERS: u64 = 200;
    let calm = Calm::with(None, is_embedded, Options::default()).await;
    calm.register(Workflow::new("gate").gate("gate")).await;
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        let key = calm.create("gate").await;
        let engine = calm.engine.clone();
        readers.spawn(async move {
            let mut tail = engine.tail(&key);
            loop {
                engine.store().events(&key, Seq(0), 1).await.expect("reads");
                tail.changed().await;
            }
        });
    }
    let followed = calm.create("gate").await;
    let mut tail = calm.engine.tail(&followed);
    tokio::time::sleep(poll * 2).await; // sleep: virtual time
    // A tail created before the first poll is woken once more.
    tail.changed().await;

    let reads = calm.reads_in(HOUR).await;
    assert_eq!(reads["events"], 0, "no reader has anything to read");
    // A poll takes time, too.
    let looks = HOUR.as_secs() / poll.as_secs();
    assert!(
        (looks - looks / 100 - 1..=looks + 1).contains(&reads["heads"]),
        "{reads:?}"
    );

    let elsewhere = &calm.server.store;
    let (summary, head) = elsewhere
        .summary(&followed)
        .await
        .expect("reads")
        .expect("exists");
    assert_eq!(summary.status, RunStatus::WaitingApproval);
    let event = StoredEvent {
        seq: head,
        body: vec![1],
    };
    let batch = Batch::new(followed.clone(), Guard::At(head), vec![event], summary);
    elsewhere.append(batch).await.expect("appends");
    let news = tokio::time::timeout(poll + SECOND, tail.changed()).await;
    news.expect("heard of it");
    assert_eq!(calm.reads_in(2 * poll).await["events"], 0, "and nobody else did");
    readers.shutdown().await;
    calm.end().await;
}

#[tokio::test(start_paused = true)]
async fn readers_of_a_store_of_one_process_cost_next_to_nothing() {
    many_follow(true, 10 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn readers_of_a_shared_store_are_one_read_a_second_together() {
    many_follow(false, SECOND).await;
}

/// Takes each call and never ends it. It is looked at every half minute.
#[derive(Debug)]
struct Patient;

#[async_trait]
impl Executor for Patient {
    async fn run(&self, attempt: Attempt) -> Report {
        let check_after = Some(30 * SECOND);
        match attempt.handle {
            None => Report::Accepted {
                handle: json!(attempt.idempotency_key),
                check_after,
            },
            Some(_) => Report::Unchanged { check_after },
        }
    }
}

#[tokio::test(start_paused = true)]
async fn looks_that_find_nothing_new_share_their_writes() {
    const CALLS: u64 = 200;
    let calm = Calm::new(Some(Arc::new(Patient))).await;
    calm.register(Workflow::new("effect").effect("call")).await;
    for _ in 0..CALLS {
        calm.create("effect").await;
    }
    // What they have in common is the time of their looks, once the first ones are over.
    tokio::time::sleep(60 * SECOND).await; // sleep: virtual time
    let (before, looks) = (calm.server.n_writes(), calm.engine.stats().effects_started);
    tokio::time::sleep(HOUR).await; // sleep: virtual time
    let looks = calm.engine.stats().effects_started - looks;
    let most = CALLS * HOUR.as_secs() / 30;
    assert!((most * 9 / 10..=most).contains(&looks), "{looks} looks");
    let after = calm.server.n_writes();
    let grown = |what| after[what] - before[what];
    // Two queues are looked through every second, whatever is due.
    let polls = 2 * HOUR.as_secs();
    let (leases, parks) = (grown("lease").saturating_sub(polls), grown("park"));
    assert!(leases <= looks / 5, "{leases} times leased in {looks} looks");
    assert!(
        (1..=looks / 5).contains(&parks),
        "parked {parks} times in {looks} looks"
    );
    assert_eq!(
        after.get("set lease"),
        before.get("set lease"),
        "each is parked with others"
    );
    calm.end().await;
}

/// Finds a budget used up at every call, and counts them.
#[derive(Debug, Default)]
struct Broke(AtomicU64);

#[async_trait]
impl Executor for Broke {
    async fn run(&self, _: Attempt) -> Report {
        self.0.fetch_add(1, Ordering::Relaxed);
        let over = OverBudget {
            key: BudgetKey {
                scope: BudgetScope::Tenant,
                per: BudgetPeriod::Day,
                unit: BudgetUnit::Tokens,
                until: Timestamp::from_millis(4_000_000_000_000),
            },
            spent: 100,
            limit: 100,
            on_breach: OnOverBudget::Ask(MoreMoney {
                grant: 100,
                approver_roles: Vec::new(),
                approver_groups: Vec::new(),
            }),
        };
        Outcome::Done(over.outcome().into()).into()
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_an_answer_look_seldom() {
    const CALLS: u64 = 50;
    let executor = Arc::new(Broke::default());
    let calm = Calm::new(Some(Arc::clone(&executor) as Arc<dyn Executor>)).await;
    let many = (0..CALLS).fold(Workflow::new("many"), |many, n| {
        many.node(
            &format!("n{n}"),
            "core.ai.callPrompt",
            json!({"prompt": "Say hello."}),
        )
    });
    calm.register(many).await;
    let run = calm.create("many").await;
    reaches(&calm.engine, &run, RunStatus::WaitingApproval).await;
    tokio::time::sleep(60 * SECOND).await; // sleep: virtual time
    let asked = executor.0.load(Ordering::Relaxed);
    assert!(asked >= CALLS, "{asked} looks");
    tokio::time::sleep(HOUR).await; // sleep: virtual time
    let looks = executor.0.load(Ordering::Relaxed) - asked;
    // The others twice a minute, the first one a little more often in the beginning.
    let most = CALLS * HOUR.as_secs() / 30 + 60;
    assert!(looks > 0 && looks <= most, "{looks} looks, of {most}");
    let open = calm.engine.view(&run).await.expect("reads").expect("exists");
    assert_eq!(open.run.interrupts(&open.plan).count(), 1, "one question");
    // Not `end`: the witness takes the end of a call for an outcome, and here it is a question.
    calm.engine.stop().await;
}

/// Ends each call at once.
#[derive(Debug)]
struct Prompt;

#[async_trait]
impl Executor for Prompt {
    async fn run(&self, _: Attempt) -> Report {
        Outcome::Done(json!({ "text": "x".repeat(2_000) })).into()
    }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_comes_soon_is_decided_without_loading_its_run() {
    let calm = Calm::new(Some(Arc::new(Prompt))).await;
    calm.register(Workflow::new("effect").effect("call")).await;
    for _ in 0..10 {
        let run = calm.create("effect").await;
        reaches(&calm.engine, &run, RunStatus::Completed).await;
    }
    assert_eq!(calm.server.n_reads().get("load"), None);

    // A run that has grown is no longer in memory, however quickly its calls end.
    let names: Vec<_> = (0..40).map(|n| format!("n{n}")).collect();
    let long = names
        .iter()
        .fold(Workflow::new("long"), |long, name| long.effect(name));
    let edges: Vec<_> = names
        .windows(2)
        .map(|pair| format!("{} -> {}", pair[0], pair[1]))
        .collect();
    calm.register(long.edges(&edges.join(","))).await;
    let run = calm.create("long").await;
    reaches(&calm.engine, &run, RunStatus::Completed).await;
    assert!(calm.server.n_reads().contains_key("load"));
    calm.end().await;
}
