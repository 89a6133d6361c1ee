//! `wopr mock-model`: a scripted model on a local port.

use std::{fs, io, net::SocketAddr, path::PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::{
    exit::{Exit, Failure},
    mock_model::{Script, Server, serve},
    output,
    signals::Signals,
};

/// Serve a scripted model, for tests without a key.
/// It speaks the chat completions of OpenAI and the messages of Anthropic, streamed or not. The script is a JSON file;
/// docs/models.md describes it.
#[derive(Debug, Args)]
pub(crate) struct MockModel {
    /// The script.
    #[arg(value_name = "FILE")]
    script: PathBuf,
    /// The address to listen on; with port 0 the system chooses.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4010")]
    listen: SocketAddr,
    /// Append every request to a file, each as a line of JSON.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

impl MockModel {
    pub(crate) async fn run(self) -> Result<Exit> {
        let text = fs::read_to_string(&self.script).map_err(|error| {
            let exit = Exit::of_reading(&error);
            Failure::new(
                exit,
                format!("cannot read the script {}: {error}", self.script.display()),
            )
        })?;
        let script = Script::parse(&text).map_err(|rule| {
            Failure::new(
                Exit::Config,
                format!("cannot read the script {}: {rule}", self.script.display()),
            )
        })?;
        let mut signals = Signals::catch()?;
        let server = Server::bind(script, self.listen, self.record)
            .await
            .map_err(|error| {
                let is_taken = error.kind() == io::ErrorKind::AddrInUse;
                let exit = if is_taken { Exit::Busy } else { Exit::Config };
                let failure = Failure::new(exit, format!("cannot listen on {}: {error}", self.listen));
                match is_taken {
                    true => failure.hint("choose another address with --listen; port 0 takes a free one"),
                    false => failure,
                }
            })?;
        let address = server.address().context("read the address of the listener")?;
        output::line(format!("listening on http://{address}"))?;
        output::line("for wopr, in the environment (speaks as OpenAI does):")?;
        output::line(format!(
            "  export WOPR_MODEL_NAME=mock WOPR_MODEL_URL=http://{address}/v1"
        ))?;
        output::line("or in its configuration:")?;
        output::line("  [[models]]\n  name = \"default\"\n  kind = \"anthropic\"")?;
        output::line(format!("  base_url = \"http://{address}\""))?;
        tokio::select! {
            () = serve(server) => {}
            () = signals.next() => {}
        }
        Ok(Exit::Ok)
    }
}
