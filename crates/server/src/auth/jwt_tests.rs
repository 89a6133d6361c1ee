//! Valid tokens of the configured issuer, and invalid ones.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;
use wopr_wire::jws::{PublicKey, SigningKey};

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const SECOND: i64 = 1_800_000_000;

/// A key and tokens made with PyJWT, valid until the end of the century.
const RSA: &str = r#"{"kty": "RSA", "n": "jMUUOWbYOKt8VHHy9ufnnzifmiUxHBGiEcRHgdbJRz5lb6JWNWdcYiM_fsq8xuZuEPYQjpOLqlM_eoFr_3dnd-EIRnL0CsPgcJ64-C5OcDnasa4vK35OREJNlCRwkidpBxfdaBcojRW0HbrqyomSSErWabX4puRuVuRw5kSGqrKKdNIpWWfsooHnmLt_vLppNm-O_FGx0KUTon8CUKZkyiNaZUm1PAdGtX6zAeF707cV-iSxEH6GoHUAKk47SphSyLP3GUydIG1XQM6f9zRdkbLNISWjXRwgOmULg6dFSOBlMS4UeA6P8b_eK9Xo6TrQDnL8O1CRJVAFQEHXv558QQ", "e": "AQAB", "kid": "rsa"}"#;
const RS256: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYSIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2lzc3Vlci50ZXN0LyIsImF1ZCI6IndvcHIiLCJzdWIiOiJhZGEiLCJzY29wZSI6Im9wZW5pZCBydW5zOnJlYWQiLCJleHAiOjQxMDI0NDQ4MDAsImlhdCI6MTcwMDAwMDAwMH0.HDXNzjLHjV3S_bF-6eC_-fy3KEoYrPuTGaQzgGQloHc0Wf4a7cA1L5InOlAX-FknWBkL2FiANoX0-OQ2b1qk1-XhexCZ1ipVi_HD2ZErWcYjVqEG9ku1Qmire25JQEJ5vwcWl4P_efZ49Su_2c9ZIXmTIq3LQ11yzLR1QMgTCKKNgw9Xv9LMz7R74oc3eeU507bweVk1Uaw87tC_RhqgQNf9XryFe27vGS5mDPa3CR5w7rWj24gKoA7umxa_cepz9uMr0prVNA-6CpBBW0G_kIGqzDXdumDtnnWcLQQ5jtukvouaEUN5fmXiYMCHVc5oysOAeMK7Z3q4F5khsl8K4A";
const PS256: &str = "eyJhbGciOiJQUzI1NiIsImtpZCI6InJzYSIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2lzc3Vlci50ZXN0LyIsImF1ZCI6IndvcHIiLCJzdWIiOiJhZGEiLCJzY29wZSI6Im9wZW5pZCBydW5zOnJlYWQiLCJleHAiOjQxMDI0NDQ4MDAsImlhdCI6MTcwMDAwMDAwMH0.L6YyGEda1aWRky5ZaqIM4fNEbU_2K7e58TYMGkfnU3pqFNc3VwkrIvEatwzLOdGQV4FvQjebvvYivW3NnztPylRoZKtC48yvUzJSLZWCp_ipO-I510HiIs6zjsp2vTcOC4HLmGkBMu2OAA7W8PydZyVdNyfKZ5VzaCjK0YCkR5EcVMsDM1CVEDlcjUdZD1rzFFxVONOtuFq3Z0Wj_kMrbjjC5CZSkguXetB0U4yLtW3QpZdP_gdPx1Zn1UCeq8dFDRfHiJSH7Z0sO4JeTIwcqq9CnEX2w5aYW3R7bl3ESnHaST6kiAoO7GZaUlC2fyjh84RIvUvMuOmzngu9Ur17wA";

fn rules(more: &str) -> Oidc {
    let base = r#"
        issuer = "https://issuer.test/"
        audience = ["wopr", "https://agents.test"]
        algorithms = ["EdDSA", "ES256", "RS256"]
    "#;
    toml::from_str(&format!("{base}\n{more}")).unwrap()
}

fn plain() -> Oidc {
    rules("tenant = \"acme\"")
}

fn key() -> SigningKey {
    SigningKey::ed25519("k1", &[1; 32]).unwrap()
}

fn keys() -> JwkSet {
    let rsa: PublicKey = PublicKey::from_jwk(&serde_json::from_str(RSA).unwrap()).unwrap();
    let others = [key(), SigningKey::p256("k2", &[2; 32]).unwrap()];
    let others = others.iter().map(|key| PublicKey::from_jwk(&key.jwk()).unwrap());
    others.chain([rsa]).collect()
}

