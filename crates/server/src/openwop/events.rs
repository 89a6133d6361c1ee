//! Streams a run's log as server-sent events (section 12).
//!
//! A stream reads the store by cursor, and hints wake it up. It therefore sends every event once and in
//! order, beginning after `Last-Event-ID`. After the terminal event it sends the comment `:end`, in every
//! mode, and ends. It also ends when the host stops or the client disconnects. If the store fails, the stream
//! is aborted so that the client does not take it for the end of the run. A slow client holds a single chunk,
//! and nothing is read for it meanwhile. A large event is a chunk of its own, which all streams that send it
//! at the same time share. Chunks count as responses that are not read. A stream of snapshots keeps the run as
//! of its last event, which is charged to its tenant; without room for either, the stream is refused or aborted.

use std::{mem, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture, stream};
use http::{HeaderValue, header};
use serde::Serialize;
use tokio::{sync::watch, time::Instant};
use wopr_app::{App, Error as AppError, Events, Tail, View, VisibleRun, reads_artifacts};
use wopr_core::{
    Event, KernelEvent, Plan, Recorded, RunKey, RunStarted, RunStatus, Seq, format, parsed_size,
};
use wopr_wire::{
    openwop::stream::{StreamMode, StreamModes, forces_flush, parse_buffer},
    sse,
};

use super::{
    answer::Answer,
    call::Call,
    poll,
    problem::{Problem, no_run},
    render::{self, Mask, event_type},
};
use crate::{
    Host,
    admission::{Followed, NoRoom},
    answers::Crowded,
    auth::{Caller, Scope},
    credential_id::CredentialId,
    message::{Body, Response},
    page,
    paging::{CHUNK, Pace},
    telemetry::{self, OpenStream},
};

/// Events to read per page while they are small.
const PAGE: usize = 128;
/// Bytes of a batch that are not held back any longer.
const MAX_HELD_BACK: usize = 16 << 10;
/// Ends the stream of a run that has ended.
const END: &[u8] = b":end\n";

/// The stream ended before the run did because the store failed.
#[derive(Debug, thiserror::Error)]
#[error("the event stream was broken off")]
struct BrokenOff;

/// `GET /v1/runs/{runId}/events`
pub(super) fn stream(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let key = call.visible_run(Scope::RunsRead).await?;
        let mode = call.query_list("streamMode");
        let modes = StreamModes::parse(mode.as_deref())?;
        let buffer = parse_buffer(call.query("bufferMs").as_deref())?;
        let after = resume_point(&call, &key);
        if wants_json(&call) {
            let modes = StreamModes::parse_for_list(mode.as_deref())?;
            // Without an explicit mode, a JSON client gets the whole log, as in a poll.
            let is_filtered = mode.is_some();
            let admits =
                |recorded: &Recorded| !is_filtered || modes.admitting(event_type(&recorded.event)).is_some();
            return poll::now(&call, &key, after, admits).await;
        }
        let mut follow = Follow::open(&call, key, modes, buffer, after).await?;
        // Read before responding, so that a store failure is reported as an error status.
        follow.first = follow.read_chunk().await?.chunk;
        let chunks = stream::unfold(follow, |mut follow| async move {
            match follow.next_chunk().await {
                Ok(Some(chunk)) => Some((Ok(chunk), follow)),
                Ok(None) => None,
                Err(broken) => {
                    follow.is_over = true;
                    // Let the body flush: a body that fails at once discards what it has not sent.
                    tokio::task::yield_now().await;
                    Some((Err(broken), follow))
                }
            }
        });
        let mut response = Response::new(Body::from_stream(chunks));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(sse::CONTENT_TYPE));
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("no-cache, no-transform"),
        );
        // Keep proxies from buffering events.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        Ok(response)
    }
    .boxed()
}

/// Reads the sequence number to resume after. `Last-Event-ID` holds the number or an event id; anything else
/// starts from the beginning.
fn resume_point(call: &Call, key: &RunKey) -> Option<u64> {
    let id = call.header("last-event-id")?.trim();
    let number = match id.strip_prefix(key.run.as_str()) {
        Some(rest) => rest.strip_prefix('.')?,
        None => id,
    };
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    number.parse().ok()
}

