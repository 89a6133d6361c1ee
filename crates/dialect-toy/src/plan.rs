//! Definitions and their compiled form.

use serde_json::{Value, json};
use wopr_kernel::{
    ChildPolicy, ContentHash, InterruptKind, Join, NodeId, Object, OnFailure, Planned, Problem, Problems,
    Question, Rules, Spot, WorkflowId,
    measure::{object_too_deep, too_deep},
};

/// Maximum number of steps.
const MAX_STEPS: usize = 1_000;

/// A compiled list.
#[derive(Debug)]
pub struct Plan {
    id: WorkflowId,
    version: ContentHash,
    document: Value,
    pub(crate) steps: Vec<Step>,
    nodes: Vec<NodeId>,
}

#[derive(Debug)]
pub(crate) enum Step {
    Say(String),
    Ask {
        question: String,
        /// The variable that gets the answer.
        name: String,
        rules: Rules,
    },
    /// The countable side effect, whose outcome becomes variables.
    Call(Value),
    Run {
        workflows: Vec<WorkflowId>,
        policy: ChildPolicy,
    },
}

impl Plan {
    /// Whether a document is a definition in this language.
    #[must_use]
    pub fn recognizes(document: &Value) -> bool {
        document.get("templates").is_some_and(Value::is_array)
    }

    /// # Errors
    /// What is wrong with the definition.
    pub fn compile(document: Value) -> Result<Self, Problems> {
        let wrong = |place: &str, rule: &str| Problems(vec![Problem::new(place, rule).at("", Spot::Value)]);
        if too_deep(&document) {
            return Err(wrong("definition", "nests too deep"));
        }
        let id = document.get("id").and_then(Value::as_str).unwrap_or_default();
        let id = WorkflowId::parse(id).map_err(|error| wrong("id", &error.to_string()))?;
        let templates = document.get("templates").and_then(Value::as_array);
        let templates = templates.ok_or_else(|| wrong("templates", "is not a list"))?;
        if templates.is_empty() || templates.len() > MAX_STEPS {
            return Err(wrong("templates", "has no entry, or too many"));
        }
        let steps = templates.iter().map(|template| {
            Step::read(template).ok_or_else(|| {
                wrong(
                    "templates",
                    "an entry is neither a text nor {\"ask\": text, \"as\": name}, {\"call\": payload} or {\"of\": workflows}",
                )
            })
        });
        let steps = steps.collect::<Result<Vec<_>, _>>()?;
        let nodes = (0..steps.len()).map(|n| NodeId::parse(&format!("step-{n}")));
        let nodes = nodes.collect::<Result<_, _>>();
        Ok(Self {
            id,
            version: ContentHash::of(document.to_string().as_bytes()),
            steps,
            nodes: nodes.map_err(|error| wrong("templates", &error.to_string()))?,
            document,
        })
    }

    /// Checks the inputs that a child run would start with.
    ///
    /// # Errors
    /// The rule that they break.
    pub fn check_child(&self, inputs: &Object) -> Result<(), String> {
        match object_too_deep(inputs) {
            true => Err("inputs nest too deep".to_owned()),
            false => Ok(()),
        }
    }
}

impl Step {
    fn read(template: &Value) -> Option<Self> {
        if let Some(text) = template.as_str() {
            return Some(Self::Say(text.to_owned()));
        }
        if let Some(payload) = template.get("call") {
            return Some(Self::Call(payload.clone()));
        }
        if let Some(workflows) = template.get("of") {
            return Self::read_set(template, workflows.as_array()?);
        }
        let text = |name: &str| template.get(name).and_then(Value::as_str).map(str::to_owned);
        let (question, name) = (text("ask")?, text("as")?);
        let rules = Rules::Clarification(vec![Question {
            id: name.clone(),
            document: json!({ "id": name, "question": question }),
            schema: None,
        }]);
        Some(Self::Ask {
            question,
            name,
            rules,
        })
    }

    fn read_set(template: &Value, workflows: &[Value]) -> Option<Self> {
        let workflows = workflows
            .iter()
            .map(|id| WorkflowId::parse(id.as_str()?).ok())
            .collect::<Option<Vec<_>>>()?;
        let join = match (
            template.get("quorum"),
            template.get("join").and_then(Value::as_str),
        ) {
            (Some(n), None) => Join::Quorum(u32::try_from(n.as_u64()?).ok()?),
            (None, None | Some("all")) => Join::All,
            (None, Some("first")) => Join::First,
            (None, Some("race")) => Join::Race,
            (_, Some(_)) => return None,
        };
        let absorbs = template
            .get("absorb")
            .and_then(Value::as_bool)
            .unwrap_or_default();
        let policy = ChildPolicy {
            join,
            on_failure: if absorbs {
                OnFailure::Absorb
            } else {
                OnFailure::Fail
            },
            propagates_cancel: true,
        };
        Some(Self::Run { workflows, policy })
    }
}

impl Planned for Plan {
    fn id(&self) -> &WorkflowId {
        &self.id
    }

    fn version(&self) -> &ContentHash {
        &self.version
    }

    fn document(&self) -> &Value {
        &self.document
    }

    fn n_nodes(&self) -> usize {
        self.nodes.len()
    }

    fn node(&self, position: usize) -> &NodeId {
        &self.nodes[position]
    }

    fn position(&self, node: &NodeId) -> Option<usize> {
        node.as_str()
            .strip_prefix("step-")?
            .parse()
            .ok()
            .filter(|&n| self.nodes.get(n) == Some(node))
    }

    fn type_id(&self, position: usize) -> &str {
        match self.steps[position] {
            Step::Say(_) => "toy.say",
            Step::Ask { .. } => "toy.ask",
            Step::Call(_) => "toy.call",
            Step::Run { .. } => "toy.run",
        }
    }

    fn has_timer(&self, _position: usize) -> bool {
        false
    }

    fn rules(&self, position: usize, _kind: InterruptKind) -> Option<&Rules> {
        match &self.steps[position] {
            Step::Say(_) | Step::Call(_) | Step::Run { .. } => None,
            Step::Ask { rules, .. } => Some(rules),
        }
    }

    fn children(&self, position: usize) -> Option<ChildPolicy> {
        match &self.steps[position] {
            Step::Say(_) | Step::Ask { .. } | Step::Call(_) => None,
            Step::Run { policy, .. } => Some(*policy),
        }
    }

    /// A list says nothing about who may see it, so all who may see a host's workflows may.
    fn is_public(&self) -> bool {
        true
    }
}
