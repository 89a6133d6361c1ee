//! Checks the parameters of a new run, and fixes its limits.

use wopr_kernel::{Limits, Planned as _, Refusal, StartRun};

use crate::{
    Object, Plan,
    cost::Budget,
    event::EXCHANGES,
    measure::{MAX_NESTING, object_too_deep},
    overrides::Overrides,
};

/// Checks the parameters of a new run, and fixes its limits.
pub(crate) fn check_start(plan: &Plan, start: &StartRun, budget: &Budget) -> Result<Limits, Refusal> {
    if !plan.is_for_callers() && start.parent.is_none() {
        return Err(Refusal::InvalidInput {
            field: "workflowId".to_owned(),
            rule: format!(
                "'{}' is the host's own, which only runs that call a tool or an agent start",
                plan.definition.id
            ),
        });
    }
    check_inputs(plan, &start.inputs)?;
    check_nesting("metadata", &start.metadata)?;
    let declared_ms = Some(plan.definition.settings.timeout).filter(|ms| *ms > 0);
    let limits = start.bounds.limits(&start.configurable, declared_ms)?;
    Overrides::of(Some(&start.configurable)).check()?;
    check_configurable(plan, &start.configurable, budget)?;
    Ok(limits)
}

impl Plan {
    /// Checks the parameters that a child run would start with. `unset` names inputs that stay unset.
    ///
    /// # Errors
    /// The rule that they break.
    pub fn check_child(
        &self,
        inputs: &Object,
        configurable: &Object,
        unset: &[String],
        budget: &Budget,
    ) -> Result<(), String> {
        check_inputs(self, inputs)
            .and_then(|()| check_configurable(self, configurable, budget))
            .map_err(|refusal| refusal.to_string())?;
        let mut variables = self.variables().iter();
        match variables.find(|variable| variable.required && unset.contains(&variable.name)) {
            None => Ok(()),
            Some(variable) => Err(format!("inputs.{} is required, and not set here", variable.name)),
        }
    }
}

/// Checks inputs against the declared variables; undeclared inputs are accepted.
fn check_inputs(plan: &Plan, inputs: &Object) -> Result<(), Refusal> {
    check_nesting("inputs", inputs)?;
    check_names(inputs)?;
    for variable in plan.variables() {
        let refuse = |rule: String| Refusal::InvalidInput {
            field: format!("inputs.{}", variable.name),
            rule,
        };
        match inputs.get(&variable.name) {
            None if variable.required && variable.default_value.is_none() => {
                return Err(refuse("is required".to_owned()));
            }
            None => {}
            Some(value) if !variable.kind.admits(value) => {
                return Err(refuse(format!("is not of type {}", variable.kind.as_str())));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Refuses names under which the host keeps what approvers asked at a gate. Whoever set one could show the others questions
/// that nobody asked.
pub(crate) fn check_names(variables: &Object) -> Result<(), Refusal> {
    match variables.keys().find(|name| name.starts_with(EXCHANGES)) {
        None => Ok(()),
        Some(name) => Err(Refusal::InvalidInput {
            field: format!("inputs.{name}"),
            rule: format!("names that begin with '{EXCHANGES}' are the host's"),
        }),
    }
}

/// Checks per-run overrides against the workflow's schema.
fn check_configurable(plan: &Plan, configurable: &Object, budget: &Budget) -> Result<(), Refusal> {
    check_nesting("configurable", configurable)?;
    plan.check_configurable(configurable, &budget.meter())
        .map_err(|rule| Refusal::InvalidInput {
            field: "configurable".to_owned(),
            rule,
        })
}

fn check_nesting(field: &str, fields: &Object) -> Result<(), Refusal> {
    if object_too_deep(fields) {
        return Err(Refusal::InvalidInput {
            field: field.to_owned(),
            rule: format!("nests more than {MAX_NESTING} levels deep"),
        });
    }
    Ok(())
}
