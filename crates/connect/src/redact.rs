//! Replaces a peer's credential where it comes back in an answer.
//!
//! An agent that echoes its request would otherwise write the credential into runs, logs and artifacts. It is
//! found in strings and in names of members, as it is and with any of its characters written as an escape of
//! JSON: what a model says is read as JSON later, where nobody knows the credential any more. Any other encoded
//! form of it is not found.

mod spelling;

use std::fmt;

use serde_json::Value;
use wopr_wire::json::Object;

/// Takes the place of a secret.
const REDACTED: &str = "[redacted]";
/// A shorter secret would match ordinary words.
const MIN_LEN: usize = 8;

/// Texts that must not come back.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Vec<String>);

impl Secrets {
    pub(crate) fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut secrets = Self::default();
        for text in texts {
            secrets.add(text);
        }
        secrets
    }

    pub(crate) fn add(&mut self, text: &str) {
        if text.len() >= MIN_LEN && !self.0.iter().any(|known| known == text) {
            self.0.push(text.to_owned());
            // A secret that contains another one is replaced first, so that no part of it remains.
            self.0.sort_by_key(|known| std::cmp::Reverse(known.len()));
        }
    }

    /// The length in bytes of the longest end of a text that may be the beginning of a secret.
    pub(crate) fn begun_in(&self, text: &str) -> usize {
        let begun = |secret: &String| spelling::begun_in(text, secret);
        self.0.iter().map(begun).max().unwrap_or(0)
    }

    /// Where a secret begins that a cut of the text at this byte would divide.
    pub(crate) fn cut_by(&self, text: &str, end: usize) -> Option<usize> {
        let cut = |secret: &String| spelling::cut_by(text, secret, end);
        self.0.iter().filter_map(cut).min()
    }

    /// Replaces the secrets in all strings of a document.
    pub(crate) fn redact(&self, document: &mut Value) {
        match document {
            Value::String(text) => {
                if self.occurs_in(text) {
                    *text = self.text(text);
                }
            }
            Value::Array(items) => {
                for item in items {
                    self.redact(item);
                }
            }
            Value::Object(members) => self.redact_object(members),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn redact_object(&self, members: &mut Object) {
        if members.keys().any(|name| self.occurs_in(name)) {
            let renamed = std::mem::take(members).into_iter();
            *members = renamed.map(|(name, value)| (self.text(&name), value)).collect();
        }
        for value in members.values_mut() {
            self.redact(value);
        }
    }

    /// A text with the secrets replaced.
    pub(crate) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.0 {
            if text.contains(secret) {
                text = text.replace(secret, REDACTED);
            }
            if let Some(replaced) = spelling::replaced(&text, secret, REDACTED) {
                text = replaced;
            }
        }
        text
    }

    fn occurs_in(&self, text: &str) -> bool {
        let occurs = |secret: &String| text.contains(secret) || spelling::occurs_in(text, secret);
        self.0.iter().any(occurs)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_replaced_in_every_string_and_name() {
        let secrets = Secrets::of(["hunter22", "Basic hunter22", "short"]);
        let mut document = json!({
            "a": ["it is hunter22, and Basic hunter22", 7, null, true],
            "x-hunter22": {"b": "hunter2", "c": "short"},
        });
        secrets.redact(&mut document);
        assert_eq!(
            document,
            json!({
                "a": ["it is [redacted], and [redacted]", 7, null, true],
                "x-[redacted]": {"b": "hunter2", "c": "short"},
            })
        );
        assert!(!format!("{secrets:?}").contains("hunter22"));
    }

    #[test]
    fn secrets_are_replaced_where_json_writes_them_with_escapes() {
        let secrets = Secrets::of(["hunter22", "a\\b\"c/d\u{e9}", "key\u{1f511}key"]);
        for (text, expected) in [
            (r#"{"k":"\u0068unter22"}"#, r#"{"k":"[redacted]"}"#),
            (r#"{"k":"hunter2\u0032\u0032"}"#, r#"{"k":"[redacted]\u0032"}"#),
            // A document within a document.
            (
                r#"{"k":"{\"k\":\"\\u0068unter22\"}"}"#,
                r#"{"k":"{\"k\":\"[redacted]\"}"}"#,
            ),
            (r#""a\\b\"c\/d\u00E9""#, r#""[redacted]""#),
            (r#""\u0061\u005cb\u0022c/dé""#, r#""[redacted]""#),
            (r#""key\ud83d\uDD11key""#, r#""[redacted]""#),
            (r#""key\ud83dkey""#, r#""key\ud83dkey""#),
            (r"hunter2\u003", r"hunter2\u003"),
            (r"\\\", r"\\\"),
        ] {
            assert_eq!(secrets.text(text), expected);
            let mut document = json!({ text: [text] });
            secrets.redact(&mut document);
            assert_eq!(document, json!({ expected: [expected] }));
        }
        for (text, length) in [
            (r"it is \u0068unt", 9),
            (r"it is hunter2\u00", 11),
            (r"it is h\", 2),
            (r"it is \", 1),
            (r"it is \u0068unter22", 0),
            (r"it is \n", 0),
        ] {
            assert_eq!(secrets.begun_in(text), length, "{text}");
        }
        assert_eq!(secrets.cut_by(r"x \u0068unter22", 9), Some(2));
        assert_eq!(secrets.cut_by(r"x \u0068unter22", 2), None);
    }

    #[test]
    fn beginning_of_a_secret_is_recognized_at_the_end_of_a_text() {
        let secrets = Secrets::of(["hunter22", "abababab"]);
        for (text, length) in [
            ("", 0),
            ("it is", 0),
            ("it is h", 1),
            ("it is hunter2", 7),
            ("it is hunter22", 0),
            ("xababab", 6),
            ("é", 0),
        ] {
            assert_eq!(secrets.begun_in(text), length, "{text}");
        }
        assert_eq!(secrets.cut_by("x abababab", 6), Some(2));
        assert_eq!(secrets.cut_by("x abababab", 2), None);
    }
}
