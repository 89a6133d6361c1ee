//! Drives runs through the kernel in memory.
//!
//! A script is a host without a store: it keeps the log, timers, effects and messages of every run, and a
//! manual clock. Each decision is made twice, folded from the log, encoded and decoded, and checked against
//! the invariants; any difference fails the test at once.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use serde_json::{Value, json};
use wopr_core::{
    Authority, CancelledCall, Catalog, Command, Decision, DrainPolicy, Effect, Entropy, Failure, Fork,
    ForkMode, HostBounds, Imported, ImportedChild, Input, NodeId, Object, Origin, Overlay, Plan, PrincipalId,
    Recorded, Refusal, RefusalDivergence, Resolve, Run, RunId, RunMessage, Seq, StartFork, StartRun,
    Startable, TenantId, Timer, Timestamp, WorkflowId,
    awp::Import,
    decide, decide_fork, format,
    invariant::{self, ChildStatus, LogChecker, OutstandingWork, Violation},
};

use crate::{Workflow, handoffs::note_handoff, line};

/// Longer logs are folded only from the last decision; folding them from the start each time would be
/// quadratic.
const WHOLE_LOG: usize = 2_000;

/// Runs in memory. Run 0 is the started one; children follow in the order of their creation.
#[derive(Debug, Clone)]
pub struct Script {
    workflows: Workflows,
    root: Arc<Plan>,
    runs: Vec<Hosted>,
    now: Timestamp,
    n_decisions: u64,
    mail: VecDeque<Mail>,
    /// The messages in the current command.
    in_hand: VecDeque<Mail>,
    holds_mail: bool,
}

/// A message from one run to another.
#[derive(Debug, Clone)]
struct Mail {
    to: RunId,
    from: RunId,
    message: RunMessage,
}

#[derive(Debug, Clone, Default)]
struct Workflows(HashMap<WorkflowId, Arc<Plan>>);

impl Catalog for Workflows {
    fn current(&self, workflow: &WorkflowId) -> Option<Arc<dyn Startable>> {
        let plan = self.0.get(workflow)?;
        Some(Arc::clone(plan) as Arc<dyn Startable>)
    }
}

#[derive(Debug, Clone)]
struct Hosted {
    id: RunId,
    /// The run that it is a fork of.
    source: Option<usize>,
    plan: Arc<Plan>,
    run: Run,
    log: Vec<Recorded>,
    checker: LogChecker,
    outstanding: OutstandingWork,
    timers: BTreeMap<String, (Timestamp, Timer)>,
    effects: Vec<Effect>,
    cancelled: Vec<CancelledCall>,
    printed: usize,
}

impl Script {
    /// Creates a host of these workflows. [`Self::start`] starts a run of the first one.
    #[must_use]
    pub fn of(workflows: &[&Workflow]) -> Self {
        Self::of_plans(workflows.iter().map(|workflow| workflow.plan()))
    }

    /// Creates a host of these plans. [`Self::start`] starts a run of the first one.
    ///
    /// # Panics
    /// If there are no plans.
    #[must_use]
    pub fn of_plans(plans: impl IntoIterator<Item = Arc<Plan>>) -> Self {
        let plans: Vec<_> = plans.into_iter().collect();
        Self {
            root: plans[0].clone(),
            workflows: Workflows(plans.into_iter().map(|plan| (plan.id().clone(), plan)).collect()),
            runs: Vec::new(),
            now: Timestamp::from_millis(1_000_000),
            n_decisions: 0,
            mail: VecDeque::new(),
            in_hand: VecDeque::new(),
            holds_mail: false,
        }
    }

    /// Creates a host of one workflow and starts its run without inputs.
    #[must_use]
    pub fn started(workflow: &Workflow) -> Self {
        Self::of(&[workflow]).start(json!({}))
    }

    /// Start parameters with these inputs.
    #[must_use]
    pub fn start_run(inputs: Value) -> StartRun {
        StartRun {
            tenant: TenantId::parse("tenant").unwrap(),
            principal: PrincipalId::parse("ada").unwrap(),
            origin: Origin::new("rest"),
            inputs: object(inputs),
            configurable: Object::new(),
            tags: Vec::new(),
            metadata: Object::new(),
            context: None,
            trace: None,
            parent: None,
            bounds: HostBounds {
                node_executions: 100_000,
                log_bytes: 64 << 20,
                run_duration_ms: None,
            },
        }
    }

