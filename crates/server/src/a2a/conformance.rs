//! The skill that conformance kits talk to, in conformance mode only.
//!
//! Kits expect an agent that does as the id of a message says. Each behaviour is a small workflow of its own; one of
//! them is public, and a message for it is handed to the one its id asks for. The kits of 0.3 and of 1.0 disagree on
//! ids that ask for nothing, so those go by version: 1.0 completes, 0.3 asks, again and again.
//!
//! All of them begin with a node that does not compile elsewhere, so they are gone when the mode is, though the store
//! remembers them.

use serde_json::{Value, json};
use wopr_core::{PrincipalId, WorkflowId};
use wopr_engine::{Engine, RegisterError};
use wopr_wire::a2a::method::Version;

use crate::{
    auth::{Caller, Scopes},
    config::default_tenant,
};

/// What the completing behaviour says.
const HELLO: &str = "Hello from TCK";
/// How long the patient behaviour works, in milliseconds.
const WORK_MS: u64 = 4_200;

/// What a workflow of the skill does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behavior {
    Complete,
    ArtifactText,
    ArtifactFile,
    ArtifactFileUrl,
    ArtifactData,
    Message,
    Ask,
    AskAgain,
    Reject,
    Ordered,
    Chunked,
    Work,
    Approve,
}

use Behavior::{
    Approve, ArtifactData, ArtifactFile, ArtifactFileUrl, ArtifactText, Ask, AskAgain, Chunked, Complete,
    Message, Ordered, Reject, Work,
};

const ALL: [Behavior; 13] = [
    Complete,
    ArtifactText,
    ArtifactFile,
    ArtifactFileUrl,
    ArtifactData,
    Message,
    Ask,
    AskAgain,
    Reject,
    Ordered,
    Chunked,
    Work,
    Approve,
];

/// How ids of messages begin, and what is done then; the longest that fits decides.
const STEERED: [(&str, Behavior); 15] = [
    ("tck-complete-task", Complete),
    ("tck-artifact-text", ArtifactText),
    ("tck-artifact-file", ArtifactFile),
    ("tck-artifact-file-url", ArtifactFileUrl),
    ("tck-artifact-data", ArtifactData),
    ("tck-message-response", Message),
    ("tck-input-required", Ask),
    ("tck-reject-task", Reject),
    ("tck-stream-001", ArtifactText),
    ("tck-stream-003", ArtifactText),
    ("tck-stream-ordering-001", Ordered),
    ("tck-stream-artifact-text", ArtifactText),
    ("tck-stream-artifact-file", ArtifactFile),
    ("tck-stream-artifact-chunked", Chunked),
    (PATIENT, Work),
];
/// The one beginning that means the same to the kits of both versions.
const PATIENT: &str = "test-resubscribe-message-id";

impl Behavior {
    /// Names its workflow; the one that completes is the skill.
    const fn id(self) -> &'static str {
        match self {
            Complete => "a2a-conformance",
            ArtifactText => "a2a-conformance-artifact-text",
            ArtifactFile => "a2a-conformance-artifact-file",
            ArtifactFileUrl => "a2a-conformance-artifact-file-url",
            ArtifactData => "a2a-conformance-artifact-data",
            Message => "a2a-conformance-message",
            Ask => "a2a-conformance-ask",
            AskAgain => "a2a-conformance-ask-again",
            Reject => "a2a-conformance-reject",
            Ordered => "a2a-conformance-ordered",
            Chunked => "a2a-conformance-chunked",
            Work => "a2a-conformance-work",
            Approve => "a2a-conformance-approve",
        }
    }

    fn workflow(self) -> WorkflowId {
        WorkflowId::parse(self.id()).expect("the table holds ids of workflows")
    }

    /// Its nodes after the first, each with its type, its settings and what it is given; one after the other.
    fn nodes(self) -> Vec<Value> {
        let hello = || node("say", "core.template", &json!({ "template": HELLO }));
        let text = |id: &str, text: &str| artifact(node(id, "core.template", &json!({ "template": text })));
        let file = |file: Value| artifact(given("file", &json!({ "file": file })));
        let ask = || {
            let question = json!({ "id": "input", "question": "What else should I know?" });
            node(
                "ask",
                "core.clarificationGate",
                &json!({ "questions": [question] }),
            )
        };
        match self {
            Complete => vec![artifact(hello())],
            ArtifactText => vec![text("text", "Generated text content")],
            // "tck" in base64.
            ArtifactFile => vec![file(
                json!({ "bytes": "dGNr", "name": "output.txt", "mediaType": "text/plain" }),
            )],
            ArtifactFileUrl => vec![file(json!({
                "url": "https://example.com/output.txt", "name": "output.txt", "mediaType": "text/plain",
            }))],
            ArtifactData => vec![artifact(given("data", &json!({ "key": "value", "count": 42 })))],
            Message => vec![node(
                "say",
                "core.template",
                &json!({ "template": "Direct message response" }),
            )],
            Ask => vec![ask(), artifact(hello())],
            AskAgain => vec![ask(), node("again", "core.noop", &json!({}))],
            Reject => vec![node(
                "reject",
                "core.a2a.reject",
                &json!({ "message": "I decline." }),
            )],
            Ordered => vec![
                text("one", "First"),
                text("two", "Second"),
                text("three", "Third"),
            ],
            Chunked => {
                let chunks = json!({ "chunks": ["First chunk, ", "second chunk, ", "last chunk."] });
                vec![artifact(node("chunks", "core.stream", &chunks))]
            }
            Work => vec![
                node("work", "core.delay", &json!({ "delayMs": WORK_MS })),
                artifact(hello()),
            ],
            Approve => vec![node("gate", "core.approvalGate", &json!({ "title": "Go on?" }))],
        }
    }

    /// How its result is told besides as artifacts.
    const fn reply(self) -> &'static str {
        match self {
            Message => "message",
            Complete | Ask | Work => "status",
            ArtifactText | ArtifactFile | ArtifactFileUrl | ArtifactData | AskAgain | Reject | Ordered
            | Chunked | Approve => "task",
        }
    }

    fn definition(self) -> Value {
        let mut nodes = vec![node("start", "conformance.start", &json!({}))];
        nodes.extend(self.nodes());
        let edge = |n: usize, from: &Value, to: &Value| json!({ "id": format!("e{n}"), "sourceNodeId": from["id"], "targetNodeId": to["id"] });
        let pairs = nodes.windows(2).enumerate();
        let mut edges: Vec<_> = pairs.map(|(n, pair)| edge(n, &pair[0], &pair[1])).collect();
        if self == AskAgain {
            edges.push(edge(edges.len(), &nodes[2], &nodes[1]));
        }
        json!({
            "id": self.id(),
            "name": "Conformance",
            "version": "1",
            "description": "Does what a conformance kit asks for by the id of a message.",
            "nodes": nodes,
            "edges": edges,
            "triggers": [],
            "variables": [],
            "metadata": {
                "public": self == Complete, "tags": ["conformance"], "a2a": { "reply": self.reply() },
            },
            "settings": {},
        })
    }
}

