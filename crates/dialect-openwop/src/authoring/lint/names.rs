//! Warnings about names: nodes, outputs, variables and channels that expressions, templates and mappings
//! read, but nothing declares or sets.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    ops::Bound,
};

use serde_json::{Map, Value};

use crate::{
    Problem, Read, Spot,
    cost::Budget,
    definition::TriggerRule,
    expression::{Expression, Template},
    node::{AgentTask, Dispatch, MemoryTask, ModelAnswer, NodeKind},
    plan::{Plan, Port},
};

use super::{
    super::{
        position,
        suggest::Suggest,
        walk::{FoundText, Language},
    },
    Lint, Warnings, node_place, parsing,
};

/// Names that are visible in every expression.
const EVERYWHERE: [&str; 5] = ["variables", "inputs", "configurable", "channels", "nodes"];
/// Names that are visible only in edge conditions.
const ON_EDGES: [&str; 3] = ["status", "output", "outputs"];
/// The prefix of a node's id in an expression.
const OF_NODES: &str = "nodes.";
/// The inputs that hold the text and the files of an A2A message.
const FROM_MESSAGES: [&str; 2] = ["prompt", "files"];

pub(super) fn check(plan: &Plan, found: &[FoundText<'_>], warnings: &mut Warnings<'_>) {
    let mut names = Names::of(plan, warnings.budget);
    for text in found {
        if parsing(warnings.budget, text.text).is_err() {
            return;
        }
        let reads = match text.language {
            Language::Expression => Expression::parse(text.text).map(|expression| expression.reads()),
            Language::Template => Template::parse(text.text).map(|template| template.reads()),
            Language::Words | Language::Literal => continue,
        };
        let found = text.text.match_indices(OF_NODES).map(|(at, _)| at);
        names.mentions = found.collect();
        for read in reads.unwrap_or_default() {
            if warnings.is_full() || warnings.budget.spend(8).is_err() {
                return;
            }
            names.read(text, &read, warnings);
        }
    }
    for node in 0..plan.nodes.len() {
        if warnings.is_full() || warnings.budget.spend(8).is_err() {
            return;
        }
        names.ports(node, warnings);
        names.mappings(node, warnings);
        names.sensitive(node, warnings);
    }
    names.unused(warnings);
}

struct Names<'a> {
    plan: &'a Plan,
    nodes: HashMap<&'a str, usize>,
    /// Declared variables, and variables that nodes set.
    variables: HashSet<&'a str>,
    channels: HashSet<&'a str>,
    /// Variables that are read or set anywhere.
    used: HashSet<String>,
    /// Node ids with a hyphen, which an expression parses as subtraction.
    hyphened: BTreeSet<&'a str>,
    /// Offsets of `nodes.` in the current text.
    mentions: Vec<usize>,
    suggest: Suggest,
    budget: &'a Budget,
}

impl<'a> Names<'a> {
    fn of(plan: &'a Plan, budget: &'a Budget) -> Self {
        let declared = plan.definition.variables.iter();
        let mut variables: HashSet<_> = declared.map(|variable| variable.name.as_str()).collect();
        let mut channels: HashSet<_> = plan.definition.channels.keys().map(String::as_str).collect();
        let mut used = HashSet::new();
        for (index, node) in plan.nodes.iter().enumerate() {
            if let NodeKind::SetVariable { name, .. } = &node.kind {
                variables.insert(name);
                used.insert(name.clone());
            }
            if let NodeKind::ChannelWrite { channel, .. } = &node.kind {
                channels.insert(channel);
            }
            if let NodeKind::SubWorkflow(sub) = &node.kind {
                for (name, _) in &sub.outputs {
                    variables.insert(name);
                    used.insert(name.clone());
                }
                used.insert("result".to_owned());
            }
            if let NodeKind::Dispatch(dispatch) = &node.kind {
                for name in dispatch.sets() {
                    variables.insert(name);
                    used.insert(name.to_owned());
                }
                used.extend(dispatch.reads().map(ToOwned::to_owned));
            }
            used.extend(outputs(plan, index).into_iter().flatten().map(ToOwned::to_owned));
        }
        Self {
            plan,
            nodes: plan
                .nodes
                .iter()
                .enumerate()
                .map(|(index, node)| (node.id.as_str(), index))
                .collect(),
            variables,
            channels,
            used,
            hyphened: plan
                .nodes
                .iter()
                .map(|node| node.id.as_str())
                .filter(|id| id.contains('-'))
                .collect(),
            mentions: Vec::new(),
            suggest: Suggest::new(),
            budget,
        }
    }

