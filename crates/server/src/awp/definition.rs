//! The definition that comes with a call: checked, registered when an execution starts, compared later.

use std::sync::Arc;

use serde_json::{Value, json};
use wopr_app::{StartPermit, View};
use wopr_core::{ContentHash, MAX_DECISION_WORK, Object, Plan, awp, cost::Budget};

use super::{
    error::{Code, Error},
    tool::Tool,
};
use crate::{Host, auth::Caller};

/// A definition, if the host trusts it.
pub(super) fn trusted(host: &Host, definition: Object) -> Result<Value, Error> {
    let document = Value::Object(definition);
    match host.config().awp.trust().check(&document) {
        Ok(_) => Ok(document),
        Err(error) => {
            let message = error.to_string();
            Err(Error::new(Code::Validation, message.clone()).with(json!({ "signing": message })))
        }
    }
}

/// Checks that a definition is one of the protocol, and not in another language of the host.
pub(super) fn recognize(document: &Value) -> Result<(), Error> {
    if awp::Plan::recognizes(document) {
        return Ok(());
    }
    let message = "definition must have the member document, an object";
    Err(Error::new(Code::Validation, message).with(json!({ "field": "definition" })))
}

/// The plan of a definition that the host has, be it the current version of its workflow or an earlier one. A removed
/// workflow has none.
///
/// # Errors
/// The host has another version of the workflow. That one would not be current any more if this one were registered.
pub(super) async fn known(
    host: &Host,
    permit: StartPermit<'_>,
    document: &Value,
) -> Result<Option<Arc<Plan>>, Error> {
    let name = document.pointer("/document/name").and_then(Value::as_str);
    let Some(workflow) = name.and_then(awp::workflow_id) else {
        return Ok(None);
    };
    // Versions of a removed workflow may still be stored, but only for the runs that use them.
    let is_there = host.app().find_workflow(permit, &workflow).await?.is_some();
    if !is_there {
        return Ok(None);
    }
    match host
        .app()
        .find_version(permit, &workflow, &hash(document))
        .await?
    {
        Some(plan) => Ok(Some(plan).filter(|plan| plan.awp().is_some())),
        None => {
            let message = format!(
                "the host has another version of the workflow \"{workflow}\", and not this one: register this definition \
                 first, and then the other one again if that is to stay current"
            );
            Err(Error::new(Code::DuplicateWorkflowId, message).with(json!({ "wf_id": workflow.as_str() })))
        }
    }
}

/// The plan of a definition. One that the host does not have yet is registered for the caller's tenant, once a run of
/// it could start with these inputs and options. It becomes the current version of its workflow, unless that is the
/// operator's, or another one whose name only reads alike: a call that starts something replaces neither.
pub(super) async fn admit(
    host: &Host,
    caller: &Caller,
    permit: StartPermit<'_>,
    document: Value,
    (input, configurable): (&Object, &Object),
) -> Result<Arc<Plan>, Error> {
    let hash = hash(&document);
    let name = document.pointer("/document/name").and_then(Value::as_str);
    if let Some(workflow) = name.and_then(awp::workflow_id)
        && let Some(known) = host.app().find_workflow(permit, &workflow).await?
    {
        if *known.version() == hash && known.awp().is_some() && known.is_active() {
            return Ok(known);
        }
        let is_same = known.awp().is_some() && Some(known.name()) == name;
        if !is_same || !host.app().is_own_workflow(permit, &workflow) {
            let message = format!(
                "the host has another workflow \"{workflow}\", which this definition would replace: give the document \
                 another name, or register it as that workflow"
            );
            let error = Error::new(Code::DuplicateWorkflowId, message);
            return Err(error.with(json!({ "wf_id": workflow.as_str() })));
        }
    }
    awp::alias(configurable)?;
    // What is wrong with a definition is for the registration to say.
    if let Ok(plan) = awp::Plan::compile(document.clone()) {
        let checked = plan.check_child(input, configurable, &Budget::new(MAX_DECISION_WORK));
        checked.map_err(|rule| Error::invalid(Tool::Start, format!("input: {rule}")))?;
    }
    Ok(host.app().register_workflow(caller, document).await?.plan)
}

/// The hash of a definition, which its signature is no part of.
pub(super) fn hash(document: &Value) -> ContentHash {
    awp::definition_hash(&awp::unsigned(document))
}

/// Whether a definition is the one with which an execution was started.
pub(super) fn is_of(view: &View, document: &Value) -> bool {
    hash(document) == *view.plan.version()
}
