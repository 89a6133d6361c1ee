//! The parser: turns tokens into a syntax tree by operator precedence.
//!
//! Every nested construct counts as a level, and the number of levels is bounded, so neither parsing nor
//! evaluation can overflow the stack. Unknown filters, tests and functions are syntax errors.

use std::iter::Peekable;

use super::{
    ExpressionError,
    ast::{
        Args, Branches, Choice, Comparison, Expr, Loop, Operator, Post, Slice, Statement, Target, TestCall,
    },
    filters::Filter,
    lex::{self, Kind, MAX_NESTING, Part, Token, nested, syntax},
    predicates::Test,
};

type Result<T> = std::result::Result<T, ExpressionError>;

const STATEMENTS: [&str; 6] = ["if", "elif", "else", "endif", "for", "endfor"];
/// Names that a loop cannot bind.
const RESERVED: [&str; 8] = ["true", "True", "false", "False", "none", "None", "loop", "self"];

pub(super) fn expression(source: &str) -> Result<Expr> {
    let tokens = lex::expression(source)?;
    whole(&tokens, 0)
}

pub(super) fn template(source: &str) -> Result<Vec<Statement>> {
    let parts = lex::template(source)?;
    let mut parts = parts.into_iter().peekable();
    let statements = block(&mut parts, &[], 0)?;
    match parts.next() {
        None => Ok(statements),
        Some(_) => Err(syntax("a tag ends what was not begun")),
    }
}

type Parts<'s> = Peekable<std::vec::IntoIter<Part<'s>>>;

/// The statements before one of the given tags or before the end of the template.
fn block(parts: &mut Parts<'_>, ends: &[&str], depth: usize) -> Result<Vec<Statement>> {
    if depth > MAX_NESTING {
        return Err(nested());
    }
    let mut statements = Vec::new();
    while let Some(part) = parts.peek() {
        if let Part::Statement(tokens) = part {
            let word = word(tokens);
            if ends.contains(&word) {
                return Ok(statements);
            }
            if !STATEMENTS.contains(&word) {
                return Err(syntax(format!(
                    "'{{% {word} %}}' is not offered: templates have if and for, and no assignments (use core.setVariable)"
                )));
            }
        }
        match parts.next() {
            None => break,
            Some(Part::Text(text)) => statements.push(Statement::Text(text.into())),
            Some(Part::Print(tokens)) => statements.push(Statement::Print(whole(&tokens, depth)?)),
            Some(Part::Statement(tokens)) => statements.push(match word(&tokens) {
                "if" => conditional(parts, &tokens, depth)?,
                "for" => Statement::For(Box::new(for_loop(parts, &tokens, depth)?)),
                other => return Err(syntax(format!("'{{% {other} %}}' ends what was not begun"))),
            }),
        }
    }
    match ends {
        [] => Ok(statements),
        _ => Err(syntax(format!("there is no '{{% {} %}}'", ends[0]))),
    }
}

fn word<'s>(tokens: &[Token<'s>]) -> &'s str {
    match tokens.first().map(|token| &token.kind) {
        Some(Kind::Name(name)) => name,
        _ => "",
    }
}

/// Consumes the tag that ends a block; it is known to be present.
fn end(parts: &mut Parts<'_>, is_last: bool) -> Result<()> {
    match parts.next() {
        Some(Part::Statement(tokens)) if !is_last || tokens.len() == 1 => Ok(()),
        _ => Err(syntax("a tag has more than its word")),
    }
}

fn conditional(parts: &mut Parts<'_>, tokens: &[Token<'_>], depth: usize) -> Result<Statement> {
    let mut branches = Vec::new();
    let mut condition = whole(&tokens[1..], depth)?;
    loop {
        let body = block(parts, &["endif", "elif", "else"], depth + 1)?;
        branches.push((condition, body.into()));
        match parts.next() {
            Some(Part::Statement(tokens)) if word(&tokens) == "elif" => {
                condition = whole(&tokens[1..], depth)?;
            }
            Some(Part::Statement(tokens)) if tokens.len() > 1 => {
                return Err(syntax("a tag has more than its word"));
            }
            Some(Part::Statement(tokens)) if word(&tokens) == "else" => {
                let otherwise = block(parts, &["endif"], depth + 1)?;
                end(parts, true)?;
                return Ok(conditions(branches, otherwise));
            }
            _ => return Ok(conditions(branches, Vec::new())),
        }
    }
}

