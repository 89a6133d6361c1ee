//! Tools that list, check, register and remove workflows.

use futures_util::{FutureExt as _, future::BoxFuture};
use serde_json::{Value, json};
use wopr_core::{NodeTypes, Plan, Problems};
use wopr_wire::json::{Fields, Object};

use super::{
    Ask, Hints, Outcome, Output, Tool,
    schema::{arguments, result},
};
use crate::{
    auth::Scope,
    brief::Brief,
    openwop::{
        Problem,
        problem::listed_problem,
        workflows::{self, Item},
    },
};

/// Maximum number of workflows in a list.
const MAX_LISTED: usize = 100;
/// Maximum number of problems of a definition in a result.
const MAX_PROBLEMS: usize = 100;

pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "wopr_list_workflows",
        title: "List workflows",
        description: "List the workflows that can be started, by id.",
        hints: Hints::Reads,
        input: || {
            arguments(
                json!({
                    "after": {
                        "type": "string", "minLength": 1,
                        "description": "Only workflows whose id comes after this one, in alphabetical order",
                    },
                }),
                &[],
            )
        },
        output: || {
            result(
                json!({
                    "workflows": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "workflowId": { "type": "string" },
                                "name": { "type": "string" },
                                "description": { "type": "string" },
                            },
                            "required": ["workflowId", "name"],
                        },
                    },
                    "hasMore": { "type": "boolean" },
                }),
                &["workflows", "hasMore"],
            )
        },
        call: list,
    },
    Tool {
        name: "wopr_validate_workflow",
        title: "Check a workflow definition",
        description: "Check a workflow definition, of OpenWOP or of the Agent Workflow Protocol, without registering it. \
                      Gives every broken rule and likely mistakes.",
        hints: Hints::Reads,
        input: definition,
        output: || {
            let problems = json!({
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": { "place": { "type": "string" }, "rule": { "type": "string" } },
                    "required": ["place", "rule"],
                },
            });
            result(
                json!({
                    "valid": { "type": "boolean" },
                    "problems": problems,
                    "problemCount": { "type": "integer" },
                    "warnings": problems,
                }),
                &["valid", "problems", "warnings"],
            )
        },
        call: validate,
    },
    Tool {
        name: "wopr_register_workflow",
        title: "Register a workflow",
        description: "Register a workflow definition, of OpenWOP or of the Agent Workflow Protocol. It can be started from \
                      then on, and replaces an earlier version for new runs.",
        hints: Hints::Adds { repeats: true },
        input: definition,
        output: || {
            result(
                json!({
                    "workflowId": { "type": "string" },
                    "name": { "type": "string" },
                    "version": { "type": "string" },
                    "contentVersion": { "type": "string" },
                    "isNew": { "type": "boolean", "description": "false if this version was registered already" },
                    "isActive": { "type": "boolean" },
                    "warnings": { "type": "array", "items": { "type": "object" } },
                }),
                &["workflowId", "contentVersion", "isNew"],
            )
        },
        call: register,
    },
    Tool {
        name: "wopr_remove_workflow",
        title: "Remove a workflow",
        description: "Remove a workflow that was registered here before, with all its versions. No run is started from it \
                      any more; its runs go on, and can be read. It can be registered again.",
        hints: Hints::Ends,
        input: || {
            arguments(
                json!({ "workflowId": { "type": "string", "minLength": 1, "description": "The workflow" } }),
                &["workflowId"],
            )
        },
        output: || result(json!({ "workflowId": { "type": "string" } }), &["workflowId"]),
        call: remove,
    },
];

fn definition() -> Value {
    arguments(
        json!({ "definition": { "type": "object", "description": "The definition, as an object" } }),
        &["definition"],
    )
}

