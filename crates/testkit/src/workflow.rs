//! A builder of workflow definitions.

use std::sync::Arc;

use serde_json::{Value, json};
use wopr_core::{DialectId, NodeTypes, Plan, Problems};

/// A builder of a workflow definition.
#[derive(Debug, Clone)]
pub struct Workflow {
    document: Value,
}

impl Workflow {
    /// Creates an empty definition.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self {
            document: json!({
                "id": id,
                "name": id,
                "version": "1",
                "nodes": [],
                "edges": [],
                "triggers": [{ "id": "manual", "type": "manual" }],
                "variables": [],
                "metadata": {},
                "settings": {},
            }),
        }
    }

    /// Adds a node with this configuration.
    #[must_use]
    pub fn node(self, id: &str, type_id: &str, config: Value) -> Self {
        self.raw_node(json!({ "id": id, "typeId": type_id, "name": id, "config": config }))
    }

    /// Adds a node with this configuration and these input ports.
    #[must_use]
    pub fn wired(self, id: &str, type_id: &str, config: Value, inputs: Value) -> Self {
        self.raw_node(json!({ "id": id, "typeId": type_id, "name": id, "config": config, "inputs": inputs }))
    }

    /// Adds a node as written in the document.
    #[must_use]
    pub fn raw_node(mut self, node: Value) -> Self {
        self.list("nodes").push(node);
        self
    }

    /// Adds nodes without effect, with these space-separated ids.
    #[must_use]
    pub fn noops(self, ids: &str) -> Self {
        ids.split_whitespace()
            .fold(self, |workflow, id| workflow.node(id, "core.noop", json!({})))
    }

    /// Adds a node that waits for an approval.
    #[must_use]
    pub fn gate(self, id: &str) -> Self {
        self.node(
            id,
            "core.approvalGate",
            json!({ "actions": ["accept", "reject"] }),
        )
    }

    /// Adds a node that waits for a time.
    #[must_use]
    pub fn delay(self, id: &str, ms: u64) -> Self {
        self.node(id, "core.delay", json!({ "delayMs": ms }))
    }

    /// Adds a node with a side effect.
    #[must_use]
    pub fn effect(self, id: &str) -> Self {
        self.node(id, "core.conformance.side-effect", json!({}))
    }

    /// Adds edges, separated by commas or newlines: `a -> b`, `a -> b any_failed`.
    #[must_use]
    pub fn edges(mut self, text: &str) -> Self {
        for edge in text
            .split([',', '\n'])
            .map(str::trim)
            .filter(|edge| !edge.is_empty())
        {
            let mut words = edge.split_whitespace();
            let (source, arrow, target) = (words.next(), words.next(), words.next());
            assert_eq!(arrow, Some("->"), "an edge reads 'a -> b [rule]', not '{edge}'");
            let mut document = json!({ "sourceNodeId": source, "targetNodeId": target });
            if let Some(rule) = words.next() {
                document["triggerRule"] = json!(rule);
            }
            self = self.raw_edge(document);
        }
        self
    }

    /// Adds an edge with a condition.
    #[must_use]
    pub fn edge_if(self, source: &str, target: &str, condition: Value) -> Self {
        self.raw_edge(json!({ "sourceNodeId": source, "targetNodeId": target, "condition": condition }))
    }

    /// Adds an edge as written in the document, with a generated id unless it has one.
    #[must_use]
    pub fn raw_edge(mut self, mut edge: Value) -> Self {
        let edges = self.list("edges");
        if edge.get("id").is_none() {
            edge["id"] = json!(format!("e{}", edges.len()));
        }
        edges.push(edge);
        self
    }

    /// Adds a variable, with the further fields in `rest`.
    #[must_use]
    pub fn variable(mut self, name: &str, kind: &str, rest: Value) -> Self {
        let mut variable = json!({ "name": name, "type": kind });
        for (field, value) in rest.as_object().into_iter().flatten() {
            variable[field] = value.clone();
        }
        self.list("variables").push(variable);
        self
    }

    /// Sets a field of the definition.
    #[must_use]
    pub fn set(mut self, field: &str, value: Value) -> Self {
        self.document[field] = value;
        self
    }

    #[must_use]
    pub fn document(&self) -> Value {
        self.document.clone()
    }

    /// Compiles the definition.
    pub fn compile(&self) -> Result<Plan, Problems> {
        Plan::compile(
            DialectId::Openwop,
            self.document(),
            NodeTypes { conformance: true },
        )
    }

    /// Compiles a definition that must be valid.
    ///
    /// # Panics
    /// If the definition is invalid.
    #[must_use]
    pub fn plan(&self) -> Arc<Plan> {
        match self.compile() {
            Ok(plan) => Arc::new(plan),
            Err(problems) => panic!("{problems}"),
        }
    }

    fn list(&mut self, field: &str) -> &mut Vec<Value> {
        self.document[field].as_array_mut().unwrap()
    }
}
