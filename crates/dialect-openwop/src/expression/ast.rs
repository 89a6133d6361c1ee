//! The syntax tree. Its depth is bounded: chains of operators, filters and fields are lists in it.
//!
//! Workflows stay compiled for as long as they are current, so the tree is small: lists have no spare capacity, and
//! what is rare is behind a pointer. `heap` says what a tree takes, which counts against the limits of its tenant.

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
    List(Box<[Expr]>),
    Map(Box<[(Expr, Expr)]>),
    Range(Box<[Expr]>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    All(Box<[Expr]>),
    Any(Box<[Expr]>),
    /// Operators of equal precedence, from left to right.
    Chain(Box<Expr>, Box<[(Operator, Expr)]>),
    Compare(Box<Expr>, Box<[(Comparison, Expr)]>),
    If(Box<Choice>),
    Post(Box<Expr>, Box<[Post]>),
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
    Call(Box<(Box<str>, Args)>),
    Item(Box<Expr>),
    Slice(Box<Slice>),
    Filter(&'static Filter, Args),
    Test(Box<TestCall>),
}

#[derive(Debug)]
pub(super) struct Slice {
    pub(super) from: Option<Expr>,
    pub(super) to: Option<Expr>,
    pub(super) step: usize,
}

#[derive(Debug)]
pub(super) struct TestCall {
    pub(super) test: &'static Test,
    pub(super) args: Args,
    pub(super) is_negated: bool,
}

/// The arguments of a call; nothing if there are none.
#[derive(Debug, Default)]
pub(super) struct Args(Option<Box<Given>>);

#[derive(Debug)]
struct Given {
    by_place: Box<[Expr]>,
    by_name: Box<[(Box<str>, Expr)]>,
}

impl Args {
    pub(super) fn new(by_place: Vec<Expr>, by_name: Vec<(Box<str>, Expr)>) -> Self {
        if by_place.is_empty() && by_name.is_empty() {
            return Self(None);
        }
        Self(Some(Box::new(Given {
            by_place: by_place.into(),
            by_name: by_name.into(),
        })))
    }

    pub(super) fn by_place(&self) -> &[Expr] {
        self.0.as_ref().map_or(&[], |given| &given.by_place)
    }

    pub(super) fn by_name(&self) -> &[(Box<str>, Expr)] {
        self.0.as_ref().map_or(&[], |given| &given.by_name)
    }
}

#[derive(Debug)]
pub(super) enum Statement {
    Text(Box<str>),
    Print(Expr),
    If(Box<Branches>),
    For(Box<Loop>),
}

#[derive(Debug)]
pub(super) struct Branches {
    /// The bodies with their conditions.
    pub(super) tested: Box<[(Expr, Box<[Statement]>)]>,
    pub(super) otherwise: Box<[Statement]>,
}

#[derive(Debug)]
pub(super) struct Loop {
    pub(super) target: Target,
    pub(super) over: Expr,
    pub(super) filter: Option<Expr>,
    pub(super) body: Box<[Statement]>,
    pub(super) otherwise: Box<[Statement]>,
}

/// The names that a loop binds to an item.
#[derive(Debug)]
pub(super) enum Target {
    Name(Box<str>),
    Parts(Box<[Target]>),
}

/// The memory of one allocation: the allocator rounds it up.
fn block<T: ?Sized>(of: &T) -> usize {
    match size_of_val(of) {
        0 => 0,
        n_bytes => n_bytes.next_multiple_of(16),
    }
}

/// The memory of a list and of what its items point to.
fn list<T>(items: &[T], heap: impl Fn(&T) -> usize) -> usize {
    block(items) + items.iter().map(heap).sum::<usize>()
}

pub(super) fn statements(statements: &[Statement]) -> usize {
    list(statements, Statement::heap)
}

impl Expr {
    /// The memory behind the expression's pointers, in bytes.
    pub(super) fn heap(&self) -> usize {
        match self {
            Self::None | Self::Bool(_) | Self::Int(_) | Self::Float(_) => 0,
            Self::Text(text) | Self::Name(text, _) => block(&**text),
            Self::List(items) | Self::Range(items) | Self::All(items) | Self::Any(items) => {
                list(items, Self::heap)
            }
            Self::Map(fields) => list(fields, |(name, value)| name.heap() + value.heap()),
            Self::Not(operand) | Self::Negative(operand) => operand.boxed(),
            Self::Chain(first, rest) => first.boxed() + list(rest, |(_, operand)| operand.heap()),
            Self::Compare(first, rest) => first.boxed() + list(rest, |(_, operand)| operand.heap()),
            Self::If(choice) => {
                let otherwise = choice.otherwise.as_ref().map_or(0, Self::heap);
                block(&**choice) + choice.test.heap() + choice.then.heap() + otherwise
            }
            Self::Post(value, posts) => value.boxed() + list(posts, Post::heap),
        }
    }

    fn boxed(&self) -> usize {
        block(self) + self.heap()
    }
}

impl Post {
    fn heap(&self) -> usize {
        match self {
            Self::Field(name) => block(&**name),
            Self::Call(call) => block(&**call) + block(&*call.0) + call.1.heap(),
            Self::Item(key) => key.boxed(),
            Self::Slice(slice) => {
                let ends = [&slice.from, &slice.to].into_iter().flatten();
                block(&**slice) + ends.map(Expr::heap).sum::<usize>()
            }
            Self::Filter(_, args) => args.heap(),
            Self::Test(call) => block(&**call) + call.args.heap(),
        }
    }
}

impl Args {
    fn heap(&self) -> usize {
        let Some(given) = &self.0 else {
            return 0;
        };
        let by_name = list(&given.by_name, |(name, arg)| block(&**name) + arg.heap());
        block(&**given) + list(&given.by_place, Expr::heap) + by_name
    }
}

impl Statement {
    fn heap(&self) -> usize {
        match self {
            Self::Text(text) => block(&**text),
            Self::Print(expr) => expr.heap(),
            Self::If(branches) => {
                let tested = list(&branches.tested, |(condition, body)| {
                    condition.heap() + statements(body)
                });
                block(&**branches) + tested + statements(&branches.otherwise)
            }
            Self::For(each) => {
                let filter = each.filter.as_ref().map_or(0, Expr::heap);
                let bodies = statements(&each.body) + statements(&each.otherwise);
                block(&**each) + each.target.heap() + each.over.heap() + filter + bodies
            }
        }
    }
}

impl Target {
    fn heap(&self) -> usize {
        match self {
            Self::Name(name) => block(&**name),
            Self::Parts(parts) => list(parts, Self::heap),
        }
    }
}
