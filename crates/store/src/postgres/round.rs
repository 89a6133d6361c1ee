//! Pipelining: the statements of a [`Round`] take one round trip.
//!
//! The driver sends a statement when its future is first polled, and responses arrive in order. Polling all
//! futures once, in order, therefore sends all statements before the first response. If a statement fails
//! inside a transaction, the server refuses those after it, and answers COMMIT with ROLLBACK. A statement
//! that fails before it is sent, because a value cannot be encoded or the connection is closed, is unknown to
//! the server, so nothing after it is sent either.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use deadpool_postgres::ClientWrapper;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::{
    Error, Row, Statement,
    types::{ToSql, Type},
};

use super::fault::{Fault, cause};

/// A statement parameter.
pub(super) type Value<'v> = Box<dyn ToSql + Sync + Send + 'v>;

pub(super) fn value<'v>(value: impl ToSql + Sync + Send + 'v) -> Value<'v> {
    Box::new(value)
}

/// One command of a round.
enum Step<'v> {
    /// A transaction control command.
    Control(&'static str),
    /// A statement that is prepared once per connection.
    Prepared(&'static str, Vec<Value<'v>>),
    /// A statement whose text varies, so that caching it as prepared would fill the connection's cache.
    Typed(String, Vec<(Value<'v>, Type)>),
}

/// Statements to send together.
#[derive(Default)]
pub(super) struct Round<'v> {
    steps: Vec<Step<'v>>,
}

impl<'v> Round<'v> {
    /// Adds a transaction control command.
    pub(super) fn control(&mut self, word: &'static str) {
        self.steps.push(Step::Control(word));
    }

    /// Adds a statement and returns the index of its result.
    pub(super) fn add(&mut self, sql: &'static str, values: Vec<Value<'v>>) -> usize {
        self.steps.push(Step::Prepared(sql, values));
        self.steps.len() - 1
    }

    /// Creates a round of one prepared statement.
    pub(super) fn of(sql: &'static str, values: Vec<Value<'v>>) -> Self {
        Self {
            steps: vec![Step::Prepared(sql, values)],
        }
    }

    /// Creates a round of one statement that is not cached.
    pub(super) fn typed(sql: String, values: Vec<(Value<'v>, Type)>) -> Self {
        Self {
            steps: vec![Step::Typed(sql, values)],
        }
    }

    /// Prepares the statements that this connection has not prepared yet. Sends nothing of the round itself.
    pub(super) async fn prepare(self, client: &ClientWrapper, until: Instant) -> Result<Ready<'v>, Fault> {
        let prepare = async {
            let mut steps = Vec::with_capacity(self.steps.len());
            for step in self.steps {
                steps.push(match step {
                    Step::Control(word) => ReadyStep::Control(word),
                    Step::Prepared(sql, values) => {
                        ReadyStep::Prepared(client.prepare_cached(sql).await?, values)
                    }
                    Step::Typed(sql, values) => ReadyStep::Typed(sql, values),
                });
            }
            Ok::<_, Error>(steps)
        };
        match timeout_at(until, prepare).await {
            Ok(steps) => Ok(Ready { steps: steps?, until }),
            Err(_) => Err(silent()),
        }
    }

    /// Prepares and sends; returns all results, or the first failure.
    pub(super) async fn ask(self, client: &ClientWrapper, until: Instant) -> Result<Vec<Vec<Row>>, Fault> {
        let sent = self.prepare(client, until).await?.send(client).await;
        match sent.failure {
            Some(failure) => Err(failure.into()),
            None => Ok(sent.rows),
        }
    }
}

enum ReadyStep<'v> {
    Control(&'static str),
    Prepared(Statement, Vec<Value<'v>>),
    Typed(String, Vec<(Value<'v>, Type)>),
}

/// A prepared round.
pub(super) struct Ready<'v> {
    steps: Vec<ReadyStep<'v>>,
    /// When to give up waiting for responses.
    until: Instant,
}

/// The responses to a round.
pub(super) struct Sent {
    /// The rows of each step before the failure; empty for control commands.
    pub(super) rows: Vec<Vec<Row>>,
    /// The first step that failed.
    pub(super) failure: Option<Failure>,
}

/// The failure of a step.
pub(super) struct Failure {
    /// The index of the step.
    pub(super) step: usize,
    /// The error from the server or the connection; `None` on timeout.
    pub(super) error: Option<Error>,
    /// `true` if the step failed before it was sent, so that nothing after it was sent.
    pub(super) is_unsent: bool,
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure.error {
            // Retrying would fail the same way.
            Some(error) if failure.is_unsent && !error.is_closed() && error.as_db_error().is_none() => {
                Self::Damaged(cause(error))
            }
            Some(error) => Self::from(error),
            None => silent(),
        }
    }
}

impl Ready<'_> {
    /// The index of the last step.
    pub(super) fn last(&self) -> usize {
        self.steps.len().saturating_sub(1)
    }

    /// Sends everything and collects the responses.
    pub(super) async fn send(self, client: &ClientWrapper) -> Sent {
        let calls: Vec<_> = self.steps.iter().map(|step| call(client, step)).collect();
        let n_steps = calls.len();
        let mut sent = Sent {
            rows: Vec::with_capacity(n_steps),
            failure: None,
        };
        let Ok(answers) = timeout_at(self.until, in_order(calls)).await else {
            sent.failure = Some(Failure {
                step: 0,
                error: None,
                is_unsent: false,
            });
            return sent;
        };
        for (step, answer) in answers.of_each.into_iter().enumerate() {
            match answer {
                Ok(rows) => sent.rows.push(rows),
                Err(error) => {
                    sent.failure = Some(Failure {
                        step,
                        error: Some(error),
                        is_unsent: answers.unsent == Some(step),
                    });
                    break;
                }
            }
        }
        sent
    }
}

/// The fault for a server that does not respond.
pub(super) fn silent() -> Fault {
    Fault::Lost("the database did not answer in time".into())
}

type Call<'c> = Pin<Box<dyn Future<Output = Result<Vec<Row>, Error>> + Send + 'c>>;

fn call<'c>(client: &'c ClientWrapper, step: &'c ReadyStep<'_>) -> Call<'c> {
    match step {
        ReadyStep::Control(word) => Box::pin(async move {
            client.batch_execute(word).await?;
            Ok(Vec::new())
        }),
        ReadyStep::Prepared(statement, values) => Box::pin(async move {
            let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| &**value as _).collect();
            client.query(statement, &values).await
        }),
        ReadyStep::Typed(sql, values) => Box::pin(async move {
            let values: Vec<(&(dyn ToSql + Sync), Type)> = values
                .iter()
                .map(|(value, kind)| (&**value as _, kind.clone()))
                .collect();
            client.query_typed(sql, &values).await
        }),
    }
}

