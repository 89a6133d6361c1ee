//! The one entry for every surface: an operation with its arguments, and what it answers.
//!
//! A call that lets an execution go on waits until it is stable, within the host's budget, and answers with it as it is
//! then. Every check comes before anything is written.

mod answer;
mod import;

pub(super) use import::MAX_CHILD_DEFINITIONS;

use std::{borrow::Cow, sync::Arc};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use wopr_app::{
    ActivityAttempt, Done, EndedActivity, Error as AppError, Idempotency, Mask, NewRun, SideRows, View,
    VisibleRun,
};
use wopr_core::{
    Object, Origin, Refusal, RunStatus, TraceContext,
    awp::{self, ActivityMode, Submission, SubmitRefusal},
};

use super::{
    arguments::Arguments,
    definition,
    error::{Code, Error},
    execution::{execution_id, find},
    list, render,
    stable::{self, Standing},
    tool::Tool,
};
use crate::{
    Host,
    auth::{Caller, Scope, hash_hex},
    hex,
};

/// An operation to call, as a surface has read it.
#[derive(Debug)]
pub struct Request {
    pub tool: Tool,
    pub arguments: Object,
    /// The surface, as the log of a new run names it.
    pub origin: &'static str,
    /// Makes the request take effect at most once.
    pub idempotency_key: Option<String>,
    /// W3C trace context.
    pub trace: Option<TraceContext>,
    /// The definition is one that the host has accepted before, so nobody has to vouch for it again.
    pub is_registered: bool,
    /// Learns which run the call waits for, once it does.
    pub waiting: Option<watch::Sender<Option<VisibleRun>>>,
}

impl Request {
    #[must_use]
    pub const fn new(tool: Tool, arguments: Object, origin: &'static str) -> Self {
        Self {
            tool,
            arguments,
            origin,
            idempotency_key: None,
            trace: None,
            is_registered: false,
            waiting: None,
        }
    }
}

/// Calls an operation.
///
/// # Errors
/// An execution that has failed is one, too.
///
/// # Cancel safety
/// A dropped call leaves the execution as it is: it goes on by itself, or waits.
pub async fn call(host: &Host, caller: &Caller, request: Request) -> Result<Value, Error> {
    let tool = request.tool;
    let (surface, arguments) = Surface::of(host, caller, request)?;
    // Boxed: their futures are large, and a call makes one of them.
    let called = match tool {
        Tool::Start => Box::pin(surface.start(arguments)).await,
        Tool::Status => Box::pin(surface.status(arguments)).await,
        Tool::Resume => Box::pin(surface.resume(arguments)).await,
        Tool::SubmitActivity => Box::pin(surface.submit(arguments)).await,
        Tool::Signal => Box::pin(surface.signal(arguments)).await,
        Tool::Cancel => Box::pin(surface.cancel(arguments)).await,
        Tool::List => Box::pin(list::list(host, caller, arguments)).await,
    };
    called.map_err(|error| error.for_caller(caller))
}

/// Creates an execution from its history, as another engine or host has written it. The tool of the request is that of a
/// start, which this is.
///
/// # Errors
/// The history is not one of a run of the definition, or its name is taken.
///
/// # Cancel safety
/// A dropped call leaves an execution with its whole history, or none.
pub(super) async fn import(host: &Host, caller: &Caller, request: Request) -> Result<Value, Error> {
    let (surface, arguments) = Surface::of(host, caller, request)?;
    let imported = Box::pin(surface.import(arguments)).await;
    imported.map_err(|error| error.for_caller(caller))
}

/// What makes a request take effect once.
#[derive(Debug)]
struct Once {
    scope: String,
    key: String,
    digest: String,
}

impl Once {
    fn of(request: &Request) -> Option<Self> {
        let key = request.idempotency_key.as_ref()?;
        let body = Value::Object(request.arguments.clone()).to_string();
        Some(Self {
            scope: format!("awp {}", request.tool.name()),
            key: hash_hex(key),
            digest: hex(&Sha256::digest(body.as_bytes())),
        })
    }
}

/// A call with who makes it.
struct Surface<'c> {
    host: &'c Host,
    caller: &'c Caller,
    once: Option<Once>,
    origin: &'static str,
    trace: Option<TraceContext>,
    is_registered: bool,
    waiting: Option<watch::Sender<Option<VisibleRun>>>,
}

impl<'h> Surface<'h> {
    fn of(host: &'h Host, caller: &'h Caller, request: Request) -> Result<(Self, Arguments), Error> {
        let once = Once::of(&request);
        let arguments = Arguments::of(request.tool, request.arguments)?;
        let surface = Self {
            host,
            caller,
            once,
            origin: request.origin,
            trace: request.trace,
            is_registered: request.is_registered,
            waiting: request.waiting,
        };
        Ok((surface, arguments))
    }
}

