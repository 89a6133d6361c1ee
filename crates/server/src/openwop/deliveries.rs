//! Deliveries that are pending, and those that were given up and can be retried: push notifications to subscribers,
//! and cancels, answers and recalls to the agents of calls. A host extension.
//!
//! A delivery shows who did not accept what, and the error as far as operators may see it. It shows neither the URL
//! nor the body. A list has the push notifications first.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde::Serialize;
use serde_json::json;
use wopr_app::{CallDeliveryCursor, CallMessage, DeliveryCursor, ListedCallDelivery, ListedDelivery};
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
    #[serde(flatten)]
    what: What,
    /// `waiting` or `given-up`.
    state: &'static str,
    attempts: u64,
    enqueued_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_try_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    given_up_at: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase")]
enum What {
    Push {
        config_id: String,
        /// The sequence number of the event to deliver.
        sequence: u64,
    },
    Cancel {
        node_id: String,
        #[serde(flatten)]
        task: Task,
    },
    Answer {
        node_id: String,
        interrupt_id: String,
        #[serde(flatten)]
        task: Task,
    },
    /// Looks for a task whose id is not known yet.
    Recall {
        node_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        peer: Option<String>,
    },
}

/// The agent of a call, and its task.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Task {
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<String>,
}

/// The last delivery of a page.
enum Cursor {
    Push(DeliveryCursor),
    Call(CallDeliveryCursor),
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
                    let place = Cursor::read(&value);
                    after =
                        Some(place.ok_or_else(|| Problem::field("cursor", "is not one this host gave out"))?);
                }
                _ => {}
            }
        }
        let one_more = limit.saturating_add(1);
        let (app, caller) = (call.host.app(), call.caller());
        let mut found = match &after {
            Some(Cursor::Call(_)) => Vec::new(),
            None | Some(Cursor::Push(_)) => {
                let after = match &after {
                    Some(Cursor::Push(after)) => Some(after),
                    None | Some(Cursor::Call(_)) => None,
                };
                let pushes = app.list_deliveries(caller, run.clone(), is_given_up, after, one_more);
                let pushes = pushes.await?.into_iter();
                pushes
                    .map(|push| (Cursor::of_push(&push), of_push(push)))
                    .collect()
            }
        };
        if found.len() < one_more {
            let after = match &after {
                Some(Cursor::Call(after)) => Some(after),
                None | Some(Cursor::Push(_)) => None,
            };
            let left = one_more - found.len();
            let calls = app.list_call_deliveries(caller, run, is_given_up, after, left);
            let calls = calls.await?.into_iter();
            found.extend(calls.map(|call| (Cursor::of_call(&call), of_call(call))));
        }
        let has_more = found.len() > limit;
        found.truncate(limit);
        let next_cursor = found.last().filter(|_| has_more).map(|(cursor, _)| cursor.text());
        let deliveries = found.into_iter().map(|(_, delivery)| delivery).collect();
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

fn of_push(delivery: ListedDelivery) -> Delivery {
    Delivery {
        run_id: delivery.run.to_string(),
        what: What::Push {
            config_id: delivery.subscription,
            sequence: delivery.seq.0,
        },
        state: state(delivery.given_up_at.is_some()),
        attempts: delivery.attempts,
        enqueued_at: render::time(delivery.enqueued_at),
        error: delivery.error,
        next_try_at: None,
        given_up_at: delivery.given_up_at.map(render::time),
    }
}

fn of_call(delivery: ListedCallDelivery) -> Delivery {
    let handle = delivery.handle.as_ref();
    let named = |name: &str| handle?.get(name)?.as_str().map(str::to_owned);
    let task = Task {
        peer: named("peer"),
        task_id: named("taskId"),
    };
    let node_id = delivery.step.node.to_string();
    Delivery {
        run_id: delivery.run.to_string(),
        what: match delivery.message {
            CallMessage::Cancel => What::Cancel { node_id, task },
            CallMessage::Answer { interrupt } => What::Answer {
                node_id,
                interrupt_id: interrupt,
                task,
            },
            CallMessage::Recall { peer } => What::Recall { node_id, peer },
        },
        state: state(delivery.given_up_at.is_some()),
        attempts: delivery.n_failed,
        enqueued_at: render::time(delivery.enqueued_at),
        error: delivery.error,
        next_try_at: delivery.next_try_at.map(render::time),
        given_up_at: delivery.given_up_at.map(render::time),
    }
}

const fn state(is_given_up: bool) -> &'static str {
    match is_given_up {
        false => "waiting",
        true => "given-up",
    }
}

impl Cursor {
    fn of_push(delivery: &ListedDelivery) -> Self {
        Self::Push(DeliveryCursor {
            run: delivery.run.clone(),
            push: delivery.subscription.clone(),
            seq: delivery.seq,
        })
    }

    fn of_call(delivery: &ListedCallDelivery) -> Self {
        Self::Call(CallDeliveryCursor {
            run: delivery.run.clone(),
            name: delivery.name.clone(),
        })
    }

    fn text(&self) -> String {
        // A tuple of strings and a number always serializes.
        let place = match self {
            Self::Push(push) => serde_json::to_vec(&(push.run.as_str(), &push.push, push.seq.0)),
            Self::Call(call) => serde_json::to_vec(&(call.run.as_str(), &call.name)),
        };
        URL_SAFE_NO_PAD.encode(place.unwrap_or_default())
    }

    fn read(text: &str) -> Option<Self> {
        let place = URL_SAFE_NO_PAD.decode(text).ok()?;
        let run = |run: String| RunId::parse(&run).ok();
        if let Ok((id, name)) = serde_json::from_slice::<(String, String)>(&place) {
            return Some(Self::Call(CallDeliveryCursor { run: run(id)?, name }));
        }
        let (id, push, seq): (String, String, u64) = serde_json::from_slice(&place).ok()?;
        Some(Self::Push(DeliveryCursor {
            run: run(id)?,
            push,
            seq: Seq(seq),
        }))
    }
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
        let n_retried = retrying
            .await?
            .ok_or_else(|| Problem::not_found("the run has no such push configuration"))?;
        json_response(StatusCode::OK, &json!({ "retried": n_retried }))
    }
    .boxed()
}
