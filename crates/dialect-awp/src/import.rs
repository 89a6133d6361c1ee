//! Makes runs of the history of an execution that another engine, or another host, has begun, and of those of its
//! sub-workflows.
//!
//! The rows say what the execution was given: its input, the outcomes of activities, answers, signals, and when timers
//! fired. The run is given all of it again, at the recorded times, and decides anew. What it decides has to be what the rows
//! say, so a history that was changed on the way is refused, and the log of the run is one like any other. A sub-workflow is
//! decided again from rows of its own once its parent starts it, and its parent hears of its end when the rows say so. One
//! decision for each run results: its whole log, and the work that is left.
//!
//! ```text
//!   rows --> what was given --> decide, decide, ... --> log --> rows --> compared with those given
//! ```

mod comparison;
mod executions;
mod next;
mod outcomes;
mod replay;

use std::{borrow::Cow, cell::Cell, collections::BTreeSet, sync::Arc};

use serde_json::Value;
use wopr_kernel::{
    Decision, Entropy, HostBounds, NewChild, Object, Origin, Planned, PrincipalId, Refusal, RunId, Startable,
    TenantId, Timestamp, TraceContext, cost::MAX_DECISION_WORK,
};

use self::{
    executions::Executions,
    replay::{Attempt, Replay, Replayed},
};
use crate::{
    decide::Awp,
    definition::Kind,
    in_process::InProcess,
    options::{ActivityMode, PARALLEL_ACTIVITIES},
    plan::Plan,
    rows::{GivenRows, MAX_ROWS, RowError, agrees, hides, is_redacted},
};

/// The most work that the decisions of one import may take, with those of its sub-workflows.
const MAX_WORK: u64 = 16 * MAX_DECISION_WORK;

/// The parameters of an import that its rows do not contain.
#[derive(Debug, Clone)]
pub struct Import {
    /// The run that the execution becomes.
    pub run: RunId,
    /// The time of the import. No event of the run is later.
    pub now: Timestamp,
    pub entropy: Entropy,
    pub tenant: TenantId,
    pub principal: PrincipalId,
    pub origin: Origin,
    /// W3C trace context of the request.
    pub trace: Option<TraceContext>,
    pub bounds: HostBounds,
    /// The name of the execution; that of the rows where absent.
    pub name: Option<String>,
    /// The input, if the rows do not have it. It has to agree with them.
    pub input: Option<Object>,
    /// Options of the run, but for its name and mode. Without the one that lets branches be under way at once, it is
    /// what fits the rows.
    pub configurable: Object,
    /// Who does the work of activities; what fits the rows where absent.
    pub mode: Option<ActivityMode>,
    /// The models, tools and fixed outputs of this host. It does the activities with them that the rows do not contain.
    pub in_process: Option<Arc<InProcess>>,
}

/// A sub-workflow whose history comes with that of its parent.
#[derive(Debug, Clone)]
pub struct GivenChild<'g> {
    pub plan: &'g Plan,
    /// The same plan, for its parent to start.
    pub startable: Arc<dyn Startable>,
    pub rows: &'g GivenRows,
}

/// What an import decides.
#[derive(Debug)]
pub struct Imported {
    /// The whole log of the run, and the work that is left. Its messages are those that runs of this import have not heard.
    pub decision: Decision<Awp>,
    /// The sub-workflows, parents first.
    pub children: Vec<ImportedChild>,
}

/// A sub-workflow of an import, with the same as its parent.
#[derive(Debug)]
pub struct ImportedChild {
    pub child: NewChild,
    pub decision: Decision<Awp>,
}

