//! Opens interrupts, whose texts are rendered at that moment.

use serde_json::Value;

use wopr_kernel::{Seq, StepId};

use crate::{
    Failure, InterruptKind,
    node::{ARTIFACT, About, TITLE},
};

use super::Walk;

impl Walk<'_, '_> {
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
        self.interrupt(step, cause, (kind, data), timeout_ms);
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
}
