//! `wopr serve`: runs a host until it is stopped.

use std::{
    io::{self, Read as _},
    path::PathBuf,
    pin::pin,
    thread,
};

use anyhow::{Context as _, Result};
use clap::Args;
use tokio::sync::oneshot;

use crate::{
    exit::Exit,
    host::{self, HostArgs},
    signals::Signals,
};

/// Serve workflows over OpenWOP and A2A.
///
/// Prints one line of JSON with the address on standard output once the host accepts requests; logs go to
/// standard error. SIGTERM and SIGINT start a graceful shutdown, even during startup: new connections are
/// refused, streams end, requests in flight finish. A second signal exits at once. Either way, nothing that
/// was acknowledged is lost.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    host: HostArgs,

    /// Serve the paths of the Agent Workflow Protocol's reference, such as /v1/executions, on this port of 127.0.0.1, too
    /// [env: WORKFLOW_ENGINE_REST_PORT]
    #[arg(long, value_name = "PORT")]
    port: Option<String>,

    /// An MCP manifest of the Agent Workflow Protocol: its servers become tool servers of this host [env: WORKFLOW_ENGINE_MCP_CONFIG]
    #[arg(long, value_name = "FILE")]
    mcp_config: Option<PathBuf>,

    /// Stop when standard input is closed, so that a host never outlives the program that started it
    #[arg(long, hide = true)]
    while_stdin: bool,
}

impl Serve {
    pub(crate) async fn run(self) -> Result<Exit> {
        // Installed first, so that a signal during a long startup works too.
        let mut signals = Signals::catch()?;
        let overrides = self.host.overrides()?.with("awp.listen", self.port);
        let config = self
            .host
            .load_with_manifest(overrides, self.mcp_config.as_deref())?;
        host::init_logs(&config)?;
        let end = if self.while_stdin {
            Some(stdin_end()?)
        } else {
            None
        };
        let mut stop = pin!(async {
            match end {
                // An error means that the reader thread has ended, so standard input is closed.
                Some(end) => drop(end.await),
                None => std::future::pending().await,
            }
        });
        let Some(opened) = host::open_unless(config, &mut signals, &mut stop).await? else {
            return Ok(Exit::Ok);
        };
        opened.announce(None)?;
        opened.serve(signals, stop).await;
        Ok(Exit::Ok)
    }
}

/// Completes when standard input ends. Reads on a separate thread, because a blocking read on a runtime
/// thread would delay the runtime's shutdown.
fn stdin_end() -> Result<oneshot::Receiver<()>> {
    let (ended, end) = oneshot::channel();
    thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || {
            let mut stdin = io::stdin().lock();
            let mut buffer = [0; 256];
            while stdin.read(&mut buffer).is_ok_and(|n| n > 0) {}
            // Fails if the host has already stopped.
            let _ = ended.send(());
        })
        .context("watch standard input")?;
    Ok(end)
}
