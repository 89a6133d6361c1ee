//! Event streams: those we read, in any chunks, and those we write.

use wopr_wire::sse::{Decoder, Event, Head, SseError, write_frame};

/// Small, so that inputs reach it.
const LIMIT: usize = 512;

/// A stream yields the same events regardless of its chunks, and memory stays within the limit. A frame that
/// we write is parsed as one event with the same data. The first byte determines the chunk size.
///
/// # Panics
/// If a property does not hold.
pub fn sse(data: &[u8]) {
    let Some((cut, stream)) = data.split_first() else {
        return;
    };
    let whole = decode(stream, stream.len().max(1));
    let cut = decode(stream, usize::from(*cut).max(1));
    assert_eq!(whole, cut, "cut differently it is another stream");
    let n_bytes: usize = whole.0.iter().map(|event| event.data.len()).sum();
    // Invalid UTF-8 is replaced by three bytes per byte.
    assert!(n_bytes <= 3 * stream.len());

    let mut frame = Vec::new();
    let name = String::from_utf8_lossy(&stream[..stream.len().min(16)]).into_owned();
    let head = Head {
        id: Some(stream.len() as u64),
        event: Some(&name),
    };
    write_frame(&mut frame, head, stream);
    let mut events = Vec::new();
    Decoder::new(usize::MAX).feed(&frame, &mut events).unwrap();
    let text = String::from_utf8_lossy(stream)
        .replace("\r\n", "\n")
        .replace('\r', "\n");
    assert_eq!(events.len(), 1, "one frame is one event");
    assert_eq!(events[0].data, text);
    assert_eq!(events[0].id, stream.len().to_string());
}

fn decode(stream: &[u8], size: usize) -> (Vec<Event>, Result<(), SseError>, String) {
    let mut decoder = Decoder::new(LIMIT);
    let mut events = Vec::new();
    let fed = stream
        .chunks(size)
        .try_for_each(|chunk| decoder.feed(chunk, &mut events));
    (events, fed, decoder.last_event_id().to_owned())
}
