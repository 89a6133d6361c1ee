//! Renders a run as a task.
//!
//! Almost everything comes from a view of the run. Only the content of artifacts and the messages need further
//! reads. A run that ended or asked something in the append that created it needs none.

use serde_json::{Value, json};
use wopr_app::{Mask, Question, View, VisibleRun, Waiting, reads_artifacts, reads_result};
use wopr_core::{Failure, RunKey, Timestamp};
use wopr_wire::{
    a2a::model::{Message, Part, Role, Task, TaskState, TaskStatus},
    json::Object,
};

use super::{
    artifacts,
    error::Error,
    history::{self, Wanted},
    metadata::wrap,
    projection::{TaskProjection, context_of, wire_time},
    question, reply,
    room::Room,
    service::Service,
};
use crate::{
    auth::{Caller, Scope},
    openwop::failure_details,
    tokens::Claims,
};

/// Maximum number of messages in a task.
pub(super) const MAX_HISTORY: u32 = 100;

/// Selects the parts of a task to render.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    /// Maximum number of messages; the latest are kept. `None` means [`MAX_HISTORY`].
    pub(super) history: Option<u32>,
    pub(super) artifacts: bool,
}

impl Shown {
    pub(super) fn n_messages(self) -> usize {
        self.history.unwrap_or(MAX_HISTORY).min(MAX_HISTORY) as usize
    }
}

impl Service {
    pub(super) async fn task(&self, caller: &Caller, view: &View, shown: Shown) -> Result<Task, Error> {
        let mut room = Room::of_task(&self.host);
        let mut task = self.bare_task(&mut room, caller, view, None, shown).await?;
        let n = shown.n_messages();
        // A caller without `runs:read` sees the outcome of its own request, not the messages of others.
        if n > 0 && caller.may(Scope::RunsRead) {
            let said = task
                .status
                .message
                .as_ref()
                .map(|message| message.message_id.as_str());
            let run = VisibleRun::from(view);
            let wanted = Wanted {
                key: &run,
                context: &task.context_id,
                until: view.run.head,
                current: said,
                n,
                caller,
            };
            task.history = history::read(&mut room, wanted).await?;
        }
        Ok(task)
    }

    /// Renders the task of a run just created by a message; that message is the whole history.
    pub(super) async fn new_task(
        &self,
        caller: &Caller,
        view: &View,
        message: Message,
        shown: Shown,
    ) -> Result<Task, Error> {
        let mut room = Room::of_task(&self.host);
        let mut task = self.bare_task(&mut room, caller, view, None, shown).await?;
        if shown.n_messages() > 0 {
            task.history = vec![history::own(caller, message)];
        }
        Ok(task)
    }

    /// Renders a task without its messages. A question that was settled since the view was read is left out.
    pub(super) async fn bare_task(
        &self,
        room: &mut Room,
        caller: &Caller,
        view: &View,
        settled: Option<&Waiting>,
        shown: Shown,
    ) -> Result<Task, Error> {
        let run = &view.run;
        let app = self.host.app();
        app.note_view(caller, view);
        let context_id = context_of(view);
        let projection = TaskProjection::of(run, &view.plan);
        let mut questions = Vec::new();
        if !projection.asked().is_empty() {
            questions = app.open_questions(view).await?;
        }
        if let Some(settled) = settled {
            questions.retain(|question| question.waiting != *settled);
        }
        app.note_questions(caller, &questions);
        let error = run.error.as_ref().map(|(error, _)| error);
        let timestamp = since(view);
        let mut about = self.about(caller, &projection, &questions);
        about.insert("runId".to_owned(), view.key.run.as_str().into());
        about.insert("workflowId".to_owned(), view.plan.id().as_str().into());
        if let Some(fork) = run.fork() {
            let from = json!({
                "sourceRunId": fork.source.as_str(),
                "mode": fork.mode.as_str(),
                "fromSeq": fork.from.0,
            });
            about.insert("forkedFrom".to_owned(), from);
        }
        let mask = Mask::for_caller(view, caller);
        let artifacts = if shown.artifacts {
            artifacts::of_run(room, caller, view, &mask).await?
        } else {
            Vec::new()
        };
        let outputs = run.outputs.as_ref().filter(|_| reads_result(caller, view));
        let said = reply::last_words(&view.plan, &mask, outputs);
        let asks = questions
            .first()
            .map(|question| (question, reads_artifacts(caller)));
        Ok(Task {
            id: view.key.run.to_string(),
            status: status(
                &view.key,
                &context_id,
                projection.state(),
                &Words::of(asks, error, said.as_deref()),
                timestamp,
            ),
            context_id,
            artifacts,
            history: Vec::new(),
            metadata: wrap(about),
            unreadable: Vec::new(),
        })
    }

