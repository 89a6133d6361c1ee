//! A compiled definition: names resolved to indexes, settings parsed, cycles detected.
//!
//! A plan is immutable and shared; a run keeps the plan of the version it started with. An edge that closes a
//! cycle is a *back edge*: it triggers its target on its own, while the other (forward) edges of a node are
//! evaluated together, once per round.
//!
//! The file is long because compiling visits every part of a definition once, in the order in which the parts depend on
//! each other.

mod planned;

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;
use serde_json::Value;
use wopr_kernel::{NodeTypes, Planned, Run};

use crate::{
    AgentRef, MAX_PROBLEMS, NodeId, Object, Problem, Problems, channel,
    context::Context,
    cost::{Budget, Exhausted, Meter},
    decision::MayName,
    definition::{Definition, Edge, EdgeCondition, Node, Operator, TriggerRule, Variable, WORDS},
    event::EXCHANGES,
    expression::{Expression, ExpressionError, Val},
    measure::{object_size, value_size},
    node::{
        AGENT_RETRIES, Decider, GIVEN_TOOL, MODEL_RETRIES, NodeKind, SubWorkflow, TOOL_RETRIES, asks_model,
        calls_agent, calls_tool, gives_artifacts, is_tool_workflow,
    },
    schema::{Allowance, Invalid, Pattern, Schema},
    state::State,
    whole,
};

/// The type of the artifacts that an agent makes, unless its node names one.
const AGENT_ARTIFACT: &str = "a2a.artifact";
const DEFAULT_RETRY_DELAY_MS: u64 = 1_000;
pub(crate) const MAX_RETRIES: u32 = 100;

/// What a node takes besides its texts and settings: its places in the definition and the plan, what it does, and its
/// entries in indexes.
const NODE: usize = size_of::<Node>() + size_of::<PlanNode>() + 512;
/// The same of an edge.
const EDGE: usize = size_of::<Edge>() + size_of::<PlanEdge>() + 64;

/// The outputs that repeat what was said in a conversation.
const TURNS: [&str; 2] = ["turns", "answer"];
/// The outputs that people give in a conversation: what they say in it, and what it comes to.
const SAID: [&str; 3] = ["turns", "answer", "outcome"];
/// The output with what the agent of a node has decided.
const DECISION: &str = "decision";
/// The outputs of a dispatch that ends its run with what was decided. How sure the agent was is in its events too.
const END: [&str; 2] = ["reason", "successCriteria"];
/// The output with the checksum of what a child has given back.
const ATTESTATION: &str = "attestation";

/// Places of nodes by their ids. Every event of a run looks some up.
type Index = HashMap<NodeId, usize, RandomState>;

#[derive(Debug)]
pub struct Plan {
    /// The definition it was compiled from.
    pub definition: Definition,
    pub(crate) nodes: Vec<PlanNode>,
    pub(crate) edges: Vec<PlanEdge>,
    pub(crate) entries: Vec<usize>,
    /// Whether any edge closes a cycle.
    pub(crate) has_loop: bool,
    /// The nodes with several incoming forward edges: no others are ever held.
    pub(crate) joins: Vec<usize>,
    /// Whether any node is a supervisor.
    pub(crate) has_supervisor: bool,
    index: Index,
    declared: HashMap<String, usize>,
    channels: HashMap<String, channel::Guard>,
    /// Variables and channels that views redact.
    sensitive: HashSet<String>,
    has_sensitive_output: bool,
    /// Whether no node ever waits.
    never_waits: bool,
    configurable: Option<Schema>,
    /// The approximate memory that it takes beyond the document, in bytes.
    extra_bytes: usize,
}

/// A node with its neighbors.
#[derive(Debug)]
pub(crate) struct PlanNode {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    pub(crate) type_id: String,
    pub(crate) kind: NodeKind,
    /// The agent that it is pinned to.
    pub(crate) agent: Option<AgentRef>,
    pub(crate) inputs: Vec<(String, Port)>,
    pub(crate) artifact_type: Option<String>,
    pub(crate) disabled: bool,
    pub(crate) max_retries: u32,
    pub(crate) retry_delay_ms: u64,
    pub(crate) out: Vec<usize>,
    /// Incoming forward edges; the node's slots are in this order.
    pub(crate) forward: Vec<usize>,
    pub(crate) back: Vec<usize>,
}

