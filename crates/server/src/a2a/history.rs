//! The messages of a task, in the order they were exchanged.
//!
//! Client messages are stored beside the log. Agent messages are derived from the log: every question that
//! the agent asked, except the one that is now its status message. A stored message records the head of the
//! log after the append that accepted it. It came first in that append, so it is placed at the answer event with
//! which the append begins. A message to a child causes no event here: it records the head of the log when it came, and
//! messages with the same head stay in the order in which they were accepted.
//!
//! A message is stored without values that the workflow marks as sensitive and without the token of an interrupt, so no
//! reader can see them. Readers of artifacts see the bytes of files, as far as the task has room for them; others see
//! references.

use std::{borrow::Cow, sync::Arc};

use serde_json::Value;
use wopr_app::{
    App, EDITED, Error as AppError, Mask, MessageRow, NewMessage, REDACTED, VisibleRun, Waiting,
    reads_artifacts,
};
use wopr_core::{Given, NodeId, Plan, Recorded, Seq};
use wopr_wire::{
    a2a::model::{Message, Part, PartContent},
    json,
};

use super::{
    error::Error,
    inputs, question,
    render::MAX_HISTORY,
    room::{File, Room},
    send,
};
use crate::auth::Caller;

const PAGE: usize = 256;
/// Maximum number of pages to read. Earlier agent messages are left out.
const MAX_PAGES: usize = 16;
/// Id prefix of a message that started or answered this run.
const ANSWER: &str = "m:";
/// Id prefix of a message whose answer went to a child run, so that no event of this run marks its place.
const FORWARDED: &str = "f:";
/// The last key of a token, nested or dotted; see [`super::metadata`].
const INTERRUPT_TOKEN: &str = "interruptToken";

/// Builds the row to store with the append that accepts the message. `forwarded` is the head of the log when the message
/// came, if its answer goes to a child run.
pub(super) fn row(message: &Message, name: &str, forwarded: Option<Seq>) -> Result<NewMessage, Error> {
    let mut message = inputs::referring(message, name);
    if holds_token(&message) {
        without_tokens(message.to_mut());
    }
    let body = serde_json::to_vec(&*message)
        .map_err(|error| AppError::Internal(format!("message {name}: {error}").into()))?;
    let kind = if forwarded.is_some() { FORWARDED } else { ANSWER };
    Ok(NewMessage {
        id: format!("{kind}{name}"),
        seen: forwarded,
        body,
    })
}

/// The name of a stored message; see [`send::name`].
fn name_of(row: &MessageRow) -> &str {
    let id = row.id.as_str();
    let name = id.strip_prefix(ANSWER).or_else(|| id.strip_prefix(FORWARDED));
    name.unwrap_or(id)
}

/// Returns `true` if a stored message has one of these names.
pub(super) fn is_named(row: &MessageRow, names: [&str; 2]) -> bool {
    names.contains(&name_of(row))
}

/// Selects a part of the conversation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) key: &'a VisibleRun,
    pub(super) context: &'a str,
    /// Agent messages from this event on are left out.
    pub(super) until: Seq,
    /// The id of the agent message shown as the status.
    pub(super) current: Option<&'a str>,
    /// Maximum number of messages; the latest are returned.
    pub(super) n: usize,
    /// The reader. It sees the bytes of files if it may read artifacts.
    pub(super) caller: &'a Caller,
}

/// Masks a message that starts a run.
pub(super) fn beginning(plan: &Arc<Plan>, mut message: Message) -> Message {
    let mask = Mask::of(plan);
    if mask.hides_nothing() {
        return message;
    }
    for part in &mut message.parts {
        let is_kept = match &mut part.content {
            PartContent::Text(_) => mask.hides_input("prompt"),
            PartContent::Data(Value::Object(members)) => {
                *members = mask.inputs(members).into_owned();
                false
            }
            PartContent::Data(data) => {
                mask.hide_members(data);
                mask.hides_input("data")
            }
            PartContent::Raw(_) | PartContent::Url(_) => mask.hides_input("files"),
        };
        if is_kept {
            *part = Part::text(REDACTED);
        }
        part.metadata = mask.members(&part.metadata);
    }
    message.metadata = mask.members(&message.metadata);
    message
}

