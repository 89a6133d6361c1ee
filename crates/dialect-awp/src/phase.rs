//! The phase of a run, in the words of the protocol's faces. It follows from the run's state, not from its history.

use serde_json::Value;
use wopr_kernel::{
    Asked, InterruptKind, OpenInterrupt, Phase as NodePhase, Planned, Run, RunId, RunStatus, StepId, Wait,
};

use crate::{
    definition::{self, Kind},
    delegate,
    options::{self, ActivityMode},
    plan::Plan,
    span::{self, ParallelSpan},
    state::State,
    submit::awaited,
};

/// What a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutionPhase {
    Running,
    AwaitingActivity,
    AwaitingSignal,
    Interrupted,
    Completed,
    Failed,
    Cancelled,
}

impl ExecutionPhase {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::AwaitingActivity => "awaiting_activity",
            Self::AwaitingSignal => "awaiting_signal",
            Self::Interrupted => "interrupted",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a status says of a run besides its phase.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecutionStatus {
    pub phase: ExecutionPhase,
    /// Absent once the run has completed.
    pub current_node: Option<String>,
    pub last_error: Option<String>,
    /// The signal that the run waits for, the first one in the document.
    pub signal_name: Option<String>,
    /// The activities that the run waits for, in the order of the document: more than one only if branches are under way
    /// at once.
    pub activities: Vec<AwaitedActivity>,
    /// Whether the branches of parallel nodes are under way at once.
    pub is_parallel: bool,
    /// The correlation id of the task of the agent that was asked last.
    pub delegate_correlation_id: Option<String>,
    /// The child that the current node waits for, with the execution that started it; else the one that was started last.
    pub child: Option<(RunId, StepId)>,
    /// The task of the agent that this host waits for.
    pub external_task_id: Option<String>,
    /// What an agent that this host has called asks, if the run waits for the answer and for no activity.
    pub question: Option<AgentQuestion>,
}

/// A question of an agent that this host has called. An outcome that is submitted for the node answers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentQuestion {
    pub node: String,
    /// The id of the interrupt that the answer resolves.
    pub interrupt: String,
    pub agent_id: String,
    pub protocol: &'static str,
    /// What the agent says, which nobody vouches for.
    pub prompt: Option<String>,
}

/// An activity that a run waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct AwaitedActivity {
    pub node: String,
    /// From 1 on.
    pub attempt: u32,
    pub timeout_ms: Option<u64>,
    pub span: Option<ParallelSpan>,
    pub delegate: Option<AwaitedDelegate>,
}

/// What a worker gets to know of a delegate.
#[derive(Debug, Clone, PartialEq)]
pub struct AwaitedDelegate {
    pub agent_id: String,
    pub protocol: &'static str,
    pub input: Value,
    pub correlation_id: String,
}

/// A signal that a run waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwaitedSignal {
    pub name: String,
    pub node: String,
    /// The id of the interrupt that the signal answers.
    pub interrupt: String,
}

/// The phase of a run. One that waits for several things waits for an activity first, then for an answer, then for a
/// signal.
#[must_use]
pub fn phase(plan: &Plan, run: &Run) -> ExecutionPhase {
    match run.status {
        RunStatus::Completed => ExecutionPhase::Completed,
        RunStatus::Failed => ExecutionPhase::Failed,
        RunStatus::Cancelled => ExecutionPhase::Cancelled,
        RunStatus::WaitingApproval | RunStatus::WaitingInput | RunStatus::WaitingExternal => {
            // A remote agent's question can be answered by whoever may submit the outcome.
            let asks = |position: usize| matches!(plan.at(position).kind, Kind::Delegate { .. });
            let mut others = run
                .interrupts(plan)
                .filter(|open| open.kind() != InterruptKind::ExternalEvent);
            if awaited(plan, run).next().is_some() || asking_nodes(run).any(asks) {
                ExecutionPhase::AwaitingActivity
            } else if others.next().is_some() {
                ExecutionPhase::Interrupted
            } else {
                ExecutionPhase::AwaitingSignal
            }
        }
        RunStatus::Pending | RunStatus::Running | RunStatus::Paused | RunStatus::Cancelling => {
            match awaited(plan, run).next() {
                Some(_) => ExecutionPhase::AwaitingActivity,
                None => ExecutionPhase::Running,
            }
        }
    }
}

