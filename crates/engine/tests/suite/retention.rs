//! Expired run trees are removed completely, and nothing else is. Time is virtual.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use wopr_core::{
    ContentHash, NodeId, PrincipalId, RunId, RunKey, RunStatus, Seq, TenantId, Timestamp, WorkflowId,
};
use wopr_engine::{Clock, Create, Done, Engine, Idempotency, Options, SideRows, View};
use wopr_store::{
    Batch, Guard, IdempotencyKey, Log as _, MemoryStore, Registry as _, Removal, Retention as _, RunFilter,
    StoredEvent, Summary,
};

use crate::harness::{node, plan, principal, start, steered, tenant, workflow};

const PERIOD: Duration = Duration::from_secs(600);
/// A period, the time until the next pass, and some more.
const LONG: Duration = Duration::from_secs(600 + 60 + 30);

/// Follows the virtual time of the runtime.
#[derive(Debug)]
struct Virtual(tokio::time::Instant);

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        let since = i64::try_from(self.0.elapsed().as_millis()).expect("a test ends");
        Timestamp::from_millis(1_000_000 + since)
    }
}

struct World {
    store: Arc<MemoryStore>,
    engine: Engine,
}

impl World {
    async fn new(retention: Option<Duration>) -> Self {
        Self::on(Arc::new(MemoryStore::new()), retention).await
    }

    async fn on(store: Arc<MemoryStore>, retention: Option<Duration>) -> Self {
        let (executor, _attempts) = steered();
        let options = Options {
            retention,
            ..Options::default()
        };
        let clock = Arc::new(Virtual(tokio::time::Instant::now()));
        let engine = Engine::start(store.clone(), executor, clock, options)
            .await
            .expect("starts");
        Self { store, engine }
    }

    /// Stores a run as of now.
    async fn put(&self, n: u64, parent: Option<u64>, status: RunStatus) {
        put(&self.store, n, parent, status, self.engine.now()).await;
    }

    /// The numbers of the stored runs.
    async fn runs(&self) -> Vec<u64> {
        let page = self
            .store
            .list_runs(&tenant(), &RunFilter::default(), None, 10_000)
            .await
            .expect("lists");
        let number = |run: &RunId| run.as_str().trim_start_matches("run_").parse().expect("a number");
        let mut runs: Vec<u64> = page.runs.iter().map(|(run, ..)| number(run)).collect();
        runs.sort_unstable();
        runs
    }

    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await; // sleep: virtual time
    }
}

fn run_id(n: u64) -> RunId {
    RunId::parse(&format!("run_{n:020}")).expect("a run id")
}

