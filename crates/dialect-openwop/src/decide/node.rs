//! Runs one execution of a node: its inputs, the work of its type, and its end.

use serde_json::{Value, json};

use wopr_kernel::{Activity, Attempted, Call, KernelEvent, Seq, StepId, fields};

use crate::{
    Event, Failure, InterruptKind, Object, REJECTED,
    context::artifact_content,
    cost,
    definition::TriggerRule,
    expression::{ExpressionError, Template},
    measure::{MAX_NESTING, json_within, object_too_deep, too_deep},
    node::{ActivityNode, ApprovalGate, Assigned, HttpNode, NodeKind},
    plan::Port,
    too_much_work, whole,
};

use super::Walk;

/// Longest delay; a longer one would exceed the range of timestamps.
const MAX_DELAY_MS: u64 = 100 * 365 * 24 * 3_600 * 1_000;

/// Maximum size in bytes of one request's rendered templates.
const MAX_HTTP_RENDERED: usize = 4 * 1024 * 1024;
/// Maximum size in bytes of the rendered templates of an activity's input.
pub(super) const MAX_ACTIVITY_RENDERED: usize = 1024 * 1024;

/// Where a run goes on after a node.
struct Routing {
    /// The outgoing edges whose condition does not hold.
    untaken: Vec<u32>,
    /// Present if a condition failed that decides about an edge.
    failure: Option<Failure>,
}

/// How a node ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Completed,
    Failed,
}

impl Ending {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    /// Whether a run may take an edge with this rule after a node that ends like this.
    const fn may_take(self, rule: TriggerRule) -> bool {
        match rule {
            TriggerRule::AllSuccess | TriggerRule::AnySuccess | TriggerRule::NoneFailed => {
                matches!(self, Self::Completed)
            }
            TriggerRule::AnyFailed => matches!(self, Self::Failed),
            TriggerRule::AllComplete => true,
        }
    }
}

impl Walk<'_, '_> {
    pub(super) fn start_node(&mut self, position: usize) {
        if let Some((step, started)) = self.start_step(position) {
            self.perform(position, step, 0, started);
        }
    }

