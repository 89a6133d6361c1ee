//! Runs over REST.

use std::time::{Duration, Instant};

use rand::Rng as _;
use serde_json::json;

use super::Client;
use crate::chaos::{
    caller::Request,
    ledger::Decision,
    observe::{Begin, View, observe},
};

/// Tolerance when comparing two clocks, apart from jumps.
const DRIFT: Duration = Duration::from_millis(10);

impl Client {
    pub(super) async fn pure(&mut self, marker: &str) {
        if self.create("pure", marker, json!({})).await.is_some() && self.random.random_bool(0.1) {
            let body = json!({"workflowId": "pure", "inputs": {"marker": "another"}});
            let request = Request::post("/v1/runs", body).with("idempotency-key", marker);
            let answer = self.caller.ask(&request).await;
            self.expect(
                answer.status == 409,
                &format!("another body under the key {marker}"),
                &answer,
            );
        }
    }

    /// Checks that a delay does not end early.
    pub(super) async fn delay(&mut self, marker: &str) {
        let delay = Duration::from_millis(self.random.random_range(0..2_500));
        let since = Instant::now();
        let millis = u64::try_from(delay.as_millis()).expect("a delay is short");
        let Some(run) = self.create("delay", marker, json!({"delayMs": millis})).await else {
            return;
        };
        let seen = observe(&mut self.caller, View::Debug, Some(&run), Begin::Now).await;
        let Some(sighting) = seen else { return };
        if let Some(ended_at) = sighting.ended_at {
            let gained = self.world.clocks.gained_since(since);
            let took = ended_at.duration_since(since) + DRIFT;
            self.ledger().hold(took + gained >= delay, || {
                format!("run {run} waited {took:?} of {delay:?}, and no clock gained more than {gained:?}")
            });
        }
        self.ledger().saw(sighting);
    }

    pub(super) async fn approval(&mut self, marker: &str) {
        let Some(run) = self.create("approval", marker, json!({})).await else {
            return;
        };
        let answer = self.caller.ask(&Request::get(format!("/v1/runs/{run}"))).await;
        // All nodes before the gate are pure, so the append that created the run reached it.
        self.expect(
            answer.text("/status") == Some("waiting-approval"),
            &format!("run {run} just created"),
            &answer,
        );
        let gate = format!("/v1/runs/{run}/interrupts/gate");
        match self.random.random_range(0..10) {
            0..=2 => {}
            3..=5 => self.decide(&run, &gate, Decision::Accepted).await,
            6 | 7 => self.decide(&run, &gate, Decision::Rejected).await,
            _ => {
                let token = answer.text("/interrupt/interruptToken").map(str::to_owned);
                self.expect(token.is_some(), &format!("run {run} with a token"), &answer);
                let path = format!("/v1/interrupts/{}", token.unwrap_or_default());
                self.decide(&run, &path, Decision::Accepted).await;
            }
        }
    }

    async fn decide(&mut self, run: &str, path: &str, decision: Decision) {
        let request = decide(path, decision);
        let answer = self.caller.ask(&request).await;
        // There are no other deciders, so a decision is late only if it repeats itself.
        let is_expected = answer.status == 200 || !answer.is_first && matches!(answer.status, 404 | 409);
        self.expect(is_expected, &format!("{decision:?} of run {run}"), &answer);
        if is_expected {
            self.ledger().learned(run, |run| run.decision = decision);
        }
    }

    /// Accepts and rejects concurrently on any two replicas; exactly one must win.
    pub(super) async fn duel(&mut self, marker: &str) {
        let Some(run) = self.create("approval", marker, json!({})).await else {
            return;
        };
        let path = format!("/v1/runs/{run}/interrupts/gate");
        let (accept, reject) = (
            decide(&path, Decision::Accepted),
            decide(&path, Decision::Rejected),
        );
        let mut other = self.caller.another();
        let (accepted, rejected) = tokio::join!(other.ask(&accept), self.caller.ask(&reject));
        for (answer, what) in [(&accepted, "accept"), (&rejected, "reject")] {
            self.expect(
                matches!(answer.status, 200 | 404 | 409),
                &format!("{what} of run {run} in a duel"),
                answer,
            );
        }
        let won = (accepted.status == 200, rejected.status == 200);
        let are_first = accepted.is_first && rejected.is_first;
        self.expect(
            won != (true, true) && (won != (false, false) || !are_first),
            &format!("reject of run {run}, accept said {}, and", accepted.body),
            &rejected,
        );
        let decision = match won {
            (true, _) => Decision::Accepted,
            (false, true) => Decision::Rejected,
            // One of the two was lost and took effect.
            (false, false) => Decision::Either,
        };
        self.ledger().learned(&run, |run| run.decision = decision);
    }