    /// Forks a run, and lets the fork catch up with its source. Returns the number of the fork.
    ///
    /// # Errors
    /// The kernel's refusal; there is no fork then.
    pub fn fork(&mut self, source: usize, mode: ForkMode, from: u64) -> Result<usize, Refusal> {
        self.fork_with(source, mode, from, None)
    }

    /// Like [`Self::fork`], with other parameters of the run.
    pub fn fork_with(
        &mut self,
        source: usize,
        mode: ForkMode,
        from: u64,
        overlay: Option<Overlay>,
    ) -> Result<usize, Refusal> {
        self.fork_as(source, mode, from, overlay, None)
    }

    /// Replays a run whose model, asked again, gave another kind of reply.
    ///
    /// # Errors
    /// The kernel's refusal; there is no fork then.
    pub fn replay_refused(
        &mut self,
        source: usize,
        from: u64,
        refusal: RefusalDivergence,
    ) -> Result<usize, Refusal> {
        self.fork_as(source, ForkMode::Replay, from, None, Some(Box::new(refusal)))
    }

    fn fork_as(
        &mut self,
        source: usize,
        mode: ForkMode,
        from: u64,
        overlay: Option<Overlay>,
        refusal: Option<Box<RefusalDivergence>>,
    ) -> Result<usize, Refusal> {
        let hosted = &self.runs[source];
        let until = Seq(0).plus(hosted.log.len());
        let index = usize::try_from(from).unwrap_or(usize::MAX).min(hosted.log.len());
        let begins = |event: &&Recorded| event.given.is_some();
        let since = match hosted.log.get(index) {
            None => until,
            Some(_) => hosted.log[..=index]
                .iter()
                .rev()
                .find(begins)
                .map_or(Seq(0), |event| event.seq),
        };
        let depth = hosted.run.fork().map_or(0, |fork| fork.depth) + 1;
        let start = StartFork {
            fork: Fork {
                source: hosted.id.clone(),
                mode,
                from: Seq(from),
                since,
                until,
                depth,
                recorders: hosted.run.fork().map_or_else(Vec::new, Fork::recorders_of_forks),
                refusal,
            },
            overlay,
            bounds: Self::start_run(json!({})).bounds,
        };
        let mut entropy = [9; 10];
        entropy[..8].copy_from_slice(&(self.runs.len() as u64).to_be_bytes());
        let mut fork = Hosted::new(RunId::from_parts(self.now, entropy), hosted.plan.clone());
        fork.source = Some(source);
        self.runs.push(fork);
        let fork = self.runs.len() - 1;
        if let Err(refusal) = self.tell(fork, Command::Fork(Box::new(start))) {
            self.runs.pop();
            return Err(refusal);
        }
        while self.runs[fork].run.is_catching_up() && self.runs[fork].timers.contains_key("continue") {
            self.tell(fork, Command::Timer(Timer::Continue))?;
        }
        Ok(fork)
    }

    /// Replaces an event of a log, as another version of the host might have recorded it.
    ///
    /// # Panics
    /// If there is no such event.
    pub fn tamper(&mut self, run: usize, seq: usize, change: impl FnOnce(&mut Recorded)) {
        change(&mut self.runs[run].log[seq]);
    }

    /// Starts the root run.
    ///
    /// # Panics
    /// If the start is refused.
    #[must_use]
    pub fn start(mut self, inputs: Value) -> Self {
        self.try_start(Self::start_run(inputs)).unwrap();
        self
    }

    /// Starts the root run with these overrides.
    ///
    /// # Panics
    /// If the start is refused.
    #[must_use]
    pub fn start_configured(mut self, inputs: Value, configurable: Value) -> Self {
        let mut start = Self::start_run(inputs);
        start.configurable = object(configurable);
        self.try_start(start).unwrap();
        self
    }

    /// Starts the root run, unless the kernel refuses.
    pub fn try_start(&mut self, start: StartRun) -> Result<(), Refusal> {
        self.add_pending();
        self.tell(0, Command::Start(Box::new(start)))
    }

    /// The terms of an import.
    pub fn import_terms(run: RunId, now: Timestamp) -> Import {
        let StartRun {
            tenant,
            principal,
            origin,
            bounds,
            ..
        } = Self::start_run(json!({}));
        Import {
            run,
            now,
            entropy: Entropy([7; 16]),
            tenant,
            principal,
            origin,
            trace: None,
            bounds,
            name: None,
            input: None,
            configurable: Object::new(),
            mode: None,
            in_process: None,
        }
    }

