//! Compiles a schema document to a list of subschemas.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{Allowance, Bound, Kind, MAX_APPLIED, MAX_CHAIN, MAX_SUBSCHEMAS, Rule, Schema, Size};
use crate::{pattern::Pattern, whole};

pub(super) fn compile(document: &Value, allowance: &Allowance) -> Result<Schema, String> {
    let mut compiler = Compiler {
        allowance,
        document,
        subschemas: Vec::new(),
        places: HashMap::new(),
        names: HashMap::new(),
        waiting: Vec::new(),
        marks: false,
    };
    compiler.names(document, "")?;
    let root = compiler.subschema(document, "")?;
    // A target may be reachable only through a reference, and may contain further references.
    while let Some(reference) = compiler.waiting.pop() {
        let target = compiler.resolve(&reference.to)?;
        compiler.subschemas[reference.at][reference.rule] = Rule::Ref(target);
    }
    let schema = Schema {
        subschemas: compiler.subschemas,
        root,
        marks: compiler.marks,
    };
    bounded(&schema)?;
    Ok(schema)
}

/// A reference that is resolved after the whole document is read.
struct Reference {
    at: usize,
    rule: usize,
    to: String,
}

struct Compiler<'d> {
    allowance: &'d Allowance,
    document: &'d Value,
    subschemas: Vec<Vec<Rule>>,
    /// Subschemas by JSON pointer.
    places: HashMap<String, usize>,
    /// JSON pointers by the names that `$id`, `$anchor` and `$dynamicAnchor` define.
    names: HashMap<String, String>,
    waiting: Vec<Reference>,
    marks: bool,
}

