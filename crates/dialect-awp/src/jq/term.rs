//! Compiled filters: a tree in which every name is resolved.

use jaq_core::ops::{Cmp, Math};
use serde_json::Value;

use super::{builtins::Builtin, numbers::Function, search::Kind};

/// A filter with the definitions that it uses.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) functions: Vec<Term>,
    pub(super) main: Term,
    /// The memory that it takes, approximately.
    pub(super) n_bytes: usize,
}

/// What a filter does with one input. A *level* is a place in the environment, counted from its bottom.
#[derive(Debug)]
pub(super) enum Term {
    Identity,
    /// `..`
    Recurse,
    Literal(Value),
    Text(Format, Box<[Piece]>),
    List(Option<Box<Term>>),
    Object(Box<[(Term, Term)]>),
    Negate(Box<Term>),
    Pipe(Box<Term>, Box<Term>),
    /// `l as $x | r`
    Bind(Box<Term>, Pattern, Box<Term>),
    Comma(Box<[Term]>),
    Alternative(Box<Term>, Box<Term>),
    Or(Box<Term>, Box<Term>),
    And(Box<Term>, Box<Term>),
    Math(Math, Box<Term>, Box<Term>),
    Compare(Cmp, Box<Term>, Box<Term>),
    Assign(Box<Term>, Change, Box<Term>),
    Label(Box<Term>),
    Break {
        level: usize,
    },
    Fold(Box<Fold>),
    Try(Box<Term>, Option<Box<Term>>),
    If(Box<[(Term, Term)]>, Option<Box<Term>>),
    /// A definition, which sees the environment up to `level`.
    Call {
        function: usize,
        level: usize,
        arguments: Box<[Term]>,
    },
    /// A filter that was given as an argument.
    Argument {
        level: usize,
    },
    Variable {
        level: usize,
    },
    Builtin(Builtin, Box<[Term]>),
    /// A function of numbers.
    Number(Function, Box<[Term]>),
    /// A search for a pattern, with flags or without.
    Search(Kind, Box<[Term]>),
    /// `sub` and `gsub`: a pattern, what replaces it, and flags if there are any.
    Substitute {
        is_global: bool,
        arguments: Box<[Term]>,
    },
    Path(Box<Term>, Box<[Hop]>),
}

/// `reduce` or `foreach`.
#[derive(Debug)]
pub(super) struct Fold {
    pub(super) source: Term,
    pub(super) pattern: Pattern,
    pub(super) init: Term,
    pub(super) update: Term,
    pub(super) kind: FoldKind,
}

#[derive(Debug)]
pub(super) enum FoldKind {
    Reduce,
    /// With what each state gives; the state itself where absent.
    Foreach(Option<Term>),
}

#[derive(Debug)]
pub(super) enum Piece {
    Text(String),
    Term(Term),
}

/// How interpolated values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
    Csv,
    Tsv,
    Html,
    Uri,
    UriDecoded,
    Shell,
    Base64,
    Base64Decoded,
    Base32,
    Base32Decoded,
}

/// What an assignment does.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    /// `=`
    Set,
    /// `|=`
    Update,
    /// `+=` and its like
    Math(Math),
    /// `//=`
    Alternative,
}

#[derive(Debug)]
pub(super) enum Pattern {
    Variable,
    List(Box<[Pattern]>),
    Object(Box<[(Term, Pattern)]>),
    /// `p ?// q`: the first whose body does not fail.
    Alternatives(Alternatives),
}

/// Where the variables of all alternatives are among those of one.
pub(super) type Places = Box<[Option<usize>]>;

/// Patterns of which one is enough.
#[derive(Debug)]
pub(super) struct Alternatives {
    pub(super) n_variables: usize,
    /// Each with the places of the variables among those that it binds itself. Those that it lacks are null.
    pub(super) patterns: Box<[(Pattern, Places)]>,
}

impl Pattern {
    /// How many variables it binds.
    pub(super) fn n_variables(&self) -> usize {
        match self {
            Self::Variable => 1,
            Self::List(parts) => parts.iter().map(Self::n_variables).sum(),
            Self::Object(parts) => parts.iter().map(|(_, part)| part.n_variables()).sum(),
            Self::Alternatives(alternatives) => alternatives.n_variables,
        }
    }
}

/// One part of a path.
#[derive(Debug)]
pub(super) struct Hop {
    pub(super) part: Part,
    /// With `?`: what cannot be accessed has no output.
    pub(super) is_optional: bool,
}

#[derive(Debug)]
pub(super) enum Part {
    Index(Term),
    /// From one bound to another one. In a box, so that the other parts, of which there are more, stay small.
    Slice(Box<(Option<Term>, Option<Term>)>),
    Each,
}