fn conditions(tested: Vec<(Expr, Box<[Statement]>)>, otherwise: Vec<Statement>) -> Statement {
    Statement::If(Box::new(Branches {
        tested: tested.into(),
        otherwise: otherwise.into(),
    }))
}

fn for_loop(parts: &mut Parts<'_>, tokens: &[Token<'_>], depth: usize) -> Result<Loop> {
    let mut parser = Parser {
        tokens: &tokens[1..],
        at: 0,
        depth,
    };
    let target = parser.target()?;
    if !parser.takes_name("in") {
        return Err(syntax("'for' has no 'in'"));
    }
    let over = parser.any()?;
    let filter = if parser.takes_name("if") {
        Some(parser.expression()?)
    } else {
        None
    };
    if parser.takes_name("recursive") {
        return Err(syntax("'recursive' is not offered"));
    }
    parser.end()?;
    let body = block(parts, &["endfor", "else"], depth + 1)?;
    let mut otherwise = Vec::new();
    match parts.next() {
        Some(Part::Statement(tokens)) if word(&tokens) == "else" => {
            if tokens.len() > 1 {
                return Err(syntax("a tag has more than its word"));
            }
            otherwise = block(parts, &["endfor"], depth + 1)?;
            end(parts, true)?;
        }
        Some(Part::Statement(tokens)) if tokens.len() == 1 => {}
        _ => return Err(syntax("a tag has more than its word")),
    }
    Ok(Loop {
        target,
        over,
        filter,
        body: body.into(),
        otherwise: otherwise.into(),
    })
}

/// Parses all tokens as one expression.
fn whole(tokens: &[Token<'_>], depth: usize) -> Result<Expr> {
    let mut parser = Parser { tokens, at: 0, depth };
    let expr = parser.expression()?;
    parser.end()?;
    Ok(expr)
}

/// The arguments of a call, by place and by name.
type Given = (Vec<Expr>, Vec<(Box<str>, Expr)>);

struct Parser<'t, 's> {
    tokens: &'t [Token<'s>],
    at: usize,
    depth: usize,
}