    pub(super) fn perform(&mut self, position: usize, step: StepId, attempt: u32, started: Seq) {
        let plan = self.plan;
        let node = &plan.nodes[position];
        let inputs = match self.resolve_inputs(position) {
            Ok(inputs) => inputs,
            Err(failure) => return self.fail_node(&step, started, failure),
        };
        match &node.kind {
            NodeKind::Pass => self.complete_node(&step, started, inputs),
            NodeKind::Delay { ms } => {
                let asked = match inputs.get("delayMs").map(whole) {
                    Some(None) => {
                        let failure =
                            Failure::new("invalid_input", "delayMs is not a whole number of at least 0");
                        return self.fail_node(&step, started, failure);
                    }
                    Some(asked) => asked,
                    None => *ms,
                };
                let asked = asked.unwrap_or(0).min(MAX_DELAY_MS);
                if asked == 0 {
                    return self.complete_node(&step, started, fields(json!({ "waitedMs": 0 })));
                }
                self.sleep_for(step, asked);
            }
            NodeKind::Fail {
                code,
                message,
                retryable,
            } => {
                let failure = Failure {
                    code: code.clone(),
                    message: message.clone(),
                    retryable: *retryable,
                    reason: None,
                    worker: None,
                };
                let attempted = Attempted {
                    attempt,
                    retry_after_ms: None,
                    failure,
                };
                if let Some(failure) = self.retry(position, &step, started, attempted) {
                    self.fail_node(&step, started, failure);
                }
            }
            NodeKind::Reject { message } => {
                let failure = match self.render(message) {
                    Ok(message) => Failure::new(REJECTED, message),
                    Err(failure) => failure,
                };
                self.fail_node(&step, started, failure);
            }
            NodeKind::Stream { pieces, interval_ms } => self.stream_on(pieces, *interval_ms, &step, started),
            NodeKind::Approval(gate) => {
                let ApprovalGate {
                    data,
                    about,
                    timeout_ms,
                    ..
                } = &**gate;
                self.ask_about(
                    &step,
                    started,
                    (InterruptKind::Approval, data.clone()),
                    about,
                    *timeout_ms,
                );
            }
            NodeKind::Clarification {
                questions,
                data,
                about,
                timeout_ms,
                ..
            } => {
                let mut data = data.clone();
                data["questions"] = questions.clone();
                let question = (InterruptKind::Clarification, data);
                self.ask_about(&step, started, question, about, *timeout_ms);
            }
            NodeKind::Interrupt {
                kind,
                data,
                about,
                timeout_ms,
                ..
            } => self.ask_about(&step, started, (*kind, data.clone()), about, *timeout_ms),
            NodeKind::Conversation(gate) => self.converse(position, &step, started, gate),
            NodeKind::Duplicates => self.write_duplicates(position, &step, started, inputs),
            NodeKind::Memory(memory) => match self.memory_call(position, memory, inputs) {
                Ok(call) => self.call(step, attempt, started, Call::Memory(Box::new(call))),
                Err(failure) => self.fail_node(&step, started, failure),
            },
            NodeKind::MockAgent(mock) => self.mock_agent(position, &step, started, mock),
            NodeKind::SetVariable { name, value } => match self.assigned(value, &inputs) {
                Ok(next) if too_deep(&next) => self.fail_node(&step, started, nested("the value")),
                Ok(next) => {
                    let (kept, before) = (cost::of_value(&next), self.held_of(name));
                    let room = self.spend(kept + before).and_then(|()| self.hold(kept, before));
                    if let Err(failure) = room {
                        return self.fail_node(&step, started, failure);
                    }
                    let previous = self.state.previous(name);
                    let changed = Event::VariableChanged {
                        name: name.clone(),
                        previous,
                        next,
                        appends: false,
                        node: Some(node.id.clone()),
                    };
                    let cause = self.emit(Some(started), changed);
                    self.complete_node(&step, cause, Object::new());
                }
                Err(failure) => self.fail_node(&step, started, failure),
            },
            NodeKind::Template(template) => match self.render(template) {
                Ok(text) => self.complete_node(&step, started, fields(json!({ "text": text }))),
                Err(failure) => self.fail_node(&step, started, failure),
            },
            NodeKind::ChannelWrite {
                channel,
                value,
                reducer,
                ttl_ms,
                max_size,
            } => {
                let Some(value) = inputs.get("value").cloned().or_else(|| value.clone()) else {
                    let failure = Failure::new("invalid_input", "there is no value to write");
                    return self.fail_node(&step, started, failure);
                };
                let limits = (*ttl_ms, *max_size);
                match self.write_channel(position, started, channel, value, reducer.as_deref(), limits) {
                    Ok(cause) => self.complete_node(&step, cause, Object::new()),
                    Err(failure) => self.fail_node(&step, started, failure),
                }
            }
            NodeKind::SubWorkflow(sub) => self.dispatch_child(sub, &step, started, inputs),
            NodeKind::Supervisor(supervisor) => {
                self.supervise(supervisor, (position, step, attempt), started, inputs);
            }
            NodeKind::Dispatch(dispatch) => self.dispatch(position, dispatch, &step, started),
            NodeKind::Http(http) => match self.http_call(http, &inputs) {
                Ok(call) => self.call(step, attempt, started, call),
                Err(failure) => self.fail_node(&step, started, failure),
            },
            NodeKind::Activity(node) => match self.activity(node, inputs) {
                Ok(activity) => {
                    let call = Call::Activity(Box::new(activity));
                    self.call(step, attempt, started, call);
                }
                Err(failure) => self.fail_node(&step, started, failure),
            },
            NodeKind::Agent(agent) => match self.agent_call(agent, inputs) {
                Ok(call) => self.call(step, attempt, started, Call::Agent(Box::new(call))),
                Err(failure) => self.fail_node(&step, started, failure),
            },
            NodeKind::GivenTool => self.request_given_tool(step, attempt, started),
            NodeKind::Tool(tool) => self.request_tool(tool, position, step, attempt, started, inputs),
            NodeKind::Model(model) => self.ask_model(model, position, step, attempt, started, inputs),
            NodeKind::SideEffect => {
                let payload = Value::Object(inputs);
                self.call(step, attempt, started, Call::SideEffect { payload });
            }
            NodeKind::ArtifactEmit {
                artifact_type,
                content,
            } => {
                let content = if content.is_null() {
                    artifact_content(&inputs)
                } else {
                    content.clone()
                };
                let name = node.name.clone();
                let cause = self.artifact(&step, started, artifact_type.clone(), name, content);
                self.complete_node(&step, cause, inputs);
            }
            NodeKind::Requires { capability } => {
                let failure = Failure::new(
                    "capability_not_provided",
                    format!("this host does not provide '{capability}'"),
                );
                self.fail_node(&step, started, failure);
            }
        }
    }

