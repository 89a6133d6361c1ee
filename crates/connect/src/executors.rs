//! Every executor of this crate behind the engine's one port.

use std::path::PathBuf;

use async_trait::async_trait;
use wopr_engine::{Attempt, Executor, Outcome, Request};

use crate::{egress::Gate, http::Http, side_effect::SideEffect};

/// What the executors need beyond the gate.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Where conformance side effects are recorded.
    pub ledger: Option<PathBuf>,
}

/// Dispatches an attempt by what its request is.
#[derive(Debug, Clone)]
pub struct Executors {
    http: Http,
    side_effect: SideEffect,
}

impl Executors {
    /// Builds them all on one gate.
    #[must_use]
    pub fn new(gate: Gate, options: Options) -> Self {
        Self {
            http: Http::new(gate),
            side_effect: SideEffect::new(options.ledger),
        }
    }

    /// The executor of conformance side effects, for its count.
    #[must_use]
    pub fn side_effect(&self) -> &SideEffect {
        &self.side_effect
    }
}

#[async_trait]
impl Executor for Executors {
    async fn run(&self, attempt: Attempt) -> Outcome {
        let Attempt {
            run,
            idempotency_key: key,
            traceparent,
            request,
            keep,
        } = attempt;
        match request {
            Request::Http(call) => {
                let trace = traceparent.as_deref();
                self.http.call(&run.tenant, &key, trace, call, &keep).await
            }
            Request::SideEffect { payload } => self.side_effect.perform(&run, &key, &payload).await,
        }
    }
}
