//! The lexer: turns source text into a bounded number of tokens, without recursion.
//!
//! It checks length, number of tokens and nesting of brackets before anything is parsed.

use std::borrow::Cow;

use super::ExpressionError;

/// Maximum nesting of brackets, operators and blocks.
pub(super) const MAX_NESTING: usize = 50;
/// Maximum number of tokens in an expression.
pub(super) const MAX_EXPRESSION_TOKENS: usize = 4_096;
/// Maximum number of tokens and tags in a template.
pub(super) const MAX_TEMPLATE_TOKENS: usize = 16_384;

/// A token and its offset in the source.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token<'s> {
    pub(super) kind: Kind<'s>,
    pub(super) at: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind<'s> {
    Name(&'s str),
    Int(i128),
    Float(f64),
    Text(Cow<'s, str>),
    Operator(&'static str),
}

#[derive(Debug)]
pub(super) enum Part<'s> {
    Text(&'s str),
    Print(Vec<Token<'s>>),
    Statement(Vec<Token<'s>>),
}

const OPERATORS: [&str; 26] = [
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "|", ".", ",", ":", "(", ")", "[", "]",
    "{", "}", "<", ">", "=", "!",
];

pub(super) fn expression(source: &str) -> Result<Vec<Token<'_>>, ExpressionError> {
    let mut lexer = Lexer::new(source, MAX_EXPRESSION_TOKENS);
    lexer.tokens(None)
}

pub(super) fn template(source: &str) -> Result<Vec<Part<'_>>, ExpressionError> {
    let source = source.strip_suffix('\n').unwrap_or(source);
    let source = source.strip_suffix('\r').unwrap_or(source);
    let mut lexer = Lexer::new(source, MAX_TEMPLATE_TOKENS);
    let mut parts = Vec::new();
    let mut trims = false;
    loop {
        let found = marker(source, lexer.at);
        let end = found.map_or(source.len(), |(start, _)| start);
        let mut text = &source[lexer.at..end];
        if trims {
            text = text.trim_start();
        }
        let Some((start, marker)) = found else {
            push_text(&mut parts, text);
            return Ok(parts);
        };
        lexer.count()?;
        lexer.at = start + 2;
        let sign = source.as_bytes().get(lexer.at);
        if sign == Some(&b'-') {
            text = text.trim_end();
        }
        push_text(&mut parts, text);
        if marker == b'#' {
            let length = source[lexer.at..].find("#}");
            let length = length.ok_or_else(|| syntax("a comment does not end"))?;
            trims = source[lexer.at..lexer.at + length].ends_with('-');
            lexer.at += length + 2;
            continue;
        }
        if matches!(sign, Some(b'-' | b'+')) {
            lexer.at += 1;
        }
        let tokens = lexer.tokens(Some(if marker == b'%' { "%}" } else { "}}" }))?;
        trims = lexer.trims;
        parts.push(if marker == b'%' {
            Part::Statement(tokens)
        } else {
            Part::Print(tokens)
        });
    }
}

fn push_text<'s>(parts: &mut Vec<Part<'s>>, text: &'s str) {
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
}

fn marker(source: &str, from: usize) -> Option<(usize, u8)> {
    let bytes = source.as_bytes();
    (from..bytes.len().saturating_sub(1))
        .find(|&at| bytes[at] == b'{' && matches!(bytes[at + 1], b'{' | b'%' | b'#'))
        .map(|at| (at, bytes[at + 1]))
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    n_tokens: usize,
    most: usize,
    /// Whether the last tag trims the text after it.
    trims: bool,
}

impl<'s> Lexer<'s> {
    fn new(source: &'s str, most: usize) -> Self {
        Self {
            source,
            at: 0,
            n_tokens: 0,
            most,
            trims: false,
        }
    }

    fn count(&mut self) -> Result<(), ExpressionError> {
        self.n_tokens += 1;
        if self.n_tokens > self.most {
            return Err(syntax(format!("more than {} words and operators", self.most)));
        }
        Ok(())
    }

    /// The tokens up to the end of the source or of the current tag.
    fn tokens(&mut self, end: Option<&str>) -> Result<Vec<Token<'s>>, ExpressionError> {
        let mut tokens: Vec<Token<'s>> = Vec::new();
        let mut depth = 0_usize;
        loop {
            let rest = self.source[self.at..].trim_start();
            self.at = self.source.len() - rest.len();
            let Some(first) = rest.bytes().next() else {
                return match end {
                    Some("%}") => Err(syntax("unexpected end of input, expected end of block")),
                    Some(_) => Err(syntax("unexpected end of input, expected end of variable block")),
                    None => Ok(tokens),
                };
            };
            if let Some(end) = end.filter(|_| depth == 0) {
                let unsigned = rest.strip_prefix(['-', '+']).unwrap_or(rest);
                if unsigned.starts_with(end) {
                    self.trims = first == b'-';
                    self.at = self.source.len() - unsigned.len() + end.len();
                    return Ok(tokens);
                }
            }
            self.count()?;
            let at = self.at;
            let after_dot = tokens.last().is_some_and(|last| last.kind == Kind::Operator("."));
            let (kind, length) = match first {
                b'\'' | b'"' => text(rest, first)?,
                b'0'..=b'9' => number(rest, after_dot)?,
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                    let name = &rest[..end.unwrap_or(rest.len())];
                    (Kind::Name(name), name.len())
                }
                _ => {
                    let operator = OPERATORS.into_iter().find(|operator| rest.starts_with(operator));
                    let operator = operator.ok_or_else(|| syntax("unexpected character"))?;
                    (Kind::Operator(operator), operator.len())
                }
            };
            match kind {
                Kind::Operator("(" | "[" | "{") => depth += 1,
                Kind::Operator(")" | "]" | "}") => depth = depth.saturating_sub(1),
                Kind::Operator(_) | Kind::Name(_) | Kind::Int(_) | Kind::Float(_) | Kind::Text(_) => {}
            }
            if depth > MAX_NESTING {
                return Err(nested());
            }
            self.at += length;
            tokens.push(Token { kind, at });
        }
    }
}

