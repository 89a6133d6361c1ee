//! Definition files and their problems, with line and column.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use serde_json::{Value, json};
use wopr_core::{Lint, NodeTypes, Place, Plan, Problem, Problems, Warning, locate};

use wopr_wire::json::{MAX_DEPTH, is_too_deep};

use crate::{
    exit::{Exit, Failure},
    output::{self, Paint},
};

/// Maximum number of characters shown of a line.
const EXCERPT: usize = 100;
/// Number of characters shown before the marked place.
const BEFORE: usize = 40;

/// The path of problems that concern the whole file.
const FILE: &str = "file";

pub(super) struct Text(String);

impl Text {
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let name = path.display();
        let bytes = fs::read(path).map_err(|error| {
            Failure::new(Exit::of_reading(&error), format!("cannot read {name}: {error}"))
        })?;
        String::from_utf8(bytes).map(Self).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Failure::new(
                Exit::Config,
                format!("{name} is not JSON: byte {at} is no part of a UTF-8 text"),
            )
        })
    }

    /// Parses the file. Fails with the place of the first syntax error.
    pub(super) fn document(&self, path: &Path) -> Result<Value, Box<Finding>> {
        serde_json::from_str(&self.0).map_err(|error| {
            let start = self.0.split_inclusive('\n').take(error.line().saturating_sub(1));
            let start: usize = start.map(str::len).sum();
            let at = (start + error.column().saturating_sub(1)).min(self.0.len());
            let rule = error.to_string();
            let rule = rule.split(" at line ").next().unwrap_or(&rule);
            let rule = match is_too_deep(&error) {
                true => format!("is nested too deeply: {MAX_DEPTH} levels are the most"),
                false => format!("is not JSON: {rule}"),
            };
            let end = at
                + self.0[self.0.floor_char_boundary(at)..]
                    .chars()
                    .next()
                    .map_or(0, char::len_utf8);
            Box::new(Finding {
                place: Some(Place::of(&self.0, at, end)),
                lint: None,
                problem: Problem::new(FILE, format!("{} {rule}", path.display())),
            })
        })
    }
}

/// An error or warning about a file.
pub(super) struct Finding {
    place: Option<Place>,
    /// The lint, if this is a warning.
    lint: Option<Lint>,
    problem: Problem,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Place { line, column, .. }) = self.place {
            write!(f, "{line}:{column}: ")?;
        }
        f.write_str(&describe(&self.problem))
    }
}

/// Formats a problem; the file itself is not named as its place.
fn describe(problem: &Problem) -> String {
    if problem.place == FILE {
        problem.rule.clone()
    } else {
        problem.to_string()
    }
}

impl Finding {
    fn document(&self) -> Value {
        let mut document = json!({
            "severity": if self.lint.is_some() { "warning" } else { "error" },
            "place": self.problem.place,
            "rule": self.problem.rule,
            "pointer": self.problem.pointer,
        });
        if let Some(lint) = self.lint {
            document["code"] = json!(lint.as_str());
        }
        if let Some(hint) = &self.problem.hint {
            document["hint"] = json!(hint);
        }
        if let Some(Place { line, column, .. }) = self.place {
            document["line"] = json!(line);
            document["column"] = json!(column);
        }
        document
    }

    fn show(&self, file: &str, text: &str) -> Result<()> {
        let paint = Paint::stdout();
        let kind = match self.lint {
            None => paint.red("error"),
            Some(lint) => format!(
                "{} {}",
                paint.yellow("warning"),
                paint.dim(format!("[{}]", lint.as_str()))
            ),
        };
        let Problem { place, rule, .. } = &self.problem;
        let what = if place == FILE {
            rule.clone()
        } else {
            format!("{place}: {rule}")
        };
        output::line(format!("  {kind}: {}", output::plain(&what)))?;
        if let Some(place) = self.place {
            let pointer = match self.problem.pointer.as_str() {
                "" => String::new(),
                pointer => format!(" ({})", output::plain(pointer)),
            };
            let at = format!("{file}:{}:{}{pointer}", place.line, place.column);
            output::line(format!("    {} {at}", paint.cyan("-->")))?;
            let (excerpt, before, marks) = excerpt(text, place);
            let number = place.line.to_string();
            let margin = " ".repeat(number.len());
            output::line(format!(
                "    {} {}",
                paint.cyan(format!("{number} |")),
                output::plain(&excerpt)
            ))?;
            let marks = format!("{}{}", " ".repeat(before), paint.red("^".repeat(marks)));
            output::line(format!("    {} {marks}", paint.cyan(format!("{margin} |"))))?;
        }
        if let Some(hint) = &self.problem.hint {
            output::line(format!("    {}: {}", paint.green("help"), output::plain(hint)))?;
        }
        Ok(())
    }
}

