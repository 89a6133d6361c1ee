//! Steps that ask a model: what they ask, and what they make of each reply.
//!
//! A reply that is no document of the wanted schema is asked for again within bounds, and each call is a call of the
//! step with an outcome in the log. Whatever a model may read of content that nobody vouches for is between markers.

use serde_json::{Value, json};
use wopr_kernel::{
    Call, Cap, ContentHash, ModelCall, ModelMessage, ModelReply, ModelStop, OverBudget, OverRunBudget, Seq,
    StepId, fence, fields,
};

use crate::{
    EnvelopeEvent, EnvelopeFault, Event, Failure, Object, Summarizing,
    cost::{self, Exhausted},
    envelope::{self, Found, Missing},
    expression::Template,
    measure::too_deep,
    node::{Lead, Led, MAX_MESSAGES, ModelAnswer, ModelNode, ModelRole, NodeKind, Wanted},
    plan::Port,
    thinking::{Then, size_of_reply},
    too_much_work,
    transcript::Transcript,
};

use super::{
    Walk,
    announce::{INVALID, REFUSED},
    node::{failed, nested},
    summarize::summarizing,
    trust::{is_untrusted_port, is_untrusted_read},
};

/// Maximum size of a conversation in bytes, as the step composes it.
const MAX_PROMPT: usize = 1024 * 1024;
/// How often an answer that ended at its limit of tokens is asked for with twice the room.
const MAX_DOUBLINGS: u64 = 2;
/// Longest error that a model is told, in bytes.
const MAX_ERROR: usize = 500;

impl Walk<'_, '_> {
    /// Asks a model for the first time, or, in a later attempt, once more what it was asked last.
    pub(super) fn ask_model(
        &mut self,
        node: &ModelNode,
        position: usize,
        step: StepId,
        attempt: u32,
        started: Seq,
        inputs: Object,
    ) {
        let mut cause = started;
        if self.state.nodes[position].thinking.is_none() {
            let started = self.begin_invocation(position, &step, started, node);
            let (messages, summarizing) = match self.compose(node, position, inputs) {
                Ok(composed) => composed,
                Err(failure) => return self.fail_node(&step, started, failure),
            };
            let first = summarizing.as_ref().map_or(0, |summarizing| summarizing.size());
            let size = messages.iter().map(ModelMessage::size).sum::<usize>() + first;
            // Stored in the event, with the step, and in each request.
            let kept = cost::bytes(size);
            if let Err(failure) = self.spend(3 * kept).and_then(|()| self.hold(kept, 0)) {
                return self.fail_node(&step, started, failure);
            }
            // A summary that is still to come stands for what it is made of.
            let text = match &summarizing {
                None => serde_json::to_vec(&messages),
                Some(summarizing) => serde_json::to_vec(&(&messages, summarizing)),
            };
            let text = text.unwrap_or_default();
            let composed = Event::PromptComposed {
                step: step.clone(),
                hash: ContentHash::of(&text).as_str().to_owned(),
                messages,
                summarizing,
            };
            cause = self.emit(Some(started), composed);
        }
        let thinking = self.state.nodes[position].thinking.as_deref();
        let is_listed = thinking.is_some_and(|thinking| thinking.listed.is_some());
        if let Some(query) = node.tools.query().filter(|_| !is_listed) {
            return self.call(step, attempt, cause, Call::ToolList(Box::new(query)));
        }
        if !self.resume_tools(node, position, &step, cause) {
            self.call_model(node, position, step, attempt, cause);
        }
    }

    pub(super) fn call_model(
        &mut self,
        node: &ModelNode,
        position: usize,
        step: StepId,
        attempt: u32,
        cause: Seq,
    ) {
        // A branch that begins here has none of what its source was granted.
        self.begin_branch_with(&step);
        if !self.may_spend(&step, cause) {
            return;
        }
        let started = self.run.started.as_ref();
        let script = started
            .and_then(|started| started.configurable.get("mockProvider"))
            .cloned();
        let Some(thinking) = self.state.nodes[position].thinking.as_deref() else {
            return;
        };
        let budget = self.plan.definition.settings.budget.as_ref();
        let request = thinking.request(node, self.overrides(), script, self.granted());
        let is_bounded = budget.is_some_and(|budget| self.state.bounds(budget).next().is_some());
        let request = ModelCall {
            has_run_budget: is_bounded || !request.granted.is_empty(),
            ..request
        };
        if let Err(failure) = self.spend(cost::bytes(request.size())) {
            return self.fail_node(&step, cause, failure);
        }
        self.call(step, attempt, cause, Call::Model(Box::new(request)));
    }