    fn read(&mut self, text: &FoundText<'_>, read: &Read, warnings: &mut Warnings<'_>) {
        let Some((first, rest)) = read.path.split_first() else {
            return;
        };
        let edge = text
            .part
            .filter(|(list, _)| *list == "edges")
            .map(|(_, index)| index);
        let mut warn = |lint, rule: String, hint: Option<String>| {
            let problem = Problem::new(&text.place, rule)
                .at(&text.pointer, Spot::Text(read.offset))
                .hint(hint);
            warnings.add(lint, problem);
        };
        match (first.as_str(), rest) {
            ("nodes", [node, rest @ ..]) => {
                let source = text.text.get(read.offset..).unwrap_or_default();
                match self.nodes.get(node.as_str()) {
                    Some(&index) => {
                        if let Some((rule, hint)) = self.output(index, rest.first(), true) {
                            warn(Lint::UnknownOutput, rule, hint);
                        }
                    }
                    None => {
                        let (rule, hint) = self.unknown_node(node, source);
                        warn(Lint::UnknownNode, rule, hint);
                    }
                }
            }
            ("output" | "outputs", [output, ..]) if edge.is_some() => {
                let edge = edge.and_then(|edge| self.plan.edges.get(edge));
                let Some(edge) = edge else { return };
                let may_fail = match edge.rule {
                    TriggerRule::AllSuccess | TriggerRule::AnySuccess => false,
                    TriggerRule::AllComplete | TriggerRule::NoneFailed | TriggerRule::AnyFailed => true,
                };
                if let Some((rule, hint)) = self.output(edge.source, Some(output), may_fail) {
                    warn(Lint::UnknownOutput, rule, hint);
                }
            }
            ("channels", [channel, ..]) => {
                if !self.channels.contains(channel.as_str()) {
                    let hint = self.suggest.hint(channel, self.channels.iter().copied());
                    let rule = format!("nothing declares or writes the channel '{channel}'");
                    warn(Lint::UnknownVariable, rule, hint);
                }
            }
            ("variables" | "inputs", [variable, ..]) => {
                self.used.insert(variable.clone());
                if let Some((rule, hint)) = self.variable(variable) {
                    warn(Lint::UnknownVariable, rule, hint);
                }
            }
            (name, _) if EVERYWHERE.contains(&name) => {
                // Reads the whole object, so any variable may be used.
                if rest.is_empty() && (name == "variables" || name == "inputs") {
                    let declared = self.plan.definition.variables.iter();
                    self.used.extend(declared.map(|variable| variable.name.clone()));
                }
            }
            (name, _) if edge.is_some() && ON_EDGES.contains(&name) => {}
            (name, _) => {
                self.used.insert(name.to_owned());
                if self.is_part_of_a_name(text.text, read) {
                    return;
                }
                if let Some((rule, mut hint)) = self.variable(name) {
                    let on_edge = edge.and_then(|_| self.suggest.hint(name, ON_EDGES));
                    if on_edge.is_some() {
                        hint = on_edge;
                    } else if ON_EDGES.contains(&name) {
                        hint = Some(
                            "conditions of edges alone see it; elsewhere name the node: nodes.ID.OUTPUT"
                                .to_owned(),
                        );
                    }
                    warn(Lint::UnknownVariable, rule, hint);
                }
            }
        }
    }

