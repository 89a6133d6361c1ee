//! Documents, as they are read: nodes with their configuration, and the edges between them.
//!
//! Reading holds a document against the rules of its JSON Schema. How its nodes are connected is checked in `graph.rs`.
//!
//! The file is long because the schema is: twelve types of nodes, each read next to the others.

use serde_json::{Map, Value};
use wopr_kernel::{ContentHash, NodeId, Rules, Timestamp, WorkflowId};
use wopr_schema::{Allowance, Schema};

use crate::{
    diagnostic::Diagnostic,
    duration,
    jq::Filter,
    mapping::Mapping,
    reader::{Members, Reader},
    reducer::Reducers,
};

/// Maximum number of nodes in a document.
pub(crate) const MAX_NODES: usize = 1_000;
/// Maximum number of edges in a document.
const MAX_EDGES: usize = 4_000;
/// Maximum number of filters in a document.
const MAX_FILTERS: usize = 2_000;
/// Maximum memory of all compiled filters of a document, in bytes.
const MAX_FILTER_BYTES: usize = 4 << 20;
/// Maximum number of branches of a parallel node.
const MAX_BRANCHES: usize = 200;

/// The source of the edge that leads to the first node.
pub(crate) const BEFORE_START: &str = "__start__";

#[derive(Debug)]
pub(crate) struct Definition {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) description: Option<String>,
    pub(crate) workflow: WorkflowId,
    pub(crate) state_schema: Schema,
    pub(crate) reducers: Reducers,
    pub(crate) nodes: Vec<Node>,
    /// Source and target, as they are written.
    pub(crate) edges: Vec<(String, String)>,
    pub(crate) checkpoints: Checkpoints,
    /// The memory of compiled patterns and filters, in bytes.
    pub(crate) compiled_bytes: usize,
}

/// How often the history of a run says that a checkpoint was written. The log of a run holds each of its states,
/// whatever is said here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checkpoints {
    AfterEachNode,
    EveryNodes(u64),
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) kind: Kind,
    pub(crate) retry: Retry,
    /// How long one attempt may take.
    pub(crate) timeout_ms: Option<u64>,
    /// The configuration as it is written.
    pub(crate) config: Value,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Start {
        input_schema: Option<Schema>,
    },
    End {
        /// The state itself where absent.
        mapping: Option<Filter>,
        output_schema: Option<Schema>,
    },
    Step,
    Llm {
        output_schema: Option<Schema>,
    },
    Tool,
    Switch {
        /// The first whose filter is true is followed, by the id of its target.
        cases: Vec<(Filter, String)>,
        default: Option<String>,
    },
    Interrupt {
        prompt: String,
        rules: Rules,
        timeout_ms: Option<u64>,
    },
    Parallel {
        join: Join,
        branches: Vec<Branch>,
    },
    Wait(Wait),
    SetState(Mapping),
    Subworkflow {
        workflow_ref: String,
        mapping: Mapping,
        /// The hash that the child's document must have.
        version_pin: Option<ContentHash>,
    },
    Delegate {
        agent_id: String,
        protocol: Protocol,
        mapping: Mapping,
    },
}

impl Kind {
    /// Whether a worker, an agent or the host does the work of the node.
    pub(crate) const fn is_activity(&self) -> bool {
        match self {
            Self::Step | Self::Llm { .. } | Self::Tool | Self::Delegate { .. } => true,
            Self::Start { .. }
            | Self::End { .. }
            | Self::Switch { .. }
            | Self::Interrupt { .. }
            | Self::Parallel { .. }
            | Self::Wait(_)
            | Self::SetState(_)
            | Self::Subworkflow { .. } => false,
        }
    }

    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::End { .. } => "end",
            Self::Step => "step",
            Self::Llm { .. } => "llm_call",
            Self::Tool => "tool_call",
            Self::Switch { .. } => "switch",
            Self::Interrupt { .. } => "interrupt",
            Self::Parallel { .. } => "parallel",
            Self::Wait(_) => "wait",
            Self::SetState(_) => "set_state",
            Self::Subworkflow { .. } => "subworkflow",
            Self::Delegate { .. } => "agent_delegate",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Wait {
    Duration(u64),
    Until(Timestamp),
    Signal(String),
}

/// How many branches have to complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    All,
    Any,
    Some(usize),
}

