//! `contextBudget` of a supervisor whose decisions a model takes: how much of the loop the model is told again, and
//! whether what is too much is summed up or left out (RFC 0111).

use serde_json::{Map, Value};

use super::{config::Config, lead::MAX_WINDOW};
use crate::transcript::{MAX_SUMMARY_TOLD, MAX_TURN_TOLD};

/// The most characters that a supervisor may allow: those of all turns that are kept, and of a summary.
pub const MAX_TRANSCRIPT: usize = MAX_WINDOW / 2 * MAX_TURN_TOLD + MAX_SUMMARY_TOLD;
/// The fewest characters that a supervisor may allow: those of a turn.
pub(crate) const MIN_TRANSCRIPT: usize = MAX_TURN_TOLD;
/// The most turns that are kept as they are.
pub(crate) const MAX_KEPT: usize = MAX_WINDOW / 2 - 1;
/// The only unit of budgets: no provider's tokenizer is needed to count it.
pub const TOKEN_COUNTER: &str = "chars";
pub(crate) const COUNTERS: [&str; 1] = [TOKEN_COUNTER];
/// Turns that are kept, unless the supervisor says otherwise.
const KEPT: usize = 2;

/// How much a model is told of the turns before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The most decisions, and ends of what followed from them.
    pub(crate) window: usize,
    /// The most characters, in what they are told as.
    pub(crate) budget: Option<usize>,
    /// How many of the latest turns are kept as they are where older ones are summed up. Without it, they are left out.
    pub(crate) kept: Option<usize>,
}

impl Bounds {
    pub(super) fn read(config: &Map<String, Value>) -> Result<Self, String> {
        let window = whole(config, "", "transcriptWindow", 1, MAX_WINDOW)?.unwrap_or(MAX_WINDOW);
        let Some(object) = object(config, "contextBudget")? else {
            return Ok(Self {
                window,
                budget: None,
                kept: None,
            });
        };
        known(
            object,
            "contextBudget",
            &["transcriptTokenBudget", "tokenCounter", "summarization"],
        )?;
        if let Some(counter) = Config(object).text("tokenCounter")?
            && !COUNTERS.contains(&counter)
        {
            return Err(format!(
                "config.contextBudget.tokenCounter is not '{TOKEN_COUNTER}', which is what this host counts"
            ));
        }
        let kept = match self::object(object, "summarization")? {
            None => None,
            Some(sums) => {
                known(sums, "contextBudget.summarization", &["keepLastTurns"])?;
                let kept = whole(sums, "contextBudget.summarization.", "keepLastTurns", 1, MAX_KEPT)?;
                Some(kept.unwrap_or(KEPT))
            }
        };
        if let Some(kept) = kept.filter(|kept| 2 * kept > window) {
            return Err(format!(
                "config.transcriptWindow has no room for the {kept} turns that contextBudget.summarization keeps: \
                 each is two events"
            ));
        }
        // What has to be told fits at any time, so no bound has to give way to another.
        let least = match kept {
            None => MIN_TRANSCRIPT,
            Some(kept) => kept * MAX_TURN_TOLD + MAX_SUMMARY_TOLD,
        };
        let budget = whole(
            object,
            "contextBudget.",
            "transcriptTokenBudget",
            least,
            MAX_TRANSCRIPT,
        )?;
        Ok(Self { window, budget, kept })
    }
}

fn object<'c>(config: &'c Map<String, Value>, name: &str) -> Result<Option<&'c Map<String, Value>>, String> {
    match config.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object)),
        Some(_) => Err(format!("config.{name} is not an object")),
    }
}

fn known(object: &Map<String, Value>, place: &str, names: &[&str]) -> Result<(), String> {
    match object.keys().find(|name| !names.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(format!(
            "config.{place}.{name} is not known; it has {}",
            names.join(", ")
        )),
    }
}

fn whole(
    object: &Map<String, Value>,
    place: &str,
    name: &str,
    least: usize,
    most: usize,
) -> Result<Option<usize>, String> {
    let rule = || format!("config.{place}{name} is not within {least} to {most}");
    match Config(object).millis(name) {
        Ok(None) => Ok(None),
        Ok(Some(n)) => usize::try_from(n)
            .ok()
            .filter(|n| (least..=most).contains(n))
            .map(Some)
            .ok_or_else(rule),
        Err(_) => Err(rule()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: &Value) -> Result<Bounds, String> {
        Bounds::read(config.as_object().unwrap_or(&Map::new()))
    }

    #[test]
    fn bounds_are_read() {
        let bounds = |window, budget, kept| Ok(Bounds { window, budget, kept });
        assert_eq!(read(&json!({})), bounds(MAX_WINDOW, None, None));
        assert_eq!(read(&json!({ "transcriptWindow": 3 })), bounds(3, None, None));
        assert_eq!(
            read(&json!({ "contextBudget": { "transcriptTokenBudget": 40_000, "tokenCounter": "chars" } })),
            bounds(MAX_WINDOW, Some(40_000), None)
        );
        assert_eq!(
            read(&json!({ "contextBudget": { "summarization": {} } })),
            bounds(MAX_WINDOW, None, Some(KEPT))
        );
        assert_eq!(
            read(
                &json!({ "contextBudget": { "summarization": { "keepLastTurns": 3 } }, "transcriptWindow": 6 })
            ),
            bounds(6, None, Some(3))
        );
    }

    #[test]
    fn bounds_that_contradict_each_other_are_refused() {
        for (config, rule) in [
            (
                json!({ "transcriptWindow": 0 }),
                "config.transcriptWindow is not within 1 to 32",
            ),
            (
                json!({ "contextBudget": 5 }),
                "config.contextBudget is not an object",
            ),
            (
                json!({ "contextBudget": { "tokens": 5 } }),
                "config.contextBudget.tokens is not known; it has transcriptTokenBudget, tokenCounter, summarization",
            ),
            (
                json!({ "contextBudget": { "tokenCounter": "o200k_base" } }),
                "config.contextBudget.tokenCounter is not 'chars', which is what this host counts",
            ),
            (
                json!({ "contextBudget": { "transcriptTokenBudget": 10_999 } }),
                "config.contextBudget.transcriptTokenBudget is not within 11000 to 181500",
            ),
            (
                json!({ "contextBudget": { "transcriptTokenBudget": 20_000, "summarization": { "keepLastTurns": 2 } } }),
                "config.contextBudget.transcriptTokenBudget is not within 27500 to 181500",
            ),
            (
                json!({ "contextBudget": { "summarization": { "keepLastTurns": 16 } } }),
                "config.contextBudget.summarization.keepLastTurns is not within 1 to 15",
            ),
            (
                json!({ "contextBudget": { "summarization": { "keepLastTurns": 2 } }, "transcriptWindow": 3 }),
                "config.transcriptWindow has no room for the 2 turns that contextBudget.summarization keeps: each is two events",
            ),
        ] {
            assert_eq!(read(&config), Err(rule.to_owned()));
        }
    }
}