impl PlanNode {
    /// The type and the human-readable name of the artifacts that it makes.
    pub(crate) fn artifact(&self) -> Option<(&str, &str)> {
        let by_agent = || gives_artifacts(&self.type_id).then_some(AGENT_ARTIFACT);
        let artifact_type = self.artifact_type.as_deref().or_else(by_agent)?;
        Some((artifact_type, self.name.as_str()))
    }
}

/// The source of an input port's value.
#[derive(Debug)]
pub(crate) enum Port {
    Static(Value),
    Expression(Expression),
    Connection {
        node: usize,
        key: String,
        optional: bool,
    },
    Variable {
        name: String,
        optional: bool,
    },
}

/// An edge between node indexes.
#[derive(Debug)]
pub(crate) struct PlanEdge {
    pub(crate) source: usize,
    pub(crate) target: usize,
    pub(crate) rule: TriggerRule,
    pub(crate) condition: Option<Condition>,
    /// The target's slot, or `None` for a back edge.
    pub(crate) slot: Option<usize>,
}

/// A compiled edge condition.
#[derive(Debug)]
pub(crate) struct Condition {
    left: Option<Expression>,
    test: Test,
}

#[derive(Debug)]
enum Test {
    Expression(Expression),
    Equals(Value),
    NotEquals(Value),
    Contains(Value),
    Regex(Box<Pattern>),
    Truthy,
    Falsy,
}

/// The node whose interrupts could have the ids of this one's: `a` for `a:2`, because the ids are
/// `<node>:<ordinal>:<number>`.
fn shares_interrupt_ids(id: &str) -> Option<&str> {
    let (other, ordinal) = id.rsplit_once(':')?;
    ordinal
        .parse()
        .is_ok_and(|n: u32| n.to_string() == ordinal)
        .then_some(other)
}

