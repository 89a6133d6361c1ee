//! The processes of a world, and the supervisor that restarts them.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use wopr_core::{HostBounds, NodeTypes};
use wopr_engine::{Engine, Options, WorkerOptions};

use super::{
    aging::KEPT_FOR,
    executor::Fickle,
    fate::Fate,
    postman::{self, Postman, Taken},
    process::{Process, WallClock},
    store::Server,
    workflows,
};

/// How long a process may take to stop before it is killed.
const GRACE: Duration = Duration::from_secs(15);
/// Node executions of a run: more than one decision may have, and few enough to be fast.
const NODE_EXECUTIONS: u32 = 200;

#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    pub(crate) fate: Arc<Fate>,
    pub(crate) server: Arc<Server>,
    replicas: Arc<Mutex<Vec<Replica>>>,
    edition: Arc<Mutex<u64>>,
    registered: Arc<Mutex<Option<u64>>>,
    deaths: mpsc::UnboundedSender<u64>,
    pub(crate) options: Options,
    pub(crate) taken: Arc<Taken>,
}

#[derive(Debug)]
struct Replica {
    process: Arc<Process>,
    engine: Engine,
}

/// Counts of the disasters in a world.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Toll {
    pub(crate) n_deaths: u64,
    pub(crate) n_stops: u64,
}

impl Cluster {
    /// Starts this number of processes.
    pub(crate) async fn start(fate: &Arc<Fate>, n_replicas: u64) -> (Self, mpsc::UnboundedReceiver<u64>) {
        let (deaths, died) = mpsc::unbounded_channel();
        let cluster = Self {
            fate: Arc::clone(fate),
            server: Server::new(Arc::clone(fate), n_replicas == 1),
            replicas: Arc::default(),
            edition: Arc::default(),
            registered: Arc::default(),
            deaths,
            options: Options {
                bounds: HostBounds {
                    node_executions: NODE_EXECUTIONS,
                    log_bytes: 64 << 20,
                    run_duration_ms: None,
                },
                node_types: NodeTypes { conformance: true },
                max_effects: 1 + usize::try_from(fate.below(5)).expect("small"),
                lease: Duration::from_millis(2_000 + fate.below(6_000)),
                poll: Duration::from_millis(200 + fate.below(1_000)),
                retention: Some(KEPT_FOR),
                workers: WorkerOptions {
                    lease: Duration::from_millis(1_000 + fate.below(4_000)),
                    max_lost_leases: 1 + u32::try_from(fate.below(3)).expect("small"),
                    ..WorkerOptions::default()
                },
                push: postman::options(),
                ..Options::default()
            },
            taken: Arc::default(),
        };
        for _ in 0..n_replicas {
            cluster.start_one().await;
        }
        (cluster, died)
    }

    /// Starts a process, retrying until it succeeds.
    async fn start_one(&self) {
        while !self.try_start().await {
            self.fate.linger(300).await;
        }
    }

    async fn try_start(&self) -> bool {
        let number = self.server.next_epoch();
        let process = Process::new(number, Arc::clone(&self.fate), self.deaths.clone());
        let connection = self.server.connect(&process);
        let executor = Fickle {
            server: Arc::clone(&self.server),
            process: Arc::clone(&process),
            fate: Arc::clone(&self.fate),
        };
        let postman = Postman {
            taken: Arc::clone(&self.taken),
            process: Arc::clone(&process),
            fate: Arc::clone(&self.fate),
        };
        let options = Options {
            notifier: Some(Arc::new(postman)),
            seed: Some(self.fate.below(u64::MAX)),
            ..self.options.clone()
        };
        let clock = Arc::new(WallClock(Arc::clone(&process)));
        let starting = async {
            let engine = Engine::start(connection, Arc::new(executor), clock, options)
                .await
                .ok()?;
            let edition = *self.edition.lock();
            let is_new = self.registered.lock().replace(edition) != Some(edition);
            // The workflows of its directory. Usually another process has registered them, and they were just
            // read from the store.
            if is_new || self.fate.once_in(4) {
                for document in workflows::all(edition) {
                    while engine.register(None, document.clone()).await.is_err() {
                        self.fate.linger(100).await;
                    }
                }
            }
            self.fate.tell(|| format!("p{number} is up, edition {edition}"));
            Some(engine)
        };
        let started = tokio::select! {
            biased;
            () = process.ended() => None,
            engine = starting => engine,
        };
        match started {
            Some(engine) if !process.is_dead() => {
                self.replicas.lock().push(Replica { process, engine });
                true
            }
            Some(_) | None => {
                process.retire();
                false
            }
        }
    }

    /// Restarts processes that die, until the world ends.
    pub(crate) async fn keep_up(&self, mut died: mpsc::UnboundedReceiver<u64>, toll: &Mutex<Toll>) {
        while let Some(number) = died.recv().await {
            toll.lock().n_deaths += 1;
            let was_up = {
                let mut replicas = self.replicas.lock();
                let n_before = replicas.len();
                replicas.retain(|replica| replica.process.number != number);
                replicas.len() < n_before
            };
            if !was_up {
                // It died while starting or stopping; that code starts another.
                continue;
            }
            self.fate.linger(2_500).await;
            self.start_one().await;
        }
    }

    /// Waits for a process that accepts connections. It may be frozen.
    pub(crate) async fn any(&self) -> (u64, Engine) {
        loop {
            {
                let replicas = self.replicas.lock();
                let up: Vec<_> = replicas
                    .iter()
                    .filter(|replica| !replica.process.is_dead())
                    .collect();
                if !up.is_empty() {
                    let replica = self.fate.one_of(&up);
                    return (replica.process.number, replica.engine.clone());
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await; // sleep: virtual time
        }
    }

    /// Kills a process, whatever it is doing.
    pub(crate) fn kill_one(&self) {
        let replicas = self.replicas.lock();
        if !replicas.is_empty() {
            let process = &self.fate.one_of(&replicas).process;
            self.fate.tell(|| format!("p{} is killed", process.number));
            process.die();
        }
    }

    /// Stops a process cleanly and starts its successor, which may bring another edition of the workflows.
    pub(crate) async fn replace_one(&self, toll: &Mutex<Toll>) {
        let replica = {
            let mut replicas = self.replicas.lock();
            if replicas.is_empty() {
                return;
            }
            let index = self.fate.below(replicas.len() as u64);
            replicas.swap_remove(usize::try_from(index).expect("small"))
        };
        let number = replica.process.number;
        self.fate.tell(|| format!("p{number} is stopped in order"));
        // Not a death: the supervisor need not know, because the successor is started here.
        if tokio::time::timeout(GRACE, replica.engine.stop()).await.is_err() {
            self.fate.tell(|| format!("p{number} did not stop in time"));
        }
        toll.lock().n_stops += 1;
        if self.fate.once_in(2) {
            *self.edition.lock() += 1;
        }
        replica.process.retire();
        self.start_one().await;
    }

    /// Registers the late workflow, at one process only.
    pub(crate) async fn register_late(&self) {
        loop {
            let (number, engine) = self.any().await;
            let told = tokio::time::timeout(Duration::from_secs(2), engine.register(None, workflows::late()));
            if matches!(told.await, Ok(Ok(_))) {
                return self.fate.tell(|| format!("p{number} knows the late workflow"));
            }
        }
    }

    /// Thaws all frozen processes and corrects their clocks.
    pub(crate) fn mend(&self) {
        for replica in self.replicas.lock().iter() {
            replica.process.thaw();
            replica.process.mend_clock();
        }
    }
}
