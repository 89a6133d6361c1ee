//! How far the orchestration of a run is: its supervisor's latest decision, and the handoffs under way.

use serde::{Deserialize, Serialize};
use wopr_kernel::{KernelEvent, NodeId, RunStatus, Seq};

use crate::{Decision, Failure, Object, Orchestration, RunId, Verdict, cost};

/// What a run's supervisor has decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Supervision {
    /// The agent that decides, the same for the whole run.
    pub agent: String,
    /// How many decisions it has taken.
    pub n_decisions: u32,
    pub(crate) latest: Decision,
    pub(crate) decided: Seq,
    /// The supervisor that took the latest decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<NodeId>,
    /// Whether the latest decision claims success, and its verifier has not let it pass.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) awaits_verdict: bool,
    /// How often a verifier has sent the work back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) n_revisions: u32,
    /// How many executions have dispatched.
    pub(crate) n_dispatches: u32,
    /// The latest turns of a model that decides, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) past: Vec<Past>,
    /// What stands for the turns before those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) summary: Option<Box<Summary>>,
}

/// A summary of turns that are over.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) text: String,
    /// The event since which it stands for them.
    pub(crate) at: Seq,
}

/// For serde.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// The most turns of which a model is told again.
pub(crate) const MAX_PAST: usize = 16;
/// Maximum size of a past decision, and of its results, in the prompt of the model that leads, in bytes.
pub(crate) const MAX_TOLD: usize = 4 * 1024;

/// A turn that is over, in the words in which a model is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Past {
    pub(crate) decision: String,
    /// What the dispatch gave back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) followed: Option<String>,
    /// The event of the decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) decided: Option<Seq>,
    /// The event at the end of what followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<Seq>,
}

impl Past {
    pub(crate) fn of(decision: &Decision, at: Seq) -> Self {
        Self {
            decision: Self::cut(decision.to_value().to_string()),
            followed: None,
            decided: Some(at),
            ended: None,
        }
    }

    /// As much of a text as a model is told again.
    pub(crate) fn cut(mut text: String) -> String {
        if text.len() > MAX_TOLD {
            text.truncate(text.floor_char_boundary(MAX_TOLD));
            text.push_str(" … (shortened)");
        }
        text
    }
}

/// What an execution that hands work over has to do, and has done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Dispatching {
    /// The event that began it: the decision, or the node's start.
    pub(crate) cause: Seq,
    /// What is to be done; `None` for a node that follows no decision.
    pub(crate) decision: Option<Decision>,
    /// The supervisor that took the decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<NodeId>,
    /// What the supervisor's verifier has said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) verdict: Option<Verdict>,
    pub(crate) stage: Stage,
    /// The event by which several workers work at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fanned_out: Option<Seq>,
    /// In the order in which they began.
    pub(crate) handoffs: Vec<Handoff>,
    /// What a child has given back that needs an approval before it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pending: Option<PendingHarvest>,
}

/// What a child has given back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PendingHarvest {
    pub(crate) child: RunId,
    pub(crate) outputs: Object,
    /// The variables that the mapping names.
    pub(crate) report: Object,
    pub(crate) is_untrusted: bool,
}

/// How far the decision is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// Nothing stands in its way.
    Clear,
    /// It waits for an approval.
    Escalated,
    /// The approval was answered.
    Answered,
    /// A person is asked what the decision asks.
    Asked,
}

/// One handoff to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Handoff {
    pub(crate) worker: String,
    /// The event of its last transition.
    pub(crate) latest: Seq,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) child: Option<RunId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) end: Option<HandoffEnd>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct HandoffEnd {
    /// How many handoffs of the execution ended before it.
    pub(crate) order: usize,
    pub(crate) status: RunStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<Failure>,
}

impl Supervision {
    /// The units of state that it occupies.
    pub(crate) fn weight(&self) -> u64 {
        let followed = |past: &Past| past.followed.as_ref().map_or(0, String::len);
        let past = self.past.iter().map(|past| past.decision.len() + followed(past));
        let summary = self.summary.as_ref().map_or(0, |summary| summary.text.len());
        cost::of_value(&self.latest.to_value()) + cost::bytes(past.sum::<usize>() + summary)
    }

    /// Notes what a verifier said of a decision.
    pub(crate) fn judge(&mut self, verdict: Verdict, decided: Seq) {
        match verdict {
            // The verdict on an earlier decision is none on the latest.
            Verdict::Pass | Verdict::Fail => self.awaits_verdict &= decided != self.decided,
            Verdict::Revise => self.n_revisions += 1,
        }
    }

    /// Notes what followed from the latest decision.
    pub(crate) fn follow(&mut self, outputs: &Object, at: Seq) {
        if let Some(past) = self.past.last_mut() {
            past.followed = Some(Past::cut(serde_json::Value::Object(outputs.clone()).to_string()));
            past.ended = Some(at);
        }
    }

    /// Lets a summary stand for the oldest turns.
    pub(crate) fn summarize(&mut self, n_turns: usize, text: String, at: Seq) {
        self.past.drain(..n_turns.min(self.past.len()));
        self.summary = Some(Box::new(Summary { text, at }));
    }
}

impl Handoff {
    /// Whether it has begun and gone no further, or has to begin again in a branch.
    const fn is_open(&self) -> bool {
        self.child.is_none() && self.end.is_none()
    }

    pub(crate) const fn is_running(&self) -> bool {
        self.child.is_some() && self.end.is_none()
    }
}

impl Dispatching {
    pub(crate) fn new(cause: Seq, decision: Option<Decision>, by: Option<NodeId>) -> Self {
        Self {
            cause,
            decision,
            by,
            verdict: None,
            stage: Stage::Clear,
            fanned_out: None,
            handoffs: Vec::new(),
            pending: None,
        }
    }

