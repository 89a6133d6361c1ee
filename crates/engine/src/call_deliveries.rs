//! Deliveries to the peers of accepted calls: cancels, and answers to what a peer asked. Recalls, which look for what
//! the peer of a call has that nobody waits for, are listed and retried with them; see [`crate::recalls`].
//!
//! Each is a row in the queue of effects, written by the batch that decides on it, so it survives crashes and
//! outlives its run. A delivery that fails is repeated, with a pause that grows with its age. A cancel is given up after
//! a day: its row stays, to be listed and retried, until its run is removed. An answer is repeated for as long as its
//! call waits for it, as a call goes on whose peer cannot be asked: only the peer's word ends it, or the end of its time.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use wopr_core::{AnsweredCall, CancelledCall, Refusal, RunId, RunKey, StepId, Timestamp, TraceContext};
use wopr_store::{
    CallDeliveryCursor, CallDeliveryFilter, CallDeliveryRow, Cause, Ended, WorkKey, WorkRow, WorkState,
};

use crate::{
    Answered, Answering, Cancellation, CommandError, Engine, Outcome, Request, SideRows, Throttles,
    commit::{StoredEffect, Won, effect_key, invocation_id, is_zero},
    effects::{Changed, ended},
    logs::work_failed,
    panics::{Panicked, caught},
    pool::{End, Lease},
    recalls::{Recall, is_recall},
    tries::{FIRST_PAUSE_MS, Repeats, Tries},
};

/// Begins the names of answers.
const ANSWER: &str = "answer:";
/// Begins the names of cancels.
const CANCEL: &str = "cancel:";
/// Rows read at once.
const PAGE: usize = 100;

/// Lines a minute about calls of a tenant whose peers are not told of the cancel.
static NOT_TOLD: Throttles = Throttles::new(30);

/// The stored body of a delivery.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CallDelivery {
    step: StepId,
    attempt: u32,
    provider: String,
    idempotency_key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trace: Option<TraceContext>,
    handle: Value,
    content: Content,
    #[serde(flatten)]
    tries: Tries,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Content {
    Cancel,
    Answer {
        interrupt: String,
        value: Value,
        /// How many calls the step had made before the one that asked.
        #[serde(default, skip_serializing_if = "is_zero")]
        number: u32,
    },
}

/// What a peer is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallMessage {
    /// Nobody waits for the call any more.
    Cancel,
    /// The answer to the question that this interrupt asked.
    Answer { interrupt: String },
    /// Nothing yet: the peer is asked whether it has the call, which is then cancelled.
    Recall {
        /// The name of the agent.
        peer: Option<String>,
    },
}

/// A delivery to the peer of a call that the peer has not had yet.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedCallDelivery {
    pub run: RunId,
    /// The name of its row.
    pub name: String,
    pub step: StepId,
    pub message: CallMessage,
    /// By which the executor finds the call; `None` for a recall.
    pub handle: Option<Value>,
    pub enqueued_at: Timestamp,
    /// Number of failed tries.
    pub n_failed: u64,
    /// The error of the last try.
    pub error: Option<String>,
    /// `None` while it is being tried, or once it was given up.
    pub next_try_at: Option<Timestamp>,
    pub given_up_at: Option<Timestamp>,
}

/// Whether a row of effects is a delivery, by its name.
pub(crate) fn is_call_delivery(name: &str) -> bool {
    name.starts_with(CANCEL) || name.starts_with(ANSWER)
}

/// The row that tells the peer of a call that nobody waits for it.
pub(crate) fn cancel_row(
    run: (&RunKey, &str),
    trace: Option<&TraceContext>,
    now: Timestamp,
    call: CancelledCall,
) -> WorkRow {
    let CancelledCall {
        step,
        attempt,
        provider,
        handle,
    } = call;
    CallDelivery {
        idempotency_key: invocation_id(run, &step.node, (step.ordinal, 0), &provider),
        trace: trace.cloned(),
        step,
        attempt,
        provider,
        handle,
        content: Content::Cancel,
        tries: Tries::new(now),
    }
    .row()
}

/// The row for a call that was accepted when nobody waited for it any more; `None` if it has no handle.
fn late_cancel_row(now: Timestamp, accepted: StoredEffect) -> Option<WorkRow> {
    let delivery = CallDelivery {
        provider: accepted.request.provider().to_owned(),
        idempotency_key: accepted.idempotency_key,
        trace: accepted.trace,
        step: accepted.step,
        attempt: accepted.attempt,
        handle: accepted.handle?,
        content: Content::Cancel,
        tries: Tries::new(now),
    };
    Some(delivery.row())
}

