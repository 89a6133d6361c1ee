//! Handles messages, which start a task or answer its interrupt.
//!
//! Each message takes effect once. The message id, the principal and the target form the key of an
//! idempotency record that commits with the run or the answer. A repeated message waits like the first one
//! and returns the current task, even after a restart. Reusing an id with different content is rejected.
//!
//! An answer to a child's interrupt takes two appends: first the child's, with the answer and the idempotency
//! record, then the task's, with the message. The client gets a response only when both are durable. If the
//! second append is missing, a repeated message adds it.

use std::{fmt::Display, io, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;
use sha2::{Digest, Sha256};
use wopr_app::{
    AskedAt, Done, Error as AppError, Idempotency, IdempotencyRecord, Mask, NewRun, Selected, SideRows,
    StartPermit, View, VisibleRun, Waiting, reads_result,
};
use wopr_core::{CONTENT_TRUST, NodeId, Object, Origin, Plan, RunId, Seq, UNTRUSTED, WorkflowId};
use wopr_wire::a2a::{
    error::A2aError,
    model::{Message, Role, SendMessageRequest, SendMessageResponse},
};

use super::{
    answer, artifacts, conformance,
    error::{Error, of_task},
    history,
    inputs::{self, Inputs},
    lineage,
    modes::Modes,
    projection::{TaskProjection, context_of, task_word},
    question,
    render::Shown,
    reply,
    room::Room,
    select,
    service::{Call, Service},
};
use crate::auth::{self, Caller, Scope};

/// Maximum characters in an id chosen by a client.
const MAX_ID: usize = 256;
/// Maximum characters in a tag of a run.
const MAX_TAG: usize = 256;

/// The result of accepting a message.
#[derive(Debug)]
pub(super) enum Sent {
    /// The message started a task.
    New {
        /// The run as of its first append.
        view: Box<View>,
        /// The message with its task and context ids.
        message: Message,
    },
    /// The message answered an interrupt.
    Answered {
        /// The run of the task.
        key: VisibleRun,
        /// The run before the answer, for a stream that begins there.
        before: Option<Box<View>>,
        /// The run after the answer; `None` if a child was answered.
        after: Option<Box<View>>,
        /// The interrupt that was answered.
        waiting: Waiting,
        /// The interrupts that remain open.
        left: Left,
    },
    /// The message had been accepted before.
    Repeated { key: VisibleRun },
}

/// Open interrupts of a task after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// The same interrupt remains open, after a vote or a question.
    Same,
    None,
    /// Other interrupts are open.
    Others,
    /// Other interrupts are open, but the task has no event for the answer: its log mirrors another interrupt
    /// of the child.
    Mirrored,
}

impl Service {
    /// Accepts a message and returns its task, by default once the task has ended or waits for input. The code
    /// for other cases is boxed separately, so that a message whose run ends at once has a small future.
    pub(super) async fn send(
        &self,
        call: &Call,
        request: SendMessageRequest,
    ) -> Result<SendMessageResponse, Error> {
        let shown = Shown {
            history: request.configuration.history_length,
            artifacts: true,
        };
        let waits = !request.configuration.return_immediately;
        let caller = &call.caller;
        let view = match self.accept(call, request, true).await? {
            Sent::New { view, message } if !waits || view.run.status.is_settled() => {
                if reply::is_message(&view) {
                    return Box::pin(self.told(caller, &view, shown)).await;
                }
                let task = self.new_task(caller, &view, message, shown).await?;
                return Ok(SendMessageResponse::Task(task));
            }
            Sent::New { view, .. } => {
                let key = VisibleRun::from(&*view);
                // Free the view before waiting.
                drop(view);
                Box::pin(self.settled(&key, None)).await?
            }
            Sent::Answered {
                after: Some(after), ..
            } if !waits || after.run.status.is_settled() => *after,
            Sent::Answered {
                key,
                after,
                waiting,
                left,
                ..
            } => {
                let gone = (left != Left::Same).then_some(&waiting);
                drop(after);
                if waits {
                    Box::pin(self.settled(&key, gone)).await?
                } else {
                    Box::pin(self.view(&key)).await?
                }
            }
            Sent::Repeated { key } if waits => Box::pin(self.settled(&key, None)).await?,
            Sent::Repeated { key } => Box::pin(self.view(&key)).await?,
        };
        Box::pin(self.told(caller, &view, shown)).await
    }

