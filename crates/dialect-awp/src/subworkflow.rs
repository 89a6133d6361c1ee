//! Sub-workflows: child runs, whose final state becomes part of the state.

use serde_json::Value;
use wopr_kernel::{Catalog, ChildTerms, ContentHash, Failure, Object, Seq, Spawn, StepId, WorkflowId};

use crate::{
    decide::{Next, complete, fail, failure, jq_failure},
    definition::workflow_id,
    mapping::Mapping,
    options::{
        ACTIVITY_MODE, EXECUTION_ID, IN_PROCESS, MOCK_OUTPUTS, PARALLEL_ACTIVITIES, child_execution_id,
        execution_id,
    },
};

/// The output of a child run that is its state at the end.
pub(crate) const FINAL_STATE: &str = "finalState";

/// The prefix of references that name a workflow by its id.
const URN: &str = "urn:awp:wf:";

/// The reference that the protocol maps to one of its examples, and the name of that.
const BUILT_IN: (&str, &str) = ("urn:awp:wf:unit-tests", "r3-unit-tests-child");

/// The workflow that a reference names: the one that has it as its id, else the one that a document of this name has.
fn referenced(workflow_ref: &str, catalog: &dyn Catalog) -> Option<WorkflowId> {
    let name = workflow_ref.strip_prefix(URN).unwrap_or(workflow_ref);
    match WorkflowId::parse(name) {
        Ok(id) if catalog.knows(&id) => Some(id),
        Ok(_) | Err(_) => workflow_id(name),
    }
}

pub(crate) fn begin(
    next: &mut Next<'_>,
    (workflow_ref, mapping, pin): (&str, &Mapping, Option<&ContentHash>),
    step: &StepId,
    started: Seq,
) {
    if let Err(failure) = spawn(next, (workflow_ref, mapping, pin), step, started) {
        let failure = next.input.catalog.failure_of_start(&step.node, failure);
        fail(next, step, started, failure);
    }
}

fn spawn(
    next: &mut Next<'_>,
    (workflow_ref, mapping, pin): (&str, &Mapping, Option<&ContentHash>),
    step: &StepId,
    started: Seq,
) -> Result<(), Failure> {
    let unknown = || {
        let message =
            format!("Unknown workflow_ref \"{workflow_ref}\" (not registered and no built-in mapping)");
        failure("subworkflow_failed", "unknown_child_workflow", message)
    };
    let catalog = next.input.catalog;
    let mut workflow = referenced(workflow_ref, catalog).ok_or_else(unknown)?;
    if workflow_ref == BUILT_IN.0
        && !catalog.knows(&workflow)
        && let Some(example) = referenced(BUILT_IN.1, catalog)
    {
        workflow = example;
    }
    let inputs = mapping
        .evaluate(next.state.document(), next.input.now, &next.budget)
        .map_err(|(name, error)| {
            let message = format!("input_mapping \"{name}\": {error}");
            jq_failure("subworkflow_failed", &error, message)
        })?;
    let spawn = Spawn {
        workflow,
        is_chosen_by_host: false,
        inputs,
        unset: Vec::new(),
        is_untrusted: next.state.is_untrusted,
        report: Vec::new(),
    };
    let terms = ChildTerms {
        version: pin.cloned(),
        configurable: options_of_child(next, step),
        reports_variables: true,
    };
    next.spawn_on(step, started, spawn, terms)
        .map_err(|error| match error.code.as_str() {
            "unknown_child_workflow" => unknown(),
            _ => error.because("subworkflow_failed"),
        })
}

/// A child does its work where its parent does, and is named after it.
fn options_of_child(next: &Next<'_>, step: &StepId) -> Object {
    let mut options = Object::new();
    let Some(started) = next.run.started.as_ref() else {
        return options;
    };
    for name in [ACTIVITY_MODE, PARALLEL_ACTIVITIES, MOCK_OUTPUTS, IN_PROCESS] {
        if let Some(value) = started.configurable.get(name) {
            options.insert(name.to_owned(), value.clone());
        }
    }
    if started.configurable.contains_key(EXECUTION_ID) {
        let execution = execution_id(&started.configurable, next.input.run);
        let id = child_execution_id(&execution, step);
        options.insert(EXECUTION_ID.to_owned(), id.into());
    }
    options
}

/// Goes on with what the child ends with: its final state, or its outputs and variables if it is written in another
/// language.
pub(crate) fn ended(next: &mut Next<'_>, step: &StepId, cause: Seq, mut outputs: Object, report: Object) {
    let output = match outputs.remove(FINAL_STATE) {
        Some(Value::Object(state)) => state,
        Some(_) | None => {
            outputs.extend(report);
            outputs
        }
    };
    complete(next, step, cause, output);
}