/// Why a history cannot become a run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ImportError {
    #[error(transparent)]
    Row(#[from] RowError),
    /// Not about a single row.
    #[error("{0}")]
    Whole(Cow<'static, str>),
    /// The definition decides something else than the rows say.
    #[error("Deterministic replay mismatch at command index {index} (history seq {seq}).")]
    Differs {
        index: usize,
        seq: u64,
        expected: Value,
        actual: Value,
    },
    /// A run with this input and these options cannot start.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// About the history of a sub-workflow.
    #[error("sub-workflow \"{execution}\": {error}")]
    Child { execution: String, error: Box<Self> },
}

impl ImportError {
    fn whole(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Whole(reason.into())
    }

    /// The same of a sub-workflow, as the rows name it. The innermost one is named.
    fn of_child(self, execution: &str) -> Self {
        match self {
            child @ Self::Child { .. } => child,
            error => Self::Child {
                execution: execution.to_owned(),
                error: Box::new(error),
            },
        }
    }
}

/// Decides again what a history says, and those of its sub-workflows.
///
/// # Errors
/// The rows are not those of a run of this definition, or say too little.
pub fn import(
    plan: &Plan,
    given: &GivenRows,
    children: &[GivenChild<'_>],
    import: &Import,
) -> Result<Imported, ImportError> {
    check_definition(plan, given)?;
    for child in children {
        check_definition(child.plan, child.rows)
            .map_err(|error| ImportError::from(error).of_child(&child.rows.execution))?;
    }
    let n_rows = given.rows.len() + children.iter().map(|child| child.rows.rows.len()).sum::<usize>();
    if n_rows > MAX_ROWS {
        let reason =
            format!("histories that are imported together have at most {MAX_ROWS} rows, not {n_rows}");
        return Err(ImportError::whole(reason));
    }
    let executions = Executions::of(plan, given, children)?;
    let inputs = inputs(plan, given, import.input.as_ref())?;
    let spent = Cell::new(0);
    let has_activities = executions.has_event("ActivityRequested");
    // The rows do not say who does the work: it is the mode in which this host would write them.
    let modes = match import.mode {
        Some(mode) => vec![mode],
        None if has_activities => vec![ActivityMode::HostMediated, ActivityMode::InProcess],
        None => vec![ActivityMode::HostMediated],
    };
    // Nor do they say whether branches are under way at once.
    let orders = match import.configurable.contains_key(PARALLEL_ACTIVITIES) {
        false if executions.has_event("ParallelForked") => vec![None, Some(true)],
        true | false => vec![None],
    };
    let mut best: Option<Replayed> = None;
    let mut refused: Option<(usize, ImportError)> = None;
    let offers = offers_activities(plan) || executions.plans().any(offers_activities);
    let goes_on = |replayed: &Replayed| offers && !replayed.decision.run.status.is_terminal();
    for order in orders {
        // The first one in which this host would write the rows as they are.
        let mut same: Option<Replayed> = None;
        for mode in &modes {
            let attempt = Attempt::new(import, &executions, (*mode, order), &spent);
            let replay = Replay::of_root(&attempt, plan, given);
            let replayed = attempt
                .start(plan, inputs.clone())
                .and_then(|start| replay.run(start));
            // Only a worker can have done whatever another engine says.
            let is_possible = import.mode.is_some() || *mode == ActivityMode::HostMediated;
            match replayed {
                Ok(replayed) if replayed.is_same => {
                    // Both modes fit the rows, but the execution goes on differently in each.
                    if same.is_some() {
                        return Err(unsaid_mode());
                    }
                    let is_other = *mode == ActivityMode::InProcess;
                    if import.mode.is_some() || is_other || !goes_on(&replayed) {
                        return Ok(replayed.into());
                    }
                    same = Some(replayed);
                }
                Ok(replayed) if is_possible => best = best.or(Some(replayed)),
                Err(error) if is_possible => {
                    // Where no order fits, the one that went furthest says what is wrong.
                    let n_commands = attempt.n_commands();
                    if refused.as_ref().is_none_or(|(most, _)| n_commands > *most) {
                        refused = Some((n_commands, error));
                    }
                }
                Ok(_) | Err(_) => {}
            }
            if spent.get() > MAX_WORK {
                break;
            }
        }
        // Without an activity, the rows do not say it either.
        match same {
            Some(same) if has_activities => return Ok(same.into()),
            Some(_) => return Err(unsaid_mode()),
            None => {}
        }
    }
    match (best, refused) {
        (Some(best), _) if import.mode.is_none() && !has_activities && goes_on(&best) => Err(unsaid_mode()),
        (Some(best), _) => Ok(best.into()),
        (None, Some((_, error))) => Err(error),
        (None, None) => Err(ImportError::whole("nothing was decided")),
    }
}

/// The rows fit both modes, and the execution goes on differently in each.
fn unsaid_mode() -> ImportError {
    ImportError::whole(
        "the history does not say who does the work of activities: choose an activity_execution_mode, in_process or host_mediated",
    )
}

impl From<Replayed> for Imported {
    fn from(replayed: Replayed) -> Self {
        let Replayed {
            decision,
            is_same: _,
            children,
        } = replayed;
        Self { decision, children }
    }
}

fn offers_activities(plan: &Plan) -> bool {
    plan.definition.nodes.iter().any(|node| node.kind.is_activity())
}

impl GivenRows {
    /// The execution as the rows name it.
    #[must_use]
    pub fn execution(&self) -> &str {
        &self.execution
    }

    /// Whether the rows are of this definition, as far as they say.
    #[must_use]
    pub fn are_of(&self, plan: &Plan) -> bool {
        self.rows[0].text("workflowName") == Some(&plan.definition.name)
            && check_definition(plan, self).is_ok()
    }
}

/// Checks that the rows are of this definition, as far as they say.
fn check_definition(plan: &Plan, given: &GivenRows) -> Result<(), RowError> {
    let definition = &plan.definition;
    for (index, row) in given.rows.iter().enumerate() {
        let is_other = |name: &str, own: &str| row.payload.get(name).is_some_and(|value| value != own);
        let is_started = row.is_event("ExecutionStarted");
        let other = if is_started && is_other("workflowName", &definition.name) {
            Some("workflowName")
        } else if is_started && is_other("workflowVersion", &definition.version) {
            Some("workflowVersion")
        } else if row.is_event("CheckpointWritten") && is_other("definitionHash", plan.version().as_str()) {
            Some("definitionHash")
        } else {
            None
        };
        if let Some(name) = other {
            let reason = format!("{name} is that of another definition");
            return Err(RowError::new(index, reason));
        }
    }
    Ok(())
}

/// The input of the execution: the caller's, else that of the first state.
fn inputs(plan: &Plan, given: &GivenRows, own: Option<&Object>) -> Result<Object, ImportError> {
    let keys = given.rows[0].payload.get("inputKeys").and_then(Value::as_array);
    let keys: Option<BTreeSet<&str>> = keys.and_then(|keys| keys.iter().map(Value::as_str).collect());
    let keys = keys.ok_or_else(|| RowError::new(0, "inputKeys must be an array of strings"))?;
    let first = given.rows.iter().enumerate();
    let mut states = first.filter(|(_, row)| row.is_event("StateUpdated"));
    let first = states.next();
    // Any other first node may have changed the state.
    let is_start = matches!(plan.at(plan.graph.first).kind, Kind::Start { .. });
    if let Some(own) = own {
        if own.len() != keys.len() || !own.keys().all(|key| keys.contains(key.as_str())) {
            let reason = "inputKeys are not those of the input that comes with the history";
            return Err(RowError::new(0, reason).into());
        }
        if let Some((index, row)) = first.filter(|_| is_start)
            && let Some(state) = row.payload.get("state")
            && !agrees(state, &Value::Object(own.clone()))
        {
            let reason = "state is not the input that comes with the history";
            return Err(RowError::new(index, reason).into());
        }
        return Ok(own.clone());
    }
    let mut inputs = Object::new();
    for key in keys {
        let (index, state) = match first {
            Some((index, row)) => (index, row.payload.get("state")),
            None => (0, None),
        };
        let value = state.and_then(|state| state.get(key));
        let reason = match value {
            Some(value) if hides(key, value) || is_redacted(value) => {
                format!("the history hides the input \"{key}\": send the input along")
            }
            Some(value) => {
                inputs.insert(key.to_owned(), value.clone());
                continue;
            }
            None => format!("the history does not have the input \"{key}\": send the input along"),
        };
        return Err(RowError::new(index, reason).into());
    }
    Ok(inputs)
}

fn hidden(index: usize) -> RowError {
    let reason =
        "the history hides a value of this row that the execution goes on with, so it cannot be imported";
    RowError::new(index, reason)
}
