//! Versions of MCP, and what differs between them.
//!
//! Until 2025-11-25 a client begins with a handshake, `initialize`, and is then taken to speak the version that was agreed.
//! From 2026-07-28 there is none: every request names its version in `_meta`. This server keeps nothing between two
//! requests either way, so both kinds are answered by the same code, and only the dress of results differs.

use serde_json::{Value, json};
use wopr_wire::json::Object;

use super::message::{Error, repeated};

/// The versions with a handshake, newest first.
pub(super) const WITH_OPENING: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// The version without.
pub(super) const WITHOUT_OPENING: &str = "2026-07-28";

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// Which kind of version a request speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    WithOpening,
    WithoutOpening,
}

/// What clients may do with a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caching {
    /// It answers this request only.
    Never,
    /// It may be kept by this caller, and is stale at once: what a host has changes at any time.
    Stale,
}

pub(super) fn is_known(version: &str) -> bool {
    version == WITHOUT_OPENING || WITH_OPENING.contains(&version)
}

pub(super) fn supported() -> Vec<&'static str> {
    let mut all = vec![WITHOUT_OPENING];
    all.extend(WITH_OPENING);
    all
}

/// The error for a version that this server does not speak.
pub(super) fn unsupported(version: &str) -> Error {
    Error {
        data: Some(json!({ "requested": repeated(version), "supported": supported() })),
        ..Error::new(Error::UNSUPPORTED_VERSION, "Unsupported protocol version")
    }
}

/// Reads which kind of version a request speaks from its `_meta`.
///
/// # Errors
/// If it names an unknown version, or one whose requests say more about the client.
pub(super) fn era(method: &str, params: &Object) -> Result<Era, Error> {
    let meta = params.get("_meta");
    let said = meta.and_then(|meta| meta.get(VERSION));
    let version = match said {
        None if method == "server/discover" => return Err(lacking(VERSION)),
        None => return Ok(Era::WithOpening),
        Some(Value::String(version)) => version,
        Some(_) => return Err(lacking(VERSION)),
    };
    if !is_known(version) {
        return Err(unsupported(version));
    }
    if version != WITHOUT_OPENING && method != "server/discover" {
        return Ok(Era::WithOpening);
    }
    match meta.and_then(|meta| meta.get(CAPABILITIES)) {
        Some(Value::Object(_)) => Ok(Era::WithoutOpening),
        Some(_) | None => Err(lacking(CAPABILITIES)),
    }
}

fn lacking(key: &str) -> Error {
    Error::invalid(format!(
        "request _meta is missing or has malformed required fields: {key}"
    ))
}

/// The version that a handshake agrees on: the client's if this server speaks it, else the newest.
pub(super) fn agreed(params: &Object) -> &'static str {
    let asked = params.get("protocolVersion").and_then(Value::as_str);
    let known = WITH_OPENING.into_iter().find(|version| asked == Some(version));
    known.unwrap_or(WITH_OPENING[0])
}

/// Adds to a result what its version requires.
pub(super) fn dress(era: Era, caching: Caching, mut result: Value) -> Value {
    if era == Era::WithoutOpening {
        result["resultType"] = "complete".into();
        if caching == Caching::Stale {
            result["ttlMs"] = 0.into();
            result["cacheScope"] = "private".into();
        }
    }
    result
}

/// The answer to `server/discover`.
pub(super) fn discovered(capabilities: &Value, info: &Value, instructions: &str) -> Value {
    json!({
        "supportedVersions": supported(),
        "capabilities": capabilities,
        "instructions": instructions,
        "_meta": { SERVER_INFO: info },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn era_of(meta: Value) -> Result<Era, i64> {
        let params = Object::from_iter([("_meta".to_owned(), meta)]);
        era("tools/list", &params).map_err(|error| error.code)
    }

    #[test]
    fn a_request_says_in_its_meta_if_it_needs_no_opening() {
        assert_eq!(era("tools/list", &Object::new()), Ok(Era::WithOpening));
        assert_eq!(era_of(json!({ "progressToken": 1 })), Ok(Era::WithOpening));
        assert_eq!(era_of(json!({ VERSION: "2025-06-18" })), Ok(Era::WithOpening));
        let newest = json!({ VERSION: WITHOUT_OPENING, CAPABILITIES: {} });
        assert_eq!(era_of(newest), Ok(Era::WithoutOpening));
        assert_eq!(
            era_of(json!({ VERSION: WITHOUT_OPENING })),
            Err(Error::INVALID_PARAMS)
        );
        assert_eq!(era_of(json!({ VERSION: 7 })), Err(Error::INVALID_PARAMS));
        assert_eq!(
            era_of(json!({ VERSION: "2031-01-01" })),
            Err(Error::UNSUPPORTED_VERSION)
        );
        assert!(era("server/discover", &Object::new()).is_err());
    }

    #[test]
    fn an_opening_agrees_on_a_version_that_has_one() {
        let agreed = |version: &str| {
            agreed(&Object::from_iter([(
                "protocolVersion".to_owned(),
                version.into(),
            )]))
        };
        assert_eq!(agreed("2024-11-05"), "2024-11-05");
        assert_eq!(agreed("2026-07-28"), "2025-11-25");
        assert_eq!(agreed("1999-01-01"), "2025-11-25");
    }
}
