//! Starts a run with limits that its dialect has fixed.

use std::{borrow::Cow, sync::Arc};

use crate::{Dialect, KernelEvent, Planned, Refusal, RunStarted, StartRun, Trigger};

use super::{DecisionBuilder, most_held, weight_of_inputs};

impl<D: Dialect> DecisionBuilder<'_, D> {
    pub(super) fn start(&mut self, start: Box<StartRun>) -> Result<Trigger, Refusal> {
        if self.run.started.is_some() || self.run.status.is_terminal() {
            return Err(Refusal::WrongState);
        }
        let limits = match D::check_start(self.plan, &start, &self.budget) {
            Ok(limits) => limits,
            Err(refusal) => {
                self.unstarted = Some(start);
                return Err(refusal);
            }
        };
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
        } = *start;
        self.record(
            None,
            KernelEvent::RunStarted(Arc::new(RunStarted {
                dialect: Cow::Borrowed(D::NAME),
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
                fork: None,
                limits,
            })),
        );
        let (inputs, copied) = (weight_of_inputs(&self.run), D::weight(&self.state));
        (self.held, self.most_held) = (inputs + copied, most_held(inputs));
        // If the copy leaves little of the budget, the first node starts in the next decision.
        let _ = self.budget.spend(copied);
        Ok(Trigger::Started)
    }
}