/// The node that a phase is about.
fn shown_node(plan: &Plan, run: &Run, phase: ExecutionPhase) -> Option<usize> {
    let shown = match phase {
        ExecutionPhase::AwaitingActivity => {
            let awaited = awaited(plan, run).next().map(|awaited| awaited.position);
            let asks = |position: &usize| matches!(plan.at(*position).kind, Kind::Delegate { .. });
            awaited.or_else(|| asking_nodes(run).find(asks))
        }
        ExecutionPhase::Interrupted => first_question(plan, run).map(|(position, _)| position),
        // Its own signals come before those of its children, wherever they are.
        ExecutionPhase::AwaitingSignal => {
            let own = awaited_signals(plan, run).into_iter().next();
            let own = own.and_then(|signal| {
                run.waiting
                    .iter()
                    .copied()
                    .find(|at| plan.node(*at).as_str() == signal.node)
            });
            own.or_else(|| asking_nodes(run).next())
        }
        ExecutionPhase::Running
        | ExecutionPhase::Completed
        | ExecutionPhase::Failed
        | ExecutionPhase::Cancelled => None,
    };
    shown.or_else(|| active_node(run))
}

/// The question of a run that an answer resumes: the first one of the document. Signals and agents' questions have answers
/// of their own.
#[must_use]
pub fn question<'r>(plan: &'r Plan, run: &'r Run) -> Option<OpenInterrupt<'r>> {
    first_question(plan, run).map(|(_, open)| open)
}

fn first_question<'r>(plan: &'r Plan, run: &'r Run) -> Option<(usize, OpenInterrupt<'r>)> {
    let open = run.interrupts(plan).filter_map(|open| {
        let position = plan.position(open.node)?;
        let is_of_agent = matches!(plan.at(position).kind, Kind::Delegate { .. });
        let is_question = open.kind() != InterruptKind::ExternalEvent && !is_of_agent;
        is_question.then_some((position, open))
    });
    open.min_by_key(|(position, _)| *position)
}

/// The questions of agents that this host has called, in the order of the document.
#[must_use]
pub fn agent_questions(plan: &Plan, run: &Run) -> Vec<AgentQuestion> {
    let mut questions: Vec<_> = run
        .interrupts(plan)
        .filter_map(|open| {
            let position = plan.position(open.node)?;
            let Kind::Delegate {
                agent_id, protocol, ..
            } = &plan.at(position).kind
            else {
                return None;
            };
            let Asked::Here(asked) = open.asked else {
                return None;
            };
            let question = AgentQuestion {
                node: open.node.to_string(),
                interrupt: open.id(),
                agent_id: agent_id.clone(),
                protocol: protocol.as_str(),
                prompt: asked
                    .data
                    .get("message")
                    .and_then(Value::as_str)
                    .map(str::to_owned),
            };
            Some((position, question))
        })
        .collect();
    questions.sort_by_key(|(position, _)| *position);
    questions.into_iter().map(|(_, question)| question).collect()
}

/// The signals that a run waits for, in the order of the document.
#[must_use]
pub fn awaited_signals(plan: &Plan, run: &Run) -> Vec<AwaitedSignal> {
    let mut signals: Vec<_> = run
        .interrupts(plan)
        .filter_map(|open| {
            let position = plan.position(open.node)?;
            let Kind::Wait(definition::Wait::Signal(name)) = &plan.at(position).kind else {
                return None;
            };
            let signal = AwaitedSignal {
                name: name.clone(),
                node: open.node.to_string(),
                interrupt: open.id(),
            };
            Some((position, signal))
        })
        .collect();
    signals.sort_by_key(|(position, _)| *position);
    signals.into_iter().map(|(_, signal)| signal).collect()
}

