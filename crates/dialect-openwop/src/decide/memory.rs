//! What agents remember: a node asks the host to read, or to prepare what it writes, and the outcome says what
//! that was. The entries are written with the events that this file records.
//!
//! Everything that an event needs is in the outcome, so a repetition with the recorded outcome writes the same.

use serde_json::Value;
use wopr_kernel::{KernelEvent, MemoryCall, MemoryRead, MemoryWritten, NewMemory, Seq, StepId, Timestamp};

use crate::{
    Event, Failure, Object, cost,
    node::{Entry, MemoryNode, MemoryTask, NodeKind, Probe, told},
};

use super::Walk;

/// Maximum length in bytes of an entry's content.
pub const MAX_CONTENT: usize = 64 * 1024;
/// Maximum length in bytes of an entry's id.
const MAX_ID: usize = 512;
/// Maximum length in characters of a tag.
const MAX_TAG: usize = 256;
/// Maximum number of entries that one stands for.
const MAX_SOURCES: usize = 100;
/// How long the entries of the probe for expiry last, before and after now.
const PROBED_MS: i64 = 60_000;

impl Walk<'_, '_> {
    /// What a node asks of the memory of its scope.
    pub(super) fn memory_call(
        &mut self,
        position: usize,
        node: &MemoryNode,
        mut inputs: Object,
    ) -> Result<MemoryCall, Failure> {
        let pinned = self.plan.nodes[position].agent.as_ref();
        let pinned = pinned.and_then(|agent| agent.memory_ref.clone());
        let scope = node.scope.clone().or(pinned);
        let scope = scope.unwrap_or_else(|| self.run.memory_scope(self.input.run));
        let mut call = MemoryCall {
            scope,
            ..MemoryCall::default()
        };
        match &node.task {
            MemoryTask::Write(entry) => call.write.push(self.new_entry(entry, &mut inputs)?),
            MemoryTask::Compact(entry) => {
                call.write.push(self.new_entry(entry, &mut inputs)?);
                call.remove = sources(inputs.remove("sourceIds"))?;
            }
            MemoryTask::Read { id, tag, limit } => {
                let id = match inputs.remove("id") {
                    Some(id) => Some(text("id", id)?),
                    None => id.as_ref().map(|id| self.render(id)).transpose()?,
                };
                let tag = tag.as_ref().map(|tag| self.render(tag)).transpose()?;
                call.read = Some(MemoryRead {
                    id,
                    tag,
                    limit: *limit,
                });
            }
            MemoryTask::Probe(probe) => script(probe, &mut call),
        }
        self.spend(2 * cost::bytes(call.size()))?;
        Ok(call)
    }

    fn new_entry(&self, entry: &Entry, inputs: &mut Object) -> Result<NewMemory, Failure> {
        let content = match (inputs.remove("content"), &entry.content) {
            (Some(Value::String(content)), _) => content,
            // What is no text is kept as JSON.
            (Some(content), _) => content.to_string(),
            (None, Some(content)) => self.render(content)?,
            (None, None) => return Err(Failure::new("invalid_input", "there is no content to remember")),
        };
        if content.len() > MAX_CONTENT {
            return Err(Failure::new(
                "memory_entry_too_large",
                format!(
                    "the entry would have {} bytes, and {MAX_CONTENT} is the most",
                    content.len()
                ),
            ));
        }
        let id = match inputs.remove("id") {
            Some(id) => Some(text("id", id)?),
            None => entry.id.as_ref().map(|id| self.render(id)).transpose()?,
        };
        if id.as_ref().is_some_and(|id| id.is_empty() || id.len() > MAX_ID) {
            let message = format!("the id of an entry is not a text of 1 to {MAX_ID} bytes");
            return Err(Failure::new("invalid_input", message));
        }
        let mut tags = Vec::with_capacity(entry.tags.len());
        for tag in &entry.tags {
            let tag = self.render(tag)?;
            if tag.chars().count() > MAX_TAG {
                let message = format!("a tag has more than {MAX_TAG} characters");
                return Err(Failure::new("invalid_input", message));
            }
            if !tag.is_empty() && !tags.contains(&tag) {
                tags.push(tag);
            }
        }
        Ok(NewMemory {
            id,
            content,
            tags,
            ttl_ms: entry.ttl_ms.and_then(|ms| i64::try_from(ms).ok()),
            secret: None,
        })
    }

    /// Follows the outcome of a call. Of a node that remembers, it is what was written and read.
    pub(super) fn effect_ended(&mut self, step: &StepId, cause: Seq, outcome: Result<Object, Failure>) {
        let plan = self.plan;
        let position = plan.position_of(step.node.as_str());
        let kind = position.map(|position| &plan.nodes[position].kind);
        match (outcome, kind) {
            (Ok(outcome), Some(NodeKind::Memory(node))) => {
                match self.remember(position.unwrap_or_default(), step, cause, node, &outcome) {
                    Ok(cause) => self.complete_node(step, cause, outcome),
                    Err(failure) => self.fail_node(step, cause, failure),
                }
            }
            (Ok(outcome), Some(kind)) if kind.model().is_some() => {
                if let Some(node) = kind.model() {
                    match self.lists_tools(step) {
                        true => self.tools_listed(node, step, cause, outcome),
                        false => self.model_replied(node, step, cause, outcome),
                    }
                }
            }
            (Ok(outcome), Some(NodeKind::GivenTool)) => self.complete_node(step, cause, told(outcome)),
            (outcome, Some(NodeKind::Tool(tool))) => {
                self.tool_returned(tool, position.unwrap_or_default(), step, cause, outcome);
            }
            (Ok(outcome), _) => self.complete_node(step, cause, outcome),
            (Err(failure), _) => self.fail_node(step, cause, failure),
        }
    }