impl Plan {
    /// Whether a run of `earlier` can go on with this definition: its log names nodes, and edges by their position.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn continues(&self, earlier: &Self) -> Result<(), String> {
        let ends = |plan: &Self, edge: &PlanEdge| {
            (
                plan.nodes[edge.source].id.clone(),
                plan.nodes[edge.target].id.clone(),
            )
        };
        let known: Vec<_> = earlier.edges.iter().map(|edge| ends(earlier, edge)).collect();
        let now: Vec<_> = self.edges.iter().map(|edge| ends(self, edge)).collect();
        if known != now {
            return Err("its edges are others than those that the run has followed".to_owned());
        }
        self.keeps_marks_of(earlier)
    }

    /// Fails if an earlier version marks a value as sensitive that this one would show: whoever gave the run that value
    /// relied on the mark.
    fn keeps_marks_of(&self, earlier: &Self) -> Result<(), String> {
        let mut names = earlier.sensitive.iter();
        if let Some(name) = names.find(|name| !self.sensitive.contains(*name)) {
            return Err(format!("it no longer marks '{name}' as sensitive"));
        }
        for node in &earlier.definition.nodes {
            let mut marked = node.marked();
            if let Some(port) = marked.find(|port| !self.is_sensitive_output(&node.id, port)) {
                return Err(format!(
                    "it no longer marks the output '{port}' of the node '{}' as sensitive",
                    node.id
                ));
            }
        }
        Ok(())
    }

    /// Validates a definition and compiles it.
    ///
    /// # Errors
    /// Returns every problem, with the node or edge it belongs to.
    pub fn compile(definition: Definition, node_types: NodeTypes) -> Result<Self, Problems> {
        let mut problems = Vec::new();
        let allowance = Allowance::default();
        let mut index = Index::default();
        for (position, node) in definition.nodes.iter().enumerate() {
            if index.insert(node.id.clone(), position).is_some() {
                problems.push(Problem::new(
                    format!("node '{}'", node.id),
                    "the id is used twice",
                ));
            }
        }
        let is_of_host = is_tool_workflow(&definition.id);
        for node in &definition.nodes {
            if is_of_host != (node.type_id == GIVEN_TOOL) {
                let rule = match is_of_host {
                    true => format!(
                        "id '{}' is that of the host's own workflow: use another",
                        definition.id
                    ),
                    false => format!("typeId '{GIVEN_TOOL}' is not offered by this host"),
                };
                problems.push(Problem::new(format!("node '{}'", node.id), rule));
            }
            if let Some(other) =
                shares_interrupt_ids(node.id.as_str()).filter(|other| index.contains_key(*other))
            {
                problems.push(Problem::new(
                    format!("node '{}'", node.id),
                    format!("the id is that of node '{other}' and a number, so interrupts of both could have one id"),
                ));
            }
        }
        let mut nodes: Vec<_> = definition
            .nodes
            .iter()
            .filter_map(|node| {
                let place = format!("node '{}'", node.id);
                let mut inputs = Vec::with_capacity(node.inputs.len());
                for (name, port) in &node.inputs {
                    match Port::read(port, &index, &allowance) {
                        Ok(port) => inputs.push((name.clone(), port)),
                        Err(rule) => problems.push(Problem::new(&place, format!("input '{name}': {rule}"))),
                    }
                }
                let retries = |field: &str, fallback: u64| match node.settings.get(field) {
                    None => Ok(fallback),
                    Some(value) => {
                        whole(value).ok_or_else(|| format!("settings.{field} is not a whole number"))
                    }
                };
                let settings = &definition.settings;
                let least = if calls_agent(&node.type_id) {
                    AGENT_RETRIES
                } else if calls_tool(&node.type_id, &node.config) {
                    TOOL_RETRIES
                } else if asks_model(&node.type_id) || is_led_by_model(node) {
                    MODEL_RETRIES
                } else {
                    0
                };
                let most = u64::from(settings.max_retries.max(least));
                let max_retries = retries("maxRetries", most).and_then(|n| {
                    u32::try_from(n)
                        .ok()
                        .filter(|n| *n <= MAX_RETRIES)
                        .ok_or_else(|| format!("settings.maxRetries is over {MAX_RETRIES}"))
                });
                let delay = retries(
                    "retryDelayMs",
                    settings.retry_delay_ms.unwrap_or(DEFAULT_RETRY_DELAY_MS),
                );
                let agent = node.agent.as_ref().and_then(AgentRef::read);
                match (NodeKind::read(node, node_types, &allowance), max_retries, delay) {
                    (Ok(kind), Ok(max_retries), Ok(retry_delay_ms)) => Some(PlanNode {
                        id: node.id.clone(),
                        name: node.name().to_owned(),
                        type_id: node.type_id.clone(),
                        kind,
                        agent,
                        inputs,
                        artifact_type: node.artifact_type.clone(),
                        disabled: node.disabled,
                        max_retries,
                        retry_delay_ms,
                        out: Vec::new(),
                        forward: Vec::new(),
                        back: Vec::new(),
                    }),
                    (kind, max_retries, delay) => {
                        let rules = [kind.err(), max_retries.err(), delay.err()];
                        problems.extend(rules.into_iter().flatten().map(|rule| Problem::new(&place, rule)));
                        None
                    }
                }
            })
            .collect();
        restrict_answers(&mut nodes);
        let mut edges = Vec::with_capacity(definition.edges.len());
        let mut edge_ids = HashSet::with_capacity(definition.edges.len());
        for edge in &definition.edges {
            let place = format!("edge '{}'", edge.id);
            if edge.id.is_empty() {
                problems.push(Problem::new("an edge", "'id' is empty"));
            } else if !edge_ids.insert(edge.id.as_str()) {
                problems.push(Problem::new(&place, "the id is used twice"));
            }
            let source = index.get(&edge.source_node_id).copied();
            let target = index.get(&edge.target_node_id).copied();
            if source.is_none() {
                problems.push(Problem::new(
                    &place,
                    format!("source node '{}' does not exist", edge.source_node_id),
                ));
            }
            if target.is_none() {
                problems.push(Problem::new(
                    &place,
                    format!("target node '{}' does not exist", edge.target_node_id),
                ));
            }
            let condition = match edge
                .condition
                .as_ref()
                .map(|condition| Condition::read(condition, &allowance))
                .transpose()
            {
                Ok(condition) => condition,
                Err(rule) => {
                    problems.push(Problem::new(&place, format!("condition: {rule}")));
                    None
                }
            };
            if let (Some(source), Some(target)) = (source, target) {
                edges.push(PlanEdge {
                    source,
                    target,
                    rule: edge.trigger_rule,
                    condition,
                    slot: None,
                });
            }
        }
        let mut declared = HashMap::new();
        for (position, variable) in definition.variables.iter().enumerate() {
            if variable.name.starts_with(EXCHANGES) {
                let rule = format!("names that begin with '{EXCHANGES}' are the host's");
                problems.push(Problem::new(format!("variable '{}'", variable.name), rule));
            }
            if declared.insert(variable.name.clone(), position).is_some() {
                problems.push(Problem::new(
                    format!("variable '{}'", variable.name),
                    "the name is used twice",
                ));
            }
        }
        let configurable = match definition
            .configurable_schema
            .as_ref()
            .map(|schema| Schema::compile(schema, &allowance))
            .transpose()
        {
            Ok(validator) => validator,
            Err(rule) => {
                problems.push(Problem::new("definition", format!("configurableSchema: {rule}")));
                None
            }
        };
        for (name, declaration) in &definition.channels {
            let problem = |rule: String| Problem::new(format!("channel '{name}'"), rule);
            problems.extend(channel::check(declaration).map(problem));
        }
        for node in &nodes {
            if let NodeKind::SetVariable { name, .. } = &node.kind
                && definition.channels.contains_key(name)
            {
                let rule = format!("config.name: '{name}' is a channel, which only core.channelWrite writes");
                problems.push(Problem::new(format!("node '{}'", node.id), rule));
            }
        }
        let is_supervisor = |node: &Node| node.type_id == "core.orchestrator.supervisor";
        let has_supervisor = definition.nodes.iter().any(is_supervisor);
        if !has_supervisor {
            let dispatches = nodes
                .iter()
                .filter(|node| matches!(node.kind, NodeKind::Dispatch(_)));
            problems.extend(dispatches.map(|node| {
                let rule = "core.dispatch follows the decisions of a core.orchestrator.supervisor, and there is none";
                Problem::new(format!("node '{}'", node.id), rule)
            }));
        }
        let is_dispatch = |node: &PlanNode| matches!(node.kind, NodeKind::Dispatch(_));
        if !nodes.iter().any(is_dispatch) {
            let verified = nodes.iter().filter(|node| node.kind.verifier().is_some());
            problems.extend(verified.map(|node| {
                let rule = "config.verifier judges what a core.dispatch is to follow, and there is none";
                Problem::new(format!("node '{}'", node.id), rule)
            }));
        }
        if !problems.is_empty() {
            problems.truncate(MAX_PROBLEMS);
            return Err(Problems(problems));
        }
        let mut channels = HashMap::new();
        for (name, declaration) in &definition.channels {
            match channel::Guard::of(declaration, &allowance) {
                Ok(guard) => drop(channels.insert(name.clone(), guard)),
                Err(rule) => problems.push(Problem::new(format!("channel '{name}'"), rule)),
            }
        }
        if !problems.is_empty() {
            return Err(Problems(problems));
        }
        let sensitive = sensitive(&definition, &nodes);
        let never_waits = nodes.iter().all(|node| node.kind.never_waits());
        let has_sensitive_output = definition.nodes.iter().any(|node| node.marked().next().is_some());
        let extra_bytes = extra_bytes(&definition) + allowance.compiled_bytes();
        let mut plan = Self {
            definition,
            nodes,
            edges,
            entries: Vec::new(),
            has_loop: false,
            joins: Vec::new(),
            has_supervisor,
            index,
            declared,
            channels,
            sensitive,
            has_sensitive_output,
            never_waits,
            configurable,
            extra_bytes,
        };
        plan.connect();
        Ok(plan)
    }

    /// Whether a child of this node is a handoff, whose transitions are recorded: work that follows a supervisor's
    /// decision, or is vouched for.
    pub(crate) fn hands_over(&self, sub: &SubWorkflow) -> bool {
        self.has_supervisor || sub.attestation.is_some()
    }

    /// The supervisors, each with the agent that decides: its id, and what the node says of it.
    pub fn supervisors(&self) -> impl Iterator<Item = (&NodeId, Object)> {
        let nodes = self.nodes.iter().zip(&self.definition.nodes);
        nodes.filter_map(|(node, defined)| {
            let NodeKind::Supervisor(supervisor) = &node.kind else {
                return None;
            };
            let own = defined.agent.as_ref().and_then(Value::as_object);
            let own = own.filter(|own| own.get("agentId").and_then(Value::as_str) == Some(&supervisor.agent));
            let mut agent = own.cloned().unwrap_or_default();
            agent.insert("agentId".to_owned(), supervisor.agent.as_str().into());
            Some((&node.id, agent))
        })
    }

    /// The agent that leads a run: the one that has decided, or else the first that has begun to.
    #[must_use]
    pub fn orchestrator(&self, run: &Run, state: &State) -> Option<Object> {
        let decided = state.supervision.as_ref().map(|known| known.agent.as_str());
        let has_begun = |node: &NodeId| run.latest_ordinal(self, node).is_some();
        let mut supervisors = self.supervisors();
        let (_, agent) = supervisors.find(|(node, agent)| match decided {
            Some(decided) => agent.get("agentId").and_then(Value::as_str) == Some(decided),
            None => has_begun(node),
        })?;
        Some(agent)
    }

    /// The workers that the definition says in advance will work, and those that judge their work.
    pub fn planned_workers(&self) -> impl Iterator<Item = &str> {
        let deciders = self.nodes.iter().filter_map(|node| match &node.kind {
            NodeKind::Supervisor(supervisor) => Some(&supervisor.decider),
            _ => None,
        });
        let verifiers = self.nodes.iter().filter_map(|node| node.kind.verifier());
        deciders
            .flat_map(Decider::planned_workers)
            .chain(verifiers.map(|verifier| verifier.worker.as_str()))
    }

    /// Ids and types of the nodes, in document order.
    pub fn node_types(&self) -> impl Iterator<Item = (&NodeId, &str)> {
        self.nodes.iter().map(|node| (&node.id, node.type_id.as_str()))
    }

    /// The position of the node with an id as the definition spells it.
    pub(crate) fn position_of(&self, node: &str) -> Option<usize> {
        self.index.get(node).copied()
    }

    pub(crate) fn declares(&self, variable: &str) -> bool {
        self.declared.contains_key(variable)
    }

    /// The rules that a declared channel has for writes.
    pub(crate) fn channel(&self, name: &str) -> Option<&channel::Guard> {
        self.channels.get(name)
    }

    #[must_use]
    pub fn variables(&self) -> &[Variable] {
        &self.definition.variables
    }

    /// Returns `true` if views redact this output of the node at this position.
    fn redacts(&self, position: usize, port: &str) -> bool {
        let node = &self.definition.nodes[position];
        let are_comments_redacted = || WORDS.iter().any(|word| self.is_sensitive(word));
        // What is said in turns may repeat any output of the node, and is in the conversation's channel.
        let are_turns_redacted = || {
            let conversation = self.nodes[position].kind.conversation();
            conversation.is_some_and(|conversation| {
                node.marked().next().is_some()
                    || self.is_sensitive(&conversation.channel)
                    || TURNS.iter().any(|port| self.is_sensitive(port))
            })
        };
        // A decision is what the agent of its node says.
        let is_decision_redacted = || {
            let kind = &self.nodes[position].kind;
            matches!(kind, NodeKind::Supervisor(_) | NodeKind::MockAgent(_))
                && self.has_sensitive_output(&node.id)
        };
        let is_end_redacted =
            || matches!(self.nodes[position].kind, NodeKind::Dispatch(_)) && self.redacts_decision(position);
        node.marks(port)
            || self.is_sensitive(port)
            || (port == DECISION && is_decision_redacted())
            || (END.contains(&port) && is_end_redacted())
            || (port == ATTESTATION && self.attests_sensitive(position))
            || (node.hears(port) && are_comments_redacted())
            || (SAID.contains(&port) && are_turns_redacted())
    }

    /// Returns `true` if views redact anything of what the node at this position takes over from a child: with its checksum, a
    /// guess could be checked.
    fn attests_sensitive(&self, position: usize) -> bool {
        let PlanNode { id, kind, .. } = &self.nodes[position];
        let NodeKind::SubWorkflow(sub) = kind else {
            return false;
        };
        let is_sensitive = |name: &String| self.is_sensitive(name);
        match sub.outputs.is_empty() {
            // The parent's definition does not name the child's outputs.
            true => !self.sensitive.is_empty() || self.is_sensitive_part(id, ""),
            false => (sub.outputs.iter()).any(|(name, from)| is_sensitive(name) || is_sensitive(from)),
        }
    }

    /// Returns `true` if views redact the decisions that the node at this position takes, holds or follows.
    fn redacts_decision(&self, position: usize) -> bool {
        match &self.nodes[position].kind {
            NodeKind::Supervisor(_) | NodeKind::MockAgent(_) => self.redacts(position, DECISION),
            // It follows what any supervisor of the run has decided.
            NodeKind::Dispatch(_) => {
                let mut nodes = self.nodes.iter().enumerate();
                self.redacts(position, DECISION)
                    || nodes.any(|(at, node)| {
                        matches!(node.kind, NodeKind::Supervisor(_)) && self.redacts(at, DECISION)
                    })
            }
            NodeKind::Pass
            | NodeKind::Delay { .. }
            | NodeKind::Fail { .. }
            | NodeKind::Reject { .. }
            | NodeKind::Stream { .. }
            | NodeKind::Approval(_)
            | NodeKind::Clarification { .. }
            | NodeKind::Interrupt { .. }
            | NodeKind::Conversation(_)
            | NodeKind::Duplicates
            | NodeKind::SetVariable { .. }
            | NodeKind::Template(_)
            | NodeKind::ChannelWrite { .. }
            | NodeKind::SubWorkflow(_)
            | NodeKind::Http(_)
            | NodeKind::Activity(_)
            | NodeKind::Agent(_)
            | NodeKind::Memory(_)
            | NodeKind::Model(_)
            | NodeKind::Tool(_)
            | NodeKind::GivenTool
            | NodeKind::SideEffect
            | NodeKind::ArtifactEmit { .. }
            | NodeKind::Requires { .. } => false,
        }
    }

    /// Checks per-run overrides against the workflow's schema; returns the first violation as text.
    pub(crate) fn check_configurable(&self, configurable: &Object, meter: &Meter<'_>) -> Result<(), String> {
        match &self.configurable {
            None => Ok(()),
            Some(schema) => schema
                .validate(&Value::Object(configurable.clone()), meter)
                .map_err(|error| match &error {
                    Invalid::Broken { at, .. } => format!("configurable{at}: {error}"),
                    Invalid::TooMuchWork => format!("configurable: {error}"),
                }),
        }
    }

    /// Finds back edges by a depth-first walk, and fills in neighbors, slots and entries.
    fn connect(&mut self) {
        let n = self.nodes.len();
        let mut has_input = vec![false; n];
        for (position, edge) in self.edges.iter().enumerate() {
            self.nodes[edge.source].out.push(position);
            has_input[edge.target] = true;
        }
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; n];
        let mut is_back = vec![false; self.edges.len()];
        let roots = (0..n).filter(|i| !has_input[*i]).chain(0..n).collect::<Vec<_>>();
        for root in roots {
            if marks[root] != Mark::New {
                continue;
            }
            marks[root] = Mark::Open;
            // (node, next outgoing edge). An explicit stack, so that a long chain cannot overflow the
            // thread's stack.
            let mut stack = vec![(root, 0)];
            while let Some((node, next)) = stack.last_mut() {
                let Some(&edge) = self.nodes[*node].out.get(*next) else {
                    marks[*node] = Mark::Done;
                    stack.pop();
                    continue;
                };
                *next += 1;
                let target = self.edges[edge].target;
                match marks[target] {
                    Mark::Open => is_back[edge] = true,
                    Mark::Done => {}
                    Mark::New => {
                        marks[target] = Mark::Open;
                        stack.push((target, 0));
                    }
                }
            }
        }
        for (position, edge) in self.edges.iter_mut().enumerate() {
            let target = &mut self.nodes[edge.target];
            if is_back[position] {
                target.back.push(position);
            } else {
                edge.slot = Some(target.forward.len());
                target.forward.push(position);
            }
        }
        self.has_loop = is_back.contains(&true);
        self.entries = (0..n).filter(|i| self.nodes[*i].forward.is_empty()).collect();
        self.joins = (0..n).filter(|i| self.nodes[*i].forward.len() > 1).collect();
    }
}

