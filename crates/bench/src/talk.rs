//! Progress messages on standard error.

use std::io::{self, Write as _};

/// Prints progress, unless quiet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Talk {
    is_quiet: bool,
}

impl Talk {
    pub(crate) const fn new(is_quiet: bool) -> Self {
        Self { is_quiet }
    }

    pub(crate) fn say(self, line: &str) {
        if !self.is_quiet {
            note(line);
        }
    }
}

/// Writes a line to standard error. A failure is ignored: a closed terminal is no reason to stop.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
