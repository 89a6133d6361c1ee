//! Histories of executions, page by page, and their last checkpoints.
//!
//! Rows are made from the log, which is read in pages, up to the last row that is wanted. A reader that goes on begins near
//! the end of the page before ([`super::positions`]), so reading all of a history takes time in proportion to it. Values
//! under the names of secrets are not shown; the log keeps them.

use serde_json::{Value, json};
use wopr_app::{View, VisibleRun, hide_members};
use wopr_core::{
    AwpHistory, Object, Seq,
    awp::{History, HistoryPosition, RECORD_SCHEMA_VERSION, Row, SECRET_MEMBERS, Wanted},
};

use super::{
    error::{Code, Error},
    execution::execution_id,
    render::time,
};
use crate::Host;

/// Events read at once.
const PAGE: usize = 512;
/// The place that the reader of a page goes on from is at most so many rows before the end of the page. Few events have
/// more rows; one that has leaves the place where it was.
const NEAR: u64 = 32;
/// The most rows of an answer, and those without a limit.
const MAX_ROWS: u64 = 1_000;
const DEFAULT_ROWS: u64 = 100;
/// The size of an answer that takes no more rows.
const MAX_BYTES: usize = 4 << 20;

/// The part of a history that is wanted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part {
    pub(super) from: Option<u64>,
    pub(super) to: Option<u64>,
    pub(super) limit: Option<u64>,
}

/// A page of a history.
pub(super) async fn page(host: &Host, view: &View, part: Part) -> Result<Value, Error> {
    let from = part.from.unwrap_or(1).max(1);
    let limit = part.limit.unwrap_or(DEFAULT_ROWS).min(MAX_ROWS);
    let last = part.to.unwrap_or(u64::MAX).min(from.saturating_add(limit - 1));
    let wanted = Wanted::Rows {
        numbers: from..last.saturating_add(1),
        most_bytes: MAX_BYTES,
    };
    let history = read(host, view, wanted).await?;
    let next = history.rows.last().map_or(from, |row| row.seq + 1);
    let has_more = history.n_rows >= next && part.to.is_none_or(|to| next <= to);
    let events: Vec<_> = history.rows.into_iter().map(shown).collect();
    let mut answer = json!({ "execution_id": execution_id(view), "events": events });
    if has_more {
        answer["next_cursor"] = next.into();
    }
    Ok(answer)
}

/// The last checkpoint.
pub(super) async fn checkpoint(host: &Host, view: &View) -> Result<Value, Error> {
    let none = || {
        let message = format!("Execution \"{}\" has no checkpoint.", execution_id(view));
        Error::new(Code::ExecutionNotFound, message)
    };
    // The log is read twice, so that the state is copied once: each checkpoint has all of it.
    let last = read(host, view, Wanted::Checkpoint).await?.last_checkpoint;
    let last = last.ok_or_else(none)?;
    let wanted = Wanted::Rows {
        numbers: last..last + 1,
        most_bytes: usize::MAX,
    };
    let row = read(host, view, wanted).await?.rows.pop().ok_or_else(none)?;
    let at = time(row.created_at);
    Ok(json!({
        "execution_id": execution_id(view),
        "seq": row.seq,
        "checkpoint": redacted(row.payload),
        "created_at": at,
    }))
}

async fn read(host: &Host, view: &View, wanted: Wanted) -> Result<History, Error> {
    let run = VisibleRun::from(view);
    let id = execution_id(view);
    // The first row that is wanted, and the row from which the next reader will go on.
    let (first, next) = match &wanted {
        Wanted::Rows { numbers, .. } => (numbers.start, numbers.end),
        Wanted::Checkpoint => (u64::MAX, u64::MAX),
    };
    let positions = host.history_positions();
    let known = positions.before(&view.key, first);
    let mut from = known.as_ref().map_or(Seq(0), HistoryPosition::next_event);
    let mut kept = known.as_ref().map(HistoryPosition::n_rows);
    let history = match known {
        Some(position) => AwpHistory::from_position(&view.plan, &view.key.run, wanted, position),
        None => AwpHistory::new(&view.plan, &view.key.run, wanted),
    };
    let mut history = history.ok_or_else(|| Error::no_execution(&id))?;
    while from < view.run.head && !history.is_done() {
        let page = host.app().events(&run, from, PAGE).await?;
        let page = page.ok_or_else(|| Error::no_execution(&id))?;
        if page.events.is_empty() {
            break;
        }
        from = Seq(from.0 + page.events.len() as u64);
        for event in &page.events {
            let n_rows = history.n_rows();
            let is_near = |row: u64| n_rows > 0 && n_rows < row && n_rows + NEAR >= row;
            // The page may end before its last row, where the rows are large. The next one then begins at this one's start.
            if (is_near(first) || is_near(next)) && kept.is_none_or(|kept| kept + NEAR < n_rows) {
                positions.keep(&view.key, history.position());
                kept = Some(n_rows);
            }
            history.record(event);
        }
    }
    Ok(history.finish())
}

fn shown(row: Row) -> Value {
    json!({
        "seq": row.seq,
        "kind": row.kind.as_str(),
        "name": row.name,
        "created_at": time(row.created_at),
        "record_schema_version": RECORD_SCHEMA_VERSION,
        "payload": redacted(row.payload),
    })
}

/// The payload of a row without the values of secrets.
fn redacted(payload: Object) -> Value {
    let mut payload = Value::Object(payload);
    hide_members(&mut payload, &SECRET_MEMBERS);
    payload
}
