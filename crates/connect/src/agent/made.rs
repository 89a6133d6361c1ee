//! What an agent makes, as it arrives: the artifacts of its task become artifacts of the run.
//!
//! A task is looked at as a whole, so an artifact is known to be complete when another one follows it, or when
//! the task has ended or asks something. Until then its text is streamed as it grows. The cursor says what is
//! recorded, so that nothing is recorded twice, also after a restart.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wopr_core::{ContentHash, Produced};
use wopr_wire::a2a::model::{Artifact, Part, PartContent, Task};

use crate::redact::Secrets;

/// The most artifacts of one call that become artifacts of the run. All are in the outputs of the step.
const MAX_ARTIFACTS: usize = 500;
/// The most chunks that the texts of one call are streamed in, and the most bytes of one text. What is longer
/// arrives as a whole.
const MAX_CHUNKS: u32 = 500;
const MAX_STREAMED: usize = 1 << 20;
/// How many bytes of artifacts and chunks of one call become part of the run, however often the agent changes them.
/// The look that exceeds it is the last one that records any. All are in the outputs of the step.
const MAX_BYTES: usize = 32 << 20;
/// Longest name of an artifact, in bytes.
const MAX_NAME: usize = 256;

/// What is recorded of a task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Cursor {
    /// Digests of recorded artifacts, by digests of their ids.
    done: BTreeMap<String, String>,
    n_artifacts: usize,
    n_chunks: u32,
    /// Bytes of both.
    #[serde(default)]
    n_bytes: usize,
    streamed: Option<Streamed>,
}

/// The artifact whose text is being streamed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Streamed {
    /// Digest of its id.
    id: String,
    n_bytes: usize,
    /// Digest of those bytes.
    digest: String,
}

impl Cursor {
    pub(super) fn read(stored: Option<&Value>) -> Self {
        let read = stored.map(Self::deserialize);
        read.and_then(Result::ok).unwrap_or_default()
    }

    /// Returns what the task has and the run has not, and counts it as recorded. An end of a growing text that may
    /// begin one of the secrets waits for what follows it; without secrets, such a text is not streamed.
    pub(super) fn advance(&mut self, task: &Task, secrets: Option<&Secrets>) -> Vec<Produced> {
        let rests = rests(task);
        let mut produced = Vec::new();
        if self.n_bytes >= MAX_BYTES {
            return produced;
        }
        for (index, artifact) in task.artifacts.iter().enumerate() {
            let id = digest(artifact.artifact_id.as_bytes());
            let is_complete = rests || index + 1 < task.artifacts.len();
            match self.done.get(&id) {
                // It may have changed; only the last change counts.
                Some(recorded) if rests && *recorded != digest_of(artifact) => {}
                Some(_) => continue,
                None => {}
            }
            if self.n_artifacts >= MAX_ARTIFACTS {
                break;
            }
            let text = text_of(&artifact.parts);
            if is_complete {
                let is_streamed = self.streamed.as_ref().is_some_and(|streamed| streamed.id == id);
                if let Some(text) = text.as_deref().filter(|_| is_streamed) {
                    let (text, starts) = self.rest(&id, text);
                    produced.push(Produced::Chunk {
                        text: text.to_owned(),
                        starts,
                        is_last: true,
                        end: None,
                    });
                }
                // The artifact takes the place of what has been streamed, also if that was of another one.
                self.streamed = None;
                self.done.insert(id, digest_of(artifact));
                self.n_artifacts += 1;
                produced.push(Produced::Artifact {
                    name: name_of(artifact),
                    content: content_of(artifact, text),
                });
            } else if let Some(secrets) = secrets
                && let Some(mut text) = text.filter(|text| text.len() <= MAX_STREAMED)
                && self.n_chunks < MAX_CHUNKS
            {
                text.truncate(text.len() - secrets.begun_in(&text));
                let (rest, starts) = self.rest(&id, &text);
                if rest.is_empty() {
                    continue;
                }
                produced.push(Produced::Chunk {
                    text: rest.to_owned(),
                    starts,
                    is_last: false,
                    end: None,
                });
                self.n_chunks += 1;
                self.streamed = Some(Streamed {
                    id,
                    n_bytes: text.len(),
                    digest: digest(text.as_bytes()),
                });
            }
        }
        // If the agent has dropped an artifact, an empty last chunk replaces what was streamed of it.
        let is_dropped = |streamed: &Streamed| {
            let mut ids = task
                .artifacts
                .iter()
                .map(|artifact| digest(artifact.artifact_id.as_bytes()));
            rests && !ids.any(|id| id == streamed.id)
        };
        if self.streamed.take_if(|streamed| is_dropped(streamed)).is_some() {
            produced.push(Produced::Chunk {
                text: String::new(),
                starts: true,
                is_last: true,
                end: None,
            });
        }
        self.n_bytes += produced.iter().map(Produced::size).sum::<usize>();
        produced
    }

