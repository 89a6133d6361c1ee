//! The skill that conformance kits test, served only in conformance mode.
//!
//! A kit selects the agent's behavior by the prefix of a message id, or by the first word of the text. Each
//! behavior is a small workflow. Only one of them is public; a message for it starts the workflow that the
//! message id selects, or else the one that the text selects. The kits of 0.3 and 1.0 disagree on messages
//! that select nothing: in 1.0 the task completes, in 0.3 it asks for input again and again, and only the prefix of a slow
//! task selects anything. Answers select behavior in the same way. Kits reuse message ids, so the skill does not deduplicate by them.
//!
//! Every workflow begins with a node type that compiles only in conformance mode. The workflows disappear
//! when the mode is turned off, although they remain in the store.

use std::sync::Arc;

use serde_json::{Value, json};
use wopr_app::{App, RegisterError};
use wopr_core::{Plan, PrincipalId, WorkflowId};
use wopr_wire::a2a::{
    method::Version,
    model::{Message, PartContent},
};

use crate::{
    auth::{Caller, Scopes},
    config::default_tenant,
};

/// The output of the completing behavior.
const HELLO: &str = "Hello from TCK";
/// How long the slow behavior works, in milliseconds.
const WORK_MS: u64 = 4_200;

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
    AskTwice,
    Auth,
    Reject,
    Fail,
    Ordered,
    Chunked,
    Work,
    Approve,
}

use Behavior::{
    Approve, ArtifactData, ArtifactFile, ArtifactFileUrl, ArtifactText, Ask, AskAgain, AskTwice, Auth,
    Chunked, Complete, Fail, Ordered, Reject, Work,
};

const ALL: [Behavior; 16] = [
    Complete,
    ArtifactText,
    ArtifactFile,
    ArtifactFileUrl,
    ArtifactData,
    Behavior::Message,
    Ask,
    AskAgain,
    AskTwice,
    Auth,
    Reject,
    Fail,
    Ordered,
    Chunked,
    Work,
    Approve,
];

/// Behavior by message id prefix. The longest matching prefix wins.
const STEERED: [(&str, Behavior); 19] = [
    ("tck-complete-task", Complete),
    ("tck-artifact-text", ArtifactText),
    ("tck-artifact-file", ArtifactFile),
    ("tck-artifact-file-url", ArtifactFileUrl),
    ("tck-artifact-data", ArtifactData),
    ("tck-message-response", Behavior::Message),
    ("tck-input-required", Ask),
    ("tck-multi-turn", AskTwice),
    ("tck-auth-required", Auth),
    ("tck-reject-task", Reject),
    ("tck-task-failure", Fail),
    ("tck-stream-001", ArtifactText),
    ("tck-stream-002", Complete),
    ("tck-stream-003", ArtifactText),
    ("tck-stream-ordering-001", Ordered),
    ("tck-stream-artifact-text", ArtifactText),
    ("tck-stream-artifact-file", ArtifactFile),
    ("tck-stream-artifact-chunked", Chunked),
    (PATIENT, Work),
];
/// Behavior by the first word of the text, used if the message id selects nothing.
const WORDS: [(&str, Behavior); 5] = [
    ("auth", Auth),
    ("fail", Fail),
    ("input", Ask),
    ("multi", AskTwice),
    ("reject", Reject),
];
/// The workflow that asks for a credential. RFC 0100 never projects runs to `auth-required`, except for the
/// workflow that conformance kits use.
const AUTH: &str = "a2a-conformance-auth";
/// The question id of the clarifications.
const QUESTION: &str = "input";
/// The only prefix that has the same meaning in the kits of both versions.
const PATIENT: &str = "test-resubscribe-message-id";

/// Returns `true` if the interrupts of a workflow are shown as `auth-required`. Outside of conformance mode no
/// workflow has its node types.
pub(super) fn asks_for_authentication(plan: &Plan) -> bool {
    let is_conformance = |position| plan.type_id(position).starts_with("conformance.");
    plan.id().as_str() == AUTH && (0..plan.n_nodes()).any(is_conformance)
}

