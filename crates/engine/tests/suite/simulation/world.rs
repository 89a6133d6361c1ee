//! One simulated world: replicas that come and go, clients that insist, and the promises checked at its end.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use wopr_core::{
    Command, DrainPolicy, Event, HostBounds, Offer, Run, RunId, RunKey, Seq, TenantId, Timestamp, WorkflowId,
};
use wopr_engine::{CommandError, Create, Done, Engine, Extras, Once, Options, Start, View};
use wopr_store::{IdempotencyKey, Log, MemoryStore, Retention, RunFilter};

use super::faults::{Connection, Fate, Fickle, VirtualClock};
use crate::harness::{answer, node, principal, tenant, workflow};

/// How long a client waits for an answer before it asks again.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long runs are kept: longer than any world lives before it is made to let go.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3_600);

pub(crate) struct Lived {
    pub(crate) runs: usize,
    pub(crate) crashes: u64,
}

/// The replicas that are alive now.
#[derive(Clone)]
struct Cluster {
    replicas: Arc<Mutex<Vec<Replica>>>,
    store: Arc<MemoryStore>,
    fate: Arc<Fate>,
    clock: Arc<VirtualClock>,
}

struct Replica {
    engine: Engine,
    is_dead: Arc<AtomicBool>,
}

impl Cluster {
    async fn start_replica(&self) {
        let is_dead = Arc::new(AtomicBool::new(false));
        let connection = Connection {
            store: Arc::clone(&self.store),
            fate: Arc::clone(&self.fate),
            is_dead: Arc::clone(&is_dead),
        };
        let executor = Fickle {
            store: Arc::clone(&self.store),
            fate: Arc::clone(&self.fate),
        };
        let options = Options {
            bounds: HostBounds {
                node_executions: 200,
                run_duration_ms: None,
            },
            offer: Offer { conformance: true },
            max_effects: 4,
            lease: Duration::from_secs(5),
            poll: Duration::from_millis(500),
            retention: Some(KEPT_FOR),
            seed: Some(self.fate.below(u64::MAX)),
        };
        let engine = Engine::start(
            Arc::new(connection),
            Arc::new(executor),
            self.clock.clone(),
            options,
        )
        .await;
        self.replicas.lock().push(Replica {
            engine: engine.expect("starts"),
            is_dead,
        });
    }

