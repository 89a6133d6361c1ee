//! Typed channels (OpenWOP v1 §20): reducers and write access.
//!
//! A channel's value is the fold of its writes, each with its own reducer. An unknown reducer replaces the
//! value. A declaration's `access.writers` and `schema` are enforced when a node writes; a fold checks
//! nothing.

use serde_json::{Map, Value, json};

use crate::{
    Failure, Timestamp,
    cost::Budget,
    schema::{Allowance, Invalid, Schema},
    too_much_work, whole,
};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Write<'a> {
    pub(crate) value: &'a Value,
    pub(crate) reducer: &'a str,
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) max_size: Option<u64>,
    pub(crate) at: Timestamp,
}

/// The reducers that a definition may name, besides `vendor.…`.
pub(crate) const REDUCERS: [&str; 7] = [
    "replace", "append", "merge", "counter", "votes", "feedback", "message",
];

/// The fields of a declaration.
const FIELDS: [&str; 10] = [
    "reducer",
    "schema",
    "default",
    "maxSize",
    "ttlMs",
    "options",
    "access",
    "schemaVersion",
    "compatibleWith",
    "sensitive",
];

/// One year.
pub(crate) const MAX_TTL_MS: u64 = 31_536_000_000;

/// The rules that a declaration breaks.
pub(crate) fn check(declaration: &Value) -> impl Iterator<Item = String> {
    let fields = declaration.as_object();
    let within = |field: &str, min: u64, max: u64| match declaration.get(field) {
        None => None,
        Some(value) if whole(value).is_some_and(|n| (min..=max).contains(&n)) => None,
        Some(_) => Some(format!("'{field}' is not within {min} to {max}")),
    };
    let reducer = match declaration.get("reducer").and_then(Value::as_str) {
        Some(reducer) if is_known(reducer) => None,
        Some(reducer) => Some(format!("'reducer' is '{reducer}', which is not known")),
        None => Some("'reducer' is missing".to_owned()),
    };
    let unknown = fields
        .into_iter()
        .flat_map(|fields| fields.keys())
        .find(|field| !FIELDS.contains(&field.as_str()))
        .map(|field| format!("unknown field '{field}'"));
    let rules = if fields.is_none() {
        [Some("is not an object".to_owned()), None, None, None]
    } else {
        [
            unknown,
            reducer,
            within("maxSize", 1, u64::from(u32::MAX)),
            within("ttlMs", 1, MAX_TTL_MS),
        ]
    };
    rules.into_iter().flatten()
}

/// A declaration's rules for writes.
///
/// If an earlier build accepted an invalid declaration, only its valid rules apply.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    /// `None` means that every node may write.
    writers: Option<Vec<String>>,
    /// The schema of the channel's value.
    schema: Option<Schema>,
}

impl Guard {
    /// Parses a declaration's rules; fails if the allowance has no room for the schema.
    pub(crate) fn of(declaration: &Value, allowance: &Allowance) -> Result<Self, String> {
        let writers = match declaration.get("access") {
            Some(Value::String(access)) if access == "private" => Some(Vec::new()),
            Some(access) => access.get("writers").and_then(Value::as_array).map(|writers| {
                let names = writers.iter().filter_map(Value::as_str);
                names.map(ToOwned::to_owned).collect()
            }),
            None => None,
        };
        let schema = match declaration
            .get("schema")
            .map(|schema| Schema::compile(schema, allowance))
        {
            Some(Ok(schema)) => Some(schema),
            Some(Err(rule)) if allowance.is_exceeded() => return Err(format!("schema: {rule}")),
            Some(Err(_)) | None => None,
        };
        Ok(Self { writers, schema })
    }

    /// Checks that a node may write; fails with `channel_access_denied`.
    pub(crate) fn check_writer(&self, channel: &str, node: &str, type_id: &str) -> Result<(), Failure> {
        let may = |entry: &String| entry == node || covers(entry, type_id);
        if self
            .writers
            .as_ref()
            .is_none_or(|writers| writers.iter().any(may))
        {
            return Ok(());
        }
        let message = format!(
            "node '{node}' of type '{type_id}' may not write to channel '{channel}': it is not among access.writers"
        );
        Err(Failure::new("channel_access_denied", message))
    }

    /// Checks the value that the channel would have after a write; fails with `validation_error`. Entries are
    /// checked without their timestamps. The error names the place and the rule but not the value, which may
    /// be sensitive.
    pub(crate) fn check_write(
        &self,
        channel: &str,
        current: Option<&Value>,
        write: &Write<'_>,
        budget: &Budget,
    ) -> Result<(), Failure> {
        let Some(schema) = &self.schema else { return Ok(()) };
        let value = match fold(current, write) {
            Value::Array(entries) => entries.iter().map(unwrap).cloned().collect(),
            other => other,
        };
        schema
            .validate(&value, &budget.meter())
            .map_err(|error| match error {
                Invalid::Broken { at, keyword, .. } => {
                    let message = format!(
                        "the write would break the schema of channel '{channel}' at '{at}': /{keyword}"
                    );
                    Failure::new("validation_error", message)
                }
                Invalid::TooMuchWork => too_much_work(),
            })
    }
}

