//! The steps of a run as a person watches them: one line each, from the run's events.
//!
//! The board folds events and knows no terminal; [`crate::drawing`] shows it. A node that runs again has the same
//! line again. The steps of a child run are below the line of the step that waits for it, and leave the board with it.
//! Texts of others pass through [`plain`](crate::output::plain) before they become part of a line.

mod runs;

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use wopr_wire::openwop::event::RunEventDoc;

use crate::{
    output::Paint,
    render::{self, cut, text},
    spending::Spending,
};

use runs::{Node, Runs};

/// The type of the nodes that call other agents, and the peer of those that name none.
const INVOKE: &str = "core.a2a.invoke";
const DEFAULT_PEER: &str = "default";
/// Width of the column of names, in characters.
const NAME: usize = 20;
/// Longest detail of a line, in characters.
const DETAIL: usize = 100;
/// Spaces between the parts of a line.
const GAP: usize = 2;
/// Bytes that are kept of a streamed text, of which a line shows the end.
const TAIL: usize = 512;

#[derive(Debug, Clone, PartialEq)]
enum State {
    Running,
    /// Calls an agent, which has not taken the call yet.
    Calling,
    /// An agent works on this task.
    Remote {
        task: String,
    },
    /// The end of the text that it streams.
    Streaming(String),
    Asked(String),
    /// Waits for its next attempt; why the last one failed.
    Retrying(String),
    Child(String),
    /// Several workers work at the same time.
    Fanned(String),
    /// They have ended.
    Joined(String),
    /// A supervisor has decided.
    Decided(String),
    /// Its confidence is too low to follow the decision without an approval.
    Escalated(String),
    /// A verifier has judged.
    Judged(String),
    Completed(String),
    Failed(String),
    Skipped(String),
    Cancelled(String),
}

impl State {
    /// What it is called, and what else is known of it.
    fn words(&self, is_call: bool) -> (&'static str, String) {
        match self {
            Self::Running if is_call => ("working", String::new()),
            Self::Running => ("running", String::new()),
            Self::Calling if is_call => ("sending", String::new()),
            Self::Calling => ("calling out", String::new()),
            Self::Remote { task } if task.is_empty() => ("working", String::new()),
            Self::Remote { task } => ("working", format!("on task {}", cut(task, DETAIL))),
            Self::Streaming(said) => ("streaming", end_of(said)),
            Self::Asked(question) => ("asks", question.clone()),
            Self::Retrying(why) => ("tries again", why.clone()),
            Self::Child(workflow) => ("runs", cut(workflow, DETAIL)),
            Self::Fanned(what) => ("waits for", what.clone()),
            Self::Joined(what) => ("joins", what.clone()),
            Self::Decided(what) => ("decides", what.clone()),
            Self::Escalated(why) => ("escalates", why.clone()),
            Self::Judged(what) => ("judged", what.clone()),
            Self::Completed(outcome) => ("completed", outcome.clone()),
            Self::Failed(why) => ("failed", why.clone()),
            Self::Skipped(why) => ("skipped", cut(why, DETAIL)),
            Self::Cancelled(why) => ("cancelled", cut(why, DETAIL)),
        }
    }

    fn colored(&self, paint: Paint, text: &str) -> String {
        match self {
            Self::Completed(_) => paint.green(text),
            Self::Failed(_) | Self::Cancelled(_) => paint.red(text),
            Self::Asked(_) | Self::Retrying(_) | Self::Escalated(_) => paint.yellow(text),
            Self::Running
            | Self::Calling
            | Self::Remote { .. }
            | Self::Streaming(_)
            | Self::Child(_)
            | Self::Fanned(_)
            | Self::Joined(_)
            | Self::Decided(_)
            | Self::Judged(_)
            | Self::Skipped(_) => paint.dim(text),
        }
    }
}

/// A line of the board.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    /// The run that it is a step of.
    run: String,
    /// The node; of a worker the child run.
    pub(crate) node: String,
    /// How many runs are above its own.
    depth: usize,
    /// The worker that a dispatch has handed work to: its line is below that of the dispatch.
    worker: Option<String>,
    state: State,
}