    /// Whether a name is the part after the hyphen of a node id that has already been reported.
    fn is_part_of_a_name(&self, text: &str, read: &Read) -> bool {
        let before = text.get(..read.offset).unwrap_or_default();
        if !before.ends_with('-') {
            return false;
        }
        let n = self
            .mentions
            .partition_point(|at| at + OF_NODES.len() <= before.len());
        let Some(&at) = n.checked_sub(1).and_then(|n| self.mentions.get(n)) else {
            return false;
        };
        let node = before[at + OF_NODES.len()..].trim_end_matches('-');
        let from = (Bound::Included(node), Bound::Unbounded);
        let next = self.hyphened.range::<str, _>(from).next();
        next.is_some_and(|id| id.starts_with(node))
    }

    fn unknown_node(&mut self, node: &str, source: &str) -> (String, Option<String>) {
        let written = source.strip_prefix("nodes.").unwrap_or_default();
        let mut ids: Vec<_> = self
            .nodes
            .keys()
            .filter(|id| id.contains('-') && written.starts_with(**id))
            .collect();
        ids.sort_by_key(|id| std::cmp::Reverse(id.len()));
        if let Some(id) = ids.first() {
            let rule = format!("nodes.{id} is a subtraction: there is no node '{node}'");
            return (rule, Some(format!("write nodes['{id}']")));
        }
        let hint = self.suggest.hint(node, self.nodes.keys().copied());
        (format!("there is no node '{node}'"), hint)
    }

    /// The problem with a reference to a node's output, if the node's type determines its outputs.
    fn output(
        &mut self,
        node: usize,
        output: Option<&String>,
        may_fail: bool,
    ) -> Option<(String, Option<String>)> {
        let output = output?;
        // Every known name is compared.
        let n_ports = self.plan.nodes[node].inputs.len() as u64;
        self.budget.spend(8 + n_ports / 2).ok()?;
        let mut known = outputs(self.plan, node)?;
        if may_fail {
            known.push("error");
        }
        if known.contains(&output.as_str()) {
            return None;
        }
        let planned = &self.plan.nodes[node];
        let rule = format!("node '{}' has no output '{output}'", planned.id);
        let hint = self.suggest.hint(output, known.iter().copied()).or_else(|| {
            known.truncate(20);
            (!known.is_empty()).then(|| format!("{} has {}", planned.type_id, known.join(", ")))
        });
        Some((rule, hint))
    }

    fn variable(&mut self, name: &str) -> Option<(String, Option<String>)> {
        let is_known = self.variables.contains(name)
            || self.nodes.contains_key(name)
            || self.channels.contains(name)
            || FROM_MESSAGES.contains(&name);
        if is_known {
            return None;
        }
        let rule =
            format!("nothing declares or sets '{name}', so it is undefined unless a run's inputs contain it");
        let known = self.variables.iter().chain(self.nodes.keys()).copied();
        let hint = self.suggest.hint(name, known.chain(EVERYWHERE));
        Some((rule, hint.or_else(|| Some("declare it in variables".to_owned()))))
    }

    fn ports(&mut self, node: usize, warnings: &mut Warnings<'_>) {
        let plan = self.plan;
        for (name, port) in &plan.nodes[node].inputs {
            let (lint, member, (rule, hint)) = match port {
                Port::Variable { name, .. } => {
                    self.used.insert(name.clone());
                    let Some(unknown) = self.variable(name) else {
                        continue;
                    };
                    (Lint::UnknownVariable, "variableName", unknown)
                }
                Port::Connection { node, key, .. } => {
                    let Some(unknown) = self.output(*node, Some(key), false) else {
                        continue;
                    };
                    (Lint::UnknownOutput, "outputKey", unknown)
                }
                Port::Static(_) | Port::Expression(_) => continue,
            };
            let mut pointer = format!("/nodes/{node}/inputs");
            position::push(&mut pointer, name);
            position::push(&mut pointer, member);
            let problem = Problem::new(
                node_place(&plan.definition, node),
                format!("inputs.{name}: {rule}"),
            )
            .at(pointer, Spot::Value)
            .hint(hint);
            warnings.add(lint, problem);
        }
    }

