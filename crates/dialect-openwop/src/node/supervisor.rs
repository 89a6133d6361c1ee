//! `core.orchestrator.supervisor`: its settings, and where its decisions come from.

use serde_json::{Map, Value};
use wopr_kernel::{NodeTypes, Rules};

use super::{config::Config, lead::Lead, verifier::Verifier};
use crate::{
    decision::{Decision, MayName, RatificationForm, read_confidence},
    definition::Node,
    expression::{Expression, ExpressionError, Template, is_template},
    schema::Allowance,
};

/// The length of an agent's id, in characters.
pub(super) const AGENT_ID: std::ops::RangeInclusive<usize> = 3..=256;
/// Maximum number of rules.
pub(crate) const MAX_RULES: usize = 100;
/// Maximum number of turns that a supervisor may be limited to.
pub(crate) const MAX_TURNS_LIMIT: u64 = 1_000_000;
/// The worker of a supervisor without a plan, in conformance mode.
const DEFAULT_WORKER: &str = "conformance-noop";
/// Settings that say in advance what is decided; only in conformance mode.
const MOCKS: [&str; 4] = [
    "mockDispatchPlan",
    "mockDecisions",
    "mockConfidence",
    "mockPendingDecision",
];

#[derive(Debug)]
pub(crate) struct Supervisor {
    /// The agent that decides.
    pub agent: String,
    pub decider: Decider,
    /// Who judges the work before a decision ends the run.
    pub verifier: Option<Verifier>,
    /// The most turns of the loop.
    pub max_turns: Option<u32>,
    /// What an answer to a held decision must be.
    pub rules: Rules,
}

/// Where decisions come from.
#[derive(Debug)]
pub(crate) enum Decider {
    /// Each turn takes the next one; afterwards the run is done.
    Plan(Vec<Decision>),
    /// A decision in which its agent has this confidence. It is the plan of one turn.
    Pending { decision: Decision, confidence: f64 },
    /// The first rule that holds decides; each turn anew.
    Rules(Vec<Rule>),
    /// A model decides.
    Model(Box<Lead>),
}

/// A decision, and when it is taken.
#[derive(Debug)]
pub(crate) struct Rule {
    /// Always, where absent.
    pub when: Option<Expression>,
    pub decision: Pattern,
}

/// JSON whose strings may be templates. A string that is one expression in braces has the expression's value.
#[derive(Debug)]
pub(crate) enum Pattern {
    Static(Value),
    Value(Expression),
    Text(Template),
    Array(Vec<Pattern>),
    Object(Vec<(String, Pattern)>),
}

impl Supervisor {
    pub(super) fn read(node: &Node, node_types: NodeTypes, allowance: &Allowance) -> Result<Self, String> {
        let config = Config(&node.config);
        let agent = match (config.text("agentId")?, node.agent.as_ref()) {
            (Some(id), _) => id.to_owned(),
            (None, Some(agent)) => agent
                .get("agentId")
                .and_then(Value::as_str)
                .ok_or("agent.agentId is missing")?
                .to_owned(),
            (None, None) => format!("supervisor-{}", node.id),
        };
        if !AGENT_ID.contains(&agent.chars().count()) {
            return Err(format!(
                "the id of the agent does not have {} to {} characters",
                AGENT_ID.start(),
                AGENT_ID.end()
            ));
        }
        let turns = |field: &str| match config.millis(field)? {
            Some(n) if !(1..=MAX_TURNS_LIMIT).contains(&n) => {
                Err(format!("config.{field} is not within 1 to {MAX_TURNS_LIMIT}"))
            }
            n => Ok(n.and_then(|n| u32::try_from(n).ok())),
        };
        let limits = [turns("maxLoopIterations")?, turns("iterationCap")?];
        let verifier = Verifier::read(node, &agent, allowance)?;
        let decider = Decider::read(node, node_types, allowance, verifier.as_ref())?;
        Ok(Self {
            agent,
            rules: Rules::Checked(Box::new(RatificationForm(decider.may_name()))),
            decider,
            verifier,
            max_turns: limits.into_iter().flatten().min(),
        })
    }
}

