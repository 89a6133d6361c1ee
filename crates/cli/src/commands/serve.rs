//! `wopr serve`: a host, until it is told to stop.

use std::{
    io::{self, Read as _},
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
/// Prints one line of JSON with the chosen address on standard output as soon as requests are taken; logs go to
/// standard error. SIGTERM and SIGINT stop it in order, also while it starts: no new connections, streams end, requests
/// in flight finish. A second signal ends it at once; nothing that was acknowledged is lost either way.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    host: HostArgs,

    /// Stop when standard input ends, so that a host never outlives the program that started it
    #[arg(long, hide = true)]
    while_stdin: bool,
}

impl Serve {
    pub(crate) async fn run(self) -> Result<Exit> {
        // Caught first, so that a signal during a long start stops it too.
        let mut signals = Signals::catch()?;
        let config = self.host.load()?;
        host::init_logs(&config)?;
        let end = if self.while_stdin {
            Some(stdin_end()?)
        } else {
            None
        };
        let mut stop = pin!(async {
            match end {
                // A reader that is gone has seen the end.
                Some(end) => drop(end.await),
                None => std::future::pending().await,
            }
        });
        let Some(opened) = host::open_unless(config, &mut signals, &mut stop).await? else {
            return Ok(Exit::Ok);
        };
        opened.announce(None)?;
        opened.serve(signals, stop).await?;
        Ok(Exit::Ok)
    }
}

/// Becomes ready when standard input ends. A thread of its own, because one of the runtime's would hold up its
/// end.
fn stdin_end() -> Result<oneshot::Receiver<()>> {
    let (ended, end) = oneshot::channel();
    thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || {
            let mut stdin = io::stdin().lock();
            let mut buffer = [0; 256];
            while stdin.read(&mut buffer).is_ok_and(|n| n > 0) {}
            // Nobody listens any more when the host has stopped on its own.
            let _ = ended.send(());
        })
        .context("watch standard input")?;
    Ok(end)
}