impl<'s> Parser<'_, 's> {
    fn peek(&self) -> Option<&Kind<'s>> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    fn is_name(&self, name: &str) -> bool {
        self.peek() == Some(&Kind::Name(name))
    }

    fn takes_name(&mut self, name: &str) -> bool {
        let is = self.is_name(name);
        self.at += usize::from(is);
        is
    }

    fn is_operator(&self, operator: &str) -> bool {
        matches!(self.peek(), Some(Kind::Operator(found)) if *found == operator)
    }

    fn takes(&mut self, operator: &str) -> bool {
        let is = self.is_operator(operator);
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, operator: &str) -> Result<()> {
        if self.takes(operator) {
            return Ok(());
        }
        Err(self.unexpected(&format!("'{operator}'")))
    }

    fn unexpected(&self, wanted: &str) -> ExpressionError {
        let found = match self.peek() {
            None => "end of input".to_owned(),
            Some(Kind::Name(name)) => format!("'{name}'"),
            Some(Kind::Operator(operator)) => format!("'{operator}'"),
            Some(Kind::Int(_) | Kind::Float(_)) => "a number".to_owned(),
            Some(Kind::Text(_)) => "a text".to_owned(),
        };
        syntax(format!("unexpected {found}, expected {wanted}"))
    }

    fn end(&self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(syntax("unexpected input after expression")),
        }
    }

    fn name(&mut self) -> Result<&'s str> {
        match self.peek() {
            Some(Kind::Name(name)) => {
                let name = *name;
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    /// Parses one nesting level deeper.
    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > MAX_NESTING {
            return Err(nested());
        }
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn expression(&mut self) -> Result<Expr> {
        self.deeper(Self::choice)
    }

    fn choice(&mut self) -> Result<Expr> {
        let mut expr = self.any()?;
        let mut depth = self.depth;
        while self.takes_name("if") {
            let test = self.any()?;
            let otherwise = if self.takes_name("else") {
                Some(self.expression()?)
            } else {
                None
            };
            let choice = Choice {
                test,
                then: expr,
                otherwise,
            };
            // Each further choice nests one level deeper.
            depth += 1;
            if depth > MAX_NESTING {
                return Err(nested());
            }
            expr = Expr::If(Box::new(choice));
        }
        Ok(expr)
    }

    fn any(&mut self) -> Result<Expr> {
        let first = self.all()?;
        let mut rest = Vec::new();
        while self.takes_name("or") {
            rest.push(self.all()?);
        }
        Ok(joined(first, rest, Expr::Any))
    }

    fn all(&mut self) -> Result<Expr> {
        let first = self.negated()?;
        let mut rest = Vec::new();
        while self.takes_name("and") {
            rest.push(self.negated()?);
        }
        Ok(joined(first, rest, Expr::All))
    }

    fn negated(&mut self) -> Result<Expr> {
        if !self.takes_name("not") {
            return self.compared();
        }
        let operand = self.deeper(Self::negated)?;
        Ok(Expr::Not(Box::new(operand)))
    }

    fn compared(&mut self) -> Result<Expr> {
        let first = self.ranked(0)?;
        let mut rest = Vec::new();
        while let Some(comparison) = self.comparison()? {
            rest.push((comparison, self.ranked(0)?));
        }
        Ok(match rest.is_empty() {
            true => first,
            false => Expr::Compare(Box::new(first), rest.into()),
        })
    }

    fn comparison(&mut self) -> Result<Option<Comparison>> {
        let comparison = match self.peek() {
            Some(Kind::Operator("==")) => Comparison::Equal,
            Some(Kind::Operator("!=")) => Comparison::NotEqual,
            Some(Kind::Operator("<")) => Comparison::Less,
            Some(Kind::Operator("<=")) => Comparison::LessOrEqual,
            Some(Kind::Operator(">")) => Comparison::Greater,
            Some(Kind::Operator(">=")) => Comparison::GreaterOrEqual,
            Some(Kind::Name("in")) => Comparison::In,
            Some(Kind::Name("not")) => {
                self.at += 1;
                if !self.is_name("in") {
                    return Err(self.unexpected("'in'"));
                }
                Comparison::NotIn
            }
            _ => return Ok(None),
        };
        self.at += 1;
        Ok(Some(comparison))
    }

    /// Parses operators of one precedence level and of all higher ones.
    fn ranked(&mut self, rank: usize) -> Result<Expr> {
        const RANKS: [&[(&str, Operator)]; 4] = [
            &[("+", Operator::Add), ("-", Operator::Subtract)],
            &[("~", Operator::Join)],
            &[
                ("*", Operator::Multiply),
                ("/", Operator::Divide),
                ("//", Operator::FloorDivide),
                ("%", Operator::Remainder),
            ],
            &[("**", Operator::Power)],
        ];
        let Some(operators) = RANKS.get(rank) else {
            return self.filtered();
        };
        let first = self.ranked(rank + 1)?;
        let mut rest = Vec::new();
        while let Some((_, operator)) = operators.iter().find(|(text, _)| self.is_operator(text)) {
            self.at += 1;
            rest.push((*operator, self.ranked(rank + 1)?));
        }
        Ok(match rest.is_empty() {
            true => first,
            false => Expr::Chain(Box::new(first), rest.into()),
        })
    }

    /// Parses a signed value and the filters and tests that follow it.
    fn filtered(&mut self) -> Result<Expr> {
        let value = self.signed()?;
        let mut posts = Vec::new();
        loop {
            if self.takes("|") {
                let name = self.name()?;
                let filter =
                    Filter::named(name).ok_or_else(|| syntax(format!("there is no filter '{name}'")))?;
                let args = if self.is_operator("(") {
                    self.args()?
                } else {
                    Args::default()
                };
                posts.push(Post::Filter(filter, args));
            } else if self.takes_name("is") {
                let is_negated = self.takes_name("not");
                let name = self.name()?;
                let test = Test::named(name).ok_or_else(|| syntax(format!("there is no test '{name}'")))?;
                let args = self.test_args()?;
                posts.push(Post::Test(Box::new(TestCall {
                    test,
                    args,
                    is_negated,
                })));
            } else {
                return Ok(followed(value, posts));
            }
        }
    }

    fn test_args(&mut self) -> Result<Args> {
        let takes_one = match self.peek() {
            Some(Kind::Operator("(")) => return self.args(),
            Some(Kind::Name(name)) => !["and", "or", "else", "is", "not", "in", "if"].contains(name),
            Some(Kind::Int(_) | Kind::Float(_) | Kind::Text(_)) => true,
            Some(Kind::Operator(operator)) => ["-", "[", "{"].contains(operator),
            None => false,
        };
        let by_place = if takes_one {
            vec![self.signed()?]
        } else {
            Vec::new()
        };
        Ok(Args::new(by_place, Vec::new()))
    }

    fn signed(&mut self) -> Result<Expr> {
        if self.takes("-") {
            let operand = self.deeper(Self::signed)?;
            return Ok(Expr::Negative(Box::new(operand)));
        }
        let value = self.primary()?;
        let posts = self.posts()?;
        Ok(followed(value, posts))
    }

    /// Parses fields, subscripts and slices.
    fn posts(&mut self) -> Result<Vec<Post>> {
        let mut posts = Vec::new();
        loop {
            if self.takes(".") {
                posts.push(match self.peek() {
                    Some(Kind::Int(index)) => {
                        let index = *index;
                        self.at += 1;
                        Post::Item(Box::new(Expr::Int(index)))
                    }
                    _ => Post::Field(self.name()?.into()),
                });
            } else if self.takes("[") {
                posts.push(self.subscript()?);
            } else if self.is_operator("(") {
                let Some(Post::Field(method)) = posts.pop() else {
                    return Err(syntax(
                        "only functions can be called, and 'range' is the only one",
                    ));
                };
                posts.push(Post::Call(Box::new((method, self.args()?))));
            } else {
                return Ok(posts);
            }
        }
    }

    fn subscript(&mut self) -> Result<Post> {
        let from = if self.is_operator(":") {
            None
        } else {
            Some(self.expression()?)
        };
        if !self.takes(":") {
            self.expect("]")?;
            let key = from.map(|key| Post::Item(Box::new(key)));
            return key.ok_or_else(|| syntax("a subscript is empty"));
        }
        let to = if self.is_operator(":") || self.is_operator("]") {
            None
        } else {
            Some(self.expression()?)
        };
        let mut step = 1;
        if self.takes(":") && !self.is_operator("]") {
            let found = match self.peek() {
                Some(Kind::Int(n)) => usize::try_from(*n).ok().filter(|n| *n > 0),
                _ => None,
            };
            let wrong = "the step of a slice is a number from 1 on; use the filter 'reverse' to turn it";
            step = found.ok_or_else(|| syntax(wrong))?;
            self.at += 1;
            if !self.is_operator("]") {
                return Err(syntax(wrong));
            }
        }
        self.expect("]")?;
        Ok(Post::Slice(Box::new(Slice { from, to, step })))
    }

    fn args(&mut self) -> Result<Args> {
        let (by_place, by_name) = self.given()?;
        Ok(Args::new(by_place, by_name))
    }

    /// The arguments by place and by name.
    fn given(&mut self) -> Result<Given> {
        self.expect("(")?;
        let (mut by_place, mut by_name) = (Vec::new(), Vec::new());
        while !self.takes(")") {
            let is_named = matches!(self.peek(), Some(Kind::Name(_)))
                && self.tokens.get(self.at + 1).map(|token| &token.kind) == Some(&Kind::Operator("="));
            if is_named {
                let name = self.name()?;
                self.expect("=")?;
                by_name.push((name.into(), self.expression()?));
            } else if by_name.is_empty() {
                by_place.push(self.expression()?);
            } else {
                return Err(syntax("an argument without a name follows one with a name"));
            }
            if !self.is_operator(")") {
                self.expect(",")?;
            }
        }
        Ok((by_place, by_name))
    }

    fn primary(&mut self) -> Result<Expr> {
        let Some(token) = self.tokens.get(self.at) else {
            return Err(self.unexpected("expression"));
        };
        self.at += 1;
        match &token.kind {
            Kind::Int(n) => Ok(Expr::Int(*n)),
            Kind::Float(n) => Ok(Expr::Float(*n)),
            Kind::Text(text) => {
                let mut whole = text.to_string();
                while let Some(Kind::Text(more)) = self.peek() {
                    whole.push_str(more);
                    self.at += 1;
                }
                Ok(Expr::Text(whole.into()))
            }
            Kind::Name("true" | "True") => Ok(Expr::Bool(true)),
            Kind::Name("false" | "False") => Ok(Expr::Bool(false)),
            Kind::Name("none" | "None") => Ok(Expr::None),
            Kind::Name(name) => {
                if !self.is_operator("(") {
                    return Ok(Expr::Name((*name).into(), token.at));
                }
                if *name != "range" {
                    return Err(syntax(format!("there is no function '{name}'")));
                }
                let (by_place, by_name) = self.given()?;
                if !by_name.is_empty() || !(1..=3).contains(&by_place.len()) {
                    return Err(syntax("'range' takes one to three numbers"));
                }
                Ok(Expr::Range(by_place.into()))
            }
            Kind::Operator("(") => self.parenthesis(),
            Kind::Operator("[") => Ok(Expr::List(self.list("]")?.into())),
            Kind::Operator("{") => self.map(),
            Kind::Operator(_) => {
                self.at -= 1;
                Err(self.unexpected("expression"))
            }
        }
    }

    fn parenthesis(&mut self) -> Result<Expr> {
        if self.takes(")") {
            return Ok(Expr::List(Box::default()));
        }
        let first = self.expression()?;
        if self.takes(")") {
            return Ok(first);
        }
        self.expect(",")?;
        let mut items = vec![first];
        items.extend(self.list(")")?);
        Ok(Expr::List(items.into()))
    }

    fn list(&mut self, close: &str) -> Result<Vec<Expr>> {
        let mut items = Vec::new();
        while !self.takes(close) {
            items.push(self.expression()?);
            if !self.is_operator(close) {
                self.expect(",")?;
            }
        }
        Ok(items)
    }

    fn map(&mut self) -> Result<Expr> {
        let mut fields = Vec::new();
        while !self.takes("}") {
            let name = self.expression()?;
            self.expect(":")?;
            fields.push((name, self.expression()?));
            if !self.is_operator("}") {
                self.expect(",")?;
            }
        }
        Ok(Expr::Map(fields.into()))
    }

    fn target(&mut self) -> Result<Target> {
        let mut parts = Vec::new();
        let mut is_tuple = false;
        while !self.is_name("in") && !self.is_operator(")") {
            parts.push(if self.takes("(") {
                let inner = self.deeper(Self::target)?;
                self.expect(")")?;
                inner
            } else {
                let name = self.name()?;
                if RESERVED.contains(&name) {
                    return Err(syntax(format!("'{name}' cannot be given to an item")));
                }
                Target::Name(name.into())
            });
            if !self.takes(",") {
                break;
            }
            is_tuple = true;
        }
        match (is_tuple, parts.len()) {
            (false, 1) => parts.pop().ok_or_else(|| syntax("'for' has no name")),
            (_, 0) => Err(syntax("'for' has no name")),
            _ => Ok(Target::Parts(parts.into())),
        }
    }
}

fn joined(first: Expr, mut rest: Vec<Expr>, join: impl FnOnce(Box<[Expr]>) -> Expr) -> Expr {
    if rest.is_empty() {
        return first;
    }
    rest.insert(0, first);
    join(rest.into())
}

fn followed(value: Expr, posts: Vec<Post>) -> Expr {
    if posts.is_empty() {
        return value;
    }
    Expr::Post(Box::new(value), posts.into())
}
