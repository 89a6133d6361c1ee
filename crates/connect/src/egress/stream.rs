//! The body of a response while it arrives, within its limits.
//!
//! Every way a peer can keep a body going has a bound: the bytes in total, the time between two frames, the
//! time in total, and the size of the trailers. Time counts only while the caller waits for a frame, so a slow
//! caller is never mistaken for a stalled peer. After an error the body has ended and the peer is cut off.
//! What the frames mean is up to the caller.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::{
    error::EgressError,
    gate::{AnswerShare, Holder},
};
use crate::{shares::Share, weight};

/// The protocol to speak to a peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Http1,
    /// HTTP/2 over TLS if the peer agrees to it, else HTTP/1.1.
    Negotiated,
    /// HTTP/2 only: over TLS by ALPN, over plain text with prior knowledge, as gRPC does.
    Http2,
}

/// The limits of a streamed response. [`Duration::MAX`] and [`usize::MAX`] mean none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    /// From the start of name resolution to the headers of the response.
    pub headers: Duration,
    /// The wait for the next frame of the body.
    pub idle: Duration,
    /// From the start of name resolution to the last byte.
    pub total: Duration,
    /// Bytes of the body.
    pub body: usize,
}

/// The body of a response, which fails with an [`EgressError`] at its limits.
pub struct LimitedBody {
    incoming: Incoming,
    /// Bytes of the body.
    limit: usize,
    n_read: usize,
    /// Bytes of the trailers.
    max_trailers: usize,
    idle: Duration,
    /// Set while the caller waits for a frame.
    stall: Option<Pin<Box<Sleep>>>,
    deadline: Pin<Box<Sleep>>,
    share: Share<Holder>,
    is_over: bool,
}

impl LimitedBody {
    /// Refuses a body whose declared length is over the limit.
    pub(super) fn new(
        incoming: Incoming,
        limits: StreamLimits,
        max_trailers: usize,
        started: Instant,
        share: Share<Holder>,
    ) -> Result<Self, EgressError> {
        if incoming.size_hint().lower() > limits.body as u64 {
            return Err(EgressError::ResponseTooLarge { limit: limits.body });
        }
        let deadline = match started.checked_add(limits.total) {
            Some(end) => sleep_until(end),
            None => sleep(Duration::MAX),
        };
        Ok(Self {
            incoming,
            limit: limits.body,
            n_read: 0,
            max_trailers,
            idle: limits.idle,
            stall: None,
            deadline: Box::pin(deadline),
            share,
            is_over: false,
        })
    }

    /// Charges the caller's buffer of `n_bytes` to the memory for responses, in place of the previous charge.
    ///
    /// # Errors
    /// Returns [`EgressError::Busy`] if other responses use up that memory.
    pub fn hold(&mut self, n_bytes: usize) -> Result<(), EgressError> {
        let more = n_bytes.saturating_sub(self.share.amount());
        self.share.shrink_to(n_bytes);
        if self.share.grow(more) {
            Ok(())
        } else {
            Err(EgressError::Busy)
        }
    }

    /// Reads the whole body and ignores trailers. For JSON, the memory of its parsed form is charged as well,
    /// so that parsing never exceeds the available memory.
    ///
    /// # Errors
    /// Returns the first limit that the body exceeds, or the failure of the connection.
    pub async fn collect(mut self, is_json: bool) -> Result<(Bytes, AnswerShare), EgressError> {
        let mut body = BytesMut::new();
        while let Some(frame) = self.frame().await {
            let Ok(chunk) = frame?.into_data() else { continue };
            if !self.share.grow(chunk.len()) {
                return Err(EgressError::Busy);
            }
            body.extend_from_slice(&chunk);
        }
        let n_parsed = if is_json {
            weight::weigh(&body, self.limit)?
        } else {
            0
        };
        if !self.share.grow(n_parsed) {
            return Err(EgressError::Busy);
        }
        let share = AnswerShare {
            _share: Arc::new(self.share),
        };
        let held = Held {
            bytes: body.freeze(),
            _share: share.clone(),
        };
        Ok((Bytes::from_owner(held), share))
    }

    /// Checks a frame against the limits of size.
    fn admit(&mut self, frame: &Frame<Bytes>) -> Result<(), EgressError> {
        if let Some(chunk) = frame.data_ref() {
            if chunk.len() > self.limit - self.n_read {
                return Err(EgressError::ResponseTooLarge { limit: self.limit });
            }
            self.n_read += chunk.len();
        }
        if frame
            .trailers_ref()
            .is_some_and(|trailers| headers_len(trailers) > self.max_trailers)
        {
            return Err(EgressError::HeadersTooLarge {
                limit: self.max_trailers,
            });
        }
        Ok(())
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, EgressError>>> {
        if self.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(EgressError::Timeout)));
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) {
            self.stall = None;
            return Poll::Ready(frame.map(|frame| {
                let frame = frame.map_err(|error| EgressError::Exchange(error.into()))?;
                self.admit(&frame)?;
                Ok(frame)
            }));
        }
        let idle = self.idle;
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(idle)));
        match stall.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err(EgressError::Stalled))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Body for LimitedBody {
    type Data = Bytes;
    type Error = EgressError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EgressError>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let polled = self.poll_next(cx);
        self.is_over = matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl fmt::Debug for LimitedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedBody")
            .field("n_read", &self.n_read)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// Bytes that keep their memory share alive.
struct Held {
    bytes: Bytes,
    _share: AnswerShare,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

pub(super) fn headers_len(headers: &HeaderMap) -> usize {
    // Each header also has a colon, a space and a line end.
    headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum()
}
