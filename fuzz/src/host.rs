//! A host to ask: in memory, with a clock that stands still and a network that leads nowhere.

use std::{
    cell::RefCell,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use async_trait::async_trait;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use wopr_connect::egress::{Channel, Dial, Network, Resolver};
use wopr_core::{TenantId, Timestamp};
use wopr_engine::Clock;
use wopr_server::{
    Config, Host,
    auth::Scopes,
    config::{Key, Secret, StoreUrl},
};
use wopr_testkit::Workflow;

/// A bearer secret that may do everything.
pub(crate) const KEY: &str = "fuzz-secret-0123456789abcdef";
/// The workflows there are.
pub(crate) const WORKFLOWS: [&str; 4] = ["pure", "gate", "delay", "ask"];
/// Requests after which a host is made anew: what they stored would slow the next ones down.
const REQUESTS: u32 = 2_000;

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    static HOST: RefCell<Option<(Arc<Host>, u32)>> = const { RefCell::new(None) };
}

/// Waits, in virtual time.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// The host of this thread.
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
    }];
    let host = Host::open_on(config, Arc::new(Standstill), nowhere())
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

/// A clock that stands still, so that the same bytes do the same.
#[derive(Debug)]
struct Standstill;

impl Clock for Standstill {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000)
    }
}

/// A network without names, peers and roots.
pub(crate) fn nowhere() -> Network {
    Network {
        resolver: Arc::new(Nowhere),
        dial: Arc::new(Nowhere),
        ..Network::default()
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