/// Returns `true` if `Accept` names JSON but not an event stream.
fn wants_json(call: &Call) -> bool {
    let mut has_json = false;
    for value in call.headers.get_all(header::ACCEPT) {
        let Ok(text) = value.to_str() else { continue };
        for range in text.split(',') {
            // What has the quality 0 is refused.
            match page::media_range(range) {
                (_, 0) => {}
                ("text/event-stream", _) => return false,
                ("application/json", _) => has_json = true,
                _ => {}
            }
        }
    }
    has_json
}

static NOTHING: Mask = Mask::nothing();

/// Finds out on first use what a reader sees of a run's log.
#[derive(Debug)]
pub(crate) struct Masking {
    reads_artifacts: bool,
    mask: Option<Mask>,
    /// Where the run comes from, once that matters: within, `None` for a run that is no fork.
    fork: Option<Option<Arc<RunStarted>>>,
}

impl Masking {
    pub(crate) fn new(caller: &Caller) -> Self {
        Self {
            reads_artifacts: reads_artifacts(caller),
            mask: None,
            fork: None,
        }
    }

    /// The log of a run, of which these events are to be shown. `None` if the run has been removed.
    pub(crate) async fn of<'a>(
        &'a mut self,
        app: &App,
        key: &'a VisibleRun,
        events: &[Recorded],
    ) -> Result<Option<render::Log<'a>>, AppError> {
        let Some(first) = events.first() else {
            // Nothing to hide yet; decide when there is an event.
            return Ok(Some(render::Log::new(key, &NOTHING)));
        };
        if self.mask.is_none() {
            self.mask = app.mask(key, first, self.reads_artifacts).await?;
        }
        if self.fork.is_none() {
            if let Event::Kernel(KernelEvent::RunStarted(started)) = &first.event {
                self.fork = Some(Some(Arc::clone(started)));
            } else if events.iter().any(|event| render::names_run(&event.event)) {
                self.fork = Some(app.beginning(key).await?);
            }
        }
        let began = self.fork.as_ref().and_then(Option::as_ref);
        Ok(self.mask.as_ref().map(|mask| render::Log {
            key,
            mask,
            fork: began.and_then(|began| began.fork.as_ref()),
        }))
    }
}

/// One client of one run's stream.
#[derive(Debug)]
struct Follow {
    host: Arc<Host>,
    key: VisibleRun,
    /// `None` if the log can no longer grow.
    tail: Option<Tail>,
    closing: watch::Receiver<bool>,
    next: Seq,
    pace: Pace,
    modes: StreamModes,
    masking: Masking,
    values: Option<Values>,
    batch: Batch,
    /// Who pays for what is held.
    credential: CredentialId,
    keepalive: Duration,
    sent_at: Instant,
    /// Read before the response began.
    first: Option<Bytes>,
    is_over: bool,
    /// The end of the run has been sent, not only the end of the stream.
    has_ended: bool,
    _open: OpenStream,
}

/// The run as of the last event read, for snapshots.
#[derive(Debug)]
struct Values {
    view: View,
    followed: Followed,
    /// Earlier events are folded but not shown.
    shown_from: Seq,
}

#[derive(Debug)]
enum Read {
    /// Small events, written out or held back. If full, more may be available.
    Page {
        is_full: bool,
    },
    Large(Bytes),
    /// A keep-alive is due before the stream gets its turn to read.
    Later,
}

#[derive(Debug)]
struct ReadChunk {
    chunk: Option<Bytes>,
    /// More may be available.
    is_full: bool,
}

/// Events held back for a batch.
#[derive(Debug)]
struct Batch {
    wait: Duration,
    items: Vec<u8>,
    last: u64,
    since: Option<Instant>,
    is_due: bool,
}

impl Follow {
    async fn open(
        call: &Call,
        key: VisibleRun,
        modes: StreamModes,
        buffer: Duration,
        after: Option<u64>,
    ) -> Result<Self, Problem> {
        let host = Arc::clone(&call.host);
        let credential = CredentialId::caller(call.caller());
        let app = host.app();
        let (tail, head) = match app.ended(&key) {
            Some(ended) => (None, ended.head),
            None => {
                let tail = app.tail(&key);
                let head = app.head(&key).await?.ok_or_else(no_run)?;
                (Some(tail), head)
            }
        };
        // A cursor past the end (of another log, or a lost database) must not hide future events.
        let shown_from = after.map_or(Seq(0), |after| Seq(after.saturating_add(1)).min(head));
        let values = if modes.is_values() {
            let view = app.view(&key).await?.ok_or_else(no_run)?;
            Some(Values {
                view: view.unstarted(),
                followed: Followed::new(host.admission(), credential),
                shown_from,
            })
        } else {
            None
        };
        // Snapshots are folds, so they read the log from its start.
        let next = if values.is_some() { Seq(0) } else { shown_from };
        Ok(Self {
            closing: host.closing(),
            keepalive: host.config().server.sse_keepalive.as_duration(),
            _open: host.metrics().open_stream(),
            tail,
            next,
            pace: Pace::new(PAGE),
            modes,
            masking: Masking::new(call.caller()),
            values,
            batch: Batch {
                wait: buffer,
                items: Vec::new(),
                last: 0,
                since: None,
                is_due: false,
            },
            credential,
            sent_at: Instant::now(),
            first: None,
            is_over: false,
            has_ended: false,
            key,
            host,
        })
    }

