//! Lists executions: those in the protocol's language, the latest change of status first.
//!
//! A phase is finer than the status of a run that lists are indexed by, so a page is filled from several pages of the
//! index. A call looks at a bounded number of runs; its cursor says where the next one goes on.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use wopr_app::{Match, PhaseCursor, PhaseFilter};
use wopr_core::{RunId, RunStatus, Timestamp, awp};
use wopr_wire::time::Timestamp as WireTime;

use super::{arguments::Arguments, error::Error, execution::find_listed, render, stable, tool::Tool};
use crate::{Host, auth::Caller, telemetry};

const DEFAULT_PAGE: usize = 50;
const MAX_PAGE: u64 = 100;
/// Runs read from the index at once.
const BATCH: usize = 100;
/// The most runs that a call looks at.
const MAX_LOOKED_AT: usize = 500;

pub(super) async fn list(host: &Host, caller: &Caller, mut arguments: Arguments) -> Result<Value, Error> {
    let phase = arguments.name("phase")?;
    let name = arguments.name("definition_name")?;
    let since = time(&mut arguments, "updated_after")?;
    let before = time(&mut arguments, "updated_before")?;
    let limit = arguments.number("limit")?;
    let cursor = arguments.name("cursor")?;
    arguments.end()?;
    let invalid = |rule: &str| Error::invalid(Tool::List, rule);
    let statuses = match phase.as_deref() {
        None => Vec::new(),
        Some(phase) => statuses(phase).ok_or_else(|| {
            invalid(
                "phase must be running, awaiting_activity, awaiting_signal, interrupted, completed, failed or cancelled",
            )
        })?,
    };
    let limit = match limit {
        None => DEFAULT_PAGE,
        Some(limit @ 1..=MAX_PAGE) => usize::try_from(limit).unwrap_or(DEFAULT_PAGE),
        Some(_) => return Err(invalid("limit must be from 1 to 100")),
    };
    let mut after = match cursor {
        None => None,
        Some(text) => {
            Some(read_cursor(&text).ok_or_else(|| invalid("cursor must be a next_cursor of this list"))?)
        }
    };
    let workflow = match name.as_deref().map(awp::workflow_id) {
        None => None,
        Some(Some(workflow)) => Some(Match::Is(workflow)),
        // No document has a name without letters or digits.
        Some(None) => return Ok(json!({ "executions": [] })),
    };
    let filter = PhaseFilter {
        statuses,
        workflow,
        since: since.map(|since| since.plus_millis(1)),
        ..PhaseFilter::default()
    };
    let (mut executions, mut looked_at) = (Vec::new(), 0);
    let app = host.app();
    let mut has_more = true;
    while has_more && executions.len() < limit && looked_at < MAX_LOOKED_AT {
        let page = app
            .list_by_phase(caller, filter.clone(), after.as_ref(), BATCH)
            .await?;
        has_more = page.has_more;
        let n_runs = page.runs.len();
        for (n, (run, summary)) in page.runs.into_iter().enumerate() {
            looked_at += 1;
            after = Some(PhaseCursor {
                since: summary.phase_since,
                run: run.run.clone(),
            });
            let is_early = before.is_none_or(|before| summary.phase_since < before);
            let found = match is_early {
                true => find_listed(app, &run).await,
                false => Ok(None),
            };
            // One run that cannot be read now does not hide the others.
            let found = found.unwrap_or_else(|error| {
                telemetry::not_listed(&run, &error.message);
                None
            });
            if let Some(view) = found {
                let found = stable::status(&view).phase;
                let is_named = name.as_deref().is_none_or(|name| view.plan.name() == name);
                if is_named && phase.as_deref().is_none_or(|phase| phase == found.as_str()) {
                    executions.push(render::item(&view, found, &summary));
                }
            }
            if executions.len() == limit {
                has_more |= n + 1 < n_runs;
                break;
            }
        }
    }
    let mut answer = json!({ "executions": executions });
    if let Some(after) = after.filter(|_| has_more) {
        answer["next_cursor"] = write_cursor(&after).into();
    }
    Ok(answer)
}

/// The statuses of runs in a phase.
fn statuses(phase: &str) -> Option<Vec<RunStatus>> {
    let under_way = [
        RunStatus::Pending,
        RunStatus::Running,
        RunStatus::Paused,
        RunStatus::Cancelling,
    ];
    // A run that waits for a signal may wait for something else as well, which its phase says first.
    let waiting = [
        RunStatus::WaitingApproval,
        RunStatus::WaitingInput,
        RunStatus::WaitingExternal,
    ];
    Some(match phase {
        "running" => under_way.to_vec(),
        "awaiting_activity" => [&under_way[..], &waiting[..]].concat(),
        "awaiting_signal" => vec![RunStatus::WaitingExternal],
        "interrupted" => waiting.to_vec(),
        "completed" => vec![RunStatus::Completed],
        "failed" => vec![RunStatus::Failed],
        "cancelled" => vec![RunStatus::Cancelled],
        _ => return None,
    })
}

fn time(arguments: &mut Arguments, name: &str) -> Result<Option<Timestamp>, Error> {
    match arguments.name(name)? {
        None => Ok(None),
        Some(text) => match WireTime::parse(&text) {
            Ok(time) => Ok(Some(Timestamp::from_millis(time.as_millis()))),
            Err(_) => Err(Error::invalid(
                Tool::List,
                format!("{name} must be a time such as 2026-01-31T12:00:00Z"),
            )),
        },
    }
}

fn write_cursor(cursor: &PhaseCursor) -> String {
    URL_SAFE_NO_PAD.encode(format!("{}|{}", cursor.since.millis(), cursor.run))
}

fn read_cursor(text: &str) -> Option<PhaseCursor> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (since, run) = std::str::from_utf8(&bytes).ok()?.split_once('|')?;
    Some(PhaseCursor {
        since: Timestamp::from_millis(since.parse().ok()?),
        run: RunId::parse(run).ok()?,
    })
}