    pub(super) async fn clarify(&mut self, marker: &str) {
        let Some(run) = self.create("clarify", marker, json!({})).await else {
            return;
        };
        let path = format!("/v1/runs/{run}/interrupts/ask");
        let answers =
            |colour: &str| json!({"resumeValue": {"answers": [{"id": "colour", "answer": colour}]}});
        if self.random.random_bool(0.1) {
            let answer = self
                .caller
                .ask(&Request::post(path.clone(), answers("green")))
                .await;
            self.expect(
                matches!(answer.status, 400 | 422),
                &format!("a wrong answer to run {run}"),
                &answer,
            );
        }
        if self.random.random_bool(0.7) {
            let answer = self.caller.ask(&Request::post(path, answers("blue"))).await;
            let is_expected = answer.status == 200 || !answer.is_first && matches!(answer.status, 404 | 409);
            self.expect(is_expected, &format!("the answer to run {run}"), &answer);
            if is_expected {
                self.ledger()
                    .learned(&run, |run| run.decision = Decision::Accepted);
            }
        }
    }

    pub(super) async fn parent(&mut self, marker: &str) {
        let inputs = json!({"delayMs": self.random.random_range(0..500)});
        self.create("parent", marker, inputs).await;
    }

    pub(super) async fn parent_gate(&mut self, marker: &str) {
        let Some(run) = self.create("parent-gate", marker, json!({})).await else {
            return;
        };
        if self.random.random_bool(0.4) {
            self.cancel_run(&run).await;
        }
    }

    pub(super) async fn effects(&mut self, marker: &str) {
        let inputs = json!({"url": format!("{}/{marker}", self.world.peer)});
        let Some(run) = self.create("effects", marker, inputs).await else {
            return;
        };
        // Polls events one at a time, since the peer is slow.
        let path = format!("/v1/runs/{run}/events/poll?lastSequence=1&timeout=1");
        self.caller.ask(&Request::get(path)).await;
    }

    pub(super) async fn cancel(&mut self, marker: &str) {
        let (workflow, inputs) = match self.random.random_range(0..3) {
            0 => ("approval", json!({})),
            1 => ("parent", json!({"delayMs": 3_600_000})),
            _ => ("delay", json!({"delayMs": 3_600_000})),
        };
        let Some(run) = self.create(workflow, marker, inputs).await else {
            return;
        };
        self.cancel_run(&run).await;
    }

    async fn cancel_run(&mut self, run: &str) {
        let request = Request::post(format!("/v1/runs/{run}/cancel"), json!({"reason": "test"}));
        let answer = self.caller.ask(&request).await;
        let status = answer.text("/status").unwrap_or_default();
        let is_expected = answer.status == 200 && matches!(status, "cancelling" | "cancelled");
        self.expect(is_expected, &format!("cancel of run {run}"), &answer);
        if is_expected {
            self.ledger().learned(run, |run| run.is_cancelled = true);
        }
    }

    /// Accepts and cancels concurrently; exactly one must win.
    pub(super) async fn race(&mut self, marker: &str) {
        let Some(run) = self.create("approval", marker, json!({})).await else {
            return;
        };
        let accept = decide(&format!("/v1/runs/{run}/interrupts/gate"), Decision::Accepted);
        let cancel = Request::post(format!("/v1/runs/{run}/cancel"), json!({}));
        let mut other = self.caller.another();
        let (accepted, cancelled) = tokio::join!(other.ask(&accept), self.caller.ask(&cancel));
        let won = cancelled.status == 200 && cancelled.text("/status") == Some("cancelled");
        self.expect(
            cancelled.status == 200,
            &format!("cancel of run {run} in a race"),
            &cancelled,
        );
        if accepted.is_first {
            self.expect(
                (accepted.status == 200) != won,
                &format!("accept of run {run}, cancel said {}, and", cancelled.body),
                &accepted,
            );
        }
        self.ledger().learned(&run, |run| {
            run.is_cancelled = won;
            run.decision = if won { Decision::None } else { Decision::Accepted };
        });
    }

    pub(super) async fn pause(&mut self, marker: &str) {
        let inputs = json!({"delayMs": self.random.random_range(0..400)});
        let Some(run) = self.create("delay", marker, inputs).await else {
            return;
        };
        let pause = Request::post(format!("/v1/runs/{run}:pause"), json!({"reason": "test"}));
        let answer = self.caller.ask(&pause).await;
        // The run may have ended, or an earlier pause may have taken effect.
        self.expect(
            matches!(answer.status, 202 | 409),
            &format!("pause of run {run}"),
            &answer,
        );
        let is_paused = answer.status == 202 || answer.text("/details/runStatus") == Some("paused");
        if is_paused && self.random.random_bool(0.7) {
            let resume = Request::post(format!("/v1/runs/{run}:resume"), json!({}));
            let answer = self.caller.ask(&resume).await;
            let is_expected = answer.status == 202 || !answer.is_first && answer.status == 409;
            self.expect(is_expected, &format!("resume of run {run}"), &answer);
        }
    }

    /// A longer run with several observers.
    pub(super) async fn stream(&mut self, marker: &str) {
        let inputs = json!({"delayMs": self.random.random_range(0..1_000)});
        let Some(run) = self.create("parent", marker, inputs).await else {
            return;
        };
        let observers = self.random.random_range(1..=3);
        self.watch(&run, observers).await;
    }
}

fn decide(path: &str, decision: Decision) -> Request {
    let action = if decision == Decision::Rejected {
        "reject"
    } else {
        "accept"
    };
    Request::post(path, json!({"resumeValue": {"action": action}}))
}
