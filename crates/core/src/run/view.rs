//! Views of a run: the state that protocol layers show and that expressions read.

use std::{borrow::Cow, collections::BTreeMap, rc::Rc};

use serde_json::{Value, json};

use crate::{
    InterruptKind, NodeId, Object, Parent, Plan, RunId, StepId, Timestamp,
    expression::{Fields, Map, Scope, Text, Val},
};

use super::{Artifact, Open, Phase, Run, Wait};

/// The interrupt that a run waits for, as protocol layers show it.
#[derive(Debug, Clone, Copy)]
pub struct OpenInterrupt<'a> {
    pub node: &'a NodeId,
    pub ordinal: u32,
    /// Where the interrupt was opened.
    pub asked: Asked<'a>,
}

/// Where an interrupt was opened.
#[derive(Debug, Clone, Copy)]
pub enum Asked<'a> {
    /// In this run.
    Here(&'a Open),
    /// In a child run, with the kind and id of its interrupt. The id begins with the execution that mirrors
    /// it.
    Child(&'a RunId, InterruptKind, &'a str),
}

/// The text that a node is streaming.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Streaming<'a> {
    pub step: StepId,
    /// The type and the human-readable name of the artifact that the text becomes part of.
    pub artifact: Option<(&'a str, &'a str)>,
    /// The text streamed so far.
    pub text: &'a str,
}

impl OpenInterrupt<'_> {
    #[must_use]
    pub fn kind(&self) -> InterruptKind {
        match self.asked {
            Asked::Here(open) => open.kind,
            Asked::Child(_, kind, _) => kind,
        }
    }

    /// The id and key of the interrupt. The id of a child's interrupt begins with the path to the child:
    /// `sub:0/gate:0`.
    #[must_use]
    pub fn id(&self) -> String {
        match self.asked {
            Asked::Here(_) => format!("{}:{}", self.node, self.ordinal),
            Asked::Child(_, _, id) => id.to_owned(),
        }
    }
}

impl Run {
    /// The artifact with this id, or the latest artifact of the node with this id.
    #[must_use]
    pub fn artifact(&self, id: &str) -> Option<&Artifact> {
        let newest = || self.artifacts.iter().rev();
        newest()
            .find(|artifact| artifact.id == id)
            .or_else(|| newest().find(|artifact| artifact.node() == Some(id)))
    }

    /// The texts that nodes are streaming now, in the order of the definition.
    pub fn streaming<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = Streaming<'a>> {
        self.nodes.iter().zip(&plan.nodes).filter_map(|(state, node)| {
            let Phase::Active(active) = &state.phase else {
                return None;
            };
            let streamed = active.streamed.as_ref()?;
            Some(Streaming {
                step: StepId {
                    node: node.id.clone(),
                    ordinal: active.ordinal,
                },
                artifact: node.artifact(),
                text: &streamed.text,
            })
        })
    }

    /// `None` if this run is not a child.
    #[must_use]
    pub fn parent(&self) -> Option<&Parent> {
        self.started.as_ref().and_then(|started| started.parent.as_ref())
    }

    /// The first open interrupt, here or in a child.
    #[must_use]
    pub fn interrupt<'a>(&'a self, plan: &'a Plan) -> Option<OpenInterrupt<'a>> {
        self.interrupts(plan).next()
    }

    /// All open interrupts, in the order in which they were opened.
    pub fn interrupts<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = OpenInterrupt<'a>> {
        self.waiting.iter().filter_map(|&position| {
            let Phase::Active(active) = &self.nodes[position].phase else {
                return None;
            };
            let asked = match &active.wait {
                Wait::Interrupt(open) => Asked::Here(open),
                Wait::Child {
                    run,
                    mirror: Some((kind, id)),
                } => Asked::Child(run, *kind, id),
                Wait::Child { mirror: None, .. } | Wait::Work | Wait::Retry { .. } => return None,
            };
            Some(OpenInterrupt {
                node: &plan.nodes[position].id,
                ordinal: active.ordinal,
                asked,
            })
        })
    }

    /// The ordinal of the node's latest execution.
    #[must_use]
    pub fn latest_ordinal(&self, plan: &Plan, node: &NodeId) -> Option<u32> {
        let state = self.nodes.get(plan.position(node)?)?;
        state.next_ordinal.checked_sub(1)
    }

    /// Each node that has started, with its OpenWOP state name and the number of its executions.
    pub fn node_states<'a>(
        &'a self,
        plan: &'a Plan,
    ) -> impl Iterator<Item = (&'a NodeId, &'static str, u32)> {
        self.nodes.iter().zip(&plan.nodes).filter_map(|(state, node)| {
            let word = match &state.phase {
                Phase::Idle => return None,
                Phase::Active(active) => match active.wait {
                    Wait::Interrupt(_) => "suspended",
                    Wait::Child { .. } | Wait::Work => "running",
                    Wait::Retry { .. } => "retrying",
                },
                Phase::Completed => "completed",
                Phase::Failed(_) => "failed",
                Phase::Skipped => "skipped",
                Phase::Cancelled => "cancelled",
            };
            Some((&node.id, word, state.next_ordinal))
        })
    }

    /// The node that a client would call current: the first that waits, else the first that is active.
    #[must_use]
    pub fn current_node<'a>(&self, plan: &'a Plan) -> Option<&'a NodeId> {
        let position = self.waiting.first().copied().or_else(|| {
            self.nodes
                .iter()
                .position(|state| matches!(state.phase, Phase::Active(_)))
        })?;
        plan.nodes.get(position).map(|node| &node.id)
    }

    /// When the run reaches its duration limit if it keeps running; `None` without a limit or while it is not
    /// running.
    #[must_use]
    pub fn duration_deadline(&self) -> Option<Timestamp> {
        let limit = self.started.as_ref()?.limits.run_duration_ms?;
        Some(
            self.running_since?
                .plus_millis(limit.saturating_sub(self.active_ms)),
        )
    }
}