#[derive(Debug)]
pub(crate) struct Branch {
    pub(crate) name: String,
    /// The id of its first node.
    pub(crate) entry: String,
}

/// How an agent is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    A2a,
    Mcp,
    Sdk,
}

impl Protocol {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::A2a => "a2a",
            Self::Mcp => "mcp",
            Self::Sdk => "sdk",
        }
    }
}

/// When failed attempts are repeated.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Retry {
    pub(crate) max_attempts: u32,
    pub(crate) initial_ms: u64,
    pub(crate) coefficient: f64,
    pub(crate) max_ms: Option<u64>,
    /// Codes of failures that are not repeated.
    pub(crate) non_retryable: Vec<String>,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 1,
            initial_ms: 0,
            coefficient: 1.0,
            max_ms: None,
            non_retryable: Vec::new(),
        }
    }
}

impl Retry {
    /// The delay after the failure of this attempt; 0 is the first one.
    pub(crate) fn delay_ms(&self, attempt: u32) -> u64 {
        if self.initial_ms == 0 {
            return 0;
        }
        #[expect(clippy::cast_precision_loss, reason = "a delay of ten years is exact")]
        let (mut delay, most) = (
            self.initial_ms as f64,
            self.max_ms.unwrap_or(duration::MOST) as f64,
        );
        // Multiplied one by one: unlike a power, a product is the same on every platform.
        for _ in 0..attempt {
            let next = delay * self.coefficient;
            if delay >= most || delay < 1.0 || next.total_cmp(&delay).is_eq() {
                break;
            }
            delay = next;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to the range"
        )]
        let delay = delay.clamp(0.0, most) as u64;
        delay
    }
}

impl Definition {
    /// Reads a document without its signature.
    pub(crate) fn read(document: &Value) -> Result<Self, Vec<Diagnostic>> {
        let mut reading = Reading {
            reader: Reader::default(),
            allowance: Allowance::default(),
            n_filters: 0,
            filter_bytes: 0,
        };
        let read = reading.document(document);
        let Reading { reader, .. } = reading;
        match read {
            Some(definition) => reader.found.into_result(definition),
            None => Err(match reader.found.into_result(()) {
                Err(found) => found,
                Ok(()) => vec![Diagnostic {
                    instance_path: String::new(),
                    keyword: "profile",
                    message: "the document cannot be read".to_owned(),
                }],
            }),
        }
    }
}

/// The most bytes of a name in an id that has its hash, too.
const MAX_SLUG: usize = 64;

/// The workflow id of a document: its name in lower case. Each run of characters other than ASCII letters and digits
/// becomes one `-`; leading and trailing ones are dropped. Where that is no id, `wf-` comes first; where it says too little
/// or too much of the name, the name's hash comes last.
#[must_use]
pub fn workflow_id(name: &str) -> Option<WorkflowId> {
    let mut slug = String::new();
    for c in name.chars().map(|c| c.to_ascii_lowercase()) {
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            slug.push(c);
        } else if !slug.ends_with('-') {
            slug.push('-');
        }
    }
    let slug = slug.trim_matches('-');
    if let Ok(id) = WorkflowId::parse(slug) {
        return Some(id);
    }
    let says_it = !slug.is_empty() && slug.len() <= MAX_SLUG;
    let id = match says_it {
        true => format!("wf-{slug}"),
        false => {
            let hash = ContentHash::of(name.as_bytes()).to_string();
            let hash: String = hash.chars().filter(char::is_ascii_hexdigit).take(16).collect();
            let slug = &slug[..slug.len().min(MAX_SLUG)];
            format!("wf-{slug}-{hash}").replace("--", "-")
        }
    };
    WorkflowId::parse(&id).ok()
}

