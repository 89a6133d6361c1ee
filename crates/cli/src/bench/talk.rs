//! Progress messages on standard error.

use crate::output;

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
            // A failure is ignored: a closed terminal is no reason to stop.
            let _ = output::note(line);
        }
    }
}
