//! Agent card signatures (A2A 1.0 section 8.4): detached, over the canonical form of the card without its signatures.
//!
//! The specification leaves canonicalization to the verifier, and verifiers differ: they canonicalize the
//! document as received, or the members their types retain, with or without empty members. [`sign`] therefore
//! signs each *reading* of a card that a careful verifier may arrive at; most cards have one or two. A
//! verifier accepts a card with one valid signature. [`verify`] reports the reading that each signature
//! covers: a signature of a narrower reading does not cover the other members of the document.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::Value;

use super::model::{AgentCard, AgentCardSignature};
use crate::{
    jcs,
    json::Decode as _,
    jws::{Header, JwkSet, JwsError, SigningKey},
};

/// The `typ` of card signatures.
const TYPE: &str = "JOSE";
/// The member that signatures do not cover.
const SIGNATURES: &str = "signatures";
/// A card with more signatures than this is rejected.
const MAX_SIGNATURES: usize = 64;

/// The part of a card that a signature covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// The document as it is.
    Document,
    /// The members that 1.0 defines, including required members with default values.
    Model,
    /// Like [`Reading::Model`], but without empty members, as in the 1.0 SDKs.
    Sdk,
}

/// Signs every reading of a card with every key.
///
/// # Errors
/// Returns an error if the document has no canonical form.
pub fn sign(
    document: &Value,
    keys: &[SigningKey],
    jku: Option<&str>,
) -> Result<Vec<AgentCardSignature>, jcs::Error> {
    let mut payloads: Vec<String> = Vec::new();
    for (_, reading) in readings(document) {
        let payload = URL_SAFE_NO_PAD.encode(jcs::to_vec(&reading)?);
        if !payloads.contains(&payload) {
            payloads.push(payload);
        }
    }
    let mut signatures = Vec::with_capacity(payloads.len() * keys.len());
    for payload in &payloads {
        for key in keys {
            let protected = key.header(TYPE, jku).encode();
            signatures.push(AgentCardSignature {
                signature: key.sign(&protected, payload),
                protected,
                header: Default::default(),
            });
        }
    }
    Ok(signatures)
}

/// A signature of a card after verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The protected header, if it could be parsed.
    pub header: Option<Header>,
    /// The reading the signature covers, or the reason it is invalid.
    pub outcome: Result<Reading, JwsError>,
}

/// Verifies every signature of a card against the keys.
///
/// # Errors
/// Returns an error if the document has no canonical form, or more than `MAX_SIGNATURES` signatures.
pub fn verify(document: &Value, keys: &JwkSet) -> Result<Vec<Checked>, JwsError> {
    let empty = Vec::new();
    let signatures = document
        .get(SIGNATURES)
        .and_then(Value::as_array)
        .unwrap_or(&empty);
    if signatures.len() > MAX_SIGNATURES {
        return Err(JwsError::Malformed);
    }
    let mut payloads = Vec::new();
    for (reading, value) in readings(document) {
        let payload = jcs::to_vec(&value).map_err(|_| JwsError::Malformed)?;
        payloads.push((reading, URL_SAFE_NO_PAD.encode(payload)));
    }
    Ok(signatures
        .iter()
        .map(|signature| check(signature, &payloads, keys))
        .collect())
}

fn check(signature: &Value, payloads: &[(Reading, String)], keys: &JwkSet) -> Checked {
    let read = AgentCardSignature::decode(signature.clone());
    let header = read.as_ref().map_err(|_| JwsError::Malformed);
    let header = header.and_then(|signature| Header::decode(&signature.protected));
    let outcome = match (&read, &header) {
        (Ok(signature), Ok(header)) => covered(signature, header, payloads, keys),
        (Err(_), _) => Err(JwsError::Malformed),
        (Ok(_), Err(error)) => Err(*error),
    };
    Checked {
        header: header.ok(),
        outcome,
    }
}

fn covered(
    signature: &AgentCardSignature,
    header: &Header,
    payloads: &[(Reading, String)],
    keys: &JwkSet,
) -> Result<Reading, JwsError> {
    // The protected header of a card must name the key; what the unprotected one says is not signed.
    let kid = header.kid.as_deref().filter(|kid| !kid.is_empty());
    let kid = kid.ok_or(JwsError::KeyId)?;
    let bytes = URL_SAFE_NO_PAD
        .decode(&signature.signature)
        .map_err(|_| JwsError::Malformed)?;
    let mut failure = JwsError::KeyType;
    for key in keys.candidates(Some(kid), header.algorithm) {
        for (reading, payload) in payloads {
            let message = format!("{}.{payload}", signature.protected);
            match key.verify(header.algorithm, message.as_bytes(), &bytes) {
                Ok(()) => return Ok(*reading),
                Err(error) => failure = error,
            }
        }
    }
    Err(failure)
}