struct Reading {
    reader: Reader,
    allowance: Allowance,
    n_filters: usize,
    /// The memory of the compiled filters so far.
    filter_bytes: usize,
}

impl Reading {
    fn document(&mut self, document: &Value) -> Option<Definition> {
        let required = ["document", "state_schema", "nodes", "edges"];
        let allowed = ["document", "state_schema", "nodes", "edges", "checkpointing"];
        let root = self
            .reader
            .object(document, String::new(), &required, Some(&allowed))?;
        let head_names = ["schema", "name", "version", "description"];
        let head = self
            .reader
            .member(&root, "document", &head_names[..3], Some(&head_names));
        let head = head.and_then(|head| {
            let schema = self.reader.text(&head, "schema");
            let name = self.reader.text(&head, "name")?;
            let version = self.reader.text(&head, "version")?;
            let description = head.fields.get("description");
            if description.is_some_and(|text| !text.is_string()) {
                self.reader
                    .add(head.path("description"), "type", "must be string");
            }
            let workflow = workflow_id(name);
            if workflow.is_none() {
                let rule = "must be a text that the id of a workflow can be made of";
                self.reader.add(head.path("name"), "profile", rule);
            }
            let description = description.and_then(Value::as_str).map(str::to_owned);
            schema?;
            Some((workflow?, name.to_owned(), version.to_owned(), description))
        });
        let state_schema = self.state_schema(&root);
        let checkpoints = self.checkpoints(&root);
        let nodes = self.nodes(&root);
        let edges = self.edges(&root);
        let (workflow, name, version, description) = head?;
        let (state_schema, reducers) = state_schema?;
        Some(Definition {
            name,
            version,
            description,
            workflow,
            state_schema,
            reducers,
            nodes: nodes?,
            edges: edges?,
            checkpoints: checkpoints?,
            compiled_bytes: self.allowance.compiled_bytes() + self.filter_bytes,
        })
    }

    fn state_schema(&mut self, root: &Members<'_>) -> Option<(Schema, Reducers)> {
        let state = self.reader.member(root, "state_schema", &[], None)?;
        if state.fields.is_empty() {
            self.reader
                .add(state.at, "minProperties", "must NOT have fewer than 1 properties");
            return None;
        }
        let reducers = Reducers::read(state.fields).map_err(|(name, rule)| {
            let at = format!("{}/properties/{name}/reducer", state.at);
            self.reader.add(at, "enum", rule);
        });
        let schema = self.schema(root, "state_schema");
        Some((schema?, reducers.ok()?))
    }

    /// A schema; `None` where absent or wrong.
    fn schema(&mut self, members: &Members<'_>, name: &str) -> Option<Schema> {
        let document = members.fields.get(name)?;
        if !document.is_object() {
            self.reader.add(members.path(name), "type", "must be object");
            return None;
        }
        match Schema::compile(document, &self.allowance) {
            Ok(schema) => Some(schema),
            Err(rule) => {
                self.reader.add(members.path(name), "profile", rule);
                None
            }
        }
    }

    fn checkpoints(&mut self, root: &Members<'_>) -> Option<Checkpoints> {
        if !root.fields.contains_key("checkpointing") {
            return Some(Checkpoints::AfterEachNode);
        }
        let policy = self.reader.member(root, "checkpointing", &[], None)?;
        let words = ["after_each_node", "every_n_nodes"];
        let has = |name: &str| policy.fields.contains_key(name);
        let (name, interval) = (
            if has("strategy") { "strategy" } else { "policy" },
            if has("n") { "n" } else { "interval" },
        );
        let n = self.reader.whole(&policy, interval, 1);
        if !has(name) {
            return Some(Checkpoints::AfterEachNode);
        }
        if self.reader.word(&policy, name, &words)? == "after_each_node" {
            return Some(Checkpoints::AfterEachNode);
        }
        if !has(interval) {
            let rule = "every_n_nodes needs n, a whole number of at least 1";
            self.reader.add(policy.at, "required", rule);
        }
        n.map(Checkpoints::EveryNodes)
    }

