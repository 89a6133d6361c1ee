//! Terminal output: results on standard output, everything else on standard error.
//!
//! Colors and spinners are used only on a terminal, and never if `NO_COLOR` is set. External text (a run's
//! text, an agent's card) passes through [`plain`] first, so that it cannot send control sequences to the
//! terminal.

use std::{
    borrow::Cow,
    env,
    fmt::Display,
    io::{self, IsTerminal, Write as _},
    os::fd::AsFd,
    time::Duration,
};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use wopr_engine::{Clock as _, SystemClock};
use wopr_wire::time::Timestamp;

/// Time between two frames of a spinner.
const TICK: Duration = Duration::from_millis(90);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint {
    is_on: bool,
}

impl Paint {
    pub(crate) fn stdout() -> Self {
        Self {
            is_on: io::stdout().is_terminal() && allows_colour(),
        }
    }

    pub(crate) fn stderr() -> Self {
        Self {
            is_on: io::stderr().is_terminal() && allows_colour(),
        }
    }

    #[cfg(test)]
    pub(crate) const fn off() -> Self {
        Self { is_on: false }
    }

    fn with(self, code: &str, text: impl Display) -> String {
        if self.is_on {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_string()
        }
    }

    pub(crate) fn bold(self, text: impl Display) -> String {
        self.with("1", text)
    }

    pub(crate) fn dim(self, text: impl Display) -> String {
        self.with("2", text)
    }

    pub(crate) fn red(self, text: impl Display) -> String {
        self.with("1;31", text)
    }

    pub(crate) fn green(self, text: impl Display) -> String {
        self.with("32", text)
    }

    pub(crate) fn yellow(self, text: impl Display) -> String {
        self.with("33", text)
    }

    pub(crate) fn cyan(self, text: impl Display) -> String {
        self.with("36", text)
    }