    /// The task of a run, or the message that replaces it.
    async fn told(&self, caller: &Caller, view: &View, shown: Shown) -> Result<SendMessageResponse, Error> {
        if reply::is_message(view) && reads_result(caller, view) {
            let mask = Mask::for_caller(view, caller);
            let artifacts = artifacts::of_run(&mut Room::of_task(&self.host), caller, view, &mask).await?;
            return Ok(SendMessageResponse::Message(reply::message(view, artifacts)));
        }
        Ok(SendMessageResponse::Task(self.task(caller, view, shown).await?))
    }

    /// Accepts a message. `is_log_unread` has the same meaning as in [`SideRows`].
    pub(super) async fn accept(
        &self,
        call: &Call,
        request: SendMessageRequest,
        is_log_unread: bool,
    ) -> Result<Sent, Error> {
        check_id("message.messageId", &request.message.message_id)?;
        if let Some(context) = &request.message.context_id {
            check_id("message.contextId", context)?;
        }
        match request.message.task_id.clone() {
            None => self.begin(call, request, is_log_unread).await,
            // Boxed because it is by far the larger branch.
            Some(task) => Box::pin(self.answer(call, &task, request, !is_log_unread)).await,
        }
    }

    async fn begin(
        &self,
        call: &Call,
        request: SendMessageRequest,
        is_log_unread: bool,
    ) -> Result<Sent, Error> {
        // Checked first, so that a missing scope reveals nothing about skills and earlier messages.
        let permit = call.caller.permit_start()?;
        // The digest includes the request's metadata, because they can select the workflow, too.
        let once = self.once(call, None, &request.message, &request.metadata)?;
        let app = self.host.app();
        let prepared = match self.prepare(call, permit, request).await {
            Ok(prepared) => prepared,
            // A message that was accepted stays accepted, even if this host would reject it now because its
            // skills changed.
            Err(Error::A2a(refused)) => {
                return match app.recorded(&once.key).await? {
                    Some(record) if record.digest == once.digest => repeated(&record),
                    Some(_) | None => Err(refused.into()),
                };
            }
            Err(error) => return Err(error),
        };
        let Prepared {
            workflow,
            mut new,
            message,
        } = prepared;
        new.side_rows.idempotency = Some(once).filter(|_| !conformance::is_own(&workflow));
        new.side_rows.is_log_unread = is_log_unread;
        match app.start_run_of(permit, workflow, new).await? {
            Done::Fresh(view) => Ok(Sent::New {
                view: Box::new(view),
                message,
            }),
            Done::Replayed(record) => repeated(&record),
        }
    }

    /// Chooses the workflow for a message and converts the message to a run of it.
    async fn prepare(
        &self,
        call: &Call,
        permit: StartPermit<'_>,
        request: SendMessageRequest,
    ) -> Result<Prepared, Error> {
        let caller = &call.caller;
        let SendMessageRequest {
            mut message,
            metadata,
            configuration,
            ..
        } = request;
        let workflow = self.workflow(call, permit, &message, &metadata).await?;
        let modes = Modes::of(&workflow);
        modes.check_accepted(&configuration.accepted_output_modes)?;
        if conformance::checks_types(call.version, &workflow) {
            modes.check_message(&message)?;
        }
        let name = name(caller, &message);
        let Inputs { inputs, blobs } = inputs::read(&message, &name);

        let run = self.host.app().new_run_id();
        let push = match &configuration.task_push_notification_config {
            Some(config) => Some(Box::pin(self.push_of_new(call, &run, config, &message.message_id)).await?),
            None => None,
        };
        let context = message.context_id.take().unwrap_or_else(|| new_context(&run));
        message.task_id = Some(run.to_string());
        message.context_id = Some(context.clone());
        let message = history::beginning(&workflow, message);
        let row = history::row(&message, &name, None)?;
        let tags = vec![tag(&message.message_id), tag(&context)];
        let mut about = Object::new();
        let mut origin = json!({ "messageId": message.message_id });
        if let Some(caller) = lineage::caller(&message.metadata) {
            origin[lineage::CALLER] = caller;
        }
        about.insert(super::ORIGIN.to_owned(), origin);
        about.insert(CONTENT_TRUST.to_owned(), UNTRUSTED.into());
        let new = NewRun {
            run,
            origin: Origin::new(super::ORIGIN),
            inputs,
            configurable: Object::new(),
            tags,
            metadata: about,
            context: Some(context),
            trace: lineage::trace(&message.metadata).or_else(|| call.trace.clone()),
            side_rows: SideRows {
                messages: vec![row],
                blobs,
                push,
                ..SideRows::default()
            },
        };
        Ok(Prepared {
            workflow,
            new,
            message,
        })
    }