impl Surface<'_> {
    /// Records the request with what it does. A repeated one finds the run, and is answered with it as it is then.
    fn side_rows(&self) -> SideRows {
        let app = self.host.app();
        let once = self.once.as_ref().map(|once| Idempotency {
            key: self.caller.idempotency_key(once.scope.clone(), once.key.clone()),
            digest: once.digest.clone(),
            expires_at: app.idempotency_expiry(),
            respond: Arc::new(|_| Vec::new()),
        });
        SideRows {
            idempotency: once,
            ..SideRows::default()
        }
    }

    /// The run of a request that took effect before.
    async fn replayed(&self) -> Result<Option<View>, Error> {
        let rows = self.side_rows();
        let Some(once) = &rows.idempotency else {
            return Ok(None);
        };
        match self.host.app().replay(once).await? {
            Some(done) => self.done(done).await.map(Some),
            None => Ok(None),
        }
    }

    /// The run that a command took effect on.
    async fn done(&self, done: Done) -> Result<View, Error> {
        match done {
            Done::Fresh(view) => Ok(view),
            Done::Replayed(record) => {
                let run = VisibleRun::of_record(&record);
                let view = match &run {
                    Some(run) => self.host.app().view(run).await?,
                    None => None,
                };
                view.ok_or_else(|| AppError::NoRun.into())
            }
        }
    }

    /// Waits until an execution is stable, and answers with it.
    async fn settle(&self, view: View) -> Result<Value, Error> {
        if let Some(waiting) = &self.waiting {
            waiting.send_replace(Some(VisibleRun::from(&view)));
        }
        let standing = stable::wait(self.host, view).await?;
        standing.note(self.host.app(), self.caller);
        render::outcome(&standing, self.caller)
    }

    async fn start(&self, mut arguments: Arguments) -> Result<Value, Error> {
        let permit = self.caller.permit_start()?;
        let name = arguments.name("execution_id")?;
        let document = arguments.required_object("definition")?;
        let input = arguments.required_object("input")?;
        let options = Options {
            mode: arguments.mode()?,
            is_parallel: arguments.optional_flag("parallel_activities")?,
        };
        let may_exist = arguments.flag("allow_existing_execution_id")?;
        let mut configurable = configurable(&mut arguments)?;
        if configurable.contains_key(awp::PARALLEL_ACTIVITIES) {
            let message = "configurable.parallelActivities has an argument of its own, parallel_activities";
            return Err(Error::invalid(Tool::Start, message));
        }
        arguments.end()?;
        if let Some(view) = self.replayed().await? {
            return self.settle(view).await;
        }
        let document = match self.is_registered {
            true => Value::Object(document),
            false => definition::trusted(self.host, document)?,
        };
        definition::recognize(&document)?;
        if let Some(name) = &name {
            match find(self.host, self.caller, name, Scope::RunsCreate).await {
                Ok(view) if may_exist => {
                    let version = definition::hash(&document);
                    same_start((&view, self.caller), name, (&version, &input, options))?;
                    return self.settle(view).await;
                }
                Ok(_) => return Err(duplicate(name)),
                Err(error) if error.code == Code::ExecutionNotFound => {}
                Err(error) => return Err(error),
            }
        }
        let word = options.mode.unwrap_or(ActivityMode::InProcess).as_str();
        configurable.insert(awp::ACTIVITY_MODE.to_owned(), word.into());
        if options.is_parallel == Some(true) {
            configurable.insert(awp::PARALLEL_ACTIVITIES.to_owned(), true.into());
        }
        if let Some(name) = &name {
            configurable.insert(awp::EXECUTION_ID.to_owned(), name.clone().into());
        }
        let admitting = definition::admit(self.host, self.caller, permit, document, (&input, &configurable));
        let plan = admitting.await?;
        let version = plan.version().clone();
        let app = self.host.app();
        let new = NewRun {
            inputs: input.clone(),
            configurable,
            trace: self.trace.clone(),
            side_rows: self.side_rows(),
            ..NewRun::new(app.new_run_id(), Origin::new(self.origin))
        };
        let view = match (app.start_run_of(permit, plan, new).await, name) {
            (Ok(done), _) => self.done(done).await?,
            (Err(AppError::AliasTaken), Some(name)) if may_exist => {
                let view = find(self.host, self.caller, &name, Scope::RunsCreate).await?;
                same_start((&view, self.caller), &name, (&version, &input, options))?;
                view
            }
            (Err(AppError::AliasTaken), Some(name)) => return Err(duplicate(&name)),
            (Err(error), _) => return Err(error.into()),
        };
        self.settle(view).await
    }

    async fn status(&self, mut arguments: Arguments) -> Result<Value, Error> {
        let id = arguments.required_name("execution_id")?;
        arguments.end()?;
        let view = find(self.host, self.caller, &id, Scope::RunsRead).await?;
        let standing = stable::look(self.host.app(), view).await?.0;
        standing.note(self.host.app(), self.caller);
        Ok(render::status(&standing, self.caller))
    }

    async fn submit(&self, mut arguments: Arguments) -> Result<Value, Error> {
        self.caller.require(Scope::ActivitiesWork)?;
        let id = arguments.required_name("execution_id")?;
        let document = arguments.required_object("definition")?;
        let input = arguments.required_object("input")?;
        let node = arguments.required_name("node_id")?;
        let outcome = arguments.outcome()?;
        let span = arguments.span()?;
        let mode = arguments.mode()?;
        arguments.end()?;
        if let Some(view) = self.replayed().await? {
            return self.settle(view).await;
        }
        let document = definition::trusted(self.host, document).map_err(|error| Error {
            code: Code::SubmitValidation,
            ..error
        })?;
        let not_awaiting = |message: &str| Error::new(Code::SubmitNotAwaiting, message);
        let view = match find(self.host, self.caller, &id, Scope::ActivitiesWork).await {
            Err(error) if error.code == Code::ExecutionNotFound => {
                return Err(not_awaiting(&error.message));
            }
            found => found?,
        };
        let submission = Submission {
            definition: definition::hash(&document),
            input: as_compared(&view, self.caller, &input).into_owned(),
            node,
            span,
            outcome,
        };
        let (run, state) = view.run.awp().ok_or_else(|| Error::no_execution(&id))?;
        let plan = view.plan.awp().ok_or_else(|| Error::no_execution(&id))?;
        let mut questions = match stable::may_be_answered(view.run.status) {
            true => awp::agent_questions(plan, run),
            false => Vec::new(),
        };
        if let Some(at) = questions
            .iter()
            .position(|question| question.node == submission.node)
        {
            let question = questions.swap_remove(at);
            return self.answer_agent(view, question, submission, mode).await;
        }
        let submitted = awp::check_submission(plan, (&view.key.run, run, state), submission);
        let submitted = submitted.map_err(|refusal| match refusal {
            // What an agent asks is shown as an activity.
            SubmitRefusal::NotAwaiting if !questions.is_empty() => {
                SubmitRefusal::OtherNode(questions.into_iter().map(|question| question.node).collect())
            }
            refusal @ (SubmitRefusal::Invalid(_)
            | SubmitRefusal::NotAwaiting
            | SubmitRefusal::OtherNode(_)
            | SubmitRefusal::OtherSpan) => refusal,
        })?;
        same_mode(&view, mode, Tool::SubmitActivity)?;
        let at = ActivityAttempt {
            step: submitted.step,
            attempt: submitted.attempt,
            lease: None,
        };
        let (app, run) = (self.host.app(), VisibleRun::from(&view));
        drop(view);
        let ending = EndedActivity {
            details: submitted.details,
            outcome: submitted.outcome,
        };
        let done = app.submit_activity(self.caller, &run, at, ending, self.side_rows());
        match done.await {
            Ok(done) => {
                let view = self.done(done).await?;
                self.settle(view).await
            }
            Err(AppError::Refused(Refusal::Stale | Refusal::Terminal(_) | Refusal::WrongState)) => Err(
                not_awaiting("the execution does not wait for this activity any more"),
            ),
            Err(error) => Err(error.into()),
        }
    }

    async fn cancel(&self, mut arguments: Arguments) -> Result<Value, Error> {
        let id = arguments.required_name("execution_id")?;
        let reason = arguments.name("reason")?;
        arguments.end()?;
        let view = find(self.host, self.caller, &id, Scope::RunsCancel).await?;
        let not_allowed = |status: RunStatus| {
            let message = format!("the execution is {}", status.as_str());
            Error::new(Code::CancelNotAllowed, message)
        };
        let run = VisibleRun::from(&view);
        drop(view);
        let cancelling = self
            .host
            .app()
            .cancel_run(self.caller, &run, reason, self.side_rows());
        match cancelling.await {
            Ok(done) => {
                let view = self.done(done).await?;
                self.settle(view).await
            }
            Err(AppError::Refused(Refusal::Terminal(RunStatus::Cancelled))) => {
                let view = self.host.app().view(&run).await?;
                let view = view.ok_or_else(|| Error::no_execution(&id))?;
                render::outcome(&Standing::of(view), self.caller)
            }
            Err(AppError::Refused(Refusal::Terminal(status))) => Err(not_allowed(status)),
            Err(error) => Err(error.into()),
        }
    }
}

