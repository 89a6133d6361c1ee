//! Form inputs derived from JSON Schemas, and the values that a browser submits.
//!
//! The schema selects the input: a choice, yes or no, a number, lines, a text, or JSON for anything that no
//! input can express. An answer is converted to the schema's type. Validation against the schema is left to
//! the run.

use std::borrow::Cow;

use maud::{Markup, html};
use serde_json::{Number, Value};
use url::form_urlencoded;

use super::content::pretty;

/// Maximum number of submitted fields: about a hundred questions, some with several answers.
const MAX_FIELDS: usize = 1_000;
/// Up to this number, all choices are visible; more are put into a drop-down list.
const MAX_SHOWN_CHOICES: usize = 7;
/// A text whose maximum length is at least this gets a multi-line input.
const LONG: u64 = 160;

/// Accepted field names besides `answers[ID]`.
const KNOWN: [&str; 4] = ["action", "feedback", "edited", "value"];

/// The form cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FormError {
    #[error("the form has more than {MAX_FIELDS} fields")]
    TooMany,
    #[error("the form has a field '{0}', which is none of action, feedback, edited, value and answers[ID]")]
    Unknown(String),
    #[error("the form has the field '{0}' twice")]
    Twice(&'static str),
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Form(Vec<(String, String)>);

impl Form {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, FormError> {
        let mut fields = Vec::new();
        for (name, value) in form_urlencoded::parse(body) {
            if fields.len() == MAX_FIELDS {
                return Err(FormError::TooMany);
            }
            let known = KNOWN.iter().find(|known| **known == name);
            if known.is_none() && answer_id(&name).is_none() {
                let shown = name.chars().take(64).collect();
                return Err(FormError::Unknown(shown));
            }
            if let Some(known) = known
                && fields.iter().any(|(other, _)| other == known)
            {
                return Err(FormError::Twice(known));
            }
            fields.push((name.into_owned(), lines(value)));
        }
        Ok(Self(fields))
    }

    /// A field that is not blank.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.raw(name).filter(|text| !text.trim().is_empty())
    }

    /// The first value of a field, unchanged.
    pub(crate) fn raw(&self, name: &str) -> Option<&str> {
        let field = self.0.iter().find(|(known, _)| known == name);
        field.map(|(_, value)| value.as_str())
    }

    fn answers(&self, id: &str) -> Vec<&str> {
        let to_it = |(name, _): &&(String, String)| answer_id(name) == Some(id);
        self.0
            .iter()
            .filter(to_it)
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// The question ids of all answers.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|(name, _)| answer_id(name))
    }
}

/// The id in `answers[ID]`.
fn answer_id(name: &str) -> Option<&str> {
    name.strip_prefix("answers[")?.strip_suffix(']')
}

/// Normalizes line endings and NUL, so that a text survives a form unchanged: browsers submit every line
/// ending as CR LF, and cannot submit NUL.
pub(super) fn lines(value: Cow<'_, str>) -> String {
    if value.contains(['\r', '\0']) {
        value
            .replace("\r\n", "\n")
            .replace('\r', "\n")
            .replace('\0', "\u{fffd}")
    } else {
        value.into_owned()
    }
}

#[derive(Debug)]
pub(crate) struct Field<'a> {
    pub(crate) id: &'a str,
    question: &'a str,
    schema: Option<&'a Value>,
    kind: Kind<'a>,
    /// An empty answer means null.
    is_optional: bool,
}

