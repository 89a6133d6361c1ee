//! The executor of the simulation: attempts succeed, fail with or without retry, outlast their lease, panic,
//! and are left with their peer, which goes on for a while, asks, may cancel, and may not listen when it is told
//! something.

use std::{panic::resume_unwind, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::json;
use wopr_engine::{
    Answered, Answering, Attempt, CancelError, Cancellation, Executor, Outcome, Recalled, Recalling, Report,
};

use super::{fate::Fate, process::Process, questions::question, store::Server, witness::call_of};

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

impl Fickle {
    /// A moment at which a process may die although nothing goes to the store.
    async fn may_die(&self) {
        if self.fate.strikes(self.fate.odds.tells_and_dies) {
            self.fate
                .tell(|| format!("p{} dies as it tells", self.process.number));
            self.process.die();
        }
        self.process.live().await;
    }

    /// What the peer of a call asks, if it does: what it asked before, unless it has gone on, or something new.
    fn asks(&self, attempt: &Attempt, call: usize) -> Option<Report> {
        let (fate, witness) = (&self.fate, &self.server.witness);
        let key = &attempt.idempotency_key;
        let mut asks = witness.open_question(key);
        if asks.is_some() && fate.once_in(5) {
            fate.tell(|| format!("the peer of {} goes on by itself", attempt.run));
            witness.goes_on(key);
            asks = None;
        } else if asks.is_none() && fate.strikes(fate.odds.attempt_asks) {
            asks = Some(witness.asks(key));
        }
        let number = asks?;
        let task = attempt
            .handle
            .as_ref()
            .and_then(|handle| handle.get("task").cloned());
        Some(Report::Interrupted {
            handle: json!({ "task": task.unwrap_or_else(|| json!(call)), "asks": number }),
            question: question(number),
            check_after: Some(Duration::from_millis(fate.below(USUAL_MS))),
        })
    }
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
        if attempt.handle.is_none() && !fate.cuts_calls {
            // The peer has the message, whatever becomes of this process and its answer.
            self.server.witness.takes(
                &attempt.run,
                &attempt.step,
                attempt.attempt,
                &attempt.idempotency_key,
            );
        }
        if attempt.handle.is_none() {
            self.may_die().await;
        }
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
            // The peer goes on if only its answer was lost.
            let may_go_on = attempt.handle.is_none() && fate.once_in(2);
            if !may_go_on {
                self.server.witness.ends(&attempt.idempotency_key);
            }
            return Report::Ended(Outcome::Failed {
                code: "external_call_failed".into(),
                message: "simulated".into(),
                retryable,
                retry_after: None,
                may_go_on,
                is_timeout: false,
            });
        }
        if let Some(asking) = self.asks(&attempt, call) {
            self.may_die().await;
            return asking;
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
        self.server.witness.ends(&attempt.idempotency_key);
        Outcome::Done(json!({ "key": attempt.idempotency_key, "call": call })).into()
    }

    async fn answer(&self, answer: Answering) -> Result<Answered, CancelError> {
        self.process.live().await;
        let (fate, witness) = (&self.fate, &self.server.witness);
        fate.linger(USUAL_MS).await;
        self.may_die().await;
        if fate.strikes(fate.odds.attempt_fails) {
            return Err(CancelError::new("simulated".to_owned()));
        }
        if fate.strikes(fate.odds.attempt_panics) {
            resume_unwind(Box::new("simulated"));
        }
        fate.tell(|| {
            format!(
                "p{} answers {} of {}",
                self.process.number, answer.interrupt, answer.run
            )
        });
        let is_wanted = witness.answers(&answer);
        self.may_die().await;
        if is_wanted && fate.strikes(fate.odds.answer_ends) {
            witness.ends(call_of(&answer.idempotency_key));
            return Ok(Answered::Ended(Outcome::Done(json!({ "answered": true }))));
        }
        match fate.strikes(fate.odds.attempt_fails) {
            // The peer has it all the same.
            true => Err(CancelError::new("simulated".to_owned())),
            false => Ok(Answered::Taken),
        }
    }

    fn may_go_on(&self, _provider: &str) -> bool {
        !self.fate.cuts_calls
    }

    async fn recall(&self, call: Recalling) -> Result<Recalled, CancelError> {
        self.process.live().await;
        let (fate, witness) = (&self.fate, &self.server.witness);
        fate.linger(USUAL_MS).await;
        self.may_die().await;
        if fate.strikes(fate.odds.attempt_fails) {
            return Err(CancelError::new("simulated".to_owned()));
        }
        if fate.strikes(fate.odds.attempt_panics) {
            resume_unwind(Box::new("simulated"));
        }
        let found = witness.recalls(&call.idempotency_key);
        fate.tell(|| {
            format!(
                "p{} recalls a call for {}: {found}",
                self.process.number, call.run
            )
        });
        self.may_die().await;
        Ok(match found {
            true => Recalled::Found(json!({ "task": "recalled" })),
            false => Recalled::Nothing,
        })
    }

    async fn cancel(&self, call: Cancellation) -> Result<(), CancelError> {
        self.process.live().await;
        self.may_die().await;
        let Self { process, fate, .. } = self;
        let told = &self.server.witness;
        told.told(&call.idempotency_key, &call.handle);
        fate.tell(|| format!("p{} cancels {} for {}", process.number, call.handle, call.run));
        fate.linger(USUAL_MS).await;
        self.may_die().await;
        match fate.strikes(fate.odds.attempt_fails) {
            true => Err(CancelError::new("simulated".to_owned())),
            false => Ok(()),
        }
    }
}
