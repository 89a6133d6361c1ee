//! API keys of a tenant. A host extension, so that rotating a key needs no restart.
//!
//! A key can grant only scopes its creator holds, and only in the creator's tenant. The creator may assign
//! any principal, roles and groups: callers that manage keys decide who the tenant's principals are.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use rand::{TryRngCore as _, rngs::OsRng};
use serde::Serialize;
use wopr_app::{AddedKey, ApiKey, Error as AppError, KeyPage, MAX_KEYS, NewKey};
use wopr_core::{Membership, PrincipalId};
use wopr_wire::{
    json::{Decode, DecodeError, Fields},
    time::Timestamp,
};

use super::{
    answer::{Answer, bytes_response, json_response},
    call::Call,
    problem::Problem,
    render,
    runs::{Page, of_opaque, opaque},
};
use crate::{
    auth::{Scopes, hash_hex},
    hex,
    message::Body,
    telemetry,
};

const MAX_ID: usize = 64;

/// The body of `POST /v1/host/wopr/keys`. Unknown members are rejected.
#[derive(Debug)]
struct CreateKey {
    id: Option<String>,
    principal: Option<String>,
    scopes: Vec<String>,
    membership: Membership,
}

impl Decode for CreateKey {
    fn decode(value: serde_json::Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let request = Self {
            id: fields.optional("id")?,
            principal: fields.optional("principal")?,
            scopes: fields.required("scopes")?,
            membership: Membership {
                roles: fields.or_default("roles")?,
                groups: fields.or_default("groups")?,
            },
        };
        fields.refuse_unknown()?;
        Ok(request)
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Key {
    id: String,
    tenant: String,
    principal: String,
    scopes: Vec<String>,
    #[serde(flatten)]
    membership: Membership,
    created_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<Timestamp>,
    /// Only in the response that creates the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct List {
    keys: Vec<Key>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl Key {
    fn of(key: ApiKey) -> Self {
        Self {
            id: key.id,
            tenant: key.tenant.to_string(),
            principal: key.principal.to_string(),
            scopes: key.scopes,
            membership: key.membership,
            created_at: render::time(key.created_at),
            revoked_at: key.revoked_at.map(render::time),
            secret: None,
        }
    }
}

/// `POST /v1/host/wopr/keys`
pub(super) fn create(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        if call.headers.contains_key("idempotency-key") {
            // A repeated response would need the secret, which is not stored.
            return Err(Problem::field(
                "Idempotency-Key",
                "is not taken here: name the key by id",
            ));
        }
        let request: CreateKey = call.decode()?;
        let caller = call.caller();
        let scopes = Scopes::parse(&request.scopes)
            .map_err(|rule| Problem::invalid(format!("scopes: {rule}")).with("field", "scopes"))?;
        let scopes = caller
            .grant(scopes)
            .ok_or_else(|| Problem::forbidden("a key cannot have scopes that its maker lacks"))?;
        if let Some(rule) = request.membership.problem() {
            return Err(Problem::invalid(rule));
        }
        let mut random = [0; 32];
        OsRng.try_fill_bytes(&mut random).map_err(|error| {
            tracing::error!(%error, "no entropy for a key");
            Problem::unavailable(1)
        })?;
        let id = match request.id {
            Some(id) if is_id(&id) => id,
            Some(_) => {
                return Err(Problem::field(
                    "id",
                    "must be 1 to 64 characters of [A-Za-z0-9._-]",
                ));
            }
            None => format!("key_{}", hex(&random[..6])),
        };
        let principal = request.principal.unwrap_or_else(|| id.clone());
        let principal = PrincipalId::parse(&principal)
            .map_err(|_| Problem::field("principal", "must be 1 to 256 characters without spaces"))?;
        let app = call.host.app();
        let refused = |message: &'static str| Problem::new(StatusCode::CONFLICT, "conflict", message);
        let taken = || refused("the tenant has a key of this id already");
        let mut configured = call.host.config().auth.keys.iter();
        if configured.any(|key| key.id == id && key.tenant == caller.tenant) {
            return Err(taken());
        }
        let secret = format!("wopr_{}", URL_SAFE_NO_PAD.encode(random));
        let new = NewKey {
            id,
            secret_sha256: hash_hex(&secret),
            principal,
            scopes,
            membership: request.membership,
        };
        let added = match app.add_key(caller, new).await? {
            AddedKey::Added(key) => key,
            AddedKey::Taken => return Err(taken()),
            AddedKey::Full => {
                let full = refused("the tenant has as many keys as it may have: revoke one to make room");
                return Err(full.with("maxKeys", MAX_KEYS));
            }
            AddedKey::FullOfRevoked => {
                let full = refused("the tenant has revoked as many keys within a week as it may: wait");
                return Err(full.with("maxKeys", MAX_KEYS));
            }
        };
        call.host.auth().catch_up().await.map_err(AppError::from)?;
        telemetry::key_created(&added.id, caller);
        let key = Key {
            secret: Some(secret),
            ..Key::of(added)
        };
        json_response(StatusCode::CREATED, &key)
    }
    .boxed()
}

fn is_id(text: &str) -> bool {
    (1..=MAX_ID).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// `GET /v1/host/wopr/keys`
pub(super) fn list(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let read = |cursor: &str| of_opaque(cursor).filter(|id| is_id(id));
        let Page { limit, after } = Page::of(&call, read)?;
        let app = call.host.app();
        let KeyPage { keys, has_more } = app.keys(call.caller(), after.as_deref(), limit).await?;
        let last = keys.last().filter(|_| has_more);
        let list = List {
            next_cursor: last.map(|key| opaque(&key.id)),
            keys: keys.into_iter().map(Key::of).collect(),
        };
        json_response(StatusCode::OK, &list)
    }
    .boxed()
}

/// `DELETE /v1/host/wopr/keys/{keyId}`
pub(super) fn revoke(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let id = call.param(0);
        let caller = call.caller();
        // Revoking is idempotent.
        if !call.host.app().revoke_key(caller, id).await? {
            return Err(Problem::not_found("no such key"));
        }
        call.host.auth().catch_up().await.map_err(AppError::from)?;
        telemetry::key_revoked(id, caller);
        Ok(bytes_response(StatusCode::NO_CONTENT, Body::empty()))
    }
    .boxed()
}
