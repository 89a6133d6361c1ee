//! Signal handling: the first signal starts a graceful shutdown, the second one ends the process.

use std::{fs, future, process};

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;

/// SIGXFSZ, sent when a file would exceed its size limit (`ulimit -f`, `LimitFSIZE`). The number is the same
/// on Linux and the BSDs.
const FILE_TOO_LARGE: i32 = 25;

/// Receives SIGINT, SIGTERM and SIGHUP from the moment it is created.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if the process was started to ignore it, as by `nohup`.
    hang_up: Option<Signal>,
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
            hang_up: match ignores_hang_up() {
                true => None,
                false => Some(signal(SignalKind::hangup()).context("catch SIGHUP")?),
            },
        })
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    /// Signals that arrive between two calls are kept.
    pub(crate) async fn next(&mut self) {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hang_up => {}
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

/// Returns `true` if whoever started the process had it ignore SIGHUP. Only Linux says so; on other systems this returns
/// `true`, and the process does not catch the signal.
fn ignores_hang_up() -> bool {
    let Ok(status) = fs::read_to_string("/proc/self/status") else {
        return true;
    };
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 != 0)
}
