//! Renders untrusted Markdown safely.
//!
//! HTML is shown as text. A link keeps its address only if it is an absolute http, https or mailto URL.
//! Images are not loaded; their description and address are shown instead. Style attributes are omitted
//! because the content security policy forbids them. Nesting and output size are limited.

use std::fmt;

use maud::{Markup, PreEscaped, html};
use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html::write_html_fmt};
use url::Url;

/// Maximum nesting depth. Deeper elements are reduced to their text.
const MAX_DEPTH: usize = 24;
/// Maximum bytes of HTML: a short table row can produce thousands of empty cells.
const MAX_HTML: usize = 1 << 20;

/// Renders Markdown; `None` if the output would be too large.
pub(super) fn render(source: &str) -> Option<Markup> {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut out = Bounded {
        text: String::new(),
        most: MAX_HTML,
    };
    let safe = Safe {
        events: Parser::new_ext(source, options),
        open: Vec::new(),
        waiting: None,
    };
    write_html_fmt(&mut out, safe).ok()?;
    Some(PreEscaped(out.text))
}

/// A string buffer that fails beyond its limit.
struct Bounded {
    text: String,
    most: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len() + text.len() > self.most {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// The treatment of an element at its end.
enum Open<'a> {
    /// Ends normally.
    Kept,
    /// Only its text is kept.
    Dropped,
    /// Another event replaces its end.
    Replaced(Event<'a>),
}

/// Replaces events that would produce unsafe HTML.
struct Safe<'a, I> {
    events: I,
    open: Vec<Open<'a>>,
    waiting: Option<Event<'a>>,
}

impl<'a, I: Iterator<Item = Event<'a>>> Iterator for Safe<'a, I> {
    type Item = Event<'a>;

    fn next(&mut self) -> Option<Event<'a>> {
        loop {
            if let Some(event) = self.waiting.take() {
                return Some(event);
            }
            match self.events.next()? {
                Event::Start(tag) => {
                    let is_deep = self.open.len() >= MAX_DEPTH;
                    let (open, shown) = if is_deep {
                        (Open::Dropped, None)
                    } else {
                        start(tag)
                    };
                    self.open.push(open);
                    if shown.is_some() {
                        return shown;
                    }
                }
                Event::End(end) => match self.open.pop() {
                    Some(Open::Kept) => return Some(Event::End(lower_end(end))),
                    Some(Open::Replaced(event)) => return Some(event),
                    Some(Open::Dropped) | None => {}
                },
                Event::Html(text) | Event::InlineHtml(text) => return Some(Event::Text(text)),
                // Preserve the line breaks of plain text.
                Event::SoftBreak => return Some(Event::HardBreak),
                Event::TaskListMarker(is_done) => {
                    return Some(Event::Text(if is_done { "☑ " } else { "☐ " }.into()));
                }
                Event::InlineMath(text) | Event::DisplayMath(text) | Event::FootnoteReference(text) => {
                    return Some(Event::Text(text));
                }
                event @ (Event::Text(_) | Event::Code(_) | Event::HardBreak | Event::Rule) => {
                    return Some(event);
                }
            }
        }
    }
}

/// Decides how an element starts and ends.
fn start(tag: Tag<'_>) -> (Open<'_>, Option<Event<'_>>) {
    match tag {
        Tag::Link { dest_url, .. } => match safe_address(&dest_url) {
            Some(address) => {
                let begin = html! { (PreEscaped("<a rel=\"noopener noreferrer nofollow\" href=\"")) (address) (PreEscaped("\">")) };
                (
                    Open::Replaced(Event::InlineHtml("</a>".into())),
                    Some(Event::InlineHtml(begin.into_string().into())),
                )
            }
            None => (Open::Replaced(addressed(&dest_url)), None),
        },
        Tag::Image { dest_url, .. } => (
            Open::Replaced(addressed(&dest_url)),
            Some(Event::Text("[image] ".into())),
        ),
        Tag::Heading { level, .. } => {
            let tag = Tag::Heading {
                level: lower(level),
                id: None,
                classes: Vec::new(),
                attrs: Vec::new(),
            };
            (Open::Kept, Some(Event::Start(tag)))
        }
        // Alignment would need a style attribute.
        Tag::Table(columns) => {
            let columns = vec![pulldown_cmark::Alignment::None; columns.len()];
            (Open::Kept, Some(Event::Start(Tag::Table(columns))))
        }
        Tag::HtmlBlock => (
            Open::Replaced(Event::End(TagEnd::Paragraph)),
            Some(Event::Start(Tag::Paragraph)),
        ),
        tag => (Open::Kept, Some(Event::Start(tag))),
    }
}

/// An address shown as text.
fn addressed<'a>(address: &str) -> Event<'a> {
    if address.is_empty() {
        return Event::Text(CowStr::Borrowed(""));
    }
    Event::Text(format!(" ({address})").into())
}

