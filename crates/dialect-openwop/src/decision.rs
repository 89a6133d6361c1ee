//! What a supervisor decides: who works next, what a person is asked, or that the run is done.
//!
//! A decision is read from JSON, wherever it comes from, and everything in it is bounded. It is shown in the three
//! forms that the protocol publishes; `clarify` and `escalate` are read as well, and shown as `ask-user`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use wopr_kernel::{AnswerSchema, MAX_SET, cost::Meter};

use crate::{Object, expression::is_template, redaction::unhide};

/// Longest id of a worker, in characters.
const MAX_WORKER: usize = 256;
/// Longest text of a decision, in bytes.
const MAX_TEXT: usize = 64 * 1024;
/// Maximum number of criteria.
const MAX_CRITERIA: usize = 100;

/// The confidence below which a decision is held, unless the run says otherwise.
pub(crate) const THRESHOLD: f64 = 0.7;
/// The confidence below which a decision that was taken needs an approval before anything follows from it.
pub(crate) const FLOOR: f64 = 0.5;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    NextWorker {
        workers: Vec<String>,
        /// Further inputs of each worker, in the same order; empty if there are none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        inputs: Vec<Object>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        confidence: Option<f64>,
    },
    AskUser {
        prompt: String,
        asks: Asks,
    },
    Terminate {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        confidence: Option<f64>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        criteria: Vec<Criterion>,
    },
}

/// What a person is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asks {
    Words,
    Approval,
}

/// A goal of the run, and whether the supervisor says that it is met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Criterion {
    pub key: String,
    pub met: bool,
}

impl Decision {
    /// The decision that somebody made of one whose sensitive inputs of workers they did not see: what is still redacted is
    /// what it was.
    #[must_use]
    pub(crate) fn made_of(mut self, original: &Self) -> Self {
        if let (
            Self::NextWorker { inputs, .. },
            Self::NextWorker {
                inputs: originals, ..
            },
        ) = (&mut self, original)
        {
            for (given, original) in inputs.iter_mut().zip(originals) {
                unhide(given, original);
            }
        }
        self
    }

