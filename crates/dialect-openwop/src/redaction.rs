//! The values that a definition assigns to variables, channels and outputs, and their redaction.

use serde_json::Value;
use wopr_kernel::{Planned as _, REDACTED};

use crate::{NodeId, Object, Plan, node::written_by};

impl Plan {
    /// The definition, with every value that it gives to something sensitive replaced.
    pub(crate) fn with_redacted(&self, replacement: &Value) -> Value {
        let mut document = self.definition.document.clone();
        if self.has_sensitive() {
            let is_kept = |node: Option<&str>, name: &str| match node.map(NodeId::parse) {
                Some(Ok(node)) => self.is_sensitive_output(&node, name),
                Some(Err(_)) | None => self.is_sensitive(name),
            };
            written_values(&mut document, is_kept, &mut |value| *value = replacement.clone());
        }
        document
    }
}

/// Puts the values that were hidden from whoever edited an object back in their place.
pub(crate) fn unhide(edited: &mut Object, original: &Object) {
    for (name, value) in edited {
        if value == REDACTED
            && let Some(original) = original.get(name)
        {
            *value = original.clone();
        }
    }
}

/// Whether a definition assigns this value to a variable, a channel or an output.
#[must_use]
pub fn assigns(document: &Value, wanted: &Value) -> bool {
    let mut document = document.clone();
    let mut found = false;
    written_values(&mut document, |_, _| true, &mut |value| found |= value == wanted);
    found
}

/// Visits the values that a definition assigns to variables, channels and outputs. `is_wanted` gets the
/// node's id for outputs, and the name.
fn written_values(
    document: &mut Value,
    is_wanted: impl Fn(Option<&str>, &str) -> bool,
    visit: &mut impl FnMut(&mut Value),
) {
    let mut see = |holder: &mut Value, member: &str| {
        if let Some(value) = holder.get_mut(member) {
            visit(value);
        }
    };
    let variables = document.get_mut("variables").and_then(Value::as_array_mut);
    for variable in variables.into_iter().flatten() {
        let name = variable.get("name").and_then(Value::as_str);
        if name.is_some_and(|name| is_wanted(None, name)) {
            see(variable, "defaultValue");
        }
    }
    let channels = document.get_mut("channels").and_then(Value::as_object_mut);
    for (name, channel) in channels.into_iter().flatten() {
        if is_wanted(None, name) {
            see(channel, "default");
        }
    }
    let nodes = document.get_mut("nodes").and_then(Value::as_array_mut);
    for node in nodes.into_iter().flatten() {
        let id = node
            .get("id")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let type_id = node.get("typeId").and_then(Value::as_str).unwrap_or_default();
        let config = node.get("config").and_then(Value::as_object);
        let target = config.and_then(|config| written_by(type_id, config));
        let is_written = target.is_some_and(|name| is_wanted(None, name));
        // These node types have their only output, a text, in their configuration.
        let said: &[&str] = match type_id {
            "core.template" => &["template"],
            "core.stream" => &["chunks", "expression"],
            _ => &[],
        };
        let said = said.iter().filter(|_| is_wanted(Some(&id), "text"));
        let set: &[&str] = if is_written { &["value", "expression"] } else { &[] };
        let fields: Vec<&str> = said.chain(set).copied().collect();
        let is_child = type_id == "core.subWorkflow";
        let ports = node.get_mut("inputs").and_then(Value::as_object_mut);
        for (name, port) in ports.into_iter().flatten() {
            if is_wanted(Some(&id), name) || (is_written && name == "value") {
                see(port, "value");
                see(port, "expression");
            }
        }
        let Some(config) = node.get_mut("config") else {
            continue;
        };
        for field in fields {
            see(config, field);
        }
        let Some(given) = config.get_mut("inputs").filter(|_| is_child) else {
            continue;
        };
        let names = given
            .as_object()
            .into_iter()
            .flat_map(|given| given.keys().cloned());
        for name in names.filter(|name| is_wanted(None, name)).collect::<Vec<_>>() {
            see(given, &name);
        }
    }
}