    /// Adds the root run with a log that was decided elsewhere, as if it had been decided here at once.
    ///
    /// # Panics
    /// If the decision violates an invariant.
    pub fn adopt(&mut self, id: RunId, decision: &Decision) {
        self.runs.push(Hosted::new(id, self.root.clone()));
        self.runs[0].commit(decision);
    }

    /// Adds the root run, and the runs below it, with logs that were decided elsewhere. What they have yet to hear of each
    /// other is delivered like the messages of a command.
    ///
    /// # Panics
    /// If a decision violates an invariant.
    pub fn adopt_all(&mut self, id: RunId, imported: &Imported) {
        self.adopt(id.clone(), &imported.decision);
        let mut decisions = vec![(id, &imported.decision)];
        for ImportedChild { child, decision } in &imported.children {
            let plan = self.workflows.0[&child.workflow].clone();
            assert_eq!(*plan.version(), child.version);
            let mut hosted = Hosted::new(child.run.clone(), plan);
            hosted.commit(decision);
            self.runs.push(hosted);
            decisions.push((child.run.clone(), decision));
        }
        for (from, decision) in decisions {
            assert!(decision.work.children.is_empty(), "all children are there");
            self.mail
                .extend(decision.work.messages.iter().map(|(to, _, message)| Mail {
                    to: to.clone(),
                    from: from.clone(),
                    message: message.clone(),
                }));
        }
        self.check_families();
        if !self.holds_mail {
            self.deliver();
        }
    }

    /// Adds the root run without starting it.
    pub fn add_pending(&mut self) {
        let id = RunId::from_parts(self.now, [0; 10]);
        self.runs.push(Hosted::new(id, self.root.clone()));
    }

    /// Sends a command to a run and, unless messages are held back, delivers the resulting messages.
    ///
    /// # Errors
    /// The kernel's refusal; the run is unchanged.
    ///
    /// # Panics
    /// If the decision violates an invariant.
    pub fn tell(&mut self, run: usize, command: Command) -> Result<(), Refusal> {
        self.tell_one(run, command)?;
        if !self.holds_mail {
            self.deliver();
        }
        Ok(())
    }

    fn tell_one(&mut self, run: usize, command: Command) -> Result<(), Refusal> {
        self.n_decisions += 1;
        let mut entropy = [0; 16];
        entropy[..8].copy_from_slice(&self.n_decisions.to_be_bytes());
        let source = self.runs[run].source.map(|source| self.runs[source].log.clone());
        let hosted = &mut self.runs[run];
        let source = source.map(|mut log| {
            // What happened after the fork is none of its business.
            if let Some(fork) = hosted.run.fork() {
                log.truncate(fork.until.0 as usize);
            }
            log
        });
        let input = Input {
            now: self.now,
            entropy: Entropy(entropy),
            run: &hosted.id,
            catalog: &self.workflows,
        };
        let source = match &command {
            Command::Fork(_) => source.as_deref(),
            _ => source.as_deref().filter(|_| hosted.run.is_catching_up()),
        };
        let make = || {
            let (run, command) = (hosted.run.clone(), command.clone());
            match source {
                None => decide(run, &hosted.plan, command, &input),
                Some(source) => {
                    let diverged_at = run.forked.and_then(|forked| forked.diverged_at);
                    let from = diverged_at.unwrap_or(run.head).0 as usize;
                    decide_fork(
                        run,
                        &hosted.plan,
                        command,
                        &input,
                        source.get(from..).unwrap_or(&[]),
                    )
                }
            }
        };
        let (decided, again) = (make(), make());
        assert_eq!(decided, again, "equal inputs decide alike");
        let decision = match decided {
            Ok(decision) => decision,
            Err(refusal) => {
                if let (Command::Timer(timer), Refusal::Stale) = (&command, &refusal) {
                    hosted.timers.remove(&timer.key());
                    hosted.outstanding.clear(timer);
                }
                return Err(refusal);
            }
        };
        let last = match &command {
            Command::Progressed { then: Some(then), .. } => &**then,
            command => command,
        };
        if let Command::Effect { step, attempt, .. } | Command::EffectGivenUp { step, attempt, .. } = last {
            let lease = OutstandingWork::FIRST_LEASE;
            let kept = hosted.outstanding.settle(step, *attempt, lease);
            hosted.hold(kept);
        }
        hosted.commit(&decision);
        hosted.cancelled.extend(decision.work.cancelled);
        let from = hosted.id.clone();
        // Messages that the decision did not consume come first the next time.
        for unheard in std::mem::take(&mut self.in_hand)
            .into_iter()
            .skip(decision.heard)
            .rev()
        {
            self.mail.push_front(unheard);
        }
        for child in decision.work.children {
            let plan = self.workflows.0[&child.workflow].clone();
            assert_eq!(*plan.version(), child.version);
            self.runs.push(Hosted::new(child.run.clone(), plan));
            self.mail.push_back(Mail {
                to: child.run,
                from: from.clone(),
                message: RunMessage::Start(Box::new(child.start)),
            });
        }
        let messages = decision.work.messages.into_iter();
        self.mail.extend(messages.map(|(to, _, message)| Mail {
            to,
            from: from.clone(),
            message,
        }));
        self.check_families();
        Ok(())
    }

