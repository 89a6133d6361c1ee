//! Looks at the task of a call, and judges what its state means.

use std::time::{Duration, Instant};

use wopr_core::AgentCall;
use wopr_engine::{Outcome, Report, Throttles};
use wopr_wire::a2a::model::{Task, TaskState};

use super::{
    Agents, Attempted, Handle, MAX_RETRY_AFTER, OF_TASKS,
    carried::Carried,
    failure::{cut, failed, has_no_method, has_no_stream_of_it, is_forgotten, lost, tells_no_task},
    given_up,
    made::{Cursor, may_grow},
    now,
    outputs::{of_task, text_of},
    question::{asks, asks_the_same, interrupt, question, says},
    stream::GoesOn,
};
use crate::a2a::{self, Agent};

/// Lines a minute about an agent that is away or back, which it may be as often as it is asked.
static AWAY: Throttles = Throttles::new(10);

/// How long an agent may take to begin the stream of a task.
const SUBSCRIBED: Duration = Duration::from_secs(5);
/// The age from which a task is followed by a stream of its own.
const SETTLED: Duration = Duration::from_secs(5);
/// Shortest and longest time between two looks at a task. In between, it is looked at after a quarter of its age.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LAST_LOOK: Duration = Duration::from_secs(30);
/// The time until the next look while an agent cannot be asked.
const UNASKED_LOOK: Duration = Duration::from_secs(15);
/// How long a call waits for a task that its agent has no way to be asked for, and whose stream nobody follows.
const UNASKABLE: Duration = Duration::from_secs(600);
/// The time until the next look at a task that asks: it may be answered elsewhere.
const ASKED_LOOK: Duration = Duration::from_secs(10);
/// The reason of a run whose agent cancelled its task.
const CANCELLED: &str = "cross_protocol_cancel";

impl Agents {
    pub(super) async fn look(&self, attempted: &Attempted<'_>, handle: Handle) -> Report {
        let agent = match self.agent(attempted).await {
            Ok(agent) => agent,
            Err(error) => return self.unasked(attempted, &handle, &error),
        };
        let error = match agent.get_task(&handle.task_id, Some(0)).await {
            Ok(task) => {
                if self.away.lock().remove(&handle.peer)
                    && let Some(left_out) = AWAY.admit(&handle.peer, Instant::now())
                {
                    tracing::info!(
                        peer = handle.peer,
                        left_out,
                        "an agent can be asked for its tasks again"
                    );
                }
                self.followers.forget(attempted.key);
                let (task_id, was_asking) = (task.id.clone(), handle.asks.is_some());
                let report = Box::pin(self.judge(&agent, attempted, handle, task)).await;
                // A task that changes is worth a stream.
                if goes_on(&report) && (was_asking || matches!(report, Report::Produced { .. })) {
                    Box::pin(self.follow_again(&agent, attempted, &task_id)).await;
                }
                return report;
            }
            Err(error) => error,
        };
        if !tells_no_task(&error) {
            return self.unasked(attempted, &handle, &error);
        }
        // First, since a stream that ends meanwhile has left its end.
        let is_followed = self.followers.is_followed(attempted.key);
        // Its stream was the only word of the agent, and the last one.
        if let Some(task) = self.followers.end_of(attempted.key, &handle.task_id) {
            return Box::pin(self.judge(&agent, attempted, handle, task)).await;
        }
        if has_no_method(&error) {
            let is_followed = Box::pin(self.follow_again(&agent, attempted, &handle.task_id)).await;
            return unaskable(handle, &error, is_followed);
        }
        // A stream that goes on says how the task ends.
        if is_forgotten(&error) && !is_followed {
            return failed("remote_failed", "the agent no longer knows the task".to_owned()).into();
        }
        self.unasked(attempted, &handle, &error)
    }

    /// What a look does that did not learn the state of the task.
    fn unasked(&self, attempted: &Attempted<'_>, handle: &Handle, error: &a2a::Error) -> Report {
        if let a2a::Error::TooLarge { .. } | a2a::Error::TooDeep | a2a::Error::UnknownPeer(_) = error {
            return lost(handle, error).into();
        }
        let (run, peer, task) = (attempted.run, &handle.peer, &handle.task_id);
        // An agent that is away may have thousands of tasks.
        if !error.is_transient() {
            if let Some(left_out) = OF_TASKS.admit(&run.tenant, Instant::now()) {
                tracing::info!(%run, peer, task, %error, left_out, "an agent could not be asked for its task; it will be asked again");
            }
        } else if self.away.lock().insert(peer.clone()) {
            if let Some(left_out) = AWAY.admit(peer, Instant::now()) {
                tracing::info!(peer, %error, left_out, "an agent could not be asked for its tasks; it will be asked again");
            }
        } else {
            tracing::debug!(%run, peer, task, %error, "an agent could not be asked for its task again");
        }
        let after = error.retry_after().unwrap_or_default();
        Report::Unchanged {
            check_after: Some(after.clamp(UNASKED_LOOK, MAX_RETRY_AFTER)),
        }
    }

