//! Runs the steps of a chore and reports the results.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::disk;

pub(crate) struct Step {
    name: &'static str,
    work: Box<dyn FnOnce() -> Result<Outcome>>,
}

impl Step {
    pub(crate) fn new(name: &'static str, work: impl FnOnce() -> Result<Outcome> + 'static) -> Self {
        Self {
            name,
            work: Box::new(work),
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

/// Runs the steps in order until one fails, then prints a summary.
pub(crate) fn run(steps: Vec<Step>) -> Result<()> {
    let tell_room = || {
        if let Some(room) = disk::told() {
            println!("{room}");
        }
    };
    tell_room();
    let (account, failure) = play(steps);
    println!("\n{}", account.render());
    if failure.is_some() {
        tell_room();
    }
    failure.map_or(Ok(()), Err)
}

fn play(steps: Vec<Step>) -> (Account, Option<anyhow::Error>) {
    let n_steps = steps.len();
    let mut account = Account::default();
    let mut failure = None;
    for (index, Step { name, work }) in steps.into_iter().enumerate() {
        if failure.is_some() {
            account.lines.push(Line {
                name,
                end: End::NotReached,
                took: Duration::ZERO,
            });
            continue;
        }
        println!("\n==> {} of {n_steps}: {name}", index + 1);
        let start = Instant::now();
        let end = match work() {
            Ok(Outcome::Done) => End::Done,
            Ok(Outcome::Skipped(reason)) => {
                println!("\nNOTE: {name} was SKIPPED: {reason}");
                End::Skipped(reason)
            }
            Err(error) => {
                let text = format!("{error:#}");
                failure = Some(anyhow!("step {name:?} failed: {text}"));
                End::Failed
            }
        };
        account.lines.push(Line {
            name,
            end,
            took: start.elapsed(),
        });
    }
    (account, failure)
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
    Failed,
    NotReached,
}

impl Account {
    fn render(&self) -> String {
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
                End::Failed => format!("  {name:width$}  FAILED       {seconds:8.1} s"),
                End::NotReached => format!("  {name:width$}  not reached"),
            };
            text.push_str(line.trim_end());
            text.push('\n');
        }
        let total: Duration = self.lines.iter().map(|line| line.took).sum();
        let count = |wanted: fn(&End) -> bool| self.lines.iter().filter(|line| wanted(&line.end)).count();
        let n_done = count(|end| matches!(end, End::Done));
        let n_skipped = count(|end| matches!(end, End::Skipped(_)));
        let verdict = if count(|end| matches!(end, End::Failed)) > 0 {
            "FAILED"
        } else {
            "passed"
        };
        let mut tail = format!("{n_done} of {} steps done", self.lines.len());
        if n_skipped > 0 {
            // Writing to a string cannot fail.
            let _ = write!(tail, ", {n_skipped} skipped");
        }
        text + &format!("{verdict}: {tail} in {:.1} s", total.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use anyhow::ensure;

    use super::*;

    #[test]
    fn first_failure_ends_the_list_and_is_named() {
        let ran = Rc::new(RefCell::new(Vec::new()));
        let step = |name: &'static str, fails: bool| {
            let ran = Rc::clone(&ran);
            Step::new(name, move || {
                ran.borrow_mut().push(name);
                ensure!(!fails, "no luck");
                Ok(Outcome::Done)
            })
        };

        let (account, failure) = play(vec![step("one", false), step("two", true), step("three", false)]);

        assert_eq!(*ran.borrow(), ["one", "two"]);
        assert_eq!(failure.unwrap().to_string(), "step \"two\" failed: no luck");
        let text = account.render();
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
        let (account, failure) = play(steps);
        assert!(failure.is_none());
        let text = account.render();
        assert!(text.contains("one  SKIPPED"), "{text}");
        assert!(text.contains("no network"), "{text}");
        assert!(text.contains("passed: 1 of 2 steps done, 1 skipped"), "{text}");
    }
}