/// The status of a run.
#[must_use]
pub fn status(plan: &Plan, (id, run, state): (&RunId, &Run, &State)) -> ExecutionStatus {
    let phase = phase(plan, run);
    let shown = shown_node(plan, run, phase);
    let failed = run.error.as_ref();
    let ended = failed.and_then(|(_, node)| node.as_ref().map(ToString::to_string));
    let latest = || {
        let mut started = run
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.next_ordinal > 0);
        let cancelled = started
            .clone()
            .find(|(_, node)| matches!(node.phase, NodePhase::Cancelled));
        cancelled
            .or(started.next_back())
            .map(|(position, _)| plan.node(position).to_string())
    };
    let signals = awaited_signals(plan, run);
    let current_node = match phase {
        ExecutionPhase::Completed => None,
        ExecutionPhase::Failed => ended,
        _ => shown
            .map(|position| plan.node(position).to_string())
            .or_else(latest),
    };
    let correlation_of = |position: usize, ordinal: u32, attempt: u32| {
        let started = run.started.as_ref()?;
        let execution = options::execution_id(&started.configurable, id);
        let node = plan.node(position).clone();
        let attempt = delegate::counted(ActivityMode::of(&started.configurable), attempt);
        Some(options::correlation_id(
            &execution,
            &StepId { node, ordinal },
            attempt,
        ))
    };
    let activities = awaited(plan, run).map(|awaited| {
        let node = plan.at(awaited.position);
        let correlation = || correlation_of(awaited.position, awaited.step.ordinal, awaited.attempt);
        AwaitedActivity {
            node: awaited.step.node.to_string(),
            attempt: awaited.attempt + 1,
            timeout_ms: node.timeout_ms,
            span: span::of(plan, state, awaited.position),
            delegate: match &node.kind {
                Kind::Delegate {
                    agent_id, protocol, ..
                } => Some(AwaitedDelegate {
                    agent_id: agent_id.clone(),
                    protocol: protocol.as_str(),
                    input: awaited.input.get("delegateInput").cloned().unwrap_or_default(),
                    correlation_id: correlation().unwrap_or_default(),
                }),
                _ => None,
            },
        }
    });
    let child = child_of(run, phase, current_node.as_deref());
    ExecutionStatus {
        phase,
        activities: activities.collect(),
        is_parallel: state.walk.is_together(),
        delegate_correlation_id: (state.delegate)
            .and_then(|(position, ordinal, attempt)| correlation_of(position, ordinal, attempt)),
        external_task_id: shown.and_then(|position| task_of_agent(run, position)),
        question: match phase {
            ExecutionPhase::AwaitingActivity if awaited(plan, run).next().is_none() => {
                agent_questions(plan, run).into_iter().next()
            }
            _ => None,
        },
        current_node,
        last_error: failed
            .map(|(failure, _)| failure.message.clone())
            .or_else(|| run.cancel_reason.clone()),
        signal_name: signals.into_iter().next().map(|signal| signal.name),
        child,
    }
}

/// The child that a status names: the one that its node waits for. A node that waits for something else than a child names
/// none that another branch waits for, since what the status asks for does not go there.
fn child_of(run: &Run, phase: ExecutionPhase, node: Option<&str>) -> Option<(RunId, StepId)> {
    let open = || run.own_children().rev().filter(|child| !child.ended);
    let at_node = open().find(|child| Some(child.step.node.as_str()) == node);
    let last = || match phase {
        ExecutionPhase::AwaitingActivity | ExecutionPhase::AwaitingSignal | ExecutionPhase::Interrupted => {
            run.own_children().next_back().filter(|_| open().next().is_none())
        }
        ExecutionPhase::Running
        | ExecutionPhase::Completed
        | ExecutionPhase::Failed
        | ExecutionPhase::Cancelled => open().next().or(run.own_children().next_back()),
    };
    let child = at_node.or_else(last)?;
    Some((child.run.clone(), child.step.clone()))
}

/// The task that an agent has made of a call of this host, from the handle that was recorded with it.
fn task_of_agent(run: &Run, position: usize) -> Option<String> {
    let NodePhase::Active(active) = &run.nodes.get(position)?.phase else {
        return None;
    };
    let Wait::Effect(pending) = &active.wait else {
        return None;
    };
    delegate::task_of_handle(pending.handle.as_ref()?)
}

/// The nodes at which somebody is asked something, here or in a child, in the order of the document.
fn asking_nodes(run: &Run) -> impl Iterator<Item = usize> {
    let mut asking = run.waiting.clone();
    asking.sort_unstable();
    asking.into_iter()
}

/// The first node that is under way.
fn active_node(run: &Run) -> Option<usize> {
    run.nodes
        .iter()
        .position(|node| matches!(node.phase, NodePhase::Active(_)))
}
