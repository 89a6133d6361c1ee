//! Records what agents do. Whatever runs an agent, a scripted one, a model or a supervisor, uses these verbs, so
//! that the same bounds and the same order hold for all.
//!
//! A text that is too long is cut; a value that is too large fails the node, because a part of a value is
//! another value.

use serde_json::{Value, json};

use wopr_kernel::{ContentHash, Seq, StepId, fields};

use crate::{
    Act, AgentEvent, CallError, CallStatus, Event, Failure, InterruptKind, Transport, Verbosity,
    acting::Begun,
    cost,
    measure::{size_of, too_deep},
    overrides::Overrides,
    transcript::cut,
};

use super::{Walk, node::nested};

/// Maximum number of calls in one execution.
pub(crate) const MAX_CALLS: usize = 64;
/// Maximum length in bytes of one reasoning, however many pieces it comes in.
pub(super) const MAX_REASONING: usize = 64 * 1024;
/// Maximum number of pieces of one reasoning; further ones are joined.
pub(super) const MAX_PIECES: usize = 256;
/// Maximum length in bytes of a reason.
const MAX_REASON: usize = 8 * 1024;
/// Maximum size in bytes of a decision, of a call's inputs and of its outcome.
pub(super) const MAX_CONTENT: usize = 256 * 1024;

/// An agent at work in one execution, and the event that its next act follows.
#[derive(Debug, Clone)]
pub(super) struct Actor {
    pub(super) step: StepId,
    pub(super) attempt: u32,
    /// The agent's id.
    pub(super) agent: String,
    pub(super) cause: Seq,
}

/// What a tool gave back.
#[derive(Debug)]
pub(super) struct Returned {
    pub(super) status: CallStatus,
    pub(super) outcome: Option<Value>,
    pub(super) error: Option<CallError>,
    pub(super) duration_ms: Option<u64>,
}

impl Walk<'_, '_> {
    /// The agent at work in an execution: the one that its settings name, else the node's, else one that is
    /// named after the node.
    pub(super) fn actor(
        &self,
        position: usize,
        step: &StepId,
        started: Seq,
        configured: Option<&str>,
        kind: &str,
    ) -> Actor {
        let node = &self.plan.nodes[position];
        let pinned = node.agent.as_ref().map(|agent| agent.agent_id.as_str());
        let named = configured.or(pinned).map(ToOwned::to_owned);
        Actor {
            step: step.clone(),
            attempt: self.active(step).map_or(0, |(_, active)| active.attempt),
            agent: named.unwrap_or_else(|| format!("host:{kind}:{}", node.id)),
            cause: started,
        }
    }

    /// Records an act, after which the actor's next one follows.
    pub(super) fn act(&mut self, actor: &mut Actor, act: Act) -> Result<(), Failure> {
        let event = AgentEvent {
            step: actor.step.clone(),
            attempt: actor.attempt,
            agent: actor.agent.clone(),
            act,
        };
        self.spend(cost::bytes(event.size()))?;
        actor.cause = self.emit(Some(actor.cause), Event::Agent(Box::new(event)));
        Ok(())
    }

    /// How much of an agent's reasoning the run records.
    pub(super) fn verbosity(&self) -> Verbosity {
        self.overrides().verbosity()
    }

    /// Records a whole reasoning.
    pub(super) fn reason(
        &mut self,
        actor: &mut Actor,
        reasoning: &str,
        tokens: Option<u64>,
    ) -> Result<(), Failure> {
        let verbosity = self.verbosity();
        if verbosity == Verbosity::Off {
            return Ok(());
        }
        self.act(
            actor,
            Act::Reasoned {
                reasoning: cut(reasoning, MAX_REASONING).to_owned(),
                verbosity: Some(verbosity),
                tokens,
            },
        )
    }

