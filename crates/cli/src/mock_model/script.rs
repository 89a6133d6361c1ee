//! The script: entries with what they answer and when.

use std::collections::{HashMap, VecDeque};

use serde::Deserialize;
use serde_json::Value;

use super::Heard;

/// How many idempotency keys are remembered.
const MAX_REMEMBERED: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Script {
    replies: Vec<Entry>,
}

/// An answer, and when it is given.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Entry {
    when: When,
    /// How often it is given; without end where absent.
    times: Option<u64>,
    pub(super) text: Option<String>,
    /// The text is this document.
    json: Option<Value>,
    /// The text in the pieces in which it is streamed.
    chunks: Option<Vec<String>>,
    pub(super) tool_calls: Vec<Tool>,
    pub(super) refusal: Option<String>,
    pub(super) stop: Stop,
    /// An HTTP status in the place of an answer.
    pub(super) status: Option<u16>,
    /// Seconds, with a status.
    pub(super) retry_after: Option<u64>,
    /// Milliseconds before the answer, and between two pieces.
    pub(super) delay_ms: u64,
    usage: Option<Usage>,
}

/// Texts that a request must contain. An entry without any fits every request.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct When {
    model: Option<String>,
    system: Option<String>,
    /// In what the user said last.
    user: Option<String>,
    /// In what the tools gave back.
    tool: Option<String>,
    /// How often the model has spoken, and once more.
    turn: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tool {
    pub(super) name: String,
    #[serde(default)]
    pub(super) arguments: Value,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Stop {
    #[default]
    End,
    /// The answer ends at its limit of tokens.
    Length,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Usage {
    pub(super) input: u64,
    pub(super) output: u64,
}

impl Script {
    /// # Errors
    /// The text is no script.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let script: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        for (n, entry) in script.replies.iter().enumerate() {
            entry.check().map_err(|rule| format!("replies[{n}]: {rule}"))?;
        }
        Ok(script)
    }
}

impl Entry {
    fn check(&self) -> Result<(), &'static str> {
        let texts = [self.text.is_some(), self.json.is_some(), self.chunks.is_some()];
        let n_texts = texts.into_iter().filter(|is_there| *is_there).count();
        if n_texts > 1 {
            return Err("has more than one of text, json and chunks");
        }
        if let Some(status) = self.status
            && !(400..=599).contains(&status)
        {
            return Err("has a status that is no error: 400 to 599");
        }
        if self.retry_after.is_some() && self.status.is_none() {
            return Err("has retryAfter without status");
        }
        if n_texts == 0 && self.tool_calls.is_empty() && self.refusal.is_none() && self.status.is_none() {
            return Err("answers nothing: give it text, json, chunks, toolCalls, refusal or status");
        }
        Ok(())
    }

    fn fits(&self, heard: &Heard) -> bool {
        let When {
            model,
            system,
            user,
            tool,
            turn,
        } = &self.when;
        let has = |wanted: &Option<String>, text: &str| {
            wanted
                .as_ref()
                .is_none_or(|wanted| text.contains(wanted.as_str()))
        };
        has(model, &heard.model)
            && has(system, &heard.system)
            && has(user, &heard.user)
            && has(tool, &heard.tool)
            && turn.is_none_or(|turn| turn == heard.turn)
    }

    /// The text in the pieces in which it is streamed.
    pub(super) fn pieces(&self) -> Vec<String> {
        match (&self.text, &self.json, &self.chunks) {
            (_, _, Some(chunks)) => chunks.clone(),
            (_, Some(document), None) => vec![document.to_string()],
            (Some(text), None, None) => text.split_inclusive(' ').map(str::to_owned).collect(),
            (None, None, None) => Vec::new(),
        }
    }

    pub(super) fn usage(&self, heard: &Heard) -> Usage {
        let words = self.pieces().concat().split_whitespace().count() as u64;
        self.usage.unwrap_or(Usage {
            input: heard.n_words,
            output: words,
        })
    }
}

/// A script while it is played.
#[derive(Debug)]
pub(super) struct Play {
    script: Script,
    /// How often each entry was given.
    n_given: Vec<u64>,
    /// The entries that were given for idempotency keys.
    remembered: HashMap<String, usize>,
    order: VecDeque<String>,
}

