//! A client of several replicas, any of which may fail at any time.
//!
//! A request is either answered or lost. While a replica should be up, a lost request is a violation, and so
//! is a 5xx response. A client may time out deliberately: it then does not know if or when the request took
//! effect, and repeats it on another replica.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{self, timeout},
};
use wopr_wire::sse::{Decoder, Event};

use super::{
    fleet::{Replica, Sky},
    ledger::Ledger,
};
use crate::{
    host::KEY,
    http::{Connection, write_request},
};

/// No exchange takes longer; a poll waits for at most ten seconds.
const LIMIT: Duration = Duration::from_secs(60);
/// A connection that was idle for longer is not reused, because the host may close it at any moment.
const IDLE: Duration = Duration::from_secs(5);
/// Maximum pause before a host that returned 503 is called again.
const RETRY_AFTER: Duration = Duration::from_millis(300);
/// Maximum size of an event in bytes.
const EVENT_LIMIT: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Value,
    /// The request was not repeated. A repeated one may find its own earlier effect.
    pub(super) is_first: bool,
}

impl Answer {
    pub(super) fn text(&self, pointer: &str) -> Option<&str> {
        self.body.pointer(pointer)?.as_str()
    }
}

/// No response arrived; the request may have taken effect.
#[derive(Debug)]
pub(super) struct Lost;

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    Ended {
        status: u16,
        /// The stream may have ended early.
        is_excused: bool,
    },
    /// The connection was lost for an expected reason.
    Lost,
    /// The client stopped reading.
    Left,
}

#[derive(Debug, Clone)]
pub(super) struct Request {
    method: &'static str,
    path: String,
    fields: String,
    body: Option<Value>,
}

impl Request {
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self {
            method: "GET",
            path: path.into(),
            fields: format!("authorization: Bearer {KEY}\r\naccept: application/json\r\n"),
            body: None,
        }
    }

    pub(super) fn post(path: impl Into<String>, body: Value) -> Self {
        Self {
            method: "POST",
            body: Some(body),
            ..Self::get(path)
        }
    }

    pub(super) fn events(path: impl Into<String>) -> Self {
        Self {
            fields: format!("authorization: Bearer {KEY}\r\naccept: text/event-stream\r\n"),
            ..Self::get(path)
        }
    }

    pub(super) fn with(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.fields.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    pub(super) fn body_mut(&mut self) -> Option<&mut Value> {
        self.body.as_mut()
    }

    fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let body = self.body.as_ref().map(Value::to_string);
        write_request(
            &mut out,
            self.method,
            &self.path,
            &self.fields,
            body.as_deref().map(str::as_bytes),
        );
        out
    }
}

/// A request in flight, and the process it was sent to.
#[derive(Debug, Clone, Copy)]
struct Exchange<'r> {
    life: u32,
    began: Instant,
    request: &'r Request,
}

/// A client's connections to the replicas.
#[derive(Debug)]
pub(super) struct Caller {
    sky: watch::Receiver<Sky>,
    ledger: Arc<Ledger>,
    random: StdRng,
    is_patient: bool,
    connection: Option<Kept>,
}

/// A connection kept for the next request.
#[derive(Debug)]
struct Kept {
    life: u32,
    connection: Connection,
    since: Instant,
}

impl Caller {
    pub(super) fn new(sky: watch::Receiver<Sky>, ledger: Arc<Ledger>, seed: u64) -> Self {
        Self {
            sky,
            ledger,
            random: StdRng::seed_from_u64(seed),
            is_patient: true,
            connection: None,
        }
    }

    /// Makes the client time out at random.
    pub(super) fn impatient(self) -> Self {
        Self {
            is_patient: false,
            ..self
        }
    }

    /// Another set of connections for the same client.
    pub(super) fn another(&mut self) -> Self {
        Self {
            is_patient: self.is_patient,
            ..Self::new(self.sky.clone(), Arc::clone(&self.ledger), self.random.random())
        }
    }

    pub(super) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// The processes that are up.
    pub(super) fn lives(&self) -> Vec<u32> {
        self.sky.borrow().lives()
    }

    /// Repeats a request until it is answered. The request must be idempotent.
    pub(super) async fn ask(&mut self, request: &Request) -> Answer {
        let mut is_first = true;
        loop {
            match self.call(request).await {
                Ok(answer) if answer.status != 503 => return Answer { is_first, ..answer },
                Ok(_) => self.pause().await,
                Err(Lost) => {}
            }
            is_first = false;
        }
    }

    /// Waits after a 503 response.
    pub(super) async fn pause(&mut self) {
        // sleep: as the host asks to, though not for as long
        time::sleep(self.random.random_range(Duration::ZERO..RETRY_AFTER)).await;
    }

    /// Sends a request to some replica, once. Waits if all are down.
    pub(super) async fn call(&mut self, request: &Request) -> Result<Answer, Lost> {
        let life = self.choose().await;
        self.call_one(life, request).await
    }

