//! The closed list of workflow languages: the one file of this crate that a new language changes, besides
//! [`mod@crate::format`] if it has events of its own.
//!
//! A match over the list enters a language once; the code behind it is monomorphic.
//!
//! The file is long because the list is closed: what the host asks of every language is one exhaustive match each.

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, LazyLock},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use wopr_dialect_awp::{self as awp, Awp};
use wopr_dialect_openwop::{self as openwop, AgentRef, Openwop};
#[cfg(feature = "toy")]
use wopr_dialect_toy::{self as toy, Toy};
use wopr_kernel::{
    self as kernel, Activity, ApplyError, Command, ContentHash, Counted, Dialect, EventRef, Failure, Input,
    NewChild, NodeId, NodeTypes, Object, OpenInterrupt, Planned, Problems, RecordedRef, Refusal, RunId, Seq,
    Source, Startable, StepId, Streaming, TooMuchWork, Work, WorkflowId, cost::Budget,
};

use crate::{Recorded, SignaturePolicy, Untrusted, Warning};

/// A language of this host. A run stores its name in its first event, a workflow beside its definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialectId {
    Openwop,
    Awp,
    #[cfg(feature = "toy")]
    Toy,
}

impl DialectId {
    /// The language with this name; `None` if this host does not know it.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            Openwop::NAME => Some(Self::Openwop),
            Awp::NAME => Some(Self::Awp),
            #[cfg(feature = "toy")]
            Toy::NAME => Some(Self::Toy),
            _ => None,
        }
    }

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Openwop => Openwop::NAME,
            Self::Awp => Awp::NAME,
            #[cfg(feature = "toy")]
            Self::Toy => Toy::NAME,
        }
    }

    /// The version of this language's fold.
    pub(crate) const fn fold(self) -> u16 {
        match self {
            Self::Openwop => Openwop::FOLD,
            Self::Awp => Awp::FOLD,
            #[cfg(feature = "toy")]
            Self::Toy => Toy::FOLD,
        }
    }

    /// The language that a new definition is written in. What no other one recognizes counts as `OpenWOP`, whose
    /// rules then say what is wrong.
    #[must_use]
    pub fn of_definition(document: &Value) -> Self {
        #[cfg(feature = "toy")]
        if toy::Plan::recognizes(document) {
            return Self::Toy;
        }
        if awp::Plan::recognizes(document) {
            return Self::Awp;
        }
        Self::Openwop
    }

    /// Whether a definition contains this value among those that it gives to variables, channels and outputs.
    #[must_use]
    pub fn assigns(self, document: &Value, value: &Value) -> bool {
        match self {
            Self::Openwop => openwop::assigns(document, value),
            // It redacts nothing, so a value that stands for something redacted is one like any other.
            Self::Awp => false,
            #[cfg(feature = "toy")]
            Self::Toy => false,
        }
    }
}

/// A compiled workflow.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a plan is moved once, and shared from then on"
)]
pub enum Plan {
    Openwop(openwop::Plan),
    Awp(awp::Plan),
    #[cfg(feature = "toy")]
    Toy(toy::Plan),
}

impl Plan {
    /// Accepts a new definition: parses and compiles it, and checks the rules for new definitions.
    ///
    /// # Errors
    /// Every problem, with its place and a JSON pointer.
    pub fn admit(document: Value, node_types: NodeTypes) -> Result<Self, Problems> {
        Self::admit_signed(document, node_types, &SignaturePolicy::default())
    }

    /// Like [`Self::admit`]; the policy says whose signatures are good, in languages whose definitions can be signed.
    ///
    /// # Errors
    /// Every problem, with its place and a JSON pointer.
    pub fn admit_signed(
        document: Value,
        node_types: NodeTypes,
        signatures: &SignaturePolicy,
    ) -> Result<Self, Problems> {
        match DialectId::of_definition(&document) {
            DialectId::Openwop => openwop::Plan::admit(document, node_types).map(Self::Openwop),
            DialectId::Awp => awp::Plan::admit(document, signatures).map(Self::Awp),
            #[cfg(feature = "toy")]
            DialectId::Toy => toy::Plan::compile(document).map(Self::Toy),
        }
    }

