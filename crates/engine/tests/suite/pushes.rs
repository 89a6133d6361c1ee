//! Push notifications arrive at least once and in order, despite failing subscriptions and restarts. Time is
//! virtual.

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread::{self, ThreadId},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::json;
use tokio::{sync::Notify, time::Instant};
use wopr_core::{Command, Recorded, RunId, RunKey, RunStatus, Seq, TenantId, Timestamp};
use wopr_engine::{
    Clock, CommandError, Create, Delivery, Engine, NewSubscription, Notifier, Options, SideRows, Start,
    Undelivered, View,
};
use wopr_store::{DeliveryFilter, DeliveryRow, MemoryStore, PushRow, Pushes as _, Put, Update};

use crate::harness::{
    answer, create, create_as, fresh, node, plan, reaches, start, steered, tenant, workflow,
};

/// Follows the virtual time of the runtime.
#[derive(Debug)]
struct Virtual(Instant);

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        let since = i64::try_from(self.0.elapsed().as_millis()).expect("a test ends");
        Timestamp::from_millis(1_000_000 + since)
    }
}

/// The response of a receiving server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Takes,
    Fails,
    Hangs,
    Panics,
}

/// A notifier that records its deliveries.
#[derive(Debug, Default)]
struct Postbox {
    moods: Mutex<BTreeMap<String, Mood>>,
    attempts: Mutex<Vec<(String, u64, Instant)>>,
    /// The threads on which updates were computed.
    threads: Mutex<Vec<ThreadId>>,
    told: Mutex<Vec<(String, u64)>>,
    heard: Notify,
}

impl Postbox {
    fn mood(&self, push: &str, mood: Mood) {
        self.moods.lock().insert(push.to_owned(), mood);
    }

    fn told(&self, push: &str) -> Vec<u64> {
        let told = self.told.lock();
        told.iter()
            .filter(|(to, _)| to == push)
            .map(|(_, seq)| *seq)
            .collect()
    }

    fn attempts(&self, push: &str, seq: u64) -> Vec<Instant> {
        let attempts = self.attempts.lock();
        attempts
            .iter()
            .filter(|(to, of, _)| to == push && *of == seq)
            .map(|(_, _, at)| *at)
            .collect()
    }

    /// Waits until an event has been delivered to a subscription.
    async fn has(&self, push: &str, seq: u64) {
        while !self.told(push).contains(&seq) {
            self.heard.notified().await;
        }
    }
}

#[async_trait]
impl Notifier for Postbox {
    fn updates(&self, before: &View, events: &[Recorded]) -> Vec<Update> {
        self.threads.lock().push(thread::current().id());
        assert_eq!(Some(before.run.head), events.first().map(|event| event.seq));
        events
            .iter()
            .map(|event| Update {
                seq: event.seq,
                body: format!("{}", event.seq).into_bytes(),
            })
            .collect()
    }

    async fn deliver(&self, delivery: &Delivery) -> Result<(), Undelivered> {
        let seq = delivery.seq.0;
        assert_eq!(delivery.body, format!("{seq}").into_bytes());
        assert_eq!(delivery.receiver, format!("to {}", delivery.push).into_bytes());
        let attempt = (delivery.push.clone(), seq, Instant::now());
        self.attempts.lock().push(attempt);
        let mood = self.moods.lock().get(&delivery.push).copied();
        match mood.unwrap_or(Mood::Takes) {
            Mood::Takes => {
                self.told.lock().push((delivery.push.clone(), seq));
                self.heard.notify_waiters();
                self.heard.notify_one();
                Ok(())
            }
            Mood::Fails => Err(Undelivered {
                reason: "answered 500".to_owned(),
                retry_after: None,
            }),
            Mood::Hangs => std::future::pending().await,
            Mood::Panics => panic!("on purpose"),
        }
    }
}

struct World {
    store: Arc<MemoryStore>,
    postbox: Arc<Postbox>,
    engine: Engine,
}

impl World {
    async fn new() -> Self {
        Self::on(Arc::new(MemoryStore::new())).await
    }