    fn resolve_inputs(&self, position: usize) -> Result<Object, Failure> {
        let node = &self.plan.nodes[position];
        let mut inputs = Object::new();
        for (name, port) in &node.inputs {
            let missing = |what: String| {
                Err(Failure::new(
                    "input_unresolved",
                    format!("input '{name}': {what}"),
                ))
            };
            let value = match port {
                Port::Static(value) => Some(self.copy(value)?),
                Port::Variable {
                    name: variable,
                    optional,
                } => match self.state.variables.get(variable) {
                    None if !optional => return missing(format!("variable '{variable}' is not set")),
                    value => value.map(|value| self.copy(value)).transpose()?,
                },
                Port::Connection {
                    node: source,
                    key,
                    optional,
                } => {
                    let outputs = self.state.nodes[*source].outputs.as_ref();
                    match outputs.and_then(|outputs| outputs.get(key)) {
                        None if !optional => {
                            return missing(format!(
                                "node '{}' has no output '{key}'",
                                self.plan.nodes[*source].id
                            ));
                        }
                        value => value.map(|value| self.copy(value)).transpose()?,
                    }
                }
                Port::Expression(expression) => match expression.evaluate_in(&self.context(), &self.budget) {
                    Ok(value) => value,
                    Err(ExpressionError::TooMuchWork) => return Err(too_much_work()),
                    Err(error) => return missing(error.to_string()),
                },
            };
            if let Some(value) = value {
                inputs.insert(name.clone(), value);
            }
        }
        Ok(inputs)
    }

    fn assigned(&self, value: &Assigned, inputs: &Object) -> Result<Value, Failure> {
        if let Some(value) = inputs.get("value") {
            return self.copy(value);
        }
        match value {
            Assigned::Static(value) => self.copy(value),
            Assigned::Expression(expression) => expression
                .evaluate_in(&self.context(), &self.budget)
                .map(Option::unwrap_or_default)
                .map_err(|error| failed("expression_failed", &error)),
            Assigned::Template(template) => self.render(template).map(Value::String),
            Assigned::Input => Err(Failure::new("invalid_input", "there is no value to set")),
        }
    }

    pub(super) fn render(&self, template: &Template) -> Result<String, Failure> {
        template
            .render_in(&self.context(), &self.budget)
            .map_err(|error| failed("template_failed", &error))
    }

    fn http_call(&self, http: &HttpNode, inputs: &Object) -> Result<Call, Failure> {
        let url = match (inputs.get("url"), &http.url) {
            (Some(Value::String(url)), _) => url.clone(),
            (Some(_), _) => return Err(Failure::new("invalid_input", "url is not a string")),
            (None, Some(template)) => self.render(template)?,
            (None, None) => return Err(Failure::new("invalid_input", "there is no url")),
        };
        let too_long = || Failure::new("template_failed", "the request is too long");
        let mut left = MAX_HTTP_RENDERED.checked_sub(url.len()).ok_or_else(too_long)?;
        let mut render = |template: &Template| {
            let text = self.render(template)?;
            left = left.checked_sub(text.len()).ok_or_else(too_long)?;
            Ok(text)
        };
        let mut headers = Vec::with_capacity(http.headers.len());
        for (name, value) in &http.headers {
            headers.push((name.clone(), render(value)?));
        }
        let body = match (inputs.get("body"), &http.body) {
            // A port may carry anybody's text, so it is never treated as a template.
            (Some(body), _) => Some(self.http_body(body)?),
            (None, Some(body)) => Some(self.http_body(&body.fill(&mut render)?)?),
            (None, None) => None,
        };
        Ok(Call::Http {
            method: http.method.clone(),
            url,
            headers,
            secret_headers: http.secret_headers.clone(),
            body,
            timeout_ms: http.timeout_ms,
        })
    }