    /// The next chunk of the stream; `None` ends it.
    async fn next_chunk(&mut self) -> Result<Option<Bytes>, BrokenOff> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        loop {
            if self.is_over {
                return Ok(None);
            }
            let read = self.read_chunk().await.map_err(|error| {
                // The client resumes with its last id and loses nothing.
                telemetry::broken_off(&self.key, &error);
                BrokenOff
            })?;
            if read.chunk.is_some() {
                return Ok(read.chunk);
            }
            if !read.is_full
                && !self.is_over
                && let Some(chunk) = self.wait().await
            {
                return Ok(chunk);
            }
        }
    }

    /// Reads once, waiting only for its turn.
    async fn read_chunk(&mut self) -> Result<ReadChunk, AppError> {
        let mut out = Vec::new();
        let (chunk, is_full) = match self.read(&mut out).await? {
            Read::Large(chunk) => {
                // Rendering took a while; let other tasks run.
                tokio::task::yield_now().await;
                (Some(chunk), true)
            }
            Read::Later => (Some(Bytes::from_static(sse::KEEP_ALIVE)), true),
            Read::Page { is_full } => {
                self.batch.flush(self.is_over, &mut out);
                if self.has_ended {
                    out.extend_from_slice(END);
                }
                let chunk = match out.is_empty() {
                    true => None,
                    false => Some(self.held(out).await?),
                };
                (chunk, is_full)
            }
        };
        if chunk.is_some() {
            self.sent_at = Instant::now();
        }
        Ok(ReadChunk { chunk, is_full })
    }

    /// Charges a chunk until the client has read it.
    async fn held(&self, mut chunk: Vec<u8>) -> Result<Bytes, AppError> {
        chunk.shrink_to_fit();
        let held = self
            .host
            .admission()
            .answers
            .held(self.credential, chunk.into())
            .await;
        held.map_err(|Crowded| unavailable("too many events are not read"))
    }

    /// Shows one page, or the part of it that fills a chunk. The rest is read again.
    async fn read(&mut self, out: &mut Vec<u8>) -> Result<Read, AppError> {
        // The last events of a run that was decided recently are small and cached.
        if let Some(decided) = self.host.app().at_hand(&self.key)
            && let Some(events) = decided.from(self.next)
        {
            let status = decided.summary.status;
            return self.show(events, decided.head, status, false, out).await;
        }
        let paging = self.host.paging();
        let Some(_turn) = paging.turn(&self.key.tenant, self.sent_at + self.keepalive).await else {
            return Ok(Read::Later);
        };
        if self.is_shareable()
            && let Some(frame) =
                paging.shared(&self.key, self.next, (self.modes, self.masking.reads_artifacts))
        {
            self.next = self.next.next();
            return Ok(Read::Large(frame));
        }
        let limit = self.pace.limit();
        let page = self.host.app().events(&self.key, self.next, limit).await?;
        let Some(Events { events, head, status }) = page else {
            // The run has been removed.
            self.is_over = true;
            return Ok(Read::Page { is_full: false });
        };
        let is_full = events.len() == limit;
        self.show(&events, head, status, is_full, out).await
    }

    /// Writes events, up to a full chunk. `head` and `status` are as of the read.
    async fn show(
        &mut self,
        events: &[Recorded],
        head: Seq,
        status: RunStatus,
        mut is_full: bool,
        out: &mut Vec<u8>,
    ) -> Result<Read, AppError> {
        let is_shareable = self.is_shareable();
        let reads_artifacts = self.masking.reads_artifacts;
        let log = self.masking.of(self.host.app(), &self.key, events).await?;
        let Some(log) = log else {
            // The run has been removed since its events were read.
            self.is_over = true;
            return Ok(Read::Page { is_full: false });
        };
        for recorded in events {
            let start = out.len();
            match &mut self.values {
                Some(values) => values.show(recorded, self.modes, log.mask, &mut self.batch, out),
                None => show(recorded, log, self.modes, &mut self.batch, out),
            }
            if is_shareable && out.len() - start >= CHUNK {
                self.pace.read(CHUNK);
                if start == 0 {
                    self.next = recorded.seq.next();
                    let frame = mem::take(out);
                    let shown = (self.modes, reads_artifacts);
                    let frame = self.held(frame).await?;
                    let frame = self.host.paging().share(&self.key, recorded.seq, shown, frame);
                    return Ok(Read::Large(frame));
                }
                // It becomes a chunk of its own in the next read.
                out.truncate(start);
                self.next = recorded.seq;
                return Ok(Read::Page { is_full: true });
            }
            self.next = recorded.seq.next();
            if out.len() + self.batch.items.len() >= CHUNK {
                is_full = true;
                break;
            }
        }
        if let Some(values) = &mut self.values {
            values.charge()?;
        }
        // Do not hold back a large batch: nobody is charged for it meanwhile.
        self.batch.is_due |= self.batch.items.len() >= MAX_HELD_BACK;
        self.has_ended = status.is_terminal() && self.next >= head;
        self.is_over = self.has_ended;
        self.pace.read(out.len() + self.batch.items.len());
        Ok(Read::Page { is_full })
    }

    /// Returns `true` if the frames are the same for every stream with these modes.
    fn is_shareable(&self) -> bool {
        self.values.is_none() && self.batch.wait.is_zero()
    }

    /// Waits for a hint, a due batch or a due keep-alive. Returns a chunk to send, or `Some(None)` if the
    /// stream ends.
    async fn wait(&mut self) -> Option<Option<Bytes>> {
        let keepalive_at = self.sent_at + self.keepalive;
        let batch_at = self.batch.since.map(|since| since + self.batch.wait);
        let until = batch_at.map_or(keepalive_at, |batch_at| batch_at.min(keepalive_at));
        tokio::select! {
            // `wait_for` also sees a shutdown that began before this stream.
            _ = self.closing.wait_for(|is_closing| *is_closing) => return Some(None),
            () = changed(self.tail.as_mut()) => return None,
            () = tokio::time::sleep_until(until) => {}
        }
        if batch_at.is_some_and(|batch_at| batch_at <= until) {
            self.batch.is_due = true;
            return None;
        }
        self.sent_at = Instant::now();
        Some(Some(Bytes::from_static(sse::KEEP_ALIVE)))
    }
}