/// Masks a message that answers a node. If the node is unknown, any sensitive node of the workflow counts.
pub(super) fn answering<'m>(
    plan: &Arc<Plan>,
    node: Option<&NodeId>,
    message: &'m Message,
) -> Cow<'m, Message> {
    let mask = Mask::of(plan);
    let is_kept = match node {
        Some(node) => mask.hides_answers(node),
        None => plan.has_sensitive(),
    };
    if !is_kept && mask.hides_nothing() {
        return Cow::Borrowed(message);
    }
    let mut message = message.clone();
    if !is_kept {
        if let Some(node) = node {
            each_object(&mut message, &mut |members| {
                for (name, value) in members {
                    if let Some(shown) = mask.replacement(node, last_key(name), value) {
                        *value = shown;
                    }
                }
            });
        }
        for part in &mut message.parts {
            if let PartContent::Data(data) = &mut part.content {
                mask.hide_members(data);
            }
            part.metadata = mask.members(&part.metadata);
        }
        message.metadata = mask.members(&message.metadata);
        return Cow::Owned(message);
    }
    message.parts = vec![Part::text(REDACTED)];
    // The metadata may contain the answer, too.
    message.metadata.retain(|name, _| !name.starts_with("openwop"));
    message.metadata = mask.members(&message.metadata);
    Cow::Owned(message)
}

/// Prepares a message that is returned to its sender right away.
pub(super) fn own(caller: &Caller, mut message: Message) -> Message {
    if reads_artifacts(caller) {
        return message;
    }
    let name = send::name(caller, &message);
    inputs::refer(&mut message, &name);
    without_contents(&mut message);
    message
}

/// Removes artifact content edited by a reviewer from a message. The key may be nested or dotted, in data or in
/// metadata.
fn without_contents(message: &mut Message) {
    each_object(message, &mut |members| {
        for (name, value) in members {
            if last_key(name) == EDITED {
                *value = "[ARTIFACT]".into();
            }
        }
    });
}

/// Returns `true` if a message has a token anywhere. Nearly none has, and those that have none are not copied.
fn holds_token(message: &Message) -> bool {
    let in_part = |part: &Part| match &part.content {
        PartContent::Data(data) => names_token(data) || members_name_token(&part.metadata),
        PartContent::Text(_) | PartContent::Raw(_) | PartContent::Url(_) => {
            members_name_token(&part.metadata)
        }
    };
    members_name_token(&message.metadata) || message.parts.iter().any(in_part)
}