    /// The part of a text that has not been streamed, and whether it replaces what has.
    fn rest<'t>(&self, id: &str, text: &'t str) -> (&'t str, bool) {
        let before = self.streamed.as_ref().filter(|streamed| streamed.id == id);
        let known = before.and_then(|streamed| {
            let (head, rest) = text.split_at_checked(streamed.n_bytes)?;
            (digest(head.as_bytes()) == streamed.digest).then_some(rest)
        });
        known.map_or((text, true), |rest| (rest, false))
    }
}

/// Whether an artifact of the task may still grow.
pub(super) fn may_grow(task: &Task) -> bool {
    !task.artifacts.is_empty() && !rests(task)
}

/// Whether the agent does not work at the task now: the task has ended, or it waits for an answer.
pub(super) fn rests(task: &Task) -> bool {
    let state = task.status.state;
    state.is_terminal() || state.is_interrupted()
}

fn digest(bytes: &[u8]) -> String {
    ContentHash::of(bytes).as_str().chars().take(16).collect()
}

fn digest_of(artifact: &Artifact) -> String {
    digest(&serde_json::to_vec(&artifact.parts).unwrap_or_default())
}

fn name_of(artifact: &Artifact) -> Option<String> {
    let name = artifact.name.as_deref().filter(|name| !name.is_empty())?;
    Some(name[..name.floor_char_boundary(MAX_NAME)].to_owned())
}

/// The text of an artifact that has nothing else.
fn text_of(parts: &[Part]) -> Option<String> {
    let texts = parts.iter().map(|part| match &part.content {
        PartContent::Text(text) => Some(text.as_str()),
        PartContent::Raw(_) | PartContent::Url(_) | PartContent::Data(_) => None,
    });
    texts.collect::<Option<Vec<_>>>().map(|texts| texts.concat())
}

/// The content of an artifact of a run: a text, data, `{"files"}`, or else `{"parts"}`.
fn content_of(artifact: &Artifact, text: Option<String>) -> Value {
    if let Some(text) = text {
        return text.into();
    }
    if let [part] = artifact.parts.as_slice()
        && let PartContent::Data(data) = &part.content
    {
        return data.clone();
    }
    let files = artifact.parts.iter().map(file_of).collect::<Option<Vec<_>>>();
    match files {
        Some(files) => json!({ "files": files }),
        None => json!({ "parts": artifact.parts }),
    }
}

fn file_of(part: &Part) -> Option<Value> {
    let shown = serde_json::to_value(part).ok()?;
    let mut file = match &part.content {
        PartContent::Url(url) => json!({ "url": url }),
        PartContent::Raw(_) => json!({ "bytes": shown.get("raw")? }),
        PartContent::Text(_) | PartContent::Data(_) => return None,
    };
    for (name, value) in [("name", &part.filename), ("mediaType", &part.media_type)] {
        if let Some(value) = value {
            file[name] = value.as_str().into();
        }
    }
    Some(file)
}

