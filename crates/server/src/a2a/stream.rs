//! Streams of a task: a snapshot, followed by an update per event.
//!
//! A stream reads the log by cursor, one page at a time, so it holds a single page however far behind its
//! client is. All streams of a task send the same updates with the same ids, which are the events' positions
//! in the log. The snapshot is the task as of the cursor, so no update is missed or sent twice. Wake-ups only
//! avoid polling delays; correctness does not depend on them.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::watch, time::Instant};
use wopr_app::{Mask, Question, Tail, View, VisibleRun, Waiting, reads_artifacts, reads_result};
use wopr_core::{Event, KernelEvent, Object, Plan, Recorded, Seq, Timestamp, json_size};
use wopr_wire::a2a::{
    error::A2aError,
    model::{
        Message, SendMessageRequest, StreamResponse, SubscribeToTaskRequest, Task, TaskArtifactUpdateEvent,
        TaskState, TaskStatus, TaskStatusUpdateEvent,
    },
};

use super::{
    artifacts,
    error::Error,
    handoff,
    history::{self, Wanted},
    metadata::wrap,
    projection::{Change, TaskProjection, context_of, task_word, wire_time},
    render::{Shown, Words, status},
    reply::{self, Reply},
    room::Room,
    send::{Left, Sent},
    service::{Call, Service},
};
use crate::{
    answers::Crowded,
    auth::{Caller, Scope},
    credential_id::CredentialId,
    paging::{CHUNK, Pace},
    telemetry::{self, OpenStream},
};

/// Events to read per page while they are small.
const PAGE: usize = 64;

#[derive(Debug)]
pub(super) struct Item {
    /// The sequence number of the event; `None` for a snapshot.
    pub(super) id: Option<u64>,
    pub(super) response: StreamResponse,
    /// The stream ends with this item.
    pub(super) is_final: bool,
}

/// The next output of a stream.
#[derive(Debug)]
pub(super) enum Step {
    /// Items to send in order.
    Items(Vec<Item>),
    /// Nothing happened; keep the connection alive.
    KeepAlive,
}

/// Selects when a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Ends with the task, or when the task waits for input.
    Send,
    /// Ends with the task.
    Follow,
}

#[derive(Debug)]
pub(super) struct TaskStream {
    service: Service,
    caller: Arc<Caller>,
    mask: Mask,
    reads_result: bool,
    key: VisibleRun,
    plan: Arc<Plan>,
    context: String,
    mode: Mode,
    tail: Tail,
    closing: watch::Receiver<bool>,
    cursor: Seq,
    pace: Pace,
    projection: TaskProjection,
    /// The item to send first, until [`Self::opening`] takes it.
    first: Option<Item>,
    /// At this position, the stream ends if the task waits or is over, even if no event there says so.
    rests_at: Option<Seq>,
    /// Continues a client's broken stream.
    is_resumed: bool,
    /// All events that there were at the last read have been converted.
    is_at_end: bool,
    is_done: bool,
    keep_alive: Duration,
    last_said: Instant,
    _open: OpenStream,
}

impl Service {
    /// Accepts a message and streams its task.
    pub(super) async fn send_stream(
        &self,
        call: &Call,
        request: SendMessageRequest,
    ) -> Result<TaskStream, Error> {
        let shown = Shown {
            history: request.configuration.history_length,
            artifacts: true,
        };
        match self.accept(call, request, false).await? {
            Sent::New { view, .. }
            | Sent::Answered {
                before: Some(view), ..
            } if Reply::of(&view.plan) == Reply::Message => {
                let key = VisibleRun::from(&*view);
                drop(view);
                self.message_stream(call, &key, shown).await
            }
            Sent::New { view, message } => {
                let task = self.submitted(call, &view, message, shown);
                let mut stream = self.stream(call, &view, Mode::Send);
                stream.cursor = Seq(0);
                stream.projection = TaskProjection::new(&view.plan);
                stream.begin_with(task);
                Ok(stream)
            }
            Sent::Answered {
                before: Some(before),
                after,
                waiting,
                left,
                ..
            } => {
                let is_resumed = left == Left::None;
                let settled = (left != Left::Same).then_some(&waiting);
                // The time of the append, as the first update says. An answer to a child has caused none here yet.
                let answered_at = after.as_ref().map(|after| after.summary.updated_at);
                let task = self
                    .accepted(call, &before, settled, is_resumed, answered_at, shown)
                    .await?;
                let mut stream = self.stream(call, &before, Mode::Send);
                stream.rests_at = match (left, after) {
                    (Left::None | Left::Others, _) => None,
                    (Left::Same | Left::Mirrored, Some(after)) => Some(after.run.head),
                    (Left::Same | Left::Mirrored, None) => Some(before.run.head),
                };
                stream.begin_with(task);
                Ok(stream)
            }
            Sent::Answered { key, .. } | Sent::Repeated { key } if call.last_event_id.is_none() => {
                self.repeated_stream(call, &key, shown).await
            }
            Sent::Answered { key, .. } | Sent::Repeated { key } => {
                let view = self.view(&key).await?;
                let mut stream = self.stream(call, &view, Mode::Send);
                stream.rests_at = Some(view.run.head);
                if let Some(last) = call.last_event_id {
                    stream.go_back(last, view.run.head).await?;
                }
                Ok(stream)
            }
        }
    }