impl<'d> Compiler<'d> {
    /// Collects the names that references may use. The document's nesting is already bounded.
    fn names(&mut self, value: &'d Value, at: &str) -> Result<(), String> {
        match value {
            Value::Object(fields) => {
                for keyword in ["$id", "$anchor", "$dynamicAnchor"] {
                    let Some(Value::String(name)) = fields.get(keyword) else {
                        continue;
                    };
                    let name = if keyword == "$id" {
                        name.trim_end_matches('#').to_owned()
                    } else {
                        format!("#{name}")
                    };
                    self.names.entry(name).or_insert_with(|| at.to_owned());
                }
                for (name, field) in fields {
                    // Examples and constants are not schemas.
                    if !["const", "enum", "default", "examples"].contains(&name.as_str()) {
                        self.names(field, &format!("{at}/{}", escaped(name)))?;
                    }
                }
                Ok(())
            }
            Value::Array(items) => {
                for (n, item) in items.iter().enumerate() {
                    self.names(item, &format!("{at}/{n}"))?;
                }
                Ok(())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    fn resolve(&mut self, reference: &str) -> Result<usize, String> {
        let unknown = || format!("'$ref' is '{reference}', which is not in this document");
        let pointer = match self.names.get(reference) {
            Some(pointer) => pointer.clone(),
            None => {
                let (base, pointer) = reference.split_once('#').unwrap_or((reference, ""));
                let base = match base {
                    "" => "",
                    id => self.names.get(id).ok_or_else(unknown)?,
                };
                format!("{base}{}", decoded(pointer).ok_or_else(unknown)?)
            }
        };
        if let Some(known) = self.places.get(&pointer) {
            return Ok(*known);
        }
        let document = self.document;
        let target = document.pointer(&pointer).ok_or_else(unknown)?;
        self.subschema(target, &pointer)
    }

    /// Compiles a subschema; each pointer is compiled only once.
    fn subschema(&mut self, document: &'d Value, at: &str) -> Result<usize, String> {
        if let Some(known) = self.places.get(at) {
            return Ok(*known);
        }
        if self.subschemas.len() == MAX_SUBSCHEMAS {
            return Err(format!("it has more than {MAX_SUBSCHEMAS} subschemas"));
        }
        self.allowance.subschema()?;
        let index = self.subschemas.len();
        self.subschemas.push(Vec::new());
        self.places.insert(at.to_owned(), index);
        let mut rules = match document {
            Value::Bool(true) => Vec::new(),
            Value::Bool(false) => vec![Rule::Never],
            Value::Object(fields) => self.rules(fields, at, index)?,
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(format!("{} is neither an object nor a boolean", shown(at)));
            }
        };
        // Kept for as long as the workflow is, so without room to grow.
        rules.shrink_to_fit();
        self.subschemas[index] = rules;
        Ok(index)
    }

    fn rules(&mut self, fields: &'d Map<String, Value>, at: &str, index: usize) -> Result<Vec<Rule>, String> {
        let mut rules = Vec::new();
        for keyword in ["$ref", "$dynamicRef"] {
            if let Some(reference) = fields.get(keyword) {
                let to = reference
                    .as_str()
                    .ok_or_else(|| wrong(at, keyword, "a reference"))?;
                self.waiting.push(Reference {
                    at: index,
                    rule: rules.len(),
                    to: to.to_owned(),
                });
                rules.push(Rule::Never);
            }
        }
        simple(fields, at, &mut rules)?;
        if let Some(pattern) = fields.get("pattern") {
            let source = pattern
                .as_str()
                .ok_or_else(|| wrong(at, "pattern", "a pattern"))?;
            rules.push(Rule::Pattern(Box::new(self.pattern(source, at, "pattern")?)));
        }
        let first = self.list(fields, at, "prefixItems")?.unwrap_or_default();
        let rest = self.one(fields, at, "items")?;
        if !first.is_empty() || rest.is_some() {
            rules.push(Rule::ItemsAre { first, rest });
        }
        if let Some(schema) = self.one(fields, at, "contains")? {
            rules.push(Rule::Contains {
                schema,
                least: count(fields, at, "minContains")?.unwrap_or(1),
                most: count(fields, at, "maxContains")?.unwrap_or(usize::MAX),
            });
        }
        let named = self.named(fields, at, "properties")?.unwrap_or_default();
        let mut patterns = Vec::new();
        for (source, schema) in self.named(fields, at, "patternProperties")?.unwrap_or_default() {
            patterns.push((self.pattern(&source, at, "patternProperties")?, schema));
        }
        let rest = self.one(fields, at, "additionalProperties")?;
        if !named.is_empty() || !patterns.is_empty() || rest.is_some() {
            rules.push(Rule::PropertiesAre {
                named,
                patterns,
                rest,
            });
        }
        if let Some(names) = self.one(fields, at, "propertyNames")? {
            rules.push(Rule::PropertyNames(names));
        }
        if let Some(dependent) = self.named(fields, at, "dependentSchemas")? {
            rules.push(Rule::DependentSchemas(dependent));
        }
        rules.extend(self.list(fields, at, "allOf")?.map(Rule::AllOf));
        rules.extend(self.list(fields, at, "anyOf")?.map(Rule::AnyOf));
        rules.extend(self.list(fields, at, "oneOf")?.map(Rule::OneOf));
        rules.extend(self.one(fields, at, "not")?.map(Rule::Not));
        let test = self.one(fields, at, "if")?;
        let then = self.one(fields, at, "then")?;
        let otherwise = self.one(fields, at, "else")?;
        rules.extend(test.map(|test| Rule::If {
            test,
            then,
            otherwise,
        }));
        for name in ["$defs", "definitions"] {
            self.named(fields, at, name)?;
        }
        // These come last, because they depend on what the other rules have evaluated.
        let items = self.one(fields, at, "unevaluatedItems")?;
        let properties = self.one(fields, at, "unevaluatedProperties")?;
        self.marks |= items.is_some() || properties.is_some();
        rules.extend(items.map(Rule::UnevaluatedItems));
        rules.extend(properties.map(Rule::UnevaluatedProperties));
        Ok(rules)
    }

    fn pattern(&self, source: &str, at: &str, keyword: &str) -> Result<Pattern, String> {
        let pattern = self.allowance.pattern(&translated(source));
        pattern.map_err(|error| format!("{}: '{keyword}': {error}", shown(at)))
    }

    fn one(&mut self, fields: &'d Map<String, Value>, at: &str, name: &str) -> Result<Option<usize>, String> {
        match fields.get(name) {
            None => Ok(None),
            Some(schema) => self.subschema(schema, &format!("{at}/{name}")).map(Some),
        }
    }

    fn list(
        &mut self,
        fields: &'d Map<String, Value>,
        at: &str,
        name: &str,
    ) -> Result<Option<Vec<usize>>, String> {
        match fields.get(name) {
            None => Ok(None),
            Some(Value::Array(items)) if !items.is_empty() => {
                let each = items.iter().enumerate();
                let each = each.map(|(n, item)| self.subschema(item, &format!("{at}/{name}/{n}")));
                each.collect::<Result<_, _>>().map(Some)
            }
            Some(_) => Err(wrong(at, name, "a list of schemas that is not empty")),
        }
    }

    fn named(
        &mut self,
        fields: &'d Map<String, Value>,
        at: &str,
        name: &str,
    ) -> Result<Option<Vec<(String, usize)>>, String> {
        match fields.get(name) {
            None => Ok(None),
            Some(Value::Object(schemas)) => {
                let each = schemas.iter().map(|(field, schema)| {
                    let place = format!("{at}/{name}/{}", escaped(field));
                    Ok((field.clone(), self.subschema(schema, &place)?))
                });
                each.collect::<Result<_, String>>().map(Some)
            }
            Some(_) => Err(wrong(at, name, "an object of schemas")),
        }
    }
}

/// The rules that assert something about the value alone.
fn simple(fields: &Map<String, Value>, at: &str, rules: &mut Vec<Rule>) -> Result<(), String> {
    if let Some(kinds) = fields.get("type") {
        let names = match kinds {
            Value::Array(names) if !names.is_empty() => names.as_slice(),
            one => std::slice::from_ref(one),
        };
        let kinds = names.iter().map(|name| name.as_str().and_then(Kind::named));
        let kinds = kinds.collect::<Option<_>>();
        rules.push(Rule::Type(
            kinds.ok_or_else(|| wrong(at, "type", "the name of a type"))?,
        ));
    }
    match fields.get("enum") {
        None => {}
        Some(Value::Array(values)) => rules.push(Rule::Enum(values.clone())),
        Some(_) => return Err(wrong(at, "enum", "a list")),
    }
    rules.extend(fields.get("const").cloned().map(Rule::Const));
    if let Some(number) = number(fields, at, "multipleOf")? {
        if number.as_f64().is_none_or(|number| number <= 0.0) {
            return Err(wrong(at, "multipleOf", "a number above 0"));
        }
        rules.push(Rule::MultipleOf(number));
    }
    for (name, bound) in [
        ("minimum", Bound::Minimum),
        ("exclusiveMinimum", Bound::ExclusiveMinimum),
        ("maximum", Bound::Maximum),
        ("exclusiveMaximum", Bound::ExclusiveMaximum),
    ] {
        rules.extend(number(fields, at, name)?.map(|number| Rule::Bound(bound, number)));
    }
    rules.extend(count(fields, at, "minLength")?.map(|n| Rule::Length(Size::AtLeast, n)));
    rules.extend(count(fields, at, "maxLength")?.map(|n| Rule::Length(Size::AtMost, n)));
    rules.extend(count(fields, at, "minItems")?.map(|n| Rule::Items(Size::AtLeast, n)));
    rules.extend(count(fields, at, "maxItems")?.map(|n| Rule::Items(Size::AtMost, n)));
    rules.extend(count(fields, at, "minProperties")?.map(|n| Rule::Properties(Size::AtLeast, n)));
    rules.extend(count(fields, at, "maxProperties")?.map(|n| Rule::Properties(Size::AtMost, n)));
    match fields.get("uniqueItems") {
        None | Some(Value::Bool(false)) => {}
        Some(Value::Bool(true)) => rules.push(Rule::UniqueItems),
        Some(_) => return Err(wrong(at, "uniqueItems", "true or false")),
    }
    if let Some(names) = fields.get("required") {
        rules.push(Rule::Required(
            strings(names).ok_or_else(|| wrong(at, "required", "a list of names"))?,
        ));
    }
    match fields.get("dependentRequired") {
        None => {}
        Some(Value::Object(lists)) => {
            let each = lists
                .iter()
                .map(|(name, list)| Some((name.clone(), strings(list)?)));
            let lists: Option<_> = each.collect();
            let lists = lists.ok_or_else(|| wrong(at, "dependentRequired", "lists of names"))?;
            rules.push(Rule::DependentRequired(lists));
        }
        Some(_) => return Err(wrong(at, "dependentRequired", "an object")),
    }
    Ok(())
}

impl Kind {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::Null,
            "boolean" => Self::Boolean,
            "object" => Self::Object,
            "array" => Self::Array,
            "number" => Self::Number,
            "string" => Self::String,
            "integer" => Self::Integer,
            _ => return None,
        })
    }
}