    /// Goes on after a reply.
    pub(super) fn model_replied(&mut self, node: &ModelNode, step: &StepId, cause: Seq, outcome: Object) {
        if let Some(over) = OverBudget::read(&outcome) {
            return self.over_budget(node, step, cause, outcome, &over);
        }
        if OverRunBudget::read(&outcome).is_some() {
            return self.over_run_budget(node, step, cause, outcome);
        }
        let reply: ModelReply = match serde_json::from_value(Value::Object(outcome.clone())) {
            Ok(reply) => reply,
            Err(_) => {
                let failure = Failure::new("internal_error", "the reply of the model was not readable");
                return self.fail_node(step, cause, failure);
            }
        };
        let kept = cost::bytes(size_of_reply(&reply));
        if let Err(failure) = self.spend(4 * kept).and_then(|()| self.hold(kept, 0)) {
            return self.fail_node(step, cause, failure);
        }
        let cause = self.end_call(step, cause, outcome);
        let usage = Event::ProviderUsage {
            step: step.clone(),
            provider: reply.provider.clone(),
            model: reply.model.clone(),
            usage: reply.usage,
        };
        let cause = self.emit(Some(cause), usage);
        if self.is_summarizing(step) {
            return self.summarized(node, step, cause, reply);
        }
        let cause = match self.thought(step, cause, reply.reasoning.as_deref()) {
            Ok(cause) => cause,
            Err(failure) => return self.fail_node(step, cause, failure),
        };
        if reply.stop == ModelStop::Refusal {
            let refused = EnvelopeEvent::Refusal {
                provider: reply.provider,
                model: reply.model,
                text: reply.refusal,
            };
            let cause = self.judge(step, cause, refused);
            let failure = Failure::new(REFUSED, "the model refused to answer");
            return self.fail_node(step, cause, failure);
        }
        // An answer that was cut may have lost half of a call.
        let asks = !node.tools.is_empty() && !reply.tool_calls.is_empty();
        if asks && reply.stop != ModelStop::Length {
            return self.use_tools(node, step, cause, &reply);
        }
        match &node.answer {
            ModelAnswer::Text { .. } => self.text_replied(step, cause, reply),
            ModelAnswer::Document(wanted) => self.document_replied(node, wanted, step, cause, &reply),
        }
    }

    /// Records what the model of an agent thought, and returns the last event.
    fn thought(&mut self, step: &StepId, cause: Seq, reasoning: Option<&str>) -> Result<Seq, Failure> {
        let active = self.active(step);
        let agent = active.and_then(|(position, _)| Some((position, self.played_by_model(position)?)));
        let (Some((position, agent)), Some(reasoning)) = (agent, reasoning.filter(|text| !text.is_empty()))
        else {
            return Ok(cause);
        };
        let mut actor = self.actor(position, step, cause, Some(&agent), "model");
        let pieces = in_pieces(reasoning);
        match pieces.len() {
            0 | 1 => self.reason(&mut actor, reasoning, None)?,
            _ => self.reason_in_pieces(&mut actor, &pieces, None)?,
        }
        Ok(actor.cause)
    }

    fn text_replied(&mut self, step: &StepId, cause: Seq, reply: ModelReply) {
        let is_cut = reply.stop == ModelStop::Length;
        let cause = match is_cut {
            true => self.judge(step, cause, truncated(&reply, false)),
            false => cause,
        };
        let Some((position, _)) = self.active(step) else {
            return;
        };
        let mut outputs = self.outputs_of(position, &reply);
        outputs.insert("text".to_owned(), reply.text.into());
        outputs.insert(
            "stopReason".to_owned(),
            if is_cut { "length" } else { "end" }.into(),
        );
        self.complete_node(step, cause, outputs);
    }

