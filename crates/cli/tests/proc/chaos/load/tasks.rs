//! A2A tasks, in either version.

use rand::Rng as _;

use super::Client;
use crate::chaos::{
    a2a::{self, To, Version},
    caller::Answer,
    ledger::Decision,
    observe::{Begin, View, observe},
};

impl Client {
    pub(super) async fn task(&mut self, marker: &str) {
        let version = self.version();
        let send = version.send(marker, To::Workflow("pure"));
        let answer = self.caller.ask(&send).await;
        let Some(task) = self.found(version, &answer, "completed", marker) else {
            return;
        };
        self.ledger().acknowledged(marker, &task);
        self.ledger()
            .learned(&task, |run| run.message = Some(send.clone()));
        self.sent.push((send, task));
        if self.random.random_bool(0.3) {
            // Resends this message or an earlier one, whose host may have been killed since: it must return
            // the same task.
            let (send, task) = self.sent[self.random.random_range(0..self.sent.len())].clone();
            let answer = self.caller.ask(&send).await;
            let found = a2a::task(&answer.body).map(|(found, _)| found);
            self.expect(
                found == Some(task.clone()),
                &format!("the message of {task} again"),
                &answer,
            );
        }
    }

    pub(super) async fn task_approval(&mut self, marker: &str) {
        let version = self.version();
        let send = version.send(marker, To::Workflow("approval"));
        let answer = self.caller.ask(&send).await;
        let Some(task) = self.found(version, &answer, "input-required", marker) else {
            return;
        };
        self.ledger().acknowledged(marker, &task);
        self.ledger().learned(&task, |run| run.message = Some(send));
        if self.random.random_bool(0.7) {
            let reply = version.send(&format!("{marker}-reply"), To::Gate(&task));
            let answer = self.caller.ask(&reply).await;
            if self.found(version, &answer, "completed", marker).is_some() {
                self.ledger()
                    .learned(&task, |run| run.decision = Decision::Accepted);
            }
        }
    }

    /// A message with a streamed response, and observers of its task.
    pub(super) async fn task_stream(&mut self, marker: &str) {
        let version = self.version();
        let workflow = if self.random.random_bool(0.5) {
            "approval"
        } else {
            "pure"
        };
        let begin = Begin::Send(marker, workflow);
        let Some(sighting) = observe(&mut self.caller, View::Task(version), None, begin).await else {
            return;
        };
        let task = sighting.run.clone();
        self.ledger().acknowledged(marker, &task);
        let send = version.send(marker, To::Workflow(workflow));
        self.ledger().learned(&task, |run| run.message = Some(send));
        self.ledger().saw(sighting);
        if workflow == "approval" && self.random.random_bool(0.8) {
            let reply = version.send(&format!("{marker}-reply"), To::Gate(&task));
            let mut replier = self.caller.another();
            let (answer, ()) = tokio::join!(replier.ask(&reply), self.watch(&task, 2));
            if self.found(version, &answer, "completed", marker).is_some() {
                self.ledger()
                    .learned(&task, |run| run.decision = Decision::Accepted);
            }
        }
    }

    pub(super) async fn task_cancel(&mut self, marker: &str) {
        let version = self.version();
        let send = version.send(marker, To::Workflow("approval"));
        let answer = self.caller.ask(&send).await;
        let Some(task) = self.found(version, &answer, "input-required", marker) else {
            return;
        };
        self.ledger().acknowledged(marker, &task);
        self.ledger().learned(&task, |run| run.message = Some(send));
        self.cancel_task(version, &task, marker).await;
    }

    /// Cancels a waiting task.
    pub(super) async fn cancel_task(&mut self, version: Version, task: &str, marker: &str) {
        let answer = self.caller.ask(&version.cancel(task)).await;
        // A cancelled task cannot be cancelled again, not even by repeating the request.
        let is_refused = !answer.is_first && answer.body.pointer("/error/code") == Some(&(-32002).into());
        if is_refused || self.found(version, &answer, "canceled", marker).is_some() {
            self.ledger().learned(task, |run| run.is_cancelled = true);
        }
    }

    /// Checks that a response contains a task in this state, and returns its id.
    pub(super) fn found(
        &self,
        version: Version,
        answer: &Answer,
        state: &str,
        marker: &str,
    ) -> Option<String> {
        let found = a2a::task(&answer.body).filter(|(_, found)| answer.status == 200 && found == state);
        self.expect(
            found.is_some(),
            &format!("message {marker} ({version:?}, {state})"),
            answer,
        );
        found.map(|(task, _)| task)
    }
}
