//! Compiled documents.

use std::collections::HashMap;

use serde_json::Value;
use wopr_kernel::{
    AnswerSchema, ChildPolicy, ContentHash, Failure, InterruptKind, Join as ChildJoin, NodeId, Object,
    OnFailure, Planned, Problems, Retries, Rules, SOURCE_MISSING, WorkflowId,
    cost::Budget,
    measure::{object_too_deep, too_deep},
};

use crate::{
    activity,
    canonical::definition_hash,
    definition::{Definition, Kind, Node, Wait},
    diagnostic::{Diagnostic, problems},
    graph::Graph,
    in_process::LONE_OUTPUT,
    interrupt::AnyObject,
    options::{self, ActivityMode},
    rows::SECRET_MEMBERS,
    signature::{self, TrustPolicy},
};

/// A compiled document.
#[derive(Debug)]
pub struct Plan {
    version: ContentHash,
    document: Value,
    pub(crate) definition: Definition,
    pub(crate) graph: Graph,
    positions: HashMap<NodeId, usize>,
    signal: Rules,
}

impl Plan {
    /// Returns `true` if a document is written in this language, complete or not. Definitions of other languages have no
    /// member `document`.
    #[must_use]
    pub fn recognizes(document: &Value) -> bool {
        document.get("document").is_some_and(Value::is_object)
    }

    /// Accepts a new document: checks its signature, and compiles it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn admit(document: Value, trust: &TrustPolicy) -> Result<Self, Problems> {
        if let Err(error) = trust.check(&document) {
            return Err(problems(vec![Diagnostic {
                instance_path: signature::place(&document).to_owned(),
                keyword: "profile",
                message: error.to_string(),
            }]));
        }
        Self::compile(document)
    }

    /// Compiles a document. Its signature, if it has one, is no part of the definition.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn compile(document: Value) -> Result<Self, Problems> {
        let unsigned = signature::stripped(&document);
        let (definition, graph) = read(&unsigned).map_err(problems)?;
        let nodes = definition.nodes.iter().enumerate();
        Ok(Self {
            version: definition_hash(&unsigned),
            positions: nodes.map(|(n, node)| (node.id.clone(), n)).collect(),
            definition,
            graph,
            document,
            signal: Rules::Checked(Box::new(AnyObject) as Box<dyn AnswerSchema>),
        })
    }

    /// Checks the inputs that a run would start with: they are its first state.
    ///
    /// # Errors
    /// The rule that they break.
    pub fn check_inputs(&self, inputs: &Object, budget: &Budget) -> Result<(), String> {
        if object_too_deep(inputs) {
            return Err("inputs nest too deep".to_owned());
        }
        let inputs = Value::Object(inputs.clone());
        for node in &self.definition.nodes {
            if let Kind::Start {
                input_schema: Some(schema),
            } = &node.kind
            {
                let checked = schema.validate(&inputs, &budget.meter());
                checked.map_err(|invalid| format!("they do not match the input_schema: {invalid}"))?;
            }
        }
        let checked = self.definition.state_schema.validate(&inputs, &budget.meter());
        checked.map_err(|invalid| format!("Initial state invalid vs state_schema: {invalid}"))
    }

    /// Checks the inputs and the options with which a child run would start.
    ///
    /// # Errors
    /// The rule that they break.
    pub fn check_child(&self, inputs: &Object, configurable: &Object, budget: &Budget) -> Result<(), String> {
        self.check_inputs(inputs, budget)?;
        if object_too_deep(configurable) {
            return Err("configurable nests too deep".to_owned());
        }
        options::check(configurable).map_err(|refusal| refusal.to_string())
    }

    pub(crate) fn at(&self, position: usize) -> &Node {
        &self.definition.nodes[position]
    }
}

/// Says what is wrong with a document, in the words of a JSON Schema validator.
#[must_use]
pub fn validate(document: &Value) -> Vec<Diagnostic> {
    read(&signature::stripped(document)).err().unwrap_or_default()
}