    /// Keeps what a child has given back until it is approved.
    pub(crate) fn await_approval(&mut self, event: &KernelEvent, is_untrusted: bool) {
        if let KernelEvent::ChildEnded {
            child,
            status: RunStatus::Completed,
            outputs,
            report,
            ..
        } = event
        {
            self.pending = Some(PendingHarvest {
                child: child.clone(),
                outputs: outputs.clone(),
                report: report.clone(),
                is_untrusted,
            });
        }
    }

    pub(crate) fn of_child(&self, child: &RunId) -> Option<&Handoff> {
        let mut handoffs = self.handoffs.iter();
        handoffs.find(|handoff| handoff.child.as_ref() == Some(child))
    }

    /// The workers that are to work and have not begun, with their positions in the decision.
    pub(crate) fn next(&self) -> Option<(usize, &str)> {
        let Some(Decision::NextWorker { workers, .. }) = &self.decision else {
            return None;
        };
        let again = self.handoffs.iter().position(Handoff::is_open);
        let position = again.unwrap_or(self.handoffs.len());
        workers.get(position).map(|worker| (position, worker.as_str()))
    }

    /// Whether any of its workers has begun, or is about to.
    pub(crate) const fn has_begun(&self) -> bool {
        self.fanned_out.is_some() || !self.handoffs.is_empty()
    }

    /// Forgets the child runs of another run, whose handoffs begin again.
    pub(crate) fn begin_again(&mut self) {
        for handoff in self.handoffs.iter_mut().filter(|handoff| handoff.end.is_none()) {
            handoff.child = None;
        }
    }

    /// The handoff that has just begun.
    fn begun(&mut self) -> Option<&mut Handoff> {
        let open = self.handoffs.iter_mut().filter(|handoff| handoff.is_open());
        open.max_by_key(|handoff| handoff.latest)
    }

    /// The handoffs that have ended, the first to end first.
    pub(crate) fn in_order_of_ends(&self) -> Vec<(&Handoff, &HandoffEnd)> {
        let handoffs = self.handoffs.iter();
        let mut ended: Vec<_> = handoffs
            .filter_map(|handoff| Some((handoff, handoff.end.as_ref()?)))
            .collect();
        ended.sort_by_key(|(_, end)| end.order);
        ended
    }

    fn n_ended(&self) -> usize {
        let handoffs = self.handoffs.iter();
        handoffs.filter(|handoff| handoff.end.is_some()).count()
    }

    /// Folds in an event of its own execution.
    pub(crate) fn apply(&mut self, seq: Seq, event: &Orchestration) {
        let order = self.n_ended();
        match event {
            Orchestration::Decided { .. }
            | Orchestration::Joined { .. }
            | Orchestration::ContextSummarized { .. } => {}
            Orchestration::ConfidenceEscalated { .. } => self.stage = Stage::Escalated,
            Orchestration::FannedOut { .. } => self.fanned_out = Some(seq),
            Orchestration::HandoffBegan { worker, .. } => {
                let mut handoffs = self.handoffs.iter_mut();
                match handoffs.find(|handoff| handoff.is_open() && handoff.worker == *worker) {
                    Some(again) => again.latest = seq,
                    None => self.handoffs.push(Handoff {
                        worker: worker.clone(),
                        latest: seq,
                        child: None,
                        end: None,
                    }),
                }
            }
            Orchestration::HandoffSucceeded { child, .. } => {
                if let Some(handoff) = self.begun() {
                    handoff.child = Some(child.clone());
                    handoff.latest = seq;
                }
            }
            Orchestration::HandoffFailed { error, .. } => {
                if let Some(handoff) = self.begun() {
                    handoff.latest = seq;
                    handoff.end = Some(HandoffEnd {
                        order,
                        status: RunStatus::Failed,
                        error: Some(error.clone()),
                    });
                }
            }
            Orchestration::Harvested { child, .. } => {
                let mut handoffs = self.handoffs.iter_mut();
                if let Some(handoff) = handoffs.find(|handoff| handoff.child.as_ref() == Some(child)) {
                    handoff.latest = seq;
                }
            }
        }
    }

    /// Folds in an event of the kernel that belongs to its execution.
    pub(crate) fn apply_kernel(&mut self, seq: Seq, event: &KernelEvent) {
        let order = self.n_ended();
        match (event, self.stage) {
            (
                KernelEvent::ChildEnded {
                    child, status, error, ..
                },
                _,
            ) => {
                let mut handoffs = self.handoffs.iter_mut();
                if let Some(handoff) = handoffs.find(|handoff| handoff.child.as_ref() == Some(child)) {
                    handoff.latest = seq;
                    handoff.end = Some(HandoffEnd {
                        order,
                        status: *status,
                        error: error.as_deref().cloned(),
                    });
                }
            }
            (KernelEvent::InterruptRequested { .. }, Stage::Clear | Stage::Answered) => {
                self.stage = Stage::Asked;
            }
            (KernelEvent::ApprovalReceived { edited, .. }, Stage::Escalated) => {
                self.stage = Stage::Answered;
                let edited = edited.as_ref().and_then(|edited| Decision::read(edited).ok());
                if let Some(edited) = edited {
                    self.decision = Some(match &self.decision {
                        Some(decision) => edited.made_of(decision),
                        None => edited,
                    });
                }
            }
            _ => {}
        }
    }

    /// The units of state that it occupies.
    pub(crate) fn weight(&self) -> u64 {
        let decision = self.decision.as_ref();
        let pending = self.pending.as_ref();
        decision.map_or(0, |decision| cost::of_value(&decision.to_value()))
            + pending.map_or(0, |pending| {
                cost::of_object(&pending.outputs) + cost::of_object(&pending.report)
            })
    }
}