/// The readings of a document, the widest first.
fn readings(document: &Value) -> Vec<(Reading, Value)> {
    let mut whole = document.clone();
    if let Some(members) = whole.as_object_mut() {
        members.remove(SIGNATURES);
    }
    let mut readings = Vec::with_capacity(3);
    // A card of 0.3 alone has no 1.0 reading.
    let model = AgentCard::decode(whole.clone()).ok();
    let model = model.and_then(|card| serde_json::to_value(card).ok());
    readings.push((Reading::Document, whole));
    if let Some(model) = model {
        let sdk = without_empty(&model).unwrap_or(Value::Null);
        readings.push((Reading::Model, model));
        readings.push((Reading::Sdk, sdk));
    }
    readings
}

/// Removes empty strings, arrays and objects, recursively, including those that become empty.
fn without_empty(value: &Value) -> Option<Value> {
    match value {
        Value::String(text) => (!text.is_empty()).then(|| value.clone()),
        Value::Array(items) => {
            let kept: Vec<Value> = items.iter().filter_map(without_empty).collect();
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
        Value::Object(members) => {
            let kept = members
                .iter()
                .filter_map(|(name, value)| Some((name.clone(), without_empty(value)?)));
            let kept: serde_json::Map<_, _> = kept.collect();
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        Value::Null => None,
        Value::Bool(_) | Value::Number(_) => Some(value.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{a2a::v03, jws::PublicKey};

    fn keys() -> Vec<SigningKey> {
        vec![
            SigningKey::ed25519("ed", &[1; 32]).unwrap(),
            SigningKey::p256("es", &[2; 32]).unwrap(),
        ]
    }

    fn set(keys: &[SigningKey]) -> JwkSet {
        keys.iter()
            .map(|key| PublicKey::from_jwk(&key.jwk()).unwrap())
            .collect()
    }

    fn model() -> AgentCard {
        let card = json!({
            "name": "Grüße ✓", "description": "says hello", "version": "1.0.0",
            "supportedInterfaces": [
                {"url": "https://a.test/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
                {"url": "https://a.test/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
            ],
            "capabilities": {"streaming": true, "pushNotifications": false},
            "securitySchemes": {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
            "securityRequirements": [{"schemes": {"bearer": {"list": ["runs:create"]}}}],
            "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
            "skills": [{"id": "hello", "name": "Hello", "description": "Greets.", "tags": ["t"]}],
        });
        AgentCard::decode(card).unwrap()
    }

    fn signed(mut document: Value, keys: &[SigningKey]) -> Value {
        let signatures = sign(&document, keys, Some("https://a.test/jwks")).unwrap();
        document["signatures"] = serde_json::to_value(signatures).unwrap();
        document
    }

    fn outcomes(document: &Value, keys: &JwkSet) -> Vec<Result<Reading, JwsError>> {
        let checked = verify(document, keys).unwrap();
        checked.into_iter().map(|checked| checked.outcome).collect()
    }

    #[test]
    fn all_card_documents_verify_in_every_reading() {
        let (keys, model) = (keys(), model());
        let set = set(&keys);
        let new = serde_json::to_value(&model).unwrap();
        let old = v03::AgentCard::from(model.clone());
        let union = v03::union_card(&model, &old).unwrap();
        // A card without empty members has a single reading in either version.
        for document in [&new, &serde_json::to_value(&old).unwrap()] {
            let document = signed(document.clone(), &keys);
            assert_eq!(
                outcomes(&document, &set),
                [Ok(Reading::Document), Ok(Reading::Document)]
            );
        }
        // A client that decodes the 1.0 card from the union verifies the same signatures as with a pure 1.0 card.
        let union = signed(union, &keys);
        let pure = sign(&new, &keys, Some("https://a.test/jwks")).unwrap();
        let pure = serde_json::to_value(pure).unwrap();
        assert_eq!(
            union["signatures"].as_array().unwrap()[2..],
            pure.as_array().unwrap()[..]
        );
        let (document, model) = (Ok(Reading::Document), Ok(Reading::Model));
        assert_eq!(outcomes(&union, &set), [document, document, model, model]);
    }

    #[test]
    fn cards_are_signed_with_and_without_empty_members() {
        let keys = keys();
        let mut model = model();
        model.skills.clear();
        let document = signed(serde_json::to_value(model).unwrap(), &keys[..1]);
        let wanted = [Ok(Reading::Document), Ok(Reading::Sdk)];
        assert_eq!(outcomes(&document, &set(&keys)), wanted);
        let mut bare = document.clone();
        bare.as_object_mut().unwrap().remove("skills");
        // A client that dropped the empty list still has a valid signature, and one that even covers the
        // whole document.
        assert_eq!(
            outcomes(&bare, &set(&keys)),
            [Ok(Reading::Model), Ok(Reading::Document)]
        );
    }

    #[test]
    fn changes_break_signatures_and_additions_are_not_covered() {
        let keys = keys();
        let set = set(&keys);
        let document = signed(serde_json::to_value(model()).unwrap(), &keys[..1]);
        for (place, value) in [
            ("/name", json!("Grüße")),
            ("/supportedInterfaces/0/url", json!("https://b.test/a2a")),
            ("/capabilities/pushNotifications", json!(true)),
            ("/skills/0/tags", json!([])),
            ("/securityRequirements", json!([])),
        ] {
            let mut changed = document.clone();
            *changed.pointer_mut(place).unwrap() = value;
            assert_eq!(outcomes(&changed, &set), [Err(JwsError::Signature)], "{place}");
        }
        let mut added = document.clone();
        added["url"] = json!("https://evil.test/");
        assert_eq!(outcomes(&added, &set), [Ok(Reading::Model)]);
    }

    #[test]
    fn keys_rotate_with_overlap() {
        let key = |n: u8| SigningKey::ed25519(format!("k{n}"), &[n; 32]).unwrap();
        let document = serde_json::to_value(model()).unwrap();
        let before = signed(document.clone(), &[key(1)]);
        let during = signed(document.clone(), &[key(2), key(1)]);
        let after = signed(document, &[key(2)]);
        let holds =
            |document: &Value, keys: &[SigningKey]| outcomes(document, &set(keys)).iter().any(Result::is_ok);
        let (old, both, new) = ([key(1)], [key(2), key(1)], [key(2)]);
        assert!(holds(&before, &old) && holds(&before, &both) && !holds(&before, &new));
        assert!(holds(&during, &old) && holds(&during, &both) && holds(&during, &new));
        assert!(!holds(&after, &old) && holds(&after, &both) && holds(&after, &new));
    }

    #[test]
    fn signature_must_name_its_key_in_the_protected_header() {
        let key = SigningKey::ed25519("ed", &[1; 32]).unwrap();
        let document = serde_json::to_value(model()).unwrap();
        let payload = URL_SAFE_NO_PAD.encode(jcs::to_vec(&document).unwrap());
        for (header, outcome) in [
            (r#"{"alg":"EdDSA","kid":"ed"}"#, Ok(Reading::Document)),
            (r#"{"alg":"EdDSA"}"#, Err(JwsError::KeyId)),
            (r#"{"alg":"EdDSA","kid":""}"#, Err(JwsError::KeyId)),
        ] {
            let protected = URL_SAFE_NO_PAD.encode(header);
            let signature = key.sign(&protected, &payload);
            let mut card = document.clone();
            card["signatures"] =
                json!([{"protected": protected, "signature": signature, "header": {"kid": "ed"}}]);
            assert_eq!(
                outcomes(&card, &set(std::slice::from_ref(&key))),
                [outcome],
                "{header}"
            );
        }
    }

    #[test]
    fn hostile_signatures_are_rejected() {
        let keys = keys();
        let set = set(&keys);
        let good = signed(serde_json::to_value(model()).unwrap(), &keys[..1]);
        let protected = |json: &str| URL_SAFE_NO_PAD.encode(json);
        let with = |protected: String, signature: &str| {
            let mut card = good.clone();
            card["signatures"] = json!([{"protected": protected, "signature": signature}]);
            card
        };
        let signature = good["signatures"][0]["signature"].as_str().unwrap();
        for (card, error) in [
            (
                with(protected(r#"{"alg":"none","kid":"ed"}"#), ""),
                JwsError::Algorithm,
            ),
            (
                with(protected(r#"{"alg":"HS256","kid":"ed"}"#), signature),
                JwsError::Algorithm,
            ),
            (
                with(protected(r#"{"alg":"EdDSA","kid":"ed"}"#), signature),
                JwsError::Signature,
            ),
            (
                with(protected(r#"{"alg":"EdDSA","kid":"nobody"}"#), signature),
                JwsError::KeyType,
            ),
            (
                with(protected(r#"{"alg":"ES256","kid":"ed"}"#), signature),
                JwsError::KeyType,
            ),
            (
                with(protected(r#"{"alg":"EdDSA","crit":["x"]}"#), signature),
                JwsError::Critical,
            ),
            (with("?".to_owned(), signature), JwsError::Malformed),
            (
                with(protected(r#"{"alg":"EdDSA","kid":"ed"}"#), "?"),
                JwsError::Malformed,
            ),
        ] {
            assert_eq!(outcomes(&card, &set), [Err(error)], "{}", card["signatures"]);
        }
        for (value, outcome) in [
            (json!([7, {}, []]), vec![Err(JwsError::Malformed); 3]),
            (json!("text"), vec![]),
            (json!(null), vec![]),
        ] {
            let mut card = good.clone();
            card["signatures"] = value;
            assert_eq!(outcomes(&card, &set), outcome);
        }
        let mut many = good.clone();
        many["signatures"] = json!(vec![good["signatures"][0].clone(); 65]);
        assert_eq!(verify(&many, &set), Err(JwsError::Malformed));
        assert_eq!(outcomes(&json!([]), &set), []);
    }
}