/// The options of a new run that are no arguments of their own.
fn configurable(arguments: &mut Arguments) -> Result<Object, Error> {
    let mut configurable = arguments.object("configurable")?.unwrap_or_default();
    for given in [awp::EXECUTION_ID, awp::ACTIVITY_MODE] {
        if configurable.contains_key(given) {
            let message = format!("configurable.{given} has an argument of its own");
            return Err(Error::invalid(Tool::Start, message));
        }
    }
    // What the host has is for the host to say.
    awp::add_in_process(&mut configurable, None)?;
    Ok(configurable)
}

fn duplicate(name: &str) -> Error {
    let message = format!("Execution \"{name}\" already exists.");
    let error = Error::new(Code::DuplicateExecutionId, message);
    error.with(json!({ "execution_id": name }))
}

const OTHER_DEFINITION: &str = "the definition is not the one with which the execution was started";

/// What a start says of how activities are done.
#[derive(Debug, Clone, Copy)]
struct Options {
    mode: Option<ActivityMode>,
    is_parallel: Option<bool>,
}

/// Checks that a start with the id of an execution is the one that began it. To whoever did not begin it and may not read
/// it, the id is taken, and nothing else is said of it.
fn same_start(
    (view, caller): (&View, &Caller),
    name: &str,
    (version, input, options): (&wopr_core::ContentHash, &Object, Options),
) -> Result<(), Error> {
    if view.summary.principal != caller.principal && caller.require(Scope::RunsRead).is_err() {
        return Err(duplicate(name));
    }
    if view.plan.version() != version {
        let message = format!("NONDETERMINISM_DETECTED: {OTHER_DEFINITION}");
        let details = json!({ "cause": message, "execution_id": execution_id(view) });
        return Err(Error::new(Code::NondeterminismDetected, OTHER_DEFINITION).with(details));
    }
    same_input(view, caller, input).map_err(|error| Error {
        code: Code::Validation,
        ..error
    })?;
    let started = view.run.started.as_ref();
    let is_parallel = started.is_some_and(|started| awp::is_parallel(&started.configurable));
    if options.is_parallel.is_some_and(|wanted| wanted != is_parallel) {
        let message = format!("parallel_activities is {is_parallel} from the start on and cannot change");
        return Err(Error::invalid(Tool::Start, message));
    }
    same_mode(view, options.mode, Tool::Start)
}

