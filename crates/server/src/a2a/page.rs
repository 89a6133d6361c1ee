//! Opaque tokens of the pages of lists, which encode where the previous page ended.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use wopr_app::PhaseCursor;
use wopr_core::{RunId, Timestamp};
use wopr_wire::a2a::error::A2aError;

/// The version of the token format. Tokens of another version are rejected.
const VERSION: &str = "1";

/// The token for the page that starts after a task.
pub(super) fn encode(since: Timestamp, run: &RunId) -> String {
    URL_SAFE_NO_PAD.encode(format!("{VERSION}:{}:{run}", since.millis()))
}

pub(super) fn decode(token: &str) -> Result<PhaseCursor, A2aError> {
    let cursor = parse(token).and_then(|(since, run)| {
        let run = RunId::parse(&run).ok()?;
        Some(PhaseCursor { since, run })
    });
    cursor.ok_or_else(unknown)
}

/// The token for the page that starts after a push configuration, which need not exist any more when the page is read.
pub(super) fn encode_push(created_at: Timestamp, id: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("{VERSION}:{}:{id}", created_at.millis()))
}

pub(super) fn decode_push(token: &str) -> Result<(Timestamp, String), A2aError> {
    parse(token).ok_or_else(unknown)
}

fn unknown() -> A2aError {
    A2aError::invalid_param("pageToken", "is not a token of this host")
}

/// The time and the id of a token.
fn parse(token: &str) -> Option<(Timestamp, String)> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    let (version, rest) = text.split_once(':')?;
    let (millis, id) = rest.split_once(':')?;
    if version != VERSION {
        return None;
    }
    Some((Timestamp::from_millis(millis.parse().ok()?), id.to_owned()))
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