    /// Builds `metadata.openwop` of a task or an update.
    pub(super) fn about(
        &self,
        caller: &Caller,
        projection: &TaskProjection,
        questions: &[Question],
    ) -> Object {
        let mut about = Object::new();
        about.insert("status".to_owned(), projection.status().as_str().into());
        let tokens: Vec<_> = questions
            .iter()
            .map(|question| self.token(caller, question))
            .collect();
        if let Some(first) = questions.first() {
            about.insert("interrupt".to_owned(), question::metadata(first, caller));
            if let Some(Some(token)) = tokens.first() {
                about.insert("interruptToken".to_owned(), token.as_str().into());
            }
        }
        if questions.len() > 1 {
            let all = questions.iter().zip(tokens).map(|(asked, token)| {
                let mut interrupt = question::metadata(asked, caller);
                if let Some(token) = token {
                    interrupt["interruptToken"] = token.into();
                }
                interrupt
            });
            about.insert("interrupts".to_owned(), all.collect());
        }
        if let Some(error) = projection.error() {
            let mut shown = json!({ "code": error.code, "message": error.message });
            let details = failure_details(error);
            if !details.is_empty() {
                shown["details"] = Value::Object(details);
            }
            about.insert("error".to_owned(), shown);
            about.insert("errorCode".to_owned(), error.code.as_str().into());
        }
        if let Some(reason) = projection.cancel_reason() {
            about.insert("cancelReason".to_owned(), reason.into());
        }
        about
    }

    /// Creates an interrupt token if the caller may answer.
    fn token(&self, caller: &Caller, question: &Question) -> Option<String> {
        let asked = question.asked.as_ref()?;
        if !caller.may(Scope::ApprovalsRespond) {
            return None;
        }
        let now = self.host.app().now();
        let token = self
            .host
            .tokens()
            .mint(&Claims::of(asked, caller), asked.deadline, now);
        Some(token.text)
    }
}

/// The time at which the task entered its state, or came to wait for what it waits for.
fn since(view: &View) -> Timestamp {
    let run = &view.run;
    match (run.ended_at, &run.started) {
        (Some(ended_at), _) => ended_at,
        (None, None) => view.summary.created_at,
        (None, Some(_)) => view.summary.phase_since,
    }
}

/// The agent's message in a status.
#[derive(Debug, Clone, Copy)]
pub(super) enum Words<'a> {
    None,
    /// An interrupt, for a reader who sees the contents of artifacts or does not.
    Asks(&'a Question, bool),
    /// The reason for the failure or the rejection.
    Fails(&'a Failure),
    Says(&'a str),
    /// What happened with an event, by its position.
    Tells(u64, &'a str),
}

impl<'a> Words<'a> {
    /// Returns the first of these that is present.
    pub(super) fn of(
        question: Option<(&'a Question, bool)>,
        error: Option<&'a Failure>,
        said: Option<&'a str>,
    ) -> Self {
        match (question, error, said) {
            (Some((question, reads_artifacts)), _, _) => Self::Asks(question, reads_artifacts),
            (None, Some(error), _) => Self::Fails(error),
            (None, None, Some(said)) => Self::Says(said),
            (None, None, None) => Self::None,
        }
    }
}

pub(super) fn status(
    key: &RunKey,
    context: &str,
    state: TaskState,
    words: &Words<'_>,
    at: Timestamp,
) -> TaskStatus {
    let run = key.run.as_str();
    let says = |name: &str, text: &str| {
        let parts = vec![Part::text(text)];
        let mut message = Message::new(format!("{run}.{name}"), Role::Agent, parts);
        message.task_id = Some(run.to_owned());
        message.context_id = Some(context.to_owned());
        message
    };
    let message = match words {
        Words::None => None,
        Words::Asks(asked, reads_artifacts) => Some(question::message(asked, run, context, *reads_artifacts)),
        Words::Fails(error) => Some(says("failed", &error.told())),
        Words::Says(text) => Some(says("completed", text)),
        Words::Tells(seq, text) => Some(says(&format!("event-{seq}"), text)),
    };
    TaskStatus {
        state,
        message,
        timestamp: Some(wire_time(at)),
    }
}
