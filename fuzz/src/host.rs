//! An in-memory host with a frozen clock, and networks that fail or return fixed bytes.

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll, Waker},
};

use async_trait::async_trait;
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    runtime::{Builder, Runtime},
};
use wopr_connect::egress::{Channel, Dial, Network, Resolver};
use wopr_core::{TenantId, Timestamp};
use wopr_engine::Clock;
use wopr_server::{
    Config, Host,
    auth::Scopes,
    config::{Key, Secret, StoreUrl},
};
use wopr_testkit::Workflow;

use crate::signed;

/// A bearer secret with all scopes.
pub(crate) const KEY: &str = "fuzz-secret-0123456789abcdef";
/// The registered workflows.
pub(crate) const WORKFLOWS: [&str; 4] = ["pure", "gate", "delay", "ask"];
/// The issuer whose tokens the host accepts.
pub(crate) const ISSUER: &str = "https://issuer.test";
/// The audience of those tokens.
pub(crate) const AUDIENCE: &str = "wopr";
/// Addresses that may be called although they are not public.
pub(crate) const PEERS: &str = "10.0.0.0/8";
/// An address in [`PEERS`].
pub(crate) const PEER: &str = "10.0.0.1";
/// The current time, in milliseconds since 1970.
const NOW: i64 = 1_700_000_000_000;
/// The current time, in seconds since 1970.
pub(crate) const NOW_SECONDS: f64 = 1_700_000_000.0;
/// A host is replaced after this many requests, because stored runs would slow down later ones.
const REQUESTS: u32 = 2_000;

/// Created once for its root certificates: a network is made for each input, and none uses TLS.
static SYSTEM: LazyLock<Network> = LazyLock::new(Network::default);

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    static HOST: RefCell<Option<(Arc<Host>, u32)>> = const { RefCell::new(None) };
}

/// Runs a future with virtual time.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// Returns the host of this thread.
pub(crate) fn the_host() -> Arc<Host> {
    HOST.with_borrow_mut(|kept| {
        if let Some((host, left)) = kept
            && *left > 0
        {
            *left -= 1;
            return Arc::clone(host);
        }
        if let Some((old, _)) = kept.take() {
            block_on(old.close());
        }
        let host = block_on(open());
        *kept = Some((Arc::clone(&host), REQUESTS));
        host
    })
}

async fn open() -> Arc<Host> {
    let mut config = Config {
        store: StoreUrl::Memory,
        conformance: true,
        ..Config::default()
    };
    config.auth.keys = vec![Key {
        id: "fuzz".to_owned(),
        secret: Some(Secret::new(KEY)),
        secret_sha256: None,
        tenant: TenantId::parse("default").unwrap(),
        principal: None,
        scopes: Scopes::ALL,
        roles: Vec::new(),
        groups: Vec::new(),
    }];
    config.egress.allow = vec![PEERS.parse().unwrap()];
    let oidc = json!({
        "issuer": ISSUER, "audience": [AUDIENCE], "jwks_url": format!("http://{PEER}/"), "tenant": "default",
        "algorithms": ["EdDSA"],
    });
    config.auth.oidc = Some(serde_json::from_value(oidc).unwrap());
    let keys = signed::published_keys();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{keys}", keys.len());
    let network = answering(answer.into_bytes());
    let host = Host::open_on(config, Arc::new(Standstill), network)
        .await
        .unwrap();
    let ask = json!({ "questions": [{ "id": "q", "question": "what?" }] });
    for workflow in [
        Workflow::new("pure").noops("a b").edges("a -> b"),
        Workflow::new("gate").gate("gate"),
        Workflow::new("delay")
            .delay("wait", 5_000)
            .noops("end")
            .edges("wait -> end"),
        Workflow::new("ask").node("ask", "core.clarificationGate", ask),
    ] {
        host.engine().register(None, workflow.document()).await.unwrap();
    }
    host
}

/// A frozen clock, so that equal inputs behave equally.
#[derive(Debug)]
struct Standstill;

impl Clock for Standstill {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(NOW)
    }
}

/// A network without names, peers and root certificates.
pub(crate) fn nowhere() -> Network {
    Network {
        resolver: Arc::new(Nowhere),
        dial: Arc::new(Nowhere),
        ..SYSTEM.clone()
    }
}

#[derive(Debug)]
struct Nowhere;

#[async_trait]
impl Resolver for Nowhere {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

#[async_trait]
impl Dial for Nowhere {
    async fn dial(&self, _: SocketAddr) -> io::Result<Box<dyn Channel>> {
        Err(io::ErrorKind::NetworkUnreachable.into())
    }
}

/// A network without names. Every connection returns the same bytes after the first write, then ends.
pub(crate) fn answering(answer: Vec<u8>) -> Network {
    Network {
        resolver: Arc::new(Nowhere),
        dial: Arc::new(Answering(answer)),
        ..SYSTEM.clone()
    }
}

#[derive(Debug)]
struct Answering(Vec<u8>);

#[async_trait]
impl Dial for Answering {
    async fn dial(&self, _: SocketAddr) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(Answer {
            rest: self.0.clone().into(),
            is_asked: false,
            reader: None,
        }))
    }
}

/// One connection of [`Answering`].
struct Answer {
    rest: VecDeque<u8>,
    is_asked: bool,
    /// The waiting reader, woken by the first write.
    reader: Option<Waker>,
}

impl AsyncRead for Answer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_asked {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let n = buf.remaining().min(self.rest.len());
        let bytes: Vec<u8> = self.rest.drain(..n).collect();
        buf.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Answer {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.is_asked = true;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