    fn document_replied(
        &mut self,
        node: &ModelNode,
        wanted: &Wanted,
        step: &StepId,
        cause: Seq,
        reply: &ModelReply,
    ) {
        let Some((position, active)) = self.active(step) else {
            return;
        };
        let attempt = active.attempt;
        let Some(thinking) = self.state.nodes[position].thinking.as_deref() else {
            return;
        };
        let n_calls = thinking.n_answers();
        let n_repairs = thinking.count(|then| matches!(then, Then::Repair(_)));
        let n_reformats = thinking.count(|then| matches!(then, Then::Reformat));
        let n_doublings = thinking.count(|then| matches!(then, Then::MoreRoom));
        let max_tokens = thinking.max_tokens(node, self.overrides());
        if reply.stop == ModelStop::Length {
            let is_retried = n_doublings < MAX_DOUBLINGS;
            let cause = self.judge(step, cause, truncated(reply, is_retried));
            if is_retried {
                return self.call_model(node, position, step.clone(), attempt, cause);
            }
            let exhausted = EnvelopeEvent::RetryExhausted {
                total_attempts: n_calls,
                reason: EnvelopeFault::Truncation,
                error: format!("the answer has more than {max_tokens} tokens"),
            };
            let cause = self.judge(step, cause, exhausted);
            let cause = self.breached(Cap::Schema, MAX_DOUBLINGS, n_doublings + 1, step, cause);
            let failure = Failure::new(
                "envelope_truncation_unrecoverable",
                format!("the answer of the model has more than {max_tokens} tokens"),
            );
            return self.fail_node(step, cause, failure);
        }
        let plan = self.plan;
        let supervisor = match &plan.nodes[position].kind {
            NodeKind::Supervisor(supervisor) => Some(supervisor),
            _ => None,
        };
        let lead = supervisor.and_then(|supervisor| supervisor.decider.lead());
        let checked = self.checked(wanted, &reply.text).and_then(|(document, found)| {
            let led = lead.map(|lead| lead.read_decision(&document)).transpose();
            let led = led.map_err(|rule| Wrong::Fault(EnvelopeFault::SchemaViolation, shortened(rule)));
            Ok((document, found, led?))
        });
        let (fault, error, is_prose) = match checked {
            Ok((document, found, led)) => {
                let recovered = match found {
                    Found::Direct => None,
                    Found::Fence => Some(EnvelopeEvent::FenceStripped),
                    Found::Braces(offset) => Some(EnvelopeEvent::BracesFound {
                        offset: offset as u64,
                    }),
                };
                let cause = recovered.map_or(cause, |recovered| self.judge(step, cause, recovered));
                if let (Some(supervisor), Some(led)) = (supervisor, led) {
                    return self.led(position, supervisor, step, cause, led);
                }
                let mut outputs = self.outputs_of(position, reply);
                outputs.insert("data".to_owned(), document);
                outputs.insert("retries".to_owned(), n_calls.saturating_sub(1).into());
                return self.complete_node(step, cause, outputs);
            }
            Err(Wrong::TooMuchWork) => return self.fail_node(step, cause, too_much_work()),
            Err(Wrong::Prose) => (
                EnvelopeFault::ParseError,
                "it holds no JSON document".to_owned(),
                true,
            ),
            Err(Wrong::Fault(fault, error)) => (fault, error, false),
        };
        if n_repairs < wanted.repairs {
            let again = EnvelopeEvent::RetryAttempted {
                attempt: n_calls + 1,
                reason: fault,
                error,
            };
            let cause = self.judge(step, cause, again);
            return self.call_model(node, position, step.clone(), attempt, cause);
        }
        // The last resort: the model has been told what is wrong, and still writes prose.
        if let Some(name) = wanted.name().filter(|_| is_prose && n_reformats == 0) {
            let engaged = EnvelopeEvent::NlToFormat {
                envelope_type: name.to_owned(),
            };
            let cause = self.judge(step, cause, engaged);
            return self.call_model(node, position, step.clone(), attempt, cause);
        }
        let exhausted = EnvelopeEvent::RetryExhausted {
            total_attempts: n_calls,
            reason: fault,
            error,
        };
        let cause = self.judge(step, cause, exhausted);
        let cause = self.breached(Cap::Schema, wanted.repairs, n_repairs + 1, step, cause);
        let failure = Failure::new(
            INVALID,
            format!("the model gave no valid document in {n_calls} answers"),
        );
        self.fail_node(step, cause, failure);
    }

    /// What a reply decides that was read before.
    pub(super) fn read_led(&self, lead: &Lead, text: &str) -> Option<Led> {
        let ModelAnswer::Document(wanted) = &lead.model.answer else {
            return None;
        };
        let (document, _) = self.checked(wanted, text).ok()?;
        lead.read_decision(&document).ok()
    }

    /// What a model that leads is told of its task, and of the turns before.
    fn brief(&self, position: usize) -> Option<(String, Transcript)> {
        let NodeKind::Supervisor(supervisor) = &self.plan.nodes[position].kind else {
            return None;
        };
        let lead = supervisor.decider.lead()?;
        let known = self.state.supervision.as_ref();
        let past = known.map_or(&[][..], |known| &known.past);
        let summary = known.and_then(|known| known.summary.as_deref());
        Some((lead.briefing(), Transcript::of(past, summary, &lead.bounds)))
    }

