//! `wopr interrupts`: what runs wait for, and answering it.

use anyhow::{Error, Result};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wopr_wire::openwop::run::InterruptView;

use crate::{
    args::{Format, Remote},
    ask,
    client::{Client, escape},
    exit::{Exit, Failure},
    output::{self, Paint},
    render,
};

/// List what runs wait for, and answer.
#[derive(Debug, Args)]
pub(crate) struct Interrupts {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List what runs wait for
    List {
        /// At most so many
        #[arg(long, default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        format: Format,
    },
    /// Answer what a run waits for; asks on a terminal when the command line has no answer
    Resolve(Box<Resolve>),
}

#[derive(Debug, Args)]
struct Resolve {
    /// The run
    run: String,
    /// The node that waits; the one that does where absent
    node: Option<String>,
    /// Accept an approval
    #[arg(long, group = "answer")]
    accept: bool,
    /// Reject an approval, with the reason if one is given
    #[arg(long, group = "answer", value_name = "WHY", num_args = 0..=1, default_missing_value = "")]
    reject: Option<String>,
    /// Send an approval back with words
    #[arg(long, group = "answer", value_name = "TEXT")]
    refine: Option<String>,
    /// Answer a question of a clarification: id=text, or id:=JSON; may be given several times
    #[arg(long = "reply", group = "answer", value_name = "ID=VALUE")]
    replies: Vec<String>,
    /// The whole answer as JSON
    #[arg(long, group = "answer", value_name = "JSON")]
    value: Option<String>,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    format: Format,
}

impl Interrupts {
    pub(crate) async fn run(self) -> Result<Exit> {
        match self.verb {
            Verb::List {
                limit,
                remote,
                format,
            } => list(&Client::new(&remote)?, limit, format).await,
            Verb::Resolve(resolve) => resolve.run().await,
        }
    }
}

async fn list(client: &Client, limit: usize, format: Format) -> Result<Exit> {
    let interrupts = client.pages("/v1/interrupts", "interrupts", limit).await?;
    if format.json {
        output::json(&json!({ "interrupts": interrupts }))?;
        return Ok(Exit::Ok);
    }
    if interrupts.is_empty() {
        output::note("nothing waits for an answer")?;
        return Ok(Exit::Ok);
    }
    let rows: Vec<_> = interrupts
        .iter()
        .map(|item| {
            let cell = |name: &str| render::text(item, name).to_owned();
            let question = serde_json::from_value::<InterruptView>(item.clone());
            let question = question.map_or_else(|_| String::new(), |view| render::question(&view).join(" "));
            vec![
                cell("runId"),
                cell("nodeId"),
                cell("kind"),
                cell("workflowId"),
                render::short(&question),
            ]
        })
        .collect();
    output::table(&["RUN", "NODE", "KIND", "WORKFLOW", "QUESTION"], &rows)?;
    Ok(Exit::Ok)
}

impl Resolve {
    async fn run(self) -> Result<Exit> {
        let client = Client::new(&self.remote)?;
        let given = self.given()?;
        let (node, answer) = match (self.node.clone(), given) {
            (Some(node), Some(answer)) => (node, answer),
            (node, given) => {
                let view = self.open(&client, node).await?;
                let answer = match given {
                    Some(answer) => answer,
                    None => self.asked(&view).await?,
                };
                (view.node_id, answer)
            }
        };
        let path = format!("/v1/runs/{}/interrupts/{}", escape(&self.run), escape(&node));
        let answer = match client.post(&path, &json!({ "resumeValue": answer })).await {
            Ok(answer) => answer,
            Err(refused) => return Err(self.explain(&client, &node, refused).await),
        };
        if self.format.json {
            output::json(&answer)?;
        } else {
            let status = render::text(&answer, "status");
            output::line(format!("{}  {}", self.run, Paint::stdout().state(status)))?;
        }
        Ok(Exit::Ok)
    }

    /// Adds what may help whose answer was refused: replies do not answer an approval.
    async fn explain(&self, client: &Client, node: &str, refused: Error) -> Error {
        let refused = match refused.downcast::<Failure>() {
            Ok(failure) if failure.exit() == Exit::Failed && !self.replies.is_empty() => failure,
            Ok(failure) => return failure.into(),
            Err(error) => return error,
        };
        // The refusal stands whether or not this can be read.
        let view = self.open(client, Some(node.to_owned())).await;
        match view {
            Ok(view) if view.kind == "approval" => refused
                .hint(
                    "--reply answers the questions of a clarification; this is an approval: --accept, --reject or \
                     --refine",
                )
                .into(),
            Ok(_) | Err(_) => refused.into(),
        }
    }

    /// What the run waits for, at the node if one is named.
    async fn open(&self, client: &Client, node: Option<String>) -> Result<InterruptView> {
        let snapshot = client.run(&self.run).await?;
        let view = snapshot.interrupt.ok_or_else(|| {
            Failure::new(
                Exit::NotFound,
                format!("{} waits for nothing; it is {}", self.run, snapshot.status),
            )
        })?;
        match node {
            Some(node) if node != view.node_id => Err(Failure::new(
                Exit::NotFound,
                format!("{} waits at {}, not at {node}", self.run, view.node_id),
            )
            .into()),
            _ => Ok(view),
        }
    }

    async fn asked(&self, view: &InterruptView) -> Result<Value> {
        let nobody = || {
            Failure::new(
                Exit::Waiting,
                "there is no answer on the command line and nobody to ask",
            )
            .hint(format!(
                "give one with --value '{}'",
                render::example_answer(view)
            ))
        };
        if !output::is_conversation() {
            return Err(nobody().into());
        }
        let view = view.clone();
        let answer = tokio::task::spawn_blocking({
            let view = view.clone();
            move || ask::ask(&view)
        });
        match answer.await?? {
            Some(answer) => Ok(answer),
            None => Err(Failure::new(Exit::Waiting, "there was no answer").into()),
        }
    }

    /// The answer of the command line.
    fn given(&self) -> Result<Option<Value>> {
        if self.accept {
            return Ok(Some(json!({ "action": "accept" })));
        }
        if let Some(reason) = &self.reject {
            return Ok(Some(if reason.is_empty() {
                json!({ "action": "reject" })
            } else {
                json!({ "action": "reject", "feedback": reason })
            }));
        }
        if let Some(text) = &self.refine {
            let feedback = json!({ "scope": "whole", "text": text });
            return Ok(Some(json!({ "action": "refine", "refineFeedback": feedback })));
        }
        if let Some(text) = &self.value {
            let read = |error| Failure::new(Exit::Usage, format!("--value is not JSON: {error}"));
            return Ok(Some(serde_json::from_str(text).map_err(read)?));
        }
        if self.replies.is_empty() {
            return Ok(None);
        }
        let mut answers = serde_json::Map::new();
        for text in &self.replies {
            let (id, value) = text.split_once('=').ok_or_else(|| {
                Failure::new(Exit::Usage, format!("--reply {text} is not of the form id=value"))
            })?;
            let (id, value) = match id.strip_suffix(':') {
                None => (id, Value::from(value)),
                Some(id) => {
                    let read =
                        |error| Failure::new(Exit::Usage, format!("--reply {id}:= is not JSON: {error}"));
                    (id, serde_json::from_str(value).map_err(read)?)
                }
            };
            answers.insert(id.to_owned(), value);
        }
        Ok(Some(json!({ "answers": answers })))
    }
}
