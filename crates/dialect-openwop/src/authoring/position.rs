//! Resolves JSON pointers to lines and columns of the source text.
//!
//! serde_json does not keep positions, so the text is read a second time, along the requested pointers. The
//! text has been parsed before; invalid JSON ends the search without an error. The nesting limit is that of
//! serde_json.

use std::collections::HashMap;

use crate::{Problem, Spot};

/// Maximum nesting; serde_json accepts no deeper text.
const MAX_DEPTH: usize = 128;

/// A span in a text, with the line and column of its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// Byte offset of the first byte.
    pub start: usize,
    /// Byte offset after the last byte.
    pub end: usize,
}

impl Place {
    /// The place of a byte range.
    #[must_use]
    pub fn of(text: &str, start: usize, end: usize) -> Self {
        let start = text.floor_char_boundary(start);
        let end = text.floor_char_boundary(end.max(start));
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Self {
            line: before.bytes().filter(|byte| *byte == b'\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            start,
            end,
        }
    }
}

/// The place of each problem in the text of its definition; `None` if its pointer does not resolve.
#[must_use]
pub fn locate(text: &str, problems: &[Problem]) -> Vec<Option<Place>> {
    let wanted = problems
        .iter()
        .map(|problem| (problem.pointer.as_str(), None))
        .collect();
    let mut reader = Reader {
        text,
        bytes: text.as_bytes(),
        at: 0,
        pointer: String::new(),
        wanted,
    };
    // Invalid JSON keeps the places found so far.
    let _ = reader.value(None, 0);
    problems
        .iter()
        .map(|problem| {
            let (name, (start, end)) = (*reader.wanted.get(problem.pointer.as_str())?)?;
            let (start, end) = match (problem.spot, name) {
                (Spot::Name, Some(name)) => name,
                (Spot::Name, None) | (Spot::Value, _) => (start, end),
                (Spot::Text(offset), _) => (inside(text, start, end, offset), end),
            };
            Some(Place::of(text, start, end))
        })
        .collect()
}

type Span = (usize, usize);

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    pointer: String,
    /// By pointer: the span of the member's name, if it is a member, and the span of its value.
    wanted: HashMap<&'a str, Option<(Option<Span>, Span)>>,
}