fn unavailable(why: &'static str) -> AppError {
    AppError::Unavailable(why.into())
}

/// Waits until the log may have grown.
async fn changed(tail: Option<&mut Tail>) {
    match tail {
        Some(tail) => tail.changed().await,
        None => std::future::pending().await,
    }
}

/// Writes an event if one of the modes admits it.
fn show(recorded: &Recorded, log: render::Log<'_>, modes: StreamModes, batch: &mut Batch, out: &mut Vec<u8>) {
    let name = event_type(&recorded.event);
    let Some(mode) = modes.admitting(name) else { return };
    let doc = log.event(recorded);
    let shown_as = match (modes.is_mixed(), mode, name) {
        (true, ..) => mode.as_str(),
        // A node's output has this name if only that mode is streamed.
        (false, StreamMode::Messages, "output.chunk") => "ai.message.chunk",
        (false, ..) => name,
    };
    batch.put(recorded.seq.0, shown_as, &doc, forces_flush(name), out);
}

impl Values {
    /// Charges the run as it is now.
    fn charge(&mut self) -> Result<(), AppError> {
        let View { run, plan, .. } = &self.view;
        let stored = format::encode_run(plan.dialect(), run);
        let charged = self.followed.charge(parsed_size(&stored));
        charged.map_err(|NoRoom| unavailable("too many snapshots are followed"))
    }

    /// Folds an event, and writes a snapshot if the run progressed. A resumed stream begins with the run as
    /// of the event that it resumes after.
    fn show(
        &mut self,
        recorded: &Recorded,
        modes: StreamModes,
        mask: &Mask,
        batch: &mut Batch,
        out: &mut Vec<u8>,
    ) {
        let plan: Arc<Plan> = Arc::clone(&self.view.plan);
        if let Err(error) = self.view.run.apply(&plan, recorded) {
            tracing::error!(%error, run = %self.view.key, "log does not fold");
            return;
        }
        let name = event_type(&recorded.event);
        let is_resumed = recorded.seq.next() == self.shown_from;
        let is_new = recorded.seq >= self.shown_from && modes.admitting(name).is_some();
        if !is_resumed && !is_new {
            return;
        }
        let mut snapshot = render::snapshot(&self.view, mask);
        snapshot.at_seq = Some(recorded.seq.0);
        batch.put(
            recorded.seq.0,
            "state.snapshot",
            &snapshot,
            forces_flush(name),
            out,
        );
    }
}