/// The approximate memory that a workflow takes besides its document and what its texts and schemas are compiled to: the
/// parsed definition repeats the values of the document, and what nodes do repeats their settings once more.
fn extra_bytes(definition: &Definition) -> usize {
    let fields = |fields: &Object| match fields.is_empty() {
        true => 0,
        false => object_size(fields),
    };
    let value = |value: &Option<Value>| value.as_ref().map_or(0, value_size);
    let nodes = definition.nodes.iter().map(|node| {
        let settings = 2 * (fields(&node.config) + fields(&node.inputs));
        NODE + settings + fields(&node.settings) + fields(&node.output_sensitivity) + value(&node.agent)
    });
    let variables = definition.variables.iter();
    let variables = variables.map(|variable| size_of::<Variable>() + value(&variable.default_value));
    let description = definition.description.as_deref().map_or(0, str::len);
    nodes.sum::<usize>()
        + variables.sum::<usize>()
        + definition.edges.len() * EDGE
        + fields(&definition.metadata)
        + fields(&definition.channels)
        + value(&definition.configurable_schema)
        + description
}

/// Lets people who decide in the place of the run's agents choose from no more workers than these.
fn restrict_answers(nodes: &mut [PlanNode]) {
    let deciders = nodes.iter().filter_map(|node| match &node.kind {
        NodeKind::Supervisor(supervisor) => Some(supervisor.decider.may_name()),
        _ => None,
    });
    let Some(may_name) = deciders.reduce(MayName::or) else {
        return;
    };
    for node in nodes {
        if let NodeKind::Dispatch(dispatch) = &mut node.kind {
            dispatch.restrict(may_name.clone());
        }
    }
}

