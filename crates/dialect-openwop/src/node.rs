//! The OpenWOP node types that this kernel runs, with their settings parsed and checked.
//!
//! A type id maps to one variant of [`NodeKind`]; an unknown type id is a problem of the definition. The
//! types of the conformance suite exist only if the host enables them.
//!
//! The file is long because [`NodeKind`] is closed: what all types answer is one exhaustive match each. A type with settings
//! of its own has them in a module of its own.

mod about;
mod activity;
mod agent;
mod attestation;
mod config;
mod context_budget;
mod conversation;
mod dispatch;
mod given_tool;
mod http;
mod lead;
mod memory;
mod mock_agent;
mod model;
mod remote;
mod server_tools;
mod supervisor;
mod tool_call;
mod tools;
mod verifier;

use serde_json::{Map, Value, json};
use wopr_kernel::{AnswerSchema, ApprovalRules, NodeTypes, Question, Rules};

use crate::{
    ApprovalAction, InterruptKind, REJECTED, WorkflowId, channel,
    definition::Node,
    expression::Template,
    measure::value_size,
    schema::{Allowance, Schema},
};

use about::with_texts;
pub(crate) use about::{ARTIFACT, About, TITLE};
pub(crate) use activity::{ActivityNode, MAX_ACTIVITY_MS};
pub(crate) use agent::{
    AGENT_RETRIES, AgentNode, AgentTask, BINDINGS, CANCEL_TASK, CONVERSE, DISCOVER, GET_TASK, MAX_MODES,
    MAX_TURNS, SEND, VERSIONS, calls_agent, gives_artifacts, pack_hint,
};
pub(crate) use attestation::{Attestation, checksum, harvest};
pub(crate) use config::written_by;
pub(crate) use config::{Assigned, MAX_NAMES, MAX_PIECES, Pieces, RESTRICTIONS, known_keys};
use config::{CHANNEL_FIELDS, Config, VARIABLE_FIELDS};
pub(crate) use context_budget::{Bounds, COUNTERS, MAX_KEPT, MIN_TRANSCRIPT};
pub use context_budget::{MAX_TRANSCRIPT, TOKEN_COUNTER};
pub(crate) use conversation::{
    ConversationNode, MAX_SCRIPTED, MAX_TURNS as MAX_CONVERSATION, TYPE as CONVERSATION,
};
pub use dispatch::MAX_FAN_OUT;
pub(crate) use dispatch::{
    Dispatch, FAN_OUTS, Fan, FanOut, ISOLATIONS, JOIN_MODES, ON_CHILD_FAILURE, OnChildFailure, QUESTION,
    ROUTINGS, approval_data, question,
};
pub(crate) use given_tool::{
    TYPE as GIVEN_TOOL, inputs_of as tool_inputs, is_tool_workflow, request_of as given_request, told,
};
pub use given_tool::{tool_workflow, tool_workflow_id};
pub use http::HTTP_MAX_TIMEOUT_MS;
pub(crate) use http::HttpNode;
pub use lead::MAX_WINDOW;
pub(crate) use lead::{Lead, Led, MAX_WORKERS};
pub(crate) use memory::{
    COMPACT as MEMORY_COMPACT, Entry, MAX_READ, MAX_SCOPE, MAX_TAGS, MAX_TTL_MS as MAX_MEMORY_TTL_MS,
    MemoryNode, MemoryTask, PROBE as MEMORY_PROBE, Probe, READ as MEMORY_READ, WRITE as MEMORY_WRITE,
    is_of_a_run,
};
pub(crate) use mock_agent::{MockAgent, Reasoning, TYPE as MOCK_AGENT};
pub use model::MAX_REPAIRS;
pub(crate) use model::{
    MAX_MESSAGES, MAX_NAME as MAX_MODEL_NAME, MOCK, MODEL_MAX_TIMEOUT_MS, MODEL_RETRIES, MOST_TOKENS,
    ModelAnswer, ModelNode, ModelRole, Wanted, asks_model,
};
pub(crate) use remote::{Remote, SKILL};
pub use remote::{agent_workflow, agent_workflow_id};
pub(crate) use server_tools::ServerTool;
pub(crate) use supervisor::{Decider, MAX_RULES, MAX_TURNS_LIMIT, Pattern, Rule, Supervisor};
pub(crate) use tool_call::{TOOL_MAX_TIMEOUT_MS, TOOL_RETRIES, TYPE as TOOL_CALL, ToolNode, calls_tool};
pub(crate) use tools::{
    Arguments, MAX_DESCRIPTION, MAX_ROUNDS as MAX_TOOL_ROUNDS, MAX_TOOLS, Target, Tools, name_of,
};
pub(crate) use verifier::{Judgement, MAX_CRITERIA, MAX_CRITERION, MAX_REVISIONS, Verifier};

