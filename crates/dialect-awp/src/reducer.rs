//! Reducers: how the output of a node becomes part of the state.

use std::collections::HashMap;

use serde_json::{Map, Value};
use wopr_kernel::Object;

/// How the values of one key of the state are combined. Keys without a reducer are overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reducer {
    Overwrite,
    Append,
    Merge,
}

#[derive(Debug, Default)]
pub(crate) struct Reducers(HashMap<String, Reducer>);

impl Reducers {
    /// Reads the `reducer` of each property of a state schema.
    ///
    /// # Errors
    /// The property with another reducer, and what is wrong with it.
    pub(crate) fn read(state_schema: &Map<String, Value>) -> Result<Self, (String, String)> {
        let mut reducers = HashMap::new();
        let properties = state_schema.get("properties").and_then(Value::as_object);
        for (name, property) in properties.into_iter().flatten() {
            let Some(reducer) = property.get("reducer") else {
                continue;
            };
            let reducer = match reducer.as_str() {
                Some("overwrite") => Reducer::Overwrite,
                Some("append") => Reducer::Append,
                Some("merge") => Reducer::Merge,
                other => {
                    let other = other.unwrap_or("that is no string");
                    let other = &other[..other.floor_char_boundary(100)];
                    let rule = format!(
                        "Unsupported reducer \"{other}\" on state_schema.properties.{name}. Use overwrite, append or merge."
                    );
                    return Err((name.clone(), rule));
                }
            };
            reducers.insert(name.clone(), reducer);
        }
        Ok(Self(reducers))
    }

    /// Whether a new value of the key replaces the one before.
    pub(crate) fn overwrites(&self, name: &str) -> bool {
        self.0
            .get(name)
            .is_none_or(|reducer| *reducer == Reducer::Overwrite)
    }

    /// Makes the output of a node part of the state.
    pub(crate) fn reduce(&self, state: &mut Object, output: Object) {
        for (name, value) in output {
            match self.0.get(&name).copied().unwrap_or(Reducer::Overwrite) {
                Reducer::Overwrite => {
                    state.insert(name, value);
                }
                Reducer::Append => {
                    let before = state.entry(name).or_insert(Value::Null);
                    if !before.is_array() {
                        *before = Value::Array(Vec::new());
                    }
                    if let Value::Array(items) = before {
                        match value {
                            Value::Array(more) => items.extend(more),
                            one => items.push(one),
                        }
                    }
                }
                Reducer::Merge => {
                    let before = state.entry(name).or_insert(Value::Null);
                    if !before.is_object() {
                        *before = Value::Object(Map::new());
                    }
                    if let (Value::Object(before), Value::Object(value)) = (before, value) {
                        crate::jq::merge(before, value);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Object {
        match value {
            Value::Object(object) => object,
            other => panic!("{other} is no object"),
        }
    }

    #[test]
    fn keys_are_combined_by_their_reducers() {
        let schema = object(json!({ "properties": {
            "list": { "reducer": "append" }, "map": { "reducer": "merge" }, "plain": { "reducer": "overwrite" },
        } }));
        let reducers = Reducers::read(&schema).expect("known");
        let mut state =
            object(json!({ "map": { "a": { "x": 1 }, "l": [1] }, "plain": { "a": 1 }, "list": "old" }));
        for output in [
            json!({ "list": [1], "map": { "a": { "y": 2 } }, "plain": { "b": 2 }, "new": 1 }),
            json!({ "list": 2, "map": { "l": [2] } }),
            json!({ "map": 5 }),
        ] {
            reducers.reduce(&mut state, object(output));
        }
        assert_eq!(
            Value::Object(state),
            json!({ "list": [1, 2], "map": { "a": { "x": 1, "y": 2 }, "l": [2] }, "plain": { "b": 2 }, "new": 1 })
        );
        let (name, _) = Reducers::read(&object(json!({ "properties": { "x": { "reducer": "custom" } } })))
            .expect_err("there are no custom reducers");
        assert_eq!(name, "x");
    }
}
