//! What a server says of its tools, within bounds.

use std::{collections::HashMap, sync::Arc};

use rmcp::model as mcp;
use serde_json::Value;
use tokio::time::Instant;
use wopr_core::{Object, openwop::SchemaProblem, value_size};

/// The most tools of a server.
pub(super) const MAX_TOOLS: usize = 1_000;
/// The most pages of a list.
pub(super) const MAX_PAGES: usize = 100;
/// Maximum size of the schema of a tool's arguments, in bytes. A tool with a larger one is left out.
const MAX_SCHEMA: usize = 64 << 10;
/// Maximum size of all schemas of a server, in bytes.
const MAX_SCHEMAS: usize = 2 << 20;
/// Longest description of a tool, in bytes; the rest is cut off.
const MAX_DESCRIPTION: usize = 8 << 10;
/// Longest name of a tool, in bytes.
const MAX_NAME: usize = 256;

/// A tool as its server describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub name: String,
    /// In the server's words, which are untrusted.
    pub description: Option<String>,
    /// The JSON Schema of its arguments.
    pub schema: Arc<Object>,
    /// The JSON Schema of its structured result, if it has one that is small enough to be kept.
    pub output_schema: Option<Arc<Object>>,
    /// The server says that another call with the same arguments does no harm.
    pub is_repeatable: bool,
}

impl Tool {
    /// Holds arguments against the schema. A schema that this host cannot read is left to the server.
    pub(super) fn check(&self, arguments: &Object) -> Result<(), String> {
        self.check_against(&self.schema, &Value::Object(arguments.clone()))
    }

    /// Holds a structured result against the schema of the output, if there is one: a tool that has it has to give one.
    pub(super) fn check_result(&self, result: Option<&Value>) -> Result<(), String> {
        match (&self.output_schema, result) {
            (None, _) => Ok(()),
            (Some(_), None) => Err("there is no structuredContent".to_owned()),
            (Some(schema), Some(result)) => self.check_against(schema, result),
        }
    }

    fn check_against(&self, schema: &Object, value: &Value) -> Result<(), String> {
        match wopr_core::openwop::check_schema(&Value::Object(schema.clone()), value) {
            Ok(()) => Ok(()),
            Err(SchemaProblem::Value(rule)) => Err(rule),
            Err(SchemaProblem::Schema(rule)) => {
                tracing::debug!(tool = self.name, rule, "the schema of a tool is not checked");
                Ok(())
            }
        }
    }
}

/// The tools of a server at one time.
#[derive(Debug)]
pub(super) struct Listed {
    tools: HashMap<String, Arc<Tool>>,
    n_bytes: usize,
    /// Tools that are too large to be kept, or not as the protocol wants them.
    n_left_out: usize,
    pub(super) at: Instant,
}

/// A page of the list.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) tools: Vec<mcp::Tool>,
    /// Tools that break the protocol.
    pub(super) n_unreadable: usize,
    pub(super) next_cursor: Option<String>,
}

impl Page {
    /// Reads a page of which some tools break the protocol. `None` if it has no tools at all.
    pub(super) fn of(mut document: Value) -> Option<Self> {
        let next_cursor = document
            .get("nextCursor")
            .and_then(Value::as_str)
            .map(str::to_owned);
        let tools = document.get_mut("tools").and_then(Value::as_array_mut)?;
        let n_tools = tools.len();
        let readable = tools
            .drain(..)
            .filter_map(|tool| serde_json::from_value(tool).ok());
        let tools: Vec<_> = readable.collect();
        Some(Self {
            n_unreadable: n_tools - tools.len(),
            tools,
            next_cursor,
        })
    }
}

impl From<mcp::ListToolsResult> for Page {
    fn from(result: mcp::ListToolsResult) -> Self {
        Self {
            tools: result.tools,
            n_unreadable: 0,
            next_cursor: result.next_cursor,
        }
    }
}

/// Returns `true` if an object can match the schema. The arguments of a tool are an object, and a model provider refuses a
/// request that has a tool with another schema.
fn describes_objects(schema: &Object) -> bool {
    match schema.get("type") {
        None => true,
        Some(Value::Array(types)) => types.iter().any(|name| name == "object"),
        Some(name) => name == "object",
    }
}

/// A list with more than this host takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TooMuch {
    #[error("more than {MAX_TOOLS} tools")]
    Tools,
    #[error("more than {MAX_PAGES} pages of tools, or the same page twice")]
    Pages,
    #[error("schemas of more than {MAX_SCHEMAS} bytes")]
    Schemas,
}

impl Listed {
    pub(super) fn new() -> Self {
        Self {
            tools: HashMap::new(),
            n_bytes: 0,
            n_left_out: 0,
            at: Instant::now(),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<Tool>> {
        self.tools.get(name).map(Arc::clone)
    }

    pub(super) fn tools(&self) -> impl Iterator<Item = &Tool> {
        self.tools.values().map(|tool| &**tool)
    }

    /// Takes a page of the list.
    pub(super) fn add(&mut self, page: Page) -> Result<(), TooMuch> {
        self.leave_out(page.n_unreadable)?;
        for tool in page.tools {
            let size = tool.input_schema.values().map(value_size).sum::<usize>();
            let is_name = !tool.name.is_empty() && tool.name.len() <= MAX_NAME;
            if size > MAX_SCHEMA || !is_name || !describes_objects(&tool.input_schema) {
                self.leave_out(1)?;
                continue;
            }
            let description = tool.description.map(|text| {
                let end = text.floor_char_boundary(MAX_DESCRIPTION.min(text.len()));
                text[..end].to_owned()
            });
            let size_of = |schema: &Object| schema.values().map(value_size).sum::<usize>();
            let output_schema = tool.output_schema.filter(|schema| size_of(schema) <= MAX_SCHEMA);
            self.n_bytes += output_schema.as_deref().map_or(0, size_of);
            self.n_bytes += size + description.as_ref().map_or(0, String::len);
            if self.n_bytes > MAX_SCHEMAS {
                return Err(TooMuch::Schemas);
            }
            let hints = tool.annotations.unwrap_or_default();
            let is_repeatable = [hints.read_only_hint, hints.idempotent_hint].contains(&Some(true));
            let name = tool.name.into_owned();
            let tool = Tool {
                name: name.clone(),
                description,
                schema: tool.input_schema,
                output_schema,
                is_repeatable,
            };
            self.tools.insert(name, Arc::new(tool));
            self.leave_out(0)?;
        }
        Ok(())
    }

    fn leave_out(&mut self, n_tools: usize) -> Result<(), TooMuch> {
        self.n_left_out += n_tools;
        match self.tools.len() + self.n_left_out > MAX_TOOLS {
            true => Err(TooMuch::Tools),
            false => Ok(()),
        }
    }

    /// One line for a list, however many of its tools are left out.
    pub(super) fn tell_left_out(&self, server: &str) {
        if self.n_left_out > 0 {
            let n_left_out = self.n_left_out;
            tracing::warn!(
                server,
                n_left_out,
                "tools are left out: they have no schema of an object, or their schemas or names are too large"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_that_are_left_out_count() {
        let mut listed = Listed::new();
        let unnamed = || mcp::Tool::new("", "", Object::new());
        let page = |tools| Page {
            tools,
            ..Page::default()
        };
        let many = (0..MAX_TOOLS).map(|_| unnamed()).collect();
        listed.add(page(many)).unwrap();
        assert_eq!(listed.tools().count(), 0);
        assert!(matches!(listed.add(page(vec![unnamed()])), Err(TooMuch::Tools)));
    }
}
