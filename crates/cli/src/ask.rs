//! Interactive prompts for interrupts: approvals, clarifications and custom ones.
//!
//! Prompts go to standard error, so that results can be piped. This module does not call a server; it returns
//! the value that resolves the interrupt.

use std::io::{self, BufRead as _, Write as _};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};
use wopr_wire::openwop::run::InterruptView;

use crate::{
    output::{self, Paint, plain},
    render,
};

/// Prompts for an answer to the interrupt. Returns `None` at the end of input.
pub(crate) fn ask(view: &InterruptView) -> Result<Option<Value>> {
    let paint = Paint::stderr();
    match view.kind.as_str() {
        "approval" => {
            for line in render::question(view) {
                output::note(format!("  {}", paint.bold(line)))?;
            }
            approve(paint, &view.data)
        }
        "clarification" => {
            for line in render::about(&view.data) {
                output::note(format!("  {}", paint.bold(line)))?;
            }
            clarify(paint, &view.data)
        }
        kind if render::is_conversation(kind) => {
            for line in render::question(view) {
                output::note(format!("  {}", paint.bold(line)))?;
            }
            for line in render::last_said(view) {
                output::note(format!("  {line}"))?;
            }
            let Some(text) = line(paint, "your turn (empty ends the conversation)")? else {
                return Ok(None);
            };
            let mut turn = turn(&text);
            if text.is_empty() && view.data.get("outcomeSchema").is_some() {
                let Some(outcome) = json_line(paint, "the outcome as JSON")? else {
                    return Ok(None);
                };
                turn["outcome"] = outcome;
            }
            Ok(Some(turn))
        }
        _ => {
            for line in render::question(view) {
                output::note(format!("  {}", paint.bold(line)))?;
            }
            json_line(paint, "answer as JSON")
        }
    }
}

fn approve(paint: Paint, data: &Value) -> Result<Option<Value>> {
    let actions: Vec<&str> = data
        .get("actions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let offered: Vec<_> = actions.iter().map(|action| plain(action).into_owned()).collect();
    let action = loop {
        let Some(answer) = line(paint, &offered.join(" / "))? else {
            return Ok(None);
        };
        if let Some(action) = pick(&actions, &answer) {
            break action;
        }
        output::note(format!("  choose one of {}", offered.join(", ")))?;
    };
    let answer = match action {
        "refine" => line(paint, "what should change")?
            .map(|text| json!({ "action": action, "refineFeedback": { "scope": "whole", "text": text } })),
        "edit-accept" => json_line(paint, "the edited content as JSON")?
            .map(|edited| json!({ "action": action, "editedArtifactData": edited })),
        "ask" => line(paint, "your question")?.map(|text| json!({ "action": action, "question": text })),
        "reject" => line(paint, "why (may be empty)")?.map(|text| {
            if text.is_empty() {
                json!({ "action": action })
            } else {
                json!({ "action": action, "feedback": text })
            }
        }),
        _ => Some(json!({ "action": action })),
    };
    Ok(answer)
}

/// Finds the action by its name or a unique prefix of it; also accepts "yes" and "no".
fn pick<'a>(actions: &[&'a str], answer: &str) -> Option<&'a str> {
    let answer = answer.trim().to_ascii_lowercase();
    let answer = match answer.as_str() {
        "y" | "yes" | "approve" | "ok" => "accept",
        "n" | "no" => "reject",
        other => other,
    };
    if answer.is_empty() {
        return None;
    }
    let exact = actions.iter().copied().find(|action| *action == answer);
    let mut begin = actions
        .iter()
        .copied()
        .filter(|action| action.starts_with(answer));
    exact.or_else(|| match (begin.next(), begin.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    })
}

