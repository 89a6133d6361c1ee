//! Server-sent events of a streamed response as they arrive, each within its size limit.

use std::collections::VecDeque;

use futures_util::{Stream, stream};
use http_body_util::BodyExt as _;
use wopr_wire::sse;

use crate::{
    egress::{EgressError, LimitedBody},
    weight::weigh,
};

struct Reading {
    body: LimitedBody,
    decoder: sse::Decoder,
    ready: VecDeque<sse::Event>,
    /// Follows the events that are ready.
    failure: Option<EgressError>,
    /// Maximum size of an event in bytes.
    max: usize,
    /// Bytes received since the last complete event.
    n_pending: usize,
}

/// Decodes the events of a body, each of `max` bytes at most. The stream ends after an error.
pub fn events(body: LimitedBody, max: usize) -> impl Stream<Item = Result<sse::Event, EgressError>> + Send {
    let reading = Reading {
        body,
        decoder: sse::Decoder::new(max),
        ready: VecDeque::new(),
        failure: None,
        max,
        n_pending: 0,
    };
    stream::try_unfold(reading, |mut reading| async move {
        loop {
            if let Some(event) = reading.ready.pop_front() {
                weigh(event.data.as_bytes(), reading.max)?;
                return Ok(Some((event, reading)));
            }
            if let Some(failure) = reading.failure.take() {
                return Err(failure);
            }
            let Some(frame) = reading.body.frame().await else {
                return Ok(None);
            };
            let Ok(chunk) = frame?.into_data() else { continue };
            reading.feed(&chunk)?;
        }
    })
}

impl Reading {
    fn feed(&mut self, chunk: &[u8]) -> Result<(), EgressError> {
        let mut events = Vec::new();
        if self.decoder.feed(chunk, &mut events).is_err() {
            self.failure = Some(EgressError::ResponseTooLarge { limit: self.max });
        }
        self.n_pending = if events.is_empty() {
            self.n_pending + chunk.len()
        } else {
            chunk.len()
        };
        self.ready.extend(events);
        // Comments are not kept, so a long-idle stream holds no more than an event.
        self.body.hold(self.n_pending.min(self.max))
    }
}