    /// Compiles a definition that was accepted before.
    ///
    /// # Errors
    /// Every problem, with its place and a JSON pointer.
    pub fn compile(dialect: DialectId, document: Value, node_types: NodeTypes) -> Result<Self, Problems> {
        match dialect {
            DialectId::Openwop => openwop::Definition::parse(document)
                .and_then(|definition| openwop::Plan::compile(definition, node_types))
                .map(Self::Openwop),
            DialectId::Awp => awp::Plan::compile(document).map(Self::Awp),
            #[cfg(feature = "toy")]
            DialectId::Toy => toy::Plan::compile(document).map(Self::Toy),
        }
    }

    #[must_use]
    pub const fn dialect(&self) -> DialectId {
        match self {
            Self::Openwop(_) => DialectId::Openwop,
            Self::Awp(_) => DialectId::Awp,
            #[cfg(feature = "toy")]
            Self::Toy(_) => DialectId::Toy,
        }
    }

    /// Whether a run of `earlier`, another version of this workflow, can go on with this one.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn continues(&self, earlier: &Self) -> Result<(), String> {
        match (self, earlier) {
            (Self::Openwop(plan), Self::Openwop(earlier)) => plan.continues(earlier),
            (plan, earlier) if (**plan).version() == (**earlier).version() => Ok(()),
            _ => Err("it is another definition".to_owned()),
        }
    }

    /// What is legal and probably not meant.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        match self {
            Self::Openwop(plan) => plan.warnings(),
            Self::Awp(_) => Vec::new(),
            #[cfg(feature = "toy")]
            Self::Toy(_) => Vec::new(),
        }
    }

    /// The plan, if it is of this language.
    #[must_use]
    pub const fn openwop(&self) -> Option<&openwop::Plan> {
        match self {
            Self::Openwop(plan) => Some(plan),
            Self::Awp(_) => None,
            #[cfg(feature = "toy")]
            Self::Toy(_) => None,
        }
    }
}

impl Plan {
    /// The plan, if it is in the Agent Workflow language.
    #[must_use]
    pub const fn awp(&self) -> Option<&awp::Plan> {
        match self {
            Self::Awp(plan) => Some(plan),
            Self::Openwop(_) => None,
            #[cfg(feature = "toy")]
            Self::Toy(_) => None,
        }
    }
}

impl Plan {
    /// The name that these options give a new run of this workflow.
    ///
    /// # Errors
    /// The caller may not give this name.
    pub fn alias<'o>(&self, configurable: &'o Object) -> Result<Option<&'o str>, Refusal> {
        match self {
            Self::Awp(_) => awp::alias(configurable),
            Self::Openwop(_) => Ok(None),
            #[cfg(feature = "toy")]
            Self::Toy(_) => Ok(None),
        }
    }

    /// Adds what the host does activities with to the options that a caller has given a new run, in languages that leave
    /// activities to the host.
    ///
    /// # Errors
    /// The caller has given an option that only the host may.
    pub fn add_in_process(
        &self,
        configurable: &mut Object,
        host: Option<&awp::InProcess>,
    ) -> Result<(), Refusal> {
        match self {
            Self::Awp(_) => awp::add_in_process(configurable, host),
            Self::Openwop(_) => Ok(()),
            #[cfg(feature = "toy")]
            Self::Toy(_) => Ok(()),
        }
    }

    /// The name that a run of this workflow with a name gives a child with these options.
    #[must_use]
    pub fn child_alias<'o>(&self, configurable: &'o Object) -> Option<&'o str> {
        match self {
            Self::Awp(_) => awp::child_alias(configurable),
            Self::Openwop(_) => None,
            #[cfg(feature = "toy")]
            Self::Toy(_) => None,
        }
    }
}

impl Deref for Plan {
    type Target = dyn Planned;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Openwop(plan) => plan,
            Self::Awp(plan) => plan,
            #[cfg(feature = "toy")]
            Self::Toy(plan) => plan,
        }
    }
}

impl Startable for Plan {
    fn dialect(&self) -> &'static str {
        Self::dialect(self).name()
    }

    fn workflow(&self) -> &WorkflowId {
        (**self).id()
    }

    fn version(&self) -> &ContentHash {
        (**self).version()
    }

    fn check_child(
        &self,
        inputs: &Object,
        configurable: &Object,
        unset: &[String],
        budget: &Budget,
    ) -> Result<(), String> {
        match self {
            Self::Openwop(plan) => plan.check_child(inputs, configurable, unset, budget),
            Self::Awp(plan) => plan.check_child(inputs, configurable, budget),
            #[cfg(feature = "toy")]
            Self::Toy(plan) => plan.check_child(inputs),
        }
    }

    fn shown_variables(&self) -> Vec<String> {
        let plan = match self {
            Self::Openwop(plan) => plan,
            // Their variables have no names before a run sets them.
            Self::Awp(_) => return Vec::new(),
            #[cfg(feature = "toy")]
            Self::Toy(_) => return Vec::new(),
        };
        let names = plan.variables().iter().map(|variable| &variable.name);
        names.filter(|name| !plan.is_sensitive(name)).cloned().collect()
    }
}

