//! A server that is a process of this host: one JSON message a line, on its standard input and output.
//!
//! The process sees nothing of this host's environment but `PATH` and what the operator set. It lives in a process
//! group of its own, which ends with the connection, and so with this host; if this host is killed, the end of its
//! standard input tells it. What it writes has bounds: a line that is too long, too many values, or endless chatter
//! end the connection, and so does an input that it does not read.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex as SyncMutex;
use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStderr, ChildStdin, ChildStdout},
    sync::{Mutex, watch},
    time::timeout,
};
use wopr_wire::a2a::model::Secret;

use super::{blocks, server::Unavailable, unreadable};
use crate::weight::weigh;

/// Longest line, in bytes.
const MAX_LINE: usize = 4 << 20;
/// The most lines in a row that answer nothing.
const MAX_CHATTER: u32 = 10_000;
/// The most messages that wait for the process to read.
const MAX_WAITING: usize = 256;
/// How long the process may leave its input unread.
const READS_WITHIN: Duration = Duration::from_secs(30);
/// How much of what the process writes to its standard error is logged, in bytes.
const MAX_LOGGED: usize = 64 << 10;

/// The command of a server, with all that its process sees.
#[derive(Debug, Clone)]
pub struct Command {
    pub command: String,
    pub args: Vec<String>,
    pub env: Vec<(String, Setting)>,
}

/// The value of an environment variable.
#[derive(Debug, Clone)]
pub enum Setting {
    Plain(String),
    Secret(Secret),
    /// The place where the secret should be.
    Missing(String),
}

impl Command {
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        self.env.iter().filter_map(|(_, value)| match value {
            Setting::Secret(secret) => Some(secret.expose()),
            Setting::Plain(_) | Setting::Missing(_) => None,
        })
    }
}

/// The process groups of a server that have not ended.
///
/// The task that speaks to a process owns it, and the runtime drops that task some time after the last use of the
/// connection. A program that ends before that would leave the process behind, so dropping the server ends all of them.
#[derive(Debug, Default)]
pub(super) struct Groups(SyncMutex<Known>);

#[derive(Debug, Default)]
struct Known {
    groups: Vec<Pid>,
    /// Nothing may start any more.
    is_closed: bool,
}

impl Groups {
    /// Ends all processes, and those that they started. No other one starts.
    pub(super) fn close(&self) {
        let mut known = self.0.lock();
        known.is_closed = true;
        known.groups.drain(..).for_each(end);
    }

    fn add(&self, group: Pid) -> bool {
        let mut known = self.0.lock();
        if !known.is_closed {
            known.groups.push(group);
        }
        !known.is_closed
    }

    /// Ends the processes of one group, unless that was done.
    fn end(&self, group: Pid) {
        let mut known = self.0.lock();
        if let Some(at) = known.groups.iter().position(|known| *known == group) {
            end(known.groups.swap_remove(at));
        }
    }
}

fn end(group: Pid) {
    // Fails if nothing of the group is left.
    let _ = kill_process_group(group, Signal::KILL);
}

/// The process of a server, and the pipes to it. Dropping it ends the process.
#[derive(Debug)]
pub(super) struct Process {
    name: String,
    /// Nobody waits for it before it is dropped, so its id stays its own as long as this exists.
    _child: Child,
    group: Pid,
    groups: Arc<Groups>,
    output: BufReader<ChildStdout>,
    line: Vec<u8>,
    /// The errors that stand for a line that could not be read and were not given yet.
    unread: VecDeque<ServerJsonRpcMessage>,
    n_chatter: u32,
    input: Arc<Input>,
    is_stuck: watch::Receiver<bool>,
}

#[derive(Debug)]
struct Input {
    pipe: Mutex<Option<ChildStdin>>,
    n_waiting: AtomicUsize,
    is_stuck: watch::Sender<bool>,
}

impl Process {
    pub(super) fn start(name: &str, command: &Command, groups: &Arc<Groups>) -> Result<Self, Unavailable> {
        let mut process = tokio::process::Command::new(&command.command);
        process.args(&command.args).env_clear();
        if let Some(path) = std::env::var_os("PATH") {
            process.env("PATH", path);
        }
        for (variable, value) in &command.env {
            match value {
                Setting::Plain(value) => process.env(variable, value),
                Setting::Secret(secret) => process.env(variable, secret.expose()),
                Setting::Missing(place) => return Err(Unavailable::Credential(place.clone())),
            };
        }
        process
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let broken = |error: &io::Error| {
            tracing::warn!(server = name, %error, "the process of a tool server did not start");
            Unavailable::Process(error.kind())
        };
        let mut child = process.spawn().map_err(|error| broken(&error))?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = group.filter(|group| groups.add(*group));
        let group = group.ok_or(Unavailable::Process(io::ErrorKind::BrokenPipe))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = pipes else {
            return Err(Unavailable::Process(io::ErrorKind::BrokenPipe));
        };
        // It ends with the process, whose pipe it reads.
        drop(tokio::spawn(log(name.to_owned(), errors)));
        let (stuck, is_stuck) = watch::channel(false);
        Ok(Self {
            name: name.to_owned(),
            _child: child,
            group,
            groups: Arc::clone(groups),
            output: BufReader::new(output),
            line: Vec::new(),
            unread: VecDeque::new(),
            n_chatter: 0,
            input: Arc::new(Input {
                pipe: Mutex::new(Some(input)),
                n_waiting: AtomicUsize::new(0),
                is_stuck: stuck,
            }),
            is_stuck,
        })
    }