/// What a node does, with its settings parsed.
#[derive(Debug)]
pub(crate) enum NodeKind {
    /// `core.noop`, `core.identity`, `core.start`, `core.end`, `core.merge`, `core.conditional`: inputs become outputs.
    Pass,
    /// `core.delay`
    Delay {
        /// From the configuration; an input port takes precedence.
        ms: Option<u64>,
    },
    /// `core.fail`
    Fail {
        code: String,
        message: String,
        retryable: bool,
    },
    /// `core.a2a.reject`: declines the run's request.
    Reject { message: Template },
    /// `core.stream`: emits a text in chunks.
    Stream {
        pieces: Pieces,
        /// Delay between two chunks.
        interval_ms: u64,
    },
    /// `core.approvalGate`, and `core.interrupt` of kind approval.
    Approval(Box<ApprovalGate>),
    /// `core.clarificationGate`, and `core.interrupt` of kind clarification.
    Clarification {
        /// The questions as the definition has them.
        questions: Value,
        rules: Rules,
        /// Further data shown with the questions.
        data: Value,
        about: About,
        timeout_ms: Option<u64>,
    },
    /// `core.interrupt` of the other kinds.
    Interrupt {
        kind: InterruptKind,
        rules: Rules,
        data: Value,
        about: About,
        timeout_ms: Option<u64>,
    },
    /// `core.setVariable`
    SetVariable {
        name: String,
        /// The new value; an input port `value` takes precedence.
        value: Assigned,
    },
    /// `core.template`
    Template(Template),
    /// `core.channelWrite`
    ChannelWrite {
        channel: String,
        /// The value to write; an input port `value` takes precedence.
        value: Option<Value>,
        /// `None` means the reducer that the channel declares.
        reducer: Option<String>,
        /// The write drops entries older than this.
        ttl_ms: Option<u64>,
        /// Maximum number of entries kept.
        max_size: Option<u64>,
    },
    /// `core.subWorkflow`
    SubWorkflow(Box<SubWorkflow>),
    /// `core.orchestrator.supervisor`
    Supervisor(Box<Supervisor>),
    /// `core.dispatch`
    Dispatch(Box<Dispatch>),
    /// `core.http.request`
    Http(Box<HttpNode>),
    /// `core.activity`
    Activity(Box<ActivityNode>),
    /// `core.a2a.invoke`, and the calls of the pack `core.openwop.a2a`
    Agent(Box<AgentNode>),
    /// `core.ai.callPrompt` and `core.ai.structuredOutput`
    Model(Box<ModelNode>),
    /// `core.mcp.toolCall`, and `core.ai.callPrompt` that names a tool in place of a prompt
    Tool(Box<ToolNode>),
    /// The call of a tool for a model: the node of the host's own workflow.
    GivenTool,
    /// `core.conversationGate`
    Conversation(Box<ConversationNode>),
    /// A passing node of the conformance suite that writes a message twice.
    Duplicates,
    /// `core.memory.write`, `core.memory.read`, `core.memory.compact`, and probes of the conformance suite.
    Memory(Box<MemoryNode>),
    /// `core.conformance.mock-agent`: does as an agent what its settings say.
    MockAgent(Box<MockAgent>),
    /// `core.conformance.side-effect`
    SideEffect,
    /// `conformance.artifact.emit`
    ArtifactEmit { artifact_type: String, content: Value },
    /// A node whose module requires a capability that this host never has.
    Requires { capability: String },
}

