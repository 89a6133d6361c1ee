//! `wopr a2a`: a command-line client for any A2A agent.

mod card;
mod list;
mod place;
mod push_config;
mod verify;

use anyhow::Result;
use clap::{Args, Subcommand};
use futures_util::{Stream, StreamExt as _};
use serde::Serialize;
use serde_json::{Value, json};
use wopr_wire::a2a::model::{Part, SendMessageRequest, SendMessageResponse, StreamResponse, Task, TaskState};

use self::place::Place;
use crate::{
    agent::{self, Item},
    client::parse_url,
    exit::{Exit, Failure},
    output::{self, Paint, Spinner},
    render,
    signals::Signals,
};

/// Talk to an A2A agent.
///
/// The protocol version (1.0 or 0.3) and binding (JSON-RPC, HTTP+JSON, gRPC) are chosen from the agent's
/// card: the newest version first, then the order of the card. The command exits with 0 if the task
/// completed, and with 6 if it waits for input.
#[derive(Debug, Args)]
pub(crate) struct A2a {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show an agent's card; if none of its interfaces can be used, say why and exit with 1
    Card {
        /// The agent, instead of --server
        #[arg(value_name = "URL")]
        agent: Option<String>,
        /// Show the extended card for authenticated clients, in its 1.0 form
        #[arg(long)]
        extended: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Check the signatures of an agent's card
    #[command(name = "verify-card")]
    VerifyCard(verify::Verify),
    /// Send a message and wait for the answer
    Send {
        #[command(flatten)]
        message: Box<Message>,
        /// Return as soon as the task is accepted
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Send a message and stream the updates
    Stream {
        #[command(flatten)]
        message: Box<Message>,
        #[command(flatten)]
        place: Place,
    },
    /// Show a task
    Get {
        /// The task
        task: String,
        /// Maximum number of history messages
        #[arg(long, value_name = "N")]
        history: Option<u32>,
        /// The agent, instead of --server
        #[arg(value_name = "URL")]
        agent: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// List tasks, latest change first
    List(list::List),
    /// Follow a running task
    Subscribe {
        /// The task
        task: String,
        /// Only events after this one
        #[arg(long, visible_alias = "last-event-id", value_name = "ID")]
        after: Option<String>,
        /// The agent, instead of --server
        #[arg(value_name = "URL")]
        agent: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Cancel a task
    Cancel {
        /// The task
        task: String,
        /// The agent, instead of --server
        #[arg(value_name = "URL")]
        agent: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Manage the push notification configurations of a task
    #[command(name = "push-config")]
    PushConfig(push_config::PushConfig),
}

/// The message to send.
#[derive(Debug, Args)]
struct Message {
    /// The text; each argument becomes a part
    text: Vec<String>,
    /// A data part as JSON; may be given several times
    #[arg(long, value_name = "JSON")]
    data: Vec<String>,
    /// The skill to address: on wopr, a workflow
    #[arg(long, alias = "skill", value_name = "ID")]
    workflow: Option<String>,
    /// The task that the message belongs to [default: a new task]
    #[arg(long, value_name = "ID")]
    task: Option<String>,
    /// The context that the message belongs to
    #[arg(long, value_name = "ID")]
    context: Option<String>,
    /// The message id, so that a message sent twice counts once [default: a random id]
    #[arg(long, value_name = "ID")]
    message_id: Option<String>,
}

impl A2a {
    pub(crate) async fn run(self) -> Result<Exit> {
        match self.verb {
            Verb::Card {
                agent,
                extended,
                place,
            } => card::show(&place.at(agent), extended).await,
            Verb::List(list) => list.run().await,
            Verb::PushConfig(config) => config.run().await,
            Verb::VerifyCard(verify) => verify.run().await,
            Verb::Send {
                message,
                no_wait,
                place,
            } => {
                let mut request = message.request()?;
                request.configuration.return_immediately = no_wait;
                let agent = place.agent().await?;
                let spinner = Spinner::start("waiting for the answer");
                let answer = agent.send(request).await?;
                drop(spinner);
                place.show(&answer)
            }
            Verb::Stream { message, place } => {
                let request = message.request()?;
                let agent = place.agent().await?;
                place.follow(agent.stream(request).await?).await
            }
            Verb::Get {
                task,
                history,
                agent,
                place,
            } => {
                let place = place.at(agent);
                let task = place.agent().await?.get(&task, history).await?;
                place.show_task(&task)
            }
            Verb::Subscribe {
                task,
                after,
                agent,
                place,
            } => {
                let place = place.at(agent);
                let agent = place.agent().await?;
                place
                    .follow(agent.subscribe(&task, after.as_deref()).await?)
                    .await
            }
            Verb::Cancel { task, agent, place } => {
                let place = place.at(agent);
                let task = place.agent().await?.cancel(&task).await?;
                place.show_task(&task)?;
                Ok(Exit::Ok)
            }
        }
    }
}

impl Message {
    fn request(&self) -> Result<SendMessageRequest> {
        // Text may be a URL too, so the first argument is never taken for the agent: that server would
        // receive the key.
        if self.text.len() > 1 && self.text.first().is_some_and(|text| parse_url(text).is_ok()) {
            output::note("the address is sent as text; --server names the agent")?;
        }
        let mut parts: Vec<_> = self.text.iter().map(Part::text).collect();
        for text in &self.data {
            let data: Value = serde_json::from_str(text)
                .map_err(|error| Failure::new(Exit::Usage, format!("--data {text} is not JSON: {error}")))?;
            parts.push(Part::data(data));
        }
        if parts.is_empty() {
            return Err(Failure::new(Exit::Usage, "there is nothing to send: give a text or --data").into());
        }
        let mut request = agent::message(parts)?;
        let message = &mut request.message;
        message.task_id.clone_from(&self.task);
        message.context_id.clone_from(&self.context);
        if let Some(id) = &self.message_id {
            message.message_id.clone_from(id);
        }
        if let Some(workflow) = &self.workflow {
            // wopr reads the first name, other agents the second.
            message
                .metadata
                .insert("openwop".to_owned(), json!({ "workflowId": workflow }));
            message.metadata.insert("skillId".to_owned(), json!(workflow));
        }
        Ok(request)
    }
}

impl Place {
    fn show(&self, answer: &SendMessageResponse) -> Result<Exit> {
        match answer {
            SendMessageResponse::Task(task) if !self.format.json => self.show_task(task),
            SendMessageResponse::Message(message) if !self.format.json => {
                output::line(render::message(message))?;
                Ok(Exit::Ok)
            }
            answer => {
                output::json(answer)?;
                Ok(match answer {
                    SendMessageResponse::Task(task) => exit_of(task.status.state),
                    SendMessageResponse::Message(_) => Exit::Ok,
                })
            }
        }
    }

    fn show_task(&self, task: &Task) -> Result<Exit> {
        if self.format.json {
            output::json(task)?;
        } else {
            show_task(task)?;
        }
        Ok(exit_of(task.status.state))
    }

    /// Prints a stream until it ends or a signal arrives.
    async fn follow(&self, mut items: impl Stream<Item = Result<Item>> + Unpin) -> Result<Exit> {
        #[derive(Serialize)]
        struct Line<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            id: Option<&'a str>,
            #[serde(flatten)]
            item: &'a StreamResponse,
        }
        let mut signals = Signals::catch()?;
        let spinner = (!self.format.json).then(|| Spinner::start("following the task"));
        let mut exit = Exit::Ok;
        loop {
            let item = tokio::select! {
                item = items.next() => item,
                () = signals.next() => return Ok(Exit::Interrupted),
            };
            let Some(item) = item else { break };
            let (id, item) = item?;
            if let Some(state) = state_of(&item) {
                exit = exit_of(state);
            }
            match &spinner {
                None => output::json_line(&Line {
                    id: id.as_deref(),
                    item: &item,
                })?,
                Some(spinner) => {
                    for line in lines_of(Paint::stdout(), &item) {
                        spinner.line(line)?;
                    }
                }
            }
        }
        Ok(exit)
    }
}

/// Returns the exit code for the last seen state of a task.
fn exit_of(state: TaskState) -> Exit {
    match state {
        TaskState::Failed | TaskState::Canceled | TaskState::Rejected => Exit::Failed,
        TaskState::InputRequired | TaskState::AuthRequired => Exit::Waiting,
        TaskState::Unspecified | TaskState::Submitted | TaskState::Working | TaskState::Completed => Exit::Ok,
    }
}

fn state_of(item: &StreamResponse) -> Option<TaskState> {
    match item {
        StreamResponse::Task(task) => Some(task.status.state),
        StreamResponse::StatusUpdate(update) => Some(update.status.state),
        StreamResponse::Message(_) | StreamResponse::ArtifactUpdate(_) => None,
    }
}

/// Formats a stream item for display.
pub(crate) fn lines_of(paint: Paint, item: &StreamResponse) -> Vec<String> {
    let state = |state: TaskState| paint.state(&render::task_state(state));
    let mut lines = Vec::new();
    match item {
        StreamResponse::Task(task) => {
            lines.push(format!(
                "{} {}",
                paint.bold(output::plain(&task.id)),
                state(task.status.state)
            ));
        }
        StreamResponse::Message(message) => lines.push(render::indented(&render::message(message), 2)),
        StreamResponse::StatusUpdate(update) => {
            lines.push(state(update.status.state));
            if let Some(message) = &update.status.message {
                lines.push(render::indented(&render::message(message), 2));
            }
        }
        StreamResponse::ArtifactUpdate(update) => {
            let artifact = &update.artifact;
            let name = artifact.name.as_deref().unwrap_or(&artifact.artifact_id);
            lines.push(format!(
                "{} {}",
                paint.cyan("artifact"),
                paint.bold(output::plain(name))
            ));
            lines.push(render::indented(&render::artifact(artifact), 2));
        }
    }
    lines
}

fn show_task(task: &Task) -> Result<()> {
    let paint = Paint::stdout();
    let state = render::task_state(task.status.state);
    output::line(format!(
        "{}  {}",
        paint.bold(output::plain(&task.id)),
        paint.state(&state)
    ))?;
    output::line(format!(
        "{} {}",
        paint.dim("context  "),
        output::plain(&task.context_id)
    ))?;
    if let Some(message) = &task.status.message {
        output::line(paint.dim("says"))?;
        output::line(render::indented(&render::message(message), 2))?;
    }
    for artifact in &task.artifacts {
        let name = artifact.name.as_deref().unwrap_or(&artifact.artifact_id);
        output::line(format!("{} {}", paint.dim("artifact "), output::plain(name)))?;
        output::line(render::indented(&render::artifact(artifact), 2))?;
    }
    Ok(())
}
