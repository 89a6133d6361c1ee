//! What an effect asks for: calls over HTTP, work for workers, requests to other agents, to models and to tools, and
//! what agents remember.
//!
//! Everything in a call is rendered; the executor that makes it adds only credentials.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Activity, ModelCall, Object,
    measure::{size_of, size_of_object},
};

#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    Http {
        /// In upper case.
        method: String,
        /// Absolute URL.
        url: String,
        headers: Vec<(String, String)>,
        /// Headers with secrets, which the call only names.
        secret_headers: Vec<SecretHeader>,
        /// JSON text.
        body: Option<String>,
        timeout_ms: u64,
    },
    /// Work for a worker, which reports its outcome.
    Activity(Box<Activity>),
    /// A request to another agent, which may work on it for a long time.
    Agent(Box<AgentCall>),
    /// A request to a model.
    Model(Box<ModelCall>),
    /// A call of a tool on a tool server.
    Tool(Box<ToolRequest>),
    /// A look at the tools of tool servers.
    ToolList(Box<ToolQuery>),
    /// What agents remember: reads entries, and prepares new ones, which the outcome's append writes.
    Memory(Box<MemoryCall>),
    /// The side effect of the conformance suite.
    SideEffect {
        /// The value to record.
        payload: Value,
    },
}

/// A header whose value is a secret of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretHeader {
    pub name: String,
    /// The name of the secret in the host's configuration.
    pub secret: String,
    /// What comes before the secret, such as `Bearer `.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
}

impl Call {
    /// The type of the call, of [`provider`].
    #[must_use]
    pub const fn provider(&self) -> &'static str {
        match self {
            Self::Http { .. } => provider::HTTP,
            Self::Activity(_) => provider::ACTIVITY,
            Self::Agent(_) => provider::AGENT,
            Self::Model(_) => provider::MODEL,
            Self::Tool(_) => provider::TOOL,
            Self::ToolList(_) => provider::TOOL_LIST,
            Self::Memory(_) => provider::MEMORY,
            Self::SideEffect { .. } => provider::SIDE_EFFECT,
        }
    }
}

/// A call of a tool on a server that the operator has configured. Its outcome is an object with `content`, `text`,
/// `structuredContent` if the tool gives one, and `contentTrust`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolRequest {
    /// The name of the server in this host's configuration.
    pub server: String,
    pub tool: String,
    pub arguments: Object,
    /// Whether the call may be made again when nobody knows whether it was made. What the server says of the tool
    /// counts where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_safe: Option<bool>,
    /// Time limit of one attempt; the server's configured one where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

impl ToolRequest {
    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.server.len() + self.tool.len() + size_of_object(&self.arguments)
    }
}

/// Asks servers that the operator has configured how they describe their tools. Its outcome is an object with `tools`,
/// a list of [`ListedTool`]. It fails if one of the tools is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolQuery {
    pub wanted: Vec<WantedTools>,
}

impl ToolQuery {
    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let tools = self.wanted.iter().flat_map(|wanted| &wanted.tools);
        let servers = self.wanted.iter().map(|wanted| wanted.server.len());
        servers.sum::<usize>() + tools.map(String::len).sum::<usize>()
    }
}

/// The tools of one server that are looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WantedTools {
    /// The name of the server in this host's configuration.
    pub server: String,
    /// All that may be called where empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
}

/// A tool as its server describes it. Its texts are untrusted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedTool {
    pub server: String,
    pub tool: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON Schema of its arguments.
    pub input_schema: Object,
}

impl ListedTool {
    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let description = self.description.as_ref().map_or(0, String::len);
        self.server.len() + self.tool.len() + description + size_of_object(&self.input_schema)
    }
}

/// A call to the memory of a scope. Its outcome is an object with `memoryRef`, and of what was asked for `written`
/// (the new entries), `removed` (ids), `entries` (those read, and those just written) and `hasMore`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryCall {
    pub scope: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub write: Vec<NewMemory>,
    /// The entries that the new ones replace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<MemoryRead>,
}

/// An entry to write.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewMemory {
    /// A new one where absent; an entry that has it is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub content: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// How long it is kept, counted from when it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<i64>,
    /// The name of a secret to append to the content, for a test that it is not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// Which entries are read, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryRead {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    pub limit: u32,
}

