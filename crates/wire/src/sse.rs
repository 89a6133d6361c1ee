//! Server-sent events: an encoder for the streams we serve and a decoder for the streams we follow.
//!
//! The encoder appends to a buffer the caller keeps. The decoder accepts chunks split at any byte and
//! implements the WHATWG event stream format: `LF`, `CR` and `CRLF` line breaks, multiple `data` lines,
//! comments and a byte order mark. It replaces invalid UTF-8 and buffers at most one event of bounded size.
//! Reconnecting and interpreting ids are left to the caller.

use std::time::Duration;

use serde::Serialize;

pub const CONTENT_TYPE: &str = "text/event-stream";

/// A comment that keeps a connection open; OpenWOP specifies the text.
pub const KEEP_ALIVE: &[u8] = b":keepalive\n\n";

/// The fields of a frame other than its data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head<'a> {
    /// The client sends this back as `Last-Event-ID`.
    pub id: Option<u64>,
    /// `None` means `message`.
    pub event: Option<&'a str>,
}

impl<'a> Head<'a> {
    #[must_use]
    pub const fn new(id: u64, event: &'a str) -> Self {
        Self {
            id: Some(id),
            event: Some(event),
        }
    }

    #[must_use]
    pub const fn id(id: u64) -> Self {
        Self {
            id: Some(id),
            event: None,
        }
    }
}

fn write_head(out: &mut Vec<u8>, head: Head<'_>) {
    if let Some(id) = head.id {
        out.extend_from_slice(b"id: ");
        out.extend_from_slice(itoa::Buffer::new().format(id).as_bytes());
        out.push(b'\n');
    }
    if let Some(event) = head.event {
        out.extend_from_slice(b"event: ");
        // A line break would end the field and let a name inject further fields.
        for part in event.as_bytes().split(|byte| matches!(byte, b'\r' | b'\n')) {
            out.extend_from_slice(part);
        }
        out.push(b'\n');
    }
}

/// Appends a frame. Line breaks in the data start further `data` lines, so any data is safe.
pub fn write_frame(out: &mut Vec<u8>, head: Head<'_>, data: &[u8]) {
    out.reserve(data.len() + 64);
    write_head(out, head);
    let mut rest = data;
    loop {
        out.extend_from_slice(b"data: ");
        let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
            out.extend_from_slice(rest);
            break;
        };
        out.extend_from_slice(&rest[..end]);
        out.push(b'\n');
        let is_crlf = rest[end..].starts_with(b"\r\n");
        rest = &rest[end + if is_crlf { 2 } else { 1 }..];
    }
    out.extend_from_slice(b"\n\n");
}

/// Appends a frame whose data is written by `write`, which must append a single line, such as compact JSON.
pub fn write_line_with(out: &mut Vec<u8>, head: Head<'_>, write: impl FnOnce(&mut Vec<u8>)) {
    write_head(out, head);
    out.extend_from_slice(b"data: ");
    let start = out.len();
    write(out);
    debug_assert!(
        !out[start..].iter().any(|byte| matches!(byte, b'\n' | b'\r')),
        "the data of a frame written in place is one line"
    );
    out.extend_from_slice(b"\n\n");
}

/// Appends a frame whose data is a JSON value on one line, serialized directly into the buffer.
///
/// # Errors
/// Returns an error if the value does not serialize; the buffer is then left unchanged.
pub fn write_json<T: Serialize + ?Sized>(
    out: &mut Vec<u8>,
    head: Head<'_>,
    value: &T,
) -> Result<(), serde_json::Error> {
    let start = out.len();
    write_head(out, head);
    out.extend_from_slice(b"data: ");
    // Compact JSON contains no raw line breaks: strings escape them.
    if let Err(error) = serde_json::to_writer(&mut *out, value) {
        out.truncate(start);
        return Err(error);
    }
    out.extend_from_slice(b"\n\n");
    Ok(())
}

/// An event of a stream we follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The most recent id the stream has set; empty if it set none, or cleared it.
    pub id: String,
    /// `message` if the stream did not name the event.
    pub event: String,
    /// The `data` lines, joined by `\n`.
    pub data: String,
}

/// An error after which a stream cannot be followed any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    #[error("hold an event of more than {limit} bytes")]
    TooLarge { limit: usize },
}

/// Decodes chunks of an event stream into events.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    event: String,
    id: String,
    retry: Option<Duration>,
    /// Set after a `CR`, because a following `LF` belongs to the same line break.
    skip_lf: bool,
    at_start: bool,
    is_broken: bool,
}

