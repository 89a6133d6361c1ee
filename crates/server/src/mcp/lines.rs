//! MCP over stdio: messages are lines of text.
//!
//! [`converse`] reads messages, lets a [`Peer`] answer them side by side, and writes what it gives. The peer is a host of
//! this process ([`Local`]), or a client of another one. All of it is bounded: the size of a line, the number of requests
//! and notifications in flight, and the lines that wait to be written. A client that does not read what it asked for is not
//! read either.

use std::{
    collections::HashMap,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, HeaderValue, header};
use serde_json::Value;
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
};

pub use super::message::{Notification, Request};
use super::{
    ask::{self, Ask},
    message::{self, Error, Id, Message, refusal, repeated, response},
    progress::Progress,
    service::{self, Channel},
    tools,
};
use crate::{
    Host,
    auth::{self, Admitted, AuthError, Caller, Validity},
    body::{self, Weight},
    credential_id::CredentialId,
};

/// Maximum number of requests in flight. Further ones are refused.
const MAX_IN_FLIGHT: usize = 64;
/// How many pings may be in flight besides, so that a busy client still learns that it is heard.
const MAX_PINGS: usize = 8;
/// Maximum number of notifications that are being taken in. Further ones are left out.
const MAX_NOTIFICATIONS: usize = 64;
/// Maximum number of lines that wait to be written.
const MAX_WAITING: usize = 64;
/// How long requests in flight may take once the client is gone or the process is to stop.
const GRACE: Duration = Duration::from_secs(5);

/// Over stdio the server can say something by itself.
const CHANNEL: Channel = Channel { tells_changes: true };

/// Where a peer sends what it says.
pub type Out = mpsc::Sender<Value>;

/// The memory that a message takes of a host, until dropped.
#[derive(Default)]
pub struct Held {
    _weight: Option<Weight>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

/// The peer has no memory for a message now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("take a message now")]
pub struct Busy;

/// Who answers the messages of a client.
pub trait Peer: std::fmt::Debug + Send + Sync + 'static {
    /// Takes memory for a message of so many bytes, and so many more once it is parsed, before it is.
    ///
    /// # Errors
    /// If the peer has none now.
    fn hold(&self, _n_text: usize, _n_parsed: usize) -> Result<Held, Busy> {
        Ok(Held::default())
    }

    /// Answers a request; `text` is the whole message. Dropping the future cancels the request. `None` if it was answered
    /// through `out`.
    fn request(
        self: Arc<Self>,
        request: Request,
        text: Vec<u8>,
        out: Out,
    ) -> BoxFuture<'static, Option<Value>>;

    /// Takes in a notification, which need not be answered.
    fn notification(self: Arc<Self>, notification: Notification, text: Vec<u8>) -> BoxFuture<'static, ()>;

    /// The client is gone or the process is to stop: whatever waits gives up.
    fn leave(&self);
}

/// Serves one client until its input ends, its output fails, or `stop` is ready. Lines longer than `limit` are refused.
///
/// # Errors
/// If the input cannot be read.
pub async fn converse(
    peer: Arc<impl Peer>,
    (input, output): (
        impl tokio::io::AsyncRead + Unpin,
        impl AsyncWrite + Unpin + Send + 'static,
    ),
    limit: usize,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let (out, waiting) = mpsc::channel(MAX_WAITING);
    let mut writing = tokio::spawn(write(waiting, output));
    let mut lines = Lines::new(BufReader::new(input), limit);
    let mut talk = Talk {
        peer,
        out,
        limit,
        tasks: JoinSet::new(),
        requests: HashMap::new(),
        notifications: JoinSet::new(),
    };
    let mut stop = pin!(stop);
    let ended = loop {
        let line = tokio::select! {
            biased;
            () = &mut stop => break Ok(()),
            // The client no longer reads.
            _ = &mut writing => break Ok(()),
            Some(done) = talk.tasks.join_next_with_id() => {
                talk.done(&done);
                continue;
            }
            Some(_) = talk.notifications.join_next() => continue,
            line = lines.next() => line,
        };
        let line = match line {
            Ok(Line::End) => break Ok(()),
            Ok(line) => line,
            Err(error) => break Err(error),
        };
        // A client that does not read blocks what is said to it.
        tokio::select! {
            biased;
            () = &mut stop => break Ok(()),
            _ = &mut writing => break Ok(()),
            () = talk.hear(line) => {}
        }
    };
    let Talk {
        peer,
        out,
        limit: _,
        mut tasks,
        requests: _,
        mut notifications,
    } = talk;
    peer.leave();
    let all = async {
        while tasks.join_next().await.is_some() {}
        while notifications.join_next().await.is_some() {}
    };
    if tokio::time::timeout(GRACE, all).await.is_err() {
        tracing::warn!("requests not answered when the client left");
    }
    tasks.shutdown().await;
    drop(out);
    if !writing.is_finished() {
        // A client that is gone reads nothing any more.
        let _ = tokio::time::timeout(GRACE, writing).await;
    }
    ended
}

