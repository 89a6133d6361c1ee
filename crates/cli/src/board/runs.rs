//! The child runs whose steps a board shows, each below the line of the step that waits for it.

use std::collections::HashMap;

use serde_json::Value;

use super::{DEFAULT_PEER, INVOKE, NAME};
use crate::render::{cut, text};

/// How many levels of child runs are shown.
const MAX_DEPTH: usize = 8;

/// What a definition says of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Node {
    pub(super) name: String,
    /// The agent that it calls: its peer's name, and the skill if one is named.
    pub(super) agent: Option<String>,
}

/// The runs of a tree, by what is known of their definitions.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// The nodes of the run at the top.
    top: HashMap<String, Node>,
    below: HashMap<String, Below>,
}

#[derive(Debug)]
struct Below {
    /// How many runs are above it.
    depth: usize,
    /// The key of the line that it is below.
    anchor: String,
    nodes: HashMap<String, Node>,
}

impl Runs {
    pub(super) fn new(definition: &Value) -> Self {
        Self {
            top: nodes(definition),
            below: HashMap::new(),
        }
    }

    /// Adds a child run, below the line with a key.
    pub(super) fn add(&mut self, parent: &str, child: &str, anchor: String) {
        let depth = self.depth(parent) + 1;
        if depth <= MAX_DEPTH {
            let below = Below {
                depth,
                anchor,
                nodes: HashMap::new(),
            };
            self.below.insert(child.to_owned(), below);
        }
    }

    /// Learns what the nodes of a child run are called.
    pub(super) fn describe(&mut self, child: &str, definition: &Value) {
        if let Some(below) = self.below.get_mut(child) {
            below.nodes = nodes(definition);
        }
    }

    /// Forgets the child runs below a line.
    pub(super) fn remove_below(&mut self, anchor: &str) {
        self.below.retain(|_, below| below.anchor != anchor);
    }

    /// How deep the lines of a run are; those of the run at the top are at 0.
    pub(super) fn depth(&self, run: &str) -> usize {
        self.below.get(run).map_or(0, |below| below.depth)
    }

    /// The key of the line that a run's lines are below; `None` for the run at the top.
    pub(super) fn anchor(&self, run: &str) -> Option<&str> {
        self.below.get(run).map(|below| below.anchor.as_str())
    }

    pub(super) fn node(&self, run: &str, node: &str) -> Option<&Node> {
        let nodes = self.below.get(run).map_or(&self.top, |below| &below.nodes);
        nodes.get(node)
    }
}

fn nodes(definition: &Value) -> HashMap<String, Node> {
    let nodes = definition.get("nodes").and_then(Value::as_array);
    let nodes = nodes.into_iter().flatten().map(|node| {
        let agent = (text(node, "typeId") == INVOKE).then(|| agent_of(node));
        let name = match text(node, "name") {
            "" => text(node, "id"),
            name => name,
        };
        let name = cut(name, NAME);
        (text(node, "id").to_owned(), Node { name, agent })
    });
    nodes.collect()
}

fn agent_of(node: &Value) -> String {
    let config = node.get("config").unwrap_or(&Value::Null);
    let peer = match text(config, "peer") {
        "" => DEFAULT_PEER,
        peer => peer,
    };
    match text(config, "skill") {
        "" => cut(peer, NAME),
        skill => cut(&format!("{peer}/{skill}"), 2 * NAME),
    }
}
