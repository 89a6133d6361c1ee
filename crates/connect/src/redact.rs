//! Replaces a peer's credential where it comes back in an answer.
//!
//! An agent that echoes its request would otherwise write the credential into runs, logs and artifacts. Only
//! the exact text is found, in strings and in names of members; an encoded form of it is not.

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
        let text = text.as_bytes();
        let begun = |secret: &String| {
            let secret = secret.as_bytes();
            let longest = secret.len().saturating_sub(1).min(text.len());
            let mut lengths = (1..=longest).rev();
            lengths.find(|length| text.ends_with(&secret[..*length]))
        };
        self.0.iter().filter_map(begun).max().unwrap_or(0)
    }

    /// Where a secret begins that a cut of the text at this byte would divide.
    pub(crate) fn cut_by(&self, text: &str, end: usize) -> Option<usize> {
        let begins = |secret: &String| {
            let from = text.floor_char_boundary(end.saturating_sub(secret.len()));
            let found = text[from..].match_indices(secret.as_str());
            let mut places = found.map(|(at, _)| from + at);
            places.find(|start| *start < end && start + secret.len() > end)
        };
        self.0.iter().filter_map(begins).min()
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
        }
        text
    }

    fn occurs_in(&self, text: &str) -> bool {
        self.0.iter().any(|secret| text.contains(secret))
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
