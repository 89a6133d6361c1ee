//! Demos of several hosts: agents, and one that asks them.
//!
//! Each is a process of its own, with a store of its own. All end with the demo.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::process::{Agent, Place};
use crate::{
    client::{Client, Trust},
    commands::run::{End, Following, View, artifacts, show_products},
    examples::Example,
    exit::{Exit, Failure},
    output::{self, Paint},
    render,
    signals::Signals,
};

/// What every such demo takes.
#[derive(Debug, Args)]
pub(super) struct Watching {
    /// An answer to a question as JSON, in the order of the questions; may be given several times
    #[arg(long = "answer", value_name = "JSON")]
    answers: Vec<String>,

    /// Print a line per event instead of drawing the steps, as without a terminal
    #[arg(long)]
    events: bool,
}

/// Who plays, and what.
pub(super) struct Cast {
    /// The agents: the name that workflows call each by, and its workflow.
    pub(super) agents: &'static [(&'static str, Example)],
    /// The workflows of the host that asks. The first one is run.
    pub(super) asks: &'static [Example],
    pub(super) inputs: Value,
    pub(super) configurable: Value,
}

/// Starts the hosts, and follows a run to its end.
pub(super) async fn perform(cast: &Cast, watching: &Watching) -> Result<Exit> {
    let mut signals = Signals::catch()?;
    let read = |text: &String| {
        serde_json::from_str(text)
            .map_err(|error| Failure::new(Exit::Usage, format!("--answer {text} is not JSON: {error}")))
    };
    let answers: Vec<Value> = watching.answers.iter().map(read).collect::<Result<_, _>>()?;
    let folder = tempfile::Builder::new()
        .prefix("wopr-demo-")
        .tempdir()
        .context("make a folder for the demo")?;
    let mut hosts = Vec::new();
    let told = tell(
        cast,
        (answers, watching.events),
        &folder,
        &mut hosts,
        &mut signals,
    )
    .await;
    for host in &mut hosts {
        host.kill().await;
    }
    let told = told.map_err(|error| match hosts.last() {
        // Nothing is wrong with a host whose run waits for an answer.
        Some(last) if !is_waiting(&error) => super::explain(error, last),
        Some(_) | None => error,
    });
    folder.close().context("remove the demo's folder")?;
    told
}

fn is_waiting(error: &anyhow::Error) -> bool {
    let failure = error.downcast_ref::<Failure>();
    failure.is_some_and(|failure| failure.exit() == Exit::Waiting)
}

/// The part of [`perform`] after which the hosts are killed; on drop at the latest.
async fn tell(
    cast: &Cast,
    (answers, events): (Vec<Value>, bool),
    folder: &TempDir,
    hosts: &mut Vec<Place>,
    signals: &mut Signals,
) -> Result<Exit> {
    let paint = Paint::stderr();
    let mut known = Vec::new();
    for (name, example) in cast.agents {
        let mut host = Place::new(&subfolder(folder.path(), name)?, &[*example], &[])?;
        let listening = host.start().await?;
        output::note(format!(
            "{} listens at {} (process {})",
            paint.bold(format!("the {name}")),
            paint.cyan(&listening.listening),
            listening.pid
        ))?;
        known.push((*name, listening.listening, host.key().to_owned()));
        hosts.push(host);
    }
    let agents: Vec<_> = known
        .iter()
        .map(|(name, url, key)| Agent { name, url, key })
        .collect();
    let mut host = Place::new(&subfolder(folder.path(), "host")?, cast.asks, &agents)?;
    let listening = host.start().await?;
    let client = Client::at(
        &listening.listening,
        Some(host.key().to_owned()),
        &Trust::default(),
    )?;
    hosts.push(host);
    client.get("/readyz").await?;
    output::note(format!(
        "{} asks {} from {} (process {})",
        paint.bold("wopr"),
        if agents.len() == 1 { "it" } else { "them" },
        paint.cyan(&listening.listening),
        listening.pid
    ))?;
    output::note("")?;

    let workflow = cast.asks.first().context("run the demo: it has no workflow")?.id;
    let body = json!({ "workflowId": workflow, "inputs": cast.inputs, "configurable": cast.configurable });
    let created = client.post("/v1/runs", &body).await?;
    let run = render::text(&created, "runId").to_owned();
    let view = View::of(&client, workflow, false, events).await;
    let following = Following::start(&client, &run, answers, view).await?;
    let (end, outputs) = following.finish(signals).await?;
    match end {
        End::Interrupted => Ok(Exit::Interrupted),
        End::Waiting(snapshot) => {
            let question = snapshot.interrupt.map(|view| {
                let answer = render::example_answer(&view);
                let asked = render::question(&view).join(" ");
                format!("{asked}; answer it with --answer '{answer}'")
            });
            let text = format!("the run waits for an answer: {}", question.unwrap_or_default());
            Err(Failure::new(Exit::Waiting, text).into())
        }
        End::Terminal(snapshot) => {
            if let Some(error) = &snapshot.error {
                let text = format!("the run failed: {} ({})", error.message, error.code);
                return Err(Failure::new(Exit::Failed, output::plain(&text)).into());
            }
            output::note("")?;
            show_products(&artifacts(&client, &run).await?, &outputs)?;
            Ok(Exit::Ok)
        }
    }
}

fn subfolder(folder: &Path, name: &str) -> Result<std::path::PathBuf> {
    let path = folder.join(name);
    fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
    Ok(path)
}