/// An event that only one language has. A language without events of its own is not listed.
#[derive(Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum DialectEvent {
    Openwop(openwop::Event),
}

impl fmt::Debug for DialectEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Openwop(event) => event.fmt(f),
        }
    }
}

impl DialectEvent {
    /// What happened in a conversation, if the event says that.
    #[must_use]
    pub fn conversation(&self) -> Option<&openwop::ConversationEvent> {
        match self {
            Self::Openwop(event) => event.conversation(),
        }
    }

    /// The execution whose open question the event changes, such as a turn of its conversation.
    #[must_use]
    pub fn asks_anew(&self) -> Option<&StepId> {
        match self {
            Self::Openwop(event) => Openwop::asks_anew(event),
        }
    }
}

/// The part of a run's state that only its language has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Openwop(Box<openwop::State>),
    Awp(Box<awp::State>),
    #[cfg(feature = "toy")]
    Toy(Box<toy::State>),
}

/// How a language's own types are wrapped in those of the list.
trait Listed: Dialect {
    fn state(state: Self::State) -> State;
    /// `None` if the state is of another language.
    fn own_state(state: &mut State) -> Option<&mut Self::State>;
    fn event(event: Self::Event) -> DialectEvent;
    /// `None` if the event is of another language.
    fn own_event(event: &DialectEvent) -> Option<&Self::Event>;
}

impl Listed for Openwop {
    fn state(state: openwop::State) -> State {
        State::Openwop(Box::new(state))
    }

    fn own_state(state: &mut State) -> Option<&mut openwop::State> {
        match state {
            State::Openwop(state) => Some(state),
            State::Awp(_) => None,
            #[cfg(feature = "toy")]
            State::Toy(_) => None,
        }
    }

    fn event(event: openwop::Event) -> DialectEvent {
        DialectEvent::Openwop(event)
    }

    fn own_event(event: &DialectEvent) -> Option<&openwop::Event> {
        match event {
            DialectEvent::Openwop(event) => Some(event),
        }
    }
}

impl Listed for Awp {
    fn state(state: awp::State) -> State {
        State::Awp(Box::new(state))
    }

    fn own_state(state: &mut State) -> Option<&mut awp::State> {
        match state {
            State::Awp(state) => Some(state),
            State::Openwop(_) => None,
            #[cfg(feature = "toy")]
            State::Toy(_) => None,
        }
    }

    fn event(event: awp::NoEvent) -> DialectEvent {
        match event {}
    }

    fn own_event(_event: &DialectEvent) -> Option<&awp::NoEvent> {
        None
    }
}

#[cfg(feature = "toy")]
impl Listed for Toy {
    fn state(state: toy::State) -> State {
        State::Toy(Box::new(state))
    }

    fn own_state(state: &mut State) -> Option<&mut toy::State> {
        match state {
            State::Toy(state) => Some(state),
            State::Openwop(_) | State::Awp(_) => None,
        }
    }

    fn event(event: toy::NoEvent) -> DialectEvent {
        match event {}
    }

    fn own_event(_event: &DialectEvent) -> Option<&toy::NoEvent> {
        None
    }
}

/// The state of a run, derived from its log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Boxed: it is large, and runs are moved often.
    run: Box<kernel::Run>,
    /// Absent before the first event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<State>,
}

impl Deref for Run {
    type Target = kernel::Run;

    fn deref(&self) -> &Self::Target {
        &self.run
    }
}

/// The result of a command, for a run of any dialect: what the engine commits, and what it does after the
/// commit. A decision without events can still clear timers and carry run messages, so the engine commits it
/// like any other.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The run with the events applied.
    pub run: Run,
    pub events: Vec<Recorded>,
    pub work: Work,
    /// How many of the command's run messages this decision consumed; redeliver the rest.
    pub heard: usize,
}

