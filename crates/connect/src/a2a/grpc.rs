//! The gRPC binding: protocol buffers over HTTP/2.
//!
//! Messages are length-prefixed and the status comes in the trailers. Since there is little more to the
//! protocol, it runs on the same HTTP client as the other bindings, with its TLS, timeouts and limits. We do
//! not offer compression, so agents must not use it.

use std::time::SystemTime;

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::Value;
use wopr_core::parsed_limit;
use wopr_wire::a2a::{
    error::Kind,
    exchange::{self, Form, Reply, Request},
    method::Operation,
    protobuf::{self, SERVICE},
};

use super::{
    error::{Error, RemoteError, Status, bounded},
    line::{Items, Line, MAX_ANSWER, MAX_EVENT, Sending, media_type},
};
use crate::redact::Secrets;
use crate::{
    egress::{EgressError, LimitedBody},
    http::retry_after,
};

const GRPC: &str = "application/grpc";
/// Length of a message header: the compression flag and the length.
const HEAD: usize = 5;
/// Maximum length of an error message in bytes.
const MAX_TEXT: usize = 8 << 10;

/// Sends a request and waits for the reply.
pub(super) async fn call(line: &Line, request: Request) -> Result<Reply, Error> {
    let (operation, form) = (request.operation(), Form::proto(line.version()));
    let mut call = Call::start(line, request, None, MAX_ANSWER).await?;
    let reply = call.next().await?;
    if reply.is_some() {
        // An error status after the message invalidates it.
        while call.next().await?.is_some() {}
    }
    let reply = reply.ok_or_else(|| line.undecodable(&"there is none"))?;
    Reply::decode(operation, form, reply).map_err(|error| line.undecodable(&error))
}

/// Opens a stream. Its first item reports an invalid request.
pub(super) async fn open(line: &Line, request: Request, last: Option<&str>) -> Result<Items, Error> {
    let form = Form::proto(line.version());
    let mut call = Call::start(line, request, last, MAX_EVENT).await?;
    let first = call.next().await?;
    let items = stream::try_unfold((first, call), move |(first, mut call)| async move {
        let next = match first {
            Some(first) => Some(first),
            None => call.next().await?,
        };
        let Some(next) = next else { return Ok(None) };
        let item = exchange::read_item(form, next);
        let item = item.map_err(|error| Error::undecodable(&error, &call.secrets))?;
        Ok(Some(((None, item), (None, call))))
    });
    Ok(Box::pin(items))
}

struct Call {
    response: &'static protobuf::Message,
    body: LimitedBody,
    /// Received bytes that do not form a complete message yet.
    buffer: BytesMut,
    /// Maximum message size in bytes.
    max: usize,
    /// The response headers, which hold the status if the call has no message.
    headers: HeaderMap,
    is_over: bool,
    secrets: Secrets,
    operation: Operation,
}

impl Call {
    async fn start(line: &Line, request: Request, last: Option<&str>, max: usize) -> Result<Self, Error> {
        let (operation, version) = (request.operation(), line.version());
        let method = protobuf::method(version, operation).ok_or(Error::NotOffered { operation, version })?;
        let document = request.into_document(Form::proto(version))?;
        let message = protobuf::write(method.request, &document)?;
        let response = line
            .send(Sending {
                operation,
                method: Method::POST,
                url: line.at(|_| format!("/{}.{SERVICE}/{}", version.package(), method.name)),
                content_type: Some(GRPC),
                body: sealed(&message)?.into(),
                accept: GRPC,
                last,
            })
            .await?;
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK || !media_type(&head.headers).starts_with(GRPC) {
            return Err(Error::Status(Status {
                status: head.status,
                retry_after: retry_after(&head.headers, SystemTime::now()),
                message: String::new(),
                label: format!("{}, not gRPC", head.status),
            }));
        }
        Ok(Self {
            response: method.response,
            headers: head.headers,
            body,
            buffer: BytesMut::new(),
            max,
            is_over: false,
            secrets: line.secrets.clone(),
            operation,
        })
    }

    /// Reads the next message. Returns `None` when the call ended successfully.
    async fn next(&mut self) -> Result<Option<Value>, Error> {
        loop {
            if let Some(message) = take(&mut self.buffer, self.max)? {
                let most = parsed_limit(self.max);
                let (object, _) = protobuf::read_within(self.response, &message, most)
                    .map_err(|error| Error::undecodable(&error, &self.secrets))?;
                let mut document = Value::Object(object);
                self.secrets.redact(&mut document);
                return Ok(Some(document));
            }
            if self.is_over {
                return Ok(None);
            }
            let Some(frame) = self.body.frame().await else {
                let headers = std::mem::take(&mut self.headers);
                self.end(&headers)?;
                continue;
            };
            match frame?.into_data() {
                Ok(data) => {
                    self.buffer.extend_from_slice(&data);
                    self.body.hold(self.buffer.len())?;
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        self.end(&trailers)?;
                    }
                }
            }
        }
    }

    /// Reads the call's status.
    fn end(&mut self, trailers: &HeaderMap) -> Result<(), Error> {
        self.is_over = true;
        let text = |name| trailers.get(name).and_then(|value| value.to_str().ok());
        let code = text("grpc-status").and_then(|code| code.parse::<u8>().ok());
        match code {
            Some(0) if self.buffer.is_empty() => Ok(()),
            Some(0) | None => {
                let error = EgressError::Exchange("the call ended without its status".into());
                Err(Error::Interrupted(error))
            }
            Some(code) => {
                let message = unescape(text("grpc-message").unwrap_or_default());
                let message = bounded(&self.secrets.text(&message));
                let reason = text("grpc-status-details-bin").and_then(details);
                let kind = reason.as_deref().and_then(Kind::from_reason);
                Err(of_status(code, kind, message, trailers).about_task(self.operation))
            }
        }
    }
}

