//! The host is killed at random moments under mixed load. Afterwards, asked only through its API, it must know
//! everything it acknowledged, and be able to finish all of it.
//!
//! ```text
//!   schedule: start, wait, kill ──> host <── clients (load) ──> ledger: what they were told
//!                                    |                             |
//!                                    +──> peer: effects it saw ────+──> check, after the last start
//! ```
//!
//! The seed decides the schedule and what clients do, though not how threads interleave. `WOPR_CRASH_SEED` sets it
//! and `WOPR_CRASH_KILLS` the number of kills; both are printed.

mod caller;
mod check;
mod ledger;
mod load;
mod peer;

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{sync::watch, task::JoinSet, time};

use self::{
    caller::{Caller, Server},
    ledger::Ledger,
    peer::Peer,
};
use crate::host::Host;

/// How often the host is stopped in one way or another, where nobody says.
const KILLS: u32 = 12;

/// How many new stores are interrupted in the making.
const FIRST_STARTS: usize = 30;

/// One stop of the host.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// SIGKILL, so long after it became ready.
    Kill(Duration),
    /// SIGKILL, so long after it was started, ready or not.
    KillStart(Duration),
    /// SIGTERM, so long after it became ready. What is in flight may be answered by 503 then, nothing may be lost.
    Terminate(Duration),
}

impl Fault {
    fn draw(random: &mut StdRng) -> Self {
        match random.random_range(0..10) {
            0..=6 => Self::Kill(Duration::from_millis(random.random_range(20..900))),
            7 | 8 => Self::KillStart(Duration::from_millis(random.random_range(0..150))),
            _ => Self::Terminate(Duration::from_millis(random.random_range(20..500))),
        }
    }
}

/// The seed, if somebody set one.
fn seed() -> u64 {
    number("WOPR_CRASH_SEED").unwrap_or_else(rand::random)
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap())
}

#[tokio::test]
async fn a_host_killed_while_it_makes_its_store_starts_again() {
    let seed = seed();
    println!("WOPR_CRASH_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..FIRST_STARTS {
        let mut host = Host::new();
        let after = Duration::from_millis(random.random_range(0..40));
        println!("{:?}", Fault::KillStart(after));
        host.spawn();
        // sleep: fault schedule
        time::sleep(after).await;
        host.kill().await;
        host.start().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_was_acknowledged_survives_kills_and_can_be_finished() {
    let seed = seed();
    let kills = number("WOPR_CRASH_KILLS").map_or(KILLS, |kills| u32::try_from(kills).unwrap());
    println!("WOPR_CRASH_SEED={seed} WOPR_CRASH_KILLS={kills}");
    let mut random = StdRng::seed_from_u64(seed);

    let ledger = Arc::new(Ledger::default());
    let peer = Peer::start(random.random()).await;
    let mut host = Host::new().variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8");
    let (server, seen) = watch::channel(Server::Down);
    let mut clients = JoinSet::new();
    let stop = Arc::new(AtomicBool::new(false));
    for number in 0..load::CLIENTS {
        let caller = Caller::new(seen.clone(), Arc::clone(&ledger));
        let client = load::Client::new(number, random.random(), caller, peer.url(), Arc::clone(&stop));
        clients.spawn(client.run());
    }

    let mut life = 0;
    for _ in 0..kills {
        let fault = Fault::draw(&mut random);
        println!("{fault:?}");
        if let Fault::KillStart(after) = fault {
            host.spawn();
            // sleep: fault schedule
            time::sleep(after).await;
            host.kill().await;
            continue;
        }
        life += 1;
        let address = host.start().await;
        server.send_replace(Server::Up { life, address });
        match fault {
            Fault::Kill(after) => {
                // sleep: fault schedule
                time::sleep(after).await;
                server.send_replace(Server::Down);
                host.kill().await;
            }
            Fault::Terminate(after) => {
                // sleep: fault schedule
                time::sleep(after).await;
                server.send_replace(Server::Down);
                let status = host.terminate().await;
                assert!(status.success(), "stopped in order: {status}\n{}", host.said());
            }
            Fault::KillStart(_) => {}
        }
    }

    life += 1;
    let address = host.start().await;
    // Before clients learn of the last life: they finish what they began and begin nothing.
    stop.store(true, Relaxed);
    server.send_replace(Server::Up { life, address });
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    let caller = || Caller::new(seen.clone(), Arc::clone(&ledger));
    let account = check::check(caller, &ledger, &peer).await;
    println!("{account}");
    let violations = ledger.violations();
    assert!(
        violations.is_empty(),
        "{} violations, seed {seed}:\n{}\n\nthe host said:\n{}",
        violations.len(),
        violations[..violations.len().min(40)].join("\n"),
        host.said()
    );
    server.send_replace(Server::Down);
    let status = host.terminate().await;
    assert!(status.success(), "stopped in order: {status}\n{}", host.said());
}