/// The workflow that asks for a credential.
pub(crate) fn authentication() -> WorkflowId {
    Auth.workflow()
}

impl Behavior {
    /// The workflow id. The completing workflow is the public skill.
    const fn id(self) -> &'static str {
        match self {
            Complete => "a2a-conformance",
            ArtifactText => "a2a-conformance-artifact-text",
            ArtifactFile => "a2a-conformance-artifact-file",
            ArtifactFileUrl => "a2a-conformance-artifact-file-url",
            ArtifactData => "a2a-conformance-artifact-data",
            Self::Message => "a2a-conformance-message",
            Ask => "a2a-conformance-ask",
            AskAgain => "a2a-conformance-ask-again",
            AskTwice => "a2a-conformance-ask-twice",
            Auth => AUTH,
            Fail => "a2a-conformance-fail",
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

    /// The word that stands for this behavior in an answer, as the conditions in [`Self::definition`] expect
    /// it.
    const fn word(self) -> &'static str {
        match self {
            Ask | AskAgain | AskTwice => "again",
            Reject => "reject",
            Fail => "fail",
            Complete
            | ArtifactText
            | ArtifactFile
            | ArtifactFileUrl
            | ArtifactData
            | Self::Message
            | Auth
            | Ordered
            | Chunked
            | Work
            | Approve => "done",
        }
    }

    /// The nodes after the first, in order.
    fn nodes(self) -> Vec<Value> {
        let hello = || node("say", "core.template", &json!({ "template": HELLO }));
        let text = |id: &str, text: &str| artifact(node(id, "core.template", &json!({ "template": text })));
        let file = |file: Value| artifact(given("file", &json!({ "file": file })));
        let ask = |id: &str| {
            let question = json!({ "id": QUESTION, "question": "What else should I know?" });
            node(id, "core.clarificationGate", &json!({ "questions": [question] }))
        };
        let reject = || node("reject", "core.a2a.reject", &json!({ "message": "I decline." }));
        let fail = || {
            let config = json!({ "code": "asked_to_fail", "message": "I was asked to fail." });
            node("fail", "core.fail", &config)
        };
        let again = || node("again", "core.noop", &json!({}));
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
            Self::Message => vec![node(
                "say",
                "core.template",
                &json!({ "template": "Direct message response" }),
            )],
            Ask => vec![ask("ask"), artifact(hello()), again(), reject(), fail()],
            AskAgain => vec![ask("ask"), again()],
            AskTwice => vec![
                ask("first"),
                ask("ask"),
                artifact(hello()),
                again(),
                reject(),
                fail(),
            ],
            Auth => {
                let data = json!({
                    "customKind": "auth-required", "payload": { "subkind": "auth" }, "title": "Sign in to go on.",
                });
                let config = json!({ "kind": "custom", "data": data });
                vec![node("auth", "core.interrupt", &config), artifact(hello())]
            }
            Reject => vec![reject()],
            Fail => vec![fail()],
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

    /// The form of the reply: a message, a status, or artifacts.
    const fn reply(self) -> &'static str {
        match self {
            Self::Message => "message",
            Complete | Ask | AskTwice | Auth | Work => "status",
            ArtifactText | ArtifactFile | ArtifactFileUrl | ArtifactData | AskAgain | Reject | Fail
            | Ordered | Chunked | Approve => "task",
        }
    }

