//! Streaming a run's log as server-sent events (section 12).
//!
//! A stream reads the store by cursor and is woken by hints, so it sees every event once and in order, however
//! it was created: the suffix after `Last-Event-ID`, then whatever comes. It ends after the terminal event, which the
//! comment `:end` follows in every mode, with the host, or with its reader; where the store does not answer it is broken
//! off, so that nobody takes that for the end of the run; a slow reader holds one chunk and stops reading the store. A large event is a chunk
//! of its own, rendered once for all streams that send it at the time.

use std::{mem, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use futures_util::{FutureExt as _, future::BoxFuture, stream};
use http::{HeaderValue, header};
use serde::Serialize;
use tokio::{sync::watch, time::Instant};
use wopr_app::{App, Error as AppError, Events, Summary, Tail, View, reads_artifacts};
use wopr_core::{Event, Plan, Recorded, RunKey, RunStatus, Seq};
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
    auth::Caller,
    paging::{self, CHUNK, Pace},
    telemetry::OpenStream,
};

/// Events read at once, while they are small.
const PAGE: usize = 128;
/// The comment that ends the stream of a run that has ended.
const END: &[u8] = b":end\n";

/// The stream ends before the run does: the store does not answer.
#[derive(Debug, thiserror::Error)]
#[error("the event stream was broken off")]
struct BrokenOff;

