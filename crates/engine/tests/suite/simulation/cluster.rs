//! The processes of a world, and whoever starts them again.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use wopr_core::{HostBounds, NodeTypes};
use wopr_engine::{Engine, Options};

use super::{
    aging::KEPT_FOR,
    executor::Fickle,
    fate::Fate,
    postman::{self, Postman, Taken},
    process::{Process, WallClock},
    store::Server,
    workflows,
};

/// How long a process that was asked to stop may take, before it is killed.
const GRACE: Duration = Duration::from_secs(15);
/// Node executions of a run: more than a decision's bound has room for, few enough to be quick.
const NODE_EXECUTIONS: u32 = 200;

/// The processes of a world.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    pub(crate) fate: Arc<Fate>,
    pub(crate) server: Arc<Server>,
    replicas: Arc<Mutex<Vec<Replica>>>,
    edition: Arc<Mutex<u64>>,
    registered: Arc<Mutex<Option<u64>>>,
    deaths: mpsc::UnboundedSender<u64>,
    options: Options,
    pub(crate) taken: Arc<Taken>,
}

#[derive(Debug)]
struct Replica {
    process: Arc<Process>,
    engine: Engine,
}

/// What the disasters of a world came to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Toll {
    pub(crate) n_deaths: u64,
    pub(crate) n_stops: u64,
}

impl Cluster {
    /// So many processes, started.
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
                    run_duration_ms: None,
                },
                node_types: NodeTypes { conformance: true },
                max_effects: 1 + usize::try_from(fate.below(5)).expect("small"),
                lease: Duration::from_millis(2_000 + fate.below(6_000)),
                poll: Duration::from_millis(200 + fate.below(1_000)),
                retention: Some(KEPT_FOR),
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

    /// Starts a process, as often as it takes.
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
            // What its directory holds. Usually others have registered it, and it was read from the store just now.
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

    /// Starts again what dies, for as long as it is let.
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
                // It died while it started or was being stopped: whoever did that starts another.
                continue;
            }
            self.fate.linger(2_500).await;
            self.start_one().await;
        }
    }

    /// Some process that takes connections, as soon as there is one; it may stand still.
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

    /// Kills one, whatever it is at.
    pub(crate) fn kill_one(&self) {
        let replicas = self.replicas.lock();
        if !replicas.is_empty() {
            let process = &self.fate.one_of(&replicas).process;
            self.fate.tell(|| format!("p{} is killed", process.number));
            process.die();
        }
    }

    /// Stops one in order and starts its successor, which may bring another edition of the workflows.
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
        // Its end is no death: whoever keeps up the cluster need not hear of it, for the successor starts here.
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

    /// Registers the workflow that comes late, at one process only.
    pub(crate) async fn register_late(&self) {
        loop {
            let (number, engine) = self.any().await;
            let told = tokio::time::timeout(Duration::from_secs(2), engine.register(None, workflows::late()));
            if matches!(told.await, Ok(Ok(_))) {
                return self.fate.tell(|| format!("p{number} knows the late workflow"));
            }
        }
    }

    /// Lets everybody go on who stands still, with a clock that is right.
    pub(crate) fn mend(&self) {
        for replica in self.replicas.lock().iter() {
            replica.process.thaw();
            replica.process.mend_clock();
        }
    }
}