#[derive(Debug)]
pub(crate) struct ApprovalGate {
    /// The interrupt's data, complete with the fields that OpenWOP requires.
    pub data: Value,
    pub about: About,
    pub rules: Rules,
    pub timeout_ms: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct SubWorkflow {
    pub workflow: WorkflowId,
    /// (child variable, parent variable)
    pub inputs: Vec<(String, String)>,
    /// Passed to the child unchanged.
    pub static_inputs: Map<String, Value>,
    /// (parent variable, child variable)
    pub outputs: Vec<(String, String)>,
    /// Whether a failed child fails this node.
    pub fail_parent: bool,
    /// Whether a cancel cascades to the child.
    pub propagate_cancel: bool,
    /// Whether the child's agents remember in a scope of their own.
    pub isolates_memory: bool,
    /// How what the child gives back is vouched for.
    pub attestation: Option<Attestation>,
}

/// Longest interval between two chunks of a streamed text.
pub(crate) const STREAM_MAX_INTERVAL_MS: u64 = 3_600_000;

/// The profile of a gate that refuses tokens.
const AUTH_REQUIRED: &str = "openwop-interrupt-auth-required";
/// The accepted values of `onTimeout`. A gate that times out is rejected in any case.
pub(crate) const ON_TIMEOUT: [&str; 4] = ["reject", "fail", "approve", "accept"];
/// The interrupt profiles that a gate may name.
pub(crate) const PROFILES: [&str; 4] = [
    AUTH_REQUIRED,
    "openwop-interrupt-quorum",
    "openwop-interrupt-external-event",
    "openwop-interrupt-cascade-cancel",
];

/// The setting that makes a passing node write a message twice.
const DUPLICATES: &str = "emitDuplicateMessageId";

/// Maximum number of questions in one clarification.
pub(crate) const MAX_QUESTIONS: usize = 100;

impl NodeKind {
    /// Returns `true` if the node waits for a timer of its own.
    pub(crate) const fn is_delay(&self) -> bool {
        matches!(self, Self::Delay { .. } | Self::Stream { .. })
    }

    /// Whether the node ends in the decision that starts it.
    pub(crate) const fn never_waits(&self) -> bool {
        match self {
            Self::Pass
            | Self::Fail { .. }
            | Self::Reject { .. }
            | Self::SetVariable { .. }
            | Self::Template(_)
            | Self::ChannelWrite { .. }
            | Self::Duplicates
            | Self::ArtifactEmit { .. } => true,
            Self::Delay { .. }
            | Self::Stream { .. }
            | Self::Approval(_)
            | Self::Clarification { .. }
            | Self::Interrupt { .. }
            | Self::SubWorkflow(_)
            // Either may ask a person.
            | Self::Supervisor(_)
            | Self::Dispatch(_)
            | Self::Http(_)
            | Self::Activity(_)
            | Self::Agent(_)
            | Self::Model(_)
            | Self::Tool(_)
            | Self::GivenTool
            | Self::Conversation(_)
            | Self::Memory(_)
            | Self::MockAgent(_)
            | Self::SideEffect
            | Self::Requires { .. } => false,
        }
    }

    /// The texts that describe a gate, and the rules of the interrupts that it opens.
    pub(crate) fn gate(&self) -> Option<(&About, &Rules)> {
        match self {
            Self::Approval(gate) => Some((&gate.about, &gate.rules)),
            Self::Clarification { about, rules, .. } | Self::Interrupt { about, rules, .. } => {
                Some((about, rules))
            }
            Self::Pass
            | Self::Delay { .. }
            | Self::Fail { .. }
            | Self::Reject { .. }
            | Self::Stream { .. }
            | Self::SetVariable { .. }
            | Self::Template(_)
            | Self::ChannelWrite { .. }
            | Self::SubWorkflow(_)
            | Self::Supervisor(_)
            | Self::Dispatch(_)
            | Self::Http(_)
            | Self::Activity(_)
            | Self::Agent(_)
            | Self::Model(_)
            | Self::Tool(_)
            | Self::GivenTool
            | Self::Memory(_)
            | Self::MockAgent(_)
            | Self::Conversation(_)
            | Self::Duplicates
            | Self::SideEffect
            | Self::ArtifactEmit { .. }
            | Self::Requires { .. } => None,
        }
    }

    /// The model that the node asks, if it asks one.
    pub(crate) fn model(&self) -> Option<&ModelNode> {
        match self {
            Self::Model(model) => Some(model),
            Self::Supervisor(supervisor) => supervisor.decider.lead().map(|lead| &lead.model),
            _ => None,
        }
    }