    /// Records what a call wrote and removed, and sets the variable of a probe.
    fn remember(
        &mut self,
        position: usize,
        step: &StepId,
        mut cause: Seq,
        node: &MemoryNode,
        outcome: &Object,
    ) -> Result<Seq, Failure> {
        let agent = self.plan.nodes[position].agent.as_ref();
        let agent = agent.map(|agent| agent.agent_id.clone());
        let scope = outcome
            .get("memoryRef")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let entries = |name: &str| outcome.get(name).and_then(Value::as_array).into_iter().flatten();
        let mut last = None;
        for entry in entries("written") {
            let Some(written) = written(step, scope, agent.as_ref(), entry) else {
                return Err(Failure::new(
                    "internal_error",
                    "the memory's answer is not an entry",
                ));
            };
            self.spend(2 * cost::bytes(written.content.len()))?;
            last = Some((written.id.clone(), written.content.len()));
            cause = self.record(Some(cause), KernelEvent::MemoryWritten(Box::new(written)));
        }
        let sources: Vec<_> = entries("removed")
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect();
        if let (Some((output, n_bytes)), false) = (last, sources.is_empty()) {
            let compacted = KernelEvent::MemoryCompacted {
                step: step.clone(),
                scope: scope.to_owned(),
                output,
                sources,
                n_bytes: n_bytes as u64,
            };
            cause = self.record(Some(cause), compacted);
        }
        let read: Vec<_> = entries("entries").cloned().collect();
        let set = match &node.task {
            MemoryTask::Write(_) | MemoryTask::Read { .. } | MemoryTask::Compact(_) => None,
            MemoryTask::Probe(Probe::WriteThenRead | Probe::Redaction { .. }) => {
                Some(("memoryReadback", read.into_iter().next().unwrap_or_default()))
            }
            MemoryTask::Probe(Probe::OtherTenant) => Some(("crossTenantProbe", Value::Array(read))),
            MemoryTask::Probe(Probe::Expiry) => Some(("memoryList", Value::Array(read))),
        };
        let Some((name, next)) = set else {
            return Ok(cause);
        };
        let (kept, before) = (cost::of_value(&next), self.held_of(name));
        self.spend(kept + before)?;
        self.hold(kept, before)?;
        let changed = Event::VariableChanged {
            name: name.to_owned(),
            previous: self.state.previous(name),
            next,
            appends: false,
            node: Some(step.node.clone()),
        };
        Ok(self.emit(Some(cause), changed))
    }
}

/// What a probe asks.
fn script(probe: &Probe, call: &mut MemoryCall) {
    let entry = |content: &str| NewMemory {
        content: content.to_owned(),
        tags: vec!["conformance".to_owned()],
        ..NewMemory::default()
    };
    call.read = Some(MemoryRead {
        id: None,
        tag: None,
        limit: 1,
    });
    match probe {
        Probe::WriteThenRead => call.write.push(entry("remembered")),
        Probe::Redaction { secret } => call.write.push(NewMemory {
            secret: Some(secret.clone()),
            ..entry("the credential is ")
        }),
        Probe::OtherTenant => {}
        Probe::Expiry => {
            for (id, ttl_ms) in [("expired", -PROBED_MS), ("fresh", PROBED_MS)] {
                call.write.push(NewMemory {
                    id: Some(id.to_owned()),
                    ttl_ms: Some(ttl_ms),
                    ..entry(id)
                });
            }
        }
    }
    if let (Probe::OtherTenant | Probe::Expiry, Some(read)) = (probe, &mut call.read) {
        read.limit = 100;
    }
}

/// The entry of an outcome.
fn written(step: &StepId, scope: &str, agent: Option<&String>, entry: &Value) -> Option<MemoryWritten> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str);
    let tags = entry.get("tags").and_then(Value::as_array).into_iter().flatten();
    Some(MemoryWritten {
        step: step.clone(),
        scope: scope.to_owned(),
        id: text("id")?.to_owned(),
        content: text("content")?.to_owned(),
        tags: tags.filter_map(Value::as_str).map(ToOwned::to_owned).collect(),
        created_at: Timestamp::parse_text(text("createdAt")?)?,
        expires_at: match text("expiresAt") {
            Some(expires) => Some(Timestamp::parse_text(expires)?),
            None => None,
        },
        agent: agent.cloned(),
    })
}

/// The ids of the entries that one replaces.
fn sources(ids: Option<Value>) -> Result<Vec<String>, Failure> {
    let wrong = || {
        let message = format!("sourceIds is not a list of 1 to {MAX_SOURCES} ids");
        Failure::new("invalid_input", message)
    };
    let Some(Value::Array(ids)) = ids else {
        return Err(wrong());
    };
    if !(1..=MAX_SOURCES).contains(&ids.len()) {
        return Err(wrong());
    }
    let ids = ids.into_iter().map(|id| text("sourceIds", id));
    ids.collect()
}

fn text(name: &str, value: Value) -> Result<String, Failure> {
    match value {
        Value::String(text) if text.len() <= MAX_ID => Ok(text),
        Value::String(_)
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::Array(_)
        | Value::Object(_) => {
            let message = format!("{name} is not a text of at most {MAX_ID} bytes");
            Err(Failure::new("invalid_input", message))
        }
    }
}
