//! The processes under test and their database: carries a plan out, and tells clients what they may expect.
//!
//! A replica is meant to answer from when it said that it is ready until it is told to end. While the database is
//! away, and a little longer, any replica may answer that it cannot (503). Nothing excuses a process that ends by
//! itself, except that it found no database when it started.

use std::{
    net::SocketAddr,
    os::unix::process::ExitStatusExt as _,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{self, timeout},
};

use super::{
    clocks::Clocks,
    database::Database,
    ledger::Ledger,
    plan::{Action, FARTHEST, Step},
    scene::Folder,
};
use crate::host::{Host, sqlite};

/// How long after the database is back a replica may still say that it cannot answer.
const RECOVERY: Duration = Duration::from_secs(1);
/// All replicas are ready this long after the last of them was started.
const LIMIT: Duration = Duration::from_secs(60);
/// The number of the signal that asks a process to end.
const SIGTERM: i32 = 15;
/// Before a process that found no database is started again.
const PAUSE: Duration = Duration::from_millis(100);

/// What clients may expect.
#[derive(Debug, Clone)]
pub(super) struct Sky {
    pub(super) replicas: Vec<Replica>,
    weather: Weather,
}

/// Whether a replica is meant to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replica {
    /// It may, but need not.
    Down,
    /// It must.
    Up {
        /// Tells this process from all others, of any replica.
        life: u32,
        /// Where it listens.
        address: SocketAddr,
    },
}

/// Whether replicas may say that they cannot answer.
#[derive(Debug, Clone, Copy)]
enum Weather {
    Rough,
    /// They may if they were asked before.
    Calm {
        since: Instant,
    },
}

impl Sky {
    /// The address of a life that goes on.
    pub(super) fn address(&self, of_life: u32) -> Option<SocketAddr> {
        self.replicas.iter().find_map(|replica| match replica {
            Replica::Up { life, address } if *life == of_life => Some(*address),
            Replica::Up { .. } | Replica::Down => None,
        })
    }

    /// The lives that go on.
    pub(super) fn lives(&self) -> Vec<u32> {
        let life = |replica: &Replica| match replica {
            Replica::Up { life, .. } => Some(*life),
            Replica::Down => None,
        };
        self.replicas.iter().filter_map(life).collect()
    }

    /// Whether a replica asked at this moment may have said that it cannot answer.
    pub(super) fn excuses(&self, asked: Instant) -> bool {
        match self.weather {
            Weather::Rough => true,
            Weather::Calm { since } => asked < since,
        }
    }
}

/// The processes under test.
pub(super) struct Fleet {
    hosts: Vec<Member>,
    database: Option<Database>,
    clocks: Arc<Clocks>,
    sky: watch::Sender<Sky>,
    /// Processes that were started, by replica and life, until they are ready or gone.
    births: JoinSet<(usize, u32, Result<SocketAddr, String>)>,
    lives: u32,
    ledger: Arc<Ledger>,
    since: Instant,
}

/// A replica as it is.
struct Member {
    host: Host,
    life: u32,
    is_frozen: bool,
    /// Whether the database was away at any time since it was spawned; it may have been asked for while the process
    /// stood still, and that is told only now.
    met_outage: bool,
}