    /// Reads a whole line into the buffer. Cancel safe: what was read of a line stays there.
    async fn read_line(&mut self) -> io::Result<bool> {
        loop {
            let read = self.output.fill_buf().await?;
            if read.is_empty() {
                return Ok(false);
            }
            let end = read.iter().position(|byte| *byte == b'\n');
            let n_taken = end.map_or(read.len(), |end| end + 1);
            if self.line.len() + n_taken > MAX_LINE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the line is too long"));
            }
            self.line.extend_from_slice(&read[..n_taken]);
            self.output.consume(n_taken);
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    async fn next(&mut self) -> io::Result<Option<ServerJsonRpcMessage>> {
        loop {
            if let Some(error) = self.unread.pop_front() {
                return Ok(Some(error));
            }
            if !self.read_line().await? {
                return Ok(None);
            }
            let mut message = weigh(&self.line, MAX_LINE)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
                .map(|_| serde_json::from_slice::<ServerJsonRpcMessage>(&self.line));
            if let Ok(Ok(message)) = &mut message {
                blocks::wrap(message);
            }
            if let Ok(Err(error)) = &message {
                let ids = unreadable::answered(&self.line).into_iter();
                self.unread.extend(ids.map(|id| unreadable::answer(id, error)));
            }
            self.line.clear();
            let is_answer = matches!(
                &message,
                Ok(Ok(
                    ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_)
                ))
            );
            self.n_chatter = if is_answer { 0 } else { self.n_chatter + 1 };
            if self.n_chatter > MAX_CHATTER {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it answers nothing"));
            }
            match message? {
                Ok(message) => return Ok(Some(message)),
                // Programs print to their standard output what belongs elsewhere, unless it answers a request.
                Err(error) => {
                    tracing::debug!(server = self.name, %error, "a line of a tool server is no message");
                }
            }
        }
    }
}

impl Transport<RoleClient> for Process {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let input = Arc::clone(&self.input);
        let is_full = input.n_waiting.fetch_add(1, Ordering::AcqRel) >= MAX_WAITING;
        let waiting = Waiting(Arc::clone(&input));
        async move {
            let _waiting = waiting;
            if is_full {
                return Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    "the server reads nothing",
                ));
            }
            let mut text = serde_json::to_vec(&message)?;
            text.push(b'\n');
            let written = timeout(READS_WITHIN, async {
                let mut pipe = input.pipe.lock().await;
                let Some(pipe) = pipe.as_mut() else {
                    return Err(io::ErrorKind::NotConnected.into());
                };
                pipe.write_all(&text).await?;
                pipe.flush().await
            });
            written.await.unwrap_or_else(|_| {
                // A part of the message may be in the pipe, so nothing can follow it.
                input.is_stuck.send_replace(true);
                Err(io::ErrorKind::TimedOut.into())
            })
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let mut is_stuck = self.is_stuck.clone();
        let received = tokio::select! {
            received = self.next() => received,
            _ = is_stuck.wait_for(|is_stuck| *is_stuck) => Err(io::ErrorKind::TimedOut.into()),
        };
        match received {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!(server = self.name, %error, "the connection to a tool server is closed");
                None
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        drop(self.input.pipe.lock().await.take());
        self.end();
        Ok(())
    }
}

struct Waiting(Arc<Input>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.n_waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Process {
    /// Ends the process, and those that it started.
    fn end(&mut self) {
        self.groups.end(self.group);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Logs what a process writes to its standard error: the beginning of it. The rest is read and dropped.
async fn log(server: String, mut errors: ChildStderr) {
    let mut left = MAX_LOGGED;
    let mut buffer = [0; 4 << 10];
    while let Ok(n @ 1..) = errors.read(&mut buffer).await {
        let n_logged = n.min(left);
        left -= n_logged;
        if n_logged > 0 {
            let text = String::from_utf8_lossy(&buffer[..n_logged]);
            tracing::debug!(
                server,
                text = text.trim_end(),
                "a tool server writes to its standard error"
            );
        }
    }
}