impl Batch {
    /// Writes a frame, or holds its document back.
    fn put(&mut self, seq: u64, name: &str, doc: &impl Serialize, is_forced: bool, out: &mut Vec<u8>) {
        let written = if self.wait.is_zero() {
            sse::write_json(out, sse::Head::new(seq, name), doc)
        } else {
            let start = self.items.len();
            if start > 0 {
                self.items.push(b',');
            }
            let written = serde_json::to_writer(&mut self.items, doc);
            if written.is_ok() {
                self.last = seq;
                self.since.get_or_insert_with(Instant::now);
                self.is_due |= is_forced;
            } else {
                self.items.truncate(start);
            }
            written
        };
        if let Err(error) = written {
            tracing::error!(%error, seq, "event does not serialise");
        }
    }

    /// Writes the batch if it is due.
    fn flush(&mut self, is_over: bool, out: &mut Vec<u8>) {
        if self.items.is_empty() || !(is_over || self.is_due) {
            return;
        }
        let mut data = Vec::with_capacity(self.items.len() + 2);
        data.push(b'[');
        data.append(&mut mem::take(&mut self.items));
        data.push(b']');
        sse::write_frame(out, sse::Head::new(self.last, "batch"), &data);
        self.since = None;
        self.is_due = false;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wopr_core::{Object, Origin, PrincipalId, RunId, TenantId};
    use wopr_engine::{Create, SideRows, Start};

    use std::slice;

    use super::*;
    use crate::{Config, config::StoreUrl};

    fn workflow(version: &str) -> serde_json::Value {
        json!({
            "id": "secret", "name": "secret", "version": version, "edges": [], "settings": {}, "metadata": {},
            "nodes": [{ "id": "noop", "typeId": "core.noop", "name": "noop", "position": { "x": 0, "y": 0 } }],
            "triggers": [{ "id": "manual", "type": "manual" }],
            "variables": [{ "name": "pin", "type": "string", "sensitive": true }],
        })
    }

    #[tokio::test]
    async fn events_of_a_removed_run_are_not_shown() {
        let mut config = Config {
            store: StoreUrl::Memory,
            ..Config::default()
        };
        let ada = json!({ "id": "ada", "secret": "secret-of-ada-0123456789", "tenant": "default", "scopes": ["*"] });
        config.auth.keys = vec![serde_json::from_value(ada).unwrap()];
        let host = Host::open(config).await.unwrap();
        let app = host.app();
        let engine = host.engine();
        app.register_for_all(workflow("1")).await.unwrap();
        let key = RunKey::new(TenantId::parse("default").unwrap(), app.new_run_id());
        let create = Create {
            run: key.run.clone(),
            workflow: engine
                .workflow(&key.tenant, &serde_json::from_value(json!("secret")).unwrap())
                .unwrap(),
            start: Start {
                tenant: key.tenant.clone(),
                principal: PrincipalId::parse("ada").unwrap(),
                origin: Origin::new("rest"),
                inputs: Object::new(),
                configurable: Object::new(),
                tags: Vec::new(),
                metadata: Object::new(),
                context: None,
                trace: None,
            },
            side_rows: SideRows::default(),
        };
        engine.create(create).await.unwrap();
        let removed = key.sibling(RunId::parse("run_0123456789abcdef").unwrap());
        let [key, removed] = [key, removed].map(VisibleRun::by_token);
        let page = app.events(&key, Seq(0), 2).await.unwrap().unwrap();
        // The first event names a version that is no longer current; the others name none.
        app.register_for_all(workflow("2")).await.unwrap();
        for first in &page.events {
            for (key, is_there) in [(&key, true), (&removed, false)] {
                let mut masking = Masking {
                    reads_artifacts: true,
                    mask: None,
                    fork: None,
                };
                let log = masking.of(app, key, slice::from_ref(first)).await.unwrap();
                assert_eq!(log.is_some(), is_there, "{first:?}");
            }
        }
    }
}
