//! SSE readers of run events, one connection each.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use super::{
    call::contains,
    http::{Connection, write_request},
    server::Server,
};

/// Read timeout.
const LIMIT: Duration = Duration::from_secs(120);
/// Number of streams opened concurrently.
const OPENING: usize = 64;

/// A reader of a `wopr-bench-approval` run that has read all events up to the approval.
#[derive(Debug)]
pub(crate) struct Subscriber {
    connection: Connection,
    seen: Vec<u8>,
}

impl Subscriber {
    /// Opens a reader for each run, in order.
    pub(crate) async fn open_all(
        server: &Server,
        runs: impl IntoIterator<Item = &String>,
    ) -> Result<Vec<Self>> {
        stream::iter(runs)
            .map(|run| Self::open(server, run))
            .buffered(OPENING)
            .try_collect()
            .await
    }

    async fn open(server: &Server, run: &str) -> Result<Self> {
        let mut connection = Connection::open(server.address).await.context("connect")?;
        let status = connection
            .send(&request(server, run))
            .await
            .context("open a stream")?;
        ensure!(status == 200, "open a stream: the server answered {status}");
        let mut subscriber = Self {
            connection,
            seen: Vec::new(),
        };
        subscriber.until(b"event: approval.requested\n").await?;
        Ok(subscriber)
    }

    /// Reads until the run has completed and the server ends the stream.
    pub(crate) async fn end(mut self) -> Result<()> {
        self.until(b"event: run.completed\n").await
    }

    async fn until(&mut self, part: &[u8]) -> Result<()> {
        let reading = async {
            while !contains(&self.seen, part) {
                let is_open = self
                    .connection
                    .chunk(&mut self.seen)
                    .await
                    .context("read a stream")?;
                ensure!(is_open, "read a stream: it ended early");
            }
            Ok(())
        };
        let read = tokio::time::timeout(LIMIT, reading).await;
        read.with_context(|| format!("read a stream within {LIMIT:?}"))?
    }
}

/// Requests a run's events and never reads them. The connection stays open until dropped.
pub(crate) async fn idle_reader(server: &Server, run: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(server.address).await.context("connect")?;
    stream
        .write_all(&request(server, run))
        .await
        .context("open a stream")?;
    Ok(stream)
}

fn request(server: &Server, run: &str) -> Vec<u8> {
    let Server { key, .. } = server;
    let fields = format!("authorization: Bearer {key}\r\naccept: text/event-stream\r\n");
    let mut request = Vec::new();
    write_request(
        &mut request,
        "GET",
        &format!("/v1/runs/{run}/events"),
        &fields,
        None,
    );
    request
}