    /// Records a piece of reasoning. [`Self::conclude`] closes what the pieces begin.
    pub(super) fn reason_on(&mut self, actor: &mut Actor, piece: &str) -> Result<(), Failure> {
        let verbosity = self.verbosity();
        let begun = self.begun(&actor.step);
        let (so_far, sequence) = begun.map_or((0, 0), |begun| (begun.reasoning.len(), begun.n_pieces));
        let delta = cut(piece, MAX_REASONING.saturating_sub(so_far));
        let is_over = sequence as usize >= MAX_PIECES;
        if verbosity == Verbosity::Off || delta.is_empty() || is_over {
            return Ok(());
        }
        self.hold(cost::bytes(delta.len()), 0)?;
        self.act(
            actor,
            Act::ReasoningDelta {
                delta: delta.to_owned(),
                sequence,
                verbosity: Some(verbosity),
            },
        )
    }

    /// Records the pieces of a reasoning that is known as a whole, the last ones joined if there are too many, and
    /// closes it.
    pub(super) fn reason_in_pieces(
        &mut self,
        actor: &mut Actor,
        pieces: &[String],
        tokens: Option<u64>,
    ) -> Result<(), Failure> {
        let (first, rest) = pieces.split_at(pieces.len().min(MAX_PIECES - 1));
        for piece in first {
            self.reason_on(actor, piece)?;
        }
        self.reason_on(actor, &rest.concat())?;
        self.conclude(actor, tokens)
    }

    /// Closes the reasoning whose pieces are recorded.
    pub(super) fn conclude(&mut self, actor: &mut Actor, tokens: Option<u64>) -> Result<(), Failure> {
        let begun = self.begun(&actor.step);
        let reasoning = begun.map(|begun| begun.reasoning.clone()).unwrap_or_default();
        self.hold(0, cost::bytes(reasoning.len()))?;
        self.reason(actor, &reasoning, tokens)
    }

    /// Records a call, and returns its id.
    pub(super) fn call_tool(
        &mut self,
        actor: &mut Actor,
        tool: &str,
        inputs: Option<Value>,
        transport: Option<Transport>,
    ) -> Result<String, Failure> {
        let n_calls = self.begun(&actor.step).map_or(0, |begun| begun.n_calls);
        if n_calls as usize >= MAX_CALLS {
            return Err(Failure::new(
                "too_many_tool_calls",
                format!("the agent called tools {MAX_CALLS} times, which is the most"),
            ));
        }
        let call = format!("{}:{n_calls}", actor.step.key());
        self.record_call(actor, call.clone(), tool, inputs, transport)?;
        Ok(call)
    }

    /// Records a call by the id that it has.
    pub(super) fn record_call(
        &mut self,
        actor: &mut Actor,
        call: String,
        tool: &str,
        inputs: Option<Value>,
        transport: Option<Transport>,
    ) -> Result<(), Failure> {
        let inputs = content("the inputs of a tool", inputs)?;
        self.spend(inputs.as_ref().map_or(0, cost::of_value))?;
        let args_hash = inputs.as_ref().map(hash_of);
        self.record_call_of(actor, call, tool, (inputs, args_hash), transport)
    }

    /// Records a call by the id and the hash that it has; its inputs may be left out.
    pub(super) fn record_call_of(
        &mut self,
        actor: &mut Actor,
        call: String,
        tool: &str,
        (inputs, args_hash): (Option<Value>, Option<String>),
        transport: Option<Transport>,
    ) -> Result<(), Failure> {
        let started = self.run.started.as_ref();
        let act = Act::ToolCalled {
            call,
            tool: cut(tool, MAX_REASON).to_owned(),
            inputs,
            args_hash,
            principal: started.map(|started| started.principal.to_string()),
            transport,
        };
        self.act(actor, act)
    }

