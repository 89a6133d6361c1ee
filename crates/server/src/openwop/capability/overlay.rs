//! Capabilities that a conformance suite switches off and on again, in conformance mode alone.
//!
//! A switch changes the discovery document and what a registration may ask for, and nothing else: workflows that are
//! registered go on as they are.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// A capability that can be switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Switch {
    DispatchMapping,
    SubWorkflowInputMapping,
}

impl Switch {
    pub(crate) const ALL: [Self; 2] = [Self::DispatchMapping, Self::SubWorkflowInputMapping];

    /// Its path in the discovery document, with points.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::DispatchMapping => "agents.dispatchMapping",
            Self::SubWorkflowInputMapping => "subWorkflow.inputMapping",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|switch| switch.name() == name)
    }

    /// The node type that uses it, and the settings that do.
    const fn used_by(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::DispatchMapping => (
                "core.dispatch",
                &[
                    "inputMapping",
                    "outputMapping",
                    "perWorkerInputMappings",
                    "perWorkerOutputMappings",
                ],
            ),
            Self::SubWorkflowInputMapping => ("core.subWorkflow", &["inputMapping"]),
        }
    }

    fn is_used_by(self, node: &Value) -> bool {
        let (type_id, settings) = self.used_by();
        let has = |setting: &&str| {
            let found = node.get("config").and_then(|config| config.get(*setting));
            found
                .and_then(Value::as_object)
                .is_some_and(|mapping| !mapping.is_empty())
        };
        node.get("typeId").and_then(Value::as_str) == Some(type_id) && settings.iter().any(has)
    }
}

/// The switches that are set.
#[derive(Debug, Clone, Default)]
pub(super) struct Overlay {
    values: BTreeMap<Switch, bool>,
    /// Counts the changes.
    pub(super) version: u64,
}

impl Overlay {
    /// Sets a switch, or takes it back.
    pub(super) fn set(&mut self, switch: Switch, value: Option<bool>) {
        match value {
            Some(value) => drop(self.values.insert(switch, value)),
            None => drop(self.values.remove(&switch)),
        }
        self.version += 1;
    }

    pub(super) fn clear(&mut self) {
        self.values.clear();
        self.version += 1;
    }

    /// What is set, by name.
    pub(super) fn shown(&self) -> Map<String, Value> {
        let values = self.values.iter();
        values
            .map(|(switch, value)| (switch.name().to_owned(), Value::Bool(*value)))
            .collect()
    }

    /// Changes the discovery document, in both places where clients look for a family.
    pub(super) fn lay_over(&self, document: &mut Value) {
        for (switch, value) in &self.values {
            let path = switch.name().replace('.', "/");
            for path in [format!("/{path}"), format!("/capabilities/{path}")] {
                if let Some(capability) = document.pointer_mut(&path) {
                    *capability = Value::Bool(*value);
                }
            }
        }
    }

    /// The first capability that a definition needs and that is switched off.
    pub(super) fn missing(&self, definition: &Value) -> Option<Switch> {
        let mut off = self
            .values
            .iter()
            .filter(|(_, value)| !**value)
            .map(|(switch, _)| *switch);
        let nodes = definition.get("nodes").and_then(Value::as_array)?;
        off.find(|switch| nodes.iter().any(|node| switch.is_used_by(node)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_definition_needs_only_what_its_nodes_use() {
        let mut overlay = Overlay::default();
        let with =
            |type_id: &str, config: Value| json!({ "nodes": [{ "typeId": type_id, "config": config }] });
        let mapped = with(
            "core.dispatch",
            json!({ "perWorkerInputMappings": { "w": { "a": "b" } } }),
        );
        assert_eq!(overlay.missing(&mapped), None);
        for switch in Switch::ALL {
            assert_eq!(Switch::parse(switch.name()), Some(switch));
            overlay.set(switch, Some(false));
        }
        assert_eq!(overlay.missing(&mapped), Some(Switch::DispatchMapping));
        let sub = with("core.subWorkflow", json!({ "inputMapping": { "a": "b" } }));
        assert_eq!(overlay.missing(&sub), Some(Switch::SubWorkflowInputMapping));
        for harmless in [
            with("core.dispatch", json!({ "inputMapping": {} })),
            with("core.subWorkflow", json!({ "outputMapping": { "a": "b" } })),
            with("core.noop", json!({ "inputMapping": { "a": "b" } })),
            json!({}),
        ] {
            assert_eq!(overlay.missing(&harmless), None, "{harmless}");
        }
        overlay.set(Switch::DispatchMapping, Some(true));
        assert_eq!(overlay.missing(&mapped), None);
    }
}
