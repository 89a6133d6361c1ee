//! What a workflow language gives the kernel: plans, state, events, and the next steps.

use std::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    ApplyError, ApprovalAction, ChildEnd, ContentHash, DecisionBuilder, Event, Failure, InterruptKind, Join,
    Limits, NodeId, Object, RecordedRef, Refusal, Rules, Run, RunId, RunStatus, Seq, StartRun, StepId,
    WorkerFailure, WorkflowId, cost::Budget,
};

/// Longest retry delay; exponential backoff stops growing here, unless a language says otherwise.
const MAX_RETRY_DELAY_MS: u64 = 60_000;

/// A workflow language.
///
/// The kernel calls it with static dispatch: a decision enters it once per [`Trigger`].
pub trait Dialect: Sized + Debug + 'static {
    /// The name by which runs name their language.
    const NAME: &'static str;
    /// The version of the fold: grows whenever the state of a log is another one, or has another form. Snapshots of
    /// other folds are not read.
    const FOLD: u16;

    /// A compiled workflow.
    type Plan: Planned;
    /// The part of a run's state that only this language has.
    type State: Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned;
    /// The events that only this language has.
    type Event: Clone + Debug + PartialEq + Serialize + DeserializeOwned;

    /// Checks the parameters of a new run and fixes its limits.
    fn check_start(plan: &Self::Plan, start: &StartRun, budget: &Budget) -> Result<Limits, Refusal>;

    /// Takes out of the options of a branch what belongs to its source alone, such as the source's name. A replay keeps
    /// all of them: it decides what its source decided.
    fn drop_own_options(_configurable: &mut Object) {}

    /// Folds an event into the state. Runs before the kernel's own fold: `run` is as it was.
    fn apply(
        plan: &Self::Plan,
        run: &Run,
        state: &mut Self::State,
        recorded: RecordedRef<'_, Self::Event>,
    ) -> Result<(), ApplyError>;

    /// Follows one trigger, then starts every step that may start.
    fn decide(trigger: Trigger, next: &mut DecisionBuilder<'_, Self>) -> Result<(), Refusal>;

    /// The values that faces and parent runs can read.
    fn variables(state: &Self::State) -> &Object;

    /// The units of work that copying the state takes; see [`crate::cost`].
    fn weight(state: &Self::State) -> u64;

    /// The approximate payload of an event in bytes.
    fn size_of(event: &Self::Event) -> usize;

    /// Whether an event that is about to be recorded contains untrusted content.
    fn is_untrusted(next: &DecisionBuilder<'_, Self>, event: &Event<Self::Event>) -> bool;

    /// The event that the end of a step's child names as its cause; the latest one where `None`.
    fn cause_of_end(_plan: &Self::Plan, _state: &Self::State, _step: &StepId, _child: &RunId) -> Option<Seq> {
        None
    }

    /// The name under which a step handed work to a child; `None` for a child that got none that way.
    fn worker_of(_plan: &Self::Plan, _state: &Self::State, _step: &StepId, _child: &RunId) -> Option<String> {
        None
    }

    /// The failure by which a step did not create a child, if this event of the language records one.
    fn refused_child(_event: &Self::Event, _step: &StepId) -> Option<Failure> {
        None
    }

    /// The step whose open question an event of the language changes, such as a turn of a conversation.
    fn asks_anew(_event: &Self::Event) -> Option<&StepId> {
        None
    }

    /// The last failure of a worker that the run has not got over.
    fn failed_worker(_state: &Self::State) -> Option<&WorkerFailure> {
        None
    }

    /// Returns `true` if the run holds untrusted content.
    fn holds_untrusted(run: &Run, state: &Self::State) -> bool;
}

/// What the kernel and the faces read of a compiled workflow. The kernel names nodes by their position.
pub trait Planned: Debug + Send + Sync + 'static {
    fn id(&self) -> &WorkflowId;
    fn version(&self) -> &ContentHash;
    /// The definition as it was registered.
    fn document(&self) -> &Value;
    /// The definition, with every value that it gives to something sensitive replaced.
    fn redacted_document(&self, _replacement: &Value) -> Value {
        self.document().clone()
    }

    fn n_nodes(&self) -> usize;
    fn node(&self, position: usize) -> &NodeId;
    fn position(&self, node: &NodeId) -> Option<usize>;
    fn type_id(&self, position: usize) -> &str;
    /// Returns `true` if an active step of this node, when it waits for no effect, answer or child, waits for a
    /// timer.
    fn has_timer(&self, position: usize) -> bool;
    /// The rules of the interrupts of this kind that the node opens.
    fn rules(&self, _position: usize, _kind: InterruptKind) -> Option<&Rules> {
        None
    }

    fn retries(&self, _position: usize) -> Retries {
        Retries { most: 0, delay_ms: 0 }
    }

    /// Whether a failed attempt of the node may be repeated.
    fn may_retry(&self, _position: usize, failure: &Failure) -> bool {
        failure.retryable
    }

    /// The delay after the failure of this attempt; 0 is the first one.
    fn retry_delay_ms(&self, position: usize, attempt: u32) -> u64 {
        let Retries { delay_ms, .. } = self.retries(position);
        delay_ms
            .saturating_mul(1 << attempt.min(20))
            .min(MAX_RETRY_DELAY_MS.max(delay_ms))
    }

    /// Whether no node ever waits, unless it is retried: the first decision of a run takes it to its end.
    fn never_waits(&self) -> bool {
        false
    }

    /// How the node treats its child runs, if it creates any.
    fn children(&self, _position: usize) -> Option<ChildPolicy> {
        None
    }

    /// Whether the node creates runs of workflows of the tenant.
    fn runs_workflows(&self, position: usize) -> bool {
        self.children(position).is_some()
    }

    /// Whether the node's child runs remember in a scope of their own.
    fn isolates_memory(&self, _position: usize) -> bool {
        false
    }

    /// The type and the human-readable name of the artifact made from the node's outputs.
    fn artifact(&self, _position: usize) -> Option<(&str, &str)> {
        None
    }

    /// The name of the output that an outcome of a worker becomes if it is no object.
    fn lone_output(&self) -> &'static str {
        "result"
    }

    /// The human-readable name.
    fn name(&self) -> &str {
        self.id().as_str()
    }

    fn description(&self) -> Option<&str> {
        None
    }

    /// The author's version label.
    fn version_label(&self) -> &str {
        ""
    }

    /// The definition's metadata under this key.
    fn metadata(&self, _key: &str) -> Option<&Value> {
        None
    }

    /// Whether runs may be started.
    fn is_active(&self) -> bool {
        true
    }

    /// Whether callers may start runs at all. Others come only from runs that are under way.
    fn is_for_callers(&self) -> bool {
        !self.id().is_of_host()
    }

    /// Whether clients are told of the workflow.
    fn is_public(&self) -> bool {
        false
    }

    /// Whether the definition itself says that it is public.
    fn is_expressly_public(&self) -> bool {
        false
    }

    /// The approximate memory in bytes that it takes beyond its document.
    fn extra_bytes(&self) -> usize {
        0
    }

    /// Returns `true` if views redact any value of the run.
    fn has_sensitive(&self) -> bool {
        false
    }

    /// Returns `true` if views redact this variable or channel.
    fn is_sensitive(&self, _name: &str) -> bool {
        false
    }

    /// Returns `true` if views redact this output of the node.
    fn is_sensitive_output(&self, _node: &NodeId, _port: &str) -> bool {
        false
    }

    /// The names of members that views redact in every value, however deep and in whatever case.
    fn secret_members(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns `true` if views redact any output of the node.
    fn has_sensitive_output(&self, _node: &NodeId) -> bool {
        false
    }

    /// The outputs that the whole of an answer to the node becomes. Other answers become outputs by their members, which
    /// have the outputs' names.
    fn outputs_of_answer(&self, _node: &NodeId) -> &'static [&'static str] {
        &[]
    }

    /// Returns `true` if views redact whatever an answer to the node says.
    fn is_sensitive_answer(&self, node: &NodeId) -> bool {
        let mut outputs = self.outputs_of_answer(node).iter();
        outputs.any(|port| self.is_sensitive_output(node, port))
    }

    /// Returns `true` if views redact, as a whole, what the node asks a person to judge, and what the person makes of it.
    fn is_sensitive_subject(&self, _node: &NodeId) -> bool {
        false
    }

    /// Returns `true` if views redact this member of what the node asks a person to judge.
    fn is_sensitive_part(&self, _node: &NodeId, _name: &str) -> bool {
        false
    }

    /// Whether texts among the artifacts of the node may repeat any value of the run.
    fn sums_up(&self, _node: &NodeId) -> bool {
        false
    }

    /// Returns `true` if views redact this output of the run.
    fn is_sensitive_result(&self, _port: &str) -> bool {
        false
    }

    /// Whether an output is artifact content, given all outputs of its node.
    fn is_content(&self, _node: &NodeId, _port: &str, _outputs: &Object) -> bool {
        false
    }

    /// Whether a chunk of an output, or an output whose siblings are unknown, is artifact content.
    fn is_content_alone(&self, _node: &NodeId, _port: &str) -> bool {
        false
    }

    /// The node whose artifact content a variable contains.
    fn content_of_variable(&self, _name: &str) -> Option<&NodeId> {
        None
    }

    /// The node whose artifact content the run's outputs contain under this name.
    fn content_of_result(&self, _port: &str, _outputs: &Object) -> Option<&NodeId> {
        None
    }

    /// The type and the human-readable name of the artifact made from a node's outputs.
    fn artifact_of(&self, node: &NodeId) -> Option<(&str, &str)> {
        self.artifact(self.position(node)?)
    }

    /// The run's outputs without those that views redact.
    fn shown_result(&self, outputs: &Object) -> Object {
        let shown = outputs.iter().filter(|(name, _)| !self.is_sensitive_result(name));
        let part = |(name, value): (&String, &Value)| {
            // If several nodes end a run, the outputs of each are under its id.
            let node = NodeId::parse(name)
                .ok()
                .filter(|node| self.position(node).is_some());
            let value = match (node, value) {
                (Some(node), Value::Object(ports)) => {
                    let mut ports = ports.clone();
                    ports.retain(|port, _| !self.is_sensitive_output(&node, port));
                    Value::Object(ports)
                }
                _ => value.clone(),
            };
            (name.clone(), value)
        };
        shown.map(part).collect()
    }
}

