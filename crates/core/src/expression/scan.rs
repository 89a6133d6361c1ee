//! What a source says before minijinja sees it.
//!
//! Fuel counts instructions, not bytes, so a few of them could fill the memory. Here the constructs that carry a
//! value from one tag to the next are refused, unknown filters, tests and functions are named, and the names that
//! every tag uses are kept: without assignments a value is at most the sum of the names in its tag, and
//! [`Scan::check`] adds them up before anything is evaluated. Products are the exception: their operands are sent
//! through a filter that takes numbers only.

use std::collections::HashMap;

use super::{ExpressionError, MAX_OUTPUT};

/// The most that the names in one tag may come to.
const MAX_BUILT: usize = 16 * MAX_OUTPUT;

/// Filters of the language; those with `true` may return a value larger than what they are given.
pub(super) const FILTERS: [(&str, bool); 38] = [
    ("abs", false),
    ("attr", false),
    ("bool", false),
    ("capitalize", false),
    ("count", false),
    ("d", false),
    ("default", false),
    ("dictsort", false),
    ("first", false),
    ("float", false),
    ("indent", true),
    ("int", false),
    ("items", false),
    ("join", true),
    ("last", false),
    ("length", false),
    ("list", false),
    ("lower", false),
    ("map", false),
    ("max", false),
    ("min", false),
    ("number", false),
    ("reject", false),
    ("rejectattr", false),
    ("replace", true),
    ("reverse", false),
    ("round", false),
    ("select", false),
    ("selectattr", false),
    ("sort", false),
    ("split", false),
    ("string", false),
    ("sum", false),
    ("title", false),
    ("tojson", true),
    ("trim", false),
    ("unique", false),
    ("upper", false),
];

const TESTS: [&str; 30] = [
    "boolean",
    "defined",
    "divisibleby",
    "endingwith",
    "eq",
    "equalto",
    "even",
    "false",
    "float",
    "ge",
    "gt",
    "in",
    "int",
    "integer",
    "iterable",
    "le",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "startingwith",
    "string",
    "true",
    "undefined",
    "upper",
];

const FUNCTIONS: [&str; 1] = ["range"];
const KEYWORDS: [&str; 16] = [
    "and", "or", "not", "in", "is", "if", "else", "elif", "for", "true", "false", "none", "True", "False",
    "None", "loop",
];
const STATEMENTS: [&str; 6] = ["if", "elif", "else", "endif", "for", "endfor"];

/// A source with what a check needs to know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scan {
    /// The source as it is compiled.
    pub(super) source: String,
    tags: Vec<Tag>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Tag {
    /// Each use of a name.
    names: Vec<String>,
    /// Names a loop gives to what its tag builds.
    binds: Vec<String>,
    /// Whether it makes values rather than reading one.
    builds: bool,
    /// Filters in it whose results may be larger than what they are given.
    growing: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    Literal,
    Operator,
}

#[derive(Debug, Clone, Copy)]
struct Token<'s> {
    kind: Kind,
    text: &'s str,
    end: usize,
}

impl Token<'_> {
    fn is(self, operator: &str) -> bool {
        self.kind == Kind::Operator && self.text == operator
    }
}

impl Scan {
    pub(super) fn expression(source: &str) -> Result<Self, ExpressionError> {
        let (tokens, _) = lex(source, 0, None)?;
        let mut inserts = Vec::new();
        let tag = read(&tokens, &mut inserts)?;
        Ok(Self {
            source: with(source, &inserts),
            tags: vec![tag],
        })
    }

    pub(super) fn template(source: &str) -> Result<Self, ExpressionError> {
        let mut inserts = Vec::new();
        let mut tags = Vec::new();
        let mut at = 0;
        while let Some((start, marker)) = next_marker(source, at) {
            at = start + 2;
            if marker == b'#' {
                let end = source[at..]
                    .find("#}")
                    .ok_or_else(|| syntax("a comment does not end"))?;
                at += end + 2;
                continue;
            }
            if source[at..].starts_with(['-', '+']) {
                at += 1;
            }
            let end = if marker == b'%' { "%}" } else { "}}" };
            let (tokens, after) = lex(source, at, Some(end))?;
            at = after;
            if marker == b'{' {
                tags.push(read(&tokens, &mut inserts)?);
            } else {
                tags.push(statement(&tokens, &mut inserts)?);
            }
        }
        Ok(Self {
            source: with(source, &inserts),
            tags,
        })
    }

    /// Whether sizes matter at all.
    pub(super) fn builds(&self) -> bool {
        self.tags.iter().any(|tag| tag.builds)
    }

