//! Shows the steps of a run on a terminal.
//!
//! A step that is under way has a line that changes in its place; when it ends, the line moves up and stays. If more
//! steps are under way than fit, the last line counts the others. Elsewhere than on a terminal nothing is drawn.

use std::time::Duration;

use anyhow::Result;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use wopr_wire::openwop::event::RunEventDoc;

use crate::{
    board::{Board, Step},
    output::{self, Paint},
    spending::Spending,
};

/// Time between two frames of a spinner.
const TICK: Duration = Duration::from_millis(90);
/// Width of a terminal that does not say its own.
const WIDTH: usize = 80;
/// Characters of a line before a step's name: two spaces, its mark, and a space.
const MARGIN: usize = 4;
/// The most lines that change in their place.
const MAX_LINES: usize = 12;

/// The live lines of a run.
#[derive(Debug)]
pub(crate) struct Drawing {
    board: Board,
    lines: MultiProgress,
    /// One per line, in their order on the screen.
    bars: Vec<ProgressBar>,
}

impl Drawing {
    pub(crate) fn new(board: Board) -> Self {
        Self {
            board,
            lines: MultiProgress::new(),
            bars: Vec::new(),
        }
    }

    /// Takes in an event, and draws what it changes.
    pub(crate) fn take(&mut self, event: &RunEventDoc) -> Result<()> {
        if let Some(over) = self.board.take(event) {
            let line = self.marked(&over);
            self.lines.suspend(|| output::note(line))?;
        }
        self.draw();
        Ok(())
    }

    /// Tells what models took for a child run that is about to end.
    pub(crate) fn spend(&mut self, child: &str, spending: Spending) {
        self.board.spend(child, spending);
    }

    /// Tells what the nodes of a child run are called.
    pub(crate) fn describe(&mut self, child: &str, definition: &serde_json::Value) {
        self.board.describe(child, definition);
    }

    /// Draws the steps that are under way.
    pub(crate) fn draw(&mut self) {
        let (paint, width) = (Paint::stderr(), width());
        let steps = self.board.steps();
        let n_more = steps.len().saturating_sub(MAX_LINES);
        let n_lines = steps.len().min(MAX_LINES) + usize::from(n_more > 0);
        while self.bars.len() > n_lines
            && let Some(bar) = self.bars.pop()
        {
            bar.finish_and_clear();
            self.lines.remove(&bar);
        }
        while self.bars.len() < n_lines {
            self.bars.push(self.lines.add(ProgressBar::new_spinner()));
        }
        for (bar, step) in self.bars.iter().zip(steps) {
            let mark = match step.is_asked() {
                true => Board::mark(paint, step),
                false => "{spinner:.cyan}".to_owned(),
            };
            show(bar, &mark, self.board.line(paint, step, width), !step.is_asked());
        }
        if let (true, Some(bar)) = (n_more > 0, self.bars.last()) {
            show(bar, " ", paint.dim(format!("and {n_more} more")), false);
        }
    }

    /// Removes the lines, so that something else can be written, and prints those of steps that ask.
    pub(crate) fn pause(&mut self) -> Result<()> {
        for bar in self.bars.drain(..) {
            bar.finish_and_clear();
            self.lines.remove(&bar);
        }
        for step in self.board.steps().iter().filter(|step| step.is_asked()) {
            output::note(self.marked(step))?;
        }
        Ok(())
    }

    fn marked(&self, step: &Step) -> String {
        let paint = Paint::stderr();
        format!(
            "  {} {}",
            Board::mark(paint, step),
            self.board.line(paint, step, width())
        )
    }
}

/// Room for the line of a step, besides its mark.
fn width() -> usize {
    output::stderr_width().unwrap_or(WIDTH).saturating_sub(MARGIN)
}

fn show(bar: &ProgressBar, mark: &str, line: String, is_moving: bool) {
    if let Ok(style) = ProgressStyle::with_template(&format!("  {mark} {{wide_msg}}")) {
        bar.set_style(style.tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ "));
    }
    bar.set_message(line);
    if is_moving {
        bar.enable_steady_tick(TICK);
    } else {
        bar.disable_steady_tick();
        bar.tick();
    }
}

impl Drop for Drawing {
    fn drop(&mut self) {
        for bar in self.bars.drain(..) {
            bar.finish_and_clear();
        }
    }
}
