//! Makes a run of the history of an execution that another engine, or another host, has begun.
//!
//! The rows say what the execution was given: its input, the outcomes of activities, answers, signals, and when timers
//! fired. The run is given all of it again, at the recorded times, and decides anew. What it decides has to be what the rows
//! say, so a history that was changed on the way is refused, and the log of the run is one like any other. One decision
//! results: the whole log, and the work that is left.
//!
//! ```text
//!   rows --> what was given --> decide, decide, ... --> log --> rows --> compared with those given
//! ```

mod comparison;
mod next;

use std::{
    borrow::Cow,
    cell::Cell,
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::{Value, json};
use wopr_kernel::{
    CONTENT_TRUST, Catalog, Command, Decision, Entropy, Event, HostBounds, Input, KernelEvent, Object,
    Origin, Planned, PrincipalId, Recorded, Refusal, Run, RunId, RunStatus, StartRun, Startable, TenantId,
    Timer, Timestamp, UNTRUSTED, Work, WorkflowId, cost::MAX_DECISION_WORK, decide,
};

use self::{
    comparison::Comparison,
    next::{Next, Outcome},
};
use crate::{
    decide::{Awp, NoEvent},
    definition::Kind,
    options::{ACTIVITY_MODE, ActivityMode, EXECUTION_ID, MOCK_OUTPUTS, is_name_of_host},
    plan::Plan,
    rows::{GivenRow, GivenRows, RowError, agrees, hides, is_redacted},
    state::State,
};

/// The most work that the decisions of one import may take.
const MAX_WORK: u64 = 16 * MAX_DECISION_WORK;
/// The member of a run's metadata that says where its log comes from.
const IMPORTED: &str = "imported";

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
    pub trace: Option<String>,
    pub bounds: HostBounds,
    /// The name of the execution; that of the rows where absent.
    pub name: Option<String>,
    /// The input, if the rows do not have it. It has to agree with them.
    pub input: Option<Object>,
    /// Options of the run, but for its name and mode.
    pub configurable: Object,
    /// Who does the work of activities; what fits the rows where absent.
    pub mode: Option<ActivityMode>,
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
}

impl ImportError {
    fn whole(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Whole(reason.into())
    }
}

/// Decides again what a history says.
///
/// # Errors
/// The rows are not those of a run of this definition, or say too little.
pub fn import(plan: &Plan, given: &GivenRows, import: &Import) -> Result<Decision<Awp>, ImportError> {
    check_definition(plan, given)?;
    check_children(given)?;
    let inputs = inputs(plan, given, import.input.as_ref())?;
    let spent = Cell::new(0);
    if let Some(mode) = import.mode {
        return Replay::of(plan, given, import, (mode, &spent), inputs)
            .run()
            .map(|(decision, _)| decision);
    }
    // The rows do not say who does the work: it is the mode in which this host would write them. A worker can have done
    // whatever another engine says.
    let hosted = (ActivityMode::HostMediated, &spent);
    let hosted = Replay::of(plan, given, import, hosted, inputs.clone()).run();
    if !has_activities(given) {
        let (decision, _) = hosted?;
        // The same rows are written in either mode, and what follows is not the same.
        let is_open = !decision.run.status.is_terminal() && offers_activities(plan);
        return match is_open {
            true => Err(ImportError::whole(
                "the history does not say who does the work of activities: choose an activity_execution_mode",
            )),
            false => Ok(decision),
        };
    }
    if hosted.as_ref().is_ok_and(|(_, is_same)| *is_same) {
        return hosted.map(|(decision, _)| decision);
    }
    match Replay::of(plan, given, import, (ActivityMode::InProcess, &spent), inputs).run() {
        Ok((decision, true)) => Ok(decision),
        Ok((_, false)) | Err(_) => hosted.map(|(decision, _)| decision),
    }
}

fn has_activities(given: &GivenRows) -> bool {
    given.rows.iter().any(|row| row.is_event("ActivityRequested"))
}

