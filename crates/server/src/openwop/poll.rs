//! Polls a run's log (section 12.4). JSON clients of the stream's address get the same body.

use std::time::Duration;

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use tokio::time::Instant;
use wopr_app::{Events, VisibleRun};
use wopr_core::{Recorded, RunStatus, Seq};
use wopr_wire::openwop::{
    event::PollResponse,
    stream::{PollQuery, StreamModes},
};

use super::{
    answer::{Answer, json_response},
    call::Call,
    events::Masking,
    problem::{Problem, no_run},
    render,
};
use crate::auth::{self, Scope};

/// Maximum number of events in a response. `isComplete` stays false while there are more.
const MAX_EVENTS: usize = 1_000;
/// Approximate maximum size of a response in bytes. The last event, or a page of small ones, may exceed it.
const MAX_BYTES: usize = 4 << 20;

/// `GET /v1/runs/{runId}/events/poll`
pub(super) fn poll(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let key = call.visible_run(Scope::RunsRead).await?;
        let cursor = call.query("lastSequence").or_else(|| call.query("since"));
        let query = PollQuery::parse(cursor.as_deref(), call.query("timeout").as_deref())?;
        // The mode is validated but has no effect: a poll returns every event.
        StreamModes::parse_for_list(call.query_list("streamMode").as_deref())?;
        let read = wait(&call, &key, query.after, query.timeout).await?;
        respond(&call, &key, query.after, read, |_| true).await
    }
    .boxed()
}

/// Reads once there are events after the cursor, the run has ended, or the timeout has passed.
async fn wait(
    call: &Call,
    key: &VisibleRun,
    after: Option<u64>,
    timeout: Duration,
) -> Result<Events, Problem> {
    let app = call.host.app();
    let from = first(after);
    let deadline = Instant::now() + timeout;
    let mut tail = app.tail(key);
    let mut closing = call.host.closing();
    loop {
        let page = match app.events_at_hand(key, from, MAX_EVENTS) {
            Some(page) => Some(page),
            None => {
                let read = call.host.paging().read(app, key, from, MAX_EVENTS, MAX_BYTES);
                read.await?
            }
        };
        let page = page.ok_or_else(no_run)?;
        let is_done = !page.events.is_empty() || page.status.is_terminal();
        if is_done || Instant::now() >= deadline || *closing.borrow_and_update() {
            return Ok(page);
        }
        auth::wait(async {
            tokio::select! {
                () = tail.changed() => {}
                () = tokio::time::sleep_until(deadline) => {}
                _ = closing.changed() => {}
            }
        })
        .await;
    }
}

/// Returns all events after a cursor without waiting, for JSON clients of the stream's address.
pub(super) async fn now(
    call: &Call,
    key: &VisibleRun,
    after: Option<u64>,
    admits: impl Fn(&Recorded) -> bool,
) -> Answer {
    let (host, from) = (&call.host, first(after));
    let read = host.paging().read(host.app(), key, from, MAX_EVENTS, MAX_BYTES);
    respond(call, key, after, read.await?.ok_or_else(no_run)?, admits).await
}

fn first(after: Option<u64>) -> Seq {
    Seq(after.map_or(0, |after| after.saturating_add(1)))
}

async fn respond(
    call: &Call,
    key: &VisibleRun,
    after: Option<u64>,
    page: Events,
    admits: impl Fn(&Recorded) -> bool,
) -> Answer {
    let Events { events, head, status } = page;
    let mut masking = Masking::new(call.caller());
    let log = masking.of(call.host.app(), key, &events).await?;
    let log = log.ok_or_else(no_run)?;
    let last = events.last().map(|event| event.seq.0);
    // A cursor past the end moves back to the end, so that no future event is missed.
    let known = head.0.checked_sub(1);
    let cursor = last.or_else(|| after.and_then(|after| known.map(|known| after.min(known))));
    if let Some(last) = last {
        let head = Seq(last.saturating_add(1));
        call.host.app().note_read(call.caller(), key, head);
    }
    let reaches_head = last.is_none_or(|last| last + 1 >= head.0);
    let is_terminal = RunStatus::is_terminal(status);
    let response = PollResponse {
        run_id: key.run.to_string(),
        events: events
            .iter()
            .filter(|recorded| admits(recorded))
            .map(|recorded| log.event(recorded))
            .collect(),
        is_complete: is_terminal && reaches_head,
        last_event_seq: cursor,
        run_status: render::status(status),
        is_terminal,
    };
    json_response(StatusCode::OK, &response)
}
