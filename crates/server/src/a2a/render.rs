//! A run as a task.
//!
//! Everything here comes from a view of the run, and from its log only what the view does not hold: the contents
//! of artifacts, the messages exchanged, and for a working task the time since when. A run that ended or asked
//! something in the append that created it is shown without reading anything.

use serde_json::{Value, json};
use wopr_core::{Event, Failure, Recorded, RunKey, Seq, Timestamp};
use wopr_engine::View;
use wopr_wire::{
    a2a::model::{Artifact, Message, Metadata, Part, Role, Task, TaskState, TaskStatus},
    json::Object,
    time,
};

use super::{
    history::{self, Wanted},
    projection::{Standing, state_of, wire_state},
    question::{self, Question},
    service::{Error, Service},
};
use crate::auth::{Caller, Scope};

/// Messages of a task shown at most.
pub(super) const MAX_HISTORY: u32 = 100;
/// Events read at once while artifacts are collected.
const PAGE: u64 = 256;

/// How much of a task is shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    /// How many of the latest messages; all there is room for where absent.
    pub(super) history: Option<u32>,
    /// Whether artifacts are.
    pub(super) artifacts: bool,
}

impl Shown {
    /// How many messages are shown.
    pub(super) fn n_messages(self) -> usize {
        self.history.unwrap_or(MAX_HISTORY).min(MAX_HISTORY) as usize
    }
}

/// The context of a run: its own, or for one that was not begun by a message its id.
pub(super) fn context_of(view: &View) -> String {
    let context = (view.run.started.as_ref()).and_then(|started| started.context.clone());
    context.unwrap_or_else(|| view.key.run.to_string())
}

/// A time as clients see it.
pub(super) fn wire_time(time: Timestamp) -> time::Timestamp {
    time::Timestamp::from_millis(time.millis())
}

impl Service {
    /// The task of a run.
    pub(super) async fn task(&self, caller: &Caller, view: &View, shown: Shown) -> Result<Task, Error> {
        let mut task = self.bare_task(caller, view, shown).await?;
        let n = shown.n_messages();
        if n > 0 {
            let said = task
                .status
                .message
                .as_ref()
                .map(|message| message.message_id.as_str());
            let wanted = Wanted {
                key: &view.key,
                context: &task.context_id,
                until: view.run.head,
                current: said,
                n,
            };
            task.history = history::read(self.host.engine(), wanted).await?;
        }
        Ok(task)
    }

    /// The task of a run that the message just created: the message is all its history.
    pub(super) async fn new_task(
        &self,
        caller: &Caller,
        view: &View,
        message: Message,
        shown: Shown,
    ) -> Result<Task, Error> {
        let mut task = self.bare_task(caller, view, shown).await?;
        if shown.n_messages() > 0 {
            task.history = vec![message];
        }
        Ok(task)
    }

    async fn bare_task(&self, caller: &Caller, view: &View, shown: Shown) -> Result<Task, Error> {
        let engine = self.host.engine();
        let run = &view.run;
        let context_id = context_of(view);
        let standing = Standing::of(run, &view.plan);
        let mut questions = Vec::with_capacity(standing.asked().len());
        for waiting in standing.asked() {
            questions.push(question::open_at(engine, view, waiting).await?);
        }
        let error = run.error.as_ref().map(|(error, _)| error);
        let timestamp = self.since(view, questions.first()).await?;
        let mut about = self.about(caller, standing.status(), &questions, error);
        about.insert("runId".to_owned(), view.key.run.as_str().into());
        about.insert("workflowId".to_owned(), view.plan.id().as_str().into());
        let artifacts = if shown.artifacts && !run.artifacts.is_empty() {
            self.artifacts(view).await?
        } else {
            Vec::new()
        };
        Ok(Task {
            id: view.key.run.to_string(),
            status: status(
                &view.key,
                &context_id,
                state_of(run.status),
                questions.first(),
                error,
                timestamp,
            ),
            context_id,
            artifacts,
            history: Vec::new(),
            metadata: wrap(about),
        })
    }