/// The optional node types that a host offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeTypes {
    /// Types of a conformance suite.
    pub conformance: bool,
}

/// A workflow of any language, as a parent run sees it before it creates a child.
pub trait Startable: Debug + Send + Sync {
    /// The name of its language.
    fn dialect(&self) -> &'static str;
    fn workflow(&self) -> &WorkflowId;
    fn version(&self) -> &ContentHash;
    /// Checks the parameters that a child would start with. `unset` names inputs that stay unset.
    ///
    /// # Errors
    /// The rule that they break.
    fn check_child(
        &self,
        inputs: &Object,
        configurable: &Object,
        unset: &[String],
        budget: &Budget,
    ) -> Result<(), String>;

    /// The names of the variables that a run of it may have and that views do not redact.
    fn shown_variables(&self) -> Vec<String>;
}

/// How often failed attempts of a node are repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    pub most: u32,
    /// The delay before the first retry; it doubles.
    pub delay_ms: u64,
}

/// How a node treats its child runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildPolicy {
    pub join: Join,
    pub on_failure: OnFailure,
    /// Whether a cancel cascades to the children.
    pub propagates_cancel: bool,
}

/// What a child that does not complete does to its parent's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// The step fails. A set of children fails with the first that makes its join impossible.
    Fail,
    /// The step gets the child's status as its result.
    Absorb,
}

