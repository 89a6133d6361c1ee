//! An HTTP caller: sequential requests on a single connection.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde_json::Value;

use super::http::{Connection, write_request};

/// Timeout of one exchange.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Caller {
    address: SocketAddr,
    /// Header lines sent with every request, each with its line break.
    fields: String,
    connection: Option<Connection>,
    request: Vec<u8>,
    /// The body of the last response.
    pub(crate) answer: Vec<u8>,
}

impl Caller {
    pub(crate) fn new(address: SocketAddr, key: &str) -> Self {
        Self {
            address,
            fields: format!("authorization: Bearer {key}\r\n"),
            connection: None,
            request: Vec::new(),
            answer: Vec::new(),
        }
    }

    pub(crate) fn fields(&self) -> &str {
        &self.fields
    }

    /// Connects unless there is a reusable connection.
    pub(crate) async fn connect(&mut self) -> Result<()> {
        if self.connection.is_none() {
            self.connection = Some(Connection::open(self.address).await.context("connect")?);
        }
        Ok(())
    }

    /// Sends a prepared request, reads the response and returns its status. The connection is dropped on
    /// failure.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Result<u16> {
        self.connect().await?;
        let mut connection = self.connection.take().context("connect")?;
        self.answer.clear();
        let answer = &mut self.answer;
        let work = async {
            let status = connection.send(request).await?;
            connection.body(answer).await?;
            anyhow::Ok(status)
        };
        let status = match tokio::time::timeout(EXCHANGE_LIMIT, work).await {
            Ok(status) => status?,
            Err(_) => return Err(anyhow!("it did not end within {EXCHANGE_LIMIT:?}")),
        };
        if connection.is_reusable() {
            self.connection = Some(connection);
        }
        Ok(status)
    }

    /// Builds and sends a request. `field` is a complete header line, or empty.
    pub(crate) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        field: &str,
        body: Option<&[u8]>,
    ) -> Result<u16> {
        let fields = format!("{}{field}", self.fields);
        let mut request = std::mem::take(&mut self.request);
        request.clear();
        write_request(&mut request, method, path, &fields, body);
        let status = self.exchange(&request).await;
        self.request = request;
        status.with_context(|| format!("ask the server: {method} {path}"))
    }

    /// Sends a GET request and requires success.
    pub(crate) async fn get(&mut self, path: &str) -> Result<()> {
        let status = self.ask("GET", path, "", None).await?;
        self.expect(status, 200, b"")
            .with_context(|| format!("read {path}"))
    }

    /// Sends a POST request and requires success.
    pub(crate) async fn post(&mut self, path: &str, document: &Value) -> Result<()> {
        let body = document.to_string();
        let status = self.ask("POST", path, "", Some(body.as_bytes())).await?;
        ensure!(
            (200..300).contains(&status),
            "send to {path}: the server answered {status}: {}",
            self.beginning()
        );
        Ok(())
    }

    /// Parses the last response.
    pub(crate) fn document(&self) -> Result<Value> {
        serde_json::from_slice(&self.answer).with_context(|| format!("read {} as JSON", self.beginning()))
    }

    /// Fails unless the last response has the expected status and contains `part`.
    pub(crate) fn expect(&self, status: u16, expected: u16, part: &[u8]) -> Result<()> {
        if status == expected && contains(&self.answer, part) {
            return Ok(());
        }
        bail!(
            "expected {expected} with {:?}, got {status}: {}",
            String::from_utf8_lossy(part),
            self.beginning()
        );
    }

    fn beginning(&self) -> String {
        let text = String::from_utf8_lossy(&self.answer);
        text.chars().take(400).collect()
    }
}

/// Returns `true` if `text` contains `part`; an empty part is always contained.
pub(crate) fn contains(text: &[u8], part: &[u8]) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window == part)
}
