//! OpenWOP workflow definitions (v1 digest §9) as documents.
//!
//! [`Definition::parse`] checks the shape of a document. It reports every problem with the node, edge or
//! variable it belongs to and the rule it breaks. Compiling the document into a [`crate::Plan`] checks the
//! semantics. The schema is closed: an unknown field is a problem.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    ContentHash, MAX_PROBLEMS, NodeId, Problem, Problems, WorkflowId,
    measure::{MAX_NESTING, too_deep},
};

/// Maximum number of nodes in a definition; bounds the memory of a plan.
pub const MAX_NODES: usize = 2_000;
/// Maximum number of edges in a definition.
pub const MAX_EDGES: usize = 10_000;

/// A definition whose shape is valid.
#[derive(Debug, Clone)]
pub struct Definition {
    pub id: WorkflowId,
    /// Human-readable name.
    pub name: String,
    /// The author's version label; wopr identifies versions by content.
    pub version: String,
    pub description: Option<String>,
    /// Whether new runs may start.
    pub is_active: bool,
    /// In document order.
    pub nodes: Vec<Node>,
    /// In document order.
    pub edges: Vec<Edge>,
    pub variables: Vec<Variable>,
    pub channels: Map<String, Value>,
    /// JSON Schema of `configurable`.
    pub configurable_schema: Option<Value>,
    pub metadata: Map<String, Value>,
    pub settings: Settings,
    /// The document as submitted.
    pub document: Value,
    /// Hash of the document's canonical text.
    pub hash: ContentHash,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "fields that only editors use are read to be checked")]
pub struct Node {
    pub id: NodeId,
    pub type_id: String,
    name: String,
    position: Option<Position>,
    #[serde(default)]
    pub config: Map<String, Value>,
    /// Values of its input ports.
    #[serde(default)]
    pub inputs: Map<String, Value>,
    credentials_ref: Option<String>,
    /// Overrides of the workflow's settings.
    #[serde(default)]
    pub settings: Map<String, Value>,
    output_role: Option<OutputRole>,
    /// Whether the node is skipped.
    #[serde(default)]
    pub disabled: bool,
    notes: Option<String>,
    group_id: Option<String>,
    pub agent: Option<Value>,
    envelope_contract: Option<Value>,
    /// If set, the outputs become an artifact of this type.
    pub artifact_type: Option<String>,
    card_type: Option<String>,
    /// Output ports whose values views redact.
    #[serde(default)]
    pub output_sensitivity: Map<String, Value>,
}

/// Names of an approver's comment: the two outputs of a gate, and the spellings that answers may use for the
/// first one. The same text may become either output, so marking one name marks all of them.
pub(crate) const WORDS: [&str; 4] = ["feedback", "refineFeedback", "comment", "reason"];
/// Outputs of a `core.interrupt`, both with the same answer, so marking one marks the other.
const WHOLE_ANSWER: [&str; 2] = ["event", "resumeValue"];

impl Node {
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The outputs whose values views redact.
    pub(crate) fn marked(&self) -> impl Iterator<Item = &str> {
        let outputs = self.output_sensitivity.iter();
        let outputs =
            outputs.filter_map(|(port, mark)| (*mark == Value::Bool(true)).then_some(port.as_str()));
        outputs.chain(WORDS.into_iter().filter(|word| self.marks(word)))
    }

    /// Whether views redact an output's value.
    pub(crate) fn marks(&self, port: &str) -> bool {
        let is_marked = |port: &str| self.output_sensitivity.get(port) == Some(&Value::Bool(true));
        let is_whole_answer = self.type_id == "core.interrupt" && WHOLE_ANSWER.contains(&port);
        is_marked(port)
            || (self.hears(port) && WORDS.into_iter().any(is_marked))
            || (is_whole_answer && WHOLE_ANSWER.into_iter().any(is_marked))
    }

    /// Whether a port, or a member of an answer, carries an approver's comment.
    pub(crate) fn hears(&self, port: &str) -> bool {
        let type_id = self.type_id.as_str();
        // The last two ask for approvals, too: of decisions, and of what a child gives back.
        let is_gate = matches!(
            type_id,
            "core.approvalGate" | "core.interrupt" | "core.dispatch" | "core.subWorkflow"
        );
        is_gate && WORDS.contains(&port)
    }
}

