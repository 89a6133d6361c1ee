//! Tools of workers: they lease work of runs, say that they are alive, and submit outcomes. What they mean is that of the
//! same calls over REST.

use futures_util::{FutureExt as _, future::BoxFuture};
use serde_json::{Value, json};
use wopr_app::Done;
use wopr_wire::json::{Decode as _, Fields, Object};

use super::{
    Ask, Hints, Outcome, Output, Tool,
    schema::{arguments, result},
};
use crate::openwop::{
    Problem,
    activities::{self, Details},
    render,
    workers::{self, Request},
};

pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "wopr_lease_activities",
        title: "Lease work of a queue",
        description: "Lease activities of a worker queue: steps of runs that wait for a program or a person. Each has a token, \
                      by which its outcome is submitted. A lease ends after leaseMs unless a heartbeat renews it, and the \
                      activity then goes to another worker.",
        hints: Hints::Adds { repeats: false },
        input: || {
            arguments(
                json!({
                    "queue": { "type": "string", "minLength": 1, "maxLength": 128 },
                    "worker": { "type": "string", "minLength": 1, "maxLength": 128, "description": "The worker's name, for people" },
                    "max": { "type": "integer", "minimum": 1, "maximum": 256, "default": 1 },
                    "waitMs": {
                        "type": "integer", "minimum": 0, "maximum": 60_000, "default": 0,
                        "description": "How long to wait for the first activity; the host may wait less",
                    },
                }),
                &["queue"],
            )
        },
        output: || {
            result(
                json!({
                    "activities": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "token": { "type": "string" },
                                "runId": { "type": "string" },
                                "nodeId": { "type": "string" },
                                "attempt": { "type": "integer" },
                                "input": {},
                                "leaseMs": { "type": "integer" },
                            },
                            "required": ["token", "runId", "nodeId", "input"],
                        },
                    },
                }),
                &["activities"],
            )
        },
        call: lease,
    },
    Tool {
        name: "wopr_complete_activity",
        title: "Submit the outcome of an activity",
        description: "End a leased activity: {\"ok\": true, \"result\": …} or {\"ok\": false, \"error\": {\"code\", \"message\", \
                      \"retryable\"}}. The run goes on, or the attempt fails and may be repeated.",
        hints: Hints::Adds { repeats: true },
        input: || {
            arguments(
                json!({
                    "token": { "type": "string", "minLength": 1 },
                    "outcome": {
                        "type": "object",
                        "properties": {
                            "ok": { "type": "boolean" },
                            "result": { "description": "What the step gives" },
                            "error": {
                                "type": "object",
                                "properties": {
                                    "code": { "type": "string", "minLength": 1, "maxLength": 128 },
                                    "message": { "type": "string" },
                                    "retryable": { "type": "boolean" },
                                },
                                "required": ["code"],
                            },
                        },
                        "required": ["ok"],
                    },
                }),
                &["token", "outcome"],
            )
        },
        output: || {
            result(
                json!({ "runId": { "type": "string" }, "status": { "type": "string" } }),
                &["runId", "status"],
            )
        },
        call: complete,
    },
    Tool {
        name: "wopr_heartbeat_activity",
        title: "Keep an activity leased",
        description: "Say that the worker of an activity is alive, and how far it is. Renews the lease. If cancelRequested is \
                      true, the outcome is not wanted any more.",
        hints: Hints::Adds { repeats: true },
        input: || {
            arguments(
                json!({
                    "token": { "type": "string", "minLength": 1 },
                    "details": { "description": "How far the work is, for the run's log; at most 64 KiB" },
                }),
                &["token"],
            )
        },
        output: || {
            result(
                json!({ "cancelRequested": { "type": "boolean" } }),
                &["cancelRequested"],
            )
        },
        call: heartbeat,
    },
];

fn lease(ask: Ask, arguments: Object) -> BoxFuture<'static, Outcome> {
    async move {
        let mut request = Request::decode(Value::Object(arguments))?;
        request.wait = request.wait.min(ask.most_wait());
        let leased = tokio::select! {
            // What a dropped call was about to get is given back.
            () = ask.given_up() => return Err(Problem::unavailable(1).into()),
            leased = workers::leased(&ask.host, &ask.caller, request) => leased?,
        };
        let document = serde_json::to_value(&leased).map_err(|_| Problem::internal())?;
        let n_leased = document["activities"].as_array().map_or(0, Vec::len);
        Ok(Output {
            headline: format!("Leased {n_leased} activity(s)."),
            document,
        })
    }
    .boxed()
}

fn complete(ask: Ask, arguments: Object) -> BoxFuture<'static, Outcome> {
    async move {
        let mut fields = Fields::of(Value::Object(arguments))?;
        let token = fields.required_text("token")?;
        let outcome: Value = fields.required("outcome")?;
        fields.refuse_unknown()?;
        let (run, _) = activities::named(&ask.host, &ask.caller, &token)?;
        let body = json!({ "outcome": outcome });
        let status = match activities::end(&ask.host, &ask.caller, &token, body).await? {
            Done::Fresh(view) => view.run.status,
            Done::Replayed(_) => {
                let summary = ask.app().summary(&run).await?;
                summary.ok_or_else(crate::openwop::problem::no_run)?.0.status
            }
        };
        let status = render::status_word(status);
        Ok(Output {
            headline: format!("The outcome is recorded; run {} is {status}.", run.run),
            document: json!({ "runId": run.run.as_str(), "status": status }),
        })
    }
    .boxed()
}

fn heartbeat(ask: Ask, arguments: Object) -> BoxFuture<'static, Outcome> {
    async move {
        let mut fields = Fields::of(Value::Object(arguments))?;
        let token = fields.required_text("token")?;
        let details = fields.present("details");
        fields.refuse_unknown()?;
        let (run, at) = activities::named(&ask.host, &ask.caller, &token)?;
        let Details(details) = Details::decode(json!({ "details": details }))?;
        let alive = ask.app().heartbeat_activity(&ask.caller, &run, at, details).await;
        let alive = alive.map_err(activities::refused)?;
        let headline = match alive.is_cancelled {
            true => "The outcome is not wanted any more.",
            false => "The lease is renewed.",
        };
        Ok(Output {
            headline: headline.to_owned(),
            document: json!({ "cancelRequested": alive.is_cancelled }),
        })
    }
    .boxed()
}