/// The state of a conversation.
struct Talk<P> {
    peer: Arc<P>,
    out: Out,
    /// Maximum size of a line in bytes.
    limit: usize,
    tasks: JoinSet<()>,
    /// The requests in flight.
    requests: HashMap<Id, AbortHandle>,
    notifications: JoinSet<()>,
}

impl<P: Peer> Talk<P> {
    async fn hear(&mut self, line: Line) {
        let text = match line {
            Line::Text(text) => text,
            Line::TooLong => {
                let why = format!("the line has more than {} bytes", self.limit);
                return self
                    .say(refusal(None, &Error::new(Error::INVALID_REQUEST, why)))
                    .await;
            }
            Line::End => return,
        };
        if text.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let held = match self.hold(&text) {
            Ok(held) => held,
            Err(error) => return self.say(refusal(None, &error)).await,
        };
        match message::read(&text) {
            Ok(Message::Request(request)) => self.request(request, text, held).await,
            Ok(Message::Notification(notification)) => self.notification(notification, text, held),
            Ok(Message::Response) => {}
            Err((id, error)) => self.say(refusal(id.as_ref(), &error)).await,
        }
    }

    /// Weighs a message before it is parsed.
    fn hold(&self, text: &[u8]) -> Result<Held, Error> {
        let n_parsed = wopr_connect::weigh(text, self.limit).map_err(|_| {
            let why = "the message holds more values than this host takes";
            Error::new(Error::INVALID_REQUEST, why)
        })?;
        let held = self.peer.hold(text.len(), n_parsed);
        held.map_err(|Busy| Error::new(Error::SERVER, "the host cannot take this message now; try again"))
    }

    async fn request(&mut self, request: Request, text: Vec<u8>, held: Held) {
        let id = request.id.clone();
        let most = match request.method.as_str() {
            "ping" => MAX_IN_FLIGHT + MAX_PINGS,
            _ => MAX_IN_FLIGHT,
        };
        if self.tasks.len() >= most {
            let why = format!("{MAX_IN_FLIGHT} requests are in flight: try again once one was answered");
            return self.say(response(&id, Err(Error::new(Error::SERVER, why)))).await;
        }
        if self.requests.contains_key(&id) {
            let error = Error::new(
                Error::INVALID_REQUEST,
                "another request with this id is in flight",
            );
            return self.say(response(&id, Err(error))).await;
        }
        let out = self.out.clone();
        let answering = Arc::clone(&self.peer).request(request, text, out.clone());
        let task = self.tasks.spawn(async move {
            let answer = answering.await;
            drop(held);
            if let Some(answer) = answer {
                // The writer may have failed; the conversation then ends.
                let _ = out.send(answer).await;
            }
        });
        self.requests.insert(id, task);
    }

