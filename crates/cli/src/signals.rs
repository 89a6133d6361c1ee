//! Signal handling: the first signal starts a graceful shutdown, the second one ends the process.

use std::process;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;

/// SIGXFSZ, sent when a file would exceed its size limit (`ulimit -f`, `LimitFSIZE`). The number is the same
/// on Linux and the BSDs.
const FILE_TOO_LARGE: i32 = 25;

/// Receives SIGINT and SIGTERM from the moment it is created.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Installs the handlers. From then on, exceeding a file size limit is a write error, as on a full disk,
    /// and does not kill the process.
    pub(crate) fn catch() -> Result<Self> {
        // The handler stays installed after the listener is dropped.
        drop(signal(SignalKind::from_raw(FILE_TOO_LARGE)).context("catch SIGXFSZ")?);
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("catch SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("catch SIGTERM")?,
        })
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    /// Signals that arrive between two calls are kept.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Makes the `n`th signal from now on exit the process immediately.
    pub(crate) fn end_at(mut self, n: u32) {
        tokio::spawn(async move {
            for _ in 0..n {
                self.next().await;
            }
            process::exit(Exit::Interrupted as i32);
        });
    }
}