    fn definition(self) -> Value {
        let mut nodes = vec![node("start", "conformance.start", &json!({}))];
        nodes.extend(self.nodes());
        let edge = |n: usize, from: &Value, to: &Value| json!({ "id": format!("e{n}"), "sourceNodeId": from["id"], "targetNodeId": to["id"] });
        // Nodes from `again` on are reached only through a steered answer.
        let n_chained = nodes.iter().position(|node| node["id"] == "again");
        let n_chained = n_chained.filter(|_| self != AskAgain).unwrap_or(nodes.len());
        let pairs = nodes[..n_chained].windows(2).enumerate();
        let mut edges: Vec<_> = pairs.map(|(n, pair)| edge(n, &pair[0], &pair[1])).collect();
        let named = |id: &str| nodes.iter().find(|node| node["id"] == id);
        if let (Some(ask), Some(again)) = (named("ask"), named("again")) {
            edges.push(edge(edges.len(), again, ask));
            let answered = |word: &str| json!({ "type": "equals", "left": format!("output.answers.{QUESTION}"), "right": word });
            for (word, target) in [("again", "again"), ("reject", "reject"), ("fail", "fail")] {
                if let Some(target) = named(target).filter(|_| self != AskAgain) {
                    let mut edge = edge(edges.len(), ask, target);
                    edge["condition"] = answered(word);
                    edges.push(edge);
                }
            }
            if let Some(said) = named("say")
                && let Some(edge) = edges.iter_mut().find(|edge| edge["targetNodeId"] == said["id"])
            {
                edge["condition"] = answered("done");
            }
        }
        json!({
            "id": self.id(),
            "name": "Conformance",
            "version": "1",
            "description": "Does what a conformance kit asks for by the id of a message, or by its first word.",
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

/// A node that outputs its inputs.
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

/// The public skill.
pub(crate) fn skill() -> WorkflowId {
    Complete.workflow()
}

/// The caller for requests without a credential, in open conformance mode.
pub(crate) fn caller() -> Arc<Caller> {
    Arc::new(Caller {
        key_id: "conformance".into(),
        tenant: default_tenant(),
        principal: PrincipalId::parse("conformance").expect("the name holds"),
        scopes: Scopes::ALL,
        membership: Arc::default(),
    })
}

/// Task states that the test suite asks for, and the workflows that reach them.
pub(crate) const SCENARIOS: [(&str, &str); 5] = [
    ("paused-at-approval", Approve.id()),
    ("paused-at-clarification", Ask.id()),
    ("working", Work.id()),
    ("completed", Complete.id()),
    ("rejected", Reject.id()),
];

/// The workflow that brings a task into a state, or `None` for an unknown state.
pub(crate) fn scenario(name: &str) -> Option<WorkflowId> {
    let (_, id) = SCENARIOS.iter().find(|(known, _)| *known == name)?;
    WorkflowId::parse(id).ok()
}

/// Finds the longest prefix in [`STEERED`] that a text begins with.
fn steered(text: &str) -> Option<(&'static str, Behavior)> {
    let asked = STEERED.iter().filter(|(prefix, _)| text.starts_with(prefix));
    asked.max_by_key(|(prefix, _)| prefix.len()).copied()
}

/// Reads the behavior from the first word of a message's text.
fn spoken(message: &Message) -> Option<Behavior> {
    let text = message.parts.iter().find_map(|part| match &part.content {
        PartContent::Text(text) => Some(text),
        PartContent::Raw(_) | PartContent::Url(_) | PartContent::Data(_) => None,
    })?;
    let word = text.split_whitespace().next()?;
    let word = word.trim_end_matches(|c: char| c.is_ascii_punctuation());
    let known = WORDS.iter().find(|(known, _)| word.eq_ignore_ascii_case(known));
    let known = known.map(|(_, behavior)| *behavior);
    known.or_else(|| steered(word).map(|(_, behavior)| behavior))
}

/// Reads the behavior from a message's id or text. In version 0.3 only one prefix of an id selects any: the kit of 0.3
/// wants a question in answer to every other message.
fn asked(version: Version, message: &Message) -> Option<Behavior> {
    let by_id = steered(&message.message_id);
    match version {
        Version::V1_0 => by_id.map(|(_, behavior)| behavior).or_else(|| spoken(message)),
        Version::V0_3 => by_id
            .filter(|(prefix, _)| *prefix == PATIENT)
            .map(|(_, behavior)| behavior),
    }
}

/// Selects the workflow that a message for the skill starts.
pub(crate) fn steer(version: Version, message: &Message) -> WorkflowId {
    let by_default = match version {
        Version::V1_0 => Complete,
        Version::V0_3 => AskAgain,
    };
    asked(version, message).unwrap_or(by_default).workflow()
}

/// Returns `true` if the workflow belongs to the skill, so message ids to it may be reused.
pub(crate) fn is_own(plan: &Plan) -> bool {
    ALL.iter().any(|behavior| behavior.id() == plan.id().as_str())
}

/// Returns `true` if the media types of a message are checked. The kit of 0.3 sends the conformance skill files of any
/// type, and expects a question in return.
pub(super) fn checks_types(version: Version, plan: &Plan) -> bool {
    version == Version::V1_0 || !is_own(plan)
}

/// The answer that a message gives to a question of the skill. `None` if the usual rules apply.
pub(crate) fn answer(version: Version, plan: &Plan, message: &Message) -> Option<Value> {
    let steers = [Ask, AskTwice]
        .iter()
        .any(|behavior| behavior.id() == plan.id().as_str());
    let word = asked(version, message).map_or("done", Behavior::word);
    steers.then(|| json!({ "answers": { QUESTION: word } }))
}

/// Registers the workflows of the skill.
///
/// # Errors
/// If the store rejects a workflow.
pub(crate) async fn register(app: &App) -> Result<(), RegisterError> {
    for behavior in ALL {
        match app.register_for_all(behavior.definition()).await {
            Err(RegisterError::Full(limit)) => {
                let workflow = behavior.definition()["id"].to_string();
                tracing::warn!(workflow, error = %limit, "conformance workflow not offered");
            }
            registered => drop(registered?),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: &str, text: &str) -> Message {
        use wopr_wire::a2a::model::{Part, Role};
        Message::new(id, Role::User, vec![Part::text(text)])
    }

    #[test]
    fn first_word_selects_behavior_if_id_does_not() {
        for (text, new, old) in [
            ("fail, please", Fail, AskAgain),
            ("Auth", Auth, AskAgain),
            ("  input needed", Ask, AskAgain),
            ("reject", Reject, AskAgain),
            ("multi: turn", AskTwice, AskAgain),
            ("tck-artifact-data now", ArtifactData, AskAgain),
            ("tck-task-failure-7", Fail, AskAgain),
            ("failing is fine", Complete, AskAgain),
            ("please fail", Complete, AskAgain),
            ("", Complete, AskAgain),
        ] {
            let message = message("7d1f", text);
            assert_eq!(steer(Version::V1_0, &message), new.workflow(), "{text}");
            assert_eq!(steer(Version::V0_3, &message), old.workflow(), "{text}");
        }
        // The id takes precedence.
        let both = message("tck-complete-task-1", "fail");
        assert_eq!(steer(Version::V1_0, &both), Complete.workflow());
    }

    #[test]
    fn answer_selects_behavior_like_a_first_message() {
        let node_types = wopr_core::NodeTypes { conformance: true };
        let ask = Plan::compile(wopr_core::DialectId::Openwop, Ask.definition(), node_types).unwrap();
        let word = |id: &str, text: &str| {
            let value = answer(Version::V1_0, &ask, &message(id, text)).unwrap();
            value["answers"][QUESTION].as_str().unwrap().to_owned()
        };
        assert_eq!(word("tck-input-required-2", "more"), "again");
        assert_eq!(word("7d1f", "input"), "again");
        assert_eq!(word("7d1f", "reject"), "reject");
        assert_eq!(word("tck-task-failure", "x"), "fail");
        assert_eq!(word("tck-complete-task", "fail"), "done");
        assert_eq!(word("7d1f", "anything"), "done");
    }

    #[test]
    fn longest_prefix_wins_and_defaults_differ_by_version() {
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
            let message = message(id, "Hello");
            assert_eq!(steer(Version::V1_0, &message), new.workflow(), "{id}");
            assert_eq!(steer(Version::V0_3, &message), old.workflow(), "{id}");
        }
    }

    #[test]
    fn conformance_workflows_compile_only_in_conformance_mode() {
        for behavior in ALL {
            let compile = |conformance| {
                let node_types = wopr_core::NodeTypes { conformance };
                Plan::compile(wopr_core::DialectId::Openwop, behavior.definition(), node_types)
            };
            compile(true).unwrap();
            let problems = compile(false).unwrap_err().to_string();
            assert!(problems.contains("conformance.start"), "{problems}");
        }
    }
}
