//! A streamed answer: its text becomes part of the run while it is written.
//!
//! Pieces are put together for a moment, because each append costs the host a write. The end of the text is held back
//! as long as it may be the beginning of a credential.

use std::{ops::ControlFlow, time::Duration};

use futures_util::StreamExt as _;
use http::{HeaderMap, header};
use serde_json::Value;
use tokio::time::Instant;
use wopr_core::{ModelCall, Produced};
use wopr_engine::{Outcome, Progress};
use wopr_wire::sse;

use super::{Asking, MAX_ANSWER, MAX_TEXT, Wire, answer::Answer, malformed, too_large};
use crate::{
    egress::{Gate, Request, Seam, StreamLimits},
    events,
    http::{failed, failure},
    redact::Secrets,
};

/// Maximum size of an event in bytes.
const MAX_EVENT: usize = 256 << 10;
/// How long a provider may be silent.
const IDLE: Duration = Duration::from_secs(60);
/// How long a provider may take to say why it does not answer.
const REASON_TIME: Duration = Duration::from_secs(5);
/// The first pause between two pieces.
const PAUSE: Duration = Duration::from_millis(150);
/// A piece of this size does not wait for the pause.
const PIECE: usize = 4 << 10;
/// The most pieces of one answer, each an event of the run.
const MAX_PIECES: u32 = 500;

/// The text that was not recorded yet when the answer ended.
pub(super) struct Rest {
    pub(super) text: String,
    pub(super) starts: bool,
}

pub(super) async fn streamed(
    gate: &Gate,
    wire: &dyn Wire,
    request: Request,
    call: &ModelCall,
    asking: &Asking<'_>,
    progress: &Progress,
) -> Result<(Answer, Option<Rest>), Outcome> {
    let total = Duration::from_millis(call.timeout_ms);
    let limits = StreamLimits {
        headers: total,
        idle: IDLE.min(total),
        total,
        body: MAX_ANSWER,
    };
    let place = request.url.clone();
    let response = gate.stream(Seam::Model, request, limits).await;
    let (head, body) = response.map_err(|error| failure(&error, &place))?.into_parts();
    if !head.status.is_success() {
        // One that is cut off, too large or slow has its status all the same.
        let read = tokio::time::timeout(REASON_TIME, body.collect(false)).await;
        let body = read.ok().and_then(Result::ok);
        let body = body.map(|(body, _)| body).unwrap_or_default();
        return Err(asking.refused(head.status, &head.headers, &body));
    }
    let mut pieces = Pieces::new(asking.secrets, progress);
    if is_json(&head.headers) {
        // The provider does not stream.
        let (body, _share) = body
            .collect(true)
            .await
            .map_err(|error| failure(&error, &place))?;
        let answer = match body.trim_ascii_start().first() {
            Some(b'{' | b'[') => asking.read(wire, &body)?,
            // An event stream under a wrong name.
            Some(_) | None => read_events(wire, asking, &body)?,
        };
        let rest = pieces.rest(&answer.text);
        return Ok((answer, rest));
    }
    let mut answer = Answer::default();
    let mut events = std::pin::pin!(events(body, MAX_EVENT));
    loop {
        let next = tokio::select! {
            next = events.next() => next,
            () = tokio::time::sleep_until(pieces.due(&answer.text)) => {
                pieces.flush(&answer.text).await?;
                continue;
            }
        };
        let Some(event) = next else { break };
        let event = event.map_err(|error| failure(&error, &place))?;
        if read_event(wire, asking, &event, &mut answer)?.is_break() {
            break;
        }
        if pieces.is_large(&answer.text) {
            pieces.flush(&answer.text).await?;
        }
    }
    let rest = pieces.rest(&answer.text);
    Ok((answer, rest))
}

/// Reads an event into the answer. Breaks at the one that ends the stream.
fn read_event(
    wire: &dyn Wire,
    asking: &Asking<'_>,
    event: &sse::Event,
    answer: &mut Answer,
) -> Result<ControlFlow<()>, Outcome> {
    if event.data.trim() == "[DONE]" {
        return Ok(ControlFlow::Break(()));
    }
    if event.data.is_empty() {
        return Ok(ControlFlow::Continue(()));
    }
    let document: Value = serde_json::from_str(&event.data).map_err(|_| malformed())?;
    asking.check(wire, &document)?;
    wire.read_event(document, answer).map_err(|_| malformed())?;
    match answer.text.len() > MAX_TEXT {
        true => Err(too_large()),
        false => Ok(ControlFlow::Continue(())),
    }
}

/// Reads a stream that came as a whole.
fn read_events(wire: &dyn Wire, asking: &Asking<'_>, body: &[u8]) -> Result<Answer, Outcome> {
    let (mut decoder, mut events) = (sse::Decoder::new(MAX_EVENT), Vec::new());
    decoder.feed(body, &mut events).map_err(|_| too_large())?;
    let mut answer = Answer::default();
    for event in &events {
        if read_event(wire, asking, event, &mut answer)?.is_break() {
            break;
        }
    }
    match events.is_empty() {
        true => Err(malformed()),
        false => Ok(answer),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let named = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = named.and_then(|value| value.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

/// What of a text is recorded.
struct Pieces<'a> {
    secrets: &'a Secrets,
    progress: &'a Progress,
    /// Bytes of the text that are recorded.
    n_recorded: usize,
    n_pieces: u32,
    last: Instant,
}

impl<'a> Pieces<'a> {
    fn new(secrets: &'a Secrets, progress: &'a Progress) -> Self {
        Self {
            secrets,
            progress,
            n_recorded: 0,
            n_pieces: 0,
            last: Instant::now(),
        }
    }

    /// Where the text ends that may be recorded.
    fn safe_end(&self, text: &str) -> usize {
        let end = text.len() - self.secrets.begun_in(text);
        text.floor_char_boundary(end.max(self.n_recorded))
    }

    fn is_large(&self, text: &str) -> bool {
        self.safe_end(text) >= self.n_recorded + PIECE && self.n_pieces < MAX_PIECES
    }

    /// When the next piece is due. Long answers come in larger pieces.
    fn due(&self, text: &str) -> Instant {
        let far = Duration::from_secs(3_600);
        match self.safe_end(text) > self.n_recorded && self.n_pieces < MAX_PIECES {
            true => self.last + PAUSE * (1 + self.n_pieces / 50),
            false => Instant::now() + far,
        }
    }

    async fn flush(&mut self, text: &str) -> Result<(), Outcome> {
        let mut end = self.safe_end(text);
        // A credential that is in the text already must not be cut in two.
        if let Some(start) = self.secrets.cut_by(text, end) {
            end = start.max(self.n_recorded);
        }
        self.last = Instant::now();
        if end == self.n_recorded {
            return Ok(());
        }
        let piece = Produced::Chunk {
            text: self.secrets.text(&text[self.n_recorded..end]),
            starts: self.n_pieces == 0,
            is_last: false,
            end: None,
        };
        self.n_recorded = end;
        self.n_pieces += 1;
        let lost = |_| {
            failed(
                "model_call_failed",
                "nobody waits for the answer".to_owned(),
                true,
            )
        };
        self.progress.made(vec![piece]).await.map_err(lost)
    }

    fn rest(&self, text: &str) -> Option<Rest> {
        let rest = &text[self.n_recorded..];
        (self.n_pieces > 0 || !rest.is_empty()).then(|| Rest {
            text: self.secrets.text(rest),
            starts: self.n_pieces == 0,
        })
    }
}