    /// Checks that every run waiting for a child will get the child's message.
    fn check_families(&self) {
        // A replay shows the children of its source.
        for parent in self.runs.iter().filter(|hosted| hosted.run.fork().is_none()) {
            let waits = |from: &RunId, to: &RunId| self.mail.iter().any(|m| m.from == *from && m.to == *to);
            let kept = invariant::check_children(&parent.run, |child| {
                let known = self.runs.iter().find(|hosted| hosted.id == *child)?;
                Some(ChildStatus {
                    has_begun: known.run.started.is_some(),
                    is_over: known.run.status.is_terminal(),
                    is_told: waits(&parent.id, child),
                    has_told: waits(child, &parent.id),
                })
            });
            parent.hold(kept);
        }
    }

    /// Holds back messages between runs until [`Self::deliver`].
    pub fn hold_mail(&mut self) {
        self.holds_mail = true;
    }

    /// Delivers all messages, now and again after each later command. All messages waiting for one run are
    /// delivered in one command.
    ///
    /// # Panics
    /// If a run refuses its messages.
    pub fn deliver(&mut self) {
        self.holds_mail = false;
        while let Some(first) = self.mail.front() {
            let target = first.to.clone();
            let (now, later) = std::mem::take(&mut self.mail)
                .into_iter()
                .partition::<VecDeque<_>, _>(|mail| mail.to == target);
            self.mail = later;
            let run = self.number(&target);
            let messages = now.iter().map(|mail| mail.message.clone()).collect();
            self.in_hand = now;
            self.tell_one(run, Command::RunMessages(messages)).unwrap();
        }
    }

    /// Advances the clock and fires the timers of all runs as they become due.
    ///
    /// # Panics
    /// If the kernel refuses a timer for another reason than `Stale`.
    pub fn wait(&mut self, ms: u64) {
        let until = self.now.plus_millis(ms);
        while let Some((due, run, timer)) = self.next_timer().filter(|(due, ..)| *due <= until) {
            self.now = self.now.max(due);
            match self.tell(run, Command::Timer(timer)) {
                Ok(()) | Err(Refusal::Stale) => {}
                Err(refusal) => panic!("{refusal}"),
            }
        }
        self.now = until;
    }

    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Sets the clock back, like that of another replica.
    pub fn set_back(&mut self, ms: i64) {
        self.now = Timestamp::from_millis(self.now.millis() - ms);
    }

    /// Advances the clock without firing timers.
    pub fn skip(&mut self, ms: u64) {
        self.now = self.now.plus_millis(ms);
    }

    /// The next timer to become due: its time, run and key.
    #[must_use]
    pub fn next_timer(&self) -> Option<(Timestamp, usize, Timer)> {
        let all = self.runs.iter().enumerate();
        all.flat_map(|(run, hosted)| hosted.timers.values().map(move |(due, timer)| (due, run, timer)))
            .min_by_key(|(due, run, timer)| (**due, *run, timer.key()))
            .map(|(due, run, timer)| (*due, run, timer.clone()))
    }

    /// Fires a timer of the root run now, even if it is not set.
    pub fn fire(&mut self, timer: Timer) -> Result<(), Refusal> {
        self.tell(0, Command::Timer(timer))
    }

    /// Answers an interrupt of the root run.
    pub fn answer(&mut self, node: &str, value: Value) -> Result<(), Refusal> {
        self.answer_in(0, node, value)
    }