fn clarify(paint: Paint, data: &Value) -> Result<Option<Value>> {
    let mut answers = Map::new();
    for question in data
        .get("questions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let id = render::text(question, "id");
        output::note(format!(
            "  {}",
            paint.bold(plain(render::text(question, "question")))
        ))?;
        let schema = question.get("schema");
        if let Some(choices) = schema
            .and_then(|schema| schema.get("enum"))
            .and_then(Value::as_array)
        {
            let choices: Vec<_> = choices.iter().map(render::value).collect();
            output::note(paint.dim(format!("  one of {}", plain(&choices.join(", ")))))?;
        }
        let Some(text) = line(paint, id)? else {
            return Ok(None);
        };
        answers.insert(id.to_owned(), read_answer(schema, &text));
    }
    Ok(Some(json!({ "answers": answers })))
}

/// Converts a line to the type that the schema requires; without one, the line is text.
fn read_answer(schema: Option<&Value>, text: &str) -> Value {
    let as_text = Value::from(text);
    let wants_text = match schema {
        None => true,
        Some(schema) => match schema.get("enum").and_then(Value::as_array) {
            Some(choices) => choices.contains(&as_text),
            None => schema
                .get("type")
                .is_none_or(|kind| render::value(kind).contains("string")),
        },
    };
    if wants_text {
        as_text
    } else {
        serde_json::from_str(text).unwrap_or(as_text)
    }
}

/// The turn that a line means: its text, what a whole turn in JSON says, or the end.
fn turn(text: &str) -> Value {
    if text.is_empty() {
        return json!({ "operation": "close" });
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(whole)) if whole.contains_key("operation") => Value::Object(whole),
        Ok(_) | Err(_) => json!({ "operation": "exchange", "content": text }),
    }
}

fn json_line(paint: Paint, prompt: &str) -> Result<Option<Value>> {
    loop {
        let Some(text) = line(paint, prompt)? else {
            return Ok(None);
        };
        match serde_json::from_str(&text) {
            Ok(value) => return Ok(Some(value)),
            Err(error) => output::note(format!("  that is not JSON: {error}"))?,
        }
    }
}

/// Reads a line. Returns `None` at the end of input.
fn line(paint: Paint, prompt: &str) -> Result<Option<String>> {
    let mut err = io::stderr().lock();
    write!(err, "  {} ", paint.cyan(format!("{}>", plain(prompt))))
        .and_then(|()| err.flush())
        .context("write to standard error")?;
    drop(err);
    let mut text = String::new();
    let n = io::stdin()
        .lock()
        .read_line(&mut text)
        .context("read from standard input")?;
    Ok((n > 0).then(|| text.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_prefix_selects_an_action() {
        let actions = ["accept", "reject", "refine"];
        for (answer, wanted) in [
            ("accept", Some("accept")),
            (" A ", Some("accept")),
            ("yes", Some("accept")),
            ("n", Some("reject")),
            ("re", None),
            ("ref", Some("refine")),
            ("", None),
            ("maybe", None),
        ] {
            assert_eq!(pick(&actions, answer), wanted, "{answer}");
        }
    }

    #[test]
    fn a_line_is_a_turn_of_a_conversation() {
        let whole = json!({ "operation": "close", "outcome": { "drink": "tea" } });
        for (text, wanted) in [
            (
                "Tea, please.",
                json!({ "operation": "exchange", "content": "Tea, please." }),
            ),
            ("5", json!({ "operation": "exchange", "content": "5" })),
            (
                "{\"a\": 1}",
                json!({ "operation": "exchange", "content": "{\"a\": 1}" }),
            ),
            (&whole.to_string(), whole.clone()),
            ("", json!({ "operation": "close" })),
        ] {
            assert_eq!(turn(text), wanted, "{text}");
        }
    }

    #[test]
    fn answer_has_the_type_of_its_schema() {
        for (schema, text, wanted) in [
            (None, "5", json!("5")),
            (Some(json!({"type": "string"})), "5", json!("5")),
            (Some(json!({"type": "integer"})), "5", json!(5)),
            (Some(json!({"type": "boolean"})), "true", json!(true)),
            (Some(json!({"enum": ["small", 5]})), "small", json!("small")),
            (Some(json!({"enum": ["small", 5]})), "5", json!(5)),
            (Some(json!({"type": "integer"})), "five", json!("five")),
        ] {
            assert_eq!(read_answer(schema.as_ref(), text), wanted);
        }
    }
}
