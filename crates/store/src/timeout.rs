//! Timeouts that tolerate a suspended process.

use std::{
    pin::{Pin, pin},
    time::Duration,
};

use tokio::time::timeout;

/// Number of slices that the time limit is divided into.
const SLICES: u32 = 4;

/// Waits for a future for about `limit`; `None` on timeout. The future is polled throughout, so it keeps its
/// place in a queue.
///
/// The limit is divided into slices. A process that was suspended for a while (by a signal, or with its
/// virtual machine) loses at most one slice, so that the future still has time to complete.
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
    async fn a_wait_returns_the_result_or_times_out() {
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
    async fn suspension_beyond_the_limit_does_not_time_out() {
        let (give, given) = oneshot::channel();
        let waiting = tokio::spawn(with_timeout(LONG, given));
        tokio::task::yield_now().await;
        // The whole limit passes before any task runs.
        advance(LONG * 2).await;
        tokio::task::yield_now().await;
        give.send(()).expect("somebody waits");
        assert_eq!(waiting.await.expect("no panic"), Some(Ok(())));
    }
}
