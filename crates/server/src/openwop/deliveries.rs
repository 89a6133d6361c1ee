//! Deliveries of push notifications: pending ones, and failed ones that can be retried. A host extension.
//!
//! A delivery shows which subscription failed to accept which event, and the error as far as operators may
//! see it. It shows neither the URL nor the body.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde::Serialize;
use serde_json::json;
use wopr_app::{DeliveryCursor, ListedDelivery};
use wopr_core::{RunId, Seq};
use wopr_wire::{
    json::{Decode, DecodeError, Fields},
    time::Timestamp,
};

use super::{
    answer::{Answer, json_response},
    call::Call,
    problem::Problem,
    render,
};

const DEFAULT_PAGE: usize = 50;
const MAX_PAGE: usize = 100;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Delivery {
    run_id: String,
    config_id: String,
    /// The sequence number of the event to deliver.
    sequence: u64,
    /// `waiting` or `given-up`.
    state: &'static str,
    attempts: u64,
    enqueued_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    given_up_at: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct List {
    deliveries: Vec<Delivery>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// The body of `POST /v1/host/wopr/deliveries:retry`. Unknown members are rejected.
#[derive(Debug)]
struct Retry {
    run_id: String,
    config_id: Option<String>,
    sequence: Option<u64>,
}

impl Decode for Retry {
    fn decode(value: serde_json::Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let retry = Self {
            run_id: fields.required_text("runId")?,
            config_id: fields.optional("configId")?,
            sequence: fields.optional("sequence")?,
        };
        fields.refuse_unknown()?;
        Ok(retry)
    }
}

/// `GET /v1/host/wopr/deliveries`
pub(super) fn list(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let (mut run, mut is_given_up) = (None, false);
        let (mut limit, mut after) = (DEFAULT_PAGE, None);
        for (name, value) in call.queries() {
            match &*name {
                "runId" => {
                    let parsed = RunId::parse(&value);
                    run = Some(parsed.map_err(|_| Problem::field("runId", "must be a run's id"))?);
                }
                "givenUp" => {
                    is_given_up = value
                        .parse()
                        .map_err(|_| Problem::field("givenUp", "must be true or false"))?;
                }
                "limit" => {
                    let number = value.parse().ok().filter(|n| (1..=MAX_PAGE).contains(n));
                    limit = number
                        .ok_or_else(|| Problem::field("limit", "must be a whole number from 1 to 100"))?;
                }
                "cursor" => {
                    let place = read_cursor(&value);
                    after =
                        Some(place.ok_or_else(|| Problem::field("cursor", "is not one this host gave out"))?);
                }
                _ => {}
            }
        }
        let one_more = limit.saturating_add(1);
        let mut found = call
            .host
            .app()
            .list_deliveries(call.caller(), run, is_given_up, after.as_ref(), one_more)
            .await?;
        let has_more = found.len() > limit;
        found.truncate(limit);
        let next_cursor = found.last().filter(|_| has_more).map(cursor);
        let deliveries = found.into_iter().map(shown).collect();
        json_response(
            StatusCode::OK,
            &List {
                deliveries,
                next_cursor,
            },
        )
    }
    .boxed()
}

fn shown(delivery: ListedDelivery) -> Delivery {
    Delivery {
        run_id: delivery.run.to_string(),
        config_id: delivery.subscription,
        sequence: delivery.seq.0,
        state: match delivery.given_up_at {
            None => "waiting",
            Some(_) => "given-up",
        },
        attempts: delivery.attempts,
        enqueued_at: render::time(delivery.enqueued_at),
        error: delivery.error,
        given_up_at: delivery.given_up_at.map(render::time),
    }
}

fn cursor(delivery: &ListedDelivery) -> String {
    let place = (delivery.run.as_str(), &delivery.subscription, delivery.seq.0);
    // A tuple of strings and a number always serializes.
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(&place).unwrap_or_default())
}

fn read_cursor(text: &str) -> Option<DeliveryCursor> {
    let place = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (run, push, seq): (String, String, u64) = serde_json::from_slice(&place).ok()?;
    Some(DeliveryCursor {
        run: RunId::parse(&run).ok()?,
        push,
        seq: Seq(seq),
    })
}

/// `POST /v1/host/wopr/deliveries:retry`
pub(super) fn retry(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let request: Retry = call.decode()?;
        let run = RunId::parse(&request.run_id).map_err(|_| Problem::field("runId", "must be a run's id"))?;
        if request.config_id.is_none() && request.sequence.is_some() {
            return Err(Problem::field("sequence", "goes with a configId"));
        }
        let seq = request.sequence.map(Seq);
        let retrying = call
            .host
            .app()
            .retry_deliveries(call.caller(), &run, request.config_id, seq);
        let n_retried = retrying.await?;
        json_response(StatusCode::OK, &json!({ "retried": n_retried }))
    }
    .boxed()
}