fn safe_address(address: &str) -> Option<String> {
    let url = Url::parse(address).ok()?;
    matches!(url.scheme(), "http" | "https" | "mailto").then(|| url.to_string())
}

/// Moves headings below those of the page.
const fn lower(level: HeadingLevel) -> HeadingLevel {
    match level {
        HeadingLevel::H1 => HeadingLevel::H3,
        HeadingLevel::H2 => HeadingLevel::H4,
        HeadingLevel::H3 => HeadingLevel::H5,
        HeadingLevel::H4 | HeadingLevel::H5 | HeadingLevel::H6 => HeadingLevel::H6,
    }
}

fn lower_end(end: TagEnd) -> TagEnd {
    match end {
        TagEnd::Heading(level) => TagEnd::Heading(lower(level)),
        end => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn html_of(source: &str) -> String {
        render(source).expect("within the bound").into_string()
    }

    #[test]
    fn headings_are_moved_below_those_of_the_page() {
        assert_eq!(
            html_of("# Brief\n\nOne\ntwo **three**\n\n1. a\n2. [b](https://a.example/?x=1&y=2)\n"),
            "<h3>Brief</h3>\n<p>One<br />\ntwo <strong>three</strong></p>\n<ol>\n<li>a</li>\n<li><a rel=\"noopener \
             noreferrer nofollow\" href=\"https://a.example/?x=1&amp;y=2\">b</a></li>\n</ol>\n"
        );
        assert_eq!(
            html_of("- [x] done\n- [ ] open"),
            "<ul>\n<li>☑ done</li>\n<li>☐ open</li>\n</ul>\n"
        );
        assert!(html_of("|a|\n|:-:|\n|b|").contains("<td>b</td>"));
    }

    #[test]
    fn markdown_cannot_run_load_or_style_anything() {
        for hostile in [
            "<script>alert(1)</script>",
            "a <img src=x onerror=alert(1)> b",
            "<div style=\"position:fixed\">\n\n**x**\n</div>",
            "![x](https://evil.example/pixel.png)",
            "[x](javascript:alert(1))",
            "[x](  JaVaScRiPt:alert(1))",
            "[x](data:text/html,hi)",
            "[x](vbscript:x)",
            "[x](//evil.example)",
            "[x](/v1/runs)",
            "<javascript:alert(1)>",
            "[x]: javascript:alert(1)\n[x]",
            "|a|\n|--:|\n|b|",
            "```\"><script>\nx\n```",
            "# x {#id .class onclick=alert(1)}",
            "[a](https://a.example/\"onclick=\"alert(1))",
            "<style>*{display:none}</style>",
            "<!-- --><base href=//evil.example>",
            "&lt;script&gt;",
        ] {
            let html = html_of(hostile).to_lowercase();
            let mut rest = html.as_str();
            while let Some((_, after)) = rest.split_once('<') {
                let (tag, more) = after.split_once('>').expect("a tag ends");
                rest = more;
                let name: String = tag
                    .trim_start_matches('/')
                    .chars()
                    .take_while(char::is_ascii_alphanumeric)
                    .collect();
                let known = [
                    "p", "br", "h3", "pre", "code", "table", "thead", "tbody", "tr", "th", "td", "a",
                    "strong",
                ];
                assert!(known.contains(&name.as_str()), "{hostile}: {html}");
                let is_link =
                    tag.starts_with("a rel=\"noopener noreferrer nofollow\" href=\"https://a.example/");
                let is_code = tag.starts_with("code class=\"language-");
                assert!(is_link || is_code || !tag.contains('='), "{hostile}: {html}");
                assert!(!tag.contains("onclick=\""), "{hostile}: {html}");
            }
        }
    }

    #[test]
    fn nesting_is_bounded() {
        for source in [
            format!("{}x", "> ".repeat(5_000)),
            format!("{}x", "- ".repeat(5_000)),
            format!("{}x", "*_".repeat(5_000)),
        ] {
            let html = html_of(&source);
            let most = html
                .split('<')
                .scan(0_i32, |depth, tag| {
                    *depth += match tag {
                        tag if tag.starts_with('/') => -1,
                        tag if tag.is_empty() || tag.contains("/>") => 0,
                        _ => 1,
                    };
                    Some(*depth)
                })
                .max();
            assert!(most.is_some_and(|most| most <= 2 * MAX_DEPTH as i32), "{most:?}");
            assert!(html.contains('x'), "the text stays");
        }
    }

    #[test]
    fn small_text_cannot_produce_a_huge_page() {
        let columns = 4_000;
        let source = format!(
            "{}\n{}\n{}",
            "|a".repeat(columns),
            "|-".repeat(columns),
            "|\n".repeat(8_000)
        );
        let size = render(&source).map(|html| html.into_string().len());
        assert!(size.is_none_or(|size| size <= MAX_HTML), "{size:?}");
    }
}
