//! The hook that registers a workflow in the short form of the conformance suite: nodes in the order in which they run.

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde_json::{Value, json};
use wopr_wire::json::{Decode, DecodeError, Fields};

use crate::{
    auth::Scope,
    openwop::{
        answer::{Answer, json_response},
        call::Call,
        problem::Problem,
        workflows::offers,
    },
};

/// The body of `POST /v1/host/sample/workflows`.
#[derive(Debug)]
struct Short {
    workflow_id: String,
    nodes: Vec<Value>,
    variables: Value,
}

impl Decode for Short {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let short = Self {
            workflow_id: fields.required_text("workflowId")?,
            nodes: fields.required("nodes")?,
            variables: fields.or_default("variables")?,
        };
        fields.refuse_unknown()?;
        Ok(short)
    }
}

impl Short {
    /// The definition, with an edge from each node to the next.
    fn definition(self) -> Result<Value, Problem> {
        let mut ids = Vec::with_capacity(self.nodes.len());
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for (n, node) in self.nodes.into_iter().enumerate() {
            let at = |member: &str| format!("nodes[{n}].{member}");
            let Value::Object(mut node) = node else {
                return Err(Problem::field(&format!("nodes[{n}]"), "must be an object"));
            };
            let id = node.remove("nodeId").or_else(|| node.remove("id"));
            let Some(Value::String(id)) = id else {
                return Err(Problem::field(&at("nodeId"), "must be a text"));
            };
            node.insert("id".to_owned(), id.as_str().into());
            node.entry("name").or_insert_with(|| id.as_str().into());
            ids.push(id);
            nodes.push(Value::Object(node));
        }
        let edges = ids.windows(2).enumerate();
        let edges: Vec<_> = edges
            .map(|(n, pair)| json!({ "id": format!("e{n}"), "sourceNodeId": pair[0], "targetNodeId": pair[1] }))
            .collect();
        let variables = match self.variables {
            Value::Null => json!([]),
            variables => variables,
        };
        Ok(json!({
            "id": self.workflow_id, "name": self.workflow_id, "version": "1", "nodes": nodes, "edges": edges,
            "triggers": [], "variables": variables, "metadata": {}, "settings": {},
        }))
    }
}

/// `POST /v1/host/sample/workflows`
pub(in super::super) fn register_short(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        call.caller().require(Scope::WorkflowsWrite)?;
        let short: Short = call.decode()?;
        let document = short.definition()?;
        offers(&call, &document)?;
        let registered = call.host.app().register_workflow(call.caller(), document).await?;
        let body = json!({
            "workflowId": registered.plan.id().as_str(),
            "contentVersion": registered.plan.version().as_str(),
        });
        json_response(StatusCode::CREATED, &body)
    }
    .boxed()
}