    /// Records what a call gave back, as a consequence of the call.
    pub(super) fn return_from_tool(
        &mut self,
        actor: &mut Actor,
        call: &str,
        tool: &str,
        returned: Returned,
    ) -> Result<(), Failure> {
        let Returned {
            status,
            outcome,
            error,
            duration_ms,
        } = returned;
        let begun = self.begun(&actor.step);
        let called = begun.and_then(|begun| begun.calls.get(call));
        actor.cause = called.copied().unwrap_or(actor.cause);
        let called_at = self
            .begun(&actor.step)
            .and_then(|begun| begun.called_at.get(call));
        let duration_ms = duration_ms.or(called_at.map(|at| self.input.now.millis_since(*at)));
        let error = error.map(|error| CallError {
            code: cut(&error.code, MAX_REASON).to_owned(),
            message: cut(&error.message, MAX_REASON).to_owned(),
            details: error.details,
        });
        if let Some(error) = &error {
            content("the error of a tool", error.details.clone())?;
        }
        let act = Act::ToolReturned {
            call: call.to_owned(),
            tool: cut(tool, MAX_REASON).to_owned(),
            status,
            outcome: content("the outcome of a tool", outcome)?,
            error,
            duration_ms,
        };
        self.act(actor, act)
    }

    /// Records that another agent goes on.
    pub(super) fn hand_off(
        &mut self,
        actor: &mut Actor,
        to: &str,
        reason: Option<&str>,
        context: Option<Value>,
    ) -> Result<(), Failure> {
        let act = Act::HandedOff {
            to: to.to_owned(),
            reason: reason.map(|reason| cut(reason, MAX_REASON).to_owned()),
            context: content("the context of a handoff", context)?,
        };
        self.act(actor, act)
    }

    /// Records a decision. A confidence that is no number within 0 to 1 is no opinion.
    pub(super) fn decide(
        &mut self,
        actor: &mut Actor,
        decision: Value,
        confidence: Option<f64>,
        reasoning: Option<&str>,
    ) -> Result<(), Failure> {
        let act = Act::Decided {
            decision: content("a decision", Some(decision))?.unwrap_or_default(),
            confidence: confidence.filter(|confidence| (0.0..=1.0).contains(confidence)),
            reasoning: reasoning.map(|reasoning| cut(reasoning, MAX_REASONING).to_owned()),
        };
        self.act(actor, act)
    }

    /// The threshold that a decision's confidence does not reach, if a person has to judge it: that of the run,
    /// else 0.7.
    pub(super) fn exceeds_confidence(&self, confidence: Option<f64>) -> Option<f64> {
        let threshold = self.overrides().threshold();
        let is_low = confidence.is_some_and(|confidence| confidence < threshold);
        is_low.then_some(threshold)
    }

    /// Holds a decision until somebody has judged it.
    pub(super) fn hold_decision(&mut self, actor: &Actor, decision: &Value, observed: f64, threshold: f64) {
        let why = fields(json!({
            "reason": "low-confidence",
            "agentId": actor.agent,
            "threshold": threshold,
            "observed": observed,
        }));
        let data = json!({
            "agentId": actor.agent,
            "threshold": threshold,
            "observed": observed,
            "decision": decision,
        });
        let question = (InterruptKind::LowConfidence, data);
        self.interrupt_because(&actor.step, actor.cause, question, None, why);
    }

    fn begun(&self, step: &StepId) -> Option<&Begun> {
        self.state.acting.begun(&step.node)
    }

    /// The settings that the caller of the run made for all nodes.
    pub(super) fn overrides(&self) -> Overrides<'_> {
        Overrides::of(self.run.started.as_ref().map(|started| &started.configurable))
    }
}

/// Refuses a value that is too large or too deep; `null` counts as absent.
fn content(what: &str, value: Option<Value>) -> Result<Option<Value>, Failure> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    if too_deep(&value) {
        return Err(nested(what));
    }
    let size = size_of(&value);
    if size > MAX_CONTENT {
        return Err(Failure::new(
            "agent_event_too_large",
            format!("{what} would have {size} bytes, and {MAX_CONTENT} is the most"),
        ));
    }
    Ok(Some(value))
}

/// The SHA-256 of a call's inputs in their canonical form (RFC 8785), as lower-case hex.
pub(super) fn hash_of(inputs: &Value) -> String {
    let text = serde_json_canonicalizer::to_vec(inputs).expect("JSON with text keys and finite numbers");
    ContentHash::of(&text).as_str().to_owned()
}