    /// Streams the task of a message that was accepted before.
    async fn repeated_stream(
        &self,
        call: &Call,
        key: &VisibleRun,
        shown: Shown,
    ) -> Result<TaskStream, Error> {
        let view = self.view(key).await?;
        if Reply::of(&view.plan) == Reply::Message {
            drop(view);
            return self.message_stream(call, key, shown).await;
        }
        let mut stream = self.stream(call, &view, Mode::Send);
        stream.rests_at = Some(view.run.head);
        stream.begin_with(self.task(&call.caller, &view, shown).await?);
        Ok(stream)
    }

    /// Streams the message that replaces a task, or the task if the run does not complete.
    async fn message_stream(&self, call: &Call, key: &VisibleRun, shown: Shown) -> Result<TaskStream, Error> {
        let view = self.settled(key, None).await?;
        let mut stream = self.stream(call, &view, Mode::Send);
        if reply::is_message(&view) && reads_result(&call.caller, &view) {
            let mask = Mask::for_caller(&view, &call.caller);
            let mut room = Room::of_task(&self.host);
            let artifacts = artifacts::of_run(&mut room, &call.caller, &view, &mask).await?;
            stream.first = Some(Item {
                id: None,
                response: StreamResponse::Message(reply::message(&view, artifacts)),
                is_final: true,
            });
            stream.is_done = true;
            return Ok(stream);
        }
        stream.rests_at = Some(view.run.head);
        stream.begin_with(self.task(&call.caller, &view, shown).await?);
        Ok(stream)
    }

    /// Streams a task from now on, or from the last event of a broken stream.
    pub(super) async fn subscribe(
        &self,
        call: &Call,
        request: SubscribeToTaskRequest,
    ) -> Result<TaskStream, Error> {
        let view = self.visible(call, &request.id).await?;
        let mut stream = self.stream(call, &view, Mode::Follow);
        if let Some(last) = call.last_event_id {
            stream.go_back(last, view.run.head).await?;
            return Ok(stream);
        }
        if view.run.status.is_terminal() {
            let status = task_word(view.run.status);
            return Err(A2aError::unsupported(format!("the task is {status}; read it instead")).into());
        }
        let shown = Shown {
            history: None,
            artifacts: true,
        };
        stream.begin_with(self.task(&call.caller, &view, shown).await?);
        Ok(stream)
    }

    /// A stream that continues where a view ends.
    fn stream(&self, call: &Call, view: &View, mode: Mode) -> TaskStream {
        let key = VisibleRun::from(view);
        TaskStream {
            service: self.clone(),
            caller: call.caller.clone(),
            mask: Mask::for_caller(view, &call.caller),
            reads_result: reads_result(&call.caller, view),
            plan: Arc::clone(&view.plan),
            context: context_of(view),
            mode,
            tail: self.host.app().tail(&key),
            key,
            closing: self.host.closing(),
            cursor: view.run.head,
            pace: Pace::new(PAGE),
            projection: TaskProjection::of(&view.run, &view.plan),
            first: None,
            rests_at: None,
            is_resumed: false,
            is_at_end: false,
            is_done: false,
            keep_alive: self.host.config().server.sse_keepalive.as_duration(),
            last_said: Instant::now(),
            _open: self.host.metrics().open_stream(),
        }
    }

    /// A new task as it was accepted, before its first event.
    fn submitted(&self, call: &Call, view: &View, message: Message, shown: Shown) -> Task {
        let context_id = context_of(view);
        let mut about = self.about(&call.caller, &TaskProjection::new(&view.plan), &[]);
        about.insert("runId".to_owned(), view.key.run.as_str().into());
        about.insert("workflowId".to_owned(), view.plan.id().as_str().into());
        Task {
            id: view.key.run.to_string(),
            status: TaskStatus {
                state: TaskState::Submitted,
                message: None,
                timestamp: Some(wire_time(view.summary.created_at)),
            },
            context_id,
            artifacts: Vec::new(),
            history: if shown.n_messages() > 0 {
                vec![history::own(&call.caller, message)]
            } else {
                Vec::new()
            },
            metadata: wrap(about),
            unreadable: Vec::new(),
        }
    }