fn read(unsigned: &Value) -> Result<(Definition, Graph), Vec<Diagnostic>> {
    if too_deep(unsigned) {
        return Err(vec![Diagnostic {
            instance_path: String::new(),
            keyword: "profile",
            message: "the document nests too deep".to_owned(),
        }]);
    }
    let definition = Definition::read(unsigned)?;
    let graph = Graph::of(&definition)?;
    Ok((definition, graph))
}

impl Planned for Plan {
    fn id(&self) -> &WorkflowId {
        &self.definition.workflow
    }

    fn version(&self) -> &ContentHash {
        &self.version
    }

    fn document(&self) -> &Value {
        &self.document
    }

    fn secret_members(&self) -> &'static [&'static str] {
        &SECRET_MEMBERS
    }

    fn n_nodes(&self) -> usize {
        self.definition.nodes.len()
    }

    fn node(&self, position: usize) -> &NodeId {
        &self.definition.nodes[position].id
    }

    fn position(&self, node: &NodeId) -> Option<usize> {
        self.positions.get(node).copied()
    }

    fn type_id(&self, position: usize) -> &str {
        self.at(position).kind.name()
    }

    fn has_timer(&self, position: usize) -> bool {
        matches!(
            self.at(position).kind,
            Kind::Wait(Wait::Duration(_) | Wait::Until(_))
        )
    }

    fn rules(&self, position: usize, kind: InterruptKind) -> Option<&Rules> {
        match (&self.at(position).kind, kind) {
            (Kind::Interrupt { rules, .. }, InterruptKind::Custom) => Some(rules),
            (Kind::Wait(Wait::Signal(_)), InterruptKind::ExternalEvent) => Some(&self.signal),
            _ => None,
        }
    }

    fn retries(&self, position: usize) -> Retries {
        let retry = &self.at(position).retry;
        Retries {
            most: retry.max_attempts - 1,
            delay_ms: retry.initial_ms,
        }
    }

    /// Every failure of an activity may be repeated, unless the node lists its code; of a delegate only one that is
    /// retryable.
    fn may_retry(&self, position: usize, failure: &Failure) -> bool {
        let node = self.at(position);
        // The agent of a call that failed for good would take the message for the one that it knows.
        if matches!(node.kind, Kind::Delegate { .. }) && !failure.retryable {
            return false;
        }
        let listed = &node.retry.non_retryable;
        // A plan does not know who does the work, and a document may list either code.
        let modes = [ActivityMode::HostMediated, ActivityMode::InProcess];
        let codes = modes.map(|mode| activity::code_of(node, mode, failure));
        // What a replay does not find in its source will not be there the next time.
        failure.code != SOURCE_MISSING && !listed.iter().any(|listed| codes.contains(&listed.as_str()))
    }

    fn retry_delay_ms(&self, position: usize, attempt: u32) -> u64 {
        self.at(position).retry.delay_ms(attempt)
    }

    fn children(&self, position: usize) -> Option<ChildPolicy> {
        matches!(self.at(position).kind, Kind::Subworkflow { .. }).then_some(ChildPolicy {
            join: ChildJoin::Single,
            on_failure: OnFailure::Fail,
            propagates_cancel: true,
        })
    }

    fn lone_output(&self) -> &'static str {
        LONE_OUTPUT
    }

    fn name(&self) -> &str {
        &self.definition.name
    }

    fn description(&self) -> Option<&str> {
        self.definition.description.as_deref()
    }

    fn version_label(&self) -> &str {
        &self.definition.version
    }

    /// A document says nothing about who may see it, so all who may see a host's workflows may.
    fn is_public(&self) -> bool {
        true
    }

    fn extra_bytes(&self) -> usize {
        // Nodes and schemas take about as much again as the document.
        wopr_kernel::measure::value_size(&self.document) + self.definition.compiled_bytes
    }
}
