//! The verifier of a supervisor: it judges the work before a decision ends the run.
//!
//! The verifier is a child of the step that follows the decision, and a handoff like any other. What it says counts only
//! as the end of that child: nothing that a worker gives back is read as a verdict. A verifier that gives no judgement
//! has rejected the work.

use serde_json::json;
use wopr_kernel::{ChildEnd, Planned as _, RunStatus, Seq, Spawn, StepId, WorkerFailure, fields};

use crate::{
    Act, Decision, Failure, Object, Verdict, cost,
    event::Target,
    node::{Judgement, NodeKind, SKILL, Verifier},
    state::Handoff,
};

use super::{Walk, dispatch::workflow_of};

/// The code of a run whose work a verifier did not pass.
const FAILED: &str = "verification_failed";
/// Longest feedback in the message of a failure, in bytes.
const MAX_TOLD: usize = 500;

impl<'a> Walk<'_, 'a> {
    /// Follows a decision that ends the run, once its verifier lets it.
    pub(super) fn end_loop(&mut self, position: usize, step: &StepId, cause: Seq, decision: &Decision) {
        match self.verifier(position, decision) {
            Some(verifier) => self.verify(position, step, verifier),
            None => self.terminate(step, cause, decision, None),
        }
    }

    /// The verifier of the supervisor that took a decision. One that gives up needs none.
    fn verifier(&self, position: usize, decision: &Decision) -> Option<&'a Verifier> {
        let plan = self.plan;
        let dispatching = self.state.nodes.get(position)?.dispatching.as_deref()?;
        let supervisor = plan.position(dispatching.by.as_ref()?)?;
        let NodeKind::Supervisor(supervisor) = &plan.nodes[supervisor].kind else {
            return None;
        };
        supervisor.verifier.as_ref().filter(|_| decision.claims_success())
    }

    /// Ends the run.
    fn terminate(&mut self, step: &StepId, cause: Seq, decision: &Decision, verdict: Option<Verdict>) {
        let mut outputs = fields(decision.to_value());
        outputs.remove("kind");
        if let Some(verdict) = verdict {
            outputs.insert("verdict".to_owned(), verdict.as_str().into());
        }
        self.complete_node(step, cause, outputs.clone());
        if self.run.status.is_terminal() {
            return;
        }
        let cause = self.last().unwrap_or(cause);
        self.complete_early(cause, outputs);
    }

    /// Asks the verifier, and follows its verdict once it has ended. A branch goes on from wherever it begins.
    pub(super) fn verify(&mut self, position: usize, step: &StepId, verifier: &Verifier) {
        loop {
            self.begin_branch();
            let dispatching = self.state.nodes[position].dispatching.as_deref();
            match dispatching.and_then(|known| known.handoffs.first()) {
                Some(handoff) if handoff.is_running() => return,
                Some(handoff) if handoff.end.is_some() => {
                    let handoff = handoff.clone();
                    return self.verifier_ended(position, step, verifier, &handoff);
                }
                Some(_) | None => self.ask_verifier(position, step, verifier),
            }
        }
    }

    fn ask_verifier(&mut self, position: usize, step: &StepId, verifier: &Verifier) {
        let Some((decided, decision)) = self.task(position) else {
            return;
        };
        let run_of = |walk: &Self| walk.verifier_run(position, verifier, &decision);
        self.begin_handoff(step, decided, (&verifier.worker, &verifier.agent), run_of);
    }

    fn verifier_run(
        &self,
        position: usize,
        verifier: &Verifier,
        decision: &Decision,
    ) -> Result<Spawn, Failure> {
        let (workflow, remote) = workflow_of(&verifier.worker)?;
        self.may_hand_over(&workflow, remote.as_ref())?;
        let mut inputs = match &verifier.inputs {
            None => Object::new(),
            Some(pattern) => fields(self.filled(pattern)?),
        };
        for (name, value) in [
            ("decision", decision.to_value()),
            ("criteria", json!(verifier.criteria)),
        ] {
            self.spend(cost::of_value(&value))?;
            inputs.entry(name).or_insert(value);
        }
        inputs.remove(SKILL);
        if let Some(skill) = remote.and_then(|remote| remote.skill) {
            inputs.insert(SKILL.to_owned(), skill.into());
        }
        Ok(Spawn {
            workflow,
            is_chosen_by_host: remote.is_some(),
            inputs,
            unset: Vec::new(),
            is_untrusted: super::trust::reads_untrusted(self, position),
            report: Vec::new(),
        })
    }

    /// Records the verdict of a verifier that has ended, and follows it.
    fn verifier_ended(&mut self, position: usize, step: &StepId, verifier: &Verifier, handoff: &Handoff) {
        let Some((decided, decision)) = self.task(position) else {
            return;
        };
        let end = handoff.child.as_ref().and_then(|child| self.end_of(step, child));
        if end.as_ref().is_some_and(|end| end.is_untrusted) {
            self.outside = Some(step.node.clone());
        }
        let (judgement, wrong) = match judgement(verifier, handoff, end.as_ref()) {
            Ok(judgement) => (judgement, None),
            Err(wrong) => (Judgement::FAILED, Some(wrong)),
        };
        let mut actor = self.actor(position, step, handoff.latest, Some(&verifier.agent), "verifier");
        let known = self.state.nodes[position].dispatching.as_deref();
        // A branch may begin right after it.
        if known.is_none_or(|known| known.verdict.is_none()) {
            let verified = Act::Verified {
                target: Target::Event(decided),
                verdict: judgement.verdict,
                criteria: judgement.criteria.clone(),
                confidence: judgement.confidence,
            };
            if let Err(failure) = self.act(&mut actor, verified) {
                return self.fail_node(step, actor.cause, failure);
            }
        }
        let cause = actor.cause;
        let verdict = judgement.verdict;
        match verdict {
            Verdict::Fail if verifier.gates => {
                let failure = rejected(verifier, handoff, end.as_ref(), &judgement, wrong);
                self.fail_node(step, cause, failure);
            }
            Verdict::Revise if verifier.gates => self.send_back(step, cause, verifier, judgement),
            Verdict::Pass | Verdict::Fail | Verdict::Revise => {
                self.terminate(step, cause, &decision, Some(verdict));
            }
        }
    }

    /// Leads back to the supervisor, with what the verifier wants, unless that has happened too often.
    fn send_back(&mut self, step: &StepId, cause: Seq, verifier: &Verifier, judgement: Judgement) {
        let revision = (self.state.supervision.as_ref()).map_or(0, |known| known.n_revisions);
        if revision > verifier.max_revisions {
            let message = format!(
                "the verifier '{}' asks for revision {revision}, and {} is the most",
                verifier.agent, verifier.max_revisions
            );
            return self.fail_node(step, cause, Failure::new(FAILED, message));
        }
        let mut outputs = fields(json!({
            "verdict": judgement.verdict.as_str(),
            "revision": revision,
            "criteria": judgement.criteria,
        }));
        if let Some(confidence) = judgement.confidence {
            outputs.insert("confidence".to_owned(), confidence.into());
        }
        if let Some(feedback) = judgement.feedback {
            outputs.insert("feedback".to_owned(), feedback.into());
        }
        self.complete_node(step, cause, outputs);
    }

    /// Why the run must not complete although nothing is left to do: a decision claims success, and its verifier has
    /// not let it pass.
    pub(super) fn unverified(&self) -> Option<Failure> {
        let known = self.state.supervision.as_ref()?;
        known.awaits_verdict.then(|| {
            let message = "nothing is left to do, and the verifier has not passed the work: no dispatch followed the \
                           decision to terminate, or no edge led back to the supervisor for another revision";
            Failure::new(FAILED, message)
        })
    }
}

