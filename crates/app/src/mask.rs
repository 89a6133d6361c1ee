//! Redaction of run values: the one filter that every protocol face applies.
//!
//! No reader sees a value that a workflow marks as sensitive, or that has a name by which its language hides values. Contents of artifacts and files of messages are
//! visible only with the scope `artifacts:read`. Other readers get references, such as the name of the
//! producing node or the URL of the artifact. Both rules go by name and do not follow the value.

use std::{borrow::Cow, sync::Arc};

use serde_json::Value;
use wopr_core::{DialectId, NodeId, Object, Plan, PrincipalId};
use wopr_engine::View;

use crate::{Caller, Scope};

pub use wopr_core::REDACTED;

/// Outputs of gates that contain a whole answer.
const WHOLE_ANSWERS: [&str; 3] = ["answers", "event", "resumeValue"];
/// Outputs of gates that contain a part of an answer.
const PARTS_OF_ANSWERS: [&str; 4] = ["feedback", "refineFeedback", "decision", EDITED];
/// The member of a decision that has the inputs of workers.
const WORKER_INPUTS: &str = "nextWorkerInputs";
/// Prefix of variables that hold the questions a reviewer asked at a gate.
const EXCHANGES: &str = "_askExchanges:";
/// The output with which a reviewer replaces an artifact.
pub const EDITED: &str = "editedArtifactData";
/// Members of a question that show what a person is asked to judge: what a decision or a child is to become, and a
/// decision that is held.
const SUBJECTS: [&str; 2] = ["artifactData", "decision"];
/// Members of an answer that take the place of what was to be judged.
const REPLACEMENTS: [&str; 2] = [EDITED, "decision"];

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
        let keeps = plan.has_sensitive() || !plan.secret_members().is_empty() || !reads_artifacts;
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

    /// Returns `true` if this reader sees every value.
    #[must_use]
    pub const fn hides_nothing(&self) -> bool {
        self.plan.is_none()
    }

    /// Returns `true` if any member is hidden by its name.
    #[must_use]
    pub fn hides_members(&self) -> bool {
        !self.secret_members().is_empty()
    }

    fn secret_members(&self) -> &'static [&'static str] {
        self.plan.as_ref().map_or(&[], |plan| plan.secret_members())
    }

    /// Returns `true` if a member with this name is hidden from everybody, wherever it is.
    fn hides_member(&self, name: &str) -> bool {
        is_one_of(self.secret_members(), name)
    }

    /// Masks the members of a value that are hidden by their names, at any depth. Everything that is shown of a run and is
    /// not masked otherwise passes here.
    #[must_use]
    pub fn shown(&self, value: &Value) -> Value {
        let mut value = value.clone();
        self.hide_members(&mut value);
        self.hide_inputs(&mut value);
        value
    }

    /// Masks the inputs that a supervisor's decision gives its workers: their names are those of variables.
    fn hide_inputs(&self, value: &mut Value) {
        let Some(plan) = self.plan.as_ref().filter(|plan| plan.has_sensitive()) else {
            return;
        };
        let inputs = value.get_mut(WORKER_INPUTS).and_then(Value::as_array_mut);
        let inputs = inputs.into_iter().flatten().filter_map(Value::as_object_mut);
        for (name, value) in inputs.flatten() {
            if plan.is_sensitive(name) {
                *value = redacted();
            }
        }
    }

    /// Like [`Mask::shown`], for an object whose members are no variables of the run.
    #[must_use]
    pub fn members(&self, object: &Object) -> Object {
        let member = |(name, value): (&String, &Value)| {
            let value = match self.hides_member(name) {
                true => redacted(),
                false => self.shown(value),
            };
            (name.clone(), value)
        };
        object.iter().map(member).collect()
    }

    /// Like [`Mask::shown`], in place.
    pub fn hide_members(&self, value: &mut Value) {
        hide_members(value, self.secret_members());
    }

    /// Returns `true` if an output is sensitive, and so hidden from everybody.
    #[must_use]
    pub fn hides_output(&self, node: &NodeId, port: &str) -> bool {
        let plan = self.plan.as_ref();
        plan.is_some_and(|plan| plan.is_sensitive_output(node, port)) || self.hides_member(port)
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
        let mut parts = PARTS_OF_ANSWERS.iter();
        plan.is_sensitive(node.as_str())
            || plan.is_sensitive_subject(node)
            || self.hides_whole_answers(node)
            || parts.any(|port| plan.is_sensitive_output(node, port))
    }

    /// Returns `true` if a gate's answer becomes a sensitive value as a whole.
    #[must_use]
    pub fn hides_whole_answers(&self, node: &NodeId) -> bool {
        let Some(plan) = &self.plan else { return false };
        let mut ports = WHOLE_ANSWERS.iter();
        plan.is_sensitive_answer(node) || ports.any(|port| plan.is_sensitive_output(node, port))
    }

    /// Returns `true` if a gate's answer becomes the content of an artifact as a whole.
    fn is_answer_content(&self, node: &NodeId) -> bool {
        let plan = self.plan.as_ref();
        let mut outputs = plan.map_or(&[][..], |plan| plan.outputs_of_answer(node)).iter();
        outputs.any(|port| self.is_content(node, port))
    }

    /// Returns `true` if any output of the node is sensitive, and so what it was made of.
    #[must_use]
    pub fn hides_outputs(&self, node: &NodeId) -> bool {
        self.plan
            .as_ref()
            .is_some_and(|plan| plan.has_sensitive_output(node))
    }

    /// Returns `true` if an input is sensitive.
    #[must_use]
    pub fn hides_input(&self, name: &str) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.is_sensitive(name)) || self.hides_member(name)
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
    pub fn inputs<'a>(&self, inputs: &'a Object) -> Cow<'a, Object> {
        if self.plan.is_none() {
            return Cow::Borrowed(inputs);
        }
        let shown = |(name, value): (&String, &Value)| {
            let value = if self.hides_input(name) {
                redacted()
            } else {
                self.shown(value)
            };
            (name.clone(), value)
        };
        Cow::Owned(inputs.iter().map(shown).collect())
    }

    /// Masks the value of a variable or a channel, or of a member named after a node.
    #[must_use]
    pub fn value(&self, name: &str, value: &Value) -> Value {
        let Some(plan) = &self.plan else {
            return value.clone();
        };
        if plan.is_sensitive(name) || self.hides_member(name) {
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
            (Ok(node), Value::Object(outputs)) => Value::Object(self.outputs(&node, outputs).into_owned()),
            _ => self.shown(value),
        }
    }

    #[must_use]
    pub fn outputs<'a>(&self, node: &NodeId, outputs: &'a Object) -> Cow<'a, Object> {
        if self.plan.is_none() {
            return Cow::Borrowed(outputs);
        }
        let member = |(port, value): (&String, &Value)| {
            let is_content = self.keeps_contents
                && (self.plan.as_ref()).is_some_and(|plan| plan.is_content(node, port, outputs));
            let shown = if self.hides_output(node, port) {
                redacted()
            } else if is_content {
                reference(node)
            } else {
                self.shown(value)
            };
            (port.clone(), shown)
        };
        Cow::Owned(outputs.iter().map(member).collect())
    }

    #[must_use]
    pub fn output(&self, node: &NodeId, port: &str, value: &Value) -> Value {
        if self.hides_output(node, port) {
            redacted()
        } else if self.is_content(node, port) {
            reference(node)
        } else {
            self.shown(value)
        }
    }

    /// Masks what an agent said or did at a node, as the output of this name. All of it is hidden if the node has
    /// any sensitive output: an agent's reasoning may repeat what becomes the output.
    #[must_use]
    pub fn said(&self, node: &NodeId, port: &str, value: &Value) -> Value {
        let plan = self.plan.as_ref();
        if plan.is_some_and(|plan| plan.has_sensitive_output(node)) {
            return redacted();
        }
        self.output(node, port, value)
    }

    /// Like [`Mask::said`], for what a tool is called with or gives back: members that have the name of a sensitive variable
    /// are hidden.
    #[must_use]
    pub fn passed(&self, node: &NodeId, port: &str, value: &Value) -> Value {
        match self.said(node, port, value) {
            Value::Object(members) => Value::Object(self.inputs(&members).into_owned()),
            other => other,
        }
    }

    /// Masks the result of a run: the outputs of its last node, or of its last nodes by name.
    #[must_use]
    pub fn result<'a>(&self, outputs: &'a Object) -> Cow<'a, Object> {
        let Some(plan) = &self.plan else {
            return Cow::Borrowed(outputs);
        };
        let member = |(name, value): (&String, &Value)| {
            let content = || {
                plan.content_of_result(name, outputs)
                    .filter(|_| self.keeps_contents)
            };
            let is_node = || NodeId::parse(name).is_ok_and(|node| plan.position(&node).is_some());
            let shown = if plan.is_sensitive_result(name) || self.hides_member(name) {
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
        Cow::Owned(outputs.iter().map(member).collect())
    }

    /// Masks an answer to a node, which becomes the node's outputs.
    #[must_use]
    pub fn answer(&self, node: &NodeId, answer: &Value) -> Value {
        match answer {
            _ if self.hides_whole_answers(node) => redacted(),
            _ if self.is_answer_content(node) => reference(node),
            // The answer alone does not say which parts become outputs, and next to which others.
            Value::Object(parts) => {
                let part = |(name, value): (&String, &Value)| (name.clone(), self.part(node, name, value));
                Value::Object(parts.iter().map(part).collect())
            }
            other => self.shown(other),
        }
    }

    /// Masks the part of an answer with this name. It is an output of the node, or takes the place of what the node asked
    /// about.
    #[must_use]
    pub fn part(&self, node: &NodeId, name: &str, value: &Value) -> Value {
        if REPLACEMENTS.contains(&name) && !self.keeps_output(node, name) {
            return self.subject(node, value);
        }
        self.output(node, name, value)
    }

    /// Masks the parts of an answer to a node that take the place of what the node asked about, among the members of any
    /// object. `None` if a member with this name is no such part.
    #[must_use]
    pub fn replacement(&self, node: &NodeId, name: &str, value: &Value) -> Option<Value> {
        REPLACEMENTS.contains(&name).then(|| self.part(node, name, value))
    }

    /// Masks what a node asks somebody, which may show a decision or what a child gives back.
    #[must_use]
    pub fn question<'a>(&self, node: &NodeId, data: &'a Value) -> Cow<'a, Value> {
        if self.plan.is_none() || SUBJECTS.iter().all(|name| data.get(name).is_none()) {
            return Cow::Borrowed(data);
        }
        let mut data = data.clone();
        for name in SUBJECTS {
            if let Some(subject) = data.get_mut(name) {
                *subject = self.subject(node, subject);
            }
        }
        Cow::Owned(data)
    }

    /// Masks what a node asks somebody to judge: the decision that it takes, holds or follows, or what a child gives back.
    #[must_use]
    pub fn subject(&self, node: &NodeId, value: &Value) -> Value {
        let Some(plan) = &self.plan else {
            return value.clone();
        };
        if plan.is_sensitive_subject(node) {
            return redacted();
        }
        let mut shown = self.shown(value);
        for (name, value) in shown.as_object_mut().into_iter().flatten() {
            if plan.is_sensitive_part(node, name) {
                *value = redacted();
            }
        }
        shown
    }

    /// Masks the content of an artifact for a reader of artifacts. Hides sensitive outputs that could not be
    /// recognized as such when the workflow was registered, and summaries that may repeat a sensitive value.
    #[must_use]
    pub fn content(&self, node: &NodeId, content: &Value) -> Value {
        let plan = self.plan.as_ref().filter(|plan| plan.has_sensitive());
        let sums_up = plan.is_some_and(|plan| content.is_string() && plan.sums_up(node));
        if sums_up || self.hides_output(node, "text") {
            return redacted();
        }
        match content {
            Value::Object(outputs) if self.plan.is_some() => {
                let member = |(port, value): (&String, &Value)| {
                    let hides = self.hides_output(node, port);
                    (port.clone(), if hides { redacted() } else { self.shown(value) })
                };
                Value::Object(outputs.iter().map(member).collect())
            }
            other => self.shown(other),
        }
    }
}

