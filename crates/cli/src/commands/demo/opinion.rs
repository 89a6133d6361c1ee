//! `wopr demo second-opinion`: a workflow that asks two agents and a person.
//!
//! ```text
//!   you ── answers ──> host ── A2A ──> builder   streams its estimate
//!                       '───── A2A ──> sceptic   asks back before it answers
//! ```
//!
//! Each of the three is a process of its own, with a store of its own. All end with the demo.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::process::{Agent, Place};
use crate::{
    client::{Client, Trust},
    commands::run::{End, Following, View, artifacts, show_products},
    examples::{Example, second_opinion},
    exit::{Exit, Failure},
    output::{self, Paint},
    render,
    signals::Signals,
};

/// The agents: the name that the workflow calls each by, and its workflow.
const AGENTS: [(&str, Example); 2] = [
    ("builder", second_opinion::BUILDER),
    ("sceptic", second_opinion::SCEPTIC),
];

/// Watch a workflow ask two agents and you.
///
/// Starts two hosts as agents and a third one that asks them, all on this machine. One agent asks back, and you
/// decide. Without a terminal, every question needs an --answer.
#[derive(Debug, Args)]
pub(super) struct SecondOpinion {
    /// What to ask about
    #[arg(
        value_name = "TEXT",
        default_value = "Move the shop to the new checkout on Friday"
    )]
    prompt: String,

    /// An answer to a question as JSON, first to the agent's and then to the host's; may be given several times
    #[arg(long = "answer", value_name = "JSON")]
    answers: Vec<String>,

    /// Print a line per event instead of drawing the steps, as without a terminal
    #[arg(long)]
    events: bool,
}

impl SecondOpinion {
    pub(super) async fn run(self) -> Result<Exit> {
        let mut signals = Signals::catch()?;
        let read = |text: &String| {
            serde_json::from_str(text)
                .map_err(|error| Failure::new(Exit::Usage, format!("--answer {text} is not JSON: {error}")))
        };
        let answers: Vec<Value> = self.answers.iter().map(read).collect::<Result<_, _>>()?;
        let folder = tempfile::Builder::new()
            .prefix("wopr-demo-")
            .tempdir()
            .context("make a folder for the demo")?;
        let mut hosts = Vec::new();
        let told = self.tell(&folder, &mut hosts, answers, &mut signals).await;
        for host in &mut hosts {
            host.kill().await;
        }
        let told = told.map_err(|error| match hosts.last() {
            Some(last) => super::explain(error, last),
            None => error,
        });
        folder.close().context("remove the demo's folder")?;
        told
    }

    /// Starts the hosts, which are killed on drop at the latest, and follows a run.
    async fn tell(
        &self,
        folder: &TempDir,
        hosts: &mut Vec<Place>,
        answers: Vec<Value>,
        signals: &mut Signals,
    ) -> Result<Exit> {
        let paint = Paint::stderr();
        let mut known = Vec::new();
        for (name, example) in AGENTS {
            let mut host = Place::new(&subfolder(folder.path(), name)?, &[example], &[])?;
            let listening = host.start().await?;
            output::note(format!(
                "{} listens at {} (process {})",
                paint.bold(format!("the {name}")),
                paint.cyan(&listening.listening),
                listening.pid
            ))?;
            known.push((name, listening.listening, host.key().to_owned()));
            hosts.push(host);
        }
        let agents: Vec<_> = known
            .iter()
            .map(|(name, url, key)| Agent { name, url, key })
            .collect();
        let asks = second_opinion::ASKS;
        let mut host = Place::new(&subfolder(folder.path(), "host")?, &[asks], &agents)?;
        let listening = host.start().await?;
        let client = Client::at(
            &listening.listening,
            Some(host.key().to_owned()),
            &Trust::default(),
        )?;
        hosts.push(host);
        client.get("/readyz").await?;
        output::note(format!(
            "{} asks them from {} (process {})",
            paint.bold("wopr"),
            paint.cyan(&listening.listening),
            listening.pid
        ))?;
        output::note("")?;

        let body = json!({ "workflowId": asks.id, "inputs": { "prompt": self.prompt } });
        let created = client.post("/v1/runs", &body).await?;
        let run = render::text(&created, "runId").to_owned();
        let view = View::of(&client, asks.id, false, self.events).await;
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
}

fn subfolder(folder: &Path, name: &str) -> Result<std::path::PathBuf> {
    let path = folder.join(name);
    fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
    Ok(path)
}
