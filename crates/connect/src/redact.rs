//! Replaces a peer's credential where it comes back in an answer.
//!
//! An agent that echoes its request would otherwise write the credential into runs, logs and artifacts. It is
//! found in strings and in names of members, as it is and with any of its characters written as an escape of
//! JSON: what a model says is read as JSON later, where nobody knows the credential any more. It is also found
//! percent-encoded, in base64, and divided among texts that are read as one. Any other form of it is not found.

mod encoded;
mod spelling;
mod steps;

use std::fmt;

use serde_json::Value;
use wopr_wire::json::Object;

/// Takes the place of a secret.
const REDACTED: &str = "[redacted]";
/// A shorter secret would match ordinary words.
const MIN_LEN: usize = 8;

/// Texts that must not come back.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Secrets(Vec<Secret>);

#[derive(Clone, PartialEq)]
struct Secret {
    text: String,
    /// What shows it in base64.
    in_base64: Vec<String>,
}

impl Secrets {
    pub(crate) fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut secrets = Self::default();
        for text in texts {
            secrets.add(text);
        }
        secrets
    }

    pub(crate) fn add(&mut self, text: &str) {
        if text.len() >= MIN_LEN && !self.0.iter().any(|known| known.text == text) {
            self.0.push(Secret {
                text: text.to_owned(),
                in_base64: encoded::in_base64(text),
            });
            self.sort();
        }
    }

    /// Adds those of another list.
    pub(crate) fn join(&mut self, others: &Self) {
        for secret in &others.0 {
            if !self.0.contains(secret) {
                self.0.push(secret.clone());
            }
        }
        self.sort();
    }

    /// A secret that contains another one is replaced first, so that no part of it remains.
    fn sort(&mut self) {
        self.0.sort_by_key(|known| std::cmp::Reverse(known.text.len()));
    }

    /// The length in bytes of the longest end of a text that may be the beginning of a secret.
    pub(crate) fn begun_in(&self, text: &str) -> usize {
        let begun = |secret: &Secret| spelling::begun_in(text, &secret.text);
        self.0.iter().map(begun).max().unwrap_or(0)
    }

    /// Where a secret begins that a cut of the text at this byte would divide.
    pub(crate) fn cut_by(&self, text: &str, end: usize) -> Option<usize> {
        let cut = |secret: &Secret| spelling::cut_by(text, &secret.text, end);
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
                for item in items.iter_mut() {
                    self.redact(item);
                }
                self.redact_joined(items);
            }
            Value::Object(members) => self.redact_object(members),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Replaces a secret that is divided among the texts of a list of parts, which are read as one text. The first part
    /// then has all of it.
    fn redact_joined(&self, parts: &mut [Value]) {
        let mut texts = parts.iter_mut().filter_map(|part| match part.get_mut("text") {
            Some(Value::String(text)) => Some(text),
            Some(_) | None => None,
        });
        let Some(first) = texts.next() else { return };
        let others: Vec<_> = texts.collect();
        if others.is_empty() || self.0.is_empty() {
            return;
        }
        let mut joined = first.clone();
        for text in &others {
            joined.push_str(text);
        }
        if self.occurs_in(&joined) {
            *first = self.text(&joined);
            for text in others {
                text.clear();
            }
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
            if text.contains(&secret.text) {
                text = text.replace(&secret.text, REDACTED);
            }
            if let Some(replaced) = spelling::replaced(&text, &secret.text, REDACTED) {
                text = replaced;
            }
            if let Some(replaced) = encoded::percent_replaced(&text, &secret.text, REDACTED) {
                text = replaced;
            }
            if secret.is_in_base64(&text) {
                text = secret.without_base64(&text);
            }
        }
        text
    }

    fn occurs_in(&self, text: &str) -> bool {
        let occurs = |secret: &Secret| {
            text.contains(&secret.text)
                || spelling::occurs_in(text, &secret.text)
                || encoded::percent_occurs_in(text, &secret.text)
                || secret.is_in_base64(text)
        };
        self.0.iter().any(occurs)
    }
}