/// The scope of expressions and templates: every variable by its name, and `nodes`, `variables`, `channels`,
/// `inputs` and `configurable`; at an edge also `status`, `output` and `outputs` of its source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    run: &'a Run,
    plan: &'a Plan,
    end: Option<End<'a>>,
}

/// A node that is about to end; its outputs are not folded in yet.
#[derive(Debug, Clone, Copy)]
struct End<'a> {
    position: usize,
    status: &'static str,
    output: &'a Object,
    /// Whether any output is not a declared variable.
    has_rest: bool,
}

impl<'a> Context<'a> {
    pub(crate) fn of(run: &'a Run, plan: &'a Plan) -> Self {
        Self { run, plan, end: None }
    }

    /// The context for evaluating the outgoing edges of a node that is about to end.
    pub(crate) fn at_end(self, position: usize, status: &'static str, output: &'a Object) -> Self {
        let end = Some(End {
            position,
            status,
            output,
            has_rest: output.keys().any(|port| !self.plan.declares(port)),
        });
        Self { end, ..self }
    }

    fn completed(&self) -> Option<&End<'a>> {
        self.end.as_ref().filter(|end| end.status == "completed")
    }

    /// What expressions see of a node: its outputs, or its latest failure.
    fn node(&self, position: usize) -> Option<Val<'a>> {
        let state = self.run.nodes.get(position)?;
        let ended = self.completed().filter(|end| end.position == position);
        if let Some(outputs) = ended.map(|end| end.output).or(state.outputs.as_ref()) {
            return Some(Val::Map(Map::Lent(outputs)));
        }
        let error = state.error.as_ref().filter(|error| error.contains_key("code"))?;
        let error = (Cow::Borrowed("error"), Val::Map(Map::Lent(error)));
        Some(Val::Map(Map::Made(Rc::new(BTreeMap::from([error])))))
    }

    /// A variable as it will be after the current node has ended.
    fn variable(&self, name: &str) -> Option<Val<'a>> {
        let new = self.completed().and_then(|end| {
            if end.has_rest && self.plan.nodes[end.position].id.as_str() == name {
                return Some(Val::Map(Map::View(Rc::new(Rest(*self, end.output)))));
            }
            let output = end.output.get(name).filter(|_| self.plan.declares(name));
            output.map(Val::of)
        });
        new.or_else(|| self.run.variables.get(name).map(Val::of))
    }
}

/// The outputs that become a variable named after their node.
#[derive(Debug)]
struct Rest<'a>(Context<'a>, &'a Object);