impl Decider {
    fn read(
        node: &Node,
        node_types: NodeTypes,
        allowance: &Allowance,
        verifier: Option<&Verifier>,
    ) -> Result<Self, String> {
        let config = Config(&node.config);
        let mut given = MOCKS.into_iter().filter(|name| config.0.contains_key(*name));
        if let (false, Some(mock)) = (node_types.conformance, given.next()) {
            return Err(format!("config.{mock} is for the conformance mode of a host"));
        }
        if config.0.contains_key("model") {
            let others = ["rules", "decision"].into_iter().chain(MOCKS);
            if let Some(other) = others.into_iter().find(|name| config.0.contains_key(*name)) {
                return Err(format!("config has both model and {other}"));
            }
            let criteria = verifier.map(|verifier| verifier.criteria.as_slice());
            let lead = Lead::read(node, node_types, allowance, criteria)?;
            return Ok(Self::Model(Box::new(lead)));
        }
        for name in ["workers", "transcriptWindow", "contextBudget"] {
            if config.0.contains_key(name) {
                return Err(format!("config.{name} is for a supervisor with config.model"));
            }
        }
        let has_rules = config.0.contains_key("rules") || config.0.contains_key("decision");
        if has_rules {
            if let Some(mock) = MOCKS.into_iter().find(|name| config.0.contains_key(*name)) {
                return Err(format!("config has {mock} beside its own decisions"));
            }
            return read_rules(config, allowance).map(Self::Rules);
        }
        if !node_types.conformance {
            return Err("config has neither decision, rules nor model".to_owned());
        }
        let decision = |field: &str, value: &Value| {
            Decision::read(value).map_err(|rule| format!("config.{field}: {rule}"))
        };
        if let Some(value) = config.0.get("mockConfidence") {
            let confidence =
                read_confidence(value).ok_or("config.mockConfidence is not a number from 0 to 1")?;
            let pending = config.0.get("mockPendingDecision");
            return Ok(Self::Pending {
                decision: match pending {
                    None => Decision::terminate("goal-reached"),
                    Some(pending) => decision("mockPendingDecision", pending)?,
                },
                confidence,
            });
        }
        for field in ["mockDispatchPlan", "mockDecisions"] {
            match config.0.get(field) {
                None => {}
                Some(Value::Array(plan)) => {
                    let plan = plan.iter().map(|value| decision(field, value));
                    return plan.collect::<Result<_, _>>().map(Self::Plan);
                }
                Some(_) => return Err(format!("config.{field} is not an array")),
            }
        }
        Ok(Self::Plan(vec![
            Decision::NextWorker {
                workers: vec![DEFAULT_WORKER.to_owned()],
                inputs: Vec::new(),
                confidence: None,
            },
            Decision::terminate("goal-reached"),
        ]))
    }
}

impl Decider {
    /// The model that decides, if one does.
    pub(crate) fn lead(&self) -> Option<&Lead> {
        match self {
            Self::Model(lead) => Some(lead),
            Self::Plan(_) | Self::Pending { .. } | Self::Rules(_) => None,
        }
    }

    /// The workers that its decisions may name.
    pub(crate) fn may_name(&self) -> MayName {
        self.lead().map_or(MayName::Any, Lead::may_name)
    }

    /// Whether a model sums up what happened before.
    pub(crate) fn sums_up(&self) -> bool {
        self.lead().is_some_and(|lead| lead.bounds.kept.is_some())
    }

    /// All workers that it can name; `None` if that is known only when it decides.
    pub(crate) fn all_workers(&self) -> Option<Vec<&str>> {
        match self {
            Self::Plan(_) | Self::Pending { .. } | Self::Model(_) => Some(self.planned_workers().collect()),
            Self::Rules(rules) => {
                let mut workers = Vec::new();
                for rule in rules {
                    workers.extend(rule.decision.workers()?);
                }
                Some(workers)
            }
        }
    }

    /// The workers of decisions that are known in advance, and those that a model may name.
    pub(crate) fn planned_workers(&self) -> impl Iterator<Item = &str> {
        let declared = self.lead().into_iter().flat_map(|lead| &lead.workers);
        let decisions = match self {
            Self::Plan(plan) => plan.as_slice(),
            Self::Pending { decision, .. } => std::slice::from_ref(decision),
            Self::Rules(_) | Self::Model(_) => &[],
        };
        let workers = decisions.iter().flat_map(|decision| match decision {
            Decision::NextWorker { workers, .. } => workers.as_slice(),
            Decision::AskUser { .. } | Decision::Terminate { .. } => &[],
        });
        workers
            .map(String::as_str)
            .chain(declared.map(|worker| worker.id.as_str()))
    }
}

