//! `p ?// q`: patterns of which one is enough.
//!
//! The parser does not know them. So they are put into one list of patterns before it reads the filter, with a mark
//! that no filter can write.

use jaq_core::load::lex::{StrPart, Tok, Token};

/// Stands first in a list of alternatives. A variable of this name cannot be written.
pub(super) const MARK: &str = "$?//";

/// The same tokens, with each `p ?// q` as one pattern.
pub(super) fn grouped(tokens: Vec<Token<&str>>) -> Vec<Token<&str>> {
    let mut grouped = Vec::with_capacity(tokens.len());
    let mut rest = tokens.into_iter().map(inside).peekable();
    while let Some(token) = rest.next() {
        let is_binding = token.0 == "as" && matches!(token.1, Tok::Word);
        grouped.push(token);
        if !is_binding {
            continue;
        }
        let mut patterns: Vec<_> = rest.next_if(is_pattern).into_iter().collect();
        while !patterns.is_empty() && rest.next_if(|token| token.0 == "?").is_some() {
            let is_followed = rest.next_if(|token| token.0 == "//").is_some();
            match rest.next_if(|token| is_followed && is_pattern(token)) {
                Some(pattern) => patterns.push(pattern),
                None => {
                    // The parser says that a pattern is missing here.
                    patterns.push(Token("?//", Tok::Sym));
                    break;
                }
            }
        }
        match patterns.len() {
            0 | 1 => grouped.extend(patterns),
            _ => {
                let mut list = vec![Token(MARK, Tok::Var)];
                for pattern in patterns {
                    list.push(Token(",", Tok::Sym));
                    list.push(pattern);
                }
                list.push(Token("]", Tok::Sym));
                grouped.push(Token("[?//]", Tok::Block(list)));
            }
        }
    }
    grouped
}

const fn is_pattern(token: &Token<&str>) -> bool {
    matches!(token.1, Tok::Var | Tok::Block(_))
}

/// The same token, with what is inside it grouped.
fn inside(Token(text, token): Token<&str>) -> Token<&str> {
    Token(
        text,
        match token {
            Tok::Block(tokens) => Tok::Block(grouped(tokens)),
            Tok::Str(parts) => {
                let part = |part| match part {
                    StrPart::Term(token) => StrPart::Term(inside(token)),
                    part => part,
                };
                Tok::Str(parts.into_iter().map(part).collect())
            }
            other => other,
        },
    )
}
