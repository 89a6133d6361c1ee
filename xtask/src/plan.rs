//! Runs the steps of a chore and reports the results.
//!
//! Steps run in order. Those of the set-up, which mostly wait for the network, run beside the others: also in order, on
//! a thread of their own, from the start of the chore until a step that needs them ([`Step::after_set_up`]).

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::disk;

pub(crate) struct Step {
    name: &'static str,
    place: Place,
    work: Box<dyn FnOnce() -> Result<Outcome> + Send>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Runs beside the others.
    Beside,
    InOrder,
    /// Runs in order, once all that run beside have ended.
    AfterSetUp,
}

impl Step {
    pub(crate) fn new(name: &'static str, work: impl FnOnce() -> Result<Outcome> + Send + 'static) -> Self {
        Self {
            name,
            place: Place::InOrder,
            work: Box::new(work),
        }
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// A step of the set-up.
    pub(crate) fn beside(self) -> Self {
        Self {
            place: Place::Beside,
            ..self
        }
    }

    /// A step that needs the set-up.
    pub(crate) fn after_set_up(self) -> Self {
        Self {
            place: Place::AfterSetUp,
            ..self
        }
    }
}

/// The outcome of a step that did not fail.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Skipped on this machine, for the given reason; the remaining steps continue.
    Skipped(String),
}

/// Runs the steps until one fails, then prints a summary.
pub(crate) fn run(steps: Vec<Step>) -> Result<()> {
    let tell_room = || {
        if let Some(room) = disk::told() {
            println!("{room}");
        }
    };
    tell_room();
    let began = Instant::now();
    let account = play(steps);
    println!("\n{}", account.render(began.elapsed()));
    let failures = account.failures();
    if failures.is_empty() {
        return Ok(());
    }
    tell_room();
    Err(anyhow!("{}", failures.join("; ")))
}

fn play(steps: Vec<Step>) -> Account {
    let (beside, in_order): (Vec<_>, Vec<_>) =
        steps.into_iter().partition(|step| step.place == Place::Beside);
    let has_failed = &AtomicBool::new(false);
    thread::scope(|scope| {
        let mut set_up = Some(scope.spawn(move || {
            let lines = beside
                .into_iter()
                .map(|step| take(step, has_failed, ", beside others"));
            lines.collect::<Vec<_>>()
        }));
        let mut account = Account::default();
        for step in in_order {
            if step.place == Place::AfterSetUp {
                account.join(&mut set_up);
            }
            account.lines.push(take(step, has_failed, ""));
        }
        account.join(&mut set_up);
        account
    })
}

/// Takes a step, unless one has failed already.
fn take(Step { name, place: _, work }: Step, has_failed: &AtomicBool, whereabouts: &str) -> Line {
    let start = Instant::now();
    let end = if has_failed.load(Relaxed) {
        End::NotReached
    } else {
        println!("\n==> {name}{whereabouts}");
        match work() {
            Ok(Outcome::Done) => End::Done,
            Ok(Outcome::Skipped(reason)) => {
                println!("\nNOTE: {name} was SKIPPED: {reason}");
                End::Skipped(reason)
            }
            Err(error) => {
                has_failed.store(true, Relaxed);
                let text = format!("{error:#}");
                println!("\nFAILED: {name}: {text}");
                End::Failed(text)
            }
        }
    };
    Line {
        name,
        end,
        took: start.elapsed(),
    }
}

/// The results so far.
#[derive(Debug, Default)]
struct Account {
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    name: &'static str,
    end: End,
    took: Duration,
}

#[derive(Debug)]
enum End {
    Done,
    Skipped(String),
    Failed(String),
    NotReached,
}

