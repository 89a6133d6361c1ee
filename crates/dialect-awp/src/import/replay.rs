//! Decides one execution again, row by row, and its sub-workflows as their rows begin.

use std::cell::Cell;

use serde_json::{Value, json};
use wopr_kernel::{
    Active, CONTENT_TRUST, Command, Decision, Entropy, Event, IMPORTED, Input, KernelEvent, NewChild, Object,
    Phase, Planned, Recorded, Refusal, Run, RunId, RunMessage, RunStatus, Seq, StartRun, Timer, Timestamp,
    UNTRUSTED, Wait, Work, decide,
};

use super::{
    Import, ImportError, ImportedChild, MAX_WORK,
    comparison::Comparison,
    executions::{Begun, Executions},
    next::{self, Next, Outcome},
    outcomes,
};
use crate::{
    decide::{Awp, NoEvent},
    options::{self, ACTIVITY_MODE, ActivityMode, EXECUTION_ID, PARALLEL_ACTIVITIES, is_name_of_host},
    plan::Plan,
    recorded::{ACTIVITIES, AT},
    rows::{GivenRow, GivenRows, RowError, agrees},
    state::State,
};

/// What the executions of an import are decided with: one guess at what their rows do not say.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    import: &'a Import,
    executions: &'a Executions<'a>,
    mode: ActivityMode,
    /// Whether branches are under way at once; as the caller says where absent.
    is_parallel: Option<bool>,
    /// The work that the import has taken so far, in all its attempts.
    spent: &'a Cell<u64>,
    n_decisions: Cell<u32>,
    n_commands: Cell<usize>,
}

/// An execution as far as its rows go, with all below it.
#[derive(Debug)]
pub(super) struct Replayed {
    pub(super) decision: Decision<Awp>,
    /// The rows are the beginning of what this host would write.
    pub(super) is_same: bool,
    /// Parents first.
    pub(super) children: Vec<ImportedChild>,
}

/// A child of an execution that is decided again.
#[derive(Debug)]
pub(super) struct Born {
    pub(super) child: ImportedChild,
    /// As its rows name it.
    pub(super) name: String,
    /// What its parent has yet to hear of it.
    pub(super) unheard: Option<(Seq, RunMessage)>,
    children: Vec<ImportedChild>,
}

impl Born {
    /// The message with which the child has ended, if its parent has not heard it yet.
    pub(super) fn end(&self) -> Option<&RunMessage> {
        let (_, message) = self.unheard.as_ref()?;
        matches!(message, RunMessage::ChildEnded { .. }).then_some(message)
    }
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        import: &'a Import,
        executions: &'a Executions<'a>,
        (mode, is_parallel): (ActivityMode, Option<bool>),
        spent: &'a Cell<u64>,
    ) -> Self {
        Self {
            import,
            executions,
            mode,
            is_parallel,
            spent,
            n_decisions: Cell::new(0),
            n_commands: Cell::new(0),
        }
    }

    /// How many commands of the rows have been decided again.
    pub(super) fn n_commands(&self) -> usize {
        self.n_commands.get()
    }

    /// The start of the root.
    pub(super) fn start(&self, plan: &Plan, inputs: Object) -> Result<Command, ImportError> {
        let Import {
            run: _,
            now: _,
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
            in_process,
        } = self.import;
        let rows = self.executions.root();
        let mut configurable = configurable.clone();
        configurable.insert(ACTIVITY_MODE.to_owned(), self.mode.as_str().into());
        if let Some(is_parallel) = self.is_parallel {
            configurable.insert(PARALLEL_ACTIVITIES.to_owned(), is_parallel.into());
        }
        // A run that nobody has named had the name that its host gave it, and gets another one here.
        let own = Some(&rows.execution).filter(|own| !is_name_of_host(own));
        if let Some(name) = name.as_ref().or(own) {
            configurable.insert(EXECUTION_ID.to_owned(), name.clone().into());
        }
        options::add_in_process(&mut configurable, in_process.as_deref())?;
        Ok(Command::Start(Box::new(StartRun {
            tenant: tenant.clone(),
            principal: principal.clone(),
            origin: origin.clone(),
            inputs,
            configurable,
            tags: Vec::new(),
            // Whoever wrote the file may have written any of it.
            metadata: Object::from_iter([
                (IMPORTED.to_owned(), self.imported(plan, rows)?),
                (CONTENT_TRUST.to_owned(), UNTRUSTED.into()),
            ]),
            context: None,
            trace: trace.clone(),
            parent: None,
            bounds: *bounds,
        })))
    }

    /// Where the log of a run comes from.
    fn imported(&self, plan: &Plan, rows: &GivenRows) -> Result<Value, RowError> {
        let mut imported = json!({
            "executionId": rows.execution,
            "rows": rows.rows.len(),
            AT: self.import.now.to_text(),
        });
        if self.mode == ActivityMode::InProcess {
            imported[ACTIVITIES] = json!(outcomes::activities(plan, rows)?);
        }
        Ok(imported)
    }

    /// The entropy of the next decision.
    fn entropy(&self) -> Entropy {
        let n = self.n_decisions.get();
        self.n_decisions.set(n + 1);
        let mut entropy = [0; 16];
        entropy[..10].copy_from_slice(&self.import.entropy.derive("import", n));
        Entropy(entropy)
    }

    /// Counts work towards what the import may take.
    fn spend(&self, units: u64) -> Result<(), ImportError> {
        self.spent.set(self.spent.get().saturating_add(units));
        match self.spent.get() > MAX_WORK {
            true => Err(ImportError::whole(
                "deciding the history again is more work than an import may do",
            )),
            false => Ok(()),
        }
    }
}

