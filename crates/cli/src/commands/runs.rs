//! `wopr runs`: lists, shows and controls the runs of a server. Forks are in `runs/forks.rs`, and what a run waits for in
//! `runs/waits.rs`.

mod forks;
mod waits;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wopr_wire::openwop::{
    event::RunEventDoc,
    run::{RunError, RunStatus},
};

use crate::{
    args::{self, Format, Remote},
    client::{Client, escape},
    exit::{Exit, Failure},
    follow::Follower,
    output::{self, Paint, age, cut, state, whole},
    render,
};

/// List, show, release, cancel, retry, fork and compare runs, and follow their events (`events -f`).
#[derive(Debug, Args)]
pub(crate) struct Runs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List runs, newest first
    List {
        /// Only these statuses, separated by commas
        #[arg(long, value_name = "STATUS")]
        status: Option<String>,
        /// Only runs of this workflow
        #[arg(long, value_name = "ID")]
        workflow: Option<String>,
        /// Maximum number to list
        #[arg(long, default_value_t = 50, value_parser = args::at_least_one)]
        limit: usize,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
    /// Show the current state of a run
    Show {
        /// The run
        run: String,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
    /// Show the events of a run
    Events {
        /// The run
        run: String,
        /// Keep following until the run ends
        #[arg(long, short = 'f')]
        follow: bool,
        /// Only events after this one
        #[arg(long, visible_alias = "last-event-id", value_name = "SEQ")]
        after: Option<u64>,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
    /// Resume a paused run, or one that was quarantined after it crashed the process
    Release {
        /// The run
        run: String,
        /// The reason, for the log
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
    /// Try a failed run again from the node that failed it, as a new run
    Retry {
        /// The run
        run: String,
        /// Use the definition that the run had, not the current one
        #[arg(long)]
        as_it_was: bool,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
    /// Branch a run: start a new one from its first events, or replay it
    Fork {
        /// The run
        run: String,
        /// The first event that is not taken from the run [default with --replay: 0]
        #[arg(long, value_name = "SEQ", required_unless_present = "replay")]
        from: Option<u64>,
        /// Repeat what the run did, with its recorded outcomes: nothing is called again
        #[arg(long)]
        replay: bool,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
    /// Compare the events of two runs; exits with 1 if they differ
    Diff {
        /// A run
        a: String,
        /// The run to compare it with
        b: String,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
    /// Cancel a run; a run that has ended is not changed
    Cancel {
        /// The run
        run: String,
        /// The reason, for the log
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
}

impl Runs {
    pub(crate) async fn run(self) -> Result<Exit> {
        match self.verb {
            Verb::List {
                status,
                workflow,
                limit,
                remote,
                format,
            } => list(&Client::new(&remote)?, status, workflow, limit, format).await,
            Verb::Show { run, remote, format } => show(&Client::new(&remote)?, &run, format).await,
            Verb::Events {
                run,
                follow,
                after,
                remote,
                format,
            } => events(&Client::new(&remote)?, &run, (follow, after), format).await,
            Verb::Release {
                run,
                reason,
                remote,
                format,
            } => release(&Client::new(&remote)?, &run, reason, format).await,
            Verb::Retry {
                run,
                as_it_was,
                remote,
                format,
            } => forks::retry(&Client::new(&remote)?, &run, as_it_was, format).await,
            Verb::Fork {
                run,
                from,
                replay,
                remote,
                format,
            } => forks::fork(&Client::new(&remote)?, &run, from, replay, format).await,
            Verb::Diff { a, b, remote, format } => forks::diff(&Client::new(&remote)?, &a, &b, format).await,
            Verb::Cancel {
                run,
                reason,
                remote,
                format,
            } => cancel(&Client::new(&remote)?, &run, reason, format).await,
        }
    }
}

async fn list(
    client: &Client,
    status: Option<String>,
    workflow: Option<String>,
    limit: usize,
    format: Format,
) -> Result<Exit> {
    let filters: Vec<_> = [("status", status), ("workflowId", workflow)]
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", escape(&value?))))
        .collect();
    let path = if filters.is_empty() {
        "/v1/runs".to_owned()
    } else {
        format!("/v1/runs?{}", filters.join("&"))
    };
    let page = client.pages(&path, "runs", limit).await?;
    if format.json {
        output::json(&json!({ "runs": page.items, "hasMore": page.has_more }))?;
        return Ok(Exit::Ok);
    }
    if page.items.is_empty() {
        output::note("no runs")?;
        return Ok(Exit::Ok);
    }
    let rows: Vec<_> = page
        .items
        .iter()
        .map(|run| {
            let cell = |name: &str| render::text(run, name).to_owned();
            let started = [cell("startedAt"), cell("createdAt")];
            let started = started
                .into_iter()
                .find(|text| !text.is_empty())
                .unwrap_or_default();
            vec![cell("runId"), cell("workflowId"), cell("status"), started]
        })
        .collect();
    output::table(
        &[whole("RUN"), cut("WORKFLOW"), state("STATUS"), age("STARTED")],
        &rows,
    )?;
    page.note_rest()?;
    Ok(Exit::Ok)
}

async fn show(client: &Client, run: &str, format: Format) -> Result<Exit> {
    let document = client
        .get_with(&format!("/v1/runs/{}", escape(run)), "runId")
        .await?;
    if format.json {
        output::json(&document)?;
        return Ok(Exit::Ok);
    }
    let snapshot = client.run(run).await?;
    let paint = Paint::stdout();
    let fact = |name: &str, value: &str| {
        output::line(format!(
            "{} {}",
            paint.dim(format!("{name:<10}")),
            output::plain(value)
        ))
    };
    output::line(format!(
        "{}  {}",
        paint.bold(output::plain(&snapshot.run_id)),
        paint.state(snapshot.status.as_str())
    ))?;
    fact("workflow", &snapshot.workflow_id)?;
    for (name, time) in [("started", snapshot.started_at), ("ended", snapshot.completed_at)] {
        if let Some(time) = time {
            fact(name, &time.to_string())?;
        }
    }
    if let Some(parent) = &snapshot.parent_run_id {
        fact("parent", parent)?;
    }
    if let Some(source) = &snapshot.forked_from {
        fact("forked", &forks::origin(source))?;
    }
    for child in &snapshot.child_runs {
        let workflow = child.workflow_id.as_deref().unwrap_or_default();
        let line = format!("{}  {:<16}  {workflow}", child.run_id, child.status);
        fact("child", line.trim_end())?;
    }
    if !snapshot.inputs.is_empty() {
        fact("inputs", &Value::Object(snapshot.inputs.clone()).to_string())?;
    }
    if snapshot.status == RunStatus::Completed
        && let Some(outputs) = outputs(client, run).await?
    {
        fact("outputs", &outputs.to_string())?;
    }
    if !snapshot.variables.is_empty() {
        fact(
            "variables",
            &Value::Object(snapshot.variables.clone()).to_string(),
        )?;
    }
    if let Some(error) = &snapshot.error {
        for (name, value) in failure(client, run, error).await? {
            fact(name, &value)?;
        }
    }
    if let Some(view) = &snapshot.interrupt {
        fact("waits for", &format!("{} ({})", view.node_id, view.kind))?;
        for line in render::question(view).into_iter().chain(render::last_said(view)) {
            fact("", &line)?;
        }
        let answer = render::example_answer(view);
        fact(
            "answer",
            &format!(
                "wopr interrupts resolve {run} {} --value '{answer}'",
                view.node_id
            ),
        )?;
    }
    if !snapshot.status.is_terminal() {
        for wait in waits::of(client, run, &snapshot).await {
            // Not "waits for", by which scripts find runs that wait for somebody.
            fact("pending", &wait)?;
        }
    }
    for artifact in super::run::artifacts(client, run).await? {
        fact(
            "artifact",
            &format!(
                "{} ({})",
                render::text(&artifact, "artifactId"),
                render::text(&artifact, "artifactType")
            ),
        )?;
        let content = artifact.get("content").map(render::value).unwrap_or_default();
        output::line(render::indented(&content, 11))?;
    }
    Ok(Exit::Ok)
}

/// What a completed run gave back, if anything.
async fn outputs(client: &Client, run: &str) -> Result<Option<Value>> {
    let log = client.log(run).await?;
    let last = log.last().and_then(|event| event.pointer("/payload/outputs"));
    let is_something = |outputs: &&Value| outputs.as_object().is_some_and(|outputs| !outputs.is_empty());
    Ok(last.filter(is_something).cloned())
}

/// Explains why a run failed: the node, the number of attempts, the error, and why an interrupt was closed
/// unanswered.
async fn failure(client: &Client, run: &str, error: &RunError) -> Result<Vec<(&'static str, String)>> {
    let mut facts = place_of_failure(client, run, error).await?;
    let worker = error
        .details
        .as_ref()
        .and_then(|details| details.get("workerFailure"));
    if let Some(worker) = worker {
        let [id, child, code, message] =
            ["workerId", "childRunId", "code", "message"].map(|name| render::text(worker, name));
        facts.push(("because", format!("worker {id} failed: {code}: {message}")));
        if !child.is_empty() {
            facts.push(("see", format!("wopr runs show {child}")));
        }
    }
    Ok(facts)
}

async fn place_of_failure(
    client: &Client,
    run: &str,
    error: &RunError,
) -> Result<Vec<(&'static str, String)>> {
    let said = format!("{}: {}", error.code, error.message);
    let node = error
        .details
        .as_ref()
        .and_then(|details| details.get("failedNodeId"));
    let Some(node) = node.and_then(Value::as_str) else {
        return Ok(vec![("error", said)]);
    };
    let log = client.log(run).await?;
    let payload = |event: &Value, name: &str| {
        event
            .get("payload")
            .and_then(|payload| payload.get(name))
            .cloned()
    };
    let of_node = log
        .iter()
        .rev()
        .filter(|event| render::text(event, "nodeId") == node);
    let mut attempts = None;
    let mut reason = None;
    for event in of_node {
        match render::text(event, "type") {
            "node.failed" if attempts.is_none() => attempts = payload(event, "attempts"),
            "interrupt.resolved" if reason.is_none() => reason = payload(event, "reason"),
            _ => {}
        }
    }
    let place = match attempts.as_ref().and_then(Value::as_u64) {
        Some(1) => format!("{node} (1 attempt)"),
        Some(n) => format!("{node} ({n} attempts)"),
        None => node.to_owned(),
    };
    let mut facts = vec![("failed at", place), ("error", said)];
    if let Some(Value::String(reason)) = reason {
        facts.push(("reason", reason));
    }
    Ok(facts)
}

async fn events(
    client: &Client,
    run: &str,
    (follow, after): (bool, Option<u64>),
    format: Format,
) -> Result<Exit> {
    let paint = Paint::stdout();
    if follow {
        let mut events = Follower::start_after(client, run, "debug", after).await?;
        while let Some(event) = events.next().await? {
            if format.json {
                output::json_line(&event)?;
            } else {
                output::line(render::event(paint, &event))?;
            }
        }
        return Ok(Exit::Ok);
    }
    let mut log = client.log(run).await?;
    if let Some(after) = after {
        log.retain(|event| {
            event["sequence"]
                .as_u64()
                .is_some_and(|sequence| sequence > after)
        });
    }
    if format.json {
        output::json(&json!({ "runId": run, "events": log }))?;
        return Ok(Exit::Ok);
    }
    for event in log {
        let event: RunEventDoc = serde_json::from_value(event)?;
        output::line(render::event(paint, &event))?;
    }
    Ok(Exit::Ok)
}

async fn release(client: &Client, run: &str, reason: Option<String>, format: Format) -> Result<Exit> {
    steer(client, run, ":resume", reason, format).await?;
    Ok(Exit::Ok)
}

async fn cancel(client: &Client, run: &str, reason: Option<String>, format: Format) -> Result<Exit> {
    let Some(status) = steer(client, run, "/cancel", reason, format).await? else {
        return Ok(Exit::Ok);
    };
    if status.starts_with("cancel") {
        return Ok(Exit::Ok);
    }
    Err(Failure::new(Exit::Failed, format!("the run had ended as {status}")).into())
}

/// Sends a control request and prints the resulting status. Returns the status if it was printed as text.
async fn steer(
    client: &Client,
    run: &str,
    verb: &str,
    reason: Option<String>,
    format: Format,
) -> Result<Option<String>> {
    let body = match reason {
        None => json!({}),
        Some(reason) => json!({ "reason": reason }),
    };
    let path = format!("/v1/runs/{}{verb}", escape(run));
    let answer = client.post_with(&path, &body, "status").await?;
    if format.json {
        output::json(&answer)?;
        return Ok(None);
    }
    let status = render::text(&answer, "status");
    output::line(format!("{run}  {}", Paint::stdout().state(status)))?;
    Ok(Some(status.to_owned()))
}
