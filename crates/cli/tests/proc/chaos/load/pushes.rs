//! A2A tasks with push receivers.

use rand::Rng as _;

use super::Client;
use crate::chaos::{
    a2a::{self, Receiver, To, Version},
    caller::{Answer, Request},
    ledger::{Decision, Since, Subscription},
};

/// Attempts to get a state that a task reaches as soon as its child's message is processed.
const MOST_TRIES: u32 = 20;

impl Client {
    /// A task with a receiver from its first event on.
    pub(super) async fn push_along(&mut self, marker: &str) {
        let version = self.version();
        let (workflow, state) = if self.random.random_bool(0.5) {
            ("approval", "input-required")
        } else {
            ("pure", "completed")
        };
        let url = format!("{}/{marker}", self.world.receiver);
        let send = version.send_and_tell(marker, To::Workflow(workflow), receiver(marker, &url));
        let answer = self.caller.ask(&send).await;
        let Some(task) = self.found(version, &answer, state, marker) else {
            return;
        };
        self.ledger().acknowledged(marker, &task);
        self.ledger().learned(&task, |run| run.message = Some(send));
        self.subscribed(&task, marker, version, Since::Beginning);
        if state == "input-required" {
            self.settle(version, &task, marker, workflow).await;
        }
    }

    /// A task that waits, by itself or for its child, and then gets receivers in either version.
    pub(super) async fn push_later(&mut self, marker: &str) {
        let version = self.version();
        let workflow = if self.random.random_bool(0.7) {
            "approval"
        } else {
            "parent-gate"
        };
        let send = version.send(marker, To::Workflow(workflow));
        let answer = self.ask_for(&send, "input-required").await;
        let Some(task) = self.found(version, &answer, "input-required", marker) else {
            return;
        };
        self.ledger().acknowledged(marker, &task);
        self.ledger().learned(&task, |run| run.message = Some(send));
        for n in 0..self.random.random_range(1..=3) {
            let name = format!("{marker}-{n}");
            let url = format!("{}/{name}", self.world.receiver);
            let version = self.version();
            let answer = self.caller.ask(&version.tell(&task, receiver(&name, &url))).await;
            let shown = match version {
                Version::V03 => "/result/pushNotificationConfig/url",
                Version::V1 => "/result/url",
            };
            let is_expected = answer.status == 200 && answer.text(shown) == Some(&url);
            self.expect(is_expected, &format!("receiver {name} ({version:?})"), &answer);
            if is_expected {
                self.subscribed(&task, &name, version, Since::Question);
            }
        }
        self.settle(version, &task, marker, workflow).await;
    }

    /// Accepts the task, sometimes with another receiver, or cancels it, or leaves it to the final checks.
    async fn settle(&mut self, version: Version, task: &str, marker: &str, workflow: &str) {
        match self.random.random_range(0..10) {
            drawn @ 0..6 => {
                let name = format!("{marker}-reply");
                let url = format!("{}/{name}", self.world.receiver);
                let has_receiver = drawn < 3;
                let reply = match has_receiver {
                    true => version.send_and_tell(&name, To::Gate(task), receiver(&name, &url)),
                    false => version.send(&name, To::Gate(task)),
                };
                let answer = self.ask_for(&reply, "completed").await;
                if self.found(version, &answer, "completed", marker).is_some() {
                    self.ledger()
                        .learned(task, |run| run.decision = Decision::Accepted);
                    if has_receiver {
                        self.subscribed(task, &name, version, Since::Question);
                    }
                }
            }
            // Not for parents: they are cancelled only after their child, which takes a while.
            6..8 if workflow != "parent-gate" => self.cancel_task(version, task, marker).await,
            _ => {}
        }
    }

    /// Repeats a message until its task has this state: a host that is shutting down returns the task as it
    /// is.
    async fn ask_for(&mut self, message: &Request, state: &str) -> Answer {
        let mut answer = self.caller.ask(message).await;
        for _ in 1..MOST_TRIES {
            match a2a::task(&answer.body) {
                Some((_, found)) if found != state => answer = self.caller.ask(message).await,
                Some(_) | None => break,
            }
        }
        answer
    }

    fn subscribed(&self, task: &str, name: &str, version: Version, since: Since) {
        self.ledger().subscribed(Subscription {
            run: task.to_owned(),
            name: name.to_owned(),
            version,
            since,
        });
    }
}

fn receiver<'a>(name: &'a str, url: &'a str) -> Receiver<'a> {
    Receiver {
        id: name,
        url,
        secret: name,
    }
}
