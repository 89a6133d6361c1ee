//! Ends the attempts of activities whose leases keep ending without an outcome.
//!
//! Otherwise an activity that kills its workers would be handed out for ever. The store counts the lost leases of a
//! row, and leases a row that has lost too many to this host in place of a worker ([`wopr_store::LostOffer`]). Under
//! that lease the host records a failure. The node's retry policy decides whether another attempt follows, which has
//! lost no lease.
//!
//! The fence of the lease decides between the host, a worker that is late, and other hosts: one of them ends the
//! attempt. If the host dies before it has, the lease ends and the next look finds the row again. Nobody looks at a
//! queue in which no call waits, so there the attempt goes on until a worker calls.

use std::time::Instant;

use wopr_core::{Command, Failure};
use wopr_store::LostOffer;

use crate::{
    CommandError, Engine, SideRows, Throttles,
    logs::work_failed,
    panics::{Panicked, caught},
    stats::Counters,
    workers::{read, won},
};

/// The code of the failure.
const WORKER_LOST: &str = "worker_lost";

/// Lines a minute about activities of a tenant that fail because its workers went away.
static LOST: Throttles = Throttles::new(30);

impl Engine {
    /// Ends the attempts of rows that are leased to this host. Those for which that fails are found again when the
    /// leases end.
    pub(crate) async fn end_lost_activities(&self, rows: Vec<LostOffer>) {
        for row in rows {
            let run = row.leased.run.clone();
            if let Err(Panicked(text)) = caught(Box::pin(self.end_lost_activity(row))).await {
                Counters::add(&self.shared.counters.panics, 1);
                tracing::error!(%run, panic = text, "ending a lost activity panicked");
            }
        }
    }

    async fn end_lost_activity(&self, LostOffer { leased, n_lost }: LostOffer) {
        let lease = self.shared.options.workers.lease;
        let Some(lost) = read(leased, lease) else {
            return;
        };
        let failure = Failure {
            retryable: true,
            ..Failure::new(
                WORKER_LOST,
                format!("the leases of workers ended {n_lost} times in a row without an outcome"),
            )
        };
        let won = won(&lost.step, lost.attempt, lost.fence);
        let command = Command::Effect {
            step: lost.step.clone(),
            attempt: lost.attempt,
            outcome: Err(failure),
            retry_after_ms: None,
        };
        let (run, node, queue) = (&lost.run, &lost.step.node, &lost.activity.queue);
        let ended = Box::pin(self.command_fenced(run, None, &command, SideRows::default(), Some(won))).await;
        match ended {
            Ok(_) => {
                Counters::add(&self.shared.counters.activities_lost, 1);
                if let Some(left_out) = LOST.admit(&run.tenant, Instant::now()) {
                    tracing::warn!(
                        %run, %node, queue, attempt = lost.attempt, leases = n_lost, left_out,
                        "activity failed: too many leases ended without an outcome"
                    );
                }
            }
            // The attempt ended before the host could end it.
            Err(CommandError::Refused(_) | CommandError::NotFound) => {}
            Err(error) => work_failed("cannot end an activity that lost its leases", run, &error),
        }
    }
}
