//! The steps of a run as a person watches them: one line each, from the run's events.
//!
//! The board folds events and knows no terminal; [`crate::drawing`] shows it. A node that runs again has the same
//! line again. Texts of others pass through [`plain`](crate::output::plain) before they become part of a line.

use std::collections::HashMap;

use serde_json::Value;
use wopr_wire::openwop::event::RunEventDoc;

use crate::{
    output::Paint,
    render::{self, cut, text},
    spending::Spending,
};

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

/// What the definition says of a node.
#[derive(Debug, Clone, Default, PartialEq)]
struct Node {
    name: String,
    /// The agent that it calls: its peer's name, and the skill if one is named.
    agent: Option<String>,
}

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
    /// A supervisor has decided.
    Decided(String),
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
            Self::Decided(what) => ("decides", what.clone()),
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
            Self::Asked(_) | Self::Retrying(_) => paint.yellow(text),
            Self::Running
            | Self::Calling
            | Self::Remote { .. }
            | Self::Streaming(_)
            | Self::Child(_)
            | Self::Decided(_)
            | Self::Judged(_)
            | Self::Skipped(_) => paint.dim(text),
        }
    }
}

/// A line of the board.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    /// The node; of a worker the child run.
    pub(crate) node: String,
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
            | State::Decided(_)
            | State::Judged(_) => false,
        }
    }

    /// The step waits for somebody who watches the run.
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self.state, State::Asked(_))
    }
}

/// The steps of a run that are under way.
#[derive(Debug, Default)]
pub(crate) struct Board {
    nodes: HashMap<String, Node>,
    /// In the order in which they began.
    steps: Vec<Step>,
    /// Whether a supervisor of the run has decided.
    has_decided: bool,
    /// What models took so far for a node, or for the child run of a worker.
    spent: HashMap<String, Spending>,
}

impl Board {
    /// A board for runs of a definition; an unknown one gives lines with less in them.
    pub(crate) fn new(definition: &Value) -> Self {
        let nodes = definition.get("nodes").and_then(Value::as_array);
        let nodes = nodes.into_iter().flatten().map(|node| {
            let agent = (text(node, "typeId") == INVOKE).then(|| agent_of(node));
            let name = match text(node, "name") {
                "" => text(node, "id"),
                name => name,
            };
            let name = cut(name, NAME);
            (text(node, "id").to_owned(), Node { name, agent })
        });
        Self {
            nodes: nodes.collect(),
            steps: Vec::new(),
            has_decided: false,
            spent: HashMap::new(),
        }
    }

    /// The steps that are under way.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Takes in an event. Returns the step that it ends, which is then no longer on the board.
    pub(crate) fn take(&mut self, event: &RunEventDoc) -> Option<Step> {
        let node = event.node_id.as_deref()?;
        let payload = &event.payload;
        if event.event_type == "core.workflowChain.event" {
            return self.hand_over(node, payload);
        }
        let state = match event.event_type.as_str() {
            "node.started" | "node.resumed" | "approval.received" | "clarification.resolved" => {
                State::Running
            }
            "vendor.wopr.effect.scheduled" => State::Calling,
            "vendor.wopr.effect.accepted" => State::Remote {
                task: text(payload, "taskId").to_owned(),
            },
            "output.chunk" => State::Streaming(self.said(node, text(payload, "chunk"))),
            "interrupt.requested" => State::Asked(asked(payload.get("data").unwrap_or(&Value::Null))),
            "approval.requested" | "clarification.requested" => State::Asked(asked(payload)),
            "node.retried" => State::Retrying(reason(payload, "lastError")),
            "provider.usage" => {
                self.spend(node, Spending::of_usage(payload));
                return None;
            }
            "agent.verified" => State::Judged(cut(&render::verdict(payload), DETAIL)),
            "runOrchestrator.decided" => State::Decided(cut(&render::decision(payload), DETAIL)),
            // A worker has a line of its own.
            "node.dispatched" if self.has_decided => return None,
            "node.dispatched" => State::Child(text(payload, "childWorkflowId").to_owned()),
            "node.completed" => State::Completed(self.with_spending(node, outcome(payload))),
            "node.failed" => State::Failed(reason(payload, "error")),
            "node.skipped" => State::Skipped(text(payload, "reason").to_owned()),
            "node.cancelled" => State::Cancelled(text(payload, "reason").to_owned()),
            _ => return None,
        };
        self.has_decided |= matches!(state, State::Decided(_));
        self.put(Step {
            node: node.to_owned(),
            worker: None,
            state,
        })
    }

    /// Adds what a model took for a node or a child run.
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
    fn hand_over(&mut self, node: &str, payload: &Value) -> Option<Step> {
        let child = text(payload, "childRunId");
        let state = match text(payload, "phase") {
            "dispatch.succeeded" => State::Running,
            "dispatch.failed" | "child.failed" => State::Failed(reason(payload, "error")),
            "child.completed" => State::Completed(self.with_spending(child, String::new())),
            "child.cancelled" => State::Cancelled(String::new()),
            _ => return None,
        };
        let key = if child.is_empty() { node } else { child };
        self.put(Step {
            node: key.to_owned(),
            worker: Some(cut(text(payload, "workerId"), NAME)),
            state,
        })
    }