    async fn answer(
        &self,
        call: &Call,
        task: &str,
        request: SendMessageRequest,
        keeps_before: bool,
    ) -> Result<Sent, Error> {
        let SendMessageRequest {
            message,
            configuration,
            ..
        } = request;
        let caller = &call.caller;
        let opened = self.open(call, task, Scope::ApprovalsRespond).await?;
        let view = opened.view();
        let key = VisibleRun::from(view);
        if message.role == Role::Agent {
            let rule = "must be the user's: a message of an agent answers nothing";
            return Err(A2aError::invalid_param("message.role", rule).into());
        }
        let context = context_of(view);
        if (message.context_id.as_ref()).is_some_and(|claimed| *claimed != context) {
            return Err(
                A2aError::invalid_param("message.contextId", "is not the context of the task").into(),
            );
        }
        let once = self.once(call, Some(&view.key.run), &message, &Object::new())?;
        let app = self.host.app();
        let forgets = conformance::is_own(&view.plan);
        let kept = Kept {
            key: &key,
            context: &context,
            message: &message,
            head: view.run.head,
            name: if forgets {
                format!("{}-{}", name(caller, &message), view.run.head.0)
            } else {
                answer_name(&name(caller, &message))
            },
        };
        if !forgets && let Some(record) = app.recorded(&once.key).await? {
            return if record.digest == once.digest {
                self.answered_before(&record, &kept).await
            } else {
                Err(AppError::KeyReused.into())
            };
        }
        let modes = Modes::of(&view.plan);
        modes.check_accepted(&configuration.accepted_output_modes)?;
        if conformance::checks_types(call.version, &view.plan) {
            modes.check_message(&message)?;
        }
        let projection = TaskProjection::of(&view.run, &view.plan);
        if projection.asked().is_empty() {
            let status = task_word(projection.status());
            return Err(
                A2aError::unsupported(format!("the task is {status} and waits for no message")).into(),
            );
        }
        let Selected { question, is_only } = match self.meant(caller, view, &message).await {
            Ok(selected) => selected,
            Err(refusal) => {
                return self.answered_meanwhile(&once, &kept, forgets, refusal).await;
            }
        };
        let Some(asked) = &question.asked else {
            let refusal = A2aError::unsupported("the task does not wait for a message any more");
            return self
                .answered_meanwhile(&once, &kept, forgets, refusal.into())
                .await;
        };
        let value = match conformance::answer(call.version, &view.plan, &message) {
            Some(value) => value,
            None => answer::read(&message, question::for_answer(&question))?,
        };

        // An answer to a child commits in the child's batch, but the message belongs to this task.
        let with_it = if asked.key == *key {
            kept.side_rows(None, &view.plan, Some(&asked.step.node))?
        } else {
            SideRows::default()
        };
        let push = match &configuration.task_push_notification_config {
            Some(config) => Some(self.push_along(call, view, config, &message.message_id).await?),
            None => None,
        };
        let side_rows = SideRows {
            idempotency: Some(once).filter(|_| !forgets),
            push,
            ..with_it
        };
        // A view is as large as its run.
        let before = keeps_before.then(|| Box::new(view.clone()));
        let answering = app.answer_question(caller, opened, asked, value, side_rows);
        let answered = answering.await.map_err(|error| of_task(task, error));
        let after = match answered? {
            Done::Fresh(after) => after,
            Done::Replayed(record) => return self.answered_before(&record, &kept).await,
        };
        if after.key != *key {
            self.keep(&kept, &after.plan, Some(&asked.step.node)).await?;
        }
        let left = if is_asked(&after, asked) {
            Left::Same
        } else if is_only {
            Left::None
        } else if projection.asked().contains(&question.waiting) {
            Left::Others
        } else {
            Left::Mirrored
        };
        Ok(Sent::Answered {
            after: (after.key == *key).then(|| Box::new(after)),
            key,
            before,
            waiting: question.waiting,
            left,
        })
    }

