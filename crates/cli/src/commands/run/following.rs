//! Follows a run to its end: shows it, and answers what it asks.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use wopr_wire::openwop::{
    event::RunEventDoc,
    run::{InterruptView, RunSnapshot},
    stream::StreamMode,
};

use crate::{
    ask,
    board::Board,
    client::{Client, escape},
    commands::interrupts::artifact_of,
    drawing::Drawing,
    exit::{Exit, Failure},
    follow_tree::Tree,
    output::{self, Paint},
    render,
    signals::Signals,
    spending::Spending,
};

/// The most definitions of child runs that are read.
const MAX_DEFINITIONS: usize = 64;

/// How following the run ended.
pub(crate) enum End {
    Terminal(Box<RunSnapshot>),
    Waiting(Box<RunSnapshot>),
    Interrupted,
}

/// How a run is shown while it is followed.
#[derive(Debug)]
pub(crate) enum View {
    /// Not at all, and nobody is asked.
    Quiet,
    /// A line per event.
    Lines,
    /// A line per step, on a terminal.
    Drawn(Box<Drawing>),
}

impl View {
    /// The view of runs of a workflow that suits standard error.
    pub(crate) async fn of(client: &Client, workflow: &str, is_quiet: bool, wants_events: bool) -> Self {
        if is_quiet {
            return Self::Quiet;
        }
        if wants_events || !output::can_draw() {
            return Self::Lines;
        }
        // The key may lack the scope to read definitions; the lines have fewer names then.
        let definition = client.get(&format!("/v1/workflows/{}", escape(workflow))).await;
        let board = Board::new(&definition.unwrap_or_default());
        Self::Drawn(Box::new(Drawing::new(board)))
    }

    /// The events that it needs.
    fn mode(&self) -> &'static str {
        match self {
            Self::Quiet => "updates",
            Self::Lines | Self::Drawn(_) => "debug",
        }
    }

    /// Whether it shows what child runs do.
    fn wants_children(&self) -> bool {
        match self {
            Self::Quiet | Self::Lines => false,
            Self::Drawn(_) => true,
        }
    }

    fn take(&mut self, event: &RunEventDoc) -> Result<()> {
        match self {
            Self::Quiet => Ok(()),
            Self::Lines => match is_line(&event.event_type) {
                true => output::note(render::event(Paint::stderr(), event)),
                false => Ok(()),
            },
            Self::Drawn(drawing) => drawing.take(event),
        }
    }

    /// Makes room for other text.
    fn pause(&mut self) -> Result<()> {
        match self {
            Self::Quiet | Self::Lines => Ok(()),
            Self::Drawn(drawing) => drawing.pause(),
        }
    }
}

/// Returns `true` for events that are printed on their own line.
fn is_line(event_type: &str) -> bool {
    StreamMode::Updates.admits(event_type)
        || matches!(
            event_type,
            "vendor.wopr.effect.accepted"
                | "runOrchestrator.decided"
                | "core.workflowChain.event"
                | "core.workflowChain.confidence-escalated"
                | "agent.verified"
                | "context.summarized"
        )
}

/// A run that is being followed.
pub(crate) struct Following<'a> {
    client: &'a Client,
    run: &'a str,
    events: Tree<'a>,
    answers: std::vec::IntoIter<Value>,
    view: View,
    /// Of child runs, by workflow.
    definitions: HashMap<String, Value>,
    /// The run's outputs so far.
    outputs: Value,
    /// The queues whose workers the run waits for, as far as that was said.
    queues: BTreeSet<String>,
    /// Whether the host of the run is this process, which no worker knows.
    is_here: bool,
}

impl<'a> Following<'a> {
    /// Follows a run from its first event. `answers` are for its interrupts, in their order.
    pub(crate) async fn start(
        client: &'a Client,
        run: &'a str,
        answers: Vec<Value>,
        view: View,
    ) -> Result<Self> {
        Ok(Self {
            client,
            run,
            events: Tree::start(client, run, view.mode(), view.wants_children()).await?,
            answers: answers.into_iter(),
            view,
            definitions: HashMap::new(),
            outputs: Value::Null,
            queues: BTreeSet::new(),
            is_here: false,
        })
    }

    /// Says of steps for workers that none can reach the run.
    #[must_use]
    pub(crate) const fn in_this_process(mut self, is_here: bool) -> Self {
        self.is_here = is_here;
        self
    }

    /// Follows the run across interrupts until it ends or an interrupt stays unanswered. Returns its outputs, too.
    pub(crate) async fn finish(mut self, signals: &mut Signals) -> Result<(End, Value)> {
        let end = self.follow(signals).await?;
        self.view.pause()?;
        Ok((end, self.outputs))
    }

    async fn follow(&mut self, signals: &mut Signals) -> Result<End> {
        loop {
            tokio::select! {
                read = self.read_events() => read?,
                () = signals.next() => return Ok(End::Interrupted),
            }
            let snapshot = Box::new(self.client.run(self.run).await?);
            if snapshot.status.is_terminal() {
                return Ok(End::Terminal(snapshot));
            }
            if snapshot.interrupt.is_some() && !self.answer(&snapshot, signals).await? {
                return Ok(End::Waiting(snapshot));
            }
        }
    }