    /// The task as of the answer, without the interrupt that the answer has settled. If none remains open, its state is
    /// working.
    async fn accepted(
        &self,
        call: &Call,
        before: &View,
        settled: Option<&Waiting>,
        is_resumed: bool,
        answered_at: Option<Timestamp>,
        shown: Shown,
    ) -> Result<Task, Error> {
        let mut room = Room::of_task(&self.host);
        let mut task = self
            .bare_task(&mut room, &call.caller, before, settled, shown)
            .await?;
        if is_resumed {
            let app = self.host.app();
            let state = TaskState::Working;
            let at = answered_at.unwrap_or_else(|| app.now());
            task.status = status(&before.key, &task.context_id, state, &Words::None, at);
            if let Some(about) = task
                .metadata
                .get_mut("openwop")
                .and_then(|about| about.as_object_mut())
            {
                about.remove("interrupt");
                about.remove("interruptToken");
                about.remove("interrupts");
                about.insert("status".to_owned(), wopr_core::RunStatus::Running.as_str().into());
            }
        }
        if shown.n_messages() > 0 && call.caller.may(Scope::RunsRead) {
            let current = (task.status.message.as_ref()).map(|message| message.message_id.as_str());
            let run = VisibleRun::from(before);
            let wanted = Wanted {
                key: &run,
                context: &task.context_id,
                until: before.run.head,
                current,
                n: shown.n_messages(),
                caller: &call.caller,
            };
            task.history = history::read(&mut room, wanted).await?;
        }
        Ok(task)
    }
}

impl TaskStream {
    /// Charges a part of the response to the caller until it is written.
    pub(super) async fn hold(&self, bytes: Bytes) -> Result<Bytes, Crowded> {
        let answers = &self.service.host.admission().answers;
        answers.held(CredentialId::caller(&self.caller), bytes).await
    }

    fn begin_with(&mut self, task: Task) {
        self.first = Some(Item {
            id: None,
            response: StreamResponse::Task(task),
            is_final: false,
        });
    }

    /// Resumes after the last event that a client saw, without a snapshot.
    async fn go_back(&mut self, last: u64, head: Seq) -> Result<(), Error> {
        let from = Seq(last.saturating_add(1).min(head.0));
        self.is_resumed = true;
        self.projection = TaskProjection::new(&self.plan);
        self.cursor = Seq(0);
        while self.cursor < from {
            let limit = usize::try_from(from.0 - self.cursor.0).map_or(PAGE, |n| n.min(PAGE));
            let host = &self.service.host;
            let read = host
                .paging()
                .read(host.app(), &self.key, self.cursor, limit, CHUNK);
            let events = read.await?.map(|page| page.events).unwrap_or_default();
            let Some(end) = events.last() else { break };
            self.cursor = end.seq.next();
            for recorded in &events {
                self.projection.apply(&recorded.event);
            }
        }
        Ok(())
    }

    /// Returns `true` if the stream is complete, and `false` if it was interrupted.
    pub(super) const fn is_over(&self) -> bool {
        self.is_done
    }

    /// Returns `true` if the stream failed while the task and the host continue. The client should resume.
    pub(super) fn was_broken(&self) -> bool {
        !self.is_done && !*self.closing.borrow()
    }

    /// Takes the first item; call this before [`Self::next`]. `None` for a resumed stream.
    pub(super) const fn opening(&mut self) -> Option<Item> {
        self.first.take()
    }

    /// Waits for the next step after the [opening](Self::opening). `None` at the end.
    ///
    /// # Cancel safety
    /// Not cancel safe: dropping the future may lose items. Streams are only dropped as a whole.
    pub(super) async fn next(&mut self) -> Option<Step> {
        while !self.is_done && !*self.closing.borrow() {
            match self.read().await {
                Ok(None) => {
                    self.last_said = Instant::now();
                    return Some(Step::KeepAlive);
                }
                Ok(Some(items)) if !items.is_empty() => {
                    self.last_said = Instant::now();
                    let app = self.service.host.app();
                    app.note_read(&self.caller, &self.key, self.cursor);
                    return Some(Step::Items(items));
                }
                Ok(Some(_)) => {}
                Err(error) => {
                    // The client resumes with the id of the last event it saw.
                    telemetry::broken_off(&self.key, &error);
                    return None;
                }
            }
            if self.is_done {
                break;
            }
            let quiet_until = self.last_said + self.keep_alive;
            tokio::select! {
                () = self.tail.changed() => {}
                () = tokio::time::sleep_until(quiet_until) => {
                    self.last_said = Instant::now();
                    return Some(Step::KeepAlive);
                }
                _ = self.closing.changed() => {}
            }
        }
        None
    }