    /// `metadata.openwop` of a task or an update.
    pub(super) fn about(
        &self,
        caller: &Caller,
        status: wopr_core::RunStatus,
        questions: &[Question],
        error: Option<&Failure>,
    ) -> Object {
        let mut about = Object::new();
        about.insert("status".to_owned(), status.as_str().into());
        if let Some(first) = questions.first() {
            about.insert("interrupt".to_owned(), first.metadata());
            if let (true, Some(asked)) = (caller.may(Scope::ApprovalsRespond), &first.asked) {
                let now = self.host.engine().now();
                let token = self.host.tokens().mint(&asked.claims(), asked.deadline, now);
                about.insert("interruptToken".to_owned(), token.text.into());
            }
        }
        if questions.len() > 1 {
            let all: Vec<Value> = questions.iter().map(Question::metadata).collect();
            about.insert("interrupts".to_owned(), all.into());
        }
        if let Some(error) = error {
            about.insert(
                "error".to_owned(),
                json!({ "code": error.code, "message": error.message }),
            );
            about.insert("errorCode".to_owned(), error.code.as_str().into());
        }
        about
    }

    /// Since when the task is in its state.
    async fn since(&self, view: &View, question: Option<&Question>) -> Result<Timestamp, Error> {
        let run = &view.run;
        if let Some(ended_at) = run.ended_at {
            return Ok(ended_at);
        }
        if let Some(asked) = question.and_then(|question| question.asked.as_ref()) {
            return Ok(asked.at);
        }
        if run.started.is_none() {
            return Ok(view.summary.created_at);
        }
        // The row keeps what the fold does not: when the state was reached, however much happened since.
        let row = self.host.engine().store().task(&view.key).await?;
        Ok(match row {
            Some((row, _)) if wire_state(row.state) == state_of(run.status) => row.updated_at,
            Some(_) | None => run.updated_at,
        })
    }

    async fn artifacts(&self, view: &View) -> Result<Vec<Artifact>, Error> {
        let places: Vec<u64> = view.run.artifacts.iter().map(|artifact| artifact.seq.0).collect();
        let mut artifacts = Vec::with_capacity(places.len());
        let mut rest = places.as_slice();
        while let Some(&first) = rest.first() {
            // As many of the next ones as one page reaches.
            let n = rest.iter().take_while(|place| **place < first + PAGE).count();
            let (these, others) = rest.split_at(n);
            rest = others;
            let last = these.last().copied().unwrap_or(first);
            let limit = usize::try_from(last - first + 1).unwrap_or(usize::MAX);
            let Some(page) = self.host.engine().events(&view.key, Seq(first), limit).await? else {
                break;
            };
            artifacts.extend(page.events.iter().filter_map(artifact));
        }
        Ok(artifacts)
    }
}

/// The artifact an event tells of.
pub(super) fn artifact(recorded: &Recorded) -> Option<Artifact> {
    let Event::ArtifactCreated {
        artifact,
        artifact_type,
        name,
        content,
        ..
    } = &recorded.event
    else {
        return None;
    };
    let part = match content {
        Value::String(text) => Part::text(text.clone()),
        other => Part::data(other.clone()),
    };
    let mut about = Object::new();
    about.insert("artifactType".to_owned(), artifact_type.as_str().into());
    Some(Artifact {
        artifact_id: artifact.clone(),
        name: Some(name.clone()).filter(|name| !name.is_empty()),
        description: None,
        parts: vec![part],
        metadata: wrap(about),
        extensions: Vec::new(),
    })
}

/// The status of a task: its state, since when, and what the agent says.
pub(super) fn status(
    key: &RunKey,
    context: &str,
    state: TaskState,
    question: Option<&Question>,
    error: Option<&Failure>,
    at: Timestamp,
) -> TaskStatus {
    let run = key.run.as_str();
    let message = match (question, error) {
        (Some(question), _) => Some(question.message(run, context)),
        (None, Some(error)) if state == TaskState::Failed => {
            let parts = vec![Part::text(error.message.clone())];
            let mut message = Message::new(format!("{run}.failed"), Role::Agent, parts);
            message.task_id = Some(run.to_owned());
            message.context_id = Some(context.to_owned());
            Some(message)
        }
        (None, Some(_) | None) => None,
    };
    TaskStatus {
        state,
        message,
        timestamp: Some(wire_time(at)),
    }
}

/// Puts members under `openwop`.
pub(super) fn wrap(about: Object) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("openwop".to_owned(), Value::Object(about));
    metadata
}