    /// Answers an interrupt of any run.
    pub fn answer_in(&mut self, run: usize, node: &str, value: Value) -> Result<(), Refusal> {
        self.tell(run, Command::Resolve(Self::resolve(node, value)))
    }

    /// An answer, by the principal who started the run, to the open interrupt of a node.
    ///
    /// # Panics
    /// If the node id is invalid.
    #[must_use]
    pub fn resolve(node: &str, value: Value) -> Resolve {
        Resolve {
            node: NodeId::parse(node).unwrap(),
            ordinal: None,
            interrupt: None,
            value,
            by: PrincipalId::parse("ada").unwrap(),
            voter: None,
            authority: Authority::default(),
            is_untrusted: false,
        }
    }

    /// Ends the running effect of a node of the root run.
    ///
    /// # Panics
    /// If the node has no running effect.
    pub fn outcome(&mut self, node: &str, outcome: Result<Value, Failure>) -> Result<(), Refusal> {
        self.outcome_after(node, outcome, None)
    }

    /// Ends the latest attempt at a node of the root run; the peer requested this backoff.
    ///
    /// # Panics
    /// If the node has no running effect.
    pub fn outcome_after(
        &mut self,
        node: &str,
        outcome: Result<Value, Failure>,
        retry_after_ms: Option<u64>,
    ) -> Result<(), Refusal> {
        let mut effects = self.runs[0].effects.iter().rev();
        let effect = effects.find(|effect| effect.step.node.as_str() == node).unwrap();
        let command = Command::Effect {
            step: effect.step.clone(),
            attempt: effect.attempt,
            outcome: outcome.map(object),
            retry_after_ms,
        };
        self.tell(0, command)
    }

    pub fn cancel(&mut self) -> Result<(), Refusal> {
        self.cancel_run(0)
    }

    /// Cancels any run.
    pub fn cancel_run(&mut self, run: usize) -> Result<(), Refusal> {
        let by = PrincipalId::parse("ada").ok();
        self.tell(run, Command::Cancel { reason: None, by })
    }

    /// Pauses the root, and lets its active nodes finish.
    pub fn pause(&mut self) -> Result<(), Refusal> {
        self.pause_by(DrainPolicy::DrainCurrentNode)
    }

    /// Pauses the root, and cuts what it can.
    pub fn stop(&mut self) -> Result<(), Refusal> {
        self.pause_by(DrainPolicy::Immediate)
    }

    fn pause_by(&mut self, drain: DrainPolicy) -> Result<(), Refusal> {
        self.tell(0, Command::Pause { reason: None, drain })
    }

    pub fn resume(&mut self) -> Result<(), Refusal> {
        self.tell(0, Command::Resume { reason: None })
    }