    /// Puts a step in its place. Returns it if it is over.
    fn put(&mut self, step: Step) -> Option<Step> {
        let is_same =
            |known: &Step| known.node == step.node && known.worker.is_some() == step.worker.is_some();
        let known = self.steps.iter().position(is_same);
        match known {
            Some(index) if step.is_over() => {
                self.steps.remove(index);
                Some(step)
            }
            None if step.is_over() => Some(step),
            Some(index) => {
                self.steps[index] = step;
                None
            }
            None => {
                self.steps.push(step);
                None
            }
        }
    }

    /// The end of what a step has streamed, with the next chunk.
    fn said(&self, node: &str, chunk: &str) -> String {
        let before = self.steps.iter().find(|step| step.node == node);
        let before = match before.map(|step| &step.state) {
            Some(State::Streaming(said)) => said.as_str(),
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
        let known = self.nodes.get(&step.node).filter(|_| step.worker.is_none());
        let Node { name, agent } = known.unwrap_or(&unknown);
        let (state, detail) = step.state.words(agent.is_some());
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
            | State::Decided(_)
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
            State::Asked(_) => "?",
            State::Running
            | State::Calling
            | State::Remote { .. }
            | State::Streaming(_)
            | State::Retrying(_)
            | State::Child(_)
            | State::Decided(_)
            | State::Judged(_) => "·",
        };
        step.state.colored(paint, mark)
    }
}

fn agent_of(node: &Value) -> String {
    let config = node.get("config").unwrap_or(&Value::Null);
    let peer = match text(config, "peer") {
        "" => DEFAULT_PEER,
        peer => peer,
    };
    match text(config, "skill") {
        "" => cut(peer, NAME),
        skill => cut(&format!("{peer}/{skill}"), 2 * NAME),
    }
}

