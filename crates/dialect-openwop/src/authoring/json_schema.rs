//! The JSON Schema (2020-12) of definitions, for editors.

use serde_json::{Map, Value, json};
use wopr_kernel::NodeTypes;

use super::grammar::{self, Member, Members, NODE, ROOT, Shape, Tagged};

/// The JSON Schema of the definitions that a host accepts.
///
/// It checks less than the host does: a schema cannot express that ids are unique, that nodes exist, or that
/// templates and expressions are valid. The host refuses everything that the schema refuses.
#[must_use]
pub fn definition_schema(node_types: NodeTypes) -> Value {
    let mut schema = Printer { node_types }.object(&ROOT);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("wopr workflow definition");
    schema["description"] = json!("An OpenWOP v1 workflow definition, with the node types that wopr offers.");
    schema
}

struct Printer {
    node_types: NodeTypes,
}

impl Printer {
    fn shape(&self, shape: Shape) -> Value {
        match shape {
            Shape::Any | Shape::MaybeTemplate | Shape::Body => json!({}),
            Shape::Text(min, max) => {
                let mut schema = json!({ "type": "string" });
                if min > 0 {
                    schema["minLength"] = json!(min);
                }
                if max < usize::MAX {
                    schema["maxLength"] = json!(max);
                }
                schema
            }
            Shape::WorkflowId => {
                json!({ "type": "string", "pattern": "^[a-z][a-z0-9_-]*$", "maxLength": 128 })
            }
            Shape::Slug => json!({ "type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$" }),
            Shape::NodeId => {
                json!({ "type": "string", "pattern": "^[^/]*$", "minLength": 1, "maxLength": 512 })
            }
            Shape::Settable => json!({ "type": "string", "pattern": "^[^_]" }),
            Shape::Template | Shape::Expression | Shape::Pattern | Shape::Words | Shape::Literal => {
                json!({ "type": "string" })
            }
            Shape::Flag => json!({ "type": "boolean" }),
            Shape::True(_) => json!({ "const": true }),
            Shape::Number => json!({ "type": "number" }),
            Shape::Whole(min, max) => {
                let mut schema = json!({ "type": "integer", "minimum": min });
                if max < u64::MAX {
                    schema["maximum"] = json!(max);
                }
                schema
            }
            Shape::Choice(choices) => json!({ "enum": choices }),
            Shape::AnyCase(choices) => {
                let either = |choice: &&str| {
                    let letters = choice.chars();
                    letters
                        .map(|c| format!("[{}{}]", c.to_ascii_uppercase(), c.to_ascii_lowercase()))
                        .collect::<String>()
                };
                let choices_of_any_case: Vec<_> = choices.iter().map(either).collect();
                json!({ "type": "string", "anyOf": [
                    { "enum": choices },
                    { "pattern": format!("^({})$", choices_of_any_case.join("|")) },
                ] })
            }
            Shape::Reducer => json!({ "type": "string", "anyOf": [
                { "enum": grammar::reducers() },
                { "pattern": "^vendor\\." },
            ] }),
            Shape::Access => {
                let entries = json!({ "type": "array", "items": { "type": "string" } });
                let mut readers = entries.clone();
                readers["contains"] = json!({ "const": "*" });
                json!({ "anyOf": [{ "const": "public" }, {
                    "type": "object",
                    "properties": { "writers": entries, "readers": readers },
                    "additionalProperties": false,
                }] })
            }
            Shape::Schema => json!({ "type": ["object", "boolean"] }),
            Shape::List(items, min, max) => {
                let mut schema = json!({ "type": "array", "items": self.shape(*items) });
                if min > 0 {
                    schema["minItems"] = json!(min);
                }
                if max < usize::MAX {
                    schema["maxItems"] = json!(max);
                }
                schema
            }
            Shape::Map(values) => match self.shape(*values) {
                Value::Object(any) if any.is_empty() => json!({ "type": "object" }),
                values => json!({ "type": "object", "additionalProperties": values }),
            },
            Shape::SettableMap(values) => {
                let mut schema = self.shape(Shape::Map(values));
                schema["propertyNames"] = json!({ "pattern": "^[^_]" });
                schema
            }
            Shape::Object(members) => self.object(members),
            Shape::Tagged(tagged) => self.tagged(tagged),
            Shape::Node => self.node(),
        }
    }