    fn nodes(&mut self, root: &Members<'_>) -> Option<Vec<Node>> {
        let items = self.reader.list(root, "nodes", 1)?;
        if items.len() > MAX_NODES {
            let rule = format!("must NOT have more than {MAX_NODES} items");
            self.reader.add("/nodes", "maxItems", rule);
            return None;
        }
        let mut nodes: Vec<Node> = Vec::new();
        let mut ids = std::collections::HashSet::new();
        for (n, item) in items.iter().enumerate() {
            let at = format!("/nodes/{n}");
            let Some(node) = self.node(item, &at) else {
                continue;
            };
            if !ids.insert(node.id.clone()) {
                let rule = format!("DUPLICATE_NODE_ID: node \"{}\" is there twice.", node.id);
                self.reader.add(format!("{at}/id"), "profile", rule);
            }
            nodes.push(node);
        }
        // The id of an interrupt is that of its node and a number.
        for (n, node) in nodes.iter().enumerate() {
            let parts = node.id.as_str().rsplit_once(':');
            if let Some((other, number)) = parts
                && number.parse::<u32>().is_ok()
                && ids.contains(other)
            {
                let rule = format!(
                    "\"{}\" could be the id of an interrupt of node \"{other}\".",
                    node.id
                );
                self.reader.add(format!("/nodes/{n}/id"), "profile", rule);
            }
        }
        (nodes.len() == items.len()).then_some(nodes)
    }

    fn edges(&mut self, root: &Members<'_>) -> Option<Vec<(String, String)>> {
        let items = self.reader.list(root, "edges", 0)?;
        if items.len() > MAX_EDGES {
            let rule = format!("must NOT have more than {MAX_EDGES} items");
            self.reader.add("/edges", "maxItems", rule);
            return None;
        }
        let names = ["source", "target"];
        let edges = items.iter().enumerate().map(|(n, item)| {
            let edge = self
                .reader
                .object(item, format!("/edges/{n}"), &names, Some(&names))?;
            let source = self.reader.text(&edge, "source");
            let target = self.reader.text(&edge, "target");
            Some((source?.to_owned(), target?.to_owned()))
        });
        edges.collect()
    }

    fn node(&mut self, item: &Value, at: &str) -> Option<Node> {
        let kind = item.get("type").and_then(Value::as_str).unwrap_or_default();
        // Each alternative of the schema is one type, so the errors are those of the type that is named.
        let n = self.reader.found.len();
        let read = self.read_node(item, at, kind);
        if self.reader.found.len() == n {
            return read;
        }
        self.reader.none_of_the_alternatives(n, at);
        None
    }

    fn read_node(&mut self, item: &Value, at: &str, kind: &str) -> Option<Node> {
        let wants_config = !matches!(kind, "start" | "end");
        let allowed = ["id", "type", "config", "retry", "timeout", "metadata"];
        let required = if wants_config {
            &["id", "type", "config"][..]
        } else {
            &["id", "type"]
        };
        let node = self
            .reader
            .object(item, at.to_owned(), required, Some(&allowed))?;
        let id = self.reader.text(&node, "id")?;
        let id = NodeId::parse(id)
            .map_err(|error| self.reader.add(node.path("id"), "profile", error.to_string()))
            .ok()?;
        self.reader.member(&node, "metadata", &[], None);
        let retry = self.retry(&node)?;
        let timeout_ms = self.reader.duration(&node, "timeout");
        let empty = Value::Object(Map::new());
        let config = node.fields.get("config").unwrap_or(&empty);
        let kind = self.kind(kind, config, node.path("config"), &node)?;
        Some(Node {
            id,
            kind,
            retry,
            timeout_ms,
            config: config.clone(),
        })
    }

