//! The verdict of a store on itself, however many ask for it.
//!
//! One probe runs at a time and at most one begins per second; others share its result. A probe has five seconds.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use crate::{Cause, WriteError, with_timeout};

/// How long a result is reused, from when its probe was requested.
const FRESH: Duration = Duration::from_secs(1);

/// How long to wait for a result. A statement that needs a lock of SQLite gives up after two seconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The result of the last probe.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<Answer>>);

#[derive(Debug)]
struct Answer {
    asked: Instant,
    came: Instant,
    /// The cause if the probe failed.
    said: Result<(), Cause>,
}

impl Readiness {
    /// Checks that the database accepts writes, by this probe or the result of a recent one.
    pub(crate) async fn ask(
        &self,
        probe: impl Future<Output = Result<(), WriteError>>,
    ) -> Result<(), WriteError> {
        let since = Instant::now();
        let mut last = self.0.lock().await;
        if let Some(Answer { asked, came, said }) = &*last
            && (*came >= since || asked.elapsed() < FRESH)
        {
            return said.clone().map_err(WriteError::Unavailable);
        }
        let said = match with_timeout(TIMEOUT, probe).await {
            Some(said) => said.map_err(|error| match error {
                WriteError::Unavailable(why) | WriteError::Corrupt(why) => why,
            }),
            None => Err("the database does not answer".into()),
        };
        *last = Some(Answer {
            asked: since,
            came: Instant::now(),
            said: said.clone(),
        });
        said.map_err(WriteError::Unavailable)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_probe_answers_all_who_ask() {
        let readiness = Readiness::default();
        let n_probes = AtomicUsize::new(0);
        let ask = || {
            readiness.ask(async {
                n_probes.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        };
        let asked = futures_util::future::join_all((0..100).map(|_| ask())).await;
        assert!(asked.iter().all(Result::is_ok));
        assert_eq!(n_probes.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_that_is_silent_is_not_ready() {
        let readiness = Readiness::default();
        let begun = tokio::time::Instant::now();
        let said = readiness.ask(std::future::pending()).await;
        assert!(matches!(said, Err(WriteError::Unavailable(_))), "{said:?}");
        assert_eq!(begun.elapsed(), TIMEOUT);
    }
}
