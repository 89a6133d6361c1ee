//! Exit codes, and errors that carry one.
//!
//! Scripts branch on these numbers, so a number never changes its meaning. An error carries its code and a
//! hint as a [`Failure`] somewhere in its chain; an error without one exits with [`Exit::Failed`].

use std::{
    error::Error,
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

use crate::output::{Paint, plain};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Ok = 0,
    Failed = 1,
    Usage = 2,
    Config = 3,
    NotFound = 4,
    Unauthorised = 5,
    Waiting = 6,
    Unreachable = 7,
    Busy = 8,
    Interrupted = 130,
}

/// Every code with its meaning, as shown by `--help`.
const TABLE: [(Exit, &str); 10] = [
    (Exit::Ok, "done"),
    (
        Exit::Failed,
        "the run failed or was cancelled, or the command failed",
    ),
    (Exit::Usage, "the command line is wrong"),
    (
        Exit::Config,
        "the configuration or a workflow definition is invalid",
    ),
    (Exit::NotFound, "no such run, workflow, key, task or file"),
    (Exit::Unauthorised, "the key is missing, unknown or lacks a scope"),
    (Exit::Waiting, "the run waits for an answer"),
    (Exit::Unreachable, "nothing answers at the server's address"),
    (
        Exit::Busy,
        "the database or the address is in use, or the server is busy",
    ),
    (Exit::Interrupted, "interrupted by a signal"),
];

/// Formats the exit codes for `--help`.
pub(crate) fn table() -> String {
    let mut text = String::from("Exit codes:\n");
    for (exit, meaning) in TABLE {
        text.push_str(&format!("  {:>3}  {meaning}\n", exit as u8));
    }
    text
}

pub(crate) fn codes() -> impl Iterator<Item = (u8, &'static str)> {
    TABLE.into_iter().map(|(exit, meaning)| (exit as u8, meaning))
}

impl Exit {
    /// Returns the exit code for a file that cannot be read.
    pub(crate) fn of_reading(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::NotFound {
            Self::NotFound
        } else {
            Self::Failed
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error shown to the user: a message, an exit code and an optional hint.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    text: String,
    hint: Option<String>,
}

impl Failure {
    /// Creates an error. The text is a sentence without a final period.
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self {
            exit,
            text: text.into(),
            hint: None,
        }
    }

    /// Creates an error from one of ours, whose text is a fragment that follows "cannot". Appends its causes.
    pub(crate) fn cannot(exit: Exit, error: &dyn Error) -> Self {
        let mut text = format!("cannot {error}");
        let mut below = error.source();
        while let Some(error) = below {
            let cause = error.to_string();
            // Some errors repeat their source in their own text.
            if !text.contains(&cause) {
                text.push_str(": ");
                text.push_str(&cause);
            }
            below = error.source();
        }
        Self::new(exit, text)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Failure {}

/// Prints an error to standard error and returns the exit code. A broken pipe is not an error.
pub(crate) fn report(error: &anyhow::Error) -> Exit {
    let is_broken_pipe = error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    });
    if is_broken_pipe {
        return Exit::Ok;
    }
    let paint = Paint::stderr();
    let mut err = io::stderr().lock();
    // Errors are ignored because standard error may be closed.
    match error.downcast_ref::<Failure>() {
        Some(failure) => {
            // Texts of servers and files may steer the terminal.
            let _ = writeln!(err, "{} {}", paint.red("error:"), plain(&failure.text));
            if let Some(hint) = &failure.hint {
                let _ = writeln!(err, "{} {}", paint.dim("hint:"), plain(hint));
            }
            failure.exit
        }
        None => {
            let text = format!("cannot {error:#}");
            let _ = writeln!(err, "{} {}", paint.red("error:"), plain(&text));
            Exit::Failed
        }
    }
}

/// Prints help, the version or a usage error.
pub(crate) fn refuse(stop: &clap::Error) -> ExitCode {
    // A broken pipe is not an error.
    let _ = stop.print();
    if stop.use_stderr() {
        Exit::Usage.into()
    } else {
        Exit::Ok.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_listed_once_and_in_order() {
        let codes: Vec<_> = codes().map(|(code, _)| code).collect();
        assert!(codes.is_sorted_by(|a, b| a < b));
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]);
        assert!(table().contains("    6  the run waits for an answer"));
    }

    #[test]
    fn failure_reports_each_cause_once() {
        #[derive(Debug)]
        struct Outer(io::Error);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "open the file: {}", self.0)
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let failure = Failure::cannot(Exit::Failed, &Outer(io::Error::other("it burns")));
        assert_eq!(failure.to_string(), "cannot open the file: it burns");
    }
}
