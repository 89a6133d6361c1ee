//! Reads logs in pages that are limited in bytes, not only in events.
//!
//! An event may hold megabytes, and its size is unknown until it is read. A reader therefore starts with one
//! event and doubles the page while events stay small. Only a few readers read and render pages at a time, so
//! that many streams of large runs leave threads and memory for other work. Tenants take turns, and the one
//! that has read least comes first, so many readers of one tenant do not delay another. Waits are short: if the
//! store does not answer, readers keep their turns, and the waiting requests soon time out.

use std::{
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};
use wopr_app::{App, Error as AppError, Events, VisibleRun};
use wopr_core::{RunKey, Seq, TenantId, json_size};
pub(crate) use wopr_store::turns::Turn;
use wopr_store::{
    turns::{Full, Turns},
    with_timeout,
};
use wopr_wire::openwop::stream::StreamModes;

/// A chunk of a stream ends with the event that reaches this size. A larger event is sent alone.
pub(crate) const CHUNK: usize = 64 << 10;
/// Maximum number of pages in memory, however many threads there are.
const MAX_TURNS: usize = 8;

/// How long a request waits for its turn.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum number of waiting readers per tenant. Their requests are limited too, so only a host with more
/// connections than the default can reach this.
const MAX_WAITING: usize = 16_384;

/// What the readers of one host share: turns to read, and large frames that several streams send.
#[derive(Debug)]
pub(crate) struct Paging {
    readers: Readers,
    /// Large frames in flight. Streams that show the same event the same way share the bytes.
    frames: Mutex<Vec<Frame>>,
}

impl Default for Paging {
    fn default() -> Self {
        // Half of the threads stay free for other work.
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Self {
            readers: Readers::new((threads / 2).clamp(1, MAX_TURNS)),
            frames: Mutex::default(),
        }
    }
}

/// Limits the number of concurrent readers.
#[derive(Debug)]
struct Readers(Turns);

impl Readers {
    fn new(most: usize) -> Self {
        Self(Turns::new(most, MAX_WAITING))
    }

    async fn turn(&self, tenant: &TenantId, until: Instant) -> Option<Turn> {
        match timeout_at(until, self.0.take(tenant, 1)).await {
            Ok(Ok(turn)) => Some(turn),
            // A stream retries at once, so it waits here as long as the others.
            Ok(Err(Full)) => {
                sleep_until(until).await;
                None
            }
            Err(_) => None,
        }
    }

    async fn with_timeout(&self, tenant: &TenantId) -> Result<Turn, AppError> {
        match with_timeout(TIMEOUT, self.0.take(tenant, 1)).await {
            Some(Ok(turn)) => Ok(turn),
            Some(Err(Full)) | None => Err(AppError::Unavailable("too many logs are being read".into())),
        }
    }
}

/// The cost of a turn that read this many bytes: a tenant with large logs gets fewer turns.
pub(crate) fn cost(n_bytes: usize) -> u64 {
    1 + (n_bytes / CHUNK) as u64
}

/// The number of events to read next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    limit: usize,
    max: usize,
}

impl Pace {
    pub(crate) const fn new(max: usize) -> Self {
        Self { limit: 1, max }
    }

    pub(crate) const fn limit(self) -> usize {
        self.limit
    }

    /// Adjusts the size after a page of `n_bytes`.
    pub(crate) fn read(&mut self, n_bytes: usize) {
        self.limit = if n_bytes >= CHUNK {
            1
        } else {
            (self.limit * 2).min(self.max)
        };
    }
}

/// The modes an event is rendered in, and whether artifacts are shown.
pub(crate) type Shown = (StreamModes, bool);

/// A large frame that a stream is still sending.
#[derive(Debug)]
struct Frame {
    key: RunKey,
    seq: Seq,
    shown: Shown,
    bytes: Weak<Bytes>,
}

