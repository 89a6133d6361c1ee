//! The tools that a model asks for: which of them begin, and what the model is told of each.
//!
//! Each call is recorded, also one that begins nothing. All calls of one answer work at the same time, each as a child
//! run, and the model is asked again once all have returned. A call that is not allowed, that breaks its schema or that
//! fails is an error for the model to read. It is never another action.

use serde_json::{Value, json};
use wopr_kernel::{Cap, ChildEnd, ModelReply, RunId, RunStatus, Seq, Spawn, StepId, ToolCall};

use crate::{
    CallError, CallStatus, Failure, Object, cost,
    measure::{size_of, too_deep},
    node::{ModelNode, NodeKind, SKILL, Target, Tool, agent_workflow_id},
};

use super::{
    Walk,
    act::{Actor, Returned},
};

/// The most calls of one answer.
const MAX_CALLS: usize = 16;
/// Maximum size of a call's arguments in bytes.
const MAX_ARGUMENTS: usize = 64 * 1024;
/// Maximum size of what one call gives back, in bytes.
const MAX_RESULT: usize = 64 * 1024;
/// Maximum size of what all calls of an execution give back, in bytes.
const MAX_RESULTS: usize = 1024 * 1024;
/// Longest error that a model is told, in bytes.
const MAX_ERROR: usize = 1_000;

/// Why a call begins nothing.
struct Refused {
    status: CallStatus,
    code: &'static str,
    message: String,
}

impl Walk<'_, '_> {
    /// Follows a reply that asks for tools.
    pub(super) fn use_tools(&mut self, node: &ModelNode, step: &StepId, cause: Seq, reply: &ModelReply) {
        let Some((position, _)) = self.active(step) else {
            return;
        };
        let thinking = self.state.nodes[position].thinking.as_deref();
        let n_rounds = thinking.map_or(0, crate::thinking::Thinking::n_rounds);
        let most = node.tools.max_rounds;
        if n_rounds >= most {
            let cause = self.breached(Cap::LoopIterations, most, n_rounds + 1, step, cause);
            let message = format!("the model asked for tools more than {most} times");
            return self.fail_node(step, cause, Failure::new("tool_rounds_exceeded", message));
        }
        let n_calls = reply.tool_calls.len();
        if n_calls > MAX_CALLS {
            let message =
                format!("the model asked for {n_calls} tools in one answer, and {MAX_CALLS} is the most");
            return self.fail_node(step, cause, Failure::new("too_many_tool_calls", message));
        }
        self.begin_tools(node, position, step, cause, &reply.tool_calls);
    }

    /// Goes on in a branch that begins between the calls of an answer. Returns `false` if there are none.
    pub(super) fn resume_tools(
        &mut self,
        node: &ModelNode,
        position: usize,
        step: &StepId,
        cause: Seq,
    ) -> bool {
        let thinking = self.state.nodes[position].thinking.as_deref();
        let Some(turn) = thinking.and_then(|thinking| thinking.turns.last()) else {
            return false;
        };
        if turn.uses.is_empty() || turn.is_answered() {
            return false;
        }
        let calls = turn.reply.tool_calls.clone();
        self.begin_tools(node, position, step, cause, &calls);
        true
    }

    /// Begins all calls of an answer that have not begun. A branch that goes its own way between two of them drops what
    /// its source had begun, so the next one is always the first that has not begun.
    fn begin_tools(
        &mut self,
        node: &ModelNode,
        position: usize,
        step: &StepId,
        cause: Seq,
        calls: &[ToolCall],
    ) {
        let mut actor = self.actor(position, step, cause, None, "model");
        let mut done = Ok(());
        while done.is_ok() {
            self.begin_branch();
            let thinking = self.state.nodes[position].thinking.as_deref();
            let turn = thinking.and_then(|thinking| thinking.turns.last());
            let uses = turn.map_or(&[][..], |turn| &turn.uses);
            let n_begun = uses.iter().take_while(|known| known.has_begun()).count();
            let Some(call) = calls.get(n_begun) else { break };
            done = match uses.get(n_begun).cloned() {
                None => self.use_tool(node, position, &mut actor, call),
                Some(known) => {
                    actor.cause = known.called;
                    let checked = self.checked_call(node, call);
                    self.begin_tool(&mut actor, &known.call, call, checked)
                }
            };
        }
        self.go_on_with_tools(node, position, step, actor.cause, done);
    }

