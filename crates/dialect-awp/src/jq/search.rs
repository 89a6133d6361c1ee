//! Searches for regular expressions: `match`, `test`, `capture`, `scan`, `splits`, `sub` and their like.
//!
//! Offsets and lengths count code points. A pattern that an evaluation uses again is not compiled again.
#![expect(
    clippy::needless_pass_by_value,
    reason = "a filter is given its input: some take it over, and all are called alike"
)]

use std::{borrow::Cow, rc::Rc};

use jaq_core::ops::Math;
use serde_json::{Map, Value};

use super::{
    automaton::{Search, Slots},
    binding::Scope,
    machine::{Flow, Item, Machine, Next, Stop},
    math,
    pattern::{Flags, Regex},
    term::Term,
    text::{self, shown, type_of},
};

/// As many compiled patterns as an evaluation keeps.
const MAX_KEPT: usize = 16;

/// A compiled pattern by its text and flags.
pub(super) type Kept = (String, Flags, Rc<Regex>);

/// The filters that search for a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Match,
    Test,
    Capture,
    Scan,
    Split,
    Splits,
}

impl<'t> Machine<'t, '_> {
    /// The pattern and the flags that an argument means: a text, or an array of both.
    fn pattern_of(argument: &Value) -> Flow<(&Value, &Value)> {
        match argument {
            Value::String(_) => Ok((argument, &Value::Null)),
            Value::Array(items) if !items.is_empty() => Ok((&items[0], items.get(1).unwrap_or(&Value::Null))),
            other => Err(Stop::error(format!("{} not a string or array", type_of(other)))),
        }
    }

    fn compiled(&self, pattern: &Value, flags: &Value, is_global: bool) -> Flow<(Rc<Regex>, Flags)> {
        let Value::String(source) = pattern else {
            return Err(Stop::error(format!("{} is not a string", shown(pattern))));
        };
        let mut parsed = match flags {
            Value::Null => Flags::default(),
            Value::String(text) => Flags::parse(text)
                .ok_or_else(|| Stop::error(format!("{text} is not a valid modifier string")))?,
            other => return Err(Stop::error(format!("{} is not a string", shown(other)))),
        };
        parsed.is_global |= is_global;
        let mut kept = self.patterns.borrow_mut();
        let key = |flags: Flags| (flags.ignores_case, flags.is_extended, flags.dot_is_all);
        self.meter.bytes(source.len())?;
        let known = kept
            .iter()
            .find(|(text, flags, _)| text == source && key(*flags) == key(parsed));
        if let Some((_, _, regex)) = known {
            self.meter.charge(MAX_KEPT as u64)?;
            return Ok((Rc::clone(regex), parsed));
        }
        let regex = Rc::new(Regex::compile(source, parsed, self.meter)?);
        self.meter.charge(regex.cost())?;
        if kept.len() >= MAX_KEPT {
            kept.remove(0);
        }
        kept.push((source.clone(), parsed, Rc::clone(&regex)));
        Ok((regex, parsed))
    }

    /// Gives the matches in a text to `each`, in order.
    fn each_match(
        &self,
        (text, regex, flags): (&str, &Regex, Flags),
        n_slots: usize,
        each: &mut dyn FnMut(&Slots) -> Flow,
    ) -> Flow {
        let mut search = Search::new(self.meter, regex, text, flags, n_slots)?;
        let mut from = 0;
        while let Some(found) = search.find(from)? {
            self.meter.charge(2)?;
            each(&found)?;
            let (begins, ends) = (found[0].unwrap_or_default(), found[1].unwrap_or_default());
            from = match text[ends..].chars().next() {
                Some(letter) if begins == ends => ends + letter.len_utf8(),
                None if begins == ends => break,
                Some(_) | None => ends,
            };
            if !flags.is_global {
                break;
            }
        }
        search.end();
        Ok(())
    }

    fn part(&self, text: &str, from: usize, to: usize) -> Flow<Value> {
        self.meter.bytes(to - from)?;
        Ok(Value::String(text[from..to].to_owned()))
    }

    /// The texts of the groups that have a name.
    fn captured(&self, text: &str, regex: &Regex, found: &Slots) -> Flow<Value> {
        let mut object = Map::new();
        for (n, name) in regex.groups.iter().enumerate() {
            let Some(name) = name else { continue };
            let part = match (found[2 * n + 2], found[2 * n + 3]) {
                (Some(from), Some(to)) => self.part(text, from, to)?,
                _ => Value::Null,
            };
            self.meter.object(1)?;
            object.insert(name.clone(), part);
        }
        Ok(Value::Object(object))
    }

    /// A match as jq shows it. `counted` is a place with its number of code points, which moves on.
    fn shown_match(
        &self,
        text: &str,
        regex: &Regex,
        found: &Slots,
        counted: &mut (usize, usize),
    ) -> Flow<Value> {
        let count = |from: usize, to: usize| {
            self.meter.charge((to - from) as u64 / 8)?;
            Flow::Ok(text[from..to].chars().count())
        };
        let (begins, ends) = (found[0].unwrap_or_default(), found[1].unwrap_or_default());
        let offset = counted.1 + count(counted.0, begins)?;
        *counted = (begins, offset);
        let mut captures = Vec::new();
        for (n, name) in regex.groups.iter().enumerate() {
            self.meter.object(4)?;
            self.meter.values(1)?;
            let name = name.clone().map_or(Value::Null, Value::String);
            captures.push(match (found[2 * n + 2], found[2 * n + 3]) {
                (Some(from), Some(to)) => serde_json::json!({
                    "offset": offset + count(begins, from)?, "length": count(from, to)?,
                    "string": self.part(text, from, to)?, "name": name,
                }),
                _ => serde_json::json!({ "offset": -1, "length": 0, "string": null, "name": name }),
            });
        }
        self.meter.object(4)?;
        Ok(serde_json::json!({
            "offset": offset, "length": count(begins, ends)?, "string": self.part(text, begins, ends)?,
            "captures": captures,
        }))
    }

    /// A search with a pattern and flags. Without flags, the pattern may be an array of both.
    pub(super) fn search(
        &self,
        kind: Kind,
        arguments: &'t [Term],
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        let Some((pattern, flags)) = arguments.split_first() else {
            return Err(Stop::error("a search needs a pattern"));
        };
        let patterns = self.collect(pattern, scope, input.plain())?;
        let Some(flags) = flags.first() else {
            for pattern in &patterns {
                let both = match kind {
                    Kind::Match | Kind::Test | Kind::Capture => Self::pattern_of(pattern)?,
                    Kind::Scan | Kind::Split | Kind::Splits => (pattern, &Value::Null),
                };
                self.search_one(kind, both, input.again(), next)?;
            }
            return Ok(());
        };
        let flags = self.collect(flags, scope, input.plain())?;
        match kind {
            Kind::Match | Kind::Test | Kind::Capture => {
                for flags in &flags {
                    for pattern in &patterns {
                        self.search_one(kind, (pattern, flags), input.again(), next)?;
                    }
                }
            }
            Kind::Scan | Kind::Split | Kind::Splits => {
                for pattern in &patterns {
                    for flags in &flags {
                        self.search_one(kind, (pattern, flags), input.again(), next)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn search_one(
        &self,
        kind: Kind,
        (pattern, flags): (&Value, &Value),
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        let text = searched(&input.value)?;
        let is_global = matches!(kind, Kind::Scan | Kind::Split | Kind::Splits);
        let (regex, flags) = self.compiled(pattern, flags, is_global)?;
        let search = (text, &*regex, flags);
        let mut give = |value: Value| self.make(input.again(), value, next);
        match kind {
            Kind::Test => {
                let first = Flags {
                    is_global: false,
                    ..flags
                };
                let mut is_found = false;
                self.each_match((text, &regex, first), 2, &mut |_| {
                    is_found = true;
                    Ok(())
                })?;
                give(Value::Bool(is_found))
            }
            Kind::Match => {
                let mut counted = (0, 0);
                self.each_match(search, regex.n_slots(), &mut |found| {
                    give(self.shown_match(text, &regex, found, &mut counted)?)
                })
            }
            Kind::Capture => self.each_match(search, regex.n_slots(), &mut |found| {
                give(self.captured(text, &regex, found)?)
            }),
            Kind::Scan => self.each_match(search, regex.n_slots(), &mut |found| {
                if regex.groups.is_empty() {
                    let (from, to) = (found[0].unwrap_or_default(), found[1].unwrap_or_default());
                    return give(self.part(text, from, to)?);
                }
                let mut groups = Vec::new();
                for ends in found[2..].chunks_exact(2) {
                    self.meter.values(1)?;
                    groups.push(match (ends[0], ends[1]) {
                        (Some(from), Some(to)) => self.part(text, from, to)?,
                        _ => Value::Null,
                    });
                }
                give(Value::Array(groups))
            }),
            Kind::Split | Kind::Splits => {
                let mut parts = Vec::new();
                let mut from = 0;
                let mut part = |part: Value| match kind {
                    Kind::Splits => give(part),
                    Kind::Match | Kind::Test | Kind::Capture | Kind::Scan | Kind::Split => {
                        self.meter.values(2)?;
                        parts.push(part);
                        Ok(())
                    }
                };
                self.each_match(search, 2, &mut |found| {
                    let (begins, ends) = (found[0].unwrap_or_default(), found[1].unwrap_or_default());
                    part(self.part(text, from, begins)?)?;
                    from = ends;
                    Ok(())
                })?;
                part(self.part(text, from, text.len())?)?;
                match kind {
                    Kind::Split => give(Value::Array(parts)),
                    Kind::Match | Kind::Test | Kind::Capture | Kind::Scan | Kind::Splits => Ok(()),
                }
            }
        }
    }

    /// Replaces matches by what a filter makes of their groups. Where it has several outputs, there are several texts.
    pub(super) fn substitute(
        &self,
        is_global: bool,
        arguments: &'t [Term],
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        let [pattern, by, flags @ ..] = arguments else {
            return Err(Stop::error("a substitution needs a pattern and what replaces it"));
        };
        let flags = match flags.first() {
            Some(flags) => self.collect(flags, scope, input.plain())?,
            None => vec![Value::Null],
        };
        for pattern in &self.collect(pattern, scope, input.plain())? {
            for flags in &flags {
                let text = searched(&input.value)?;
                let (regex, flags) = self.compiled(pattern, flags, is_global)?;
                for text in self.substituted((text, &regex, flags), by, scope)? {
                    self.make(input.again(), Value::String(text), next)?;
                }
            }
        }
        Ok(())
    }

    fn substituted(
        &self,
        (text, regex, flags): (&str, &Regex, Flags),
        by: &'t Term,
        scope: &Scope<'t>,
    ) -> Flow<Vec<String>> {
        let mut texts: Vec<String> = Vec::new();
        let mut from = 0;
        self.each_match((text, regex, flags), regex.n_slots(), &mut |found| {
            let (begins, ends) = (found[0].unwrap_or_default(), found[1].unwrap_or_default());
            let groups = self.captured(text, regex, found)?;
            let inserted = self.collect(by, scope, Item::owned(groups))?;
            for (n, insert) in inserted.iter().enumerate() {
                let insert = match insert {
                    Value::String(insert) => insert.as_str(),
                    Value::Null => "",
                    other => {
                        let gap = self.part(text, from, begins)?;
                        math::apply(Math::Add, Cow::Owned(gap), Cow::Borrowed(other), self.meter)?;
                        ""
                    }
                };
                self.meter.values(1)?;
                if n == texts.len() {
                    texts.push(String::new());
                }
                let made = &mut texts[n];
                let n_more = begins - from + insert.len();
                text::fits(made.len() + n_more)?;
                self.meter.bytes(n_more)?;
                made.push_str(&text[from..begins]);
                made.push_str(insert);
            }
            from = ends;
            Ok(())
        })?;
        if texts.is_empty() {
            texts.push(text.to_owned());
            from = text.len();
            self.meter.bytes(text.len())?;
        }
        for made in &mut texts {
            let rest = &text[from..];
            text::fits(made.len() + rest.len())?;
            self.meter.bytes(rest.len())?;
            made.push_str(rest);
        }
        Ok(texts)
    }
}

fn searched(value: &Value) -> Flow<&str> {
    value.as_str().ok_or_else(|| {
        Stop::error(format!(
            "{} cannot be matched, as it is not a string",
            shown(value)
        ))
    })
}