#[cfg(test)]
mod tests {
    use wopr_wire::a2a::model::{TaskState, TaskStatus};
    use wopr_wire::json::Object;

    use super::*;

    fn task(state: TaskState, artifacts: &[(&str, &[&str])]) -> Task {
        let artifacts = artifacts.iter().map(|(id, texts)| Artifact {
            artifact_id: (*id).to_owned(),
            name: None,
            description: None,
            parts: texts.iter().map(|text| Part::text(*text)).collect(),
            metadata: Object::new(),
            extensions: Vec::new(),
        });
        Task {
            id: "t".to_owned(),
            context_id: String::new(),
            status: TaskStatus {
                state,
                message: None,
                timestamp: None,
            },
            artifacts: artifacts.collect(),
            history: Vec::new(),
            metadata: Object::new(),
            unreadable: Vec::new(),
        }
    }

    fn chunk(text: &str, starts: bool, is_last: bool) -> Produced {
        Produced::Chunk {
            text: text.to_owned(),
            starts,
            is_last,
            end: None,
        }
    }

    fn whole(text: &str) -> Produced {
        Produced::Artifact {
            name: None,
            content: text.into(),
        }
    }

    /// What looks at a task produce, with the cursor stored in between.
    fn looks(tasks: &[Task]) -> Vec<Vec<Produced>> {
        let mut stored = None;
        let mut all = Vec::new();
        for task in tasks {
            let mut cursor = Cursor::read(stored.as_ref());
            all.push(cursor.advance(task, Some(&Secrets::default())));
            stored = serde_json::to_value(cursor).ok();
        }
        all
    }

    #[test]
    fn a_growing_text_is_streamed_and_then_recorded() {
        let made = looks(&[
            task(TaskState::Working, &[("a", &["one "])]),
            task(TaskState::Working, &[("a", &["one "])]),
            task(TaskState::Working, &[("a", &["one ", "two "])]),
            task(TaskState::Completed, &[("a", &["one ", "two ", "three"])]),
        ]);
        assert_eq!(
            made,
            [
                vec![chunk("one ", true, false)],
                vec![],
                vec![chunk("two ", false, false)],
                vec![chunk("three", false, true), whole("one two three")],
            ]
        );
    }

    #[test]
    fn the_beginning_of_a_secret_waits_for_what_follows() {
        let secrets = Secrets::of(["sk-123456789"]);
        let mut cursor = Cursor::default();
        let mut made = Vec::new();
        // Answers come with whole secrets replaced.
        for text in [
            "key: sk-1234",
            "key: sk-12345 is none, sk",
            "key: sk-12345 is none, [redacted]",
        ] {
            let growing = task(TaskState::Working, &[("a", &[text])]);
            made.extend(cursor.advance(&growing, Some(&secrets)));
        }
        assert_eq!(
            made,
            [
                chunk("key: ", true, false),
                chunk("sk-12345 is none, ", false, false),
                chunk("[redacted]", false, false),
            ]
        );
    }

    #[test]
    fn a_text_that_is_replaced_starts_again() {
        let made = looks(&[
            task(TaskState::Working, &[("a", &["one"])]),
            task(TaskState::Working, &[("a", &["two"])]),
            task(TaskState::Completed, &[("a", &["three"])]),
        ]);
        assert_eq!(
            made,
            [
                vec![chunk("one", true, false)],
                vec![chunk("two", true, false)],
                vec![chunk("three", true, true), whole("three")],
            ]
        );
    }

