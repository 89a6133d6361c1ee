//! Signatures of documents, and whom a host trusts: compact JWS with Ed25519.
//!
//! A signature is over the canonical text of the document without it. It is no part of the definition: a document has the
//! same hash with it and without.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::signature::{ED25519, UnparsedPublicKey};
use serde_json::Value;

use crate::canonical::canonical;

/// What comes before the 32 bytes of a key in its SPKI form (DER).
const SPKI: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
/// Bytes of a public key.
const KEY: usize = 32;

/// Whether documents must be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SignatureMode {
    /// A signature that is there must be good.
    #[default]
    Optional,
    Require,
}

impl SignatureMode {
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "optional" => Some(Self::Optional),
            "require" => Some(Self::Require),
            _ => None,
        }
    }
}

/// Whose signatures a host trusts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrustPolicy {
    pub mode: SignatureMode,
    keys: BTreeMap<String, [u8; KEY]>,
}

/// Why a signature is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("Workflow definition signature is required but no signature block was present")]
    Missing,
    #[error("{0}")]
    Malformed(&'static str),
    #[error("Workflow definition is signed, but no signing public keys are configured")]
    NoKeys,
    #[error("Unknown JWS kid \"{0}\"")]
    UnknownKey(String),
    #[error("signature.keyId \"{key_id}\" does not match JWS kid \"{kid}\"")]
    OtherKey { key_id: String, kid: String },
    #[error("JWS payload does not match canonical definition signing payload")]
    OtherPayload,
    #[error("Ed25519 signature verification failed")]
    Forged,
    /// A configured key is invalid.
    #[error("public key \"{0}\" is neither the SPKI form nor the 32 bytes of an Ed25519 key, in base64url")]
    BadKey(String),
}

impl TrustPolicy {
    /// A policy with keys by their ids, in base64url.
    ///
    /// # Errors
    /// One of them is no key.
    pub fn new<'k>(
        mode: SignatureMode,
        keys: impl IntoIterator<Item = (&'k str, &'k str)>,
    ) -> Result<Self, SignatureError> {
        let keys = keys.into_iter().map(|(id, text)| {
            let key = key(text).ok_or_else(|| SignatureError::BadKey(id.to_owned()))?;
            Ok((id.to_owned(), key))
        });
        Ok(Self {
            mode,
            keys: keys.collect::<Result<_, _>>()?,
        })
    }

    /// Checks the signature of a document. Returns whether it has one.
    ///
    /// # Errors
    /// The signature is missing where one is required, or is not good.
    pub fn check(&self, document: &Value) -> Result<bool, SignatureError> {
        let Some(block) = block(document) else {
            return match self.mode {
                SignatureMode::Optional => Ok(false),
                SignatureMode::Require => Err(SignatureError::Missing),
            };
        };
        let text = |name: &str| block.get(name).and_then(Value::as_str);
        if text("alg") != Some("EdDSA") {
            return Err(SignatureError::Malformed("signature.alg must be \"EdDSA\""));
        }
        let jws = text("value").ok_or(SignatureError::Malformed("signature.value must be a compact JWS"))?;
        let malformed = || SignatureError::Malformed("signature.value is not a compact JWS");
        let mut parts = jws.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(malformed());
        };
        let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| malformed());
        let head: Value = serde_json::from_slice(&decode(header)?).map_err(|_| malformed())?;
        if head.get("alg").and_then(Value::as_str) != Some("EdDSA") {
            return Err(SignatureError::Malformed(
                "the JWS header's alg must be \"EdDSA\"",
            ));
        }
        let kid = head
            .get("kid")
            .and_then(Value::as_str)
            .ok_or(SignatureError::Malformed("the JWS header needs a kid"))?;
        if let Some(key_id) = text("keyId").filter(|key_id| *key_id != kid) {
            return Err(SignatureError::OtherKey {
                key_id: key_id.to_owned(),
                kid: kid.to_owned(),
            });
        }
        if self.keys.is_empty() {
            return Err(SignatureError::NoKeys);
        }
        let key = self
            .keys
            .get(kid)
            .ok_or_else(|| SignatureError::UnknownKey(kid.to_owned()))?;
        if decode(payload)? != canonical(&stripped(document)).as_bytes() {
            return Err(SignatureError::OtherPayload);
        }
        let signed = &jws.as_bytes()[..header.len() + 1 + payload.len()];
        UnparsedPublicKey::new(&ED25519, key)
            .verify(signed, &decode(signature)?)
            .map_err(|_| SignatureError::Forged)?;
        Ok(true)
    }
}

/// Where a signature block may be, the preferred place first.
const PLACES: [&str; 2] = ["/document/signature", "/signature"];