    /// Refuses a message, unless its first try has settled the question since the task was looked at.
    async fn answered_meanwhile(
        &self,
        once: &Idempotency,
        kept: &Kept<'_>,
        forgets: bool,
        refusal: Error,
    ) -> Result<Sent, Error> {
        if forgets {
            return Err(refusal);
        }
        match self.host.app().recorded(&once.key).await? {
            Some(record) if record.digest == once.digest => self.answered_before(&record, kept).await,
            Some(_) | None => Err(refusal),
        }
    }

    /// Completes a message that had been accepted before.
    async fn answered_before(&self, record: &IdempotencyRecord, kept: &Kept<'_>) -> Result<Sent, Error> {
        // The record commits with the answer, so it names the run that was answered.
        if let Some(run) = VisibleRun::of_record(record).filter(|run| run != kept.key) {
            let answered = self.view(&run).await?;
            self.keep(kept, &answered.plan, None).await?;
        }
        Ok(Sent::Repeated {
            key: kept.key.clone(),
        })
    }

    /// Stores a message whose answer went to a child. A message that is already stored stays unchanged.
    async fn keep(&self, kept: &Kept<'_>, plan: &Arc<Plan>, node: Option<&NodeId>) -> Result<(), Error> {
        let side_rows = kept.side_rows(Some(kept.head), plan, node)?;
        let keeping = self.host.app().keep_messages(kept.key, side_rows);
        keeping
            .await
            .map_err(|error| of_task(kept.key.run.as_str(), error))
    }

    /// Waits until the run has ended or has an open interrupt other than `answered`. Gives up after the
    /// timeout, or when the host stops.
    pub(super) async fn settled(&self, key: &VisibleRun, answered: Option<&Waiting>) -> Result<View, Error> {
        let is_fresh = |view: &View| {
            let mut open = view.run.interrupts(&view.plan);
            answered.is_none_or(|answered| !open.any(|open| Waiting::from(&open) == *answered))
        };
        let mut closing = self.host.closing();
        let given_up = async {
            tokio::select! {
                () = tokio::time::sleep(self.timeout()) => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
        };
        let waiting = auth::wait(self.host.app().wait_run(key, is_fresh, given_up));
        waiting.await.map_err(|error| of_task(key.run.as_str(), error))
    }

    fn timeout(&self) -> Duration {
        self.host.config().a2a.blocking_timeout.as_duration()
    }

    /// Reads a run that is known to exist.
    pub(super) async fn view(&self, key: &VisibleRun) -> Result<View, Error> {
        let view = self.host.app().view(key).await?;
        view.ok_or_else(|| A2aError::task_not_found(key.run.as_str()).into())
    }

    fn once(
        &self,
        call: &Call,
        task: Option<&RunId>,
        message: &Message,
        metadata: &Object,
    ) -> Result<Idempotency, Error> {
        let Call {
            caller, interface, ..
        } = call;
        let interface = interface.as_ref().map(WorkflowId::as_str);
        let scope = match task {
            None => "a2a:new".to_owned(),
            Some(run) => format!("a2a:{run}"),
        };
        let named = select::named(metadata);
        let message = lineage::untraced(message);
        // JSON is written in small pieces, of which each would take as long to hash as a whole block.
        let mut canonical = io::BufWriter::with_capacity(HASHED, Hashing(Sha256::new()));
        let written = serde_json::to_writer(&mut canonical, &(interface, &*message, named));
        let unhashed = |error: &dyn Display| {
            tracing::error!(%error, "message does not serialise");
            A2aError::Internal
        };
        written.map_err(|error| unhashed(&error))?;
        let Hashing(canonical) = canonical.into_inner().map_err(|error| unhashed(&error))?;
        Ok(Idempotency {
            key: caller.idempotency_key(scope, digest(&[message.message_id.as_bytes()])),
            digest: URL_SAFE_NO_PAD.encode(canonical.finalize()),
            expires_at: self.host.app().idempotency_expiry(),
            // A repeated message returns the current task, so no response is stored.
            respond: Arc::new(|_| Vec::new()),
        })
    }
}

/// A run to start, with its message as it is stored.
struct Prepared {
    workflow: Arc<Plan>,
    new: NewRun,
    message: Message,
}

/// Bytes that are hashed at once.
const HASHED: usize = 1 << 10;

/// Hashes what is written, so that a message with files is not copied as a whole.
struct Hashing(Sha256);

impl io::Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A message that is stored in its task's history.
struct Kept<'m> {
    key: &'m VisibleRun,
    context: &'m str,
    message: &'m Message,
    /// The head of the task's log when the message came.
    head: Seq,
    /// The stored name, see [`name`].
    name: String,
}

