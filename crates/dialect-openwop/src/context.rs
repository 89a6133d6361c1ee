//! The values of a run that expressions, templates and conditions can read.

use std::{borrow::Cow, collections::BTreeMap, rc::Rc};

use serde_json::{Value, json};
use wopr_kernel::Run;

use crate::{
    Object, Plan, State,
    expression::{Fields, Map, Scope, Text, Val},
};

/// The scope of expressions and templates: every variable by its name, and `nodes`, `variables`, `channels`,
/// `inputs` and `configurable`; at an edge also `status`, `output` and `outputs` of its source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    run: &'a Run,
    state: &'a State,
    plan: &'a Plan,
    end: Option<End<'a>>,
}

/// A node that is about to end; its outputs are not folded in yet.
#[derive(Debug, Clone, Copy)]
struct End<'a> {
    position: usize,
    status: &'static str,
    output: &'a Object,
    /// `true` if a node has an output that no declared variable holds.
    has_rest: bool,
}

impl<'a> Context<'a> {
    pub(crate) fn of(run: &'a Run, state: &'a State, plan: &'a Plan) -> Self {
        Self {
            run,
            state,
            plan,
            end: None,
        }
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
        let state = self.state.nodes.get(position)?;
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
        new.or_else(|| self.state.variables.get(name).map(Val::of))
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
                None => lent(&self.state.variables),
                Some(_) => Val::Map(Map::View(Rc::new(Variables(*self)))),
            }),
            "channels" => Some(lent(&self.state.channels)),
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
        self.0.state.variables.len() + new + 1 + weight_of(self.0.state.variables.keys().chain(names))
    }

    fn all(&self) -> BTreeMap<Cow<'a, str>, Val<'a>> {
        let old = self.0.state.variables.keys().map(String::as_str);
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
pub(crate) fn project(plan: &Plan, position: usize, outputs: &Object, variables: &mut Object) {
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