/// The row that tells the peer of a call the answer to its question; `number` is how many calls the step had made before.
pub(crate) fn answer_row(
    run: (&RunKey, &str),
    trace: Option<&TraceContext>,
    now: Timestamp,
    call: AnsweredCall,
    number: u32,
) -> WorkRow {
    let AnsweredCall {
        step,
        attempt,
        provider,
        handle,
        interrupt,
        value,
    } = call;
    let key = invocation_id(run, &step.node, (step.ordinal, 0), &provider);
    CallDelivery {
        idempotency_key: format!("{key}.{}", interrupt_number(&step, &interrupt)),
        trace: trace.cloned(),
        step,
        attempt,
        provider,
        handle,
        content: Content::Answer {
            interrupt,
            value,
            number,
        },
        tries: Tries::new(now),
    }
    .row()
}

fn interrupt_number(step: &StepId, interrupt: &str) -> u32 {
    StepId::parse_interrupt(&step.node, interrupt).map_or(0, |(_, number)| number)
}

/// Begins the names of the answers to one attempt's questions, up to the number of the interrupt.
fn answers_of(step: &StepId, attempt: u32) -> String {
    format!("{ANSWER}{}:{attempt}:", step.ordinal)
}

impl CallDelivery {
    fn key(&self) -> WorkKey {
        let Self { step, attempt, .. } = self;
        WorkKey::call_delivery(match &self.content {
            Content::Cancel => format!("{CANCEL}{}:{attempt}:{}", step.ordinal, step.node),
            Content::Answer { interrupt, .. } => {
                let number = interrupt_number(step, interrupt);
                format!("{}{number}:{}", answers_of(step, *attempt), step.node)
            }
        })
    }

    /// The row of a delivery that is due at once.
    fn row(self) -> WorkRow {
        WorkRow {
            key: self.key(),
            state: WorkState::Due(self.tries.since),
            body: self.body(),
        }
    }

    fn body(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a delivery has string keys")
    }

    /// The same delivery as if it had never been tried.
    fn anew(self, now: Timestamp) -> Self {
        Self {
            tries: Tries::new(now),
            ..self
        }
    }
}

/// How a try ended.
enum Tried {
    Delivered,
    /// The call ends with this outcome.
    Ended(Outcome),
    Failed(String, Option<Duration>),
    /// This process stops, or another has the row.
    Lost,
}

impl Engine {
    /// Makes one try at a delivery.
    pub(crate) async fn deliver_to_peer(&self, lease: &mut Lease, delivery: CallDelivery) -> End {
        let CallDelivery { step, attempt, .. } = &delivery;
        let tried = match &delivery.content {
            Content::Cancel => self.try_cancel(lease, &delivery).await,
            Content::Answer { .. } if !self.is_awaited(&lease.run, step, *attempt).await => Tried::Delivered,
            Content::Answer {
                interrupt,
                value,
                number,
            } => {
                self.try_answer(lease, &delivery, (interrupt, value, *number))
                    .await
            }
        };
        let outcome = match tried {
            Tried::Lost => return lease.give_back(),
            Tried::Delivered => return self.end_row(lease).await,
            Tried::Failed(error, retry_after) => {
                let repeats = match &delivery.content {
                    Content::Answer { .. } => Repeats::WhileItIsAwaited,
                    Content::Cancel => Repeats::ForADay,
                };
                let (tries, due) = self.failed_again(lease, (&delivery.tries, repeats), (error, retry_after));
                let failed = CallDelivery { tries, ..delivery };
                return self.put_off(lease, failed.body(), due).await;
            }
            Tried::Ended(outcome) => outcome,
        };
        let number = match delivery.content {
            Content::Answer { number, .. } => number,
            Content::Cancel => 0,
        };
        // Another process may have delivered the answer since, and the peer may have asked something else.
        let held = Won {
            key: lease.key.clone(),
            fence: lease.fence,
            parked: None,
            may_go_on: false,
            call: (delivery.step.clone(), number),
            goes_on: true,
            took: None,
        };
        let command = ended(delivery.step, delivery.attempt, outcome);
        let recording = self.command_fenced(&lease.run, None, &command, SideRows::default(), Some(held));
        match self.attend(&lease.run, Box::pin(recording)).await {
            Err(CommandError::Refused(Refusal::Stale)) => End::Over,
            Ok(_) | Err(CommandError::Refused(_) | CommandError::NotFound) => self.end_row(lease).await,
            Err(_) => End::Park(Some(self.lease_time().plus_millis(FIRST_PAUSE_MS))),
        }
    }

