//! The tools that a model asks for: which of them begin, and what the model is told of each.
//!
//! Each call is recorded, also one that begins nothing. All calls of one answer work at the same time, each as a child
//! run, and the model is asked again once all have returned. A call that is not allowed, that breaks its schema or that
//! fails is an error for the model to read. It is never another action.

use serde_json::{Value, json};
use wopr_kernel::{
    Cap, ChildEnd, ModelReply, RunId, RunStatus, Seq, Spawn, StepId, ToolCall, Wait, provider,
};

use crate::{
    CallError, CallStatus, Failure, Object, cost,
    measure::{object_too_deep, size_of, too_deep},
    node::{ModelNode, NodeKind, SKILL, Target, agent_workflow_id, tool_inputs, tool_workflow_id},
    offers::{Offer, Takes, listed_tools},
    schema::{Allowance, Schema},
};

use super::{
    Walk,
    act::{Actor, Returned, hash_of},
    dispatch::{UNKNOWN_WORKFLOW, unknown_agent},
    node::nested,
};

/// The most calls of one answer.
const MAX_CALLS: usize = 16;
/// Maximum size of a call's arguments in bytes.
const MAX_ARGUMENTS: usize = 64 * 1024;
/// Maximum size of what one call gives back, in bytes.
const MAX_RESULT: usize = 64 * 1024;
/// Maximum size of what all calls of an execution give back, in bytes.
const MAX_RESULTS: usize = 1024 * 1024;
/// What a microsecond of compiling a server's schema costs.
const UNITS_PER_MICRO: u64 = 100;
/// Longest error that a model is told, in bytes.
const MAX_ERROR: usize = 1_000;

/// Why a call begins nothing.
struct Refused {
    status: CallStatus,
    code: &'static str,
    message: String,
}

impl Walk<'_, '_> {
    /// Whether the step has asked servers for their tools.
    pub(super) fn lists_tools(&self, step: &StepId) -> bool {
        let active = self.active(step).map(|(_, active)| &active.wait);
        matches!(active, Some(Wait::Effect(pending)) if pending.provider == provider::TOOL_LIST)
    }

    /// Asks the model once servers have described the tools.
    pub(super) fn tools_listed(&mut self, node: &ModelNode, step: &StepId, cause: Seq, outcome: Object) {
        let Some(listed) = listed_tools(&outcome) else {
            let failure = Failure::new("internal_error", "the list of tools was not readable");
            return self.fail_node(step, cause, failure);
        };
        if object_too_deep(&outcome) {
            return self.fail_node(step, cause, nested("the list of tools"));
        }
        let kept = cost::of_object(&outcome);
        let checked = node.tools.check(&listed);
        let room = checked
            .and_then(|()| self.spend(4 * kept))
            .and_then(|()| self.hold(kept, 0));
        if let Err(failure) = room {
            return self.fail_node(step, cause, failure);
        }
        let cause = self.end_call(step, cause, outcome);
        if let Some((position, active)) = self.active(step) {
            let attempt = active.attempt;
            self.call_model(node, position, step.clone(), attempt, cause);
        }
    }

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
                    let checked = self.checked_call(node, position, call);
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
        let checked = self.checked_call(node, position, call);
        let is_flat = !too_deep(&call.arguments);
        let inputs = (is_flat && call.size() <= MAX_ARGUMENTS).then(|| call.arguments.clone());
        let kept = cost::bytes(call.size());
        self.spend(4 * kept).and_then(|()| self.hold(kept, 0))?;
        let args_hash = is_flat.then(|| hash_of(&call.arguments));
        let transport = (self.offer(node, position, &call.name)).map(|offer| offer.target.transport());
        self.record_call_of(actor, id.clone(), &call.name, (inputs, args_hash), transport)?;
        self.begin_tool(actor, &id, call, checked)
    }

    fn begin_tool(
        &mut self,
        actor: &mut Actor,
        id: &str,
        call: &ToolCall,
        checked: Result<Target, Refused>,
    ) -> Result<(), Failure> {
        let refused = match checked {
            Err(refused) => refused,
            Ok(target) => {
                let (step, called) = (actor.step.clone(), actor.cause);
                let spawned = self
                    .run_of(&target, &call.arguments)
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

    /// The tool of this name, if the model was offered one.
    fn offer<'w>(&'w self, node: &'w ModelNode, position: usize, name: &str) -> Option<Offer<'w>> {
        let thinking = self.state.nodes[position].thinking.as_deref();
        let listed = thinking.map_or(&[][..], crate::thinking::Thinking::listed);
        let mut offers = node.tools.offers(listed).into_iter();
        offers.find(|offer| offer.name == name)
    }

    /// What a call begins, if it may begin.
    fn checked_call(&self, node: &ModelNode, position: usize, call: &ToolCall) -> Result<Target, Refused> {
        let wrong = |message: String| Refused {
            status: CallStatus::Error,
            code: "invalid_arguments",
            message,
        };
        let Some(offer) = self.offer(node, position, &call.name) else {
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
        let valid = match offer.takes {
            Takes::Defined(schema, _) => schema.validate(&call.arguments, &meter),
            Takes::Listed(schema) => {
                let allowance = Allowance::default();
                let compiled = Schema::compile(&Value::Object(schema.clone()), &allowance);
                let work = cost::of_object(schema) + UNITS_PER_MICRO * allowance.spent();
                if self.budget.spend(work).is_err() {
                    return Err(wrong("checking the arguments takes too much work".to_owned()));
                }
                // One that this host cannot read is left to the server.
                compiled.map_or(Ok(()), |schema| schema.validate(&call.arguments, &meter))
            }
        };
        valid.map(|()| offer.target.into_owned()).map_err(|rule| {
            let mut message = rule.to_string();
            message.truncate(message.floor_char_boundary(MAX_ERROR));
            wrong(message)
        })
    }

    /// The child run that does the work of a tool. Nobody vouches for what a model gives it.
    fn run_of(&self, target: &Target, arguments: &Value) -> Result<Spawn, Failure> {
        self.spend(cost::of_value(arguments))?;
        let (workflow, inputs) = match target {
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
            Target::Server(tool) => (tool_workflow_id(), tool_inputs(tool, arguments.clone())),
        };
        self.may_spawn(&workflow).map_err(|failure| match target {
            Target::Server(_) if failure.code == UNKNOWN_WORKFLOW => Failure {
                message: "no tool server is configured on this host".to_owned(),
                ..failure
            },
            Target::Agent { peer, .. } if failure.code == UNKNOWN_WORKFLOW => unknown_agent(peer),
            Target::Server(_) | Target::Workflow(_) | Target::Agent { .. } => failure,
        })?;
        Ok(Spawn {
            workflow,
            is_chosen_by_host: match target {
                Target::Server(_) | Target::Agent { .. } => true,
                Target::Workflow(_) => false,
            },
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