    /// Sends a request to this replica, once.
    pub(super) async fn call_one(&mut self, life: u32, request: &Request) -> Result<Answer, Lost> {
        let began = Instant::now();
        let exchange = Exchange { life, began, request };
        let limit = self.timeout();
        let mut connection = self.connect(exchange).await?;
        let exchanging = async {
            let status = connection.send(&request.write()).await?;
            let mut body = Vec::new();
            connection.body(&mut body).await?;
            std::io::Result::Ok((status, body))
        };
        let (status, body) = match timeout(limit.unwrap_or(LIMIT), exchanging).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(self.lost(exchange, &error.to_string())),
            Err(_) if limit.is_some() => {
                count(&self.ledger.exchanges.abandoned);
                return Err(Lost);
            }
            Err(_) => return Err(self.lost(exchange, "no answer in time")),
        };
        if connection.is_reusable() {
            self.connection = Some(Kept {
                life,
                connection,
                since: Instant::now(),
            });
        }
        self.judge(exchange, status, &body);
        let body = serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into());
        Ok(Answer {
            status,
            body,
            is_first: true,
        })
    }

    /// Reads a stream until it ends or the client has seen enough. Passes on each event.
    pub(super) async fn follow(
        &mut self,
        request: &Request,
        limit: Duration,
        mut take: impl FnMut(Event),
    ) -> Followed {
        let life = self.choose().await;
        let exchange = Exchange {
            life,
            began: Instant::now(),
            request,
        };
        let Ok(mut connection) = self.connect(exchange).await else {
            return Followed::Lost;
        };
        let mut decoder = Decoder::new(EVENT_LIMIT);
        let mut is_answered = false;
        let stream = async {
            let status = connection.send(&request.write()).await?;
            is_answered = true;
            let mut bytes = Vec::new();
            while connection.chunk(&mut bytes).await? {
                let mut events = Vec::new();
                decoder.feed(&bytes, &mut events).map_err(std::io::Error::other)?;
                bytes.clear();
                events.into_iter().for_each(&mut take);
            }
            std::io::Result::Ok(status)
        };
        match timeout(limit, stream).await {
            Ok(Ok(status)) => {
                self.judge(exchange, status, b"");
                let is_excused = !self.is_up(life) || self.sky.borrow().excuses(exchange.began);
                Followed::Ended { status, is_excused }
            }
            // A stream that cannot continue is aborted, so that clients do not take it for complete.
            Ok(Err(_)) if is_answered && self.sky.borrow().excuses(exchange.began) => {
                count(&self.ledger.exchanges.lost);
                Followed::Lost
            }
            Ok(Err(error)) => {
                self.lost(exchange, &error.to_string());
                Followed::Lost
            }
            Err(_) => Followed::Left,
        }
    }

    /// Chooses one of the running processes, with a bias toward the previous one.
    async fn choose(&mut self) -> u32 {
        let is_up = |replica: &Replica| matches!(replica, Replica::Up { .. });
        let sky = self.sky.wait_for(|sky| sky.replicas.iter().any(is_up)).await;
        let lives = sky.expect("the fleet outlives its clients").lives();
        match &self.connection {
            Some(Kept { life, .. }) if lives.contains(life) && self.random.random_bool(0.5) => *life,
            Some(_) | None => lives[self.random.random_range(0..lives.len())],
        }
    }

    /// Draws a timeout for impatient clients; `None` means no timeout.
    fn timeout(&mut self) -> Option<Duration> {
        let is_short = !self.is_patient && self.random.random_bool(0.2);
        is_short.then(|| Duration::from_millis(self.random.random_range(100..2_000)))
    }

    async fn connect(&mut self, exchange: Exchange<'_>) -> Result<Connection, Lost> {
        match self.connection.take() {
            Some(kept) if kept.life == exchange.life && kept.since.elapsed() < IDLE => {
                return Ok(kept.connection);
            }
            Some(_) | None => {}
        }
        let Some(address) = self.sky.borrow().address(exchange.life) else {
            return Err(Lost);
        };
        let opened = Connection::open(address).await;
        opened.map_err(|error| self.lost(exchange, &error.to_string()))
    }

    /// Returns `true` if the process of a request is still up.
    fn is_up(&self, life: u32) -> bool {
        self.sky.borrow().address(life).is_some()
    }

    fn lost(&self, exchange: Exchange<'_>, why: &str) -> Lost {
        count(&self.ledger.exchanges.lost);
        if self.is_up(exchange.life) {
            let Request { method, path, .. } = exchange.request;
            self.ledger
                .violated(format!("{method} {path} was lost while the host was up: {why}"));
        }
        Lost
    }

    fn judge(&self, exchange: Exchange<'_>, status: u16, body: &[u8]) {
        let exchanges = &self.ledger.exchanges;
        count(match status {
            503 => &exchanges.refused,
            _ => &exchanges.answered,
        });
        let is_excused = !self.is_up(exchange.life) || self.sky.borrow().excuses(exchange.began);
        if status > 503 || (500..503).contains(&status) || (status == 503 && !is_excused) {
            let Request { method, path, .. } = exchange.request;
            let body = String::from_utf8_lossy(body);
            self.ledger
                .violated(format!("{method} {path} was answered by {status}: {body}"));
        }
    }
}

fn count(exchanges: &AtomicU64) {
    exchanges.fetch_add(1, Relaxed);
}
