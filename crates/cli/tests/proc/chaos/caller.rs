//! A client's side of connections to replicas, any of which may be gone at any moment.
//!
//! An exchange is answered or lost. While a replica is meant to be up, a lost one breaks a promise, and so does an
//! answer that blames the host (5xx). A client may lose its timeout: then whether the request takes effect, and when,
//! is not known, and it is repeated somewhere else.

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

/// No exchange takes this long; a poll waits for ten seconds at most.
const LIMIT: Duration = Duration::from_secs(60);
/// A connection idle for longer is not used again: its host may close it at any moment.
const IDLE: Duration = Duration::from_secs(5);
/// The longest pause before a host that could not answer is asked again.
const RETRY_AFTER: Duration = Duration::from_millis(300);
/// The most bytes of one event.
const EVENT_LIMIT: usize = 1 << 20;

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Value,
    /// Whether this was the first time the question was asked: a repeated one may find its own earlier effect.
    pub(super) is_first: bool,
}

impl Answer {
    /// A text of the body.
    pub(super) fn text(&self, pointer: &str) -> Option<&str> {
        self.body.pointer(pointer)?.as_str()
    }
}

/// The exchange was lost; whether it took effect is not known.
#[derive(Debug)]
pub(super) struct Lost;

/// How following a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    /// The stream ended.
    Ended {
        status: u16,
        /// It may have ended before its time.
        is_excused: bool,
    },
    /// The connection ended, as it may have.
    Lost,
    /// The client had seen enough.
    Left,
}

/// A question.
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

    /// What is sent along, if anything is.
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

/// One exchange, and which process it is with.
#[derive(Debug, Clone, Copy)]
struct Exchange<'r> {
    life: u32,
    began: Instant,
    request: &'r Request,
}

/// One client's way to the replicas.
#[derive(Debug)]
pub(super) struct Caller {
    sky: watch::Receiver<Sky>,
    ledger: Arc<Ledger>,
    random: StdRng,
    is_patient: bool,
    connection: Option<Kept>,
}

/// A connection for the next exchange.
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

    /// From now on it does not wait for every answer.
    pub(super) fn impatient(self) -> Self {
        Self {
            is_patient: false,
            ..self
        }
    }

    /// A second way to the replicas for the same client.
    pub(super) fn another(&mut self) -> Self {
        Self {
            is_patient: self.is_patient,
            ..Self::new(self.sky.clone(), Arc::clone(&self.ledger), self.random.random())
        }
    }

    pub(super) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// The lives that go on: those a question can be asked.
    pub(super) fn lives(&self) -> Vec<u32> {
        self.sky.borrow().lives()
    }

    /// Asks until there is an answer. What is asked must bear repetition.
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

    /// Waits after a host could not answer.
    pub(super) async fn pause(&mut self) {
        // sleep: as the host asks to, though not for as long
        time::sleep(self.random.random_range(Duration::ZERO..RETRY_AFTER)).await;
    }

    /// Asks one of the replicas once. Waits for one if all are down.
    pub(super) async fn call(&mut self, request: &Request) -> Result<Answer, Lost> {
        let life = self.choose().await;
        self.call_one(life, request).await
    }

    /// Asks this replica once.
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

    /// Follows a stream until it ends or the client has seen enough, handing over each event.
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
            // A stream that cannot go on is broken off, so that nobody takes it for the end.
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

    /// One of the lives that go on, often the same again.
    async fn choose(&mut self) -> u32 {
        let is_up = |replica: &Replica| matches!(replica, Replica::Up { .. });
        let sky = self.sky.wait_for(|sky| sky.replicas.iter().any(is_up)).await;
        let lives = sky.expect("the fleet outlives its clients").lives();
        match &self.connection {
            Some(Kept { life, .. }) if lives.contains(life) && self.random.random_bool(0.5) => *life,
            Some(_) | None => lives[self.random.random_range(0..lives.len())],
        }
    }

    /// How long an answer is waited for, if not as long as it takes.
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

    /// Whether the life an exchange is with still goes on.
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
