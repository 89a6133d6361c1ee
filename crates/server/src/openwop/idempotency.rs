//! `Idempotency-Key` (OpenWOP v1 section 17.1): requests that take effect once.
//!
//! A record is identified by tenant, principal, route and the hashed key. Its digest covers the path
//! parameters and the body in canonical form. If the request appends to a run, the record commits with the
//! append and the store decides between concurrent requests. Failures are not recorded, so a repeated request
//! is evaluated again. A record outlives its run; a repeated request then gets 404 and does not take effect
//! again.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::Value;
use sha2::{Digest, Sha256};
use wopr_app::{
    Done, Error as AppError, Idempotency, IdempotencyKey, IdempotencyRecord, SideRows, View, VisibleRun,
};
use wopr_core::{PrincipalId, RunKey};
use wopr_wire::json;

use super::{
    answer::{Answer, bytes_response},
    call::Call,
    problem::{Problem, no_run},
    route::Input,
};
use crate::{
    Host,
    auth::{Caller, hash_hex},
    hex,
    message::Response,
    tokens::Claims,
};

static REPLAY: HeaderName = HeaderName::from_static("openwop-idempotent-replay");

/// The largest number up to which a double is every whole number: 2^53.
const MAX_WHOLE: f64 = 9_007_199_254_740_992.0;

/// Maximum key length in bytes.
const MAX_KEY: usize = 255;

/// A request with an idempotency key.
#[derive(Debug, Clone)]
pub(super) struct Request {
    key: IdempotencyKey,
    digest: String,
}

impl Request {
    /// Reads the header; `None` if it is missing.
    pub(super) fn of(call: &Call) -> Result<Option<Self>, Problem> {
        let Some(key) = key(call)? else { return Ok(None) };
        let caller = call.caller();
        let digest = digest(call.params(), &body(call)?);
        Ok(Some(Self {
            key: caller.idempotency_key(scope(call), hash_hex(key)),
            digest,
        }))
    }

    /// Like [`Self::of`], for an answer by token. Keys are separate for each interrupt and each token holder.
    pub(super) fn of_holder(
        call: &Call,
        claims: &Claims,
        answerer: &PrincipalId,
    ) -> Result<Option<Self>, Problem> {
        let Some(key) = key(call)? else { return Ok(None) };
        let Claims {
            key: RunKey { tenant, run },
            node: _,
            ordinal: _,
            number: _,
            intent: _,
            holder,
        } = claims;
        let (principal, interrupt) = (&holder.principal, claims.interrupt());
        Ok(Some(Self {
            key: IdempotencyKey {
                tenant: tenant.clone(),
                principal: answerer.clone(),
                scope: scope(call),
                key: hash_hex(&format!("{principal} {run} {interrupt} {key}")),
            },
            digest: digest(&[], &body(call)?),
        }))
    }

    /// The side rows that record the request with the engine's append.
    pub(super) fn side_rows(
        this: Option<Self>,
        call: &Call,
        respond: impl Fn(&View) -> (StatusCode, Vec<u8>) + Send + Sync + 'static,
    ) -> SideRows {
        rows_of(this, &call.host, respond)
    }

    /// Returns the recorded response if the request took effect before.
    pub(super) async fn replay(&self, call: &Call) -> Result<Option<Response>, Problem> {
        match call.host.app().recorded(&self.key).await? {
            None => Ok(None),
            Some(record) => self.check(call, &record).await.map(Some),
        }
    }

    /// Records a request that needs no append. If a concurrent request was recorded first, returns its
    /// response.
    pub(super) async fn remember(self, call: &Call, status: StatusCode, body: Vec<u8>) -> Answer {
        let record = IdempotencyRecord {
            key: self.key.clone(),
            digest: self.digest.clone(),
            run: None,
            response: encode(status, &body),
            expires_at: call.host.app().idempotency_expiry(),
        };
        match call.host.app().remember(record).await? {
            None => Ok(bytes_response(status, body)),
            Some(first) => self.check(call, &first).await,
        }
    }

    async fn check(&self, call: &Call, record: &IdempotencyRecord) -> Answer {
        if record.digest == self.digest {
            replayed(call, record).await
        } else {
            Err(AppError::KeyReused.into())
        }
    }
}

/// The operation that ends an activity, in records of requests.
const OUTCOME: &str = "POST /v1/activities/{activityToken}";

/// The request that ends the activity of a token. It is the same over every face.
fn outcome_of(caller: &Caller, token: &str, body: &Value) -> Request {
    Request {
        key: caller.idempotency_key(OUTCOME.to_owned(), hash_hex(token)),
        digest: digest(&[], body),
    }
}

