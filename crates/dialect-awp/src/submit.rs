//! What a host submits for an activity, and the checks before it becomes the outcome of a step.
//!
//! The checks are in the order of the protocol, except that all of them come before anything is recorded: a refused
//! submission leaves the run as it was.

use serde_json::{Map, Value, json};
use wopr_kernel::{ContentHash, Failure, Object, Planned, Run, RunId, RunStatus, StepId, fields};

use crate::{
    definition::Kind,
    options,
    plan::Plan,
    span::{self, ParallelSpan},
    state::State,
};

/// What a host submits.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    /// The definition as the host has it.
    pub definition: ContentHash,
    /// The input with which the host started the run.
    pub input: Object,
    pub node: String,
    pub span: Option<ParallelSpan>,
    pub outcome: HostOutcome,
}

#[derive(Debug, Clone, PartialEq)]
pub enum HostOutcome {
    Completed {
        result: Value,
        delegate_correlation_id: Option<String>,
        external_task_id: Option<String>,
    },
    Failed {
        error: String,
        code: Option<String>,
    },
}

/// The attempt that a submission is for, with its outcome in the kernel's words.
#[derive(Debug, Clone, PartialEq)]
pub struct Submitted {
    pub step: StepId,
    pub attempt: u32,
    /// Recorded before the attempt ends: the task of the agent that did the work.
    pub details: Option<Value>,
    pub outcome: Result<Object, Failure>,
}

/// The member of recorded details that names the task of an agent.
pub(crate) const EXTERNAL_TASK_ID: &str = "externalTaskId";

/// The reason for refusing a submission. A refused submission leaves the run unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitRefusal {
    #[error("{0}")]
    Invalid(String),
    #[error("the execution does not wait for an activity")]
    NotAwaiting,
    #[error("the execution waits for {}", activities(.0))]
    OtherNode(Vec<String>),
    #[error("the parallel_span is not the one of the activity that the execution waits for")]
    OtherSpan,
}

/// Names activities, as many as a sentence can take.
fn activities(nodes: &[String]) -> String {
    const MOST: usize = 10;
    let mut named: Vec<_> = nodes
        .iter()
        .take(MOST)
        .map(|node| format!("\"{node}\""))
        .collect();
    if let Some(more) = nodes.len().checked_sub(MOST).filter(|more| *more > 0) {
        named.push(format!("{more} more"));
    }
    let word = if nodes.len() == 1 {
        "activity"
    } else {
        "activities"
    };
    format!("{word} {}", named.join(", "))
}

impl SubmitRefusal {
    /// The code by which the protocol's faces name it.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "SUBMIT_VALIDATION_ERROR",
            Self::NotAwaiting => "ACTIVITY_SUBMIT_NOT_AWAITING",
            Self::OtherNode(_) => "ACTIVITY_SUBMIT_NODE_MISMATCH",
            Self::OtherSpan => "ACTIVITY_SUBMIT_PARALLEL_MISMATCH",
        }
    }
}

/// An activity that a run waits for.
pub(crate) struct Awaited<'r> {
    pub(crate) position: usize,
    pub(crate) step: StepId,
    /// From 0 on.
    pub(crate) attempt: u32,
    /// What its worker gets.
    pub(crate) input: &'r Value,
}

/// The activities that a run waits for, in the order of the document.
pub(crate) fn awaited<'r>(plan: &'r Plan, run: &'r Run) -> impl Iterator<Item = Awaited<'r>> {
    run.activities(plan).filter_map(|(step, attempt, activity)| {
        Some(Awaited {
            position: plan.position(&step.node)?,
            step,
            attempt,
            input: &activity.input,
        })
    })
}

/// Holds a submission against what a run waits for.
///
/// # Errors
/// The first check that it does not pass.
pub fn check_submission(
    plan: &Plan,
    (id, run, state): (&RunId, &Run, &State),
    submission: Submission,
) -> Result<Submitted, SubmitRefusal> {
    let started = run.started.as_ref().ok_or(SubmitRefusal::NotAwaiting)?;
    if run.status == RunStatus::Cancelled {
        return Err(SubmitRefusal::NotAwaiting);
    }
    if submission.definition != *plan.version() {
        let message = "the definition is not the one with which the execution was started";
        return Err(SubmitRefusal::Invalid(message.to_owned()));
    }
    let all: Vec<_> = awaited(plan, run).collect();
    if all.is_empty() {
        return Err(SubmitRefusal::NotAwaiting);
    }
    let nodes = || all.iter().map(|awaited| awaited.step.node.to_string()).collect();
    let wanted = all
        .iter()
        .find(|awaited| submission.node == awaited.step.node.as_str());
    let Some(wanted) = wanted else {
        return Err(SubmitRefusal::OtherNode(nodes()));
    };
    let (position, step, attempt) = (wanted.position, wanted.step.clone(), wanted.attempt);
    // Two branches may share a node, which is at the token of one of them at a time.
    if submission.span != span::of(plan, state, position) {
        return Err(SubmitRefusal::OtherSpan);
    }
    check_input(&started.inputs, &submission.input)?;
    let mut details = None;
    let outcome = match submission.outcome {
        HostOutcome::Failed { error, code } => Err(Failure {
            retryable: true,
            ..Failure::new(code.unwrap_or_default(), error)
        }),
        HostOutcome::Completed {
            result,
            delegate_correlation_id,
            external_task_id,
        } => {
            details = external_task_id.map(|id| json!({ EXTERNAL_TASK_ID: id }));
            if let Kind::Delegate { .. } = plan.at(position).kind {
                let execution = options::execution_id(&started.configurable, id);
                let wanted = options::correlation_id(&execution, &step, attempt);
                check_correlation(&wanted, delegate_correlation_id.as_deref(), &result)?;
            }
            Ok(output(result))
        }
    };
    Ok(Submitted {
        step,
        attempt,
        details,
        outcome,
    })
}

/// An output that is no object is the only member of one.
pub(crate) fn output(result: Value) -> Object {
    match result {
        Value::Object(output) => output,
        Value::Null => Object::new(),
        other => fields(Value::Object(Map::from_iter([("value".to_owned(), other)]))),
    }
}

/// Holds the input that a caller sends along against that of the start.
///
/// # Errors
/// They differ.
pub fn check_input(started: &Object, submitted: &Object) -> Result<(), SubmitRefusal> {
    if started.keys().ne(submitted.keys()) {
        let message = "Submit input keys do not match those with which the execution was started";
        return Err(SubmitRefusal::Invalid(message.to_owned()));
    }
    match started
        .iter()
        .find(|(name, value)| submitted.get(*name) != Some(value))
    {
        None => Ok(()),
        Some((name, _)) => Err(SubmitRefusal::Invalid(format!(
            "Submit input key \"{name}\" does not match workflow start state"
        ))),
    }
}

fn check_correlation(wanted: &str, given: Option<&str>, result: &Value) -> Result<(), SubmitRefusal> {
    let given = given.or_else(|| result.get("delegateCorrelationId").and_then(Value::as_str));
    match given == Some(wanted) {
        true => Ok(()),
        false => Err(SubmitRefusal::Invalid(format!(
            "delegate_correlation_id must be \"{wanted}\""
        ))),
    }
}
