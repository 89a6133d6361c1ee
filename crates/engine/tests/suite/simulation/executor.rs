//! The executor of the simulation: attempts succeed, fail with or without retry, outlast their lease, and
//! panic.

use std::{panic::resume_unwind, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::json;
use wopr_engine::{Attempt, Executor, Outcome};

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
    async fn run(&self, attempt: Attempt) -> Outcome {
        // Effects of a dead or frozen process reach nobody.
        self.process.live().await;
        let (fate, odds) = (&self.fate, &self.fate.odds);
        let call = self
            .server
            .witness
            .begun(&attempt.idempotency_key, self.process.number);
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
            let retryable = !fate.once_in(4);
            return Outcome::Failed {
                code: "external_call_failed".into(),
                message: "simulated".into(),
                retryable,
                retry_after: None,
            };
        }
        Outcome::Done(json!({ "key": attempt.idempotency_key, "call": call }))
    }
}