/// The side rows of the outcome of an activity. `respond` gives what a repeat over REST is answered.
pub(crate) fn rows_of_outcome(
    host: &Host,
    caller: &Caller,
    token: &str,
    body: &Value,
    respond: impl Fn(&View) -> (StatusCode, Vec<u8>) + Send + Sync + 'static,
) -> SideRows {
    rows_of(Some(outcome_of(caller, token, body)), host, respond)
}

fn rows_of(
    request: Option<Request>,
    host: &Host,
    respond: impl Fn(&View) -> (StatusCode, Vec<u8>) + Send + Sync + 'static,
) -> SideRows {
    let once = request.map(|request| Idempotency {
        expires_at: host.app().idempotency_expiry(),
        key: request.key,
        digest: request.digest,
        respond: Arc::new(move |view| {
            let (status, body) = respond(view);
            encode(status, &body)
        }),
    });
    SideRows {
        idempotency: once,
        ..SideRows::default()
    }
}

/// Responds to a command, with a new or the recorded response.
pub(super) async fn answer(
    call: &Call,
    done: &Done,
    fresh: impl FnOnce(&View) -> (StatusCode, Vec<u8>),
) -> Answer {
    match done {
        Done::Fresh(view) => {
            let (status, body) = fresh(view);
            Ok(bytes_response(status, body))
        }
        Done::Replayed(record) => replayed(call, record).await,
    }
}

/// Status and body of the answer to a command, new or recorded.
pub(super) async fn parts(
    call: &Call,
    done: &Done,
    fresh: impl FnOnce(&View) -> (StatusCode, Vec<u8>),
) -> Result<(StatusCode, Vec<u8>), Problem> {
    match done {
        Done::Fresh(view) => Ok(fresh(view)),
        Done::Replayed(record) => recorded(call, record).await,
    }
}

/// Reads and validates the header.
fn key(call: &Call) -> Result<Option<&str>, Problem> {
    let mut given = call.headers.get_all("idempotency-key").iter();
    let Some(value) = given.next() else {
        return Ok(None);
    };
    let rule = || Problem::field("Idempotency-Key", "must be 1 to 255 visible characters");
    let key = value.to_str().map_err(|_| rule())?;
    if key.is_empty() || key.len() > MAX_KEY || given.next().is_some() {
        return Err(rule());
    }
    Ok(Some(key))
}

fn scope(call: &Call) -> String {
    format!("{} {}", call.route.verb.method(), call.route.path)
}

fn body(call: &Call) -> Result<Value, Problem> {
    let is_blank = call.body.iter().all(u8::is_ascii_whitespace);
    match call.route.input {
        Input::None | Input::Optional(_) if is_blank => Ok(Value::Object(json::Object::new())),
        Input::None | Input::Optional(_) | Input::Required(_) => Ok(json::parse(&call.body)?),
    }
}

fn digest(params: &[String], body: &Value) -> String {
    let mut hasher = Sha256::new();
    for param in params {
        hasher.update((param.len() as u64).to_be_bytes());
        hasher.update(param.as_bytes());
    }
    // Members are sorted, strings have one encoding and numbers one spelling, so equal documents have equal bytes.
    let mut body = body.clone();
    spell_numbers(&mut body);
    hasher.update(body.to_string().as_bytes());
    hex(&hasher.finalize())
}

/// Spells whole numbers without a fraction or an exponent: 1.0 is 1. Canonical JSON (RFC 8785) would also make equal
/// what only a double cannot tell apart, and a request with another large number is another request.
fn spell_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let whole = number
                .as_f64()
                .filter(|_| number.is_f64())
                .filter(|n| n.fract() == 0.0);
            if let Some(whole) = whole.filter(|n| n.abs() <= MAX_WHOLE) {
                #[expect(clippy::cast_possible_truncation, reason = "whole and in range")]
                let whole = whole as i64;
                *number = whole.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(spell_numbers),
        Value::Object(fields) => fields.values_mut().for_each(spell_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn encode(status: StatusCode, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + 3);
    bytes.extend_from_slice(status.as_str().as_bytes());
    bytes.extend_from_slice(body);
    bytes
}

async fn replayed(call: &Call, record: &IdempotencyRecord) -> Answer {
    let (status, body) = recorded(call, record).await?;
    let mut response = bytes_response(status, body);
    response
        .headers_mut()
        .insert(REPLAY.clone(), HeaderValue::from_static("true"));
    Ok(response)
}

async fn recorded(call: &Call, record: &IdempotencyRecord) -> Result<(StatusCode, Vec<u8>), Problem> {
    if let Some(run) = VisibleRun::of_record(record)
        && call.host.app().summary(&run).await?.is_none()
    {
        return Err(no_run());
    }
    let (status, body) = record
        .response
        .split_at_checked(3)
        .and_then(|(status, body)| Some((StatusCode::from_bytes(status).ok()?, body)))
        .ok_or_else(|| {
            tracing::error!("stored answer cannot be read");
            Problem::internal()
        })?;
    Ok((status, body.to_vec()))
}