fn names_token(value: &Value) -> bool {
    match value {
        Value::Object(members) => members_name_token(members),
        Value::Array(items) => items.iter().any(names_token),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn members_name_token(members: &json::Object) -> bool {
    let mut members = members.iter();
    members.any(|(name, value)| last_key(name) == INTERRUPT_TOKEN || names_token(value))
}

/// Removes the tokens with which interrupts can be answered. Whoever sends the metadata of a task back sends those of all
/// its interrupts, and whoever reads the history need not be allowed to answer.
fn without_tokens(message: &mut Message) {
    each_object(message, &mut |members| {
        members.retain(|name, _| last_key(name) != INTERRUPT_TOKEN);
    });
}

fn last_key(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Visits all objects in the data and the metadata of a message, outer ones first.
fn each_object(message: &mut Message, visit: &mut impl FnMut(&mut json::Object)) {
    for part in &mut message.parts {
        if let PartContent::Data(data) = &mut part.content {
            each_in(data, visit);
        }
        each_within(&mut part.metadata, visit);
    }
    each_within(&mut message.metadata, visit);
}

fn each_in(value: &mut Value, visit: &mut impl FnMut(&mut json::Object)) {
    match value {
        Value::Object(members) => each_within(members, visit),
        Value::Array(items) => items.iter_mut().for_each(|item| each_in(item, visit)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn each_within(members: &mut json::Object, visit: &mut impl FnMut(&mut json::Object)) {
    visit(members);
    members.values_mut().for_each(|value| each_in(value, visit));
}

/// Reads the latest messages, oldest first.
pub(super) async fn read(room: &mut Room, wanted: Wanted<'_>) -> Result<Vec<Message>, Error> {
    let Wanted { key, n, caller, .. } = wanted;
    let host = Arc::clone(room.host());
    let app = host.app();
    let rows = app.messages(caller, key, n).await?;
    let said = said(app, wanted, &rows).await?;
    let mut placed: Vec<(u64, bool, Exchanged)> = Vec::with_capacity(rows.len() + said.messages.len());
    for row in rows {
        let place = place(&row, &said.answers);
        placed.push((place, false, Exchanged::Row(row)));
    }
    for (seq, message) in said.messages {
        placed.push((seq, true, Exchanged::Said(message)));
    }
    // The sort is stable, so messages at the same place keep the store's order.
    placed.sort_by_key(|(place, is_said, _)| (*place, *is_said));
    let first = placed.len().saturating_sub(n);
    let mut messages = Vec::with_capacity(placed.len() - first);
    // The latest first, which are to have the room for their files.
    for (_, _, exchanged) in placed.drain(first..).rev() {
        messages.push(match exchanged {
            Exchanged::Said(message) => message,
            Exchanged::Row(row) => restore(room, caller, key, &row).await?,
        });
    }
    messages.reverse();
    Ok(messages)
}

enum Exchanged {
    Row(MessageRow),
    Said(Message),
}

/// The place of a stored message among the events.
fn place(row: &MessageRow, answers: &[u64]) -> u64 {
    if row.id.starts_with(FORWARDED) {
        return row.seq.0;
    }
    let before = answers.iter().filter(|answer| **answer < row.seq.0);
    before.max().copied().unwrap_or(0)
}

struct Said {
    messages: Vec<(u64, Message)>,
    /// Events with which an append of an answer begins.
    answers: Vec<u64>,
}

/// Derives the agent's messages, reading the log backwards.
async fn said(app: &App, wanted: Wanted<'_>, rows: &[MessageRow]) -> Result<Said, AppError> {
    let Wanted {
        key,
        context,
        until,
        current,
        n,
        caller: _,
    } = wanted;
    let mut said = Said {
        messages: Vec::new(),
        answers: Vec::new(),
    };
    let (mut n_own, mut n_of_children) = (0, 0);
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
            let waiting = recorded.event.kernel().and_then(Waiting::opened_by);
            let Some(waiting) = waiting.filter(|_| recorded.seq < until) else {
                continue;
            };
            // A child's question is shown again after each turn of its conversation, and was asked where it was shown
            // first, which may be before questions of the run itself.
            let (n_known, most) = match waiting.child {
                None => (&mut n_own, n),
                Some(_) => (&mut n_of_children, MAX_HISTORY as usize),
            };
            let id = question::message_id(&waiting, key.run.as_str());
            let mut known = said.messages.iter_mut();
            if let Some((known_at, _)) = known.find(|(_, known)| known.message_id == id) {
                *known_at = recorded.seq.0;
                continue;
            }
            if *n_known >= most {
                continue;
            }
            if let Some(mut question) = app.question_asked_by(key, recorded).await? {
                // As it was asked: the turns since then are messages of their own.
                if let Some(asked) = &mut question.asked {
                    asked.conversation = None;
                }
                let message = question::message(&question, key.run.as_str(), context, false);
                if Some(message.message_id.as_str()) != current {
                    said.messages.push((recorded.seq.0, message));
                    *n_known += 1;
                }
            }
        }
        end = first.seq.0;
    }
    Ok(said)
}

/// Returns `true` if the event is the first one that followed from an answer, a vote, a question or a turn.
fn is_answer(recorded: &Recorded) -> bool {
    matches!(recorded.given.as_deref(), Some(Given::Answer(_)))
}

/// Decodes a stored message, with the bytes of its files if the reader may see them and there is room.
async fn restore(
    room: &mut Room,
    caller: &Caller,
    key: &VisibleRun,
    row: &MessageRow,
) -> Result<Message, Error> {
    let mut message: Message = json::from_slice(&row.body)
        .map_err(|error| AppError::Internal(format!("message {} of {key}: {error}", row.id).into()))?;
    if !reads_artifacts(caller) {
        without_contents(&mut message);
        return Ok(message);
    }
    let name = name_of(row);
    for (index, part) in message.parts.iter_mut().enumerate() {
        let Some(id) = inputs::reference(part, name, index) else {
            continue;
        };
        match room.file(caller, key, id).await? {
            File::Read(blob) => part.content = PartContent::Raw(blob.bytes),
            File::Unknown | File::TooLarge => {}
        }
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_placed_where_its_append_begins() {
        let row = |id: &str, seq| MessageRow {
            id: id.to_owned(),
            seq: Seq(seq),
            body: Vec::new(),
        };
        // The run starts, asks at 4, and is answered by an append of events 8 to 15 that asks again at 12.
        let answers = [8, 20];
        assert_eq!(place(&row("m:1", 8), &answers), 0);
        assert_eq!(place(&row("m:2", 16), &answers), 8);
        assert_eq!(place(&row("m:3", 24), &answers), 20);
        assert_eq!(place(&row("f:4", 16), &answers), 16);
    }
}
