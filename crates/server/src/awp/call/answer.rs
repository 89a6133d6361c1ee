//! Answers what an execution waits for: its questions, those of agents that it has called, and signals.
//!
//! An answer goes to the question that its sender was shown. One that names no question is refused if the sender may mean
//! another one than the one that is open. A signal names what it is for, so it goes to any wait for its name. The event that
//! an OpenWOP child waits for is a signal of the name of its type, and goes to a wait whose correlation it matches.

use serde_json::{Value, json};
use wopr_app::{Done, Error as AppError, NodeAnswer, NodeAnswerError, Question, Settled, View, VisibleRun};
use wopr_core::{
    InterruptKind, Object, Refusal,
    awp::{self, ActivityMode, AgentQuestion, AwaitedSignal, ExecutionPhase, HostOutcome, Submission},
};

use super::{OTHER_DEFINITION, Surface, same_input, same_mode};
use crate::{
    auth::Scope,
    awp::{
        arguments::Arguments,
        definition,
        error::{Code, Error},
        execution::{execution_id, find},
        stable::{self, may_be_answered},
        tool::Tool,
    },
};

/// The most names of signals that an error lists.
const MAX_NAMES: usize = 8;
/// How often a signal is sent to another wait, because one has got another signal meanwhile. Each time, some signal has
/// been delivered.
const MAX_CHOICES: usize = 64;

/// The codes of refused answers.
#[derive(Debug, Clone, Copy)]
struct Codes {
    /// The answer is not what is waited for.
    wrong: Code,
    /// Nothing waits for the answer any more.
    late: Code,
}

const RESUME: Codes = Codes {
    wrong: Code::InvalidResumePayload,
    late: Code::InvalidResumePayload,
};
const SUBMIT: Codes = Codes {
    wrong: Code::SubmitValidation,
    late: Code::SubmitNotAwaiting,
};
const SIGNAL: Codes = Codes {
    wrong: Code::SignalValidation,
    late: Code::SignalNotAwaiting,
};

