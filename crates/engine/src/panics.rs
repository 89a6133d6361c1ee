//! Catches panics of background work and restarts loops.
//!
//! A panic is a bug, and it must cost only the run it happens in. Panics in requests are handled by the
//! server. Panics in background work are caught here and become errors that are logged and counted, and the
//! run is paused (see [`crate::run_backoff`]). A loop that panics itself is restarted. Stack overflow and
//! memory exhaustion end the process and are not caught.

use std::{
    any::Any,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use wopr_core::RunKey;

use crate::{CommandError, Engine, stats::Counters};

/// Pause before a loop that panicked is restarted.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// The future panicked; holds the panic message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Panicked(pub(crate) String);

impl Panicked {
    /// Reads the message of a panic payload.
    pub(crate) fn of(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self(text.unwrap_or("without a word").to_owned())
    }
}

/// Awaits a future in place and catches its panic.
pub(crate) async fn caught<T>(mut work: impl Future<Output = T> + Unpin) -> Result<T, Panicked> {
    // Unwind safe: the future is not polled again after a panic.
    poll_fn(
        |context| match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut work).poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(payload) => Poll::Ready(Err(Panicked::of(&*payload))),
        },
    )
    .await
}

impl Engine {
    /// Does background work on a run. If it panics, or the stored run cannot be read, the run is paused (see
    /// [`crate::run_backoff`]).
    pub(crate) async fn attend<T>(
        &self,
        run: &RunKey,
        work: impl Future<Output = Result<T, CommandError>> + Unpin,
    ) -> Result<T, CommandError> {
        let mut has_panicked = false;
        let done = match caught(work).await {
            Ok(done) => done,
            Err(Panicked(text)) => {
                has_panicked = true;
                Counters::add(&self.shared.counters.panics, 1);
                Err(CommandError::Internal(format!("it panicked: {text}").into()))
            }
        };
        match &done {
            Ok(_) => self.shared.run_backoff.forget(run),
            Err(error @ CommandError::Internal(why)) => {
                let (pause, in_a_row) = self.shared.run_backoff.add(run);
                tracing::error!(%why, ?pause, "run left alone for a while");
                if !has_panicked {
                    self.give_up(run, error, in_a_row).await;
                }
            }
            Err(
                CommandError::NotFound
                | CommandError::Refused(_)
                | CommandError::KeyReused
                | CommandError::AliasTaken
                | CommandError::TooManyReceivers { .. }
                | CommandError::Busy { .. }
                | CommandError::Unavailable(_),
            ) => {}
        }
        done
    }

    /// Runs a loop until it returns, restarting it after panics.
    pub(crate) async fn keep<F>(self, what: &'static str, looping: impl Fn(Self) -> F)
    where
        F: Future<Output = ()>,
    {
        if self.shared.stop.is_cancelled() {
            return;
        }
        while let Err(Panicked(text)) = caught(Box::pin(looping(self.clone()))).await {
            Counters::add(&self.shared.counters.panics, 1);
            tracing::error!(what, panic = text, "loop panicked and begins anew");
            if self.paused_for(AFTER_PANIC).await {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_caught_with_its_message() {
        assert_eq!(caught(Box::pin(async { 7 })).await, Ok(7));
        let text = "on purpose";
        let panicked = caught(Box::pin(async { panic!("{text}") })).await;
        assert_eq!(panicked.map(|(): ()| ()), Err(Panicked(text.to_owned())));
    }
}