/// An execution that is decided again.
pub(super) struct Replay<'a> {
    attempt: &'a Attempt<'a>,
    plan: &'a Plan,
    given: &'a GivenRows,
    id: &'a RunId,
    run: Box<Run>,
    state: State,
    events: Vec<Recorded<NoEvent>>,
    work: Work,
    comparison: Comparison<'a>,
    /// The first row of which nothing was given yet.
    cursor: usize,
    /// The time of the last decision.
    at: Timestamp,
    /// The children that the rows start.
    begun: Vec<Begun>,
    /// Those that have started, in that order.
    born: Vec<Born>,
    is_same: bool,
}

impl<'a> Replay<'a> {
    pub(super) fn of_root(attempt: &'a Attempt<'a>, plan: &'a Plan, given: &'a GivenRows) -> Self {
        Self::of(attempt, (plan, given), &attempt.import.run, Timestamp::default())
    }

    fn of(
        attempt: &'a Attempt<'a>,
        (plan, given): (&'a Plan, &'a GivenRows),
        id: &'a RunId,
        at: Timestamp,
    ) -> Self {
        Self {
            attempt,
            plan,
            given,
            id,
            run: Box::default(),
            state: State::default(),
            events: Vec::new(),
            work: Work::default(),
            comparison: Comparison::new(plan, id, given),
            cursor: 0,
            at,
            begun: attempt.executions.begun(given),
            born: Vec::new(),
            is_same: true,
        }
    }

    /// Decides all that the rows say, from the start on.
    pub(super) fn run(mut self, start: Command) -> Result<Replayed, ImportError> {
        self.decide(0, start)?;
        while !self.run.status.is_terminal() && !self.comparison.is_beyond() {
            let is_cut = |(timer, _): &(Timer, Timestamp)| *timer == Timer::Continue;
            if self.work.timers_set.iter().any(is_cut) {
                let row = self.comparison.next().unwrap_or(self.comparison.last());
                self.decide(row, Command::Timer(Timer::Continue))?;
                continue;
            }
            let next = Next {
                plan: self.plan,
                given: self.given,
                mode: self.attempt.mode,
                run: &self.run,
                comparison: &self.comparison,
                cursor: self.cursor,
                born: &self.born,
            };
            let Some(outcome) = next.find()? else {
                break;
            };
            let Outcome {
                row,
                end,
                command,
                will_retry,
                heard,
            } = outcome;
            self.decide(row, command)?;
            self.cursor = end;
            if let Some(child) = heard {
                let born = self.born.iter_mut().find(|born| born.child.child.run == child);
                born.into_iter().for_each(|born| born.unheard = None);
            }
            if let Some((step, will_retry)) = will_retry
                && next::waits_for_retry(self.plan, &self.run, &step) != will_retry
            {
                let reason = "willRetry is not what the retry policy of the node says";
                return Err(RowError::new(row, reason).into());
            }
        }
        self.check_end()?;
        Ok(self.finish())
    }

    /// Gives the run what a row says, at its time.
    fn decide(&mut self, row: usize, command: Command) -> Result<(), ImportError> {
        let attempt = self.attempt;
        // Times never go back, and none is later than that of the import.
        let at = self.given.rows[row].at.min(attempt.import.now);
        self.at = self.at.max(at);
        let left = self.begun.get(self.born.len()..).unwrap_or_default();
        let catalog = attempt
            .executions
            .offered(left, self.given, self.comparison.next());
        let input = Input {
            now: self.at,
            entropy: attempt.entropy(),
            run: self.id,
            catalog: &catalog,
        };
        let (run, state) = (std::mem::take(&mut self.run), std::mem::take(&mut self.state));
        let decided = decide::<Awp>(run, state, self.plan, command, &input, None);
        let (decision, units) = decided.map_err(|refusal| match refusal {
            Refusal::InvalidInput { .. } | Refusal::OutOfBounds { .. } => ImportError::Refused(refusal),
            other => RowError::new(row, format!("this host cannot {other}")).into(),
        })?;
        catalog.check()?;
        // The rows that follow from the end of a node hold two copies of the state.
        let ends = decision.events.iter();
        let ends =
            ends.filter(|event| matches!(event.event, Event::Kernel(KernelEvent::NodeCompleted { .. })));
        let copies = 2 * ends.count() as u64 * decision.state.weight();
        attempt.spend(units.saturating_add(copies))?;
        let n_commands = self.comparison.n_commands();
        let mut events = decision.events.iter();
        let compared = events.try_for_each(|event| self.comparison.record(event.as_ref()));
        let more = self.comparison.n_commands() - n_commands;
        attempt.n_commands.set(attempt.n_commands.get() + more);
        compared?;
        if catalog.has_missed() && self.comparison.is_beyond() {
            return Err(starts_more());
        }
        self.run = decision.run;
        self.state = decision.state;
        self.events.extend(decision.events);
        let mut work = decision.work;
        let children = std::mem::take(&mut work.children);
        self.work.then(work);
        for child in children {
            self.bear(child)?;
        }
        Ok(())
    }

