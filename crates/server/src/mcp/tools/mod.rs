//! The tools of this server: one table, from which lists and calls come.
//!
//! A tool reads its arguments, calls use cases, and gives a document; it fails with a code of the host, the same as over
//! REST. What a tool gives a client reads as text and as structured content.

mod activities;
mod answers;
mod documents;
mod own;
mod runs;
mod schema;
mod workflows;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use wopr_app::{Error as AppError, Forbidden};
use wopr_core::{MAX_NESTING, too_deep};
use wopr_wire::json::{DecodeError, Object};

pub(super) use runs::{document as run_document, listed as runs_listed, shortened};

use super::{
    ask::Ask,
    message::{Error, repeated},
};
use crate::{awp, openwop::Problem};

pub(super) type Outcome = Result<Output, Failure>;

/// A tool, as the table holds it.
pub(super) struct Tool {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    pub(super) hints: Hints,
    pub(super) input: fn() -> Value,
    pub(super) output: fn() -> Value,
    pub(super) call: fn(Ask, Object) -> BoxFuture<'static, Outcome>,
}

/// What a tool does to its host, for clients that ask a person first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hints {
    Reads,
    /// It adds something. `repeats` if a repeated call has no further effect.
    Adds {
        repeats: bool,
    },
    /// It ends or replaces something.
    Ends,
}

impl Hints {
    pub(super) fn document(self) -> Value {
        let (reads, destroys, repeats) = match self {
            Self::Reads => (true, false, true),
            Self::Adds { repeats } => (false, false, repeats),
            Self::Ends => (false, true, true),
        };
        // What runs do is up to their workflows, so every tool may reach the outside world except those that read.
        json!({
            "readOnlyHint": reads,
            "destructiveHint": destroys,
            "idempotentHint": repeats,
            "openWorldHint": !reads,
        })
    }
}

/// The result of a tool call.
#[derive(Debug)]
pub(super) struct Output {
    /// One line for people.
    pub(super) headline: String,
    pub(super) document: Value,
}

/// The error of a tool call. Clients receive it as a tool result, so a model can correct its call.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: String,
    pub(super) message: String,
    pub(super) details: Option<Value>,
}

impl From<Problem> for Failure {
    fn from(Problem { envelope, .. }: Problem) -> Self {
        Self {
            code: envelope.error,
            message: envelope.message,
            details: envelope.details.map(Value::Object),
        }
    }
}

impl From<AppError> for Failure {
    fn from(error: AppError) -> Self {
        Problem::from(error).into()
    }
}

impl From<Forbidden> for Failure {
    fn from(error: Forbidden) -> Self {
        Problem::from(error).into()
    }
}

impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Self {
        Problem::from(error).into()
    }
}

/// The tools that every host has.
const TABLE: [&[Tool]; 4] = [runs::TOOLS, answers::TOOLS, workflows::TOOLS, activities::TOOLS];

fn table() -> impl Iterator<Item = &'static Tool> {
    TABLE.into_iter().flatten()
}

/// The member of a call that has the arguments of the tool.
pub(super) const ARGUMENTS: &str = "arguments";

/// The notification that the list of tools has changed.
pub(super) const LIST_CHANGED: &str = "notifications/tools/list_changed";

/// The answer to `tools/list`. The tools that every host has are on the first page.
///
/// # Errors
/// If the cursor is none of this list.
pub(super) fn list(ask: &Ask, params: &Object) -> Result<Value, Error> {
    let strange = || Error::invalid("cursor is none of this list");
    let after = match params.get("cursor") {
        None | Some(Value::Null) => None,
        Some(Value::String(after)) => Some(after.as_str()),
        Some(_) => return Err(strange()),
    };
    let (own, next) = own::page(ask, after).ok_or_else(strange)?;
    let mut tools = match after {
        None => documents(),
        Some(_) => Vec::new(),
    };
    tools.extend(own);
    let mut list = json!({ "tools": tools });
    if let Some(next) = next {
        list["nextCursor"] = next.into();
    }
    Ok(list)
}