    /// Colors the state of a run, a task or a node.
    pub(crate) fn state(self, state: &str) -> String {
        match state {
            "completed" | "active" | "valid" => self.green(state),
            "failed" | "cancelled" | "canceled" | "rejected" | "revoked" | "withdrawn" | "given-up" => {
                self.red(state)
            }
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

/// Returns `true` if the user can be prompted: standard input and standard error are terminals.
pub(crate) fn is_conversation() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Returns `true` if lines of standard error can be changed in their place.
pub(crate) fn can_draw() -> bool {
    io::stderr().is_terminal() && allows_colour()
}

/// Writes a line of the result to standard output.
pub(crate) fn line(text: impl Display) -> Result<()> {
    writeln!(io::stdout().lock(), "{text}").context("write to standard output")
}

/// Writes a line to standard error.
pub(crate) fn note(text: impl Display) -> Result<()> {
    writeln!(io::stderr().lock(), "{text}").context("write to standard error")
}

/// Writes indented JSON with a final line break to standard output.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).context("write the result as JSON")?;
    line(text)
}

/// Writes JSON on a single line to standard output.
pub(crate) fn json_line(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value).context("write the result as JSON")?;
    let mut out = io::stdout().lock();
    // Flushed because the parent process may wait for exactly this line.
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .context("write to standard output")
}

/// Returns `true` if a character of a text controls how a terminal shows the text around it: control characters, and the
/// invisible ones of Unicode that reorder a line, break it, or take no room.
///
/// Joiners (U+200C, U+200D) stay: words of several scripts and composed emoji need them.
pub(crate) fn steers(c: char) -> bool {
    match c {
        '\u{61c}'
        | '\u{200b}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}' => true,
        c => c.is_control(),
    }
}

/// Removes characters that [steer](steers) a terminal from external text.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    let steers = |c: char| steers(c) && c != '\n' && c != '\t';
    if text.contains(steers) {
        Cow::Owned(text.chars().filter(|c| !steers(*c)).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// Minimum width of a table on a terminal.
const WIDTH: usize = 80;
/// Width of a table that no terminal shows: a line for each row, and no cell shortened, so that other programs can read it.
const UNBOUNDED: usize = usize::MAX / 2;
/// A shortened cell keeps at least this many characters.
const LEAST: usize = 12;
/// Indentation of the continuation lines of a row.
const MARGIN: usize = 2;
/// Number of spaces between columns.
const GAP: usize = 2;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    heading: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Never shortened, because the user may have to copy it.
    Whole,
    /// Shortened if the row would be too wide.
    Cut,
    /// A status, in color.
    State,
    /// A time, shown as its age.
    Age,
}

pub(crate) const fn whole(heading: &'static str) -> Column {
    let kind = Kind::Whole;
    Column { heading, kind }
}

pub(crate) const fn cut(heading: &'static str) -> Column {
    let kind = Kind::Cut;
    Column { heading, kind }
}

pub(crate) const fn state(heading: &'static str) -> Column {
    let kind = Kind::State;
    Column { heading, kind }
}

pub(crate) const fn age(heading: &'static str) -> Column {
    let kind = Kind::Age;
    Column { heading, kind }
}

/// Writes a table to standard output, as wide as the terminal.
pub(crate) fn table(columns: &[Column], rows: &[Vec<String>]) -> Result<()> {
    let width = terminal_width().unwrap_or(UNBOUNDED).max(WIDTH);
    for text in laid_out(Paint::stdout(), columns, rows, width, SystemClock.now().millis()) {
        line(text)?;
    }
    Ok(())
}

fn terminal_width() -> Option<usize> {
    width_of(&io::stdout())
}

/// Width of the terminal that standard error is, if it is one.
pub(crate) fn stderr_width() -> Option<usize> {
    width_of(&io::stderr())
}

fn width_of(out: &(impl IsTerminal + AsFd)) -> Option<usize> {
    if !out.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(out).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Lays out the table. A row that is still too wide after its cells are shortened wraps to further lines.
fn laid_out(
    paint: Paint,
    columns: &[Column],
    rows: &[Vec<String>],
    width: usize,
    now_ms: i64,
) -> Vec<String> {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            columns
                .iter()
                .zip(row)
                .map(|(column, cell)| shown(column.kind, cell, now_ms))
                .collect()
        })
        .collect();
    let natural: Vec<_> = columns
        .iter()
        .enumerate()
        .map(|(n, column)| {
            let cells = rows
                .iter()
                .filter_map(|row| row.get(n))
                .map(|cell| cell.chars().count());
            cells.chain([column.heading.len()]).max().unwrap_or(0)
        })
        .collect();
    let lines = broken(columns, &natural, width);
    let headings: Vec<_> = columns.iter().map(|column| column.heading.to_owned()).collect();
    let mut text = Vec::new();
    for line in &lines {
        text.push(paint.dim(line.text(&headings, |_, cell| cell)));
    }
    for row in &rows {
        for line in &lines {
            let shown = line.text(row, |n, cell| match columns.get(n) {
                Some(Column {
                    kind: Kind::State, ..
                }) => paint.state(&cell),
                Some(_) | None => cell,
            });
            // A continuation line may have no content.
            if !shown.trim().is_empty() {
                text.push(shown);
            }
        }
    }
    text
}

fn shown(kind: Kind, cell: &str, now_ms: i64) -> String {
    match (kind, Timestamp::parse(cell)) {
        (Kind::Age, Ok(time)) => ago(now_ms.saturating_sub(time.as_millis())),
        (Kind::Whole | Kind::Cut | Kind::State | Kind::Age, _) => plain(cell).replace(['\n', '\t'], " "),
    }
}

/// Formats an age in the largest unit that fits.
fn ago(millis: i64) -> String {
    let seconds = millis / 1_000;
    let (n, unit) = match seconds {
        ..60 => (seconds.max(0), "s"),
        60..3_600 => (seconds / 60, "min"),
        3_600..172_800 => (seconds / 3_600, "h"),
        172_800.. => (seconds / 86_400, "d"),
    };
    format!("{n} {unit} ago")
}

/// The columns that share one line.
struct Line {
    margin: usize,
    /// Column index and width.
    columns: Vec<(usize, usize)>,
}

impl Line {
    fn text(&self, row: &[String], paint: impl Fn(usize, String) -> String) -> String {
        let mut text = " ".repeat(self.margin);
        let mut gap = 0;
        for (n, width) in &self.columns {
            let cell = row.get(*n).map_or("", String::as_str);
            let cell = shortened(cell, *width);
            let length = cell.chars().count();
            if length > 0 {
                text.extend(std::iter::repeat_n(' ', gap));
                gap = 0;
                text.push_str(&paint(*n, cell));
            }
            gap += width.saturating_sub(length) + GAP;
        }
        text
    }
}

fn shortened(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    let mut cut: String = cell.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// Assigns a line and a width to every column.
fn broken(columns: &[Column], natural: &[usize], width: usize) -> Vec<Line> {
    let is_cut = |n: usize| columns.get(n).is_some_and(|column| column.kind == Kind::Cut);
    let least = |n: usize| {
        if is_cut(n) {
            natural[n].min(LEAST)
        } else {
            natural[n]
        }
    };
    let mut lines: Vec<Line> = Vec::new();
    let mut left = 0;
    for n in 0..columns.len() {
        match lines.last_mut() {
            Some(line) if left >= GAP + least(n) => {
                left -= GAP + least(n);
                line.columns.push((n, least(n)));
            }
            Some(_) | None => {
                let margin = if lines.is_empty() { 0 } else { MARGIN };
                left = width.saturating_sub(margin + least(n));
                let columns = vec![(n, least(n))];
                lines.push(Line { margin, columns });
            }
        }
    }
    // The remaining space of each line goes to its shortened columns, from left to right.
    for line in &mut lines {
        let used: usize = line.columns.iter().map(|(_, width)| width + GAP).sum();
        let mut left = (width + GAP).saturating_sub(line.margin + used);
        for (n, width) in &mut line.columns {
            let more = natural[*n].saturating_sub(*width).min(left);
            *width += more;
            left -= more;
        }
    }
    lines
}

/// A progress indicator: a spinner on a terminal, nothing elsewhere.
#[derive(Debug)]
pub(crate) struct Spinner(ProgressBar);

impl Spinner {
    /// Shows the spinner until it is dropped.
    pub(crate) fn start(text: impl Into<Cow<'static, str>>) -> Self {
        let is_shown = can_draw();
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

    /// Writes a line to standard output, above the spinner.
    pub(crate) fn line(&self, text: impl Display) -> Result<()> {
        self.0.suspend(|| line(text))
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
    fn external_text_cannot_steer_the_terminal() {
        assert_eq!(plain("a\u{1b}[31mb\u{7}\nc\td\u{9b}2J"), "a[31mb\nc\td2J");
        assert_eq!(
            plain("pay\u{202e}99\u{2066}\u{2069} now\u{200b}\u{2028}\u{feff}"),
            "pay99 now"
        );
        for text in ["nothing to do", "می\u{200c}خواهم", "👩\u{200d}🔬"] {
            assert!(matches!(plain(text), Cow::Borrowed(_)), "{text}");
        }
    }

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter()
            .map(|row| row.iter().map(|cell| (*cell).to_owned()).collect())
            .collect()
    }

    #[test]
    fn table_fits_its_width_and_keeps_ids_whole() {
        let paint = Paint { is_on: false };
        let id = format!("run_{}", "x".repeat(28));
        let long = "words of a description ".repeat(20);
        let columns = [
            whole("RUN"),
            cut("WORKFLOW"),
            state("STATUS"),
            age("STARTED"),
            cut("ERROR"),
        ];
        let rows = rows(&[
            &[
                &id,
                "campaign-brief-of-the-whole-year",
                "waiting-approval",
                "2026-11-23T02:15:01.123Z",
                &long,
            ],
            &[&id, "hello", "completed", "2026-11-23T02:15:01Z", ""],
        ]);
        let now_ms = Timestamp::parse("2026-11-23T03:00:00Z").unwrap().as_millis();
        for width in [80, 100, 132, 300] {
            let lines = laid_out(paint, &columns, &rows, width, now_ms);
            assert!(
                lines.iter().all(|line| line.chars().count() <= width),
                "{width}: {lines:#?}"
            );
            assert_eq!(
                lines.iter().filter(|line| line.contains(&id)).count(),
                2,
                "{lines:#?}"
            );
            assert!(
                lines.iter().any(|line| line.contains("waiting-approval")),
                "{lines:#?}"
            );
            assert!(lines.iter().any(|line| line.contains("44 min ago")), "{lines:#?}");
            assert!(lines.iter().all(|line| line == line.trim_end()), "{lines:#?}");
        }
        assert_eq!(
            laid_out(paint, &columns[..4], &rows, 80, now_ms).len(),
            3,
            "one line each where there is room"
        );
        let piped = laid_out(paint, &columns, &rows, UNBOUNDED, now_ms);
        assert_eq!(
            piped.len(),
            3,
            "the header and every row have one line: {piped:#?}"
        );
        assert!(piped[1].contains(long.trim_end()), "{piped:#?}");
        let coloured = laid_out(Paint { is_on: true }, &columns, &rows, 80, now_ms).join("\n");
        assert!(
            coloured.contains("\u{1b}[33mwaiting-approval\u{1b}[0m"),
            "{coloured}"
        );
        assert!(coloured.contains("\u{1b}[32mcompleted\u{1b}[0m"), "{coloured}");
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
