//! Formats runs, events, tasks and answers for display.

use serde_json::Value;
use wopr_wire::{
    a2a::model::{Artifact, Message, Part, PartContent, TaskState},
    openwop::{event::RunEventDoc, run::InterruptView},
    time::Timestamp,
};

use crate::output::{Paint, plain};

/// Maximum length of the detail on an event's line, in characters.
const MAX_DETAIL: usize = 160;
/// How many of the latest turns of a conversation are shown where there is little room.
const MAX_SAID: usize = 5;

/// Formats a task state as A2A users write it: `input-required`.
pub(crate) fn task_state(state: TaskState) -> String {
    let name = state.as_str();
    name.strip_prefix("TASK_STATE_")
        .unwrap_or(name)
        .to_ascii_lowercase()
        .replace('_', "-")
}

/// A problem or warning of a definition, as servers list them, on one line.
pub(crate) fn problem(listed: &Value) -> String {
    let [place, rule, hint] = ["place", "rule", "hint"].map(|member| text(listed, member));
    let hint = if hint.is_empty() {
        String::new()
    } else {
        format!("; {hint}")
    };
    plain(&format!("{place}: {rule}{hint}")).into_owned()
}

/// Returns the string under `name`, or an empty one.
pub(crate) fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Returns strings unquoted and other values as JSON.
pub(crate) fn value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    }
}

/// Returns the strings in the list under `name`.
pub(crate) fn texts<'v>(value: &'v Value, name: &str) -> Vec<&'v str> {
    let list = value.get(name).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Shortens text to a single line of at most [`MAX_DETAIL`] characters.
pub(crate) fn short(text: &str) -> String {
    cut(text, MAX_DETAIL)
}

