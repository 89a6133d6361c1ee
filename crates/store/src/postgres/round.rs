//! Statements sent together: one round trip for as many as are in a [`Round`].
//!
//! The driver sends a statement when its future is polled first and answers come in that order, so polling all of
//! them once, in order, puts all of them on the wire before the first answer. A statement that fails inside a
//! transaction makes the server refuse those behind it, COMMIT included: it answers that with ROLLBACK. One that fails
//! before it is sent, because a value cannot be or the connection is closed, is not known to the server, so nothing
//! behind it is sent either.

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

use super::fault::{Fault, text};

/// One parameter.
pub(super) type Value<'v> = Box<dyn ToSql + Sync + Send + 'v>;

/// Makes a parameter.
pub(super) fn value<'v>(value: impl ToSql + Sync + Send + 'v) -> Value<'v> {
    Box::new(value)
}

/// What is sent.
enum Step<'v> {
    /// A word of transaction control.
    Control(&'static str),
    /// A statement that is prepared once per connection.
    Prepared(&'static str, Vec<Value<'v>>),
    /// A statement whose text differs from call to call, so that keeping it prepared would fill the connection.
    Typed(String, Vec<(Value<'v>, Type)>),
}

/// Statements to send together.
#[derive(Default)]
pub(super) struct Round<'v> {
    steps: Vec<Step<'v>>,
}

impl<'v> Round<'v> {
    /// Adds a word of transaction control.
    pub(super) fn control(&mut self, word: &'static str) {
        self.steps.push(Step::Control(word));
    }

    /// Adds a statement and says where its answer will be.
    pub(super) fn add(&mut self, sql: &'static str, values: Vec<Value<'v>>) -> usize {
        self.steps.push(Step::Prepared(sql, values));
        self.steps.len() - 1
    }

    /// A round of one statement.
    pub(super) fn of(sql: &'static str, values: Vec<Value<'v>>) -> Self {
        Self {
            steps: vec![Step::Prepared(sql, values)],
        }
    }

    /// A round of one statement with a text of its own.
    pub(super) fn typed(sql: String, values: Vec<(Value<'v>, Type)>) -> Self {
        Self {
            steps: vec![Step::Typed(sql, values)],
        }
    }

    /// Prepares what this connection has not prepared yet. Nothing of the round is sent.
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

    /// Prepares and sends; the answers, or the first failure.
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

/// A round that only has to be sent.
pub(super) struct Ready<'v> {
    steps: Vec<ReadyStep<'v>>,
    /// What is not answered by then is given up.
    until: Instant,
}

/// What came back.
pub(super) struct Sent {
    /// The rows of each step before the failure, none for words of control.
    pub(super) rows: Vec<Vec<Row>>,
    /// The first step that failed.
    pub(super) failure: Option<Failure>,
}

/// Where a round failed.
pub(super) struct Failure {
    /// Which step.
    pub(super) step: usize,
    /// What the server or the connection said; `None` if nothing came in time.
    pub(super) error: Option<Error>,
    /// Whether it failed before it was sent, and so nothing behind it was sent.
    pub(super) is_unsent: bool,
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure.error {
            // It will not be sent the next time either.
            Some(error) if failure.is_unsent && !error.is_closed() && error.as_db_error().is_none() => {
                Self::Damaged(text(&error))
            }
            Some(error) => Self::from(error),
            None => silent(),
        }
    }
}

impl Ready<'_> {
    /// The place of the last step.
    pub(super) fn last(&self) -> usize {
        self.steps.len().saturating_sub(1)
    }

    /// Sends everything and collects the answers.
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

/// What a server that says nothing is called.
pub(super) fn silent() -> Fault {
    Fault::Lost("the database did not answer in time".to_owned())
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

/// What calls came to, as far as they were begun.
struct Answers {
    of_each: Vec<Result<Vec<Row>, Error>>,
    /// The call that failed before it was sent: it is the last that was begun.
    unsent: Option<usize>,
}

/// Awaits all. Each poll goes through them in order, the first one too, which sends them.
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

    /// An error that no server has told.
    fn error() -> Error {
        "connect_timeout=soon"
            .parse::<Config>()
            .expect_err("not a number")
    }

    #[tokio::test]
    async fn nothing_is_sent_behind_what_cannot_be() {
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
    async fn what_was_sent_and_fails_keeps_nothing_back() {
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