/// `GET /v1/runs/{runId}/events`
pub(super) fn stream(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let key = call.visible_run().await?;
        let mode = call.query("streamMode");
        let modes = StreamModes::parse(mode.as_deref())?;
        let buffer = parse_buffer(call.query("bufferMs").as_deref())?;
        let after = resume_point(&call, &key);
        if wants_json(&call) {
            // Without a mode of its own a JSON reader sees the whole log, as a poll does.
            let is_filtered = mode.is_some();
            let admits =
                |recorded: &Recorded| !is_filtered || modes.admitting(event_type(&recorded.event)).is_some();
            return poll::now(&call, &key, after, admits).await;
        }
        let mut follow = Follow::open(&call, key, modes, buffer, after).await?;
        // Where the store does not answer there is no stream, and its client is told so.
        follow.first = follow.read_chunk().await?.chunk;
        let chunks = stream::unfold(follow, |mut follow| async move {
            match follow.next_chunk().await {
                Ok(Some(chunk)) => Some((Ok(chunk), follow)),
                Ok(None) => None,
                Err(broken) => {
                    follow.is_over = true;
                    // What was said so far is sent: a body that fails at once takes it along.
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
        // Proxies that buffer would hold events back.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        Ok(response)
    }
    .boxed()
}

/// The sequence to resume after: `Last-Event-ID` holds it, or an event's id; anything else starts anew.
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

/// JSON is named and an event stream is not.
fn wants_json(call: &Call) -> bool {
    let mut has_json = false;
    for value in call.headers.get_all(header::ACCEPT) {
        let Ok(text) = value.to_str() else { continue };
        for range in text.split(',') {
            match range.split(';').next().unwrap_or("").trim() {
                "text/event-stream" => return false,
                "application/json" => has_json = true,
                _ => {}
            }
        }
    }
    has_json
}

static NOTHING: Mask = Mask::nothing();

/// Finds out once what a run's workflow keeps from a reader.
#[derive(Debug)]
pub(super) struct Masking {
    reads_artifacts: bool,
    mask: Option<Mask>,
}

impl Masking {
    /// For what a caller reads.
    pub(super) fn new(caller: &Caller) -> Self {
        Self {
            reads_artifacts: reads_artifacts(caller),
            mask: None,
        }
    }

    /// The mask of a run, given the first event that is about to be shown; none if the run was removed meanwhile.
    pub(super) async fn of(
        &mut self,
        app: &App,
        key: &RunKey,
        first: Option<&Recorded>,
    ) -> Result<Option<&Mask>, AppError> {
        match (&mut self.mask, first) {
            (Some(_), _) => {}
            // Nothing to show, nothing to hide, and nothing to remember.
            (None, None) => return Ok(Some(&NOTHING)),
            (mask @ None, Some(first)) => {
                *mask = find_mask(app, key, first, self.reads_artifacts).await?;
            }
        }
        Ok(self.mask.as_ref())
    }
}

/// The start of a log names the version, which is the current one most of the time. A run that was removed has no
/// mask: without knowing what its workflow keeps to itself nothing of it may be shown.
async fn find_mask(
    app: &App,
    key: &RunKey,
    first: &Recorded,
    reads_artifacts: bool,
) -> Result<Option<Mask>, AppError> {
    let (workflow, version) = match &first.event {
        Event::RunStarted(started) => (started.workflow.clone(), started.version.clone()),
        _ => match app.summary(key).await? {
            Some((
                Summary {
                    workflow, version, ..
                },
                _,
            )) => (workflow, version),
            None => return Ok(None),
        },
    };
    let current = app.workflow(&key.tenant, &workflow);
    if let Some(plan) = current.filter(|plan| *plan.version() == version) {
        return Ok(Some(Mask::for_reader(&plan, reads_artifacts)));
    }
    let view = app.view(key).await?;
    Ok(view.map(|view| Mask::for_reader(&view.plan, reads_artifacts)))
}

/// One reader of one run.
#[derive(Debug)]
struct Follow {
    host: Arc<Host>,
    key: RunKey,
    /// `None` if nothing is ever added to the log.
    tail: Option<Tail>,
    closing: watch::Receiver<bool>,
    /// The next event to read.
    next: Seq,
    pace: Pace,
    modes: StreamModes,
    masking: Masking,
    values: Option<Values>,
    batch: Batch,
    keepalive: Duration,
    sent_at: Instant,
    /// Read before the answer began.
    first: Option<Bytes>,
    is_over: bool,
    /// It has shown the end of the run, and not only its own.
    has_ended: bool,
    _open: OpenStream,
}

/// The run as of the last event read, for snapshots.
#[derive(Debug)]
struct Values {
    view: View,
    /// The first event that is shown; what is before it is only folded in.
    shown_from: Seq,
}

/// What a read gave.
#[derive(Debug)]
enum Read {
    /// Small events, written out or held back; there may be more right away.
    Page { is_full: bool },
    /// A large event.
    Large(Bytes),
    /// It was not this stream's turn before something had to be said.
    Later,
}

/// What a read gave to send.
#[derive(Debug)]
struct ReadChunk {
    chunk: Option<Bytes>,
    /// There may be more right away.
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
        key: RunKey,
        modes: StreamModes,
        buffer: Duration,
        after: Option<u64>,
    ) -> Result<Self, Problem> {
        let host = Arc::clone(&call.host);
        let app = host.app();
        let (tail, head) = match app.ended(&key) {
            Some(ended) => (None, ended.head),
            None => {
                let tail = app.tail(&key);
                let (_, head) = app.summary(&key).await?.ok_or_else(no_run)?;
                (Some(tail), head)
            }
        };
        // A cursor past the end, of another log or a lost database, must not hide what is to come.
        let shown_from = after.map_or(Seq(0), |after| Seq(after.saturating_add(1)).min(head));
        let values = if modes.is_values() {
            let view = app.view(&key).await?.ok_or_else(no_run)?;
            Some(Values::new(view, shown_from))
        } else {
            None
        };
        // Snapshots are folds, so those read the log from its start.
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
            sent_at: Instant::now(),
            first: None,
            is_over: false,
            has_ended: false,
            key,
            host,
        })
    }

    /// The next bytes of the stream; `None` ends it.
    async fn next_chunk(&mut self) -> Result<Option<Bytes>, BrokenOff> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        loop {
            if self.is_over {
                return Ok(None);
            }
            let read = self.read_chunk().await.map_err(|error| {
                // The reader comes back with its last id and loses nothing.
                tracing::warn!(%error, run = %self.key, "event stream broken off");
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

    /// Reads once, and waits for nothing but its turn.
    async fn read_chunk(&mut self) -> Result<ReadChunk, AppError> {
        let mut out = Vec::new();
        let (chunk, is_full) = match self.read(&mut out).await? {
            Read::Large(chunk) => {
                // Making it took a while, and others wait for the thread.
                tokio::task::yield_now().await;
                (Some(chunk), true)
            }
            Read::Later => (Some(Bytes::from_static(sse::KEEP_ALIVE)), true),
            Read::Page { is_full } => {
                self.batch.flush(self.is_over, &mut out);
                if self.has_ended {
                    out.extend_from_slice(END);
                }
                ((!out.is_empty()).then(|| out.into()), is_full)
            }
        };
        if chunk.is_some() {
            self.sent_at = Instant::now();
        }
        Ok(ReadChunk { chunk, is_full })
    }

    /// Shows one page, or what of it makes a chunk: the rest is read again.
    async fn read(&mut self, out: &mut Vec<u8>) -> Result<Read, AppError> {
        // The end of such a run is small and in memory already.
        if let Some(ended) = self.host.app().ended(&self.key)
            && let Some(events) = ended.from(self.next)
        {
            let status = ended.summary.status;
            return self.show(events, ended.head, status, false, out).await;
        }
        let Some(_turn) = paging::turn(&self.key.tenant, self.sent_at + self.keepalive).await else {
            return Ok(Read::Later);
        };
        if self.is_shareable()
            && let Some(frame) =
                paging::shared(&self.key, self.next, (self.modes, self.masking.reads_artifacts))
        {
            self.next = self.next.next();
            return Ok(Read::Large(frame));
        }
        let limit = self.pace.limit();
        let page = self.host.app().events(&self.key, self.next, limit).await?;
        let Some(Events { events, head, status }) = page else {
            // Removed meanwhile.
            self.is_over = true;
            return Ok(Read::Page { is_full: false });
        };
        let is_full = events.len() == limit;
        self.show(&events, head, status, is_full, out).await
    }

    /// Writes out events that were read as of a head and status, or what of them makes a chunk.
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
        let mask = self
            .masking
            .of(self.host.app(), &self.key, events.first())
            .await?;
        let Some(mask) = mask else {
            // Removed since its events were read.
            self.is_over = true;
            return Ok(Read::Page { is_full: false });
        };
        for recorded in events {
            let start = out.len();
            match &mut self.values {
                Some(values) => values.show(recorded, self.modes, mask, &mut self.batch, out),
                None => show(recorded, &self.key, self.modes, mask, &mut self.batch, out),
            }
            if is_shareable && out.len() - start >= CHUNK {
                self.pace.read(CHUNK);
                if start == 0 {
                    self.next = recorded.seq.next();
                    let frame = mem::take(out);
                    let shown = (self.modes, reads_artifacts);
                    let frame = paging::share(&self.key, recorded.seq, shown, frame);
                    return Ok(Read::Large(frame));
                }
                // It comes alone, next time.
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
        // A batch that has become large is not worth waiting for.
        self.batch.is_due |= self.batch.items.len() >= CHUNK;
        self.has_ended = status.is_terminal() && self.next >= head;
        self.is_over = self.has_ended;
        self.pace.read(out.len() + self.batch.items.len());
        Ok(Read::Page { is_full })
    }

    /// The frame of an event is the same for every stream of these modes.
    fn is_shareable(&self) -> bool {
        self.values.is_none() && self.batch.wait.is_zero()
    }

    /// Waits for a hint, for a batch to be due, or until a comment is due. A chunk, or `None` for the end, if the
    /// wait ends with one.
    async fn wait(&mut self) -> Option<Option<Bytes>> {
        let keepalive_at = self.sent_at + self.keepalive;
        let batch_at = self.batch.since.map(|since| since + self.batch.wait);
        let until = batch_at.map_or(keepalive_at, |batch_at| batch_at.min(keepalive_at));
        tokio::select! {
            // `wait_for` also sees a stop that began before this stream.
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

/// Waits until a log may have grown.
async fn changed(tail: Option<&mut Tail>) {
    match tail {
        Some(tail) => tail.changed().await,
        None => std::future::pending().await,
    }
}

/// Shows an event as itself, if a wanted mode admits it.
fn show(
    recorded: &Recorded,
    key: &RunKey,
    modes: StreamModes,
    mask: &Mask,
    batch: &mut Batch,
    out: &mut Vec<u8>,
) {
    let name = event_type(&recorded.event);
    let Some(mode) = modes.admitting(name) else { return };
    let doc = render::event(recorded, key, mask);
    let shown_as = match (modes.is_mixed(), mode, name) {
        (true, ..) => mode.as_str(),
        // What a node says is called so where only that is streamed.
        (false, StreamMode::Messages, "output.chunk") => "ai.message.chunk",
        (false, ..) => name,
    };
    batch.put(recorded.seq.0, shown_as, &doc, forces_flush(name), out);
}

impl Values {
    fn new(view: View, shown_from: Seq) -> Self {
        let view = view.unstarted();
        Self { view, shown_from }
    }

    /// Folds an event in and shows the run as of it, if it moved the run on. A resumed stream begins with the run
    /// as of the event it resumes after.
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

    /// Writes what is held back, if it is time.
    fn flush(&mut self, is_over: bool, out: &mut Vec<u8>) {
        if self.items.is_empty() || !(is_over || self.is_due) {
            return;
        }
        let mut data = Vec::with_capacity(self.items.len() + 2);
        data.push(b'[');
        data.append(&mut self.items);
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
    async fn events_of_a_run_that_is_removed_after_they_were_read_are_not_shown() {
        let mut config = Config {
            store: StoreUrl::Memory,
            ..Config::default()
        };
        let ada = json!({ "id": "ada", "secret": "secret-of-ada-0123456789", "tenant": "default", "scopes": ["*"] });
        config.auth.keys = vec![serde_json::from_value(ada).unwrap()];
        let host = Host::open(config).await.unwrap();
        let app = host.app();
        let engine = host.engine();
        app.register_workflow(None, workflow("1")).await.unwrap();
        let key = RunKey::new(TenantId::parse("default").unwrap(), app.new_run_id());
        let create = Create {
            run: key.run.clone(),
            workflow: engine
                .workflow(&key.tenant, &serde_json::from_value(json!("secret")).unwrap())
                .unwrap(),
            start: Start {
                tenant: key.tenant.clone(),
                principal: PrincipalId::parse("ada").unwrap(),
                origin: Origin::Rest,
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
        let page = app.events(&key, Seq(0), 2).await.unwrap().unwrap();
        let removed = key.sibling(RunId::parse("run_0123456789abcdef").unwrap());
        // The start names a version that is not the current one by now; what follows names none.
        app.register_workflow(None, workflow("2")).await.unwrap();
        for first in &page.events {
            for (key, is_there) in [(&key, true), (&removed, false)] {
                let mut masking = Masking {
                    reads_artifacts: true,
                    mask: None,
                };
                let mask = masking.of(app, key, Some(first)).await.unwrap();
                assert_eq!(mask.is_some(), is_there, "{first:?}");
            }
        }
    }
}
