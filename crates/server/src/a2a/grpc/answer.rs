//! gRPC responses: one message or a stream of messages, followed by the status.
//!
//! A stream item is built only when the client has room for it, so a slow reader holds a single batch. A
//! stream that ends with its task ends with `OK`. A stream that ends early, because the host stops or the
//! store fails, ends with `UNAVAILABLE`, and the client may subscribe again.

use std::{collections::VecDeque, convert::Infallible};

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt as _};
use http::{HeaderMap, HeaderValue, header};
use http_body::Frame;
use http_body_util::StreamBody;
use serde_json::Value;
use tokio::time::Instant;
use tonic::{Code, Status};
use wopr_wire::a2a::{
    exchange::{Document, Form},
    protobuf::{self, Method},
};

use super::{
    super::stream::{Item, Step, TaskStream},
    media::GRPC,
    message, status,
};
use crate::answers::Crowded;

use crate::message::{Body, Response};

/// A response that ends before its first message.
pub(super) fn refused(status: &Status) -> Response {
    let mut response = status.clone().into_http::<Body>();
    // Set the exact content type, so that it is the same with and without messages.
    let grpc = HeaderValue::from_static(GRPC);
    response.headers_mut().insert(header::CONTENT_TYPE, grpc);
    response
}

/// Encodes a document as the response of a method.
pub(super) fn message(method: Method, document: &Document) -> Result<Bytes, Status> {
    let broken = |error: &dyn std::fmt::Display| {
        tracing::error!(method = method.name, %error, "a2a answer does not serialise");
        Status::internal("internal error")
    };
    let document = serde_json::to_value(document).map_err(|error| broken(&error))?;
    let Value::Object(document) = document else {
        return Err(broken(&"it is no object"));
    };
    let bytes = protobuf::write(method.response, &document).map_err(|error| broken(&error))?;
    message::seal(&bytes)
}

/// A response with one message.
pub(super) fn once(message: Bytes) -> Response {
    response(stream::iter([Ok(message)]))
}

/// A task stream that is encoded while the client reads it.
struct Running {
    stream: TaskStream,
    method: Method,
    form: Form,
    deadline: Option<Instant>,
    /// Items that were read but not yet written.
    ready: VecDeque<Item>,
}

impl Running {
    /// Encodes an item and reserves memory for it.
    async fn written(&self, item: Item) -> Result<Bytes, Status> {
        let item = Document::item(item.response, item.is_final, self.form);
        let message = message(self.method, &item)?;
        self.stream
            .hold(message)
            .await
            .map_err(|Crowded| status::unavailable())
    }

    /// Returns the next message, or `None` at the end.
    async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Some(self.written(item).await);
            }
            let step = match self.deadline {
                Some(deadline) => match tokio::time::timeout_at(deadline, self.stream.next()).await {
                    Ok(step) => step,
                    Err(_) => return Some(Err(status::too_late())),
                },
                None => self.stream.next().await,
            };
            match step {
                Some(Step::Items(items)) => self.ready.extend(items),
                // HTTP/2 has its own pings.
                Some(Step::KeepAlive) => {}
                None if self.stream.is_over() => return None,
                None => return Some(Err(status::broken_off())),
            }
        }
    }
}

/// A streaming response.
///
/// # Errors
/// If there is no memory for the first item. The call then ends before its first header, so the client can
/// retry it.
pub(super) async fn stream(
    mut stream: TaskStream,
    method: Method,
    form: Form,
    deadline: Option<Instant>,
) -> Result<Response, Status> {
    let opening = stream.opening();
    let running = Running {
        stream,
        method,
        form,
        deadline,
        ready: VecDeque::new(),
    };
    let opening = match opening {
        Some(item) => Some(Ok(running.written(item).await?)),
        None => None,
    };
    // Nothing follows an error.
    let rest = stream::unfold(Some(running), |running| async {
        let mut running = running?;
        let next = running.next().await?;
        let goes_on = next.is_ok();
        Some((next, goes_on.then_some(running)))
    });
    Ok(response(stream::iter(opening).chain(rest)))
}

fn response(messages: impl Stream<Item = Result<Bytes, Status>> + Send + 'static) -> Response {
    // Send the trailers once: after the first error or after the last message.
    let frames = messages
        .map(Some)
        .chain(stream::iter([None]))
        .scan(false, |is_over, message| {
            let frame = match message {
                _ if *is_over => None,
                Some(Ok(message)) => Some(Frame::data(message)),
                Some(Err(status)) => {
                    *is_over = true;
                    Some(Frame::trailers(trailers(&status)))
                }
                None => Some(Frame::trailers(trailers(&Status::new(Code::Ok, "")))),
            };
            std::future::ready(frame.map(Ok::<_, Infallible>))
        });
    let mut response = Response::new(Body::new(StreamBody::new(frames)));
    let grpc = HeaderValue::from_static(GRPC);
    response.headers_mut().insert(header::CONTENT_TYPE, grpc);
    response
}

fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if let Err(error) = status.add_header(&mut trailers) {
        tracing::error!(%error, "status does not fit a header");
        trailers.insert("grpc-status", HeaderValue::from(Code::Internal as i32));
    }
    trailers
}