    /// Checks the variables that are passed to a child workflow.
    fn mappings(&mut self, node: usize, warnings: &mut Warnings<'_>) {
        let plan = self.plan;
        if let NodeKind::Dispatch(dispatch) = &plan.nodes[node].kind {
            return self.dispatch_mappings(node, dispatch, warnings);
        }
        let NodeKind::SubWorkflow(sub) = &plan.nodes[node].kind else {
            return;
        };
        for (child, parent) in &sub.inputs {
            self.used.insert(parent.clone());
            if let Some((rule, hint)) = self.variable(parent) {
                let mut pointer = format!("/nodes/{node}/config/inputMapping");
                position::push(&mut pointer, child);
                let rule = format!("config.inputMapping.{child}: {rule}");
                let problem = Problem::new(node_place(&plan.definition, node), rule)
                    .at(pointer, Spot::Value)
                    .hint(hint);
                warnings.add(Lint::UnknownVariable, problem);
            }
        }
    }

    /// Checks the variables that workers get, and those that they set: one that is not declared and looks like one
    /// that is.
    fn dispatch_mappings(&mut self, node: usize, dispatch: &Dispatch, warnings: &mut Warnings<'_>) {
        let plan = self.plan;
        let declared: Vec<_> = plan
            .definition
            .variables
            .iter()
            .map(|variable| variable.name.as_str())
            .collect();
        for (setting, worker, mapping, sets) in dispatch.mappings() {
            for (to, from) in mapping {
                if warnings.is_full() || self.budget.spend(8).is_err() {
                    return;
                }
                let found = if !sets {
                    self.variable(from)
                } else if declared.contains(&to.as_str()) {
                    None
                } else {
                    let hint = self.suggest.hint(to, declared.iter().copied());
                    hint.map(|hint| (format!("nothing declares '{to}'"), Some(hint)))
                };
                let Some((rule, hint)) = found else { continue };
                let mut pointer = format!("/nodes/{node}/config/{setting}");
                let mut path = format!("config.{setting}");
                for part in worker.into_iter().chain([to.as_str()]) {
                    position::push(&mut pointer, part);
                    path.push('.');
                    path.push_str(part);
                }
                let spot = if sets { Spot::Name } else { Spot::Value };
                let problem = Problem::new(node_place(&plan.definition, node), format!("{path}: {rule}"))
                    .at(pointer, spot)
                    .hint(hint);
                warnings.add(Lint::UnknownVariable, problem);
            }
        }
    }

    /// Reports sensitive outputs that the node does not have: views would redact nothing.
    fn sensitive(&mut self, node: usize, warnings: &mut Warnings<'_>) {
        let plan = self.plan;
        let definition = &plan.definition.nodes[node];
        // One name of an approver's comment stands for all of them, which are not all outputs.
        for output in definition.marked().filter(|output| !definition.hears(output)) {
            if let Some((rule, hint)) = self.output(node, Some(&output.to_owned()), false) {
                let mut pointer = format!("/nodes/{node}/outputSensitivity");
                position::push(&mut pointer, output);
                let problem = Problem::new(
                    node_place(&plan.definition, node),
                    format!("outputSensitivity: {rule}"),
                )
                .at(pointer, Spot::Name)
                .hint(hint);
                warnings.add(Lint::UnknownOutput, problem);
            }
        }
    }

    /// Reports declared variables that nothing reads or sets.
    fn unused(&self, warnings: &mut Warnings<'_>) {
        let definition = &self.plan.definition;
        if !is_closed(definition.document.get("nodes")) {
            return;
        }
        for (index, variable) in definition.variables.iter().enumerate() {
            // A variable with a default is a constant for a parent or for readers of the run.
            let is_used = variable.default_value.is_some() || self.used.contains(&variable.name);
            if is_used {
                continue;
            }
            let rule = if variable.required {
                "every run must be started with it, and nothing reads it"
            } else {
                "nothing reads or sets it"
            };
            let problem = Problem::new(format!("variable '{}'", variable.name), rule)
                .at(format!("/variables/{index}/name"), Spot::Value)
                .hint(Some("remove it, or use it".to_owned()));
            warnings.add(Lint::UnusedVariable, problem);
        }
    }
}

