//! Holding a document to the shape of definitions, without stopping at the first problem.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::{
    NodeId, WorkflowId, admission, channel,
    definition::ROOT_FIELDS,
    expression::{Expression, Template, is_template},
    node::Offer,
    number::whole,
    problem::{MAX_PROBLEMS, Problem, Spot},
    schema::{Allowance, Schema},
};

use super::{
    grammar::{self, Member, Members, NODE, ROOT, Shape, Tagged, Type},
    position,
    suggest::Suggest,
};

/// Longest pointer of a problem; what is deeper, or has longer names, is reported at an ancestor.
const MAX_POINTER: usize = 1_000;

/// How closely a document is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Shapes alone, which costs as much as reading the document.
    Shapes,
    /// Languages and references, too: what the decoder has refused is worth the time.
    Everything,
    /// Shapes, and the texts in languages are collected.
    Texts,
}

/// What a text of a definition is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Expression,
    Template,
    /// Words that would be a template if they had its marks.
    Words,
    /// Words that are never a template.
    Literal,
}

/// A text of a definition, and where it is.
#[derive(Debug)]
pub(super) struct FoundText<'a> {
    pub(super) place: String,
    pub(super) pointer: String,
    /// The list and the position in it of the part it belongs to.
    pub(super) part: Option<(&'a str, usize)>,
    pub(super) language: Language,
    pub(super) text: &'a str,
}

/// Every problem of a document's shape, up to [`MAX_PROBLEMS`]. The document does not nest deeper than allowed.
pub(crate) fn walk(document: &Value, offer: Offer, depth: Depth) -> Vec<Problem> {
    let Value::Object(root) = document else {
        return vec![Problem::new("definition", "is not a JSON object")];
    };
    let mut walk = Walk::new(root, offer, depth);
    walk.document();
    walk.problems
}

/// The texts of a definition that holds, in the order of the tables.
pub(super) fn texts(document: &Value, offer: Offer) -> Vec<FoundText<'_>> {
    let Value::Object(root) = document else {
        return Vec::new();
    };
    let mut walk = Walk::new(root, offer, Depth::Texts);
    walk.document();
    walk.texts
}

/// The ids of a list's items, in their order.
fn ids<'a>(root: &'a Map<String, Value>, field: &str) -> HashMap<&'a str, usize> {
    let items = root.get(field).and_then(Value::as_array);
    let mut ids = HashMap::new();
    for (index, item) in items.into_iter().flatten().enumerate() {
        if let Some(id) = item.get("id").and_then(Value::as_str) {
            ids.entry(id).or_insert(index);
        }
    }
    ids
}

enum Step<'a> {
    Member(&'a str),
    Item(usize),
}

struct Walk<'a> {
    root: &'a Map<String, Value>,
    /// What the patterns and schemas of the document may still take.
    allowance: Allowance,
    offer: Offer,
    depth: Depth,
    problems: Vec<Problem>,
    suggest: Suggest,
    /// The way from the root to the value at hand.
    steps: Vec<Step<'a>>,
    /// What people call the part at hand, and how many steps lead to it.
    place: String,
    base: usize,
    node_ids: HashMap<&'a str, usize>,
    texts: Vec<FoundText<'a>>,
}