    fn notification(&mut self, notification: Notification, text: Vec<u8>, held: Held) {
        if notification.method == "notifications/cancelled"
            && let Some(id) = notification.params.get("requestId")
            && let Some(task) = Id::read(id.clone()).and_then(|id| self.requests.remove(&id))
        {
            task.abort();
        }
        // Cancelling has had its effect, and no other notification needs one.
        if self.notifications.len() >= MAX_NOTIFICATIONS {
            tracing::warn!(
                method = repeated(&notification.method),
                "notification left out: too many at once"
            );
            return;
        }
        let hearing = Arc::clone(&self.peer).notification(notification, text);
        self.notifications.spawn(async move {
            hearing.await;
            drop(held);
        });
    }

    fn done(&mut self, done: &Result<(tokio::task::Id, ()), tokio::task::JoinError>) {
        let task = match done {
            Ok((task, ())) => *task,
            Err(error) => error.id(),
        };
        self.requests.retain(|_, request| request.id() != task);
    }

    async fn say(&self, line: Value) {
        // The writer may have failed; the conversation then ends.
        let _ = self.out.send(line).await;
    }
}

/// Writes lines until no more can come.
async fn write(mut waiting: mpsc::Receiver<Value>, mut output: impl AsyncWrite + Unpin) -> io::Result<()> {
    while let Some(line) = waiting.recv().await {
        let mut line = line.to_string().into_bytes();
        line.push(b'\n');
        output.write_all(&line).await?;
        output.flush().await?;
    }
    Ok(())
}

/// Reads lines of a bounded size.
#[derive(Debug)]
struct Lines<R> {
    input: R,
    limit: usize,
    /// What was read of the current line.
    begun: Vec<u8>,
    /// The current line is too long, and the rest of it is skipped.
    skips: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Line {
    Text(Vec<u8>),
    TooLong,
    End,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    const fn new(input: R, limit: usize) -> Self {
        Self {
            input,
            limit,
            begun: Vec::new(),
            skips: false,
        }
    }

    /// Reads the next line.
    ///
    /// # Cancel safety
    /// What was read of a line is kept.
    async fn next(&mut self) -> io::Result<Line> {
        loop {
            let piece = self.input.fill_buf().await?;
            if piece.is_empty() {
                // A last line needs no line break.
                let is_line = self.skips || !self.begun.is_empty();
                return Ok(if is_line { self.take() } else { Line::End });
            }
            let end = piece.iter().position(|byte| *byte == b'\n');
            let text = &piece[..end.unwrap_or(piece.len())];
            if self.begun.len() + text.len() > self.limit {
                self.skips = true;
                self.begun = Vec::new();
            } else if !self.skips {
                self.begun.extend_from_slice(text);
            }
            let n_read = end.map_or(piece.len(), |end| end + 1);
            self.input.consume(n_read);
            if end.is_some() {
                return Ok(self.take());
            }
        }
    }

    fn take(&mut self) -> Line {
        let text = std::mem::take(&mut self.begun);
        match std::mem::take(&mut self.skips) {
            true => Line::TooLong,
            false => Line::Text(text),
        }
    }
}

/// A host of this process, on behalf of one caller.
#[derive(Debug)]
pub struct Local {
    host: Arc<Host>,
    caller: Arc<Caller>,
    validity: Option<Validity>,
    leaving: watch::Sender<bool>,
    /// Whether the client has begun with a handshake. Others get no notifications that they did not ask for.
    has_opened: AtomicBool,
}

impl Local {
    /// Authenticates the caller by its key, as over every other face.
    ///
    /// # Errors
    /// If the host does not know the key.
    pub async fn new(host: Arc<Host>, key: &str) -> Result<Self, AuthError> {
        let bearer = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| AuthError::Malformed)?;
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, bearer)]);
        let Admitted { caller, validity } = host.auth().identify(&headers).await?;
        Ok(Self {
            host,
            caller,
            validity,
            leaving: watch::Sender::new(false),
            has_opened: AtomicBool::new(false),
        })
    }

    /// The error to answer with, once the caller's key has been revoked.
    fn refused(&self) -> Option<AuthError> {
        let validity = self.validity.clone()?;
        validity.ended().now_or_never()
    }

    /// Whether the client hears of changes of the list of tools.
    fn tells_changes(&self) -> bool {
        self.host.config().mcp.workflow_tools && self.has_opened.load(Ordering::Relaxed)
    }
}