impl Surface<'_> {
    pub(super) async fn resume(&self, mut arguments: Arguments) -> Result<Value, Error> {
        self.caller.require(Scope::ApprovalsRespond)?;
        let id = arguments.required_name("execution_id")?;
        let document = arguments.required_object("definition")?;
        let payload = arguments.required_object("resume_payload")?;
        let named = arguments.name("interrupt_id")?;
        let mode = arguments.mode()?;
        arguments.end()?;
        if let Some(view) = self.replayed().await? {
            return self.settle(view).await;
        }
        let document = definition::trusted(self.host, document)?;
        let view = find(self.host, self.caller, &id, Scope::ApprovalsRespond).await?;
        if !definition::is_of(&view, &document) {
            return Err(Error::new(Code::InvalidResumePayload, OTHER_DEFINITION));
        }
        same_mode(&view, mode, Tool::Resume)?;
        let waiting = self.meant(&view, named.as_deref()).await?.waiting;
        let answer = NodeAnswer {
            node: waiting.step.node.to_string(),
            interrupt: Some(waiting.id()),
            value: Value::Object(payload),
        };
        self.host.app().note_answer(self.caller, &view);
        self.answer(view, answer, "resume_payload", RESUME).await
    }

    /// The question of an execution that an answer means: the one it names, or the one that its sender was shown.
    async fn meant(&self, view: &View, named: Option<&str>) -> Result<Question, Error> {
        let app = self.host.app();
        let asked = stable::question(app, view).await?;
        let Some(asked) = asked else {
            let phase = stable::status(view).phase;
            if phase == ExecutionPhase::Interrupted {
                return Err(changed(view, "the question has its answer already", None));
            }
            let message = format!("the execution is not interrupted: it is {}", phase.as_str());
            return Err(Error::new(Code::InvalidResumePayload, message));
        };
        let Some(named) = named else {
            return match app.may_mean_another(self.caller, view, &asked).await? {
                false => Ok(asked),
                true => Err(changed(view, OTHER_QUESTION, Some(&asked))),
            };
        };
        let mut open = app.open_questions(view).await?.into_iter();
        let is_named = |question: &Question| {
            let waiting = &question.waiting;
            waiting.kind != InterruptKind::ExternalEvent && question.asked.is_some() && waiting.id() == named
        };
        let found = open.find(is_named);
        found.ok_or_else(|| {
            changed(
                view,
                "the question with this interrupt_id is not open",
                Some(&asked),
            )
        })
    }

    /// Answers a question of an agent with the result that is submitted for its node.
    pub(super) async fn answer_agent(
        &self,
        view: View,
        question: AgentQuestion,
        submission: Submission,
        mode: Option<ActivityMode>,
    ) -> Result<Value, Error> {
        let invalid = |message: &str| Error::new(Code::SubmitValidation, message);
        if submission.definition != *view.plan.version() {
            return Err(invalid(OTHER_DEFINITION));
        }
        same_input(&view, self.caller, &submission.input)?;
        same_mode(&view, mode, Tool::SubmitActivity)?;
        let HostOutcome::Completed { result, .. } = submission.outcome else {
            return Err(invalid(
                "outcome.ok must be true: the agent asks, and what it asks can only be answered",
            ));
        };
        // The agent may ask several things one after the other: the answer is for the one that its sender was shown.
        let answer = NodeAnswer {
            node: question.node,
            interrupt: None,
            value: result,
        };
        self.answer(view, answer, "outcome.result", SUBMIT).await
    }

    pub(super) async fn signal(&self, mut arguments: Arguments) -> Result<Value, Error> {
        self.caller.require(Scope::ApprovalsRespond)?;
        let id = arguments.required_name("execution_id")?;
        let document = arguments.required_object("definition")?;
        let input = arguments.required_object("input")?;
        let name = arguments.required_name("signal_name")?;
        let payload = arguments.object("payload")?.unwrap_or_default();
        let mode = arguments.mode()?;
        arguments.end()?;
        if let Some(view) = self.replayed().await? {
            return self.settle(view).await;
        }
        let document = definition::trusted(self.host, document).map_err(|error| Error {
            code: Code::SignalValidation,
            ..error
        })?;
        let mut n_choices = 0;
        // The waits for an event of this name with another correlation.
        let mut unmatched = Vec::new();
        loop {
            let view = find(self.host, self.caller, &id, Scope::ApprovalsRespond).await?;
            let mut wanted = self.wanted(&view, &name, &document).await?;
            let next = wanted
                .iter()
                .position(|signal| !unmatched.contains(&signal.interrupt));
            // An event that matches none is refused by the first one.
            let wanted = wanted.swap_remove(next.unwrap_or(0));
            let interrupt = wanted.interrupt.clone();
            same_input(&view, self.caller, &input).map_err(|error| Error {
                code: Code::SignalValidation,
                ..error
            })?;
            same_mode(&view, mode, Tool::Signal)?;
            n_choices += 1;
            match self.try_answer(view, answer_to(wanted, payload.clone())).await {
                Ok(done) => return self.settle(self.done(done).await?).await,
                // The wait has got another signal meanwhile; others may wait for this one.
                Err(NodeAnswerError::Failed(error)) if is_late(&error) && n_choices < MAX_CHOICES => {}
                Err(NodeAnswerError::Failed(AppError::Refused(Refusal::NoMatch(_))))
                    if next.is_some() && n_choices < MAX_CHOICES =>
                {
                    unmatched.push(interrupt);
                }
                Err(error) => return Err(refused(error, "payload", SIGNAL)),
            }
        }
    }

    /// The waits that a signal may go to, at least one. The first one gets it: they are in the order of the document, and
    /// those of the execution come before those of its children.
    async fn wanted(&self, view: &View, name: &str, document: &Value) -> Result<Vec<AwaitedSignal>, Error> {
        let (plan, run) = (view.plan.awp(), view.run.awp());
        let (plan, (run, _)) = plan
            .zip(run)
            .ok_or_else(|| Error::no_execution(&execution_id(view)))?;
        let mut awaited = match may_be_answered(view.run.status) {
            true => awp::awaited_signals(plan, run),
            false => Vec::new(),
        };
        if may_be_answered(view.run.status) && awaited.iter().all(|signal| signal.name != name) {
            let of_children = stable::signals_of_children(self.host.app(), view).await?;
            awaited.extend(of_children.into_iter().map(|(signal, _)| signal));
        }
        if awaited.is_empty() {
            let message = format!(
                "the execution does not wait for a signal: it is {}",
                awp::phase(plan, run).as_str()
            );
            return Err(Error::new(Code::SignalNotAwaiting, message));
        }
        if !definition::is_of(view, document) {
            return Err(Error::new(Code::SignalValidation, OTHER_DEFINITION));
        }
        if awaited.iter().any(|signal| signal.name == name) {
            awaited.retain(|signal| signal.name == name);
            return Ok(awaited);
        }
        let mut names: Vec<_> = awaited
            .iter()
            .map(|signal| format!("\"{}\"", signal.name))
            .collect();
        names.dedup();
        names.truncate(MAX_NAMES);
        let message = format!("the execution waits for the signal {}", names.join(" or "));
        Err(Error::new(Code::SignalNameMismatch, message))
    }

    /// Answers what an execution waits for, and waits for what follows. `member` is the argument that has the answer.
    async fn answer(
        &self,
        view: View,
        answer: NodeAnswer,
        member: &str,
        codes: Codes,
    ) -> Result<Value, Error> {
        match self.try_answer(view, answer).await {
            Ok(done) => self.settle(self.done(done).await?).await,
            Err(error) => Err(refused(error, member, codes)),
        }
    }

    async fn try_answer(&self, view: View, answer: NodeAnswer) -> Result<Done, NodeAnswerError> {
        let run = VisibleRun::from(&view);
        // Its memory is needed for the decision.
        drop(view);
        let app = self.host.app();
        app.answer_at_node(self.caller, &run, answer, self.side_rows())
            .await
    }
}