impl<'a> Walk<'a> {
    fn new(root: &'a Map<String, Value>, offer: Offer, depth: Depth) -> Self {
        Self {
            allowance: Allowance::default(),
            root,
            offer,
            depth,
            problems: Vec::new(),
            suggest: Suggest::new(),
            steps: Vec::new(),
            place: "definition".to_owned(),
            base: 0,
            node_ids: ids(root, "nodes"),
            texts: Vec::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.problems.len() >= MAX_PROBLEMS
    }

    fn is_deep(&self) -> bool {
        self.depth == Depth::Everything
    }

    fn add(&mut self, spot: Spot, rule: impl Into<String>, hint: Option<String>) {
        if self.is_full() {
            return;
        }
        let (pointer, spot) = match self.pointer() {
            Ok(pointer) => (pointer, spot),
            Err(ancestor) => (ancestor, Spot::Value),
        };
        let problem = Problem::new(&self.place, rule).at(pointer, spot).hint(hint);
        self.problems.push(problem);
    }

    /// The pointer of the value at hand, or of its nearest ancestor whose pointer is short enough.
    fn pointer(&self) -> Result<String, String> {
        let mut pointer = String::new();
        for step in &self.steps {
            let len = pointer.len();
            match step {
                Step::Member(name) => position::push(&mut pointer, name),
                Step::Item(index) => position::push(&mut pointer, &index.to_string()),
            }
            if pointer.len() > MAX_POINTER {
                pointer.truncate(len);
                return Err(pointer);
            }
        }
        Ok(pointer)
    }

    /// Reports what is wrong with the value at hand: `config.ms is not …`, `'name' is not …`.
    fn value(&mut self, what: &str, hint: Option<String>) {
        let rule = match self.steps.len() - self.base {
            0 => what.to_owned(),
            1 => format!("'{}' {what}", self.label()),
            _ => format!("{} {what}", self.label()),
        };
        self.add(Spot::Value, rule, hint);
    }

    /// The way from the place to the value at hand, as people write it.
    fn label(&self) -> String {
        let mut label = String::new();
        for step in &self.steps[self.base.min(self.steps.len())..] {
            match step {
                Step::Member(name) => {
                    if !label.is_empty() {
                        label.push('.');
                    }
                    label.push_str(name);
                }
                Step::Item(index) => label.push_str(&format!("[{index}]")),
            }
            if label.len() > MAX_POINTER {
                break;
            }
        }
        label
    }

    fn missing(&mut self, name: &str) {
        let rule = match self.label() {
            label if label.is_empty() => format!("'{name}' is missing"),
            label => format!("{label}.{name} is missing"),
        };
        self.add(Spot::Value, rule, None);
    }

    fn inside(&mut self, step: Step<'a>, look: impl FnOnce(&mut Self)) {
        if self.is_full() {
            return;
        }
        self.steps.push(step);
        look(self);
        self.steps.pop();
    }

    fn document(&mut self) {
        let root = self.root;
        for name in root.keys() {
            if !ROOT_FIELDS.contains(&name.as_str()) {
                self.unknown(name, &ROOT, None);
            }
        }
        for member in ROOT.list {
            let Some(value) = root.get(member.name) else {
                if member.is_required {
                    self.missing(member.name);
                }
                continue;
            };
            self.inside(Step::Member(member.name), |walk| match (member.shape, value) {
                (Shape::List(item, min, max), Value::Array(items)) => {
                    walk.parts(member.name, *item, items, min, max);
                }
                (Shape::Map(declaration), Value::Object(channels)) => {
                    walk.channels(*declaration, channels);
                }
                (shape, value) => walk.member(member, shape, value),
            });
        }
    }

    /// Nodes, edges, variables or triggers.
    fn parts(&mut self, name: &'a str, shape: Shape, items: &'a [Value], min: usize, max: usize) {
        if items.len() < min {
            return self.value("is empty", None);
        }
        if items.len() > max {
            return self.value(&format!("has more than {max} entries"), None);
        }
        let what = name.trim_end_matches('s');
        let mut seen = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            let id = item
                .get("id")
                .or_else(|| item.get("name"))
                .and_then(Value::as_str);
            let id = id.filter(|_| what != "trigger" && item.is_object());
            let place = id.map_or_else(|| format!("{what} {index}"), |id| format!("{what} '{id}'"));
            let before = std::mem::replace(&mut self.place, place);
            self.inside(Step::Item(index), |walk| {
                walk.base = walk.steps.len();
                walk.shape(shape, item);
                let unique = if what == "variable" { "name" } else { "id" };
                if let Some(id) = id
                    && walk.is_deep()
                    && !seen.insert(id)
                {
                    walk.inside(Step::Member(unique), |walk| {
                        walk.add(Spot::Value, format!("the {unique} is used twice"), None);
                    });
                }
                if what == "edge" && walk.is_deep() {
                    walk.ends(item);
                }
            });
            self.base = 0;
            self.place = before;
            if self.is_full() {
                return;
            }
        }
    }

    /// The nodes that an edge names.
    fn ends(&mut self, edge: &'a Value) {
        for (member, which) in [("sourceNodeId", "source"), ("targetNodeId", "target")] {
            let named = edge.get(member).and_then(Value::as_str);
            let Some(id) = named.filter(|id| NodeId::parse(id).is_ok()) else {
                continue;
            };
            // Where no node has an id, that is the mistake.
            if !self.node_ids.is_empty() && !self.node_ids.contains_key(id) {
                let hint = self.suggest.hint(id, self.node_ids.keys().copied());
                self.inside(Step::Member(member), |walk| {
                    walk.add(Spot::Value, format!("{which} node '{id}' does not exist"), hint);
                });
            }
        }
    }

    fn channels(&mut self, shape: Shape, channels: &'a Map<String, Value>) {
        for (name, declaration) in channels {
            let before = std::mem::replace(&mut self.place, format!("channel '{name}'"));
            self.inside(Step::Member(name), |walk| {
                walk.base = walk.steps.len();
                walk.shape(shape, declaration);
                if walk.is_deep() && declaration.is_object() {
                    walk.declaration(declaration);
                }
            });
            self.base = 0;
            self.place = before;
        }
    }

