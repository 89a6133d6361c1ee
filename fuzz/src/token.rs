//! Credentials: interrupt tokens and bearer secrets.

use http::HeaderValue;
use wopr_core::{NodeId, PrincipalId, RunId, RunKey, TenantId, Timestamp};
use wopr_server::{Claims, Holder, Intent, TokenError};

use crate::{host, requests};

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// Forged credentials are rejected: tokens not created here, valid tokens with a flipped bit, and
/// `authorization` headers without a known key. The bytes are a text; if they are short, they also select the
/// bit to flip.
///
/// # Panics
/// If a property does not hold.
pub fn token(data: &[u8]) {
    let host = host::the_host();
    if let Ok(text) = std::str::from_utf8(data) {
        assert_eq!(host.tokens().open(text, NOW), Err(TokenError::Unknown));
    }
    let claims = Claims {
        number: 0,
        key: RunKey::new(
            TenantId::parse("default").unwrap(),
            RunId::parse("run_0123456789abcdef").unwrap(),
        ),
        node: node(data),
        ordinal: u32::try_from(data.len()).unwrap_or(u32::MAX),
        intent: if data.len().is_multiple_of(2) {
            Intent::Resolve
        } else {
            Intent::Inspect
        },
        holder: Holder {
            principal: PrincipalId::parse("fuzz").unwrap(),
            is_named: data.len().is_multiple_of(3),
            is_member: data.len().is_multiple_of(5),
            reads_artifacts: data.len().is_multiple_of(7),
        },
    };
    let minted = host.tokens().mint(&claims, None, NOW);
    assert_eq!(host.tokens().open(&minted.text, NOW), Ok(claims));
    let late = minted.expires_at.plus_millis(1);
    assert_eq!(host.tokens().open(&minted.text, late), Err(TokenError::Expired));
    let mut turned = minted.text.clone().into_bytes();
    let at = data.iter().map(|byte| usize::from(*byte)).sum::<usize>() % turned.len();
    turned[at] ^= 1 << (data.len() % 7);
    if let Ok(turned) = String::from_utf8(turned) {
        assert_eq!(
            host.tokens().open(&turned, NOW),
            Err(TokenError::Unknown),
            "{turned}"
        );
    }
    if let Ok(value) = HeaderValue::from_bytes(data) {
        let is_known = data.ends_with(host::KEY.as_bytes());
        assert!(!requests::admits(value) || is_known, "a stranger is let in");
    }
}

fn node(data: &[u8]) -> NodeId {
    let text = String::from_utf8_lossy(&data[..data.len().min(64)]);
    NodeId::parse(&text).unwrap_or_else(|_| NodeId::parse("gate").unwrap())
}
