//! Pushes of agents that this host's workflows call. A host extension.
//!
//! A push has the task of the call looked at. Its body is not read: the agent is asked.

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde_json::json;

use super::{
    answer::{Answer, json_response},
    call::Call,
    problem::Problem,
};

/// `POST /v1/host/wopr/calls/{call}`
pub(super) fn push(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let callbacks = call.host.callbacks();
        let opened = callbacks.open(call.param(0), &call.headers);
        let (run, step, called) = opened.ok_or_else(|| Problem::not_found("no such call"))?;
        let _admitted = callbacks.admit().ok_or_else(|| Problem::unavailable(1))?;
        // If the call is over, the agent has nothing to repeat either: it would do so for as long as for any failure.
        call.host.app().wake_call(&run, &step, called).await?;
        json_response(StatusCode::OK, &json!({}))
    }
    .boxed()
}
