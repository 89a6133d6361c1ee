//! The executor of the simulation: attempts succeed, fail with or without retry, outlast their lease, panic,
//! and are left with their peer, which goes on for a while, may cancel, and may not listen when it is told to stop.

use std::{panic::resume_unwind, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::json;
use wopr_engine::{Attempt, CancelError, Cancellation, Executor, Outcome, Report};

use super::{fate::Fate, process::Process, store::Server};

/// Maximum duration of an ordinary attempt.
const USUAL_MS: u64 = 1_500;
/// Duration of an attempt at an unresponsive peer, whose time limit is far beyond any lease.
const HANG: Duration = Duration::from_secs(25);

#[derive(Debug)]
pub(crate) struct Fickle {
    pub(crate) server: Arc<Server>,
    pub(crate) process: Arc<Process>,
    pub(crate) fate: Arc<Fate>,
}

#[async_trait]
impl Executor for Fickle {
    async fn run(&self, attempt: Attempt) -> Report {
        // Effects of a dead or frozen process reach nobody.
        self.process.live().await;
        let (fate, odds) = (&self.fate, &self.fate.odds);
        let call = self.server.witness.begun(
            &attempt.idempotency_key,
            attempt.handle.as_ref(),
            self.process.number,
        );
        fate.tell(|| format!("p{} makes call {call} for {}", self.process.number, attempt.run));
        fate.linger(USUAL_MS).await;
        if fate.strikes(odds.attempt_hangs) {
            tokio::time::sleep(HANG).await; // sleep: virtual time
        }
        self.process.live().await;
        if fate.strikes(odds.attempt_panics) {
            // Bypasses the panic hook, which would print it.
            resume_unwind(Box::new("simulated"));
        }
        if fate.strikes(odds.attempt_fails) {
            if let Some(handle) = attempt.handle.as_ref().filter(|_| fate.once_in(4)) {
                // This peer need not be told.
                self.server.witness.told(&attempt.idempotency_key, handle);
                return Report::Ended(Outcome::Cancelled {
                    reason: "by its peer".to_owned(),
                });
            }
            let retryable = !fate.once_in(4);
            return Report::Ended(Outcome::Failed {
                code: "external_call_failed".into(),
                message: "simulated".into(),
                retryable,
                retry_after: None,
            });
        }
        if fate.strikes(odds.attempt_accepted) {
            let check_after = Some(Duration::from_millis(fate.below(USUAL_MS)));
            return match attempt.handle {
                None => Report::Accepted {
                    handle: json!({ "task": call }),
                    check_after,
                },
                // A peer may give the task another name while it works.
                Some(_) if fate.once_in(4) => Report::Accepted {
                    handle: json!({ "task": call }),
                    check_after,
                },
                Some(_) => Report::Unchanged { check_after },
            };
        }
        Outcome::Done(json!({ "key": attempt.idempotency_key, "call": call })).into()
    }

    async fn cancel(&self, call: Cancellation) -> Result<(), CancelError> {
        self.process.live().await;
        let Self { process, fate, .. } = self;
        let told = &self.server.witness;
        told.told(&call.idempotency_key, &call.handle);
        fate.tell(|| format!("p{} cancels {} for {}", process.number, call.handle, call.run));
        fate.linger(USUAL_MS).await;
        self.process.live().await;
        match fate.strikes(fate.odds.attempt_fails) {
            true => Err(CancelError("simulated".to_owned())),
            false => Ok(()),
        }
    }
}