/// Variables and channels that views redact.
fn sensitive(definition: &Definition, nodes: &[PlanNode]) -> HashSet<String> {
    let marked: HashSet<_> = definition.nodes.iter().flat_map(Node::marked).collect();
    let is_marked = |variable: &&Variable| variable.sensitive || marked.contains(variable.name.as_str());
    // An approver's comment may become any variable with one of these names.
    let mut gates = definition
        .nodes
        .iter()
        .flat_map(|node| WORDS.map(|word| node.hears(word)));
    let has_gate = gates.any(|hears| hears);
    let are_comments_redacted = definition
        .variables
        .iter()
        .filter(is_marked)
        .any(|variable| WORDS.contains(&variable.name.as_str()));
    let variables = definition.variables.iter();
    let variables = variables.filter(|variable| {
        is_marked(variable) || (has_gate && are_comments_redacted && WORDS.contains(&variable.name.as_str()))
    });
    let channels = definition.channels.iter();
    let channels = channels.filter(|(_, channel)| channel.get("sensitive") == Some(&Value::Bool(true)));
    let mut sensitive: HashSet<_> = variables
        .map(|variable| variable.name.clone())
        .chain(channels.map(|(name, _)| name.clone()))
        .collect();
    // A conversation's channel has its turns. Such a channel may hide the turns of other conversations, and so their channels.
    let conversations = definition.nodes.iter().zip(nodes).filter_map(|(node, compiled)| {
        let channel = compiled.kind.conversation()?.channel.as_str();
        definition
            .channels
            .contains_key(channel)
            .then_some((node, channel))
    });
    let conversations: Vec<_> = conversations.collect();
    loop {
        let are_turns_redacted = |node: &Node| {
            node.marked().next().is_some()
                || sensitive.contains(node.id.as_str())
                || TURNS.iter().any(|port| sensitive.contains(*port))
        };
        let mut open = conversations.iter();
        let found = open.find(|(node, channel)| !sensitive.contains(*channel) && are_turns_redacted(node));
        let Some((_, channel)) = found else {
            return sensitive;
        };
        sensitive.insert((*channel).to_owned());
    }
}