    async fn on(store: Arc<MemoryStore>) -> Self {
        let (executor, _attempts) = steered();
        let postbox = Arc::new(Postbox::default());
        let options = Options {
            notifier: Some(postbox.clone()),
            ..Options::default()
        };
        let clock = Arc::new(Virtual(Instant::now()));
        let engine = Engine::start(store.clone(), executor, clock, options)
            .await
            .expect("starts");
        let approval = [
            node("ask", "core.approvalGate", json!({})),
            node("say", "core.noop", json!({})),
        ];
        engine
            .register(None, workflow("ask", &approval, &[("ask", "say")]))
            .await
            .expect("valid");
        let delay = node("wait", "core.delay", json!({"delayMs": 86_400_000}));
        let registered = engine.register(None, workflow("wait", &[delay], &[])).await;
        registered.expect("valid");
        Self {
            store,
            postbox,
            engine,
        }
    }

    /// Creates a waiting run with subscriptions to its later events.
    async fn asks(&self, pushes: &[&str]) -> View {
        let view = fresh(create(&self.engine, "ask", json!({}), SideRows::default()).await);
        assert_eq!(view.run.status, RunStatus::WaitingApproval);
        for id in pushes {
            let put = self.engine.put_push(&view.key, push(id), 10).await;
            assert_eq!(put.expect("put"), Put::Added);
        }
        view
    }

    async fn command(&self, run: &RunKey, command: Command) -> View {
        let done = self.engine.command(run, command, SideRows::default()).await;
        fresh(done.expect("taken"))
    }

    async fn approve(&self, run: &RunKey) -> View {
        self.command(run, answer("ask", json!({"action": "accept"})))
            .await
    }

    async fn deliveries(&self, given_up: bool) -> Vec<DeliveryRow> {
        let filter = DeliveryFilter {
            tenant: tenant(),
            run: None,
            principal: None,
            given_up,
        };
        self.store.deliveries(&filter, None, 99).await.expect("lists")
    }
}

fn push(id: &str) -> PushRow {
    PushRow {
        id: id.to_owned(),
        body: format!("to {id}").into_bytes(),
        created_at: Timestamp::from_millis(1),
    }
}

/// Side rows with a new subscription.
fn along(run: &RunId, id: &str) -> SideRows {
    SideRows {
        push: Some(NewSubscription {
            run: run.clone(),
            row: push(id),
            most: 2,
        }),
        ..SideRows::default()
    }
}