/// Returns the part of a line around a place, the number of characters before the place, and the place's
/// width.
fn excerpt(text: &str, place: Place) -> (String, usize, usize) {
    let start = text[..place.start].rfind('\n').map_or(0, |at| at + 1);
    let line = text[start..].lines().next().unwrap_or_default();
    let column = text[start..place.start].chars().count();
    let marked = text[place.start..place.end].lines().next().unwrap_or_default();
    let width = marked.chars().count();
    let skipped = if column + width > EXCERPT {
        column.saturating_sub(BEFORE)
    } else {
        0
    };
    // One column per character, so that the markers line up.
    let shown = |c: char| {
        if c == '\t' {
            ' '
        } else if output::steers(c) {
            '\u{fffd}'
        } else {
            c
        }
    };
    let mut excerpt: String = line.chars().skip(skipped).take(EXCERPT).map(shown).collect();
    let mut before = column - skipped;
    if skipped > 0 {
        excerpt.insert(0, '…');
        before += 1;
    }
    if line.chars().count() > skipped + EXCERPT {
        excerpt.push('…');
    }
    let room = excerpt.chars().count().saturating_sub(before);
    (excerpt, before, width.clamp(1, room.max(1)))
}

pub(super) struct Checked {
    file: PathBuf,
    text: String,
    outcome: Result<Plan, Exit>,
    findings: Vec<Finding>,
}

impl Checked {
    pub(super) fn read(file: &Path, conformance: bool) -> Self {
        let mut checked = Self {
            file: file.to_owned(),
            text: String::new(),
            outcome: Err(Exit::Config),
            findings: Vec::new(),
        };
        let text = match Text::read(file) {
            Ok(text) => text,
            Err(failure) => {
                checked.outcome = Err(failure.exit());
                checked.findings.push(Finding {
                    place: None,
                    lint: None,
                    problem: Problem::new(FILE, failure.to_string()),
                });
                return checked;
            }
        };
        let document = text.document(file);
        checked.text = text.0;
        match document {
            Err(finding) => checked.findings.push(*finding),
            Ok(document) => match Plan::admit(document, NodeTypes { conformance }) {
                Ok(plan) => {
                    checked.warn(plan.warnings());
                    checked.outcome = Ok(plan);
                }
                Err(Problems(problems)) => {
                    checked.add(problems.into_iter().map(|problem| (None, problem)).collect());
                }
            },
        }
        checked
    }

    fn warn(&mut self, warnings: Vec<Warning>) {
        let findings = warnings
            .into_iter()
            .map(|warning| (Some(warning.lint), warning.problem));
        self.add(findings.collect());
    }

    /// Adds findings and keeps them in file order.
    fn add(&mut self, findings: Vec<(Option<Lint>, Problem)>) {
        let (lints, problems): (Vec<_>, Vec<_>) = findings.into_iter().unzip();
        let places = locate(&self.text, &problems);
        let findings = lints.into_iter().zip(problems).zip(places);
        self.findings
            .extend(findings.map(|((lint, problem), place)| Finding { place, lint, problem }));
        self.findings
            .sort_by_key(|finding| finding.place.map(|place| place.start));
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the workflow, if a host would accept the file.
    pub(super) fn plan(&self) -> Option<&Plan> {
        self.outcome.as_ref().ok()
    }

    pub(super) fn n_warnings(&self) -> usize {
        self.findings
            .iter()
            .filter(|finding| finding.lint.is_some())
            .count()
    }

    pub(super) fn exit(&self, strict: bool) -> Exit {
        match &self.outcome {
            Err(exit) => *exit,
            Ok(_) if strict && !self.findings.is_empty() => Exit::Config,
            Ok(_) => Exit::Ok,
        }
    }

    pub(super) fn document(&self, strict: bool) -> Value {
        let texts: Vec<_> = self
            .findings
            .iter()
            .filter(|finding| finding.lint.is_none())
            .map(|finding| describe(&finding.problem))
            .collect();
        let mut document = json!({
            "file": self.file.display().to_string(),
            "valid": self.exit(strict) == Exit::Ok,
            "problems": texts,
        });
        if let Ok(plan) = &self.outcome {
            document["workflowId"] = json!(plan.id().as_str());
            document["contentVersion"] = json!(plan.version().as_str());
        }
        if !self.findings.is_empty() {
            document["diagnostics"] = self.findings.iter().map(Finding::document).collect();
        }
        document
    }

    pub(super) fn show(&self, strict: bool) -> Result<()> {
        let paint = Paint::stdout();
        let file = self.file.display().to_string();
        let file = output::plain(&file);
        match &self.outcome {
            Ok(plan) if self.exit(strict) == Exit::Ok => {
                output::line(format!(
                    "{} {file}  {}",
                    paint.green("ok  "),
                    paint.dim(plan.id())
                ))?;
            }
            _ => output::line(format!("{} {file}", paint.red("bad ")))?,
        }
        for finding in &self.findings {
            finding.show(&file, &self.text)?;
        }
        Ok(())
    }

    /// Formats the first problem, with the number of further ones.
    pub(super) fn first(&self) -> String {
        let name = self.file.display();
        let Some(finding) = self.findings.first() else {
            return name.to_string();
        };
        let joint = if finding.place.is_some() { "" } else { " " };
        let more = match self.findings.len() {
            0 | 1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        format!("{name}:{joint}{finding}{more}")
    }

    pub(super) fn show_first(&self) -> Result<()> {
        let paint = Paint::stdout();
        output::line(format!("{} {}", paint.red("bad "), output::plain(&self.first())))
    }
}
