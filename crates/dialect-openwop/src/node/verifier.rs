//! A verifier of a supervisor: who judges the work before the run ends, and what a judgement says.

use serde_json::{Map, Value};

use super::{
    config::Config,
    supervisor::{AGENT_ID, Pattern},
};
use crate::{Object, Verdict, decision::read_confidence, definition::Node, schema::Allowance};

/// How often a verifier may send the work back, unless the settings say otherwise.
const DEFAULT_REVISIONS: u32 = 3;
pub(crate) const MAX_REVISIONS: u64 = 100;
/// The most criteria of a verifier.
pub(crate) const MAX_CRITERIA: usize = 32;
/// Longest name of a criterion, in characters.
pub(crate) const MAX_CRITERION: usize = 128;
/// Longest id of the worker that judges, in characters.
const MAX_WORKER: usize = 256;
/// Longest feedback that is passed on, in bytes.
const MAX_FEEDBACK: usize = 8 * 1024;
const KNOWN: [&str; 6] = [
    "worker",
    "agentId",
    "inputs",
    "criteria",
    "gating",
    "maxRevisions",
];

/// Who judges the work before a decision ends the run.
#[derive(Debug)]
pub(crate) struct Verifier {
    /// The workflow or the agent that judges.
    pub(crate) worker: String,
    /// The agent under whose id it judges, which is not that of the supervisor.
    pub(crate) agent: String,
    /// What the worker is given.
    pub(crate) inputs: Option<Pattern>,
    /// What it judges by.
    pub(crate) criteria: Vec<String>,
    /// Whether its verdict decides what follows.
    pub(crate) gates: bool,
    pub(crate) max_revisions: u32,
}

/// What a verifier says.
#[derive(Debug, PartialEq)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    /// The criteria that it applied.
    pub(crate) criteria: Vec<String>,
    pub(crate) confidence: Option<f64>,
    /// What it wants to be different.
    pub(crate) feedback: Option<String>,
}

impl Judgement {
    /// The judgement of a verifier that gave none.
    pub(crate) const FAILED: Self = Self {
        verdict: Verdict::Fail,
        criteria: Vec::new(),
        confidence: None,
        feedback: None,
    };
}

impl Verifier {
    /// Reads `config.verifier` of a supervisor, whose agent is `supervisor`.
    pub(super) fn read(node: &Node, supervisor: &str, allowance: &Allowance) -> Result<Option<Self>, String> {
        let fields = match node.config.get("verifier") {
            None => return Ok(None),
            Some(Value::Object(fields)) => fields,
            Some(_) => return Err("config.verifier is not an object".to_owned()),
        };
        Self::read_fields(fields, node.id.as_str(), supervisor, allowance)
            .map(Some)
            .map_err(|rule| rule.replacen("config.", "config.verifier.", 1))
    }

    fn read_fields(
        fields: &Map<String, Value>,
        node: &str,
        supervisor: &str,
        allowance: &Allowance,
    ) -> Result<Self, String> {
        if let Some(unknown) = fields.keys().find(|name| !KNOWN.contains(&name.as_str())) {
            return Err(format!(
                "config.{unknown} is not known; it has {}",
                KNOWN.join(", ")
            ));
        }
        let config = Config(fields);
        let worker = config.text("worker")?;
        let worker = worker.filter(|id| (1..=MAX_WORKER).contains(&id.chars().count()));
        let worker = worker
            .ok_or_else(|| format!("config.worker is not a text of 1 to {MAX_WORKER} characters"))?
            .to_owned();
        let agent = match config.text("agentId")? {
            Some(id) if AGENT_ID.contains(&id.chars().count()) => id.to_owned(),
            Some(_) => {
                return Err(format!(
                    "config.agentId does not have {} to {} characters",
                    AGENT_ID.start(),
                    AGENT_ID.end()
                ));
            }
            None if AGENT_ID.contains(&worker.chars().count()) => worker.clone(),
            None => format!("verifier-{node}"),
        };
        if agent == supervisor {
            return Err(format!(
                "config.agentId is '{agent}', which is the supervisor: nobody judges their own work"
            ));
        }
        let inputs = match fields.get("inputs") {
            None => None,
            Some(inputs @ Value::Object(_)) => {
                Some(Pattern::read(inputs, allowance).map_err(|e| format!("config.inputs: {e}"))?)
            }
            Some(_) => return Err("config.inputs is not an object".to_owned()),
        };
        let gates = match fields.get("gating") {
            None => true,
            Some(Value::Bool(gates)) => *gates,
            Some(_) => return Err("config.gating is not a boolean".to_owned()),
        };
        let max_revisions = match config.millis("maxRevisions")? {
            None => DEFAULT_REVISIONS,
            Some(_) if !gates => {
                return Err("config.maxRevisions has no effect without gating".to_owned());
            }
            Some(n) => u32::try_from(n)
                .ok()
                .filter(|n| u64::from(*n) <= MAX_REVISIONS)
                .ok_or_else(|| format!("config.maxRevisions is not within 0 to {MAX_REVISIONS}"))?,
        };
        Ok(Self {
            worker,
            agent,
            inputs,
            criteria: read_criteria(fields.get("criteria"))?,
            gates,
            max_revisions,
        })
    }

