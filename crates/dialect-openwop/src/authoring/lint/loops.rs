//! Warnings about supervisors and those who work for them: a loop that cannot turn, mappings for workers that nobody
//! names, concurrency that no host gives, and agents that are not the same everywhere.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{
    Problem, Spot,
    node::{Dispatch, MAX_FAN_OUT, NodeKind},
    plan::Plan,
};

use super::{super::position, Lint, Warnings, node_place};

pub(super) fn check(plan: &Plan, warnings: &mut Warnings<'_>) {
    let workers = known_workers(plan);
    for (index, node) in plan.nodes.iter().enumerate() {
        if warnings.is_full() || warnings.budget.spend(8).is_err() {
            return;
        }
        let NodeKind::Dispatch(dispatch) = &node.kind else {
            continue;
        };
        way_back(plan, index, warnings);
        too_many(plan, index, warnings);
        if let Some(workers) = &workers {
            for_workers(plan, index, dispatch, workers, warnings);
        }
    }
    agents(plan, warnings);
}

/// All workers that the supervisors can name, if the definition says so.
fn known_workers(plan: &Plan) -> Option<BTreeSet<&str>> {
    let mut workers = BTreeSet::new();
    for node in &plan.nodes {
        if let NodeKind::Supervisor(supervisor) = &node.kind {
            workers.extend(supervisor.decider.all_workers()?);
        }
    }
    Some(workers)
}

/// Warns about a dispatch after which no supervisor decides.
fn way_back(plan: &Plan, dispatch: usize, warnings: &mut Warnings<'_>) {
    let mut seen = vec![false; plan.nodes.len()];
    let mut open = vec![dispatch];
    while let Some(node) = open.pop() {
        for &edge in &plan.nodes[node].out {
            let target = plan.edges[edge].target;
            if warnings.budget.spend(1).is_err() || matches!(plan.nodes[target].kind, NodeKind::Supervisor(_))
            {
                return;
            }
            if !std::mem::replace(&mut seen[target], true) {
                open.push(target);
            }
        }
    }
    let rule =
        "no edge leads from here back to a supervisor: whatever the workers give back, nobody decides again";
    let problem = Problem::new(node_place(&plan.definition, dispatch), rule)
        .at(format!("/nodes/{dispatch}/id"), Spot::Value)
        .hint(Some("add an edge to the supervisor".to_owned()));
    warnings.add(Lint::NoWayBack, problem);
}

fn too_many(plan: &Plan, dispatch: usize, warnings: &mut Warnings<'_>) {
    let asked = plan.definition.nodes[dispatch].config.get("maxConcurrency");
    let asked = asked.and_then(Value::as_u64).unwrap_or(0);
    if asked > u64::from(MAX_FAN_OUT) {
        let rule = format!(
            "config.maxConcurrency is {asked}, and at most {MAX_FAN_OUT} workers work at the same time"
        );
        let problem = Problem::new(node_place(&plan.definition, dispatch), rule)
            .at(format!("/nodes/{dispatch}/config/maxConcurrency"), Spot::Value);
        warnings.add(Lint::NoEffect, problem);
    }
}

/// Warns about mappings for workers that no decision names.
fn for_workers(
    plan: &Plan,
    node: usize,
    dispatch: &Dispatch,
    workers: &BTreeSet<&str>,
    warnings: &mut Warnings<'_>,
) {
    for (setting, worker, _, _) in dispatch.mappings() {
        let Some(worker) = worker.filter(|worker| !workers.contains(worker)) else {
            continue;
        };
        if warnings.is_full() || warnings.budget.spend(8).is_err() {
            return;
        }
        let mut pointer = format!("/nodes/{node}/config/{setting}");
        position::push(&mut pointer, worker);
        let mut named: Vec<_> = workers.iter().copied().take(20).collect();
        if named.is_empty() {
            named.push("nobody");
        }
        let rule = format!("config.{setting}: no decision names a worker '{worker}'");
        let problem = Problem::new(node_place(&plan.definition, node), rule)
            .at(pointer, Spot::Name)
            .hint(Some(format!("the supervisor names {}", named.join(", "))));
        warnings.add(Lint::UnknownWorker, problem);
    }
}

/// Warns about nodes that say different things of one agent.
fn agents(plan: &Plan, warnings: &mut Warnings<'_>) {
    let mut known = BTreeMap::new();
    for (index, node) in plan.nodes.iter().enumerate() {
        let Some(agent) = &node.agent else { continue };
        if warnings.is_full() || warnings.budget.spend(8).is_err() {
            return;
        }
        let first = *known.entry(agent.agent_id.as_str()).or_insert(index);
        let other = &plan.nodes[first];
        if other.agent.as_ref() == Some(agent) {
            continue;
        }
        let rule = format!(
            "agent '{}' is another one than at node '{}'",
            agent.agent_id, other.id
        );
        let problem = Problem::new(node_place(&plan.definition, index), rule)
            .at(format!("/nodes/{index}/agent"), Spot::Value)
            .hint(Some("give both the same members, or another agentId".to_owned()));
        warnings.add(Lint::DifferentAgents, problem);
    }
}
