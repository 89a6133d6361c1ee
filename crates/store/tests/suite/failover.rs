//! Unresponsive servers: the store fails over to another server if there is one, and reports an error in
//! bounded time otherwise.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::broadcast::error::RecvError,
    time::timeout,
};
use wopr_store::{
    AppendError, Hint, Log as _, PostgresStore, Work as _,
    postgres::{self, OpenError, Options},
};

use crate::{
    make::*,
    proxy::{Cut, Proxy},
    schema::Schema,
};

/// The timeout per server, as set in the URL.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

/// A URL of two servers, of which the first is not the proxy's.
fn behind(first: SocketAddr, proxy: &Proxy, schema: &Schema) -> String {
    let url = proxy.url(schema) + "&connect_timeout=1";
    url.replacen('@', &format!("@{first},"), 1)
}

/// A server that accepts logins but answers nothing afterwards.
async fn mute() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut let_in = Vec::new();
        while let Ok((mut client, _)) = listener.accept().await {
            let mut startup = [0; 1_024];
            let n = client.read(&mut startup).await.expect("a client");
            assert!(n > 0, "it says who it is");
            // Authentication succeeded; ready for the next query.
            let welcome = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
            client.write_all(welcome).await.expect("a client");
            let_in.push(client);
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_first_server_is_skipped_once() {
    let schema = Schema::new().await;
    let (silent, sound) = (
        Proxy::new(schema.server()).await,
        Proxy::new(schema.server()).await,
    );
    silent.arm(Cut::Silence);
    let url = behind(silent.address(), &sound, &schema);
    let begun = Instant::now();
    let opening = PostgresStore::open(&url, Options::default());
    let store = timeout(LIMIT, opening).await.expect("in time").expect("open");
    for n in 0..4 {
        store.append(create(&run(n), 1)).await.expect("append");
    }
    assert!(begun.elapsed() >= TIMEOUT);
    assert_eq!(
        silent.n_silenced(),
        1,
        "later connections begin with who answered"
    );
    assert!(store.stats().connections > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_server_that_hangs_after_login_is_skipped() {
    let schema = Schema::new().await;
    let sound = Proxy::new(schema.server()).await;
    let url = behind(mute().await, &sound, &schema);
    let opening = PostgresStore::open(&url, Options::default());
    let store = timeout(LIMIT, opening).await.expect("in time").expect("open");
    store.append(create(&run(1), 1)).await.expect("append");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_fails_over_to_the_second_server() {
    let schema = Schema::new().await;
    let (first, second) = (
        Proxy::new(schema.server()).await,
        Proxy::new(schema.server()).await,
    );
    let options = Options {
        deadline: TIMEOUT * 4,
        ..Options::default()
    };
    let url = behind(first.address(), &second, &schema);
    let store = PostgresStore::open(&url, options).await.expect("open");
    let other = schema.open().await;
    let mut heard = other.hints().expect("hints are on");
    store.append(create(&run(0), 1)).await.expect("append");
    first.arm(Cut::Silence);
    let going_on = async {
        let mut n = 1;
        // The first appends find their connections unresponsive; later ones connect to the other server.
        while let Err(error) = store.append(create(&run(n), 1)).await {
            assert!(
                matches!(error, AppendError::Unavailable(_) | AppendError::Unknown(_)),
                "{error:?}"
            );
            n += 1;
        }
        n
    };
    let refused = timeout(LIMIT, going_on).await.expect("it goes on");
    assert!(refused <= 3, "{refused}");
    assert!(first.n_silenced() > 0);
    // Hints arrive again, too.
    let hearing = async {
        for n in 100.. {
            store.append(create(&run(n), 1)).await.expect("append");
            let next = timeout(TIMEOUT, async {
                loop {
                    match heard.recv().await {
                        Ok(Hint::Run(heard)) if heard == run(n) => return,
                        Ok(_) | Err(RecvError::Lagged(_)) => {}
                        Err(RecvError::Closed) => panic!("the store lives"),
                    }
                }
            });
            if next.await.is_ok() {
                return;
            }
        }
    };
    timeout(LIMIT, hearing).await.expect("hints go on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_server_is_reported_in_bounded_time() {
    // The kernel accepts connections, but nothing calls `accept`.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let deaf = listener.local_addr().expect("an address");
    for (address, waited) in [(deaf, TIMEOUT), (mute().await, TIMEOUT * 3)] {
        let url = format!("postgres://ada:hunter2@{address}/db?connect_timeout=1");
        let (opened, migrated, version, risks) = timeout(LIMIT, async {
            tokio::join!(
                PostgresStore::open(&url, Options::default()),
                postgres::migrate(&url),
                postgres::schema_version(&url),
                postgres::risks(&url),
            )
        })
        .await
        .expect("in time");
        for error in [opened.err(), migrated.err(), version.err(), risks.err()] {
            let error = error.expect("nothing answers");
            assert!(
                matches!(&error, OpenError::Silent { server, after }
                    if *server == address.to_string() && *after == waited),
                "{error:?}"
            );
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