/// The kind of input for a question.
#[derive(Debug)]
enum Kind<'a> {
    /// A single line; the value of the input's `type` attribute.
    Line(&'static str),
    Text,
    Number {
        is_whole: bool,
    },
    YesOrNo,
    One(Vec<Choice<'a>>),
    Several(Vec<Choice<'a>>),
    /// One string per line.
    Lines,
    Json,
}

#[derive(Debug, Clone)]
struct Choice<'a> {
    label: Cow<'a, str>,
    value: &'a Value,
}

impl<'a> Field<'a> {
    /// Builds the field of a clarification's question; `None` if the question is malformed.
    pub(crate) fn of(question: &'a Value) -> Option<Self> {
        let schema = question.get("schema").filter(|schema| schema.is_object());
        let text = question.get("question").and_then(Value::as_str).unwrap_or("");
        Some(Self::new(question.get("id")?.as_str()?, text, schema))
    }

    pub(super) fn new(id: &'a str, question: &'a str, schema: Option<&'a Value>) -> Self {
        Self {
            id,
            question,
            schema,
            kind: schema.map_or(Kind::Text, kind),
            is_optional: schema.is_some_and(|schema| types(schema).contains(&"null")),
        }
    }

    /// Returns `true` if the answer is entered as JSON.
    pub(super) const fn is_json(&self) -> bool {
        matches!(self.kind, Kind::Json)
    }

    /// Reads the answer from a form.
    ///
    /// # Errors
    /// A message for the user that says what is wrong with the answer.
    pub(crate) fn read(&self, form: &Form) -> Result<Value, String> {
        let given = form.answers(self.id);
        let question = if self.question.is_empty() {
            self.id
        } else {
            self.question
        };
        if let Kind::Several(choices) = &self.kind {
            return given
                .iter()
                .map(|text| pick(choices, text))
                .collect::<Option<Vec<_>>>()
                .map(Value::Array)
                .ok_or_else(|| format!("“{question}” has no such choice"));
        }
        let text = match given.as_slice() {
            [] => "",
            [text] => text,
            _ => return Err(format!("“{question}” has several answers")),
        };
        if text.trim().is_empty() {
            if self.is_optional {
                return Ok(Value::Null);
            }
            return Err(format!("“{question}” needs an answer"));
        }
        match &self.kind {
            Kind::Line(_) | Kind::Text => Ok(text.into()),
            Kind::Number { .. } => number(text).ok_or_else(|| format!("“{question}” needs a number")),
            Kind::YesOrNo => match text {
                "true" => Ok(true.into()),
                "false" => Ok(false.into()),
                _ => Err(format!("“{question}” needs yes or no")),
            },
            Kind::One(choices) => {
                pick(choices, text).ok_or_else(|| format!("“{question}” has no such choice"))
            }
            Kind::Several(_) => Ok(Value::Null),
            Kind::Lines => Ok(text
                .lines()
                .map(str::trim)
                .filter(|line| !line.is_empty())
                .collect()),
            Kind::Json => {
                wopr_wire::json::parse(text.as_bytes()).map_err(|_| format!("“{question}” needs JSON"))
            }
        }
    }

    /// Renders the input, filled with the submitted values if there are any.
    pub(crate) fn show(&self, index: usize, given: Option<&Form>) -> Markup {
        let name = format!("answers[{}]", self.id);
        let id = format!("answer-{index}");
        let given = given.map(|form| form.answers(self.id));
        let text = match &given {
            Some(given) => given.first().map(|text| Cow::Borrowed(*text)),
            None => self.hint("default").and_then(Value::as_str).map(Cow::Borrowed),
        };
        let text = text.unwrap_or_default();
        let chosen = |choice: &Choice<'_>| match &given {
            Some(given) => given.iter().any(|text| *text == choice.label),
            None => self.hint("default").is_some_and(|default| {
                default == choice.value || default.as_array().is_some_and(|many| many.contains(choice.value))
            }),
        };
        let required = !self.is_optional;
        let number = |name: &str| {
            self.hint(name)
                .filter(|value| value.is_number())
                .map(ToString::to_string)
        };
        let length = |name: &str| self.hint(name).and_then(Value::as_u64);
        let label = html! {
            span.theirs { (self.question) }
            @if !required { " (optional)" }
        };
        let hint = self.hint("description").and_then(Value::as_str);
        let about = hint.map(|_| format!("{id}-hint"));
        let hint = html! {
            @if let (Some(hint), Some(about)) = (hint, &about) { p.hint.theirs id=(about) { (hint) } }
        };
        let choices = |kind: &str, choices: &[Choice<'_>], required: bool| {
            html! {
                fieldset.field aria-describedby=[&about] {
                    legend { (label) }
                    (hint)
                    @for choice in choices {
                        label.choice {
                            input type=(kind) name=(name) value=(choice.label) required[required] checked[chosen(choice)];
                            span.theirs { (choice.label) }
                        }
                    }
                }
            }
        };
        let area = |class: Option<&str>, text: &str| {
            html! {
                div.field {
                    label for=(id) { (label) }
                    (hint)
                    textarea class=[class] id=(id) name=(name) required[required] maxlength=[length("maxLength")]
                        aria-describedby=[&about] dir="auto" { "\n" (text) }
                }
            }
        };
        match &self.kind {
            Kind::YesOrNo => {
                let default = self.hint("default").and_then(Value::as_bool);
                let is = |wanted: &str| match &given {
                    Some(_) => text == wanted,
                    None => default.is_some_and(|default| default.to_string() == wanted),
                };
                html! {
                    fieldset.field aria-describedby=[&about] {
                        legend { (label) }
                        (hint)
                        @for (value, word) in [("true", "Yes"), ("false", "No")] {
                            label.choice {
                                input type="radio" name=(name) value=(value) required[required] checked[is(value)];
                                span { (word) }
                            }
                        }
                    }
                }
            }
            Kind::One(some) if some.len() <= MAX_SHOWN_CHOICES => choices("radio", some, required),
            Kind::One(many) => html! {
                div.field {
                    label for=(id) { (label) }
                    (hint)
                    select id=(id) name=(name) required[required] aria-describedby=[&about] {
                        option value="" { "Choose…" }
                        @for choice in many {
                            option value=(choice.label) selected[chosen(choice)] { (choice.label) }
                        }
                    }
                }
            },
            Kind::Several(some) => choices("checkbox", some, false),
            Kind::Number { is_whole } => {
                let shown = match &given {
                    Some(_) => text.into_owned(),
                    None => number("default").unwrap_or_default(),
                };
                html! {
                    div.field {
                        label for=(id) { (label) }
                        (hint)
                        input type="number" inputmode=(if *is_whole { "numeric" } else { "decimal" }) id=(id) name=(name)
                            value=(shown) required[required] min=[number("minimum")] max=[number("maximum")]
                            step=(if *is_whole { "1" } else { "any" }) aria-describedby=[&about];
                    }
                }
            }
            Kind::Line(kind) => html! {
                div.field {
                    label for=(id) { (label) }
                    (hint)
                    input type=(kind) id=(id) name=(name) value=(text) required[required]
                        minlength=[length("minLength")] maxlength=[length("maxLength")] aria-describedby=[&about] dir="auto";
                }
            },
            Kind::Text => area(None, &text),
            Kind::Lines => html! {
                (area(None, &text))
                p.hint { "One entry on each line." }
            },
            Kind::Json => {
                let shown = match (&given, self.hint("default")) {
                    (None, Some(default)) => pretty(default).0,
                    (Some(_), _) | (None, None) => text.into_owned(),
                };
                html! {
                    (area(Some("code"), &shown))
                    p.hint { "The answer is JSON." }
                }
            }
        }
    }

    fn hint(&self, name: &str) -> Option<&'a Value> {
        self.schema?.get(name)
    }
}