    /// Refuses an evaluation that could build too much.
    pub(super) fn check(&self, size_of: impl Fn(&str) -> usize) -> Result<(), ExpressionError> {
        let mut outside: HashMap<&str, usize> = HashMap::new();
        let mut bound: HashMap<&str, usize> = HashMap::new();
        for tag in &self.tags {
            let mut built = tag.growing.saturating_mul(MAX_OUTPUT);
            for name in &tag.names {
                let outer = *outside.entry(name).or_insert_with(|| size_of(name));
                let inner = bound.get(name.as_str()).copied().unwrap_or(0);
                built = built.saturating_add(outer.max(inner));
            }
            if tag.builds && built > MAX_BUILT {
                return Err(ExpressionError::TooLong(MAX_BUILT));
            }
            for name in &tag.binds {
                let inner = bound.entry(name).or_default();
                *inner = built.max(*inner);
            }
        }
        Ok(())
    }
}

fn statement(tokens: &[Token<'_>], inserts: &mut Vec<usize>) -> Result<Tag, ExpressionError> {
    let word = tokens.first().map_or("", |token| token.text);
    if !STATEMENTS.contains(&word) {
        return Err(syntax(&format!(
            "'{{% {word} %}}' is not offered: templates have if and for, and no assignments (use core.setVariable)"
        )));
    }
    if word != "for" {
        return read(&tokens[1..], inserts);
    }
    if tokens.iter().any(|token| token.text == "recursive") {
        return Err(syntax("'recursive' is not offered"));
    }
    let split = tokens
        .iter()
        .position(|token| token.kind == Kind::Word && token.text == "in")
        .ok_or_else(|| syntax("'for' has no 'in'"))?;
    let mut tag = read(&tokens[split + 1..], inserts)?;
    tag.binds = tokens[1..split]
        .iter()
        .filter(|token| token.kind == Kind::Word)
        .map(|token| token.text.to_owned())
        .collect();
    Ok(tag)
}

fn read(tokens: &[Token<'_>], inserts: &mut Vec<usize>) -> Result<Tag, ExpressionError> {
    check_slices(tokens)?;
    let mut tag = Tag::default();
    for (i, token) in tokens.iter().enumerate() {
        let before = i.checked_sub(1).and_then(|i| tokens.get(i));
        match token.kind {
            Kind::Literal => {}
            Kind::Operator => {
                tag.builds |= ["~", "+", "*", "[", "{", "(", "|"].contains(&token.text);
                if token.text == "*" {
                    inserts.extend(before.map(|before| before.end));
                    inserts.extend(operand_end(&tokens[i + 1..]));
                }
            }
            Kind::Word if before.is_some_and(|before| before.is(".")) => {}
            Kind::Word if before.is_some_and(|before| before.is("|")) => {
                let known = FILTERS.iter().find(|(name, _)| *name == token.text);
                match known {
                    Some((_, growing)) => tag.growing += usize::from(*growing),
                    None => return Err(syntax(&format!("there is no filter '{}'", token.text))),
                }
            }
            Kind::Word if is_test(&tokens[..i]) && token.text != "not" => {
                if !TESTS.contains(&token.text) {
                    return Err(syntax(&format!("there is no test '{}'", token.text)));
                }
            }
            Kind::Word if KEYWORDS.contains(&token.text) => {}
            Kind::Word => {
                let called = tokens.get(i + 1).is_some_and(|next| next.is("("));
                if called && !FUNCTIONS.contains(&token.text) {
                    return Err(syntax(&format!("there is no function '{}'", token.text)));
                }
                tag.names.push(token.text.to_owned());
            }
        }
    }
    Ok(tag)
}

/// Refuses steps of slices other than positive numbers: minijinja panics where nothing is sliced backwards.
fn check_slices(tokens: &[Token<'_>]) -> Result<(), ExpressionError> {
    // For each bracket that is open, where its colons are.
    let mut open: Vec<Vec<usize>> = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        if token.is("(") || token.is("[") || token.is("{") {
            open.push(Vec::new());
        } else if token.is(":") {
            open.last_mut().into_iter().for_each(|colons| colons.push(i));
        } else if token.is(")") || token.is("]") || token.is("}") {
            let colons = open.pop().unwrap_or_default();
            let step = match (token.text, colons.as_slice()) {
                ("]", [_, second]) => &tokens[second + 1..i],
                _ => continue,
            };
            let is_forward = match step {
                [] => true,
                [number] => number.text.parse::<u32>().is_ok_and(|step| step > 0),
                _ => false,
            };
            if !is_forward {
                return Err(syntax(
                    "the step of a slice is a number from 1 on; use the filter 'reverse' to turn it",
                ));
            }
        }
    }
    Ok(())
}

/// Whether a test's name follows.
fn is_test(before: &[Token<'_>]) -> bool {
    let word = |token: &Token<'_>, text| token.kind == Kind::Word && token.text == text;
    match before {
        [.., dot, last] if dot.is(".") && word(last, "is") => false,
        [.., last] if word(last, "is") => true,
        [.., is, not] => word(is, "is") && word(not, "not"),
        _ => false,
    }
}

/// Where the operand ends that the tokens begin with: a sign, a value, and what follows it closely.
fn operand_end(tokens: &[Token<'_>]) -> Option<usize> {
    let signs = tokens
        .iter()
        .take_while(|token| token.is("-") || token.is("+"))
        .count();
    let mut at = closing(tokens, signs)?;
    loop {
        match tokens.get(at + 1) {
            Some(next) if next.is(".") || next.is("|") => at += 2,
            Some(next) if next.is("(") || next.is("[") => at = closing(tokens, at + 1)?,
            _ => return tokens.get(at).map(|token| token.end),
        }
    }
}

/// The position at which what opens at a position is closed; the same where nothing opens.
fn closing(tokens: &[Token<'_>], at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (i, token) in tokens.iter().enumerate().skip(at) {
        if token.is("(") || token.is("[") || token.is("{") {
            depth += 1;
        } else if token.is(")") || token.is("]") || token.is("}") {
            depth = depth.checked_sub(1)?;
        }
        if depth == 0 {
            return Some(i);
        }
    }
    None
}

/// The source with the filter for numbers at the given places.
fn with(source: &str, inserts: &[usize]) -> String {
    let mut places = inserts.to_vec();
    places.sort_unstable();
    let mut out = String::with_capacity(source.len() + places.len() * 8);
    let mut from = 0;
    for place in places {
        out.push_str(&source[from..place]);
        out.push_str("|number");
        from = place;
    }
    out.push_str(&source[from..]);
    out
}

fn next_marker(source: &str, from: usize) -> Option<(usize, u8)> {
    let bytes = source.as_bytes();
    (from..bytes.len().saturating_sub(1))
        .find(|&i| bytes[i] == b'{' && matches!(bytes[i + 1], b'{' | b'%' | b'#'))
        .map(|i| (i, bytes[i + 1]))
}

/// The tokens up to the end of a tag, and where it ends.
fn lex<'s>(
    source: &'s str,
    from: usize,
    end: Option<&str>,
) -> Result<(Vec<Token<'s>>, usize), ExpressionError> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let mut at = from;
    let mut depth = 0_isize;
    while at < bytes.len() {
        let start = at;
        let byte = bytes[at];
        if byte.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        if let Some(end) = end.filter(|_| depth == 0) {
            let trimmed = usize::from(matches!(byte, b'-' | b'+'));
            if bytes[at + trimmed..].starts_with(end.as_bytes()) {
                return Ok((tokens, at + trimmed + end.len()));
            }
        }
        let kind = match byte {
            b'\'' | b'"' => {
                at += 1;
                loop {
                    match bytes.get(at) {
                        None => return Err(syntax("a text does not end")),
                        Some(b'\\') => at += 2,
                        Some(&other) => {
                            at += 1;
                            if other == byte {
                                break;
                            }
                        }
                    }
                }
                Kind::Literal
            }
            b'0'..=b'9' => {
                at = number_end(bytes, at);
                Kind::Literal
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                while bytes
                    .get(at)
                    .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
                {
                    at += 1;
                }
                Kind::Word
            }
            _ if !byte.is_ascii() => return Err(syntax("unexpected character")),
            _ => {
                let two = bytes.get(at..at + 2);
                at += if matches!(two, Some(b"**" | b"//" | b"==" | b"!=" | b"<=" | b">=")) {
                    2
                } else {
                    1
                };
                match byte {
                    b'(' | b'[' | b'{' => depth += 1,
                    b')' | b']' | b'}' => depth -= 1,
                    _ => {}
                }
                Kind::Operator
            }
        };
        let text = source
            .get(start..at)
            .ok_or_else(|| syntax("a text does not end"))?;
        tokens.push(Token { kind, text, end: at });
    }
    match end {
        Some(_) => Err(syntax("a tag does not end")),
        None => Ok((tokens, at)),
    }
}

fn number_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    while let Some(&byte) = bytes.get(at) {
        let signed = matches!(byte, b'+' | b'-')
            && matches!(bytes[at - 1], b'e' | b'E')
            && at > from
            && !bytes[from..at].contains(&b'x')
            && digit(at + 1);
        if byte.is_ascii_alphanumeric() || byte == b'_' || (byte == b'.' && digit(at + 1)) || signed {
            at += 1;
        } else {
            break;
        }
    }
    at
}

fn syntax(text: &str) -> ExpressionError {
    ExpressionError::Syntax(text.to_owned())
}