/// What an interrupt asks, on one line.
fn asked(data: &Value) -> String {
    let title = ["title", "message", "prompt"].map(|name| text(data, name));
    if let Some(title) = title.into_iter().find(|title| !title.is_empty()) {
        return cut(title, DETAIL);
    }
    let questions = data.get("questions").and_then(Value::as_array);
    let questions = questions
        .into_iter()
        .flatten()
        .map(|question| text(question, "question"));
    cut(&questions.collect::<Vec<_>>().join(" "), DETAIL)
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
mod tests {
    use serde_json::json;

    use super::*;
    use crate::examples::second_opinion;

    fn event(kind: &str, node: &str, payload: &Value) -> RunEventDoc {
        let event = json!({
            "eventId": "run_1.0", "runId": "run_1", "type": kind, "nodeId": node, "sequence": 0,
            "timestamp": "2026-01-01T00:00:00.000Z", "schemaVersion": 1, "payload": payload,
        });
        serde_json::from_value(event).unwrap()
    }

    /// The line of the step after each event, whether it is under way or over.
    fn lines(events: &[(&str, Value)]) -> Vec<String> {
        let mut board = Board::new(&second_opinion::ASKS.document().unwrap());
        let line = |(kind, payload): &(&str, Value)| {
            let over = board.take(&event(kind, "sceptic", payload));
            let step = over.as_ref().or(board.steps().first()).unwrap();
            board.line(Paint::off(), step, 80)
        };
        events.iter().map(line).collect()
    }

    #[test]
    fn a_call_is_shown_from_its_message_to_its_answer() {
        let asked = json!({
            "kind": "clarification", "key": "sceptic:0",
            "data": { "source": "remote", "peer": "sceptic", "message": "How is it\nundone?", "questions": [] },
        });
        let said = lines(&[
            ("node.started", json!({})),
            ("vendor.wopr.effect.scheduled", json!({ "provider": "agent" })),
            (
                "vendor.wopr.effect.accepted",
                json!({ "peer": "sceptic", "taskId": "task-7" }),
            ),
            ("interrupt.requested", asked),
            ("node.resumed", json!({})),
            ("output.chunk", json!({ "chunk": "First.\nSec" })),
            ("output.chunk", json!({ "chunk": "ond\u{1b}[2J." })),
            (
                "node.completed",
                json!({ "outputs": { "text": "First.\nSecond.", "state": "completed" } }),
            ),
        ]);
        let name = "Ask the sceptic       sceptic/doubt  ";
        let expected = [
            "working",
            "sending",
            "working  on task task-7",
            "asks  How is it undone?",
            "working",
            "streaming  Sec",
            "streaming  Second[2J.",
            "completed  First. Second.",
        ];
        assert_eq!(said, expected.map(|state| format!("{name}{state}")));
    }

    #[test]
    fn workers_are_lines_below_the_dispatch_and_show_who_has_the_baton() {
        let mut board = Board::new(&Value::Null);
        let handed = |phase: &str, worker: &str| json!({ "phase": phase, "workerId": worker, "childRunId": format!("run_{worker}") });
        let decided = json!({ "decision": {
            "kind": "next-worker", "nextWorkerIds": ["ada", "bob"], "confidence": 0.9,
        } });
        board.take(&event("node.started", "plan", &json!({})));
        board.take(&event("runOrchestrator.decided", "plan", &decided));
        let shown = |board: &Board| -> Vec<_> {
            let steps = board.steps().iter();
            steps.map(|step| board.line(Paint::off(), step, 80)).collect()
        };
        assert_eq!(
            shown(&board),
            ["plan                  decides  hands over to ada, bob (confidence 0.9)"]
        );
        let outputs = json!({ "kind": "next-worker", "decision": decided["decision"], "iteration": 1 });
        let over = board.take(&event("node.completed", "plan", &json!({ "outputs": outputs })));
        assert_eq!(
            board.line(Paint::off(), &over.unwrap(), 80),
            "plan                  completed  hands over to ada, bob (confidence 0.9)"
        );
        board.take(&event("node.started", "dispatch", &json!({})));
        for worker in ["ada", "bob"] {
            board.take(&event(
                "core.workflowChain.event",
                "dispatch",
                &handed("dispatch.began", worker),
            ));
            board.take(&event(
                "core.workflowChain.event",
                "dispatch",
                &handed("dispatch.succeeded", worker),
            ));
        }
        let baton = [
            "dispatch              running",
            "└ ada                 running",
            "└ bob                 running",
        ];
        assert_eq!(shown(&board), baton);
        let over = board.take(&event(
            "core.workflowChain.event",
            "dispatch",
            &handed("child.completed", "ada"),
        ));
        assert_eq!(
            board.line(Paint::off(), &over.unwrap(), 80),
            "└ ada                 completed"
        );
        assert_eq!(shown(&board), [baton[0], baton[2]]);
    }

    #[test]
    fn lines_tell_what_models_took_and_what_a_verifier_says() {
        let usage = json!({ "inputTokens": 30, "outputTokens": 4, "costEstimateUsd": 0.5 });
        let said = lines(&[
            ("node.started", json!({})),
            ("provider.usage", usage.clone()),
            ("provider.usage", usage),
            (
                "agent.verified",
                json!({ "agentId": "critic", "verdict": "revise" }),
            ),
            ("node.completed", json!({ "outputs": { "text": "Done." } })),
        ]);
        let last = said.last().expect("a line");
        assert!(last.ends_with("completed  Done.  68 tokens, 1 USD"), "{last}");
        assert!(
            said.iter()
                .any(|line| line.ends_with("judged  critic asks for a revision")),
            "{said:?}"
        );
        let mut board = Board::new(&Value::Null);
        board.spend("run_ada", Spending::of_usage(&json!({ "totalTokens": 7 })));
        let done = json!({ "phase": "child.completed", "workerId": "ada", "childRunId": "run_ada" });
        let step = board
            .take(&event("core.workflowChain.event", "plan", &done))
            .expect("it is over");
        assert!(
            board
                .line(Paint::off(), &step, 80)
                .ends_with("completed  7 tokens")
        );
    }

    #[test]
    fn lines_fit_their_width() {
        let mut board = Board::new(&second_opinion::ASKS.document().unwrap());
        let text = "two words ".repeat(100);
        let over = board.take(&event(
            "node.completed",
            "sceptic",
            &json!({ "outputs": { "text": text } }),
        ));
        let over = over.unwrap();
        for width in [0, 1, 10, 30, 40, 80, 120] {
            let line = board.line(Paint::off(), &over, width);
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
        assert!(board.line(Paint::off(), &over, 80).ends_with('…'));
    }

    #[test]
    fn steps_that_are_over_leave_the_board() {
        let mut board = Board::new(&Value::Null);
        for node in ["a", "b"] {
            assert_eq!(board.take(&event("node.started", node, &json!({}))), None);
        }
        let failed = json!({ "error": { "code": "boom", "message": "it broke" } });
        let over = board.take(&event("node.failed", "a", &failed)).unwrap();
        assert_eq!(
            board.line(Paint::off(), &over, 80),
            "a                     failed  boom: it broke"
        );
        let left: Vec<_> = board.steps().iter().map(|step| step.node.as_str()).collect();
        assert_eq!(left, ["b"]);
        // A step that never was under way.
        let over = board.take(&event("node.skipped", "c", &json!({ "reason": "condition" })));
        assert!(over.is_some_and(|step| step.is_over()));
    }

    #[test]
    fn a_long_stream_keeps_its_end_only() {
        let mut board = Board::new(&Value::Null);
        for n in 0..1_000 {
            board.take(&event("output.chunk", "a", &json!({ "chunk": format!("é{n} ") })));
        }
        let [step] = board.steps() else {
            panic!("one step");
        };
        let State::Streaming(said) = &step.state else {
            panic!("{step:?}");
        };
        assert!(said.len() <= TAIL && said.ends_with("é999 "), "{said}");
    }
}