impl Step {
    /// The step is over; its line does not change any more.
    pub(crate) fn is_over(&self) -> bool {
        match self.state {
            State::Completed(_) | State::Failed(_) | State::Skipped(_) | State::Cancelled(_) => true,
            State::Running
            | State::Calling
            | State::Remote { .. }
            | State::Streaming(_)
            | State::Asked(_)
            | State::Retrying(_)
            | State::Child(_)
            | State::Fanned(_)
            | State::Joined(_)
            | State::Decided(_)
            | State::Escalated(_)
            | State::Judged(_) => false,
        }
    }

    /// The step waits for somebody who watches the run.
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self.state, State::Asked(_))
    }

    /// By what the lines of child runs find it: a worker by its run, any other step by its own run and its node.
    fn key(&self) -> String {
        match self.worker {
            Some(_) => self.node.clone(),
            None => key_of(&self.run, &self.node),
        }
    }
}

fn key_of(run: &str, node: &str) -> String {
    format!("{run}/{node}")
}

/// The steps of a run and of the runs below it that are under way.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// The run at the top: that of the first event.
    top: Option<String>,
    runs: Runs,
    /// From top to bottom: the steps of a child run follow the step that waits for it.
    steps: Vec<Step>,
    /// The steps that hand work to a worker whose run is not created yet, by their keys.
    handing_over: HashSet<String>,
    /// What models took so far for a step, by its key.
    spent: HashMap<String, Spending>,
}

impl Board {
    /// A board for runs of a definition; an unknown one gives lines with less in them.
    pub(crate) fn new(definition: &Value) -> Self {
        Self {
            runs: Runs::new(definition),
            ..Self::default()
        }
    }

    /// Learns what the nodes of a child run are called.
    pub(crate) fn describe(&mut self, child: &str, definition: &Value) {
        self.runs.describe(child, definition);
    }

    /// The steps that are under way.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Takes in an event. Returns the step that it ends, which is then no longer on the board.
    pub(crate) fn take(&mut self, event: &RunEventDoc) -> Option<Step> {
        let node = event.node_id.as_deref()?;
        let (run, payload) = (event.run_id.as_str(), &event.payload);
        let is_top = self.top.get_or_insert_with(|| run.to_owned()) == run;
        if !is_top && self.runs.anchor(run).is_none() {
            return None;
        }
        if event.event_type == "core.workflowChain.event" {
            return self.hand_over(run, node, payload);
        }
        let state = match event.event_type.as_str() {
            "node.started" | "node.resumed" | "approval.received" | "clarification.resolved" => {
                State::Running
            }
            "vendor.wopr.effect.scheduled" => State::Calling,
            "vendor.wopr.effect.accepted" => State::Remote {
                task: text(payload, "taskId").to_owned(),
            },
            "output.chunk" => State::Streaming(self.said(run, node, payload)),
            "interrupt.requested" => State::Asked(asked(payload.get("data").unwrap_or(&Value::Null))),
            "approval.requested" | "clarification.requested" => State::Asked(asked(payload)),
            "node.retried" => State::Retrying(reason(payload, "lastError")),
            "provider.usage" => {
                self.spend(&key_of(run, node), Spending::of_usage(payload));
                return None;
            }
            "agent.verified" => State::Judged(cut(&render::verdict(payload), DETAIL)),
            "runOrchestrator.decided" => State::Decided(cut(&render::decision(payload), DETAIL)),
            "core.dispatch.fanOut" => State::Fanned(cut(&render::fan_out(payload), DETAIL)),
            "core.dispatch.join" => State::Joined(cut(&render::join(payload), DETAIL)),
            "core.workflowChain.confidence-escalated" => {
                State::Escalated(cut(&render::escalation(payload), DETAIL))
            }
            "node.dispatched" => {
                let child = text(payload, "childRunId");
                // A worker has a line of its own.
                let is_worker = self.handing_over.remove(&key_of(run, node));
                let anchor = match is_worker {
                    true => child.to_owned(),
                    false => key_of(run, node),
                };
                self.runs.add(run, child, anchor);
                if is_worker {
                    return None;
                }
                State::Child(text(payload, "childWorkflowId").to_owned())
            }
            "node.completed" => {
                let outcome = self.joined(run, node).unwrap_or_else(|| outcome(payload));
                State::Completed(self.with_spending(&key_of(run, node), outcome))
            }
            "node.failed" => State::Failed(reason(payload, "error")),
            "node.skipped" => State::Skipped(text(payload, "reason").to_owned()),
            "node.cancelled" => State::Cancelled(text(payload, "reason").to_owned()),
            _ => return None,
        };
        self.put(Step {
            run: run.to_owned(),
            node: node.to_owned(),
            depth: self.runs.depth(run),
            worker: None,
            state,
        })
    }

