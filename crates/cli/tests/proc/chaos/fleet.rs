//! The processes under test and their database: executes a plan, and publishes what clients may expect.
//!
//! A replica must answer from the time it reports ready until it is told to stop. While the database is down,
//! and shortly after, any replica may return 503. A process must never exit by itself, unless the database
//! was down when it started.

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

/// Replicas may return 503 for this long after the database is back.
const RECOVERY: Duration = Duration::from_secs(1);
/// Time limit for all replicas to become ready.
const LIMIT: Duration = Duration::from_secs(60);
const SIGTERM: i32 = 15;
/// Pause before a process that could not reach the database is restarted.
const PAUSE: Duration = Duration::from_millis(100);

/// What clients may expect at a given moment.
#[derive(Debug, Clone)]
pub(super) struct Sky {
    pub(super) replicas: Vec<Replica>,
    weather: Weather,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replica {
    /// May answer, but need not.
    Down,
    /// Must answer.
    Up {
        /// Unique per process, across replicas.
        life: u32,
        address: SocketAddr,
    },
}

/// Availability of the database: determines if replicas may return 503.
#[derive(Debug, Clone, Copy)]
enum Weather {
    Rough,
    /// They may if the request was sent before `since`.
    Calm {
        since: Instant,
    },
}

impl Sky {
    /// The address of a process that is up.
    pub(super) fn address(&self, of_life: u32) -> Option<SocketAddr> {
        self.replicas.iter().find_map(|replica| match replica {
            Replica::Up { life, address } if *life == of_life => Some(*address),
            Replica::Up { .. } | Replica::Down => None,
        })
    }

    /// The processes that are up.
    pub(super) fn lives(&self) -> Vec<u32> {
        let life = |replica: &Replica| match replica {
            Replica::Up { life, .. } => Some(*life),
            Replica::Down => None,
        };
        self.replicas.iter().filter_map(life).collect()
    }

    /// Returns `true` if a request sent at this time may be answered with 503.
    pub(super) fn excuses(&self, asked: Instant) -> bool {
        match self.weather {
            Weather::Rough => true,
            Weather::Calm { since } => asked < since,
        }
    }
}

pub(super) struct Fleet {
    hosts: Vec<Member>,
    database: Option<Database>,
    clocks: Arc<Clocks>,
    sky: watch::Sender<Sky>,
    /// Started processes, by replica and life, until they are ready or gone.
    births: JoinSet<(usize, u32, Result<SocketAddr, String>)>,
    lives: u32,
    ledger: Arc<Ledger>,
    since: Instant,
}

struct Member {
    host: Host,
    life: u32,
    is_frozen: bool,
    /// The database was down at some time since the process was started. A frozen process may report a failed
    /// connection attempt much later.
    met_outage: bool,
}

impl Fleet {
    /// Creates stopped replicas over one SQLite store in the folder, or over a database.
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

    /// Starts all replicas and waits until they are ready.
    pub(super) async fn start(&mut self) {
        for replica in 0..self.hosts.len() {
            self.perform(Action::Start(replica)).await;
        }
        self.all_ready().await;
    }

    /// Executes and prints a plan. Afterwards everything works again, except that clocks are set later than
    /// ever before, so that no timer has to be waited for.
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

    /// Shuts all processes down gracefully, then starts them and waits until they are ready.
    pub(super) async fn restart(&mut self) {
        self.end().await;
        self.start().await;
    }

    /// Shuts all processes down gracefully.
    pub(super) async fn end(&mut self) {
        for replica in 0..self.hosts.len() {
            self.perform(Action::Terminate(replica)).await;
        }
    }

    /// The end of every host's log.
    pub(super) fn said(&self) -> String {
        let said = self.hosts.iter().enumerate();
        said.map(|(replica, member)| format!("replica {replica} said:\n{}\n", member.host.said()))
            .collect()
    }

    /// The database's log, if it has its own server.
    pub(super) fn database_said(&self) -> Option<String> {
        self.database.as_ref().map(Database::said)
    }

    /// Waits, and processes starts meanwhile.
    async fn wait(&mut self, pause: Duration) {
        let end = time::Instant::now() + pause;
        loop {
            tokio::select! {
                // Without a database, processes exit one after another; they must not delay the end of the
                // wait.
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
                    // A process that has just started may not handle SIGTERM yet.
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
            // The process was stopped meanwhile.
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

    /// Returns the replica's process, which must not have exited by itself.
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

    /// Announces to clients that a replica goes down.
    fn leave(&mut self, replica: usize) {
        self.sky.send_modify(|sky| sky.replicas[replica] = Replica::Down);
        let member = &mut self.hosts[replica];
        member.life = 0;
        member.is_frozen = false;
    }
}
