//! Checks the shape of values, and the syntax of texts in a language of their own.

use serde_json::{Map, Value};

use crate::{
    NodeId, Spot, WorkflowId, channel,
    expression::{Expression, Template, is_template},
    schema::Schema,
    whole,
};

use super::{
    super::grammar::{self, Member, Shape},
    Depth, FoundText, Language, Step, Walk,
};

impl<'a> Walk<'a> {
    pub(super) fn member(&mut self, member: &Member, shape: Shape, value: &'a Value) {
        if !(member.may_be_null && value.is_null()) {
            self.shape(shape, value);
        }
    }

    pub(super) fn shape(&mut self, shape: Shape, value: &'a Value) {
        match shape {
            Shape::Any => {}
            Shape::Text(min, max) => match value {
                Value::String(text) if min == 1 && text.is_empty() => {
                    self.value("is not a non-empty string", None);
                }
                Value::String(text) => {
                    let n = text.chars().take(max.saturating_add(1)).count();
                    if n > max && min <= 1 {
                        self.value(&format!("is longer than {max} characters"), None);
                    } else if n < min || n > max {
                        self.value(&format!("is not a string of {min} to {max} characters"), None);
                    }
                }
                _ if min == 1 => self.value("is not a non-empty string", None),
                _ => self.value("is not a string", None),
            },
            Shape::WorkflowId => match value.as_str() {
                None | Some("") => self.value("is not a non-empty string", None),
                Some(id) => {
                    if let Err(error) = WorkflowId::parse(id) {
                        self.value(&format!("is not valid: {error}"), None);
                    }
                }
            },
            Shape::Slug => match value.as_str() {
                Some(slug) if is_slug(slug) => {}
                _ => self.value(
                    "is not a string of a-z, 0-9, _ and - that begins with a letter or a digit",
                    None,
                ),
            },
            Shape::NodeId => match value.as_str() {
                None => self.value("is not a string", None),
                Some(id) => {
                    if let Err(error) = NodeId::parse(id) {
                        self.value(&format!("is not valid: {error}"), None);
                    }
                }
            },
            Shape::Settable => match value.as_str() {
                None => self.value("is not a string", None),
                Some("") => self.value("is missing", None),
                Some(name) if name.starts_with('_') => self.value(
                    &format!("is '{name}': names with a leading underscore are the host's"),
                    None,
                ),
                Some(_) => {}
            },
            Shape::Template => match value.as_str() {
                None => self.value("is not a string", None),
                Some(source) => self.template(source),
            },
            Shape::MaybeTemplate => {
                if let Some(text) = value.as_str() {
                    self.words(text);
                }
            }
            Shape::Words => match value.as_str() {
                None => self.value("is not a string", None),
                Some(text) => self.words(text),
            },
            Shape::Literal => match value.as_str() {
                None => self.value("is not a string", None),
                Some(text) => self.found(Language::Literal, text),
            },
            Shape::Body => self.body(value),
            Shape::Expression => match value.as_str() {
                None => self.value("is not a string", None),
                Some(source) => {
                    self.found(Language::Expression, source);
                    if self.is_deep()
                        && let Err(error) = Expression::parse(source)
                    {
                        self.language(&error.to_string());
                    }
                }
            },
            Shape::Pattern => match value.as_str() {
                None => self.value("is not a pattern", None),
                Some(pattern) => {
                    if self.is_deep()
                        && let Err(error) = self.allowance.pattern(pattern)
                    {
                        self.language(&error);
                    }
                }
            },
            Shape::Flag => {
                if !value.is_boolean() {
                    self.value("is not a boolean", None);
                }
            }
            Shape::True(why) => {
                if *value != Value::Bool(true) {
                    self.value(why, None);
                }
            }
            Shape::Number => {
                if !value.is_number() {
                    self.value("is not a number", None);
                }
            }
            Shape::Whole(min, max) => self.whole(value, min, max),
            Shape::Choice(choices) => self.choice(value, choices, str::eq),
            Shape::AnyCase(choices) => self.choice(value, choices, str::eq_ignore_ascii_case),
            Shape::Reducer => match value.as_str() {
                None => self.value("is not a string", None),
                Some(name) if channel::is_known(name) => {}
                Some(name) => {
                    let hint = self.suggest.hint(name, grammar::reducers().iter().copied());
                    self.value(&format!("is '{name}', which is not known"), hint);
                }
            },
            // `admission` checks it with the channel.
            Shape::Access => {}
            Shape::Schema => {
                if self.is_deep()
                    && let Err(error) = Schema::compile(value, &self.allowance)
                {
                    self.language(&error);
                } else if !value.is_object() && !value.is_boolean() {
                    self.value("is not a JSON Schema", None);
                }
            }
            Shape::List(item, min, max) => match value {
                Value::Array(items) if items.is_empty() && min > 0 => self.value("is empty", None),
                Value::Array(items) if items.len() > max => {
                    self.value(&format!("has more than {max} entries"), None);
                }
                Value::Array(items) => {
                    for (index, value) in items.iter().enumerate() {
                        self.inside(Step::Item(index), |walk| walk.shape(*item, value));
                    }
                }
                _ => self.value("is not an array", None),
            },
            Shape::Map(item) => match value {
                Value::Object(fields) => {
                    for (name, value) in fields {
                        self.inside(Step::Member(name), |walk| walk.shape(*item, value));
                    }
                }
                _ => self.value("is not an object", None),
            },
            Shape::SettableMap(item) => {
                for name in value.as_object().into_iter().flat_map(Map::keys) {
                    if name.starts_with('_') {
                        self.inside(Step::Member(name), |walk| {
                            let rule = "names with a leading underscore are the host's";
                            let label = walk.label();
                            walk.add(Spot::Name, format!("{label}: {rule}"), None);
                        });
                    }
                }
                self.shape(Shape::Map(item), value);
            }
            Shape::Object(members) => self.object(members, value, None),
            Shape::Tagged(tagged) => self.tagged(tagged, value, None),
            Shape::Node => self.node(value),
        }
    }

