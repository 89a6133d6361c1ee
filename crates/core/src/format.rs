//! The stored form of events and snapshots.
//!
//! A snapshot names the versions of the folds that made it, the kernel's and that of the run's language. One of
//! other folds is not read: the log is folded afresh. So the state may change with every release; only events are kept.
//!
//! A body is one version byte followed by JSON. A reader supports every version ever released and reports the
//! number of a newer one that it refuses; a corpus of stored bodies guards this from version 0.1.0 on. The
//! sequence number is not part of the body: it is the row's key.
//!
//! The first event of a commit carries a mark that is unique to the commit. Two replicas may make the same
//! decision in the same millisecond. If one of them does not learn whether its commit succeeded, the mark
//! shows whose commit is in the log.

use serde::{Deserialize, Serialize};

use wopr_kernel::FOLD;

use crate::{DialectEvent, DialectId, Event, Given, KernelEvent, Recorded, Run, Seq, Timestamp, openwop};

/// The version that this binary writes.
const CURRENT: u8 = 1;

#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("read an empty body")]
    Empty,
    /// Written by a newer wopr.
    #[error("read format {found}, this binary knows up to {CURRENT}")]
    TooNew { found: u8 },
    #[error("read a body that is not exactly one event")]
    NotOneEvent,
    /// Made by another fold, so the log has to be folded.
    #[error("read a snapshot of another fold")]
    OtherFold,
    /// The body does not have the format of its version.
    #[error("read a damaged body: {0}")]
    Damaged(#[from] serde_json::Error),
}

#[derive(Serialize)]
struct EventRef<'a> {
    at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<Seq>,
    // Written and compared, but never read.
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<&'a str>,
    #[serde(rename = "untrusted", skip_serializing_if = "std::ops::Not::not")]
    is_untrusted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    given: Option<&'a Given>,
    /// Of the kernel. Exactly one of this and the next is present.
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'a KernelEvent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    openwop: Option<&'a openwop::Event>,
}

#[derive(Deserialize)]
struct EventBody {
    at: Timestamp,
    #[serde(default)]
    cause: Option<Seq>,
    #[serde(default, rename = "untrusted")]
    is_untrusted: bool,
    #[serde(default)]
    given: Option<Box<Given>>,
    event: Option<KernelEvent>,
    openwop: Option<openwop::Event>,
}

#[must_use]
pub fn encode_event(recorded: &Recorded) -> Vec<u8> {
    encode_envelope(recorded, None)
}

/// Encodes the first event of a commit.
#[must_use]
pub fn encode_first_event(recorded: &Recorded, commit: &str) -> Vec<u8> {
    encode_envelope(recorded, Some(commit))
}

fn encode_envelope(recorded: &Recorded, commit: Option<&str>) -> Vec<u8> {
    let (event, openwop) = match &recorded.event {
        Event::Kernel(event) => (Some(event), None),
        Event::Dialect(DialectEvent::Openwop(event)) => (None, Some(event)),
    };
    encode(&EventRef {
        at: recorded.at,
        cause: recorded.cause,
        commit,
        is_untrusted: recorded.is_untrusted,
        given: recorded.given.as_deref(),
        event,
        openwop,
    })
}

/// Decodes the event stored at `seq`.
pub fn decode_event(seq: Seq, body: &[u8]) -> Result<Recorded, FormatError> {
    let EventBody {
        at,
        cause,
        is_untrusted,
        given,
        event,
        openwop,
    } = serde_json::from_slice(payload(body)?)?;
    let event = match (event, openwop) {
        (Some(event), None) => Event::Kernel(event),
        (None, Some(event)) => Event::Dialect(DialectEvent::Openwop(event)),
        (Some(_), Some(_)) | (None, None) => return Err(FormatError::NotOneEvent),
    };
    Ok(Recorded {
        seq,
        at,
        cause,
        is_untrusted,
        given,
        event,
    })
}

/// Encodes a snapshot of a run in this language.
#[must_use]
pub fn encode_run(dialect: DialectId, run: &Run) -> Vec<u8> {
    encode_after(&folds(dialect), run)
}

/// Decodes a snapshot.
///
/// # Errors
/// It is of another fold, or damaged.
pub fn decode_run(dialect: DialectId, body: &[u8]) -> Result<Run, FormatError> {
    let payload = payload(body)?;
    match payload.strip_prefix(&folds(dialect)) {
        Some(run) => Ok(serde_json::from_slice(run)?),
        None => Err(FormatError::OtherFold),
    }
}

/// Whether a snapshot can be read: it was made by the folds of this binary.
#[must_use]
pub fn is_of_this_fold(dialect: DialectId, body: &[u8]) -> bool {
    payload(body).is_ok_and(|payload| payload.starts_with(&folds(dialect)))
}

/// The versions of the kernel's fold and the language's, two bytes each.
fn folds(dialect: DialectId) -> [u8; 4] {
    let ([a, b], [c, d]) = (FOLD.to_be_bytes(), dialect.fold().to_be_bytes());
    [a, b, c, d]
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    encode_after(&[], value)
}

fn encode_after(head: &[u8], value: &impl Serialize) -> Vec<u8> {
    let mut body = Vec::with_capacity(256);
    body.push(CURRENT);
    body.extend_from_slice(head);
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
