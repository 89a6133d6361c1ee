//! The ways in which JSON may write a text: each character as it is, or as an escape.
//!
//! A document may be a string of another one, whose escapes have further backslashes. So a backslash stands for any
//! number of them, which finds more than any reader of the text would: a credential is too long to be met by chance.
//!
//! A text that repeats the beginning of a secret is compared with it again and again. After so many steps that no other
//! text needs them, it counts as one that contains the secret.

/// How far before the end of a text a secret may begin, in bytes for each of its own. The longest escape of a document
/// within two others has nine, and some characters need two.
const REACH: usize = 20;

use super::steps::{self, Exhausted, Steps};

/// How much of a secret a text contains from a given byte on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Met {
    /// All of it, up to this byte.
    Whole(usize),
    /// The text ends before the secret.
    Begun,
    Not,
}

/// Whether a text contains a given character from a given byte on.
enum Next {
    /// The character, up to this byte.
    Is(usize),
    /// The text ends within what may be an escape.
    Ends,
    Not,
}

/// The text with the secret replaced where it has escapes; `None` if it is nowhere.
pub(super) fn replaced(text: &str, secret: &str, replacement: &str) -> Option<String> {
    let mut steps = Steps::for_text(text.len());
    steps::replaced(text, replacement, |from| {
        escaped_from(text, from, secret, &mut steps)
    })
}

/// Returns `true` if a text contains the secret written with escapes.
pub(super) fn occurs_in(text: &str, secret: &str) -> bool {
    !matches!(
        escaped_from(text, 0, secret, &mut Steps::for_text(text.len())),
        Ok(None)
    )
}

/// The length in bytes of the longest end of a text that may be the beginning of the secret.
pub(super) fn begun_in(text: &str, secret: &str) -> usize {
    let from = text.len().saturating_sub(secret.len() * REACH);
    let mut steps = Steps::for_text(text.len() - from);
    for start in starts(text, from, text.len()) {
        match met(text, start, secret, &mut steps) {
            Ok(Met::Begun) | Err(Exhausted) => return text.len() - start,
            Ok(Met::Whole(_) | Met::Not) => {}
        }
    }
    0
}

/// Where the secret begins, however it is written, if a cut of the text at this byte would divide it.
pub(super) fn cut_by(text: &str, secret: &str, end: usize) -> Option<usize> {
    let from = end.saturating_sub(secret.len() * REACH);
    let end = end.min(text.len());
    let mut steps = Steps::for_text(end.saturating_sub(from));
    starts(text, from, end).find(|start| match met(text, *start, secret, &mut steps) {
        Ok(Met::Whole(last)) => last > end,
        Ok(Met::Begun | Met::Not) => false,
        Err(Exhausted) => true,
    })
}

/// The next range of a text that contains the secret. None if the text has no escapes.
fn escaped_from(
    text: &str,
    from: usize,
    secret: &str,
    steps: &mut Steps,
) -> Result<Option<(usize, usize)>, Exhausted> {
    if !text.contains('\\') {
        return Ok(None);
    }
    for start in starts(text, from, text.len()) {
        if let Met::Whole(end) = met(text, start, secret, steps)? {
            return Ok(Some((start, end)));
        }
    }
    Ok(None)
}

/// Where a secret may begin. Backslashes in a row are one, so that a text of many takes no more time.
fn starts(text: &str, from: usize, end: usize) -> impl Iterator<Item = usize> {
    let bytes = text.as_bytes();
    let is_start = move |at: &usize| {
        text.is_char_boundary(*at) && (bytes[*at] != b'\\' || *at == 0 || bytes[*at - 1] != b'\\')
    };
    (from..end).filter(is_start)
}

fn met(text: &str, start: usize, secret: &str, steps: &mut Steps) -> Result<Met, Exhausted> {
    let (mut at, mut is_escaped) = (start, false);
    let mut letters = secret.chars().peekable();
    while let Some(letter) = letters.next() {
        steps.take()?;
        if at == text.len() {
            return Ok(Met::Begun);
        }
        if letter == '\\' && text[at..].starts_with('\\') {
            while letters.next_if_eq(&'\\').is_some() {}
            at += backslashes(&text[at..]);
            // A backslash may be an escape itself.
            while matches!(text.as_bytes().get(at..at + 5), Some(b"u005c" | b"u005C")) {
                at += 5;
                at += backslashes(&text[at..]);
            }
            is_escaped = true;
            continue;
        }
        match next(text, at, letter, is_escaped) {
            Next::Is(end) => (at, is_escaped) = (end, false),
            Next::Ends => return Ok(Met::Begun),
            Next::Not => return Ok(Met::Not),
        }
    }
    Ok(Met::Whole(at))
}

/// Looks for a character. The backslash of its escape may have been taken for one of the secret.
fn next(text: &str, at: usize, letter: char, is_escaped: bool) -> Next {
    let rest = &text[at..];
    let n_backslashes = backslashes(rest);
    if n_backslashes == 0 && rest.starts_with(letter) {
        return Next::Is(at + letter.len_utf8());
    }
    if n_backslashes == 0 && !is_escaped {
        return Next::Not;
    }
    let named = &rest[n_backslashes..];
    let at = at + n_backslashes;
    let short = match letter {
        '\u{8}' => 'b',
        '\u{c}' => 'f',
        '\n' => 'n',
        '\r' => 'r',
        '\t' => 't',
        '"' | '/' => letter,
        _ => 'u',
    };
    if named.is_empty() {
        return Next::Ends;
    }
    if short != 'u' && named.starts_with(short) {
        return Next::Is(at + 1);
    }
    let mut units = [0; 2];
    let units = letter.encode_utf16(&mut units);
    let mut end = at;
    for (n, unit) in units.iter().enumerate() {
        if n > 0 {
            let more = backslashes(&text[end..]);
            if more == 0 && end < text.len() {
                return Next::Not;
            }
            end += more;
        }
        let digits = match text.as_bytes().get(end) {
            None => return Next::Ends,
            Some(b'u') => text.as_bytes().get(end + 1..end + 5),
            Some(_) => return Next::Not,
        };
        let Some(digits) = digits else {
            let begun = &text.as_bytes()[end + 1..];
            return match begun.iter().all(u8::is_ascii_hexdigit) {
                true => Next::Ends,
                false => Next::Not,
            };
        };
        let written = str::from_utf8(digits).ok();
        let written = written.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        if written != Some(*unit) {
            return Next::Not;
        }
        end += 5;
    }
    Next::Is(end)
}

fn backslashes(text: &str) -> usize {
    text.bytes().take_while(|byte| *byte == b'\\').count()
}