    fn whole(&mut self, value: &Value, min: u64, max: u64) {
        match whole(value) {
            Some(n) if (min..=max).contains(&n) => {}
            _ if max == u64::MAX => {
                self.value(&format!("is not a whole number of at least {min}"), None);
            }
            Some(n) if n > max && min == 0 => self.value(&format!("is over {max}"), None),
            _ => self.value(&format!("is not within {min} to {max}"), None),
        }
    }

    fn choice(&mut self, value: &Value, choices: &[&'static str], same: fn(&str, &str) -> bool) {
        let text = value.as_str();
        if text.is_some_and(|text| choices.iter().any(|choice| same(choice, text))) {
            return;
        }
        let hint = text.and_then(|text| self.suggest.hint(text, choices.iter().copied()));
        let list = choices.join(", ");
        match text {
            Some(text) => self.value(&format!("is '{text}', which is none of {list}"), hint),
            None => self.value(&format!("is none of {list}"), hint),
        }
    }

    /// Checks a string that is a template if it has template syntax.
    fn words(&mut self, text: &'a str) {
        if is_template(text) {
            self.template(text);
        } else {
            self.found(Language::Words, text);
        }
    }

    fn found(&mut self, language: Language, text: &'a str) {
        if self.depth == Depth::Texts && !self.is_full() {
            let text = FoundText {
                place: self.place.clone(),
                pointer: self.pointer().unwrap_or_else(|ancestor| ancestor),
                part: match self.steps.as_slice() {
                    [Step::Member(list), Step::Item(index), ..] => Some((list, *index)),
                    _ => None,
                },
                language,
                text,
            };
            self.texts.push(text);
        }
    }

    fn template(&mut self, source: &'a str) {
        self.found(Language::Template, source);
        if self.is_deep()
            && let Err(error) = Template::parse(source)
        {
            self.language(&error.to_string());
        }
    }

    fn body(&mut self, value: &'a Value) {
        match value {
            Value::String(text) => self.words(text),
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.inside(Step::Item(index), |walk| walk.body(item));
                }
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    self.inside(Step::Member(name), |walk| walk.body(field));
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Reports a syntax error in a text that has a language of its own.
    pub(super) fn language(&mut self, error: &str) {
        let rule = match self.label() {
            label if label.is_empty() => error.to_owned(),
            label => format!("{label}: {error}"),
        };
        self.add(Spot::Value, rule, None);
    }
}

fn is_slug(text: &str) -> bool {
    let is_first = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(is_first) && text.chars().all(|c| is_first(c) || c == '_' || c == '-')
}
