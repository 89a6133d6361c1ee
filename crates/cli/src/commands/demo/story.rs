//! The steps of the demo, and what it prints.

use std::{
    os::unix::process::ExitStatusExt as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::{Stream, StreamExt as _};
use serde_json::json;
use wopr_wire::{
    a2a::model::{Part, StreamResponse, TaskState},
    openwop::event::RunEventDoc,
};

use super::process::{Place, ourselves};
use crate::{
    agent::{self, Agent, Item, Wanted},
    client::{self, Client, Trust},
    commands::a2a::lines_of,
    output::{self, Paint, Spinner},
    render,
};

/// The client's message.
const REQUEST: &str = "A spring sale for customers who left something in their cart";
/// The signal number of SIGKILL, as in an exit status.
const SIGKILL: i32 = 9;

/// The state of the demo.
pub(super) struct Story<'a> {
    place: &'a mut Place,
    pace: Duration,
    paint: Paint,
    step: u32,
}

/// A ready host, and its REST and A2A clients.
struct Reached {
    agent: Agent,
    client: Client,
    origin: String,
    pid: u32,
    took: Duration,
}

impl<'a> Story<'a> {
    pub(super) fn new(place: &'a mut Place, pace: Duration) -> Self {
        Self {
            place,
            pace,
            paint: Paint::stdout(),
            step: 0,
        }
    }

    /// Runs all steps within `timeout`, not counting pauses.
    pub(super) async fn tell(&mut self, timeout: Duration) -> Result<()> {
        let pauses = self.pace.saturating_mul(8);
        tokio::time::timeout(timeout + pauses, self.steps())
            .await
            .context("finish the demo in time")?
    }

    async fn steps(&mut self) -> Result<()> {
        self.begin("Start a host on a new SQLite database").await?;
        let first = self.reach().await?;
        self.say(format!(
            "{} serves {} (process {})",
            self.paint.bold("wopr"),
            self.paint.cyan(&first.origin),
            first.pid
        ))?;

        self.begin("Fetch its agent card, as any A2A client would")
            .await?;
        self.show_card(&first.agent)?;

        self.begin("Send a message and follow the stream").await?;
        self.say(format!("{} {REQUEST}", self.paint.dim("you:")))?;
        let (task, context) = self.ask(&first.agent).await?;

        self.begin("Kill the host with SIGKILL, as a crash would").await?;
        self.kill(&first).await?;

        self.begin("Start it again on the same database").await?;
        let second = self.reach().await?;
        let took = second.took.as_millis();
        self.say(format!(
            "process {} has the task again, {took} ms after it was started",
            second.pid
        ))?;

        self.begin("Subscribe to the task again, and approve it with a message")
            .await?;
        self.approve(&second.agent, &task, &context).await?;

        self.begin("Read the run's log: one history, across both processes")
            .await?;
        self.show_log(&second.client, &task).await?;

        let status = self.place.stop().await?;
        ensure!(status.success(), "stop the host in order: it ended with {status}");
        self.farewell()
    }

    /// Starts a step.
    async fn begin(&mut self, title: &str) -> Result<()> {
        if self.step > 0 {
            output::line("")?;
            tokio::time::sleep(self.pace).await;
        }
        self.step += 1;
        output::line(self.paint.bold(format!("{}. {title}", self.step)))
    }

    /// Prints a line of the current step.
    fn say(&self, text: impl AsRef<str>) -> Result<()> {
        output::line(indent(text.as_ref()))
    }

    /// Starts a host and connects its clients.
    async fn reach(&mut self) -> Result<Reached> {
        let spinner = Spinner::start("starting");
        let begun = Instant::now();
        let listening = self.place.start().await?;
        let key = Some(self.place.key().to_owned());
        let client = Client::at(&listening.listening, key.clone(), &Trust::default())?;
        client.get("/readyz").await?;
        let took = begun.elapsed();
        let agent = Agent::find(&listening.listening, key, Wanted::default(), &Trust::default()).await?;
        drop(spinner);
        Ok(Reached {
            agent,
            client,
            origin: listening.listening,
            pid: listening.pid,
            took,
        })
    }

    fn show_card(&self, agent: &Agent) -> Result<()> {
        let card = agent.card();
        self.say(format!(
            "{}: {}",
            self.paint.bold(output::plain(&card.name)),
            output::plain(&card.description)
        ))?;
        for skill in &card.skills {
            self.say(format!(
                "{} {}",
                self.paint.cyan(format!("{:<16}", output::plain(&skill.id))),
                self.paint.dim(output::plain(&skill.description))
            ))?;
        }
        self.say(self.paint.dim(format!(
            "A2A {} over JSON-RPC at {}",
            agent.version(),
            agent.endpoint()
        )))
    }

