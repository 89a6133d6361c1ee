//! What the stream of a task has carried of it.

use wopr_core::value_size;
use wopr_wire::{
    a2a::model::{Part, PartContent, StreamResponse, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus},
    json::Object,
};

use super::made;

/// The most bytes of artifacts that are kept of a stream. The task is asked for more than that.
const MAX_CARRIED: usize = 1 << 20;
/// The most places of a streamed task that are named because they cannot be read.
const MAX_NAMED: usize = 20;
/// What a part counts beside its content.
const PART: usize = 256;

/// The part of a task that its stream has carried.
#[derive(Debug, Default)]
pub(super) struct Carried {
    pub(super) task: Option<Task>,
    /// Something of the task may not have been streamed, or only in pieces. The agent has the whole.
    pub(super) is_partial: bool,
    /// Artifacts were dropped, because there were too many.
    is_cut: bool,
    n_bytes: usize,
}

impl Carried {
    /// Of a stream that begins in the middle of a task: its artifacts count only from the item that has all of them.
    pub(super) fn midway(task: &str) -> Self {
        Self {
            task: Some(begun(task.to_owned(), String::new())),
            is_partial: true,
            is_cut: true,
            n_bytes: 0,
        }
    }

    pub(super) fn take(&mut self, item: StreamResponse) {
        let id = match &item {
            StreamResponse::Message(_) => return,
            StreamResponse::Task(task) => &task.id,
            StreamResponse::StatusUpdate(update) => &update.task_id,
            StreamResponse::ArtifactUpdate(update) => &update.task_id,
        };
        if self.task.as_ref().is_some_and(|task| task.id != *id) {
            return;
        }
        match item {
            StreamResponse::Message(_) => {}
            StreamResponse::Task(task) => {
                self.n_bytes = task
                    .artifacts
                    .iter()
                    .map(|artifact| size_of(&artifact.parts))
                    .sum();
                self.is_partial = false;
                self.is_cut = false;
                self.task = Some(task);
            }
            StreamResponse::StatusUpdate(update) => {
                self.is_partial |= !update.unreadable.is_empty();
                let task = self.begun(update.task_id, update.context_id);
                task.status = update.status;
                note(task, update.unreadable);
            }
            StreamResponse::ArtifactUpdate(update) => {
                let TaskArtifactUpdateEvent {
                    artifact,
                    append,
                    unreadable,
                    ..
                } = update;
                self.n_bytes = self.n_bytes.saturating_add(size_of(&artifact.parts));
                self.is_cut |= self.n_bytes > MAX_CARRIED;
                self.is_partial |= append || self.is_cut || !unreadable.is_empty();
                let is_cut = self.is_cut;
                let task = self.begun(update.task_id, update.context_id);
                note(task, unreadable);
                let artifacts = &mut task.artifacts;
                let known = artifacts
                    .iter_mut()
                    .find(|known| known.artifact_id == artifact.artifact_id);
                match known {
                    _ if is_cut => artifacts.clear(),
                    Some(known) if append => known.parts.extend(artifact.parts),
                    Some(known) => *known = artifact,
                    None => artifacts.push(artifact),
                }
            }
        }
    }

    fn begun(&mut self, id: String, context_id: String) -> &mut Task {
        // A stream that does not begin with the task need not carry all of it.
        self.is_partial |= self.task.is_none();
        self.task.get_or_insert_with(|| begun(id, context_id))
    }

    /// Bytes of what is kept of the task, roughly.
    pub(super) fn n_bytes(&self) -> usize {
        let said = self.task.as_ref().and_then(|task| task.status.message.as_ref());
        let artifacts = if self.is_cut { 0 } else { self.n_bytes };
        artifacts.saturating_add(said.map_or(0, |said| size_of(&said.parts)))
    }

    /// Keeps of the task only what it needs to have ended: all of that if it is small, and without artifacts if there
    /// is no room.
    pub(super) fn trim(&mut self, has_room: impl FnOnce(usize) -> bool) {
        let n_bytes = self.n_bytes();
        let Some(task) = &mut self.task else {
            return;
        };
        task.history = Vec::new();
        task.metadata = Object::new();
        if n_bytes > MAX_CARRIED || !has_room(n_bytes) {
            self.is_cut = true;
            task.artifacts = Vec::new();
            task.status.message = None;
        }
    }

    /// Whether the agent does not work at the task now.
    pub(super) fn rests(&self) -> bool {
        self.task.as_ref().is_some_and(made::rests)
    }

    /// Whether the task has ended, and nothing that was streamed of its result is missing.
    pub(super) fn has_ended(&self) -> bool {
        let state = self.task.as_ref().map(|task| task.status.state);
        state.is_some_and(|state| state.is_terminal() && !(self.is_cut && state == TaskState::Completed))
    }

    /// Whether the task has ended, and all of it was streamed. An agent may stream no artifacts though it has some.
    pub(super) fn is_whole(&self) -> bool {
        let is_ended = |task: &Task| task.status.state.is_terminal() && !task.artifacts.is_empty();
        !self.is_partial && self.task.as_ref().is_some_and(is_ended)
    }
}

/// Bytes of these parts, roughly.
fn size_of(parts: &[Part]) -> usize {
    let sizes = parts.iter().map(|part| {
        PART + match &part.content {
            PartContent::Text(text) | PartContent::Url(text) => text.len(),
            PartContent::Raw(bytes) => bytes.len(),
            PartContent::Data(data) => value_size(data),
        }
    });
    sizes.sum()
}

/// Adds what an update had in it that cannot be read, as far as there is room.
fn note(task: &mut Task, unreadable: Vec<String>) {
    let room = MAX_NAMED.saturating_sub(task.unreadable.len());
    task.unreadable.extend(unreadable.into_iter().take(room));
}

fn begun(id: String, context_id: String) -> Task {
    Task {
        id,
        context_id,
        status: TaskStatus {
            state: TaskState::Submitted,
            message: None,
            timestamp: None,
        },
        artifacts: Vec::new(),
        history: Vec::new(),
        metadata: Object::new(),
        unreadable: Vec::new(),
    }
}
