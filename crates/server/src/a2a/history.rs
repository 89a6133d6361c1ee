//! The messages of a task, in the order they were exchanged.
//!
//! What clients sent is stored beside the log; what the agent said is derived from it: every question it asked,
//! but the one that is its status message now. A stored message says where the log ended after the append that
//! took it, and it came first in that append, so its place is that of the answer the append begins with.
//!
//! A message is kept without what the workflow marks as sensitive, so that no reader can see that. The bytes of its
//! files are shown to readers of artifacts; others see references.

use std::sync::Arc;

use serde_json::Value;
use wopr_app::{App, EDITED, Error as AppError, Mask, MessageRow, NewMessage, REDACTED, reads_artifacts};
use wopr_core::{Event, NodeId, Plan, Recorded, RunKey, Seq};
use wopr_wire::{
    a2a::model::{Message, Part, PartContent},
    json,
};

use super::{error::Error, inputs, question, send};
use crate::auth::Caller;

/// Events read at once.
const PAGE: usize = 256;
/// Pages read at most: what the agent said before them is left out.
const MAX_PAGES: usize = 16;
/// Starts the id of a message that an answer of this run came with.
const ANSWER: &str = "m:";
/// Starts the id of a message whose answer went to a child, so that no event of this run begins with it.
const FORWARDED: &str = "f:";

/// A message to keep with the append that takes it.
pub(super) fn row(message: &Message, name: &str, is_forwarded: bool) -> Result<NewMessage, Error> {
    let body = serde_json::to_vec(&*inputs::referring(message, name))
        .map_err(|error| AppError::Internal(format!("message {name}: {error}")))?;
    let kind = if is_forwarded { FORWARDED } else { ANSWER };
    Ok(NewMessage {
        id: format!("{kind}{name}"),
        body,
    })
}

/// Whether a stored message has this name.
pub(super) fn is_named(row: &MessageRow, name: &str) -> bool {
    let kept = row
        .id
        .strip_prefix(ANSWER)
        .or_else(|| row.id.strip_prefix(FORWARDED));
    kept == Some(name)
}

/// What part of a conversation is wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// The run.
    pub(super) key: &'a RunKey,
    /// Its context.
    pub(super) context: &'a str,
    /// What the agent said from here on is left out.
    pub(super) until: Seq,
    /// The agent's message that is shown as the status.
    pub(super) current: Option<&'a str>,
    /// How many of the latest messages.
    pub(super) n: usize,
    /// Whether the bytes of files are shown.
    pub(super) reads_files: bool,
}

/// A message that begins a run, as it is kept and shown.
pub(super) fn beginning(plan: &Arc<Plan>, message: &Message) -> Message {
    let mask = Mask::of(plan);
    let mut message = message.clone();
    for part in &mut message.parts {
        let is_kept = match &mut part.content {
            PartContent::Text(_) => mask.hides_input("prompt"),
            PartContent::Data(Value::Object(members)) => {
                *members = mask.inputs(members);
                false
            }
            PartContent::Data(_) => mask.hides_input("data"),
            PartContent::Raw(_) | PartContent::Url(_) => mask.hides_input("files"),
        };
        if is_kept {
            *part = Part::text(REDACTED);
        }
    }
    message
}

/// A message that answers a node, as it is kept and shown. Where the node is not known, it is any of the workflow.
pub(super) fn answering(plan: &Arc<Plan>, node: Option<&NodeId>, message: &Message) -> Message {
    let mask = Mask::of(plan);
    let is_kept = match node {
        Some(node) => mask.hides_answers(node),
        None => plan.has_sensitive(),
    };
    let mut message = message.clone();
    if is_kept {
        message.parts = vec![Part::text(REDACTED)];
        // An answer may be there, too.
        message.metadata.retain(|name, _| !name.starts_with("openwop"));
    }
    message
}

/// A message that its sender is shown right away.
pub(super) fn own(caller: &Caller, message: Message) -> Message {
    if reads_artifacts(caller) {
        return message;
    }
    let name = send::name(caller, &message);
    let mut message = inputs::referring(&message, &name).into_owned();
    without_contents(&mut message);
    message
}

