//! Redaction of run values: the one filter that every protocol face applies.
//!
//! No reader sees a value that a workflow marks as sensitive. Contents of artifacts and files of messages are
//! visible only with the scope `artifacts:read`. Other readers get references: the name of the producing node
//! in OpenWOP documents, the URL of the artifact in A2A documents. Both rules go by name and do not follow
//! the value.

use std::sync::Arc;

use serde_json::Value;
use wopr_core::{NodeId, Object, Plan, written_by};
use wopr_engine::View;

use crate::{Caller, Scope};

/// Replaces a redacted value.
pub const REDACTED: &str = "[REDACTED]";
/// Outputs of gates that contain a whole answer.
const WHOLE_ANSWERS: [&str; 3] = ["answers", "event", "resumeValue"];
/// Outputs of gates that contain a part of an answer.
const PARTS_OF_ANSWERS: [&str; 3] = ["feedback", "refineFeedback", EDITED];
/// Prefix of variables that hold the questions a reviewer asked at a gate.
const EXCHANGES: &str = "_askExchanges:";
/// The output with which a reviewer replaces an artifact.
pub const EDITED: &str = "editedArtifactData";

/// The values that a workflow hides from a reader.
#[derive(Debug, Clone, Default)]
pub struct Mask {
    /// `None` if nothing is hidden from this reader.
    plan: Option<Arc<Plan>>,
    /// The contents of artifacts are hidden, too.
    keeps_contents: bool,
}

impl Mask {
    #[must_use]
    pub const fn nothing() -> Self {
        Self {
            plan: None,
            keeps_contents: false,
        }
    }

    /// The mask for readers of artifacts: hides only sensitive values.
    #[must_use]
    pub fn of(plan: &Arc<Plan>) -> Self {
        Self::for_reader(plan, true)
    }

    #[must_use]
    pub fn for_reader(plan: &Arc<Plan>, reads_artifacts: bool) -> Self {
        let keeps = plan.has_sensitive() || !reads_artifacts;
        Self {
            plan: keeps.then(|| Arc::clone(plan)),
            keeps_contents: !reads_artifacts,
        }
    }

    #[must_use]
    pub fn for_caller(view: &View, caller: &Caller) -> Self {
        Self::for_reader(&view.plan, reads_artifacts(caller))
    }

    #[must_use]
    pub const fn keeps_contents(&self) -> bool {
        self.keeps_contents
    }

    /// Returns `true` if an output is sensitive, and so hidden from everybody.
    #[must_use]
    pub fn hides_output(&self, node: &NodeId, port: &str) -> bool {
        let plan = self.plan.as_ref();
        plan.is_some_and(|plan| plan.is_sensitive_output(node, port))
    }

    /// Returns `true` if an output is hidden from this reader or shown as a reference: it is sensitive, or
    /// belongs to an artifact.
    #[must_use]
    pub fn keeps_output(&self, node: &NodeId, port: &str) -> bool {
        self.hides_output(node, port) || self.is_content(node, port)
    }

    fn is_content(&self, node: &NodeId, port: &str) -> bool {
        let plan = self.plan.as_ref().filter(|_| self.keeps_contents);
        plan.is_some_and(|plan| plan.is_content_alone(node, port))
    }

    /// Returns `true` if a gate's answer, or a part of it, becomes a sensitive value.
    #[must_use]
    pub fn hides_answers(&self, node: &NodeId) -> bool {
        let Some(plan) = &self.plan else { return false };
        let mut ports = WHOLE_ANSWERS.iter().chain(&PARTS_OF_ANSWERS);
        plan.is_sensitive(node.as_str()) || ports.any(|port| plan.is_sensitive_output(node, port))
    }

