//! Panics: where they are caught, and how the host goes on.
//!
//! A panic is a bug, and a bug in the work at one run must cost that run alone. A request that panics is answered by its
//! face. Work of the background loops is guarded here: a panic becomes an error that is logged and
//! counted, and the run is left alone for a while (see [`crate::run_backoff`]). A loop that panics itself begins anew.
//! What ends the process (a stack that overflows, memory that is not there) is not caught.

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

/// Pause before a loop that panicked begins anew.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// What was awaited panicked; this is what it said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Panicked(pub(crate) String);

impl Panicked {
    /// Reads what a panic left.
    pub(crate) fn of(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self(text.unwrap_or("without a word").to_owned())
    }
}

/// Awaits work in place; a panic ends it.
pub(crate) async fn caught<T>(mut work: impl Future<Output = T> + Unpin) -> Result<T, Panicked> {
    // Nothing looks at the work again after a panic.
    poll_fn(
        |context| match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut work).poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(payload) => Poll::Ready(Err(Panicked::of(&*payload))),
        },
    )
    .await
}

impl Engine {
    /// Works at a run on behalf of nobody who waits. If it panics, or what is stored of the run cannot be read, the
    /// run is left alone for a while.
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
                Err(CommandError::Internal(format!("it panicked: {text}")))
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
                | CommandError::TooManyReceivers { .. }
                | CommandError::Busy { .. }
                | CommandError::Unavailable(_),
            ) => {}
        }
        done
    }

    /// Runs a loop until it ends in order.
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
    async fn a_panic_is_caught_with_its_words() {
        assert_eq!(caught(Box::pin(async { 7 })).await, Ok(7));
        let text = "on purpose";
        let panicked = caught(Box::pin(async { panic!("{text}") })).await;
        assert_eq!(panicked.map(|(): ()| ()), Err(Panicked(text.to_owned())));
    }
}