/// Adds the message header.
fn sealed(message: &[u8]) -> Result<Vec<u8>, Error> {
    let length = u32::try_from(message.len())
        .map_err(|_| Error::Unwritable("it has more than four gigabytes".to_owned()))?;
    let mut out = Vec::with_capacity(HEAD + message.len());
    out.push(0);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(message);
    Ok(out)
}

/// Removes the first message from the buffer if it is complete.
fn take(buffer: &mut BytesMut, max: usize) -> Result<Option<Bytes>, Error> {
    let Some([compressed, length @ ..]) = buffer.first_chunk::<HEAD>() else {
        return Ok(None);
    };
    if *compressed != 0 {
        let why = "it is compressed, which we did not offer";
        return Err(Error::Undecodable(why.to_owned()));
    }
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > max {
        return Err(Error::TooLarge { limit: max });
    }
    if buffer.len() - HEAD < length {
        return Ok(None);
    }
    buffer.advance(HEAD);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// Extracts the reason from the status details, which are base64 with or without padding.
fn details(text: &str) -> Option<String> {
    if text.len() > MAX_TEXT {
        return None;
    }
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let bytes = GeneralPurpose::new(&alphabet::STANDARD, config).decode(text);
    protobuf::status_reason(&bytes.ok()?)
}

/// Percent-decodes the status message.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes().take(MAX_TEXT);
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut ahead = rest.clone();
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        match (digit(ahead.next()), digit(ahead.next())) {
            (Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).unwrap_or(byte));
                rest = ahead;
            }
            (_, _) => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Maps a status code to its error. A status without an A2A error becomes its HTTP equivalent.
fn of_status(code: u8, kind: Option<Kind>, message: String, trailers: &HeaderMap) -> Error {
    let (name, status) = match code {
        1 => ("CANCELLED", StatusCode::INTERNAL_SERVER_ERROR),
        3 => ("INVALID_ARGUMENT", StatusCode::BAD_REQUEST),
        4 => ("DEADLINE_EXCEEDED", StatusCode::GATEWAY_TIMEOUT),
        5 => ("NOT_FOUND", StatusCode::NOT_FOUND),
        6 => ("ALREADY_EXISTS", StatusCode::CONFLICT),
        7 => ("PERMISSION_DENIED", StatusCode::FORBIDDEN),
        8 => ("RESOURCE_EXHAUSTED", StatusCode::TOO_MANY_REQUESTS),
        9 => ("FAILED_PRECONDITION", StatusCode::BAD_REQUEST),
        10 => ("ABORTED", StatusCode::CONFLICT),
        11 => ("OUT_OF_RANGE", StatusCode::BAD_REQUEST),
        12 => ("UNIMPLEMENTED", StatusCode::NOT_IMPLEMENTED),
        13 => ("INTERNAL", StatusCode::INTERNAL_SERVER_ERROR),
        14 => ("UNAVAILABLE", StatusCode::SERVICE_UNAVAILABLE),
        15 => ("DATA_LOSS", StatusCode::INTERNAL_SERVER_ERROR),
        16 => ("UNAUTHENTICATED", StatusCode::UNAUTHORIZED),
        _ => ("UNKNOWN", StatusCode::INTERNAL_SERVER_ERROR),
    };
    match kind {
        Some(kind) => Error::Remote(RemoteError {
            kind: Some(kind),
            code: kind.code(),
            reason: kind.reason(),
            message,
            label: kind.reason().to_owned(),
        }),
        None => Error::Status(Status {
            status,
            retry_after: retry_after(trailers, SystemTime::now()),
            message,
            label: name.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bytes: &[u8], max: usize) -> Result<Option<Bytes>, Error> {
        take(&mut BytesMut::from(bytes), max)
    }

    #[test]
    fn messages_are_decoded_one_by_one() {
        let mut buffer = BytesMut::from(&sealed(b"one").unwrap()[..]);
        buffer.extend_from_slice(&sealed(b"").unwrap());
        buffer.extend_from_slice(&sealed(b"three").unwrap()[..7]);
        let mut next = || take(&mut buffer, 10).unwrap();
        assert_eq!(next().as_deref(), Some(&b"one"[..]));
        assert_eq!(next().as_deref(), Some(&b""[..]));
        assert_eq!(next(), None);
        buffer.extend_from_slice(b"ree");
        assert_eq!(take(&mut buffer, 10).unwrap().as_deref(), Some(&b"three"[..]));
    }

    #[test]
    fn too_large_or_compressed_message_is_refused_by_its_header() {
        assert!(taken(b"\0\0\0\0", 10).unwrap().is_none());
        assert!(taken(b"\0\0\0\0\x0a", 10).unwrap().is_none());
        assert!(taken(b"\0\0\0\0\x0b", 10).is_err());
        assert!(taken(b"\0\xff\xff\xff\xff", MAX_ANSWER).is_err());
        assert!(taken(b"\x01\0\0\0\0", 10).is_err());
    }

    #[test]
    fn status_messages_are_percent_decoded() {
        for (text, wanted) in [
            ("plain", "plain"),
            ("%C3%A9%20x", "\u{e9} x"),
            ("100%", "100%"),
            ("%zz%4", "%zz%4"),
            ("%ff", "\u{fffd}"),
        ] {
            assert_eq!(unescape(text), wanted, "{text}");
        }
    }
}