    fn retry(&mut self, node: &Members<'_>) -> Option<Retry> {
        if !node.fields.contains_key("retry") {
            return Some(Retry::default());
        }
        let names = [
            "max_attempts",
            "initial_interval",
            "backoff_coefficient",
            "max_interval",
            "non_retryable_errors",
        ];
        let policy = self.reader.member(node, "retry", &names[..1], Some(&names))?;
        let max_attempts = self.reader.whole(&policy, "max_attempts", 1)?;
        let initial_ms = self.reader.duration(&policy, "initial_interval").unwrap_or(0);
        let max_ms = self.reader.duration(&policy, "max_interval");
        let coefficient = match policy.fields.get("backoff_coefficient") {
            None => 1.0,
            Some(value) => match value.as_f64() {
                Some(n) => n,
                None => {
                    self.reader
                        .add(policy.path("backoff_coefficient"), "type", "must be number");
                    1.0
                }
            },
        };
        let mut non_retryable = Vec::new();
        for (n, code) in self
            .reader
            .list(&policy, "non_retryable_errors", 0)
            .unwrap_or_default()
            .iter()
            .enumerate()
        {
            match code.as_str() {
                Some(code) => non_retryable.push(code.to_owned()),
                None => {
                    let at = format!("{}/{n}", policy.path("non_retryable_errors"));
                    self.reader.add(at, "type", "must be string");
                }
            }
        }
        Some(Retry {
            max_attempts: u32::try_from(max_attempts).unwrap_or(u32::MAX),
            initial_ms,
            coefficient,
            max_ms,
            non_retryable,
        })
    }

    fn filter(&mut self, members: &Members<'_>, name: &str) -> Option<Filter> {
        let source = self.reader.text(members, name)?;
        self.compile(source, members.path(name))
    }

    fn compile(&mut self, source: &str, at: String) -> Option<Filter> {
        self.n_filters += 1;
        if self.n_filters > MAX_FILTERS {
            let rule = format!("the document has more than {MAX_FILTERS} filters");
            self.reader.add(at, "profile", rule);
            return None;
        }
        if self.filter_bytes > MAX_FILTER_BYTES {
            // The rule is reported once; no further filter is compiled.
            return None;
        }
        match Filter::compile(source) {
            Ok(filter) => {
                self.filter_bytes += filter.n_bytes();
                if self.filter_bytes > MAX_FILTER_BYTES {
                    let rule = format!(
                        "the compiled filters of the document exceed {MAX_FILTER_BYTES} bytes with this one"
                    );
                    self.reader.add(at, "profile", rule);
                    return None;
                }
                Some(filter)
            }
            Err(error) => {
                self.reader.add(at, "profile", error.to_string());
                None
            }
        }
    }

    fn mapping(&mut self, members: &Members<'_>, name: &str) -> Option<Mapping> {
        let fields = self.reader.member(members, name, &[], None)?;
        let mut mapping = Mapping::default();
        for (key, form) in fields.fields {
            let compiled = match Mapping::filter_of(form) {
                Some(source) if source.trim().is_empty() => {
                    let rule = format!("{name} \"{key}\": empty jq expression");
                    self.reader.add(fields.path(key), "profile", rule);
                    continue;
                }
                Some(source) => self.compile(source, fields.path(key)).map(Some),
                None => Some(None),
            };
            if let Some(filter) = compiled {
                mapping.add(key, form, filter);
            }
        }
        Some(mapping)
    }

