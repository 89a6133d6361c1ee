//! Asking: opening interrupts, with texts that are rendered when the question is put.

use serde_json::Value;

use crate::{
    Event, Failure, InterruptKind, Seq, Timer, Visit,
    node::{ARTIFACT, About, TITLE},
};

use super::Scribe;

impl Scribe<'_> {
    /// Opens an interrupt whose texts are rendered now; a text that cannot be fails the node.
    pub(super) fn ask_about(
        &mut self,
        visit: &Visit,
        cause: Seq,
        (kind, mut data): (InterruptKind, Value),
        about: &About,
        timeout_ms: Option<u64>,
    ) {
        if let Err(failure) = self.render_about(visit, kind, about, &mut data) {
            return self.fail_node(visit, cause, failure);
        }
        self.open_interrupt(visit, cause, kind, data, timeout_ms);
    }

    /// Renders what a gate is about. An artifact named by its node is the one of the node's latest visit.
    fn render_about(
        &self,
        visit: &Visit,
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
        // OpenWOP requires both of an approval, so the node stands in for a text that is empty once rendered.
        if kind == InterruptKind::Approval {
            for name in [TITLE, ARTIFACT] {
                data.entry(name).or_insert_with(|| visit.node.as_str().into());
            }
        }
        Ok(())
    }

    fn open_interrupt(
        &mut self,
        visit: &Visit,
        cause: Seq,
        kind: InterruptKind,
        data: Value,
        timeout_ms: Option<u64>,
    ) {
        let visit = visit.clone();
        let requested = self.record(
            Some(cause),
            Event::InterruptRequested {
                visit: visit.clone(),
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
                        visit: visit.clone(),
                        data,
                    },
                );
            }
            InterruptKind::Clarification => {
                let questions = data.get("questions").cloned().unwrap_or_default();
                self.record(
                    Some(requested),
                    Event::ClarificationRequested {
                        visit: visit.clone(),
                        questions,
                    },
                );
            }
            InterruptKind::ExternalEvent | InterruptKind::Custom => {}
        }
        let suspended = Event::NodeSuspended {
            visit: visit.clone(),
            interrupt: visit.key(),
            kind,
            child: None,
        };
        self.record(Some(requested), suspended);
        if let Some(ms) = timeout_ms {
            self.timers_set
                .push((Timer::Interrupt(visit), self.input.now.plus_millis(ms)));
        }
    }
}