/// Applies a command to a run and returns the resulting events and work. A refused command has no effect.
pub fn decide(run: Run, plan: &Plan, command: Command, input: &Input<'_>) -> Result<Decision, Refusal> {
    decide_counted(run, plan, command, input).map(|(decision, _)| decision)
}

/// Like [`decide`], and also returns the units of work spent.
pub fn decide_counted(
    run: Run,
    plan: &Plan,
    command: Command,
    input: &Input<'_>,
) -> Result<(Decision, u64), Refusal> {
    decide_from(run, plan, command, input, None)
}

/// Like [`decide`], for a run that takes from its source ([`kernel::Run::is_catching_up`]) or that becomes a fork:
/// with the part of the source's log that it reads next. That part ends with the log, or has at least
/// [`MAX_EVENTS`](kernel::MAX_EVENTS) events more than the fork takes.
pub fn decide_fork(
    run: Run,
    plan: &Plan,
    command: Command,
    input: &Input<'_>,
    source: &[Recorded],
) -> Result<Decision, Refusal> {
    decide_from(run, plan, command, input, Some(source)).map(|(decision, _)| decision)
}

fn decide_from(
    run: Run,
    plan: &Plan,
    command: Command,
    input: &Input<'_>,
    source: Option<&[Recorded]>,
) -> Result<(Decision, u64), Refusal> {
    match plan {
        Plan::Openwop(plan) => counted::<Openwop>(run, plan, command, input, source),
        Plan::Awp(plan) => counted::<Awp>(run, plan, command, input, source),
        #[cfg(feature = "toy")]
        Plan::Toy(plan) => counted::<Toy>(run, plan, command, input, source),
    }
}

/// Like [`decide`], but gives up without any effect if the decision needs about `units` of work or
/// more. If it returns a decision, it is the same one that [`decide`] returns.
///
/// # Errors
/// It gave up.
pub fn decide_within(
    units: u64,
    run: Run,
    plan: &Plan,
    command: Command,
    input: &Input<'_>,
) -> Result<Result<Decision, Refusal>, TooMuchWork> {
    let decided = decide_counted_within(units, run, plan, command, input)?;
    Ok(decided.map(|(decision, _)| decision))
}

/// Like [`decide_within`], and also returns the units of work spent.
///
/// # Errors
/// It gave up.
pub fn decide_counted_within(
    units: u64,
    run: Run,
    plan: &Plan,
    command: Command,
    input: &Input<'_>,
) -> Result<Counted<Decision>, TooMuchWork> {
    match plan {
        Plan::Openwop(plan) => within::<Openwop>(units, run, plan, command, input),
        Plan::Awp(plan) => within::<Awp>(units, run, plan, command, input),
        #[cfg(feature = "toy")]
        Plan::Toy(plan) => within::<Toy>(units, run, plan, command, input),
    }
}

fn counted<D: Listed>(
    run: Run,
    plan: &D::Plan,
    command: Command,
    input: &Input<'_>,
    source: Option<&[Recorded]>,
) -> Result<(Decision, u64), Refusal> {
    let (run, state) = run.into_parts::<D>();
    let source = source.map(|events| {
        // A source is of the fork's language: it has the same workflow.
        let events = events.iter().map_while(|event| narrow::<D>(event).ok());
        Source::new(events.collect())
    });
    let (decision, units) = kernel::decide::<D>(run, state, plan, command, input, source)?;
    Ok((listed(decision), units))
}

fn within<D: Listed>(
    units: u64,
    run: Run,
    plan: &D::Plan,
    command: Command,
    input: &Input<'_>,
) -> Result<Counted<Decision>, TooMuchWork> {
    let (run, state) = run.into_parts::<D>();
    let decided = kernel::decide_within::<D>(units, run, state, plan, command, input)?;
    Ok(decided.map(|(decision, units)| (listed(decision), units)))
}

fn listed<D: Listed>(decision: kernel::Decision<D>) -> Decision {
    let kernel::Decision {
        run,
        state,
        events,
        work,
        heard,
    } = decision;
    Decision {
        run: Run {
            // Before its first event, a run is of no language.
            state: (run.head > Seq(0)).then(|| D::state(state)),
            run,
        },
        events: events
            .into_iter()
            .map(|recorded| recorded.map(D::event))
            .collect(),
        work,
        heard,
    }
}