    /// What a worker gets: the input port `input`, else the configured input, else all inputs.
    fn activity(&mut self, node: &ActivityNode, mut inputs: Object) -> Result<Activity, Failure> {
        let mut left = MAX_ACTIVITY_RENDERED;
        let too_long = || Failure::new("template_failed", "the input is too long");
        let input = match (inputs.remove("input"), &node.input) {
            (Some(input), _) => input,
            (None, Some(input)) => input.fill(&mut |template: &Template| {
                let text = self.render(template)?;
                left = left.checked_sub(text.len()).ok_or_else(too_long)?;
                Ok(text)
            })?,
            (None, None) if inputs.is_empty() => Value::Null,
            (None, None) => Value::Object(inputs),
        };
        if too_deep(&input) {
            return Err(nested("the input"));
        }
        // Stored in the event, and with the step for as long as it waits.
        let kept = cost::of_value(&input);
        self.spend(2 * kept)?;
        self.hold(kept, 0)?;
        Ok(Activity {
            queue: node.queue.clone(),
            input,
            timeout_ms: node.timeout_ms,
            heartbeat_ms: node.heartbeat_ms,
        })
    }

    /// The request body as text; charges for it.
    fn http_body(&self, body: &Value) -> Result<String, Failure> {
        let text = json_within(body, MAX_HTTP_RENDERED)
            .ok_or_else(|| Failure::new("template_failed", "the body of the request is too long"))?;
        self.spend(cost::bytes(text.len()))?;
        Ok(text)
    }

    /// Completes an execution: records its artifact and outputs and evaluates its edges.
    pub(super) fn complete_node(&mut self, step: &StepId, cause: Seq, outputs: Object) {
        let Some((position, _)) = self.active(step) else {
            return;
        };
        if object_too_deep(&outputs) {
            return self.fail_node(step, cause, nested("the output"));
        }
        // Stored in the event, with the node and among the variables.
        let kept = cost::of_object(&outputs);
        let before = self.kept_by(position, &outputs);
        if let Err(failure) = self.spend(3 * kept).and_then(|()| self.hold(2 * kept, before)) {
            return self.fail_node(step, cause, failure);
        }
        let Routing { untaken, failure } = self.route(position, Ending::Completed, &outputs);
        if let Some(failure) = failure {
            return self.fail_node(step, cause, failure);
        }
        let mut cause = cause;
        let node = &self.plan.nodes[position];
        // A node that emits an artifact of its own has already done so, and so has an agent. The summary of a
        // supervisor is not what it gives.
        let has_artifacts = || {
            self.active(step)
                .is_some_and(|(_, active)| active.n_artifacts > 0)
        };
        let emitted = match node.kind {
            NodeKind::ArtifactEmit { .. } => true,
            NodeKind::Supervisor(_) => false,
            _ => has_artifacts(),
        };
        if let Some(artifact_type) = node.artifact_type.clone().filter(|_| !emitted) {
            let name = self.plan.nodes[position].name.clone();
            cause = self.artifact(step, cause, artifact_type, name, artifact_content(&outputs));
        }
        cause = self.end_invocation(step, cause, None);
        self.record(
            Some(cause),
            KernelEvent::NodeCompleted {
                step: step.clone(),
                outputs,
                routing: untaken,
            },
        );
        self.mark_targets(position);
    }

    /// Fails an execution. If no taken edge handles the failure, the run fails with it.
    pub(super) fn fail_node(&mut self, step: &StepId, cause: Seq, error: Failure) {
        let Some((position, active)) = self.active(step) else {
            return;
        };
        let attempts = active.n_attempts();
        let mut output = fields(json!({ "error": { "code": error.code, "message": error.message } }));
        if let (Some(reason), Some(error)) = (&error.reason, output.get_mut("error")) {
            error["reason"] = reason.as_str().into();
        }
        let Routing { untaken, failure } = self.route(position, Ending::Failed, &output);
        let error = match failure {
            // What failed the node may have been the same condition.
            Some(failure) if failure.code != error.code => Failure {
                message: format!(
                    "{}; the node had failed with {}: {}",
                    failure.message, error.code, error.message
                ),
                worker: error.worker,
                ..failure
            },
            Some(_) | None => error,
        };
        let handled = self.plan.nodes[position].out.iter().any(|&edge| {
            let taken = !u32::try_from(edge).is_ok_and(|edge| untaken.binary_search(&edge).is_ok());
            taken
                && matches!(
                    self.plan.edges[edge].rule,
                    TriggerRule::AnyFailed | TriggerRule::AllComplete
                )
        });
        let cause = self.end_invocation(step, cause, Some(&error));
        let failed = KernelEvent::NodeFailed {
            step: step.clone(),
            error: error.clone(),
            attempts,
            routing: untaken,
        };
        let cause = self.record(Some(cause), failed);
        if handled {
            self.mark_targets(position);
        } else {
            self.fail_run(Some(cause), error, Some(step.node.clone()));
        }
    }

