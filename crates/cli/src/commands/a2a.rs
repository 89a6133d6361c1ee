//! `wopr a2a`: a command-line client for any A2A agent.

mod card;
mod list;
mod place;
mod push_config;
mod verify;

use anyhow::{Error, Result};
use clap::{Args, Subcommand};
use futures_util::{StreamExt as _, stream};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use wopr_wire::a2a::model::{Part, SendMessageRequest, SendMessageResponse, StreamResponse, Task, TaskState};

use self::place::Place;
use crate::{
    agent::{self, Agent, Items},
    client::parse_url,
    exit::{Exit, Failure},
    follow::{FIRST_PAUSE, MAX_PAUSE, TIMEOUT, is_passing},
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
                let items = agent.stream(request).await?;
                place.follow(&agent, items, Until::Question).await
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
                let items = agent.subscribe(&task, after.as_deref()).await?;
                place.follow(&agent, items, Until::End).await
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

    /// Prints a stream until it ends or a signal arrives. A stream that breaks off goes on by a subscription to its task.
    async fn follow(&self, agent: &Agent, mut items: Items, until: Until) -> Result<Exit> {
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
        let mut seen = Seen::default();
        let mut is_subscribed = false;
        loop {
            let item = tokio::select! {
                item = items.next() => item,
                () = signals.next() => return Ok(Exit::Interrupted),
            };
            let Some(item) = item else { break };
            let (id, item) = match item {
                Ok(item) => item,
                Err(error) => {
                    let again = tokio::select! {
                        again = seen.again(agent, error) => again?,
                        () = signals.next() => return Ok(Exit::Interrupted),
                    };
                    match again {
                        Again::Stream(more) => {
                            items = more;
                            is_subscribed = true;
                            continue;
                        }
                        Again::Ended(task) => {
                            items = Box::pin(stream::empty());
                            (None, StreamResponse::Task(*task))
                        }
                    }
                }
            };
            seen.note(id.as_deref(), &item);
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
            // The stream of a message ends by itself when the task asks; a subscription goes on.
            if until == Until::Question && is_subscribed && exit == Exit::Waiting {
                break;
            }
        }
        Ok(exit)
    }
}

/// Where a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// When the task asks, at the latest.
    Question,
    End,
}

/// What a stream has shown so far, from which another one goes on.
#[derive(Debug, Default)]
struct Seen {
    task: Option<String>,
    /// The id of the last event.
    last: Option<String>,
    /// When the first of the failures since the last event was.
    failing_since: Option<Instant>,
    /// Subscriptions since the last event.
    n_tries: u32,
}

/// How a stream that broke off goes on.
enum Again {
    Stream(Items),
    /// The task ended meanwhile, so nothing can be subscribed to.
    Ended(Box<Task>),
}

impl Seen {
    fn note(&mut self, id: Option<&str>, item: &StreamResponse) {
        let task = match item {
            StreamResponse::Task(task) => Some(&task.id),
            StreamResponse::StatusUpdate(update) => Some(&update.task_id),
            StreamResponse::ArtifactUpdate(update) => Some(&update.task_id),
            StreamResponse::Message(_) => None,
        };
        if let Some(task) = task {
            self.task = Some(task.clone());
        }
        if let Some(id) = id {
            self.last = Some(id.to_owned());
        }
        self.failing_since = None;
        self.n_tries = 0;
    }

    /// Subscribes to the task until the agent takes it, for a minute at most.
    async fn again(&mut self, agent: &Agent, broken: Error) -> Result<Again> {
        let Some(task) = self.task.clone().filter(|_| is_passing(&broken)) else {
            return Err(broken);
        };
        if self.n_tries == 0 {
            output::note(format!("{broken:#}; subscribing to the task again"))?;
        }
        let mut failed = broken;
        loop {
            let since = *self.failing_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= TIMEOUT {
                let failure = Failure::new(Exit::Unreachable, format!("{failed:#}"));
                let hint = format!("`wopr a2a subscribe {task}` follows the task later");
                return Err(failure.hint(hint).into());
            }
            tokio::time::sleep((FIRST_PAUSE * 2_u32.pow(self.n_tries.min(10))).min(MAX_PAUSE)).await;
            self.n_tries += 1;
            failed = match agent.subscribe(&task, self.last.as_deref()).await {
                Ok(items) => return Ok(Again::Stream(items)),
                Err(error) if is_passing(&error) => error,
                // An agent takes no subscription to a task that has ended.
                Err(error) => match agent.get(&task, None).await {
                    Ok(task) if task.status.state.is_terminal() => return Ok(Again::Ended(Box::new(task))),
                    Err(passing) if is_passing(&passing) => passing,
                    Ok(_) | Err(_) => return Err(error),
                },
            };
        }
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
    for place in &task.unreadable {
        output::line(format!("{} {}", paint.dim("left out "), output::plain(place)))?;
    }
    Ok(())
}