fn block(document: &Value) -> Option<&Value> {
    PLACES.iter().find_map(|place| document.pointer(place))
}

/// The JSON pointer of the signature block; of the preferred place without one.
pub(crate) fn place(document: &Value) -> &'static str {
    let found = PLACES.iter().find(|place| document.pointer(place).is_some());
    found.unwrap_or(&PLACES[0])
}

fn key(text: &str) -> Option<[u8; KEY]> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()?;
    bytes.strip_prefix(&SPKI).unwrap_or(&bytes).try_into().ok()
}

/// The document without its signature.
#[must_use]
pub fn stripped(document: &Value) -> Value {
    let mut unsigned = document.clone();
    if let Some(fields) = unsigned.as_object_mut() {
        fields.remove("signature");
        if let Some(Value::Object(head)) = fields.get_mut("document") {
            head.remove("signature");
        }
    }
    unsigned
}

#[cfg(test)]
mod tests {
    use ring::signature::Ed25519KeyPair;
    use serde_json::json;

    use super::*;

    const ID: &str = "test-key-1";
    /// The key pair that the protocol publishes for tests.
    const PRIVATE: &str = "MC4CAQAwBQYDK2VwBCIEINoeGH3uTJB4vlquXo3VT41lyC_El-h1NOTC-4-Gyk1F";
    const PUBLIC: &str = "MCowBQYDK2VwAyEA-_wc6pHan2aD2MyBvmSWwoarQ0EWXjtZ-tr3LF_ujOI";

    fn signed(mut document: Value, header: &Value) -> Value {
        let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let payload = canonical(&stripped(&document));
        let text = format!(
            "{}.{}",
            encode(header.to_string().as_bytes()),
            encode(payload.as_bytes())
        );
        let private = BASE64_URL_SAFE_NO_PAD.decode(PRIVATE).expect("base64url");
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&private).expect("a key pair");
        let value = format!("{text}.{}", encode(pair.sign(text.as_bytes()).as_ref()));
        document["document"]["signature"] = json!({ "alg": "EdDSA", "value": value, "keyId": ID });
        document
    }

    fn policy(mode: SignatureMode) -> TrustPolicy {
        TrustPolicy::new(mode, [(ID, PUBLIC)]).expect("a key")
    }

    #[test]
    fn signatures_are_over_the_canonical_document() {
        let header = json!({ "alg": "EdDSA", "typ": "JWS", "kid": ID });
        let plain = json!({ "document": { "name": "n" }, "nodes": [1.0, { "b": 1, "a": 2 }] });
        let good = signed(plain.clone(), &header);
        let require = policy(SignatureMode::Require);
        assert_eq!(require.check(&good), Ok(true));
        assert_eq!(require.check(&plain), Err(SignatureError::Missing));
        assert_eq!(policy(SignatureMode::Optional).check(&plain), Ok(false));
        assert_eq!(TrustPolicy::default().check(&good), Err(SignatureError::NoKeys));

        let mut changed = good.clone();
        changed["nodes"] = json!([]);
        assert_eq!(require.check(&changed), Err(SignatureError::OtherPayload));
        let mut forged = good.clone();
        let value = forged["document"]["signature"]["value"]
            .as_str()
            .expect("a JWS")
            .to_owned();
        // Another letter in the signature, not in its last bits, which no byte has.
        let (head, tail) = value.split_at(value.len() - 10);
        let other = if tail.starts_with('A') { "B" } else { "A" };
        forged["document"]["signature"]["value"] = json!(format!("{head}{other}{}", &tail[1..]));
        assert_eq!(require.check(&forged), Err(SignatureError::Forged));
        let stranger = signed(plain.clone(), &json!({ "alg": "EdDSA", "kid": "stranger" }));
        let mut stranger = stranger;
        stranger["document"]["signature"]["keyId"] = json!("stranger");
        assert_eq!(
            require.check(&stranger),
            Err(SignatureError::UnknownKey("stranger".to_owned()))
        );
        for header in [json!({ "alg": "none", "kid": ID }), json!({ "alg": "EdDSA" })] {
            let refused = require.check(&signed(plain.clone(), &header));
            assert!(
                matches!(refused, Err(SignatureError::Malformed(_))),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn keys_are_raw_or_spki() {
        let raw = BASE64_URL_SAFE_NO_PAD.encode(key(PUBLIC).expect("SPKI"));
        let policy = |text: &str| TrustPolicy::new(SignatureMode::Require, [(ID, text)]);
        assert_eq!(policy(&raw), policy(PUBLIC));
        assert_eq!(policy("AAAA"), Err(SignatureError::BadKey(ID.to_owned())));
    }
}
