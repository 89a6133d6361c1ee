//! What the caller of a run sets for all of its nodes: the reserved members of `configurable` (`RunConfigurable`).
//!
//! `recursionLimit` and `runTimeoutMs` are limits that every language has; the kernel reads them. Which providers a
//! caller may name is for the host to say.

use std::fmt::Display;

use serde_json::Value;
use wopr_kernel::Refusal;

use crate::{
    Object, Verbosity,
    decision::{THRESHOLD, read_confidence},
    node::{MAX_MODEL_NAME, MAX_TURNS_LIMIT, MOST_TOKENS},
    whole,
};

/// Members of `ai`, each with the one key that says the same.
const PROVIDER: [&str; 2] = ["provider", "ai.provider"];
const MODEL: [&str; 2] = ["model", "ai.model"];

/// Reads the overrides of a run that [`Overrides::check`] accepted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overrides<'r>(Option<&'r Object>);

impl<'r> Overrides<'r> {
    pub(crate) fn of(configurable: Option<&'r Object>) -> Self {
        Self(configurable)
    }

    fn get(self, key: &str) -> Option<&'r Value> {
        self.0?.get(key)
    }

    /// A member of `ai`, which may also be one key with a dot.
    fn ai(self, [name, flat]: [&str; 2]) -> Option<&'r Value> {
        self.get(flat).or_else(|| self.get("ai")?.get(name))
    }

    /// Whom all models of the run are asked of.
    pub(crate) fn provider(self) -> Option<&'r str> {
        self.ai(PROVIDER)?.as_str()
    }

    /// The model of all nodes that ask one.
    pub(crate) fn model(self) -> Option<&'r str> {
        self.ai(MODEL).or_else(|| self.get("model"))?.as_str()
    }

    pub(crate) fn temperature(self) -> Option<f64> {
        self.get("temperature")?.as_f64()
    }

    /// The most tokens of an answer.
    pub(crate) fn max_tokens(self) -> Option<u64> {
        whole(self.get("maxTokens")?)
    }

    /// The most decisions of supervisors.
    pub(crate) fn max_turns(self) -> Option<u32> {
        u32::try_from(whole(self.get("maxLoopIterations")?)?).ok()
    }

    /// The confidence below which a person judges a decision.
    pub(crate) fn threshold(self) -> f64 {
        let asked = self.get("escalationThreshold");
        asked.and_then(read_confidence).unwrap_or(THRESHOLD)
    }

    /// How much of an agent's reasoning is recorded.
    pub(crate) fn verbosity(self) -> Verbosity {
        let asked = self.get("reasoningVerbosity").and_then(Value::as_str);
        asked.and_then(Verbosity::parse).unwrap_or(Verbosity::Summary)
    }

    fn hold(self, key: &str, holds: impl Fn(&Value) -> bool, rule: impl Display) -> Result<(), Refusal> {
        hold(key, self.get(key), holds, rule)
    }

    /// Checks every reserved member, so that none is accepted that would have no effect.
    ///
    /// # Errors
    /// The member, and its rule.
    pub(crate) fn check(self) -> Result<(), Refusal> {
        let is_name = |value: &Value| {
            let name = value.as_str();
            name.is_some_and(|name| (1..=MAX_MODEL_NAME).contains(&name.len()))
        };
        let is_verbosity = |value: &Value| {
            value
                .as_str()
                .is_some_and(|text| Verbosity::parse(text).is_some())
        };
        // Formatted only if it is broken: every run is checked.
        let of_name = format_args!("is not a text of 1 to {MAX_MODEL_NAME} bytes");
        self.hold("ai", Value::is_object, "is not an object")?;
        hold(PROVIDER[1], self.ai(PROVIDER), is_name, of_name)?;
        hold(MODEL[1], self.ai(MODEL), is_name, of_name)?;
        self.hold("model", is_name, of_name)?;
        self.hold(
            "temperature",
            |value| is_within(value, 2.0),
            "is not a number within 0 to 2",
        )?;
        for (key, most) in [("maxTokens", MOST_TOKENS), ("maxLoopIterations", MAX_TURNS_LIMIT)] {
            let is_count = |value: &Value| whole(value).is_some_and(|n| (1..=most).contains(&n));
            self.hold(
                key,
                is_count,
                format_args!("is not a whole number within 1 to {most}"),
            )?;
        }
        let of_unit = "is not a number within 0 to 1";
        self.hold("escalationThreshold", |value| is_within(value, 1.0), of_unit)?;
        self.hold(
            "reasoningVerbosity",
            is_verbosity,
            "is none of summary, full and off",
        )?;
        for [name, key] in [PROVIDER, MODEL] {
            let nested = self.get("ai").and_then(|ai| ai.get(name));
            if nested.is_some() && self.get(key).is_some() {
                return Err(refused(key, "is given twice: also as a member of ai"));
            }
        }
        let models = (self.ai(MODEL), self.get("model"));
        if matches!(models, (Some(one), Some(other)) if one != other) {
            return Err(refused("model", "is another one than ai.model"));
        }
        let prompts = self.get("promptOverrides").and_then(Value::as_object);
        match self.get("promptOverrides") {
            Some(_) if prompts.is_none_or(|prompts| !prompts.is_empty()) => Err(refused(
                "promptOverrides",
                "names prompts of a library, and this host has none",
            )),
            Some(_) | None => Ok(()),
        }
    }
}

fn is_within(value: &Value, most: f64) -> bool {
    value.as_f64().is_some_and(|n| (0.0..=most).contains(&n))
}

/// Refuses a value for which a rule does not hold.
fn hold(
    key: &str,
    value: Option<&Value>,
    holds: impl Fn(&Value) -> bool,
    rule: impl Display,
) -> Result<(), Refusal> {
    match value {
        Some(value) if !holds(value) => Err(refused(key, rule)),
        Some(_) | None => Ok(()),
    }
}

fn refused(key: &str, rule: impl Display) -> Refusal {
    Refusal::InvalidInput {
        field: format!("configurable.{key}"),
        rule: rule.to_string(),
    }
}
