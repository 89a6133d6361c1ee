//! What a caller may choose for one run, besides its inputs.

use serde_json::Value;
use wopr_kernel::{Object, Refusal, RunId, RunStarted, StepId};

use crate::in_process::InProcess;

/// Who does the work of activities, as the caller of a run says under `activityExecutionMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivityMode {
    /// A worker, which submits the outcome.
    HostMediated,
    /// This host, with what it is configured with and the outputs of `configurable.mockOutputs`.
    InProcess,
}

/// The option that says who does the work of activities.
pub const ACTIVITY_MODE: &str = "activityExecutionMode";
/// The option that lets all branches of a parallel node be under way at once.
pub const PARALLEL_ACTIVITIES: &str = "parallelActivities";
/// The outputs that activities have in process, by node id; an empty object for all others.
pub(crate) const MOCK_OUTPUTS: &str = "mockOutputs";

/// What the host does activities with in process, as the run was started with; mocks where absent. The host adds it.
pub(crate) const IN_PROCESS: &str = "inProcess";

/// The id by which the caller names the run, in histories and to agents; the run's own id where absent.
pub const EXECUTION_ID: &str = "executionId";
/// Longest such id, in bytes.
const MAX_EXECUTION_ID: usize = 512;

/// The tenant of a host that knows no other one.
const DEFAULT_TENANT: &str = "default";

/// Between the id of an execution and the name of the node that starts a child.
pub const CHILD_MARK: &str = ":sub:";

/// The options of a run that the kernel does not know.
const NAMES: [&str; 5] = [
    ACTIVITY_MODE,
    PARALLEL_ACTIVITIES,
    MOCK_OUTPUTS,
    EXECUTION_ID,
    IN_PROCESS,
];
/// Those that it does.
const OF_THE_KERNEL: [&str; 2] = ["recursionLimit", "runTimeoutMs"];

impl ActivityMode {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HostMediated => "host_mediated",
            Self::InProcess => "in_process",
        }
    }

    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::HostMediated, Self::InProcess]
            .into_iter()
            .find(|mode| mode.as_str() == word)
    }

    /// The mode of a run with these options.
    #[must_use]
    pub fn of(configurable: &Object) -> Self {
        let word = configurable.get(ACTIVITY_MODE).and_then(Value::as_str);
        word.and_then(Self::parse).unwrap_or(Self::HostMediated)
    }
}

/// Whether the branches of parallel nodes are under way at once in a run with these options.
#[must_use]
pub fn is_parallel(configurable: &Object) -> bool {
    configurable.get(PARALLEL_ACTIVITIES) == Some(&Value::Bool(true))
}

/// Checks the options of a new run.
pub(crate) fn check(configurable: &Object) -> Result<(), Refusal> {
    let invalid = |field: &str, rule: &str| {
        Err(Refusal::InvalidInput {
            field: format!("configurable.{field}"),
            rule: rule.to_owned(),
        })
    };
    for (name, value) in configurable {
        let is_known = NAMES.contains(&name.as_str()) || OF_THE_KERNEL.contains(&name.as_str());
        if !is_known {
            return invalid(name, "is not known to this language");
        }
        if name == ACTIVITY_MODE && value.as_str().and_then(ActivityMode::parse).is_none() {
            return invalid(name, "must be host_mediated or in_process");
        }
        if name == PARALLEL_ACTIVITIES && !value.is_boolean() {
            return invalid(name, "must be true or false");
        }
        let is_id =
            |id: &str| (1..=MAX_EXECUTION_ID).contains(&id.len()) && !id.chars().any(char::is_control);
        if name == EXECUTION_ID && !value.as_str().is_some_and(is_id) {
            return invalid(name, "must be 1 to 512 bytes without control characters");
        }
        let is_outputs = |value: &Value| {
            value
                .as_object()
                .is_some_and(|outputs| outputs.values().all(Value::is_object))
        };
        if name == MOCK_OUTPUTS && !is_outputs(value) {
            return invalid(name, "must be an object with an object for each node id");
        }
        if name == IN_PROCESS && InProcess::read(value).is_none() {
            return invalid(name, "must say what the host does activities with");
        }
    }
    Ok(())
}

