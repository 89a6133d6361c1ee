//! What peers ask, and what they are told: every answer reaches the question that it was given to, and no other.
//!
//! A peer may ask several questions one after the other, go on without an answer, or end the call with one. Its
//! tasks outlive processes. An answer is told at least once; what comes for a question that is no longer asked is
//! ignored, as by an executor that looks at the task first.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use serde_json::{Value, json};
use wopr_core::{Command, Event, InterruptKind, KernelEvent, Recorded, RemoteQuestion, RunKey, RunStatus};
use wopr_engine::{Answered, Answering, Attempt, CancelError, Executor, Report, SideRows};
use wopr_testkit::Workflow;

use super::mines::Calm;
use crate::harness::{answer, reaches};

#[derive(Debug, Default)]
pub(crate) struct Questions {
    /// The tasks of peers, by the keys of their calls.
    tasks: HashMap<String, Task>,
    /// Interrupts that ask what a peer asks.
    asked: HashMap<(RunKey, String), Asked>,
    /// The keys of answers that peers have, or did not want.
    told: HashSet<String>,
    n_answered: u64,
}

#[derive(Debug, Default)]
struct Task {
    /// The number of the question that it asks.
    asks: Option<u64>,
    n_asked: u64,
}

#[derive(Debug)]
struct Asked {
    /// The question, as its peer names it.
    key: String,
    answer: Option<Value>,
}

/// A question as an executor reports it.
pub(crate) fn question(number: u64) -> RemoteQuestion {
    RemoteQuestion {
        key: number.to_string(),
        kind: InterruptKind::Clarification,
        data: json!({ "questions": [{ "id": "colour", "question": format!("Which colour, question {number}?") }] }),
    }
}

impl Questions {
    /// What the peer of a call asks.
    pub(crate) fn open(&self, call: &str) -> Option<u64> {
        self.tasks.get(call)?.asks
    }

    /// The peer of a call asks its next question.
    pub(crate) fn ask(&mut self, call: &str) -> u64 {
        let task = self.tasks.entry(call.to_owned()).or_default();
        let number = task.n_asked;
        task.n_asked += 1;
        task.asks = Some(number);
        number
    }

    /// The peer of a call goes on without an answer.
    pub(crate) fn go_on(&mut self, call: &str) {
        if let Some(task) = self.tasks.get_mut(call) {
            task.asks = None;
        }
    }

    /// A peer is told an answer. Returns `true` if it still asks.
    pub(crate) fn tell(&mut self, call: &str, answering: &Answering) -> Result<bool, String> {
        let interrupt = (answering.run.clone(), answering.interrupt.clone());
        let asked = self
            .asked
            .get(&interrupt)
            .ok_or_else(|| format!("an answer is told that nobody asked for: {answering:?}"))?;
        let named = answering.handle.get("asks").and_then(Value::as_u64);
        if named.map(|number| number.to_string()).as_ref() != Some(&asked.key) {
            return Err(format!(
                "an answer to question {} is told to another: {answering:?}",
                asked.key
            ));
        }
        if asked.answer.as_ref() != Some(&answering.value) {
            return Err(format!("another answer is told than was given: {answering:?}"));
        }
        self.told.insert(answering.idempotency_key.clone());
        let task = self
            .tasks
            .get_mut(call)
            .ok_or("a peer without a task is told an answer")?;
        let is_open = task.asks.is_some() && task.asks == named;
        if is_open {
            task.asks = None;
            self.n_answered += 1;
        }
        Ok(is_open)
    }

    pub(crate) fn was_told(&self, answer: &str) -> bool {
        self.told.contains(answer)
    }

    pub(crate) fn n_asked(&self) -> u64 {
        self.asked.len() as u64
    }

    pub(crate) fn n_answered(&self) -> u64 {
        self.n_answered
    }

    /// Follows a log. Returns the id of the interrupt that the event answers, with the answer, if a peer asked.
    pub(crate) fn follow(&mut self, run: &RunKey, recorded: &Recorded) -> Option<(String, Value)> {
        let Event::Kernel(event) = &recorded.event else {
            return None;
        };
        match event {
            KernelEvent::InterruptRequested {
                step,
                number,
                remote: Some(key),
                ..
            } => {
                let asked = Asked {
                    key: key.clone(),
                    answer: None,
                };
                self.asked.insert((run.clone(), step.interrupt(*number)), asked);
                None
            }
            KernelEvent::InterruptResolved {
                step,
                number,
                value: Some(value),
                ..
            } => {
                let id = step.interrupt(*number);
                let asked = self.asked.get_mut(&(run.clone(), id.clone()))?;
                asked.answer = Some(value.clone());
                Some((id, value.clone()))
            }
            _ => None,
        }
    }
}

/// A peer that asks at once, and then is away.
#[derive(Debug, Default)]
struct Away {
    n_told: AtomicU64,
}

#[async_trait]
impl Executor for Away {
    async fn run(&self, attempt: Attempt) -> Report {
        match attempt.handle {
            None => Report::Interrupted {
                handle: json!({ "task": 0, "asks": 0 }),
                question: question(0),
                check_after: None,
            },
            Some(_) => Report::Unchanged { check_after: None },
        }
    }

    async fn answer(&self, _answer: Answering) -> Result<Answered, CancelError> {
        self.n_told.fetch_add(1, Ordering::Relaxed);
        Err(CancelError::new("nobody is there".to_owned()))
    }
}

#[tokio::test(start_paused = true)]
async fn answer_that_reaches_nobody_is_repeated_until_its_run_is_cancelled() {
    let away = Arc::new(Away::default());
    let calm = Calm::new(Some(Arc::clone(&away) as Arc<dyn Executor>)).await;
    calm.register(Workflow::new("effect").effect("call")).await;
    let run = calm.create("effect").await;
    reaches(&calm.engine, &run, RunStatus::WaitingInput).await;
    let told = answer(
        "call",
        json!({ "answers": [{ "id": "colour", "answer": "red" }] }),
    );
    let told = calm.engine.command(&run, told, SideRows::default()).await;
    told.expect("it is asked");

    tokio::time::sleep(Duration::from_secs(25 * 3_600)).await; // sleep: virtual time
    let view = calm.engine.view(&run).await.expect("reads").expect("exists");
    assert_eq!(view.run.status, RunStatus::Running, "it is told again and again");
    let n_told = away.n_told.load(Ordering::Relaxed);
    assert!((100..1_000).contains(&n_told), "{n_told}");
    let cancel = Command::Cancel {
        reason: None,
        by: None,
    };
    let cancelled = calm.engine.command(&run, cancel, SideRows::default()).await;
    cancelled.expect("it runs");
    reaches(&calm.engine, &run, RunStatus::Cancelled).await;
    tokio::time::sleep(Duration::from_secs(600)).await; // sleep: virtual time
    let before = away.n_told.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(600)).await; // sleep: virtual time
    assert_eq!(away.n_told.load(Ordering::Relaxed), before, "nobody waits for it");
    calm.end().await;
}