    fn kind(&mut self, kind: &str, config: &Value, at: String, node: &Members<'_>) -> Option<Kind> {
        let closed = |names: &'static [&'static str]| Some(names);
        Some(match kind {
            "start" => {
                let config = self.reader.object(config, at, &[], closed(&["input_schema"]))?;
                Kind::Start {
                    input_schema: self.schema(&config, "input_schema"),
                }
            }
            "end" => {
                let names = closed(&["output_schema", "output_mapping"]);
                let config = self.reader.object(config, at, &[], names)?;
                Kind::End {
                    mapping: self.filter(&config, "output_mapping"),
                    output_schema: self.schema(&config, "output_schema"),
                }
            }
            "step" => {
                let config = self.reader.object(config, at, &[], None)?;
                let handler = self.reader.text(&config, "handler");
                let code_ref = self.reader.text(&config, "code_ref");
                if handler.or(code_ref).is_none() {
                    self.reader
                        .add(config.at, "anyOf", "must have required property 'handler'");
                    return None;
                }
                Kind::Step
            }
            "llm_call" => {
                let config = self.reader.object(config, at, &[], None)?;
                Kind::Llm {
                    output_schema: self.schema(&config, "output_schema"),
                }
            }
            "tool_call" => {
                let names = closed(&["server", "tool", "arguments"]);
                let config = self.reader.object(config, at, &["server", "tool"], names)?;
                self.reader.text(&config, "server")?;
                self.reader.text(&config, "tool")?;
                self.reader.member(&config, "arguments", &[], None);
                Kind::Tool
            }
            "switch" => self.switch(config, at)?,
            "interrupt" => self.interrupt(config, at)?,
            "parallel" => self.parallel(config, at)?,
            "wait" => self.wait(config, at)?,
            "set_state" => {
                let config = self
                    .reader
                    .object(config, at, &["assignments"], closed(&["assignments"]))?;
                Kind::SetState(self.assignments(&config)?)
            }
            "subworkflow" => {
                let names = closed(&["workflow_ref", "input_mapping", "version_pin"]);
                let required = ["workflow_ref", "input_mapping"];
                let config = self.reader.object(config, at, &required, names)?;
                let workflow_ref = self.reader.text(&config, "workflow_ref")?.to_owned();
                Kind::Subworkflow {
                    workflow_ref,
                    mapping: self.mapping(&config, "input_mapping")?,
                    version_pin: self.pin(&config),
                }
            }
            "agent_delegate" => {
                let names = ["agent_id", "protocol", "input_mapping"];
                let config = self.reader.object(config, at, &names, Some(&names))?;
                let agent_id = self.reader.text(&config, "agent_id");
                let protocol = self.reader.word(&config, "protocol", &["a2a", "mcp", "sdk"]);
                let mapping = self.mapping(&config, "input_mapping");
                Kind::Delegate {
                    agent_id: agent_id?.to_owned(),
                    protocol: match protocol? {
                        "a2a" => Protocol::A2a,
                        "mcp" => Protocol::Mcp,
                        _ => Protocol::Sdk,
                    },
                    mapping: mapping?,
                }
            }
            other => {
                let other = &other[..other.floor_char_boundary(100)];
                let rule = format!("must be equal to constant: there is no node type '{other}'");
                self.reader.add(node.path("type"), "const", rule);
                return None;
            }
        })
    }

    fn pin(&mut self, config: &Members<'_>) -> Option<ContentHash> {
        let text = self.reader.text(config, "version_pin")?;
        match ContentHash::parse(text) {
            Ok(pin) => Some(pin),
            Err(error) => {
                self.reader
                    .add(config.path("version_pin"), "profile", error.to_string());
                None
            }
        }
    }

    fn switch(&mut self, config: &Value, at: String) -> Option<Kind> {
        let config = self
            .reader
            .object(config, at, &["cases"], Some(&["cases", "default"]))?;
        let default = self.reader.text(&config, "default").map(str::to_owned);
        let names = ["when", "target"];
        let mut cases = Vec::new();
        for (n, case) in self.reader.list(&config, "cases", 1)?.iter().enumerate() {
            let at = format!("{}/{n}", config.path("cases"));
            let case = self.reader.object(case, at, &names, Some(&names))?;
            let (when, target) = (self.filter(&case, "when"), self.reader.text(&case, "target"));
            cases.push((when?, target?.to_owned()));
        }
        Some(Kind::Switch { cases, default })
    }

    fn interrupt(&mut self, config: &Value, at: String) -> Option<Kind> {
        let names = ["resume_schema", "prompt", "prompt_ref", "timeout"];
        let config = self.reader.object(config, at, &names[..1], Some(&names))?;
        let prompt = self.reader.text(&config, "prompt");
        let Some(prompt) = prompt.or(self.reader.text(&config, "prompt_ref")) else {
            self.reader
                .add(config.at, "anyOf", "must have required property 'prompt'");
            return None;
        };
        if config
            .fields
            .get("resume_schema")
            .and_then(Value::as_object)
            .is_some_and(Map::is_empty)
        {
            let rule = "must NOT have fewer than 1 properties";
            self.reader
                .add(config.path("resume_schema"), "minProperties", rule);
            return None;
        }
        let schema = self.schema(&config, "resume_schema")?;
        Some(Kind::Interrupt {
            prompt: prompt.to_owned(),
            rules: Rules::Checked(Box::new(crate::interrupt::Payload(schema))),
            timeout_ms: self.reader.duration(&config, "timeout"),
        })
    }

    fn parallel(&mut self, config: &Value, at: String) -> Option<Kind> {
        let names = ["join", "branches", "n", "timeout"];
        let config = self.reader.object(config, at, &names[..2], Some(&names))?;
        let join = self.reader.word(&config, "join", &["all", "any", "n_of_m"]);
        let items = self.reader.list(&config, "branches", 1)?;
        if items.len() > MAX_BRANCHES {
            let rule = format!("must NOT have more than {MAX_BRANCHES} items");
            self.reader.add(config.path("branches"), "maxItems", rule);
            return None;
        }
        let names = ["name", "entry"];
        let mut branches = Vec::new();
        for (n, item) in items.iter().enumerate() {
            let at = format!("{}/{n}", config.path("branches"));
            let branch = self.reader.object(item, at, &names, Some(&names))?;
            let (name, entry) = (
                self.reader.text(&branch, "name"),
                self.reader.text(&branch, "entry"),
            );
            branches.push(Branch {
                name: name?.to_owned(),
                entry: entry?.to_owned(),
            });
        }
        let n = self.reader.whole(&config, "n", 1);
        let join = match (join?, n) {
            ("all", _) => Join::All,
            ("any", _) => Join::Any,
            (_, Some(n)) if n <= branches.len() as u64 => {
                Join::Some(usize::try_from(n).unwrap_or(usize::MAX))
            }
            (_, Some(_)) => {
                let rule = "n_of_m requires integer n with 1 ≤ n ≤ branch count (m).";
                self.reader.add(config.path("n"), "maximum", rule);
                return None;
            }
            (_, None) => {
                self.reader
                    .add(config.at, "required", "must have required property 'n'");
                return None;
            }
        };
        if config.fields.contains_key("timeout") {
            let rule = "this host sets no time limit for a whole parallel node; give the nodes of its branches a timeout";
            self.reader.add(config.path("timeout"), "profile", rule);
        }
        Some(Kind::Parallel { join, branches })
    }

    fn wait(&mut self, config: &Value, at: String) -> Option<Kind> {
        let names = ["kind", "duration_ms", "duration", "until", "signal"];
        let config = self.reader.object(config, at, &names[..1], Some(&names))?;
        let missing = |reader: &mut Reader, name: &str| {
            if !config.fields.contains_key(name) {
                reader.add(
                    config.at.clone(),
                    "required",
                    format!("must have required property '{name}'"),
                );
            }
        };
        let wait = match self
            .reader
            .word(&config, "kind", &["duration", "until", "signal"])?
        {
            "duration" => {
                let ms = self.reader.whole(&config, "duration_ms", 0);
                let Some(ms) = ms.or(self.reader.duration(&config, "duration")) else {
                    if !config.fields.contains_key("duration") {
                        missing(&mut self.reader, "duration_ms");
                    }
                    return None;
                };
                Wait::Duration(ms.min(duration::MOST))
            }
            "until" => {
                missing(&mut self.reader, "until");
                let text = self.reader.text(&config, "until")?;
                let Some(at) = timestamp(text) else {
                    let rule = "must be a time of ISO 8601, such as 2030-01-31T12:00:00Z";
                    self.reader.add(config.path("until"), "profile", rule);
                    return None;
                };
                Wait::Until(at)
            }
            _ => {
                missing(&mut self.reader, "signal");
                Wait::Signal(self.reader.text(&config, "signal")?.to_owned())
            }
        };
        Some(Kind::Wait(wait))
    }

    fn assignments(&mut self, config: &Members<'_>) -> Option<Mapping> {
        let fields = self.reader.member(config, "assignments", &[], None)?;
        if fields.fields.is_empty() {
            self.reader.add(
                fields.at,
                "minProperties",
                "must NOT have fewer than 1 properties",
            );
            return None;
        }
        let names = ["jq", "literal"];
        for (key, form) in fields.fields {
            let form = self.reader.object(form, fields.path(key), &[], Some(&names));
            if form.is_some_and(|form| form.fields.len() != 1) {
                let rule = "must have exactly one of jq and literal";
                self.reader.add(fields.path(key), "oneOf", rule);
            }
        }
        self.mapping(config, "assignments")
    }
}

