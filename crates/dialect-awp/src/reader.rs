//! Reads the members of a document, and collects the rules that they break.

use serde_json::{Map, Value};

use crate::{
    diagnostic::{Diagnostic, Diagnostics},
    duration,
};

/// An object of a document, and where it is.
#[derive(Debug, Clone)]
pub(crate) struct Members<'d> {
    pub(crate) fields: &'d Map<String, Value>,
    pub(crate) at: String,
}

impl<'d> Members<'d> {
    /// The pointer of a member.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{}", self.at, name.replace('~', "~0").replace('/', "~1"))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) found: Diagnostics,
}

impl Reader {
    pub(crate) fn add(&mut self, at: impl Into<String>, keyword: &'static str, message: impl Into<String>) {
        self.found.add(at, keyword, message);
    }

    /// An object with these members, and others where `allowed` is absent.
    pub(crate) fn object<'d>(
        &mut self,
        value: &'d Value,
        at: String,
        required: &[&str],
        allowed: Option<&[&str]>,
    ) -> Option<Members<'d>> {
        let Value::Object(fields) = value else {
            self.add(at, "type", "must be object");
            return None;
        };
        for name in required {
            if !fields.contains_key(*name) {
                self.add(
                    at.clone(),
                    "required",
                    format!("must have required property '{name}'"),
                );
            }
        }
        if let Some(allowed) = allowed
            && let Some(name) = fields.keys().find(|name| !allowed.contains(&name.as_str()))
        {
            let name = &name[..name.floor_char_boundary(100)];
            self.add(
                at.clone(),
                "additionalProperties",
                format!("must NOT have additional properties: '{name}'"),
            );
        }
        Some(Members { fields, at })
    }

    /// A member that is an object; `None` where absent.
    pub(crate) fn member<'d>(
        &mut self,
        members: &Members<'d>,
        name: &str,
        required: &[&str],
        allowed: Option<&[&str]>,
    ) -> Option<Members<'d>> {
        let value = members.fields.get(name)?;
        self.object(value, members.path(name), required, allowed)
    }

    /// A text that is not empty; `None` where absent.
    pub(crate) fn text<'d>(&mut self, members: &Members<'d>, name: &str) -> Option<&'d str> {
        match members.fields.get(name)? {
            Value::String(text) if text.is_empty() => {
                self.add(
                    members.path(name),
                    "minLength",
                    "must NOT have fewer than 1 characters",
                );
                None
            }
            Value::String(text) => Some(text),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                self.add(members.path(name), "type", "must be string");
                None
            }
        }
    }

    /// One of these words; `None` where absent.
    pub(crate) fn word<'d>(&mut self, members: &Members<'d>, name: &str, words: &[&str]) -> Option<&'d str> {
        let value = members.fields.get(name)?;
        let word = value.as_str().filter(|word| words.contains(word));
        if word.is_none() {
            let words = words.join(", ");
            self.add(
                members.path(name),
                "enum",
                format!("must be equal to one of the allowed values: {words}"),
            );
        }
        word
    }

    /// A whole number of at least `least`; `None` where absent.
    pub(crate) fn whole(&mut self, members: &Members<'_>, name: &str, least: u64) -> Option<u64> {
        let value = members.fields.get(name)?;
        match wopr_kernel::whole(value) {
            None => self.add(members.path(name), "type", "must be integer"),
            Some(n) if n < least => self.add(members.path(name), "minimum", format!("must be >= {least}")),
            Some(n) => return Some(n),
        }
        None
    }

    /// A duration in milliseconds; `None` where absent.
    pub(crate) fn duration(&mut self, members: &Members<'_>, name: &str) -> Option<u64> {
        let text = self.text(members, name)?;
        match duration::parse(text) {
            Ok(ms) => Some(ms),
            Err(rule) => {
                self.add(members.path(name), "profile", rule);
                None
            }
        }
    }

    /// A list of at least `least` items; `None` where absent.
    pub(crate) fn list<'d>(
        &mut self,
        members: &Members<'d>,
        name: &str,
        least: usize,
    ) -> Option<&'d [Value]> {
        match members.fields.get(name)? {
            Value::Array(items) if items.len() < least => {
                self.add(
                    members.path(name),
                    "minItems",
                    format!("must NOT have fewer than {least} items"),
                );
                None
            }
            Value::Array(items) => Some(items),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                self.add(members.path(name), "type", "must be array");
                None
            }
        }
    }

    /// Says that none of the alternatives holds, before what was found since there were `n`.
    pub(crate) fn none_of_the_alternatives(&mut self, n: usize, at: &str) {
        let diagnostic = Diagnostic {
            instance_path: at.to_owned(),
            keyword: "oneOf",
            message: "must match exactly one schema in oneOf".to_owned(),
        };
        self.found.add_before(n, diagnostic);
    }
}