    /// Records a call, and begins it if it may begin.
    fn use_tool(
        &mut self,
        node: &ModelNode,
        position: usize,
        actor: &mut Actor,
        call: &ToolCall,
    ) -> Result<(), Failure> {
        let thinking = self.state.nodes[position].thinking.as_deref();
        let number = thinking.map_or(0, crate::thinking::Thinking::n_uses);
        let id = format!("{}:{number}", actor.step.key());
        let checked = self.checked_call(node, call);
        let is_shown = call.size() <= MAX_ARGUMENTS && !too_deep(&call.arguments);
        let inputs = is_shown.then(|| call.arguments.clone());
        let kept = cost::bytes(call.size());
        self.spend(3 * kept).and_then(|()| self.hold(kept, 0))?;
        let transport = node.tools.find(&call.name).map(|tool| tool.target.transport());
        self.record_call(actor, id.clone(), &call.name, inputs, transport)?;
        self.begin_tool(actor, &id, call, checked)
    }

    fn begin_tool(
        &mut self,
        actor: &mut Actor,
        id: &str,
        call: &ToolCall,
        checked: Result<&Tool, Refused>,
    ) -> Result<(), Failure> {
        let refused = match checked {
            Err(refused) => refused,
            Ok(tool) => {
                let (step, called) = (actor.step.clone(), actor.cause);
                let spawned = self
                    .run_of(tool, &call.arguments)
                    .and_then(|spawn| self.spawn_member(&step, called, spawn));
                match spawned {
                    Ok(_) => return Ok(()),
                    Err(failure) => {
                        let error = CallError {
                            code: failure.code,
                            message: failure.message,
                            details: None,
                        };
                        return self.return_error(actor, id, &call.name, CallStatus::Error, error);
                    }
                }
            }
        };
        let error = CallError {
            code: refused.code.to_owned(),
            message: refused.message,
            details: None,
        };
        self.return_error(actor, id, &call.name, refused.status, error)
    }

    fn return_error(
        &mut self,
        actor: &mut Actor,
        id: &str,
        name: &str,
        status: CallStatus,
        error: CallError,
    ) -> Result<(), Failure> {
        let returned = Returned {
            status,
            outcome: None,
            error: Some(error),
            duration_ms: None,
        };
        self.return_from_tool(actor, id, name, returned)
    }