impl Play {
    pub(super) fn new(script: Script) -> Self {
        Self {
            n_given: vec![0; script.replies.len()],
            script,
            remembered: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// The answer to a request. One that is repeated under its key gets the same, unless that was an error.
    pub(super) fn answer(&mut self, heard: &Heard, key: Option<&str>) -> Option<(usize, Entry)> {
        if let Some(index) = key.and_then(|key| self.remembered.get(key)) {
            return Some((*index, self.script.replies.get(*index)?.clone()));
        }
        let replies = self.script.replies.iter().enumerate();
        let mut fitting = replies.filter(|(index, entry)| {
            entry.fits(heard) && entry.times.is_none_or(|times| self.n_given[*index] < times)
        });
        let (index, entry) = fitting.next()?;
        let entry = entry.clone();
        self.n_given[index] += 1;
        if let (Some(key), None) = (key, entry.status) {
            if self.order.len() == MAX_REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.remembered.remove(&oldest);
            }
            self.order.push_back(key.to_owned());
            self.remembered.insert(key.to_owned(), index);
        }
        Some((index, entry))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{anthropic, openai},
        *,
    };

    fn heard(user: &str, turn: u64) -> Heard {
        Heard {
            user: user.to_owned(),
            turn,
            ..Heard::default()
        }
    }

    #[test]
    fn first_entry_that_fits_answers() {
        let script = r#"{"replies": [
            {"when": {"user": "weather", "turn": 1}, "toolCalls": [{"name": "forecast"}]},
            {"when": {"user": "weather"}, "text": "Rain.", "times": 1},
            {"text": "What?"}
        ]}"#;
        let mut play = Play::new(Script::parse(script).unwrap());
        let mut index = |user, turn, key| play.answer(&heard(user, turn), key).unwrap().0;
        assert_eq!(index("the weather?", 1, None), 0);
        assert_eq!(index("the weather?", 2, Some("k")), 1);
        assert_eq!(index("the weather?", 2, Some("other")), 2);
        // The same request again, as after a crash.
        assert_eq!(index("the weather?", 2, Some("k")), 1);
        assert_eq!(index("hello", 1, None), 2);
    }

    #[test]
    fn a_stream_pauses_before_its_pieces_only() {
        let script = r#"{"replies": [{"chunks": ["a", "b"], "toolCalls": [{"name": "forecast"}]}]}"#;
        let mut play = Play::new(Script::parse(script).unwrap());
        let (index, entry) = play.answer(&heard("x", 1), None).unwrap();
        for frames in [
            openai::events(&heard("x", 1), index, &entry),
            anthropic::events(&heard("x", 1), index, &entry),
        ] {
            let pieces: Vec<_> = frames.iter().filter(|frame| frame.is_piece).collect();
            assert_eq!(pieces.len(), 3, "{frames:?}");
            for (piece, part) in pieces.iter().zip([r#":"a""#, r#":"b""#]) {
                assert!(piece.text.contains(part), "{}", piece.text);
            }
        }
    }

    #[test]
    fn errors_are_not_repeated_under_a_key() {
        let script = r#"{"replies": [{"status": 429, "retryAfter": 1, "times": 1}, {"text": "ok"}]}"#;
        let mut play = Play::new(Script::parse(script).unwrap());
        assert_eq!(play.answer(&heard("x", 1), Some("k")).unwrap().0, 0);
        assert_eq!(play.answer(&heard("x", 1), Some("k")).unwrap().0, 1);
    }

    #[test]
    fn wrong_scripts_are_refused() {
        for (script, rule) in [
            (r#"{"replies": [{"text": "a", "json": {}}]}"#, "more than one"),
            (r#"{"replies": [{"text": "a", "color": 1}]}"#, "unknown field"),
            (
                r#"{"replies": [{"when": {"role": "x"}, "text": "a"}]}"#,
                "unknown field",
            ),
            (r#"{"replies": [{}]}"#, "answers nothing"),
            (r#"{"replies": [{"status": 200}]}"#, "no error"),
            (
                r#"{"replies": [{"text": "a", "retryAfter": 1}]}"#,
                "without status",
            ),
            (r#"{}"#, "missing field"),
        ] {
            let error = Script::parse(script).unwrap_err();
            assert!(error.contains(rule), "{script}: {error}");
        }
    }
}