    /// Reads a decision.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub(crate) fn read(value: &Value) -> Result<Self, String> {
        let fields = value.as_object().ok_or("the decision is not an object")?;
        let kind = fields.get("kind").and_then(Value::as_str);
        let (known, decision): (&[&str], _) = match kind {
            Some("next-worker") => (
                &["kind", "nextWorkerIds", "nextWorkerInputs", "confidence"],
                next_worker(fields)?,
            ),
            Some(kind @ ("ask-user" | "clarify" | "escalate")) => (
                &["kind", "prompt", "reason"],
                Self::AskUser {
                    prompt: match text(fields, "prompt")?.or(text(fields, "reason")?) {
                        Some(prompt) => prompt,
                        None if kind == "escalate" => "The supervisor asks for an approval.".to_owned(),
                        None => return Err("prompt is missing".to_owned()),
                    },
                    asks: if kind == "escalate" {
                        Asks::Approval
                    } else {
                        Asks::Words
                    },
                },
            ),
            Some("terminate") => (
                &["kind", "reason", "confidence", "successCriteria"],
                Self::Terminate {
                    reason: text(fields, "reason")?,
                    confidence: confidence(fields)?,
                    criteria: criteria(fields)?,
                },
            ),
            Some(other) => {
                return Err(format!(
                    "kind '{other}' is none of next-worker, ask-user, terminate, clarify and escalate"
                ));
            }
            None => return Err("kind is missing".to_owned()),
        };
        match fields.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(decision),
            Some(unknown) => Err(format!("{unknown} is not known")),
        }
    }

    /// Checks a decision as a definition writes it. Its texts may be templates, whose values nobody knows yet: each
    /// counts as a value that fits.
    ///
    /// # Errors
    /// The rule that it breaks whatever its templates become.
    pub(crate) fn check_written(value: &Value) -> Result<(), String> {
        let Some(fields) = value.as_object() else {
            return match is_open(value) {
                true => Ok(()),
                false => Err("the decision is not an object".to_owned()),
            };
        };
        if fields.get("kind").is_some_and(is_open) {
            return Ok(());
        }
        let mut fields = fields.clone();
        let has_open_workers = fields.get("nextWorkerIds").is_some_and(is_open);
        if has_open_workers {
            // How many there are is open, too.
            fields.remove("nextWorkerInputs");
        }
        for (name, fits, item) in [
            ("nextWorkerIds", json!(["worker"]), json!("worker")),
            ("nextWorkerInputs", Value::Null, json!({})),
            ("prompt", json!("text"), Value::Null),
            ("reason", json!("text"), Value::Null),
            ("confidence", json!(1), Value::Null),
            ("successCriteria", json!([]), json!({ "key": "key", "met": true })),
        ] {
            let Some(member) = fields.get_mut(name) else {
                continue;
            };
            if is_open(member) {
                *member = fits;
                continue;
            }
            for entry in member.as_array_mut().into_iter().flatten() {
                if is_open(entry) {
                    *entry = item.clone();
                } else if let Some(criterion) = entry.as_object_mut().filter(|_| name == "successCriteria") {
                    for (part, fits) in [("key", json!("key")), ("met", json!(true))] {
                        if let Some(value) = criterion.get_mut(part).filter(|value| is_open(value)) {
                            *value = fits;
                        }
                    }
                }
            }
        }
        Self::read(&Value::Object(fields)).map(drop)
    }

    /// The end of a loop that has nothing more to decide.
    pub(crate) fn terminate(reason: &str) -> Self {
        Self::Terminate {
            reason: Some(reason.to_owned()),
            confidence: None,
            criteria: Vec::new(),
        }
    }

    /// Whether it ends the run as one that reached its goal. With a criterion that is not met, it gives up.
    pub(crate) fn claims_success(&self) -> bool {
        match self {
            Self::Terminate { criteria, .. } => criteria.iter().all(|criterion| criterion.met),
            Self::NextWorker { .. } | Self::AskUser { .. } => false,
        }
    }

    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NextWorker { .. } => "next-worker",
            Self::AskUser { .. } => "ask-user",
            Self::Terminate { .. } => "terminate",
        }
    }

    #[must_use]
    pub const fn confidence(&self) -> Option<f64> {
        match self {
            Self::NextWorker { confidence, .. } | Self::Terminate { confidence, .. } => *confidence,
            Self::AskUser { .. } => None,
        }
    }

    /// The published form.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut shown = json!({ "kind": self.kind() });
        match self {
            Self::NextWorker { workers, inputs, .. } => {
                shown["nextWorkerIds"] = json!(workers);
                if !inputs.is_empty() {
                    shown["nextWorkerInputs"] = json!(inputs);
                }
            }
            Self::AskUser { prompt, .. } => shown["prompt"] = prompt.as_str().into(),
            Self::Terminate { reason, criteria, .. } => {
                if let Some(reason) = reason {
                    shown["reason"] = reason.as_str().into();
                }
                if !criteria.is_empty() {
                    shown["successCriteria"] = json!(criteria);
                }
            }
        }
        if let Some(confidence) = self.confidence() {
            shown["confidence"] = confidence.into();
        }
        shown
    }
}

/// Whether a value is known only when the decision is taken.
fn is_open(value: &Value) -> bool {
    value.as_str().is_some_and(is_template)
}

fn next_worker(fields: &Map<String, Value>) -> Result<Decision, String> {
    let ids = fields.get("nextWorkerIds").and_then(Value::as_array);
    let ids = ids.ok_or("nextWorkerIds is not an array")?;
    if ids.is_empty() || ids.len() > MAX_SET {
        return Err(format!("nextWorkerIds does not have 1 to {MAX_SET} entries"));
    }
    let worker = |id: &Value| {
        let id = id
            .as_str()
            .filter(|id| (1..=MAX_WORKER).contains(&id.chars().count()));
        id.map(ToOwned::to_owned).ok_or_else(|| {
            format!("nextWorkerIds holds something other than ids of 1 to {MAX_WORKER} characters")
        })
    };
    let inputs = match fields.get("nextWorkerInputs") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(inputs)) if inputs.len() == ids.len() => inputs
            .iter()
            .map(|input| match input {
                Value::Object(input) => Ok(input.clone()),
                Value::Null => Ok(Object::new()),
                _ => Err("nextWorkerInputs holds something other than objects".to_owned()),
            })
            .collect::<Result<_, String>>()?,
        Some(_) => return Err("nextWorkerInputs is not an array with an entry for each worker".to_owned()),
    };
    Ok(Decision::NextWorker {
        workers: ids.iter().map(worker).collect::<Result<_, _>>()?,
        inputs,
        confidence: confidence(fields)?,
    })
}

