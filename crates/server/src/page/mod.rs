//! HTML pages rendered on the server, which work without JavaScript.
//!
//! ```text
//!   layout      the document around every page, its style and its security headers
//!   content     untrusted content displayed safely: Markdown, text, JSON, files
//!   fields      form inputs derived from JSON Schemas, and submitted values
//!   conversation  the part of that page for a turn of a conversation
//!   gate        the page of an interrupt with its answer form
//! ```
//!
//! Everything here is pure and uses neither the store nor the app. Pages load nothing and run no scripts, and
//! their content security policy enforces that. Text from outside is escaped.

pub(crate) mod content;
pub(crate) mod conversation;
pub(crate) mod fields;
pub(crate) mod gate;
mod layout;
mod markdown;
mod negotiate;

pub(crate) use layout::{document, respond};
pub(crate) use negotiate::{is_foreign, is_form, media_range, prefers_html};