async fn put(store: &MemoryStore, n: u64, parent: Option<u64>, status: RunStatus, now: Timestamp) {
    let summary = Summary {
        status,
        parent: parent.map(|parent| (run_id(parent), NodeId::parse("n").expect("valid"))),
        ..Summary::new(
            WorkflowId::parse("w").expect("valid"),
            ContentHash::of(b"w"),
            PrincipalId::parse("ada").expect("valid"),
            now,
        )
    };
    let key = RunKey::new(tenant(), run_id(n));
    let head = store.summary(&key).await.expect("reads").map(|(_, head)| head);
    let guard = head.map_or(Guard::Create, Guard::At);
    let event = StoredEvent {
        seq: head.unwrap_or(Seq(0)),
        body: vec![1],
    };
    let batch = Batch::new(key, guard, vec![event], summary);
    store.append(batch).await.expect("appends");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_removed_without_a_retention_period() {
    let world = World::new(None).await;
    world.put(1, None, RunStatus::Completed).await;
    world.wait(PERIOD * 20).await;
    assert_eq!(world.runs().await, [1]);
    assert_eq!(world.engine.stats().runs_removed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_run_is_removed_after_its_retention_period() {
    let world = World::new(Some(PERIOD)).await;
    for (n, status) in (1..).zip(RunStatus::ALL) {
        world.put(n, None, status).await;
    }
    world.wait(PERIOD - Duration::from_secs(1)).await;
    assert_eq!(world.runs().await.len(), RunStatus::ALL.len());
    world.wait(LONG - PERIOD).await;
    let left: Vec<_> = (1..)
        .zip(RunStatus::ALL)
        .filter(|(_, status)| !status.is_terminal())
        .map(|(n, _)| n)
        .collect();
    assert_eq!(world.runs().await, left);
    assert_eq!(world.engine.stats().runs_removed, 3);
}

#[tokio::test(start_paused = true)]
async fn a_tree_is_kept_until_its_last_run_expires() {
    let world = World::new(Some(PERIOD)).await;
    world.put(1, None, RunStatus::Completed).await;
    world.put(2, Some(1), RunStatus::Completed).await;
    world.put(3, Some(2), RunStatus::Running).await;
    world.put(4, None, RunStatus::Failed).await;
    world.wait(LONG).await;
    assert_eq!(world.runs().await, [1, 2, 3], "one of the tree still runs");

    world.put(3, Some(2), RunStatus::Cancelled).await;
    world.wait(PERIOD - Duration::from_secs(1)).await;
    assert_eq!(world.runs().await, [1, 2, 3], "and then the period begins");
    world.wait(LONG - PERIOD).await;
    assert_eq!(world.runs().await, [0_u64; 0]);
    assert_eq!(world.engine.stats().runs_removed, 4);
}

#[tokio::test(start_paused = true)]
async fn a_child_is_never_removed_without_its_root() {
    let world = World::new(Some(PERIOD)).await;
    world.put(1, None, RunStatus::WaitingApproval).await;
    world.put(2, Some(1), RunStatus::Completed).await;
    world.wait(LONG).await;
    assert_eq!(world.runs().await, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn large_trees_and_many_trees_are_removed() {
    let world = World::new(Some(PERIOD)).await;
    let mut n = 0;
    let mut next = || {
        n += 1;
        n
    };
    let wide = next();
    world.put(wide, None, RunStatus::Completed).await;
    for _ in 0..700 {
        world.put(next(), Some(wide), RunStatus::Completed).await;
    }
    let mut deep = next();
    world.put(deep, None, RunStatus::Completed).await;
    for _ in 0..40 {
        let child = next();
        world.put(child, Some(deep), RunStatus::Failed).await;
        deep = child;
    }
    for _ in 0..600 {
        world.put(next(), None, RunStatus::Cancelled).await;
    }
    let alive = next();
    world.put(alive, None, RunStatus::Paused).await;
    world.wait(LONG).await;
    assert_eq!(world.runs().await, [alive]);
    assert_eq!(world.engine.stats().runs_removed, alive - 1);
}

#[tokio::test(start_paused = true)]
async fn interrupted_removals_are_finished_by_any_process() {
    let store = Arc::new(MemoryStore::new());
    let now = Timestamp::from_millis(0);
    put(&store, 1, None, RunStatus::Completed, now).await;
    for n in 2..6 {
        put(&store, n, Some(1), RunStatus::Completed, now).await;
    }
    put(&store, 6, None, RunStatus::Completed, now).await;
    put(&store, 7, None, RunStatus::Completed, now).await;
    let begun = [(2, 1), (3, 1), (6, 6)].map(|(run, root)| Removal {
        run: run_id(run),
        root: run_id(root),
    });
    store.remove(&tenant(), &begun).await.expect("marks");

    let world = World::on(store, None).await;
    world.wait(Duration::from_secs(1)).await;
    assert_eq!(world.runs().await, [7]);
    assert!(world.store.begun_removals(9).await.expect("reads").is_empty());
    assert_eq!(world.engine.stats().runs_removed, 6);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_is_replayed_after_its_run_is_removed() {
    let world = World::new(Some(PERIOD)).await;
    world
        .engine
        .register(None, workflow("one", &[node("n", "core.noop", json!({}))], &[]))
        .await
        .expect("registers");
    let expires_at = world.engine.now().plus_millis(3_600_000);
    let one = plan(&world.engine, &start(json!({})).tenant, "one").await;
    let create = || Create {
        run: world.engine.new_run_id(),
        workflow: Arc::clone(&one),
        start: start(json!({})),
        side_rows: SideRows {
            idempotency: Some(Idempotency {
                key: IdempotencyKey {
                    tenant: TenantId::parse("default").expect("valid"),
                    principal: principal(),
                    scope: "create".into(),
                    key: "k".into(),
                },
                digest: "d".into(),
                expires_at,
                respond: Arc::new(|_: &View| Vec::new()),
            }),
            ..SideRows::default()
        },
    };
    let Done::Fresh(first) = world.engine.create(create()).await.expect("creates") else {
        panic!("the first is fresh")
    };
    world.wait(LONG).await;
    assert!(world.engine.view(&first.key).await.expect("reads").is_none());
    let Done::Replayed(record) = world.engine.create(create()).await.expect("answers") else {
        panic!("the key is known")
    };
    assert_eq!(record.run, Some(first.key.run.clone()));
    assert_eq!(
        world.store.next_tenant(None).await.expect("reads"),
        None,
        "no run"
    );

    // Once the record has expired too, the key is new.
    world.wait(Duration::from_secs(3_600)).await;
    let Done::Fresh(second) = world.engine.create(create()).await.expect("creates") else {
        panic!("the key is free")
    };
    assert_ne!(second.key, first.key);
}

#[tokio::test(start_paused = true)]
async fn versions_of_a_removed_workflow_go_with_its_last_run() {
    let world = World::new(Some(PERIOD)).await;
    let document = |n: usize| {
        let mut document = workflow("one", &[node("n", "core.noop", json!({}))], &[]);
        document["version"] = n.to_string().into();
        document
    };
    let (tenant, id) = (start(json!({})).tenant, WorkflowId::parse("one").expect("valid"));
    for n in 0..3 {
        let registered = world.engine.register(Some(&tenant), document(n)).await;
        registered.expect("registers");
    }
    let one = plan(&world.engine, &tenant, "one").await;
    let create = Create {
        run: world.engine.new_run_id(),
        workflow: Arc::clone(&one),
        start: start(json!({})),
        side_rows: SideRows::default(),
    };
    let Done::Fresh(view) = world.engine.create(create).await.expect("creates") else {
        panic!("it is fresh")
    };
    world.engine.remove_workflow(&tenant, &id).await.expect("removes");
    let kept = async || {
        let row = world.store.workflow(&tenant, &id, one.version()).await;
        row.expect("reads").is_some()
    };
    assert!(world.engine.view(&view.key).await.expect("reads").is_some() && kept().await);
    world.wait(LONG).await;
    assert!(world.engine.view(&view.key).await.expect("reads").is_none());
    for _ in 0..5 {
        world.wait(Duration::from_secs(3_600)).await;
    }
    assert!(!kept().await);
}