    fn object(&self, members: &Members) -> Value {
        let properties: Map<_, _> = members
            .list
            .iter()
            .map(|member| (member.name.to_owned(), self.member(member)))
            .collect();
        let required: Vec<_> = members
            .list
            .iter()
            .filter(|member| member.is_required)
            .map(|member| member.name)
            .collect();
        let mut schema = json!({ "type": "object", "properties": properties });
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        if !members.is_open {
            schema["additionalProperties"] = json!(false);
        }
        if !members.one_of.is_empty() {
            let one = members.one_of.iter().map(|name| json!({ "required": [name] }));
            schema["anyOf"] = one.collect();
        }
        schema
    }

    fn member(&self, member: &Member) -> Value {
        let mut schema = self.shape(member.shape);
        if member.may_be_null && !schema.as_object().is_some_and(Map::is_empty) {
            schema = match schema["type"].as_str() {
                Some(kind) if schema.get("anyOf").is_none() && schema.get("allOf").is_none() => {
                    schema["type"] = json!([kind, "null"]);
                    schema
                }
                _ => json!({ "anyOf": [schema, { "type": "null" }] }),
            };
        }
        schema["description"] = json!(member.about);
        schema
    }

    fn tagged(&self, tagged: &Tagged) -> Value {
        let tags: Vec<_> = tagged.variants.iter().map(|(tag, _)| *tag).collect();
        let is = |tag: &str| {
            let named = json!({ "properties": { tagged.tag: { "const": tag } }, "required": [tagged.tag] });
            if tagged.default == Some(tag) {
                json!({ "anyOf": [named, { "not": { "required": [tagged.tag] } }] })
            } else {
                named
            }
        };
        let variants: Vec<_> = tagged
            .variants
            .iter()
            .map(|(tag, members)| json!({ "if": is(tag), "then": self.object(members) }))
            .collect();
        let mut schema = json!({
            "type": "object",
            "properties": { tagged.tag: { "enum": tags } },
            "allOf": variants,
        });
        if tagged.default.is_none() {
            schema["required"] = json!([tagged.tag]);
        }
        schema
    }

    fn node(&self) -> Value {
        let mut schema = self.object(&NODE);
        let ids: Vec<_> = grammar::types(self.node_types).map(|kind| kind.id).collect();
        let choices: Vec<_> = grammar::types(self.node_types)
            .map(|kind| json!({ "const": kind.id, "description": kind.about }))
            .collect();
        schema["properties"]["typeId"] =
            json!({ "description": "What the node does.", "enum": ids, "anyOf": choices });
        let configs = grammar::types(self.node_types).filter_map(|kind| {
            let mut config = self.shape(kind.config);
            for name in grammar::undescribed(kind) {
                if let Shape::Tagged(_) = kind.config {
                    let variants = config["allOf"].as_array_mut().into_iter().flatten();
                    variants.for_each(|variant| variant["then"]["properties"][name] = json!({}));
                } else {
                    config["properties"][name] = json!({});
                }
            }
            if config == self.shape(Shape::Object(&grammar::OPEN)) {
                return None;
            }
            // An absent `config` counts as empty.
            let is_needed = config.get("required").is_some() || config.get("anyOf").is_some();
            let mut then = json!({ "properties": { "config": config } });
            if is_needed {
                then["required"] = json!(["config"]);
            }
            let is = json!({ "properties": { "typeId": { "const": kind.id } }, "required": ["typeId"] });
            Some(json!({ "if": is, "then": then }))
        });
        schema["allOf"] = configs.collect();
        schema
    }
}