/// The results of the calls that were started.
struct Answers {
    of_each: Vec<Result<Vec<Row>, Error>>,
    /// The call that failed before it was sent, which is the last one started.
    unsent: Option<usize>,
}

/// Awaits all calls. Each poll visits them in order, including the first, which sends them.
async fn in_order<'c>(mut calls: Vec<Call<'c>>) -> Answers {
    let mut answers: Vec<Option<Result<Vec<Row>, Error>>> = Vec::with_capacity(calls.len());
    let mut unsent = None;
    let poll = |context: &mut Context<'_>| {
        let mut is_ready = true;
        for (place, call) in calls.iter_mut().enumerate() {
            let is_first = place == answers.len();
            if is_first {
                answers.push(None);
            }
            let Some(answer @ None) = answers.get_mut(place) else {
                continue;
            };
            match call.as_mut().poll(context) {
                Poll::Ready(Err(error)) if is_first => {
                    *answer = Some(Err(error));
                    unsent = Some(place);
                    break;
                }
                Poll::Ready(done) => *answer = Some(done),
                Poll::Pending => is_ready = false,
            }
        }
        if let Some(place) = unsent {
            calls.truncate(place + 1);
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    };
    poll_fn(poll).await;
    Answers {
        of_each: answers.into_iter().flatten().collect(),
        unsent,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::poll;
    use tokio::sync::oneshot;
    use tokio_postgres::Config;

    use super::*;

    /// An error that does not come from the server.
    fn error() -> Error {
        "connect_timeout=soon"
            .parse::<Config>()
            .expect_err("not a number")
    }

    #[tokio::test]
    async fn nothing_is_sent_after_an_unsendable_statement() {
        let (answer, answered) = oneshot::channel::<()>();
        let sent = async move {
            answered.await.expect("it is answered");
            Ok(Vec::new())
        };
        let commit = async { panic!("the last was sent") };
        let calls: Vec<Call<'_>> = vec![Box::pin(sent), Box::pin(ready(Err(error()))), Box::pin(commit)];
        let mut answers = Box::pin(in_order(calls));
        assert!(poll!(&mut answers).is_pending(), "what was sent is waited for");
        answer.send(()).expect("it waits");
        let Answers { of_each, unsent } = answers.await;
        assert!(matches!(of_each.as_slice(), [Ok(_), Err(_)]));
        assert_eq!(unsent, Some(1));
    }

    #[tokio::test]
    async fn a_failure_after_sending_does_not_stop_later_statements() {
        let (answer, answered) = oneshot::channel::<()>();
        let fails = async move {
            answered.await.expect("it is answered");
            Err(error())
        };
        let (begin, begun) = oneshot::channel();
        let commit = async move {
            begin.send(()).expect("somebody looks");
            pending().await
        };
        let calls: Vec<Call<'_>> = vec![Box::pin(fails), Box::pin(commit)];
        let mut answers = Box::pin(in_order(calls));
        assert!(poll!(&mut answers).is_pending());
        begun.await.expect("the last was sent");
        answer.send(()).expect("it waits");
        assert!(poll!(&mut answers).is_pending(), "the last is waited for");
    }
}