    /// The tool that a call names, if the call may begin.
    fn checked_call<'n>(&self, node: &'n ModelNode, call: &ToolCall) -> Result<&'n Tool, Refused> {
        let wrong = |message: String| Refused {
            status: CallStatus::Error,
            code: "invalid_arguments",
            message,
        };
        let Some(tool) = node.tools.find(&call.name) else {
            return Err(Refused {
                status: CallStatus::Forbidden,
                code: "tool_not_offered",
                message: "no tool of this name was offered".to_owned(),
            });
        };
        let size = size_of(&call.arguments);
        if size > MAX_ARGUMENTS {
            return Err(wrong(format!(
                "the arguments have {size} bytes, and {MAX_ARGUMENTS} is the most"
            )));
        }
        if !call.arguments.is_object() {
            return Err(wrong("the arguments are no JSON object".to_owned()));
        }
        if too_deep(&call.arguments) {
            return Err(wrong("the arguments nest too deep".to_owned()));
        }
        let meter = self.budget.meter();
        match tool.schema.validate(&call.arguments, &meter) {
            Ok(()) => Ok(tool),
            Err(rule) => {
                let mut message = rule.to_string();
                message.truncate(message.floor_char_boundary(MAX_ERROR));
                Err(wrong(message))
            }
        }
    }

    /// The child run that does the work of a tool. Nobody vouches for what a model gives it.
    fn run_of(&self, tool: &Tool, arguments: &Value) -> Result<Spawn, Failure> {
        self.spend(cost::of_value(arguments))?;
        let (workflow, inputs) = match &tool.target {
            Target::Workflow(workflow) => {
                let inputs = arguments.as_object().cloned().unwrap_or_default();
                (workflow.clone(), inputs)
            }
            Target::Agent { peer, skill } => {
                let message = arguments.get("message").cloned().unwrap_or_default();
                let mut inputs = Object::from_iter([("prompt".to_owned(), message)]);
                if let Some(skill) = skill {
                    inputs.insert(SKILL.to_owned(), skill.as_str().into());
                }
                (agent_workflow_id(peer), inputs)
            }
        };
        self.may_spawn(&workflow)?;
        Ok(Spawn {
            workflow,
            inputs,
            unset: Vec::new(),
            is_untrusted: true,
            report: Vec::new(),
        })
    }

    /// Follows the end of a tool's child run.
    pub(super) fn tool_ended(&mut self, position: usize, step: &StepId, cause: Seq, child: &RunId) {
        let plan = self.plan;
        let NodeKind::Model(node) = &plan.nodes[position].kind else {
            return;
        };
        let Some(end) = self.end_of(step, child) else {
            return;
        };
        let thinking = self.state.nodes[position].thinking.as_deref();
        let Some((known, name)) = thinking.and_then(|thinking| thinking.use_of(child)) else {
            return;
        };
        let (known, name) = (known.clone(), name.to_owned());
        let left = MAX_RESULTS.saturating_sub(thinking.map_or(0, crate::thinking::Thinking::size_of_results));
        let mut actor = self.actor(position, step, cause, None, "model");
        actor.cause = known.called;
        let kept = cost::of_object(&end.outputs);
        let returned = match result_of(end, left) {
            Ok(outcome) => Returned {
                status: CallStatus::Ok,
                outcome: Some(outcome),
                error: None,
                duration_ms: None,
            },
            Err(error) => Returned {
                status: CallStatus::Error,
                outcome: None,
                error: Some(error),
                duration_ms: None,
            },
        };
        let done = self
            .spend(3 * kept)
            .and_then(|()| self.hold(kept, 0))
            .and_then(|()| self.return_from_tool(&mut actor, &known.call, &name, returned));
        self.go_on_with_tools(node, position, step, actor.cause, done);
    }

    /// Asks the model again once all calls of its answer have returned.
    fn go_on_with_tools(
        &mut self,
        node: &ModelNode,
        position: usize,
        step: &StepId,
        cause: Seq,
        done: Result<(), Failure>,
    ) {
        if let Err(failure) = done {
            self.cancel_rest(step);
            return self.fail_node(step, cause, failure);
        }
        let Some((_, active)) = self.active(step) else {
            return;
        };
        let attempt = active.attempt;
        let thinking = self.state.nodes[position].thinking.as_deref();
        let turn = thinking.and_then(|thinking| thinking.turns.last());
        if turn.is_some_and(crate::thinking::Turn::is_answered) {
            self.call_model(node, position, step.clone(), attempt, cause);
        }
    }
}

/// What a model is told of a child run that has ended.
fn result_of(end: ChildEnd, left: usize) -> Result<Value, CallError> {
    let error = |code: &str, message: String| CallError {
        code: code.to_owned(),
        message,
        details: None,
    };
    match (end.status, end.error) {
        (RunStatus::Completed, _) => {
            let outputs = json!(end.outputs);
            let size = size_of(&outputs);
            let most = MAX_RESULT.min(left);
            match size <= most {
                true => Ok(outputs),
                false => Err(error(
                    "tool_result_too_large",
                    format!("the result has {size} bytes, and {most} is the most"),
                )),
            }
        }
        (RunStatus::Cancelled, _) => Err(error("tool_cancelled", "the tool was cancelled".to_owned())),
        (_, Some(failure)) => {
            let mut message = failure.message;
            message.truncate(message.floor_char_boundary(MAX_ERROR));
            Err(error(&failure.code, message))
        }
        (_, None) => Err(error("tool_failed", "the tool failed".to_owned())),
    }
}
