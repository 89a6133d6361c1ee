//! A scripted model for tests: it speaks the wires of OpenAI and of Anthropic on a local port.
//!
//! What it answers depends on the request and the script alone: the first entry that fits. So runs that ask at the same
//! time, and runs that ask again after a crash, get the same answers. It thinks nothing and needs no key.

mod anthropic;
mod openai;
mod script;
mod server;

pub(crate) use script::Script;
pub(crate) use server::{Server, serve};

use serde_json::Value;

/// What a request says, in either wire.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    model: String,
    /// Everything that the system says.
    system: String,
    /// What the user said last.
    user: String,
    /// What the tools gave back since the model spoke last.
    tool: String,
    /// How often the model has spoken, and once more.
    turn: u64,
    /// The names of the tools that it may ask for.
    tools: Vec<String>,
    streams: bool,
    /// Words of the whole request.
    n_words: u64,
}

impl Heard {
    fn says(&mut self, text: &str) {
        self.n_words += text.split_whitespace().count() as u64;
    }
}

/// The text of a content: a string, or a list of parts.
fn text_of(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts
                .iter()
                .filter_map(|part| part.get("text").and_then(Value::as_str));
            texts.collect::<Vec<_>>().join("\n")
        }
        Some(_) | None => String::new(),
    }
}
