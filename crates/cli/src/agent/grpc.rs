//! The gRPC binding: protocol buffers over HTTP/2.
//!
//! Messages are length-prefixed and the status comes in the trailers. Since there is little more to the
//! protocol, it runs on the same HTTP client as the other bindings, with its TLS, timeouts and limits. We do
//! not offer compression, so agents must not use it.

use anyhow::{Context as _, Result};
use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::stream;
use http_body_util::BodyExt as _;
use reqwest::{
    Body, Method, StatusCode,
    header::{CONTENT_TYPE, HeaderMap},
};
use serde_json::Value;
use wopr_wire::{
    a2a::{
        error::Kind,
        exchange::{self, Form, Reply, Request},
        protobuf::{self, SERVICE},
    },
    json::Object,
};

use super::{
    line::{Items, Line},
    refusal::Refusal,
};
use crate::{
    client::{self, MAX_ANSWER, MAX_EVENT, exit_of},
    exit::{Exit, Failure},
};

const GRPC: &str = "application/grpc";
/// Length of a message header: the compression flag and the length.
const HEAD: usize = 5;
/// Maximum length of an error message in bytes.
const MAX_TEXT: usize = 8 << 10;

/// Sends a request and waits for the reply.
pub(super) async fn call(line: &Line, request: Request) -> Result<Reply> {
    let (operation, form) = (request.operation(), Form::proto(line.version()));
    let mut call = Call::start(line, request, None, MAX_ANSWER).await?;
    let reply = call.next().await?;
    if reply.is_some() {
        // An error status after the message invalidates it.
        while call.next().await?.is_some() {}
    }
    let reply = reply.ok_or_else(|| line.unreadable(&"there is none"))?;
    Reply::decode(operation, form, Value::Object(reply)).map_err(|error| line.unreadable(&error))
}

/// Opens a stream. Its first item reports an invalid request.
pub(super) async fn open(line: &Line, request: Request, last: Option<&str>) -> Result<Items> {
    let form = Form::proto(line.version());
    let mut call = Call::start(line, request, last, MAX_EVENT).await?;
    let first = call.next().await?;
    let items = stream::try_unfold((first, call), move |(first, mut call)| async move {
        let next = match first {
            Some(first) => Some(first),
            None => call.next().await?,
        };
        let Some(next) = next else { return Ok(None) };
        let item = exchange::read_item(form, Value::Object(next)).context("read an item of the stream")?;
        Ok(Some(((None, item), (None, call))))
    });
    Ok(Box::pin(items))
}

struct Call {
    response: &'static protobuf::Message,
    body: Body,
    /// Received bytes that do not form a complete message yet.
    buffer: BytesMut,
    /// Maximum message size in bytes.
    max: usize,
    /// The response headers, which hold the status if the call has no message.
    headers: HeaderMap,
    is_over: bool,
    endpoint: String,
    has_key: bool,
}

impl Call {
    async fn start(line: &Line, request: Request, last: Option<&str>, max: usize) -> Result<Self> {
        let (operation, version) = (request.operation(), line.version());
        let method = protobuf::method(version, operation).ok_or_else(|| {
            Failure::new(
                Exit::Failed,
                format!("A2A {version} has no such operation over gRPC"),
            )
            .hint("its HTTP+JSON binding has it: --binding http-json, if the agent offers that")
        })?;
        let document = request.into_document(Form::proto(version));
        let document = document.context("write the request")?;
        let message = protobuf::write(method.request, &document).context("write the request")?;
        let url = line.at(|_| format!("/{}.{SERVICE}/{}", version.package(), method.name));
        let request = line
            .request(operation, Method::POST, url)
            .header(CONTENT_TYPE, GRPC)
            .header("te", "trailers")
            .body(sealed(&message)?);
        let response = line.send(request, GRPC, last).await?;
        let status = response.status();
        let media = response.headers().get(CONTENT_TYPE);
        let is_grpc = media
            .and_then(|media| media.to_str().ok())
            .is_some_and(|media| media.starts_with(GRPC));
        if status != StatusCode::OK || !is_grpc {
            let refusal = Refusal {
                kind: None,
                message: "",
                label: &format!("{status}, not gRPC"),
                exit: exit_of(status),
                is_forbidden: status == StatusCode::FORBIDDEN,
            };
            return Err(refusal.into_failure(line.has_key()).into());
        }
        Ok(Self {
            response: method.response,
            headers: response.headers().clone(),
            body: Body::from(response),
            buffer: BytesMut::new(),
            max,
            is_over: false,
            endpoint: line.endpoint().to_owned(),
            has_key: line.has_key(),
        })
    }