impl Account {
    /// Waits for the set-up, unless that has happened already.
    fn join(&mut self, set_up: &mut Option<thread::ScopedJoinHandle<'_, Vec<Line>>>) {
        if let Some(set_up) = set_up.take() {
            match set_up.join() {
                Ok(lines) => self.lines.extend(lines),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    }

    fn failures(&self) -> Vec<String> {
        let failure = |line: &Line| match &line.end {
            End::Failed(text) => Some(format!("step {:?} failed: {text}", line.name)),
            End::Done | End::Skipped(_) | End::NotReached => None,
        };
        self.lines.iter().filter_map(failure).collect()
    }

    fn render(&self, took: Duration) -> String {
        let mut text = "steps\n".to_owned();
        let width = self
            .lines
            .iter()
            .map(|line| line.name.len())
            .max()
            .unwrap_or_default();
        for Line { name, end, took } in &self.lines {
            let seconds = took.as_secs_f64();
            let line = match end {
                End::Done => format!("  {name:width$}  done         {seconds:8.1} s"),
                End::Skipped(reason) => format!("  {name:width$}  SKIPPED      {seconds:8.1} s  {reason}"),
                End::Failed(_) => format!("  {name:width$}  FAILED       {seconds:8.1} s"),
                End::NotReached => format!("  {name:width$}  not reached"),
            };
            text.push_str(line.trim_end());
            text.push('\n');
        }
        let count = |wanted: fn(&End) -> bool| self.lines.iter().filter(|line| wanted(&line.end)).count();
        let n_done = count(|end| matches!(end, End::Done));
        let n_skipped = count(|end| matches!(end, End::Skipped(_)));
        let verdict = if count(|end| matches!(end, End::Failed(_))) > 0 {
            "FAILED"
        } else {
            "passed"
        };
        let mut tail = format!("{n_done} of {} steps done", self.lines.len());
        if n_skipped > 0 {
            // Writing to a string cannot fail.
            let _ = write!(tail, ", {n_skipped} skipped");
        }
        text + &format!("{verdict}: {tail} in {:.1} s", took.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};

    use anyhow::ensure;

    use super::*;

    fn rendered(account: &Account) -> String {
        account.render(Duration::ZERO)
    }

    #[test]
    fn first_failure_ends_the_list_and_is_named() {
        let ran = Arc::new(Mutex::new(Vec::new()));
        let step = |name: &'static str, fails: bool| {
            let ran = Arc::clone(&ran);
            Step::new(name, move || {
                ran.lock().unwrap().push(name);
                ensure!(!fails, "no luck");
                Ok(Outcome::Done)
            })
        };

        let account = play(vec![step("one", false), step("two", true), step("three", false)]);

        assert_eq!(*ran.lock().unwrap(), ["one", "two"]);
        assert_eq!(account.failures(), ["step \"two\" failed: no luck"]);
        let text = rendered(&account);
        assert!(text.contains("two    FAILED"), "{text}");
        assert!(text.contains("three  not reached"), "{text}");
        assert!(text.contains("FAILED: 1 of 3 steps done"), "{text}");
    }

    #[test]
    fn skipped_step_is_reported_but_does_not_fail() {
        let steps = vec![
            Step::new("one", || Ok(Outcome::Skipped("no network".to_owned()))),
            Step::new("two", || Ok(Outcome::Done)),
        ];
        let account = play(steps);
        assert!(account.failures().is_empty());
        let text = rendered(&account);
        assert!(text.contains("one  SKIPPED"), "{text}");
        assert!(text.contains("no network"), "{text}");
        assert!(text.contains("passed: 1 of 2 steps done, 1 skipped"), "{text}");
    }

    #[test]
    fn set_up_runs_beside_other_steps_until_one_needs_it() {
        let (lint_began, began) = channel();
        let (set_up, is_set_up) = channel();
        let steps = vec![
            Step::new("set up", move || {
                began.recv()?;
                set_up.send(())?;
                Ok(Outcome::Done)
            })
            .beside(),
            Step::new("lint", move || {
                lint_began.send(())?;
                Ok(Outcome::Done)
            }),
            Step::new("test", move || {
                is_set_up.try_recv()?;
                Ok(Outcome::Done)
            })
            .after_set_up(),
        ];
        let account = play(steps);
        assert!(account.failures().is_empty(), "{account:?}");
        let names: Vec<_> = account.lines.iter().map(|line| line.name).collect();
        assert_eq!(names, ["lint", "set up", "test"]);
    }

    #[test]
    fn failed_set_up_ends_the_list() {
        let steps = vec![
            Step::new("set up", || Err(anyhow!("no network"))).beside(),
            Step::new("test", || Ok(Outcome::Done)).after_set_up(),
        ];
        let account = play(steps);
        assert_eq!(account.failures(), ["step \"set up\" failed: no network"]);
        assert!(rendered(&account).contains("test    not reached"), "{account:?}");
    }
}
