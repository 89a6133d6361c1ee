//! Other agents as workers: a worker named `agent:PEER`, or `agent:PEER/SKILL`, is a run of a workflow that asks this
//! agent. So it has the states, the questions and the cancel of any other worker.
//!
//! A host registers the workflow of each agent that its operator has configured.

use serde_json::{Value, json};
use wopr_kernel::ContentHash;

use crate::WorkflowId;

const PREFIX: &str = "agent:";
/// The input that names the skill. It is not part of the message.
pub(crate) const SKILL: &str = "_skill";
/// Longest part of a workflow's id that shows the agent's name, in bytes.
const MAX_SHOWN: usize = 100;

/// An agent, as a worker's id names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remote<'w> {
    pub(crate) peer: &'w str,
    pub(crate) skill: Option<&'w str>,
}

impl<'w> Remote<'w> {
    /// The agent that a worker's id names, if it names one.
    pub(crate) fn of(worker: &'w str) -> Option<Self> {
        let rest = worker.strip_prefix(PREFIX)?;
        let (peer, skill) = match rest.split_once('/') {
            Some((peer, skill)) => (peer, Some(skill)),
            None => (rest, None),
        };
        let is_named = !peer.is_empty() && skill.is_none_or(|skill| !skill.is_empty());
        is_named.then_some(Self { peer, skill })
    }
}

/// The id of the workflow that asks an agent.
#[must_use]
pub fn agent_workflow_id(peer: &str) -> WorkflowId {
    let shown = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9' | '_' | '-') => c,
        _ => '-',
    };
    let mut id: String = peer.chars().take(MAX_SHOWN).map(shown).collect();
    // Two names could look alike.
    if id != peer {
        id.push('-');
        id.push_str(&ContentHash::of(peer.as_bytes()).as_str()[..12]);
    }
    WorkflowId::parse(&format!("host-agent-{id}")).expect("a letter, then only letters, digits and hyphens")
}

/// The workflow that asks an agent. Its message is the input `prompt`, or else all inputs as data.
#[must_use]
pub fn agent_workflow(peer: &str) -> Value {
    let variable = |name: &str, kind: &str| json!({ "name": name, "type": kind });
    json!({
        "id": agent_workflow_id(peer).as_str(),
        "name": format!("Agent {peer}").chars().take(256).collect::<String>(),
        "version": "1",
        "nodes": [{
            "id": "agent",
            "typeId": "core.a2a.invoke",
            "name": "Ask the agent",
            "config": { "peer": peer },
            "inputs": { "skill": { "type": "variable", "variableName": SKILL, "optional": true } },
        }],
        "edges": [],
        "triggers": [],
        "variables": [variable(SKILL, "string"), variable("text", "string"), variable("artifacts", "array"), variable("state", "string")],
        "metadata": { "public": false },
        "settings": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_names_an_agent_and_a_skill() {
        let remote = |peer, skill| Some(Remote { peer, skill });
        assert_eq!(Remote::of("agent:acme"), remote("acme", None));
        assert_eq!(
            Remote::of("agent:acme/review/fast"),
            remote("acme", Some("review/fast"))
        );
        for other in ["acme", "agent:", "agent:/review", "agent:acme/"] {
            assert_eq!(Remote::of(other), None, "{other}");
        }
    }

    #[test]
    fn agents_with_similar_names_have_workflows_of_their_own() {
        assert_eq!(agent_workflow_id("acme-2").as_str(), "host-agent-acme-2");
        let ids = ["a.b", "a-b", "A-b", "a b", &"x".repeat(300), &"x".repeat(301)].map(agent_workflow_id);
        for (n, id) in ids.iter().enumerate() {
            assert!(!ids[..n].contains(id), "{id}");
        }
    }

    #[test]
    fn workflow_of_an_agent_is_valid() {
        for peer in ["acme", "Ünïcode ${peer}"] {
            let plan = crate::Plan::admit(agent_workflow(peer), wopr_kernel::NodeTypes::default());
            assert_eq!(plan.expect("valid").warnings(), []);
        }
    }
}