    /// Reads the next message. Returns `None` when the call ended successfully.
    async fn next(&mut self) -> Result<Option<Object>> {
        loop {
            if let Some(message) = take(&mut self.buffer, self.max)? {
                let most = wopr_connect::parsed_limit(self.max);
                let (object, _) = protobuf::read_within(self.response, &message, most)
                    .context("read the agent's message")?;
                return Ok(Some(object));
            }
            if self.is_over {
                return Ok(None);
            }
            let frame = self.body.frame().await.transpose();
            let frame = frame.map_err(|error| client::broken_off(&error))?;
            let Some(frame) = frame else {
                let headers = std::mem::take(&mut self.headers);
                self.end(&headers)?;
                continue;
            };
            match frame.into_data() {
                Ok(data) => self.buffer.extend_from_slice(&data),
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        self.end(&trailers)?;
                    }
                }
            }
        }
    }

    /// Reads the call's status.
    fn end(&mut self, trailers: &HeaderMap) -> Result<()> {
        self.is_over = true;
        let text = |name| trailers.get(name).and_then(|value| value.to_str().ok());
        let code = text("grpc-status").and_then(|code| code.parse::<u8>().ok());
        match code {
            Some(0) if self.buffer.is_empty() => Ok(()),
            Some(0) | None => Err(Failure::new(
                Exit::Unreachable,
                format!("{} broke off its answer", self.endpoint),
            )
            .into()),
            Some(code) => {
                let message = unescape(text("grpc-message").unwrap_or_default());
                let details = text("grpc-status-details-bin").and_then(details);
                let kind = details.as_deref().and_then(Kind::from_reason);
                Err(of_status(code, kind, &message).into_failure(self.has_key).into())
            }
        }
    }
}

/// Adds the message header.
fn sealed(message: &[u8]) -> Result<Vec<u8>> {
    let length = u32::try_from(message.len()).context("send more than four gigabytes")?;
    let mut out = Vec::with_capacity(HEAD + message.len());
    out.push(0);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(message);
    Ok(out)
}

/// Removes the first message from the buffer if it is complete.
fn take(buffer: &mut BytesMut, max: usize) -> Result<Option<Bytes>> {
    let Some([compressed, length @ ..]) = buffer.first_chunk::<HEAD>() else {
        return Ok(None);
    };
    if *compressed != 0 {
        return Err(Failure::new(
            Exit::Failed,
            "the agent compressed its answer, which nobody offered",
        )
        .into());
    }
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > max {
        return Err(Failure::new(Exit::Failed, format!("the answer has more than {max} bytes")).into());
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

/// Maps a status code to its error.
fn of_status<'a>(code: u8, kind: Option<Kind>, message: &'a str) -> Refusal<'a> {
    let (label, exit) = match code {
        1 => ("CANCELLED", Exit::Failed),
        3 => ("INVALID_ARGUMENT", Exit::Failed),
        4 => ("DEADLINE_EXCEEDED", Exit::Failed),
        5 => ("NOT_FOUND", Exit::NotFound),
        6 => ("ALREADY_EXISTS", Exit::Failed),
        7 => ("PERMISSION_DENIED", Exit::Unauthorised),
        8 => ("RESOURCE_EXHAUSTED", Exit::Busy),
        9 => ("FAILED_PRECONDITION", Exit::Failed),
        10 => ("ABORTED", Exit::Failed),
        11 => ("OUT_OF_RANGE", Exit::Failed),
        12 => ("UNIMPLEMENTED", Exit::Failed),
        13 => ("INTERNAL", Exit::Failed),
        14 => ("UNAVAILABLE", Exit::Busy),
        15 => ("DATA_LOSS", Exit::Failed),
        16 => ("UNAUTHENTICATED", Exit::Unauthorised),
        _ => ("UNKNOWN", Exit::Failed),
    };
    Refusal {
        label: kind.map_or(label, Kind::reason),
        kind,
        message,
        exit,
        is_forbidden: code == 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bytes: &[u8], max: usize) -> Result<Option<Bytes>> {
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