fn read_rules(config: Config<'_>, allowance: &Allowance) -> Result<Vec<Rule>, String> {
    let mut rules = match config.0.get("rules") {
        None => Vec::new(),
        Some(Value::Array(list)) if (1..=MAX_RULES).contains(&list.len()) => list
            .iter()
            .enumerate()
            .map(|(n, rule)| Rule::read(rule, allowance).map_err(|e| format!("config.rules[{n}]: {e}")))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(format!("config.rules is not an array of 1 to {MAX_RULES} rules")),
    };
    if let Some(decision) = config.0.get("decision") {
        rules.push(Rule {
            when: None,
            decision: Pattern::read(decision, allowance).map_err(|e| format!("config.decision: {e}"))?,
        });
    }
    Ok(rules)
}

impl Rule {
    fn read(rule: &Value, allowance: &Allowance) -> Result<Self, String> {
        let rule = rule.as_object().ok_or("it is not an object")?;
        if let Some(unknown) = rule
            .keys()
            .find(|name| !["when", "decision"].contains(&name.as_str()))
        {
            return Err(format!("{unknown} is not known; a rule has when, decision"));
        }
        let when = match rule.get("when") {
            None => None,
            Some(Value::String(when)) => {
                Some(Expression::compile(when, allowance).map_err(|e| format!("when: {e}"))?)
            }
            Some(_) => return Err("when is not an expression".to_owned()),
        };
        let decision = rule.get("decision").ok_or("decision is missing")?;
        Ok(Self {
            when,
            decision: Pattern::read(decision, allowance).map_err(|e| format!("decision: {e}"))?,
        })
    }
}

impl Pattern {
    pub(super) fn read(value: &Value, allowance: &Allowance) -> Result<Self, ExpressionError> {
        Ok(match value {
            Value::String(text) if is_template(text) => {
                let inner = text.trim();
                let is_one = inner.starts_with("{{") && inner.ends_with("}}");
                match Expression::compile(inner, allowance) {
                    Ok(expression) if is_one => Self::Value(expression),
                    Ok(_) | Err(_) => Self::Text(Template::compile(text, allowance)?),
                }
            }
            Value::Array(items) => Self::Array(
                items
                    .iter()
                    .map(|item| Self::read(item, allowance))
                    .collect::<Result<_, _>>()?,
            ),
            Value::Object(fields) => Self::Object(
                fields
                    .iter()
                    .map(|(name, field)| Ok((name.clone(), Self::read(field, allowance)?)))
                    .collect::<Result<_, ExpressionError>>()?,
            ),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Self::Static(value.clone()),
        })
    }

    /// The workers that a decision names; `None` if its expressions do.
    fn workers(&self) -> Option<Vec<&str>> {
        let Self::Object(fields) = self else {
            return None;
        };
        let member = |name: &str| {
            fields
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, field)| field)
        };
        match member("kind") {
            Some(Self::Static(kind)) if kind == "next-worker" => {}
            Some(Self::Static(_)) => return Some(Vec::new()),
            Some(_) | None => return None,
        }
        let Some(Self::Array(workers)) = member("nextWorkerIds") else {
            return None;
        };
        let names = workers.iter().map(|worker| match worker {
            Self::Static(Value::String(name)) => Some(name.as_str()),
            Self::Static(_) | Self::Value(_) | Self::Text(_) | Self::Array(_) | Self::Object(_) => None,
        });
        names.collect()
    }

    /// The value with its expressions evaluated; fails with the first error of `evaluate` or `render`. A member
    /// whose value is undefined is left out.
    pub(crate) fn fill<E>(
        &self,
        evaluate: &impl Fn(&Expression) -> Result<Option<Value>, E>,
        render: &impl Fn(&Template) -> Result<String, E>,
    ) -> Result<Option<Value>, E> {
        Ok(Some(match self {
            Self::Static(value) => value.clone(),
            Self::Value(expression) => return evaluate(expression),
            Self::Text(template) => Value::String(render(template)?),
            Self::Array(items) => {
                let items = items.iter().map(|item| item.fill(evaluate, render));
                let items = items.collect::<Result<Vec<_>, _>>()?;
                items.into_iter().map(Option::unwrap_or_default).collect()
            }
            Self::Object(fields) => {
                let mut filled = Map::new();
                for (name, field) in fields {
                    if let Some(value) = field.fill(evaluate, render)? {
                        filled.insert(name.clone(), value);
                    }
                }
                Value::Object(filled)
            }
        }))
    }
}