impl Port {
    fn read(document: &Value, index: &Index, allowance: &Allowance) -> Result<Self, String> {
        let text = |field: &str| {
            document
                .get(field)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
                .ok_or_else(|| format!("'{field}' is not a non-empty string"))
        };
        let optional = match document.get("optional") {
            None => false,
            Some(Value::Bool(optional)) => *optional,
            Some(_) => return Err("'optional' is not a boolean".to_owned()),
        };
        match text("type")? {
            "static" => document
                .get("value")
                .cloned()
                .map(Self::Static)
                .ok_or_else(|| "'value' is missing".to_owned()),
            "expression" => Expression::compile(text("expression")?, allowance)
                .map(Self::Expression)
                .map_err(|e| e.to_string()),
            "connection" => {
                let name = text("nodeId")?;
                let node = index
                    .get(name)
                    .copied()
                    .ok_or_else(|| format!("node '{name}' does not exist"))?;
                Ok(Self::Connection {
                    node,
                    key: text("outputKey")?.to_owned(),
                    optional,
                })
            }
            "variable" => Ok(Self::Variable {
                name: text("variableName")?.to_owned(),
                optional,
            }),
            other => Err(format!(
                "type '{other}' is none of static, expression, connection, variable"
            )),
        }
    }
}

impl Condition {
    fn read(document: &EdgeCondition, allowance: &Allowance) -> Result<Self, String> {
        let left = match &document.left {
            None => None,
            Some(path) => Some(Expression::compile(path, allowance).map_err(|e| format!("left: {e}"))?),
        };
        if left.is_none() && document.operator != Operator::Expression {
            return Err("'left' is missing".to_owned());
        }
        let right = || {
            document
                .right
                .clone()
                .ok_or_else(|| "'right' is missing".to_owned())
        };
        let test = match document.operator {
            Operator::Expression => {
                let source = document.expression.as_deref().ok_or("'expression' is missing")?;
                Test::Expression(Expression::compile(source, allowance).map_err(|e| e.to_string())?)
            }
            Operator::Equals => Test::Equals(right()?),
            Operator::NotEquals => Test::NotEquals(right()?),
            Operator::Contains => Test::Contains(right()?),
            Operator::Regex => {
                let right = right()?;
                let pattern = right.as_str().ok_or("'right' is not a pattern")?;
                let pattern = allowance.pattern(pattern).map_err(|e| format!("right: {e}"))?;
                Test::Regex(Box::new(pattern))
            }
            Operator::Truthy => Test::Truthy,
            Operator::Falsy => Test::Falsy,
        };
        Ok(Self { left, test })
    }