impl Kept<'_> {
    /// The rows that commit with the answer to a node.
    fn side_rows(
        &self,
        forwarded: Option<Seq>,
        plan: &Arc<Plan>,
        node: Option<&NodeId>,
    ) -> Result<SideRows, Error> {
        let shown = history::answering(plan, node, self.message);
        let blobs = inputs::blobs(&shown, &self.name);
        let mut message = inputs::referring(&shown, &self.name).into_owned();
        message.task_id = Some(self.key.run.to_string());
        message.context_id = Some(self.context.to_owned());
        Ok(SideRows {
            messages: vec![history::row(&message, &self.name, forwarded)?],
            blobs,
            ..SideRows::default()
        })
    }
}

/// A message that had started a task before.
fn repeated(record: &IdempotencyRecord) -> Result<Sent, Error> {
    let Some(key) = VisibleRun::of_record(record) else {
        tracing::error!("idempotency record of a message without a run");
        return Err(A2aError::Internal.into());
    };
    Ok(Sent::Repeated { key })
}

/// Returns `true` if an interrupt is still open. `after` is a view of the run that requested it.
fn is_asked(after: &View, asked: &AskedAt) -> bool {
    let mut open = after.run.interrupts(&after.plan);
    open.any(|open| open.id() == asked.id())
}

/// The name of a message within its run. Messages of different principals never share a name.
pub(super) fn name(caller: &Caller, message: &Message) -> String {
    name_of(caller, &message.message_id)
}

/// Like [`name`], for a message id.
pub(super) fn name_of(caller: &Caller, message_id: &str) -> String {
    let mut name = digest(&[caller.principal.as_str().as_bytes(), b"\0", message_id.as_bytes()]);
    name.truncate(22);
    name
}

/// The name of a message that answers. The message that started the task may have the same id, since ids are kept apart by
/// what they are sent to.
pub(super) fn answer_name(name: &str) -> String {
    format!("{name}.answer")
}

fn digest(parts: &[&[u8]]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    URL_SAFE_NO_PAD.encode(hasher.finalize())
}

/// Derives a context id from the run id. It grows with time, so that indexes grow at their end.
fn new_context(run: &RunId) -> String {
    let id = run.as_str();
    format!("ctx_{}", id.strip_prefix("run_").unwrap_or(id))
}

fn tag(id: &str) -> String {
    let mut tag = ["a2a:", id].concat();
    // A text never has more characters than bytes.
    if tag.len() > MAX_TAG
        && let Some((end, _)) = tag.char_indices().nth(MAX_TAG)
    {
        tag.truncate(end);
    }
    tag
}

fn check_id(field: &str, id: &str) -> Result<(), A2aError> {
    let is_sound = !id.is_empty() && id.chars().count() <= MAX_ID && !id.chars().any(char::is_control);
    if is_sound {
        Ok(())
    } else {
        let rule = format!("must have 1 to {MAX_ID} characters and no control characters");
        Err(A2aError::invalid_param(field, rule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_truncated_at_a_character() {
        assert_eq!(tag("m"), "a2a:m");
        let long = tag(&"ä".repeat(300));
        assert_eq!(long.chars().count(), MAX_TAG);
    }

    #[test]
    fn ids_are_bounded() {
        assert!(check_id("f", "a b/ü").is_ok());
        for bad in ["", "a\nb", "a\0", &"x".repeat(257)] {
            assert!(check_id("f", bad).is_err(), "{bad:?}");
        }
    }
}
