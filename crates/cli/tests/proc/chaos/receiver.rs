//! The push receivers, on one port with one path each. They sometimes refuse, redirect, time out, or drop the
//! connection before or after recording the push, and are all down for a while. They record all pushes,
//! across all kills.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::watch,
    time::{self, timeout},
};

use super::{
    a2a::{self, Pushed},
    ledger::Ledger,
    observe::Frame,
};
use crate::server::{Request, Response, Server, header, respond};

/// The host's timeout for a push.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum downtime of the receivers.
const LONGEST_ABSENCE: Duration = Duration::from_secs(3);
/// Maximum number of consecutive failures per update: the host's backoff doubles, and the test waits for the
/// last update.
const MOST_REFUSALS: u32 = 3;

#[derive(Debug)]
pub(super) struct Receiver {
    server: Server,
    inbox: Arc<Inbox>,
}

#[derive(Debug)]
struct Inbox {
    ledger: Arc<Ledger>,
    /// All pushes are accepted.
    is_well: AtomicBool,
    mind: Mutex<Mind>,
    /// Number of recorded pushes.
    news: watch::Sender<usize>,
}

#[derive(Debug)]
struct Mind {
    random: StdRng,
    /// By receiver, in order of arrival.
    heard: BTreeMap<String, Vec<(String, Frame)>>,
    /// Number of failures of the update that a receiver is waiting for.
    refused: BTreeMap<(String, u64), u32>,
    away_until: Option<Instant>,
}

/// How a push is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whim {
    Takes,
    /// Responds with this status and does not record.
    Refuses(u16),
    /// Drops the connection and does not record.
    Misses,
    /// Records, then drops the connection.
    Forgets,
    /// Records, but responds after the timeout.
    Hangs,
}

impl Whim {
    const fn hears(self) -> bool {
        match self {
            Self::Takes | Self::Forgets | Self::Hangs => true,
            Self::Refuses(_) | Self::Misses => false,
        }
    }
}

impl Receiver {
    pub(super) async fn start(seed: u64, ledger: Arc<Ledger>) -> Self {
        let inbox = Arc::new(Inbox {
            ledger,
            is_well: AtomicBool::new(false),
            mind: Mutex::new(Mind {
                random: StdRng::seed_from_u64(seed),
                heard: BTreeMap::new(),
                refused: BTreeMap::new(),
                away_until: None,
            }),
            news: watch::Sender::new(0),
        });
        let shared = Arc::clone(&inbox);
        let server = Server::start(move |request| {
            let inbox = Arc::clone(&shared);
            async move { inbox.answer(&request).await }
        });
        Self {
            server: server.await,
            inbox,
        }
    }

    /// The base URL of the receivers, which is followed by a receiver's name.
    pub(super) fn url(&self) -> String {
        self.server.url()
    }

    /// Accepts all pushes from now on.
    pub(super) fn recover(&self) {
        self.inbox.is_well.store(true, Relaxed);
    }

    /// The pushes that a receiver recorded, in order of arrival, with their tasks.
    pub(super) fn heard(&self, name: &str) -> Vec<(String, Frame)> {
        let mind = self.inbox.mind.lock().unwrap();
        mind.heard.get(name).cloned().unwrap_or_default()
    }

    /// Number of recorded pushes.
    pub(super) fn n_heard(&self) -> usize {
        *self.inbox.news.borrow()
    }

    /// Waits for a condition as long as pushes keep arriving at this interval. Returns `true` if it was met.
    pub(super) async fn until(&self, at_least_every: Duration, is_so: impl Fn(&Self) -> bool) -> bool {
        let mut news = self.inbox.news.subscribe();
        while !is_so(self) {
            if timeout(at_least_every, news.changed()).await.is_err() {
                return is_so(self);
            }
        }
        true
    }
}

impl Inbox {
    async fn answer(&self, request: &Request) -> Option<Response> {
        let name = request.uri().path().trim_start_matches('/');
        let body = serde_json::from_slice(request.body()).unwrap_or_default();
        let Some(pushed) = a2a::pushed(&body) else {
            self.ledger.violated(format!("{name} was told {body}"));
            return Some(respond(204, ""));
        };
        for (field, expected) in [
            ("x-a2a-notification-token", name.to_owned()),
            ("a2a-notification-token", name.to_owned()),
            ("authorization", format!("Bearer {name}")),
        ] {
            let found = header(request, field);
            self.ledger.hold(found == Some(&expected), || {
                format!("{name} was told with {field}: {found:?}")
            });
        }
        let whim = self
            .mind
            .lock()
            .unwrap()
            .whim(name, pushed.sequence, self.is_well.load(Relaxed));
        if whim.hears() {
            self.hear(name, pushed);
        }
        match whim {
            Whim::Takes => Some(respond(204, "")),
            Whim::Refuses(status) => Some(respond(status, "")),
            Whim::Misses | Whim::Forgets => None,
            Whim::Hangs => {
                // sleep: fault schedule; longer than the host waits
                time::sleep(TIMEOUT * 2).await;
                Some(respond(204, ""))
            }
        }
    }

    fn hear(&self, name: &str, pushed: Pushed) {
        let mut mind = self.mind.lock().unwrap();
        let heard = mind.heard.entry(name.to_owned()).or_default();
        heard.push((pushed.task.clone(), Frame::of(pushed)));
        drop(mind);
        self.news.send_modify(|n_heard| *n_heard += 1);
    }
}

impl Mind {
    fn whim(&mut self, name: &str, sequence: u64, is_well: bool) -> Whim {
        let refused = self.refused.entry((name.to_owned(), sequence)).or_default();
        if is_well || *refused >= MOST_REFUSALS {
            *refused = 0;
            return Whim::Takes;
        }
        let now = Instant::now();
        let is_away = self.away_until.is_some_and(|until| now < until);
        let whim = match self.random.random_range(0..100) {
            _ if is_away => Whim::Misses,
            0..70 => Whim::Takes,
            70..76 => Whim::Refuses(500),
            76..79 => Whim::Refuses(503),
            79..81 => Whim::Refuses(404),
            81..84 => Whim::Refuses(307),
            84..89 => Whim::Misses,
            89..94 => Whim::Forgets,
            94..99 => Whim::Hangs,
            _ => {
                self.away_until = Some(now + self.random.random_range(Duration::ZERO..LONGEST_ABSENCE));
                Whim::Misses
            }
        };
        if whim != Whim::Takes {
            *refused += 1;
        }
        whim
    }
}