    /// Follows a task, if its agent streams and there is a place for another one. Returns whether it is followed.
    async fn follow_again(&self, agent: &Agent, attempted: &Attempted<'_>, task: &str) -> bool {
        let Attempted {
            run, key, wake, call, ..
        } = attempted;
        if self.followers.is_followed(key) {
            return true;
        }
        let streams = agent.card().model.capabilities.streaming == Some(true);
        if !streams || !self.followers.may_ask(&call.peer) {
            return false;
        }
        // Without one, nothing is asked for: thousands of tasks may be waited for.
        let Some(place) = self.followers.place(&run.tenant, key) else {
            return false;
        };
        // If there is no stream, it is looked at when it is due.
        let items = match tokio::time::timeout(SUBSCRIBED, agent.subscribe(task, None)).await {
            Ok(Ok(items)) => items,
            // It may have ended meanwhile, which says nothing of the agent's other tasks.
            Ok(Err(error)) if has_no_stream_of_it(&error) => return false,
            Ok(Err(_)) | Err(_) => {
                self.followers.note_refusal(&call.peer);
                return false;
            }
        };
        let carried = Carried::midway(task);
        self.followers
            .follow(place, GoesOn { items, carried }, wake.clone());
        true
    }

    /// What a task means for its call: what it has made, and its state.
    pub(super) async fn judge(
        &self,
        agent: &Agent,
        attempted: &Attempted<'_>,
        mut handle: Handle,
        task: Task,
    ) -> Report {
        if !task.unreadable.is_empty() && !handle.is_unreadable {
            let (run, peer, unreadable) = (attempted.run, &handle.peer, task.unreadable.join("; "));
            if let Some(left_out) = OF_TASKS.admit(&run.tenant, Instant::now()) {
                tracing::warn!(%run, peer, task = task.id, unreadable, left_out, "parts of an agent's task cannot be read; they are left out");
            }
            handle.is_unreadable = true;
        }
        let mut cursor = Cursor::read(attempted.cursor.as_ref());
        // A stream must not show the beginning of a secret of which the rest is still to come.
        let secrets = match may_grow(&task) {
            true => Box::pin(agent.secrets()).await,
            false => None,
        };
        let produced = cursor.advance(&task, secrets.as_ref());
        let report = self.judge_state(agent, attempted, handle, task).await;
        if produced.is_empty() {
            return report;
        }
        Report::Produced {
            produced,
            cursor: serde_json::to_value(cursor).unwrap_or_default(),
            then: Box::new(report),
        }
    }

    async fn judge_state(
        &self,
        agent: &Agent,
        attempted: &Attempted<'_>,
        handle: Handle,
        task: Task,
    ) -> Report {
        let state = task.status.state;
        match state {
            TaskState::InputRequired | TaskState::AuthRequired if !self.silent.contains(&handle.peer) => {
                // If the agent cannot be asked, what it said counts.
                let is_known =
                    handle.asks.is_some() && asks_the_same(agent, &handle, &task).await.unwrap_or(false);
                let mut handle = match is_known {
                    true => handle,
                    false => Handle {
                        asks: asks(&task),
                        says: says(&task),
                        interrupt: interrupt(&task),
                        refused: None,
                        ..handle
                    },
                };
                let question_of = (
                    handle.peer.clone(),
                    handle.task_id.clone(),
                    handle.asks.clone().unwrap_or_default(),
                );
                let refusal = self.refusals.take(&question_of);
                if let Some(refusal) = &refusal {
                    handle.refused = Some(refusal.answer.clone());
                }
                Report::Interrupted {
                    question: question(&handle, &task, refusal.as_ref()),
                    check_after: Some(ASKED_LOOK),
                    handle: handle.to_value(),
                }
            }
            TaskState::Submitted | TaskState::Working | TaskState::Unspecified => {
                self.go_on(agent, attempted, handle, state).await
            }
            TaskState::InputRequired
            | TaskState::AuthRequired
            | TaskState::Completed
            | TaskState::Failed
            | TaskState::Rejected
            | TaskState::Canceled => end(attempted.call, &handle, &task).into(),
        }
    }

