//! Pages for people: server-rendered HTML that works without JavaScript.
//!
//! ```text
//!   layout      the document around every page, its style, and the headers that fence it in
//!   content     what somebody else wrote, made safe: Markdown, text, JSON, files
//!   fields      inputs made of JSON Schemas, and what a browser sends back
//!   gate        the page of an interrupt: what is asked, about what, and the form that answers
//! ```
//!
//! Everything here is pure: it knows no store and no app. A page loads nothing from anywhere, runs no script, and
//! says so in its content security policy; text that is not ours reaches it escaped.

pub(crate) mod content;
pub(crate) mod fields;
pub(crate) mod gate;
mod layout;
mod markdown;
mod negotiate;

pub(crate) use layout::{document, respond};
pub(crate) use negotiate::{is_foreign, is_form, prefers_html};
