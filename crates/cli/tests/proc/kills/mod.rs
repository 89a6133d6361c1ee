//! Calls between two hosts that are killed at random moments, each alone and both together, under a load of calls with
//! questions, answers and cancels. Afterwards:
//!
//! - each calling run made one task at most, and exactly one unless it was cancelled;
//! - each task has ended, and that of a cancelled run is cancelled, if its agent's acceptance was recorded before;
//! - each acknowledged answer reached its question, once, and no other answer did.
//!
//! `WOPR_CHAOS_SEED` sets the seed and `WOPR_CHAOS_KILLS` the number of kills; both are printed. The seed decides who
//! is killed and what clients do, but not how threads interleave.

mod check;
mod client;

use std::{
    env, fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{self, timeout},
};

use self::client::{Client, Story};
pub(crate) use self::client::{long, order};
use crate::{
    calling::{register, workflow},
    cluster::{Cluster, Programs},
    host::{Host, KEY, place, sqlite},
};

/// Default number of kills.
const KILLS: u32 = 32;
/// Clients, each with one run at a time.
const CLIENTS: u64 = 8;
/// 32 bytes.
const MASTER_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// Time limit of a test: a constant, plus an amount per kill.
const HANGS_AFTER: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(15));
/// Time limit for clients to finish what they have begun.
const LIMIT: Duration = Duration::from_secs(120);

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// The two hosts, stopped, over stores of their own.
struct Pair {
    caller: Host,
    callee: Host,
}

impl Pair {
    fn new(folder: &Path, stores: [String; 2]) -> Self {
        let [of_caller, of_callee] = stores;
        let host = |name: &str, store: String| {
            // Each in a folder of its own, and by the same key.
            let folder = folder.join(name);
            fs::create_dir_all(&folder).unwrap();
            Host::over(&folder, name, store)
                .staying()
                .variable("WOPR_MASTER_KEY", MASTER_KEY)
                .variable("WOPR_EFFECT_LEASE", "1s")
        };
        Self {
            caller: host("caller", of_caller),
            callee: host("callee", of_callee),
        }
    }

    /// Starts both, and registers their workflows.
    async fn start(mut self) -> Self {
        let callee = self.callee.start().await;
        for definition in [order(), long(), client::short()] {
            register(callee, definition).await;
        }
        self.caller = self
            .caller
            .variable("WOPR_A2A_PEER", format!("http://{callee}"))
            .variable("WOPR_A2A_PEER_TOKEN", KEY)
            .variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8");
        let caller = self.caller.start().await;
        for skill in Story::SKILLS {
            let mut definition = workflow(skill, &json!({ "skill": skill }));
            // The callee may be away for longer than four attempts take.
            definition["settings"] = json!({ "maxRetries": 100, "retryDelayMs": 100 });
            register(caller, definition).await;
        }
        self
    }

    /// Kills one host or both, and starts them again a little later. Returns the number of kills.
    async fn suffer(&mut self, random: &mut StdRng) -> u32 {
        let which = random.random_range(0..5);
        let (caller, callee) = (which != 1 && which != 3, which != 0 && which != 2);
        let up = Duration::from_millis(random.random_range(20..900));
        let down = Duration::from_millis(random.random_range(0..400));
        println!("after {up:?}, away for {down:?}: caller {caller}, callee {callee}");
        // sleep: fault schedule
        time::sleep(up).await;
        if caller {
            self.caller.kill().await;
        }
        if callee {
            self.callee.kill().await;
        }
        // sleep: fault schedule
        time::sleep(down).await;
        if caller {
            self.caller.start().await;
        }
        if callee {
            self.callee.start().await;
        }
        u32::from(caller) + u32::from(callee)
    }

    fn said(&self) -> String {
        format!(
            "caller:\n{}\n\ncallee:\n{}",
            self.caller.said(),
            self.callee.said()
        )
    }
}

async fn kill_them(name: &str, folder: &Path, stores: [String; 2]) {
    let seed = number("WOPR_CHAOS_SEED").unwrap_or_else(rand::random);
    let kills = number("WOPR_CHAOS_KILLS").map_or(KILLS, |kills| u32::try_from(kills).unwrap());
    println!("{name}: WOPR_CHAOS_SEED={seed} WOPR_CHAOS_KILLS={kills}");
    let (least, per_kill) = HANGS_AFTER;
    let ended = timeout(least + per_kill * kills, live(name, folder, stores, seed, kills)).await;
    assert!(ended.is_ok(), "{name} hangs with WOPR_CHAOS_SEED={seed}");
}

async fn live(name: &str, folder: &Path, stores: [String; 2], seed: u64, kills: u32) {
    let began = Instant::now();
    let mut random = StdRng::seed_from_u64(seed);
    let mut pair = Pair::new(folder, stores).start().await;
    let (caller, callee) = (pair.caller.listens(), pair.callee.listens());
    let stop = Arc::new(AtomicBool::new(false));
    let lost = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let client = Client::new(
            caller,
            number,
            random.random(),
            Arc::clone(&stop),
            Arc::clone(&lost),
        );
        clients.spawn(client.run());
    }
    let mut killed = 0;
    while killed < kills {
        killed += pair.suffer(&mut random).await;
    }
    let lived = began.elapsed();
    stop.store(true, Relaxed);
    let Ok(stories) = timeout(LIMIT, clients.join_all()).await else {
        panic!("{name}: clients do not finish what they began\n{}", pair.said());
    };
    let stories: Vec<Story> = stories.into_iter().flatten().collect();
    let broken = check::check(caller, callee, &stories).await;
    assert!(
        broken.is_empty(),
        "{name}: WOPR_CHAOS_SEED={seed} WOPR_CHAOS_KILLS={kills}:\n{}\n\n{}",
        broken.join("\n"),
        pair.said()
    );
    println!(
        "{name}: {killed} kills in {:.1} s, checked in {:.1} s: {}, {} requests lost",
        lived.as_secs_f64(),
        (began.elapsed() - lived).as_secs_f64(),
        Story::count(&stories),
        lost.load(Relaxed)
    );
    for host in [&mut pair.caller, &mut pair.callee] {
        let status = host.terminate().await;
        assert!(status.success(), "stopped in order: {status}\n{}", host.said());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_between_hosts_on_sqlite_survive_kills_of_both() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let stores = ["caller", "callee"].map(|name| sqlite(&folder.path().join(name)));
    kill_them("sqlite", folder.path(), stores).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_between_hosts_on_postgres_survive_kills_of_both() {
    // A server for each: on one, both would share a database.
    let (Some(of_caller), Some(of_callee)) = (Programs::find(), Programs::find()) else {
        println!("skipped: no PostgreSQL is installed");
        return;
    };
    let folder = tempfile::tempdir_in(place()).unwrap();
    let start = |programs| tokio::task::block_in_place(|| Cluster::start(programs)).unwrap();
    let clusters = [start(of_caller), start(of_callee)];
    let stores = clusters.each_ref().map(Cluster::url);
    kill_them("postgres", folder.path(), stores).await;
}

/// Reads the JSON of a text that must be JSON.
fn parsed(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|_| String::from_utf8_lossy(bytes).into())
}