    /// Reads what the worker gave back: its outputs, or the document `data` among them, as a model and another agent
    /// give one.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub(crate) fn read_judgement(&self, outputs: &Object) -> Result<Judgement, String> {
        let said = match outputs.get("data") {
            Some(Value::Object(data)) if !outputs.contains_key("verdict") => data,
            Some(_) | None => outputs,
        };
        let given = |name: &str| said.get(name).filter(|value| !value.is_null());
        let verdict = given("verdict").ok_or("it has no verdict")?.as_str();
        let verdict = Verdict::ALL
            .into_iter()
            .find(|known| Some(known.as_str()) == verdict);
        let criteria = match given("criteria") {
            None => Vec::new(),
            Some(Value::Array(names)) => {
                let mut criteria = Vec::new();
                for name in names {
                    // A name of its own could carry what it has read.
                    let known = self.criteria.iter().find(|known| name == known.as_str());
                    let known = known.ok_or("it names a criterion that it was not given")?;
                    if !criteria.contains(known) {
                        criteria.push(known.clone());
                    }
                }
                criteria
            }
            Some(_) => return Err("its criteria are not a list".to_owned()),
        };
        let confidence = match given("confidence") {
            None => None,
            Some(value) => Some(read_confidence(value).ok_or("its confidence is not a number from 0 to 1")?),
        };
        let feedback = match given("feedback") {
            None => None,
            Some(Value::String(text)) => {
                let end = text.floor_char_boundary(MAX_FEEDBACK.min(text.len()));
                Some(text[..end].to_owned()).filter(|text| !text.is_empty())
            }
            Some(_) => return Err("its feedback is not a text".to_owned()),
        };
        Ok(Judgement {
            verdict: verdict.ok_or("its verdict is none of pass, fail and revise")?,
            criteria,
            confidence,
            feedback,
        })
    }
}

fn read_criteria(criteria: Option<&Value>) -> Result<Vec<String>, String> {
    let list = match criteria {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) if (1..=MAX_CRITERIA).contains(&list.len()) => list,
        Some(_) => {
            return Err(format!(
                "config.criteria is not an array of 1 to {MAX_CRITERIA} names"
            ));
        }
    };
    let mut read: Vec<String> = Vec::with_capacity(list.len());
    for name in list {
        let name = name
            .as_str()
            .filter(|name| (1..=MAX_CRITERION).contains(&name.chars().count()));
        let name = name.ok_or_else(|| {
            format!("config.criteria holds something other than names of 1 to {MAX_CRITERION} characters")
        })?;
        if read.iter().any(|known| known == name) {
            return Err(format!("config.criteria: '{name}' is there twice"));
        }
        read.push(name.to_owned());
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn verifier() -> Verifier {
        let fields = json!({ "worker": "reviewer", "criteria": ["sourced", "short"] });
        let fields = fields.as_object().expect("an object");
        Verifier::read_fields(fields, "lead", "planner", &Allowance::default()).expect("valid")
    }

    fn judged(outputs: &Value) -> Result<Judgement, String> {
        verifier().read_judgement(outputs.as_object().expect("an object"))
    }

    #[test]
    fn judgement_is_read_from_the_outputs_or_their_document() {
        let said = json!({ "verdict": "revise", "criteria": ["short", "short"], "confidence": 0.5, "feedback": "cut it" });
        let judgement = judged(&said).expect("valid");
        assert_eq!(judgement.verdict, Verdict::Revise);
        assert_eq!(judgement.criteria, ["short"]);
        assert_eq!(judgement.confidence, Some(0.5));
        assert_eq!(judgement.feedback.as_deref(), Some("cut it"));
        assert_eq!(
            judged(&json!({ "data": said, "model": "m" })).as_ref(),
            Ok(&judgement)
        );
        // What stands beside a verdict is no other one.
        let both = json!({ "verdict": "fail", "data": { "verdict": "pass" } });
        assert_eq!(judged(&both), Ok(Judgement::FAILED));
    }

    #[test]
    fn anything_else_is_no_judgement() {
        for (outputs, rule) in [
            (json!({}), "it has no verdict"),
            (json!({ "data": ["pass"] }), "it has no verdict"),
            (
                json!({ "verdict": "PASS" }),
                "its verdict is none of pass, fail and revise",
            ),
            (
                json!({ "verdict": "pass", "criteria": ["secret: 42"] }),
                "it names a criterion that it was not given",
            ),
            (
                json!({ "verdict": "pass", "criteria": "short" }),
                "its criteria are not a list",
            ),
            (
                json!({ "verdict": "pass", "confidence": 2 }),
                "its confidence is not a number from 0 to 1",
            ),
            (
                json!({ "verdict": "pass", "feedback": {} }),
                "its feedback is not a text",
            ),
        ] {
            assert_eq!(judged(&outputs), Err(rule.to_owned()));
        }
    }

    #[test]
    fn long_feedback_is_cut() {
        let feedback = "é".repeat(MAX_FEEDBACK);
        let judgement = judged(&json!({ "verdict": "fail", "feedback": feedback })).expect("valid");
        assert_eq!(judgement.feedback.expect("kept").len(), MAX_FEEDBACK);
    }
}
