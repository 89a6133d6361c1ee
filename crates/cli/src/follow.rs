//! Following a run to its end, across streams that end before it.
//!
//! A stream may be cut at any time: the server loses its database, is restarted, or a connection breaks. Only the
//! terminal event ends a run, so everything else is resumed after the last event seen. While nothing comes the pauses
//! grow, and after a minute of that the last error is the answer.

use std::{pin::Pin, time::Duration};

use anyhow::Result;
use futures_util::{Stream, StreamExt as _};
use tokio::time::Instant;
use wopr_wire::openwop::event::RunEventDoc;

use crate::{
    client::Client,
    exit::{Exit, Failure},
};

/// The first pause before a stream is resumed; each one after it is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// How long a run is followed without any event coming by a stream that breaks again and again.
const TIMEOUT: Duration = Duration::from_secs(60);

type Events = Pin<Box<dyn Stream<Item = Result<RunEventDoc>> + Send>>;

/// A reader of a run's events.
pub(crate) struct Follower<'c> {
    client: &'c Client,
    run: &'c str,
    mode: &'static str,
    /// The id of the last event seen.
    last: Option<String>,
    events: Option<Events>,
    pause: Duration,
    /// When streams began to break, if no event came since.
    failing_since: Option<Instant>,
    is_over: bool,
}

impl<'c> Follower<'c> {
    /// Begins to follow a run from its first event.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
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

    /// The next event; none after the terminal one.
    ///
    /// # Errors
    /// The run cannot be followed any more.
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

/// Whether a server that answers so may answer otherwise soon.
fn is_passing(error: &anyhow::Error) -> bool {
    let exit = error.downcast_ref::<Failure>().map(Failure::exit);
    matches!(exit, Some(Exit::Unreachable | Exit::Busy))
}
