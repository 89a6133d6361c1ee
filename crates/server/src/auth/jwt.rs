//! Verifies signed tokens and maps their claims to callers.
//!
//! Pure: keys and time are passed in. The algorithm must be configured, and the key must be for that algorithm;
//! `iss`, `aud` and `exp` are required and checked, `nbf` and `iat` are checked if present. Tokens of another
//! type (logout or event tokens) are rejected. Unknown scopes are ignored.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use wopr_core::{Membership, PrincipalId, TenantId, Timestamp};
use wopr_wire::jws::{Compact, JwkSet, JwsError};

use super::{Caller, Scope, Scopes};
use crate::config::Oidc;

/// Maximum token length: it has to fit into a header field of any proxy in between.
const MAX_TOKEN: usize = 16 << 10;
/// Accepted values of `typ`, in lower case and without `application/`.
const TYPES: [&str; 2] = ["jwt", "at+jwt"];
/// Identifies tokens in logs.
const KEY_ID: &str = "oidc";
/// Upper bound of a token's remaining lifetime.
const MAX_LEFT: Duration = Duration::from_secs(365 * 24 * 3600);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Rejected {
    #[error("{0}")]
    Signature(#[from] JwsError),
    #[error("accept an algorithm that is not configured")]
    Algorithm,
    #[error("accept a token of this type")]
    Type,
    #[error("find the key of a token")]
    UnknownKey,
    #[error("read the claims of a token")]
    Claims,
    #[error("accept a token of another issuer")]
    Issuer,
    #[error("accept a token for another audience")]
    Audience,
    #[error("accept an expired token")]
    Expired,
    #[error("accept a token of the future")]
    Future,
    #[error("find the tenant of a token")]
    Tenant,
    #[error("find the principal of a token")]
    Principal,
}

/// Parses a token far enough to know which key it needs.
pub(super) fn parse<'a>(rules: &Oidc, token: &'a str) -> Result<Compact<'a>, Rejected> {
    let parsed = Compact::parse(token, MAX_TOKEN)?;
    let header = &parsed.header;
    if !rules.algorithms.iter().any(|one| one.0 == header.algorithm) {
        return Err(Rejected::Algorithm);
    }
    let typ = header.typ.as_deref().map(str::to_ascii_lowercase);
    let is_of_type = typ.as_deref().is_none_or(|typ| {
        let typ = typ.strip_prefix("application/").unwrap_or(typ);
        TYPES.contains(&typ)
    });
    if is_of_type {
        Ok(parsed)
    } else {
        Err(Rejected::Type)
    }
}

/// Verifies a token and returns its caller and remaining lifetime.
pub(super) fn caller(
    rules: &Oidc,
    keys: &JwkSet,
    token: &Compact<'_>,
    now: Timestamp,
) -> Result<(Caller, Duration), Rejected> {
    let header = &token.header;
    let mut verified = Err(Rejected::UnknownKey);
    for key in keys.candidates(header.kid.as_deref(), header.algorithm) {
        verified = key
            .verify(header.algorithm, token.message, &token.signature)
            .map_err(Into::into);
        if verified.is_ok() {
            break;
        }
    }
    verified?;
    let claims: Value = serde_json::from_slice(&token.payload).map_err(|_| Rejected::Claims)?;
    if !claims.is_object() {
        return Err(Rejected::Claims);
    }
    if claims.get("iss").and_then(Value::as_str) != Some(rules.issuer.as_str()) {
        return Err(Rejected::Issuer);
    }
    if !texts(claims.get("aud")).any(|aud| rules.audience.iter().any(|ours| ours == aud)) {
        return Err(Rejected::Audience);
    }
    let valid_for = check_times(rules, &claims, now)?;
    let caller = Caller {
        key_id: Arc::from(KEY_ID),
        tenant: tenant(rules, &claims)?,
        principal: principal(rules, &claims)?,
        scopes: scopes(rules, &claims),
        membership: Arc::new(membership(rules, &claims)),
    };
    Ok((caller, valid_for))
}

/// Checks the time claims and returns the remaining lifetime.
fn check_times(rules: &Oidc, claims: &Value, now: Timestamp) -> Result<Duration, Rejected> {
    let (now, leeway) = (
        now.millis() as f64 / 1_000.0,
        rules.leeway.as_duration().as_secs_f64(),
    );
    let expires = time(claims, "exp")?.ok_or(Rejected::Claims)?;
    if now >= expires + leeway {
        return Err(Rejected::Expired);
    }
    for name in ["nbf", "iat"] {
        if time(claims, name)?.is_some_and(|begins| now + leeway < begins) {
            return Err(Rejected::Future);
        }
    }
    // Clamped, as an `exp` in the far future would overflow.
    let left = (expires + leeway - now).clamp(0.0, MAX_LEFT.as_secs_f64());
    Ok(Duration::from_secs_f64(left))
}

/// Parses seconds since 1970, with an optional fraction.
fn time(claims: &Value, name: &str) -> Result<Option<f64>, Rejected> {
    match claims.get(name) {
        None => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or(Rejected::Claims),
    }
}

fn tenant(rules: &Oidc, claims: &Value) -> Result<TenantId, Rejected> {
    match (&rules.tenant, &rules.tenant_claim) {
        (Some(tenant), _) => Ok(tenant.clone()),
        (None, Some(name)) => {
            let text = claim(claims, name)
                .and_then(Value::as_str)
                .ok_or(Rejected::Tenant)?;
            TenantId::parse(text).map_err(|_| Rejected::Tenant)
        }
        (None, None) => Err(Rejected::Tenant),
    }
}

fn principal(rules: &Oidc, claims: &Value) -> Result<PrincipalId, Rejected> {
    let text = claim(claims, &rules.principal_claim).and_then(Value::as_str);
    let text = text.filter(|text| !text.is_empty()).ok_or(Rejected::Principal)?;
    PrincipalId::parse(&format!("{}{text}", rules.principal_prefix)).map_err(|_| Rejected::Principal)
}

fn scopes(rules: &Oidc, claims: &Value) -> Scopes {
    let mut held = Scopes::default();
    for name in texts(claim(claims, &rules.scope_claim)).flat_map(str::split_ascii_whitespace) {
        held = held.with(if rules.scopes.is_empty() {
            Scope::parse(name).map(Scopes::one).unwrap_or_default()
        } else {
            rules.scopes.get(name).copied().unwrap_or_default()
        });
    }
    held
}

/// Returns roles and groups. Drops names that no gate could use, and truncates lists that are too long.
fn membership(rules: &Oidc, claims: &Value) -> Membership {
    let names = |name: &Option<String>| {
        let found = name.as_ref().and_then(|name| claim(claims, name));
        let is_name = |name: &&str| (1..=Membership::MAX_CHARS).contains(&name.chars().count());
        let names = texts(found).filter(is_name).take(Membership::MAX);
        names.map(str::to_owned).collect()
    };
    Membership {
        roles: names(&rules.roles_claim),
        groups: names(&rules.groups_claim),
    }
}

/// Returns a claim by its name, or by a JSON pointer (`/realm_access/roles`).
fn claim<'a>(claims: &'a Value, name: &str) -> Option<&'a Value> {
    if name.starts_with('/') {
        claims.pointer(name)
    } else {
        claims.get(name)
    }
}

/// Returns the string, or the strings of a list.
fn texts(value: Option<&Value>) -> impl Iterator<Item = &str> {
    let list = match value {
        Some(Value::Array(list)) => list.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    list.iter().filter_map(Value::as_str)
}

#[cfg(test)]
#[path = "jwt_tests.rs"]
mod tests;