    /// Reads updates from at most one page of events or one chunk of bytes; empty if there is nothing new.
    /// `None` if a keep-alive is due before the stream gets its turn to read.
    async fn read(&mut self) -> Result<Option<Vec<Item>>, Error> {
        let host = Arc::clone(&self.service.host);
        let app = host.app();
        let mut items = Vec::new();
        loop {
            // The last events of a run that was decided recently are small and cached.
            let at_hand = app.at_hand(&self.key);
            let cached = at_hand
                .as_deref()
                .and_then(|decided| Some((decided.head, decided.from(self.cursor)?)));
            if let Some((head, events)) = cached {
                self.show(events, head, &mut items).await?;
            } else {
                let until = self.last_said + self.keep_alive;
                let Some(_turn) = host.paging().turn(&self.key.tenant, until).await else {
                    return Ok(None);
                };
                let limit = self.pace.limit();
                let Some(page) = app.events(&self.key, self.cursor, limit).await? else {
                    self.is_done = true;
                    return Ok(Some(items));
                };
                self.show(&page.events, page.head, &mut items).await?;
            }
            if self.is_done || self.is_at_end || !items.is_empty() {
                return Ok(Some(items));
            }
        }
    }

    /// Converts events, up to a full chunk; the rest is read again. `head` is as of the read.
    async fn show(&mut self, events: &[Recorded], head: Seq, items: &mut Vec<Item>) -> Result<(), Error> {
        let mut n_bytes = 0;
        for recorded in events {
            self.cursor = recorded.seq.next();
            let mut room = Room::of_update(&self.service.host);
            n_bytes += json_size(&recorded.event);
            items.extend(self.item(&mut room, recorded).await?);
            n_bytes += room.used();
            if self.is_done || n_bytes >= CHUNK {
                break;
            }
        }
        self.pace.read(n_bytes);
        self.is_at_end = self.cursor >= head;
        if self.is_at_end && !self.is_done {
            items.extend(self.rest().await?);
            // A client that has already seen the end gets nothing more.
            self.is_done |= self.projection.state().is_terminal();
        }
        Ok(())
    }

    /// Converts an event to an item.
    async fn item(&mut self, room: &mut Room, recorded: &Recorded) -> Result<Option<Item>, Error> {
        let change = match (self.projection.apply(&recorded.event), &recorded.event) {
            // A client that must not see chunks gets the finished artifact.
            (Change::None, Event::Kernel(KernelEvent::ArtifactCreated { .. }))
                if self.mask.keeps_contents() =>
            {
                Change::Artifact
            }
            (change, _) => change,
        };
        let response = match change {
            Change::None => return Ok(None),
            Change::Artifact => {
                let Some(artifact) =
                    artifacts::created(room, &self.caller, &self.key, recorded, &self.mask).await?
                else {
                    return Ok(None);
                };
                StreamResponse::ArtifactUpdate(TaskArtifactUpdateEvent {
                    task_id: self.key.run.to_string(),
                    context_id: self.context.clone(),
                    artifact,
                    append: false,
                    last_chunk: true,
                    metadata: Object::new(),
                    unreadable: Vec::new(),
                })
            }
            Change::Piece => match self.piece(recorded) {
                Some(update) => StreamResponse::ArtifactUpdate(update),
                None => return Ok(None),
            },
            Change::Handoff => match self.handoff(recorded) {
                Some(update) => StreamResponse::StatusUpdate(update),
                None => return Ok(None),
            },
            Change::Status => {
                let state = self.projection.state();
                self.is_done = state.is_terminal() || (state.is_interrupted() && self.mode == Mode::Send);
                StreamResponse::StatusUpdate(self.update(Some(recorded)).await?)
            }
        };
        Ok(Some(Item {
            id: Some(recorded.seq.0),
            response,
            is_final: self.is_done,
        }))
    }

    /// Tells that work changed hands; which workflows work is for readers of runs.
    fn handoff(&self, recorded: &Recorded) -> Option<TaskStatusUpdateEvent> {
        let handoff = handoff::of(&recorded.event)?;
        if !self.caller.may(Scope::RunsRead) {
            return None;
        }
        let mut about = self.service.about(&self.caller, &self.projection, &[]);
        about.insert("handoff".to_owned(), handoff.about);
        let words = Words::Tells(recorded.seq.0, &handoff.text);
        Some(TaskStatusUpdateEvent {
            task_id: self.key.run.to_string(),
            context_id: self.context.clone(),
            status: status(
                &self.key,
                &self.context,
                self.projection.state(),
                &words,
                recorded.at,
            ),
            metadata: wrap(about),
            unreadable: Vec::new(),
        })
    }

