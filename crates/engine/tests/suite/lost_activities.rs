//! Activities whose leases keep ending without an outcome. Time is virtual.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::{Instant, advance};
use wopr_core::{Object, Refusal, RunKey, RunStatus, Timestamp};
use wopr_engine::{
    ActivityCall, Clock, CommandError, Engine, LeasedActivity, Options, SideRows, WorkerLease, WorkerOptions,
};
use wopr_store::{MemoryStore, OfferRequest, Offers as _};

use crate::harness::{create, fresh, node, options, reaches, steered, tenant, workflow};

const LEASE: Duration = Duration::from_secs(10);
const MOST: u32 = 3;
/// The time when a world begins.
const BEGAN: i64 = 1_000_000;

/// Follows the virtual time of the runtime.
#[derive(Debug)]
struct Virtual(Instant);

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        let since = i64::try_from(self.0.elapsed().as_millis()).expect("a test ends");
        Timestamp::from_millis(BEGAN + since)
    }
}

struct World {
    began: Instant,
    store: Arc<MemoryStore>,
    engine: Engine,
}

impl World {
    async fn new() -> Self {
        let (began, store) = (Instant::now(), Arc::new(MemoryStore::new()));
        let engine = start(began, &store).await;
        Self { began, store, engine }
    }

    /// Starts a run with one activity.
    async fn create(&self, settings: Value) -> RunKey {
        let mut document = workflow(
            "work",
            &[node("work", "core.activity", json!({ "queue": "letters" }))],
            &[],
        );
        document["settings"] = settings;
        self.engine.register(None, document).await.expect("valid");
        fresh(create(&self.engine, "work", json!({}), SideRows::default()).await).key
    }

    /// Stops the engine, and starts another one later.
    async fn restart(&mut self, after: Duration) {
        self.engine.stop().await;
        advance(after).await;
        self.engine = start(self.began, &self.store).await;
    }

    /// A call that waits for longer than a lease lasts.
    async fn lease(&self) -> Vec<LeasedActivity> {
        let call = ActivityCall {
            tenant: tenant(),
            queue: "letters".to_owned(),
            worker: "w".to_owned(),
            max: 1,
            wait: LEASE * 2,
        };
        self.engine.lease_activities(call).await.expect("answers")
    }

    async fn one(&self) -> LeasedActivity {
        let mut leased = self.lease().await;
        assert_eq!(leased.len(), 1, "an activity is handed out");
        leased.remove(0)
    }

    /// Asserts that the run failed because workers were lost.
    async fn lost(&self, run: &RunKey) {
        let view = reaches(&self.engine, run, RunStatus::Failed).await;
        let (failure, _) = view.run.error.as_ref().expect("it failed");
        assert_eq!(
            (failure.code.as_str(), failure.message.as_str()),
            (
                "worker_lost",
                "the leases of workers ended 3 times in a row without an outcome"
            )
        );
    }
}

async fn start(began: Instant, store: &Arc<MemoryStore>) -> Engine {
    let (executor, _attempts) = steered();
    let options = Options {
        workers: WorkerOptions {
            lease: LEASE,
            max_lost_leases: MOST,
            ..WorkerOptions::default()
        },
        ..options()
    };
    let clock = Arc::new(Virtual(began));
    Engine::start(store.clone(), executor, clock, options)
        .await
        .expect("starts")
}

fn of(activity: &LeasedActivity) -> WorkerLease {
    WorkerLease {
        fence: activity.fence,
        queue: "letters".to_owned(),
        worker: "w".to_owned(),
    }
}

async fn end(engine: &Engine, activity: &LeasedActivity) -> Result<(), CommandError> {
    let lease = of(activity);
    let ended = engine.end_activity(
        &activity.run,
        (activity.step.clone(), activity.attempt),
        Some(&lease),
        Ok(Object::new()),
        SideRows::default(),
    );
    ended.await.map(|_| ())
}

#[tokio::test(start_paused = true)]
async fn activity_fails_when_too_many_leases_end_without_an_outcome() {
    let world = World::new().await;
    let run = world.create(json!({})).await;
    let mut handed_out = Vec::new();
    for _ in 0..MOST {
        handed_out.push(world.one().await);
    }
    assert_eq!(world.lease().await, [], "no worker gets it again");
    world.lost(&run).await;
    for activity in &handed_out {
        let late = end(&world.engine, activity).await;
        assert!(
            matches!(
                late,
                Err(CommandError::Refused(Refusal::Stale | Refusal::Terminal(_)))
            ),
            "{late:?}"
        );
    }
    let stats = world.engine.stats();
    assert_eq!((stats.activities_lost, stats.activities_ended), (1, 0));
    world.engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn next_attempt_has_lost_no_lease() {
    let world = World::new().await;
    let run = world.create(json!({ "maxRetries": 1, "retryDelayMs": 1 })).await;
    let mut attempts = Vec::new();
    for _ in 0..2 * MOST {
        attempts.push(world.one().await.attempt);
    }
    assert_eq!(attempts, [0, 0, 0, 1, 1, 1]);
    assert_eq!(world.lease().await, []);
    world.lost(&run).await;
    assert_eq!(world.engine.stats().activities_lost, 2);
    world.engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn outcome_under_the_last_lease_counts() {
    let world = World::new().await;
    let run = world.create(json!({})).await;
    for _ in 1..MOST {
        world.one().await;
    }
    let last = world.one().await;
    advance(LEASE * 2).await;
    end(&world.engine, &last).await.expect("no call has found it");
    reaches(&world.engine, &run, RunStatus::Completed).await;
    assert_eq!(world.engine.stats().activities_lost, 0);
    world.engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn heartbeats_lose_no_lease() {
    let world = World::new().await;
    let run = world.create(json!({})).await;
    for _ in 1..MOST {
        world.one().await;
    }
    let last = world.one().await;
    let lease = of(&last);
    for _ in 0..4 * MOST {
        advance(LEASE / 2).await;
        let renewed = world
            .engine
            .renew_activity(&run, &last.step, last.attempt, &lease);
        assert!(renewed.await.expect("answers"));
    }
    end(&world.engine, &last).await.expect("it has the lease");
    reaches(&world.engine, &run, RunStatus::Completed).await;
    world.engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn attempt_is_ended_after_the_host_that_found_it_died() {
    let world = World::new().await;
    let run = world.create(json!({})).await;
    for _ in 0..MOST {
        world.one().await;
    }
    advance(LEASE).await;
    // Another host leases the row and dies before it ends the attempt.
    let now = Virtual(world.began).now();
    let request = OfferRequest {
        tenant: tenant(),
        queue: "letters".to_owned(),
        now,
        until: now.plus_millis(5_000),
        rows: 1,
        bytes: usize::MAX,
        most_of_queue: None,
        most_of_tenant: None,
        max_lost: MOST,
        outage: None,
    };
    let found = world.store.lease_offers(&request).await.expect("leases");
    assert_eq!(found.lost.len(), 1);
    assert_eq!(world.lease().await, []);
    world.lost(&run).await;
    world.engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn leases_that_end_while_no_host_is_up_are_not_lost() {
    let mut world = World::new().await;
    let run = world.create(json!({})).await;
    for _ in 0..2 * MOST {
        world.one().await;
        world.restart(LEASE * 2).await;
    }
    for _ in 0..MOST {
        world.one().await;
    }
    assert_eq!(world.lease().await, []);
    world.lost(&run).await;
    world.engine.stop().await;
}