/// A point in time: a date with a time and an offset, or a date alone, which is its first moment in UTC.
fn timestamp(text: &str) -> Option<Timestamp> {
    let at = text.parse::<jiff::Timestamp>().ok().or_else(|| {
        let time: jiff::civil::DateTime = text.parse().ok()?;
        time.to_zoned(jiff::tz::TimeZone::UTC)
            .ok()
            .map(|zoned| zoned.timestamp())
    })?;
    Some(Timestamp::from_millis(at.as_millisecond()))
}

#[cfg(test)]
mod tests {
    use super::{Retry, workflow_id};

    #[test]
    fn every_name_has_an_id_that_says_as_much_of_it_as_an_id_can() {
        let id = |name: &str| workflow_id(name).unwrap().to_string();
        assert_eq!(id("Nightly Report"), "nightly-report");
        assert_eq!(id("2024 report"), "wf-2024-report");
        let (japanese, stars) = (id("\u{65e5}\u{672c}"), id("***"));
        assert!(japanese.starts_with("wf-") && stars.starts_with("wf-") && japanese != stars);
        let long = "x".repeat(300);
        let (one, other) = (id(&format!("{long}1")), id(&format!("{long}2")));
        assert!(one.len() <= 128 && one != other);
    }

    #[test]
    fn delays_grow_to_their_maximum() {
        let delays = |initial_ms, coefficient, max_ms| {
            let retry = Retry {
                initial_ms,
                coefficient,
                max_ms,
                ..Retry::default()
            };
            [0, 1, 2, 5, u32::MAX].map(|attempt| retry.delay_ms(attempt))
        };
        assert_eq!(delays(0, f64::MAX, None), [0; 5]);
        assert_eq!(delays(100, 1.0, None), [100; 5]);
        assert_eq!(delays(100, 2.0, Some(1_000)), [100, 200, 400, 1_000, 1_000]);
        assert_eq!(delays(100, 0.5, None), [100, 50, 25, 3, 0]);
        assert_eq!(delays(100, 0.0, None), [100, 0, 0, 0, 0]);
        assert_eq!(delays(100, -2.0, None), [100, 0, 0, 0, 0]);
        assert_eq!(delays(5_000, 2.0, Some(1_000)), [1_000; 5]);
        assert_eq!(delays(1, f64::MAX, Some(7)), [1, 7, 7, 7, 7]);
    }
}
