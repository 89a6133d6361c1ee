//! `wopr deliveries`: lists what could not be delivered yet, and retries it: push notifications to subscribers, and
//! cancels and answers to agents.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    args::{self, Format, Remote},
    client::{Client, escape},
    exit::Exit,
    output::{self, age, cut, state, whole},
    render,
};

/// List undelivered push notifications, cancels and answers, and retry them.
///
/// A push notification, and a cancel or a recall at an agent that a workflow called, is retried for a day with
/// increasing backoff. Then it is given up and listed here until its run is deleted. An answer to an agent is retried
/// for as long as its run waits for the agent. The key needs the scope webhooks:manage.
#[derive(Debug, Args)]
pub(crate) struct Deliveries {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List deliveries: push notifications first, then cancels and answers to agents
    List {
        /// Only deliveries of this run
        #[arg(long, value_name = "RUN")]
        run: Option<String>,
        /// Only deliveries that were given up
        #[arg(long)]
        given_up: bool,
        /// Maximum number to list
        #[arg(long, default_value_t = 50, value_parser = args::at_least_one)]
        limit: usize,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
    /// Retry push notifications that were given up, and what agents have not been told yet
    Retry {
        /// The run
        run: String,
        /// Only deliveries for this configuration
        #[arg(long, value_name = "ID")]
        push: Option<String>,
        /// Only the delivery of this event
        #[arg(long, value_name = "SEQUENCE", requires = "push")]
        event: Option<u64>,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
}

impl Deliveries {
    pub(crate) async fn run(self) -> Result<Exit> {
        match self.verb {
            Verb::List {
                run,
                given_up,
                limit,
                remote,
                format,
            } => list(&Client::new(&remote)?, run, given_up, limit, format).await,
            Verb::Retry {
                run,
                push,
                event,
                remote,
                format,
            } => retry(&Client::new(&remote)?, run, push, event, format).await,
        }
    }
}

async fn list(
    client: &Client,
    run: Option<String>,
    given_up: bool,
    limit: usize,
    format: Format,
) -> Result<Exit> {
    let mut path = format!("/v1/host/wopr/deliveries?givenUp={given_up}");
    if let Some(run) = run {
        path.push_str("&runId=");
        path.push_str(&escape(&run));
    }
    let page = client.pages(&path, "deliveries", limit).await?;
    if format.json {
        output::json(&json!({ "deliveries": page.items, "hasMore": page.has_more }))?;
        return Ok(Exit::Ok);
    }
    if page.items.is_empty() {
        output::note("nothing waits, and nothing was given up")?;
        return Ok(Exit::Ok);
    }
    let rows: Vec<_> = page
        .items
        .iter()
        .map(|delivery| {
            let cell = |name: &str| render::text(delivery, name).to_owned();
            let number = |name: &str| delivery.get(name).map(Value::to_string).unwrap_or_default();
            let (to, what) = match cell("kind").as_str() {
                "push" => (cell("configId"), number("sequence")),
                "answer" => (task(delivery), cell("interruptId")),
                // Its task is not known yet.
                "recall" => (cell("peer"), cell("nodeId")),
                _ => (task(delivery), cell("nodeId")),
            };
            vec![
                cell("runId"),
                cell("kind"),
                to,
                what,
                cell("state"),
                number("attempts"),
                cell("enqueuedAt"),
                cell("error"),
            ]
        })
        .collect();
    output::table(
        &[
            whole("RUN"),
            whole("KIND"),
            whole("TO"),
            whole("WHAT"),
            state("STATE"),
            whole("ATTEMPTS"),
            age("SINCE"),
            cut("LAST ERROR"),
        ],
        &rows,
    )?;
    page.note_rest()?;
    Ok(Exit::Ok)
}

/// The agent and its task.
fn task(delivery: &Value) -> String {
    let (peer, task) = (render::text(delivery, "peer"), render::text(delivery, "taskId"));
    format!("{peer}/{task}")
}

async fn retry(
    client: &Client,
    run: String,
    push: Option<String>,
    event: Option<u64>,
    format: Format,
) -> Result<Exit> {
    let mut body = json!({ "runId": run });
    if let Some(push) = push {
        body["configId"] = push.into();
    }
    if let Some(event) = event {
        body["sequence"] = event.into();
    }
    let answer = client
        .post_with("/v1/host/wopr/deliveries:retry", &body, "retried")
        .await?;
    if format.json {
        output::json(&answer)?;
        return Ok(Exit::Ok);
    }
    match answer.get("retried").and_then(Value::as_u64).unwrap_or_default() {
        0 => output::note("nothing was given up there")?,
        1 => output::note("1 delivery is tried again")?,
        n => output::note(format!("{n} deliveries are tried again"))?,
    }
    Ok(Exit::Ok)
}
