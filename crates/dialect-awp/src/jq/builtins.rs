//! The filters that the machine does itself.
//!
//! The file is long because it is a list: one table of names, and what each does.
#![expect(
    clippy::needless_pass_by_value,
    reason = "a filter is given its input: some take it over, and all are called alike"
)]

use std::borrow::Cow;

use serde_json::{Map, Value};
use wopr_kernel::cost::{self, merge_sort};

use super::{
    binding::Scope,
    dates, formats, is_true,
    machine::{Flow, Item, Machine, Next, Stop, catch},
    math, paths,
    term::Term,
    text::{self, shown, type_of},
};

/// As much of an unknown name as a message shows.
const MAX_NAME: usize = 40;

macro_rules! builtins {
    ($($variant:ident $name:literal $n_arguments:literal,)*) => {
        /// A filter of the machine's own, by name and number of arguments.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Builtin { $($variant),* }

        impl Builtin {
            pub(super) fn find(name: &str, n_arguments: usize) -> Option<Self> {
                match (name, n_arguments) {
                    $(($name, $n_arguments) => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

builtins! {
    Empty "empty" 0,
    Error "error" 0,
    ErrorWith "error" 1,
    Not "not" 0,
    Length "length" 0,
    ByteLength "utf8bytelength" 0,
    Keys "keys" 0,
    KeysUnsorted "keys_unsorted" 0,
    Type "type" 0,
    Add "add" 0,
    ToString "tostring" 0,
    ToNumber "tonumber" 0,
    ToBoolean "toboolean" 0,
    ToJson "tojson" 0,
    FromJson "fromjson" 0,
    Downcase "ascii_downcase" 0,
    Upcase "ascii_upcase" 0,
    Explode "explode" 0,
    Implode "implode" 0,
    Trim "trim" 0,
    TrimStart "ltrim" 0,
    TrimEnd "rtrim" 0,
    Reverse "reverse" 0,
    ToEntries "to_entries" 0,
    FromEntries "from_entries" 0,
    Now "now" 0,
    IsNan "isnan" 0,
    IsInfinite "isinfinite" 0,
    IsNormal "isnormal" 0,
    Nan "nan" 0,
    Infinite "infinite" 0,
    Sort "_sort" 0,
    Group "_group" 0,
    Has "has" 1,
    Contains "contains" 1,
    Split "split" 1,
    Join "join" 1,
    StripStart "ltrimstr" 1,
    StripEnd "rtrimstr" 1,
    StartsWith "startswith" 1,
    EndsWith "endswith" 1,
    Indices "indices" 1,
    Flatten "flatten" 1,
    GetPath "getpath" 1,
    DeletePaths "delpaths" 1,
    SetPath "setpath" 2,
    Path "path" 1,
    First "first" 1,
    Last "last" 1,
    IsEmpty "isempty" 1,
    Limit "limit" 2,
    Skip "skip" 2,
    Range "range" 3,
    Recurse "recurse" 1,
    Repeat "repeat" 1,
    While "while" 2,
    Until "until" 2,
    Walk "walk" 1,
    ToStream "tostream" 0,
    FromStream "fromstream" 1,
    Combinations "combinations" 0,
    Transpose "transpose" 0,
    SearchSorted "bsearch" 1,
    GmTime "gmtime" 0,
    LocalTime "localtime" 0,
    MakeTime "mktime" 0,
    FormatTime "strftime" 1,
    FormatLocalTime "strflocaltime" 1,
    ParseTime "strptime" 1,
    FormatAs "format" 1,
}

impl<'t> Machine<'t, '_> {
    pub(super) fn builtin(
        &self,
        builtin: Builtin,
        arguments: &'t [Term],
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        match arguments {
            [] => self.plain(builtin, input, next),
            [argument] => self.with_one(builtin, argument, scope, input, next),
            [first, second] => self.with_two(builtin, (first, second), scope, input, next),
            [from, to, by, ..] => self.range((from, to, by), scope, input, next),
        }
    }

    fn plain(&self, builtin: Builtin, input: Item<'_>, next: Next<'_>) -> Flow {
        if let Builtin::Empty = builtin {
            return Ok(());
        }
        if let Builtin::Error = builtin {
            return Err(Stop::Error(Box::new(self.own(input.value)?)));
        }
        if let Builtin::ToStream = builtin {
            return self.to_stream(input, next);
        }
        if let Builtin::Combinations = builtin {
            return self.combinations(&input.value, input.again(), next);
        }
        let value = self.value_of(builtin, &input.value)?;
        self.make(input, value, next)
    }

    fn value_of(&self, builtin: Builtin, value: &Value) -> Flow<Value> {
        let of_text = |change: fn(&str) -> String| match value {
            Value::String(text) => {
                self.meter.bytes(text.len())?;
                Ok(Value::String(change(text)))
            }
            other => Err(Stop::error(format!(
                "{} cannot be used as a string",
                shown(other)
            ))),
        };
        match builtin {
            Builtin::Not => Ok(Value::Bool(!is_true(value))),
            Builtin::Length => self.length(value),
            Builtin::ByteLength => match value {
                Value::String(text) => Ok(text.len().into()),
                other => Err(Stop::error(format!(
                    "{} only strings have UTF-8 byte length",
                    shown(other)
                ))),
            },
            Builtin::Keys | Builtin::KeysUnsorted => self.keys(value),
            Builtin::Type => Ok(type_of(value).into()),
            Builtin::Add => self.sum(value),
            Builtin::ToString => text::plain(value, self.meter).map(Value::String),
            Builtin::ToNumber => self.to_number(value),
            Builtin::ToBoolean => match value {
                Value::Bool(_) => Ok(value.clone()),
                Value::String(text) if text == "true" => Ok(Value::Bool(true)),
                Value::String(text) if text == "false" => Ok(Value::Bool(false)),
                other => Err(Stop::error(format!(
                    "{} cannot be parsed as a boolean",
                    shown(other)
                ))),
            },
            Builtin::ToJson => text::json(value, self.meter).map(Value::String),
            Builtin::FromJson => self.parsed(value),
            Builtin::Downcase => of_text(str::to_ascii_lowercase),
            Builtin::Upcase => of_text(str::to_ascii_uppercase),
            Builtin::Trim => of_text(|text| text.trim().to_owned()),
            Builtin::TrimStart => of_text(|text| text.trim_start().to_owned()),
            Builtin::TrimEnd => of_text(|text| text.trim_end().to_owned()),
            Builtin::Explode => self.explode(value),
            Builtin::Implode => self.implode(value),
            Builtin::Reverse => self.reverse(value),
            Builtin::ToEntries => self.to_entries(value),
            Builtin::FromEntries => self.of_entries(value),
            #[expect(clippy::cast_precision_loss, reason = "a time in milliseconds is a double")]
            Builtin::Now => Ok(math::number(self.now.millis() as f64 / 1000.0)),
            // JSON has neither, so no value is either.
            Builtin::IsNan | Builtin::IsInfinite => Ok(Value::Bool(false)),
            Builtin::IsNormal => Ok(Value::Bool(value.as_f64().is_some_and(f64::is_normal))),
            Builtin::Nan => Ok(Value::Null),
            Builtin::Infinite => Ok(math::number(f64::INFINITY)),
            Builtin::Sort => self.sorted(value).map(Value::Array),
            Builtin::Group => self.grouped(value),
            Builtin::Transpose => self.transpose(value),
            Builtin::GmTime => dates::gmtime(value, "gmtime", self.meter),
            Builtin::LocalTime => dates::gmtime(value, "localtime", self.meter),
            Builtin::MakeTime => dates::mktime(value, self.meter),
            other => Err(Stop::error(format!("{other:?} needs arguments"))),
        }
    }

    fn length(&self, value: &Value) -> Flow<Value> {
        Ok(match value {
            Value::Null => 0.into(),
            Value::Bool(_) => return Err(Stop::error(format!("{} has no length", shown(value)))),
            Value::Number(n) => math::number(n.as_f64().unwrap_or_default().abs()),
            Value::String(text) => {
                self.meter.bytes(text.len())?;
                text.chars().count().into()
            }
            Value::Array(items) => items.len().into(),
            Value::Object(fields) => fields.len().into(),
        })
    }

    fn keys(&self, value: &Value) -> Flow<Value> {
        match value {
            Value::Array(items) => {
                self.meter.values(items.len())?;
                Ok((0..items.len()).collect())
            }
            Value::Object(fields) => {
                let n_bytes: usize = fields.keys().map(|name| 32 + name.len()).sum();
                self.meter.bytes(n_bytes)?;
                self.meter.values(fields.len())?;
                Ok(fields.keys().cloned().collect())
            }
            other => Err(Stop::error(format!("{} has no keys", shown(other)))),
        }
    }

    fn sum(&self, value: &Value) -> Flow<Value> {
        let mut sum = Value::Null;
        let mut add = |item: &Value| {
            self.meter.charge(4)?;
            let before = std::mem::take(&mut sum);
            sum = math::apply(
                jaq_core::ops::Math::Add,
                Cow::Owned(before),
                Cow::Borrowed(item),
                self.meter,
            )?;
            Flow::Ok(())
        };
        match value {
            Value::Array(items) => items.iter().try_for_each(&mut add)?,
            Value::Object(fields) => fields.values().try_for_each(&mut add)?,
            Value::Null => {}
            other => return Err(Stop::error(format!("Cannot iterate over {}", shown(other)))),
        }
        Ok(sum)
    }

    fn to_number(&self, value: &Value) -> Flow<Value> {
        match value {
            Value::Number(_) => Ok(value.clone()),
            Value::String(text) => {
                self.meter.bytes(text.len())?;
                let is_number = !text.is_empty()
                    && text
                        .bytes()
                        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+' | b'e' | b'E'));
                let n = text.parse::<f64>().ok().filter(|_| is_number);
                n.map(math::number)
                    .ok_or_else(|| Stop::error(format!("{} cannot be parsed as a number", shown(value))))
            }
            other => Err(Stop::error(format!(
                "{} cannot be parsed as a number",
                shown(other)
            ))),
        }
    }

    fn parsed(&self, value: &Value) -> Flow<Value> {
        let Value::String(text) = value else {
            return Err(Stop::error(format!(
                "{} only strings can be parsed",
                shown(value)
            )));
        };
        let n_bytes = wopr_kernel::measure::parsed_size(text.as_bytes());
        self.meter.bytes(2 * n_bytes)?;
        let parsed: Value = serde_json::from_str(text)
            .map_err(|error| Stop::error(format!("{error} (while parsing {})", shown(value))))?;
        self.built(parsed)
    }

    fn explode(&self, value: &Value) -> Flow<Value> {
        let Value::String(text) = value else {
            return Err(Stop::error("explode input must be a string"));
        };
        self.meter.values(text.len())?;
        Ok(text.chars().map(u32::from).collect())
    }

    fn implode(&self, value: &Value) -> Flow<Value> {
        let items = value.as_array();
        let items = items.ok_or_else(|| Stop::error("implode input must be an array"))?;
        self.meter.values(items.len())?;
        // What is no code point becomes the replacement character.
        let letter = |item: &Value| {
            let code = item.as_f64().ok_or_else(|| {
                let shown = shown(item);
                Stop::error(format!(
                    "{shown} can't be imploded, unicode codepoint needs to be numeric"
                ))
            })?;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked to be in range"
            )]
            let code = (0.0..=f64::from(u32::MAX)).contains(&code).then_some(code as u32);
            Flow::Ok(
                code.and_then(char::from_u32)
                    .unwrap_or(char::REPLACEMENT_CHARACTER),
            )
        };
        items
            .iter()
            .map(letter)
            .collect::<Flow<String>>()
            .map(Value::String)
    }

    fn reverse(&self, value: &Value) -> Flow<Value> {
        self.meter.charge(cost::of_value(value))?;
        match value {
            Value::Null => Ok(Value::Array(Vec::new())),
            Value::Array(items) => Ok(items.iter().rev().cloned().collect()),
            Value::String(text) => Ok(Value::String(text.chars().rev().collect())),
            other => Err(Stop::error(format!("Cannot reverse {}", shown(other)))),
        }
    }

    fn to_entries(&self, value: &Value) -> Flow<Value> {
        let Value::Object(fields) = value else {
            return Err(Stop::error(format!("{} has no keys", shown(value))));
        };
        self.meter.charge(cost::of_value(value))?;
        let mut entries = Vec::new();
        for (name, field) in fields {
            self.meter.object(2)?;
            let mut entry = Map::new();
            entry.insert("key".to_owned(), Value::String(name.clone()));
            entry.insert("value".to_owned(), field.clone());
            entries.push(Value::Object(entry));
        }
        self.built(Value::Array(entries))
    }

    fn of_entries(&self, value: &Value) -> Flow<Value> {
        self.meter.charge(cost::of_value(value))?;
        let entries: Vec<&Value> = match value {
            Value::Array(items) => items.iter().collect(),
            Value::Object(fields) => fields.values().collect(),
            other => return Err(Stop::error(format!("Cannot iterate over {}", shown(other)))),
        };
        let mut made = Map::new();
        for entry in entries {
            let named = |names: &[&str]| names.iter().find_map(|name| entry.get(*name)).cloned();
            let name = match named(&["key", "k", "name", "Name", "Key", "K"]) {
                Some(Value::String(name)) => name,
                Some(name @ (Value::Number(_) | Value::Bool(_))) => name.to_string(),
                Some(Value::Null) | None => "null".to_owned(),
                Some(name) => {
                    return Err(Stop::error(format!(
                        "Object keys must be strings, not {}",
                        shown(&name)
                    )));
                }
            };
            self.meter.object(1)?;
            made.insert(name, named(&["value", "v", "Value", "V"]).unwrap_or_default());
        }
        Ok(Value::Object(made))
    }

    /// Pairs of keys and values, in the order of the keys.
    fn sorted(&self, value: &Value) -> Flow<Vec<Value>> {
        let items = value.as_array().ok_or_else(|| {
            Stop::error(format!(
                "{} cannot be sorted, as it is not an array",
                shown(value)
            ))
        })?;
        let key = |at: usize| items[at].get("k").unwrap_or(&Value::Null);
        self.meter.values(2 * items.len())?;
        let order = merge_sort(items.len(), |a, b| {
            self.meter.charge(2)?;
            wopr_schema::order(key(a), key(b), self.meter).map_err(Stop::from)
        })?;
        self.meter.charge(cost::of_value(value))?;
        Ok(order.into_iter().map(|at| items[at].clone()).collect())
    }

    fn grouped(&self, value: &Value) -> Flow<Value> {
        let mut groups: Vec<Value> = Vec::new();
        for item in self.sorted(value)? {
            let known = match groups.last_mut() {
                Some(Value::Array(group)) => {
                    let first = group.first().and_then(|first| first.get("k"));
                    let key = item.get("k").unwrap_or(&Value::Null);
                    match wopr_schema::equal(first.unwrap_or(&Value::Null), key, self.meter)? {
                        true => Some(group),
                        false => None,
                    }
                }
                _ => None,
            };
            self.meter.values(2)?;
            match known {
                Some(group) => group.push(item),
                None => groups.push(Value::Array(vec![item])),
            }
        }
        self.built(Value::Array(groups))
    }

    fn with_one(
        &self,
        builtin: Builtin,
        argument: &'t Term,
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        match builtin {
            Builtin::Path => {
                for path in self.paths_of(argument, scope, &input.value)? {
                    let path = self.built(Value::Array(path))?;
                    self.make(input.again(), path, next)?;
                }
                Ok(())
            }
            Builtin::First => self.limit(1, argument, scope, input, next),
            Builtin::Last => {
                let mut last = None;
                self.run(argument, scope, input, &mut |item| {
                    let value = self.own(item.value)?;
                    last = Some((value, item.trail));
                    Ok(())
                })?;
                match last {
                    None => Ok(()),
                    Some((value, trail)) => next(Item {
                        value: Cow::Owned(value),
                        trail,
                    }),
                }
            }
            Builtin::IsEmpty => {
                let value = self.own(Cow::Borrowed(&input.value))?;
                let first = self.first(argument, scope, value)?;
                self.make(input, Value::Bool(first.is_none()), next)
            }
            Builtin::Walk => self.transform(argument, scope, input, next),
            Builtin::FromStream => self.of_stream(argument, scope, input, next),
            Builtin::Recurse => self.grow(scope, input, next, None, argument),
            Builtin::Repeat => self.grow(scope, input, next, None, argument),
            Builtin::GetPath => self.run(argument, scope, input.plain(), &mut |path| {
                let path = path_of(&path.value)?;
                let mut trail = input.trail.clone();
                if trail.is_some() {
                    for part in path {
                        trail = paths::hop(trail.as_ref(), part, self.meter)?;
                    }
                }
                let value = paths::get(&input.value, path, self.meter)?;
                next(Item { value, trail })
            }),
            _ => self.run(argument, scope, input.plain(), &mut |argument| {
                let value = self.with_value(builtin, &input.value, &argument.value)?;
                self.make(input.again(), value, next)
            }),
        }
    }

    fn with_value(&self, builtin: Builtin, value: &Value, argument: &Value) -> Flow<Value> {
        let texts = |what: &str| match (value, argument) {
            (Value::String(text), Value::String(part)) => {
                self.meter.bytes(text.len() + part.len())?;
                Ok((text.as_str(), part.as_str()))
            }
            _ => Err(Stop::error(format!("{what} requires string inputs"))),
        };
        match builtin {
            Builtin::ErrorWith => Err(Stop::Error(Box::new(self.own(Cow::Borrowed(argument))?))),
            Builtin::Has => match (value, argument) {
                (Value::Object(fields), Value::String(name)) => {
                    self.meter.charge(paths::of_name(argument))?;
                    Ok(Value::Bool(fields.contains_key(name)))
                }
                (Value::Array(items), Value::Number(n)) => {
                    let n = n.as_f64().unwrap_or(-1.0);
                    #[expect(clippy::cast_precision_loss, reason = "no list is that long")]
                    Ok(Value::Bool(n >= 0.0 && n < items.len() as f64))
                }
                _ => Err(Stop::error(format!(
                    "Cannot check whether {} has a {} key",
                    type_of(value),
                    type_of(argument)
                ))),
            },
            Builtin::Contains => self.contains(value, argument).map(Value::Bool),
            Builtin::Split => {
                let (text, by) = texts("split input and separator")?;
                math::split(text, by, self.meter)
            }
            Builtin::Join => self.join(value, argument),
            Builtin::StripStart => {
                texts("startswith()").map(|(text, part)| text.strip_prefix(part).unwrap_or(text).into())
            }
            Builtin::StripEnd => {
                texts("endswith()").map(|(text, part)| text.strip_suffix(part).unwrap_or(text).into())
            }
            Builtin::StartsWith => texts("startswith()").map(|(text, part)| text.starts_with(part).into()),
            Builtin::EndsWith => texts("endswith()").map(|(text, part)| text.ends_with(part).into()),
            Builtin::SearchSorted => self.search_sorted(value, argument),
            Builtin::FormatTime => dates::strftime(value, argument, "strftime", self.meter),
            Builtin::FormatLocalTime => dates::strftime(value, argument, "strflocaltime", self.meter),
            Builtin::ParseTime => dates::strptime(value, argument, self.meter),
            Builtin::FormatAs => {
                let format = argument.as_str().and_then(formats::find);
                let format = format.ok_or_else(|| match argument {
                    Value::String(name) => {
                        let name = &name[..name.floor_char_boundary(MAX_NAME)];
                        Stop::error(format!("{name} is not a valid format"))
                    }
                    other => Stop::error(format!("{} is not a valid format", shown(other))),
                })?;
                formats::write(format, value, self.meter).map(Value::String)
            }
            Builtin::Indices => self.indices(value, argument),
            Builtin::Flatten => {
                let depth = argument.as_f64().filter(|depth| *depth >= 0.0);
                let depth = depth.ok_or_else(|| Stop::error("flatten depth must not be negative"))?;
                let items = value
                    .as_array()
                    .ok_or_else(|| Stop::error(format!("Cannot iterate over {}", shown(value))))?;
                let mut flat = Vec::new();
                self.flatten(items, depth, &mut flat)?;
                Ok(Value::Array(flat))
            }
            Builtin::DeletePaths => {
                let listed = argument
                    .as_array()
                    .ok_or_else(|| Stop::error("Paths must be specified as an array"))?;
                self.meter.charge(cost::of_value(argument))?;
                let listed = listed.iter().map(|path| path_of(path).map(<[Value]>::to_vec));
                let mut value = self.own(Cow::Borrowed(value))?;
                self.delete_all(&mut value, listed.collect::<Flow<_>>()?)?;
                Ok(value)
            }
            other => Err(Stop::error(format!("{other:?} needs other arguments"))),
        }
    }

    fn contains(&self, value: &Value, part: &Value) -> Flow<bool> {
        self.meter.charge(2)?;
        Ok(match (value, part) {
            (Value::String(text), Value::String(part)) => {
                self.meter.bytes(8 * text.len())?;
                text.contains(part.as_str())
            }
            (Value::Array(items), Value::Array(parts)) => {
                for part in parts {
                    let mut is_there = false;
                    for item in items {
                        self.meter.charge(1)?;
                        if type_of(item) == type_of(part) && self.contains(item, part)? {
                            is_there = true;
                            break;
                        }
                    }
                    if !is_there {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Object(fields), Value::Object(parts)) => {
                for (name, part) in parts {
                    self.meter.bytes(name.len())?;
                    match fields.get(name) {
                        Some(field) if type_of(field) == type_of(part) && self.contains(field, part)? => {}
                        Some(_) | None => return Ok(false),
                    }
                }
                true
            }
            (value, part) if type_of(value) == type_of(part) => wopr_schema::equal(value, part, self.meter)?,
            (value, part) => {
                return Err(Stop::error(format!(
                    "{} and {} cannot have their containment checked",
                    shown(value),
                    shown(part)
                )));
            }
        })
    }

    fn join(&self, value: &Value, by: &Value) -> Flow<Value> {
        let (Value::Array(items), Value::String(by)) = (value, by) else {
            return Err(Stop::error(format!(
                "{} cannot be joined by {}",
                shown(value),
                shown(by)
            )));
        };
        let mut joined = String::new();
        for (n, item) in items.iter().enumerate() {
            let part = match item {
                Value::Null => String::new(),
                Value::String(_) | Value::Number(_) | Value::Bool(_) => text::plain(item, self.meter)?,
                other => return Err(Stop::error(format!("Cannot join with {}", shown(other)))),
            };
            let by = if n == 0 { "" } else { by.as_str() };
            text::fits(joined.len() + by.len() + part.len())?;
            self.meter.bytes(by.len() + part.len())?;
            joined.push_str(by);
            joined.push_str(&part);
        }
        Ok(Value::String(joined))
    }

    fn indices(&self, value: &Value, part: &Value) -> Flow<Value> {
        match (value, part) {
            (Value::Null, _) => Ok(Value::Null),
            (Value::String(text), Value::String(part)) if !part.is_empty() => {
                self.meter.charge(text.len() as u64 * 2 + 1)?;
                // Found at every place, also where it overlaps itself; by letters, not bytes.
                let mut found = Vec::new();
                for (n, (at, _)) in text.char_indices().enumerate() {
                    self.meter.bytes(part.len())?;
                    if text[at..].starts_with(part.as_str()) {
                        self.meter.values(1)?;
                        found.push(Value::from(n));
                    }
                }
                Ok(Value::Array(found))
            }
            (Value::Array(items), Value::Array(part)) if !part.is_empty() => {
                let mut found = Vec::new();
                for (n, window) in items.windows(part.len()).enumerate() {
                    let mut is_here = true;
                    for (item, part) in window.iter().zip(part) {
                        is_here = wopr_schema::equal(item, part, self.meter)?;
                        if !is_here {
                            break;
                        }
                    }
                    if is_here {
                        self.meter.values(1)?;
                        found.push(Value::from(n));
                    }
                }
                Ok(Value::Array(found))
            }
            (Value::Array(items), part) if !part.is_array() => {
                let mut found = Vec::new();
                for (n, item) in items.iter().enumerate() {
                    if wopr_schema::equal(item, part, self.meter)? {
                        self.meter.values(1)?;
                        found.push(Value::from(n));
                    }
                }
                Ok(Value::Array(found))
            }
            (Value::String(_), Value::String(_)) | (Value::Array(_), Value::Array(_)) => Ok(Value::Null),
            (value, part) => Err(Stop::error(format!(
                "Cannot determine indices of {} in {}",
                shown(part),
                shown(value)
            ))),
        }
    }

    fn flatten(&self, items: &[Value], depth: f64, flat: &mut Vec<Value>) -> Flow {
        for item in items {
            self.meter.charge(2)?;
            match item {
                Value::Array(inner) if depth > 0.0 => self.flatten(inner, depth - 1.0, flat)?,
                item => {
                    self.meter.values(1)?;
                    flat.push(self.own(Cow::Borrowed(item))?);
                }
            }
        }
        Ok(())
    }

    fn with_two(
        &self,
        builtin: Builtin,
        (first, second): (&'t Term, &'t Term),
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        match builtin {
            Builtin::Limit => self.run(first, scope, input.plain(), &mut |n| {
                let n = count(&n.value, "limit")?;
                self.limit(n, second, scope, input.again(), next)
            }),
            Builtin::Skip => self.run(first, scope, input.plain(), &mut |n| {
                let mut left = count(&n.value, "skip")?;
                self.run(second, scope, input.again(), &mut |item| {
                    if left > 0 {
                        left -= 1;
                        return Ok(());
                    }
                    next(item)
                })
            }),
            Builtin::While => self.grow(scope, input, next, Some((first, true)), second),
            Builtin::Until => self.grow(scope, input, next, Some((first, false)), second),
            Builtin::SetPath => self.run(first, scope, input.plain(), &mut |path| {
                self.run(second, scope, input.plain(), &mut |new| {
                    let mut value = self.own(Cow::Borrowed(&input.value))?;
                    let new = self.own(new.value)?;
                    paths::set(&mut value, path_of(&path.value)?, new, self.meter)?;
                    self.make(input.again(), value, next)
                })
            }),
            other => Err(Stop::error(format!("{other:?} needs other arguments"))),
        }
    }

    fn limit(&self, n: u64, term: &'t Term, scope: &Scope<'t>, input: Item<'_>, next: Next<'_>) -> Flow {
        if n == 0 {
            return Ok(());
        }
        let label = self.new_label();
        let mut left = n;
        let flow = self.run(term, scope, input, &mut |item| {
            left -= 1;
            next(item)?;
            match left {
                0 => Err(Stop::Break(label)),
                _ => Ok(()),
            }
        });
        catch(label, flow)
    }

    /// Follows what grows from a value, in depth first order, without recursion. With a test, values that fail
    /// (`while`) or pass it (`until`) do not grow; `while` gives those that pass, and `until` as well.
    fn grow(
        &self,
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
        test: Option<(&'t Term, bool)>,
        grow: &'t Term,
    ) -> Flow {
        let root = Item {
            value: Cow::<'static, Value>::Owned(self.own(input.value)?),
            trail: input.trail,
        };
        let mut waiting = vec![root];
        while let Some(item) = waiting.pop() {
            self.meter.charge(4)?;
            let mut grows = true;
            if let Some((test, is_while)) = test {
                let passes = self.collect(test, scope, item.plain())?.iter().any(is_true);
                if passes {
                    next(item.again())?;
                }
                grows = passes == is_while;
            } else {
                next(item.again())?;
            }
            if !grows {
                continue;
            }
            let n_before = waiting.len();
            self.run(grow, scope, item, &mut |item| {
                self.meter.values(2)?;
                waiting.push(Item {
                    value: Cow::Owned(self.own(item.value)?),
                    trail: item.trail,
                });
                Ok(())
            })?;
            waiting[n_before..].reverse();
        }
        Ok(())
    }

    fn range(
        &self,
        (from, to, by): (&'t Term, &'t Term, &'t Term),
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        let numbers = |term: &'t Term| {
            let values = self.collect(term, scope, input.plain())?;
            let numbers = values.iter().map(|value| {
                value
                    .as_f64()
                    .ok_or_else(|| Stop::error("Range bounds must be numeric"))
            });
            numbers.collect::<Flow<Vec<f64>>>()
        };
        for &from in &numbers(from)? {
            for &to in &numbers(to)? {
                for &by in &numbers(by)? {
                    let mut n = from;
                    while (by > 0.0 && n < to) || (by < 0.0 && n > to) {
                        self.meter.charge(4)?;
                        self.make(input.again(), math::number(n), next)?;
                        n += by;
                    }
                }
            }
        }
        Ok(())
    }
}

fn path_of(value: &Value) -> Flow<&[Value]> {
    value
        .as_array()
        .map(Vec::as_slice)
        .ok_or_else(|| Stop::error("Path must be specified as an array"))
}

fn count(value: &Value, name: &str) -> Flow<u64> {
    let n = value
        .as_f64()
        .ok_or_else(|| Stop::error(format!("{} is not a number of outputs", shown(value))))?;
    if n < 0.0 {
        return Err(Stop::error(format!("{name} doesn't support negative count")));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and a number that is too large is the largest one"
    )]
    Ok(n.ceil() as u64)
}