    /// Decides a child again that the run has started.
    fn bear(&mut self, child: NewChild) -> Result<(), ImportError> {
        let begun = self.begun.get(self.born.len()).copied();
        let Some(begun) = begun.filter(|begun| begun.row <= self.comparison.last()) else {
            return Err(starts_more());
        };
        let given = self.attempt.executions.child(begun);
        if child.workflow != *given.plan.id() || child.version != *given.plan.version() {
            let reason = "childExecutionId is that of another sub-workflow than the node starts";
            return Err(RowError::new(begun.row, reason).into());
        }
        let name = given.rows.execution.clone();
        let born = self.decided(child, given.plan, given.rows);
        self.born.push(born.map_err(|error| error.of_child(&name))?);
        Ok(())
    }

    fn decided(&mut self, mut child: NewChild, plan: &Plan, rows: &GivenRows) -> Result<Born, ImportError> {
        super::inputs(plan, rows, Some(&child.start.inputs))?;
        let imported = self.attempt.imported(plan, rows)?;
        child.start.metadata.insert(IMPORTED.to_owned(), imported);
        let replay = Replay::of(self.attempt, (plan, rows), &child.run, self.at);
        let start = Command::Start(Box::new(child.start.clone()));
        let Replayed {
            mut decision,
            is_same,
            children,
        } = replay.run(start)?;
        self.is_same &= is_same;
        let messages = std::mem::take(&mut decision.work.messages);
        let (own, others): (Vec<_>, _) = messages.into_iter().partition(|(to, ..)| to == self.id);
        decision.work.messages = others;
        // What it has told of before does not matter any more.
        let last = own.into_iter().next_back();
        let unheard = last.and_then(|(_, seq, message)| match message {
            RunMessage::ChildWaiting { .. } | RunMessage::ChildEnded { .. } => Some((seq, message)),
            RunMessage::ChildResumed { .. } | RunMessage::Start(_) | RunMessage::ParentEnded { .. } => None,
        });
        Ok(Born {
            child: ImportedChild { child, decision },
            name: rows.execution.clone(),
            unheard,
            children,
        })
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

    fn finish(self) -> Replayed {
        let Self {
            id,
            run,
            state,
            events,
            mut work,
            comparison,
            born,
            is_same,
            ..
        } = self;
        // Nothing of this run was under way on this host.
        work.settled.clear();
        work.timers_cleared.clear();
        // A child that has ended hears nothing more.
        let ended = |to: &RunId| {
            let child = born.iter().find(|born| born.child.child.run == *to);
            child.is_some_and(|born| born.child.decision.run.status.is_terminal())
        };
        work.messages.retain(|(to, ..)| !ended(to));
        let mut children = Vec::new();
        for mut born in born {
            let child = &born.child.child.run;
            if let Some((seq, message)) = born.unheard.take().filter(|_| waits_for(&run, child)) {
                born.child.decision.work.messages.push((id.clone(), seq, message));
            }
            children.push(born.child);
            children.extend(born.children);
        }
        let is_same = is_same && comparison.is_same();
        let decision = Decision {
            run,
            state,
            events,
            work,
            heard: 0,
        };
        Replayed {
            decision,
            is_same,
            children,
        }
    }
}

/// Whether a step of a run waits for a child.
fn waits_for(run: &Run, child: &RunId) -> bool {
    run.nodes.iter().any(|node| match &node.phase {
        Phase::Active(Active {
            wait: Wait::Children(members),
            ..
        }) => members.iter().any(|member| member.run == *child),
        Phase::Active(_)
        | Phase::Idle
        | Phase::Completed
        | Phase::Failed(_)
        | Phase::Skipped
        | Phase::Cancelled => false,
    })
}

fn starts_more() -> ImportError {
    let reason =
        "the execution goes on with a sub-workflow, which an import cannot start: export it again later";
    ImportError::whole(reason)
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
