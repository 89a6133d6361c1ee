//! Public workflows as tools of their own, where the operator wants that (`mcp.workflow_tools`).
//!
//! A tool's name is `run_` and the workflow's id. An id that is too long for that is cut, and a hash of it makes the name
//! unique and stable. Its arguments are the inputs of the run.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use wopr_app::{Done, NewRun, VisibleRun};
use wopr_core::{ContentHash, Object, Origin, Plan, WorkflowId, json_size};

use super::{Ask, Hints, Outcome, runs, schema};
use crate::{
    auth::Scope,
    brief::{Brief, label},
    openwop::problem::no_run,
};

const PREFIX: &str = "run_";
/// Longest name that every client takes.
const MAX_NAME: usize = 64;
/// Digits of the hash in a name.
const HASH: usize = 8;
/// Tools per page of the list.
const PAGE: usize = 100;
/// The largest schema of inputs that a list repeats, in bytes.
const MAX_SCHEMA: usize = 16 << 10;

/// The workflows that are tools for a caller, by their names. A caller who may neither read nor start workflows does not
/// learn which there are.
fn offered(ask: &Ask) -> Vec<(String, Arc<Plan>)> {
    let may_know = ask.caller.may(Scope::ManifestRead) || ask.caller.may(Scope::RunsCreate);
    if !ask.host.config().mcp.workflow_tools || !may_know {
        return Vec::new();
    }
    let is_tool = |plan: &Arc<Plan>| plan.is_public() && plan.is_active() && plan.is_for_callers();
    let plans = ask
        .app()
        .workflows(&ask.caller.tenant)
        .into_iter()
        .filter(is_tool);
    let mut named: Vec<_> = plans.map(|plan| (name(plan.id()), plan)).collect();
    named.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    named
}

/// A page of the tools, after the one with this name, and the name that the next page comes after. `None` if the name is
/// no workflow's tool. That tool itself may be gone by now.
pub(super) fn page(ask: &Ask, after: Option<&str>) -> Option<(Vec<Value>, Option<String>)> {
    if after.is_some_and(|after| !after.starts_with(PREFIX) || after.len() > MAX_NAME) {
        return None;
    }
    let offered = offered(ask);
    let mut rest = offered
        .iter()
        .filter(|(name, _)| after.is_none_or(|after| name.as_str() > after));
    let page: Vec<_> = rest.by_ref().take(PAGE).collect();
    let next = rest.next().and(page.last()).map(|(name, _)| name.clone());
    let documents = page.into_iter().map(|(name, plan)| document(name, plan));
    Some((documents.collect(), next))
}

/// Starts a run of the workflow with this tool. `None` if there is no such tool.
pub(super) async fn call(ask: &Ask, tool: &str, inputs: Object) -> Option<Outcome> {
    let offered = offered(ask).into_iter();
    let (_, plan) = offered.into_iter().find(|(name, _)| name == tool)?;
    Some(start(ask, plan, inputs).await)
}

async fn start(ask: &Ask, plan: Arc<Plan>, inputs: Object) -> Outcome {
    let permit = ask.caller.permit_start()?;
    let new = NewRun {
        inputs,
        trace: ask.trace.clone(),
        ..NewRun::new(ask.app().new_run_id(), Origin::new("mcp"))
    };
    let run = match ask.app().start_run_of(permit, plan, new).await? {
        Done::Fresh(view) => VisibleRun::from(&view),
        Done::Replayed(record) => VisibleRun::of_record(&record).ok_or_else(no_run)?,
    };
    runs::followed(ask, &run, ask.most_wait(), |_| true).await
}

fn document(name: &str, plan: &Plan) -> Value {
    let about = plan.description().unwrap_or_else(|| plan.name());
    let about = Brief::among(PAGE).description(about);
    json!({
        "name": name,
        "title": label(plan.name()),
        "description": format!("Start a run of the workflow {} and wait for it. {about}", plan.id()),
        "inputSchema": inputs(plan.document()),
        "outputSchema": schema::run(),
        "annotations": Hints::Adds { repeats: false }.document(),
    })
}

/// The name of a workflow's tool.
fn name(workflow: &WorkflowId) -> String {
    let id = workflow.as_str();
    if PREFIX.len() + id.len() <= MAX_NAME {
        return format!("{PREFIX}{id}");
    }
    let begin = &id[..MAX_NAME - PREFIX.len() - 1 - HASH];
    let hash = ContentHash::of(id.as_bytes());
    format!("{PREFIX}{begin}_{}", &hash.as_str()[..HASH])
}

/// The schema of a workflow's inputs: its variables, or the properties of its state. Undeclared inputs are allowed.
fn inputs(definition: &Value) -> Value {
    const TYPES: [&str; 5] = ["string", "number", "boolean", "object", "array"];
    let mut properties = Map::new();
    let mut required = Vec::new();
    let text = |value: &Value, member: &str| value.get(member).and_then(Value::as_str).map(str::to_owned);
    for variable in definition
        .get("variables")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let Some(name) = text(variable, "name") else {
            continue;
        };
        let mut property = json!({});
        if let Some(kind) = text(variable, "type").filter(|kind| TYPES.contains(&kind.as_str())) {
            property["type"] = kind.into();
        }
        if let Some(description) = variable.get("description").and_then(Value::as_str) {
            property["description"] = label(description).into();
        }
        if variable.get("required") == Some(&Value::Bool(true)) && variable.get("defaultValue").is_none() {
            required.push(name.clone());
        }
        properties.insert(name, property);
    }
    let state = definition
        .pointer("/state_schema/properties")
        .and_then(Value::as_object);
    for (name, property) in state.into_iter().flatten() {
        let kind = text(property, "type").filter(|kind| TYPES.contains(&kind.as_str()));
        properties.insert(
            name.clone(),
            kind.map_or_else(|| json!({}), |kind| json!({ "type": kind })),
        );
    }
    let schema = json!({ "type": "object", "properties": properties, "required": required });
    match json_size(&schema) <= MAX_SCHEMA {
        true => schema,
        // What is missing or of another type is refused when the run starts.
        false => json!({ "type": "object" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tools_are_valid_and_tell_workflows_apart() {
        let name = |id: &str| name(&WorkflowId::parse(id).unwrap());
        assert_eq!(name("campaign-brief"), "run_campaign-brief");
        let long = "x".repeat(100);
        let (one, other) = (name(&format!("{long}a")), name(&format!("{long}b")));
        assert_ne!(one, other);
        for name in [one, other] {
            assert!(name.len() <= MAX_NAME, "{name}");
        }
    }

    #[test]
    fn inputs_are_those_that_the_definition_declares() {
        let variables = json!({ "variables": [
            { "name": "amount", "type": "number", "required": true },
            { "name": "note", "type": "string", "required": true, "defaultValue": "" },
        ] });
        assert_eq!(
            inputs(&variables),
            json!({
                "type": "object",
                "properties": { "amount": { "type": "number" }, "note": { "type": "string" } },
                "required": ["amount"],
            })
        );
        let state =
            json!({ "state_schema": { "properties": { "log": { "type": "array", "reducer": "append" } } } });
        assert_eq!(
            inputs(&state)["properties"],
            json!({ "log": { "type": "array" } })
        );
    }
}
