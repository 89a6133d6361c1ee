//! What performs effects: it succeeds, fails for now or for good, takes longer than its lease, and panics.

use std::{panic::resume_unwind, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::json;
use wopr_engine::{Attempt, Executor, Outcome};

use super::{fate::Fate, process::Process, store::Server};

/// How long an attempt takes, if it is none of the slow ones.
const USUAL_MS: u64 = 1_500;
/// A peer that does not answer, within a time limit far beyond any lease.
const HANG: Duration = Duration::from_secs(25);

/// The executor of one process.
#[derive(Debug)]
pub(crate) struct Fickle {
    pub(crate) server: Arc<Server>,
    pub(crate) process: Arc<Process>,
    pub(crate) fate: Arc<Fate>,
}

#[async_trait]
impl Executor for Fickle {
    async fn run(&self, attempt: Attempt) -> Outcome {
        // What a dead process, or one that stands still, begins reaches nobody.
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
            // Without the hook that would print it.
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