impl Run {
    /// Folds events into this run.
    pub fn fold<'e>(
        mut self,
        plan: &Plan,
        events: impl IntoIterator<Item = &'e Recorded>,
    ) -> Result<Self, ApplyError> {
        for event in events {
            self.apply(plan, event)?;
        }
        Ok(self)
    }

    /// Folds one event in.
    ///
    /// # Errors
    /// The event cannot follow; the run must not be used afterwards.
    pub fn apply(&mut self, plan: &Plan, recorded: &Recorded) -> Result<(), ApplyError> {
        match plan {
            Plan::Openwop(plan) => self.apply_as::<Openwop>(plan, recorded),
            Plan::Awp(plan) => self.apply_as::<Awp>(plan, recorded),
            #[cfg(feature = "toy")]
            Plan::Toy(plan) => self.apply_as::<Toy>(plan, recorded),
        }
    }

    fn apply_as<D: Listed>(&mut self, plan: &D::Plan, recorded: &Recorded) -> Result<(), ApplyError> {
        let state = self.state.get_or_insert_with(|| D::state(D::State::default()));
        let state = D::own_state(state).ok_or_else(|| of_another_language("a state"))?;
        let recorded = narrow::<D>(recorded)?;
        self.run.apply::<D>(state, plan, recorded)
    }

    /// The first open interrupt, here or in a child.
    #[must_use]
    pub fn interrupt<'a>(&'a self, plan: &'a Plan) -> Option<OpenInterrupt<'a>> {
        self.run.interrupt(&**plan)
    }

    /// All open interrupts, in the order in which they were opened.
    pub fn interrupts<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = OpenInterrupt<'a>> {
        self.run.interrupts(&**plan)
    }

    /// The texts that nodes are streaming now, in the order of the definition.
    pub fn streaming<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = Streaming<'a>> {
        self.run.streaming(&**plan)
    }

    /// The calls that wait for a worker, with their step and attempt, in the order of the definition.
    pub fn activities<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = (StepId, u32, &'a Activity)> {
        self.run.activities(&**plan)
    }

    /// Whether an attempt of a step waits for its call.
    #[must_use]
    pub fn awaits_call(&self, plan: &Plan, step: &StepId, attempt: u32) -> bool {
        self.run.awaits_call(&**plan, step, attempt)
    }

    /// Whether a step is under way.
    #[must_use]
    pub fn is_active(&self, plan: &Plan, step: &StepId) -> bool {
        self.run.is_active(&**plan, step)
    }

    /// The call that an attempt of a step waits for.
    #[must_use]
    pub fn call(&self, plan: &Plan, step: &StepId, attempt: u32) -> Option<&kernel::Pending> {
        self.run.call(&**plan, step, attempt)
    }

    /// The ordinal of the node's latest execution.
    #[must_use]
    pub fn latest_ordinal(&self, plan: &Plan, node: &NodeId) -> Option<u32> {
        self.run.latest_ordinal(&**plan, node)
    }

    /// Each node that has started, with the name of its state and the number of its executions.
    pub fn node_states<'a>(
        &'a self,
        plan: &'a Plan,
    ) -> impl Iterator<Item = (&'a NodeId, &'static str, u32)> {
        self.run.node_states(&**plan)
    }

    /// The node that a client would call current: the first that waits, else the first that is active.
    #[must_use]
    pub fn current_node<'a>(&self, plan: &'a Plan) -> Option<&'a NodeId> {
        self.run.current_node(&**plan)
    }

    /// The values that the run's expressions and its parent can read.
    #[must_use]
    pub fn variables(&self) -> &Object {
        match &self.state {
            None => nothing(),
            Some(State::Openwop(state)) => Openwop::variables(state),
            Some(State::Awp(state)) => Awp::variables(state),
            #[cfg(feature = "toy")]
            Some(State::Toy(state)) => Toy::variables(state),
        }
    }

    #[must_use]
    pub fn channels(&self) -> &Object {
        match &self.state {
            None => nothing(),
            Some(State::Openwop(state)) => &state.channels,
            Some(State::Awp(_)) => nothing(),
            #[cfg(feature = "toy")]
            Some(State::Toy(_)) => nothing(),
        }
    }

    /// The conversation that is open at a node.
    #[must_use]
    pub fn conversation(&self, node: &NodeId) -> Option<&openwop::Conversation> {
        match &self.state {
            Some(State::Openwop(state)) => state.conversation(node),
            Some(State::Awp(_)) | None => None,
            #[cfg(feature = "toy")]
            Some(State::Toy(_)) => None,
        }
    }

    /// What all answers of models took, and the provider and the model that answered last.
    #[must_use]
    pub fn model_usage(&self) -> Option<(&wopr_kernel::ModelUsage, (&str, &str))> {
        match &self.state {
            None => None,
            Some(State::Openwop(state)) => {
                let (provider, model) = state.model.as_ref()?;
                Some((&state.usage, (provider.as_str(), model.as_str())))
            }
            Some(State::Awp(_)) => None,
            #[cfg(feature = "toy")]
            Some(State::Toy(_)) => None,
        }
    }

    /// How much the models of the run have used and may use, if anything bounds that.
    #[must_use]
    pub fn model_spending(&self, plan: &Plan) -> Option<wopr_kernel::RunSpending> {
        match (&self.state, plan) {
            (Some(State::Openwop(state)), Plan::Openwop(plan)) => state.spending(plan, &self.run),
            (Some(_) | None, _) => None,
        }
    }

    /// Returns `true` if an open approval asks to raise this shared budget.
    #[must_use]
    pub fn asks_for_more(&self, key: &wopr_kernel::BudgetKey) -> bool {
        match &self.state {
            Some(State::Openwop(state)) => state.asks_for_more(&self.run, key),
            Some(State::Awp(_)) | None => false,
            #[cfg(feature = "toy")]
            Some(State::Toy(_)) => false,
        }
    }

    /// What the run's supervisor has decided, if it has one.
    #[must_use]
    pub fn supervision(&self) -> Option<&openwop::Supervision> {
        match &self.state {
            None => None,
            Some(State::Openwop(state)) => state.supervision.as_ref(),
            Some(State::Awp(_)) => None,
            #[cfg(feature = "toy")]
            Some(State::Toy(_)) => None,
        }
    }

    /// The agent that leads the run, if one does.
    #[must_use]
    pub fn orchestrator(&self, plan: &Plan) -> Option<Object> {
        match (&self.state, plan) {
            (Some(State::Openwop(state)), Plan::Openwop(plan)) => plan.orchestrator(&self.run, state),
            (Some(_) | None, _) => None,
        }
    }

    /// The agent at whose node the run is, or was last.
    #[must_use]
    pub fn agent<'p>(&self, plan: &'p Plan) -> Option<&'p AgentRef> {
        match (&self.state, plan) {
            (Some(State::Openwop(state)), Plan::Openwop(plan)) => state.agent(plan),
            (Some(_) | None, _) => None,
        }
    }

    /// The names under which the run holds untrusted content.
    #[must_use]
    pub fn untrusted(&self) -> &Untrusted {
        static NONE: Untrusted = Untrusted::NONE;
        match &self.state {
            None => &NONE,
            Some(State::Openwop(state)) => &state.untrusted,
            Some(State::Awp(_)) => &NONE,
            #[cfg(feature = "toy")]
            Some(State::Toy(_)) => &NONE,
        }
    }

    /// Returns `true` if the run holds untrusted content that its steps can read.
    #[must_use]
    pub fn holds_untrusted(&self) -> bool {
        match &self.state {
            None => false,
            Some(State::Openwop(state)) => Openwop::holds_untrusted(&self.run, state),
            Some(State::Awp(state)) => Awp::holds_untrusted(&self.run, state),
            #[cfg(feature = "toy")]
            Some(State::Toy(state)) => Toy::holds_untrusted(&self.run, state),
        }
    }

    /// Whether `failure` is the failure of a node whose failure contains untrusted content.
    #[must_use]
    pub fn is_untrusted_failure(&self, plan: &Plan, failure: &Failure, node: Option<&NodeId>) -> bool {
        match (&self.state, plan) {
            (None, _) => false,
            (Some(State::Openwop(state)), Plan::Openwop(plan)) => {
                state.is_untrusted_failure(&self.run, plan, failure, node)
            }
            (Some(State::Awp(state)), _) => Awp::holds_untrusted(&self.run, state),
            #[cfg(feature = "toy")]
            (Some(State::Toy(state)), _) => Toy::holds_untrusted(&self.run, state),
            // A state and a plan of two languages meet in damaged logs alone, which the fold refuses.
            (Some(State::Openwop(_)), _) => true,
        }
    }

    /// The kernel's part of a run in the Agent Workflow language, with the language's own.
    #[must_use]
    pub fn awp(&self) -> Option<(&kernel::Run, &awp::State)> {
        match &self.state {
            Some(State::Awp(state)) => Some((&self.run, state)),
            Some(State::Openwop(_)) | None => None,
            #[cfg(feature = "toy")]
            Some(State::Toy(_)) => None,
        }
    }

    fn into_parts<D: Listed>(self) -> (Box<kernel::Run>, D::State) {
        let own = self
            .state
            .and_then(|mut state| D::own_state(&mut state).map(std::mem::take));
        (self.run, own.unwrap_or_default())
    }
}

