//! The reason that a provider gives for not answering.
//!
//! The words of a provider may repeat what it was asked, so only the operator's log has them, without the credential.
//! The code that most providers add, such as `context_length_exceeded`, is one word, and also goes into the run.

use serde_json::Value;

use super::answer::text;
use crate::redact::Secrets;

/// The part of a response that may say why, in bytes.
pub(super) const MAX_ERROR: usize = 64 << 10;
/// Longest code, in bytes.
const MAX_CODE: usize = 64;
/// The most bytes of a provider's words in the log.
const MAX_WORDS: usize = 500;

/// The reason of one response.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reason {
    code: Option<String>,
    pub(super) words: Option<String>,
}

/// The end of an answer that its provider says is not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Broken<'d> {
    pub(super) reason: &'d str,
    pub(super) words: Option<&'d str>,
}

impl Reason {
    /// Reads a response that is no answer.
    pub(super) fn of_body(body: &[u8], secrets: &Secrets) -> Self {
        match serde_json::from_slice(body) {
            Ok(document) => Self::of(&document, secrets),
            Err(_) => Self {
                code: None,
                words: cut(&String::from_utf8_lossy(body), secrets),
            },
        }
    }

    /// Reads the error in a document.
    pub(super) fn of(document: &Value, secrets: &Secrets) -> Self {
        // Gemini puts the error of a stream into a list.
        let document = document.get(0).unwrap_or(document);
        let error = document.get("error").unwrap_or(document);
        let named = ["code", "status", "type"].into_iter();
        let mut codes = named
            .filter_map(|name| text(error, name))
            .filter(|code| is_code(code));
        let code = codes.next().filter(|code| secrets.text(code) == **code);
        let words = error
            .as_str()
            .or_else(|| text(error, "message"))
            .or_else(|| text(document, "message"));
        Self {
            code: code.map(str::to_owned),
            words: words.and_then(|words| cut(words, secrets)),
        }
    }

    /// Reads the reason with which a provider ended an answer that failed.
    pub(super) fn of_end(broken: &Broken<'_>, secrets: &Secrets) -> Self {
        let is_shown = |code: &&str| is_code(code) && secrets.text(code) == **code;
        Self {
            code: Some(broken.reason).filter(is_shown).map(str::to_owned),
            words: cut(broken.words.unwrap_or(broken.reason), secrets),
        }
    }

    /// The code in parentheses, for the end of a sentence.
    pub(super) fn in_parentheses(&self) -> String {
        self.code
            .as_ref()
            .map_or_else(String::new, |code| format!(" ({code})"))
    }
}

/// Whether a document says that something went wrong.
pub(super) fn is_error(document: &Value) -> bool {
    document.get("error").is_some_and(|error| !error.is_null())
}

fn is_code(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let is_name = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
    is_name && text.len() <= MAX_CODE && text.bytes().all(is_part)
}

fn cut(words: &str, secrets: &Secrets) -> Option<String> {
    // Redacts first: a cut in the middle of a credential would hide it from the redaction.
    let words = secrets.text(words.trim());
    let end = words.floor_char_boundary(MAX_WORDS.min(words.len()));
    (end > 0).then(|| words[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_provider_says_why_in_its_own_way() {
        let secrets = Secrets::of(["sk-12345678"]);
        for (document, code, words) in [
            (
                json!({ "error": { "message": "too long", "code": "context_length_exceeded", "type": "x" } }),
                Some("context_length_exceeded"),
                Some("too long"),
            ),
            (
                json!({ "type": "error", "error": { "type": "overloaded_error", "message": "Overloaded" } }),
                Some("overloaded_error"),
                Some("Overloaded"),
            ),
            (
                json!([{ "error": { "code": 400, "status": "INVALID_ARGUMENT", "message": "bad" } }]),
                Some("INVALID_ARGUMENT"),
                Some("bad"),
            ),
            (json!({ "error": "no such model" }), None, Some("no such model")),
            (json!({ "message": "no" }), None, Some("no")),
            (
                json!({ "error": { "code": "two words", "message": "the key sk-12345678 is wrong" } }),
                None,
                Some("the key [redacted] is wrong"),
            ),
            (json!({ "error": { "code": "sk-12345678" } }), None, None),
            (json!([]), None, None),
        ] {
            let reason = Reason::of(&document, &secrets);
            assert_eq!(reason.code.as_deref(), code, "{document}");
            assert_eq!(reason.words.as_deref(), words, "{document}");
        }
        let page = Reason::of_body(b" <html>\xff", &secrets);
        assert_eq!(page.words.as_deref(), Some("<html>\u{fffd}"));
    }
}
