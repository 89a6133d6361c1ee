//! A client's side of a connection to a host that may be gone at any moment.
//!
//! An exchange is answered or lost. While the host is meant to be up, a lost one breaks a promise, and so does an
//! answer that blames the host (5xx).

use std::{net::SocketAddr, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::{sync::watch, time::timeout};
use wopr_wire::sse::{Decoder, Event};

use super::ledger::Ledger;
use crate::{
    host::KEY,
    http::{Connection, write_request},
};

/// No exchange takes this long; a poll waits for ten seconds at most.
const LIMIT: Duration = Duration::from_secs(60);
/// The most bytes of one event.
const EVENT_LIMIT: usize = 1 << 20;

/// Whether the host is meant to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Server {
    /// It may, but need not.
    Down,
    /// It must.
    Up {
        /// Counts its starts.
        life: u32,
        /// Where it listens.
        address: SocketAddr,
    },
}

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

/// One client's way to the host.
#[derive(Debug)]
pub(super) struct Caller {
    server: watch::Receiver<Server>,
    ledger: Arc<Ledger>,
    connection: Option<(u32, Connection)>,
}

impl Caller {
    pub(super) fn new(server: watch::Receiver<Server>, ledger: Arc<Ledger>) -> Self {
        Self {
            server,
            ledger,
            connection: None,
        }
    }

    /// A second way to the host for the same client.
    pub(super) fn another(&self) -> Self {
        Self::new(self.server.clone(), Arc::clone(&self.ledger))
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(super) fn shared_ledger(&self) -> Arc<Ledger> {
        Arc::clone(&self.ledger)
    }

    /// The life the host is in, once it is up; with a life, once that one is over.
    pub(super) async fn life_after(&mut self, over: Option<u32>) -> u32 {
        let is_up = |server: &Server| matches!(server, Server::Up { life, .. } if over.is_none_or(|over| *life > over));
        let server = *self
            .server
            .wait_for(is_up)
            .await
            .expect("the schedule outlives its clients");
        match server {
            Server::Up { life, .. } => life,
            Server::Down => unreachable!("it was waited for"),
        }
    }

    /// Asks until there is an answer. What is asked must bear repetition.
    pub(super) async fn ask(&mut self, request: &Request) -> Answer {
        let mut is_first = true;
        loop {
            match self.call(request).await {
                Ok(answer) if answer.status != 503 => return Answer { is_first, ..answer },
                Ok(_) | Err(Lost) => is_first = false,
            }
        }
    }

    /// Asks once. Waits for the host if it is down.
    pub(super) async fn call(&mut self, request: &Request) -> Result<Answer, Lost> {
        let (life, mut connection) = self.connect(request).await?;
        let exchange = async {
            let status = connection.send(&request.write()).await?;
            let mut body = Vec::new();
            connection.body(&mut body).await?;
            std::io::Result::Ok((status, body))
        };
        let (status, body) = match timeout(LIMIT, exchange).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(self.lost(life, request, &error.to_string())),
            Err(_) => return Err(self.lost(life, request, "no answer in time")),
        };
        if connection.is_reusable() {
            self.connection = Some((life, connection));
        }
        self.judge(life, request, status, &body);
        let body = serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into());
        Ok(Answer {
            status,
            body,
            is_first: true,
        })
    }

    /// Follows a stream until it ends, handing over each event; `Lost` if it broke.
    pub(super) async fn follow(
        &mut self,
        request: &Request,
        mut take: impl FnMut(Event),
    ) -> Result<u16, Lost> {
        let (life, mut connection) = self.connect(request).await?;
        let mut decoder = Decoder::new(EVENT_LIMIT);
        let stream = async {
            let status = connection.send(&request.write()).await?;
            let mut bytes = Vec::new();
            while connection.chunk(&mut bytes).await? {
                let mut events = Vec::new();
                decoder.feed(&bytes, &mut events).map_err(std::io::Error::other)?;
                bytes.clear();
                events.into_iter().for_each(&mut take);
            }
            std::io::Result::Ok(status)
        };
        match timeout(LIMIT, stream).await {
            Ok(Ok(status)) => {
                self.judge(life, request, status, b"");
                Ok(status)
            }
            Ok(Err(error)) => Err(self.lost(life, request, &error.to_string())),
            Err(_) => Err(self.lost(life, request, "the stream does not end in time")),
        }
    }

    async fn connect(&mut self, request: &Request) -> Result<(u32, Connection), Lost> {
        let is_up = |server: &Server| matches!(server, Server::Up { .. });
        let server = *self
            .server
            .wait_for(is_up)
            .await
            .expect("the schedule outlives its clients");
        let Server::Up { life, address } = server else {
            unreachable!("it was waited for");
        };
        match self.connection.take() {
            Some((made_in, connection)) if made_in == life => Ok((life, connection)),
            _ => match Connection::open(address).await {
                Ok(connection) => Ok((life, connection)),
                Err(error) => Err(self.lost(life, request, &error.to_string())),
            },
        }
    }

    /// Whether the life in which an exchange began still goes on.
    fn is_up(&self, in_life: u32) -> bool {
        matches!(*self.server.borrow(), Server::Up { life, .. } if life == in_life)
    }

    fn lost(&self, life: u32, request: &Request, why: &str) -> Lost {
        if self.is_up(life) {
            let Request { method, path, .. } = request;
            self.ledger
                .violated(format!("{method} {path} was lost while the host was up: {why}"));
        }
        Lost
    }

    fn judge(&self, life: u32, request: &Request, status: u16, body: &[u8]) {
        if status > 503 || (500..503).contains(&status) || (status == 503 && self.is_up(life)) {
            let Request { method, path, .. } = request;
            let body = String::from_utf8_lossy(body);
            self.ledger
                .violated(format!("{method} {path} was answered by {status}: {body}"));
        }
    }
}