impl Fleet {
    /// Replicas over one store in this folder, or over a database; none is started yet.
    pub(super) fn new(
        folder: &Folder,
        replicas: usize,
        database: Option<Database>,
        clocks: Arc<Clocks>,
        ledger: Arc<Ledger>,
        variables: &[(&'static str, &str)],
    ) -> Self {
        let store = match &database {
            Some(database) => database.url(),
            None => sqlite(folder.path()),
        };
        let member = |replica: usize| {
            let name = format!("replica-{replica}");
            let mut host = Host::over(folder.path(), &name, store.clone());
            for (name, value) in variables {
                host = host.variable(name, *value);
            }
            for (name, value) in clocks.variables(replica) {
                host = host.variable(name, value);
            }
            Member {
                host,
                life: 0,
                is_frozen: false,
                met_outage: false,
            }
        };
        let hosts = (0..replicas).map(member).collect();
        let sky = Sky {
            replicas: vec![Replica::Down; replicas],
            weather: Weather::Calm {
                since: Instant::now(),
            },
        };
        Self {
            hosts,
            database,
            clocks,
            sky: watch::Sender::new(sky),
            births: JoinSet::new(),
            lives: 0,
            ledger,
            since: Instant::now(),
        }
    }

    pub(super) fn sky(&self) -> watch::Receiver<Sky> {
        self.sky.subscribe()
    }

    /// Starts every replica and waits until all are ready.
    pub(super) async fn start(&mut self) {
        for replica in 0..self.hosts.len() {
            self.perform(Action::Start(replica)).await;
        }
        self.all_ready().await;
    }

    /// Carries a plan out, saying what it does. Afterwards all is well again, apart from clocks: they are later than
    /// they ever were, so that what waits for a time need not wait any longer.
    pub(super) async fn live_through(&mut self, plan: &[Step]) {
        for step in plan {
            self.wait(step.after).await;
            println!("{:>7.3} {step}", self.since.elapsed().as_secs_f64());
            self.perform(step.action).await;
        }
        self.all_ready().await;
        if self.clocks.can_jump() {
            for replica in 0..self.hosts.len() {
                self.clocks.set(replica, FARTHEST + 60);
            }
        }
    }

    /// Ends every process in order, and starts and waits for all again.
    pub(super) async fn restart(&mut self) {
        self.end().await;
        self.start().await;
    }

    /// Ends every process in order.
    pub(super) async fn end(&mut self) {
        for replica in 0..self.hosts.len() {
            self.perform(Action::Terminate(replica)).await;
        }
    }

    /// What the end of every log says.
    pub(super) fn said(&self) -> String {
        let said = self.hosts.iter().enumerate();
        said.map(|(replica, member)| format!("replica {replica} said:\n{}\n", member.host.said()))
            .collect()
    }

    /// What the database said, if there is one of its own.
    pub(super) fn database_said(&self) -> Option<String> {
        self.database.as_ref().map(Database::said)
    }

    /// Lets time pass.
    async fn wait(&mut self, pause: Duration) {
        let end = time::Instant::now() + pause;
        loop {
            tokio::select! {
                // Without a database processes are born to die, one after the other.
                biased;
                // sleep: fault schedule
                () = time::sleep_until(end) => return,
                Some(born) = self.births.join_next() => {
                    let (replica, life, born) = born.unwrap();
                    self.born(replica, life, born).await;
                }
            }
        }
    }

    async fn all_ready(&mut self) {
        let births = async {
            while let Some(born) = self.births.join_next().await {
                let (replica, life, born) = born.unwrap();
                self.born(replica, life, born).await;
            }
        };
        if timeout(LIMIT, births).await.is_err() {
            self.ledger.violated("not every replica becomes ready");
        }
    }

    async fn perform(&mut self, action: Action) {
        match action {
            Action::Start(replica) => self.spawn(replica),
            Action::Kill(replica) => {
                let found = self.find(replica, "before it was killed");
                self.leave(replica);
                if let Some(pid) = found {
                    self.hosts[replica].host.kill().await;
                    self.clocks.forget(pid);
                }
            }
            Action::Terminate(replica) => {
                let found = self.find(replica, "before it was told to");
                let (is_ready, is_rough) = (self.is_ready(replica), self.is_rough());
                self.leave(replica);
                if let Some(pid) = found {
                    let status = self.hosts[replica].host.terminate().await;
                    self.clocks.forget(pid);
                    // One that has hardly begun does not listen yet.
                    let is_excused = !is_ready && (is_rough || status.signal() == Some(SIGTERM));
                    self.ledger.hold(status.success() || is_excused, || {
                        format!("replica {replica} ended with {status}")
                    });
                }
            }
            Action::Freeze(replica) => {
                self.hosts[replica].is_frozen = true;
                if self.find(replica, "before it was frozen").is_some() {
                    self.hosts[replica].host.signal("STOP").await;
                }
            }
            Action::Thaw(replica) if self.hosts[replica].is_frozen => {
                if self.find(replica, "while it was frozen").is_some() {
                    self.hosts[replica].host.signal("CONT").await;
                }
                self.hosts[replica].is_frozen = false;
            }
            Action::Thaw(_) => {}
            Action::Clock(replica, seconds) => self.clocks.set(replica, seconds),
            Action::DatabaseStop(stop) => {
                self.sky.send_modify(|sky| sky.weather = Weather::Rough);
                for member in &mut self.hosts {
                    member.met_outage = true;
                }
                let database = self.database.as_mut().expect("only then it is planned");
                database.stop(stop);
            }
            Action::DatabaseStart => {
                let database = self.database.as_mut().expect("only then it is planned");
                database.restart();
                let since = Instant::now() + RECOVERY;
                self.sky.send_modify(|sky| sky.weather = Weather::Calm { since });
            }
        }
    }

    fn spawn(&mut self, replica: usize) {
        self.lives += 1;
        let life = self.lives;
        let is_rough = self.is_rough();
        let member = &mut self.hosts[replica];
        member.life = life;
        member.met_outage = is_rough;
        let birth = member.host.spawn();
        self.births
            .spawn(async move { (replica, life, birth.ready().await) });
    }

    async fn born(&mut self, replica: usize, life: u32, born: Result<SocketAddr, String>) {
        let member = &mut self.hosts[replica];
        if member.life != life {
            // It was ended meanwhile.
            return;
        }
        match born {
            Ok(address) => {
                let up = Replica::Up { life, address };
                self.sky.send_modify(|sky| sky.replicas[replica] = up);
            }
            Err(why) => {
                // sleep: as whatever looks after a service would; and its process ends after it closed its output
                time::sleep(PAUSE).await;
                if let Some(pid) = member.host.pid() {
                    let ended = member.host.ended();
                    self.ledger.hold(member.met_outage && ended.is_some(), || {
                        format!("replica {replica} did not start ({ended:?}): {why}")
                    });
                    if ended.is_none() {
                        member.host.kill().await;
                    }
                    self.clocks.forget(pid);
                }
                self.spawn(replica);
            }
        }
    }

    /// The process of a replica, which must not have ended by itself.
    fn find(&mut self, replica: usize, when: &str) -> Option<u32> {
        let is_excused = self.hosts[replica].met_outage && !self.is_ready(replica);
        let host = &mut self.hosts[replica].host;
        let pid = host.pid()?;
        let status = host.ended();
        if let Some(status) = status {
            self.clocks.forget(pid);
            self.ledger.hold(is_excused, || {
                format!("replica {replica} ended by itself {when}: {status}")
            });
        }
        status.is_none().then_some(pid)
    }

    fn is_ready(&self, replica: usize) -> bool {
        matches!(self.sky.borrow().replicas[replica], Replica::Up { .. })
    }

    fn is_rough(&self) -> bool {
        self.sky.borrow().excuses(Instant::now())
    }

    /// Before a replica goes, clients are told.
    fn leave(&mut self, replica: usize) {
        self.sky.send_modify(|sky| sky.replicas[replica] = Replica::Down);
        let member = &mut self.hosts[replica];
        member.life = 0;
        member.is_frozen = false;
    }
}
