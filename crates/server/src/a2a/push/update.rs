//! Task updates as they are pushed to subscribers.
//!
//! The updates are those that a stream of the task sends, in the same order, but without content: the state,
//! the kind of answer the task waits for, and the URLs of artifacts. They are computed when an event is first
//! processed and then stored, so every attempt sends the same. In 0.3 an update is the whole task, so it names the
//! artifacts of earlier updates as well.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::json;
use wopr_app::{Update, View};
use wopr_core::{Event, KernelEvent, Object, Recorded, RunKey, Timestamp, TraceContext};
use wopr_wire::a2a::{
    method::Version,
    model::{
        Artifact, StreamResponse, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent,
    },
    v03,
};

use crate::a2a::{
    artifacts,
    metadata::wrap,
    projection::{Change, TaskProjection, wire_time},
};

/// The most artifacts that a task of 0.3 names, the latest ones: each update stores their ids.
const MAX_NAMED: usize = 100;

/// The stored form of an update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    context: String,
    /// The time of the event, in milliseconds since the epoch.
    at: i64,
    /// The state, as A2A 1.0 spells it.
    state: String,
    status: String,
    /// The kind of answer the task waits for, as in the task's metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asks: Option<String>,
    /// The id of the artifact that the event created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    artifact: Option<String>,
    /// The ids of the artifacts so far, with that one.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    made: VecDeque<String>,
    /// The W3C trace context of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) trace: Option<TraceContext>,
}

/// Converts events to the updates that subscribers get. `before` is the run before the first of them.
pub(super) fn updates(before: &View, events: &[Recorded]) -> Vec<Update> {
    let mut started = before.run.started.as_deref();
    if let (None, Some(Event::Kernel(KernelEvent::RunStarted(begins)))) =
        (started, events.first().map(|first| &first.event))
    {
        started = Some(begins);
    }
    let context = started.and_then(|started| started.context.clone());
    let context = context.unwrap_or_else(|| before.key.run.to_string());
    let trace = started.and_then(|started| started.trace.clone());
    let mut projection = TaskProjection::of(&before.run, &before.plan);
    let known = &before.run.artifacts;
    let latest = known.iter().skip(known.len().saturating_sub(MAX_NAMED));
    let mut made: VecDeque<String> = latest.map(|artifact| artifact.id.clone()).collect();
    let mut updates = Vec::new();
    for recorded in events {
        let change = projection.apply(&recorded.event);
        let artifact = match (&recorded.event, change) {
            // Streamed chunks are not pushed, so report every finished artifact.
            (Event::Kernel(KernelEvent::ArtifactCreated { artifact, .. }), _) => {
                made.push_back(artifact.clone());
                if made.len() > MAX_NAMED {
                    made.pop_front();
                }
                Some(artifact.clone())
            }
            (_, Change::Status) => None,
            (_, Change::None | Change::Artifact | Change::Piece | Change::Handoff) => continue,
        };
        let kept = Kept {
            context: context.clone(),
            at: recorded.at.millis(),
            state: projection.state().as_str().to_owned(),
            status: projection.status().as_str().to_owned(),
            asks: projection
                .asked()
                .first()
                .map(|waiting| waiting.kind.as_str().to_owned()),
            artifact,
            made: made.clone(),
            trace: trace.clone(),
        };
        match serde_json::to_vec(&kept) {
            Ok(body) => updates.push(Update {
                seq: recorded.seq,
                body,
            }),
            Err(error) => tracing::error!(run = %before.key, %error, "update does not serialise"),
        }
    }
    updates
}

impl Kept {
    pub(super) fn read(body: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(body)
    }

    /// Builds the body of a push: a task in 0.3, a stream item in 1.0.
    pub(super) fn body(
        &self,
        version: Version,
        run: &RunKey,
        seq: u64,
        public_url: &str,
    ) -> Result<Vec<u8>, serde_json::Error> {
        let task_id = run.run.to_string();
        let artifact = self.artifact.as_ref().map(|id| reference(run, id, public_url));
        let status = TaskStatus {
            state: TaskState::from_name(&self.state).unwrap_or(TaskState::Working),
            message: None,
            timestamp: Some(wire_time(Timestamp::from_millis(self.at))),
        };
        let context_id = self.context.clone();
        let metadata = wrap(self.about(seq));
        match (version, artifact) {
            (Version::V0_3, _) => {
                let made = self.made.iter().map(|id| reference(run, id, public_url));
                let task = Task {
                    id: task_id,
                    context_id,
                    status,
                    artifacts: made.collect(),
                    history: Vec::new(),
                    metadata,
                    unreadable: Vec::new(),
                };
                serde_json::to_vec(&v03::Task::from(task))
            }
            (Version::V1_0, Some(artifact)) => {
                serde_json::to_vec(&StreamResponse::ArtifactUpdate(TaskArtifactUpdateEvent {
                    task_id,
                    context_id,
                    artifact,
                    append: false,
                    last_chunk: true,
                    metadata,
                    unreadable: Vec::new(),
                }))
            }
            (Version::V1_0, None) => {
                serde_json::to_vec(&StreamResponse::StatusUpdate(TaskStatusUpdateEvent {
                    task_id,
                    context_id,
                    status,
                    metadata,
                    unreadable: Vec::new(),
                }))
            }
        }
    }

    /// Builds `metadata.openwop`. The sequence number identifies duplicates; the artifact is the one that is new.
    fn about(&self, seq: u64) -> Object {
        let mut about = Object::new();
        about.insert("sequence".to_owned(), seq.into());
        about.insert("status".to_owned(), self.status.as_str().into());
        if let Some(kind) = &self.asks {
            about.insert("interrupt".to_owned(), json!({ "kind": kind }));
        }
        if let Some(artifact) = &self.artifact {
            about.insert("artifactId".to_owned(), artifact.as_str().into());
        }
        about
    }
}

/// An artifact whose only part is the URL of its content.
fn reference(run: &RunKey, id: &str, public_url: &str) -> Artifact {
    Artifact {
        artifact_id: id.to_owned(),
        name: None,
        description: None,
        parts: vec![artifacts::address(public_url, run, id)],
        metadata: Object::new(),
        extensions: Vec::new(),
    }
}
