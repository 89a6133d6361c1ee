//! What a person who waits is told meanwhile.

use crate::output;

/// Says what is going on, where no machine reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Talk {
    is_quiet: bool,
}

impl Talk {
    /// Quiet, or not.
    pub(crate) const fn new(is_quiet: bool) -> Self {
        Self { is_quiet }
    }

    /// Says a line.
    pub(crate) fn say(self, line: &str) {
        if !self.is_quiet {
            // Progress is a courtesy; a closed terminal is no reason to stop.
            let _ = output::note(line);
        }
    }
}