#[derive(Debug, Clone, Deserialize)]
#[expect(dead_code, reason = "fields that only editors use are read to be checked")]
struct Position {
    x: f64,
    y: f64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OutputRole {
    Primary,
    Secondary,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "fields that only editors use are read to be checked")]
pub struct Edge {
    pub id: String,
    pub source_node_id: NodeId,
    pub target_node_id: NodeId,
    source_output: Option<String>,
    target_input: Option<String>,
    /// The edge is taken only if this holds.
    pub condition: Option<EdgeCondition>,
    label: Option<String>,
    /// When the edge triggers its target.
    #[serde(default)]
    pub trigger_rule: TriggerRule,
}

/// An edge condition as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EdgeCondition {
    /// `expression` if absent.
    #[serde(rename = "type", default)]
    pub operator: Operator,
    /// A path.
    pub left: Option<String>,
    /// The value to compare with.
    #[serde(default, deserialize_with = "present")]
    pub right: Option<Value>,
    pub expression: Option<String>,
}

/// How an edge condition compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Operator {
    /// The expression evaluates to true.
    #[default]
    Expression,
    Equals,
    NotEquals,
    /// Left is a text, array or object that contains right.
    Contains,
    /// Left matches the regular expression on the right.
    Regex,
    Truthy,
    Falsy,
}

/// When an edge triggers its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TriggerRule {
    /// Every source with this rule completed.
    #[default]
    AllSuccess,
    /// At least one source with this rule completed.
    AnySuccess,
    /// Every source with this rule ended.
    AllComplete,
    /// Every source with this rule ended, and none failed.
    NoneFailed,
    /// At least one source with this rule failed.
    AnyFailed,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "fields that only editors use are read to be checked")]
pub struct Variable {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: VariableType,
    description: Option<String>,
    /// Whether a run requires it as an input.
    #[serde(default)]
    pub required: bool,
    /// The value if no input provides one.
    #[serde(default, deserialize_with = "present")]
    pub default_value: Option<Value>,
    /// Whether views redact its value.
    #[serde(default)]
    pub sensitive: bool,
    format: Option<String>,
}

fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VariableType {
    String,
    Number,
    Boolean,
    Object,
    Array,
}

impl VariableType {
    /// Whether a value has this type.
    #[must_use]
    pub fn admits(self, value: &Value) -> bool {
        match self {
            Self::String => value.is_string(),
            Self::Number => value.is_number(),
            Self::Boolean => value.is_boolean(),
            Self::Object => value.is_object(),
            Self::Array => value.is_array(),
        }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::Object => "object",
            Self::Array => "array",
        }
    }
}

/// Workflow settings. They are open: unknown keys stay in the document and are ignored.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Maximum run duration in milliseconds; 0 means unlimited.
    #[serde(default)]
    pub timeout: u64,
    /// Maximum number of retries of a retryable failure.
    #[serde(default)]
    pub max_retries: u32,
    /// Delay before the first retry in milliseconds; it doubles with each further retry.
    pub retry_delay_ms: Option<u64>,
    /// What the models of a run may take.
    #[serde(default)]
    pub budget: Option<RunBudget>,
}

/// What the models of a run may take. At least one bound is there.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunBudget {
    pub max_tokens: Option<u64>,
    /// By the prices that the operator configured.
    pub max_cost_usd: Option<f64>,
    /// Of the run, waits for people not counted.
    pub max_duration_ms: Option<u64>,
    #[serde(default)]
    pub on_breach: OnBreach,
}

/// What happens when a budget is used up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnBreach {
    /// Somebody is asked for as much again.
    #[default]
    Ask,
    /// The run fails.
    Fail,
}

impl RunBudget {
    /// The rule that it breaks.
    fn problem(&self) -> Option<&'static str> {
        let bounds = [self.max_tokens, self.max_duration_ms];
        if bounds.iter().all(Option::is_none) && self.max_cost_usd.is_none() {
            return Some("settings.budget has none of maxTokens, maxCostUsd and maxDurationMs");
        }
        if bounds.contains(&Some(0)) {
            return Some("settings.budget has a bound of 0");
        }
        let is_cost = |cost: f64| cost.is_finite() && cost > 0.0 && cost <= 1e9;
        if !self.max_cost_usd.is_none_or(is_cost) {
            return Some("settings.budget.maxCostUsd is not a number over 0");
        }
        None
    }
}

