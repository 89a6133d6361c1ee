//! Secrets that a tenant keeps with this host. A host extension, so that a tenant brings its own keys.
//!
//! The operator declares a name and says where its value may be sent; the tenant sets the value. Nobody can read a value
//! back: what is shown is a fingerprint.

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde::Serialize;
use wopr_app::{SealedSecret, ShownSecret};
use wopr_wire::{
    json::{Decode, DecodeError, Fields},
    time::Timestamp,
};

use super::{
    answer::{Answer, bytes_response, json_response},
    call::Call,
    problem::Problem,
    render,
};
use crate::{message::Body, stored_secrets::SecretError, telemetry};

/// The body of `POST /v1/host/wopr/secrets`. Unknown members are rejected.
struct SetSecret {
    name: String,
    value: String,
}

impl Decode for SetSecret {
    fn decode(value: serde_json::Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let request = Self {
            name: fields.required("name")?,
            value: fields.required("value")?,
        };
        fields.refuse_unknown()?;
        Ok(request)
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Secret {
    name: String,
    fingerprint: String,
    set_at: Timestamp,
}

#[derive(Debug, Serialize)]
struct List {
    secrets: Vec<Secret>,
}

impl Secret {
    fn of(secret: ShownSecret) -> Self {
        Self {
            name: secret.name,
            fingerprint: secret.fingerprint,
            set_at: render::time(secret.set_at),
        }
    }
}

/// `POST /v1/host/wopr/secrets`
pub(super) fn set(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let SetSecret { name, value } = call.decode()?;
        let caller = call.caller();
        let declared = &call.host.config().secrets.named;
        let sealed = call
            .host
            .secret_cipher()
            .seal(declared, &caller.tenant, &name, &value);
        let (sealed, fingerprint) = sealed.map_err(|error| match error {
            SecretError::Undeclared(_) => Problem::field(
                "name",
                "must be a secret that the host's configuration declares with stored = true",
            ),
            SecretError::Value => Problem::field("value", "must be 1 to 16384 bytes that a header can carry"),
            SecretError::Entropy => {
                tracing::error!("no entropy for a nonce");
                Problem::unavailable(1)
            }
        })?;
        let secret = SealedSecret {
            name,
            sealed,
            fingerprint,
        };
        let set = call.host.app().set_secret(caller, secret).await?;
        let set = set.ok_or_else(|| {
            let message = format!("the tenant has {} secrets already", wopr_app::MAX_SECRETS);
            Problem::new(StatusCode::CONFLICT, "conflict", message)
        })?;
        telemetry::secret_set(&set.name, caller);
        json_response(StatusCode::OK, &Secret::of(set))
    }
    .boxed()
}

/// `GET /v1/host/wopr/secrets`
pub(super) fn list(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let secrets = call.host.app().secrets(call.caller()).await?;
        let secrets = secrets.into_iter().map(Secret::of).collect();
        json_response(StatusCode::OK, &List { secrets })
    }
    .boxed()
}

/// `DELETE /v1/host/wopr/secrets/{name}`
pub(super) fn remove(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let (name, caller) = (call.param(0), call.caller());
        if !call.host.app().remove_secret(caller, name).await? {
            return Err(Problem::not_found("no such secret"));
        }
        telemetry::secret_removed(name, caller);
        Ok(bytes_response(StatusCode::NO_CONTENT, Body::empty()))
    }
    .boxed()
}
