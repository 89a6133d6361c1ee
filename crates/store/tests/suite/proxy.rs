//! A proxy between a store and PostgreSQL that can cut the connection around a commit.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst},
    },
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
};
use tokio_postgres::{Config, config::Host};

use crate::schema::Schema;

/// When to cut the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Before the next COMMIT reaches the server.
    Commit = 1,
    /// After the server has committed, before its reply reaches the client.
    Answer = 2,
    /// Drops all data without closing connections, until another cut is armed. Connections open at that time
    /// stay silent.
    Silence = 3,
}

/// Listens on its own port and forwards bytes to the server.
pub(crate) struct Proxy {
    address: SocketAddr,
    server: Config,
    armed: Arc<AtomicU8>,
    n_silenced: Arc<AtomicUsize>,
}

impl Proxy {
    pub(crate) async fn new(server: &str) -> Self {
        let server: Config = server.parse().expect("a url");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let armed = Arc::new(AtomicU8::new(0));
        let n_silenced = Arc::new(AtomicUsize::new(0));
        let proxy = Self {
            address,
            server: server.clone(),
            armed: Arc::clone(&armed),
            n_silenced: Arc::clone(&n_silenced),
        };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(
                    client,
                    server.clone(),
                    Arc::clone(&armed),
                    Arc::clone(&n_silenced),
                ));
            }
        });
        proxy
    }

    /// The URL of a schema through this proxy.
    pub(crate) fn url(&self, schema: &Schema) -> String {
        let user = self.server.get_user().expect("the set-up names a user");
        let database = self.server.get_dbname().unwrap_or(user);
        let password = self
            .server
            .get_password()
            .map(|password| format!(":{}", String::from_utf8_lossy(password)))
            .unwrap_or_default();
        format!(
            "postgres://{user}{password}@{}/{database}?{}",
            self.address,
            schema.parameter()
        )
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Number of connections on which data was dropped.
    pub(crate) fn n_silenced(&self) -> usize {
        self.n_silenced.load(SeqCst)
    }

    /// Forwards data of new connections again.
    pub(crate) fn disarm(&self) {
        self.armed.store(0, SeqCst);
    }

    /// Cuts once, or permanently for [`Cut::Silence`].
    pub(crate) fn arm(&self, cut: Cut) {
        self.armed.store(cut as u8, SeqCst);
    }
}

async fn carry(client: TcpStream, server: Config, armed: Arc<AtomicU8>, n_silenced: Arc<AtomicUsize>) {
    let port = server.get_ports().first().copied().unwrap_or(5432);
    match server.get_hosts().first().expect("the set-up names a host") {
        Host::Unix(folder) => {
            let socket: PathBuf = folder.join(format!(".s.PGSQL.{port}"));
            let server = UnixStream::connect(socket).await.expect("the server");
            join(client, server, &armed, &n_silenced).await;
        }
        Host::Tcp(host) => {
            let server = TcpStream::connect((host.as_str(), port))
                .await
                .expect("the server");
            join(client, server, &armed, &n_silenced).await;
        }
    }
}

async fn join(
    client: TcpStream,
    server: impl AsyncRead + AsyncWrite,
    armed: &AtomicU8,
    n_silenced: &AtomicUsize,
) {
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = tokio::io::split(server);
    // A close by either side, or a cut, closes both.
    tokio::select! {
        () = pass(client_reads, server_writes, armed, n_silenced, Cut::Commit) => {}
        () = pass(server_reads, client_writes, armed, n_silenced, Cut::Answer) => {}
    }
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    armed: &AtomicU8,
    n_silenced: &AtomicUsize,
    cut: Cut,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        let is_commit = buffer[..n].windows(7).any(|window| window == b"COMMIT\0");
        if is_commit && armed.compare_exchange(cut as u8, 0, SeqCst, SeqCst).is_ok() {
            return;
        }
        if armed.load(SeqCst) == Cut::Silence as u8 {
            n_silenced.fetch_add(1, SeqCst);
            std::future::pending::<()>().await;
        }
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}
