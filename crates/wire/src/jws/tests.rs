//! Signatures against the RFC examples, against each other, and against known attacks.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::*;

fn jwk(value: &Value) -> Jwk {
    serde_json::from_value(value.clone()).unwrap()
}

fn key(value: &Value) -> PublicKey {
    PublicKey::from_jwk(&jwk(value)).unwrap()
}

fn verify(key: &PublicKey, text: &str) -> Result<Vec<u8>, JwsError> {
    let compact = Compact::parse(text, 10_000)?;
    key.verify(compact.header.algorithm, compact.message, &compact.signature)?;
    Ok(compact.payload)
}

/// RFC 7515, appendix A.3.
const ES256: &str = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";

fn es256_key() -> Value {
    json!({
        "kty": "EC", "crv": "P-256",
        "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
    })
}

/// RFC 7515, appendix A.2.
const RS256: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";

fn rs256_key() -> Value {
    json!({
        "kty": "RSA", "e": "AQAB",
        "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
    })
}

/// RFC 8037, appendix A.4.
const EDDSA: &str = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";

fn eddsa_key() -> Value {
    json!({"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"})
}

fn examples() -> [(&'static str, Value); 3] {
    [(ES256, es256_key()), (RS256, rs256_key()), (EDDSA, eddsa_key())]
}

#[test]
fn rfc_examples_verify_with_their_own_keys_only() {
    for (n, (text, _)) in examples().into_iter().enumerate() {
        for (m, (_, jwk)) in examples().into_iter().enumerate() {
            assert_eq!(verify(&key(&jwk), text).is_ok(), n == m, "{text}");
        }
    }
    assert_eq!(
        verify(&key(&eddsa_key()), EDDSA).unwrap(),
        b"Example of Ed25519 signing"
    );
}

#[test]
fn ed25519_reproduces_the_rfc_signature() {
    let seed = URL_SAFE_NO_PAD
        .decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A")
        .unwrap();
    let key = SigningKey::ed25519("k", &seed.try_into().unwrap()).unwrap();
    assert_eq!(key.jwk().x.as_deref(), eddsa_key()["x"].as_str());
    let (message, signature) = EDDSA.rsplit_once('.').unwrap();
    let (protected, payload) = message.split_once('.').unwrap();
    assert_eq!(key.sign(protected, payload), signature);
}

#[test]
fn any_flipped_bit_invalidates_a_signature() {
    for (text, jwk) in examples() {
        let key = key(&jwk);
        let parts: Vec<Vec<u8>> = text
            .split('.')
            .map(|part| URL_SAFE_NO_PAD.decode(part).unwrap())
            .collect();
        for part in 1..3 {
            for place in [0, parts[part].len() / 2, parts[part].len() - 1] {
                let mut parts = parts.clone();
                parts[part][place] ^= 1;
                let text: Vec<_> = parts.iter().map(|part| URL_SAFE_NO_PAD.encode(part)).collect();
                assert_eq!(
                    verify(&key, &text.join(".")),
                    Err(JwsError::Signature),
                    "{part} {place}"
                );
            }
        }
        for cut in [
            String::new(),
            URL_SAFE_NO_PAD.encode([0; 64]),
            URL_SAFE_NO_PAD.encode([0; 256]),
        ] {
            let (message, _) = text.rsplit_once('.').unwrap();
            assert_eq!(
                verify(&key, &format!("{message}.{cut}")),
                Err(JwsError::Signature)
            );
        }
    }
}

#[test]
fn our_signatures_are_deterministic_and_verify() {
    let keys = [
        SigningKey::ed25519("a", &[7; 32]).unwrap(),
        SigningKey::p256("b", &[7; 32]).unwrap(),
    ];
    for signing in &keys {
        let public = PublicKey::from_jwk(&signing.jwk()).unwrap();
        let protected = signing.header("JOSE", None).encode();
        let signature = signing.sign(&protected, "e30");
        assert_eq!(signature, signing.sign(&protected, "e30"));
        assert_eq!(
            verify(&public, &format!("{protected}.e30.{signature}")).unwrap(),
            b"{}"
        );
        assert_eq!(public.kid(), Some(signing.kid()));
        assert!(!format!("{signing:?}").contains("BwcHBw"), "{signing:?}");
    }
    let json = serde_json::to_value(keys[1].jwk()).unwrap();
    assert_eq!(json["alg"], "ES256");
    assert!(json.get("d").is_none() && json.get("n").is_none(), "{json}");
    assert!(SigningKey::p256("b", &[0; 32]).is_err());
    assert!(SigningKey::p256("b", &[0xff; 32]).is_err());
}

#[test]
fn keys_only_verify_their_own_algorithms() {
    for (jwk, taken) in [
        (es256_key(), vec![Algorithm::Es256]),
        (eddsa_key(), vec![Algorithm::EdDsa]),
        (
            rs256_key(),
            vec![
                Algorithm::Rs256,
                Algorithm::Rs384,
                Algorithm::Rs512,
                Algorithm::Ps256,
                Algorithm::Ps384,
                Algorithm::Ps512,
            ],
        ),
    ] {
        let any = key(&jwk);
        for algorithm in Algorithm::ALL {
            assert_eq!(
                any.takes(algorithm),
                taken.contains(&algorithm),
                "{algorithm} {jwk}"
            );
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
            let mut only = jwk.clone();
            only["alg"] = json!(algorithm.name());
            match PublicKey::from_jwk(&self::jwk(&only)) {
                Ok(key) => {
                    let takes: Vec<_> = Algorithm::ALL.into_iter().filter(|one| key.takes(*one)).collect();
                    assert_eq!(takes, [algorithm]);
                }
                Err(error) => {
                    assert_eq!(error, JwsError::KeyType);
                    assert!(!taken.contains(&algorithm));
                }
            }
        }
    }
    // A key restricted to PSS must not verify PKCS #1, and no key may serve as an HMAC secret.
    let mut pss = rs256_key();
    pss["alg"] = json!("PS256");
    assert_eq!(verify(&key(&pss), RS256), Err(JwsError::KeyType));
    pss["alg"] = json!("HS256");
    assert_eq!(PublicKey::from_jwk(&jwk(&pss)), Err(JwsError::Algorithm));
}

#[test]
fn invalid_keys_are_rejected() {
    let with = |mut jwk: Value, name: &str, value: Value| {
        jwk[name] = value;
        jwk
    };
    for (jwk, error) in [
        (with(es256_key(), "use", json!("enc")), JwsError::KeyType),
        (with(es256_key(), "key_ops", json!(["sign"])), JwsError::KeyType),
        (with(es256_key(), "crv", json!("secp256k1")), JwsError::KeyType),
        (with(es256_key(), "crv", json!("P-384")), JwsError::Key),
        (with(es256_key(), "x", json!("AAAA")), JwsError::Key),
        (with(es256_key(), "y", Value::Null), JwsError::Key),
        (with(eddsa_key(), "crv", json!("X25519")), JwsError::KeyType),
        (with(eddsa_key(), "x", json!("!")), JwsError::Key),
        (with(rs256_key(), "n", json!("AQAB")), JwsError::Key),
        (with(rs256_key(), "e", json!("AA")), JwsError::Key),
        (
            with(rs256_key(), "n", json!(URL_SAFE_NO_PAD.encode(vec![0xff; 2_000]))),
            JwsError::Key,
        ),
        (json!({"kty": "oct", "k": "AAAA"}), JwsError::KeyType),
        (json!({"kty": ""}), JwsError::KeyType),
    ] {
        assert_eq!(PublicKey::from_jwk(&self::jwk(&jwk)), Err(error), "{jwk}");
    }
    // A point off the curve parses as a key and fails when it is used.
    let off = with(
        es256_key(),
        "y",
        json!("x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI6a0"),
    );
    assert_eq!(verify(&key(&off), ES256), Err(JwsError::Signature));
}

#[test]
fn set_keeps_usable_keys_and_finds_them_by_id() {
    let named = |mut jwk: Value, kid: &str| {
        jwk["kid"] = json!(kid);
        jwk
    };
    let set = json!({"keys": [
        named(es256_key(), "a"),
        named(eddsa_key(), "b"),
        named(json!({"kty": "oct", "k": "AAAA"}), "c"),
        named(json!({"kty": "RSA", "n": "AQAB", "e": "AQAB"}), "d"),
        {"kid": 7},
        "no key",
        named(es256_key(), "e"),
    ], "more": true});
    let set = JwkSet::parse(set.to_string().as_bytes()).unwrap();
    let found = |kid, algorithm| -> Vec<_> {
        let keys = set.candidates(kid, algorithm);
        keys.map(|key| key.kid().unwrap().to_owned()).collect()
    };
    assert_eq!(found(Some("a"), Algorithm::Es256), ["a"]);
    assert_eq!(found(Some("a"), Algorithm::EdDsa), [""; 0]);
    assert_eq!(found(Some("c"), Algorithm::Es256), [""; 0]);
    assert_eq!(found(None, Algorithm::EdDsa), ["b"]);
    assert_eq!(found(None, Algorithm::Es256), [""; 0], "either could be meant");
    for (json, is_set) in [
        (json!({"keys": []}), true),
        (json!({"keys": vec![es256_key(); 64]}), true),
        (json!({"keys": vec![es256_key(); 65]}), false),
        (json!({"keys": {}}), false),
        (json!([]), false),
        (json!({}), false),
    ] {
        assert_eq!(
            JwkSet::parse(json.to_string().as_bytes()).is_ok(),
            is_set,
            "{json}"
        );
    }
    assert!(JwkSet::parse(b"{\"keys\":[").is_err());
}