    /// Some live replica, as soon as there is one.
    async fn any(&self) -> Engine {
        loop {
            {
                let replicas = self.replicas.lock();
                if !replicas.is_empty() {
                    let index = self.fate.below(replicas.len() as u64);
                    return replicas[usize::try_from(index).expect("small")].engine.clone();
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await; // sleep: virtual time
        }
    }

    async fn crash_one(&self) {
        let victim = {
            let mut replicas = self.replicas.lock();
            let n = replicas.len() as u64;
            replicas.swap_remove(usize::try_from(self.fate.below(n)).expect("small"))
        };
        victim.is_dead.store(true, Ordering::Relaxed);
        // The process is gone: nothing of it runs on.
        std::mem::forget(victim.engine);
        tokio::time::sleep(Duration::from_millis(self.fate.below(2_000))).await; // sleep: virtual time
        self.start_replica().await;
    }
}

pub(crate) async fn live(seed: u64) -> Lived {
    let fate = Fate::new(seed);
    let cluster = Cluster {
        replicas: Arc::default(),
        store: Arc::new(MemoryStore::new()),
        clock: Arc::new(VirtualClock::new()),
        fate: Arc::clone(&fate),
    };
    fate.is_cruel.store(false, Ordering::Relaxed);
    for _ in 0..=fate.below(3) {
        cluster.start_replica().await;
    }
    for document in workflows() {
        // Every replica registers what its directory holds, as at a start.
        let engines: Vec<_> = cluster
            .replicas
            .lock()
            .iter()
            .map(|replica| replica.engine.clone())
            .collect();
        for engine in engines {
            engine.register(None, document.clone()).await.expect("registers");
        }
    }
    fate.is_cruel.store(true, Ordering::Relaxed);

    let mut clients = tokio::task::JoinSet::new();
    for index in 0..12 + fate.below(12) {
        let client = Client {
            cluster: cluster.clone(),
            name: format!("client-{index}"),
        };
        clients.spawn(client.run());
    }
    let mut crashes = 0;
    for _ in 0..fate.below(6) {
        tokio::time::sleep(Duration::from_millis(fate.below(4_000))).await; // sleep: virtual time
        cluster.crash_one().await;
        crashes += 1;
    }
    tokio::time::sleep(Duration::from_secs(10)).await; // sleep: virtual time
    fate.is_cruel.store(false, Ordering::Relaxed);
    let acknowledged = clients.join_all().await;
    check(&cluster, &acknowledged).await;
    let_go(&cluster).await;
    Lived {
        runs: acknowledged.len(),
        crashes,
    }
}

/// A client that creates one run and sees it through, repeating what got no answer.
struct Client {
    cluster: Cluster,
    name: String,
}

impl Client {
    async fn run(self) -> RunKey {
        let fate = Arc::clone(&self.cluster.fate);
        tokio::time::sleep(Duration::from_millis(fate.below(6_000))).await; // sleep: virtual time
        let kinds = [
            "pure", "delay", "gate", "effect", "parent", "loop", "both", "family",
        ];
        let kind = kinds[usize::try_from(fate.below(kinds.len() as u64)).expect("small")];
        let key = self.create(kind).await;
        let mut seen = Seq(0);
        loop {
            let view = self.view(&key).await;
            assert!(view.run.head >= seen, "{key}: an acknowledged write went missing");
            seen = view.run.head;
            if view.run.status.is_terminal() {
                return key;
            }
            let command = match (view.run.interrupt(&view.plan), fate.below(20)) {
                (_, 0) => Some(Command::Cancel {
                    reason: Some("simulated".into()),
                    by: Some(principal()),
                }),
                (_, 1) => Some(Command::Pause {
                    reason: None,
                    drain: DrainPolicy::DrainCurrentNode,
                }),
                (Some(open), _) => {
                    let action = if fate.below(4) == 0 { "reject" } else { "accept" };
                    Some(answer(open.node.as_str(), json!({ "action": action })))
                }
                (None, _) if view.run.status == wopr_core::RunStatus::Paused => {
                    Some(Command::Resume { reason: None })
                }
                (None, _) => None,
            };
            if let Some(command) = command {
                let engine = self.cluster.any().await;
                let told =
                    tokio::time::timeout(PATIENCE, engine.command(&key, command, Extras::default())).await;
                match told {
                    Ok(Ok(Done::Fresh(view))) if view.key == key => seen = seen.max(view.run.head),
                    Ok(Err(CommandError::Internal(why))) => panic!("{key}: {why}"),
                    Ok(_) | Err(_) => {}
                }
            }
            tokio::time::sleep(Duration::from_millis(50 + fate.below(800))).await; // sleep: virtual time
        }
    }

    async fn create(&self, workflow: &str) -> RunKey {
        let mut known: Option<RunId> = None;
        // Twice at least: a repeat must name the same run.
        for wanted in 0.. {
            let engine = self.cluster.any().await;
            let create = Create {
                run: engine.new_run_id(),
                workflow: WorkflowId::parse(workflow).expect("valid"),
                start: Start {
                    tenant: tenant(),
                    principal: principal(),
                    origin: wopr_core::Origin::Rest,
                    inputs: serde_json::Map::new(),
                    configurable: serde_json::Map::new(),
                    tags: vec![self.name.clone()],
                    metadata: serde_json::Map::new(),
                    context: None,
                    trace: None,
                },
                extras: Extras {
                    idempotency: Some(Once {
                        key: IdempotencyKey {
                            tenant: tenant(),
                            principal: principal(),
                            scope: "create".into(),
                            key: self.name.clone(),
                        },
                        digest: workflow.to_owned(),
                        expires_at: Timestamp::from_millis(i64::MAX / 2),
                        respond: Arc::new(|view: &View| view.key.run.as_str().as_bytes().to_vec()),
                    }),
                    ..Extras::default()
                },
            };
            let run = match tokio::time::timeout(PATIENCE, engine.create(create)).await {
                Ok(Ok(Done::Fresh(view))) => view.key.run,
                Ok(Ok(Done::Replayed(record))) => record.run.expect("a create names its run"),
                Ok(Err(CommandError::Internal(why))) => panic!("create: {why}"),
                Ok(Err(_)) | Err(_) => continue,
            };
            if let Some(known) = &known {
                assert_eq!(known, &run, "one key made two runs");
            }
            known = Some(run);
            if wanted > 1 {
                break;
            }
        }
        RunKey::new(tenant(), known.expect("the loop ends with an answer"))
    }

    async fn view(&self, key: &RunKey) -> View {
        loop {
            let engine = self.cluster.any().await;
            match tokio::time::timeout(PATIENCE, engine.view(key)).await {
                Ok(Ok(view)) => return view.expect("an acknowledged run exists"),
                Ok(Err(wopr_store::ReadError::Corrupt(why))) => panic!("{key}: {why}"),
                Ok(Err(wopr_store::ReadError::Unavailable(_))) | Err(_) => {}
            }
        }
    }
}

/// Everything has come to rest: what must be true of every log?
async fn check(cluster: &Cluster, acknowledged: &[RunKey]) {
    let engine = cluster.any().await;
    let tenant: TenantId = tenant();
    let page = cluster
        .store
        .list_runs(&tenant, &RunFilter::default(), None, 10_000)
        .await
        .expect("lists");
    let mut starts: HashMap<Vec<String>, usize> = HashMap::new();
    for (run, ..) in &page.runs {
        let key = RunKey::new(tenant.clone(), run.clone());
        let view = settled(&engine, &key).await;
        let log = engine
            .events(&key, Seq(0), 100_000)
            .await
            .expect("reads")
            .expect("exists")
            .events;
        for (index, recorded) in log.iter().enumerate() {
            assert_eq!(recorded.seq, Seq(index as u64), "{key}: sequences are dense");
        }
        let terminals = log
            .iter()
            .filter(|recorded| recorded.event.terminal().is_some())
            .count();
        assert_eq!(terminals, 1, "{key}: one terminal event");
        assert!(
            log.last().is_some_and(|last| last.event.terminal().is_some()),
            "{key}: the terminal event is last"
        );
        assert_eq!(
            Run::default().fold(&view.plan, &log).expect("folds"),
            view.run,
            "{key}: a fold from zero agrees"
        );
        if let Some(Event::RunStarted(started)) = log.first().map(|first| &first.event) {
            if started.parent.is_none() {
                *starts.entry(started.tags.clone()).or_default() += 1;
            }
        } else {
            panic!("{key}: does not begin with its start");
        }
    }
    for key in acknowledged {
        assert!(
            page.runs.iter().any(|(run, ..)| *run == key.run),
            "{key}: an acknowledged run is gone"
        );
    }
    assert!(
        starts.values().all(|n| *n == 1),
        "a client's key made more than one run: {starts:?}"
    );
}

/// Everything has had its time: replicas that fail and die in the middle remove whole trees only, and all of them.
async fn let_go(cluster: &Cluster) {
    let store = &cluster.store;
    let tenant = tenant();
    let family = async |root: &RunId| {
        let mut runs = vec![root.clone()];
        let mut seen = 0;
        while let Some(parent) = runs.get(seen).cloned() {
            seen += 1;
            let children = store
                .children(&tenant, &[parent], None, 1_000)
                .await
                .expect("reads");
            runs.extend(children.into_iter().map(|child| child.run));
        }
        runs
    };
    let page = store
        .list_runs(&tenant, &RunFilter::default(), None, 10_000)
        .await
        .expect("lists");
    let mut families = Vec::new();
    for (run, summary, _) in &page.runs {
        if summary.parent.is_none() {
            families.push(family(run).await);
        }
    }
    assert_eq!(families.iter().map(Vec::len).sum::<usize>(), page.runs.len());

    cluster.fate.is_cruel.store(true, Ordering::Relaxed);
    cluster.clock.skip(KEPT_FOR);
    for step in 0.. {
        let mut left = 0;
        for family in &families {
            let mut seen = 0;
            for run in family {
                let key = RunKey::new(tenant.clone(), run.clone());
                let loaded = store.load(&key).await.expect("no half of a log can be seen");
                seen += usize::from(loaded.is_some());
            }
            assert!(
                seen == 0 || seen == family.len(),
                "half of a tree is gone: {family:?}"
            );
            left += seen;
        }
        if left == 0 && store.next_tenant(None).await.expect("reads").is_none() {
            break;
        }
        assert!(step < 4_000, "{left} runs stay");
        cluster.fate.is_cruel.store(step < 2_000, Ordering::Relaxed);
        if cluster.fate.strikes(2) {
            cluster.crash_one().await;
        }
        tokio::time::sleep(Duration::from_millis(cluster.fate.below(300))).await; // sleep: virtual time
    }
    assert!(store.begun_removals(1).await.expect("reads").is_empty());
    cluster.fate.is_cruel.store(false, Ordering::Relaxed);
}

/// Children may still be ending when their parent has; they must, without anybody's help.
async fn settled(engine: &Engine, key: &RunKey) -> View {
    for _ in 0..600 {
        let view = engine.view(key).await.expect("reads").expect("exists");
        if view.run.status.is_terminal() {
            return view;
        }
        tokio::time::sleep(Duration::from_millis(500)).await; // sleep: virtual time
    }
    panic!("{key}: stuck");
}

fn workflows() -> Vec<Value> {
    let gate = |id: &str| node(id, "core.approvalGate", json!({}));
    let sub = |id: &str, child: &str| node(id, "core.subWorkflow", json!({ "workflowId": child }));
    let mut effect = workflow(
        "effect",
        &[node("call", "core.conformance.side-effect", json!({}))],
        &[],
    );
    effect["settings"] = json!({ "maxRetries": 3, "retryDelayMs": 100 });
    let mut looped = workflow(
        "loop",
        &[
            gate("gate"),
            node("revise", "core.delay", json!({ "delayMs": 200 })),
        ],
        &[("gate", "revise"), ("revise", "gate")],
    );
    looped["edges"][0]["triggerRule"] = json!("any_failed");
    vec![
        workflow(
            "pure",
            &[
                node("a", "core.noop", json!({})),
                node("b", "core.noop", json!({})),
            ],
            &[("a", "b")],
        ),
        workflow(
            "delay",
            &[node("wait", "core.delay", json!({ "delayMs": 1_500 }))],
            &[],
        ),
        workflow("gate", &[gate("gate")], &[]),
        effect,
        workflow("parent", &[sub("child", "gate")], &[]),
        looped,
        workflow(
            "both",
            &[
                gate("gate"),
                node("call", "core.conformance.side-effect", json!({})),
            ],
            &[],
        ),
        workflow(
            "family",
            &[sub("one", "parent"), sub("two", "effect"), sub("three", "delay")],
            &[],
        ),
    ]
}
