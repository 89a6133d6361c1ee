//! A conversation on the page of its next turn: what was said so far, and the forms to say more and to end it.
//!
//! If the end needs an outcome, it has a form of its own: the browser then asks for the outcome only from whoever
//! ends the conversation.

use maud::{Markup, html};
use serde_json::{Map, Value};

use super::{
    content::pretty,
    fields::{Field, Form},
};

/// The name of the outcome's input.
const OUTCOME: &str = "outcome";

/// A conversation that waits for its next turn.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    /// The turns to show, oldest first. The prompt of the page is the gate's own turn, so it is not among them.
    pub(crate) said: Vec<Said>,
    /// Index of the next turn.
    pub(crate) next: u64,
}

/// A turn, as its reader sees it.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) index: u32,
    /// Who said it.
    pub(crate) from: String,
    pub(crate) content: Value,
}

impl Conversation {
    pub(super) fn show(&self) -> Markup {
        let is_cut = self.said.first().is_some_and(|first| first.index > 1);
        html! {
            section aria-labelledby="said" {
                h2 id="said" { "Said so far" }
                @if is_cut { p.hint { "Earlier turns are in the log of the run." } }
                @for said in &self.said {
                    p.hint { "Turn " (said.index) ", " span.theirs { (said.from) } }
                    pre.wrap.theirs dir="auto" { (words(&said.content)) }
                }
            }
        }
    }

    pub(super) fn forms(&self, data: &Value, given: Option<&Form>) -> Markup {
        let most = data.get("maxTurns").and_then(Value::as_u64);
        let is_full = most.is_some_and(|most| self.next > most);
        let full = html! {
            @if let (true, Some(most)) = (is_full, most) {
                p.note { "This conversation has taken all of its " (most) " turns. It can only be ended." }
            }
        };
        let Some(outcome) = outcome(data) else {
            return html! {
                form method="post" autocomplete="off" {
                    h2 { "Your answer" }
                    (full)
                    (area("value", "Your words", given))
                    div.buttons {
                        @if !is_full { button.main type="submit" name="action" value="exchange" { "Send" } }
                        button type="submit" name="action" value="close" { "End the conversation" }
                    }
                }
            };
        };
        let is_end = |form: &&Form| form.text("action") == Some("close");
        html! {
            @if is_full {
                (full)
            } @else {
                form method="post" autocomplete="off" {
                    h2 { "Your answer" }
                    (area("value", "Your words", given.filter(|form| !is_end(form))))
                    div.buttons {
                        button.main type="submit" name="action" value="exchange" { "Send" }
                    }
                }
            }
            form method="post" autocomplete="off" {
                h2 { "End the conversation" }
                (outcome.show(0, given.filter(is_end)))
                @if outcome.is_json() && let Some(schema) = data.get("outcomeSchema") {
                    details {
                        summary { "Show the schema of the outcome" }
                        pre.theirs { (pretty(schema).0) }
                    }
                }
                (area("last-words", "Last words (optional)", given.filter(is_end)))
                div.buttons {
                    button type="submit" name="action" value="close" { "End the conversation" }
                }
            }
        }
    }
}

/// Converts a form to a turn.
///
/// # Errors
/// A message for the user that says what is wrong with the form.
pub(super) fn turn(data: &Value, form: &Form) -> Result<Value, String> {
    let content = form.text("value");
    let mut turn = Map::new();
    if form.text("action") == Some("close") {
        turn.insert("operation".to_owned(), "close".into());
        if let Some(outcome) = outcome(data) {
            let value = outcome.read(form)?;
            if !value.is_null() {
                turn.insert(OUTCOME.to_owned(), value);
            }
        }
    } else {
        content.ok_or("it needs words")?;
        turn.insert("operation".to_owned(), "exchange".into());
    }
    if let Some(content) = content {
        turn.insert("content".to_owned(), content.into());
    }
    Ok(turn.into())
}

/// The input of the outcome, if the conversation ends with one.
fn outcome(data: &Value) -> Option<Field<'_>> {
    let schema = data.get("outcomeSchema").filter(|schema| schema.is_object())?;
    Some(Field::new(OUTCOME, "Outcome", Some(schema)))
}

fn area(id: &str, label: &str, given: Option<&Form>) -> Markup {
    html! {
        div.field {
            label for=(id) { (label) }
            textarea id=(id) name="value" dir="auto" {
                "\n" (given.and_then(|form| form.raw("value")).unwrap_or(""))
            }
        }
    }
}

/// A text as it is, anything else as JSON.
fn words(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        other => pretty(other).0,
    }
}
