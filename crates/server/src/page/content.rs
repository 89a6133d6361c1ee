//! Displays untrusted content safely: text as Markdown, files by name, everything else as JSON. The output is
//! limited, and a note says if something was left out.

use std::io;

use maud::{Markup, html};
use serde_json::Value;

use super::{fields::lines, markdown};

/// Maximum bytes of a displayed text.
pub(crate) const MAX_SHOWN: usize = 64 << 10;
/// Maximum number of listed files.
const MAX_FILES: usize = 50;

#[derive(Debug, Clone)]
pub(crate) struct Artifact {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) artifact_type: String,
    pub(crate) content: Value,
    /// Part of the content is redacted.
    pub(crate) is_redacted: bool,
    /// The content came from another agent or peer.
    pub(crate) is_untrusted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Editable {
    pub(crate) text: String,
    pub(crate) is_json: bool,
}

impl Artifact {
    /// The artifact in a section with its own heading.
    pub(crate) fn show(&self) -> Markup {
        html! {
            section aria-labelledby="about" {
                h2 id="about" { (self.name) }
                @if self.is_untrusted {
                    p.note { "Untrusted content: somebody outside this host wrote it. Check it before you rely on it." }
                }
                div.theirs dir="auto" { (show(&self.content)) }
                p.hint { "Artifact " code { (self.id) } ", of type " code { (self.artifact_type) } }
            }
        }
    }

    /// The content as an editable text. `None` if the text would not contain all of it.
    pub(crate) fn editable(&self) -> Option<Editable> {
        if self.is_redacted {
            return None;
        }
        let (text, is_json) = match &self.content {
            Value::String(text) => (lines(text.into()), false),
            other => match pretty(other) {
                (_, true) => return None,
                (text, false) => (text, true),
            },
        };
        (text.len() <= MAX_SHOWN).then_some(Editable { text, is_json })
    }
}

fn show(content: &Value) -> Markup {
    match content {
        Value::String(text) => show_text(text),
        other => match files(other) {
            [] => {
                let (text, is_cut) = pretty(other);
                html! {
                    pre { (text) }
                    @if is_cut { (cut_note()) }
                }
            }
            files => show_files(files),
        },
    }
}

fn show_text(text: &str) -> Markup {
    let (shown, is_cut) = cut(text);
    let rendered = markdown::render(shown);
    html! {
        @if let Some(rendered) = &rendered {
            div.prose { (rendered) }
        } @else {
            pre.wrap { (shown) }
        }
        @if is_cut { (cut_note()) }
        @if rendered.is_some() {
            details {
                summary { "Show the source text" }
                pre.wrap { (shown) }
            }
        }
    }
}

/// Lists files by name; their content is not loaded.
fn show_files(files: &[Value]) -> Markup {
    let text = |file: &Value, name: &str| file.get(name).and_then(Value::as_str).map(str::to_owned);
    html! {
        ul {
            @for file in files.iter().take(MAX_FILES) {
                li {
                    (text(file, "name").unwrap_or_else(|| "a file".to_owned()))
                    @if let Some(media_type) = text(file, "mediaType") { " (" (media_type) ")" }
                    @if let Some(url) = text(file, "url") { ": " code { (cut(&url).0) } }
                }
            }
        }
        @if files.len() > MAX_FILES { p.hint { "and " (files.len() - MAX_FILES) " more" } }
    }
}

/// The files in the content; empty if the content is anything else.
fn files(content: &Value) -> &[Value] {
    let Some(members) = content.as_object().filter(|members| members.len() == 1) else {
        return &[];
    };
    let files = match (members.get("file"), members.get("files")) {
        (Some(file), _) => std::slice::from_ref(file),
        (None, Some(Value::Array(files))) => files,
        (None, _) => return &[],
    };
    let is_file = |file: &Value| {
        ["url", "bytes", "blob"]
            .iter()
            .any(|name| file.get(name).is_some())
    };
    if files.iter().all(is_file) { files } else { &[] }
}