fn answer_to(signal: AwaitedSignal, payload: Object) -> NodeAnswer {
    NodeAnswer {
        node: signal.node,
        interrupt: Some(signal.interrupt),
        value: Value::Object(payload),
    }
}

const OTHER_QUESTION: &str = "the execution may ask another question than the one you were shown: look at it, or name the question by interrupt_id";

/// The error of an answer whose question is not the open one.
fn changed(view: &View, message: &str, open: Option<&Question>) -> Error {
    let mut details = json!({ "reason": "interrupt_changed", "execution_id": execution_id(view) });
    if let Some(open) = open {
        details["node_id"] = open.waiting.step.node.as_str().into();
        details["interrupt_id"] = open.waiting.id().into();
    }
    Error::new(Code::SubmitNotAwaiting, message).with(details)
}

/// Whether what an answer was for has been answered, or has ended, meanwhile.
const fn is_late(error: &AppError) -> bool {
    matches!(
        error,
        AppError::Settled(_)
            | AppError::Refused(
                Refusal::AlreadyResolved | Refusal::NoInterrupt | Refusal::Stale | Refusal::Terminal(_)
            )
    )
}

fn refused(error: NodeAnswerError, member: &str, Codes { wrong, late }: Codes) -> Error {
    match error {
        NodeAnswerError::Failed(AppError::Refused(refusal)) => match refusal {
            Refusal::InvalidAnswer(rule) | Refusal::NoMatch(rule) => {
                Error::new(wrong, format!("{member}: {rule}"))
            }
            Refusal::NotAllowed(rule) => Error::new(Code::AuthForbidden, rule),
            Refusal::NeedsCredential => Error::new(
                Code::AuthForbidden,
                "this gate needs an authenticated approver, a token is not enough",
            ),
            other => Error::new(late, format!("the host cannot {other}")),
        },
        NodeAnswerError::Failed(AppError::Settled(settled)) => {
            let error = |code| Error::new(code, format!("the question {settled}"));
            // A run that has ended is not interrupted; one that goes on may ask something else.
            if late == Code::InvalidResumePayload && !matches!(settled, Settled::RunEnded(_)) {
                return error(Code::SubmitNotAwaiting).with(json!({ "reason": "interrupt_changed" }));
            }
            error(late)
        }
        NodeAnswerError::Failed(error) => error.into(),
        NodeAnswerError::NotTheVoter(forbidden) => forbidden.into(),
        NodeAnswerError::Ambiguous(_) | NodeAnswerError::Changed(_) => {
            let error = Error::new(
                late,
                "the execution may ask something else than you were shown: look at it",
            );
            error.with(json!({ "reason": "interrupt_changed" }))
        }
    }
}
