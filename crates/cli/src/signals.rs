//! Signals: the first asks for an orderly stop, the second is obeyed at once.

use std::process;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;

/// What a process gets that writes a file beyond its limit (`ulimit -f`, `LimitFSIZE`); the number is that of Linux and
/// the BSDs.
const FILE_TOO_LARGE: i32 = 25;

/// SIGINT and SIGTERM, caught from the moment this is made.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Begins to catch both signals. From then on a file that may not grow is an error of whoever writes it, as on a full
    /// disk, and not the end of the process.
    pub(crate) fn catch() -> Result<Self> {
        // Dropping the listener does not take the handler away.
        drop(signal(SignalKind::from_raw(FILE_TOO_LARGE)).context("catch SIGXFSZ")?);
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("catch SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("catch SIGTERM")?,
        })
    }

    /// Waits for the next of them.
    ///
    /// # Cancel safety
    /// A signal that arrives while nobody waits is kept.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// From now on the `n`th signal ends the process without asking anybody.
    pub(crate) fn end_at(mut self, n: u32) {
        tokio::spawn(async move {
            for _ in 0..n {
                self.next().await;
            }
            process::exit(Exit::Interrupted as i32);
        });
    }
}