struct Shared(Arc<Bytes>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Paging {
    /// Waits until `until` for a turn to read a page of a tenant's run. Hold the turn until the page is
    /// rendered and dropped.
    pub(crate) async fn turn(&self, tenant: &TenantId, until: Instant) -> Option<Turn> {
        self.readers.turn(tenant, until).await
    }

    /// Waits briefly for a turn to read something large. Hold the turn until it is rendered.
    ///
    /// # Errors
    /// `Unavailable` if too many others are reading.
    pub(crate) async fn turn_to_read(&self, tenant: &TenantId) -> Result<Turn, AppError> {
        self.readers.with_timeout(tenant).await
    }

    /// Reads events from a position until either limit is reached. Returns `Unavailable` if too many others
    /// are reading.
    pub(crate) async fn read(
        &self,
        app: &App,
        key: &VisibleRun,
        from: Seq,
        max_events: usize,
        max_bytes: usize,
    ) -> Result<Option<Events>, AppError> {
        let mut turn = self.readers.with_timeout(&key.tenant).await?;
        let mut pace = Pace::new(max_events);
        let Some(mut read) = app.events(key, from, pace.limit()).await? else {
            return Ok(None);
        };
        let mut n_bytes = 0;
        let mut n_seen = 0;
        loop {
            let n_new = read.events.len() - n_seen;
            let size: usize = read.events[n_seen..]
                .iter()
                .map(|recorded| json_size(&recorded.event))
                .sum();
            n_seen = read.events.len();
            n_bytes += size;
            turn.charge(cost(n_bytes));
            let is_short = n_new < pace.limit();
            pace.read(size);
            let Some(last) = read.events.last() else { break };
            if is_short || n_seen >= max_events || n_bytes >= max_bytes {
                break;
            }
            let limit = pace.limit().min(max_events - n_seen);
            pace.limit = limit;
            let Some(more) = app.events(key, last.seq.next(), limit).await? else {
                return Ok(None);
            };
            read.events.extend(more.events);
            read.head = more.head;
            read.status = more.status;
        }
        Ok(Some(read))
    }

    /// Shares a large frame for as long as it is being sent.
    pub(crate) fn share(&self, key: &RunKey, seq: Seq, shown: Shown, frame: Bytes) -> Bytes {
        let frame = Arc::new(frame);
        let mut frames = self.frames.lock();
        frames.retain(|frame| frame.bytes.strong_count() > 0);
        frames.push(Frame {
            key: key.clone(),
            seq,
            shown,
            bytes: Arc::downgrade(&frame),
        });
        drop(frames);
        Bytes::from_owner(Shared(frame))
    }

    /// Finds a large frame that another stream is sending.
    pub(crate) fn shared(&self, key: &RunKey, seq: Seq, shown: Shown) -> Option<Bytes> {
        let frames = self.frames.lock();
        let found = frames
            .iter()
            .find(|frame| frame.seq == seq && frame.shown == shown && frame.key == *key);
        let bytes = found?.bytes.upgrade()?;
        Some(Bytes::from_owner(Shared(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::RunId;

    use super::*;

    #[test]
    fn pages_double_while_events_are_small() {
        let mut pace = Pace::new(8);
        let mut limits = Vec::new();
        for n_bytes in [10, 10, 10, 10, CHUNK, 10] {
            limits.push(pace.limit());
            pace.read(n_bytes);
        }
        assert_eq!(limits, [1, 2, 4, 8, 8, 1]);
    }

    /// Makes a tenant wait for many turns, each of which takes a while.
    async fn crowd(readers: &Arc<Readers>, tenant: &TenantId) {
        for _ in 0..200 {
            let (readers, tenant) = (Arc::clone(readers), tenant.clone());
            tokio::spawn(async move {
                let _turn = readers.0.take(&tenant, 1).await;
                // sleep: the time to read a page, in virtual time
                tokio::time::sleep(TIMEOUT / 20).await;
            });
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn readers_of_one_tenant_do_not_delay_another() {
        let readers = Arc::new(Readers::new(1));
        let tenant = |name| TenantId::parse(name).unwrap();
        crowd(&readers, &tenant("busy")).await;
        let begun = Instant::now();
        assert!(readers.with_timeout(&tenant("busy")).await.is_err());
        assert!(readers.with_timeout(&tenant("poll")).await.is_ok());
        let until = Instant::now() + TIMEOUT;
        assert!(readers.turn(&tenant("busy"), until).await.is_none());
        assert!(readers.turn(&tenant("stream"), until + TIMEOUT).await.is_some());
        assert!(begun.elapsed() < TIMEOUT * 3, "{:?}", begun.elapsed());
    }

    #[test]
    fn cost_of_a_turn_grows_with_bytes_read() {
        assert_eq!((cost(0), cost(CHUNK - 1), cost(4 << 20)), (1, 1, 65));
    }

    #[test]
    fn large_frames_are_shared_while_in_flight() {
        let key = RunKey::new(
            TenantId::parse("t").unwrap(),
            RunId::parse("run_0123456789abcdef0123").unwrap(),
        );
        let modes = (StreamModes::default(), true);
        let paging = Paging::default();
        let frame = paging.share(&key, Seq(3), modes, Bytes::from_static(b"frame"));
        assert_eq!(paging.shared(&key, Seq(3), modes), Some(frame.clone()));
        assert_eq!(paging.shared(&key, Seq(4), modes), None);
        // A frame with artifacts must not be sent to readers who may not see them.
        assert_eq!(paging.shared(&key, Seq(3), (modes.0, false)), None);
        drop(frame);
        assert_eq!(paging.shared(&key, Seq(3), modes), None);
    }
}