impl Peer for Local {
    fn hold(&self, n_text: usize, n_parsed: usize) -> Result<Held, Busy> {
        let credential = CredentialId::caller(&self.caller);
        let weighed = body::weigh_parsed(self.host.admission(), n_text, n_parsed, credential);
        let held = weighed.map(|weight| Held {
            _weight: Some(weight),
        });
        held.map_err(|_| Busy)
    }

    fn request(self: Arc<Self>, request: Request, _: Vec<u8>, out: Out) -> BoxFuture<'static, Option<Value>> {
        async move {
            let (host, id) = (&self.host, request.id.clone());
            let is_handshake = request.method == "initialize";
            let ask = Ask {
                progress: Progress::of(&request.params, out.clone()),
                trace: ask::trace(&request.params),
                leaving: self.leaving.subscribe(),
                caller: self.caller.clone(),
                host: Arc::clone(host),
            };
            let before = host.app().workflows_generation();
            let answer = match self.refused() {
                Some(error) => Err(error),
                None => {
                    Box::pin(auth::while_valid(
                        self.validity.clone(),
                        service::answer(ask, request, CHANNEL),
                    ))
                    .await
                }
            };
            let answer =
                answer.unwrap_or_else(|error| Err(Error::new(Error::SERVER, format!("failed to {error}"))));
            if is_handshake && answer.is_ok() {
                self.has_opened.store(true, Ordering::Relaxed);
            }
            // Said after the answer, so that a client which lists at once finds the change.
            let is_changed = host.app().workflows_generation() != before;
            match is_changed && self.tells_changes() {
                true => {
                    // The writer may have failed; the conversation then ends.
                    let _ = out.send(response(&id, answer)).await;
                    Some(message::notification(tools::LIST_CHANGED, Value::Null))
                }
                false => Some(response(&id, answer)),
            }
        }
        .boxed()
    }

    fn notification(self: Arc<Self>, _: Notification, _: Vec<u8>) -> BoxFuture<'static, ()> {
        // Cancelling is the conversation's; no other notification means something to a host.
        std::future::ready(()).boxed()
    }

    fn leave(&self) {
        self.leaving.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &[u8], limit: usize) -> Vec<Line> {
        let mut lines = Lines::new(BufReader::with_capacity(3, text), limit);
        let mut all = Vec::new();
        loop {
            match lines.next().await.unwrap() {
                Line::End => return all,
                line => all.push(line),
            }
        }
    }

    #[tokio::test]
    async fn lines_beyond_the_limit_are_skipped_and_others_kept() {
        let text = |text: &str| Line::Text(text.as_bytes().to_vec());
        assert_eq!(read(b"one\ntwo\n", 5).await, [text("one"), text("two")]);
        assert_eq!(
            read(b"too long\nnot\n\nlast", 5).await,
            [Line::TooLong, text("not"), text(""), text("last")]
        );
        assert_eq!(read(b"12345\n", 5).await, [text("12345")]);
        assert_eq!(read(b"123456", 5).await, [Line::TooLong]);
        assert_eq!(read(b"", 5).await, []);
    }

    /// A peer that answers `ping`, and everything else once the client leaves.
    #[derive(Debug, Default)]
    struct Waits(watch::Sender<bool>);

    impl Peer for Waits {
        fn request(
            self: Arc<Self>,
            request: Request,
            _: Vec<u8>,
            _: Out,
        ) -> BoxFuture<'static, Option<Value>> {
            async move {
                if request.method != "ping" {
                    self.0.subscribe().wait_for(|leaves| *leaves).await.unwrap();
                }
                Some(response(&request.id, Ok(request.method.into())))
            }
            .boxed()
        }

        fn notification(self: Arc<Self>, _: Notification, _: Vec<u8>) -> BoxFuture<'static, ()> {
            std::future::ready(()).boxed()
        }

        fn leave(&self) {
            self.0.send_replace(true);
        }
    }

    async fn said(text: &str) -> Vec<Value> {
        let (client, server) = tokio::io::duplex(1 << 16);
        let never = std::future::pending();
        let talk = converse(
            Arc::new(Waits::default()),
            (text.as_bytes(), server),
            1_000,
            never,
        );
        let (ended, lines) = tokio::join!(talk, async {
            let mut lines = BufReader::new(client).lines();
            let mut all = Vec::new();
            while let Some(line) = lines.next_line().await.unwrap() {
                all.push(serde_json::from_str(&line).unwrap());
            }
            all
        });
        ended.unwrap();
        lines
    }

    #[tokio::test]
    async fn requests_are_answered_when_the_input_ends() {
        let lines = said("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"wait\"}").await;
        let results: Vec<_> = lines.iter().map(|line| &line["result"]).collect();
        assert_eq!(results, ["ping", "wait"]);
    }

    #[tokio::test]
    async fn a_cancelled_request_is_not_answered() {
        let lines = said(concat!(
            "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"wait\"}\n",
            "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":2}}\n",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n",
        ))
        .await;
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(lines[0]["id"], 1);
    }

    #[tokio::test]
    async fn a_client_with_many_requests_in_flight_is_still_heard() {
        let mut text = String::new();
        for id in 0..=MAX_IN_FLIGHT {
            text += &format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"wait\"}}\n");
        }
        text += "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":0}}\n";
        text += "{\"jsonrpc\":\"2.0\",\"id\":\"p\",\"method\":\"ping\"}\n";
        let lines = said(&text).await;
        assert_eq!(lines.len(), MAX_IN_FLIGHT + 1, "one was cancelled");
        let of = |id: Value| lines.iter().find(|line| line["id"] == id);
        assert_eq!(of(MAX_IN_FLIGHT.into()).unwrap()["error"]["code"], Error::SERVER);
        assert_eq!(of(0.into()), None);
        assert_eq!(of("p".into()).unwrap()["result"], "ping");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_does_not_keep_the_process() {
        // Malformed lines are refused at once, until nothing more can be said.
        let text = "{\n".repeat(10 * MAX_WAITING);
        let (_client, server) = tokio::io::duplex(1);
        let (input, mut writer) = tokio::io::duplex(1 << 16);
        writer.write_all(text.as_bytes()).await.unwrap();
        // sleep: the signal comes when all has stood still, on a paused clock
        let stop = tokio::time::sleep(Duration::from_secs(1));
        let talk = converse(Arc::new(Waits::default()), (input, server), 1_000, stop);
        talk.await.unwrap();
    }

    #[tokio::test]
    async fn too_many_values_are_refused_before_they_are_parsed() {
        let text = format!("[{}0]", "{\"\":0},".repeat(1 << 17));
        let (client, server) = tokio::io::duplex(1 << 16);
        let never = std::future::pending();
        converse(
            Arc::new(Waits::default()),
            (text.as_bytes(), server),
            1 << 20,
            never,
        )
        .await
        .unwrap();
        let mut lines = BufReader::new(client).lines();
        let refused = lines.next_line().await.unwrap().unwrap();
        // Parsed, it would be refused as a batch.
        assert!(refused.contains("values"), "{refused}");
    }

    #[tokio::test]
    async fn malformed_lines_are_refused_one_by_one() {
        let lines = said("{\n[]\n\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n").await;
        let codes: Vec<_> = lines.iter().map(|line| &line["error"]["code"]).collect();
        assert_eq!(
            codes,
            [
                &Value::from(Error::PARSE),
                &Value::from(Error::INVALID_REQUEST),
                &Value::Null
            ]
        );
    }
}