    /// The settings of the conversations that the node opens, if it opens any.
    pub(crate) fn conversation(&self) -> Option<&ConversationNode> {
        match self {
            Self::Conversation(gate) => Some(gate),
            Self::Dispatch(dispatch) => dispatch.conversation.as_ref(),
            _ => None,
        }
    }

    /// The outputs that the whole of an answer becomes.
    pub(crate) const fn outputs_of_answer(&self) -> &'static [&'static str] {
        match self {
            Self::Conversation(_) => &["turns", "outcome"],
            Self::Dispatch(dispatch) => match dispatch.conversation {
                Some(_) => &["answer", "turns", "outcome"],
                None => &["answer"],
            },
            Self::Interrupt { kind, .. } => match kind {
                InterruptKind::ExternalEvent | InterruptKind::Custom => &["event", "resumeValue"],
                InterruptKind::Approval
                | InterruptKind::Clarification
                | InterruptKind::LowConfidence
                | InterruptKind::Conversation => &[],
            },
            Self::Pass
            | Self::Delay { .. }
            | Self::Fail { .. }
            | Self::Reject { .. }
            | Self::Stream { .. }
            | Self::SetVariable { .. }
            | Self::Template(_)
            | Self::ChannelWrite { .. }
            | Self::SubWorkflow(_)
            | Self::Supervisor(_)
            | Self::Http(_)
            | Self::Activity(_)
            | Self::Agent(_)
            | Self::Model(_)
            | Self::Tool(_)
            | Self::GivenTool
            | Self::Memory(_)
            | Self::MockAgent(_)
            | Self::Approval(_)
            | Self::Clarification { .. }
            | Self::Duplicates
            | Self::SideEffect
            | Self::ArtifactEmit { .. }
            | Self::Requires { .. } => &[],
        }
    }

    /// Who judges what the node decides, if somebody does.
    pub(crate) fn verifier(&self) -> Option<&Verifier> {
        match self {
            Self::Supervisor(supervisor) => supervisor.verifier.as_ref(),
            _ => None,
        }
    }

    /// The rules of the interrupts of this kind that the node opens.
    pub(crate) fn rules(&self, kind: InterruptKind) -> Option<&Rules> {
        match (self, kind) {
            (Self::Supervisor(supervisor), InterruptKind::LowConfidence) => Some(&supervisor.rules),
            (Self::Supervisor(supervisor), InterruptKind::Approval) => {
                supervisor.decider.lead().map(|lead| &lead.model.more_money)
            }
            (Self::Dispatch(dispatch), InterruptKind::Approval) => Some(dispatch.approval()),
            (Self::Dispatch(dispatch), InterruptKind::Clarification) => Some(dispatch.clarification()),
            (Self::Model(model), InterruptKind::Approval) => Some(&model.more_money),
            (Self::SubWorkflow(sub), InterruptKind::Approval) => {
                sub.attestation.as_ref().and_then(Attestation::rules)
            }
            (Self::Supervisor(_) | Self::Dispatch(_) | Self::SubWorkflow(_), _) => None,
            (other, _) => other.gate().map(|(_, rules)| rules),
        }
    }

