//! What a node asks of another agent: its settings rendered, its ports filled in, and the whole bounded.

use serde_json::Value;

use wopr_kernel::{AgentCall, AgentReach, AgentVerb, Planned as _};

use crate::{
    Failure, Object, cost,
    expression::Template,
    measure::too_deep,
    node::{AgentNode, AgentTask, SKILL},
};

use super::{
    Walk,
    node::{MAX_ACTIVITY_RENDERED, nested},
};

/// Longest name of a task or a context, in bytes.
const MAX_ID: usize = 2 << 10;

/// What a message has to say.
#[derive(Default)]
struct Said {
    text: Option<String>,
    data: Option<Value>,
    files: Vec<Value>,
    context: Option<String>,
    task: Option<String>,
}

impl Walk<'_, '_> {
    pub(super) fn agent_call(&mut self, node: &AgentNode, mut inputs: Object) -> Result<AgentCall, Failure> {
        let said = match &node.task {
            AgentTask::Invoke | AgentTask::Converse { .. } | AgentTask::Send => {
                self.said(node, &mut inputs)?
            }
            AgentTask::Get { .. } | AgentTask::Cancel { .. } | AgentTask::Discover => Said::default(),
        };
        let verb = match &node.task {
            AgentTask::Invoke => AgentVerb::INVOKE,
            AgentTask::Converse { max_turns } => AgentVerb::Invoke {
                task: said.task,
                max_questions: Some(*max_turns),
            },
            AgentTask::Send => AgentVerb::Send { task: said.task },
            AgentTask::Get { id } => AgentVerb::GetTask {
                task: self.task_id(id.as_ref(), &mut inputs)?,
            },
            AgentTask::Cancel { id } => AgentVerb::CancelTask {
                task: self.task_id(id.as_ref(), &mut inputs)?,
            },
            AgentTask::Discover => AgentVerb::Discover,
        };
        let skill = id_port(&mut inputs, "skill")?;
        let call = AgentCall {
            verb,
            peer: node.peer.clone(),
            reach: AgentReach::Peer,
            correlation: None,
            skill: skill.or_else(|| node.skill.clone()),
            text: said.text,
            data: said.data,
            files: said.files,
            context: said.context,
            version: node.version.clone(),
            binding: node.binding.map(str::to_owned),
            output_modes: node.output_modes.clone(),
            caller: self.caller(),
            timeout_ms: node.timeout_ms,
        };
        if call.size() > MAX_ACTIVITY_RENDERED {
            return Err(too_long());
        }
        self.spend(cost::bytes(call.size()))?;
        Ok(call)
    }

    /// On whose behalf the run calls.
    fn caller(&self) -> String {
        let lead = self.plan.orchestrator(&self.run, &self.state);
        let id = lead.and_then(|agent| Some(agent.get("agentId")?.as_str()?.to_owned()));
        let id = id.or_else(|| {
            // The host's own workflow calls for the run whose child it is.
            let parent = self.run.parent().filter(|_| self.plan.id().is_of_host())?;
            Some(parent.ancestors.last()?.to_string())
        });
        id.unwrap_or_else(|| self.plan.id().to_string())
    }

    /// What an agent is sent: the ports `message`, `data` and `files`, else what the node is configured with, else
    /// the run's `prompt`, else its inputs.
    fn said(&mut self, node: &AgentNode, inputs: &mut Object) -> Result<Said, Failure> {
        let mut left = MAX_ACTIVITY_RENDERED;
        let mut render = |template: &Template| {
            let text = self.render(template)?;
            left = left.checked_sub(text.len()).ok_or_else(too_long)?;
            Ok(text)
        };
        let mut text = match (text_port(inputs, "message")?, &node.message) {
            (Some(text), _) => Some(text),
            (None, Some(template)) => Some(render(template)?),
            (None, None) => None,
        };
        let mut data = match (inputs.remove("data"), &node.data) {
            (Some(data), _) => Some(data),
            (None, Some(data)) => Some(data.fill(&mut render)?),
            (None, None) => None,
        };
        let files = match inputs.remove("files") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(files)) => files,
            Some(_) => return Err(wrong("files is not a list")),
        };
        let context = id_port(inputs, "contextId")?;
        let task = match &node.task {
            // Its message always starts a task.
            AgentTask::Invoke => None,
            AgentTask::Converse { .. }
            | AgentTask::Send
            | AgentTask::Get { .. }
            | AgentTask::Cancel { .. }
            | AgentTask::Discover => id_port(inputs, "taskId")?,
        };
        if text.is_none() && data.is_none() && files.is_empty() {
            let given = self.run.started.as_ref().map(|started| &started.inputs);
            match given.and_then(|given| given.get("prompt")) {
                Some(Value::String(prompt)) => text = Some(prompt.clone()),
                Some(_) | None => {
                    let mut given = given.cloned().unwrap_or_default();
                    given.remove(SKILL);
                    data = Some(Value::Object(given));
                }
            }
        }
        if data.as_ref().is_some_and(too_deep) || files.iter().any(too_deep) {
            return Err(nested("the message"));
        }
        Ok(Said {
            text,
            data,
            files,
            context,
            task,
        })
    }

    /// The task that a node is about.
    fn task_id(&self, configured: Option<&Template>, inputs: &mut Object) -> Result<String, Failure> {
        let id = match (id_port(inputs, "taskId")?, configured) {
            (Some(id), _) => id,
            (None, Some(template)) => self.render(template)?,
            (None, None) => String::new(),
        };
        match id.len() {
            0 => Err(wrong("there is no taskId")),
            1..=MAX_ID => Ok(id),
            _ => Err(wrong("taskId is too long")),
        }
    }
}

fn wrong(rule: impl Into<String>) -> Failure {
    Failure::new("invalid_input", rule)
}

fn too_long() -> Failure {
    Failure::new("template_failed", "the message is too long")
}

fn text_port(inputs: &mut Object, name: &str) -> Result<Option<String>, Failure> {
    match inputs.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(wrong(format!("{name} is not a string"))),
    }
}

fn id_port(inputs: &mut Object, name: &str) -> Result<Option<String>, Failure> {
    match text_port(inputs, name)? {
        Some(id) if id.len() > MAX_ID => Err(wrong(format!("{name} is too long"))),
        id => Ok(id.filter(|id| !id.is_empty())),
    }
}