/// Whether every node type is known, so that nodes set only what the definition shows.
fn is_closed(nodes: Option<&Value>) -> bool {
    let nodes = nodes.and_then(Value::as_array);
    let mut types = nodes
        .into_iter()
        .flatten()
        .filter_map(Value::as_object)
        .filter_map(|node: &Map<String, Value>| node.get("typeId")?.as_str());
    types.all(|type_id| type_id.starts_with("core.") && !type_id.starts_with("core.conformance."))
}

/// The outputs that a node can have, if its type determines them. Every failed node also has `error`.
fn outputs(plan: &Plan, index: usize) -> Option<Vec<&str>> {
    let node = &plan.nodes[index];
    let known: &[&str] = match &node.kind {
        NodeKind::Pass => return Some(node.inputs.iter().map(|(name, _)| name.as_str()).collect()),
        NodeKind::Delay { .. } => &["waitedMs"],
        NodeKind::Stream { .. } | NodeKind::Template(_) => &["text"],
        NodeKind::Approval(_) => &[
            "action",
            "approved",
            "decidedBy",
            "feedback",
            "refineFeedback",
            "editedArtifactData",
            "contentTrust",
        ],
        NodeKind::Clarification { .. } => &["answers", "contentTrust"],
        NodeKind::Interrupt { .. } => &["event", "resumeValue", "contentTrust"],
        NodeKind::Agent(agent) => match agent.task {
            AgentTask::Invoke | AgentTask::Converse { .. } => &[
                "text",
                "data",
                "artifacts",
                "state",
                "taskId",
                "contextId",
                "statusTimestamp",
                "peer",
                "contentTrust",
            ],
            AgentTask::Send | AgentTask::Get { .. } | AgentTask::Cancel { .. } => &[
                "text",
                "data",
                "artifacts",
                "message",
                "state",
                "taskId",
                "contextId",
                "peer",
                "contentTrust",
            ],
            AgentTask::Discover => &["card", "peer", "contentTrust"],
        },
        NodeKind::Model(model) => match model.answer {
            ModelAnswer::Text { .. } => &["text", "stopReason", "usage", "provider", "model", "contentTrust"],
            ModelAnswer::Document(_) => &["data", "usage", "provider", "model", "retries", "contentTrust"],
        },
        NodeKind::Tool(_) => &[
            "content",
            "text",
            "structuredContent",
            "server",
            "tool",
            "contentTrust",
        ],
        NodeKind::GivenTool => &["text", "structuredContent", "content"],
        NodeKind::Conversation(_) => &["conversationId", "turnCount", "turns", "outcome", "contentTrust"],
        NodeKind::Duplicates => return Some(node.inputs.iter().map(|(name, _)| name.as_str()).collect()),
        NodeKind::Memory(node) => match &node.task {
            MemoryTask::Write(_) => &["memoryRef", "written", "contentTrust"],
            MemoryTask::Compact(_) => &["memoryRef", "written", "removed", "contentTrust"],
            MemoryTask::Read { .. } => &["memoryRef", "entries", "hasMore", "contentTrust"],
            MemoryTask::Probe(_) => return None,
        },
        NodeKind::Supervisor(_) => &["kind", "decision", "iteration", "contentTrust"],
        NodeKind::Dispatch(_) => &[
            "conversationId",
            "turnCount",
            "turns",
            "outcome",
            "childRunId",
            "childStatus",
            "error",
            "children",
            "joinOutcome",
            "answer",
            "action",
            "approved",
            "decidedBy",
            "feedback",
            "reason",
            "confidence",
            "successCriteria",
            "verdict",
            "revision",
            "criteria",
            "contentTrust",
        ],
        NodeKind::Http(_) => &["status", "headers", "body", "contentTrust"],
        NodeKind::Fail { .. } | NodeKind::Reject { .. } => &[],
        NodeKind::SubWorkflow(_)
        | NodeKind::Activity(_)
        | NodeKind::SetVariable { .. }
        | NodeKind::ChannelWrite { .. }
        | NodeKind::MockAgent(_)
        | NodeKind::SideEffect
        | NodeKind::ArtifactEmit { .. }
        | NodeKind::Requires { .. } => return None,
    };
    Some(known.to_vec())
}
