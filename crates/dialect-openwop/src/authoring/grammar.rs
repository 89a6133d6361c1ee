//! The shape of a definition as data: its members, their shapes, and one line of documentation for each.
//!
//! The JSON Schema for editors is generated from these tables, and [`super::walk`] validates new documents
//! against them, so the two cannot disagree. The decoder checks everything that a shape cannot express, such
//! as duplicate ids and references to names that do not exist.
//!
//! This file defines the vocabulary of the tables; `document` describes a definition, `types` the settings of
//! each node type.

mod document;
mod types;

use crate::channel::REDUCERS;

pub(crate) use document::{NODE, ROOT};
pub(crate) use types::{OPEN, TYPES, Type, types, undescribed};

/// The shape of a value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    Any,
    /// A string with a minimum and a maximum number of characters.
    Text(usize, usize),
    WorkflowId,
    /// A string of a-z, 0-9, _ and -, which begins with a letter or a digit.
    Slug,
    NodeId,
    /// A string that does not begin with an underscore.
    Settable,
    Template,
    /// Any value; a string with template syntax is a template.
    MaybeTemplate,
    /// A human-readable string; one with template syntax is a template.
    Words,
    /// A human-readable string that is shown as it is.
    Literal,
    /// Any JSON value; its strings with template syntax are templates.
    Body,
    Expression,
    Pattern,
    Flag,
    /// Only `true`, with the reason.
    True(&'static str),
    Number,
    Whole(u64, u64),
    Choice(&'static [&'static str]),
    /// A choice that ignores case.
    AnyCase(&'static [&'static str]),
    /// The name of a channel reducer.
    Reducer,
    /// `access` of a channel, which `admission` checks.
    Access,
    Schema,
    List(&'static Shape, usize, usize),
    /// An object whose members may have any name.
    Map(&'static Shape),
    /// A map whose names must not begin with an underscore.
    SettableMap(&'static Shape),
    Object(&'static Members),
    /// One of several objects, distinguished by the string in one member.
    Tagged(&'static Tagged),
    /// A node; its `config` depends on its type.
    Node,
}

/// The members of an object.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) list: &'static [Member],
    /// Whether other members are allowed.
    pub(crate) is_open: bool,
    /// At least one of these is required; empty means no such rule.
    pub(crate) one_of: &'static [&'static str],
    /// Members that are refused, each with its own reason.
    pub(crate) refused: &'static [(&'static str, &'static str)],
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    pub(crate) is_required: bool,
    /// Whether `null` counts as absent.
    pub(crate) may_be_null: bool,
    pub(crate) about: &'static str,
}

/// Objects distinguished by the string in one member.
#[derive(Debug)]
pub(crate) struct Tagged {
    pub(crate) tag: &'static str,
    /// The variant if the tag is absent.
    pub(crate) default: Option<&'static str>,
    pub(crate) variants: &'static [(&'static str, Members)],
}

impl Members {
    pub(crate) fn find(&self, name: &str) -> Option<&'static Member> {
        self.list.iter().find(|member| member.name == name)
    }
}

const fn may(name: &'static str, shape: Shape, about: &'static str) -> Member {
    Member {
        name,
        shape,
        is_required: false,
        may_be_null: false,
        about,
    }
}

impl Member {
    const fn must(self) -> Self {
        Self {
            is_required: true,
            ..self
        }
    }

    const fn or_null(self) -> Self {
        Self {
            may_be_null: true,
            ..self
        }
    }
}

const fn closed(list: &'static [Member]) -> Members {
    Members {
        list,
        is_open: false,
        one_of: &[],
        refused: &[],
    }
}

const fn open(list: &'static [Member]) -> Members {
    Members {
        is_open: true,
        ..closed(list)
    }
}

impl Members {
    const fn with_one_of(self, one_of: &'static [&'static str]) -> Self {
        Self { one_of, ..self }
    }

    const fn refusing(self, refused: &'static [(&'static str, &'static str)]) -> Self {
        Self { refused, ..self }
    }
}

const MAX: usize = usize::MAX;
const TEXT: Shape = Shape::Text(0, MAX);
const NONEMPTY: Shape = Shape::Text(1, MAX);
const COUNT: Shape = Shape::Whole(0, u64::MAX);
const OBJECT: Shape = Shape::Map(&Shape::Any);

/// All reducers with a fixed name.
pub(crate) const fn reducers() -> &'static [&'static str] {
    &REDUCERS
}