/// Runs that are decided again from their histories: what one append creates.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The first decision of the root. Its messages are for those of the children that have not ended.
    pub decision: Decision,
    /// The runs below it, parents first.
    pub children: Vec<ImportedChild>,
}

/// A run below one that is decided again.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedChild {
    pub child: NewChild,
    /// Its first decision. Its messages are those that its parent and its children have not heard.
    pub decision: Decision,
}

/// Decides again what histories of the Agent Workflow language say, as the first decisions of runs. `children` are those of
/// the sub-workflows, with their plans. `None` if a plan is in another language.
#[must_use]
pub fn import_awp(
    plan: &Plan,
    given: &awp::GivenRows,
    children: &[(Arc<Plan>, awp::GivenRows)],
    import: &awp::Import,
) -> Option<Result<Imported, awp::ImportError>> {
    let children: Option<Vec<_>> = children
        .iter()
        .map(|(plan, rows)| {
            Some(awp::GivenChild {
                plan: plan.awp()?,
                startable: Arc::clone(plan) as Arc<dyn Startable>,
                rows,
            })
        })
        .collect();
    let decided = awp::import(plan.awp()?, given, &children?, import);
    Some(decided.map(|imported| {
        Imported {
            decision: listed(imported.decision),
            children: imported
                .children
                .into_iter()
                .map(|awp::ImportedChild { child, decision }| ImportedChild {
                    child,
                    decision: listed(decision),
                })
                .collect(),
        }
    }))
}