    /// Whether the condition holds.
    ///
    /// # Errors
    /// The evaluation fails. What is undefined is no error.
    pub(crate) fn holds(&self, context: &Context<'_>, budget: &Budget) -> Result<bool, ExpressionError> {
        let meter = budget.meter();
        let expression = match &self.test {
            Test::Expression(expression) => expression,
            Test::Equals(_)
            | Test::NotEquals(_)
            | Test::Contains(_)
            | Test::Regex(_)
            | Test::Truthy
            | Test::Falsy => match &self.left {
                Some(left) => left,
                None => return Ok(self.accepts(&Val::None, &meter)?),
            },
        };
        expression.ask(context, &meter, |value| Ok(self.accepts(value, &meter)?))
    }

    fn accepts(&self, left: &Val<'_>, meter: &Meter<'_>) -> Result<bool, Exhausted> {
        match &self.test {
            Test::Expression(_) | Test::Truthy => left.is_true(meter),
            Test::Falsy => Ok(!left.is_true(meter)?),
            Test::Equals(right) => left.is_json(right, meter),
            Test::NotEquals(right) => Ok(!left.is_json(right, meter)?),
            Test::Contains(right) => match (left, right) {
                (Val::Text(left), Value::String(right)) => {
                    meter.bytes(2 * left.as_str().len())?;
                    Ok(left.as_str().contains(right.as_str()))
                }
                (Val::Seq(left), right) => {
                    for item in left.iter() {
                        if item.is_json(right, meter)? {
                            return Ok(true);
                        }
                    }
                    Ok(false)
                }
                (Val::Map(left), Value::String(right)) => Ok(left.get(right).is_some()),
                _ => Ok(false),
            },
            Test::Regex(pattern) => match left.as_str() {
                Some(text) => pattern.is_match(text, meter),
                None => Ok(false),
            },
        }
    }
}

/// Whether a model takes the decisions of a supervisor.
fn is_led_by_model(node: &Node) -> bool {
    node.type_id == "core.orchestrator.supervisor" && node.config.contains_key("model")
}