fn documents() -> Vec<Value> {
    let tools = table().map(|tool| {
        json!({
            "name": tool.name,
            "title": tool.title,
            "description": tool.description,
            "inputSchema": (tool.input)(),
            "outputSchema": (tool.output)(),
            "annotations": tool.hints.document(),
        })
    });
    tools.chain(documents::documents()).collect()
}

/// The answer to `tools/call`.
///
/// # Errors
/// If there is no such tool, or the parameters are not those of a call. Everything else is a result.
pub(super) async fn call(ask: Ask, mut params: Object) -> Result<Value, Error> {
    let Some(Value::String(name)) = params.remove("name") else {
        return Err(Error::invalid("name must be the name of a tool"));
    };
    let arguments = match params.remove(ARGUMENTS) {
        None | Some(Value::Null) => Object::new(),
        Some(Value::Object(arguments)) => arguments,
        Some(_) => return Err(Error::invalid("arguments must be an object")),
    };
    if arguments.values().any(too_deep) {
        let why = format!("an argument nests more than {MAX_NESTING} levels deep");
        return Ok(result(Err(Problem::invalid(why).into())));
    }
    if let Some(tool) = table().find(|tool| tool.name == name) {
        return Ok(result((tool.call)(ask, arguments).await));
    }
    if let Some(tool) = awp::Tool::parse(&name) {
        return Ok(result(documents::call(&ask, tool, arguments).await));
    }
    match own::call(&ask, &name, arguments).await {
        Some(outcome) => Ok(result(outcome)),
        None => Err(Error::invalid(format!("Unknown tool: {}", repeated(&name)))),
    }
}

/// The bytes that a JSON text takes as a string of a message.
pub(super) fn quoted_size(text: &str) -> usize {
    let n_escaped = text.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    text.len() + n_escaped
}

fn result(outcome: Outcome) -> Value {
    match outcome {
        Ok(Output { headline, document }) => {
            // Without line breaks: indented, a document that nests could take fifty times as much.
            let text = format!("{headline}\n\nStructured result (JSON):\n{document}");
            json!({ "content": [{ "type": "text", "text": text }], "structuredContent": document })
        }
        Err(Failure {
            code,
            message,
            details,
        }) => {
            let text = format!("{code}: {message}");
            let mut error = json!({ "code": code, "message": message });
            if let Some(details) = details {
                error["details"] = details;
            }
            json!({
                "content": [{ "type": "text", "text": text }],
                "structuredContent": { "error": error },
                "isError": true,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_client_takes_them() {
        let mut names = HashSet::new();
        for tool in table() {
            assert!(names.insert(tool.name), "{}", tool.name);
            let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            assert!(
                tool.name.len() <= 64 && tool.name.chars().all(is_plain),
                "{}",
                tool.name
            );
        }
    }

    #[test]
    fn schemas_are_of_objects_and_refuse_unknown_arguments() {
        for tool in table() {
            let (input, output) = ((tool.input)(), (tool.output)());
            assert_eq!(input["type"], "object", "{}", tool.name);
            assert_eq!(input["additionalProperties"], false, "{}", tool.name);
            assert_eq!(output["type"], "object", "{}", tool.name);
            for name in input["required"].as_array().into_iter().flatten() {
                let name = name.as_str().unwrap();
                assert!(!input["properties"][name].is_null(), "{}.{name}", tool.name);
            }
        }
    }

    #[test]
    fn a_failure_is_a_result_that_says_so() {
        let failed = result(Err(Problem::invalid("runId is required").into()));
        assert_eq!(failed["isError"], true);
        assert_eq!(
            failed["content"][0]["text"],
            "validation_error: runId is required"
        );
        assert_eq!(failed["structuredContent"]["error"]["code"], "validation_error");
    }
}
