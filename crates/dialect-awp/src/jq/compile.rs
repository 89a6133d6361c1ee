//! Compiles the text of a filter: bounds it, parses it with `jaq-core`, and resolves its names.
//!
//! The file is long because it follows the parsed tree, one kind of syntax after another.

use jaq_core::load::{
    lex::{Lexer, StrPart, Tok, Token},
    parse::{BinaryOp, Def, Parser, Pattern as SyntaxPattern, Term as Syntax},
};
use jaq_core::path;
use serde_json::Value;

use super::{
    JqError, MAX_BRACKETS, MAX_NESTING_WORDS, MAX_SOURCE,
    alternatives::{self, MARK},
    builtins::Builtin,
    formats, math, numbers,
    pattern::{self, Flags},
    prelude::DEFINITIONS,
    search::Kind,
    term::{Alternatives, Change, Fold, FoldKind, Format, Hop, Part, Pattern, Piece, Program, Term},
};

/// Words and signs that nest what follows, one level each, up to the end of their brackets.
const NESTING_WORDS: [&str; 10] = [
    "try", "catch", "def", "if", "elif", "label", "reduce", "foreach", "as", "|",
];
/// Operators that nest what is beside them, up to the next comma.
const OPERATORS: [&str; 22] = [
    "and", "or", "//", "=", "|=", "+=", "-=", "*=", "/=", "%=", "//=", "+", "-", "*", "/", "%", "==", "!=",
    "<", "<=", ">", ">=",
];
/// Maximum number of filters between commas, of parts in a path, of variables in a pattern and of arguments.
const MAX_LIST: usize = 1_000;
const MAX_PARTS: usize = 50;
/// Bytes that an allocation takes besides what is in it, and what small ones leave unused.
const ALLOCATION: usize = 32;
/// Bytes of what `$__loc__` stands for.
const LOCATION: usize = 700;
/// Bytes of a part of a path besides its term.
const HOP: usize = size_of::<Hop>() - size_of::<Term>();

pub(super) fn program(source: &str) -> Result<Program, JqError> {
    bounded(source)?;
    let tokens = lex(source)?;
    if commas(&tokens) > MAX_LIST {
        return Err(JqError::TooLarge {
            what: "commas between two brackets",
            limit: MAX_LIST,
        });
    }
    if nesting(&tokens, "") > MAX_NESTING_WORDS {
        return Err(JqError::TooLarge {
            what: "pipes, definitions and other words that nest",
            limit: MAX_NESTING_WORDS,
        });
    }
    let tokens = alternatives::grouped(tokens);
    let main = parse(&tokens, Parser::term)?;
    let mut compiler = Compiler {
        source,
        ..Compiler::default()
    };
    let main = compiler.term(main)?;
    Ok(Program {
        functions: compiler.functions,
        main,
        n_bytes: compiler.n_bytes,
    })
}

/// Bounds what the lexer, which is recursive, gets to see. Brackets in texts and comments count, too.
fn bounded(source: &str) -> Result<(), JqError> {
    if source.len() > MAX_SOURCE {
        return Err(JqError::TooLarge {
            what: "bytes",
            limit: MAX_SOURCE,
        });
    }
    let (mut depth, mut most) = (0_usize, 0);
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    if most > MAX_BRACKETS {
        return Err(JqError::TooLarge {
            what: "levels of brackets",
            limit: MAX_BRACKETS,
        });
    }
    Ok(())
}

fn lex(source: &str) -> Result<Vec<Token<&str>>, JqError> {
    Lexer::new(source).lex().map_err(|errors| {
        let first = errors.first();
        JqError::Syntax(first.map_or_else(
            || "it cannot be read".to_owned(),
            |(expected, rest)| format!("{} is expected at '{}'", expected.as_str(), clipped(rest)),
        ))
    })
}

fn parse<'s, 't, T: Default>(
    tokens: &'t [Token<&'s str>],
    rule: impl FnOnce(&mut Parser<'s, 't>) -> jaq_core::load::parse::Result<'s, 't, T>,
) -> Result<T, JqError> {
    Parser::new(tokens).parse(rule).map_err(|errors| {
        let first = errors.first();
        JqError::Syntax(first.map_or_else(
            || "it cannot be read".to_owned(),
            |(expected, found)| {
                let found = found.map_or("the end", |token| token.as_str());
                format!("{} is expected at '{}'", expected.as_str(), clipped(found))
            },
        ))
    })
}

fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(40)]
}

/// How many words and signs that nest what follows them are around any part of the tokens. In an object, and in the
/// arguments of a call, each entry nests by itself.
fn nesting(tokens: &[Token<&str>], separator: &str) -> usize {
    let (mut words, mut operators, mut most) = (0, 0, 0);
    for Token(text, token) in tokens {
        let inner = match token {
            Tok::Block(tokens) => match text.as_bytes().first() {
                Some(b'{') => nesting(tokens, ","),
                _ => nesting(tokens, ";"),
            },
            Tok::Str(parts) => {
                let terms = parts.iter().map(|part| match part {
                    StrPart::Term(Token(_, Tok::Block(tokens))) => nesting(tokens, ""),
                    StrPart::Term(_) | StrPart::Str(_) | StrPart::Char(_) => 0,
                });
                terms.max().unwrap_or(0)
            }
            Tok::Word | Tok::Sym => {
                if *text == separator {
                    words = 0;
                }
                if *text == separator || *text == "," {
                    operators = 0;
                }
                words += usize::from(NESTING_WORDS.contains(text));
                operators += usize::from(OPERATORS.contains(text));
                0
            }
            Tok::Var | Tok::Fmt | Tok::Num => 0,
        };
        most = most.max(words + operators + inner);
    }
    most
}

/// The most commas between two brackets, except for those of objects, whose entries do not nest.
fn commas(tokens: &[Token<&str>]) -> usize {
    let own = tokens.iter().filter(|Token(text, _)| *text == ",").count();
    let inner = tokens.iter().map(|Token(text, token)| match token {
        Tok::Block(tokens) if text.starts_with('{') => {
            let entries = tokens.iter().map(|token| commas(std::slice::from_ref(token)));
            entries.max().unwrap_or(0)
        }
        Tok::Block(tokens) => commas(tokens),
        Tok::Str(parts) => {
            let terms = parts.iter().map(|part| match part {
                StrPart::Term(Token(_, Tok::Block(tokens))) => commas(tokens),
                StrPart::Term(_) | StrPart::Str(_) | StrPart::Char(_) => 0,
            });
            terms.max().unwrap_or(0)
        }
        Tok::Word | Tok::Sym | Tok::Var | Tok::Fmt | Tok::Num => 0,
    });
    own.max(inner.max().unwrap_or(0))
}

/// A name that is visible at some place in a filter.
enum Name<'s> {
    Variable {
        name: &'s str,
        level: usize,
    },
    Label {
        name: &'s str,
        level: usize,
    },
    Argument {
        name: &'s str,
        level: usize,
    },
    Function {
        name: &'s str,
        n_arguments: usize,
        function: usize,
        level: usize,
    },
}

impl<'s> Name<'s> {
    fn variable(&self) -> Option<&'s str> {
        match self {
            Self::Variable { name, .. } => Some(name),
            Self::Label { .. } | Self::Argument { .. } | Self::Function { .. } => None,
        }
    }
}

