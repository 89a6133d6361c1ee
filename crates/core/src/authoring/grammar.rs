//! The shape of a definition as data: its members, what each may be, and a line about it.
//!
//! The JSON Schema for editors is printed from these tables, and [`super::walk`] holds new documents to them, so the
//! two cannot disagree. What a shape cannot say (an id used twice, a name that does not exist) is the decoder's.
//!
//! Here are the words that the tables are written in; `document` describes a definition, `types` the settings of each
//! node type.

mod document;
mod types;

use crate::channel::REDUCERS;

pub(crate) use document::{NODE, ROOT};
pub(crate) use types::{OPEN, TYPES, Type, types, undescribed};

/// What a value may be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    Any,
    /// A string with at least and at most so many characters.
    Text(usize, usize),
    WorkflowId,
    NodeId,
    /// A string that does not begin with an underscore.
    Settable,
    Template,
    /// Anything; a string with template marks is a template.
    MaybeTemplate,
    /// A string that people read; with template marks it is a template.
    Words,
    /// A string that people read as it stands.
    Literal,
    /// Any JSON whose strings with template marks are templates.
    Body,
    Expression,
    /// A regular expression.
    Pattern,
    Flag,
    /// `true` alone, and why.
    True(&'static str),
    Number,
    Whole(u64, u64),
    Choice(&'static [&'static str]),
    /// A choice whose case does not count.
    AnyCase(&'static [&'static str]),
    /// The name of a reducer of channels.
    Reducer,
    /// `access` of a channel; the admission of channels reads it.
    Access,
    /// A JSON Schema.
    Schema,
    List(&'static Shape, usize, usize),
    /// An object with members of any name.
    Map(&'static Shape),
    /// A map whose names may not begin with an underscore.
    SettableMap(&'static Shape),
    Object(&'static Members),
    /// One of several objects, told apart by the text of a member.
    Tagged(&'static Tagged),
    /// A node: its `config` depends on its type.
    Node,
}

/// What an object has.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) list: &'static [Member],
    /// Whether it may have others.
    pub(crate) is_open: bool,
    /// One of these must be there.
    pub(crate) one_of: &'static [&'static str],
    /// Members that are refused for a reason of their own.
    pub(crate) refused: &'static [(&'static str, &'static str)],
}

/// A member of an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    pub(crate) is_required: bool,
    /// Whether `null` counts as absent.
    pub(crate) may_be_null: bool,
    pub(crate) about: &'static str,
}

/// Objects told apart by the text of a member.
#[derive(Debug)]
pub(crate) struct Tagged {
    pub(crate) tag: &'static str,
    /// Which it is where the tag is absent.
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

/// Every reducer that has a name of its own.
pub(crate) const fn reducers() -> &'static [&'static str] {
    &REDUCERS
}
