//! Responses that end when their credential does.
//!
//! Access is decided when a request begins. A long response, such as an event stream, must end when its key is
//! revoked or its token expires, whichever face it comes from, so it is cut off here. The client reconnects and
//! gets the reason as an error. A gRPC call always ends with a status.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, HeaderValue};
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::{AuthError, verdict::Validity};

use crate::{
    message::{Body, BoxError},
    telemetry,
};

/// A body that ends when its credential does.
pub(super) struct Lasting {
    /// `None` once it has ended.
    body: Option<Body>,
    key_ended: BoxFuture<'static, AuthError>,
    is_grpc: bool,
}

/// Limits a body of unknown length; others are sent soon enough.
pub(super) fn bound(body: Body, validity: Validity, is_grpc: bool) -> Body {
    if body.size_hint().exact().is_some() {
        return body;
    }
    Body::new(Lasting {
        body: Some(body),
        key_ended: validity.ended().boxed(),
        is_grpc,
    })
}

/// The trailers of a gRPC call whose credential is no longer valid.
fn unauthenticated() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    let message = HeaderValue::from_static("the credential is not accepted any more");
    trailers.insert(
        "grpc-status",
        HeaderValue::from(tonic::Code::Unauthenticated as i32),
    );
    trailers.insert("grpc-message", message);
    trailers
}

impl HttpBody for Lasting {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        if this.key_ended.as_mut().poll(context).is_ready() {
            telemetry::cut_off();
            this.body = None;
            return Poll::Ready(this.is_grpc.then(|| Ok(Frame::trailers(unauthenticated()))));
        }
        let frame = ready!(Pin::new(body).poll_frame(context));
        if frame.is_none() {
            this.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or(SizeHint::with_exact(0), HttpBody::size_hint)
    }
}