fn pause() -> Command {
    Command::Pause {
        reason: None,
        drain: wopr_core::DrainPolicy::default(),
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_can_add_a_subscription_up_to_the_limit() {
    let world = World::new().await;
    let view = world.asks(&["a", "b"]).await;
    let yes = || answer("ask", json!({"action": "accept"}));
    let refused = world
        .engine
        .command(&view.key, yes(), along(&view.key.run, "c"))
        .await;
    assert!(
        matches!(refused, Err(CommandError::TooManyReceivers { most: 2 })),
        "{refused:?}"
    );
    assert!(world.store.drop_push(&view.key, "a").await.expect("dropped"));
    let done = world
        .engine
        .command(&view.key, yes(), along(&view.key.run, "c"))
        .await;
    let ended = fresh(done.expect("taken"));
    world.postbox.has("c", ended.run.head.0 - 1).await;
    assert_eq!(world.postbox.told("c"), seqs(view.run.head.0, &ended));
    assert_eq!(world.postbox.told("a"), [0; 0]);
}

fn seqs(from: u64, view: &View) -> Vec<u64> {
    (from..view.run.head.0).collect()
}

#[tokio::test(start_paused = true)]
async fn a_subscription_created_with_a_run_gets_all_events_in_order() {
    let world = World::new().await;
    let run = world.engine.new_run_id();
    let view = fresh(create_as(&world.engine, run.clone(), "ask", json!({}), along(&run, "a")).await);
    let ended = world.approve(&view.key).await;
    assert_eq!(ended.run.status, RunStatus::Completed);
    world.postbox.has("a", ended.run.head.0 - 1).await;
    assert_eq!(world.postbox.told("a"), seqs(0, &ended));
    let stats = world.engine.stats();
    assert_eq!(stats.pushes_made, ended.run.head.0);
    assert_eq!(stats.pushes_delivered, ended.run.head.0);
    assert_eq!((stats.pushes_failed, stats.pushes_given_up), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn hanging_or_failing_subscriptions_do_not_delay_others() {
    let world = World::new().await;
    world.postbox.mood("hangs", Mood::Hangs);
    world.postbox.mood("fails", Mood::Fails);
    world.postbox.mood("breaks", Mood::Panics);
    let view = world.asks(&["hangs", "fails", "breaks", "well"]).await;
    let began = Instant::now();
    let ended = world.approve(&view.key).await;
    assert_eq!(ended.run.status, RunStatus::Completed);
    world.postbox.has("well", ended.run.head.0 - 1).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    assert_eq!(world.postbox.told("well"), seqs(view.run.head.0, &ended));

    // They are retried, and once they accept, everything arrives in order.
    for id in ["hangs", "fails", "breaks"] {
        let first = view.run.head.0;
        while world.postbox.attempts(id, first).len() < 3 {
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(world.postbox.told(id), [0_u64; 0]);
        world.postbox.mood(id, Mood::Takes);
    }
    for id in ["hangs", "fails", "breaks"] {
        world.postbox.has(id, ended.run.head.0 - 1).await;
        assert_eq!(world.postbox.told(id), seqs(view.run.head.0, &ended));
    }
    assert_eq!(world.deliveries(false).await, []);
}

#[tokio::test(start_paused = true)]
async fn each_failed_delivery_is_retried_after_its_own_backoff() {
    let world = World::new().await;
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        world.postbox.mood(name, Mood::Fails);
    }
    let view = world.asks(&names).await;
    world.approve(&view.key).await;
    // sleep: virtual time passes until all have been tried twice
    tokio::time::sleep(Duration::from_secs(2)).await;
    let pauses = names.map(|name| {
        let attempts = world.postbox.attempts(name, view.run.head.0);
        (attempts[1] - attempts[0]).as_millis()
    });
    // Between half a second and a whole one, however often the loop looks.
    assert!(
        pauses.iter().all(|pause| (500..1_050).contains(pause)),
        "{pauses:?}"
    );
    let (least, most) = (pauses.iter().min(), pauses.iter().max());
    assert_ne!(least, most, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn deliveries_failing_for_a_day_are_dead_lettered_and_can_be_retried() {
    let world = World::new().await;
    world.postbox.mood("a", Mood::Fails);
    let view = world.asks(&["a"]).await;
    let ended = world.approve(&view.key).await;
    let first = view.run.head.0;
    let day = Duration::from_secs(24 * 3_600);
    let began = Instant::now();
    while world.deliveries(true).await.is_empty() {
        assert!(began.elapsed() < 2 * day, "given up in time");
        // sleep: time is virtual, and passes from one attempt to the next
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let attempts = world.postbox.attempts("a", first);
    let pauses: Vec<_> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!((30..60).contains(&attempts.len()), "{}", attempts.len());
    assert!(pauses[0] < Duration::from_secs(2), "{pauses:?}");
    let longest = Duration::from_secs(3_600 + 20);
    assert!(pauses.iter().all(|pause| *pause < longest), "{pauses:?}");
    assert!(
        pauses
            .last()
            .is_some_and(|last| *last > Duration::from_secs(1_700))
    );
    // None of the later deliveries was tried before: they expire at the same age.
    while world.deliveries(true).await.len() < seqs(first, &ended).len() {
        // sleep: virtual time passes from one attempt to the next
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    for delivery in world.deliveries(true).await {
        assert_eq!(delivery.error.as_deref(), Some("answered 500"));
        let age = delivery.dead_at.expect("given up").millis() - delivery.enqueued_at.millis();
        assert!(u128::try_from(age).is_ok_and(|age| age >= day.as_millis()));
    }
    assert_eq!(
        world.engine.stats().pushes_given_up,
        seqs(first, &ended).len() as u64
    );

    world.postbox.mood("a", Mood::Takes);
    let one = world
        .engine
        .retry_push(&view.key, "a", Some(Seq(first + 1)))
        .await;
    assert_eq!(one.expect("retried"), 1);
    world.postbox.has("a", first + 1).await;
    let rest = world.engine.retry_push(&view.key, "a", None).await;
    assert_eq!(rest.expect("retried"), seqs(first, &ended).len() - 1);
    world.postbox.has("a", ended.run.head.0 - 1).await;
    assert_eq!(world.deliveries(false).await, []);
}

#[tokio::test(start_paused = true)]
async fn the_next_process_delivers_what_the_previous_one_left() {
    for is_orderly in [true, false] {
        let world = World::new().await;
        world.postbox.mood("a", Mood::Hangs);
        let view = world.asks(&["a"]).await;
        let ended = world.approve(&view.key).await;
        while world.postbox.attempts("a", view.run.head.0).is_empty() {
            tokio::time::advance(Duration::from_millis(50)).await;
        }
        if is_orderly {
            world.engine.stop().await;
        }
        let next = World::on(world.store.clone()).await;
        next.postbox.has("a", ended.run.head.0 - 1).await;
        assert_eq!(next.postbox.told("a"), seqs(view.run.head.0, &ended));
        assert_eq!(world.postbox.told("a"), [0_u64; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_removed_subscription_gets_no_more_deliveries() {
    let world = World::new().await;
    world.postbox.mood("a", Mood::Fails);
    let view = world.asks(&["a", "b"]).await;
    let ended = world.approve(&view.key).await;
    world.postbox.has("b", ended.run.head.0 - 1).await;
    while world.postbox.attempts("a", view.run.head.0).is_empty() {
        tokio::time::advance(Duration::from_millis(50)).await;
    }
    assert!(world.store.drop_push(&view.key, "a").await.expect("dropped"));
    world.postbox.mood("a", Mood::Takes);
    tokio::time::advance(Duration::from_secs(7_200)).await;
    let later = world.asks(&["b"]).await;
    let later = world.approve(&later.key).await;
    world.postbox.has("b", later.run.head.0 - 1).await;
    assert_eq!(world.postbox.told("a"), [0_u64; 0]);
    assert_eq!(world.deliveries(false).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_to_a_long_log_gets_events_from_its_creation_on() {
    let world = World::new().await;
    let view = fresh(create(&world.engine, "wait", json!({}), SideRows::default()).await);
    // Commands still work, but nothing is delivered.
    world.engine.stop().await;
    let mut since = None;
    // Past a snapshot, and past a page.
    for n in 0..350 {
        if n == 130 {
            let put = world.engine.put_push(&view.key, push("a"), 10).await;
            assert_eq!(put.expect("put"), Put::Added);
        }
        let paused = world.command(&view.key, pause()).await;
        if n == 130 {
            since = Some(paused.run.head.0 - 1);
        }
        world.command(&view.key, Command::Resume { reason: None }).await;
    }
    let world = World::on(world.store.clone()).await;
    let waiting = reaches(&world.engine, &view.key, RunStatus::Running).await;
    world.postbox.has("a", waiting.run.head.0 - 1).await;
    let told = world.postbox.told("a");
    assert_eq!(told.first().copied(), since);
    assert_eq!(told, seqs(told[0], &waiting));
    assert!(
        told[0] > 256 && told.len() > 400,
        "{} from {}",
        told.len(),
        told[0]
    );
}

/// Creates a waiting run of a tenant with subscriptions to its later events.
async fn asks_of(world: &World, name: &str, pushes: &[String]) -> RunKey {
    let start = Start {
        tenant: TenantId::parse(name).expect("valid"),
        ..start(json!({}))
    };
    let create = Create {
        run: world.engine.new_run_id(),
        workflow: plan(&world.engine, &start.tenant, "ask").await,
        start,
        side_rows: SideRows::default(),
    };
    let key = fresh(world.engine.create(create).await.expect("creates")).key;
    for id in pushes {
        let put = world.engine.put_push(&key, push(id), 100).await;
        assert_eq!(put.expect("put"), Put::Added);
    }
    key
}

#[tokio::test(start_paused = true)]
async fn slow_subscriptions_of_one_tenant_do_not_delay_another() {
    let world = World::new().await;
    let options = Options::default().push;
    // Far more hanging subscriptions than slots, across many runs.
    let n_runs = 4 * options.max_active / 64;
    for run in 0..n_runs {
        let names: Vec<_> = (0..64).map(|n| format!("slow-{run}-{n}")).collect();
        for name in &names {
            world.postbox.mood(name, Mood::Hangs);
        }
        let key = asks_of(&world, "greedy", &names).await;
        world.approve(&key).await;
    }
    let begun = |greedy: &str| {
        let attempts = world.postbox.attempts.lock();
        attempts.iter().filter(|(to, ..)| to.starts_with(greedy)).count()
    };
    while begun("slow-") < options.max_active / 2 {
        tokio::task::yield_now().await;
        // sleep: virtual time passes until the flood holds all the slots it can get
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // None of the hanging attempts has ended, yet each update of the other tenant is delivered at once.
    for n in 0..8 {
        let names = [format!("quick-{n}")];
        let key = asks_of(&world, "modest", &names).await;
        let since = Instant::now();
        let ended = world.approve(&key).await;
        world.postbox.has(&names[0], ended.run.head.0 - 1).await;
        let took = since.elapsed();
        assert!(took < options.timeout / 10, "told after {took:?}");
    }
    let n_begun = begun("slow-");
    assert!(n_begun <= options.max_active * 3 / 4, "{n_begun} attempts hang");
}

#[tokio::test(start_paused = true)]
async fn updates_are_computed_on_the_decision_pool() {
    let world = World::new().await;
    let view = world.asks(&["a"]).await;
    let ended = world.approve(&view.key).await;
    world.postbox.has("a", ended.run.head.0 - 1).await;
    let threads = world.postbox.threads.lock();
    assert!(!threads.is_empty() && !threads.contains(&thread::current().id()));
}

/// Takes all of the load budget for views that a tenant can get.
async fn fill(world: &World, runs: &[&RunKey]) -> Vec<View> {
    let mut held = Vec::new();
    for run in runs {
        while let Ok(view) = world.engine.view(run).await {
            held.push(view.expect("exists"));
        }
    }
    held
}

#[tokio::test(start_paused = true)]
async fn deliveries_of_large_runs_wait_for_budget_without_delaying_others() {
    let world = World::new().await;
    let large = |n: usize| json!({ "text": "x".repeat(n) });
    let huge = fresh(create(&world.engine, "ask", large(20 << 20), SideRows::default()).await);
    let mut many = Vec::new();
    for _ in 0..80 {
        let view = fresh(create(&world.engine, "ask", large(300 << 10), SideRows::default()).await);
        many.push(view.key);
    }
    for run in &many {
        let put = world.engine.put_push(run, push("large"), 10).await;
        assert_eq!(put.expect("put"), Put::Added);
    }
    let held = fill(&world, &[&huge.key, &many[0]]).await;
    for run in &many {
        // Unlike an answer, cancelling loads no view.
        let cancel = Command::Cancel {
            reason: None,
            by: None,
        };
        world.command(run, cancel).await;
    }
    // Another tenant is not affected by the waiting deliveries.
    let start = Start {
        tenant: TenantId::parse("other").expect("valid"),
        ..start(json!({}))
    };
    let run = world.engine.new_run_id();
    let other = Create {
        side_rows: along(&run, "other"),
        run,
        workflow: plan(&world.engine, &start.tenant, "ask").await,
        start,
    };
    let began = Instant::now();
    let other = fresh(world.engine.create(other).await.expect("created"));
    world.postbox.has("other", other.run.head.0 - 1).await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    // sleep: virtual time passes while the waiting deliveries are retried repeatedly
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.postbox.told("large"), [0; 0]);
    drop(held);
    let n_events = |told: &[u64]| told.iter().filter(|seq| **seq > 0).count();
    while n_events(&world.postbox.told("large")) < many.len() {
        world.postbox.heard.notified().await;
    }
}
