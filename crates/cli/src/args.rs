//! The command line, as far as commands share it.

use clap::{Args, Parser};

use crate::{commands::Command, exit};

/// Durable workflows, served over OpenWOP and A2A.
///
/// wopr keeps every run as a log: it survives the process, is never run twice, and can be picked up again from any
/// event. Try `wopr demo` first, then `wopr dev`.
#[derive(Debug, Parser)]
#[command(
    name = "wopr",
    version,
    max_term_width = 110,
    disable_help_subcommand = false,
    after_help = "`wopr help COMMAND` says more; `wopr help exit-codes` lists how a command ends.",
    after_long_help = exit::table(),
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which server is asked, and as whom.
#[derive(Debug, Clone, Args)]
pub(crate) struct Remote {
    /// The server's origin
    #[arg(long, value_name = "URL", env = "WOPR_SERVER", default_value = DEFAULT_SERVER)]
    pub(crate) server: String,

    /// The API key
    #[arg(long, value_name = "KEY", env = "WOPR_API_KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,
}

/// Where a host listens unless told otherwise.
pub(crate) const DEFAULT_SERVER: &str = "http://127.0.0.1:8080";

/// Whether the answer is for a machine.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Format {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
