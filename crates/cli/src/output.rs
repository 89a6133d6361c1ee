//! Talking to whoever runs the command: results on standard output, everything else on standard error.
//!
//! Colour and spinners exist only on a terminal, and not where `NO_COLOR` is set. Whatever came from elsewhere
//! (a run's text, an agent's card) passes through [`plain`] first, so that it cannot steer the terminal.

use std::{
    borrow::Cow,
    env,
    fmt::Display,
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// Time between two pictures of a spinner.
const TICK: Duration = Duration::from_millis(90);

/// Colours, or none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint {
    is_on: bool,
}

impl Paint {
    /// For standard output.
    pub(crate) fn stdout() -> Self {
        Self {
            is_on: io::stdout().is_terminal() && allows_colour(),
        }
    }

    /// For standard error.
    pub(crate) fn stderr() -> Self {
        Self {
            is_on: io::stderr().is_terminal() && allows_colour(),
        }
    }

    fn with(self, code: &str, text: impl Display) -> String {
        if self.is_on {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_string()
        }
    }

    /// Stands out.
    pub(crate) fn bold(self, text: impl Display) -> String {
        self.with("1", text)
    }

    /// Steps back.
    pub(crate) fn dim(self, text: impl Display) -> String {
        self.with("2", text)
    }

    /// Went wrong.
    pub(crate) fn red(self, text: impl Display) -> String {
        self.with("1;31", text)
    }

    /// Went well.
    pub(crate) fn green(self, text: impl Display) -> String {
        self.with("32", text)
    }

    /// Waits.
    pub(crate) fn yellow(self, text: impl Display) -> String {
        self.with("33", text)
    }

    /// Names something.
    pub(crate) fn cyan(self, text: impl Display) -> String {
        self.with("36", text)
    }

    /// A state, in its colour: of a run, a task or a node.
    pub(crate) fn state(self, state: &str) -> String {
        match state {
            "completed" => self.green(state),
            "failed" | "cancelled" | "canceled" | "rejected" => self.red(state),
            waits if waits.starts_with("waiting") || waits.ends_with("required") || waits == "paused" => {
                self.yellow(state)
            }
            _ => self.cyan(state),
        }
    }
}

fn allows_colour() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether a person can be asked: both ends of the conversation are a terminal.
pub(crate) fn is_conversation() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Writes a line of the result.
pub(crate) fn line(text: impl Display) -> Result<()> {
    writeln!(io::stdout().lock(), "{text}").context("write to standard output")
}

/// Writes a line that is no result.
pub(crate) fn note(text: impl Display) -> Result<()> {
    writeln!(io::stderr().lock(), "{text}").context("write to standard error")
}

/// Writes a document for a machine: indented, with a final line break.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).context("write the result as JSON")?;
    line(text)
}

/// Writes a document on one line, for a machine that reads line by line.
pub(crate) fn json_line(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value).context("write the result as JSON")?;
    let mut out = io::stdout().lock();
    // Flushed, because whoever started us may wait for exactly this line.
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .context("write to standard output")
}

/// A text from elsewhere without what would steer a terminal.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
    if text.contains(steers) {
        Cow::Owned(text.chars().filter(|c| !steers(*c)).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// Writes rows under their headings, padded; the last column is free.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> Result<()> {
    let paint = Paint::stdout();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            row.iter()
                .map(|cell| plain(cell).replace(['\n', '\t'], " "))
                .collect()
        })
        .collect();
    let width = |column: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..headings.len()).map(width).collect();
    let pad = |cells: &[String]| {
        let mut text = String::new();
        for (column, cell) in cells.iter().enumerate() {
            text.push_str(cell);
            if column + 1 < cells.len() {
                let gap = widths[column].saturating_sub(cell.chars().count()) + 2;
                text.extend(std::iter::repeat_n(' ', gap));
            }
        }
        text
    };
    let headings: Vec<_> = headings.iter().map(|heading| (*heading).to_owned()).collect();
    line(paint.dim(pad(&headings)))?;
    for row in &rows {
        line(pad(row))?;
    }
    Ok(())
}

/// Something under way: a spinner on a terminal, nothing elsewhere.
#[derive(Debug)]
pub(crate) struct Spinner(ProgressBar);

impl Spinner {
    /// Shows what is under way, until dropped.
    pub(crate) fn start(text: impl Into<Cow<'static, str>>) -> Self {
        let is_shown = io::stderr().is_terminal() && allows_colour();
        let target = if is_shown {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("  {spinner:.cyan} {msg:.dim}") {
            bar.set_style(style.tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ "));
        }
        bar.set_message(text);
        if is_shown {
            bar.enable_steady_tick(TICK);
        }
        Self(bar)
    }

    /// Writes a line of the result above the spinner.
    pub(crate) fn line(&self, text: impl Display) -> Result<()> {
        self.0.suspend(|| line(text))
    }

    /// Writes a line that is no result above the spinner.
    pub(crate) fn note(&self, text: impl Display) -> Result<()> {
        self.0.suspend(|| note(text))
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_elsewhere_cannot_steer_the_terminal() {
        assert_eq!(plain("a\u{1b}[31mb\u{7}\nc\td\u{9b}2J"), "a[31mb\nc\td2J");
        assert!(matches!(plain("nothing to do"), Cow::Borrowed(_)));
    }

    #[test]
    fn without_a_terminal_there_is_no_colour() {
        let paint = Paint { is_on: false };
        assert_eq!(paint.red("x"), "x");
        assert_eq!(
            Paint { is_on: true }.state("waiting-approval"),
            "\u{1b}[33mwaiting-approval\u{1b}[0m"
        );
    }
}
