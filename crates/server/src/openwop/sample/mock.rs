//! The hooks of the scripted model: they program it, and tell what it was asked for.

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde_json::{Value, json};
use wopr_connect::MockReply;
use wopr_core::ModelStop;
use wopr_wire::json::{Decode, DecodeError, Fields};

use crate::{
    auth::Scope,
    openwop::{
        answer::{Answer, json_response},
        call::Call,
        problem::Problem,
    },
};

/// The body of `POST /v1/host/sample/test/mock-ai/program`.
#[derive(Debug)]
struct Program {
    node: String,
    replies: Vec<Value>,
}

impl Decode for Program {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            node: fields.required_text("nodeId")?,
            replies: fields.required("program")?,
        })
    }
}

/// `POST /v1/host/sample/test/mock-ai/program`
pub(in super::super) fn program_mock(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        call.caller().require(Scope::RunsCreate)?;
        let request: Program = call.decode()?;
        let replies: Result<Vec<_>, Problem> = request.replies.iter().map(reply).collect();
        let mock = call.host.executors().models().mock();
        let mock = mock.ok_or_else(|| Problem::field("nodeId", "is of no use: this host has no mock"))?;
        mock.program(&request.node, replies?)
            .map_err(|error| Problem::field("program", &error.to_string()))?;
        json_response(
            StatusCode::OK,
            &json!({ "nodeId": request.node, "programmed": request.replies.len() }),
        )
    }
    .boxed()
}

/// A reply in either spelling: with its stop reason, or with a mode.
fn reply(document: &Value) -> Result<MockReply, Problem> {
    let text = |name: &str| document.get(name).and_then(Value::as_str).map(str::to_owned);
    let count = |name: &str| document.get(name).and_then(Value::as_u64).unwrap_or(0);
    if !document.is_object() {
        return Err(Problem::field("program", "must be a list of objects"));
    }
    let refusal = text("refusalText");
    let is_refusal = text("mode").as_deref() == Some("refusal");
    let stop = match text("stopReason").as_deref() {
        Some("safety") => ModelStop::Refusal,
        _ if refusal.is_some() || is_refusal => ModelStop::Refusal,
        None | Some("end_turn" | "stop_sequence") => ModelStop::End,
        Some("max_tokens" | "length") => ModelStop::Length,
        Some(other) => {
            let rule = format!("must not have the stopReason '{other}'");
            return Err(Problem::field("program", &rule));
        }
    };
    let content = match document.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    Ok(MockReply {
        text: content,
        stop,
        refusal,
        input_tokens: count("inputTokens"),
        output_tokens: count("outputTokens"),
    })
}

/// `GET /v1/host/sample/test/mock-ai/last-dispatch-budget`
pub(in super::super) fn last_budget(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        call.caller().require(Scope::RunsRead)?;
        let node = call
            .query("nodeId")
            .ok_or_else(|| Problem::field("nodeId", "is required"))?;
        let mock = call.host.executors().models().mock();
        let budget = mock.and_then(|mock| mock.last_budget(&node));
        json_response(StatusCode::OK, &json!({ "maxTokens": budget }))
    }
    .boxed()
}
