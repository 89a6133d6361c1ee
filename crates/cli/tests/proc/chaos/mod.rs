//! Chaos tests: hosts are killed and frozen and their clocks changed at random moments under mixed load, and
//! their database is stopped. Afterwards the API must return everything that was acknowledged, and all runs
//! must be able to finish.
//!
//! ```text
//!   plan ──> fleet: start, kill, freeze, clocks, database <── clients (load) ──> ledger: what they were told
//!              |                                                 observers ──>      |
//!              +──> peer: effects it saw ───────────────────────────────────────────+──> check, when all is well
//!              +──> receiver: pushes it heard ──────────────────────────────────────+
//! ```
//!
//! The seed determines the plan and the clients' actions, but not the interleaving of threads.
//! `WOPR_CHAOS_SEED` sets it and `WOPR_CHAOS_KILLS` the number of kills; both are printed, along with the
//! plan as it is executed. `cargo xtask chaos` runs these tests at length. A failed test keeps its logs and
//! ledger and prints their path.

mod a2a;
mod caller;
mod check;
mod clocks;
mod database;
mod fleet;
mod ledger;
mod load;
mod observe;
mod peer;
mod plan;
mod receiver;
mod scene;

use std::{
    env,
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    task::JoinSet,
    time::{self, timeout},
};

use self::{
    caller::Caller,
    clocks::Clocks,
    database::Database,
    fleet::Fleet,
    ledger::Ledger,
    peer::Peer,
    plan::{LEASE, Scene},
    receiver::Receiver,
    scene::Folder,
};
use crate::host::Host;

/// Default number of kills.
const KILLS: u32 = 12;
/// Number of new stores whose creation is interrupted.
const FIRST_STARTS: usize = 30;
/// Number of replicas that share a database.
const REPLICAS: usize = 3;
/// Time limit of a test: a constant, plus an amount per kill.
const HANGS_AFTER: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(15));
/// Time limit for clients to finish after all faults are repaired.
const LIMIT: Duration = Duration::from_secs(120);
/// Maximum number of violations printed.
const SHOWN: usize = 40;
/// 32 bytes, shared by all replicas.
const MASTER_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn seed() -> u64 {
    number("WOPR_CHAOS_SEED").unwrap_or_else(rand::random)
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

#[tokio::test]
async fn host_killed_while_creating_its_store_starts_again() {
    let seed = seed();
    println!("WOPR_CHAOS_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..FIRST_STARTS {
        let mut host = Host::new();
        let after = Duration::from_millis(random.random_range(0..40));
        println!("killed after {after:?}");
        let _birth = host.spawn();
        // sleep: fault schedule
        time::sleep(after).await;
        host.kill().await;
        host.start().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_host_on_sqlite_keeps_every_promise() {
    chaos("sqlite", 1, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_on_postgres_keep_every_promise() {
    chaos("postgres", REPLICAS, Some(Database::start())).await;
}

async fn chaos(name: &str, replicas: usize, database: Option<Database>) {
    let seed = seed();
    let kills = number("WOPR_CHAOS_KILLS").map_or(KILLS, |kills| u32::try_from(kills).unwrap());
    println!("{name}: WOPR_CHAOS_SEED={seed} WOPR_CHAOS_KILLS={kills}");
    let (least, per_kill) = HANGS_AFTER;
    let ended = timeout(
        least + per_kill * kills,
        live(name, replicas, database, seed, kills),
    )
    .await;
    assert!(
        ended.is_ok(),
        "{name} hangs with WOPR_CHAOS_SEED={seed} WOPR_CHAOS_KILLS={kills}"
    );
}

async fn live(name: &str, replicas: usize, database: Option<Database>, seed: u64, kills: u32) {
    let began = Instant::now();
    let mut random = StdRng::seed_from_u64(seed);

    let folder = Folder::new(&format!("{name}-{seed}"));
    let clocks = Arc::new(Clocks::new(folder.path(), replicas));
    if !clocks.can_jump() {
        println!("NOTE: libfaketime is not here, so no clock jumps (Debian: apt-get install faketime)");
    }
    let scene = Scene {
        replicas,
        has_database: database.is_some(),
        has_clocks: clocks.can_jump(),
        kills,
    };
    let plan = plan::draw(&mut random, scene);
    let steps = plan.iter().fold(String::new(), |mut steps, step| {
        let _ = writeln!(steps, "{step}");
        steps
    });
    folder.keep("plan", &steps);

    let ledger = Arc::new(Ledger::default());
    let peer = Peer::start(random.random()).await;
    let receiver = Receiver::start(random.random(), Arc::clone(&ledger)).await;
    let lease = format!("{}ms", LEASE.as_millis());
    let push_timeout = format!("{}ms", receiver::TIMEOUT.as_millis());
    let variables = [
        ("WOPR_EGRESS_ALLOW", "127.0.0.0/8"),
        ("WOPR_MASTER_KEY", MASTER_KEY),
        ("WOPR_EFFECT_LEASE", &lease),
        ("WOPR_A2A_PUSH_TIMEOUT", &push_timeout),
    ];
    let mut fleet = Fleet::new(
        &folder,
        replicas,
        database,
        Arc::clone(&clocks),
        Arc::clone(&ledger),
        &variables,
    );
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for number in 0..load::CLIENTS {
        let caller = Caller::new(fleet.sky(), Arc::clone(&ledger), random.random());
        let world = load::World {
            peer: peer.url(),
            receiver: receiver.url(),
            clocks: Arc::clone(&clocks),
            stop: Arc::clone(&stop),
        };
        clients.spawn(load::Client::new(number, random.random(), caller, world).run());
    }

    fleet.start().await;
    fleet.live_through(&plan).await;
    let lived = began.elapsed();
    // Clients finish their current action and start nothing new.
    stop.store(true, Relaxed);
    receiver.recover();
    let finishing = async {
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
    };
    if timeout(LIMIT, finishing).await.is_err() {
        ledger.violated(format!("{} clients do not finish what they began", clients.len()));
        clients.shutdown().await;
    }
    let mut caller = Caller::new(fleet.sky(), Arc::clone(&ledger), random.random());
    let mut account = check::check(&mut caller, &peer).await;
    // A running process measures push backoff by its monotonic clock, so only a restart applies the jump of
    // the wall clock.
    fleet.restart().await;
    check::check_restarted(&mut caller, &receiver, &mut account).await;
    fleet.end().await;
    println!(
        "{name}: {kills} kills in {:.1} s, checked in {:.1} s: {}, {account}",
        lived.as_secs_f64(),
        (began.elapsed() - lived).as_secs_f64(),
        ledger.exchanges
    );

    let violations = ledger.violations();
    if violations.is_empty() {
        return folder.done();
    }
    folder.keep("ledger.json", &format!("{:#}", ledger.document()));
    if let Some(said) = fleet.database_said() {
        folder.keep("database.log", &said);
    }
    panic!(
        "{} violations with WOPR_CHAOS_SEED={seed} WOPR_CHAOS_KILLS={kills}:\n{}\n\n{}",
        violations.len(),
        violations[..violations.len().min(SHOWN)].join("\n"),
        fleet.said()
    );
}