pub(super) fn nested() -> ExpressionError {
    syntax(format!("it nests more than {MAX_NESTING} levels deep"))
}

fn text(source: &str, quote: u8) -> Result<(Kind<'_>, usize), ExpressionError> {
    let bytes = source.as_bytes();
    let mut at = 1;
    let mut has_escape = false;
    loop {
        match bytes.get(at) {
            None => return Err(syntax("a text does not end")),
            Some(b'\\') => {
                has_escape = true;
                at += 2;
            }
            Some(&byte) if byte == quote => break,
            Some(_) => at += 1,
        }
    }
    // An escape never ends inside a character: the whole character after the backslash is skipped.
    let inner = source.get(1..at).ok_or_else(|| syntax("a text does not end"))?;
    let text = if has_escape {
        Cow::Owned(unescape(inner)?)
    } else {
        Cow::Borrowed(inner)
    };
    Ok((Kind::Text(text), at + 1))
}

fn unescape(text: &str) -> Result<String, ExpressionError> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next().ok_or_else(|| syntax("a text does not end"))? {
            c @ ('"' | '\\' | '/' | '\'') => out.push(c),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'x' => out.push(char::from_u32(hex(&mut chars, 2)?).ok_or_else(bad_escape)?),
            'u' => {
                let mut code = hex(&mut chars, 4)?;
                if (0xd800..0xdc00).contains(&code) {
                    let low = match (chars.next(), chars.next()) {
                        (Some('\\'), Some('u')) => hex(&mut chars, 4)?,
                        _ => return Err(bad_escape()),
                    };
                    let low = low.checked_sub(0xdc00).filter(|low| *low < 0x400);
                    code = 0x1_0000 + ((code - 0xd800) << 10) + low.ok_or_else(bad_escape)?;
                }
                out.push(char::from_u32(code).ok_or_else(bad_escape)?);
            }
            digit @ '0'..='7' => {
                let mut code = digit.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    let Some(next) = chars.as_str().chars().next().and_then(|c| c.to_digit(8)) else {
                        break;
                    };
                    code = code * 8 + next;
                    chars.next();
                }
                let byte = u8::try_from(code).map_err(|_| bad_escape())?;
                out.push(char::from(byte));
            }
            other => {
                out.push('\\');
                out.push(other);
            }
        }
    }
    Ok(out)
}

fn hex(chars: &mut std::str::Chars<'_>, n: usize) -> Result<u32, ExpressionError> {
    let mut code = 0;
    for _ in 0..n {
        let digit = chars.next().and_then(|c| c.to_digit(16));
        code = code * 16 + digit.ok_or_else(bad_escape)?;
    }
    Ok(code)
}

fn bad_escape() -> ExpressionError {
    syntax("a text has an escape that does not exist")
}

fn number(source: &str, after_dot: bool) -> Result<(Kind<'_>, usize), ExpressionError> {
    let bytes = source.as_bytes();
    let radix = match bytes.get(..2) {
        Some(b"0b" | b"0B") => 2,
        Some(b"0o" | b"0O") => 8,
        Some(b"0x" | b"0X") => 16,
        _ => 10,
    };
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = if radix == 10 { 0 } else { 2 };
    let start = at;
    let mut is_float = false;
    let mut has_exponent = false;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'_' => at += 1,
            _ if radix != 10 && byte.is_ascii_hexdigit() => at += 1,
            b'0'..=b'9' => at += 1,
            b'.' if radix == 10 && !is_float && !after_dot && digit(at + 1) => {
                is_float = true;
                at += 1;
            }
            b'e' | b'E' if radix == 10 && !has_exponent && !after_dot => {
                let signed = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
                if !digit(at + 1 + signed) {
                    break;
                }
                is_float = true;
                has_exponent = true;
                at += 1 + signed;
            }
            _ => break,
        }
    }
    let digits: Cow<'_, str> = if source[start..at].contains('_') {
        source[start..at].replace('_', "").into()
    } else {
        source[start..at].into()
    };
    let kind = if is_float {
        digits.parse().ok().map(Kind::Float)
    } else {
        i128::from_str_radix(&digits, radix).ok().map(Kind::Int)
    };
    let kind = kind.ok_or_else(|| syntax("a number is not in range"))?;
    if bytes.get(at).is_some_and(u8::is_ascii_alphanumeric) {
        return Err(syntax("a number ends in a letter"));
    }
    Ok((kind, at))
}

pub(super) fn syntax(text: impl Into<String>) -> ExpressionError {
    ExpressionError::Syntax(text.into())
}