    /// How the workers of a dispatch have joined.
    fn joined(&self, run: &str, node: &str) -> Option<String> {
        let step = self.steps.iter().find(|step| step.key() == key_of(run, node))?;
        match &step.state {
            State::Joined(how) => Some(how.clone()),
            _ => None,
        }
    }

    /// Adds what a model took for a child run, or for another step by its key.
    pub(crate) fn spend(&mut self, of: &str, spending: Spending) {
        self.spent.entry(of.to_owned()).or_default().add(spending);
    }

    /// What a step that is over came to, and what it took.
    fn with_spending(&mut self, of: &str, outcome: String) -> String {
        let spent = self.spent.remove(of).and_then(Spending::words);
        let parts = [Some(outcome).filter(|outcome| !outcome.is_empty()), spent];
        parts.into_iter().flatten().collect::<Vec<_>>().join("  ")
    }

    /// Takes in a transition of a handoff: who has the baton.
    fn hand_over(&mut self, run: &str, node: &str, payload: &Value) -> Option<Step> {
        let child = text(payload, "childRunId");
        let phase = text(payload, "phase");
        if phase == "dispatch.began" {
            self.handing_over.insert(key_of(run, node));
            return None;
        }
        let state = match phase {
            "dispatch.succeeded" => State::Running,
            "dispatch.failed" | "child.failed" => State::Failed(reason(payload, "error")),
            "child.completed" => State::Completed(self.with_spending(child, String::new())),
            "child.cancelled" => State::Cancelled(String::new()),
            _ => return None,
        };
        let key = if child.is_empty() { node } else { child };
        self.put(Step {
            run: run.to_owned(),
            node: key.to_owned(),
            depth: self.runs.depth(run),
            worker: Some(cut(text(payload, "workerId"), NAME)),
            state,
        })
    }

    /// Puts a step in its place. Returns it if it is over: the steps below it go with it.
    fn put(&mut self, step: Step) -> Option<Step> {
        let is_same = |known: &Step| {
            known.run == step.run
                && known.node == step.node
                && known.worker.is_some() == step.worker.is_some()
        };
        let known = self.steps.iter().position(is_same);
        match known {
            Some(index) if step.is_over() => {
                let end = self.end_of_steps_below(index);
                for gone in self.steps.drain(index..end) {
                    self.runs.remove_below(&gone.key());
                }
                Some(step)
            }
            None if step.is_over() => Some(step),
            Some(index) => {
                self.steps[index] = step;
                None
            }
            None => {
                if let Some(index) = self.place(&step.run) {
                    self.steps.insert(index, step);
                }
                None
            }
        }
    }

    /// Where the next step of a run goes; `None` if nothing waits for that run any more.
    fn place(&self, run: &str) -> Option<usize> {
        let Some(anchor) = self.runs.anchor(run) else {
            return Some(self.steps.len());
        };
        let at = self.steps.iter().position(|step| step.key() == anchor)?;
        Some(self.end_of_steps_below(at))
    }

    /// The position after a step and all steps below it.
    fn end_of_steps_below(&self, index: usize) -> usize {
        let depth = self.steps[index].depth;
        let below = self.steps[index + 1..]
            .iter()
            .take_while(|step| step.depth > depth);
        index + 1 + below.count()
    }

    /// The end of what a step has streamed, with the next chunk.
    fn said(&self, run: &str, node: &str, payload: &Value) -> String {
        let chunk = text(payload, "chunk");
        let begins = payload.get("index").and_then(Value::as_u64) == Some(0);
        let before = self.steps.iter().find(|step| step.key() == key_of(run, node));
        let before = match before.map(|step| &step.state) {
            Some(State::Streaming(said)) if !begins => said.as_str(),
            _ => "",
        };
        let said = format!("{before}{chunk}");
        let from = said.ceil_char_boundary(said.len().saturating_sub(TAIL));
        said[from..].to_owned()
    }

