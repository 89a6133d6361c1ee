//! Starts a run: checks its inputs and fixes its limits.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    Event, HostBounds, Limits, Object, Plan, Refusal, RunStarted, StartRun,
    cost::Budget,
    measure::{MAX_NESTING, object_too_deep},
    number::whole,
};

use super::{DecisionBuilder, most_held, weight_of_inputs, weight_of_state};

/// The shortest run duration that a caller may request.
const MIN_DURATION_MS: u64 = 1;

impl DecisionBuilder<'_> {
    pub(super) fn start(&mut self, start: StartRun) -> Result<(), Refusal> {
        if self.run.started.is_some() || self.run.status.is_terminal() {
            return Err(Refusal::WrongState);
        }
        check_inputs(self.plan, &start.inputs)?;
        check_nesting("metadata", &start.metadata)?;
        let limits = limits(self.plan, &start.configurable, start.bounds)?;
        check_configurable(self.plan, &start.configurable, &self.budget)?;
        let StartRun {
            tenant,
            principal,
            origin,
            inputs,
            configurable,
            tags,
            metadata,
            context,
            trace,
            parent,
            bounds: _,
        } = start;
        self.record(
            None,
            Event::RunStarted(Arc::new(RunStarted {
                workflow: self.plan.id().clone(),
                version: self.plan.version().clone(),
                tenant,
                principal,
                origin,
                inputs,
                configurable,
                tags,
                metadata,
                context,
                trace,
                parent,
                limits,
            })),
        );
        let (inputs, copied) = (weight_of_inputs(&self.run), weight_of_state(&self.run));
        (self.held, self.most_held) = (inputs + copied, most_held(inputs));
        // If the copy leaves little of the budget, the first node starts in the next decision.
        let _ = self.budget.spend(copied);
        let entries = self.plan.entries.iter();
        entries.for_each(|&position| self.dirty.push(position));
        Ok(())
    }
}

/// Checks inputs against the declared variables; undeclared inputs are accepted.
pub(super) fn check_inputs(plan: &Plan, inputs: &Object) -> Result<(), Refusal> {
    check_nesting("inputs", inputs)?;
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

/// Checks per-run overrides against the workflow's schema.
pub(super) fn check_configurable(plan: &Plan, configurable: &Object, budget: &Budget) -> Result<(), Refusal> {
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

fn limits(plan: &Plan, configurable: &Object, host: HostBounds) -> Result<Limits, Refusal> {
    let asked = |key: &'static str, min: u64, max: u64| match configurable.get(key) {
        None => Ok(None),
        Some(value) => match whole(value) {
            Some(n) if (min..=max).contains(&n) => Ok(Some(n)),
            _ => Err(Refusal::OutOfBounds {
                key,
                value: value.clone(),
                min,
                max,
            }),
        },
    };
    let most = u64::from(host.node_executions);
    let executions = asked("recursionLimit", 1, most)?.unwrap_or(most);
    let duration_max = host.run_duration_ms.unwrap_or(i64::MAX as u64);
    let duration = asked("runTimeoutMs", MIN_DURATION_MS, duration_max)?;
    let settings = Some(plan.definition.settings.timeout).filter(|ms| *ms > 0);
    check_known(configurable)?;
    Ok(Limits {
        node_executions: u32::try_from(executions).unwrap_or(host.node_executions),
        run_duration_ms: [duration, settings, host.run_duration_ms]
            .into_iter()
            .flatten()
            .min(),
    })
}

/// Checks the types of the reserved keys.
fn check_known(configurable: &Object) -> Result<(), Refusal> {
    let refuse = |key: &str, rule: &str| Refusal::InvalidInput {
        field: format!("configurable.{key}"),
        rule: rule.to_owned(),
    };
    match configurable.get("temperature") {
        None => {}
        Some(value) if value.as_f64().is_some_and(|t| (0.0..=2.0).contains(&t)) => {}
        Some(_) => return Err(refuse("temperature", "is not a number within 0 to 2")),
    }
    match configurable.get("model") {
        None | Some(Value::String(_)) => Ok(()),
        Some(_) => Err(refuse("model", "is not a string")),
    }
}
