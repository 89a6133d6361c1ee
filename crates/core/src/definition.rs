//! OpenWOP workflow definitions (v1 digest §9) as documents.
//!
//! [`Definition::parse`] reads the shape and reports every problem with the node (or edge, or
//! variable) it is in and the rule it breaks. What nodes and edges mean is checked when the
//! document is compiled into a [`crate::Plan`]. The schema is closed: an unknown field is a problem.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    ContentHash, NodeId, WorkflowId,
    measure::{MAX_NESTING, too_deep},
    problem::{MAX_PROBLEMS, Problem, Problems},
};

/// Most nodes of one definition; bounds the memory of a plan.
pub const MAX_NODES: usize = 2_000;
/// Most edges of one definition.
pub const MAX_EDGES: usize = 10_000;

/// A definition whose shape is right.
#[derive(Debug, Clone)]
pub struct Definition {
    /// Its id.
    pub id: WorkflowId,
    /// A name for people.
    pub name: String,
    /// The author's version label; wopr tells versions apart by content.
    pub version: String,
    /// What it is for.
    pub description: Option<String>,
    /// Whether it may be started.
    pub is_active: bool,
    /// Nodes in document order.
    pub nodes: Vec<Node>,
    /// Edges in document order.
    pub edges: Vec<Edge>,
    /// Declared variables.
    pub variables: Vec<Variable>,
    /// Declared channels.
    pub channels: Map<String, Value>,
    /// JSON Schema of `configurable`.
    pub configurable_schema: Option<Value>,
    /// Free metadata.
    pub metadata: Map<String, Value>,
    /// Settings.
    pub settings: Settings,
    /// The document as given.
    pub document: Value,
    /// Hash of its canonical text.
    pub hash: ContentHash,
}

/// A node.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "fields that only editors use are read to be checked")]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its type.
    pub type_id: String,
    name: String,
    position: Option<Position>,
    /// Type-specific settings.
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
    /// Whether it is left out.
    #[serde(default)]
    pub disabled: bool,
    notes: Option<String>,
    group_id: Option<String>,
    /// The agent that runs it.
    pub agent: Option<Value>,
    envelope_contract: Option<Value>,
    /// Makes its outputs an artifact of this type.
    pub artifact_type: Option<String>,
    card_type: Option<String>,
    /// Output ports whose values are kept from views.
    #[serde(default)]
    pub output_sensitivity: Map<String, Value>,
}

/// What approvers say goes by these names: the two outputs of a gate, and what answers may call the first. The same
/// words may become either output, so a mark on one name is a mark on all.
pub(crate) const WORDS: [&str; 4] = ["feedback", "refineFeedback", "comment", "reason"];

impl Node {
    /// The name for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The outputs whose values are kept from views.
    pub(crate) fn marked(&self) -> impl Iterator<Item = &str> {
        let outputs = self.output_sensitivity.iter();
        let outputs =
            outputs.filter_map(|(port, mark)| (*mark == Value::Bool(true)).then_some(port.as_str()));
        outputs.chain(WORDS.into_iter().filter(|word| self.marks(word)))
    }

    /// Whether an output's value is kept from views.
    pub(crate) fn marks(&self, port: &str) -> bool {
        let is_marked = |port: &str| self.output_sensitivity.get(port) == Some(&Value::Bool(true));
        is_marked(port) || (self.hears(port) && WORDS.into_iter().any(is_marked))
    }

    /// Whether a port, or a member of an answer, has what an approver said.
    pub(crate) fn hears(&self, port: &str) -> bool {
        let is_gate = matches!(self.type_id.as_str(), "core.approvalGate" | "core.interrupt");
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

/// An edge.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "fields that only editors use are read to be checked")]
pub struct Edge {
    /// Its id.
    pub id: String,
    /// Where it starts.
    pub source_node_id: NodeId,
    /// Where it ends.
    pub target_node_id: NodeId,
    source_output: Option<String>,
    target_input: Option<String>,
    /// What must hold for it to count as taken.
    pub condition: Option<EdgeCondition>,
    label: Option<String>,
    /// What its target needs of it.
    #[serde(default)]
    pub trigger_rule: TriggerRule,
}

/// A condition as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EdgeCondition {
    /// The operator; `expression` where absent.
    #[serde(rename = "type", default)]
    pub operator: Operator,
    /// A path.
    pub left: Option<String>,
    /// What it is compared with.
    #[serde(default, deserialize_with = "present")]
    pub right: Option<Value>,
    /// An expression.
    pub expression: Option<String>,
}

/// How an edge condition compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Operator {
    /// The expression holds.
    #[default]
    Expression,
    /// Left equals right.
    Equals,
    /// Left does not equal right.
    NotEquals,
    /// Left (text, array, object) contains right.
    Contains,
    /// Left matches the pattern on the right.
    Regex,
    /// Left counts as true.
    Truthy,
    /// Left does not count as true.
    Falsy,
}

/// What an edge's target needs of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TriggerRule {
    /// Every such source completed.
    #[default]
    AllSuccess,
    /// One such source completed.
    AnySuccess,
    /// Every such source ended.
    AllComplete,
    /// Every such source ended and none failed.
    NoneFailed,
    /// One such source failed.
    AnyFailed,
}

/// A declared variable.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "fields that only editors use are read to be checked")]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: VariableType,
    description: Option<String>,
    /// Whether a run needs it as an input.
    #[serde(default)]
    pub required: bool,
    /// Its value where no input gives one.
    #[serde(default, deserialize_with = "present")]
    pub default_value: Option<Value>,
    /// Whether its value is kept from views.
    #[serde(default)]
    pub sensitive: bool,
    format: Option<String>,
}

fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// The type of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VariableType {
    /// Text.
    String,
    /// Number.
    Number,
    /// True or false.
    Boolean,
    /// Object.
    Object,
    /// Array.
    Array,
}

impl VariableType {
    /// Whether a value is of the type.
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

    /// The name in a definition.
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

/// Settings of a workflow; open, so unknown keys are kept in the document and ignored.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Milliseconds a run may take; 0 means no bound.
    #[serde(default)]
    pub timeout: u64,
    /// How often a retryable failure is retried.
    #[serde(default)]
    pub max_retries: u32,
    /// Milliseconds before the first retry; each later one waits twice as long.
    pub retry_delay_ms: Option<u64>,
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
    /// Reads a document.
    ///
    /// # Errors
    /// Every problem of its shape.
    pub fn parse(document: Value) -> Result<Self, Problems> {
        let mut definition = Self::read(&document)?;
        definition.document = document;
        Ok(definition)
    }

    /// Reads a document and leaves [`Definition::document`] empty, so that a caller whose document is refused still has
    /// it.
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
                reader.add("definition", format!("'id' does not hold: {error}"));
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

    /// Whether the workflow is shown to others as a skill.
    #[must_use]
    pub fn is_public(&self) -> bool {
        self.is_active && self.metadata.get("public") != Some(&Value::Bool(false))
    }

    /// Whether the author says that everybody may know of it, and not only callers of its tenant.
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