    fn declaration(&mut self, declaration: &'a Value) {
        for (member, rule) in admission::of_access(declaration) {
            self.inside(Step::Member("access"), |walk| match member {
                None => walk.add(Spot::Value, rule, None),
                Some(member) => {
                    walk.inside(Step::Member(member), |walk| walk.add(Spot::Value, rule, None));
                }
            });
        }
    }

    fn member(&mut self, member: &Member, shape: Shape, value: &'a Value) {
        if !(member.may_be_null && value.is_null()) {
            self.shape(shape, value);
        }
    }

    fn shape(&mut self, shape: Shape, value: &'a Value) {
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
                        self.value(&format!("does not hold: {error}"), None);
                    }
                }
            },
            Shape::NodeId => match value.as_str() {
                None => self.value("is not a string", None),
                Some(id) => {
                    if let Err(error) = NodeId::parse(id) {
                        self.value(&format!("does not hold: {error}"), None);
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
            // The admission of channels reads it.
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

    /// A text that is a template if it looks like one.
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

    /// Reports an error in a text that is in a language of its own.
    fn language(&mut self, error: &str) {
        let rule = match self.label() {
            label if label.is_empty() => error.to_owned(),
            label => format!("{label}: {error}"),
        };
        self.add(Spot::Value, rule, None);
    }

    fn object(&mut self, members: &'static Members, value: &'a Value, kind: Option<&'static Type>) {
        let Value::Object(fields) = value else {
            return self.value("is not an object", None);
        };
        if !members.is_open {
            for name in fields.keys() {
                if members.find(name).is_none() {
                    self.unknown(name, members, kind);
                }
            }
        }
        self.needed(members, fields);
        for member in members.list {
            if let Some(value) = fields.get(member.name) {
                self.inside(Step::Member(member.name), |walk| {
                    walk.member(member, member.shape, value);
                });
            }
        }
    }

    /// Members that must be there.
    fn needed(&mut self, members: &Members, fields: &Map<String, Value>) {
        for member in members.list {
            if member.is_required && !fields.contains_key(member.name) {
                self.missing(member.name);
            }
        }
        let is_there = |name: &&str| fields.get(*name).is_some_and(|value| !value.is_null());
        if let Some(first) = members.one_of.first()
            && !members.one_of.iter().any(is_there)
        {
            let others = members.one_of[1..].join(" or ");
            let rule = match self.label() {
                label if label.is_empty() => format!("'{first}' is missing"),
                label => format!("{label}.{first} is missing"),
            };
            let hint = Some(format!("{others} would do as well"));
            self.add(Spot::Value, rule, hint);
        }
    }

    /// What the `config` of a node would need that has none.
    fn needed_in_absent(&mut self, kind: &Type) {
        let (required, one_of) = match kind.config {
            Shape::Object(members) => {
                let required = members.list.iter().filter(|member| member.is_required);
                (required.map(|member| member.name).collect(), members.one_of)
            }
            Shape::Tagged(tagged) => (vec![tagged.tag], &[] as &[_]),
            _ => return,
        };
        for name in required.into_iter().chain(one_of.first().copied()) {
            self.add(Spot::Value, format!("config.{name} is missing"), None);
        }
    }

    fn unknown(&mut self, name: &'a str, members: &'static Members, kind: Option<&'static Type>) {
        if kind.is_some_and(|kind| grammar::undescribed(kind).any(|known| known == name)) {
            return;
        }
        if let Some((_, why)) = members.refused.iter().find(|(refused, _)| *refused == name) {
            let rule = match self.label() {
                label if label.is_empty() => format!("'{name}' {why}"),
                label => format!("{label}.{name} {why}"),
            };
            return self.inside(Step::Member(name), |walk| walk.add(Spot::Name, rule, None));
        }
        let described = members.list.iter().map(|member| member.name);
        let others = kind.into_iter().flat_map(grammar::undescribed);
        let all: Vec<_> = described.chain(others).collect();
        let hint = self.suggest.hint(name, all.iter().copied());
        let rule = match (self.label(), kind) {
            (label, Some(kind)) => format!("{label}.{name} is not known; {} has {}", kind.id, all.join(", ")),
            (label, None) if label.is_empty() => format!("unknown field '{name}'"),
            (label, None) => format!("{label}: unknown field '{name}'"),
        };
        let hint = hint.or_else(|| (kind.is_none()).then(|| format!("there are {}", all.join(", "))));
        self.inside(Step::Member(name), |walk| walk.add(Spot::Name, rule, hint));
    }

    fn tagged(&mut self, tagged: &'static Tagged, value: &'a Value, kind: Option<&'static Type>) {
        let Value::Object(fields) = value else {
            return self.value("is not an object", None);
        };
        let tag = match (fields.get(tagged.tag), tagged.default) {
            (Some(Value::String(tag)), _) => tag.as_str(),
            (None, Some(default)) => default,
            (None, None) => return self.missing(tagged.tag),
            (Some(_), _) => {
                return self.inside(Step::Member(tagged.tag), |walk| {
                    walk.value("is not a non-empty string", None);
                });
            }
        };
        match tagged.variants.iter().find(|(known, _)| *known == tag) {
            Some((_, members)) => {
                self.object(members, value, kind);
                if self.is_deep() && tag == "connection" {
                    self.connection(fields);
                }
            }
            None => {
                let tags: Vec<_> = tagged.variants.iter().map(|(tag, _)| *tag).collect();
                let hint = self.suggest.hint(tag, tags.iter().copied());
                self.inside(Step::Member(tagged.tag), |walk| {
                    walk.value(&format!("is '{tag}', which is none of {}", tags.join(", ")), hint);
                });
            }
        }
    }

    fn connection(&mut self, port: &'a Map<String, Value>) {
        let named = port.get("nodeId").and_then(Value::as_str);
        if let Some(id) = named.filter(|id| !id.is_empty() && !self.node_ids.contains_key(id)) {
            let hint = self.suggest.hint(id, self.node_ids.keys().copied());
            let rule = format!("{}: node '{id}' does not exist", self.label());
            self.inside(Step::Member("nodeId"), |walk| walk.add(Spot::Value, rule, hint));
        }
    }

    fn node(&mut self, value: &'a Value) {
        self.object(&NODE, value, None);
        let Value::Object(fields) = value else { return };
        let Some(type_id) = fields.get("typeId").and_then(Value::as_str) else {
            return;
        };
        let Some(kind) = grammar::types(self.offer).find(|kind| kind.id == type_id) else {
            let types = grammar::types(self.offer).map(|kind| kind.id);
            let is_conformance = grammar::TYPES.iter().any(|kind| kind.id == type_id);
            let hint = if is_conformance {
                Some("it exists in conformance mode alone (--conformance)".to_owned())
            } else {
                self.suggest.hint(type_id, types)
            };
            return self.inside(Step::Member("typeId"), |walk| {
                let rule = format!("typeId '{type_id}' is not offered by this host");
                walk.add(Spot::Value, rule, hint);
            });
        };
        match fields.get("config") {
            Some(config @ Value::Object(_)) => {
                self.inside(Step::Member("config"), |walk| match kind.config {
                    Shape::Object(members) => walk.object(members, config, Some(kind)),
                    Shape::Tagged(tagged) => walk.tagged(tagged, config, Some(kind)),
                    shape => walk.shape(shape, config),
                });
            }
            // An absent one is empty.
            None => self.needed_in_absent(kind),
            Some(_) => {}
        }
        if self.is_deep() {
            self.channel_writes(type_id, fields.get("config"));
        }
    }

    /// Names of channels that a node would set as variables.
    fn channel_writes(&mut self, type_id: &str, config: Option<&'a Value>) {
        let Some(channels) = self.root.get("channels").and_then(Value::as_object) else {
            return;
        };
        let Some(config) = config.and_then(Value::as_object) else {
            return;
        };
        let rule = |label: &str, name: &str| {
            format!("config.{label} sets '{name}', which is a channel: only core.channelWrite writes to it")
        };
        match type_id {
            "core.setVariable" => {
                let names = ["name", "variableName", "variable"].into_iter();
                let mut set = names.filter_map(|member| Some((member, config.get(member)?.as_str()?)));
                if let Some((member, name)) = set.next().filter(|(_, name)| channels.contains_key(*name)) {
                    self.inside(Step::Member("config"), |walk| {
                        walk.inside(Step::Member(member), |walk| {
                            walk.add(Spot::Value, rule(member, name), None);
                        });
                    });
                }
            }
            "core.subWorkflow" => {
                let mapping = config.get("outputMapping").and_then(Value::as_object);
                let mut names = mapping.into_iter().flat_map(Map::keys);
                if let Some(name) = names.find(|name| channels.contains_key(*name)) {
                    self.inside(Step::Member("config"), |walk| {
                        walk.inside(Step::Member("outputMapping"), |walk| {
                            walk.inside(Step::Member(name), |walk| {
                                walk.add(Spot::Name, rule("outputMapping", name), None);
                            });
                        });
                    });
                }
            }
            _ => {}
        }
    }
}