impl Secret {
    fn is_in_base64(&self, text: &str) -> bool {
        self.in_base64.iter().any(|shown| text.contains(shown))
    }

    /// A text that is base64 stays so: it may be the bytes of a file.
    fn without_base64(&self, text: &str) -> String {
        let without = |bytes: Vec<u8>| encoded::replaced_in_bytes(&bytes, &self.text, REDACTED);
        let whole = encoded::rewritten(text, without);
        let mut text = whole.unwrap_or_else(|| text.to_owned());
        // The remaining matches are base64 within another text, or text that only resembles the secret.
        for shown in &self.in_base64 {
            if text.contains(shown) {
                text = text.replace(shown, REDACTED);
            }
        }
        text
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
    fn encoded_secrets_are_replaced() {
        let secrets = Secrets::of(["a secret/key+="]);
        for (text, expected) in [
            (
                "http://x.example/?t=a%20secret%2Fkey%2b%3D&u=1",
                "http://x.example/?t=[redacted]&u=1",
            ),
            (
                "a+secret/key%2B= and a%2520secret%252fkey+=",
                "[redacted] and [redacted]",
            ),
            ("%61%20%73ecret/key+=", "[redacted]"),
            ("100% of a%20secret", "100% of a%20secret"),
            ("%", "%"),
            ("%\u{e9}a%2", "%\u{e9}a%2"),
            // Basic authorization, which is base64 within a text.
            ("Basic dXNlcjphIHNlY3JldC9rZXkrPQ==", "Basic dXNlcjp[redacted]Q=="),
        ] {
            let mut document = json!([text]);
            secrets.redact(&mut document);
            assert_eq!(document, json!([expected]));
        }
    }

    #[test]
    fn files_with_a_secret_stay_base64() {
        use base64::{
            Engine as _,
            engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE},
        };

        let secrets = Secrets::of(["hunter22-??>>"]);
        for before in ["", "x", "xy", "xyz", "\u{ff}"] {
            for engine in [STANDARD, STANDARD_NO_PAD, URL_SAFE] {
                let file = |secret: &str| [before.as_bytes(), secret.as_bytes(), b"\xff!"].concat();
                let mut document = json!({ "raw": engine.encode(file("hunter22-??>>")) });
                secrets.redact(&mut document);
                let left = document["raw"].as_str().unwrap().trim_end_matches('=').to_owned();
                let left = STANDARD_NO_PAD.decode(left.replace('-', "+").replace('_', "/"));
                assert_eq!(left.unwrap(), file("[redacted]"));
                let mut other = json!({ "raw": engine.encode(file("hunter21-??>>")) });
                let before = other.clone();
                secrets.redact(&mut other);
                assert_eq!(other, before);
            }
        }
    }

    #[test]
    fn secret_that_is_divided_among_parts_is_replaced() {
        let secrets = Secrets::of(["hunter22"]);
        let mut document = json!({ "parts": [
            { "text": "it is hun" }, { "url": "x" }, { "text": "ter" }, { "text": "22, yes" },
        ]});
        secrets.redact(&mut document);
        let joined = json!({ "parts": [
            { "text": "it is [redacted], yes" }, { "url": "x" }, { "text": "" }, { "text": "" },
        ]});
        assert_eq!(document, joined);
        let mut apart = json!([{ "text": "hunter" }, { "text": 22 }, { "text": "2" }, "2"]);
        let before = apart.clone();
        secrets.redact(&mut apart);
        assert_eq!(apart, before);
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

    #[test]
    fn a_text_that_repeats_the_beginning_of_a_secret_is_replaced_as_a_whole() {
        let secret = format!("{}b", "a".repeat(8_000));
        let secrets = Secrets::of([secret.as_str()]);
        for last in ["%", "\\"] {
            let text = format!("{}{last}", "a".repeat(1 << 20));
            assert!(secrets.occurs_in(&text));
            assert_eq!(secrets.text(&text), REDACTED);
            assert!(secrets.begun_in(&text) <= text.len());
        }
        // Without the first character of an escape there is nothing to compare.
        let plain = "a".repeat(1 << 20);
        assert_eq!(secrets.text(&plain), plain);
    }
}
