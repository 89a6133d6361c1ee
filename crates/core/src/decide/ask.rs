//! Opens interrupts, whose texts are rendered at that moment.

use serde_json::Value;

use crate::{
    Event, Failure, InterruptKind, Seq, StepId, Timer,
    node::{ARTIFACT, About, TITLE},
};

use super::DecisionBuilder;

impl DecisionBuilder<'_> {
    /// Opens an interrupt and renders its texts; a text that fails to render fails the node.
    pub(super) fn ask_about(
        &mut self,
        step: &StepId,
        cause: Seq,
        (kind, mut data): (InterruptKind, Value),
        about: &About,
        timeout_ms: Option<u64>,
    ) {
        if let Err(failure) = self.render_about(step, kind, about, &mut data) {
            return self.fail_node(step, cause, failure);
        }
        self.open_interrupt(step, cause, kind, data, timeout_ms);
    }

    /// Renders the texts that describe a gate. An artifact named by its node resolves to the artifact of the
    /// node's latest execution.
    fn render_about(
        &self,
        step: &StepId,
        kind: InterruptKind,
        about: &About,
        data: &mut Value,
    ) -> Result<(), Failure> {
        let Some(data) = data.as_object_mut() else {
            return Ok(());
        };
        for text in &about.templates {
            let rendered = self.render(&text.template)?;
            match rendered.trim() {
                "" => data.remove(text.name),
                rendered => data.insert(text.name.to_owned(), text.cut(rendered).into()),
            };
        }
        let named = data
            .get(ARTIFACT)
            .and_then(Value::as_str)
            .filter(|_| about.names_artifact)
            .and_then(|id| self.run.artifact(id));
        if let Some(artifact) = named {
            data.insert(ARTIFACT.to_owned(), artifact.id.clone().into());
        }
        // OpenWOP requires both in an approval, so the node's id replaces a text that renders empty.
        if kind == InterruptKind::Approval {
            for name in [TITLE, ARTIFACT] {
                data.entry(name).or_insert_with(|| step.node.as_str().into());
            }
        }
        Ok(())
    }

    fn open_interrupt(
        &mut self,
        step: &StepId,
        cause: Seq,
        kind: InterruptKind,
        data: Value,
        timeout_ms: Option<u64>,
    ) {
        let step = step.clone();
        let requested = self.record(
            Some(cause),
            Event::InterruptRequested {
                step: step.clone(),
                kind,
                data: data.clone(),
                timeout_ms,
            },
        );
        match kind {
            InterruptKind::Approval => {
                self.record(
                    Some(requested),
                    Event::ApprovalRequested {
                        step: step.clone(),
                        data,
                    },
                );
            }
            InterruptKind::Clarification => {
                let questions = data.get("questions").cloned().unwrap_or_default();
                self.record(
                    Some(requested),
                    Event::ClarificationRequested {
                        step: step.clone(),
                        questions,
                    },
                );
            }
            InterruptKind::ExternalEvent | InterruptKind::Custom => {}
        }
        let suspended = Event::NodeSuspended {
            step: step.clone(),
            interrupt: step.key(),
            kind,
            child: None,
        };
        self.record(Some(requested), suspended);
        if let Some(ms) = timeout_ms {
            self.timers_set
                .push((Timer::Interrupt(step), self.input.now.plus_millis(ms)));
        }
    }
}