#[derive(Default)]
struct Compiler<'s> {
    /// The text of the filter.
    source: &'s str,
    functions: Vec<Term>,
    /// The innermost last.
    names: Vec<Name<'s>>,
    /// How many levels the environment has.
    level: usize,
    /// The definitions that are being compiled.
    under_way: Vec<(&'s str, usize)>,
    /// Those of the prelude that were compiled.
    prelude: Vec<(&'static str, usize, usize)>,
    /// The memory of what was compiled.
    n_bytes: usize,
}

type Compiled<T> = Result<T, JqError>;

impl<'s> Compiler<'s> {
    fn boxed(&mut self, syntax: Syntax<&'s str>) -> Compiled<Box<Term>> {
        self.term(syntax).map(Box::new)
    }

    fn term(&mut self, syntax: Syntax<&'s str>) -> Compiled<Term> {
        self.n_bytes += size_of::<Term>() + ALLOCATION;
        Ok(match syntax {
            Syntax::Id => Term::Identity,
            Syntax::Recurse => Term::Recurse,
            Syntax::Num(text) => Term::Literal(number(text)?),
            Syntax::Str(format, parts) => self.text(format, parts)?,
            Syntax::Arr(None) => Term::List(None),
            Syntax::Arr(Some(inner)) => Term::List(Some(self.boxed(*inner)?)),
            Syntax::Obj(entries) => self.object(entries)?,
            Syntax::Neg(inner) => Term::Negate(self.boxed(*inner)?),
            Syntax::BinOp(left, op, right) => self.binary(*left, op, *right)?,
            Syntax::Label(name, inner) => {
                let level = self.level;
                self.scoped(vec![Name::Label { name, level }], 1, |compiler| {
                    Ok(Term::Label(compiler.boxed(*inner)?))
                })?
            }
            Syntax::Break(name) => {
                let found = self.names.iter().rev().find_map(|known| match known {
                    Name::Label { name: known, level } if *known == name => Some(*level),
                    Name::Label { .. }
                    | Name::Variable { .. }
                    | Name::Argument { .. }
                    | Name::Function { .. } => None,
                });
                let level = found.ok_or_else(|| unknown(&format!("the label {name} is not defined")))?;
                Term::Break { level }
            }
            Syntax::Fold(word, source, pattern, arguments) => self.fold(word, *source, pattern, arguments)?,
            Syntax::TryCatch(tried, caught) => {
                let tried = self.boxed(*tried)?;
                Term::Try(tried, caught.map(|caught| self.boxed(*caught)).transpose()?)
            }
            Syntax::IfThenElse(cases, otherwise) => {
                let cases = cases
                    .into_iter()
                    .map(|(test, then)| Ok((self.term(test)?, self.term(then)?)))
                    .collect::<Compiled<Box<[_]>>>()?;
                Term::If(cases, otherwise.map(|term| self.boxed(*term)).transpose()?)
            }
            Syntax::Def(definitions, inner) => self.definitions(definitions, *inner)?,
            Syntax::Call(name, arguments) => self.call(name, arguments)?,
            Syntax::Var(name) => self.variable(name)?,
            Syntax::Path(head, path) => {
                let head = self.boxed(*head)?;
                Term::Path(head, self.hops(path)?)
            }
        })
    }

    /// Compiles with more names, and `n_levels` more levels in the environment.
    fn scoped<T>(
        &mut self,
        names: Vec<Name<'s>>,
        n_levels: usize,
        compile: impl FnOnce(&mut Self) -> Compiled<T>,
    ) -> Compiled<T> {
        let n_names = self.names.len();
        self.names.extend(names);
        self.level += n_levels;
        let compiled = compile(self);
        self.level -= n_levels;
        self.names.truncate(n_names);
        compiled
    }

    fn binary(
        &mut self,
        left: Syntax<&'s str>,
        op: BinaryOp<&'s str>,
        right: Syntax<&'s str>,
    ) -> Compiled<Term> {
        if let BinaryOp::Comma = op {
            return self.list(left, right);
        }
        let left = self.boxed(left)?;
        if let BinaryOp::Pipe(Some(pattern)) = op {
            let (pattern, names) = self.pattern(pattern)?;
            let n_levels = pattern.n_variables();
            return self.scoped(names, n_levels, |compiler| {
                Ok(Term::Bind(left, pattern, compiler.boxed(right)?))
            });
        }
        let right = self.boxed(right)?;
        Ok(match op {
            // Both were handled above.
            BinaryOp::Pipe(_) | BinaryOp::Comma => Term::Pipe(left, right),
            BinaryOp::Alt => Term::Alternative(left, right),
            BinaryOp::Or => Term::Or(left, right),
            BinaryOp::And => Term::And(left, right),
            BinaryOp::Math(op) => Term::Math(op, left, right),
            BinaryOp::Cmp(op) => Term::Compare(op, left, right),
            BinaryOp::Assign => Term::Assign(left, Change::Set, right),
            BinaryOp::Update => Term::Assign(left, Change::Update, right),
            BinaryOp::UpdateMath(op) => Term::Assign(left, Change::Math(op), right),
            BinaryOp::UpdateAlt => Term::Assign(left, Change::Alternative, right),
        })
    }

    /// Compiles filters between commas, which the parser nests to the left, without recursion.
    fn list(&mut self, left: Syntax<&'s str>, right: Syntax<&'s str>) -> Compiled<Term> {
        let mut items = vec![right];
        let mut rest = left;
        loop {
            match rest {
                Syntax::BinOp(before, BinaryOp::Comma, last) => {
                    items.push(*last);
                    rest = *before;
                }
                first => {
                    items.push(first);
                    break;
                }
            }
        }
        let items = items.into_iter().rev().map(|item| self.term(item));
        items.collect::<Compiled<_>>().map(Term::Comma)
    }

    fn text(
        &mut self,
        format: Option<&'s str>,
        parts: Vec<StrPart<&'s str, Syntax<&'s str>>>,
    ) -> Compiled<Term> {
        let format = format.map_or(Ok(Format::Text), format_of)?;
        let mut pieces: Vec<Piece> = Vec::new();
        for part in parts {
            let more = match part {
                StrPart::Str(text) => text.to_owned(),
                StrPart::Char(c) => c.to_string(),
                StrPart::Term(term) => {
                    pieces.push(Piece::Term(self.term(term)?));
                    continue;
                }
            };
            match pieces.last_mut() {
                Some(Piece::Text(text)) => text.push_str(&more),
                Some(Piece::Term(_)) | None => pieces.push(Piece::Text(more)),
            }
        }
        let each = pieces.iter().map(|piece| match piece {
            Piece::Text(text) => ALLOCATION + text.capacity(),
            Piece::Term(_) => 0,
        });
        self.n_bytes += each.sum::<usize>();
        Ok(match pieces.as_mut_slice() {
            [] => Term::Literal(Value::String(String::new())),
            [Piece::Text(text)] => Term::Literal(Value::String(std::mem::take(text))),
            _ => {
                self.n_bytes += pieces.len() * size_of::<Piece>();
                Term::Text(format, pieces.into())
            }
        })
    }

    fn object(&mut self, entries: Vec<(Syntax<&'s str>, Option<Syntax<&'s str>>)>) -> Compiled<Term> {
        let entries = entries.into_iter().map(|(name, value)| {
            // `{$x}` is `{x: $x}`, and `{a}` is `{a: .a}`.
            if let (Syntax::Var(variable), None) = (&name, &value) {
                self.n_bytes += 2 * (size_of::<Term>() + ALLOCATION) + variable.len();
                let short = Value::String(variable.trim_start_matches('$').to_owned());
                return Ok((Term::Literal(short), self.variable(variable)?));
            }
            let shared = value.is_none().then(|| name.clone());
            let name = self.term(name)?;
            let value = match (value, shared) {
                (Some(value), _) => self.term(value)?,
                (None, shared) => {
                    let index = self.term(shared.unwrap_or_default())?;
                    let hop = Hop {
                        part: Part::Index(index),
                        is_optional: false,
                    };
                    self.n_bytes += 2 * (size_of::<Term>() + ALLOCATION) + HOP;
                    Term::Path(Box::new(Term::Identity), Box::new([hop]))
                }
            };
            Ok((name, value))
        });
        entries.collect::<Compiled<_>>().map(Term::Object)
    }

    fn fold(
        &mut self,
        word: &str,
        source: Syntax<&'s str>,
        pattern: SyntaxPattern<&'s str>,
        arguments: Vec<Syntax<&'s str>>,
    ) -> Compiled<Term> {
        let n_arguments = arguments.len();
        let mut arguments = arguments.into_iter();
        let (Some(init), Some(update), extract) = (arguments.next(), arguments.next(), arguments.next())
        else {
            return Err(JqError::Syntax(format!(
                "{word} needs an initial value and an update"
            )));
        };
        if n_arguments > 3 || (word == "reduce" && extract.is_some()) {
            return Err(JqError::Syntax(format!("{word} has too many arguments")));
        }
        let source = self.term(source)?;
        let init = self.term(init)?;
        let (pattern, names) = self.pattern(pattern)?;
        let n_levels = pattern.n_variables();
        self.scoped(names, n_levels, |compiler| {
            let update = compiler.term(update)?;
            let extract = extract.map(|extract| compiler.term(extract)).transpose()?;
            let kind = match word {
                "reduce" => FoldKind::Reduce,
                _ => FoldKind::Foreach(extract),
            };
            Ok(Term::Fold(Box::new(Fold {
                source,
                pattern,
                init,
                update,
                kind,
            })))
        })
    }

    /// Compiles a pattern; the names that it binds are at the levels from the current one on.
    fn pattern(&mut self, syntax: SyntaxPattern<&'s str>) -> Compiled<(Pattern, Vec<Name<'s>>)> {
        let mut names = Vec::new();
        let pattern = match syntax {
            SyntaxPattern::Arr(patterns) if matches!(patterns.first(), Some(SyntaxPattern::Var(name)) if *name == MARK) => {
                self.alternatives(patterns.into_iter().skip(1), &mut names)?
            }
            syntax => self.pattern_part(syntax, &mut names)?,
        };
        few(names.len(), "variables of a pattern")?;
        Ok((pattern, names))
    }

    /// Compiles `p ?// q`, which binds the variables of all of its patterns.
    fn alternatives(
        &mut self,
        patterns: impl Iterator<Item = SyntaxPattern<&'s str>>,
        names: &mut Vec<Name<'s>>,
    ) -> Compiled<Pattern> {
        let mut compiled = Vec::new();
        let mut all: Vec<&'s str> = Vec::new();
        for pattern in patterns {
            let mut own = Vec::new();
            let pattern = self.pattern_part(pattern, &mut own)?;
            let own: Vec<_> = own.iter().filter_map(Name::variable).collect();
            for name in &own {
                if !all.contains(name) {
                    all.push(name);
                }
            }
            few(all.len(), "variables of a pattern")?;
            compiled.push((pattern, own));
        }
        few(compiled.len(), "patterns between ?//")?;
        self.n_bytes +=
            compiled.len() * (size_of::<Pattern>() + ALLOCATION + all.len() * size_of::<Option<usize>>());
        names.extend(all.iter().enumerate().map(|(n, name)| Name::Variable {
            name,
            level: self.level + n,
        }));
        let placed = compiled.into_iter().map(|(pattern, own)| {
            let places = all.iter().map(|name| own.iter().rposition(|own| own == name));
            (pattern, places.collect())
        });
        Ok(Pattern::Alternatives(Alternatives {
            n_variables: all.len(),
            patterns: placed.collect(),
        }))
    }

    fn pattern_part(
        &mut self,
        syntax: SyntaxPattern<&'s str>,
        names: &mut Vec<Name<'s>>,
    ) -> Compiled<Pattern> {
        self.n_bytes += size_of::<(Term, Pattern)>();
        Ok(match syntax {
            SyntaxPattern::Var(name) => {
                let level = self.level + names.len();
                names.push(Name::Variable { name, level });
                Pattern::Variable
            }
            SyntaxPattern::Arr(parts) => {
                let parts = parts.into_iter().map(|part| self.pattern_part(part, names));
                Pattern::List(parts.collect::<Compiled<_>>()?)
            }
            SyntaxPattern::Obj(parts) => {
                let parts = parts.into_iter().map(|(name, part)| {
                    // The names are read outside the pattern: none of its variables is bound yet.
                    let name = self.term(name)?;
                    Ok((name, self.pattern_part(part, names)?))
                });
                Pattern::Object(parts.collect::<Compiled<_>>()?)
            }
        })
    }

    fn definitions(&mut self, definitions: Vec<Def<&'s str>>, inner: Syntax<&'s str>) -> Compiled<Term> {
        let n_names = self.names.len();
        for definition in definitions {
            let (name, n_arguments) = (definition.name, definition.args.len());
            let level = self.level;
            let function = self.definition(definition)?;
            self.names.push(Name::Function {
                name,
                n_arguments,
                function,
                level,
            });
        }
        let term = self.term(inner);
        self.names.truncate(n_names);
        term
    }

    /// Compiles the body of a definition, which sees its arguments as filters.
    fn definition(&mut self, definition: Def<&'s str>) -> Compiled<usize> {
        let Def { name, args, body } = definition;
        few(args.len(), "arguments of a definition")?;
        let level = self.level;
        let arguments = args.iter().enumerate();
        let mut names: Vec<_> = arguments
            .map(|(n, argument)| Name::Argument {
                name: argument.trim_start_matches('$'),
                level: level + n,
            })
            .collect();
        // `def f($x): …` is `def f(x): x as $x | …`.
        let variables: Vec<_> = args
            .iter()
            .enumerate()
            .filter(|(_, name)| name.starts_with('$'))
            .collect();
        for (n, (_, variable)) in variables.iter().enumerate() {
            names.push(Name::Variable {
                name: variable,
                level: level + args.len() + n,
            });
        }
        let n_levels = args.len() + variables.len();
        self.under_way.push((name, args.len()));
        let body = self.scoped(names, n_levels, |compiler| compiler.term(body));
        self.under_way.pop();
        let mut body = body?;
        for (n, _) in variables.into_iter().rev() {
            let argument = Term::Argument { level: level + n };
            body = Term::Bind(Box::new(argument), Pattern::Variable, Box::new(body));
        }
        self.functions.push(body);
        Ok(self.functions.len() - 1)
    }

    fn variable(&mut self, name: &'s str) -> Compiled<Term> {
        let found = self.names.iter().rev().find_map(|known| match known {
            Name::Variable { name: known, level } if *known == name => Some(*level),
            Name::Variable { .. } | Name::Label { .. } | Name::Argument { .. } | Name::Function { .. } => {
                None
            }
        });
        match (found, name) {
            (Some(level), _) => Ok(Term::Variable { level }),
            (None, "$__loc__") => {
                // The name is a part of the text.
                let at = (name.as_ptr() as usize).saturating_sub(self.source.as_ptr() as usize);
                let before = self.source.get(..at).unwrap_or_default();
                let line = before.matches('\n').count() + 1;
                self.n_bytes += LOCATION;
                Ok(Term::Literal(
                    serde_json::json!({ "file": "<top-level>", "line": line }),
                ))
            }
            (None, "$ENV") => Err(unknown(
                "$ENV is not offered: a filter reads the state document alone",
            )),
            (None, _) => Err(unknown(&format!("the variable {name} is not defined"))),
        }
    }

    fn call(&mut self, name: &'s str, arguments: Vec<Syntax<&'s str>>) -> Compiled<Term> {
        let n_arguments = arguments.len();
        enum Found {
            Argument(usize),
            Function(usize, usize),
        }
        let found = self.names.iter().rev().find_map(|known| match known {
            Name::Argument { name: known, level } if *known == name && n_arguments == 0 => {
                Some(Found::Argument(*level))
            }
            Name::Function {
                name: known,
                n_arguments: expected,
                function,
                level,
            } if *known == name && *expected == n_arguments => Some(Found::Function(*function, *level)),
            Name::Argument { .. } | Name::Function { .. } | Name::Variable { .. } | Name::Label { .. } => {
                None
            }
        });
        if found.is_none() && self.under_way.contains(&(name, n_arguments)) {
            return Err(unknown(&format!(
                "{name}/{n_arguments} calls itself; use recurse, until, while or repeat"
            )));
        }
        if let Some(Found::Argument(level)) = found {
            return Ok(Term::Argument { level });
        }
        let arguments = arguments
            .into_iter()
            .map(|argument| self.term(argument))
            .collect::<Compiled<Box<[_]>>>()?;
        if let Some(Found::Function(function, level)) = found {
            return Ok(Term::Call {
                function,
                level,
                arguments,
            });
        }
        match (name, n_arguments) {
            ("true", 0) => return Ok(Term::Literal(Value::Bool(true))),
            ("false", 0) => return Ok(Term::Literal(Value::Bool(false))),
            ("null", 0) => return Ok(Term::Literal(Value::Null)),
            _ => {}
        }
        if let Some(builtin) = Builtin::find(name, n_arguments) {
            return Ok(Term::Builtin(builtin, arguments));
        }
        if let Some(function) = numbers::find(name, n_arguments) {
            return Ok(Term::Number(function, arguments));
        }
        if let Some(search) = search(name, &arguments)? {
            return Ok(search(arguments));
        }
        if name.starts_with('@') {
            return Ok(Term::Text(
                format_of(name)?,
                Box::new([Piece::Term(Term::Identity)]),
            ));
        }
        let known = DEFINITIONS
            .iter()
            .find(|(known, expected, _)| *known == name && *expected == n_arguments);
        let Some((known, _, source)) = known else {
            return Err(unknown(&format!("{name}/{n_arguments} is not offered")));
        };
        let function = self.of_prelude(known, n_arguments, source)?;
        Ok(Term::Call {
            function,
            level: 0,
            arguments,
        })
    }

    /// Compiles a definition of the prelude, which sees nothing of the filter that uses it.
    fn of_prelude(
        &mut self,
        name: &'static str,
        n_arguments: usize,
        source: &'static str,
    ) -> Compiled<usize> {
        let is_same =
            |(known, expected, _): &&(&str, usize, usize)| *known == name && *expected == n_arguments;
        if let Some((_, _, function)) = self.prelude.iter().find(is_same) {
            return Ok(*function);
        }
        let tokens = lex(source)?;
        let mut definitions = parse(&tokens, Parser::defs)?;
        let Some(definition) = definitions.pop() else {
            return Err(unknown(name));
        };
        let mut apart = Compiler {
            functions: std::mem::take(&mut self.functions),
            prelude: std::mem::take(&mut self.prelude),
            ..Compiler::default()
        };
        let function = apart.definition(definition);
        self.n_bytes += apart.n_bytes;
        self.functions = apart.functions;
        self.prelude = apart.prelude;
        let function = function?;
        self.prelude.push((name, n_arguments, function));
        Ok(function)
    }

    fn hops(&mut self, path: path::Path<Syntax<&'s str>>) -> Compiled<Box<[Hop]>> {
        few(path.0.len(), "parts of a path")?;
        self.n_bytes += ALLOCATION + path.0.len() * HOP;
        // Of the right size from the start: there are many small ones.
        let mut hops = Vec::with_capacity(path.0.len());
        for (part, optional) in path.0 {
            let part = match part {
                path::Part::Index(index) => Part::Index(self.term(index)?),
                path::Part::Range(None, None) => Part::Each,
                path::Part::Range(from, to) => {
                    let from = from.map(|from| self.term(from)).transpose()?;
                    let to = to.map(|to| self.term(to)).transpose()?;
                    self.n_bytes += ALLOCATION + size_of::<(Option<Term>, Option<Term>)>();
                    Part::Slice(Box::new((from, to)))
                }
            };
            hops.push(Hop {
                part,
                is_optional: matches!(optional, path::Opt::Optional),
            });
        }
        Ok(hops.into_boxed_slice())
    }
}

fn few(n: usize, what: &'static str) -> Compiled<()> {
    match n > MAX_PARTS {
        true => Err(JqError::TooLarge {
            what,
            limit: MAX_PARTS,
        }),
        false => Ok(()),
    }
}

fn unknown(what: &str) -> JqError {
    JqError::Unknown(what.to_owned())
}

fn format_of(name: &str) -> Compiled<Format> {
    let format = name.strip_prefix('@').and_then(formats::find);
    format.ok_or_else(|| unknown(&format!("the format {name} is not offered")))
}

/// Makes a term of its arguments.
type Make = fn(Box<[Term]>) -> Term;

/// How a filter that searches for a pattern is made of its arguments, if the name is that of one. A pattern that is
/// written out is checked.
fn search(name: &str, arguments: &[Term]) -> Compiled<Option<Make>> {
    let make: Make = match (name, arguments.len()) {
        ("match", 1 | 2) => |arguments| Term::Search(Kind::Match, arguments),
        ("test", 1 | 2) => |arguments| Term::Search(Kind::Test, arguments),
        ("capture", 1 | 2) => |arguments| Term::Search(Kind::Capture, arguments),
        ("scan", 1 | 2) => |arguments| Term::Search(Kind::Scan, arguments),
        ("split", 2) => |arguments| Term::Search(Kind::Split, arguments),
        ("splits", 1 | 2) => |arguments| Term::Search(Kind::Splits, arguments),
        ("sub", 2 | 3) => |arguments| Term::Substitute {
            is_global: false,
            arguments,
        },
        ("gsub", 2 | 3) => |arguments| Term::Substitute {
            is_global: true,
            arguments,
        },
        _ => return Ok(None),
    };
    let flags = match (name, arguments) {
        ("sub" | "gsub", [_, _, flags]) => Some(flags),
        ("sub" | "gsub", _) => None,
        (_, [_, flags]) => Some(flags),
        _ => None,
    };
    let flags = match flags {
        None | Some(Term::Literal(Value::Null)) => Some(Flags::default()),
        Some(Term::Literal(Value::String(flags))) => match Flags::parse(flags) {
            Some(flags) => Some(flags),
            None => return Err(unknown(&format!("{name}: '{}' are no flags", clipped(flags)))),
        },
        Some(_) => None,
    };
    if let (Some(Term::Literal(Value::String(source))), Some(flags)) = (arguments.first(), flags) {
        pattern::check(source, flags).map_err(|wrong| unknown(&format!("the pattern of {name}: {wrong}")))?;
    }
    Ok(Some(make))
}

fn number(text: &str) -> Compiled<Value> {
    let n: f64 = text
        .parse()
        .map_err(|_| JqError::Syntax(format!("'{}' is no number", clipped(text))))?;
    Ok(math::number(n))
}
