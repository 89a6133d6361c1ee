//! Fires timers: sends the commands of due timers to their runs.
//!
//! Firing twice is harmless, because the append ends the row and the kernel ignores timers that are over. The
//! lease is short and not renewed: if a process dies, another takes its timers over when the lease expires.
//!
//! A timer that fails to fire moves behind those that wait: it is released with a later due time or, if its
//! run is in backoff, stays leased. A timer whose run is locked waits concurrently with the others. So timers
//! that do not fire cannot starve those that do.

use std::time::Duration;

use wopr_core::{Command, Timer};

use crate::{
    CommandError, Engine, SideRows,
    pool::{End, Lease},
    stats::Counters,
};

/// Pause before a timer that could not be fired is retried.
const AFTER_TROUBLE_MS: u64 = 500;

impl Engine {
    pub(crate) async fn fire(&self, lease: &Lease) -> End {
        let Lease { run, key, since, .. } = lease;
        let firing = async {
            let command = Timer::parse(&key.name).map(Command::Timer);
            let command = command
                .ok_or_else(|| CommandError::Internal("the key of the timer is not understood".into()))?;
            self.command_fenced(run, None, &command, SideRows::default(), None)
                .await
        };
        match self.attend(run, Box::pin(firing)).await {
            Ok(_) => {
                Counters::add(&self.shared.counters.timers_fired, 1);
                End::Over
            }
            Err(error) => {
                tracing::warn!(timer = key.name, %error, "timer not fired");
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
}
