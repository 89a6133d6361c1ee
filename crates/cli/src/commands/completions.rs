//! `wopr completions`: prints shell completions.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result};
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::Cli;
use crate::exit::Exit;

/// Print completions for a shell.
///
/// For bash: `wopr completions bash > ~/.local/share/bash-completion/completions/wopr`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Result<Exit> {
        // Buffered, because the generator panics if writing fails.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "wopr", &mut script);
        io::stdout()
            .lock()
            .write_all(&script)
            .context("write to standard output")?;
        Ok(Exit::Ok)
    }
}
