//! Mappings: names, each with a value that is copied or a filter over the state.

use serde_json::Value;
use wopr_kernel::{Object, Timestamp, cost, cost::Meter};

use crate::jq::{Filter, JqError};

/// What is given to a child, an agent or the state.
#[derive(Debug, Default)]
pub(crate) struct Mapping(Vec<(String, Mapped)>);

#[derive(Debug)]
enum Mapped {
    Literal(Value),
    Filter(Filter),
}

impl Mapping {
    /// The filter that a form contains: `{"jq": "…"}`, or a string that is `${ … }` as a whole.
    pub(crate) fn filter_of(form: &Value) -> Option<&str> {
        match form {
            Value::Object(fields) => fields.get("jq").and_then(Value::as_str),
            Value::String(text) => {
                let inner = text.trim().strip_prefix("${")?.strip_suffix('}')?.trim();
                (!inner.is_empty()).then_some(inner)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
        }
    }

    pub(crate) fn add(&mut self, name: &str, form: &Value, filter: Option<Filter>) {
        let mapped = match (filter, form) {
            (Some(filter), _) => Mapped::Filter(filter),
            (None, Value::Object(fields)) if fields.contains_key("literal") => {
                Mapped::Literal(fields.get("literal").cloned().unwrap_or_default())
            }
            (None, form) => Mapped::Literal(form.clone()),
        };
        self.0.push((name.to_owned(), mapped));
    }

    /// The values, all of the same state.
    ///
    /// # Errors
    /// The name whose filter fails, and why.
    pub(crate) fn evaluate(
        &self,
        state: &Value,
        now: Timestamp,
        budget: &cost::Budget,
    ) -> Result<Object, (String, JqError)> {
        let values = self.0.iter().map(|(name, mapped)| {
            let value = match mapped {
                Mapped::Literal(value) => copied(value, &budget.meter()),
                Mapped::Filter(filter) => filter.evaluate(state, now, &budget.meter()),
            };
            value
                .map(|value| (name.clone(), value))
                .map_err(|error| (name.clone(), error))
        });
        values.collect()
    }
}

fn copied(value: &Value, meter: &Meter<'_>) -> Result<Value, JqError> {
    meter
        .charge(cost::of_value(value))
        .map_err(|_| JqError::TooMuchWork)?;
    Ok(value.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn forms_are_literals_and_filters() {
        let forms = json!({
            "a": { "jq": ".x" }, "b": { "literal": { "jq": 1 } }, "c": "${ .x + 1 }", "d": "x ${ .x }",
            "e": { "other": 1 }, "f": [1], "g": "${ .missing }", "h": "${}",
        });
        let mut mapping = Mapping::default();
        for (name, form) in forms.as_object().expect("an object") {
            let filter = Mapping::filter_of(form).map(|source| Filter::compile(source).expect("jq"));
            mapping.add(name, form, filter);
        }
        let budget = cost::Budget::new(cost::EVALUATION);
        let values = mapping.evaluate(&json!({ "x": 1 }), Timestamp::default(), &budget);
        assert_eq!(
            Value::Object(values.expect("values")),
            json!({
                "a": 1, "b": { "jq": 1 }, "c": 2, "d": "x ${ .x }", "e": { "other": 1 }, "f": [1], "g": null, "h": "${}",
            })
        );
    }
}