    /// Prints events until the run ends or waits for an answer.
    async fn read_events(&mut self) -> Result<()> {
        while let Some(event) = self.events.next().await? {
            if let View::Drawn(drawing) = &mut self.view {
                if let Some(child) = completed_child(&event) {
                    drawing.spend(child, Spending::of_tree(self.client, child).await);
                }
                self.view.take(&event)?;
                self.describe(&event).await;
            } else {
                self.view.take(&event)?;
            }
            self.say_who_is_needed(&event)?;
            // A child run goes on or ends by itself.
            if event.run_id != self.run {
                continue;
            }
            match event.event_type.as_str() {
                "run.completed" => self.outputs = event.payload.get("outputs").cloned().unwrap_or_default(),
                // The last event before the run waits, and what happens while a conversation goes on.
                "node.suspended" | "conversation.exchanged" => return Ok(()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Says once for each queue that the run waits for a worker, which may be for ever.
    fn say_who_is_needed(&mut self, event: &RunEventDoc) -> Result<()> {
        let queue = render::text(&event.payload, "queue");
        let is_needed = event.event_type == "vendor.wopr.effect.scheduled" && !queue.is_empty();
        if !is_needed || matches!(self.view, View::Quiet) || !self.queues.insert(queue.to_owned()) {
            return Ok(());
        }
        self.view.pause()?;
        let how = match self.is_here {
            true => {
                "; no worker can reach a run in this process: start `wopr serve`, and name it with --server"
            }
            false => "",
        };
        let node = event.node_id.as_deref().unwrap_or_default();
        let needed = format!("{node} waits for a worker of the queue '{queue}'{how}");
        output::note(output::plain(&needed))
    }

    /// Tells the view what the nodes of a child run are called that begins with an event.
    async fn describe(&mut self, event: &RunEventDoc) {
        let View::Drawn(drawing) = &mut self.view else {
            return;
        };
        if event.event_type != "node.dispatched" {
            return;
        }
        let [child, workflow] =
            ["childRunId", "childWorkflowId"].map(|name| render::text(&event.payload, name));
        if !self.definitions.contains_key(workflow) && self.definitions.len() < MAX_DEFINITIONS {
            let path = format!("/v1/workflows/{}", escape(workflow));
            // Without it the lines have fewer names.
            let definition = self.client.get(&path).await.unwrap_or_default();
            self.definitions.insert(workflow.to_owned(), definition);
        }
        if let Some(definition) = self.definitions.get(workflow) {
            drawing.describe(child, definition);
        }
    }

    /// Answers the open interrupt with the next `--answer`, or else prompts the user. Returns `false` if
    /// neither is possible.
    async fn answer(&mut self, snapshot: &RunSnapshot, signals: &mut Signals) -> Result<bool> {
        let Some(view) = &snapshot.interrupt else {
            return Ok(true);
        };
        if let Some(answer) = self.answers.next() {
            resolve(self.client, self.run, view, &answer).await?;
            return Ok(true);
        }
        if matches!(self.view, View::Quiet) || !output::is_conversation() {
            return Ok(false);
        }
        self.view.pause()?;
        self.show_draft(snapshot, view).await?;
        loop {
            let asked = view.clone();
            let asking = tokio::task::spawn_blocking(move || ask::ask(&asked));
            let answer = tokio::select! {
                answer = asking => answer.context("ask")??,
                () = signals.next() => return Ok(false),
            };
            let Some(answer) = answer else {
                output::note("")?;
                return Ok(false);
            };
            match resolve(self.client, self.run, view, &answer).await {
                Ok(()) => return Ok(true),
                Err(error) if is_refusal(&error) => output::note(format!("  {error:#}"))?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Prints the artifact that an interrupt refers to, if any.
    async fn show_draft(&self, snapshot: &RunSnapshot, view: &InterruptView) -> Result<()> {
        if let Some(artifact) = artifact_of(self.client, &snapshot.run_id, view).await {
            let paint = Paint::stderr();
            output::note(paint.dim(render::indented(&render::content(&artifact), 4)))?;
        }
        Ok(())
    }
}

/// The child run of a worker that has completed with this event.
fn completed_child(event: &RunEventDoc) -> Option<&str> {
    let payload = Some(&event.payload).filter(|_| event.event_type == "core.workflowChain.event")?;
    let is_end = render::text(payload, "phase") == "child.completed";
    is_end.then(|| render::text(payload, "childRunId"))
}

/// Returns `true` if the server rejected an answer that the user can correct.
fn is_refusal(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<Failure>()
        .is_some_and(|failure| failure.exit() == Exit::Failed)
}

/// Answers an interrupt. If a child run raised it, the answer may be sent to the parent's node that waits for
/// the child.
async fn resolve(client: &Client, run: &str, view: &InterruptView, answer: &Value) -> Result<()> {
    let path = format!("/v1/runs/{}/interrupts/{}", escape(run), escape(&view.node_id));
    let body = json!({ "resumeValue": answer, "interruptId": view.interrupt_id });
    client.post(&path, &body).await?;
    Ok(())
}