fn number(text: &str) -> Option<Value> {
    let text = text.trim().trim_start_matches('+');
    let number: Number = serde_json::from_str(text).ok()?;
    Some(Value::Number(number))
}

fn pick(choices: &[Choice<'_>], text: &str) -> Option<Value> {
    let choice = choices.iter().find(|choice| choice.label == text)?;
    Some(choice.value.clone())
}

fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(some)) => some.iter().filter_map(Value::as_str).collect(),
        Some(_) | None => Vec::new(),
    }
}

fn kind(schema: &Value) -> Kind<'_> {
    if let Some(choices) = choices(schema) {
        return Kind::One(choices);
    }
    let types: Vec<_> = types(schema).into_iter().filter(|name| *name != "null").collect();
    let has = |names: &[&str]| names.iter().any(|name| schema.get(name).is_some());
    match types.as_slice() {
        ["boolean"] => Kind::YesOrNo,
        ["integer"] => Kind::Number { is_whole: true },
        ["number"] | ["integer", "number"] | ["number", "integer"] => Kind::Number { is_whole: false },
        ["string"] => text(schema),
        ["array"] => {
            let items = schema.get("items");
            match items.and_then(choices) {
                Some(choices) => Kind::Several(choices),
                None if items.is_some_and(|items| types_are(items, "string")) => Kind::Lines,
                None => Kind::Json,
            }
        }
        [] if has(&["minimum", "maximum", "multipleOf"]) => Kind::Number { is_whole: false },
        [] if !has(&[
            "properties",
            "items",
            "required",
            "oneOf",
            "anyOf",
            "allOf",
            "$ref",
        ]) =>
        {
            text(schema)
        }
        _ => Kind::Json,
    }
}

fn types_are(schema: &Value, wanted: &str) -> bool {
    types(schema) == [wanted]
}

fn text(schema: &Value) -> Kind<'_> {
    let named = |name: &str| schema.get(name).and_then(Value::as_str).unwrap_or("");
    let is_long = schema
        .get("maxLength")
        .and_then(Value::as_u64)
        .is_some_and(|n| n > LONG)
        || schema
            .get("minLength")
            .and_then(Value::as_u64)
            .is_some_and(|n| n > LONG)
        || named("contentMediaType").starts_with("text/");
    match named("format") {
        "email" => Kind::Line("email"),
        "uri" => Kind::Line("url"),
        "date" => Kind::Line("date"),
        "multiline" | "multi-line" | "textarea" | "markdown" => Kind::Text,
        _ if is_long => Kind::Text,
        _ => Kind::Line("text"),
    }
}

fn choices(schema: &Value) -> Option<Vec<Choice<'_>>> {
    let plain = |value| Choice {
        label: label(value),
        value,
    };
    if let Some(Value::Array(values)) = schema.get("enum") {
        return Some(
            values
                .iter()
                .filter(|value| !value.is_null())
                .map(plain)
                .collect(),
        );
    }
    let options = schema.get("oneOf").or_else(|| schema.get("anyOf"))?.as_array()?;
    options
        .iter()
        .map(|option| {
            let value = option.get("const")?;
            let title = option.get("title").and_then(Value::as_str);
            Some(Choice {
                label: title.map_or_else(|| label(value), Cow::Borrowed),
                value,
            })
        })
        .collect()
}

fn label(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

#[cfg(test)]
mod tests;