    async fn try_cancel(&self, lease: &mut Lease, delivery: &CallDelivery) -> Tried {
        let telling = caught(self.shared.executor.cancel(Cancellation {
            run: lease.run.clone(),
            provider: delivery.provider.clone(),
            idempotency_key: delivery.idempotency_key.clone(),
            trace: delivery.trace.clone(),
            handle: delivery.handle.clone(),
        }));
        match lease.hold(telling).await {
            None => Tried::Lost,
            Some(Ok(Ok(()))) => Tried::Delivered,
            Some(Ok(Err(error))) => Tried::Failed(error.to_string(), error.retry_after()),
            Some(Err(panicked)) => Tried::Failed(self.broke_off(lease, &panicked), None),
        }
    }

    async fn try_answer(
        &self,
        lease: &mut Lease,
        delivery: &CallDelivery,
        (interrupt, value, number): (&str, &Value, u32),
    ) -> Tried {
        let telling = caught(self.shared.executor.answer(Answering {
            run: lease.run.clone(),
            provider: delivery.provider.clone(),
            idempotency_key: delivery.idempotency_key.clone(),
            trace: delivery.trace.clone(),
            handle: delivery.handle.clone(),
            interrupt: interrupt.to_owned(),
            value: value.clone(),
        }));
        match lease.hold(telling).await {
            None => Tried::Lost,
            Some(Ok(Ok(Answered::Taken))) => {
                let CallDelivery { step, attempt, .. } = delivery;
                let parked = effect_key(step, *attempt, number);
                if let Err(error) = self.wake_row(&lease.run, &parked, Duration::ZERO).await {
                    // It is looked at when it is due.
                    work_failed("a call is not looked at after its answer yet", &lease.run, &error);
                }
                Tried::Delivered
            }
            Some(Ok(Ok(Answered::Ended(outcome)))) => Tried::Ended(outcome),
            Some(Ok(Err(error))) => Tried::Failed(error.to_string(), error.retry_after()),
            Some(Err(panicked)) => {
                let message = self.broke_off(lease, &panicked);
                // The peer is told to stop.
                Tried::Ended(Outcome::GivenUp {
                    handle: Some(delivery.handle.clone()),
                    code: "internal_error".to_owned(),
                    message,
                })
            }
        }
    }

    /// The message of a try that panicked.
    pub(crate) fn broke_off(&self, lease: &Lease, Panicked(text): &Panicked) -> String {
        let (run, call) = (&lease.run, &lease.key.name);
        tracing::error!(%run, call, panic = text, "a delivery to the peer of a call panicked");
        "the delivery broke off by a fault of this host".to_owned()
    }

    /// Stores a row that tells the peer to stop a call, because its run no longer waits for it. It takes the place of
    /// the call's recall, if this process has that.
    pub(crate) async fn cancel_late(&self, lease: &Lease, accepted: StoredEffect) -> End {
        let now = self.lease_time();
        let Some(row) = late_cancel_row(now, accepted) else {
            return End::Over;
        };
        let recall = is_recall(&lease.key.name).then(|| Ended {
            key: lease.key.clone(),
            fence: Some(lease.fence),
        });
        let mut written = self
            .change(&lease.run, |batch| {
                batch.work_ended.extend(recall.clone());
                batch.work_set.push(row.clone());
            })
            .await;
        if written == Changed::Fenced {
            // Another process has the recall, and may find something else, or nothing.
            written = self
                .change(&lease.run, |batch| batch.work_set.push(row.clone()))
                .await;
        }
        match written {
            Changed::Yes | Changed::Fenced => {
                self.shared.effects.hint(now);
                End::Over
            }
            Changed::No if recall.is_some() => lease.give_back(),
            Changed::No => {
                let (run, effect) = (&lease.run, &lease.key.name);
                if let Some(left_out) = NOT_TOLD.admit(&run.tenant, Instant::now()) {
                    tracing::warn!(%run, effect, left_out, "the peer of a cancelled call will not be told");
                }
                End::Over
            }
        }
    }

    /// Whether an answer to a question of this attempt's peer is still to be delivered.
    pub(crate) async fn is_answering(
        &self,
        run: &RunKey,
        step: &StepId,
        attempt: u32,
    ) -> Result<bool, CommandError> {
        let prefix = answers_of(step, attempt);
        let mut after = Some(CallDeliveryCursor {
            run: run.run.clone(),
            name: prefix.clone(),
        });
        loop {
            let page = self
                .shared
                .store
                .call_deliveries(&of_run(run), after.as_ref(), PAGE)
                .await?;
            for row in &page {
                let Some(rest) = row.key.name.strip_prefix(&prefix) else {
                    return Ok(false);
                };
                if rest
                    .split_once(':')
                    .is_some_and(|(_, node)| node == step.node.as_str())
                {
                    return Ok(true);
                }
            }
            match page.last().filter(|_| page.len() == PAGE) {
                Some(last) => after = Some(cursor(last)),
                None => return Ok(false),
            }
        }
    }

