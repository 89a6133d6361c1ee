//! Warnings: what a definition may say and hardly means.
//!
//! A run of such a definition silently does nothing, or something else than its author expects. Warnings never refuse
//! a definition. They look at one definition alone: what a child workflow sets, or what a run is started with, they
//! do not know.

mod edges;
mod graph;
mod names;
mod texts;

use serde_json::Value;

use crate::{
    cost::{Budget, Exhausted},
    definition::Definition,
    node::{NodeKind, NodeTypes},
    plan::{Plan, Port},
    problem::Problem,
};

use super::walk::{self, FoundText};

/// Most warnings of one definition.
const MAX_WARNINGS: usize = 100;

/// The most that looking for all of them may cost; past it, what is left of the definition is not looked at.
const MAX_WORK: u64 = 2_000_000;
/// What parsing costs for each byte of a source.
const PARSING: u64 = 4;

/// What a warning is about; its name never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lint {
    /// A node waits for branches that exclude each other.
    ExclusiveJoin,
    /// A node can never start.
    NeverStarts,
    /// A node starts with the run because nothing leads to it.
    NothingLeadsHere,
    /// Two edges say the same.
    DuplicateEdge,
    /// An edge, or a member of it, changes nothing.
    NoEffect,
    /// A condition does not depend on the run.
    ConstantCondition,
    /// A condition asks for a value that is never there.
    NeverHolds,
    /// A node is named that does not exist.
    UnknownNode,
    /// A variable or channel is named that nothing declares or sets.
    UnknownVariable,
    /// An output is named that the node does not have.
    UnknownOutput,
    /// A text has braces that people will read.
    LiteralBraces,
    /// A URL is not absolute.
    RelativeUrl,
    /// A setting is not known.
    UnknownSetting,
    /// A variable is declared and neither read nor set.
    UnusedVariable,
}

impl Lint {
    /// The name of the lint.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ExclusiveJoin => "exclusive-join",
            Self::NeverStarts => "never-starts",
            Self::NothingLeadsHere => "nothing-leads-here",
            Self::DuplicateEdge => "duplicate-edge",
            Self::NoEffect => "no-effect",
            Self::ConstantCondition => "constant-condition",
            Self::NeverHolds => "never-holds",
            Self::UnknownNode => "unknown-node",
            Self::UnknownVariable => "unknown-variable",
            Self::UnknownOutput => "unknown-output",
            Self::LiteralBraces => "literal-braces",
            Self::RelativeUrl => "relative-url",
            Self::UnknownSetting => "unknown-setting",
            Self::UnusedVariable => "unused-variable",
        }
    }
}

/// Something that a definition hardly means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// What kind of thing.
    pub lint: Lint,
    /// Where, what, and what to do.
    pub problem: Problem,
}

impl Plan {
    /// What the definition says and hardly means, by place in the document.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        let budget = Budget::new(MAX_WORK);
        let mut warnings = Warnings {
            list: Vec::new(),
            budget: &budget,
        };
        let constants = edges::constants(self, &budget);
        graph::check(self, &constants, &mut warnings);
        edges::check(self, &constants, &mut warnings);
        let found = texts_of(&self.definition.document);
        texts::check(self, &found, &mut warnings);
        names::check(self, &found, &mut warnings);
        warnings.list
    }
}

/// Every text of the definition, of whatever host it was admitted by.
fn texts_of(document: &Value) -> Vec<FoundText<'_>> {
    walk::texts(document, NodeTypes { conformance: true })
}

struct Warnings<'b> {
    list: Vec<Warning>,
    budget: &'b Budget,
}

impl Warnings<'_> {
    fn is_full(&self) -> bool {
        self.list.len() >= MAX_WARNINGS
    }

    fn add(&mut self, lint: Lint, problem: Problem) {
        if !self.is_full() {
            self.list.push(Warning { lint, problem });
        }
    }
}

/// Pays for parsing a source.
fn parsing(budget: &Budget, source: &str) -> Result<(), Exhausted> {
    budget.spend(PARSING * source.len() as u64)
}

fn node_place(definition: &Definition, index: usize) -> String {
    let node = definition.nodes.get(index);
    node.map_or_else(String::new, |node| format!("node '{}'", node.id))
}

fn edge_place(definition: &Definition, index: usize) -> String {
    let edge = definition.edges.get(index);
    edge.map_or_else(String::new, |edge| format!("edge '{}'", edge.id))
}

/// Whether a node never completes.
fn always_fails(kind: &NodeKind) -> bool {
    matches!(
        kind,
        NodeKind::Fail { .. } | NodeKind::Reject { .. } | NodeKind::Requires { .. }
    )
}

/// Whether nothing can make a node fail.
fn never_fails(plan: &Plan, index: usize) -> bool {
    let node = &plan.nodes[index];
    let is_given = |port: &Port| match port {
        Port::Static(_) => true,
        Port::Connection { optional, .. } | Port::Variable { optional, .. } => *optional,
        Port::Expression(_) => false,
    };
    matches!(node.kind, NodeKind::Pass) && node.inputs.iter().all(|(_, port)| is_given(port))
}

/// A literal as people write it, cut short.
fn written(value: &Value) -> String {
    let text = value.to_string();
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
