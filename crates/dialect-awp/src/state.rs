//! The state of a run that only this language has: the state document, and where its tokens are.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use wopr_kernel::{ApplyError, EventRef, KernelEvent, NodeId, Object, Planned, RecordedRef, StepId, cost};

use crate::{
    decide::NoEvent,
    definition::Kind,
    options,
    plan::Plan,
    walk::{Left, Walk},
};

/// The state document, and where the tokens are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Always an object; filters read it.
    document: Value,
    pub(crate) walk: Walk,
    /// The parallel node of which too few branches completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) broken_join: Option<usize>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_untrusted: bool,
    /// The delegate that was started last: its position, the number of its execution, and the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) delegate: Option<(usize, u32, u32)>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            document: Value::Object(Map::new()),
            walk: Walk::default(),
            broken_join: None,
            is_untrusted: false,
            delegate: None,
        }
    }
}

impl State {
    /// The state document as filters read it.
    pub(crate) const fn document(&self) -> &Value {
        &self.document
    }

    pub(crate) fn fields(&self) -> &Object {
        static NOTHING: std::sync::LazyLock<Object> = std::sync::LazyLock::new(Object::new);
        self.document.as_object().unwrap_or(&NOTHING)
    }

    pub(crate) fn weight(&self) -> u64 {
        cost::of_value(&self.document)
    }

    /// Folds an event in. Returns the parallel nodes that are left with it, the innermost first.
    pub(crate) fn apply(
        &mut self,
        plan: &Plan,
        recorded: RecordedRef<'_, NoEvent>,
    ) -> Result<Vec<Left>, ApplyError> {
        self.is_untrusted |= recorded.is_untrusted;
        let position = |step: &StepId| {
            let position = plan.position(&step.node);
            position.ok_or_else(|| wopr_kernel::illegal("an event", &step.node))
        };
        match recorded.event {
            EventRef::Kernel(KernelEvent::RunStarted(started)) => {
                self.document = Value::Object(started.inputs.clone());
                self.walk = Walk::begin(plan.graph.first, options::is_parallel(&started.configurable));
            }
            EventRef::Kernel(KernelEvent::NodeStarted { step, attempt, .. }) => {
                let at = position(step)?;
                if *attempt == 0 && !self.walk.start(at) {
                    return Err(wopr_kernel::illegal("a start without a token", &step.node));
                }
                if let Kind::Delegate { .. } = plan.at(at).kind {
                    self.delegate = Some((at, step.ordinal, *attempt));
                }
            }
            EventRef::Kernel(KernelEvent::NodeCompleted {
                step,
                outputs,
                routing,
            }) => {
                let at = self.token_at(position(step)?, &step.node)?;
                self.merge(plan, at, outputs.clone());
                return Ok(self.go_on(plan, at, routing));
            }
            EventRef::Kernel(KernelEvent::NodeFailed { step, .. }) => {
                let at = self.token_at(position(step)?, &step.node)?;
                let (left, broken) = self.walk.fail(plan, at);
                self.broken_join = broken;
                return Ok(left);
            }
            EventRef::Kernel(_) | EventRef::Dialect(_) => {}
        }
        Ok(Vec::new())
    }

    fn token_at(&self, position: usize, node: &NodeId) -> Result<usize, ApplyError> {
        match self.walk.is_at(position) {
            true => Ok(position),
            false => Err(wopr_kernel::illegal("an end without a token", node)),
        }
    }

    /// Makes the output of a node part of the state document. The answer to an interrupt replaces what is there.
    fn merge(&mut self, plan: &Plan, position: usize, output: Object) {
        if let Value::Object(fields) = &mut self.document {
            match plan.at(position).kind {
                Kind::Interrupt { .. } => fields.extend(output),
                _ => plan.definition.reducers.reduce(fields, output),
            }
        }
    }

    /// The weight of what the output of a node replaces.
    pub(crate) fn replaced(&self, plan: &Plan, node: &NodeId, output: &Object) -> u64 {
        let is_answer = plan
            .position(node)
            .is_some_and(|position| matches!(plan.at(position).kind, Kind::Interrupt { .. }));
        let replaced = output
            .keys()
            .filter(|name| is_answer || plan.definition.reducers.overwrites(name))
            .filter_map(|name| self.fields().get(name));
        replaced.map(cost::of_value).sum()
    }

    /// Moves the token on from a node that has completed.
    fn go_on(&mut self, plan: &Plan, position: usize, routing: &[u32]) -> Vec<Left> {
        let next = match &plan.at(position).kind {
            Kind::Parallel { .. } => return self.walk.open(plan, position),
            Kind::End { .. } => None,
            Kind::Switch { .. } => {
                let way = routing.first().map(|way| *way as usize);
                way.and_then(|way| plan.graph.ways[position].get(way).copied())
            }
            _ => plan.graph.next[position],
        };
        self.walk.go_on(plan, position, next)
    }
}
