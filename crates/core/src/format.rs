//! The stored form of events and snapshots.
//!
//! A body is one version byte and JSON. A reader knows every version ever released and refuses a
//! newer one by name; a corpus of stored bodies guards that from version 0.1.0 on. The sequence
//! number is not in the body: it is the row's key.
//!
//! The first event of a commit carries a mark that no other commit has. Two replicas may decide the same at the same
//! millisecond; the mark tells whose commit stands, where one of them did not learn how its own ended.

use serde::{Deserialize, Serialize};

use crate::{Event, Recorded, Run, Seq, Timestamp};

/// The version this binary writes.
const CURRENT: u8 = 1;

/// Why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Nothing there.
    #[error("read an empty body")]
    Empty,
    /// Written by a newer wopr.
    #[error("read format {found}, this binary knows up to {CURRENT}")]
    TooNew {
        /// The version found.
        found: u8,
    },
    /// Not what the version says.
    #[error("read a damaged body: {0}")]
    Damaged(#[from] serde_json::Error),
}

#[derive(Serialize)]
struct EventRef<'a> {
    at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<Seq>,
    // Written and compared, never read.
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<&'a str>,
    #[serde(rename = "untrusted", skip_serializing_if = "std::ops::Not::not")]
    is_untrusted: bool,
    event: &'a Event,
}

#[derive(Deserialize)]
struct EventBody {
    at: Timestamp,
    #[serde(default)]
    cause: Option<Seq>,
    #[serde(default, rename = "untrusted")]
    is_untrusted: bool,
    event: Event,
}

/// Encodes an event.
#[must_use]
pub fn encode_event(recorded: &Recorded) -> Vec<u8> {
    encode_envelope(recorded, None)
}

/// Encodes the event that a commit begins with.
#[must_use]
pub fn encode_first_event(recorded: &Recorded, commit: &str) -> Vec<u8> {
    encode_envelope(recorded, Some(commit))
}

fn encode_envelope(recorded: &Recorded, commit: Option<&str>) -> Vec<u8> {
    encode(&EventRef {
        at: recorded.at,
        cause: recorded.cause,
        commit,
        is_untrusted: recorded.is_untrusted,
        event: &recorded.event,
    })
}

/// Decodes the event stored at `seq`.
///
/// # Errors
/// See [`FormatError`].
pub fn decode_event(seq: Seq, body: &[u8]) -> Result<Recorded, FormatError> {
    let EventBody {
        at,
        cause,
        is_untrusted,
        event,
    } = serde_json::from_slice(payload(body)?)?;
    Ok(Recorded {
        seq,
        at,
        cause,
        is_untrusted,
        event,
    })
}

/// Encodes a fold.
#[must_use]
pub fn encode_run(run: &Run) -> Vec<u8> {
    encode(run)
}

/// Decodes a fold.
///
/// # Errors
/// See [`FormatError`].
pub fn decode_run(body: &[u8]) -> Result<Run, FormatError> {
    Ok(serde_json::from_slice(payload(body)?)?)
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    let mut body = Vec::with_capacity(256);
    body.push(CURRENT);
    serde_json::to_writer(&mut body, value).expect("kernel types have string keys and write to memory");
    body
}

fn payload(body: &[u8]) -> Result<&[u8], FormatError> {
    match body.split_first() {
        None => Err(FormatError::Empty),
        Some((&CURRENT, rest)) => Ok(rest),
        Some((&found, _)) => Err(FormatError::TooNew { found }),
    }
}
