//! The siege: all known attacks on one host at once, next to a tenant with an ordinary workload.
//!
//! ```text
//!   host <── tenant: runs at a steady rate, each answered, p50 and p99 reported
//!     ^ <─── strangers: silent sockets, half heads, streams without bodies, shut windows, endless bodies of gRPC
//!     '<──── mallory, another tenant: weighty bodies, weighty and slow peers, fork bombs, hostile definitions
//! ```
//!
//! First the strangers attack alone, then Mallory joins. The tenant must see no errors, and the host's memory
//! must stay within the limit of each phase. `WOPR_SIEGE_SECONDS` sets the duration; `cargo xtask siege` runs
//! the test at length. Every attack counts its attempts, to prove that it took place.

mod definitions;
mod fair;
mod mallory;
mod strangers;
mod tenant;

use std::{
    env, fs,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{task::JoinSet, time};

use self::tenant::{Seen, Tenant};
use crate::{
    cluster::{Cluster, Programs},
    host::{Host, KEY, place},
};

/// The short siege of the ordinary tests: number of connections, duration, and the memory in MiB for the
/// strangers' budget and the connections themselves.
const FEW_CONNECTIONS: u64 = 400;
const FEW_SECONDS: Duration = Duration::from_secs(6);
const STRANGERS_MIB: u64 = 160;
/// How often latencies are looked at before they count as too long: other work of the machine may have been in the
/// way.
const LOOKS: u32 = 3;
/// The limits of one phase. They are for an optimized build, as `cargo xtask siege` makes.
#[derive(Debug)]
struct Bars {
    /// The host's memory in MiB.
    memory_mib: u64,
    /// The tenant's 99th percentile, while attackers, host and database share the processors.
    slow: Duration,
}

/// While only strangers attack.
const STRANGERS: Bars = Bars {
    memory_mib: 512,
    slow: Duration::from_secs(1),
};
/// While a tenant attacks too, whose bodies, runs, effects and decisions have their own memory limits.
const EVERYBODY: Bars = Bars {
    memory_mib: 768,
    slow: Duration::from_secs(5),
};
/// Interval between two samples of the host's memory.
const SAMPLE: Duration = Duration::from_millis(50);
/// File descriptors of this process that attacks must not use.
const SPARE_FILES: u64 = 512;
/// Number of strangers' connections, if there are enough file descriptors.
const CONNECTIONS: u64 = 4_000;
const MALLORY: &str = "key-of-mallory-0123456789abcdef";
/// 32 bytes; required by a host on PostgreSQL.
const MASTER_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

#[derive(Debug, Clone, Default)]
struct Count(Arc<AtomicU64>);

impl Count {
    fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The running attacks, each with its name and count.
#[derive(Debug)]
struct Attacks {
    address: SocketAddr,
    tasks: JoinSet<()>,
    counts: Vec<(&'static str, Count)>,
}

impl Attacks {
    fn new(address: SocketAddr) -> Self {
        Self {
            address,
            tasks: JoinSet::new(),
            counts: Vec::new(),
        }
    }

    /// Starts several instances of an attack, numbered from 0.
    fn begin<F>(&mut self, name: &'static str, times: u64, attack: impl Fn(SocketAddr, u64, Count) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let count = Count::default();
        for n in 0..times {
            self.tasks.spawn(attack(self.address, n, count.clone()));
        }
        self.counts.push((name, count));
    }

    fn did_something(&self) {
        for (attack, count) in &self.counts {
            assert!(count.get() > 0, "{attack} did nothing");
        }
    }
}

/// The duration from the environment, if set.
fn seconds() -> Option<Duration> {
    let text = env::var("WOPR_SIEGE_SECONDS").ok()?;
    let seconds = text.parse();
    let seconds = seconds.unwrap_or_else(|error| panic!("WOPR_SIEGE_SECONDS={text}: {error}"));
    Some(Duration::from_secs(seconds))
}

/// The number of strangers' connections that file descriptors permit.
fn connections() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // If the limit cannot be raised, fewer connections are used.
    let _ = setrlimit(Resource::Nofile, raised);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    files.saturating_sub(SPARE_FILES).min(CONNECTIONS)
}

/// The current resident memory of a process in KiB.
pub(crate) fn resident(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Samples a process's memory and records the peak.
async fn watch(pid: u32, peak: Count) {
    loop {
        if let Some(kib) = resident(pid) {
            peak.0.fetch_max(kib, Relaxed);
        }
        // sleep: a sample
        time::sleep(SAMPLE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_on_sqlite_serves_its_tenant() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let store = crate::host::sqlite(folder.path());
    siege("sqlite", Host::over(folder.path(), "host", store)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_on_postgres_serves_its_tenant() {
    let Some(programs) = Programs::find() else {
        println!("skipped: no PostgreSQL is installed");
        return;
    };
    let folder = tempfile::tempdir_in(place()).unwrap();
    let cluster = tokio::task::block_in_place(|| Cluster::start(programs)).unwrap();
    let host = Host::over(folder.path(), "host", cluster.url());
    siege("postgres", host.variable("WOPR_MASTER_KEY", MASTER_KEY)).await;
}

/// Ensures that attacks are not refused for a mistake in their documents.
#[tokio::test]
async fn hostile_definitions_reach_their_target() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let store = crate::host::sqlite(folder.path());
    let mut host = Host::over(folder.path(), "host", store).variable("WOPR_LOG", "error");
    let address = host.start().await;
    let mut seen = Vec::new();
    for definition in definitions::hostile() {
        let (status, answer) = mallory::register(address, KEY, &definition).await;
        let id = definition["id"].as_str().unwrap().to_owned();
        assert!(!answer.contains("unknown field"), "{id}: {answer}");
        seen.push((id, status));
    }
    let refused: Vec<_> = seen
        .iter()
        .filter(|(_, status)| *status == 400)
        .map(|(id, _)| &**id)
        .collect();
    assert_eq!(
        refused,
        [
            "path",
            "parens",
            "lists",
            "not",
            "minus",
            "chain",
            "doublings",
            "patterns"
        ],
        "{seen:?}"
    );
    host.terminate().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_take_little_memory() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let store = crate::host::sqlite(folder.path());
    let mut host = Host::over(folder.path(), "host", store).variable("WOPR_LOG", "error");
    let address = host.start().await;
    let pid = host.pid().expect("the host runs");
    let before = resident(pid).unwrap_or(0) >> 10;
    let peak = Count::default();
    let mut attacks = Attacks::new(address);
    attacks.tasks.spawn(watch(pid, peak.clone()));
    strangers::begin(&mut attacks, FEW_CONNECTIONS);
    let tenant = Tenant::begin(address, KEY);
    // sleep: the siege
    time::sleep(FEW_SECONDS).await;
    let seen = tenant.end().await;
    attacks.tasks.shutdown().await;
    let peak = peak.get() >> 10;
    println!("{FEW_CONNECTIONS} strangers: {seen}, {before} MiB before, at most {peak} MiB");
    attacks.did_something();
    assert_eq!(seen.errors, [""; 0], "{}", host.said());
    assert!(peak < before + STRANGERS_MIB, "{before} MiB before, {peak} MiB");
    host.terminate().await;
}

async fn siege(name: &str, host: Host) {
    let Some(lasts) = seconds() else {
        println!("skipped: WOPR_SIEGE_SECONDS does not say for how long; `cargo xtask siege` does");
        return;
    };
    let n_connections = connections();
    let config = place().join(format!("siege-{name}-{}.toml", std::process::id()));
    let keys = format!(
        "[[auth.keys]]\nid = \"mallory\"\nsecret = \"{MALLORY}\"\ntenant = \"mallory\"\nscopes = [\"*\"]\n"
    );
    fs::write(&config, keys).unwrap();
    let mut host = host
        .variable("WOPR_CONFIG", config.display().to_string())
        .variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8")
        .variable("WOPR_LOG", "error");
    let address = host.start().await;
    let pid = host.pid().expect("the host runs");

    let rest = Tenant::begin(address, KEY);
    // sleep: what the tenant sees at rest
    time::sleep(lasts / 10).await;
    let rest = rest.end().await;
    println!(
        "{name}, at rest: {rest}, {} MiB",
        resident(pid).unwrap_or(0) >> 10
    );

    let mut attacks = Attacks::new(address);
    strangers::begin(&mut attacks, n_connections);
    let title = format!("{name}, strangers with {n_connections} connections");
    besieged(&title, &mut host, address, lasts / 2, STRANGERS).await;
    let peer = mallory::begin(&mut attacks).await;
    let title = format!("{name}, mallory as well");
    besieged(&title, &mut host, address, lasts, EVERYBODY).await;
    attacks.tasks.shutdown().await;
    for (attack, count) in &attacks.counts {
        println!("  {attack}: {}", count.get());
    }
    attacks.did_something();
    drop(peer);
    host.terminate().await;
    let _ = fs::remove_file(config);
}

/// Runs the tenant during the attacks, and checks latencies and memory against the limits.
async fn besieged(title: &str, host: &mut Host, address: SocketAddr, lasts: Duration, bars: Bars) {
    for look in 1..=LOOKS {
        let mut watching = JoinSet::new();
        let peak = Count::default();
        watching.spawn(watch(host.pid().expect("the host runs"), peak.clone()));
        let tenant = Tenant::begin(address, KEY);
        // sleep: the siege
        time::sleep(lasts).await;
        let seen = tenant.end().await;
        let peak = peak.get() >> 10;
        println!("{title}, {lasts:?}: {seen}, at most {peak} MiB");
        if let Some(status) = host.ended() {
            panic!("the host ended: {status}\n{}", host.said());
        }
        assert_eq!(seen.errors, [""; 0], "{}", host.said());
        assert!(peak < bars.memory_mib, "{peak} MiB");
        if seen.percentile(99) <= bars.slow {
            return;
        }
        assert!(look < LOOKS, "{LOOKS} times slower than {:?}: {seen}", bars.slow);
    }
}