impl Reader<'_> {
    fn value(&mut self, name: Option<Span>, depth: usize) -> Option<()> {
        self.skip_space();
        let start = self.at;
        match self.bytes.get(self.at)? {
            b'{' if depth < MAX_DEPTH => self.members(depth)?,
            b'[' if depth < MAX_DEPTH => self.items(depth)?,
            b'{' | b'[' => return None,
            b'"' => drop(self.string()?),
            _ => {
                while self
                    .bytes
                    .get(self.at)
                    .is_some_and(|byte| !matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n'))
                {
                    self.at += 1;
                }
            }
        }
        let span = (start, self.at);
        if let Some(place) = self.wanted.get_mut(self.pointer.as_str()) {
            // Of duplicate members the last one counts, as in serde_json.
            *place = Some((name, span));
        }
        Some(())
    }

    fn members(&mut self, depth: usize) -> Option<()> {
        self.at += 1;
        loop {
            self.skip_space();
            match self.bytes.get(self.at)? {
                b'}' => {
                    self.at += 1;
                    return Some(());
                }
                b',' => self.at += 1,
                b'"' => {
                    let name = self.string()?;
                    let text: String = serde_json::from_str(&self.text[name.0..name.1]).ok()?;
                    self.skip_space();
                    if *self.bytes.get(self.at)? != b':' {
                        return None;
                    }
                    self.at += 1;
                    let len = self.pointer.len();
                    push(&mut self.pointer, &text);
                    let read = self.value(Some(name), depth + 1);
                    self.pointer.truncate(len);
                    read?;
                }
                _ => return None,
            }
        }
    }

    fn items(&mut self, depth: usize) -> Option<()> {
        self.at += 1;
        let mut index = 0_usize;
        loop {
            self.skip_space();
            match self.bytes.get(self.at)? {
                b']' => {
                    self.at += 1;
                    return Some(());
                }
                b',' => self.at += 1,
                _ => {
                    let len = self.pointer.len();
                    push(&mut self.pointer, &index.to_string());
                    let start = self.at;
                    let read = self.value(None, depth + 1);
                    self.pointer.truncate(len);
                    read?;
                    if self.at == start {
                        return None;
                    }
                    index += 1;
                }
            }
        }
    }

    fn string(&mut self) -> Option<Span> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.bytes.get(self.at)? {
                b'"' => {
                    self.at += 1;
                    return Some((start, self.at));
                }
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
    }

    fn skip_space(&mut self) {
        while self
            .bytes
            .get(self.at)
            .is_some_and(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
        {
            self.at += 1;
        }
    }
}

/// Appends a step to a JSON pointer.
pub(crate) fn push(pointer: &mut String, step: &str) {
    pointer.push('/');
    for c in step.chars() {
        match c {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            c => pointer.push(c),
        }
    }
}

/// The position inside a JSON string of a byte of the unescaped text.
fn inside(text: &str, start: usize, end: usize, offset: usize) -> usize {
    let mut at = start + 1;
    let mut seen = 0;
    while seen < offset && at + 1 < end {
        let rest = &text.as_bytes()[at..end];
        let (raw, bytes) = match rest {
            [b'\\', b'u', hex @ ..] => {
                let unit = hex
                    .get(..4)
                    .and_then(|hex| std::str::from_utf8(hex).ok())
                    .and_then(|hex| u32::from_str_radix(hex, 16).ok());
                match unit {
                    // A surrogate pair: twelve bytes of escapes for four bytes of text.
                    Some(0xD800..0xDC00) => (12, 4),
                    Some(unit) => (6, char::from_u32(unit).map_or(3, char::len_utf8)),
                    None => return start,
                }
            }
            [b'\\', _, ..] => (2, 1),
            _ => (1, 1),
        };
        at += raw;
        seen += bytes;
    }
    at.min(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str, pointer: &str, spot: Spot) -> (usize, usize, String) {
        let problem = Problem::new("p", "r").at(pointer, spot);
        let place = locate(text, &[problem])[0].expect("found");
        (place.line, place.column, text[place.start..place.end].to_owned())
    }

    #[test]
    fn pointers_have_lines_and_columns() {
        let text = "{\n  \"a\": [1, {\"b/c\": \"ä x\"}],\n\t\"ü\": {\"~\": true}\n}";
        assert_eq!(place(text, "/a/0", Spot::Value), (2, 9, "1".to_owned()));
        assert_eq!(
            place(text, "/a/1/b~1c", Spot::Value),
            (2, 20, "\"ä x\"".to_owned())
        );
        assert_eq!(
            place(text, "/a/1/b~1c", Spot::Name),
            (2, 13, "\"b/c\"".to_owned())
        );
        assert_eq!(place(text, "/a/1/b~1c", Spot::Text(3)), (2, 23, "x\"".to_owned()));
        assert_eq!(place(text, "/ü/~0", Spot::Value), (3, 13, "true".to_owned()));
        assert_eq!(place(text, "", Spot::Value).0, 1);
        let nowhere = Problem::new("p", "r").at("/none", Spot::Value);
        assert_eq!(locate(text, &[nowhere]), [None]);
    }

    #[test]
    fn text_offsets_count_unescaped_bytes() {
        let text = r#"{"a": "\n\u00e4\ud83d\ude00x"}"#;
        // A line feed, two bytes of an umlaut, four bytes of an emoji.
        assert_eq!(place(text, "/a", Spot::Text(7)).2, "x\"");
    }

    #[test]
    fn invalid_json_ends_the_search() {
        for text in [
            "",
            "{",
            "[",
            "{\"a\"",
            "{\"a\":",
            "[1,",
            "\"\\",
            "{a}",
            "[}",
            "[[[[",
            "{\"a\": \"\\u00",
        ] {
            let problem = Problem::new("p", "r").at("/a", Spot::Text(1));
            let _ = locate(text, &[problem]);
        }
        assert_eq!(locate(&"[".repeat(100_000), &[Problem::new("p", "r")]), [None]);
    }
}
