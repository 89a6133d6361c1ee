//! Warnings about valid definitions that probably do not do what their author intends.
//!
//! A run of such a definition silently does nothing, or not what its author expects. A warning never refuses
//! a definition. Each definition is checked alone: the lints do not know what a child workflow sets or which
//! inputs a run gets.

mod edges;
mod graph;
mod loops;
mod names;
mod texts;

use serde_json::Value;
use wopr_kernel::NodeTypes;

use crate::{
    Problem,
    cost::{Budget, Exhausted},
    definition::Definition,
    node::NodeKind,
    plan::{Plan, Port},
};

use super::walk::{self, FoundText};

/// Maximum number of warnings for one definition.
const MAX_WARNINGS: usize = 100;

/// Maximum cost of all lints together; beyond it, the rest of the definition is not checked.
const MAX_WORK: u64 = 2_000_000;
/// Cost of parsing one byte of a source.
const PARSING: u64 = 4;

/// The kind of a warning. The name of a lint never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lint {
    /// A node waits for branches that exclude each other.
    ExclusiveJoin,
    /// A node can never start.
    NeverStarts,
    /// A node starts with the run because no edge leads to it.
    NothingLeadsHere,
    /// Two edges have the same nodes, rule and condition.
    DuplicateEdge,
    /// An edge or one of its members has no effect.
    NoEffect,
    /// A condition does not depend on the run.
    ConstantCondition,
    /// A condition requires a value that never occurs.
    NeverHolds,
    /// An expression, edge or mapping names a node that does not exist.
    UnknownNode,
    /// A name refers to a variable or channel that nothing declares or sets.
    UnknownVariable,
    /// A name refers to an output that the node does not have.
    UnknownOutput,
    /// A text has braces that will be shown literally.
    LiteralBraces,
    RelativeUrl,
    UnknownSetting,
    /// A declared variable is neither read nor set.
    UnusedVariable,
    /// Nothing decides after a dispatch.
    NoWayBack,
    /// A mapping is for a worker that no decision names.
    UnknownWorker,
    /// Two nodes say different things of one agent.
    DifferentAgents,
}

impl Lint {
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
            Self::NoWayBack => "no-way-back",
            Self::UnknownWorker => "unknown-worker",
            Self::DifferentAgents => "different-agents",
        }
    }
}

/// A warning about a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    pub lint: Lint,
    /// Position, message and hint.
    pub problem: Problem,
}

impl Plan {
    /// The warnings about the definition, in document order.
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
        loops::check(self, &mut warnings);
        warnings.list
    }
}

/// All texts of the definition, whichever node types the admitting host offered.
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

/// Charges for parsing a source.
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

/// Whether the node never completes.
fn always_fails(kind: &NodeKind) -> bool {
    matches!(
        kind,
        NodeKind::Fail { .. } | NodeKind::Reject { .. } | NodeKind::Requires { .. }
    )
}

/// Whether the node can never fail.
fn never_fails(plan: &Plan, index: usize) -> bool {
    let node = &plan.nodes[index];
    let is_given = |port: &Port| match port {
        Port::Static(_) => true,
        Port::Connection { optional, .. } | Port::Variable { optional, .. } => *optional,
        Port::Expression(_) => false,
    };
    matches!(node.kind, NodeKind::Pass) && node.inputs.iter().all(|(_, port)| is_given(port))
}

/// A literal as JSON, truncated.
fn written(value: &Value) -> String {
    let text = value.to_string();
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
