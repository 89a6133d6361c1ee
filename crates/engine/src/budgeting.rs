//! Holds calls to models against the budgets that their runs share, before they are made.
//!
//! What is found is the outcome of the call: the run decides by it what to do, and its log has it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use wopr_core::{ModelCall, RunKey, TenantId, Timestamp};
use wopr_store::{ReadError, Spenders, Store};

use crate::{
    Answered, Answering, Attempt, CancelError, Cancellation, Clock, Estimate, Executor, Outcome, Recalled,
    Recalling, Report, Request, ScriptedModel,
    budgets::{Budgets, Reservation, Room},
    logs::store_failed,
    waiting::Waiting,
};

/// After how long the first call of a tenant looks again that waits for others, or any for the store.
const LATER: Duration = Duration::from_millis(500);
/// More counts than a tenant and a workflow can have in current windows.
const MOST_ROWS: usize = 64;

/// Looks at the budgets, and leaves calls to others.
#[derive(Debug)]
pub(crate) struct Budgeting {
    others: Arc<dyn Executor>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    budgets: Arc<Budgets>,
    waiting: Waiting<TenantId>,
}

impl Budgeting {
    pub(crate) fn new(
        others: Arc<dyn Executor>,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        budgets: Arc<Budgets>,
        waiting: Waiting<TenantId>,
    ) -> Self {
        Self {
            others,
            store,
            clock,
            budgets,
            waiting,
        }
    }

    /// Whether a call has room. If it has, others count with it until the reservation is dropped.
    async fn look(&self, run: &RunKey, call: &ModelCall) -> Result<(Room, Option<Reservation>), ReadError> {
        let tenant = &run.tenant;
        let workflow = match self.budgets.bounds(tenant) {
            (false, _) => return Ok((Room::Yes, None)),
            (true, false) => None,
            (true, true) => match self.store.summary(run).await? {
                Some((summary, _)) => Some(summary.workflow),
                // It was removed, and nobody will hear the answer.
                None => None,
            },
        };
        let estimate = self.others.estimate(tenant, call);
        let reservation = self.budgets.reserve(tenant, workflow.as_ref(), estimate);
        let now: Timestamp = self.clock.now();
        let of = match &workflow {
            None => Spenders::Tenant(tenant),
            Some(workflow) => Spenders::Workflow(tenant, workflow),
        };
        let spent = self.store.spent(of, now, MOST_ROWS).await?;
        let spent: Vec<_> = spent.into_iter().map(|(_, row)| row).collect();
        let of = (tenant, workflow.as_ref());
        let room = self.budgets.look(of, &call.granted, (&spent, &reservation), now);
        Ok((room, Some(reservation)))
    }
}

#[async_trait]
impl Executor for Budgeting {
    async fn run(&self, attempt: Attempt) -> Report {
        let Request::Model(call) = &attempt.request else {
            return self.others.run(attempt).await;
        };
        let (tenant, id) = (&attempt.run.tenant, &attempt.idempotency_key);
        match self.look(&attempt.run, call).await {
            // No budget bounds the tenant.
            Ok((Room::Yes, None)) => self.others.run(attempt).await,
            Ok((Room::Yes, reservation)) => {
                attempt
                    .keep
                    .until_recorded(self.waiting.decided(tenant, id, reservation));
                // There may be room for more.
                self.waiting.wake_first(tenant);
                self.others.run(attempt).await
            }
            Ok((Room::Later, _)) => {
                let call = (id.as_str(), &attempt.wake);
                let again = self.waiting.join(tenant, call, LATER, self.clock.now());
                Report::Unchanged {
                    check_after: Some(again),
                }
            }
            Ok((Room::No(over), _)) => {
                attempt
                    .keep
                    .until_recorded(self.waiting.decided(tenant, id, None::<Reservation>));
                Outcome::Done(over.outcome().into()).into()
            }
            // Without the counts nobody knows whether it may be asked.
            Err(error) => {
                store_failed("cannot read what was spent", &error);
                Report::Unchanged {
                    check_after: Some(LATER),
                }
            }
        }
    }

    async fn answer(&self, answer: Answering) -> Result<Answered, CancelError> {
        self.others.answer(answer).await
    }

    fn may_go_on(&self, provider: &str) -> bool {
        self.others.may_go_on(provider)
    }

    fn estimate(&self, tenant: &TenantId, call: &ModelCall) -> Estimate {
        self.others.estimate(tenant, call)
    }

    fn scripted_model(&self) -> Option<&dyn ScriptedModel> {
        self.others.scripted_model()
    }

    async fn recall(&self, call: Recalling) -> Result<Recalled, CancelError> {
        self.others.recall(call).await
    }

    async fn cancel(&self, call: Cancellation) -> Result<(), CancelError> {
        self.others.cancel(call).await
    }
}