fn same_input(view: &View, caller: &Caller, input: &Object) -> Result<(), Error> {
    match &view.run.started {
        Some(started) => {
            let input = as_compared(view, caller, input);
            awp::check_input(&started.inputs, &input).map_err(Error::from)
        }
        None => Ok(()),
    }
}

/// Prepares the input that a caller sends along for the comparison with the input of the start. A member that differs only
/// in hidden values becomes the member of the start, so that the caller cannot guess those values. The principal that
/// started the execution has to repeat all values.
fn as_compared<'a>(view: &View, caller: &Caller, input: &'a Object) -> Cow<'a, Object> {
    let Some(started) = &view.run.started else {
        return Cow::Borrowed(input);
    };
    let mask = Mask::for_caller(view, caller);
    if mask.hides_nothing() || started.principal == caller.principal {
        return Cow::Borrowed(input);
    }
    let (known, given) = (mask.inputs(&started.inputs), mask.inputs(input));
    let member = |(name, value): (&String, &Value)| {
        let hidden = started
            .inputs
            .get(name)
            .filter(|_| known.get(name) == given.get(name));
        (name.clone(), hidden.unwrap_or(value).clone())
    };
    Cow::Owned(input.iter().map(member).collect())
}

/// Checks that a later call does not choose another mode: the log says who does the work from the start on.
fn same_mode(view: &View, mode: Option<ActivityMode>, tool: Tool) -> Result<(), Error> {
    let Some(started) = &view.run.started else {
        return Ok(());
    };
    let chosen = ActivityMode::of(&started.configurable);
    match mode.is_none_or(|mode| mode == chosen) {
        true => Ok(()),
        false => {
            let message = format!(
                "activity_execution_mode is {} from the start on and cannot change",
                chosen.as_str()
            );
            Err(Error::invalid(tool, message))
        }
    }
}