fn cut_note() -> Markup {
    html! { p.note { "This is only the beginning: the page shows " (MAX_SHOWN / 1024) " KiB. The artifact has all of it." } }
}

/// Truncates a text. Returns `true` if it was longer.
pub(super) fn cut(text: &str) -> (&str, bool) {
    if text.len() <= MAX_SHOWN {
        (text, false)
    } else {
        (&text[..text.floor_char_boundary(MAX_SHOWN)], true)
    }
}

/// Indented JSON, and whether it was truncated.
pub(super) fn pretty(value: &Value) -> (String, bool) {
    let mut out = Beginning(Vec::new());
    let is_cut = serde_json::to_writer_pretty(&mut out, value).is_err();
    (String::from_utf8_lossy(&out.0).into_owned(), is_cut)
}

/// A writer that keeps the beginning and then fails.
struct Beginning(Vec<u8>);

impl io::Write for Beginning {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(MAX_SHOWN - self.0.len());
        if taken == 0 && !bytes.is_empty() {
            return Err(io::Error::other("there is no more room"));
        }
        self.0.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn artifact(content: Value) -> Artifact {
        Artifact {
            id: "draft-0".to_owned(),
            name: "Draft <1>".to_owned(),
            artifact_type: "note".to_owned(),
            content,
            is_redacted: false,
            is_untrusted: false,
        }
    }

    fn shown(content: Value) -> String {
        artifact(content).show().into_string()
    }

    #[test]
    fn shows_text_as_markdown_with_source() {
        let page = shown(json!("**bold** <b>"));
        assert!(page.contains("<p><strong>bold</strong> &lt;b&gt;</p>"), "{page}");
        assert!(
            page.contains("<pre class=\"wrap\">**bold** &lt;b&gt;</pre>"),
            "{page}"
        );
        assert!(
            page.contains("Draft &lt;1&gt;") && !page.contains("Untrusted"),
            "{page}"
        );
    }

    #[test]
    fn json_is_indented_and_escaped() {
        let page = shown(json!({ "a": "</pre><script>" }));
        assert!(
            page.contains("<pre>{\n  &quot;a&quot;: &quot;&lt;/pre&gt;&lt;script&gt;&quot;\n}</pre>"),
            "{page}"
        );
    }

    #[test]
    fn large_content_is_truncated_with_a_note() {
        for content in [
            json!("é".repeat(MAX_SHOWN)),
            json!(vec!["é"; MAX_SHOWN]),
            json!({ "a": "é".repeat(MAX_SHOWN) }),
        ] {
            let page = shown(content.clone());
            assert!(page.contains("only the beginning"));
            assert!(page.len() < 4 * MAX_SHOWN, "{}", page.len());
            assert_eq!(artifact(content).editable(), None);
        }
    }

    #[test]
    fn files_are_listed_but_not_loaded() {
        let page = shown(json!({ "files": [
            { "url": "https://a.example/<x>", "name": "a.pdf", "mediaType": "application/pdf" },
            { "bytes": "QUJD" },
        ] }));
        assert!(
            page.contains("a.pdf (application/pdf): <code>https://a.example/&lt;x&gt;</code>"),
            "{page}"
        );
        assert!(
            page.contains("<li>a file</li>") && !page.contains("QUJD"),
            "{page}"
        );
        assert!(shown(json!({ "file": { "a": 1 } })).contains("<pre>"));
    }

    #[test]
    fn redacted_content_is_not_editable() {
        let artifact = Artifact {
            is_redacted: true,
            ..artifact(json!("[REDACTED]"))
        };
        assert_eq!(artifact.editable(), None);
    }

    #[test]
    fn untrusted_content_is_labelled() {
        let artifact = Artifact {
            is_untrusted: true,
            ..artifact(json!("x"))
        };
        assert!(artifact.show().into_string().contains("Untrusted content"));
    }
}
