//! Flags shared by several commands.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::client::Trust;

/// The server to call, and the credential.
#[derive(Debug, Clone, Args)]
pub(crate) struct Remote {
    /// The server's origin
    #[arg(long, value_name = "URL", env = "WOPR_SERVER", default_value = DEFAULT_SERVER)]
    pub(crate) server: String,

    /// The API key
    #[arg(long, value_name = "KEY", env = "WOPR_API_KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,

    #[command(flatten)]
    pub(crate) authorities: Authorities,
}

/// Certificate authorities for TLS, and a client certificate.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Authorities {
    /// Trust the certificate authorities in this PEM file instead of the machine's
    #[arg(long, value_name = "FILE", env = "WOPR_CACERT")]
    cacert: Option<PathBuf>,

    /// Present the client certificate in this PEM file to a server that asks for one
    #[arg(long, value_name = "FILE", env = "WOPR_CLIENT_CERT", requires = "client_key")]
    client_cert: Option<PathBuf>,

    /// The private key of the client certificate, in PEM
    #[arg(long, value_name = "FILE", env = "WOPR_CLIENT_KEY", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

impl Authorities {
    pub(crate) fn read(&self) -> Result<Trust> {
        let identity = self.client_cert.as_deref().zip(self.client_key.as_deref());
        Trust::read(self.cacert.as_deref(), identity)
    }
}

/// Reads the maximum length of a list.
pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("must be a whole number".to_owned()),
    }
}

pub(crate) const DEFAULT_SERVER: &str = "http://127.0.0.1:8080";

/// Output format.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Format {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