    /// Parses a node's type and settings; fails with the rule that they break.
    pub(crate) fn read(node: &Node, node_types: NodeTypes, allowance: &Allowance) -> Result<Self, String> {
        let kind = Self::read_config(node, node_types, allowance)?;
        let Some(known) = known_keys(&node.type_id) else {
            return Ok(kind);
        };
        match node.config.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(kind),
            Some(unknown) => Err(format!(
                "config.{unknown} is not known; {} has {}",
                node.type_id,
                known.join(", ")
            )),
        }
    }

    fn read_config(node: &Node, node_types: NodeTypes, allowance: &Allowance) -> Result<Self, String> {
        let config = Config(&node.config);
        match node.type_id.as_str() {
            "core.identity" if node_types.conformance && node.config.contains_key(MEMORY_PROBE) => {
                match MemoryNode::probe(node)? {
                    Some(probe) => Ok(Self::Memory(Box::new(probe))),
                    None => Ok(Self::Pass),
                }
            }
            "core.identity" if node_types.conformance && config.flag(DUPLICATES)?.unwrap_or(false) => {
                Ok(Self::Duplicates)
            }
            CONVERSATION => ConversationNode::read(node, node_types.conformance, allowance)
                .map(|gate| Self::Conversation(Box::new(gate))),
            MEMORY_WRITE | MEMORY_READ | MEMORY_COMPACT => {
                MemoryNode::read(node, allowance).map(|memory| Self::Memory(Box::new(memory)))
            }
            "core.noop" | "core.identity" | "core.start" | "core.end" | "core.merge" | "core.conditional" => {
                Ok(Self::Pass)
            }
            "core.delay" => Ok(Self::Delay { ms: config.delay()? }),
            "core.fail" => Ok(Self::Fail {
                code: match config.text("code")? {
                    Some(REJECTED) => {
                        return Err(format!("config.code '{REJECTED}' is that of core.a2a.reject"));
                    }
                    Some(code) => code.to_owned(),
                    None => "conformance_test_failure".to_owned(),
                },
                message: config
                    .text("message")?
                    .unwrap_or("Intentional conformance failure")
                    .to_owned(),
                retryable: config.flag("retryable")?.unwrap_or(false),
            }),
            "core.a2a.reject" => {
                let source = config.text("message")?.unwrap_or("The request was declined.");
                Template::compile(source, allowance)
                    .map(|message| Self::Reject { message })
                    .map_err(|e| format!("config.message: {e}"))
            }
            "core.stream" => Ok(Self::Stream {
                pieces: config.pieces(allowance)?,
                interval_ms: match config.millis("intervalMs")?.unwrap_or(0) {
                    ms if ms <= STREAM_MAX_INTERVAL_MS => ms,
                    _ => return Err(format!("config.intervalMs is more than {STREAM_MAX_INTERVAL_MS}")),
                },
            }),
            "core.approvalGate" => Ok(Self::Approval(Box::new(ApprovalGate::read(
                node,
                &node.config,
                allowance,
            )?))),
            "core.clarificationGate" => {
                Self::clarification(&node.config, config.millis("timeoutMs")?, allowance)
            }
            "core.interrupt" => Self::interrupt(node, allowance),
            "core.setVariable" => {
                let name = config.first(&VARIABLE_FIELDS)?;
                let name = name
                    .filter(|name| !name.is_empty())
                    .ok_or("config.name is missing")?
                    .to_owned();
                if name.starts_with('_') {
                    return Err(format!(
                        "config.name is '{name}': names with a leading underscore are the host's"
                    ));
                }
                Ok(Self::SetVariable {
                    name,
                    value: config.assigned(allowance)?,
                })
            }
            "core.template" => {
                let source = config.text("template")?.ok_or("config.template is missing")?;
                Template::compile(source, allowance)
                    .map(Self::Template)
                    .map_err(|e| format!("config.template: {e}"))
            }
            "core.channelWrite" => {
                let channel = config.first(&CHANNEL_FIELDS)?;
                let reducer = config.text("reducer")?;
                if let Some(unknown) = reducer.filter(|reducer| !channel::is_known(reducer)) {
                    return Err(format!("config.reducer '{unknown}' is not known"));
                }
                Ok(Self::ChannelWrite {
                    channel: channel.ok_or("config.channelName is missing")?.to_owned(),
                    value: node.config.get("value").cloned(),
                    reducer: reducer.map(ToOwned::to_owned),
                    ttl_ms: config.millis("ttlMs")?,
                    max_size: config.millis("maxSize")?,
                })
            }
            "core.subWorkflow" => SubWorkflow::read(config).map(|sub| Self::SubWorkflow(Box::new(sub))),
            "core.orchestrator.supervisor" => Supervisor::read(node, node_types, allowance)
                .map(|supervisor| Self::Supervisor(Box::new(supervisor))),
            "core.dispatch" => Dispatch::read(config).map(|dispatch| Self::Dispatch(Box::new(dispatch))),
            "core.activity" => {
                ActivityNode::read(config, allowance).map(|activity| Self::Activity(Box::new(activity)))
            }
            type_id if calls_agent(type_id) => {
                AgentNode::read(node, allowance).map(|agent| Self::Agent(Box::new(agent)))
            }
            GIVEN_TOOL => Ok(Self::GivenTool),
            type_id if calls_tool(type_id, &node.config) => {
                ToolNode::read(node, allowance).map(|tool| Self::Tool(Box::new(tool)))
            }
            model::CALL_PROMPT | model::STRUCTURED_OUTPUT => {
                ModelNode::read(node, node_types, allowance).map(|model| Self::Model(Box::new(model)))
            }
            "core.http.request" => HttpNode::read(config, allowance).map(|http| Self::Http(Box::new(http))),
            // Marks a workflow as made for conformance mode: on other hosts it does not compile.
            "conformance.start" if node_types.conformance => Ok(Self::Pass),
            MOCK_AGENT if node_types.conformance => {
                MockAgent::read(node).map(|agent| Self::MockAgent(Box::new(agent)))
            }
            "core.conformance.side-effect" if node_types.conformance => Ok(Self::SideEffect),
            "conformance.artifact.emit" if node_types.conformance => Ok(Self::ArtifactEmit {
                artifact_type: config
                    .text("artifactType")?
                    .unwrap_or("conformance.artifact")
                    .to_owned(),
                content: node
                    .config
                    .get("content")
                    .or(node.config.get("artifactData"))
                    .cloned()
                    .unwrap_or_default(),
            }),
            "conformance.requiresMissing" if node_types.conformance => Ok(Self::Requires {
                capability: "conformance.never-provided".to_owned(),
            }),
            unknown => Err(format!("typeId '{unknown}' is not offered by this host")),
        }
    }

    fn clarification(
        config: &Map<String, Value>,
        timeout_ms: Option<u64>,
        allowance: &Allowance,
    ) -> Result<Self, String> {
        let questions = config
            .get("questions")
            .and_then(Value::as_array)
            .ok_or("config.questions is not an array")?;
        if questions.is_empty() {
            return Err("config.questions is empty".to_owned());
        }
        if questions.len() > MAX_QUESTIONS {
            return Err(format!("config.questions has more than {MAX_QUESTIONS} entries"));
        }
        let questions = questions
            .iter()
            .map(|question| read_question(question, allowance))
            .collect::<Result<Vec<_>, _>>()?;
        if questions
            .iter()
            .enumerate()
            .any(|(i, q)| questions[..i].iter().any(|other| other.id == q.id))
        {
            return Err("config.questions repeats an id".to_owned());
        }
        let shown = with_texts(Map::new(), config);
        let documents = questions.iter().map(|question| question.document.clone());
        Ok(Self::Clarification {
            questions: documents.collect(),
            rules: Rules::Clarification(questions),
            about: About::read(&shown, allowance)?,
            data: Value::Object(shown),
            timeout_ms,
        })
    }

    fn interrupt(node: &Node, allowance: &Allowance) -> Result<Self, String> {
        let config = Config(&node.config);
        let empty = Map::new();
        let data = node
            .config
            .get("data")
            .map_or(Some(&empty), Value::as_object)
            .ok_or("config.data is not an object")?;
        let mut data = with_texts(data.clone(), &node.config);
        let timeout_ms = config.millis("timeoutMs")?;
        let schema = match node.config.get("resumeSchema") {
            None | Some(Value::Null) => None,
            Some(schema) => {
                let compiled = Schema::compile(schema, allowance);
                let compiled = compiled.map_err(|e| format!("config.resumeSchema: {e}"))?;
                Some((schema, Box::new(compiled) as Box<dyn AnswerSchema>))
            }
        };
        let own_form = |kind: &str| match schema {
            Some(_) => Err(format!(
                "config.resumeSchema is for the kinds external-event and custom; {kind} has a form of its own"
            )),
            None => Ok(()),
        };
        match config.text("kind")?.ok_or("config.kind is missing")? {
            "approval" => {
                own_form("an approval")?;
                config.check_data(&data, "core.approvalGate", &[])?;
                let mut gate = ApprovalGate::read(node, &data, allowance)?;
                gate.timeout_ms = gate.timeout_ms.or(timeout_ms);
                Ok(Self::Approval(Box::new(gate)))
            }
            "clarification" => {
                own_form("a clarification")?;
                config.check_data(&data, "core.clarificationGate", &["contextType"])?;
                let own = Config(&data).millis("timeoutMs")?;
                Self::clarification(&data, own.or(timeout_ms), allowance)
            }
            "external-event" => {
                config.check_open_data(&data)?;
                let event_type = data
                    .get("eventType")
                    .and_then(Value::as_str)
                    .filter(|t| !t.is_empty());
                event_type.ok_or("config.data.eventType is missing")?;
                data.get("correlation")
                    .and_then(Value::as_object)
                    .ok_or("config.data.correlation is not an object")?;
                let rules = Rules::Event(shown_schema(&mut data, schema));
                Ok(Self::Interrupt {
                    kind: InterruptKind::ExternalEvent,
                    rules,
                    about: About::read(&data, allowance)?,
                    data: Value::Object(data),
                    timeout_ms,
                })
            }
            "custom" => {
                config.check_open_data(&data)?;
                data.get("customKind")
                    .and_then(Value::as_str)
                    .ok_or("config.data.customKind is missing")?;
                let rules = shown_schema(&mut data, schema).map_or(Rules::Any, Rules::Checked);
                Ok(Self::Interrupt {
                    kind: InterruptKind::Custom,
                    rules,
                    about: About::read(&data, allowance)?,
                    data: Value::Object(data),
                    timeout_ms,
                })
            }
            unknown => Err(format!("config.kind '{unknown}' is not offered by this host")),
        }
    }
}