    /// Converts an output chunk. `None` if its node creates no artifact.
    fn piece(&self, recorded: &Recorded) -> Option<TaskArtifactUpdateEvent> {
        let KernelEvent::OutputChunk {
            step,
            index,
            chunk,
            is_last,
            number,
            end: _,
        } = recorded.event.kernel()?
        else {
            return None;
        };
        if self.mask.keeps_contents() {
            return None;
        }
        let (artifact_type, name) = self.plan.artifact_of(&step.node)?;
        let id = step.artifact(*number);
        let parts = vec![artifacts::piece(&self.mask, &step.node, chunk)];
        Some(TaskArtifactUpdateEvent {
            task_id: self.key.run.to_string(),
            context_id: self.context.clone(),
            artifact: artifacts::artifact(id, artifact_type, name, parts),
            append: *index > 0,
            last_chunk: *is_last,
            metadata: Object::new(),
            unreadable: Vec::new(),
        })
    }

    /// The last item of a stream that ends without an event, after a vote or for a repeated message.
    async fn rest(&mut self) -> Result<Option<Item>, Error> {
        if self.rests_at.is_none_or(|head| self.cursor < head) {
            return Ok(None);
        }
        let state = self.projection.state();
        if !state.is_terminal() && !state.is_interrupted() {
            return Ok(None);
        }
        self.is_done = true;
        // A client that resumes has seen this state already.
        if self.is_resumed {
            return Ok(None);
        }
        Ok(Some(Item {
            id: None,
            response: StreamResponse::StatusUpdate(self.update(None).await?),
            is_final: true,
        }))
    }

    /// Builds a status update, caused by an event or for the current state.
    async fn update(&self, because: Option<&Recorded>) -> Result<TaskStatusUpdateEvent, Error> {
        let app = self.service.host.app();
        let mut questions: Vec<Question> = Vec::new();
        for waiting in self.projection.asked() {
            let asked = match because {
                Some(recorded) if is_turn(recorded, waiting) => {
                    let asked = app.question_after_turn(&self.key, waiting.clone(), recorded);
                    Some(asked.await?)
                }
                Some(recorded) => app.question_asked_by(&self.key, recorded).await?,
                None => None,
            };
            questions.push(match asked.filter(|asked| asked.waiting == *waiting) {
                Some(question) => question,
                None => app.look_up_question(&self.key, waiting.clone()).await?,
            });
            if waiting.child.is_some()
                && let Some(view) = app.view(&self.key).await?
            {
                questions.extend(app.questions_beside(&view, waiting).await?);
            }
        }
        app.note_questions(&self.caller, &questions);
        let error = self.projection.error();
        let said = match because.map(|recorded| &recorded.event) {
            _ if !self.reads_result => None,
            Some(Event::Kernel(KernelEvent::RunCompleted { outputs })) => {
                reply::last_words(&self.plan, &self.mask, Some(outputs))
            }
            Some(_) => None,
            None => {
                let view = self.service.view(&self.key).await?;
                reply::last_words(&self.plan, &self.mask, view.run.outputs.as_ref())
            }
        };
        let asked_at = questions.first().and_then(|question| question.asked.as_ref());
        let at = match (because, asked_at) {
            (Some(recorded), _) => recorded.at,
            (None, Some(asked)) => asked.since(),
            (None, None) => self.service.view(&self.key).await?.run.updated_at,
        };
        let state = self.projection.state();
        let about = self.service.about(&self.caller, &self.projection, &questions);
        let asks = questions
            .first()
            .map(|question| (question, reads_artifacts(&self.caller)));
        Ok(TaskStatusUpdateEvent {
            task_id: self.key.run.to_string(),
            context_id: self.context.clone(),
            status: status(
                &self.key,
                &self.context,
                state,
                &Words::of(asks, error, said.as_deref()),
                at,
            ),
            metadata: wrap(about),
            unreadable: Vec::new(),
        })
    }
}

/// Whether the event is a turn of the conversation that a question belongs to.
fn is_turn(recorded: &Recorded, waiting: &Waiting) -> bool {
    match &recorded.event {
        Event::Kernel(_) => false,
        Event::Dialect(event) => {
            let changed = event.asks_anew();
            changed.is_some_and(|step| *step == waiting.step) && waiting.child.is_none()
        }
    }
}