    #[test]
    fn an_artifact_is_complete_when_another_follows_or_the_agent_asks() {
        let made = looks(&[
            task(TaskState::Working, &[("a", &["one"]), ("b", &["t"])]),
            task(TaskState::InputRequired, &[("a", &["one"]), ("b", &["two"])]),
            task(TaskState::Working, &[("a", &["one"]), ("b", &["two"])]),
            task(TaskState::Completed, &[("a", &["one"]), ("b", &["more"])]),
        ]);
        assert_eq!(
            made,
            [
                vec![whole("one"), chunk("t", true, false)],
                vec![chunk("wo", false, true), whole("two")],
                vec![],
                vec![whole("more")],
            ]
        );
    }

    #[test]
    fn an_artifact_between_chunks_of_another_begins_them_anew() {
        let made = looks(&[
            task(TaskState::Working, &[("a", &["one "])]),
            task(TaskState::Working, &[("a", &["one "]), ("b", &["x"])]),
            task(TaskState::InputRequired, &[("a", &["one two"])]),
            task(TaskState::Working, &[("a", &["one two"]), ("c", &["y"])]),
            task(TaskState::Completed, &[("a", &["one two three"]), ("c", &["yz"])]),
        ]);
        assert_eq!(
            made,
            [
                vec![chunk("one ", true, false)],
                vec![chunk("", false, true), whole("one "), chunk("x", true, false)],
                vec![whole("one two")],
                vec![chunk("y", true, false)],
                vec![whole("one two three"), whole("yz")],
            ]
        );
    }

    #[test]
    fn a_streamed_text_that_the_agent_drops_is_ended_without_any() {
        for state in [TaskState::Completed, TaskState::InputRequired] {
            let made = looks(&[
                task(TaskState::Working, &[("a", &["one "])]),
                task(TaskState::Working, &[]),
                task(state, &[]),
                task(TaskState::Completed, &[("b", &["two"])]),
            ]);
            assert_eq!(
                made,
                [
                    vec![chunk("one ", true, false)],
                    vec![],
                    vec![chunk("", true, true)],
                    vec![whole("two")],
                ]
            );
        }
    }

    #[test]
    fn a_task_without_end_of_artifacts_is_bounded() {
        let ids: Vec<String> = (0..2 * MAX_ARTIFACTS).map(|n| n.to_string()).collect();
        let artifacts: Vec<(&str, &[&str])> = ids.iter().map(|id| (id.as_str(), &["x"][..])).collect();
        let mut cursor = Cursor::default();
        let made = cursor.advance(&task(TaskState::Completed, &artifacts), None);
        assert_eq!(made.len(), MAX_ARTIFACTS);
        let stored = serde_json::to_vec(&cursor).expect("serializes");
        assert!(stored.len() < 64 << 10, "{}", stored.len());
    }

    #[test]
    fn artifacts_that_change_again_and_again_are_bounded_in_bytes() {
        let mut cursor = Cursor::default();
        let mut n_bytes = 0;
        for n in 0..100 {
            let text = format!("{n}{}", "x".repeat(1 << 20));
            let made = cursor.advance(&task(TaskState::InputRequired, &[("a", &[text.as_str()])]), None);
            n_bytes += made.iter().map(Produced::size).sum::<usize>();
        }
        assert!((MAX_BYTES..MAX_BYTES + (2 << 20)).contains(&n_bytes), "{n_bytes}");
    }

    #[test]
    fn parts_other_than_text_keep_their_form() {
        let mut data = task(TaskState::Completed, &[("a", &[])]);
        data.artifacts[0].parts = vec![Part::data(json!({ "n": 1 }))];
        assert_eq!(content_of(&data.artifacts[0], None), json!({ "n": 1 }));
        let mut file = Part::from(PartContent::Url("https://a.example/f".to_owned()));
        file.filename = Some("f".to_owned());
        data.artifacts[0].parts = vec![file.clone()];
        let shown = json!({ "url": "https://a.example/f", "name": "f" });
        assert_eq!(content_of(&data.artifacts[0], None), json!({ "files": [shown] }));
        data.artifacts[0].parts = vec![file, Part::text("t")];
        assert!(content_of(&data.artifacts[0], None)["parts"].is_array());
    }
}
