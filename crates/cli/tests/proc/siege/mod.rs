//! A hostile hour: every known attack on one host at once, beside a tenant that does its ordinary work.
//!
//! ```text
//!   host <── tenant: runs at a steady rate, each answered, p50 and p99 reported
//!     ^ <─── strangers: silent sockets, half heads, streams without bodies, shut windows, endless bodies of gRPC
//!     '<──── mallory, another tenant: weighty bodies, weighty and slow peers, fork bombs, hostile definitions
//! ```
//!
//! First the strangers come alone, then mallory joins them. The tenant sees no error, and the memory of the host stays
//! within its bound of each part. `WOPR_SIEGE_SECONDS` says for how long; `cargo xtask siege` runs it at length. Every
//! attack counts what it did, so that none is a mere name.

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

/// The strangers of the ordinary tests, for how long they stay, and the memory they may take in MiB: their budget, and
/// what so many connections take.
const FEW_CONNECTIONS: u64 = 400;
const FEW_SECONDS: Duration = Duration::from_secs(6);
const STRANGERS_MIB: u64 = 160;
/// What must hold in a part of a siege.
#[derive(Debug)]
struct Bars {
    /// The host's memory, in MiB. Frames and futures of an unoptimised build are larger.
    memory_mib: u64,
    /// The tenant's 99th percentile, where the attackers, the host and its database share the processors with the tenant.
    /// An unoptimised build takes many times as long over hostile input, so there it is only reported.
    slow: Duration,
}

/// While strangers attack alone.
const STRANGERS: Bars = if cfg!(debug_assertions) {
    Bars {
        memory_mib: 768,
        slow: Duration::MAX,
    }
} else {
    Bars {
        memory_mib: 512,
        slow: Duration::from_secs(1),
    }
};
/// While a tenant attacks too, whose bodies, runs, effects and decisions have memory of their own.
const EVERYBODY: Bars = if cfg!(debug_assertions) {
    Bars {
        memory_mib: 1_024,
        slow: Duration::MAX,
    }
} else {
    Bars {
        memory_mib: 768,
        slow: Duration::from_secs(5),
    }
};
/// How often the host's memory is looked at.
const SAMPLE: Duration = Duration::from_millis(50);
/// Descriptors of this process that no attack takes.
const SPARE_FILES: u64 = 512;
/// Connections of strangers, if there are descriptors for them.
const CONNECTIONS: u64 = 4_000;
/// The key of the hostile tenant.
const MALLORY: &str = "key-of-mallory-0123456789abcdef";
/// 32 bytes; a host on PostgreSQL needs it.
const MASTER_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// How often something was done.
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

/// The attacks under way, each with its name and what it did so far.
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

    /// Begins an attack so many times over, each with its number.
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

/// For how long a host is besieged, if somebody says so.
fn seconds() -> Option<Duration> {
    let text = env::var("WOPR_SIEGE_SECONDS").ok()?;
    let seconds = text.parse();
    let seconds = seconds.unwrap_or_else(|error| panic!("WOPR_SIEGE_SECONDS={text}: {error}"));
    Some(Duration::from_secs(seconds))
}

/// Connections of strangers for which this process has descriptors.
fn connections() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // What is not allowed is done without.
    let _ = setrlimit(Resource::Nofile, raised);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    files.saturating_sub(SPARE_FILES).min(CONNECTIONS)
}

/// The resident memory of a process now, in KiB.
fn resident(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The most memory a process has, looked at again and again.
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

/// An attack that is refused for a slip in its document attacks nothing.
#[tokio::test]
async fn hostile_definitions_reach_what_they_attack() {
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
async fn strangers_alone_take_little_memory() {
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

/// Runs the tenant while the attacks go on, and holds its latencies and the host's memory against the bars.
async fn besieged(title: &str, host: &mut Host, address: SocketAddr, lasts: Duration, bars: Bars) {
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
    assert!(seen.percentile(99) <= bars.slow, "{seen}");
    assert!(peak < bars.memory_mib, "{peak} MiB");
}