    /// Returns `true` if an input is sensitive.
    #[must_use]
    pub fn hides_input(&self, name: &str) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.is_sensitive(name))
    }

    /// Masks an object whose members are named after variables or channels, or after nodes with their
    /// outputs.
    #[must_use]
    pub fn object(&self, object: &Object) -> Object {
        if self.plan.is_none() {
            return object.clone();
        }
        let member = |(name, value): (&String, &Value)| (name.clone(), self.value(name, value));
        object.iter().map(member).collect()
    }

    /// Masks the inputs of a run, named after variables. No node made them, so they contain no artifacts.
    #[must_use]
    pub fn inputs(&self, inputs: &Object) -> Object {
        let shown = |(name, value): (&String, &Value)| {
            let value = if self.hides_input(name) {
                redacted()
            } else {
                value.clone()
            };
            (name.clone(), value)
        };
        inputs.iter().map(shown).collect()
    }

    /// Masks the value of a variable or a channel, or of a member named after a node.
    #[must_use]
    pub fn value(&self, name: &str, value: &Value) -> Value {
        let Some(plan) = &self.plan else {
            return value.clone();
        };
        if plan.is_sensitive(name) {
            return redacted();
        }
        // Questions of a reviewer are as sensitive as the reviewer's feedback.
        if let Some(gate) = name.strip_prefix(EXCHANGES).map(NodeId::parse)
            && gate.is_ok_and(|gate| plan.is_sensitive_output(&gate, "feedback"))
        {
            return redacted();
        }
        if self.keeps_contents
            && let Some(node) = plan.content_of_variable(name)
        {
            return reference(node);
        }
        match (NodeId::parse(name), value) {
            (Ok(node), Value::Object(outputs)) => Value::Object(self.outputs(&node, outputs)),
            _ => value.clone(),
        }
    }

    #[must_use]
    pub fn outputs(&self, node: &NodeId, outputs: &Object) -> Object {
        let member = |(port, value): (&String, &Value)| {
            let is_content = self.keeps_contents
                && (self.plan.as_ref()).is_some_and(|plan| plan.is_content(node, port, outputs));
            let shown = if self.hides_output(node, port) {
                redacted()
            } else if is_content {
                reference(node)
            } else {
                value.clone()
            };
            (port.clone(), shown)
        };
        outputs.iter().map(member).collect()
    }

    #[must_use]
    pub fn output(&self, node: &NodeId, port: &str, value: &Value) -> Value {
        if self.hides_output(node, port) {
            redacted()
        } else if self.is_content(node, port) {
            reference(node)
        } else {
            value.clone()
        }
    }

    /// Masks the result of a run: the outputs of its last node, or of its last nodes by name.
    #[must_use]
    pub fn result(&self, outputs: &Object) -> Object {
        let Some(plan) = &self.plan else {
            return outputs.clone();
        };
        let member = |(name, value): (&String, &Value)| {
            let content = || {
                plan.content_of_result(name, outputs)
                    .filter(|_| self.keeps_contents)
            };
            let is_node = || plan.definition.nodes.iter().any(|node| node.id.as_str() == name);
            let shown = if plan.is_sensitive_result(name) {
                redacted()
            } else if is_node() && value.is_object() {
                self.value(name, value)
            } else if let Some(node) = content() {
                reference(node)
            } else {
                self.value(name, value)
            };
            (name.clone(), shown)
        };
        outputs.iter().map(member).collect()
    }

    /// Masks an answer to a node, which becomes the node's outputs.
    #[must_use]
    pub fn answer(&self, node: &NodeId, answer: &Value) -> Value {
        match answer {
            _ if WHOLE_ANSWERS.iter().any(|port| self.hides_output(node, port)) => redacted(),
            // The answer alone does not say which parts become outputs, and next to which others.
            Value::Object(parts) => {
                let part = |(name, value): (&String, &Value)| (name.clone(), self.output(node, name, value));
                Value::Object(parts.iter().map(part).collect())
            }
            other => other.clone(),
        }
    }

    /// Masks the content of an artifact for a reader of artifacts. Hides sensitive outputs that could not be
    /// recognized as such when the workflow was registered.
    #[must_use]
    pub fn content(&self, node: &NodeId, content: &Value) -> Value {
        if self.hides_output(node, "text") {
            return redacted();
        }
        match content {
            Value::Object(outputs) if self.plan.is_some() => {
                let member = |(port, value): (&String, &Value)| {
                    let hides = self.hides_output(node, port);
                    (port.clone(), if hides { redacted() } else { value.clone() })
                };
                Value::Object(outputs.iter().map(member).collect())
            }
            other => other.clone(),
        }
    }
}

pub fn reads_artifacts(caller: &Caller) -> bool {
    caller.may(Scope::ArtifactsRead)
}

/// A definition for callers: without the values that it marks as sensitive.
pub fn definition(plan: &Plan) -> Value {
    let mut document = plan.definition.document.clone();
    if plan.has_sensitive() {
        let is_kept = |node: Option<&str>, name: &str| match node.map(NodeId::parse) {
            Some(Ok(node)) => plan.is_sensitive_output(&node, name),
            Some(Err(_)) | None => plan.is_sensitive(name),
        };
        written_values(&mut document, is_kept, &mut |value| *value = redacted());
    }
    document
}

/// Returns `true` if a definition contains [`REDACTED`] as a value, as one that was read and sent back does.
pub fn is_redacted_definition(document: &Value) -> bool {
    let mut document = document.clone();
    let mut found = false;
    written_values(&mut document, |_, _| true, &mut |value| {
        found |= value.as_str() == Some(REDACTED);
    });
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

/// Replaces the content of an artifact.
pub fn reference(node: &NodeId) -> Value {
    Value::String(format!("[ARTIFACT {node}]"))
}

fn redacted() -> Value {
    Value::String(REDACTED.to_owned())
}
