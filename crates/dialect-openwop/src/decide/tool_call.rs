//! Steps that call a tool: what they ask, and what of it the run records as an agent's act.
//!
//! A call and its return are acts of the node's agent, or of one that is named after the node. What a tool gives is
//! untrusted: it becomes outputs, and decides nothing.

use serde_json::Value;
use wopr_kernel::{Call, Seq, StepId, ToolRequest};

use crate::{
    CallError, CallStatus, Failure, Object, Transport, cost,
    expression::Template,
    measure::{object_too_deep, size_of_object},
    node::{ToolNode, given_request},
};

use super::{
    Walk,
    act::{Actor, MAX_CONTENT, Returned},
    node::{MAX_ACTIVITY_RENDERED, nested},
};

impl Walk<'_, '_> {
    pub(super) fn request_tool(
        &mut self,
        node: &ToolNode,
        position: usize,
        step: StepId,
        attempt: u32,
        started: Seq,
        inputs: Object,
    ) {
        let arguments = match self.tool_arguments(node, inputs) {
            Ok(arguments) => arguments,
            Err(failure) => return self.fail_node(&step, started, failure),
        };
        let mut actor = self.tool_actor(position, &step, started);
        // Attempts at one call are one act.
        if attempt == 0 {
            let shown = (size_of_object(&arguments) <= MAX_CONTENT).then(|| Value::Object(arguments.clone()));
            if let Err(failure) = self.call_tool(&mut actor, &node.tool, shown, Some(Transport::Mcp)) {
                return self.fail_node(&step, actor.cause, failure);
            }
        }
        let request = ToolRequest {
            server: node.server.clone(),
            tool: node.tool.clone(),
            arguments,
            retry_safe: node.retry_safe,
            timeout_ms: node.timeout_ms,
        };
        self.call(step, attempt, actor.cause, Call::Tool(Box::new(request)));
    }

    /// Asks what the node of a model started this run for. That node's run records the call.
    pub(super) fn request_given_tool(&mut self, step: StepId, attempt: u32, started: Seq) {
        let inputs = self.run.started.as_ref().map(|started| &started.inputs);
        let size = inputs.map_or(0, cost::of_object);
        if let Err(failure) = self.spend(2 * size) {
            return self.fail_node(&step, started, failure);
        }
        match self
            .run
            .started
            .as_ref()
            .and_then(|started| given_request(&started.inputs))
        {
            Some(request) => self.call(step, attempt, started, Call::Tool(Box::new(request))),
            None => {
                let failure = Failure::new("invalid_input", "the run was not started by the tool of a model");
                self.fail_node(&step, started, failure);
            }
        }
    }

    /// Follows the outcome of the last attempt.
    pub(super) fn tool_returned(
        &mut self,
        node: &ToolNode,
        position: usize,
        step: &StepId,
        cause: Seq,
        outcome: Result<Object, Failure>,
    ) {
        let returned = match &outcome {
            Ok(outputs) => Returned {
                status: CallStatus::Ok,
                // The node's outputs have it in any case.
                outcome: (size_of_object(outputs) <= MAX_CONTENT && !object_too_deep(outputs))
                    .then(|| Value::Object(outputs.clone())),
                error: None,
                duration_ms: None,
            },
            Err(failure) => Returned {
                status: match failure.code.as_str() {
                    "tool_refused" => CallStatus::Forbidden,
                    _ => CallStatus::Error,
                },
                outcome: None,
                error: Some(CallError {
                    code: failure.code.clone(),
                    message: failure.message.clone(),
                    details: None,
                }),
                duration_ms: None,
            },
        };
        let mut actor = self.tool_actor(position, step, cause);
        let call = format!("{}:0", step.key());
        let recorded = self.return_from_tool(&mut actor, &call, &node.tool, returned);
        match (recorded, outcome) {
            (Ok(()), Ok(outputs)) => self.complete_node(step, actor.cause, outputs),
            (Ok(()), Err(failure)) | (Err(failure), _) => self.fail_node(step, actor.cause, failure),
        }
    }

    fn tool_actor(&self, position: usize, step: &StepId, cause: Seq) -> Actor {
        self.actor(position, step, cause, None, "tool")
    }

    /// What a tool gets: the input port `arguments`, else the configured arguments, else all inputs.
    fn tool_arguments(&mut self, node: &ToolNode, mut inputs: Object) -> Result<Object, Failure> {
        let mut left = MAX_ACTIVITY_RENDERED;
        let too_long = || Failure::new("template_failed", "the arguments are too long");
        let arguments = match (inputs.remove("arguments"), &node.arguments) {
            (Some(arguments), _) => arguments,
            (None, Some(arguments)) => arguments.fill(&mut |template: &Template| {
                let text = self.render(template)?;
                left = left.checked_sub(text.len()).ok_or_else(too_long)?;
                Ok(text)
            })?,
            (None, None) => Value::Object(inputs),
        };
        let Value::Object(arguments) = arguments else {
            return Err(Failure::new("invalid_input", "arguments is not an object"));
        };
        if object_too_deep(&arguments) {
            return Err(nested("the arguments"));
        }
        if size_of_object(&arguments) > MAX_ACTIVITY_RENDERED {
            return Err(too_long());
        }
        // Stored in the event and with the effect.
        self.spend(2 * cost::of_object(&arguments))?;
        Ok(arguments)
    }
}
