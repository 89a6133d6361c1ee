//! Signals: the first asks for an orderly stop, the second is obeyed at once.

use std::process;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;

/// SIGINT and SIGTERM, caught from the moment this is made.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Begins to catch both signals.
    pub(crate) fn catch() -> Result<Self> {
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