    /// The line of a step, in at most `width` characters: its name, what it calls, and its state. A mark goes before it.
    pub(crate) fn line(&self, paint: Paint, step: &Step, width: usize) -> String {
        let unknown = Node {
            name: match &step.worker {
                Some(worker) => format!("└ {worker}"),
                None => cut(&step.node, NAME),
            },
            agent: None,
        };
        let known = self.runs.node(&step.run, &step.node);
        let known = known.filter(|_| step.worker.is_none());
        let Node { name, agent } = known.unwrap_or(&unknown);
        let (state, detail) = step.state.words(agent.is_some());
        let name = format!("{}{name}", "  ".repeat(step.depth));
        let name = format!("{name:<NAME$}");
        let mut left = width;
        let mut line = String::new();
        let mut add = |text: &str, paint: &dyn Fn(String) -> String| {
            let gap = if line.is_empty() { 0 } else { GAP };
            if text.is_empty() || left <= gap {
                return;
            }
            let text = cut_padded(text, left - gap);
            left -= gap + text.chars().count();
            line.push_str(&" ".repeat(gap));
            line.push_str(&paint(text));
        };
        add(&name, &|text| paint.bold(text));
        add(agent.as_deref().unwrap_or_default(), &|text| paint.cyan(text));
        add(state, &|text| step.state.colored(paint, &text));
        add(&detail, &|text| match step.state {
            State::Asked(_) | State::Streaming(_) | State::Failed(_) => text,
            State::Running
            | State::Calling
            | State::Remote { .. }
            | State::Retrying(_)
            | State::Child(_)
            | State::Fanned(_)
            | State::Joined(_)
            | State::Decided(_)
            | State::Escalated(_)
            | State::Judged(_)
            | State::Completed(_)
            | State::Skipped(_)
            | State::Cancelled(_) => paint.dim(text),
        });
        line
    }

    /// The mark of a step that is over, or that asks.
    pub(crate) fn mark(paint: Paint, step: &Step) -> String {
        let mark = match step.state {
            State::Completed(_) => "✓",
            State::Failed(_) | State::Cancelled(_) => "✗",
            State::Skipped(_) => "-",
            State::Asked(_) | State::Escalated(_) => "?",
            State::Running
            | State::Calling
            | State::Remote { .. }
            | State::Streaming(_)
            | State::Retrying(_)
            | State::Child(_)
            | State::Fanned(_)
            | State::Joined(_)
            | State::Decided(_)
            | State::Judged(_) => "·",
        };
        step.state.colored(paint, mark)
    }
}

/// What an interrupt asks, on one line.
fn asked(data: &Value) -> String {
    if data.get("observed").is_some() {
        return cut(&render::held(data), DETAIL);
    }
    let title = ["title", "message", "prompt"].map(|name| text(data, name));
    if let Some(title) = title.into_iter().find(|title| !title.is_empty()) {
        return cut(title, DETAIL);
    }
    let questions = data.get("questions").and_then(Value::as_array);
    let questions = questions
        .into_iter()
        .flatten()
        .map(|question| text(question, "question"));
    let questions = questions.collect::<Vec<_>>().join(" ");
    // Events show no title of the other kinds.
    let kind = ["eventType", "customKind"].map(|name| text(data, name)).concat();
    cut(if questions.is_empty() { &kind } else { &questions }, DETAIL)
}

fn reason(payload: &Value, name: &str) -> String {
    let error = payload.get(name).unwrap_or(&Value::Null);
    cut(
        &format!("{}: {}", text(error, "code"), text(error, "message")),
        DETAIL,
    )
}

/// The most telling output of a step, on one line.
fn outcome(payload: &Value) -> String {
    let outputs = payload.get("outputs").unwrap_or(&Value::Null);
    match outputs.get("text").or_else(|| outputs.get("action")) {
        Some(found) => cut(&render::value(found), DETAIL),
        // What a supervisor has decided.
        None if outputs.get("iteration").is_some() => cut(&render::decision(outputs), DETAIL),
        None => String::new(),
    }
}

/// Shortens a text that is on one line already, and keeps the spaces at its end.
fn cut_padded(text: &str, most: usize) -> String {
    match text.chars().count() <= most {
        true => text.to_owned(),
        false => cut(text, most),
    }
}

/// The end of a text, on one line.
fn end_of(said: &str) -> String {
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    cut(last.unwrap_or_default(), DETAIL)
}

#[cfg(test)]
mod tests;