impl<'a> Fields<'a> for Rest<'a> {
    fn get(&self, name: &str) -> Option<Val<'a>> {
        let output = self.1.get(name).filter(|_| !self.0.plan.declares(name));
        output.map(Val::of)
    }

    fn most(&self) -> usize {
        self.1.len() + weight_of(self.1.keys())
    }

    fn all(&self) -> BTreeMap<Cow<'a, str>, Val<'a>> {
        let rest = self.1.iter().filter(|(port, _)| !self.0.plan.declares(port));
        rest.map(|(port, value)| (Cow::Borrowed(port.as_str()), Val::of(value)))
            .collect()
    }
}

impl<'a> Scope<'a> for Context<'a> {
    fn get(&self, name: &str) -> Option<Val<'a>> {
        match (name, &self.end) {
            ("status", Some(end)) => return Some(Val::Text(Text::Lent(end.status))),
            ("output" | "outputs", Some(end)) => return Some(Val::Map(Map::Lent(end.output))),
            _ => {}
        }
        let lent = |fields: &'a Object| Val::Map(Map::Lent(fields));
        let started = self.run.started.as_ref();
        match name {
            "nodes" => Some(Val::Map(Map::View(Rc::new(Nodes(*self))))),
            "variables" => Some(match self.completed() {
                None => lent(&self.run.variables),
                Some(_) => Val::Map(Map::View(Rc::new(Variables(*self)))),
            }),
            "channels" => Some(lent(&self.run.channels)),
            "inputs" => started.map(|started| lent(&started.inputs)),
            "configurable" => started.map(|started| lent(&started.configurable)),
            _ => self.variable(name),
        }
    }
}

/// The nodes by id, as expressions see them.
#[derive(Debug)]
struct Nodes<'a>(Context<'a>);

impl<'a> Fields<'a> for Nodes<'a> {
    fn get(&self, name: &str) -> Option<Val<'a>> {
        let position = self.0.plan.position_of(name)?;
        self.0.node(position)
    }

    fn most(&self) -> usize {
        self.0.plan.nodes.len()
    }

    fn all(&self) -> BTreeMap<Cow<'a, str>, Val<'a>> {
        let nodes = self.0.plan.nodes.iter().enumerate();
        let shown = nodes.filter_map(|(position, node)| {
            let shown = self.0.node(position)?;
            Some((Cow::Borrowed(node.id.as_str()), shown))
        });
        shown.collect()
    }
}

/// The variables, including those that the ending node sets.
#[derive(Debug)]
struct Variables<'a>(Context<'a>);

impl<'a> Fields<'a> for Variables<'a> {
    fn get(&self, name: &str) -> Option<Val<'a>> {
        self.0.variable(name)
    }

    fn most(&self) -> usize {
        let new = self.0.completed().map_or(0, |end| end.output.len());
        let names = self.0.completed().into_iter().flat_map(|end| end.output.keys());
        self.0.run.variables.len() + new + 1 + weight_of(self.0.run.variables.keys().chain(names))
    }

    fn all(&self) -> BTreeMap<Cow<'a, str>, Val<'a>> {
        let old = self.0.run.variables.keys().map(String::as_str);
        let new = self.0.completed().into_iter().flat_map(|end| {
            let ports = end.output.keys().map(String::as_str);
            ports.chain([self.0.plan.nodes[end.position].id.as_str()])
        });
        let each = |name: &'a str| Some((Cow::Borrowed(name), self.0.variable(name)?));
        old.chain(new).filter_map(each).collect()
    }
}

/// The extra cost of long names, on top of their number.
fn weight_of<'n>(names: impl Iterator<Item = &'n String>) -> usize {
    names.map(String::len).sum::<usize>() / 32
}

/// Turns outputs into variables: under the port's name where the workflow declares it, else under the node's
/// id.
pub(super) fn project(plan: &Plan, position: usize, outputs: &Object, variables: &mut Object) {
    let mut rest = Object::new();
    for (port, value) in outputs {
        if plan.declares(port) {
            variables.insert(port.clone(), value.clone());
        } else {
            rest.insert(port.clone(), value.clone());
        }
    }
    if !rest.is_empty() {
        variables.insert(plan.nodes[position].id.to_string(), Value::Object(rest));
    }
}

/// The content of an artifact made of a node's outputs: the output named `text`, else all of them.
pub(crate) fn artifact_content(outputs: &Object) -> Value {
    outputs.get("text").cloned().unwrap_or_else(|| json!(outputs))
}
