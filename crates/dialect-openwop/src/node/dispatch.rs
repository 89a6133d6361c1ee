//! `core.dispatch`: its settings.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use wopr_kernel::{ApprovalRules, MAX_SET, Question, Rules};

use super::{config::Config, conversation::ConversationNode, supervisor::MAX_TURNS_LIMIT};
use crate::{
    ApprovalAction, JoinMode,
    decision::{DecisionForm, MayName},
};

/// The most workers of one execution that work at the same time. Others wait for their turn.
pub const MAX_FAN_OUT: u32 = 64;
/// The id of the question that asks a person for words.
pub(crate) const QUESTION: &str = "answer";

pub(crate) const ROUTINGS: [&str; 3] = ["auto", "clarification", "conversation"];
pub(crate) const ISOLATIONS: [&str; 1] = ["isolated"];
pub(crate) const FAN_OUTS: [&str; 3] = ["sequential", "reject", "parallel"];
pub(crate) const JOIN_MODES: [&str; 4] = ["wait-all", "quorum", "first", "race"];
pub(crate) const ON_CHILD_FAILURE: [&str; 3] = ["collect", "fail-fast", "absorb"];

/// (name in the receiver, name in the giver)
type Mapping = Vec<(String, String)>;

#[derive(Debug)]
pub(crate) struct Dispatch {
    pub fan_out: FanOut,
    /// The most executions that dispatch in one run.
    pub max_turns: Option<u32>,
    /// Whether workers remember in scopes of their own.
    pub isolates_memory: bool,
    /// In what a person is asked for words; by one question where absent.
    pub conversation: Option<ConversationNode>,
    /// (child variable, parent variable)
    inputs: Mapping,
    /// (parent variable, child variable)
    outputs: Mapping,
    worker_inputs: BTreeMap<String, Mapping>,
    worker_outputs: BTreeMap<String, Mapping>,
    /// What an answer to an approval must be.
    approval: Rules,
    /// The same for a decision that was escalated: it may be edited.
    clarification: Rules,
}

/// How several workers work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FanOut {
    /// One after the other.
    Sequential,
    /// Not at all.
    Reject,
    Parallel(Fan),
}

/// How workers work at the same time, and when they are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fan {
    pub max_concurrency: u32,
    pub mode: JoinMode,
    pub on_failure: OnChildFailure,
}

/// What a worker that does not complete means for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnChildFailure {
    /// It is one of the results.
    Collect,
    /// The node fails at once.
    FailFast,
    /// It is as if there had been nothing to do.
    Absorb,
}

impl Dispatch {
    pub(super) fn read(config: Config<'_>) -> Result<Self, String> {
        let choice = |field: &str, known: &[&'static str]| match config.text(field)? {
            None => Ok(None),
            Some(value) => match known.iter().find(|known| **known == value) {
                Some(known) => Ok(Some(*known)),
                None => Err(format!(
                    "config.{field} '{value}' is none of {}",
                    known.join(", ")
                )),
            },
        };
        let outputs = config.mapping("outputMapping")?;
        let worker_outputs = by_worker(config, "perWorkerOutputMappings")?;
        for (name, _) in outputs.iter().chain(worker_outputs.values().flatten()) {
            if name.starts_with('_') {
                return Err(format!(
                    "an output mapping sets '{name}': names with a leading underscore are the host's"
                ));
            }
        }
        let max_turns = match config.millis("iterationCap")? {
            Some(n) if !(1..=MAX_TURNS_LIMIT).contains(&n) => {
                return Err(format!(
                    "config.iterationCap is not within 1 to {MAX_TURNS_LIMIT}"
                ));
            }
            n => n.and_then(|n| u32::try_from(n).ok()),
        };
        let conversation = match choice("askUserRouting", &ROUTINGS)? {
            Some("conversation") => Some(ConversationNode::of_supervisor()),
            // Most questions have one answer, and an answer to a clarification needs no further step.
            None | Some(_) => None,
        };
        choice("workerDispatchModel", &["child-run"])?;
        let fan_out = match choice("fanOutPolicy", &FAN_OUTS)? {
            None | Some("sequential") => FanOut::Sequential,
            Some("reject") => FanOut::Reject,
            Some(_) => FanOut::Parallel(Fan::read(config)?),
        };
        if !matches!(fan_out, FanOut::Parallel(_)) {
            for field in ["maxConcurrency", "joinPolicy"] {
                if config.0.contains_key(field) {
                    return Err(format!("config.{field} is only for fanOutPolicy parallel"));
                }
            }
        }
        Ok(Self {
            fan_out,
            max_turns,
            isolates_memory: choice("memoryScopeIsolation", &ISOLATIONS)?.is_some(),
            conversation,
            inputs: config.mapping("inputMapping")?,
            outputs,
            worker_inputs: by_worker(config, "perWorkerInputMappings")?,
            worker_outputs,
            approval: approval(MayName::Any),
            clarification: Rules::Clarification(vec![Question {
                id: QUESTION.to_owned(),
                document: json!({ "id": QUESTION }),
                schema: None,
            }]),
        })
    }

    /// Lets a person put only decisions in the place of others that name no other workers.
    pub(crate) fn restrict(&mut self, may_name: MayName) {
        self.approval = approval(may_name);
    }

    pub(crate) fn approval(&self) -> &Rules {
        &self.approval
    }

    pub(crate) fn clarification(&self) -> &Rules {
        &self.clarification
    }

    /// The input mapping of a worker: its own, or else the mapping of all workers.
    pub(crate) fn inputs_of(&self, worker: &str) -> &Mapping {
        self.worker_inputs.get(worker).unwrap_or(&self.inputs)
    }