/// Shortens text to a single line of at most `most` characters.
pub(crate) fn cut(text: &str, most: usize) -> String {
    let line = plain(text).split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= most {
        return line;
    }
    let mut cut: String = line.chars().take(most.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// Returns the time of day of a timestamp.
pub(crate) fn clock(timestamp: &str) -> &str {
    timestamp.get(11..23).unwrap_or(timestamp)
}

/// Formats an event as one line: time, type, node and detail.
pub(crate) fn event(paint: Paint, event: &RunEventDoc) -> String {
    let timestamp = event.timestamp.to_string();
    let mut line = format!(
        "{} {} {}",
        paint.dim(format!("{:>4}", event.sequence)),
        paint.dim(clock(&timestamp)),
        event_type(paint, &event.event_type),
    );
    let node = event.node_id.as_deref().unwrap_or_default();
    if !node.is_empty() {
        line.push_str(&format!(" {}", paint.bold(plain(node))));
    }
    let detail = detail(event);
    if !detail.is_empty() {
        line.push_str(&format!(" {}", paint.dim(detail)));
    }
    line.truncate(line.trim_end().len());
    line
}

fn event_type(paint: Paint, name: &str) -> String {
    let padded = format!("{:<22}", plain(name));
    match name {
        "run.completed" | "node.completed" => paint.green(padded),
        "run.failed" | "node.failed" | "run.cancelled" | "node.cancelled" | "cap.breached" => {
            paint.red(padded)
        }
        "node.suspended"
        | "approval.requested"
        | "clarification.requested"
        | "interrupt.requested"
        | "run.paused" => paint.yellow(padded),
        _ => paint.cyan(padded),
    }
}

/// Returns the most relevant part of an event's payload.
fn detail(event: &RunEventDoc) -> String {
    let payload = &event.payload;
    let named = |name: &str| payload.get(name).filter(|value| !value.is_null()).map(value);
    let error = payload.get("error").map(|error| match error {
        Value::Object(_) => format!("{}: {}", text(error, "code"), text(error, "message")),
        other => value(other),
    });
    let found = match event.event_type.as_str() {
        "run.started" => named("workflowId"),
        "node.retried" => Some(retry(payload, event.timestamp)),
        "run.failed" | "node.failed" => {
            let cause = payload
                .get("error")
                .and_then(|error| failed_worker(error.get("details")?));
            let error = error.or_else(|| named("message"));
            error.map(|error| match cause {
                Some(cause) => format!("{error}; {cause}"),
                None => error,
            })
        }
        "runOrchestrator.decided" => Some(decision(payload)),
        "core.workflowChain.event" => Some(handoff(payload)),
        "core.workflowChain.confidence-escalated" => Some(escalation(payload)),
        "agent.verified" => Some(verdict(payload)),
        "context.summarized" => payload
            .get("replacedTurns")
            .and_then(Value::as_array)
            .map(|replaced| {
                let artifact = text(payload, "summaryRef");
                format!("{} events of earlier turns as {artifact}", replaced.len())
            }),
        "agent.handoff" => {
            let [from, to] = ["fromAgentId", "toAgentId"].map(|name| text(payload, name));
            Some(format!("{from} hands over to {to}"))
        }
        "agent.decided" if payload.pointer("/decision/kind").is_some() => Some(decision(payload)),
        "agent.invocation.completed" => named("outcome"),
        "core.dispatch.fanOut" => Some(fan_out(payload)),
        "core.dispatch.join" => Some(join(payload)),
        "cap.breached" => named("kind").map(|kind| {
            let [observed, limit] = ["observed", "limit"].map(|name| named(name).unwrap_or_default());
            format!("{kind}: {observed} of at most {limit}")
        }),
        "run.cancelled" | "node.cancelled" | "node.skipped" => named("reason"),
        "artifact.created" => named("artifactType"),
        "approval.requested" => named("title"),
        "approval.received" => named("action"),
        "variable.changed" => named("name").or_else(|| named("variableName")),
        "node.dispatched" => named("childRunId"),
        "channel.written" => named("channel"),
        "vendor.wopr.effect.accepted" => named("peer").map(|peer| match named("taskId") {
            Some(task) => format!("by {peer}, task {task}"),
            None => format!("by {peer}"),
        }),
        "interrupt.requested" => asked(payload),
        _ => None,
    };
    short(&found.unwrap_or_default())
}

/// Why the next attempt of a node comes, and when, from the event at this time.
pub(crate) fn retry(payload: &Value, at: Timestamp) -> String {
    let error = payload.get("lastError").unwrap_or(&Value::Null);
    let [code, message] = ["code", "message"].map(|name| text(error, name));
    let delay = payload.get("delayMs").and_then(Value::as_i64).unwrap_or_default();
    let due = Timestamp::from_millis(at.as_millis().saturating_add(delay));
    let failed = [code, message].into_iter().filter(|text| !text.is_empty());
    let failed = failed.collect::<Vec<_>>().join(": ");
    format!("attempt {} at {due}, after {failed}", number(payload, "attempt"))
}

/// What a supervisor has decided, on one line.
pub(crate) fn decision(payload: &Value) -> String {
    let decision = payload.get("decision").unwrap_or(&Value::Null);
    let workers = texts(decision, "nextWorkerIds").join(", ");
    let what = match text(decision, "kind") {
        "next-worker" => format!("hands over to {workers}"),
        "ask-user" => format!("asks: {}", text(decision, "prompt")),
        kind => [kind, text(decision, "reason")].join(" ").trim_end().to_owned(),
    };
    let confidence = decision.get("confidence").and_then(Value::as_f64);
    let confidence = confidence.map_or_else(String::new, |confidence| format!(" (confidence {confidence})"));
    format!("{what}{confidence}")
}

/// How many workers a dispatch waits for.
pub(crate) fn fan_out(payload: &Value) -> String {
    format!("{} workers at the same time", number(payload, "childCount"))
}

/// How workers that worked at the same time have ended.
pub(crate) fn join(payload: &Value) -> String {
    let [completed, failed, cancelled] =
        ["completedCount", "failedCount", "cancelledCount"].map(|name| number(payload, name));
    let outcome = text(payload, "joinOutcome");
    format!("{outcome}: {completed} completed, {failed} failed, {cancelled} cancelled")
}

/// Why a decision needs an approval.
pub(crate) fn escalation(payload: &Value) -> String {
    let [confidence, floor] = ["confidence", "floor"].map(|name| number(payload, name));
    format!("the confidence {confidence} is below {floor}")
}

/// A decision that is held, and why, from the data of its interrupt.
pub(crate) fn held(data: &Value) -> String {
    let [observed, threshold] = ["observed", "threshold"].map(|name| number(data, name));
    let agent = text(data, "agentId");
    let decided = match data.pointer("/decision/kind") {
        Some(_) => decision(data),
        None => value(data.get("decision").unwrap_or(&Value::Null)),
    };
    format!("{agent} is unsure ({observed}, below {threshold}): {decided}")
}

fn number(payload: &Value, name: &str) -> String {
    payload.get(name).map(Value::to_string).unwrap_or_default()
}

/// What a verifier says, on one line.
pub(crate) fn verdict(payload: &Value) -> String {
    let agent = text(payload, "agentId");
    let says = match text(payload, "verdict") {
        "pass" => "passes the work",
        "fail" => "rejects the work",
        "revise" => "asks for a revision",
        other => other,
    };
    let criteria = texts(payload, "criteria").join(", ");
    match criteria.as_str() {
        "" => format!("{agent} {says}"),
        criteria => format!("{agent} {says} by {criteria}"),
    }
}

/// A transition of a handoff, on one line: the worker, what became of it, and its run.
fn handoff(payload: &Value) -> String {
    let mut line = text(payload, "workerId").to_owned();
    let says = match text(payload, "phase") {
        "dispatch.began" => "gets the work",
        "dispatch.succeeded" => "works",
        "dispatch.failed" => "cannot work",
        "child.completed" => "has completed",
        "child.failed" => "has failed",
        "child.cancelled" => "was cancelled",
        "output.harvested" => "gave back",
        other => other,
    };
    line.push(' ');
    line.push_str(says);
    let keys = texts(payload, "harvestedKeys").join(", ");
    if !keys.is_empty() {
        line.push_str(&format!(" {keys}"));
    }
    if let Some(error) = payload.get("error") {
        line.push_str(&format!(": {}: {}", text(error, "code"), text(error, "message")));
    }
    let child = text(payload, "childRunId");
    if !child.is_empty() {
        line.push_str(&format!(" ({child})"));
    }
    line
}

/// The worker without whose failure a run would not have failed, from the details of the run's error.
pub(crate) fn failed_worker(details: &Value) -> Option<String> {
    let failure = details.get("workerFailure")?;
    let [worker, code, message, child] =
        ["workerId", "code", "message", "childRunId"].map(|name| text(failure, name));
    let child = if child.is_empty() {
        String::new()
    } else {
        format!(" ({child})")
    };
    Some(format!("worker {worker}{child} failed last: {code}: {message}"))
}

/// Returns what an interrupt asks, if it passes on the question of another agent or has a prompt.
fn asked(payload: &Value) -> Option<String> {
    let data = payload.get("data")?;
    match data.get("peer").and_then(Value::as_str) {
        Some(peer) => Some(format!("{peer} asks: {}", text(data, "message"))),
        None => data.get("prompt")?.as_str().map(str::to_owned),
    }
}

pub(crate) fn part(part: &Part) -> String {
    match &part.content {
        PartContent::Text(text) => text.clone(),
        PartContent::Data(data) => value(data),
        PartContent::Url(url) => url.clone(),
        PartContent::Raw(bytes) => {
            let name = part.filename.as_deref().unwrap_or("a file");
            format!("{name} ({} bytes)", bytes.len())
        }
    }
}

/// Formats a message as text, or as its data if it has no text.
pub(crate) fn message(message: &Message) -> String {
    let is_text = |part: &&Part| matches!(part.content, PartContent::Text(_));
    let said: Vec<_> = message.parts.iter().filter(is_text).cloned().collect();
    parts(if said.is_empty() { &message.parts } else { &said })
}

pub(crate) fn artifact(artifact: &Artifact) -> String {
    parts(&artifact.parts)
}

fn parts(parts: &[Part]) -> String {
    let texts: Vec<_> = parts.iter().map(part).collect();
    plain(&texts.join("\n")).into_owned()
}

pub(crate) fn indented(text: &str, by: usize) -> String {
    let margin = " ".repeat(by);
    let lines: Vec<_> = plain(text)
        .lines()
        .map(|line| {
            if line.is_empty() {
                String::new()
            } else {
                format!("{margin}{line}")
            }
        })
        .collect();
    lines.join("\n")
}

/// Returns the artifact that an interrupt refers to. An approval without one names its own node there.
pub(crate) fn artifact_id(view: &InterruptView) -> Option<&str> {
    let id = text(&view.data, "artifactId");
    (!id.is_empty() && id != view.node_id).then_some(id)
}

/// Returns the run that owns the artifact: the one that raised the interrupt, which may be a child run.
pub(crate) fn artifact_run<'v>(view: &'v InterruptView, run: &'v str) -> &'v str {
    match text(&view.data, "artifactRunId") {
        "" => run,
        child => child,
    }
}

/// Formats an artifact's content: strings as they are, other values as indented JSON.
pub(crate) fn content(artifact: &Value) -> String {
    match artifact.get("content") {
        None => String::new(),
        Some(Value::String(text)) => plain(text).into_owned(),
        Some(other) => {
            let text = serde_json::to_string_pretty(other).unwrap_or_else(|_| other.to_string());
            plain(&text).into_owned()
        }
    }
}

/// Returns the description of an interrupt, as lines.
pub(crate) fn about(data: &Value) -> Vec<String> {
    let said = ["title", "description", "prompt"].map(|name| text(data, name));
    let said = said.into_iter().filter(|text| !text.is_empty());
    said.map(|text| plain(text).into_owned()).collect()
}

/// Returns the question that an interrupt asks, as lines.
pub(crate) fn question(view: &InterruptView) -> Vec<String> {
    let data = &view.data;
    let mut lines = Vec::new();
    let kind = match view.kind.as_str() {
        "external-event" => text(data, "eventType"),
        "custom" => text(data, "customKind"),
        _ => "",
    };
    if text(data, "title").is_empty() && !kind.is_empty() {
        lines.push(plain(kind).into_owned());
    }
    lines.extend(about(data));
    for question in data
        .get("questions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        lines.push(format!(
            "{}: {}",
            plain(text(question, "id")),
            plain(text(question, "question"))
        ));
    }
    if lines.is_empty() {
        lines.push(format!("{} waits for an answer ({})", view.node_id, view.kind));
    }
    lines
}

