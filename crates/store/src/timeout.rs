//! Waiting for a bounded time, in a process that may be stopped meanwhile.

use std::{
    pin::{Pin, pin},
    time::Duration,
};

use tokio::time::timeout;

/// Slices of a wait.
const SLICES: u32 = 4;

/// Waits for something for about so long; `None` if it did not come. Where the wait is a place in a queue, it is kept.
///
/// The time goes by in slices: a process that was stopped for a while (by a signal, or with its virtual machine) finds one of
/// them over and not all, so that what waited meanwhile still has its turn.
pub async fn with_timeout<T>(limit: Duration, wait: impl Future<Output = T>) -> Option<T> {
    let mut wait: Pin<&mut _> = pin!(wait);
    for _ in 0..SLICES {
        if let Ok(done) = timeout(limit / SLICES, &mut wait).await {
            return Some(done);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::{
        sync::oneshot,
        time::{Instant, advance},
    };

    use super::*;

    const LONG: Duration = Duration::from_secs(4);

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_with_what_it_is_for_or_in_time() {
        let begun = Instant::now();
        assert_eq!(with_timeout(LONG, async { 7 }).await, Some(7));
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(with_timeout(LONG, pending::<()>()).await, None);
        assert!(
            (LONG..LONG + LONG / 4).contains(&begun.elapsed()),
            "{:?}",
            begun.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_stopped_for_longer_still_has_its_turn() {
        let (give, given) = oneshot::channel();
        let waiting = tokio::spawn(with_timeout(LONG, given));
        tokio::task::yield_now().await;
        // All of the time has gone by before anybody could do anything.
        advance(LONG * 2).await;
        tokio::task::yield_now().await;
        give.send(()).expect("somebody waits");
        assert_eq!(waiting.await.expect("no panic"), Some(Ok(())));
    }
}