    /// Lists at most `limit` deliveries to the peers of calls after the cursor, ordered by run and name.
    pub async fn call_deliveries(
        &self,
        filter: &CallDeliveryFilter,
        after: Option<&CallDeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<ListedCallDelivery>, CommandError> {
        let rows = self.shared.store.call_deliveries(filter, after, limit).await?;
        rows.into_iter().map(listed).collect()
    }

    /// Retries the deliveries of a run to the peers of its calls: those that were given up, and those that wait for
    /// their next try. Returns how many there were.
    pub async fn retry_call_deliveries(&self, run: &RunKey) -> Result<usize, CommandError> {
        let (mut n_retried, mut after) = (0, None);
        loop {
            let page = self
                .shared
                .store
                .call_deliveries(&of_run(run), after.as_ref(), PAGE)
                .await?;
            for row in &page {
                n_retried += usize::from(self.retry_call_delivery(row).await?);
            }
            match page.last().filter(|_| page.len() == PAGE) {
                Some(last) => after = Some(cursor(last)),
                None => break,
            }
        }
        self.shared.effects.hint(self.lease_time());
        Ok(n_retried)
    }

    async fn retry_call_delivery(&self, row: &CallDeliveryRow) -> Result<bool, CommandError> {
        if row.is_leased {
            return Ok(false);
        }
        let stored = read(row)?;
        let is_given_up = stored.tries().is_some_and(|tries| tries.given_up_at.is_some());
        if !is_given_up {
            return self.wake_row(&row.run, &row.key, Duration::ZERO).await;
        }
        // No process leases a row that was given up.
        let now = self.lease_time();
        let anew = match stored {
            Stored::Delivery(delivery) => delivery.anew(now).row(),
            Stored::Recall(recall) => WorkRow {
                key: row.key.clone(),
                state: WorkState::Due(now),
                body: recall.anew(now).body(),
            },
        };
        let is_written = self.change_rows(&row.run, |batch| batch.work_set.push(anew.clone()));
        match is_written.await {
            true => Ok(true),
            false => Err(CommandError::Unavailable("set the delivery again".into())),
        }
    }
}

fn of_run(run: &RunKey) -> CallDeliveryFilter {
    CallDeliveryFilter {
        tenant: run.tenant.clone(),
        run: Some(run.run.clone()),
        principal: None,
        parked: false,
    }
}

fn cursor(row: &CallDeliveryRow) -> CallDeliveryCursor {
    CallDeliveryCursor {
        run: row.run.run.clone(),
        name: row.key.name.clone(),
    }
}

/// The body of a delivery.
enum Stored {
    Delivery(CallDelivery),
    Recall(Recall),
}

impl Stored {
    const fn tries(&self) -> Option<&Tries> {
        match self {
            Self::Delivery(delivery) => Some(&delivery.tries),
            Self::Recall(recall) => recall.tries.as_ref(),
        }
    }
}

fn read(row: &CallDeliveryRow) -> Result<Stored, CommandError> {
    let read = match is_recall(&row.key.name) {
        true => serde_json::from_slice(&row.body).map(Stored::Recall),
        false => serde_json::from_slice(&row.body).map(Stored::Delivery),
    };
    read.map_err(|error| {
        let what = format!("delivery {}: {error}", row.key.name);
        CommandError::Internal(Cause::about(what, error))
    })
}

fn listed(row: CallDeliveryRow) -> Result<ListedCallDelivery, CommandError> {
    let (step, message, handle, tries) = match read(&row)? {
        Stored::Delivery(delivery) => {
            let message = match delivery.content {
                Content::Cancel => CallMessage::Cancel,
                Content::Answer { interrupt, .. } => CallMessage::Answer { interrupt },
            };
            (
                delivery.step,
                message,
                Some(delivery.handle),
                Some(delivery.tries),
            )
        }
        Stored::Recall(Recall { effect, tries, .. }) => {
            let peer = match effect.request {
                Request::Agent(call) => Some(call.peer),
                Request::Http(_)
                | Request::Activity(_)
                | Request::Memory(_)
                | Request::Model(_)
                | Request::Tool(_)
                | Request::ToolList(_)
                | Request::SideEffect { .. } => None,
            };
            (effect.step, CallMessage::Recall { peer }, None, tries)
        }
    };
    // What was not tried yet is first due then.
    let first_due = || Tries::new(row.due.unwrap_or(Timestamp::from_millis(0)));
    let Tries {
        since,
        n_failed,
        error,
        given_up_at,
    } = tries.unwrap_or_else(first_due);
    Ok(ListedCallDelivery {
        run: row.run.run,
        name: row.key.name,
        step,
        message,
        handle,
        enqueued_at: since,
        n_failed,
        error,
        next_try_at: row.due.filter(|_| !row.is_leased),
        given_up_at,
    })
}
