//! HTTP messages as the faces see them: a [`Request`], a [`Response`], and the [`Body`] of both.
//!
//! A body is complete bytes, or frames that are produced while the client reads. Complete bytes, which nearly
//! all responses are, need no allocation of their own.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};

pub type Request<B = Body> = http::Request<B>;
pub type Response<B = Body> = http::Response<B>;

/// The error of a body that was cut off.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug)]
pub struct Body(Content);

#[derive(Debug)]
enum Content {
    Complete(Full<Bytes>),
    Frames(UnsyncBoxBody<Bytes, BoxError>),
}

impl Body {
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Boxes a body of another type.
    pub fn new<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        Self(Content::Frames(body.map_err(Into::into).boxed_unsync()))
    }

    /// A body of unknown length, in pieces.
    pub fn from_stream<E: Into<BoxError> + 'static>(
        pieces: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    ) -> Self {
        Self::new(StreamBody::new(pieces.map_ok(Frame::data)))
    }
}

impl Default for Body {
    fn default() -> Self {
        Self(Content::Complete(Full::default()))
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self(Content::Complete(Full::new(bytes)))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Content::Complete(bytes) => Pin::new(bytes).poll_frame(cx).map_err(|never| match never {}),
            Content::Frames(frames) => Pin::new(frames).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Content::Complete(bytes) => bytes.is_end_stream(),
            Content::Frames(frames) => frames.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Complete(bytes) => bytes.size_hint(),
            Content::Frames(frames) => frames.size_hint(),
        }
    }
}
