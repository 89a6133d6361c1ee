//! Validates the shape of a document without stopping at the first problem.
//!
//! This file walks the parts of a document and tracks the current value and its problems; `objects` checks
//! members, and `shapes` checks single values.

mod objects;
mod shapes;

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};
use wopr_kernel::NodeTypes;

use crate::{MAX_PROBLEMS, NodeId, Problem, Spot, admission, definition::ROOT_FIELDS, schema::Allowance};

use super::{
    grammar::{ROOT, Shape},
    position,
    suggest::Suggest,
};

/// Maximum length of a problem's pointer; a problem with a longer one is reported at an ancestor.
const MAX_POINTER: usize = 1_000;

/// How thoroughly a document is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Shapes only; costs as much as parsing the document.
    Shapes,
    /// Also languages and references: once the decoder has refused a document, a full report is worth the
    /// time.
    Everything,
    /// Shapes only, and collects the texts that have a language of their own.
    Texts,
}

/// The language of a text in a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Expression,
    Template,
    /// Plain text, which would be a template if it had template syntax.
    Words,
    /// Plain text, which is never a template.
    Literal,
}

/// A text in a definition, with its position.
#[derive(Debug)]
pub(super) struct FoundText<'a> {
    pub(super) place: String,
    pub(super) pointer: String,
    /// The list that contains the text's part, and the part's index in it.
    pub(super) part: Option<(&'a str, usize)>,
    pub(super) language: Language,
    pub(super) text: &'a str,
}

/// All problems of a document's shape, up to [`MAX_PROBLEMS`]. The caller has already checked the nesting.
pub(crate) fn walk(document: &Value, node_types: NodeTypes, depth: Depth) -> Vec<Problem> {
    let Value::Object(root) = document else {
        return vec![Problem::new("definition", "is not a JSON object")];
    };
    let mut walk = Walk::new(root, node_types, depth);
    walk.document();
    walk.problems
}

/// The texts of a valid definition, in the order of the tables.
pub(super) fn texts(document: &Value, node_types: NodeTypes) -> Vec<FoundText<'_>> {
    let Value::Object(root) = document else {
        return Vec::new();
    };
    let mut walk = Walk::new(root, node_types, Depth::Texts);
    walk.document();
    walk.texts
}

/// The ids of a list's items with their first index.
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
    /// What the document's patterns and schemas may still use.
    allowance: Allowance,
    node_types: NodeTypes,
    depth: Depth,
    problems: Vec<Problem>,
    suggest: Suggest,
    /// The path from the root to the current value.
    steps: Vec<Step<'a>>,
    /// The human-readable name of the current part, and the number of steps that lead to it.
    place: String,
    base: usize,
    node_ids: HashMap<&'a str, usize>,
    texts: Vec<FoundText<'a>>,
}

impl<'a> Walk<'a> {
    fn new(root: &'a Map<String, Value>, node_types: NodeTypes, depth: Depth) -> Self {
        Self {
            allowance: Allowance::default(),
            root,
            node_types,
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

    /// The pointer of the current value, or of its nearest ancestor whose pointer is short enough.
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

    /// Reports a problem of the current value: `config.ms is not …`, `'name' is not …`.
    fn value(&mut self, what: &str, hint: Option<String>) {
        let rule = match self.steps.len() - self.base {
            0 => what.to_owned(),
            1 => format!("'{}' {what}", self.label()),
            _ => format!("{} {what}", self.label()),
        };
        self.add(Spot::Value, rule, hint);
    }

    /// The human-readable path from the part to the current value.
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

    /// Checks a list of nodes, edges, variables or triggers.
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

    /// Checks that an edge's nodes exist.
    fn ends(&mut self, edge: &'a Value) {
        for (member, which) in [("sourceNodeId", "source"), ("targetNodeId", "target")] {
            let named = edge.get(member).and_then(Value::as_str);
            let Some(id) = named.filter(|id| NodeId::parse(id).is_ok()) else {
                continue;
            };
            // If no node has an id at all, that is the problem to report.
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
}
