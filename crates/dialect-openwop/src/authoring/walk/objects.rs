//! Checks objects: missing, unknown and refused members, objects distinguished by a tag, and nodes by their
//! type.

use serde_json::{Map, Value};

use crate::{Spot, admission::output_mappings, node::pack_hint};

use super::{
    super::grammar::{self, Members, NODE, Shape, Tagged, Type},
    Step, Walk,
};

impl<'a> Walk<'a> {
    pub(super) fn object(
        &mut self,
        members: &'static Members,
        value: &'a Value,
        kind: Option<&'static Type>,
    ) {
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

    /// Reports required members that are missing.
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

    /// Reports the required `config` members of a node without a `config`.
    fn needed_in_absent(&mut self, kind: &Type) {
        let (required, one_of) = if let Shape::Object(members) = kind.config {
            let required = members.list.iter().filter(|member| member.is_required);
            (required.map(|member| member.name).collect(), members.one_of)
        } else if let Shape::Tagged(tagged) = kind.config {
            (vec![tagged.tag], &[] as &[_])
        } else {
            return;
        };
        for name in required.into_iter().chain(one_of.first().copied()) {
            self.add(Spot::Value, format!("config.{name} is missing"), None);
        }
    }

    pub(super) fn unknown(&mut self, name: &'a str, members: &'static Members, kind: Option<&'static Type>) {
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

    pub(super) fn tagged(&mut self, tagged: &'static Tagged, value: &'a Value, kind: Option<&'static Type>) {
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

    pub(super) fn node(&mut self, value: &'a Value) {
        self.object(&NODE, value, None);
        let Value::Object(fields) = value else { return };
        let Some(type_id) = fields.get("typeId").and_then(Value::as_str) else {
            return;
        };
        let Some(kind) = grammar::types(self.node_types).find(|kind| kind.id == type_id) else {
            let types = grammar::types(self.node_types).map(|kind| kind.id);
            let is_conformance = grammar::TYPES.iter().any(|kind| kind.id == type_id);
            let hint = if is_conformance {
                Some("only a host in conformance mode has it (WOPR_CONFORMANCE=1)".to_owned())
            } else {
                pack_hint(type_id).or_else(|| self.suggest.hint(type_id, types))
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
            // An absent `config` counts as empty.
            None => self.needed_in_absent(kind),
            Some(_) => {}
        }
        if self.is_deep() {
            self.channel_writes(type_id, fields.get("config"));
        }
    }

    /// Adds a problem with the name of the member at the end of a path.
    fn add_at(&mut self, path: &[&'a str], rule: String) {
        match path {
            [] => self.add(Spot::Name, rule, None),
            [member, rest @ ..] => self.inside(Step::Member(member), |walk| walk.add_at(rest, rule)),
        }
    }

    /// Reports channels that a node would set as variables.
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
            _ => {
                let mappings = output_mappings(type_id, config).into_iter();
                let mut names =
                    mappings.flat_map(|(path, mapping)| mapping.keys().map(move |name| (path.clone(), name)));
                if let Some((path, name)) = names.find(|(_, name)| channels.contains_key(*name)) {
                    let rule = rule(&path.join("."), name);
                    let steps: Vec<_> = path.into_iter().chain([&**name]).collect();
                    self.inside(Step::Member("config"), |walk| walk.add_at(&steps, rule));
                }
            }
        }
    }
}