    /// What the variables get of a worker.
    pub(crate) fn outputs_of(&self, worker: &str) -> &Mapping {
        self.worker_outputs.get(worker).unwrap_or(&self.outputs)
    }

    /// Every mapping: the setting that holds it, the worker that it is for alone, and whether it sets variables here.
    pub(crate) fn mappings(&self) -> impl Iterator<Item = (&'static str, Option<&str>, &Mapping, bool)> {
        let for_all = [
            ("inputMapping", None, &self.inputs, false),
            ("outputMapping", None, &self.outputs, true),
        ];
        let by_worker = |name, mappings, sets| {
            let mappings: &BTreeMap<String, Mapping> = mappings;
            mappings
                .iter()
                .map(move |(worker, mapping)| (name, Some(worker.as_str()), mapping, sets))
        };
        for_all
            .into_iter()
            .chain(by_worker("perWorkerInputMappings", &self.worker_inputs, false))
            .chain(by_worker("perWorkerOutputMappings", &self.worker_outputs, true))
    }

    /// Every variable that a mapping sets.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &str> {
        let outputs = self.outputs.iter().chain(self.worker_outputs.values().flatten());
        outputs.map(|(name, _)| name.as_str())
    }

    /// Every variable that a mapping reads.
    pub(crate) fn reads(&self) -> impl Iterator<Item = &str> {
        let inputs = self.inputs.iter().chain(self.worker_inputs.values().flatten());
        inputs.map(|(_, name)| name.as_str())
    }
}

/// Who may answer the approval of a decision, and how.
fn approval(may_name: MayName) -> Rules {
    Rules::Approval(ApprovalRules {
        actions: vec![
            ApprovalAction::Accept,
            ApprovalAction::Reject,
            ApprovalAction::EditAccept,
        ],
        required: 1,
        majority: false,
        approvers: Vec::new(),
        refs: Vec::new(),
        has_refs: false,
        auth_required: false,
        edited: Some(Box::new(DecisionForm(may_name))),
    })
}

impl Fan {
    fn read(config: Config<'_>) -> Result<Self, String> {
        let max_concurrency = match config.millis("maxConcurrency")? {
            None => MAX_FAN_OUT,
            Some(0) => return Err("config.maxConcurrency is not at least 1".to_owned()),
            Some(n) => u32::try_from(n).unwrap_or(MAX_FAN_OUT).min(MAX_FAN_OUT),
        };
        let empty = Map::new();
        let policy = match config.0.get("joinPolicy") {
            None => &empty,
            Some(Value::Object(policy)) => policy,
            Some(_) => return Err("config.joinPolicy is not an object".to_owned()),
        };
        let known = ["mode", "quorum", "onChildFailure"];
        if let Some(unknown) = policy.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(format!("config.joinPolicy.{unknown} is not known"));
        }
        let policy = Config(policy);
        let in_policy = |rule: String| rule.replacen("config.", "config.joinPolicy.", 1);
        let quorum = policy.millis("quorum").map_err(in_policy)?;
        let mode = match policy.text("mode").map_err(in_policy)? {
            None | Some("wait-all") => JoinMode::WaitAll,
            Some("first") => JoinMode::First,
            Some("race") => JoinMode::Race,
            Some("quorum") => {
                let most = MAX_SET as u64;
                let quorum = quorum.filter(|quorum| (1..=most).contains(quorum));
                let quorum = quorum.and_then(|quorum| u32::try_from(quorum).ok());
                let rule = || format!("config.joinPolicy.quorum is not within 1 to {most}");
                JoinMode::Quorum(quorum.ok_or_else(rule)?)
            }
            Some(other) => {
                return Err(format!(
                    "config.joinPolicy.mode '{other}' is none of {}",
                    JOIN_MODES.join(", ")
                ));
            }
        };
        if quorum.is_some() && !matches!(mode, JoinMode::Quorum(_)) {
            return Err("config.joinPolicy.quorum is only for the mode quorum".to_owned());
        }
        let on_failure = match policy.text("onChildFailure").map_err(in_policy)? {
            None | Some("collect") => OnChildFailure::Collect,
            Some("fail-fast") => OnChildFailure::FailFast,
            Some("absorb") => OnChildFailure::Absorb,
            Some(other) => {
                return Err(format!(
                    "config.joinPolicy.onChildFailure '{other}' is none of {}",
                    ON_CHILD_FAILURE.join(", ")
                ));
            }
        };
        Ok(Self {
            max_concurrency,
            mode,
            on_failure,
        })
    }
}

fn by_worker(config: Config<'_>, field: &str) -> Result<BTreeMap<String, Mapping>, String> {
    match config.0.get(field) {
        None | Some(Value::Null) => Ok(BTreeMap::new()),
        Some(Value::Object(workers)) => {
            let mapping = |worker: &String| -> Result<_, String> {
                let mapping = Config(workers).mapping(worker);
                let mapping =
                    mapping.map_err(|rule| rule.replacen("config", &format!("config.{field}"), 1))?;
                Ok((worker.clone(), mapping))
            };
            workers.keys().map(mapping).collect()
        }
        Some(_) => Err(format!("config.{field} is not an object")),
    }
}

/// The data of a question that asks a person for words.
pub(crate) fn question(prompt: &str) -> Value {
    json!({ "questions": [{ "id": QUESTION, "question": prompt }] })
}

/// The data of an approval.
pub(crate) fn approval_data(artifact: &str, title: &str, subject: Option<Value>) -> Value {
    let mut data = json!({
        "artifactId": artifact,
        "artifactType": "orchestrator-decision",
        "title": title,
        "actions": ["accept", "reject"],
    });
    if let Some(subject) = subject {
        data["artifactData"] = subject;
        data["actions"] = json!(["accept", "reject", "edit-accept"]);
    }
    data
}
