//! How the nodes of a document follow each other, by their positions.
//!
//! A token walks from node to node. A parallel node has branches to walk, each of which ends where the parallel node's own
//! edge leads; see [`crate::walk`].

use std::collections::{HashMap, HashSet};

use crate::{
    definition::{BEFORE_START, Definition, Kind},
    diagnostic::{Diagnostic, Diagnostics},
};

#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) first: usize,
    /// What follows each node; that of a switch is in its ways.
    pub(crate) next: Vec<Option<usize>>,
    /// Where a switch leads, by case and with the default last, and where the branches of a parallel node begin.
    pub(crate) ways: Vec<Vec<usize>>,
}

impl Graph {
    pub(crate) fn of(definition: &Definition) -> Result<Self, Vec<Diagnostic>> {
        let nodes = definition.nodes.iter().enumerate();
        let positions: HashMap<&str, usize> = nodes.map(|(n, node)| (node.id.as_str(), n)).collect();
        let mut check = Check {
            definition,
            positions,
            found: Diagnostics::default(),
        };
        let graph = check.graph();
        if let Some(graph) = &graph {
            check.branches(graph);
        }
        let found = check.found.into_result(());
        match (graph, found) {
            (Some(graph), Ok(())) => Ok(graph),
            (_, Err(found)) => Err(found),
            (None, Ok(())) => Err(Vec::new()),
        }
    }
}

struct Check<'d> {
    definition: &'d Definition,
    positions: HashMap<&'d str, usize>,
    found: Diagnostics,
}

impl Check<'_> {
    fn add(&mut self, at: String, message: String) {
        self.found.add(at, "profile", message);
    }

    fn graph(&mut self) -> Option<Graph> {
        let definition = self.definition;
        let n_nodes = definition.nodes.len();
        let mut next: Vec<Vec<usize>> = vec![Vec::new(); n_nodes];
        let mut firsts = Vec::new();
        for (n, (source, target)) in definition.edges.iter().enumerate() {
            let target = self.find(target, &format!("/edges/{n}/target"));
            if source == BEFORE_START {
                firsts.push(target);
                continue;
            }
            let source = self.find(source, &format!("/edges/{n}/source"));
            if let (Some(source), Some(target)) = (source, target) {
                next[source].push(target);
            }
        }
        if firsts.len() != 1 {
            let rule = format!(
                "Workflow must have exactly one edge from {BEFORE_START}, it has {}.",
                firsts.len()
            );
            self.add("/edges".to_owned(), rule);
        }
        for (word, is_it) in [
            (
                "start",
                (|kind| matches!(kind, Kind::Start { .. })) as fn(&Kind) -> bool,
            ),
            ("end", |kind| matches!(kind, Kind::End { .. })),
        ] {
            let count = definition.nodes.iter().filter(|node| is_it(&node.kind)).count();
            if count != 1 {
                let rule = format!("Workflow must have exactly one {word} node, it has {count}.");
                self.add("/nodes".to_owned(), rule);
            }
        }
        let mut ways = Vec::new();
        for (position, node) in definition.nodes.iter().enumerate() {
            let n_next = next[position].len();
            let (id, at) = (&node.id, format!("/nodes/{position}"));
            match &node.kind {
                Kind::End { .. } if n_next > 0 => {
                    self.add(
                        at,
                        format!("Node \"{id}\" is the end and must have no outgoing edge."),
                    );
                }
                // The ways of a switch are in its cases; edges from it are not followed.
                Kind::End { .. } | Kind::Switch { .. } => {}
                _ if n_next != 1 => {
                    let rule = format!("Node \"{id}\" must have exactly one outgoing edge, it has {n_next}.");
                    self.add(at, rule);
                }
                _ => {}
            }
            ways.push(self.ways(position));
        }
        let first = firsts.first().copied().flatten()?;
        let ways = ways.into_iter().collect::<Option<Vec<_>>>()?;
        Some(Graph {
            first,
            next: next.into_iter().map(|next| next.first().copied()).collect(),
            ways,
        })
    }

    fn find(&mut self, id: &str, at: &str) -> Option<usize> {
        let found = self.positions.get(id).copied();
        if found.is_none() {
            let id = &id[..id.floor_char_boundary(100)];
            self.add(
                at.to_owned(),
                format!("Edge references unknown node id \"{id}\"."),
            );
        }
        found
    }

    fn ways(&mut self, position: usize) -> Option<Vec<usize>> {
        let config = format!("/nodes/{position}/config");
        let targets: Vec<(String, String)> = match &self.definition.nodes[position].kind {
            Kind::Switch { cases, default } => {
                let cases = cases
                    .iter()
                    .enumerate()
                    .map(|(n, (_, target))| (format!("{config}/cases/{n}/target"), target.clone()));
                let default = default
                    .iter()
                    .map(|target| (format!("{config}/default"), target.clone()));
                cases.chain(default).collect()
            }
            Kind::Parallel { branches, .. } => {
                let entries = branches.iter().enumerate();
                let entries =
                    entries.map(|(n, branch)| (format!("{config}/branches/{n}/entry"), branch.entry.clone()));
                entries.collect()
            }
            _ => Vec::new(),
        };
        let found: Vec<_> = targets.iter().map(|(at, target)| self.find(target, at)).collect();
        found.into_iter().collect()
    }

    /// Checks that each branch can reach its join, and what is on its way.
    fn branches(&mut self, graph: &Graph) {
        let definition = self.definition;
        for (fork, node) in definition.nodes.iter().enumerate() {
            let (Kind::Parallel { branches, .. }, Some(join)) = (&node.kind, graph.next[fork]) else {
                continue;
            };
            for (n, (branch, entry)) in branches.iter().zip(&graph.ways[fork]).enumerate() {
                let (mut seen, mut waiting) = (HashSet::new(), vec![*entry]);
                let mut has_end = false;
                while let Some(position) = waiting.pop() {
                    if position == join {
                        has_end = true;
                        continue;
                    }
                    if !seen.insert(position) {
                        continue;
                    }
                    let inner = &definition.nodes[position];
                    let about = format!("on parallel \"{}\" branch \"{}\"", node.id, branch.name);
                    match &inner.kind {
                        Kind::Interrupt { .. } => {
                            let rule = format!(
                                "INTERRUPT_IN_PARALLEL_BRANCH: node \"{}\" (interrupt) is not allowed {about}.",
                                inner.id
                            );
                            self.add(format!("/nodes/{position}"), rule);
                        }
                        Kind::End { .. } => {
                            let rule = format!("Node \"{}\" (end) is not allowed {about}.", inner.id);
                            self.add(format!("/nodes/{position}"), rule);
                        }
                        Kind::Switch { .. } => waiting.extend(&graph.ways[position]),
                        // Its branches are walked by themselves.
                        _ => waiting.extend(graph.next[position]),
                    }
                    if let Kind::Parallel { .. } = inner.kind {
                        if position == fork {
                            let rule = format!(
                                "Node \"{}\" (parallel) is not allowed {about}: it is in itself.",
                                inner.id
                            );
                            self.add(format!("/nodes/{position}"), rule);
                        }
                        waiting.extend(&graph.ways[position]);
                    }
                }
                if !has_end {
                    let at = format!("/nodes/{fork}/config/branches/{n}/entry");
                    let rule = format!(
                        "Branch \"{}\" of parallel \"{}\" never reaches its join.",
                        branch.name, node.id
                    );
                    self.add(at, rule);
                }
            }
        }
    }
}