/// Adds the schema of an answer to what is asked, for whoever answers.
fn shown_schema(
    data: &mut Map<String, Value>,
    schema: Option<(&Value, Box<dyn AnswerSchema>)>,
) -> Option<Box<dyn AnswerSchema>> {
    let (shown, compiled) = schema?;
    data.insert("resumeSchema".to_owned(), shown.clone());
    Some(compiled)
}

impl ApprovalGate {
    fn read(node: &Node, config: &Map<String, Value>, allowance: &Allowance) -> Result<Self, String> {
        let reader = Config(config);
        let offered = match config.get("actions") {
            None => vec!["accept", "reject"],
            Some(Value::Array(actions)) => actions
                .iter()
                .map(|action| {
                    action
                        .as_str()
                        .ok_or("config.actions holds something other than strings")
                })
                .collect::<Result<Vec<_>, _>>()?,
            Some(_) => return Err("config.actions is not an array".to_owned()),
        };
        let mut actions = Vec::new();
        for name in &offered {
            let name = match *name {
                "approve" => "accept",
                other => other,
            };
            let action = ApprovalAction::parse(name)
                .ok_or_else(|| format!("config.actions holds '{name}', which is none of the five actions"))?;
            if !actions.contains(&action) {
                actions.push(action);
            }
        }
        if actions.is_empty() {
            return Err("config.actions is empty".to_owned());
        }
        let required = match reader.millis("requiredApprovals")? {
            None => 1,
            Some(n) => u32::try_from(n)
                .ok()
                .filter(|n| (1..=1_000).contains(n))
                .ok_or("config.requiredApprovals is not within 1 to 1000")?,
        };
        let majority = match reader.text("rejectionPolicy")? {
            None | Some("single-veto") => false,
            Some("majority") => true,
            Some(_) => return Err("config.rejectionPolicy is neither single-veto nor majority".to_owned()),
        };
        if required > 1 && actions.contains(&ApprovalAction::EditAccept) {
            return Err(
                "config.actions offers edit-accept, with which one approver would decide for the quorum"
                    .to_owned(),
            );
        }
        let approvers = reader.names("approversList")?;
        let refs = reader.names("approverRefs")?;
        let has_refs = !refs.is_empty()
            || !reader.names("approverRoleRefs")?.is_empty()
            || !reader.names("approverGroupRefs")?.is_empty();
        // A gate that times out is always rejected: a timeout never grants.
        if let Some(other) = reader
            .text("onTimeout")?
            .filter(|wish| !ON_TIMEOUT.contains(wish))
        {
            return Err(format!(
                "config.onTimeout '{other}' is not reject: a gate whose time is up is rejected"
            ));
        }
        let profile = reader.text("profile")?;
        if let Some(unknown) = profile.filter(|profile| !PROFILES.contains(profile)) {
            return Err(format!(
                "config.profile '{unknown}' is none of {}",
                PROFILES.join(", ")
            ));
        }
        let mut data = json!({
            "artifactId": reader.text("artifactId")?.unwrap_or(node.id.as_str()),
            "artifactType": reader.text("artifactType")?.unwrap_or("approval"),
            "title": reader.text("title")?.unwrap_or(node.name()),
            "actions": actions.iter().map(|action| action.as_str()).collect::<Vec<_>>(),
        });
        for field in [
            "description",
            "artifactData",
            "requiredApprovals",
            "approversList",
            "approverRefs",
            "approverRoleRefs",
            "approverGroupRefs",
            "rejectionPolicy",
            "prompt",
        ] {
            if let Some(value) = config.get(field) {
                data[field] = value.clone();
            }
        }
        Ok(Self {
            data,
            about: About::read(config, allowance)?,
            rules: Rules::Approval(ApprovalRules {
                actions,
                required,
                majority,
                approvers,
                refs,
                has_refs,
                auth_required: profile == Some(AUTH_REQUIRED),
                edited: None,
            }),
            timeout_ms: reader.millis("timeoutMs")?,
        })
    }
}

