//! `wopr runs retry`, `fork` and `diff`.

use anyhow::Result;
use serde_json::{Value, json};
use wopr_wire::openwop::{event::RunEventDoc, run::ForkedFrom};

use crate::{
    args::Format,
    client::{Client, escape},
    exit::Exit,
    output::{self, Paint},
    render,
};

pub(super) async fn retry(client: &Client, run: &str, as_it_was: bool, format: Format) -> Result<Exit> {
    let path = format!("/v1/host/wopr/runs/{}:retry", escape(run));
    started(
        &client
            .post_with(&path, &json!({ "asItWas": as_it_was }), "runId")
            .await?,
        format,
    )
}

pub(super) async fn fork(
    client: &Client,
    run: &str,
    from: Option<u64>,
    replay: bool,
    format: Format,
) -> Result<Exit> {
    let path = format!("/v1/runs/{}:fork", escape(run));
    let mode = if replay { "replay" } else { "branch" };
    let mut body = json!({ "mode": mode });
    if let Some(from) = from {
        body["fromSeq"] = from.into();
    }
    started(&client.post_with(&path, &body, "runId").await?, format)
}

fn started(answer: &Value, format: Format) -> Result<Exit> {
    if format.json {
        output::json(answer)?;
        return Ok(Exit::Ok);
    }
    let from = answer.get("fromSeq").and_then(Value::as_u64).unwrap_or_default();
    output::line(format!(
        "{}  {} of {} from event {from}",
        render::text(answer, "runId"),
        render::text(answer, "mode"),
        render::text(answer, "sourceRunId"),
    ))?;
    Ok(Exit::Ok)
}

/// Where a fork comes from, in one line.
pub(super) fn origin(source: &ForkedFrom) -> String {
    let ForkedFrom {
        source_run_id,
        mode,
        from_seq,
        diverged_at_seq,
    } = source;
    let mode = mode.as_str();
    let differs = diverged_at_seq.map(|at| format!(", differs from event {at}"));
    format!(
        "{mode} of {source_run_id} from event {from_seq}{}",
        differs.unwrap_or_default()
    )
}

pub(super) async fn diff(client: &Client, a: &str, b: &str, format: Format) -> Result<Exit> {
    let path = format!("/v1/runs/{}:diff?against={}", escape(a), escape(b));
    let diff = match client.get_with(&path, "divergedAtSeq").await {
        Ok(diff) => diff,
        Err(error) => {
            // The server does not say which of the two it does not know.
            for run in [a, b] {
                client.get(&format!("/v1/runs/{}", escape(run))).await?;
            }
            return Err(error);
        }
    };
    let at = diff.get("divergedAtSeq").and_then(Value::as_u64);
    let exit = if at.is_none() { Exit::Ok } else { Exit::Failed };
    if format.json {
        output::json(&diff)?;
        return Ok(exit);
    }
    let Some(at) = at else {
        output::line("the runs have the same events")?;
        return Ok(exit);
    };
    output::line(format!("the runs differ from event {at}"))?;
    let paint = Paint::stdout();
    for entry in diff
        .get("eventDiffs")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        for (mark, side) in [("-", "aEvent"), ("+", "bEvent")] {
            if let Some(event) = entry.get(side) {
                let event: RunEventDoc = serde_json::from_value(event.clone())?;
                output::line(format!("{mark} {}", render::event(paint, &event)))?;
            }
        }
    }
    if diff.get("truncated") == Some(&Value::Bool(true)) {
        output::note("there may be more: a run is under way, or the list is full")?;
    }
    Ok(exit)
}