impl MemoryCall {
    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let tags = |entry: &NewMemory| entry.tags.iter().map(String::len).sum::<usize>();
        let written = self.write.iter().map(|entry| entry.content.len() + tags(entry));
        self.scope.len() + written.sum::<usize>() + self.remove.iter().map(String::len).sum::<usize>()
    }
}

/// What an agent is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum AgentVerb {
    /// Sends the message, and waits until the agent is done with it.
    Invoke {
        /// The task that the message belongs to; a new one where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<String>,
        /// The most questions that the agent may ask; unlimited where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_questions: Option<u64>,
    },
    /// Sends the message. The outcome is what the agent answers at once, as a task or a message.
    Send {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<String>,
    },
    /// Looks once at a task.
    GetTask { task: String },
    /// Cancels a task.
    CancelTask { task: String },
    /// Reads the agent's card.
    Discover,
}

impl AgentVerb {
    /// A message that starts a task, which is waited for.
    pub const INVOKE: Self = Self::Invoke {
        task: None,
        max_questions: None,
    };

    /// Whether the call goes on after the agent has taken it, so that its run cancels the task when it ends early.
    #[must_use]
    pub const fn is_followed(&self) -> bool {
        match self {
            Self::Invoke { .. } => true,
            Self::Send { .. } | Self::GetTask { .. } | Self::CancelTask { .. } | Self::Discover => false,
        }
    }

    /// The task that the message of the call belongs to.
    #[must_use]
    pub const fn message_task(&self) -> Option<&String> {
        match self {
            Self::Invoke { task, .. } | Self::Send { task } => task.as_ref(),
            Self::GetTask { .. } | Self::CancelTask { .. } | Self::Discover => None,
        }
    }
}

/// What an agent is to the host that calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentReach {
    /// Another host, or a transport that the embedder has added.
    #[default]
    Peer,
    /// The same, of a caller that goes on by itself where the host has no agents at all.
    Delegate,
    /// A tool on a tool server: one call, and its result is the answer.
    Tool,
    /// A transport that the embedder has added, and nothing else.
    Embedded,
}

impl AgentReach {
    #[must_use]
    pub const fn is_peer(&self) -> bool {
        matches!(self, Self::Peer)
    }
}

/// A request to an agent that the operator has configured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentCall {
    pub verb: AgentVerb,
    /// The name of the agent in this host's configuration, or its address there.
    pub peer: String,
    #[serde(default, skip_serializing_if = "AgentReach::is_peer")]
    pub reach: AgentReach,
    /// The caller's name for the task; the host makes one of run and node where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<String>,
    /// What the agent is asked to do, in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skill: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// Files, as `{url | bytes | blob, name?, mediaType?}`. The bytes of a `blob` are not part of the call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<Value>,
    /// Groups this message with earlier ones to the same agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// The protocol version and binding to use, if not the agent's own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Media types of answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_modes: Vec<String>,
    /// On whose behalf: the agent that leads the run, else its workflow.
    pub caller: String,
    /// From the first attempt on, over restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

impl AgentCall {
    /// The size of the message in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let files: usize = self.files.iter().map(size_of).sum();
        self.text.as_ref().map_or(0, String::len) + self.data.as_ref().map_or(0, size_of) + files
    }

    /// The most questions that the agent may ask; `None` if there is no limit.
    #[must_use]
    pub const fn max_questions(&self) -> Option<u64> {
        match self.verb {
            AgentVerb::Invoke { max_questions, .. } => max_questions,
            AgentVerb::Send { .. }
            | AgentVerb::GetTask { .. }
            | AgentVerb::CancelTask { .. }
            | AgentVerb::Discover => None,
        }
    }
}

/// The types of calls. They are part of the key by which peers recognize a repeated call, so they never change.
pub mod provider {
    pub const HTTP: &str = "core.http.request";
    pub const ACTIVITY: &str = "core.activity";
    pub const AGENT: &str = "agent";
    pub const MODEL: &str = "model";
    pub const TOOL: &str = "tool";
    pub const TOOL_LIST: &str = "tool-list";
    pub const MEMORY: &str = "memory";
    pub const SIDE_EFFECT: &str = "core.conformance.side-effect";

    /// Whether a pause may cut a call of this type, which the next attempt then makes again. A worker and an agent go on by
    /// themselves, and a tool may do again what it has done already.
    #[must_use]
    pub fn may_be_cut(provider: &str) -> bool {
        [HTTP, MEMORY, MODEL, SIDE_EFFECT, TOOL_LIST].contains(&provider)
    }
}