    /// Waits on for a task that its agent works at.
    async fn go_on(
        &self,
        agent: &Agent,
        attempted: &Attempted<'_>,
        handle: Handle,
        state: TaskState,
    ) -> Report {
        let mut handle = Handle {
            asks: None,
            says: None,
            interrupt: None,
            refused: None,
            unaskable: None,
            ..handle
        };
        if state == TaskState::Unspecified && !handle.is_unspecified {
            let (run, peer, task) = (attempted.run, &handle.peer, &handle.task_id);
            if let Some(left_out) = OF_TASKS.admit(&run.tenant, Instant::now()) {
                tracing::warn!(%run, peer, task, left_out, "an agent names no state of its task; it is asked on");
            }
            handle.is_unspecified = true;
        }
        let age = since(handle.since);
        // Its stream may have broken, or been another process's. A short task is not worth one.
        let is_followed = match age >= SETTLED && !self.is_pushed(&handle) {
            true => Box::pin(self.follow_again(agent, attempted, &handle.task_id)).await,
            false => self.followers.is_followed(attempted.key),
        };
        let is_new = !is_followed && Box::pin(self.register(agent, attempted, &mut handle)).await;
        let check_after = match (is_new, self.is_pushed(&handle)) {
            // It may have changed before the agent pushes.
            (true, _) => FIRST_LOOK,
            (false, true) => LAST_LOOK,
            (false, false) => self
                .poll_interval
                .unwrap_or_else(|| (age / 4).clamp(FIRST_LOOK, LAST_LOOK)),
        };
        let (handle, check_after) = (handle.to_value(), Some(check_after));
        match attempted.handle.as_ref() == Some(&handle) {
            // The log need not say again what it says.
            true => Report::Unchanged { check_after },
            false => Report::Accepted { handle, check_after },
        }
    }
}

/// What a look does at a task that its agent cannot be asked for. The call waits for a while: another process may follow
/// the stream that ends the task.
fn unaskable(handle: Handle, error: &a2a::Error, is_followed: bool) -> Report {
    let check_after = Some(UNASKED_LOOK);
    let is_noted = match (handle.unaskable.map(since), is_followed) {
        (None, true) => true,
        (None, false) => false,
        // The other processes see that it is followed.
        (Some(waited), true) => waited < UNASKABLE / 2,
        (Some(waited), false) if waited >= UNASKABLE => return lost(&handle, error).into(),
        (Some(_), false) => true,
    };
    match is_noted {
        true => Report::Unchanged { check_after },
        false => {
            let unaskable = Some(now());
            let handle = Handle { unaskable, ..handle }.to_value();
            Report::Accepted { handle, check_after }
        }
    }
}

/// The time since a moment in milliseconds since 1970.
fn since(moment: u64) -> Duration {
    Duration::from_millis(now().saturating_sub(moment))
}

/// How a call ends whose task has ended, or asks what nobody answers.
fn end(call: &AgentCall, handle: &Handle, task: &Task) -> Outcome {
    let said = task
        .status
        .message
        .as_ref()
        .map(|message| text_of(&message.parts));
    let because = |what: &str| match said.as_deref().filter(|said| !said.is_empty()) {
        Some(said) => format!("{what}: {}", cut(said)),
        None => what.to_owned(),
    };
    match task.status.state {
        TaskState::Failed => failed("remote_failed", because("the agent failed")),
        TaskState::Rejected => failed("rejected_by_remote", because("the agent rejected the message")),
        TaskState::Canceled => Outcome::Cancelled {
            reason: CANCELLED.to_owned(),
        },
        // Nobody answers it, so the task must not wait.
        TaskState::InputRequired => given_up(
            handle,
            "input_required_by_remote",
            because("the agent asks for input"),
        ),
        TaskState::AuthRequired => given_up(
            handle,
            "auth_required_by_remote",
            because("the agent asks for credentials"),
        ),
        TaskState::Completed | TaskState::Submitted | TaskState::Working | TaskState::Unspecified => {
            Outcome::Done(of_task(call, task))
        }
    }
}

/// Whether a call is still with its agent.
fn goes_on(report: &Report) -> bool {
    match report {
        Report::Accepted { .. } | Report::Unchanged { .. } => true,
        Report::Interrupted { .. } | Report::Ended(_) => false,
        Report::Produced { then, .. } => goes_on(then),
    }
}