fn offers_activities(plan: &Plan) -> bool {
    plan.definition.nodes.iter().any(|node| match node.kind {
        Kind::Step | Kind::Llm { .. } | Kind::Tool | Kind::Delegate { .. } => true,
        Kind::Start { .. }
        | Kind::End { .. }
        | Kind::SetState(_)
        | Kind::Switch { .. }
        | Kind::Parallel { .. }
        | Kind::Wait(_)
        | Kind::Interrupt { .. }
        | Kind::Subworkflow { .. } => false,
    })
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

fn check_children(given: &GivenRows) -> Result<(), RowError> {
    let mut rows = given.rows.iter().enumerate();
    let child =
        rows.find(|(_, row)| row.is_command("StartSubworkflow") || row.is_event("SubworkflowStarted"));
    let Some((index, row)) = child else { return Ok(()) };
    let child = row.text("childExecutionId").unwrap_or_default();
    let node = row.node().unwrap_or_default();
    let reason = format!(
        "node \"{node}\" has started the sub-workflow \"{child}\": a history with sub-workflows cannot be imported"
    );
    Err(RowError::new(index, reason))
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

/// A run that is decided again, in one mode.
struct Replay<'a> {
    plan: &'a Plan,
    given: &'a GivenRows,
    import: &'a Import,
    mode: ActivityMode,
    inputs: Object,
    run: Run,
    state: State,
    events: Vec<Recorded<NoEvent>>,
    work: Work,
    comparison: Comparison<'a>,
    /// The first row of which nothing was given yet.
    cursor: usize,
    /// The time of the last decision.
    at: Timestamp,
    n_decisions: u32,
    /// The work that the import has taken so far, in all its modes.
    spent: &'a Cell<u64>,
}

impl<'a> Replay<'a> {
    fn of(
        plan: &'a Plan,
        given: &'a GivenRows,
        import: &'a Import,
        (mode, spent): (ActivityMode, &'a Cell<u64>),
        inputs: Object,
    ) -> Self {
        Self {
            plan,
            given,
            import,
            mode,
            inputs,
            run: Run::default(),
            state: State::default(),
            events: Vec::new(),
            work: Work::default(),
            comparison: Comparison::new(plan, &import.run, given),
            cursor: 0,
            at: Timestamp::default(),
            n_decisions: 0,
            spent,
        }
    }

    /// The decision, and whether the rows are the beginning of what this host would write.
    fn run(mut self) -> Result<(Decision<Awp>, bool), ImportError> {
        let start = self.start()?;
        self.decide(0, start)?;
        while !self.run.status.is_terminal() && !self.comparison.is_beyond() {
            if self
                .work
                .timers_set
                .iter()
                .any(|(timer, _)| *timer == Timer::Continue)
            {
                self.decide(self.comparison.last(), Command::Timer(Timer::Continue))?;
                continue;
            }
            let next = Next {
                plan: self.plan,
                given: self.given,
                mode: self.mode,
                run: &self.run,
                comparison: &self.comparison,
                cursor: self.cursor,
            };
            let Some(Outcome {
                row,
                end,
                commands,
                will_retry,
            }) = next.find()?
            else {
                break;
            };
            for command in commands {
                self.decide(row, command)?;
            }
            self.cursor = end;
            if let Some(will_retry) = will_retry {
                self.check_retry(row, will_retry)?;
            }
        }
        self.check_end()?;
        let Self {
            run,
            state,
            events,
            mut work,
            comparison,
            ..
        } = self;
        // Nothing of this run was under way on this host.
        work.settled.clear();
        work.timers_cleared.clear();
        let decision = Decision {
            run,
            state,
            events,
            work,
            heard: 0,
        };
        Ok((decision, comparison.is_same()))
    }

    fn start(&self) -> Result<Command, ImportError> {
        let Import {
            run: _,
            now,
            entropy: _,
            tenant,
            principal,
            origin,
            trace,
            bounds,
            name,
            input: _,
            configurable,
            mode: _,
        } = self.import;
        let mut configurable = configurable.clone();
        configurable.insert(ACTIVITY_MODE.to_owned(), self.mode.as_str().into());
        // A run that nobody has named had the name that its host gave it, and gets another one here.
        let own = Some(&self.given.execution).filter(|own| !is_name_of_host(own));
        if let Some(name) = name.as_ref().or(own) {
            configurable.insert(EXECUTION_ID.to_owned(), name.clone().into());
        }
        if self.mode == ActivityMode::InProcess {
            self.mock(&mut configurable)?;
        }
        let imported = json!({
            "executionId": self.given.execution,
            "rows": self.given.rows.len(),
            "at": now.to_text(),
        });
        Ok(Command::Start(Box::new(StartRun {
            tenant: tenant.clone(),
            principal: principal.clone(),
            origin: origin.clone(),
            inputs: self.inputs.clone(),
            configurable,
            tags: Vec::new(),
            // Whoever wrote the file may have written any of it.
            metadata: Object::from_iter([
                (IMPORTED.to_owned(), imported),
                (CONTENT_TRUST.to_owned(), UNTRUSTED.into()),
            ]),
            context: None,
            trace: trace.clone(),
            parent: None,
            bounds: *bounds,
        })))
    }

    /// Has the mock give what the activities of the rows gave.
    fn mock(&self, configurable: &mut Object) -> Result<(), ImportError> {
        let outputs = configurable
            .entry(MOCK_OUTPUTS)
            .or_insert_with(|| Value::Object(Object::new()));
        let Value::Object(outputs) = outputs else {
            // The start refuses it.
            return Ok(());
        };
        for (index, row) in self.given.rows.iter().enumerate() {
            let Some(node) = row.node().filter(|_| row.is_event("ActivityCompleted")) else {
                continue;
            };
            let position = self
                .plan
                .definition
                .nodes
                .iter()
                .find(|own| own.id.as_str() == node);
            if position.is_none_or(|own| matches!(own.kind, Kind::Delegate { .. })) {
                continue;
            }
            let result = row.payload.get("result").cloned().unwrap_or_default();
            if is_redacted(&result) {
                return Err(hidden(index).into());
            }
            let known = outputs.entry(node).or_insert_with(|| result.clone());
            if !agrees(&result, known) {
                let reason = format!(
                    "in process, node \"{node}\" has one result, and the history has another one: import it as host_mediated"
                );
                return Err(RowError::new(index, reason).into());
            }
        }
        Ok(())
    }

    /// Gives the run what a row says, at its time.
    fn decide(&mut self, row: usize, command: Command) -> Result<(), ImportError> {
        // Times never go back, and none is later than that of the import.
        let at = self.given.rows[row].at.min(self.import.now);
        self.at = self.at.max(at);
        let mut entropy = [0; 16];
        entropy[..10].copy_from_slice(&self.import.entropy.derive("import", self.n_decisions));
        self.n_decisions += 1;
        let catalog = NoChildren::default();
        let input = Input {
            now: self.at,
            entropy: Entropy(entropy),
            run: &self.import.run,
            catalog: &catalog,
        };
        let (run, state) = (std::mem::take(&mut self.run), std::mem::take(&mut self.state));
        let decided = decide::<Awp>(run, state, self.plan, command, &input, None);
        let (decision, units) = decided.map_err(|refusal| match refusal {
            Refusal::InvalidInput { .. } | Refusal::OutOfBounds { .. } => ImportError::Refused(refusal),
            other => RowError::new(row, format!("this host cannot {other}")).into(),
        })?;
        if catalog.was_asked() {
            let reason = "the execution goes on with a sub-workflow, which an import cannot start: export it again later";
            return Err(ImportError::whole(reason));
        }
        // The rows that follow from the end of a node hold two copies of the state.
        let ends = decision.events.iter();
        let ends =
            ends.filter(|event| matches!(event.event, Event::Kernel(KernelEvent::NodeCompleted { .. })));
        let copies = 2 * ends.count() as u64 * decision.state.weight();
        self.spent
            .set(self.spent.get().saturating_add(units).saturating_add(copies));
        if self.spent.get() > MAX_WORK {
            return Err(ImportError::whole(
                "deciding the history again is more work than an import may do",
            ));
        }
        for event in &decision.events {
            self.comparison.record(event.as_ref())?;
        }
        self.run = decision.run;
        self.state = decision.state;
        self.events.extend(decision.events);
        self.work.then(decision.work);
        Ok(())
    }

    fn check_retry(&self, row: usize, will_retry: bool) -> Result<(), RowError> {
        let retries = next::waits_for_retry(&self.run);
        match retries == will_retry {
            true => Ok(()),
            false => Err(RowError::new(
                row,
                "willRetry is not what the retry policy of the node says",
            )),
        }
    }

    /// Checks that the rows end as the run does.
    fn check_end(&self) -> Result<(), ImportError> {
        let status = self.run.status;
        if let Some(next) = self.comparison.next().filter(|_| !self.comparison.is_beyond()) {
            return Err(self.comparison.differs(next, None));
        }
        let rows = self.given.rows.iter().enumerate().skip(self.comparison.last());
        let mut ends = rows.filter_map(|(index, row)| Some((index, row, end(row)?)));
        let Some((index, row, said)) = ends.next_back() else {
            return Ok(());
        };
        if said != status {
            let reason = format!(
                "the execution has ended, and decided again from the rows before it is {}",
                status.as_str()
            );
            return Err(RowError::new(index, reason).into());
        }
        let result = self
            .run
            .outputs
            .as_ref()
            .and_then(|outputs| outputs.get("result"));
        let said = row.payload.get("result").unwrap_or(&Value::Null);
        if status == RunStatus::Completed && !agrees(said, result.unwrap_or(&Value::Null)) {
            let reason = "result is not what the definition makes of the state";
            return Err(RowError::new(index, reason).into());
        }
        Ok(())
    }
}

/// The status that a row says the execution has ended with.
fn end(row: &GivenRow) -> Option<RunStatus> {
    if row.is_event("ExecutionCompleted") {
        Some(RunStatus::Completed)
    } else if row.is_event("ExecutionFailed") {
        Some(RunStatus::Failed)
    } else if row.is_event("ExecutionCancelled") {
        Some(RunStatus::Cancelled)
    } else {
        None
    }
}

fn hidden(index: usize) -> RowError {
    let reason =
        "the history hides a value of this row that the execution goes on with, so it cannot be imported";
    RowError::new(index, reason)
}

/// The catalog of a run that may not start children.
#[derive(Debug, Default)]
struct NoChildren(AtomicBool);

impl NoChildren {
    fn was_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Catalog for NoChildren {
    fn current(&self, _workflow: &WorkflowId) -> Option<Arc<dyn Startable>> {
        self.0.store(true, Ordering::Relaxed);
        None
    }
}
