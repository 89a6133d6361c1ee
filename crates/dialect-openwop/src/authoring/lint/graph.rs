//! Warnings about the graph: joins of exclusive branches, nodes that never start, and nodes that start
//! unintentionally.
//!
//! The work is bounded by nodes × edges / 64: a bit set holds the edges that must have been taken before a
//! node starts.

use std::collections::{BTreeMap, HashMap};

use crate::{Problem, Spot, cost::Budget, definition::TriggerRule, plan::Plan};

use super::{Lint, Warnings, always_fails, edges, never_fails, node_place};

/// Maximum number of exclusive edge pairs; a graph with more is checked only in part.
const MAX_PAIRS: usize = 1_000;
/// Maximum number of one node's edges that are compared with each other.
const MAX_COMPARED: usize = 64;

pub(super) fn check(plan: &Plan, constants: &[Option<bool>], warnings: &mut Warnings<'_>) {
    let graph = Graph::of(plan, constants, warnings.budget);
    let joins = graph.exclusive_joins();
    for (&node, pair) in &joins.by_node {
        let definition = &plan.definition;
        let [left, right] = pair.map(|edge| definition.edges[edge].id.as_str());
        let source = &plan.nodes[plan.edges[pair[0]].source].id;
        let rule = format!(
            "waits for all of its branches, but '{left}' and '{right}' exclude each other (node '{source}' takes one \
             of them): it never starts, and what follows it is skipped"
        );
        let problem = Problem::new(node_place(definition, node), rule)
            .at(format!("/nodes/{node}/id"), Spot::Value)
            .hint(Some(
                "give the edges into it \"triggerRule\": \"any_success\", or \"none_failed\" to wait for what was not \
                 skipped"
                    .to_owned(),
            ));
        warnings.add(Lint::ExclusiveJoin, problem);
    }
    graph.never_starts(&joins, warnings);
    graph.starts_by_itself(warnings);
}

struct Graph<'a> {
    plan: &'a Plan,
    /// The truth value of each edge's condition, if it does not depend on the run.
    constants: &'a [Option<bool>],
    /// Nodes in topological order of the forward edges.
    order: Vec<usize>,
    budget: &'a Budget,
}

/// Joins that wait for edges which exclude each other.
struct Joins {
    by_node: BTreeMap<usize, [usize; 2]>,
}

impl<'a> Graph<'a> {
    fn of(plan: &'a Plan, constants: &'a [Option<bool>], budget: &'a Budget) -> Self {
        let mut waits: Vec<_> = plan.nodes.iter().map(|node| node.forward.len()).collect();
        let mut order: Vec<_> = (0..plan.nodes.len()).filter(|node| waits[*node] == 0).collect();
        let mut next = 0;
        while let Some(&node) = order.get(next) {
            next += 1;
            for &edge in &plan.nodes[node].out {
                let edge = &plan.edges[edge];
                if edge.slot.is_some() {
                    waits[edge.target] -= 1;
                    if waits[edge.target] == 0 {
                        order.push(edge.target);
                    }
                }
            }
        }
        Self {
            plan,
            constants,
            order,
            budget,
        }
    }

    /// Pairs of edges of the same node of which at most one can be taken.
    fn exclusive_pairs(&self) -> Vec<[usize; 2]> {
        let mut pairs = Vec::new();
        for node in &self.plan.nodes {
            let out: Vec<_> = node.out.iter().copied().take(MAX_COMPARED).collect();
            let claims: Vec<_> = out
                .iter()
                .map(|&edge| edges::Claim::of(self.plan, edge))
                .collect();
            for (i, left) in claims.iter().enumerate() {
                for (j, right) in claims.iter().enumerate().skip(i + 1) {
                    if self.budget.spend(1 + left.weight.min(right.weight)).is_err() {
                        return pairs;
                    }
                    if left.excludes(right) {
                        pairs.push([out[i], out[j]]);
                        if pairs.len() >= MAX_PAIRS {
                            return pairs;
                        }
                    }
                }
            }
        }
        pairs
    }

