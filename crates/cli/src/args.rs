//! Flags that commands share.

use clap::Args;

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