/// Makes the rows of the history of a run in the Agent Workflow language, event by event from the first one on.
#[derive(Debug)]
pub struct AwpHistory<'p>(awp::HistoryWriter<'p>);

impl<'p> AwpHistory<'p> {
    /// `None` if the run is in another language.
    #[must_use]
    pub fn new(plan: &'p Plan, run: &'p RunId, wanted: awp::Wanted) -> Option<Self> {
        Some(Self(awp::HistoryWriter::new(plan.awp()?, run, wanted)))
    }

    /// Goes on at a place in the history of the same run. `None` if it is in another language.
    #[must_use]
    pub fn from_position(
        plan: &'p Plan,
        run: &'p RunId,
        wanted: awp::Wanted,
        position: awp::HistoryPosition,
    ) -> Option<Self> {
        let plan = plan.awp()?;
        Some(Self(awp::HistoryWriter::from_position(
            plan, run, wanted, position,
        )))
    }

    /// The place after the recorded events.
    #[must_use]
    pub fn position(&self) -> awp::HistoryPosition {
        self.0.position()
    }

    /// How many rows the recorded events have.
    #[must_use]
    pub const fn n_rows(&self) -> u64 {
        self.0.n_rows()
    }

    pub fn record(&mut self, recorded: &Recorded) {
        if let Ok(recorded) = narrow::<Awp>(recorded) {
            self.0.record(recorded);
        }
    }

    /// Whether no later event adds a row that is wanted.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }

    #[must_use]
    pub fn finish(self) -> awp::History {
        self.0.finish()
    }
}

/// An event as its language sees it.
///
/// # Errors
/// The event is of another language than the run.
fn narrow<D: Listed>(recorded: &Recorded) -> Result<RecordedRef<'_, D::Event>, ApplyError> {
    let RecordedRef {
        seq,
        at,
        cause,
        is_untrusted,
        given,
        event,
    } = recorded.as_ref();
    let event = match event {
        EventRef::Kernel(event) => EventRef::Kernel(event),
        EventRef::Dialect(event) => {
            EventRef::Dialect(D::own_event(event).ok_or_else(|| of_another_language("an event"))?)
        }
    };
    Ok(RecordedRef {
        seq,
        at,
        cause,
        is_untrusted,
        given,
        event,
    })
}

fn of_another_language(what: &str) -> ApplyError {
    ApplyError::Illegal(format!("{what} of another language"))
}

fn nothing() -> &'static Object {
    static NOTHING: LazyLock<Object> = LazyLock::new(Object::new);
    &NOTHING
}