impl Decoder {
    /// `limit` is the maximum size of an unfinished event, in bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            event: String::new(),
            id: String::new(),
            retry: None,
            skip_lf: false,
            at_start: true,
            is_broken: false,
        }
    }

    /// Decodes the next chunk and appends the events it completes. An event left unfinished at the end of the
    /// stream is dropped.
    ///
    /// # Errors
    /// Returns an error if an event exceeds the limit. Events completed before it are still delivered; every
    /// later call fails.
    pub fn feed(&mut self, chunk: &[u8], events: &mut Vec<Event>) -> Result<(), SseError> {
        let too_large = SseError::TooLarge { limit: self.limit };
        if self.is_broken {
            return Err(too_large);
        }
        let mut rest = chunk;
        while !rest.is_empty() {
            if self.skip_lf {
                self.skip_lf = false;
                if rest[0] == b'\n' {
                    rest = &rest[1..];
                    continue;
                }
            }
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let part = &rest[..end.unwrap_or(rest.len())];
            if self.line.len() + self.data.len() + part.len() > self.limit {
                self.is_broken = true;
                return Err(too_large);
            }
            self.line.extend_from_slice(part);
            let Some(end) = end else {
                break;
            };
            self.skip_lf = rest[end] == b'\r';
            rest = &rest[end + 1..];
            let line = std::mem::take(&mut self.line);
            self.end_line(&line, events);
            // Reuse the allocation for the next line.
            self.line = line;
            self.line.clear();
        }
        Ok(())
    }

    /// The id to reconnect with; empty if there is none.
    #[must_use]
    pub fn last_event_id(&self) -> &str {
        &self.id
    }

    /// The delay the stream requests before a reconnect.
    #[must_use]
    pub const fn retry(&self) -> Option<Duration> {
        self.retry
    }

    fn end_line(&mut self, line: &[u8], events: &mut Vec<Event>) {
        let line = if std::mem::take(&mut self.at_start) {
            line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
        } else {
            line
        };
        if line.is_empty() {
            self.dispatch(events);
            return;
        }
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(0) => return,
            Some(colon) => {
                let value = &line[colon + 1..];
                (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, &line[line.len()..]),
        };
        match name {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => self.event = String::from_utf8_lossy(value).into_owned(),
            b"id" if !value.contains(&0) => self.id = String::from_utf8_lossy(value).into_owned(),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                let millis = std::str::from_utf8(value)
                    .ok()
                    .and_then(|digits| digits.parse().ok());
                self.retry = millis.map(Duration::from_millis).or(self.retry);
            }
            _ => {}
        }
    }

    fn dispatch(&mut self, events: &mut Vec<Event>) {
        let event = std::mem::take(&mut self.event);
        let data = std::mem::take(&mut self.data);
        if !std::mem::take(&mut self.has_data) {
            return;
        }
        events.push(Event {
            id: self.id.clone(),
            event: if event.is_empty() {
                "message".to_owned()
            } else {
                event
            },
            data: String::from_utf8_lossy(&data).into_owned(),
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn decode(chunks: &[&[u8]]) -> Vec<Event> {
        let mut decoder = Decoder::new(4096);
        let mut events = Vec::new();
        for chunk in chunks {
            decoder.feed(chunk, &mut events).unwrap();
        }
        events
    }

    fn event(id: &str, event: &str, data: &str) -> Event {
        Event {
            id: id.into(),
            event: event.into(),
            data: data.into(),
        }
    }

    #[test]
    fn frame_fields_are_single_lines() {
        let mut out = Vec::new();
        write_json(&mut out, Head::new(7, "run.started"), &json!({"a": "x\ny"})).unwrap();
        out.extend_from_slice(KEEP_ALIVE);
        write_frame(&mut out, Head::id(8), b"one\r\ntwo\rthree\n");
        write_frame(
            &mut out,
            Head {
                id: None,
                event: Some("a\nid: 9"),
            },
            b"",
        );
        assert_eq!(
            String::from_utf8(out.clone()).unwrap(),
            "id: 7\nevent: run.started\ndata: {\"a\":\"x\\ny\"}\n\n:keepalive\n\n\
             id: 8\ndata: one\ndata: two\ndata: three\ndata: \n\nevent: aid: 9\ndata: \n\n"
        );
        assert_eq!(
            decode(&[&out]),
            [
                event("7", "run.started", "{\"a\":\"x\\ny\"}"),
                event("8", "message", "one\ntwo\nthree\n"),
                event("8", "aid: 9", ""),
            ]
        );
    }

    #[test]
    fn json_is_serialized_into_the_buffer() {
        let mut out = Vec::new();
        let id = crate::a2a::rpc::Id::Int(1);
        write_line_with(&mut out, Head::id(4), |out| {
            crate::a2a::rpc::encode_result_into(out, &id, &"a\nb");
        });
        assert_eq!(
            out,
            b"id: 4\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"a\\nb\"}\n\n"
        );
    }

    #[test]
    fn failed_serialization_leaves_the_buffer_unchanged() {
        let mut out = b"before".to_vec();
        let unprintable = std::collections::BTreeMap::from([((1, 2), 3)]);
        assert!(write_json(&mut out, Head::id(1), &unprintable).is_err());
        assert_eq!(out, b"before");
    }

    #[test]
    fn decodes_all_line_breaks_at_any_chunk_boundary() {
        let wanted = [event("1", "x", "a\nb"), event("1", "message", "c")];
        for newline in ["\n", "\r", "\r\n"] {
            let stream = [
                "\u{feff}id: 1",
                "event: x",
                "data: a",
                ": note",
                "data:b",
                "",
                "data: c",
                "",
                "",
            ]
            .join(newline);
            let bytes = stream.as_bytes();
            for split in 0..=bytes.len() {
                assert_eq!(
                    decode(&[&bytes[..split], &bytes[split..]]),
                    wanted,
                    "{newline:?} at {split}"
                );
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(decode(&single), wanted);
        }
    }

    #[test]
    fn decodes_fields_as_specified() {
        for (stream, wanted) in [
            ("data\n\n", vec![event("", "message", "")]),
            ("data:  two spaces\n\n", vec![event("", "message", " two spaces")]),
            ("event: x\n\ndata: y\n\n", vec![event("", "message", "y")]),
            ("id: 5\n\ndata: y\n\n", vec![event("5", "message", "y")]),
            ("id: 5\nid\ndata: y\n\n", vec![event("", "message", "y")]),
            ("id: 5\nid: a\0b\ndata: y\n\n", vec![event("5", "message", "y")]),
            ("data: y\n", vec![]),
            ("unknown: z\ndata: y\n\n", vec![event("", "message", "y")]),
            ("data: a:b\n\n", vec![event("", "message", "a:b")]),
            ("\n\n\n", vec![]),
        ] {
            assert_eq!(decode(&[stream.as_bytes()]), wanted, "{stream:?}");
        }
    }

    #[test]
    fn retry_sets_the_delay_without_an_event() {
        let mut decoder = Decoder::new(100);
        let mut events = Vec::new();
        decoder
            .feed(b"retry: 1500\nid: 3\n\nretry: soon\n", &mut events)
            .unwrap();
        assert_eq!(decoder.retry(), Some(Duration::from_millis(1500)));
        assert_eq!(decoder.last_event_id(), "3");
        assert!(events.is_empty());
    }

    #[test]
    fn an_event_over_the_limit_ends_the_stream() {
        let mut decoder = Decoder::new(32);
        let mut events = Vec::new();
        let too_large = Err(SseError::TooLarge { limit: 32 });
        decoder.feed(b"data: fits\n\n", &mut events).unwrap();
        assert_eq!(decoder.feed(&[b'x'; 33], &mut events), too_large);
        assert_eq!(decoder.feed(b"\n", &mut events), too_large);
        assert_eq!(events.len(), 1);

        let mut decoder = Decoder::new(32);
        let mut fed = Ok(());
        for _ in 0..40 {
            fed = fed.and_then(|()| decoder.feed(b"data: y\n", &mut events));
        }
        assert_eq!(fed, too_large);
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_change_events(stream in "[a-z:\\r\\n \\x00é]{0,80}", split in 0_usize..80) {
            let bytes = stream.as_bytes();
            let split = split.min(bytes.len());
            prop_assert_eq!(decode(&[bytes]), decode(&[&bytes[..split], &bytes[split..]]));
        }

        #[test]
        fn written_frames_decode_to_the_same_data(data in "\\PC{0,40}", id in any::<u64>()) {
            let mut out = Vec::new();
            write_frame(&mut out, Head::new(id, "e"), data.as_bytes());
            prop_assert_eq!(decode(&[&out]), [event(&id.to_string(), "e", &data)]);
        }
    }
}
