//! Selects the workflow for a message.
//!
//! The message, the request, the address and the host's default are tried in this order; the first one that
//! names a workflow decides. If nothing names one, the tenant's only skill is meant.

use std::sync::Arc;

use serde_json::Value;
use wopr_app::{Error as AppError, StartPermit};
use wopr_core::{Plan, WorkflowId};
use wopr_wire::a2a::{
    error::A2aError,
    model::{Message, Metadata},
};

use super::{
    conformance,
    error::Error,
    metadata::find,
    service::{Call, Service},
};
use crate::auth::Caller;

/// Keys that name a workflow. The first match wins.
const KEYS: [&[&str]; 3] = [&["openwop", "workflowId"], &["skillId"], &["openwop", "skillId"]];

/// The field to report if no workflow is named.
pub(super) const FIELD: &str = "message.metadata.openwop.workflowId";

/// Maximum number of skills that an error lists.
const MAX_LISTED: usize = 20;

/// A selected workflow and the place that named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) workflow: WorkflowId,
    /// The field to report if there is no such workflow.
    pub(super) field: String,
}

/// The value that names a workflow in the request's metadata; it may have any type.
pub(super) fn named(request: &Metadata) -> Option<&Value> {
    KEYS.iter().find_map(|key| find(request, key))
}

/// Selects the workflow. `None` if nothing names one.
pub(super) fn choose(
    message: &Message,
    request: &Metadata,
    interface: Option<&WorkflowId>,
    default: Option<&WorkflowId>,
) -> Result<Option<Choice>, A2aError> {
    for (place, metadata) in [("message.metadata", &message.metadata), ("metadata", request)] {
        for key in KEYS {
            let Some(value) = find(metadata, key) else {
                continue;
            };
            let field = format!("{place}.{}", key.join("."));
            let Value::String(text) = value else {
                return Err(A2aError::invalid_param(field, "must be the id of a skill"));
            };
            return match WorkflowId::parse(text) {
                Ok(workflow) => Ok(Some(Choice { workflow, field })),
                Err(_) => Err(A2aError::invalid_param(field, "is not the id of a skill")),
            };
        }
    }
    let named = |workflow: &WorkflowId, field: &str| Choice {
        workflow: workflow.clone(),
        field: field.to_owned(),
    };
    Ok(interface
        .map(|workflow| named(workflow, "url"))
        .or_else(|| default.map(|workflow| named(workflow, FIELD))))
}

impl Service {
    /// Chooses the workflow for a message that starts a task.
    pub(super) async fn workflow(
        &self,
        call: &Call,
        permit: StartPermit<'_>,
        message: &Message,
        metadata: &Metadata,
    ) -> Result<Arc<Plan>, Error> {
        let app = self.host.app();
        let is_conformance = self.host.config().conformance;
        let own = is_conformance.then(conformance::skill);
        let default = self.host.config().default_workflow.as_ref().or(own.as_ref());
        let choice = choose(message, metadata, call.interface.as_ref(), default)?;
        let unknown_default = choice
            .as_ref()
            .filter(|choice| choice.field == FIELD && default == Some(&choice.workflow))
            .map(|choice| choice.workflow.clone());
        let (found, field) = match choice {
            Some(Choice { workflow, field }) => {
                let found = app.find_workflow(permit, &workflow).await?;
                (found.filter(|plan| plan.is_public()), field)
            }
            None => (app.only_public_workflow(permit), FIELD.to_owned()),
        };
        let workflow = found.ok_or_else(|| self.no_skill(&call.caller, field, unknown_default))?;
        if own.is_some_and(|own| *workflow.id() == own) {
            let steered = conformance::steer(call.version, message);
            let found = app.find_workflow(permit, &steered).await?;
            return Ok(found.ok_or(AppError::NoWorkflow)?);
        }
        Ok(workflow)
    }

    fn no_skill(&self, caller: &Caller, field: String, unknown_default: Option<WorkflowId>) -> A2aError {
        let plans = self.host.app().workflows(&caller.tenant);
        let skills: Vec<_> = plans
            .iter()
            .filter(|plan| plan.is_public())
            .take(MAX_LISTED)
            .map(|plan| plan.id().as_str())
            .collect();
        let rule = if skills.is_empty() {
            "cannot name a skill: this host has none".to_owned()
        } else {
            format!("must name one of the skills: {}", skills.join(", "))
        };
        match unknown_default {
            None => A2aError::invalid_param(field, rule),
            Some(id) => {
                let rule = format!("{rule}; this host's default workflow, '{id}', is none of them");
                A2aError::invalid_param(field, rule)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wopr_wire::a2a::model::{Part, Role};

    use super::*;

    fn chosen(message: &Value, request: &Value, interface: Option<&str>, default: Option<&str>) -> String {
        let mut sent = Message::new("m", Role::User, vec![Part::text("hi")]);
        sent.metadata = message.as_object().unwrap().clone();
        let id = |text: Option<&str>| text.map(|text| WorkflowId::parse(text).unwrap());
        let (interface, default) = (id(interface), id(default));
        match choose(
            &sent,
            request.as_object().unwrap(),
            interface.as_ref(),
            default.as_ref(),
        ) {
            Ok(Some(choice)) => choice.workflow.to_string(),
            Ok(None) => "-".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn message_precedes_request_address_and_default() {
        for (message, request, interface, default, wanted) in [
            (json!({}), json!({}), None, None, "-"),
            (json!({}), json!({}), None, Some("d"), "d"),
            (json!({}), json!({}), Some("i"), Some("d"), "i"),
            (json!({}), json!({"skillId": "r"}), Some("i"), Some("d"), "r"),
            (
                json!({}),
                json!({"openwop": {"workflowId": "r"}}),
                Some("i"),
                None,
                "r",
            ),
            (json!({"skillId": "m"}), json!({"skillId": "r"}), None, None, "m"),
            (json!({"openwop.workflowId": "m"}), json!({}), None, None, "m"),
            (
                json!({"openwop": {"workflowId": "m"}, "skillId": "s"}),
                json!({}),
                None,
                None,
                "m",
            ),
            (json!({"openwop": {"skillId": "m"}}), json!({}), None, None, "m"),
            (json!({"openwop.skillId": "m"}), json!({}), None, None, "m"),
            (json!({"openwop.skillId": null}), json!({}), None, Some("d"), "d"),
            (
                json!({"skillId": 7}),
                json!({}),
                None,
                Some("d"),
                "invalid parameters: message.metadata.skillId must be the id of a skill",
            ),
            (
                json!({}),
                json!({"openwop": {"workflowId": "No Such"}}),
                None,
                None,
                "invalid parameters: metadata.openwop.workflowId is not the id of a skill",
            ),
        ] {
            assert_eq!(
                chosen(&message, &request, interface, default),
                wanted,
                "{message}"
            );
        }
    }
}