/// Takes what a reviewer put in the place of an artifact out of a message, wherever a key is written that may be read
/// as that: nested or dotted, in data or in metadata.
fn without_contents(message: &mut Message) {
    for part in &mut message.parts {
        if let PartContent::Data(data) = &mut part.content {
            strip(data);
        }
        strip_members(&mut part.metadata);
    }
    strip_members(&mut message.metadata);
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(members) => strip_members(members),
        Value::Array(items) => items.iter_mut().for_each(strip),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn strip_members(members: &mut json::Object) {
    for (name, value) in members {
        let last = name.rsplit('.').next();
        if last == Some(EDITED) {
            *value = "[ARTIFACT]".into();
        } else {
            strip(value);
        }
    }
}

/// Reads the latest messages, oldest first.
pub(super) async fn read(app: &App, wanted: Wanted<'_>) -> Result<Vec<Message>, Error> {
    let Wanted { key, n, .. } = wanted;
    let rows = app.messages(key, n).await?;
    let said = said(app, wanted, &rows).await?;
    let mut placed: Vec<(u64, bool, Exchanged)> = Vec::with_capacity(rows.len() + said.messages.len());
    for row in rows {
        let place = place(&row, &said.answers);
        placed.push((place, false, Exchanged::Row(row)));
    }
    for (seq, message) in said.messages {
        placed.push((seq, true, Exchanged::Said(message)));
    }
    // Stable: messages of one place stay in the order of the store.
    placed.sort_by_key(|(place, is_said, _)| (*place, *is_said));
    let first = placed.len().saturating_sub(n);
    let mut messages = Vec::with_capacity(placed.len() - first);
    for (_, _, exchanged) in placed.drain(first..) {
        messages.push(match exchanged {
            Exchanged::Said(message) => message,
            Exchanged::Row(row) => restore(app, key, &row, wanted.reads_files).await?,
        });
    }
    Ok(messages)
}

enum Exchanged {
    Row(MessageRow),
    Said(Message),
}

/// Where a stored message stands among the events.
fn place(row: &MessageRow, answers: &[u64]) -> u64 {
    if row.id.starts_with(FORWARDED) {
        return row.seq.0;
    }
    let before = answers.iter().filter(|answer| **answer < row.seq.0);
    before.max().copied().unwrap_or(0)
}

struct Said {
    messages: Vec<(u64, Message)>,
    /// Events that an answer begins with.
    answers: Vec<u64>,
}

/// What the agent said, from the end of the log backwards.
async fn said(app: &App, wanted: Wanted<'_>, rows: &[MessageRow]) -> Result<Said, AppError> {
    let Wanted {
        key,
        context,
        until,
        current,
        n,
        reads_files: _,
    } = wanted;
    let mut said = Said {
        messages: Vec::new(),
        answers: Vec::new(),
    };
    let mut end = rows.iter().map(|row| row.seq.0).max().unwrap_or(0).max(until.0);
    for _ in 0..MAX_PAGES {
        let Some(page) = app.events_before(key, Seq(end), PAGE).await? else {
            break;
        };
        let Some(first) = page.events.first() else { break };
        for recorded in page.events.iter().rev() {
            if is_answer(recorded) {
                said.answers.push(recorded.seq.0);
            }
            if recorded.seq >= until || said.messages.len() >= n {
                continue;
            }
            if let Some(question) = question::asked_by(app, key, recorded).await? {
                let message = question.message(key.run.as_str(), context);
                if Some(message.message_id.as_str()) != current {
                    said.messages.push((recorded.seq.0, message));
                }
            }
        }
        end = first.seq.0;
    }
    Ok(said)
}

/// Claims that a message may have led to the event, and that none comes before it in the same append.
fn is_answer(recorded: &Recorded) -> bool {
    match &recorded.event {
        Event::InterruptResolved { .. } | Event::ApprovalVoted { .. } => true,
        Event::VariableChanged { name, .. } => name.starts_with("_askExchanges:"),
        _ => false,
    }
}

/// A stored message, with the bytes of its files for whoever reads them.
async fn restore(app: &App, key: &RunKey, row: &MessageRow, reads_files: bool) -> Result<Message, Error> {
    let mut message: Message = json::from_slice(&row.body)
        .map_err(|error| AppError::Internal(format!("message {} of {key}: {error}", row.id)))?;
    if !reads_files {
        without_contents(&mut message);
        return Ok(message);
    }
    for part in &mut message.parts {
        let Some(id) = inputs::reference(part) else {
            continue;
        };
        if let Some(blob) = app.blob(key, id).await? {
            part.content = PartContent::Raw(blob.bytes);
        }
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stands_where_its_append_began() {
        let row = |id: &str, seq| MessageRow {
            id: id.to_owned(),
            seq: Seq(seq),
            body: Vec::new(),
        };
        // Begun, asked at 4, answered by an append of 8 to 15 that asks again at 12.
        let answers = [8, 20];
        assert_eq!(place(&row("m:1", 8), &answers), 0);
        assert_eq!(place(&row("m:2", 16), &answers), 8);
        assert_eq!(place(&row("m:3", 24), &answers), 20);
        assert_eq!(place(&row("f:4", 16), &answers), 16);
    }
}