fn node(id: &str, type_id: &str, config: &Value) -> Value {
    json!({
        "id": id, "typeId": type_id, "name": id, "position": { "x": 0, "y": 0 }, "config": config, "inputs": {},
    })
}

/// A node whose outputs are what it is given.
fn given(id: &str, values: &Value) -> Value {
    let mut node = node(id, "core.identity", &json!({}));
    for (name, value) in values.as_object().into_iter().flatten() {
        node["inputs"][name] = json!({ "type": "static", "value": value });
    }
    node
}

fn artifact(mut node: Value) -> Value {
    node["artifactType"] = json!("text");
    node
}

/// The skill.
pub(crate) fn skill() -> WorkflowId {
    Complete.workflow()
}

/// Who calls without a credential, where that is let in.
pub(crate) fn caller() -> Caller {
    Caller {
        key_id: "conformance".into(),
        tenant: default_tenant(),
        principal: PrincipalId::parse("conformance").expect("the name holds"),
        scopes: Scopes::ALL,
    }
}

/// States that the suite wants a task in, and what brings it there.
pub(crate) const SCENARIOS: [(&str, &str); 5] = [
    ("paused-at-approval", Approve.id()),
    ("paused-at-clarification", Ask.id()),
    ("working", Work.id()),
    ("completed", Complete.id()),
    ("rejected", Reject.id()),
];

/// The workflow that brings a task into a state; none for a state that is not in the table.
pub(crate) fn scenario(name: &str) -> Option<WorkflowId> {
    let (_, id) = SCENARIOS.iter().find(|(known, _)| *known == name)?;
    WorkflowId::parse(id).ok()
}

/// The workflow a message for the skill is handed to.
pub(crate) fn steer(version: Version, message_id: &str) -> WorkflowId {
    let asked = STEERED
        .iter()
        .filter(|(prefix, _)| message_id.starts_with(prefix));
    let asked = asked.max_by_key(|(prefix, _)| prefix.len());
    let behavior = match (version, asked) {
        (_, Some((PATIENT, behavior))) | (Version::V1_0, Some((_, behavior))) => *behavior,
        (Version::V1_0, None) => Complete,
        (Version::V0_3, _) => AskAgain,
    };
    behavior.workflow()
}

/// Makes the workflows of the skill known to a host in conformance mode.
///
/// # Errors
/// The store does not take them.
pub(crate) async fn register(engine: &Engine) -> Result<(), RegisterError> {
    for behavior in ALL {
        engine.register(None, behavior.definition()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_beginning_decides_and_versions_differ_on_the_rest() {
        for (id, new, old) in [
            ("tck-complete-task-1", Complete, AskAgain),
            ("tck-artifact-file-7f", ArtifactFile, AskAgain),
            ("tck-artifact-file-url-7f", ArtifactFileUrl, AskAgain),
            ("tck-stream-002-x", Complete, AskAgain),
            ("tck-stream-artifact-chunked", Chunked, AskAgain),
            ("test-resubscribe-message-id-9", Work, Work),
            ("anything", Complete, AskAgain),
            ("", Complete, AskAgain),
        ] {
            assert_eq!(steer(Version::V1_0, id), new.workflow(), "{id}");
            assert_eq!(steer(Version::V0_3, id), old.workflow(), "{id}");
        }
    }

    #[test]
    fn nothing_of_it_compiles_outside_the_mode() {
        for behavior in ALL {
            let compile = |conformance| {
                let definition = wopr_core::Definition::parse(behavior.definition()).unwrap();
                wopr_core::Plan::compile(definition, wopr_core::Offer { conformance })
            };
            compile(true).unwrap();
            let problems = compile(false).unwrap_err().to_string();
            assert!(problems.contains("conformance.start"), "{problems}");
        }
    }
}