fn strings(value: &Value) -> Option<Vec<String>> {
    let names = value.as_array()?.iter();
    names.map(|name| name.as_str().map(ToOwned::to_owned)).collect()
}

fn number(fields: &Map<String, Value>, at: &str, name: &str) -> Result<Option<Value>, String> {
    match fields.get(name) {
        None => Ok(None),
        Some(number @ Value::Number(_)) => Ok(Some(number.clone())),
        Some(_) => Err(wrong(at, name, "a number")),
    }
}

fn count(fields: &Map<String, Value>, at: &str, name: &str) -> Result<Option<usize>, String> {
    match fields.get(name) {
        None => Ok(None),
        Some(value) => {
            let n = whole(value).and_then(|n| usize::try_from(n).ok());
            n.map(Some)
                .ok_or_else(|| wrong(at, name, "a whole number of at least 0"))
        }
    }
}

fn wrong(at: &str, keyword: &str, wanted: &str) -> String {
    format!("{}: '{keyword}' is not {wanted}", shown(at))
}

fn shown(at: &str) -> &str {
    if at.is_empty() { "the schema" } else { at }
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Percent-decodes the pointer of a reference.
fn decoded(pointer: &str) -> Option<String> {
    let mut bytes = pointer.bytes();
    let mut out = Vec::with_capacity(pointer.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let code = digit()? * 16 + digit()?;
        out.push(u8::try_from(code).ok()?);
    }
    String::from_utf8(out).ok()
}

/// Translates an ECMA-262 pattern to our syntax: its character classes are ASCII only.
fn translated(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut chars = source.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('d') => out.push_str("[0-9]"),
            Some('D') => out.push_str("[^0-9]"),
            Some('w') => out.push_str("[A-Za-z0-9_]"),
            Some('W') => out.push_str("[^A-Za-z0-9_]"),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

/// The subschemas that a subschema applies to the same value.
fn in_place(rules: &[Rule]) -> impl Iterator<Item = usize> {
    rules.iter().flat_map(|rule| match rule {
        Rule::Ref(schema) | Rule::Not(schema) => vec![*schema],
        Rule::AllOf(schemas) | Rule::AnyOf(schemas) | Rule::OneOf(schemas) => schemas.clone(),
        Rule::DependentSchemas(named) => named.iter().map(|(_, schema)| *schema).collect(),
        Rule::If {
            test,
            then,
            otherwise,
        } => [Some(*test), *then, *otherwise].into_iter().flatten().collect(),
        Rule::Never
        | Rule::Type(_)
        | Rule::Enum(_)
        | Rule::Const(_)
        | Rule::MultipleOf(_)
        | Rule::Bound(..)
        | Rule::Length(..)
        | Rule::Pattern(_)
        | Rule::Items(..)
        | Rule::UniqueItems
        | Rule::Properties(..)
        | Rule::Required(_)
        | Rule::DependentRequired(_)
        | Rule::ItemsAre { .. }
        | Rule::Contains { .. }
        | Rule::PropertiesAre { .. }
        | Rule::PropertyNames(_)
        | Rule::UnevaluatedItems(_)
        | Rule::UnevaluatedProperties(_) => Vec::new(),
    })
}

/// Refuses cyclic references, and chains that are too long or apply too many subschemas to one value.
fn bounded(schema: &Schema) -> Result<(), String> {
    #[derive(Clone, Copy)]
    enum Mark {
        New,
        Open,
        Done { depth: usize, applied: u64 },
    }
    let mut marks = vec![Mark::New; schema.subschemas.len()];
    for start in 0..schema.subschemas.len() {
        // An explicit stack: (subschema, subschemas it applies, how many of those were visited, depth,
        // applied).
        let mut stack: Vec<(usize, Vec<usize>, usize, usize, u64)> = Vec::new();
        if matches!(marks[start], Mark::New) {
            marks[start] = Mark::Open;
            stack.push((start, in_place(&schema.subschemas[start]).collect(), 0, 0, 1));
        }
        while let Some((at, next, seen, depth, applied)) = stack.last_mut() {
            let Some(&child) = next.get(*seen) else {
                let (depth, applied) = (*depth + 1, *applied);
                if depth > MAX_CHAIN {
                    return Err(format!(
                        "more than {MAX_CHAIN} subschemas in a chain apply to one value"
                    ));
                }
                if applied > MAX_APPLIED {
                    return Err(format!("more than {MAX_APPLIED} subschemas apply to one value"));
                }
                marks[*at] = Mark::Done { depth, applied };
                stack.pop();
                continue;
            };
            match marks[child] {
                Mark::Open => return Err("a reference leads back to itself".to_owned()),
                Mark::Done {
                    depth: below,
                    applied: more,
                } => {
                    *depth = below.max(*depth);
                    *applied = applied.saturating_add(more);
                    *seen += 1;
                }
                Mark::New => {
                    marks[child] = Mark::Open;
                    stack.push((child, in_place(&schema.subschemas[child]).collect(), 0, 0, 1));
                }
            }
        }
    }
    Ok(())
}