fn read_question(document: &Value, allowance: &Allowance) -> Result<Question, String> {
    let id = document
        .get("id")
        .and_then(Value::as_str)
        .filter(|id| !id.is_empty());
    let id = id
        .ok_or("config.questions holds a question without id")?
        .to_owned();
    if document.get("question").and_then(Value::as_str).is_none() {
        return Err(format!("question '{id}' has no text"));
    }
    let schema = match document.get("schema") {
        None => None,
        Some(schema) => {
            let schema =
                Schema::compile(schema, allowance).map_err(|e| format!("question '{id}': schema: {e}"))?;
            Some(Box::new(schema) as Box<dyn AnswerSchema>)
        }
    };
    // What is shown of a question is kept twice.
    allowance.compiled(value_size(document))?;
    Ok(Question {
        id,
        document: document.clone(),
        schema,
    })
}

impl SubWorkflow {
    /// Whether what the child gives back counts only once somebody has approved it.
    pub(crate) fn needs_approval(&self) -> bool {
        let attestation = self.attestation.as_ref();
        attestation.is_some_and(|attestation| attestation.rules().is_some())
    }

    fn read(config: Config<'_>) -> Result<Self, String> {
        let workflow = config.text("workflowId")?.ok_or("config.workflowId is missing")?;
        let workflow = WorkflowId::parse(workflow).map_err(|e| format!("config.workflowId: {e}"))?;
        if workflow.is_of_host() {
            return Err(format!(
                "config.workflowId '{workflow}' is the host's own: core.mcp.toolCall calls a tool, core.a2a.invoke an agent"
            ));
        }
        if config.flag("waitForCompletion")? == Some(false) {
            return Err(
                "config.waitForCompletion must be true: this host runs children synchronously".to_owned(),
            );
        }
        let fail_parent = match config.text("onChildFailure")? {
            None | Some("fail-parent") => true,
            Some("absorb" | "continue") => false,
            Some(other) => {
                return Err(format!(
                    "config.onChildFailure '{other}' is neither fail-parent nor absorb"
                ));
            }
        };
        let outputs = config.mapping("outputMapping")?;
        let attestation = match config.0.get("outputAttestation") {
            None | Some(Value::Null) => None,
            Some(attestation) => Some(Attestation::read(attestation, &outputs)?),
        };
        if let Some((name, _)) = outputs.iter().find(|(name, _)| name.starts_with('_')) {
            return Err(format!(
                "config.outputMapping sets '{name}': names with a leading underscore are the host's"
            ));
        }
        Ok(Self {
            workflow,
            inputs: config.mapping("inputMapping")?,
            static_inputs: match config.0.get("inputs") {
                None => Map::new(),
                Some(Value::Object(inputs)) => inputs.clone(),
                Some(_) => return Err("config.inputs is not an object".to_owned()),
            },
            outputs,
            fail_parent,
            propagate_cancel: config.flag("propagateCancellation")?.unwrap_or(true),
            isolates_memory: match config.text("memoryScopeIsolation")? {
                None => false,
                Some("isolated") => true,
                Some(other) => {
                    return Err(format!("config.memoryScopeIsolation '{other}' is not isolated"));
                }
            },
            attestation,
        })
    }
}
