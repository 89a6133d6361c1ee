//! Pages of lists: their size limit, and opaque page tokens that encode where the previous page ended.

use std::io;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use wopr_app::PhaseCursor;
use wopr_core::{RunId, Timestamp};
use wopr_wire::a2a::{error::A2aError, model::Task};

/// The version of the token format. Tokens of another version are rejected.
const VERSION: &str = "1";

/// The token for the page that starts after a task.
pub(super) fn encode(since: Timestamp, run: &RunId) -> String {
    URL_SAFE_NO_PAD.encode(format!("{VERSION}:{}:{run}", since.millis()))
}

pub(super) fn decode(token: &str) -> Result<PhaseCursor, A2aError> {
    parse(token).ok_or_else(|| A2aError::invalid_param("pageToken", "is not a token of this host"))
}

fn parse(token: &str) -> Option<PhaseCursor> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    let (version, rest) = text.split_once(':')?;
    let (millis, run) = rest.split_once(':')?;
    if version != VERSION {
        return None;
    }
    Some(PhaseCursor {
        since: Timestamp::from_millis(millis.parse().ok()?),
        run: RunId::parse(run).ok()?,
    })
}

/// The size of a task as JSON, in bytes.
pub(super) fn size_of(task: &Task) -> usize {
    let mut counted = Counted(0);
    match serde_json::to_writer(&mut counted, task) {
        Ok(()) => counted.0,
        // The error will surface when the task is written.
        Err(_) => 0,
    }
}

/// A writer that only counts bytes.
struct Counted(usize);

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_roundtrips() {
        let run = RunId::parse("run_0123456789abcdef").unwrap();
        let at = Timestamp::from_millis(1_700_000_000_123);
        let token = encode(at, &run);
        assert_eq!(decode(&token).unwrap(), PhaseCursor { since: at, run });
        for bad in [
            "",
            "x",
            "####",
            &token[..10],
            &URL_SAFE_NO_PAD.encode("2:1:run_0123456789abcdef"),
        ] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }
}
