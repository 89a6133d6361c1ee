//! Quarantine of runs that processes died while working on, and of runs whose rows cannot be read.
//!
//! The store counts the deaths of processes that held a row, and stops handing the row out after three. What
//! remains is to record that in the run's log. This needs only the summary, not the run or its workflow:
//! reading what killed three processes might kill a fourth.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use wopr_core::{DrainPolicy, Event, Given, KernelEvent, Recorded, RunKey, RunStatus, Seq, format};
use wopr_store::{AppendError, Batch, Guard, Hold, LAST_CHANCE, StoredEvent};

use crate::{CommandError, Engine, Options, logs::store_failed, stats::Counters};

/// The pause reason of a run in quarantine.
pub const QUARANTINED: &str = "quarantined";

/// How often a process reports that it is alive.
const BEAT: Duration = Duration::from_secs(1);
/// Silence after which a process counts as dead. Shorter than the default lease, so that a death is counted
/// before another process takes over the lease.
const SILENCE: Duration = Duration::from_secs(3);
/// A run that was cancelled before it started has this many events at most.
const FIRST_EVENTS: u64 = 8;
/// Runs quarantined in one round.
const PAGE: usize = 256;
/// Tries to append against other writers.
const TRIES: usize = 8;

/// Limits how many suspect rows, which have one chance left, are held at once.
#[derive(Debug)]
pub(crate) struct Suspects(Arc<Semaphore>);

impl Suspects {
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Semaphore::new(most)))
    }

    /// How many more suspects may be held.
    pub(crate) fn free(&self) -> usize {
        self.0.available_permits()
    }

    /// Takes a permit if the row is a suspect.
    pub(crate) fn begin(&self, deaths: u32) -> Option<OwnedSemaphorePermit> {
        (deaths >= LAST_CHANCE)
            .then(|| Arc::clone(&self.0).try_acquire_owned().ok())
            .flatten()
    }
}

/// The silence after which a process counts as dead.
pub(crate) fn silence(options: &Options) -> Duration {
    SILENCE.min(options.lease / 2)
}

impl Engine {
    /// Reports that this process is alive, detects dead processes, and quarantines runs at which too many
    /// died.
    pub(crate) async fn run_quarantine(self) {
        let shared = &self.shared;
        let silence = silence(&shared.options);
        let mut is_news = true;
        let (mut last, mut counts_from) = (Instant::now(), None);
        loop {
            if is_news {
                is_news = !self.quarantine_all().await;
            }
            if self.paused_for(BEAT.min(silence / 3)).await {
                return;
            }
            let counts = counts_from.is_none_or(|from| Instant::now() >= from);
            let beaten = shared.store.beat(shared.epoch, counts.then_some(silence)).await;
            if last.elapsed() > silence / 2 {
                // The store may have been away from all, and others need their time to come back, too.
                counts_from = Some(Instant::now() + silence * 2);
            }
            if beaten.is_ok() {
                last = Instant::now();
            }
            match beaten {
                Ok(false) => {}
                Ok(true) => {
                    tracing::warn!("another process died");
                    is_news = true;
                    shared.inboxes.recover();
                    shared.outboxes.recover();
                }
                Err(error) => tracing::debug!(%error, "cannot say that this process lives"),
            }
        }
    }

    /// Quarantines the runs with quarantined rows. Returns `false` if it has to be tried again.
    async fn quarantine_all(&self) -> bool {
        let runs = match self.shared.store.quarantined(PAGE).await {
            Ok(runs) => runs,
            Err(error) => {
                store_failed("cannot read which runs are to be quarantined", &error);
                return false;
            }
        };
        let mut is_all = runs.len() < PAGE;
        for run in runs {
            is_all &= self.quarantine(&run, "processes died while it was in hand").await;
        }
        is_all
    }

    /// Pauses a run until it is resumed, without reading it. Returns `false` if it has to be tried again.
    pub(crate) async fn quarantine(&self, run: &RunKey, why: &str) -> bool {
        let _lock = self.shared.locks.hold(run).await;
        for _ in 0..TRIES {
            match self.quarantine_once(run).await {
                Ok(()) => {
                    Counters::add(&self.shared.counters.runs_quarantined, 1);
                    tracing::error!(%run, why, "run quarantined");
                    return true;
                }
                Err(AppendError::Conflict { actual: Some(_), .. } | AppendError::Unknown(_)) => {}
                // The run is being removed.
                Err(AppendError::Conflict { actual: None, .. }) => return true,
                Err(error) => {
                    store_failed("run not quarantined yet", &error);
                    return false;
                }
            }
        }
        false
    }

    async fn quarantine_once(&self, run: &RunKey) -> Result<(), AppendError> {
        let shared = &self.shared;
        let Some((summary, head)) = shared.store.summary(run).await? else {
            return Err(AppendError::Conflict {
                expected: Seq(0),
                actual: None,
            });
        };
        let ended = summary.status.is_terminal();
        let is_silent = ended || summary.status == RunStatus::Paused;
        let now = self.now().max(summary.updated_at);
        let mut batch = if is_silent {
            Batch::new(run.clone(), Guard::At(head), Vec::new(), summary)
        } else {
            // A run that is being cancelled continues to cancel once it is resumed.
            let status = match summary.status == RunStatus::Cancelling {
                true => RunStatus::Cancelling,
                false => RunStatus::Paused,
            };
            let paused = Recorded {
                is_untrusted: false,
                given: Some(Box::new(Given::Pause)),
                seq: head,
                at: now,
                cause: None,
                event: KernelEvent::RunPaused {
                    reason: Some(QUARANTINED.to_owned()),
                    drain: DrainPolicy::default(),
                    cut: Vec::new(),
                }
                .into(),
            };
            let mark = URL_SAFE_NO_PAD.encode(shared.entropy_source.roll::<9>());
            let event = StoredEvent {
                seq: head,
                body: format::encode_first_event(&paused, &mark),
            };
            let summary = summary.after(status, None, None, now);
            Batch::new(run.clone(), Guard::At(head), vec![event], summary)
        };
        // Only its start names the parent of a run that was cancelled before it started, so it has to be heard.
        let is_awaited = ended && head.0 <= FIRST_EVENTS && !self.has_started(run).await;
        batch.hold = Some(if is_awaited {
            Hold::Release
        } else {
            Hold::Quarantine
        });
        let head = batch.head();
        // The run was not read, so there is nothing to cache.
        let _change = shared.recent_runs.change(run);
        shared.store.append(batch).await?;
        shared.tails.grew(run, head);
        shared.outboxes.appended();
        Ok(())
    }

    /// Whether a run has started, as far as its log can be read.
    async fn has_started(&self, run: &RunKey) -> bool {
        match self.events(run, Seq(0), FIRST_EVENTS as usize).await {
            Ok(Some(page)) => {
                let is_start =
                    |recorded: &Recorded| matches!(recorded.event, Event::Kernel(KernelEvent::RunStarted(_)));
                page.events.iter().any(is_start)
            }
            Ok(None) | Err(_) => true,
        }
    }

    /// Quarantines a run whose rows could not be read several times in a row.
    pub(crate) async fn give_up(&self, run: &RunKey, error: &CommandError, in_a_row: u32) {
        if in_a_row >= wopr_store::QUARANTINED && matches!(error, CommandError::Internal(_)) {
            let has_paused = self.quarantine(run, "what is stored of it cannot be read").await;
            tracing::debug!(%run, has_paused, "run given up");
        }
    }
}
