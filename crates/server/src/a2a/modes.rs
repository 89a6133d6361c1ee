//! Media types that a skill accepts and returns.
//!
//! A workflow declares them in `metadata.a2a.inputModes` and `outputModes`; without a declaration, the modes
//! on the host's card apply. A type may end in `/*`, and `*/*` matches any type. Bytes without a media type
//! are not checked.

use std::borrow::Cow;

use serde_json::Value;
use wopr_core::Plan;
use wopr_wire::a2a::{
    error::A2aError,
    model::{Message, PartContent},
};

use super::supported::{INPUT_MODES, OUTPUT_MODES};

const TEXT: &str = "text/plain";
const JSON: &str = "application/json";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Modes {
    input: Option<Vec<String>>,
    output: Option<Vec<String>>,
}

impl Modes {
    /// Reads the declaration of a workflow.
    pub(super) fn of(plan: &Plan) -> Self {
        let about = plan.metadata("a2a");
        let list = |name: &str| {
            let list = about?.get(name)?.as_array()?;
            let list: Vec<_> = list.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            (!list.is_empty()).then_some(list)
        };
        Self {
            input: list("inputModes"),
            output: list("outputModes"),
        }
    }

    /// The input and output modes for the card; empty if they are the host's.
    pub(super) fn told(self) -> (Vec<String>, Vec<String>) {
        (self.input.unwrap_or_default(), self.output.unwrap_or_default())
    }

    fn input(&self) -> Vec<&str> {
        named(self.input.as_deref(), &INPUT_MODES)
    }

    fn output(&self) -> Vec<&str> {
        named(self.output.as_deref(), &OUTPUT_MODES)
    }

    /// Checks that the skill accepts the media type of every part.
    pub(super) fn check_message(&self, message: &Message) -> Result<(), A2aError> {
        let taken = self.input();
        let takes = |mode: &str| taken.iter().any(|known| fits(known, mode));
        for (index, part) in message.parts.iter().enumerate() {
            let said = part.media_type.as_deref();
            // Accept text parts for `text/plain` and data parts for JSON, whatever their declared type.
            let is_taken = match (&part.content, said) {
                (PartContent::Text(_), said) => takes(TEXT) || said.is_some_and(takes),
                (PartContent::Data(_), said) => takes(JSON) || said.is_some_and(takes),
                (PartContent::Raw(_) | PartContent::Url(_), Some(said)) => takes(said),
                (PartContent::Raw(_) | PartContent::Url(_), None) => true,
            };
            if !is_taken {
                return Err(A2aError::ContentTypeNotSupported {
                    detail: format!(
                        "message.parts[{index}] has a type that the skill does not take; it takes {}",
                        taken.join(", ")
                    ),
                });
            }
        }
        Ok(())
    }

    /// Checks that the client accepts at least one type that the skill returns.
    pub(super) fn check_accepted(&self, accepted: &[String]) -> Result<(), A2aError> {
        let given = self.output();
        let is_wanted = |given: &&str| accepted.iter().any(|mode| fits(mode, given) || fits(given, mode));
        if accepted.is_empty() || given.iter().any(is_wanted) {
            return Ok(());
        }
        Err(A2aError::ContentTypeNotSupported {
            detail: format!(
                "none of the accepted output modes is offered, which are {}",
                given.join(", ")
            ),
        })
    }
}

fn named<'a>(own: Option<&'a [String]>, host: &[&'a str]) -> Vec<&'a str> {
    own.map_or_else(|| host.to_vec(), |own| own.iter().map(String::as_str).collect())
}

/// Returns `true` if a type is in a range. `text` and `json` are the names used by early clients.
fn fits(range: &str, mode: &str) -> bool {
    let (range, mode) = (essence(range), essence(mode));
    range == "*/*" || range == mode || {
        let kind = range.strip_suffix("/*");
        kind.is_some_and(|kind| mode.split('/').next() == Some(kind))
    }
}

fn essence(mode: &str) -> Cow<'_, str> {
    let essence = mode.split(';').next().unwrap_or_default().trim();
    let essence = if essence.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(essence.to_ascii_lowercase())
    } else {
        Cow::Borrowed(essence)
    };
    match &*essence {
        "text" => Cow::Borrowed(TEXT),
        "json" => Cow::Borrowed(JSON),
        "*" => Cow::Borrowed("*/*"),
        _ => essence,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wopr_wire::{
        a2a::model::{Part, Role},
        json::Decode as _,
    };

    use super::*;

    fn modes(input: &[&str], output: &[&str]) -> Modes {
        let list = |list: &[&str]| {
            let list: Vec<_> = list.iter().map(ToString::to_string).collect();
            (!list.is_empty()).then_some(list)
        };
        Modes {
            input: list(input),
            output: list(output),
        }
    }

    #[test]
    fn matches_output_modes() {
        for (given, accepted, wanted) in [
            (&[][..], &[][..], true),
            (&[], &["text/plain"], true),
            (&[], &["image/png", "application/json; charset=utf-8"], true),
            (&[], &["*/*"], true),
            (&[], &["text/*"], true),
            (&[], &["TEXT"], true),
            (&[], &["image/png"], false),
            (&[], &["text/html"], false),
            (&["image/*"], &["image/png"], true),
            (&["image/png"], &["text/plain"], false),
            (&["*/*"], &["text/html"], true),
        ] {
            let accepted: Vec<_> = accepted.iter().map(ToString::to_string).collect();
            let is_offered = modes(&[], given).check_accepted(&accepted).is_ok();
            assert_eq!(is_offered, wanted, "{given:?} {accepted:?}");
        }
    }

    #[test]
    fn checks_parts_against_input_modes() {
        for (taken, part, wanted) in [
            (&[][..], json!({"text": "a"}), true),
            (&[], json!({"text": "a", "mediaType": "text/markdown"}), true),
            (&[], json!({"data": {}}), true),
            (&[], json!({"raw": "aGk="}), true),
            (
                &[],
                json!({"raw": "aGk=", "mediaType": "text/plain; charset=utf-8"}),
                true,
            ),
            (&[], json!({"raw": "aGk=", "mediaType": "image/png"}), false),
            (
                &[],
                json!({"url": "https://a.example/x", "mediaType": "image/png"}),
                false,
            ),
            (
                &["image/*"],
                json!({"raw": "aGk=", "mediaType": "IMAGE/PNG"}),
                true,
            ),
            (&["image/*"], json!({"text": "a"}), false),
            (&["image/*"], json!({"data": {}}), false),
            (&["*/*"], json!({"raw": "aGk=", "mediaType": "x/y"}), true),
        ] {
            let parts = vec![Part::decode(part.clone()).unwrap()];
            let message = Message::new("m", Role::User, parts);
            let is_taken = modes(taken, &[]).check_message(&message);
            assert_eq!(is_taken.is_ok(), wanted, "{taken:?} {part}");
            if let Err(error) = is_taken {
                assert_eq!(error.code(), -32005);
            }
        }
    }
}