fn text(fields: &Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if (1..=MAX_TEXT).contains(&text.len()) => Ok(Some(text.clone())),
        Some(_) => Err(format!("{name} is not a text of 1 to {MAX_TEXT} bytes")),
    }
}

fn confidence(fields: &Map<String, Value>) -> Result<Option<f64>, String> {
    match fields.get("confidence") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => read_confidence(value)
            .map(Some)
            .ok_or_else(|| "confidence is not a number from 0 to 1".to_owned()),
    }
}

/// A number from 0 to 1.
pub(crate) fn read_confidence(value: &Value) -> Option<f64> {
    value
        .as_f64()
        .filter(|confidence| (0.0..=1.0).contains(confidence))
}

fn criteria(fields: &Map<String, Value>) -> Result<Vec<Criterion>, String> {
    let list = match fields.get("successCriteria") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= MAX_CRITERIA => list,
        Some(_) => {
            return Err(format!(
                "successCriteria is not an array of at most {MAX_CRITERIA} entries"
            ));
        }
    };
    let criterion = |criterion: &Value| {
        let key = criterion.get("key").and_then(Value::as_str);
        let key = key.filter(|key| (1..=MAX_WORKER).contains(&key.len()));
        let met = criterion.get("met").and_then(Value::as_bool);
        Some(Criterion {
            key: key?.to_owned(),
            met: met?,
        })
    };
    let criteria: Option<_> = list.iter().map(criterion).collect();
    criteria.ok_or_else(|| "successCriteria holds something other than `key` and `met`".to_owned())
}

/// What a person says about a decision that is held.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ratification {
    /// It counts as it is.
    Ratified,
    /// Another one counts.
    Replaced(Decision),
    Rejected,
}

impl Ratification {
    /// Reads `{"ratified": true}`, `{"decision": …}` or `{"rejected": true}`. An action of an approval says the same.
    pub(crate) fn read(value: &Value) -> Result<Self, String> {
        if let Some(decision) = value.get("decision").filter(|decision| decision.is_object()) {
            return Decision::read(decision)
                .map(Self::Replaced)
                .map_err(|rule| format!("decision: {rule}"));
        }
        let says = |name: &str| value.get(name) == Some(&Value::Bool(true));
        match (says("ratified"), says("rejected"), value.get("action").and_then(Value::as_str)) {
            (true, false, None) | (false, false, Some("accept")) => Ok(Self::Ratified),
            (false, true, None) | (false, false, Some("reject")) => Ok(Self::Rejected),
            _ => Err(
                "answer {\"ratified\": true}, {\"rejected\": true} or {\"decision\": …} with another decision"
                    .to_owned(),
            ),
        }
    }
}

/// The workers that a decision may name. A person who decides in an agent's place has no more to choose from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MayName {
    Any,
    Only(Vec<String>),
}

impl MayName {
    pub(crate) fn check(&self, decision: &Decision) -> Result<(), String> {
        match (self, decision) {
            (Self::Only(known), Decision::NextWorker { workers, .. }) => {
                let unknown = workers.iter().find(|id| !known.contains(id));
                unknown.map_or(Ok(()), |unknown| {
                    Err(format!("'{unknown}' is none of the workers"))
                })
            }
            (Self::Any | Self::Only(_), _) => Ok(()),
        }
    }

    /// What either may name.
    pub(crate) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Only(mut known), Self::Only(more)) => {
                known.extend(more);
                Self::Only(known)
            }
            (Self::Any, _) | (_, Self::Any) => Self::Any,
        }
    }
}

/// The form of a [`Ratification`].
#[derive(Debug)]
pub(crate) struct RatificationForm(pub(crate) MayName);

impl AnswerSchema for RatificationForm {
    fn check(&self, value: &Value, _meter: &Meter<'_>) -> Result<(), String> {
        match Ratification::read(value)? {
            Ratification::Replaced(decision) => self
                .0
                .check(&decision)
                .map_err(|rule| format!("decision: {rule}")),
            Ratification::Ratified | Ratification::Rejected => Ok(()),
        }
    }
}

/// The form of a decision.
#[derive(Debug)]
pub(crate) struct DecisionForm(pub(crate) MayName);

impl AnswerSchema for DecisionForm {
    fn check(&self, value: &Value, _meter: &Meter<'_>) -> Result<(), String> {
        self.0.check(&Decision::read(value)?)
    }
}