/// Adds what the host does activities with to the options that a caller has given a new run.
///
/// # Errors
/// The caller has said it, which only the host may.
pub fn add_in_process(configurable: &mut Object, host: Option<&InProcess>) -> Result<(), Refusal> {
    if configurable.contains_key(IN_PROCESS) {
        return Err(Refusal::InvalidInput {
            field: format!("configurable.{IN_PROCESS}"),
            rule: "is not known to this language".to_owned(),
        });
    }
    if let Some(host) = host
        && ActivityMode::of(configurable) == ActivityMode::InProcess
    {
        configurable.insert(IN_PROCESS.to_owned(), host.to_value());
    }
    Ok(())
}

/// The name that these options give a new run, if they give it one. The names of children and of runs that nobody has
/// named are the host's to give.
///
/// # Errors
/// The caller may not give this name.
pub fn alias(configurable: &Object) -> Result<Option<&str>, Refusal> {
    let Some(name) = configurable.get(EXECUTION_ID).and_then(Value::as_str) else {
        return Ok(None);
    };
    let rule = if name.contains(CHILD_MARK) {
        format!("must not contain {CHILD_MARK}, which is in the names of children")
    } else if is_name_of_host(name) {
        "must not have the form of a run id".to_owned()
    } else {
        return Ok(Some(name));
    };
    Err(Refusal::InvalidInput {
        field: format!("configurable.{EXECUTION_ID}"),
        rule,
    })
}

/// Whether a name has the form of the ids that the host makes: `run_` and 32 hexadecimal digits.
pub(crate) fn is_name_of_host(name: &str) -> bool {
    name.strip_prefix("run_")
        .is_some_and(|digits| digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// Takes the name of its source from a branch. It is another run: a child or a task of an agent that it names after itself
/// must not be taken for one of its source.
pub(crate) fn drop_name(configurable: &mut Object) {
    configurable.remove(EXECUTION_ID);
}

/// The name that a parent with a name gives to a child with these options.
#[must_use]
pub fn child_alias(configurable: &Object) -> Option<&str> {
    configurable.get(EXECUTION_ID)?.as_str()
}

/// The id by which the caller names a run.
pub(crate) fn execution_id(configurable: &Object, run: &RunId) -> String {
    let given = configurable.get(EXECUTION_ID).and_then(Value::as_str);
    given.map_or_else(|| run.to_string(), str::to_owned)
}

/// The id by which agents know a run. Tenants name their executions without knowing each other, and an agent that all of
/// them use would take one's task for another's, so only the default tenant, which is that of a host with one tenant, names
/// its executions to agents. Others use the id of the run, which nobody else has.
pub(crate) fn id_for_agents(started: &RunStarted, run: &RunId) -> String {
    match started.tenant.as_str() {
        DEFAULT_TENANT => execution_id(&started.configurable, run),
        _ => run.to_string(),
    }
}

/// The correlation id of the agent's task. Later visits of a loop have one of their own, and so have the later attempts
/// of a host: each is work of its own, and an agent that recognizes the id would answer with the task that has failed.
/// In process, a repeated attempt repeats a request whose answer was lost, so there it is attempt 0 always.
pub(crate) fn correlation_id(execution: &str, step: &StepId, attempt: u32) -> String {
    match attempt {
        0 => format!("{execution}:delegate:{}", visit(step)),
        n => format!(
            "{execution}:delegate:{}#{}.{}",
            step.node,
            step.ordinal + 1,
            n + 1
        ),
    }
}

/// The id by which a child run is named, if its parent's caller has named the parent.
#[must_use]
pub fn child_execution_id(execution: &str, step: &StepId) -> String {
    format!("{execution}{CHILD_MARK}{}", visit(step))
}

fn visit(step: &StepId) -> String {
    match step.ordinal {
        0 => step.node.to_string(),
        n => format!("{}#{}", step.node, n + 1),
    }
}
