//! Follows a run to its end, across interrupted streams.
//!
//! A stream may end at any time: the server loses its database or restarts, or a connection breaks. Only the
//! terminal event ends a run, so any other end is resumed after the last event seen. The backoff grows while
//! no event arrives; after a minute without one, the last error is returned.

use std::{pin::Pin, time::Duration};

use anyhow::Result;
use futures_util::{Stream, StreamExt as _};
use tokio::time::Instant;
use wopr_wire::openwop::event::RunEventDoc;

use crate::{
    client::Client,
    exit::{Exit, Failure},
};

/// Backoff before the first reconnect; it doubles with every attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Gives up if the stream keeps breaking for this long without an event.
const TIMEOUT: Duration = Duration::from_secs(60);

type Events = Pin<Box<dyn Stream<Item = Result<RunEventDoc>> + Send>>;

/// Reads the events of a run.
pub(crate) struct Follower<'c> {
    client: &'c Client,
    run: &'c str,
    mode: &'static str,
    /// Id of the last event seen.
    last: Option<String>,
    events: Option<Events>,
    pause: Duration,
    /// Time of the first failure since the last event.
    failing_since: Option<Instant>,
    is_over: bool,
}

impl<'c> Follower<'c> {
    /// Follows a run from its first event.
    pub(crate) async fn start(client: &'c Client, run: &'c str, mode: &'static str) -> Result<Self> {
        let events = client.follow(run, mode, None).await?;
        Ok(Self {
            client,
            run,
            mode,
            last: None,
            events: Some(Box::pin(events)),
            pause: FIRST_PAUSE,
            failing_since: None,
            is_over: false,
        })
    }

    /// Returns the next event, or `None` after the terminal one.
    pub(crate) async fn next(&mut self) -> Result<Option<RunEventDoc>> {
        while !self.is_over {
            let failure = match &mut self.events {
                Some(events) => match events.next().await {
                    Some(Ok(event)) => return Ok(Some(self.seen(event))),
                    Some(Err(error)) => error,
                    None => Failure::new(Exit::Unreachable, "the stream ended before the run did").into(),
                },
                None => match self
                    .client
                    .follow(self.run, self.mode, self.last.as_deref())
                    .await
                {
                    Ok(events) => {
                        self.events = Some(Box::pin(events));
                        continue;
                    }
                    Err(error) if is_passing(&error) => error,
                    Err(error) => return Err(error),
                },
            };
            self.events = None;
            let now = Instant::now();
            if now.duration_since(*self.failing_since.get_or_insert(now)) >= TIMEOUT {
                return Err(failure);
            }
            tokio::time::sleep(self.pause).await;
            self.pause = (self.pause * 2).min(MAX_PAUSE);
        }
        Ok(None)
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
fn is_passing(error: &anyhow::Error) -> bool {
    let exit = error.downcast_ref::<Failure>().map(Failure::exit);
    matches!(exit, Some(Exit::Unreachable | Exit::Busy))
}