    /// Sends the request and follows the task until it waits. Returns the ids of the task and its context.
    async fn ask(&self, agent: &Agent) -> Result<(String, String)> {
        let mut request = agent::message(vec![Part::text(REQUEST)])?;
        let workflow = json!({ "workflowId": "campaign-brief" });
        request.message.metadata.insert("openwop".to_owned(), workflow);
        let mut items = agent.stream(request).await?;
        let mut found = None;
        let spinner = Spinner::start("streaming");
        while let Some(item) = items.next().await {
            let (id, item) = item?;
            self.show_item(&spinner, id.as_deref(), &item)?;
            if let StreamResponse::Task(task) = &item {
                found = Some((task.id.clone(), task.context_id.clone()));
            }
            if state_of(&item) == Some(TaskState::InputRequired) {
                drop(spinner);
                return found.context("learn the task's id from the stream");
            }
        }
        bail!("see the task wait: the stream ended first")
    }

    async fn kill(&mut self, reached: &Reached) -> Result<()> {
        let status = self.place.kill().await.context("kill the host: it was gone")?;
        ensure!(
            status.signal() == Some(SIGKILL),
            "kill the host: it had ended by itself with {status}"
        );
        self.say(format!(
            "process {} is {}: no goodbye, nothing flushed",
            reached.pid,
            self.paint.red("dead (signal 9)")
        ))?;
        let Err(error) = reached.client.get("/readyz").await else {
            bail!("show that the host is gone: something still answers");
        };
        self.say(self.paint.dim(format!("GET /readyz: {error}")))
    }

    /// Resubscribes to the task, answers it meanwhile, and waits until it completes.
    async fn approve(&self, agent: &Agent, task: &str, context: &str) -> Result<()> {
        let mut items = agent.subscribe(task, None).await?;
        let (id, item) = items
            .next()
            .await
            .context("subscribe: the stream ended at once")??;
        let spinner = Spinner::start("streaming");
        self.show_item(&spinner, id.as_deref(), &item)?;
        ensure!(
            state_of(&item) == Some(TaskState::InputRequired),
            "find the task waiting after the crash"
        );
        let answer = json!({ "approve": true });
        spinner.line(indent(&format!("{} {answer}", self.paint.dim("you:"))))?;
        let mut request = agent::message(vec![Part::data(answer)])?;
        request.message.task_id = Some(task.to_owned());
        request.message.context_id = Some(context.to_owned());
        request.configuration.return_immediately = true;
        agent.send(request).await?;
        let state = self.finish(&spinner, items).await?;
        drop(spinner);
        ensure!(
            state == TaskState::Completed,
            "see the task completed: it is {}",
            render::task_state(state)
        );
        Ok(())
    }

    async fn finish(
        &self,
        spinner: &Spinner,
        mut items: impl Stream<Item = Result<Item>> + Unpin,
    ) -> Result<TaskState> {
        while let Some(item) = items.next().await {
            let (id, item) = item?;
            self.show_item(spinner, id.as_deref(), &item)?;
            if let Some(state) = state_of(&item).filter(|state| state.is_terminal()) {
                return Ok(state);
            }
        }
        bail!("see the task end: the stream ended first")
    }

    /// Prints a stream item with its id, which is the sequence number of the event.
    fn show_item(&self, spinner: &Spinner, id: Option<&str>, item: &StreamResponse) -> Result<()> {
        let mut lines = lines_of(self.paint, item).into_iter();
        let id = id.map_or_else(String::new, |id| format!("#{id}"));
        if let Some(first) = lines.next() {
            spinner.line(indent(&format!("{} {first}", self.paint.dim(format!("{id:<4}")))))?;
        }
        for more in lines {
            for line in render::indented(&more, 8).lines() {
                spinner.line(if line.is_empty() {
                    String::new()
                } else {
                    self.paint.dim(line)
                })?;
            }
        }
        Ok(())
    }

    async fn show_log(&self, client: &Client, run: &str) -> Result<()> {
        let log = client.log(run).await?;
        self.say(
            self.paint
                .dim(format!("GET /v1/runs/{}/events", client::escape(run))),
        )?;
        for (index, event) in log.into_iter().enumerate() {
            let event: RunEventDoc = serde_json::from_value(event).context("read an event of the run")?;
            ensure!(
                usize::try_from(event.sequence).is_ok_and(|sequence| sequence == index),
                "find event {index} of the run: the log has {} there",
                event.sequence
            );
            self.say(render::event(self.paint, &event))?;
        }
        Ok(())
    }

    fn farewell(&self) -> Result<()> {
        let wopr = ourselves();
        let command = |text: &str| self.paint.cyan(format!("{wopr} {text}"));
        output::line("")?;
        output::line(format!(
            "{} The task survived its host; nothing is left running.",
            self.paint.green("Done.")
        ))?;
        output::line("")?;
        output::line(self.paint.bold("Try next"))?;
        output::line(format!(
            "  {}",
            command("run campaign-brief --input prompt='a winter sale'")
        ))?;
        output::line(format!("  {}", command("dev")))?;
        output::line(format!("  {}", command("help")))
    }
}

fn indent(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(|line| format!("   {line}")).collect();
    lines.join("\n")
}

fn state_of(item: &StreamResponse) -> Option<TaskState> {
    match item {
        StreamResponse::Task(task) => Some(task.status.state),
        StreamResponse::StatusUpdate(update) => Some(update.status.state),
        StreamResponse::Message(_) | StreamResponse::ArtifactUpdate(_) => None,
    }
}