    fn exclusive_joins(&self) -> Joins {
        let mut by_node = BTreeMap::new();
        let pairs = self.exclusive_pairs();
        if pairs.is_empty() {
            return Joins { by_node };
        }
        // Only edges that belong to a pair are numbered, which keeps the bit sets small.
        let mut numbers = HashMap::new();
        for edge in pairs.iter().flatten() {
            let next = numbers.len();
            numbers.entry(*edge).or_insert(next);
        }
        let numbered: Vec<_> = pairs
            .iter()
            .map(|pair| (numbers[&pair[0]], numbers[&pair[1]], *pair))
            .collect();
        let width = numbers.len().div_ceil(64);
        let mut needs = vec![vec![0_u64; width]; self.plan.nodes.len()];
        for &node in &self.order {
            let planned = &self.plan.nodes[node];
            // Each incoming edge is checked against each pair and has a bit set of its own.
            let work = planned.forward.len() * (numbered.len() / 4 + width + 8);
            if self.budget.spend(work as u64).is_err() {
                break;
            }
            let through = |edge: usize| {
                let mut bits = needs[self.plan.edges[edge].source].clone();
                if let Some(number) = numbers.get(&edge) {
                    bits[number / 64] |= 1 << (number % 64);
                }
                bits
            };
            let (mut all, mut any): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
            for &edge in &planned.forward {
                match self.plan.edges[edge].rule {
                    TriggerRule::AllSuccess => all.push((edge, through(edge))),
                    TriggerRule::AnySuccess | TriggerRule::AnyFailed => any.push(through(edge)),
                    // These rules also accept a skipped source.
                    TriggerRule::AllComplete | TriggerRule::NoneFailed => {}
                }
            }
            let has = |bits: &[u64], number: usize| bits[number / 64] & (1 << (number % 64)) != 0;
            let clash = numbered.iter().find(|(left, right, _)| {
                let mut lefts = all
                    .iter()
                    .filter(|(_, bits)| has(bits, *left) && !has(bits, *right));
                lefts.next().is_some() && all.iter().any(|(_, bits)| has(bits, *right) && !has(bits, *left))
            });
            if let Some((_, _, pair)) = clash
                && planned.back.is_empty()
            {
                by_node.insert(node, *pair);
                // Nodes after this join would only repeat the same warning.
                continue;
            }
            // An execution triggered by a back edge needs none of these edges.
            if planned.back.is_empty() {
                let mut need = vec![0; width];
                for (_, bits) in &all {
                    need.iter_mut().zip(bits).for_each(|(need, bits)| *need |= bits);
                }
                if let Some((first, rest)) = any.split_first() {
                    let common = rest.iter().fold(first.clone(), |mut common, bits| {
                        common
                            .iter_mut()
                            .zip(bits)
                            .for_each(|(common, bits)| *common &= bits);
                        common
                    });
                    need.iter_mut()
                        .zip(&common)
                        .for_each(|(need, bits)| *need |= bits);
                }
                needs[node] = need;
            }
        }
        Joins { by_node }
    }

    /// The reason why an edge can never let its target start, as far as the edge and its source show.
    fn dead(&self, edge: usize) -> Option<String> {
        let planned = &self.plan.edges[edge];
        let source = &self.plan.nodes[planned.source];
        let id = &source.id;
        match planned.rule {
            TriggerRule::AllSuccess | TriggerRule::AnySuccess => {
                if source.disabled {
                    Some(format!("node '{id}' is disabled"))
                } else if always_fails(&source.kind) {
                    Some(format!("node '{id}' always fails"))
                } else {
                    (self.constants[edge] == Some(false)).then(|| "its condition never holds".to_owned())
                }
            }
            TriggerRule::AnyFailed => {
                if source.disabled {
                    Some(format!("node '{id}' is disabled"))
                } else {
                    never_fails(self.plan, planned.source).then(|| format!("node '{id}' never fails"))
                }
            }
            TriggerRule::AllComplete | TriggerRule::NoneFailed => None,
        }
    }

    /// Reports nodes whose own edges prevent them from starting; the nodes after them are not reported.
    fn never_starts(&self, joins: &Joins, warnings: &mut Warnings<'_>) {
        for (node, planned) in self.plan.nodes.iter().enumerate() {
            if planned.forward.is_empty() || joins.by_node.contains_key(&node) || planned.disabled {
                continue;
            }
            if !planned.back.is_empty() && planned.back.iter().any(|&edge| self.dead(edge).is_none()) {
                continue;
            }
            let is_any = |edge: &usize| {
                matches!(
                    self.plan.edges[*edge].rule,
                    TriggerRule::AnySuccess | TriggerRule::AnyFailed
                )
            };
            let (any, all): (Vec<usize>, Vec<usize>) = planned.forward.iter().copied().partition(is_any);
            let needed = all.into_iter().find_map(|edge| Some((edge, self.dead(edge)?)));
            let last_of_any = || {
                let mut dead = any.iter().map(|&edge| Some((edge, self.dead(edge)?)));
                dead.next()?.filter(|_| dead.all(|edge| edge.is_some()))
            };
            let Some((edge, why)) = needed.or_else(last_of_any) else {
                continue;
            };
            let definition = &self.plan.definition;
            let id = &definition.edges[edge].id;
            let rule = format!("never starts: it needs the edge '{id}', and {why}");
            let problem = Problem::new(node_place(definition, node), rule)
                .at(format!("/nodes/{node}/id"), Spot::Value)
                .hint(Some(
                    "change the edge's triggerRule or condition, or remove the edge".to_owned(),
                ));
            warnings.add(Lint::NeverStarts, problem);
        }
    }

    /// Reports nodes that start with the run, probably by mistake: nodes without any edge next to connected
    /// ones, and cycles that no edge leads into.
    fn starts_by_itself(&self, warnings: &mut Warnings<'_>) {
        let plan = self.plan;
        if plan.edges.is_empty() {
            return;
        }
        let has_entry = plan
            .nodes
            .iter()
            .any(|node| node.forward.is_empty() && node.back.is_empty() && !node.out.is_empty());
        for (node, planned) in plan.nodes.iter().enumerate() {
            if planned.disabled || !planned.forward.is_empty() {
                continue;
            }
            let (rule, hint) = if planned.out.is_empty() && planned.back.is_empty() {
                (
                    "has no edges, so it starts with the run",
                    "add an edge to it, or remove the node",
                )
            } else if has_entry && !planned.back.is_empty() {
                (
                    "only edges of its own cycle lead to it, so it starts with the run",
                    "add an edge that leads into the cycle",
                )
            } else {
                continue;
            };
            let problem = Problem::new(node_place(&plan.definition, node), rule)
                .at(format!("/nodes/{node}/id"), Spot::Value)
                .hint(Some(hint.to_owned()));
            warnings.add(Lint::NothingLeadsHere, problem);
        }
    }
}