fn claims() -> Value {
    json!({
        "iss": "https://issuer.test/", "aud": "wopr", "sub": "ada", "exp": SECOND + 60,
        "scope": "openid runs:create runs:read",
    })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn without(name: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove(name);
    claims
}

fn signed(header: &Value, payload: &[u8], key: &SigningKey) -> String {
    let (header, payload) = (
        URL_SAFE_NO_PAD.encode(header.to_string()),
        URL_SAFE_NO_PAD.encode(payload),
    );
    let signature = key.sign(&header, &payload);
    format!("{header}.{payload}.{signature}")
}

fn token(claims: &Value) -> String {
    signed(
        &json!({"alg": "EdDSA", "kid": "k1"}),
        claims.to_string().as_bytes(),
        &key(),
    )
}

fn judge(rules: &Oidc, token: &str) -> Result<Caller, Rejected> {
    caller(rules, &keys(), &parse(rules, token)?, NOW).map(|(caller, _)| caller)
}

#[test]
fn valid_token_yields_its_caller() {
    let caller = judge(&plain(), &token(&claims())).unwrap();
    assert_eq!(
        (caller.tenant.as_str(), caller.principal.as_str()),
        ("acme", "ada")
    );
    assert_eq!(caller.scopes.names(), ["runs:create", "runs:read"]);
    assert_eq!(&*caller.key_id, "oidc");
}

#[test]
fn tokens_of_another_library_are_accepted() {
    let caller = judge(&plain(), RS256).unwrap();
    assert_eq!(caller.principal.as_str(), "ada");
    assert_eq!(caller.scopes.names(), ["runs:read"]);
    // A valid signature by an algorithm that is not configured.
    assert_eq!(judge(&plain(), PS256), Err(Rejected::Algorithm));
    let mut pss = plain();
    pss.algorithms = vec!["PS256".parse().unwrap()];
    assert_eq!(judge(&pss, PS256).unwrap().principal.as_str(), "ada");
    assert_eq!(judge(&pss, RS256), Err(Rejected::Algorithm));
}

#[test]
fn invalid_claims_are_rejected() {
    for (claims, wanted) in [
        (without("iss"), Rejected::Issuer),
        (with("iss", json!("https://issuer.test")), Rejected::Issuer),
        (with("iss", json!("https://ISSUER.test/")), Rejected::Issuer),
        (with("iss", json!(["https://issuer.test/"])), Rejected::Issuer),
        (without("aud"), Rejected::Audience),
        (with("aud", json!("other")), Rejected::Audience),
        (with("aud", json!("wopr2")), Rejected::Audience),
        (with("aud", json!([])), Rejected::Audience),
        (with("aud", json!(["other", 7])), Rejected::Audience),
        (with("aud", json!({"wopr": true})), Rejected::Audience),
        (without("exp"), Rejected::Claims),
        (with("exp", json!("4102444800")), Rejected::Claims),
        (with("exp", Value::Null), Rejected::Claims),
        (with("exp", json!(SECOND - 60)), Rejected::Expired),
        (with("exp", json!(0)), Rejected::Expired),
        (with("exp", json!(-1e300)), Rejected::Expired),
        (with("nbf", json!(SECOND + 61)), Rejected::Future),
        (with("nbf", json!("soon")), Rejected::Claims),
        (with("iat", json!(SECOND + 61)), Rejected::Future),
        (without("sub"), Rejected::Principal),
        (with("sub", json!("")), Rejected::Principal),
        (with("sub", json!("a b")), Rejected::Principal),
        (with("sub", json!("a\nb")), Rejected::Principal),
        (with("sub", json!(7)), Rejected::Principal),
        (with("sub", json!("x".repeat(257))), Rejected::Principal),
    ] {
        assert_eq!(judge(&plain(), &token(&claims)), Err(wanted), "{claims}");
    }
    for claims in [
        with("aud", json!(["other", "https://agents.test"])),
        with("exp", json!(SECOND - 59)),
        with("exp", json!(SECOND as f64 - 59.5)),
        with("nbf", json!(SECOND + 60)),
        with("iat", json!(SECOND + 60)),
        with("sub", json!("auth0|7f3")),
    ] {
        assert!(judge(&plain(), &token(&claims)).is_ok(), "{claims}");
    }
    for payload in ["", "[]", "null", "\"x\"", "{"] {
        let token = signed(&json!({"alg": "EdDSA", "kid": "k1"}), payload.as_bytes(), &key());
        assert_eq!(judge(&plain(), &token), Err(Rejected::Claims), "{payload}");
    }
}

#[test]
fn hostile_headers_and_signatures_are_rejected() {
    let body = claims().to_string();
    let stranger = SigningKey::ed25519("k1", &[9; 32]).unwrap();
    let by = |header: Value, key: &SigningKey| signed(&header, body.as_bytes(), key);
    for (header, wanted) in [
        (json!({"alg": "none"}), Rejected::Signature(JwsError::Algorithm)),
        (
            json!({"alg": "HS256", "kid": "k1"}),
            Rejected::Signature(JwsError::Algorithm),
        ),
        (
            json!({"alg": "EdDSA", "kid": "k1", "crit": ["exp"]}),
            Rejected::Signature(JwsError::Critical),
        ),
        (json!({"alg": "ES384", "kid": "k1"}), Rejected::Algorithm),
        (json!({"alg": "ES256", "kid": "k1"}), Rejected::UnknownKey),
        (json!({"alg": "EdDSA", "kid": "k2"}), Rejected::UnknownKey),
        (json!({"alg": "EdDSA", "kid": "../k1"}), Rejected::UnknownKey),
        (
            json!({"alg": "EdDSA", "kid": "k1", "typ": "logout+jwt"}),
            Rejected::Type,
        ),
        (
            json!({"alg": "EdDSA", "kid": "k1", "typ": "secevent+jwt"}),
            Rejected::Type,
        ),
        (
            json!({"alg": "EdDSA", "kid": "k1", "typ": "JOSE"}),
            Rejected::Type,
        ),
    ] {
        assert_eq!(
            judge(&plain(), &by(header.clone(), &key())),
            Err(wanted),
            "{header}"
        );
    }
    // A key in the header, or its URL, is chosen by the attacker.
    for header in [
        json!({"alg": "EdDSA", "kid": "k1", "jwk": stranger.jwk()}),
        json!({"alg": "EdDSA", "kid": "k1", "jku": "https://evil.test/jwks"}),
        json!({"alg": "EdDSA", "kid": "k1"}),
        json!({"alg": "EdDSA"}),
    ] {
        let found = judge(&plain(), &by(header.clone(), &stranger));
        assert_eq!(found, Err(Rejected::Signature(JwsError::Signature)), "{header}");
    }
    for header in [
        json!({"alg": "EdDSA"}),
        json!({"alg": "EdDSA", "kid": "k1", "typ": "JWT"}),
        json!({"alg": "EdDSA", "kid": "k1", "typ": "application/at+jwt"}),
    ] {
        assert!(judge(&plain(), &by(header.clone(), &key())).is_ok(), "{header}");
    }
    let good = token(&claims());
    for text in [
        String::new(),
        "..".to_owned(),
        good.replace('.', ".."),
        format!("{good}."),
        format!("{good}A"),
        good[..good.len() - 4].to_owned(),
        format!("{good}{}", "A".repeat(MAX_TOKEN)),
    ] {
        assert!(judge(&plain(), &text).is_err(), "{}", &text[..text.len().min(60)]);
    }
}

#[test]
fn claims_are_mapped_as_configured() {
    let rules = rules(
        r#"
        tenant_claim = "/org/id"
        principal_claim = "email"
        principal_prefix = "sso:"
        scope_claim = "/realm_access/roles"
        [scopes]
        operator = ["runs:create", "runs:cancel"]
        admin = ["*"]
        "#,
    );
    let mut claims = claims();
    claims["org"] = json!({"id": "rival"});
    claims["email"] = json!("ada@example.test");
    claims["realm_access"] = json!({"roles": ["operator", "runs:read", 7, "unknown"]});
    let caller = judge(&rules, &token(&claims)).unwrap();
    assert_eq!(
        (caller.tenant.as_str(), caller.principal.as_str()),
        ("rival", "sso:ada@example.test")
    );
    assert_eq!(caller.scopes.names(), ["runs:create", "runs:cancel"]);
    claims["realm_access"] = json!({"roles": "admin"});
    assert_eq!(judge(&rules, &token(&claims)).unwrap().scopes, Scopes::ALL);
    for id in [
        json!(null),
        json!(""),
        json!("a/b"),
        json!(7),
        json!("x".repeat(65)),
    ] {
        claims["org"] = json!({"id": id});
        assert_eq!(judge(&rules, &token(&claims)), Err(Rejected::Tenant), "{id}");
    }
    // A `*` in a token does not grant every scope.
    let all = judge(&plain(), &token(&with("scope", json!("* runs:read")))).unwrap();
    assert_eq!(all.scopes.names(), ["runs:read"]);
    assert_eq!(
        judge(&plain(), &token(&without("scope"))).unwrap().scopes,
        Scopes::default()
    );
}

#[test]
fn remaining_lifetime_includes_leeway_and_is_capped() {
    let rules = plain();
    let left = |expires: Value| {
        let token = token(&with("exp", expires));
        let (_, left) = caller(&rules, &keys(), &parse(&rules, &token).unwrap(), NOW).unwrap();
        left
    };
    let leeway = rules.leeway.as_duration();
    assert_eq!(left(json!(SECOND + 300)), Duration::from_secs(300) + leeway);
    assert_eq!(left(json!(i64::MAX)), MAX_LEFT);
}

#[test]
fn roles_and_groups_come_from_configured_claims() {
    let mut claims = with("groups", json!(["board", "", 7, "x".repeat(300)]));
    claims["realm_access"] = json!({ "roles": "legal" });
    let caller = judge(&plain(), &token(&claims)).unwrap();
    assert!(caller.membership.is_empty());
    let rules = rules(
        "tenant = \"acme\"
         roles_claim = \"/realm_access/roles\"
         groups_claim = \"groups\"",
    );
    let caller = judge(&rules, &token(&claims)).unwrap();
    assert_eq!(caller.membership.roles, ["legal"]);
    assert_eq!(caller.membership.groups, ["board"]);
}