    /// The status of the root run.
    #[must_use]
    pub fn status(&self) -> &'static str {
        self.status_of(0)
    }

    #[must_use]
    pub fn status_of(&self, run: usize) -> &'static str {
        self.runs[run].run.status.as_str()
    }

    #[must_use]
    pub fn run(&self, run: usize) -> &Run {
        &self.runs[run].run
    }

    #[must_use]
    pub fn id(&self, run: usize) -> &RunId {
        &self.runs[run].id
    }

    #[must_use]
    pub fn plan(&self, run: usize) -> &Arc<Plan> {
        &self.runs[run].plan
    }

    #[must_use]
    pub fn n_runs(&self) -> usize {
        self.runs.len()
    }

    /// The event log of a run.
    #[must_use]
    pub fn events(&self, run: usize) -> &[Recorded] {
        &self.runs[run].log
    }

    /// All effects that the root run has requested, oldest first.
    #[must_use]
    pub fn effects(&self) -> &[Effect] {
        &self.runs[0].effects
    }

    /// All effects that a run has requested, oldest first.
    #[must_use]
    pub fn effects_of(&self, run: usize) -> &[Effect] {
        &self.runs[run].effects
    }

    /// All calls of the root run whose peers are told to stop, oldest first.
    #[must_use]
    pub fn cancelled(&self) -> &[CancelledCall] {
        &self.runs[0].cancelled
    }

    /// A variable of the root run; null if it is not set.
    #[must_use]
    pub fn variable(&self, name: &str) -> Value {
        self.runs[0]
            .run
            .variables()
            .get(name)
            .cloned()
            .unwrap_or_default()
    }

    /// The timers of a run, each with the milliseconds until it is due.
    #[must_use]
    pub fn timers(&self, run: usize) -> String {
        let timers = self.runs[run].timers.iter();
        let each = timers.map(|(key, (due, _))| format!("{key} in {}", due.millis() - self.now.millis()));
        each.collect::<Vec<_>>().join(", ")
    }

    /// The events recorded since the last call, run by run, one per line. Lines of children start with
    /// `[runN]`.
    pub fn news(&mut self) -> String {
        let mut lines = Vec::new();
        for run in 0..self.runs.len() {
            let from = self.runs[run].printed;
            for recorded in &self.runs[run].log[from..] {
                let marked = if run == 0 {
                    String::new()
                } else {
                    format!("[run{run}] ")
                };
                lines.push(marked + &self.print(recorded));
            }
            self.runs[run].printed = self.runs[run].log.len();
        }
        lines.join("\n")
    }

    /// The whole log of a run, one line per event.
    #[must_use]
    pub fn log(&self, run: usize) -> String {
        let lines: Vec<_> = self.runs[run]
            .log
            .iter()
            .map(|recorded| self.print(recorded))
            .collect();
        lines.join("\n")
    }

    fn print(&self, recorded: &Recorded) -> String {
        let text = line(recorded, ToString::to_string);
        let runs = self.runs.iter().enumerate();
        runs.fold(text, |text, (n, hosted)| {
            if text.contains(hosted.id.as_str()) {
                text.replace(hosted.id.as_str(), &format!("run{n}"))
            } else {
                text
            }
        })
    }

    fn number(&self, id: &RunId) -> usize {
        self.runs.iter().position(|hosted| hosted.id == *id).unwrap()
    }
}

impl Hosted {
    fn new(id: RunId, plan: Arc<Plan>) -> Self {
        Self {
            id,
            source: None,
            plan,
            run: Run::default(),
            log: Vec::new(),
            checker: LogChecker::default(),
            outstanding: OutstandingWork::default(),
            timers: BTreeMap::new(),
            effects: Vec::new(),
            cancelled: Vec::new(),
            printed: 0,
        }
    }

    fn commit(&mut self, decision: &Decision) {
        let read_back: Vec<_> = decision
            .events
            .iter()
            .map(|recorded| format::decode_event(recorded.seq, &format::encode_event(recorded)).unwrap())
            .collect();
        assert_eq!(read_back, decision.events, "events are read as they were written");
        let snapshot = {
            let dialect = self.plan.dialect();
            format::decode_run(dialect, &format::encode_run(dialect, &self.run)).unwrap()
        };
        assert_eq!(
            snapshot.fold(&self.plan, &read_back).unwrap(),
            decision.run,
            "a snapshot and its tail fold to the decision's run"
        );
        let followed = read_back.iter().try_for_each(|recorded| {
            note_handoff(&mut self.checker, &self.plan, recorded);
            self.checker.follow(recorded)
        });
        self.log.extend(read_back);
        self.hold(followed);
        if self.log.len() <= WHOLE_LOG {
            self.hold(invariant::check_answer(&self.log, &self.plan, &decision.run));
        }
        assert_eq!(decision.run.head, Seq(0).plus(self.log.len()));
        self.run = decision.run.clone();
        for timer in &decision.work.timers_cleared {
            self.timers.remove(&timer.key());
        }
        for (timer, due) in &decision.work.timers_set {
            assert_eq!(Timer::parse(&timer.key()).as_ref(), Some(timer));
            self.timers.insert(timer.key(), (*due, timer.clone()));
        }
        for effect in &decision.work.effects {
            self.hold(self.checker.check_effect(&effect.step, effect.attempt));
        }
        self.effects.extend(decision.work.effects.iter().cloned());
        invariant::absorb(&mut self.outstanding, decision);
        self.hold(invariant::check_run(&self.run, &self.plan, &self.outstanding));
    }

    /// Panics with the log if an invariant is violated.
    fn hold(&self, kept: Result<(), Violation>) {
        if let Err(violation) = kept {
            let log: Vec<_> = self
                .log
                .iter()
                .map(|recorded| line(recorded, ToString::to_string))
                .collect();
            panic!("{violation}\n{}", log.join("\n"));
        }
    }
}

fn object(value: Value) -> Object {
    match value {
        Value::Object(fields) => fields,
        other => panic!("not an object: {other}"),
    }
}
