//! Finds the JSON document in what a model wrote.
//!
//! Models are asked for a document and nothing else, and put it into a code fence or a sentence all the same. What
//! was found is never changed: a document that does not parse is not repaired here.

use serde_json::Value;
use wopr_kernel::measure::may_be_parsed;

/// How a document was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The text is the document.
    Direct,
    /// In a code fence.
    Fence,
    /// The first balanced object or list that is JSON, which begins at this byte.
    Braces(usize),
}

/// Why there is no document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The text holds nothing that begins like an object or a list.
    Prose,
    /// The text begins like a document and does not parse.
    Broken(String),
}

pub(crate) fn find(text: &str) -> Result<(Value, Found), Missing> {
    if !may_be_parsed(text) {
        return Err(Missing::Broken("it has too many values".to_owned()));
    }
    let whole = text.trim();
    let error = match serde_json::from_str::<Value>(whole) {
        Ok(document) => return Ok((document, Found::Direct)),
        Err(error) => error,
    };
    if let Some(document) = fenced(whole).and_then(|inner| serde_json::from_str(inner.trim()).ok()) {
        return Ok((document, Found::Fence));
    }
    let mut start = text.find(['{', '[']);
    if start.is_none() {
        return Err(Missing::Prose);
    }
    // Nothing is looked for within brackets, so the work stays proportional to the text, and no part of a broken document
    // is taken for the document.
    while let Some(open) = start {
        let Some(close) = balanced(&text[open..]).map(|length| open + length) else {
            break;
        };
        if let Ok(document) = serde_json::from_str(&text[open..close]) {
            return Ok((document, Found::Braces(open)));
        }
        start = text[close..].find(['{', '[']).map(|next| close + next);
    }
    Err(Missing::Broken(error.to_string()))
}

/// The content of the first code fence.
fn fenced(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("```")?;
    let (_language, rest) = rest.split_once('\n')?;
    rest.split_once("```").map(|(inner, _)| inner)
}

/// The length of the balanced object or list that a text begins with.
fn balanced(text: &str) -> Option<usize> {
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        if in_string {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_are_found_where_models_put_them() {
        let document = json!({"a": ["}", 1]});
        for (text, found) in [
            (" {\"a\": [\"}\", 1]}\n", Found::Direct),
            ("```json\n{\"a\": [\"}\", 1]}\n```", Found::Fence),
            ("Here it is:\n```\n{\"a\": [\"}\", 1]}\n```\nDone.", Found::Fence),
            ("It is {\"a\": [\"}\", 1]}, I think.", Found::Braces(6)),
            (
                "The set {a, [b]} gives {\"a\": [\"}\", 1]}. Done {x}",
                Found::Braces(23),
            ),
        ] {
            assert_eq!(find(text), Ok((document.clone(), found)), "{text}");
        }
        assert_eq!(find("7"), Ok((json!(7), Found::Direct)));
    }

    #[test]
    fn text_without_a_document_says_why() {
        assert_eq!(find("The answer is yes."), Err(Missing::Prose));
        assert_eq!(find(""), Err(Missing::Prose));
        for broken in [
            "{\"a\": ",
            "[1, 2",
            "{a: 1}",
            "{a: {\"b\": 1}}",
            "{a} {\"b\": 1",
            "```json\n{\n```",
            "}{",
        ] {
            assert!(matches!(find(broken), Err(Missing::Broken(_))), "{broken}");
        }
        let heavy = format!("[{}0]", "{\"\":0},".repeat(150_000));
        assert_eq!(
            find(&heavy),
            Err(Missing::Broken("it has too many values".to_owned()))
        );
    }
}
