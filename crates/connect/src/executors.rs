//! All executors of this crate behind the engine's executor port.

use std::path::PathBuf;

use async_trait::async_trait;
use wopr_engine::{Attempt, Executor, Report, Request};

use crate::{egress::Gate, http::Http, side_effect::SideEffect};

/// Options of the executors other than the gate.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The file that records conformance side effects; `None` only counts them.
    pub ledger: Option<PathBuf>,
}

#[derive(Debug, Clone)]
pub struct Executors {
    http: Http,
    side_effect: SideEffect,
}

impl Executors {
    #[must_use]
    pub fn new(gate: Gate, options: Options) -> Self {
        Self {
            http: Http::new(gate),
            side_effect: SideEffect::new(options.ledger),
        }
    }

    /// Gives access to the count of executed conformance side effects.
    #[must_use]
    pub fn side_effect(&self) -> &SideEffect {
        &self.side_effect
    }
}

#[async_trait]
impl Executor for Executors {
    async fn run(&self, attempt: Attempt) -> Report {
        let Attempt {
            run,
            idempotency_key: key,
            traceparent,
            request,
            handle: _,
            keep,
        } = attempt;
        match request {
            Request::Http(call) => {
                let trace = traceparent.as_deref();
                self.http.call(&run.tenant, &key, trace, call, &keep).await.into()
            }
            Request::SideEffect { payload } => self.side_effect.perform(&run, &key, &payload).await.into(),
            // Only a worker knows how it is done.
            Request::Activity(_) => Report::Unchanged { check_after: None },
        }
    }
}