    /// The units of state that the outputs of this node will replace.
    fn kept_by(&self, position: usize, outputs: &Object) -> u64 {
        let declared = outputs.keys().filter(|port| self.plan.declares(port));
        let own = self.held_of(self.plan.nodes[position].id.as_str());
        let state = self
            .state
            .nodes
            .get(position)
            .and_then(|state| state.outputs.as_ref());
        declared.map(|port| self.held_of(port)).sum::<u64>() + own + state.map_or(0, cost::of_object)
    }

    /// Evaluates the conditions of the outgoing edges.
    fn route(&self, position: usize, ending: Ending, output: &Object) -> Routing {
        let conditional = self.conditional(position);
        let mut untaken = Vec::new();
        let mut failure = None;
        if conditional.is_empty() {
            return Routing { untaken, failure };
        }
        let context = self.context().at_end(position, ending.as_str(), output);
        for &number in &conditional {
            let edge = &self.plan.edges[number as usize];
            let Some(condition) = &edge.condition else {
                continue;
            };
            match condition.holds(&context, &self.budget) {
                Ok(true) => {}
                Ok(false) => untaken.push(number),
                // None of the conditions can be relied on, so only unconditional edges are taken.
                Err(ExpressionError::TooMuchWork) => {
                    return Routing {
                        untaken: conditional,
                        failure: Some(too_much_work()),
                    };
                }
                Err(error) => {
                    untaken.push(number);
                    if failure.is_none() && ending.may_take(edge.rule) {
                        let [source, target] =
                            [edge.source, edge.target].map(|position| &self.plan.nodes[position].id);
                        let message = format!(
                            "the condition of the edge from '{source}' to '{target}' failed: {error}"
                        );
                        failure = Some(Failure::new("expression_failed", message));
                    }
                }
            }
        }
        Routing { untaken, failure }
    }

    /// The outgoing edges that have a condition.
    fn conditional(&self, position: usize) -> Vec<u32> {
        let out = self.plan.nodes[position].out.iter();
        let conditional = out.filter(|&&edge| self.plan.edges[edge].condition.is_some());
        conditional.filter_map(|&edge| u32::try_from(edge).ok()).collect()
    }

    pub(super) fn time_is_up(&mut self, position: usize, step: &StepId, cause: Seq) {
        let plan = self.plan;
        let kind = &plan.nodes[position].kind;
        if let NodeKind::Stream { pieces, interval_ms } = kind {
            self.stream_on(pieces, *interval_ms, step, cause);
        } else if let NodeKind::Delay { ms } = kind {
            let inputs = self.resolve_inputs(position).unwrap_or_default();
            let asked = inputs.get("delayMs").and_then(whole).or(*ms);
            let waited = asked.unwrap_or(0).min(MAX_DELAY_MS);
            self.complete_node(step, cause, fields(json!({ "waitedMs": waited })));
        }
    }
}

/// The failure of a node whose evaluation failed.
pub(super) fn failed(code: &str, error: &ExpressionError) -> Failure {
    match error {
        ExpressionError::TooMuchWork => too_much_work(),
        ExpressionError::Syntax(_) | ExpressionError::Evaluation(_) | ExpressionError::TooLong(_) => {
            Failure::new(code, error.to_string())
        }
    }
}

pub(super) fn nested(what: &str) -> Failure {
    Failure::new(
        "output_too_deep",
        format!("{what} nests more than {MAX_NESTING} levels deep"),
    )
}