    /// The document in a reply, if it matches the schema.
    fn checked(&self, wanted: &Wanted, text: &str) -> Result<(Value, Found), Wrong> {
        self.budget.spend(2 * cost::bytes(text.len()))?;
        let (document, found) = envelope::find(text).map_err(|missing| match missing {
            Missing::Prose => Wrong::Prose,
            Missing::Broken(error) => Wrong::Fault(EnvelopeFault::ParseError, shortened(error)),
        })?;
        if too_deep(&document) {
            return Err(Wrong::Fault(
                EnvelopeFault::SchemaViolation,
                "it nests too deep".to_owned(),
            ));
        }
        self.budget.spend(cost::of_value(&document))?;
        let meter = self.budget.meter();
        match wanted.schema.validate(&document, &meter) {
            Ok(()) => Ok((document, found)),
            Err(error) => Err(Wrong::Fault(
                EnvelopeFault::SchemaViolation,
                shortened(error.to_string()),
            )),
        }
    }

    pub(super) fn judge(&mut self, step: &StepId, cause: Seq, event: EnvelopeEvent) -> Seq {
        let judged = Event::Envelope {
            step: step.clone(),
            event,
        };
        self.emit(Some(cause), judged)
    }

    /// What all answers have in common as outputs.
    fn outputs_of(&self, position: usize, reply: &ModelReply) -> Object {
        let thinking = self.state.nodes[position].thinking.as_deref();
        let usage = thinking.map(crate::thinking::Thinking::usage).unwrap_or_default();
        fields(json!({
            "provider": reply.provider,
            "model": reply.model,
            "usage": usage,
            "contentTrust": "untrusted",
        }))
    }

    /// What a model is asked: the ports `messages` and `prompt`, else what the node is configured with, else the run's
    /// `prompt`, else its inputs. Of a model that leads, the turns before follow, and maybe what it has to sum up first.
    fn compose(
        &mut self,
        node: &ModelNode,
        position: usize,
        mut inputs: Object,
    ) -> Result<(Vec<ModelMessage>, Option<Box<Summarizing>>), Failure> {
        let mut said = Vec::new();
        let system = match inputs.remove("systemPrompt") {
            Some(system) => Some(self.said_by_port(position, "systemPrompt", &system)?),
            None => node
                .system
                .as_ref()
                .map(|system| self.fenced(system))
                .transpose()?,
        };
        said.extend(system.map(|text| (ModelRole::System, text)));
        match inputs.remove("messages") {
            Some(messages) => self.messages_of_port(position, messages, &mut said)?,
            None => {
                for (role, template) in &node.messages {
                    said.push((*role, self.fenced(template)?));
                }
            }
        }
        let prompt = match inputs.remove("prompt") {
            Some(prompt) => Some(self.said_by_port(position, "prompt", &prompt)?),
            None => node
                .prompt
                .as_ref()
                .map(|prompt| self.fenced(prompt))
                .transpose()?,
        };
        said.extend(prompt.map(|text| (ModelRole::User, text)));
        if said.iter().all(|(role, _)| *role == ModelRole::System) {
            said.push((ModelRole::User, self.said_by_run()?));
        }
        let is_system = |(role, _): &&(ModelRole, String)| *role == ModelRole::System;
        let brief = self.brief(position);
        if let Some((briefing, _)) = &brief {
            let at = said.iter().take_while(is_system).count();
            said.insert(at, (ModelRole::System, briefing.clone()));
        }
        if let ModelAnswer::Document(wanted) = &node.answer {
            let form = format!(
                "Answer with one JSON document that matches this JSON Schema, and nothing else:\n{}",
                wanted.document
            );
            let at = said.iter().take_while(is_system).count();
            said.insert(at, (ModelRole::System, form));
        }
        let mut first = None;
        if let Some((_, transcript)) = brief {
            let at = said.len();
            first = transcript
                .excess
                .map(|excess| Box::new(summarizing(excess, &transcript.messages, at)));
            let told = transcript.messages.into_iter();
            said.extend(told.map(|text| (ModelRole::User, text)));
        }
        if said.iter().map(|(_, text)| text.len()).sum::<usize>() > MAX_PROMPT {
            return Err(too_long());
        }
        let message = |(role, content)| match role {
            ModelRole::System => ModelMessage::System { content },
            ModelRole::User => ModelMessage::User { content },
            ModelRole::Assistant => ModelMessage::Assistant {
                content,
                tool_calls: Vec::new(),
            },
        };
        Ok((said.into_iter().map(message).collect(), first))
    }