/// Whether an entry with a trailing `*` covers a type id: it covers all of them, or those below a prefix.
fn covers(entry: &str, type_id: &str) -> bool {
    let prefix = entry.strip_suffix('*');
    prefix.is_some_and(|prefix| (prefix.is_empty() || prefix.ends_with('.')) && type_id.starts_with(prefix))
}

/// Whether writes may name the reducer.
pub(crate) fn is_known(reducer: &str) -> bool {
    REDUCERS.contains(&reducer) || reducer.starts_with("vendor.")
}

/// The form that a reducer gives the value of its channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    List,
    Object,
    Number,
}

impl Form {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::List => "an array",
            Self::Object => "an object",
            Self::Number => "a number",
        }
    }

    pub(crate) fn is_of(self, value: &Value) -> bool {
        match self {
            Self::List => value.is_array(),
            Self::Object => value.is_object(),
            Self::Number => value.is_number(),
        }
    }
}

/// `None` if the reducer takes any value, and replaces the one before.
pub(crate) fn form_of(reducer: &str) -> Option<Form> {
    match reducer {
        "append" | "feedback" | "message" | "votes" => Some(Form::List),
        "merge" => Some(Form::Object),
        "counter" => Some(Form::Number),
        _ => None,
    }
}

/// Whether a list keeps its newest entries and drops the oldest ones. The others may not become too long.
fn drops_oldest(reducer: &str) -> bool {
    matches!(reducer, "append" | "feedback" | "message")
}

/// Checks what the reducer itself asks of a write, declared or not; fails with `validation_error`.
pub(crate) fn check_form(channel: &str, current: Option<&Value>, write: &Write<'_>) -> Result<(), Failure> {
    let refuse = |rule: String| {
        let message = format!("the write to channel '{channel}' {rule}");
        Err(Failure::new("validation_error", message))
    };
    // A list takes any value as an entry.
    match form_of(write.reducer) {
        Some(form @ (Form::Object | Form::Number)) if !form.is_of(write.value) => {
            return refuse(format!("is not {}, as '{}' needs", form.as_str(), write.reducer));
        }
        Some(Form::List | Form::Object | Form::Number) | None => {}
    }
    let Some(most) = write.max_size.filter(|_| !drops_oldest(write.reducer)) else {
        return Ok(());
    };
    let whole = Write {
        max_size: None,
        ..*write
    };
    let size = match fold(current, &whole) {
        Value::Array(entries) => entries.len(),
        Value::Object(members) => members.len(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return Ok(()),
    };
    match size as u64 > most {
        true => refuse(format!(
            "would make it {size} entries long, and maxSize is {most}"
        )),
        false => Ok(()),
    }
}

/// The channel's value after a write.
pub(crate) fn fold(current: Option<&Value>, write: &Write<'_>) -> Value {
    match write.reducer {
        "append" | "feedback" => list(current, write, |_| false),
        "votes" => {
            let voter = write.value.get("userId");
            list(current, write, |entry| {
                voter.is_some() && unwrap(entry).get("userId") == voter
            })
        }
        "message" => {
            let id = write.value.get("messageId");
            let known = id.is_some()
                && current
                    .and_then(Value::as_array)
                    .is_some_and(|all| all.iter().any(|m| unwrap(m).get("messageId") == id));
            if known {
                current.cloned().unwrap_or_default()
            } else {
                list(current, write, |_| false)
            }
        }
        "merge" => {
            let mut merged = current
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_else(Map::new);
            if let Value::Object(fields) = write.value {
                merged.extend(fields.clone());
            }
            Value::Object(merged)
        }
        "counter" => add(current, write.value),
        _ => write.value.clone(),
    }
}

fn list(current: Option<&Value>, write: &Write<'_>, replaces: impl Fn(&Value) -> bool) -> Value {
    let mut entries = current.and_then(Value::as_array).cloned().unwrap_or_default();
    entries.retain(|entry| !replaces(entry));
    match write.ttl_ms {
        None => entries.push(write.value.clone()),
        Some(ttl) => {
            let oldest = write
                .at
                .millis()
                .saturating_sub(i64::try_from(ttl).unwrap_or(i64::MAX));
            entries.retain(|entry| {
                entry
                    .get("_ts")
                    .and_then(Value::as_i64)
                    .is_none_or(|ts| ts >= oldest)
            });
            entries.push(json!({ "value": write.value, "_ts": write.at.millis() }));
        }
    }
    if let Some(max) = write.max_size.and_then(|max| usize::try_from(max).ok()) {
        let excess = entries.len().saturating_sub(max);
        entries.drain(..excess);
    }
    Value::Array(entries)
}

/// An entry without its timestamp.
fn unwrap(entry: &Value) -> &Value {
    if entry.get("_ts").is_some() {
        entry.get("value").unwrap_or(entry)
    } else {
        entry
    }
}

fn add(current: Option<&Value>, step: &Value) -> Value {
    let current = current.unwrap_or(&Value::Null);
    match (current.as_i64().or(current.is_null().then_some(0)), step.as_i64()) {
        (Some(a), Some(b)) => json!(a.saturating_add(b)),
        _ => json!(current.as_f64().unwrap_or(0.0) + step.as_f64().unwrap_or(0.0)),
    }
}