/// The members of a document; `$schema` is for editors and has no effect.
pub(crate) const ROOT_FIELDS: [&str; 24] = [
    "$schema",
    "id",
    "name",
    "version",
    "type",
    "isActive",
    "status",
    "tenantId",
    "scopeId",
    "slug",
    "nodes",
    "edges",
    "triggers",
    "variables",
    "groups",
    "channels",
    "configurableSchema",
    "defaults",
    "metadata",
    "settings",
    "acceptsInheritedArtifacts",
    "createdAt",
    "updatedAt",
    "description",
];

pub(crate) const TRIGGER_TYPES: [&str; 10] = [
    "manual",
    "schedule",
    "webhook",
    "event",
    "artifact",
    "canvas",
    "envelope",
    "command",
    "chat-message",
    "channel-write",
];

impl Definition {
    /// Parses a document; fails with every problem of its shape.
    pub fn parse(document: Value) -> Result<Self, Problems> {
        let mut definition = Self::read(&document)?;
        definition.document = document;
        Ok(definition)
    }

    /// Parses a document and leaves [`Definition::document`] empty, so that a caller whose document is
    /// refused still owns it.
    pub(crate) fn read(document: &Value) -> Result<Self, Problems> {
        let mut reader = Reader { problems: Vec::new() };
        let Value::Object(root) = document else {
            return Err(Problems(vec![Problem::new("definition", "is not a JSON object")]));
        };
        if too_deep(document) {
            let rule = format!("nests more than {MAX_NESTING} levels deep");
            return Err(Problems(vec![Problem::new("definition", rule)]));
        }
        for key in root.keys().filter(|key| !ROOT_FIELDS.contains(&key.as_str())) {
            reader.add("definition", format!("unknown field '{key}'"));
        }
        let text = |reader: &mut Reader, field: &str| match root.get(field) {
            Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
            Some(_) => {
                reader.add("definition", format!("'{field}' is not a non-empty string"));
                None
            }
            None => {
                reader.add("definition", format!("'{field}' is missing"));
                None
            }
        };
        let id = text(&mut reader, "id").and_then(|id| match WorkflowId::parse(&id) {
            Ok(id) => Some(id),
            Err(error) => {
                reader.add("definition", format!("'id' is not valid: {error}"));
                None
            }
        });
        let name = text(&mut reader, "name");
        let version = text(&mut reader, "version");
        if name.as_ref().is_some_and(|name| name.chars().count() > 256) {
            reader.add("definition", "'name' is longer than 256 characters");
        }
        let nodes = reader.items::<Node>(root, "nodes", "node", MAX_NODES, true);
        let edges = reader.items::<Edge>(root, "edges", "edge", MAX_EDGES, true);
        let variables = reader.items::<Variable>(root, "variables", "variable", MAX_NODES, true);
        reader.triggers(root);
        if nodes.is_empty() && reader.problems.is_empty() {
            reader.add("definition", "'nodes' is empty");
        }
        let metadata = reader.object(root, "metadata", true);
        let channels = reader.object(root, "channels", false);
        let settings = match root.get("settings") {
            Some(settings @ Value::Object(_)) => {
                reader.read::<Settings>("settings", settings).unwrap_or_default()
            }
            Some(_) => {
                reader.add("definition", "'settings' is not an object");
                Settings::default()
            }
            None => {
                reader.add("definition", "'settings' is missing");
                Settings::default()
            }
        };
        if let Some(problem) = settings.budget.as_ref().and_then(RunBudget::problem) {
            reader.add("settings", problem);
        }
        let status = match root.get("status") {
            None => Some("active"),
            Some(Value::String(status)) => ["active", "inactive", "draft", "archived"]
                .into_iter()
                .find(|known| known == status),
            Some(_) => None,
        };
        if status.is_none() {
            reader.add(
                "definition",
                "'status' is none of active, inactive, draft, archived",
            );
        }
        let description = match root.get("description") {
            Some(Value::String(text)) => Some(text.clone()),
            None => None,
            Some(_) => {
                reader.add("definition", "'description' is not a string");
                None
            }
        };
        let is_active = match root.get("isActive") {
            None | Some(Value::Bool(true)) => true,
            Some(Value::Bool(false)) => false,
            Some(_) => {
                reader.add("definition", "'isActive' is not a boolean");
                false
            }
        };
        let configurable_schema = root.get("configurableSchema").cloned();
        match (id, name, version) {
            (Some(id), Some(name), Some(version)) if reader.problems.is_empty() => Ok(Self {
                id,
                name,
                version,
                description,
                is_active: is_active && status == Some("active"),
                nodes,
                edges,
                variables,
                channels,
                configurable_schema,
                metadata,
                settings,
                hash: ContentHash::of(document.to_string().as_bytes()),
                document: Value::Null,
            }),
            _ => Err(Problems(reader.problems)),
        }
    }