/// What a verifier says that has ended; or why it says nothing.
fn judgement(verifier: &Verifier, handoff: &Handoff, end: Option<&ChildEnd>) -> Result<Judgement, String> {
    match end {
        Some(end) if end.status == RunStatus::Completed => verifier.read_judgement(&end.outputs),
        Some(_) | None => {
            let error = handoff.end.as_ref().and_then(|end| end.error.as_ref());
            Err(error.map_or_else(
                || "it was cancelled".to_owned(),
                |error| format!("{}: {}", error.code, error.message),
            ))
        }
    }
}

/// The failure of a step whose verifier rejects the work, or does not judge it.
fn rejected(
    verifier: &Verifier,
    handoff: &Handoff,
    end: Option<&ChildEnd>,
    judgement: &Judgement,
    wrong: Option<String>,
) -> Failure {
    let agent = &verifier.agent;
    let message = match (wrong, &judgement.feedback) {
        (Some(wrong), _) => format!("the verifier '{agent}' gave no judgement: {wrong}"),
        (None, None) => format!("the verifier '{agent}' rejected the work"),
        (None, Some(feedback)) => {
            let end = feedback.floor_char_boundary(MAX_TOLD.min(feedback.len()));
            format!("the verifier '{agent}' rejected the work: {}", &feedback[..end])
        }
    };
    let error = handoff.end.as_ref().and_then(|end| end.error.as_ref());
    let worker = error.map(|error| {
        let is_untrusted = end.is_some_and(|end| end.is_untrusted);
        WorkerFailure::new(&handoff.worker, handoff.child.as_ref(), error, is_untrusted)
    });
    Failure {
        worker: worker.map(Box::new),
        ..Failure::new(FAILED, message)
    }
}
