//! The syntax tree. Its depth is bounded: chains of operators, filters and fields are lists in it.

use super::{filters::Filter, predicates::Test};

#[derive(Debug)]
pub(super) enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Box<str>),
    /// A name and its offset in the source.
    Name(Box<str>, usize),
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    Range(Vec<Expr>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    All(Vec<Expr>),
    Any(Vec<Expr>),
    /// Operators of equal precedence, from left to right.
    Chain(Box<Expr>, Vec<(Operator, Expr)>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    If(Box<Choice>),
    Post(Box<Expr>, Vec<Post>),
}

#[derive(Debug)]
pub(super) struct Choice {
    pub(super) test: Expr,
    pub(super) then: Expr,
    pub(super) otherwise: Option<Expr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Join,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

/// A postfix operation on a value.
#[derive(Debug)]
pub(super) enum Post {
    Field(Box<str>),
    /// A method call. No value has methods, so evaluating it is an error.
    Call(Box<str>, Args),
    Item(Expr),
    Slice {
        from: Option<Expr>,
        to: Option<Expr>,
        step: usize,
    },
    Filter(&'static Filter, Args),
    Test {
        test: &'static Test,
        args: Args,
        is_negated: bool,
    },
}

#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) by_place: Vec<Expr>,
    pub(super) by_name: Vec<(Box<str>, Expr)>,
}

#[derive(Debug)]
pub(super) enum Statement {
    Text(Box<str>),
    Print(Expr),
    /// The branches with their conditions, and the `else` branch.
    If(Vec<(Expr, Vec<Statement>)>, Vec<Statement>),
    For(Box<Loop>),
}

#[derive(Debug)]
pub(super) struct Loop {
    pub(super) target: Target,
    pub(super) over: Expr,
    pub(super) filter: Option<Expr>,
    pub(super) body: Vec<Statement>,
    pub(super) otherwise: Vec<Statement>,
}

/// The names that a loop binds to an item.
#[derive(Debug)]
pub(super) enum Target {
    Name(Box<str>),
    Parts(Vec<Target>),
}
