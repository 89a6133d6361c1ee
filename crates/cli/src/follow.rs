//! Follows a run to its end, across interrupted streams.
//!
//! A stream may end at any time: the server loses its database or restarts, or a connection breaks. Only the
//! terminal event ends a run, so any other end is resumed after the last event seen. The backoff grows while
//! no event arrives; after a minute without one, the last error is returned.

use std::{pin::Pin, time::Duration};

use anyhow::Result;
use futures_util::{FutureExt as _, Stream, StreamExt as _, future::BoxFuture};
use tokio::time::Instant;
use wopr_wire::openwop::event::RunEventDoc;

use crate::{
    client::Client,
    exit::{Exit, Failure},
};

/// Backoff before the first reconnect; it doubles with every attempt.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Gives up if the stream keeps breaking for this long without an event.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

type Events = Pin<Box<dyn Stream<Item = Result<RunEventDoc>> + Send>>;

/// Where the next event comes from. Kept here, so that a wait goes on where it was if a read is dropped.
enum Source<'c> {
    Events(Events),
    /// The time of the next request.
    Pause(Instant),
    Request(BoxFuture<'c, Result<Events>>),
}

/// Reads the events of a run.
pub(crate) struct Follower<'c> {
    client: &'c Client,
    run: String,
    mode: &'static str,
    /// Id of the last event seen.
    last: Option<String>,
    source: Source<'c>,
    pause: Duration,
    /// Time of the first failure since the last event.
    failing_since: Option<Instant>,
    is_over: bool,
}

impl<'c> Follower<'c> {
    /// Follows a run from its first event.
    pub(crate) async fn start(client: &'c Client, run: &str, mode: &'static str) -> Result<Self> {
        Self::start_after(client, run, mode, None).await
    }

    /// Follows a run from the event after this one.
    pub(crate) async fn start_after(
        client: &'c Client,
        run: &str,
        mode: &'static str,
        after: Option<u64>,
    ) -> Result<Self> {
        let last = after.map(|sequence| sequence.to_string());
        let events = client.follow(run, mode, last.as_deref()).await?;
        Ok(Self {
            client,
            run: run.to_owned(),
            mode,
            last,
            source: Source::Events(Box::pin(events)),
            pause: FIRST_PAUSE,
            failing_since: None,
            is_over: false,
        })
    }

    pub(crate) fn run(&self) -> &str {
        &self.run
    }

    /// Returns the next event, or `None` after the terminal one.
    ///
    /// # Cancel safety
    /// No event is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> Result<Option<RunEventDoc>> {
        while !self.is_over {
            let failure = match &mut self.source {
                Source::Events(events) => match events.next().await {
                    Some(Ok(event)) => return Ok(Some(self.seen(event))),
                    Some(Err(error)) => error,
                    None => Failure::new(Exit::Unreachable, "the stream ended before the run did").into(),
                },
                Source::Pause(until) => {
                    tokio::time::sleep_until(*until).await;
                    self.source = Source::Request(self.request());
                    continue;
                }
                Source::Request(request) => match request.await {
                    Ok(events) => {
                        self.source = Source::Events(events);
                        continue;
                    }
                    Err(error) if is_passing(&error) => error,
                    Err(error) => return Err(error),
                },
            };
            let now = Instant::now();
            self.source = Source::Pause(now + self.pause);
            self.pause = (self.pause * 2).min(MAX_PAUSE);
            if now.duration_since(*self.failing_since.get_or_insert(now)) >= TIMEOUT {
                return Err(failure);
            }
        }
        Ok(None)
    }

    /// Asks for the events after the last one seen.
    fn request(&self) -> BoxFuture<'c, Result<Events>> {
        let (client, run, mode) = (self.client, self.run.clone(), self.mode);
        let last = self.last.clone();
        async move {
            let events = client.follow(&run, mode, last.as_deref()).await?;
            Ok(Box::pin(events) as Events)
        }
        .boxed()
    }

    fn seen(&mut self, event: RunEventDoc) -> RunEventDoc {
        self.last = Some(event.sequence.to_string());
        self.pause = FIRST_PAUSE;
        self.failing_since = None;
        self.is_over = matches!(
            event.event_type.as_str(),
            "run.completed" | "run.failed" | "run.cancelled"
        );
        event
    }
}

/// Returns `true` if the error may be temporary.
pub(crate) fn is_passing(error: &anyhow::Error) -> bool {
    let exit = error.downcast_ref::<Failure>().map(Failure::exit);
    matches!(exit, Some(Exit::Unreachable | Exit::Busy))
}
