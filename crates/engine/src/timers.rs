//! Fires timers: sends the commands of due timers to their runs.
//!
//! Firing twice is harmless, because the append ends the row and the kernel ignores timers that are over. The
//! lease is short and not renewed: if a process dies, another takes its timers over when the lease expires.
//!
//! A timer that fails to fire moves behind those that wait: it is released with a later due time or, if its
//! run is in backoff, stays leased. A timer whose run is locked waits concurrently with the others. So timers
//! that do not fire cannot starve those that do.

use std::time::Duration;

use wopr_core::{Command, RunKey, Timer};

use crate::{
    CommandError, Done, Engine, SideRows, View,
    load_budget::{LoadPermit, Purpose},
    logs::work_failed,
    pool::{End, Lease},
    stats::Counters,
    view::{Open, Sizes},
};

/// Maximum decisions that follow each other on the run in memory, if each stops at its limit. Other commands of the run
/// come in between.
const MAX_DECISIONS: u32 = 16;
/// Pause before a timer that could not be fired is retried.
const AFTER_TROUBLE_MS: u64 = 500;

impl Engine {
    pub(crate) async fn fire(&self, lease: &Lease) -> End {
        let Lease { run, key, since, .. } = lease;
        let firing = async {
            let command = Timer::parse(&key.name).map(Command::Timer);
            let command = command
                .ok_or_else(|| CommandError::Internal("the key of the timer is not understood".into()))?;
            self.fire_and_continue(run, command).await
        };
        match self.attend(run, Box::pin(firing)).await {
            Ok(()) => {
                Counters::add(&self.shared.counters.timers_fired, 1);
                End::Over
            }
            Err(error) => {
                work_failed("timer not fired", run, &error);
                if self.shared.run_backoff.is_left_alone(run) {
                    return End::Over;
                }
                // Not simply the time of day: if the clock is set back later, the timer would be that much
                // later.
                let (steady, _) = self.shared.lease_clock.lease(Duration::ZERO);
                let again = self.now().min((*since).max(steady));
                End::Release(again.plus_millis(AFTER_TROUBLE_MS))
            }
        }
    }

    /// Sends a timer to its run, and the `continue` timers that follow from it at once: a run that stops at its limit is
    /// not loaded again for every decision.
    async fn fire_and_continue(&self, run: &RunKey, command: Command) -> Result<(), CommandError> {
        let mut opened = None;
        let mut command = command;
        for number in 1..=MAX_DECISIONS {
            // A host that stops leaves the rest to its next start.
            let goes_on = number < MAX_DECISIONS && !self.shared.stop.is_cancelled();
            let side_rows = SideRows {
                continues: goes_on,
                ..SideRows::default()
            };
            let fired = self.command_fenced(run, opened.take(), &command, side_rows, None);
            let mut view = match Box::pin(fired).await {
                Ok(Done::Fresh(view)) => view,
                Ok(Done::Replayed(_)) => return Ok(()),
                Err(error) if number == 1 => return Err(error),
                // The timer of the decision before is still there, and says so if it fails again.
                Err(error) => {
                    tracing::debug!(%error, "run not continued at once");
                    return Ok(());
                }
            };
            let Some(Sizes {
                n_tail_bytes,
                n_run_bytes,
            }) = view.continues.take()
            else {
                return Ok(());
            };
            // The run has grown. If the budget has no room for it, it is loaded again, when there is.
            view.held = LoadPermit::default();
            let held = (self.shared.load_budget).try_hold(Purpose::Command, &run.tenant, n_run_bytes);
            opened = held.map(|held| Open {
                view: View { held, ..view },
                // What came meanwhile is heard afterwards.
                inbox: Vec::new(),
                is_inbox_cut: false,
                n_tail_bytes,
                n_run_bytes,
            });
            command = Command::Timer(Timer::Continue);
        }
        Ok(())
    }
}