/// Redacts the members with these names, in any case and at any depth.
pub fn hide_members(value: &mut Value, names: &[&str]) {
    if names.is_empty() {
        return;
    }
    let mut rest = vec![value];
    while let Some(value) = rest.pop() {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    match is_one_of(names, name) {
                        true => *value = redacted(),
                        false => rest.push(value),
                    }
                }
            }
            Value::Array(values) => rest.extend(values),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

fn is_one_of(names: &[&str], name: &str) -> bool {
    names.iter().any(|secret| secret.eq_ignore_ascii_case(name))
}

/// Returns `true` if the caller may see the contents of artifacts.
pub fn reads_artifacts(caller: &Caller) -> bool {
    caller.may(Scope::ArtifactsRead)
}

/// Returns `true` if the caller may see a run's result. Without `runs:read`, callers see the results of their
/// own runs only.
pub fn reads_result(caller: &Caller, view: &View) -> bool {
    reads_result_of(caller, &view.summary.principal)
}

/// Returns `true` if the caller may see the results of runs of this principal.
pub fn reads_result_of(caller: &Caller, principal: &PrincipalId) -> bool {
    caller.may(Scope::RunsRead) || *principal == caller.principal
}

/// A definition for callers: without the values that it marks as sensitive.
pub fn definition(plan: &Plan) -> Value {
    plan.redacted_document(&redacted())
}

/// Returns `true` if a definition contains [`REDACTED`] as a value, as one that was read and sent back does.
pub fn is_redacted_definition(document: &Value) -> bool {
    DialectId::of_definition(document).assigns(document, &redacted())
}

/// Replaces the content of an artifact.
pub fn reference(node: &NodeId) -> Value {
    Value::String(format!("[ARTIFACT {node}]"))
}

fn redacted() -> Value {
    Value::String(REDACTED.to_owned())
}