    /// Whether the workflow is advertised to others as a skill.
    #[must_use]
    pub fn is_public(&self) -> bool {
        self.is_active && self.metadata.get("public") != Some(&Value::Bool(false))
    }

    /// Whether the author made the workflow visible to everybody, not only to callers of its tenant.
    #[must_use]
    pub fn is_expressly_public(&self) -> bool {
        self.is_active && self.metadata.get("public") == Some(&Value::Bool(true))
    }
}

struct Reader {
    problems: Vec<Problem>,
}

impl Reader {
    fn add(&mut self, place: impl Into<String>, rule: impl Into<String>) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem::new(place, rule));
        }
    }

    fn read<T: DeserializeOwned>(&mut self, place: &str, value: &Value) -> Option<T> {
        match T::deserialize(value) {
            Ok(read) => Some(read),
            Err(error) => {
                self.add(place, error.to_string());
                None
            }
        }
    }

    fn items<T: DeserializeOwned>(
        &mut self,
        root: &Map<String, Value>,
        field: &str,
        what: &str,
        max: usize,
        required: bool,
    ) -> Vec<T> {
        let items = match root.get(field) {
            Some(Value::Array(items)) => items,
            Some(_) => {
                self.add("definition", format!("'{field}' is not an array"));
                return Vec::new();
            }
            None => {
                if required {
                    self.add("definition", format!("'{field}' is missing"));
                }
                return Vec::new();
            }
        };
        if items.len() > max {
            self.add("definition", format!("'{field}' has more than {max} entries"));
            return Vec::new();
        }
        let place = |index: usize, item: &Value| {
            let id = item
                .get("id")
                .or_else(|| item.get("name"))
                .and_then(Value::as_str);
            id.map_or_else(|| format!("{what} {index}"), |id| format!("{what} '{id}'"))
        };
        items
            .iter()
            .enumerate()
            .filter_map(|(index, item)| self.read(&place(index, item), item))
            .collect()
    }

    fn triggers(&mut self, root: &Map<String, Value>) {
        let Some(triggers) = root.get("triggers") else {
            return self.add("definition", "'triggers' is missing");
        };
        let Some(triggers) = triggers.as_array() else {
            return self.add("definition", "'triggers' is not an array");
        };
        for (index, trigger) in triggers.iter().enumerate() {
            let kind = trigger.get("type").and_then(Value::as_str);
            if trigger
                .get("id")
                .and_then(Value::as_str)
                .is_none_or(str::is_empty)
            {
                self.add(format!("trigger {index}"), "'id' is missing");
            }
            if kind.is_none_or(|kind| !TRIGGER_TYPES.contains(&kind)) {
                self.add(
                    format!("trigger {index}"),
                    "'type' is none of the known trigger types",
                );
            }
        }
    }

    fn object(&mut self, root: &Map<String, Value>, field: &str, required: bool) -> Map<String, Value> {
        match root.get(field) {
            Some(Value::Object(object)) => object.clone(),
            Some(_) => {
                self.add("definition", format!("'{field}' is not an object"));
                Map::new()
            }
            None => {
                if required {
                    self.add("definition", format!("'{field}' is missing"));
                }
                Map::new()
            }
        }
    }
}