/// What a dialect has to follow. `cause` is the event that the next one names as its cause.
#[derive(Debug)]
pub enum Trigger {
    /// The run started.
    Started,
    /// Nothing but what is already in the run.
    Advance,
    /// Like `Advance`, but any step may have become ready.
    Resumed,
    /// Variables were set from outside the run.
    Set(Object),
    /// A step starts its next attempt; the kernel has recorded its start.
    AttemptDue {
        position: usize,
        step: StepId,
        attempt: u32,
        started: Seq,
    },
    TimerFired {
        position: usize,
        step: StepId,
        cause: Seq,
    },
    /// A step's effect ended; a failure is the one of its last attempt.
    EffectEnded {
        step: StepId,
        cause: Seq,
        outcome: Result<Object, Failure>,
    },
    /// A step's child ended in a way that does not fail the step.
    ChildEnded {
        position: usize,
        step: StepId,
        cause: Seq,
        child: RunId,
        status: RunStatus,
        outputs: Object,
        /// The variables that the step asked for.
        report: Object,
    },
    /// The join of a step's children is decided, and the children that were still running are cancelled.
    ChildrenJoined {
        position: usize,
        step: StepId,
        cause: Seq,
        /// Whether the join holds: for example, whether all children completed.
        holds: bool,
        /// The children that ended before that, in the order in which the run learned it.
        ended: Vec<(RunId, ChildEnd)>,
    },
    /// A child of a step that judges its children itself has ended.
    MemberEnded {
        position: usize,
        step: StepId,
        /// The recorded end.
        cause: Seq,
        child: RunId,
    },
    /// A step failed for a reason that the kernel knows.
    Failed {
        step: StepId,
        cause: Seq,
        failure: Failure,
    },
    /// A step's interrupt was closed.
    Answered {
        position: usize,
        step: StepId,
        cause: Seq,
        answer: Answered,
    },
    /// Somebody asked a question at a gate, which stays open.
    Asked {
        step: StepId,
        by: String,
        question: Option<String>,
    },
    /// Somebody took a turn in a conversation. It goes on, unless the turn closes it and the dialect accepts that:
    /// [`DecisionBuilder::close_turns`].
    TurnTaken {
        position: usize,
        step: StepId,
        by: String,
        turn: Value,
        closes: bool,
    },
}

/// How an interrupt was closed.
#[derive(Debug)]
pub enum Answered {
    Approval {
        action: ApprovalAction,
        /// Who decided; absent on a timeout.
        by: Option<String>,
        feedback: Option<String>,
        /// The requested changes.
        refine: Option<Value>,
        edited: Option<Value>,
    },
    Clarification {
        answers: Object,
    },
    /// The value as given, and the event in it.
    Value {
        event: Value,
        value: Value,
    },
    /// A held decision was judged.
    Verdict {
        verdict: Verdict,
        /// The data of the interrupt that held it.
        held: Value,
    },
    /// Nobody answered in time.
    TimedOut,
}

/// What somebody said of a held decision.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It holds as it is.
    Ratified,
    /// Another decision holds in its place.
    Replaced(Value),
    Rejected,
}
