//! How the process ends: the exit codes, and errors that know theirs.
//!
//! Scripts branch on these numbers, so a number never changes its meaning. An error carries its code and a hint
//! as a [`Failure`] somewhere in its chain; one without is a plain failure.

use std::{
    error::Error,
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

use crate::output::Paint;

/// How the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// It did what was asked.
    Ok = 0,
    /// The run failed or was cancelled, or the command did not succeed for a reason without a code of its own.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The configuration does not hold, or a workflow definition is invalid.
    Config = 3,
    /// There is no such run, workflow, key, task or file.
    NotFound = 4,
    /// The key is missing, unknown or not allowed to do this.
    Unauthorised = 5,
    /// The run waits for an answer.
    Waiting = 6,
    /// Nothing answers at the server's address, or not in time.
    Unreachable = 7,
    /// Another process has the database or the address, or the server is too busy.
    Busy = 8,
    /// A signal ended the command.
    Interrupted = 130,
}

/// Every code with its meaning, as help shows it.
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

/// The exit codes as a text for help.
pub(crate) fn table() -> String {
    let mut text = String::from("Exit codes:\n");
    for (exit, meaning) in TABLE {
        text.push_str(&format!("  {:>3}  {meaning}\n", exit as u8));
    }
    text
}

/// Every code with its meaning.
pub(crate) fn codes() -> impl Iterator<Item = (u8, &'static str)> {
    TABLE.into_iter().map(|(exit, meaning)| (exit as u8, meaning))
}

impl Exit {
    /// How a command ends that could not read a file it was given.
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

/// An error for a person: a sentence, how the process ends, and what may help.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    text: String,
    hint: Option<String>,
}

impl Failure {
    /// An error with a code. The text is a sentence without a final stop.
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self {
            exit,
            text: text.into(),
            hint: None,
        }
    }

    /// An error of ours, whose text is a fragment that follows "cannot", with everything below it.
    pub(crate) fn cannot(exit: Exit, error: &dyn Error) -> Self {
        let mut text = format!("cannot {error}");
        let mut below = error.source();
        while let Some(error) = below {
            let cause = error.to_string();
            // Some errors repeat their source in their own text.
            if !text.ends_with(&cause) {
                text.push_str(": ");
                text.push_str(&cause);
            }
            below = error.source();
        }
        Self::new(exit, text)
    }

    /// Adds what may help.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// How the process ends.
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

/// Says what went wrong on standard error, and how to end. A reader that left is no error.
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
    // Nobody is left to tell when standard error is closed.
    match error.downcast_ref::<Failure>() {
        Some(failure) => {
            let _ = writeln!(err, "{} {failure}", paint.red("error:"));
            if let Some(hint) = &failure.hint {
                let _ = writeln!(err, "{} {hint}", paint.dim("hint:"));
            }
            failure.exit
        }
        None => {
            let _ = writeln!(err, "{} cannot {error:#}", paint.red("error:"));
            Exit::Failed
        }
    }
}

/// Shows help, the version, or what is wrong with the command line.
pub(crate) fn refuse(stop: &clap::Error) -> ExitCode {
    // A reader that left does not matter here either.
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
    fn every_code_is_listed_once_and_in_order() {
        let codes: Vec<_> = codes().map(|(code, _)| code).collect();
        assert!(codes.is_sorted_by(|a, b| a < b));
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]);
        assert!(table().contains("    6  the run waits for an answer"));
    }

    #[test]
    fn a_failure_says_each_cause_once() {
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