    /// Renders a template, with what it prints of untrusted content between markers.
    fn fenced(&self, template: &Template) -> Result<String, Failure> {
        if !self.state.holds_untrusted(&self.run) {
            return self.render(template);
        }
        let fenced = |reads: &[crate::Read], text: String| {
            let mut untrusted = reads
                .iter()
                .filter(|read| is_untrusted_read(self.next, &read.path));
            match untrusted.next() {
                None => text,
                Some(read) => fence(&read.path.join("."), &text),
            }
        };
        template
            .render_fenced(&self.context(), &self.budget, &fenced)
            .map_err(|error| failed("template_failed", &error))
    }

    fn is_port_untrusted(&self, position: usize, name: &str) -> bool {
        let ports = &self.plan.nodes[position].inputs;
        let port = ports.iter().find(|(port, _)| port == name);
        port.is_some_and(|(_, port): &(String, Port)| is_untrusted_port(self.next, port))
    }

    fn said_by_port(&self, position: usize, name: &str, value: &Value) -> Result<String, Failure> {
        let text = self.text_of(value)?;
        Ok(match self.is_port_untrusted(position, name) {
            true => fence(name, &text),
            false => text,
        })
    }

    /// A text as it is, and everything else as JSON.
    fn text_of(&self, value: &Value) -> Result<String, Failure> {
        if too_deep(value) {
            return Err(nested("the prompt"));
        }
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                crate::measure::json_within(value, MAX_PROMPT).ok_or_else(too_long)?
            }
        };
        self.spend(cost::bytes(text.len()))?;
        Ok(text)
    }

    /// Messages that come in by a port. Nobody else than the workflow speaks as the system or as the model.
    fn messages_of_port(
        &self,
        position: usize,
        messages: Value,
        said: &mut Vec<(ModelRole, String)>,
    ) -> Result<(), Failure> {
        let is_untrusted = self.is_port_untrusted(position, "messages");
        let Value::Array(messages) = messages else {
            return Err(wrong("messages is not a list"));
        };
        if messages.len() > MAX_MESSAGES {
            return Err(wrong("messages has too many entries"));
        }
        for message in &messages {
            let role = message.get("role").and_then(Value::as_str);
            let role = role.and_then(ModelRole::parse);
            let role =
                role.ok_or_else(|| wrong("messages has a role that is not system, user or assistant"))?;
            let content = message
                .get("content")
                .ok_or_else(|| wrong("messages has one without content"))?;
            let text = match content {
                Value::Array(parts) => {
                    let texts = parts.iter().map(|part| part.get("text").and_then(Value::as_str));
                    let texts: Option<Vec<_>> = texts.collect();
                    texts
                        .ok_or_else(|| wrong("messages has a part that is no text"))?
                        .concat()
                }
                content => self.text_of(content)?,
            };
            said.push(match is_untrusted {
                true => (ModelRole::User, fence("messages", &text)),
                false => (role, text),
            });
        }
        Ok(())
    }

    /// What the run was started with.
    fn said_by_run(&self) -> Result<String, Failure> {
        let Some(started) = self.run.started.as_ref() else {
            return Err(wrong("there is no prompt"));
        };
        let text = match started.inputs.get("prompt") {
            Some(prompt) => self.text_of(prompt)?,
            None if started.inputs.is_empty() => return Err(wrong("there is no prompt")),
            None => {
                self.spend(cost::of_object(&started.inputs))?;
                self.text_of(&Value::Object(started.inputs.clone()))?
            }
        };
        Ok(match started.is_untrusted() {
            true => fence("inputs", &text),
            false => text,
        })
    }
}

/// What is wrong with a reply.
enum Wrong {
    Prose,
    Fault(EnvelopeFault, String),
    TooMuchWork,
}

impl From<Exhausted> for Wrong {
    fn from(_: Exhausted) -> Self {
        Self::TooMuchWork
    }
}

/// The paragraphs of a reasoning, which together are the whole of it.
fn in_pieces(reasoning: &str) -> Vec<String> {
    let pieces = reasoning.split_inclusive("\n\n");
    pieces.map(str::to_owned).collect()
}

fn truncated(reply: &ModelReply, is_retried: bool) -> EnvelopeEvent {
    EnvelopeEvent::Truncated {
        provider: reply.provider.clone(),
        model: reply.model.clone(),
        output_tokens: reply.usage.output_tokens,
        is_retried,
    }
}

fn shortened(mut error: String) -> String {
    if error.len() > MAX_ERROR {
        error.truncate(error.floor_char_boundary(MAX_ERROR));
    }
    error
}

fn wrong(rule: &str) -> Failure {
    Failure::new("invalid_input", rule)
}

fn too_long() -> Failure {
    Failure::new("template_failed", "the prompt is too long")
}