/// Returns what was said in a conversation since it was opened, a line for each turn.
pub(crate) fn said(view: &InterruptView) -> Vec<String> {
    let turns = view.data.get("turns").and_then(Value::as_array);
    let turns = turns.into_iter().flatten();
    // The first turn is the prompt.
    let turns = turns.filter(|turn| turn.get("turnIndex").and_then(Value::as_u64) > Some(0));
    turns
        .map(|turn| {
            let content = turn.get("content").map(value).unwrap_or_default();
            format!("{}: {}", plain(text(turn, "from")), plain(&content))
        })
        .collect()
}

/// Returns the latest turns of a conversation, a line for each.
pub(crate) fn last_said(view: &InterruptView) -> Vec<String> {
    let mut said = said(view);
    said.split_off(said.len().saturating_sub(MAX_SAID))
}

/// Returns the answer that ends a conversation, of the right shape.
pub(crate) fn example_end(view: &InterruptView) -> &'static str {
    match view.data.get("outcomeSchema") {
        Some(_) => r#"{"operation":"close","outcome":…}"#,
        None => r#"{"operation":"close"}"#,
    }
}

/// Returns a sample answer of the right shape.
pub(crate) fn example_answer(view: &InterruptView) -> String {
    match view.kind.as_str() {
        "approval" => r#"{"action":"accept"}"#.to_owned(),
        "clarification" => {
            let questions = view.data.get("questions").and_then(Value::as_array);
            let answers: serde_json::Map<String, Value> = questions
                .into_iter()
                .flatten()
                .map(|question| (text(question, "id").to_owned(), Value::from("…")))
                .collect();
            serde_json::json!({ "answers": answers }).to_string()
        }
        kind if is_conversation(kind) => r#"{"operation":"exchange","content":"…"}"#.to_owned(),
        _ => "{…}".to_owned(),
    }
}

