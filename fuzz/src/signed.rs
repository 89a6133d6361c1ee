//! Signed data: an issuer's tokens and keys, agent cards, and the canonical JSON that is signed.

use std::sync::LazyLock;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::HeaderValue;
use serde_json::{Value, json};
use wopr_wire::{
    a2a::card_signature,
    jcs,
    jws::{Compact, Header, JwkSet, PublicKey, SigningKey},
};

use crate::{host, requests};

/// Longer tokens are rejected unread.
const MAX_TOKEN: usize = 16 << 10;
/// The signing key of the issuer and of cards. Inputs cannot know its private half.
static KEY: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::ed25519("known", &[7; 32]).unwrap());

/// The JWK set of the issuer that the host trusts.
pub(crate) fn published_keys() -> String {
    json!({ "keys": [KEY.jwk()] }).to_string()
}

/// Key sets and tokens are parsed or rejected; a token's header survives a round trip. A card is verified
/// against any keys, and accepted if signed by a known one. Canonicalizing JSON twice changes nothing.
///
/// The bytes are a key set, optionally followed by a line of three dashes and a token or a card.
///
/// # Panics
/// If a property does not hold.
pub fn signed(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (set, text) = text.split_once("\n---\n").unwrap_or(("", text));
    let keys = JwkSet::parse(set.as_bytes()).unwrap_or_default();
    if let Ok(token) = Compact::parse(text, MAX_TOKEN) {
        assert_eq!(Header::decode(&token.header.encode()).as_ref(), Ok(&token.header));
        for key in keys.candidates(token.header.kid.as_deref(), token.header.algorithm) {
            let _ = key.verify(token.header.algorithm, token.message, &token.signature);
        }
    }
    if let Ok(document) = serde_json::from_str::<Value>(text) {
        is_canonical_once(&document);
        let _ = card_signature::verify(&document, &keys);
        if document.is_object() {
            is_accepted(document);
        }
    }
}

fn is_canonical_once(document: &Value) {
    let Ok(canonical) = jcs::to_vec(document) else {
        return;
    };
    let again: Value = serde_json::from_slice(&canonical).unwrap();
    assert_eq!(
        jcs::to_vec(&again).unwrap(),
        canonical,
        "canonical, and not the same again"
    );
}

fn is_accepted(mut card: Value) {
    let Ok(signatures) = card_signature::sign(&card, std::slice::from_ref(&KEY), None) else {
        return;
    };
    card["signatures"] = serde_json::to_value(&signatures).unwrap();
    let keys = JwkSet::from_iter([PublicKey::from_jwk(&KEY.jwk()).unwrap()]);
    let checked = card_signature::verify(&card, &keys).unwrap();
    assert_eq!(checked.len(), signatures.len());
    assert!(
        checked.iter().all(|one| one.outcome.is_ok()),
        "signed, and not accepted: {checked:?}"
    );
}

/// A token authenticates only with the right issuer, audience and expiry, whatever else it claims. The bytes
/// are claims, which the issuer signs; used directly as a token they are rejected.
///
/// # Panics
/// If a property does not hold.
pub fn claims(data: &[u8]) {
    let admits = |token: &[u8]| {
        let value = HeaderValue::from_bytes(&[b"Bearer ", token].concat());
        value.is_ok_and(requests::admits)
    };
    let is_secret = data.trim_ascii() == host::KEY.as_bytes();
    assert!(!admits(data) || is_secret, "a stranger is let in");
    let payload = URL_SAFE_NO_PAD.encode(data);
    let protected = KEY.header("JWT", None).encode();
    let signature = KEY.sign(&protected, &payload);
    let token = format!("{protected}.{payload}.{signature}");
    if admits(token.as_bytes()) {
        let claims: Value = serde_json::from_slice(data).unwrap();
        assert_eq!(claims["iss"], host::ISSUER);
        let is_meant = |audience: &Value| *audience == host::AUDIENCE;
        assert!(is_meant(&claims["aud"]) || claims["aud"].as_array().unwrap().iter().any(is_meant));
        assert!(
            claims["exp"].as_f64().unwrap() > host::NOW_SECONDS - 60.0,
            "expired, and let in"
        );
    }
    // The last character of a 64-byte signature has two unused bits, so the first character is changed.
    let other = if signature.starts_with('A') { "B" } else { "A" };
    let turned = format!("{protected}.{payload}.{other}{}", &signature[1..]);
    assert!(!admits(turned.as_bytes()), "let in by a signature that is none");
}