fn list(ask: Ask, arguments: Object) -> BoxFuture<'static, Outcome> {
    async move {
        let mut fields = Fields::of(Value::Object(arguments))?;
        let after: Option<String> = fields.optional("after")?;
        fields.refuse_unknown()?;
        let plans = ask.app().list_workflows(&ask.caller)?;
        let is_next = |id: &str| after.as_deref().is_none_or(|after| id > after);
        let mut next = plans.iter().filter(|plan| is_next(plan.id().as_str()));
        let brief = Brief::among(MAX_LISTED);
        let workflows: Vec<_> = next
            .by_ref()
            .take(MAX_LISTED)
            .map(|plan| Item::listed(plan, brief))
            .collect();
        Ok(Output {
            headline: format!("Listed {} workflow(s).", workflows.len()),
            document: json!({ "workflows": workflows, "hasMore": next.next().is_some() }),
        })
    }
    .boxed()
}

fn read(arguments: Object) -> Result<Object, wopr_wire::json::DecodeError> {
    let mut fields = Fields::of(Value::Object(arguments))?;
    let definition = fields.required("definition")?;
    fields.refuse_unknown()?;
    Ok(definition)
}

fn validate(ask: Ask, arguments: Object) -> BoxFuture<'static, Outcome> {
    async move {
        ask.caller.require(Scope::WorkflowsWrite)?;
        let document = Value::Object(read(arguments)?);
        workflows::check_document(&document, &ask.caller.tenant)?;
        workflows::offered(&ask.host, &document)?;
        let node_types = NodeTypes {
            conformance: ask.host.config().conformance,
        };
        let n_bytes = wopr_core::value_size(&document);
        let trust = ask.host.config().awp.trust();
        let checking = move || match Plan::admit_signed(document, node_types, &trust) {
            Ok(plan) => {
                let warnings = plan.warnings().into_iter().map(|warning| {
                    let mut listed = listed_problem(&warning.problem);
                    listed["code"] = warning.lint.as_str().into();
                    listed
                });
                let warnings: Vec<_> = warnings.collect();
                let headline = match warnings.len() {
                    0 => "The definition is valid.".to_owned(),
                    n => format!("The definition is valid, with {n} warning(s)."),
                };
                (
                    headline,
                    json!({ "valid": true, "problems": [], "warnings": warnings }),
                )
            }
            Err(Problems(problems)) => {
                let listed: Vec<_> = problems.iter().take(MAX_PROBLEMS).map(listed_problem).collect();
                let headline = format!("The definition is invalid: {} problem(s).", problems.len());
                let document = json!({
                    "valid": false, "problems": listed, "problemCount": problems.len(), "warnings": [],
                });
                (headline, document)
            }
        };
        let (headline, document) = ask.app().compute(&ask.caller, n_bytes, checking).await?;
        Ok(Output { headline, document })
    }
    .boxed()
}

fn register(ask: Ask, arguments: Object) -> BoxFuture<'static, Outcome> {
    async move {
        ask.caller.require(Scope::WorkflowsWrite)?;
        let document = Value::Object(read(arguments)?);
        workflows::check_document(&document, &ask.caller.tenant)?;
        let n_bytes = wopr_core::value_size(&document);
        let (is_new, item) = workflows::register_read(&ask.host, &ask.caller, document, n_bytes).await?;
        let mut document: Value = serde_json::from_slice(&item).map_err(|_| Problem::internal())?;
        document["isNew"] = is_new.into();
        let id = document["workflowId"].as_str().unwrap_or_default();
        Ok(Output {
            headline: format!("Workflow {id} is registered."),
            document,
        })
    }
    .boxed()
}

fn remove(ask: Ask, arguments: Object) -> BoxFuture<'static, Outcome> {
    async move {
        let mut fields = Fields::of(Value::Object(arguments))?;
        let id: String = fields.required("workflowId")?;
        fields.refuse_unknown()?;
        workflows::remove_named(&ask.host, &ask.caller, &id).await?;
        Ok(Output {
            headline: format!("Workflow {id} is removed."),
            document: json!({ "workflowId": id }),
        })
    }
    .boxed()
}