/// Whether an interrupt of this kind is the next turn of a conversation.
pub(crate) fn is_conversation(kind: &str) -> bool {
    kind.starts_with("conversation.")
}

/// Until when a link is valid, if the server says so.
pub(crate) fn until(view: &InterruptView) -> String {
    let until = view.expires_at.as_ref().map(|at| format!(" (until {at})"));
    until.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_states_are_lowercase_with_hyphens() {
        assert_eq!(task_state(TaskState::InputRequired), "input-required");
        assert_eq!(task_state(TaskState::Completed), "completed");
    }

    fn line(kind: &str, payload: &Value) -> String {
        let event = serde_json::json!({
            "eventId": "run_1.0", "runId": "run_1", "type": kind, "nodeId": "n", "sequence": 0,
            "timestamp": "2026-01-01T00:00:00.000Z", "schemaVersion": 1, "payload": payload,
        });
        detail(&serde_json::from_value(event).unwrap())
    }

    #[test]
    fn decisions_and_handoffs_are_one_line() {
        use serde_json::json;
        let failed = json!({ "code": "boom", "message": "it broke" });
        for (kind, payload, expected) in [
            (
                "runOrchestrator.decided",
                json!({ "decision": { "kind": "next-worker", "nextWorkerIds": ["a", "b"], "confidence": 0.9 } }),
                "hands over to a, b (confidence 0.9)",
            ),
            (
                "runOrchestrator.decided",
                json!({ "decision": { "kind": "terminate", "reason": "goal-reached" } }),
                "terminate goal-reached",
            ),
            (
                "core.workflowChain.event",
                json!({ "phase": "child.failed", "workerId": "a", "childRunId": "run_2", "error": failed }),
                "a has failed: boom: it broke (run_2)",
            ),
            (
                "core.workflowChain.event",
                json!({ "phase": "output.harvested", "workerId": "a", "harvestedKeys": ["x", "y"] }),
                "a gave back x, y",
            ),
            (
                "core.workflowChain.confidence-escalated",
                json!({ "confidence": 0.25, "floor": 0.5 }),
                "the confidence 0.25 is below 0.5",
            ),
            (
                "agent.handoff",
                json!({ "fromAgentId": "lead", "toAgentId": "critic" }),
                "lead hands over to critic",
            ),
            (
                "agent.decided",
                json!({ "agentId": "lead", "decision": { "kind": "terminate", "reason": "done" } }),
                "terminate done",
            ),
            (
                "agent.verified",
                json!({ "agentId": "critic", "target": "run_1.3", "verdict": "revise", "criteria": ["short", "sourced"] }),
                "critic asks for a revision by short, sourced",
            ),
            (
                "core.dispatch.join",
                json!({ "joinOutcome": "partial", "completedCount": 1, "failedCount": 1, "cancelledCount": 0 }),
                "partial: 1 completed, 1 failed, 0 cancelled",
            ),
            (
                "cap.breached",
                json!({ "kind": "loop-iterations", "limit": 3, "observed": 4 }),
                "loop-iterations: 4 of at most 3",
            ),
            (
                "node.retried",
                json!({
                    "attempt": 2, "delayMs": 90_000,
                    "lastError": { "code": "boom", "message": "it broke", "retryable": true },
                }),
                "attempt 2 at 2026-01-01T00:01:30.000Z, after boom: it broke",
            ),
            (
                "run.failed",
                json!({ "error": { "code": "loop_limit_exceeded", "message": "too many", "details": {
                    "workerFailure": { "workerId": "a", "childRunId": "run_2", "code": "boom", "message": "it broke" },
                } } }),
                "loop_limit_exceeded: too many; worker a (run_2) failed last: boom: it broke",
            ),
        ] {
            assert_eq!(line(kind, &payload), expected);
        }
    }

    #[test]
    fn detail_stays_on_one_line() {
        assert_eq!(short("a\n b\u{1b}[2J"), "a b[2J");
        assert_eq!(short(&"x".repeat(500)).chars().count(), MAX_DETAIL);
    }
}
